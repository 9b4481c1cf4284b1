/* SPDX-License-Identifier: Apache-2.0
 * What a full pool is held to after much churn: how much of it is payload, and how far what is evicted for it is from
 * what was used longest ago. A twentieth of bench/alloc_bench's steps. */
#include "bench/churn.h"
#include "tests/cases.h"

#include <stdio.h>

static churn_result_t
run(const churn_mix_t *mix)
{
    const churn_conf_t conf = {.size_bytes = 2ull << 30, .chunk_bytes = 256ull << 20, .steps = 50000, .seed = 3};
    churn_result_t r;

    churn_run(&conf, mix, &r);
    print_message("%s: payload %.4f at the least, %.4f on average; %.3f evictions a put, of rank %.3f\n", mix->name,
                  r.least, r.mean, (double)r.evictions / (double)r.puts, r.rank_mean);
    return r;
}

TEST(test_blocks_of_one_size_when_full)
{
    churn_result_t r = run(&churn_one);

    assert_true(r.least >= 0.95);
    assert_true(r.rank_mean < 0.001); /* an LRU */
}

TEST(test_three_sizes_when_full)
{
    churn_result_t r;

    r = run(&churn_three);
    assert_true(r.least >= 0.93);
    assert_true(r.rank_mean < 0.05);
}

TEST(test_any_size_when_full)
{
    churn_result_t r;

    r = run(&churn_any);
    assert_true(r.least >= 0.90);
    assert_true(r.rank_mean < 0.05);
}

TEST_MAIN()
