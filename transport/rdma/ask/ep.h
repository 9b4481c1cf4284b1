/* SPDX-License-Identifier: Apache-2.0
 * An endpoint of rdma, on the side that asks for transfers: its connections (rails) to one peer (conn.c, rails.c), the
 * transfers on them (ep.c, post.c), and its end (end.c). */
#ifndef KVP_TRANSPORT_RDMA_ASK_EP_H
#define KVP_TRANSPORT_RDMA_ASK_EP_H

#include "transport/copy.h"
#include "transport/rdma/ask/rail.h"

typedef enum {
    KVP_RDMA_EP_CONNECTING,
    KVP_RDMA_EP_UP,
    KVP_RDMA_EP_BROKEN, /* the endpoint cannot recover */
} kvp_rdma_ep_state_t;

typedef struct {
    kvp_ep_t base;
    kvp_rdma_tp_t *tp;
    kvp_rdma_cm_t *cm; /* the channel for connection events of all rails */
    kvp_rdma_rail_t rails[KVP_RDMA_RAILS_MAX]; /* rails[0] connects to the known address, or another of the peer */
    uint32_t rails_n; /* the number of known rails */
    struct sockaddr_storage known; /* the configured address of the peer */
    struct sockaddr_storage peer_rails[KVP_RDMA_RAILS_MAX]; /* the addresses of the peer's adapters */
    uint32_t peer_rails_n;
    int epoll_fd;
    int kick_fd; /* an eventfd, readable while a rail's stash has completions */
    int timer_fd; /* readable when kvp_rdma_rails_tend must be called */
    kvp_ep_done_fn on_connected; /* the done function of ep_connect; NULL after its call */
    void *on_connected_arg;
    uint64_t epoch; /* the epoch of the peer's keys */
    kvp_rdma_ep_state_t state;
    bool has_rekeyed; /* the peer's keys have changed since this endpoint connected */
    bool has_slept; /* the caller has slept since connection events were last read, so an event may be pending */
    bool is_kicked;
    uint64_t timed_ns; /* the time when the timer fires; 0 = the timer is not set */

    kvp_list_t todo; /* transfers that are not posted in full */
    uint32_t todo_n;
    kvp_list_t posted; /* transfers posted in full that have not completed */
    /* works of failed rails, to be posted again before new works: entries lost_at to lost_n - 1, oldest first */
    kvp_rdma_work_t *lost;
    uint32_t lost_at, lost_n;
    kvp_rdma_at_t at; /* how far the first transfer of todo is posted, as a position in its pieces */
    uint64_t off; /* how far the first transfer of todo is posted, in bytes */
    /* the checksum of the WRITE at the head of todo, whose bytes are being copied to landing areas */
    kvp_rdma_copying_t leaving;
    uint32_t unsummed_n; /* the number of WRITEs near the end of `posted` still to be summed, after the doorbell */
    uint64_t busy_ns; /* the time when the idle endpoint got work; 0 = the endpoint is idle */
    uint64_t usual_ns; /* the running average of a batch's duration */
    kvp_sum_state_t *sum; /* the state for checksums of bytes that arrive out of order */
    uint64_t seq; /* the number of works posted so far on all rails, without repeats */
    uint64_t bytes; /* the bytes of accepted transfers that no completed work has moved yet */
    bool is_wide; /* several rails are used: `bytes` reached WIDE_BYTES, and was not 0 since */
    size_t fired; /* the number of completions in the current ep_poll */
} kvp_rdma_ep_t;

static inline bool
kvp_rdma_ep_is_up(const kvp_rdma_ep_t *ep)
{
    return ep->state == KVP_RDMA_EP_UP;
}

static inline kvp_rdma_ep_t *
kvp_rdma_ep_of(kvp_ep_t *ep)
{
    return kvp_container_of(ep, kvp_rdma_ep_t, base);
}

/* Functions of end.c. kvp_rdma_ep_finish completes one transfer with the status. kvp_rdma_ep_hang_up destroys all queue
 * pairs: afterwards the endpoint touches no local memory and is broken. kvp_rdma_ep_finish_all completes every transfer
 * with the status, after the queue pairs have been destroyed. kvp_rdma_ep_lose destroys the queue pairs, completes the
 * transfer `guilty` (NULL = none) with the status, and all others with DISCONNECTED. */
bool kvp_rdma_ep_is_idle(const kvp_rdma_ep_t *ep); /* true: the endpoint has no transfer waiting or under way */
void kvp_rdma_ep_finish(kvp_rdma_ep_t *ep, kvp_xfer_t *xfer, kvp_err_t status);
void kvp_rdma_ep_hang_up(kvp_rdma_ep_t *ep);
void kvp_rdma_ep_finish_all(kvp_rdma_ep_t *ep, kvp_err_t status);
void kvp_rdma_ep_lose(kvp_rdma_ep_t *ep, kvp_xfer_t *guilty, kvp_err_t status);

/* kvp_rdma_ep_take_events (conn.c) handles pending connection events. */
void kvp_rdma_ep_take_events(kvp_rdma_ep_t *ep);

/* kvp_rdma_post posts as many works as have room, first those of failed rails, and rings each rail's doorbell once. */
void kvp_rdma_post(kvp_rdma_ep_t *ep);

/* kvp_rdma_copy_pieces copies len bytes of a transfer, from its offset off on, between its pieces and the landing area,
 * and advances `at`. It adds the bytes to `sum` if they follow the bytes summed before. kvp_rdma_sum_pieces returns the
 * checksum of all bytes of a transfer as they are in memory now. */
void kvp_rdma_copy_pieces(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, uint64_t off, uint8_t *area, uint32_t len,
                          kvp_rdma_copying_t *sum);
uint64_t kvp_rdma_sum_pieces(kvp_sum_state_t *state, const kvp_xfer_t *xfer);

/* Functions of ep.c and conn.c: the slots of the transport table for an endpoint. */
kvp_err_t kvp_rdma_ep_connect(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_t *ep, kvp_ep_done_fn done, void *arg);
void kvp_rdma_ep_close(kvp_ep_t *ep);
kvp_err_t kvp_rdma_submit(kvp_ep_t *ep, kvp_xfer_t *const *xfers, size_t n, size_t *n_out);
kvp_err_t kvp_rdma_drain(kvp_ep_t *ep, uint64_t deadline_ns);
size_t kvp_rdma_ep_poll(kvp_ep_t *ep);
int kvp_rdma_ep_event_fd(kvp_ep_t *ep);
short kvp_rdma_ep_arm(kvp_ep_t *ep);
bool kvp_rdma_ep_is_broken(const kvp_ep_t *ep);
bool kvp_rdma_ep_is_stale(const kvp_ep_t *ep);

#endif
