/* SPDX-License-Identifier: Apache-2.0
 * No step is long, whatever leaves, dies or is removed: how many records the master touches for one input is bounded,
 * however many there are. Records are counted, not time.
 */
#include "tests/world/report.h"

#include <stdio.h>

#define MANY 100000u
#define STEP_MOST 2048u /* what a step may touch for one message, and for what can wait */
#define BATCH 512u
#define OWED_MOST (STEP_MOST + 8 * BATCH) /* a tombstone counts for eight records */

/* A pool with MANY objects, key000000 and so on. */
static world_t *
full_world(peer_t **n_out, peer_t **c_out)
{
    world_t *w = world_open(&(kvp_master_conf_t){.node_grace_ns = SEC});

    w->check_every = 0;
    *n_out = node_open(w, mem_make(w, "n1", 64 * MIB, 4 * MIB));
    *c_out = client_open(w);
    put_fast(*c_out, "key", 6, MANY);
    assert_int_equal(world_stats(w).objects, MANY);
    w->work_most = 0;
    return w;
}

static kvp_digest_t *
digests_from(const world_t *w, uint32_t from)
{
    kvp_digest_t *digests = calloc(BATCH, sizeof *digests);
    char key[16];

    for (uint32_t i = 0; i < BATCH; i++) {
        snprintf(key, sizeof key, "key%06u", from + i);
        digests[i] = digest_of(w, key);
    }
    return digests;
}

/* Asks for MANY keys, BATCH in a message. */
static void
ask_many(peer_t *c, uint8_t op)
{
    Kvp__Pb__Get get = KVP__PB__GET__INIT;
    Kvp__Pb__Lookup lookup = KVP__PB__LOOKUP__INIT;

    get.n = lookup.n = BATCH;
    for (uint32_t i = 0; i + BATCH <= MANY; i += BATCH) {
        const void *head = op == KVP_OP_GET ? (const void *)&get : (const void *)&lookup;
        kvp_digest_t *digests = digests_from(c->world, i);

        assert_int_equal(plain_result(peer_reply(c, peer_send(c, op, 0, head, digests, BATCH * sizeof *digests))),
                         KVP_OK);
        free(digests);
    }
}

/* Begins puts of n keys that are not there, BATCH in a message; waits for no answer. */
static void
begin_many(peer_t *c, uint32_t n, uint64_t len)
{
    char(*keys)[16] = calloc(BATCH, sizeof *keys);
    put_t *puts = calloc(BATCH, sizeof *puts);

    for (uint32_t i = 0; i < n; i += BATCH) {
        for (uint32_t k = 0; k < BATCH; k++) {
            snprintf(keys[k], sizeof keys[k], "new%06u", i + k);
            puts[k] = (put_t){.key = keys[k], .len = len};
        }
        (void)put_begin(c, puts, BATCH, 10000);
    }
    free(puts);
    free(keys);
}

static void
expect_steps_below(world_t *w, uint64_t most)
{
    world_advance(w, 100 * MS);
    assert_in_range(w->work_most, 1, most);
    world_check(w);
    world_close(w);
}

static void
expect_short_steps(world_t *w)
{
    expect_steps_below(w, STEP_MOST);
}

static void
test_step_when_a_client_with_many_attempts_dies(void **state)
{
    peer_t *n, *c, *d;
    world_t *w = full_world(&n, &c);

    (void)state;
    d = client_open(w);
    begin_many(d, 80 * BATCH, 64);
    assert_int_equal(world_stats(w).attempts, 80 * BATCH);
    peer_forget(d);
    assert_int_equal(world_stats(w).attempts, 0);
    expect_short_steps(w);
}

/* None of them was granted: there is no room while everything is held. */
static void
test_step_when_a_client_with_many_waiting_puts_dies(void **state)
{
    peer_t *n, *c, *d;
    world_t *w = full_world(&n, &c);

    (void)state;
    ask_many(c, KVP_OP_GET);
    d = client_open(w);
    begin_many(d, 16 * BATCH, 400 * KIB);
    assert_true(world_stats(w).pending_puts > 12 * BATCH);
    peer_forget(d);
    assert_int_equal(world_stats(w).attempts, 0);
    assert_int_equal(world_stats(w).pending_puts, 0);
    expect_short_steps(w);
}

static void
test_step_when_many_waiting_puts_are_due(void **state)
{
    peer_t *n, *c, *d;
    world_t *w = full_world(&n, &c);

    (void)state;
    ask_many(c, KVP_OP_GET);
    d = client_open(w);
    begin_many(d, 16 * BATCH, 400 * KIB);
    assert_true(world_stats(w).pending_puts > 12 * BATCH);
    world_advance(w, 11 * SEC);
    assert_int_equal(world_stats(w).pending_puts, 0);
    expect_short_steps(w);
}

static void
test_step_when_a_client_with_many_holds_dies(void **state)
{
    peer_t *n, *c;
    world_t *w = full_world(&n, &c);

    (void)state;
    ask_many(c, KVP_OP_GET);
    peer_forget(c);
    assert_int_equal(world_stats(w).held_bytes, 0);
    expect_short_steps(w);
}

static void
test_step_when_many_holds_are_released(void **state)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    Kvp__Pb__Release release_head = KVP__PB__RELEASE__INIT;
    uint64_t tickets[MANY / BATCH];
    peer_t *n, *c;
    world_t *w = full_world(&n, &c);

    (void)state;
    head.n = BATCH;
    for (uint32_t i = 0; i < MANY / BATCH; i++) {
        kvp_digest_t *digests = digests_from(w, i * BATCH);
        places_t places;

        places_read(peer_reply(c, peer_send(c, KVP_OP_GET, 0, &head.base, digests, BATCH * sizeof *digests)), &places);
        tickets[i] = places.ticket;
        places_free(&places);
        free(digests);
    }
    release_head.n = MANY / BATCH;
    (void)peer_send(c, KVP_OP_RELEASE, 0, &release_head.base, tickets, sizeof tickets);
    assert_int_equal(world_stats(w).held_bytes, 0);
    expect_short_steps(w);
}

/* They all end at the same time, as far as the master can tell: it stood still. */
static void
test_step_when_many_reservations_expire(void **state)
{
    peer_t *n, *c, *peers[4];
    world_t *w = full_world(&n, &c);

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        peers[i] = client_open(w);
        ask_many(peers[i], KVP_OP_LOOKUP);
    }
    assert_true(world_stats(w).reserved_bytes > 2 * MIB);
    world_jump(w, 11 * SEC);
    world_advance(w, 100 * MS);
    assert_int_equal(world_stats(w).reserved_bytes, 0);
    expect_short_steps(w);
}

static void
test_step_when_everything_is_removed(void **state)
{
    uint64_t removed, held;
    peer_t *n, *c;
    world_t *w = full_world(&n, &c);

    (void)state;
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, "", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, MANY);
    expect_short_steps(w);
}

static void
test_step_when_everything_is_bumped(void **state)
{
    Kvp__Pb__Bump head = KVP__PB__BUMP__INIT;
    peer_t *n, *c;
    world_t *w = full_world(&n, &c);

    (void)state;
    assert_int_equal(plain_result(peer_reply(c, peer_send(c, KVP_OP_BUMP, 0, &head.base, NULL, 0))), KVP_OK);
    world_advance(w, 100 * MS);
    assert_int_equal(world_stats(w).bumped, MANY);
    expect_short_steps(w);
}

/* A window of ten thousand neighbours. */
static void
test_step_when_much_is_evicted_for_one_put(void **state)
{
    enum { N = 16000 };
    peer_t *n, *c;
    world_t *w = world_open(&(kvp_master_conf_t){0});

    (void)state;
    w->check_every = 16;
    n = node_open(w, mem_make(w, "n1", 4 * MIB, 4 * MIB));
    n->delay_ns = MS;
    c = client_open(w);
    put_fast(c, "key", 6, N);
    w->work_most = 0;
    assert_int_equal(put_wait(c, "large", 7 * MIB / 2, 2000), KVP_OK);
    assert_int_equal(put_wait(c, "small", 64, 2000), KVP_OK);
    assert_true(exists(c, "large"));
    assert_true(world_stats(w).evict_window > N / 3);
    expect_short_steps(w);
}

/* An object in the middle of it is held, and lasts. */
static void
test_step_when_much_is_evicted_around_what_is_held(void **state)
{
    enum { N = 16000 };
    uint64_t ticket;
    peer_t *n, *c;
    world_t *w = world_open(&(kvp_master_conf_t){0});
    put_t one = {.key = "large", .len = 7 * MIB / 2};
    places_t places;
    uint64_t id;

    (void)state;
    w->check_every = 0;
    n = node_open(w, mem_make(w, "n1", 4 * MIB, 4 * MIB));
    n->delay_ns = MS;
    c = client_open(w);
    put_fast(c, "key", 6, N);
    w->is_idle_off = true;
    id = put_begin(c, &one, 1, 5000);
    while (world_stats(w).evict_window == 0)
        kvp_master_on_tick(w->m, w->now);
    assert_int_equal(get(c, "key015000", &ticket, NULL), KVP_OK); /* its turn has not come */
    w->is_idle_off = false;
    world_advance(w, 500 * MS);
    assert_true(exists(c, "key015000"));
    assert_true(peer_is_asking(c, id));
    release(c, ticket);
    places_read(peer_wait(c, id, SEC), &places);
    assert_int_equal(places.objs[0].err, KVP_OK);
    places_free(&places);
    expect_short_steps(w);
}

/* All that is in a chunk of another tenant goes, thousands of objects. */
static void
test_step_when_a_chunk_is_taken(void **state)
{
    enum { N = 12000 };
    peer_t *idle, *c;
    world_t *w = world_open(&(kvp_master_conf_t){0});

    (void)state;
    w->check_every = 0;
    (void)node_open(w, mem_make(w, "n1", 4 * MIB, MIB));
    idle = client_open_of(w, 1);
    c = client_open_of(w, 2);
    put_fast(idle, "idle", 6, N);
    w->work_most = 0;
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(put_wait(c, key_name("mine", i), 64 * KIB, 2000), KVP_OK);
    assert_true(world_stats(w).chunks_taken > 0);
    assert_true(world_stats(w).evictions > N / 4);
    expect_short_steps(w);
}

static void
test_step_when_a_node_is_lost(void **state)
{
    peer_t *n, *c;
    world_t *w = full_world(&n, &c);

    (void)state;
    peer_forget(n);
    world_advance(w, 2 * SEC);
    assert_int_equal(world_stats(w).purged, MANY);
    world_advance(w, 5 * SEC);
    assert_int_equal(world_stats(w).memory_bytes < 1 * MIB, 1);
    expect_short_steps(w);
}

/* Each of many puts waits for a window of its own, in memory that nobody frees any more. */
static void
test_step_when_many_windows_are_lost(void **state)
{
    enum { WAITING = 24 * BATCH };
    peer_t *n, *c;
    world_t *w = world_open(&(kvp_master_conf_t){0});

    (void)state;
    w->check_every = 0;
    n = node_open(w, mem_make(w, "n1", 8 * MIB, 8 * MIB));
    c = client_open(w);
    put_fast_of(c, "key", 6, 8 * MIB / 512, 512);
    n->policy = NODE_MUTE;
    begin_many(c, WAITING, 512);
    assert_true(world_stats(w).evictions > WAITING * 9 / 10); /* a window each, but where some was kept free */
    w->work_most = 0;
    peer_forget(n);
    assert_true(world_stats(w).pending_puts > WAITING * 9 / 10);
    expect_steps_below(w, OWED_MOST);
}

/* A node that comes is told of all that is owed to one that is away. */
static void
test_step_when_much_is_owed(void **state)
{
    uint64_t removed, held, id;
    peer_t *n, *c;
    world_t *w = full_world(&n, &c);
    mem_t *other = mem_make(w, "n2", MIB, MIB);

    (void)state;
    peer_forget(n);
    id = remove_many(c, "", false);
    world_advance(w, 300 * MS);
    assert_true(peer_is_asking(c, id)); /* nobody keeps it in mind */
    assert_in_range(w->work_most, 1, OWED_MOST);
    w->work_most = 0;
    (void)node_open(w, other);
    assert_int_equal(other->tombs.n, MANY);
    assert_int_equal(remove_many_result(peer_wait(c, id, SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, MANY);
    expect_short_steps(w);
}

static void
put_whole(peer_t *c, const char *key)
{
    put_t one = {.key = key, .len = 64};
    places_t p;

    places_read(peer_reply(c, put_begin(c, &one, 1, 0)), &p);
    assert_int_equal(p.objs[0].err, KVP_OK);
    assert_int_equal(write_object(c, &p.locs[0], &p.objs[0], key), KVP_OK);
    places_free(&p);
    assert_int_equal(commit(c, one.attempt, 1), KVP_OK);
}

/* Where those of a chunk lie is known at the end of it. */
static void
test_step_when_many_long_keys_are_reported(void **state)
{
    enum { N = 12000 };
    char key[KVP_KEY_CELL_BYTES + 40];
    world_t *w = world_open(&(kvp_master_conf_t){0});
    mem_t *mem = mem_make(w, "n1", 16 * MIB, 4 * MIB);
    peer_t *c;

    (void)state;
    w->check_every = 0;
    (void)node_open(w, mem);
    c = client_open(w);
    memset(key, 'l', sizeof key);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(key + KVP_KEY_CELL_BYTES, sizeof key - KVP_KEY_CELL_BYTES, "%u", i);
        put_whole(c, key);
    }
    world_restart(w);
    w->work_most = 0;
    (void)node_open(w, mem);
    assert_int_equal(world_stats(w).adopted, N);
    assert_int_equal(world_stats(w).objects, N);
    expect_short_steps(w);
}

/* Orders that it was owed go out in the node's time, and its answers come all at once. */
static void
test_step_when_a_node_was_slow(void **state)
{
    uint64_t removed, held;
    peer_t *n, *c;
    world_t *w = full_world(&n, &c);

    (void)state;
    n->policy = NODE_DEAD_ONLY;
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, "", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(world_stats(w).retiring_bytes, MANY * 64ull);
    node_free_all(n);
    world_advance(w, 100 * MS);
    assert_int_equal(world_stats(w).used_bytes, 0);
    expect_short_steps(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_when_a_client_with_many_attempts_dies),
        cmocka_unit_test(test_step_when_a_client_with_many_waiting_puts_dies),
        cmocka_unit_test(test_step_when_many_waiting_puts_are_due),
        cmocka_unit_test(test_step_when_a_client_with_many_holds_dies),
        cmocka_unit_test(test_step_when_many_holds_are_released),
        cmocka_unit_test(test_step_when_many_reservations_expire),
        cmocka_unit_test(test_step_when_everything_is_removed),
        cmocka_unit_test(test_step_when_everything_is_bumped),
        cmocka_unit_test(test_step_when_much_is_evicted_for_one_put),
        cmocka_unit_test(test_step_when_much_is_evicted_around_what_is_held),
        cmocka_unit_test(test_step_when_a_chunk_is_taken),
        cmocka_unit_test(test_step_when_a_node_is_lost),
        cmocka_unit_test(test_step_when_many_windows_are_lost),
        cmocka_unit_test(test_step_when_much_is_owed),
        cmocka_unit_test(test_step_when_many_long_keys_are_reported),
        cmocka_unit_test(test_step_when_a_node_was_slow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
