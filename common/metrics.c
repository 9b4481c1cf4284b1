/* SPDX-License-Identifier: Apache-2.0
 * The registry of metrics: families (a name, its type and help) with their series. Families and series are only
 * added, never removed. So adding a value to a histogram needs no lock, and a histogram needs no reference count. */
#include "common/metrics.h"

#include "common/list.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    TYPE_COUNTER,
    TYPE_GAUGE,
    TYPE_HISTOGRAM,
} metric_type_t;

static const char *const type_names[] = {"counter", "gauge", "histogram"};

typedef struct {
    kvp_list_t link;
    char *name; /* name of the metric; name and help are owned */
    char *help;
    metric_type_t type;
    kvp_list_t series;
} family_t;

typedef struct {
    kvp_list_t link;
    char *labels; /* labels as text; owned; "" = none */
    kvp_gauge_fn fn; /* function that returns the value; NULL = the series is a histogram */
    void *fn_arg;
    double scale;
    kvp_histogram_t own; /* the histogram of kvp_metrics_histogram */
    kvp_histogram_t *histogram; /* a borrowed histogram; NULL = own */
} series_t;

struct kvp_metrics {
    pthread_mutex_t lock;
    kvp_list_t families; /* list of families; the lock guards it and all fields below */
    size_t series_count;
};

#define MS 1000000ull
#define US 1000ull
const uint64_t kvp_metric_latency_bounds[KVP_METRIC_LATENCY_BOUNDS] = {
    1 * US, 2 * US,  5 * US,  10 * US, 20 * US,  50 * US,  100 * US, 200 * US,  500 * US,  1 * MS,    2 * MS,
    5 * MS, 10 * MS, 20 * MS, 50 * MS, 100 * MS, 200 * MS, 500 * MS, 1000 * MS, 2000 * MS, 5000 * MS, 10000 * MS,
};
const uint64_t kvp_metric_coarse_bounds[KVP_METRIC_COARSE_BOUNDS] = {
    10 * US, 50 * US, 200 * US, 1 * MS, 5 * MS, 20 * MS, 100 * MS, 500 * MS, 2000 * MS, 10000 * MS,
};

static bool
is_name_char(char c, bool is_first)
{
    bool is_alpha = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    return is_alpha || (!is_first && c >= '0' && c <= '9');
}

static size_t
name_len(const char *text)
{
    size_t n = 0;
    while (is_name_char(text[n], n == 0))
        n++;
    return n;
}

static bool
is_metric_name(const char *name, metric_type_t type)
{
    static const char total[] = "_total";
    size_t len = strlen(name);
    if (len == 0 || name_len(name) != len) return false;
    bool is_total = len > sizeof(total) - 1 && strcmp(name + len - (sizeof(total) - 1), total) == 0;
    return is_total == (type == TYPE_COUNTER);
}

/* is_labels returns whether the text is name="value"[,name="value"]* with escaped values, or "". */
static bool
is_labels(const char *at)
{
    if (*at == '\0') return true;
    for (;;) {
        size_t n = name_len(at);
        if (n == 0 || (n == 2 && strncmp(at, "le", 2) == 0) || strncmp(at + n, "=\"", 2) != 0) return false;
        for (at += n + 2; *at != '"'; at++) {
            if (*at == '\0' || *at == '\n') return false;
            if (*at == '\\' && strchr("\\\"n", *++at) == NULL) return false;
            if (*at == '\0') return false;
        }
        at++;
        if (*at == '\0') return true;
        if (*at++ != ',') return false;
    }
}

static void
append_text(kvp_buf_t *to, const char *text)
{
    kvp_buf_append(to, text, strlen(text));
}

static KVP_PRINTF(2, 3) void append_fmt(kvp_buf_t *to, const char *fmt, ...)
{
    char text[128];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n > 0) kvp_buf_append(to, text, kvp_min_u64((uint64_t)n, sizeof(text) - 1));
}

static void
append_double(kvp_buf_t *to, double value)
{
    if (isnan(value)) {
        append_text(to, "NaN");
    } else if (isinf(value)) {
        append_text(to, value > 0 ? "+Inf" : "-Inf");
    } else {
        append_fmt(to, "%.15g", value);
    }
}

static void
append_escaped(kvp_buf_t *to, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            append_text(to, "\\n");
        } else {
            if (*text == '\\') kvp_buf_append(to, "\\", 1);
            kvp_buf_append(to, text, 1);
        }
    }
}

kvp_metrics_t *
kvp_metrics_create(void)
{
    kvp_metrics_t *metrics = calloc(1, sizeof(*metrics));
    if (metrics == NULL) return NULL;
    pthread_mutex_init(&metrics->lock, NULL);
    kvp_list_init(&metrics->families);
    return metrics;
}

static void
series_destroy(series_t *series)
{
    if (series == NULL) return;
    free(series->labels);
    free(series);
}

static void
family_destroy(family_t *family)
{
    if (family == NULL) return;
    kvp_list_foreach_safe (pos, tmp, &family->series)
        series_destroy(kvp_list_entry(pos, series_t, link));
    free(family->name);
    free(family->help);
    free(family);
}

void
kvp_metrics_destroy(kvp_metrics_t *metrics)
{
    if (metrics == NULL) return;
    kvp_list_foreach_safe (pos, tmp, &metrics->families)
        family_destroy(kvp_list_entry(pos, family_t, link));
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

static family_t *
find_family(kvp_metrics_t *metrics, const char *name)
{
    kvp_list_foreach (pos, &metrics->families) {
        family_t *family = kvp_list_entry(pos, family_t, link);
        if (strcmp(family->name, name) == 0) return family;
    }
    return NULL;
}

static family_t *
family_create(const char *name, metric_type_t type, const char *help)
{
    family_t *family = calloc(1, sizeof(*family));
    if (family == NULL) return NULL;
    kvp_list_init(&family->series);
    family->type = type;
    family->name = strdup(name);
    family->help = strdup(help);
    if (family->name == NULL || family->help == NULL) goto fail;
    return family;
fail:
    family_destroy(family);
    return NULL;
}

static bool
has_series(const family_t *family, const char *labels)
{
    kvp_list_foreach (pos, &family->series) {
        if (strcmp(kvp_list_entry(pos, series_t, link)->labels, labels) == 0) return true;
    }
    return false;
}

static kvp_err_t
add_locked(kvp_metrics_t *metrics, const char *name, metric_type_t type, const char *help, series_t *series)
{
    if (metrics->series_count == KVP_METRICS_SERIES_MAX) return KVP_LIMIT;
    family_t *family = find_family(metrics, name);
    if (family == NULL) {
        family = family_create(name, type, help);
        if (family == NULL) return KVP_NOMEM;
        kvp_list_add_tail(&metrics->families, &family->link);
    } else if (family->type != type || strcmp(family->help, help) != 0) {
        return KVP_INVALID;
    } else if (has_series(family, series->labels)) {
        return KVP_ALREADY;
    }
    kvp_list_add_tail(&family->series, &series->link);
    metrics->series_count++;
    return KVP_OK;
}

/* add_series makes a series from the template `like` and adds it to its family. */
static kvp_err_t
add_series(kvp_metrics_t *metrics, const char *name, metric_type_t type, const char *labels, const char *help,
           const series_t *like, series_t **series_out)
{
    if (labels == NULL) labels = "";
    if (!is_metric_name(name, type) || !is_labels(labels)) return KVP_INVALID;
    series_t *series = malloc(sizeof(*series));
    if (series == NULL) return KVP_NOMEM;
    memcpy(series, like, sizeof(*series));
    series->labels = strdup(labels);
    kvp_err_t err = KVP_NOMEM;
    if (series->labels == NULL) goto fail;

    pthread_mutex_lock(&metrics->lock);
    err = add_locked(metrics, name, type, help, series);
    pthread_mutex_unlock(&metrics->lock);
    if (err != KVP_OK) goto fail;
    *series_out = series;
    return KVP_OK;
fail:
    series_destroy(series);
    return err;
}

kvp_err_t
kvp_metrics_gauge_fn(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help, kvp_gauge_fn fn,
                     void *arg)
{
    series_t *series;
    return add_series(metrics, name, TYPE_GAUGE, labels, help, &(series_t){.fn = fn, .fn_arg = arg}, &series);
}

kvp_err_t
kvp_metrics_counter_fn(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help, kvp_gauge_fn fn,
                       void *arg)
{
    series_t *series;
    return add_series(metrics, name, TYPE_COUNTER, labels, help, &(series_t){.fn = fn, .fn_arg = arg}, &series);
}

kvp_err_t
kvp_metrics_histogram(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help,
                      const uint64_t *bounds, size_t bound_count, double scale, kvp_histogram_t **histogram_out)
{
    if (bound_count == 0 || bound_count > KVP_METRIC_BOUNDS_MAX) return KVP_INVALID;
    for (size_t i = 1; i < bound_count; i++) {
        if (bounds[i] <= bounds[i - 1]) return KVP_INVALID;
    }
    series_t like = {.scale = scale};
    like.own.bounds = bounds;
    like.own.bound_count = bound_count;
    series_t *series;
    kvp_err_t err = add_series(metrics, name, TYPE_HISTOGRAM, labels, help, &like, &series);
    if (err == KVP_OK) *histogram_out = &series->own;
    return err;
}

kvp_err_t
kvp_metrics_histogram_at(kvp_metrics_t *metrics, const char *name, const char *labels, const char *help, double scale,
                         kvp_histogram_t *histogram)
{
    series_t *series;
    return add_series(metrics, name, TYPE_HISTOGRAM, labels, help, &(series_t){.scale = scale, .histogram = histogram},
                      &series);
}

uint64_t
kvp_histogram_quantile(const kvp_histogram_t *histogram, double q, uint64_t *count_out)
{
    uint64_t counts[KVP_METRIC_BOUNDS_MAX + 1], count = 0, seen = 0;
    for (size_t i = 0; i <= histogram->bound_count; i++)
        count += counts[i] = atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
    *count_out = count;
    if (count == 0) return 0;
    for (size_t i = 0; i < histogram->bound_count; i++) {
        seen += counts[i];
        if ((double)seen >= q * (double)count) return histogram->bounds[i];
    }
    return histogram->bounds[histogram->bound_count - 1];
}

static void
begin_sample(kvp_buf_t *text, const family_t *family, const char *suffix, const char *labels)
{
    append_text(text, family->name);
    append_text(text, suffix);
    if (labels[0] != '\0') {
        append_text(text, "{");
        append_text(text, labels);
        append_text(text, "}");
    }
    append_text(text, " ");
}

static void
render_bucket(kvp_buf_t *text, const family_t *family, const series_t *series, double bound, uint64_t count)
{
    append_text(text, family->name);
    append_text(text, "_bucket{");
    append_text(text, series->labels);
    append_text(text, series->labels[0] != '\0' ? ",le=\"" : "le=\"");
    append_double(text, bound);
    append_fmt(text, "\"} %llu\n", (unsigned long long)count);
}

/* Writes a histogram. The count is the sum of the buckets that are read here, so that the +Inf bucket equals the
 * count even while other threads add values. */
static void
render_histogram(kvp_buf_t *text, const family_t *family, series_t *series)
{
    kvp_histogram_t *histogram = series->histogram != NULL ? series->histogram : &series->own;
    uint64_t sum = atomic_load_explicit(&histogram->sum, memory_order_relaxed);
    uint64_t count = 0;
    for (size_t i = 0; i <= histogram->bound_count; i++) {
        count += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
        double bound = i < histogram->bound_count ? (double)histogram->bounds[i] * series->scale : INFINITY;
        render_bucket(text, family, series, bound, count);
    }
    begin_sample(text, family, "_sum", series->labels);
    append_double(text, (double)sum * series->scale);
    append_text(text, "\n");
    begin_sample(text, family, "_count", series->labels);
    append_fmt(text, "%llu\n", (unsigned long long)count);
}

static void
render_series(kvp_buf_t *text, const family_t *family, series_t *series)
{
    if (family->type == TYPE_HISTOGRAM) {
        render_histogram(text, family, series);
        return;
    }
    begin_sample(text, family, "", series->labels);
    append_double(text, series->fn(series->fn_arg));
    append_text(text, "\n");
}

void
kvp_metrics_render(kvp_metrics_t *metrics, kvp_buf_t *text)
{
    pthread_mutex_lock(&metrics->lock);
    kvp_list_foreach (pos, &metrics->families) {
        const family_t *family = kvp_list_entry(pos, family_t, link);
        append_text(text, "# HELP ");
        append_text(text, family->name);
        append_text(text, " ");
        append_escaped(text, family->help);
        append_text(text, "\n# TYPE ");
        append_text(text, family->name);
        append_fmt(text, " %s\n", type_names[family->type]);
        kvp_list_foreach (at, &family->series)
            render_series(text, family, kvp_list_entry(at, series_t, link));
    }
    pthread_mutex_unlock(&metrics->lock);
}
