/* SPDX-License-Identifier: Apache-2.0
 * Probes: what EXISTS protects, how long, and that it never makes a put fail; reads that only USED tells of. */
#include "tests/unit/master/rig.h"

#define KEY_LEN 24
#define BLOCK (8 * KIB)
#define BLOCKS 128u /* in the pool */
#define TTL (5 * SEC)

static const rig_conf_t blocks = {.conf.lease_ns = TTL, .size = MIB};

static void
name(char key[KEY_LEN], uint32_t i)
{
    snprintf(key, KEY_LEN, "key/%u", i);
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

/* One message that asks for the first n keys, the last of these first. */
static void
probe_backwards(peer_t *c, uint32_t n)
{
    Kvp__Pb__Exists head = KVP__PB__EXISTS__INIT;
    kvp_digest_t digests[BLOCKS];

    for (uint32_t i = 0; i < n; i++)
        digests[i] = digest_of(c->world, key_name("key/", n - 1 - i));
    head.n = n;
    reply_free(peer_reply(c, peer_send(c, KVP_OP_EXISTS, 0, &head.base, digests, n * sizeof *digests)));
}

/* Tells that the keys [from, to) were read. */
static void
use_range(peer_t *c, uint32_t from, uint32_t to)
{
    Kvp__Pb__Used head = KVP__PB__USED__INIT;
    kvp_wire_used_t used[BLOCKS];

    for (uint32_t i = from; i < to; i++)
        used[head.n++] = (kvp_wire_used_t){.digest = digest_of(c->world, key_name("key/", i)), .reads = 1};
    (void)peer_send(c, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, used, head.n * sizeof *used);
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
RIG_TEST(test_probe_keeps_what_would_be_evicted, blocks)
{
    fill(g->c, 0, 100, BLOCK);
    probe_range(g->c, 0, 10);
    world_advance(g->w, 300 * MS);
    for (uint32_t i = 0; i < 10; i++) { /* the others are all used after them */
        fill(g->c, 100 + 100 * i, 200 + 100 * i, BLOCK);
        assert_int_equal(count(g->c, 0, 10), 10);
    }
    assert_true(world_stats(g->w).probe_asides >= 10);
    world_advance(g->w, TTL + SEC);
    fill(g->c, 2000, 2200, BLOCK);
    assert_int_equal(count(g->c, 0, 10), 0);
}

/* Seen from the old end, where eviction looks first, and in a window of neighbours. */
RIG_TEST(test_probe_keeps_neighbours_out_of_a_window, blocks)
{
    fill(g->c, 0, 120, BLOCK);
    probe_range(g->c, 4, 5);
    world_advance(g->w, 300 * MS);
    assert_int_equal(put(g->c, "large", 24 * BLOCK), KVP_OK);
    assert_int_equal(count(g->c, 4, 5), 1);
}

RIG_TEST(test_probe_of_is_plain_leaves_nothing, blocks)
{
    fill(g->c, 0, 100, BLOCK);
    assert_int_equal(count(g->c, 0, 10), 10);
    world_advance(g->w, 300 * MS);
    fill(g->c, 100, 300, BLOCK);
    assert_int_equal(count(g->c, 0, 10), 0);
}

/* ---- what it does not */
/* Whoever does nothing but probe takes the pool from nobody. */
RIG_TEST(test_probe_of_everything_makes_no_put_fail, blocks)
{
    peer_t *d = client_open(g->w);
    uint32_t alive = BLOCKS;

    fill(g->c, 0, BLOCKS, BLOCK);
    probe_range(d, 0, BLOCKS);
    world_advance(g->w, SEC);
    for (uint32_t i = 0; i < 300; i++) {
        probe_range(d, 0, BLOCKS + i); /* again and again, and what is new as well */
        world_advance(g->w, 20 * MS);
        assert_int_equal(put(g->c, key_name("key/", BLOCKS + i), BLOCK), KVP_OK);
    }
    assert_int_equal(world_stats(g->w).put_no_space + world_stats(g->w).put_retry_after, 0);
    alive = count(g->c, 0, BLOCKS + 300);
    assert_true(alive > BLOCKS - 4 && alive <= BLOCKS);
    assert_int_equal(put(g->c, "large", 32 * BLOCK), KVP_OK); /* and a window among the probed is found too */
}

/* Nor is what is new worth nothing: it lives in three quarters of the pool while somebody asks for all the rest, */
RIG_TEST(test_what_is_new_stays_while_all_else_is_probed, blocks)
{
    fill(g->c, 0, BLOCKS, BLOCK);
    for (uint32_t i = 0; i < 100; i++) {
        probe_range(g->c, 0, BLOCKS);
        world_advance(g->w, 20 * MS);
        fill(g->c, 1000 + i, 1001 + i, BLOCK);
        assert_int_equal(count(g->c, 1000 + i, 1001 + i), 1);
    }
    assert_true(count(g->c, 1000, 1100) >= BLOCKS / 4 * 3 - 2);
    assert_true(count(g->c, 0, BLOCKS) >= BLOCKS / 4 - 2);
    assert_true(world_stats(g->w).probed_bytes <= MIB / 4);
}

/* and in all of it when they have been asked for in an unbroken row for the lease time. */
RIG_TEST(test_row_of_probes_protects_for_the_lease_time, blocks)
{
    fill(g->c, 0, BLOCKS, BLOCK);
    for (uint32_t i = 0; i < 60; i++) {
        probe_range(g->c, 0, BLOCKS);
        if (i == 10) fill(g->c, 1000, 1001, BLOCK); /* all that may be is set aside */
        world_advance(g->w, 100 * MS);
    }
    for (uint32_t i = 0; i < 100; i++) {
        probe_range(g->c, 0, BLOCKS);
        world_advance(g->w, 10 * MS);
        fill(g->c, 2000 + i, 2001 + i, BLOCK);
    }
    assert_int_equal(count(g->c, 2000, 2100), 100);
}

/* Three rows, of a quarter of the pool each: that of the keys from 0 on begins after that from 32 on, and before that
 * from 64 on. All were used in the order of their numbers. */
static void
probe_three_rows(rig_t *g)
{
    fill(g->c, 0, BLOCKS, BLOCK);
    probe_range(g->c, 0, 96);
    world_advance(g->w, TTL + SEC); /* over; what begins from now on is no use */
    probe_range(g->c, 32, 64);
    world_advance(g->w, 300 * MS);
    probe_range(g->c, 0, 32);
    world_advance(g->w, 300 * MS);
    probe_range(g->c, 64, 96);
    probe_range(g->c, 32, 64); /* renewed, which makes no row younger */
}

/* A quarter is protected, and the row that began first is let go first. */
RIG_TEST(test_probes_yield_the_oldest_first, blocks)
{
    probe_three_rows(g);
    fill(g->c, 1000, 1063, BLOCK); /* as many as nobody asks for, and the second row */
    assert_int_equal(count(g->c, 0, 32), 32);
    assert_int_equal(count(g->c, 64, 96), 32);
    assert_true(count(g->c, 32, 64) <= 2);
    fill(g->c, 1063, 1095, BLOCK);
    assert_true(count(g->c, 0, 32) <= 2);
    assert_true(count(g->c, 64, 96) >= 31);
}

RIG_TEST(test_batch_of_probes_protects_its_prefix, blocks)
{
    fill(g->c, 0, BLOCKS, BLOCK);
    probe_range(g->c, 0, 64);
    world_advance(g->w, TTL + SEC);
    probe_backwards(g->c, 64); /* the end of it was used longest ago */
    fill(g->c, 1000, 1096, BLOCK);
    assert_int_equal(count(g->c, 32, 64), 32);
    assert_int_equal(count(g->c, 0, 32), 0);
}

/* What was read since is as safe as its last use makes it; what was not is kept for who asked. */
RIG_TEST(test_use_ends_what_a_probe_protects, blocks)
{
    fill(g->c, 0, BLOCKS, BLOCK);
    probe_range(g->c, 0, 20);
    use_range(g->c, 0, 10);
    fill(g->c, 1000, 1000 + 2 * BLOCKS, BLOCK);
    assert_int_equal(count(g->c, 0, 10), 0);
    assert_int_equal(count(g->c, 10, 20), 10);
}

/* ---- uses */
RIG_TEST(test_probe_counts_as_a_use_once, blocks)
{
    fill(g->c, 0, 120, BLOCK);
    probe_range(g->c, 0, 10);
    world_advance(g->w, TTL + SEC); /* it protects nothing any more */
    fill(g->c, 200, 300, BLOCK);
    assert_int_equal(count(g->c, 0, 10), 10); /* but was used after the others */
    assert_int_equal(count(g->c, 10, 90), 0);
    probe_range(g->c, 0, 10); /* which does not count again */
    world_advance(g->w, TTL + SEC);
    fill(g->c, 300, 330, BLOCK);
    assert_int_equal(count(g->c, 0, 10), 0);
}

RIG_TEST(test_used_counts_as_a_use, blocks)
{
    Kvp__Pb__Used head = KVP__PB__USED__INIT;
    kvp_wire_used_t used[4] = {0};
    peer_t *other;

    fill(g->c, 0, 120, BLOCK);
    for (uint32_t i = 0; i < 3; i++) {
        used[i] = (kvp_wire_used_t){.digest = digest_of(g->w, key_name("key/", i)),
                                    .reads = i}; /* the first was not read at all */
    }
    used[3] = (kvp_wire_used_t){.digest = digest_of(g->w, "never was"), .reads = 9};
    head.n = 4;
    other = client_open_of(g->w, 5); /* another tenant's word says nothing */
    (void)peer_send(other, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, used, sizeof used);
    assert_int_equal(world_stats(g->w).used, 0);
    (void)peer_send(g->c, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, used, sizeof used);
    assert_int_equal(world_stats(g->w).used, 2);
    fill(g->c, 200, 300, BLOCK);
    assert_int_equal(count(g->c, 0, 1), 0);
    assert_int_equal(count(g->c, 1, 3), 2);
    head.n = 5; /* more than there is */
    (void)peer_send(g->c, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, used, sizeof used);
    assert_true(g->c->was_closed);
}

/* ---- removal */
RIG_TEST(test_remove_that_heeds_probes, blocks)
{
    fill(g->c, 0, 4, BLOCK);
    probe_range(g->c, 0, 4);
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK); /* who does not ask is not hindered */
    assert_int_equal(remove_heeding(g->c, "key/1", false), KVP_HELD);
    assert_int_equal(remove_heeding(g->c, "key/1", true), KVP_OK);
    world_advance(g->w, TTL - 200 * MS);
    assert_int_equal(remove_heeding(g->c, "key/2", false), KVP_HELD);
    world_advance(g->w, 200 * MS); /* the lease time is over, to the millisecond */
    assert_int_equal(remove_heeding(g->c, "key/2", false), KVP_OK);
    probe_range(g->c, 3, 4);
    assert_int_equal(remove_heeding(g->c, "key/3", false), KVP_HELD); /* a new one */
}

/* ---- all of it at once, against the core's own check */
/* Ages are told in 16 bits; a stall of just so long must not make what is aside look young. */
RIG_TEST(test_probes_after_a_stall_of_hours, blocks)
{
    fill(g->c, 0, 100, BLOCK);
    probe_range(g->c, 0, 10);
    world_advance(g->w, 300 * MS);
    fill(g->c, 100, 300, BLOCK);
    assert_true(world_stats(g->w).probe_asides >= 10);
    world_jump(g->w, 65536 * 100 * MS);
    for (uint32_t i = 0; i < 100; i++) {
        world_advance(g->w, 50 * MS);
        world_check(g->w);
    }
}

TEST_MAIN()
