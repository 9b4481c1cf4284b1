/* SPDX-License-Identifier: Apache-2.0
 * Copies of which a reader says that nobody can read them, and hard-pinned objects: the node is asked, and believed. */
#include "tests/unit/master/rig.h"

#include "proto/segfmt.h"

#define LEN (4 * KIB)
#define HOLLOW (LEN + 64) /* bytes of what was never written */
#define WAITING_MAX 256u /* KVP_CHECKS_MAX */

static const rig_conf_t pool = {.size = 1024 * LEN};

/* A RELEASE of no ticket that calls the place of that generation unreadable. */
static void
tell(peer_t *c, const char *key, uint64_t generation)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;
    kvp_wire_unreadable_t rec = {digest_of(c->world, key), generation};

    head.unreadable = 1;
    (void)peer_send(c, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, &head.base, &rec, sizeof rec);
    world_pump(c->world);
}

static kvp_wire_loc_t
place_of(peer_t *c, const char *key)
{
    kvp_wire_loc_t loc;
    uint64_t ticket;

    assert_int_equal(get(c, key, &ticket, &loc), KVP_OK);
    release(c, ticket);
    return loc;
}

static kvp_err_t
put_as(peer_t *c, const char *key, uint64_t len, kvp_pin_t pin, uint32_t replicas)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    head.pin = pin;
    head.replicas = replicas;
    return put_like(c, &(put_t){.key = key, .len = len}, &head);
}

RIG_TEST(test_told_of_what_was_never_written, pool)
{
    g->a->hollow_part = HOLLOW;
    assert_int_equal(put(g->c, "key", HOLLOW), KVP_OK);
    tell(g->c, "key", place_of(g->c, "key").generation);
    assert_int_equal(g->na->checks_n, 1);
    assert_int_equal(world_stats(g->w).unreadable, 1);
    assert_int_equal(g->na->retires_n, 1);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
    assert_false(exists(g->c, "key"));
    assert_int_equal(cause_of(g->c, "key"), KVP_CAUSE_UNREADABLE);
    assert_int_equal(put(g->c, "key", LEN), KVP_OK);
}

RIG_TEST(test_told_of_what_is_sound, pool)
{
    g->a->hollow_part = HOLLOW;
    assert_int_equal(put(g->c, "key", LEN), KVP_OK);
    tell(g->c, "key", place_of(g->c, "key").generation);
    assert_int_equal(g->na->checks_n, 1);
    assert_true(exists(g->c, "key"));
    assert_int_equal(g->na->retires_n, 0);
}

RIG_TEST(test_told_of_what_is_not_there, pool)
{
    peer_t *other = client_open_of(g->w, 3);
    uint64_t generation;

    assert_int_equal(put(g->c, "key", LEN), KVP_OK);
    generation = place_of(g->c, "key").generation;
    tell(g->c, "key", generation + 1);
    tell(g->c, "another", generation);
    tell(other, "key", generation);
    assert_int_equal(g->na->checks_n, 0);
}

/* One place waits once, and not more than so many of what readers say. */
RIG_TEST(test_told_while_the_node_is_silent, pool)
{
    uint64_t generations[WAITING_MAX + 9];

    for (uint32_t i = 0; i < WAITING_MAX + 9; i++) {
        assert_int_equal(put(g->c, key_name("key", i), LEN), KVP_OK);
        generations[i] = place_of(g->c, key_name("key", i)).generation;
    }
    g->na->policy = NODE_MUTE;
    for (uint32_t i = 0; i < WAITING_MAX + 9; i++) {
        tell(g->c, key_name("key", i), generations[i]);
        tell(g->c, key_name("key", i), generations[i]);
    }
    assert_int_equal(g->na->checks_n, 1); /* one order is out */
    g->na->policy = NODE_FREE_NOW;
    peer_forget(g->na);
    g->na = node_open(g->w, g->a);
    world_pump(g->w);
    assert_int_equal(g->na->checks_n, WAITING_MAX);
    assert_int_equal(count_of(g->c, "key", 0, WAITING_MAX + 9), WAITING_MAX + 9);
}

RIG_TEST(test_told_of_what_is_gone_by_the_answer, pool)
{
    kvp_wire_loc_t loc;

    g->na->policy = NODE_MUTE;
    g->a->hollow_part = HOLLOW;
    assert_int_equal(put(g->c, "key", HOLLOW), KVP_OK);
    loc = place_of(g->c, "key");
    tell(g->c, "key", loc.generation);
    (void)remove_begun(g->c, "key", true);
    world_pump(g->w);
    peer_forget(g->na);
    g->na = node_open(g->w, g->a);
    world_advance(g->w, SEC);
    assert_int_equal(g->na->checks_n, 1);
    assert_int_equal(world_stats(g->w).unreadable, 0);
    assert_int_equal(put(g->c, "key", HOLLOW), KVP_OK);
    assert_true(exists(g->c, "key"));
}

RIG_TEST(test_told_of_a_lost_segment, pool)
{
    uint64_t generation;

    assert_int_equal(put(g->c, "key", LEN), KVP_OK);
    generation = place_of(g->c, "key").generation;
    peer_forget(g->na);
    tell(g->c, "key", generation);
    g->na = node_open(g->w, g->a);
    world_pump(g->w);
    assert_int_equal(g->na->checks_n, 0);
}

RIG_TEST_ON(test_told_of_one_of_two_copies, .size = 64 * LEN, .mems = 2)
{
    kvp_wire_loc_t loc;
    uint32_t copies;

    assert_int_equal(put_as(g->c, "key", HOLLOW, KVP_PIN_NONE, 2), KVP_OK);
    loc = place_of(g->c, "key");
    (loc.segment_id == g->a->segment_id ? g->a : g->b)->hollow_part = HOLLOW;
    tell(g->c, "key", loc.generation);
    assert_true(found(g->c, "key", &copies) != 0);
    assert_int_equal(copies, 1);
    assert_int_not_equal(place_of(g->c, "key").segment_id, loc.segment_id);
}

/* Though nobody says anything. */
RIG_TEST(test_hard_pinned_is_checked, pool)
{
    g->a->hollow_part = HOLLOW;
    for (uint32_t i = 0; i < 2000; i++)
        assert_int_equal(put_as(g->c, key_name("hollow", i), HOLLOW, KVP_PIN_HARD, 1), KVP_OK);
    assert_int_equal(put_as(g->c, "sound", LEN, KVP_PIN_HARD, 1), KVP_OK);
    assert_int_equal(g->na->checks_n, 2001);
    assert_int_equal(world_stats(g->w).unreadable, 2000);
    assert_true(exists(g->c, "sound"));
    assert_int_equal(world_stats(g->w).hard_pinned_bytes, LEN);
}

/* However many there are. */
RIG_TEST(test_hard_pinned_while_the_node_is_away, pool)
{
    g->a->hollow_part = HOLLOW;
    g->na->policy = NODE_MUTE;
    for (uint32_t i = 0; i < 600; i++)
        assert_int_equal(put_as(g->c, key_name("hollow", i), HOLLOW, KVP_PIN_HARD, 1), KVP_OK);
    peer_forget(g->na);
    g->na = node_open(g->w, g->a);
    world_advance(g->w, SEC);
    assert_int_equal(g->na->checks_n, 600);
    assert_int_equal(world_stats(g->w).unreadable, 600);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
}

RIG_TEST(test_node_that_leaves_checks_out, pool)
{
    g->a->is_check_ignored = true;
    assert_int_equal(put_as(g->c, "pinned", LEN, KVP_PIN_HARD, 1), KVP_OK);
    assert_int_equal(put(g->c, "other", LEN), KVP_OK);
    assert_false(g->na->was_closed);
    (void)remove_begun(g->c, "other", true);
    world_pump(g->w);
    assert_true(g->na->was_closed);
    g->a->is_check_ignored = false;
    peer_forget(g->na);
    g->na = node_open(g->w, g->a);
    world_advance(g->w, SEC);
    assert_false(g->na->was_closed);
    assert_true(exists(g->c, "pinned"));
}

TEST_MAIN()
