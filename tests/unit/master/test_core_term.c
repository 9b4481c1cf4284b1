/* SPDX-License-Identifier: Apache-2.0
 * Which peers may raise the term and how far, and that nothing of a term is said before it is saved. */
#include "master/core/recovery/state.h"
#include "tests/world/world.h"

#define HOUR (3600 * SEC)

static uint32_t
term_of(const world_t *w)
{
    kvp_master_ident_t now;

    kvp_master_ident(w->m, &now);
    return now.term;
}

/* The term after a peer has spoken. OK: the peer was believed, and every session is closed. */
static kvp_err_t
judge(const world_t *w, uint32_t before, uint32_t told)
{
    if (term_of(w) == before) return KVP_LIMIT;
    assert_int_equal(term_of(w), told + 1);
    return KVP_OK;
}

static kvp_err_t
beat_with(world_t *w, uint32_t term)
{
    Kvp__Pb__Heartbeat beat = KVP__PB__HEARTBEAT__INIT;
    peer_t *p = peer_open(w);
    uint32_t before = term_of(w);

    assert_int_equal(peer_hello(p, KVP_ROLE_NODE, "stranger", "stranger"), KVP_OK);
    beat.incarnation = p->incarnation;
    beat.term = term;
    (void)peer_send(p, KVP_OP_HEARTBEAT, 0, &beat.base, NULL, 0);
    assert_true(p->was_closed);
    peer_forget(p);
    return judge(w, before, term);
}

/* Offers memory that was mounted in mounted_term, from a node that obeys that term. uuid NULL: no master here knows it.
 */
static kvp_err_t
mount_with(world_t *w, uint32_t term, uint32_t mounted_term, const uint8_t *uuid)
{
    static const uint8_t unknown[16] = {0xee};
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    peer_t *p = peer_open(w);
    uint32_t before = term_of(w);
    reply_t *r;

    assert_int_equal(peer_hello(p, KVP_ROLE_NODE, "old", "old"), KVP_OK);
    msg.name = msg.addr = msg.unix_path = msg.transports = (char *)"old";
    msg.uuid = (ProtobufCBinaryData){sizeof unknown, (uint8_t *)(uuid != NULL ? uuid : unknown)};
    msg.size_bytes = msg.chunk_bytes = MIB;
    msg.term = term;
    msg.mounted_term = mounted_term;
    r = peer_reply(p, peer_send(p, KVP_OP_MOUNT, 0, &msg.base, NULL, 0));
    if (r != NULL) assert_int_equal(plain_result(r), KVP_LIMIT);
    assert_int_equal(r == NULL, term_of(w) != before);
    peer_forget(p);
    return judge(w, before, term);
}

TEST(test_terms_of_peers_are_few_and_near)
{
    world_t *w = world_open(&(kvp_master_conf_t){.had_master = true, .report_grace_ns = 2 * HOUR});
    peer_t *c = client_open(w);

    assert_int_equal(mount_with(w, KVP_TERM_MAX - 1, 1, NULL), KVP_LIMIT);
    assert_int_equal(mount_with(w, KVP_TERM_MAX, 1, NULL), KVP_LIMIT);
    assert_int_equal(mount_with(w, term_of(w) + 16, 1, NULL), KVP_LIMIT);
    assert_false(c->was_closed);
    for (uint32_t i = 0; i < 8; i++, world_advance(w, HOUR / 10))
        assert_int_equal(mount_with(w, term_of(w) + 15, 1, NULL), KVP_OK);
    assert_int_equal(mount_with(w, term_of(w) + 1, 1, NULL), KVP_LIMIT);
    world_advance(w, HOUR / 5);
    assert_int_equal(mount_with(w, term_of(w) + 1, 1, NULL), KVP_OK); /* the first of them is an hour ago */
    assert_int_equal(mount_with(w, term_of(w) + 1, 1, NULL), KVP_LIMIT);
    world_close(w);
}

/* A peer without memory that a master has used raises no term. */
TEST(test_strangers_raise_no_term)
{
    world_t *w = world_open(&(kvp_master_conf_t){.had_master = true, .report_grace_ns = 10 * SEC});
    peer_t *c = client_open(w);

    (void)node_open(w, mem_make(w, "a", MIB, MIB));
    for (uint32_t step = 1; step < 16; step++) {
        assert_int_equal(beat_with(w, term_of(w) + step), KVP_LIMIT);
        assert_int_equal(mount_with(w, term_of(w) + step, 0, NULL), KVP_LIMIT);
    }
    assert_false(c->was_closed);
    /* Nor does a peer with such memory when the start is over. */
    world_advance(w, 11 * SEC);
    assert_int_equal(mount_with(w, term_of(w) + 1, 1, NULL), KVP_LIMIT);
    assert_false(c->was_closed);
    world_close(w);
}

/* A good log names all memory that its masters have used. */
TEST(test_a_good_log_believes_its_own_memory_alone)
{
    world_t *w = world_open(&(kvp_master_conf_t){.has_journal = true, .report_grace_ns = HOUR});
    mem_t *a = mem_make(w, "old", MIB, MIB);
    peer_t *c;

    (void)node_open(w, a);
    c = client_open(w);
    assert_int_equal(put(c, "key", 4 * KIB), KVP_OK);
    world_sync(w);
    world_restart(w);
    assert_true(w->m->base.is_relied_on);
    c = client_open(w);
    assert_int_equal(mount_with(w, term_of(w) + 1, 1, NULL), KVP_LIMIT);
    assert_int_equal(mount_with(w, term_of(w) + 1, 0, a->uuid), KVP_LIMIT);
    assert_false(c->was_closed);
    assert_int_equal(mount_with(w, term_of(w) + 1, 1, a->uuid), KVP_OK);
    assert_true(c->was_closed);
    world_close(w);
}

/* etcd gives an elected master its term. */
TEST(test_no_peer_raises_the_term_of_an_elected_master)
{
    world_t *w = world_open(&(kvp_master_conf_t){.had_master = true, .report_grace_ns = HOUR});
    peer_t *c = client_open(w);

    w->m->ctx.conf.is_elected = true; /* as after kvp_master_lead */
    for (uint32_t step = 1; step < 20; step++) {
        assert_int_equal(beat_with(w, term_of(w) + step), KVP_LIMIT);
        assert_int_equal(mount_with(w, term_of(w) + step, 1, NULL), KVP_LIMIT);
    }
    assert_false(c->was_closed);
    world_close(w);
}

/* A master that kept nothing has to follow its nodes; once, and only before anybody has anything of it. */
TEST(test_term_leaps_once_before_the_first_grant)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    peer_t *c;

    assert_int_equal(mount_with(w, term_of(w) + 65536, 1, NULL), KVP_LIMIT);
    assert_int_equal(mount_with(w, term_of(w) + 65535, 1, NULL), KVP_OK);
    assert_int_equal(mount_with(w, term_of(w) + 100, 1, NULL), KVP_LIMIT);
    world_close(w);

    w = world_open(&(kvp_master_conf_t){0});
    (void)node_open(w, mem_make(w, "a", MIB, MIB));
    c = client_open(w);
    assert_int_equal(put(c, "key", 4 * KIB), KVP_OK);
    assert_int_equal(mount_with(w, term_of(w) + 1, 1, NULL), KVP_LIMIT);
    assert_false(c->was_closed);
    world_close(w);
}

/* Memory that says that another master served the pool in this very term. */
TEST(test_twins_are_few)
{
    world_t *w = world_open(&(kvp_master_conf_t){.had_master = true});
    uint32_t taken = 0;

    for (uint32_t i = 0; i < 100; i++)
        taken += mount_with(w, term_of(w), term_of(w), NULL) == KVP_OK;
    assert_int_equal(taken, 8);
    world_close(w);
}

/* A node whose term is not followed is not greeted: with another pool's name it would give up its memory. */
TEST(test_node_of_a_far_term_keeps_its_pool)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    Kvp__Pb__KnownPool known = KVP__PB__KNOWN_POOL__INIT;
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;
    uint8_t pool_id[16] = {0xcc};
    peer_t *p = peer_open(w);

    known.pool_id = (ProtobufCBinaryData){sizeof pool_id, pool_id};
    known.term = 100000;
    hello.version = hello.version_min = KVP_PROTO_VERSION;
    hello.role = p->role = KVP_ROLE_NODE;
    hello.name = hello.host_id = (char *)"far";
    hello.known = &known;
    assert_int_equal(plain_result(peer_reply(p, peer_send(p, KVP_OP_HELLO, 0, &hello.base, NULL, 0))), KVP_LIMIT);
    assert_true(p->was_closed);
    assert_int_equal(term_of(w), w->conf.term);
    world_close(w);
}

static void
saved(world_t *w, kvp_master_done_kind_t kind, const kvp_master_ident_t *ident)
{
    const kvp_master_done_t done = {.kind = kind, .ident = ident};

    kvp_master_done(w->m, &done, w->now);
}

TEST(test_nothing_is_said_of_a_term_that_is_not_saved)
{
    world_t *w = world_open(&(kvp_master_conf_t){.had_master = true, .saves_ident = true});
    const uint32_t told = w->conf.term + 3;
    uint8_t uuid[16] = {1};
    Kvp__Pb__Mount mount = KVP__PB__MOUNT__INIT;
    peer_t *c = client_open(w), *p = peer_open(w), *q;
    kvp_master_ident_t ident, older;
    uint64_t hello;

    assert_int_equal(peer_hello(p, KVP_ROLE_NODE, "a", "a"), KVP_OK);
    mount.name = mount.addr = mount.unix_path = mount.transports = (char *)"a";
    mount.uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    mount.size_bytes = mount.chunk_bytes = MIB;
    mount.term = told;
    mount.mounted_term = 1;
    (void)peer_send(p, KVP_OP_MOUNT, 0, &mount.base, NULL, 0);
    q = peer_open(w);
    hello = peer_hello_begin(q, KVP_ROLE_NODE, "b", "b");
    world_advance(w, SEC);
    assert_false(c->was_closed || p->was_closed);
    assert_true(peer_is_asking(q, hello));
    assert_true(world_take_ident(w, &ident));
    assert_int_equal(ident.term, told + 1);
    older = ident;
    older.term--;
    saved(w, KVP_DONE_IDENT, &older);
    saved(w, KVP_DONE_IDENT_FAILED, &ident);
    world_pump(w);
    assert_true(peer_is_asking(q, hello));
    saved(w, KVP_DONE_IDENT, &ident);
    world_pump(w);
    assert_true(c->was_closed && p->was_closed);
    assert_int_equal(plain_result(peer_reply(q, hello)), KVP_OK);
    world_close(w);
}

TEST_MAIN()
