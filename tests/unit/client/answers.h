/* SPDX-License-Identifier: Apache-2.0
 * What a master would answer, written by hand: for tests of the client's cores. Header only. */
#ifndef KVP_TEST_ANSWERS_H
#define KVP_TEST_ANSWERS_H

#include "client/core/op.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"
#include "tests/cases.h"

#include <string.h>

#define SEED 0x5eedull
#define MS 1000000ull

/* An answer under construction; its frame stays valid until the next answer_begin. */
typedef struct {
    kvp_buf_t bytes;
    kvp_wire_obj_t objs[16];
    kvp_wire_loc_t locs[64];
    uint32_t n;
    uint32_t nloc;
    uint64_t ticket;
    uint32_t retry_ms;
    bool is_leased;
    uint64_t revoke_seq;
    kvp_err_t err;
    kvp_frame_t frame;
} answer_t;

#define ANSWER_EPOCH 9u /* of the namespace, in every answer with places */

static inline void
answer_begin(answer_t *a)
{
    kvp_buf_t bytes = a->bytes;

    memset(a, 0, sizeof *a);
    a->bytes = bytes;
    kvp_buf_reset(&a->bytes);
}

static inline void
answer_fini(answer_t *a)
{
    kvp_buf_fini(&a->bytes);
}

/* One object with nloc locations in segments 1, 2, ... of generation gen. */
static inline void
answer_obj(answer_t *a, kvp_err_t err, uint32_t nloc, uint64_t len, uint64_t sum, uint64_t gen)
{
    a->objs[a->n++] = (kvp_wire_obj_t){.err = err, .nloc = nloc, .version = 7, .len = len, .sum = sum};
    for (uint32_t i = 0; i < nloc; i++)
        a->locs[a->nloc++] = (kvp_wire_loc_t){
            .segment_id = i + 1, .chunk = 2, .slot = 3, .key_off = 99, .generation = gen, .offset = 4096};
}

static inline void
answer_parse(answer_t *a)
{
    size_t used = 0;

    assert_int_equal(a->bytes.err, KVP_OK);
    assert_int_equal(kvp_frame_parse(a->bytes.data, a->bytes.len, &a->frame, &used), KVP_OK);
    assert_int_equal(used, a->bytes.len);
}

static inline const kvp_frame_t *
answer_places(answer_t *a)
{
    Kvp__Pb__Places head = KVP__PB__PLACES__INIT;
    size_t at;

    head.err = a->err;
    head.n = a->n;
    head.nloc = a->nloc;
    head.ticket = a->ticket;
    head.retry_ms = a->retry_ms;
    head.is_leased = a->is_leased;
    head.revoke_seq = a->revoke_seq;
    head.ns_epoch = ANSWER_EPOCH;
    kvp_pb_frame_begin(&a->bytes, KVP_OP_GET, KVP_FRAME_REPLY, 1, &head.base, &at);
    kvp_buf_append(&a->bytes, a->objs, a->n * sizeof a->objs[0]);
    kvp_buf_append(&a->bytes, a->locs, a->nloc * sizeof a->locs[0]);
    kvp_frame_end(&a->bytes, at);
    answer_parse(a);
    return &a->frame;
}

static inline const kvp_frame_t *
answer_reply(answer_t *a, kvp_err_t err, const int32_t *results, uint32_t n)
{
    Kvp__Pb__Reply head = KVP__PB__REPLY__INIT;
    size_t at;

    answer_begin(a);
    head.err = err;
    head.n = n;
    kvp_pb_frame_begin(&a->bytes, KVP_OP_PUT_COMMIT, KVP_FRAME_REPLY, 1, &head.base, &at);
    if (n > 0) kvp_buf_append(&a->bytes, results, n * sizeof *results);
    kvp_frame_end(&a->bytes, at);
    answer_parse(a);
    return &a->frame;
}

/* The frame that a core wants to send. */
static inline void
parse_out(const kvp_buf_t *out, uint8_t opcode, kvp_frame_t *frame)
{
    size_t used = 0;

    assert_int_equal(out->err, KVP_OK);
    assert_int_equal(kvp_frame_parse(out->data, out->len, frame, &used), KVP_OK);
    assert_int_equal(used, out->len);
    assert_int_equal(frame->hdr.opcode, opcode);
}

static inline kvp_op_session_t
test_session(uint64_t incarnation)
{
    return (kvp_op_session_t){.incarnation = incarnation, .digest_seed = SEED + incarnation, .term = 4};
}

#endif
