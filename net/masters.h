/* SPDX-License-Identifier: Apache-2.0
 * Finds the leader among the configured masters (PROTOCOL "Several masters"). Each master has its
 * own connection and answers when it leads, so a dead, stopped or standby master costs no timeout.
 * A list of one master needs no question: the client connects, and the answer to Hello decides.
 * Used by libkvpool's session and by the node. Any thread; one find runs at a time. Instead of
 * masters the list may name members of etcd, which list the masters (net/discover.h): a find asks
 * them at its beginning, and each second until it finds a leader. */
#ifndef KVP_NET_MASTERS_H
#define KVP_NET_MASTERS_H

#include "net/names.h"
#include "common/parse.h"

#define KVP_MASTERS_MAX 16u

typedef struct kvp_masters kvp_masters_t;

/* kvp_masters_create reads "HOST:PORT[,HOST:PORT]" or "etcd://HOST:PORT[;HOST:PORT]" with cluster,
 * as kvp_discover_create does. INVALID (not such a list, or longer than KVP_MASTERS_MAX), NOMEM,
 * NOTSUP (no libcurl; logged). names is borrowed for the object's life; with NULL only numeric
 * addresses work. kvp_masters_destroy closes all connections; NULL is ignored. */
kvp_err_t kvp_masters_create(const char *list, const char *cluster, kvp_names_t *names, kvp_masters_t **masters_out)
    KVP_MUST_USE;
void kvp_masters_destroy(kvp_masters_t *m);

/* kvp_masters_are_several: with several masters the client asks them for the leader. */
bool kvp_masters_are_several(const kvp_masters_t *m);

/* kvp_masters_why returns, for people, why the last find failed: the reason for each master, and
 * etcd's reason if etcd listed none. Borrowed until the next find; call from the finding thread.
 * kvp_masters_term is the highest term of any find. */
const char *kvp_masters_why(const kvp_masters_t *m);
uint32_t kvp_masters_term(kvp_masters_t *m);

/* kvp_masters_find blocks until a master leads, and moves the connection to the caller, who sends
 * Hello. *at_out is borrowed until the next find; is_given_up (NULL = never set) as long as the
 * connection. UNREACHABLE, DEADLINE (no master leads), CLOSED (given up); for a single master the
 * errors of kvp_names_connect. NOT_FOUND, at once: no host name in the list resolves or has ever
 * resolved. */
kvp_err_t kvp_masters_find(kvp_masters_t *m, const _Atomic bool *is_given_up, uint64_t deadline_ns,
                           kvp_framed_t *conn_out, const kvp_hostport_t **at_out) KVP_MUST_USE;

/* kvp_masters_is_spaced returns true, with several masters, if an attempt that ended with err
 * should be repeated at once: the attempt found no leader or a former leader. The find itself
 * spaces the connections to each master. */
bool kvp_masters_is_spaced(const kvp_masters_t *m, kvp_err_t err);

/* kvp_masters_tend keeps the connections to all masters but the one that was found last, without
 * blocking. True: another one leads, with a higher term than that of the session, and than any that
 * was found; the session is of no use any more. To be called a few times a second. */
bool kvp_masters_tend(kvp_masters_t *m, uint32_t term);

#endif
