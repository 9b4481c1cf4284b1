/* SPDX-License-Identifier: Apache-2.0
 * Removing by key, by pattern and all: when it is answered, what is left, and that no pattern stops the others.
 */
#include "tests/world/world.h"

#include "common/clock.h"

#include <stdio.h>

static world_t *
small_world(peer_t **n_out, peer_t **c_out)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});

    *n_out = node_open(w, mem_make(w, "n1", 64 * MIB, 64 * MIB));
    *c_out = client_open(w);
    return w;
}

static void
fill(peer_t *c, const char *prefix, uint32_t n, uint64_t len)
{
    char key[64];

    for (uint32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%s%u", prefix, i);
        assert_int_equal(put(c, key, len), KVP_OK);
    }
}

/* ---- by key */
static void
test_remove_when_absent_held_or_under_way(void **state)
{
    uint64_t ticket, attempt;
    kvp_wire_loc_t loc;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);

    (void)state;
    fill(c, "key", 1, 100);
    assert_int_equal(remove_key(c, "other", false), KVP_NOT_FOUND);
    assert_int_equal(put_place(c, "writing", 100, &attempt, &loc), KVP_OK);
    assert_int_equal(remove_key(c, "writing", true), KVP_NOT_FOUND);
    assert_int_equal(get(c, "key0", &ticket, NULL), KVP_OK);
    assert_int_equal(remove_key(c, "key0", false), KVP_HELD);
    assert_int_equal(remove_key(c, "key0", true), KVP_OK);
    assert_int_equal(remove_key(c, "key0", true), KVP_NOT_FOUND);
    assert_int_equal(commit(c, attempt, 0), KVP_OK);
    assert_int_equal(world_stats(w).removes, 1);
    world_close(w);
}

static void
test_remove_is_answered_when_dead(void **state)
{
    uint64_t id, delay = 20 * MS;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);

    (void)state;
    fill(c, "key", 1, 100);
    n->policy = NODE_DEAD_ONLY; /* free does not matter */
    n->delay_ns = delay;
    id = remove_begun(c, "key0", false);
    assert_true(peer_is_asking(c, id));
    assert_false(exists(c, "key0"));
    world_advance(w, 2 * delay);
    assert_int_equal(plain_result(peer_reply(c, id)), KVP_OK);
    assert_int_equal(n->retires_n, 1);
    world_close(w);
}

/* A node that does not answer: the rest is owed to it, and done when it is back. */
static void
test_remove_is_answered_after_50_ms_where_a_node_is_mute(void **state)
{
    uint64_t id;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);
    mem_t *mem = n->mem;

    (void)state;
    fill(c, "key", 1, 100);
    n->policy = NODE_MUTE;
    id = remove_begun(c, "key0", false);
    world_advance(w, 45 * MS);
    assert_true(peer_is_asking(c, id));
    world_advance(w, 20 * MS);
    assert_int_equal(plain_result(peer_reply(c, id)), KVP_OK);
    assert_int_equal(world_stats(w).retiring_bytes, 128);
    peer_forget(n);
    n = node_open(w, mem);
    assert_int_equal(n->retires_n, 1);
    assert_int_equal(world_stats(w).used_bytes, 0);
    world_close(w);
}

static void
test_remove_when_the_node_is_lost(void **state)
{
    uint64_t id;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);
    mem_t *mem = n->mem;

    (void)state;
    fill(c, "key", 2, 100);
    peer_forget(n);
    id = remove_begun(c, "key0", false);
    world_advance(w, SEC);
    assert_true(peer_is_asking(c, id)); /* nobody but this master knows of it */
    n = node_open(w, mem);
    assert_int_equal(plain_result(peer_reply(c, id)), KVP_OK);
    assert_false(exists(c, "key0")); /* the removal is applied before the segment is visible again */
    assert_true(exists(c, "key1"));
    assert_int_equal(n->retires_n, 1);
    world_close(w);
}

static void
test_remove_when_one_way(void **state)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);

    (void)state;
    fill(c, "key", 1, 100);
    digest = digest_of(w, "key0");
    head.n = 1;
    (void)peer_send(c, KVP_OP_REMOVE, KVP_FRAME_ONEWAY, &head.base, &digest, sizeof digest);
    assert_false(exists(c, "key0"));
    world_close(w);
}

static void
test_remove_when_the_asker_dies(void **state)
{
    peer_t *n, *c, *d;
    world_t *w = small_world(&n, &c);

    (void)state;
    d = client_open(w);
    fill(c, "key", 10, 100);
    n->policy = NODE_MUTE;
    (void)remove_begun(d, "key3", false);
    (void)remove_many(d, "key[5-9]", false);
    peer_forget(d);
    assert_true(exists(c, "key1"));
    assert_false(exists(c, "key3"));
    world_advance(w, 200 * MS);
    peer_forget(n);
    world_close(w);
}

/* ---- by pattern */
static void
test_remove_many_by_pattern(void **state)
{
    uint64_t removed, held, ticket;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);

    (void)state;
    fill(c, "a/", 20, 100);
    fill(c, "b/", 20, 100);
    assert_int_equal(get(c, "a/3", &ticket, NULL), KVP_OK);
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, "^a/1?.$", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 19);
    assert_int_equal(held, 1);
    assert_true(exists(c, "a/3"));
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, "a/", true), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 1);
    assert_int_equal(world_stats(w).objects, 20);
    release(c, ticket);
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, "nothing", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 0);
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, "", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 20);
    assert_int_equal(world_stats(w).objects, 0);
    world_close(w);
}

static void
test_remove_many_goes_in_slices(void **state)
{
    enum { N = 20000 };
    uint64_t id, removed, held, left = N;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);
    uint32_t ticks = 0;

    (void)state;
    w->check_every = 0;
    put_fast(c, "key", 1, N);
    w->is_idle_off = true;
    id = remove_many(c, "", false);
    assert_int_equal(world_stats(w).objects, N);
    while (kvp_master_has_work(w->m)) {
        uint64_t now;

        kvp_master_on_tick(w->m, w->now);
        now = world_stats(w).objects;
        assert_true(left - now <= 512);
        left = now;
        ticks++;
        world_pump(w);
        if (ticks == 5) assert_int_equal(put(c, "new", 64), KVP_OK); /* others are served between two slices */
    }
    assert_true(ticks >= N / 512);
    w->is_idle_off = false;
    assert_int_equal(remove_many_result(peer_wait(c, id, SEC), &removed, &held), KVP_OK);
    assert_true(removed >= N && removed <= N + 1);
    world_check(w);
    world_close(w);
}

static void
test_remove_many_waits_for_dead(void **state)
{
    uint64_t id, removed, held;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);

    (void)state;
    fill(c, "key", 10, 100);
    n->delay_ns = 10 * MS;
    n->policy = NODE_DEAD_ONLY;
    id = remove_many(c, "", false);
    assert_true(peer_is_asking(c, id));
    assert_int_equal(world_stats(w).objects, 0);
    world_advance(w, 30 * MS);
    assert_int_equal(remove_many_result(peer_reply(c, id), &removed, &held), KVP_OK);
    assert_int_equal(removed, 10);
    world_close(w);
}

static void
test_remove_many_when_the_pattern_is_bad(void **state)
{
    char pattern[2000];
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);
    const char *bad[] = {"(", "[z-a]", "a{2,1}", "\\C", "(*UTF)a", "(?<n>a)(?<n>b)", "*", NULL};

    (void)state;
    fill(c, "key", 3, 100);
    for (int i = 0; bad[i] != NULL; i++)
        assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, bad[i], false), SEC), NULL, NULL),
                         KVP_BAD_PATTERN);
    memset(pattern, 'k', sizeof pattern);
    pattern[1025] = '\0';
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, pattern, false), SEC), NULL, NULL),
                     KVP_BAD_PATTERN);
    for (size_t i = 0; i < 100; i++)
        pattern[i] = '(';
    for (size_t i = 100; i < 200; i++)
        pattern[i] = ')';
    pattern[200] = '\0';
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, pattern, false), SEC), NULL, NULL),
                     KVP_BAD_PATTERN);
    assert_int_equal(world_stats(w).objects, 3);
    world_close(w);
}

/* Patterns that backtrack without end, over keys made for it: refused, and no slice takes long. */
static void
test_remove_many_when_the_pattern_is_catastrophic(void **state)
{
    /* Some of them PCRE2 sees through, so not all are refused. */
    const char *patterns[] = {"(a+)+$",
                              "^(a|a)*$",
                              "(.*)*x",
                              "^(([a-z])+.)+[A-Z]([a-z])+$",
                              "(a?){40}a{40}b",
                              "(?:a{0,999}){0,60}[0]{5}",
                              "(.*)\\1\\1[^a]{3}",
                              "(?i)(a.*){5}q7",
                              NULL};
    char key[1025];
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);
    uint64_t longest = 0;
    uint32_t refused = 0;

    (void)state;
    w->is_idle_off = true;
    for (int i = 0; i < 40; i++) {
        put_t one = {.key = key, .len = 64, .key_len = 1024};
        reply_t *r;

        memset(key, 'a', sizeof key);
        key[1022] = (char)('A' + i % 26);
        key[1023] = (char)('0' + i / 26);
        r = peer_reply(c, put_begin(c, &one, 1, 0));
        assert_non_null(r);
        reply_free(r);
        assert_int_equal(commit(c, one.attempt, 0), KVP_OK);
    }
    for (int i = 0; patterns[i] != NULL; i++) {
        uint64_t id = remove_many(c, patterns[i], false);

        while (kvp_master_has_work(w->m)) {
            uint64_t began = kvp_now_ns();

            kvp_master_on_tick(w->m, w->now);
            longest = kvp_max_u64(longest, kvp_now_ns() - began);
            world_pump(w);
        }
        refused += remove_many_result(peer_wait(c, id, SEC), NULL, NULL) == KVP_BAD_PATTERN;
    }
    print_message("longest slice of a catastrophic pattern: %lu us\n", (unsigned long)longest / 1000);
    assert_true(refused >= 3);
    assert_true(longest < 500 * MS); /* thousands of times less than without bounds, on any machine */
    world_close(w);
}

static void
test_remove_many_when_too_many_walk(void **state)
{
    uint64_t ids[20];
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);
    uint32_t refused = 0;

    (void)state;
    fill(c, "key", 3, 100);
    w->is_idle_off = true;
    for (int i = 0; i < 20; i++)
        ids[i] = remove_many(c, "k", false);
    w->is_idle_off = false;
    for (int i = 0; i < 20; i++)
        refused += remove_many_result(peer_wait(c, ids[i], SEC), NULL, NULL) == KVP_LIMIT;
    assert_int_equal(refused, 4);
    world_close(w);
}

/* A walk does not follow those who put behind it without end. */
static void
test_remove_many_ends_while_others_put(void **state)
{
    char key[32];
    uint64_t id;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);

    (void)state;
    w->check_every = 0;
    put_fast(c, "key", 1, 8000);
    w->is_idle_off = true;
    id = remove_many(c, "^key", false);
    for (uint32_t i = 0; kvp_master_has_work(w->m); i++) {
        assert_true(i < 1000);
        kvp_master_on_tick(w->m, w->now);
        snprintf(key, sizeof key, "more%u/", i);
        put_fast(c, key, 1, 600);
    }
    w->is_idle_off = false;
    assert_int_equal(remove_many_result(peer_wait(c, id, SEC), NULL, NULL), KVP_OK);
    world_close(w);
}

/* What a key of an engine costs: 118 bytes of key, one copy. Index, keys and allocator together. */
static void
test_memory_of_many_keys(void **state)
{
    enum { N = 100000 };
    uint64_t before, full, after;
    peer_t *n, *c;
    world_t *w = small_world(&n, &c);

    (void)state;
    w->check_every = 0;
    before = world_stats(w).memory_bytes;
    put_fast(c, "llama-8b@tp_rank:0@pcp0@dcp0@pp_rank:0@group:00000001@", 64, N);
    full = world_stats(w).memory_bytes;
    assert_true(full - before <= N * 128);
    assert_true(full - before > N * (32 + 56 + 20)); /* all of it is counted */
    world_check(w);
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, "", true), SEC), NULL, NULL), KVP_OK);
    world_advance(w, 6 * SEC); /* tables of what was owed are kept for 5 s */
    after = world_stats(w).memory_bytes;
    /* A block of each kind is kept. */
    assert_true(after < before + 768 * KIB);
    world_close(w);
}

/* Who asked is gone before the walk is over: there is nobody to answer. */
static void
test_remove_many_when_its_client_dies(void **state)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    peer_t *c;

    (void)state;
    (void)node_open(w, mem_make(w, "n1", MIB, MIB));
    c = client_open(w);
    assert_int_equal(put(c, "key", 100), KVP_OK);
    w->is_idle_off = true;
    (void)remove_many(c, "", false);
    peer_lose(c);
    world_pump(w);
    w->is_idle_off = false;
    c = client_open(w);
    assert_true(exists(c, "key"));
    world_close(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remove_when_absent_held_or_under_way),
        cmocka_unit_test(test_remove_is_answered_when_dead),
        cmocka_unit_test(test_remove_is_answered_after_50_ms_where_a_node_is_mute),
        cmocka_unit_test(test_remove_when_the_node_is_lost),
        cmocka_unit_test(test_remove_when_one_way),
        cmocka_unit_test(test_remove_when_the_asker_dies),
        cmocka_unit_test(test_remove_many_by_pattern),
        cmocka_unit_test(test_remove_many_goes_in_slices),
        cmocka_unit_test(test_remove_many_waits_for_dead),
        cmocka_unit_test(test_remove_many_when_the_pattern_is_bad),
        cmocka_unit_test(test_remove_many_when_the_pattern_is_catastrophic),
        cmocka_unit_test(test_remove_many_when_too_many_walk),
        cmocka_unit_test(test_remove_many_ends_while_others_put),
        cmocka_unit_test(test_remove_many_when_its_client_dies),
        cmocka_unit_test(test_memory_of_many_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
