/* SPDX-License-Identifier: Apache-2.0
 * kvpool-conductor: takes in the KV events of engines and pools, and tells routers over HTTP how much of a prompt each instance holds. Two threads: the loop takes in events and
 * changes the index, the HTTP server's answers from it.
 */
#include "conductor/api.h"

#include "common/daemon/conf.h"
#include "common/log.h"
#include "common/rlimits.h"
#include "common/stdfd.h"

#include <stdlib.h>

typedef struct {
    kvp_hostport_t http;
    const char *data_dir, *publishers;
    uint64_t hash_seed, blocks_max;
} settings_t;

static const kvp_opt_t opts[] = {
    {.name = "http",
     .type = KVP_OPT_HOSTPORT,
     .offset = offsetof(settings_t, http),
     .fallback = "127.0.0.1:13333",
     .help = "Where questions, registrations and metrics are served."},
    {.name = "data-dir",
     .type = KVP_OPT_STRING,
     .offset = offsetof(settings_t, data_dir),
     .metavar = "DIR",
     .help = "Keeps registrations; without it they are gone with the process."},
    {.name = "hash-seed",
     .type = KVP_OPT_U64,
     .offset = offsetof(settings_t, hash_seed),
     .fallback = "0",
     .help = "The seed of the standard hash, which publishers and routers that send hashes have to share."},
    {.name = "publishers",
     .type = KVP_OPT_STRING,
     .offset = offsetof(settings_t, publishers),
     .metavar = "FILE",
     .help = "A JSON array of registrations, as /register takes them, that are made at the start."},
    {.name = "max-blocks",
     .type = KVP_OPT_U64,
     .offset = offsetof(settings_t, blocks_max),
     .fallback = "100000000",
     .min = 1,
     .max = UINT32_MAX - 2,
     .help = "Blocks that are known at most: some 60 bytes for each and each publisher that holds it."},
};

static const kvp_conf_spec_t spec = {
    .program = "kvpool-conductor",
    .summary = "Knows which engine holds which beginnings of prompts, and tells routers.",
    .opts = opts,
    .opt_count = KVP_ARRAY_LEN(opts),
};

/* The whole daemon, in the order in which it is built. */
typedef struct {
    uv_loop_t uv;
    kvp_loop_t loop;
    kvp_registry_t *registry;
    kvp_api_t api;
    kvp_http_t *http;
    kvp_hostport_t bound;
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
build(daemon_t *d, const settings_t *s)
{
    const kvp_registry_conf_t conf = {s->hash_seed, (uint32_t)s->blocks_max, s->data_dir};
    int rc = uv_loop_init(&d->uv);
    kvp_err_t err;

    if (rc != 0) {
        kvp_log_error("conductor", "cannot make an event loop: %s", uv_strerror(rc));
        return KVP_SYS;
    }
    d->has_uv = true;
    err = kvp_loop_start(&d->loop, &d->uv, on_stop, d);
    if (err == KVP_OK) err = kvp_registry_create(&conf, &d->uv, &d->registry);
    if (err == KVP_OK && s->publishers != NULL) err = kvp_registry_load(d->registry, s->publishers);
    if (err != KVP_OK) return err;
    d->http = kvp_http_create();
    if (d->http == NULL) return KVP_NOMEM;
    err = kvp_api_route(&d->api, d->http, &d->loop, d->registry);
    if (err == KVP_OK) err = kvp_http_start(d->http, &s->http, &d->bound);
    return err;
}

static void
tear_down(daemon_t *d)
{
    if (d->has_uv) {
        on_stop(d);
        uv_run(&d->uv, UV_RUN_DEFAULT);
    }
    kvp_http_destroy(d->http);
    kvp_api_fini(&d->api);
    kvp_loop_fini(&d->loop);
    kvp_registry_destroy(d->registry);
    if (d->has_uv) uv_loop_close(&d->uv);
}

int
main(int argc, char **argv)
{
    char http[KVP_HOSTPORT_TEXT_MAX];
    settings_t settings = {0};
    static daemon_t d;
    kvp_conf_t conf;

    kvp_stdfd_hold();
    kvp_conf_init(&conf, &spec);
    int rc = kvp_conf_parse(&conf, argc, argv, &settings);
    if (rc != KVP_CONF_RUN) goto out;
    kvp_limit_raise_files();
    kvp_err_t err = build(&d, &settings);
    if (err == KVP_OK)
        err = kvp_daemon_ready_line(NULL, NULL, kvp_format_hostport(&d.bound, http),
                                    settings.data_dir != NULL ? settings.data_dir : "none");
    if (err == KVP_OK) uv_run(&d.uv, UV_RUN_DEFAULT);
    if (err != KVP_OK) kvp_log_error("conductor", "cannot start%s", err == KVP_NOMEM ? ": out of memory" : "");
    tear_down(&d);
    rc = err == KVP_OK ? 0 : 1;
out:
    kvp_conf_fini(&conf);
    return rc;
}
