/* SPDX-License-Identifier: Apache-2.0
 * The open loop's clock: fixed due times, shared out evenly, that a stall does not move. */
#include "tools/bench/pace.h"
#include "tests/cases.h"

TEST(test_a_closed_loop_is_due_at_once)
{
    kvp_bench_pace_t pace;
    kvp_bench_pace_init(&pace, 0, 3, 4);
    assert_int_equal(kvp_bench_pace_next(&pace, 0), 0);
    assert_int_equal(kvp_bench_pace_next(&pace, 12345), 12345);
}

/* What coordinated omission would hide: the calls that a stall of 50 ms held up were due while it lasted. */
TEST(test_a_stall_does_not_move_the_calls_behind_it)
{
    kvp_bench_pace_t pace;
    kvp_bench_pace_init(&pace, 1000, 0, 1);
    assert_int_equal(kvp_bench_pace_next(&pace, 0), 0);
    for (uint64_t i = 1; i <= 50; i++)
        assert_int_equal(kvp_bench_pace_next(&pace, 50000000), i * 1000000);
}

TEST(test_pacers_take_turns_at_the_whole_rate)
{
    enum { ALL = 3 };
    kvp_bench_pace_t pace[ALL];
    for (uint32_t i = 0; i < ALL; i++)
        kvp_bench_pace_init(&pace[i], 1000, i, ALL);
    for (uint64_t n = 0; n < 30; n++)
        assert_int_equal(kvp_bench_pace_next(&pace[n % ALL], 0), n * 1000000);
}

/* Legs of four calls each, one behind the other: as many calls in a second as one long leg has. */
TEST(test_legs_in_a_row_keep_the_rate)
{
    enum { ALL = 3, LEG = 4 };
    uint64_t begun = 0, calls = 0, last = 0;
    while (begun < 1000000000) {
        uint64_t end = 0;
        for (uint32_t i = 0; i < ALL; i++) {
            kvp_bench_pace_t pace;
            kvp_bench_pace_init(&pace, 600, i, ALL);
            for (uint64_t n = 0; n < LEG; n++, calls++)
                last = begun + kvp_bench_pace_next(&pace, 0);
            end = kvp_bench_pace_end(&pace, LEG);
            assert_true(last < begun + end);
        }
        begun += end;
    }
    assert_in_range(calls, 600, 600 + ALL * LEG);
}

TEST(test_due_times_do_not_drift)
{
    kvp_bench_pace_t pace;
    uint64_t due = 0;
    kvp_bench_pace_init(&pace, 3, 0, 1); /* an interval that no whole number of nanoseconds is */
    for (int i = 0; i <= 3000000; i++)
        due = kvp_bench_pace_next(&pace, 0);
    assert_in_range(due, 1000000ull * 1000000000 - 1000, 1000000ull * 1000000000 + 1000);
}

TEST_MAIN()
