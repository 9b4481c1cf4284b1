/* SPDX-License-Identifier: Apache-2.0
 * One connection of tcp's serving side: the hello, then requests and answers in turn. Runs in its lane's thread,
 * under the lane's lock. */
#include "transport/tcp/conn.h"

#include "transport/tcp/sock.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "common/clock.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TURN_BYTES (2u << 20) /* bytes moved after which the connection's turn ends and the next one begins */
#define SPARE_MAX 64u

typedef enum {
    STEP_MORE, /* the connection can do more now: call the step again */
    STEP_WAIT, /* the connection can do nothing until its next event */
    STEP_DEAD,
} step_t;

static kvp_tcp_work_t *
work_take(kvp_tcp_lane_t *lane)
{
    kvp_tcp_work_t *w = lane->spare;

    if (w != NULL) {
        lane->spare = w->next;
        lane->spare_n--;
    } else {
        w = malloc(sizeof *w); /* malloc, not calloc, which would touch pages that the request does not use */
        if (w == NULL) return NULL;
        w->summing = NULL;
    }
    w->rx_at = w->rx_len = 0;
    w->ops_n = 0;
    return w;
}

void
kvp_tcp_work_free(kvp_tcp_work_t *work)
{
    if (work->summing != NULL) kvp_sum_destroy(work->summing);
    free(work);
}

static void
work_drop(kvp_tcp_conn_t *conn)
{
    kvp_tcp_lane_t *lane = conn->lane;
    kvp_tcp_work_t *w = conn->work;

    conn->work = NULL;
    if (w == NULL) return;
    if (lane->spare_n == SPARE_MAX) {
        kvp_tcp_work_free(w);
        return;
    }
    w->next = lane->spare;
    lane->spare = w;
    lane->spare_n++;
}

void
kvp_tcp_conn_kill(kvp_tcp_conn_t *conn)
{
    if (conn->state == KVP_TCP_CONN_CLOSED) return;
    conn->state = KVP_TCP_CONN_CLOSED;
    shutdown(conn->fd, SHUT_RDWR);
    kvp_list_del(&conn->on_run);
    kvp_list_del(&conn->on_busy);
    kvp_list_del(&conn->on_hello);
    kvp_list_del(&conn->on_lane);
    kvp_list_add_tail(&conn->lane->dead, &conn->on_lane);
    work_drop(conn);
    atomic_fetch_sub(&conn->lane->shared->conns_n, 1);
}

static void
log_refusal(kvp_tcp_conn_t *conn, const char *why)
{
    uint32_t missed;

    if (kvp_log_limit_ok(&conn->lane->shared->refused_lines, &missed))
        kvp_log_warn("transport", "data connection closed: %s client=%llx missed=%u", why,
                     (unsigned long long)conn->incarnation, missed);
}

static step_t
refuse_bytes(kvp_tcp_conn_t *conn, const char *what)
{
    log_refusal(conn, what);
    kvp_tcp_conn_kill(conn);
    return STEP_DEAD;
}

/* recv_some makes one recvmsg call. A short read means that the socket is empty, unless an end of file is pending. */
static step_t
recv_some(kvp_tcp_conn_t *conn, struct iovec *iov, size_t iov_n, size_t *n_out)
{
    size_t room = 0;
    kvp_err_t err = kvp_tcp_sock_recv(conn->fd, iov, iov_n, n_out);

    if (err == KVP_EAGAIN) {
        conn->can_recv = false;
        return STEP_WAIT;
    }
    if (err != KVP_OK) {
        kvp_tcp_conn_kill(conn);
        return STEP_DEAD;
    }
    for (size_t i = 0; i < iov_n; i++)
        room += iov[i].iov_len;
    if (*n_out < room && !conn->has_hup) conn->can_recv = false;
    return STEP_MORE;
}

/* ---- the hello, which admits a peer */

/* judge_hello decides whether the peer may connect. It stores the peer's incarnation in the connection before it checks
 * the fenced set, so that a concurrent fence either is seen here or finds the connection and ends it. */
static kvp_err_t
judge_hello(kvp_tcp_conn_t *conn, const Kvp__Pb__DataHello *hello, const char **detail_out)
{
    kvp_tcp_shared_t *shared = conn->lane->shared;
    bool is_fenced;

    *detail_out = "";
    if (hello == NULL || hello->incarnation == 0) {
        *detail_out = "malformed hello";
        return KVP_PROTO;
    }
    if (hello->version < KVP_PROTO_VERSION_MIN || hello->version_min > KVP_PROTO_VERSION) {
        *detail_out = "no common version of the data protocol";
        return KVP_VERSION;
    }
    if (hello->pool_id.len != sizeof shared->pool_id ||
        memcmp(hello->pool_id.data, shared->pool_id, sizeof shared->pool_id) != 0) {
        *detail_out = "another pool";
        return KVP_PROTO;
    }
    conn->incarnation = hello->incarnation;
    pthread_mutex_lock(&shared->peers_lock);
    is_fenced = kvp_idset_has(&shared->fenced, conn->incarnation);
    pthread_mutex_unlock(&shared->peers_lock);
    if (is_fenced) {
        *detail_out = "this client was fenced";
        return KVP_FENCED;
    }
    if (conn->is_over) {
        *detail_out = "too many data connections";
        return KVP_BUSY;
    }
    return KVP_OK;
}

/* Sends the answer to the hello, and returns whether all of it was sent. The answer is small and the socket's buffer is
 * empty, so a partial send counts as a failure. */
static bool
send_reply(kvp_tcp_conn_t *conn, uint64_t request_id, kvp_err_t verdict, const char *detail)
{
    Kvp__Pb__Reply reply = KVP__PB__REPLY__INIT;
    kvp_buf_t out;
    size_t sent = 0;
    bool is_sent = false;

    reply.err = verdict;
    reply.detail = (char *)detail;
    kvp_buf_init(&out, 0);
    kvp_pb_frame(&out, KVP_OP_DATA_HELLO, KVP_FRAME_REPLY, request_id, &reply, NULL, 0);
    if (out.err == KVP_OK) {
        struct iovec iov = {.iov_base = out.data, .iov_len = out.len};
        is_sent = kvp_tcp_sock_send(conn->fd, &iov, 1, &sent) == KVP_OK && sent == out.len;
    }
    kvp_buf_fini(&out);
    return is_sent;
}

static step_t
answer_hello(kvp_tcp_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_pb_t pb;
    Kvp__Pb__DataHello *hello = kvp_pb_unpack(&pb, &kvp__pb__data_hello__descriptor, frame);
    const char *detail;
    kvp_err_t verdict = judge_hello(conn, hello, &detail);

    kvp_pb_free(&pb, hello);
    if (verdict != KVP_OK) log_refusal(conn, detail);
    if (!send_reply(conn, frame->hdr.request_id, verdict, detail)) {
        kvp_tcp_conn_kill(conn);
        return STEP_DEAD;
    }
    if (verdict == KVP_OK) {
        conn->state = KVP_TCP_CONN_REQUEST;
        kvp_list_del(&conn->on_hello);
    } else {
        /* Not closed yet: a close with unread bytes would reset the connection, and the peer could lose the answer. */
        conn->state = KVP_TCP_CONN_REFUSED;
        shutdown(conn->fd, SHUT_WR);
    }
    return STEP_MORE;
}

static step_t
step_hello(kvp_tcp_conn_t *conn)
{
    kvp_frame_t frame = {0};
    size_t need = KVP_FRAME_HDR_BYTES;
    size_t n;
    step_t step;

    if (conn->hello_len >= need) {
        if (kvp_frame_hdr_decode(conn->hello, &frame.hdr) != KVP_OK || frame.hdr.opcode != KVP_OP_DATA_HELLO ||
            frame.hdr.flags != 0 || frame.hdr.length > sizeof conn->hello - KVP_FRAME_HDR_BYTES)
            return refuse_bytes(conn, "no hello");
        need += frame.hdr.length;
        if (conn->hello_len == need) {
            frame.head = conn->hello + KVP_FRAME_HDR_BYTES;
            return answer_hello(conn, &frame);
        }
    }
    step = recv_some(
        conn, &(struct iovec){.iov_base = conn->hello + conn->hello_len, .iov_len = need - conn->hello_len}, 1, &n);
    if (step != STEP_MORE) return step;
    conn->hello_len += (uint32_t)n;
    return STEP_MORE;
}

static step_t
step_refused(kvp_tcp_conn_t *conn)
{
    size_t n;

    return recv_some(conn, &(struct iovec){.iov_base = conn->hello, .iov_len = sizeof conn->hello}, 1, &n);
}

/* ---- requests of the peer */

static bool
guard_holds(const kvp_tcp_land_t *land)
{
    return land->guard == NULL || kvp_word_load(land->guard) == land->guard_word;
}

static kvp_err_t
begin_write(kvp_exports_t *ex, const kvp_data_op_t *op, kvp_tcp_land_t *land)
{
    uint8_t *guard;
    kvp_err_t err;

    *land = (kvp_tcp_land_t){0};
    err = kvp_exports_resolve(ex, op->key, op->off, op->len, KVP_ACCESS_WRITE, &land->at, &land->mr);
    if (err != KVP_OK || (op->flags & KVP_DATA_GUARDED) == 0) return err;
    err = kvp_exports_resolve(ex, op->guard_key, op->guard_off, 8, KVP_ACCESS_READ, &guard, &land->guard_mr);
    if (err != KVP_OK) return err;
    if (!kvp_words_fit(guard, 8)) return KVP_INVALID;
    land->guard = guard;
    land->guard_word = op->guard_word;
    return KVP_OK;
}

static kvp_err_t
run_publish(kvp_exports_t *ex, const kvp_data_op_t *op)
{
    uint8_t *at;
    kvp_err_t err = kvp_exports_resolve(ex, op->key, op->off, 8, KVP_ACCESS_WRITE, &at, NULL);

    if (err != KVP_OK) return err;
    if (!kvp_words_fit(at, 8)) return KVP_INVALID;
    return kvp_word_publish(at, op->guard_word);
}

/* Begins the operation that was decoded last; runs a PUBLISH at once. False: no memory for the checksum state. */
static bool
begin_op(kvp_tcp_conn_t *conn)
{
    kvp_exports_t *ex = &conn->lane->shared->exports;
    kvp_tcp_work_t *w = conn->work;
    const kvp_data_op_t *op = &conn->dec.op;
    uint32_t i = w->ops_n++;

    if (i == 0) {
        w->began_ns = kvp_now_ns();
        w->bytes = 0;
    }
    conn->op_serial++;
    if (op->kind == KVP_DATA_READ) {
        kvp_tcp_read_t *r = &w->reads[i];
        uint8_t *at = NULL;

        r->len = op->len;
        r->staged_at = KVP_TCP_NOT_STAGED;
        r->is_after = (op->flags & KVP_DATA_AFTER_PRIOR) != 0;
        r->has_sum = (op->flags & KVP_DATA_SUM) != 0;
        if (r->has_sum && w->summing == NULL) w->summing = kvp_sum_create();
        if (r->has_sum && w->summing == NULL) return false;
        w->status[i] = kvp_exports_resolve(ex, op->key, op->off, op->len, KVP_ACCESS_READ, &at, &r->mr);
        r->at = at;
    } else if (op->kind == KVP_DATA_WRITE) {
        w->status[i] = begin_write(ex, op, &w->land);
    } else {
        w->status[i] = run_publish(ex, op);
    }
    if (w->status[i] == KVP_OK && op->kind != KVP_DATA_PUBLISH) w->bytes += op->len;
    return true;
}

/* Returns whether bytes of the current WRITE may still be stored: its memory and guard were valid, and the guard's word
 * is unchanged. Called before each copy. A refused WRITE stays refused. */
static bool
may_land(kvp_tcp_work_t *w)
{
    int32_t *status = &w->status[w->ops_n - 1];

    if (*status == KVP_OK && !guard_holds(&w->land)) *status = KVP_STALE;
    return *status == KVP_OK;
}

static void
land_body(kvp_tcp_conn_t *conn)
{
    kvp_tcp_work_t *w = conn->work;

    if (!may_land(w)) return;
    memcpy(w->land.at, conn->dec.body, conn->dec.body_len);
    w->land.at += conn->dec.body_len;
}

/* decode_input decodes received bytes and executes their operations, up to the end of a request. */
static step_t
decode_input(kvp_tcp_conn_t *conn)
{
    kvp_tcp_work_t *w = conn->work;
    const uint8_t *at = w->rx + w->rx_at;
    size_t len = w->rx_len - w->rx_at;
    kvp_data_ev_t ev = KVP_DATA_EV_OP;

    while (ev != KVP_DATA_EV_MORE && ev != KVP_DATA_EV_END) {
        if (kvp_data_dec_next(&conn->dec, &at, &len, &ev) != KVP_OK) return refuse_bytes(conn, "malformed request");
        if (ev == KVP_DATA_EV_OP && !begin_op(conn)) return refuse_bytes(conn, "out of memory");
        if (ev == KVP_DATA_EV_BODY) land_body(conn);
    }
    w->rx_at = w->rx_len - (uint32_t)len;
    if (ev == KVP_DATA_EV_END) {
        kvp_tcp_answer_begin(conn);
        conn->state = KVP_TCP_CONN_ANSWER;
    }
    return STEP_MORE;
}

/* recv_request receives the body of a WRITE straight into exported memory. Bytes after the body, or of a refused WRITE,
 * go into the connection's buffer rx. */
static step_t
recv_request(kvp_tcp_conn_t *conn, size_t *n_out)
{
    kvp_tcp_work_t *w = conn->work;
    struct iovec iov[2];
    size_t iov_n = 0;
    uint64_t body = kvp_data_dec_body_left(&conn->dec);
    size_t direct = 0;
    step_t step;

    if (body > 0 && may_land(w)) {
        direct = (size_t)kvp_min_u64(body, KVP_TCP_CALL_BYTES);
        iov[iov_n++] = (struct iovec){.iov_base = w->land.at, .iov_len = direct};
    }
    if (direct == body) iov[iov_n++] = (struct iovec){.iov_base = w->rx, .iov_len = sizeof w->rx};
    if (iov_n == 0) iov[iov_n++] = (struct iovec){.iov_base = w->rx, .iov_len = sizeof w->rx};
    step = recv_some(conn, iov, iov_n, n_out);
    if (step != STEP_MORE) return step;
    direct = (size_t)kvp_min_u64(direct, *n_out);
    if (direct > 0) {
        kvp_data_dec_took(&conn->dec, direct);
        w->land.at += direct;
    }
    w->rx_at = 0;
    w->rx_len = (uint32_t)(*n_out - direct);
    return STEP_MORE;
}

static step_t
step_request(kvp_tcp_conn_t *conn, size_t *n_out)
{
    step_t step;

    if (conn->work == NULL) {
        if (!conn->can_recv) return STEP_WAIT;
        conn->work = work_take(conn->lane);
        if (conn->work == NULL) return refuse_bytes(conn, "out of memory");
    }
    if (conn->work->rx_at == conn->work->rx_len) {
        step = conn->can_recv ? recv_request(conn, n_out) : STEP_WAIT;
        if (step == STEP_WAIT && kvp_data_dec_is_idle(&conn->dec)) work_drop(conn);
        if (step != STEP_MORE) return step;
    }
    return decode_input(conn);
}

/* ---- answers to the peer; answer.c chooses the bytes */

static void
count_served(const kvp_tcp_conn_t *conn)
{
    kvp_served_t *served = conn->lane->shared->served;
    const kvp_tcp_work_t *w = conn->work;

    if (served == NULL) return;
    kvp_histogram_add(conn->dec.is_read ? &served->read_ns : &served->write_ns, kvp_now_ns() - w->began_ns);
    atomic_fetch_add_explicit(conn->dec.is_read ? &served->read_bytes : &served->written_bytes, w->bytes,
                              memory_order_relaxed);
}

static step_t
step_answer(kvp_tcp_conn_t *conn, size_t *n_out)
{
    kvp_tcp_gather_t g;
    kvp_err_t err;

    if (!conn->can_send) return STEP_WAIT;
    kvp_tcp_answer_gather(conn, &g);
    err = kvp_tcp_sock_send(conn->fd, g.iov, g.n, n_out);
    if (err == KVP_EAGAIN) {
        conn->can_send = false;
        return STEP_WAIT;
    }
    if (err != KVP_OK) {
        kvp_tcp_conn_kill(conn);
        return STEP_DEAD;
    }
    kvp_tcp_answer_took(conn, *n_out);
    if (kvp_tcp_answer_is_over(conn)) {
        count_served(conn);
        conn->state = KVP_TCP_CONN_REQUEST;
        conn->work->ops_n = 0;
    }
    return STEP_MORE;
}

/* ---- turns: a connection's share of its lane */

/* Returns whether the connection stopped in the middle of an operation that will use exported memory again without a
 * check. A guarded WRITE checks its guard before each copy, so it does not count. */
static bool
is_within_op(const kvp_tcp_conn_t *conn)
{
    const kvp_tcp_work_t *w = conn->work;

    if (w == NULL) return false;
    if (conn->state == KVP_TCP_CONN_ANSWER) return w->off > 0;
    return conn->state == KVP_TCP_CONN_REQUEST && kvp_data_dec_body_left(&conn->dec) > 0 && w->land.guard == NULL &&
           w->status[w->ops_n - 1] == KVP_OK;
}

static void
note_busy(kvp_tcp_conn_t *conn)
{
    bool is_within = is_within_op(conn);
    bool is_listed = !kvp_list_is_empty(&conn->on_busy);

    if (is_within && is_listed && conn->busy_serial == conn->op_serial) return;
    kvp_list_del(&conn->on_busy);
    if (!is_within) return;
    conn->busy_serial = conn->op_serial;
    conn->busy_seq = ++conn->lane->seq;
    kvp_list_add_tail(&conn->lane->busy, &conn->on_busy);
}

bool
kvp_tcp_conn_turn(kvp_tcp_conn_t *conn)
{
    size_t used = 0;
    step_t step = STEP_MORE;

    while (step == STEP_MORE && used < TURN_BYTES) {
        size_t n = 0;

        switch (conn->state) {
        case KVP_TCP_CONN_HELLO:
            step = conn->can_recv ? step_hello(conn) : STEP_WAIT;
            break;
        case KVP_TCP_CONN_REFUSED:
            step = conn->can_recv ? step_refused(conn) : STEP_WAIT;
            break;
        case KVP_TCP_CONN_REQUEST:
            step = step_request(conn, &n);
            break;
        case KVP_TCP_CONN_ANSWER:
            step = step_answer(conn, &n);
            break;
        case KVP_TCP_CONN_CLOSED:
            step = STEP_DEAD;
            break;
        }
        used += n;
    }
    if (step != STEP_DEAD) note_busy(conn);
    return step == STEP_MORE;
}

bool
kvp_tcp_conn_uses(const kvp_tcp_conn_t *conn, const kvp_mr_t *mr)
{
    const kvp_tcp_work_t *w = conn->work;

    if (w == NULL) return false;
    if (conn->state == KVP_TCP_CONN_REQUEST && kvp_data_dec_body_left(&conn->dec) > 0)
        return w->land.mr == mr || w->land.guard_mr == mr;
    if (w->ops_n == 0 || !conn->dec.is_read) return false;
    for (uint32_t i = conn->state == KVP_TCP_CONN_ANSWER ? w->op : 0; i < w->ops_n; i++)
        if (w->status[i] == KVP_OK && w->reads[i].mr == mr) return true;
    return false;
}
