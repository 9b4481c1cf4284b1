/* SPDX-License-Identifier: Apache-2.0
 * Socket calls of the tcp transport, with errno translated to kvp_err_t.
 *
 * The sizes of the socket buffers are left to the kernel, which grows them as needed. Asking for 4 MiB (SO_SNDBUF)
 * gains nothing where it is granted, and where the system's maximum is small, it would stop the growth. */
#include "transport/tcp/sock.h"

#include "common/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <unistd.h>

#define BACKLOG 512
/* An idle connection to a dead host ends after 10 + 3 x 5 s, a connection with unacknowledged bytes after 30 s. */
#define KEEPALIVE_IDLE_S 10
#define KEEPALIVE_INTERVAL_S 5
#define KEEPALIVE_PROBES 3
#define USER_TIMEOUT_MS 30000

static int
set_int(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

kvp_err_t
kvp_tcp_sock_setup(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
        set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1) != 0) {
        kvp_log_error("transport", "cannot set up a data socket: %m");
        return KVP_SYS;
    }
    /* A socket that is not TCP refuses these options, and works without them. */
    (void)set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    (void)set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    (void)set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    (void)set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
    (void)set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
    return KVP_OK;
}

static kvp_err_t
resolve_addr(const kvp_hostport_t *addr, bool is_passive, struct addrinfo **list_out)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char port[8];
    int rc;

    if (is_passive) hints.ai_flags |= AI_PASSIVE;
    snprintf(port, sizeof port, "%u", addr->port);
    rc = getaddrinfo(addr->host[0] == '\0' ? NULL : addr->host, port, &hints, list_out);
    if (rc == 0) return KVP_OK;
    kvp_log_warn("transport", "cannot resolve host %s: %s", addr->host, gai_strerror(rc));
    return KVP_UNREACHABLE;
}

static void
bound_addr(int fd, kvp_hostport_t *bound_out)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;

    *bound_out = (kvp_hostport_t){0};
    if (getsockname(fd, (struct sockaddr *)&ss, &len) != 0) return;
    if (ss.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&ss;
        inet_ntop(AF_INET, &in->sin_addr, bound_out->host, sizeof bound_out->host);
        bound_out->port = ntohs(in->sin_port);
    } else if (ss.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&ss;
        inet_ntop(AF_INET6, &in6->sin6_addr, bound_out->host, sizeof bound_out->host);
        bound_out->port = ntohs(in6->sin6_port);
    }
}

kvp_err_t
kvp_tcp_sock_listen(const kvp_hostport_t *at, int *fd_out, kvp_hostport_t *bound_out)
{
    struct addrinfo *list;
    kvp_err_t err = resolve_addr(at, true, &list);
    int fd;

    if (err != KVP_OK) return err;
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0) (void)set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        kvp_log_error("transport", "cannot listen for data at %s port %u: %m", at->host, at->port);
        if (fd >= 0) close(fd);
        err = KVP_SYS;
    } else {
        bound_addr(fd, bound_out);
        *fd_out = fd;
    }
    freeaddrinfo(list);
    return err;
}

kvp_err_t
kvp_tcp_sock_connect(const kvp_hostport_t *to, int *fd_out)
{
    struct addrinfo *list;
    kvp_err_t err = resolve_addr(to, false, &list);
    int fd;

    if (err != KVP_OK) return err;
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        kvp_log_error("transport", "cannot make a data socket: %m");
        err = KVP_SYS;
    } else {
        err = kvp_tcp_sock_setup(fd);
    }
    if (err == KVP_OK && connect(fd, list->ai_addr, list->ai_addrlen) != 0 && errno != EINPROGRESS) {
        kvp_log_warn("transport", "cannot connect to %s port %u: %m", to->host, to->port);
        err = KVP_UNREACHABLE;
    }
    freeaddrinfo(list);
    if (err != KVP_OK && fd >= 0) close(fd);
    if (err == KVP_OK) *fd_out = fd;
    return err;
}

static kvp_err_t
translate_result(ssize_t n, size_t *n_out)
{
    if (n > 0) {
        *n_out = (size_t)n;
        return KVP_OK;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return KVP_EAGAIN;
    return KVP_DISCONNECTED;
}

kvp_err_t
kvp_tcp_sock_send(int fd, struct iovec *iov, size_t iov_n, size_t *n_out)
{
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = iov_n};
    ssize_t n;

    do {
        n = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return translate_result(n, n_out);
}

kvp_err_t
kvp_tcp_sock_recv(int fd, struct iovec *iov, size_t iov_n, size_t *n_out)
{
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = iov_n};
    ssize_t n;

    do {
        n = recvmsg(fd, &msg, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return translate_result(n, n_out);
}
