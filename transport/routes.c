/* SPDX-License-Identifier: Apache-2.0
 * Back-off of a route that failed, and trial connections that test the route before its next use. */
#include "transport/routes.h"

#include "common/waits.h"

void
kvp_connect_done(void *arg, kvp_err_t err)
{
    kvp_err_t *outcome = arg;

    *outcome = err;
}

kvp_err_t
kvp_connect_await(kvp_ep_t *ep, const kvp_err_t *outcome, const _Atomic bool *is_given_up, uint64_t deadline_ns)
{
    const kvp_transport_ops_t *ops = ep->tp->ops;

    while (*outcome == KVP_IN_PROGRESS) {
        struct pollfd p;

        if (ops->ep_poll(ep) > 0 || *outcome != KVP_IN_PROGRESS) continue;
        if (kvp_now_ns() >= deadline_ns) return KVP_IN_PROGRESS;
        if (kvp_is_given_up(is_given_up)) return KVP_CLOSED;
        p = (struct pollfd){.fd = ops->ep_event_fd(ep), .events = ops->ep_arm(ep)};
        kvp_poll_slice(&p, deadline_ns);
    }
    return *outcome;
}

#define OUT_FIRST_NS (1 * KVP_NS_PER_S)
#define OUT_DOUBLINGS 6u
/* a route that was in use for this time without a failure begins its back-off at OUT_FIRST_NS again */
#define LASTING_NS (60 * KVP_NS_PER_S)
#define TRIAL_NS (3 * KVP_NS_PER_S)
/* the longest wait in one kvp_trial_drive, because the calling thread has other periodic work */
#define TRIAL_TURN_NS (10 * KVP_NS_PER_MS)

bool
kvp_route_fail(kvp_route_t *route, uint64_t now_ns, uint64_t random)
{
    uint64_t out_ns;
    bool is_first;

    if (route->until_ns == 0 && now_ns - route->reset_ns >= LASTING_NS) route->fails = 0;
    is_first = route->fails == 0;
    out_ns = OUT_FIRST_NS << kvp_min_u64(route->fails, OUT_DOUBLINGS);
    route->fails++;
    route->until_ns = now_ns + out_ns + random % (out_ns / 2);
    return is_first;
}

void
kvp_route_reset(kvp_route_t *route, uint64_t now_ns)
{
    if (route->until_ns == 0) return;
    route->until_ns = 0;
    route->reset_ns = now_ns;
}

kvp_err_t
kvp_trial_begin(kvp_trial_t *trial, kvp_tp_t *tp, const kvp_hostport_t *to)
{
    trial->outcome = KVP_IN_PROGRESS;
    trial->end_ns = kvp_now_ns() + TRIAL_NS;
    return kvp_ep_create(tp, to, kvp_connect_done, &trial->outcome, &trial->ep);
}

kvp_err_t
kvp_trial_drive(kvp_trial_t *trial)
{
    const kvp_transport_ops_t *ops = trial->ep->tp->ops;
    struct pollfd p;

    (void)ops->ep_poll(trial->ep);
    if (trial->outcome == KVP_IN_PROGRESS && kvp_now_ns() < trial->end_ns) {
        p = (struct pollfd){.fd = ops->ep_event_fd(trial->ep), .events = ops->ep_arm(trial->ep)};
        kvp_poll_until(&p, 1, kvp_now_ns() + TRIAL_TURN_NS);
        (void)ops->ep_poll(trial->ep);
    }
    if (trial->outcome != KVP_IN_PROGRESS) return trial->outcome;
    return kvp_now_ns() < trial->end_ns ? KVP_EAGAIN : KVP_UNREACHABLE;
}

void
kvp_trial_end(kvp_trial_t *trial)
{
    kvp_ep_destroy(trial->ep);
    trial->ep = NULL;
}
