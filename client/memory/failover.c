/* SPDX-License-Identifier: Apache-2.0
 * Design note. A transport with a port of its own may fail although the node is healthy, as its control connection
 * shows. If another transport reaches the node, the node fails over (routes.h): it is attached by the next transport
 * at once, within the same call, and the background thread tries the failed transport again. A caller that named only
 * one transport never fails over: the call fails. */
#include "client/memory/peers_priv.h"

#include "common/log.h"

#include <arpa/inet.h>
#include <pthread.h>

bool
kvp_routes_is_fault(kvp_err_t err)
{
    return err != KVP_OK && err != KVP_EAGAIN && err != KVP_BUSY && err != KVP_DEADLINE && err != KVP_CLOSED &&
           err != KVP_NODE_LOST && err != KVP_NO_SEGMENT && err != KVP_FENCED;
}

static bool
has_other_route(const kvp_slot_t *slot, size_t transport, uint64_t now_ns)
{
    for (size_t i = 0; i < KVP_TRANSPORTS_MAX; i++)
        if (i != transport && (slot->leads & 1u << i) != 0 && !kvp_route_is_out(&slot->routes[i], now_ns)) return true;
    return false;
}

bool
kvp_route_leave_out(kvp_peers_t *p, kvp_slot_t *slot, size_t transport, const char *where, const char *why)
{
    const kvp_transport_ops_t *ops = p->conf.transports[transport];
    uint64_t now_ns = kvp_now_ns();
    bool is_news;

    if ((ops->caps & KVP_TP_OWN_PORT) == 0 || !has_other_route(slot, transport, now_ns)) return false;
    is_news = kvp_route_fail(&slot->routes[transport], now_ns, kvp_random_u64());
    slot->silent_ns = slot->avoid_until_ns = 0;
    kvp_count(&p->conf.counters->bypasses, 1);
    kvp_log_write(is_news ? KVP_LOG_INFO : KVP_LOG_DEBUG, "client",
                  "node %s is not reached by %s (%s): the next transport is used, and %s is tried again from time to "
                  "time; `kvpool doctor` shows details",
                  where, ops->name, why, ops->name);
    return true;
}

/* Resets the failures of all routes to a node: if no transport reaches the node, none of its routes is to blame. */
void
kvp_routes_reset(kvp_slot_t *slot)
{
    for (size_t i = 0; i < KVP_TRANSPORTS_MAX; i++)
        kvp_route_reset(&slot->routes[i], kvp_now_ns());
}

/* Returns true if the attachment was replaced by another route, whichever thread found the fault. */
bool
kvp_routes_fail_over(kvp_peers_t *p, kvp_peer_t *peer, kvp_err_t err)
{
    bool is_left = false;
    kvp_slot_t *slot;

    if (!kvp_routes_is_fault(err)) return peer->state == KVP_PEER_FAILED_OVER;
    pthread_mutex_lock(&p->lock);
    slot = kvp_slot_of(p, peer);
    if (slot != NULL && slot->peer == peer)
        is_left = kvp_route_leave_out(p, slot, peer->transport, peer->where, kvp_err_text(err));
    if (is_left) {
        slot->peer = NULL;
        kvp_peer_break(peer, KVP_PEER_FAILED_OVER);
    }
    pthread_mutex_unlock(&p->lock);
    if (is_left) kvp_peers_rele(p, peer);
    return peer->state == KVP_PEER_FAILED_OVER;
}

static bool
is_numeric(const char *host)
{
    struct in6_addr addr;

    return inet_pton(AF_INET, host, &addr) == 1 || inet_pton(AF_INET6, host, &addr) == 1;
}

/* Chooses a route to try: it was left out for long enough, and the node is now reached by a less preferred transport.
 * Nodes without a numeric address are skipped, because a name would be resolved without a deadline. */
static bool
choose_trial(kvp_peers_t *p, kvp_hostport_t *to_out)
{
    uint64_t now_ns = kvp_now_ns();
    bool is_found = false;

    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->slots_n && !is_found; i++) {
        const kvp_slot_t *slot = p->slots[i];

        if (slot->from > 0 || slot->peer == NULL || !is_numeric(slot->peer->addr.host)) continue;
        for (size_t t = 0; t < slot->peer->transport && !is_found; t++) {
            is_found = kvp_route_is_due(&slot->routes[t], now_ns);
            p->trial.segment_id = slot->segment_id;
            p->trial.transport = t;
            *to_out = slot->peer->addr;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return is_found;
}

/* Ends a trial. If the route works again, new users attach by it; current users finish on the old attachment. */
static void
end_trial(kvp_peers_t *p, kvp_err_t err)
{
    kvp_peer_t *old = NULL;
    kvp_slot_t *slot;

    kvp_trial_end(&p->trial);
    pthread_mutex_lock(&p->lock);
    slot = kvp_slot_find(p, p->trial.segment_id, 0);
    if (err != KVP_OK) {
        (void)kvp_route_fail(&slot->routes[p->trial.transport], kvp_now_ns(), kvp_random_u64());
    } else {
        kvp_route_reset(&slot->routes[p->trial.transport], kvp_now_ns());
        old = slot->peer;
        if (old != NULL && old->transport == p->trial.transport) old = NULL;
        if (old != NULL) slot->peer = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    if (old == NULL) return;
    kvp_log_info("client", "node %s can be reached by %s again", old->where,
                 p->conf.transports[p->trial.transport]->name);
    kvp_peers_rele(p, old);
}

/* Tries a route that was left out. Returns true while the trial runs. */
bool
kvp_routes_try(kvp_peers_t *p)
{
    kvp_hostport_t to;
    kvp_tp_t *tp;
    kvp_err_t err = KVP_OK;

    if (p->trial.ep == NULL) {
        if (!choose_trial(p, &to)) return false;
        err = kvp_peers_need_tp(p, p->trial.transport, &tp);
        if (err == KVP_OK) err = kvp_trial_begin(&p->trial, tp, &to);
    }
    if (err == KVP_OK) err = kvp_trial_drive(&p->trial);
    if (err == KVP_EAGAIN) return true;
    end_trial(p, err);
    return false;
}
