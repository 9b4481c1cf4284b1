/* SPDX-License-Identifier: Apache-2.0
 * An allocator with a budget for protobuf-c, and functions that pack messages into frames. */
#include "proto/pb.h"

#include <stdlib.h>

static void *
pb_alloc(void *arg, size_t size)
{
    kvp_pb_t *pb = arg;
    size_t padded = (size_t)kvp_align_up(size, 16);
    void *p;

    if (size > pb->budget_left) return NULL;
    pb->budget_left -= size;
    if (padded <= sizeof pb->arena - pb->used) {
        p = pb->arena + pb->used;
        pb->used += padded;
        return p;
    }
    p = malloc(size);
    if (p == NULL) pb->err = KVP_NOMEM;
    return p;
}

static void
pb_release(void *arg, void *p)
{
    kvp_pb_t *pb = arg;

    if ((uint8_t *)p >= pb->arena && (uint8_t *)p < pb->arena + sizeof pb->arena) return;
    free(p);
}

void *
kvp_pb_unpack(kvp_pb_t *pb, const ProtobufCMessageDescriptor *desc, const kvp_frame_t *frame)
{
    pb->base.alloc = pb_alloc;
    pb->base.free = pb_release;
    pb->base.allocator_data = pb;
    pb->budget_left = KVP_PB_BUDGET;
    pb->used = 0;
    pb->err = KVP_PROTO;
    return protobuf_c_message_unpack(desc, &pb->base, frame->hdr.head_len, frame->head);
}

void
kvp_pb_free(kvp_pb_t *pb, void *msg)
{
    if (msg != NULL) protobuf_c_message_free_unpacked(msg, &pb->base);
}

void
kvp_pb_frame_begin(kvp_buf_t *out, uint8_t opcode, uint8_t flags, uint64_t request_id, const void *msg, size_t *at_out)
{
    uint8_t small[512];
    size_t len = msg == NULL ? 0 : protobuf_c_message_get_packed_size(msg);
    uint8_t *head = small;

    if (len > sizeof small) {
        head = malloc(len);
        if (head == NULL) {
            *at_out = out->len;
            out->err = KVP_NOMEM;
            return;
        }
    }
    if (len > 0) protobuf_c_message_pack(msg, head);
    kvp_frame_begin(out, opcode, flags, request_id, head, len, at_out);
    if (head != small) free(head);
}

void
kvp_pb_frame(kvp_buf_t *out, uint8_t opcode, uint8_t flags, uint64_t request_id, const void *msg, const void *tail,
             size_t len)
{
    size_t at;

    kvp_pb_frame_begin(out, opcode, flags, request_id, msg, &at);
    if (len > 0) kvp_buf_append(out, tail, len);
    kvp_frame_end(out, at);
}
