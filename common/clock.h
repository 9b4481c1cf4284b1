/* SPDX-License-Identifier: Apache-2.0
 * Clocks and randomness for shells. Cores never include this: they get `now` and seeds.
 */
#ifndef KVP_COMMON_CLOCK_H
#define KVP_COMMON_CLOCK_H

#include "common/base.h"

#define KVP_NS_PER_MS 1000000ull
#define KVP_NS_PER_S 1000000000ull

uint64_t kvp_now_ns(void); /* CLOCK_MONOTONIC */
uint64_t kvp_boot_ns(void); /* CLOCK_BOOTTIME: counts suspended time; leases and TTLs */
uint64_t kvp_thread_ns(void); /* processor time of the calling thread, without the load of the rest of the machine */

/* kvp_random_bytes fills from getrandom(2); it cannot fail for the sizes used here (at most 256 bytes). */
void kvp_random_bytes(void *dst, size_t len);
uint64_t kvp_random_u64(void); /* never 0 */

#endif
