/* SPDX-License-Identifier: Apache-2.0
 * Counters, gauges and histograms, and their text for Prometheus (exposition format 0.0.4). Adding
 * takes no lock and may be done from any thread; registering and rendering take the registry's. */
#ifndef KVP_COMMON_DAEMON_METRICS_H
#define KVP_COMMON_DAEMON_METRICS_H

#include "common/buf.h"

#include <stdatomic.h>

#define KVP_METRICS_SERIES_MAX 65536u
#define KVP_METRIC_BOUNDS_MAX 40u

typedef struct kvp_metrics kvp_metrics_t;

typedef struct {
    size_t bound_count;
    const uint64_t *bounds; /* ascending, inclusive upper bounds */
    _Atomic uint64_t sum;
    _Atomic uint64_t buckets[KVP_METRIC_BOUNDS_MAX + 1]; /* the last bucket counts values above all bounds */
} kvp_histogram_t;

/* Read when the metrics are rendered, on the thread that renders. */
typedef double (*kvp_gauge_fn)(void *arg);

void kvp_histogram_add(kvp_histogram_t *histogram, uint64_t value);

/* NULL on no memory. destroy frees everything that was registered. */
kvp_metrics_t *kvp_metrics_create(void);
void kvp_metrics_destroy(kvp_metrics_t *metrics);

/* Registration. name is a Prometheus name (a counter's ends in _total). labels is a fixed text such
 * as `op="get",tier="ssd"`, or NULL. help is one line, shared by every series of a name. All texts
 * are copied. The returned metric lives as long as the registry. INVALID for a name or labels that
 * the format does not allow, or for a name registered with another type or help; ALREADY for the
 * same name and labels; LIMIT; NOMEM. The _fn kinds render the result of fn(arg). */
kvp_err_t kvp_metrics_gauge_fn(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help,
                               kvp_gauge_fn fn, void *arg) KVP_MUST_USE;
kvp_err_t kvp_metrics_counter_fn(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help,
                                 kvp_gauge_fn fn, void *arg) KVP_MUST_USE;
/* bounds are borrowed for the registry's life (a static array as a rule). Values are added in the
 * unit of the bounds and rendered times scale: nanoseconds with 1e-9 become the seconds that the
 * name should promise. */
kvp_err_t kvp_metrics_histogram(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help,
                                const uint64_t *bounds, size_t bound_count, double scale,
                                kvp_histogram_t **histogram_out) KVP_MUST_USE;

/* 10 us to 10 s, in nanoseconds. */
#define KVP_METRIC_LATENCY_BOUNDS 19u
extern const uint64_t kvp_metric_latency_bounds[KVP_METRIC_LATENCY_BOUNDS];

/* kvp_metrics_render appends the text of all metrics; a family's series stand together, in order of registration. */
void kvp_metrics_render(kvp_metrics_t *metrics, kvp_buf_t *text);

#endif
