/* SPDX-License-Identifier: Apache-2.0
 * The serving side of an endpoint: a listener, and one thread that answers control connections. Peers of this host
 * change to a Unix socket after Hello. Data connections of the TCP transport arrive at the same port and are handed
 * on to the transport's threads. PROTOCOL "Peers". */
#ifndef KVP_P2P_SERVE_SERVE_H
#define KVP_P2P_SERVE_SERVE_H

#include "p2p/base/cma.h"
#include "p2p/base/own.h"
#include "p2p/base/pull.h"
#include "p2p/base/ranges.h"
#include "common/parse.h"

#define KVP_P2P_LANES 2u /* threads that serve the TCP transport */
#define KVP_P2P_CONNS_MAX 1024u
#define KVP_P2P_NOTES_MAX 1024u

typedef struct kvp_p2p_server kvp_p2p_server_t;

typedef struct {
    kvp_hostport_t listen;
    kvp_p2p_ranges_t *ranges; /* borrowed until kvp_p2p_server_stop, like all pointers in this struct */
    kvp_p2p_owns_t *owns;
    kvp_p2p_pullers_t *pullers;
    void (*watched)(void *arg); /* called by the control thread when a watched descriptor is readable */
    void *watched_arg;
    kvp_tp_t *tp;
    kvp_tp_t *rdma; /* the RDMA transport; NULL = none */
    uint16_t rdma_port; /* port of the RDMA listener; 0 if rdma is NULL */
    /* our answer to a peer's Hello; without proc in it, this process and the peers do not read each other's memory */
    const kvp_peer_hello_t *me;
    bool needs_tokens; /* a peer must know the token of a range to find the range */
} kvp_p2p_server_conf_t;

/* kvp_p2p_server_start starts the listener and the threads. Errors: SYS (also an address in use), INVALID, NOMEM.
 * *port_out is the listening port. */
kvp_err_t kvp_p2p_server_start(const kvp_p2p_server_conf_t *conf, kvp_p2p_server_t **server_out, uint16_t *port_out)
    KVP_MUST_USE;
/* kvp_p2p_server_stop ends every connection and the threads. When it returns, no thread of the server touches a
 * range. NULL has no effect. */
void kvp_p2p_server_stop(kvp_p2p_server_t *server);

/* kvp_p2p_server_watch makes the control thread call conf.watched, once, when fd is readable. Closing fd ends the
 * watch. Any thread may call. */
void kvp_p2p_server_watch(kvp_p2p_server_t *server, int fd);

/* kvp_p2p_server_note returns the oldest received message of an application, or NULL. The caller frees it. Any thread
 * may call. */
kvp_peer_note_t *kvp_p2p_server_note(kvp_p2p_server_t *server);

#endif
