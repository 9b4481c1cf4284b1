/* SPDX-License-Identifier: Apache-2.0
 * What a take-over leaves for a while: clients may read under leases of the master before, sessions come with tickets of it,
 * and nodes report memory of older terms.
 */
#include "master/core/state.h"

#include "common/mutate.h"

#define TAKE_OVER_WAIT_NS KVP_MS(2000) /* clients are back by then, */
#define REPORT_WAIT_NS KVP_MS(500) /* and ask again for what that report has brought */

/* ---- what may be presented yet */
void
kvp_takeover_expect_tickets(kvp_master_t *m)
{
    m->took_over_ns = m->ctx.now_ns;
    m->presents_due_ns = m->ctx.now_ns + kvp_min_u64(TAKE_OVER_WAIT_NS, m->ctx.conf.lease_ns);
}

void
kvp_takeover_reported(kvp_master_t *m)
{
    uint64_t due = kvp_min_u64(m->ctx.now_ns + REPORT_WAIT_NS, m->took_over_ns + m->ctx.conf.lease_ns);

    m->presents_due_ns = kvp_max_u64(m->presents_due_ns, due);
}

bool
kvp_takeover_may_tickets_come(const kvp_master_t *m)
{
    return m->ctx.now_ns < m->presents_due_ns && KVP_RULE(PRESENT_GRACE);
}

bool
kvp_takeover_may_ticket_name(const kvp_master_t *m, const kvp_obj_t *o)
{
    return kvp_takeover_may_tickets_come(m) && kvp_obj_version(o) < kvp_gen_make(m->ctx.term, 0);
}

void
kvp_takeover_begin(kvp_master_t *m)
{
    m->old_leases_end_ns = m->ctx.now_ns + m->ctx.conf.location_grace_ns;
    m->rebuild_until_ns = m->ctx.now_ns + m->ctx.conf.node_grace_ns;
    kvp_takeover_expect_tickets(m);
}
