/* SPDX-License-Identifier: Apache-2.0
 * Resolves names of hosts within a deadline. getaddrinfo(3) has no deadline and blocks while a name server is silent,
 * so it runs in threads of its own. A caller waits until its deadline at most, and an answer that comes later is kept
 * for the next caller. Used by libkvpool's session and by the node. Any thread may call. */
#ifndef KVP_NET_NAMES_H
#define KVP_NET_NAMES_H

#include "net/framed.h"

typedef struct kvp_names kvp_names_t;

kvp_err_t kvp_names_create(kvp_names_t **names_out) KVP_MUST_USE;
/* kvp_names_destroy does not wait for running look-ups, which end by themselves. No call may run. NULL is ignored. */
void kvp_names_destroy(kvp_names_t *names);

/* kvp_names_connect opens a TCP connection: it tries each address of the host in turn, each with its share of the
 * time. A numeric address needs no look-up; with names NULL only numeric addresses work. Errors: UNREACHABLE,
 * DEADLINE, CLOSED (*c->is_given_up was set), SYS; c->why is the reason, and c->is_unknown is set if the name has
 * never resolved since `names` was created. */
kvp_err_t kvp_names_connect(kvp_names_t *names, const char *host, uint16_t port, uint64_t deadline_ns, kvp_framed_t *c)
    KVP_MUST_USE;

/* kvp_names_connect_begin begins a connection to one of the host's addresses without blocking
 * (kvp_framed_connect_begin). *n_out is the number of the host's addresses; address number nth % *n_out is used.
 * EAGAIN: the name is being resolved, try again in a moment. UNREACHABLE, NOMEM, SYS; c->why and c->is_unknown as for
 * kvp_names_connect. */
kvp_err_t kvp_names_connect_begin(kvp_names_t *names, const char *host, uint16_t port, size_t nth, kvp_framed_t *c,
                                  size_t *n_out) KVP_MUST_USE;

#endif
