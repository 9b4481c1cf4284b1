/* SPDX-License-Identifier: Apache-2.0
 * The get machine against a master and nodes written by hand. */
#include "tests/unit/client/getop_fixture.h"

TEST(test_get_reads_what_is_there)
{
    ask(3);
    answer_obj(&f.answer, KVP_OK, 1, 100, 0, 5);
    answer_obj(&f.answer, KVP_NOT_FOUND, 0, 0, 0, 0);
    answer_obj(&f.answer, KVP_OK, 1, 4096, 0, 9);
    f.answer.ticket = TICKET;
    reply();
    expect_moves(2);
    assert_int_equal(f.moves[0].loc.generation, 5);
    assert_int_equal(f.moves[1].loc.generation, 9);
    assert_int_equal(f.moves[1].len, 4096);
    moved();
    expect_release(TICKET);
    expect_step(KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    assert_int_equal(f.items[0].len, 100);
    assert_int_equal(f.items[1].err, KVP_NOT_FOUND);
    assert_int_equal(f.items[2].err, KVP_OK);
}

TEST(test_get_of_nothing)
{
    setup(0);
    expect_step(KVP_STEP_DONE);
}

TEST(test_get_into_small_buffer_tells_length)
{
    ask(1);
    reply_found(1, 4097, 0, 5);
    expect_step(KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_BUFFER_SMALL);
    assert_int_equal(f.items[0].len, 4097);
}

TEST(test_get_goes_to_next_replica)
{
    to_first_move(2, 0);
    f.moves[0].err = KVP_NODE_LOST;
    moved();
    expect_moves(1);
    assert_int_equal(f.moves[0].loc.segment_id, 2);
    moved();
    expect_released(KVP_OK);
}

/* A read that may be tried elsewhere gets a share of the time, so it does not share a step with one that may not. */
TEST(test_get_reads_first_what_has_copies_to_spare)
{
    ask(3);
    answer_obj(&f.answer, KVP_OK, 1, 100, 0, 5);
    answer_obj(&f.answer, KVP_OK, 3, 100, 0, 5);
    reply_found(2, 100, 0, 5);
    expect_moves(2);
    assert_int_equal(f.op.others, 2);
    assert_int_equal(f.moves[0].item, 1);
    assert_int_equal(f.moves[1].item, 2);
    f.moves[0].err = KVP_NODE_LOST;
    f.moves[1].err = KVP_NODE_LOST;
    moved();
    expect_moves(1);
    assert_int_equal(f.op.others, 1);
    assert_int_equal(f.moves[0].item, 1);
    moved();
    expect_moves(2);
    assert_int_equal(f.op.others, 0);
    moved();
    expect_done(KVP_OK);
}

/* A RELEASE of no ticket, that names the place of the first item. */
static void
expect_told_unreadable(uint64_t generation)
{
    kvp_wire_unreadable_t rec;
    kvp_frame_t frame;

    expect_step(KVP_STEP_SEND);
    parse_out(&f.out, KVP_OP_RELEASE, &frame);
    assert_int_equal(frame.hdr.flags, KVP_FRAME_ONEWAY);
    assert_int_equal(frame.tail_len, sizeof rec);
    memcpy(&rec, frame.tail, sizeof rec);
    assert_true(kvp_digest_eq(rec.digest, f.items[0].digest));
    assert_int_equal(rec.generation, generation);
}

TEST(test_get_asks_once_more_after_stale)
{
    for (int is_found = 0; is_found <= 1; is_found++) {
        to_first_move(1, 0);
        f.moves[0].desc.word = kvp_word_make(6, KVP_DESC_SEALED);
        moved();
        expect_release(TICKET);
        expect_get_all();
        reply_found(1, 100, 0, 6);
        expect_moves(1);
        if (!is_found) f.moves[0].desc.word = kvp_word_make(6, KVP_DESC_DEAD);
        moved();
        if (!is_found) expect_told_unreadable(6);
        expect_done(is_found ? KVP_OK : KVP_STALE);
        assert_int_equal(f.op.stale_n, is_found ? 1 : 2);
    }
}

/* Each field of the line that does not fit makes the bytes no good. */
TEST(test_get_rejects_other_descriptors)
{
    const uint64_t sealed = kvp_word_make(5, KVP_DESC_SEALED);
    const struct {
        size_t at;
        uint64_t bits;
    } flips[] = {
        {offsetof(kvp_desc_t, word), sealed ^ kvp_word_make(5, KVP_DESC_WRITING)},
        {offsetof(kvp_desc_t, word), sealed ^ kvp_word_make(5, KVP_DESC_DEAD)},
        {offsetof(kvp_desc_t, version), 1},
        {offsetof(kvp_desc_t, digest.hi), 1},
        {offsetof(kvp_desc_t, offset), 64},
        {offsetof(kvp_desc_t, len), 1},
        {offsetof(kvp_desc_t, key_hash2), 1},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(flips); i++) {
        to_first_move(1, 0);
        *(uint64_t *)((char *)&f.moves[0].desc + flips[i].at) ^= flips[i].bits;
        moved();
        expect_release(TICKET);
        expect_step(flips[i].at == offsetof(kvp_desc_t, key_hash2) ? KVP_STEP_DONE : KVP_STEP_CALL);
    }
    assert_int_equal(f.items[0].err, KVP_COLLISION); /* of the last one */
}

/* What arrived is judged: it is right, or it is corrupt and the master is asked anew. */
static void
expect_verdict(bool is_good)
{
    moved();
    expect_release(TICKET);
    expect_step(is_good ? KVP_STEP_DONE : KVP_STEP_CALL);
    assert_int_equal(f.op.corrupt_n, is_good ? 0 : 1);
}

TEST(test_get_compares_sum_where_there_is_one)
{
    static const struct {
        uint64_t told, computed;
        bool is_computed, is_good;
    } cases[] = {{9, 9, true, true}, {9, 8, true, false}, {9, 8, false, true}, {0, 8, true, true}};

    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        to_first_move(1, cases[i].told);
        f.moves[0].has_sum = cases[i].is_computed;
        f.moves[0].sum = cases[i].computed;
        expect_verdict(cases[i].is_good);
    }
}

/* A path that does without descriptors: the sum is all that there is. Where it is another one the extent may have been
 * given to another object, though the master has just told it: an upsert waits for nobody. Once the master was asked
 * again the descriptor is read, and tells that from bytes that are broken. */
TEST(test_get_without_a_descriptor_needs_the_sum)
{
    static const struct {
        uint64_t computed;
        bool is_computed, is_given_away;
        kvp_err_t err;
    } cases[] = {{9, true, false, KVP_OK},
                 {8, true, false, KVP_CORRUPT},
                 {8, true, true, KVP_STALE},
                 {9, false, true, KVP_STALE}};

    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        bool is_good = cases[i].err == KVP_OK;

        to_first_move(1, 9);
        assert_true(f.moves[0].flags & KVP_READ_SUM_ALONE);
        f.moves[0].has_desc = false;
        memset(&f.moves[0].desc, 0xAA, sizeof f.moves[0].desc);
        f.moves[0].has_sum = cases[i].is_computed;
        f.moves[0].sum = cases[i].computed;
        moved();
        expect_release(TICKET);
        assert_int_equal(f.op.stale_n, is_good ? 0 : 1);
        assert_int_equal(f.op.corrupt_n, 0);
        if (!is_good) {
            expect_get_all();
            reply_found(1, 100, 9, 6);
            expect_moves(1);
            assert_false(f.moves[0].flags & KVP_READ_SUM_ALONE);
            f.moves[0].has_sum = true;
            f.moves[0].sum = 8;
            if (cases[i].is_given_away) f.moves[0].desc.word = kvp_word_make(6, KVP_DESC_DEAD);
            moved();
            if (cases[i].is_given_away) expect_told_unreadable(6);
        }
        expect_done(cases[i].err);
    }
}

TEST(test_get_skips_the_descriptor_of_small_objects_with_a_sum)
{
    setup(3);
    for (uint32_t i = 0; i < 3; i++)
        f.items[i].cap = UINT64_MAX;
    give_session(1);
    expect_get_all();
    answer_obj(&f.answer, KVP_OK, 1, KVP_SUM_ALONE_MAX, 9, 5);
    answer_obj(&f.answer, KVP_OK, 1, KVP_SUM_ALONE_MAX + 1, 9, 5);
    reply_found(1, KVP_SUM_ALONE_MAX, 0, 5);
    expect_moves(3);
    assert_true(f.moves[0].flags & KVP_READ_SUM_ALONE);
    assert_false(f.moves[1].flags & KVP_READ_SUM_ALONE);
    assert_false(f.moves[2].flags & KVP_READ_SUM_ALONE);
}

TEST(test_get_wants_sums_only_where_told)
{
    setup(2);
    f.op.wants_sums = true;
    give_session(1);
    expect_get_all();
    answer_obj(&f.answer, KVP_OK, 1, 100, 9, 5);
    reply_found(1, 100, 0, 5);
    expect_moves(2);
    assert_true(f.moves[0].flags & KVP_READ_SUM);
    assert_false(f.moves[1].flags & KVP_READ_SUM);
    assert_false(f.moves[0].flags & KVP_READ_NO_SUM);
    assert_true(f.moves[1].flags & KVP_READ_NO_SUM);
}

/* A copy that is out of reach, that is not where the master said, or that is of another key: the next one may be whole.
 * With the last of them the item ends: the master would say the same again. */
TEST(test_get_goes_on_after_what_only_one_copy_has)
{
    static const kvp_err_t faults[] = {KVP_NOTSUP, KVP_PROTO, KVP_COLLISION};

    for (size_t i = 0; i < 2 * KVP_ARRAY_LEN(faults); i++) {
        kvp_err_t fault = faults[i / 2];
        bool is_second_whole = i % 2 == 0;

        to_first_move(2, 0);
        for (int copy = 0; copy < 2; copy++) {
            if (copy == 1) expect_moves(1);
            assert_int_equal(f.moves[0].loc.segment_id, copy + 1);
            if (copy == 1 && is_second_whole) break;
            if (fault == KVP_COLLISION)
                f.moves[0].desc.key_hash2 ^= 1;
            else
                f.moves[0].err = fault;
            moved();
        }
        if (is_second_whole) moved();
        expect_release(TICKET);
        expect_done(is_second_whole ? KVP_OK : fault);
    }
}

TEST(test_get_final_errors_end_the_item)
{
    static const kvp_err_t finals[] = {KVP_DEADLINE, KVP_CLOSED, KVP_NOMEM};

    for (size_t i = 0; i < KVP_ARRAY_LEN(finals); i++) {
        to_first_move(2, 0);
        f.moves[0].err = finals[i];
        moved();
        expect_released(finals[i]);
    }
}

/* Not as a read that was STALE: the master is not asked again. */
TEST(test_get_of_another_epoch_ends)
{
    Kvp__Pb__Get *head;
    const uint32_t seven = 7;
    kvp_frame_t frame;
    kvp_pb_t pb;

    setup(2);
    f.op.epoch = &seven;
    give_session(1);
    expect_get_all();
    parse_out(&f.out, KVP_OP_GET, &frame);
    head = kvp_pb_unpack(&pb, &kvp__pb__get__descriptor, &frame);
    assert_true(head->has_epoch && head->epoch == 7);
    kvp_pb_free(&pb, head);
    f.answer.err = KVP_STALE;
    reply();
    expect_done(KVP_STALE);
}

TEST(test_get_starts_again_in_next_session)
{
    ask(2);
    kvp_getop_on_call_failed(&f.op, KVP_DISCONNECTED);
    give_session(2); /* with another seed: other digests */
    expect_get_all();
    answer_obj(&f.answer, KVP_OK, 1, 100, 0, 5);
    reply_found(1, 100, 0, 6);
    expect_moves(2);
    moved();
    expect_done(KVP_OK);
}

TEST(test_get_refused_as_fenced_starts_again)
{
    ask(1);
    f.answer.err = KVP_FENCED;
    assert_int_equal(kvp_getop_on_reply(&f.op, answer_places(&f.answer)), KVP_FENCED);
    expect_step(KVP_STEP_SESSION);
    kvp_getop_fail(&f.op, KVP_UNREACHABLE);
    expect_done(KVP_UNREACHABLE);
}

TEST(test_get_ends_at_deadline)
{
    to_first_move(1, 0);
    f.moves[0].err = KVP_NODE_LOST; /* would be asked again */
    moved();
    f.now = f.op.deadline_ns;
    expect_release(TICKET);
    expect_done(KVP_DEADLINE);
}

TEST(test_get_with_few_moves_takes_turns)
{
    setup(3);
    f.op.moves_cap = 2;
    give_session(1);
    expect_get_all();
    for (uint64_t i = 0; i < 3; i++)
        answer_obj(&f.answer, KVP_OK, 1, 100, 0, 5 + i);
    reply();
    expect_moves(2);
    moved();
    expect_moves(1);
    assert_int_equal(f.moves[0].loc.generation, 7);
    moved();
    expect_done(KVP_OK);
}

/* Fails if what is on its way from a tier into memory is not asked for again, once the rest was read and the time is
 * over that the master said. */
TEST(test_get_comes_again_for_what_is_staged)
{
    ask(2);
    f.answer.retry_ms = 2;
    answer_obj(&f.answer, KVP_RETRY_AFTER, 0, 0, 0, 0);
    answer_obj(&f.answer, KVP_OK, 1, 100, 0, 5);
    reply();
    expect_moves(1);
    assert_int_equal(f.moves[0].item, 1);
    moved();
    expect_step(KVP_STEP_SLEEP);
    f.now += 2 * MS;
    expect_get((const uint32_t[]){0}, 1);
    reply_found(1, 200, 0, 6);
    expect_moves(1);
    assert_int_equal(f.moves[0].item, 0);
    moved();
    expect_done(KVP_OK);

    ask(1); /* and what never comes */
    answer_obj(&f.answer, KVP_RETRY_AFTER, 0, 0, 0, 0);
    reply();
    f.now = f.op.deadline_ns;
    expect_done(KVP_DEADLINE);
}

/* Fails if what waits for room in the memory of its node is not asked for again, or ends at the deadline without that
 * reason. */
TEST(test_get_waits_for_room_until_its_deadline)
{
    for (int is_there = 0; is_there <= 1; is_there++) {
        ask(1);
        f.answer.retry_ms = 2;
        answer_obj(&f.answer, KVP_NO_SPACE, 0, 0, 0, 0);
        reply();
        expect_step(KVP_STEP_SLEEP);
        f.now += 2 * MS;
        expect_get_all();
        if (is_there) {
            reply_found(1, 200, 0, 6);
            expect_moves(1);
            moved();
            expect_done(KVP_OK);
            continue;
        }
        answer_obj(&f.answer, KVP_NO_SPACE, 0, 0, 0, 0);
        reply();
        f.now = f.op.deadline_ns;
        expect_done(KVP_NO_SPACE);
    }
}

TEST(test_get_refuses_answers_that_do_not_fit)
{
    for (int what = 0; what < 5; what++) {
        ask(2);
        answer_obj(&f.answer, KVP_OK, 1, 100, 0, 5);
        answer_obj(&f.answer, KVP_OK, 1, 100, 0, 5);
        if (what == 0) f.answer.n = 1;
        if (what == 1) f.answer.objs[1].nloc = 2; /* more than there are */
        if (what == 2) f.answer.objs[1].nloc = UINT32_MAX;
        if (what == 3) f.answer.objs[0].err = 5;
        answer_places(&f.answer);
        if (what == 4) f.answer.frame.tail_len -= 8;
        assert_int_equal(kvp_getop_on_reply(&f.op, &f.answer.frame), KVP_PROTO);
        expect_done(KVP_PROTO);
    }
}

TEST_MAIN_WITH(NULL, teardown)
