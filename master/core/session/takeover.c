/* SPDX-License-Identifier: Apache-2.0
 * The consequences of a take-over from another master, which last for a while: clients may read under leases of the
 * previous master, clients restore tickets that they had, and nodes report memory of older terms. */
#include "master/core/session/takeover.h"

#include "common/mutate.h"
#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/session/peers.h"

#define TAKE_OVER_WAIT_NS KVP_MS(2000) /* time in which clients reconnect after a take-over */
#define REPORT_WAIT_NS KVP_MS(500) /* time after a node's report in which clients may restore tickets */

/* ---- tickets that clients restore */
void
kvp_takeover_expect_tickets(kvp_sessions_t *peers)
{
    peers->took_over_ns = peers->ctx->now_ns;
    peers->presents_due_ns = peers->ctx->now_ns + kvp_min_u64(TAKE_OVER_WAIT_NS, peers->ctx->conf.lease_ns);
}

void
kvp_takeover_reported(kvp_sessions_t *peers)
{
    uint64_t due = kvp_min_u64(peers->ctx->now_ns + REPORT_WAIT_NS, peers->took_over_ns + peers->ctx->conf.lease_ns);

    peers->presents_due_ns = kvp_max_u64(peers->presents_due_ns, due);
}

bool
kvp_takeover_may_tickets_come(const kvp_sessions_t *peers)
{
    return peers->ctx->now_ns < peers->presents_due_ns && KVP_RULE(TICKET_RESTORE_GRACE);
}

bool
kvp_takeover_may_ticket_name(const kvp_sessions_t *peers, const kvp_obj_t *o)
{
    return kvp_takeover_may_tickets_come(peers) && kvp_obj_version(o) < kvp_gen_make(peers->ctx->term, 0);
}

void
kvp_takeover_knows_all(kvp_sessions_t *peers)
{
    peers->orphans_until_ns = peers->rebuild_until_ns;
    peers->rebuild_until_ns = 0;
}

void
kvp_takeover_lacks(kvp_sessions_t *peers)
{
    peers->rebuild_until_ns = UINT64_MAX;
}

bool
kvp_takeover_lacks_nothing(kvp_sessions_t *peers, bool have_all_told)
{
    const uint64_t wait_ns = have_all_told ? TAKE_OVER_WAIT_NS : peers->ctx->conf.report_grace_ns;

    if (peers->ctx->now_ns < peers->took_over_ns + wait_ns) return false;
    peers->rebuild_until_ns = 0;
    return true;
}

void
kvp_takeover_begin(kvp_sessions_t *peers)
{
    peers->old_leases_end_ns = peers->ctx->now_ns + peers->ctx->conf.location_grace_ns;
    peers->rebuild_until_ns = peers->ctx->now_ns + peers->ctx->conf.report_grace_ns;
    kvp_takeover_expect_tickets(peers);
}
