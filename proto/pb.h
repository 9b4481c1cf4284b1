/* SPDX-License-Identifier: Apache-2.0
 * protobuf-c with bounds: an allocator with a budget, so that a small message from a peer cannot make a large object,
 * and helpers that pack a message as a frame's head.
 */
#ifndef KVP_PROTO_PB_H
#define KVP_PROTO_PB_H

#include "common/buf.h"
#include "proto/frame.h"

#include <protobuf-c/protobuf-c.h>

/* An arena on the caller's stack first, the heap up to the budget after it. Not thread-safe. */
typedef struct {
    ProtobufCAllocator base;
    size_t budget_left;
    size_t used;
    kvp_err_t err; /* why unpack gave NULL: PROTO, or NOMEM, for which the peer can do nothing */
    _Alignas(16) uint8_t arena[2048];
} kvp_pb_t;

#define KVP_PB_BUDGET (256u << 10)

/* kvp_pb_unpack decodes the frame's head as a message of desc; NULL (and pb->err) when it is
 * malformed or over the budget, or there is no memory. The result lives until kvp_pb_free; strings
 * in it are NUL-terminated by protobuf-c. */
void *kvp_pb_unpack(kvp_pb_t *pb, const ProtobufCMessageDescriptor *desc, const kvp_frame_t *frame);
void kvp_pb_free(kvp_pb_t *pb, void *msg);

/* kvp_pb_frame_begin is kvp_frame_begin with msg packed as head; msg may be NULL (empty head). */
void kvp_pb_frame_begin(kvp_buf_t *out, uint8_t opcode, uint8_t flags, uint64_t request_id, const void *msg,
                        size_t *at_out);

/* kvp_pb_frame appends a whole frame: msg as head, which may be NULL, and len bytes of tail. */
void kvp_pb_frame(kvp_buf_t *out, uint8_t opcode, uint8_t flags, uint64_t request_id, const void *msg, const void *tail,
                  size_t len);

#endif
