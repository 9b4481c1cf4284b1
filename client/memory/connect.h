/* SPDX-License-Identifier: Apache-2.0
 * Driving the connect of an endpoint to its end.
 */
#ifndef KVP_CLIENT_MEMORY_CONNECT_H
#define KVP_CLIENT_MEMORY_CONNECT_H

#include "client/transport/transport.h"

#include <stdatomic.h>

typedef struct {
    bool is_over;
    kvp_err_t err; /* once it is: the outcome */
} kvp_connect_t;

/* kvp_connect_done is for kvp_ep_create, with a kvp_connect_t. await gives the outcome, CLOSED once it is given up, or EAGAIN where
 * there is none by deadline_ns. The endpoint stays the caller's. */
void kvp_connect_done(void *arg, kvp_err_t err);
kvp_err_t kvp_connect_await(kvp_ep_t *ep, const kvp_connect_t *c, const _Atomic bool *is_given_up, uint64_t deadline_ns)
    KVP_MUST_USE;

#endif
