/* SPDX-License-Identifier: Apache-2.0
 * tcp: one-sided transfers over a stream. This file is the transport's table and the side that asks: connect, submit,
 * poll. One thread at a time uses an endpoint; tcp_serve.c answers.
 *
 * Design notes.
 * - Transfers stand in a ring in the order of submission. Neighbours of one kind (READ; WRITE and PUBLISH) make up a
 *   request. Requests are sent, and answered, in order, so a transfer's place in the ring is all its bookkeeping.
 * - Payload goes between the socket and the caller's memory, with nothing in between: two cursors, tx and rx, walk the
 *   requests and give the next piece of memory to be sent or to be filled.
 * - ep_poll sends and receives in one go, and the serving side does one or the other: two full sockets cannot lock up.
 * - A sum is taken of each piece while it is in the cache: after it was received, before it is sent.
 */
#include "client/transport/builtin.h"
#include "client/transport/tcp_serve.h"
#include "client/transport/tcp_sock.h"
#include "client/transport/tcp_wire.h"
#include "common/clock.h"
#include "common/log.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RING 4096u /* transfers under way */
#define REQS 512u /* requests under way */
#define REQ_PAYLOAD_BYTES (8u << 20) /* a request is closed when it has that much; one transfer may have more */
#define PIECE_BYTES (512u << 10) /* of one system call: stays in the second-level cache until it is summed */
#define POLL_BYTES (8u << 20) /* of one ep_poll in each direction, so that callers see their clock */
#define IOVS 64u
#define REPLY_MAX 1024u
#define HEAD_WORDS ((sizeof(kvp_data_rep_t) + 4 * KVP_DATA_OPS_MAX) / 8)

typedef struct {
    kvp_tp_t base;
    uint64_t incarnation;
    uint8_t pool_id[16];
    kvp_tcp_server_t *server;
} tcp_tp_t;

typedef struct {
    kvp_mr_t base;
    uint64_t read_key;
    uint64_t write_key;
} tcp_mr_t;

typedef struct {
    kvp_rseg_t base;
    uint64_t key;
} tcp_rseg_t;

/* A request: transfers first .. first + hdr.n_ops of the ring. */
typedef struct {
    kvp_data_req_t hdr;
    uint32_t first;
    bool is_read;
    bool is_after_reads; /* holds a WRITE whose source an earlier READ may fill */
    uint64_t payload;
} req_t;

/* The next byte to send. */
typedef struct {
    uint32_t req; /* reqs_tail: nothing is left to send */
    enum { TX_HDR, TX_OP, TX_BODY } part;
    uint32_t op;
    uint32_t iov; /* in a body: the iov, and how much of the body lies before the next byte */
    uint64_t body;
    size_t off; /* in the header, the operation's record, or the iov */
    uint64_t pos; /* in the whole stream; places what was summed */
} tx_t;

/* The next byte to receive: in the head of an answer, or in the body of the transfer at the ring's head. */
typedef struct {
    bool in_body;
    size_t head_got;
    uint32_t iov;
    uint64_t body;
    size_t off;
} rx_t;

typedef enum {
    EP_CONNECTING,
    EP_HELLO,
    EP_READY,
    EP_BROKEN,
} ep_state_t;

typedef struct {
    kvp_ep_t base;
    int fd;
    ep_state_t state;
    kvp_err_t broken_by;
    kvp_ep_done_fn done; /* NULL once it has fired */
    void *arg;
    kvp_buf_t hello;
    size_t hello_sent;
    uint32_t reply_len;
    uint8_t reply[REPLY_MAX];

    /* Positions only grow; the slot is the position modulo the size. */
    uint32_t head, tail; /* of the ring: owned transfers */
    uint32_t reqs_head, reqs_tail; /* reqs_head is the one whose answer is being received */
    uint32_t reads_sent; /* READ requests sent whole and not answered whole */
    tx_t tx;
    rx_t rx;
    uint64_t tx_summed; /* stream position up to which sums were taken */
    kvp_sum_state_t *tx_sum;
    kvp_sum_state_t *rx_sum;
    uint32_t heads_at; /* which of the two is of the answer at hand; the other receives the next one's */
    uint64_t heads[2][HEAD_WORDS];
    size_t fired; /* completions in this call */

    req_t reqs[REQS];
    kvp_xfer_t *ring[RING];
    kvp_data_op_t ops[RING];
} tcp_ep_t;

static tcp_tp_t *
tcp_tp(kvp_tp_t *base)
{
    return kvp_container_of(base, tcp_tp_t, base);
}

static tcp_ep_t *
tcp_ep(kvp_ep_t *base)
{
    return kvp_container_of(base, tcp_ep_t, base);
}

static req_t *
req_at(tcp_ep_t *ep, uint32_t pos)
{
    return &ep->reqs[pos % REQS];
}

static kvp_xfer_t *
xfer_at(tcp_ep_t *ep, uint32_t pos)
{
    return ep->ring[pos % RING];
}

/* Completions */

static void
complete(tcp_ep_t *ep, kvp_err_t status)
{
    kvp_xfer_t *x = xfer_at(ep, ep->head++);

    x->status = status;
    ep->fired++;
    x->done(x);
}

static void
fire_connect(tcp_ep_t *ep, kvp_err_t err)
{
    kvp_ep_done_fn done = ep->done;

    ep->done = NULL;
    if (done != NULL) done(ep->arg, err);
}

/* ep_break ends the endpoint: the socket is closed first, so nothing touches the memory of what completes then. */
static void
ep_break(tcp_ep_t *ep, kvp_err_t err)
{
    if (ep->state == EP_BROKEN) return;
    ep->state = EP_BROKEN;
    ep->broken_by = err;
    /* Not close alone: a forked child may hold the socket, too. */
    shutdown(ep->fd, SHUT_RDWR);
    close(ep->fd);
    ep->fd = -1;
    fire_connect(ep, err);
    while (ep->head != ep->tail)
        complete(ep, err);
}

/* Sending */

typedef struct {
    uint8_t *at;
    size_t len;
    kvp_xfer_t *xfer; /* of a body */
} piece_t;

/* tx_piece gives the contiguous bytes at the cursor; false at the end of what was submitted. */
static bool
tx_piece(tcp_ep_t *ep, tx_t *tx, piece_t *piece)
{
    req_t *req = req_at(ep, tx->req);
    uint32_t pos = req->first + tx->op;

    if (tx->req == ep->reqs_tail) return false;
    *piece = (piece_t){0};
    if (tx->part == TX_HDR) {
        piece->at = (uint8_t *)&req->hdr + tx->off;
        piece->len = sizeof req->hdr - tx->off;
    } else if (tx->part == TX_OP) {
        /* The records of READs follow one another, up to where the ring wraps. */
        uint32_t n = req->is_read ? (uint32_t)kvp_min_u64(req->hdr.n_ops - tx->op, RING - pos % RING) : 1;
        piece->at = (uint8_t *)&ep->ops[pos % RING] + tx->off;
        piece->len = n * sizeof ep->ops[0] - tx->off;
    } else {
        kvp_xfer_t *x = xfer_at(ep, pos);
        while (x->iov[tx->iov].len == 0)
            tx->iov++;
        piece->xfer = x;
        piece->at = (uint8_t *)x->iov[tx->iov].addr + tx->off;
        piece->len = x->iov[tx->iov].len - tx->off;
    }
    return true;
}

static void
tx_next_op(tx_t *tx, const req_t *req, uint32_t n)
{
    tx->op += n;
    tx->part = TX_OP;
    tx->off = 0;
    if (tx->op < req->hdr.n_ops) return;
    tx->req++;
    tx->op = 0;
    tx->part = TX_HDR;
}

/* tx_move moves the cursor within the piece that tx_piece gave, or to its end. */
static void
tx_move(tcp_ep_t *ep, tx_t *tx, size_t n)
{
    const req_t *req = req_at(ep, tx->req);

    tx->pos += n;
    tx->off += n;
    if (tx->part == TX_HDR) {
        if (tx->off < sizeof req->hdr) return;
        tx->part = TX_OP;
        tx->off = 0;
    } else if (tx->part == TX_OP) {
        uint32_t whole = (uint32_t)(tx->off / sizeof ep->ops[0]);
        size_t rest = tx->off % sizeof ep->ops[0];

        if (whole == 0) return;
        if (!req->is_read && ep->ops[(req->first + tx->op) % RING].kind == KVP_DATA_WRITE) {
            tx->part = TX_BODY;
            tx->iov = 0;
            tx->off = 0;
            tx->body = 0;
            return;
        }
        tx_next_op(tx, req, whole);
        if (tx->part == TX_OP) tx->off = rest;
    } else {
        const kvp_xfer_t *x = xfer_at(ep, req->first + tx->op);

        tx->body += n;
        if (tx->off == x->iov[tx->iov].len) {
            tx->iov++;
            tx->off = 0;
        }
        if (tx->body == x->len) tx_next_op(tx, req, 1);
    }
}

/* Sums what of a body's piece is not yet summed; a piece that was not sent whole comes a second time. */
static void
tx_sum_piece(tcp_ep_t *ep, const tx_t *tx, const piece_t *piece)
{
    kvp_xfer_t *x = piece->xfer;
    uint64_t skip = ep->tx_summed > tx->pos ? ep->tx_summed - tx->pos : 0;

    if (skip >= piece->len) return;
    ep->tx_summed = tx->pos + piece->len;
    if (x == NULL || (x->flags & KVP_XFER_SUM) == 0) return;
    if (piece->len == x->len && skip == 0) {
        x->sum = kvp_sum(piece->at, piece->len);
        return;
    }
    if (tx->body + skip == 0) kvp_sum_reset(ep->tx_sum);
    kvp_sum_update(ep->tx_sum, piece->at + skip, piece->len - skip);
    if (tx->body + piece->len == x->len) x->sum = kvp_sum_digest(ep->tx_sum);
}

/* Whether the cursor must wait: the source of a WRITE may be the destination of a READ before it. */
static bool
tx_is_stalled(tcp_ep_t *ep)
{
    return ep->tx.req != ep->reqs_tail && ep->tx.part == TX_HDR && req_at(ep, ep->tx.req)->is_after_reads &&
           ep->reads_sent > 0;
}

static size_t
gather_tx(tcp_ep_t *ep, struct iovec *iov, size_t *bytes_out)
{
    tx_t tx = ep->tx;
    piece_t piece;
    size_t n = 0;
    size_t bytes = 0;

    while (n < IOVS && bytes < PIECE_BYTES && tx_piece(ep, &tx, &piece)) {
        /* Behind requests that are only being sent now, a stall is not known yet. */
        if (tx.req != ep->tx.req && req_at(ep, tx.req)->is_after_reads) break;
        piece.len = (size_t)kvp_min_u64(piece.len, PIECE_BYTES - bytes);
        tx_sum_piece(ep, &tx, &piece);
        iov[n++] = (struct iovec){.iov_base = piece.at, .iov_len = piece.len};
        bytes += piece.len;
        tx_move(ep, &tx, piece.len);
    }
    *bytes_out = bytes;
    return n;
}

static void
advance_tx(tcp_ep_t *ep, size_t n)
{
    piece_t piece;

    while (n > 0 && tx_piece(ep, &ep->tx, &piece)) {
        size_t part = (size_t)kvp_min_u64(n, piece.len);
        uint32_t req = ep->tx.req;

        tx_move(ep, &ep->tx, part);
        n -= part;
        if (ep->tx.req != req && req_at(ep, req)->is_read) ep->reads_sent++;
    }
}

static void
flush(tcp_ep_t *ep)
{
    size_t total = 0;

    while (ep->state == EP_READY && total < POLL_BYTES && ep->tx.req != ep->reqs_tail && !tx_is_stalled(ep)) {
        struct iovec iov[IOVS];
        size_t bytes;
        size_t n = gather_tx(ep, iov, &bytes);
        size_t sent;
        kvp_err_t err = kvp_tcp_sock_send(ep->fd, iov, n, &sent);

        if (err == KVP_EAGAIN) return;
        if (err != KVP_OK) {
            ep_break(ep, err);
            return;
        }
        advance_tx(ep, sent);
        total += sent;
        if (sent < bytes) return;
    }
}

/* Receiving */

static const int32_t *
rx_status(const tcp_ep_t *ep)
{
    return (const int32_t *)((const uint8_t *)ep->heads[ep->heads_at] + sizeof(kvp_data_rep_t));
}

static void
finish_request(tcp_ep_t *ep)
{
    if (req_at(ep, ep->reqs_head)->is_read) ep->reads_sent--;
    ep->reqs_head++;
    ep->heads_at ^= 1;
    ep->rx = (rx_t){0};
}

/* Completes what has no bytes to come, up to the next transfer that has, or to the end of the answer. */
static void
settle(tcp_ep_t *ep)
{
    const req_t *req = req_at(ep, ep->reqs_head);
    uint32_t end = req->first + req->hdr.n_ops;

    while (ep->head != end) {
        int32_t status = rx_status(ep)[ep->head - req->first];
        if (req->is_read && status == KVP_OK) return;
        complete(ep, status);
    }
    finish_request(ep);
}

static void
take_head(tcp_ep_t *ep)
{
    const req_t *req = req_at(ep, ep->reqs_head);
    uint64_t body = 0;
    kvp_err_t err = KVP_OK;

    for (uint32_t i = 0; i < req->hdr.n_ops; i++) {
        int32_t status = rx_status(ep)[i];
        if (!kvp_data_status_is_valid(status)) err = KVP_PROTO;
        if (req->is_read && status == KVP_OK) body += xfer_at(ep, req->first + i)->len;
    }
    if (err == KVP_OK) err = kvp_data_rep_check(ep->heads[ep->heads_at], req->hdr.seq, req->hdr.n_ops, body);
    if (err != KVP_OK) {
        kvp_log_warn("transport", "data connection closed, malformed answer");
        ep_break(ep, err);
        return;
    }
    ep->rx.in_body = true;
    settle(ep);
}

static void
take_body(tcp_ep_t *ep, const uint8_t *at, size_t n)
{
    kvp_xfer_t *x = xfer_at(ep, ep->head);
    rx_t *rx = &ep->rx;
    bool is_last = rx->body + n == x->len;

    if ((x->flags & KVP_XFER_SUM) != 0) {
        if (n == x->len) {
            x->sum = kvp_sum(at, n);
        } else {
            if (rx->body == 0) kvp_sum_reset(ep->rx_sum);
            kvp_sum_update(ep->rx_sum, at, n);
            if (is_last) x->sum = kvp_sum_digest(ep->rx_sum);
        }
    }
    rx->body += n;
    rx->off += n;
    if (rx->off == x->iov[rx->iov].len) {
        rx->iov++;
        rx->off = 0;
    }
    if (!is_last) return;
    rx->iov = 0;
    rx->off = 0;
    rx->body = 0;
    complete(ep, KVP_OK);
    settle(ep);
}

static void
skip_empty_iov(const kvp_xfer_t *x, uint32_t *iov)
{
    while (x->iov[*iov].len == 0)
        ++*iov;
}

/* What was received lies where gather_rx said: walk the same way. */
static void
take(tcp_ep_t *ep, size_t n)
{
    while (n > 0 && ep->state == EP_READY) {
        if (!ep->rx.in_body) {
            size_t whole = kvp_data_rep_head_bytes(req_at(ep, ep->reqs_head)->hdr.n_ops);
            size_t part = (size_t)kvp_min_u64(n, whole - ep->rx.head_got);

            ep->rx.head_got += part;
            n -= part;
            if (ep->rx.head_got == whole) take_head(ep);
        } else {
            const kvp_xfer_t *x = xfer_at(ep, ep->head);
            const kvp_iov_t *iov;
            size_t part;

            skip_empty_iov(x, &ep->rx.iov);
            iov = &x->iov[ep->rx.iov];
            part = (size_t)kvp_min_u64(n, iov->len - ep->rx.off);
            n -= part;
            take_body(ep, (const uint8_t *)iov->addr + ep->rx.off, part);
        }
    }
}

typedef struct {
    struct iovec iov[IOVS];
    size_t n;
    size_t bytes;
} gather_t;

static void
gather_add(gather_t *g, void *at, size_t len)
{
    g->iov[g->n++] = (struct iovec){.iov_base = at, .iov_len = len};
    g->bytes += len;
}

/* The bodies of the answer at hand, from the cursor on. True where they are in it up to the last one. */
static bool
gather_bodies(tcp_ep_t *ep, gather_t *g)
{
    const req_t *req = req_at(ep, ep->reqs_head);
    const int32_t *status = rx_status(ep);
    rx_t rx = ep->rx;

    for (uint32_t pos = ep->head; pos != req->first + req->hdr.n_ops; pos++) {
        const kvp_xfer_t *x = xfer_at(ep, pos);

        if (status[pos - req->first] != KVP_OK) continue;
        while (rx.body < x->len) {
            size_t len;

            if (g->n == IOVS - 1 || g->bytes == PIECE_BYTES) return false;
            skip_empty_iov(x, &rx.iov);
            len = (size_t)kvp_min_u64(x->iov[rx.iov].len - rx.off, PIECE_BYTES - g->bytes);
            gather_add(g, (uint8_t *)x->iov[rx.iov].addr + rx.off, len);
            rx.body += len;
            rx.iov++;
            rx.off = 0;
        }
        rx = (rx_t){0};
    }
    return true;
}

/* gather_rx gives the memory for the next bytes: as far as the answer at hand is known, and the head of the next. */
static void
gather_rx(tcp_ep_t *ep, gather_t *g)
{
    const req_t *req = req_at(ep, ep->reqs_head);
    bool is_known_to_end;

    g->n = g->bytes = 0;
    if (ep->rx.in_body) {
        is_known_to_end = gather_bodies(ep, g);
    } else {
        size_t whole = kvp_data_rep_head_bytes(req->hdr.n_ops);

        gather_add(g, (uint8_t *)ep->heads[ep->heads_at] + ep->rx.head_got, whole - ep->rx.head_got);
        is_known_to_end = !req->is_read;
    }
    if (!is_known_to_end || ep->reqs_head + 1 == ep->tx.req) return;
    gather_add(g, ep->heads[ep->heads_at ^ 1], kvp_data_rep_head_bytes(req_at(ep, ep->reqs_head + 1)->hdr.n_ops));
}

static void
receive(tcp_ep_t *ep)
{
    size_t total = 0;

    while (ep->state == EP_READY && total < POLL_BYTES) {
        bool is_awaited = ep->reqs_head != ep->tx.req; /* a request was sent whole */
        gather_t g = {0};
        size_t n;
        kvp_err_t err;

        if (is_awaited)
            gather_rx(ep, &g);
        else
            gather_add(&g, ep->heads[0], 1); /* for the end of file; a byte is one too many */
        err = kvp_tcp_sock_recv(ep->fd, g.iov, g.n, &n);
        if (err == KVP_EAGAIN) return;
        if (err == KVP_OK && !is_awaited) err = KVP_PROTO;
        if (err != KVP_OK) {
            ep_break(ep, err);
            return;
        }
        take(ep, n);
        total += n;
        if (n < g.bytes) return;
    }
}

/* Connecting */

static kvp_err_t
pack_hello(tcp_ep_t *ep)
{
    tcp_tp_t *tp = tcp_tp(ep->base.tp);
    Kvp__Pb__DataHello hello = KVP__PB__DATA_HELLO__INIT;
    size_t at;

    hello.version = KVP_PROTO_VERSION;
    hello.version_min = KVP_PROTO_VERSION_MIN;
    hello.pool_id.data = tp->pool_id;
    hello.pool_id.len = sizeof tp->pool_id;
    hello.incarnation = tp->incarnation;
    kvp_pb_frame_begin(&ep->hello, KVP_OP_DATA_HELLO, 0, 0, &hello, &at);
    kvp_frame_end(&ep->hello, at);
    return ep->hello.err;
}

/* The verdict of the serving side, when its answer is whole; EAGAIN before. */
static kvp_err_t
read_verdict(tcp_ep_t *ep)
{
    kvp_frame_t frame;
    size_t used;
    kvp_pb_t pb;
    Kvp__Pb__Reply *reply;
    kvp_err_t err = kvp_frame_parse(ep->reply, ep->reply_len, &frame, &used);

    if (err != KVP_OK || used == 0) return err != KVP_OK ? err : KVP_EAGAIN;
    if (frame.hdr.opcode != KVP_OP_DATA_HELLO || frame.hdr.flags != KVP_FRAME_REPLY) return KVP_PROTO;
    reply = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &frame);
    if (reply == NULL) return KVP_PROTO;
    err = reply->err;
    if (err != KVP_OK) kvp_log_warn("transport", "data connection refused: %s, %s", kvp_err_name(err), reply->detail);
    if (err > 0 || err == KVP_EAGAIN) err = KVP_PROTO;
    kvp_pb_free(&pb, reply);
    return err;
}

/* Receives no byte beyond the answer: what follows is data. */
static kvp_err_t
receive_reply(tcp_ep_t *ep)
{
    for (;;) {
        size_t need = KVP_FRAME_HDR_BYTES;
        struct iovec iov;
        size_t n;
        kvp_err_t err = read_verdict(ep);

        if (err != KVP_EAGAIN) return err;
        if (ep->reply_len >= KVP_FRAME_HDR_BYTES) {
            kvp_frame_hdr_t hdr;
            err = kvp_frame_hdr_decode(ep->reply, &hdr);
            if (err != KVP_OK || hdr.length > sizeof ep->reply - KVP_FRAME_HDR_BYTES) return KVP_PROTO;
            need += hdr.length;
        }
        iov = (struct iovec){.iov_base = ep->reply + ep->reply_len, .iov_len = need - ep->reply_len};
        err = kvp_tcp_sock_recv(ep->fd, &iov, 1, &n);
        if (err != KVP_OK) return err;
        ep->reply_len += (uint32_t)n;
    }
}

static kvp_err_t
send_hello(tcp_ep_t *ep)
{
    while (ep->hello_sent < ep->hello.len) {
        struct iovec iov = {.iov_base = ep->hello.data + ep->hello_sent, .iov_len = ep->hello.len - ep->hello_sent};
        size_t n;
        kvp_err_t err = kvp_tcp_sock_send(ep->fd, &iov, 1, &n);

        if (err != KVP_OK) return err;
        ep->hello_sent += n;
    }
    return KVP_OK;
}

static kvp_err_t
check_connected(tcp_ep_t *ep)
{
    struct pollfd pfd = {.fd = ep->fd, .events = POLLOUT};
    int so_error = 0;
    socklen_t len = sizeof so_error;

    if (poll(&pfd, 1, 0) <= 0) return KVP_EAGAIN;
    if (getsockopt(ep->fd, SOL_SOCKET, SO_ERROR, &so_error, &len) != 0) so_error = errno;
    if (so_error == 0) return KVP_OK;
    errno = so_error;
    kvp_log_warn("transport", "cannot connect for data: %m");
    return KVP_UNREACHABLE;
}

/* Runs the connection up to READY, as far as it goes without blocking. */
static void
advance_connect(tcp_ep_t *ep)
{
    kvp_err_t err = KVP_OK;

    if (ep->state == EP_CONNECTING) {
        err = check_connected(ep);
        if (err == KVP_OK) ep->state = EP_HELLO;
    }
    if (ep->state == EP_HELLO) {
        err = send_hello(ep);
        if (err == KVP_OK) err = receive_reply(ep);
        if (err == KVP_OK) {
            ep->state = EP_READY;
            fire_connect(ep, KVP_OK);
        }
    }
    if (err != KVP_OK && err != KVP_EAGAIN) ep_break(ep, err);
}

static void
ep_free_parts(tcp_ep_t *ep)
{
    if (ep->fd >= 0) close(ep->fd);
    ep->fd = -1;
    kvp_buf_fini(&ep->hello);
    if (ep->tx_sum != NULL) kvp_sum_destroy(ep->tx_sum);
    if (ep->rx_sum != NULL) kvp_sum_destroy(ep->rx_sum);
    ep->tx_sum = ep->rx_sum = NULL;
}

static kvp_err_t
tcp_ep_connect(kvp_tp_t *tp, const kvp_addr_t *to, kvp_ep_t *base, kvp_ep_done_fn done, void *arg)
{
    tcp_ep_t *ep = tcp_ep(base);
    kvp_err_t err;

    (void)tp;
    ep->fd = -1;
    kvp_buf_init(&ep->hello, 0);
    ep->tx_sum = kvp_sum_create();
    ep->rx_sum = kvp_sum_create();
    err = ep->tx_sum == NULL || ep->rx_sum == NULL ? KVP_NOMEM : pack_hello(ep);
    if (err == KVP_OK) err = kvp_tcp_sock_connect(to, &ep->fd);
    if (err != KVP_OK) {
        ep_free_parts(ep);
        return err;
    }
    ep->done = done;
    ep->arg = arg;
    return KVP_OK;
}

static void
tcp_ep_close(kvp_ep_t *base)
{
    tcp_ep_t *ep = tcp_ep(base);

    ep_break(ep, KVP_CANCELLED);
    ep_free_parts(ep);
}

/* Submitting */

static uint64_t
key_of(kvp_rseg_t *rseg)
{
    return kvp_container_of(rseg, tcp_rseg_t, base)->key;
}

static void
encode(kvp_data_op_t *op, const kvp_xfer_t *x)
{
    *op = (kvp_data_op_t){.key = key_of(x->rseg), .off = x->roffset, .len = x->len};
    if ((x->flags & KVP_XFER_AFTER_PRIOR) != 0) op->flags |= KVP_DATA_AFTER_PRIOR;
    if (x->kind == KVP_XFER_READ) {
        op->kind = KVP_DATA_READ;
    } else if (x->kind == KVP_XFER_PUBLISH) {
        op->kind = KVP_DATA_PUBLISH;
        op->guard_word = x->word;
    } else {
        op->kind = KVP_DATA_WRITE;
        if ((x->flags & KVP_XFER_GUARDED) == 0) return;
        op->flags |= KVP_DATA_GUARDED;
        op->guard_key = key_of(x->guard_rseg);
        op->guard_off = x->guard_off;
        op->guard_word = x->guard_word;
    }
}

/* The last request, if this transfer may join it: none of it was sent, and it is of the same kind. */
static req_t *
open_req(tcp_ep_t *ep, const kvp_xfer_t *x)
{
    uint32_t last = ep->reqs_tail - 1;
    req_t *req = req_at(ep, last);
    bool is_begun = ep->tx.req == last ? ep->tx.part != TX_HDR || ep->tx.off > 0 : ep->tx.req == ep->reqs_tail;

    if (ep->reqs_head == ep->reqs_tail || is_begun || req->is_read != (x->kind == KVP_XFER_READ)) return NULL;
    if (req->hdr.n_ops == KVP_DATA_OPS_MAX || req->payload + x->len > REQ_PAYLOAD_BYTES) return NULL;
    return req;
}

static req_t *
new_req(tcp_ep_t *ep, const kvp_xfer_t *x)
{
    req_t *req;

    if (ep->reqs_tail - ep->reqs_head == REQS) return NULL;
    req = req_at(ep, ep->reqs_tail);
    *req = (req_t){.first = ep->tail, .is_read = x->kind == KVP_XFER_READ};
    req->hdr.magic = KVP_DATA_MAGIC;
    req->hdr.seq = ep->reqs_tail;
    ep->reqs_tail++;
    return req;
}

/* False where the rings are full. */
static bool
enqueue(tcp_ep_t *ep, kvp_xfer_t *x)
{
    req_t *req;

    if (ep->tail - ep->head == RING) return false;
    req = open_req(ep, x);
    if (req == NULL) req = new_req(ep, x);
    if (req == NULL) return false;
    encode(&ep->ops[ep->tail % RING], x);
    ep->ring[ep->tail % RING] = x;
    ep->tail++;
    req->hdr.n_ops++;
    req->hdr.bytes += sizeof(kvp_data_op_t);
    req->payload += x->len;
    if (x->kind == KVP_XFER_WRITE) {
        req->hdr.bytes += x->len;
        req->is_after_reads |= (x->flags & KVP_XFER_AFTER_PRIOR) != 0;
    }
    return true;
}

static kvp_err_t
tcp_submit(kvp_ep_t *base, kvp_xfer_t *const *xfers, size_t n, size_t *n_out)
{
    tcp_ep_t *ep = tcp_ep(base);
    size_t i = 0;

    *n_out = 0;
    if (ep->state == EP_BROKEN) return ep->broken_by;
    for (; i < n; i++) {
        kvp_err_t err = kvp_xfer_check(xfers[i]);

        if (err != KVP_OK) {
            xfers[i]->status = err;
            xfers[i]->done(xfers[i]);
        } else if (!enqueue(ep, xfers[i])) {
            break;
        }
    }
    *n_out = i;
    flush(ep);
    return KVP_OK;
}

static size_t
tcp_ep_poll(kvp_ep_t *base)
{
    tcp_ep_t *ep = tcp_ep(base);

    ep->fired = 0;
    if (ep->state == EP_CONNECTING || ep->state == EP_HELLO) advance_connect(ep);
    flush(ep);
    receive(ep);
    /* Answers may have ended a stall. */
    if (ep->fired > 0) flush(ep);
    return ep->fired;
}

static int
tcp_ep_event_fd(kvp_ep_t *base)
{
    return tcp_ep(base)->fd;
}

static short
tcp_ep_arm(kvp_ep_t *base)
{
    tcp_ep_t *ep = tcp_ep(base);

    switch (ep->state) {
    case EP_CONNECTING:
        return POLLOUT;
    case EP_HELLO:
        return ep->hello_sent < ep->hello.len ? POLLOUT : POLLIN;
    case EP_READY:
        return ep->tx.req != ep->reqs_tail && !tx_is_stalled(ep) ? POLLIN | POLLOUT : POLLIN;
    case EP_BROKEN:
        break;
    }
    return 0;
}

static bool
tcp_ep_is_broken(const kvp_ep_t *base)
{
    return kvp_container_of(base, const tcp_ep_t, base)->state == EP_BROKEN;
}

static kvp_err_t
tcp_drain(kvp_ep_t *base, uint64_t deadline_ns)
{
    tcp_ep_t *ep = tcp_ep(base);

    for (;;) {
        struct pollfd pfd;
        struct timespec wait;
        uint64_t now_ns;

        tcp_ep_poll(base);
        if (ep->head == ep->tail) return KVP_OK;
        now_ns = kvp_now_ns();
        if (now_ns >= deadline_ns) return KVP_DEADLINE;
        wait.tv_sec = (time_t)((deadline_ns - now_ns) / KVP_NS_PER_S);
        wait.tv_nsec = (long)((deadline_ns - now_ns) % KVP_NS_PER_S);
        pfd = (struct pollfd){.fd = ep->fd, .events = tcp_ep_arm(base)};
        (void)ppoll(&pfd, 1, &wait, NULL); /* whatever it says, poll and the clock decide */
    }
}

/* Instances and memory */

static kvp_err_t
tcp_init(kvp_tp_t *base, const kvp_tp_conf_t *conf)
{
    tcp_tp_t *tp = tcp_tp(base);

    tp->incarnation = conf->incarnation;
    memcpy(tp->pool_id, conf->pool_id, sizeof tp->pool_id);
    return kvp_tcp_server_create(conf, &tp->server);
}

static void
tcp_fini(kvp_tp_t *base)
{
    kvp_tcp_server_destroy(tcp_tp(base)->server);
    tcp_tp(base)->server = NULL;
}

static kvp_err_t
tcp_listen(kvp_tp_t *base, const kvp_addr_t *at, kvp_addr_t *bound_out)
{
    return kvp_tcp_server_listen(tcp_tp(base)->server, at, bound_out);
}

static kvp_err_t
tcp_adopt(kvp_tp_t *base, int fd)
{
    return kvp_tcp_server_adopt(tcp_tp(base)->server, fd);
}

static kvp_err_t
tcp_serve(kvp_tp_t *base, uint32_t lane, int timeout_ms)
{
    return kvp_tcp_server_serve(tcp_tp(base)->server, lane, timeout_ms);
}

static void
tcp_wake(kvp_tp_t *base)
{
    kvp_tcp_server_wake(tcp_tp(base)->server);
}

static void
tcp_peer_fence(kvp_tp_t *base, uint64_t incarnation, uint64_t live_min, kvp_fence_fn done, void *arg)
{
    kvp_tcp_server_fence(tcp_tp(base)->server, incarnation, live_min, done, arg);
}

static void
tcp_quiesce(kvp_tp_t *base, kvp_quiesce_fn done, void *arg)
{
    kvp_tcp_server_quiesce(tcp_tp(base)->server, done, arg);
}

static kvp_err_t
tcp_mr_reg(kvp_tp_t *base, const kvp_mem_t *mem, kvp_mr_t *base_mr)
{
    tcp_mr_t *mr = kvp_container_of(base_mr, tcp_mr_t, base);
    kvp_exports_t *exports = kvp_tcp_server_exports(tcp_tp(base)->server);
    kvp_err_t err;

    (void)mem;
    err = kvp_exports_add(exports, base_mr, KVP_ACCESS_READ, &mr->read_key);
    if (err != KVP_OK) return err;
    err = kvp_exports_add(exports, base_mr, KVP_ACCESS_WRITE, &mr->write_key);
    if (err != KVP_OK) kvp_exports_del(exports, mr->read_key);
    return err;
}

static void
tcp_mr_dereg(kvp_mr_t *base)
{
    tcp_mr_t *mr = kvp_container_of(base, tcp_mr_t, base);
    kvp_tcp_server_t *server = tcp_tp(base->tp)->server;

    kvp_exports_del(kvp_tcp_server_exports(server), mr->read_key);
    kvp_exports_del(kvp_tcp_server_exports(server), mr->write_key);
    kvp_tcp_server_forget(server, base);
}

static kvp_err_t
tcp_mr_export(const kvp_mr_t *base, kvp_access_t access, kvp_token_t *token_out)
{
    const tcp_mr_t *mr = kvp_container_of(base, const tcp_mr_t, base);

    kvp_exports_token(access == KVP_ACCESS_WRITE ? mr->write_key : mr->read_key, token_out);
    return KVP_OK;
}

static kvp_err_t
tcp_rseg_open(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *rseg)
{
    (void)tp, (void)len, (void)access;
    return kvp_exports_token_key(token, &kvp_container_of(rseg, tcp_rseg_t, base)->key);
}

static void
tcp_rseg_close(kvp_rseg_t *rseg)
{
    (void)rseg;
}

const kvp_transport_ops_t kvp_tcp_ops = {
    .name = "tcp",
    .caps = KVP_TP_GUARDS | KVP_TP_VERIFY_SUM,
    .tp_size = sizeof(tcp_tp_t),
    .mr_size = sizeof(tcp_mr_t),
    .ep_size = sizeof(tcp_ep_t),
    .rseg_size = sizeof(tcp_rseg_t),
    .init = tcp_init,
    .fini = tcp_fini,
    .listen = tcp_listen,
    .adopt = tcp_adopt,
    .serve = tcp_serve,
    .wake = tcp_wake,
    .peer_fence = tcp_peer_fence,
    .quiesce = tcp_quiesce,
    .mr_reg = tcp_mr_reg,
    .mr_dereg = tcp_mr_dereg,
    .mr_export = tcp_mr_export,
    .rseg_open = tcp_rseg_open,
    .rseg_close = tcp_rseg_close,
    .ep_connect = tcp_ep_connect,
    .ep_close = tcp_ep_close,
    .submit = tcp_submit,
    .drain = tcp_drain,
    .ep_poll = tcp_ep_poll,
    .ep_event_fd = tcp_ep_event_fd,
    .ep_arm = tcp_ep_arm,
    .ep_is_broken = tcp_ep_is_broken,
};
