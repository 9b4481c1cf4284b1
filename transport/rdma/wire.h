/* SPDX-License-Identifier: Apache-2.0
 * The messages that the two ends of an RDMA connection exchange while connecting, and tokens
 * (PROTOCOL "RDMA"). Little-endian. */
#ifndef KVP_TRANSPORT_RDMA_WIRE_H
#define KVP_TRANSPORT_RDMA_WIRE_H

#include "transport/rdma/verbs/dev.h"
#include "transport/transport.h"

#define KVP_RDMA_RAILS_MAX                                                                                             \
    16u /* adapters of one host that a peer hears of, where their addresses fit beside a consent */
#define KVP_RDMA_VERSION 1u
#define KVP_RDMA_ASK_BYTES 44u

/* The connecting side. */
typedef struct {
    uint64_t nonce; /* returned in the answer, to detect the answer to another attempt */
    uint64_t incarnation;
    uint8_t pool_id[16];
    uint32_t mtu_bytes; /* of the packets of this connection; 0 = not stated */
} kvp_rdma_ask_t;

/* Consent, or a refusal (err: VERSION, PROTO, FENCED, BUSY, NOTSUP, INTERNAL, and LIMIT: it would
 * send larger packets than our port takes). */
typedef struct {
    kvp_err_t err;
    uint64_t nonce;
    uint64_t epoch; /* of the serving instance; keys are of one epoch */
    uint32_t rail; /* on which this connection came: which key of a token counts */
    uint32_t rails_n;
    uint32_t mtu_bytes; /* of the port of the request */
    struct sockaddr_storage rails[KVP_RDMA_RAILS_MAX]; /* where they are reached, all at one port */
} kvp_rdma_answer_t;

/* A token of this transport: the keys of one piece of memory, by rail. */
typedef struct {
    uint64_t epoch;
    uint64_t addr;
    uint64_t len;
    bool is_writable;
    uint32_t rails_n;
    uint32_t rkeys[KVP_RDMA_RAILS_MAX];
} kvp_rdma_token_t;

/* Encoders return the bytes written. Decoders read strangers' bytes: PROTO for malformed input,
 * VERSION for another version; further bytes are the connection manager's padding. */
size_t kvp_rdma_ask_encode(const kvp_rdma_ask_t *ask, uint8_t dst[KVP_RDMA_ASK_MAX]);
kvp_err_t kvp_rdma_ask_decode(const uint8_t *src, size_t len, kvp_rdma_ask_t *ask_out) KVP_MUST_USE;
/* kvp_rdma_answer_encode: 0 if the answer does not fit. */
size_t kvp_rdma_answer_encode(const kvp_rdma_answer_t *answer, uint8_t dst[KVP_RDMA_ANSWER_MAX]);
kvp_err_t kvp_rdma_answer_decode(const uint8_t *src, size_t len, kvp_rdma_answer_t *answer_out) KVP_MUST_USE;
void kvp_rdma_token_encode(const kvp_rdma_token_t *keys, kvp_token_t *token_out);
kvp_err_t kvp_rdma_token_decode(const kvp_token_t *token, kvp_rdma_token_t *keys_out) KVP_MUST_USE;

#endif
