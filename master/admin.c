/* SPDX-License-Identifier: Apache-2.0
 * The admin port. A scrape copies the statistics of core and shell in one call in the loop's thread, and renders the
 * copies in the HTTP thread: the loop's thread never formats text, and a loop that does not answer within a second is
 * reported as stuck instead of waited for. The document of the page is made at most once a second, however many pages
 * are open. */
#include "master/admin.h"

#include "common/clock.h"
#include "common/daemon/page.h"
#include "common/process.h"
#include "master/overview.h"
#include "proto/explained.h"
#include "proto/pb.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define ANSWER_MS 1000
#define HEALTH_MS 700 /* limit of waiting for the loop, because a whole answer of /health must take less than 1 s */
#define NAME_MAX_BYTES 96
#define OVERVIEW_NS KVP_NS_PER_S /* life of the document of /overview */
/* the HTTP thread waits at most this long for the loop to copy the figures, so that open pages do not delay /health */
#define OVERVIEW_MS 300
#define SAMPLING_MS 1000 /* period of the timer that compares the state, and takes a sample if one is due */
#define EXPLAINED_MAX (1u << 20)
#define OVERVIEW_MAX (4u << 20)

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

static double
read_ns(void *arg)
{
    return read_u64(arg) * 1e-9;
}

static double
read_ms(void *arg)
{
    return read_u64(arg) * 1e-3;
}

/* add_figure registers the metric kvpool_master_NAME, or kvpool_master_NAME_total for a counter. A time, whose name
 * ends with its unit, becomes seconds: NAME_ns is kvpool_master_NAME_seconds. */
static kvp_err_t
add_figure(kvp_metrics_t *metrics, const char *name, const char *help, uint64_t *value)
{
    char full[NAME_MAX_BYTES];
    const size_t len = strlen(name);
    const bool is_ns = len > 3 && strcmp(name + len - 3, "_ns") == 0;
    const bool is_ms = len > 3 && strcmp(name + len - 3, "_ms") == 0;
    const kvp_gauge_fn read = is_ns ? read_ns : is_ms ? read_ms : read_u64;

    snprintf(full, sizeof(full), "kvpool_master_%.*s%s%s", (int)(is_ns || is_ms ? len - 3 : len), name,
             is_ns || is_ms ? "_seconds" : "", is_gauge(help) ? "" : "_total");
    return is_gauge(help) ? kvp_metrics_gauge_fn(metrics, full, NULL, help, read, value)
                          : kvp_metrics_counter_fn(metrics, full, NULL, help, read, value);
}

kvp_err_t
kvp_admin_init(kvp_admin_t *admin)
{
    kvp_err_t err = KVP_NOMEM;

    memset(admin, 0, sizeof(*admin));
    admin->start_ns = kvp_boot_ns();
    admin->protection = "";
    pthread_mutex_init(&admin->lock, NULL);
    kvp_buf_init(&admin->overview, OVERVIEW_MAX);
    admin->metrics = kvp_metrics_create();
    if (admin->metrics == NULL) goto fail;
    err = kvp_process_add(admin->metrics);
    if (err != KVP_OK) goto fail;

    const struct {
        const char *name, *help;
        uint64_t *value;
    } figures[] = {{"term", "term of this master (gauge)", &admin->term},
                   {"uptime_ms", "time since the start (gauge)", &admin->uptime_ms},
                   {"leads", "1 while this master leads (gauge)", &admin->leads},
                   {"degraded", "causes for which /health answers degraded (gauge)", &admin->degraded},
                   {"elections", "elections won by this process", &admin->elections},
                   {"insync_members", "masters in the in-sync set (gauge)", &admin->insync},
                   {"lag_bytes", "bytes of the leader's log that this standby lacks (gauge)", &admin->lag_bytes},
                   {"lag_records", "records of the leader's log that this standby lacks, by their mean length (gauge)",
                    &admin->lag_records},
                   {"lag_ms", "time for which this standby has lacked something (gauge)", &admin->lag_ms},
                   {"etcd_requests", "requests to etcd", &admin->etcd_requests},
                   {"etcd_failures", "of these, failed", &admin->etcd_failures},
                   {"etcd_silent_ms", "time for which no request to etcd has succeeded; 0 = etcd answers (gauge)",
                    &admin->etcd_silent_ms},
#define FIGURE(field, text) {#field, text, &admin->core.field},
                   KVP_MASTER_STATS(FIGURE)
#undef FIGURE
#define FIGURE(field, text) {#field, text, &admin->shell.field},
                       KVP_SERVER_STATS(FIGURE)
#undef FIGURE
#define FIGURE(field, text) {#field, text, &admin->log.field},
                           KVP_LOG_STATS(FIGURE)
#undef FIGURE
#define FIGURE(field, text) {#field, text, &admin->published.field},
                               KVP_PUBLISHER_STATS(FIGURE)
#undef FIGURE
    };
    for (size_t i = 0; i < KVP_ARRAY_LEN(figures); i++) {
        err = add_figure(admin->metrics, figures[i].name, figures[i].help, figures[i].value);
        if (err != KVP_OK) goto fail;
    }
    for (uint32_t cause = 0; cause < KVP_CAUSES_N; cause++) {
        char labels[64];

        snprintf(labels, sizeof labels, "reason=\"%s\"", kvp_cause_name(cause));
        err = kvp_metrics_counter_fn(admin->metrics, "kvpool_master_lookup_misses_total", labels,
                                     "look-ups that missed a key, by the cause of the first missing one", read_u64,
                                     &admin->core.lookup_misses[cause]);
        if (err == KVP_OK)
            err = kvp_metrics_counter_fn(admin->metrics, "kvpool_master_get_misses_by_reason_total", labels,
                                         "missing keys of Get, by their causes", read_u64,
                                         &admin->core.get_misses_by[cause]);
        if (err != KVP_OK) goto fail;
    }
    for (size_t i = 0; i < KVP_DENIALS_N; i++) {
#define DENIAL_LABEL(name) "reason=\"" #name "\"",
        static const char *const labels[] = {KVP_SERVER_DENIALS(DENIAL_LABEL)};
#undef DENIAL_LABEL

        err = kvp_metrics_counter_fn(admin->metrics, "kvpool_master_denied_total", labels[i],
                                     "peers and requests that were refused for their identity", read_u64,
                                     &admin->shell.denied[i]);
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
    for (size_t i = 0; i < KVP_TIMED_CALLS; i++) {
        char labels[64];

        snprintf(labels, sizeof labels, "call=\"%s\"", kvp_timed_calls[i].name);
        err = kvp_metrics_histogram(admin->metrics, "kvpool_master_call_seconds", labels,
                                    "work of the core for one message, which may have many keys",
                                    kvp_metric_latency_bounds, KVP_METRIC_LATENCY_BOUNDS, 1e-9, &admin->times.calls[i]);
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
    kvp_buf_fini(&admin->overview);
}

static void
copy_status(kvp_admin_t *admin)
{
    kvp_ha_status_t *st = &admin->status;

    if (admin->ha == NULL) return;
    kvp_ha_status(admin->ha, st);
    admin->term = st->term;
    admin->lag_bytes = st->lag_bytes;
    admin->lag_records = st->lag_records;
    admin->lag_ms = st->lag_ms;
    admin->insync = st->insync.n;
    admin->elections = st->elections;
    admin->leads = strcmp(st->role, "leader") == 0;
    admin->etcd_requests = st->etcd_requests;
    admin->etcd_failures = st->etcd_failures;
    admin->etcd_silent_ms = st->etcd_silent_ms;
}

/* Copies all statistics. Runs in the loop's thread, while the HTTP thread waits. */
static void
copy_figures(void *arg)
{
    kvp_admin_t *admin = arg;

    kvp_master_stats(kvp_server_core(admin->server), &admin->core);
    kvp_server_stats(admin->server, &admin->shell);
    admin->has_log = kvp_server_log_stats(admin->server, &admin->log, admin->log_failure);
    if (admin->events != NULL) kvp_publisher_stats(admin->events, &admin->published);
    kvp_master_ident(kvp_server_core(admin->server), &admin->ident);
    kvp_master_wrong(kvp_server_core(admin->server), &admin->wrong);
    admin->degraded = admin->wrong.n;
    admin->term = admin->core.term;
    admin->leads = 1;
    copy_status(admin);
    admin->uptime_ms = (kvp_boot_ns() - admin->start_ns) / KVP_NS_PER_MS;
}

/* copy_metrics copies all statistics. If the loop does not answer, it sends status 503 and returns false. */
static bool
copy_metrics(kvp_admin_t *admin, kvp_http_response_t *response)
{
    kvp_err_t err = kvp_loop_call(admin->loop, copy_figures, admin, ANSWER_MS);

    if (err == KVP_OK) return true;
    kvp_http_error(response, 503, "the master's loop does not answer: %s", kvp_err_name(err));
    return false;
}

/* say_wrong writes the reasons why the pool is degraded. A failed log is written with its error and directory. */
static void
say_wrong(const kvp_admin_t *admin, kvp_jsonw_t *answer)
{
    const bool is_known = admin->log_failure[0] != '\0';

    kvp_jsonw_open(answer, "why", '[');
    if (is_known) kvp_jsonw_text(answer, NULL, admin->log_failure);
    for (uint32_t i = 0; i < admin->wrong.n; i++)
        if (!is_known || strcmp(admin->wrong.lines[i].code, "log_failed") != 0)
            kvp_jsonw_text(answer, NULL, admin->wrong.lines[i].text);
    kvp_jsonw_close(answer, ']');
}

/* Answers /health: role and term even if the loop does not answer, because monitoring needs them most then. */
static void
on_health(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_admin_t *admin = arg;
    uint32_t term = 0;

    (void)request;
    const char *role = admin->ha == NULL ? "leader" : kvp_ha_role(admin->ha, &term);
    const bool is_stuck = kvp_loop_call(admin->loop, copy_figures, admin, HEALTH_MS) != KVP_OK;
    kvp_jsonw_t answer = kvp_http_json(response, is_stuck || strcmp(role, "fenced") == 0 ? 503 : 200);
    kvp_jsonw_open(&answer, NULL, '{');
    const bool is_degraded = admin->wrong.n > 0 || admin->log_failure[0] != '\0';
    kvp_jsonw_text(&answer, "status", is_stuck ? "stuck" : is_degraded ? "degraded" : "ok");
    kvp_jsonw_text(&answer, "role", role);
    if (is_stuck) {
        kvp_jsonw_u64(&answer, "term", term);
        kvp_jsonw_close(&answer, '}');
        return;
    }
    say_wrong(admin, &answer);
    kvp_jsonw_text(&answer, "version", KVP_RELEASE);
    kvp_jsonw_text(&answer, "protection", admin->protection);
    kvp_jsonw_hex(&answer, "pool_id", admin->ident.pool_id, KVP_POOL_ID_SHOWN);
    kvp_jsonw_u64(&answer, "term", admin->term);
    kvp_jsonw_text(&answer, "log", !admin->has_log ? "none" : admin->log.log_failed ? "failed" : "ok");
    kvp_jsonw_u64(&answer, "uptime_ms", admin->uptime_ms);
    kvp_jsonw_u64(&answer, "segments", admin->core.segments);
    kvp_jsonw_u64(&answer, "objects", admin->core.objects);
    kvp_jsonw_close(&answer, '}');
}

/* Copies the figures of nodes and tenants. Runs in the loop's thread. */
static void
copy_labelled(void *arg)
{
    kvp_admin_t *admin = arg;

    kvp_labelled_copy(&admin->labelled, kvp_server_core(admin->server));
}

static void
write_standbys(const kvp_ha_status_t *status, kvp_buf_t *out)
{
    static const char *const names[][2] = {{"standby_lag_bytes", "bytes of the log that a standby lacks"},
                                           {"standby_lag_records", "records of the log that a standby lacks"},
                                           {"standby_lag_seconds", "time since a lagging standby's last progress"},
                                           {"standby_is_insync", "1 = the standby is in the in-sync set"}};

    for (uint32_t k = 0; k < KVP_ARRAY_LEN(names); k++) {
        kvp_labelled_head(out, names[k][0], names[k][1]);
        for (uint32_t i = 0; i < status->standbys_n; i++) {
            const double values[] = {(double)status->standbys[i].lag_bytes, (double)status->standbys[i].lag_records,
                                     (double)status->standbys[i].lag_ms / 1000, status->standbys[i].is_insync};
            char labels[96];

            snprintf(labels, sizeof labels, "standby=\"%s\"", status->standbys[i].id);
            kvp_labelled_value(out, names[k][0], labels, values[k]);
        }
    }
}

static void
on_metrics(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_admin_t *admin = arg;

    (void)request;
    if (!copy_metrics(admin, response)) return;
    if (kvp_loop_call(admin->loop, copy_labelled, admin, ANSWER_MS) != KVP_OK) {
        kvp_http_error(response, 503, "the master's loop does not answer");
        return;
    }
    kvp_http_type(response, "text/plain; version=0.0.4; charset=utf-8");
    kvp_metrics_render(admin->metrics, kvp_http_out(response));
    kvp_labelled_write(&admin->labelled, kvp_http_out(response));
    if (admin->ha != NULL) write_standbys(&admin->status, kvp_http_out(response));
}

/* ---- which master leads */
static void
say_master(kvp_jsonw_t *answer, const char *name, const kvp_election_master_t *m)
{
    kvp_jsonw_open(answer, name, '{');
    kvp_jsonw_text(answer, "id", m->id);
    kvp_jsonw_text(answer, "address", m->address);
    kvp_jsonw_text(answer, "http", m->http);
    kvp_jsonw_close(answer, '}');
}

static void
on_role(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_admin_t *admin = arg;
    uint32_t term = 0;

    (void)request;
    const char *role = admin->ha == NULL ? "leader" : kvp_ha_role(admin->ha, &term);
    kvp_jsonw_t answer = kvp_http_json(response, 200);
    kvp_jsonw_open(&answer, NULL, '{');
    kvp_jsonw_text(&answer, "role", role);
    kvp_jsonw_close(&answer, '}');
}

static void
on_leader(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_admin_t *admin = arg;

    (void)request;
    if (!copy_metrics(admin, response)) return;
    if (admin->ha != NULL && admin->status.leader.id[0] == '\0') {
        kvp_http_error(response, 404, "no master leads");
        return;
    }
    kvp_jsonw_t answer = kvp_http_json(response, 200);
    kvp_jsonw_open(&answer, NULL, '{');
    if (admin->ha != NULL) say_master(&answer, "leader", &admin->status.leader);
    kvp_jsonw_u64(&answer, "term", admin->term);
    kvp_jsonw_close(&answer, '}');
}

static void
on_ha_status(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_admin_t *admin = arg;
    const kvp_ha_status_t *st = &admin->status;

    (void)request;
    if (!copy_metrics(admin, response)) return;
    kvp_jsonw_t answer = kvp_http_json(response, 200);
    kvp_jsonw_open(&answer, NULL, '{');
    kvp_jsonw_bool(&answer, "enabled", admin->ha != NULL);
    kvp_jsonw_text(&answer, "role", admin->ha == NULL ? "leader" : st->role);
    kvp_jsonw_u64(&answer, "term", admin->term);
    if (admin->ha != NULL) {
        say_master(&answer, "self", &st->self);
        say_master(&answer, "leader", &st->leader);
        kvp_jsonw_u64(&answer, "position", st->end);
        kvp_jsonw_u64(&answer, "lag_bytes", st->lag_bytes);
        kvp_jsonw_u64(&answer, "lag_records", st->lag_records);
        kvp_jsonw_u64(&answer, "lag_ms", st->lag_ms);
        kvp_jsonw_u64(&answer, "elections", st->elections);
        kvp_jsonw_open(&answer, "insync", '[');
        for (uint32_t i = 0; i < st->insync.n; i++)
            kvp_jsonw_text(&answer, NULL, st->insync.ids[i]);
        kvp_jsonw_close(&answer, ']');
        kvp_jsonw_open(&answer, "masters", '[');
        for (uint32_t i = 0; i < st->masters_n; i++)
            say_master(&answer, NULL, &st->masters[i]);
        kvp_jsonw_close(&answer, ']');
        kvp_jsonw_open(&answer, "standbys", '[');
        for (uint32_t i = 0; i < st->standbys_n; i++) {
            kvp_jsonw_open(&answer, NULL, '{');
            kvp_jsonw_text(&answer, "id", st->standbys[i].id);
            kvp_jsonw_u64(&answer, "lag_bytes", st->standbys[i].lag_bytes);
            kvp_jsonw_u64(&answer, "lag_records", st->standbys[i].lag_records);
            kvp_jsonw_u64(&answer, "lag_ms", st->standbys[i].lag_ms);
            kvp_jsonw_bool(&answer, "is_insync", st->standbys[i].is_insync);
            kvp_jsonw_close(&answer, '}');
        }
        kvp_jsonw_close(&answer, ']');
    }
    kvp_jsonw_close(&answer, '}');
}

/* Answers /kv_events/status. The first five fields are Mooncake's. */
static void
on_kv_events(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_admin_t *admin = arg;
    const kvp_publisher_stats_t *st = &admin->published;

    (void)request;
    if (!copy_metrics(admin, response)) return;
    kvp_jsonw_t answer = kvp_http_json(response, 200);
    kvp_jsonw_open(&answer, NULL, '{');
    kvp_jsonw_bool(&answer, "enabled", admin->events != NULL);
    kvp_jsonw_u64(&answer, "published_batches", st->events_messages);
    kvp_jsonw_u64(&answer, "published_events", st->events_published);
    kvp_jsonw_u64(&answer, "dropped_events", st->events_lost);
    kvp_jsonw_u64(&answer, "skipped_unparsed_keys", 0);
    kvp_jsonw_bool(&answer, "is_publishing", st->is_publishing);
    kvp_jsonw_u64(&answer, "objects", st->events_objects);
    kvp_jsonw_u64(&answer, "replays", st->events_replays);
    kvp_jsonw_u64(&answer, "snapshots", st->events_snapshots);
    kvp_jsonw_u64(&answer, "abandoned_replays", st->events_abandoned);
    kvp_jsonw_close(&answer, '}');
}

/* ---- the page */
static void
on_page(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)arg;
    (void)request;
    kvp_page_answer(&kvp_page, response);
}

/* Copies the figures that the history records. Runs in the loop's thread. */
static void
copy_sample(const kvp_admin_t *admin, kvp_sample_t *to)
{
    const kvp_master_t *core = kvp_server_core(admin->server);

    to->at_ms = kvp_boot_ns() / KVP_NS_PER_MS;
    kvp_master_stats(core, &to->core);
    to->minute = kvp_master_asked(core);
    kvp_history_times(to, &admin->times);
}

/* Copies the state in which changes are looked for. Runs in the loop's thread. */
static void
copy_look(kvp_admin_t *admin, kvp_look_t *to)
{
    const kvp_master_t *core = kvp_server_core(admin->server);
    kvp_master_stats_t stats;
    kvp_ha_status_t status;

    kvp_master_stats(core, &stats);
    kvp_master_wrong(core, &to->wrong);
    to->nodes_n = kvp_master_nodes(core, to->nodes, KVP_LABELLED_NODES);
    to->counts[0] = stats.evictions;
    to->counts[1] = stats.put_no_space + stats.put_retry_after;
    to->term = (uint32_t)stats.term;
    to->is_leader = admin->ha == NULL;
    if (admin->ha == NULL) return;
    kvp_ha_status(admin->ha, &status);
    to->term = status.term;
    to->is_leader = strcmp(status.role, "leader") == 0;
    snprintf(to->leader, sizeof to->leader, "%s", status.leader.address);
}

/* Records changes of the state, and takes a sample if one is due. If the HTTP thread holds the lock, both wait for the
 * next call. */
static void
on_sampling(uv_timer_t *timer)
{
    kvp_admin_t *admin = timer->data;
    const uint64_t now_ms = kvp_boot_ns() / KVP_NS_PER_MS;
    const kvp_history_t *h = &admin->history;
    kvp_sample_t sample;

    if (pthread_mutex_trylock(&admin->lock) != 0) return;
    if (h->n == 0 || now_ms - kvp_history_get(h, h->n - 1)->at_ms >= KVP_HISTORY_STEP_MS - SAMPLING_MS / 2) {
        copy_sample(admin, &sample);
        kvp_history_note(&admin->history, &sample);
    }
    admin->changes.now.at_ms = now_ms;
    copy_look(admin, &admin->changes.now);
    kvp_changes_note(&admin->changes);
    pthread_mutex_unlock(&admin->lock);
}

kvp_err_t
kvp_admin_sample(kvp_admin_t *admin, uv_loop_t *uv)
{
    if (uv_timer_init(uv, &admin->sampling) != 0) return KVP_SYS;
    admin->sampling.data = admin;
    admin->has_sampling = true;
    return uv_timer_start(&admin->sampling, on_sampling, 0, SAMPLING_MS) == 0 ? KVP_OK : KVP_SYS;
}

void
kvp_admin_stop(kvp_admin_t *admin)
{
    if (admin->has_sampling) uv_close((uv_handle_t *)&admin->sampling, NULL);
    admin->has_sampling = false;
}

/* Copies all that the page shows. Runs in the loop's thread. */
static void
copy_overview(void *arg)
{
    kvp_admin_t *admin = arg;

    copy_figures(admin);
    copy_labelled(admin);
    copy_sample(admin, &admin->now);
}

static void
make_overview(kvp_admin_t *admin)
{
    uint32_t term;
    kvp_overview_t in = {.role = admin->ha == NULL ? "leader" : kvp_ha_role(admin->ha, &term),
                         .conductor = admin->conductor,
                         .ident = &admin->ident,
                         .ha = admin->ha == NULL ? NULL : &admin->status,
                         .labelled = &admin->labelled,
                         .history = &admin->history,
                         .changes = &admin->changes,
                         .now = &admin->now};
    kvp_jsonw_t w;

    kvp_buf_reset(&admin->overview);
    admin->made_ns = kvp_boot_ns();
    if (kvp_loop_call(admin->loop, copy_overview, admin, OVERVIEW_MS) != KVP_OK) return;
    in.term = admin->term;
    in.uptime_ms = admin->uptime_ms;
    kvp_jsonw_init(&w, &admin->overview);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "status", admin->wrong.n > 0 || admin->log_failure[0] != '\0' ? "degraded" : "ok");
    say_wrong(admin, &w);
    kvp_jsonw_u64(&w, "slow_calls", admin->shell.slow_calls);
    pthread_mutex_lock(&admin->lock);
    kvp_overview_write(&w, &in);
    pthread_mutex_unlock(&admin->lock);
    kvp_jsonw_close(&w, '}');
}

static void
on_overview(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_admin_t *admin = arg;
    const kvp_buf_t *text = &admin->overview;

    (void)request;
    if (admin->made_ns == 0 || kvp_boot_ns() - admin->made_ns >= OVERVIEW_NS) make_overview(admin);
    if (text->err != KVP_OK || text->len == 0) {
        kvp_http_error(response, 503, "%s",
                       text->err != KVP_OK ? kvp_err_text(text->err) : "the master's loop does not answer");
        return;
    }
    kvp_http_type(response, "application/json");
    kvp_ignore(kvp_http_set_header(response, "Cache-Control", "no-store"), "a stale document shows its age");
    kvp_buf_append(kvp_http_out(response), text->data, text->len);
}

/* ---- where a key is, or why it is not there */
typedef struct {
    kvp_admin_t *admin;
    kvp_master_question_t question;
    kvp_buf_t answer; /* a packed ExplainReply */
    bool has_tenant;
} ask_t;

static void
ask_core(void *arg)
{
    ask_t *ask = arg;

    ask->has_tenant = kvp_master_explain(kvp_server_core(ask->admin->server), &ask->question, &ask->answer);
}

/* Reads 2 * len hexadecimal digits into len bytes. Returns false if the text has another length or other characters. */
static bool
read_hex(const char *text, uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < 2 * len; i++) {
        const char c = text[i];

        if (!isxdigit((unsigned char)c)) return false;
        bytes[i / 2] = (uint8_t)(bytes[i / 2] << 4 | (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10));
    }
    return text[2 * len] == '\0';
}

/* Reads the key from the argument `key`, or from `key_hex`, which can express any bytes. Returns NULL, or the reason
 * for an error. */
static const char *
read_key(const kvp_http_request_t *request, uint8_t key[KVP_KEY_MAX], size_t *len_out)
{
    const char *text = kvp_http_arg(request, "key"), *hex = kvp_http_arg(request, "key_hex");
    const size_t len = text[0] != '\0' ? strlen(text) : strlen(hex) / 2;

    if ((text[0] != '\0') == (hex[0] != '\0'))
        return "wanted: ?key=KEY, or ?key_hex=HEX for a key with a NUL; and perhaps tenant=NAME, all_tenants=1";
    if (len > KVP_KEY_MAX) return "a key has at most 1024 bytes";
    if (text[0] != '\0') memcpy(key, text, len);
    if (hex[0] != '\0' && !read_hex(hex, key, len)) return "key_hex is not an even number of hexadecimal digits";
    *len_out = len;
    return NULL;
}

static void
on_explain(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    ask_t ask = {.admin = arg};
    uint8_t key[KVP_KEY_MAX];
    uint32_t term = 0;
    const char *why = read_key(request, key, &ask.question.key_len);
    const char *all = kvp_http_arg(request, "all_tenants");
    const char *role = ask.admin->ha == NULL ? "leader" : kvp_ha_role(ask.admin->ha, &term);

    ask.question.key = key;
    ask.question.tenant = kvp_http_arg(request, "tenant");
    ask.question.all_tenants = strcmp(all, "1") == 0;
    if (why == NULL && strlen(ask.question.tenant) > KVP_TENANT_NAME_MAX) why = "the tenant's name is too long";
    if (why == NULL && all[0] != '\0' && !ask.question.all_tenants) why = "all_tenants is 1, or absent";
    if (why != NULL) {
        kvp_http_error(response, 400, "%s", why);
        return;
    }
    if (strcmp(role, "leader") != 0) {
        kvp_http_error(response, 503, "this master is %s: ask the leader, which /leader names", role);
        return;
    }
    kvp_buf_init(&ask.answer, EXPLAINED_MAX);
    const kvp_err_t err = kvp_loop_call(ask.admin->loop, ask_core, &ask, ANSWER_MS);
    Kvp__Pb__ExplainReply *msg = NULL;
    if (err != KVP_OK)
        kvp_http_error(response, 503, "the master's loop does not answer: %s", kvp_err_name(err));
    else if (!ask.has_tenant)
        kvp_http_error(response, 404, "no client uses a tenant of this name, and it has no objects");
    else if (ask.answer.err != KVP_OK ||
             (msg = kvp__pb__explain_reply__unpack(NULL, ask.answer.len, ask.answer.data)) == NULL)
        kvp_http_error(response, 503, "%s", kvp_err_text(KVP_NOMEM));
    if (msg != NULL) {
        kvp_jsonw_t w = kvp_http_json(response, 200);

        kvp_explained_write(&w, key, ask.question.key_len, msg, NULL, NULL);
        kvp__pb__explain_reply__free_unpacked(msg, NULL);
    }
    kvp_buf_fini(&ask.answer);
}

kvp_err_t
kvp_admin_route(kvp_admin_t *admin, kvp_http_t *http, kvp_loop_t *loop, kvp_server_t *server, kvp_ha_t *ha,
                kvp_eventpub_t *events)
{
    admin->events = events;
    admin->loop = loop;
    admin->server = server;
    admin->ha = ha;
    kvp_err_t err = kvp_http_route(http, "GET", "/health", on_health, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/metrics", on_metrics, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/role", on_role, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/leader", on_leader, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/ha_status", on_ha_status, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/kv_events/status", on_kv_events, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/overview", on_overview, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/explain", on_explain, admin);
    if (err == KVP_OK) err = kvp_http_route(http, "GET", "/", on_page, admin);
    return err;
}
