/* SPDX-License-Identifier: Apache-2.0
 * From bytes to frames: every way of cutting a stream gives the same frames, aligned, and claimed lengths cost nothing.
 */
#include "master/shell/inbuf.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

#define SHARED_BYTES 256u

/* Frames whose ends are not aligned, so that the ones behind them do not begin aligned. */
static void
append_frame(kvp_buf_t *out, uint64_t id, size_t tail_len)
{
    size_t at;

    kvp_frame_begin(out, 20, 0, id, "head", 4, &at);
    for (size_t i = 0; i < tail_len; i++)
        kvp_buf_append(out, &(uint8_t){(uint8_t)(id + i)}, 1);
    kvp_frame_end(out, at);
}

static void
check_frame(const kvp_frame_t *frame, uint64_t id, size_t tail_len)
{
    assert_int_equal(frame->hdr.request_id, id);
    assert_memory_equal(frame->head, "head", 4);
    assert_int_equal(frame->tail_len, tail_len);
    if (tail_len > 0) assert_int_equal((uintptr_t)frame->tail % 8, 0);
    for (size_t i = 0; i < tail_len; i++)
        assert_int_equal(frame->tail[i], (uint8_t)(id + i));
}

static size_t
tail_of(uint64_t id)
{
    return (size_t)(id * 37 % 301);
}

/* receive is one turn's beginning: as much of the bytes as there is room for. */
static size_t
receive(kvp_inbuf_t *in, uint8_t *shared, size_t shared_len, const void *bytes, size_t n)
{
    uint8_t *room;
    size_t len;

    assert_int_equal(kvp_inbuf_room(in, shared, shared_len, SIZE_MAX, &room, &len), KVP_OK);
    n = kvp_min_u64(n, len);
    memcpy(room, bytes, n);
    kvp_inbuf_received(in, n);
    return n;
}

/* Runs the stream through in pieces of at most `step` bytes and counts the frames. */
static void
check_stream(const kvp_buf_t *stream, size_t step, uint64_t frames)
{
    static _Alignas(16) uint8_t shared[SHARED_BYTES];
    kvp_inbuf_t in = {0};
    uint64_t seen = 0;

    for (size_t at = 0; at < stream->len;) {
        bool has_frame = true;
        size_t n = receive(&in, shared, sizeof(shared), stream->data + at, kvp_min_u64(step, stream->len - at));
        assert_true(n > 0);
        at += n;
        while (has_frame) {
            kvp_frame_t frame;
            assert_int_equal(kvp_inbuf_next(&in, KVP_FRAME_MAX, &frame, &has_frame), KVP_OK);
            if (has_frame) check_frame(&frame, seen, tail_of(seen));
            seen += has_frame;
        }
        assert_int_equal(kvp_inbuf_keep(&in), KVP_OK);
    }
    assert_int_equal(seen, frames);
    assert_null(in.own);
    kvp_inbuf_fini(&in);
}

TEST(test_frames_are_the_same_however_the_stream_is_cut)
{
    kvp_buf_t stream = {0};

    for (uint64_t id = 0; id < 100; id++)
        append_frame(&stream, id, tail_of(id));
    for (size_t step = 1; step <= 600; step++)
        check_stream(&stream, step, 100);
    kvp_buf_fini(&stream);
}

TEST(test_claims_take_memory_only_behind_what_fills_a_buffer)
{
    static _Alignas(16) uint8_t shared[SHARED_BYTES];
    kvp_inbuf_t in = {0};
    uint8_t header[KVP_FRAME_HDR_BYTES] = {0};
    uint8_t zeroes[64] = {0};
    uint32_t claimed = KVP_FRAME_MAX;
    kvp_frame_t frame;
    bool has_frame;

    memcpy(header, &claimed, sizeof(claimed));
    size_t received = receive(&in, shared, sizeof(shared), header, sizeof(header));
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(kvp_inbuf_next(&in, KVP_FRAME_MAX, &frame, &has_frame), KVP_OK);
        assert_false(has_frame);
        assert_int_equal(kvp_inbuf_keep(&in), KVP_OK);
        assert_int_equal(in.own_cap,
                         received <= KVP_INBUF_SMALL_BYTES ? KVP_INBUF_SMALL_BYTES : claimed + sizeof(header));
        received += receive(&in, shared, sizeof(shared), zeroes, sizeof(zeroes));
    }
    kvp_inbuf_fini(&in);
}

TEST(test_a_buffer_does_not_grow_by_more_than_there_is)
{
    kvp_inbuf_t in = {0};
    kvp_buf_t stream = {0};
    uint8_t shared[SHARED_BYTES], *room;
    kvp_frame_t frame;
    size_t len, n = KVP_INBUF_SMALL_BYTES;
    bool has_frame;

    append_frame(&stream, 1, 3000);
    for (size_t at = 0; at < n; at += SHARED_BYTES) {
        assert_int_equal(receive(&in, shared, SHARED_BYTES, stream.data + at, SHARED_BYTES), SHARED_BYTES);
        assert_int_equal(kvp_inbuf_keep(&in), KVP_OK);
    }
    assert_int_equal(kvp_inbuf_wanted(&in), stream.len - n);
    assert_int_equal(kvp_inbuf_room(&in, shared, SHARED_BYTES, stream.len - n - 1, &room, &len), KVP_EAGAIN);
    assert_int_equal(kvp_inbuf_make_room(&in), KVP_OK);
    assert_int_equal(receive(&in, shared, SHARED_BYTES, stream.data + n, stream.len - n), stream.len - n);
    assert_int_equal(kvp_inbuf_next(&in, 100, &frame, &has_frame), KVP_PROTO);
    assert_int_equal(kvp_inbuf_next(&in, KVP_FRAME_MAX, &frame, &has_frame), KVP_OK);
    check_frame(&frame, 1, 3000);
    kvp_buf_fini(&stream);
    kvp_inbuf_fini(&in);
}

TEST(test_what_is_kept_is_found_again)
{
    static _Alignas(16) uint8_t shared[SHARED_BYTES];
    kvp_inbuf_t in = {0};
    kvp_buf_t stream = {0};
    kvp_frame_t frame;
    bool has_frame;

    append_frame(&stream, 3, 5);
    append_frame(&stream, 4, 16);
    assert_int_equal(receive(&in, shared, sizeof(shared), stream.data, stream.len), stream.len);
    assert_int_equal(kvp_inbuf_next(&in, KVP_FRAME_MAX, &frame, &has_frame), KVP_OK);
    check_frame(&frame, 3, 5);
    assert_int_equal(kvp_inbuf_keep(&in), KVP_OK);

    memset(shared, 0xff, sizeof(shared));
    kvp_inbuf_again(&in);
    assert_int_equal(kvp_inbuf_next(&in, KVP_FRAME_MAX, &frame, &has_frame), KVP_OK);
    assert_true(has_frame);
    check_frame(&frame, 4, 16);
    assert_int_equal(kvp_inbuf_keep(&in), KVP_OK);
    assert_null(in.own);
    kvp_buf_fini(&stream);
    kvp_inbuf_fini(&in);
}

TEST_MAIN()
