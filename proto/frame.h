/* SPDX-License-Identifier: Apache-2.0
 * The control plane's frame: a 16-byte header, a protobuf head, a raw tail of packed arrays. PROTOCOL "Frames".
 *
 *   0 u32 length      bytes that follow the header, at most KVP_FRAME_MAX
 *   4 u8  opcode      kvp_op_t
 *   5 u8  flags       KVP_FRAME_REPLY, KVP_FRAME_ONEWAY; unknown bits are refused
 *   6 u16 head_len    bytes of the protobuf head; the tail begins at the next multiple of 8
 *   8 u64 request_id  chosen by the asker, repeated in the answer
 *
 * Little-endian. Pure: no sockets here.
 */
#ifndef KVP_PROTO_FRAME_H
#define KVP_PROTO_FRAME_H

#include "common/base.h"
#include "common/buf.h"

#define KVP_FRAME_HDR_BYTES 16u
#define KVP_FRAME_MAX (1u << 20)
#define KVP_FRAME_FIRST_MAX (16u << 10) /* of a connection's first frame, and of any to a node */
#define KVP_FRAME_REPLY 0x01u
#define KVP_FRAME_ONEWAY 0x02u /* no answer is sent */
#define KVP_FRAME_FLAGS_KNOWN 0x03u

typedef struct {
    uint32_t length;
    uint8_t opcode;
    uint8_t flags;
    uint16_t head_len;
    uint64_t request_id;
} kvp_frame_hdr_t;

/* A frame as it lies in a receive buffer: head and tail are borrowed from it. */
typedef struct {
    kvp_frame_hdr_t hdr;
    const uint8_t *head;
    const uint8_t *tail;
    size_t tail_len;
} kvp_frame_t;

/* kvp_frame_hdr_decode checks one header: PROTO for a length over the maximum, unknown flags, or a
 * head longer than the frame. After PROTO framing is lost and the connection must be closed. */
kvp_err_t kvp_frame_hdr_decode(const uint8_t bytes[KVP_FRAME_HDR_BYTES], kvp_frame_hdr_t *hdr_out) KVP_MUST_USE;

/* kvp_frame_parse looks for one whole frame at data. OK with *used_out > 0 and the frame; OK with *used_out == 0 when
 * more bytes are needed; PROTO as above. */
kvp_err_t kvp_frame_parse(const uint8_t *data, size_t len, kvp_frame_t *frame_out, size_t *used_out) KVP_MUST_USE;

/* kvp_frame_begin appends a header and a head (a packed protobuf, head_len <= 65535, may be 0) to out, padded so that
 * the tail starts 8-aligned within the frame; the tail is then appended by the caller with kvp_buf_*, and
 * kvp_frame_end(out, at) fills in the length. at_out is where the frame begins. Errors stay in out->err. */
void kvp_frame_begin(kvp_buf_t *out, uint8_t opcode, uint8_t flags, uint64_t request_id, const void *head,
                     size_t head_len, size_t *at_out);
void kvp_frame_end(kvp_buf_t *out, size_t at);

/* Bounded reader over a tail, with a sticky error: after a read past the end every read gives zero or NULL. */
typedef struct {
    const uint8_t *at;
    size_t left;
    bool is_bad;
} kvp_rd_t;

void kvp_rd_init(kvp_rd_t *rd, const void *data, size_t len);
/* kvp_rd_bytes returns n bytes in place (borrowed), or NULL. */
const void *kvp_rd_bytes(kvp_rd_t *rd, size_t n);
/* kvp_rd_array returns n records of size bytes in place, or NULL; n * size cannot overflow it. */
const void *kvp_rd_array(kvp_rd_t *rd, uint64_t n, size_t size);

#endif
