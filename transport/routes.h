/* SPDX-License-Identifier: Apache-2.0
 * The state of one transport as a route to one node. A transport with a port of its own (KVP_TP_OWN_PORT: rdma) may
 * fail although the node is healthy: there is no path between the networks of the adapters, or the process may not lock
 * memory. Such a route is disabled for a back-off time, and tested in the background before data uses it again. The
 * lock of client/memory/peers.c guards the routes. */
#ifndef KVP_TRANSPORT_ROUTES_H
#define KVP_TRANSPORT_ROUTES_H

#include "transport/transport.h"

#include <stdatomic.h>

/* The back-off state of a route. The zero value is a route in use. */
typedef struct {
    uint32_t fails; /* the number of the route's failures in a row */
    uint64_t until_ns; /* the time until which the route is disabled; 0 = the route is in use */
    uint64_t reset_ns; /* the time when kvp_route_reset last enabled the route */
} kvp_route_t;

static inline bool
kvp_route_is_out(const kvp_route_t *route, uint64_t now_ns)
{
    return now_ns < route->until_ns;
}

/* kvp_route_is_due returns whether the back-off of a disabled route has ended, so that the route should be tested. */
static inline bool
kvp_route_is_due(const kvp_route_t *route, uint64_t now_ns)
{
    return route->until_ns != 0 && now_ns >= route->until_ns;
}

/* kvp_route_fail disables the route for 1 s, and doubles the time with each failure in a row, up to 64 s. A random
 * part of up to half of the time is added; random is any number. If the route was in use for a minute, the next
 * failure starts from 1 s again. Returns true for the first failure in a row. */
bool kvp_route_fail(kvp_route_t *route, uint64_t now_ns, uint64_t random);
void kvp_route_reset(kvp_route_t *route, uint64_t now_ns);

/* kvp_connect_done is the done function for kvp_ep_create: it stores the outcome in the kvp_err_t at arg, which the
 * caller has set to IN_PROGRESS. kvp_connect_await waits for this outcome and returns it. It returns CLOSED once
 * *is_given_up is true, and IN_PROGRESS at deadline_ns. The caller still owns the endpoint. */
void kvp_connect_done(void *arg, kvp_err_t err);
kvp_err_t kvp_connect_await(kvp_ep_t *ep, const kvp_err_t *outcome, const _Atomic bool *is_given_up,
                            uint64_t deadline_ns) KVP_MUST_USE;

/* A trial: a connection that is made only to test whether a route works. Used by one thread. */
typedef struct {
    kvp_ep_t *ep; /* the endpoint of the trial; NULL = no trial is under way */
    uint32_t segment_id;
    size_t transport; /* the index of the tested transport in the handle's list of transports */
    kvp_err_t outcome; /* the outcome of the connection, set by kvp_connect_done */
    uint64_t end_ns;
} kvp_trial_t;

/* kvp_trial_begin starts a trial; if it fails, its error is the outcome of the trial. kvp_trial_drive waits up to 10
 * ms: EAGAIN means that the trial continues, any other result is its outcome. kvp_trial_end closes the trial's
 * endpoint, and may be called at any time. */
kvp_err_t kvp_trial_begin(kvp_trial_t *trial, kvp_tp_t *tp, const kvp_hostport_t *to) KVP_MUST_USE;
kvp_err_t kvp_trial_drive(kvp_trial_t *trial) KVP_MUST_USE;
void kvp_trial_end(kvp_trial_t *trial);

#endif
