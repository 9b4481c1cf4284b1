/* SPDX-License-Identifier: Apache-2.0
 * A machine of puts with a few items, and the master and nodes that it meets, written by hand. Header only.
 */
#ifndef KVP_TEST_PUTOP_FIXTURE_H
#define KVP_TEST_PUTOP_FIXTURE_H

#include "client/core/putop.h"

#include "tests/unit/client/answers.h"
#include "tests/unit/client/lone_known.h"

#define ITEMS 3u
#define GEN 11u

typedef struct {
    kvp_putop_t op;
    kvp_putop_item_t items[ITEMS];
    kvp_move_t moves[2 * ITEMS];
    kvp_buf_t out;
    answer_t answer;
    kvp_op_session_t session;
    uint64_t now;
    uint64_t attempts;
    uint64_t asked[ITEMS]; /* attempts in the last PUT_BEGIN */
} fixture_t;

static const char *const keys[ITEMS] = {"a", "bb", "ccc"};

static inline uint64_t
take_attempts(void *arg, uint32_t n)
{
    fixture_t *f = arg;

    f->attempts += n;
    return f->attempts - n + 1;
}

static inline void
setup(fixture_t *f, uint32_t n)
{
    memset(f, 0, sizeof *f);
    f->now = 1000 * MS;
    f->op = (kvp_putop_t){
        .items = f->items,
        .n = n,
        .moves = f->moves,
        .moves_cap = 2 * ITEMS,
        .out = &f->out,
        .deadline_ns = 6000 * MS,
        .attempts = take_attempts,
        .attempts_arg = f,
    };
    for (uint32_t i = 0; i < n; i++)
        f->items[i] = (kvp_putop_item_t){.key = keys[i], .key_len = (uint32_t)strlen(keys[i]), .len = 100 + i};
    kvp_putop_begin(&f->op);
}

static inline void
teardown(fixture_t *f)
{
    kvp_buf_fini(&f->out);
    answer_fini(&f->answer);
}

static inline kvp_step_t
expect_step(fixture_t *f, kvp_step_kind_t kind)
{
    kvp_step_t step = kvp_putop_next(&f->op, f->now);

    assert_int_equal(step.kind, kind);
    return step;
}

static inline void
give_session(fixture_t *f, uint64_t incarnation)
{
    expect_step(f, KVP_STEP_SESSION);
    f->session = test_session(incarnation);
    kvp_putop_on_session(&f->op, &f->session);
}

/* Checks that the frame begins n puts of the keys from `first` on, and notes their attempts. */
static inline void
expect_begin(fixture_t *f, uint32_t first, uint32_t n)
{
    const kvp_wire_put_t *recs;
    kvp_frame_t frame;
    uint32_t key_at = 0;

    expect_step(f, KVP_STEP_CALL);
    parse_out(&f->out, KVP_OP_PUT_BEGIN, &frame);
    recs = (const kvp_wire_put_t *)frame.tail;
    for (uint32_t i = 0; i < n; i++) {
        const char *key = keys[first + i];
        kvp_digest_t digest = kvp_key_digest(f->session.digest_seed, 0, key, strlen(key));

        assert_true(kvp_digest_eq(recs[i].digest, digest));
        assert_int_equal(recs[i].len, 100 + first + i);
        assert_int_equal(recs[i].key_at, key_at);
        assert_int_equal(recs[i].key_len, strlen(key));
        assert_memory_equal(frame.tail + n * sizeof *recs + key_at, key, strlen(key));
        assert_true(recs[i].attempt != 0);
        f->asked[i] = recs[i].attempt;
        key_at += recs[i].key_len;
    }
    assert_int_equal(frame.tail_len, n * sizeof *recs + key_at);
    answer_begin(&f->answer);
}

static inline void
reply_places(fixture_t *f)
{
    assert_int_equal(kvp_putop_on_reply(&f->op, answer_places(&f->answer), f->now), KVP_OK);
}

static inline void
expect_moves(fixture_t *f, kvp_move_kind_t kind, uint32_t n)
{
    expect_step(f, KVP_STEP_MOVE);
    assert_int_equal(f->op.moves_n, n);
    for (uint32_t i = 0; i < n; i++) {
        kvp_move_t *mv = &f->moves[i];

        assert_int_equal(mv->kind, kind);
        mv->err = KVP_OK;
        mv->is_drained = true;
        mv->has_sum = kind != KVP_MOVE_SEAL;
        mv->sum = 1000 + mv->item;
    }
}

static inline void
moved(fixture_t *f)
{
    kvp_putop_on_moved(&f->op, f->now);
}

static inline void
expect_commit(fixture_t *f, const uint32_t *which, uint32_t n)
{
    const kvp_wire_commit_t *recs;
    kvp_frame_t frame;

    expect_step(f, KVP_STEP_CALL);
    parse_out(&f->out, KVP_OP_PUT_COMMIT, &frame);
    assert_int_equal(frame.tail_len, n * sizeof *recs);
    recs = (const kvp_wire_commit_t *)frame.tail;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(recs[i].attempt, f->items[which[i]].attempt);
        assert_int_equal(recs[i].sum, 1000 + which[i]);
    }
}

static inline void
expect_abort(fixture_t *f, const uint64_t *attempts, uint32_t n, bool is_drained)
{
    Kvp__Pb__PutAbort *head;
    kvp_frame_t frame;
    kvp_pb_t pb;

    expect_step(f, KVP_STEP_SEND);
    parse_out(&f->out, KVP_OP_PUT_ABORT, &frame);
    assert_int_equal(frame.hdr.flags, KVP_FRAME_ONEWAY);
    head = kvp_pb_unpack(&pb, &kvp__pb__put_abort__descriptor, &frame);
    assert_non_null(head);
    assert_int_equal(head->n, n);
    assert_int_equal(head->is_drained, is_drained);
    kvp_pb_free(&pb, head);
    assert_int_equal(frame.tail_len, n * sizeof *attempts);
    assert_memory_equal(frame.tail, attempts, n * sizeof *attempts);
}

static inline void
reply_commit(fixture_t *f, const int32_t *results, uint32_t n)
{
    assert_int_equal(kvp_putop_on_reply(&f->op, answer_reply(&f->answer, KVP_OK, results, n), f->now), KVP_OK);
}

/* One item that has one place, its payload written or not. */
static inline void
to_fill(fixture_t *f, uint32_t nloc)
{
    setup(f, 1);
    give_session(f, 1);
    expect_begin(f, 0, 1);
    answer_obj(&f->answer, KVP_OK, nloc, 0, 0, GEN);
    reply_places(f);
    expect_moves(f, KVP_MOVE_FILL, nloc);
}

static inline void
to_commit(fixture_t *f)
{
    static const uint32_t first = 0;

    to_fill(f, 1);
    moved(f);
    expect_moves(f, KVP_MOVE_SEAL, 1);
    moved(f);
    expect_commit(f, &first, 1);
}

/* From SESSION or CALL on, everything goes well. */
static inline void
finish_well(fixture_t *f)
{
    static const uint32_t first = 0;
    static const int32_t ok = KVP_OK;

    expect_begin(f, 0, 1);
    answer_obj(&f->answer, KVP_OK, 1, 0, 0, GEN + 1);
    reply_places(f);
    expect_moves(f, KVP_MOVE_FILL, 1);
    moved(f);
    expect_moves(f, KVP_MOVE_SEAL, 1);
    moved(f);
    expect_commit(f, &first, 1);
    reply_commit(f, &ok, 1);
    expect_step(f, KVP_STEP_DONE);
    assert_int_equal(f->items[0].err, KVP_OK);
}

#endif
