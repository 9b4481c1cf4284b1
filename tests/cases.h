/* SPDX-License-Identifier: Apache-2.0
 * Test cases of cmocka that register themselves. TEST(test_name) { ... } defines a case, TEST_WITH a case with a
 * setup and a teardown, either of which may be NULL. TEST_MAIN() at the end of a file runs the file's cases in the
 * order of their lines; TEST_MAIN_WITH has a setup and a teardown of the whole program. Each file that includes this
 * header has cases of its own. */
#ifndef KVP_TESTS_CASES_H
#define KVP_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
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

#define TEST_MAIN_WITH(setup, teardown)                                                                                \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        return run_cases(setup, teardown);                                                                             \
    }
#define TEST_MAIN() TEST_MAIN_WITH(NULL, NULL)

#endif
