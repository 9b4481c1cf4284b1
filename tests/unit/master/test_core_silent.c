/* SPDX-License-Identifier: Apache-2.0
 * Keys of writers that are silent: who else asks for them gets them, and what the silent one may still store to is
 * nobody's until that is over. */
#include "tests/unit/master/rig.h"

#define SILENT (1250 * MS)
#define LEN 4096u

typedef struct {
    world_t *w;
    peer_t *n, *writer, *other;
    uint64_t attempt;
    kvp_wire_loc_t loc;
} silent_t;

/* A writer that has begun a put of "key" and says nothing from then on. */
static silent_t
silent_open(uint64_t size)
{
    silent_t s;

    s.w = world_open(&(kvp_master_conf_t){0});
    s.n = node_open(s.w, mem_make(s.w, "n1", size, size));
    s.n->needs_proof = true;
    s.writer = client_open(s.w);
    s.other = client_open(s.w);
    assert_int_equal(put_place(s.writer, "key", LEN, &s.attempt, &s.loc), KVP_OK);
    s.writer->is_silent = true;
    return s;
}

TEST(test_put_begin_when_the_writer_is_silent)
{
    silent_t s = silent_open(4 * MIB);
    kvp_wire_loc_t loc;
    uint64_t attempt;

    world_advance(s.w, SILENT - MS);
    assert_int_equal(put(s.other, "key", LEN), KVP_IN_PROGRESS);
    world_advance(s.w, MS);
    assert_int_equal(put_place(s.other, "key", LEN, &attempt, &loc), KVP_OK);
    assert_int_not_equal(loc.generation, s.loc.generation);
    assert_int_equal(write_place(s.w, &loc), KVP_OK);
    assert_int_equal(commit(s.other, attempt, 1), KVP_OK);
    assert_int_equal(world_stats(s.w).put_taken, 1);
    assert_int_equal(world_stats(s.w).quarantine_bytes, LEN);
    assert_int_equal(world_stats(s.w).clients, 2); /* its session goes on */

    assert_int_equal(write_place(s.w, &s.loc), KVP_STALE);
    assert_int_equal(commit(s.writer, s.attempt, 2), KVP_ABORTED);
    assert_true(exists(s.other, "key"));
    assert_int_equal(world_stats(s.w).quarantine_bytes, LEN); /* that is no word about its stores */
    world_prove(s.w, s.writer->incarnation);
    world_advance(s.w, SEC);
    assert_int_equal(world_stats(s.w).quarantine_bytes, 0);
    world_close(s.w);
}

TEST(test_put_begin_when_the_writer_only_writes)
{
    silent_t s = silent_open(4 * MIB);

    for (uint32_t i = 0; i < 30; i++) {
        world_advance(s.w, 250 * MS);
        peer_beat(s.writer);
        assert_int_equal(put(s.other, "key", LEN), KVP_IN_PROGRESS);
    }
    assert_int_equal(write_place(s.w, &s.loc), KVP_OK);
    assert_int_equal(commit(s.writer, s.attempt, 1), KVP_OK);
    world_close(s.w);
}

/* While the master stood still it could hear nobody. */
TEST(test_put_begin_when_the_master_was_silent)
{
    silent_t s = silent_open(4 * MIB);

    world_jump(s.w, 5 * SEC);
    assert_int_equal(put(s.other, "key", LEN), KVP_IN_PROGRESS);
    world_advance(s.w, SILENT);
    assert_int_equal(put(s.other, "key", LEN), KVP_OK);
    world_prove(s.w, s.writer->incarnation);
    world_close(s.w);
}

TEST(test_space_of_a_silent_writer_when_it_says_that_it_is_done)
{
    silent_t s = silent_open(4 * MIB);

    world_advance(s.w, SILENT);
    assert_int_equal(put(s.other, "key", LEN), KVP_OK);
    assert_int_equal(world_stats(s.w).quarantine_bytes, LEN);
    assert_int_equal(abort_put(s.writer, s.attempt, false), KVP_OK);
    assert_int_equal(world_stats(s.w).quarantine_bytes, LEN);
    assert_int_equal(abort_put(s.writer, s.attempt, true), KVP_OK);
    assert_int_equal(world_stats(s.w).quarantine_bytes, 0);
    assert_int_equal(world_stats(s.w).used_bytes, LEN);
    assert_int_equal(abort_put(s.writer, s.attempt, true), KVP_OK);
    assert_int_equal(put(s.writer, "more", LEN), KVP_OK); /* and it goes on */
    world_close(s.w);
}

/* The session's end comes between: then its word is of no use, and its end is what counts. */
TEST(test_space_of_a_silent_writer_when_its_session_ends)
{
    silent_t s = silent_open(4 * MIB);
    uint64_t incarnation = s.writer->incarnation;

    world_advance(s.w, SILENT);
    assert_int_equal(put(s.other, "key", LEN), KVP_OK);
    peer_lose(s.writer);
    world_advance(s.w, SEC);
    assert_int_equal(world_stats(s.w).quarantine_bytes, LEN);
    world_prove(s.w, incarnation);
    world_advance(s.w, SEC);
    assert_int_equal(world_stats(s.w).quarantine_bytes, 0);
    world_close(s.w);
}

/* More than what is kept in mind: the rest waits for the end of the client. */
TEST(test_space_of_a_silent_writer_when_there_is_much)
{
    enum { KEYS = 20, KEPT = 16 };
    silent_t s = silent_open(4 * MIB);
    uint64_t attempts[KEYS];
    char key[] = "key a";

    for (char i = 0; i < KEYS; i++) {
        key[4] = (char)('a' + i);
        assert_int_equal(put_place(s.writer, key, LEN, &attempts[(int)i], &s.loc), KVP_OK);
    }
    world_advance(s.w, SILENT);
    for (char i = 0; i < KEYS; i++) {
        key[4] = (char)('a' + i);
        assert_int_equal(put(s.other, key, LEN), KVP_OK);
    }
    for (uint32_t i = 0; i < KEYS; i++)
        assert_int_equal(abort_put(s.writer, attempts[i], true), KVP_OK);
    assert_int_equal(world_stats(s.w).quarantine_bytes, (KEYS - KEPT) * LEN);
    world_prove(s.w, s.writer->incarnation);
    world_advance(s.w, SEC);
    assert_int_equal(world_stats(s.w).quarantine_bytes, 0);
    world_close(s.w);
}

/* Nothing was granted yet: its message is answered without the key. */
TEST(test_put_begin_when_the_silent_writer_waits_for_space)
{
    silent_t s = silent_open(MIB);
    put_t big = {.key = "big", .len = MIB - 2 * LEN};
    uint64_t ticket, id;

    assert_int_equal(put(s.other, "held", MIB / 2), KVP_OK);
    assert_int_equal(get(s.other, "held", &ticket, NULL), KVP_OK);
    id = put_begin(s.writer, &big, 1, 5000);
    world_advance(s.w, SILENT);
    assert_true(peer_is_asking(s.writer, id));
    assert_int_equal(put(s.other, "big", LEN), KVP_OK);
    granted(s.writer, id, KVP_ABORTED);
    assert_int_equal(world_stats(s.w).quarantine_bytes, 0);
    assert_int_equal(world_stats(s.w).pending_puts, 0);
    release(s.other, ticket);
    world_prove(s.w, s.writer->incarnation);
    world_close(s.w);
}

TEST(test_upsert_when_the_one_before_is_silent)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    silent_t s = silent_open(4 * MIB);
    put_t one = {.key = "other", .len = LEN};
    places_t places;

    assert_int_equal(put(s.other, "other", LEN), KVP_OK);
    head.is_upsert = true;
    assert_int_equal(attempt_begin(s.writer, &one, &head, NULL, NULL), KVP_OK);
    assert_int_equal(attempt_begin(s.other, &one, &head, NULL, NULL), KVP_IN_PROGRESS);
    world_advance(s.w, SILENT);
    assert_true(exists(s.other, "other"));
    places_read(peer_reply(s.other, put_begin_with(s.other, &one, 1, &head)), &places);
    assert_int_equal(places.objs[0].err, KVP_OK);
    assert_int_equal(write_place(s.w, &places.locs[0]), KVP_OK);
    places_free(&places);
    assert_int_equal(commit(s.other, one.attempt, 1), KVP_OK);
    world_prove(s.w, s.writer->incarnation);
    world_close(s.w);
}

TEST_MAIN()
