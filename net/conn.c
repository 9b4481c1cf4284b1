/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - Leader and followers: of the threads that wait for answers, one reads the socket for all of them and hands out the
 *   answers. This thread is the leader. When its own answer has arrived, it wakes the next leader. So a lone caller
 *   needs no hand-over and no extra thread, and many callers share one poll.
 * - The leader spins on the socket for a moment before it sleeps in poll, because a master on this host answers faster
 *   than a thread falls asleep and wakes. It spins only while answers arrive that fast, and only while the waiting
 *   threads leave a processor free for the master. A sleep makes answers late, so a leader that sleeps spins
 *   in some turns, and goes on with it if the answer comes.
 * - The receiving half of `framed` belongs to the leader (has_leader), the sending half to out_lock. Neither lock is
 *   taken under the other.
 * - `kick` is an eventfd in the leader's poll: another thread has queued bytes to send, or interrupts the calls.
 * - kvp_conn_call_soon counts the master as silent only while no answer of any call arrives. The master may hold back
 *   the answer to this call (a put waits for space), so the call sends an empty USED in between, which the master
 *   answers at once. */
#include "net/conn.h"

#include "common/waits.h"
#include "net/wake.h"
#include "common/forkguard.h"
#include "common/list.h"
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
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST_ID_AT 8u /* offset of the request id in a frame: see proto/frame.h */
#define OUT_MAX (64u * (size_t)KVP_FRAME_MAX) /* most unsent bytes queued for a master that does not read */
#define SPIN_MAX_NS 50000u
/* A leader that sleeps spins once in `pause` turns. If spins then bring answers for less than LONG_RUN turns, the
 * processors are busy, a spin takes time from the master, and `pause` doubles. */
#define PAUSE_MIN 16u
#define PAUSE_MAX 1024u
#define LONG_RUN 256u
#define ANSWER_FIRST_NS 20000u /* the time from request to answer that is assumed before the first measurement */
#define ANSWER_CAP_NS 1000000u /* longest time that enters the average answer_ns */

typedef struct {
    kvp_list_t link; /* link in conn->waiters; conn->lock guards all fields of a call */
    uint64_t id;
    kvp_buf_t *reply;
    uint64_t began_ns;
    uint64_t silence_ns; /* the call gives up if no byte comes from the master for this time; 0 = never */
    kvp_err_t err;
    bool is_done;
    pthread_cond_t wake;
} call_t;

typedef enum {
    CONN_OPEN,
    CONN_BROKEN, /* state: the connection was broken by this side, or by an error */
    CONN_ENDED, /* state: the connection was ended by the master's side */
} conn_state_t;

struct kvp_conn {
    kvp_framed_t framed;
    kvp_buf_t releases; /* RELEASE frames for answers whose call is over; used by the leader only */
    kvp_hello_reply_t hello;
    int kick;
    uint32_t cpus;
    _Atomic uint64_t next_id;

    pthread_mutex_t out_lock;
    _Atomic bool has_out; /* framed.out has unsent bytes; set under out_lock */

    pthread_mutex_t lock;
    kvp_list_t waiters; /* the waiting calls; guarded by lock */
    uint32_t waiters_n;
    bool has_leader;
    bool is_interrupted;
    uint32_t pause; /* turns without a spin before the next try */
    uint32_t slept, spun; /* turns without a spin since the last one; turns with a spin since the last one without */
    uint64_t answer_ns; /* moving average of the time from request to answer, while only one call waits */
    uint64_t heard_ns; /* time at which bytes arrived last */
    uint64_t pinged_ns; /* time at which a ping was sent after the last received byte; 0 = no ping was sent */
    _Atomic bool is_silent; /* a call gave up because of silence, and no bytes have arrived since; set under lock */
    _Atomic conn_state_t state; /* whether the connection is open, broken or ended; set under lock */
    kvp_conn_watch_fn watch; /* function that a waiting call calls each KVP_CONN_WATCH_NS; NULL = none */
    void *watch_arg;
    uint64_t watched_ns; /* time of the last call of `watch`; guarded by lock */
};

/* ---- opening */
static kvp_err_t
say_hello(kvp_conn_t *conn, const kvp_hello_ask_t *ask, uint64_t deadline_ns)
{
    kvp_err_t err = kvp_hello(&conn->framed, ask, deadline_ns, &conn->hello);

    if (err == KVP_OK && conn->hello.incarnation == 0) err = KVP_PROTO;
    return err;
}

/* Ends the session on TCP, which only served to learn the path of the master's Unix socket. The message BYE makes the
 * master drop the session without a grace period. */
static void
leave_tcp(kvp_framed_t *tcp)
{
    kvp_pb_frame(&tcp->out, KVP_OP_BYE, KVP_FRAME_ONEWAY, 0, NULL, NULL, 0);
    kvp_ignore(kvp_framed_flush(tcp), "the end of the connection says the same");
    kvp_framed_fini(tcp);
}

/* Adds the reason why the Unix socket could not be used to the reason of the refusal over TCP. */
static void
add_why(kvp_hello_reply_t *hello, const char *why)
{
    const size_t len = strlen(hello->detail);

    snprintf(hello->detail + len, sizeof hello->detail - len, "; and on the master's Unix socket: %s", why);
}

/* Moves the connection to the master's Unix socket if the master is on this host. Stays on TCP if that socket fails.
 * is_refused: over TCP the master answered DENIED; on the socket it knows this process's user, and gets the token.
 * Returns the error of the connection that is left. */
static kvp_err_t
go_unix(kvp_conn_t *conn, const kvp_hello_ask_t *ask, bool is_refused, uint64_t deadline_ns)
{
    kvp_framed_t unix_side, tcp_side;
    kvp_hello_reply_t hello = {.incarnation = 0};
    const kvp_err_t stays = is_refused ? KVP_DENIED : KVP_OK;
    const char *why;
    kvp_err_t err;

    if (conn->hello.unix_path[0] == '\0' || strcmp(conn->hello.host_id, ask->host_id) != 0) return stays;
    if (conn->framed.tls != NULL && kvp_creds_are_certificate()) return stays;
    kvp_framed_init(&unix_side);
    unix_side.is_given_up = conn->framed.is_given_up;
    err = kvp_framed_connect_told(&unix_side, KVP_SOCKET_MASTER, conn->hello.unix_path, deadline_ns, &why);
    if (err == KVP_OK) err = kvp_hello(&unix_side, ask, deadline_ns, &hello);
    if (err != KVP_OK && is_refused) {
        if (hello.detail[0] != '\0')
            snprintf(conn->hello.detail, sizeof conn->hello.detail, "%s", hello.detail);
        else if (err != KVP_CLOSED)
            add_why(&conn->hello, why);
        kvp_framed_fini(&unix_side);
        return err == KVP_EXPIRED || err == KVP_INVALID ? err : stays;
    }
    if (err != KVP_OK || hello.incarnation == 0 ||
        (!is_refused && memcmp(hello.pool_id, conn->hello.pool_id, 16) != 0)) {
        kvp_log_info("client", "master's unix socket does not serve, staying on tcp: %s path=%s error=%s", why,
                     conn->hello.unix_path, kvp_err_name(err));
        kvp_framed_fini(&unix_side);
        return stays;
    }
    tcp_side = conn->framed;
    conn->framed = unix_side;
    conn->hello = hello;
    leave_tcp(&tcp_side);
    return KVP_OK;
}

static kvp_conn_t *
conn_create(void)
{
    kvp_conn_t *conn = calloc(1, sizeof *conn);

    if (conn == NULL) return NULL;
    kvp_framed_init(&conn->framed);
    kvp_buf_init(&conn->releases, 0);
    kvp_list_init(&conn->waiters);
    pthread_mutex_init(&conn->lock, NULL);
    pthread_mutex_init(&conn->out_lock, NULL);
    conn->cpus = kvp_usable_cpus();
    conn->answer_ns = ANSWER_FIRST_NS;
    conn->pause = PAUSE_MIN;
    conn->next_id = 16; /* higher than the ids of Hello */
    conn->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return conn;
}

kvp_err_t
kvp_conn_open(kvp_framed_t *framed, const kvp_hello_ask_t *ask, uint64_t deadline_ns, char *detail, size_t cap,
              kvp_conn_t **conn_out)
{
    kvp_conn_t *conn = conn_create();
    kvp_err_t err;

    if (conn == NULL) {
        kvp_framed_fini(framed);
        return KVP_NOMEM;
    }
    conn->framed = *framed;
    err = conn->kick < 0 ? KVP_SYS : say_hello(conn, ask, deadline_ns);
    if (err == KVP_OK || err == KVP_DENIED) err = go_unix(conn, ask, err == KVP_DENIED, deadline_ns);
    snprintf(detail, cap, "%s", conn->kick < 0 ? kvp_err_text(err) : conn->hello.detail);
    if (err != KVP_OK) {
        kvp_conn_destroy(conn);
        return err;
    }
    kvp_forkguard_add(conn->kick);
    *conn_out = conn;
    return KVP_OK;
}

void
kvp_conn_watch(kvp_conn_t *conn, kvp_conn_watch_fn fn, void *arg)
{
    conn->watch = fn;
    conn->watch_arg = arg;
}

void
kvp_conn_destroy(kvp_conn_t *conn)
{
    if (conn == NULL) return;
    kvp_framed_fini(&conn->framed);
    kvp_buf_fini(&conn->releases);
    kvp_forkguard_close(conn->kick);
    pthread_mutex_destroy(&conn->lock);
    pthread_mutex_destroy(&conn->out_lock);
    free(conn);
}

const kvp_hello_reply_t *
kvp_conn_hello(const kvp_conn_t *conn)
{
    return &conn->hello;
}

bool
kvp_conn_is_unix(const kvp_conn_t *conn)
{
    return conn->framed.is_unix;
}

bool
kvp_conn_is_broken(const kvp_conn_t *conn)
{
    return atomic_load_explicit(&conn->state, memory_order_acquire) != CONN_OPEN;
}

bool
kvp_conn_was_ended(const kvp_conn_t *conn)
{
    return atomic_load_explicit(&conn->state, memory_order_acquire) == CONN_ENDED;
}

/* ---- sending frames */
/* flush_out sends the queued bytes. OK also after a partial send; has_out is then set and the leader sends the rest. */
static kvp_err_t
flush_out(kvp_conn_t *conn)
{
    kvp_err_t err = kvp_framed_flush(&conn->framed);

    atomic_store(&conn->has_out, err == KVP_EAGAIN);
    return err == KVP_EAGAIN ? KVP_OK : err;
}

/* Queues whole frames and sends as many bytes as the socket accepts. */
static kvp_err_t
send_frames(kvp_conn_t *conn, const void *frames, size_t len)
{
    kvp_buf_t *out = &conn->framed.out;
    kvp_err_t err;

    pthread_mutex_lock(&conn->out_lock);
    if (kvp_framed_out_bytes(&conn->framed) > OUT_MAX) {
        pthread_mutex_unlock(&conn->out_lock);
        return KVP_EAGAIN;
    }
    kvp_buf_append(out, frames, len);
    err = out->err;
    out->err = KVP_OK; /* a failed append adds no byte, so the frames queued earlier are whole and can still be sent */
    if (err == KVP_OK) err = flush_out(conn);
    pthread_mutex_unlock(&conn->out_lock);
    if (conn->has_out) kvp_wake(conn->kick);
    return err;
}

static kvp_err_t
post_frame(kvp_conn_t *conn, kvp_buf_t *frame, uint64_t id)
{
    if (frame->err != KVP_OK) return frame->err;
    memcpy(frame->data + REQUEST_ID_AT, &id, sizeof id);
    return send_frames(conn, frame->data, frame->len);
}

/* Sends a request that the master answers at once. No call waits for the answer, but its arrival shows that the
 * master is alive. */
static void
send_ping(kvp_conn_t *conn)
{
    uint64_t id = atomic_fetch_add_explicit(&conn->next_id, 1, memory_order_relaxed);
    kvp_buf_t frame;

    kvp_buf_init(&frame, 0);
    kvp_pb_frame(&frame, KVP_OP_USED, 0, id, NULL, NULL, 0);
    kvp_ignore(post_frame(conn, &frame, id), "then nothing arrives either");
    kvp_buf_fini(&frame);
}

/* ---- the end of a connection. The callers of the _locked functions and of wake_all hold conn->lock. */
static void
wake_all(kvp_conn_t *conn)
{
    kvp_list_foreach (pos, &conn->waiters)
        pthread_cond_signal(&kvp_list_entry(pos, call_t, link)->wake);
}

static void
break_locked(kvp_conn_t *conn)
{
    if (kvp_conn_is_broken(conn)) return;
    atomic_store_explicit(&conn->state, conn->framed.is_ended ? CONN_ENDED : CONN_BROKEN, memory_order_release);
    shutdown(conn->framed.fd, SHUT_RDWR);
    wake_all(conn);
}

void
kvp_conn_break(kvp_conn_t *conn)
{
    pthread_mutex_lock(&conn->lock);
    break_locked(conn);
    pthread_mutex_unlock(&conn->lock);
}

void
kvp_conn_interrupt(kvp_conn_t *conn, bool is_on)
{
    pthread_mutex_lock(&conn->lock);
    conn->is_interrupted = is_on;
    wake_all(conn);
    pthread_mutex_unlock(&conn->lock);
    kvp_wake(conn->kick);
}

/* ---- receiving answers */
/* Returns how long the leader spins before it sleeps. */
static uint64_t
spin_time(kvp_conn_t *conn)
{
    if (conn->waiters_n >= conn->cpus) return 0;
    if (conn->answer_ns < SPIN_MAX_NS) {
        conn->spun++;
        return kvp_min_u64(2 * conn->answer_ns, SPIN_MAX_NS);
    }
    if (conn->spun > 0) {
        conn->pause = conn->spun >= LONG_RUN ? PAUSE_MIN : (uint32_t)kvp_min_u64(2 * conn->pause, PAUSE_MAX);
        conn->spun = conn->slept = 0;
    }
    if (++conn->slept < conn->pause) return 0;
    conn->spun = 1;
    return SPIN_MAX_NS;
}

static void
sleep_on_socket(kvp_conn_t *conn, uint64_t deadline_ns)
{
    struct pollfd p[2] = {
        {.fd = conn->framed.fd, .events = (short)(POLLIN | (conn->has_out ? POLLOUT : 0))},
        {.fd = conn->kick, .events = POLLIN},
    };
    uint64_t drained;

    if (kvp_poll_until(p, 2, deadline_ns) == 0) return;
    if ((p[1].revents & POLLIN) != 0 && read(conn->kick, &drained, sizeof drained) < 0) return;
    if ((p[0].revents & POLLOUT) != 0) {
        pthread_mutex_lock(&conn->out_lock);
        kvp_ignore(flush_out(conn), "the receive that follows finds the same error");
        pthread_mutex_unlock(&conn->out_lock);
    }
}

/* read_some is the leader's turn to read the socket. OK: bytes were received. EAGAIN: no bytes before a kick or the
 * deadline. Any other error ends the connection. */
static kvp_err_t
read_some(kvp_conn_t *conn, uint64_t deadline_ns, uint64_t spin_ns)
{
    uint64_t spin_until = spin_ns == 0 ? 0 : kvp_now_ns() + spin_ns;

    for (;;) {
        kvp_err_t err = kvp_framed_recv(&conn->framed);

        if (err != KVP_EAGAIN) return err;
        if (spin_until == 0 || kvp_now_ns() >= spin_until) break;
        kvp_cpu_relax();
    }
    sleep_on_socket(conn, deadline_ns);
    return kvp_framed_recv(&conn->framed);
}

static call_t *
find_call(kvp_conn_t *conn, uint64_t id)
{
    kvp_list_foreach (pos, &conn->waiters) {
        call_t *call = kvp_list_entry(pos, call_t, link);

        if (call->id == id) return call;
    }
    return NULL;
}

/* Returns the ticket of the hold or reservation that an answer grants; 0 = none. */
static uint64_t
ticket_of(const kvp_frame_t *answer)
{
    bool is_get = answer->hdr.opcode == KVP_OP_GET;
    uint64_t ticket = 0;
    void *msg;
    kvp_pb_t pb;

    if (!is_get && answer->hdr.opcode != KVP_OP_LOOKUP) return 0;
    msg = kvp_pb_unpack(&pb, is_get ? &kvp__pb__places__descriptor : &kvp__pb__lookup_reply__descriptor, answer);
    if (msg != NULL) ticket = is_get ? ((Kvp__Pb__Places *)msg)->ticket : ((Kvp__Pb__LookupReply *)msg)->ticket;
    kvp_pb_free(&pb, msg);
    return ticket;
}

/* Handles an answer whose call is over, for example after its deadline. If the answer grants a hold or reservation, its
 * ticket is released, because no caller gets it. */
static void
release_late(kvp_conn_t *conn, const kvp_frame_t *answer)
{
    Kvp__Pb__Release head = KVP__PB__RELEASE__INIT;
    uint64_t ticket = ticket_of(answer);

    if (ticket == 0) return;
    head.n = 1;
    kvp_pb_frame(&conn->releases, KVP_OP_RELEASE, KVP_FRAME_ONEWAY, 0, &head.base, &ticket, sizeof ticket);
}

static bool
has_releases(const kvp_conn_t *conn)
{
    return conn->releases.len > 0 || conn->releases.err != KVP_OK;
}

/* Sends the queued RELEASE frames. If they cannot be sent, breaks the connection: the end of the session releases the
 * tickets as well. */
static void
send_releases(kvp_conn_t *conn)
{
    kvp_err_t err = conn->releases.err;

    if (err == KVP_OK) err = send_frames(conn, conn->releases.data, conn->releases.len);
    kvp_buf_reset(&conn->releases);
    if (err != KVP_OK) kvp_conn_break(conn);
}

/* Gives the received answers to their calls. The caller is the leader and holds conn->lock. */
static kvp_err_t
deliver_answers(kvp_conn_t *conn)
{
    kvp_frame_t frame;
    bool has = false;
    kvp_err_t err;

    while ((err = kvp_framed_next(&conn->framed, &frame, &has)) == KVP_OK && has) {
        call_t *call;

        if ((frame.hdr.flags & KVP_FRAME_REPLY) == 0) continue;
        call = find_call(conn, frame.hdr.request_id);
        if (call == NULL) release_late(conn, &frame);
        if (call == NULL || call->is_done) continue;
        kvp_buf_reset(call->reply);
        kvp_buf_append(call->reply, frame.head - KVP_FRAME_HDR_BYTES, KVP_FRAME_HDR_BYTES + frame.hdr.length);
        call->err = call->reply->err;
        /* there was no memory for the answer, so no caller gets its ticket: release the ticket */
        if (call->err != KVP_OK) release_late(conn, &frame);
        call->is_done = true;
        pthread_cond_signal(&call->wake);
    }
    if (err != KVP_OK) kvp_log_warn("client", "master sent a malformed frame, closing the connection");
    return err;
}

static void
note_arrival(kvp_conn_t *conn)
{
    conn->heard_ns = kvp_now_ns();
    conn->pinged_ns = 0;
    conn->is_silent = false;
}

/* Does one turn as leader. The caller holds conn->lock; the function releases it while it waits for answers. */
static void
lead_turn(kvp_conn_t *conn, uint64_t deadline_ns)
{
    uint64_t spin_ns = spin_time(conn);
    kvp_err_t err;

    conn->has_leader = true;
    pthread_mutex_unlock(&conn->lock);
    err = read_some(conn, deadline_ns, spin_ns);
    pthread_mutex_lock(&conn->lock);
    if (err == KVP_OK) note_arrival(conn);
    if (err == KVP_OK) err = deliver_answers(conn);
    if (has_releases(conn)) {
        pthread_mutex_unlock(&conn->lock);
        send_releases(conn);
        pthread_mutex_lock(&conn->lock);
    }
    conn->has_leader = false;
    if (err != KVP_OK && err != KVP_EAGAIN) break_locked(conn);
}

/* Returns true if a call with silence_ns should give up, else lowers *until_ns to the time of the next check. A call
 * gives up only if silence_ns / 2 has passed since a ping, so that a caller that was not scheduled does not give up
 * wrongly. The caller holds conn->lock; the function releases it to send a ping. */
static bool
is_in_vain(kvp_conn_t *conn, const call_t *call, uint64_t now_ns, uint64_t *until_ns)
{
    uint64_t since_ns = kvp_max_u64(call->began_ns, conn->heard_ns), half_ns = call->silence_ns / 2, end_ns;

    if (conn->is_silent) return true;
    if (conn->pinged_ns == 0 && now_ns >= since_ns + half_ns) {
        conn->pinged_ns = now_ns;
        pthread_mutex_unlock(&conn->lock);
        send_ping(conn);
        pthread_mutex_lock(&conn->lock);
        *until_ns = now_ns; /* no wait: first the bytes that have arrived are read, then the silence is checked */
        return false;
    }
    end_ns = since_ns + (conn->pinged_ns == 0 ? half_ns : call->silence_ns);
    end_ns = kvp_max_u64(end_ns, conn->pinged_ns + half_ns);
    *until_ns = kvp_min_u64(*until_ns, end_ns);
    if (now_ns < end_ns) return false;
    conn->is_silent = true;
    wake_all(conn);
    kvp_wake(conn->kick);
    return true;
}

/* Calls the watch function and returns true if it is due; else lowers *until_ns to the time when it is due. The
 * caller holds conn->lock; the function releases it during the call. */
static bool
was_watched(kvp_conn_t *conn, const call_t *call, uint64_t now_ns, uint64_t *until_ns)
{
    uint64_t due_ns = kvp_max_u64(call->began_ns, conn->watched_ns) + KVP_CONN_WATCH_NS;

    if (conn->watch == NULL) return false;
    *until_ns = kvp_min_u64(*until_ns, due_ns);
    if (now_ns < due_ns) return false;
    conn->watched_ns = now_ns;
    pthread_mutex_unlock(&conn->lock);
    conn->watch(conn->watch_arg, conn);
    pthread_mutex_lock(&conn->lock);
    return true;
}

static kvp_err_t
await_answer(kvp_conn_t *conn, call_t *call, uint64_t deadline_ns)
{
    while (!call->is_done) {
        uint64_t now_ns = kvp_now_ns(), until_ns = deadline_ns;

        if (kvp_conn_is_broken(conn)) return KVP_DISCONNECTED;
        if (conn->is_interrupted) return KVP_CLOSED;
        if (now_ns >= deadline_ns) return KVP_DEADLINE;
        if (was_watched(conn, call, now_ns, &until_ns)) continue;
        if (call->silence_ns > 0 && is_in_vain(conn, call, now_ns, &until_ns)) return KVP_DEADLINE;
        if (conn->has_leader)
            kvp_cond_wait_until(&call->wake, &conn->lock, until_ns);
        else if (!call->is_done)
            lead_turn(conn, until_ns);
    }
    return call->err;
}

static void
note_answer(kvp_conn_t *conn, uint64_t took_ns)
{
    if (conn->waiters_n > 1) return; /* not averaged: while other calls wait, the time includes their answers */
    took_ns = kvp_min_u64(took_ns, ANSWER_CAP_NS);
    if (conn->answer_ns >= SPIN_MAX_NS && conn->spun > 0 && took_ns < SPIN_MAX_NS)
        conn->answer_ns = took_ns; /* the times before have those of falling asleep and waking in them */
    else
        conn->answer_ns = (conn->answer_ns * 7 + took_ns) / 8;
}

static void
enlist_call(kvp_conn_t *conn, call_t *call)
{
    kvp_cond_init(&call->wake);
    pthread_mutex_lock(&conn->lock);
    kvp_list_add_tail(&conn->waiters, &call->link);
    conn->waiters_n++;
    pthread_mutex_unlock(&conn->lock);
}

/* Wakes a waiting call to become the leader, if there is no leader. The caller holds conn->lock. */
static void
wake_one(kvp_conn_t *conn)
{
    if (!conn->has_leader && conn->waiters_n > 0)
        pthread_cond_signal(&kvp_list_first(&conn->waiters, call_t, link)->wake);
}

static void
leave_waiters(kvp_conn_t *conn, call_t *call)
{
    kvp_list_del(&call->link);
    conn->waiters_n--;
    wake_one(conn);
}

kvp_err_t
kvp_conn_call_soon(kvp_conn_t *conn, kvp_buf_t *frame, uint64_t deadline_ns, uint64_t silence_ns, kvp_buf_t *reply,
                   kvp_frame_t *frame_out)
{
    call_t call = {
        .id = atomic_fetch_add_explicit(&conn->next_id, 1, memory_order_relaxed),
        .reply = reply,
        .began_ns = kvp_now_ns(),
        .silence_ns = silence_ns,
    };
    kvp_err_t err;
    size_t used;

    /* before the request is sent, so that the thread that receives the answer finds the call */
    enlist_call(conn, &call);
    err = post_frame(conn, frame, call.id);
    pthread_mutex_lock(&conn->lock);
    if (err == KVP_DISCONNECTED) break_locked(conn);
    if (err == KVP_OK) err = await_answer(conn, &call, deadline_ns);
    if (err == KVP_OK) note_answer(conn, kvp_now_ns() - call.began_ns);
    leave_waiters(conn, &call);
    pthread_mutex_unlock(&conn->lock);
    pthread_cond_destroy(&call.wake);
    if (err != KVP_OK) return err;
    return kvp_frame_parse(reply->data, reply->len, frame_out, &used);
}

kvp_err_t
kvp_conn_call(kvp_conn_t *conn, kvp_buf_t *frame, uint64_t deadline_ns, kvp_buf_t *reply, kvp_frame_t *frame_out)
{
    return kvp_conn_call_soon(conn, frame, deadline_ns, 0, reply, frame_out);
}

bool
kvp_conn_is_silent(kvp_conn_t *conn)
{
    if (!conn->is_silent || kvp_conn_is_broken(conn)) return conn->is_silent;
    pthread_mutex_lock(&conn->lock);
    if (!conn->has_leader) lead_turn(conn, 0);
    wake_one(conn);
    pthread_mutex_unlock(&conn->lock);
    return conn->is_silent;
}

kvp_err_t
kvp_conn_send(kvp_conn_t *conn, kvp_buf_t *frame)
{
    kvp_err_t err = post_frame(conn, frame, atomic_fetch_add_explicit(&conn->next_id, 1, memory_order_relaxed));

    if (err != KVP_OK) kvp_conn_break(conn);
    return err;
}

void
kvp_conn_queue(kvp_conn_t *conn, const kvp_buf_t *frame)
{
    kvp_buf_t *out = &conn->framed.out;

    if (frame->err != KVP_OK) return;
    pthread_mutex_lock(&conn->out_lock);
    if (kvp_framed_out_bytes(&conn->framed) < OUT_MAX) kvp_buf_append(out, frame->data, frame->len);
    out->err = KVP_OK; /* a failed append adds no byte, so the frames queued earlier are whole and can still be sent */
    pthread_mutex_unlock(&conn->out_lock);
}

void
kvp_conn_bye(kvp_conn_t *conn, uint64_t deadline_ns)
{
    kvp_buf_t frame, reply;
    kvp_frame_t answer;

    kvp_buf_init(&frame, 0);
    kvp_buf_init(&reply, 0);
    kvp_pb_frame(&frame, KVP_OP_BYE, 0, 0, NULL, NULL, 0);
    kvp_ignore(kvp_conn_call(conn, &frame, deadline_ns, &reply, &answer), "the end of the connection says the same");
    kvp_buf_fini(&frame);
    kvp_buf_fini(&reply);
}
