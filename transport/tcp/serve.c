/* SPDX-License-Identifier: Apache-2.0
 * The serving side of tcp: accepting, lanes, fences, quiesce. One thread of the owner runs each lane; any thread may
 * call all other functions.
 *
 * Lock order: a lane's lock, then peers_lock or the exports' lock. Callbacks run with no lock held. */
#include "transport/tcp/serve.h"

#include "transport/tcp/conn.h"
#include "transport/tcp/sock.h"
#include "common/clock.h"
#include "common/forkguard.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONNS_DEFAULT 4096u
/* this many connections over max_conns get the answer BUSY; further connections are closed without an answer */
#define REFUSE_SLACK 64u
#define HELLO_NS (5 * KVP_NS_PER_S)
#define QUIESCE_CUT_NS KVP_NS_PER_S
#define ACCEPT_PAUSE_NS (100 * KVP_NS_PER_MS)
#define ACCEPTS_A_TURN 64
/* the most yields of a lane's thread to waiters for its lock: a waiter that cannot run must not stop the lane */
#define GIVE_WAY_YIELDS 100

struct kvp_tcp_server {
    kvp_tcp_shared_t shared;
    kvp_tcp_lane_t *lanes;
    uint32_t lanes_n;
    uint32_t max_conns;
    _Atomic uint32_t next_lane;
    _Atomic int listen_fd; /* the listening socket, which lane 0 serves; -1 = none */
    /* the time when accepting goes on after a pause; 0 = no pause. Used only by lane 0's thread */
    uint64_t accept_again_ns;
};

/* One call of quiesce. Freed after every lane and the caller have passed it. */
typedef struct {
    kvp_quiesce_fn done;
    void *arg;
    _Atomic uint32_t lanes_left;
    struct quiesce_lane {
        kvp_list_t link; /* link in lane->quiesces, or in a list of passed quiesces */
        uint64_t seq; /* the lane passes this call when no entry of lane->busy has a busy_seq up to this number */
        uint64_t cut_ns;
        void *whole;
    } at[];
} quiesce_t;

/* ---- locks and life of a lane */

/* Takes the lane's lock for another thread than the lane's own. A busy lane releases its lock only for an instant, but
 * then yields to the threads that are counted in `outsiders`. */
static void
lane_enter(kvp_tcp_lane_t *lane)
{
    atomic_fetch_add(&lane->outsiders, 1);
    pthread_mutex_lock(&lane->lock);
    atomic_fetch_sub(&lane->outsiders, 1);
}

static void
lane_leave(kvp_tcp_lane_t *lane)
{
    pthread_mutex_unlock(&lane->lock);
}

static void
lane_give_way(kvp_tcp_lane_t *lane)
{
    for (int i = 0; i < GIVE_WAY_YIELDS && atomic_load(&lane->outsiders) > 0; i++)
        sched_yield();
}

static void
lane_fini(kvp_tcp_lane_t *lane)
{
    kvp_epoll_close(&lane->epoll);
    while (lane->spare != NULL) {
        kvp_tcp_work_t *w = lane->spare;
        lane->spare = w->next;
        kvp_tcp_work_free(w);
    }
    pthread_mutex_destroy(&lane->lock);
}

static void
lane_init_empty(kvp_tcp_lane_t *lane, kvp_tcp_shared_t *shared)
{
    *lane = (kvp_tcp_lane_t){.shared = shared, .epoll = KVP_EPOLL_EMPTY};
    pthread_mutex_init(&lane->lock, NULL);
    kvp_list_init(&lane->conns);
    kvp_list_init(&lane->dead);
    kvp_list_init(&lane->run);
    kvp_list_init(&lane->busy);
    kvp_list_init(&lane->hellos);
    kvp_list_init(&lane->quiesces);
}

static kvp_err_t
lane_open(kvp_tcp_lane_t *lane)
{
    kvp_err_t err = kvp_epoll_open(&lane->epoll);

    if (err != KVP_OK) kvp_log_error("transport", "cannot make a serving lane: %m");
    return err;
}

/* Frees ended connections. Called by the lane's thread, after its current events. */
static void
lane_reap(kvp_tcp_lane_t *lane)
{
    kvp_list_foreach_safe (pos, tmp, &lane->dead) {
        kvp_tcp_conn_t *conn = kvp_list_entry(pos, kvp_tcp_conn_t, on_lane);
        kvp_list_del(&conn->on_lane);
        kvp_ignore(kvp_epoll_drop(&lane->epoll, conn->fd), "it is closed in any case");
        kvp_forkguard_close(conn->fd);
        free(conn);
    }
}

/* ---- quiesce */

/* Moves the quiesce calls that this lane has passed to `fired`: no operation that had begun before the call goes on. If
 * a quiesce is overdue, first ends the connections that it waits for. */
static void
lane_pass_quiesces(kvp_tcp_lane_t *lane, uint64_t now_ns, kvp_list_t *fired)
{
    kvp_list_foreach_safe (pos, tmp, &lane->quiesces) {
        struct quiesce_lane *ql = kvp_list_entry(pos, struct quiesce_lane, link);

        while (!kvp_list_is_empty(&lane->busy)) {
            kvp_tcp_conn_t *conn = kvp_list_first(&lane->busy, kvp_tcp_conn_t, on_busy);

            if (conn->busy_seq > ql->seq) break;
            if (now_ns < ql->cut_ns) return;
            kvp_log_warn("transport", "data connection closed, it delays the reuse of memory client=%llx",
                         (unsigned long long)conn->incarnation);
            kvp_tcp_conn_kill(conn);
        }
        kvp_list_del(&ql->link);
        kvp_list_add_tail(fired, &ql->link);
    }
}

/* Counts that a lane, or the caller of quiesce, has passed. The last to pass calls done. No lock may be held. */
static void
quiesce_pass(quiesce_t *q)
{
    if (atomic_fetch_sub(&q->lanes_left, 1) != 1) return;
    q->done(q->arg);
    free(q);
}

static void
fire_quiesces(kvp_list_t *fired)
{
    kvp_list_foreach_safe (pos, tmp, fired) {
        struct quiesce_lane *ql = kvp_list_entry(pos, struct quiesce_lane, link);
        kvp_list_del(&ql->link);
        quiesce_pass(ql->whole);
    }
}

/* Ends all connections that stopped within an operation. Used if there is no memory to wait for them. */
static void
cut_busy(kvp_tcp_server_t *server)
{
    for (uint32_t i = 0; i < server->lanes_n; i++) {
        kvp_tcp_lane_t *lane = &server->lanes[i];

        lane_enter(lane);
        while (!kvp_list_is_empty(&lane->busy))
            kvp_tcp_conn_kill(kvp_list_first(&lane->busy, kvp_tcp_conn_t, on_busy));
        lane_leave(lane);
        kvp_epoll_wake(&lane->epoll);
    }
}

void
kvp_tcp_server_quiesce(kvp_tcp_server_t *server, kvp_quiesce_fn done, void *arg)
{
    quiesce_t *q = calloc(1, sizeof *q + server->lanes_n * sizeof q->at[0]);

    if (q == NULL) {
        cut_busy(server);
        done(arg);
        return;
    }
    q->done = done;
    q->arg = arg;
    atomic_init(&q->lanes_left, server->lanes_n + 1);
    for (uint32_t i = 0; i < server->lanes_n; i++) {
        kvp_tcp_lane_t *lane = &server->lanes[i];
        struct quiesce_lane *ql = &q->at[i];
        bool must_wait;

        /* This thread has the lane's lock, so no copy runs: only operations of lane->busy have begun and will go on. */
        lane_enter(lane);
        must_wait = !kvp_list_is_empty(&lane->busy);
        if (must_wait) {
            ql->whole = q;
            ql->seq = lane->seq;
            ql->cut_ns = kvp_now_ns() + QUIESCE_CUT_NS;
            kvp_list_add_tail(&lane->quiesces, &ql->link);
        }
        lane_leave(lane);
        if (must_wait)
            kvp_epoll_wake(&lane->epoll);
        else
            quiesce_pass(q);
    }
    quiesce_pass(q);
}

/* ---- accepting connections */

kvp_err_t
kvp_tcp_server_adopt(kvp_tcp_server_t *server, int fd)
{
    uint32_t conns_n = atomic_fetch_add(&server->shared.conns_n, 1);
    kvp_tcp_conn_t *conn = NULL;
    kvp_tcp_lane_t *lane;
    kvp_err_t err = KVP_BUSY;

    kvp_forkguard_add(fd);
    if (server->lanes_n == 0) {
        err = KVP_NOTSUP;
        goto fail;
    }
    if (conns_n >= server->max_conns + REFUSE_SLACK) goto fail;
    err = kvp_tcp_sock_setup(fd);
    if (err != KVP_OK) goto fail;
    conn = calloc(1, sizeof *conn);
    if (conn == NULL) {
        err = KVP_NOMEM;
        goto fail;
    }
    lane = &server->lanes[atomic_fetch_add(&server->next_lane, 1) % server->lanes_n];
    conn->lane = lane;
    conn->fd = fd;
    conn->state = KVP_TCP_CONN_HELLO;
    conn->can_send = true;
    conn->is_over = conns_n >= server->max_conns;
    conn->hello_until_ns = kvp_now_ns() + HELLO_NS;
    kvp_list_init(&conn->on_run);
    kvp_list_init(&conn->on_busy);

    lane_enter(lane);
    err = kvp_epoll_add(&lane->epoll, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, conn);
    if (err != KVP_OK) {
        lane_leave(lane);
        kvp_log_error("transport", "cannot watch a data connection: %m");
        goto fail;
    }
    kvp_list_add_tail(&lane->conns, &conn->on_lane);
    kvp_list_add_tail(&lane->hellos, &conn->on_hello);
    lane_leave(lane);
    /* Wakes the lane, which may sleep longer than the time limit of this connection's hello. */
    kvp_epoll_wake(&lane->epoll);
    return KVP_OK;
fail:
    atomic_fetch_sub(&server->shared.conns_n, 1);
    free(conn);
    kvp_forkguard_close(fd);
    return err;
}

static void
rewatch_listener(kvp_tcp_server_t *server, uint32_t events)
{
    if (kvp_epoll_change(&server->lanes[0].epoll, atomic_load(&server->listen_fd), events, server) != KVP_OK)
        kvp_log_error("transport", "cannot watch the data listener: %m");
}

kvp_err_t
kvp_tcp_server_listen(kvp_tcp_server_t *server, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
{
    int fd;
    kvp_err_t err;

    if (server->lanes_n == 0 || atomic_load(&server->listen_fd) >= 0) return KVP_INVALID;
    err = kvp_tcp_sock_listen(at, &fd, bound_out);
    if (err != KVP_OK) return err;
    kvp_forkguard_add(fd);
    atomic_store(&server->listen_fd, fd);
    if (kvp_epoll_add(&server->lanes[0].epoll, fd, EPOLLIN, server) != KVP_OK)
        kvp_log_error("transport", "cannot watch the data listener: %m");
    return KVP_OK;
}

/* Accepts waiting connections, in lane 0's thread. Pauses accepting if descriptors or memory are short, because the
 * listener would stay readable. */
static void
accept_some(kvp_tcp_server_t *server)
{
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(atomic_load(&server->listen_fd), NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            kvp_ignore(kvp_tcp_server_adopt(server, fd), "it was closed, and the peer sees that");
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        uint32_t missed;
        if (kvp_log_limit_ok(&server->shared.refused_lines, &missed))
            kvp_log_error("transport", "cannot accept data connections: %m missed=%u", missed);
        rewatch_listener(server, 0);
        server->accept_again_ns = kvp_now_ns() + ACCEPT_PAUSE_NS;
        return;
    }
}

/* ---- serving a lane */

static void
set_earlier(uint64_t *until_ns, uint64_t t_ns)
{
    if (t_ns < *until_ns) *until_ns = t_ns;
}

/* Returns how long the lane's thread may sleep, in ms. The lane's lock is held. */
static int
lane_timeout(kvp_tcp_server_t *server, kvp_tcp_lane_t *lane, int timeout_ms)
{
    uint64_t until_ns = UINT64_MAX;
    uint64_t now_ns;
    uint64_t wait_ms;

    if (!kvp_list_is_empty(&lane->run) || !kvp_list_is_empty(&lane->dead)) return 0;
    if (!kvp_list_is_empty(&lane->hellos))
        set_earlier(&until_ns, kvp_list_first(&lane->hellos, kvp_tcp_conn_t, on_hello)->hello_until_ns);
    if (!kvp_list_is_empty(&lane->quiesces))
        set_earlier(&until_ns, kvp_list_first(&lane->quiesces, struct quiesce_lane, link)->cut_ns);
    if (lane == &server->lanes[0] && server->accept_again_ns != 0) set_earlier(&until_ns, server->accept_again_ns);
    if (until_ns == UINT64_MAX) return timeout_ms;
    now_ns = kvp_now_ns();
    if (until_ns <= now_ns) return 0;
    wait_ms = (until_ns - now_ns) / KVP_NS_PER_MS + 1;
    return timeout_ms < 0 || wait_ms < (uint64_t)timeout_ms ? (int)wait_ms : timeout_ms;
}

/* Records the events of a connection and puts it on lane->run. The lane's lock is held. */
static void
lane_note_event(kvp_tcp_lane_t *lane, kvp_tcp_conn_t *conn, uint32_t events)
{
    if (conn->state == KVP_TCP_CONN_CLOSED) return;
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) conn->can_recv = true;
    if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) conn->can_send = true;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) conn->has_hup = true;
    kvp_list_del(&conn->on_run);
    kvp_list_add_tail(&lane->run, &conn->on_run);
}

/* Gives one turn to each connection that is now on lane->run. The lock is released between turns, so that a fence,
 * quiesce or dereg by another thread waits for one turn only. */
static void
lane_run_conns(kvp_tcp_lane_t *lane)
{
    kvp_list_t round;

    kvp_list_init(&round);
    pthread_mutex_lock(&lane->lock);
    kvp_list_foreach_safe (pos, tmp, &lane->run) {
        kvp_list_del(pos);
        kvp_list_add_tail(&round, pos);
    }
    while (!kvp_list_is_empty(&round)) {
        kvp_tcp_conn_t *conn = kvp_list_first(&round, kvp_tcp_conn_t, on_run);

        kvp_list_del(&conn->on_run);
        if (kvp_tcp_conn_turn(conn)) kvp_list_add_tail(&lane->run, &conn->on_run);
        pthread_mutex_unlock(&lane->lock);
        lane_give_way(lane);
        pthread_mutex_lock(&lane->lock);
    }
    pthread_mutex_unlock(&lane->lock);
}

static void
lane_end_late_hellos(kvp_tcp_lane_t *lane, uint64_t now_ns)
{
    while (!kvp_list_is_empty(&lane->hellos)) {
        kvp_tcp_conn_t *conn = kvp_list_first(&lane->hellos, kvp_tcp_conn_t, on_hello);

        if (conn->hello_until_ns > now_ns) return;
        kvp_tcp_conn_kill(conn);
    }
}

kvp_err_t
kvp_tcp_server_serve(kvp_tcp_server_t *server, uint32_t lane_i, int timeout_ms)
{
    kvp_tcp_lane_t *lane;
    kvp_list_t fired;
    bool must_accept = false;
    uint64_t now_ns;
    uint32_t events;
    void *tag;

    if (lane_i >= server->lanes_n) return KVP_INVALID;
    lane = &server->lanes[lane_i];
    kvp_list_init(&fired);
    pthread_mutex_lock(&lane->lock);
    timeout_ms = lane_timeout(server, lane, timeout_ms);
    pthread_mutex_unlock(&lane->lock);

    if (kvp_epoll_wait(&lane->epoll, timeout_ms) != KVP_OK) {
        kvp_log_error("transport", "a serving lane cannot wait: %m");
        return KVP_SYS;
    }
    pthread_mutex_lock(&lane->lock);
    while ((tag = kvp_epoll_next(&lane->epoll, &events)) != NULL) {
        if (tag == server)
            must_accept = true;
        else if (tag != &lane->epoll)
            lane_note_event(lane, tag, events);
    }
    pthread_mutex_unlock(&lane->lock);

    if (must_accept) accept_some(server);
    lane_run_conns(lane);

    now_ns = kvp_now_ns();
    if (lane_i == 0 && server->accept_again_ns != 0 && server->accept_again_ns <= now_ns) {
        server->accept_again_ns = 0;
        rewatch_listener(server, EPOLLIN);
    }
    pthread_mutex_lock(&lane->lock);
    lane_end_late_hellos(lane, now_ns);
    lane_pass_quiesces(lane, now_ns, &fired);
    lane_reap(lane);
    pthread_mutex_unlock(&lane->lock);
    fire_quiesces(&fired);
    return KVP_OK;
}

void
kvp_tcp_server_wake(kvp_tcp_server_t *server)
{
    for (uint32_t i = 0; i < server->lanes_n; i++)
        kvp_epoll_wake(&server->lanes[i].epoll);
}

/* ---- fences, and deregistering memory */

/* Ends the connections of the incarnations in `dead` (above < incarnation <= last), and of all below live_min. */
static void
end_conns(kvp_tcp_server_t *server, kvp_idrange_t dead, uint64_t live_min)
{
    for (uint32_t i = 0; i < server->lanes_n; i++) {
        kvp_tcp_lane_t *lane = &server->lanes[i];

        lane_enter(lane);
        kvp_list_foreach_safe (pos, tmp, &lane->conns) {
            kvp_tcp_conn_t *conn = kvp_list_entry(pos, kvp_tcp_conn_t, on_lane);
            bool is_dead = dead.above < conn->incarnation && conn->incarnation <= dead.last;
            if (conn->incarnation != 0 && (is_dead || conn->incarnation < live_min)) kvp_tcp_conn_kill(conn);
        }
        lane_leave(lane);
        kvp_epoll_wake(&lane->epoll);
    }
}

void
kvp_tcp_server_fence(kvp_tcp_server_t *server, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done, void *arg)
{
    /* Add to the fenced set first: then a concurrent hello is refused, or end_conns finds its connection. */
    pthread_mutex_lock(&server->shared.peers_lock);
    kvp_idset_add(&server->shared.fenced, dead, live_min);
    pthread_mutex_unlock(&server->shared.peers_lock);
    end_conns(server, dead, live_min);
    done(arg, dead.last);
}

void
kvp_tcp_server_cut(kvp_tcp_server_t *server, uint64_t incarnation)
{
    end_conns(server, kvp_idrange_one(incarnation), 0);
}

kvp_exports_t *
kvp_tcp_server_exports(kvp_tcp_server_t *server)
{
    return &server->shared.exports;
}

void
kvp_tcp_server_forget(kvp_tcp_server_t *server, const kvp_mr_t *mr)
{
    for (uint32_t i = 0; i < server->lanes_n; i++) {
        kvp_tcp_lane_t *lane = &server->lanes[i];
        bool has_killed = false;

        lane_enter(lane);
        kvp_list_foreach_safe (pos, tmp, &lane->conns) {
            kvp_tcp_conn_t *conn = kvp_list_entry(pos, kvp_tcp_conn_t, on_lane);
            if (!kvp_tcp_conn_uses(conn, mr)) continue;
            kvp_tcp_conn_kill(conn);
            has_killed = true;
        }
        lane_leave(lane);
        if (has_killed) kvp_epoll_wake(&lane->epoll);
    }
}

/* ---- creating and destroying the server */

kvp_err_t
kvp_tcp_server_create(const kvp_tp_conf_t *conf, kvp_tcp_server_t **server_out)
{
    kvp_tcp_server_t *server = calloc(1, sizeof *server);
    kvp_err_t err;

    if (server == NULL) return KVP_NOMEM;
    server->listen_fd = -1;
    server->max_conns = conf->max_conns == 0 ? MAX_CONNS_DEFAULT : conf->max_conns;
    server->shared.refused_lines = (kvp_log_limit_t){.burst = 5, .interval_ms = 10000};
    memcpy(server->shared.pool_id, conf->pool_id, sizeof server->shared.pool_id);
    server->shared.served = conf->served;
    pthread_mutex_init(&server->shared.peers_lock, NULL);
    err = kvp_exports_init(&server->shared.exports);
    if (err != KVP_OK) goto fail;
    if (conf->lanes > 0) {
        server->lanes = calloc(conf->lanes, sizeof *server->lanes);
        if (server->lanes == NULL) {
            err = KVP_NOMEM;
            goto fail;
        }
    }
    for (; server->lanes_n < conf->lanes; server->lanes_n++)
        lane_init_empty(&server->lanes[server->lanes_n], &server->shared);
    for (uint32_t i = 0; i < server->lanes_n; i++) {
        err = lane_open(&server->lanes[i]);
        if (err != KVP_OK) goto fail;
    }
    *server_out = server;
    return KVP_OK;
fail:
    kvp_tcp_server_destroy(server);
    return err;
}

void
kvp_tcp_server_destroy(kvp_tcp_server_t *server)
{
    kvp_list_t fired;

    if (server == NULL) return;
    kvp_forkguard_close(atomic_load(&server->listen_fd));
    kvp_list_init(&fired);
    for (uint32_t i = 0; i < server->lanes_n; i++) {
        kvp_tcp_lane_t *lane = &server->lanes[i];

        pthread_mutex_lock(&lane->lock);
        kvp_list_foreach_safe (pos, tmp, &lane->conns)
            kvp_tcp_conn_kill(kvp_list_entry(pos, kvp_tcp_conn_t, on_lane));
        lane_pass_quiesces(lane, 0, &fired);
        lane_reap(lane);
        pthread_mutex_unlock(&lane->lock);
    }
    fire_quiesces(&fired);
    for (uint32_t i = 0; i < server->lanes_n; i++)
        lane_fini(&server->lanes[i]);
    free(server->lanes);
    kvp_exports_fini(&server->shared.exports);
    kvp_idset_fini(&server->shared.fenced);
    pthread_mutex_destroy(&server->shared.peers_lock);
    free(server);
}
