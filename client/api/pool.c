/* SPDX-License-Identifier: Apache-2.0
 * The C API: opens and closes a handle, begins and ends every call, registers memory, returns texts. Puts and gets
 * are in put_get.c, questions to the master in questions.c, figures in stat.c.
 *
 * Life of a handle: open, calls by any number of threads, close, free. Close makes running calls end with CLOSED and
 * waits for them. In a forked child every call returns FORKED. There kvpool_free frees nothing but the handle itself,
 * because its locks may be held by threads that do not exist in the child. */
#include "client/api/env.h"
#include "client/api/pool.h"
#include "client/api/exporter.h"

#include "client/data/fetch.h"
#include "common/trust/creds.h"
#include "common/waits.h"
#include "transport/all/registry.h"
#include "transport/rdma/verbs/select.h"
#include "common/forkguard.h"
#include "common/jsonw.h"
#include "common/log.h"
#include "common/pages.h"
#include "common/parse.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* limit of the text of kvp_query_run_text: more than a page of sessions needs */
#define QUERY_TEXT_MAX (256u << 10)

/* ---- questions to the master: one message and one answer */
kvp_op_session_t
kvp_link_session(const kvpool_t *pool, const kvp_link_t *link)
{
    const kvp_hello_reply_t *hello = kvp_conn_hello(link->conn);

    return (kvp_op_session_t){
        .incarnation = hello->incarnation,
        .digest_seed = hello->digest_seed,
        .term = hello->term,
        .tenant = hello->rights[0] != '\0' ? kvp_tenant_id(hello->tenant) : pool->tenant,
        .known = link->locs == NULL ? NULL : kvp_locations_known(link->locs),
        .boot_ns = link->locs == NULL ? 0 : kvp_boot_ns(),
    };
}

kvp_err_t
kvp_call_hold(kvp_apicall_t *call, kvp_link_t **link_out)
{
    kvp_mastersession_t *s = call->pool->session;
    kvp_err_t err;

    if (call->pool->is_state_only && !call->asks_state) return KVP_NOT_LEADER;
    const uint64_t began_ns = kvp_now_ns();
    err = call->is_patient ? kvp_session_hold(s, call->deadline_ns, link_out)
                           : kvp_session_hold_soon(s, call->deadline_ns, link_out);
    call->master_ns += kvp_now_ns() - began_ns;
    if ((err == KVP_UNREACHABLE || err == KVP_DENIED || err == KVP_EXPIRED || err == KVP_INVALID) &&
        call->detail != NULL)
        kvp_session_why(s, call->detail, call->detail_cap);
    return err;
}

static void
keep_detail(const kvp_apicall_t *call, const kvp_frame_t *answer)
{
    Kvp__Pb__Reply *msg;
    kvp_pb_t pb;

    if (call->detail == NULL) return;
    /* every answer begins with the two fields of Reply, err and detail, so it can be decoded as a Reply */
    msg = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, answer);
    if (msg != NULL && msg->detail[0] != '\0') snprintf(call->detail, call->detail_cap, "%s", msg->detail);
    kvp_pb_free(&pb, msg);
}

kvp_err_t
kvp_call_ask(kvp_apicall_t *call, kvp_link_t *link, kvp_frame_t *answer_out)
{
    uint64_t silence_ns = call->is_patient ? 0 : kvp_session_master_wait(call->pool->session);
    kvp_scratch_t *s = call->scratch;
    kvp_err_t err;

    kvp_count(&call->pool->counters.master_calls, 1);
    kvp_session_queue_used(link);
    const uint64_t began_ns = kvp_now_ns();
    err = kvp_conn_call_soon(link->conn, &s->out, call->deadline_ns, silence_ns, &s->in, answer_out);
    call->master_ns += kvp_now_ns() - began_ns;
    if (err == KVP_OK) keep_detail(call, answer_out);
    return err;
}

static void
build_query(kvp_query_t *query, const kvp_op_session_t *session, kvp_buf_t *out)
{
    kvp_digest_t *digests;
    size_t at;

    kvp_buf_reset(out);
    kvp_pb_frame_begin(out, query->opcode, 0, 0, query->head, &at);
    digests = (kvp_digest_t *)kvp_buf_extend(out, query->n * sizeof *digests);
    for (uint32_t i = 0; i < query->n && digests != NULL; i++) {
        const kvpool_key_t *key = &query->keys[kvp_query_at(query, i)];

        digests[i] = kvp_op_digest(session, key->data, key->len);
    }
    kvp_frame_end(out, at);
    query->incarnation = session->incarnation;
    query->asked_ns = kvp_boot_ns();
    query->digests = digests;
}

kvp_err_t
kvp_query_run(kvp_apicall_t *call, kvp_query_t *query)
{
    kvp_mastersession_t *at = call->pool->session;

    call->keys_n += query->n;
    for (;;) {
        kvp_op_session_t session;
        kvp_link_t *link;
        kvp_frame_t answer;
        kvp_err_t err = kvp_call_hold(call, &link);

        if (err != KVP_OK) return err;
        session = kvp_link_session(call->pool, link);
        build_query(query, &session, &call->scratch->out);
        err = kvp_call_ask(call, link, &answer);
        if (err == KVP_OK) err = query->read(query, &answer);
        if (kvp_op_is_session_loss(err) || err == KVP_PROTO) kvp_conn_break(link->conn);
        kvp_session_rele(at, link);
        if (!kvp_op_is_session_loss(err)) return err;
        query->was_cut = true;
    }
}

kvp_err_t
kvp_query_run_text(kvp_apicall_t *call, kvp_query_t *query, char *buf, size_t cap, size_t *len_out)
{
    kvp_jsonw_t w;
    kvp_buf_t text;
    kvp_err_t err;

    kvp_buf_init(&text, QUERY_TEXT_MAX);
    kvp_jsonw_init(&w, &text);
    query->arg = &w;
    err = kvp_query_run(call, query);
    if (err == KVP_OK) err = kvp_jsonw_give(&text, buf, cap, len_out);
    kvp_buf_fini(&text);
    return err;
}

/* Forgets the recorded tickets even without a session: no later session restores the tickets. */
bool
kvp_call_release(kvp_apicall_t *call, uint64_t id)
{
    kvp_held_tickets_t *held_tickets = &call->pool->held_tickets;
    kvp_buf_t *tickets = &call->scratch->in;
    kvp_link_t *link;
    bool is_held;

    kvp_buf_reset(tickets);
    if (kvp_session_hold(call->pool->session, 0, &link) != KVP_OK) {
        (void)kvp_held_tickets_release(held_tickets, id, 0, tickets);
        return false;
    }
    is_held = kvp_held_tickets_release(held_tickets, id, kvp_conn_hello(link->conn)->incarnation, tickets);
    kvp_held_tickets_give_back(link->conn, tickets, &call->scratch->out);
    is_held &= !kvp_conn_is_broken(link->conn);
    kvp_session_rele(call->pool->session, link);
    return is_held;
}

#define DEADLINE_DEFAULT_MS 5000u
#define MASTER_DEFAULT "127.0.0.1:50051"
#define LISTEN_DEFAULT "127.0.0.1:0"
#define LOCATIONS_DEFAULT (64u << 10)
#define WHY_MAX 512u
#define UNMOUNT_NS (500 * KVP_NS_PER_MS)

/* Sizes of kvpool_opts_t in earlier versions; a caller built against an earlier version passes its size. */
#define OPTS_V1_BYTES offsetof(kvpool_opts_t, replicas)
#define OPTS_V2_BYTES offsetof(kvpool_opts_t, detail)
#define OPTS_V3_BYTES offsetof(kvpool_opts_t, segment)
#define OPTS_V4_BYTES offsetof(kvpool_opts_t, lineage)

#define FLAGS_ALL                                                                                                      \
    (KVPOOL_FORCE | KVPOOL_UPSERT | KVPOOL_PIN_SOFT | KVPOOL_PIN_HARD | KVPOOL_WAIT | KVPOOL_HEED_PROBES |             \
     KVPOOL_FRESH | KVPOOL_GROUPS | KVPOOL_SOON | KVPOOL_LINEAGES | KVPOOL_PREFETCH | KVPOOL_REPORT_ALREADY |          \
     KVPOOL_EPOCH | KVPOOL_PLACES | KVPOOL_ALL_TENANTS | KVPOOL_CURVES | KVPOOL_KEEP_HERE)

/* ---- begin and end of every call */
const char *const kvp_call_names[KVP_CALLS_N] = {
#define CALL_NAME(name) #name,
    KVP_CLIENT_CALLS(CALL_NAME)
#undef CALL_NAME
};

static bool
are_opts_legal(const kvpool_opts_t *opts)
{
    if (opts->struct_size != sizeof *opts && opts->struct_size != OPTS_V4_BYTES && opts->struct_size != OPTS_V3_BYTES &&
        opts->struct_size != OPTS_V2_BYTES && opts->struct_size != OPTS_V1_BYTES)
        return false;
    if ((opts->flags & ~FLAGS_ALL) != 0) return false;
    if ((opts->flags & KVPOOL_PIN_SOFT) != 0 && (opts->flags & KVPOOL_PIN_HARD) != 0) return false;
    if ((opts->flags & KVPOOL_EPOCH) != 0 && opts->struct_size != sizeof *opts) return false;
    if (opts->struct_size == sizeof *opts && opts->prefer_n > 0 &&
        (opts->prefer_n > KVP_REPLICAS_MAX || opts->prefer == NULL))
        return false;
    return opts->struct_size == OPTS_V1_BYTES || opts->replicas <= KVP_REPLICAS_MAX;
}

kvp_err_t
kvp_call_begin(kvpool_t *pool, const kvpool_opts_t *opts, kvp_apicall_t *call_out)
{
    bool has_detail = opts != NULL && opts->struct_size > OPTS_V2_BYTES && opts->detail != NULL && opts->detail_cap > 0;
    kvp_err_t err;
    uint64_t now_ns;
    uint32_t ms;

    if (pool == NULL) return KVP_INVALID;
    if (kvp_forkguard_is_forked(&pool->guard)) return KVP_FORKED;
    if (opts != NULL && !are_opts_legal(opts)) return KVP_INVALID;
    err = kvp_calls_enter(&pool->calls);
    if (err != KVP_OK) return err;

    ms = opts != NULL && opts->deadline_ms != 0 ? opts->deadline_ms : pool->deadline_ms;
    now_ns = kvp_now_ns();
    *call_out = (kvp_apicall_t){
        .pool = pool,
        .scratch = kvp_scratch_take(&pool->scratches),
        .began_ns = now_ns,
        .deadline_ns = now_ns + ms * KVP_NS_PER_MS,
        .flags = opts != NULL ? opts->flags : 0,
        .replicas = opts != NULL && opts->struct_size > OPTS_V1_BYTES ? opts->replicas : 0,
        .detail = has_detail ? opts->detail : NULL,
        .detail_cap = has_detail ? opts->detail_cap : 0,
        .segment = opts != NULL && opts->struct_size > OPTS_V3_BYTES ? opts->segment : 0,
        .lineage = opts != NULL && opts->struct_size > OPTS_V4_BYTES ? opts->lineage : NULL,
        .epoch = opts != NULL && opts->struct_size == sizeof *opts ? opts->epoch : 0,
        .prefer = opts != NULL && opts->struct_size == sizeof *opts ? opts->prefer : NULL,
        .prefer_n = opts != NULL && opts->struct_size == sizeof *opts ? opts->prefer_n : 0,
        .is_patient = opts != NULL && opts->deadline_ms != 0 && (opts->flags & KVPOOL_SOON) == 0,
    };
    if (has_detail) opts->detail[0] = '\0';
    if (call_out->scratch != NULL) return KVP_OK;
    kvp_calls_leave(&pool->calls);
    return KVP_NOMEM;
}

static unsigned long long
ms_of(uint64_t ns)
{
    return ns / KVP_NS_PER_MS;
}

static void
log_slow(const kvp_apicall_t *call, uint64_t took_ns, kvp_err_t err)
{
    uint32_t missed;

    kvp_count(&call->pool->counters.slow_calls, 1);
    if (!kvp_log_limit_ok(&call->pool->slow_limit, &missed)) return;
    kvp_log_info("client",
                 "slow call call=%s keys=%u ms=%llu master_ms=%llu node_ms=%llu copy_ms=%llu retry_ms=%llu error=%s "
                 "missed=%u",
                 call->took != NULL ? kvp_call_names[call->took - call->pool->calls_ns] : "other", call->keys_n,
                 ms_of(took_ns), ms_of(call->master_ns), ms_of(call->node_ns), ms_of(call->move_ns - call->node_ns),
                 ms_of(call->retry_ns), kvp_err_name(err), missed);
}

kvp_err_t
kvp_call_end(kvp_apicall_t *call, kvp_err_t err)
{
    kvpool_t *pool = call->pool;

    const uint64_t took_ns = kvp_now_ns() - call->began_ns;
    if (call->took != NULL) kvp_histogram_add(call->took, took_ns);
    kvp_count(&pool->counters.deadlines, err == KVP_DEADLINE);
    if (pool->slow_call_ns > 0 && took_ns > pool->slow_call_ns) log_slow(call, took_ns, err);
    kvp_scratch_rele(&pool->scratches, call->scratch);
    kvp_calls_leave(&pool->calls);
    return err;
}

/* ---- open */
typedef struct {
    kvpool_conf_t conf; /* caller's conf plus defaults; strings belong to caller, environment or this struct */
    char name[KVP_HOST_ID_MAX + 1];
    char host_id[KVP_HOST_ID_MAX + 1];
    kvp_session_conf_t session;
    kvp_hostport_t metrics; /* address at which metrics are served; an empty host = none */
    uint64_t slow_call_ns, drain_ns;
} opening_t;

static const char *
or_env(const char *value, const char *variable, const char *fallback)
{
    if (value != NULL && value[0] != '\0') return value;
    value = getenv(variable);
    return value != NULL && value[0] != '\0' ? value : fallback;
}

static kvp_err_t
refuse_opening(const opening_t *o, kvp_err_t err, const char *what, const char *why)
{
    return kvp_refuse(o->conf.detail, o->conf.detail_cap, err, what, why);
}

/* Parses the list of transports, such as "shm,tcp", into the session's configuration. */
static kvp_err_t
choose_transports(opening_t *o)
{
    kvp_peers_conf_t *p = &o->session.peers;
    const bool is_told = o->conf.transports != NULL && o->conf.transports[0] != '\0';
    const char *text = or_env(o->conf.transports, "KVPOOL_TRANSPORTS", NULL);
    char why[WHY_MAX] = "";
    kvp_err_t err = KVP_OK;

    /* Checks the selected RDMA device. Leaves it alone only if the list of transports has no rdma and a device is
     * named. Without a named device, the check replaces the selection of an earlier handle, which may have failed and
     * which an embedded node would use. */
    if (text == NULL || kvp_is_listed(text, "rdma") || or_env(NULL, "KVPOOL_RDMA_DEVICE", NULL) == NULL)
        err = kvp_rdma_select(getenv("KVPOOL_RDMA_DEVICE"), getenv("KVPOOL_RDMA_GID_INDEX"), why, sizeof why);
    if (err != KVP_OK) return refuse_opening(o, err, "KVPOOL_RDMA_DEVICE, KVPOOL_RDMA_GID_INDEX", why);
    if (text == NULL) {
        err = kvp_transports_default(p->transports, KVP_TRANSPORTS_MAX, &p->transports_n, why, sizeof why);
        return err == KVP_OK ? err : refuse_opening(o, err, "KVPOOL_RDMA_DEVICE, KVPOOL_RDMA_GID_INDEX", why);
    }
    err = kvp_transports_parse(text, p->transports, KVP_TRANSPORTS_MAX, &p->transports_n, why, sizeof why);
    return err == KVP_OK ? err : refuse_opening(o, err, is_told ? "transports" : "KVPOOL_TRANSPORTS", why);
}

static kvp_err_t
choose_verify(opening_t *o)
{
    kvp_err_t err;

    if (o->conf.verify > KVPOOL_VERIFY_ADAPTERS)
        return refuse_opening(o, KVP_INVALID, "verify", "unknown way to verify");
    err = kvp_env_verify(o->conf.detail, o->conf.detail_cap, &o->conf.verify);
    if (err != KVP_OK) return err;
    o->session.peers.trusts_adapters = o->conf.verify == KVPOOL_VERIFY_ADAPTERS;
    return KVP_OK;
}

/* Refuses an SSD without memory or without a name. The SSD's file belongs to the node's name, and the default name
 * changes at every start, because it contains the process id. */
static kvp_err_t
check_ssd(const opening_t *o)
{
    if (o->conf.ssd_n == 0) return KVP_OK;
    if (o->conf.ssd == NULL || o->conf.memory_bytes == 0)
        return refuse_opening(o, KVP_INVALID, "ssd", "an SSD is that of an embedded node, which has memory as well");
    if (o->conf.name != NULL && o->conf.name[0] != '\0') return KVP_OK;
    return refuse_opening(o, KVP_INVALID, "ssd", "a name is wanted, by which the node is known again after a restart");
}

static kvp_err_t
choose_names(opening_t *o)
{
    if (o->conf.name == NULL || o->conf.name[0] == '\0') {
        snprintf(o->name, sizeof o->name, "%.100s-%ld", program_invocation_short_name, (long)getpid());
        o->conf.name = o->name;
    }
    if (o->conf.host_id == NULL || o->conf.host_id[0] == '\0') {
        kvp_host_id(o->host_id);
        o->conf.host_id = o->host_id;
    }
    if (strlen(o->conf.name) <= KVP_HOST_ID_MAX && strlen(o->conf.host_id) <= KVP_HOST_ID_MAX) return KVP_OK;
    return refuse_opening(o, KVP_INVALID, "name, host_id", "at most 127 bytes are expected");
}

static kvp_err_t
choose_master_wait(opening_t *o)
{
    const char *text = or_env(NULL, "KVPOOL_MASTER_WAIT", NULL);
    uint64_t *ns = &o->session.master_wait_ns;

    if (o->conf.master_wait_ms == UINT32_MAX) return KVP_OK;
    *ns = o->conf.master_wait_ms * KVP_NS_PER_MS;
    if (*ns > 0 || text == NULL) return KVP_OK;
    if (kvp_parse_duration_ns(text, ns) != KVP_OK)
        return refuse_opening(o, KVP_INVALID, "KVPOOL_MASTER_WAIT", "a time is expected, such as 1s or 500ms");
    *ns = kvp_max_u64(1, kvp_min_u64(*ns, UINT32_MAX * KVP_NS_PER_MS));
    return KVP_OK;
}

static kvp_err_t
choose_drain(opening_t *o)
{
    const char *text = or_env(NULL, "KVPOOL_DRAIN_ON_CLOSE", NULL);

    o->drain_ns = o->conf.drain_ms * KVP_NS_PER_MS;
    if (o->drain_ns > 0 || text == NULL || kvp_parse_duration_ns(text, &o->drain_ns) == KVP_OK) return KVP_OK;
    return refuse_opening(o, KVP_INVALID, "KVPOOL_DRAIN_ON_CLOSE", "a time is expected, such as 10s or 0s");
}

static kvp_err_t
choose_metrics(opening_t *o)
{
    const char *text = or_env(NULL, "KVPOOL_METRICS", NULL);

    if (text == NULL || kvp_parse_hostport(text, &o->metrics) == KVP_OK) return KVP_OK;
    return refuse_opening(o, KVP_INVALID, "KVPOOL_METRICS",
                          "an address is expected, HOST:PORT, such as 127.0.0.1:9400");
}

static uint32_t
choose_locations(uint32_t asked)
{
    if (asked == UINT32_MAX) return 0;
    return asked == 0 ? LOCATIONS_DEFAULT : asked;
}

static kvp_err_t
read_conf(const kvpool_conf_t *conf, opening_t *o)
{
    kvp_err_t err;

    memset(o, 0, sizeof *o);
    if (conf != NULL) {
        if (conf->struct_size != sizeof *conf) {
            kvp_log_error("client", "struct_size %zu is not that of kvpool_conf_t", conf->struct_size);
            return KVP_INVALID; /* another version: conf->detail may lie elsewhere */
        }
        o->conf = *conf;
        if (o->conf.detail != NULL && o->conf.detail_cap > 0) o->conf.detail[0] = '\0';
    }
    if (o->conf.deadline_ms == 0) o->conf.deadline_ms = DEADLINE_DEFAULT_MS;
    if (o->conf.listen == NULL) o->conf.listen = LISTEN_DEFAULT;
    o->conf.master = or_env(o->conf.master, "KVPOOL_MASTER", MASTER_DEFAULT);
    err = kvp_env_log(o->conf.detail, o->conf.detail_cap);
    if (err == KVP_OK) err = check_ssd(o);
    if (err == KVP_OK) err = choose_names(o);
    if (err == KVP_OK) err = choose_verify(o);
    if (err == KVP_OK) err = choose_transports(o);
    if (err == KVP_OK) err = choose_master_wait(o);
    if (err == KVP_OK) err = choose_metrics(o);
    if (err == KVP_OK) err = choose_drain(o);
    if (err == KVP_OK) err = kvp_env_slow_call(o->conf.detail, o->conf.detail_cap, &o->slow_call_ns);
    if (err != KVP_OK) return err;
    if (o->conf.tenant != NULL && strlen(o->conf.tenant) > KVP_TENANT_NAME_MAX)
        return refuse_opening(o, KVP_INVALID, "tenant", "its name has more than 128 bytes");
    if (o->conf.state_only && o->conf.memory_bytes > 0)
        return refuse_opening(o, KVP_INVALID, "state_only", "an embedded node belongs to a master that leads");
    o->session.masters = o->conf.master;
    o->session.cluster = o->conf.cluster;
    o->session.is_state_only = o->conf.state_only;
    o->session.is_probe = o->conf.probes;
    o->session.locations = choose_locations(o->conf.locations);
    o->session.peers.tenant = o->conf.tenant;
    o->session.peers.name = o->conf.name;
    o->session.peers.host_id = o->conf.host_id;
    return KVP_OK;
}

static kvp_err_t
start_node(kvpool_t *pool, const opening_t *o, uint64_t deadline_ns)
{
    const kvpool_conf_t *conf = &o->conf;
    kvp_creds_t files;
    /* a node without a name takes the name in its certificate */
    const bool has_name = conf->name != o->name || !kvp_creds_tls(&files) || files.tls_cert == NULL;
    kvp_node_conf_t node = {
        .masters = conf->master,
        .cluster = conf->cluster,
        .name = has_name ? conf->name : NULL,
        .host_id = conf->host_id,
        .listen = conf->listen,
        .needed = or_env(conf->transports, "KVPOOL_TRANSPORTS", NULL),
        .memory_bytes = conf->memory_bytes,
        .chunk_bytes = conf->chunk_bytes,
        .ssd = conf->ssd,
        .ssd_n = conf->ssd_n,
        .ssd_writes = conf->ssd_writes,
        .fetch = &kvp_fetch_ops,
        .is_insecure = true, /* a program that sets an address needs no option; the node only logs a warning */
    };
    kvp_err_t err;

    if (conf->memory_bytes == 0) return KVP_OK;
    err = kvp_node_start(&node, deadline_ns, &pool->node);
    if (err == KVP_SEGMENT_EXISTS || err == KVP_DEADLINE) /* for these errors the embedded node logs no reason */
        kvp_log_error("client",
                      err == KVP_DEADLINE ? "the node \"%s\" was not mounted in time"
                                          : "the pool already has a connected node with the name \"%s\", maybe another "
                                            "host's: give each node of a pool its own name",
                      conf->name);
    if (err != KVP_OK) return err;
    if (!kvp_node_wait_tier(pool->node, deadline_ns))
        kvp_log_info("client", "objects on SSD are found as soon as the node has read their records name=%s",
                     conf->name);
    return KVP_OK;
}

static kvpool_t *
pool_create(const opening_t *o)
{
    kvpool_t *pool = calloc(1, sizeof *pool);

    if (pool == NULL) return NULL;
    kvp_forkguard_init(&pool->guard);
    kvp_calls_init(&pool->calls);
    pthread_mutex_init(&pool->lock, NULL);
    kvp_list_init(&pool->views);
    for (size_t i = 0; i < KVP_CALLS_N; i++) {
        pool->calls_ns[i].bounds = kvp_metric_latency_bounds;
        pool->calls_ns[i].bound_count = KVP_METRIC_LATENCY_BOUNDS;
    }
    kvp_regs_init(&pool->regs, o->session.peers.transports, o->session.peers.transports_n);
    kvp_bounces_init(&pool->bounces, KVP_BOUNCES_MAX, 2);
    kvp_scratch_pool_init(&pool->scratches);
    kvp_held_tickets_init(&pool->held_tickets);
    pool->deadline_ms = o->conf.deadline_ms;
    pool->tenant = o->conf.tenant == NULL ? 0 : kvp_tenant_id(o->conf.tenant);
    pool->locations = o->session.locations;
    pool->slow_call_ns = o->slow_call_ns;
    pool->drain_ns = o->drain_ns;
    pool->slow_limit = (kvp_log_limit_t){.burst = 5, .interval_ms = 1000};
    pool->wants_sums = o->conf.verify == KVPOOL_VERIFY_PAYLOAD;
    pool->is_state_only = o->conf.state_only;
    return pool;
}

/* Starts the session and the embedded node. Log messages of the start go to the caller's detail, if the caller gave
 * one. On success they are moved from detail to the log. */
static kvp_err_t
start_pool(kvpool_t *pool, const opening_t *o, uint64_t deadline_ns)
{
    char *detail = o->conf.detail_cap > 0 ? o->conf.detail : NULL;
    kvp_err_t err;

    kvp_log_divert(detail, o->conf.detail_cap);
    err = kvp_session_start(&o->session, deadline_ns, &pool->session);
    if (err == KVP_OK) err = start_node(pool, o, deadline_ns);
    kvp_log_divert(NULL, 0);
    if (err != KVP_OK || detail == NULL || detail[0] == '\0') return err;
    kvp_log_warn("client", "%s", detail);
    detail[0] = '\0';
    return KVP_OK;
}

int
kvpool_open(const kvpool_conf_t *conf, kvpool_t **pool_out)
{
    opening_t o;
    kvpool_t *pool;
    uint64_t deadline_ns;
    kvp_err_t err;

    if (pool_out == NULL) return KVP_INVALID;
    err = read_conf(conf, &o);
    if (err != KVP_OK) return err;
    pool = pool_create(&o);
    if (pool == NULL) return KVP_NOMEM;
    o.session.peers.counters = &pool->counters;
    o.session.held_tickets = &pool->held_tickets;
    deadline_ns = kvp_now_ns() + o.conf.deadline_ms * KVP_NS_PER_MS;
    err = start_pool(pool, &o, deadline_ns);
    if (err != KVP_OK) {
        kvpool_free(pool);
        return err;
    }
    if (o.metrics.host[0] != '\0') kvp_exporter_start(pool, &o.metrics);
    *pool_out = pool;
    return KVP_OK;
}

int
kvpool_why_unreachable(kvpool_t *pool, char *text, size_t cap)
{
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, NULL, &call);

    if (err != KVP_OK) return err;
    if (text == NULL || cap == 0) return kvp_call_end(&call, KVP_INVALID);
    kvp_session_why(pool->session, text, cap);
    return kvp_call_end(&call, KVP_OK);
}

int
kvpool_unmount_ssd(kvpool_t *pool, const kvpool_opts_t *opts)
{
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (pool->node != NULL && !kvp_node_unmount_tier(pool->node, call.deadline_ns)) err = KVP_DEADLINE;
    return kvp_call_end(&call, err);
}

/* ---- close */
int
kvpool_close(kvpool_t *pool)
{
    kvp_err_t err;

    if (pool == NULL) return KVP_INVALID;
    if (kvp_forkguard_is_forked(&pool->guard)) return KVP_FORKED;
    err = kvp_calls_close(&pool->calls);
    if (err != KVP_OK) return err;
    if (pool->session != NULL) kvp_session_stop(pool->session);
    kvp_calls_wait(&pool->calls);
    kvp_exporter_stop(pool);
    kvp_views_end(pool);
    /* ends the session first, because a drain waits for the objects that the session holds */
    if (pool->session != NULL) kvp_session_destroy(pool->session);
    if (pool->node != NULL && pool->drain_ns > 0) {
        kvp_node_drain(pool->node);
        (void)kvp_node_wait_drained(pool->node, kvp_now_ns() + pool->drain_ns); /* kvp_node_stop logs what is left */
    }
    if (pool->node != NULL) kvp_node_stop(pool->node, kvp_now_ns() + UNMOUNT_NS);
    pool->node = NULL;
    pool->session = NULL;
    return KVP_OK;
}

void
kvpool_free(kvpool_t *pool)
{
    if (pool == NULL) return;
    if (kvp_forkguard_is_forked(&pool->guard)) {
        free(pool);
        return;
    }
    kvp_ignore(kvpool_close(pool), "CLOSED where it is closed already");
    kvp_bounces_fini(&pool->bounces);
    kvp_regs_fini(&pool->regs);
    kvp_scratch_pool_fini(&pool->scratches);
    kvp_held_tickets_fini(&pool->held_tickets);
    kvp_forkguard_fini(&pool->guard);
    pthread_mutex_destroy(&pool->lock);
    kvp_calls_fini(&pool->calls);
    free(pool);
}

/* ---- memory */
int
kvpool_register(kvpool_t *pool, void *addr, size_t len)
{
    kvp_apicall_t call;
    kvp_devmem_t mem;
    kvp_err_t err = kvp_call_begin(pool, NULL, &call);

    if (err != KVP_OK) return err;
    if (addr == NULL || len == 0) return kvp_call_end(&call, KVP_INVALID);
    err = kvp_device_cuda.look(addr, len, &mem);
    if (err == KVP_OK && mem.kind == KVP_MEM_HOST && !kvp_is_mapped(addr, len)) err = KVP_INVALID;
    if (err == KVP_OK) err = kvp_regs_add(&pool->regs, addr, len, &mem);
    return kvp_call_end(&call, err);
}

int
kvpool_unregister(kvpool_t *pool, void *addr)
{
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, NULL, &call);

    if (err != KVP_OK) return err;
    return kvp_call_end(&call, kvp_regs_del(&pool->regs, addr));
}

/* ---- texts */
const char *
kvpool_strerror(int err)
{
    return kvp_err_text(err);
}

const char *
kvpool_errname(int err)
{
    return kvp_err_name(err);
}

const char *
kvpool_version(void)
{
    return KVP_RELEASE;
}
