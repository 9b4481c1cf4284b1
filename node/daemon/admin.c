/* SPDX-License-Identifier: Apache-2.0
 * The node's figures over HTTP. Each request gets a fresh copy of kvp_node_info. */
#include "node/daemon/admin.h"

#include "common/process.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    const char *help;
    size_t offset;
    bool is_gauge;
} figures[] = {
    {"kvpool_node_size_bytes", "payload bytes of the segment", offsetof(kvp_node_info_t, size_bytes), true},
    {"kvpool_node_populated_bytes", "of these, populated in the background", offsetof(kvp_node_info_t, populated_bytes),
     true},
    {"kvpool_node_to_register_bytes", "payload bytes to be registered with RDMA devices; 0 = no device serves here",
     offsetof(kvp_node_info_t, to_register_bytes), true},
    {"kvpool_node_registered_bytes", "of these, registered", offsetof(kvp_node_info_t, registered_bytes), true},
    {"kvpool_node_unregistered_bytes", "of these, not registered", offsetof(kvp_node_info_t, unregistered_bytes), true},
    {"kvpool_node_attached_clients", "control connections of clients", offsetof(kvp_node_info_t, attached_clients),
     true},
    {"kvpool_node_quarantined_extents", "retired extents that a writer might still touch",
     offsetof(kvp_node_info_t, quarantined), true},
    {"kvpool_node_requests_total", "requests of clients over control connections", offsetof(kvp_node_info_t, requests),
     false},
    {"kvpool_node_retires_total", "extents that the master asked to retire", offsetof(kvp_node_info_t, retires), false},
    {"kvpool_node_freed_extents_total", "retired extents told free", offsetof(kvp_node_info_t, freed), false},
    {"kvpool_node_fences_total", "clients fenced", offsetof(kvp_node_info_t, fences), false},
    {"kvpool_node_attaches_refused_total", "connections and attachments refused",
     offsetof(kvp_node_info_t, attaches_refused), false},
    {"kvpool_node_protocol_errors_total", "connections closed for a breach of the protocol",
     offsetof(kvp_node_info_t, protocol_errors), false},
    {"kvpool_node_remounts_total", "times that the segment was mounted again", offsetof(kvp_node_info_t, remounts),
     false},
    {"kvpool_node_kept", "1 = a keeper has all of the memory, for the node's next process",
     offsetof(kvp_node_info_t, is_kept), true},
    {"kvpool_node_adopted_objects", "objects in memory adopted from a keeper at the start",
     offsetof(kvp_node_info_t, adopted_objects), true},
};

_Static_assert(KVP_ARRAY_LEN(figures) <= KVP_ARRAY_LEN(((kvp_node_admin_t *)0)->figures), "room for all figures");

static double
read_u64(void *arg)
{
    return (double)*(const uint64_t *)arg;
}

static double
read_bool(void *arg)
{
    return *(const bool *)arg ? 1 : 0;
}

static double
read_u32(void *arg)
{
    return (double)*(const uint32_t *)arg;
}

static void
copy_figures(kvp_node_admin_t *admin)
{
    kvp_node_info(admin->node, &admin->info);
    for (size_t i = 0; i < KVP_ARRAY_LEN(figures); i++)
        memcpy(&admin->figures[i], (const uint8_t *)&admin->info + figures[i].offset, sizeof admin->figures[i]);
}

static void
on_health(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_node_admin_t *admin = arg;
    const kvp_node_info_t *info = &admin->info;
    /* The status is 200 even if the node is not mounted: the cause may be the master, and a supervisor must not kill
     * the node (and lose its memory) for it. */
    kvp_jsonw_t answer = kvp_http_json(response, 200);
    bool is_tier_ill;

    (void)request;
    copy_figures(admin);
    is_tier_ill = info->tier.devices_stalled > 0 || info->tier.devices_failed > 0;
    kvp_jsonw_open(&answer, NULL, '{');
    kvp_jsonw_text(&answer, "status", !info->is_mounted ? "not mounted" : is_tier_ill ? "degraded" : "ok");
    if (info->is_mounted && is_tier_ill)
        kvp_jsonw_text(&answer, "why",
                       info->tier.devices_stalled > 0 ? "a device of the SSD tier does not answer (tier_stalled_dir)"
                                                      : "a device of the SSD tier fails (tier_failed_dir)");
    kvp_jsonw_text(&answer, "version", KVP_RELEASE);
    kvp_jsonw_text(&answer, "protection", info->protection);
    kvp_jsonw_text(&answer, "listen", info->addr);
    kvp_jsonw_text(&answer, "unix_path", info->unix_path);
    kvp_jsonw_bool(&answer, "is_mounted", info->is_mounted);
    kvp_jsonw_u64(&answer, "term", info->term);
    kvp_jsonw_u64(&answer, "size_bytes", info->size_bytes);
    kvp_jsonw_u64(&answer, "attached_clients", info->attached_clients);
    kvp_jsonw_bool(&answer, "is_kept", info->is_kept != 0);
    kvp_jsonw_u64(&answer, "keeper_pid", info->keeper_pid);
    kvp_jsonw_u64(&answer, "adopted_objects", info->adopted_objects);
    kvp_jsonw_text(&answer, "tier",
                   !info->has_tier                  ? "none"
                   : info->tier.devices_failed > 0  ? "failed"
                   : info->tier.devices_stalled > 0 ? "stalled"
                   : info->is_tier_mounted          ? "ok"
                                                    : "not mounted");
    kvp_jsonw_u64(&answer, "tier_size_bytes", info->tier.size_bytes);
    kvp_jsonw_u64(&answer, "tier_devices_failed", info->tier.devices_failed);
    kvp_jsonw_text(&answer, "tier_failed_dir", info->tier.failed_dir);
    kvp_jsonw_u64(&answer, "tier_devices_stalled", info->tier.devices_stalled);
    kvp_jsonw_text(&answer, "tier_stalled_dir", info->tier.stalled_dir);
    kvp_jsonw_close(&answer, '}');
}

static void
on_metrics(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_node_admin_t *admin = arg;

    (void)request;
    copy_figures(admin);
    kvp_http_type(response, "text/plain; version=0.0.4; charset=utf-8");
    kvp_metrics_render(admin->metrics, kvp_http_out(response));
}

/* Adds a figure of the tier. A counter and a gauge have different names, by the rules of Prometheus. */
static kvp_err_t
add_tier_figure(kvp_node_admin_t *admin, const char *gauge, const char *counter, const char *help, uint64_t *at)
{
    return strstr(help, "(gauge)") != NULL ? kvp_metrics_gauge_fn(admin->metrics, gauge, NULL, help, read_u64, at)
                                           : kvp_metrics_counter_fn(admin->metrics, counter, NULL, help, read_u64, at);
}

static kvp_err_t
add_figures(kvp_node_admin_t *admin)
{
    kvp_err_t err = kvp_metrics_gauge_fn(admin->metrics, "kvpool_node_mounted", NULL, "1 = the master has the segment",
                                         read_bool, &admin->info.is_mounted);

    if (err == KVP_OK)
        err = kvp_metrics_gauge_fn(admin->metrics, "kvpool_node_term", NULL, "highest term of a master seen", read_u32,
                                   &admin->info.term);
    for (size_t i = 0; i < KVP_ARRAY_LEN(figures) && err == KVP_OK; i++)
        err = figures[i].is_gauge ? kvp_metrics_gauge_fn(admin->metrics, figures[i].name, NULL, figures[i].help,
                                                         read_u64, &admin->figures[i])
                                  : kvp_metrics_counter_fn(admin->metrics, figures[i].name, NULL, figures[i].help,
                                                           read_u64, &admin->figures[i]);
#define FIGURE(field, help)                                                                                            \
    if (err == KVP_OK)                                                                                                 \
        err = add_tier_figure(admin, "kvpool_node_tier_" #field, "kvpool_node_tier_" #field "_total", help,            \
                              &admin->info.tier.field);
    KVP_TIER_STATS(FIGURE)
#undef FIGURE
    return err;
}

static double
read_atomic(void *arg)
{
    return (double)atomic_load_explicit((const _Atomic uint64_t *)arg, memory_order_relaxed);
}

static kvp_err_t
add_times(kvp_node_admin_t *admin)
{
    static const char *const works[] = {
#define LABEL(name) "call=\"" #name "\"",
        KVP_NODE_WORKS(LABEL)
#undef LABEL
    };
    static const char reads[] = "transport=\"tcp\",op=\"read\"", writes[] = "transport=\"tcp\",op=\"write\"";
    static const char served[] = "requests of clients for data, until the end of the answer";
    static const char bytes[] = "bytes that clients read and wrote by these requests";
    kvp_node_times_t *times = kvp_node_times(admin->node);
    kvp_metrics_t *m = admin->metrics;
    kvp_err_t err = KVP_OK;

    for (size_t i = 0; i < KVP_NODE_WORKS_N && err == KVP_OK; i++)
        err = kvp_metrics_histogram_at(m, "kvpool_node_call_seconds", works[i],
                                       "work for one request of a client, or one order of the master", 1e-9,
                                       &times->works[i]);
    if (err == KVP_OK)
        err = kvp_metrics_histogram_at(m, "kvpool_node_served_seconds", reads, served, 1e-9, &times->served.read_ns);
    if (err == KVP_OK)
        err = kvp_metrics_histogram_at(m, "kvpool_node_served_seconds", writes, served, 1e-9, &times->served.write_ns);
    if (err == KVP_OK)
        err = kvp_metrics_counter_fn(m, "kvpool_node_served_bytes_total", reads, bytes, read_atomic,
                                     &times->served.read_bytes);
    if (err == KVP_OK)
        err = kvp_metrics_counter_fn(m, "kvpool_node_served_bytes_total", writes, bytes, read_atomic,
                                     &times->served.written_bytes);
    return err;
}

kvp_err_t
kvp_node_admin_init(kvp_node_admin_t *admin, kvp_http_t *http, kvp_node_t *node)
{
    kvp_err_t err;

    memset(admin, 0, sizeof *admin);
    admin->node = node;
    admin->metrics = kvp_metrics_create();
    if (admin->metrics == NULL) return KVP_NOMEM;
    err = kvp_process_add(admin->metrics);
    if (err == KVP_OK) err = add_figures(admin);
    if (err == KVP_OK) err = add_times(admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/health", on_health, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/metrics", on_metrics, admin);
    return err;
}

void
kvp_node_admin_fini(kvp_node_admin_t *admin)
{
    kvp_metrics_destroy(admin->metrics);
    admin->metrics = NULL;
}
