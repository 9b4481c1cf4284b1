/* SPDX-License-Identifier: Apache-2.0
 * Health: the reasons why a pool is degraded, from the facts that the core has. Each reason ends with its fault, or
 * some time later: no reason stays for ever after an operator has removed a node or a master. */
#include "common/list.h"
#include "master/core/api/master.h"
#include "master/core/catalog/chunk.h"
#include "master/core/recovery/state.h"
#include "master/core/request/request.h"
#include "proto/wire.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define OF_A_KIND_MAX 4u /* limit of the reasons of one kind in Status; one more line counts the others */
/* a node that was given up and has not connected again is reported for this time */
#define LOST_NODE_NS KVP_MS(3600u * 1000u)

static KVP_PRINTF(3, 4) void add_wrong(kvp_master_wrong_t *list, const char *code, const char *fmt, ...)
{
    if (list->n == KVP_MASTER_WRONG_MAX) return;
    va_list args;

    list->lines[list->n].code = code;
    va_start(args, fmt);
    vsnprintf(list->lines[list->n].text, sizeof list->lines[0].text, fmt, args);
    va_end(args);
    list->n++;
}

static uint64_t
seconds_since(const kvp_master_t *m, uint64_t then_ns)
{
    return (m->ctx.now_ns - kvp_min_u64(then_ns, m->ctx.now_ns)) / KVP_MS(1000);
}

/* ---- masters */
static void
check_master(const kvp_master_peer_t *p, kvp_master_wrong_t *out)
{
    const char *name = p->address[0] != '\0' ? p->address : p->id;

    if (p->state == KVP_MASTER_MISSING)
        add_wrong(out, "master_missing",
                  "master %s is missing: it was one of this pool's, and is not registered in etcd", name);
    else if (p->state == KVP_MASTER_APART)
        add_wrong(out, "master_apart", "master %s is registered, and does not follow the leader: see its log", name);
    else if (p->state == KVP_MASTER_LAGGING)
        add_wrong(out, "master_lagging", "master %s lags behind the leader: it lacks %llu bytes of the log", name,
                  (unsigned long long)p->lag_bytes);
}

static void
check_masters(const kvp_master_t *m, kvp_master_wrong_t *out)
{
    uint32_t leaders = 0;

    for (uint32_t i = 0; i < m->masters_n; i++) {
        leaders += m->masters[i].state == KVP_MASTER_LEADER;
        check_master(&m->masters[i], out);
    }
    if (m->etcd_silent_ns > 0)
        add_wrong(
            out, "etcd_away",
            "etcd has not answered this master: for %llu s. Last failure: %s. So no master can be elected or go on "
            "leading; most of etcd's members must run and reach one another (etcdctl endpoint health)",
            (unsigned long long)(m->etcd_silent_ns / KVP_MS(1000)), m->etcd_trouble);
    if (m->masters_n > 0 && leaders == 0) add_wrong(out, "no_leader", "no master leads");
    if (m->masters_n == 1 && leaders == 1 && m->ctx.conf.is_elected)
        add_wrong(out, "no_standby", "no other master is registered in etcd: if this master fails, none takes over");
}

void
kvp_master_note_masters(kvp_master_t *m, const char *leader, const kvp_master_peer_t *masters, uint32_t n)
{
    if (leader != NULL) snprintf(m->leader, sizeof m->leader, "%s", leader);
    if (masters == NULL) return;
    m->masters_n = (uint32_t)kvp_min_u64(n, KVP_MASTERS_MAX);
    memcpy(m->masters, masters, m->masters_n * sizeof *masters);
}

void
kvp_master_note_etcd(kvp_master_t *m, uint64_t silent_ns, const char *trouble)
{
    m->etcd_silent_ns = silent_ns;
    snprintf(m->etcd_trouble, sizeof m->etcd_trouble, "%s", trouble);
}

/* ---- nodes */
/* Returns whether the segment's node is lost: away, and not because its drain is complete. */
static bool
is_lost(const kvp_segment_t *g)
{
    return g->state == KVP_SEG_LOST && g->node == NULL && g->life != KVP_SEGMENT_DROPPED &&
           (g->drain == NULL || g->objects > 0);
}

static void
check_segments(const kvp_master_t *m, kvp_master_wrong_t *out)
{
    uint32_t nodes = 0, lost = 0, away = 0;

    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->life == KVP_SEGMENT_DROPPED) continue;
        nodes += !g->is_tier;
        if (is_lost(g) && !g->is_tier && g->is_restored && lost++ < OF_A_KIND_MAX)
            add_wrong(
                out, "node_lost",
                "node %s has not connected since this master began to lead, %llu s ago: its objects cannot be read "
                "until it has",
                g->name, (unsigned long long)seconds_since(m, g->lost_ns));
        else if (is_lost(g) && !g->is_tier && lost++ < OF_A_KIND_MAX)
            add_wrong(out, "node_lost", "node %s is lost: its objects cannot be read until it is back", g->name);
        if (is_lost(g) && g->is_tier && g->objects > 0 && away++ < OF_A_KIND_MAX)
            add_wrong(out, "ssd_away", "SSD tier %s is away: its objects cannot be read until it is back", g->name);
    }
    if (lost > OF_A_KIND_MAX) add_wrong(out, "node_lost", "and %u more nodes are lost", lost - OF_A_KIND_MAX);
    if (away > OF_A_KIND_MAX) add_wrong(out, "ssd_away", "and %u more SSD tiers are away", away - OF_A_KIND_MAX);
    if (nodes == 0) add_wrong(out, "no_node", "there is no node: nothing can be stored");
}

static void
check_devices(const kvp_master_t *m, kvp_master_wrong_t *out)
{
    uint32_t tiers = 0;

    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *t = kvp_list_entry(pos, kvp_segment_t, link);

        if (t->life == KVP_SEGMENT_DROPPED || t->node == NULL || t->ssd.stalled_devices == 0 ||
            tiers++ >= OF_A_KIND_MAX)
            continue;
        add_wrong(out, "device_stalled", "SSD tier %s: %u of its devices do not answer: see its node's log and disks",
                  t->name, t->ssd.stalled_devices);
    }
    if (tiers > OF_A_KIND_MAX)
        add_wrong(out, "device_stalled", "and devices of %u more SSD tiers do not answer", tiers - OF_A_KIND_MAX);
}

static void
check_given_up(const kvp_master_t *m, kvp_master_wrong_t *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < KVP_LOST_NODES_MAX; i++) {
        const kvp_lost_node_t *lost = &m->lost_nodes[i];

        if (lost->name[0] == '\0' || m->ctx.now_ns - lost->dropped_ns >= LOST_NODE_NS || n++ >= OF_A_KIND_MAX) continue;
        add_wrong(out, "node_given_up", "node %s did not come back: its objects in memory were dropped %llu s ago",
                  lost->name, (unsigned long long)seconds_since(m, lost->dropped_ns));
    }
    if (n > OF_A_KIND_MAX) add_wrong(out, "node_given_up", "and %u more nodes did not come back", n - OF_A_KIND_MAX);
}

/* Reports a fault that recurs, with its count and the node of the last event. */
static void
check_faults(const kvp_master_t *m, const kvp_faults_t *faults, const char *code, const char *what, const char *why,
             kvp_master_wrong_t *out)
{
    const char *node = "?";

    if (!kvp_ctx_is_faulty(&m->ctx, faults)) return;
    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->id == faults->segment) node = g->name;
    }
    add_wrong(out, code, "%s: %llu lately, the last one %llu s ago on node %s; %s", what, (unsigned long long)faults->n,
              (unsigned long long)seconds_since(m, faults->last_ns), node, why);
}

void
kvp_master_wrong(const kvp_master_t *m, kvp_master_wrong_t *out)
{
    const kvp_ctx_t *ctx = &m->ctx;

    out->n = 0;
    check_masters(m, out);
    if (m->log.is_resting) return; /* a standby knows the nodes only from the log */
    if (m->log.has_failed)
        add_wrong(out, "log_failed",
                  "the master cannot write its log: puts and removals are refused until its log disk has room or is "
                  "repaired; its /health names the disk");
    check_segments(m, out);
    check_given_up(m, out);
    check_devices(m, out);
    check_faults(m, &ctx->failed_loads, "loads_fail", "loads from SSD fail", "see the node's log", out);
    check_faults(m, &ctx->damaged, "ssd_damaged", "objects were lost on an SSD",
                 "test that device; this line stays for an hour after the last loss", out);
    check_faults(m, &ctx->unwritten, "ssd_behind", "objects were evicted before the SSD had them",
                 "the SSDs were too slow for the puts, or could not be written", out);
}
