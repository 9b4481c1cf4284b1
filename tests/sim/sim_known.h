/* SPDX-License-Identifier: Apache-2.0
 * Known locations of one session, as client/cache/locations.c keeps them: the core's cache and lease, without locks. */
#ifndef KVP_TESTS_SIM_KNOWN_H
#define KVP_TESTS_SIM_KNOWN_H

#include "client/core/loccache.h"
#include "tests/sim/sim.h"

typedef struct {
    kvp_known_t calls; /* first */
    sim_t *sim;
    const party_t *who; /* whose clock the lease counts by */
    kvp_loccache_t cache;
    kvp_loclease_t lease;
    uint64_t seq; /* the last revocation applied */
} known_locs_t;

/* What a heartbeat's answer says. */
typedef struct {
    uint64_t asked_ns, seq;
    uint32_t lease_ms, grace_ms;
    const kvp_digest_t *revoked;
    uint32_t revoked_n;
    bool is_drop_all;
} known_news_t;

void known_init(sim_t *s, known_locs_t *locs, const party_t *who);
void known_fini(known_locs_t *locs);
void known_apply(known_locs_t *locs, const known_news_t *news);
bool known_is_held(const known_locs_t *locs); /* the lease holds */

#endif
