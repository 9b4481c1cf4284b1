/* SPDX-License-Identifier: Apache-2.0
 * Space between tenants: the pool's hits are nearly those of one list over everything, and chunks do not go back and
 * forth. */
#include "tests/world/world.h"

#include <stdio.h>

#define KEY_LEN 24
#define LEN (8 * KIB)
#define CHUNK (256 * KIB)
#define CHUNKS 20u
#define EACH (uint32_t)(CHUNK / LEN) /* objects in a chunk */
#define ROOM (CHUNKS * EACH)

static world_t *
share_world(uint32_t chunks)
{
    world_t *w = world_open(&(kvp_master_conf_t){.seed = 3});

    w->check_every = 64;
    (void)node_open(w, mem_make(w, "n1", chunks * CHUNK, CHUNK));
    return w;
}

static void
fill(peer_t *c, const char *prefix, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(put(c, key_name(prefix, i), LEN), KVP_OK);
}

/* Reads the key, and puts it where that was a miss. True = it was a hit. */
static bool
use(peer_t *c, const char *prefix, uint64_t i)
{
    char key[KEY_LEN];
    uint64_t ticket;

    snprintf(key, sizeof key, "%s%u", prefix, (uint32_t)i);
    if (get(c, key, &ticket, NULL) == KVP_OK) {
        release(c, ticket);
        return true;
    }
    assert_int_equal(put_wait(c, key, LEN, 2000), KVP_OK);
    return false;
}

static uint32_t
use_at_random(peer_t *c, const char *prefix, uint32_t keys, uint32_t times)
{
    uint32_t hits = 0;

    for (uint32_t i = 0; i < times; i++)
        hits += use(c, prefix, world_below(c->world, keys));
    return hits;
}

static uint32_t
chunks_of(peer_t *c)
{
    Kvp__Pb__StatusReply *head;
    kvp_pb_t pb;
    reply_t *r = peer_reply(c, peer_send(c, KVP_OP_STATUS, 0, NULL, NULL, 0));
    uint32_t n;

    head = kvp_pb_unpack(&pb, &kvp__pb__status_reply__descriptor, &r->frame);
    assert_non_null(head);
    n = head->tenants[0]->chunks;
    kvp_pb_free(&pb, head);
    reply_free(r);
    return n;
}

/* ---- one is idle and has nearly all, another comes with a working set of most of the pool */
#define WORKING_SET (ROOM * 8 / 10)
#define PASSES 8u

/* The hits of the newcomer's last pass, where both are the tenants given. */
static uint32_t
newcomer_hits(uint32_t idle_tenant, uint32_t tenant)
{
    world_t *w = share_world(CHUNKS);
    peer_t *idle = client_open_of(w, idle_tenant), *c = client_open_of(w, tenant);
    uint32_t hits = 0;

    fill(idle, "idle", (CHUNKS - 1) * EACH);
    for (uint32_t pass = 0; pass < PASSES; pass++)
        hits = use_at_random(c, "mine", WORKING_SET, WORKING_SET);
    if (idle_tenant != tenant) {
        assert_in_range(chunks_of(c), CHUNKS * 7 / 10, CHUNKS - 1);
        assert_true(chunks_of(idle) >= 1);
        assert_int_equal(world_stats(w).chunks_taken, CHUNKS - 1 - chunks_of(idle));
    }
    world_close(w);
    return hits;
}

TEST(test_newcomer_has_the_hits_of_one_list_over_everything)
{
    uint32_t alone = newcomer_hits(1, 1), apart = newcomer_hits(1, 2);

    assert_true(alone > WORKING_SET * 9 / 10);
    if (apart * 10 < alone * 9) fail_msg("%u hits, and one tenant has %u", apart, alone);
}

TEST(test_idle_tenant_keeps_its_last_chunk)
{
    world_t *w = share_world(4);
    peer_t *idle = client_open_of(w, 1), *c = client_open_of(w, 2);

    fill(idle, "idle", 3 * EACH);
    for (uint32_t i = 0; i < 20 * EACH; i++)
        (void)use(c, "mine", i);
    assert_int_equal(chunks_of(idle), 1);
    assert_int_equal(chunks_of(c), 3);
    assert_int_equal(world_stats(w).chunks_taken, 2);
    world_close(w);
}

/* However little is in it. */
TEST(test_idle_tenant_keeps_a_chunk_with_one_object)
{
    world_t *w = share_world(2);
    peer_t *idle = client_open_of(w, 1), *c = client_open_of(w, 2);

    fill(idle, "idle", 1);
    for (uint32_t i = 0; i < 4 * EACH; i++)
        (void)use(c, "mine", i);
    assert_true(exists(idle, "idle0"));
    assert_int_equal(world_stats(w).chunks_taken, 0);
    world_close(w);
}

/* Of what the other has, that goes which was not used for longest. */
TEST(test_newcomer_takes_what_is_coldest)
{
    world_t *w = share_world(4);
    peer_t *other = client_open_of(w, 1), *c = client_open_of(w, 2);

    fill(other, "their", 3 * EACH);
    for (uint32_t i = 0; i < 4 * EACH; i++) {
        (void)use(c, "mine", i);
        assert_true(use(other, "their", i % EACH)); /* one chunk of theirs is in use all the time */
        assert_true(use(other, "their", 2 * EACH + i % EACH)); /* and another */
    }
    assert_int_equal(chunks_of(c), 2);
    for (uint32_t i = EACH; i < 2 * EACH; i++)
        assert_false(exists(other, key_name("their", i)));
    world_close(w);
}

/* An object that nobody wants any more does not cost the others in its chunk, which are wanted. */
TEST(test_chunk_stays_for_one_stale_object)
{
    world_t *w = share_world(4);
    peer_t *other = client_open_of(w, 1), *c = client_open_of(w, 2);

    fill(other, "their", 3 * EACH);
    for (uint32_t i = 0; i < 6 * EACH; i++) {
        (void)use(c, "mine", i);
        for (uint32_t k = 0; k < 4; k++)
            assert_true(use(other, "their", 1 + (4 * i + k) % (3 * EACH - 1)));
        world_advance(w, 50 * MS); /* so that what was left alone is looked at again */
    }
    assert_int_equal(world_stats(w).chunks_taken, 0);
    assert_int_equal(chunks_of(c), 1);
    world_close(w);
}

/* What another uses all the time, but has far too many chunks for, is put into fewer. */
TEST(test_newcomer_gets_what_another_has_freed)
{
    world_t *w = share_world(8);
    peer_t *other = client_open_of(w, 1), *c = client_open_of(w, 2);

    fill(other, "their", 7 * EACH);
    for (uint32_t i = 0; i < 7 * EACH; i++)
        if (i % 8 != 0) assert_int_equal(remove_key(other, key_name("their", i), false), KVP_OK);
    assert_int_equal(chunks_of(other), 7);
    for (uint32_t i = 0; i < 16 * EACH; i++) {
        (void)use(c, "mine", i);
        (void)use(other, "their", i * 8ull % (7 * EACH));
    }
    assert_true(chunks_of(other) <= 2);
    assert_true(chunks_of(c) >= 6);
    for (uint32_t i = 0; i < 7 * EACH; i += 8)
        assert_true(exists(other, key_name("their", i)));
    world_close(w);
}

/* ---- two that are equally active */
TEST(test_equals_settle_near_half_each)
{
    enum { KEYS = ROOM * 8 / 10, TIMES = 200 };
    world_t *w = share_world(CHUNKS);
    peer_t *a = client_open_of(w, 1), *b = client_open_of(w, 2);
    kvp_master_stats_t before, after;
    uint64_t puts, taken;

    fill(a, "a", (CHUNKS - 1) * EACH);
    for (uint32_t i = 0; i < TIMES; i++) {
        (void)use_at_random(a, "a", KEYS, EACH);
        (void)use_at_random(b, "b", KEYS, EACH);
    }
    assert_in_range(chunks_of(a), CHUNKS / 2 - 2, CHUNKS / 2 + 2);
    assert_in_range(chunks_of(b), CHUNKS / 2 - 2, CHUNKS / 2 + 2);
    before = world_stats(w);
    for (uint32_t i = 0; i < TIMES; i++) {
        (void)use_at_random(a, "a", KEYS, EACH);
        (void)use_at_random(b, "b", KEYS, EACH);
    }
    after = world_stats(w);
    puts = after.commits - before.commits;
    taken = after.chunks_taken - before.chunks_taken;
    assert_true(puts > TIMES * EACH / 4);
    assert_true(taken * 20 * EACH < puts); /* of twenty chunks that are put one at most changes hands */
    assert_in_range(chunks_of(a), CHUNKS / 2 - 2, CHUNKS / 2 + 2);
    world_close(w);
}

/* Three chunks cannot be halved: who has one would have two, and the other would want it back. */
TEST(test_equals_leave_an_odd_chunk_where_it_is)
{
    world_t *w = share_world(3);
    peer_t *a = client_open_of(w, 1), *b = client_open_of(w, 2);

    fill(a, "a", 2 * EACH);
    for (uint32_t i = 0; i < 40 * EACH; i++) {
        (void)use_at_random(a, "a", 4 * EACH, 1);
        (void)use_at_random(b, "b", 4 * EACH, 1);
    }
    assert_in_range(world_stats(w).chunks_taken, 0, 1);
    world_close(w);
}

/* ---- what is not taken */
TEST(test_chunks_with_pins_and_holds_stay)
{
    Kvp__Pb__PutBegin pinned = KVP__PB__PUT_BEGIN__INIT;
    world_t *w = share_world(4);
    peer_t *idle = client_open_of(w, 1), *c = client_open_of(w, 2);
    uint64_t ticket;

    pinned.pin = KVP_PIN_HARD;
    for (uint32_t i = 0; i < 3 * EACH; i++) {
        char key[KEY_LEN];
        put_t one = {.key = key, .len = LEN};

        snprintf(key, sizeof key, "idle%u", i);
        assert_int_equal(i == 0 ? put_like(idle, &one, &pinned) : put(idle, key, LEN), KVP_OK);
    }
    assert_int_equal(get(idle, key_name("idle", EACH), &ticket, NULL), KVP_OK);
    assert_int_equal(get(idle, key_name("idle", 2 * EACH), &ticket, NULL), KVP_OK);
    for (uint32_t i = 0; i < 4 * EACH; i++) {
        (void)use(c, "mine", i);
        world_advance(w, 50 * MS); /* it gives up, and looks again */
    }
    assert_int_equal(world_stats(w).chunks_taken, 0);
    for (uint32_t i = 0; i < 3 * EACH; i++)
        assert_true(exists(idle, key_name("idle", i)));
    world_close(w);
}

/* A put of a batch that is larger than all that the newcomer may have takes one chunk at a time. */
TEST(test_newcomer_with_many_puts_takes_one_chunk_for_them)
{
    world_t *w = share_world(4);
    peer_t *idle = client_open_of(w, 1), *c = client_open_of(w, 2);
    put_t puts[8];
    char keys[8][KEY_LEN];
    places_t places;

    fill(idle, "idle", 4 * EACH - 2);
    for (uint32_t i = 0; i < 8; i++) {
        snprintf(keys[i], sizeof keys[i], "mine%u", i);
        puts[i] = (put_t){.key = keys[i], .len = LEN};
    }
    places_read(peer_wait(c, put_begin(c, puts, 8, 2000), 3 * SEC), &places);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(places.objs[i].err, KVP_OK);
    places_free(&places);
    assert_int_equal(chunks_of(c), 1);
    assert_int_equal(chunks_of(idle), 3);
    world_close(w);
}

/* The reserve is kept where it is of use: what is free in a chunk of another does not count. */
TEST(test_puts_find_a_reserve_of_their_own)
{
    world_t *w = share_world(2);
    peer_t *other = client_open_of(w, 1), *c = client_open_of(w, 2);

    fill(other, "their", 1);
    for (uint32_t i = 0; i < 2000; i++)
        assert_int_equal(put(c, key_name("mine", i), 500), KVP_OK);
    assert_true(world_stats(w).evictions > 1000);
    assert_true(world_stats(w).evict_foreground < 10);
    world_close(w);
}

/* ---- when something dies meanwhile. Nodes take their time, so that a chunk is under way for long. */
TEST(test_take_when_its_taker_or_its_node_goes)
{
    enum { STEPS = 4000 };
    world_t *w = world_open(&(kvp_master_conf_t){.seed = 11, .node_grace_ns = 200 * MS});
    mem_t *mems[2] = {mem_make(w, "n1", 3 * CHUNK, CHUNK), mem_make(w, "n2", 3 * CHUNK, CHUNK)};
    peer_t *nodes[2], *clients[3];

    w->check_every = 5;
    for (uint32_t i = 0; i < 2; i++)
        nodes[i] = node_open_on(w, mems[i], i == 0 ? "host1" : "host2");
    for (uint32_t i = 0; i < 3; i++)
        clients[i] = client_open_of(w, i + 1);
    for (uint32_t i = 0; i < 2; i++) {
        nodes[i]->policy = NODE_FREE_LATER;
        nodes[i]->free_ns = 20 * MS;
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t t = i / 200 % 3, n = (uint32_t)world_below(w, 2);
        char key[KEY_LEN];

        snprintf(key, sizeof key, "key%u", i);
        kvp_ignore(put_wait(clients[t], key, LEN, 300), "while a node is away there may be no room");
        if (world_below(w, 60) == 0) {
            peer_forget(clients[t]);
            clients[t] = client_open_of(w, t + 1);
        }
        if (world_below(w, 300) == 0) {
            peer_forget(nodes[n]);
            world_advance(w, world_below(w, 400) * MS);
            mem_remake(w, mems[n]);
            nodes[n] = node_open_on(w, mems[n], n == 0 ? "host1" : "host2");
            nodes[n]->policy = NODE_FREE_LATER;
            nodes[n]->free_ns = 20 * MS;
        }
    }
    assert_true(world_stats(w).chunks_taken > 10);
    world_close(w);
}

/* Everything that an object can be, in chunks that change hands: groups, new versions, pins, probes, what is removed or
 * held. The master's own check is the judge. */
TEST(test_take_when_objects_are_of_all_kinds)
{
    enum { STEPS = 3000 };
    world_t *w = share_world(6);
    peer_t *clients[2] = {client_open_of(w, 1), client_open_of(w, 2)};
    uint64_t ticket = 0;

    w->check_every = 5;
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t t = i / 300 % 2, key_i = (uint32_t)world_below(w, 400);
        Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
        char key[KEY_LEN], group[KEY_LEN];
        put_t one = {.key = key, .len = 1 + world_below(w, 2 * LEN)};

        snprintf(key, sizeof key, "k%u", key_i);
        snprintf(group, sizeof group, "g%u", key_i / 4);
        if (key_i % 3 == 0) one.group = group_of(clients[t], group, key_i < 200 ? 0 : 4, key_i < 200 ? 0 : key_i % 4);
        like.is_upsert = world_below(w, 4) == 0;
        like.pin = world_below(w, 40) == 0 ? KVP_PIN_SOFT : KVP_PIN_NONE;
        like.wait_ms = 200;
        kvp_ignore(put_like(clients[t], &one, &like), "its group may be full, or nothing may go");
        if (world_below(w, 5) == 0) (void)probe(clients[t], key);
        if (world_below(w, 9) == 0) kvp_ignore(remove_key(clients[t], key, false), "it may be held");
        if (world_below(w, 20) == 0) world_advance(w, world_below(w, 3) * SEC);
        if (ticket != 0) release(clients[1 - t], ticket);
        if (get(clients[1 - t], key, &ticket, NULL) != KVP_OK) ticket = 0;
    }
    assert_true(world_stats(w).chunks_taken > 2);
    assert_true(world_stats(w).group_evictions > 0);
    world_close(w);
}

TEST_MAIN()
