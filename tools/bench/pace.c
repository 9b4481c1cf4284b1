/* SPDX-License-Identifier: Apache-2.0
 * See pace.h. A due time is a multiple of the interval, not a sum of intervals, so rounding errors do not add up. */
#include "tools/bench/pace.h"

void
kvp_bench_pace_init(kvp_bench_pace_t *pace, double calls_per_s, uint32_t number, uint32_t all_n)
{
    const double apart_ns = calls_per_s > 0 ? 1e9 / calls_per_s : 0;
    *pace = (kvp_bench_pace_t){.interval_ns = apart_ns * all_n, .offset_ns = apart_ns * number};
}

uint64_t
kvp_bench_pace_end(const kvp_bench_pace_t *pace, uint64_t calls)
{
    return (uint64_t)(pace->interval_ns * (double)calls);
}

uint64_t
kvp_bench_pace_next(kvp_bench_pace_t *pace, uint64_t elapsed_ns)
{
    if (pace->interval_ns <= 0) return elapsed_ns;
    return (uint64_t)(pace->offset_ns + pace->interval_ns * (double)pace->calls++);
}
