/* SPDX-License-Identifier: Apache-2.0
 * Removing by key, by pattern and all: when it is answered, what is left, and that no pattern stops the others. */
#include "tests/unit/master/rig.h"

#include "common/clock.h"

static const rig_conf_t large = {.size = 64 * MIB};

static void
fill_as(peer_t *c, const char *prefix, uint32_t n, uint64_t len)
{
    char key[64];

    for (uint32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%s%u", prefix, i);
        assert_int_equal(put(c, key, len), KVP_OK);
    }
}

/* ---- by key */
RIG_TEST(test_remove_when_absent_held_or_under_way, large)
{
    uint64_t ticket, attempt;
    kvp_wire_loc_t loc;

    fill_as(g->c, "key", 1, 100);
    assert_int_equal(remove_key(g->c, "other", false), KVP_NOT_FOUND);
    assert_int_equal(put_place(g->c, "writing", 100, &attempt, &loc), KVP_OK);
    assert_int_equal(remove_key(g->c, "writing", true), KVP_NOT_FOUND);
    assert_int_equal(get(g->c, "key0", &ticket, NULL), KVP_OK);
    assert_int_equal(remove_key(g->c, "key0", false), KVP_HELD);
    assert_int_equal(remove_key(g->c, "key0", true), KVP_OK);
    assert_int_equal(remove_key(g->c, "key0", true), KVP_NOT_FOUND);
    assert_int_equal(commit(g->c, attempt, 0), KVP_OK);
    assert_int_equal(world_stats(g->w).removes, 1);
}

RIG_TEST(test_remove_is_answered_when_dead, large)
{
    uint64_t id, delay = 20 * MS;

    fill_as(g->c, "key", 1, 100);
    g->na->policy = NODE_DEAD_ONLY; /* free does not matter */
    g->na->delay_ns = delay;
    id = remove_begun(g->c, "key0", false);
    assert_true(peer_is_asking(g->c, id));
    assert_false(exists(g->c, "key0"));
    world_advance(g->w, 2 * delay);
    assert_int_equal(plain_result(peer_reply(g->c, id)), KVP_OK);
    assert_int_equal(g->na->retires_n, 1);
}

/* A node that does not answer: it is asked again when it is back. */
RIG_TEST(test_remove_is_answered_after_50_ms_where_a_node_is_mute, large)
{
    uint64_t id;
    mem_t *mem = g->na->mem;

    fill_as(g->c, "key", 1, 100);
    g->na->policy = NODE_MUTE;
    id = remove_begun(g->c, "key0", false);
    world_advance(g->w, 45 * MS);
    assert_true(peer_is_asking(g->c, id));
    world_advance(g->w, 20 * MS);
    assert_int_equal(plain_result(peer_reply(g->c, id)), KVP_OK);
    assert_int_equal(world_stats(g->w).retiring_bytes, 128);
    peer_forget(g->na);
    g->na = node_open(g->w, mem);
    assert_int_equal(g->na->retires_n, 1);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
}

RIG_TEST(test_remove_when_the_node_is_lost, large)
{
    uint64_t id;
    mem_t *mem = g->na->mem;

    fill_as(g->c, "key", 2, 100);
    peer_forget(g->na);
    id = remove_begun(g->c, "key0", false);
    assert_int_equal(plain_result(peer_wait(g->c, id, 100 * MS)), KVP_OK);
    g->na = node_open(g->w, mem);
    assert_false(exists(g->c, "key0")); /* the removal is applied before the segment is visible again */
    assert_true(exists(g->c, "key1"));
    assert_int_equal(g->na->retires_n, 1);
}

RIG_TEST(test_remove_when_one_way, large)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest;

    fill_as(g->c, "key", 1, 100);
    digest = digest_of(g->w, "key0");
    head.n = 1;
    (void)peer_send(g->c, KVP_OP_REMOVE, KVP_FRAME_ONEWAY, &head.base, &digest, sizeof digest);
    assert_false(exists(g->c, "key0"));
}

RIG_TEST(test_remove_when_the_asker_dies, large)
{
    peer_t *d = client_open(g->w);

    fill_as(g->c, "key", 10, 100);
    g->na->policy = NODE_MUTE;
    (void)remove_begun(d, "key3", false);
    (void)remove_many(d, "key[5-9]", false);
    peer_forget(d);
    assert_true(exists(g->c, "key1"));
    assert_false(exists(g->c, "key3"));
    world_advance(g->w, 200 * MS);
    peer_forget(g->na);
}

/* ---- by pattern */
RIG_TEST(test_remove_many_by_pattern, large)
{
    uint64_t removed, held, ticket;

    fill_as(g->c, "a/", 20, 100);
    fill_as(g->c, "b/", 20, 100);
    assert_int_equal(get(g->c, "a/3", &ticket, NULL), KVP_OK);
    assert_int_equal(remove_many_result(peer_wait(g->c, remove_many(g->c, "^a/1?.$", false), SEC), &removed, &held),
                     KVP_OK);
    assert_int_equal(removed, 19);
    assert_int_equal(held, 1);
    assert_true(exists(g->c, "a/3"));
    assert_int_equal(remove_many_result(peer_wait(g->c, remove_many(g->c, "a/", true), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 1);
    assert_int_equal(world_stats(g->w).objects, 20);
    release(g->c, ticket);
    assert_int_equal(remove_many_result(peer_wait(g->c, remove_many(g->c, "nothing", false), SEC), &removed, &held),
                     KVP_OK);
    assert_int_equal(removed, 0);
    assert_int_equal(remove_many_result(peer_wait(g->c, remove_many(g->c, "", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 20);
    assert_int_equal(world_stats(g->w).objects, 0);
}

RIG_TEST(test_remove_many_waits_for_dead, large)
{
    uint64_t id, removed, held;

    fill_as(g->c, "key", 10, 100);
    g->na->delay_ns = 10 * MS;
    g->na->policy = NODE_DEAD_ONLY;
    id = remove_many(g->c, "", false);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(world_stats(g->w).objects, 0);
    world_advance(g->w, 30 * MS);
    assert_int_equal(remove_many_result(peer_reply(g->c, id), &removed, &held), KVP_OK);
    assert_int_equal(removed, 10);
}

RIG_TEST(test_remove_many_when_the_pattern_is_bad, large)
{
    char pattern[2000];
    const char *bad[] = {"(", "[z-a]", "a{2,1}", "\\C", "(*UTF)a", "(?<n>a)(?<n>b)", "*", NULL};

    fill_as(g->c, "key", 3, 100);
    for (int i = 0; bad[i] != NULL; i++)
        assert_int_equal(remove_many_result(peer_wait(g->c, remove_many(g->c, bad[i], false), SEC), NULL, NULL),
                         KVP_BAD_PATTERN);
    memset(pattern, 'k', sizeof pattern);
    pattern[1025] = '\0';
    assert_int_equal(remove_many_result(peer_wait(g->c, remove_many(g->c, pattern, false), SEC), NULL, NULL),
                     KVP_BAD_PATTERN);
    for (size_t i = 0; i < 100; i++)
        pattern[i] = '(';
    for (size_t i = 100; i < 200; i++)
        pattern[i] = ')';
    pattern[200] = '\0';
    assert_int_equal(remove_many_result(peer_wait(g->c, remove_many(g->c, pattern, false), SEC), NULL, NULL),
                     KVP_BAD_PATTERN);
    assert_int_equal(world_stats(g->w).objects, 3);
}

/* Patterns that backtrack without end, over keys made for it: refused, and no slice takes long. */
RIG_TEST(test_remove_many_when_the_pattern_is_catastrophic, large)
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
    uint64_t longest = 0;
    uint32_t refused = 0;

    g->w->is_idle_off = true;
    for (int i = 0; i < 40; i++) {
        put_t one = {.key = key, .len = 64, .key_len = 1024};
        reply_t *r;

        memset(key, 'a', sizeof key);
        key[1022] = (char)('A' + i % 26);
        key[1023] = (char)('0' + i / 26);
        r = peer_reply(g->c, put_begin(g->c, &one, 1, 0));
        assert_non_null(r);
        reply_free(r);
        assert_int_equal(commit(g->c, one.attempt, 0), KVP_OK);
    }
    for (int i = 0; patterns[i] != NULL; i++) {
        uint64_t id = remove_many(g->c, patterns[i], false);

        while (world_has_work(g->w)) {
            uint64_t began = kvp_now_ns();

            kvp_master_on_tick(g->w->m, g->w->now);
            longest = kvp_max_u64(longest, kvp_now_ns() - began);
            world_pump(g->w);
        }
        refused += remove_many_result(peer_wait(g->c, id, SEC), NULL, NULL) == KVP_BAD_PATTERN;
    }
    print_message("longest slice of a catastrophic pattern: %lu us\n", (unsigned long)longest / 1000);
    assert_true(refused >= 3);
    assert_true(longest < 500 * MS); /* thousands of times less than without bounds, on any machine */
}

RIG_TEST(test_remove_many_when_too_many_walk, large)
{
    uint64_t ids[20];
    uint32_t refused = 0;

    fill_as(g->c, "key", 3, 100);
    g->w->is_idle_off = true;
    for (int i = 0; i < 20; i++)
        ids[i] = remove_many(g->c, "k", false);
    g->w->is_idle_off = false;
    for (int i = 0; i < 20; i++)
        refused += remove_many_result(peer_wait(g->c, ids[i], SEC), NULL, NULL) == KVP_LIMIT;
    assert_int_equal(refused, 4);
}

/* A walk does not follow those who put behind it without end. */
RIG_TEST(test_remove_many_ends_while_others_put, large)
{
    char key[32];
    uint64_t id;

    g->w->check_every = 0;
    put_fast(g->c, "key", 1, 8000);
    g->w->is_idle_off = true;
    id = remove_many(g->c, "^key", false);
    for (uint32_t i = 0; world_has_work(g->w); i++) {
        assert_true(i < 1000);
        kvp_master_on_tick(g->w->m, g->w->now);
        snprintf(key, sizeof key, "more%u/", i);
        put_fast(g->c, key, 1, 600);
    }
    g->w->is_idle_off = false;
    assert_int_equal(remove_many_result(peer_wait(g->c, id, SEC), NULL, NULL), KVP_OK);
}

/* What a key of an engine costs: 118 bytes of key, one copy. Index, keys and allocator together. */
RIG_TEST(test_memory_of_many_keys, large)
{
    enum { N = 100000 };
    uint64_t before, full, after;

    g->w->check_every = 0;
    before = world_stats(g->w).memory_bytes;
    put_fast(g->c, "llama-8b@tp_rank:0@pcp0@dcp0@pp_rank:0@group:00000001@", 64, N);
    full = world_stats(g->w).memory_bytes;
    assert_true(full - before <= N * 128);
    assert_true(full - before > N * (32 + 56 + 20)); /* all of it is counted */
    world_check(g->w);
    assert_int_equal(remove_many_result(peer_wait(g->c, remove_many(g->c, "", true), SEC), NULL, NULL), KVP_OK);
    after = world_stats(g->w).memory_bytes;
    /* A block of each kind is kept. */
    assert_true(after < before + 768 * KIB);
}

/* Who asked is gone before the walk is over: there is nobody to answer. */
RIG_TEST_ON(test_remove_many_when_its_client_dies, .size = MIB)
{
    assert_int_equal(put(g->c, "key", 100), KVP_OK);
    g->w->is_idle_off = true;
    (void)remove_many(g->c, "", false);
    peer_lose(g->c);
    world_pump(g->w);
    g->w->is_idle_off = false;
    g->c = client_open(g->w);
    assert_true(exists(g->c, "key"));
}

TEST_MAIN()
