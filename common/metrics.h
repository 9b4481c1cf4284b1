/* SPDX-License-Identifier: Apache-2.0
 * Counters, gauges and histograms, and their text for Prometheus (exposition format 0.0.4). Any thread may add
 * values, without a lock. Registering and rendering take the registry's lock. */
#ifndef KVP_COMMON_METRICS_H
#define KVP_COMMON_METRICS_H

#include "common/buf.h"

#include <stdatomic.h>

#define KVP_METRICS_SERIES_MAX 65536u
#define KVP_METRIC_BOUNDS_MAX 40u

typedef struct kvp_metrics kvp_metrics_t;

typedef struct {
    size_t bound_count;
    const uint64_t *bounds; /* upper bounds of the buckets, inclusive, in ascending order */
    _Atomic uint64_t sum;
    /* counts of values by bucket; the last one: above all bounds */
    _Atomic uint64_t buckets[KVP_METRIC_BOUNDS_MAX + 1];
} kvp_histogram_t;

/* Returns the value of a gauge or counter. It is called when the metrics are rendered, on the rendering thread. */
typedef double (*kvp_gauge_fn)(void *arg);

static inline void
kvp_histogram_add(kvp_histogram_t *histogram, uint64_t value)
{
    size_t i = 0;

    while (i < histogram->bound_count && value > histogram->bounds[i])
        i++;
    atomic_fetch_add_explicit(&histogram->buckets[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum, value, memory_order_relaxed);
}

/* kvp_metrics_escape copies a label's value with backslash, quote and newline escaped, as the exposition format asks.
 * It cuts the value to cap, and returns `to`. */
static inline const char *
kvp_metrics_escape(const char *text, char *to, size_t cap)
{
    size_t n = 0;

    for (; *text != '\0' && n + 2 < cap; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n') to[n++] = '\\';
        to[n++] = *text == '\n' ? 'n' : *text;
    }
    to[n] = '\0';
    return to;
}

/* kvp_metrics_create returns NULL without memory. kvp_metrics_destroy frees all registered metrics. */
kvp_metrics_t *kvp_metrics_create(void);
void kvp_metrics_destroy(kvp_metrics_t *metrics);

/* Registration of metrics. name is a Prometheus name (a counter's name ends in _total). labels is a fixed text
 * such as `op="get",tier="ssd"`, or NULL. help is one line, equal for all series of a name. All texts are copied.
 * A registered metric lives as long as the registry. INVALID: the format does not allow the name or the labels, or
 * the name has another type or help; ALREADY: name and labels are registered; LIMIT; NOMEM. The two _fn functions
 * register metrics whose value is the result of fn(arg). */
kvp_err_t kvp_metrics_gauge_fn(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help,
                               kvp_gauge_fn fn, void *arg) KVP_MUST_USE;
kvp_err_t kvp_metrics_counter_fn(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help,
                                 kvp_gauge_fn fn, void *arg) KVP_MUST_USE;
/* kvp_metrics_histogram registers a histogram. bounds are borrowed for the registry's life; usually they are a
 * static array. kvp_metrics_histogram_at registers a histogram of the caller, borrowed for the registry's life. Values
 * are added in the unit of the bounds, and rendered multiplied by scale: with 1e-9, nanoseconds become seconds, which
 * the metric's name should then contain. */
kvp_err_t kvp_metrics_histogram(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help,
                                const uint64_t *bounds, size_t bound_count, double scale,
                                kvp_histogram_t **histogram_out) KVP_MUST_USE;
kvp_err_t kvp_metrics_histogram_at(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help,
                                   double scale, kvp_histogram_t *histogram) KVP_MUST_USE;

/* kvp_histogram_quantile returns the smallest bound that at least the share q (0..1) of all values does not exceed:
 * the last bound for larger values, 0 without values. *count_out is the number of values. */
uint64_t kvp_histogram_quantile(const kvp_histogram_t *histogram, double q, uint64_t *count_out);

/* Bounds of latency histograms in nanoseconds, from 1 us to 10 s. The second array has fewer bounds, for daemons that
 * run on many hosts. */
#define KVP_METRIC_LATENCY_BOUNDS 22u
extern const uint64_t kvp_metric_latency_bounds[KVP_METRIC_LATENCY_BOUNDS];
#define KVP_METRIC_COARSE_BOUNDS 10u
extern const uint64_t kvp_metric_coarse_bounds[KVP_METRIC_COARSE_BOUNDS];

/* kvp_metrics_render appends the text of all metrics. The series of a family are adjacent, in order of registration. */
void kvp_metrics_render(kvp_metrics_t *metrics, kvp_buf_t *text);

#endif
