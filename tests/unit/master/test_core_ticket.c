/* SPDX-License-Identifier: Apache-2.0
 * Holds and reservations: what they protect, how long, and how much one may have. */
#include "tests/unit/master/rig.h"

#include "master/core/base/slab.h"

#define KEY_LEN 24

/* A hundred and twenty-eight blocks of 8 KiB. */
static const rig_conf_t blocks = {.conf.lease_ns = 5 * SEC, .size = MIB};

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

RIG_TEST(test_hold_keeps_an_object, blocks)
{
    uint64_t ticket, again;

    fill(g->c, 0, 1, 8 * KIB);
    assert_int_equal(get(g->c, "key/0", &ticket, NULL), KVP_OK);
    assert_int_equal(get(g->c, "key/0", &again, NULL), KVP_OK);
    fill(g->c, 1, 300, 8 * KIB);
    assert_true(exists(g->c, "key/0"));
    release(g->c, ticket);
    fill(g->c, 300, 500, 8 * KIB);
    assert_true(exists(g->c, "key/0")); /* the second one still holds it */
    release(g->c, again);
    fill(g->c, 500, 600, 8 * KIB);
    assert_true(exists(g->c, "key/0")); /* what was held was used when it was released */
    fill(g->c, 600, 750, 8 * KIB);
    assert_false(exists(g->c, "key/0"));
}

RIG_TEST(test_hold_ends_with_the_session, blocks)
{
    uint64_t ticket;
    peer_t *d = client_open(g->w);

    fill(g->c, 0, 1, 8 * KIB);
    assert_int_equal(get(d, "key/0", &ticket, NULL), KVP_OK);
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_HELD);
    peer_forget(d);
    assert_int_equal(world_stats(g->w).held_bytes, 0);
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK);
}

RIG_TEST(test_release_when_it_is_not_ours, blocks)
{
    uint64_t ticket;
    peer_t *d = client_open(g->w);

    fill(g->c, 0, 1, 8 * KIB);
    assert_int_equal(get(g->c, "key/0", &ticket, NULL), KVP_OK);
    assert_int_equal(get(g->c, "key/0", NULL, NULL), KVP_OK); /* without a hold */
    assert_int_equal(world_stats(g->w).held_bytes, 8 * KIB);
    release(d, ticket);
    release(g->c, 0);
    release(g->c, ticket + 1);
    release(g->c, UINT64_MAX);
    assert_int_equal(world_stats(g->w).held_bytes, 8 * KIB);
    release(g->c, ticket);
    release(g->c, ticket);
    assert_int_equal(world_stats(g->w).held_bytes, 0);
}

/* ---- reservations */
RIG_TEST(test_lookup_expires, blocks)
{
    Kvp__Pb__LookupReply reply;
    keys_t *k = keys(0, 1);

    fill(g->c, 0, 1, 8 * KIB);
    assert_int_not_equal(lookup(g->c, k->at, 1, false, 1000, &reply, NULL), 0);
    assert_int_equal(reply.ttl_ms, 1000);
    assert_int_equal(world_stats(g->w).reserved_bytes, 8 * KIB);
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_HELD);
    fill(g->c, 1, 200, 8 * KIB);
    assert_true(exists(g->c, "key/0"));
    world_advance(g->w, 990 * MS);
    assert_int_equal(world_stats(g->w).reserved_bytes, 8 * KIB);
    world_advance(g->w, 20 * MS);
    assert_int_equal(world_stats(g->w).reserved_bytes, 0);
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK);
    free(k);
}

RIG_TEST(test_lookup_ttl_is_capped, blocks)
{
    Kvp__Pb__LookupReply reply;
    keys_t *k = keys(0, 1);

    fill(g->c, 0, 1, 8 * KIB);
    (void)lookup(g->c, k->at, 1, false, 0, &reply, NULL);
    assert_int_equal(reply.ttl_ms, 5000);
    (void)lookup(g->c, k->at, 1, false, UINT32_MAX, &reply, NULL);
    assert_int_equal(reply.ttl_ms, 5000);
    world_advance(g->w, 5 * SEC + 20 * MS);
    assert_int_equal(world_stats(g->w).reserved_bytes, 0);
    free(k);
}

RIG_TEST(test_lookup_of_a_prefix_stops_at_the_first_hole, blocks)
{
    Kvp__Pb__LookupReply reply;
    uint8_t found[8];
    keys_t *k = keys(0, 8);

    fill(g->c, 0, 3, KIB);
    fill(g->c, 4, 8, KIB);
    (void)lookup(g->c, k->at, 8, true, 0, &reply, NULL);
    assert_int_equal(reply.found, 3);
    assert_int_equal(reply.granted, 3);
    release(g->c, reply.ticket);
    (void)lookup(g->c, k->at, 8, false, 0, &reply, found);
    assert_int_equal(reply.found, 7);
    assert_memory_equal(found, "\1\1\1\0\1\1\1\1", 8);
    release(g->c, reply.ticket);
    assert_int_equal(lookup(g->c, k->at + 3, 1, true, 0, &reply, NULL), 0); /* nothing found, nothing reserved */
    assert_int_equal(world_stats(g->w).reserved_bytes, 0);
    free(k);
}

/* A client may reserve a twentieth of the pool, all together a quarter. The rest is found but not granted. */
RIG_TEST(test_lookup_when_the_bounds_are_reached, blocks)
{
    Kvp__Pb__LookupReply reply;
    uint64_t client = MIB / 20, pool = MIB / 4, sum = 0;
    keys_t *k = keys(0, 100);

    fill(g->c, 0, 100, 8 * KIB);
    (void)lookup(g->c, k->at, 100, true, 0, &reply, NULL);
    assert_int_equal(reply.found, 100);
    assert_int_equal(reply.granted, client / (8 * KIB));
    sum += reply.granted * 8 * KIB;
    assert_int_equal(world_stats(g->w).reserved_bytes, sum);
    assert_int_equal(world_stats(g->w).lookup_ungranted, 100 - reply.granted);
    (void)lookup(g->c, k->at, 100, true, 0, &reply, NULL);
    assert_int_equal(reply.granted, 0);
    assert_int_equal(reply.ticket, 0);
    for (int i = 0; i < 8; i++) {
        (void)lookup(client_open(g->w), k->at, 100, false, 0, &reply, NULL);
        sum += reply.granted * 8 * KIB;
        assert_true(reply.granted * 8 * KIB <= client);
    }
    assert_true(sum <= pool && sum > pool - 8 * KIB);
    assert_int_equal(world_stats(g->w).reserved_bytes, sum);
    assert_int_equal(get(g->c, "key/99", NULL, NULL), KVP_OK); /* a get is not bounded by it */
    free(k);
}

/* ---- tickets of what is gone */
RIG_TEST(test_tickets_when_the_object_is_removed_by_force, blocks)
{
    Kvp__Pb__LookupReply reply;
    uint64_t ticket;
    keys_t *k = keys(0, 2);

    fill(g->c, 0, 2, 8 * KIB);
    assert_int_equal(get(g->c, "key/0", &ticket, NULL), KVP_OK);
    (void)lookup(g->c, k->at, 2, false, 0, &reply, NULL);
    assert_int_equal(remove_key(g->c, "key/0", true), KVP_OK);
    assert_false(exists(g->c, "key/0"));
    assert_int_equal(put(g->c, "key/0", 100), KVP_OK); /* a new version under the old tickets */
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK); /* which do not hold it */
    release(g->c, ticket);
    release(g->c, reply.ticket);
    assert_int_equal(world_stats(g->w).held_bytes + world_stats(g->w).reserved_bytes, 0);
    assert_int_equal(world_stats(g->w).objects, 1);
    free(k);
}

/* ---- bounds */
RIG_TEST(test_get_when_one_client_holds_too_much, blocks)
{
    enum { MOST = 16384 };
    Kvp__Pb__LookupReply reply;
    keys_t *k = keys(0, 1);
    peer_t *d;
    uint64_t ticket, last = 0;

    g->w->check_every = 0;
    d = client_open(g->w);
    fill(g->c, 0, 1, 64);
    for (uint32_t i = 0; i < MOST; i++)
        assert_int_equal(get(g->c, "key/0", &last, NULL), KVP_OK);
    assert_int_equal(get(g->c, "key/0", &ticket, NULL), KVP_LIMIT);
    assert_int_equal(get(g->c, "key/0", NULL, NULL), KVP_OK);
    assert_int_equal(lookup(g->c, k->at, 1, false, 0, &reply, NULL), 0);
    assert_int_equal(get(d, "key/0", &ticket, NULL), KVP_OK);
    release(g->c, last);
    assert_int_equal(get(g->c, "key/0", &ticket, NULL), KVP_OK);
    world_check(g->w);
    free(k);
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

RIG_TEST(test_get_when_one_client_holds_too_many_objects, blocks)
{
    enum { BATCH = 512, MOST = (1 << 20) / BATCH, KEYS = 64 };
    kvp_digest_t *digests;

    g->w->check_every = 0;
    fill(g->c, 0, KEYS, 64);
    digests = digests_of_keys(g->w, BATCH, KEYS);
    for (uint32_t i = 0; i <= MOST; i++)
        assert_int_equal(get_batch(g->c, digests, BATCH), i < MOST ? KVP_OK : KVP_LIMIT);
    world_check(g->w);
    free(digests);
}

/* The count in a record has 15 bits. It is never run over: who would is refused, and others are served. */
RIG_TEST(test_get_when_one_object_is_held_too_often, blocks)
{
    enum { BATCH = 512, MOST = 63, MAX = 0x7fff };
    kvp_digest_t *digests;
    peer_t *d;
    uint64_t ticket = 0;

    g->w->check_every = 0;
    d = client_open(g->w);
    fill(g->c, 0, 1, 64);
    digests = digests_of_keys(g->w, BATCH, 1);
    for (uint32_t i = 0; i <= MOST; i++)
        assert_int_equal(get_batch(g->c, digests, BATCH), i < MOST ? KVP_OK : KVP_LIMIT);
    for (uint32_t left = MAX - MOST * BATCH; left > 0; left--)
        assert_int_equal(get(d, "key/0", &ticket, NULL), KVP_OK);
    assert_int_equal(get(d, "key/0", NULL, NULL), KVP_OK); /* takes no ticket */
    ticket = 0;
    assert_int_equal(get(d, "key/0", &ticket, NULL), KVP_LIMIT);
    world_check(g->w);
    free(digests);
}

/* Whoever held a great deal and dies lets go of it in slices, and others are served between them. */
RIG_TEST(test_tickets_when_the_holder_of_many_dies, blocks)
{
    enum { BATCH = 512, MESSAGES = 16 };
    kvp_digest_t *digests;
    peer_t *d;
    uint32_t ticks = 0;

    g->w->check_every = 0;
    d = client_open(g->w);
    fill(g->c, 0, MESSAGES, 64);
    digests = digests_of_keys(g->w, BATCH, MESSAGES);
    for (uint32_t i = 0; i < MESSAGES; i++)
        assert_int_equal(get_batch(d, digests, BATCH), KVP_OK);
    g->w->is_idle_off = true;
    peer_forget(d);
    assert_true(world_stats(g->w).held_bytes > 0);
    assert_int_equal(put(g->c, "new", 64), KVP_OK);
    for (; world_has_work(g->w); ticks++) {
        kvp_master_on_tick(g->w->m, g->w->now);
        world_check(g->w);
    }
    assert_in_range(ticks, MESSAGES * BATCH / 1024 - 2, 2 * MESSAGES);
    assert_int_equal(world_stats(g->w).held_bytes, 0);
    free(digests);
}

TEST_MAIN()
