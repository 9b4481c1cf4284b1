/* SPDX-License-Identifier: Apache-2.0
 * kvpool-master: parse the options, build, run, tear down in reverse order. The threads are: the loop's thread, which
 * owns the core; the second thread that continues the loop when a write of the log hangs (master/shell/relay.h); the
 * threads of the HTTP server, of the event publisher and ZMQ (--events), and of etcd's client (--etcd); the threads
 * that provide and free memory: the loop's stock of pages (common/pages.h), and jemalloc's; limit_end, at a stop; and
 * libuv's pool, from the first save of the identity, or the first new file of the log, on. */
#include "master/admin.h"
#include "master/check.h"
#include "master/core/api/master.h"
#include "master/ha/ha.h"
#include "master/shell/ident.h"
#include "master/shell/log_writer.h"
#include "master/shell/relay.h"
#include "master/shell/server.h"

#include "common/clock.h"
#include "common/daemon/conf.h"
#include "common/daemon/http.h"
#include "common/daemon/loop.h"
#include "common/hostid.h"
#include "common/log.h"
#include "common/pages.h"
#include "common/rlimits.h"
#include "proto/segfmt.h"
#include "common/stdfd.h"
#include "common/thread.h"
#include "common/trust/creds.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Options that jemalloc reads. Its background thread returns freed memory to the kernel: within a step of the core this
 * would take tens of milliseconds after the removal of millions of keys. */
extern const char *malloc_conf;
__attribute__((visibility("default"))) const char *malloc_conf = "background_thread:true";

#define REPORT_GRACE_NS (30 * KVP_NS_PER_S)
#define CURVE_USES 25000u /* limit of the uses a second that each curve tracks: half a percent of a processor */
#define END_MAX_S 5u /* a stop waits at most this long for the log's disk */
#define REQUEST_MAX_NS (2 * KVP_NS_PER_S) /* limit of the time for one request to etcd, for any length of the lease */

typedef struct {
    kvp_hostport_t listen;
    kvp_hostport_t http, conductor;
    const char *data_dir;
    const char *audit;
    const char *runtime_dir;
    uint64_t lease_ttl_ns;
    uint64_t location_lease_ns;
    uint64_t location_grace_ns;
    uint64_t node_forget_ns;
    uint64_t slow_call_ns;
    uint64_t why_bytes;
    uint64_t term;
    uint64_t hot_bytes, hot_window_ns;
    int sync; /* kvp_log_sync_t */
    int ssd_admission; /* 1 = used */
    const char *etcd, *cluster, *etcd_ca, *etcd_cert, *etcd_key, *etcd_user, *etcd_password_file;
    kvp_hostport_t advertise; /* host "" = the listening address */
    uint64_t election_ttl_ns, ack_standbys, switch_after_ns;
    kvp_publisher_conf_t events; /* endpoint NULL = no events are published */
    kvp_authn_conf_t authn;
    kvp_creds_t creds;
    bool is_forced_single;
    bool is_checking, is_repairing, is_json;
} settings_t;

static const kvp_opt_t opts[] = {
    {KVP_OPT(HOSTPORT, "listen", settings_t, listen), .fallback = "127.0.0.1:50051",
     .help = "Where clients and nodes connect; port 0 is any free port."},
    {KVP_OPT(HOSTPORT, "http", settings_t, http), .fallback = "127.0.0.1:9003",
     .help = "The address of the page, /health and /metrics; `none` = not served."},
    {KVP_OPT(HOSTPORT, "conductor", settings_t, conductor),
     .help = "The HTTP address of the pool's conductor, to which the page links."},
    {KVP_OPT_TEXT("data-dir", settings_t, data_dir, "DIR|none"),
     .help = "Where the pool's identity and its log are kept; `none` keeps nothing. Default: $XDG_STATE_HOME/kvpool, "
             "or /var/lib/kvpool."},
    {KVP_OPT_TEXT("runtime-dir", settings_t, runtime_dir, "DIR"),
     .help = "Where the socket for this host's processes lies, mode 0700, or 0750 for its group. Default: "
             "$XDG_RUNTIME_DIR/kvpool, /run/kvpool for root, or /tmp/kvpool-UID."},
    {KVP_OPT(DURATION_NS, "lease-ttl", settings_t, lease_ttl_ns), .fallback = "10s", .min = 100 * KVP_NS_PER_MS,
     .max = 3600 * KVP_NS_PER_S, .help = "How long a looked-up object is reserved for a client that does not read it."},
    {KVP_OPT(DURATION_NS, "location-lease", settings_t, location_lease_ns), .fallback = "1s", .min = 10 * KVP_NS_PER_MS,
     .max = 3600 * KVP_NS_PER_S,
     .help = "How long clients may read from known places without an answer from the master."},
    {KVP_OPT(DURATION_NS, "location-grace", settings_t, location_grace_ns), .fallback = "10s",
     .min = 10 * KVP_NS_PER_MS, .max = 3600 * KVP_NS_PER_S,
     .help = "The same while no master answers. The next master's first removals wait for this time."},
    {KVP_OPT(DURATION_NS, "node-forget", settings_t, node_forget_ns), .fallback = "10m", .min = 100 * KVP_NS_PER_MS,
     .max = 86400 * KVP_NS_PER_S, .help = "How long the objects of a disconnected node are kept for its return."},
    {KVP_OPT(BYTES, "why-memory", settings_t, why_bytes), .fallback = "64MiB", .max = 64ull << 30,
     .help = "Memory in which the master remembers why objects left the pool (`kvpool why`, lookup_misses_total), 16 "
             "bytes for each; 0 = nothing is remembered."},
    {KVP_OPT(DURATION_NS, "slow-call", settings_t, slow_call_ns), .fallback = "100ms",
     .help =
         "Requests that take longer are counted (slow_calls_total), and logged with where the time went; 0 = none."},
    {KVP_OPT(ENUM, "sync", settings_t, sync), .choices = "interval|always|none", .fallback = "interval",
     .help = "When the log is synced to the disk. interval: every 50 ms, and before a removal, an upsert or a bump is "
             "answered; always: before a put is answered, too; none: never. Answered requests survive the end of the "
             "master process in any case."},
    {KVP_OPT(ENUM, "ssd-admission", settings_t, ssd_admission), .choices = "all|used", .fallback = "all",
     .help = "The objects that are written to a node's SSD before they leave memory: all, or (`used`, to make SSDs "
             "last longer) only objects that a client asked for after the put."},
    {KVP_OPT(BYTES, "hot-rate", settings_t, hot_bytes), .fallback = "32MB", .max = 1ull << 40,
     .help = "An object that one host reads from other hosts at this rate, or all hosts at four times this rate, gets "
             "another copy. Bytes a second; 0 = no object does."},
    {KVP_OPT(DURATION_NS, "hot-window", settings_t, hot_window_ns), .fallback = "10s", .min = 100 * KVP_NS_PER_MS,
     .max = 3600 * KVP_NS_PER_S,
     .help = "The time over which --hot-rate is measured. Two such times make a copy; six under a quarter end it."},
    {KVP_OPT_TEXT("etcd", settings_t, etcd, "URL[,URL]"),
     .help = "The members of etcd, for the election among several masters. Without it this is the pool's only master."},
    {KVP_OPT(STRING, "cluster", settings_t, cluster), .fallback = "kvpool", .metavar = "NAME",
     .help = "With --etcd: the pool's name, the same for all its masters; keys lie below /kvpool/NAME."},
    {KVP_OPT(HOSTPORT, "advertise", settings_t, advertise),
     .help =
         "With --etcd: the address at which other masters and clients reach this one, if it differs from --listen."},
    {KVP_OPT(DURATION_NS, "election-ttl", settings_t, election_ttl_ns), .fallback = "2s", .min = 2 * KVP_NS_PER_S,
     .max = 600 * KVP_NS_PER_S, .help = "With --etcd: how long etcd waits for a silent leader; whole seconds."},
    {KVP_OPT(U64, "ack-standbys", settings_t, ack_standbys), .fallback = "0", .max = 15,
     .help = "With --etcd: the number of standbys that have a put in their logs before the put is answered."},
    {KVP_OPT(DURATION_NS, "switch-after", settings_t, switch_after_ns), .fallback = "10s", .max = 3600 * KVP_NS_PER_S,
     .help = "With --etcd: the time after its election in which a leader refuses `kvpool master switch`."},
    {KVP_OPT_TEXT("etcd-ca", settings_t, etcd_ca, "FILE"),
     .help = "The certificates by which an etcd with https is trusted. Default: the system's."},
    {KVP_OPT_TEXT("etcd-cert", settings_t, etcd_cert, "FILE"), .help = "The client certificate for etcd."},
    {KVP_OPT_TEXT("etcd-key", settings_t, etcd_key, "FILE"), .help = "Its key."},
    {KVP_OPT_TEXT("etcd-user", settings_t, etcd_user, "NAME"), .help = "The user name for etcd, if etcd has users."},
    {KVP_OPT_TEXT("etcd-password-file", settings_t, etcd_password_file, "FILE"),
     .help = "The user's password: the file's first line."},
    {KVP_OPT_TEXT("events", settings_t, events.endpoint, "tcp://ADDRESS:PORT"),
     .help = "The address at which KV events are published over ZMQ: puts with their places, and removals. An IP "
             "address of this host, or `*` for all."},
    {KVP_OPT_TEXT("events-replay", settings_t, events.replay, "tcp://ADDRESS:PORT"),
     .help = "With --events: the address at which subscribers ask for missed events, or for all present objects."},
    {KVP_OPT(STRING, "events-backend-id", settings_t, events.backend), .fallback = "kvpool", .metavar = "NAME",
     .help = "The pool's name in KV events (`backend_id`)."},
    {KVP_OPT(U64, "events-kept", settings_t, events.ring_events), .fallback = "65536", .min = 1024, .max = 16u << 20,
     .help = "Number of KV events kept for replays. A subscriber that missed more gets all present objects."},
    {KVP_OPT(BOOL, "events-legacy", settings_t, events.is_legacy),
     .help = "KV events have the fields of older names as well: type, block_hashes, parent_block_hash."},
    {KVP_OPT_TEXT("tokens", settings_t, authn.token_file, "FILE"),
     .help = "The tokens that this master accepts, a line for each (`kvpool token create` writes it). With it, or with "
             "--map-uid, every peer needs an identity. Paths of --http other than / and /health need a token, too. The "
             "file is read again when it changes."},
    {KVP_OPT(BOOL, "metrics-token", settings_t, authn.has_metrics_token),
     .help = "With --tokens: /metrics needs a token of the role `monitor`, too."},
    {KVP_OPT_TEXT("audit", settings_t, audit, "FILE"),
     .help = "Refusals, and all that removes objects or ends sessions, are lines of this file instead of the log: at "
             "most 100 a second, and then their number. The file may be moved away at any time."},
    {KVP_OPT_TEXT("token-file", settings_t, creds.token_file, "FILE"),
     .help = "With --etcd: this master's own token of the role `master`, by which it follows the leader's log."},
    {KVP_OPT(STRINGS, "map-uid", settings_t, authn.users), .metavar = "UID=ROLE[:TENANT]",
     .help = "The role and the tenant of a user of this host, on the Unix socket and without a token. May be given "
             "several times. Without TENANT it is the default one. Without a line for them, the master's own user and "
             "root are admin."},
    {KVP_OPT(BOOL, "http-tls", settings_t, creds.has_http_tls),
     .help = "--http serves https alone, with --tls-cert and --tls-key as they are at the start."},
    {KVP_OPT(BOOL, "insecure-tokens", settings_t, authn.allows_plain_tokens),
     .help = "Accepts tokens on TCP connections, too, which are not encrypted: for a network in which nobody listens."},
    {KVP_OPT_TEXT("tls-ca", settings_t, creds.tls_ca, "FILE"),
     .help = "The CA of the pool (`kvpool cert init`): certificates of others are refused. For --tls-cert."},
    {KVP_OPT_TEXT("tls-cert", settings_t, creds.tls_cert, "FILE"),
     .help =
         "This master's certificate (`kvpool cert master`). With it, TCP connections need TLS, and every peer needs "
         "an identity: a certificate or a token. Changed files are read again."},
    {KVP_OPT_TEXT("tls-key", settings_t, creds.tls_key, "FILE"),
     .help = "The key of --tls-cert, for this user alone (mode 0600)."},
    {KVP_OPT_TEXT("tls-crl", settings_t, creds.tls_crl, "FILE"),
     .help = "The list of revoked certificates of --tls-ca. New connections with one are refused."},
    {KVP_OPT(BOOL, "insecure", settings_t, creds.is_insecure),
     .help = "Opens ports without TLS or tokens at addresses that other hosts reach: every host that connects can then "
             "read and remove all objects. Without this option such an address is refused."},
    {KVP_OPT(BOOL, "force-single", settings_t, is_forced_single),
     .help = "Starts as the only master, without --etcd, in a data directory of a cluster. No other master of the "
             "cluster may run."},
    {KVP_OPT(U64, "term", settings_t, term), .fallback = "1", .min = 1, .max = KVP_TERM_MAX,
     .help = "The lowest term to start with. For a pool whose nodes obey a higher term than the master accepts; the "
             "log names the term."},
    {KVP_OPT(BOOL, "check", settings_t, is_checking),
     .help = "Serves nothing: reports how a start would read the log in --data-dir (`kvpool fsck --data-dir`)."},
    {KVP_OPT(BOOL, "repair", settings_t, is_repairing),
     .help = "With --check: sets the damaged part aside, so that a start continues with the rest of the log and the "
             "nodes' reports."},
    {KVP_OPT(BOOL, "json", settings_t, is_json), .help = "With --check: prints one JSON object instead of text."},
};

static const kvp_conf_spec_t spec = {
    .program = "kvpool-master",
    .summary = "Knows where every object of a kvpool lives; never touches its bytes.",
    .opts = opts,
    .opt_count = KVP_ARRAY_LEN(opts),
};

/* The whole daemon; the fields are in the order in which they are built. */
typedef struct {
    kvp_ident_t ident;
    kvp_log_writer_t log;
    kvp_authn_t authn;
    bool has_authn; /* flag: peers need an identity */
    char protection[KVP_PROTECTION_MAX];
    kvp_creds_t tls;
    kvp_server_t *server;
    kvp_master_t *core; /* NULL = the server owns the core */
    kvp_ha_t *ha; /* NULL = a single master */
    kvp_server_ops_t ops;
    char host_id[KVP_HOST_ID_MAX + 1];
    char password[256];
    kvp_admin_t admin;
    uv_loop_t uv;
    bool has_uv;
    kvp_loop_t loop;
    kvp_relay_t relay;
    bool is_ending;
    atomic_bool is_log_closed;
    kvp_eventpub_t *events; /* NULL = no events are published */
    uv_async_t events_wake;
    bool has_events_wake;
    kvp_http_t *http;
    kvp_hostport_t http_bound; /* host "" = no HTTP */
} daemon_t;

/* Saves the pool's identity and term for the core, which may take a higher term or the pool's identity from a node;
 * the next start must not use an older term. Runs in a thread of libuv's pool, one call at a time: d->ident belongs
 * to it while the loop runs. */
static bool
save_ident(void *arg, const kvp_master_ident_t *now)
{
    daemon_t *d = arg;

    memcpy(d->ident.pool_id, now->pool_id, sizeof d->ident.pool_id);
    d->ident.digest_seed = now->digest_seed;
    return kvp_ident_save(&d->ident, now->term) == KVP_OK; /* a failure was logged */
}

/* Ends the process after END_MAX_S, so that a hanging disk does not prevent its end. */
static void *
limit_end(void *arg)
{
    daemon_t *d = arg;

    sleep(END_MAX_S);
    if (atomic_load(&d->is_log_closed)) return NULL;
    kvp_log_error("master",
                  "the log is not closed after %u s, its disk may not answer; the master ends now, and no acknowledged "
                  "request is lost dir=%s/log",
                  END_MAX_S, d->ident.dir);
    _exit(1);
}

static void
on_stop(void *arg)
{
    daemon_t *d = arg;

    if (!d->is_ending && !kvp_detach(limit_end, d)) kvp_log_warn("master", "cannot start a thread: %m");
    d->is_ending = true;
    kvp_server_stop(d->server);
    kvp_ha_stop(d->ha);
    kvp_admin_stop(&d->admin);
    if (d->has_events_wake && !uv_is_closing((uv_handle_t *)&d->events_wake)) {
        kvp_server_publish(d->server, NULL);
        kvp_log_writer_tap(&d->log, NULL, NULL);
        kvp_publisher_destroy(d->events); /* destroyed before events_wake, which the publisher's thread uses */
        d->events = NULL;
        uv_close((uv_handle_t *)&d->events_wake, NULL);
    }
    /* Ends the calls for which the HTTP thread waits; from here on a second signal kills the process. */
    kvp_loop_stop(&d->loop);
}

static kvp_err_t
read_password(daemon_t *d, const char *path)
{
    FILE *file = path == NULL ? NULL : fopen(path, "re");

    if (path == NULL) return KVP_OK;
    if (file == NULL || fgets(d->password, sizeof d->password, file) == NULL) {
        kvp_log_error("master", "cannot read the password of etcd: %m file=%s", path);
        if (file != NULL) fclose(file);
        return KVP_SYS;
    }
    fclose(file);
    d->password[strcspn(d->password, "\r\n")] = '\0';
    return KVP_OK;
}

/* Checks conditions between options that the table of options cannot express. */
static kvp_err_t
check_ha_settings(const settings_t *s)
{
    const char *why = NULL;

    if (s->etcd == NULL && (s->ack_standbys > 0 || s->advertise.host[0] != '\0'))
        why = "--ack-standbys and --advertise are of several masters: --etcd is missing";
    else if (s->etcd != NULL && s->is_forced_single)
        why = "--force-single is of a master alone, --etcd of several";
    else if (s->election_ttl_ns % KVP_NS_PER_S != 0)
        why = "--election-ttl takes whole seconds";
    else if ((s->etcd_cert == NULL) != (s->etcd_key == NULL))
        why = "--etcd-cert and --etcd-key go together";
    else if ((s->etcd_user == NULL) != (s->etcd_password_file == NULL))
        why = "--etcd-user and --etcd-password-file go together";
    if (why != NULL) kvp_log_error("master", "%s", why);
    return why == NULL ? KVP_OK : KVP_INVALID;
}

static kvp_err_t
build_ha(daemon_t *d, const settings_t *s, const kvp_master_conf_t *core)
{
    const kvp_ha_conf_t conf = {
        .etcd = {.endpoints = s->etcd,
                 .ca_file = s->etcd_ca,
                 .cert_file = s->etcd_cert,
                 .key_file = s->etcd_key,
                 .user = s->etcd_user,
                 .password = s->etcd_password_file == NULL ? NULL : d->password,
                 .request_ns = kvp_min_u64(s->election_ttl_ns / 4, REQUEST_MAX_NS)},
        .cluster = s->cluster,
        .ttl_s = (uint32_t)(s->election_ttl_ns / KVP_NS_PER_S),
        .ack_standbys = (uint32_t)s->ack_standbys,
        .switch_after_ns = s->switch_after_ns,
        .ident = &d->ident,
        .log = &d->log,
        .server = d->server,
        .core = *core,
    };
    kvp_err_t err = read_password(d, s->etcd_password_file);
    if (err == KVP_OK && (strlen(s->cluster) > KVP_ELECTION_CLUSTER_MAX || strpbrk(s->cluster, "/ ") != NULL)) {
        kvp_log_error("master", "the cluster's name is too long, or has a slash or a blank: %s", s->cluster);
        err = KVP_INVALID;
    }
    if (err == KVP_OK) err = kvp_ident_join(&d->ident, s->cluster);
    if (err == KVP_OK) err = kvp_ha_create(&conf, &d->ha);
    if (err != KVP_OK) return err;
    kvp_ha_ops(d->ha, &d->ops);
    d->core = kvp_ha_core(d->ha);
    return KVP_OK;
}

/* ---- events */
static void
wake_loop(void *arg)
{
    daemon_t *d = arg;

    (void)uv_async_send(&d->events_wake);
}

static void
on_events_wake(uv_async_t *async)
{
    daemon_t *d = async->data;

    if (d->events != NULL) kvp_server_flush(d->server);
}

static void
on_log_records(void *arg, const void *records, size_t len)
{
    kvp_publisher_log(arg, records, len);
}

static kvp_err_t
build_events(daemon_t *d, const settings_t *s)
{
    const kvp_publisher_conf_t *conf = &s->events;

    if (conf->endpoint == NULL && conf->replay == NULL) return KVP_OK;
    const char *why = NULL;
    if (conf->endpoint == NULL)
        why = "--events-replay goes with --events";
    else if (!kvp_is_zmq_endpoint(conf->endpoint) || (conf->replay != NULL && !kvp_is_zmq_endpoint(conf->replay)))
        why = "--events and --events-replay are tcp://ADDRESS:PORT or ipc://NAME";
    else if (conf->backend[0] == '\0')
        why = "--events-backend-id is empty";
    if (why != NULL) {
        kvp_log_error("master", "%s", why);
        return KVP_INVALID;
    }
    if (uv_async_init(&d->uv, &d->events_wake, on_events_wake) != 0) return KVP_SYS;
    d->events_wake.data = d;
    d->has_events_wake = true;
    kvp_err_t err = kvp_publisher_create(conf, wake_loop, d, &d->events);
    if (err != KVP_OK) return err;
    kvp_log_writer_tap(&d->log, on_log_records, d->events);
    kvp_server_publish(d->server, d->events);
    return KVP_OK;
}

/* Events are never protected, so without --insecure they stay at loopback and ipc addresses. */
static kvp_err_t
may_publish(const char *endpoint, bool is_insecure)
{
    kvp_hostport_t at;
    char text[KVP_HOSTPORT_TEXT_MAX];

    if (endpoint == NULL || strncmp(endpoint, "tcp://", 6) != 0) return KVP_OK;
    snprintf(text, sizeof text, "%s%s", endpoint[6] == '*' ? "0.0.0.0" : "", endpoint + (endpoint[6] == '*' ? 7 : 6));
    if (kvp_parse_hostport(text, &at) != KVP_OK) return KVP_OK; /* the publisher refuses it */
    return kvp_may_listen("--events", &at, false, "ipc://PATH", is_insecure);
}

static kvp_err_t
open_authn(daemon_t *d, const settings_t *s)
{
    kvp_authn_conf_t conf = s->authn;
    kvp_err_t err = kvp_creds_set(&s->creds);

    conf.has_tls = kvp_creds_tls(&d->tls);
    d->has_authn = conf.has_tls || conf.token_file != NULL || conf.users.count > 0;
    if (err == KVP_OK)
        err = kvp_may_listen("--listen", &s->listen, d->has_authn && !conf.allows_plain_tokens,
                             "--tls-cert (kvpool cert) or --tokens, without --insecure-tokens",
                             s->creds.is_insecure || (d->has_authn && conf.allows_plain_tokens));
    if (err == KVP_OK)
        err = kvp_may_listen("--http", &s->http, conf.token_file != NULL, "--tokens", s->creds.is_insecure);
    if (err == KVP_OK) err = may_publish(s->events.endpoint, s->creds.is_insecure);
    if (err == KVP_OK) err = may_publish(s->events.replay, s->creds.is_insecure);
    const char *by = conf.has_tls ? "tls" : conf.allows_plain_tokens ? "plain tokens" : "tokens";

    snprintf(d->protection, sizeof d->protection, "control %s, http %s",
             kvp_protection_of(&s->listen, d->has_authn ? by : NULL),
             kvp_protection_of_http(&s->http, conf.token_file != NULL, s->creds.has_http_tls));
    return err == KVP_OK && d->has_authn ? kvp_authn_open(&d->authn, &conf) : err;
}

static kvp_err_t
build_core(daemon_t *d, const settings_t *s)
{
    kvp_err_t err = check_ha_settings(s);
    if (err == KVP_OK) err = kvp_runtime_set(s->runtime_dir, NULL);
    if (err == KVP_OK) err = kvp_ident_open(s->data_dir, (uint32_t)s->term, s->etcd == NULL, &d->ident);
    if (err == KVP_OK && s->etcd == NULL && !s->is_forced_single) err = kvp_ident_may_be_alone(&d->ident);
    if (err != KVP_OK) return err;
    err = kvp_pages_stock_start();
    if (err == KVP_OK) err = kvp_log_audit_open(s->audit);
    if (err == KVP_OK) err = open_authn(d, s);
    if (err != KVP_OK) return err;
    const bool is_kept = d->ident.dir_fd >= 0, has_log = is_kept || s->events.endpoint != NULL;
    kvp_server_conf_t server_conf = {
        .listen = s->listen,
        .save_ident = save_ident,
        .save_ident_arg = d,
        .slow_call_ns = s->slow_call_ns,
        .log = has_log ? &d->log : NULL,
        .ops = s->etcd == NULL ? NULL : &d->ops,
        .authn = d->has_authn ? &d->authn : NULL,
        .tls = d->authn.conf.has_tls ? &d->tls : NULL,
    };
    err = kvp_server_create(&server_conf, &d->server);
    if (err != KVP_OK) return err;

    kvp_host_id(d->host_id);
    kvp_master_conf_t conf = {
        .digest_seed = d->ident.digest_seed,
        .seed = kvp_random_u64(),
        .secret = kvp_random_u64(),
        .term = d->ident.term,
        .departed_bytes = s->why_bytes,
        .curve_uses = CURVE_USES,
        .lease_ns = s->lease_ttl_ns,
        .location_lease_ns = s->location_lease_ns,
        .location_grace_ns = kvp_max_u64(s->location_lease_ns, s->location_grace_ns),
        .had_master = d->ident.had_master,
        .node_grace_ns = s->node_forget_ns,
        .report_grace_ns = REPORT_GRACE_NS,
        .saves_ident = true,
        .has_journal = has_log,
        .log_sync = is_kept ? (kvp_log_sync_t)s->sync : KVP_LOG_SYNC_NONE,
        .log_names_gone = s->events.endpoint != NULL,
        .hot_bytes_per_s = s->hot_bytes,
        .hot_window_ns = s->hot_window_ns,
        .ssd_wants_use = s->ssd_admission == 1,
        .host_id = d->host_id,
        .protection = d->protection,
        .unix_path = kvp_server_unix_path(d->server),
    };
    memcpy(conf.pool_id, d->ident.pool_id, sizeof(conf.pool_id));
    if (s->etcd != NULL)
        err = build_ha(d, s, &conf);
    else
        err = kvp_master_create(&conf, kvp_boot_ns(), &d->core);
    if (err == KVP_OK && is_kept && d->ha == NULL) err = kvp_log_writer_open(&d->log, &d->ident, d->core);
    if (err == KVP_OK && !is_kept && has_log) err = kvp_log_writer_open_nowhere(&d->log, d->core);
    return err != KVP_OK ? err : kvp_admin_init(&d->admin);
}

static kvp_err_t
build_loop(daemon_t *d, const settings_t *s)
{
    int rc = uv_loop_init(&d->uv);
    if (rc != 0) {
        kvp_log_error("master", "cannot make an event loop: %s", uv_strerror(rc));
        return KVP_SYS;
    }
    d->has_uv = true;
    kvp_err_t err = kvp_loop_start(&d->loop, &d->uv, on_stop, d);
    if (err == KVP_OK) err = kvp_server_start(d->server, &d->uv, d->core, &d->admin.times);
    if (err != KVP_OK) return err;
    d->core = NULL;
    return build_events(d, s);
}

/* Starts the election, with the address for the other masters: the host's name, if this master listens on all
 * addresses of the host. A single master only sets its entry in the list of masters. */
static kvp_err_t
start_ha(daemon_t *d, const settings_t *s)
{
    char address[KVP_HOSTPORT_TEXT_MAX], http[KVP_HTTP_TEXT_MAX] = "";
    kvp_hostport_t at = s->advertise.host[0] != '\0' ? s->advertise : *kvp_server_bound(d->server);

    if (d->ha == NULL) {
        kvp_master_peer_t self = {.state = KVP_MASTER_LEADER};

        kvp_format_hostport(&at, self.address);
        if (d->http != NULL) kvp_format_http(&d->http_bound, s->creds.has_http_tls, self.http);
        kvp_master_note_masters(kvp_server_core(d->server), "", &self, 1);
        return KVP_OK;
    }
    if (strcmp(at.host, "0.0.0.0") == 0 || strcmp(at.host, "::") == 0) (void)gethostname(at.host, sizeof at.host - 1);
    if (at.port == 0) at.port = kvp_server_bound(d->server)->port;
    if (d->http != NULL) kvp_format_http(&d->http_bound, s->creds.has_http_tls, http);
    return kvp_ha_start(d->ha, &d->uv, kvp_format_hostport(&at, address), http);
}

static kvp_err_t
build_http(daemon_t *d, const settings_t *s)
{
    if (s->http.host[0] == '\0') return KVP_OK;
    d->http = kvp_http_create();
    if (d->http == NULL) return KVP_NOMEM;
    d->admin.protection = d->protection;
    if (s->conductor.host[0] != '\0') kvp_format_hostport(&s->conductor, d->admin.conductor);
    kvp_err_t err = kvp_admin_route(&d->admin, d->http, &d->loop, d->server, d->ha, d->events);
    if (err == KVP_OK)
        err = kvp_http_protect(d->http, s->authn.token_file, s->authn.has_metrics_token,
                               s->creds.has_http_tls ? KVP_IS_MASTER : KVP_MAY_NOTHING);
    if (err == KVP_OK) err = kvp_admin_sample(&d->admin, &d->uv);
    return err != KVP_OK ? err : kvp_http_start(d->http, &s->http, &d->http_bound);
}

static kvp_err_t
say_ready(const daemon_t *d)
{
    char listen[KVP_HOSTPORT_TEXT_MAX], http[KVP_HOSTPORT_TEXT_MAX];
    const char *path = kvp_server_unix_path(d->server);

    kvp_format_hostport(kvp_server_bound(d->server), listen);
    if (d->http != NULL) kvp_format_hostport(&d->http_bound, http);
    if (!d->has_authn && !kvp_hostport_is_loopback(kvp_server_bound(d->server)))
        kvp_log_warn(
            "master",
            "clients are not authenticated: every host that can connect here can read and remove all objects listen=%s",
            listen);
    kvp_log_info("master", "serving listen=%s term=%u data=%s protection=%s", listen, d->ident.term, d->ident.dir,
                 d->protection);
    return kvp_daemon_ready_line(listen, path[0] != '\0' ? path : NULL, d->http != NULL ? http : NULL, d->ident.dir);
}

/* tear_down ends everything that was built, in any state. The loop's handles, closed by on_stop, need a last uv_run. */
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
    kvp_log_writer_fini(&d->log); /* takes the core's last records */
    atomic_store(&d->is_log_closed, true);
    kvp_master_destroy(d->core != NULL || d->server == NULL ? d->core : kvp_server_core(d->server));
    kvp_ha_destroy(d->ha);
    kvp_pages_stock_stop();
    kvp_server_destroy(d->server);
    kvp_authn_close(&d->authn);
    kvp_ident_close(&d->ident);
}

static kvp_turn_t
run_turn(void *arg)
{
    daemon_t *d = arg;

    if (uv_run(&d->uv, UV_RUN_ONCE) == 0) return KVP_TURN_OVER;
    if (!kvp_log_writer_begin_write(&d->log, kvp_boot_ns())) return KVP_TURN_NEXT;
    if (!kvp_relay_call(&d->relay, kvp_log_writer_write, &d->log)) {
        kvp_ignore(kvp_loop_call(&d->loop, kvp_log_writer_end_write, &d->log, UINT32_MAX), "the loop has ended");
        return KVP_TURN_LOST;
    }
    kvp_log_writer_end_write(&d->log);
    return KVP_TURN_NEXT;
}

int
main(int argc, char **argv)
{
    static daemon_t d = {.ident = {.dir_fd = -1, .lock_fd = -1}};
    settings_t settings = {0};
    kvp_conf_t conf;

    kvp_stdfd_hold();
    kvp_limit_survive_file_size();
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
    if (err == KVP_OK) err = build_loop(&d, &settings);
    if (err == KVP_OK) err = build_http(&d, &settings);
    if (err == KVP_OK) err = start_ha(&d, &settings);
    if (err == KVP_OK) err = say_ready(&d);
    if (err == KVP_OK) err = kvp_relay_run(&d.relay, run_turn, &d);
    /* The failing function has logged the reason, except a lack of memory. */
    if (err != KVP_OK) kvp_log_error("master", "cannot start%s", err == KVP_NOMEM ? ": out of memory" : "");
    tear_down(&d);
    rc = err == KVP_OK ? 0 : 1;
out:
    kvp_conf_fini(&conf);
    return rc;
}
