/* SPDX-License-Identifier: Apache-2.0
 * Masters that die one after the other, while a node is away all the time and their log says too little to rely on
 * it: what was removed or put anew under one of them outlives it, though no extent of it was known there. */
#include "tests/unit/master/rig.h"

#define LEN (8 * KIB)

/* A pool whose node a is away with "key", at its second master: b is there. */
typedef struct {
    world_t *w;
    mem_t *a, *b;
    peer_t *c;
} pool_t;

static void
open_pool(pool_t *p, uint64_t bytes_of_b)
{
    p->w = world_open(&(kvp_master_conf_t){.has_journal = true, .location_lease_ns = MS, .location_grace_ns = MS});
    p->a = mem_make(p->w, "a", MIB, MIB);
    p->b = mem_make(p->w, "b", bytes_of_b, bytes_of_b);
    (void)node_open_on(p->w, p->a, "a");
    p->c = client_open(p->w);
    assert_int_equal(put_told(p->c, "key", LEN), KVP_OK);
    (void)node_open_on(p->w, p->b, "b");
    p->w->durable = 0; /* the next one finds no log */
}

static void
next_master(pool_t *p)
{
    world_restart(p->w);
    p->c = client_open(p->w);
}

/* Ends the pool. */
static void
expect_gone_at_the_next(pool_t *p)
{
    next_master(p);
    (void)node_open_on(p->w, p->b, "b");
    (void)node_open_on(p->w, p->a, "a");
    assert_int_equal(found(p->c, "key", NULL), 0);
    world_close(p->w);
}

TEST(test_removal_of_what_was_not_reported_outlives_the_master)
{
    pool_t p;

    open_pool(&p, MIB);
    next_master(&p);
    (void)node_open_on(p.w, p.b, "b");
    assert_int_equal(remove_key(p.c, "key", true), KVP_NOT_FOUND);
    expect_gone_at_the_next(&p);
}

TEST(test_older_version_is_not_back_before_the_newer_is_reported)
{
    uint64_t newer;
    pool_t p;

    open_pool(&p, MIB);
    next_master(&p);
    (void)node_open_on(p.w, p.b, "b");
    assert_int_equal(put_told(p.c, "key", LEN), KVP_OK);
    newer = found(p.c, "key", NULL);
    next_master(&p);
    (void)node_open_on(p.w, p.a, "a");
    assert_int_equal(found(p.c, "key", NULL), 0);
    (void)node_open_on(p.w, p.b, "b");
    assert_int_equal(found(p.c, "key", NULL), newer);
    world_close(p.w);
}

/* The newer version told of the older one, and is gone. */
TEST(test_eviction_of_the_newer_version_outlives_the_master)
{
    pool_t p;

    open_pool(&p, 64 * KIB);
    next_master(&p);
    (void)node_open_on(p.w, p.b, "b");
    assert_int_equal(put_told(p.c, "key", LEN), KVP_OK);
    for (uint32_t i = 0; exists(p.c, "key"); i++) {
        assert_true(i < 16);
        assert_int_equal(put_told(p.c, key_name("other", i), LEN), KVP_OK);
    }
    expect_gone_at_the_next(&p);
}

/* A writer that an earlier master had granted a slot may be about to store its descriptor there: so of a chunk that has
 * such writers only the slots of what was SEALED are used again, and what needs another one waits for the proof about
 * them. */
TEST(test_slots_in_the_hands_of_old_writers_wait)
{
    world_t *w = world_open(&(kvp_master_conf_t){.location_lease_ns = MS, .location_grace_ns = MS});
    mem_t *mem = mem_make(w, "n", MIB, MIB);
    kvp_wire_loc_t of_sealed, of_old, loc;
    uint64_t attempt, ticket;
    peer_t *c, *n;
    bool is_reset;

    (void)node_open_on(w, mem, "host");
    c = client_open(w);
    assert_int_equal(put_told(c, "sealed", LEN), KVP_OK);
    assert_int_equal(get(c, "sealed", &ticket, &of_sealed), KVP_OK);
    assert_int_equal(put_place(c, "old", LEN / 2, &attempt, &of_old), KVP_OK);

    world_restart(w);
    n = peer_open(w);
    n->mem = mem;
    n->needs_proof = true;
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, mem->name, "host"), KVP_OK);
    assert_int_equal(node_mount(n, &is_reset), KVP_OK);
    c = client_open(w);
    assert_int_equal(remove_key(c, "sealed", true), KVP_OK);
    assert_int_equal(put_place(c, "first", LEN / 2, &attempt, &loc), KVP_OK);
    assert_int_equal(loc.slot, of_sealed.slot);
    assert_int_not_equal(put_place(c, "second", LEN / 2, &attempt, &loc), KVP_OK); /* there is room for it */

    world_prove(w, KVP_OWNER_ANY);
    world_advance(w, SEC);
    assert_int_equal(put_place(c, "second", LEN / 2, &attempt, &loc), KVP_OK);
    world_close(w);
}

TEST_MAIN()
