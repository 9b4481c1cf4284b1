/* SPDX-License-Identifier: Apache-2.0
 * Frames: what is written is read back, every cut is "not yet", every breach is refused, readers stay in their bounds.
 */
#include "proto/frame.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

static void
make_frame(kvp_buf_t *out, size_t head_len, size_t tail_len)
{
    static const char head[] = "a head of some length";
    size_t at;

    kvp_frame_begin(out, 7, KVP_FRAME_REPLY, 0x1122334455667788, head, head_len, &at);
    for (size_t i = 0; i < tail_len; i++)
        kvp_buf_append(out, &(uint8_t){(uint8_t)i}, 1);
    kvp_frame_end(out, at);
    assert_int_equal(out->err, KVP_OK);
}

TEST(test_frame_is_read_back)
{
    for (size_t head_len = 0; head_len <= 17; head_len++) {
        for (size_t tail_len = 0; tail_len <= 17; tail_len++) {
            kvp_buf_t out = {0};
            kvp_frame_t frame;
            size_t used;
            make_frame(&out, head_len, tail_len);
            assert_int_equal(kvp_frame_parse(out.data, out.len, &frame, &used), KVP_OK);
            assert_int_equal(used, out.len);
            assert_int_equal(frame.hdr.opcode, 7);
            assert_int_equal(frame.hdr.flags, KVP_FRAME_REPLY);
            assert_int_equal(frame.hdr.request_id, 0x1122334455667788);
            assert_int_equal(frame.hdr.head_len, head_len);
            assert_memory_equal(frame.head, out.data + KVP_FRAME_HDR_BYTES, head_len);
            assert_int_equal(frame.tail_len, tail_len);
            assert_int_equal((frame.tail - out.data) % 8 * (tail_len > 0), 0);
            for (size_t i = 0; i < tail_len; i++)
                assert_int_equal(frame.tail[i], i);
            kvp_buf_fini(&out);
        }
    }
}

TEST(test_cut_frame_needs_more)
{
    kvp_buf_t out = {0};
    kvp_frame_t frame;
    size_t used;

    make_frame(&out, 5, 40);
    for (size_t len = 0; len < out.len; len++) {
        uint8_t *exact = malloc(len + 1); /* so that a read too far is seen */
        assert_non_null(exact);
        memcpy(exact, out.data, len);
        used = 1;
        assert_int_equal(kvp_frame_parse(exact, len, &frame, &used), KVP_OK);
        assert_int_equal(used, 0);
        free(exact);
    }
    kvp_buf_fini(&out);
}

TEST(test_frames_stand_one_behind_the_other)
{
    kvp_buf_t out = {0};
    kvp_frame_t frame;
    size_t first, second;

    make_frame(&out, 3, 3);
    first = out.len;
    make_frame(&out, 8, 9);
    assert_int_equal(kvp_frame_parse(out.data, out.len, &frame, &second), KVP_OK);
    assert_int_equal(second, first);
    assert_int_equal(kvp_frame_parse(out.data + first, out.len - first, &frame, &second), KVP_OK);
    assert_int_equal(first + second, out.len);
    assert_int_equal(frame.tail_len, 9);
    kvp_buf_fini(&out);
}

static kvp_err_t
decode(uint32_t length, uint8_t flags, uint16_t head_len)
{
    uint8_t bytes[KVP_FRAME_HDR_BYTES] = {0};
    kvp_frame_hdr_t hdr;
    kvp_frame_t frame;
    size_t used;

    memcpy(bytes, &length, 4);
    bytes[5] = flags;
    memcpy(bytes + 6, &head_len, 2);
    kvp_err_t err = kvp_frame_hdr_decode(bytes, &hdr);
    assert_int_equal(kvp_frame_parse(bytes, sizeof(bytes), &frame, &used), err);
    return err;
}

TEST(test_breach_of_the_header_is_refused)
{
    assert_int_equal(decode(KVP_FRAME_MAX, 0, 0), KVP_OK);
    assert_int_equal(decode(KVP_FRAME_MAX + 1, 0, 0), KVP_PROTO);
    assert_int_equal(decode(UINT32_MAX, 0, 0), KVP_PROTO);
    assert_int_equal(decode(100, KVP_FRAME_REPLY | KVP_FRAME_ONEWAY, 100), KVP_OK);
    for (unsigned bit = 2; bit < 8; bit++)
        assert_int_equal(decode(100, (uint8_t)(1u << bit), 0), KVP_PROTO);
    assert_int_equal(decode(100, 0, 101), KVP_PROTO);
    assert_int_equal(decode(0, 0, UINT16_MAX), KVP_PROTO);
}

/* A frame that ends in the padding behind its head has no tail. */
TEST(test_frame_may_end_behind_its_head)
{
    for (uint32_t length = 5; length <= 9; length++) {
        uint8_t bytes[KVP_FRAME_HDR_BYTES + 16] = {0};
        kvp_frame_t frame;
        size_t used;
        memcpy(bytes, &length, 4);
        bytes[6] = 5;
        assert_int_equal(kvp_frame_parse(bytes, sizeof(bytes), &frame, &used), KVP_OK);
        assert_int_equal(used, KVP_FRAME_HDR_BYTES + length);
        assert_int_equal(frame.tail_len, length > 8 ? length - 8 : 0);
    }
}

TEST(test_writing_too_much_is_an_error_and_stays_one)
{
    kvp_buf_t out = {0};
    static uint8_t head[UINT16_MAX + 1];
    size_t at;

    kvp_frame_begin(&out, 1, 0, 1, head, sizeof(head), &at);
    kvp_frame_end(&out, at);
    assert_int_equal(out.err, KVP_LIMIT);
    kvp_buf_fini(&out);

    kvp_frame_begin(&out, 1, 0, 1, NULL, 0, &at);
    assert_non_null(kvp_buf_extend(&out, KVP_FRAME_MAX + 1));
    kvp_frame_end(&out, at);
    assert_int_equal(out.err, KVP_LIMIT);
    kvp_buf_fini(&out);

    kvp_buf_init(&out, 32);
    kvp_frame_begin(&out, 1, 0, 1, NULL, 0, &at);
    kvp_buf_append(&out, head, 64);
    kvp_frame_end(&out, at);
    assert_int_equal(out.err, KVP_LIMIT);
    kvp_buf_fini(&out);
}

TEST(test_reader_stays_in_its_bounds)
{
    uint8_t bytes[32] = {0};
    kvp_rd_t rd;

    kvp_rd_init(&rd, bytes, sizeof(bytes));
    assert_ptr_equal(kvp_rd_array(&rd, 2, 8), bytes);
    assert_ptr_equal(kvp_rd_bytes(&rd, 10), bytes + 16);
    assert_int_equal(rd.left, 6);
    assert_ptr_equal(kvp_rd_bytes(&rd, 0), bytes + 26);
    assert_null(kvp_rd_bytes(&rd, 7));
    assert_true(rd.is_bad);
    assert_null(kvp_rd_bytes(&rd, 1)); /* the error stays */
    assert_null(kvp_rd_array(&rd, 0, 8));

    kvp_rd_init(&rd, bytes, sizeof(bytes));
    assert_null(kvp_rd_array(&rd, UINT64_MAX / 8 + 2, 8)); /* n * size would wrap */
    kvp_rd_init(&rd, bytes, sizeof(bytes));
    assert_null(kvp_rd_array(&rd, UINT64_MAX, 1));
    kvp_rd_init(&rd, NULL, 0);
    assert_null(kvp_rd_bytes(&rd, 1));
}

TEST_MAIN()
