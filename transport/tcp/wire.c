/* SPDX-License-Identifier: Apache-2.0
 * The request decoder of tcp's serving side. Every byte may come from an attacker. The decoder stores only the header
 * and the current record. */
#include "transport/tcp/wire.h"

#include <string.h>

/* collect_record copies input into a record of size bytes. Returns true once the record is complete. */
static bool
collect_record(kvp_data_dec_t *dec, void *record, size_t size, const uint8_t **at, size_t *len)
{
    size_t n = (size_t)kvp_min_u64(size - dec->part, *len);

    if (n > 0) memcpy((uint8_t *)record + dec->part, *at, n);
    *at += n;
    *len -= n;
    dec->part += (uint32_t)n;
    if (dec->part < size) return false;
    dec->part = 0;
    return true;
}

static kvp_err_t
begin_request(kvp_data_dec_t *dec)
{
    const kvp_data_req_t *req = &dec->req;

    if (req->magic != KVP_DATA_MAGIC || req->n_ops == 0 || req->n_ops > KVP_DATA_OPS_MAX) return KVP_PROTO;
    if (req->bytes < req->n_ops * sizeof(kvp_data_op_t)) return KVP_PROTO;
    dec->ops_left = req->n_ops;
    dec->bytes_left = req->bytes;
    dec->state = KVP_DATA_DEC_OP;
    return KVP_OK;
}

/* Checks the operation's record. The first operation decides whether the request has only READs, or only WRITEs and
 * PUBLISHes. */
static kvp_err_t
begin_op(kvp_data_dec_t *dec)
{
    const kvp_data_op_t *op = &dec->op;
    bool is_first = dec->ops_left == dec->req.n_ops;
    uint64_t room;

    dec->ops_left--;
    dec->bytes_left -= sizeof *op;
    /* the bytes left for bodies: the rest of the request minus the records of the operations to come */
    room = dec->bytes_left - dec->ops_left * sizeof *op;

    if (op->kind < KVP_DATA_READ || op->kind > KVP_DATA_PUBLISH || op->reserved0 != 0 || op->reserved1 != 0 ||
        op->reserved2 != 0)
        return KVP_PROTO;
    if ((op->flags & ~(KVP_DATA_AFTER_PRIOR | KVP_DATA_GUARDED | KVP_DATA_SUM)) != 0 || op->len == 0) return KVP_PROTO;
    if ((op->flags & KVP_DATA_SUM) != 0 && op->kind != KVP_DATA_READ) return KVP_PROTO;
    if (is_first) dec->is_read = op->kind == KVP_DATA_READ;
    if (dec->is_read != (op->kind == KVP_DATA_READ)) return KVP_PROTO;
    if (dec->is_read && room != 0) return KVP_PROTO;
    if ((op->flags & KVP_DATA_GUARDED) != 0 && (op->kind != KVP_DATA_WRITE || op->guard_off % 8 != 0)) return KVP_PROTO;
    if (op->kind == KVP_DATA_PUBLISH && (op->len != 8 || op->off % 8 != 0)) return KVP_PROTO;
    if (op->kind != KVP_DATA_WRITE) return KVP_OK;
    if (op->len > room) return KVP_PROTO;
    dec->body_left = op->len;
    dec->state = KVP_DATA_DEC_BODY;
    return KVP_OK;
}

void
kvp_data_dec_took(kvp_data_dec_t *dec, uint64_t n)
{
    dec->body_left -= n;
    dec->bytes_left -= n;
    if (dec->body_left == 0) dec->state = KVP_DATA_DEC_OP;
}

kvp_err_t
kvp_data_dec_next(kvp_data_dec_t *dec, const uint8_t **at, size_t *len, kvp_data_ev_t *ev_out)
{
    kvp_err_t err = KVP_OK;

    *ev_out = KVP_DATA_EV_MORE;
    if (dec->state == KVP_DATA_DEC_REQ) {
        if (!collect_record(dec, &dec->req, sizeof dec->req, at, len)) return KVP_OK;
        err = begin_request(dec);
        if (err != KVP_OK) return err;
    }
    if (dec->state == KVP_DATA_DEC_BODY) {
        if (*len == 0) return KVP_OK;
        dec->body = *at;
        dec->body_len = (size_t)kvp_min_u64(dec->body_left, *len);
        *at += dec->body_len;
        *len -= dec->body_len;
        kvp_data_dec_took(dec, dec->body_len);
        *ev_out = KVP_DATA_EV_BODY;
        return KVP_OK;
    }
    if (dec->ops_left == 0) {
        if (dec->bytes_left != 0) return KVP_PROTO;
        dec->state = KVP_DATA_DEC_REQ;
        *ev_out = KVP_DATA_EV_END;
        return KVP_OK;
    }
    if (!collect_record(dec, &dec->op, sizeof dec->op, at, len)) return KVP_OK;
    err = begin_op(dec);
    if (err == KVP_OK) *ev_out = KVP_DATA_EV_OP;
    return err;
}

bool
kvp_data_status_is_valid(int32_t status)
{
    return status == KVP_OK || status == KVP_STALE || status == KVP_INVALID || status == KVP_NO_SEGMENT;
}

kvp_err_t
kvp_data_rep_check(const void *head, uint32_t seq, uint32_t n_ops, uint64_t body_bytes_ok)
{
    kvp_data_rep_t rep;

    memcpy(&rep, head, sizeof rep);
    if (rep.magic != KVP_DATA_MAGIC || rep.seq != seq || rep.n_ops != n_ops) return KVP_PROTO;
    if (rep.bytes != kvp_data_rep_head_bytes(n_ops) - sizeof rep + body_bytes_ok) return KVP_PROTO;
    return KVP_OK;
}
