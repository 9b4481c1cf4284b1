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
    const _Atomic bool *is_given_up; /* who waits here gives CLOSED once it is set; NULL = nobody sets it. Borrowed */
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

/* kvp_framed_init makes an empty value; kvp_framed_fini closes everything and is legal on an empty value. The owner may
 * then lower in.limit: twice the longest frame that it takes. */
void kvp_framed_init(kvp_framed_t *c);
void kvp_framed_fini(kvp_framed_t *c);

/* kvp_framed_adopt takes a connected socket (made non-blocking, close-on-exec, TCP_NODELAY). */
kvp_err_t kvp_framed_adopt(kvp_framed_t *c, int fd, bool is_unix) KVP_MUST_USE;

/* Connecting, blocking up to deadline_ns (CLOCK_MONOTONIC). A path that starts with '@' is an abstract socket.
 * UNREACHABLE, DEADLINE, CLOSED (given up), SYS. By name: net/names.h.
 * kvp_framed_connect_told goes to a path that a peer has told: only to a socket of that kind in our own directory, of a process that is
 * trusted (common/hostid.h); nothing was sent there otherwise. Also INVALID; *why_out is a text that stays. */
kvp_err_t kvp_framed_connect_told(kvp_framed_t *c, kvp_socket_t kind, const char *told, uint64_t deadline_ns,
                                  const char **why_out) KVP_MUST_USE;
kvp_err_t kvp_framed_connect_unix(kvp_framed_t *c, const char *path, uint64_t deadline_ns) KVP_MUST_USE;
kvp_err_t kvp_framed_connect_addr(kvp_framed_t *c, const struct sockaddr *to, socklen_t len, uint64_t deadline_ns)
    KVP_MUST_USE;

/* The same in two steps that do not block: begin gives OK with a connection that is being made, UNREACHABLE or SYS. Once it can be
 * written to, end tells what came of it: OK, UNREACHABLE (and it is none any more), or EAGAIN where it is not decided yet. */
kvp_err_t kvp_framed_connect_begin(kvp_framed_t *c, const struct sockaddr *to, socklen_t len) KVP_MUST_USE;
kvp_err_t kvp_framed_connect_end(kvp_framed_t *c) KVP_MUST_USE;

/* kvp_framed_out is the buffer to append frames to (kvp_frame_begin/end or kvp_pb_frame_begin/end); then flush.
 * kvp_framed_out_fds attaches descriptors (duplicated) to the frame that was just begun at offset `at`; BUSY when an
 * earlier set is not sent yet, NOTSUP on TCP. */
kvp_err_t kvp_framed_out_fds(kvp_framed_t *c, size_t at, const int *fds, int n) KVP_MUST_USE;

/* kvp_framed_flush sends what it can: OK with everything sent, EAGAIN when the socket is full (poll for POLLOUT),
 * DISCONNECTED, or what made a frame incomplete (NOMEM, LIMIT: the connection is lost). A peer that does not read is the
 * caller's to bound: look at kvp_framed_out_bytes. */
kvp_err_t kvp_framed_flush(kvp_framed_t *c);
size_t kvp_framed_out_bytes(const kvp_framed_t *c);

/* kvp_framed_recv reads what is there into the buffer (at most about a frame): OK with something read, EAGAIN,
 * DISCONNECTED (also end of file), LIMIT or NOMEM for a frame that does not fit, PROTO for more descriptors than may
 * wait here, SYS for descriptors that this process has no room for (RLIMIT_NOFILE): they are lost, the bytes are there, and the connection
 * can go on. kvp_framed_next then returns whole frames: OK with *has_out, PROTO where framing is lost. The frame is
 * borrowed until the next recv or next, and its tail is 8-aligned in memory. */
kvp_err_t kvp_framed_recv(kvp_framed_t *c) KVP_MUST_USE;
kvp_err_t kvp_framed_next(kvp_framed_t *c, kvp_frame_t *frame_out, bool *has_out) KVP_MUST_USE;

/* kvp_framed_take_fds moves up to n received descriptors to the caller and returns how many. They are there with the
 * frame that they ride beside, or with one just before it (the kernel joins what it reads), never later. */
int kvp_framed_take_fds(kvp_framed_t *c, int *fds, int n);

#endif
