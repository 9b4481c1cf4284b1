/* SPDX-License-Identifier: Apache-2.0
 * Segments: their records, and the list of those that take puts. */
#ifndef KVP_MASTER_CORE_SPACE_SEGMENT_H
#define KVP_MASTER_CORE_SPACE_SEGMENT_H

#include "common/base.h"
#include "master/core/space/space.h"
#include "master/core/catalog/chunk.h"
#include "master/core/session/session.h"
#include "proto/kvpool.pb-c.h"

#define KVP_NODE_SEGMENTS_MAX 64u /* mounted by one node */

#define KVP_SEGMENT_CHUNKS_MAX 65536u /* of a segment, and of all segments of one session */
#define KVP_POOL_CHUNKS_MAX (1u << 20)

/* A new segment is described as its node mounts it: by uuid (16 bytes), epoch, name, size_bytes,
 * is_tier, and chunk_bytes if it is memory. */
const char *kvp_segment_refusal(const Kvp__Pb__Mount *like); /* the reason to refuse it; NULL = none */
static inline uint64_t
kvp_segment_chunk_n(const Kvp__Pb__Mount *like)
{
    if (like->is_tier) return 0;
    return (like->size_bytes - 1) / like->chunk_bytes + 1;
}
/* kvp_segment_make makes the record of a segment: no state, no node; id 0 = the next one. Only
 * kvp_segment_set_state changes the state: the pool's totals and the list of those that take puts
 * follow. kvp_segment_detach: its node has disconnected. kvp_segment_free frees an empty one
 * without a report. */
kvp_segment_t *kvp_segment_make(kvp_space_t *sp, uint32_t id, const Kvp__Pb__Mount *like, const char *host_id);
void kvp_segment_resize(kvp_space_t *sp, kvp_segment_t *t, uint64_t bytes); /* a tier */
void kvp_segment_set_state(kvp_space_t *sp, kvp_segment_t *g, uint32_t state);
void kvp_segment_detach(kvp_segment_t *g);
void kvp_segment_free(kvp_space_t *sp, kvp_segment_t *g);
/* A chunk is made with its first use: until then its record is zero, and all of it is free. */
kvp_chunk_t *kvp_segment_chunk(kvp_space_t *sp, kvp_segment_t *g, uint32_t index);
static inline uint64_t
kvp_segment_chunk_bytes(const kvp_segment_t *g, uint32_t index)
{
    return kvp_min_u64(g->chunk_bytes, g->size_bytes - (uint64_t)index * g->chunk_bytes);
}
uint64_t kvp_segment_longest_chunk(const kvp_space_t *sp); /* bytes, of those in which something can be put */
kvp_segment_t *kvp_segment_find(kvp_space_t *sp, uint32_t id);

/* kvp_segment_attach: the session is its node from now on, and it has the state. */
void kvp_segment_attach(kvp_space_t *sp, kvp_segment_t *g, kvp_session_t *s, uint32_t state);

#endif
