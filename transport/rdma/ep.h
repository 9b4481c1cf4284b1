/* SPDX-License-Identifier: Apache-2.0
 * An endpoint of rdma: its connections to one peer (conn.c) and the transfers on them (ep.c,
 * post.c). */
#ifndef KVP_TRANSPORT_RDMA_EP_H
#define KVP_TRANSPORT_RDMA_EP_H

#include "transport/copy.h"
#include "transport/rdma/rail.h"

typedef enum {
    KVP_RDMA_EP_CONNECTING,
    KVP_RDMA_EP_UP,
    KVP_RDMA_EP_BROKEN, /* for good */
} kvp_rdma_ep_state_t;

typedef struct {
    kvp_ep_t base;
    kvp_rdma_tp_t *tp;
    kvp_rdma_cm_t *cm; /* events of all rails */
    kvp_rdma_rail_t rails[KVP_RDMA_RAILS_MAX]; /* the first is to the address that was asked for */
    uint32_t rails_n; /* known rails */
    struct sockaddr_storage known; /* the peer's configured address */
    struct sockaddr_storage peer_rails[KVP_RDMA_RAILS_MAX]; /* where the peer's adapters are */
    uint32_t peer_rails_n;
    int epoll_fd;
    int kick_fd; /* readable when there is something in a stash */
    int timer_fd; /* readable when rails have to be tended */
    kvp_ep_done_fn on_connected; /* NULL after the call */
    void *on_connected_arg;
    uint64_t epoch; /* the peer's */
    kvp_rdma_ep_state_t state;
    bool has_rekeyed; /* the peer gives out other keys by now */
    bool has_slept; /* an event may be pending */
    bool is_kicked;
    uint64_t timed_ns; /* when the timer fires; 0 = it is not set */

    kvp_list_t todo; /* transfers not posted in full */
    uint32_t todo_n;
    kvp_list_t posted; /* transfers posted in full */
    kvp_rdma_work_t
        *lost; /* of rails that failed, to be posted again before anything new: oldest first, from lost_at on */
    uint32_t lost_at, lost_n;
    kvp_rdma_at_t at; /* where in the first of todo */
    uint64_t off; /* the same in bytes */
    kvp_rdma_copying_t leaving; /* of the first of todo */
    uint32_t unsummed_n; /* at the end of posted, of the WRITEs that are summed once the doorbell has rung */
    uint64_t busy_ns; /* since when something is under way; 0 = nothing is */
    uint64_t usual_ns; /* how long a batch takes, about */
    kvp_sum_state_t *sum; /* for bytes that arrive out of order */
    uint64_t seq; /* works posted so far, on all rails */
    uint64_t bytes; /* of todo and posted, that are not over */
    bool is_wide; /* enough bytes are or were under way for all rails; until the endpoint is idle */
    size_t fired; /* completions in the current call */
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

/* conn.c. hang_up destroys all queue pairs: nothing of the endpoint touches local memory after it, and it is broken.
 * take_events handles
 * what happened to connections. */
void kvp_rdma_ep_hang_up(kvp_rdma_ep_t *ep);
void kvp_rdma_ep_take_events(kvp_rdma_ep_t *ep);

/* ep.c: is_idle: nothing is under way, and nothing waits. */
bool kvp_rdma_ep_is_idle(const kvp_rdma_ep_t *ep);
/* The connections have ended (the peer hung up), or must end: every transfer completes. */
void kvp_rdma_ep_finish_all(kvp_rdma_ep_t *ep, kvp_err_t status);
void kvp_rdma_ep_lose(kvp_rdma_ep_t *ep);

/* kvp_rdma_post posts as many works as fit, first the works of failed rails, and rings each rail's
 * doorbell once. */
void kvp_rdma_post(kvp_rdma_ep_t *ep);

/* kvp_rdma_copy_pieces moves the len bytes of a transfer from off on between its pieces and an area,
 * and advances `at`. Adds the bytes to the sum if they continue the sum. kvp_rdma_sum_pieces returns
 * the sum of all of a transfer's bytes as they are in memory now. */
void kvp_rdma_copy_pieces(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, uint64_t off, uint8_t *area, uint32_t len,
                          kvp_rdma_copying_t *sum);
uint64_t kvp_rdma_sum_pieces(kvp_sum_state_t *state, const kvp_xfer_t *xfer);

#endif
