/* SPDX-License-Identifier: Apache-2.0
 * A clock for what is linked with --wrap=kvp_now_ns: it goes on by being asked, so how fast the machine is changes
 * nothing. A test may put it forward. Header only, for one file of a program. */
#ifndef KVP_TESTS_TRANSPORT_STEP_CLOCK_H
#define KVP_TESTS_TRANSPORT_STEP_CLOCK_H

#include "common/clock.h"

#define CLOCK_STEP_NS 5000u

static uint64_t clock_ns = KVP_NS_PER_S;
uint64_t __wrap_kvp_now_ns(void);

uint64_t
__wrap_kvp_now_ns(void)
{
    return clock_ns += CLOCK_STEP_NS;
}

#endif
