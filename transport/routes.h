/* SPDX-License-Identifier: Apache-2.0
 * One of our transports as a route to one node. A transport with a port of its own
 * (KVP_TP_OWN_PORT: rdma) may fail for a healthy node: no path between the devices' networks,
 * memory that may not be locked. Such a route is left out for a while, and tried in the background
 * before data uses it again. Part of client/memory/peers.c, whose lock guards it. */
#ifndef KVP_TRANSPORT_ROUTES_H
#define KVP_TRANSPORT_ROUTES_H

#include "transport/transport.h"

#include <stdatomic.h>

/* All zero is a route that is taken. */
typedef struct {
    uint32_t fails; /* in a row */
    uint64_t until_ns; /* left out until then; 0 = is not */
    uint64_t reset_ns; /* when it last was not left out any more */
} kvp_route_t;

static inline bool
kvp_route_is_out(const kvp_route_t *route, uint64_t now_ns)
{
    return now_ns < route->until_ns;
}

/* kvp_route_is_due: it was left out for long enough. */
static inline bool
kvp_route_is_due(const kvp_route_t *route, uint64_t now_ns)
{
    return route->until_ns != 0 && now_ns >= route->until_ns;
}

/* kvp_route_fail leaves the route out for 1 s, and for twice as long with each failure, up to 64 s,
 * each time up to half as long again at random. After a minute in use the next failure starts from
 * 1 s. random is any number. Returns true for the first failure in a row. */
bool kvp_route_fail(kvp_route_t *route, uint64_t now_ns, uint64_t random);
void kvp_route_reset(kvp_route_t *route, uint64_t now_ns);

/* kvp_connect_done, for kvp_ep_create, stores the outcome in the kvp_err_t at arg, which its owner
 * has set to IN_PROGRESS. kvp_connect_await returns the outcome, CLOSED once the connection
 * is given up, or IN_PROGRESS at deadline_ns. The endpoint stays the caller's. */
void kvp_connect_done(void *arg, kvp_err_t err);
kvp_err_t kvp_connect_await(kvp_ep_t *ep, const kvp_err_t *outcome, const _Atomic bool *is_given_up,
                            uint64_t deadline_ns) KVP_MUST_USE;

/* A connection that is made to see whether a route works. One thread. */
typedef struct {
    kvp_ep_t *ep; /* NULL = none is under way */
    uint32_t segment_id;
    size_t transport; /* index in the handle's list */
    kvp_err_t outcome; /* of kvp_connect_done */
    uint64_t end_ns;
} kvp_trial_t;

/* kvp_trial_begin: an error is the outcome already. drive waits up to 10 ms: EAGAIN, or the
 * outcome. end closes what is left; legal at any time. */
kvp_err_t kvp_trial_begin(kvp_trial_t *trial, kvp_tp_t *tp, const kvp_hostport_t *to) KVP_MUST_USE;
kvp_err_t kvp_trial_drive(kvp_trial_t *trial) KVP_MUST_USE;
void kvp_trial_end(kvp_trial_t *trial);

#endif
