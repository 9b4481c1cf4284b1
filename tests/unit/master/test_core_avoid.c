/* SPDX-License-Identifier: Apache-2.0
 * Segments that a client asks to be spared, because it does not reach them: they get nothing of its puts while others
 * can take them, and no put is refused for that wish. And segments that it prefers. */
#include "tests/world/world.h"

#define KEY_BYTES 100u

typedef struct {
    world_t *w;
    mem_t *far, *near; /* the client does not reach the first */
    peer_t *far_node, *near_node, *c;
} pair_t;

static pair_t
pair_open(uint64_t far_size, uint64_t near_size)
{
    pair_t p;

    p.w = world_open(&(kvp_master_conf_t){0});
    p.far = mem_make(p.w, "far", far_size, MIB);
    p.far_node = node_open_on(p.w, p.far, "far");
    p.near = mem_make(p.w, "near", near_size, MIB);
    p.near_node = node_open_on(p.w, p.near, "near");
    p.c = client_open(p.w);
    return p;
}

/* Puts a key with that wish; returns where its copies lie, OK or why it was refused. */
static kvp_err_t
put_sparing(pair_t *p, const char *key, uint64_t len, Kvp__Pb__PutBegin like, uint32_t where[2], uint32_t *copies_out)
{
    put_t one = {.key = key, .len = len};
    uint32_t avoid[2] = {p->far->segment_id, 4711}; /* the second is nobody's */
    places_t places;
    kvp_err_t err;

    like.avoid = avoid;
    like.n_avoid = 2;
    like.wait_ms = 200;
    places_read(peer_wait(p->c, put_begin_with(p->c, &one, 1, &like), SEC), &places);
    err = places.objs[0].err;
    *copies_out = places.nloc;
    for (uint32_t i = 0; i < places.nloc; i++) {
        assert_int_equal(write_place(p->w, &places.locs[i]), KVP_OK);
        where[i] = places.locs[i].segment_id;
    }
    if (err == KVP_OK) err = commit_copies(p->c, one.attempt, 1, (1u << places.nloc) - 1);
    places_free(&places);
    return err;
}

static uint32_t
put_one(pair_t *p, const char *key, uint64_t len)
{
    uint32_t where[2] = {0, 0}, n;

    assert_int_equal(put_sparing(p, key, len, (Kvp__Pb__PutBegin)KVP__PB__PUT_BEGIN__INIT, where, &n), KVP_OK);
    assert_int_equal(n, 1);
    return where[0];
}

TEST(test_puts_go_elsewhere)
{
    pair_t p = pair_open(16 * MIB, MIB);

    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(put_one(&p, key_name("k", i), KEY_BYTES), p.near->segment_id);
    world_close(p.w);
}

/* What was used longest ago goes where the client reaches, though there is room where it does not. */
TEST(test_evicts_elsewhere_rather)
{
    pair_t p = pair_open(16 * MIB, MIB);

    for (uint32_t i = 0; i < 24; i++)
        assert_int_equal(put_one(&p, key_name("k", i), MIB / 8), p.near->segment_id);
    assert_true(world_stats(p.w).evictions >= 16);
    assert_false(exists(p.c, key_name("k", 0)));
    assert_true(exists(p.c, key_name("k", 23)));
    world_close(p.w);
}

/* Who asks for one segment gets that one, also where it asks to be spared it, and nothing where that has no room. */
TEST(test_only_is_there_or_nowhere)
{
    pair_t p = pair_open(MIB, 16 * MIB);
    Kvp__Pb__PutBegin far = KVP__PB__PUT_BEGIN__INIT, near = far, nobodys = far;
    uint32_t where[2] = {0, 0}, n;

    far.only = p.far->segment_id;
    near.only = p.near->segment_id;
    nobodys.only = 4711;
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(put_sparing(&p, key_name("f", i), KEY_BYTES, far, where, &n), KVP_OK);
        assert_int_equal(where[0], p.far->segment_id);
        assert_int_equal(put_sparing(&p, key_name("n", i), KEY_BYTES, near, where, &n), KVP_OK);
        assert_int_equal(where[0], p.near->segment_id);
    }
    assert_int_equal(put_sparing(&p, "k", KEY_BYTES, nobodys, where, &n), KVP_NO_SPACE);
    assert_int_equal(n, 0);
    world_close(p.w);
}

TEST(test_alone_it_is_not_spared)
{
    pair_t p = pair_open(MIB, MIB);

    peer_lose(p.near_node);
    assert_int_equal(put_one(&p, "k", KEY_BYTES), p.far->segment_id);
    world_close(p.w);
}

/* Where nothing else can be had the wish is dropped: it is no reason to refuse a put. */
TEST(test_rather_there_than_nowhere)
{
    pair_t p = pair_open(2 * MIB, MIB);
    Kvp__Pb__PutBegin hard = KVP__PB__PUT_BEGIN__INIT;
    uint32_t where[2], n;

    hard.pin = KVP_PIN_HARD;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(put_sparing(&p, key_name("hard", i), MIB / 2, hard, where, &n), KVP_OK);
        assert_int_equal(where[0], p.near->segment_id);
    }
    assert_int_equal(put_one(&p, "k", MIB / 2), p.far->segment_id);
    assert_int_equal(put_one(&p, "l", MIB), p.far->segment_id);
    world_close(p.w);
}

TEST(test_copies_are_on_hosts_that_are_reached)
{
    pair_t p = pair_open(4 * MIB, 4 * MIB);
    mem_t *third = mem_make(p.w, "third", 4 * MIB, MIB);
    Kvp__Pb__PutBegin two = KVP__PB__PUT_BEGIN__INIT;
    uint32_t where[2], n;

    node_open_on(p.w, third, "third");
    two.replicas = 2;
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(put_sparing(&p, key_name("k", i), KEY_BYTES, two, where, &n), KVP_OK);
        assert_int_equal(n, 2);
        assert_true(where[0] != p.far->segment_id && where[1] != p.far->segment_id);
    }
    world_close(p.w);
}

/* Each preferred segment gets a copy, the first one also where one copy is asked for; ids of no segment are passed
 * over. */
TEST(test_preferred_segments_get_the_copies)
{
    pair_t p = pair_open(4 * MIB, MIB);
    mem_t *third = mem_make(p.w, "third", 4 * MIB, MIB);
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    uint32_t where[2], n, prefer[KVP_REPLICAS_MAX + 1] = {4711}; /* nobody's */
    put_t one = {.key = "malformed", .len = KEY_BYTES};

    node_open_on(p.w, third, "third");
    prefer[1] = third->segment_id;
    prefer[2] = p.near->segment_id;
    like.prefer = prefer;
    like.n_prefer = 3;
    for (uint32_t i = 0; i < 20; i++) {
        like.replicas = 1 + i % 2;
        assert_int_equal(put_sparing(&p, key_name("k", i), KEY_BYTES, like, where, &n), KVP_OK);
        assert_int_equal(n, like.replicas);
        assert_int_equal(where[0], third->segment_id);
        assert_true(n == 1 || where[1] == p.near->segment_id);
    }
    like.n_prefer = KVP_REPLICAS_MAX + 1;
    (void)put_begin_with(p.c, &one, 1, &like);
    world_pump(p.w);
    assert_true(p.c->was_closed);
    world_close(p.w);
}

TEST(test_too_long_a_list_closes)
{
    pair_t p = pair_open(MIB, MIB);
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    uint32_t avoid[KVP_AVOID_MAX + 1] = {0};
    put_t one = {.key = "k", .len = KEY_BYTES};

    like.avoid = avoid;
    like.n_avoid = KVP_AVOID_MAX;
    assert_false(peer_is_asking(p.c, put_begin_with(p.c, &one, 1, &like)));
    assert_false(p.c->was_closed);
    like.n_avoid = KVP_AVOID_MAX + 1;
    one.key = "l";
    (void)put_begin_with(p.c, &one, 1, &like);
    world_pump(p.w);
    assert_true(p.c->was_closed);
    world_close(p.w);
}

TEST_MAIN()
