/* SPDX-License-Identifier: Apache-2.0
 * Location leases: who gets one, what revokes locations, and whom a removal with `wait` waits for. */
#include "tests/unit/master/rig.h"

#define LEASE SEC
#define GRACE (10 * SEC)

static const rig_conf_t plain = {.size = 4 * MIB};
static const rig_conf_t second_master = {.conf.had_master = true, .size = 4 * MIB};

/* A client that keeps locations, and has a lease. */
static peer_t *
reader_open(world_t *w)
{
    peer_t *c = client_open(w);

    c->wants_lease = true;
    peer_beat(c);
    assert_int_equal(c->lease_ms, LEASE / MS);
    return c;
}

static uint64_t
remove_wait(peer_t *c, const char *key)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest = kvp_key_digest(c->world->conf.digest_seed, c->tenant, key, strlen(key));

    head.n = 1;
    head.wait = true;
    return peer_send(c, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest);
}

static void
answered(peer_t *c, uint64_t id)
{
    assert_int_equal(plain_result(peer_reply(c, id)), KVP_OK);
}

/* The answer comes when that time is over, and no sooner. */
static void
answered_after(rig_t *g, uint64_t id, uint64_t ns)
{
    world_advance(g->w, ns - 20 * MS);
    assert_true(peer_is_asking(g->c, id));
    world_advance(g->w, 40 * MS);
    answered(g->c, id);
}

/* ---- what a heartbeat says */
RIG_TEST(test_heartbeat_gives_a_lease_to_those_who_ask, plain)
{
    peer_beat(g->c);
    assert_int_equal(g->c->lease_ms, 0);
    assert_int_equal(world_stats(g->w).leases, 0);
    g->c->wants_lease = true;
    peer_beat(g->c);
    assert_int_equal(g->c->lease_ms, LEASE / MS);
    assert_int_equal(g->c->grace_ms, GRACE / MS);
    assert_int_equal(world_stats(g->w).leases, 1);
    g->na->wants_lease = true;
    peer_beat(g->na); /* a node reads nothing */
    assert_int_equal(g->na->lease_ms, 0);
    g->c->is_silent = true;
    world_advance(g->w, LEASE + 200 * MS);
    assert_int_equal(world_stats(g->w).leases, 0);
}

RIG_TEST(test_heartbeat_tells_what_was_removed, plain)
{
    peer_t *r = reader_open(g->w);

    fill(g->c, 0, 4, 64);
    assert_int_equal(remove_key(g->c, "key/1", false), KVP_OK);
    assert_int_equal(remove_key(g->c, "key/3", false), KVP_OK);
    r->is_deaf = true;
    for (int i = 0; i < 2; i++) { /* until it says that it has applied them */
        peer_beat(r);
        assert_false(r->has_dropped_all);
        assert_int_equal(r->revoked_n, 2);
        assert_true(kvp_digest_eq(r->revoked[0], digest_of(g->w, "key/1")));
        assert_true(kvp_digest_eq(r->revoked[1], digest_of(g->w, "key/3")));
    }
    r->is_deaf = false;
    peer_beat(r);
    peer_beat(r);
    assert_int_equal(r->revoked_n, 0);
    assert_false(r->has_dropped_all);
}

/* An evicted object is the same object still: whoever reads it where it was reads nothing wrong. */
RIG_TEST(test_heartbeat_says_nothing_of_evictions, plain)
{
    peer_t *r = reader_open(g->w);

    for (uint32_t i = 0; i < 80; i++)
        assert_int_equal(put(g->c, key_name("large/", i), 128 * KIB), KVP_OK);
    assert_true(world_stats(g->w).evictions > 0);
    peer_beat(r);
    assert_int_equal(r->revoked_n, 0);
    assert_false(r->has_dropped_all);
}

/* The key of an evicted object is put again, with whatever value, or removed: where the node has not answered that the
 * old place is dead it may still be read, and readers are told. Where the node has, nobody is told of anything. */
static void
after_eviction(rig_t *g, node_policy_t policy, bool is_removal, uint32_t told)
{
    peer_t *r = reader_open(g->w);

    g->na->policy = policy;
    for (uint32_t i = 0; world_stats(g->w).evictions == 0; i++)
        assert_int_equal(put(g->c, key_name("small/", i), 4 * KIB), KVP_OK);
    assert_false(exists(g->c, "small/0"));
    if (is_removal)
        assert_int_equal(remove_key(g->c, "small/0", false), KVP_NOT_FOUND);
    else
        assert_int_equal(put(g->c, "small/0", 64), KVP_OK);
    peer_beat(r);
    assert_int_equal(r->revoked_n, told);
    if (told > 0) assert_true(kvp_digest_eq(r->revoked[0], digest_of(g->w, "small/0")));
    peer_beat(r);
    assert_int_equal(put(g->c, "other", 64), KVP_OK);
    peer_beat(r);
    assert_int_equal(r->revoked_n, 0);
    assert_false(r->has_dropped_all);
}

RIG_TEST(test_commit_of_a_key_whose_old_place_may_still_be_read, plain)
{
    after_eviction(g, NODE_MUTE, false, 1);
}

RIG_TEST(test_removal_of_a_key_whose_old_place_may_still_be_read, plain)
{
    after_eviction(g, NODE_MUTE, true, 1);
}

RIG_TEST(test_commit_of_a_key_whose_old_place_is_dead, plain)
{
    after_eviction(g, NODE_DEAD_ONLY, false, 0);
}

RIG_TEST(test_heartbeat_when_more_was_removed_than_one_can_say, plain)
{
    peer_t *r;
    uint64_t removed, held;

    g->w->check_every = 0;
    r = reader_open(g->w);
    fill(g->c, 0, KVP_REVOKED_MAX, 64);
    (void)remove_many_result(peer_wait(g->c, remove_many(g->c, "", false), SEC), &removed, &held);
    r->is_silent = true;
    peer_beat(r);
    assert_false(r->has_dropped_all);
    r->applied_seq = 0;
    fill(g->c, 0, 1, 64);
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK);
    peer_beat(r);
    assert_true(r->has_dropped_all);
    assert_int_equal(r->revoked_n, 0);
    peer_beat(r);
    assert_false(r->has_dropped_all);
    world_check(g->w);
}

RIG_TEST(test_heartbeat_when_it_claims_what_never_was, plain)
{
    peer_t *r = reader_open(g->w);
    uint64_t id;

    r->is_deaf = true;
    r->applied_seq = UINT64_MAX;
    fill(g->c, 0, 1, 64);
    id = remove_wait(g->c, "key/0");
    peer_beat(r);
    assert_true(r->has_dropped_all);
    assert_true(peer_is_asking(g->c, id)); /* the word counts for nothing */
}

RIG_TEST(test_get_says_which_revocations_it_knows, plain)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    Kvp__Pb__Places *places;
    kvp_digest_t digest;
    peer_t *r = reader_open(g->w);
    kvp_pb_t pb;
    reply_t *reply;

    fill(g->c, 0, 3, 64);
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK);
    digest = digest_of(g->w, "key/1");
    head.n = 1;
    head.wants_lease = true;
    reply = peer_reply(r, peer_send(r, KVP_OP_GET, 0, &head.base, &digest, sizeof digest));
    places = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, &reply->frame);
    assert_true(places->is_leased);
    assert_int_equal(places->revoke_seq, r->applied_seq + 1); /* not older than what the next heartbeat tells */
    kvp_pb_free(&pb, places);
    reply_free(reply);
}

/* ---- waiting */
RIG_TEST(test_remove_waits_until_every_reader_has_heard, plain)
{
    peer_t *r, *s;
    uint64_t id, hurried;

    r = reader_open(g->w);
    s = reader_open(g->w);
    fill(g->c, 0, 2, 64);
    id = remove_wait(g->c, "key/0");
    assert_true(peer_is_asking(g->c, id));
    hurried = remove_key(g->c, "key/1", false); /* without wait */
    assert_int_equal(hurried, KVP_OK);
    peer_beat(r); /* it is told, and has not said yet that it has applied it */
    peer_beat(s);
    assert_true(peer_is_asking(g->c, id));
    peer_beat(r);
    assert_true(peer_is_asking(g->c, id));
    peer_beat(s);
    answered(g->c, id);
}

static uint64_t
commit_wait(peer_t *c, uint64_t attempt)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t rec = {.attempt = attempt, .replicas = 1};

    head.n = 1;
    head.wait = true;
    return peer_send(c, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec);
}

/* A key that is not there may have been evicted: readers may know where it was, and need not look whether it is DEAD.
 */
RIG_TEST(test_wait_is_also_for_leases_on_what_was_evicted, plain)
{
    peer_t *r = reader_open(g->w);
    uint64_t ids[2], attempt;
    kvp_wire_loc_t loc;

    assert_int_equal(put_place(g->c, "key/1", 64, &attempt, &loc), KVP_OK);
    assert_int_equal(write_place(g->w, &loc), KVP_OK);
    for (int i = 0; i < 2; i++) {
        ids[i] = i == 0 ? remove_wait(g->c, "key/0") : commit_wait(g->c, attempt);
        assert_true(peer_is_asking(g->c, ids[i]));
        peer_beat(r); /* it is told, */
        assert_true(peer_is_asking(g->c, ids[i]));
        peer_beat(r); /* and says that it has applied it */
        answered(g->c, ids[i]);
    }
}

RIG_TEST(test_remove_waits_for_the_lease_of_one_that_is_silent, plain)
{
    peer_t *r = reader_open(g->w);
    uint64_t id;

    fill(g->c, 0, 1, 64);
    r->is_silent = true;
    id = remove_wait(g->c, "key/0");
    answered_after(g, id, LEASE);
}

RIG_TEST(test_remove_waits_not_for_one_that_said_bye, plain)
{
    peer_t *r;
    uint64_t id;

    fill(g->c, 0, 1, 64);
    r = reader_open(g->w);
    id = remove_wait(g->c, "key/0");
    assert_true(peer_is_asking(g->c, id));
    (void)peer_send(r, KVP_OP_BYE, 0, NULL, NULL, 0);
    answered(g->c, id);
}

/* Of those that were cut off, one may have applied what another has not. */
RIG_TEST(test_remove_waits_not_for_a_cut_off_one_that_has_heard, plain)
{
    peer_t *r, *s;
    uint64_t one, other;

    fill(g->c, 0, 2, 64);
    s = reader_open(g->w);
    one = remove_wait(g->c, "key/0");
    r = reader_open(g->w);
    peer_beat(r);
    peer_forget(r); /* knows of the first */
    other = remove_wait(g->c, "key/1");
    peer_beat(s);
    peer_beat(s);
    answered(g->c, one);
    assert_true(peer_is_asking(g->c, other));
    world_advance(g->w, GRACE + 20 * MS);
    answered(g->c, other);
}

/* More are cut off than are kept apart: whoever waits may wait longer, and never less. */
RIG_TEST(test_remove_waits_for_many_that_are_cut_off, plain)
{
    enum { MANY = 50 };
    peer_t *readers[MANY];
    uint64_t id;

    fill(g->c, 0, MANY + 1, 64);
    for (uint32_t i = 0; i < MANY; i++) {
        readers[i] = reader_open(g->w);
        assert_int_equal(remove_key(g->c, key_name("key/", i), false), KVP_OK);
    }
    for (uint32_t i = 0; i < MANY; i++)
        peer_forget(readers[i]);
    id = remove_wait(g->c, key_name("key/", MANY));
    answered_after(g, id, GRACE);
}

/* A client that hears and does not act gets no lease from then on, so nobody waits for it for ever. */
RIG_TEST(test_remove_waits_not_for_ever_for_a_deaf_one, plain)
{
    peer_t *r;
    uint64_t id;

    fill(g->c, 0, 1, 64);
    r = reader_open(g->w);
    r->is_deaf = true;
    id = remove_wait(g->c, "key/0");
    world_advance(g->w, 4 * LEASE);
    answered(g->c, id);
}

RIG_TEST(test_remove_when_it_waits_too_often, plain)
{
    enum { MOST = 1024 };
    uint64_t last;

    g->w->check_every = 0;
    fill(g->c, 0, 1, 64);
    reader_open(g->w)->is_silent = true;
    for (uint32_t i = 0; i < MOST; i++)
        last = remove_wait(g->c, "key/0");
    assert_true(peer_is_asking(g->c, last));
    assert_int_equal(plain_result(peer_reply(g->c, remove_wait(g->c, "key/0"))), KVP_LIMIT);
    world_advance(g->w, LEASE + 200 * MS);
    answered(g->c, last);
}

/* ---- a master that is not the first */
RIG_TEST(test_remove_in_a_new_term_waits_for_dead_or_the_grace, second_master)
{
    uint64_t id;

    fill(g->c, 0, 3, 64);
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK); /* dead at once */
    g->na->policy = NODE_MUTE;
    id = remove_begun(g->c, "key/1", false);
    answered_after(g, id, GRACE);
    id = remove_begun(g->c, "key/2", false);
    world_advance(g->w, 100 * MS);
    answered(g->c, id);
}

RIG_TEST(test_remove_with_wait_in_a_new_term_waits_for_the_old_leases, second_master)
{
    uint64_t id;

    fill(g->c, 0, 1, 64);
    id = remove_wait(g->c, "key/0");
    answered_after(g, id, GRACE);
}

TEST_MAIN()
