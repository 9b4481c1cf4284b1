/* SPDX-License-Identifier: Apache-2.0
 * The serving side of an endpoint: a listener, and one thread that answers its control connections, which
 * peers of this host make by a Unix socket in the end. What goes by the transport's
 * own connections comes in at the same port and is handed on to its lanes. PROTOCOL "Peers".
 */
#ifndef KVP_P2P_SERVE_SERVE_H
#define KVP_P2P_SERVE_SERVE_H

#include "p2p/base/cma.h"
#include "p2p/base/own.h"
#include "p2p/base/pull.h"
#include "p2p/base/ranges.h"
#include "common/parse.h"

#define KVP_P2P_LANES 2u /* threads that serve the transport */
#define KVP_P2P_CONNS_MAX 1024u
#define KVP_P2P_NOTES_MAX 1024u

typedef struct kvp_p2p_server kvp_p2p_server_t;

typedef struct {
    kvp_hostport_t listen;
    kvp_p2p_ranges_t *ranges; /* borrowed, as is the rest, until stop */
    kvp_p2p_owns_t *owns;
    kvp_p2p_pullers_t *pullers;
    void (*watched)(void *arg); /* called by the control thread when the watched descriptor is readable */
    void *watched_arg;
    kvp_tp_t *tp;
    kvp_tp_t *rdma; /* NULL = none; then */
    uint16_t rdma_port; /* is 0 */
    const kvp_peer_hello_t
        *me; /* this endpoint's own description; without proc: no process reads it, and it reads none */
    bool needs_tokens; /* ranges are found by their token alone */
} kvp_p2p_server_conf_t;

/* kvp_p2p_server_start: SYS (also an address in use), INVALID, NOMEM. port_out is the listening
 * port. */
kvp_err_t kvp_p2p_server_start(const kvp_p2p_server_conf_t *conf, kvp_p2p_server_t **server_out, uint16_t *port_out)
    KVP_MUST_USE;
/* kvp_p2p_server_stop ends every connection and the threads. After its return they touch no range.
 * NULL is legal. */
void kvp_p2p_server_stop(kvp_p2p_server_t *server);

/* kvp_p2p_server_watch lets the control thread call conf.watched, once, when fd is readable;
 * closing fd ends that. Any thread. */
void kvp_p2p_server_watch(kvp_p2p_server_t *server, int fd);

/* kvp_p2p_server_note takes the oldest received message, or NULL; the caller frees it. Any thread. */
kvp_peer_note_t *kvp_p2p_server_note(kvp_p2p_server_t *server);

#endif
