/* SPDX-License-Identifier: Apache-2.0
 * Drains: a node's objects are moved to other nodes before the node stops. ADR 0050. */
#ifndef KVP_MASTER_CORE_EVICT_DRAIN_H
#define KVP_MASTER_CORE_EVICT_DRAIN_H

#include "master/core/evict/eviction.h"

#define KVP_DRAIN_BYTES_PER_S (200ull << 20) /* default limit of the bytes that are moved in a second */

/* kvp_drain_begin begins to drain the segment, or changes the options of its drain, and writes a record to the log.
 * deadline_ns: from this time on, objects are moved even if clients hold them; UINT64_MAX = never. kvp_drain_end ends
 * the drain. kvp_drain_tick moves objects, within the step's budget. kvp_drain_is_durable returns true if the log's
 * record of the begin or the end of the drain is synced. */
void kvp_drain_begin(kvp_evict_t *ev, kvp_segment_t *g, uint32_t flags, uint64_t bytes_per_s, uint64_t deadline_ns);
void kvp_drain_end(kvp_evict_t *ev, kvp_segment_t *g);
void kvp_drain_tick(kvp_evict_t *ev);
bool kvp_drain_is_durable(const kvp_space_t *sp, const kvp_segment_t *g);

#endif
