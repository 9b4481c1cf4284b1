/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/memory/connect.h"

#include "client/net/waits.h"

void
kvp_connect_done(void *arg, kvp_err_t err)
{
    kvp_connect_t *c = arg;

    c->is_over = true;
    c->err = err;
}

kvp_err_t
kvp_connect_await(kvp_ep_t *ep, const kvp_connect_t *c, const _Atomic bool *is_given_up, uint64_t deadline_ns)
{
    const kvp_transport_ops_t *ops = ep->tp->ops;

    while (!c->is_over) {
        struct pollfd p;

        if (ops->ep_poll(ep) > 0 || c->is_over) continue;
        if (kvp_now_ns() >= deadline_ns) return KVP_EAGAIN;
        if (kvp_is_given_up(is_given_up)) return KVP_CLOSED;
        p = (struct pollfd){.fd = ops->ep_event_fd(ep), .events = ops->ep_arm(ep)};
        kvp_poll_slice(&p, deadline_ns);
    }
    return c->err;
}
