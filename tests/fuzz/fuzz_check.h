/* SPDX-License-Identifier: Apache-2.0
 * What a target claims of its input. check says where it was, since a report without line numbers is of little use. */
#ifndef KVP_TESTS_FUZZ_CHECK_H
#define KVP_TESTS_FUZZ_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define check(is_true) check_at(is_true, __LINE__)
static inline void
check_at(bool is_true, int line)
{
    if (is_true) return;
    fprintf(stderr, "broken: line %d\n", line);
    abort();
}

#endif
