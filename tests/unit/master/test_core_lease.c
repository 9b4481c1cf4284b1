/* SPDX-License-Identifier: Apache-2.0
 * Location leases: who gets one, what revokes locations, and whom a removal with `wait` waits for.
 */
#include "tests/world/world.h"

#include <stdio.h>

#define KEY_LEN 24
#define LEASE SEC
#define GRACE (10 * SEC)

static const kvp_master_conf_t first = {0}; /* of the pool's masters */

static void
fill(peer_t *c, uint32_t n)
{
    char key[KEY_LEN];

    for (uint32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "key/%u", i);
        assert_int_equal(put(c, key, 64), KVP_OK);
    }
}

static world_t *
lease_world(const kvp_master_conf_t *conf, peer_t **n_out, peer_t **c_out)
{
    world_t *w = world_open(conf);

    *n_out = node_open(w, mem_make(w, "n1", 4 * MIB, 4 * MIB));
    *c_out = client_open(w);
    return w;
}

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

/* ---- what a heartbeat says */
static void
test_heartbeat_gives_a_lease_to_those_who_ask(void **state)
{
    peer_t *n, *c;
    world_t *w = lease_world(&first, &n, &c);

    (void)state;
    peer_beat(c);
    assert_int_equal(c->lease_ms, 0);
    assert_int_equal(world_stats(w).leases, 0);
    c->wants_lease = true;
    peer_beat(c);
    assert_int_equal(c->lease_ms, LEASE / MS);
    assert_int_equal(c->grace_ms, GRACE / MS);
    assert_int_equal(world_stats(w).leases, 1);
    n->wants_lease = true;
    peer_beat(n); /* a node reads nothing */
    assert_int_equal(n->lease_ms, 0);
    c->is_silent = true;
    world_advance(w, LEASE + 200 * MS);
    assert_int_equal(world_stats(w).leases, 0);
    world_close(w);
}

static void
test_heartbeat_tells_what_was_removed(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);

    (void)state;
    r = reader_open(w);
    fill(c, 4);
    assert_int_equal(remove_key(c, "key/1", false), KVP_OK);
    assert_int_equal(remove_key(c, "key/3", false), KVP_OK);
    r->is_deaf = true;
    for (int i = 0; i < 2; i++) { /* until it says that it has applied them */
        peer_beat(r);
        assert_false(r->has_dropped_all);
        assert_int_equal(r->revoked_n, 2);
        assert_true(kvp_digest_eq(r->revoked[0], digest_of(w, "key/1")));
        assert_true(kvp_digest_eq(r->revoked[1], digest_of(w, "key/3")));
    }
    r->is_deaf = false;
    peer_beat(r);
    peer_beat(r);
    assert_int_equal(r->revoked_n, 0);
    assert_false(r->has_dropped_all);
    world_close(w);
}

/* An evicted object is the same object still: whoever reads it where it was reads nothing wrong. */
static void
test_heartbeat_says_nothing_of_evictions(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    char key[KEY_LEN];

    (void)state;
    r = reader_open(w);
    for (uint32_t i = 0; i < 80; i++) {
        snprintf(key, sizeof key, "large/%u", i);
        assert_int_equal(put(c, key, 128 * KIB), KVP_OK);
    }
    assert_true(world_stats(w).evictions > 0);
    peer_beat(r);
    assert_int_equal(r->revoked_n, 0);
    assert_false(r->has_dropped_all);
    world_close(w);
}

/* An evicted object's key is put again, with whatever value, while its node does not answer: the old place may still be
 * read. */
static void
test_commit_of_a_key_whose_old_place_may_still_be_read(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    char key[KEY_LEN];

    (void)state;
    r = reader_open(w);
    n->policy = NODE_MUTE;
    for (uint32_t i = 0; world_stats(w).evictions == 0; i++) {
        snprintf(key, sizeof key, "small/%u", i);
        assert_int_equal(put(c, key, 4 * KIB), KVP_OK);
    }
    assert_false(exists(c, "small/0"));
    assert_int_equal(put(c, "small/0", 64), KVP_OK);
    peer_beat(r);
    assert_int_equal(r->revoked_n, 1);
    assert_true(kvp_digest_eq(r->revoked[0], digest_of(w, "small/0")));
    peer_beat(r);
    assert_int_equal(put(c, "other", 64), KVP_OK);
    peer_beat(r);
    assert_int_equal(r->revoked_n, 0);
    assert_false(r->has_dropped_all);
    world_close(w);
}

/* Nor is it there for a removal, which has to end what may be read of it all the same. */
static void
test_removal_of_a_key_whose_old_place_may_still_be_read(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    char key[KEY_LEN];

    (void)state;
    r = reader_open(w);
    n->policy = NODE_MUTE;
    for (uint32_t i = 0; world_stats(w).evictions == 0; i++) {
        snprintf(key, sizeof key, "small/%u", i);
        assert_int_equal(put(c, key, 4 * KIB), KVP_OK);
    }
    assert_int_equal(remove_key(c, "small/0", false), KVP_NOT_FOUND);
    peer_beat(r);
    assert_int_equal(r->revoked_n, 1);
    assert_true(kvp_digest_eq(r->revoked[0], digest_of(w, "small/0")));
    world_close(w);
}

/* The same where the node has answered: nobody is told of anything. */
static void
test_commit_of_a_key_whose_old_place_is_dead(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    char key[KEY_LEN];

    (void)state;
    r = reader_open(w);
    n->policy = NODE_DEAD_ONLY;
    for (uint32_t i = 0; world_stats(w).evictions == 0; i++) {
        snprintf(key, sizeof key, "small/%u", i);
        assert_int_equal(put(c, key, 4 * KIB), KVP_OK);
    }
    assert_int_equal(put(c, "small/0", 64), KVP_OK);
    peer_beat(r);
    assert_int_equal(r->revoked_n, 0);
    assert_false(r->has_dropped_all);
    world_close(w);
}

static void
test_heartbeat_when_more_was_removed_than_one_can_say(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t removed, held;

    (void)state;
    w->check_every = 0;
    r = reader_open(w);
    fill(c, KVP_REVOKED_MAX);
    (void)remove_many_result(peer_wait(c, remove_many(c, "", false), SEC), &removed, &held);
    r->is_silent = true;
    peer_beat(r);
    assert_false(r->has_dropped_all);
    r->applied_seq = 0;
    fill(c, 1);
    assert_int_equal(remove_key(c, "key/0", false), KVP_OK);
    peer_beat(r);
    assert_true(r->has_dropped_all);
    assert_int_equal(r->revoked_n, 0);
    peer_beat(r);
    assert_false(r->has_dropped_all);
    world_check(w);
    world_close(w);
}

static void
test_heartbeat_when_it_claims_what_never_was(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t id;

    (void)state;
    r = reader_open(w);
    r->is_deaf = true;
    r->applied_seq = UINT64_MAX;
    fill(c, 1);
    id = remove_wait(c, "key/0");
    peer_beat(r);
    assert_true(r->has_dropped_all);
    assert_true(peer_is_asking(c, id)); /* the word counts for nothing */
    world_close(w);
}

static void
test_get_says_which_revocations_it_knows(void **state)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    Kvp__Pb__Places *places;
    kvp_digest_t digest;
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    kvp_pb_t pb;
    reply_t *reply;

    (void)state;
    r = reader_open(w);
    fill(c, 3);
    assert_int_equal(remove_key(c, "key/0", false), KVP_OK);
    digest = digest_of(w, "key/1");
    head.n = 1;
    head.wants_lease = true;
    reply = peer_reply(r, peer_send(r, KVP_OP_GET, 0, &head.base, &digest, sizeof digest));
    places = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, &reply->frame);
    assert_true(places->is_leased);
    assert_int_equal(places->revoke_seq, r->applied_seq + 1); /* not older than what the next heartbeat tells */
    kvp_pb_free(&pb, places);
    reply_free(reply);
    world_close(w);
}

/* ---- waiting */
static void
test_remove_waits_until_every_reader_has_heard(void **state)
{
    peer_t *n, *c, *r, *s;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t id, hurried;

    (void)state;
    r = reader_open(w);
    s = reader_open(w);
    fill(c, 2);
    id = remove_wait(c, "key/0");
    assert_true(peer_is_asking(c, id));
    hurried = remove_key(c, "key/1", false); /* without wait */
    assert_int_equal(hurried, KVP_OK);
    peer_beat(r); /* it is told, and has not said yet that it has applied it */
    peer_beat(s);
    assert_true(peer_is_asking(c, id));
    peer_beat(r);
    assert_true(peer_is_asking(c, id));
    peer_beat(s);
    answered(c, id);
    world_close(w);
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

/* A key that is not there may have been evicted: readers may know where it was, and need not look whether it is DEAD. */
static void
test_wait_is_also_for_leases_on_what_was_evicted(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t ids[2], attempt;
    kvp_wire_loc_t loc;

    (void)state;
    r = reader_open(w);
    assert_int_equal(put_place(c, "key/1", 64, &attempt, &loc), KVP_OK);
    assert_int_equal(write_place(w, &loc), KVP_OK);
    for (int i = 0; i < 2; i++) {
        ids[i] = i == 0 ? remove_wait(c, "key/0") : commit_wait(c, attempt);
        assert_true(peer_is_asking(c, ids[i]));
        peer_beat(r); /* it is told, */
        assert_true(peer_is_asking(c, ids[i]));
        peer_beat(r); /* and says that it has applied it */
        answered(c, ids[i]);
    }
    world_close(w);
}

static void
test_remove_waits_for_nobody_where_nobody_reads(void **state)
{
    peer_t *n, *c;
    world_t *w = lease_world(&first, &n, &c);

    (void)state;
    fill(c, 1);
    answered(c, remove_wait(c, "key/0"));
    world_close(w);
}

static void
test_remove_waits_for_the_lease_of_one_that_is_silent(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t id;

    (void)state;
    r = reader_open(w);
    fill(c, 1);
    r->is_silent = true;
    id = remove_wait(c, "key/0");
    world_advance(w, LEASE - 20 * MS);
    assert_true(peer_is_asking(c, id));
    world_advance(w, 40 * MS);
    answered(c, id);
    world_close(w);
}

/* It may believe that the master is dead, and then its lease lasts for the grace. */
static void
test_remove_waits_for_the_grace_of_one_that_is_cut_off(void **state)
{
    peer_t *n, *c;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t id;

    (void)state;
    fill(c, 1);
    peer_forget(reader_open(w));
    id = remove_wait(c, "key/0");
    world_advance(w, GRACE - 20 * MS);
    assert_true(peer_is_asking(c, id));
    world_advance(w, 40 * MS);
    answered(c, id);
    world_close(w);
}

static void
test_remove_waits_not_for_one_that_said_bye(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t id;

    (void)state;
    fill(c, 1);
    r = reader_open(w);
    id = remove_wait(c, "key/0");
    assert_true(peer_is_asking(c, id));
    (void)peer_send(r, KVP_OP_BYE, 0, NULL, NULL, 0);
    answered(c, id);
    world_close(w);
}

/* Of those that were cut off, one may have applied what another has not. */
static void
test_remove_waits_not_for_a_cut_off_one_that_has_heard(void **state)
{
    peer_t *n, *c, *r, *s;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t one, other;

    (void)state;
    fill(c, 2);
    s = reader_open(w);
    one = remove_wait(c, "key/0");
    r = reader_open(w);
    peer_beat(r);
    peer_forget(r); /* knows of the first */
    other = remove_wait(c, "key/1");
    peer_beat(s);
    peer_beat(s);
    answered(c, one);
    assert_true(peer_is_asking(c, other));
    world_advance(w, GRACE + 20 * MS);
    answered(c, other);
    world_close(w);
}

/* More are cut off than are kept apart: whoever waits may wait longer, and never less. */
static void
test_remove_waits_for_many_that_are_cut_off(void **state)
{
    enum { MANY = 50 };
    peer_t *n, *c, *readers[MANY];
    world_t *w = lease_world(&first, &n, &c);
    uint64_t id;
    char key[KEY_LEN];

    (void)state;
    fill(c, MANY + 1);
    for (uint32_t i = 0; i < MANY; i++) {
        readers[i] = reader_open(w);
        snprintf(key, sizeof key, "key/%u", i);
        assert_int_equal(remove_key(c, key, false), KVP_OK);
    }
    for (uint32_t i = 0; i < MANY; i++)
        peer_forget(readers[i]);
    snprintf(key, sizeof key, "key/%u", MANY);
    id = remove_wait(c, key);
    world_advance(w, GRACE - 20 * MS);
    assert_true(peer_is_asking(c, id));
    world_advance(w, 40 * MS);
    answered(c, id);
    world_close(w);
}

/* A client that hears and does not act gets no lease from then on, so nobody waits for it for ever. */
static void
test_remove_waits_not_for_ever_for_a_deaf_one(void **state)
{
    peer_t *n, *c, *r;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t id;

    (void)state;
    fill(c, 1);
    r = reader_open(w);
    r->is_deaf = true;
    id = remove_wait(c, "key/0");
    world_advance(w, 4 * LEASE);
    answered(c, id);
    world_close(w);
}

static void
test_remove_when_it_waits_too_often(void **state)
{
    enum { MOST = 1024 };
    peer_t *n, *c;
    world_t *w = lease_world(&first, &n, &c);
    uint64_t last;

    (void)state;
    w->check_every = 0;
    fill(c, 1);
    reader_open(w)->is_silent = true;
    for (uint32_t i = 0; i < MOST; i++)
        last = remove_wait(c, "key/0");
    assert_true(peer_is_asking(c, last));
    assert_int_equal(plain_result(peer_reply(c, remove_wait(c, "key/0"))), KVP_LIMIT);
    world_advance(w, LEASE + 200 * MS);
    answered(c, last);
    world_close(w);
}

/* ---- a master that is not the first */
static void
test_remove_in_a_new_term_waits_for_dead_or_the_grace(void **state)
{
    peer_t *n, *c;
    world_t *w = lease_world(&(kvp_master_conf_t){.had_master = true}, &n, &c);
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest = digest_of(w, "key/1");
    uint64_t id;

    (void)state;
    fill(c, 3);
    assert_int_equal(remove_key(c, "key/0", false), KVP_OK); /* dead at once */
    n->policy = NODE_MUTE;
    head.n = 1;
    id = peer_send(c, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest);
    world_advance(w, GRACE - 100 * MS);
    assert_true(peer_is_asking(c, id));
    world_advance(w, 200 * MS);
    answered(c, id);
    digest = digest_of(w, "key/2"); /* from now on what is not dead in time is owed */
    id = peer_send(c, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest);
    world_advance(w, 100 * MS);
    answered(c, id);
    world_close(w);
}

static void
test_remove_with_wait_in_a_new_term_waits_for_the_old_leases(void **state)
{
    peer_t *n, *c;
    world_t *w = lease_world(&(kvp_master_conf_t){.had_master = true}, &n, &c);
    uint64_t id;

    (void)state;
    fill(c, 1);
    id = remove_wait(c, "key/0");
    world_advance(w, GRACE - 100 * MS);
    assert_true(peer_is_asking(c, id));
    world_advance(w, 200 * MS);
    answered(c, id);
    world_close(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heartbeat_gives_a_lease_to_those_who_ask),
        cmocka_unit_test(test_heartbeat_tells_what_was_removed),
        cmocka_unit_test(test_heartbeat_says_nothing_of_evictions),
        cmocka_unit_test(test_commit_of_a_key_whose_old_place_may_still_be_read),
        cmocka_unit_test(test_removal_of_a_key_whose_old_place_may_still_be_read),
        cmocka_unit_test(test_commit_of_a_key_whose_old_place_is_dead),
        cmocka_unit_test(test_heartbeat_when_more_was_removed_than_one_can_say),
        cmocka_unit_test(test_heartbeat_when_it_claims_what_never_was),
        cmocka_unit_test(test_get_says_which_revocations_it_knows),
        cmocka_unit_test(test_remove_waits_until_every_reader_has_heard),
        cmocka_unit_test(test_wait_is_also_for_leases_on_what_was_evicted),
        cmocka_unit_test(test_remove_waits_for_nobody_where_nobody_reads),
        cmocka_unit_test(test_remove_waits_for_the_lease_of_one_that_is_silent),
        cmocka_unit_test(test_remove_waits_for_the_grace_of_one_that_is_cut_off),
        cmocka_unit_test(test_remove_waits_not_for_one_that_said_bye),
        cmocka_unit_test(test_remove_waits_not_for_a_cut_off_one_that_has_heard),
        cmocka_unit_test(test_remove_waits_for_many_that_are_cut_off),
        cmocka_unit_test(test_remove_waits_not_for_ever_for_a_deaf_one),
        cmocka_unit_test(test_remove_when_it_waits_too_often),
        cmocka_unit_test(test_remove_in_a_new_term_waits_for_dead_or_the_grace),
        cmocka_unit_test(test_remove_with_wait_in_a_new_term_waits_for_the_old_leases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
