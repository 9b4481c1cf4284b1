/* SPDX-License-Identifier: Apache-2.0
 * The master's last hour: its statistics every ten seconds, in about 0.6 MB. Pure functions; the caller serializes
 * their calls. Counters may fall, as after an election. */
#ifndef KVP_MASTER_HISTORY_H
#define KVP_MASTER_HISTORY_H

#include "common/metrics.h"
#include "master/core/base/conf.h"
#include "master/core/base/ratio.h"
#include "master/shell/times.h"

#define KVP_HISTORY_STEP_MS 10000u
#define KVP_HISTORY_SAMPLES 361u
#define KVP_HISTORY_TIMES (KVP_TIMED_CALLS + 1u) /* the timed calls, then the times from request to answer */

typedef struct {
    uint64_t at_ms;
    kvp_master_stats_t core;
    kvp_askcount_t minute; /* the keys that clients asked for in the last minute */
    uint32_t times[KVP_HISTORY_TIMES][KVP_METRIC_LATENCY_BOUNDS + 1]; /* buckets of the histograms, modulo 2^32 */
} kvp_sample_t;

typedef struct {
    kvp_sample_t samples[KVP_HISTORY_SAMPLES]; /* a ring */
    uint32_t n, next; /* number of samples; index of the next sample in the ring */
} kvp_history_t;

/* kvp_history_times copies the buckets of the histograms into a sample. */
void kvp_history_times(kvp_sample_t *sample, const kvp_times_t *times);

/* kvp_history_note copies a sample into the ring, in place of the oldest one if the ring is full. Samples come in order
 * of time. */
void kvp_history_note(kvp_history_t *history, const kvp_sample_t *sample);

/* kvp_history_get returns the i-th sample from the oldest on; i < n. kvp_history_before returns the newest sample of
 * the time at_ms or earlier; the oldest one if all are later; NULL without samples. Borrowed until the next note. */
const kvp_sample_t *kvp_history_get(const kvp_history_t *history, uint32_t i);
const kvp_sample_t *kvp_history_before(const kvp_history_t *history, uint64_t at_ms);

/* kvp_history_rise returns by how much a counter rose; 0 if it fell. kvp_history_count returns the number of calls
 * between two samples; which < KVP_HISTORY_TIMES. kvp_history_quantile returns the time in ns within which a share of
 * the calls ended (0 to 1), rounded up to a bound of the histogram; UINT64_MAX: longer than all bounds; 0: no calls. */
uint64_t kvp_history_rise(uint64_t from, uint64_t to);
uint64_t kvp_history_count(const kvp_sample_t *from, const kvp_sample_t *to, uint32_t which);
uint64_t kvp_history_quantile(const kvp_sample_t *from, const kvp_sample_t *to, uint32_t which, double share);

#endif
