/* SPDX-License-Identifier: Apache-2.0
 * Histograms of a server's answers. The common registry of metrics is not used, because servers come and go. */
#include "conductor/proxy/latency.h"

#include <stdio.h>
#include <stdlib.h>

#define MS 1000000ull
#define TEXT_MAX 1400u
#define URL_TEXT_MAX 1023u

static const uint64_t bounds[] = {10 * MS,   25 * MS,   50 * MS,    100 * MS,   250 * MS,   500 * MS,    1000 * MS,
                                  2500 * MS, 5000 * MS, 10000 * MS, 30000 * MS, 60000 * MS, 120000 * MS, 300000 * MS};

static const char *
name_of(bool is_whole)
{
    return is_whole ? "kvpool_proxy_answer_seconds" : "kvpool_proxy_first_byte_seconds";
}

kvp_latency_t *
kvp_latency_create(void)
{
    kvp_latency_t *latency = calloc(1, sizeof *latency);

    if (latency == NULL) return NULL;
    latency->first.bounds = latency->whole.bounds = bounds;
    latency->first.bound_count = latency->whole.bound_count = KVP_ARRAY_LEN(bounds);
    return latency;
}

void
kvp_latency_add(kvp_latency_t *latency, uint64_t first_ns, uint64_t whole_ns)
{
    if (latency == NULL) return;
    kvp_histogram_add(&latency->first, first_ns);
    kvp_histogram_add(&latency->whole, whole_ns);
}

void
kvp_latency_bounds(kvp_jsonw_t *w)
{
    kvp_jsonw_open(w, "bounds_ms", '[');
    for (size_t i = 0; i < KVP_ARRAY_LEN(bounds); i++)
        kvp_jsonw_u64(w, NULL, bounds[i] / MS);
    kvp_jsonw_close(w, ']');
}

static void
write_counts(kvp_jsonw_t *w, const char *name, const kvp_histogram_t *h)
{
    kvp_jsonw_open(w, name, '[');
    for (size_t i = 0; i <= KVP_ARRAY_LEN(bounds); i++)
        kvp_jsonw_u64(w, NULL, atomic_load(&h->buckets[i]));
    kvp_jsonw_close(w, ']');
}

void
kvp_latency_counts(const kvp_latency_t *latency, kvp_jsonw_t *w)
{
    write_counts(w, "first_byte_counts", &latency->first);
    write_counts(w, "answer_counts", &latency->whole);
}

void
kvp_latency_head(bool is_whole, kvp_buf_t *out)
{
    char text[256];
    const int n = snprintf(text, sizeof text, "# HELP %s %s\n# TYPE %s histogram\n", name_of(is_whole),
                           is_whole ? "from a request to the end of a server's answer"
                                    : "from a request to the first byte of a server's answer",
                           name_of(is_whole));

    kvp_buf_append(out, text, (size_t)n);
}

static void
write_line(kvp_buf_t *out, const char *name, const char *end, const char *labels, const char *le, double value)
{
    char text[TEXT_MAX];
    const int n = snprintf(text, sizeof text, "%s%s{%s%s} %.15g\n", name, end, labels, le, value);

    kvp_buf_append(out, text, (size_t)n);
}

void
kvp_latency_write(const kvp_latency_t *latency, bool is_whole, const char *url, const char *role, kvp_buf_t *out)
{
    const kvp_histogram_t *h = is_whole ? &latency->whole : &latency->first;
    char escaped[URL_TEXT_MAX + 1], labels[URL_TEXT_MAX + 64], le[32];
    uint64_t count = 0;

    snprintf(labels, sizeof labels, "server=\"%s\",role=\"%s\"", kvp_metrics_escape(url, escaped, sizeof escaped),
             role);
    for (size_t i = 0; i < KVP_ARRAY_LEN(bounds); i++) {
        count += atomic_load(&h->buckets[i]);
        snprintf(le, sizeof le, ",le=\"%g\"", (double)bounds[i] * 1e-9);
        write_line(out, name_of(is_whole), "_bucket", labels, le, (double)count);
    }
    count += atomic_load(&h->buckets[KVP_ARRAY_LEN(bounds)]);
    write_line(out, name_of(is_whole), "_bucket", labels, ",le=\"+Inf\"", (double)count);
    write_line(out, name_of(is_whole), "_sum", labels, "", (double)atomic_load(&h->sum) * 1e-9);
    write_line(out, name_of(is_whole), "_count", labels, "", (double)count);
}
