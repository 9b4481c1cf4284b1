/* SPDX-License-Identifier: Apache-2.0
 * Handles requests of peers on a control connection. A job holds its range of registered memory for one slice at a
 * time, so unregistering waits for one slice, whatever the peer does. */
#include "p2p/serve/conn.h"

#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- bounce buffers that peers use */
#define TURN_BYTES (1u << 20) /* bytes copied between bounce buffer and device memory until the ranges are released */
#define TURN_PIECES 64u

static void
bounce_destroy(kvp_p2p_shared_t *shared, kvp_p2p_bounce_t *bounce)
{
    if (kvp_p2p_ranges_del(shared->conf.ranges, kvp_bounce_part(bounce->bounce, 0)) != KVP_OK)
        kvp_log_error("client", "a bounce buffer was not registered any more");
    kvp_bounce_rele(&shared->bounces, bounce->bounce);
    free(bounce);
}

void
kvp_p2p_bounces_fini(kvp_p2p_shared_t *shared)
{
    while (!kvp_list_is_empty(&shared->idle_bounces)) {
        kvp_p2p_bounce_t *bounce = kvp_list_first(&shared->idle_bounces, kvp_p2p_bounce_t, link);

        kvp_list_del(&bounce->link);
        bounce_destroy(shared, bounce);
    }
    kvp_bounces_fini(&shared->bounces);
}

static kvp_err_t
bounce_create(kvp_p2p_shared_t *shared, kvp_p2p_bounce_t **bounce_out)
{
    kvp_p2p_bounce_t *bounce;
    kvp_devmem_t mem;
    kvp_err_t err;

    if (!kvp_p2p_ranges_device(shared->conf.ranges, &mem)) return KVP_NOTSUP;
    bounce = calloc(1, sizeof *bounce);
    if (bounce == NULL) return KVP_NOMEM;
    kvp_list_init(&bounce->link);
    bounce->token = kvp_random_u64() | 1;
    err = kvp_bounce_take(&shared->bounces, &mem, kvp_now_ns(), &bounce->bounce);
    if (err == KVP_OK) {
        memset(kvp_bounce_part(bounce->bounce, 0), 0,
               KVP_BOUNCE_PART_BYTES); /* clear bytes that another peer may have left in the bounce buffer */
        err = kvp_p2p_ranges_add(shared->conf.ranges, kvp_bounce_part(bounce->bounce, 0), KVP_BOUNCE_PART_BYTES,
                                 bounce->token, true);
        if (err != KVP_OK) kvp_bounce_rele(&shared->bounces, bounce->bounce);
    }
    if (err != KVP_OK) {
        free(bounce);
        return err == KVP_DEADLINE ? KVP_BUSY : err;
    }
    *bounce_out = bounce;
    return KVP_OK;
}

/* Returns an idle bounce buffer, or a new one. Errors: NOTSUP (no device memory is registered), BUSY, NOMEM, SYS. */
static kvp_err_t
take_bounce(kvp_p2p_shared_t *shared, kvp_p2p_bounce_t **bounce_out)
{
    if (kvp_list_is_empty(&shared->idle_bounces)) return bounce_create(shared, bounce_out);
    *bounce_out = kvp_list_first(&shared->idle_bounces, kvp_p2p_bounce_t, link);
    kvp_list_del(&(*bounce_out)->link);
    return KVP_OK;
}

/* Takes a peer's bounce buffer back. If peers need tokens, the buffer is destroyed, as this peer still has its key. */
void
kvp_p2p_bounce_give(kvp_p2p_shared_t *shared, kvp_p2p_bounce_t *bounce, bool is_quiet)
{
    if (is_quiet && !shared->conf.needs_tokens)
        kvp_list_add_head(&shared->idle_bounces, &bounce->link);
    else
        bounce_destroy(shared, bounce);
}

bool
kvp_p2p_bounce_takes(const kvp_peer_moves_t *moves)
{
    for (uint32_t i = 0; i < moves->n; i++)
        if (moves->pieces[i].len > KVP_BOUNCE_PART_BYTES ||
            moves->pieces[i].from > KVP_BOUNCE_PART_BYTES - moves->pieces[i].len)
            return false;
    return true;
}

/* Begins to copy one piece between the bounce buffer and device memory. The range of the piece is held until the copy
 * is complete. */
static kvp_err_t
begin_copy(kvp_p2p_shared_t *shared, kvp_p2p_bounce_t *bounce, kvp_peer_move_t kind, const kvp_peer_piece_t *piece,
           kvp_reg_t **reg_out)
{
    kvp_peer_at_t at = {.addr = piece->addr, .len = piece->len, .token = piece->token};
    uint8_t *bounced = kvp_bounce_part(bounce->bounce, 0) + piece->from;
    void *device = (void *)(uintptr_t)piece->addr; /* NOLINT(performance-no-int-to-ptr): inside a range of ours */
    bool is_store = kind == KVP_PEER_STORE;
    kvp_reg_t *reg = kvp_p2p_ranges_hold(shared->conf.ranges, &at, true);

    *reg_out = reg;
    if (reg == NULL) return KVP_NOT_REGISTERED;
    return kvp_bounce_copy(bounce->bounce, kvp_reg_mem(reg), is_store ? device : bounced, is_store ? bounced : device,
                           (size_t)piece->len);
}

/* Copies some of the job's pieces, at least one, between the bounce buffer and device memory. */
static void
copy_some(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn)
{
    kvp_p2p_job_t *job = &conn->job;
    kvp_peer_moved_t *moved = job->moved + job->at;
    kvp_reg_t *regs[TURN_PIECES];
    uint64_t bytes = 0;
    uint32_t n = 0;
    kvp_err_t err;

    for (; job->at < job->n && n < TURN_PIECES && bytes < TURN_BYTES; n++) {
        const kvp_peer_piece_t *piece = &job->pieces[job->at++];

        moved[n].err = begin_copy(shared, conn->bounce, job->kind, piece, &regs[n]);
        bytes += piece->len;
    }
    err = kvp_bounce_wait(conn->bounce->bounce);
    for (uint32_t i = 0; i < n; i++) {
        if (moved[i].err == KVP_OK) moved[i].err = err;
        kvp_p2p_ranges_rele(shared->conf.ranges, regs[i]);
    }
}

#define SLICE_BYTES (1u << 20)

/* ---- hello */
static void
judge_hello(const kvp_p2p_conn_t *conn, const kvp_peer_hello_t *hello, kvp_peer_hello_reply_t *reply)
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
    judge_hello(conn, &hello, &reply);
    if (reply.err != KVP_OK) conn->state = KVP_P2P_CONN_REFUSED;
    reply.version = (uint32_t)kvp_min_u64(hello.version, KVP_PROTO_VERSION);
    if (reply.err == KVP_OK) {
        conn->incarnation = hello.incarnation;
        kvp_list_del(&conn->on_hellos);
        snprintf(reply.transport, sizeof reply.transport, "%s", shared->conf.tp->ops->name);
        reply.rdma_port = shared->conf.rdma_port;
        if (conn->io.is_unix) {
            reply.proc = me->proc;
            reply.can_pull = kvp_cma_open(conn->io.fd, &hello.proc, &conn->proc) == KVP_OK;
        } else if (strcmp(hello.host_id, me->host_id) == 0) {
            snprintf(reply.unix_path, sizeof reply.unix_path, "%s", shared->unix_path);
        }
    }
    kvp_peer_hello_reply_encode(&conn->io.out, frame->hdr.request_id, &reply);
    return conn->io.out.err;
}

/* ---- requests: find, notify, cut, rdma */
static kvp_err_t
on_find(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_peer_range_t *found;
    kvp_peer_find_t find;
    kvp_err_t err = kvp_peer_find_decode(frame, &find);

    if (err != KVP_OK) return err;
    found = malloc(find.n * sizeof *found);
    if (found == NULL) return KVP_NOMEM;
    for (uint32_t i = 0; i < find.n; i++) {
        found[i] = (kvp_peer_range_t){.err = KVP_NOT_REGISTERED};
        if (find.at[i].token == 0 && shared->conf.needs_tokens) continue;
        kvp_ignore(kvp_p2p_ranges_find(shared->conf.ranges, &find, &find.at[i], conn->incarnation, &found[i]),
                   "it is in the record");
    }
    kvp_peer_reply_encode(&conn->io.out, KVP_OP_PEER_FIND, frame->hdr.request_id, KVP_OK, "", found, find.n,
                          sizeof *found);
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
                          err == KVP_OK ? "" : "this endpoint receives no messages", NULL, 0, 0);
    return conn->io.out.err;
}

static kvp_err_t
on_cut(const kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_tp_t *tp = shared->conf.tp, *rdma = shared->conf.rdma;
    const uint64_t *conns;
    uint32_t n;
    kvp_err_t err = kvp_peer_cut_decode(frame, &conns, &n);

    if (err != KVP_OK) return err;
    for (uint32_t i = 0; i < n; i++) {
        tp->ops->peer_cut(tp, conns[i]);
        if (rdma != NULL) rdma->ops->peer_cut(rdma, conns[i]);
    }
    kvp_peer_reply_encode(&conn->io.out, KVP_OP_PEER_CUT, frame->hdr.request_id, KVP_OK, "", NULL, 0, 0);
    return conn->io.out.err;
}

void
kvp_p2p_conn_end_rdma(const kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn)
{
    if (conn->rdma_conn != 0) shared->conf.rdma->ops->peer_left(shared->conf.rdma, conn->rdma_conn);
    conn->rdma_conn = 0;
}

/* Records the peer's RDMA connection. A control connection has one RDMA connection at a time: a repeated request
 * replaces the old one. */
static kvp_err_t
on_rdma(const kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    uint64_t rdma_conn;
    kvp_err_t err = kvp_peer_rdma_decode(frame, &rdma_conn);

    if (err != KVP_OK) return err;
    err = shared->conf.rdma != NULL ? KVP_OK : KVP_NOTSUP;
    if (err == KVP_OK) {
        kvp_p2p_conn_end_rdma(shared, conn);
        conn->rdma_conn = rdma_conn;
        shared->conf.rdma->ops->peer_came(shared->conf.rdma, rdma_conn);
    }
    kvp_peer_reply_encode(&conn->io.out, KVP_OP_PEER_RDMA, frame->hdr.request_id, err,
                          err == KVP_OK ? "" : "this endpoint has no rdma", NULL, 0, 0);
    return conn->io.out.err;
}

/* ---- requests: bounce buffers */
static kvp_err_t
on_stage(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_peer_at_t at = {0};
    bool is_return;
    kvp_err_t err = kvp_peer_stage_decode(frame, &is_return);

    if (err != KVP_OK) return err;
    if (is_return && conn->bounce != NULL) {
        /* the peer that returns its bounce buffer confirms that no transfer uses the buffer */
        kvp_p2p_bounce_give(shared, conn->bounce, true);
        conn->bounce = NULL;
    }
    if (!is_return && conn->bounce == NULL) err = take_bounce(shared, &conn->bounce);
    if (!is_return && err == KVP_OK)
        at = (kvp_peer_at_t){.addr = (uintptr_t)kvp_bounce_part(conn->bounce->bounce, 0),
                             .len = KVP_BOUNCE_PART_BYTES,
                             .token = conn->bounce->token};
    kvp_peer_reply_encode(&conn->io.out, KVP_OP_PEER_STAGE, frame->hdr.request_id, err,
                          err == KVP_OK ? "" : "no bounce buffer", &at, err == KVP_OK && !is_return ? 1 : 0, sizeof at);
    return conn->io.out.err;
}

/* ---- requests: map */
static kvp_err_t
on_map(const kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_buf_t *out = &conn->io.out;
    uint64_t token, cell = 0;
    int fds[2];
    kvp_err_t err = kvp_peer_map_decode(frame, &token);

    if (err != KVP_OK) return err;
    /* Only a peer whose process was verified over the Unix socket may map memory. A message over TCP could come from
     * another process. A process whose memory this one may not read gets no memory either. */
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

/* ---- requests: moves */
void
kvp_p2p_job_drop(kvp_p2p_job_t *job)
{
    free(job->pieces);
    free(job->moved);
    if (job->sum != NULL) kvp_sum_destroy(job->sum);
    memset(job, 0, sizeof *job);
}

bool
kvp_p2p_job_stop(kvp_p2p_shared_t *shared, kvp_p2p_job_t *job)
{
    return job->pieces == NULL || job->kind != KVP_PEER_PULL || kvp_p2p_pull_drop(shared->conf.pullers, &job->pull);
}

static bool
is_bounced(kvp_peer_move_t kind)
{
    return kind == KVP_PEER_FETCH || kind == KVP_PEER_STORE;
}

static kvp_err_t
on_move(kvp_p2p_shared_t *shared, kvp_p2p_conn_t *conn, const kvp_frame_t *frame)
{
    kvp_p2p_job_t *job = &conn->job;
    kvp_peer_moves_t moves;
    kvp_err_t err = kvp_peer_moves_decode(frame, &moves);

    if (err != KVP_OK) return err;
    /* PULL asks us to read the peer's memory. Without conn->proc our Hello denied can_pull: then PULL is an error. */
    if (moves.kind == KVP_PEER_PULL && conn->proc.fd < 0) return KVP_PROTO;
    if (is_bounced(moves.kind) && (conn->bounce == NULL || !kvp_p2p_bounce_takes(&moves))) return KVP_PROTO;
    *job = (kvp_p2p_job_t){.request_id = frame->hdr.request_id, .kind = moves.kind, .n = moves.n};
    job->pieces = malloc(moves.n * sizeof *job->pieces);
    job->moved = calloc(moves.n, sizeof *job->moved);
    if (moves.kind == KVP_PEER_SUM) job->sum = kvp_sum_create();
    if (job->pieces == NULL || job->moved == NULL || (moves.kind == KVP_PEER_SUM && job->sum == NULL)) {
        kvp_p2p_job_drop(job);
        return KVP_NOMEM;
    }
    memcpy(job->pieces, moves.pieces, moves.n * sizeof *job->pieces);
    if (job->sum != NULL) kvp_sum_reset(job->sum);
    if (job->kind != KVP_PEER_PULL) return KVP_OK;
    job->pull = (kvp_p2p_pull_t){.proc = &conn->proc,
                                 .ranges = shared->conf.ranges,
                                 .wake_fd = shared->wake_fd,
                                 .pieces = job->pieces,
                                 .moved = job->moved,
                                 .deadline_ns = moves.deadline_ns,
                                 .n = job->n};
    kvp_p2p_pull_begin(shared->conf.pullers, &job->pull);
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

/* ---- sums and checks */

/* Processes the next n bytes of the current piece: adds them to the checksum, or only checks that they are
 * registered. */
static kvp_err_t
run_slice(kvp_p2p_shared_t *shared, kvp_p2p_job_t *job, uint64_t n)
{
    const kvp_peer_piece_t *piece = &job->pieces[job->at];
    kvp_peer_at_t at = {.addr = piece->addr + job->off, .len = n, .token = piece->token};
    kvp_reg_t *reg = kvp_p2p_ranges_hold(shared->conf.ranges, &at, false);

    if (reg == NULL) return KVP_NOT_REGISTERED;
    if (job->kind == KVP_PEER_SUM) kvp_sum_update(job->sum, (const void *)(uintptr_t)at.addr, (size_t)n);
    kvp_p2p_ranges_rele(shared->conf.ranges, reg);
    return KVP_OK;
}

static void
pull_some(kvp_p2p_shared_t *shared, kvp_p2p_job_t *job)
{
    kvp_p2p_pull_state_t state = kvp_p2p_pull_work(shared->conf.pullers, &job->pull);

    job->is_waiting = state == KVP_P2P_PULL_BUSY;
    if (state == KVP_P2P_PULL_OVER) job->at = job->n;
}

static void
look_at_some(kvp_p2p_shared_t *shared, kvp_p2p_job_t *job)
{
    uint64_t left = SLICE_BYTES;

    while (left > 0 && job->at < job->n) {
        uint64_t len = job->pieces[job->at].len;
        uint64_t n = job->kind == KVP_PEER_CHECK ? len : kvp_min_u64(left, len - job->off);
        kvp_err_t err = run_slice(shared, job, n);

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
        pull_some(shared, job);
    else if (is_bounced(job->kind))
        copy_some(shared, conn);
    else
        look_at_some(shared, job);
    if (job->at < job->n) return;
    kvp_peer_reply_encode(&conn->io.out, KVP_OP_PEER_MOVE, job->request_id, KVP_OK, "", job->moved, job->n,
                          sizeof *job->moved);
    kvp_p2p_job_drop(job);
}

/* ---- all requests */
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
        return on_move(shared, conn, frame);
    case KVP_OP_PEER_NOTIFY:
        return on_note(shared, conn, frame);
    case KVP_OP_PEER_CUT:
        return on_cut(shared, conn, frame);
    case KVP_OP_PEER_MAP:
        return on_map(shared, conn, frame);
    case KVP_OP_PEER_RDMA:
        return on_rdma(shared, conn, frame);
    case KVP_OP_PEER_STAGE:
        return on_stage(shared, conn, frame);
    default:
        break;
    }
    if (frame->hdr.opcode == KVP_OP_PEER_HELLO || frame->hdr.flags != 0) return KVP_PROTO;
    kvp_peer_reply_encode(&conn->io.out, frame->hdr.opcode, frame->hdr.request_id, KVP_NOTSUP, "no such request", NULL,
                          0, 0);
    return conn->io.out.err;
}
