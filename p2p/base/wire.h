/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes the messages between endpoints of peer-to-peer transfers: PROTOCOL "Peers", records in
 * proto/wire.h. Pure: no sockets; fuzzed. A decoder returns PROTO for every message that its side of the protocol
 * does not know, and the connection has to be closed. Records are borrowed from the frame. */
#ifndef KVP_P2P_BASE_WIRE_H
#define KVP_P2P_BASE_WIRE_H

#include "common/hostid.h"
#include "common/list.h"
#include "proto/frame.h"
#include "proto/wire.h"

#define KVP_PEER_NONCE_BYTES 16u
#define KVP_PEER_UNIX_MAX 64u
#define KVP_PEER_UNIX_PREFIX "@kvpool-peer-" /* followed by 16 hex digits: see common/hostid.c */
#define KVP_PEER_REQUEST_MAX (64u << 10) /* most bytes of a request's frame, header included */
#define KVP_PEER_REPLY_MAX (160u << 10) /* most bytes of an answer's frame, header included */

/* A process that may be read: its nonce, and the nonce's address. The value at the address shows that the right
 * process was read, because a message cannot prove which process sent it. */
typedef struct {
    bool is_told; /* true: the process may be read, and the other fields are valid */
    uint64_t nonce_at;
    uint8_t nonce[KVP_PEER_NONCE_BYTES];
} kvp_peer_proc_t;

typedef struct {
    uint32_t version, version_min;
    uint64_t incarnation;
    char host_id[KVP_HOST_ID_MAX + 1];
    kvp_peer_proc_t proc;
} kvp_peer_hello_t;

typedef struct {
    kvp_err_t err;
    char detail[160];
    uint32_t version;
    uint64_t incarnation;
    char transport[16];
    char unix_path[KVP_PEER_UNIX_MAX]; /* the peer's Unix socket; empty = none */
    kvp_peer_proc_t proc;
    bool can_pull;
    uint16_t rdma_port; /* port of the peer's RDMA listener; 0 = the peer has no RDMA */
} kvp_peer_hello_reply_t;

/* A message from a peer's application, in one allocation. */
typedef struct {
    kvp_list_t link;
    const char *name; /* points after this struct, unaligned */
    const char *message;
} kvp_peer_note_t;

typedef struct {
    const kvp_peer_at_t *at;
    uint32_t n;
    bool by_rdma;
    bool may_stage;
} kvp_peer_find_t;

typedef struct {
    kvp_peer_move_t kind;
    uint64_t deadline_ns;
    const kvp_peer_piece_t *pieces;
    uint32_t n;
} kvp_peer_moves_t;

/* Encoders and decoders of requests. A decoder returns PROTO for an invalid message. */
void kvp_peer_hello_encode(kvp_buf_t *out, uint64_t request_id, const kvp_peer_hello_t *hello);
void kvp_peer_find_encode(kvp_buf_t *out, uint64_t request_id, const kvp_peer_find_t *find);
void kvp_peer_moves_encode(kvp_buf_t *out, uint64_t request_id, const kvp_peer_moves_t *moves);
void kvp_peer_note_encode(kvp_buf_t *out, uint64_t request_id, const char *name, const char *message);
void kvp_peer_cut_encode(kvp_buf_t *out, uint64_t request_id, const uint64_t *conns, uint32_t n);
void kvp_peer_map_encode(kvp_buf_t *out, uint64_t request_id, uint64_t token);
void kvp_peer_rdma_encode(kvp_buf_t *out, uint64_t request_id, uint64_t conn);
void kvp_peer_stage_encode(kvp_buf_t *out, uint64_t request_id, bool is_return);

kvp_err_t kvp_peer_hello_decode(const kvp_frame_t *frame, kvp_peer_hello_t *hello_out) KVP_MUST_USE;
kvp_err_t kvp_peer_find_decode(const kvp_frame_t *frame, kvp_peer_find_t *find_out) KVP_MUST_USE;
kvp_err_t kvp_peer_moves_decode(const kvp_frame_t *frame, kvp_peer_moves_t *moves_out) KVP_MUST_USE;
kvp_err_t kvp_peer_cut_decode(const kvp_frame_t *frame, const uint64_t **conns_out, uint32_t *n_out) KVP_MUST_USE;
kvp_err_t kvp_peer_map_decode(const kvp_frame_t *frame, uint64_t *token_out) KVP_MUST_USE;
kvp_err_t kvp_peer_rdma_decode(const kvp_frame_t *frame, uint64_t *conn_out) KVP_MUST_USE;
kvp_err_t kvp_peer_stage_decode(const kvp_frame_t *frame, bool *is_return_out) KVP_MUST_USE;
/* kvp_peer_note_decode may also return NOMEM. The caller frees *note_out. */
kvp_err_t kvp_peer_note_decode(const kvp_frame_t *frame, kvp_peer_note_t **note_out) KVP_MUST_USE;

/* Encoders of answers. records may be NULL if n is 0: in a refusal of the request, or in an answer without records. */
void kvp_peer_hello_reply_encode(kvp_buf_t *out, uint64_t request_id, const kvp_peer_hello_reply_t *reply);
void kvp_peer_reply_encode(kvp_buf_t *out, uint8_t opcode, uint64_t request_id, kvp_err_t err, const char *detail,
                           const void *records, uint32_t n, size_t record_bytes);

/* Decodes the answer to a hello. If the peer refuses, the decoder returns OK and reply_out->err is the peer's error. */
kvp_err_t kvp_peer_hello_reply_decode(const kvp_frame_t *frame, kvp_peer_hello_reply_t *reply_out) KVP_MUST_USE;
/* kvp_peer_reply_decode decodes an answer with n records (else PROTO), or returns the error of the peer's refusal. */
kvp_err_t kvp_peer_reply_decode(const kvp_frame_t *frame, uint8_t opcode, uint32_t n, size_t record_bytes,
                                const void **records_out) KVP_MUST_USE;

/* kvp_peer_range_check checks the range with which a peer answered the question for the place `at`. Returns the peer's
 * error, if any; PROTO if the range, token or key is impossible, or the range does not contain at->len bytes at
 * at->addr; else OK. A range with an empty key is device memory. */
kvp_err_t kvp_peer_range_check(const kvp_peer_range_t *range, const kvp_peer_at_t *at) KVP_MUST_USE;

#endif
