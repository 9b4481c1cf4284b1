/* SPDX-License-Identifier: Apache-2.0
 * Test cases of cmocka that register themselves. TEST(test_name) { ... } defines a case, TEST_WITH a case with a
 * setup and a teardown, either of which may be NULL. TEST_MAIN() at the end of a file runs the file's cases in the
 * order of their lines; TEST_MAIN_WITH has a setup and a teardown of the whole program. Each file that includes this
 * header has cases of its own. TEST_TIMED is a TEST_WITH whose assert_timely() may fail: it is set up and run again
 * then, since the machine may stand still for a moment, and has to be in time once in TIMED_TRIES. */
#ifndef KVP_TESTS_CASES_H
#define KVP_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define TEST_UNUSED __attribute__((unused))

static TEST_UNUSED struct CMUnitTest test_cases[128];
static TEST_UNUSED size_t test_cases_n;

static TEST_UNUSED void
add_case(const struct CMUnitTest *test)
{
    if (test_cases_n == sizeof test_cases / sizeof test_cases[0]) {
        fprintf(stderr, "tests/cases.h: too many cases\n");
        abort();
    }
    test_cases[test_cases_n++] = *test;
}

static TEST_UNUSED int
run_cases(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    return _cmocka_run_group_tests("tests", test_cases, test_cases_n, setup, teardown);
}

/* TEST_OF begins the case `name`; the setup finds `arg`, which is evaluated once, in *state. The line
 * is the constructor's priority, so that cases are added in the order of their lines. */
#define TEST_OF(name, setup, teardown, arg)                                                                            \
    static void name(void **state);                                                                                    \
    static void __attribute__((constructor(1000 + __LINE__))) add_##name(void)                                         \
    {                                                                                                                  \
        add_case(&(struct CMUnitTest){#name, name, setup, teardown, arg});                                             \
    }                                                                                                                  \
    static void name(TEST_UNUSED void **state)

#define TEST_WITH(name, setup, teardown) TEST_OF(name, setup, teardown, NULL)
#define TEST(name) TEST_OF(name, NULL, NULL, NULL)

#define TIMED_TRIES 8

static TEST_UNUSED bool was_untimely;

static TEST_UNUSED void
assert_timely(uint64_t took, uint64_t least, uint64_t most)
{
    if (took >= least && took <= most) return;
    print_message("%ju is not within the range %ju-%ju\n", (uintmax_t)took, (uintmax_t)least, (uintmax_t)most);
    was_untimely = true;
}

static TEST_UNUSED void
run_timed(CMUnitTestFunction once, CMFixtureFunction setup, CMFixtureFunction teardown, void **state)
{
    for (int try = 1; was_untimely = false, once(state), was_untimely; try++) {
        assert_true(try < TIMED_TRIES);
        assert_int_equal(teardown(state), 0);
        assert_int_equal(setup(state), 0);
    }
}

#define TEST_TIMED(name, setup, teardown)                                                                              \
    static void name##_once(void **state);                                                                             \
    TEST_WITH(name, setup, teardown)                                                                                   \
    {                                                                                                                  \
        run_timed(name##_once, setup, teardown, state);                                                                \
    }                                                                                                                  \
    static void name##_once(TEST_UNUSED void **state)

#define TEST_MAIN_WITH(setup, teardown)                                                                                \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        return run_cases(setup, teardown);                                                                             \
    }
#define TEST_MAIN() TEST_MAIN_WITH(NULL, NULL)

#endif
