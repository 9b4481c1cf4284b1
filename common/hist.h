/* SPDX-License-Identifier: Apache-2.0
 * A latency histogram with log-linear buckets: 64 for each power of two, so the error is at most 1.6 %. Its memory
 * is fixed; nothing is allocated. Values are usually nanoseconds, but may be any u64. Not thread-safe: use one
 * histogram for each thread and merge them. */
#ifndef KVP_COMMON_HIST_H
#define KVP_COMMON_HIST_H

#include "common/base.h"

#define KVP_HIST_SUB_BITS 6
#define KVP_HIST_BUCKETS ((64 - KVP_HIST_SUB_BITS + 1) << KVP_HIST_SUB_BITS)

typedef struct {
    uint64_t count;
    uint64_t sum;
    uint64_t min; /* smallest value added to the histogram; UINT64_MAX while it is empty */
    uint64_t max;
    uint64_t buckets[KVP_HIST_BUCKETS];
} kvp_hist_t;

void kvp_hist_init(kvp_hist_t *hist);
void kvp_hist_add(kvp_hist_t *hist, uint64_t value);
void kvp_hist_merge(kvp_hist_t *into, const kvp_hist_t *from);
/* kvp_hist_quantile returns the value below which the share q (0..1) of all values lies. The result is never below
 * min or above max; 0 while empty. */
uint64_t kvp_hist_quantile(const kvp_hist_t *hist, double q);
double kvp_hist_mean(const kvp_hist_t *hist);

#endif
