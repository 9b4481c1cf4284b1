/* SPDX-License-Identifier: Apache-2.0
 * The plan of one move: the transfers that the transport carries out for it, in their order. client/data/transfer.c
 * uses plans. */
#ifndef KVP_CLIENT_DATA_PLAN_H
#define KVP_CLIENT_DATA_PLAN_H

#include "client/data/transfer.h"
#include "transport/drive.h"

#define KVP_PLAN_XFERS_MAX 5u /* most transfers of one move */

/* The plan of a move: its transfers. A plan is large, and most moves use few of its transfers. */
typedef struct {
    const kvp_transfer_t *transfer;
    kvp_move_t *move;
    kvp_xferq_t *queue;
    kvp_xfer_t x[KVP_PLAN_XFERS_MAX]; /* the move's transfers, in the order in which they are submitted */
    kvp_iov_t pieces[3]; /* pieces of our own memory: descriptor and key */
    const kvp_transport_ops_t *ops; /* operations of the path's transport */
    bool needs_sums; /* the path's transport needs checksums of payloads */
} kvp_plan_t;

static inline bool
kvp_move_is_read(const kvp_move_t *mv)
{
    return mv->kind == KVP_MOVE_READ || mv->kind == KVP_MOVE_READ_PART || mv->kind == KVP_MOVE_READ_WHOLE;
}

/* kvp_plan_xfers_n returns the number of transfers in the plan of a move, after kvp_plan_make. */
uint32_t kvp_plan_xfers_n(const kvp_move_t *mv);
/* kvp_plan_must_bounce returns true if the move's memory is device memory that this route does not reach, or may not
 * use because a checksum is needed. */
bool kvp_plan_must_bounce(const kvp_transfer_t *m, const kvp_ep_t *ep, const kvp_move_t *mv);
/* kvp_plan_make opens the chunk if necessary and makes the transfers of the move for the queue. Errors and until_ns
 * are those of kvp_path_chunk; also NOMEM, and PROTO if the location is not in the chunk. The plan must not move in
 * memory until its transfers are complete. */
kvp_err_t kvp_plan_make(kvp_plan_t *s, const kvp_transfer_t *transfer, kvp_move_t *mv, const kvp_path_t *path,
                        kvp_xferq_t *queue, uint64_t until_ns) KVP_MUST_USE;

#endif
