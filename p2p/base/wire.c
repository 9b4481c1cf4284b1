/* SPDX-License-Identifier: Apache-2.0 */
#include "p2p/base/wire.h"

#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- encoding requests */
static ProtobufCBinaryData
nonce_data(const kvp_peer_proc_t *proc)
{
    return (ProtobufCBinaryData){proc->is_told ? sizeof proc->nonce : 0, (uint8_t *)proc->nonce};
}

void
kvp_peer_hello_encode(kvp_buf_t *out, uint64_t request_id, const kvp_peer_hello_t *hello)
{
    Kvp__Pb__PeerHello msg = KVP__PB__PEER_HELLO__INIT;

    msg.version = hello->version;
    msg.version_min = hello->version_min;
    msg.incarnation = hello->incarnation;
    msg.host_id = (char *)hello->host_id;
    msg.nonce_at = hello->proc.nonce_at;
    msg.nonce = nonce_data(&hello->proc);
    kvp_pb_frame(out, KVP_OP_PEER_HELLO, 0, request_id, &msg, NULL, 0);
}

void
kvp_peer_find_encode(kvp_buf_t *out, uint64_t request_id, const kvp_peer_find_t *find)
{
    Kvp__Pb__PeerFind msg = KVP__PB__PEER_FIND__INIT;

    msg.n = find->n;
    msg.by_rdma = find->by_rdma;
    msg.may_stage = find->may_stage;
    kvp_pb_frame(out, KVP_OP_PEER_FIND, 0, request_id, &msg, find->at, find->n * sizeof *find->at);
}

void
kvp_peer_moves_encode(kvp_buf_t *out, uint64_t request_id, const kvp_peer_moves_t *moves)
{
    Kvp__Pb__PeerMove msg = KVP__PB__PEER_MOVE__INIT;

    msg.n = moves->n;
    msg.kind = moves->kind;
    msg.deadline_ns = moves->deadline_ns;
    kvp_pb_frame(out, KVP_OP_PEER_MOVE, 0, request_id, &msg, moves->pieces, moves->n * sizeof *moves->pieces);
}

void
kvp_peer_note_encode(kvp_buf_t *out, uint64_t request_id, const char *name, const char *message)
{
    Kvp__Pb__PeerNotify msg = KVP__PB__PEER_NOTIFY__INIT;

    msg.name = (char *)name;
    msg.message = (char *)message;
    kvp_pb_frame(out, KVP_OP_PEER_NOTIFY, 0, request_id, &msg, NULL, 0);
}

void
kvp_peer_cut_encode(kvp_buf_t *out, uint64_t request_id, const uint64_t *conns, uint32_t n)
{
    Kvp__Pb__PeerCut msg = KVP__PB__PEER_CUT__INIT;

    msg.n = n;
    kvp_pb_frame(out, KVP_OP_PEER_CUT, 0, request_id, &msg, conns, n * sizeof *conns);
}

void
kvp_peer_map_encode(kvp_buf_t *out, uint64_t request_id, uint64_t token)
{
    Kvp__Pb__PeerMap msg = KVP__PB__PEER_MAP__INIT;

    msg.token = token;
    kvp_pb_frame(out, KVP_OP_PEER_MAP, 0, request_id, &msg, NULL, 0);
}

void
kvp_peer_rdma_encode(kvp_buf_t *out, uint64_t request_id, uint64_t conn)
{
    Kvp__Pb__PeerRdma msg = KVP__PB__PEER_RDMA__INIT;

    msg.conn = conn;
    kvp_pb_frame(out, KVP_OP_PEER_RDMA, 0, request_id, &msg, NULL, 0);
}

void
kvp_peer_stage_encode(kvp_buf_t *out, uint64_t request_id, bool is_return)
{
    Kvp__Pb__PeerStage msg = KVP__PB__PEER_STAGE__INIT;

    msg.is_return = is_return;
    kvp_pb_frame(out, KVP_OP_PEER_STAGE, 0, request_id, &msg, NULL, 0);
}

/* ---- decoding requests */
static bool
is_frame(const kvp_frame_t *frame, uint8_t opcode, uint8_t flags)
{
    return frame->hdr.opcode == opcode && frame->hdr.flags == flags;
}

/* Decodes the description of a peer's process. No nonce: the process must not be read, and *proc_out is zeroed. */
static kvp_err_t
take_proc(uint64_t nonce_at, const ProtobufCBinaryData *nonce, kvp_peer_proc_t *proc_out)
{
    memset(proc_out, 0, sizeof *proc_out);
    if (nonce->len == 0) return KVP_OK;
    if (nonce->len != sizeof proc_out->nonce) return KVP_PROTO;
    proc_out->is_told = true;
    proc_out->nonce_at = nonce_at;
    memcpy(proc_out->nonce, nonce->data, sizeof proc_out->nonce);
    return KVP_OK;
}

kvp_err_t
kvp_peer_hello_decode(const kvp_frame_t *frame, kvp_peer_hello_t *hello_out)
{
    Kvp__Pb__PeerHello *msg;
    kvp_err_t err = KVP_PROTO;
    kvp_pb_t pb;

    if (!is_frame(frame, KVP_OP_PEER_HELLO, 0) || frame->tail_len != 0) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__peer_hello__descriptor, frame);
    if (msg == NULL) return pb.err;
    if (msg->incarnation != 0 && strlen(msg->host_id) < sizeof hello_out->host_id) {
        hello_out->version = msg->version;
        hello_out->version_min = msg->version_min;
        hello_out->incarnation = msg->incarnation;
        snprintf(hello_out->host_id, sizeof hello_out->host_id, "%s", msg->host_id);
        err = take_proc(msg->nonce_at, &msg->nonce, &hello_out->proc);
    }
    kvp_pb_free(&pb, msg);
    return err;
}

/* Returns the frame's tail if it is exactly n records and n is from 1 to KVP_PEER_BATCH_MAX; else NULL. */
static const void *
take_records(const kvp_frame_t *frame, uint32_t n, size_t record_bytes)
{
    if (n == 0 || n > KVP_PEER_BATCH_MAX || frame->tail_len != n * record_bytes) return NULL;
    return frame->tail;
}

kvp_err_t
kvp_peer_find_decode(const kvp_frame_t *frame, kvp_peer_find_t *find_out)
{
    Kvp__Pb__PeerFind *msg;
    kvp_pb_t pb;

    if (!is_frame(frame, KVP_OP_PEER_FIND, 0)) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__peer_find__descriptor, frame);
    if (msg == NULL) return pb.err;
    *find_out = (kvp_peer_find_t){.at = take_records(frame, msg->n, sizeof *find_out->at),
                                  .n = msg->n,
                                  .by_rdma = msg->by_rdma,
                                  .may_stage = msg->may_stage};
    kvp_pb_free(&pb, msg);
    return find_out->at != NULL ? KVP_OK : KVP_PROTO;
}

static bool
is_piece(const kvp_peer_piece_t *piece, kvp_peer_move_t kind)
{
    if (piece->token == 0 || piece->len == 0 || piece->len > UINT64_MAX - piece->addr) return false;
    if (kind == KVP_PEER_SUM || kind == KVP_PEER_CHECK) return piece->from == 0;
    return piece->len <= UINT64_MAX - piece->from;
}

kvp_err_t
kvp_peer_moves_decode(const kvp_frame_t *frame, kvp_peer_moves_t *moves_out)
{
    Kvp__Pb__PeerMove *msg;
    kvp_pb_t pb;

    if (!is_frame(frame, KVP_OP_PEER_MOVE, 0)) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__peer_move__descriptor, frame);
    if (msg == NULL) return pb.err;
    *moves_out = (kvp_peer_moves_t){.kind = (kvp_peer_move_t)msg->kind,
                                    .deadline_ns = msg->deadline_ns,
                                    .pieces = take_records(frame, msg->n, sizeof *moves_out->pieces),
                                    .n = msg->n};
    kvp_pb_free(&pb, msg);
    if (moves_out->pieces == NULL) return KVP_PROTO;
    if (moves_out->kind < KVP_PEER_PULL || moves_out->kind > KVP_PEER_STORE) return KVP_PROTO;
    for (uint32_t i = 0; i < moves_out->n; i++)
        if (!is_piece(&moves_out->pieces[i], moves_out->kind)) return KVP_PROTO;
    return KVP_OK;
}

kvp_err_t
kvp_peer_cut_decode(const kvp_frame_t *frame, const uint64_t **conns_out, uint32_t *n_out)
{
    const uint64_t *conns;
    Kvp__Pb__PeerCut *msg;
    kvp_pb_t pb;

    if (!is_frame(frame, KVP_OP_PEER_CUT, 0)) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__peer_cut__descriptor, frame);
    if (msg == NULL) return pb.err;
    conns = take_records(frame, msg->n, sizeof *conns);
    *n_out = msg->n;
    kvp_pb_free(&pb, msg);
    if (conns == NULL) return KVP_PROTO;
    for (uint32_t i = 0; i < *n_out; i++)
        if (conns[i] == 0) return KVP_PROTO; /* 0 would name all connections that have not sent their number */
    *conns_out = conns;
    return KVP_OK;
}

kvp_err_t
kvp_peer_map_decode(const kvp_frame_t *frame, uint64_t *token_out)
{
    Kvp__Pb__PeerMap *msg;
    uint64_t token;
    kvp_pb_t pb;

    if (!is_frame(frame, KVP_OP_PEER_MAP, 0) || frame->tail_len != 0) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__peer_map__descriptor, frame);
    if (msg == NULL) return pb.err;
    token = msg->token;
    kvp_pb_free(&pb, msg);
    if (token == 0) return KVP_PROTO;
    *token_out = token;
    return KVP_OK;
}

kvp_err_t
kvp_peer_rdma_decode(const kvp_frame_t *frame, uint64_t *conn_out)
{
    Kvp__Pb__PeerRdma *msg;
    uint64_t conn;
    kvp_pb_t pb;

    if (!is_frame(frame, KVP_OP_PEER_RDMA, 0) || frame->tail_len != 0) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__peer_rdma__descriptor, frame);
    if (msg == NULL) return pb.err;
    conn = msg->conn;
    kvp_pb_free(&pb, msg);
    if (conn == 0) return KVP_PROTO;
    *conn_out = conn;
    return KVP_OK;
}

kvp_err_t
kvp_peer_stage_decode(const kvp_frame_t *frame, bool *is_return_out)
{
    Kvp__Pb__PeerStage *msg;
    kvp_pb_t pb;

    if (!is_frame(frame, KVP_OP_PEER_STAGE, 0) || frame->tail_len != 0) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__peer_stage__descriptor, frame);
    if (msg == NULL) return pb.err;
    *is_return_out = msg->is_return;
    kvp_pb_free(&pb, msg);
    return KVP_OK;
}

kvp_err_t
kvp_peer_note_decode(const kvp_frame_t *frame, kvp_peer_note_t **note_out)
{
    Kvp__Pb__PeerNotify *msg;
    kvp_peer_note_t *note = NULL;
    kvp_err_t err = KVP_PROTO;
    kvp_pb_t pb;

    if (!is_frame(frame, KVP_OP_PEER_NOTIFY, 0) || frame->tail_len != 0) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__peer_notify__descriptor, frame);
    if (msg == NULL) return pb.err;
    size_t name_len = strlen(msg->name), message_len = strlen(msg->message);
    if (name_len <= KVP_PEER_NOTIFY_NAME_MAX && message_len <= KVP_PEER_NOTIFY_MAX) {
        note = malloc(sizeof *note + name_len + message_len + 2);
        err = note != NULL ? KVP_OK : KVP_NOMEM;
    }
    if (note != NULL) {
        char *text = (char *)(note + 1);

        kvp_list_init(&note->link);
        note->name = memcpy(text, msg->name, name_len + 1);
        note->message = memcpy(text + name_len + 1, msg->message, message_len + 1);
        *note_out = note;
    }
    kvp_pb_free(&pb, msg);
    return err;
}

/* ---- answers */
void
kvp_peer_hello_reply_encode(kvp_buf_t *out, uint64_t request_id, const kvp_peer_hello_reply_t *reply)
{
    Kvp__Pb__PeerHelloReply msg = KVP__PB__PEER_HELLO_REPLY__INIT;

    msg.err = reply->err;
    msg.detail = (char *)reply->detail;
    msg.version = reply->version;
    msg.incarnation = reply->incarnation;
    msg.transport = (char *)reply->transport;
    msg.unix_path = (char *)reply->unix_path;
    msg.nonce_at = reply->proc.nonce_at;
    msg.nonce = nonce_data(&reply->proc);
    msg.can_pull = reply->can_pull;
    msg.rdma_port = reply->rdma_port;
    kvp_pb_frame(out, KVP_OP_PEER_HELLO, KVP_FRAME_REPLY, request_id, &msg, NULL, 0);
}

void
kvp_peer_reply_encode(kvp_buf_t *out, uint8_t opcode, uint64_t request_id, kvp_err_t err, const char *detail,
                      const void *records, uint32_t n, size_t record_bytes)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;

    msg.err = err;
    msg.detail = (char *)detail;
    msg.n = n;
    kvp_pb_frame(out, opcode, KVP_FRAME_REPLY, request_id, &msg, records, n * record_bytes);
}

/* Converts the error number of a peer: PROTO for a number that is no error, and for EAGAIN, which no peer may send. */
static kvp_err_t
take_err(int32_t err)
{
    return err > 0 || err == KVP_EAGAIN ? KVP_PROTO : err;
}

kvp_err_t
kvp_peer_hello_reply_decode(const kvp_frame_t *frame, kvp_peer_hello_reply_t *reply_out)
{
    Kvp__Pb__PeerHelloReply *msg;
    kvp_err_t err = KVP_PROTO;
    kvp_pb_t pb;

    if (!is_frame(frame, KVP_OP_PEER_HELLO, KVP_FRAME_REPLY) || frame->tail_len != 0) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__peer_hello_reply__descriptor, frame);
    if (msg == NULL) return pb.err;
    if (strlen(msg->transport) < sizeof reply_out->transport && strlen(msg->unix_path) < sizeof reply_out->unix_path &&
        (msg->err != KVP_OK || msg->incarnation != 0) && msg->rdma_port <= UINT16_MAX) {
        reply_out->err = take_err(msg->err);
        snprintf(reply_out->detail, sizeof reply_out->detail, "%s", msg->detail);
        reply_out->version = msg->version;
        reply_out->incarnation = msg->incarnation;
        snprintf(reply_out->transport, sizeof reply_out->transport, "%s", msg->transport);
        snprintf(reply_out->unix_path, sizeof reply_out->unix_path, "%s", msg->unix_path);
        reply_out->can_pull = msg->can_pull;
        reply_out->rdma_port = (uint16_t)msg->rdma_port;
        err = take_proc(msg->nonce_at, &msg->nonce, &reply_out->proc);
    }
    kvp_pb_free(&pb, msg);
    return err;
}

kvp_err_t
kvp_peer_reply_decode(const kvp_frame_t *frame, uint8_t opcode, uint32_t n, size_t record_bytes,
                      const void **records_out)
{
    Kvp__Pb__Reply *msg;
    kvp_err_t err;
    kvp_pb_t pb;

    if (!is_frame(frame, opcode, KVP_FRAME_REPLY)) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, frame);
    if (msg == NULL) return pb.err;
    err = take_err(msg->err);
    if (err == KVP_OK && (msg->n != n || frame->tail_len != n * record_bytes)) err = KVP_PROTO;
    if (err == KVP_OK) *records_out = frame->tail;
    kvp_pb_free(&pb, msg);
    return err;
}

kvp_err_t
kvp_peer_range_check(const kvp_peer_range_t *range, const kvp_peer_at_t *at)
{
    if (range->err != KVP_OK) return take_err(range->err);
    if (range->token == 0 || range->len == 0 || range->len > UINT64_MAX - range->base) return KVP_PROTO;
    if (range->key_len > KVP_PEER_KEY_MAX) return KVP_PROTO;
    if (at->len == 0) return KVP_OK;
    if (at->token != 0 && at->token != range->token) return KVP_PROTO;
    if (at->addr < range->base || at->addr - range->base > range->len) return KVP_PROTO;
    return at->len <= range->len - (at->addr - range->base) ? KVP_OK : KVP_PROTO;
}
