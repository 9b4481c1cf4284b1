/* SPDX-License-Identifier: Apache-2.0
 * A machine of puts with a few items, and the master and nodes that it meets, written by hand. Header only. */
#ifndef KVP_TEST_PUTOP_FIXTURE_H
#define KVP_TEST_PUTOP_FIXTURE_H

#include "client/core/putop.h"

#include "tests/unit/client/answers.h"

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

static fixture_t f; /* of the test at hand */

static inline uint64_t
take_attempts(void *arg, uint32_t n)
{
    (void)arg;
    f.attempts += n;
    return f.attempts - n + 1;
}

static inline int
teardown(void **state)
{
    kvp_buf_fini(&f.out);
    answer_fini(&f.answer);
    return 0;
}

/* May follow another one. */
static inline void
setup(uint32_t n)
{
    (void)teardown(NULL);
    memset(&f, 0, sizeof f);
    f.now = 1000 * MS;
    f.op = (kvp_putop_t){
        .items = f.items,
        .n = n,
        .moves = f.moves,
        .moves_cap = 2 * ITEMS,
        .out = &f.out,
        .deadline_ns = 6000 * MS,
        .attempts = take_attempts,
    };
    for (uint32_t i = 0; i < n; i++)
        f.items[i] = (kvp_putop_item_t){.key = keys[i], .key_len = (uint32_t)strlen(keys[i]), .len = 100 + i};
    kvp_putop_begin(&f.op);
}

static inline kvp_step_t
expect_step(kvp_step_kind_t kind)
{
    kvp_step_t step = kvp_putop_next(&f.op, f.now);

    assert_int_equal(step.kind, kind);
    return step;
}

static inline void
give_session(uint64_t incarnation)
{
    expect_step(KVP_STEP_SESSION);
    f.session = test_session(incarnation);
    kvp_putop_on_session(&f.op, &f.session);
}

static inline void
expect_done(kvp_err_t err)
{
    expect_step(KVP_STEP_DONE);
    for (uint32_t i = 0; i < f.op.n; i++)
        assert_int_equal(f.items[i].err, err);
}

/* Checks that the frame begins n puts of the keys from `first` on, and notes their attempts. */
static inline void
expect_begin(uint32_t first, uint32_t n)
{
    const kvp_wire_put_t *recs;
    kvp_frame_t frame;
    uint32_t key_at = 0;

    expect_step(KVP_STEP_CALL);
    parse_out(&f.out, KVP_OP_PUT_BEGIN, &frame);
    recs = (const kvp_wire_put_t *)frame.tail;
    for (uint32_t i = 0; i < n; i++) {
        const char *key = keys[first + i];
        kvp_digest_t digest = kvp_key_digest(f.session.digest_seed, 0, key, strlen(key));

        assert_true(kvp_digest_eq(recs[i].digest, digest));
        assert_int_equal(recs[i].len, 100 + first + i);
        assert_int_equal(recs[i].key_at, key_at);
        assert_int_equal(recs[i].key_len, strlen(key));
        assert_memory_equal(frame.tail + n * sizeof *recs + key_at, key, strlen(key));
        assert_true(recs[i].attempt != 0);
        f.asked[i] = recs[i].attempt;
        key_at += recs[i].key_len;
    }
    assert_int_equal(frame.tail_len, n * sizeof *recs + key_at);
    answer_begin(&f.answer);
}

static inline void
ask(uint32_t n)
{
    setup(n);
    give_session(1);
    expect_begin(0, n);
}

static inline void
reply_places(void)
{
    assert_int_equal(kvp_putop_on_reply(&f.op, answer_places(&f.answer), f.now), KVP_OK);
}

/* The next n items have nloc places each, and that is all that there is to say. */
static inline void
reply_granted(uint32_t n, uint32_t nloc)
{
    for (uint32_t i = 0; i < n; i++)
        answer_obj(&f.answer, KVP_OK, nloc, 0, 0, GEN);
    reply_places();
}

/* The last item that was asked for has none. */
static inline void
reply_refused(kvp_err_t err)
{
    answer_obj(&f.answer, err, 0, 0, 0, 0);
    reply_places();
}

static inline void
expect_moves(kvp_move_kind_t kind, uint32_t n)
{
    expect_step(KVP_STEP_MOVE);
    assert_int_equal(f.op.moves_n, n);
    for (uint32_t i = 0; i < n; i++) {
        kvp_move_t *mv = &f.moves[i];

        assert_int_equal(mv->kind, kind);
        mv->err = KVP_OK;
        mv->is_drained = true;
        mv->has_sum = kind != KVP_MOVE_SEAL;
        mv->sum = 1000 + mv->item;
    }
}

static inline void
moved(void)
{
    kvp_putop_on_moved(&f.op, f.now);
}

/* Of the first n items. */
static inline void
expect_commit(uint32_t n)
{
    const kvp_wire_commit_t *recs;
    kvp_frame_t frame;

    expect_step(KVP_STEP_CALL);
    parse_out(&f.out, KVP_OP_PUT_COMMIT, &frame);
    assert_int_equal(frame.tail_len, n * sizeof *recs);
    recs = (const kvp_wire_commit_t *)frame.tail;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(recs[i].attempt, f.items[i].attempt);
        assert_int_equal(recs[i].sum, 1000 + i);
    }
}

static inline void
expect_abort(const uint64_t *attempts, uint32_t n, bool is_drained)
{
    Kvp__Pb__PutAbort *head;
    kvp_frame_t frame;
    kvp_pb_t pb;

    expect_step(KVP_STEP_SEND);
    parse_out(&f.out, KVP_OP_PUT_ABORT, &frame);
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
reply_commit(const int32_t *results, uint32_t n)
{
    assert_int_equal(kvp_putop_on_reply(&f.op, answer_reply(&f.answer, KVP_OK, results, n), f.now), KVP_OK);
}

static inline void
reply_committed(kvp_err_t err)
{
    reply_commit(&err, 1);
}

static inline void
seal_and_commit(uint32_t moves_n, uint32_t items_n)
{
    expect_moves(KVP_MOVE_SEAL, moves_n);
    moved();
    expect_commit(items_n);
}

static inline void
fill_and_commit(uint32_t n)
{
    expect_moves(KVP_MOVE_FILL, n);
    moved();
    seal_and_commit(n, n);
}

/* One item that has its places, its payload written or not. */
static inline void
to_fill(uint32_t nloc)
{
    ask(1);
    reply_granted(1, nloc);
    expect_moves(KVP_MOVE_FILL, nloc);
}

static inline void
to_commit(void)
{
    to_fill(1);
    moved();
    seal_and_commit(1, 1);
}

/* From SESSION or CALL on, everything goes well. */
static inline void
finish_well(void)
{
    expect_begin(0, 1);
    reply_granted(1, 1);
    fill_and_commit(1);
    reply_committed(KVP_OK);
    expect_done(KVP_OK);
}

#endif
