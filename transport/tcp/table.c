/* SPDX-License-Identifier: Apache-2.0
 * The tcp transport: one-sided transfers over a byte stream. This file has the transport's table: instances, memory,
 * and connect, submit and poll of the asking side. flow.c moves the bytes, serve.c is the serving side. One thread at
 * a time uses an endpoint. */
#include "transport/tcp/table.h"

#include "transport/inside.h"
#include "transport/tcp/ep.h"
#include "transport/tcp/sock.h"
#include "common/clock.h"
#include "common/log.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* the most payload bytes of a request with several transfers; a single transfer may be larger */
#define REQ_PAYLOAD_BYTES (8u << 20)

typedef struct {
    kvp_mr_t base;
    uint64_t read_key;
    uint64_t write_key;
} tcp_mr_t;

static kvp_tcp_tp_t *
tcp_tp(kvp_tp_t *base)
{
    return kvp_container_of(base, kvp_tcp_tp_t, base);
}

static kvp_tcp_ep_t *
tcp_ep(kvp_ep_t *base)
{
    return kvp_container_of(base, kvp_tcp_ep_t, base);
}

/* ---- connecting an endpoint */

static kvp_err_t
pack_hello(kvp_tcp_ep_t *ep)
{
    kvp_tcp_tp_t *tp = tcp_tp(ep->base.tp);
    Kvp__Pb__DataHello hello = KVP__PB__DATA_HELLO__INIT;

    hello.version = KVP_PROTO_VERSION;
    hello.version_min = KVP_PROTO_VERSION_MIN;
    hello.pool_id.data = tp->pool_id;
    hello.pool_id.len = sizeof tp->pool_id;
    ep->base.incarnation = tp->is_incarnation_drawn ? kvp_random_u64() : tp->incarnation;
    hello.incarnation = ep->base.incarnation;
    kvp_pb_frame(&ep->hello, KVP_OP_DATA_HELLO, 0, 0, &hello, NULL, 0);
    return ep->hello.err;
}

/* Returns the serving side's answer to the hello: OK or a refusal. EAGAIN: it has not arrived in full. */
static kvp_err_t
read_verdict(kvp_tcp_ep_t *ep)
{
    kvp_frame_t frame;
    size_t used;
    kvp_pb_t pb;
    Kvp__Pb__Reply *reply;
    kvp_err_t err = kvp_frame_parse(ep->reply, ep->reply_len, &frame, &used);

    if (err != KVP_OK || used == 0) return err != KVP_OK ? err : KVP_EAGAIN;
    if (frame.hdr.opcode != KVP_OP_DATA_HELLO || frame.hdr.flags != KVP_FRAME_REPLY) return KVP_PROTO;
    reply = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &frame);
    if (reply == NULL) return pb.err;
    err = reply->err;
    if (err != KVP_OK) kvp_log_warn("transport", "data connection refused: %s, %s", kvp_err_name(err), reply->detail);
    if (err > 0 || err == KVP_EAGAIN) err = KVP_PROTO;
    kvp_pb_free(&pb, reply);
    return err;
}

/* Receives the answer to the hello, and no byte after it: the following bytes are answers to requests. */
static kvp_err_t
receive_reply(kvp_tcp_ep_t *ep)
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
send_hello(kvp_tcp_ep_t *ep)
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
check_connected(kvp_tcp_ep_t *ep)
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

/* Runs the steps of connecting (CONNECTING, HELLO, READY) as far as possible without blocking. */
static void
advance_connect(kvp_tcp_ep_t *ep)
{
    kvp_err_t err = KVP_OK;

    if (ep->state == KVP_TCP_EP_CONNECTING) {
        err = check_connected(ep);
        if (err == KVP_OK) ep->state = KVP_TCP_EP_HELLO;
    }
    if (ep->state == KVP_TCP_EP_HELLO) {
        err = send_hello(ep);
        if (err == KVP_OK) err = receive_reply(ep);
        if (err == KVP_OK) {
            ep->state = KVP_TCP_EP_READY;
            kvp_tcp_ep_fire_connect(ep, KVP_OK);
        }
    }
    if (err != KVP_OK && err != KVP_EAGAIN) kvp_tcp_ep_break(ep, err);
}

static void
ep_free_parts(kvp_tcp_ep_t *ep)
{
    if (ep->fd >= 0) close(ep->fd);
    ep->fd = -1;
    kvp_buf_fini(&ep->hello);
    if (ep->tx_sum != NULL) kvp_sum_destroy(ep->tx_sum);
    if (ep->rx_sum != NULL) kvp_sum_destroy(ep->rx_sum);
    ep->tx_sum = ep->rx_sum = NULL;
}

static kvp_err_t
tcp_ep_connect(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_t *base, kvp_ep_done_fn done, void *arg)
{
    kvp_tcp_ep_t *ep = tcp_ep(base);
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
    kvp_tcp_ep_t *ep = tcp_ep(base);

    kvp_tcp_ep_break(ep, KVP_CANCELLED);
    ep_free_parts(ep);
}

/* ---- submitting transfers */

static uint64_t
key_of(kvp_rseg_t *rseg)
{
    return kvp_container_of(rseg, kvp_tcp_rseg_t, base)->key;
}

static void
encode_op(kvp_data_op_t *op, const kvp_xfer_t *x)
{
    *op = (kvp_data_op_t){.key = key_of(x->rseg), .off = x->roffset, .len = x->len};
    if ((x->flags & KVP_XFER_AFTER_PRIOR) != 0) op->flags |= KVP_DATA_AFTER_PRIOR;
    if (x->kind == KVP_XFER_READ) {
        op->kind = KVP_DATA_READ;
        if ((x->flags & KVP_XFER_PEER_SUM) != 0) op->flags |= KVP_DATA_SUM;
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

/* Returns the last request if transfer x may join it: no byte of the request was sent yet, its transfers are of the
 * same kind, and it has room. Otherwise NULL. */
static kvp_tcp_req_t *
open_req(kvp_tcp_ep_t *ep, const kvp_xfer_t *x)
{
    uint32_t last = ep->reqs_tail - 1;
    kvp_tcp_req_t *req = kvp_tcp_req_at(ep, last);
    bool is_begun = ep->tx.req == last ? ep->tx.part != KVP_TCP_TX_HDR || ep->tx.off > 0 : ep->tx.req == ep->reqs_tail;

    if (ep->reqs_head == ep->reqs_tail || is_begun || req->is_read != (x->kind == KVP_XFER_READ)) return NULL;
    if (req->hdr.n_ops == KVP_DATA_OPS_MAX || req->payload + x->len > REQ_PAYLOAD_BYTES) return NULL;
    return req;
}

static kvp_tcp_req_t *
new_req(kvp_tcp_ep_t *ep, const kvp_xfer_t *x)
{
    kvp_tcp_req_t *req;

    if (ep->reqs_tail - ep->reqs_head == KVP_TCP_REQS) return NULL;
    req = kvp_tcp_req_at(ep, ep->reqs_tail);
    *req = (kvp_tcp_req_t){.first = ep->tail, .is_read = x->kind == KVP_XFER_READ};
    req->hdr.magic = KVP_DATA_MAGIC;
    req->hdr.seq = ep->reqs_tail;
    ep->reqs_tail++;
    return req;
}

/* Appends a transfer to the ring and to a request. Returns false if the ring of transfers or of requests is full. */
static bool
enqueue_xfer(kvp_tcp_ep_t *ep, kvp_xfer_t *x)
{
    kvp_tcp_req_t *req;

    if (ep->tail - ep->head == KVP_TCP_RING) return false;
    req = open_req(ep, x);
    if (req == NULL) req = new_req(ep, x);
    if (req == NULL) return false;
    encode_op(&ep->ops[ep->tail % KVP_TCP_RING], x);
    ep->ring[ep->tail % KVP_TCP_RING] = x;
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
    kvp_tcp_ep_t *ep = tcp_ep(base);
    size_t i = 0;

    *n_out = 0;
    if (ep->state == KVP_TCP_EP_BROKEN) return ep->broken_by;
    for (; i < n; i++) {
        kvp_err_t err = kvp_xfer_check(xfers[i]);

        if (err != KVP_OK) {
            xfers[i]->status = err;
            xfers[i]->done(xfers[i]);
        } else if (!enqueue_xfer(ep, xfers[i])) {
            break;
        }
    }
    *n_out = i;
    kvp_tcp_ep_flush(ep);
    return KVP_OK;
}

static size_t
tcp_ep_poll(kvp_ep_t *base)
{
    kvp_tcp_ep_t *ep = tcp_ep(base);

    ep->fired = 0;
    if (ep->state == KVP_TCP_EP_CONNECTING || ep->state == KVP_TCP_EP_HELLO) advance_connect(ep);
    kvp_tcp_ep_flush(ep);
    kvp_tcp_ep_receive(ep);
    /* A completed READ may end the stall of the next request (kvp_tcp_ep_is_stalled), so send again. */
    if (ep->fired > 0) kvp_tcp_ep_flush(ep);
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
    kvp_tcp_ep_t *ep = tcp_ep(base);

    switch (ep->state) {
    case KVP_TCP_EP_CONNECTING:
        return POLLOUT;
    case KVP_TCP_EP_HELLO:
        return ep->hello_sent < ep->hello.len ? POLLOUT : POLLIN;
    case KVP_TCP_EP_READY:
        return ep->tx.req != ep->reqs_tail && !kvp_tcp_ep_is_stalled(ep) ? POLLIN | POLLOUT : POLLIN;
    case KVP_TCP_EP_BROKEN:
        break;
    }
    return 0;
}

static bool
tcp_ep_is_broken(const kvp_ep_t *base)
{
    return kvp_container_of(base, const kvp_tcp_ep_t, base)->state == KVP_TCP_EP_BROKEN;
}

static kvp_err_t
tcp_drain(kvp_ep_t *base, uint64_t deadline_ns)
{
    kvp_tcp_ep_t *ep = tcp_ep(base);

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
        (void)ppoll(&pfd, 1, &wait, NULL); /* ppoll's result is not needed: tcp_ep_poll and the clock decide */
    }
}

/* ---- instances and registered memory */

static kvp_err_t
tcp_init(kvp_tp_t *base, const kvp_tp_conf_t *conf)
{
    kvp_tcp_tp_t *tp = tcp_tp(base);

    tp->incarnation = conf->incarnation;
    tp->is_incarnation_drawn = conf->is_incarnation_drawn;
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
tcp_listen(kvp_tp_t *base, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
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
tcp_peer_fence(kvp_tp_t *base, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done, void *arg)
{
    kvp_tcp_server_fence(tcp_tp(base)->server, dead, live_min, done, arg);
}

static void
tcp_peer_cut(kvp_tp_t *base, uint64_t incarnation)
{
    kvp_tcp_server_cut(tcp_tp(base)->server, incarnation);
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
tcp_mr_export(const kvp_mr_t *base, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out)
{
    const tcp_mr_t *mr = kvp_container_of(base, const tcp_mr_t, base);

    (void)incarnation;
    kvp_exports_token(access == KVP_ACCESS_WRITE ? mr->write_key : mr->read_key, token_out);
    return KVP_OK;
}

static kvp_err_t
tcp_rseg_open(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *rseg)
{
    (void)tp, (void)len, (void)access;
    return kvp_exports_token_key(token, &kvp_container_of(rseg, kvp_tcp_rseg_t, base)->key);
}

static void
tcp_rseg_close(kvp_rseg_t *rseg)
{
    (void)rseg;
}

const kvp_transport_ops_t kvp_tcp_ops = {
    .name = "tcp",
    .caps = KVP_TP_GUARDS | KVP_TP_VERIFY_SUM | KVP_TP_READS_IN_ORDER,
    .tp_size = sizeof(kvp_tcp_tp_t),
    .mr_size = sizeof(tcp_mr_t),
    .ep_size = sizeof(kvp_tcp_ep_t),
    .rseg_size = sizeof(kvp_tcp_rseg_t),
    .init = tcp_init,
    .fini = tcp_fini,
    .listen = tcp_listen,
    .adopt = tcp_adopt,
    .serve = tcp_serve,
    .wake = tcp_wake,
    .peer_fence = tcp_peer_fence,
    .quiesce = tcp_quiesce,
    .peer_cut = tcp_peer_cut,
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
