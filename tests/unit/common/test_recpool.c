/* SPDX-License-Identifier: Apache-2.0
 * The pool of records against a plain array: numbers are unique, records stay where they are, memory comes and goes. */
#include "common/recpool.h"
#include "tests/cases.h"

#include <stdlib.h>

typedef struct {
    uint32_t mark;
    uint32_t link, back;
} rec_t;

static void
init(kvp_recpool_t *pool, uint32_t max)
{
    kvp_recpool_init(pool, sizeof(rec_t), offsetof(rec_t, link), max);
}

static uint32_t
take(kvp_recpool_t *pool, uint32_t mark)
{
    uint32_t number = kvp_recpool_take(pool);

    assert_int_not_equal(number, KVP_RECPOOL_NONE);
    assert_true(number < kvp_recpool_limit(pool));
    assert_true(kvp_recpool_was_made(pool, number));
    *(rec_t *)kvp_recpool_at(pool, number) = (rec_t){mark, mark, mark};
    return number;
}

TEST(test_records_keep_what_is_in_them)
{
    enum { N = 30000, STEPS = 400000 };
    uint32_t *numbers = malloc(N * sizeof *numbers);
    uint64_t seed = 7;
    kvp_recpool_t pool;

    init(&pool, UINT32_MAX);
    for (uint32_t i = 0; i < N; i++)
        numbers[i] = KVP_RECPOOL_NONE;
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t i;

        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        i = (uint32_t)(seed >> 33) % N;
        if (numbers[i] == KVP_RECPOOL_NONE) {
            numbers[i] = take(&pool, i);
            continue;
        }
        /* A number that two had would have lost one's mark. */
        assert_int_equal(((rec_t *)kvp_recpool_at(&pool, numbers[i]))->mark, i);
        kvp_recpool_give(&pool, numbers[i]);
        numbers[i] = KVP_RECPOOL_NONE;
    }
    assert_true(kvp_recpool_limit(&pool) < 2 * N); /* numbers stay small */
    for (uint32_t i = 0; i < N; i++)
        if (numbers[i] != KVP_RECPOOL_NONE) kvp_recpool_give(&pool, numbers[i]);
    assert_true(pool.memory_bytes <= sizeof(rec_t) * KVP_RECPOOL_BLOCK + 1024); /* one block is kept */
    free(numbers);
    kvp_recpool_fini(&pool);
}

TEST(test_take_when_the_most_are_in_use)
{
    enum { MOST = KVP_RECPOOL_BLOCK + 5 };
    kvp_recpool_t pool;

    init(&pool, MOST);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < MOST; i++)
            assert_true(take(&pool, i) < MOST);
        assert_int_equal(kvp_recpool_take(&pool), KVP_RECPOOL_NONE);
        for (uint32_t i = 0; i < MOST; i++)
            kvp_recpool_give(&pool, i);
    }
    kvp_recpool_fini(&pool);
}

TEST(test_blocks_when_their_records_go)
{
    enum { N = 5 * KVP_RECPOOL_BLOCK };
    kvp_recpool_t pool;

    init(&pool, UINT32_MAX);
    assert_int_equal(kvp_recpool_limit(&pool), 0);
    assert_false(kvp_recpool_was_made(&pool, 0));
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(take(&pool, i), i);
    for (uint32_t i = KVP_RECPOOL_BLOCK; i < 3 * KVP_RECPOOL_BLOCK; i++)
        kvp_recpool_give(&pool, i);
    /* One of the two is kept, the other is gone; those behind stay where they are. */
    assert_true(kvp_recpool_was_made(&pool, KVP_RECPOOL_BLOCK) != kvp_recpool_was_made(&pool, 2 * KVP_RECPOOL_BLOCK));
    assert_int_equal(kvp_recpool_limit(&pool), N);
    assert_int_equal(((rec_t *)kvp_recpool_at(&pool, N - 1))->mark, N - 1);
    for (uint32_t i = 0; i < 2 * KVP_RECPOOL_BLOCK; i++)
        assert_true(take(&pool, 0) < N); /* the gap is filled first */
    kvp_recpool_fini(&pool);
    assert_int_equal(kvp_recpool_limit(&pool), 0);
}

TEST(test_claim_takes_that_very_record)
{
    enum { FAR = 3 * KVP_RECPOOL_BLOCK + 5 };
    const rec_t blank = {.mark = 77};
    kvp_recpool_t pool;

    kvp_recpool_init_claimed(&pool, sizeof(rec_t), offsetof(rec_t, link), offsetof(rec_t, back), FAR + 1);
    assert_false(kvp_recpool_claim(&pool, FAR + 1, &blank));
    assert_true(kvp_recpool_claim(&pool, FAR, &blank));
    assert_false(kvp_recpool_was_made(&pool, 0)); /* blocks in between are not made */
    assert_true(kvp_recpool_was_made(&pool, FAR - 5));
    assert_int_equal(((rec_t *)kvp_recpool_at(&pool, FAR - 3))->mark, 77);
    assert_true(kvp_recpool_claim(&pool, FAR - 3, &blank));
    for (uint32_t i = 0; i < 4; i++)
        assert_in_range(take(&pool, 0), FAR - 5, FAR - 1);
    for (uint32_t i = 0; i < KVP_RECPOOL_BLOCK; i++)
        assert_int_equal(take(&pool, i), i); /* that block was full */
    assert_int_equal(pool.n, 6 + KVP_RECPOOL_BLOCK);
    kvp_recpool_fini(&pool);
}

/* In no order, with takes and gives in between: no record is in use twice, and none is lost. */
TEST(test_claim_when_some_come_and_go)
{
    enum { N = 2 * KVP_RECPOOL_BLOCK };
    const rec_t blank = {0};
    uint8_t *is_used = calloc(N, 1);
    kvp_recpool_t pool;
    uint32_t used = 0;

    kvp_recpool_init_claimed(&pool, sizeof(rec_t), offsetof(rec_t, link), offsetof(rec_t, back), N);
    for (uint32_t step = 0; step < 100000; step++) {
        uint32_t i = (step * 2654435761u >> 7) % N;

        if (is_used[i]) {
            assert_int_equal(((rec_t *)kvp_recpool_at(&pool, i))->mark, i);
            kvp_recpool_give(&pool, i);
            used--;
            is_used[i] = false;
            continue;
        }
        if (step % 3 == 0)
            i = take(&pool, 0);
        else
            assert_true(kvp_recpool_claim(&pool, i, &blank));
        *(rec_t *)kvp_recpool_at(&pool, i) = (rec_t){i, i, i};
        assert_false(is_used[i]);
        is_used[i] = true;
        assert_int_equal(pool.n, ++used);
    }
    for (; used < N; used++) {
        uint32_t i = take(&pool, 0);

        assert_false(is_used[i]);
        is_used[i] = true;
    }
    assert_int_equal(kvp_recpool_take(&pool), KVP_RECPOOL_NONE);
    kvp_recpool_fini(&pool);
    free(is_used);
}

TEST_MAIN()
