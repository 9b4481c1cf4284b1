/* SPDX-License-Identifier: Apache-2.0
 * Evacuation: a large window, or a whole chunk, is freed in many steps. */
#ifndef KVP_MASTER_CORE_EVICT_EVACUATE_H
#define KVP_MASTER_CORE_EVICT_EVACUATE_H

#include "master/core/evict/eviction.h"
#include "master/core/catalog/chunk.h"
#include "master/core/put/queue.h"

/* kvp_evacuate_begin evacuates the window from slot `first` up to offset `to` for the key, in as many steps as
 * needed: the window's objects are evicted, and the chunk is closed to other puts. The key gets its place as soon as
 * there is room. If there is none within a time limit, the window is given up, and the key waits again. */
void kvp_evacuate_begin(kvp_evict_t *ev, kvp_put_key_t *k, kvp_chunk_t *c, uint32_t first, uint64_t to);
void kvp_evacuate_tick(kvp_evict_t *ev);
/* kvp_evacuate_foreign looks for a chunk of another tenant, the coldest first, and begins to evacuate all of it for the
 * key. NO_SPACE: no such chunk can be evacuated, or a chunk is being evacuated for the key's tenant or taken by it
 * already. EAGAIN: the step's budget is used up; call again in the next step. */
kvp_err_t kvp_evacuate_foreign(kvp_evict_t *ev, kvp_put_key_t *k);

#endif
