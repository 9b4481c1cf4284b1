/* SPDX-License-Identifier: Apache-2.0
 * Sockets as both sides of tcp want them: non-blocking, close-on-exec, no delay, a dead peer noticed.
 */
#ifndef KVP_TRANSPORT_TCP_SOCK_H
#define KVP_TRANSPORT_TCP_SOCK_H

#include "transport/transport.h"

#include <sys/socket.h>
#include <sys/uio.h>

/* kvp_tcp_sock_setup sets the options; SYS where the socket is none that carries data. */
kvp_err_t kvp_tcp_sock_setup(int fd) KVP_MUST_USE;

/* kvp_tcp_sock_listen binds and listens; port 0 = any. Takes names too, and may block while one is resolved. */
kvp_err_t kvp_tcp_sock_listen(const kvp_hostport_t *at, int *fd_out, kvp_hostport_t *bound_out) KVP_MUST_USE;

/* kvp_tcp_sock_connect starts a connection: OK with the connection under way (writable when
 * decided; read SO_ERROR), or UNREACHABLE. Resolves a name in the call. */
kvp_err_t kvp_tcp_sock_connect(const kvp_hostport_t *to, int *fd_out) KVP_MUST_USE;

/* Memory of one sendmsg or recvmsg. */
#define KVP_TCP_GATHER_IOVS 128u
typedef struct {
    struct iovec iov[KVP_TCP_GATHER_IOVS];
    size_t n;
    size_t bytes;
} kvp_tcp_gather_t;

/* One sendmsg or recvmsg: OK with *n_out > 0, EAGAIN, or DISCONNECTED (also end of file). */
kvp_err_t kvp_tcp_sock_send(int fd, struct iovec *iov, size_t iov_n, size_t *n_out) KVP_MUST_USE;
kvp_err_t kvp_tcp_sock_recv(int fd, struct iovec *iov, size_t iov_n, size_t *n_out) KVP_MUST_USE;

#endif
