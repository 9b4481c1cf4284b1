/* SPDX-License-Identifier: Apache-2.0
 * Whether anything listens at an endpoint, and why not: ZMQ tries on in silence. While its user has
 * no connection, the endpoint is dialled now and then, and the connection closed at once. On the
 * loop's thread. */
#ifndef KVP_CONDUCTOR_EVENTS_REACH_H
#define KVP_CONDUCTOR_EVENTS_REACH_H

#include "common/base.h"

#include <uv.h>

typedef struct kvp_reach kvp_reach_t;

/* speaks: a port that accepts connections, and never speaks ZMQ, is not reached. NULL = no memory. */
kvp_reach_t *kvp_reach_create(uv_loop_t *uv, const char *endpoint, bool speaks);
void kvp_reach_close(kvp_reach_t *r); /* the loop may turn a few times until its handles are closed; NULL is legal */

/* kvp_reach_tick, a few times a second. is_fine: its user gets data from there. True: it has just
 * become unreachable, or reachable again. */
bool kvp_reach_tick(kvp_reach_t *r, bool is_fine, uint64_t now_ns);
const char *kvp_reach_why(const kvp_reach_t *r); /* the reason why it cannot be reached; "" = reachable, or unknown */

#endif
