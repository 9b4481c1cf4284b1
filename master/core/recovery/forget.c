/* SPDX-License-Identifier: Apache-2.0
 * Frees state that is kept only as long as nodes may connect with older memory: removed versions, and bumps of
 * tenants without objects. */
#include "master/core/recovery/forget.h"

#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/tenant.h"
#include "master/core/catalog/record.h"
#include "master/core/log/journal.h"
#include "master/core/protect/gone.h"
#include "master/core/session/takeover.h"

#define LOOKS 1024u /* limit of the tenants that one step examines */
#define LOOKS_A_RECORD 64u /* examining this many tenants costs as much as handling one record */

/* Returns true if a node has not yet reported the SEALED extents of its older memory. */
static bool
is_any_expected(const kvp_master_t *m)
{
    bool is_any = kvp_gone_is_rebuilding(&m->prot);

    kvp_list_foreach (pos, &m->cat.segments)
        is_any |= kvp_list_entry(pos, kvp_segment_t, link)->is_restored;
    return is_any;
}

/* Returns true if this master sees all objects: no memory of older terms is missing or being reported. */
static bool
is_all_seen(const kvp_master_t *m)
{
    return m->cat.lost_n == 0 && m->dropping == 0 && !kvp_gone_is_rebuilding(&m->prot) && m->reports == 0;
}

/* Forgets the bumps (raised epochs) of a tenant without objects. From now on memory whose last mount was before this
 * term is not trusted, because it may have objects that the bumps removed. All present memory was mounted in it. */
static void
forget_bumps(kvp_master_t *m, kvp_tenant_t *t)
{
    m->cat.forgotten_term = m->ctx.term;
    kvp_record_forgotten(&m->cat, t->id, kvp_gen_make(m->ctx.term, m->cat.gen_seq));
    kvp_tenant_forget_bumps(&m->cat, t);
}

static void
forget_tenants(kvp_master_t *m)
{
    uint32_t looks = (uint32_t)kvp_min_u64(m->cat.tenants.limit, LOOKS);

    if (m->cat.tenants_used == m->cat.tenants.n || !is_all_seen(m) || m->ctx.slice_left == 0) return;
    for (uint32_t i = 0; i < looks; i++) {
        kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, m->cat.tenants_at++ % m->cat.tenants.limit);

        if (t == NULL || !kvp_tenant_is_forgettable(&m->cat, t)) continue;
        if (t->min_version == 0)
            kvp_tenant_prune(&m->cat, t);
        else
            forget_bumps(m, t);
    }
    kvp_ctx_spend(&m->ctx, 1 + looks / LOOKS_A_RECORD);
}

/* After a standby took over with an incomplete log: records OLDEST when all nodes have reported, or cannot any more. */
static void
end_lack(kvp_master_t *m)
{
    bool have_all_told = true;

    if (!m->log.is_lacking || m->peers.rebuild_until_ns == 0) return;
    kvp_list_foreach (pos, &m->cat.segments)
        have_all_told &= !kvp_list_entry(pos, kvp_segment_t, link)->is_restored;
    if (kvp_takeover_lacks_nothing(&m->peers, have_all_told)) kvp_record_oldest(&m->cat);
}

void
kvp_forget_some(kvp_master_t *m)
{
    end_lack(m);
    if ((m->prot.gone.cap > 0 || m->prot.are_copies_open) && !is_any_expected(m)) kvp_gone_forget(&m->prot);
    forget_tenants(m);
}
