/* SPDX-License-Identifier: Apache-2.0
 * Tenants: what they see of one another, and the bump that makes everything of one be gone at once. */
#include "tests/unit/master/rig.h"

#define KEY_LEN 24
#define LEASE SEC

static const rig_conf_t two_tenants = {.size = 4 * MIB, .chunk = MIB, .mems = 2, .is_one_tenant_each = true};
static const rig_conf_t two_with_log = {
    .conf.has_journal = true, .size = 4 * MIB, .chunk = MIB, .mems = 2, .is_one_tenant_each = true};
static const rig_conf_t tenants = {.size = 4 * MIB, .chunk = MIB, .is_one_tenant_each = true};

static kvp_err_t
bump_result(reply_t *r, uint32_t *epoch_out)
{
    Kvp__Pb__BumpReply *head;
    kvp_pb_t pb;
    kvp_err_t err;

    assert_non_null(r);
    head = kvp_pb_unpack(&pb, &kvp__pb__bump_reply__descriptor, &r->frame);
    assert_non_null(head);
    err = head->err;
    *epoch_out = head->epoch;
    kvp_pb_free(&pb, head);
    reply_free(r);
    return err;
}

/* ---- apart */
RIG_TEST(test_tenants_have_keys_of_their_own, tenants)
{
    uint64_t removed, held;

    fill(g->c, 0, 10, 100);
    assert_false(exists(g->d, "key/0"));
    fill(g->d, 0, 3, 200); /* the same keys, and no ALREADY */
    assert_int_equal(listed(g->c), 10);
    assert_int_equal(listed(g->d), 3);
    assert_int_equal(remove_many_result(peer_wait(g->d, remove_many(g->d, "", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 3);
    assert_int_equal(listed(g->c), 10);
    assert_int_equal(listed(g->d), 0);
    assert_true(exists(g->c, "key/0"));
}

/* Whoever has got hold of another tenant's digest finds nothing under it. */
RIG_TEST(test_tenants_when_one_knows_the_digest_of_another, tenants)
{
    Kvp__Pb__Get get_head = KVP__PB__GET__INIT;
    Kvp__Pb__Exists exists_head = KVP__PB__EXISTS__INIT;
    Kvp__Pb__Lookup lookup_head = KVP__PB__LOOKUP__INIT;
    Kvp__Pb__Remove remove_head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest;
    places_t places;
    int32_t result;
    reply_t *r;

    fill(g->c, 0, 1, 100);
    digest = kvp_key_digest(g->w->conf.digest_seed, g->c->tenant_id, "key/0", 5);
    get_head.n = exists_head.n = lookup_head.n = remove_head.n = 1;
    places_read(peer_reply(g->d, peer_send(g->d, KVP_OP_GET, 0, &get_head.base, &digest, sizeof digest)), &places);
    assert_int_equal(places.objs[0].err, KVP_NOT_FOUND);
    assert_int_equal(places.nloc, 0);
    places_free(&places);
    r = peer_reply(g->d, peer_send(g->d, KVP_OP_EXISTS, 0, &exists_head.base, &digest, sizeof digest));
    assert_int_equal(r->frame.tail[0], 0);
    reply_free(r);
    r = peer_reply(g->d, peer_send(g->d, KVP_OP_LOOKUP, 0, &lookup_head.base, &digest, sizeof digest));
    assert_int_equal(r->frame.tail[0], 0);
    reply_free(r);
    r = peer_reply(g->d, peer_send(g->d, KVP_OP_REMOVE, 0, &remove_head.base, &digest, sizeof digest));
    memcpy(&result, r->frame.tail, sizeof result);
    assert_int_equal(result, KVP_NOT_FOUND);
    reply_free(r);
    assert_true(exists(g->c, "key/0"));
    peer_forget(g->na);
    places_read(peer_reply(g->d, peer_send(g->d, KVP_OP_GET, 0, &get_head.base, &digest, sizeof digest)), &places);
    assert_int_equal(places.objs[0].err, KVP_NOT_FOUND); /* and not NODE_LOST, which would tell that it is there */
    places_free(&places);
}

RIG_TEST(test_tenants_have_chunks_of_their_own, tenants)
{
    Kvp__Pb__TenantInfo info;
    kvp_wire_loc_t loc, other;
    uint64_t attempt, removed, held;

    assert_int_equal(put_place(g->c, "a", KIB, &attempt, &loc), KVP_OK);
    assert_int_equal(put_place(g->d, "b", KIB, &attempt, &other), KVP_OK);
    assert_int_not_equal(loc.chunk, other.chunk);
    fill(g->c, 0, 5, KIB);
    tenant_info(g->c, &info);
    assert_string_equal(info.tenant, "1");
    assert_int_equal(info.objects, 5);
    assert_int_equal(info.used_bytes, 6 * KIB);
    assert_int_equal(info.chunks, 1);
    assert_int_equal(info.chunk_bytes, MIB);
    peer_forget(g->c);
    g->c = client_open_of(g->w, 1);
    assert_int_equal(remove_many_result(peer_wait(g->c, remove_many(g->c, "", false), SEC), &removed, &held), KVP_OK);
    tenant_info(g->c, &info);
    assert_int_equal(info.chunks, 0); /* what is empty belongs to nobody */
    assert_int_equal(info.chunk_bytes, 0);
    assert_int_equal(info.used_bytes, 0);
}

/* That no chunk has room for one says nothing about the other, who waits behind it. */
RIG_TEST(test_tenants_wait_for_room_of_their_own, tenants)
{
    put_t of_a = {.key = "more", .len = MIB}, of_b = {.key = "b", .len = MIB};
    const char *keys[4] = {"key/0", "key/1", "key/2", "key/3"};
    uint64_t attempts[4], a_asks, b_asks;
    kvp_wire_loc_t loc;

    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(put_place(g->c, keys[i], MIB, &attempts[i], &loc), KVP_OK);
        assert_int_equal(write_place(g->w, &loc), KVP_OK);
    }
    b_asks = put_begin(g->d, &of_b, 1, 10000);
    a_asks = put_begin(g->c, &of_a, 1, 10000);
    assert_true(peer_is_asking(g->d, b_asks) && peer_is_asking(g->c, a_asks));
    assert_int_equal(commit(g->c, attempts[0], 0), KVP_OK);
    granted(g->d, b_asks, KVP_OK); /* who came first takes the first chunk in which all may go */
    assert_true(peer_is_asking(g->c, a_asks));
    assert_int_equal(commit(g->c, attempts[1], 0), KVP_OK);
    granted(g->c, a_asks, KVP_OK);
}

/* Revocations of one say nothing to another, and nobody waits for readers of another. */
RIG_TEST(test_tenants_have_leases_of_their_own, tenants)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest;
    uint64_t id;

    g->c->wants_lease = g->d->wants_lease = true;
    peer_beat(g->c);
    peer_beat(g->d);
    fill(g->c, 0, 1, 100);
    g->c->wants_lease = false;
    g->c->is_silent = true;
    world_advance(g->w, LEASE + 200 * MS);
    digest = kvp_key_digest(g->w->conf.digest_seed, 1, "key/0", 5);
    head.n = 1;
    head.wait = true;
    id = peer_send(g->c, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest);
    assert_int_equal(plain_result(peer_reply(g->c, id)), KVP_OK);
    peer_beat(g->d);
    assert_int_equal(g->d->revoked_n, 0);
    assert_false(g->d->has_dropped_all);
}

TEST(test_hello_when_there_are_too_many_tenants)
{
    enum { MOST = 4096 };
    peer_t *p;
    world_t *w = world_open(&(kvp_master_conf_t){0});

    w->check_every = 0;
    for (uint32_t i = 0; i < MOST; i++)
        (void)client_open_of(w, i);
    p = peer_open(w);
    p->tenant = MOST;
    assert_int_equal(peer_hello(p, KVP_ROLE_CLIENT, "client", "host"), KVP_LIMIT);
    (void)client_open_of(w, MOST - 1); /* one that is known */
    world_check(w);
    world_close(w);
}

/* ---- names */
#define NAME 1104992u
#define OTHER 1297372u /* whose name has the same number */

static kvp_err_t
greeted(world_t *w, uint32_t tenant)
{
    peer_t *p = peer_open(w);
    kvp_err_t err;

    p->tenant = tenant;
    err = peer_hello(p, KVP_ROLE_CLIENT, "client", "host");
    peer_forget(p);
    return err;
}

/* Of two tenants whose names have one number, the pool has one. Its name outlives the master: in the log, and, where
 * that is lost, in the memory of nodes. */
RIG_TEST_ON(test_name_when_anothers_has_the_same_number, .conf = {.has_journal = true}, .size = MIB,
            .has_no_client = true)
{
    assert_int_equal(kvp_tenant_id("1104992"), kvp_tenant_id("1297372"));
    assert_int_equal(greeted(g->w, OTHER), KVP_OK); /* and is forgotten */
    g->c = client_open_of(g->w, NAME);
    assert_int_equal(greeted(g->w, OTHER), KVP_INVALID);
    assert_int_equal(greeted(g->w, NAME), KVP_OK);
    assert_int_equal(put_told(g->c, "key", 100), KVP_OK);
    for (int is_log_lost = 0; is_log_lost < 2; is_log_lost++) {
        if (is_log_lost) g->w->durable = 0;
        rig_restart(g);
        g->na = node_open(g->w, g->a);
        world_advance(g->w, SEC);
        assert_int_equal(greeted(g->w, OTHER), KVP_INVALID);
        g->c = client_open_of(g->w, NAME);
        assert_true(exists(g->c, "key"));
    }
    assert_int_equal(remove_key(g->c, "key", true), KVP_OK);
    peer_forget(g->c);
    world_advance(g->w, SEC);
    assert_int_equal(greeted(g->w, OTHER), KVP_OK);
    g->c = client_open_of(g->w, OTHER);
}

/* ---- room */
RIG_TEST(test_put_when_another_tenant_holds_something_in_all_chunks, tenants)
{
    Kvp__Pb__TenantInfo info;
    uint64_t ticket;

    fill(g->c, 0, 60, 64 * KIB);
    for (uint32_t i = 0; i < 60; i++)
        assert_int_equal(get(g->c, key_name("key/", i), &ticket, NULL), KVP_OK);
    assert_int_equal(put_wait(g->d, "mine", 64 * KIB, 300), KVP_RETRY_AFTER);
    tenant_info(g->c, &info);
    assert_int_equal(info.objects, 60);
    release(g->c, ticket); /* that is not enough: a whole chunk is what changes hands */
    assert_int_equal(put_wait(g->d, "mine", 64 * KIB, 300), KVP_RETRY_AFTER);
    peer_forget(g->c);
    assert_int_equal(put_wait(g->d, "mine", 64 * KIB, 300), KVP_OK);
}

/* Three of them in a pool of eight chunks, whose nodes take their time: whoever puts gets room, from its own or from
 * another, and what is held stays. */
TEST(test_puts_of_tenants_at_random)
{
    enum { TENANTS = 3, STEPS = 3000 };
    world_t *w = world_open(&(kvp_master_conf_t){.seed = 7});
    peer_t *n = node_open(w, mem_make(w, "n1", 2 * MIB, 256 * KIB)), *clients[TENANTS];
    uint64_t tickets[TENANTS] = {0};
    uint32_t held[TENANTS] = {0}, refused = 0;

    w->check_every = 7;
    n->policy = NODE_FREE_LATER;
    n->free_ns = 3 * MS;
    for (uint32_t t = 0; t < TENANTS; t++)
        clients[t] = client_open_of(w, t + 1);
    for (uint32_t i = 0; i < STEPS; i++) {
        /* One after the other has its time, so that chunks change hands. */
        uint32_t t = world_below(w, 4) == 0 ? (uint32_t)world_below(w, TENANTS) : i / 200 % TENANTS;
        uint64_t len = world_below(w, 8) == 0 ? 200 * KIB : 64 + world_below(w, world_below(w, 2) == 0 ? 400 : 20000);
        kvp_err_t err;

        err = put_wait(clients[t], key_name("key/", i), len, 3000);
        assert_true(err == KVP_OK || err == KVP_RETRY_AFTER);
        refused += err != KVP_OK;
        if (tickets[t] != 0) {
            assert_true(exists(clients[t], key_name("key/", held[t])));
        } else if (err == KVP_OK) {
            held[t] = i;
            assert_int_equal(get(clients[t], key_name("key/", i), &tickets[t], NULL), KVP_OK);
        }
        if (tickets[t] != 0 && world_below(w, 5) == 0) {
            release(clients[t], tickets[t]);
            tickets[t] = 0;
        }
    }
    assert_int_equal(world_stats(w).put_no_space, 0);
    assert_true(refused < STEPS / 100);
    assert_true(world_stats(w).evict_window > STEPS / 10);
    world_close(w);
}

/* ---- bump */
RIG_TEST(test_bump_makes_everything_be_gone, tenants)
{
    Kvp__Pb__LookupReply reply;
    const char *key = "key/1";
    uint64_t ticket, removed, held;
    uint32_t epoch;
    Kvp__Pb__TenantInfo info;

    fill(g->c, 0, 1000, 100);
    fill(g->d, 0, 10, 100);
    assert_int_equal(get(g->c, "key/7", &ticket, NULL), KVP_OK); /* a hold does not keep it */
    g->w->is_idle_off = true; /* before the sweep has gone anywhere */
    assert_int_equal(bump_result(peer_reply(g->c, bump_begun(g->c, 0)), &epoch), KVP_OK);
    assert_int_equal(epoch, 1);
    assert_false(exists(g->c, "key/1"));
    assert_int_equal(get(g->c, "key/1", NULL, NULL), KVP_NOT_FOUND);
    assert_int_equal(lookup(g->c, &key, 1, false, 0, &reply, NULL), 0);
    assert_int_equal(remove_key(g->c, "key/1", true), KVP_NOT_FOUND);
    assert_int_equal(listed(g->c), 0);
    assert_int_equal(put(g->c, "key/1", 100), KVP_OK); /* and no ALREADY */
    assert_true(exists(g->c, "key/1"));
    assert_int_equal(listed(g->d), 10);
    g->w->is_idle_off = false;
    world_advance(g->w, 100 * MS);
    assert_true(exists(g->c, "key/1")); /* the sweep leaves what is new */
    tenant_info(g->c, &info);
    assert_int_equal(info.objects, 1);
    assert_int_equal(info.epoch, 1);
    release(g->c, ticket);
    assert_int_equal(remove_many_result(peer_wait(g->d, remove_many(g->d, "", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 10);
}

/* A later master would adopt what is sealed: its writer is not told that it was refused before it is dead, or has had
 * time to be. */
RIG_TEST(test_refused_commit_waits_for_dead, tenants)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t rec = {.sum = 300, .replicas = 1};
    kvp_wire_loc_t loc;
    uint32_t epoch;
    uint64_t id;
    reply_t *r;

    assert_int_equal(put_place(g->c, "key", 100, &rec.attempt, &loc), KVP_OK);
    assert_int_equal(bump_result(peer_reply(g->c, bump_begun(g->c, 0)), &epoch), KVP_OK);
    assert_int_equal(write_place(g->w, &loc), KVP_OK);
    g->na->policy = NODE_MUTE;
    head.n = 1;
    id = peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec);
    assert_true(peer_is_asking(g->c, id));
    world_advance(g->w, 40 * MS);
    assert_true(peer_is_asking(g->c, id));
    r = peer_wait(g->c, id, 100 * MS);
    assert_non_null(r);
    assert_int_equal(*(const int32_t *)r->frame.tail, KVP_ABORTED);
    reply_free(r);
}

RIG_TEST(test_bump_tells_the_epoch_to_writers, tenants)
{
    Kvp__Pb__Places *places;
    put_t one = {.key = "key", .len = 100};
    uint32_t epoch;
    kvp_pb_t pb;
    reply_t *r;

    for (uint32_t i = 1; i <= 2; i++) {
        assert_int_equal(bump_result(peer_reply(g->c, bump_begun(g->c, 0)), &epoch), KVP_OK);
        assert_int_equal(epoch, i);
    }
    r = peer_reply(g->c, put_begin(g->c, &one, 1, 0));
    places = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, &r->frame);
    assert_int_equal(places->ns_epoch, 2);
    kvp_pb_free(&pb, places);
    reply_free(r);
}

/* A removal of everything that is not whole removes nothing, nor does one of an epoch that is over. */
RIG_TEST(test_all_must_be_said, tenants)
{
    Kvp__Pb__RemoveMany many = KVP__PB__REMOVE_MANY__INIT;
    Kvp__Pb__Bump bump = KVP__PB__BUMP__INIT;

    assert_int_equal(put(g->c, "key", 100), KVP_OK);
    assert_int_equal(plain_result(peer_reply(g->c, peer_send(g->c, KVP_OP_REMOVE_MANY, 0, &many.base, NULL, 0))),
                     KVP_INVALID);
    many.is_all = true;
    many.pattern = (char *)"key";
    assert_int_equal(plain_result(peer_reply(g->c, peer_send(g->c, KVP_OP_REMOVE_MANY, 0, &many.base, NULL, 0))),
                     KVP_INVALID);
    assert_int_equal(plain_result(peer_reply(g->c, peer_send(g->c, KVP_OP_BUMP, 0, &bump.base, NULL, 0))), KVP_INVALID);
    bump.is_all = bump.has_epoch = true;
    bump.epoch = 1;
    assert_int_equal(plain_result(peer_reply(g->c, peer_send(g->c, KVP_OP_BUMP, 0, &bump.base, NULL, 0))), KVP_STALE);
    assert_true(exists(g->c, "key"));
    bump.epoch = 0;
    assert_int_equal(plain_result(peer_reply(g->c, peer_send(g->c, KVP_OP_BUMP, 0, &bump.base, NULL, 0))), KVP_OK);
    assert_false(exists(g->c, "key"));
    assert_int_equal(plain_result(peer_reply(g->c, peer_send(g->c, KVP_OP_BUMP, 0, &bump.base, NULL, 0))), KVP_STALE);
}

static void
expect_stale(reply_t *r, uint32_t epoch)
{
    Kvp__Pb__Places *places;
    kvp_pb_t pb;

    places = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, &r->frame);
    assert_int_equal(places->err, KVP_STALE);
    assert_int_equal(places->ns_epoch, epoch);
    kvp_pb_free(&pb, places);
    reply_free(r);
}

/* It gets its place after the bump, and gives it back: nothing is begun. */
RIG_TEST(test_put_that_waits_is_stale_after_a_bump, tenants)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = "more", .len = MIB};
    uint64_t attempts[4], id;
    kvp_wire_loc_t loc;
    uint32_t epoch;

    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(put_place(g->c, key_name("key/", i), MIB, &attempts[i], &loc), KVP_OK);
    head.has_epoch = true;
    head.wait_ms = 10000;
    id = put_begin_with(g->c, &one, 1, &head);
    assert_int_equal(bump_result(peer_reply(g->c, bump_begun(g->c, 0)), &epoch), KVP_OK);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(abort_put(g->c, attempts[0], true), KVP_OK);
    expect_stale(peer_wait(g->c, id, SEC), 1);
    assert_int_equal(world_stats(g->w).attempts, 3);
    expect_stale(peer_reply(g->c, put_begin_with(g->c, &one, 1, &head)), 1);
    head.epoch = 1;
    assert_int_equal(attempt_begin(g->c, &one, &head, &loc, NULL), KVP_OK);
}

RIG_TEST(test_bump_waits_for_leases, tenants)
{
    uint32_t epoch;
    uint64_t id;
    peer_t *r = client_open_of(g->w, 1);

    r->wants_lease = true;
    peer_beat(r);
    fill(g->c, 0, 3, 100);
    id = bump_begun(g->c, 0);
    assert_false(exists(g->c, "key/0"));
    assert_true(peer_is_asking(g->c, id));
    peer_beat(r);
    assert_true(r->has_dropped_all);
    assert_true(peer_is_asking(g->c, id));
    peer_beat(r);
    assert_int_equal(bump_result(peer_reply(g->c, id), &epoch), KVP_OK);
    r->is_silent = true; /* its lease still has some time */
    id = bump_begun(g->c, 300);
    world_advance(g->w, 280 * MS);
    assert_true(peer_is_asking(g->c, id));
    world_advance(g->w, 40 * MS);
    assert_int_equal(bump_result(peer_reply(g->c, id), &epoch), KVP_DEADLINE);
    assert_int_equal(epoch, 2); /* it is done all the same */
}

/* A bump while the sweep of the last one is under way: what came between is swept as well. */
RIG_TEST(test_bump_again_before_the_sweep_is_over, tenants)
{
    Kvp__Pb__TenantInfo info;
    uint32_t epoch;

    g->w->check_every = 100;
    fill(g->c, 0, 2000, 100);
    g->w->is_idle_off = true;
    assert_int_equal(bump_result(peer_reply(g->c, bump_begun(g->c, 0)), &epoch), KVP_OK);
    kvp_master_on_tick(g->w->m, g->w->now);
    assert_true(world_has_work(g->w));
    fill(g->c, 0, 100, 100);
    assert_int_equal(bump_result(peer_reply(g->c, bump_begun(g->c, 0)), &epoch), KVP_OK);
    g->w->is_idle_off = false;
    world_advance(g->w, SEC);
    tenant_info(g->c, &info);
    assert_int_equal(info.objects, 0);
    assert_int_equal(info.used_bytes, 0);
    assert_int_equal(world_stats(g->w).bumped, 2100);
}

/* ---- tenants that are forgotten */
#define MANY 4095u

/* Each of so many new tenants bumps, and is gone. How many were greeted, or bumped. */
static uint32_t
bump_new_ones(world_t *w, uint32_t from, uint32_t n)
{
    uint32_t bumped = 0, epoch;

    for (uint32_t i = from; i < from + n; i++) {
        peer_t *p = peer_open(w);

        p->tenant = i;
        if (peer_hello(p, KVP_ROLE_CLIENT, "stranger", "stranger") == KVP_OK)
            bumped += bump_result(peer_reply(p, bump_begun(p, 0)), &epoch) == KVP_OK;
        peer_forget(p);
    }
    return bumped;
}

RIG_TEST(test_tenants_that_own_nothing_are_forgotten, tenants)
{
    uint32_t epoch;

    g->w->check_every = 0;
    assert_int_equal(put_told(g->c, "mine", 100), KVP_OK);
    assert_int_equal(bump_new_ones(g->w, 10, MANY), MANY);
    world_advance(g->w, SEC);
    assert_int_equal(bump_new_ones(g->w, 10000, MANY), MANY);
    g->d = client_open_of(g->w, 10);
    assert_int_equal(bump_result(peer_reply(g->d, bump_begun(g->d, 0)), &epoch), KVP_OK);
    assert_true(epoch > 1); /* that of before does not come twice */
    assert_true(exists(g->c, "mine"));
    world_check(g->w);
}

/* What was bumped may lie on a node that is away: as long as that is so it is kept in mind, and those who use the pool
 * are not refused for that. */
RIG_TEST(test_tenants_are_kept_in_mind_while_a_node_is_away, two_tenants)
{
    uint32_t epoch;

    g->w->check_every = 0;
    peer_forget(g->nb);
    assert_int_equal(put_told(g->d, "old", 100), KVP_OK); /* on a */
    g->nb = node_open_on(g->w, g->b, "b");
    peer_forget(g->na);
    assert_int_equal(bump_result(peer_wait(g->d, bump_begun(g->d, 0), SEC), &epoch), KVP_OK);
    peer_forget(g->d);
    assert_int_equal(bump_new_ones(g->w, 10, MANY), MANY - 1); /* d was the first */
    world_advance(g->w, SEC);
    assert_int_equal(bump_new_ones(g->w, 10000, 1), 0);
    g->d = client_open_of(g->w, 20000);
    g->na = node_open(g->w, g->a);
    assert_int_equal(put_told(g->d, "new", 100), KVP_OK);
    peer_forget(g->d);
    g->d = client_open_of(g->w, 2);
    assert_false(exists(g->d, "old"));
    world_advance(g->w, SEC);
    assert_int_equal(bump_new_ones(g->w, 10000, 1), 1);
    world_check(g->w);
}

/* What the log says of strangers' bumps takes no place of those whose objects they report. */
RIG_TEST(test_bumps_that_are_told_displace_nobody, two_with_log)
{
    g->w->check_every = 0;
    peer_forget(g->nb);
    assert_int_equal(put_told(g->c, "mine", 100), KVP_OK); /* on a */
    assert_int_equal(bump_new_ones(g->w, 10, MANY), MANY);
    world_restart(g->w);
    (void)node_open(g->w, g->a);
    g->c = client_open_of(g->w, 1);
    assert_true(exists(g->c, "mine"));
    g->d = client_open_of(g->w, 50000);
    (void)node_open(g->w, g->b);
    assert_int_equal(put_told(g->d, "new", 100), KVP_OK);
    world_advance(g->w, g->w->conf.node_grace_ns + SEC);
    world_check(g->w);
}

/* A master that forgot a bump lets nobody bring back what it took away: not memory that it had given up, with the next
 * master, and not memory that it never knew. */
static void
bump_holds(rig_t *g, bool is_given_up_before)
{
    uint32_t epoch;
    bool is_reset;
    peer_t *d;

    peer_forget(g->na);
    assert_int_equal(put_told(g->d, "old", 100), KVP_OK); /* on b */
    peer_forget(g->nb);
    g->na = node_open(g->w, g->a);
    if (is_given_up_before) {
        g->w->durable = 0; /* a log that knows nothing of b */
        world_restart(g->w);
        g->na = node_open(g->w, g->a);
        g->c = client_open_of(g->w, 1);
        g->d = client_open_of(g->w, 2);
    }
    world_advance(g->w, 30 * SEC); /* nodes may not come any more, and leases of the master before are over */
    assert_int_equal(bump_result(peer_wait(g->d, bump_begun(g->d, 0), SEC), &epoch), KVP_OK);
    peer_forget(g->d);
    world_advance(g->w, 2 * SEC);
    world_restart_boot(g->w);
    g->nb = peer_open(g->w);
    g->nb->mem = g->b;
    assert_int_equal(peer_hello(g->nb, KVP_ROLE_NODE, "b", "b"), KVP_OK);
    assert_int_equal(node_mount(g->nb, &is_reset), KVP_OK);
    assert_int_equal(is_reset, is_given_up_before);
    g->na = node_open_on(g->w, g->a, "a");
    world_advance(g->w, 5 * SEC);
    d = client_open_of(g->w, 2);
    assert_false(exists(d, "old"));
    world_check(g->w);
}

RIG_TEST(test_bump_holds_for_memory_that_was_given_up, two_with_log)
{
    bump_holds(g, false);
}

RIG_TEST(test_bump_holds_for_memory_that_was_never_known, two_with_log)
{
    bump_holds(g, true);
}

TEST_MAIN()
