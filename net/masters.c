/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A master has up to two connections: `conn`, on which WATCH was sent, and `fresh`, which is being opened to replace
 *   `conn`. A `conn` may be dead without a sign, and stays in use until `fresh` works.
 * - All work happens in turns (poll_masters): begin the connections that are due, wait for any of the sockets, read the
 *   arrived answers. kvp_masters_find takes turns until a master leads; kvp_masters_tend takes one turn without the
 *   wait.
 * - A master answers WATCH once, when it begins to lead, and the answer becomes stale. If its term is not above the
 *   highest known term, a find asks the master again on a new connection. */
#include "net/masters.h"

#include "net/discover.h"
#include "common/waits.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WATCH_ID 2u /* request id of WATCH; not that of Hello, which is sent later on the same connection */
#define BACKOFF_FIRST_MS 20u
#define BACKOFF_DOUBLINGS 4u
#define STOOD_NS (1 * KVP_NS_PER_S) /* the end of a connection of at least this age clears failed_n of its master */
#define CONNECT_MAX_NS (1 * KVP_NS_PER_S)
#define CONNECT_NEXT_NS (300 * KVP_NS_PER_MS) /* time limit of a connection attempt if the host has more addresses */
/* a find that has run for this long replaces each connection that was opened before the find began and has no answer to
 * WATCH */
#define RENEW_NS (300 * KVP_NS_PER_MS)
/* The same for connections with TLS. It is longer, because a handshake costs a millisecond; TCP keep-alive closes a
 * dead connection within this time. */
#define RENEW_TLS_NS (5 * KVP_NS_PER_S)
#define RENEW_AGE_NS (2 * KVP_NS_PER_S) /* a connection without an answer to WATCH is not replaced before this age */
#define WHY_MAX 512u
#define NAME_POLL_NS (10 * KVP_NS_PER_MS)
#define ALIVE_IDLE_S 2
#define ALIVE_AGAIN_S 1
#define ALIVE_MAX_MS 4000

typedef struct {
    kvp_hostport_t at;
    kvp_framed_t conn; /* the connection on which WATCH was sent; fd -1 = none */
    uint64_t since_ns; /* time at which conn was opened */
    uint32_t term; /* term in which the master leads, from its answer to WATCH on conn; 0 = no answer */
    kvp_framed_t fresh; /* the new connection that is being opened; fd -1 = none */
    uint64_t fresh_ns; /* time at which the attempt to open `fresh` began */
    size_t nth, addrs_n; /* index of the host's address to try next, and number of addresses */
    uint32_t failed_n; /* failed attempts in a row */
    const char *why; /* why the last attempt failed; static text; NULL = no failure */
    char tls_why[KVP_TLS_WHY_MAX]; /* why TLS failed on the last connection; "" = no failure */
    bool is_unknown; /* the last attempt failed because the host's name does not resolve and has never resolved */
    uint64_t next_ns; /* time before which no attempt begins */
} master_t;

struct kvp_masters {
    kvp_names_t *names;
    kvp_discover_t *discover; /* asks etcd for the masters; NULL = not used; used by the finding thread only */
    pthread_mutex_t lock; /* guards the fields below; kvp_masters_find holds it until it returns */
    master_t all[KVP_MASTERS_MAX];
    size_t n; /* number of masters; changes only with discover */
    const master_t *found; /* the master that was found last; NULL = none */
    uint32_t term; /* highest term that a find or a session has seen */
    uint64_t find_ns; /* time at which the running find began; 0 = no find is running */
    char why[WHY_MAX]; /* why the last find failed; used by the finding thread only */
};

/* ---- one master */
static void
back_off(master_t *x, uint64_t now_ns)
{
    uint32_t ms = BACKOFF_FIRST_MS << kvp_min_u64(x->failed_n++, BACKOFF_DOUBLINGS);

    x->next_ns = now_ns + (ms / 2 + kvp_random_u64() % ms) * KVP_NS_PER_MS;
}

/* Forgets conn, which the caller has taken over or closed, and sets the time of the next attempt. */
static void
leave_conn(master_t *x, uint64_t now_ns)
{
    kvp_framed_init(&x->conn);
    x->term = 0;
    if (now_ns - x->since_ns >= STOOD_NS) x->failed_n = 0;
    back_off(x, now_ns);
}

static void
drop_conn(master_t *x, uint64_t now_ns)
{
    kvp_framed_fini(&x->conn);
    leave_conn(x, now_ns);
}

/* Ends a failed attempt to connect. After the host's last address follows a pause, else its next address. */
static void
fail_fresh(master_t *x, uint64_t now_ns)
{
    x->why = x->fresh.why;
    x->tls_why[0] = '\0';
    x->is_unknown = x->fresh.is_unknown;
    kvp_framed_fini(&x->fresh);
    x->next_ns = now_ns;
    if (++x->nth >= x->addrs_n) {
        x->nth = 0;
        back_off(x, now_ns);
    }
}

static void
begin_conn(master_t *x, kvp_names_t *names, uint64_t now_ns)
{
    kvp_err_t err = kvp_names_connect_begin(names, x->at.host, x->at.port, x->nth, &x->fresh, &x->addrs_n);

    x->fresh_ns = now_ns;
    if (err == KVP_EAGAIN)
        x->next_ns = now_ns + NAME_POLL_NS;
    else if (err != KVP_OK)
        fail_fresh(x, now_ns);
}

/* Turns TCP keep-alive on or off. Keep-alive closes an idle connection whose host died without a sign. A session needs
 * no keep-alive, because its heartbeat detects a dead host. */
static void
keep_alive(int fd, bool is_on)
{
    int on = is_on, idle = ALIVE_IDLE_S, again = ALIVE_AGAIN_S;
    unsigned dead_ms = is_on ? ALIVE_MAX_MS : 0;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &again, sizeof again);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
}

/* Queues WATCH. With TLS it is sent after the handshake, which the later receive calls continue. */
static kvp_err_t
ask_watch(kvp_framed_t *c)
{
    kvp_err_t err = kvp_framed_secure(c, KVP_IS_MASTER, NULL);

    kvp_pb_frame(&c->out, KVP_OP_WATCH, 0, WATCH_ID, NULL, NULL, 0);
    if (err == KVP_OK) err = kvp_framed_flush(c);
    return err == KVP_EAGAIN ? KVP_OK : err;
}

static uint64_t
fresh_until(const master_t *x)
{
    return x->fresh_ns + (x->addrs_n > 1 ? CONNECT_NEXT_NS : CONNECT_MAX_NS);
}

static void
look_at_fresh(master_t *x, bool is_ready, uint64_t now_ns)
{
    kvp_err_t err = is_ready ? kvp_framed_connect_end(&x->fresh) : KVP_EAGAIN;

    if (err == KVP_EAGAIN && now_ns < fresh_until(x)) return;
    if (err == KVP_EAGAIN) x->fresh.why = "Connection timed out";
    if (err == KVP_OK) err = ask_watch(&x->fresh);
    if (err != KVP_OK) {
        fail_fresh(x, now_ns);
        return;
    }
    keep_alive(x->fresh.fd, true);
    kvp_framed_fini(&x->conn);
    x->conn = x->fresh;
    x->since_ns = now_ns;
    x->why = NULL;
    x->is_unknown = false;
    kvp_framed_init(&x->fresh);
}

static kvp_err_t
read_watch(const kvp_frame_t *frame, uint32_t *term_out)
{
    Kvp__Pb__WatchReply *msg;
    kvp_pb_t pb;

    if (frame->hdr.opcode != KVP_OP_WATCH || (frame->hdr.flags & KVP_FRAME_REPLY) == 0) return KVP_PROTO;
    msg = kvp_pb_unpack(&pb, &kvp__pb__watch_reply__descriptor, frame);
    if (msg == NULL) return pb.err;
    *term_out = msg->term;
    kvp_pb_free(&pb, msg);
    return *term_out == 0 ? KVP_PROTO : KVP_OK;
}

/* Reads the master's answer to WATCH, or closes the connection if it has ended. */
static void
read_answers(master_t *x, uint64_t now_ns)
{
    kvp_frame_t frame;
    bool has = false;
    kvp_err_t err = kvp_framed_recv(&x->conn);

    if (err == KVP_OK) err = kvp_framed_next(&x->conn, &frame, &has);
    if (err == KVP_OK && has) err = read_watch(&frame, &x->term);
    if (x->term != 0) kvp_framed_fini(&x->fresh);
    if (err == KVP_OK || err == KVP_EAGAIN) return;
    snprintf(x->tls_why, sizeof x->tls_why, "%s", kvp_framed_tls_why(&x->conn));
    drop_conn(x, now_ns);
}

/* ---- all masters. The callers of these functions hold m->lock. */
/* Returns the time at which a new connection to master x must be begun; UINT64_MAX = not now. */
static uint64_t
begin_at(const kvp_masters_t *m, const master_t *x)
{
    if (x->conn.fd < 0) return m->find_ns != 0 || x != m->found ? x->next_ns : UINT64_MAX;
    if (x->since_ns >= m->find_ns || x->term != 0) return UINT64_MAX;
    return kvp_max_u64(x->next_ns, kvp_max_u64(m->find_ns + (x->conn.tls != NULL ? RENEW_TLS_NS : RENEW_NS),
                                               x->since_ns + RENEW_AGE_NS));
}

static void
poll_masters(kvp_masters_t *m, uint64_t until_ns)
{
    struct pollfd p[2 * KVP_MASTERS_MAX];
    uint64_t now = kvp_now_ns();

    for (size_t i = 0; i < m->n; i++) {
        master_t *x = &m->all[i];

        if (x->fresh.fd < 0 && begin_at(m, x) <= now) begin_conn(x, m->names, now);
        until_ns = kvp_min_u64(until_ns, x->fresh.fd < 0 ? begin_at(m, x) : fresh_until(x));
        p[2 * i] = (struct pollfd){.fd = x->conn.fd, .events = POLLIN};
        p[2 * i + 1] = (struct pollfd){.fd = x->fresh.fd, .events = POLLOUT};
    }
    kvp_poll_until(p, 2 * m->n, until_ns);
    now = kvp_now_ns();
    for (size_t i = 0; i < m->n; i++) {
        master_t *x = &m->all[i];

        if (p[2 * i].revents != 0) read_answers(x, now);
        if (x->fresh.fd >= 0) look_at_fresh(x, p[2 * i + 1].revents != 0, now);
    }
}

/* Returns the master that leads with the highest term above `term`; NULL = none. */
static master_t *
best_above(kvp_masters_t *m, uint32_t term)
{
    master_t *best = NULL;

    for (size_t i = 0; i < m->n; i++) {
        master_t *x = &m->all[i];

        if (x->term <= term) continue;
        term = x->term;
        best = x;
    }
    return best;
}

static bool
has_any(const kvp_masters_t *m)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->all[i].conn.fd >= 0) return true;
    return false;
}

static void
init_master(master_t *x, const kvp_hostport_t *at)
{
    *x = (master_t){.at = *at};
    kvp_framed_init(&x->conn);
    kvp_framed_init(&x->fresh);
}

static void
fini_master(master_t *x)
{
    kvp_framed_fini(&x->conn);
    kvp_framed_fini(&x->fresh);
}

/* Replaces the list of masters. Masters that are in the old list keep their connections. */
static void
replace_masters(kvp_masters_t *m, const kvp_hostport_t *at, size_t n)
{
    static const kvp_hostport_t nowhere;
    master_t was[KVP_MASTERS_MAX];
    size_t was_n = m->n;

    memcpy(was, m->all, was_n * sizeof was[0]);
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;

        while (j < was_n && (was[j].at.port != at[i].port || strcmp(was[j].at.host, at[i].host) != 0))
            j++;
        if (j == was_n) {
            init_master(&m->all[i], &at[i]);
        } else {
            m->all[i] = was[j];
            init_master(&was[j], &nowhere);
        }
    }
    for (size_t j = 0; j < was_n; j++)
        fini_master(&was[j]);
    m->n = n;
    m->found = NULL;
}

/* Asks etcd for the masters, if a question is due. Returns the next question's time; UINT64_MAX = no etcd. */
static uint64_t
look_up(kvp_masters_t *m)
{
    kvp_hostport_t at[KVP_MASTERS_MAX];
    uint64_t again_ns = UINT64_MAX;
    size_t n;

    if (m->discover != NULL && kvp_discover_step(m->discover, at, KVP_MASTERS_MAX, &n, &again_ns))
        replace_masters(m, at, n);
    return again_ns;
}

static void
begin_find(kvp_masters_t *m)
{
    m->find_ns = kvp_now_ns();
    for (size_t i = 0; i < m->n; i++) {
        master_t *x = &m->all[i];

        if (x->term != 0 && x->term <= m->term) drop_conn(x, m->find_ns);
    }
    poll_masters(m, 0); /* read all arrived bytes before the choice */
}

static void
give_out(kvp_masters_t *m, master_t *x, const _Atomic bool *is_given_up, kvp_framed_t *conn_out)
{
    keep_alive(x->conn.fd, false);
    *conn_out = x->conn;
    conn_out->is_given_up = is_given_up;
    m->found = x;
    m->term = (uint32_t)kvp_max_u64(m->term, x->term);
    leave_conn(x, kvp_now_ns());
}

/* ---- reasons of a failure */
static bool
are_unknown(const kvp_masters_t *m)
{
    for (size_t i = 0; i < m->n; i++)
        if (!m->all[i].is_unknown) return false;
    return m->discover == NULL || (m->n == 0 && kvp_discover_is_unknown(m->discover));
}

static const char *
why_unknown(const char *text, char *dst, size_t cap)
{
    snprintf(dst, cap, "the name does not resolve: %s", text);
    return dst;
}

/* Writes to m->why why no leader was found. A master whose connection is open is listed as not claiming to lead. */
static void
write_why(kvp_masters_t *m, bool is_any_there)
{
    const char *etcd = m->discover == NULL ? "" : kvp_discover_why(m->discover);
    size_t len = (size_t)snprintf(m->why, sizeof m->why, "%s%s", is_any_there ? "no master leads" : "", etcd);

    for (size_t i = 0; i < m->n && etcd[0] == '\0' && len < sizeof m->why; i++) {
        const master_t *x = &m->all[i];
        char at[KVP_HOSTPORT_TEXT_MAX], unknown[128];
        const char *why = x->conn.fd >= 0 ? "does not claim to lead" : x->why == NULL ? "no answer yet" : x->why;

        if (x->tls_why[0] != '\0') why = x->tls_why;
        if (x->conn.fd < 0 && x->is_unknown) why = why_unknown(x->why, unknown, sizeof unknown);
        len += (size_t)snprintf(m->why + len, sizeof m->why - len, "%s%s: %s", len > 0 ? "; " : "",
                                kvp_format_hostport(&x->at, at), why);
    }
}

/* ---- public functions */
static kvp_err_t
find_leader(kvp_masters_t *m, const _Atomic bool *is_given_up, uint64_t deadline_ns, kvp_framed_t *conn_out,
            const kvp_hostport_t **at_out)
{
    kvp_err_t err = KVP_EAGAIN;

    pthread_mutex_lock(&m->lock);
    begin_find(m);
    while (err == KVP_EAGAIN) {
        uint64_t now = kvp_now_ns();
        master_t *x = best_above(m, 0);

        if (x != NULL) {
            give_out(m, x, is_given_up, conn_out);
            *at_out = &x->at;
            err = KVP_OK;
        } else if (kvp_is_given_up(is_given_up)) {
            err = KVP_CLOSED;
        } else if (are_unknown(m)) {
            err = KVP_NOT_FOUND;
        } else if (now >= deadline_ns) {
            err = has_any(m) ? KVP_DEADLINE : KVP_UNREACHABLE;
        } else {
            poll_masters(m, kvp_min_u64(look_up(m), kvp_min_u64(deadline_ns, now + KVP_POLL_SLICE_NS)));
        }
    }
    if (err != KVP_OK) write_why(m, has_any(m));
    if (m->discover != NULL) kvp_discover_rest(m->discover);
    m->find_ns = 0;
    pthread_mutex_unlock(&m->lock);
    return err;
}

static kvp_err_t
connect_only(kvp_masters_t *m, const _Atomic bool *is_given_up, uint64_t deadline_ns, kvp_framed_t *conn_out)
{
    const kvp_hostport_t *at = &m->all[0].at;
    kvp_framed_t c;
    kvp_err_t err;

    kvp_framed_init(&c);
    c.is_given_up = is_given_up;
    err = kvp_names_connect(m->names, at->host, at->port, deadline_ns, &c);
    if (err == KVP_OK && (err = kvp_framed_secure(&c, KVP_IS_MASTER, NULL)) != KVP_OK) kvp_framed_fini(&c);
    if (err == KVP_OK) {
        *conn_out = c;
        return KVP_OK;
    }
    if (c.is_unknown)
        why_unknown(c.why, m->why, sizeof m->why);
    else
        snprintf(m->why, sizeof m->why, "%s", c.why != NULL && err != KVP_CLOSED ? c.why : kvp_err_text(err));
    return c.is_unknown ? KVP_NOT_FOUND : err;
}

kvp_err_t
kvp_masters_find(kvp_masters_t *m, const _Atomic bool *is_given_up, uint64_t deadline_ns, kvp_framed_t *conn_out,
                 const kvp_hostport_t **at_out)
{
    if (kvp_masters_are_several(m)) return find_leader(m, is_given_up, deadline_ns, conn_out, at_out);
    *at_out = &m->all[0].at;
    return connect_only(m, is_given_up, deadline_ns, conn_out);
}

bool
kvp_masters_is_spaced(const kvp_masters_t *m, kvp_err_t err)
{
    return kvp_masters_are_several(m) &&
           (err == KVP_UNREACHABLE || err == KVP_DEADLINE || err == KVP_NOT_LEADER || err == KVP_DISCONNECTED);
}

bool
kvp_masters_tend(kvp_masters_t *m, uint32_t term)
{
    bool is_outdated;

    if (!kvp_masters_are_several(m) || pthread_mutex_trylock(&m->lock) != 0)
        return false; /* the finding thread serves all connections */
    m->term = (uint32_t)kvp_max_u64(m->term, term);
    poll_masters(m, 0);
    is_outdated = best_above(m, m->term) != NULL; /* not a master that was found before: m->term has its term */
    pthread_mutex_unlock(&m->lock);
    return is_outdated;
}

bool
kvp_masters_are_several(const kvp_masters_t *m)
{
    return m->discover != NULL || m->n > 1;
}

const char *
kvp_masters_why(const kvp_masters_t *m)
{
    return m->why;
}

uint32_t
kvp_masters_term(kvp_masters_t *m)
{
    uint32_t term;

    pthread_mutex_lock(&m->lock);
    term = m->term;
    pthread_mutex_unlock(&m->lock);
    return term;
}

kvp_err_t
kvp_masters_create(const char *list, const char *cluster, kvp_names_t *names, kvp_masters_t **masters_out)
{
    kvp_masters_t *m = calloc(1, sizeof *m);
    kvp_hostport_t at[KVP_MASTERS_MAX];
    kvp_err_t err;

    if (m == NULL) return KVP_NOMEM;
    if (strncmp(list, KVP_ETCD_SCHEME, strlen(KVP_ETCD_SCHEME)) == 0)
        err = kvp_discover_create(list, cluster, &m->discover);
    else
        err = kvp_parse_hostports(list, at, KVP_MASTERS_MAX, &m->n) == KVP_OK ? KVP_OK : KVP_INVALID;
    if (err != KVP_OK) {
        free(m);
        return err;
    }
    for (size_t i = 0; i < m->n; i++)
        init_master(&m->all[i], &at[i]);
    m->names = names;
    pthread_mutex_init(&m->lock, NULL);
    *masters_out = m;
    return KVP_OK;
}

void
kvp_masters_destroy(kvp_masters_t *m)
{
    if (m == NULL) return;
    for (size_t i = 0; i < m->n; i++)
        fini_master(&m->all[i]);
    kvp_discover_destroy(m->discover);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
