/* SPDX-License-Identifier: Apache-2.0
 * A front: one of a proxy's threads, with a loop on which libmicrohttpd serves clients, and requests are sent to
 * servers. A connection stays with the thread that accepted it. */
#ifndef KVP_CONDUCTOR_PROXY_FRONT_H
#define KVP_CONDUCTOR_PROXY_FRONT_H

#include "conductor/proxy/exchange.h"

typedef struct kvp_front kvp_front_t;

/* kvp_front_start starts the thread. listening is a listening socket, which is duplicated. watches: this front runs
 * the checks (checks.h) for all fronts. SYS, NOMEM. kvp_front_ask_to_stop begins to cut the answers and returns at
 * once. kvp_front_stop does the same and waits for the thread, at most 5 s, so that clients can receive
 * the part of their answers that was sent. NULL is legal for both. */
kvp_err_t kvp_front_start(kvp_proxy_shared_t *shared, int listening, bool watches, kvp_front_t **out) KVP_MUST_USE;
void kvp_front_ask_to_stop(kvp_front_t *f);
void kvp_front_stop(kvp_front_t *f);

#endif
