/* SPDX-License-Identifier: Apache-2.0
 * Known locations under many threads: readers keep what a master of a few lines answers, and find it again; the
 * session applies revocations and renews the lease; heartbeats collect what was read; upserts forget. ThreadSanitizer
 * watches, and each place found is held against what had been acknowledged before. And an answer that renews the
 * lease meets the end of its session. */
#include "client/cache/locations.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define READERS 4u
#define ENTRIES 24u /* fewer than there are keys: places are evicted as well */
#define KEYS 40u
#define REVOCATIONS 4000u
#define USED_CAP 16u
#define MS 1000000ull

typedef struct {
    kvp_locations_t *locs;
    _Atomic uint64_t versions[KEYS]; /* the master's */
    _Atomic uint64_t seq; /* of the master's last revocation */
    _Atomic uint64_t floors[KEYS]; /* acknowledged: nothing older may be found */
    _Atomic bool is_over;
    _Atomic uint64_t finds, wrong, told;
} world_t;

static kvp_digest_t
digest_of(uint32_t key)
{
    return (kvp_digest_t){.lo = key * 31, .hi = key}; /* over all shards, some with two keys */
}

static kvp_cached_place_t
place_of(uint64_t version)
{
    return (kvp_cached_place_t){.version = version,
                                .len = version * 3,
                                .sum = ~version,
                                .nloc = 1,
                                .locs = {{.generation = version, .offset = version * 64}}};
}

static bool
is_whole(const kvp_cached_place_t *p)
{
    return p->len == p->version * 3 && p->sum == ~p->version && p->nloc == 1 && p->locs[0].generation == p->version &&
           p->locs[0].offset == p->version * 64;
}

static uint32_t
next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static void *
read_often(void *arg)
{
    world_t *w = arg;
    const kvp_known_t *known = kvp_locations_known(w->locs);
    uint64_t rng = (uintptr_t)&rng;

    while (!w->is_over) {
        const uint32_t key = next_random(&rng) % KEYS;
        const uint64_t floor = w->floors[key];
        kvp_cached_place_t place;

        if (known->find(known, digest_of(key), &place)) {
            w->finds++;
            if (!is_whole(&place) || place.version < floor) w->wrong++;
            (void)known->has(known, digest_of(key), place.version);
        } else {
            /* The answer to a GET: what it knows of revocations, and then what is there. */
            const uint64_t seq = w->seq;

            place = place_of(w->versions[key]);
            (void)known->keep(known, digest_of(key), &place, seq);
        }
        if (next_random(&rng) % 64 == 0) kvp_locations_forget(w->locs, digest_of(key));
    }
    return NULL;
}

static void *
beat_often(void *arg)
{
    world_t *w = arg;
    kvp_wire_used_t used[USED_CAP];

    while (!w->is_over) {
        uint32_t n = kvp_locations_has_used(w->locs) ? kvp_locations_take_used(w->locs, used, USED_CAP) : 0;

        if (n > USED_CAP || kvp_locations_count(w->locs) > ENTRIES) w->wrong++;
        for (uint32_t i = 0; i < n; i++)
            w->told += used[i].reads;
        if (kvp_locations_seq(w->locs) > w->seq) w->wrong++;
    }
    return NULL;
}

/* An upsert at the master, and the news of it. */
static void
revoke(world_t *w, uint32_t key, uint64_t now_ns)
{
    const kvp_digest_t digest = digest_of(key);
    kvp_locations_news_t news = {.asked_ns = now_ns, .lease_ms = 1000, .grace_ms = 10000};

    w->versions[key]++;
    news.seq = ++w->seq;
    news.is_drop_all = news.seq % 100 == 0;
    news.revoked = &digest;
    news.revoked_n = news.is_drop_all ? 0 : 1;
    kvp_locations_apply(w->locs, &news);
    w->floors[key] = w->versions[key];
}

TEST(test_many_threads_meet)
{
    pthread_t readers[READERS], beater;
    uint64_t rng = 7;
    world_t w = {.seq = 0};

    assert_int_equal(kvp_locations_create(ENTRIES, &w.locs), KVP_OK);
    for (uint32_t i = 0; i < KEYS; i++)
        w.versions[i] = 1;
    for (uint32_t i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_often, &w), 0);
    assert_int_equal(pthread_create(&beater, NULL, beat_often, &w), 0);
    for (uint64_t i = 1; i <= REVOCATIONS || w.finds < REVOCATIONS || w.told == 0; i++) {
        revoke(&w, next_random(&rng) % KEYS, i * MS);
        assert_int_equal(kvp_locations_until(w.locs), i * MS + 1000 * MS);
    }
    w.is_over = true;
    for (uint32_t i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    pthread_join(beater, NULL);
    assert_int_equal(w.wrong, 0);
    assert_in_range(w.told, 1, w.finds);
    kvp_locations_orphan(w.locs, 1);
    assert_int_not_equal(kvp_locations_until(w.locs), 0);
    kvp_locations_end(w.locs);
    assert_int_equal(kvp_locations_until(w.locs), 0);
    kvp_locations_destroy(w.locs);
}

/* ---- the end of a session */
#define ROUNDS 50

static kvp_locations_news_t
news_now(void)
{
    return (kvp_locations_news_t){.asked_ns = kvp_now_ns(), .lease_ms = 1000, .grace_ms = 10000};
}

typedef struct {
    kvp_locations_t *locs;
    _Atomic bool has_begun, must_end;
} renewer_t;

static void *
renew_often(void *arg)
{
    renewer_t *r = arg;

    while (!r->must_end) {
        kvp_locations_news_t news = news_now();

        kvp_locations_apply(r->locs, &news);
        r->has_begun = true;
    }
    return NULL;
}

/* What a master counts on once it has ended a session: no answer that is still being applied brings the lease back. */
TEST(test_an_end_outlasts_an_answer_that_meets_it)
{
    for (int i = 0; i < ROUNDS; i++) {
        renewer_t r = {.has_begun = false};
        pthread_t thread;

        assert_int_equal(kvp_locations_create(0, &r.locs), KVP_OK);
        assert_int_equal(pthread_create(&thread, NULL, renew_often, &r), 0);
        while (!r.has_begun)
            sched_yield();
        kvp_locations_end(r.locs);
        assert_int_equal(kvp_locations_until(r.locs), 0);
        r.must_end = true;
        pthread_join(thread, NULL);
        assert_int_equal(kvp_locations_until(r.locs), 0);
        kvp_locations_destroy(r.locs);
    }
}

TEST_MAIN()
