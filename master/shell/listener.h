/* SPDX-License-Identifier: Apache-2.0
 * A listening socket, TCP or Unix: opened once at the start (blocking); then it accepts connections in the loop's
 * thread. server.c handles them. */
#ifndef KVP_MASTER_SHELL_LISTENER_H
#define KVP_MASTER_SHELL_LISTENER_H

#include "common/parse.h"

#include <sys/un.h>
#include <uv.h>

#define KVP_UNIX_PATH_MAX sizeof(((struct sockaddr_un *)0)->sun_path)

/* The callback for an accepted connection. It takes fd, which is connected, non-blocking, close-on-exec and tuned
 * (TCP_NODELAY, keepalive). */
typedef void (*kvp_accept_fn)(void *arg, int fd, bool is_unix);

typedef struct {
    int fd; /* -1 = not open */
    bool is_unix;
    bool is_started;
    char path[KVP_UNIX_PATH_MAX]; /* path of the Unix socket; "" = none */
    uv_poll_t poll;
    uv_timer_t resume; /* timer that ends a pause after the process had no free descriptors */
    uint64_t pauses;
    kvp_accept_fn on_accept;
    void *arg;
} kvp_listener_t;

void kvp_listener_init(kvp_listener_t *listener);

/* kvp_listener_open_tcp resolves, binds and listens. bound_out is the given address with the port that the system
 * assigned. UNREACHABLE if the host does not resolve, SYS if binding fails; logged. */
kvp_err_t kvp_listener_open_tcp(kvp_listener_t *listener, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
    KVP_MUST_USE;

/* kvp_listener_open_unix creates the Unix socket that belongs to a TCP port. It replaces the socket of a dead process,
 * but never of a living one. After any error, logged as a warning, there is no Unix socket, and all clients use TCP. */
kvp_err_t kvp_listener_open_unix(kvp_listener_t *listener, uint16_t port) KVP_MUST_USE;

/* kvp_listener_start begins to accept connections; no effect on a closed listener. While the process has no free
 * descriptors it pauses, 100 ms at a time. SYS, logged. */
kvp_err_t kvp_listener_start(kvp_listener_t *listener, uv_loop_t *uv, kvp_accept_fn on_accept, void *arg) KVP_MUST_USE;

/* kvp_listener_close closes the listener and removes the Unix socket's path. After kvp_listener_start the loop must
 * run another turn before the listener's memory is freed. May be repeated. */
void kvp_listener_close(kvp_listener_t *listener);

#endif
