/* SPDX-License-Identifier: Apache-2.0
 * A machine of gets with up to three items, and the master and nodes that it meets, written by hand. Header only. */
#ifndef KVP_TEST_GETOP_FIXTURE_H
#define KVP_TEST_GETOP_FIXTURE_H

#include "client/cache/locations.h"
#include "client/core/getop.h"

#include "tests/unit/client/answers.h"

#define ITEMS 3u

typedef struct {
    kvp_getop_t op;
    kvp_getop_item_t items[ITEMS];
    kvp_move_t moves[ITEMS];
    kvp_buf_t out;
    answer_t answer;
    kvp_op_session_t session;
    uint64_t now;
    kvp_locations_t *locs; /* NULL = it keeps none */
    kvp_cached_place_t places[ITEMS];
} fixture_t;

static const char *const keys[ITEMS] = {"a", "bb", "ccc"};

static fixture_t f; /* of the test at hand */

static inline int
teardown(void **state)
{
    kvp_locations_destroy(f.locs);
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
    f.op = (kvp_getop_t){
        .items = f.items, .n = n, .moves = f.moves, .moves_cap = ITEMS, .out = &f.out, .deadline_ns = 2000 * MS};
    for (uint32_t i = 0; i < n; i++)
        f.items[i] = (kvp_getop_item_t){.key = keys[i], .key_len = (uint32_t)strlen(keys[i]), .cap = 4096};
    kvp_getop_begin(&f.op);
}

static inline void
expect_step(kvp_step_kind_t kind)
{
    assert_int_equal(kvp_getop_next(&f.op, f.now).kind, kind);
}

static inline void
expect_done(kvp_err_t err)
{
    expect_step(KVP_STEP_DONE);
    for (uint32_t i = 0; i < f.op.n; i++)
        assert_int_equal(f.items[i].err, err);
}

static inline void
give_session(uint64_t incarnation)
{
    expect_step(KVP_STEP_SESSION);
    f.session = test_session(incarnation);
    kvp_getop_on_session(&f.op, &f.session);
}

/* Checks that the frame asks for the digests of exactly these items. */
static inline void
expect_get(const uint32_t *which, uint32_t n)
{
    kvp_frame_t frame;
    const kvp_digest_t *digests;

    expect_step(KVP_STEP_CALL);
    parse_out(&f.out, KVP_OP_GET, &frame);
    assert_int_equal(frame.tail_len, n * sizeof(kvp_digest_t));
    digests = (const kvp_digest_t *)frame.tail;
    for (uint32_t i = 0; i < n; i++) {
        const char *key = keys[which[i]];
        kvp_digest_t want = kvp_key_digest(f.session.digest_seed, 0, key, strlen(key));

        assert_true(kvp_digest_eq(digests[i], want));
    }
    answer_begin(&f.answer);
}

static inline void
expect_get_all(void)
{
    static const uint32_t all[ITEMS] = {0, 1, 2};

    expect_get(all, f.op.n);
}

static inline void
ask(uint32_t n)
{
    setup(n);
    give_session(1);
    expect_get_all();
}

static inline void
reply(void)
{
    assert_int_equal(kvp_getop_on_reply(&f.op, answer_places(&f.answer)), KVP_OK);
}

/* The last item that was asked for is found. */
static inline void
reply_found(uint32_t nloc, uint64_t len, uint64_t sum, uint64_t gen)
{
    answer_obj(&f.answer, KVP_OK, nloc, len, sum, gen);
    reply();
}

static inline void
moved(void)
{
    kvp_getop_on_moved(&f.op, f.now);
}

/* The line that the node would show for what the master told. */
static inline void
seal_line(kvp_move_t *mv)
{
    const kvp_getop_item_t *it = &f.items[mv->item];

    mv->err = KVP_OK;
    mv->has_sum = false;
    mv->has_desc = true;
    mv->is_sum_path = false;
    mv->is_drained = true;
    memset(&mv->desc, 0, sizeof mv->desc);
    mv->desc.word = kvp_word_make(mv->loc.generation, KVP_DESC_SEALED);
    mv->desc.version = 7;
    mv->desc.digest = kvp_key_digest(f.session.digest_seed, 0, it->key, it->key_len);
    mv->desc.key_hash2 = kvp_key_hash2(f.session.digest_seed, 0, it->key, it->key_len);
    mv->desc.offset = mv->loc.offset;
    mv->desc.len = mv->len;
}

static inline void
expect_moves(uint32_t n)
{
    expect_step(KVP_STEP_MOVE);
    assert_int_equal(f.op.moves_n, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(f.moves[i].kind, KVP_MOVE_READ);
        seal_line(&f.moves[i]);
    }
}

static inline void
expect_release(uint64_t ticket)
{
    kvp_frame_t frame;

    expect_step(KVP_STEP_SEND);
    parse_out(&f.out, KVP_OP_RELEASE, &frame);
    assert_int_equal(frame.hdr.flags, KVP_FRAME_ONEWAY);
    assert_int_equal(frame.tail_len, sizeof ticket);
    assert_memory_equal(frame.tail, &ticket, sizeof ticket);
}

#define TICKET 77u

static inline void
expect_released(kvp_err_t err)
{
    expect_release(TICKET);
    expect_done(err);
}

/* One item, asked and found in nloc places, with moves[0] made and sealed. */
static inline void
to_first_move(uint32_t nloc, uint64_t sum)
{
    ask(1);
    answer_obj(&f.answer, KVP_OK, nloc, 100, sum, 5);
    f.answer.ticket = TICKET;
    reply();
    expect_moves(1);
}

#endif
