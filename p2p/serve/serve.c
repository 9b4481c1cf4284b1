/* SPDX-License-Identifier: Apache-2.0
 * The threads of the serving side: one for control connections (epoll), and KVP_P2P_LANES for the TCP transport.
 *
 * Design notes. A connection's next request is read only when its last answer is sent and its job is complete, so a
 * client takes memory for one request and one answer. Jobs take turns, one slice each. A closed connection is freed
 * at the end of the loop's turn, because events of the same turn may still name it. */
#include "p2p/serve/conn.h"

#include "net/epoll.h"
#include "net/wake.h"
#include "transport/tcp/sock.h"
#include "common/clock.h"
#include "common/forkguard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define ACCEPTS_A_TURN 64
#define RECVS_A_TURN 8
#define HELLO_NS (5 * KVP_NS_PER_S)
/* connections over the maximum that get a BUSY answer; further connections are just closed */
#define REFUSE_SLACK 64u
#define ACCEPT_PAUSE_MS 100
#define LANE_BACK_OFF_NS (10 * KVP_NS_PER_MS)

typedef struct {
    kvp_p2p_server_t *server;
    uint32_t lane;
    pthread_t thread;
} lane_t;

struct kvp_p2p_server {
    kvp_p2p_shared_t shared;
    int tcp_fd, unix_fd; /* listening sockets; unix_fd -1: this process and its peers do not copy between processes */
    kvp_epoll_t epoll; /* epoll tags: a connection, &tcp_fd, &unix_fd, or the server itself for a watched descriptor */
    _Atomic bool is_stopping;
    bool has_thread;
    pthread_t thread;
    lane_t lanes[KVP_P2P_LANES];
    uint32_t lanes_n;
    /* the control thread alone uses all fields below */
    kvp_list_t conns, dead, jobs, waiting, hellos;
    uint32_t conns_n;
    bool is_paused; /* out of file descriptors: the listeners are not watched for a moment */
    kvp_log_limit_t noise;
};

/* ---- connections */
static void
conn_close(kvp_p2p_server_t *server, kvp_p2p_conn_t *conn)
{
    if (conn->state == KVP_P2P_CONN_CLOSED) return;
    conn->state = KVP_P2P_CONN_CLOSED;
    if (conn->io.fd >= 0) kvp_ignore(kvp_epoll_drop(&server->epoll, conn->io.fd), "it may not have been watched yet");
    kvp_framed_fini(&conn->io);
    kvp_p2p_conn_end_rdma(&server->shared, conn);
    kvp_list_del(&conn->on_jobs);
    kvp_list_del(&conn->on_hellos);
    kvp_list_del(&conn->link);
    kvp_list_add_tail(&server->dead, &conn->link);
    server->conns_n--;
}

static void
conn_breach(kvp_p2p_server_t *server, kvp_p2p_conn_t *conn, const char *why)
{
    uint32_t missed;

    if (kvp_log_limit_ok(&server->noise, &missed))
        kvp_log_warn("client", "closing a peer's connection: %s incarnation=%llx missed=%u", why,
                     (unsigned long long)conn->incarnation, missed);
    conn_close(server, conn);
}

/* Frees closed connections. A connection whose bytes a puller is still copying stays in the list. At the end of the
 * copy the puller wakes the loop, which calls this function again. */
static void
free_dead(kvp_p2p_server_t *server)
{
    kvp_list_foreach_safe (pos, tmp, &server->dead) {
        kvp_p2p_conn_t *conn = kvp_list_entry(pos, kvp_p2p_conn_t, link);

        if (!kvp_p2p_job_stop(&server->shared, &conn->job)) continue;
        kvp_p2p_job_drop(&conn->job);
        if (conn->bounce != NULL) kvp_p2p_bounce_give(&server->shared, conn->bounce, false);
        kvp_cma_close(&conn->proc);
        kvp_list_del(&conn->link);
        free(conn);
    }
}

/* wakes_with sets the number of bytes that must have arrived before the socket counts as readable. */
static bool
wakes_with(int fd, int bytes)
{
    return setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0;
}

static void
conn_open(kvp_p2p_server_t *server, int fd, bool is_unix)
{
    kvp_p2p_conn_t *conn = server->conns_n < KVP_P2P_CONNS_MAX + REFUSE_SLACK ? calloc(1, sizeof *conn) : NULL;

    if (conn == NULL) {
        close(fd);
        return;
    }
    kvp_framed_init(&conn->io);
    conn->io.in.limit = 2 * (size_t)KVP_PEER_REQUEST_MAX;
    conn->proc = (kvp_cma_proc_t){.fd = -1};
    conn->state = is_unix ? KVP_P2P_CONN_CONTROL : KVP_P2P_CONN_RAW;
    conn->is_over = server->conns_n >= KVP_P2P_CONNS_MAX;
    conn->since_ns = kvp_now_ns();
    kvp_list_init(&conn->on_jobs);
    kvp_list_add_tail(&server->conns, &conn->link);
    kvp_list_add_tail(&server->hellos, &conn->on_hellos);
    server->conns_n++;
    if (kvp_framed_adopt(&conn->io, fd, is_unix) != KVP_OK ||
        (!is_unix && (kvp_tcp_sock_setup(fd) != KVP_OK || !wakes_with(fd, KVP_FRAME_HDR_BYTES))) ||
        kvp_epoll_add(&server->epoll, fd, EPOLLIN | EPOLLRDHUP, conn) != KVP_OK)
        conn_close(server, conn);
}

/* rewatch_listeners sets the events for which the listeners are watched; 0 = none. */
static kvp_err_t
rewatch_listeners(kvp_p2p_server_t *server, uint32_t events)
{
    kvp_err_t err = kvp_epoll_change(&server->epoll, server->tcp_fd, events, &server->tcp_fd);

    if (err == KVP_OK && server->unix_fd >= 0)
        err = kvp_epoll_change(&server->epoll, server->unix_fd, events, &server->unix_fd);
    return err;
}

static void
accept_some(kvp_p2p_server_t *server, const int *listen_fd)
{
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(*listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            conn_open(server, fd, listen_fd == &server->unix_fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            uint32_t missed;

            if (kvp_log_limit_ok(&server->noise, &missed)) kvp_log_warn("client", "cannot accept a peer: %m");
            server->is_paused = rewatch_listeners(server, 0) == KVP_OK;
        }
        return;
    }
}

/* look_first looks at a connection's first bytes. A data connection goes to the transport, unread; a control
 * connection stays. Returns false if the connection was handed on or closed, or has too few bytes yet. */
static bool
look_first(kvp_p2p_server_t *server, kvp_p2p_conn_t *conn, uint32_t events)
{
    kvp_tp_t *tp = server->shared.conf.tp;
    uint8_t bytes[KVP_FRAME_HDR_BYTES];
    kvp_frame_hdr_t hdr;
    int fd = conn->io.fd;
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);

    if (n != sizeof bytes) {
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) ||
            (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0)
            conn_close(server, conn);
        return false;
    }
    if (!wakes_with(fd, 1)) {
        conn_close(server, conn);
        return false;
    }
    conn->state = KVP_P2P_CONN_CONTROL;
    if (kvp_frame_hdr_decode(bytes, &hdr) != KVP_OK || hdr.opcode != KVP_OP_DATA_HELLO) return true;
    if (kvp_epoll_drop(&server->epoll, fd) == KVP_OK) {
        conn->io.fd = -1; /* the transport owns the descriptor from now on */
        kvp_ignore(tp->ops->adopt(tp, fd), "it closes what it does not take");
    }
    conn_close(server, conn);
    return false;
}

/* answer_frame handles the requests that have arrived, until an answer cannot be sent at once or a job begins.
 * Returns false if the connection was closed. */
static bool
answer_frame(kvp_p2p_server_t *server, kvp_p2p_conn_t *conn)
{
    const char *why = "malformed frame";
    kvp_frame_t frame;
    bool has = true;

    while (has && conn->state == KVP_P2P_CONN_CONTROL && !kvp_p2p_conn_has_job(conn) &&
           kvp_framed_out_bytes(&conn->io) == 0) {
        kvp_err_t err = kvp_framed_next(&conn->io, &frame, &has);

        if (err == KVP_OK && has) err = kvp_p2p_conn_on_frame(&server->shared, conn, &frame, &why);
        if (err != KVP_OK) {
            conn_breach(server, conn, err == KVP_NOMEM ? "no memory" : why);
            return false;
        }
        err = kvp_framed_flush(&conn->io);
        if (err != KVP_OK && err != KVP_EAGAIN) {
            conn_close(server, conn);
            return false;
        }
    }
    if (kvp_p2p_conn_has_job(conn) && kvp_list_is_empty(&conn->on_jobs))
        kvp_list_add_tail(&server->jobs, &conn->on_jobs);
    return true;
}

/* Sets the epoll events of a connection: writable if an answer is queued, else readable; during a job only the peer's
 * close. */
static void
rearm_conn(kvp_p2p_server_t *server, kvp_p2p_conn_t *conn)
{
    uint32_t events = EPOLLRDHUP;

    if (kvp_framed_out_bytes(&conn->io) > 0)
        events |= EPOLLOUT;
    else if (!kvp_p2p_conn_has_job(conn))
        events |= EPOLLIN;
    if (kvp_epoll_change(&server->epoll, conn->io.fd, events, conn) != KVP_OK) conn_close(server, conn);
}

static void
on_conn(kvp_p2p_server_t *server, kvp_p2p_conn_t *conn, uint32_t events)
{
    kvp_err_t err = KVP_OK;

    if (conn->state == KVP_P2P_CONN_CLOSED) return;
    if (conn->state == KVP_P2P_CONN_RAW && !look_first(server, conn, events)) return;
    if (kvp_p2p_conn_has_job(conn)) {
        conn_close(server, conn); /* during a job the only event is the peer's close, so no one reads the answer */
        return;
    }
    if (kvp_framed_out_bytes(&conn->io) > 0) err = kvp_framed_flush(&conn->io);
    /* A peer that sends no more and does not read would wake the loop for ever, so close its connection. */
    if (err == KVP_EAGAIN && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) err = KVP_DISCONNECTED;
    if (err == KVP_OK && !answer_frame(server, conn)) return;
    for (int i = 0; i < RECVS_A_TURN && err == KVP_OK && !kvp_p2p_conn_has_job(conn); i++) {
        if (kvp_framed_out_bytes(&conn->io) > 0) break;
        if (conn->state == KVP_P2P_CONN_REFUSED) {
            /* Read and drop the peer's bytes: closing a socket with unread bytes would discard the refusal. */
            shutdown(conn->io.fd, SHUT_WR);
            kvp_buf_reset(&conn->io.in);
            conn->io.in_at = 0;
        }
        err = kvp_framed_recv(&conn->io);
        if (err == KVP_OK && !answer_frame(server, conn)) return;
    }
    if (err == KVP_LIMIT)
        conn_breach(server, conn, "request is too long");
    else if (err == KVP_OK || err == KVP_EAGAIN)
        rearm_conn(server, conn);
    else
        conn_close(server, conn);
}

/* ---- the loop */
static void
work_on_jobs(kvp_p2p_server_t *server)
{
    kvp_list_foreach_safe (pos, tmp, &server->jobs) {
        kvp_p2p_conn_t *conn = kvp_list_entry(pos, kvp_p2p_conn_t, on_jobs);

        kvp_p2p_conn_work(&server->shared, conn);
        if (kvp_p2p_conn_has_job(conn) && !conn->job.is_waiting) continue;
        kvp_list_del(&conn->on_jobs);
        if (kvp_p2p_conn_has_job(conn))
            kvp_list_add_tail(&server->waiting, &conn->on_jobs);
        else
            on_conn(server, conn, 0);
    }
}

/* Returns how long the loop may sleep. Closes connections that sent no Hello within HELLO_NS. */
static int
sleep_ms(kvp_p2p_server_t *server)
{
    uint64_t now_ns = kvp_now_ns();

    if (!kvp_list_is_empty(&server->jobs)) return 0;
    while (!kvp_list_is_empty(&server->hellos)) {
        kvp_p2p_conn_t *conn = kvp_list_first(&server->hellos, kvp_p2p_conn_t, on_hellos);
        uint64_t due_ns = conn->since_ns + HELLO_NS;

        if (due_ns > now_ns) return (int)((due_ns - now_ns) / KVP_NS_PER_MS) + 1;
        conn_close(server, conn);
    }
    return server->is_paused ? ACCEPT_PAUSE_MS : -1;
}

static void
run_turn(kvp_p2p_server_t *server)
{
    int timeout_ms = sleep_ms(server);
    uint32_t events;
    void *tag;

    if (server->is_paused && (timeout_ms < 0 || timeout_ms > ACCEPT_PAUSE_MS)) timeout_ms = ACCEPT_PAUSE_MS;
    kvp_ignore(kvp_epoll_wait(&server->epoll, timeout_ms), "what is due is seen to all the same");
    if (server->is_paused && rewatch_listeners(server, EPOLLIN) == KVP_OK) server->is_paused = false;
    while ((tag = kvp_epoll_next(&server->epoll, &events)) != NULL) {
        if (tag == &server->epoll) /* pullers' threads have copied slices for which jobs wait */
            kvp_list_splice(&server->waiting, &server->jobs);
        else if (tag == server)
            server->shared.conf.watched(server->shared.conf.watched_arg);
        else if (tag == &server->tcp_fd || tag == &server->unix_fd)
            accept_some(server, tag);
        else
            on_conn(server, tag, events);
    }
    work_on_jobs(server);
    free_dead(server);
}

static void *
control_main(void *arg)
{
    kvp_p2p_server_t *server = arg;

    while (!atomic_load(&server->is_stopping))
        run_turn(server);
    return NULL;
}

static void *
lane_main(void *arg)
{
    const lane_t *lane = arg;
    kvp_tp_t *tp = lane->server->shared.conf.tp;
    struct timespec back_off = {.tv_nsec = LANE_BACK_OFF_NS};

    while (!atomic_load(&lane->server->is_stopping))
        if (tp->ops->serve(tp, lane->lane, -1) != KVP_OK) nanosleep(&back_off, NULL);
    return NULL;
}

void
kvp_p2p_server_watch(kvp_p2p_server_t *server, int fd)
{
    kvp_ignore(kvp_epoll_add(&server->epoll, fd, EPOLLIN | EPOLLONESHOT, server),
               "it is noticed later, when it is used");
}

/* ---- start and stop */
/* Opens the Unix socket, which proves which process is at its other end. Its name is abstract, so a killed process
 * leaves no file. Without the socket every peer connects by TCP. */
static void
open_unix(kvp_p2p_server_t *server)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char *path = server->shared.unix_path;
    socklen_t len;

    if (!server->shared.conf.me->proc.is_told) return;
    snprintf(path, sizeof server->shared.unix_path, KVP_PEER_UNIX_PREFIX "%016llx",
             (unsigned long long)kvp_random_u64());
    len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    memcpy(at.sun_path + 1, path + 1, strlen(path) - 1);
    server->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (server->unix_fd >= 0 && bind(server->unix_fd, (struct sockaddr *)&at, len) == 0 &&
        listen(server->unix_fd, ACCEPTS_A_TURN) == 0)
        return;
    kvp_log_warn("client", "no Unix socket for peers of this host: %m");
    if (server->unix_fd >= 0) close(server->unix_fd);
    server->unix_fd = -1;
    path[0] = '\0';
}

static kvp_err_t
open_fds(kvp_p2p_server_t *server, uint16_t *port_out)
{
    kvp_hostport_t bound;
    kvp_err_t err = kvp_tcp_sock_listen(&server->shared.conf.listen, &server->tcp_fd, &bound);

    if (err != KVP_OK) return err;
    *port_out = bound.port;
    open_unix(server);
    kvp_forkguard_add(server->tcp_fd);
    kvp_forkguard_add(server->unix_fd);
    err = kvp_epoll_open(&server->epoll);
    if (err == KVP_OK) err = kvp_epoll_add(&server->epoll, server->tcp_fd, EPOLLIN, &server->tcp_fd);
    if (err == KVP_OK && server->unix_fd >= 0)
        err = kvp_epoll_add(&server->epoll, server->unix_fd, EPOLLIN, &server->unix_fd);
    if (err != KVP_OK) kvp_log_error("client", "cannot serve peers: %m");
    server->shared.wake_fd = server->epoll.wake_fd;
    return err;
}

static kvp_err_t
start_threads(kvp_p2p_server_t *server)
{
    kvp_err_t err = kvp_thread_start(&server->thread, "kvpool-peers", control_main, server);

    server->has_thread = err == KVP_OK;
    for (uint32_t i = 0; err == KVP_OK && i < KVP_P2P_LANES; i++) {
        server->lanes[i] = (lane_t){.server = server, .lane = i};
        err = kvp_thread_start(&server->lanes[i].thread, "kvpool-peers-d", lane_main, &server->lanes[i]);
        if (err == KVP_OK) server->lanes_n++;
    }
    return err;
}

kvp_err_t
kvp_p2p_server_start(const kvp_p2p_server_conf_t *conf, kvp_p2p_server_t **server_out, uint16_t *port_out)
{
    kvp_p2p_server_t *server = calloc(1, sizeof *server);
    kvp_err_t err;

    if (server == NULL) return KVP_NOMEM;
    server->shared.conf = *conf;
    server->tcp_fd = server->unix_fd = server->shared.wake_fd = -1;
    server->epoll = KVP_EPOLL_EMPTY;
    server->noise = (kvp_log_limit_t){.burst = 10, .interval_ms = 1000};
    pthread_mutex_init(&server->shared.notes_lock, NULL);
    kvp_bounces_init(&server->shared.bounces, KVP_P2P_BOUNCES_MAX, 1);
    kvp_list_init(&server->shared.idle_bounces);
    kvp_list_init(&server->shared.notes);
    kvp_list_init(&server->conns);
    kvp_list_init(&server->dead);
    kvp_list_init(&server->jobs);
    kvp_list_init(&server->waiting);
    kvp_list_init(&server->hellos);
    err = open_fds(server, port_out);
    if (err == KVP_OK) err = start_threads(server);
    if (err != KVP_OK) {
        kvp_p2p_server_stop(server);
        return err;
    }
    *server_out = server;
    return KVP_OK;
}

void
kvp_p2p_server_stop(kvp_p2p_server_t *server)
{
    kvp_peer_note_t *note;

    if (server == NULL) return;
    atomic_store(&server->is_stopping, true);
    if (server->has_thread) {
        kvp_epoll_wake(&server->epoll);
        server->shared.conf.tp->ops->wake(server->shared.conf.tp);
        pthread_join(server->thread, NULL);
        for (uint32_t i = 0; i < server->lanes_n; i++)
            pthread_join(server->lanes[i].thread, NULL);
    }
    kvp_p2p_pullers_stop(server->shared.conf.pullers); /* the last users of the pullers' threads have ended */
    while (!kvp_list_is_empty(&server->conns))
        conn_close(server, kvp_list_first(&server->conns, kvp_p2p_conn_t, link));
    free_dead(server);
    kvp_p2p_bounces_fini(&server->shared);
    while ((note = kvp_p2p_server_note(server)) != NULL)
        free(note);
    kvp_forkguard_close(server->tcp_fd);
    kvp_forkguard_close(server->unix_fd);
    kvp_epoll_close(&server->epoll);
    pthread_mutex_destroy(&server->shared.notes_lock);
    free(server);
}

kvp_peer_note_t *
kvp_p2p_server_note(kvp_p2p_server_t *server)
{
    kvp_peer_note_t *note = NULL;

    pthread_mutex_lock(&server->shared.notes_lock);
    if (!kvp_list_is_empty(&server->shared.notes)) {
        note = kvp_list_first(&server->shared.notes, kvp_peer_note_t, link);
        kvp_list_del(&note->link);
        server->shared.notes_n--;
    }
    pthread_mutex_unlock(&server->shared.notes_lock);
    return note;
}
