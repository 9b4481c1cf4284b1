/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A link (connection and peers) belongs to one incarnation. Users hold references to it. A dead link is lost and
 *   does not linger. When only views hold a dead link, no transfer of the incarnation is running, because views store
 *   nothing: then the link's nodes get drain notices (rule 4, client/control/drain_notices.h). After the last release
 *   the link is destroyed. The background thread does both, because unmapping is slow.
 * - A link whose master closed the connection lingers for the grace period of its location lease: reads from cached
 *   locations continue through the link, until a new session exists or the grace period ends.
 * - A caller without a connection opens one within its deadline, or the background thread does. One thread connects
 *   at a time; other threads wait for the outcome. All threads share a back-off between attempts, and between
 *   sessions that do not last, because a master may accept every connection and drop it at the first question.
 * - With several masters, the session also checks during a connection whether another master leads (net/masters.h).
 *   The background thread does so, and, since it may wait for a silent master, each thread that waits for an answer.
 * - With master_wait_ns callers share one wait for each loss of a lasting session (kvp_session_hold_soon). With
 *   several masters the wait is 10 s at least, and each loss has its own wait. After the wait only the background
 *   thread, and callers without this limit, look for a master. If the connection stands and the master is silent,
 *   each call waits by itself (kvp_conn_call_soon); only a failed heartbeat ends the session.
 *
 * Lock order of the whole library: session->lock; peers->lock; peer->lock; masters' lock, names' lock; then the
 * leaves, never nested: conn->lock, conn->out_lock, scratch pool, bounce buffers, regs->idle_lock, the lock of the
 * drain notices, the lock of the held tickets. No thread keeps a lock during a call to a master or node. Threads: the
 * callers', and one of the library for each handle ("kvpool-session"); an embedded node has its own threads. */
#include "client/control/session.h"

#include "client/control/drain_notices.h"
#include "net/masters.h"
#include "common/waits.h"
#include "net/wake.h"
#include "transport/all/registry.h"
#include "common/forkguard.h"
#include "common/log.h"
#include "common/thread.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#define BACKOFF_FIRST_MS 20u
#define BACKOFF_DOUBLINGS 5u
#define RETRY_MAX_MS 200u /* longest pause between attempts to connect if calls do not wait (master_wait_ns > 0) */
#define LASTING_NS (2 * KVP_NS_PER_S) /* a session that lasted this long resets the count of lost sessions */
#define CONNECT_MAX_NS (1 * KVP_NS_PER_S) /* time limit of one attempt to connect to a master */
/* The same for connections with TLS. It is longer, because an attempt that ends early wastes a handshake when many
 * clients connect at once. */
#define HELLO_TLS_MAX_NS (3 * KVP_NS_PER_S)
#define SEVERAL_WAIT_NS (10 * KVP_NS_PER_S) /* least wait of calls for a new leader if there are several masters */
/* time limit for drain notices between two heartbeats; after 1250 ms of silence a client loses the keys of its
 * running puts */
#define PAY_MAX_NS (100 * KVP_NS_PER_MS)
#define BEATS_A_LEASE 3u
#define BEATS_OF_WRITERS 4u /* heartbeats in one regular interval while a put is running (PROTOCOL "Sessions") */
#define REVOKED_BEAT_MS 10u
#define NOMEM_BEAT_MS 10u
#define USED_MAX KVP_PLACES_MAX /* most objects whose reads one USED message reports */
#define FAREWELL_MAX_NS (300 * KVP_NS_PER_MS)

struct kvp_mastersession {
    kvp_session_conf_t conf; /* the configuration; its strings are owned */
    kvp_masters_t *masters;

    pthread_t thread;
    bool has_thread; /* the background thread runs; guarded by lock */
    int stop_fd; /* becomes readable when is_stopping is set */
    _Atomic bool is_stopping; /* the session is being stopped; set under lock */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* signals a change of link, is_connecting or is_stopping */
    pthread_cond_t work; /* wakes the background thread: a new, lost or dead link, is_beat_due, is_stopping */
    kvp_link_t *link; /* the current link, NULL = none; lock guards it and all fields below */
    kvp_link_t *lingering; /* the previous link, while its cached locations may be read; NULL = none */
    bool is_beat_due; /* the background thread must send a heartbeat before the regular time */
    kvp_list_t dead; /* lost links that are not destroyed yet */
    bool is_connecting;
    uint64_t next_try_ns;
    uint32_t failed_n; /* failed attempts to connect in a row */
    uint32_t lost_n; /* sessions lost in a row since the last lasting session */
    uint64_t connected_ns; /* time at which the last session began */
    uint64_t soon_until_ns; /* end of kvp_session_hold_soon's shared wait; 0 = no wait since the last lasting session */
    uint64_t last_incarnation;
    kvp_err_t last_err; /* error of the last attempt; NOT_FOUND = no master's name has ever resolved to an address */
    char why[KVP_SESSION_WHY_MAX]; /* reason of the last failed attempt, for people */

    _Atomic uint32_t writers; /* number of running batches of puts */
};

/* ---- links */
static void
link_destroy(kvp_link_t *link)
{
    if (link == NULL) return;
    kvp_locations_destroy(link->locs);
    kvp_peers_destroy(link->peers);
    kvp_conn_destroy(link->conn);
    free(link);
}

static kvp_err_t
link_create(kvp_mastersession_t *s, kvp_conn_t *conn, kvp_link_t **link_out)
{
    kvp_link_t *link = calloc(1, sizeof *link);
    kvp_err_t err;

    if (link == NULL) {
        kvp_conn_destroy(conn);
        return KVP_NOMEM;
    }
    link->conn = conn;
    link->refs = 1; /* the reference of the session itself */
    kvp_list_init(&link->link);
    err = kvp_peers_create(&s->conf.peers, conn, &link->peers);
    if (err == KVP_OK && s->conf.locations > 0) err = kvp_locations_create(s->conf.locations, &link->locs);
    if (err != KVP_OK) {
        link_destroy(link);
        return err;
    }
    *link_out = link;
    return KVP_OK;
}

static void
unref_locked(kvp_mastersession_t *s, kvp_link_t *link)
{
    if (atomic_fetch_sub(&link->refs, 1) == 1) pthread_cond_signal(&s->work);
}

void
kvp_session_rele(kvp_mastersession_t *s, kvp_link_t *link)
{
    uint32_t refs = atomic_load_explicit(&link->refs, memory_order_relaxed);

    /* The last reference is released under the lock, so that the background thread does not free the link while this
     * call uses it. */
    while (refs > 1)
        if (atomic_compare_exchange_weak(&link->refs, &refs, refs - 1)) return;
    pthread_mutex_lock(&s->lock);
    unref_locked(s, link);
    pthread_mutex_unlock(&s->lock);
}

void
kvp_session_rest(kvp_link_t *link)
{
    atomic_fetch_add(&link->views, 1);
}

void
kvp_session_rele_view(kvp_mastersession_t *s, kvp_link_t *link)
{
    /* Lower views before refs, so that a view is never counted in views without its reference. */
    atomic_fetch_sub(&link->views, 1);
    kvp_session_rele(s, link);
}

/* ---- connecting to a master */
/* Ends the session if another master leads. A stopped or isolated master is silent on an open connection while
 * another master already leads. Threads that wait for the master's answer also call this function. */
static void
look_after_masters(void *arg, kvp_conn_t *conn)
{
    kvp_mastersession_t *s = arg;

    if (kvp_conn_is_broken(conn) || !kvp_masters_tend(s->masters, kvp_conn_hello(conn)->term)) return;
    kvp_log_info("client", "another master leads now, disconnecting from the master of term %u",
                 kvp_conn_hello(conn)->term);
    kvp_conn_break(conn);
}

/* Sends Hello on a new connection and makes a link from it. Takes over the connection. */
static kvp_err_t
say_hello(kvp_mastersession_t *s, kvp_framed_t *framed, uint64_t incarnation, uint64_t deadline_ns, char *detail,
          size_t cap, kvp_link_t **link_out)
{
    kvp_hello_ask_t ask = {
        .name = s->conf.peers.name,
        .host_id = s->conf.peers.host_id,
        .tenant = s->conf.peers.tenant,
        .incarnation = incarnation,
        .is_state_only = s->conf.is_state_only,
        .is_probe = s->conf.is_probe,
        .pidfd = -1,
    };
    kvp_conn_t *conn = NULL;
    kvp_err_t err;

    deadline_ns = kvp_min_u64(deadline_ns, kvp_now_ns() + (framed->tls != NULL ? HELLO_TLS_MAX_NS : CONNECT_MAX_NS));
    err = kvp_conn_open(framed, &ask, deadline_ns, detail, cap, &conn);
    if (err != KVP_OK) return err;
    if (kvp_masters_are_several(s->masters)) kvp_conn_watch(conn, look_after_masters, s);
    return link_create(s, conn, link_out);
}

/* Finds the leading master and opens a session with it. If a master loses the lead before its answer to Hello, the
 * search goes on. why is a buffer of KVP_SESSION_WHY_MAX bytes for the reason of a failure. */
static kvp_err_t
connect_any(kvp_mastersession_t *s, uint64_t incarnation, uint64_t deadline_ns, char *why, kvp_link_t **link_out)
{
    bool are_several = kvp_masters_are_several(s->masters);
    const kvp_hostport_t *at;
    char text[KVP_HOSTPORT_TEXT_MAX], detail[320] = "";
    kvp_err_t err;

    do {
        uint64_t find_ns = are_several ? deadline_ns : kvp_min_u64(deadline_ns, kvp_now_ns() + CONNECT_MAX_NS);
        kvp_framed_t framed;

        at = NULL;
        err = kvp_masters_find(s->masters, &s->is_stopping, find_ns, &framed, &at);
        if (err != KVP_OK) snprintf(detail, sizeof detail, "%s", kvp_masters_why(s->masters));
        if (err == KVP_OK) err = say_hello(s, &framed, incarnation, deadline_ns, detail, sizeof detail, link_out);
    } while (kvp_masters_is_spaced(s->masters, err) && kvp_now_ns() < deadline_ns && !s->is_stopping);
    snprintf(why, KVP_SESSION_WHY_MAX, "no session with master %s: %s",
             at == NULL ? s->conf.masters : kvp_format_hostport(at, text),
             detail[0] != '\0' ? detail : kvp_err_text(err));
    if (err == KVP_OK)
        kvp_log_debug("client", "connected master=%s incarnation=%llu unix=%d", kvp_format_hostport(at, text),
                      (unsigned long long)kvp_conn_hello((*link_out)->conn)->incarnation,
                      kvp_conn_is_unix((*link_out)->conn));
    else if (incarnation != 0 && s->last_err == KVP_OK &&
             err != KVP_CLOSED) /* log only the first failure to connect after a success, not its repetitions */
        kvp_log_warn("client", "%s", why);
    return err;
}

/* Ends the lease of the lingering link and drops the session's reference to the link: cached locations of the old
 * session may not be used any more. */
static void
end_lingering_locked(kvp_mastersession_t *s)
{
    kvp_link_t *link = s->lingering;

    if (link == NULL) return;
    if (link->locs != NULL) kvp_locations_end(link->locs);
    s->lingering = NULL;
    unref_locked(s, link);
}

/* Returns the pause after the nth failure in a row, counted from 0. */
static uint64_t
pause_ns(const kvp_mastersession_t *s, uint32_t nth)
{
    uint32_t ms = BACKOFF_FIRST_MS << (nth < BACKOFF_DOUBLINGS ? nth : BACKOFF_DOUBLINGS);
    uint64_t pause_ms = ms / 2 + kvp_random_u64() % ms;

    if (s->conf.master_wait_ns > 0) pause_ms = kvp_min_u64(pause_ms, RETRY_MAX_MS);
    return pause_ms * KVP_NS_PER_MS;
}

/* Makes one attempt to open a session. The caller holds s->lock; the function releases it during the attempt. */
static void
reconnect_locked(kvp_mastersession_t *s, uint64_t deadline_ns)
{
    uint64_t incarnation = s->last_incarnation;
    char why[KVP_SESSION_WHY_MAX];
    kvp_link_t *link = NULL;
    kvp_err_t err;

    s->is_connecting = true;
    pthread_mutex_unlock(&s->lock);
    err = connect_any(s, incarnation, deadline_ns, why, &link);
    pthread_mutex_lock(&s->lock);
    s->is_connecting = false;
    memcpy(s->why, why, sizeof s->why);
    s->last_err = err;
    if (err == KVP_OK) {
        s->link = link;
        end_lingering_locked(s);
        s->last_incarnation = kvp_conn_hello(link->conn)->incarnation;
        s->connected_ns = kvp_now_ns();
        s->failed_n = 0;
        kvp_count(&s->conf.peers.counters->connects, 1);
    } else {
        /* the search among several masters spaces its own connections, so it needs no growing pause */
        s->next_try_ns = kvp_now_ns() + pause_ns(s, kvp_masters_is_spaced(s->masters, err) ? 0 : s->failed_n++);
    }
    pthread_cond_broadcast(&s->changed);
    pthread_cond_signal(&s->work); /* a new link needs heartbeats and drain notices */
}

static void
drop_broken_locked(kvp_mastersession_t *s)
{
    kvp_link_t *link = s->link;

    if (link == NULL || !kvp_conn_is_broken(link->conn)) return;
    if (!s->is_stopping) kvp_log_info("client", "the session with the master is lost, opening a new one");
    s->link = NULL;
    if (kvp_now_ns() - s->connected_ns >= LASTING_NS) s->lost_n = 0;
    if (s->lost_n == 0 || kvp_masters_are_several(s->masters)) s->soon_until_ns = 0;
    if (kvp_conn_is_silent(link->conn)) s->soon_until_ns = kvp_now_ns(); /* no shared wait: a caller has waited */
    s->next_try_ns = s->lost_n == 0 ? 0 : kvp_now_ns() + pause_ns(s, s->lost_n - 1);
    s->lost_n++;
    pthread_cond_signal(&s->work);
    end_lingering_locked(s);
    s->lingering = link;
    kvp_list_add_tail(&s->dead, &link->link);
    if (link->locs == NULL || !kvp_conn_was_ended(link->conn))
        end_lingering_locked(s);
    else
        kvp_locations_orphan(link->locs, kvp_boot_ns());
}

/* Returns the longest wait of kvp_session_hold_soon. With several masters the wait is 10 s at least, because another
 * master leads soon after a loss, and no call may fail in a planned switch of leaders. */
uint64_t
kvp_session_master_wait(const kvp_mastersession_t *s)
{
    const uint64_t ns = s->conf.master_wait_ns;

    return ns > 0 && kvp_masters_are_several(s->masters) ? kvp_max_u64(ns, SEVERAL_WAIT_NS) : ns;
}

/* Converts the error of the last attempt to the error of a call that got no session. */
static kvp_err_t
call_err(kvp_err_t err)
{
    const bool is_told = err == KVP_VERSION || err == KVP_DENIED || err == KVP_EXPIRED;

    return is_told || err == KVP_NOMEM || err == KVP_INVALID ? err : KVP_UNREACHABLE;
}

static kvp_err_t
hold_link(kvp_mastersession_t *s, uint64_t deadline_ns, bool is_soon, kvp_link_t **link_out)
{
    kvp_err_t err;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        uint64_t now;

        drop_broken_locked(s);
        err = s->is_stopping ? KVP_CLOSED : KVP_OK;
        if (err != KVP_OK || s->link != NULL) break;
        now = kvp_now_ns();
        if (is_soon && s->soon_until_ns == 0) s->soon_until_ns = now + kvp_session_master_wait(s);
        if (is_soon) deadline_ns = kvp_min_u64(deadline_ns, s->soon_until_ns);
        err = call_err(s->last_err);
        if (now >= deadline_ns) break;
        if (s->last_incarnation == 0 && (err == KVP_VERSION || s->last_err == KVP_NOT_FOUND)) break;
        /* The only configured address is that of a standby. The standby names the leader, but the caller must configure
         * the leader's address. */
        if (s->last_incarnation == 0 && s->last_err == KVP_NOT_LEADER && strstr(s->why, "does not lead; ") != NULL)
            break;
        if (err == KVP_DENIED || err == KVP_EXPIRED ||
            err == KVP_INVALID) { /* the call does not wait; the background thread tries again */
            if (now < s->next_try_ns || s->is_connecting) break;
        }
        if (s->is_connecting)
            kvp_cond_wait_until(&s->changed, &s->lock, deadline_ns);
        else if (now < s->next_try_ns)
            kvp_cond_wait_until(&s->changed, &s->lock, kvp_min_u64(deadline_ns, s->next_try_ns));
        else
            reconnect_locked(s, deadline_ns);
    }
    if (err == KVP_OK) {
        atomic_fetch_add_explicit(&s->link->refs, 1, memory_order_relaxed);
        *link_out = s->link;
    }
    pthread_mutex_unlock(&s->lock);
    return err;
}

kvp_err_t
kvp_session_hold(kvp_mastersession_t *s, uint64_t deadline_ns, kvp_link_t **link_out)
{
    return hold_link(s, deadline_ns, false, link_out);
}

kvp_err_t
kvp_session_hold_soon(kvp_mastersession_t *s, uint64_t deadline_ns, kvp_link_t **link_out)
{
    kvp_link_t *link;
    kvp_err_t err = hold_link(s, deadline_ns, s->conf.master_wait_ns > 0, &link);

    if (err == KVP_OK && kvp_conn_is_silent(link->conn)) {
        kvp_session_rele(s, link);
        err = KVP_UNREACHABLE;
    }
    if (err == KVP_OK) *link_out = link;
    return err;
}

kvp_link_t *
kvp_session_hold_known(kvp_mastersession_t *s)
{
    kvp_link_t *link;

    if (s->conf.locations == 0) return NULL;
    pthread_mutex_lock(&s->lock);
    drop_broken_locked(s);
    link = s->link != NULL ? s->link : s->lingering;
    if (s->is_stopping || link == NULL || kvp_locations_until(link->locs) <= kvp_boot_ns()) link = NULL;
    if (link != NULL) atomic_fetch_add_explicit(&link->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&s->lock);
    return link;
}

void
kvp_session_want_lease(kvp_mastersession_t *s, kvp_link_t *link)
{
    if (link->locs == NULL || kvp_locations_until(link->locs) > kvp_boot_ns()) return;
    pthread_mutex_lock(&s->lock);
    s->is_beat_due = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void
kvp_session_why(kvp_mastersession_t *s, char *text, size_t cap)
{
    pthread_mutex_lock(&s->lock);
    snprintf(text, cap, "%s", s->why);
    pthread_mutex_unlock(&s->lock);
}

kvp_err_t
kvp_session_sleep(kvp_mastersession_t *s, uint64_t until_ns)
{
    kvp_err_t err;

    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping && kvp_now_ns() < until_ns)
        kvp_cond_wait_until(&s->changed, &s->lock, until_ns);
    err = s->is_stopping ? KVP_CLOSED : KVP_OK;
    pthread_mutex_unlock(&s->lock);
    return err;
}

void
kvp_session_write_begin(kvp_mastersession_t *s)
{
    atomic_fetch_add_explicit(&s->writers, 1, memory_order_relaxed);
}

void
kvp_session_write_end(kvp_mastersession_t *s)
{
    atomic_fetch_sub_explicit(&s->writers, 1, memory_order_relaxed);
}

/* ---- the background thread */
static kvp_err_t
read_revoked(const kvp_frame_t *frame, const Kvp__Pb__HeartbeatReply *msg, kvp_locations_news_t *news)
{
    kvp_rd_t rd;

    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    news->revoked_n = msg->n;
    news->revoked = kvp_rd_array(&rd, msg->n, sizeof *news->revoked);
    if (rd.is_bad || msg->n > KVP_REVOKED_MAX) return KVP_PROTO;
    news->lease_ms = msg->lease_ms;
    news->grace_ms = msg->grace_ms;
    news->seq = msg->revoke_seq;
    news->is_drop_all = msg->drop_all;
    return KVP_OK;
}

/* Decodes the answer to a heartbeat. news->revoked points into the frame. */
static kvp_err_t
read_heartbeat(const kvp_frame_t *frame, uint32_t term, kvp_locations_news_t *news)
{
    Kvp__Pb__HeartbeatReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__heartbeat_reply__descriptor, frame);
    if (msg == NULL) return pb.err;
    err = msg->err;
    if (err == KVP_OK && msg->term != term) err = KVP_STALE_TERM;
    if (err == KVP_OK) err = read_revoked(frame, msg, news);
    kvp_pb_free(&pb, msg);
    return err;
}

/* Returns the time until the next heartbeat, which renews the lease. After a revocation the next heartbeat comes at
 * once, because it confirms the revocation, and another client's removal may wait for the confirmation. */
static uint64_t
next_beat_in(const kvp_hello_reply_t *hello, const kvp_locations_news_t *news, bool wants_lease)
{
    uint64_t ms = hello->heartbeat_ms;

    if (wants_lease && news->lease_ms > 0) ms = kvp_min_u64(ms, news->lease_ms / BEATS_A_LEASE);
    if (wants_lease && (news->revoked_n > 0 || news->is_drop_all)) ms = kvp_min_u64(ms, REVOKED_BEAT_MS);
    return kvp_max_u64(ms, 1) * KVP_NS_PER_MS;
}

void
kvp_session_queue_used(kvp_link_t *link)
{
    Kvp__Pb__Used msg = KVP__PB__USED__INIT;
    kvp_wire_used_t used[USED_MAX];
    kvp_buf_t frame;

    if (link->locs == NULL || !kvp_locations_has_used(link->locs)) return;
    msg.n = kvp_locations_take_used(link->locs, used, USED_MAX);
    if (msg.n == 0) return;
    kvp_buf_init(&frame, 0);
    kvp_pb_frame(&frame, KVP_OP_USED, KVP_FRAME_ONEWAY, 0, &msg.base, used, msg.n * sizeof used[0]);
    kvp_conn_queue(link->conn, &frame);
    kvp_buf_fini(&frame);
}

/* Sends one heartbeat. A master that did not answer for the lifetime of a session has ended the session, so this
 * function then breaks the connection. Returns the time until the next heartbeat. */
static uint64_t
send_heartbeat(const kvp_mastersession_t *s, kvp_link_t *link)
{
    bool wants_lease = link->locs != NULL && kvp_locations_count(link->locs) > 0;
    kvp_locations_news_t news = {.asked_ns = kvp_boot_ns()};
    const kvp_hello_reply_t *hello = kvp_conn_hello(link->conn);
    Kvp__Pb__Heartbeat msg = KVP__PB__HEARTBEAT__INIT;
    kvp_buf_t frame, reply;
    kvp_frame_t answer;
    kvp_err_t err;

    kvp_buf_init(&frame, 0);
    kvp_buf_init(&reply, 0);
    msg.incarnation = hello->incarnation;
    msg.term = hello->term;
    msg.wants_lease = wants_lease;
    if (link->locs != NULL) msg.revoke_seq = kvp_locations_seq(link->locs);
    kvp_session_queue_used(link);
    kvp_pb_frame(&frame, KVP_OP_HEARTBEAT, 0, 0, &msg.base, NULL, 0);
    err = kvp_conn_call(link->conn, &frame, kvp_now_ns() + hello->session_ttl_ms * KVP_NS_PER_MS, &reply, &answer);
    if (err == KVP_OK) err = read_heartbeat(&answer, hello->term, &news);
    if (err == KVP_NOT_LEADER && s->conf.is_state_only) err = KVP_OK; /* a standby's answer is a sign of life */
    /* Without a lease the answer contains no revocations. A location may have been cached since the heartbeat was
     * sent, so the answer must not be applied. */
    if (err == KVP_OK && wants_lease) kvp_locations_apply(link->locs, &news);
    kvp_buf_fini(&frame);
    kvp_buf_fini(&reply);
    if (err == KVP_OK) return next_beat_in(hello, &news, wants_lease);
    if (err == KVP_CLOSED) return hello->heartbeat_ms * KVP_NS_PER_MS;
    /* Without memory for the answer, ask again soon. The master repeats the answer's revocations, because this client
     * has not confirmed them. */
    if (err == KVP_NOMEM) return NOMEM_BEAT_MS * KVP_NS_PER_MS;
    if (err != KVP_DISCONNECTED) kvp_log_warn("client", "heartbeat failed error=%s", kvp_err_name(err));
    kvp_conn_break(link->conn);
    return 0;
}

/* Returns a dead link that needs work: no thread holds the link any more, or only views hold it and its drain notices
 * are not sent yet. */
static kvp_link_t *
next_dead_locked(const kvp_mastersession_t *s)
{
    kvp_list_foreach (pos, &s->dead) {
        kvp_link_t *link = kvp_list_entry(pos, kvp_link_t, link);
        /* Read refs before views, so that a view that begins or ends in between does not hide the reference of
         * another user. */
        uint32_t refs = atomic_load(&link->refs);
        uint32_t views = atomic_load(&link->views);

        if (link != s->lingering && (refs == 0 || (refs == views && !link->has_sent_notices))) return link;
    }
    return NULL;
}

/* Works on one dead link only, so that heartbeats of the next session go on in between. The caller holds s->lock; the
 * function releases it during the work. */
static void
tend_dead_locked(kvp_mastersession_t *s)
{
    kvp_link_t *link = next_dead_locked(s);
    bool is_over;

    if (link == NULL) return;
    is_over = link->refs == 0;
    if (is_over) kvp_list_del(&link->link);
    pthread_mutex_unlock(&s->lock);
    if (!link->has_sent_notices) {
        kvp_drain_notices_send(link->peers, kvp_now_ns() + PAY_MAX_NS);
        kvp_peers_let_go(link->peers); /* only the attachments of views stay */
    }
    link->has_sent_notices = true;
    if (is_over) link_destroy(link);
    pthread_mutex_lock(&s->lock);
}

/* Times of the background thread. The thread polls for running puts every writers_ns, because a wake-up for each put
 * would cost more than the put. */
typedef struct {
    uint64_t last_ns; /* time of the last heartbeat */
    uint64_t next_ns;
    uint64_t writers_ns; /* longest interval between heartbeats while a put is running */
    uint64_t restore_ns; /* time of the next restore of tickets */
} beats_t;

/* Does one round of the background thread's work without the lock. Returns true if more work waits. */
static bool
do_chores(kvp_mastersession_t *s, kvp_link_t *link, beats_t *beats)
{
    bool has_writers = atomic_load_explicit(&s->writers, memory_order_relaxed) > 0;
    uint64_t now = kvp_now_ns();

    look_after_masters(s, link->conn);
    beats->writers_ns = kvp_conn_hello(link->conn)->heartbeat_ms * KVP_NS_PER_MS / BEATS_OF_WRITERS;
    /* Restore tickets first: the master delays eviction for restored tickets, but only for a short time. */
    if (s->conf.held_tickets != NULL && now >= beats->restore_ns)
        beats->restore_ns = now + kvp_held_tickets_restore(s->conf.held_tickets, link->conn);
    if (now >= beats->next_ns || (has_writers && now - beats->last_ns >= beats->writers_ns)) {
        beats->last_ns = now;
        beats->next_ns = now + send_heartbeat(s, link);
        kvp_drain_notices_resend(link->peers, kvp_now_ns() + PAY_MAX_NS);
    }
    return kvp_peers_tend(link->peers);
}

static uint64_t
next_chore(const kvp_mastersession_t *s, const beats_t *beats)
{
    uint64_t look_ns = kvp_masters_are_several(s->masters) ? KVP_CONN_WATCH_NS : UINT64_MAX;

    return kvp_min_u64(kvp_min_u64(beats->next_ns, beats->restore_ns),
                       kvp_now_ns() + kvp_min_u64(beats->writers_ns, look_ns));
}

static void *
run_session(void *arg)
{
    kvp_mastersession_t *s = arg;
    beats_t beats = {.writers_ns = KVP_NS_PER_S};
    uint64_t beaten = 0;

    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping) {
        kvp_link_t *link = NULL;
        bool has_more = false;

        if (s->is_beat_due || s->last_incarnation != beaten) beats.next_ns = 0;
        if (s->last_incarnation != beaten) beats.restore_ns = 0;
        s->is_beat_due = false;
        beaten = s->last_incarnation;
        if (s->lingering != NULL && kvp_locations_until(s->lingering->locs) <= kvp_boot_ns()) end_lingering_locked(s);

        tend_dead_locked(s);
        pthread_mutex_unlock(&s->lock);
        kvp_transports_tend(); /* the transports' periodic work needs no master */
        if (kvp_session_hold(s, kvp_now_ns() + CONNECT_MAX_NS, &link) == KVP_OK) {
            has_more = do_chores(s, link, &beats);
            kvp_session_rele(s, link);
        }
        pthread_mutex_lock(&s->lock);
        if (s->link != NULL && link != NULL && !has_more && !s->is_beat_due && !s->is_stopping &&
            next_dead_locked(s) == NULL)
            kvp_cond_wait_until(&s->work, &s->lock, next_chore(s, &beats));
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static kvp_err_t
start_thread(kvp_mastersession_t *s)
{
    kvp_err_t err;

    pthread_mutex_lock(&s->lock);
    err = kvp_thread_start(&s->thread, "kvpool-session", run_session, s);
    s->has_thread = err == KVP_OK;
    pthread_mutex_unlock(&s->lock);
    return err;
}

/* ---- start, stop */
static kvp_err_t
copy_conf(kvp_mastersession_t *s, const kvp_session_conf_t *conf)
{
    kvp_err_t err;

    s->conf = *conf;
    s->conf.peers.is_given_up = &s->is_stopping;
    s->conf.cluster = NULL;
    s->conf.masters = strdup(conf->masters);
    s->conf.peers.name = strdup(conf->peers.name);
    s->conf.peers.host_id = strdup(conf->peers.host_id);
    s->conf.peers.tenant = strdup(conf->peers.tenant == NULL ? "" : conf->peers.tenant);
    if (s->conf.masters == NULL || s->conf.peers.name == NULL || s->conf.peers.host_id == NULL ||
        s->conf.peers.tenant == NULL)
        return KVP_NOMEM;
    err = kvp_names_create(&s->conf.peers.names);
    if (err == KVP_OK) err = kvp_masters_create(s->conf.masters, conf->cluster, s->conf.peers.names, &s->masters);
    if (err == KVP_INVALID) kvp_log_warn("client", "not a list of masters: %s", s->conf.masters);
    return err;
}

kvp_err_t
kvp_session_start(const kvp_session_conf_t *conf, uint64_t deadline_ns, kvp_mastersession_t **session_out)
{
    kvp_mastersession_t *s = calloc(1, sizeof *s);
    kvp_link_t *link;
    kvp_err_t err;

    if (s == NULL) return KVP_NOMEM;
    pthread_mutex_init(&s->lock, NULL);
    kvp_cond_init(&s->changed);
    kvp_cond_init(&s->work);
    kvp_list_init(&s->dead);
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    err = s->stop_fd < 0 ? KVP_SYS : copy_conf(s, conf);
    if (err != KVP_OK) goto fail;
    kvp_forkguard_add(s->stop_fd);
    err = kvp_session_hold(s, deadline_ns, &link);
    if (err != KVP_OK) {
        if (s->why[0] != '\0') kvp_log_error("client", "%s", s->why);
        goto fail;
    }
    kvp_session_rele(s, link);
    err = start_thread(s);
    if (err != KVP_OK) goto fail;
    *session_out = s;
    return KVP_OK;
fail:
    kvp_session_stop(s);
    kvp_session_destroy(s);
    return err;
}

void
kvp_session_stop(kvp_mastersession_t *s)
{
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    if (s->link != NULL) kvp_conn_interrupt(s->link->conn, true);
    pthread_cond_broadcast(&s->changed);
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->stop_fd >= 0) kvp_wake(s->stop_fd);
    if (s->has_thread) pthread_join(s->thread, NULL);
    s->has_thread = false;
}

/* Sends drain notices to the nodes and a goodbye to the master. No transfer of this session is running any more, and
 * with the notice a node need not wait for the end of this process. If a notice fails here, another handle of the
 * process can send it again. */
static void
say_farewell(kvp_link_t *link)
{
    bool has_master = !kvp_conn_is_broken(link->conn);

    if (has_master) {
        kvp_conn_interrupt(link->conn, false);
        kvp_drain_notices_resend(link->peers, kvp_now_ns() + FAREWELL_MAX_NS);
    }
    kvp_drain_notices_send(link->peers, kvp_now_ns() + FAREWELL_MAX_NS);
    if (has_master) kvp_conn_bye(link->conn, kvp_now_ns() + FAREWELL_MAX_NS);
}

void
kvp_session_destroy(kvp_mastersession_t *s)
{
    pthread_mutex_lock(&s->lock);
    end_lingering_locked(s);
    while (next_dead_locked(s) != NULL)
        tend_dead_locked(s);
    pthread_mutex_unlock(&s->lock);
    if (s->link != NULL) {
        say_farewell(s->link);
        link_destroy(s->link);
    }
    kvp_forkguard_close(s->stop_fd);
    kvp_masters_destroy(s->masters);
    kvp_names_destroy(s->conf.peers.names);
    free((char *)s->conf.masters);
    free((char *)s->conf.peers.name);
    free((char *)s->conf.peers.host_id);
    free((char *)s->conf.peers.tenant);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

bool
kvp_session_is_stopping(const kvp_mastersession_t *s)
{
    return atomic_load_explicit(&s->is_stopping, memory_order_relaxed);
}

int
kvp_session_stop_fd(const kvp_mastersession_t *s)
{
    return s->stop_fd;
}

const kvp_session_conf_t *
kvp_session_conf(const kvp_mastersession_t *s)
{
    return &s->conf;
}
