/* SPDX-License-Identifier: Apache-2.0
 * kvpool-conductor: receives the KV events of engines and pools, and answers routers over HTTP how much of a prompt
 * each instance holds. Threads: the loop's receives events and changes the index; the HTTP server's answers from the
 * index; four more answer /route and /register; one writes the data directory; one asks servers for their load; one
 * asks servers for the tokens of texts; and the proxy has its own. */
#include "conductor/api.h"
#include "conductor/proxy/admin.h"
#include "conductor/proxy/cors.h"

#include "common/clock.h"
#include "common/daemon/conf.h"
#include "common/log.h"
#include "common/rlimits.h"
#include "common/stdfd.h"
#include "common/thread.h"
#include "common/trust/creds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HTTP_PLACES 4096u

enum { POLICY_ROUTER, POLICY_ROUND_ROBIN }; /* values of --policy, in the order of the option's choices */

typedef struct {
    kvp_hostport_t http;
    const char *data_dir, *publishers, *token_file, *api_keys, *audit;
    bool has_metrics_token;
    kvp_creds_t creds;
    uint64_t hash_seed, blocks_max;
    kvp_hostport_t proxy; /* address of the proxy's port; host "" = no proxy */
    kvp_strings_t prefill, decode, replica;
    int policy;
    uint64_t proxy_threads;
    uint64_t prefill_timeout_ns, first_byte_timeout_ns, upload_timeout_ns;
    const char *allow_origin;
    uint64_t compute_rate, cpu_rate, disk_rate, request_cost_ns, affinity_ns;
} settings_t;

static const kvp_opt_t opts[] = {
    {KVP_OPT(HOSTPORT, "http", settings_t, http), .fallback = "127.0.0.1:13333",
     .help = "Where questions, registrations and metrics are served."},
    {KVP_OPT_TEXT("tokens", settings_t, token_file, "FILE"),
     .help = "The tokens that --http accepts (`kvpool token create`). With it, paths other than / and /health need a "
             "token whose role allows the request. The file is read again when it changes."},
    {KVP_OPT(BOOL, "metrics-token", settings_t, has_metrics_token),
     .help = "With --tokens: /metrics needs a token of the role `monitor`, too."},
    {KVP_OPT(BOOL, "http-tls", settings_t, creds.has_http_tls),
     .help = "--http serves https alone, with --tls-cert and --tls-key as they are at the start."},
    {KVP_OPT_TEXT("tls-ca", settings_t, creds.tls_ca, "FILE"),
     .help = "For --http-tls: the CA of the pool (`kvpool cert init`)."},
    {KVP_OPT_TEXT("tls-cert", settings_t, creds.tls_cert, "FILE"),
     .help = "For --http-tls: this conductor's certificate (`kvpool cert conductor NAME --host HOST`)."},
    {KVP_OPT_TEXT("tls-key", settings_t, creds.tls_key, "FILE"),
     .help = "The key of --tls-cert, for this user alone (mode 0600)."},
    {KVP_OPT(BOOL, "insecure", settings_t, creds.is_insecure),
     .help = "Opens --http without tokens at an address that other hosts reach: every host that connects can then "
             "register engines and change the proxy's servers. Without this option such an address is refused."},
    {KVP_OPT_TEXT("audit", settings_t, audit, "FILE"),
     .help = "Refusals of --http and --proxy are lines of this file instead of the log: at most 100 a second, and then "
             "their number. The file may be moved away at any time."},
    {KVP_OPT_TEXT("data-dir", settings_t, data_dir, "DIR"),
     .help = "Registrations are kept here; without it they end with the process."},
    {KVP_OPT(U64, "hash-seed", settings_t, hash_seed), .fallback = "0",
     .help = "The seed of the standard hash. Publishers and routers that send hashes must use the same."},
    {KVP_OPT_TEXT("publishers", settings_t, publishers, "FILE"),
     .help = "A file with a JSON array of registrations, in the form of /register, that are made at the start."},
    {KVP_OPT(U64, "max-blocks", settings_t, blocks_max), .fallback = "100000000", .min = 1, .max = UINT32_MAX - 2,
     .help = "The most blocks in the index. A block takes about 60 bytes for each publisher that holds it."},
    {KVP_OPT(HOSTPORT, "proxy", settings_t, proxy),
     .help = "The address at which the proxy serves the OpenAI API, by the servers of --prefill and --decode, or of "
             "--replica."},
    {KVP_OPT(STRINGS, "prefill", settings_t, prefill), .metavar = "URL[,BOOTSTRAP]",
     .help = "With --proxy: a prefill server, which computes prompts. BOOTSTRAP is PORT or HOST:PORT of its bootstrap "
             "server, if the server has one."},
    {KVP_OPT(STRINGS, "decode", settings_t, decode), .metavar = "URL",
     .help = "With --proxy: a decode server, which continues a request after its prefill on another server."},
    {KVP_OPT(STRINGS, "replica", settings_t, replica), .metavar = "URL",
     .help = "With --proxy: a server that does both prefill and decode."},
    {KVP_OPT(ENUM, "policy", settings_t, policy), .choices = "router|round-robin", .fallback = "router",
     .help = "With --proxy: the choice of the server for a prompt. router: the server that the router chooses, while "
             "instances are registered; else the next server in turn."},
    {KVP_OPT(U64, "proxy-threads", settings_t, proxy_threads), .fallback = "0", .max = KVP_PROXY_THREADS_MAX,
     .help = "With --proxy: the proxy's threads; 0 = one for each processor, at most 4."},
    {KVP_OPT(DURATION_NS, "prefill-timeout", settings_t, prefill_timeout_ns), .fallback = "120s",
     .min = 100 * KVP_NS_PER_MS, .max = 3600 * KVP_NS_PER_S,
     .help = "With --proxy: the most time for a prefill; then another server is tried."},
    {KVP_OPT(DURATION_NS, "first-byte-timeout", settings_t, first_byte_timeout_ns), .fallback = "600s",
     .min = 100 * KVP_NS_PER_MS, .max = 3600 * KVP_NS_PER_S,
     .help = "With --proxy: the most time without the first byte of an answer; then another server is tried."},
    {KVP_OPT(DURATION_NS, "upload-timeout", settings_t, upload_timeout_ns), .fallback = "60s",
     .min = 100 * KVP_NS_PER_MS, .max = 3600 * KVP_NS_PER_S,
     .help = "With --proxy: the time for a client to send a request's head, and the same again for its body. After it "
             "the connection is closed."},
    {KVP_OPT_TEXT("api-keys", settings_t, api_keys, "FILE"),
     .help = "With --proxy: clients need a token of this file as their API key (`kvpool token create --role reader`). "
             "The file is read again when it changes. Without it every client may send requests."},
    {KVP_OPT_TEXT("allow-origin", settings_t, allow_origin, "*|none|ORIGIN[,ORIGIN]"), .fallback = "*",
     .help = "With --proxy: the origins of web pages that may send requests; * = all."},
    {KVP_OPT(U64, "compute-rate", settings_t, compute_rate), .fallback = "10000", .min = 1, .max = 1000000000,
     .help = "For /route: prompt tokens that an instance computes in a second."},
    {KVP_OPT(U64, "cpu-rate", settings_t, cpu_rate), .fallback = "200000", .min = 1, .max = 1000000000,
     .help = "For /route: tokens that an instance fetches in a second from CPU memory, its own or a pool's."},
    {KVP_OPT(U64, "disk-rate", settings_t, disk_rate), .fallback = "50000", .min = 1, .max = 1000000000,
     .help = "For /route: and from disk."},
    {KVP_OPT(DURATION_NS, "request-cost", settings_t, request_cost_ns), .fallback = "10ms", .max = 60 * KVP_NS_PER_S,
     .help = "For /route: the delay of a request's first token by each request under way at the instance."},
    {KVP_OPT(DURATION_NS, "affinity", settings_t, affinity_ns), .fallback = "20ms", .max = 60 * KVP_NS_PER_S,
     .help =
         "For /route: a session stays at its instance unless its first token comes this much later than elsewhere."},
};

static const kvp_conf_spec_t spec = {
    .program = "kvpool-conductor",
    .summary = "Indexes the prompt prefixes that each engine holds, and routes requests by them.",
    .opts = opts,
    .opt_count = KVP_ARRAY_LEN(opts),
};

/* All parts of the daemon, in the order in which main creates them. */
typedef struct {
    uv_loop_t uv;
    kvp_loop_t loop;
    kvp_registry_t *registry;
    kvp_api_t api;
    kvp_http_t *http;
    kvp_http_t *own; /* with TLS: the router's paths for this process's own proxy, without TLS; else NULL */
    kvp_hostport_t bound, own_bound, proxy_bound;
    kvp_proxy_t *proxy; /* the proxy; NULL = no proxy was configured */
    bool has_uv;
} daemon_t;

static void
on_stop(void *arg)
{
    daemon_t *d = arg;

    kvp_registry_stop(d->registry);
    kvp_loop_stop(&d->loop);
}

static kvp_err_t
add_servers(kvp_proxy_t *p, kvp_server_role_t role, const kvp_strings_t *texts)
{
    kvp_err_t err = KVP_OK;

    for (size_t i = 0; i < texts->count && err == KVP_OK; i++) {
        const char *next = i + 1 < texts->count ? texts->items[i + 1] : "";
        const bool has_bootstrap = next[0] != '\0' && strstr(next, "://") == NULL;
        char text[1024];

        /* A list in an environment variable is split at every comma. So `prefill URL,PORT` arrives as two items,
         * which are joined here again. */
        snprintf(text, sizeof text, has_bootstrap ? "%s,%s" : "%s", texts->items[i], next);
        i += has_bootstrap;
        err = kvp_proxy_admin_add(p, role, text);
    }
    return err;
}

static kvp_err_t
build_proxy(daemon_t *d, const settings_t *s)
{
    kvp_proxy_conf_t conf = kvp_proxy_defaults;

    if (s->proxy.host[0] == '\0') {
        if (s->prefill.count + s->decode.count + s->replica.count == 0) return KVP_OK;
        kvp_log_error("proxy", "--prefill, --decode and --replica go with --proxy");
        return KVP_INVALID;
    }
    if ((s->prefill.count > 0) != (s->decode.count > 0) || (s->decode.count > 0) == (s->replica.count > 0)) {
        kvp_log_error("proxy", "--proxy wants --prefill and --decode, or --replica alone");
        return KVP_INVALID;
    }
    if (!kvp_cors_is_list(s->allow_origin)) {
        kvp_log_error("proxy", "--allow-origin is \"*\", \"none\" or SCHEME://HOST[:PORT][,...], without paths: %s",
                      s->allow_origin);
        return KVP_INVALID;
    }
    conf.listen = s->proxy;
    conf.allow_origin = s->allow_origin;
    conf.api_keys = s->api_keys;
    conf.has_metrics_token = s->has_metrics_token;
    conf.threads = s->proxy_threads != 0 ? (uint32_t)s->proxy_threads : (uint32_t)kvp_min_u64(kvp_usable_cpus(), 4);
    conf.prefill_ms = s->prefill_timeout_ns / KVP_NS_PER_MS;
    conf.first_ms = s->first_byte_timeout_ns / KVP_NS_PER_MS;
    conf.upload_ms = s->upload_timeout_ns / KVP_NS_PER_MS;
    kvp_err_t err = kvp_proxy_create(&conf, &d->proxy);
    if (err == KVP_OK) err = add_servers(d->proxy, KVP_SERVER_PREFILL, &s->prefill);
    if (err == KVP_OK) err = add_servers(d->proxy, KVP_SERVER_DECODE, &s->decode);
    if (err == KVP_OK) err = add_servers(d->proxy, KVP_SERVER_REPLICA, &s->replica);
    return err == KVP_OK ? kvp_proxy_admin_route(d->proxy, d->http) : err;
}

static void
note_left_out(void *arg, const uint64_t *urls, uint32_t n)
{
    kvp_routes_set_left_out(arg, urls, n);
}

/* Returns true if a registered instance has a URL: then the router can choose a server. */
static bool
has_instances(void *arg)
{
    kvp_epoch_reader_t *reader = kvp_registry_enter(arg);
    const kvp_roster_t *roster = kvp_registry_roster(arg);
    bool has_any = false;

    for (uint32_t i = 0; i < roster->n; i++)
        has_any |= roster->members[i].url[0] != '\0';
    kvp_epoch_leave(reader);
    return has_any;
}

/* Serves the router's paths to the own proxy, which has no TLS: at a loopback port, with the same tokens. */
static kvp_err_t
serve_own(daemon_t *d, const settings_t *s, uint32_t places)
{
    const kvp_hostport_t at = {.host = "127.0.0.1"};

    d->own = kvp_http_create();
    if (d->own == NULL) return KVP_NOMEM;
    kvp_http_size(d->own, places, places);
    kvp_err_t err = kvp_routes_route(d->api.routes, d->own);
    if (err == KVP_OK) err = kvp_http_protect(d->own, s->token_file, false, KVP_MAY_NOTHING);
    return err != KVP_OK ? err : kvp_http_start(d->own, &at, &d->own_bound);
}

static kvp_err_t
build_parts(daemon_t *d, const settings_t *s)
{
    char text[KVP_HOSTPORT_TEXT_MAX];
    kvp_err_t err = kvp_may_listen("--http", &s->http, s->token_file != NULL, "--tokens", s->creds.is_insecure);

    if (err == KVP_OK) err = kvp_creds_set(&s->creds);
    if (err == KVP_OK) err = kvp_may_listen("--proxy", &s->proxy, s->api_keys != NULL, "--api-keys", true);
    if (err != KVP_OK) return err;
    const int rc = uv_loop_init(&d->uv);

    if (rc != 0) {
        kvp_log_error("conductor", "cannot make an event loop: %s", uv_strerror(rc));
        return KVP_SYS;
    }
    d->has_uv = true;
    err = kvp_loop_start(&d->loop, &d->uv, on_stop, d);
    if (err == KVP_OK)
        err = kvp_registry_create(&d->uv, s->hash_seed, (uint32_t)s->blocks_max, s->data_dir, &d->registry);
    if (err == KVP_OK && s->publishers != NULL) err = kvp_registry_load(d->registry, s->publishers);
    if (err != KVP_OK) return err;
    d->http = kvp_http_create();
    if (d->http == NULL) return KVP_NOMEM;
    /* The proxy asks the router once for each request, and the router's handlers never wait. So a quarter of the
     * file descriptors suffices for the HTTP server; the proxy needs the rest. */
    const uint32_t places = (uint32_t)kvp_min_u64(HTTP_PLACES, kvp_limit_files().max / 4);
    kvp_http_size(d->http, places, places);
    kvp_router_weights_t weights = kvp_router_defaults;
    weights.compute_tokens_s = (double)s->compute_rate;
    weights.cpu_tokens_s = (double)s->cpu_rate;
    weights.disk_tokens_s = (double)s->disk_rate;
    weights.request_ms = (double)s->request_cost_ns / KVP_NS_PER_MS;
    weights.affinity_ms = (double)s->affinity_ns / KVP_NS_PER_MS;
    err = kvp_api_route(&d->api, d->http, &d->loop, d->registry, &weights);
    if (err == KVP_OK) err = build_proxy(d, s);
    d->api.has_proxy = d->proxy != NULL;
    if (err == KVP_OK) err = kvp_log_audit_open(s->audit);
    if (err == KVP_OK)
        err = kvp_http_protect(d->http, s->token_file, s->has_metrics_token,
                               s->creds.has_http_tls ? KVP_IS_CONDUCTOR : KVP_MAY_NOTHING);
    if (err == KVP_OK) err = kvp_http_start(d->http, &s->http, &d->bound);
    if (err != KVP_OK || d->proxy == NULL) return err;
    if (s->policy == POLICY_ROUTER && s->creds.has_http_tls) err = serve_own(d, s, places);
    if (err != KVP_OK) return err;
    if (s->policy == POLICY_ROUTER)
        kvp_proxy_route_by(d->proxy, d->own != NULL ? &d->own_bound : &d->bound,
                           kvp_http_own_token(d->own != NULL ? d->own : d->http), has_instances, d->registry);
    kvp_proxy_report_to(d->proxy, note_left_out, d->api.routes);
    err = kvp_proxy_start(d->proxy, &d->proxy_bound);
    if (err == KVP_OK && s->api_keys == NULL && !kvp_hostport_is_loopback(&s->proxy))
        kvp_log_warn("proxy",
                     "clients need no key (--api-keys): every host that connects here can send prompts listen=%s",
                     kvp_format_hostport(&d->proxy_bound, text));
    return err;
}

static void
tear_down(daemon_t *d)
{
    if (d->has_uv) {
        on_stop(d);
        uv_run(&d->uv, UV_RUN_DEFAULT);
    }
    kvp_routes_stop(d->api.routes);
    kvp_http_destroy(d->http);
    kvp_http_destroy(d->own);
    kvp_proxy_stop(d->proxy); /* the proxy stops after the HTTP server, because handlers use the proxy */
    kvp_api_fini(&d->api);
    kvp_loop_fini(&d->loop);
    kvp_registry_destroy(d->registry);
    if (d->has_uv) uv_loop_close(&d->uv);
}

int
main(int argc, char **argv)
{
    char http[KVP_HOSTPORT_TEXT_MAX], proxy[KVP_HOSTPORT_TEXT_MAX];
    settings_t settings = {0};
    static daemon_t d;
    kvp_conf_t conf;

    kvp_stdfd_hold();
    kvp_limit_survive_file_size();
    kvp_conf_init(&conf, &spec);
    int rc = kvp_conf_parse(&conf, argc, argv, &settings);
    if (rc != KVP_CONF_RUN) goto out;
    kvp_limit_raise_files();
    kvp_err_t err = build_parts(&d, &settings);
    if (err == KVP_OK)
        err = kvp_daemon_ready_line(d.proxy == NULL ? NULL : kvp_format_hostport(&d.proxy_bound, proxy), NULL,
                                    kvp_format_hostport(&d.bound, http),
                                    settings.data_dir != NULL ? settings.data_dir : "none");
    if (err == KVP_OK) uv_run(&d.uv, UV_RUN_DEFAULT);
    if (err != KVP_OK) kvp_log_error("conductor", "cannot start%s", err == KVP_NOMEM ? ": out of memory" : "");
    tear_down(&d);
    rc = err == KVP_OK ? 0 : 1;
out:
    kvp_conf_fini(&conf);
    return rc;
}
