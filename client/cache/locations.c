/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - Order in kvp_locations_apply. First every shard gets the new revocation number, so that no older answer is cached
 *   from then on. Then the revoked keys are forgotten. Then the number is published: a reader that found a location
 *   before sees the new number and checks the location again. Last, the lease is renewed.
 * - Readers read the lease's end, a single word, without a lock. The lease itself has a lock, because one thread may
 *   renew the lease while another thread finds that the session is lost. The end of a lost lease must not be
 *   overwritten. */
#include "client/cache/locations.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 32u

typedef struct {
    _Alignas(64) pthread_mutex_t lock; /* lock of one shard, a leaf: its holder takes no other lock */
    kvp_loccache_t cache; /* guarded by lock */
} shard_t;

struct kvp_locations {
    kvp_known_t known;
    _Atomic uint64_t until_ns;
    _Atomic uint64_t lease_ns; /* length of the lease that ends at until_ns */
    _Atomic uint64_t seq;
    _Atomic bool has_used;
    pthread_mutex_t lease_lock; /* lock of the lease, a leaf: its holder takes no other lock */
    kvp_loclease_t lease; /* guarded by lease_lock */
    shard_t shards[SHARDS];
};

static shard_t *
shard_of(kvp_locations_t *locs, kvp_digest_t digest)
{
    return &locs->shards[digest.hi % SHARDS];
}

static kvp_locations_t *
locs_of(const kvp_known_t *known)
{
    return kvp_container_of(known, kvp_locations_t, known);
}

/* ---- functions that getop and putop call through kvp_known_t */
static bool
known_find(const kvp_known_t *known, kvp_digest_t digest, kvp_cached_place_t *place_out)
{
    kvp_locations_t *locs = locs_of(known);
    shard_t *shard = shard_of(locs, digest);
    bool is_found;

    pthread_mutex_lock(&shard->lock);
    is_found = kvp_loccache_find(&shard->cache, digest, place_out);
    pthread_mutex_unlock(&shard->lock);
    if (is_found && !atomic_load_explicit(&locs->has_used, memory_order_relaxed))
        atomic_store_explicit(&locs->has_used, true, memory_order_relaxed);
    return is_found;
}

static bool
known_has(const kvp_known_t *known, kvp_digest_t digest, uint64_t version)
{
    shard_t *shard = shard_of(locs_of(known), digest);
    bool has;

    pthread_mutex_lock(&shard->lock);
    has = kvp_loccache_has(&shard->cache, digest, version);
    pthread_mutex_unlock(&shard->lock);
    return has;
}

static bool
known_keep(const kvp_known_t *known, kvp_digest_t digest, const kvp_cached_place_t *place, uint64_t seq)
{
    shard_t *shard = shard_of(locs_of(known), digest);
    bool is_kept;

    pthread_mutex_lock(&shard->lock);
    is_kept = kvp_loccache_keep(&shard->cache, digest, place, seq);
    pthread_mutex_unlock(&shard->lock);
    return is_kept;
}

static void
known_seen(const kvp_known_t *known, kvp_digest_t digest, uint64_t version, uint64_t told_ns)
{
    shard_t *shard = shard_of(locs_of(known), digest);

    pthread_mutex_lock(&shard->lock);
    kvp_loccache_seen(&shard->cache, digest, version, told_ns);
    pthread_mutex_unlock(&shard->lock);
}

static void
known_forget(const kvp_known_t *known, kvp_digest_t digest, uint64_t version_max)
{
    shard_t *shard = shard_of(locs_of(known), digest);

    pthread_mutex_lock(&shard->lock);
    kvp_loccache_forget(&shard->cache, digest, version_max);
    pthread_mutex_unlock(&shard->lock);
}

static uint64_t
known_until(const kvp_known_t *known)
{
    return kvp_locations_until(locs_of(known));
}

static uint64_t
known_seq(const kvp_known_t *known)
{
    return kvp_locations_seq(locs_of(known));
}

static uint64_t
known_lease_ns(const kvp_known_t *known)
{
    return atomic_load_explicit(&locs_of(known)->lease_ns, memory_order_relaxed);
}

static const kvp_known_t known_calls = {
    .find = known_find,
    .has = known_has,
    .keep = known_keep,
    .seen = known_seen,
    .forget = known_forget,
    .until = known_until,
    .seq = known_seq,
    .lease_ns = known_lease_ns,
};

/* ---- life */
kvp_err_t
kvp_locations_create(uint32_t entries, kvp_locations_t **locs_out)
{
    kvp_locations_t *locs = aligned_alloc(_Alignof(kvp_locations_t), sizeof *locs);
    uint64_t secret = kvp_random_u64();

    if (locs == NULL) return KVP_NOMEM;
    memset(locs, 0, sizeof *locs);
    locs->known = known_calls;
    pthread_mutex_init(&locs->lease_lock, NULL);
    for (uint32_t i = 0; i < SHARDS; i++) {
        pthread_mutex_init(&locs->shards[i].lock, NULL);
        kvp_loccache_init(&locs->shards[i].cache, entries / SHARDS + (i < entries % SHARDS), secret);
    }
    *locs_out = locs;
    return KVP_OK;
}

void
kvp_locations_destroy(kvp_locations_t *locs)
{
    if (locs == NULL) return;
    for (uint32_t i = 0; i < SHARDS; i++) {
        kvp_loccache_fini(&locs->shards[i].cache);
        pthread_mutex_destroy(&locs->shards[i].lock);
    }
    pthread_mutex_destroy(&locs->lease_lock);
    free(locs);
}

const kvp_known_t *
kvp_locations_known(const kvp_locations_t *locs)
{
    return &locs->known;
}

/* ---- functions that the session calls */
static void
publish_lease_locked(kvp_locations_t *locs)
{
    atomic_store(&locs->lease_ns, locs->lease.lease_ns);
    atomic_store(&locs->until_ns, kvp_loclease_until(&locs->lease));
}

static void
advance_all(kvp_locations_t *locs, uint64_t seq, bool is_drop_all)
{
    for (uint32_t i = 0; i < SHARDS; i++) {
        shard_t *shard = &locs->shards[i];

        pthread_mutex_lock(&shard->lock);
        kvp_loccache_advance(&shard->cache, seq);
        if (is_drop_all) kvp_loccache_drop_all(&shard->cache);
        pthread_mutex_unlock(&shard->lock);
    }
}

void
kvp_locations_apply(kvp_locations_t *locs, const kvp_locations_news_t *news)
{
    if (news->seq > kvp_locations_seq(locs) || news->is_drop_all) {
        advance_all(locs, news->seq, news->is_drop_all);
        for (uint32_t i = 0; i < news->revoked_n; i++)
            known_forget(&locs->known, news->revoked[i], UINT64_MAX);
        atomic_store(&locs->seq, news->seq);
    }
    pthread_mutex_lock(&locs->lease_lock);
    kvp_loclease_renew(&locs->lease, news->asked_ns, news->lease_ms, news->grace_ms);
    publish_lease_locked(locs);
    pthread_mutex_unlock(&locs->lease_lock);
}

void
kvp_locations_orphan(kvp_locations_t *locs, uint64_t now_ns)
{
    pthread_mutex_lock(&locs->lease_lock);
    kvp_loclease_orphan(&locs->lease, now_ns);
    publish_lease_locked(locs);
    pthread_mutex_unlock(&locs->lease_lock);
}

void
kvp_locations_end(kvp_locations_t *locs)
{
    pthread_mutex_lock(&locs->lease_lock);
    kvp_loclease_end(&locs->lease);
    publish_lease_locked(locs);
    pthread_mutex_unlock(&locs->lease_lock);
}

uint64_t
kvp_locations_until(const kvp_locations_t *locs)
{
    return atomic_load_explicit(&locs->until_ns, memory_order_acquire);
}

uint64_t
kvp_locations_seq(const kvp_locations_t *locs)
{
    return atomic_load_explicit(&locs->seq, memory_order_acquire);
}

uint32_t
kvp_locations_count(kvp_locations_t *locs)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < SHARDS; i++) {
        shard_t *shard = &locs->shards[i];

        pthread_mutex_lock(&shard->lock);
        n += shard->cache.n;
        pthread_mutex_unlock(&shard->lock);
    }
    return n;
}

void
kvp_locations_forget(kvp_locations_t *locs, kvp_digest_t digest)
{
    known_forget(&locs->known, digest, UINT64_MAX);
}

void
kvp_locations_drop_all(kvp_locations_t *locs)
{
    advance_all(locs, 0, true);
}

/* ---- counts of reads from cached locations, to be sent to the master */
bool
kvp_locations_has_used(const kvp_locations_t *locs)
{
    return atomic_load_explicit(&locs->has_used, memory_order_relaxed);
}

uint32_t
kvp_locations_take_used(kvp_locations_t *locs, kvp_wire_used_t *used_out, uint32_t cap)
{
    uint32_t n = 0;

    /* Clear the flag before the counts are taken: a read that is counted meanwhile sets the flag again. */
    atomic_store_explicit(&locs->has_used, false, memory_order_relaxed);
    for (uint32_t i = 0; i < SHARDS; i++) {
        shard_t *shard = &locs->shards[i];

        pthread_mutex_lock(&shard->lock);
        n += kvp_loccache_take_used(&shard->cache, used_out + n, cap - n);
        pthread_mutex_unlock(&shard->lock);
    }
    return n;
}
