/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The answer to a GET stays in the receive buffer while its objects are read: locations are used in place. So nothing
 *   is asked again before every read of that answer is over.
 * - The hold of one answer covers all its objects and is given back once they all are read. It only makes reads succeed;
 *   that no wrong bytes are accepted rests on the descriptor alone, so a session lost in between changes nothing.
 * - An item goes through the master at most twice, not counting lost sessions, which the deadline bounds.
 */
#include "client/core/getop.h"

#include "client/core/places.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

enum { PHASE_ASK, PHASE_READ, PHASE_MOVING, PHASE_DONE };

static void
finish(kvp_getop_t *op, kvp_getop_item_t *it, kvp_err_t err)
{
    it->phase = PHASE_DONE;
    it->err = err;
    op->left_n--;
}

void
kvp_getop_fail(kvp_getop_t *op, kvp_err_t err)
{
    for (uint32_t i = 0; i < op->n && op->left_n > 0; i++)
        if (op->items[i].phase != PHASE_DONE) finish(op, &op->items[i], err);
    op->reads_n = 0;
}

void
kvp_getop_begin(kvp_getop_t *op)
{
    for (uint32_t i = 0; i < op->n; i++) {
        op->items[i].phase = PHASE_ASK;
        op->items[i].is_last_ask = false;
        op->items[i].nloc = 0;
        op->items[i].len = 0;
    }
    op->has_session = false;
    op->left_n = op->n;
    op->reads_n = 0;
    op->moves_n = 0;
    op->ticket = 0;
    op->stale_n = op->corrupt_n = op->retry_n = 0;
}

void
kvp_getop_on_session(kvp_getop_t *op, const kvp_op_session_t *session)
{
    op->session = *session;
    op->has_session = true;
    for (uint32_t i = 0; i < op->n; i++) {
        kvp_getop_item_t *it = &op->items[i];

        it->digest = kvp_key_digest(session->digest_seed, 0, it->key, it->key_len);
        it->key_hash2 = kvp_key_hash2(session->digest_seed, 0, it->key, it->key_len);
    }
}

/* ---- the question */
static void
encode_get(kvp_getop_t *op)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t *tail;
    size_t at;

    op->asked_n = op->left_n; /* nothing else is left when it is asked */
    head.n = op->asked_n;
    kvp_buf_reset(op->out);
    kvp_pb_frame_begin(op->out, KVP_OP_GET, 0, 0, &head.base, &at);
    tail = (kvp_digest_t *)kvp_buf_extend(op->out, op->asked_n * sizeof *tail);
    if (tail == NULL) return;
    for (uint32_t i = 0; i < op->n; i++)
        if (op->items[i].phase == PHASE_ASK) *tail++ = op->items[i].digest;
    kvp_frame_end(op->out, at);
}

static void
encode_release(kvp_getop_t *op)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;
    size_t at;

    head.n = 1;
    kvp_buf_reset(op->out);
    kvp_pb_frame_begin(op->out, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, 0, &head.base, &at);
    kvp_buf_append(op->out, &op->ticket, sizeof op->ticket);
    kvp_frame_end(op->out, at);
    op->ticket = 0;
}

/* ---- the answer */
static void
take_place(kvp_getop_t *op, kvp_getop_item_t *it, const kvp_wire_obj_t *obj, const kvp_wire_loc_t *locs)
{
    it->len = obj->err == KVP_OK ? obj->len : 0;
    if (obj->err != KVP_OK) {
        finish(op, it, obj->err);
    } else if (obj->len > it->cap) {
        finish(op, it, KVP_BUFFER_SMALL);
    } else if (obj->len == 0) {
        finish(op, it, KVP_PROTO);
    } else if (obj->nloc == 0) {
        finish(op, it, KVP_NODE_LOST);
    } else {
        it->version = obj->version;
        it->sum = obj->sum;
        it->loc = locs;
        it->nloc = obj->nloc;
        it->phase = PHASE_READ;
        op->reads_n++;
    }
}

kvp_err_t
kvp_getop_on_reply(kvp_getop_t *op, const kvp_frame_t *frame)
{
    kvp_places_t places;
    const kvp_wire_obj_t *obj;
    const kvp_wire_loc_t *loc;
    kvp_err_t err = kvp_places_read(frame, op->asked_n, &places);

    if (err != KVP_OK) {
        kvp_getop_on_call_failed(op, err);
        return err == KVP_PROTO || kvp_op_is_session_loss(err) ? err : KVP_OK;
    }
    obj = places.objs;
    loc = places.locs;
    for (uint32_t i = 0; i < op->n; i++) {
        if (op->items[i].phase != PHASE_ASK) continue;
        take_place(op, &op->items[i], obj, loc);
        loc += obj->nloc;
        obj++;
    }
    op->ticket = places.ticket;
    return KVP_OK;
}

void
kvp_getop_on_call_failed(kvp_getop_t *op, kvp_err_t err)
{
    if (!kvp_op_is_session_loss(err)) {
        kvp_getop_fail(op, err);
        return;
    }
    op->has_session = false;
    op->retry_n++;
}

/* ---- reading */
static void
fill_moves(kvp_getop_t *op)
{
    op->moves_n = 0;
    for (uint32_t i = 0; i < op->n && op->moves_n < op->moves_cap && op->reads_n > 0; i++) {
        kvp_getop_item_t *it = &op->items[i];
        kvp_move_t *mv;

        if (it->phase != PHASE_READ) continue;
        mv = &op->moves[op->moves_n++];
        mv->kind = KVP_MOVE_READ;
        mv->item = i;
        mv->loc = *it->loc;
        mv->len = it->len;
        mv->wants_sum = op->wants_sums && it->sum != 0;
        it->phase = PHASE_MOVING;
        op->reads_n--;
    }
}

/* What a finished move says about the bytes that are in the destination now. */
static kvp_err_t
judge(const kvp_getop_item_t *it, const kvp_move_t *mv)
{
    kvp_expect_t expect = {
        .generation = mv->loc.generation,
        .version = it->version,
        .digest = it->digest,
        .key_hash2 = it->key_hash2,
        .offset = mv->loc.offset,
        .len = it->len,
    };
    kvp_err_t err = mv->err;

    if (err == KVP_OK) err = kvp_desc_accept(&mv->desc, &expect);
    if (err == KVP_OK && mv->has_sum && it->sum != 0 && mv->sum != it->sum) err = KVP_CORRUPT;
    return err;
}

static bool
is_worth_another(kvp_err_t err)
{
    return err == KVP_STALE || err == KVP_CORRUPT || err == KVP_NODE_LOST;
}

static void
take_move(kvp_getop_t *op, kvp_getop_item_t *it, const kvp_move_t *mv)
{
    kvp_err_t err = judge(it, mv);

    if (err == KVP_STALE) op->stale_n++;
    if (err == KVP_CORRUPT) op->corrupt_n++;
    it->loc++;
    it->nloc--;
    if (!is_worth_another(err)) {
        finish(op, it, err);
    } else if (it->nloc > 0) {
        it->phase = PHASE_READ;
        op->reads_n++;
    } else if (!it->is_last_ask) {
        it->is_last_ask = true;
        it->phase = PHASE_ASK;
        op->retry_n++;
    } else {
        finish(op, it, err);
    }
}

void
kvp_getop_on_moved(kvp_getop_t *op)
{
    for (uint32_t i = 0; i < op->moves_n; i++)
        take_move(op, &op->items[op->moves[i].item], &op->moves[i]);
    op->moves_n = 0;
}

kvp_step_t
kvp_getop_next(kvp_getop_t *op, uint64_t now_ns)
{
    if (op->reads_n > 0) {
        fill_moves(op);
        return (kvp_step_t){.kind = KVP_STEP_MOVE};
    }
    if (op->ticket != 0) {
        encode_release(op);
        return (kvp_step_t){.kind = KVP_STEP_SEND};
    }
    if (op->left_n > 0 && now_ns >= op->deadline_ns) kvp_getop_fail(op, KVP_DEADLINE);
    if (op->left_n == 0) return (kvp_step_t){.kind = KVP_STEP_DONE};
    if (!op->has_session) return (kvp_step_t){.kind = KVP_STEP_SESSION};
    encode_get(op);
    if (op->out->err != KVP_OK) {
        kvp_getop_fail(op, op->out->err);
        return (kvp_step_t){.kind = KVP_STEP_DONE};
    }
    return (kvp_step_t){.kind = KVP_STEP_CALL};
}
