/* SPDX-License-Identifier: Apache-2.0
 * Copies of committed objects to the memory of other nodes (COPY), and the drop of the copies that objects were moved
 * from. ADR 0050. */
#ifndef KVP_MASTER_CORE_SPACE_COPY_H
#define KVP_MASTER_CORE_SPACE_COPY_H

#include "common/list.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/space/space.h"

#define KVP_COPYING_MAX (64ull << 20) /* limit of the unanswered bytes that are copied to one segment */

typedef struct kvp_deferred kvp_deferred_t;
typedef struct kvp_retire kvp_retire_t;

typedef struct {
    kvp_list_t link; /* link in segment->copies, or in the list of an order's records */
    kvp_segment_t *target;
    uint32_t number; /* number in space->copies */
    uint32_t source; /* id of the segment that the object is moved from */
    uint32_t moved_from; /* id of the segment whose copy leaves when this one is made, with no drain; 0 = none */
    bool is_sent; /* flag: the order was sent to the target's node */
    bool is_asked; /* flag: a client or the hot copies asked for this copy, so the copy stays without a drain */
    /* flag: a copy of a hot object: when it is made, readers' cached locations are revoked, so that they learn its
     * place */
    bool is_hot;
    bool is_orphan; /* flag: the object was removed or replaced meanwhile */
    kvp_digest_t digest;
    uint64_t version, len;
    uint64_t from; /* generation of the copy that the node reads */
    kvp_place_t at; /* the extent at the target; before the node's answer it belongs to no object */
    kvp_retire_t *retire; /* retire record of this extent; NULL = given up */
} kvp_copy_t;

/* kvp_copy_begin reserves an extent for a copy of the object in the segment, and queues the order to its node. The copy
 * at `from` will be dropped if its segment is draining then. NO_SPACE: no free extent is large enough; RETRY_AFTER: too
 * many bytes are being copied to this segment. kvp_copy_of returns the copy that is being made of the object; NULL =
 * none. */
kvp_err_t kvp_copy_begin(kvp_space_t *sp, uint32_t oid, const kvp_place_t *from, kvp_segment_t *target);
kvp_copy_t *kvp_copy_of(const kvp_space_t *sp, const kvp_obj_t *o);
/* kvp_copy_append appends the order's record of a copy. kvp_copy_answered handles the node's answer (KVP_COPY_*).
 * kvp_copies_fail fails all copies in the list: no answer will come. kvp_copy_leave separates a removed object from its
 * copy; the deferred reply (NULL = none) waits until the extent is unreadable. */
void kvp_copy_append(const kvp_space_t *sp, const kvp_list_t *record, kvp_buf_t *out);
void kvp_copy_answered(kvp_space_t *sp, kvp_copy_t *copy, uint8_t answer);
void kvp_copies_fail(kvp_space_t *sp, kvp_list_t *copies);
void kvp_copy_leave(kvp_space_t *sp, const kvp_obj_t *o, kvp_deferred_t *deferred);
/* kvp_copies_leave drops one copy that may leave now. *oid_out: the object, if it was also removed from the SSD beside
 * the dropped copy, else KVP_OID_NONE. Returns false if no copy may leave, or the step's budget is used up. */
bool kvp_copies_leave(kvp_space_t *sp, uint32_t *oid_out);

#endif
