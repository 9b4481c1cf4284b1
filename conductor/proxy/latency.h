/* SPDX-License-Identifier: Apache-2.0
 * How long the servers of a proxy take: histograms of the time to the first byte of an answer, which for a stream is
 * the time to first token, and of the time to its end. */
#ifndef KVP_CONDUCTOR_PROXY_LATENCY_H
#define KVP_CONDUCTOR_PROXY_LATENCY_H

#include "common/buf.h"
#include "common/jsonw.h"
#include "common/metrics.h"

typedef struct {
    kvp_histogram_t first, whole; /* in ns */
} kvp_latency_t;

/* kvp_latency_create returns NULL without memory. kvp_latency_add counts an answer: first_ns and whole_ns are the times
 * from the client's request; a NULL latency is ignored. Any thread. */
kvp_latency_t *kvp_latency_create(void);
void kvp_latency_add(kvp_latency_t *latency, uint64_t first_ns, uint64_t whole_ns);

/* kvp_latency_bounds writes the member "bounds_ms": the upper bounds of the buckets. kvp_latency_counts writes the
 * members "first_byte_counts" and "answer_counts", with one more count for the times above all bounds. */
void kvp_latency_bounds(kvp_jsonw_t *w);
void kvp_latency_counts(const kvp_latency_t *latency, kvp_jsonw_t *w);

/* kvp_latency_head begins a metric for Prometheus: the time until the whole answer if is_whole, else until its first
 * byte. kvp_latency_write appends one server's values. */
void kvp_latency_head(bool is_whole, kvp_buf_t *out);
void kvp_latency_write(const kvp_latency_t *latency, bool is_whole, const char *url, const char *role, kvp_buf_t *out);

#endif
