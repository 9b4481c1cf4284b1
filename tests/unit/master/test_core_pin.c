/* SPDX-License-Identifier: Apache-2.0
 * Pins: what is pinned softly goes last, and not beyond its budget, what is pinned hard not at all. */
#include "tests/unit/master/rig.h"

#include "master/core/base/slab.h"

#define LEN (16 * KIB)

static const rig_conf_t pool = {.size = 64 * LEN};

static kvp_err_t
put_pinned(peer_t *c, const char *key, kvp_pin_t pin)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    head.pin = pin;
    head.wait_ms = 500;
    return put_like(c, &(put_t){.key = key, .len = LEN}, &head);
}

static void
put_many(peer_t *c, const char *prefix, uint32_t n, kvp_pin_t pin)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(put_pinned(c, key_name(prefix, i), pin), KVP_OK);
}

RIG_TEST(test_soft_when_over_the_budget, pool)
{
    put_many(g->c, "soft", 40, KVP_PIN_SOFT);
    assert_int_equal(world_stats(g->w).pins_lost, 24);
    assert_int_equal(world_stats(g->w).soft_pinned_bytes, 16 * LEN);
    assert_int_equal(count_of(g->c, "soft", 0, 40), 40); /* ordinary objects, that is all */
    put_many(g->c, "plain", 200, KVP_PIN_NONE);
    assert_int_equal(count_of(g->c, "soft", 0, 24), 0);
    assert_int_equal(count_of(g->c, "soft", 24, 40), 16);
}

RIG_TEST(test_soft_when_it_lost_the_pin_counts_as_used, pool)
{
    put_many(g->c, "plain", 40, KVP_PIN_NONE);
    put_many(g->c, "soft", 17, KVP_PIN_SOFT);
    assert_int_equal(world_stats(g->w).pins_lost, 1);
    put_many(g->c, "more", 40, KVP_PIN_NONE);
    assert_int_equal(count_of(g->c, "plain", 0, 40), 7);
    assert_int_equal(count_of(g->c, "soft", 0, 17), 17);
}

RIG_TEST(test_soft_when_nothing_else_can_go, pool)
{
    put_many(g->c, "hard", 48, KVP_PIN_HARD);
    put_many(g->c, "soft", 16, KVP_PIN_SOFT);
    assert_int_equal(count_of(g->c, "soft", 0, 16), 16);
    assert_int_equal(put_pinned(g->c, "a", KVP_PIN_NONE), KVP_OK);
    assert_int_equal(put_pinned(g->c, "b", KVP_PIN_NONE), KVP_OK); /* in the place of a */
    assert_false(exists(g->c, "a"));
    assert_false(exists(g->c, "soft0"));
    assert_int_equal(count_of(g->c, "soft", 1, 16), 15);
    assert_int_equal(count_of(g->c, "hard", 0, 48), 48);
}

RIG_TEST(test_soft_when_there_are_probed_objects, pool)
{
    put_many(g->c, "soft", 16, KVP_PIN_SOFT);
    put_many(g->c, "plain", 48, KVP_PIN_NONE);
    for (uint32_t i = 0; i < 48; i++)
        assert_true(probe(g->c, key_name("plain", i)));
    world_advance(g->w, SEC); /* old enough to protect all of it */
    put_many(g->c, "new", 4, KVP_PIN_NONE);
    assert_int_equal(count_of(g->c, "soft", 0, 16), 16);
}

RIG_TEST(test_soft_when_it_was_held, pool)
{
    kvp_wire_loc_t loc;
    uint64_t ticket;

    put_many(g->c, "soft", 16, KVP_PIN_SOFT);
    assert_int_equal(get(g->c, "soft0", &ticket, &loc), KVP_OK);
    put_many(g->c, "more", 16, KVP_PIN_SOFT); /* it alone is not on the list of those that lose theirs */
    assert_int_equal(world_stats(g->w).soft_pinned_bytes, 16 * LEN);
    release(g->c, ticket);
    put_many(g->c, "plain", 200, KVP_PIN_NONE);
    assert_true(exists(g->c, "soft0"));
    assert_int_equal(count_of(g->c, "soft", 1, 16), 0);
    assert_int_equal(count_of(g->c, "more", 1, 16), 15);
}

static kvp_err_t
refused_put(peer_t *c, const char *key, char *detail, size_t len)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = key, .len = LEN};
    Kvp__Pb__Places *told;
    places_t places;
    kvp_pb_t pb;
    kvp_err_t err;

    head.wait_ms = 5000;
    places_read(peer_wait(c, put_begin_with(c, &one, 1, &head), 100 * MS), &places);
    err = places.objs[0].err;
    told = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, &places.reply->frame);
    snprintf(detail, len, "%s", told->detail);
    kvp_pb_free(&pb, told);
    places_free(&places);
    return err;
}

RIG_TEST(test_hard_when_the_pool_is_full_of_it, pool)
{
    char detail[200], pinned[32];
    kvp_wire_loc_t loc;
    uint64_t ticket;

    put_many(g->c, "hard", 64, KVP_PIN_HARD);
    assert_int_equal(refused_put(g->c, "one more", detail, sizeof detail), KVP_NO_SPACE); /* and at once */
    snprintf(pinned, sizeof pinned, "%u of these pinned hard", (unsigned)(64 * LEN));
    assert_non_null(strstr(detail, pinned));
    assert_int_equal(get(g->c, "hard3", &ticket, &loc), KVP_OK);
    release(g->c, ticket); /* which makes no victim of it */
    assert_int_equal(refused_put(g->c, "one more", detail, sizeof detail), KVP_NO_SPACE);
    assert_int_equal(remove_key(g->c, "hard7", false), KVP_OK);
    assert_int_equal(put_pinned(g->c, "one more", KVP_PIN_NONE), KVP_OK);
    assert_int_equal(count_of(g->c, "hard", 0, 64), 63);
}

/* The first key finds nothing that may go. The second is answered later, and takes one of the two places of what it
 * replaces: the other one is the first key's, so that may not have been refused for good. */
TEST(test_refusal_when_an_upsert_of_the_same_message_makes_room)
{
    Kvp__Pb__PutBegin twice = KVP__PB__PUT_BEGIN__INIT, upsert = KVP__PB__PUT_BEGIN__INIT;
    world_t *w = world_open(&(kvp_master_conf_t){0});
    put_t both[2] = {{.key = "new", .len = 64 * KIB}, {.key = "pinned", .len = 64 * KIB}};
    places_t places;
    peer_t *c;

    node_open_on(w, mem_make(w, "n1", 64 * KIB, 64 * KIB), "h1");
    node_open_on(w, mem_make(w, "n2", 64 * KIB, 64 * KIB), "h2");
    c = client_open(w);
    twice.replicas = 2;
    twice.pin = KVP_PIN_HARD;
    assert_int_equal(put_like(c, &both[1], &twice), KVP_OK);
    upsert.is_upsert = true;
    upsert.wait_ms = 5000;
    places_read(peer_wait(c, put_begin_with(c, both, 2, &upsert), 100 * MS), &places);
    assert_int_equal(places.objs[0].err, KVP_RETRY_AFTER);
    assert_int_equal(places.objs[1].err, KVP_OK);
    assert_int_equal(world_stats(w).put_retry_after, 1);
    assert_int_equal(world_stats(w).put_no_space, 0);
    places_free(&places);
    assert_int_equal(put_pinned(c, "new", KVP_PIN_NONE), KVP_OK);
    world_close(w);
}

RIG_TEST(test_pin_when_the_object_is_upserted, pool)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    head.is_upsert = true;
    put_many(g->c, "hard", 2, KVP_PIN_HARD);
    assert_int_equal(put_pinned(g->c, "hard0", KVP_PIN_NONE), KVP_ALREADY); /* and stays what it is */
    assert_int_equal(world_stats(g->w).hard_pinned_bytes, 2 * LEN);
    assert_int_equal(put_like(g->c, &(put_t){.key = "hard0", .len = LEN}, &head), KVP_OK);
    assert_int_equal(world_stats(g->w).hard_pinned_bytes, LEN);
    head.pin = KVP_PIN_SOFT;
    assert_int_equal(put_like(g->c, &(put_t){.key = "hard1", .len = LEN}, &head), KVP_OK);
    assert_int_equal(world_stats(g->w).hard_pinned_bytes, 0);
    assert_int_equal(world_stats(g->w).soft_pinned_bytes, LEN);
    put_many(g->c, "plain", 200, KVP_PIN_NONE);
    assert_false(exists(g->c, "hard0"));
    assert_true(exists(g->c, "hard1"));
}

RIG_TEST_ON(test_pin_counts_to_its_tenant, .is_one_tenant_each = true, .size = 64 * LEN, .chunk = 16 * LEN)
{
    Kvp__Pb__TenantInfo info;

    put_many(g->c, "a", 3, KVP_PIN_SOFT);
    put_many(g->d, "b", 2, KVP_PIN_HARD);
    tenant_info(g->c, &info);
    assert_int_equal(info.soft_pinned_bytes, 3 * LEN);
    assert_int_equal(info.hard_pinned_bytes, 0);
    tenant_info(g->d, &info);
    assert_int_equal(info.soft_pinned_bytes, 0);
    assert_int_equal(info.hard_pinned_bytes, 2 * LEN);
    assert_int_equal(remove_key(g->d, "b1", false), KVP_OK);
    tenant_info(g->d, &info);
    assert_int_equal(info.hard_pinned_bytes, LEN);
}

TEST(test_pin_counts_all_copies)
{
    world_t *w = world_open(&(kvp_master_conf_t){.node_grace_ns = SEC});
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    peer_t *n2, *c;

    node_open_on(w, mem_make(w, "n1", 64 * LEN, 64 * LEN), "h1");
    n2 = node_open_on(w, mem_make(w, "n2", 64 * LEN, 64 * LEN), "h2");
    c = client_open(w);
    head.replicas = 2;
    head.pin = KVP_PIN_HARD;
    assert_int_equal(put_like(c, &(put_t){.key = "twice", .len = LEN}, &head), KVP_OK);
    assert_int_equal(world_stats(w).hard_pinned_bytes, 2 * LEN);
    peer_forget(n2);
    world_advance(w, 2 * SEC);
    assert_int_equal(world_stats(w).hard_pinned_bytes, LEN);
    world_close(w);
}

RIG_TEST_ON(test_soft_when_a_node_is_away_for_a_moment, .conf.node_grace_ns = 5 * SEC, .size = 32 * LEN)
{
    mem_t *mem;
    peer_t *n2;

    mem = mem_make(g->w, "n2", 32 * LEN, 32 * LEN);
    n2 = node_open(g->w, mem);
    put_many(g->c, "soft", 16, KVP_PIN_SOFT);
    peer_forget(n2);
    world_advance(g->w, SEC);
    assert_int_equal(world_stats(g->w).pins_lost, 0);
    n2 = node_open(g->w, mem);
    assert_int_equal(count_of(g->c, "soft", 0, 16), 16);
    mem_remake(g->w, mem); /* gone for good: so is half of the budget */
    peer_forget(n2);
    world_advance(g->w, 7 * SEC);
    assert_true(world_stats(g->w).soft_pinned_bytes <= 8 * LEN);
}

TEST_MAIN()
