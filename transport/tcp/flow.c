/* SPDX-License-Identifier: Apache-2.0
 * Sending requests and receiving answers on the asking side of tcp. Runs in the endpoint's thread. */
#include "transport/tcp/ep.h"

#include "transport/tcp/sock.h"
#include "common/log.h"

/* the most bytes of one system call, few enough to be in the second-level cache when they are summed */
#define PIECE_BYTES (512u << 10)
/* bytes sent or received after which ep_poll returns, so that its caller can check the clock */
#define POLL_BYTES (8u << 20)
#define IOVS 64u

/* ---- completing transfers */

static void
complete_first(kvp_tcp_ep_t *ep, kvp_err_t status)
{
    kvp_xfer_t *x = kvp_tcp_xfer_at(ep, ep->head++);

    x->status = status;
    ep->fired++;
    x->done(x);
}

void
kvp_tcp_ep_fire_connect(kvp_tcp_ep_t *ep, kvp_err_t err)
{
    kvp_ep_done_fn done = ep->done;

    ep->done = NULL;
    if (done != NULL) done(ep->arg, err);
}

/* kvp_tcp_ep_break first shuts the socket down: no byte reaches memory of transfers that complete now. The descriptor
 * stays open until ep_close: the caller can still remove it from a poll set, and no other file gets its number. */
void
kvp_tcp_ep_break(kvp_tcp_ep_t *ep, kvp_err_t err)
{
    if (ep->state == KVP_TCP_EP_BROKEN) return;
    ep->state = KVP_TCP_EP_BROKEN;
    ep->broken_by = err;
    shutdown(ep->fd, SHUT_RDWR);
    kvp_tcp_ep_fire_connect(ep, err);
    while (ep->head != ep->tail)
        complete_first(ep, err);
}

/* ---- sending requests */

typedef struct {
    uint8_t *at;
    size_t len;
    kvp_xfer_t *xfer; /* the transfer to whose body the piece belongs; NULL = a header or record */
} piece_t;

/* tx_piece returns in *piece the contiguous bytes from the send cursor on. False: all requests were sent. */
static bool
tx_piece(kvp_tcp_ep_t *ep, kvp_tcp_tx_t *tx, piece_t *piece)
{
    kvp_tcp_req_t *req = kvp_tcp_req_at(ep, tx->req);
    uint32_t pos = req->first + tx->op;

    if (tx->req == ep->reqs_tail) return false;
    *piece = (piece_t){0};
    if (tx->part == KVP_TCP_TX_HDR) {
        piece->at = (uint8_t *)&req->hdr + tx->off;
        piece->len = sizeof req->hdr - tx->off;
    } else if (tx->part == KVP_TCP_TX_OP) {
        /* The records of a request's READs are adjacent in memory, up to the end of the ring. */
        uint32_t n =
            req->is_read ? (uint32_t)kvp_min_u64(req->hdr.n_ops - tx->op, KVP_TCP_RING - pos % KVP_TCP_RING) : 1;
        piece->at = (uint8_t *)&ep->ops[pos % KVP_TCP_RING] + tx->off;
        piece->len = n * sizeof ep->ops[0] - tx->off;
    } else {
        kvp_xfer_t *x = kvp_tcp_xfer_at(ep, pos);
        while (x->iov[tx->iov].len == 0)
            tx->iov++;
        piece->xfer = x;
        piece->at = (uint8_t *)x->iov[tx->iov].addr + tx->off;
        piece->len = x->iov[tx->iov].len - tx->off;
    }
    return true;
}

static void
tx_next_op(kvp_tcp_tx_t *tx, const kvp_tcp_req_t *req, uint32_t n)
{
    tx->op += n;
    tx->part = KVP_TCP_TX_OP;
    tx->off = 0;
    if (tx->op < req->hdr.n_ops) return;
    tx->req++;
    tx->op = 0;
    tx->part = KVP_TCP_TX_HDR;
}

/* tx_move moves the send cursor by n bytes, at most to the end of the piece from tx_piece. */
static void
tx_move(kvp_tcp_ep_t *ep, kvp_tcp_tx_t *tx, size_t n)
{
    const kvp_tcp_req_t *req = kvp_tcp_req_at(ep, tx->req);

    tx->pos += n;
    tx->off += n;
    if (tx->part == KVP_TCP_TX_HDR) {
        if (tx->off < sizeof req->hdr) return;
        tx->part = KVP_TCP_TX_OP;
        tx->off = 0;
    } else if (tx->part == KVP_TCP_TX_OP) {
        uint32_t whole = (uint32_t)(tx->off / sizeof ep->ops[0]);
        size_t rest = tx->off % sizeof ep->ops[0];

        if (whole == 0) return;
        if (!req->is_read && ep->ops[(req->first + tx->op) % KVP_TCP_RING].kind == KVP_DATA_WRITE) {
            tx->part = KVP_TCP_TX_BODY;
            tx->iov = 0;
            tx->off = 0;
            tx->body = 0;
            return;
        }
        tx_next_op(tx, req, whole);
        if (tx->part == KVP_TCP_TX_OP) tx->off = rest;
    } else {
        const kvp_xfer_t *x = kvp_tcp_xfer_at(ep, req->first + tx->op);

        tx->body += n;
        if (tx->off == x->iov[tx->iov].len) {
            tx->iov++;
            tx->off = 0;
        }
        if (tx->body == x->len) tx_next_op(tx, req, 1);
    }
}

/* Adds a piece of a body to its transfer's checksum. Leaves out bytes that were added before, because a piece that was
 * sent in part is gathered again. */
static void
tx_sum_piece(kvp_tcp_ep_t *ep, const kvp_tcp_tx_t *tx, const piece_t *piece)
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

bool
kvp_tcp_ep_is_stalled(kvp_tcp_ep_t *ep)
{
    return ep->tx.req != ep->reqs_tail && ep->tx.part == KVP_TCP_TX_HDR &&
           kvp_tcp_req_at(ep, ep->tx.req)->is_after_reads && ep->reads_sent > 0;
}

static size_t
gather_tx(kvp_tcp_ep_t *ep, struct iovec *iov, size_t *bytes_out)
{
    kvp_tcp_tx_t tx = ep->tx;
    piece_t piece;
    size_t n = 0;
    size_t bytes = 0;

    while (n < IOVS && bytes < PIECE_BYTES && tx_piece(ep, &tx, &piece)) {
        /* Earlier requests in this call are not sent yet, so whether this request must wait for READs is not known. */
        if (tx.req != ep->tx.req && kvp_tcp_req_at(ep, tx.req)->is_after_reads) break;
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
advance_tx(kvp_tcp_ep_t *ep, size_t n)
{
    piece_t piece;

    while (n > 0 && tx_piece(ep, &ep->tx, &piece)) {
        size_t part = (size_t)kvp_min_u64(n, piece.len);
        uint32_t req = ep->tx.req;

        tx_move(ep, &ep->tx, part);
        n -= part;
        if (ep->tx.req != req && kvp_tcp_req_at(ep, req)->is_read) ep->reads_sent++;
    }
}

void
kvp_tcp_ep_flush(kvp_tcp_ep_t *ep)
{
    size_t total = 0;

    while (ep->state == KVP_TCP_EP_READY && total < POLL_BYTES && ep->tx.req != ep->reqs_tail &&
           !kvp_tcp_ep_is_stalled(ep)) {
        struct iovec iov[IOVS];
        size_t bytes;
        size_t n = gather_tx(ep, iov, &bytes);
        size_t sent;
        kvp_err_t err = kvp_tcp_sock_send(ep->fd, iov, n, &sent);

        if (err == KVP_EAGAIN) return;
        if (err != KVP_OK) {
            kvp_tcp_ep_break(ep, err);
            return;
        }
        ep->base.sent_bytes += sent;
        advance_tx(ep, sent);
        total += sent;
        if (sent < bytes) return;
    }
}

/* ---- receiving answers */

/* Returns how many bytes of an answer belong to a successful READ: its data and, if requested, its checksum. */
static uint64_t
whole_bytes(const kvp_xfer_t *x)
{
    return x->len + ((x->flags & KVP_XFER_PEER_SUM) != 0 ? sizeof x->word : 0);
}

static const int32_t *
rx_status(const kvp_tcp_ep_t *ep)
{
    return (const int32_t *)((const uint8_t *)ep->heads[ep->heads_at] + sizeof(kvp_data_rep_t));
}

static void
finish_request(kvp_tcp_ep_t *ep)
{
    if (kvp_tcp_req_at(ep, ep->reqs_head)->is_read) ep->reads_sent--;
    ep->reqs_head++;
    ep->heads_at ^= 1;
    ep->rx = (kvp_tcp_rx_t){0};
}

/* Completes the transfers of the current answer that have no body, up to the next with a body or the answer's end. */
static void
settle_request(kvp_tcp_ep_t *ep)
{
    const kvp_tcp_req_t *req = kvp_tcp_req_at(ep, ep->reqs_head);
    uint32_t end = req->first + req->hdr.n_ops;

    while (ep->head != end) {
        int32_t status = rx_status(ep)[ep->head - req->first];
        if (req->is_read && status == KVP_OK) return;
        complete_first(ep, status);
    }
    finish_request(ep);
}

static void
take_head(kvp_tcp_ep_t *ep)
{
    const kvp_tcp_req_t *req = kvp_tcp_req_at(ep, ep->reqs_head);
    uint64_t body = 0;
    kvp_err_t err = KVP_OK;

    for (uint32_t i = 0; i < req->hdr.n_ops; i++) {
        int32_t status = rx_status(ep)[i];
        if (!kvp_data_status_is_valid(status)) err = KVP_PROTO;
        if (req->is_read && status == KVP_OK) body += whole_bytes(kvp_tcp_xfer_at(ep, req->first + i));
    }
    if (err == KVP_OK) err = kvp_data_rep_check(ep->heads[ep->heads_at], req->hdr.seq, req->hdr.n_ops, body);
    if (err != KVP_OK) {
        kvp_log_warn("transport", "data connection closed, malformed answer");
        kvp_tcp_ep_break(ep, err);
        return;
    }
    ep->rx.in_body = true;
    settle_request(ep);
}

static void
end_body(kvp_tcp_ep_t *ep, kvp_err_t status)
{
    ep->rx.iov = 0;
    ep->rx.off = 0;
    ep->rx.body = 0;
    complete_first(ep, status);
    settle_request(ep);
}

static void
take_body(kvp_tcp_ep_t *ep, const uint8_t *at, size_t n)
{
    kvp_xfer_t *x = kvp_tcp_xfer_at(ep, ep->head);
    kvp_tcp_rx_t *rx = &ep->rx;
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
    if (rx->body == whole_bytes(x)) end_body(ep, KVP_OK);
}

/* Counts n received bytes of the peer's checksum, which follows a READ's data. When all 8 are there, completes the
 * READ: CORRUPT if the data has another checksum. */
static void
take_sum(kvp_tcp_ep_t *ep, size_t n)
{
    const kvp_xfer_t *x = kvp_tcp_xfer_at(ep, ep->head);

    ep->rx.body += n;
    if (ep->rx.body == whole_bytes(x)) end_body(ep, x->word == x->sum ? KVP_OK : KVP_CORRUPT);
}

static void
skip_empty_iov(const kvp_xfer_t *x, uint32_t *iov)
{
    while (x->iov[*iov].len == 0)
        ++*iov;
}

/* Handles n received bytes, which lie where gather_rx pointed: moves the receive cursor over them in the same order. */
static void
take_received(kvp_tcp_ep_t *ep, size_t n)
{
    while (n > 0 && ep->state == KVP_TCP_EP_READY) {
        if (!ep->rx.in_body) {
            size_t whole = kvp_data_rep_head_bytes(kvp_tcp_req_at(ep, ep->reqs_head)->hdr.n_ops);
            size_t part = (size_t)kvp_min_u64(n, whole - ep->rx.head_got);

            ep->rx.head_got += part;
            n -= part;
            if (ep->rx.head_got == whole) take_head(ep);
        } else {
            const kvp_xfer_t *x = kvp_tcp_xfer_at(ep, ep->head);
            const kvp_iov_t *iov;
            size_t part;

            if (ep->rx.body >= x->len) {
                part = (size_t)kvp_min_u64(n, whole_bytes(x) - ep->rx.body);
                n -= part;
                take_sum(ep, part);
                continue;
            }
            skip_empty_iov(x, &ep->rx.iov);
            iov = &x->iov[ep->rx.iov];
            part = (size_t)kvp_min_u64(n, iov->len - ep->rx.off);
            n -= part;
            take_body(ep, (const uint8_t *)iov->addr + ep->rx.off, part);
        }
    }
}

static void
gather_add(kvp_tcp_gather_t *g, void *at, size_t len)
{
    g->iov[g->n++] = (struct iovec){.iov_base = at, .iov_len = len};
    g->bytes += len;
}

/* Gathers the memory for the bodies of the current answer, from the receive cursor on. Returns true if the gathered
 * memory reaches to the end of the answer. */
static bool
gather_bodies(kvp_tcp_ep_t *ep, kvp_tcp_gather_t *g)
{
    const kvp_tcp_req_t *req = kvp_tcp_req_at(ep, ep->reqs_head);
    const int32_t *status = rx_status(ep);
    kvp_tcp_rx_t rx = ep->rx;

    for (uint32_t pos = ep->head; pos != req->first + req->hdr.n_ops; pos++) {
        kvp_xfer_t *x = kvp_tcp_xfer_at(ep, pos);

        if (status[pos - req->first] != KVP_OK) continue;
        while (rx.body < x->len) {
            size_t len;

            if (g->n == IOVS - 1 || g->bytes >= PIECE_BYTES) return false;
            skip_empty_iov(x, &rx.iov);
            len = (size_t)kvp_min_u64(x->iov[rx.iov].len - rx.off, PIECE_BYTES - g->bytes);
            gather_add(g, (uint8_t *)x->iov[rx.iov].addr + rx.off, len);
            rx.body += len;
            rx.iov++;
            rx.off = 0;
        }
        if (rx.body < whole_bytes(x)) {
            if (g->n == IOVS - 1) return false;
            gather_add(g, (uint8_t *)&x->word + (rx.body - x->len), (size_t)(whole_bytes(x) - rx.body));
        }
        rx = (kvp_tcp_rx_t){0};
    }
    return true;
}

/* gather_rx gathers the memory for the next bytes to receive: the rest of the current answer as far as its layout is
 * known, and then the head of the next answer. */
static void
gather_rx(kvp_tcp_ep_t *ep, kvp_tcp_gather_t *g)
{
    const kvp_tcp_req_t *req = kvp_tcp_req_at(ep, ep->reqs_head);
    bool is_known_to_end;

    if (ep->rx.in_body) {
        is_known_to_end = gather_bodies(ep, g);
    } else {
        size_t whole = kvp_data_rep_head_bytes(req->hdr.n_ops);

        gather_add(g, (uint8_t *)ep->heads[ep->heads_at] + ep->rx.head_got, whole - ep->rx.head_got);
        is_known_to_end = !req->is_read;
    }
    if (!is_known_to_end || ep->reqs_head + 1 == ep->tx.req) return;
    gather_add(g, ep->heads[ep->heads_at ^ 1],
               kvp_data_rep_head_bytes(kvp_tcp_req_at(ep, ep->reqs_head + 1)->hdr.n_ops));
}

void
kvp_tcp_ep_receive(kvp_tcp_ep_t *ep)
{
    size_t total = 0;

    while (ep->state == KVP_TCP_EP_READY && total < POLL_BYTES) {
        /* true: a request was sent in full, so its answer is expected */
        bool is_awaited = ep->reqs_head != ep->tx.req;
        kvp_tcp_gather_t g;
        size_t n;
        kvp_err_t err;

        g.n = g.bytes = 0;
        if (is_awaited)
            gather_rx(ep, &g);
        else
            gather_add(&g, ep->heads[0], 1); /* to detect the end of file; a received byte is a protocol error */
        err = kvp_tcp_sock_recv(ep->fd, g.iov, g.n, &n);
        if (err == KVP_EAGAIN) return;
        if (err == KVP_OK && !is_awaited) err = KVP_PROTO;
        if (err != KVP_OK) {
            kvp_tcp_ep_break(ep, err);
            return;
        }
        ep->base.received_bytes += n;
        take_received(ep, n);
        total += n;
        if (n < g.bytes) return;
    }
}
