/* SPDX-License-Identifier: Apache-2.0
 * Cached locations: places of objects from earlier answers of the master, so that objects can be read again without a
 * message; and the lease under which such a read is allowed. Pure: no locks, clocks or sockets.
 * client/cache/locations.c divides the cache into shards by digest, the simulator uses one cache directly.
 *
 * Why a cached location is safe: the master numbers revocations. An answer with an older number than the last number
 * applied here may have been sent before a removal, so the answer is used once and not cached. A cached location is
 * dropped when its revocation arrives. Until then the master delays the removal, or the lease ends. */
#ifndef KVP_CLIENT_CORE_LOCCACHE_H
#define KVP_CLIENT_CORE_LOCCACHE_H

#include "client/core/op.h"

#define KVP_PLACE_LOCS 2u /* cached locations of one object: the nearest location and a second one in case it fails */
/* most objects of one cache with unreported reads; reads of further objects are not counted */
#define KVP_LOCCACHE_USED_MAX 256u

/* The cached locations of one version of an object. */
typedef struct {
    uint64_t version;
    uint64_t len;
    uint64_t sum;
    uint64_t told_ns; /* when the master or a descriptor last confirmed these locations, by the lease's clock */
    uint32_t nloc; /* number of locations: 1 to KVP_PLACE_LOCS */
    kvp_wire_loc_t locs[KVP_PLACE_LOCS];
} kvp_cached_place_t;

typedef struct kvp_loccache_entry kvp_loccache_entry_t;

typedef struct {
    kvp_loccache_entry_t *entries; /* array of `room` cache entries; the entries from index n on are free */
    uint32_t *buckets; /* hash table, a power of two long; a bucket is the index of its first entry + 1, 0 = empty */
    uint32_t room, n, cap;
    uint32_t hand; /* index of the next entry that eviction examines */
    uint32_t used[KVP_LOCCACHE_USED_MAX]; /* indices of entries with unreported reads */
    uint32_t used_n;
    uint64_t seq; /* number of the last applied revocation */
    kvp_mix_t mix; /* secret hash function: a client that chooses keys cannot choose their buckets */
} kvp_loccache_t;

/* kvp_loccache_init makes an empty cache of at most cap entries. Memory is allocated as the cache fills. secret is a
 * random number of the process. kvp_loccache_fini may be called twice. */
void kvp_loccache_init(kvp_loccache_t *cache, uint32_t cap, uint64_t secret);
void kvp_loccache_fini(kvp_loccache_t *cache);

/* kvp_loccache_find returns a cached location and counts a read of it. */
bool kvp_loccache_find(kvp_loccache_t *cache, kvp_digest_t digest, kvp_cached_place_t *place_out);
/* kvp_loccache_has returns true if the version is still cached. It counts no read. */
bool kvp_loccache_has(const kvp_loccache_t *cache, kvp_digest_t digest, uint64_t version);

/* kvp_loccache_keep caches a location from an answer that included all revocations up to seq. It returns false and
 * caches nothing if the answer is older than the applied revocations, if a newer version is cached, or if memory is
 * short. */
bool kvp_loccache_keep(kvp_loccache_t *cache, kvp_digest_t digest, const kvp_cached_place_t *place, uint64_t seq);

/* kvp_loccache_seen notes that a read found the version at its cached location, by the descriptor, after told_ns. */
void kvp_loccache_seen(kvp_loccache_t *cache, kvp_digest_t digest, uint64_t version, uint64_t told_ns);

/* kvp_loccache_forget drops a key's location if the cached version is at most version_max. */
void kvp_loccache_forget(kvp_loccache_t *cache, kvp_digest_t digest, uint64_t version_max);

/* kvp_loccache_advance announces the revocations up to seq. The caller calls it before it forgets the revoked keys,
 * so that no older answer is cached in between. kvp_loccache_drop_all drops all entries. */
void kvp_loccache_advance(kvp_loccache_t *cache, uint64_t seq);
void kvp_loccache_drop_all(kvp_loccache_t *cache);

/* kvp_loccache_take_used moves the counts of reads, at most cap of them, to used_out and returns their number. */
uint32_t kvp_loccache_take_used(kvp_loccache_t *cache, kvp_wire_used_t *used_out, uint32_t cap);

/* The lease on cached locations of one session. All fields zero = no lease. */
typedef struct {
    uint64_t asked_ns; /* time at which the heartbeat that renewed the lease was sent */
    uint64_t lease_ns;
    uint64_t grace_ns;
    bool is_orphaned;
    bool is_over; /* the lease has ended and cannot be renewed */
} kvp_loclease_t;

/* kvp_loclease_renew renews the lease after the answer to a heartbeat that was sent at asked_ns. lease_ms is 0 if the
 * master gives no lease. */
void kvp_loclease_renew(kvp_loclease_t *lease, uint64_t asked_ns, uint32_t lease_ms, uint32_t grace_ms);

/* kvp_loclease_orphan records a close of the connection by the other side. The master, or the next master, then waits
 * for the grace period, so a lease that is valid now stays valid as long. A master does not wait for an expired
 * lease. Mere silence does not count as a close: a master that still has this session waits only for its lease.
 * kvp_loclease_end ends the lease at once, because the session is over and the master may rely on that. */
void kvp_loclease_orphan(kvp_loclease_t *lease, uint64_t now_ns);
void kvp_loclease_end(kvp_loclease_t *lease);

/* kvp_loclease_until returns the time at which the lease ends; 0 = cached locations may not be used. */
uint64_t kvp_loclease_until(const kvp_loclease_t *lease);

/* Table of functions through which a batch of gets uses cached locations: client/cache/locations.c implements it for
 * many threads, the simulator with a single loccache. The implementation says which threads may call. The table is
 * the first member of the implementing struct. */
struct kvp_known {
    /* find, has, keep, seen and forget have the contracts of kvp_loccache_find, kvp_loccache_has and so on. */
    bool (*find)(const kvp_known_t *known, kvp_digest_t digest, kvp_cached_place_t *place_out);
    bool (*has)(const kvp_known_t *known, kvp_digest_t digest, uint64_t version);
    bool (*keep)(const kvp_known_t *known, kvp_digest_t digest, const kvp_cached_place_t *place, uint64_t seq);
    void (*seen)(const kvp_known_t *known, kvp_digest_t digest, uint64_t version, uint64_t told_ns);
    void (*forget)(const kvp_known_t *known, kvp_digest_t digest, uint64_t version_max);
    /* until returns the end of the lease; 0 = there is no valid lease. seq returns the number of the last revocation
     * that was applied completely. */
    uint64_t (*until)(const kvp_known_t *known);
    uint64_t (*seq)(const kvp_known_t *known);
    uint64_t (*lease_ns)(const kvp_known_t *known); /* length of a lease that is not renewed */
};

#endif
