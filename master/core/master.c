/* SPDX-License-Identifier: Apache-2.0
 * The core's entry points: lifecycle, dispatch of frames, timers. ready.c has the outputs. */
#include "master/core/api/master.h"

#include "common/buf.h"
#include "common/hash.h"
#include "common/list.h"
#include "common/pages.h"
#include "proto/segfmt.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/drain.h"
#include "master/core/evict/tasks.h"
#include "master/core/evict/evacuate.h"
#include "master/core/evict/eviction.h"
#include "master/core/evict/hot.h"
#include "master/core/evict/rebalance.h"
#include "master/core/evict/window.h"
#include "master/core/log/journal.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/gone.h"
#include "master/core/protect/group.h"
#include "master/core/protect/leaving.h"
#include "master/core/protect/lease.h"
#include "master/core/protect/pin.h"
#include "master/core/protect/probe.h"
#include "master/core/protect/protection.h"
#include "master/core/protect/ticket.h"
#include "master/core/put/puts.h"
#include "master/core/put/queue.h"
#include "master/core/recovery/durable.h"
#include "master/core/recovery/forget.h"
#include "master/core/recovery/logbase.h"
#include "master/core/recovery/loss.h"
#include "master/core/recovery/rebuild.h"
#include "master/core/recovery/replay.h"
#include "master/core/recovery/restore.h"
#include "master/core/request/end.h"
#include "master/core/request/remove.h"
#include "master/core/request/request.h"
#include "master/core/session/session.h"
#include "master/core/session/takeover.h"
#include "master/core/space/copy.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"
#include "master/core/space/space.h"
#include "master/core/space/tier.h"
#include "master/core/recovery/state.h"
#include "master/core/recovery/term.h"
#include "proto/frame.h"
#include "proto/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICES 11u
#define REFUSED_BYTES (1u << 20) /* size of the table of refused puts; an entry has 16 bytes */
/* a longer gap between two inputs is taken as a stall of this master, not as silence of its peers */
#define STALL_NS KVP_MS(500)

/* ---- lifecycle */
/* Initialises the hash tables with a secret. Peers choose digests, attempt ids and tenants; with the secret they
 * cannot choose values that collide. */
static void
init_tables(kvp_master_t *m, uint64_t secret)
{
    kvp_umap_t *numbers[] = {&m->cat.tenant_ids,       &m->cat.up_hosts,       &m->peers.by_conn,
                             &m->peers.by_incarnation, &m->prot.group_numbers, &m->space.moving,
                             &m->space.tier_chunks,    &m->space.copying,      &m->prot.leaving};

    for (size_t i = 0; i < KVP_ARRAY_LEN(numbers); i++)
        kvp_umap_init(numbers[i], secret);
    kvp_digestmap_init(&m->prot.gone, secret);
}

kvp_err_t
kvp_master_create(const kvp_master_conf_t *conf, uint64_t now_ns, kvp_master_t **master_out)
{
    kvp_master_t *m;

    if (conf->term == 0 || conf->term > KVP_TERM_MAX) return KVP_INVALID;
    if (strlen(conf->host_id) > KVP_NAME_MAX) return KVP_INVALID;
    m = kvp_core_alloc(1, sizeof *m);
    m->cat.ctx = &m->ctx;
    m->cat.log = &m->log;
    m->peers.ctx = &m->ctx;
    m->peers.cat = &m->cat;
    m->prot = (kvp_protect_t){.ctx = &m->ctx, .log = &m->log, .cat = &m->cat, .peers = &m->peers};
    m->space = (kvp_space_t){.ctx = &m->ctx, .log = &m->log, .cat = &m->cat, .peers = &m->peers, .prot = &m->prot};
    m->puts = (kvp_puts_t){.ctx = &m->ctx, .cat = &m->cat, .peers = &m->peers, .prot = &m->prot, .space = &m->space};
    m->evict = (kvp_evict_t){
        .ctx = &m->ctx, .cat = &m->cat, .peers = &m->peers, .prot = &m->prot, .space = &m->space, .puts = &m->puts};
    m->ctx.conf = *conf;
    if (m->ctx.conf.lease_ns == 0) m->ctx.conf.lease_ns = KVP_MS(10000);
    if (m->ctx.conf.session_ttl_ns == 0) m->ctx.conf.session_ttl_ns = KVP_MS(10000);
    if (m->ctx.conf.node_grace_ns == 0) m->ctx.conf.node_grace_ns = KVP_MS(30000);
    if (m->ctx.conf.report_grace_ns == 0) m->ctx.conf.report_grace_ns = m->ctx.conf.node_grace_ns;
    if (m->ctx.conf.location_lease_ns == 0) m->ctx.conf.location_lease_ns = KVP_MS(1000);
    if (m->ctx.conf.location_grace_ns == 0) m->ctx.conf.location_grace_ns = KVP_MS(10000);
    if (m->ctx.conf.hot_window_ns == 0) m->ctx.conf.hot_window_ns = KVP_MS(10000);
    if (m->ctx.conf.max_sessions == 0) m->ctx.conf.max_sessions = 65536;
    if (m->ctx.conf.attempt_bytes == 0) m->ctx.conf.attempt_bytes = 4ull << 30;
    snprintf(m->host_id, sizeof m->host_id, "%s", conf->host_id);
    snprintf(m->unix_path, sizeof m->unix_path, "%s", conf->unix_path == NULL ? "" : conf->unix_path);
    m->ctx.term = conf->term;
    m->peers.is_named = conf->had_master;
    m->peers.may_leap = !m->peers.is_named;
    m->peers.follows_until_ns = m->peers.is_named ? now_ns + m->ctx.conf.report_grace_ns : UINT64_MAX;
    m->ctx.rng = conf->seed | 1;
    init_tables(m, conf->secret);
    m->prot.ticket_seq = conf->seed; /* random, so that tickets of the previous master match no ticket */
    m->ctx.now_ns = now_ns;
    m->ticked_ns = now_ns;
    m->puts.put_tick = now_ns / KVP_TICK_NS;
    m->puts.started_ns = now_ns;
    m->peers.old_leases_end_ns = m->ctx.conf.had_master ? now_ns + m->ctx.conf.location_grace_ns : now_ns;
    if (m->ctx.conf.had_master) m->peers.rebuild_until_ns = now_ns + m->ctx.conf.report_grace_ns;
    if (m->ctx.conf.had_master) kvp_takeover_expect_tickets(&m->peers);
    m->space.not_dead = kvp_table_alloc(KVP_NOT_DEAD_KEYS,
                                        /* the table's pages are touched at their first use, so that a core is created
                                         * quickly */
                                        sizeof *m->space.not_dead);
    if (m->space.not_dead == NULL) kvp_panic("out of memory: counters of keys");
    m->cat.index = kvp_objindex_create(conf->secret);
    kvp_departed_init(&m->cat.departed, conf->departed_bytes, now_ns);
    kvp_departed_init(&m->cat.refused, kvp_min_u64(conf->departed_bytes, REFUSED_BYTES), now_ns);
    kvp_objlist_init(&m->prot.pinned, KVP_OBJLIST_PINNED);
    kvp_objindex_set_time(m->cat.index, now_ns);
    kvp_list_init(&m->peers.seen);
    kvp_list_init(&m->peers.born);
    kvp_list_init(&m->peers.dirty);
    kvp_list_init(&m->cat.segments);
    kvp_list_init(&m->cat.attempts_in_order);
    kvp_list_init(&m->space.sending);
    for (uint32_t i = 0; i < KVP_PUT_WHEEL; i++)
        kvp_list_init(&m->puts.reqs[i]);
    kvp_list_init(&m->prot.ending);
    kvp_list_init(&m->over);
    kvp_list_init(&m->space.deferred_frees);
    kvp_list_init(&m->evict.evacuations);
    kvp_list_init(&m->evict.open_tasks);
    kvp_list_init(&m->cat.owners);
    kvp_list_init(&m->cat.taking);
    kvp_list_init(&m->puts.waiting);
    kvp_list_init(&m->space.claims_ready);
    kvp_list_init(&m->prot.leases);
    kvp_list_init(&m->prot.leasing);
    kvp_list_init(&m->jobs);
    kvp_list_init(&m->stagewaits);
    kvp_list_init(&m->space.staged);
    kvp_probe_init(&m->prot);
    kvp_groups_init(&m->prot);
    kvp_remove_init(m);
    kvp_journal_init(&m->log, &m->ctx);
    kvp_list_init(&m->prot.on_log[0]);
    kvp_list_init(&m->prot.on_log[1]);
    kvp_list_init(&m->space.held_back);
    kvp_list_init(&m->prot.leaving_synced);
    kvp_list_init(&m->prot.leaving_held);
    kvp_list_init(&m->prot.leaving_ready);
    *master_out = m;
    return KVP_OK;
}

void
kvp_master_destroy(kvp_master_t *m)
{
    if (m == NULL) return;
    while (!kvp_list_is_empty(&m->peers.seen))
        kvp_session_end(m, kvp_list_first(&m->peers.seen, kvp_session_t, link));
    m->ctx.slice_left = UINT32_MAX;
    kvp_session_end_some(m);
    kvp_ticket_end_some(&m->prot);
    while (!kvp_list_is_empty(&m->cat.segments)) {
        kvp_segment_t *g = kvp_list_first(&m->cat.segments, kvp_segment_t, link);

        while (!kvp_list_is_empty(&g->retires))
            kvp_retire_forget(&m->space, kvp_list_first(&g->retires, kvp_retire_t, link));
        for (uint32_t i = g->purge_chunk; i < g->chunk_n; i++) {
            kvp_slab_destroy(g->chunks[i].slab);
            kvp_slab_destroy(g->chunks[i].long_keys);
            kvp_place_forget_sealed(&g->chunks[i]);
        }
        kvp_report_free(m, g);
        kvp_segment_free(&m->space, g);
    }
    kvp_place_free_some(&m->space);
    kvp_groups_fini(&m->prot);
    kvp_leaving_fini(&m->prot);
    kvp_tasks_fini(&m->evict);
    kvp_hot_fini(&m->evict);
    kvp_umap_fini(&m->space.copying);
    kvp_ptab_fini(&m->space.copies);
    kvp_objindex_destroy(m->cat.index);
    kvp_departed_fini(&m->cat.departed);
    kvp_asks_fini(&m->cat.asks);
    kvp_departed_fini(&m->cat.refused);
    kvp_remove_fini(m);
    kvp_gone_forget(&m->prot);
    kvp_journal_fini(&m->log);
    kvp_buf_fini(&m->replay.rest);
    kvp_buf_fini(&m->cat.fresh_commits);
    kvp_umap_fini(&m->peers.by_conn);
    kvp_umap_fini(&m->peers.by_incarnation);
    kvp_probe_fini(&m->prot);
    kvp_tenants_fini(&m->cat);
    kvp_heap_fini(&m->prot.deferred);
    kvp_ptab_fini(&m->peers.sessions);
    kvp_ptab_fini(&m->cat.chunks);
    kvp_ptab_fini(&m->cat.attempts);
    kvp_ptab_fini(&m->prot.tickets);
    kvp_ptab_fini(&m->space.retires);
    kvp_buf_fini(&m->peers.unwanted);
    kvp_table_free(m->space.not_dead, KVP_NOT_DEAD_KEYS, sizeof *m->space.not_dead);
    kvp_heap_fini(&m->prot.expiries);
    kvp_umap_fini(&m->cat.up_hosts);
    kvp_umap_fini(&m->space.moving);
    kvp_umap_fini(&m->space.tier_chunks);
    kvp_ptab_fini(&m->space.moves);
    kvp_ptab_fini(&m->space.tier_drops);
    kvp_heap_fini(&m->cat.up_chunks);
    free(m->cat.up);
    free(m);
}

/* ---- time */
static void
advance_clock(kvp_master_t *m, uint64_t now_ns)
{
    if (now_ns > m->ctx.now_ns) {
        if (now_ns - m->ctx.now_ns > STALL_NS) m->ctx.stall_ns += now_ns - m->ctx.now_ns;
        m->ctx.now_ns = now_ns;
        kvp_objindex_set_time(m->cat.index, now_ns);
    }
}

/* Begins the handling of an input: sets the time and the step's budget. */
static void
begin_input(kvp_master_t *m, uint64_t now_ns)
{
    advance_clock(m, now_ns);
    m->ctx.work_left = KVP_STEP_WORK;
    m->ctx.slice_left = KVP_SLICE;
    kvp_probe_advance(&m->prot);
}

/* Drops the copies that may leave now. If an SSD had the object there, the object is written to the SSD of another
 * copy's node. */
static void
drop_moved(kvp_master_t *m)
{
    uint32_t oid;

    while (kvp_copies_leave(&m->space, &oid))
        if (oid != KVP_OID_NONE) kvp_evict_write_moved(&m->evict, oid);
}

/* Ends the handling of an input: retries waiting puts, evicts, and queues orders to nodes. A standby does nothing. */
static void
end_input(kvp_master_t *m)
{
    if (m->log.is_resting) return;
    if (m->ctx.has_space_news) {
        m->ctx.has_space_news = false;
        kvp_evict_retry_waiting(&m->evict);
    }
    kvp_pin_trim(&m->prot);
    if (m->prot.leavings.n > 0) drop_moved(m);
    kvp_stagewaits_go_on(m); /* before any eviction: gets that waited for loads take holds on the objects */
    kvp_evict_reserve(&m->evict);
    kvp_evict_for_tiers(&m->evict);
    kvp_tier_flush(&m->space);
    kvp_retire_flush(&m->space);
    kvp_put_windows_free(&m->puts);
}

/* Runs the work that is due by the clock. */
static void
timed_tick(kvp_master_t *m)
{
    bool is_due = m->ctx.now_ns - m->ticked_ns >= KVP_TICK_NS;

    if (!is_due && !m->ctx.is_behind) return;
    if (is_due) {
        m->ticked_ns = m->ctx.now_ns;
        kvp_probe_tick(&m->prot);
    }
    kvp_session_tick(m);
    kvp_ticket_tick(&m->prot);
    kvp_lease_tick(&m->prot);
    kvp_deferred_tick(&m->prot);
    kvp_put_tick(&m->puts);
    kvp_tier_tick(&m->space);
    kvp_departed_tick(&m->cat.departed);
    kvp_stagewaits_tick(m);
    kvp_evict_ahead_tick(&m->evict);
    kvp_drain_tick(&m->evict);
    kvp_tasks_tick(&m->evict);
    kvp_hot_tick(&m->evict);
    kvp_asks_tick(&m->cat);
    m->ctx.is_behind = m->ctx.slice_left == 0;
}

/* Runs one of the deferrable jobs. The jobs share the step's budget, so in each tick another job comes first. */
static void
run_slice(kvp_master_t *m, uint32_t which)
{
    switch (which) {
    case 0:
        timed_tick(m);
        break;
    case 1:
        kvp_session_end_some(m);
        break;
    case 2:
        kvp_ticket_end_some(&m->prot);
        break;
    case 3:
        kvp_groups_tick(&m->evict);
        break;
    case 4:
        kvp_remove_tick(m);
        break;
    case 5:
        kvp_segment_tick(m);
        break;
    case 6:
        kvp_place_free_some(&m->space);
        break;
    case 7:
        kvp_evacuate_tick(&m->evict);
        break;
    case 8:
        kvp_durable_tick(m);
        break;
    case 9:
        kvp_rebalance_tick(&m->evict);
        break;
    default:
        kvp_forget_some(m);
        break;
    }
}

/* Records the time and the newest version, from which the ages of all versions are computed. */
static void
note_ages(kvp_master_t *m)
{
    const uint64_t own = m->log.is_resting ? 0 : kvp_gen_make(m->ctx.term, m->cat.gen_seq);

    kvp_ages_note(&m->cat.ages, kvp_max_u64(own, m->replay.newest), m->ctx.now_ns);
}

/* The tick of a standby: handles only sessions, which may ask for the standby's state. */
static void
follower_tick(kvp_master_t *m)
{
    m->ticked_ns = m->ctx.now_ns;
    kvp_session_tick(m);
    kvp_session_end_some(m);
    kvp_place_free_some(&m->space);
    (void)kvp_objindex_step(m->cat.index);
}

void
kvp_master_on_tick(kvp_master_t *m, uint64_t now_ns)
{
    begin_input(m, now_ns);
    note_ages(m);
    if (m->log.is_resting) {
        follower_tick(m);
        return;
    }
    m->turn++;
    if (m->ctx.st.log_refuses != 0) kvp_put_refuse_waiting(&m->puts);
    for (uint32_t i = 0; i < SLICES; i++)
        run_slice(m, (m->turn + i) % SLICES);
    kvp_evict_tick(&m->evict);
    (void)kvp_objindex_step(m->cat.index);
    end_input(m);
}

/* ---- input */
void
kvp_master_on_connect(kvp_master_t *m, uint64_t conn, uint64_t now_ns)
{
    kvp_session_t *s;

    begin_input(m, now_ns);
    note_ages(m); /* the first tick may come after the first put */
    s = kvp_session_open(&m->peers, conn);
    if (m->peers.sessions.n > m->ctx.conf.max_sessions) kvp_session_close(&m->peers, s, "too many sessions");
}

void
kvp_master_on_identity(kvp_master_t *m, uint64_t conn, const kvp_identity_t *who, uint64_t now_ns)
{
    kvp_session_t *s = kvp_session_find(&m->peers, conn);

    begin_input(m, now_ns);
    if (s == NULL || s->who != NULL || s->incarnation != 0) return;
    s->who = kvp_core_alloc(1, sizeof *s->who);
    *s->who = *who;
}

void
kvp_master_revoke(kvp_master_t *m, uint64_t conn)
{
    kvp_session_t *s = kvp_session_find(&m->peers, conn);

    if (s != NULL) s->is_revoked = true;
}

void
kvp_master_on_close(kvp_master_t *m, uint64_t conn, uint64_t now_ns)
{
    kvp_session_t *s = kvp_session_find(&m->peers, conn);
    uint32_t slice_left = m->ctx.slice_left;

    begin_input(m, now_ns);
    /* connections that close one after another share the budget of one step; the rest of their work waits for a tick */
    m->ctx.slice_left = slice_left;
    if (s == NULL) return;
    kvp_session_end(m, s);
    end_input(m);
}

typedef void (*handler_fn)(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f);

static void
on_bye(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    /* Bye also states that none of the client's writes is in progress: its unfinished puts are aborted as drained. */
    s->is_drained = true;
    kvp_reply_plain(&m->peers, s, &f->hdr, KVP_OK, "");
    kvp_session_shut(s);
    kvp_session_dirty(&m->peers, s);
}

static const struct {
    handler_fn fn;
    /* bits: kvp_role_t values that may send the message; QUESTION: illegal one-way; STATE: legal if state-only;
     * AUDIT: destroys something */
    uint32_t roles;
    kvp_authrole_t least; /* the role that a client needs, if the master requires identities */
} handlers[256] = {
#define C (1u << KVP_ROLE_CLIENT)
#define N (1u << KVP_ROLE_NODE)
#define QUESTION (1u << 31)
#define STATE (1u << 30)
#define AUDIT (1u << 29)
    [KVP_OP_BYE] = {on_bye, C | N | STATE, KVP_MAY_MONITOR},
    [KVP_OP_HEARTBEAT] = {kvp_on_heartbeat, C | N | STATE, KVP_MAY_MONITOR},
    [KVP_OP_PUT_BEGIN] = {kvp_on_put_begin, C, KVP_MAY_WRITE},
    [KVP_OP_PUT_COMMIT] = {kvp_on_put_commit, C, KVP_MAY_WRITE},
    [KVP_OP_PUT_ABORT] = {kvp_on_put_abort, C, KVP_MAY_WRITE},
    [KVP_OP_GET] = {kvp_on_get, C, KVP_MAY_READ},
    [KVP_OP_EXISTS] = {kvp_on_exists, C, KVP_MAY_READ},
    [KVP_OP_LOOKUP] = {kvp_on_lookup, C, KVP_MAY_READ},
    [KVP_OP_RELEASE] = {kvp_on_release, C, KVP_MAY_READ},
    [KVP_OP_REMOVE] = {kvp_on_remove, C | AUDIT, KVP_MAY_WRITE},
    [KVP_OP_USED] = {kvp_on_used, C, KVP_MAY_READ},
    [KVP_OP_BUMP] = {kvp_on_bump, C | AUDIT, KVP_MAY_ADMIN},
    [KVP_OP_PRESENT] = {kvp_on_present, C, KVP_MAY_READ},
    [KVP_OP_REMOVE_MANY] = {kvp_on_remove_many, C | AUDIT, KVP_MAY_WRITE},
    [KVP_OP_LIST] = {kvp_on_list, C | QUESTION | STATE, KVP_MAY_READ},
    [KVP_OP_SEGMENTS] = {kvp_on_segments, C | N | QUESTION | STATE, KVP_MAY_MONITOR},
    [KVP_OP_STATUS] = {kvp_on_status, C | N | QUESTION | STATE, KVP_MAY_MONITOR},
    [KVP_OP_SNAPSHOT] = {kvp_on_snapshot, C | QUESTION | AUDIT, KVP_MAY_ADMIN},
    [KVP_OP_DRAIN] = {kvp_on_drain, C | N | QUESTION, KVP_MAY_ADMIN},
    [KVP_OP_SESSIONS] = {kvp_on_sessions, C | QUESTION, KVP_MAY_ADMIN},
    [KVP_OP_TASK] = {kvp_on_task, C | QUESTION, KVP_MAY_WRITE},
    [KVP_OP_EXPLAIN] = {kvp_on_explain, C | QUESTION | STATE, KVP_MAY_READ},
    [KVP_OP_MOUNT] = {kvp_on_mount, N, KVP_MAY_NOTHING},
    [KVP_OP_UNMOUNT] = {kvp_on_unmount, N | AUDIT, KVP_MAY_NOTHING},
    [KVP_OP_FREED] = {kvp_on_freed, N, KVP_MAY_NOTHING},
    [KVP_OP_REPORT] = {kvp_on_report, N, KVP_MAY_NOTHING},
    [KVP_OP_TIER_REPORT] = {kvp_on_tier_report, N | QUESTION, KVP_MAY_NOTHING},
    [KVP_OP_RECLAIM] = {kvp_on_reclaim, N | QUESTION, KVP_MAY_NOTHING},
#undef C
#undef N
};

static bool
may_ask(const kvp_session_t *s, uint8_t op)
{
    return s->role != KVP_ROLE_CLIENT || kvp_authrole_covers(s->rights, handlers[op].least);
}

static void
dispatch_frame(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    uint8_t op = f->hdr.opcode;

    if ((f->hdr.flags & KVP_FRAME_REPLY) != 0) {
        if (s->role == KVP_ROLE_NODE && op == KVP_OP_RETIRE)
            kvp_retire_answer(m, s, f);
        else if (s->role == KVP_ROLE_NODE && op == KVP_OP_CHECK)
            kvp_on_check_answer(m, s, f);
        else if (s->role == KVP_ROLE_NODE &&
                 (op == KVP_OP_DEMOTE || op == KVP_OP_STAGE || op == KVP_OP_DROP || op == KVP_OP_COPY))
            kvp_on_tier_answer(m, s, f);
        else if (s->role != KVP_ROLE_NODE || op != KVP_OP_FENCE) /* the answer to a Fence needs no action */
            kvp_session_close(&m->peers, s, "an answer to no question");
        return;
    }
    if (s->incarnation == 0) {
        if (op == KVP_OP_HELLO)
            kvp_on_hello(m, s, f);
        else if (op == KVP_OP_WATCH && !m->log.is_resting && (f->hdr.flags & KVP_FRAME_ONEWAY) == 0)
            kvp_on_watch(m, s, f);
        else
            kvp_session_close(&m->peers, s, "no Hello");
        return;
    }
    if (handlers[op].fn == NULL || (handlers[op].roles & 1u << s->role) == 0) {
        /* A newer peer might send an unknown opcode: it gets an error, and the connection stays. */
        if (handlers[op].fn != NULL)
            kvp_session_audit(&m->peers, s, op, KVP_NOTSUP,
                              s->role == KVP_ROLE_CLIENT ? "only nodes may do this" : "only clients may do this");
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_NOTSUP, "unknown operation");
        return;
    }
    if (!may_ask(s, op)) {
        snprintf(m->denied, sizeof m->denied, "the role %s may not do this; it needs the role %s",
                 kvp_authrole_name(s->rights), kvp_authrole_name(handlers[op].least));
        kvp_session_audit(&m->peers, s, op, KVP_DENIED, m->denied);
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_DENIED, m->denied);
        return;
    }
    if ((handlers[op].roles & AUDIT) != 0) kvp_session_audit(&m->peers, s, op, KVP_OK, "");
    if (s->use == KVP_USE_STATE && (handlers[op].roles & STATE) == 0) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_NOT_LEADER, "this session may only look");
        return;
    }
    if ((handlers[op].roles & QUESTION) != 0 && (f->hdr.flags & KVP_FRAME_ONEWAY) != 0)
        kvp_session_close(&m->peers, s, "a question that wants no answer");
    else
        handlers[op].fn(m, s, f);
}

void
kvp_master_on_frame(kvp_master_t *m, uint64_t conn, const kvp_frame_t *frame, uint64_t now_ns)
{
    kvp_session_t *s = kvp_session_find(&m->peers, conn);

    begin_input(m, now_ns);
    if (s == NULL || s->life != KVP_SESSION_OPEN) return;
    m->ctx.st.frames++;
    s->seen_ns = m->ctx.now_ns;
    s->stall_seen_ns = m->ctx.stall_ns;
    kvp_list_del(&s->link);
    kvp_list_add_tail(&m->peers.seen, &s->link);
    dispatch_frame(m, s, frame);
    end_input(m);
}

/* Records a result of the shell's work on which no answer waits directly: the next input acts on the result. */
static void
note_done(kvp_master_t *m, const kvp_master_done_t *done)
{
    switch (done->kind) {
    case KVP_DONE_UNSYNCED:
        kvp_durable_unsynced(m, done->position);
        break;
    case KVP_DONE_FORGOTTEN:
        kvp_logbase_forgotten(m, done->bytes);
        break;
    case KVP_DONE_IDENT:
    case KVP_DONE_IDENT_FAILED:
        kvp_term_ident_saved(m, done->ident, done->kind == KVP_DONE_IDENT);
        break;
    case KVP_DONE_LOG_FAILS:
        m->log.has_failed = true;
        break;
    case KVP_DONE_LOG_REFUSES:
        m->ctx.st.log_refuses = 1;
        snprintf(m->ctx.log_failure, sizeof m->ctx.log_failure, "%s", done->why);
        break;
    case KVP_DONE_LOG_WORKS:
        m->log.has_failed = false;
        m->ctx.st.log_refuses = 0;
        break;
    case KVP_DONE_WRITTEN:
    case KVP_DONE_SYNCED:
        break;
    }
}

void
kvp_master_done(kvp_master_t *m, const kvp_master_done_t *done, uint64_t now_ns)
{
    if (done->kind != KVP_DONE_WRITTEN && done->kind != KVP_DONE_SYNCED) {
        note_done(m, done);
        return;
    }
    begin_input(m, now_ns);
    if (done->kind == KVP_DONE_WRITTEN)
        kvp_durable_written(m, done->position);
    else
        kvp_durable_synced(m, done->position);
    end_input(m);
}

/* Begins to remove objects that were put before a bump: the log may contain them, as they are removed in steps. */
static void
sweep_bumped(kvp_master_t *m)
{
    for (uint32_t i = 0; i < m->cat.tenants.limit; i++) {
        kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t != NULL && t->min_version > 0 && t->objects > 0) kvp_bump_sweep(m, t);
    }
}

kvp_err_t
kvp_master_open_log(kvp_master_t *m, kvp_master_open_t how, uint64_t *end_out)
{
    kvp_err_t err;

    if (how == KVP_OPEN_FOLLOW) return kvp_replay_follow(m, end_out);
    err = kvp_replay_open(m, how == KVP_OPEN_WHOLE, end_out);
    if (err == KVP_OK && m->base.is_relied_on) sweep_bumped(m);
    return err;
}

kvp_err_t
kvp_master_lead(kvp_master_t *m, uint32_t term, bool is_level, uint64_t now_ns)
{
    kvp_err_t err;

    begin_input(m, now_ns);
    err = kvp_replay_lead(m, term, is_level);
    if (err != KVP_OK) return err;
    if (m->base.is_relied_on) sweep_bumped(m);
    end_input(m);
    return KVP_OK;
}

void
kvp_master_note_times(kvp_master_t *m, uint64_t step_longest_ns, uint64_t answer_longest_ns)
{
    m->ctx.st.step_longest_ns = step_longest_ns;
    m->ctx.st.answer_longest_ns = answer_longest_ns;
}
