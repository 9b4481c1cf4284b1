/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The peer is informed of an RDMA connection before it is made. From then on it ends the RDMA connection
 * with the control connection, even if this host vanishes. No transfer runs while RDMA is tried, so a switch to TCP
 * leaves no byte on its way. A path that fails during a transfer makes its lane unusable, like every other failure. */
#include "p2p/ask/path.h"

#include "transport/routes.h"
#include "common/clock.h"
#include "common/log.h"

#include <stdlib.h>

/* ---- connections that the peer has to cut, because their writes may still be running */
void
kvp_p2p_uncuts_init(kvp_p2p_uncuts_t *uncuts)
{
    *uncuts = (kvp_p2p_uncuts_t){.n = 0};
    pthread_mutex_init(&uncuts->lock, NULL);
    kvp_list_init(&uncuts->list);
}

/* Removes a connection from the list of connections to cut, and frees its record. The caller holds the list's lock. */
static void
forget_uncut(kvp_p2p_uncuts_t *uncuts, kvp_p2p_uncut_t *uncut)
{
    kvp_list_del(&uncut->link);
    uncuts->n--;
    free(uncut);
}

void
kvp_p2p_uncuts_fini(kvp_p2p_uncuts_t *uncuts)
{
    while (!kvp_list_is_empty(&uncuts->list))
        forget_uncut(uncuts, kvp_list_first(&uncuts->list, kvp_p2p_uncut_t, link));
    pthread_mutex_destroy(&uncuts->lock);
}

/* Adds a connection to the list of connections to cut. The list takes over the record `uncut`. */
static void
add_uncut(kvp_p2p_uncuts_t *uncuts, kvp_p2p_uncut_t *uncut)
{
    pthread_mutex_lock(&uncuts->lock);
    kvp_list_add_tail(&uncuts->list, &uncut->link);
    if (++uncuts->n > KVP_P2P_UNCUTS_MAX) forget_uncut(uncuts, kvp_list_first(&uncuts->list, kvp_p2p_uncut_t, link));
    pthread_mutex_unlock(&uncuts->lock);
}

/* Copies the numbers of up to cap connections that this peer must cut into conns, and returns how many. */
static uint32_t
find_uncuts(kvp_p2p_uncuts_t *uncuts, uint64_t peer, uint64_t *conns, uint32_t cap)
{
    uint32_t n = 0;

    pthread_mutex_lock(&uncuts->lock);
    kvp_list_foreach (pos, &uncuts->list) {
        const kvp_p2p_uncut_t *uncut = kvp_list_entry(pos, kvp_p2p_uncut_t, link);

        if (n == cap) break;
        if (uncut->peer == peer) conns[n++] = uncut->conn;
    }
    pthread_mutex_unlock(&uncuts->lock);
    return n;
}

/* Removes from the list of connections to cut the n connections in conns, which the peer has cut. */
static void
forget_uncuts(kvp_p2p_uncuts_t *uncuts, const uint64_t *conns, uint32_t n)
{
    pthread_mutex_lock(&uncuts->lock);
    kvp_list_foreach_safe (pos, tmp, &uncuts->list) {
        kvp_p2p_uncut_t *uncut = kvp_list_entry(pos, kvp_p2p_uncut_t, link);

        for (uint32_t i = 0; i < n; i++) {
            if (uncut->conn != conns[i]) continue;
            forget_uncut(uncuts, uncut);
            break;
        }
    }
    pthread_mutex_unlock(&uncuts->lock);
}

#define TRY_NS (2 * KVP_NS_PER_S) /* most time to connect by RDMA if TCP is possible as well */

/* ---- the path of a lane */
static kvp_err_t
announce_conn(kvp_p2p_lane_t *lane, const kvp_ep_t *ep, uint64_t deadline_ns)
{
    const void *records = NULL;

    kvp_peer_rdma_encode(&lane->io.out, kvp_p2p_lane_id(lane), ep->incarnation);
    return kvp_p2p_lane_ask(lane, KVP_OP_PEER_RDMA, 0, 0, deadline_ns, &records);
}

/* Returns the deadline for connecting the lane to the peer. RDMA gets at most half of the remaining time if TCP may
 * have to do the transfer in the rest. */
static uint64_t
connect_by(const kvp_p2p_lane_t *lane, uint64_t deadline_ns)
{
    uint64_t now_ns = kvp_now_ns();
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;

    if (!kvp_p2p_lane_is_by_rdma(lane) || !lane->has_tcp) return deadline_ns;
    return now_ns + kvp_min_u64(TRY_NS, left_ns / 2);
}

static kvp_err_t
make_endpoint(kvp_p2p_lane_t *lane, kvp_err_t *outcome, uint64_t deadline_ns, kvp_ep_t **ep_out)
{
    kvp_hostport_t to = lane->addr;
    kvp_ep_t *ep;
    kvp_err_t err;

    if (kvp_p2p_lane_is_by_rdma(lane)) to.port = lane->rdma_port;
    err = kvp_ep_create(lane->tp, &to, kvp_connect_done, outcome, &ep);
    if (err != KVP_OK) return err;
    if (kvp_p2p_lane_is_by_rdma(lane)) err = announce_conn(lane, ep, deadline_ns);
    if (err == KVP_OK) err = kvp_connect_await(ep, outcome, lane->conf->is_given_up, connect_by(lane, deadline_ns));
    if (err == KVP_IN_PROGRESS) err = KVP_DEADLINE;
    if (err == KVP_OK)
        *ep_out = ep;
    else
        kvp_ep_destroy(ep);
    return err;
}

static kvp_err_t
connect_path(kvp_p2p_lane_t *lane, uint64_t deadline_ns)
{
    kvp_err_t outcome = KVP_IN_PROGRESS;
    kvp_ep_t *ep;
    kvp_err_t err;

    if (lane->ep != NULL) return KVP_OK;
    if (lane->uncut == NULL) lane->uncut = malloc(sizeof *lane->uncut);
    if (lane->uncut == NULL) return KVP_NOMEM;
    err = make_endpoint(lane, &outcome, deadline_ns, &ep);
    if (err != KVP_OK) return err;
    lane->ep = ep;
    *lane->uncut = (kvp_p2p_uncut_t){.peer = lane->peer, .conn = ep->incarnation};
    kvp_list_init(&lane->uncut->link);
    return KVP_OK;
}

void
kvp_p2p_path_disconnect(kvp_p2p_lane_t *lane, bool may_land)
{
    if (lane->ep == NULL) return;
    kvp_ep_destroy(lane->ep);
    lane->ep = NULL;
    if (!may_land) return;
    add_uncut(lane->conf->uncuts, lane->uncut);
    lane->uncut = NULL;
}

kvp_err_t
kvp_p2p_path_cut_earlier(kvp_p2p_lane_t *lane, uint64_t deadline_ns)
{
    uint64_t conns[64];
    uint32_t n;

    while ((n = find_uncuts(lane->conf->uncuts, lane->peer, conns, KVP_ARRAY_LEN(conns))) > 0) {
        const void *records = NULL;
        kvp_err_t err;

        kvp_peer_cut_encode(&lane->io.out, kvp_p2p_lane_id(lane), conns, n);
        err = kvp_p2p_lane_ask(lane, KVP_OP_PEER_CUT, 0, 0, deadline_ns, &records);
        if (err != KVP_OK) return err;
        forget_uncuts(lane->conf->uncuts, conns, n);
    }
    return KVP_OK;
}

bool
kvp_p2p_path_is_stale(const kvp_p2p_lane_t *lane)
{
    return lane->ep != NULL && lane->ep->tp->ops->ep_is_stale(lane->ep);
}

/* ---- the choice between RDMA and TCP */

/* Switches the lane to another transport. Keys belong to one transport, so the cached ranges are dropped. No transfer
 * may be running. */
static void
switch_transport(kvp_p2p_lane_t *lane, kvp_tp_t *tp)
{
    kvp_p2p_path_disconnect(lane, false);
    kvp_p2p_lane_forget(lane);
    lane->tp = tp;
}

/* Returns true if TCP may replace RDMA after the error err: not after errors of this side, and only if the peer offers
 * TCP and time is left. */
static bool
may_leave(const kvp_p2p_lane_t *lane, kvp_err_t err, uint64_t deadline_ns)
{
    if (!lane->has_tcp || err == KVP_CLOSED || err == KVP_NOMEM || err == KVP_DISCONNECTED) return false;
    return kvp_now_ns() < deadline_ns;
}

static void
leave_rdma(kvp_p2p_lane_t *lane, kvp_err_t err)
{
    if (kvp_route_fail(&lane->rdma_route, kvp_now_ns(), kvp_random_u64()))
        kvp_log_warn(
            "client",
            "peer %s port %u is not reached by rdma (%s): tcp is used, and rdma is tried again from time to time",
            lane->where.host, lane->where.port, kvp_err_text(err));
    switch_transport(lane, lane->conf->tp);
}

static kvp_err_t
reach_by_rdma(kvp_p2p_lane_t *lane, const kvp_peer_at_t *at, uint32_t n, uint64_t deadline_ns)
{
    kvp_err_t err = connect_path(lane, deadline_ns);
    bool is_left;

    if (err == KVP_OK) {
        err = kvp_p2p_lane_learn(lane, at, n, deadline_ns);
        is_left = err == KVP_NOTSUP && lane->has_tcp;
    } else {
        is_left = may_leave(lane, err, deadline_ns);
    }
    if (is_left)
        leave_rdma(lane, err);
    else if (err == KVP_OK && lane->rdma_route.until_ns != 0)
        kvp_route_reset(&lane->rdma_route, kvp_now_ns());
    return err;
}

kvp_err_t
kvp_p2p_path_reach(kvp_p2p_lane_t *lane, const kvp_peer_at_t *at, uint32_t n, uint64_t deadline_ns)
{
    kvp_err_t err;

    if (lane->proc.fd >= 0) return kvp_p2p_lane_learn(lane, at, n, deadline_ns);
    if (lane->rdma_port != 0 && kvp_route_is_due(&lane->rdma_route, kvp_now_ns()) && !kvp_p2p_lane_is_by_rdma(lane))
        switch_transport(lane, lane->conf->rdma);
    if (kvp_p2p_path_is_stale(lane)) switch_transport(lane, lane->tp); /* a stale path's cached keys become invalid */
    if (kvp_p2p_lane_is_by_rdma(lane)) {
        err = reach_by_rdma(lane, at, n, deadline_ns);
        if (kvp_p2p_lane_is_by_rdma(lane)) return err;
    }
    err = kvp_p2p_lane_learn(lane, at, n, deadline_ns);
    return err == KVP_OK ? connect_path(lane, deadline_ns) : err;
}
