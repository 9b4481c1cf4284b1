/* SPDX-License-Identifier: Apache-2.0
 * The reports of the registry: /services, /global_view, the unreachable publishers and the metrics. The code only
 * reads the registry. It runs on the loop's thread. */
#include "conductor/events/registry_priv.h"

#include "common/clock.h"

#include <stdio.h>

static void
write_skips(const uint64_t counted[KVP_SKIPS_N], kvp_jsonw_t *w)
{
#define SKIP(name, text) {#name, text},
    static const struct {
        const char *name, *text;
    } skips[] = {KVP_SKIPS(SKIP)};
#undef SKIP

    kvp_jsonw_open(w, "skipped", '[');
    for (uint32_t i = 0; i < KVP_SKIPS_N; i++) {
        if (counted[i] == 0) continue;
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_u64(w, "n", counted[i]);
        kvp_jsonw_text(w, "why", skips[i].text);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

static void
write_source(const kvp_pool_source_t *source, kvp_jsonw_t *w)
{
    kvp_jsonw_u64(w, "stored", source->stored);
    kvp_jsonw_u64(w, "removed", source->removed);
    kvp_jsonw_u64(w, "cleared", source->cleared);
    kvp_jsonw_u64(w, "ignored", source->ignored);
    kvp_jsonw_u64(w, "digests", source->digests);
    kvp_jsonw_u64(w, "drifts", source->drifts);
    kvp_jsonw_open(w, "other_prefixes", '[');
    for (uint32_t i = 0; i < source->unwanted_n; i++)
        kvp_jsonw_text(w, NULL, source->unwanted[i]);
    kvp_jsonw_close(w, ']');
}

/* Writes the field `joins`: the blocks of an engine in shared pools. */
static void
write_joins(const kvp_applier_t *a, kvp_jsonw_t *w)
{
    if (a->joins_n == 0) return;
    kvp_jsonw_open(w, "joins", '[');
    for (uint32_t i = 0; i < a->joins_n; i++) {
        kvp_jsonw_open(w, NULL, '{');
        kvp_join_write(a->joins[i], w);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

/* Writes how many messages of other engines were refused at the same bound endpoint. */
static void
write_refused(const kvp_subscription_t *sub, kvp_jsonw_t *w)
{
    const char *own, *other;
    const uint64_t n = kvp_subscription_refused(sub, &own, &other);

    if (n == 0) return;
    kvp_jsonw_u64(w, "refused_messages", n);
    kvp_jsonw_text(w, "topic", own);
    kvp_jsonw_text(w, "refused_topic", other);
}

static const char *
why_of(const kvp_reach_t *reach)
{
    return reach == NULL ? "" : kvp_reach_why(reach);
}

/* Returns the publisher's state for reports. A connected publisher counts as live even if its replay endpoint is
 * unreachable, because its new events are applied. */
static const char *
state_of(const kvp_publisher_t *p)
{
    if (why_of(p->reach)[0] != '\0') return "unreachable";
    if (why_of(p->replay_reach)[0] != '\0' && kvp_subscription_is_connected(p->sub)) return "live";
    return p->feed.state != KVP_FEED_LIVE ? "replaying" : kvp_subscription_is_connected(p->sub) ? "live" : "connecting";
}

/* Writes the field `unreachable`: the endpoint and the reason, if an endpoint cannot be reached. */
static void
write_unreachable(const kvp_publisher_t *p, kvp_jsonw_t *w)
{
    const bool is_replay = why_of(p->reach)[0] == '\0';
    const char *why = why_of(is_replay ? p->replay_reach : p->reach);
    char text[KVP_URL_TEXT_MAX + 256];

    if (why[0] == '\0') return;
    snprintf(text, sizeof text, "%s%s: %s", is_replay ? "replay endpoint " : "",
             is_replay ? p->reg.replay_endpoint : p->reg.endpoint, why);
    kvp_jsonw_text(w, "unreachable", text);
}

void
kvp_registry_write_unreachable(const kvp_registry_t *r, kvp_jsonw_t *w)
{
    kvp_jsonw_open(w, "unreachable", '[');
    kvp_list_foreach (pos, &r->publishers) {
        const kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);

        if (why_of(p->reach)[0] == '\0' && why_of(p->replay_reach)[0] == '\0') continue;
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "instance_id", p->reg.instance);
        kvp_jsonw_text(w, "tenant_id", p->reg.tenant);
        kvp_jsonw_u64(w, "dp_rank", p->reg.rank);
        write_unreachable(p, w);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

void
kvp_registry_write_why(const kvp_registry_t *r, kvp_jsonw_t *w)
{
    char text[KVP_TROUBLE_MAX];

    if (!kvp_registry_trouble(r, text, sizeof text)) return;
    kvp_jsonw_open(w, "why", '[');
    kvp_jsonw_text(w, NULL, text);
    kvp_jsonw_close(w, ']');
}

void
kvp_registry_write_services(const kvp_registry_t *r, kvp_jsonw_t *w)
{
    const uint64_t now_ns = kvp_boot_ns();

    kvp_jsonw_open(w, NULL, '[');
    kvp_list_foreach (pos, &r->publishers) {
        const kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);
        const kvp_feed_t *f = &p->feed;
        kvp_view_stats_t view;

        kvp_view_stats(p->view, &view);
        kvp_jsonw_open(w, NULL, '{');
        kvp_registration_write(&p->reg, w);
        kvp_jsonw_text(w, "state", state_of(p));
        write_unreachable(p, w);
        kvp_jsonw_u64(w, "staleness_ms", (now_ns - p->feed.sure_ns) / KVP_NS_PER_MS);
        if (p->event_ns > 0) kvp_jsonw_u64(w, "last_message_ms", (now_ns - p->event_ns) / KVP_NS_PER_MS);
        if (p->feed.has_last) kvp_jsonw_u64(w, "last_sequence", p->feed.last);
        kvp_jsonw_u64(w, "messages", f->stats.applied);
        kvp_jsonw_u64(w, "events", p->reg.is_shared ? p->source.events : p->applier.done.events);
        kvp_jsonw_u64(w, "blocks", view.resident);
        kvp_jsonw_u64(w, "gaps", f->stats.gaps + p->applier.done.gaps);
        kvp_jsonw_u64(w, "replays", f->stats.replays);
        kvp_jsonw_u64(w, "failed_replays", f->stats.failed_replays);
        kvp_jsonw_u64(w, "drops", f->stats.drops);
        kvp_jsonw_u64(w, "incarnations", f->stats.incarnations);
        kvp_jsonw_u64(w, "snapshots", f->stats.snapshots);
        kvp_jsonw_u64(w, "repairs", p->repairs);
        if (p->reg.is_shared) write_source(&p->source, w);
        write_joins(&p->applier, w);
        kvp_jsonw_u64(w, "duplicates", f->stats.duplicates + p->applier.done.duplicates);
        kvp_jsonw_u64(w, "malformed_messages", kvp_subscription_malformed(p->sub));
        write_refused(p->sub, w);
        write_skips(p->reg.is_shared ? p->source.skips : p->applier.done.skips, w);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

void
kvp_registry_write_view(const kvp_registry_t *r, kvp_jsonw_t *w)
{
    const uint64_t now_ns = kvp_boot_ns();
    kvp_index_stats_t stats;

    kvp_index_stats(r->ix, &stats);
    kvp_registry_write_why(r, w);
    kvp_jsonw_u64(w, "blocks", stats.blocks);
    kvp_jsonw_open(w, "instances", '[');
    kvp_list_foreach (pos, &r->publishers) {
        const kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);
        kvp_view_stats_t view;

        kvp_view_stats(p->view, &view);
        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_text(w, "instance_id", p->reg.instance);
        kvp_jsonw_text(w, "tenant_id", p->reg.tenant);
        kvp_jsonw_u64(w, "dp_rank", p->reg.rank);
        kvp_jsonw_text(w, "model", p->reg.model);
        kvp_jsonw_u64(w, "block_size", p->reg.block_size);
        kvp_jsonw_text(w, "state", state_of(p));
        kvp_jsonw_u64(w, "blocks", view.resident);
        kvp_jsonw_u64(w, "staleness_ms", (now_ns - p->feed.sure_ns) / KVP_NS_PER_MS);
        if (p->reg.is_shared) kvp_jsonw_bool(w, "shared", true);
        write_joins(&p->applier, w);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

static void
write_metric(kvp_buf_t *out, const char *name, const char *type, const char *help, double value)
{
    char text[512];
    const int n = snprintf(text, sizeof text,
                           "# HELP kvpool_conductor_%s %s\n# TYPE kvpool_conductor_%s %s\nkvpool_conductor_%s %.15g\n",
                           name, help, name, type, name, value);

    kvp_buf_append(out, text, (size_t)n);
}

void
kvp_registry_write_metrics(const kvp_registry_t *r, kvp_buf_t *out)
{
    const uint64_t now_ns = kvp_boot_ns();
    uint64_t messages = 0, events = 0, skipped = 0, gaps = 0, replays = 0, drops = 0, resident = 0, bytes = 0,
             stale_ms = 0, unjoined = 0, drifts = 0, unreachable = 0;
    kvp_index_stats_t index;
    char text[KVP_TROUBLE_MAX];

    kvp_list_foreach (pos, &r->publishers) {
        const kvp_publisher_t *p = kvp_list_entry(pos, kvp_publisher_t, link);
        kvp_view_stats_t view;

        kvp_view_stats(p->view, &view);
        messages += p->feed.stats.applied;
        events += p->applier.done.events + p->source.events;
        for (uint32_t i = 0; i < KVP_SKIPS_N; i++)
            skipped += p->applier.done.skips[i] + p->source.skips[i];
        for (uint32_t i = 0; i < p->applier.joins_n; i++)
            unjoined = kvp_max_u64(unjoined, kvp_join_unjoined(p->applier.joins[i]));
        drifts += p->source.drifts;
        unreachable += why_of(p->reach)[0] != '\0' || why_of(p->replay_reach)[0] != '\0';
        gaps += p->feed.stats.gaps + p->applier.done.gaps;
        replays += p->feed.stats.replays;
        drops += p->feed.stats.drops;
        resident += view.resident;
        bytes += view.bytes;
        stale_ms = kvp_max_u64(stale_ms, (now_ns - p->feed.sure_ns) / KVP_NS_PER_MS);
    }
    kvp_index_stats(r->ix, &index);
    write_metric(out, "degraded", "gauge", "causes for which /health answers degraded",
                 (double)kvp_registry_trouble(r, text, sizeof text));
    write_metric(out, "publishers", "gauge", "publishers that are registered", (double)r->n);
    write_metric(out, "unreachable_publishers", "gauge", "publishers of which an endpoint cannot be reached",
                 (double)unreachable);
    write_metric(out, "blocks", "gauge", "blocks that are known", (double)index.blocks);
    write_metric(out, "resident_blocks", "gauge", "blocks that each publisher holds", (double)resident);
    write_metric(out, "index_bytes", "gauge", "memory of the index: blocks, and their holders",
                 (double)(index.bytes + bytes));
    write_metric(out, "staleness_seconds", "gauge",
                 "longest time for which a publisher's view is not known to be whole", (double)stale_ms / 1000);
    write_metric(out, "messages_total", "counter", "accepted messages", (double)messages);
    write_metric(out, "events_total", "counter", "events of them", (double)events);
    write_metric(out, "skipped_total", "counter", "rejected events; /services shows the reasons", (double)skipped);
    write_metric(out, "gaps_total", "counter", "gaps in the numbers of messages and events", (double)gaps);
    write_metric(out, "replays_total", "counter", "requested replays", (double)replays);
    write_metric(out, "unjoined_blocks", "gauge",
                 "blocks of a pool without a place in any prompt, for the engine that lacks most", (double)unjoined);
    write_metric(out, "drifts_total", "counter", "times that a pool's digests differed from the known ones",
                 (double)drifts);
    write_metric(out, "left_out_total", "counter", "blocks left out because the index contradicted itself",
                 (double)index.left_out);
    write_metric(out, "drops_total", "counter", "times that all blocks of a publisher were dropped", (double)drops);
}
