/* SPDX-License-Identifier: Apache-2.0
 * Where the loop's time goes: turns, steps by kind, and when a request can have become readable. */
#include "master/shell/times.h"
#include "tests/cases.h"

#define US 1000ull

TEST(test_a_turn_runs_from_its_first_callback)
{
    kvp_times_t times = {0};
    kvp_times_begin(&times, 100 * US);
    kvp_times_begin(&times, 130 * US);
    assert_true(kvp_times_end(&times, 150 * US));
    assert_int_equal(times.turn_longest_ns, 50 * US);
    assert_false(kvp_times_end(&times, 900 * US));
    assert_int_equal(times.turn_longest_ns, 50 * US);
}

TEST(test_what_ended_a_wait_was_readable_then)
{
    kvp_times_t times = {0};
    kvp_times_begin(&times, 100 * US);
    (void)kvp_times_end(&times, 150 * US);
    kvp_times_begin(&times, 400 * US);
    assert_int_equal(times.readable_ns, 400 * US);
}

/* Fails if the time that a request spent in a socket while the loop was busy with others is not counted. */
TEST(test_what_was_there_without_a_wait_may_be_as_old_as_the_turn_before)
{
    kvp_times_t times = {0};
    kvp_times_begin(&times, 100 * US);
    (void)kvp_times_end(&times, 5000 * US);
    kvp_times_begin(&times, 5002 * US);
    assert_int_equal(times.readable_ns, 100 * US);
    assert_true(kvp_times_answer(&times, times.readable_ns, 5010 * US));
    assert_int_equal(times.answer_longest_ns, 4910 * US);
    assert_false(kvp_times_answer(&times, 5000 * US, 5010 * US));
}

TEST(test_the_longest_step_is_kept_by_kind)
{
    static const uint64_t bounds[] = {10 * US, 1000 * US};
    kvp_histogram_t steps = {.bound_count = 2, .bounds = bounds};
    kvp_times_t times = {.steps = &steps};
    assert_true(kvp_times_step(&times, KVP_STEP_FRAME, 0, 20 * US, 0));
    assert_true(kvp_times_step(&times, KVP_STEP_TICK, 0, 30 * US, 0));
    assert_false(kvp_times_step(&times, KVP_STEP_FRAME, 0, 25 * US, 0)); /* the longest frame, but not of all */
    assert_false(kvp_times_step(&times, KVP_STEP_CLOSE, 0, 5 * US, 0));
    assert_int_equal(times.step_longest_ns[KVP_STEP_FRAME], 25 * US);
    assert_int_equal(times.step_longest_ns[KVP_STEP_TICK], 30 * US);
    assert_int_equal(times.step_longest_ns[KVP_STEP_CLOSE], 5 * US);
    assert_int_equal(kvp_times_step_longest(&times), 30 * US);
    assert_int_equal(steps.buckets[0], 1);
    assert_int_equal(steps.buckets[1], 3);
}

/* What the machine did meanwhile is not the step's; what the thread waited before is not taken off it. */
TEST(test_a_step_that_did_not_run_is_no_long_run)
{
    static const uint64_t bounds[] = {1000 * US, 5000 * US};
    kvp_histogram_t runs = {.bound_count = 2, .bounds = bounds};
    kvp_times_t times = {.runs = &runs};
    assert_true(kvp_times_begin(&times, 1000 * US));
    assert_false(kvp_times_begin(&times, 1001 * US));
    (void)kvp_times_look(&times, 1000 * US, 300 * US);
    assert_false(kvp_times_is_look_due(&times, 1030 * US));
    assert_true(kvp_times_is_look_due(&times, 9000 * US));
    const uint64_t waited = kvp_times_look(&times, 9000 * US, 900 * US);
    assert_int_equal(waited, 7400 * US);
    assert_true(kvp_times_step(&times, KVP_STEP_FRAME, 1010 * US, 9000 * US, waited));
    assert_int_equal(times.step_longest_ns[KVP_STEP_FRAME], 7990 * US);
    assert_int_equal(times.run_longest_ns, 590 * US);
    assert_int_equal(runs.buckets[0], 1);
    assert_int_equal(kvp_times_look(&times, 12000 * US, 3900 * US), 0);
    assert_false(kvp_times_step(&times, KVP_STEP_FRAME, 9000 * US, 12000 * US, 0));
    assert_int_equal(times.run_longest_ns, 3000 * US);
    assert_false(kvp_times_step(&times, KVP_STEP_FRAME, 12000 * US, 12010 * US, 500 * US));
    assert_int_equal(runs.buckets[0], 2);
}

TEST_MAIN()
