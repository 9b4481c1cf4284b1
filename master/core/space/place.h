/* SPDX-License-Identifier: Apache-2.0
 * Placement: chooses the segment and the chunk for a new extent. */
#ifndef KVP_MASTER_CORE_SPACE_PLACE_H
#define KVP_MASTER_CORE_SPACE_PLACE_H

#include "master/core/space/space.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/tenant.h"
#include "master/core/catalog/staged.h"

/* The segments in which a client wants, or does not want, its objects. */
typedef struct {
    uint32_t avoid[KVP_AVOID_MAX]; /* ids of segments that the client cannot reach */
    uint32_t avoid_n; /* number of entries in `avoid`; set to 0 when no other segment had room */
    uint32_t only; /* id of the only allowed segment; 0 = any segment */
    uint32_t prefer[KVP_REPLICAS_MAX]; /* ids of segments that are tried first, one for each copy */
    uint32_t prefer_n; /* number of entries in `prefer` */
} kvp_wish_t;

kvp_err_t kvp_place_alloc(kvp_space_t *sp, const kvp_attempt_t *a,
                          const kvp_wish_t *wish); /* allocates an extent for one more copy; NO_SPACE: none fits */
kvp_err_t kvp_place_alloc_in(kvp_space_t *sp, kvp_chunk_t *c, uint32_t oid);
/* kvp_place_alloc_stage allocates an extent in memory for loading an object that is only on the segment's tier. The
 * extent is not added to the object yet. NO_SPACE if no extent fits. */
kvp_err_t kvp_place_alloc_stage(kvp_space_t *sp, kvp_segment_t *g, uint32_t oid, kvp_place_t *at_out);
void kvp_place_room_init(kvp_segment_t *g); /* makes g->room; all chunks are empty */
void kvp_place_room_changed(kvp_chunk_t *c); /* updates g->room: call after each use of the chunk's allocator */
/* kvp_place_chunk_fini frees an empty chunk's allocators, in slices */
void kvp_place_chunk_fini(kvp_space_t *sp, kvp_chunk_t *c);
/* takes over the memory of a record pool (common/recpool.h), leaving *pool zeroed; kvp_place_free_some frees it in
 * slices */
void kvp_place_free_pool_later(kvp_space_t *sp, kvp_recpool_t *pool);
void kvp_place_free_some(kvp_space_t *sp);
/* kvp_place_memory_changed counts the memory of the chunk's allocators again. */
void kvp_place_memory_changed(kvp_space_t *sp, kvp_chunk_t *c);
/* kvp_place_is_promised returns true if a free extent, or an extent that object `mine` has just got, is part of the
 * window of a waiting put. */
bool kvp_place_is_promised(const kvp_space_t *sp, const kvp_chunk_t *c, uint32_t slot, uint32_t mine);
/* kvp_owner_tell sends the chunk's tenant to the node. The node stores the name in its memory, for a later master
 * without a log. */
void kvp_owner_tell(kvp_space_t *sp, const kvp_chunk_t *c);
/* kvp_place_elsewhere returns how many eighths of the pool's memory are free in chunks of other tenants than t, rounded
 * down, at most 7. While a node is being drained it returns 0, because the free memory of that node is not available to
 * any tenant. */
uint32_t kvp_place_elsewhere(const kvp_space_t *sp, const kvp_tenant_t *t);
/* kvp_place_chunk_take gives an empty chunk to the tenant of its first object. kvp_place_chunk_leave ends the
 * ownership. */
void kvp_place_chunk_take(kvp_space_t *sp, kvp_chunk_t *c, kvp_tenant_t *t);
void kvp_place_chunk_leave(kvp_space_t *sp, kvp_chunk_t *c); /* the chunk must be empty */
static inline bool
kvp_place_is_open_to(const kvp_chunk_t *c, const kvp_tenant_t *t)
{
    return c->evacuating == NULL && (c->taker == NULL || c->taker == t) && (c->tenant == NULL || c->tenant == t);
}
/* Returns true if the chunk has objects of the tenant, whose eviction makes room for the tenant. */
static inline bool
kvp_place_is_own(const kvp_chunk_t *c, const kvp_tenant_t *t)
{
    return c->tenant == t && kvp_place_is_open_to(c, t);
}
/* kvp_place_note_sealed records that a slot was SEALED (completely written) in the node's report, so no writer of an
 * earlier term can write to it. kvp_place_forget_sealed frees these records. */
void kvp_place_note_sealed(kvp_chunk_t *c, uint32_t slot);
void kvp_place_forget_sealed(kvp_chunk_t *c);
static inline bool
kvp_place_is_sealed(const kvp_chunk_t *c, uint32_t slot) /* true after kvp_place_note_sealed */
{
    return c->sealed != NULL && (c->sealed[slot / 8] >> slot % 8 & 1) != 0;
}
bool kvp_place_has_key_room(const kvp_chunk_t *c,
                            uint16_t key_len); /* true if the key fits now; false while extents are unclaimed */
/* kvp_place_may_lie returns true if the next copy of the attempt may lie in segment g: the attempt has no copy there
 * and does not wait for one, no copy is on g's host (unless all hosts have one), and `wish` allows g. */
bool kvp_place_may_lie(const kvp_space_t *sp, const kvp_attempt_t *a, const kvp_wish_t *wish, const kvp_segment_t *g);

#endif
