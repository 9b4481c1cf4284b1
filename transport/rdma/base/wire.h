/* SPDX-License-Identifier: Apache-2.0
 * The messages that both ends of an RDMA connection exchange while connecting, and tokens (PROTOCOL "RDMA").
 * Little-endian. */
#ifndef KVP_TRANSPORT_RDMA_BASE_WIRE_H
#define KVP_TRANSPORT_RDMA_BASE_WIRE_H

#include "transport/rdma/verbs/dev.h"
#include "transport/transport.h"

/* the most adapters of one host that its peers use; fewer if the addresses do not fit in an answer */
#define KVP_RDMA_RAILS_MAX 16u
#define KVP_RDMA_VERSION 1u
#define KVP_RDMA_ASK_BYTES 44u

/* The request of the connecting side. */
typedef struct {
    uint64_t nonce; /* a random number that the answer repeats, so that the answer to another attempt is detected */
    uint64_t incarnation;
    uint8_t pool_id[16];
    uint32_t mtu_bytes; /* the MTU of the requester on this connection; 0 = not stated */
} kvp_rdma_ask_t;

/* The answer of the serving side: consent, or a refusal. err is OK, or VERSION, PROTO, FENCED, BUSY, DISCONNECTED,
 * NOTSUP, INTERNAL, or LIMIT: the requester would send larger packets than our port takes. */
typedef struct {
    kvp_err_t err;
    uint64_t nonce;
    uint64_t epoch; /* the epoch of the serving instance; only keys of the same epoch are valid */
    uint32_t rail; /* the number of the adapter on which this connection arrived; it selects the key in a token */
    uint32_t rails_n;
    uint32_t mtu_bytes; /* the MTU of the port on which the request arrived */
    /* the addresses of the answering host's adapters, all with one TCP port */
    struct sockaddr_storage rails[KVP_RDMA_RAILS_MAX];
} kvp_rdma_answer_t;

/* A token of rdma: the keys of one piece of memory, one for each adapter. */
typedef struct {
    uint64_t epoch;
    uint64_t addr;
    uint64_t len;
    bool is_writable;
    uint32_t rails_n;
    uint32_t rkeys[KVP_RDMA_RAILS_MAX];
} kvp_rdma_token_t;

/* The encoders return the number of bytes written. The decoders read untrusted bytes: PROTO for malformed input,
 * VERSION for another version. Bytes after the message are ignored, because the connection manager adds padding. */
size_t kvp_rdma_ask_encode(const kvp_rdma_ask_t *ask, uint8_t dst[KVP_RDMA_ASK_MAX]);
kvp_err_t kvp_rdma_ask_decode(const uint8_t *src, size_t len, kvp_rdma_ask_t *ask_out) KVP_MUST_USE;
/* kvp_rdma_answer_encode returns 0 if the answer does not fit. */
size_t kvp_rdma_answer_encode(const kvp_rdma_answer_t *answer, uint8_t dst[KVP_RDMA_ANSWER_MAX]);
kvp_err_t kvp_rdma_answer_decode(const uint8_t *src, size_t len, kvp_rdma_answer_t *answer_out) KVP_MUST_USE;
void kvp_rdma_token_encode(const kvp_rdma_token_t *keys, kvp_token_t *token_out);
kvp_err_t kvp_rdma_token_decode(const kvp_token_t *token, kvp_rdma_token_t *keys_out) KVP_MUST_USE;

#endif
