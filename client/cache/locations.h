/* SPDX-License-Identifier: Apache-2.0
 * The cached locations of one session, for use by many threads: 32 caches (core/loccache.h), chosen by the key's
 * digest, and the lease under which the locations may be used. A look-up takes one lock, which only threads with keys
 * of the same shard share. Any thread may call. The caller passes answers of the master to kvp_locations_apply one
 * after the other. */
#ifndef KVP_CLIENT_CACHE_LOCATIONS_H
#define KVP_CLIENT_CACHE_LOCATIONS_H

#include "client/core/loccache.h"

typedef struct kvp_locations kvp_locations_t;

/* kvp_locations_create makes room for about `entries` locations. Memory grows with the number of cached locations. */
kvp_err_t kvp_locations_create(uint32_t entries, kvp_locations_t **locs_out) KVP_MUST_USE;
void kvp_locations_destroy(kvp_locations_t *locs);

/* kvp_locations_known returns the table of functions through which getop and putop use the cache. Borrowed: valid as
 * long as locs. */
const kvp_known_t *kvp_locations_known(const kvp_locations_t *locs);

/* The master's answer to a heartbeat that was sent at asked_ns. The lease runs on CLOCK_BOOTTIME (kvp_boot_ns),
 * because the master's time goes on while this host is suspended. */
typedef struct {
    uint64_t asked_ns;
    uint32_t lease_ms;
    uint32_t grace_ms;
    uint64_t seq;
    bool is_drop_all;
    const kvp_digest_t *revoked;
    uint32_t revoked_n;
} kvp_locations_news_t;

/* kvp_locations_apply first forgets the revoked locations, and then renews the lease. */
void kvp_locations_apply(kvp_locations_t *locs, const kvp_locations_news_t *news);
/* kvp_locations_orphan: the master closed the connection. kvp_locations_end: the lease ends now. See kvp_loclease_t. */
void kvp_locations_orphan(kvp_locations_t *locs, uint64_t now_ns);
void kvp_locations_end(kvp_locations_t *locs);

/* kvp_locations_until returns the time when the lease ends; 0 = there is no lease. kvp_locations_seq returns the
 * number of the last applied revocation. */
uint64_t kvp_locations_until(const kvp_locations_t *locs);
uint64_t kvp_locations_seq(const kvp_locations_t *locs);
/* kvp_locations_count returns the number of cached locations. The number may be out of date when the call returns. */
uint32_t kvp_locations_count(kvp_locations_t *locs);

/* kvp_locations_forget drops the location of one key, kvp_locations_drop_all drops all locations. The client calls
 * them after its own upsert, removal or bump. */
void kvp_locations_forget(kvp_locations_t *locs, kvp_digest_t digest);
void kvp_locations_drop_all(kvp_locations_t *locs);

/* kvp_locations_has_used returns true if counts of reads from cached locations wait to be sent to the master.
 * kvp_locations_take_used moves at most cap of these counts to used_out and returns their number. */
bool kvp_locations_has_used(const kvp_locations_t *locs);
uint32_t kvp_locations_take_used(kvp_locations_t *locs, kvp_wire_used_t *used_out, uint32_t cap);

#endif
