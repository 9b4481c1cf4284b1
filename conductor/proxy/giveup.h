/* SPDX-License-Identifier: Apache-2.0
 * Requests that their clients gave up before the server sent a byte. Such a request still counts as
 * load of its server, in the fleet and in the router, until the server gives a sign: a byte, the end of
 * the connection, or a check that succeeds. Otherwise a server that hangs would look idle. The
 * requests of a server that is left out or was removed are dropped.
 */
#ifndef KVP_CONDUCTOR_PROXY_GIVEUP_H
#define KVP_CONDUCTOR_PROXY_GIVEUP_H

#include "conductor/proxy/exchange.h"

/* kvp_give_up takes over an exchange's call, its server and its route. False: the server has answered,
 * or there is no memory, or the bodies of such requests are 64 MiB by now: the call is to be cancelled. */
bool kvp_give_up(kvp_exchange_t *x) KVP_MUST_USE;

/* kvp_route_done reports the end of a route to the router; 0 = no route. An unreported route ends
 * by itself after a while. */
void kvp_route_done(kvp_proxy_shared_t *shared, kvp_upstream_t *up, uint64_t route);

#endif
