/* SPDX-License-Identifier: Apache-2.0
 * Probes: what EXISTS protects, how long, and that it never makes a put fail; reads that only USED tells of.
 */
#include "tests/world/world.h"

#include <stdio.h>

#define KEY_LEN 24
#define BLOCK (8 * KIB)
#define BLOCKS 128u /* in the pool */
#define TTL (5 * SEC)

/* One megabyte of blocks. */
static world_t *
block_world(peer_t **n_out, peer_t **c_out)
{
    world_t *w = world_open(&(kvp_master_conf_t){.lease_ns = TTL});

    *n_out = node_open(w, mem_make(w, "n1", MIB, MIB));
    *c_out = client_open(w);
    return w;
}

static void
name(char key[KEY_LEN], uint32_t i)
{
    snprintf(key, KEY_LEN, "key/%u", i);
}

static void
fill(peer_t *c, uint32_t from, uint32_t to)
{
    char key[KEY_LEN];

    for (uint32_t i = from; i < to; i++) {
        name(key, i);
        assert_int_equal(put(c, key, BLOCK), KVP_OK);
    }
}

static void
probe_range(peer_t *c, uint32_t from, uint32_t to)
{
    char key[KEY_LEN];

    for (uint32_t i = from; i < to; i++) {
        name(key, i);
        (void)probe(c, key);
    }
}

static uint32_t
count(peer_t *c, uint32_t from, uint32_t to)
{
    char key[KEY_LEN];
    uint32_t n = 0;

    for (uint32_t i = from; i < to; i++) {
        name(key, i);
        n += exists(c, key);
    }
    return n;
}

static kvp_err_t
remove_heeding(peer_t *c, const char *key, bool is_forced)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest = digest_of(c->world, key);
    int32_t result;
    reply_t *r;

    head.n = 1;
    head.heeds_probes = true;
    head.force = is_forced;
    r = peer_reply(c, peer_send(c, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest));
    assert_non_null(r);
    memcpy(&result, r->frame.tail, sizeof result);
    reply_free(r);
    return result;
}

/* ---- what it protects */
static void
test_probe_keeps_what_would_be_evicted(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 100);
    probe_range(c, 0, 10);
    world_advance(w, 300 * MS);
    for (uint32_t i = 0; i < 10; i++) { /* the others are all used after them */
        fill(c, 100 + 100 * i, 200 + 100 * i);
        assert_int_equal(count(c, 0, 10), 10);
    }
    assert_true(world_stats(w).probe_asides >= 10);
    world_advance(w, TTL + SEC);
    fill(c, 2000, 2200);
    assert_int_equal(count(c, 0, 10), 0);
    world_close(w);
}

/* Seen from the old end, where eviction looks first, and in a window of neighbours. */
static void
test_probe_keeps_neighbours_out_of_a_window(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 120);
    probe_range(c, 4, 5);
    world_advance(w, 300 * MS);
    assert_int_equal(put(c, "large", 24 * BLOCK), KVP_OK);
    assert_int_equal(count(c, 4, 5), 1);
    world_close(w);
}

static void
test_probe_of_is_plain_leaves_nothing(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 100);
    assert_int_equal(count(c, 0, 10), 10);
    world_advance(w, 300 * MS);
    fill(c, 100, 300);
    assert_int_equal(count(c, 0, 10), 0);
    world_close(w);
}

/* ---- what it does not */
/* Whoever does nothing but probe takes the pool from nobody. */
static void
test_probe_of_everything_makes_no_put_fail(void **state)
{
    peer_t *n, *c, *d;
    world_t *w = block_world(&n, &c);
    char key[KEY_LEN];
    uint32_t alive = BLOCKS;

    (void)state;
    d = client_open(w);
    fill(c, 0, BLOCKS);
    probe_range(d, 0, BLOCKS);
    world_advance(w, SEC);
    for (uint32_t i = 0; i < 300; i++) {
        probe_range(d, 0, BLOCKS + i); /* again and again, and what is new as well */
        world_advance(w, 20 * MS);
        name(key, BLOCKS + i);
        assert_int_equal(put(c, key, BLOCK), KVP_OK);
    }
    assert_int_equal(world_stats(w).put_no_space + world_stats(w).put_retry_after, 0);
    alive = count(c, 0, BLOCKS + 300);
    assert_true(alive > BLOCKS - 4 && alive <= BLOCKS);
    assert_int_equal(put(c, "large", 32 * BLOCK), KVP_OK); /* and a window among the probed is found too */
    world_close(w);
}

/* Nor is what is new worth nothing: it lives in a quarter of the pool while somebody asks for all the rest, */
static void
test_what_is_new_stays_while_all_else_is_probed(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, BLOCKS);
    for (uint32_t i = 0; i < 100; i++) {
        probe_range(c, 0, BLOCKS);
        world_advance(w, 20 * MS);
        fill(c, 1000 + i, 1001 + i);
        assert_int_equal(count(c, 1000 + i, 1001 + i), 1);
    }
    assert_true(count(c, 1000, 1100) >= BLOCKS / 4 - 2);
    assert_true(count(c, 0, BLOCKS) >= BLOCKS / 4 * 3 - 2);
    world_close(w);
}

/* and in all of it when they have been asked for in an unbroken row for the lease time. */
static void
test_row_of_probes_protects_for_the_lease_time(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, BLOCKS);
    for (uint32_t i = 0; i < 60; i++) {
        probe_range(c, 0, BLOCKS);
        if (i == 10) fill(c, 1000, 1001); /* all that may be is set aside */
        world_advance(w, 100 * MS);
    }
    for (uint32_t i = 0; i < 100; i++) {
        probe_range(c, 0, BLOCKS);
        world_advance(w, 10 * MS);
        fill(c, 2000 + i, 2001 + i);
    }
    assert_int_equal(count(c, 2000, 2100), 100);
    world_close(w);
}

/* The age is that of the first of an unbroken row: to ask again and again makes nobody stronger. */
static void
test_probes_yield_the_oldest_first(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, BLOCKS);
    probe_range(c, 64, BLOCKS);
    world_advance(w, SEC);
    probe_range(c, 0, 64);
    world_advance(w, SEC);
    probe_range(c, 64, BLOCKS); /* renewed */
    world_advance(w, SEC);
    fill(c, 1000, 1001); /* the first one puts all of them aside */
    for (uint32_t i = 0; i < 60; i++) {
        fill(c, 1001 + i, 1002 + i);
        probe_range(c, 1001 + i, 1002 + i);
        world_advance(w, 20 * MS);
    }
    assert_int_equal(count(c, 0, 64), 64);
    assert_true(count(c, 64, BLOCKS) <= 5);
    world_close(w);
}

/* In its first moments a probe may be a flood of them: together these protect a quarter. */
static void
test_probes_that_are_young_protect_a_quarter(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 100);
    fill(c, 200, 220);
    world_advance(w, 50 * MS);
    probe_range(c, 0, 100);
    fill(c, 300, 345);
    /* Without the bound all of the first hundred would be there, since there are others. */
    assert_true(count(c, 0, 100) >= BLOCKS / 4 - 1);
    assert_true(count(c, 0, 100) < 90);
    world_close(w);
}

/* ---- uses */
static void
test_probe_counts_as_a_use_once(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 120);
    probe_range(c, 0, 10);
    world_advance(w, TTL + SEC); /* it protects nothing any more */
    fill(c, 200, 300);
    assert_int_equal(count(c, 0, 10), 10); /* but was used after the others */
    assert_int_equal(count(c, 10, 90), 0);
    probe_range(c, 0, 10); /* which does not count again */
    world_advance(w, TTL + SEC);
    fill(c, 300, 330);
    assert_int_equal(count(c, 0, 10), 0);
    world_close(w);
}

static void
test_used_counts_as_a_use(void **state)
{
    Kvp__Pb__Used head = KVP__PB__USED__INIT;
    kvp_wire_used_t used[4] = {0};
    peer_t *n, *c, *other;
    world_t *w = block_world(&n, &c);
    char key[KEY_LEN];

    (void)state;
    fill(c, 0, 120);
    for (uint32_t i = 0; i < 3; i++) {
        name(key, i);
        used[i] = (kvp_wire_used_t){.digest = digest_of(w, key), .reads = i}; /* the first was not read at all */
    }
    used[3] = (kvp_wire_used_t){.digest = digest_of(w, "never was"), .reads = 9};
    head.n = 4;
    other = client_open_of(w, 5); /* another tenant's word says nothing */
    (void)peer_send(other, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, used, sizeof used);
    assert_int_equal(world_stats(w).used, 0);
    (void)peer_send(c, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, used, sizeof used);
    assert_int_equal(world_stats(w).used, 2);
    fill(c, 200, 300);
    assert_int_equal(count(c, 0, 1), 0);
    assert_int_equal(count(c, 1, 3), 2);
    head.n = 5; /* more than there is */
    (void)peer_send(c, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, used, sizeof used);
    assert_true(c->was_closed);
    world_close(w);
}

/* ---- removal */
static void
test_remove_that_heeds_probes(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 4);
    probe_range(c, 0, 4);
    assert_int_equal(remove_key(c, "key/0", false), KVP_OK); /* who does not ask is not hindered */
    assert_int_equal(remove_heeding(c, "key/1", false), KVP_HELD);
    assert_int_equal(remove_heeding(c, "key/1", true), KVP_OK);
    world_advance(w, TTL - 200 * MS);
    assert_int_equal(remove_heeding(c, "key/2", false), KVP_HELD);
    world_advance(w, 400 * MS);
    assert_int_equal(remove_heeding(c, "key/2", false), KVP_OK);
    probe_range(c, 3, 4);
    assert_int_equal(remove_heeding(c, "key/3", false), KVP_HELD); /* a new one */
    world_close(w);
}

/* ---- all of it at once, against the core's own check */
static void
test_probes_at_random(void **state)
{
    enum { KEYS = 300, STEPS = 6000 };
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);
    char key[KEY_LEN];

    (void)state;
    w->check_every = 20;
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t k = (uint32_t)world_below(w, KEYS);
        kvp_err_t err = KVP_OK;

        name(key, k);
        switch (world_below(w, 8)) {
        case 0:
        case 1:
            err = put(c, key, (1 + world_below(w, 8)) * BLOCK);
            assert_true(err == KVP_OK || err == KVP_ALREADY);
            break;
        case 2:
            (void)remove_key(c, key, world_below(w, 2) != 0);
            break;
        case 3:
            world_advance(w, world_below(w, 300) * MS);
            break;
        case 4:
            if (world_below(w, 50) == 0) world_advance(w, world_below(w, 20) * SEC);
            (void)get(c, key, NULL, NULL);
            break;
        default:
            probe_range(c, k, k + (uint32_t)world_below(w, 30));
        }
    }
    assert_true(world_stats(w).probe_asides > 100);
    world_close(w);
}

/* Ages are told in 16 bits; a stall of just so long must not make what is aside look young. */
static void
test_probes_after_a_stall_of_hours(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 100);
    probe_range(c, 0, 10);
    world_advance(w, 300 * MS);
    fill(c, 100, 300);
    assert_true(world_stats(w).probe_asides >= 10);
    world_jump(w, 65536 * 100 * MS);
    for (uint32_t i = 0; i < 100; i++) {
        world_advance(w, 50 * MS);
        world_check(w);
    }
    world_close(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_keeps_what_would_be_evicted),
        cmocka_unit_test(test_probe_keeps_neighbours_out_of_a_window),
        cmocka_unit_test(test_probe_of_is_plain_leaves_nothing),
        cmocka_unit_test(test_probe_of_everything_makes_no_put_fail),
        cmocka_unit_test(test_what_is_new_stays_while_all_else_is_probed),
        cmocka_unit_test(test_row_of_probes_protects_for_the_lease_time),
        cmocka_unit_test(test_probes_yield_the_oldest_first),
        cmocka_unit_test(test_probes_that_are_young_protect_a_quarter),
        cmocka_unit_test(test_probe_counts_as_a_use_once),
        cmocka_unit_test(test_used_counts_as_a_use),
        cmocka_unit_test(test_remove_that_heeds_probes),
        cmocka_unit_test(test_probes_at_random),
        cmocka_unit_test(test_probes_after_a_stall_of_hours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
