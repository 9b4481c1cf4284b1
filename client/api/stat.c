/* SPDX-License-Identifier: Apache-2.0
 * kvpool_stat: writes as JSON the pool's figures from the master, the pool's segments, and this client's counters:
 * {"pool": {...}, "masters": [...], "tenants": [...], "segments": [...], "tiers": [...], "client": {...,
 * "transports": [...]}} */
#include "client/api/exporter.h"

#include "client/memory/segments.h"
#include "common/jsonw.h"
#include "proto/pb.h"
#include "proto/explained.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <stdatomic.h>

#define TEXT_MAX (8u << 20)
#define RATIO_UNIT 1000000u

/* ---- the pool */
/* Writes the hit ratios of the last minute and hour: null without data. */
static void
write_asked(kvp_jsonw_t *w, const Kvp__Pb__Asked *asked)
{
    static const Kvp__Pb__Asked none = KVP__PB__ASKED__INIT;
    const Kvp__Pb__Asked *a = asked == NULL ? &none : asked;

    kvp_jsonw_u64(w, "asked_minute", a->minute);
    kvp_jsonw_ratio(w, "hit_ratio_minute", a->minute_found, a->minute);
    kvp_jsonw_u64(w, "asked_hour", a->hour);
    kvp_jsonw_ratio(w, "hit_ratio_hour", a->hour_found, a->hour);
}

static void
write_pool(kvp_jsonw_t *w, const Kvp__Pb__StatusReply *msg)
{
    kvp_jsonw_open(w, "pool", '{');
    kvp_jsonw_hex(w, "pool_id", msg->pool_id.data, msg->pool_id.len);
    kvp_jsonw_text(w, "software", msg->software);
    kvp_jsonw_text(w, "protection", msg->protection);
    kvp_jsonw_text(w, "status", msg->n_wrong > 0 ? "degraded" : "ok");
    kvp_jsonw_open(w, "why", '[');
    for (size_t i = 0; i < msg->n_wrong; i++) {
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "code", msg->wrong[i]->code);
        kvp_jsonw_text(w, "text", msg->wrong[i]->text);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
    kvp_jsonw_u64(w, "term", msg->term);
    kvp_jsonw_bool(w, "is_standby", msg->is_standby);
    kvp_jsonw_u64(w, "uptime_ms", msg->uptime_ms);
    kvp_jsonw_u64(w, "objects", msg->objects);
    kvp_jsonw_u64(w, "attempts", msg->attempts);
    kvp_jsonw_u64(w, "clients", msg->clients);
    kvp_jsonw_u64(w, "segments", msg->segments);
    kvp_jsonw_u64(w, "size_bytes", msg->size_bytes);
    kvp_jsonw_u64(w, "used_bytes", msg->used_bytes);
    kvp_jsonw_u64(w, "quarantine_bytes", msg->quarantine_bytes);
    kvp_jsonw_u64(w, "held_bytes", msg->held_bytes);
    kvp_jsonw_u64(w, "reserved_bytes", msg->reserved_bytes);
    kvp_jsonw_u64(w, "memory_bytes", msg->memory_bytes);
    write_asked(w, msg->asked);
    kvp_jsonw_open(w, "counters", '{');
    for (size_t i = 0; i < msg->n_counters; i++)
        kvp_jsonw_u64(w, msg->counters[i]->name, msg->counters[i]->value);
    kvp_jsonw_close(w, '}');
    kvp_jsonw_close(w, '}');
}

static const char *
master_state_name(uint32_t state)
{
    static const char *const names[] = {"unknown", "leader", "standby", "lagging", "apart", "missing"};

    return names[state < KVP_ARRAY_LEN(names) ? state : 0];
}

static void
write_masters(kvp_jsonw_t *w, const Kvp__Pb__StatusReply *msg)
{
    kvp_jsonw_open(w, "masters", '[');
    for (size_t i = 0; i < msg->n_masters; i++) {
        const Kvp__Pb__MasterInfo *it = msg->masters[i];

        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "address", it->address);
        kvp_jsonw_text(w, "state", master_state_name(it->state));
        if (it->state == KVP_MASTER_APART || it->state == KVP_MASTER_MISSING)
            kvp_jsonw_ratio(w, "lag_bytes", 0, 0); /* null: not known */
        else
            kvp_jsonw_u64(w, "lag_bytes", it->lag_bytes);
        kvp_jsonw_text(w, "http", it->http);
        kvp_jsonw_text(w, "id", it->id);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

/* Writes the figures of tenants. The master sends a client of one tenant only the figures of this tenant. */
static void
write_tenants(kvp_jsonw_t *w, const Kvp__Pb__StatusReply *msg)
{
    kvp_jsonw_open(w, "tenants", '[');
    for (size_t i = 0; i < msg->n_tenants; i++) {
        const Kvp__Pb__TenantInfo *t = msg->tenants[i];

        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "tenant", t->tenant);
        kvp_jsonw_u64(w, "objects", t->objects);
        kvp_jsonw_u64(w, "used_bytes", t->used_bytes);
        kvp_jsonw_u64(w, "chunks", t->chunks);
        kvp_jsonw_u64(w, "chunk_bytes", t->chunk_bytes);
        kvp_jsonw_u64(w, "soft_pinned_bytes", t->soft_pinned_bytes);
        kvp_jsonw_u64(w, "hard_pinned_bytes", t->hard_pinned_bytes);
        kvp_jsonw_u64(w, "epoch", t->epoch);
        write_asked(w, t->asked);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

/* Writes the miss-ratio curves: the hit ratio of an LRU cache of each size. The first curve is the pool's. */
static void
write_curves(kvp_jsonw_t *w, const Kvp__Pb__StatusReply *msg)
{
    kvp_jsonw_open(w, "curves", '[');
    for (size_t i = 0; i < msg->n_curves; i++) {
        const Kvp__Pb__Curve *c = msg->curves[i];

        kvp_jsonw_open(w, NULL, '{');
        if (c->tenant[0] != '\0') kvp_jsonw_text(w, "tenant", c->tenant);
        kvp_jsonw_u64(w, "asked", (uint64_t)c->asked);
        kvp_jsonw_u64(w, "samples", c->samples);
        kvp_jsonw_open(w, "points", '[');
        for (uint32_t k = 0; k < c->n_hits && k < KVP_CURVE_POINTS; k++) {
            kvp_jsonw_open(w, NULL, '{');
            kvp_jsonw_u64(w, "size_bytes", kvp_curve_bytes(k));
            kvp_jsonw_ratio(w, "hit_ratio", (uint64_t)(c->hits[k] * RATIO_UNIT), RATIO_UNIT);
            kvp_jsonw_close(w, '}');
        }
        kvp_jsonw_close(w, ']');
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

static kvp_err_t
read_status(const kvp_query_t *query, const kvp_frame_t *answer)
{
    Kvp__Pb__StatusReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__status_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = msg->err > 0 ? KVP_PROTO : msg->err;
    if (err == KVP_OK) {
        write_pool(query->arg, msg);
        write_masters(query->arg, msg);
        write_tenants(query->arg, msg);
        if (((const Kvp__Pb__Status *)query->head)->wants_curves) write_curves(query->arg, msg);
    }
    kvp_pb_free(&pb, msg);
    return err;
}

/* ---- segments */
typedef struct {
    kvp_jsonw_t memory, tiers;
    kvp_peers_t *peers;
} segments_t;

static void
write_drain(kvp_jsonw_t *w, const Kvp__Pb__DrainReply *msg)
{
    kvp_jsonw_text(w, "drain", kvp_drain_state(msg));
    kvp_jsonw_u64(w, "left_ssd_objects", msg->with_ssd ? msg->ssd_objects : 0);
    kvp_jsonw_u64(w, "left_ssd_bytes", msg->with_ssd ? msg->ssd_bytes : 0);
    kvp_jsonw_u64(w, "moved_objects", msg->moved_objects);
    kvp_jsonw_u64(w, "moved_bytes", msg->moved_bytes);
    kvp_jsonw_u64(w, "stuck_objects", msg->held + msg->no_room + msg->no_node + msg->unfinished + msg->unread);
    kvp_jsonw_u64(w, "evicted_objects", msg->evicted_objects);
    kvp_jsonw_u64(w, "ssd_objects", msg->ssd_objects);
    kvp_drain_write_wait(w, msg);
}

static bool
write_segment(void *arg, const Kvp__Pb__SegmentInfo *info)
{
    segments_t *s = arg;
    kvp_jsonw_t *w = info->is_tier ? &s->tiers : &s->memory;
    const Kvp__Pb__DrainReply no_drain = KVP__PB__DRAIN_REPLY__INIT;

    kvp_jsonw_open(w, NULL, '{');
    kvp_jsonw_text(w, "node", info->node);
    kvp_jsonw_text(w, "state", kvp_segment_state_name(info->state));
    if (!info->is_tier)
        kvp_jsonw_text(
            w, "transport",
            kvp_peers_transport(s->peers, info->segment_id, info->host_id, info->transports, info->unix_path));
    kvp_jsonw_u64(w, "size_bytes", info->size_bytes);
    kvp_jsonw_u64(w, "used_bytes", info->used_bytes);
    kvp_jsonw_u64(w, "objects", info->objects);
    if (info->is_tier) kvp_jsonw_u64(w, "stalled_devices", info->stalled_devices);
    if (!info->is_tier) {
        kvp_jsonw_u64(w, "evictions", info->evictions);
        kvp_jsonw_u64(w, "chunk_bytes", info->chunk_bytes);
        kvp_jsonw_text(w, "addr", info->addr);
        kvp_jsonw_text(w, "offers", info->transports);
        kvp_jsonw_text(w, "protection", info->protection);
        kvp_jsonw_text(w, "host_id", info->host_id);
        write_drain(w, info->drain != NULL ? info->drain : &no_drain);
    }
    kvp_jsonw_u64(w, "segment_id", info->segment_id);
    kvp_jsonw_close(w, '}');
    return true;
}

static kvp_err_t
write_segments(kvp_apicall_t *call, kvp_jsonw_t *w)
{
    segments_t s;
    kvp_link_t *link;
    kvp_buf_t memory, tiers;
    kvp_err_t err = kvp_call_hold(call, &link);

    if (err != KVP_OK) return err;
    kvp_buf_init(&memory, TEXT_MAX);
    kvp_buf_init(&tiers, TEXT_MAX);
    kvp_jsonw_init(&s.memory, &memory);
    kvp_jsonw_init(&s.tiers, &tiers);
    s.peers = link->peers;
    kvp_jsonw_open(&s.memory, NULL, '[');
    kvp_jsonw_open(&s.tiers, NULL, '[');
    err = kvp_segments_walk(link->conn, call->deadline_ns, write_segment, &s);
    kvp_jsonw_close(&s.memory, ']');
    kvp_jsonw_close(&s.tiers, ']');
    if (err == KVP_OK) {
        kvp_jsonw_part(w, "segments", &memory);
        kvp_jsonw_part(w, "tiers", &tiers);
    }
    if (kvp_op_is_session_loss(err)) kvp_conn_break(link->conn);
    kvp_buf_fini(&memory);
    kvp_buf_fini(&tiers);
    kvp_session_rele(call->pool->session, link);
    return err;
}

/* ---- this client */
static uint64_t
load_counter(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Writes what transfers cost: requests, system calls, copies. A figure is 0 if the transport does not count it. */
static void
write_costs(kvp_jsonw_t *w, const kvp_path_counters_t *p)
{
    kvp_jsonw_u64(w, "work_requests", load_counter(&p->requests));
    kvp_jsonw_u64(w, "doorbells", load_counter(&p->doorbells));
    kvp_jsonw_u64(w, "signaled_completions", load_counter(&p->completions));
    kvp_jsonw_u64(w, "system_calls", load_counter(&p->system_calls));
    kvp_jsonw_u64(w, "copied_bytes", load_counter(&p->copied_bytes));
}

static void
write_call(kvp_jsonw_t *w, const char *name, const kvp_histogram_t *took)
{
    uint64_t count;
    const uint64_t p50_ns = kvp_histogram_quantile(took, 0.5, &count);

    kvp_jsonw_open(w, NULL, '{');
    kvp_jsonw_text(w, "name", name);
    kvp_jsonw_u64(w, "count", count);
    kvp_jsonw_u64(w, "sum_us", load_counter(&took->sum) / 1000);
    kvp_jsonw_u64(w, "p50_us", p50_ns / 1000);
    kvp_jsonw_u64(w, "p99_us", kvp_histogram_quantile(took, 0.99, &count) / 1000);
    kvp_jsonw_close(w, '}');
}

/* Writes the tenant, role and id that the master found for this client; empty if the master requires no identity. */
static void
write_identity(kvp_apicall_t *call, kvp_jsonw_t *w)
{
    kvp_link_t *link;
    const bool has_link = kvp_call_hold(call, &link) == KVP_OK;
    const kvp_hello_reply_t *hello = has_link ? kvp_conn_hello(link->conn) : NULL;
    const bool is_known = has_link && hello->rights[0] != '\0';

    kvp_jsonw_text(w, "rights", is_known ? hello->rights : "");
    kvp_jsonw_text(w, "tenant", !is_known ? "" : hello->tenant[0] == '\0' ? "default" : hello->tenant);
    if (has_link) kvp_session_rele(call->pool->session, link);
}

static void
write_client(kvp_apicall_t *call, kvp_jsonw_t *w)
{
    const kvpool_t *pool = call->pool;
    const kvp_peers_conf_t *conf = &kvp_session_conf(pool->session)->peers;
    const kvp_counters_t *c = &pool->counters;

    kvp_jsonw_open(w, "client", '{');
    kvp_jsonw_text(w, "name", conf->name);
    kvp_jsonw_text(w, "software", KVP_RELEASE);
    write_identity(call, w);
#define WRITE_COUNTER(name, help) kvp_jsonw_u64(w, #name, load_counter(&c->name));
    KVP_CLIENT_COUNTERS(WRITE_COUNTER)
#undef WRITE_COUNTER
    kvp_jsonw_text(w, "metrics", kvp_exporter_at(pool));
    kvp_jsonw_open(w, "calls", '[');
    for (size_t i = 0; i < KVP_CALLS_N; i++)
        write_call(w, kvp_call_names[i], &pool->calls_ns[i]);
    kvp_jsonw_close(w, ']');
    kvp_jsonw_open(w, "transports", '[');
    for (size_t i = 0; i < conf->transports_n; i++) {
        const kvp_path_counters_t *p = &c->paths[i];

        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "name", conf->transports[i]->name);
        kvp_jsonw_u64(w, "reads", load_counter(&p->reads));
        kvp_jsonw_u64(w, "read_bytes", load_counter(&p->read_bytes));
        kvp_jsonw_u64(w, "writes", load_counter(&p->writes));
        kvp_jsonw_u64(w, "written_bytes", load_counter(&p->write_bytes));
        write_costs(w, p);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
    kvp_jsonw_close(w, '}');
}

int
kvpool_stat(kvpool_t *pool, char *buf, size_t cap, size_t *len_out, const kvpool_opts_t *opts)
{
    kvp_apicall_t call;
    kvp_buf_t text;
    kvp_jsonw_t w;
    Kvp__Pb__Status head = KVP__PB__STATUS__INIT;
    kvp_query_t status = {.opcode = KVP_OP_STATUS, .head = &head, .read = read_status, .arg = &w};
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (len_out == NULL || (buf == NULL && cap > 0)) return kvp_call_end(&call, KVP_INVALID);
    call.asks_state = true;
    head.wants_curves = (call.flags & KVPOOL_CURVES) != 0;
    head.all_tenants = (call.flags & KVPOOL_ALL_TENANTS) != 0;
    kvp_buf_init(&text, TEXT_MAX);
    kvp_jsonw_init(&w, &text);
    kvp_jsonw_open(&w, NULL, '{');
    err = kvp_query_run(&call, &status);
    if (err == KVP_OK) {
        do
            err = write_segments(&call, &w);
        while (kvp_op_is_session_loss(err));
    }
    if (err == KVP_OK) {
        write_client(&call, &w);
        kvp_jsonw_close(&w, '}');
        err = kvp_jsonw_give(&text, buf, cap, len_out);
    }
    kvp_buf_fini(&text);
    return kvp_call_end(&call, err);
}
