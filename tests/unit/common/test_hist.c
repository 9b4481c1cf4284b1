/* SPDX-License-Identifier: Apache-2.0
 * The histogram against sorted values. */
#include "common/hist.h"
#include "tests/cases.h"

#include <stdlib.h>

static int
compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

TEST(test_quantile_when_empty_is_zero)
{
    kvp_hist_t hist;
    kvp_hist_init(&hist);
    assert_int_equal(kvp_hist_quantile(&hist, 0.5), 0);
    assert_true(kvp_hist_mean(&hist) == 0);
    assert_true(hist.min == UINT64_MAX);
}

TEST(test_quantile_when_values_are_small_is_exact)
{
    kvp_hist_t hist;
    kvp_hist_init(&hist);
    for (uint64_t v = 1; v <= 100; v++)
        kvp_hist_add(&hist, v);
    assert_int_equal(kvp_hist_quantile(&hist, 0), 1);
    assert_int_equal(kvp_hist_quantile(&hist, 0.01), 1);
    assert_int_equal(kvp_hist_quantile(&hist, 0.5), 50);
    assert_int_equal(kvp_hist_quantile(&hist, 0.99), 99);
    assert_int_equal(kvp_hist_quantile(&hist, 1), 100);
    assert_true(kvp_hist_mean(&hist) == 50.5);
}

TEST(test_quantile_is_within_its_bucket_of_the_truth)
{
    enum { N = 1 << 14 };
    static uint64_t values[N];
    static kvp_hist_t hist;
    kvp_hist_init(&hist);
    uint64_t x = 88172645463325252ull;
    for (int i = 0; i < N; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        values[i] = x >> (x % 64);
        kvp_hist_add(&hist, values[i]);
    }
    qsort(values, N, sizeof(*values), compare_u64);
    for (int i = 1; i < 1024; i++) {
        uint64_t truth = values[(i * (N / 1024)) - 1];
        uint64_t got = kvp_hist_quantile(&hist, i / 1024.0);
        assert_true(got >= truth && got - truth <= truth / 63 + 1);
    }
}

TEST(test_add_takes_the_whole_range)
{
    static kvp_hist_t hist;
    kvp_hist_init(&hist);
    for (int bit = 0; bit < 64; bit++) {
        kvp_hist_add(&hist, 1ull << bit);
        kvp_hist_add(&hist, (1ull << bit) - 1);
    }
    kvp_hist_add(&hist, UINT64_MAX);
    assert_true(hist.max == UINT64_MAX && hist.min == 0 && hist.sum == UINT64_MAX);
    assert_true(kvp_hist_quantile(&hist, 1) == UINT64_MAX);
    assert_int_equal(hist.buckets[KVP_HIST_BUCKETS - 1], 1);
}

TEST(test_merge_equals_adding_to_one)
{
    static kvp_hist_t a, b, both;
    kvp_hist_init(&a);
    kvp_hist_init(&b);
    kvp_hist_init(&both);
    kvp_hist_merge(&a, &b);
    assert_true(a.min == UINT64_MAX);
    for (uint64_t v = 0; v < 5000; v++) {
        kvp_hist_add(v % 3 == 0 ? &a : &b, v * v);
        kvp_hist_add(&both, v * v);
    }
    kvp_hist_merge(&a, &b);
    assert_memory_equal(&a, &both, sizeof(a));
}

TEST_MAIN()
