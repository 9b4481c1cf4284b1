/* SPDX-License-Identifier: Apache-2.0
 * Clocks and randomness for programs' shells. The pure cores never include this header: callers pass them the time
 * and seeds. */
#ifndef KVP_COMMON_CLOCK_H
#define KVP_COMMON_CLOCK_H

#include "common/base.h"

#define KVP_NS_PER_MS 1000000ull
#define KVP_NS_PER_S 1000000000ull

uint64_t kvp_now_ns(void); /* returns the time of CLOCK_MONOTONIC in ns */
uint64_t kvp_boot_ns(void); /* returns CLOCK_BOOTTIME in ns, which includes suspended time; for leases and TTLs */
uint64_t kvp_thread_ns(void); /* returns the CPU time of the calling thread, in ns */

/* kvp_random_bytes fills dst by getrandom(2). It cannot fail for the sizes used here (at most 256 bytes). */
void kvp_random_bytes(void *dst, size_t len);
uint64_t kvp_random_u64(void); /* returns a random number that is never 0 */

#endif
