/* SPDX-License-Identifier: Apache-2.0
 * A least-recently-used cache of block ids, simulated: what the pool's hit ratio is held against. A request's hit is
 * its longest cached prefix; then all of its blocks are touched in order, and what is new pushes out the oldest. Pure.
 */
#ifndef KVP_TOOLS_REPLAY_LRU_SIM_H
#define KVP_TOOLS_REPLAY_LRU_SIM_H

#include "common/base.h"

typedef struct kvp_lru_sim kvp_lru_sim_t;

/* kvp_lru_sim_create makes an empty cache of that many blocks, at least 1. INVALID, NOMEM. */
kvp_err_t kvp_lru_sim_create(uint32_t capacity, kvp_lru_sim_t **sim_out) KVP_MUST_USE;
void kvp_lru_sim_destroy(kvp_lru_sim_t *sim);

bool kvp_lru_sim_has(const kvp_lru_sim_t *sim, uint64_t id);

/* kvp_lru_sim_request returns how many of the ids, from the first on, are cached, and then touches all of them. */
size_t kvp_lru_sim_request(kvp_lru_sim_t *sim, const uint64_t *ids, size_t n);

#endif
