/* SPDX-License-Identifier: Apache-2.0
 * protobuf-c with limits: an allocator with a budget, so that a small message from a peer cannot create a large
 * object, and helpers that pack a message as a frame's head. */
#ifndef KVP_PROTO_PB_H
#define KVP_PROTO_PB_H

#include "common/buf.h"
#include "proto/frame.h"

#include <protobuf-c/protobuf-c.h>

/* An allocator for one message: it uses its arena, then the heap, up to the budget. Not thread-safe. */
typedef struct {
    ProtobufCAllocator base;
    size_t budget_left;
    size_t used;
    kvp_err_t err; /* why kvp_pb_unpack returned NULL: PROTO (the peer's fault), or NOMEM (not the peer's fault) */
    _Alignas(16) uint8_t arena[2048];
} kvp_pb_t;

#define KVP_PB_BUDGET (256u << 10)

/* kvp_pb_unpack decodes the frame's head as a message of type desc, valid until kvp_pb_free. NULL, and pb->err is the
 * reason: the head is malformed or over KVP_PB_BUDGET, or there is no memory. protobuf-c ends strings with NUL. */
void *kvp_pb_unpack(kvp_pb_t *pb, const ProtobufCMessageDescriptor *desc, const kvp_frame_t *frame);
void kvp_pb_free(kvp_pb_t *pb, void *msg);

/* kvp_pb_frame_begin is kvp_frame_begin with the packed msg as head; msg NULL = empty head. */
void kvp_pb_frame_begin(kvp_buf_t *out, uint8_t opcode, uint8_t flags, uint64_t request_id, const void *msg,
                        size_t *at_out);

/* kvp_pb_frame appends a complete frame: msg as head (NULL = empty), and len bytes of tail. */
void kvp_pb_frame(kvp_buf_t *out, uint8_t opcode, uint8_t flags, uint64_t request_id, const void *msg, const void *tail,
                  size_t len);

#endif
