/* SPDX-License-Identifier: Apache-2.0
 * A framed control connection over a non-blocking socket (Unix or TCP): bytes in, whole frames out, and the reverse.
 * Used by libkvpool's session and by the node; the master has libuv. No threads, no policy: the caller polls.
 */
#ifndef KVP_NET_FRAMED_H
#define KVP_NET_FRAMED_H

#include "common/buf.h"
#include "common/hostid.h"
#include "proto/frame.h"

#include <sys/socket.h>

#define KVP_FRAMED_FDS 4

typedef struct {
    int fd; /* -1 = none */
    bool is_unix;
    /* once set, blocking calls on this connection return CLOSED; NULL = never set. Borrowed */
    const _Atomic bool *is_given_up;
    const char *why; /* why the last attempt to connect failed, for people; static storage, NULL = none has failed */
    bool is_unknown; /* it failed because the host's name does not resolve, and never did (net/names.h) */
    _Atomic bool is_ended; /* the other side ended the connection: not a timeout, and not a call of ours */
    kvp_buf_t in; /* received, not yet consumed */
    size_t in_at; /* start of the first unread byte in `in` */
    kvp_buf_t out; /* queued, not yet sent */
    size_t out_at;
    int fds_in[KVP_FRAMED_FDS]; /* descriptors received and not yet taken, oldest first; owned */
    int fds_in_n;
    int fds_out[KVP_FRAMED_FDS]; /* owned duplicates, sent with the byte at fds_out_at of `out` */
    int fds_out_n;
    size_t fds_out_at;
} kvp_framed_t;

/* kvp_framed_init makes an empty value; kvp_framed_fini closes everything and is legal on an empty
 * value. The owner may then lower in.limit to twice its longest frame. */
void kvp_framed_init(kvp_framed_t *c);
void kvp_framed_fini(kvp_framed_t *c);

/* kvp_framed_adopt takes a connected socket (made non-blocking, close-on-exec, TCP_NODELAY). */
kvp_err_t kvp_framed_adopt(kvp_framed_t *c, int fd, bool is_unix) KVP_MUST_USE;

/* Connecting, blocking up to deadline_ns (CLOCK_MONOTONIC). A path that starts with '@' is an
 * abstract socket. UNREACHABLE, DEADLINE, CLOSED (given up), SYS. By name: net/names.h.
 * kvp_framed_connect_told connects to a path that a peer named: only to a socket of that kind in
 * our own directory, owned by a trusted user (common/hostid.h); nothing is sent before this check.
 * Also INVALID; *why_out is static text. */
kvp_err_t kvp_framed_connect_told(kvp_framed_t *c, kvp_socket_t kind, const char *told, uint64_t deadline_ns,
                                  const char **why_out) KVP_MUST_USE;
kvp_err_t kvp_framed_connect_unix(kvp_framed_t *c, const char *path, uint64_t deadline_ns) KVP_MUST_USE;
kvp_err_t kvp_framed_connect_addr(kvp_framed_t *c, const struct sockaddr *to, socklen_t len, uint64_t deadline_ns)
    KVP_MUST_USE;

/* Connecting in two steps that do not block. kvp_framed_connect_begin: OK with a connection under
 * way, UNREACHABLE or SYS. Call kvp_framed_connect_end once the socket is writable: OK, UNREACHABLE
 * (and c is empty again), or EAGAIN if the connection is still under way. */
kvp_err_t kvp_framed_connect_begin(kvp_framed_t *c, const struct sockaddr *to, socklen_t len) KVP_MUST_USE;
kvp_err_t kvp_framed_connect_end(kvp_framed_t *c) KVP_MUST_USE;

/* kvp_framed_out is the buffer to append frames to (kvp_frame_begin/end or kvp_pb_frame_begin/end); then flush.
 * kvp_framed_out_fds attaches descriptors (duplicated) to the frame that was just begun at offset `at`; BUSY when an
 * earlier set is not sent yet, NOTSUP on TCP. */
kvp_err_t kvp_framed_out_fds(kvp_framed_t *c, size_t at, const int *fds, int n) KVP_MUST_USE;

/* kvp_framed_flush sends as much as the socket takes: OK with everything sent; EAGAIN with a full
 * socket (poll for POLLOUT); DISCONNECTED; or the error that left a frame incomplete (NOMEM, LIMIT:
 * the connection is lost). The caller must bound a peer that does not read: see
 * kvp_framed_out_bytes. */
kvp_err_t kvp_framed_flush(kvp_framed_t *c);
size_t kvp_framed_out_bytes(const kvp_framed_t *c);

/* kvp_framed_recv reads the available bytes (at most about a frame). OK with bytes read; EAGAIN;
 * DISCONNECTED (also at end of file); LIMIT or NOMEM for a frame that does not fit; PROTO for more
 * descriptors than may wait here; SYS for descriptors over RLIMIT_NOFILE: the descriptors are lost,
 * the bytes are read, and the connection can continue. kvp_framed_next then returns whole frames:
 * OK with *has_out, PROTO where framing is lost. The frame is borrowed until the next recv or next,
 * and its tail is 8-aligned in memory. */
kvp_err_t kvp_framed_recv(kvp_framed_t *c) KVP_MUST_USE;
kvp_err_t kvp_framed_next(kvp_framed_t *c, kvp_frame_t *frame_out, bool *has_out) KVP_MUST_USE;

/* kvp_framed_take_fds moves up to n received descriptors to the caller and returns their number.
 * Descriptors arrive with their frame, or with a frame just before (the kernel joins messages),
 * never later. */
int kvp_framed_take_fds(kvp_framed_t *c, int *fds, int n);

#endif
