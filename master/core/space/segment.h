/* SPDX-License-Identifier: Apache-2.0
 * Segments: their records, and the list of segments that accept puts. */
#ifndef KVP_MASTER_CORE_SPACE_SEGMENT_H
#define KVP_MASTER_CORE_SPACE_SEGMENT_H

#include "common/base.h"
#include "master/core/space/space.h"
#include "master/core/catalog/chunk.h"
#include "master/core/session/session.h"
#include "proto/kvpool.pb-c.h"

#define KVP_NODE_SEGMENTS_MAX 64u /* limit of the segments that one node mounts */

#define KVP_SEGMENT_CHUNKS_MAX 65536u /* limit of the chunks of one segment, and of all segments of one session */
#define KVP_POOL_CHUNKS_MAX (1u << 20)

/* A new segment is described by its node's Mount message: uuid (16 bytes), epoch, name, size_bytes, is_tier, and
 * chunk_bytes if it is memory. */
const char *kvp_segment_refusal(const Kvp__Pb__Mount *like); /* returns why the segment is refused; NULL = accepted */
static inline uint64_t
kvp_segment_chunk_n(const Kvp__Pb__Mount *like)
{
    if (like->is_tier) return 0;
    return (like->size_bytes - 1) / like->chunk_bytes + 1;
}
/* kvp_segment_make makes the record of a segment, without a state and a node; id 0 = the next free id.
 * kvp_segment_set_state is the only function that changes the state; it updates the pool's totals and the list of
 * segments that accept puts. kvp_segment_detach separates the segment from its disconnected node. kvp_segment_free
 * frees the record of an empty segment without a report. */
kvp_segment_t *kvp_segment_make(kvp_space_t *sp, uint32_t id, const Kvp__Pb__Mount *like, const char *host_id);
void kvp_segment_resize(kvp_space_t *sp, kvp_segment_t *t, uint64_t bytes); /* for a tier only */
void kvp_segment_set_state(kvp_space_t *sp, kvp_segment_t *g, uint32_t state);
void kvp_segment_detach(kvp_segment_t *g);
void kvp_segment_free(kvp_space_t *sp, kvp_segment_t *g);
/* kvp_segment_chunk returns a chunk, and initialises its record at its first use: until then the record is zero, and
 * the whole chunk is free. */
kvp_chunk_t *kvp_segment_chunk(kvp_space_t *sp, kvp_segment_t *g, uint32_t index);
static inline uint64_t
kvp_segment_chunk_bytes(const kvp_segment_t *g, uint32_t index)
{
    return kvp_min_u64(g->chunk_bytes, g->size_bytes - (uint64_t)index * g->chunk_bytes);
}
/* returns the bytes of the longest chunk in the segments that accept puts; 0 = none */
uint64_t kvp_segment_longest_chunk(const kvp_space_t *sp);
kvp_segment_t *kvp_segment_find(kvp_space_t *sp, uint32_t id);

/* kvp_segment_loads returns true if objects may be loaded into the memory from its tier, also during a drain. */
static inline bool
kvp_segment_loads(const kvp_segment_t *g)
{
    if (g->state == KVP_SEG_UP) return true;
    return g->state == KVP_SEG_DRAINING && g->drain != NULL && !g->is_restored && g->unmount_conn == 0;
}

/* kvp_segment_drain begins the segment's drain, or changes its options; flags 0 = ends it. Nothing is recorded in the
 * log. A draining segment accepts no puts. */
void kvp_segment_drain(kvp_space_t *sp, kvp_segment_t *g, uint32_t flags, uint64_t bytes_per_s);

/* kvp_segment_attach makes the session the segment's node, and sets the segment's state. */
void kvp_segment_attach(kvp_space_t *sp, kvp_segment_t *g, kvp_session_t *s, uint32_t state);

#endif
