/* SPDX-License-Identifier: Apache-2.0
 * The cached locations of one session, for many threads: core/loccache.h in shards by digest, and
 * the lease. A look-up takes one lock, on which two threads meet only by chance. Any thread may
 * call; answers are applied one after the other. */
#ifndef KVP_CLIENT_CACHE_LOCATIONS_H
#define KVP_CLIENT_CACHE_LOCATIONS_H

#include "client/core/loccache.h"

typedef struct kvp_locations kvp_locations_t;

/* kvp_locations_create makes room for about `entries` locations; memory grows with their number. */
kvp_err_t kvp_locations_create(uint32_t entries, kvp_locations_t **locs_out) KVP_MUST_USE;
void kvp_locations_destroy(kvp_locations_t *locs);

/* kvp_locations_known is what batch cores use; borrowed as long as locs. */
const kvp_known_t *kvp_locations_known(const kvp_locations_t *locs);

/* The master's answer to a heartbeat sent at asked_ns. The lease runs on CLOCK_BOOTTIME
 * (kvp_boot_ns): the master's time goes on while this host is suspended. */
typedef struct {
    uint64_t asked_ns;
    uint32_t lease_ms;
    uint32_t grace_ms;
    uint64_t seq;
    bool is_drop_all;
    const kvp_digest_t *revoked;
    uint32_t revoked_n;
} kvp_locations_news_t;

/* kvp_locations_apply forgets what was revoked, and then renews the lease. */
void kvp_locations_apply(kvp_locations_t *locs, const kvp_locations_news_t *news);
/* See kvp_loclease_orphan and kvp_loclease_end. */
void kvp_locations_orphan(kvp_locations_t *locs, uint64_t now_ns);
void kvp_locations_end(kvp_locations_t *locs);

/* kvp_locations_until: when the lease ends, 0 = there is none. kvp_locations_seq: the last revocation applied. */
uint64_t kvp_locations_until(const kvp_locations_t *locs);
uint64_t kvp_locations_seq(const kvp_locations_t *locs);
/* kvp_locations_count returns how many locations are kept, a moment ago. */
uint32_t kvp_locations_count(kvp_locations_t *locs);

/* kvp_locations_forget drops one key's location, or (drop_all) every one: after an upsert, removal
 * or bump of our own. */
void kvp_locations_forget(kvp_locations_t *locs, kvp_digest_t digest);
void kvp_locations_drop_all(kvp_locations_t *locs);

/* kvp_locations_has_used returns whether reads wait to be reported; kvp_locations_take_used moves
 * at most cap of them out. */
bool kvp_locations_has_used(const kvp_locations_t *locs);
uint32_t kvp_locations_take_used(kvp_locations_t *locs, kvp_wire_used_t *used_out, uint32_t cap);

#endif
