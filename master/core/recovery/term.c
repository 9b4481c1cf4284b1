/* SPDX-License-Identifier: Apache-2.0
 * Terms: somebody obeys a higher one, or knows the pool by another name. Everybody begins anew then.
 */
#include "master/core/recovery/term.h"

#include "common/list.h"
#include "common/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/log/interim.h"
#include "master/core/master.h"
#include "master/core/session/session.h"
#include "master/core/session/takeover.h"
#include "master/core/state.h"
#include "proto/kvpool.pb-c.h"

#include <string.h>

bool
kvp_term_outdated(kvp_master_t *m, uint32_t term)
{
    if (term >= KVP_TERM_MAX) return false;
    m->ctx.term = term + 1;
    m->peers.is_ident_news = true;
    kvp_takeover_begin(&m->peers);
    if (m->log.journal.is_open) kvp_replay_begin_anew(&m->log); /* what that one has done is not in it */
    /* Incarnations and grants of the old term are void, so everybody begins anew. */
    kvp_list_foreach (pos, &m->peers.seen)
        kvp_session_close(&m->peers, kvp_list_entry(pos, kvp_session_t, link), "a node obeys a higher term");
    return true;
}

static bool
is_other(const kvp_master_t *m, const Kvp__Pb__KnownPool *known)
{
    return known->pool_id.len == sizeof m->ctx.conf.pool_id &&
           memcmp(known->pool_id.data, m->ctx.conf.pool_id, sizeof m->ctx.conf.pool_id) != 0;
}

bool
kvp_term_pool_named_by(kvp_master_t *m, const Kvp__Pb__KnownPool *known)
{
    if (m->peers.is_named || known == NULL || !is_other(m, known)) return false;
    if (!kvp_term_outdated(m, known->term > m->ctx.term ? known->term : m->ctx.term)) return false;
    memcpy(m->ctx.conf.pool_id, known->pool_id.data, sizeof m->ctx.conf.pool_id);
    m->ctx.conf.digest_seed = known->digest_seed;
    m->peers.is_named = true;
    kvp_ctx_note(&m->ctx,
                 "the pool has its name from a node: the masters before are not known here, their objects may be");
    return true;
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
