/* SPDX-License-Identifier: Apache-2.0
 * Keys of the bench: shaped like PoolKeys, all different, found again by their run; and the order they are put in. */
#include "tools/bench/key.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

#define N 20000u
#define LEN 118u
#define KEY_ROOM 1025u

static int
compare(const void *a, const void *b)
{
    return memcmp(a, b, LEN);
}

TEST(test_a_key_is_shaped_like_a_poolkey)
{
    char key[KEY_ROOM], run[KVP_BENCH_RUN_TEXT];
    memset(key, '#', sizeof(key));
    kvp_bench_key_write(key, LEN, 0xfeed, 13);
    assert_int_equal(key[LEN], '#');
    assert_non_null(memmem(key, LEN, "@tp_rank:5@pcp0@dcp0@pp_rank:0@group:0@", 39));
    for (size_t i = LEN - 64; i < LEN; i++)
        assert_non_null(strchr("0123456789abcdef", key[i]));
    assert_string_equal(kvp_bench_run_text(0xfeed, run), "000000000000feed");
    assert_memory_equal(key + LEN - 16, run, 16);
}

TEST(test_the_shortest_and_the_longest_key_are_filled)
{
    static const size_t lens[] = {KVP_BENCH_KEY_MIN, KEY_ROOM - 1};
    char key[KEY_ROOM];
    for (size_t i = 0; i < 2; i++) {
        memset(key, '#', sizeof(key));
        kvp_bench_key_write(key, lens[i], 1, 1);
        assert_null(memchr(key, '#', lens[i]));
        assert_int_equal(key[lens[i]], '#');
    }
}

TEST(test_no_two_numbers_or_runs_share_a_key)
{
    char(*keys)[LEN] = calloc(2 * N, LEN);
    assert_non_null(keys);
    for (size_t i = 0; i < N; i++) {
        kvp_bench_key_write(keys[i], LEN, 1, i % 2 << 56 | i / 2);
        kvp_bench_key_write(keys[N + i], LEN, 2, i % 2 << 56 | i / 2);
    }
    qsort(keys, 2 * N, LEN, compare);
    for (size_t i = 1; i < 2 * N; i++)
        assert_memory_not_equal(keys[i - 1], keys[i], LEN);
    free(keys);
}

TEST(test_the_share_of_absent_keys_is_kept)
{
    size_t absent = 0;
    for (uint64_t i = 0; i < N; i++) {
        assert_false(kvp_bench_is_absent(i, 0));
        assert_true(kvp_bench_is_absent(i, 1));
        absent += kvp_bench_is_absent(i, 0.5);
    }
    assert_in_range(absent, N * 48 / 100, N * 52 / 100);
}

TEST(test_a_shuffle_is_a_permutation_without_runs)
{
    uint32_t *order = calloc(N, sizeof(*order));
    uint8_t *seen = calloc(N, 1);
    size_t neighbours = 0;
    assert_non_null(order);
    assert_non_null(seen);
    kvp_bench_shuffle(order, N, 42);
    for (size_t i = 0; i < N; i++) {
        assert_true(order[i] < N);
        assert_int_equal(seen[order[i]]++, 0);
        if (i > 0) neighbours += order[i] == order[i - 1] + 1;
    }
    assert_true(neighbours < 20); /* one is expected of a random order */
    free(seen);
    free(order);
}

TEST_MAIN()
