/* SPDX-License-Identifier: Apache-2.0
 * Puts through the master's core: what each key is answered, attempts and their ends, and what becomes of the space
 * when a writer goes. */
#include "tests/unit/master/rig.h"

#include "common/idset.h"

#include "master/core/base/slab.h"

static const rig_conf_t plain = {.size = 4 * MIB, .chunk = MIB};

/* One put record as it goes out, so that tests can break it. */
static kvp_err_t
put_record(peer_t *c, kvp_wire_put_t *rec, const char *key, size_t key_len)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    places_t places;
    kvp_buf_t tail;
    kvp_err_t err;
    uint64_t id;

    kvp_buf_init(&tail, 0);
    kvp_buf_append(&tail, rec, sizeof *rec);
    kvp_buf_append(&tail, key, key_len);
    head.n = 1;
    id = peer_send(c, KVP_OP_PUT_BEGIN, 0, &head.base, tail.data, tail.len);
    kvp_buf_fini(&tail);
    places_read(peer_reply(c, id), &places);
    err = places.objs[0].err;
    places_free(&places);
    return err;
}

static kvp_wire_put_t
record(const peer_t *c, const char *key, uint64_t len, uint64_t attempt)
{
    return (kvp_wire_put_t){
        .digest = digest_of(c->world, key), .len = len, .attempt = attempt, .key_len = (uint32_t)strlen(key)};
}

RIG_TEST(test_round_trip, plain)
{
    Kvp__Pb__StatusReply *status;
    kvp_wire_loc_t placed, found;
    uint64_t attempt, ticket;
    kvp_pb_t pb;
    reply_t *r;

    assert_int_equal(put_place(g->c, "key", 5000, &attempt, &placed), KVP_OK);
    assert_false(exists(g->c, "key")); /* nobody sees what is not committed */
    assert_int_equal(get(g->c, "key", NULL, NULL), KVP_NOT_FOUND);
    assert_int_equal(world_stats(g->w).attempts, 1);
    assert_int_equal(write_place(g->w, &placed), KVP_OK);
    assert_int_equal(commit(g->c, attempt, 42), KVP_OK);
    assert_true(exists(g->c, "key"));
    assert_int_equal(get(g->c, "key", &ticket, &found), KVP_OK);
    assert_memory_equal(&placed, &found, sizeof placed);
    assert_int_equal(world_stats(g->w).held_bytes, kvp_extent_bytes(5000));
    release(g->c, ticket);
    assert_int_equal(world_stats(g->w).held_bytes, 0);

    r = peer_reply(g->c, peer_send(g->c, KVP_OP_STATUS, 0, NULL, NULL, 0));
    status = kvp_pb_unpack(&pb, &kvp__pb__status_reply__descriptor, &r->frame);
    assert_non_null(status);
    assert_int_equal(status->objects, 1);
    assert_int_equal(status->attempts, 0);
    assert_int_equal(status->clients, 1);
    assert_int_equal(status->segments, 1);
    assert_int_equal(status->size_bytes, 4 * MIB);
    assert_int_equal(status->used_bytes, kvp_extent_bytes(5000));
    kvp_pb_free(&pb, status);
    reply_free(r);
}

RIG_TEST(test_list_in_pages, plain)
{
    Kvp__Pb__List head = KVP__PB__LIST__INIT;
    uint32_t seen = 0, pages = 0;
    bool is_seen[200] = {0};
    char key[32];

    g->w->check_every = 0;
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "%s/%d", i % 2 == 0 ? "even" : "odd", i);
        assert_int_equal(put(g->c, key, 100), KVP_OK);
    }
    head.limit = 7;
    head.prefix = (ProtobufCBinaryData){5, (uint8_t *)"even/"};
    do {
        reply_t *r = peer_reply(g->c, peer_send(g->c, KVP_OP_LIST, 0, &head.base, NULL, 0));
        const kvp_wire_entry_t *entries;
        Kvp__Pb__ListReply *reply;
        const char *keys;
        kvp_pb_t pb;
        int i;

        assert_non_null(r);
        reply = kvp_pb_unpack(&pb, &kvp__pb__list_reply__descriptor, &r->frame);
        entries = (const kvp_wire_entry_t *)r->frame.tail;
        keys = (const char *)(entries + reply->n);
        for (uint32_t k = 0; k < reply->n; k++) {
            snprintf(key, sizeof key, "%.*s", (int)entries[k].key_len, keys + entries[k].key_at);
            assert_int_equal(sscanf(key, "even/%d", &i), 1);
            assert_false(is_seen[i]); /* nothing comes twice */
            assert_int_equal(entries[k].len, 100);
            is_seen[i] = true;
            seen++;
        }
        head.cursor = reply->cursor;
        pages++;
        kvp_pb_free(&pb, reply);
        reply_free(r);
    } while (head.cursor != 0);
    assert_int_equal(seen, 100);
    assert_true(pages >= 100 / 7);
}

RIG_TEST(test_put_when_present_or_under_way, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt, other;
    peer_t *d = client_open(g->w);

    assert_int_equal(put_place(g->c, "key", 100, &attempt, &loc), KVP_OK);
    assert_int_equal(put_place(g->c, "key", 100, &other, &loc), KVP_IN_PROGRESS);
    assert_int_equal(put_place(d, "key", 100, &other, &loc), KVP_IN_PROGRESS);
    assert_int_equal(commit(d, attempt, 0), KVP_ABORTED); /* another's attempt is none of ours */
    assert_int_equal(commit(g->c, attempt, 0), KVP_OK);
    assert_int_equal(put_place(d, "key", 200, &other, &loc), KVP_ALREADY);
    assert_true(exists(g->c, "key"));
    assert_int_equal(world_stats(g->w).put_already, 1);
    assert_int_equal(world_stats(g->w).put_in_progress, 2);
}

RIG_TEST(test_end_when_repeated, plain)
{
    kvp_wire_put_t rec;
    kvp_wire_loc_t loc;
    uint64_t attempt, aborted;

    assert_int_equal(put_place(g->c, "key", 100, &attempt, &loc), KVP_OK);
    assert_int_equal(commit(g->c, attempt, 0), KVP_OK);
    assert_int_equal(commit(g->c, attempt, 0), KVP_OK);
    assert_int_equal(abort_put(g->c, attempt, true), KVP_ALREADY);
    assert_true(exists(g->c, "key"));
    assert_int_equal(world_stats(g->w).commits, 1);

    assert_int_equal(put_place(g->c, "other", 100, &aborted, &loc), KVP_OK);
    assert_int_equal(abort_put(g->c, aborted, true), KVP_OK);
    assert_int_equal(abort_put(g->c, aborted, true), KVP_OK);
    assert_int_equal(commit(g->c, aborted, 0), KVP_ABORTED);
    assert_false(exists(g->c, "other"));
    rec = record(g->c, "other", 100, aborted);
    assert_int_equal(put_record(g->c, &rec, "other", 5), KVP_INVALID); /* an attempt is made once */
    assert_int_equal(commit(g->c, 12345, 0), KVP_ABORTED);
    assert_int_equal(abort_put(g->c, 12345, true), KVP_ABORTED);
}

RIG_TEST(test_put_when_the_same_key_comes_twice_in_a_message, plain)
{
    put_t puts[2] = {{.key = "key", .len = 100}, {.key = "key", .len = 100}};
    places_t places;

    places_read(peer_reply(g->c, put_begin(g->c, puts, 2, 0)), &places);
    assert_int_equal(places.objs[0].err, KVP_OK);
    assert_int_equal(places.objs[1].err, KVP_IN_PROGRESS);
    assert_int_equal(places.nloc, 1);
    places_free(&places);
}

RIG_TEST(test_put_when_the_record_is_wrong, plain)
{
    char key[1100];
    kvp_wire_put_t rec;

    memset(key, 'k', sizeof key);
    rec = record(g->c, "key", 10, 1);
    rec.digest.hi++;
    assert_int_equal(put_record(g->c, &rec, "key", 3), KVP_INVALID);
    rec = record(g->c, "key", 10, 1);
    rec.key_len = 0;
    assert_int_equal(put_record(g->c, &rec, "key", 3), KVP_BAD_KEY);
    rec.key_len = 1025;
    assert_int_equal(put_record(g->c, &rec, key, sizeof key), KVP_BAD_KEY);
    rec = record(g->c, "key", 10, 1);
    rec.key_at = 1; /* reaches beyond the frame */
    assert_int_equal(put_record(g->c, &rec, "key", 3), KVP_INVALID);
    rec.key_at = UINT32_MAX;
    assert_int_equal(put_record(g->c, &rec, "key", 3), KVP_INVALID);
    rec = record(g->c, "key", 0, 1);
    assert_int_equal(put_record(g->c, &rec, "key", 3), KVP_INVALID);
    rec = record(g->c, "key", 10, 0);
    assert_int_equal(put_record(g->c, &rec, "key", 3), KVP_INVALID);
    rec = record(g->c, "key", MIB + 1, 1);
    assert_int_equal(put_record(g->c, &rec, "key", 3), KVP_TOO_LARGE);
    rec = record(g->c, "key", UINT64_MAX, 1);
    assert_int_equal(put_record(g->c, &rec, "key", 3), KVP_TOO_LARGE);
    rec = record(g->c, "key", MIB, 1); /* a whole chunk is not too large */
    assert_int_equal(put_record(g->c, &rec, "key", 3), KVP_OK);
    rec = record(g->c, "yek", 10, 1); /* an attempt's number that is in use */
    assert_int_equal(put_record(g->c, &rec, "yek", 3), KVP_INVALID);
    assert_int_equal(world_stats(g->w).attempts, 1);
}

TEST(test_put_when_no_segment_is_mounted)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    peer_t *c = client_open(w);

    assert_int_equal(put(c, "key", 100), KVP_RETRY_AFTER); /* a node may be on its way */
    world_advance(w, 10 * SEC);
    assert_int_equal(put(c, "key", 100), KVP_NO_SPACE);
    world_close(w);
}

/* A master that took over a pool: its nodes have memory that is worth waiting for as long as it may come back. */
TEST(test_put_when_the_nodes_of_the_master_before_are_not_back)
{
    world_t *w = world_open(&(kvp_master_conf_t){.had_master = true, .node_grace_ns = 30 * SEC});
    peer_t *c = client_open(w);

    world_advance(w, 20 * SEC);
    c = client_open(w);
    assert_int_equal(put(c, "key", 100), KVP_RETRY_AFTER);
    world_advance(w, 10 * SEC);
    c = client_open(w);
    assert_int_equal(put(c, "key", 100), KVP_NO_SPACE);
    world_close(w);
}

RIG_TEST(test_put_of_the_longest_key, plain)
{
    kvp_wire_loc_t loc;
    kvp_chunk_geo_t geo;
    char key[1025];
    put_t one = {.key = key, .len = 100};
    places_t places;

    kvp_chunk_geo(MIB, &geo);
    memset(key, 'x', sizeof key);
    for (uint32_t len = 127; len <= 1024; len += len < 130 ? 1 : 447) {
        one.key_len = len;
        places_read(peer_reply(g->c, put_begin(g->c, &one, 1, 0)), &places);
        assert_int_equal(places.objs[0].err, KVP_OK);
        loc = places.locs[0];
        /* Up to 128 bytes it lies in the slot's cell, above in the area behind the cells. */
        if (len <= 128)
            assert_int_equal(loc.key_off, kvp_key_cell_units(&geo, loc.slot));
        else
            assert_true((uint64_t)loc.key_off * 64 >= geo.long_keys_off);
        assert_true((uint64_t)loc.key_off * 64 + len <= geo.meta_bytes);
        assert_int_equal(commit(g->c, one.attempt, 0), KVP_OK);
        places_free(&places);
        key[0]++; /* another key */
    }
}

static void
long_key(char *key, uint32_t i)
{
    memset(key, 'l', 1000);
    key[1000] = '\0';
    key[snprintf(key, 20, "%08u", i)] = '-';
}

/* A chunk's area for long keys is used up long before its payload: the oldest object with a long key goes then, and
 * none with a short one. Short keys are not affected. */
RIG_TEST_ON(test_put_when_long_keys_are_used_up, .size = 64 * KIB)
{
    kvp_chunk_geo_t geo;
    uint32_t room;
    char key[1001];

    kvp_chunk_geo(64 * KIB, &geo);
    room = (uint32_t)(geo.long_keys_bytes / 1024);
    assert_int_equal(put(g->c, "old and short", 64), KVP_OK);
    for (uint32_t i = 0; i < room + 20; i++) {
        long_key(key, i);
        assert_int_equal(put(g->c, key, 64), KVP_OK);
        if (i < 20) continue;
        long_key(key, i - 20);
        assert_true(exists(g->c, key) == (i - 20 >= i + 1 - kvp_min_u64(i + 1, room)));
    }
    assert_true(exists(g->c, "old and short"));
    assert_int_equal(world_stats(g->w).evictions, 20);
    assert_int_equal(put(g->c, "short", 64), KVP_OK);
    assert_int_equal(world_stats(g->w).evictions, 20);
}

RIG_TEST_ON(test_put_when_long_keys_are_used_up_by_held_objects, .size = 64 * KIB)
{
    uint64_t *tickets, id;
    kvp_chunk_geo_t geo;
    uint32_t room;
    char key[1001];
    put_t one = {.key = key, .len = 64};
    places_t places;

    kvp_chunk_geo(64 * KIB, &geo);
    room = (uint32_t)(geo.long_keys_bytes / 1024);
    tickets = calloc(room, sizeof *tickets);
    for (uint32_t i = 0; i < room; i++) {
        long_key(key, i);
        assert_int_equal(put(g->c, key, 64), KVP_OK);
        assert_int_equal(get(g->c, key, &tickets[i], NULL), KVP_OK);
    }
    long_key(key, room);
    assert_int_equal(put_wait(g->c, key, 64, 50), KVP_RETRY_AFTER);
    id = put_begin(g->c, &one, 1, 1000);
    world_advance(g->w, 50 * MS);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(put(g->c, "short", 64), KVP_OK); /* goes past it */
    release(g->c, tickets[3]);
    places_read(peer_wait(g->c, id, 100 * MS), &places);
    assert_int_equal(places.objs[0].err, KVP_OK);
    places_free(&places);
    free(tickets);
}

/* ---- attempts that end otherwise */
RIG_TEST(test_abort_when_drained, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt;

    g->na->needs_proof = true;
    assert_int_equal(put_place(g->c, "key", 100, &attempt, &loc), KVP_OK);
    assert_int_equal(abort_put(g->c, attempt, true), KVP_OK);
    assert_int_equal(world_stats(g->w).attempts, 0);
    assert_int_equal(world_stats(g->w).used_bytes, 0); /* free at once: nobody can still store there */
    assert_int_equal(put(g->c, "key", 100), KVP_OK);
    assert_int_equal(write_place(g->w, &loc), KVP_STALE); /* and a late store of the old one is lost */
}

RIG_TEST(test_abort_when_not_drained, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt;

    g->na->needs_proof = true;
    assert_int_equal(put_place(g->c, "key", 100, &attempt, &loc), KVP_OK);
    assert_int_equal(abort_put(g->c, attempt, false), KVP_OK);
    assert_int_equal(world_stats(g->w).quarantine_bytes, kvp_extent_bytes(100));
    assert_int_equal(put(g->c, "key", 100), KVP_OK); /* the key is free at once */
    world_advance(g->w, 60 * SEC); /* no timer ends a quarantine */
    assert_int_equal(world_stats(g->w).quarantine_bytes, kvp_extent_bytes(100));
    world_prove(g->w, g->c->incarnation);
    assert_int_equal(world_stats(g->w).quarantine_bytes, 0);
}

RIG_TEST(test_abort_when_one_way_is_not_answered, plain)
{
    Kvp__Pb__PutAbort head = KVP__PB__PUT_ABORT__INIT;
    kvp_wire_loc_t loc;
    uint64_t attempt, id;

    assert_int_equal(put_place(g->c, "key", 100, &attempt, &loc), KVP_OK);
    head.n = 1;
    head.is_drained = true;
    id = peer_send(g->c, KVP_OP_PUT_ABORT, KVP_FRAME_ONEWAY, &head.base, &attempt, sizeof attempt);
    assert_null(peer_reply(g->c, id)); /* the world fails on an answer that was not asked for */
    assert_int_equal(world_stats(g->w).attempts, 0);
}

/* A put whose caller gives up before the master has answered: the attempt must not stay open behind the answer. */
RIG_TEST(test_abort_when_the_begin_is_not_answered, plain)
{
    put_t puts[2] = {{.key = "a", .len = MIB}, {.key = "b", .len = MIB}};
    uint64_t id, tickets[3];
    char key[16];

    for (int i = 0; i < 3; i++) { /* of four chunks one is left, and nothing can be evicted */
        snprintf(key, sizeof key, "held%d", i);
        assert_int_equal(put(g->c, key, MIB), KVP_OK);
        assert_int_equal(get(g->c, key, &tickets[i], NULL), KVP_OK);
    }
    granted(g->c, put_begin(g->c, &puts[1], 1, 10000), KVP_OK); /* takes the last chunk */
    id = put_begin(g->c, &puts[0], 1, 10000);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(commit(g->c, puts[0].attempt, 0), KVP_INVALID);
    assert_int_equal(abort_put(g->c, puts[0].attempt, true), KVP_OK);
    granted(g->c, id, KVP_ABORTED);
    assert_int_equal(world_stats(g->w).attempts, 1);
    assert_int_equal(world_stats(g->w).pending_puts, 0);
}

/* ---- writers that die */
RIG_TEST(test_client_when_it_dies_with_attempts, plain)
{
    kvp_wire_loc_t loc[3];
    uint64_t attempt, dead, live_min;
    peer_t *d = client_open(g->w);
    char key[16];

    g->na->needs_proof = true;
    assert_int_equal(put(g->c, "committed", 100), KVP_OK);
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "key%d", i);
        assert_int_equal(put_place(g->c, key, 1000, &attempt, &loc[i]), KVP_OK);
    }
    dead = g->c->incarnation;
    live_min = d->incarnation;
    peer_forget(g->c);
    assert_int_equal(world_stats(g->w).attempts, 0);
    assert_int_equal(world_stats(g->w).quarantine_bytes, 3 * kvp_extent_bytes(1000));
    assert_int_equal(g->na->last_fence.incarnation, dead);
    assert_int_equal(g->na->last_fence.live_min, live_min); /* a node's session does not hold it back */
    assert_true(exists(d, "committed"));
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "key%d", i);
        assert_int_equal(put(d, key, 1000), KVP_OK); /* the keys are free at once; the world checks for overlap */
        assert_int_equal(write_place(g->w, &loc[i]), KVP_STALE);
    }
    world_advance(g->w, 30 * SEC);
    assert_int_equal(world_stats(g->w).quarantine_bytes, 3 * kvp_extent_bytes(1000));
    assert_int_equal(world_stats(g->w).objects, 4);
    world_prove(g->w, dead);
    assert_int_equal(world_stats(g->w).quarantine_bytes, 0);
}

RIG_TEST(test_client_when_the_last_one_dies, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt, dead;

    assert_int_equal(put_place(g->c, "key", 100, &attempt, &loc), KVP_OK);
    dead = g->c->incarnation;
    peer_forget(g->c);
    assert_int_equal(g->na->last_fence.incarnation, dead);
    assert_true(g->na->last_fence.live_min > dead);
    g->c = client_open(g->w);
    assert_true(g->c->incarnation >= g->na->last_fence.live_min); /* who comes later is not fenced by it */
}

/* What it had is retired where it lay. Only the fence keeps it from connecting again, and by RDMA no word in memory
 * guards what comes over a connection, but only what the writer itself knows. */
RIG_TEST(test_client_when_it_dies_with_attempts_is_fenced_everywhere, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt, dead;
    peer_t *other, *d;

    other = node_open(g->w, mem_make(g->w, "n2", 4 * MIB, MIB));
    d = client_open(g->w); /* c is older, and lives: d is fenced by name */
    assert_int_equal(put_place(d, "key", 100, &attempt, &loc), KVP_OK);
    dead = d->incarnation;
    peer_forget(d);
    assert_int_equal(g->na->last_fence.incarnation, dead);
    assert_int_equal(other->last_fence.incarnation, dead);
    assert_true(g->na->last_fence.live_min <= g->c->incarnation);
    assert_int_equal(world_stats(g->w).fences, 1);
}

/* Clients come, one in two dies with an attempt and the other one says goodbye, while an old one lives: what a node
 * keeps of the dead is no more than there are live ones. */
RIG_TEST(test_clients_when_many_die_are_few_ranges_at_a_node, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt, dead;
    kvp_idset_t fenced = {0};

    for (uint32_t i = 0; i < 100; i++) {
        peer_t *polite = client_open(g->w), *d = client_open(g->w);

        assert_int_equal(put_place(d, "key", 100, &attempt, &loc), KVP_OK);
        dead = d->incarnation;
        peer_forget(d);
        kvp_idset_add(&fenced, (kvp_idrange_t){g->na->last_fence.above, g->na->last_fence.incarnation}, 0);
        assert_true(kvp_idset_has(&fenced, dead));
        assert_false(kvp_idset_has(&fenced, polite->incarnation));
        peer_forget(polite); /* all above it are refused: so is it */
        kvp_idset_add(&fenced, (kvp_idrange_t){g->na->last_fence.above, g->na->last_fence.incarnation}, 0);
        assert_false(kvp_idset_has(&fenced, g->c->incarnation));
        assert_in_range(fenced.n, 1, 2);
    }
    kvp_idset_fini(&fenced);
    assert_int_equal(world_stats(g->w).fences, 100);
}

RIG_TEST(test_client_when_it_dies_without_attempts_is_not_fenced, plain)
{
    uint32_t before = g->na->fences_n;

    assert_int_equal(put(g->c, "key", 100), KVP_OK);
    peer_forget(g->c);
    assert_int_equal(g->na->fences_n, before);
    assert_int_equal(world_stats(g->w).fences, 0);
}

RIG_TEST(test_bye_with_attempts, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt, id;

    g->na->needs_proof = true;
    assert_int_equal(put_place(g->c, "key", 100, &attempt, &loc), KVP_OK);
    id = peer_send(g->c, KVP_OP_BYE, 0, NULL, NULL, 0);
    assert_int_equal(plain_result(peer_reply(g->c, id)), KVP_OK);
    assert_true(g->c->was_closed);
    assert_int_equal(world_stats(g->w).attempts, 0);
    assert_int_equal(world_stats(g->w).used_bytes, 0); /* its word that nothing is under way */
    assert_int_equal(world_stats(g->w).fences, 0);
}

/* The node was away while a client died: it is told who is alive when it is back. */
RIG_TEST(test_fence_when_the_node_was_away, plain)
{
    kvp_wire_loc_t loc;
    uint64_t attempt, dead;
    mem_t *mem = g->na->mem;

    assert_int_equal(put_place(g->c, "key", 100, &attempt, &loc), KVP_OK);
    dead = g->c->incarnation;
    peer_forget(g->na);
    peer_forget(g->c);
    g->na = node_open(g->w, mem);
    assert_true(g->na->last_fence.live_min > dead);
    assert_int_equal(g->na->retires_n, 1);
}

/* A client with thousands of attempts dies: they are aborted in slices, and a key that somebody wants at once. */
TEST(test_client_when_it_dies_with_thousands_of_attempts)
{
    enum { N = 4000, BATCH = 500 };
    world_t *w = world_open(&(kvp_master_conf_t){0});
    peer_t *c, *d, *n = node_open(w, mem_make(w, "n1", 16 * MIB, 16 * MIB));
    put_t *puts = calloc(N, sizeof *puts);
    char(*keys)[16] = calloc(N, sizeof *keys);
    uint64_t left, dead;
    places_t places;

    w->check_every = 0;
    n->needs_proof = true;
    c = client_open(w);
    d = client_open(w);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "key%u", i);
        puts[i] = (put_t){.key = keys[i], .len = 1};
    }
    for (uint32_t i = 0; i < N; i += BATCH) {
        places_read(peer_reply(c, put_begin(c, puts + i, BATCH, 0)), &places);
        assert_int_equal(places.nloc, BATCH);
        places_free(&places);
    }
    dead = c->incarnation;
    w->is_idle_off = true;
    peer_forget(c);
    left = world_stats(w).attempts;
    assert_true(left > 0 && left < N);
    assert_int_equal(n->last_fence.incarnation, dead);
    for (uint32_t i = 0; i < N; i += 500)
        assert_int_equal(put(d, keys[i], 1), KVP_OK);
    assert_int_equal(put(d, keys[N - 1], 1), KVP_OK);
    while (world_has_work(w)) {
        kvp_master_on_tick(w->m, w->now);
        world_check(w);
        assert_true(world_stats(w).attempts < left && left - world_stats(w).attempts <= 520);
        left = world_stats(w).attempts;
    }
    assert_int_equal(left, 0);
    world_pump(w);
    assert_int_equal(world_stats(w).quarantine_bytes, N * 64);
    world_prove(w, dead);
    assert_int_equal(world_stats(w).quarantine_bytes, 0);
    assert_int_equal(world_stats(w).objects, N / 500 + 1);
    free(keys);
    free(puts);
    world_close(w);
}

/* ---- bounds on what clients can make the master remember */
/* All clients together have a bound, those that are gone and not aborted yet too; and 64 that take all they get leave
 * some. */
TEST(test_put_when_all_have_too_many_attempts)
{
    enum { BATCH = 512, CLIENTS = 64, MOST = 262144 };
    world_t *w = world_open(&(kvp_master_conf_t){0});
    peer_t *n = node_open(w, mem_make(w, "n1", 64 * MIB, 64 * MIB)), *greedy[CLIENTS], *d;
    put_t *puts = calloc(BATCH, sizeof *puts);
    char(*keys)[16] = calloc(BATCH, sizeof *keys);

    (void)n;
    w->check_every = 0;
    d = client_open(w);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        kvp_err_t err = KVP_OK;

        greedy[i] = client_open(w);
        for (uint32_t j = 0; err == KVP_OK; j += BATCH) {
            places_t places;

            for (uint32_t k = 0; k < BATCH; k++) {
                snprintf(keys[k], sizeof keys[k], "k%u/%u", i, j + k);
                puts[k] = (put_t){.key = keys[k], .len = 1};
            }
            places_read(peer_reply(greedy[i], put_begin(greedy[i], puts, BATCH, 0)), &places);
            err = places.objs[BATCH - 1].err;
            places_free(&places);
        }
        assert_int_equal(err, KVP_RETRY_AFTER);
    }
    assert_true(world_stats(w).attempts > MOST - 512 && world_stats(w).attempts < MOST);
    assert_int_equal(put(d, "other", 1), KVP_OK);
    for (uint32_t i = 0; i < CLIENTS; i++)
        peer_forget(greedy[i]);
    world_pump(w);
    assert_int_equal(world_stats(w).attempts, 0);
    free(keys);
    free(puts);
    world_close(w);
}

/* Putting and aborting without a drain, again and again, fills the quarantine: it counts as unfinished. */
RIG_TEST_ON(test_put_when_quarantine_reaches_the_limit, .size = 8ull << 30, .chunk = 1ull << 30)
{
    kvp_wire_loc_t loc;
    uint64_t attempt;
    char key[16];

    g->na->needs_proof = true;
    for (int i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "key%d", i);
        assert_int_equal(put_place(g->c, key, 1ull << 30, &attempt, &loc), KVP_OK);
        assert_int_equal(abort_put(g->c, attempt, false), KVP_OK);
    }
    assert_int_equal(put(g->c, "more", 1), KVP_LIMIT);
    world_prove(g->w, g->c->incarnation);
    assert_int_equal(put(g->c, "more", 1), KVP_OK);
}

/* What is not built is refused whole, and not done by half. */
RIG_TEST_ON(test_put_when_its_pin_is_unknown, .size = 1 * MIB)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = "key", .len = 100};

    head.pin = KVP_PIN_HARD + 1;
    assert_int_equal(plain_result(peer_wait(g->c, put_begin_with(g->c, &one, 1, &head), SEC)), KVP_INVALID);
    assert_int_equal(world_stats(g->w).attempts, 0);
}

TEST_MAIN()
