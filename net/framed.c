/* SPDX-License-Identifier: Apache-2.0
 * The framed connection: one send or receive call at a time, and two buffers.
 *
 * Design notes. Frames follow each other without padding, but a tail has to be 8-aligned in memory to be used in
 * place. So kvp_framed_next moves an unaligned frame down into the space of the previous frame. The buffer for a long
 * frame grows as its bytes arrive, never to the length that its header claims. */
#include "net/framed.h"

#include "common/waits.h"
#include "common/clock.h"
#include "common/forkguard.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RECV_MIN_BYTES (16u << 10)
#define FRAME_ALIGN 8u
#define SEAL_BYTES (64u << 10) /* limit of the plain bytes that are encrypted at once */
#define BACKLOG_RETRY_NS (1 * KVP_NS_PER_MS)

static void
close_fds(int *fds, int *n)
{
    for (int i = 0; i < *n; i++)
        close(fds[i]);
    *n = 0;
}

void
kvp_framed_init(kvp_framed_t *c)
{
    memset(c, 0, sizeof(*c));
    c->fd = -1;
    kvp_buf_init(&c->in, 2 * ((size_t)KVP_FRAME_MAX + KVP_FRAME_HDR_BYTES));
    kvp_buf_init(&c->out, 0);
    kvp_buf_init(&c->sealed, 0);
}

void
kvp_framed_fini(kvp_framed_t *c)
{
    kvp_forkguard_close(c->fd);
    close_fds(c->fds_in, &c->fds_in_n);
    close_fds(c->fds_out, &c->fds_out_n);
    kvp_buf_fini(&c->in);
    kvp_buf_fini(&c->out);
    kvp_buf_fini(&c->sealed);
    kvp_tls_destroy(c->tls);
    kvp_framed_init(c);
}

kvp_err_t
kvp_framed_adopt(kvp_framed_t *c, int fd, bool is_unix)
{
    int one = 1;
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ||
        (!is_unix && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)) {
        kvp_forkguard_close(fd);
        return KVP_SYS;
    }
    kvp_forkguard_add(fd);
    c->fd = fd;
    c->is_unix = is_unix;
    return KVP_OK;
}

/* Returns true if the socket is connected to itself. A connect to a free port in this host's ephemeral range can end
 * so, because the kernel may choose the same port as source. */
static bool
is_connected_to_itself(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t here_len = sizeof here, there_len = sizeof there;

    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    if (getsockname(fd, (struct sockaddr *)&here, &here_len) < 0) return false;
    if (getpeername(fd, (struct sockaddr *)&there, &there_len) < 0) return false;
    return here_len == there_len && memcmp(&here, &there, here_len) == 0;
}

/* Connects a Unix socket. If the listener's queue is full (EAGAIN) it retries after a pause, because poll does not
 * report when the queue has room again. */
static kvp_err_t
connect_unix_fd(int fd, const struct sockaddr_un *to, socklen_t len, const _Atomic bool *is_given_up,
                uint64_t deadline_ns)
{
    while (connect(fd, (const struct sockaddr *)to, len) < 0 && errno != EISCONN) {
        struct timespec back_off = {.tv_nsec = BACKLOG_RETRY_NS};

        if (errno != EAGAIN && errno != EINTR) return KVP_UNREACHABLE;
        if (kvp_now_ns() >= deadline_ns) return KVP_DEADLINE;
        if (kvp_is_given_up(is_given_up)) return KVP_CLOSED;
        nanosleep(&back_off, NULL);
    }
    return KVP_OK;
}

kvp_err_t
kvp_framed_connect_unix(kvp_framed_t *c, const char *path, uint64_t deadline_ns)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    kvp_err_t err;
    int fd;

    if (n == 0 || n >= sizeof to.sun_path) return KVP_UNREACHABLE;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@')
        to.sun_path[0] = '\0';
    else
        len++;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return KVP_SYS;
    kvp_forkguard_add(fd);
    err = connect_unix_fd(fd, &to, len, c->is_given_up, deadline_ns);
    if (err == KVP_OK) return kvp_framed_adopt(c, fd, true);
    kvp_forkguard_close(fd);
    return err;
}

kvp_err_t
kvp_framed_connect_told(kvp_framed_t *c, kvp_socket_t kind, const char *told, uint64_t deadline_ns,
                        const char **why_out)
{
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    kvp_err_t err = kvp_runtime_socket(kind, told, path, sizeof path);

    *why_out = err == KVP_INVALID ? "the name of its socket is not one of ours"
                                  : "its socket is not in our directory of sockets (KVPOOL_RUNTIME_DIR)";
    if (err != KVP_OK) return err;
    err = kvp_framed_connect_unix(c, path, deadline_ns);
    *why_out = kvp_err_text(err);
    if (err != KVP_OK || kvp_peer_is_trusted(c->fd)) return err;
    *why_out = "its process is of a user that is not trusted (KVPOOL_TRUST_UID)";
    kvp_framed_fini(c);
    return KVP_INVALID;
}

static void
note_errno(kvp_framed_t *c, int no)
{
    char number[32];
    const char *text = strerror_r(no, number, sizeof number); /* a constant, if the error is known */

    c->why = text != number ? text : "unknown error";
}

kvp_err_t
kvp_framed_connect_begin(kvp_framed_t *c, const struct sockaddr *to, socklen_t len)
{
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        note_errno(c, errno);
        return KVP_SYS; /* socket(2) failed: the host lacks the address family, or no descriptor is free */
    }
    kvp_forkguard_add(fd);
    if (connect(fd, to, len) < 0 && errno != EINTR && errno != EINPROGRESS) {
        note_errno(c, errno);
        kvp_forkguard_close(fd);
        return KVP_UNREACHABLE;
    }
    return kvp_framed_adopt(c, fd, false);
}

static void
drop_fd(kvp_framed_t *c)
{
    kvp_forkguard_close(c->fd);
    c->fd = -1;
}

kvp_err_t
kvp_framed_connect_end(kvp_framed_t *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    int cause = 0;
    socklen_t len = sizeof cause;

    if (poll(&p, 1, 0) <= 0) return KVP_EAGAIN;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &cause, &len) == 0 && cause == 0 && !is_connected_to_itself(c->fd))
        return KVP_OK;
    note_errno(c, cause != 0 ? cause : ECONNREFUSED);
    drop_fd(c);
    return KVP_UNREACHABLE;
}

kvp_err_t
kvp_framed_connect_addr(kvp_framed_t *c, const struct sockaddr *to, socklen_t len, uint64_t deadline_ns)
{
    kvp_err_t err = kvp_framed_connect_begin(c, to, len);

    if (err != KVP_OK) return err;
    while ((err = kvp_framed_connect_end(c)) == KVP_EAGAIN) {
        struct pollfd p = {.fd = c->fd, .events = POLLOUT};

        err = kvp_now_ns() >= deadline_ns ? KVP_DEADLINE : kvp_is_given_up(c->is_given_up) ? KVP_CLOSED : KVP_OK;
        if (err != KVP_OK) {
            note_errno(c, ETIMEDOUT);
            drop_fd(c);
            break;
        }
        kvp_poll_slice(&p, deadline_ns);
    }
    return err;
}

kvp_err_t
kvp_framed_out_fds(kvp_framed_t *c, size_t at, const int *fds, int n)
{
    if (!c->is_unix) return KVP_NOTSUP;
    if (c->fds_out_n > 0) return KVP_BUSY;
    if (n < 1 || n > KVP_FRAMED_FDS) return KVP_INVALID;
    for (int i = 0; i < n; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            close_fds(c->fds_out, &c->fds_out_n);
            return KVP_SYS;
        }
        c->fds_out[c->fds_out_n++] = fd;
    }
    c->fds_out_at = at;
    return KVP_OK;
}

/* send_some makes one send call. Descriptors travel with the byte at fds_out_at: the call sends the bytes before it, or
 * sends the descriptors with the bytes from it on. */
static ssize_t
send_some(kvp_framed_t *c)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * KVP_FRAMED_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = c->out.data + c->out_at, .iov_len = c->out.len - c->out_at};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    size_t fds_bytes = sizeof(int) * (size_t)c->fds_out_n;
    ssize_t n;

    if (c->fds_out_n > 0 && c->out_at < c->fds_out_at) {
        iov.iov_len = c->fds_out_at - c->out_at;
    } else if (c->fds_out_n > 0) {
        memset(&control, 0, sizeof control);
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(fds_bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(fds_bytes);
        memcpy(CMSG_DATA(head), c->fds_out, fds_bytes);
    }
    n = sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0 && msg.msg_control != NULL) close_fds(c->fds_out, &c->fds_out_n);
    return n;
}

static kvp_err_t
send_failed(kvp_framed_t *c)
{
    if (errno == EPIPE || errno == ECONNRESET) c->is_ended = true;
    return KVP_DISCONNECTED;
}

/* ---- TLS */
kvp_err_t
kvp_framed_secure(kvp_framed_t *c, kvp_authrole_t role, const char *name)
{
    kvp_creds_t files;

    if (c->is_unix || !kvp_creds_tls(&files)) return KVP_OK;
    c->tls = kvp_tls_client(&files, role, name);
    return c->tls == NULL ? KVP_NOMEM : KVP_OK;
}

const char *
kvp_framed_tls_why(const kvp_framed_t *c)
{
    if (c->tls == NULL) return "";
    if (kvp_tls_why(c->tls)[0] != '\0' || !c->is_ended || kvp_tls_is_done(c->tls)) return kvp_tls_why(c->tls);
    return "it closed the connection in the handshake of TLS: it has no TLS (--tls-cert), or too many handshakes";
}

short
kvp_framed_wants(const kvp_framed_t *c)
{
    return c->tls != NULL && !kvp_tls_is_done(c->tls) && c->sealed_at == c->sealed.len ? POLLIN : POLLOUT;
}

/* Sends the encrypted bytes. */
static kvp_err_t
send_sealed(kvp_framed_t *c)
{
    for (;;) {
        ssize_t n;

        if (c->sealed_at == c->sealed.len) {
            kvp_buf_reset(&c->sealed);
            c->sealed_at = 0;
            kvp_tls_take_all(c->tls, &c->sealed);
            if (c->sealed.err != KVP_OK) return KVP_NOMEM;
            if (c->sealed.len == 0) return KVP_OK;
        }
        n = send(c->fd, c->sealed.data + c->sealed_at, c->sealed.len - c->sealed_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            c->sealed_at += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return KVP_EAGAIN;
        else if (n < 0 && errno != EINTR)
            return send_failed(c);
    }
}

/* Gives received bytes to TLS: OK, EAGAIN, DISCONNECTED, NOMEM. */
static kvp_err_t
feed_some(kvp_framed_t *c)
{
    uint8_t bytes[RECV_MIN_BYTES];
    ssize_t n;

    do {
        n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n > 0) return kvp_tls_feed(c->tls, bytes, (size_t)n);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return KVP_EAGAIN;
    c->is_ended = n == 0 || errno == ECONNRESET;
    return KVP_DISCONNECTED;
}

static kvp_err_t
shake_hands(kvp_framed_t *c)
{
    kvp_err_t err = KVP_OK;

    while (err == KVP_OK) {
        const kvp_err_t step = kvp_tls_step(c->tls);

        err = send_sealed(c); /* also after a failure, because the peer gets an alert */
        if (step != KVP_EAGAIN) return step;
        if (err == KVP_OK) err = feed_some(c);
    }
    return err;
}

static kvp_err_t
flush_tls(kvp_framed_t *c)
{
    kvp_err_t err = kvp_tls_is_done(c->tls) ? KVP_OK : shake_hands(c);

    while (err == KVP_OK && (err = send_sealed(c)) == KVP_OK && c->out_at < c->out.len) {
        const size_t n = kvp_min_u64(c->out.len - c->out_at, SEAL_BYTES);

        err = kvp_tls_seal(c->tls, c->out.data + c->out_at, n);
        if (err == KVP_OK) c->out_at += n;
    }
    if (c->out_at < c->out.len) return err;
    kvp_buf_reset(&c->out);
    c->out_at = 0;
    return err;
}

kvp_err_t
kvp_framed_flush(kvp_framed_t *c)
{
    if (c->fd < 0) return KVP_DISCONNECTED;
    if (c->out.err != KVP_OK) return c->out.err;
    if (c->tls != NULL) return flush_tls(c);
    while (c->out_at < c->out.len) {
        ssize_t n = send_some(c);
        if (n > 0)
            c->out_at += (size_t)n;
        else if (n < 0 && errno == EINTR)
            continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return KVP_EAGAIN;
        else
            return send_failed(c);
    }
    kvp_buf_reset(&c->out);
    c->out_at = 0;
    return KVP_OK;
}

size_t
kvp_framed_out_bytes(const kvp_framed_t *c)
{
    return c->out.len - c->out_at + c->sealed.len - c->sealed_at;
}

/* take_control keeps the descriptors that arrived with a message. PROTO: the peer sent more than fds_in has room for.
 * SYS: this process may not open as many; none of the message is kept. The kernel sets MSG_CTRUNC in both cases, but
 * only in the first the list fills our control buffer. */
static kvp_err_t
take_control(kvp_framed_t *c, struct msghdr *msg)
{
    int had = c->fds_in_n;
    size_t came_n = 0;
    bool has_too_many = false, is_cut = (msg->msg_flags & MSG_CTRUNC) != 0;

    for (struct cmsghdr *h = CMSG_FIRSTHDR(msg); h != NULL; h = CMSG_NXTHDR(msg, h)) {
        size_t n;

        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
        n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        came_n += n;
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            if (c->fds_in_n < KVP_FRAMED_FDS) {
                c->fds_in[c->fds_in_n++] = fd;
            } else {
                close(fd);
                has_too_many = true;
            }
        }
    }
    if (has_too_many || (is_cut && came_n >= KVP_FRAMED_FDS)) return KVP_PROTO;
    if (!is_cut) return KVP_OK;
    while (c->fds_in_n > had)
        close(c->fds_in[--c->fds_in_n]);
    return KVP_SYS;
}

/* recv_room drops consumed bytes and returns free space to receive into: as large as the unread bytes, at least
 * RECV_MIN_BYTES, so that the buffer doubles while a long frame arrives. */
static uint8_t *
recv_room(kvp_framed_t *c)
{
    size_t have = c->in.len - c->in_at;

    kvp_buf_consume(&c->in, c->in_at);
    c->in_at = 0;
    return kvp_buf_reserve(&c->in, kvp_max_u64(have, RECV_MIN_BYTES));
}

/* Receives and decrypts bytes. It moves all bytes that can be decrypted to `in`, because poll does not report bytes
 * that TLS holds. */
static kvp_err_t
recv_tls(kvp_framed_t *c)
{
    kvp_err_t err = KVP_OK;
    bool has_any = false;
    size_t n;

    if (!kvp_tls_is_done(c->tls)) {
        err = flush_tls(c);
        if (!kvp_tls_is_done(c->tls)) return err;
        if (err != KVP_OK && err != KVP_EAGAIN) return err;
    }
    err = feed_some(c);
    if (err == KVP_NOMEM) return err;
    if (err != KVP_OK && kvp_tls_held(c->tls) == 0) return err;
    for (;;) {
        uint8_t *room = has_any ? kvp_buf_reserve(&c->in, RECV_MIN_BYTES) : recv_room(c);

        if (room == NULL) return c->in.err;
        err = kvp_tls_open(c->tls, room, c->in.cap - c->in.len, &n);
        if (err != KVP_OK) break;
        c->in.len += n;
        has_any = true;
    }
    if (err == KVP_DISCONNECTED) c->is_ended = true;
    return has_any ? KVP_OK : err;
}

kvp_err_t
kvp_framed_recv(kvp_framed_t *c)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * KVP_FRAMED_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov;
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (c->fd < 0) return KVP_DISCONNECTED;
    if (c->tls != NULL) return recv_tls(c);
    iov.iov_base = recv_room(c);
    if (iov.iov_base == NULL) return c->in.err;
    iov.iov_len = c->in.cap - c->in.len;
    do {
        if (c->is_unix) {
            msg.msg_control = control.bytes;
            msg.msg_controllen = sizeof control.bytes;
        }
        n = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return KVP_EAGAIN;
    if (n <= 0) {
        c->is_ended = n == 0 || errno == ECONNRESET;
        return KVP_DISCONNECTED;
    }
    c->in.len += (size_t)n;
    return c->is_unix ? take_control(c, &msg) : KVP_OK;
}

kvp_err_t
kvp_framed_next(kvp_framed_t *c, kvp_frame_t *frame_out, bool *has_out)
{
    uint8_t *at = c->in.data + c->in_at;
    size_t have = c->in.len - c->in_at;
    size_t skew = c->in_at % FRAME_ALIGN;
    size_t used;
    kvp_err_t err;

    *has_out = false;
    if (have < KVP_FRAME_HDR_BYTES) return KVP_OK;
    err = kvp_frame_parse(at, have, frame_out, &used);
    if (err != KVP_OK || used == 0) return err;
    if (skew != 0) {
        memmove(at - skew, at, used);
        err = kvp_frame_parse(at - skew, used, frame_out, &used);
        if (err != KVP_OK) return err;
    }
    c->in_at += used;
    *has_out = true;
    return KVP_OK;
}

int
kvp_framed_take_fds(kvp_framed_t *c, int *fds, int n)
{
    int taken = n < c->fds_in_n ? n : c->fds_in_n;

    memcpy(fds, c->fds_in, sizeof(int) * (size_t)taken);
    c->fds_in_n -= taken;
    memmove(c->fds_in, c->fds_in + taken, sizeof(int) * (size_t)c->fds_in_n);
    return taken;
}
