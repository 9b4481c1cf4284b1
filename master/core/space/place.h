/* SPDX-License-Identifier: Apache-2.0
 * Placement: which segment, which chunk.
 */
#ifndef KVP_MASTER_CORE_SPACE_PLACE_H
#define KVP_MASTER_CORE_SPACE_PLACE_H

#include "master/core/space/space.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/tenant.h"
#include "master/core/catalog/staged.h"

/* Where a client wants its objects to lie. */
typedef struct {
    uint32_t avoid[KVP_AVOID_MAX]; /* segments that the client does not reach */
    uint32_t avoid_n; /* 0 also after this wish was dropped */
    uint32_t only; /* the only allowed segment; 0 = any */
} kvp_wish_t;

kvp_err_t kvp_place_alloc(kvp_space_t *sp, const kvp_attempt_t *a,
                          const kvp_wish_t *wish); /* gives its object one more copy; NO_SPACE */
kvp_err_t kvp_place_alloc_in(kvp_space_t *sp, kvp_chunk_t *c, uint32_t oid);
/* kvp_place_alloc_stage: an extent for an object that is on the segment's tier alone, which does
 * not lie there yet. NO_SPACE */
kvp_err_t kvp_place_alloc_stage(kvp_space_t *sp, kvp_segment_t *g, uint32_t oid, kvp_place_t *at_out);
void kvp_place_room_init(kvp_segment_t *g); /* every chunk is empty */
void kvp_place_room_changed(kvp_chunk_t *c); /* its allocator was used */
void kvp_place_chunk_fini(kvp_space_t *sp, kvp_chunk_t *c); /* nothing is in it any more; its allocators go in slices */
void kvp_place_free_pool_later(kvp_space_t *sp, kvp_recpool_t *pool); /* taken: its blocks go in slices */
void kvp_place_free_some(kvp_space_t *sp);
/* memory of its allocators in this process may have changed */
void kvp_place_memory_changed(kvp_space_t *sp, kvp_chunk_t *c);
/* kvp_place_is_promised: a free extent, or one that `mine` has just got, is part of the window of a
 * waiting put. */
bool kvp_place_is_promised(const kvp_space_t *sp, const kvp_chunk_t *c, uint32_t slot, uint32_t mine);
/* kvp_owner_tell sends the chunk's tenant to the node, which keeps the name in its memory for a
 * master without a log. */
void kvp_owner_tell(kvp_space_t *sp, const kvp_chunk_t *c);
/* an object of the tenant is in the chunk */
void kvp_place_chunk_take(kvp_space_t *sp, kvp_chunk_t *c, kvp_tenant_t *t);
void kvp_place_chunk_leave(kvp_space_t *sp, kvp_chunk_t *c); /* nothing is */
static inline bool
kvp_place_is_open_to(const kvp_chunk_t *c, const kvp_tenant_t *t)
{
    return c->evacuating == NULL && (c->taker == NULL || c->taker == t) && (c->tenant == NULL || c->tenant == t);
}
/* The chunk has an object of the tenant, whose eviction makes room for the tenant. */
static inline bool
kvp_place_is_own(const kvp_chunk_t *c, const kvp_tenant_t *t)
{
    return c->tenant == t && kvp_place_is_open_to(c, t);
}
/* kvp_place_note_sealed notes, in a report, a slot that no old writer has in hand; forget_sealed,
 * that no old writer has any. */
void kvp_place_note_sealed(kvp_chunk_t *c, uint32_t slot);
void kvp_place_forget_sealed(kvp_chunk_t *c);
static inline bool
kvp_place_is_sealed(const kvp_chunk_t *c, uint32_t slot) /* it was noted */
{
    return c->sealed != NULL && (c->sealed[slot / 8] >> slot % 8 & 1) != 0;
}
bool kvp_place_has_key_room(const kvp_chunk_t *c,
                            uint16_t key_len); /* now; a chunk with unclaimed extents may have it later */
/* kvp_place_may_lie: the attempt has no copy in that segment, nor on its host while another host
 * has none, nor waits for one there, and its client does not want to be spared the segment. */
bool kvp_place_may_lie(const kvp_space_t *sp, const kvp_attempt_t *a, const kvp_wish_t *wish, const kvp_segment_t *g);

#endif
