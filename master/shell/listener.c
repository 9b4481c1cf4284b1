/* SPDX-License-Identifier: Apache-2.0
 * Listening sockets, made and accepted with plain system calls and only watched by libuv: libuv's own listeners loop
 * in accept(2) when the process has no free descriptors. */
#include "master/shell/listener.h"

#include "common/hostid.h"
#include "common/log.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define BACKLOG 4096
#define ACCEPT_BURST 64 /* limit of the connections accepted before other handlers run */
#define PAUSE_MS 100
#define KEEPALIVE_IDLE_S 30
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_PROBES 3

static void
set_int(int fd, int level, int name, int value)
{
    /* Socket options only improve speed or detection of dead peers: a socket without the option still works. */
    (void)setsockopt(fd, level, name, &value, sizeof(value));
}

/* listen_on returns a listening socket at the address, or -1 with errno. */
static int
listen_on(const struct sockaddr *addr, socklen_t len)
{
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd, addr, len) == 0 && listen(fd, BACKLOG) == 0) return fd;

    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

static uint16_t
port_of(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof(at);

    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0) return 0;
    if (at.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&at)->sin6_port);
    return ntohs(((struct sockaddr_in *)&at)->sin_port);
}

void
kvp_listener_init(kvp_listener_t *listener)
{
    memset(listener, 0, sizeof(*listener));
    listener->fd = -1;
}

kvp_err_t
kvp_listener_open_tcp(kvp_listener_t *listener, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char port[8], text[KVP_HOSTPORT_TEXT_MAX];
    struct addrinfo *list;
    int fd = -1;

    snprintf(port, sizeof(port), "%u", at->port);
    int rc = getaddrinfo(at->host, port, &hints, &list);
    if (rc != 0) {
        kvp_log_error("master", "cannot resolve the address to listen on: %s host=%s", gai_strerror(rc), at->host);
        return KVP_UNREACHABLE;
    }
    for (struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next)
        fd = listen_on(ai->ai_addr, ai->ai_addrlen);
    if (fd < 0)
        kvp_log_error("master", "cannot listen at %s: %m%s", kvp_format_hostport(at, text), kvp_listen_fix(errno));
    freeaddrinfo(list);
    if (fd < 0) return KVP_SYS;

    listener->fd = fd;
    *bound_out = *at;
    bound_out->port = port_of(fd);
    return KVP_OK;
}

/* is_alive returns true if a process answers at the path of a Unix socket. */
static bool
is_alive(const struct sockaddr_un *at)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return true;
    /* EAGAIN of connect: a process listens on the Unix socket, and its queue is full. */
    bool is_taken = connect(fd, (const struct sockaddr *)at, sizeof(*at)) == 0 || errno == EAGAIN;
    close(fd);
    return is_taken;
}

kvp_err_t
kvp_listener_open_unix(kvp_listener_t *listener, uint16_t port)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char dir[KVP_UNIX_PATH_MAX];

    kvp_err_t err = kvp_runtime_dir(dir, sizeof(dir));
    if (err != KVP_OK) return err;
    int len = snprintf(at.sun_path, sizeof(at.sun_path), "%s/master-%u.sock", dir, port);
    if (len < 0 || (size_t)len >= sizeof(at.sun_path)) {
        kvp_log_warn("master", "no Unix socket: the path is too long dir=%s", dir);
        return KVP_LIMIT;
    }
    if (is_alive(&at)) {
        kvp_log_warn("master", "no Unix socket: another process answers there path=%s", at.sun_path);
        return KVP_BUSY;
    }
    unlink(at.sun_path);
    int fd = listen_on((const struct sockaddr *)&at, sizeof(at));
    /* The mode of the socket's directory decides who may connect: the owner, and the group if the user named it. */
    if (fd < 0 || chmod(at.sun_path, 0666) != 0) {
        kvp_log_warn("master", "no Unix socket: %m path=%s", at.sun_path);
        if (fd >= 0) close(fd);
        return KVP_SYS;
    }
    listener->fd = fd;
    listener->is_unix = true;
    memcpy(listener->path, at.sun_path, sizeof(at.sun_path));
    return KVP_OK;
}

static void
tune_socket(int fd)
{
    /* On a Unix socket the TCP options fail, and are not needed. */
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
}

static void on_acceptable(uv_poll_t *poll, int status, int events);

static void
on_resume(uv_timer_t *timer)
{
    kvp_listener_t *listener = timer->data;
    /* The poll was active before, so starting it cannot fail. */
    (void)uv_poll_start(&listener->poll, UV_READABLE, on_acceptable);
}

static void
pause_accepting(kvp_listener_t *listener)
{
    if (listener->pauses++ == 0) kvp_log_warn("master", "connections have to wait: %m");
    uv_poll_stop(&listener->poll);
    uv_timer_start(&listener->resume, on_resume, PAUSE_MS, 0);
}

static bool
is_exhausted(int cause)
{
    return cause == EMFILE || cause == ENFILE || cause == ENOBUFS || cause == ENOMEM;
}

static void
on_acceptable(uv_poll_t *poll, int status, int events)
{
    kvp_listener_t *listener = poll->data;

    (void)status;
    (void)events;
    /* on_accept may close the listener. */
    for (int i = 0; i < ACCEPT_BURST && listener->fd >= 0; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            tune_socket(fd);
            listener->on_accept(listener->arg, fd, listener->is_unix);
        } else if (is_exhausted(errno)) {
            pause_accepting(listener);
            return;
        } else if (errno == EAGAIN) {
            return;
        }
        /* Any other error of accept4 is of one new connection, which is skipped, as accept(2) recommends. */
    }
}

kvp_err_t
kvp_listener_start(kvp_listener_t *listener, uv_loop_t *uv, kvp_accept_fn on_accept, void *arg)
{
    if (listener->fd < 0) return KVP_OK;
    listener->on_accept = on_accept;
    listener->arg = arg;
    listener->poll.data = listener->resume.data = listener;
    int rc = uv_poll_init(uv, &listener->poll, listener->fd);
    if (rc == 0) {
        uv_timer_init(uv, &listener->resume);
        listener->is_started = true;
        rc = uv_poll_start(&listener->poll, UV_READABLE, on_acceptable);
    }
    if (rc == 0) return KVP_OK;
    kvp_log_error("master", "cannot watch a listening socket: %s", uv_strerror(rc));
    return KVP_SYS;
}

void
kvp_listener_close(kvp_listener_t *listener)
{
    if (listener->fd < 0) return;
    if (listener->is_started) {
        uv_close((uv_handle_t *)&listener->poll, NULL);
        uv_close((uv_handle_t *)&listener->resume, NULL);
    }
    close(listener->fd);
    listener->fd = -1;
    if (listener->is_unix) unlink(listener->path);
}
