/* SPDX-License-Identifier: Apache-2.0
 * Decodes answers of the master: Places (to PutBegin and Get) has one object for each key, followed by the object's
 * locations; Reply has one record for each key. Pure. */
#ifndef KVP_CLIENT_CORE_PLACES_H
#define KVP_CLIENT_CORE_PLACES_H

#include "client/core/op.h"

typedef struct {
    const kvp_wire_obj_t *objs; /* array of n objects; borrowed from the frame */
    const kvp_wire_loc_t *locs; /* array of nloc locations */
    const kvp_wire_lineage_t *lineages; /* array of n lineages; NULL = the answer has no lineages */
    const uint32_t *tiers; /* array of n segment ids on SSD, 0 = none; NULL = the answer has no such ids */
    uint32_t n;
    uint32_t nloc;
    uint64_t ticket;
    uint32_t retry_ms;
    uint32_t ns_epoch; /* epoch of the tenant's namespace; a put writes it into the descriptors */
    bool is_leased; /* the locations may be cached */
    uint64_t revoke_seq; /* the answer includes revocations up to this number */
} kvp_places_t;

/* kvp_places_read decodes the answer to a question about n keys. Returns OK, the error with which the master refused
 * the whole question, or PROTO. After OK the objects have nloc locations in total, and the error of each object is a
 * valid one. */
kvp_err_t kvp_places_read(const kvp_frame_t *frame, uint32_t n, kvp_places_t *places_out) KVP_MUST_USE;

/* kvp_reply_read decodes a Reply with n records of `size` bytes each. The records are borrowed as long as the answer.
 * Returns the master's error, or PROTO. */
kvp_err_t kvp_reply_read(const kvp_frame_t *answer, uint32_t n, size_t size, const void **records_out) KVP_MUST_USE;

#endif
