/* SPDX-License-Identifier: Apache-2.0
 * Terms: somebody obeys a higher one, or knows the pool by another name. Everybody begins anew then.
 */
#include "master/core/state.h"

bool
kvp_term_outdated(kvp_master_t *m, uint32_t term)
{
    if (term >= KVP_TERM_MAX) return false;
    m->ctx.term = term + 1;
    m->is_ident_news = true;
    kvp_takeover_begin(m);
    if (m->log.journal.is_open) kvp_ledger_begin_anew(&m->log); /* what that one has done is not in it */
    /* Incarnations and grants of the old term are void, so everybody begins anew. */
    kvp_list_foreach (pos, &m->seen)
        kvp_session_close(m, kvp_list_entry(pos, kvp_session_t, link), "a node obeys a higher term");
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
    if (m->is_named || known == NULL || !is_other(m, known)) return false;
    if (!kvp_term_outdated(m, known->term > m->ctx.term ? known->term : m->ctx.term)) return false;
    memcpy(m->ctx.conf.pool_id, known->pool_id.data, sizeof m->ctx.conf.pool_id);
    m->ctx.conf.digest_seed = known->digest_seed;
    m->is_named = true;
    kvp_ctx_note(&m->ctx,
                 "the pool has its name from a node: the masters before are not known here, their objects may be");
    return true;
}
