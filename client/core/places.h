/* SPDX-License-Identifier: Apache-2.0
 * Reads the master's answers: Places, of PutBegin and Get, with one object a key, followed by its
 * locations; and Reply, with one record a key. Pure. */
#ifndef KVP_CLIENT_CORE_PLACES_H
#define KVP_CLIENT_CORE_PLACES_H

#include "client/core/op.h"

typedef struct {
    const kvp_wire_obj_t *objs; /* n; borrowed from the frame */
    const kvp_wire_loc_t *locs; /* nloc */
    const kvp_wire_lineage_t *lineages; /* n; NULL = the answer has none */
    const uint32_t *tiers; /* n, segment ids, 0 = none; NULL as above */
    uint32_t n;
    uint32_t nloc;
    uint64_t ticket;
    uint32_t retry_ms;
    uint32_t ns_epoch; /* of the namespace: into the descriptors of what is put */
    bool is_leased; /* these locations may be cached */
    uint64_t revoke_seq; /* the answer includes revocations up to this number */
} kvp_places_t;

/* kvp_places_read checks the answer to a question about n keys: OK, the error with which the master refused it whole,
 * or PROTO. After OK the locations of all objects add up to at most nloc, and no object has an impossible error. */
kvp_err_t kvp_places_read(const kvp_frame_t *frame, uint32_t n, kvp_places_t *places_out) KVP_MUST_USE;

/* kvp_reply_read reads a Reply with n records of size bytes, borrowed as long as the answer;
 * returns its error, or PROTO. */
kvp_err_t kvp_reply_read(const kvp_frame_t *answer, uint32_t n, size_t size, const void **records_out) KVP_MUST_USE;

#endif
