/* SPDX-License-Identifier: Apache-2.0
 * Finds the leader among the configured masters (PROTOCOL "Several masters"). A search keeps a connection to each
 * master, and a master answers once it leads. So a dead, stopped or standby master causes no time-out. A single master
 * is not asked: the client connects, and the answer to Hello decides. Used by libkvpool's session and by the node. Any
 * thread may call; one find runs at a time. Instead of masters the list may name members of etcd, which list the
 * masters (net/discover.h): a search asks them at its beginning, and then each second until it finds a leader. */
#ifndef KVP_NET_MASTERS_H
#define KVP_NET_MASTERS_H

#include "net/names.h"
#include "common/parse.h"

#define KVP_MASTERS_MAX 16u

typedef struct kvp_masters kvp_masters_t;

/* kvp_masters_create reads a list "HOST:PORT[,HOST:PORT]", or "etcd://HOST:PORT[;HOST:PORT]" with cluster, as for
 * kvp_discover_create. Errors: INVALID (no valid list, or longer than KVP_MASTERS_MAX), NOMEM, NOTSUP (no libcurl;
 * logged). names is borrowed for the object's life; with NULL only numeric addresses work. kvp_masters_destroy closes
 * all connections; NULL is ignored. */
kvp_err_t kvp_masters_create(const char *list, const char *cluster, kvp_names_t *names, kvp_masters_t **masters_out)
    KVP_MUST_USE;
void kvp_masters_destroy(kvp_masters_t *m);

/* kvp_masters_are_several returns true if the list may have several masters, so that the client asks them for the
 * leader. */
bool kvp_masters_are_several(const kvp_masters_t *m);

/* kvp_masters_why returns the reason, for people, why the last find failed: for each master, or etcd's reason if etcd
 * listed no master. Borrowed until the next find; call it from the finding thread. kvp_masters_term returns the highest
 * term that a find or a session has seen. */
const char *kvp_masters_why(const kvp_masters_t *m);
uint32_t kvp_masters_term(kvp_masters_t *m);

/* kvp_masters_find blocks until a master leads, and moves the connection to the caller, who sends Hello. *at_out is
 * borrowed until the next find; is_given_up (NULL = never set) as long as the connection. Errors: UNREACHABLE,
 * DEADLINE (no master leads), CLOSED (*is_given_up was set); for a single master those of kvp_names_connect.
 * NOT_FOUND, at once: no host name in the list resolves or has ever resolved. */
kvp_err_t kvp_masters_find(kvp_masters_t *m, const _Atomic bool *is_given_up, uint64_t deadline_ns,
                           kvp_framed_t *conn_out, const kvp_hostport_t **at_out) KVP_MUST_USE;

/* kvp_masters_is_spaced returns true if an attempt that ended with err should be repeated at once: it found no leader
 * or a former leader. Only with several masters, because their find makes its own pauses between connections. */
bool kvp_masters_is_spaced(const kvp_masters_t *m, kvp_err_t err);

/* kvp_masters_tend keeps connections to all masters except the one that was found last, without blocking. Returns true
 * if a master leads with a higher term than `term` (the session's) and than every term seen: the session is then
 * outdated. Call it a few times a second. */
bool kvp_masters_tend(kvp_masters_t *m, uint32_t term);

#endif
