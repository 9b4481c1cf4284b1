/* SPDX-License-Identifier: Apache-2.0
 * An open loop's clock: calls are due at a fixed rate, independent of earlier calls. A call's
 * latency counts from its due time, so that a stall shows in every call that it delayed. Measuring
 * from the actual start would hide those ("coordinated omission"; Gil Tene, "How NOT to Measure
 * Latency", and wrk2, the source of the constant rate). Pure. */
#ifndef KVP_TOOLS_BENCH_PACE_H
#define KVP_TOOLS_BENCH_PACE_H

#include "common/base.h"

typedef struct {
    double interval_ns; /* 0 = closed loop: the next call is due when the last one is over */
    double offset_ns; /* of this thread's first call */
    uint64_t calls;
} kvp_bench_pace_t;

/* kvp_bench_pace_init shares calls_per_s out among several pacers: number 0 to all_n - 1 take turns, evenly apart. */
void kvp_bench_pace_init(kvp_bench_pace_t *pace, double calls_per_s, uint32_t number, uint32_t all_n);

/* kvp_bench_pace_end returns when the turns of all calls that were made are over, in ns since the start, for all pacers
 * alike: where a run ends no earlier, another one may begin, and the two together keep the rate. */
uint64_t kvp_bench_pace_end(const kvp_bench_pace_t *pace, uint64_t calls);

/* kvp_bench_pace_next returns when the next call is due, in ns since the start; elapsed_ns is what has passed of it. */
uint64_t kvp_bench_pace_next(kvp_bench_pace_t *pace, uint64_t elapsed_ns);

#endif
