/* SPDX-License-Identifier: Apache-2.0
 * Transfers of an endpoint on their way out: cut into work requests, over rails, with the local memory that they name or its
 * copy. What becomes of them is ep.c's.
 */
#ifndef KVP_CLIENT_TRANSPORT_RDMA_POST_H
#define KVP_CLIENT_TRANSPORT_RDMA_POST_H

#include "client/transport/rdma/ep.h"

/* kvp_rdma_post posts what there is room for, again what rails lost before anything new, and rings each rail once. */
void kvp_rdma_post(kvp_rdma_ep_t *ep);

/* kvp_rdma_copy_pieces moves len bytes between a transfer's pieces and an area, taking their sum unless that is NULL; at is
 * behind them afterwards. kvp_rdma_sum_pieces returns the sum of all of a transfer's bytes, as they lie there now. */
void kvp_rdma_copy_pieces(const kvp_xfer_t *xfer, kvp_rdma_at_t *at, uint8_t *area, uint32_t len, kvp_copy_sum_t *sum);
uint64_t kvp_rdma_sum_pieces(kvp_sum_state_t *state, const kvp_xfer_t *xfer);

#endif
