/* SPDX-License-Identifier: Apache-2.0
 * Names of hosts, found within a deadline. The system's resolver knows none and may take as long as a name server is
 * silent, so it is asked in threads of their own; who waits leaves in time, and the answer is there for who asks next.
 * Used by libkvpool's session and by the node. Any thread.
 */
#ifndef KVP_NET_NAMES_H
#define KVP_NET_NAMES_H

#include "net/framed.h"

typedef struct kvp_names kvp_names_t;

kvp_err_t kvp_names_create(kvp_names_t **names_out) KVP_MUST_USE;
/* kvp_names_destroy does not wait: look-ups under way end by themselves. No thread may be in a
 * call. NULL is ignored. */
void kvp_names_destroy(kvp_names_t *names);

/* kvp_names_connect makes a TCP connection: it tries each address of the host in turn, each with
 * its share of the time. A numeric address needs no look-up; with names NULL only numeric addresses
 * work. UNREACHABLE, DEADLINE, CLOSED (c was given up), SYS; c->why is the reason, and
 * c->is_unknown is set if the name has not resolved since `names` was created. */
kvp_err_t kvp_names_connect(kvp_names_t *names, const char *host, uint16_t port, uint64_t deadline_ns, kvp_framed_t *c)
    KVP_MUST_USE;

/* kvp_names_connect_begin begins one to the nth of the host's addresses, and round again, of which
 * there are *n_out, and does not block (kvp_framed_connect_begin). EAGAIN: the name is being asked
 * for, try again in a moment. UNREACHABLE, NOMEM, SYS; c->why and c->is_unknown as above. */
kvp_err_t kvp_names_connect_begin(kvp_names_t *names, const char *host, uint16_t port, size_t nth, kvp_framed_t *c,
                                  size_t *n_out) KVP_MUST_USE;

#endif
