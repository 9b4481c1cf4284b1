/* SPDX-License-Identifier: Apache-2.0 */
#include "master/history.h"

static void
copy_buckets(uint32_t buckets[KVP_METRIC_LATENCY_BOUNDS + 1], const kvp_histogram_t *histogram)
{
    for (uint32_t i = 0; histogram != NULL && i <= KVP_METRIC_LATENCY_BOUNDS; i++)
        buckets[i] = (uint32_t)atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
}

void
kvp_history_times(kvp_sample_t *sample, const kvp_times_t *times)
{
    for (uint32_t i = 0; i < KVP_TIMED_CALLS; i++)
        copy_buckets(sample->times[i], times->calls[i]);
    copy_buckets(sample->times[KVP_TIMED_CALLS], times->answers);
}

void
kvp_history_note(kvp_history_t *h, const kvp_sample_t *sample)
{
    h->samples[h->next] = *sample;
    h->next = (h->next + 1) % KVP_HISTORY_SAMPLES;
    if (h->n < KVP_HISTORY_SAMPLES) h->n++;
}

const kvp_sample_t *
kvp_history_get(const kvp_history_t *h, uint32_t i)
{
    return &h->samples[(h->next + KVP_HISTORY_SAMPLES - h->n + i) % KVP_HISTORY_SAMPLES];
}

const kvp_sample_t *
kvp_history_before(const kvp_history_t *h, uint64_t at_ms)
{
    uint32_t i = h->n;

    if (h->n == 0) return NULL;
    while (i > 1 && kvp_history_get(h, i - 1)->at_ms > at_ms)
        i--;
    return kvp_history_get(h, i - 1);
}

uint64_t
kvp_history_rise(uint64_t from, uint64_t to)
{
    return to > from ? to - from : 0;
}

uint64_t
kvp_history_count(const kvp_sample_t *from, const kvp_sample_t *to, uint32_t which)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i <= KVP_METRIC_LATENCY_BOUNDS; i++)
        n += (uint32_t)(to->times[which][i] - from->times[which][i]);
    return n;
}

uint64_t
kvp_history_quantile(const kvp_sample_t *from, const kvp_sample_t *to, uint32_t which, double share)
{
    const uint64_t all = kvp_history_count(from, to, which);
    uint64_t n = 0;

    for (uint32_t i = 0; all > 0 && i < KVP_METRIC_LATENCY_BOUNDS; i++) {
        n += (uint32_t)(to->times[which][i] - from->times[which][i]);
        if ((double)n >= share * (double)all) return kvp_metric_latency_bounds[i];
    }
    return all == 0 ? 0 : UINT64_MAX;
}
