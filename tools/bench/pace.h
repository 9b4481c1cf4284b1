/* SPDX-License-Identifier: Apache-2.0
 * The clock of an open loop: calls are due at a fixed rate, independent of earlier calls. A call's latency counts
 * from its due time, so that a stall is visible in every call that it delayed. Measuring from the actual start
 * would hide this delay ("coordinated omission"; Gil Tene, "How NOT to Measure Latency", and wrk2, the source of
 * the constant rate). Pure functions. */
#ifndef KVP_TOOLS_BENCH_PACE_H
#define KVP_TOOLS_BENCH_PACE_H

#include "common/base.h"

typedef struct {
    /* time between two calls of this thread; 0 = closed loop: a call is due when the last has ended */
    double interval_ns;
    double offset_ns; /* due time of this thread's first call */
    uint64_t calls;
} kvp_bench_pace_t;

/* kvp_bench_pace_init sets the pace of one of all_n threads that together make calls_per_s calls. The threads,
 * number 0 to all_n - 1, make calls in turn, at equal distances. */
void kvp_bench_pace_init(kvp_bench_pace_t *pace, double calls_per_s, uint32_t number, uint32_t all_n);

/* kvp_bench_pace_end returns the end of the interval of the last of `calls` calls, in ns since the start; it is
 * the same for all threads. If the next leg begins no earlier, the rate is kept over both legs. */
uint64_t kvp_bench_pace_end(const kvp_bench_pace_t *pace, uint64_t calls);

/* kvp_bench_pace_next returns the due time of the next call, in ns since the start; elapsed_ns is the current time
 * since the start. */
uint64_t kvp_bench_pace_next(kvp_bench_pace_t *pace, uint64_t elapsed_ns);

#endif
