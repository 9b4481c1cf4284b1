/* SPDX-License-Identifier: Apache-2.0
 * Cached locations: places from earlier answers of the master, so that objects can be read again
 * without a message; and the lease under which that is allowed. Pure: no locks, clocks or sockets.
 * client/cache/locations.c shards it by digest, the simulator uses it directly.
 *
 * Why it is safe: the master numbers revocations. An answer with an older number than applied here
 * may be from before a removal, so it is used once and not cached. A cached place is removed when
 * its revocation arrives, and until then the master waits, or the lease ends. */
#ifndef KVP_CLIENT_CORE_LOCCACHE_H
#define KVP_CLIENT_CORE_LOCCACHE_H

#include "client/core/op.h"

#define KVP_PLACE_LOCS 2u /* cached locations of one object: the nearest and one to fall back on */
#define KVP_LOCCACHE_USED_MAX                                                                                          \
    256u /* objects of one cache with unreported reads; reads of further objects are not counted */

/* One version of an object, and its places. */
typedef struct {
    uint64_t version;
    uint64_t len;
    uint64_t sum;
    uint64_t told_ns; /* by the lease's clock: the last confirmation of the place, by the master or a descriptor */
    uint32_t nloc; /* 1 to KVP_PLACE_LOCS */
    kvp_wire_loc_t locs[KVP_PLACE_LOCS];
} kvp_cached_place_t;

typedef struct kvp_loccache_entry kvp_loccache_entry_t;

typedef struct {
    kvp_loccache_entry_t *entries; /* room for entries; those from n on are free */
    uint32_t *buckets; /* a power of two: first entry + 1, 0 = none */
    uint32_t room, n, cap;
    uint32_t hand; /* the next entry that eviction examines */
    uint32_t used[KVP_LOCCACHE_USED_MAX]; /* entries with unreported reads */
    uint32_t used_n;
    uint64_t seq; /* the last revocation applied */
    kvp_mix_t mix; /* a secret: who chooses keys cannot choose their buckets */
} kvp_loccache_t;

/* kvp_loccache_init makes an empty cache of at most cap entries; memory is taken as it fills.
 * secret: of the process. fini is legal twice. */
void kvp_loccache_init(kvp_loccache_t *cache, uint32_t cap, uint64_t secret);
void kvp_loccache_fini(kvp_loccache_t *cache);

/* kvp_loccache_find gives a known place and counts a read of it. */
bool kvp_loccache_find(kvp_loccache_t *cache, kvp_digest_t digest, kvp_cached_place_t *place_out);
/* kvp_loccache_has returns whether the version is still cached, and counts no read. */
bool kvp_loccache_has(const kvp_loccache_t *cache, kvp_digest_t digest, uint64_t version);

/* kvp_loccache_keep caches a place from an answer that included all revocations up to seq. Not
 * cached: an answer older than the applied revocations, a version older than the cached one, and a
 * place without memory for it. */
bool kvp_loccache_keep(kvp_loccache_t *cache, kvp_digest_t digest, const kvp_cached_place_t *place, uint64_t seq);

/* kvp_loccache_seen notes that a version was found where it is known to be, by its descriptor, after told_ns. */
void kvp_loccache_seen(kvp_loccache_t *cache, kvp_digest_t digest, uint64_t version, uint64_t told_ns);

/* kvp_loccache_forget removes a key's place if its version is at most version_max. */
void kvp_loccache_forget(kvp_loccache_t *cache, kvp_digest_t digest, uint64_t version_max);

/* kvp_loccache_advance announces the revocations up to seq: called before their keys are forgotten,
 * so that no older answer is cached in between. kvp_loccache_drop_all removes all entries. */
void kvp_loccache_advance(kvp_loccache_t *cache, uint64_t seq);
void kvp_loccache_drop_all(kvp_loccache_t *cache);

/* kvp_loccache_take_used moves counted reads out, at most cap of them, and returns how many. */
uint32_t kvp_loccache_take_used(kvp_loccache_t *cache, kvp_wire_used_t *used_out, uint32_t cap);

/* The location lease of one session. All zero = no lease. */
typedef struct {
    uint64_t asked_ns; /* sending time of the question that renewed it */
    uint64_t lease_ns;
    uint64_t grace_ns;
    bool is_orphaned;
    bool is_over; /* for good */
} kvp_loclease_t;

/* kvp_loclease_renew: the master answered a heartbeat that was sent at asked_ns. lease_ms 0: it gives none. */
void kvp_loclease_renew(kvp_loclease_t *lease, uint64_t asked_ns, uint32_t lease_ms, uint32_t grace_ms);

/* kvp_loclease_orphan: the other side closed the connection. The master, or the next one, then
 * waits for the grace period, so a lease that is valid now lasts as long; a master does not wait
 * for an expired one. Mere silence does not count as a close: a master that still counts this
 * session waits only for its lease. kvp_loclease_end: the session is over, and the master may rely
 * on it. */
void kvp_loclease_orphan(kvp_loclease_t *lease, uint64_t now_ns);
void kvp_loclease_end(kvp_loclease_t *lease);

/* kvp_loclease_until returns the time at which known locations may no longer be used; 0 = they may not. */
uint64_t kvp_loclease_until(const kvp_loclease_t *lease);

/* Cached locations as a batch of gets uses them: client/cache/locations.c for many threads, a lone
 * loccache in the simulator. The thread rules are the implementation's. First member of the
 * implementing struct. */
struct kvp_known {
    /* As the functions above with these names. */
    bool (*find)(const kvp_known_t *known, kvp_digest_t digest, kvp_cached_place_t *place_out);
    bool (*has)(const kvp_known_t *known, kvp_digest_t digest, uint64_t version);
    bool (*keep)(const kvp_known_t *known, kvp_digest_t digest, const kvp_cached_place_t *place, uint64_t seq);
    void (*seen)(const kvp_known_t *known, kvp_digest_t digest, uint64_t version, uint64_t told_ns);
    void (*forget)(const kvp_known_t *known, kvp_digest_t digest, uint64_t version_max);
    /* until: when the lease ends, 0 = it does not hold. seq: the last revocation that was applied throughout. */
    uint64_t (*until)(const kvp_known_t *known);
    uint64_t (*seq)(const kvp_known_t *known);
    uint64_t (*lease_ns)(const kvp_known_t *known); /* how long the master lets a lease last that is not renewed */
};

#endif
