/* SPDX-License-Identifier: Apache-2.0
 * A framed control connection over a non-blocking socket (Unix or TCP): converts received bytes to whole frames, and
 * sends frames. Used by libkvpool's session and by the node; the master uses libuv instead. No threads, no policy:
 * the caller polls. A TCP connection may be encrypted (ADR 0053); frames are the same. */
#ifndef KVP_NET_FRAMED_H
#define KVP_NET_FRAMED_H

#include "common/buf.h"
#include "common/hostid.h"
#include "common/trust/tls.h"
#include "proto/frame.h"

#include <sys/socket.h>

#define KVP_FRAMED_FDS 4

typedef struct {
    int fd; /* the socket; -1 = none */
    bool is_unix;
    /* once *is_given_up is true, blocking calls on this connection return CLOSED; NULL = never. Borrowed */
    const _Atomic bool *is_given_up;
    const char *why; /* why the last attempt to connect failed, for people; static text, NULL = no attempt has failed */
    bool is_unknown; /* the last attempt failed because the host's name has never resolved (net/names.h) */
    _Atomic bool is_ended; /* the peer ended the connection; false after a time-out, or if this side ended it */
    kvp_buf_t in; /* received bytes that were not consumed yet */
    size_t in_at; /* offset of the first unread byte in `in` */
    kvp_buf_t out; /* queued bytes that were not sent yet */
    size_t out_at;
    int fds_in[KVP_FRAMED_FDS]; /* received descriptors that were not taken yet, the oldest first; owned */
    int fds_in_n;
    int fds_out[KVP_FRAMED_FDS]; /* descriptors to send with the byte at fds_out_at of `out`; owned duplicates */
    int fds_out_n;
    size_t fds_out_at;
    kvp_tls_t *tls; /* encrypts the connection; NULL = it is not encrypted; owned */
    kvp_buf_t sealed; /* encrypted bytes of `out` that were not sent yet; from sealed_at on */
    size_t sealed_at;
} kvp_framed_t;

/* kvp_framed_init makes an empty connection. kvp_framed_fini closes everything and may be called for an empty
 * connection. After init the owner may lower in.limit to twice its longest frame. */
void kvp_framed_init(kvp_framed_t *c);
void kvp_framed_fini(kvp_framed_t *c);

/* kvp_framed_adopt takes over a connected socket and sets it non-blocking, close-on-exec and TCP_NODELAY. */
kvp_err_t kvp_framed_adopt(kvp_framed_t *c, int fd, bool is_unix) KVP_MUST_USE;

/* Functions that connect and block until deadline_ns (CLOCK_MONOTONIC) at most. A path that starts with '@' is an
 * abstract socket. Errors: UNREACHABLE, DEADLINE, CLOSED (*is_given_up was set), SYS. net/names.h connects by host
 * name. kvp_framed_connect_told connects to the path `told` that a peer sent, but only if it names a socket of this
 * kind in our own directory, whose process is of a trusted user (common/hostid.h); it sends nothing before this check.
 * Further error: INVALID; *why_out is static text. */
kvp_err_t kvp_framed_connect_told(kvp_framed_t *c, kvp_socket_t kind, const char *told, uint64_t deadline_ns,
                                  const char **why_out) KVP_MUST_USE;
kvp_err_t kvp_framed_connect_unix(kvp_framed_t *c, const char *path, uint64_t deadline_ns) KVP_MUST_USE;
kvp_err_t kvp_framed_connect_addr(kvp_framed_t *c, const struct sockaddr *to, socklen_t len, uint64_t deadline_ns)
    KVP_MUST_USE;

/* Functions that connect in two steps without blocking. kvp_framed_connect_begin: OK (the connection is being opened),
 * UNREACHABLE or SYS. Call kvp_framed_connect_end once the socket is writable: OK, EAGAIN (not open yet), or
 * UNREACHABLE, after which the socket is closed. */
kvp_err_t kvp_framed_connect_begin(kvp_framed_t *c, const struct sockaddr *to, socklen_t len) KVP_MUST_USE;
kvp_err_t kvp_framed_connect_end(kvp_framed_t *c) KVP_MUST_USE;

/* kvp_framed_secure begins TLS on a TCP connection that was just opened, if this process has files for TLS
 * (common/trust/creds.h). The peer needs a certificate of that role, and of that name (NULL = any). NOMEM. The
 * handshake runs in kvp_framed_flush and kvp_framed_recv. Until it has ended, they return EAGAIN or an error of
 * kvp_tls_step, and only one thread may use the connection. kvp_framed_wants returns the event to poll for after EAGAIN
 * of kvp_framed_flush. kvp_framed_tls_why returns the reason of a failure of TLS; "" = no failure. */
kvp_err_t kvp_framed_secure(kvp_framed_t *c, kvp_authrole_t role, const char *name) KVP_MUST_USE;
short kvp_framed_wants(const kvp_framed_t *c);
const char *kvp_framed_tls_why(const kvp_framed_t *c);

/* kvp_framed_out_fds attaches duplicates of descriptors to the frame that was just begun at offset `at` of c->out.
 * BUSY: earlier descriptors are not sent yet. NOTSUP: TCP. INVALID: n is not 1 to KVP_FRAMED_FDS. SYS: no free
 * descriptor. Frames are appended to c->out with kvp_frame_begin and kvp_frame_end (or the kvp_pb_ functions), then
 * flushed. */
kvp_err_t kvp_framed_out_fds(kvp_framed_t *c, size_t at, const int *fds, int n) KVP_MUST_USE;

/* kvp_framed_flush sends as many queued bytes as the socket accepts. OK: everything is sent; EAGAIN: the socket is
 * full, poll for POLLOUT; DISCONNECTED; or the error that left a frame incomplete (NOMEM, LIMIT: the connection is
 * lost). kvp_framed_out_bytes returns the number of queued bytes, so that the caller can limit a peer that does not
 * read. */
kvp_err_t kvp_framed_flush(kvp_framed_t *c);
size_t kvp_framed_out_bytes(const kvp_framed_t *c);

/* kvp_framed_recv reads the available bytes (at most about one frame). OK: bytes were read; EAGAIN; DISCONNECTED
 * (also at end of file); LIMIT or NOMEM for a frame that does not fit; PROTO if more descriptors arrive than fit in
 * fds_in; SYS for descriptors over RLIMIT_NOFILE: the descriptors are lost, the bytes are read, and the connection
 * can continue. kvp_framed_next then returns whole frames: OK with *has_out, PROTO if the framing is broken. The
 * frame is borrowed until the next recv or next, and its tail is 8-aligned in memory. */
kvp_err_t kvp_framed_recv(kvp_framed_t *c) KVP_MUST_USE;
kvp_err_t kvp_framed_next(kvp_framed_t *c, kvp_frame_t *frame_out, bool *has_out) KVP_MUST_USE;

/* kvp_framed_take_fds moves up to n received descriptors to the caller and returns their number. A frame's descriptors
 * arrive with it or with the frame before it (the kernel joins messages), never later. */
int kvp_framed_take_fds(kvp_framed_t *c, int *fds, int n);

#endif
