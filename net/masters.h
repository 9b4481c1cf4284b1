/* SPDX-License-Identifier: Apache-2.0
 * The masters that one is told to use, and which of them leads (PROTOCOL "Several masters"). Each is asked by a connection of its
 * own, and answers when it leads: a master that is dead, stopped or a standby costs nobody a timeout. Where the list names one
 * master, that is asked nothing: it is connected to, and what it answers to Hello counts. Used by libkvpool's session and
 * by the node. Any thread; one find at a time goes on. Instead of the list one may be given members of etcd, which know who is in it
 * (net/discover.h): a find asks them at its begin, and each second while it finds nobody.
 */
#ifndef KVP_NET_MASTERS_H
#define KVP_NET_MASTERS_H

#include "net/names.h"
#include "common/parse.h"

#define KVP_MASTERS_MAX 16u

typedef struct kvp_masters kvp_masters_t;

/* kvp_masters_create reads "HOST:PORT[,HOST:PORT]" or "etcd://HOST:PORT[;HOST:PORT]", and then cluster, as kvp_discover_create does: INVALID
 * (it is no such list, or one of more than KVP_MASTERS_MAX), NOMEM, NOTSUP (no libcurl; logged). names is borrowed as long as it lives;
 * NULL = only addresses are found. kvp_masters_destroy closes all connections; NULL is ignored. */
kvp_err_t kvp_masters_create(const char *list, const char *cluster, kvp_names_t *names, kvp_masters_t **masters_out)
    KVP_MUST_USE;
void kvp_masters_destroy(kvp_masters_t *m);

/* kvp_masters_are_several: they are asked who leads. */
bool kvp_masters_are_several(const kvp_masters_t *m);

/* kvp_masters_why returns, for people, why the last find failed: of each master, and of etcd if that named none. Borrowed until the
 * next find. Of the thread that finds. kvp_masters_term is the highest term that one was found with. */
const char *kvp_masters_why(const kvp_masters_t *m);
uint32_t kvp_masters_term(kvp_masters_t *m);

/* kvp_masters_find blocks until a master leads, and moves the connection to it to the caller, who says Hello. *at_out is borrowed until
 * the next find, is_given_up (NULL = nobody sets it) as long as the connection. UNREACHABLE, DEADLINE (there are masters, and none leads),
 * CLOSED (given up); of a single master what kvp_names_connect gives. NOT_FOUND, at once: no name of a host in the list resolves or
 * ever did. */
kvp_err_t kvp_masters_find(kvp_masters_t *m, const _Atomic bool *is_given_up, uint64_t deadline_ns,
                           kvp_framed_t *conn_out, const kvp_hostport_t **at_out) KVP_MUST_USE;

/* kvp_masters_is_spaced says, of several masters, that an attempt that ended with err has to be made again at once: it found no leader,
 * or one that leads no more. Find itself spaces the connections to each master. */
bool kvp_masters_is_spaced(const kvp_masters_t *m, kvp_err_t err);

/* kvp_masters_tend keeps the connections to all masters but the one that was found last, without blocking. True: another one leads,
 * with a higher term than that of the session, and than any that was found; the session is of no use any more. To be called a few
 * times a second. */
bool kvp_masters_tend(kvp_masters_t *m, uint32_t term);

#endif
