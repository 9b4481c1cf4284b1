/* SPDX-License-Identifier: Apache-2.0
 * Tenants: what they see of one another, and the bump that makes everything of one be gone at once.
 */
#include "tests/world/world.h"

#include <stdio.h>

#define KEY_LEN 24
#define LEASE SEC

static world_t *
tenant_world(peer_t **n_out, peer_t **a_out, peer_t **b_out)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});

    *n_out = node_open(w, mem_make(w, "n1", 4 * MIB, MIB));
    *a_out = client_open_of(w, 1);
    *b_out = client_open_of(w, 2);
    return w;
}

static void
fill(peer_t *c, uint32_t n, uint64_t len)
{
    char key[KEY_LEN];

    for (uint32_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "key/%u", i);
        assert_int_equal(put(c, key, len), KVP_OK);
    }
}

static void
tenant_info(peer_t *c, Kvp__Pb__TenantInfo *out)
{
    Kvp__Pb__StatusReply *head;
    kvp_pb_t pb;
    reply_t *r = peer_reply(c, peer_send(c, KVP_OP_STATUS, 0, NULL, NULL, 0));

    head = kvp_pb_unpack(&pb, &kvp__pb__status_reply__descriptor, &r->frame);
    assert_non_null(head);
    assert_int_equal(head->n_tenants, 1);
    *out = *head->tenants[0];
    kvp_pb_free(&pb, head);
    reply_free(r);
}

static uint64_t
bump(peer_t *c, uint32_t wait_ms)
{
    Kvp__Pb__Bump head = KVP__PB__BUMP__INIT;

    head.wait_ms = wait_ms;
    return peer_send(c, KVP_OP_BUMP, 0, &head.base, NULL, 0);
}

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

static uint32_t
list_n(peer_t *c)
{
    Kvp__Pb__List head = KVP__PB__LIST__INIT;
    Kvp__Pb__ListReply *reply;
    kvp_pb_t pb;
    reply_t *r = peer_reply(c, peer_send(c, KVP_OP_LIST, 0, &head.base, NULL, 0));
    uint32_t n;

    reply = kvp_pb_unpack(&pb, &kvp__pb__list_reply__descriptor, &r->frame);
    assert_non_null(reply);
    assert_int_equal(reply->cursor, 0);
    n = reply->n;
    kvp_pb_free(&pb, reply);
    reply_free(r);
    return n;
}

/* ---- apart */
static void
test_tenants_have_keys_of_their_own(void **state)
{
    uint64_t removed, held;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);

    (void)state;
    fill(a, 10, 100);
    assert_false(exists(b, "key/0"));
    fill(b, 3, 200); /* the same keys, and no ALREADY */
    assert_int_equal(list_n(a), 10);
    assert_int_equal(list_n(b), 3);
    assert_int_equal(remove_many_result(peer_wait(b, remove_many(b, "", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 3);
    assert_int_equal(list_n(a), 10);
    assert_int_equal(list_n(b), 0);
    assert_true(exists(a, "key/0"));
    world_close(w);
}

/* Whoever has got hold of another tenant's digest finds nothing under it. */
static void
test_tenants_when_one_knows_the_digest_of_another(void **state)
{
    Kvp__Pb__Get get_head = KVP__PB__GET__INIT;
    Kvp__Pb__Exists exists_head = KVP__PB__EXISTS__INIT;
    Kvp__Pb__Lookup lookup_head = KVP__PB__LOOKUP__INIT;
    Kvp__Pb__Remove remove_head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest;
    places_t places;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);
    int32_t result;
    reply_t *r;

    (void)state;
    fill(a, 1, 100);
    digest = kvp_key_digest(w->conf.digest_seed, 1, "key/0", 5);
    get_head.n = exists_head.n = lookup_head.n = remove_head.n = 1;
    places_read(peer_reply(b, peer_send(b, KVP_OP_GET, 0, &get_head.base, &digest, sizeof digest)), &places);
    assert_int_equal(places.objs[0].err, KVP_NOT_FOUND);
    assert_int_equal(places.nloc, 0);
    places_free(&places);
    r = peer_reply(b, peer_send(b, KVP_OP_EXISTS, 0, &exists_head.base, &digest, sizeof digest));
    assert_int_equal(r->frame.tail[0], 0);
    reply_free(r);
    r = peer_reply(b, peer_send(b, KVP_OP_LOOKUP, 0, &lookup_head.base, &digest, sizeof digest));
    assert_int_equal(r->frame.tail[0], 0);
    reply_free(r);
    r = peer_reply(b, peer_send(b, KVP_OP_REMOVE, 0, &remove_head.base, &digest, sizeof digest));
    memcpy(&result, r->frame.tail, sizeof result);
    assert_int_equal(result, KVP_NOT_FOUND);
    reply_free(r);
    assert_true(exists(a, "key/0"));
    peer_forget(n);
    places_read(peer_reply(b, peer_send(b, KVP_OP_GET, 0, &get_head.base, &digest, sizeof digest)), &places);
    assert_int_equal(places.objs[0].err, KVP_NOT_FOUND); /* and not NODE_LOST, which would tell that it is there */
    places_free(&places);
    world_close(w);
}

static void
test_tenants_have_chunks_of_their_own(void **state)
{
    Kvp__Pb__TenantInfo info;
    kvp_wire_loc_t loc, other;
    uint64_t attempt, removed, held;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);

    (void)state;
    assert_int_equal(put_place(a, "a", KIB, &attempt, &loc), KVP_OK);
    assert_int_equal(put_place(b, "b", KIB, &attempt, &other), KVP_OK);
    assert_int_not_equal(loc.chunk, other.chunk);
    fill(a, 5, KIB);
    tenant_info(a, &info);
    assert_int_equal(info.tenant, 1);
    assert_int_equal(info.objects, 5);
    assert_int_equal(info.used_bytes, 6 * KIB);
    assert_int_equal(info.chunks, 1);
    assert_int_equal(info.chunk_bytes, MIB);
    peer_forget(a);
    a = client_open_of(w, 1);
    assert_int_equal(remove_many_result(peer_wait(a, remove_many(a, "", false), SEC), &removed, &held), KVP_OK);
    tenant_info(a, &info);
    assert_int_equal(info.chunks, 0); /* what is empty belongs to nobody */
    assert_int_equal(info.chunk_bytes, 0);
    assert_int_equal(info.used_bytes, 0);
    world_close(w);
}

/* That no chunk has room for one says nothing about the other, who waits behind it. */
static void
test_tenants_wait_for_room_of_their_own(void **state)
{
    put_t of_a = {.key = "more", .len = MIB}, of_b = {.key = "b", .len = MIB};
    const char *keys[4] = {"key/0", "key/1", "key/2", "key/3"};
    uint64_t attempts[4], a_asks, b_asks;
    kvp_wire_loc_t loc;
    places_t places;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(put_place(a, keys[i], MIB, &attempts[i], &loc), KVP_OK);
        assert_int_equal(write_place(w, &loc), KVP_OK);
    }
    b_asks = put_begin(b, &of_b, 1, 10000);
    a_asks = put_begin(a, &of_a, 1, 10000);
    assert_true(peer_is_asking(b, b_asks) && peer_is_asking(a, a_asks));
    assert_int_equal(commit(a, attempts[0], 0), KVP_OK);
    places_read(peer_reply(b, b_asks), &places); /* who came first takes the first chunk in which all may go */
    assert_int_equal(places.objs[0].err, KVP_OK);
    places_free(&places);
    assert_true(peer_is_asking(a, a_asks));
    assert_int_equal(commit(a, attempts[1], 0), KVP_OK);
    places_read(peer_reply(a, a_asks), &places);
    assert_int_equal(places.objs[0].err, KVP_OK);
    places_free(&places);
    world_close(w);
}

/* Revocations of one say nothing to another, and nobody waits for readers of another. */
static void
test_tenants_have_leases_of_their_own(void **state)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);
    uint64_t id;

    (void)state;
    a->wants_lease = b->wants_lease = true;
    peer_beat(a);
    peer_beat(b);
    fill(a, 1, 100);
    a->wants_lease = false;
    a->is_silent = true;
    world_advance(w, LEASE + 200 * MS);
    digest = kvp_key_digest(w->conf.digest_seed, 1, "key/0", 5);
    head.n = 1;
    head.wait = true;
    id = peer_send(a, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest);
    assert_int_equal(plain_result(peer_reply(a, id)), KVP_OK);
    peer_beat(b);
    assert_int_equal(b->revoked_n, 0);
    assert_false(b->has_dropped_all);
    world_close(w);
}

static void
test_hello_when_there_are_too_many_tenants(void **state)
{
    enum { MOST = 4096 };
    peer_t *p;
    world_t *w = world_open(&(kvp_master_conf_t){0});

    (void)state;
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

/* ---- room */
/* One has filled the pool: the other takes a whole chunk of it, and goes on in that. */
static void
test_put_when_another_tenant_has_all_chunks(void **state)
{
    Kvp__Pb__TenantInfo info;
    uint64_t ticket[3];
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);
    char key[KEY_LEN];

    (void)state;
    fill(a, 60, 64 * KIB); /* four chunks of sixteen */
    tenant_info(a, &info);
    assert_int_equal(info.chunks, 4);
    for (uint32_t i = 0; i < 3; i++) { /* one chunk is left in which nothing is held */
        snprintf(key, sizeof key, "key/%u", 16 * i + 1);
        assert_int_equal(get(a, key, &ticket[i], NULL), KVP_OK);
    }
    assert_int_equal(put_wait(b, "mine", 64 * KIB, 2000), KVP_OK);
    tenant_info(b, &info);
    assert_int_equal(info.chunks, 1);
    tenant_info(a, &info);
    assert_int_equal(info.chunks, 3);
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "key/%u", 16 * i + 1);
        assert_true(exists(a, key));
        release(a, ticket[i]);
    }
    for (uint32_t i = 0; i < 15; i++) { /* from now on it has room of its own */
        snprintf(key, sizeof key, "mine/%u", i);
        assert_int_equal(put_wait(b, key, 64 * KIB, 2000), KVP_OK);
    }
    tenant_info(a, &info);
    assert_int_equal(info.chunks, 3);
    world_close(w);
}

static void
test_put_when_another_tenant_holds_something_in_all_chunks(void **state)
{
    Kvp__Pb__TenantInfo info;
    uint64_t ticket;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);
    char key[KEY_LEN];

    (void)state;
    fill(a, 60, 64 * KIB);
    for (uint32_t i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "key/%u", i);
        assert_int_equal(get(a, key, &ticket, NULL), KVP_OK);
    }
    assert_int_equal(put_wait(b, "mine", 64 * KIB, 300), KVP_RETRY_AFTER);
    tenant_info(a, &info);
    assert_int_equal(info.objects, 60);
    release(a, ticket); /* that is not enough: a whole chunk is what changes hands */
    assert_int_equal(put_wait(b, "mine", 64 * KIB, 300), KVP_RETRY_AFTER);
    peer_forget(a);
    assert_int_equal(put_wait(b, "mine", 64 * KIB, 300), KVP_OK);
    world_close(w);
}

/* Three of them in a pool of eight chunks, whose nodes take their time: whoever puts gets room, from its own or from
 * another, and what is held stays. */
static void
test_puts_of_tenants_at_random(void **state)
{
    enum { TENANTS = 3, STEPS = 3000 };
    world_t *w = world_open(&(kvp_master_conf_t){.seed = 7});
    peer_t *n = node_open(w, mem_make(w, "n1", 2 * MIB, 256 * KIB)), *clients[TENANTS];
    uint64_t tickets[TENANTS] = {0};
    uint32_t held[TENANTS] = {0}, refused = 0;
    char key[KEY_LEN];

    (void)state;
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

        snprintf(key, sizeof key, "key/%u", i);
        err = put_wait(clients[t], key, len, 3000);
        assert_true(err == KVP_OK || err == KVP_RETRY_AFTER);
        refused += err != KVP_OK;
        if (tickets[t] != 0) {
            snprintf(key, sizeof key, "key/%u", held[t]);
            assert_true(exists(clients[t], key));
        } else if (err == KVP_OK) {
            held[t] = i;
            assert_int_equal(get(clients[t], key, &tickets[t], NULL), KVP_OK);
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
static void
test_bump_makes_everything_be_gone(void **state)
{
    Kvp__Pb__LookupReply reply;
    const char *key = "key/1";
    uint64_t ticket, removed, held;
    uint32_t epoch;
    Kvp__Pb__TenantInfo info;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);

    (void)state;
    fill(a, 1000, 100);
    fill(b, 10, 100);
    assert_int_equal(get(a, "key/7", &ticket, NULL), KVP_OK); /* a hold does not keep it */
    w->is_idle_off = true; /* before the sweep has gone anywhere */
    assert_int_equal(bump_result(peer_reply(a, bump(a, 0)), &epoch), KVP_OK);
    assert_int_equal(epoch, 1);
    assert_false(exists(a, "key/1"));
    assert_int_equal(get(a, "key/1", NULL, NULL), KVP_NOT_FOUND);
    assert_int_equal(lookup(a, &key, 1, false, 0, &reply, NULL), 0);
    assert_int_equal(remove_key(a, "key/1", true), KVP_NOT_FOUND);
    assert_int_equal(list_n(a), 0);
    assert_int_equal(put(a, "key/1", 100), KVP_OK); /* and no ALREADY */
    assert_true(exists(a, "key/1"));
    assert_int_equal(list_n(b), 10);
    w->is_idle_off = false;
    world_advance(w, 100 * MS);
    assert_true(exists(a, "key/1")); /* the sweep leaves what is new */
    tenant_info(a, &info);
    assert_int_equal(info.objects, 1);
    assert_int_equal(info.epoch, 1);
    release(a, ticket);
    assert_int_equal(remove_many_result(peer_wait(b, remove_many(b, "", false), SEC), &removed, &held), KVP_OK);
    assert_int_equal(removed, 10);
    world_close(w);
}

/* What was computed before the bump is of the old epoch, whenever it is committed and wherever it waits. */
/* A later master would adopt what is sealed: its writer is not told that it was refused before it is dead, or owed. */
static void
test_refused_commit_waits_for_dead(void **state)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t rec = {.sum = 300, .replicas = 1};
    kvp_wire_loc_t loc;
    uint32_t epoch;
    uint64_t id;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);
    reply_t *r;

    (void)state;
    assert_int_equal(put_place(a, "key", 100, &rec.attempt, &loc), KVP_OK);
    assert_int_equal(bump_result(peer_reply(a, bump(a, 0)), &epoch), KVP_OK);
    assert_int_equal(write_place(w, &loc), KVP_OK);
    n->policy = NODE_MUTE;
    head.n = 1;
    id = peer_send(a, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec);
    assert_true(peer_is_asking(a, id));
    world_advance(w, 40 * MS);
    assert_true(peer_is_asking(a, id));
    r = peer_wait(a, id, 100 * MS); /* owed now */
    assert_non_null(r);
    assert_int_equal(*(const int32_t *)r->frame.tail, KVP_ABORTED);
    reply_free(r);
    world_close(w);
}

static void
test_bump_when_puts_are_under_way(void **state)
{
    kvp_wire_loc_t loc;
    uint64_t attempt;
    uint32_t epoch;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);

    (void)state;
    assert_int_equal(put_place(a, "key", 100, &attempt, &loc), KVP_OK);
    assert_int_equal(bump_result(peer_reply(a, bump(a, 0)), &epoch), KVP_OK);
    assert_int_equal(write_place(w, &loc), KVP_OK);
    assert_int_equal(commit(a, attempt, 300), KVP_ABORTED);
    assert_false(exists(a, "key"));
    assert_int_equal(put(a, "key", 100), KVP_OK);
    assert_true(exists(a, "key"));
    world_close(w);
}

static void
test_bump_tells_the_epoch_to_writers(void **state)
{
    Kvp__Pb__Places *places;
    put_t one = {.key = "key", .len = 100};
    uint32_t epoch;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);
    kvp_pb_t pb;
    reply_t *r;

    (void)state;
    for (uint32_t i = 1; i <= 2; i++) {
        assert_int_equal(bump_result(peer_reply(a, bump(a, 0)), &epoch), KVP_OK);
        assert_int_equal(epoch, i);
    }
    r = peer_reply(a, put_begin(a, &one, 1, 0));
    places = kvp_pb_unpack(&pb, &kvp__pb__places__descriptor, &r->frame);
    assert_int_equal(places->ns_epoch, 2);
    kvp_pb_free(&pb, places);
    reply_free(r);
    world_close(w);
}

static void
test_bump_waits_for_leases(void **state)
{
    uint32_t epoch;
    uint64_t id;
    peer_t *n, *a, *b, *r;
    world_t *w = tenant_world(&n, &a, &b);

    (void)state;
    r = client_open_of(w, 1);
    r->wants_lease = true;
    peer_beat(r);
    fill(a, 3, 100);
    id = bump(a, 0);
    assert_false(exists(a, "key/0"));
    assert_true(peer_is_asking(a, id));
    peer_beat(r);
    assert_true(r->has_dropped_all);
    assert_true(peer_is_asking(a, id));
    peer_beat(r);
    assert_int_equal(bump_result(peer_reply(a, id), &epoch), KVP_OK);
    r->is_silent = true; /* its lease still has some time */
    id = bump(a, 300);
    world_advance(w, 280 * MS);
    assert_true(peer_is_asking(a, id));
    world_advance(w, 40 * MS);
    assert_int_equal(bump_result(peer_reply(a, id), &epoch), KVP_DEADLINE);
    assert_int_equal(epoch, 2); /* it is done all the same */
    world_close(w);
}

/* A bump while the sweep of the last one is under way: what came between is swept as well. */
static void
test_bump_again_before_the_sweep_is_over(void **state)
{
    Kvp__Pb__TenantInfo info;
    uint32_t epoch;
    peer_t *n, *a, *b;
    world_t *w = tenant_world(&n, &a, &b);

    (void)state;
    w->check_every = 100;
    fill(a, 2000, 100);
    w->is_idle_off = true;
    assert_int_equal(bump_result(peer_reply(a, bump(a, 0)), &epoch), KVP_OK);
    kvp_master_on_tick(w->m, w->now);
    assert_true(kvp_master_has_work(w->m));
    fill(a, 100, 100);
    assert_int_equal(bump_result(peer_reply(a, bump(a, 0)), &epoch), KVP_OK);
    w->is_idle_off = false;
    world_advance(w, SEC);
    tenant_info(a, &info);
    assert_int_equal(info.objects, 0);
    assert_int_equal(info.used_bytes, 0);
    assert_int_equal(world_stats(w).bumped, 2100);
    world_close(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tenants_have_keys_of_their_own),
        cmocka_unit_test(test_tenants_when_one_knows_the_digest_of_another),
        cmocka_unit_test(test_tenants_have_chunks_of_their_own),
        cmocka_unit_test(test_tenants_wait_for_room_of_their_own),
        cmocka_unit_test(test_tenants_have_leases_of_their_own),
        cmocka_unit_test(test_hello_when_there_are_too_many_tenants),
        cmocka_unit_test(test_put_when_another_tenant_has_all_chunks),
        cmocka_unit_test(test_put_when_another_tenant_holds_something_in_all_chunks),
        cmocka_unit_test(test_puts_of_tenants_at_random),
        cmocka_unit_test(test_bump_makes_everything_be_gone),
        cmocka_unit_test(test_refused_commit_waits_for_dead),
        cmocka_unit_test(test_bump_when_puts_are_under_way),
        cmocka_unit_test(test_bump_tells_the_epoch_to_writers),
        cmocka_unit_test(test_bump_waits_for_leases),
        cmocka_unit_test(test_bump_again_before_the_sweep_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
