/* SPDX-License-Identifier: Apache-2.0
 * The serving side of tcp: lanes of connections that read and write exported memory for peers.
 * table.c puts these functions into the transport table, whose comments are their contract; the
 * comments here give only the differences. */
#ifndef KVP_TRANSPORT_TCP_SERVE_H
#define KVP_TRANSPORT_TCP_SERVE_H

#include "transport/exports.h"

typedef struct kvp_tcp_server kvp_tcp_server_t;

kvp_err_t kvp_tcp_server_create(const kvp_tp_conf_t *conf, kvp_tcp_server_t **server_out) KVP_MUST_USE;
/* kvp_tcp_server_destroy ends every connection and fires what waits for quiesce. No lane runs by
 * then. NULL is legal. */
void kvp_tcp_server_destroy(kvp_tcp_server_t *server);

kvp_err_t kvp_tcp_server_listen(kvp_tcp_server_t *server, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
    KVP_MUST_USE;
kvp_err_t kvp_tcp_server_adopt(kvp_tcp_server_t *server, int fd) KVP_MUST_USE;
kvp_err_t kvp_tcp_server_serve(kvp_tcp_server_t *server, uint32_t lane, int timeout_ms) KVP_MUST_USE;
void kvp_tcp_server_wake(kvp_tcp_server_t *server);

/* done fires in the call: a lane's lock is held while a connection touches memory, so a thread that
 * took the lock and marked the connection knows that no more bytes land. */
void kvp_tcp_server_fence(kvp_tcp_server_t *server, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done,
                          void *arg);
void kvp_tcp_server_cut(kvp_tcp_server_t *server, uint64_t incarnation);
void kvp_tcp_server_quiesce(kvp_tcp_server_t *server, kvp_quiesce_fn done, void *arg);

kvp_exports_t *kvp_tcp_server_exports(kvp_tcp_server_t *server);
/* kvp_tcp_server_forget ends every connection that is using mr's memory. Its keys were deleted before. */
void kvp_tcp_server_forget(kvp_tcp_server_t *server, const kvp_mr_t *mr);

#endif
