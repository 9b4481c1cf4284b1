/* SPDX-License-Identifier: Apache-2.0
 * The put machine against a master and nodes written by hand. */
#include "tests/unit/client/putop_fixture.h"

TEST(test_put_goes_through_its_phases)
{
    static const int32_t results[] = {KVP_OK, KVP_ALREADY, KVP_OK};

    ask(3);
    reply_granted(3, 1);
    expect_moves(KVP_MOVE_FILL, 3);
    assert_int_equal(f.moves[2].len, 102);
    moved();
    seal_and_commit(3, 3);
    reply_commit(results, 3);
    expect_done(KVP_OK);
}

TEST(test_put_seals_with_a_whole_descriptor)
{
    kvp_desc_t want;

    to_fill(1);
    moved();
    expect_moves(KVP_MOVE_SEAL, 1);
    want = (kvp_desc_t){
        .word = kvp_word_make(GEN, KVP_DESC_SEALED),
        .version = 7,
        .digest = kvp_key_digest(f.session.digest_seed, 0, "a", 1),
        .key_hash2 = kvp_key_hash2(f.session.digest_seed, 0, "a", 1),
        .offset = 4096,
        .len = 100,
        .sum = 1000,
        .ns_epoch = ANSWER_EPOCH,
        .key_off = 99,
        .key_len = 1,
        .attempt = f.asked[0],
        .term = 4,
    };
    kvp_desc_seal(&want);
    assert_memory_equal(&f.moves[0].desc, &want, sizeof want);
    assert_int_equal(f.moves[0].key_len, 1);
    assert_memory_equal(f.moves[0].key, "a", 1);
}

/* What is small is filled and sealed by one move; what is large, or a device's, takes two. */
TEST(test_put_of_what_is_small_takes_one_move)
{
    setup(3);
    f.items[0].is_host = f.items[1].is_host = true;
    give_session(1);
    expect_begin(0, 3);
    f.items[1].len = KVP_PUT_AT_ONCE_MAX + 1;
    reply_granted(3, 1);
    expect_step(KVP_STEP_MOVE);
    assert_int_equal(f.op.moves_n, 3);
    assert_int_equal(f.moves[0].kind, KVP_MOVE_PUT);
    assert_int_equal(f.moves[1].kind, KVP_MOVE_FILL);
    assert_int_equal(f.moves[2].kind, KVP_MOVE_FILL);
    assert_int_equal(f.moves[0].desc.word, kvp_word_make(GEN, KVP_DESC_SEALED));
    assert_int_equal(f.moves[0].desc.attempt, f.asked[0]);
    assert_memory_equal(f.moves[0].key, "a", 1);
    for (uint32_t i = 0; i < 3; i++) {
        f.moves[i].err = KVP_OK;
        f.moves[i].is_drained = f.moves[i].has_sum = true;
        f.moves[i].sum = 1000 + i;
    }
    moved();
    seal_and_commit(2, 3);
}

TEST(test_put_by_one_move_that_failed_begins_anew)
{
    setup(1);
    f.items[0].is_host = true;
    give_session(1);
    expect_begin(0, 1);
    reply_granted(1, 1);
    expect_moves(KVP_MOVE_PUT, 1);
    f.moves[0].err = KVP_STALE;
    f.moves[0].is_drained = false;
    moved();
    expect_abort(f.asked, 1, false);
    f.items[0].is_host = false;
    f.now = expect_step(KVP_STEP_SLEEP).until_ns;
    finish_well();
}

/* Of one item the key is committed: that is as good as put. */
static void
find_committed(void)
{
    expect_begin(0, 1);
    reply_refused(KVP_ALREADY);
    expect_done(KVP_OK);
}

TEST(test_put_of_committed_key_is_ok)
{
    setup(1);
    give_session(1);
    find_committed();
}

TEST(test_put_reports_a_committed_key_if_it_is_to)
{
    setup(1);
    f.op.committed = KVP_COMMITTED_ALREADY;
    give_session(1);
    expect_begin(0, 1);
    reply_refused(KVP_ALREADY);
    expect_done(KVP_ALREADY);
}

/* The master says of one item, asked last, that another live writer has it; the machine is to wait. */
static void
refuse_for_another(void)
{
    expect_begin(0, 1);
    reply_refused(KVP_IN_PROGRESS);
    f.now = expect_step(KVP_STEP_SLEEP).until_ns;
}

TEST(test_put_joins_another_writer)
{
    for (uint32_t is_committed = 0; is_committed <= 1; is_committed++) {
        setup(1);
        give_session(1);
        for (uint32_t i = 0; i < 5; i++)
            refuse_for_another();
        if (is_committed)
            find_committed();
        else
            finish_well(); /* the other one is gone: this one puts it */
    }
}

/* The answer may be held back for other keys of the message: what it says is as old as the question. */
TEST(test_put_joins_by_when_it_asked)
{
    setup(1);
    give_session(1);
    refuse_for_another();
    expect_begin(0, 1);
    answer_obj(&f.answer, KVP_IN_PROGRESS, 0, 0, 0, 0);
    f.now += 300 * MS;
    reply_places();
    f.now = expect_step(KVP_STEP_SLEEP).until_ns;
    finish_well();
}

/* What has its place is committed before anything is waited for; the wait is bounded, and so is how often is asked. */
TEST(test_put_does_not_join_for_ever)
{
    uint64_t begun_ns;
    uint32_t asked = 1;
    kvp_step_t step;

    ask(2);
    answer_obj(&f.answer, KVP_OK, 1, 0, 0, GEN);
    reply_refused(KVP_IN_PROGRESS);
    begun_ns = f.now;
    fill_and_commit(1);
    reply_committed(KVP_OK);
    for (step = kvp_putop_next(&f.op, f.now); step.kind == KVP_STEP_SLEEP; step = kvp_putop_next(&f.op, f.now)) {
        f.now = step.until_ns;
        expect_begin(1, 1);
        reply_refused(KVP_IN_PROGRESS);
        asked++;
    }
    assert_int_equal(step.kind, KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    assert_int_equal(f.items[1].err, KVP_IN_PROGRESS);
    assert_in_range(f.now - begun_ns, 250 * MS, 270 * MS);
    assert_in_range(asked, 10, 30);

    kvp_putop_begin(&f.op); /* the next batch of the call waits for nobody */
    give_session(1);
    expect_begin(0, 2);
    answer_obj(&f.answer, KVP_IN_PROGRESS, 0, 0, 0, 0);
    reply_refused(KVP_IN_PROGRESS);
    expect_step(KVP_STEP_DONE);
}

TEST(test_put_comes_back_after_retry_after)
{
    uint64_t attempt;

    ask(1);
    attempt = f.asked[0];
    answer_obj(&f.answer, KVP_RETRY_AFTER, 0, 0, 0, 0);
    f.answer.retry_ms = 30;
    reply_places();
    assert_int_equal(expect_step(KVP_STEP_SLEEP).until_ns, f.now + 30 * MS);
    f.now += 30 * MS;
    finish_well();
    assert_true(f.asked[0] != attempt);
}

TEST(test_put_keeps_reason_at_deadline)
{
    ask(1);
    answer_obj(&f.answer, KVP_RETRY_AFTER, 0, 0, 0, 0);
    f.answer.retry_ms = 1000000;
    reply_places();
    assert_true(expect_step(KVP_STEP_SLEEP).until_ns <= f.now + 1000 * MS);
    f.now = f.op.deadline_ns;
    expect_done(KVP_RETRY_AFTER);
}

/* What our own uncommitted objects take cannot be evicted; once they are committed it can. */
TEST(test_put_asks_again_where_own_objects_took_the_space)
{
    ask(2);
    answer_obj(&f.answer, KVP_OK, 1, 0, 0, GEN);
    reply_refused(KVP_NO_SPACE);
    fill_and_commit(1);
    reply_committed(KVP_OK);
    expect_begin(1, 1);
    reply_refused(KVP_NO_SPACE);
    expect_step(KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    assert_int_equal(f.items[1].err, KVP_NO_SPACE);
}

/* The rest of a message that took its share is asked for at once when that is committed, and is no failure. */
TEST(test_put_comes_back_for_the_rest)
{
    ask(2);
    answer_obj(&f.answer, KVP_OK, 1, 0, 0, GEN);
    reply_refused(KVP_EAGAIN);
    fill_and_commit(1);
    reply_committed(KVP_OK);
    expect_begin(1, 1);
    assert_int_equal(f.op.retry_n, 0);
    reply_refused(KVP_EAGAIN); /* with nothing granted it is no such rest: not at once, and not for ever */
    expect_step(KVP_STEP_SLEEP);
    f.now = f.op.deadline_ns;
    expect_step(KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    assert_int_equal(f.items[1].err, KVP_RETRY_AFTER);
}

TEST(test_put_begins_anew_when_its_place_is_lost)
{
    static const kvp_err_t lost[] = {KVP_STALE, KVP_NODE_LOST};

    for (size_t i = 0; i < KVP_ARRAY_LEN(lost); i++) {
        to_fill(1);
        f.moves[0].err = lost[i];
        moved();
        expect_abort(f.asked, 1, true);
        f.now = expect_step(KVP_STEP_SLEEP).until_ns;
        finish_well();
    }
}

TEST(test_put_gives_up_after_some_lost_places)
{
    int rounds = 0;

    to_fill(1);
    for (;; rounds++) {
        kvp_step_t step;

        f.moves[0].err = KVP_STALE;
        moved();
        expect_abort(f.asked, 1, true);
        step = kvp_putop_next(&f.op, f.now);
        if (step.kind == KVP_STEP_DONE) break;
        assert_int_equal(step.kind, KVP_STEP_SLEEP);
        f.now = step.until_ns;
        expect_begin(0, 1);
        reply_granted(1, 1);
        expect_moves(KVP_MOVE_FILL, 1);
    }
    assert_int_equal(rounds, 4);
    assert_int_equal(f.items[0].err, KVP_ABORTED);
}

/* The writer's word is given attempt by attempt: one message for those that are drained, one for the others. */
TEST(test_put_tells_which_attempts_are_drained)
{
    uint64_t drained[2], undrained[1];

    ask(3);
    reply_granted(3, 1);
    expect_moves(KVP_MOVE_FILL, 3);
    for (int i = 0; i < 3; i++)
        f.moves[i].err = KVP_DEADLINE;
    f.moves[1].is_drained = false;
    moved();
    drained[0] = f.asked[0];
    drained[1] = f.asked[2];
    undrained[0] = f.asked[1];
    expect_abort(drained, 2, true);
    expect_abort(undrained, 1, false);
    expect_done(KVP_DEADLINE);
}

TEST(test_put_aborts_what_was_not_answered)
{
    ask(2);
    kvp_putop_on_call_failed(&f.op, KVP_DEADLINE);
    expect_abort(f.asked, 2, true);
    expect_done(KVP_DEADLINE);

    to_commit();
    kvp_putop_on_call_failed(&f.op, KVP_CLOSED);
    expect_abort(f.asked, 1, true);
    expect_done(KVP_CLOSED);
}

TEST(test_put_that_cannot_be_asked_aborts_nothing)
{
    setup(2);
    f.out.limit = 64; /* not even a record of its PUT_BEGIN */
    give_session(1);
    expect_done(KVP_LIMIT);
}

TEST(test_put_stops_at_deadline_between_phases)
{
    to_fill(1);
    moved();
    f.now = f.op.deadline_ns;
    expect_abort(f.asked, 1, true);
    expect_done(KVP_DEADLINE);
}

/* Whether the commit arrived is not known: the key is put anew, and ALREADY says that it did. */
/* In the next session it is for the same epoch, and ends where the tenant has another one by then. */
TEST(test_put_of_another_epoch_ends)
{
    Kvp__Pb__PutBegin *head;
    const uint32_t seven = 7;
    kvp_frame_t frame;
    kvp_pb_t pb;

    ask(1);
    f.op.epoch = &seven;
    kvp_putop_on_call_failed(&f.op, KVP_DISCONNECTED);
    give_session(2);
    expect_begin(0, 1);
    parse_out(&f.out, KVP_OP_PUT_BEGIN, &frame);
    head = kvp_pb_unpack(&pb, &kvp__pb__put_begin__descriptor, &frame);
    assert_true(head->has_epoch && head->epoch == 7);
    kvp_pb_free(&pb, head);
    f.answer.err = KVP_STALE;
    reply_places();
    expect_step(KVP_STEP_SEND); /* the abort of what the master may have begun */
    expect_done(KVP_STALE);
}

TEST(test_put_starts_again_in_next_session)
{
    uint64_t attempt;

    to_commit();
    attempt = f.asked[0];
    kvp_putop_on_call_failed(&f.op, KVP_DISCONNECTED);
    give_session(2);
    expect_begin(0, 1);
    assert_true(f.asked[0] != attempt);
    f.op.committed = KVP_COMMITTED_ALREADY;
    reply_refused(KVP_ALREADY);
    expect_done(KVP_OK);
}

/* The attempt of the lost session may still be there for a moment: that is not another writer's. */
TEST(test_put_waits_for_its_own_lost_attempt)
{
    uint64_t begun_ns;

    to_commit();
    kvp_putop_on_call_failed(&f.op, KVP_DISCONNECTED);
    give_session(2);
    expect_begin(0, 1);
    reply_refused(KVP_IN_PROGRESS);
    begun_ns = f.now;
    for (f.now = expect_step(KVP_STEP_SLEEP).until_ns; f.now < begun_ns + 400 * MS;)
        refuse_for_another();
    finish_well();
}

TEST(test_put_without_session_in_time)
{
    setup(2);
    expect_step(KVP_STEP_SESSION);
    kvp_putop_fail(&f.op, KVP_UNREACHABLE);
    expect_done(KVP_UNREACHABLE);
}

TEST(test_put_with_few_moves_takes_turns)
{
    setup(3);
    f.op.moves_cap = 2;
    give_session(1);
    expect_begin(0, 3);
    reply_granted(3, 1);
    expect_moves(KVP_MOVE_FILL, 2);
    moved();
    expect_moves(KVP_MOVE_FILL, 1);
    assert_int_equal(f.moves[0].item, 2);
    moved();
    expect_moves(KVP_MOVE_SEAL, 2);
    moved();
    expect_moves(KVP_MOVE_SEAL, 1);
}

TEST(test_put_aborted_commit_begins_anew)
{
    to_commit();
    reply_committed(KVP_ABORTED);
    expect_abort(f.asked, 1, true);
    f.now = expect_step(KVP_STEP_SLEEP).until_ns;
    finish_well();
}

TEST(test_put_refuses_answers_that_do_not_fit)
{
    static const int32_t two[] = {KVP_OK, KVP_OK};

    ask(1);
    answer_obj(&f.answer, KVP_OK, 3, 0, 0, GEN);
    f.answer.nloc = 2;
    assert_int_equal(kvp_putop_on_reply(&f.op, answer_places(&f.answer), f.now), KVP_PROTO);
    expect_abort(f.asked, 1, true);
    expect_done(KVP_PROTO);

    ask(1);
    reply_granted(1, 0); /* but nowhere */
    expect_abort(f.asked, 1, true);
    expect_done(KVP_PROTO);

    to_commit();
    assert_int_equal(kvp_putop_on_reply(&f.op, answer_reply(&f.answer, KVP_OK, two, 2), f.now), KVP_PROTO);
}

/* The walk over an answer ends with the batch, whatever the two counts say. */
TEST(test_put_reads_no_answer_beyond_its_items)
{
    ask(1);
    answer_obj(&f.answer, KVP_OK, 1, 0, 0, GEN);
    answer_obj(&f.answer, KVP_OK, 1, 0, 0, GEN);
    f.op.asked_n = 2;
    reply_places();
    expect_moves(KVP_MOVE_FILL, 1);
    for (uint32_t i = 1; i < ITEMS; i++)
        assert_null(f.items[i].locs);
}

TEST_MAIN_WITH(NULL, teardown)
