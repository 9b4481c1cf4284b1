/* SPDX-License-Identifier: Apache-2.0
 * The master's statistics, and the answer to STATUS. */
#include "master/core/request/request.h"

#include "master/core/api/master.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/asks.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/journal.h"
#include "master/core/recovery/replay.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <stdio.h>
#include <string.h>

/* Sums up the free bytes in chunks of tenants and in other chunks. A draining node's memory cannot be used for puts:
 * these sums, the size and the used bytes leave it out. */
static void
sum_memory(const kvp_master_t *m, kvp_master_stats_t *st)
{
    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->is_tier || g->state == KVP_SEG_LOST) continue;
        if (kvp_segment_shown_state(g) != KVP_SEG_DRAINING) {
            st->unowned_bytes += g->size_bytes - g->owned_bytes;
            st->owned_free_bytes += g->owned_bytes - g->used_bytes;
        } else {
            st->size_bytes -= g->size_bytes;
            st->used_bytes -= g->used_bytes;
            st->draining_bytes += g->size_bytes;
        }
    }
}

void
kvp_master_stats(const kvp_master_t *m, kvp_master_stats_t *stats_out)
{
    *stats_out = m->ctx.st;
    stats_out->draining = m->space.drains_n;
    stats_out->term = m->ctx.term;
    stats_out->probed_bytes = m->prot.probes.bytes;
    stats_out->owners = m->cat.owners_n;
    if (!m->log.is_resting)
        stats_out->led_ms = (m->ctx.now_ns - kvp_max_u64(m->puts.started_ns, m->peers.took_over_ns)) / KVP_MS(1);
    sum_memory(m, stats_out);
    stats_out->memory_bytes = kvp_objindex_memory_bytes(m->cat.index) + m->space.slab_bytes +
                              (uint64_t)m->prot.gone.cap * sizeof(kvp_digestmap_at_t);
}

#define KVP_TENANTS_SHOWN 32u /* most tenants in metrics */
#define OTHER_TENANTS "other" /* name of the entry that has the sum of all other tenants, in metrics */

/* Adds the log's segments to the statistics of a standby, to which no node is connected. */
static void
add_resting(const kvp_master_t *m, kvp_master_stats_t *st)
{
    if (!m->log.is_resting) return;
    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->life != KVP_SEGMENT_STAYS || g->is_tier) continue;
        st->segments++;
        st->size_bytes += g->size_bytes;
        st->used_bytes += g->used_bytes;
    }
}

/* The masters and the reasons for a degraded pool in a Status. Must live until the answer is packed. */
typedef struct {
    kvp_master_wrong_t found;
    Kvp__Pb__MasterInfo masters[KVP_MASTERS_MAX], *masters_list[KVP_MASTERS_MAX];
    Kvp__Pb__Wrong wrong[KVP_MASTER_WRONG_MAX], *wrong_list[KVP_MASTER_WRONG_MAX];
} told_health_t;

static void
add_health(const kvp_master_t *m, told_health_t *h, Kvp__Pb__StatusReply *reply)
{
    for (uint32_t i = 0; i < m->masters_n; i++) {
        kvp__pb__master_info__init(&h->masters[i]);
        h->masters[i].id = (char *)m->masters[i].id;
        h->masters[i].address = (char *)m->masters[i].address;
        h->masters[i].state = m->masters[i].state;
        h->masters[i].lag_bytes = m->masters[i].lag_bytes;
        h->masters[i].http = (char *)m->masters[i].http;
        h->masters_list[i] = &h->masters[i];
    }
    reply->masters = h->masters_list;
    reply->n_masters = m->masters_n;
    kvp_master_wrong(m, &h->found);
    for (uint32_t i = 0; i < h->found.n; i++) {
        kvp__pb__wrong__init(&h->wrong[i]);
        h->wrong[i].code = (char *)h->found.lines[i].code;
        h->wrong[i].text = h->found.lines[i].text;
        h->wrong_list[i] = &h->wrong[i];
    }
    reply->wrong = h->wrong_list;
    reply->n_wrong = h->found.n;
}

/* The names of the counters of misses in a Status. Must live until the answer is packed. */
typedef struct {
    char text[2 * KVP_CAUSES_N][48];
} cause_names_t;

/* Writes a counter for each cause that has misses. Returns their number. */
static size_t
add_misses(const kvp_master_stats_t *st, cause_names_t *names, Kvp__Pb__Counter *counters)
{
    const struct {
        const char *prefix;
        const uint64_t *counts;
    } kinds[] = {{"lookup_misses", st->lookup_misses}, {"get_misses", st->get_misses_by}};
    size_t n = 0;

    for (size_t k = 0; k < KVP_ARRAY_LEN(kinds); k++) {
        for (uint32_t cause = 0; cause < KVP_CAUSES_N; cause++) {
            if (kinds[k].counts[cause] == 0) continue;
            snprintf(names->text[n], sizeof names->text[n], "%s_%s", kinds[k].prefix, kvp_cause_name(cause));
            kvp__pb__counter__init(&counters[n]);
            counters[n].name = names->text[n];
            counters[n++].value = kinds[k].counts[cause];
        }
    }
    return n;
}

/* Fills in the counts of the last minute and hour. */
static Kvp__Pb__Asked *
add_asked(const kvp_master_t *m, const kvp_ratio_t *ratio, Kvp__Pb__Asked *asked)
{
    const kvp_askcount_t minute = kvp_ratio_minute(ratio, m->ctx.now_ns), hour = kvp_ratio_hour(ratio, m->ctx.now_ns);

    kvp__pb__asked__init(asked);
    asked->minute = minute.asked;
    asked->minute_found = minute.found;
    asked->hour = hour.asked;
    asked->hour_found = hour.found;
    return asked;
}

/* The curves in a Status. Must live until the answer is packed. */
typedef struct {
    Kvp__Pb__Curve curves[KVP_CURVES_MAX + 1], *list[KVP_CURVES_MAX + 1];
    float hits[KVP_CURVES_MAX + 1][KVP_CURVE_POINTS];
} told_curves_t;

static void
add_curve(told_curves_t *t, const char *tenant, const kvp_curve_t *curve, Kvp__Pb__StatusReply *reply)
{
    Kvp__Pb__Curve *it = &t->curves[reply->n_curves];

    if (curve == NULL) return;
    kvp__pb__curve__init(it);
    it->tenant = (char *)tenant;
    it->asked = kvp_curve_asked(curve);
    it->samples = kvp_curve_samples(curve);
    it->hits = t->hits[reply->n_curves];
    it->n_hits = KVP_CURVE_POINTS;
    for (uint32_t i = 0; i < KVP_CURVE_POINTS; i++)
        it->hits[i] = (float)kvp_curve_hits(curve, kvp_curve_bytes(i));
    t->list[reply->n_curves++] = it;
    reply->curves = t->list;
}

static const char *
name_of(const kvp_tenant_t *t)
{
    return t->id == 0 ? "default" : t->name;
}

static void
add_curves(const kvp_master_t *m, const kvp_session_t *s, bool all_tenants, told_curves_t *t,
           Kvp__Pb__StatusReply *reply)
{
    const kvp_asks_t *asks = &m->cat.asks;

    if (!kvp_session_sees_all(s)) {
        if (s->tenant != NULL) add_curve(t, name_of(s->tenant), kvp_asks_curve(&m->cat, s->tenant), reply);
        return;
    }
    add_curve(t, "", asks->curve, reply);
    if (!all_tenants && s->tenant != NULL && kvp_asks_curve(&m->cat, s->tenant) != asks->curve)
        add_curve(t, name_of(s->tenant), kvp_asks_curve(&m->cat, s->tenant), reply);
    for (uint32_t i = 0; all_tenants && i < asks->tenants_n; i++) {
        const kvp_tenant_t *tenant = kvp_tenant_find(&m->cat, asks->tenants[i].tenant);

        if (tenant != NULL) add_curve(t, name_of(tenant), asks->tenants[i].curve, reply);
    }
}

/* Removes the figures of other tenants, and of the whole pool, from the answer for a tenant. */
static void
hide_others(const kvp_session_t *s, Kvp__Pb__StatusReply *reply)
{
    reply->n_counters = reply->n_wrong = 0;
    reply->asked = NULL;
    reply->attempts = reply->clients = 0;
    reply->quarantine_bytes = reply->held_bytes = reply->reserved_bytes = reply->memory_bytes = 0;
    reply->objects = s->tenant == NULL ? 0 : s->tenant->objects;
    reply->used_bytes = s->tenant == NULL ? 0 : s->tenant->used_bytes;
}

void
kvp_on_status(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
#define ONE(name, help) +1
    enum { N = 0 KVP_MASTER_STATS(ONE) };
#undef ONE
    Kvp__Pb__StatusReply reply = KVP__PB__STATUS_REPLY__INIT;
    Kvp__Pb__Counter counters[N + 2 * KVP_CAUSES_N], *list[N + 2 * KVP_CAUSES_N];
    cause_names_t names;
    Kvp__Pb__TenantInfo own = KVP__PB__TENANT_INFO__INIT, *tenants = &own;
    Kvp__Pb__Asked of_pool, of_tenant;
    told_curves_t curves;
    told_health_t health;
    kvp_master_stats_t st;
    Kvp__Pb__Status *msg;
    kvp_buf_t *out;
    size_t at, n = 0;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__status__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed Status");
        return;
    }
    if (msg->wants_curves) add_curves(m, s, msg->all_tenants, &curves, &reply);
    kvp_pb_free(&pb, msg);
    kvp_master_stats(m, &st);
    add_resting(m, &st);
#define COUNTER(field, help)                                                                                           \
    kvp__pb__counter__init(&counters[n]);                                                                              \
    counters[n].name = (char *)#field;                                                                                 \
    counters[n].value = st.field;                                                                                      \
    list[n] = &counters[n];                                                                                            \
    n++;
    KVP_MASTER_STATS(COUNTER)
#undef COUNTER
    for (size_t i = n; i < KVP_ARRAY_LEN(list); i++)
        list[i] = &counters[i];
    reply.counters = list;
    reply.n_counters = n + add_misses(&st, &names, &counters[n]);
    reply.asked = add_asked(m, &m->cat.asks.ratio, &of_pool);
    reply.is_standby = m->log.is_resting;
    reply.term = kvp_replay_term(m);
    reply.uptime_ms = (m->ctx.now_ns - m->puts.started_ns) / KVP_MS(1);
    reply.objects = st.objects;
    reply.attempts = st.attempts;
    reply.clients = st.clients;
    reply.size_bytes = st.size_bytes;
    reply.used_bytes = st.used_bytes;
    reply.quarantine_bytes = st.quarantine_bytes;
    reply.held_bytes = st.held_bytes;
    reply.reserved_bytes = st.reserved_bytes;
    reply.memory_bytes = st.memory_bytes;
    reply.segments = (uint32_t)st.segments;
    reply.software = (char *)("kvpool " KVP_RELEASE);
    reply.protection = (char *)m->ctx.conf.protection;
    add_health(m, &health, &reply);
    reply.pool_id = (ProtobufCBinaryData){KVP_POOL_ID_SHOWN, m->ctx.conf.pool_id};
    if (s->tenant != NULL) { /* tenants do not see one another */
        own.tenant = (char *)name_of(s->tenant);
        if (s->tenant->ratio != NULL) own.asked = add_asked(m, s->tenant->ratio, &of_tenant);
        own.objects = s->tenant->objects;
        own.used_bytes = s->tenant->used_bytes;
        own.chunks = s->tenant->chunks;
        own.chunk_bytes = s->tenant->chunk_bytes;
        own.epoch = s->tenant->epoch;
        own.soft_pinned_bytes = s->tenant->soft_pinned_bytes;
        own.hard_pinned_bytes = s->tenant->hard_pinned_bytes;
        reply.tenants = &tenants;
        reply.n_tenants = 1;
    }
    if (!kvp_session_sees_all(s)) hide_others(s, &reply);
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
}

/* ---- figures with labels */
uint32_t
kvp_master_nodes(const kvp_master_t *m, kvp_master_node_t *nodes_out, uint32_t max)
{
    uint32_t n = 0;

    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);
        const char *end = strrchr(g->name, '/');
        kvp_master_node_t *node = &nodes_out[n];

        if (g->life == KVP_SEGMENT_DROPPED || n == max) continue;
        /* the name of a tier is that of its node with "/ssd" behind it */
        snprintf(node->name, sizeof node->name, "%.*s",
                 (int)(g->is_tier && end != NULL ? (size_t)(end - g->name) : strlen(g->name)), g->name);
        node->is_tier = g->is_tier;
        node->is_up = g->state == KVP_SEG_UP;
        node->is_drained = g->drain != NULL && g->objects == 0;
        node->state = kvp_segment_shown_state(g);
        node->size_bytes = g->size_bytes;
        node->used_bytes = g->used_bytes;
        node->objects = g->objects;
        node->evictions = g->evictions;
        n++;
    }
    return n;
}

/* Subtracts a part from the counts. The time windows of the two may end at different moments, so a difference below 0
 * becomes 0. */
static void
subtract_asked(kvp_askcount_t *from, const kvp_askcount_t *part)
{
    from->asked -= kvp_min_u64(from->asked, part->asked);
    from->found = kvp_min_u64(from->found - kvp_min_u64(from->found, part->found), from->asked);
}

static void
describe_asked(const kvp_master_t *m, const kvp_ratio_t *ratio, const kvp_curve_t *curve, uint64_t memory_bytes,
               kvp_master_tenant_t *to)
{
    if (ratio != NULL) {
        to->minute = kvp_ratio_minute(ratio, m->ctx.now_ns);
        to->hour = kvp_ratio_hour(ratio, m->ctx.now_ns);
    }
    to->has_curve = curve != NULL;
    for (uint32_t i = 0; curve != NULL && i < KVP_CURVE_TIMES; i++)
        to->curve[i] = kvp_curve_hits(curve, memory_bytes / 4 << i);
}

kvp_askcount_t
kvp_master_asked(const kvp_master_t *m)
{
    return kvp_ratio_minute(&m->cat.asks.ratio, m->ctx.now_ns);
}

/* Describes the tenants that are not listed: the sums of all tenants, less the n listed ones. The first entry is the
 * pool's. */
static void
describe_others(kvp_master_tenant_t *tenants, uint32_t n, kvp_master_tenant_t *others)
{
    snprintf(others->name, sizeof others->name, "%s", OTHER_TENANTS);
    others->minute = tenants[0].minute;
    others->hour = tenants[0].hour;
    for (uint32_t i = 1; i <= n; i++) {
        others->objects -= tenants[i].objects;
        others->used_bytes -= tenants[i].used_bytes;
        others->chunk_bytes -= tenants[i].chunk_bytes;
        subtract_asked(&others->minute, &tenants[i].minute);
        subtract_asked(&others->hour, &tenants[i].hour);
    }
}

uint32_t
kvp_master_tenants(const kvp_master_t *m, kvp_master_tenant_t tenants_out[KVP_MASTER_TENANTS])
{
    const kvp_tenant_t *top[KVP_TENANTS_SHOWN];
    kvp_master_tenant_t others = {0};
    kvp_master_stats_t st;
    uint32_t n = 0, all_n = 0;

    kvp_master_stats(m, &st);
    tenants_out[0] =
        (kvp_master_tenant_t){.objects = st.objects, .used_bytes = st.used_bytes, .chunk_bytes = m->cat.owned_bytes};
    describe_asked(m, &m->cat.asks.ratio, m->cat.asks.curve, st.size_bytes, &tenants_out[0]);
    for (uint32_t i = 0; i < m->cat.tenants.limit; i++) {
        const kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);
        uint32_t at = n < KVP_TENANTS_SHOWN ? n : KVP_TENANTS_SHOWN - 1;

        if (t == NULL) continue;
        all_n++;
        others.objects += t->objects;
        others.used_bytes += t->used_bytes;
        others.chunk_bytes += t->chunk_bytes;
        if (strcmp(name_of(t), OTHER_TENANTS) == 0) continue;
        if (n == KVP_TENANTS_SHOWN && top[at]->used_bytes >= t->used_bytes) continue;
        if (n < KVP_TENANTS_SHOWN) n++;
        for (; at > 0 && top[at - 1]->used_bytes < t->used_bytes; at--)
            top[at] = top[at - 1];
        top[at] = t;
    }
    for (uint32_t i = 0; i < n; i++) {
        kvp_master_tenant_t *to = &tenants_out[1 + i];

        *to = (kvp_master_tenant_t){
            .objects = top[i]->objects, .used_bytes = top[i]->used_bytes, .chunk_bytes = top[i]->chunk_bytes};
        snprintf(to->name, sizeof to->name, "%s", name_of(top[i]));
        describe_asked(m, top[i]->ratio, kvp_asks_curve(&m->cat, top[i]), st.size_bytes, to);
    }
    if (all_n == n) return n + 1;
    describe_others(tenants_out, n, &others);
    tenants_out[1 + n] = others;
    return n + 2;
}
