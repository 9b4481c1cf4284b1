/* SPDX-License-Identifier: Apache-2.0
 * Moves chunks from one tenant to another. */
#ifndef KVP_MASTER_CORE_EVICT_REBALANCE_H
#define KVP_MASTER_CORE_EVICT_REBALANCE_H

#include "master/core/evict/eviction.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/tenant.h"

/* kvp_rebalance_look is called before the tenant evicts one of its own objects for len bytes; from time to time it
 * begins to take a chunk of another tenant. kvp_rebalance_coldest returns the coldest chunk of another tenant in
 * which len bytes fit; NULL = none found. kvp_rebalance_leave_segment ends the taking of chunks in the segment. */
void kvp_rebalance_look(kvp_evict_t *ev, kvp_tenant_t *t, uint64_t len);
kvp_chunk_t *kvp_rebalance_coldest(kvp_evict_t *ev, const kvp_tenant_t *t, uint64_t len);
void kvp_rebalance_leave_segment(kvp_evict_t *ev, const kvp_segment_t *g);
void kvp_rebalance_tick(kvp_evict_t *ev);

#endif
