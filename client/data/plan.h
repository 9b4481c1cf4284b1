/* SPDX-License-Identifier: Apache-2.0
 * The transfer plan of one move: the transfers of its transport, in their order.
 * client/data/transfer.c uses it. */
#ifndef KVP_CLIENT_DATA_PLAN_H
#define KVP_CLIENT_DATA_PLAN_H

#include "client/data/transfer.h"
#include "transport/drive.h"

#define KVP_PLAN_XFERS_MAX 5u /* of one move */

/* Many bytes, of which most moves need few. */
typedef struct {
    const kvp_transfer_t *transfer;
    kvp_move_t *move;
    kvp_xferq_t *queue;
    kvp_xfer_t x[KVP_PLAN_XFERS_MAX]; /* in the order in which they are submitted */
    kvp_iov_t pieces[2]; /* our own memory: descriptor, key */
    const kvp_transport_ops_t *ops; /* of the path */
    bool needs_sums; /* the same */
} kvp_plan_t;

static inline bool
kvp_move_is_read(const kvp_move_t *mv)
{
    return mv->kind == KVP_MOVE_READ || mv->kind == KVP_MOVE_READ_PART;
}

/* kvp_plan_xfers_n: how many transfers a move is made of, once it was made. */
uint32_t kvp_plan_xfers_n(const kvp_move_t *mv);
/* kvp_plan_must_bounce: the move's memory is a device's, which this route does not reach, or may not without a sum. */
bool kvp_plan_must_bounce(const kvp_transfer_t *m, const kvp_ep_t *ep, const kvp_move_t *mv);
/* kvp_plan_make opens the chunk where it must and makes the transfers, for that queue; errors and
 * until_ns are kvp_path_chunk's, and NOMEM, and PROTO: the location is not in the chunk. The plan
 * lies where it is until they are over. */
kvp_err_t kvp_plan_make(kvp_plan_t *s, const kvp_transfer_t *transfer, kvp_move_t *mv, const kvp_path_t *path,
                        kvp_xferq_t *queue, uint64_t until_ns) KVP_MUST_USE;

#endif
