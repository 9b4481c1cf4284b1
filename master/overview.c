/* SPDX-License-Identifier: Apache-2.0 */
#include "master/overview.h"

#include "proto/explained.h"
#include "proto/wire.h"

#include <string.h>

#define RATES_MS KVP_HISTORY_STEP_MS /* rates are computed from the newest sample that is at least this old */
#define LATENCY_MS 60000u /* so are latencies */
#define HOUR_MS 3600000u

/* Writes a time in ns; null if it is longer than all bounds of the histograms. */
static void
write_time(kvp_jsonw_t *w, const char *name, uint64_t ns)
{
    if (ns == UINT64_MAX)
        kvp_jsonw_ratio(w, name, 0, 0);
    else
        kvp_jsonw_u64(w, name, ns);
}

static void
write_masters(kvp_jsonw_t *w, const kvp_ha_status_t *ha)
{
    kvp_jsonw_open(w, "leader", '{');
    kvp_jsonw_text(w, "address", ha->leader.address);
    kvp_jsonw_text(w, "http", ha->leader.http);
    kvp_jsonw_close(w, '}');
    kvp_jsonw_open(w, "masters", '[');
    for (uint32_t i = 0; i < ha->masters_n; i++) {
        const kvp_election_master_t *m = &ha->masters[i];
        const bool is_leader = strcmp(m->id, ha->leader.id) == 0, knows = strcmp(ha->self.id, ha->leader.id) == 0;
        const char *state = is_leader ? "leader" : knows ? "apart" : "standby"; /* the leader knows its standbys */
        uint64_t lag_bytes = 0, lag_ms = 0;

        for (uint32_t k = 0; k < ha->standbys_n; k++) {
            if (strcmp(ha->standbys[k].id, m->id) != 0) continue;
            state = ha->standbys[k].is_insync ? "standby" : "lagging";
            lag_bytes = ha->standbys[k].lag_bytes;
            lag_ms = ha->standbys[k].lag_ms;
        }
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "id", m->id);
        kvp_jsonw_text(w, "address", m->address);
        kvp_jsonw_text(w, "http", m->http);
        kvp_jsonw_text(w, "state", state);
        kvp_jsonw_bool(w, "is_self", strcmp(m->id, ha->self.id) == 0);
        kvp_jsonw_u64(w, "lag_bytes", lag_bytes);
        kvp_jsonw_u64(w, "lag_ms", lag_ms);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

static void
write_nodes(kvp_jsonw_t *w, const kvp_labelled_t *f)
{
    kvp_jsonw_open(w, "nodes", '[');
    for (uint32_t i = 0; i < f->nodes_n; i++) {
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "node", f->nodes[i].name);
        kvp_jsonw_text(w, "tier", f->nodes[i].is_tier ? "ssd" : "memory");
        kvp_jsonw_text(w, "state",
                       f->nodes[i].is_drained && f->nodes[i].state == KVP_SEG_LOST
                           ? "away (drained)"
                           : kvp_segment_state_name(f->nodes[i].state));
        kvp_jsonw_u64(w, "size_bytes", f->nodes[i].size_bytes);
        kvp_jsonw_u64(w, "used_bytes", f->nodes[i].used_bytes);
        kvp_jsonw_u64(w, "objects", f->nodes[i].objects);
        kvp_jsonw_u64(w, "evictions", f->nodes[i].evictions);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

static void
write_asked(kvp_jsonw_t *w, const char *asked, const char *ratio, const kvp_askcount_t *counts)
{
    kvp_jsonw_u64(w, asked, counts->asked);
    kvp_jsonw_ratio(w, ratio, counts->found, counts->asked);
}

static void
write_tenants(kvp_jsonw_t *w, const kvp_labelled_t *f)
{
    kvp_jsonw_open(w, "tenants", '[');
    for (uint32_t i = 0; i < f->tenants_n; i++) {
        const kvp_master_tenant_t *t = &f->tenants[i];

        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "tenant", t->name);
        kvp_jsonw_u64(w, "objects", t->objects);
        kvp_jsonw_u64(w, "used_bytes", t->used_bytes);
        kvp_jsonw_u64(w, "chunk_bytes", t->chunk_bytes);
        write_asked(w, "asked_minute", "hit_ratio_minute", &t->minute);
        write_asked(w, "asked_hour", "hit_ratio_hour", &t->hour);
        kvp_jsonw_open(w, "curve", '[');
        for (uint32_t k = 0; t->has_curve && k < KVP_CURVE_TIMES; k++)
            kvp_jsonw_ratio(w, NULL, (uint64_t)(t->curve[k] * 1e6), 1000000);
        kvp_jsonw_close(w, ']');
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

static void
write_pool(kvp_jsonw_t *w, const kvp_master_stats_t *st)
{
    const struct {
        const char *name;
        uint64_t value;
    } gauges[] = {{"objects", st->objects},
                  {"puts_under_way", st->attempts},
                  {"clients", st->clients},
                  {"size_bytes", st->size_bytes},
                  {"used_bytes", st->used_bytes},
                  {"unowned_bytes", st->unowned_bytes},
                  {"owned_free_bytes", st->owned_free_bytes},
                  {"owners", st->owners},
                  {"draining_bytes", st->draining_bytes},
                  {"tier_size_bytes", st->tier_size_bytes},
                  {"tier_bytes", st->tier_bytes},
                  {"tier_objects", st->tier_objects},
                  {"quarantine_bytes", st->quarantine_bytes},
                  {"held_bytes", st->held_bytes},
                  {"reserved_bytes", st->reserved_bytes},
                  {"soft_pinned_bytes", st->soft_pinned_bytes},
                  {"hard_pinned_bytes", st->hard_pinned_bytes},
                  {"memory_bytes", st->memory_bytes}};

    kvp_jsonw_open(w, "pool", '{');
    for (size_t i = 0; i < KVP_ARRAY_LEN(gauges); i++)
        kvp_jsonw_u64(w, gauges[i].name, gauges[i].value);
    kvp_jsonw_close(w, '}');
}

static void
write_rates(kvp_jsonw_t *w, const kvp_sample_t *from, const kvp_sample_t *to)
{
    const kvp_master_stats_t *a = &from->core, *b = &to->core;
    const uint64_t ms = to->at_ms - from->at_ms;
    const struct {
        const char *name;
        uint64_t from, to;
    } rates[] = {{"puts", a->commits, b->commits},
                 {"puts_refused", a->put_no_space + a->put_retry_after, b->put_no_space + b->put_retry_after},
                 {"gets", a->gets, b->gets},
                 {"lookups", a->lookups, b->lookups},
                 {"exists", a->exists, b->exists},
                 {"known_reads", a->used, b->used},
                 {"removes", a->removes, b->removes},
                 {"evictions", a->evictions, b->evictions},
                 {"evicted_bytes", a->evicted_bytes, b->evicted_bytes},
                 {"ssd_written_bytes", a->demoted_bytes, b->demoted_bytes},
                 {"ssd_loaded_bytes", a->staged_bytes, b->staged_bytes},
                 {"ssd_missed", a->tier_missed, b->tier_missed}};

    kvp_jsonw_u64(w, "rates_ms", ms);
    kvp_jsonw_open(w, "rates", '{');
    for (size_t i = 0; i < KVP_ARRAY_LEN(rates); i++)
        kvp_jsonw_ratio(w, rates[i].name, kvp_history_rise(rates[i].from, rates[i].to) * 1000, ms);
    kvp_jsonw_close(w, '}');
}

static void
write_calls(kvp_jsonw_t *w, const kvp_sample_t *from, const kvp_sample_t *to)
{
    kvp_jsonw_u64(w, "calls_ms", to->at_ms - from->at_ms);
    kvp_jsonw_open(w, "calls", '[');
    for (uint32_t i = 0; i < KVP_HISTORY_TIMES; i++) {
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "call", i < KVP_TIMED_CALLS ? kvp_timed_calls[i].name : "answers");
        kvp_jsonw_u64(w, "n", kvp_history_count(from, to, i));
        write_time(w, "p50_ns", kvp_history_quantile(from, to, i, 0.5));
        write_time(w, "p99_ns", kvp_history_quantile(from, to, i, 0.99));
        write_time(w, "p999_ns", kvp_history_quantile(from, to, i, 0.999));
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

static void
write_causes(kvp_jsonw_t *w, const char *name, const uint64_t *from, const uint64_t *to)
{
    kvp_jsonw_open(w, name, '{');
    for (uint32_t i = 0; i < KVP_CAUSES_N; i++)
        if (to[i] > from[i]) kvp_jsonw_u64(w, kvp_cause_name(i), to[i] - from[i]);
    kvp_jsonw_close(w, '}');
}

/* The columns of the history; each row is a step of the time in `ms`. */
typedef enum { COLUMN_MS, COLUMN_PUTS, COLUMN_ASKED, COLUMN_EVICTED, COLUMN_USED, COLUMN_RATIO, COLUMN_TIME } column_t;

static void
write_cell(kvp_jsonw_t *w, column_t column, const kvp_sample_t *a, const kvp_sample_t *b)
{
    switch (column) {
    case COLUMN_MS:
        kvp_jsonw_u64(w, NULL, b->at_ms - a->at_ms);
        break;
    case COLUMN_PUTS:
        kvp_jsonw_u64(w, NULL, kvp_history_rise(a->core.commits, b->core.commits));
        break;
    case COLUMN_ASKED:
        kvp_jsonw_u64(w, NULL,
                      kvp_history_rise(a->core.gets + a->core.exists + a->core.lookups + a->core.used,
                                       b->core.gets + b->core.exists + b->core.lookups + b->core.used));
        break;
    case COLUMN_EVICTED:
        kvp_jsonw_u64(w, NULL, kvp_history_rise(a->core.evictions, b->core.evictions));
        break;
    case COLUMN_USED:
        kvp_jsonw_u64(w, NULL, b->core.used_bytes);
        break;
    case COLUMN_RATIO:
        kvp_jsonw_ratio(w, NULL, b->minute.found, b->minute.asked);
        break;
    case COLUMN_TIME:
        write_time(w, NULL, kvp_history_quantile(a, b, KVP_TIMED_CALLS, 0.99));
        break;
    }
}

static void
write_history(kvp_jsonw_t *w, const kvp_overview_t *in)
{
    static const char *const names[] = {
        [COLUMN_MS] = "ms",
        [COLUMN_PUTS] = "puts",
        [COLUMN_ASKED] = "asked",
        [COLUMN_EVICTED] = "evicted",
        [COLUMN_USED] = "used_bytes",
        [COLUMN_RATIO] = "hit_ratio",
        [COLUMN_TIME] = "answer_p99_ns",
    };
    const kvp_history_t *h = in->history;

    kvp_jsonw_open(w, "history", '{');
    kvp_jsonw_u64(w, "ago_ms", in->now->at_ms - kvp_history_get(h, h->n - 1)->at_ms);
    for (uint32_t k = 0; k < KVP_ARRAY_LEN(names); k++) {
        kvp_jsonw_open(w, names[k], '[');
        for (uint32_t i = 1; i < h->n; i++)
            write_cell(w, (column_t)k, kvp_history_get(h, i - 1), kvp_history_get(h, i));
        kvp_jsonw_close(w, ']');
    }
    kvp_jsonw_close(w, '}');
}

static void
write_changes(kvp_jsonw_t *w, const kvp_overview_t *in)
{
    kvp_jsonw_open(w, "changes", '[');
    for (uint32_t i = 0; i < in->changes->n; i++) {
        const kvp_change_t *change = kvp_changes_get(in->changes, i);
        const uint64_t ago_ms = kvp_history_rise(change->at_ms, in->now->at_ms);

        if (ago_ms > HOUR_MS) break;
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_u64(w, "ago_ms", ago_ms);
        kvp_jsonw_text(w, "text", change->text);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

static const kvp_sample_t *
sample_before(const kvp_overview_t *in, uint64_t ms)
{
    const kvp_sample_t *found = kvp_history_before(in->history, kvp_history_rise(ms, in->now->at_ms));

    return found == NULL ? in->now : found;
}

void
kvp_overview_write(kvp_jsonw_t *w, const kvp_overview_t *in)
{
    const kvp_sample_t *hour = sample_before(in, HOUR_MS);

    kvp_jsonw_text(w, "role", in->role);
    kvp_jsonw_text(w, "version", KVP_RELEASE);
    kvp_jsonw_hex(w, "pool_id", in->ident->pool_id, KVP_POOL_ID_SHOWN);
    kvp_jsonw_u64(w, "term", in->term);
    kvp_jsonw_u64(w, "uptime_ms", in->uptime_ms);
    kvp_jsonw_text(w, "conductor", in->conductor);
    if (in->ha != NULL) write_masters(w, in->ha);
    write_pool(w, &in->now->core);
    write_nodes(w, in->labelled);
    write_tenants(w, in->labelled);
    write_rates(w, sample_before(in, RATES_MS), in->now);
    write_calls(w, sample_before(in, LATENCY_MS), in->now);
    kvp_jsonw_u64(w, "misses_ms", in->now->at_ms - hour->at_ms);
    write_causes(w, "lookup_misses", hour->core.lookup_misses, in->now->core.lookup_misses);
    write_causes(w, "get_misses", hour->core.get_misses_by, in->now->core.get_misses_by);
    write_changes(w, in);
    if (in->history->n > 0) write_history(w, in);
}
