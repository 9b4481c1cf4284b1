/* SPDX-License-Identifier: Apache-2.0
 * Copies and fused sums against memcpy and kvp_sum: every length around the rules' edges, any alignment, any split. */
#include "transport/copy.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

#define ROOM ((size_t)4 << 20)

typedef struct {
    uint8_t *src;
    uint8_t *dst;
    uint64_t seed;
} buffers_t;

static uint64_t
next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static int
setup(void **state)
{
    buffers_t *b = calloc(1, sizeof *b);

    assert_non_null(b);
    b->seed = 88172645463325252ull;
    b->src = aligned_alloc(4096, ROOM + 4096);
    b->dst = aligned_alloc(4096, ROOM + 4096);
    assert_non_null(b->src);
    assert_non_null(b->dst);
    for (size_t i = 0; i < ROOM + 4096; i++)
        b->src[i] = (uint8_t)next(&b->seed);
    *state = b;
    return 0;
}

static int
teardown(void **state)
{
    buffers_t *b = *state;

    free(b->src);
    free(b->dst);
    free(b);
    return 0;
}

/* dst keeps a byte of 0xA5 before and behind what is copied. */
static void
check_one(buffers_t *b, size_t n, size_t src_at, size_t dst_at, uint64_t whole, size_t piece_max)
{
    kvp_copy_sum_t cs;
    uint8_t *dst = b->dst + 64 + dst_at;
    const uint8_t *src = b->src + src_at;
    size_t at = 0;

    dst[-1] = dst[n] = 0xA5;
    kvp_copy_sum_begin(&cs, whole);
    while (at < n) {
        size_t piece = piece_max == 0 ? n : (size_t)kvp_min_u64(next(&b->seed) % (piece_max + 1), n - at);
        kvp_copy_sum(&cs, dst + at, src + at, piece, at % 2 == 0 ? NULL : src + at + piece);
        at += piece;
    }
    assert_memory_equal(dst, src, n);
    assert_int_equal(dst[-1], 0xA5);
    assert_int_equal(dst[n], 0xA5);
    assert_true(kvp_copy_sum_end(&cs) == kvp_sum(src, n));
    assert_true(kvp_copy_sum_end(&cs) == kvp_sum(src, n)); /* asking changes nothing */

    memset(dst, 0, n);
    kvp_copy_part(dst, src, n, whole);
    assert_memory_equal(dst, src, n);
    assert_int_equal(dst[-1], 0xA5);
    assert_int_equal(dst[n], 0xA5);
}

TEST_WITH(test_sum_of_every_small_length, setup, teardown)
{
    for (size_t n = 1; n < 2500; n++)
        check_one(*state, n, n % 7, n % 13, n, 0);
}

TEST_WITH(test_sum_around_blocks_and_thresholds, setup, teardown)
{
    static const size_t around[] = {1024, 4096, 8192, 65536, 262144, 1 << 20, 3 << 20};

    for (size_t i = 0; i < KVP_ARRAY_LEN(around); i++)
        for (size_t d = 0; d < 140; d += 7) {
            check_one(*state, around[i] + d - 70, 0, 0, around[i], 0);
            check_one(*state, around[i] + d - 70, d, d / 2, 4 << 20, 0);
        }
}

TEST_WITH(test_sum_of_any_split, setup, teardown)
{
    buffers_t *b = *state;
    static const size_t piece_max[] = {1, 3, 63, 64, 65, 200, 256, 257, 1000, 5000, 70000};

    for (size_t i = 0; i < KVP_ARRAY_LEN(piece_max); i++)
        for (int round = 0; round < 60; round++) {
            size_t n = 1 + (size_t)(next(&b->seed) % (piece_max[i] * 40 + 600));
            check_one(b, n, (size_t)(next(&b->seed) % 64), (size_t)(next(&b->seed) % 64), 4 << 20, piece_max[i]);
        }
}

TEST(test_sum_of_nothing)
{
    kvp_copy_sum_t cs;

    kvp_copy_sum_begin(&cs, 0);
    assert_true(kvp_copy_sum_end(&cs) == kvp_sum("", 0));
}

TEST_MAIN()
