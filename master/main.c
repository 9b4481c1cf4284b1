/* SPDX-License-Identifier: Apache-2.0
 * kvpool-master: parse, build, run, tear down in reverse. Two threads: the loop's, which owns the core, and the HTTP
 * server's; and those that bring memory and take it back: the loop's stock of pages (common/pages.h), and jemalloc's; and
 * libuv's pool from the first time that the identity is saved, or a file of the log is begun.
 */
#include "master/admin.h"
#include "master/check.h"
#include "master/core/master.h"
#include "master/ident.h"
#include "master/log_writer.h"
#include "master/server.h"

#include "common/clock.h"
#include "common/daemon/conf.h"
#include "common/daemon/http.h"
#include "common/daemon/loop.h"
#include "common/hostid.h"
#include "common/log.h"
#include "common/pages.h"
#include "common/rlimits.h"
#include "common/segfmt.h"
#include "common/stdfd.h"

#include <string.h>

/* Read by jemalloc. What the core frees goes back to the kernel in a thread of its own: within a step that would take tens
 * of milliseconds when millions of keys have gone. */
extern const char *malloc_conf;
__attribute__((visibility("default"))) const char *malloc_conf = "background_thread:true";

#define REPORT_GRACE_NS (30 * KVP_NS_PER_S)

typedef struct {
    kvp_hostport_t listen;
    kvp_hostport_t http;
    const char *data_dir;
    const char *runtime_dir;
    uint64_t lease_ttl_ns;
    uint64_t location_lease_ns;
    uint64_t location_grace_ns;
    uint64_t node_forget_ns;
    uint64_t term;
    int sync; /* kvp_log_sync_t */
    int ssd_admission; /* 1 = used */
    bool is_checking, is_repairing, is_json;
} settings_t;

static const kvp_opt_t opts[] = {
    {.name = "listen",
     .type = KVP_OPT_HOSTPORT,
     .offset = offsetof(settings_t, listen),
     .fallback = "127.0.0.1:50051",
     .help = "Where clients and nodes connect; port 0 is any free port."},
    {.name = "http",
     .type = KVP_OPT_HOSTPORT,
     .offset = offsetof(settings_t, http),
     .fallback = "127.0.0.1:9003",
     .help = "Where /health and /metrics are served; `none` serves them nowhere."},
    {.name = "data-dir",
     .type = KVP_OPT_STRING,
     .offset = offsetof(settings_t, data_dir),
     .metavar = "DIR|none",
     .help = "Where the pool's identity and its log are kept; `none` keeps nothing. Default: $XDG_STATE_HOME/kvpool, "
             "or /var/lib/kvpool."},
    {.name = "runtime-dir",
     .type = KVP_OPT_STRING,
     .offset = offsetof(settings_t, runtime_dir),
     .metavar = "DIR",
     .help = "Where the socket for this host's processes lies, mode 0700, or 0750 for its group. Default: "
             "$XDG_RUNTIME_DIR/kvpool, /run/kvpool for root, or /tmp/kvpool-UID."},
    {.name = "lease-ttl",
     .type = KVP_OPT_DURATION_NS,
     .offset = offsetof(settings_t, lease_ttl_ns),
     .fallback = "10s",
     .min = 100 * KVP_NS_PER_MS,
     .max = 3600 * KVP_NS_PER_S,
     .help = "How long a looked-up object is kept for a client that does not come back for it."},
    {.name = "location-lease",
     .type = KVP_OPT_DURATION_NS,
     .offset = offsetof(settings_t, location_lease_ns),
     .fallback = "1s",
     .min = 10 * KVP_NS_PER_MS,
     .max = 3600 * KVP_NS_PER_S,
     .help = "How long clients read from places that they know before they must have heard from the master again."},
    {.name = "location-grace",
     .type = KVP_OPT_DURATION_NS,
     .offset = offsetof(settings_t, location_grace_ns),
     .fallback = "10s",
     .min = 10 * KVP_NS_PER_MS,
     .max = 3600 * KVP_NS_PER_S,
     .help = "The same while no master answers. The next one takes so long to be sure of its first removals."},
    {.name = "node-forget",
     .type = KVP_OPT_DURATION_NS,
     .offset = offsetof(settings_t, node_forget_ns),
     .fallback = "10m",
     .min = 100 * KVP_NS_PER_MS,
     .max = 86400 * KVP_NS_PER_S,
     .help = "How long the objects of a node that is away are kept for its return."},
    {.name = "sync",
     .type = KVP_OPT_ENUM,
     .offset = offsetof(settings_t, sync),
     .choices = "interval|always|none",
     .fallback = "interval",
     .help = "When the log is synced to the disk: every 50 ms, and before a removal, an upsert or a bump is answered "
             "(`interval`); "
             "before a put is, too (`always`); never. What is answered outlives the master in any case."},
    {.name = "ssd-admission",
     .type = KVP_OPT_ENUM,
     .offset = offsetof(settings_t, ssd_admission),
     .choices = "all|used",
     .fallback = "all",
     .help = "What is written to a node's SSD before it leaves memory: everything, or (`used`, where SSDs are to last "
             "longer) what "
             "somebody asked for after it was put."},
    {.name = "term",
     .type = KVP_OPT_U64,
     .offset = offsetof(settings_t, term),
     .fallback = "1",
     .min = 1,
     .max = KVP_TERM_MAX,
     .help = "The least term to begin with, where nodes obey one that the master does not follow: the log names it."},
    {.name = "check",
     .type = KVP_OPT_BOOL,
     .offset = offsetof(settings_t, is_checking),
     .help = "Serves nothing: says what a start would make of the log in --data-dir (`kvpool fsck --data-dir`)."},
    {.name = "repair",
     .type = KVP_OPT_BOOL,
     .offset = offsetof(settings_t, is_repairing),
     .help = "With --check: sets aside what is damaged, so that a start goes on with the rest and the nodes."},
    {.name = "json",
     .type = KVP_OPT_BOOL,
     .offset = offsetof(settings_t, is_json),
     .help = "With --check: one JSON object instead of text."},
};

static const kvp_conf_spec_t spec = {
    .program = "kvpool-master",
    .summary = "Knows where every object of a kvpool lives; never touches its bytes.",
    .opts = opts,
    .opt_count = KVP_ARRAY_LEN(opts),
};

/* The whole daemon, in the order in which it is built. */
typedef struct {
    kvp_ident_t ident;
    kvp_log_writer_t log;
    kvp_server_t *server;
    kvp_master_t *core;
    kvp_admin_t admin;
    uv_loop_t uv;
    bool has_uv;
    kvp_loop_t loop;
    kvp_http_t *http;
    kvp_hostport_t http_bound; /* host "" = no HTTP */
} daemon_t;

/* The core takes a higher term, or the pool's name, when a node knows one; the next start must not fall behind that. In a
 * thread of libuv's pool, one at a time: d->ident is its own from the first turn of the loop to the last. */
static bool
save_ident(void *arg, const kvp_master_ident_t *now)
{
    daemon_t *d = arg;

    memcpy(d->ident.pool_id, now->pool_id, sizeof d->ident.pool_id);
    d->ident.digest_seed = now->digest_seed;
    return kvp_ident_save(&d->ident, now->term) == KVP_OK; /* it is logged */
}

static void
on_stop(void *arg)
{
    daemon_t *d = arg;

    kvp_server_stop(d->server);
    /* Ends what the HTTP thread waits for; a second signal kills from here on. */
    kvp_loop_stop(&d->loop);
}

static kvp_err_t
build_core(daemon_t *d, const settings_t *s)
{
    char host_id[KVP_HOST_ID_MAX + 1];

    kvp_err_t err = kvp_runtime_set(s->runtime_dir, NULL);
    if (err == KVP_OK) err = kvp_ident_open(s->data_dir, (uint32_t)s->term, &d->ident);
    if (err != KVP_OK) return err;
    err = kvp_pages_stock_start();
    if (err != KVP_OK) return err;
    const bool has_log = d->ident.dir_fd >= 0;
    kvp_server_conf_t server_conf = {
        .listen = s->listen,
        .save_ident = save_ident,
        .save_ident_arg = d,
        .log = has_log ? &d->log : NULL,
    };
    err = kvp_server_create(&server_conf, &d->server);
    if (err != KVP_OK) return err;

    kvp_host_id(host_id);
    kvp_master_conf_t conf = {
        .digest_seed = d->ident.digest_seed,
        .seed = kvp_random_u64(),
        .secret = kvp_random_u64(),
        .term = d->ident.term,
        .lease_ns = s->lease_ttl_ns,
        .location_lease_ns = s->location_lease_ns,
        .location_grace_ns = kvp_max_u64(s->location_lease_ns, s->location_grace_ns),
        .had_master = d->ident.had_master,
        .node_grace_ns = s->node_forget_ns,
        .report_grace_ns = REPORT_GRACE_NS,
        .saves_ident = true,
        .has_journal = has_log,
        .log_sync = (kvp_log_sync_t)s->sync,
        .ssd_wants_use = s->ssd_admission == 1,
        .host_id = host_id,
        .unix_path = kvp_server_unix_path(d->server),
    };
    memcpy(conf.pool_id, d->ident.pool_id, sizeof(conf.pool_id));
    err = kvp_master_create(&conf, kvp_boot_ns(), &d->core);
    if (err == KVP_OK && has_log) err = kvp_log_writer_open(&d->log, &d->ident, d->core);
    return err != KVP_OK ? err : kvp_admin_init(&d->admin);
}

static kvp_err_t
build_loop(daemon_t *d)
{
    int rc = uv_loop_init(&d->uv);
    if (rc != 0) {
        kvp_log_error("master", "cannot make an event loop: %s", uv_strerror(rc));
        return KVP_SYS;
    }
    d->has_uv = true;
    kvp_err_t err = kvp_loop_start(&d->loop, &d->uv, on_stop, d);
    return err != KVP_OK ? err : kvp_server_start(d->server, &d->uv, d->core, &d->admin.times);
}

static kvp_err_t
build_http(daemon_t *d, const settings_t *s)
{
    if (s->http.host[0] == '\0') return KVP_OK;
    d->http = kvp_http_create();
    if (d->http == NULL) return KVP_NOMEM;
    kvp_err_t err = kvp_admin_route(&d->admin, d->http, &d->loop, d->core, d->server);
    return err != KVP_OK ? err : kvp_http_start(d->http, &s->http, &d->http_bound);
}

static kvp_err_t
say_ready(const daemon_t *d)
{
    char listen[KVP_HOSTPORT_TEXT_MAX], http[KVP_HOSTPORT_TEXT_MAX];
    const char *path = kvp_server_unix_path(d->server);

    kvp_format_hostport(kvp_server_bound(d->server), listen);
    if (d->http != NULL) kvp_format_hostport(&d->http_bound, http);
    if (!kvp_hostport_is_loopback(kvp_server_bound(d->server)))
        kvp_log_warn("master",
                     "whoever can connect here can read and remove everything: nobody is authenticated listen=%s",
                     listen);
    kvp_log_info("master", "serving listen=%s term=%u data=%s", listen, d->ident.term, d->ident.dir);
    return kvp_daemon_ready_line(listen, path[0] != '\0' ? path : NULL, d->http != NULL ? http : NULL, d->ident.dir);
}

/* tear_down copes with whatever was built. The loop's handles are closed by on_stop and need a last uv_run. */
static void
tear_down(daemon_t *d)
{
    if (d->has_uv) {
        on_stop(d);
        uv_run(&d->uv, UV_RUN_DEFAULT);
    }
    kvp_http_destroy(d->http);
    kvp_loop_fini(&d->loop);
    if (d->has_uv) uv_loop_close(&d->uv);
    kvp_admin_fini(&d->admin);
    kvp_log_writer_fini(&d->log); /* takes the core's last words */
    kvp_master_destroy(d->core);
    kvp_pages_stock_stop();
    kvp_server_destroy(d->server);
    kvp_ident_close(&d->ident);
}

int
main(int argc, char **argv)
{
    static daemon_t d = {.ident = {.dir_fd = -1, .lock_fd = -1}};
    settings_t settings = {0};
    kvp_conf_t conf;

    kvp_stdfd_hold();
    kvp_log_writer_init(&d.log, 0, KVP_LOG_SYNC_NONE);
    kvp_conf_init(&conf, &spec);
    int rc = kvp_conf_parse(&conf, argc, argv, &settings);
    if (rc != KVP_CONF_RUN) goto out;
    if (settings.is_checking) {
        rc = kvp_check_run(settings.data_dir, settings.is_repairing, settings.is_json);
        goto out;
    }
    kvp_limit_raise_files();
    kvp_log_writer_init(&d.log, 0, (kvp_log_sync_t)settings.sync);

    kvp_err_t err = build_core(&d, &settings);
    if (err == KVP_OK) err = build_loop(&d);
    if (err == KVP_OK) err = build_http(&d, &settings);
    if (err == KVP_OK) err = say_ready(&d);
    if (err == KVP_OK) uv_run(&d.uv, UV_RUN_DEFAULT);
    /* Whoever found the reason has logged it, but for memory that there was none of. */
    if (err != KVP_OK) kvp_log_error("master", "cannot start%s", err == KVP_NOMEM ? ": out of memory" : "");
    tear_down(&d);
    rc = err == KVP_OK ? 0 : 1;
out:
    kvp_conf_fini(&conf);
    return rc;
}
