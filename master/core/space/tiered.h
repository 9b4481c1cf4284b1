/* SPDX-License-Identifier: Apache-2.0
 * The SSD tiers of nodes, and their objects. ADR 0029.
 *
 * A tier is a segment (kvp_segment_t.is_tier) that is mounted under its node's name with the suffix
 * KVP_TIER_SUFFIX. Its chunks stand for one tenant each; they have no memory, and are made with the
 * first object that is on the tier only. */
#ifndef KVP_MASTER_CORE_SPACE_TIERED_H
#define KVP_MASTER_CORE_SPACE_TIERED_H

#include "common/list.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/space/space.h"

typedef struct kvp_deferred kvp_deferred_t;

#define KVP_TIER_SUFFIX "/ssd"

/* A record that a tier must drop. */
typedef struct {
    kvp_list_t link; /* link in segment->ssd.drops, or in the list of records of an order to the node */
    kvp_digest_t digest;
    uint64_t version;
    kvp_deferred_t *deferred;
    uint32_t number; /* number of the drop in space->tier_drops */
} kvp_tier_drop_t;

/* kvp_tier_link links a new segment: the memory and the tier of one node are linked by their names. kvp_tier_free
 * frees the record of an empty tier. */
void kvp_tier_link(kvp_space_t *sp, kvp_segment_t *g);
void kvp_tier_free(kvp_space_t *sp, kvp_segment_t *t);
bool kvp_tier_is_name(const char *name);

/* kvp_obj_enter_tier makes an object without a place exist only on the tier, for the tenant. kvp_tier_leave_chunk
 * removes such an object from the tier's chunk, which leaves it without a place. kvp_tier_forget does the same if
 * needed, and marks the object as not on a tier; no order is sent to the node. */
void kvp_obj_enter_tier(kvp_space_t *sp, uint32_t oid, kvp_segment_t *t, kvp_tenant_t *tenant, uint64_t len);
void kvp_tier_leave_chunk(kvp_space_t *sp, kvp_obj_t *o);
void kvp_tier_forget(kvp_space_t *sp, kvp_obj_t *o);

/* kvp_tier_drop orders the tier to drop this version and older versions. The deferred reply (NULL = none) waits
 * until kvp_tier_drop_end. */
void kvp_tier_drop(kvp_space_t *sp, kvp_segment_t *t, kvp_digest_t digest, uint64_t version, kvp_deferred_t *deferred);
void kvp_tier_drop_end(kvp_space_t *sp, kvp_segment_t *t, kvp_tier_drop_t *d);

/* Returns true if the segment has orders to send, or loads that wait for room. */
static inline bool
kvp_tier_is_due(const kvp_segment_t *g)
{
    return !kvp_list_is_empty(&g->ssd.drops) || !kvp_list_is_empty(&g->demotes) || !kvp_list_is_empty(&g->placed) ||
           !kvp_list_is_empty(&g->stages) || !kvp_list_is_empty(&g->copies);
}

#endif
