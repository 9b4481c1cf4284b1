/* SPDX-License-Identifier: Apache-2.0
 * The sockets of both sides of tcp: non-blocking, close-on-exec, without delay (TCP_NODELAY), and with keepalive, so
 * that a dead peer is detected. */
#ifndef KVP_TRANSPORT_TCP_SOCK_H
#define KVP_TRANSPORT_TCP_SOCK_H

#include "transport/transport.h"

#include <sys/socket.h>
#include <sys/uio.h>

/* kvp_tcp_sock_setup sets the options of a connected data socket. SYS: see errno (logged). */
kvp_err_t kvp_tcp_sock_setup(int fd) KVP_MUST_USE;

/* kvp_tcp_sock_listen binds and listens; port 0 = any. The host may be a name, and resolving the name may block. */
kvp_err_t kvp_tcp_sock_listen(const kvp_hostport_t *at, int *fd_out, kvp_hostport_t *bound_out) KVP_MUST_USE;

/* kvp_tcp_sock_connect starts a connection. OK: the connection is under way, and the socket becomes writable when the
 * outcome is known (read SO_ERROR). Otherwise UNREACHABLE or SYS. Resolving a name may block. */
kvp_err_t kvp_tcp_sock_connect(const kvp_hostport_t *to, int *fd_out) KVP_MUST_USE;

/* The pieces of memory for one sendmsg or recvmsg call, and their total size. */
#define KVP_TCP_GATHER_IOVS 128u
typedef struct {
    struct iovec iov[KVP_TCP_GATHER_IOVS];
    size_t n;
    size_t bytes;
} kvp_tcp_gather_t;

/* kvp_tcp_sock_send and kvp_tcp_sock_recv make one system call: OK with *n_out > 0, EAGAIN, or DISCONNECTED (also at
 * end of file). */
kvp_err_t kvp_tcp_sock_send(int fd, struct iovec *iov, size_t iov_n, size_t *n_out) KVP_MUST_USE;
kvp_err_t kvp_tcp_sock_recv(int fd, struct iovec *iov, size_t iov_n, size_t *n_out) KVP_MUST_USE;

#endif
