/* SPDX-License-Identifier: Apache-2.0
 * Terms: which peers may raise this master's term, and how every session begins again under a new term.
 *
 * Design notes.
 * - A used term is never used again, and there are KVP_TERM_MAX of them. Any program can connect and name a term.
 * - With an election by etcd, no peer raises the term. The core logs the term, and etcd's keys decide
 *   (master/ha/election.c).
 * - Without etcd the master's log has the term. A master that has lost its log, or has an old copy of it, must follow
 *   its nodes. Memory that an earlier master used proves that a peer is such a node. Peers may raise the term only
 *   soon after the start, or before or soon after the pool's identity is final, in small steps, and a few times an
 *   hour. One long step is for a master that kept no state. */
#include "master/core/recovery/term.h"

#include "common/list.h"
#include "common/mutate.h"
#include "master/core/api/master.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/log/journal.h"
#include "master/core/recovery/logbase.h"
#include "master/core/recovery/loss.h"
#include "master/core/recovery/replay.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/session/takeover.h"
#include "proto/kvpool.pb-c.h"
#include "proto/segfmt.h"

#include <stdio.h>
#include <string.h>

#define RISE_MAX 16u /* one peer's message may raise the term by at most this number */
#define RISES_NS KVP_MS(3600000) /* within this time peers may raise the term at most KVP_TERM_RISES_MAX times */
#define LEAP_MAX 65536u /* limit of the one larger rise that a master without state allows before its first grant */

/* Begins a new log, because the old log lacks another master's records and nodes that are not connected know more. */
static void
begin_log_anew(kvp_master_t *m)
{
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->is_restored) kvp_segment_drop(m, g);
    }
    kvp_logbase_begin(m, true);
}

static void
close_all(kvp_master_t *m)
{
    kvp_list_foreach (pos, &m->peers.seen) {
        kvp_session_t *s = kvp_list_entry(pos, kvp_session_t, link);

        kvp_session_shut(s);
        kvp_session_dirty(&m->peers, s);
    }
}

void
kvp_term_begin(kvp_master_t *m, uint32_t term)
{
    m->ctx.term = term;
    kvp_peers_ident_changed(&m->peers, KVP_MUTE_UNTIL_SAVED);
    close_all(m); /* incarnations and grants of the old term are void, so every session begins again */
}

void
kvp_term_follow(kvp_master_t *m, uint32_t term)
{
    kvp_term_begin(m, term + 1);
    kvp_takeover_begin(&m->peers);
    if (m->log.state == KVP_JOURNAL_OPEN) begin_log_anew(m);
    kvp_ctx_note(&m->ctx, "a node obeys term %u: all clients and nodes reconnect under term %u", term, m->ctx.term);
}

/* Returns true if a peer may raise the master's term by `step`, and counts the rise. */
static bool
may_rise(kvp_master_t *m, uint32_t step)
{
    kvp_sessions_t *peers = &m->peers;
    uint64_t *last = &peers->term_rises_ns[peers->term_rises % KVP_TERM_RISES_MAX];
    bool is_spent = peers->term_rises >= KVP_TERM_RISES_MAX && m->ctx.now_ns - *last < RISES_NS;

    if (step <= RISE_MAX && !is_spent) {
        *last = m->ctx.now_ns;
        peers->term_rises++;
        return true;
    }
    if (step > LEAP_MAX || !peers->may_leap) return false;
    peers->may_leap = false;
    return true;
}

/* Refuses a peer's higher term and writes the reason, which is logged once until this master's term rises. */
kvp_err_t
kvp_term_refuse(kvp_master_t *m, uint32_t term, char why_out[KVP_TERM_WHY_MAX])
{
    const uint32_t next = term < KVP_TERM_MAX ? term + 1 : KVP_TERM_MAX;
    const char *cause = m->ctx.conf.is_elected ? "etcd gave this master its term" : "peers may not raise it so";

    snprintf(why_out, KVP_TERM_WHY_MAX,
             "term %u is not followed from %u: %s; if it is right, start the %s with --term %u", term, m->ctx.term,
             cause, m->ctx.conf.is_elected ? "masters" : "master", next);
    if (m->peers.refused_in != m->ctx.term) kvp_ctx_note(&m->ctx, "%s", why_out);
    m->peers.refused_in = m->ctx.term;
    return KVP_LIMIT;
}

kvp_err_t
kvp_term_raise(kvp_master_t *m, uint32_t term, char why_out[KVP_TERM_WHY_MAX])
{
    const bool may_follow = !m->ctx.conf.is_elected && m->ctx.now_ns < m->peers.follows_until_ns;

    if ((!may_follow && KVP_RULE(TERM_OF_STRANGERS)) || term >= KVP_TERM_MAX || !may_rise(m, term + 1 - m->ctx.term))
        return kvp_term_refuse(m, term, why_out);
    kvp_term_follow(m, term);
    return KVP_OK;
}

static bool
is_other(const kvp_master_t *m, const Kvp__Pb__KnownPool *known)
{
    return known->pool_id.len == sizeof m->ctx.conf.pool_id &&
           memcmp(known->pool_id.data, m->ctx.conf.pool_id, sizeof m->ctx.conf.pool_id) != 0;
}

/* Takes the pool's identity from a node whose memory belongs to an existing pool, if this master has none. A pool
 * whose terms are used up has ended: its nodes must create their memory again. */
kvp_err_t
kvp_term_pool_named_by(kvp_master_t *m, const Kvp__Pb__KnownPool *known, char why_out[KVP_TERM_WHY_MAX])
{
    if (m->peers.is_named || m->ctx.conf.is_elected || known == NULL || !is_other(m, known) ||
        known->term >= KVP_TERM_MAX)
        return KVP_NOT_FOUND;
    if (kvp_term_raise(m, known->term > m->ctx.term ? known->term : m->ctx.term, why_out) != KVP_OK) return KVP_LIMIT;
    memcpy(m->ctx.conf.pool_id, known->pool_id.data, sizeof m->ctx.conf.pool_id);
    m->ctx.conf.digest_seed = known->digest_seed;
    m->peers.is_named = true;
    m->peers.follows_until_ns = m->ctx.now_ns + m->ctx.conf.report_grace_ns;
    if (m->log.state == KVP_JOURNAL_OPEN) begin_log_anew(m); /* the log belongs to another pool */
    kvp_ctx_note(&m->ctx,
                 "the pool has its name from a node: the masters before are not known here, their objects may be");
    return KVP_OK;
}

void
kvp_master_ident(const kvp_master_t *m, kvp_master_ident_t *ident_out)
{
    memcpy(ident_out->pool_id, m->ctx.conf.pool_id, sizeof ident_out->pool_id);
    ident_out->digest_seed = m->ctx.conf.digest_seed;
    ident_out->term = m->ctx.term;
}

/* Returns a changed identity for the shell to save. While the shell saves an identity, the next one waits. */
void
kvp_term_take_ident(kvp_master_t *m, kvp_master_ident_t *ident_out)
{
    if (!m->peers.is_ident_news || m->peers.is_ident_given) return;
    m->peers.is_ident_news = false;
    m->peers.is_ident_given = m->ctx.conf.saves_ident;
    kvp_master_ident(m, ident_out);
}

/* The shell has saved the identity, or failed to. Without a durable term the core still sends nothing; an unsaved
 * pool identity is no obstacle, because the nodes keep it. */
void
kvp_term_ident_saved(kvp_master_t *m, const kvp_master_ident_t *ident, bool is_durable)
{
    kvp_sessions_t *peers = &m->peers;

    peers->is_ident_given = false;
    if (peers->is_ident_news || ident->term != m->ctx.term) return;
    if (is_durable || peers->mute == KVP_MUTE_UNTIL_TRIED) peers->mute = KVP_MUTE_NOT;
    if (is_durable) kvp_replay_named(m);
}

bool
kvp_term_is_mute(const kvp_master_t *m)
{
    return m->peers.mute != KVP_MUTE_NOT || m->log.synced < m->log.term_end;
}
