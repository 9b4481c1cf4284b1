/* SPDX-License-Identifier: Apache-2.0
 * Periodic checks of the proxy, on one of its threads: whether servers that are left out or silent answer, and
 * whether instances are registered with the conductor. */
#ifndef KVP_CONDUCTOR_PROXY_CHECKS_H
#define KVP_CONDUCTOR_PROXY_CHECKS_H

#include "conductor/proxy/exchange.h"

typedef struct kvp_checks kvp_checks_t;

/* kvp_checks_create prepares the checks. up is borrowed, and must be closed before kvp_checks_destroy. NULL = no
 * memory. */
kvp_checks_t *kvp_checks_create(kvp_proxy_shared_t *shared, kvp_upstream_t *up);
void kvp_checks_look(kvp_checks_t *c);
void kvp_checks_destroy(kvp_checks_t *c); /* frees the checks; NULL is legal */

#endif
