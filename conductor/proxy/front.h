/* SPDX-License-Identifier: Apache-2.0
 * One of a proxy's threads: a loop on which libmicrohttpd serves clients, and servers are asked. A connection stays with the thread that has accepted it.
 */
#ifndef KVP_CONDUCTOR_PROXY_FRONT_H
#define KVP_CONDUCTOR_PROXY_FRONT_H

#include "conductor/proxy/exchange.h"

typedef struct kvp_front kvp_front_t;

/* kvp_front_start: listening is a socket that listens, of which it takes a duplicate. watches: this one checks servers that are left out, for all. SYS, NOMEM; logged.
 * kvp_front_ask_to_stop breaks off its answers, and returns at once. kvp_front_stop does so, too,
 * and waits for its thread: 5 s at most, for clients to take what there is of their answers. NULL is
 * legal for both. */
kvp_err_t kvp_front_start(kvp_proxy_shared_t *shared, int listening, bool watches, kvp_front_t **out) KVP_MUST_USE;
void kvp_front_ask_to_stop(kvp_front_t *f);
void kvp_front_stop(kvp_front_t *f);

#endif
