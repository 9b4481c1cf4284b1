/* SPDX-License-Identifier: Apache-2.0
 * A rail of an endpoint: a queue pair between one of our devices and one of the peer's devices, its posted work
 * requests (works), and a landing area: registered memory for bytes that are copied. A rail orders its works; the
 * endpoint completes the transfers. */
#ifndef KVP_TRANSPORT_RDMA_ASK_RAIL_H
#define KVP_TRANSPORT_RDMA_ASK_RAIL_H

#include "transport/copy.h"
#include "transport/rdma/verbs/rank.h"
#include "transport/rdma/base/tp.h"

/* the most works under way on a rail, a power of two; each small object of a put takes 5 works */
#define KVP_RDMA_SENDS 512u
#define KVP_RDMA_AREA_BYTES (1u << 20) /* the size of a rail's landing area */

/* A position in the list of pieces (iov) of a transfer. */
typedef struct {
    uint32_t iov; /* the index of the piece in xfer->iov */
    size_t off; /* the offset of the position in this piece, in bytes */
} kvp_rdma_at_t;

/* A work: a work request of a transfer that is posted and has not completed. */
typedef struct {
    kvp_xfer_t *xfer; /* the transfer of the work; NULL = a READ that only flushes writes */
    kvp_rdma_at_t at; /* the position of the work's first byte in the pieces of the transfer */
    uint64_t off; /* the offset of the work's first byte in the transfer */
    uint64_t seq; /* the work's number in the order of first posting on all rails */
    uint32_t len;
    bool is_copied; /* the bytes go through the landing area */
    uint32_t slot; /* if is_copied: the offset of the work's bytes in the landing area */
    uint64_t area_end; /* the area's bytes before this position become free when the work completes */
} kvp_rdma_work_t;

/* The checksum of a transfer whose bytes are copied in the order of their offsets. */
typedef struct {
    const kvp_xfer_t *xfer; /* the transfer being summed; NULL = none */
    uint64_t to; /* the number of bytes summed so far, from the transfer's first byte on */
    kvp_copy_sum_t sum;
} kvp_rdma_copying_t;

typedef struct {
    kvp_rdma_work_t works[KVP_RDMA_SENDS];
    kvp_rdma_wr_t wrs[KVP_RDMA_SENDS]; /* the work requests that the next doorbell posts */
    kvp_rdma_sge_t sges[KVP_RDMA_SENDS * KVP_RDMA_SGE_MAX];
} kvp_rdma_queue_t;

/* Which READs were posted on the rail since the last fence. */
typedef enum {
    KVP_RDMA_READS_NONE,
    KVP_RDMA_READS_LAST, /* only READs that have the flag AFTER_PRIOR */
    KVP_RDMA_READS_PRIOR,
} kvp_rdma_reads_t;

/* Which stores were posted on the rail since the last READ that flushes them into the peer's memory. */
typedef enum {
    KVP_RDMA_STORES_NONE,
    KVP_RDMA_STORES_WORDS, /* only PUBLISHes */
    KVP_RDMA_STORES_WRITES,
} kvp_rdma_stores_t;

typedef struct {
    kvp_rdma_tp_t *tp;
    kvp_rdma_id_t *id; /* the rail's connection; NULL = none, so no adapter accesses local memory for this rail */
    bool is_up; /* the rail is connected */
    uint64_t stood_ns; /* the time when the rail was connected */
    /* our adapter's and the peer's adapter's number; the latter is also the index of the key in a token */
    kvp_rdma_pair_t pair;
    struct sockaddr_storage at; /* the address of the peer's adapter on this rail */
    bool is_routed; /* our adapter is chosen by the host's routes, as for the endpoint's first connection */
    /* the MTU of the peer's port, if it refused our port's larger MTU; 0 = our port's MTU is used */
    uint32_t mtu_bytes;
    uint64_t nonce; /* a random number of the current connection attempt */
    uint64_t opened_ns; /* the time when the current connection attempt began */
    kvp_rdma_path_t path; /* the pair of adapters as a key for the shared record of failures */
    kvp_rdma_fails_t fails; /* the path's failures, as this rail last read or changed them */
    uint32_t batches; /* the number of completions since the rail was connected, if the path has failures */
    uint64_t bytes; /* the number of bytes of this rail's works under way */
    /* the time of the last progress: a completion, a post on the idle rail, or an event of the connection */
    uint64_t shown_ns;
    /* works numbered below `ordered` include all that a guarded WRITE with AFTER_PRIOR must not overtake */
    uint64_t ordered;
    kvp_rdma_copying_t arriving;
    uint32_t sends; /* the number of work requests that fit in the queue pair */
    uint32_t sge_max; /* the most pieces of local memory in one work request */
    uint64_t len_max; /* the most bytes in one work request */
    size_t cache_dev; /* the number of the rail's device in the registration cache */
    kvp_ep_costs_t *costs; /* the counters of the endpoint's costs */

    uint8_t *area; /* the landing area, and after it a line that the READs that flush writes read into */
    kvp_rdma_reg_t *area_reg;
    /* the bytes of the ring `area` that were allocated and freed since the beginning */
    uint64_t area_head, area_tail;
    /* area_head after the last copied work; each work records it as its area_end */
    uint64_t area_mark;

    uint32_t reads_n; /* the number of this rail's works under way that belong to READ transfers */
    kvp_rdma_reads_t reads;
    kvp_rdma_stores_t stores;
    uint64_t push_addr; /* the address in the peer's memory that is read by a READ that only flushes writes */
    uint32_t push_rkey;

    kvp_rdma_queue_t *queue; /* the rail's works and work requests; NULL until the first connection is made */
    uint64_t works_head, works_tail; /* the numbers of works added and of works completed, since the beginning */
    uint32_t wrs_n, sges_n;
    uint32_t quiet_n; /* the number of works added after the last signaled work */
    /* the bytes of works after the last signaled work, and those of them that the processor must sum or copy, or that
     * occupy the area */
    uint64_t quiet_bytes, quiet_work;
    kvp_rdma_wc_t stash[8]; /* completions that kvp_rdma_rail_arm polled, not yet handled */
    size_t stash_n;
} kvp_rdma_rail_t;

/* kvp_rdma_rail_open begins to connect to rail->at, from the address `from` of ours, or from any address (NULL). The
 * id's arg is the rail, so that events find the rail. After the event RESOLVED, kvp_rdma_rail_make creates the queue
 * pair and the landing area. kvp_rdma_rail_close destroys the queue pair: from then on the rail touches no local
 * memory. Its works stay until take_work takes them. kvp_rdma_rail_fini frees the rest; the zero value is legal. */
kvp_err_t kvp_rdma_rail_open(kvp_rdma_rail_t *rail, kvp_rdma_tp_t *tp, kvp_rdma_cm_t *cm,
                             const struct sockaddr_storage *from, kvp_ep_costs_t *costs) KVP_MUST_USE;
kvp_err_t kvp_rdma_rail_make(kvp_rdma_rail_t *rail) KVP_MUST_USE;
void kvp_rdma_rail_close(kvp_rdma_rail_t *rail);
void kvp_rdma_rail_fini(kvp_rdma_rail_t *rail);

/* Posting: add works while kvp_rdma_rail_has_place, then flush the writes (kvp_rdma_rail_push), and ring the doorbell
 * once. kvp_rdma_rail_order is called before a transfer's first work: it adds the flushing READ if the transfer's
 * order requires one, and returns the fence flag if needed. kvp_rdma_rail_take_slot allocates len contiguous bytes of
 * the landing area; false: no room now. Before adding a work, the caller fills in its pieces at kvp_rdma_rail_sges,
 * at most sge_max. kvp_rdma_rail_settle is called after each work, and decides whether the batch needs a completion
 * at this place; is_long: the batch does not fit in the queue. */
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

/* Completions: kvp_rdma_rail_poll returns the completions that have arrived. kvp_rdma_rail_take_work removes the
 * works up to a completion's number, oldest first, and frees their place in the landing area; false: no more.
 * kvp_rdma_rail_arm makes the id's cq_fd readable at the next completion; true: a completion has arrived already, and
 * poll returns it. */
size_t kvp_rdma_rail_poll(kvp_rdma_rail_t *rail, kvp_rdma_wc_t *wcs, size_t cap);
bool kvp_rdma_rail_take_work(kvp_rdma_rail_t *rail, uint64_t number, kvp_rdma_work_t *work_out);
bool kvp_rdma_rail_arm(kvp_rdma_rail_t *rail);
/* kvp_rdma_rail_has_writes returns whether a work under way may change the peer's memory. */
bool kvp_rdma_rail_has_writes(const kvp_rdma_rail_t *rail);
/* kvp_rdma_rail_is_on_gone returns whether the rail's device was removed, so that the rail must be closed. */
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
