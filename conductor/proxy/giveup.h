/* SPDX-License-Identifier: Apache-2.0
 * Requests that their clients gave up before the server sent a byte. Such a request still counts as load of its server,
 * in the fleet and in the router, until the server gives a sign: a byte, the end of the connection, or a check that
 * succeeds. Otherwise a server that hangs would look idle. The requests of a server that is left out or was removed are
 * dropped. */
#ifndef KVP_CONDUCTOR_PROXY_GIVEUP_H
#define KVP_CONDUCTOR_PROXY_GIVEUP_H

#include "conductor/proxy/exchange.h"

/* kvp_give_up takes over the call, the server and the route of an exchange. It returns false if no server's first
 * byte is awaited, if there is no memory, or if the bodies of given-up requests would exceed 64 MiB: then the caller
 * must cancel the call. */
bool kvp_give_up(kvp_exchange_t *x) KVP_MUST_USE;

/* kvp_route_done reports the end of a route to the router; route 0 = nothing to report. The router ends an
 * unreported route itself after a while. */
void kvp_route_done(kvp_proxy_shared_t *shared, kvp_upstream_t *up, uint64_t route);

#endif
