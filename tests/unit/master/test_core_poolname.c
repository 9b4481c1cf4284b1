/* SPDX-License-Identifier: Apache-2.0
 * A master that finds nothing of the masters before it, and the nodes that remember: whose name the pool gets, and
 * when it is too late for another one. */
#include "tests/unit/master/rig.h"
#include "tests/world/report.h"

#define SMALL (8 * KIB)

static const uint8_t made_up[16] = {0xee}, elsewhere[16] = {0xcc};

/* The pool as its nodes know it. */
typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
} name_t;

static name_t
name_of(const world_t *w)
{
    name_t name = {.digest_seed = w->conf.digest_seed};

    memcpy(name.pool_id, w->conf.pool_id, sizeof name.pool_id);
    return name;
}

/* Another master begins, of which nothing was kept. */
static void
lose_disk(world_t *w)
{
    memcpy(w->conf.pool_id, made_up, sizeof made_up);
    w->conf.digest_seed = 4711;
    w->conf.term = 0;
    world_restart_as_new(w);
}

/* Says Hello as somebody who knows that pool; the answer, or NULL where the connection was closed instead. */
static reply_t *
say_known(peer_t *p, uint32_t role, const Kvp__Pb__KnownPool *known)
{
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;

    hello.version = hello.version_min = KVP_PROTO_VERSION;
    hello.role = role;
    hello.name = hello.host_id = (char *)"a";
    hello.known = (Kvp__Pb__KnownPool *)known;
    p->role = role;
    return peer_reply(p, peer_send(p, KVP_OP_HELLO, 0, &hello.base, NULL, 0));
}

static Kvp__Pb__KnownPool
known_as(const uint8_t pool_id[16], uint64_t digest_seed, uint32_t term)
{
    Kvp__Pb__KnownPool known = KVP__PB__KNOWN_POOL__INIT;

    known.pool_id = (ProtobufCBinaryData){16, (uint8_t *)pool_id};
    known.digest_seed = digest_seed;
    known.term = term;
    return known;
}

static bool
is_called(const world_t *w, const uint8_t pool_id[16])
{
    kvp_master_ident_t now;

    kvp_master_ident(w->m, &now);
    return memcmp(now.pool_id, pool_id, sizeof now.pool_id) == 0;
}

/* Greeted, and the pool keeps its name. */
static void
assert_not_heard(world_t *w, uint32_t role, const Kvp__Pb__KnownPool *known)
{
    kvp_master_ident_t before, now;
    peer_t *p = peer_open(w);
    reply_t *r;

    kvp_master_ident(w->m, &before);
    r = say_known(p, role, known);
    assert_non_null(r);
    reply_free(r);
    assert_false(p->was_closed);
    kvp_master_ident(w->m, &now);
    assert_memory_equal(&now.pool_id, &before.pool_id, sizeof now.pool_id);
    assert_int_equal(now.digest_seed, before.digest_seed);
    assert_int_equal(now.term, before.term);
    assert_false(world_take_ident(w, &now));
    peer_lose(p);
}

RIG_TEST_ON(test_pool_outlives_its_masters_disk, .size = 2 * MIB, .chunk = MIB)
{
    const name_t name = name_of(g->w);
    Kvp__Pb__KnownPool known = known_as(name.pool_id, name.digest_seed, 0);
    kvp_master_ident_t now;
    peer_t *n;

    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(put_told(g->c, key_name("key", i), SMALL), KVP_OK);
    known.term = g->w->conf.term;
    lose_disk(g->w);
    g->c = client_open(g->w);
    assert_false(world_take_ident(g->w, &now));
    n = peer_open(g->w);
    assert_null(say_known(n, KVP_ROLE_NODE, &known));
    assert_true(n->was_closed && g->c->was_closed);
    assert_true(world_take_ident(g->w, &now));
    assert_memory_equal(now.pool_id, name.pool_id, sizeof now.pool_id);
    assert_int_equal(now.digest_seed, name.digest_seed);
    assert_int_equal(now.term, known.term + 1);
    assert_false(world_take_ident(g->w, &now));

    g->w->conf.digest_seed = now.digest_seed;
    g->w->conf.term = now.term;
    world_forget_peers(g->w);
    g->c = client_open(g->w);
    (void)node_open(g->w, g->a);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(put_told(g->c, key_name("key", i), SMALL), KVP_ALREADY);
    assert_int_equal(world_stats(g->w).adopted, 20);
    known = known_as(elsewhere, 1, 90);
    assert_not_heard(g->w, KVP_ROLE_NODE, &known); /* it has its name */
}

RIG_TEST_ON(test_a_grant_makes_the_name_a_fact, .size = MIB)
{
    Kvp__Pb__KnownPool known = known_as(elsewhere, 1, 90);
    kvp_master_ident_t now;

    assert_false(world_take_ident(g->w, &now));
    assert_int_equal(put_told(g->c, "one", SMALL), KVP_OK);
    assert_true(world_take_ident(g->w, &now));
    assert_true(is_called(g->w, g->w->conf.pool_id));
    assert_int_equal(put_told(g->c, "two", SMALL), KVP_OK);
    assert_false(world_take_ident(g->w, &now));
    assert_not_heard(g->w, KVP_ROLE_NODE, &known);
}

TEST(test_who_does_not_name_a_pool)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    Kvp__Pb__KnownPool known = known_as(elsewhere, 1, 90);

    assert_not_heard(w, KVP_ROLE_CLIENT, &known); /* it holds nothing of it */
    assert_not_heard(w, KVP_ROLE_NODE, NULL);
    known.pool_id.len = 15;
    assert_not_heard(w, KVP_ROLE_NODE, &known);
    known = known_as(elsewhere, 1, KVP_TERM_MAX);
    assert_not_heard(w, KVP_ROLE_NODE, &known); /* no term is left above it */
    known = known_as(w->conf.pool_id, w->conf.digest_seed, 1);
    assert_not_heard(w, KVP_ROLE_NODE, &known); /* it is called that */
    world_restart(w);
    known = known_as(elsewhere, 1, 90);
    assert_not_heard(w, KVP_ROLE_NODE, &known); /* a master of this pool was here before */
    world_close(w);
}

TEST_MAIN()
