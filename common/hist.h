/* SPDX-License-Identifier: Apache-2.0
 * Latency histogram: log-linear buckets (64 to a power of two, so an error of 1.6 % at worst),
 * fixed memory, no allocation. Values are usually nanoseconds, and may be any u64. Not thread-safe:
 * use one histogram a thread, then merge. */
#ifndef KVP_COMMON_HIST_H
#define KVP_COMMON_HIST_H

#include "common/base.h"

#define KVP_HIST_SUB_BITS 6
#define KVP_HIST_BUCKETS ((64 - KVP_HIST_SUB_BITS + 1) << KVP_HIST_SUB_BITS)

typedef struct {
    uint64_t count;
    uint64_t sum;
    uint64_t min; /* UINT64_MAX while empty */
    uint64_t max;
    uint64_t buckets[KVP_HIST_BUCKETS];
} kvp_hist_t;

void kvp_hist_init(kvp_hist_t *hist);
void kvp_hist_add(kvp_hist_t *hist, uint64_t value);
void kvp_hist_merge(kvp_hist_t *into, const kvp_hist_t *from);
/* kvp_hist_quantile returns the value below which the share q (0..1) of the values lies; 0 while empty; never above
 * max nor below min. */
uint64_t kvp_hist_quantile(const kvp_hist_t *hist, double q);
double kvp_hist_mean(const kvp_hist_t *hist);

#endif
