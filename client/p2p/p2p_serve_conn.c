/* SPDX-License-Identifier: Apache-2.0
 * What peers ask on a control connection. A job touches registered memory a slice at a time, holding its range for no longer:
 * unregistering waits for one slice, whatever the peer does.
 */
#include "client/p2p/p2p_serve_conn.h"

#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLICE_BYTES (1u << 20)
#define PULL_PIECES 128u /* of one slice */

/* ---- hello */
static void
judge(const kvp_p2p_conn_t *conn, const kvp_peer_hello_t *hello, kvp_peer_hello_reply_t *reply)
{
    if (conn->is_over) {
        reply->err = KVP_BUSY;
        snprintf(reply->detail, sizeof reply->detail, "%u connections are open already", KVP_P2P_CONNS_MAX);
    }
    if (hello->version < KVP_PROTO_VERSION_MIN || hello->version_min > KVP_PROTO_VERSION) {
        reply->err = KVP_VERSION;
        snprintf(reply->detail, sizeof reply->detail, "this endpoint speaks versions %u to %u, not %u to %u",
                 KVP_PROTO_VERSION_MIN, KVP_PROTO_VERSION, hello->version_min, hello->version);
    }
}

static kvp_err_t
on_hello(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame, const char **why_out)
{
    const kvp_peer_hello_t *me = shared->conf.me;
    kvp_peer_hello_reply_t reply = {.incarnation = me->incarnation};
    kvp_peer_hello_t hello;
    kvp_err_t err = kvp_peer_hello_decode(frame, &hello);

    if (err != KVP_OK) {
        *why_out = "no hello";
        return err;
    }
    judge(conn, &hello, &reply);
    conn->is_leaving = reply.err != KVP_OK;
    reply.version = (uint32_t)kvp_min_u64(hello.version, KVP_PROTO_VERSION);
    if (reply.err == KVP_OK) {
        conn->incarnation = hello.incarnation;
        kvp_list_del(&conn->on_hellos);
        snprintf(reply.transport, sizeof reply.transport, "%s", shared->conf.tp->ops->name);
        if (conn->is_unix) {
            reply.proc = me->proc;
            reply.can_pull = kvp_cma_open(conn->io.fd, &hello.proc, &conn->proc);
            kvp_forkguard_add(shared->conf.guard, conn->proc.fd);
        } else if (strcmp(hello.host_id, me->host_id) == 0) {
            snprintf(reply.unix_path, sizeof reply.unix_path, "%s", shared->unix_path);
        }
    }
    kvp_peer_hello_reply_encode(&conn->io.out, frame->hdr.request_id, &reply);
    return conn->io.out.err;
}

/* ---- find, notify, cut */
static kvp_err_t
on_find(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    const kvp_peer_at_t *at;
    kvp_peer_range_t *found;
    uint32_t n;
    kvp_err_t err = kvp_peer_find_decode(frame, &at, &n);

    if (err != KVP_OK) return err;
    found = malloc(n * sizeof *found);
    if (found == NULL) return KVP_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        found[i] = (kvp_peer_range_t){.err = KVP_NOT_REGISTERED};
        if (at[i].token == 0 && shared->conf.needs_tokens) continue;
        kvp_ignore(kvp_p2p_ranges_find(shared->conf.ranges, &at[i], conn->incarnation, &found[i]),
                   "it is in the record");
    }
    kvp_peer_reply_encode(&conn->io.out, KVP_OP_PEER_FIND, frame->hdr.request_id, KVP_OK, "", found, n, sizeof *found);
    free(found);
    return conn->io.out.err;
}

static kvp_err_t
on_note(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_peer_note_t *note = NULL;
    kvp_err_t err = kvp_peer_note_decode(frame, &note);

    if (err != KVP_OK) return err;
    pthread_mutex_lock(&shared->notes_lock);
    if (shared->notes_n < KVP_P2P_NOTES_MAX) {
        kvp_list_add_tail(&shared->notes, &note->link);
        shared->notes_n++;
        note = NULL;
    }
    pthread_mutex_unlock(&shared->notes_lock);
    err = note == NULL ? KVP_OK : KVP_LIMIT;
    free(note);
    kvp_peer_reply_encode(&conn->io.out, KVP_OP_PEER_NOTIFY, frame->hdr.request_id, err,
                          err == KVP_OK ? "" : "nobody takes this endpoint's messages", NULL, 0, 0);
    return conn->io.out.err;
}

static kvp_err_t
on_cut(const kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_tp_t *tp = shared->conf.tp;
    const uint64_t *conns;
    uint32_t n;
    kvp_err_t err = kvp_peer_cut_decode(frame, &conns, &n);

    if (err != KVP_OK) return err;
    for (uint32_t i = 0; i < n; i++)
        tp->ops->peer_cut(tp, conns[i]);
    kvp_peer_reply_encode(&conn->io.out, KVP_OP_PEER_CUT, frame->hdr.request_id, KVP_OK, "", NULL, 0, 0);
    return conn->io.out.err;
}

/* ---- map */
static kvp_err_t
on_map(const kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_buf_t *out = &conn->io.out;
    uint64_t token, cell = 0;
    int fds[2];
    kvp_err_t err = kvp_peer_map_decode(frame, &token);

    if (err != KVP_OK) return err;
    /* What is said over TCP could be another's word; and who may not be read is given nothing. */
    err = conn->proc.fd >= 0 ? kvp_p2p_owns_share(shared->conf.owns, token, fds, &cell) : KVP_NOTSUP;
    if (err == KVP_OK) {
        err = kvp_framed_out_fds(&conn->io, out->len, fds, 2);
        close(fds[0]);
        close(fds[1]);
    }
    kvp_peer_reply_encode(out, KVP_OP_PEER_MAP, frame->hdr.request_id, err,
                          err == KVP_OK ? "" : "it is not to be mapped", &cell, err == KVP_OK ? 1 : 0, sizeof cell);
    return out->err;
}

/* ---- moves */
void
kvp_p2p_job_drop(kvp_p2p_job_t *job)
{
    free(job->pieces);
    free(job->moved);
    if (job->sum != NULL) kvp_sum_destroy(job->sum);
    memset(job, 0, sizeof *job);
}

static kvp_err_t
on_move(kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_p2p_job_t *job = &conn->job;
    kvp_peer_moves_t moves;
    kvp_err_t err = kvp_peer_moves_decode(frame, &moves);

    if (err != KVP_OK) return err;
    if (moves.kind == KVP_PEER_PULL && conn->proc.fd < 0) return KVP_PROTO; /* it was told that we cannot */
    *job = (kvp_p2p_job_t){
        .request_id = frame->hdr.request_id, .kind = moves.kind, .deadline_ns = moves.deadline_ns, .n = moves.n};
    job->pieces = malloc(moves.n * sizeof *job->pieces);
    job->moved = calloc(moves.n, sizeof *job->moved);
    if (moves.kind == KVP_PEER_SUM) job->sum = kvp_sum_create();
    if (job->pieces == NULL || job->moved == NULL || (moves.kind == KVP_PEER_SUM && job->sum == NULL)) {
        kvp_p2p_job_drop(job);
        return KVP_NOMEM;
    }
    memcpy(job->pieces, moves.pieces, moves.n * sizeof *job->pieces);
    if (job->sum != NULL) kvp_sum_reset(job->sum);
    return KVP_OK;
}

static void
end_piece(kvp_p2p_job_t *job, kvp_err_t err)
{
    job->moved[job->at].err = err;
    if (job->sum != NULL) {
        if (err == KVP_OK) job->moved[job->at].sum = kvp_sum_digest(job->sum);
        kvp_sum_reset(job->sum);
    }
    job->at++;
    job->off = 0;
}

/* ---- pulls: many pieces with one system call */
typedef struct {
    struct iovec here[PULL_PIECES], there[PULL_PIECES];
    uint32_t piece[PULL_PIECES]; /* of the job */
    uint32_t n;
    kvp_reg_t *held[PULL_PIECES];
    uint32_t held_n;
} pull_t;

/* gather takes the next slice's pieces, each with its range held, and goes on to behind them. */
static void
gather(kvp_p2p_shared_t *shared, kvp_p2p_job_t *job, pull_t *pull)
{
    uint64_t left = SLICE_BYTES;
    kvp_regs_cursor_t cursor;

    kvp_p2p_ranges_begin(shared->conf.ranges, &cursor);
    while (job->at < job->n && left > 0 && pull->n < PULL_PIECES) {
        const kvp_peer_piece_t *piece = &job->pieces[job->at];
        uint64_t n = kvp_min_u64(left, piece->len - job->off);
        kvp_peer_at_t at = {.addr = piece->addr + job->off, .len = n, .token = piece->token};
        bool is_new;
        kvp_reg_t *reg = kvp_p2p_ranges_hold_next(shared->conf.ranges, &cursor, &at, &is_new);

        if (reg == NULL) {
            end_piece(job, KVP_NOT_REGISTERED);
            continue;
        }
        if (is_new) pull->held[pull->held_n++] = reg;
        pull->here[pull->n] = (struct iovec){.iov_base = (void *)(uintptr_t)at.addr, .iov_len = (size_t)n};
        pull->there[pull->n] =
            (struct iovec){.iov_base = (void *)(uintptr_t)(piece->from + job->off), .iov_len = (size_t)n};
        pull->piece[pull->n++] = job->at;
        left -= n;
        job->off += n;
        if (job->off == piece->len) end_piece(job, KVP_OK);
    }
    kvp_p2p_ranges_end(shared->conf.ranges);
}

static void
pull_slice(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn)
{
    kvp_p2p_job_t *job = &conn->job;
    pull_t pull;

    if (kvp_now_ns() >= job->deadline_ns) {
        while (job->at < job->n)
            end_piece(job, KVP_DEADLINE);
        return;
    }
    pull.n = pull.held_n = 0;
    gather(shared, job, &pull);
    for (uint32_t i = 0, done_n; i < pull.n; i += done_n + 1) {
        kvp_err_t err = kvp_cma_readv(&conn->proc, pull.there + i, pull.here + i, pull.n - i, &done_n);

        if (err == KVP_OK) break;
        if (done_n == pull.n - i) done_n--; /* all were copied from one that has ended by now: one error says so */
        if (pull.piece[i + done_n] == job->at)
            end_piece(job, err); /* and the rest of it need not be tried */
        else
            job->moved[pull.piece[i + done_n]].err = err;
    }
    for (uint32_t i = 0; i < pull.held_n; i++)
        kvp_p2p_ranges_rele(shared->conf.ranges, pull.held[i]);
}

/* ---- sums and checks */

/* slice does n bytes of the piece at hand. */
static kvp_err_t
slice(kvp_p2p_shared_t *shared, kvp_p2p_job_t *job, uint64_t n)
{
    const kvp_peer_piece_t *piece = &job->pieces[job->at];
    kvp_peer_at_t at = {.addr = piece->addr + job->off, .len = n, .token = piece->token};
    kvp_reg_t *reg = kvp_p2p_ranges_hold(shared->conf.ranges, &at);

    if (reg == NULL) return KVP_NOT_REGISTERED;
    if (job->kind == KVP_PEER_SUM) kvp_sum_update(job->sum, (const void *)(uintptr_t)at.addr, (size_t)n);
    kvp_p2p_ranges_rele(shared->conf.ranges, reg);
    return KVP_OK;
}

static void
look_at_some(kvp_p2p_shared_t *shared, kvp_p2p_job_t *job)
{
    uint64_t left = SLICE_BYTES;

    while (left > 0 && job->at < job->n) {
        uint64_t len = job->pieces[job->at].len;
        uint64_t n = job->kind == KVP_PEER_CHECK ? len : kvp_min_u64(left, len - job->off);
        kvp_err_t err = slice(shared, job, n);

        job->off += n;
        left -= kvp_min_u64(left, job->kind == KVP_PEER_CHECK ? 1024 : n);
        if (err != KVP_OK || job->off == len) end_piece(job, err);
    }
}

void
kvp_p2p_conn_work(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn)
{
    kvp_p2p_job_t *job = &conn->job;

    if (job->kind == KVP_PEER_PULL)
        pull_slice(shared, conn);
    else
        look_at_some(shared, job);
    if (job->at < job->n) return;
    kvp_peer_reply_encode(&conn->io.out, KVP_OP_PEER_MOVE, job->request_id, KVP_OK, "", job->moved, job->n,
                          sizeof *job->moved);
    kvp_p2p_job_drop(job);
}

/* ---- all */
kvp_err_t
kvp_p2p_conn_on_frame(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame, const char **why_out)
{
    *why_out = "request is too long";
    if (KVP_FRAME_HDR_BYTES + (size_t)frame->hdr.length > KVP_PEER_REQUEST_MAX) return KVP_PROTO;
    *why_out = "malformed request";
    if (conn->incarnation == 0) return on_hello(shared, conn, frame, why_out);
    switch (frame->hdr.opcode) {
    case KVP_OP_PEER_FIND:
        return on_find(shared, conn, frame);
    case KVP_OP_PEER_MOVE:
        return on_move(conn, frame);
    case KVP_OP_PEER_NOTIFY:
        return on_note(shared, conn, frame);
    case KVP_OP_PEER_CUT:
        return on_cut(shared, conn, frame);
    case KVP_OP_PEER_MAP:
        return on_map(shared, conn, frame);
    default:
        break;
    }
    if (frame->hdr.opcode == KVP_OP_PEER_HELLO || frame->hdr.flags != 0) return KVP_PROTO;
    kvp_peer_reply_encode(&conn->io.out, frame->hdr.opcode, frame->hdr.request_id, KVP_NOTSUP, "no such request", NULL,
                          0, 0);
    return conn->io.out.err;
}
