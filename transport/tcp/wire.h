/* SPDX-License-Identifier: Apache-2.0
 * The bytes of data over TCP: the request decoder of the serving side, and the checks of an answer's head. Pure
 * functions without sockets, on the caller's memory only; fuzzed. Specified in PROTOCOL "Data over TCP"; the records
 * are in proto/wire.h. */
#ifndef KVP_TRANSPORT_TCP_WIRE_H
#define KVP_TRANSPORT_TCP_WIRE_H

#include "proto/wire.h"

/* The event that the request decoder returns. */
typedef enum {
    KVP_DATA_EV_MORE, /* the input is used up: give the decoder more */
    KVP_DATA_EV_OP, /* a whole operation was decoded, in dec->op */
    KVP_DATA_EV_BODY, /* bytes of the current WRITE's body were decoded: body and body_len */
    KVP_DATA_EV_END, /* the request is complete */
} kvp_data_ev_t;

typedef enum {
    KVP_DATA_DEC_REQ,
    KVP_DATA_DEC_OP,
    KVP_DATA_DEC_BODY,
} kvp_data_dec_state_t;

/* The state of the decoder for a stream of requests, which may arrive in pieces of any size. The zero value expects
 * the start of a request. */
typedef struct {
    kvp_data_req_t req;
    kvp_data_op_t op;
    const uint8_t *body; /* the bytes of the last event BODY, in the caller's input */
    size_t body_len;

    kvp_data_dec_state_t state;
    bool is_read; /* all operations of the request are READs; false: all are WRITEs and PUBLISHes */
    uint32_t part; /* the number of bytes of the current record received so far */
    uint32_t ops_left;
    uint64_t bytes_left; /* the bytes of the request that are not decoded yet */
    uint64_t body_left; /* the bytes of the current WRITE's body that are not decoded yet */
} kvp_data_dec_t;

/* kvp_data_dec_next consumes input from *at and returns the next event. PROTO: a record breaks a rule; decoding ends,
 * and the connection must be closed. A request gives at most n_ops events OP, and no more body bytes than its WRITEs
 * have. */
kvp_err_t kvp_data_dec_next(kvp_data_dec_t *dec, const uint8_t **at, size_t *len, kvp_data_ev_t *ev_out) KVP_MUST_USE;

/* kvp_data_dec_is_idle returns whether the decoder is between two requests. */
static inline bool
kvp_data_dec_is_idle(const kvp_data_dec_t *dec)
{
    return dec->state == KVP_DATA_DEC_REQ && dec->part == 0;
}

/* kvp_data_dec_body_left returns how many bytes of a body the caller may receive itself, straight into exported memory.
 * It then reports the received bytes with kvp_data_dec_took. */
static inline uint64_t
kvp_data_dec_body_left(const kvp_data_dec_t *dec)
{
    return dec->state == KVP_DATA_DEC_BODY ? dec->body_left : 0;
}
void kvp_data_dec_took(kvp_data_dec_t *dec, uint64_t n);

/* kvp_data_rep_head_bytes returns the size of an answer's head: a kvp_data_rep_t and n_ops statuses, padded to 8. */
static inline size_t
kvp_data_rep_head_bytes(uint32_t n_ops)
{
    return sizeof(kvp_data_rep_t) + (size_t)kvp_align_up(n_ops * 4ull, 8);
}

/* kvp_data_rep_check compares an answer's head (kvp_data_rep_head_bytes(n_ops) bytes, aligned to 8) with the request.
 * body_bytes_ok is the number of bytes of the request's READs whose status is OK. PROTO: the head does not fit the
 * request. */
kvp_err_t kvp_data_rep_check(const void *head, uint32_t seq, uint32_t n_ops, uint64_t body_bytes_ok) KVP_MUST_USE;

/* kvp_data_status_is_valid returns whether a serving side may give this status to an operation. */
bool kvp_data_status_is_valid(int32_t status);

#endif
