/* SPDX-License-Identifier: Apache-2.0
 * An endpoint of rdma: a connection to one peer, what was posted on it, and the memory that bytes land in on their way.
 */
#ifndef KVP_CLIENT_RDMA_EP_H
#define KVP_CLIENT_RDMA_EP_H

#include "client/transport/copy.h"
#include "client/transport/rdma_tp.h"

#define KVP_RDMA_SENDS 256u /* work requests under way; a power of two */
#define KVP_RDMA_AREA_BYTES (1u << 20) /* of landing area */

/* Where in a transfer's list of pieces one is. */
typedef struct {
    uint32_t iov; /* index */
    size_t off; /* in that piece */
} kvp_rdma_at_t;

/* A work request that was posted, and is not over. */
typedef struct {
    kvp_xfer_t *xfer; /* NULL = a READ that only pushes what was written */
    kvp_rdma_at_t at; /* READ: where its bytes go */
    uint32_t slot; /* in the area, */
    uint32_t len;
    uint64_t area_end; /* and what of the area is free behind it */
    bool is_first, is_last; /* of its transfer */
} kvp_rdma_work_t;

typedef struct {
    kvp_ep_t base;
    kvp_rdma_tp_t *tp;
    kvp_rdma_cm_t *cm;
    kvp_rdma_id_t *id; /* NULL once the connection is over: the endpoint is broken */
    int epoll_fd;
    int kick_fd; /* readable when there is something in stash */
    kvp_ep_done_fn on_connected; /* NULL once it was told */
    void *on_connected_arg;
    uint64_t nonce;
    uint64_t epoch; /* the peer's */
    uint32_t rail; /* of the peer's */
    uint32_t sends; /* work requests that the queue pair takes */
    bool is_up;
    bool has_slept; /* there may be an event */
    bool is_kicked;

    uint8_t *area; /* AREA_BYTES, and a line that pushing READs land in */
    kvp_rdma_reg_t *area_reg;
    uint64_t area_head, area_tail; /* bytes given out and taken back since the beginning */

    kvp_list_t todo; /* transfers that are not wholly posted */
    uint32_t todo_n;
    kvp_rdma_at_t at; /* where in the first of them */
    uint64_t posted; /* bytes of it */
    kvp_copy_sum_t write_sum; /* of it */
    kvp_copy_sum_t read_sum; /* of the one whose bytes arrive */
    uint32_t reads_n; /* slices that are under way */
    bool has_reads; /* posted, and no fence behind them */
    bool has_writes; /* posted, and not pushed */
    uint64_t push_addr; /* somewhere that the peer lets us read */
    uint32_t push_rkey;

    kvp_rdma_work_t works[KVP_RDMA_SENDS];
    uint64_t works_head, works_tail; /* made and over, since the beginning */
    kvp_rdma_wr_t wrs[KVP_RDMA_SENDS]; /* of the batch that is being made */
    kvp_rdma_sge_t sges[KVP_RDMA_SENDS];
    uint32_t wrs_n;
    kvp_rdma_wc_t stash[8]; /* polled after arming, and not handled */
    size_t stash_n;
    size_t fired; /* completions told, in the call at hand */
} kvp_rdma_ep_t;

#endif
