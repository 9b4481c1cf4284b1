/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim_known.h"

static known_locs_t *
locs_of(const kvp_known_t *known)
{
    return kvp_container_of(known, known_locs_t, calls);
}

static bool
find(const kvp_known_t *known, kvp_digest_t digest, kvp_cached_place_t *place_out)
{
    return kvp_loccache_find(&locs_of(known)->cache, digest, place_out);
}

static bool
has(const kvp_known_t *known, kvp_digest_t digest, uint64_t version)
{
    return kvp_loccache_has(&locs_of(known)->cache, digest, version);
}

static bool
keep(const kvp_known_t *known, kvp_digest_t digest, const kvp_cached_place_t *place, uint64_t seq)
{
    return kvp_loccache_keep(&locs_of(known)->cache, digest, place, seq);
}

static void
seen(const kvp_known_t *known, kvp_digest_t digest, uint64_t version, uint64_t told_ns)
{
    kvp_loccache_seen(&locs_of(known)->cache, digest, version, told_ns);
}

static void
forget(const kvp_known_t *known, kvp_digest_t digest, uint64_t version_max)
{
    kvp_loccache_forget(&locs_of(known)->cache, digest, version_max);
}

static uint64_t
until(const kvp_known_t *known)
{
    return kvp_loclease_until(&locs_of(known)->lease);
}

static uint64_t
seq(const kvp_known_t *known)
{
    return locs_of(known)->seq;
}

static uint64_t
lease_ns(const kvp_known_t *known)
{
    return locs_of(known)->lease.lease_ns;
}

static const kvp_known_t known_calls = {
    .find = find,
    .has = has,
    .keep = keep,
    .seen = seen,
    .forget = forget,
    .until = until,
    .seq = seq,
    .lease_ns = lease_ns,
};

void
known_init(sim_t *s, known_locs_t *locs, const party_t *who)
{
    *locs = (known_locs_t){.calls = known_calls, .sim = s, .who = who};
    kvp_loccache_init(&locs->cache, s->plan->locations, 0);
}

void
known_fini(known_locs_t *locs)
{
    kvp_loccache_fini(&locs->cache);
}

void
known_apply(known_locs_t *locs, const known_news_t *news)
{
    if (news->seq > locs->seq || news->is_drop_all) {
        kvp_loccache_advance(&locs->cache, news->seq);
        if (news->is_drop_all) kvp_loccache_drop_all(&locs->cache);
        for (uint32_t i = 0; i < news->revoked_n; i++)
            kvp_loccache_forget(&locs->cache, news->revoked[i], UINT64_MAX);
        locs->seq = news->seq;
    }
    kvp_loclease_renew(&locs->lease, news->asked_ns, news->lease_ms, news->grace_ms);
}

bool
known_is_held(const known_locs_t *locs)
{
    return kvp_loclease_until(&locs->lease) > locs->sim->now + locs->who->ahead_ns;
}
