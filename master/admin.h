/* SPDX-License-Identifier: Apache-2.0
 * The master's admin port: /health, /metrics, the leader, and a page at / with its documents /overview and /explain.
 * Handlers run in the HTTP server's thread and ask the loop's thread for statistics; they change nothing. */
#ifndef KVP_MASTER_ADMIN_H
#define KVP_MASTER_ADMIN_H

#include "common/daemon/http.h"
#include "common/daemon/loop.h"
#include "common/metrics.h"
#include "master/changes.h"
#include "master/core/api/master.h"
#include "master/ha/ha.h"
#include "master/history.h"
#include "master/labelled.h"
#include "master/shell/server.h"

typedef struct {
    kvp_loop_t *loop; /* borrowed, as are server and ha; all three outlive the HTTP server */
    kvp_server_t *server;
    kvp_ha_t *ha; /* NULL = a single master */
    kvp_metrics_t *metrics; /* owned, with all registered metrics */
    kvp_times_t times; /* for kvp_server_start */
    uint64_t start_ns; /* start time of the master, CLOCK_BOOTTIME */
    kvp_master_stats_t core; /* the core's statistics; the loop's thread copies all fields from here on for HTTP */
    kvp_server_stats_t shell;
    kvp_eventpub_t *events; /* NULL = no events are published */
    kvp_publisher_stats_t published;
    kvp_log_stats_t log;
    kvp_ha_status_t status; /* used with several masters */
    uint64_t lag_bytes, lag_records, lag_ms, insync, elections, leads, etcd_requests, etcd_failures, etcd_silent_ms;
    char log_failure[KVP_LOG_WHY_BYTES]; /* why the log cannot be written; "" = it can be */
    bool has_log;
    kvp_master_ident_t ident;
    const char *protection; /* text for people: how the master's ports are protected; borrowed */
    kvp_master_wrong_t wrong;
    kvp_labelled_t labelled; /* figures of nodes and tenants */
    kvp_sample_t now; /* for /overview */
    uint64_t degraded; /* number of reasons in `wrong` */
    uint64_t uptime_ms;
    uint64_t term;
    /* The document of /overview, which the HTTP server's thread reuses for a second; made_ns 0 = there is none yet. */
    kvp_buf_t overview;
    uint64_t made_ns;
    char conductor[KVP_HOSTPORT_TEXT_MAX]; /* address of the conductor's page; "" = unknown; set before the start */
    pthread_mutex_t lock; /* guards history and changes */
    kvp_history_t history;
    kvp_changes_t changes;
    /* timer that takes samples and records changes, in the loop's thread; has_sampling: the timer was started */
    uv_timer_t sampling;
    bool has_sampling;
} kvp_admin_t;

/* kvp_admin_init registers the metrics. kvp_admin_route adds the URL paths, after loop and server were made; ha is NULL
 * for a single master, events NULL if none are published. NOMEM. kvp_admin_fini is called after the HTTP server has
 * stopped; legal on a zeroed admin.
 *
 * kvp_admin_sample begins to record the history, and kvp_admin_stop ends that: both in the loop's thread, or before the
 * loop runs. kvp_admin_stop takes a turn of uv_run, and may be repeated. */
kvp_err_t kvp_admin_init(kvp_admin_t *admin) KVP_MUST_USE;
kvp_err_t kvp_admin_route(kvp_admin_t *admin, kvp_http_t *http, kvp_loop_t *loop, kvp_server_t *server, kvp_ha_t *ha,
                          kvp_eventpub_t *events) KVP_MUST_USE;
kvp_err_t kvp_admin_sample(kvp_admin_t *admin, uv_loop_t *uv) KVP_MUST_USE;
void kvp_admin_stop(kvp_admin_t *admin);
void kvp_admin_fini(kvp_admin_t *admin);

#endif
