/* SPDX-License-Identifier: Apache-2.0
 * Writes the metrics of nodes and tenants. Names come from nodes and clients, so they are escaped. */
#include "master/labelled.h"

#include "common/metrics.h"

#include <stdio.h>
#include <string.h>

#define LABEL_MAX (2 * KVP_NAME_MAX + 1)
/* index of node_evictions_total in the tables of write_nodes; only memory has this metric, SSDs have not */
#define EVICTIONS 5u

void
kvp_labelled_copy(kvp_labelled_t *f, const kvp_master_t *master)
{
    f->nodes_n = kvp_master_nodes(master, f->nodes, KVP_LABELLED_NODES);
    f->tenants_n = kvp_master_tenants(master, f->tenants);
}

void
kvp_labelled_head(kvp_buf_t *out, const char *name, const char *help)
{
    char text[256];
    const size_t len = strlen(name);
    const bool is_counter = len > 6 && strcmp(name + len - 6, "_total") == 0;
    const int n = snprintf(text, sizeof text, "# HELP kvpool_master_%s %s\n# TYPE kvpool_master_%s %s\n", name, help,
                           name, is_counter ? "counter" : "gauge");

    kvp_buf_append(out, text, (size_t)n);
}

void
kvp_labelled_value(kvp_buf_t *out, const char *name, const char *labels, double value)
{
    char text[LABEL_MAX + 256];
    const int n = snprintf(text, sizeof text, "kvpool_master_%s{%s} %.15g\n", name, labels, value);

    kvp_buf_append(out, text, (size_t)n);
}

static double
node_value(const kvp_master_node_t *node, uint32_t which)
{
    const double values[] = {
        node->is_up,           node->is_drained,       (double)node->size_bytes, (double)node->used_bytes,
        (double)node->objects, (double)node->evictions};

    return values[which];
}

static void
write_nodes(const kvp_labelled_t *f, kvp_buf_t *out)
{
    static const char *const names[][2] = {{"node_up", "1 = the node is connected, and its segment accepts objects"},
                                           {"node_drained", "1 = the node drains, and no object is left"},
                                           {"node_size_bytes", "bytes of the segment"},
                                           {"node_used_bytes", "bytes of it in use"},
                                           {"node_objects", "objects in the segment"},
                                           {"node_evictions_total", "objects evicted from the node's memory"}};
    char labels[LABEL_MAX + 32], name[LABEL_MAX];

    for (uint32_t which = 0; which < KVP_ARRAY_LEN(names); which++) {
        kvp_labelled_head(out, names[which][0], names[which][1]);
        for (uint32_t i = 0; i < f->nodes_n; i++) {
            if (which == EVICTIONS && f->nodes[i].is_tier) continue;
            snprintf(labels, sizeof labels, "node=\"%s\",tier=\"%s\"",
                     kvp_metrics_escape(f->nodes[i].name, name, sizeof name), f->nodes[i].is_tier ? "ssd" : "memory");
            kvp_labelled_value(out, names[which][0], labels, node_value(&f->nodes[i], which));
        }
    }
}

static void
write_ratio(kvp_buf_t *out, const char *tenant, const char *window, const kvp_askcount_t *counts)
{
    char labels[LABEL_MAX + 64];

    if (counts->asked == 0) return; /* no data is no ratio of 0 */
    snprintf(labels, sizeof labels, "tenant=\"%s\",window=\"%s\"", tenant, window);
    kvp_labelled_value(out, "hit_ratio", labels, (double)counts->found / (double)counts->asked);
}

static void
write_tenants(const kvp_labelled_t *f, kvp_buf_t *out)
{
    static const char *const times[KVP_CURVE_TIMES] = {"0.25", "0.5", "1", "2", "4", "8"};
    static const char *const names[][2] = {
        {"tenant_objects", "committed objects of a tenant"},
        {"tenant_used_bytes", "bytes of a tenant's extents"},
        {"tenant_chunk_bytes", "memory of a tenant's chunks, which no other tenant can use"}};
    char labels[LABEL_MAX + 64], name[LABEL_MAX];

    for (uint32_t which = 0; which < KVP_ARRAY_LEN(names); which++) {
        kvp_labelled_head(out, names[which][0], names[which][1]);
        for (uint32_t i = 1; i < f->tenants_n; i++) {
            const uint64_t values[] = {f->tenants[i].objects, f->tenants[i].used_bytes, f->tenants[i].chunk_bytes};

            snprintf(labels, sizeof labels, "tenant=\"%s\"", kvp_metrics_escape(f->tenants[i].name, name, sizeof name));
            kvp_labelled_value(out, names[which][0], labels, (double)values[which]);
        }
    }
    kvp_labelled_head(out, "hit_ratio",
                      "share of the keys that clients asked for that was there; tenant empty = the pool");
    for (uint32_t i = 0; i < f->tenants_n; i++) {
        write_ratio(out, kvp_metrics_escape(f->tenants[i].name, name, sizeof name), "1m", &f->tenants[i].minute);
        write_ratio(out, kvp_metrics_escape(f->tenants[i].name, name, sizeof name), "1h", &f->tenants[i].hour);
    }
    kvp_labelled_head(
        out, "curve_hit_ratio",
        "estimated hit ratio with so many times the pool's memory, for this tenant alone; tenant empty = the pool");
    for (uint32_t i = 0; i < f->tenants_n; i++) {
        for (uint32_t k = 0; f->tenants[i].has_curve && k < KVP_CURVE_TIMES; k++) {
            snprintf(labels, sizeof labels, "tenant=\"%s\",times=\"%s\"",
                     kvp_metrics_escape(f->tenants[i].name, name, sizeof name), times[k]);
            kvp_labelled_value(out, "curve_hit_ratio", labels, f->tenants[i].curve[k]);
        }
    }
}

void
kvp_labelled_write(const kvp_labelled_t *f, kvp_buf_t *out)
{
    write_nodes(f, out);
    write_tenants(f, out);
}
