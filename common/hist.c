/* SPDX-License-Identifier: Apache-2.0
 * Log-linear histogram. Values below 64 have a bucket each; above, a power of two is cut in 64 buckets, so that a
 * bucket is never wider than 1/64 of its lower bound. */
#include "common/hist.h"

#include <math.h>
#include <string.h>

#define SUB_COUNT (1u << KVP_HIST_SUB_BITS)

static size_t
bucket_of(uint64_t value)
{
    if (value < SUB_COUNT) return (size_t)value;
    unsigned shift = 63u - (unsigned)__builtin_clzll(value) - KVP_HIST_SUB_BITS;
    return (size_t)shift * SUB_COUNT + (size_t)(value >> shift);
}

static uint64_t
bucket_last(size_t index)
{
    if (index < SUB_COUNT) return index;
    unsigned shift = (unsigned)(index / SUB_COUNT) - 1;
    uint64_t first = (uint64_t)(index - (size_t)shift * SUB_COUNT) << shift;
    return first + ((1ull << shift) - 1);
}

static uint64_t
add_saturating(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

void
kvp_hist_init(kvp_hist_t *hist)
{
    memset(hist, 0, sizeof(*hist));
    hist->min = UINT64_MAX;
}

void
kvp_hist_add(kvp_hist_t *hist, uint64_t value)
{
    hist->count++;
    hist->sum = add_saturating(hist->sum, value);
    hist->min = kvp_min_u64(hist->min, value);
    hist->max = kvp_max_u64(hist->max, value);
    hist->buckets[bucket_of(value)]++;
}

void
kvp_hist_merge(kvp_hist_t *into, const kvp_hist_t *from)
{
    into->count += from->count;
    into->sum = add_saturating(into->sum, from->sum);
    into->min = kvp_min_u64(into->min, from->min);
    into->max = kvp_max_u64(into->max, from->max);
    for (size_t i = 0; i < KVP_HIST_BUCKETS; i++)
        into->buckets[i] += from->buckets[i];
}

uint64_t
kvp_hist_quantile(const kvp_hist_t *hist, double q)
{
    if (hist->count == 0) return 0;
    if (!(q > 0)) return hist->min;
    if (q >= 1) return hist->max;
    uint64_t rank = kvp_max_u64((uint64_t)ceil(q * (double)hist->count), 1);
    uint64_t seen = 0;
    for (size_t i = 0; i < KVP_HIST_BUCKETS; i++) {
        seen += hist->buckets[i];
        if (seen >= rank) return kvp_max_u64(hist->min, kvp_min_u64(bucket_last(i), hist->max));
    }
    return hist->max;
}

double
kvp_hist_mean(const kvp_hist_t *hist)
{
    return hist->count == 0 ? 0 : (double)hist->sum / (double)hist->count;
}
