/* SPDX-License-Identifier: Apache-2.0
 * kvpool-node: parses options, builds the daemon, runs it, and tears it down in reverse order. The main thread runs a
 * libuv loop only for signals and timers; the node has threads of its own. */
#include "node/node.h"
#include "node/daemon/admin.h"
#include "node/daemon/opts.h"
#include "node/daemon/rest.h"

#include "client/data/fetch.h"

#include "common/clock.h"
#include "common/daemon/loop.h"
#include "common/hostid.h"
#include "common/rlimits.h"
#include "common/log.h"
#include "common/stdfd.h"
#include "common/trust/creds.h"

#define LOOK_MS 20
#define STOP_NS (2 * KVP_NS_PER_S)

/* The parts of the daemon, in the order in which they are built. */
typedef struct {
    kvp_node_t *node;
    uv_loop_t uv;
    bool has_uv;
    kvp_loop_t loop;
    uv_timer_t look;
    kvp_http_t *http;
    kvp_node_admin_t admin;
    kvp_node_rest_t rest;
    kvp_hostport_t http_bound; /* the bound HTTP address; host "" = no HTTP */
    uint64_t drain_ns; /* the time limit of a drain after the stop request */
    uint64_t drain_by_ns; /* the time at which the daemon stops even if objects are left; 0 = not stopping */
    kvp_err_t err; /* the error that ended the daemon; OK after a stop request */
} daemon_t;

static void
end_loop(daemon_t *d)
{
    uv_close((uv_handle_t *)&d->look, NULL);
    kvp_loop_stop(&d->loop);
}

/* Ends the loop when the node is drained, or when the time limit of the drain has passed. */
static void
on_drain(uv_timer_t *timer)
{
    daemon_t *d = timer->data;

    if (kvp_node_wait_drained(d->node, 0) || kvp_now_ns() >= d->drain_by_ns) end_loop(d);
}

static void
on_stop(void *arg)
{
    daemon_t *d = arg;

    if (d->drain_ns == 0 || kvp_node_wait(d->node, 0) != KVP_OK) {
        end_loop(d);
        return;
    }
    d->drain_by_ns = kvp_now_ns() + d->drain_ns;
    kvp_node_drain(d->node);
    uv_timer_start(&d->look, on_drain, LOOK_MS, LOOK_MS);
}

static kvp_err_t
say_ready(const daemon_t *d)
{
    char http[KVP_HOSTPORT_TEXT_MAX];
    kvp_node_info_t info;

    kvp_node_info(d->node, &info);
    return kvp_daemon_ready_line(info.addr, info.unix_path[0] == '\0' ? NULL : info.unix_path,
                                 d->http_bound.host[0] == '\0' ? NULL : kvp_format_hostport(&d->http_bound, http),
                                 "none");
}

/* Checks by a timer whether the segment is mounted. The node waits for an absent master; an error that waiting cannot
 * cure ends the daemon. */
static void
on_look(uv_timer_t *timer)
{
    daemon_t *d = timer->data;
    kvp_err_t err = kvp_node_wait(d->node, 0);

    if (err == KVP_OK) {
        uv_timer_stop(timer);
        err = say_ready(d);
        if (err == KVP_OK) return;
    } else if (!kvp_node_is_final(err)) {
        return;
    }
    d->err = err;
    end_loop(d);
}

static kvp_err_t
build_node(daemon_t *d, const kvp_node_opts_t *s)
{
    kvp_node_conf_t conf = {
        .masters = s->masters,
        .cluster = s->cluster,
        .name = s->name,
        .host_id = s->host_id,
        .listen = s->listen,
        .transports = s->transports,
        .rdma_device = s->rdma_device,
        .rdma_gid_index = s->rdma_gid_index,
        .memory_bytes = s->memory_bytes,
        .ssd = s->ssd.items,
        .ssd_n = s->ssd.count,
        .ssd_writes = s->ssd_writes,
        .chunk_bytes = s->chunk_bytes,
        .lanes = (uint32_t)s->lanes,
        .keep = (kvp_keep_mode_t)s->keeper,
        .keep_ns = s->keeper_hold_ns,
        .fetch = &kvp_fetch_ops,
        .is_alone = true,
        .http_protection = kvp_protection_of_http(&s->http, s->http_token_file != NULL, s->creds.has_http_tls),
        .is_insecure = s->creds.is_insecure,
        .is_lazy = !s->has_populate,
    };

    kvp_err_t err = kvp_runtime_set(s->runtime_dir, s->trust_uid);
    if (err == KVP_OK) err = kvp_creds_set(&s->creds);
    if (err == KVP_OK)
        err = kvp_may_listen("--http", &s->http, s->http_token_file != NULL, "--tokens", s->creds.is_insecure);
    return err != KVP_OK ? err : kvp_node_open(&conf, &d->node);
}

static kvp_err_t
build_loop(daemon_t *d)
{
    int rc = uv_loop_init(&d->uv);

    if (rc != 0) {
        kvp_log_error("node", "cannot make an event loop: %s", uv_strerror(rc));
        return KVP_SYS;
    }
    d->has_uv = true;
    uv_timer_init(&d->uv, &d->look);
    d->look.data = d;
    uv_timer_start(&d->look, on_look, LOOK_MS, LOOK_MS);
    return kvp_loop_start(&d->loop, &d->uv, on_stop, d);
}

static kvp_err_t
build_http(daemon_t *d, const kvp_node_opts_t *s)
{
    const char *token = getenv("KVPOOL_TOKEN_FILE");
    kvp_creds_t files = {.tls_cert = NULL};
    kvp_err_t err;

    if (s->http.host[0] == '\0' && s->has_rest) {
        kvp_log_error("node", "--rest serves at the address of --http, which is none");
        return KVP_INVALID;
    }
    if (s->has_rest && ((token != NULL && token[0] != '\0') || (kvp_creds_tls(&files) && files.tls_cert != NULL))) {
        kvp_log_error("node", "--rest puts and removes as this process, and the role node of its token or certificate "
                              "may not: start the node without --rest");
        return KVP_INVALID;
    }
    if (s->http.host[0] == '\0') return KVP_OK;
    d->http = kvp_http_create();
    if (d->http == NULL) return KVP_NOMEM;
    err = kvp_node_admin_init(&d->admin, d->http, d->node);
    if (err == KVP_OK && s->has_rest) err = kvp_node_rest_init(&d->rest, d->http, s, d->node);
    if (err == KVP_OK) err = kvp_log_audit_open(s->audit);
    if (err == KVP_OK)
        err = kvp_http_protect(d->http, s->http_token_file, s->has_metrics_token,
                               s->creds.has_http_tls ? KVP_IS_NODE : KVP_MAY_NOTHING);
    return err != KVP_OK ? err : kvp_http_start(d->http, &s->http, &d->http_bound);
}

/* tear_down frees the parts that were built. on_stop closes the loop's handles, which needs a last uv_run. */
static void
tear_down(daemon_t *d)
{
    if (d->has_uv) {
        if (!uv_is_closing((uv_handle_t *)&d->look)) end_loop(d);
        uv_run(&d->uv, UV_RUN_DEFAULT);
    }
    kvp_node_rest_stop(&d->rest);
    kvp_http_destroy(d->http);
    kvp_node_rest_fini(&d->rest);
    kvp_node_admin_fini(&d->admin);
    kvp_loop_fini(&d->loop);
    if (d->has_uv) uv_loop_close(&d->uv);
    if (d->node != NULL) kvp_node_stop(d->node, kvp_now_ns() + STOP_NS);
}

int
main(int argc, char **argv)
{
    kvp_node_opts_t settings = {.masters = NULL};
    static daemon_t d;
    kvp_conf_t conf;
    bool is_usage;
    int rc;

    kvp_stdfd_hold();
    kvp_limit_survive_file_size();
    kvp_conf_init(&conf, &kvp_node_spec);
    rc = kvp_conf_parse(&conf, argc, argv, &settings);
    if (rc != KVP_CONF_RUN) goto out;
    kvp_limit_raise_files();
    d.err = build_loop(&d); /* the event loop is first, because libuv aborts if no file descriptor is left */
    if (d.err == KVP_OK) d.err = build_node(&d, &settings);
    d.drain_ns = settings.drain_ns;
    if (d.err == KVP_OK) d.err = build_http(&d, &settings);
    is_usage = d.err == KVP_INVALID;
    if (d.err == KVP_OK) uv_run(&d.uv, UV_RUN_DEFAULT);
    tear_down(&d);
    rc = d.err == KVP_OK ? 0 : is_usage ? KVP_CONF_USAGE : 1;
    if (d.err != KVP_OK) kvp_log_error("node", "stopped: %s", kvp_err_text(d.err));
out:
    kvp_conf_fini(&conf);
    return rc;
}
