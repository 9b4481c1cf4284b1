/* SPDX-License-Identifier: Apache-2.0
 * Data over TCP as bytes: the serving side's request decoder and the checks of an answer's head. Pure: no sockets, no
 * memory but the caller's; fuzzed. PROTOCOL "Data over TCP", records in proto/wire.h.
 */
#ifndef KVP_TRANSPORT_TCP_WIRE_H
#define KVP_TRANSPORT_TCP_WIRE_H

#include "proto/wire.h"

/* The decoder's next event. */
typedef enum {
    KVP_DATA_EV_MORE, /* nothing is left of the input */
    KVP_DATA_EV_OP, /* dec->op is the next operation */
    KVP_DATA_EV_BODY, /* bytes of the last operation, a WRITE: body and body_len */
    KVP_DATA_EV_END, /* the request is whole */
} kvp_data_ev_t;

typedef enum {
    KVP_DATA_DEC_REQ,
    KVP_DATA_DEC_OP,
    KVP_DATA_DEC_BODY,
} kvp_data_dec_state_t;

/* A stream of requests, in pieces of any size. The zero value stands before a request. */
typedef struct {
    kvp_data_req_t req;
    kvp_data_op_t op;
    const uint8_t *body; /* in the caller's input */
    size_t body_len;

    kvp_data_dec_state_t state;
    bool is_read; /* all operations READ; else all WRITE and PUBLISH */
    uint32_t part; /* bytes of the record at hand that are here */
    uint32_t ops_left;
    uint64_t bytes_left; /* of the request */
    uint64_t body_left; /* of the last operation */
} kvp_data_dec_t;

/* kvp_data_dec_next consumes input from *at and returns its event. PROTO: a record breaks a rule;
 * decoding ends, and the connection must be closed. Op events stay within the request's own counts:
 * at most n_ops, with body bytes as their lengths state. */
kvp_err_t kvp_data_dec_next(kvp_data_dec_t *dec, const uint8_t **at, size_t *len, kvp_data_ev_t *ev_out) KVP_MUST_USE;

/* kvp_data_dec_is_idle returns whether no request has begun. */
static inline bool
kvp_data_dec_is_idle(const kvp_data_dec_t *dec)
{
    return dec->state == KVP_DATA_DEC_REQ && dec->part == 0;
}

/* Body bytes that the caller receives by itself, straight into their place: at most body_left,
 * reported with took. */
static inline uint64_t
kvp_data_dec_body_left(const kvp_data_dec_t *dec)
{
    return dec->state == KVP_DATA_DEC_BODY ? dec->body_left : 0;
}
void kvp_data_dec_took(kvp_data_dec_t *dec, uint64_t n);

/* The head of an answer is a kvp_data_rep_t and n statuses, padded to 8. */
static inline size_t
kvp_data_rep_head_bytes(uint32_t n_ops)
{
    return sizeof(kvp_data_rep_t) + (size_t)kvp_align_up(n_ops * 4ull, 8);
}

/* kvp_data_rep_check holds an answer's head (kvp_data_rep_head_bytes(n_ops) bytes, aligned to 8) against the request
 * that it must be for; body_bytes_ok are the bytes of its READs whose status is OK. PROTO where they do not fit. */
kvp_err_t kvp_data_rep_check(const void *head, uint32_t seq, uint32_t n_ops, uint64_t body_bytes_ok) KVP_MUST_USE;

/* kvp_data_status_is_valid: statuses that a serving side may give an operation. */
bool kvp_data_status_is_valid(int32_t status);

#endif
