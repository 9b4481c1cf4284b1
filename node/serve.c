/* SPDX-License-Identifier: Apache-2.0
 * Listeners, and the life of control connections. A TCP connection whose first frame is DATA_HELLO is given to the tcp
 * transport with this frame unread; all other connections stay here.
 *
 * Design notes. A connection's next request is read only after its last answer was sent. So a client that does not read
 * costs at most one answer, and the file descriptors of two answers are never queued together. */
#include "node/priv.h"

#include "common/forkguard.h"
#include "proto/wire.h"

#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024
#define ACCEPTS_A_TURN 64
#define ACCEPT_PAUSE_NS (100 * KVP_NS_PER_MS)
#define PORT_TRIES 16 /* the most ports that are tried if the port may be any */
#define HELLO_NS (5 * KVP_NS_PER_S)
#define FRESH_MAX 1024u /* connections accepted in addition to the maximum of attachments */
#define RECVS_A_TURN 8

/* ---- connections */
static void
conn_close(kvp_node_t *node, kvp_node_conn_t *conn)
{
    uint64_t incarnation = conn->att.incarnation;

    kvp_node_unwatch(node, &conn->ev);
    conn->ev.fn = NULL;
    if (kvp_node_core_detach(node->core, &conn->att)) kvp_node_tps_left(&node->tps, incarnation);
    kvp_list_del(&conn->link);
    kvp_framed_fini(&conn->io);
    node->serve.conns_n--;
    kvp_node_free_later(node, &conn->deferred, conn);
}

void
kvp_node_serve_close_att(kvp_node_t *node, kvp_node_att_t *att)
{
    conn_close(node, kvp_container_of(att, kvp_node_conn_t, att));
}

static void
conn_breach(kvp_node_t *node, kvp_node_conn_t *conn, const char *why)
{
    uint32_t missed;

    node->serve.protocol_errors++;
    if (kvp_log_limit_ok(&conn->listener->noise, &missed))
        kvp_log_warn("node", "closing a client's connection: %s incarnation=%llu missed=%u", why,
                     (unsigned long long)conn->att.incarnation, missed);
    conn_close(node, conn);
}

/* answer_requests handles the received requests, until an answer cannot be sent at once or the turn is over. Returns
 * false if the connection was closed. */
static bool
answer_requests(kvp_node_t *node, kvp_node_conn_t *conn)
{
    const char *why = "malformed frame";
    kvp_frame_t frame;
    bool has = true;

    conn->has_rest = false;
    while (has && !conn->is_leaving && kvp_framed_out_bytes(&conn->io) == 0 && !conn->has_rest) {
        kvp_err_t err = kvp_framed_next(&conn->io, &frame, &has);

        if (err == KVP_OK && has) {
            node->serve.requests++;
            err = kvp_node_on_frame(node, conn, &frame, &why);
        }
        if (err != KVP_OK) {
            conn_breach(node, conn, why);
            return false;
        }
        err = kvp_framed_flush(&conn->io);
        if (err != KVP_OK && err != KVP_EAGAIN) {
            conn_close(node, conn);
            return false;
        }
        conn->has_rest = has && kvp_node_is_turn_over(node);
    }
    return true;
}

/* begin_leave shuts down our side of a refused connection, and discards received bytes: closing with unread bytes
 * would reset the connection and could lose the refusal. */
static void
begin_leave(kvp_node_conn_t *conn)
{
    if (kvp_framed_out_bytes(&conn->io) == 0) shutdown(conn->io.fd, SHUT_WR);
    kvp_buf_reset(&conn->io.in);
    conn->io.in_at = 0;
}

static void
on_conn(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events)
{
    kvp_node_conn_t *conn = kvp_container_of(ev, kvp_node_conn_t, ev);
    kvp_err_t err = KVP_OK;

    (void)events;
    if (kvp_framed_out_bytes(&conn->io) > 0) err = kvp_framed_flush(&conn->io);
    if (err == KVP_OK && !answer_requests(node, conn)) return;
    for (int i = 0; i < RECVS_A_TURN && err == KVP_OK && kvp_framed_out_bytes(&conn->io) == 0 && !conn->has_rest; i++) {
        if (conn->is_leaving) begin_leave(conn);
        err = kvp_framed_recv(&conn->io);
        if (err == KVP_OK && !answer_requests(node, conn)) return;
    }
    if (err == KVP_LIMIT || err == KVP_PROTO) {
        conn_breach(node, conn, err == KVP_LIMIT ? "request is too long" : "too many descriptors");
        return;
    }
    if (err == KVP_OK || err == KVP_EAGAIN)
        err = kvp_node_watch(node, ev, kvp_framed_out_bytes(&conn->io) > 0 || conn->has_rest ? EPOLLOUT : EPOLLIN);
    if (err != KVP_OK) conn_close(node, conn);
}

/* give_to_transport gives a data connection to the tcp transport, with its first frame unread. */
static void
give_to_transport(kvp_node_t *node, kvp_node_conn_t *conn)
{
    int fd = conn->io.fd;
    int tcp = kvp_node_tps_find(&node->tps, "tcp");
    int one = 1;

    if (tcp >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one) == 0) {
        kvp_node_unwatch(node, &conn->ev);
        conn->io.fd = -1;
        if (node->tps.tps[tcp]->ops->adopt(node->tps.tps[tcp], fd) != KVP_OK) node->serve.refused++;
    }
    conn_close(node, conn);
}

/* begin_tls passes the connection, with its bytes unread, to the threads that run handshakes. */
static void
begin_tls(kvp_node_t *node, kvp_node_conn_t *conn)
{
    kvp_node_unwatch(node, &conn->ev);
    if (kvp_handshakes_add(node->serve.handshakes, conn->io.fd) == KVP_OK)
        conn->io.fd = -1;
    else
        node->serve.refused++;
    conn_close(node, conn);
}

/* on_first_bytes looks at the opcode of the first frame. It runs when the bytes of a header have arrived
 * (SO_RCVLOWAT), or the peer has closed. */
static void
on_first_bytes(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events)
{
    kvp_node_conn_t *conn = kvp_container_of(ev, kvp_node_conn_t, ev);
    uint8_t bytes[KVP_FRAME_HDR_BYTES];
    kvp_frame_hdr_t hdr;
    int one = 1;

    if (recv(conn->io.fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT) != sizeof bytes) {
        if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) conn_close(node, conn);
        return;
    }
    if (kvp_frame_hdr_decode(bytes, &hdr) == KVP_OK && hdr.opcode == KVP_OP_DATA_HELLO) {
        give_to_transport(node, conn);
        return;
    }
    if (kvp_tls_is_hello(bytes, sizeof bytes)) {
        if (node->serve.handshakes != NULL)
            begin_tls(node, conn);
        else
            conn_breach(node, conn, "the peer begins TLS, and this node has no --tls-cert");
        return;
    }
    if (setsockopt(conn->io.fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one) != 0) {
        conn_close(node, conn);
        return;
    }
    ev->fn = on_conn;
    on_conn(node, ev, events);
}

/* Sets keepalive on a TCP connection. A host that vanished sends no FIN: without keepalive its attachments would
 * never end. */
static void
set_keepalive(int fd)
{
    static const int options[][3] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 30},
        {IPPROTO_TCP, TCP_KEEPINTVL, 10},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},
        {SOL_SOCKET, SO_RCVLOWAT, KVP_FRAME_HDR_BYTES},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(options); i++) {
        if (setsockopt(fd, options[i][0], options[i][1], &options[i][2], sizeof options[i][2]) != 0)
            kvp_log_debug("node", "socket option %d: %m", options[i][1]);
    }
}

/* Opens a connection; takes fd and tls. tls: a connection whose handshake has ended; NULL = not encrypted, or the
 * handshake has not begun. has_failed: the handshake failed, and the connection ends when the peer has read the reason.
 */
static void
conn_open(kvp_node_t *node, kvp_node_listener_t *l, int fd, kvp_tls_t *tls, bool has_failed)
{
    const bool is_unix = l->is_unix, has_begun = is_unix || tls != NULL || has_failed;
    kvp_node_conn_t *conn = calloc(1, sizeof *conn);

    if (conn == NULL || node->serve.conns_n >= node->conf.max_attachments + FRESH_MAX) {
        node->serve.refused++;
        free(conn);
        kvp_tls_destroy(tls);
        close(fd);
        return;
    }
    node->serve.conns_n++;
    kvp_framed_init(&conn->io);
    conn->io.in.limit = 2 * (size_t)(KVP_FRAME_HDR_BYTES + KVP_FRAME_FIRST_MAX);
    if (tls != NULL) conn->io.in.limit += 4 * KVP_TLS_RECORD_MAX; /* all decrypted bytes are moved to `in` */
    conn->io.tls = tls;
    conn->is_leaving = has_failed;
    kvp_node_att_init(&conn->att);
    kvp_list_init(&conn->link);
    kvp_list_add_tail(&node->serve.fresh, &conn->link);
    conn->listener = l;
    conn->since_ns = kvp_now_ns();
    conn->ev = (kvp_node_ev_t){.fd = fd, .fn = has_begun ? on_conn : on_first_bytes};
    if (!has_begun) set_keepalive(fd);
    if (kvp_framed_adopt(&conn->io, fd, is_unix) != KVP_OK ||
        kvp_node_watch(node, &conn->ev, has_begun ? EPOLLIN : EPOLLIN | EPOLLRDHUP) != KVP_OK)
        conn_close(node, conn);
    else if (tls != NULL || has_failed)
        on_conn(node, &conn->ev, EPOLLIN); /* frames that arrived with the last bytes of the handshake */
}

/* ---- TLS */
void
kvp_node_serve_on_handshakes(kvp_node_t *node)
{
    kvp_handshake_t ended;
    uint32_t missed;

    while (node->serve.handshakes != NULL && kvp_handshakes_take(node->serve.handshakes, &ended)) {
        conn_open(node, &node->serve.tcp, ended.fd, ended.tls, ended.err != KVP_OK);
        if (ended.err == KVP_OK) continue;
        node->serve.refused++;
        if (kvp_log_limit_ok(&node->serve.tcp.noise, &missed))
            kvp_log_warn("node", "refused a client: %s from=%s missed=%u", ended.why, ended.peer, missed);
    }
}

static void
wake_loop(void *arg)
{
    kvp_node_t *node = arg;

    kvp_epoll_wake(&node->events.epoll);
}

/* Starts the threads that run handshakes, if this process has files for TLS. */
static kvp_err_t
open_tls(kvp_node_t *node)
{
    kvp_creds_t files;
    char why[KVP_TLS_WHY_MAX];
    kvp_err_t err;

    if (!kvp_creds_tls(&files)) return KVP_OK;
    err = kvp_handshakes_start(&files, KVP_IS_NODE, wake_loop, node, &node->serve.handshakes, why);
    if (err != KVP_OK) kvp_log_error("node", "TLS: %s", why);
    return err;
}

/* ---- listeners */
static void
on_accept(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events)
{
    kvp_node_listener_t *l = kvp_container_of(ev, kvp_node_listener_t, ev);

    (void)events;
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(ev->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            conn_open(node, l, fd, NULL, false);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            /* No descriptor or memory is left: accepting pauses, or the loop would spin on the readable listener. */
            uint32_t missed;
            if (kvp_log_limit_ok(&l->noise, &missed)) kvp_log_warn("node", "cannot accept: %m");
            l->paused_until_ns = kvp_now_ns() + ACCEPT_PAUSE_NS;
            kvp_ignore(kvp_node_watch(node, ev, 0), "the set holds it already");
        }
        return;
    }
}

static kvp_err_t
listen_on(kvp_node_t *node, kvp_node_listener_t *l, int fd, bool is_unix)
{
    *l = (kvp_node_listener_t){
        .ev = {.fd = fd, .fn = on_accept}, .is_unix = is_unix, .noise = {.burst = 10, .interval_ms = 1000}};
    kvp_forkguard_add(fd);
    if (listen(fd, BACKLOG) != 0) return KVP_SYS;
    return kvp_node_watch(node, &l->ev, EPOLLIN);
}

static kvp_err_t
open_tcp(kvp_node_t *node, const kvp_hostport_t *at)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    char service[8], text[KVP_HOSTPORT_TEXT_MAX];
    int fd = -1, one = 1;

    snprintf(service, sizeof service, "%u", (unsigned)at->port);
    if (getaddrinfo(at->host, service, &hints, &list) != 0) {
        kvp_log_error("node", "cannot resolve the address to listen on: %s", at->host);
        return KVP_INVALID;
    }
    fd = socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, list->ai_addr, list->ai_addrlen) != 0 || getsockname(fd, (struct sockaddr *)&bound, &len) != 0) {
        kvp_log_error("node", "cannot listen at %s: %m%s", kvp_format_hostport(at, text), kvp_listen_fix(errno));
        freeaddrinfo(list);
        if (fd >= 0) close(fd);
        return KVP_SYS;
    }
    freeaddrinfo(list);
    node->conf.listen = *at;
    node->conf.listen.port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                               : ((struct sockaddr_in *)&bound)->sin_port);
    return listen_on(node, &node->serve.tcp, fd, false);
}

/* remove_dead_sockets removes the sockets of killed nodes. A socket is in use if it answers or its process exists. */
static void
remove_dead_sockets(const char *dir_path)
{
    DIR *dir = opendir(dir_path);
    const struct dirent *entry;

    if (dir == NULL) return;
    while ((entry = readdir(dir)) != NULL) {
        kvp_framed_t probe;
        char path[108];
        int pid;

        if (sscanf(entry->d_name, "node-%d-", &pid) != 1 || pid <= 0 || kill(pid, 0) == 0 || errno != ESRCH) continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", dir_path, entry->d_name) >= sizeof path) continue;
        kvp_framed_init(&probe);
        if (kvp_framed_connect_unix(&probe, path, 0) == KVP_UNREACHABLE && unlink(path) != 0)
            kvp_log_debug("node", "cannot remove %s: %m", path);
        kvp_framed_fini(&probe);
    }
    closedir(dir);
}

static int
bind_unix(kvp_node_t *node, struct sockaddr_un *at)
{
    char dir[sizeof at->sun_path - 32];
    int fd;

    if (kvp_runtime_dir(dir, sizeof dir) != KVP_OK) return -1;
    remove_dead_sockets(dir);
    snprintf(at->sun_path, sizeof at->sun_path, "%s/node-%d-%08x.sock", dir, (int)getpid(), (unsigned)node->epoch);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (const struct sockaddr *)at, sizeof *at) == 0 && chmod(at->sun_path, 0666) == 0)
        return fd; /* anyone may connect to the socket; the mode of the directory restricts this */
    kvp_log_warn("node", "cannot listen on %s: %m", at->sun_path);
    if (fd >= 0) close(fd);
    return -1;
}

/* Opens the Unix socket. If this fails, the node serves by TCP and clients of this host get no shared memory. */
static kvp_err_t
open_unix(kvp_node_t *node)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = bind_unix(node, &at);

    if (fd < 0) {
        kvp_log_warn("node", "no Unix socket: clients of this host get no shared memory");
        return KVP_OK;
    }
    memcpy(node->conf.unix_path, at.sun_path, sizeof node->conf.unix_path);
    return listen_on(node, &node->serve.local, fd, true);
}

static void
close_listener(kvp_node_t *node, kvp_node_listener_t *l)
{
    if (l->ev.fd < 0) return;
    kvp_node_unwatch(node, &l->ev);
    kvp_forkguard_close(l->ev.fd);
    l->ev.fd = -1;
}

kvp_err_t
kvp_node_serve_open(kvp_node_t *node, const kvp_hostport_t *at)
{
    kvp_node_listener_t tried[PORT_TRIES]; /* kept open, or the kernel would choose these unusable ports again */
    kvp_err_t err = open_tcp(node, at);
    size_t n = 0;

    /* A free port of TCP may be in use for RDMA, also by a client: RDMA connections take ports of the same range. */
    while (err == KVP_OK && at->port == 0 && n < PORT_TRIES &&
           !kvp_node_tps_is_free(node->conf.ops, node->conf.ops_n, &node->conf.listen)) {
        kvp_node_unwatch(node, &node->serve.tcp.ev);
        tried[n++] = node->serve.tcp;
        node->serve.tcp.ev.fd = -1;
        err = open_tcp(node, at);
    }
    while (n > 0)
        close_listener(node, &tried[--n]);
    if (err == KVP_OK) err = open_tls(node);
    return err != KVP_OK ? err : open_unix(node);
}

static void
close_all(kvp_node_t *node, kvp_list_t *list)
{
    while (!kvp_list_is_empty(list))
        conn_close(node, kvp_list_first(list, kvp_node_conn_t, link));
}

void
kvp_node_serve_close(kvp_node_t *node)
{
    close_listener(node, &node->serve.tcp);
    close_listener(node, &node->serve.local);
    kvp_handshakes_stop(node->serve.handshakes);
    node->serve.handshakes = NULL;
    if (node->conf.unix_path[0] != '\0') unlink(node->conf.unix_path);
    close_all(node, &node->serve.fresh);
    close_all(node, &node->serve.settled);
    while (!kvp_list_is_empty(&node->serve.procs)) {
        kvp_node_process_t *proc = kvp_list_first(&node->serve.procs, kvp_node_process_t, link);

        kvp_node_core_process_dead(node->core, &proc->core);
        kvp_node_proc_drop(node, proc);
    }
}

/* ---- timers */
static uint64_t
listener_due(const kvp_node_listener_t *l)
{
    return l->paused_until_ns == 0 ? UINT64_MAX : l->paused_until_ns;
}

uint64_t
kvp_node_serve_due(const kvp_node_t *node)
{
    uint64_t due = kvp_min_u64(listener_due(&node->serve.tcp), listener_due(&node->serve.local));

    if (kvp_list_is_empty(&node->serve.fresh)) return due;
    return kvp_min_u64(due, kvp_list_first(&node->serve.fresh, kvp_node_conn_t, link)->since_ns + HELLO_NS);
}

static void
listener_tick(kvp_node_t *node, kvp_node_listener_t *l, uint64_t now_ns)
{
    if (listener_due(l) > now_ns) return;
    l->paused_until_ns = 0;
    kvp_ignore(kvp_node_watch(node, &l->ev, EPOLLIN), "the set holds it already");
}

void
kvp_node_serve_tick(kvp_node_t *node, uint64_t now_ns)
{
    listener_tick(node, &node->serve.tcp, now_ns);
    listener_tick(node, &node->serve.local, now_ns);
    while (!kvp_list_is_empty(&node->serve.fresh)) {
        kvp_node_conn_t *conn = kvp_list_first(&node->serve.fresh, kvp_node_conn_t, link);

        if (now_ns - conn->since_ns < HELLO_NS) break;
        if (conn->is_leaving)
            conn_close(node, conn);
        else
            conn_breach(node, conn, "no Hello in time");
    }
}
