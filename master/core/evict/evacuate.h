/* SPDX-License-Identifier: Apache-2.0
 * Evacuation: a large window, or a whole chunk, is freed in many steps. */
#ifndef KVP_MASTER_CORE_EVICT_EVACUATE_H
#define KVP_MASTER_CORE_EVICT_EVACUATE_H

#include "master/core/evict/eviction.h"
#include "master/core/catalog/chunk.h"
#include "master/core/put/queue.h"

/* kvp_evacuate_begin evacuates the window from slot `first` up to offset `to` for the key, in as many steps as
 * needed: the window's objects are evicted, and the chunk is closed to other puts. The key gets its place as soon as
 * there is room. It waits again if no room was freed within a time limit. */
void kvp_evacuate_begin(kvp_evict_t *ev, kvp_put_key_t *k, kvp_chunk_t *c, uint32_t first, uint64_t to);
void kvp_evacuate_tick(kvp_evict_t *ev);
/* kvp_evacuate_foreign looks for a whole chunk of another tenant, the coldest first, and begins to evacuate it.
 * NO_SPACE: every such chunk has an object that cannot be evicted, or a chunk is being evacuated for this tenant
 * already. EAGAIN: the step's budget is used up. */
kvp_err_t kvp_evacuate_foreign(kvp_evict_t *ev, kvp_put_key_t *k);

#endif
