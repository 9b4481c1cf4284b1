/* SPDX-License-Identifier: Apache-2.0
 * What counts as a use, and in which order objects go: a look-up alone is none, followed by a get or a put it is one,
 * and what was reserved when its turn came goes as soon as it is not. All objects have one length, so that eviction
 * follows the order of uses exactly. */
#include "tests/world/world.h"

#include "common/mutate.h"

#include <stdio.h>

#ifdef KVP_MUTATIONS
kvp_rule_t kvp_rule_off = KVP_RULE_LOOKUP_IS_NO_USE; /* as it was meant to be: something here fails (meson.build) */
#endif

#define LEN (8 * KIB)
#define BLOCKS 128u /* in the pool */

/* A pool that "old0", the oldest, and so on fill. */
static world_t *
full_world(peer_t **c_out)
{
    world_t *w = world_open(&(kvp_master_conf_t){.lease_ns = 60 * SEC});

    w->check_every = 1;
    (void)node_open(w, mem_make(w, "n1", BLOCKS * LEN, BLOCKS * LEN));
    *c_out = client_open(w);
    for (uint32_t i = 0; i < BLOCKS; i++)
        assert_int_equal(put(*c_out, key_name("old", i), LEN), KVP_OK);
    return w;
}

static void
put_new(peer_t *c, const char *prefix, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(put(c, key_name(prefix, i), LEN), KVP_OK);
}

static void
use(peer_t *c, const char *key)
{
    uint64_t ticket;

    assert_int_equal(get(c, key, &ticket, NULL), KVP_OK);
    release(c, ticket);
}

/* All of up to three keys are asked for, and reserved as far as they are there. */
static uint64_t
reserve(peer_t *c, const char *first, const char *second, const char *third)
{
    const char *keys[] = {first, second, third};
    Kvp__Pb__LookupReply told;

    return lookup(c, keys, third != NULL ? 3 : second != NULL ? 2 : 1, true, 0, &told, NULL);
}

/* What goes next, and nothing else. */
static void
expect_next(peer_t *c, const char *key)
{
    uint64_t evictions = world_stats(c->world).evictions;
    char filler[32];

    snprintf(filler, sizeof filler, "filler%u", (uint32_t)evictions);
    assert_true(exists(c, key));
    assert_int_equal(put(c, filler, LEN), KVP_OK);
    assert_int_equal(world_stats(c->world).evictions, evictions + 1);
    assert_false(exists(c, key));
}

/* ---- what is no use */
TEST(test_lookups_alone_keep_nothing)
{
    peer_t *c;
    world_t *w = full_world(&c);

    for (uint32_t i = 0; i < 100; i++)
        release(c, reserve(c, "old0", NULL, NULL));
    use(c, "old1");
    expect_next(c, "old0");
    expect_next(c, "old2");
    world_close(w);
}

TEST(test_lookup_that_expires_is_no_use)
{
    peer_t *c;
    world_t *w = full_world(&c);

    (void)reserve(c, "old0", NULL, NULL);
    world_advance(w, 61 * SEC);
    expect_next(c, "old0");
    world_close(w);
}

/* Reservations of which each names what the next one ends with: a use that came of asking makes no other. */
TEST(test_lookups_do_not_renew_one_another)
{
    uint64_t first, second;
    peer_t *c;
    world_t *w = full_world(&c);

    first = reserve(c, "old1", "old2", NULL);
    second = reserve(c, "old0", "old1", NULL);
    use(c, "old2");
    release(c, first); /* old1 is used, for old2 was read */
    release(c, second);
    expect_next(c, "old0");
    expect_next(c, "old3");
    assert_true(exists(c, "old1"));
    world_close(w);
}

TEST(test_lookup_and_probe_alone_keep_nothing)
{
    peer_t *c;
    world_t *w = full_world(&c);

    assert_true(probe(c, "old0")); /* the first one is a use */
    for (uint32_t i = 1; i < BLOCKS; i++)
        use(c, key_name("old", i));
    for (uint32_t i = 0; i < 10; i++) {
        uint64_t ticket = reserve(c, "old0", NULL, NULL);

        assert_true(probe(c, "old0"));
        release(c, ticket);
    }
    world_advance(w, 61 * SEC); /* it protects nothing any more */
    expect_next(c, "old0");
    world_close(w);
}

/* ---- what is one */
TEST(test_lookup_and_get_are_one_use)
{
    uint64_t ticket;
    peer_t *c;
    world_t *w = full_world(&c);

    ticket = reserve(c, "old0", NULL, NULL);
    use(c, "old0");
    use(c, "old1");
    release(c, ticket); /* now it would be younger than the other one */
    put_new(c, "new", BLOCKS - 2);
    expect_next(c, "old0");
    assert_true(exists(c, "old1"));
    world_close(w);
}

/* Its head was in the reader's own memory, and without it the rest is worth nothing. */
TEST(test_lookup_is_a_use_where_the_last_was_read)
{
    uint64_t ticket;
    peer_t *c;
    world_t *w = full_world(&c);

    ticket = reserve(c, "old0", "old1", "old2");
    use(c, "old2");
    release(c, ticket);
    expect_next(c, "old3");
    put_new(c, "new", 50);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(exists(c, key_name("old", i)));
    world_close(w);
}

TEST(test_lookup_is_none_where_only_the_first_was_read)
{
    uint64_t ticket;
    peer_t *c;
    world_t *w = full_world(&c);

    ticket = reserve(c, "old0", "old1", "old2");
    use(c, "old0");
    release(c, ticket);
    expect_next(c, "old1");
    expect_next(c, "old2");
    world_close(w);
}

/* Whoever looks up for others puts nothing himself. */
TEST(test_lookup_is_a_use_where_the_rest_was_put)
{
    uint64_t ticket;
    peer_t *c, *worker;
    world_t *w = full_world(&c);

    worker = client_open(w);
    ticket = reserve(c, "old0", "old1", "rest");
    assert_int_equal(put(worker, "rest", LEN), KVP_OK); /* in place of old2 */
    release(c, ticket);
    ticket = reserve(c, "old3", "old4", "other rest");
    release(c, ticket);
    expect_next(c, "old3");
    expect_next(c, "old4");
    put_new(c, "new", 50);
    assert_true(exists(c, "old0"));
    assert_true(exists(c, "old1"));
    world_close(w);
}

/* What was put before is not the rest of what was found later. */
TEST(test_lookup_is_none_where_the_hole_was_being_put)
{
    put_t one = {.key = "rest", .len = LEN};
    peer_t *c;
    uint64_t ticket;
    world_t *w = full_world(&c);
    places_t places;

    places_read(peer_wait(c, put_begin(c, &one, 1, 1000), SEC), &places); /* in place of old0 */
    places_free(&places);
    ticket = reserve(c, "old1", "rest", NULL);
    release(c, ticket);
    expect_next(c, "old1");
    world_close(w);
}

TEST(test_known_location_that_is_reserved_is_used)
{
    Kvp__Pb__Used head = KVP__PB__USED__INIT;
    kvp_wire_used_t used = {.reads = 1};
    uint64_t ticket;
    peer_t *c;
    world_t *w = full_world(&c);

    ticket = reserve(c, "old0", NULL, NULL);
    used.digest = digest_of(w, "old0");
    head.n = 1;
    (void)peer_send(c, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, &used, sizeof used);
    release(c, ticket);
    expect_next(c, "old1");
    world_close(w);
}

/* ---- reserved when its turn comes */
TEST(test_reserved_goes_next_when_it_is_released)
{
    uint64_t ticket;
    peer_t *c;
    world_t *w = full_world(&c);

    ticket = reserve(c, "old0", NULL, NULL);
    expect_next(c, "old1");
    assert_int_equal(world_stats(w).ticket_asides, 1);
    release(c, ticket);
    expect_next(c, "old0");
    expect_next(c, "old2");
    world_close(w);
}

TEST(test_reserved_come_back_in_the_order_of_their_uses)
{
    uint64_t tickets[3];
    peer_t *c;
    world_t *w = full_world(&c);

    for (uint32_t i = 0; i < 3; i++)
        tickets[i] = reserve(c, key_name("old", i), NULL, NULL);
    expect_next(c, "old3");
    assert_int_equal(world_stats(w).ticket_asides, 3);
    release(c, tickets[1]);
    release(c, tickets[0]);
    release(c, tickets[2]);
    for (uint32_t i = 0; i < 3; i++)
        expect_next(c, key_name("old", i));
    world_close(w);
}

/* It stays aside as long as somebody has a ticket, and a read meanwhile is its last use. */
TEST(test_reserved_and_set_aside_then_read)
{
    uint64_t ticket, again;
    peer_t *c;
    world_t *w = full_world(&c);

    ticket = reserve(c, "old0", NULL, NULL);
    again = reserve(c, "old0", NULL, NULL);
    expect_next(c, "old1");
    release(c, ticket);
    expect_next(c, "old2");
    use(c, "old0");
    release(c, again);
    put_new(c, "new", BLOCKS - 1); /* all but this one */
    assert_int_equal(world_stats(w).ticket_asides, 1);
    expect_next(c, "old0");
    world_close(w);
}

/* A quarter of the pool, by five clients: eviction meets each of them once, however much goes meanwhile. */
TEST(test_reserved_are_met_once)
{
    enum { EACH = BLOCKS / 20, CLIENTS = 5 };
    peer_t *c;
    world_t *w = full_world(&c);
    uint64_t tickets[CLIENTS * EACH];
    peer_t *clients[CLIENTS];

    for (uint32_t i = 0; i < CLIENTS * EACH; i++) {
        if (i % EACH == 0) clients[i / EACH] = client_open(w);
        tickets[i] = reserve(clients[i / EACH], key_name("old", i), NULL, NULL);
        assert_int_not_equal(tickets[i], 0);
    }
    put_new(c, "new", 500);
    assert_int_equal(world_stats(w).ticket_asides, CLIENTS * EACH);
    for (uint32_t i = 0; i < CLIENTS * EACH; i++)
        release(clients[i / EACH], tickets[i]);
    put_new(c, "newer", CLIENTS * EACH);
    for (uint32_t i = 0; i < CLIENTS * EACH; i++)
        assert_false(exists(c, key_name("old", i)));
    assert_true(exists(c, key_name("new", 499)));
    world_close(w);
}

TEST(test_reserved_that_was_probed_goes_when_both_are_over)
{
    uint64_t ticket;
    peer_t *c;
    world_t *w = full_world(&c);

    assert_true(probe(c, "old0"));
    world_advance(w, SEC);
    for (uint32_t i = 1; i < BLOCKS; i++)
        use(c, key_name("old", i));
    expect_next(c, "old1"); /* the probed one is aside */
    (void)reserve(c, "old0", NULL, NULL);
    world_advance(w, 40 * SEC);
    ticket = reserve(c, "old0", NULL, NULL);
    world_advance(w, 30 * SEC);
    expect_next(c, "old2"); /* the probe is over, and so is the first look-up */
    release(c, ticket);
    expect_next(c, "old0");
    world_close(w);
}

/* A window of thousands of neighbours, of which one in the middle is held before its turn comes. */
TEST(test_held_in_a_window_lasts)
{
    enum { N = 16000 };
    uint64_t ticket;
    peer_t *n, *c;
    world_t *w = world_open(&(kvp_master_conf_t){0});
    put_t one = {.key = "large", .len = 7 * MIB / 2};
    places_t places;
    uint64_t id;

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
    world_close(w);
}

/* ---- groups and tenants */
static void
put_group(peer_t *c, const char *name, uint32_t members)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    for (uint32_t i = 0; i < members; i++) {
        put_t one = {.key = key_name(name, i), .len = LEN, .group = group_of(c, name, members, i)};

        assert_int_equal(put_like(c, &one, &head), KVP_OK);
    }
}

static uint64_t
reserve_group(peer_t *c, const char *first, const char *second)
{
    const char *names[] = {first, second};
    Kvp__Pb__LookupReply told;

    return lookup_groups(c, names, second == NULL ? 1 : 2, true, 0, &told, NULL);
}

/* A group of four is the oldest there is. */
static world_t *
group_world(peer_t **c_out)
{
    world_t *w = world_open(&(kvp_master_conf_t){.lease_ns = 60 * SEC});

    w->check_every = 1;
    (void)node_open(w, mem_make(w, "n1", BLOCKS * LEN, BLOCKS * LEN));
    *c_out = client_open(w);
    put_group(*c_out, "group", 4);
    put_new(*c_out, "old", BLOCKS - 4);
    return w;
}

static uint32_t
members_left(peer_t *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < 4; i++)
        n += exists(c, key_name("group", i));
    return n;
}

TEST(test_group_that_is_only_looked_up_goes_in_its_turn)
{
    uint64_t ticket;
    peer_t *c;
    world_t *w = group_world(&c);

    for (uint32_t i = 0; i < 100; i++) {
        release(c, reserve_group(c, "group", NULL));
        release(c, reserve(c, "group0", "group1", NULL));
    }
    ticket = reserve_group(c, "group", NULL);
    expect_next(c, "old0");
    release(c, ticket);
    ticket = reserve(c, "group3", NULL, NULL); /* what keeps one member keeps all */
    expect_next(c, "old1");
    release(c, ticket);
    put_new(c, "new", 1);
    assert_int_equal(members_left(c), 0);
    assert_true(exists(c, "old2"));
    world_close(w);
}

TEST(test_group_is_used_once_by_lookup_and_read)
{
    uint64_t ticket;
    peer_t *c;
    world_t *w = group_world(&c);

    ticket = reserve_group(c, "group", NULL);
    use(c, "group1");
    use(c, "old0");
    release(c, ticket);
    put_new(c, "new", BLOCKS - 5);
    assert_int_equal(members_left(c), 4);
    put_new(c, "newer", 1);
    assert_int_equal(members_left(c), 0);
    assert_true(exists(c, "old0"));
    world_close(w);
}

TEST(test_group_is_used_where_the_next_was_put)
{
    uint64_t ticket;
    peer_t *c;
    world_t *w = group_world(&c);

    ticket = reserve_group(c, "group", "next");
    put_group(c, "next", 2);
    release(c, ticket);
    put_new(c, "new", 50);
    assert_int_equal(members_left(c), 4);
    world_close(w);
}

/* Tenants take chunks from one another by the age of what they have: what others reserve of theirs does not hide the
 * rest of it, and goes as if nobody had looked it up. */
TEST(test_tenant_whose_oldest_are_reserved_gives_what_comes_next)
{
    enum { CHUNKS = 20, IN_CHUNK = 32, CLIENTS = 5, EACH = CHUNKS * IN_CHUNK / 20 };
    world_t *w = world_open(&(kvp_master_conf_t){.seed = 3, .lease_ns = 60 * SEC});
    peer_t *idle, *c, *readers[CLIENTS];

    w->check_every = 64;
    (void)node_open(w, mem_make(w, "n1", CHUNKS * IN_CHUNK * LEN, IN_CHUNK * LEN));
    idle = client_open_of(w, 1);
    c = client_open_of(w, 2);
    put_new(idle, "idle", (CHUNKS - 2) * IN_CHUNK);
    for (uint32_t i = 0; i < CLIENTS * EACH; i++) {
        if (i % EACH == 0) readers[i / EACH] = client_open_of(w, 1);
        assert_int_not_equal(reserve(readers[i / EACH], key_name("idle", i), NULL, NULL), 0);
    }
    for (uint32_t i = 0; i < 8 * IN_CHUNK; i++)
        assert_int_equal(put_wait(c, key_name("mine", i), LEN, 2000), KVP_OK);
    assert_true(world_stats(w).chunks_taken > 0);
    for (uint32_t i = 0; i < CLIENTS * EACH; i++)
        assert_true(exists(idle, key_name("idle", i)));
    for (uint32_t i = 0; i < CLIENTS; i++)
        peer_forget(readers[i]);
    put_new(idle, "idler", CLIENTS * EACH / 2);
    assert_false(exists(idle, "idle0"));
    world_close(w);
}

TEST_MAIN()
