/* SPDX-License-Identifier: Apache-2.0
 * Pages that are touched before they are taken: page faults are counted, since their time is the kernel's. */
#include "common/pages.h"
#include "tests/cases.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define PAGE 4096u
#define PIECE (64 * PAGE)
#define MANY 1000u

static uint64_t
faults(void)
{
    struct rusage usage;

    assert_int_equal(getrusage(RUSAGE_THREAD, &usage), 0);
    return (uint64_t)usage.ru_minflt;
}

static kvp_pages_stats_t
stats(void)
{
    kvp_pages_stats_t st;

    kvp_pages_stats(&st);
    return st;
}

static void
wait_kept(uint64_t bytes)
{
    while (stats().kept_bytes < bytes)
        sched_yield();
}

/* Page faults of writing to all of it. */
static uint64_t
faults_of(uint8_t *piece, uint8_t byte)
{
    uint64_t before = faults();

    memset(piece, byte, PIECE);
    return faults() - before;
}

static bool
is_zero(const uint8_t *piece)
{
    for (size_t i = 0; i < PIECE; i++)
        if (piece[i] != 0) return false;
    return true;
}

/* With what was asked for first the stock knows what is taken. */
static uint8_t *
open_stock(void)
{
    uint8_t *first;

    assert_int_equal(kvp_pages_stock_start(), KVP_OK);
    first = kvp_pages_take(PIECE);
    assert_non_null(first);
    assert_int_equal(stats().missed, 1);
    wait_kept(2 * PIECE);
    return first;
}

TEST(test_pages_are_touched_ahead)
{
    uint8_t *first = open_stock(), *taken[8];

    for (uint32_t i = 0; i < KVP_ARRAY_LEN(taken); i++) {
        taken[i] = kvp_pages_take(PIECE);
        assert_true(is_zero(taken[i]));
        assert_in_range(faults_of(taken[i], 0xaa), 0, PIECE / PAGE / 8); /* none, but for what the kernel wants */
        wait_kept(2 * PIECE);
    }
    assert_int_equal(stats().ready, KVP_ARRAY_LEN(taken));
    assert_int_equal(stats().missed, 1);
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(taken); i++)
        kvp_pages_free(taken[i], PIECE);
    kvp_pages_free(first, PIECE);
    kvp_pages_stock_stop();
}

/* What was freed comes back without what was in it. */
TEST(test_pages_are_zeroed_again)
{
    uint8_t *held[4] = {open_stock()};

    for (uint32_t round = 0; round < 200; round++) {
        for (uint32_t i = 0; i < KVP_ARRAY_LEN(held); i++) {
            if (held[i] == NULL) held[i] = kvp_pages_take(PIECE);
            assert_true(round == 0 || is_zero(held[i]));
            memset(held[i], 0x55, PIECE);
        }
        for (uint32_t i = 0; i < KVP_ARRAY_LEN(held); i++) {
            kvp_pages_free(held[i], PIECE);
            held[i] = NULL;
        }
    }
    kvp_pages_stock_stop();
}

/* What is kept follows what is in use, up and down. */
TEST(test_pages_kept_are_few)
{
    uint8_t *taken[MANY];

    taken[0] = open_stock();
    for (uint32_t i = 1; i < MANY; i++)
        taken[i] = kvp_pages_take(PIECE);
    wait_kept((2 + MANY / 128) * PIECE);
    assert_int_equal(stats().kept_bytes, (2 + MANY / 128) * PIECE);
    assert_int_equal(stats().ready + stats().missed, MANY);
    for (uint32_t i = 0; i < MANY; i++)
        kvp_pages_free(taken[i], PIECE);
    while (stats().kept_bytes > 3 * PIECE) /* one may have been on its way when less began to be wanted */
        sched_yield();
    kvp_pages_stock_stop();
    assert_int_equal(stats().kept_bytes, 0);
}

/* More sizes than are kept, one that is too large, and pages from before the stock or for after it. */
TEST(test_pages_without_a_stock_of_their_own)
{
    uint8_t *before = kvp_pages_take(PIECE), *after, *large, *taken[32];

    assert_true(faults_of(before, 1) >= PIECE / PAGE / 2);
    assert_int_equal(kvp_pages_stock_start(), KVP_OK);
    after = kvp_pages_take(PIECE);
    large = kvp_pages_take(1u << 30);
    assert_non_null(large);
    large[1u << 29] = 1;
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(taken); i++) {
        taken[i] = kvp_pages_take((i + 1) * PAGE);
        assert_non_null(taken[i]);
        taken[i][i * PAGE] = 1;
    }
    kvp_pages_free(before, PIECE);
    kvp_pages_free(large, 1u << 30);
    for (uint32_t i = 0; i < KVP_ARRAY_LEN(taken); i++)
        kvp_pages_free(taken[i], (i + 1) * PAGE);
    kvp_pages_free(NULL, PIECE);
    kvp_pages_stock_stop();
    kvp_pages_stock_stop();
    kvp_pages_free(after, PIECE);
}

/* Short ones are malloc's; long ones are as large as they are said to be. */
TEST(test_tables)
{
    static const size_t sizes[] = {1, 100, 8191, 8192, 1u << 20};

    for (uint32_t i = 0; i < KVP_ARRAY_LEN(sizes); i++) {
        uint64_t *table = kvp_table_alloc(sizes[i], sizeof *table);

        assert_non_null(table);
        for (size_t k = 0; k < sizes[i]; k++) {
            assert_int_equal(table[k], 0);
            table[k] = k;
        }
        kvp_table_free(table, sizes[i], sizeof *table);
    }
    kvp_table_free(NULL, 1u << 20, sizeof(uint64_t));
    kvp_table_free(NULL, 1, sizeof(uint64_t));
}

TEST(test_gaps_are_seen)
{
    size_t page = 4096, n = 8;
    uint8_t *mem = mmap(NULL, n * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(mem != MAP_FAILED);
    assert_true(kvp_is_mapped(mem, n * page) && kvp_is_mapped(mem + 5, 1) && kvp_is_mapped(mem + n * page - 1, 1));
    assert_int_equal(munmap(mem + 3 * page, page), 0);
    assert_false(kvp_is_mapped(mem, n * page));
    assert_false(kvp_is_mapped(mem + 3 * page - 1, 2));
    assert_false(kvp_is_mapped(mem + 3 * page, 1));
    assert_true(kvp_is_mapped(mem, 3 * page) && kvp_is_mapped(mem + 4 * page, 4 * page));
    munmap(mem, n * page);
}

TEST_MAIN()
