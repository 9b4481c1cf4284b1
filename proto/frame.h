/* SPDX-License-Identifier: Apache-2.0
 * The frame of the control plane: a 16-byte header, a protobuf head, and a raw tail of packed arrays. PROTOCOL
 * "Frames".
 *
 *   0 u32 length      bytes that follow the header, at most KVP_FRAME_MAX
 *   4 u8  opcode      kvp_op_t
 *   5 u8  flags       KVP_FRAME_REPLY, KVP_FRAME_ONEWAY; unknown bits are refused
 *   6 u16 head_len    bytes of the protobuf head; the tail begins at the next multiple of 8
 *   8 u64 request_id  chosen by the sender of the request, repeated in the answer
 *
 * Little-endian. Pure: no sockets. */
#ifndef KVP_PROTO_FRAME_H
#define KVP_PROTO_FRAME_H

#include "common/base.h"
#include "common/buf.h"

#define KVP_FRAME_HDR_BYTES 16u
#define KVP_FRAME_MAX (1u << 20)
/* most bytes of the first frame on a connection to a master, and of each frame of a client to a node */
#define KVP_FRAME_FIRST_MAX (16u << 10)
#define KVP_FRAME_REPLY 0x01u
#define KVP_FRAME_ONEWAY 0x02u /* the sender expects no answer */
#define KVP_FRAME_FLAGS_KNOWN 0x03u

typedef struct {
    uint32_t length;
    uint8_t opcode;
    uint8_t flags;
    uint16_t head_len;
    uint64_t request_id;
} kvp_frame_hdr_t;

/* A frame inside a receive buffer; head and tail point into the buffer. */
typedef struct {
    kvp_frame_hdr_t hdr;
    const uint8_t *head;
    const uint8_t *tail;
    size_t tail_len;
} kvp_frame_t;

/* kvp_frame_hdr_decode decodes and checks one header. PROTO: a length over the maximum, unknown flags, or a head
 * longer than the frame. After PROTO the next frame cannot be found, so the connection must be closed. */
kvp_err_t kvp_frame_hdr_decode(const uint8_t bytes[KVP_FRAME_HDR_BYTES], kvp_frame_hdr_t *hdr_out) KVP_MUST_USE;

/* kvp_frame_parse looks for one complete frame at data. OK with *used_out > 0: *frame_out is the frame. OK with
 * *used_out 0: more bytes are needed. PROTO as for kvp_frame_hdr_decode. */
kvp_err_t kvp_frame_parse(const uint8_t *data, size_t len, kvp_frame_t *frame_out, size_t *used_out) KVP_MUST_USE;

/* kvp_frame_begin appends a header and a head (a packed protobuf of head_len bytes, 0 to 65535) to out, padded so
 * that the tail starts 8-aligned within the frame. *at_out is the offset of the frame. The caller then appends the
 * tail with kvp_buf_*, and kvp_frame_end fills in the length. Errors stay in out->err. */
void kvp_frame_begin(kvp_buf_t *out, uint8_t opcode, uint8_t flags, uint64_t request_id, const void *head,
                     size_t head_len, size_t *at_out);
void kvp_frame_end(kvp_buf_t *out, size_t at);

/* A reader of a tail that checks its end. The error is sticky: after a read past the end reads return 0 or NULL. */
typedef struct {
    const uint8_t *at;
    size_t left;
    bool is_bad;
} kvp_rd_t;

void kvp_rd_init(kvp_rd_t *rd, const void *data, size_t len);
/* kvp_rd_bytes returns a pointer to the next n bytes (borrowed) and skips them, or NULL. */
const void *kvp_rd_bytes(kvp_rd_t *rd, size_t n);
/* kvp_rd_array returns a pointer to the next n records of `size` bytes and skips them, or NULL. A large n cannot
 * overflow the check. */
const void *kvp_rd_array(kvp_rd_t *rd, uint64_t n, size_t size);

#endif
