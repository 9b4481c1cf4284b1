/* SPDX-License-Identifier: Apache-2.0
 * Frames and heads: the input is a stream of frames; every frame's head is decoded as each message that there is.
 * What was taken can be written again and reads the same. */
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "tests/fuzz/fuzz_check.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const heads[] = {
    &kvp__pb__hello__descriptor,
    &kvp__pb__hello_reply__descriptor,
    &kvp__pb__reply__descriptor,
    &kvp__pb__put_begin__descriptor,
    &kvp__pb__places__descriptor,
    &kvp__pb__put_commit__descriptor,
    &kvp__pb__put_abort__descriptor,
    &kvp__pb__get__descriptor,
    &kvp__pb__exists__descriptor,
    &kvp__pb__lookup__descriptor,
    &kvp__pb__lookup_reply__descriptor,
    &kvp__pb__release__descriptor,
    &kvp__pb__present__descriptor,
    &kvp__pb__present_reply__descriptor,
    &kvp__pb__remove__descriptor,
    &kvp__pb__remove_many__descriptor,
    &kvp__pb__remove_many_reply__descriptor,
    &kvp__pb__list__descriptor,
    &kvp__pb__list_reply__descriptor,
    &kvp__pb__segment_info__descriptor,
    &kvp__pb__segments__descriptor,
    &kvp__pb__segments_reply__descriptor,
    &kvp__pb__status__descriptor,
    &kvp__pb__status_reply__descriptor,
    &kvp__pb__heartbeat__descriptor,
    &kvp__pb__heartbeat_reply__descriptor,
    &kvp__pb__mount__descriptor,
    &kvp__pb__mount_reply__descriptor,
    &kvp__pb__unmount__descriptor,
    &kvp__pb__retire__descriptor,
    &kvp__pb__freed__descriptor,
    &kvp__pb__fence__descriptor,
    &kvp__pb__drained__descriptor,
    &kvp__pb__open_chunk__descriptor,
    &kvp__pb__open_chunk_reply__descriptor,
    &kvp__pb__data_hello__descriptor,
};

/* Whether something in the message was not understood: protobuf-c keeps such fields, and may write them so that it
 * would not read them again (an overlong tag of field 0). */
static bool
has_unknown(const ProtobufCMessage *msg)
{
    bool has = msg->n_unknown_fields > 0;

    for (unsigned i = 0; !has && i < msg->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &msg->descriptor->fields[i];
        if (field->type != PROTOBUF_C_TYPE_MESSAGE) continue;
        const uint8_t *at = (const uint8_t *)msg;
        ProtobufCMessage *const *subs = (ProtobufCMessage *const *)(at + field->offset); /* of one: NULL = absent */
        size_t n = *subs != NULL;
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            n = *(const size_t *)(at + field->quantifier_offset);
            subs = *(ProtobufCMessage *const *const *)(at + field->offset);
        }
        for (size_t k = 0; !has && k < n; k++)
            has = has_unknown(subs[k]);
    }
    return has;
}

/* A head that was taken goes into a frame again, and comes out of it packed the same. */
static void
check_again(const ProtobufCMessageDescriptor *desc, const kvp_frame_t *frame, const void *msg)
{
    kvp_buf_t once = {0}, twice = {0};
    kvp_frame_t read;
    kvp_pb_t pb;
    size_t at, used;

    kvp_pb_frame_begin(&once, frame->hdr.opcode, frame->hdr.flags, frame->hdr.request_id, msg, &at);
    kvp_buf_append(&once, frame->tail, frame->tail_len);
    kvp_frame_end(&once, at);
    if (once.err == KVP_OK) {
        check(kvp_frame_parse(once.data, once.len, &read, &used) == KVP_OK && used == once.len);
        check(read.tail_len == frame->tail_len);
        check(read.tail_len == 0 || memcmp(read.tail, frame->tail, read.tail_len) == 0);
        void *same = kvp_pb_unpack(&pb, desc, &read);
        check(same != NULL);
        kvp_pb_frame_begin(&twice, frame->hdr.opcode, frame->hdr.flags, frame->hdr.request_id, same, &at);
        kvp_buf_append(&twice, frame->tail, frame->tail_len);
        kvp_frame_end(&twice, at);
        check(twice.err == KVP_OK && twice.len == once.len && memcmp(once.data, twice.data, once.len) == 0);
        kvp_pb_free(&pb, same);
    }
    kvp_buf_fini(&once);
    kvp_buf_fini(&twice);
}

static void
read_heads(const kvp_frame_t *frame)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(heads); i++) {
        kvp_pb_t pb;
        void *msg = kvp_pb_unpack(&pb, heads[i], frame);
        if (msg == NULL) continue;
        check(protobuf_c_message_check(msg));
        if (!has_unknown(msg)) check_again(heads[i], frame, msg);
        kvp_pb_free(&pb, msg);
    }
}

static void
read_tail(const kvp_frame_t *frame, uint64_t n)
{
    kvp_rd_t rd;
    static volatile uint8_t sink;

    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    for (size_t size = 1; size <= 64; size += 9) {
        const uint8_t *at = kvp_rd_array(&rd, n % 7, size);
        if (at != NULL && n % 7 > 0) sink = at[n % 7 * size - 1];
        check(rd.left <= frame->tail_len);
    }
    check(kvp_rd_array(&rd, UINT64_MAX - n % 64, 40) == NULL);
    (void)sink;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvp_frame_t frame;
    size_t used = 1;

    for (size_t at = 0; used > 0; at += used) {
        if (kvp_frame_parse(data + at, size - at, &frame, &used) != KVP_OK) break;
        if (used == 0) break;
        check(used <= size - at && frame.hdr.length <= KVP_FRAME_MAX);
        check(frame.tail >= frame.head + frame.hdr.head_len || frame.tail_len == 0);
        check(frame.tail + frame.tail_len <= data + at + used);
        read_heads(&frame);
        read_tail(&frame, frame.hdr.request_id);
    }
    return 0;
}
