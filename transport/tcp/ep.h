/* SPDX-License-Identifier: Apache-2.0
 * An endpoint of tcp: the asking side. Internal to table.c (connect, submit, poll) and flow.c (sending and receiving).
 *
 * Design notes.
 * - Transfers form a ring in the order of submission. Adjacent transfers of one kind (READ, or WRITE and PUBLISH) make
 *   up a request. Requests are sent and answered in order, so a transfer's place in the ring is the only record of it.
 * - Payload moves directly between the socket and the caller's memory: two cursors, tx and rx, walk over the requests
 *   and give the next piece of memory to send from or to receive into.
 * - ep_poll sends and receives, while the serving side does one at a time. So the two sides cannot both wait with full
 *   socket buffers.
 * - Each piece is summed while it is in the cache: after it was received, or before it is sent. */
#ifndef KVP_TRANSPORT_TCP_EP_H
#define KVP_TRANSPORT_TCP_EP_H

#include "transport/tcp/serve.h"
#include "transport/tcp/wire.h"
#include "common/buf.h"

#define KVP_TCP_RING 4096u /* the most transfers under way on one endpoint */
#define KVP_TCP_REQS 512u /* the most requests under way on one endpoint */
#define KVP_TCP_REPLY_MAX 1024u
#define KVP_TCP_HEAD_WORDS ((sizeof(kvp_data_rep_t) + 4 * KVP_DATA_OPS_MAX) / 8)

typedef struct {
    kvp_tp_t base;
    uint64_t incarnation;
    bool is_incarnation_drawn;
    uint8_t pool_id[16];
    kvp_tcp_server_t *server;
} kvp_tcp_tp_t;

typedef struct {
    kvp_rseg_t base;
    uint64_t key;
} kvp_tcp_rseg_t;

/* One request of the asking side: the transfers at the ring's positions first to first + hdr.n_ops - 1. */
typedef struct {
    kvp_data_req_t hdr;
    uint32_t first;
    bool is_read;
    /* the request has a WRITE with AFTER_PRIOR, whose source earlier READs may fill, so it waits for these READs */
    bool is_after_reads;
    uint64_t payload;
} kvp_tcp_req_t;

/* The send cursor: the position of the next byte to send. */
typedef struct {
    uint32_t req; /* the request being sent; equal to reqs_tail if all were sent */
    enum { KVP_TCP_TX_HDR, KVP_TCP_TX_OP, KVP_TCP_TX_BODY } part;
    uint32_t op;
    uint32_t iov; /* in a body: the index in the transfer's iov; `body` is the number of its bytes before the cursor */
    uint64_t body;
    size_t off; /* the offset in the request's header, in the operation's record, or in piece `iov` */
    uint64_t pos; /* the number of stream bytes before the cursor, compared with tx_summed */
} kvp_tcp_tx_t;

/* The receive cursor: in the head of an answer, or in the body of the transfer at `head`. */
typedef struct {
    bool in_body;
    size_t head_got;
    uint32_t iov;
    uint64_t body;
    size_t off;
} kvp_tcp_rx_t;

typedef enum {
    KVP_TCP_EP_CONNECTING,
    KVP_TCP_EP_HELLO,
    KVP_TCP_EP_READY,
    KVP_TCP_EP_BROKEN,
} kvp_tcp_ep_state_t;

typedef struct {
    kvp_ep_t base;
    int fd;
    kvp_tcp_ep_state_t state;
    kvp_err_t broken_by;
    kvp_ep_done_fn done; /* the done function of ep_connect; NULL after its call */
    void *arg;
    kvp_buf_t hello;
    size_t hello_sent;
    uint32_t reply_len;
    uint8_t reply[KVP_TCP_REPLY_MAX];

    /* Positions in the rings only grow; the slot is the position modulo the ring's size. */
    uint32_t head, tail; /* the endpoint's transfers are at ring positions head to tail - 1, oldest first */
    uint32_t reqs_head, reqs_tail; /* the requests under way; the answer to reqs_head is being received */
    uint32_t reads_sent; /* the number of READ requests that were sent in full and have no complete answer */
    kvp_tcp_tx_t tx;
    kvp_tcp_rx_t rx;
    uint64_t tx_summed; /* the bytes of the stream before this position are in the checksums */
    kvp_sum_state_t *tx_sum;
    kvp_sum_state_t *rx_sum;
    /* heads[heads_at] has the head of the current answer; the other entry receives the next answer's head */
    uint32_t heads_at;
    uint64_t heads[2][KVP_TCP_HEAD_WORDS];
    size_t fired; /* the number of transfers completed in this ep_poll */

    kvp_tcp_req_t reqs[KVP_TCP_REQS];
    kvp_xfer_t *ring[KVP_TCP_RING];
    kvp_data_op_t ops[KVP_TCP_RING];
} kvp_tcp_ep_t;

static inline kvp_tcp_req_t *
kvp_tcp_req_at(kvp_tcp_ep_t *ep, uint32_t pos)
{
    return &ep->reqs[pos % KVP_TCP_REQS];
}

static inline kvp_xfer_t *
kvp_tcp_xfer_at(kvp_tcp_ep_t *ep, uint32_t pos)
{
    return ep->ring[pos % KVP_TCP_RING];
}

/* kvp_tcp_ep_fire_connect calls the done function of ep_connect with err, unless it was called before. */
void kvp_tcp_ep_fire_connect(kvp_tcp_ep_t *ep, kvp_err_t err);

/* kvp_tcp_ep_break ends the endpoint, and completes all its transfers with the status err. */
void kvp_tcp_ep_break(kvp_tcp_ep_t *ep, kvp_err_t err);

/* kvp_tcp_ep_is_stalled returns whether the next request must wait for the answers to READs: the source of a WRITE in
 * it may be the destination of an earlier READ. */
bool kvp_tcp_ep_is_stalled(kvp_tcp_ep_t *ep);

/* kvp_tcp_ep_flush sends requests, and kvp_tcp_ep_receive receives answers, without blocking and up to about 8 MiB in
 * one call. */
void kvp_tcp_ep_flush(kvp_tcp_ep_t *ep);
void kvp_tcp_ep_receive(kvp_tcp_ep_t *ep);

#endif
