/* SPDX-License-Identifier: Apache-2.0
 * A listening socket, TCP or Unix: opened once at the start (blocking), then giving out connections
 * on the loop's thread. server.c handles them. */
#ifndef KVP_MASTER_SHELL_LISTENER_H
#define KVP_MASTER_SHELL_LISTENER_H

#include "common/parse.h"

#include <sys/un.h>
#include <uv.h>

#define KVP_UNIX_PATH_MAX sizeof(((struct sockaddr_un *)0)->sun_path)

/* Takes fd: connected, non-blocking, close-on-exec, tuned (TCP_NODELAY, keepalive). */
typedef void (*kvp_accept_fn)(void *arg, int fd, bool is_unix);

typedef struct {
    int fd; /* -1 = not open */
    bool is_unix;
    bool is_started;
    char path[KVP_UNIX_PATH_MAX]; /* "" = none */
    uv_poll_t poll;
    uv_timer_t resume; /* ends a pause for want of descriptors */
    uint64_t pauses;
    kvp_accept_fn on_accept;
    void *arg;
} kvp_listener_t;

void kvp_listener_init(kvp_listener_t *listener);

/* kvp_listener_open_tcp resolves, binds and listens. bound_out is the address asked with the port that it got.
 * UNREACHABLE for a host that does not resolve, SYS where binding fails; logged. */
kvp_err_t kvp_listener_open_tcp(kvp_listener_t *listener, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
    KVP_MUST_USE;

/* kvp_listener_open_unix creates the Unix socket that belongs to a TCP port. Replaces a dead
 * process's socket, and never a live one. Any error means no Unix socket, logged as a warning: all
 * clients then use TCP. */
kvp_err_t kvp_listener_open_unix(kvp_listener_t *listener, uint16_t port) KVP_MUST_USE;

/* kvp_listener_start accepts from now on; legal on a closed one, which stays silent. While the
 * process has no free descriptors it pauses, 100 ms at a time. SYS, logged. */
kvp_err_t kvp_listener_start(kvp_listener_t *listener, uv_loop_t *uv, kvp_accept_fn on_accept, void *arg) KVP_MUST_USE;

/* kvp_listener_close ends it and removes the Unix socket's path. A started one needs another turn
 * of the loop before its memory may go. May be repeated. */
void kvp_listener_close(kvp_listener_t *listener);

/* kvp_peer_text writes who is at the other end, for the log: "10.0.0.1:4711", or "pid 12 uid 0" on a Unix socket. */
#define KVP_PEER_TEXT_MAX 80u
void kvp_peer_text(int fd, char out[KVP_PEER_TEXT_MAX]);

#endif
