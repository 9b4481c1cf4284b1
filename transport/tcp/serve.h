/* SPDX-License-Identifier: Apache-2.0
 * The serving side of tcp: lanes of connections that read and write exported memory for peers. table.c puts these
 * functions into the transport table. The comments of transport.h are their contract; the comments here give only
 * additions. */
#ifndef KVP_TRANSPORT_TCP_SERVE_H
#define KVP_TRANSPORT_TCP_SERVE_H

#include "transport/exports.h"

typedef struct kvp_tcp_server kvp_tcp_server_t;

kvp_err_t kvp_tcp_server_create(const kvp_tp_conf_t *conf, kvp_tcp_server_t **server_out) KVP_MUST_USE;
/* kvp_tcp_server_destroy ends every connection, and calls done of the quiesce calls that still wait. No thread may be
 * in serve. NULL is ignored. */
void kvp_tcp_server_destroy(kvp_tcp_server_t *server);

kvp_err_t kvp_tcp_server_listen(kvp_tcp_server_t *server, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
    KVP_MUST_USE;
kvp_err_t kvp_tcp_server_adopt(kvp_tcp_server_t *server, int fd) KVP_MUST_USE;
kvp_err_t kvp_tcp_server_serve(kvp_tcp_server_t *server, uint32_t lane, int timeout_ms) KVP_MUST_USE;
void kvp_tcp_server_wake(kvp_tcp_server_t *server);

/* kvp_tcp_server_fence calls done before it returns: a connection touches memory only under its lane's lock, so once
 * this thread has taken the lock and ended the connection, no more bytes of the peer land. */
void kvp_tcp_server_fence(kvp_tcp_server_t *server, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done,
                          void *arg);
void kvp_tcp_server_cut(kvp_tcp_server_t *server, uint64_t incarnation);
void kvp_tcp_server_quiesce(kvp_tcp_server_t *server, kvp_quiesce_fn done, void *arg);

kvp_exports_t *kvp_tcp_server_exports(kvp_tcp_server_t *server);
/* kvp_tcp_server_forget ends every connection with an unfinished operation on mr, whose keys are already deleted. */
void kvp_tcp_server_forget(kvp_tcp_server_t *server, const kvp_mr_t *mr);

#endif
