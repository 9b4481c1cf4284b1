/* SPDX-License-Identifier: Apache-2.0
 * Processor time of this thread: what else the machine does is not the core's.
 */
#ifndef KVP_BENCH_CPU_TIME_H
#define KVP_BENCH_CPU_TIME_H

#include <stdint.h>
#include <time.h>

static inline uint64_t
cpu_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

#endif
