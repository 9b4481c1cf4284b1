/* SPDX-License-Identifier: Apache-2.0
 * A scrape copies the figures of core and shell in one call on the loop's thread and renders the copies: the loop's
 * thread never formats text, and a loop that does not answer within a second is reported as sick, not waited for.
 */
#include "master/admin.h"

#include "common/clock.h"

#include <stdio.h>
#include <string.h>

#define ANSWER_MS 1000
#define NAME_MAX_BYTES 96

static double
read_u64(void *arg)
{
    return (double)*(const uint64_t *)arg;
}

static bool
is_gauge(const char *help)
{
    return strstr(help, "(gauge)") != NULL;
}

/* add_figure registers kvpool_master_NAME, or kvpool_master_NAME_total for a counter. */
static kvp_err_t
add_figure(kvp_metrics_t *metrics, const char *name, const char *help, uint64_t *value)
{
    char full[NAME_MAX_BYTES];

    snprintf(full, sizeof(full), "kvpool_master_%s%s", name, is_gauge(help) ? "" : "_total");
    return is_gauge(help) ? kvp_metrics_gauge_fn(metrics, full, NULL, help, read_u64, value)
                          : kvp_metrics_counter_fn(metrics, full, NULL, help, read_u64, value);
}

kvp_err_t
kvp_admin_init(kvp_admin_t *admin)
{
    kvp_err_t err = KVP_NOMEM;

    memset(admin, 0, sizeof(*admin));
    admin->start_ns = kvp_boot_ns();
    admin->metrics = kvp_metrics_create();
    if (admin->metrics == NULL) goto fail;

    const struct {
        const char *name, *help;
        uint64_t *value;
    } figures[] = {{"term", "term of this master (gauge)", &admin->term},
                   {"uptime_ms", "time since the start, ms (gauge)", &admin->uptime_ms},
#define FIGURE(field, text) {#field, text, &admin->core.field},
                   KVP_MASTER_STATS(FIGURE)
#undef FIGURE
#define FIGURE(field, text) {#field, text, &admin->shell.field},
                       KVP_SERVER_STATS(FIGURE)
#undef FIGURE
#define FIGURE(field, text) {#field, text, &admin->log.field},
                           KVP_LOG_STATS(FIGURE)
#undef FIGURE
    };
    for (size_t i = 0; i < KVP_ARRAY_LEN(figures); i++) {
        err = add_figure(admin->metrics, figures[i].name, figures[i].help, figures[i].value);
        if (err != KVP_OK) goto fail;
    }
    const struct {
        const char *name, *help;
        kvp_histogram_t **to;
    } times[] = {
        {"kvpool_master_loop_turn_seconds", "turns of the core's loop, waiting left out", &admin->times.turns},
        {"kvpool_master_step_seconds", "steps of the core", &admin->times.steps},
        {"kvpool_master_step_run_seconds", "the same without the time in which the thread did not run",
         &admin->times.runs},
        {"kvpool_master_answer_seconds", "from a readable request to its answer", &admin->times.answers},
    };
    for (size_t i = 0; i < KVP_ARRAY_LEN(times); i++) {
        err = kvp_metrics_histogram(admin->metrics, times[i].name, NULL, times[i].help, kvp_metric_latency_bounds,
                                    KVP_METRIC_LATENCY_BOUNDS, 1e-9, times[i].to);
        if (err != KVP_OK) goto fail;
    }
    return KVP_OK;
fail:
    kvp_admin_fini(admin);
    return err;
}

void
kvp_admin_fini(kvp_admin_t *admin)
{
    kvp_metrics_destroy(admin->metrics);
    admin->metrics = NULL;
}

/* Runs on the loop's thread, while the HTTP thread waits. */
static void
copy_figures(void *arg)
{
    kvp_admin_t *admin = arg;

    kvp_master_stats(admin->master, &admin->core);
    kvp_server_stats(admin->server, &admin->shell);
    admin->has_log = kvp_server_log_stats(admin->server, &admin->log);
    kvp_master_ident(admin->master, &admin->ident);
    admin->term = admin->core.term;
    admin->uptime_ms = (kvp_boot_ns() - admin->start_ns) / KVP_NS_PER_MS;
}

/* scrape answers 503 itself where the loop does not answer. */
static bool
scrape(kvp_admin_t *admin, kvp_http_response_t *response)
{
    kvp_err_t err = kvp_loop_call(admin->loop, copy_figures, admin, ANSWER_MS);

    if (err == KVP_OK) return true;
    kvp_http_error(response, 503, "the master's loop does not answer: %s", kvp_err_name(err));
    return false;
}

static void
on_health(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_admin_t *admin = arg;

    (void)request;
    if (!scrape(admin, response)) return;
    kvp_jsonw_t answer = kvp_http_json(response, 200);
    kvp_jsonw_open(&answer, NULL, '{');
    kvp_jsonw_text(&answer, "status", "ok");
    kvp_jsonw_text(&answer, "version", KVP_RELEASE);
    kvp_jsonw_hex(&answer, "pool_id", admin->ident.pool_id, sizeof admin->ident.pool_id);
    kvp_jsonw_u64(&answer, "term", admin->term);
    kvp_jsonw_text(&answer, "log", !admin->has_log ? "none" : admin->log.log_failed ? "failed" : "ok");
    kvp_jsonw_u64(&answer, "uptime_ms", admin->uptime_ms);
    kvp_jsonw_u64(&answer, "segments", admin->core.segments);
    kvp_jsonw_u64(&answer, "objects", admin->core.objects);
    kvp_jsonw_close(&answer, '}');
}

static void
on_metrics(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_admin_t *admin = arg;

    (void)request;
    if (!scrape(admin, response)) return;
    kvp_http_type(response, "text/plain; version=0.0.4; charset=utf-8");
    kvp_metrics_render(admin->metrics, kvp_http_out(response));
}

static void
on_index(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    static const char text[] = "kvpool-master\n\n"
                               "/health   is the master alive and answering\n"
                               "/metrics  figures for Prometheus\n";

    (void)arg;
    (void)request;
    kvp_http_type(response, "text/plain; charset=utf-8");
    kvp_buf_append(kvp_http_out(response), text, sizeof(text) - 1);
}

kvp_err_t
kvp_admin_route(kvp_admin_t *admin, kvp_http_t *http, kvp_loop_t *loop, kvp_master_t *master, kvp_server_t *server)
{
    admin->loop = loop;
    admin->master = master;
    admin->server = server;
    kvp_err_t err = kvp_http_route(http, "GET", "/health", on_health, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/metrics", on_metrics, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/", on_index, admin);
    return err;
}
