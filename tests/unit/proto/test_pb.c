/* SPDX-License-Identifier: Apache-2.0
 * Heads: packed and read back, bounded in memory whatever they claim, and refused when malformed. */
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"
#include "proto/wire.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

static void
parse(const kvp_buf_t *buf, kvp_frame_t *frame)
{
    size_t used;

    assert_int_equal(buf->err, KVP_OK);
    assert_int_equal(kvp_frame_parse(buf->data, buf->len, frame, &used), KVP_OK);
    assert_int_equal(used, buf->len);
}

/* as_frame makes a frame of any bytes as its head, borrowed. */
static kvp_frame_t
as_frame(const void *head, size_t len)
{
    assert_true(len <= UINT16_MAX);
    return (kvp_frame_t){.hdr = {.head_len = (uint16_t)len}, .head = head};
}

TEST(test_head_is_read_back)
{
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT, *got;
    uint8_t pool_id[16] = {1, 2, 3};
    kvp_buf_t buf = {0};
    kvp_frame_t frame;
    kvp_pb_t pb;
    size_t at;

    hello.version = 3;
    hello.name = (char *)"engine";
    hello.incarnation = UINT64_MAX;
    hello.pool_id = (ProtobufCBinaryData){sizeof(pool_id), pool_id};
    kvp_pb_frame_begin(&buf, KVP_OP_HELLO, 0, 9, &hello, &at);
    kvp_frame_end(&buf, at);
    parse(&buf, &frame);
    got = kvp_pb_unpack(&pb, &kvp__pb__hello__descriptor, &frame);
    assert_non_null(got);
    assert_int_equal(got->version, 3);
    assert_string_equal(got->name, "engine");
    assert_string_equal(got->host_id, "");
    assert_int_equal(got->incarnation, UINT64_MAX);
    assert_int_equal(got->pool_id.len, sizeof(pool_id));
    assert_memory_equal(got->pool_id.data, pool_id, sizeof(pool_id));
    kvp_pb_free(&pb, got);
    kvp_buf_fini(&buf);
}

TEST(test_empty_head_is_a_message_of_zeroes)
{
    kvp_buf_t buf = {0};
    kvp_frame_t frame;
    kvp_pb_t pb;
    size_t at;

    kvp_pb_frame_begin(&buf, KVP_OP_STATUS, 0, 1, NULL, &at);
    kvp_frame_end(&buf, at);
    parse(&buf, &frame);
    Kvp__Pb__Exists *got = kvp_pb_unpack(&pb, &kvp__pb__exists__descriptor, &frame);
    assert_non_null(got);
    assert_int_equal(got->n, 0);
    kvp_pb_free(&pb, got);
    kvp_pb_free(&pb, NULL);
    kvp_buf_fini(&buf);
}

/* Heads beyond the stack buffer and the arena take the heap, up to 64 KiB on the wire. */
TEST(test_large_head_passes_and_too_large_fails)
{
    enum { N = 60000 };
    char *text = malloc(N + 10001);
    Kvp__Pb__Reply reply = KVP__PB__REPLY__INIT, *got;
    kvp_buf_t buf = {0};
    kvp_frame_t frame;
    kvp_pb_t pb;
    size_t at;

    assert_non_null(text);
    memset(text, 'x', N + 10000);
    text[N] = '\0';
    reply.detail = text;
    kvp_pb_frame_begin(&buf, 1, KVP_FRAME_REPLY, 1, &reply, &at);
    kvp_frame_end(&buf, at);
    parse(&buf, &frame);
    got = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &frame);
    assert_non_null(got);
    assert_string_equal(got->detail, text);
    kvp_pb_free(&pb, got);
    kvp_buf_reset(&buf);

    text[N] = 'x';
    text[N + 10000] = '\0';
    kvp_pb_frame_begin(&buf, 1, KVP_FRAME_REPLY, 1, &reply, &at);
    kvp_frame_end(&buf, at);
    assert_int_equal(buf.err, KVP_LIMIT);
    kvp_buf_fini(&buf);
    free(text);
}

TEST(test_malformed_head_is_refused)
{
    static const struct {
        const char *bytes;
        size_t len;
    } bad[] = {
        {"\x08", 1}, /* a field without its value */
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12}, /* a varint too long */
        {"\x2a\x05"
         "abc",
         5}, /* a string longer than the head */
        {"\x2a\xff\xff\xff\xff\x0f", 6}, /* a string of 4 GiB */
        {"\x41\x01\x02", 3}, /* a fixed64 cut off */
        {"\x07", 1}, /* a wire type that does not exist */
        {"\x00\x00", 2}, /* field number 0 */
    };
    kvp_pb_t pb;

    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        kvp_frame_t frame = as_frame(bad[i].bytes, bad[i].len);
        void *got = kvp_pb_unpack(&pb, &kvp__pb__hello__descriptor, &frame);
        if (got != NULL) fail_msg("case %zu was taken", i);
    }
}

TEST(test_unknown_fields_are_ignored)
{
    static const uint8_t head[] = {0x08, 0x05, 0xf8, 0x07, 0x01}; /* n = 5, and a field 127 */
    kvp_frame_t frame = as_frame(head, sizeof(head));
    kvp_pb_t pb;

    Kvp__Pb__Exists *got = kvp_pb_unpack(&pb, &kvp__pb__exists__descriptor, &frame);
    assert_non_null(got);
    assert_int_equal(got->n, 5);
    kvp_pb_free(&pb, got);
}

/* Two bytes of an empty SegmentInfo on the wire are a struct of more than a hundred in memory. */
TEST(test_memory_is_bounded)
{
    enum { N = 30000 };
    uint8_t *head = malloc(2 * N);
    kvp_pb_t pb;

    assert_non_null(head);
    for (size_t i = 0; i < N; i++)
        memcpy(head + 2 * i, "\x22\x00", 2); /* SegmentsReply.segments */
    for (size_t n = 1; n <= N; n *= 2) {
        kvp_frame_t frame = as_frame(head, 2 * n);
        Kvp__Pb__SegmentsReply *got = kvp_pb_unpack(&pb, &kvp__pb__segments_reply__descriptor, &frame);
        if (got != NULL) assert_int_equal(got->n_segments, n);
        if (n <= 64) assert_non_null(got);
        if (n * sizeof(Kvp__Pb__SegmentInfo) > KVP_PB_BUDGET) assert_null(got);
        kvp_pb_free(&pb, got);
    }
    free(head);
}

TEST_MAIN()
