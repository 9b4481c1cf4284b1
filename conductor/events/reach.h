/* SPDX-License-Identifier: Apache-2.0
 * Finds out whether a server listens at an endpoint, and if not, why. ZMQ itself retries without a report. While
 * the user of the endpoint has no connection, the endpoint is dialled now and then, and the connection is closed
 * at once. Runs on the loop's thread. */
#ifndef KVP_CONDUCTOR_EVENTS_REACH_H
#define KVP_CONDUCTOR_EVENTS_REACH_H

#include "common/base.h"

#include <uv.h>

typedef struct kvp_reach kvp_reach_t;

/* kvp_reach_create starts the checks of an endpoint. speaks: a port that accepts connections, but on which ZMQ gets no
 * connection, counts as unreachable. NULL = no memory. */
kvp_reach_t *kvp_reach_create(uv_loop_t *uv, const char *endpoint, bool speaks);
void kvp_reach_close(kvp_reach_t *r); /* closes the checker; its handles need a few turns of the loop; NULL is legal */

/* kvp_reach_tick checks the endpoint; call it a few times a second. is_fine: the caller has a working connection to the
 * endpoint, so no dial is needed. It returns true if the endpoint has just become unreachable or reachable again. */
bool kvp_reach_tick(kvp_reach_t *r, bool is_fine, uint64_t now_ns);
/* why the endpoint cannot be reached; "" = reachable, or not known yet */
const char *kvp_reach_why(const kvp_reach_t *r);

#endif
