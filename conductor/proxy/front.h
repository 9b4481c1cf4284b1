/* SPDX-License-Identifier: Apache-2.0
 * One of a proxy's threads: a loop on which libmicrohttpd serves clients, and requests go to
 * servers. A connection stays with the thread that has accepted it. */
#ifndef KVP_CONDUCTOR_PROXY_FRONT_H
#define KVP_CONDUCTOR_PROXY_FRONT_H

#include "conductor/proxy/exchange.h"

typedef struct kvp_front kvp_front_t;

/* kvp_front_start: listening is a listening socket, which is duplicated. watches: this front checks
 * left-out servers, for all. SYS, NOMEM; logged. kvp_front_ask_to_stop cuts its answers, and
 * returns at once. kvp_front_stop does the same and waits for its thread: at most 5 s, for clients
 * to read the sent part of their answers. NULL is legal for both. */
kvp_err_t kvp_front_start(kvp_proxy_shared_t *shared, int listening, bool watches, kvp_front_t **out) KVP_MUST_USE;
void kvp_front_ask_to_stop(kvp_front_t *f);
void kvp_front_stop(kvp_front_t *f);

#endif
