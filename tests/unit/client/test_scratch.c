/* SPDX-License-Identifier: Apache-2.0
 * Working memory of calls: aligned, apart from one another, kept for the next call. */
#include "client/data/scratch.h"
#include "tests/cases.h"

#include <string.h>

TEST(test_alloc_gives_apart_and_aligned_memory)
{
    kvp_scratch_pool_t pool;
    kvp_scratch_t *s;
    uint8_t *parts[200];

    kvp_scratch_pool_init(&pool);
    s = kvp_scratch_take(&pool);
    assert_non_null(s);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 200; i++) {
            parts[i] = kvp_scratch_alloc(s, i + 1, 97);
            assert_non_null(parts[i]);
            assert_int_equal((uintptr_t)parts[i] % 64, 0);
            memset(parts[i], (int)i, (i + 1) * 97);
        }
        for (size_t i = 0; i < 200; i++)
            for (size_t b = 0; b < (i + 1) * 97; b += 13)
                assert_int_equal(parts[i][b], (uint8_t)i);
        kvp_scratch_reset(s);
    }
    kvp_scratch_rele(&pool, s);
    kvp_scratch_pool_fini(&pool);
}

TEST(test_alloc_refuses_what_overflows)
{
    kvp_scratch_pool_t pool;
    kvp_scratch_t *s;

    kvp_scratch_pool_init(&pool);
    s = kvp_scratch_take(&pool);
    assert_null(kvp_scratch_alloc(s, SIZE_MAX / 4, 8));
    assert_null(kvp_scratch_alloc(s, SIZE_MAX, 1));
    assert_non_null(kvp_scratch_alloc(s, 0, 8));
    kvp_scratch_rele(&pool, s);
    kvp_scratch_pool_fini(&pool);
}

TEST(test_take_prefers_the_warmest)
{
    kvp_scratch_pool_t pool;
    kvp_scratch_t *one, *two;

    kvp_scratch_pool_init(&pool);
    one = kvp_scratch_take(&pool);
    two = kvp_scratch_take(&pool);
    assert_ptr_not_equal(one, two);
    kvp_buf_append(&two->out, "left over", 9);
    kvp_scratch_rele(&pool, one);
    kvp_scratch_rele(&pool, two);
    assert_ptr_equal(kvp_scratch_take(&pool), two);
    assert_int_equal(two->out.len, 0);
    kvp_scratch_rele(&pool, two);
    kvp_scratch_pool_fini(&pool);
}

TEST(test_huge_leftovers_are_not_kept)
{
    kvp_scratch_pool_t pool;
    kvp_scratch_t *s;

    kvp_scratch_pool_init(&pool);
    s = kvp_scratch_take(&pool);
    assert_non_null(kvp_buf_reserve(&s->in, 64u << 20));
    assert_non_null(kvp_scratch_alloc(s, 64u << 20, 1));
    kvp_scratch_rele(&pool, s);
    assert_int_equal(s->in.cap, 0);
    assert_null(s->blocks);
    kvp_scratch_pool_fini(&pool);
}

TEST_MAIN()
