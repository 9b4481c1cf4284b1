/* SPDX-License-Identifier: Apache-2.0
 * Simulates a least-recently-used cache of block ids, for a comparison with the pool's hit ratio. The hit of a
 * request is its longest cached prefix. Then all blocks of the request are touched in order, and new blocks evict
 * the oldest ones. Pure functions. */
#ifndef KVP_TOOLS_REPLAY_LRU_SIM_H
#define KVP_TOOLS_REPLAY_LRU_SIM_H

#include "common/base.h"

typedef struct kvp_lru_sim kvp_lru_sim_t;

/* kvp_lru_sim_create makes an empty cache with room for `capacity` blocks, at least 1. INVALID, NOMEM. */
kvp_err_t kvp_lru_sim_create(uint32_t capacity, kvp_lru_sim_t **sim_out) KVP_MUST_USE;
void kvp_lru_sim_destroy(kvp_lru_sim_t *sim);

bool kvp_lru_sim_has(const kvp_lru_sim_t *sim, uint64_t id);

/* kvp_lru_sim_request returns the number of leading ids that are cached, and then caches or touches all n ids. */
size_t kvp_lru_sim_request(kvp_lru_sim_t *sim, const uint64_t *ids, size_t n);

#endif
