/* SPDX-License-Identifier: Apache-2.0
 * Allocations that fail on demand. The linker leads malloc and its kin here (-Wl,--wrap) where they are called by code
 * that is linked into the test, which is all of libkvpool; what libc allocates for itself is not touched. Any thread.
 */
#ifndef KVP_TEST_FAILALLOC_H
#define KVP_TEST_FAILALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* fail_arm: from now on the n-th allocation (1 = the next) of any thread fails, and with is_for_good every one behind
 * it. fail_disarm ends that and says whether one has failed. */
void fail_arm(uint64_t n, bool is_for_good);
bool fail_disarm(void);

/* fail_live counts the allocations that were not freed yet. */
int64_t fail_live(void);

#endif
