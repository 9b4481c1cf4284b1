/* SPDX-License-Identifier: Apache-2.0
 * Holds and reservations: what they protect, how long, and how much one may have.
 */
#include "tests/world/world.h"

#include "common/slab.h"

#include <stdio.h>

#define KEY_LEN 24

static void
fill(peer_t *c, uint32_t from, uint32_t to, uint64_t len)
{
    char key[KEY_LEN];

    for (uint32_t i = from; i < to; i++) {
        snprintf(key, sizeof key, "key/%u", i);
        assert_int_equal(put(c, key, len), KVP_OK);
    }
}

/* Keys "key/from" on, for a lookup. */
typedef struct {
    char text[512][KEY_LEN];
    const char *at[512];
} keys_t;

static keys_t *
keys(uint32_t from, uint32_t n)
{
    keys_t *k = calloc(1, sizeof *k);

    assert_true(n <= KVP_ARRAY_LEN(k->at));
    for (uint32_t i = 0; i < n; i++) {
        snprintf(k->text[i], KEY_LEN, "key/%u", from + i);
        k->at[i] = k->text[i];
    }
    return k;
}

/* One megabyte of a hundred and twenty-eight blocks. */
static world_t *
block_world(peer_t **n_out, peer_t **c_out)
{
    world_t *w = world_open(&(kvp_master_conf_t){.lease_ns = 5 * SEC});

    *n_out = node_open(w, mem_make(w, "n1", MIB, MIB));
    *c_out = client_open(w);
    return w;
}

static void
test_hold_keeps_an_object(void **state)
{
    uint64_t ticket, again;
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 1, 8 * KIB);
    assert_int_equal(get(c, "key/0", &ticket, NULL), KVP_OK);
    assert_int_equal(get(c, "key/0", &again, NULL), KVP_OK);
    fill(c, 1, 300, 8 * KIB);
    assert_true(exists(c, "key/0"));
    release(c, ticket);
    fill(c, 300, 500, 8 * KIB);
    assert_true(exists(c, "key/0")); /* the second one still holds it */
    release(c, again);
    fill(c, 500, 600, 8 * KIB);
    assert_true(exists(c, "key/0")); /* what was held was used when it was released */
    fill(c, 600, 750, 8 * KIB);
    assert_false(exists(c, "key/0"));
    world_close(w);
}

static void
test_hold_ends_with_the_session(void **state)
{
    uint64_t ticket;
    peer_t *n, *c, *d;
    world_t *w = block_world(&n, &c);

    (void)state;
    d = client_open(w);
    fill(c, 0, 1, 8 * KIB);
    assert_int_equal(get(d, "key/0", &ticket, NULL), KVP_OK);
    assert_int_equal(remove_key(c, "key/0", false), KVP_HELD);
    peer_forget(d);
    assert_int_equal(world_stats(w).held_bytes, 0);
    assert_int_equal(remove_key(c, "key/0", false), KVP_OK);
    world_close(w);
}

static void
test_release_when_it_is_not_ours(void **state)
{
    uint64_t ticket;
    peer_t *n, *c, *d;
    world_t *w = block_world(&n, &c);

    (void)state;
    d = client_open(w);
    fill(c, 0, 1, 8 * KIB);
    assert_int_equal(get(c, "key/0", &ticket, NULL), KVP_OK);
    release(d, ticket);
    release(c, 0);
    release(c, ticket + 1);
    release(c, UINT64_MAX);
    assert_int_equal(world_stats(w).held_bytes, 8 * KIB);
    release(c, ticket);
    release(c, ticket);
    assert_int_equal(world_stats(w).held_bytes, 0);
    world_close(w);
}

static void
test_get_without_hold(void **state)
{
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 1, 8 * KIB);
    assert_int_equal(get(c, "key/0", NULL, NULL), KVP_OK);
    assert_int_equal(world_stats(w).held_bytes, 0);
    world_close(w);
}

/* ---- reservations */
static void
test_lookup_expires(void **state)
{
    Kvp__Pb__LookupReply reply;
    keys_t *k = keys(0, 1);
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 1, 8 * KIB);
    assert_int_not_equal(lookup(c, k->at, 1, false, 1000, &reply, NULL), 0);
    assert_int_equal(reply.ttl_ms, 1000);
    assert_int_equal(world_stats(w).reserved_bytes, 8 * KIB);
    assert_int_equal(remove_key(c, "key/0", false), KVP_HELD);
    fill(c, 1, 200, 8 * KIB);
    assert_true(exists(c, "key/0"));
    world_advance(w, 990 * MS);
    assert_int_equal(world_stats(w).reserved_bytes, 8 * KIB);
    world_advance(w, 20 * MS);
    assert_int_equal(world_stats(w).reserved_bytes, 0);
    assert_int_equal(remove_key(c, "key/0", false), KVP_OK);
    free(k);
    world_close(w);
}

static void
test_lookup_ttl_is_capped(void **state)
{
    Kvp__Pb__LookupReply reply;
    keys_t *k = keys(0, 1);
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 1, 8 * KIB);
    (void)lookup(c, k->at, 1, false, 0, &reply, NULL);
    assert_int_equal(reply.ttl_ms, 5000);
    (void)lookup(c, k->at, 1, false, UINT32_MAX, &reply, NULL);
    assert_int_equal(reply.ttl_ms, 5000);
    world_advance(w, 5 * SEC + 20 * MS);
    assert_int_equal(world_stats(w).reserved_bytes, 0);
    free(k);
    world_close(w);
}

static void
test_lookup_of_a_prefix_stops_at_the_first_hole(void **state)
{
    Kvp__Pb__LookupReply reply;
    uint8_t found[8];
    keys_t *k = keys(0, 8);
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 3, KIB);
    fill(c, 4, 8, KIB);
    (void)lookup(c, k->at, 8, true, 0, &reply, NULL);
    assert_int_equal(reply.found, 3);
    assert_int_equal(reply.granted, 3);
    release(c, reply.ticket);
    (void)lookup(c, k->at, 8, false, 0, &reply, found);
    assert_int_equal(reply.found, 7);
    assert_memory_equal(found, "\1\1\1\0\1\1\1\1", 8);
    release(c, reply.ticket);
    assert_int_equal(lookup(c, k->at + 3, 1, true, 0, &reply, NULL), 0); /* nothing found, nothing reserved */
    assert_int_equal(world_stats(w).reserved_bytes, 0);
    free(k);
    world_close(w);
}

/* A client may reserve a twentieth of the pool, all together a quarter. The rest is found but not granted. */
static void
test_lookup_when_the_bounds_are_reached(void **state)
{
    Kvp__Pb__LookupReply reply;
    uint64_t client = MIB / 20, pool = MIB / 4, sum = 0;
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);
    keys_t *k = keys(0, 100);

    (void)state;
    fill(c, 0, 100, 8 * KIB);
    (void)lookup(c, k->at, 100, true, 0, &reply, NULL);
    assert_int_equal(reply.found, 100);
    assert_int_equal(reply.granted, client / (8 * KIB));
    sum += reply.granted * 8 * KIB;
    assert_int_equal(world_stats(w).reserved_bytes, sum);
    assert_int_equal(world_stats(w).lookup_ungranted, 100 - reply.granted);
    (void)lookup(c, k->at, 100, true, 0, &reply, NULL);
    assert_int_equal(reply.granted, 0);
    assert_int_equal(reply.ticket, 0);
    for (int i = 0; i < 8; i++) {
        (void)lookup(client_open(w), k->at, 100, false, 0, &reply, NULL);
        sum += reply.granted * 8 * KIB;
        assert_true(reply.granted * 8 * KIB <= client);
    }
    assert_true(sum <= pool && sum > pool - 8 * KIB);
    assert_int_equal(world_stats(w).reserved_bytes, sum);
    assert_int_equal(get(c, "key/99", NULL, NULL), KVP_OK); /* a get is not bounded by it */
    free(k);
    world_close(w);
}

static void
test_lookup_then_many_expire_in_order(void **state)
{
    Kvp__Pb__LookupReply reply;
    keys_t *k = keys(0, 40);
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);
    uint64_t tickets[40];
    uint32_t ttl[40], left = 40;

    (void)state;
    fill(c, 0, 40, 100);
    for (uint32_t i = 0; i < 40; i++) {
        ttl[i] = 100 + (uint32_t)world_below(w, 1000);
        tickets[i] = lookup(c, &k->at[i], 1, false, ttl[i], &reply, NULL);
        assert_int_not_equal(tickets[i], 0);
    }
    for (uint32_t i = 0; i < 40; i += 5) { /* out of the middle of the heap */
        release(c, tickets[i]);
        ttl[i] = 0;
        left--;
    }
    for (uint32_t ms = 10; ms <= 1200; ms += 10) {
        uint32_t alive = 0;

        world_advance(w, 10 * MS);
        for (uint32_t i = 0; i < 40; i++)
            alive += ttl[i] > ms;
        assert_true(world_stats(w).reserved_bytes <= left * 128);
        /* A tick may come ten milliseconds late. */
        assert_true(world_stats(w).reserved_bytes >= alive * 128);
        left = (uint32_t)(world_stats(w).reserved_bytes / 128);
    }
    assert_int_equal(left, 0);
    free(k);
    world_close(w);
}

/* ---- tickets of what is gone */
static void
test_tickets_when_the_object_is_removed_by_force(void **state)
{
    Kvp__Pb__LookupReply reply;
    uint64_t ticket;
    keys_t *k = keys(0, 2);
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    fill(c, 0, 2, 8 * KIB);
    assert_int_equal(get(c, "key/0", &ticket, NULL), KVP_OK);
    (void)lookup(c, k->at, 2, false, 0, &reply, NULL);
    assert_int_equal(remove_key(c, "key/0", true), KVP_OK);
    assert_false(exists(c, "key/0"));
    assert_int_equal(put(c, "key/0", 100), KVP_OK); /* a new version under the old tickets */
    assert_int_equal(remove_key(c, "key/0", false), KVP_OK); /* which do not hold it */
    release(c, ticket);
    release(c, reply.ticket);
    assert_int_equal(world_stats(w).held_bytes + world_stats(w).reserved_bytes, 0);
    assert_int_equal(world_stats(w).objects, 1);
    free(k);
    world_close(w);
}

/* ---- bounds */
static void
test_get_when_one_client_holds_too_much(void **state)
{
    enum { MOST = 16384 };
    Kvp__Pb__LookupReply reply;
    keys_t *k = keys(0, 1);
    peer_t *n, *c, *d;
    world_t *w = block_world(&n, &c);
    uint64_t ticket, last = 0;

    (void)state;
    w->check_every = 0;
    d = client_open(w);
    fill(c, 0, 1, 64);
    for (uint32_t i = 0; i < MOST; i++)
        assert_int_equal(get(c, "key/0", &last, NULL), KVP_OK);
    assert_int_equal(get(c, "key/0", &ticket, NULL), KVP_LIMIT);
    assert_int_equal(get(c, "key/0", NULL, NULL), KVP_OK);
    assert_int_equal(lookup(c, k->at, 1, false, 0, &reply, NULL), 0);
    assert_int_equal(get(d, "key/0", &ticket, NULL), KVP_OK);
    release(c, last);
    assert_int_equal(get(c, "key/0", &ticket, NULL), KVP_OK);
    world_check(w);
    free(k);
    world_close(w);
}

/* A batch of n digests, of as many keys as told in turn. The caller frees it. */
static kvp_digest_t *
digests_of_keys(const world_t *w, uint32_t n, uint32_t keys)
{
    kvp_digest_t *digests = calloc(n, sizeof *digests);
    char name[32];

    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "key/%u", i % keys);
        digests[i] = i < keys ? digest_of(w, name) : digests[i - keys];
    }
    return digests;
}

static kvp_err_t
get_batch(peer_t *c, const kvp_digest_t *digests, uint32_t n)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;

    head.n = n;
    return plain_result(peer_reply(c, peer_send(c, KVP_OP_GET, 0, &head.base, digests, n * sizeof *digests)));
}

static void
test_get_when_one_client_holds_too_many_objects(void **state)
{
    enum { BATCH = 512, MOST = (1 << 20) / BATCH, KEYS = 64 };
    kvp_digest_t *digests;
    peer_t *n, *c;
    world_t *w = block_world(&n, &c);

    (void)state;
    w->check_every = 0;
    fill(c, 0, KEYS, 64);
    digests = digests_of_keys(w, BATCH, KEYS);
    for (uint32_t i = 0; i <= MOST; i++)
        assert_int_equal(get_batch(c, digests, BATCH), i < MOST ? KVP_OK : KVP_LIMIT);
    world_check(w);
    free(digests);
    world_close(w);
}

/* The count in a record has 16 bits. It is never run over: who would is refused, and others are served. */
static void
test_get_when_one_object_is_held_too_often(void **state)
{
    enum { BATCH = 512, MOST = 127 };
    kvp_digest_t *digests;
    peer_t *n, *c, *d;
    world_t *w = block_world(&n, &c);
    uint64_t ticket = 0;

    (void)state;
    w->check_every = 0;
    d = client_open(w);
    fill(c, 0, 1, 64);
    digests = digests_of_keys(w, BATCH, 1);
    for (uint32_t i = 0; i <= MOST; i++)
        assert_int_equal(get_batch(c, digests, BATCH), i < MOST ? KVP_OK : KVP_LIMIT);
    for (uint32_t left = UINT16_MAX - MOST * BATCH; left > 0; left--)
        assert_int_equal(get(d, "key/0", &ticket, NULL), KVP_OK);
    assert_int_equal(get(d, "key/0", NULL, NULL), KVP_OK); /* takes no ticket */
    ticket = 0;
    assert_int_equal(get(d, "key/0", &ticket, NULL), KVP_LIMIT);
    world_check(w);
    free(digests);
    world_close(w);
}

/* Whoever held a great deal and dies lets go of it in slices, and others are served between them. */
static void
test_tickets_when_the_holder_of_many_dies(void **state)
{
    enum { BATCH = 512, MESSAGES = 16 };
    kvp_digest_t *digests;
    peer_t *n, *c, *d;
    world_t *w = block_world(&n, &c);
    uint32_t ticks = 0;

    (void)state;
    w->check_every = 0;
    d = client_open(w);
    fill(c, 0, MESSAGES, 64);
    digests = digests_of_keys(w, BATCH, MESSAGES);
    for (uint32_t i = 0; i < MESSAGES; i++)
        assert_int_equal(get_batch(d, digests, BATCH), KVP_OK);
    w->is_idle_off = true;
    peer_forget(d);
    assert_true(world_stats(w).held_bytes > 0);
    assert_int_equal(put(c, "new", 64), KVP_OK);
    for (; kvp_master_has_work(w->m); ticks++) {
        kvp_master_on_tick(w->m, w->now);
        world_check(w);
    }
    assert_in_range(ticks, MESSAGES * BATCH / 1024 - 2, 2 * MESSAGES);
    assert_int_equal(world_stats(w).held_bytes, 0);
    free(digests);
    world_close(w);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hold_keeps_an_object),
        cmocka_unit_test(test_hold_ends_with_the_session),
        cmocka_unit_test(test_release_when_it_is_not_ours),
        cmocka_unit_test(test_get_without_hold),
        cmocka_unit_test(test_lookup_expires),
        cmocka_unit_test(test_lookup_ttl_is_capped),
        cmocka_unit_test(test_lookup_of_a_prefix_stops_at_the_first_hole),
        cmocka_unit_test(test_lookup_when_the_bounds_are_reached),
        cmocka_unit_test(test_lookup_then_many_expire_in_order),
        cmocka_unit_test(test_tickets_when_the_object_is_removed_by_force),
        cmocka_unit_test(test_get_when_one_client_holds_too_much),
        cmocka_unit_test(test_get_when_one_client_holds_too_many_objects),
        cmocka_unit_test(test_get_when_one_object_is_held_too_often),
        cmocka_unit_test(test_tickets_when_the_holder_of_many_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
