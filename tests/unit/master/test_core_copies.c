/* SPDX-License-Identifier: Apache-2.0
 * Objects with several copies, and new versions of objects. */
#include "tests/unit/master/rig.h"

#include "master/core/base/slab.h"

#define COPIES_MAX 4u

static const rig_conf_t sixteen = {.size = 64 * KIB};

/* ---- several copies */
typedef struct {
    world_t *w;
    mem_t *mems[3];
    peer_t *nodes[3], *c;
} trio_t;

/* Three hosts with a segment each. */
static trio_t
trio_open(uint64_t size)
{
    trio_t t;

    t.w = world_open(&(kvp_master_conf_t){0});
    for (uint32_t i = 0; i < 3; i++) {
        char name[8];

        snprintf(name, sizeof name, "n%u", i);
        t.mems[i] = mem_make(t.w, name, size, size);
        t.nodes[i] = node_open_on(t.w, t.mems[i], name);
    }
    t.c = client_open(t.w);
    return t;
}

/* Begins a put of `copies` copies; returns how many were granted, or a negative error. */
static int
begin(peer_t *c, const char *key, uint64_t len, uint32_t copies, bool is_upsert, uint64_t *attempt_out,
      kvp_wire_loc_t locs[COPIES_MAX])
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = key, .len = len};
    places_t places;
    int n;

    head.replicas = copies;
    head.is_upsert = is_upsert;
    head.wait_ms = 200;
    places_read(peer_wait(c, put_begin_with(c, &one, 1, &head), SEC), &places);
    n = places.objs[0].err == KVP_OK ? (int)places.nloc : places.objs[0].err;
    assert_true(places.nloc <= COPIES_MAX);
    memcpy(locs, places.locs, places.nloc * sizeof *locs);
    *attempt_out = one.attempt;
    places_free(&places);
    return n;
}

static uint32_t
copies_told(peer_t *c, const char *key, kvp_wire_loc_t locs[COPIES_MAX])
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = digest_of(c->world, key);
    places_t places;
    uint32_t n;

    head.n = 1;
    head.no_hold = true;
    places_read(peer_reply(c, peer_send(c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest)), &places);
    n = places.nloc;
    memcpy(locs, places.locs, n * sizeof *locs);
    places_free(&places);
    return n;
}

static void
put_copies(trio_t *t, const char *key, uint64_t len, uint32_t copies)
{
    kvp_wire_loc_t locs[COPIES_MAX];
    uint64_t attempt;
    int n = begin(t->c, key, len, copies, false, &attempt, locs);

    assert_true(n > 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(write_place(t->w, &locs[i]), KVP_OK);
    assert_int_equal(commit_copies(t->c, attempt, 1, (1u << n) - 1), KVP_OK);
}

TEST(test_copies_when_hosts_are_fewer)
{
    trio_t t = trio_open(MIB);
    mem_t *fourth = mem_make(t.w, "n3", MIB, MIB);
    kvp_wire_loc_t locs[COPIES_MAX];
    uint64_t attempt;

    node_open_on(t.w, fourth, "n0"); /* a host of two segments */
    for (uint32_t round = 0; round < 20; round++) {
        bool is_first = false, is_fourth = false;

        assert_int_equal(begin(t.c, "key", 5000, 3, false, &attempt, locs), 3);
        for (uint32_t i = 0; i < 3; i++) {
            is_first |= locs[i].segment_id == t.mems[0]->segment_id;
            is_fourth |= locs[i].segment_id == fourth->segment_id;
        }
        assert_true(is_first != is_fourth);
        assert_int_equal(abort_put(t.c, attempt, true), KVP_OK);
        assert_int_equal(begin(t.c, "key", 5000, 5, false, &attempt, locs), 4); /* in each segment one */
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t k = 0; k < i; k++)
                assert_true(locs[i].segment_id != locs[k].segment_id);
        assert_int_equal(abort_put(t.c, attempt, true), KVP_OK);
    }
    put_copies(&t, "key", 5000, 2);
    assert_int_equal(copies_told(t.c, "key", locs), 2);
    assert_int_equal(world_stats(t.w).used_bytes, 2 * kvp_extent_bytes(5000));
    assert_int_equal(remove_key(t.c, "key", false), KVP_OK);
    assert_int_equal(world_stats(t.w).used_bytes, 0);
    world_close(t.w);
}

static kvp_err_t
remove_at(peer_t *c, const char *key, uint32_t segment, bool is_forced)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest = digest_of(c->world, key);
    int32_t result;
    reply_t *r;

    head.n = 1;
    head.force = is_forced;
    head.segment = segment;
    r = peer_wait(c, peer_send(c, KVP_OP_REMOVE, 0, &head.base, &digest, sizeof digest), 100 * MS);
    assert_non_null(r);
    memcpy(&result, r->frame.tail, sizeof result);
    reply_free(r);
    return result;
}

TEST(test_remove_of_one_copy)
{
    trio_t t = trio_open(MIB);
    kvp_wire_loc_t locs[COPIES_MAX];
    uint64_t ticket;

    put_copies(&t, "key", 5000, 3);
    assert_int_equal(remove_at(t.c, "key", 77, false), KVP_NOT_FOUND);
    assert_int_equal(get(t.c, "key", &ticket, NULL), KVP_OK);
    assert_int_equal(remove_at(t.c, "key", t.mems[0]->segment_id, false), KVP_HELD);
    assert_int_equal(remove_at(t.c, "key", t.mems[0]->segment_id, true), KVP_OK); /* with its share of the hold */
    release(t.c, ticket);
    assert_int_equal(remove_at(t.c, "key", t.mems[0]->segment_id, false), KVP_NOT_FOUND);
    assert_int_equal(copies_told(t.c, "key", locs), 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(locs[i].segment_id != t.mems[0]->segment_id);
    assert_int_equal(world_stats(t.w).used_bytes, 2 * kvp_extent_bytes(5000));
    assert_int_equal(remove_at(t.c, "key", t.mems[1]->segment_id, false), KVP_OK);
    assert_int_equal(remove_at(t.c, "key", t.mems[1]->segment_id, false), KVP_NOT_FOUND);
    assert_int_equal(remove_at(t.c, "key", t.mems[2]->segment_id, false), KVP_OK); /* the last one: the object */
    assert_int_equal(copies_told(t.c, "key", locs), 0);
    assert_int_equal(remove_key(t.c, "key", false), KVP_NOT_FOUND);
    assert_int_equal(world_stats(t.w).used_bytes, 0);
    world_close(t.w);
}

TEST(test_copies_when_some_are_not_sealed)
{
    trio_t t = trio_open(MIB);
    kvp_wire_loc_t granted[COPIES_MAX], told[COPIES_MAX];
    uint64_t attempt;

    for (uint32_t i = 0; i < 3; i++)
        t.nodes[i]->needs_proof = true;
    assert_int_equal(begin(t.c, "key", 5000, 3, false, &attempt, granted), 3);
    assert_int_equal(commit_copies(t.c, attempt, 1, 0), KVP_INVALID);
    assert_int_equal(commit_copies(t.c, attempt, 1, 8), KVP_INVALID);
    assert_int_equal(write_place(t.w, &granted[1]), KVP_OK);
    assert_int_equal(commit_copies(t.c, attempt, 1, 2), KVP_OK);
    assert_int_equal(copies_told(t.c, "key", told), 1);
    assert_memory_equal(&told[0], &granted[1], sizeof told[0]);
    /* Nobody knows whether the writer is done with the others. */
    assert_int_equal(world_stats(t.w).quarantine_bytes, 2 * kvp_extent_bytes(5000));
    world_prove(t.w, t.c->incarnation);
    assert_int_equal(world_stats(t.w).used_bytes, kvp_extent_bytes(5000));
    world_close(t.w);
}

TEST(test_get_tells_the_own_host_first)
{
    trio_t t = trio_open(MIB);
    kvp_wire_loc_t locs[COPIES_MAX];

    put_copies(&t, "key", 5000, 3);
    for (uint32_t i = 0; i < 3; i++) {
        peer_t *reader = peer_open(t.w);

        assert_int_equal(peer_hello(reader, KVP_ROLE_CLIENT, "reader", t.mems[i]->name), KVP_OK);
        assert_int_equal(copies_told(reader, "key", locs), 3);
        assert_int_equal(locs[0].segment_id, t.mems[i]->segment_id);
    }
    world_close(t.w);
}

/* Each copy goes with its node, the object with the last one; its version stays. */
TEST(test_copies_when_nodes_are_lost_for_good)
{
    trio_t t = trio_open(MIB);
    kvp_wire_loc_t locs[COPIES_MAX];
    uint64_t ticket;

    put_copies(&t, "key", 5000, 3);
    assert_int_equal(get(t.c, "key", &ticket, NULL), KVP_OK);
    for (uint32_t left = 3; left-- > 0;) {
        peer_forget(t.nodes[left]);
        assert_int_equal(copies_told(t.c, "key", locs), left); /* at once, and after the grace */
        world_advance(t.w, 6 * SEC);
        assert_int_equal(copies_told(t.c, "key", locs), left);
        assert_int_equal(world_stats(t.w).objects, left > 0);
    }
    assert_int_equal(world_stats(t.w).purged, 1);
    world_close(t.w);
}

TEST(test_put_when_a_copy_is_lost_before_the_commit)
{
    trio_t t = trio_open(MIB);
    kvp_wire_loc_t granted[COPIES_MAX], told[COPIES_MAX];
    uint64_t attempt;
    uint32_t lost = 0;

    assert_int_equal(begin(t.c, "key", 5000, 3, false, &attempt, granted), 3);
    while (t.mems[lost]->segment_id != granted[0].segment_id)
        lost++;
    peer_forget(t.nodes[lost]);
    world_advance(t.w, 6 * SEC);
    assert_int_equal(commit_copies(t.c, attempt, 1, 7), KVP_OK); /* bits go by what was granted */
    assert_int_equal(copies_told(t.c, "key", told), 2);

    assert_int_equal(begin(t.c, "other", 5000, 2, false, &attempt, granted), 2);
    for (uint32_t i = 0; i < 3; i++)
        if (i != lost) peer_forget(t.nodes[i]);
    world_advance(t.w, 6 * SEC);
    assert_int_equal(commit_copies(t.c, attempt, 1, 3), KVP_ABORTED);
    world_close(t.w);
}

/* Every host is full: each copy evicts on its own, and an object goes with all its copies. */
TEST(test_copies_when_the_pool_is_full)
{
    trio_t t = trio_open(64 * KIB);

    for (uint32_t i = 0; i < 200; i++)
        put_copies(&t, key_name("key/", i), 4 * KIB, 1 + i % 3);
    assert_true(world_stats(t.w).evictions > 150);
    assert_true(exists(t.c, "key/199"));
    assert_int_equal(world_stats(t.w).put_retry_after, 0);
    world_close(t.w);
}

/* What another has begun will be room before long, however many copies wait for it. */
TEST(test_copies_wait_for_what_is_being_written)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    put_t puts[2] = {{.key = "a", .len = 60 * KIB}, {.key = "b", .len = 60 * KIB}};
    trio_t t = trio_open(64 * KIB);
    kvp_wire_loc_t locs[COPIES_MAX];
    uint64_t attempt, ids[2];

    assert_int_equal(begin(t.c, "key", 60 * KIB, 3, false, &attempt, locs), 3);
    head.replicas = 3;
    head.wait_ms = 10000;
    for (uint32_t i = 0; i < 2; i++)
        ids[i] = put_begin_with(t.c, &puts[i], 1, &head);
    world_advance(t.w, SEC);
    assert_true(peer_is_asking(t.c, ids[0]) && peer_is_asking(t.c, ids[1]));
    world_close(t.w);
}

/* A host whose space is all held gives no copy; the others are enough. */
TEST(test_copies_when_one_host_is_held)
{
    trio_t t = trio_open(64 * KIB);
    kvp_wire_loc_t locs[COPIES_MAX];
    uint64_t attempt, ticket;

    for (uint32_t i = 0; i < 3; i++) /* it alone takes puts */
        if (i != 1) peer_forget(t.nodes[i]);
    for (uint32_t i = 0; i < 16; i++) {
        char key[16];

        snprintf(key, sizeof key, "held/%u", i);
        put_copies(&t, key, 4 * KIB, 1);
        assert_int_equal(get(t.c, key, &ticket, NULL), KVP_OK);
    }
    t.nodes[0] = node_open_on(t.w, t.mems[0], "n0");
    t.nodes[2] = node_open_on(t.w, t.mems[2], "n2");
    assert_int_equal(begin(t.c, "key", 4 * KIB, 3, false, &attempt, locs), 2);
    assert_int_equal(commit_copies(t.c, attempt, 1, 3), KVP_OK);
    world_close(t.w);
}

/* ---- new versions */
static kvp_err_t
upsert_place(peer_t *c, const char *key, uint64_t len, uint64_t *attempt_out, kvp_wire_loc_t *loc_out)
{
    kvp_wire_loc_t locs[COPIES_MAX];
    int n = begin(c, key, len, 1, true, attempt_out, locs);

    if (n < 0) return n;
    assert_int_equal(n, 1);
    *loc_out = locs[0];
    return KVP_OK;
}

RIG_TEST(test_upsert, sixteen)
{
    kvp_wire_loc_t old, new, found;
    uint64_t attempt, other;

    assert_int_equal(upsert_place(g->c, "key", 100, &attempt, &old), KVP_OK); /* of an absent key it is a put */
    assert_int_equal(write_place(g->w, &old), KVP_OK);
    assert_int_equal(commit(g->c, attempt, 1), KVP_OK);
    assert_int_equal(upsert_place(g->c, "key", 200, &attempt, &new), KVP_OK);
    assert_true(new.generation > old.generation);
    assert_int_equal(get(g->c, "key", NULL, &found), KVP_OK);
    assert_memory_equal(&found, &old, sizeof old);
    assert_int_equal(upsert_place(g->c, "key", 200, &other, &found), KVP_IN_PROGRESS);
    assert_int_equal(put(g->c, "key", 200), KVP_ALREADY);
    assert_int_equal(write_place(g->w, &new), KVP_OK);
    assert_int_equal(commit(g->c, attempt, 2), KVP_OK);
    assert_int_equal(get(g->c, "key", NULL, &found), KVP_OK);
    assert_memory_equal(&found, &new, sizeof new);
    assert_int_equal(world_stats(g->w).objects, 1);
    assert_int_equal(world_stats(g->w).used_bytes, kvp_extent_bytes(200));
    assert_int_equal(upsert_place(g->c, "key", 300, &attempt, &new), KVP_OK);
    assert_int_equal(abort_put(g->c, attempt, true), KVP_OK);
    assert_int_equal(get(g->c, "key", NULL, &found), KVP_OK);
}

/* The old version is dead when the new one is acknowledged, or has had time to be; a hold on it does not matter. */
RIG_TEST(test_upsert_answers_when_the_old_version_is_dead, sixteen)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t rec = {.sum = 1, .replicas = 1};
    kvp_wire_loc_t old, new;
    uint64_t ticket, id;

    assert_int_equal(put(g->c, "key", 100), KVP_OK);
    assert_int_equal(get(g->c, "key", &ticket, &old), KVP_OK);
    assert_int_equal(upsert_place(g->c, "key", 100, &rec.attempt, &new), KVP_OK);
    g->na->delay_ns = 5 * MS;
    head.n = 1;
    id = peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(plain_result(peer_wait(g->c, id, 20 * MS)), KVP_OK);
    assert_int_equal(kvp_word_state(g->na->mem->chunks[0].words[old.slot]), KVP_DESC_DEAD);
    release(g->c, ticket);

    assert_int_equal(upsert_place(g->c, "key", 100, &rec.attempt, &new), KVP_OK);
    g->na->policy = NODE_MUTE;
    id = peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec);
    world_advance(g->w, 40 * MS);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(plain_result(peer_wait(g->c, id, 30 * MS)), KVP_OK);
}

/* A client that hears nothing asks again. What it hears then is the same promise. */
RIG_TEST(test_repeated_commit_is_not_answered_before_the_first, sixteen)
{
    Kvp__Pb__PutCommit commits = KVP__PB__PUT_COMMIT__INIT;
    Kvp__Pb__PutAbort aborts = KVP__PB__PUT_ABORT__INIT;
    kvp_wire_commit_t rec = {.sum = 1, .replicas = 1}, other = rec;
    uint64_t ids[3];
    kvp_wire_loc_t new;

    assert_int_equal(put(g->c, "key", 100), KVP_OK);
    assert_int_equal(upsert_place(g->c, "key", 100, &rec.attempt, &new), KVP_OK);
    g->na->policy = NODE_MUTE;
    commits.n = aborts.n = 1;
    ids[0] = peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &commits.base, &rec, sizeof rec);
    ids[1] = peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &commits.base, &rec, sizeof rec);
    ids[2] = peer_send(g->c, KVP_OP_PUT_ABORT, 0, &aborts.base, &rec.attempt, sizeof rec.attempt);
    world_advance(g->w, 40 * MS);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(peer_is_asking(g->c, ids[i]));
    assert_int_equal(plain_result(peer_wait(g->c, ids[0], 30 * MS)), KVP_OK);
    for (uint32_t i = 1; i < 3; i++)
        assert_int_equal(plain_result(peer_reply(g->c, ids[i])), KVP_OK);
    assert_int_equal(put(g->c, "other", 100), KVP_OK); /* what another one waits for is no concern of it */
    assert_int_equal(upsert_place(g->c, "other", 100, &other.attempt, &new), KVP_OK);
    (void)peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &commits.base, &other, sizeof other);
    ids[0] = peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &commits.base, &rec, sizeof rec);
    assert_int_equal(plain_result(peer_reply(g->c, ids[0])), KVP_OK);
}

/* Also where the session ends with all of them waiting. */
RIG_TEST(test_session_ends_behind_a_repeated_commit, sixteen)
{
    Kvp__Pb__PutCommit commits = KVP__PB__PUT_COMMIT__INIT;
    kvp_wire_commit_t rec = {.sum = 1, .replicas = 1};
    kvp_wire_loc_t new;

    assert_int_equal(put(g->c, "key", 100), KVP_OK);
    assert_int_equal(upsert_place(g->c, "key", 100, &rec.attempt, &new), KVP_OK);
    g->na->policy = NODE_MUTE;
    commits.n = 1;
    for (uint32_t i = 0; i < 4; i++)
        (void)peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &commits.base, &rec, sizeof rec);
    peer_lose(g->c);
    world_advance(g->w, SEC);
    g->c = client_open(g->w);
    assert_true(exists(g->c, "key"));
}

RIG_TEST(test_upsert_when_the_old_version_goes_first, sixteen)
{
    kvp_wire_loc_t loc, other;
    uint64_t attempt;

    assert_int_equal(put(g->c, "key", 100), KVP_OK);
    assert_int_equal(upsert_place(g->c, "key", 100, &attempt, &loc), KVP_OK);
    assert_int_equal(remove_key(g->c, "key", false), KVP_OK);
    assert_false(exists(g->c, "key"));
    assert_int_equal(put(g->c, "key", 100), KVP_IN_PROGRESS); /* the staged version is the key's put now */
    assert_int_equal(get(g->c, "key", NULL, &other), KVP_NOT_FOUND);
    assert_int_equal(commit(g->c, attempt, 1), KVP_OK);
    assert_int_equal(get(g->c, "key", NULL, &other), KVP_OK);
    assert_memory_equal(&other, &loc, sizeof loc);
}

/* With everything else held, the new version takes the old one's space, held as well; then the key is gone until it is
 * committed. */
RIG_TEST(test_upsert_when_only_the_old_version_makes_room, sixteen)
{
    kvp_wire_loc_t loc, found;
    uint64_t attempt, ticket;
    char key[16];

    for (uint32_t i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "key/%u", i);
        assert_int_equal(put(g->c, key, 4 * KIB), KVP_OK);
        assert_int_equal(get(g->c, key, &ticket, NULL), KVP_OK);
    }
    assert_int_equal(upsert_place(g->c, "key/7", 4 * KIB, &attempt, &loc), KVP_OK);
    assert_false(exists(g->c, "key/7"));
    assert_int_equal(world_stats(g->w).evictions, 1);
    assert_int_equal(commit(g->c, attempt, 1), KVP_OK);
    assert_int_equal(get(g->c, "key/7", NULL, &found), KVP_OK);
    assert_memory_equal(&found, &loc, sizeof loc);
    assert_true(exists(g->c, "key/6"));

    assert_int_equal(upsert_place(g->c, "key/12", 8 * KIB, &attempt, &loc), KVP_RETRY_AFTER); /* that is not enough */
}

/* A put that finds no room does not stop an upsert behind it, which has its old version's. */
RIG_TEST(test_upsert_when_a_put_waits_before_it, sixteen)
{
    put_t one = {.key = "new", .len = 4 * KIB};
    uint64_t attempt, ticket, id;
    kvp_wire_loc_t loc;
    char key[16];

    for (uint32_t i = 0; i < 16; i++) {
        snprintf(key, sizeof key, "key/%u", i);
        assert_int_equal(put(g->c, key, 4 * KIB), KVP_OK);
        assert_int_equal(get(g->c, key, &ticket, NULL), KVP_OK);
    }
    id = put_begin(g->c, &one, 1, 10000);
    assert_int_equal(upsert_place(g->c, "key/7", 4 * KIB, &attempt, &loc), KVP_OK);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(commit(g->c, attempt, 1), KVP_OK);
    assert_false(peer_is_asking(g->c, id)); /* nobody holds the new version */
}

static void
count_owned(void *arg, mem_t *mem, const kvp_wire_slot_t *slot)
{
    uint32_t *owned = arg;

    (void)mem;
    owned[slot->owner != 0]++;
}

/* A commit is its writer's word about the copies that it names, also where it comes too late. */
TEST(test_commit_after_a_bump_is_no_word_about_other_copies)
{
    trio_t t = trio_open(MIB);
    kvp_wire_loc_t locs[COPIES_MAX];
    uint32_t retired[2] = {0};
    uint64_t part, whole;

    assert_int_equal(begin(t.c, "part", 5000, 2, false, &part, locs), 2);
    assert_int_equal(begin(t.c, "whole", 5000, 2, false, &whole, locs), 2);
    reply_free(peer_reply(t.c, bump_begun(t.c, 0)));
    t.w->on_retire = count_owned;
    t.w->hook_arg = retired;
    assert_int_equal(commit_copies(t.c, whole, 1, 3), KVP_ABORTED);
    world_advance(t.w, 100 * MS);
    assert_int_equal(retired[0], 2);
    assert_int_equal(commit_copies(t.c, part, 1, 1), KVP_ABORTED);
    world_advance(t.w, 100 * MS);
    assert_int_equal(retired[0], 2);
    assert_int_equal(retired[1], 2);
    t.w->on_retire = NULL;
    world_close(t.w);
}

TEST_MAIN()
