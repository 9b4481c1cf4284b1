/* SPDX-License-Identifier: Apache-2.0
 * Terms: somebody obeys a higher one, or knows the pool by another name. Everybody begins anew then.
 *
 * Design notes. A term that was used is never taken back, and there are KVP_TERM_MAX of them. Anybody may say that he is a node
 * and obeys one, so what peers may use up is bounded: small steps, few an hour, as masters that start one after the other cause
 * them; and one long step for a master that kept nothing, which has to follow the nodes before it gives out anything.
 */
#include "master/core/recovery/term.h"

#include "common/list.h"
#include "common/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/log/interim.h"
#include "master/core/master.h"
#include "master/core/recovery/loss.h"
#include "master/core/session/session.h"
#include "master/core/session/takeover.h"
#include "master/core/state.h"
#include "proto/kvpool.pb-c.h"

#include <stdio.h>
#include <string.h>

#define RISE_MAX 16u /* terms that one rise goes on by, */
#define RISES_NS KVP_MS(3600000) /* and KVP_TERM_RISES_MAX of them within that time */
#define LEAP_MAX 65536u /* the same, once, before the first grant of a master that kept nothing */

/* What another master has done is not in it: nodes that have not come yet know better. */
static void
begin_log_anew(kvp_master_t *m)
{
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->is_restored) kvp_segment_drop(m, g);
    }
    kvp_journal_base(&m->log, true);
}

static void
close_all(kvp_master_t *m)
{
    kvp_list_foreach (pos, &m->peers.seen) {
        kvp_session_t *s = kvp_list_entry(pos, kvp_session_t, link);

        s->is_closing = true;
        kvp_session_dirty(&m->peers, s);
    }
}

void
kvp_term_begin(kvp_master_t *m, uint32_t term)
{
    m->ctx.term = term;
    m->peers.is_term_unsaved = true;
    kvp_peers_ident_changed(&m->peers);
    close_all(m); /* incarnations and grants of the old term are void, so everybody begins anew */
}

void
kvp_term_follow(kvp_master_t *m, uint32_t term)
{
    kvp_term_begin(m, term + 1);
    kvp_takeover_begin(&m->peers);
    if (m->log.journal.is_open) begin_log_anew(m);
    kvp_ctx_note(&m->ctx, "a node obeys term %u: everybody is to begin anew under %u", term, m->ctx.term);
}

/* Another master was elected after us. */
static void
give_up(kvp_master_t *m, uint32_t term)
{
    m->deposed_term = (uint32_t)kvp_max_u64(m->deposed_term, term);
    kvp_ctx_note(&m->ctx, "a node obeys term %u, and this master leads in %u: it gives up its lead", term, m->ctx.term);
    close_all(m);
}

/* Whether peers may cause that rise; then it counts. */
static bool
may_rise(kvp_master_t *m, uint32_t step)
{
    kvp_peers_t *peers = &m->peers;
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

kvp_err_t
kvp_term_outdated(kvp_master_t *m, uint32_t term, char why_out[KVP_TERM_WHY_MAX])
{
    /* Terms of those who are elected stand in etcd before they are used: one far above ours is of no such master. */
    if (m->ctx.conf.is_elected && term < m->ctx.term + RISE_MAX) {
        give_up(m, term);
        return KVP_OK;
    }
    if (!m->ctx.conf.is_elected && term < KVP_TERM_MAX && may_rise(m, term + 1 - m->ctx.term)) {
        m->peers.is_term_refused = false;
        kvp_term_follow(m, term);
        return KVP_OK;
    }
    snprintf(why_out, KVP_TERM_WHY_MAX,
             "term %u is not followed from %u: peers have raised it too far or too often; if it is right, start the "
             "master with "
             "--term %u",
             term, m->ctx.term, term < KVP_TERM_MAX ? term + 1 : KVP_TERM_MAX);
    if (!m->peers.is_term_refused) kvp_ctx_note(&m->ctx, "%s", why_out);
    m->peers.is_term_refused = true;
    return KVP_LIMIT;
}

static bool
is_other(const kvp_master_t *m, const Kvp__Pb__KnownPool *known)
{
    return known->pool_id.len == sizeof m->ctx.conf.pool_id &&
           memcmp(known->pool_id.data, m->ctx.conf.pool_id, sizeof m->ctx.conf.pool_id) != 0;
}

/* A pool whose terms are used up is over: its nodes offer their memory afresh. */
kvp_err_t
kvp_term_pool_named_by(kvp_master_t *m, const Kvp__Pb__KnownPool *known, char why_out[KVP_TERM_WHY_MAX])
{
    if (m->peers.is_named || m->ctx.conf.is_elected || known == NULL || !is_other(m, known) ||
        known->term >= KVP_TERM_MAX)
        return KVP_NOT_FOUND;
    if (kvp_term_outdated(m, known->term > m->ctx.term ? known->term : m->ctx.term, why_out) != KVP_OK)
        return KVP_LIMIT;
    memcpy(m->ctx.conf.pool_id, known->pool_id.data, sizeof m->ctx.conf.pool_id);
    m->ctx.conf.digest_seed = known->digest_seed;
    m->peers.is_named = true;
    if (m->log.journal.is_open) begin_log_anew(m); /* it is of another pool */
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

bool
kvp_master_take_ident(kvp_master_t *m, kvp_master_ident_t *ident_out)
{
    if (!m->peers.is_ident_news) return false;
    m->peers.is_ident_news = false;
    kvp_master_ident(m, ident_out);
    return true;
}

/* A name that could not be saved is known to the nodes, a term only to those that heard of it. */
void
kvp_master_ident_saved(kvp_master_t *m, const kvp_master_ident_t *ident, bool is_durable)
{
    kvp_peers_t *peers = &m->peers;

    if (peers->is_ident_news || ident->term != m->ctx.term) return;
    if (is_durable) peers->is_term_unsaved = false;
    peers->is_mute = peers->is_term_unsaved;
    if (is_durable) kvp_replay_named(&m->log);
}

bool
kvp_master_is_mute(const kvp_master_t *m)
{
    return m->peers.is_mute || m->log.journal.synced < m->log.journal.term_end;
}
