/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - An endpoint that carries little has one rail. The others are connected when it first carries much, or has lost that one.
 * - Little goes over one rail: another doorbell, another completion and waiting for both cost more than half of the time
 *   of WIDE_BYTES. Slices of more go to the rail that has least under way for its share.
 * - Order between rails is by completions: what must come after others waits until these are over on all rails but its own,
 *   where a fence does the same.
 * - The works of a rail that failed stay in its ring until they are posted again, in the order in which they were first
 *   posted, before anything new.
 */
#include "client/transport/rdma_rails.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/mutate.h"

#include <netinet/in.h>
#include <string.h>

#define WIDE_BYTES (512u << 10) /* 20 us at 200 Gb/s */

/* ---- which there are */
static uint32_t
dev_index(const kvp_rdma_tp_t *tp, const kvp_rdma_dev_t *dev)
{
    uint32_t i = 0;

    while (i < tp->devs_n && tp->devs[i] != dev)
        i++;
    return i;
}

void
kvp_rdma_rails_learn(kvp_rdma_ep_t *ep, const kvp_rdma_answer_t *answer)
{
    kvp_rdma_pair_t pairs[KVP_RDMA_RAILS_MAX] = {{dev_index(ep->tp, ep->rails[0].id->dev), answer->rail}};

    ep->peer_rails_n = answer->rails_n;
    memcpy(ep->peer_rails, answer->rails, sizeof answer->rails);
    ep->rails[0].pair = pairs[0];
    if (pairs[0].ours >= ep->tp->devs_n) return; /* the network led over an adapter that we leave alone */
    ep->rails_n = (uint32_t)kvp_rdma_pairs(ep->tp->devs, ep->tp->devs_n, ep->peer_rails, ep->peer_rails_n, pairs);
    for (uint32_t i = 1; i < ep->rails_n; i++) {
        ep->rails[i].pair = pairs[i];
        kvp_rdma_health_init(&ep->rails[i].health);
    }
}

static uint32_t
up_n(const kvp_rdma_ep_t *ep)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ep->rails_n; i++)
        n += ep->rails[i].is_up;
    return n;
}

static bool
is_any_open(const kvp_rdma_ep_t *ep)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (ep->rails[i].id != NULL) return true;
    return false;
}

/* ---- which carries what */
static uint64_t
best_ns_per_mib(const kvp_rdma_ep_t *ep)
{
    uint64_t best = 0;

    for (uint32_t i = 0; i < ep->rails_n; i++) {
        uint64_t ns = ep->rails[i].health.ns_per_mib;

        if (ep->rails[i].is_up && ns > 0 && (best == 0 || ns < best)) best = ns;
    }
    return best;
}

/* The one that little goes over: the first of those that are trusted most. */
static kvp_rdma_rail_t *
home(kvp_rdma_ep_t *ep)
{
    kvp_rdma_rail_t *best = NULL;

    for (uint32_t i = 0; i < ep->rails_n; i++) {
        kvp_rdma_rail_t *rail = &ep->rails[i];

        if (rail->is_up && (best == NULL || rail->health.score > best->health.score)) best = rail;
    }
    return best;
}

/* Whether all that a transfer must come after is over, but for what the rail itself sees to. */
static bool
is_over_elsewhere(const kvp_rdma_ep_t *ep, const kvp_rdma_rail_t *rail, const kvp_xfer_t *xfer)
{
    bool lies_apart = xfer->kind == KVP_XFER_WRITE && (xfer->flags & KVP_XFER_GUARDED) != 0;

    if ((xfer->flags & KVP_XFER_AFTER_PRIOR) == 0) return true;
    if (xfer->kind == KVP_XFER_READ && !KVP_RULE(RDMA_READ_RAILS)) return true;
    if (xfer->kind == KVP_XFER_PUBLISH && !KVP_RULE(RDMA_SEAL_RAILS)) return true;
    for (uint32_t i = 0; i < ep->rails_n; i++) {
        const kvp_rdma_rail_t *other = &ep->rails[i];

        if (other == rail || !other->is_up) continue;
        if (other->works_tail < (lies_apart ? other->ordered : other->works_head)) return false;
    }
    return true;
}

/* What it is to send may be what a READ before it brings. */
static bool
awaits_reads(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer, uint64_t off)
{
    if (xfer->kind != KVP_XFER_WRITE || (xfer->flags & KVP_XFER_AFTER_PRIOR) == 0 || off > 0) return false;
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (ep->rails[i].reads_n > 0) return KVP_RULE(RDMA_WRITE_WAITS);
    return false;
}

kvp_rdma_rail_t *
kvp_rdma_rails_pick(kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer, uint64_t off, uint64_t len)
{
    kvp_rdma_rail_t *only = ep->rails_n == 1 || !ep->is_wide || xfer->kind == KVP_XFER_PUBLISH ? home(ep) : NULL;
    uint64_t best_ns = ep->rails_n == 1 ? 0 : best_ns_per_mib(ep);
    kvp_rdma_rail_t *best = NULL;
    uint64_t least = UINT64_MAX;

    if (awaits_reads(ep, xfer, off)) return NULL;
    for (uint32_t i = 0; i < ep->rails_n; i++) {
        kvp_rdma_rail_t *rail = &ep->rails[i];
        uint64_t load;

        if (!rail->is_up || (only != NULL && rail != only)) continue;
        if (!kvp_rdma_rail_has_place(rail) || !is_over_elsewhere(ep, rail, xfer)) continue;
        load = (rail->bytes + len) * KVP_RDMA_HEALTH_FULL / kvp_rdma_health_weight(&rail->health, best_ns);
        if (load >= least) continue;
        least = load;
        best = rail;
    }
    return best;
}

/* Until nothing is left, lest the rest of a batch crowd on one rail. */
void
kvp_rdma_rails_widen(kvp_rdma_ep_t *ep)
{
    ep->is_wide = ep->bytes >= WIDE_BYTES || (ep->is_wide && ep->bytes > 0);
}

/* ---- connecting the others, and giving up */
static void
set_port(struct sockaddr_storage *addr, in_port_t port)
{
    if (addr->ss_family == AF_INET)
        ((struct sockaddr_in *)(void *)addr)->sin_port = port;
    else
        ((struct sockaddr_in6 *)(void *)addr)->sin6_port = port;
}

/* Where an adapter of ours did not lead there, another one may. */
static void
try_another_of_ours(const kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    rail->pair.ours = (rail->pair.ours + 1) % (uint32_t)ep->tp->devs_n;
}

static void
begin(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    struct sockaddr_storage from = ep->tp->devs[rail->pair.ours]->info.addr;

    set_port(&from, 0);
    if (kvp_rdma_rail_open(rail, ep->tp, ep->cm, &from, &ep->peer_rails[rail->pair.theirs], &ep->base.costs) == KVP_OK)
        return;
    kvp_rdma_health_failed(&rail->health, kvp_now_ns(), kvp_random_u64());
    try_another_of_ours(ep, rail);
}

static bool
may_begin(const kvp_rdma_rail_t *rail, uint64_t now_ns)
{
    return rail->id == NULL && kvp_rdma_rail_is_idle(rail) && kvp_rdma_health_may_try(&rail->health, now_ns);
}

static void
connect_more(kvp_rdma_ep_t *ep, uint64_t now_ns)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (may_begin(&ep->rails[i], now_ns)) begin(ep, &ep->rails[i]);
}

bool
kvp_rdma_rails_are_connecting(const kvp_rdma_ep_t *ep)
{
    for (uint32_t i = 0; i < ep->rails_n; i++)
        if (ep->rails[i].id != NULL && !ep->rails[i].is_up) return true;
    return false;
}

static bool
has_stalled(const kvp_rdma_rail_t *rail, uint64_t now_ns)
{
    if (!rail->is_up || kvp_rdma_rail_is_idle(rail)) return false;
    return now_ns >= kvp_rdma_health_stalled_at(rail->shown_ns, rail->bytes);
}

void
kvp_rdma_rails_tend(kvp_rdma_ep_t *ep)
{
    uint64_t now_ns;

    if (ep->rails_n <= 1 || ep->bytes == 0) return;
    now_ns = kvp_now_ns();
    if (ep->is_wide || up_n(ep) == 0) connect_more(ep, now_ns);
    for (uint32_t i = 0; i < ep->rails_n && ep->is_up; i++) {
        kvp_rdma_rail_t *rail = &ep->rails[i];

        /* What writes ends with its rail: the adapter's own verdict is waited for. */
        if (has_stalled(rail, now_ns) && !kvp_rdma_rail_has_writes(rail)) kvp_rdma_rails_failed(ep, rail);
    }
}

uint64_t
kvp_rdma_rails_next_ns(const kvp_rdma_ep_t *ep)
{
    uint64_t next_ns = UINT64_MAX;

    if (ep->rails_n <= 1 || ep->bytes == 0) return next_ns;
    for (uint32_t i = 0; i < ep->rails_n; i++) {
        const kvp_rdma_rail_t *rail = &ep->rails[i];

        if (rail->is_up && !kvp_rdma_rail_is_idle(rail))
            next_ns = kvp_min_u64(next_ns, kvp_rdma_health_stalled_at(rail->shown_ns, rail->bytes));
        else if (rail->id == NULL && ep->is_wide)
            next_ns = kvp_min_u64(next_ns, rail->health.retry_ns);
    }
    return next_ns;
}

void
kvp_rdma_rails_failed(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    bool was_up = rail->is_up;

    kvp_rdma_rail_close(rail);
    kvp_rdma_health_failed(&rail->health, kvp_now_ns(), kvp_random_u64());
    if (was_up && ep->rails_n > 1)
        kvp_log_info("rdma", "a rail failed device %s of %u left %u", ep->tp->devs[rail->pair.ours]->info.name,
                     ep->rails_n, up_n(ep));
    if (!was_up) try_another_of_ours(ep, rail);
    if ((kvp_rdma_rail_has_writes(rail) && KVP_RULE(RDMA_WRITES_ONCE)) || !KVP_RULE(RDMA_READS_AGAIN)) {
        kvp_rdma_ep_lose(ep);
        return;
    }
    if (up_n(ep) == 0) connect_more(ep, kvp_now_ns());
    if (!is_any_open(ep)) kvp_rdma_ep_lose(ep);
}

kvp_rdma_rail_t *
kvp_rdma_rails_orphaned(kvp_rdma_ep_t *ep)
{
    kvp_rdma_rail_t *oldest = NULL;

    for (uint32_t i = 0; i < ep->rails_n; i++) {
        kvp_rdma_rail_t *rail = &ep->rails[i];

        if (rail->is_up || kvp_rdma_rail_is_idle(rail)) continue;
        if (oldest == NULL || kvp_rdma_rail_first(rail)->seq < kvp_rdma_rail_first(oldest)->seq) oldest = rail;
    }
    return oldest;
}

/* ---- what health is judged by */
void
kvp_rdma_rails_connected(kvp_rdma_rail_t *rail)
{
    rail->is_up = true;
    kvp_rdma_health_connected(&rail->health);
}

void
kvp_rdma_rails_moved(const kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, uint64_t bytes)
{
    uint64_t now_ns;

    if (ep->rails_n <= 1) return;
    now_ns = kvp_now_ns();
    if (bytes > 0) kvp_rdma_health_moved(&rail->health, bytes, now_ns - rail->shown_ns);
    rail->shown_ns = now_ns;
}
