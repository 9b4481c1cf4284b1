/* SPDX-License-Identifier: Apache-2.0
 * The growable buffer: contents over growth, the sticky error, the limit. */
#include "common/buf.h"
#include "tests/cases.h"

#include <string.h>

/* The sanitizers would otherwise end the program where malloc is to return NULL. */
KVP_API const char *__asan_default_options(void);
KVP_API const char *__tsan_default_options(void);

const char *
__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *
__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

TEST(test_append_keeps_bytes_over_growth)
{
    kvp_buf_t buf = {0};
    for (unsigned i = 0; i < 10000; i++)
        kvp_buf_append(&buf, &(uint8_t){(uint8_t)i}, 1);
    assert_int_equal(buf.err, KVP_OK);
    assert_int_equal(buf.len, 10000);
    for (unsigned i = 0; i < 10000; i++)
        assert_int_equal(buf.data[i], (uint8_t)i);
    kvp_buf_fini(&buf);
    assert_null(buf.data);
}

TEST(test_error_sticks_when_limit_is_passed)
{
    kvp_buf_t buf;
    kvp_buf_init(&buf, 10);
    kvp_buf_append(&buf, "12345678", 8);
    kvp_buf_append(&buf, "abc", 3);
    assert_int_equal(buf.err, KVP_LIMIT);
    kvp_buf_append(&buf, "9", 1);
    assert_int_equal(buf.len, 8);
    assert_null(kvp_buf_reserve(&buf, 0));
    assert_null(kvp_buf_extend(&buf, 1));
    kvp_buf_reset(&buf);
    kvp_buf_append(&buf, "0123456789", 10);
    assert_int_equal(buf.err, KVP_OK);
    assert_int_equal(buf.cap, 10);
    kvp_buf_fini(&buf);
}

TEST(test_error_sticks_when_length_overflows)
{
    kvp_buf_t buf = {0};
    kvp_buf_append(&buf, "x", 1);
    assert_null(kvp_buf_reserve(&buf, SIZE_MAX));
    assert_int_equal(buf.err, KVP_LIMIT);
    kvp_buf_fini(&buf);
}

TEST(test_error_sticks_when_memory_is_short)
{
    kvp_buf_t buf = {0};
    kvp_buf_append(&buf, "x", 1);
    assert_null(kvp_buf_reserve(&buf, SIZE_MAX / 2));
    assert_int_equal(buf.err, KVP_NOMEM);
    assert_int_equal(buf.len, 1);
    kvp_buf_fini(&buf);
}

TEST(test_extend_gives_zeroes_after_reset)
{
    kvp_buf_t buf = {0};
    kvp_buf_append(&buf, "garbage", 7);
    kvp_buf_reset(&buf);
    uint8_t *at = kvp_buf_extend(&buf, 7);
    assert_memory_equal(at, "\0\0\0\0\0\0\0", 7);
    assert_int_equal(buf.len, 7);
    kvp_buf_fini(&buf);
}

TEST(test_reserve_of_nothing_is_no_error)
{
    kvp_buf_t buf = {0};
    assert_non_null(kvp_buf_reserve(&buf, 0));
    assert_int_equal(buf.len, 0);
    kvp_buf_fini(&buf);
}

TEST(test_consume_drops_the_front)
{
    kvp_buf_t buf = {0};
    kvp_buf_consume(&buf, 0);
    kvp_buf_append(&buf, "headtail", 8);
    kvp_buf_consume(&buf, 4);
    assert_int_equal(buf.len, 4);
    assert_memory_equal(buf.data, "tail", 4);
    kvp_buf_consume(&buf, 4);
    assert_int_equal(buf.len, 0);
    kvp_buf_fini(&buf);
}

TEST_MAIN()
