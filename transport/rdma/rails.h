/* SPDX-License-Identifier: Apache-2.0
 * The rails of an endpoint together: which exist, which carries what, and what becomes of one that fails.
 */
#ifndef KVP_TRANSPORT_RDMA_RAILS_H
#define KVP_TRANSPORT_RDMA_RAILS_H

#include "transport/rdma/ep.h"

/* kvp_rdma_rails_learn takes in from the first consent where the peer's other adapters are. */
void kvp_rdma_rails_learn(kvp_rdma_ep_t *ep, const kvp_rdma_answer_t *answer);

/* kvp_rdma_rails_open_again connects one anew whose answer was of no use: a refusal for what is different now, or too old. */
kvp_err_t kvp_rdma_rails_open_again(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail) KVP_MUST_USE;

/* kvp_rdma_rails_pick chooses the rail for the next slice of a transfer (off: where in it that begins); NULL: it has to
 * wait, for room or for what must be over before it. */
kvp_rdma_rail_t *kvp_rdma_rails_pick(kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer, uint64_t off);

/* kvp_rdma_rails_widen looks whether what is under way is enough for more than one rail. */
void kvp_rdma_rails_widen(kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_tend connects those that are wanted and may be tried, and gives up those that have stalled, or do not come
 * to stand. next_ns: when it is to be called again, with something under way; UINT64_MAX = need not. */
void kvp_rdma_rails_tend(kvp_rdma_ep_t *ep);
uint64_t kvp_rdma_rails_next_ns(const kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_blame, before all connections are ended with works under way: the paths of those that were silent for a while
 * count as failed for the next endpoint, though tend would have waited longer. */
void kvp_rdma_rails_blame(kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_are_connecting: there will be events. */
bool kvp_rdma_rails_are_connecting(const kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_failed closes a rail. What it had under way is posted again, by another one or by itself when it stands
 * again, unless something of that writes, or no rail can be had: then the endpoint is lost. */
void kvp_rdma_rails_failed(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail);
/* kvp_rdma_rails_orphan: what is to be posted again first; NULL = nothing is. take_orphan: so many bytes of it were. */
kvp_rdma_work_t *kvp_rdma_rails_orphan(kvp_rdma_ep_t *ep);
void kvp_rdma_rails_take_orphan(kvp_rdma_ep_t *ep, const kvp_rdma_at_t *behind, uint32_t len);

/* kvp_rdma_rails_are_young: no connection may carry the transfer, now or later, since its space was granted before they stood. */
bool kvp_rdma_rails_are_young(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer);
/* kvp_rdma_rails_connected: the rail stands. kvp_rdma_rails_moved: a batch of so many bytes is over; 0 = something was posted
 * where nothing was. */
void kvp_rdma_rails_connected(kvp_rdma_rail_t *rail);
void kvp_rdma_rails_moved(kvp_rdma_rail_t *rail, uint64_t bytes);

#endif
