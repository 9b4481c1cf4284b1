/* SPDX-License-Identifier: Apache-2.0
 * Known locations: rule by rule, and against a cache that is too simple to be wrong. */
#include "client/core/loccache.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

#define KEYS 40u
#define MS 1000000ull

static kvp_digest_t
digest_of(uint32_t key)
{
    /* Few distinct low bits: buckets are shared. */
    return (kvp_digest_t){.lo = key % 5, .hi = key};
}

static kvp_cached_place_t
place_of(uint64_t version)
{
    return (kvp_cached_place_t){.version = version, .len = version * 3, .nloc = 1, .locs = {{.generation = version}}};
}

static bool
keep(kvp_loccache_t *c, uint32_t key, uint64_t version, uint64_t seq)
{
    kvp_cached_place_t place = place_of(version);

    return kvp_loccache_keep(c, digest_of(key), &place, seq);
}

static uint32_t
next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

/* ---- single rules */
TEST(test_answers_from_before_a_revocation_are_not_kept)
{
    kvp_loccache_t c;

    kvp_loccache_init(&c, 8, 1);
    kvp_loccache_advance(&c, 5);
    assert_false(keep(&c, 1, 10, 4));
    assert_true(keep(&c, 1, 10, 5));
    kvp_loccache_advance(&c, 3); /* an older word changes nothing */
    assert_false(keep(&c, 2, 10, 4));
    kvp_loccache_fini(&c);
}

TEST(test_seen_is_of_one_version_and_never_earlier)
{
    kvp_loccache_t c;
    kvp_cached_place_t place = place_of(10);

    kvp_loccache_init(&c, 8, 1);
    place.told_ns = 5;
    assert_true(kvp_loccache_keep(&c, digest_of(1), &place, 0));
    kvp_loccache_seen(&c, digest_of(1), 10, 7);
    kvp_loccache_seen(&c, digest_of(1), 10, 6);
    kvp_loccache_seen(&c, digest_of(1), 9, 8);
    kvp_loccache_seen(&c, digest_of(2), 10, 8);
    assert_true(kvp_loccache_find(&c, digest_of(1), &place));
    assert_int_equal(place.told_ns, 7);
    assert_false(kvp_loccache_find(&c, digest_of(2), &place));
    kvp_loccache_fini(&c);
}

TEST(test_nothing_is_kept_without_room)
{
    kvp_loccache_t c;

    kvp_loccache_init(&c, 0, 1);
    assert_false(keep(&c, 1, 10, 0));
    kvp_loccache_fini(&c);
}

/* What is found between two rounds of the hand stays, whatever passes through. */
TEST(test_hot_entries_outlive_a_stream)
{
    kvp_loccache_t c;
    kvp_cached_place_t place;

    kvp_loccache_init(&c, 16, 1);
    keep(&c, 1000, 1, 0);
    for (uint32_t i = 0; i < 500; i++) {
        assert_true(kvp_loccache_find(&c, digest_of(1000), &place));
        assert_true(keep(&c, i, 1, 0));
        assert_true(c.n <= 16);
    }
    assert_true(kvp_loccache_find(&c, digest_of(1000), &place));
    kvp_loccache_fini(&c);
}

TEST(test_reads_to_tell_are_bounded)
{
    kvp_loccache_t c;
    static kvp_wire_used_t used[2 * KVP_LOCCACHE_USED_MAX];
    kvp_cached_place_t place;

    kvp_loccache_init(&c, 2 * KVP_LOCCACHE_USED_MAX, 1);
    for (uint32_t key = 0; key < 2 * KVP_LOCCACHE_USED_MAX; key++) {
        keep(&c, key, 1, 0);
        kvp_loccache_find(&c, digest_of(key), &place);
    }
    assert_int_equal(kvp_loccache_take_used(&c, used, 100), 100);
    assert_int_equal(kvp_loccache_take_used(&c, used, 2 * KVP_LOCCACHE_USED_MAX), KVP_LOCCACHE_USED_MAX - 100);
    kvp_loccache_fini(&c);
}

/* ---- against a naive cache: versions and reads by key, no bound */
typedef struct {
    kvp_loccache_t cache;
    uint64_t versions[KEYS]; /* 0 = not known */
    uint32_t reads[KEYS];
    uint64_t random;
} model_t;

static void
model_take_used(model_t *m)
{
    kvp_wire_used_t used[KEYS];
    uint32_t n = kvp_loccache_take_used(&m->cache, used, next_random(&m->random) % KEYS);

    for (uint32_t i = 0; i < n; i++) {
        assert_true(used[i].reads > 0);
        assert_int_equal(used[i].reads, m->reads[used[i].digest.hi]);
        m->reads[used[i].digest.hi] = 0;
    }
}

static void
model_step(model_t *m)
{
    uint32_t key = next_random(&m->random) % KEYS;
    uint64_t version = 1 + next_random(&m->random) % 4;
    kvp_cached_place_t place;

    switch (next_random(&m->random) % 16) {
    case 0:
        kvp_loccache_forget(&m->cache, digest_of(key), version);
        if (m->versions[key] > version) break;
        m->versions[key] = 0;
        m->reads[key] = 0;
        break;
    case 1:
        model_take_used(m);
        break;
    case 2:
        if (next_random(&m->random) % 32 != 0) break;
        kvp_loccache_drop_all(&m->cache);
        memset(m->versions, 0, sizeof m->versions);
        memset(m->reads, 0, sizeof m->reads);
        break;
    case 3:
    case 4:
    case 5:
        assert_int_equal(keep(&m->cache, key, version, 0), version >= m->versions[key]);
        m->versions[key] = kvp_max_u64(m->versions[key], version);
        break;
    default:
        assert_int_equal(kvp_loccache_find(&m->cache, digest_of(key), &place), m->versions[key] != 0);
        if (m->versions[key] == 0) break;
        assert_int_equal(place.version, m->versions[key]);
        assert_int_equal(place.len, m->versions[key] * 3);
        assert_int_equal(place.locs[0].generation, m->versions[key]);
        assert_false(kvp_loccache_has(&m->cache, digest_of(key), m->versions[key] + 1));
        m->reads[key]++;
        break;
    }
}

TEST(test_random_against_a_naive_cache)
{
    model_t m = {.random = 1};

    kvp_loccache_init(&m.cache, KEYS, 1);
    for (int i = 0; i < 200000; i++)
        model_step(&m);
    for (uint32_t key = 0; key < KEYS; key++)
        assert_int_equal(kvp_loccache_has(&m.cache, digest_of(key), m.versions[key]), m.versions[key] != 0);
    kvp_loccache_fini(&m.cache);
}

/* ---- the lease */
TEST(test_lease_counts_from_the_question)
{
    kvp_loclease_t lease = {0};

    assert_int_equal(kvp_loclease_until(&lease), 0);
    kvp_loclease_renew(&lease, 100 * MS, 1000, 10000);
    assert_int_equal(kvp_loclease_until(&lease), 1100 * MS);
    kvp_loclease_renew(&lease, 400 * MS, 1000, 10000);
    assert_int_equal(kvp_loclease_until(&lease), 1400 * MS);
    kvp_loclease_renew(&lease, 500 * MS, 0, 10000); /* the master gives none any more */
    assert_int_equal(kvp_loclease_until(&lease), 0);
}

TEST(test_lease_lasts_for_the_grace_without_a_master)
{
    kvp_loclease_t lease = {0};

    kvp_loclease_renew(&lease, 100 * MS, 1000, 10000);
    kvp_loclease_orphan(&lease, 1000 * MS);
    assert_int_equal(kvp_loclease_until(&lease), 10100 * MS);
    kvp_loclease_renew(&lease, 5000 * MS, 1000, 10000); /* an answer of that session that was under way */
    assert_int_equal(kvp_loclease_until(&lease), 10100 * MS);
    kvp_loclease_end(&lease);
    assert_int_equal(kvp_loclease_until(&lease), 0);
}

TEST(test_no_grace_without_a_lease)
{
    kvp_loclease_t lease = {0};

    kvp_loclease_orphan(&lease, 0);
    assert_int_equal(kvp_loclease_until(&lease), 0);
}

/* Meanwhile a removal may have been answered that waited for nobody: it is not brought back. */
TEST(test_no_grace_after_the_lease)
{
    kvp_loclease_t lease = {0};

    kvp_loclease_renew(&lease, 100 * MS, 1000, 10000);
    kvp_loclease_orphan(&lease, 1100 * MS);
    assert_int_equal(kvp_loclease_until(&lease), 0);
}

TEST_MAIN()
