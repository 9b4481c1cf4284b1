/* SPDX-License-Identifier: Apache-2.0
 * A rail of an endpoint: a queue pair from one of our devices to one of the peer's, its posted work
 * requests, and the memory where copied bytes land. A rail orders requests, and knows nothing of
 * the ends of transfers. */
#ifndef KVP_TRANSPORT_RDMA_RAIL_H
#define KVP_TRANSPORT_RDMA_RAIL_H

#include "transport/copy.h"
#include "transport/rdma/verbs/rank.h"
#include "transport/rdma/tp.h"

#define KVP_RDMA_SENDS 512u /* work requests under way: a put of 64 small objects takes 5 each; a power of two */
#define KVP_RDMA_AREA_BYTES (1u << 20) /* of landing area */

/* Where in a transfer's list of pieces one is. */
typedef struct {
    uint32_t iov; /* index */
    size_t off; /* in that piece */
} kvp_rdma_at_t;

/* A work request that was posted, and is not over. */
typedef struct {
    kvp_xfer_t *xfer; /* NULL = a READ that only flushes writes */
    kvp_rdma_at_t at; /* which of its bytes these are, in its pieces */
    uint64_t off; /* and from its beginning */
    uint64_t seq; /* the order of all rails' works */
    uint32_t len;
    bool is_copied; /* goes through the area: */
    uint32_t slot; /* there, */
    uint64_t area_end; /* end of the area part that the work frees */
} kvp_rdma_work_t;

/* The sum of a transfer whose bytes are copied in order. */
typedef struct {
    const kvp_xfer_t *xfer; /* NULL = none */
    uint64_t to; /* bytes of it so far */
    kvp_copy_sum_t sum;
} kvp_rdma_copying_t;

typedef struct {
    kvp_rdma_work_t works[KVP_RDMA_SENDS];
    kvp_rdma_wr_t wrs[KVP_RDMA_SENDS]; /* the batch under construction */
    kvp_rdma_sge_t sges[KVP_RDMA_SENDS * KVP_RDMA_SGE_MAX];
} kvp_rdma_queue_t;

/* READs posted without a later fence. */
typedef enum {
    KVP_RDMA_READS_NONE,
    KVP_RDMA_READS_LAST, /* only READs with AFTER_PRIOR */
    KVP_RDMA_READS_PRIOR,
} kvp_rdma_reads_t;

/* Stores posted, and not pushed. */
typedef enum {
    KVP_RDMA_STORES_NONE,
    KVP_RDMA_STORES_WORDS, /* only PUBLISHes */
    KVP_RDMA_STORES_WRITES,
} kvp_rdma_stores_t;

typedef struct {
    kvp_rdma_tp_t *tp;
    kvp_rdma_id_t *id; /* NULL = absent or over: no work touches local memory */
    bool is_up; /* connected */
    uint64_t stood_ns; /* since when */
    kvp_rdma_pair_t pair; /* of whose adapters; of the peer's it is also which of a token's keys counts */
    struct sockaddr_storage at; /* the peer's address of this rail */
    bool is_routed; /* by whichever of our adapters the network leads there: the endpoint's first */
    uint32_t mtu_bytes; /* what the peer's port takes, where that is less than ours sends; 0 = ours is good */
    uint64_t nonce; /* of the connect at hand, */
    uint64_t opened_ns; /* start of the connection attempt */
    kvp_rdma_path_t path; /* the same pair, as all endpoints know it: */
    kvp_rdma_fails_t fails; /* the path's failures, as of this connection */
    uint32_t batches; /* batches carried since the connection stands */
    uint64_t bytes; /* under way */
    uint64_t shown_ns; /* when something was last over, or was posted where nothing was; or was heard of a connect */
    uint64_t ordered; /* works up to here hold what may not be overtaken by a guarded WRITE */
    kvp_rdma_copying_t arriving;
    uint32_t sends; /* work requests that fit in the queue pair */
    uint32_t sge_max; /* pieces of memory in one work request */
    uint64_t len_max; /* bytes in one work request */
    size_t cache_dev; /* its device in the registration cache */
    kvp_ep_costs_t *costs; /* the endpoint's */

    uint8_t *area; /* AREA_BYTES, and a line that pushing READs land in */
    kvp_rdma_reg_t *area_reg;
    uint64_t area_head, area_tail; /* bytes given out and taken back since the beginning */
    uint64_t area_mark; /* area given to the added works */

    uint32_t reads_n; /* READs of transfers under way */
    kvp_rdma_reads_t reads;
    kvp_rdma_stores_t stores;
    uint64_t push_addr; /* an address that the peer lets us read */
    uint32_t push_rkey;

    kvp_rdma_queue_t *queue; /* NULL until the rail is first made */
    uint64_t works_head, works_tail; /* made and over, since the beginning */
    uint32_t wrs_n, sges_n;
    uint32_t quiet_n; /* work requests after the last signaled one */
    uint64_t quiet_bytes, quiet_work; /* their bytes, and the bytes that the processor handles after completion */
    kvp_rdma_wc_t stash[8]; /* polled after arming, and not handled */
    size_t stash_n;
} kvp_rdma_rail_t;

/* kvp_rdma_rail_open begins to look for the way to rail->at, from one of our addresses or any
 * (NULL); the id's arg is the rail, so events find it. RESOLVED: make gives it a queue pair and an
 * area. close destroys the queue pair: from then on nothing of the rail touches local memory; its
 * works stay until they are taken. fini frees the rest; the zero value is legal. */
kvp_err_t kvp_rdma_rail_open(kvp_rdma_rail_t *rail, kvp_rdma_tp_t *tp, kvp_rdma_cm_t *cm,
                             const struct sockaddr_storage *from, kvp_ep_costs_t *costs) KVP_MUST_USE;
kvp_err_t kvp_rdma_rail_make(kvp_rdma_rail_t *rail) KVP_MUST_USE;
void kvp_rdma_rail_close(kvp_rdma_rail_t *rail);
void kvp_rdma_rail_fini(kvp_rdma_rail_t *rail);

/* Posting: add up to has_place works, then flush the writes, and ring once. kvp_rdma_rail_order
 * comes before a transfer's first work: it adds required earlier works, and returns the fence flag
 * where needed. kvp_rdma_rail_take_slot reserves len bytes of the area in one piece; false: no room
 * now. The caller fills in the pieces of a work before adding it, at most sge_max at sges.
 * kvp_rdma_rail_settle decides, after each work, whether a completion has to come in the middle of
 * the batch; is_long: the batch does not fit the queue. */
bool kvp_rdma_rail_has_place(const kvp_rdma_rail_t *rail);
bool kvp_rdma_rail_take_slot(kvp_rdma_rail_t *rail, uint32_t len, uint32_t *slot_out);
uint32_t kvp_rdma_rail_order(kvp_rdma_rail_t *rail, const kvp_xfer_t *xfer);
static inline kvp_rdma_sge_t *
kvp_rdma_rail_sges(kvp_rdma_rail_t *rail)
{
    return &rail->queue->sges[rail->sges_n];
}
kvp_rdma_work_t *kvp_rdma_rail_add(kvp_rdma_rail_t *rail, kvp_xfer_t *xfer, uint32_t flags, uint32_t sge_n,
                                   uint32_t len, uint64_t raddr, uint32_t rkey);
void kvp_rdma_rail_settle(kvp_rdma_rail_t *rail, bool is_long);
void kvp_rdma_rail_push(kvp_rdma_rail_t *rail);
kvp_err_t kvp_rdma_rail_ring(kvp_rdma_rail_t *rail) KVP_MUST_USE;

/* Completions: poll gives what there is. take_work gives the works up to a completion's number,
 * oldest first, with their place in the area free from then on; false: no more. arm makes the id's
 * cq_fd readable at the next completion; true: there is one already, which poll gives. */
size_t kvp_rdma_rail_poll(kvp_rdma_rail_t *rail, kvp_rdma_wc_t *wcs, size_t cap);
bool kvp_rdma_rail_take_work(kvp_rdma_rail_t *rail, uint64_t number, kvp_rdma_work_t *work_out);
bool kvp_rdma_rail_arm(kvp_rdma_rail_t *rail);
/* kvp_rdma_rail_has_writes: something under way may change the peer's memory. */
bool kvp_rdma_rail_has_writes(const kvp_rdma_rail_t *rail);
/* kvp_rdma_rail_is_on_gone: its device was removed, and waits for it to be closed. */
static inline bool
kvp_rdma_rail_is_on_gone(const kvp_rdma_rail_t *rail)
{
    return rail->id != NULL && rail->id->dev != NULL && rail->id->dev->is_gone;
}
static inline bool
kvp_rdma_rail_is_idle(const kvp_rdma_rail_t *rail)
{
    return rail->works_tail == rail->works_head;
}

#endif
