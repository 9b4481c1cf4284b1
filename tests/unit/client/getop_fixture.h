/* SPDX-License-Identifier: Apache-2.0
 * A machine of gets with up to three items, and the master and nodes that it meets, written by hand. Header only.
 */
#ifndef KVP_TEST_GETOP_FIXTURE_H
#define KVP_TEST_GETOP_FIXTURE_H

#include "client/core/getop.h"

#include "tests/unit/client/answers.h"
#include "tests/unit/client/lone_known.h"

#define ITEMS 3u

typedef struct {
    kvp_getop_t op;
    kvp_getop_item_t items[ITEMS];
    kvp_move_t moves[ITEMS];
    kvp_buf_t out;
    answer_t answer;
    kvp_op_session_t session;
    uint64_t now;
    lone_known_t lone;
    kvp_place_t places[ITEMS];
} fixture_t;

static const char *const keys[ITEMS] = {"a", "bb", "ccc"};

static inline void
setup(fixture_t *f, uint32_t n)
{
    memset(f, 0, sizeof *f);
    f->now = 1000 * MS;
    f->op = (kvp_getop_t){
        .items = f->items, .n = n, .moves = f->moves, .moves_cap = ITEMS, .out = &f->out, .deadline_ns = 2000 * MS};
    for (uint32_t i = 0; i < n; i++)
        f->items[i] = (kvp_getop_item_t){.key = keys[i], .key_len = (uint32_t)strlen(keys[i]), .cap = 4096};
    kvp_getop_begin(&f->op);
}

static inline void
teardown(fixture_t *f)
{
    kvp_buf_fini(&f->out);
    answer_fini(&f->answer);
}

static inline void
expect_step(fixture_t *f, kvp_step_kind_t kind)
{
    assert_int_equal(kvp_getop_next(&f->op, f->now).kind, kind);
}

static inline void
give_session(fixture_t *f, uint64_t incarnation)
{
    expect_step(f, KVP_STEP_SESSION);
    f->session = test_session(incarnation);
    kvp_getop_on_session(&f->op, &f->session);
}

/* Checks that the frame asks for the digests of exactly these items. */
static inline void
expect_get(fixture_t *f, const uint32_t *which, uint32_t n)
{
    kvp_frame_t frame;
    const kvp_digest_t *digests;

    expect_step(f, KVP_STEP_CALL);
    parse_out(&f->out, KVP_OP_GET, &frame);
    assert_int_equal(frame.tail_len, n * sizeof(kvp_digest_t));
    digests = (const kvp_digest_t *)frame.tail;
    for (uint32_t i = 0; i < n; i++) {
        const char *key = keys[which[i]];
        kvp_digest_t want = kvp_key_digest(f->session.digest_seed, 0, key, strlen(key));

        assert_true(kvp_digest_eq(digests[i], want));
    }
    answer_begin(&f->answer);
}

static inline void
expect_get_all(fixture_t *f)
{
    static const uint32_t all[ITEMS] = {0, 1, 2};

    expect_get(f, all, f->op.n);
}

static inline void
reply(fixture_t *f)
{
    assert_int_equal(kvp_getop_on_reply(&f->op, answer_places(&f->answer)), KVP_OK);
}

/* The line that the node would show for what the master told. */
static inline void
seal_line(const fixture_t *f, kvp_move_t *mv)
{
    const kvp_getop_item_t *it = &f->items[mv->item];

    mv->err = KVP_OK;
    mv->has_sum = false;
    mv->has_desc = true;
    mv->is_sum_path = false;
    mv->is_drained = true;
    memset(&mv->desc, 0, sizeof mv->desc);
    mv->desc.word = kvp_word_make(mv->loc.generation, KVP_DESC_SEALED);
    mv->desc.version = 7;
    mv->desc.digest = kvp_key_digest(f->session.digest_seed, 0, it->key, it->key_len);
    mv->desc.key_hash2 = kvp_key_hash2(f->session.digest_seed, 0, it->key, it->key_len);
    mv->desc.offset = mv->loc.offset;
    mv->desc.len = mv->len;
}

static inline void
expect_moves(fixture_t *f, uint32_t n)
{
    expect_step(f, KVP_STEP_MOVE);
    assert_int_equal(f->op.moves_n, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(f->moves[i].kind, KVP_MOVE_READ);
        seal_line(f, &f->moves[i]);
    }
}

static inline void
expect_release(fixture_t *f, uint64_t ticket)
{
    kvp_frame_t frame;

    expect_step(f, KVP_STEP_SEND);
    parse_out(&f->out, KVP_OP_RELEASE, &frame);
    assert_int_equal(frame.hdr.flags, KVP_FRAME_ONEWAY);
    assert_int_equal(frame.tail_len, sizeof ticket);
    assert_memory_equal(frame.tail, &ticket, sizeof ticket);
}

/* One item, asked and found in nloc places, with moves[0] made and sealed. */
static inline void
to_first_move(fixture_t *f, uint32_t nloc, uint64_t sum)
{
    setup(f, 1);
    give_session(f, 1);
    expect_get_all(f);
    answer_obj(&f->answer, KVP_OK, nloc, 100, sum, 5);
    f->answer.ticket = 77;
    reply(f);
    expect_moves(f, 1);
}

#endif
