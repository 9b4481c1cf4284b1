/* SPDX-License-Identifier: Apache-2.0
 * The rails of an endpoint together: their creation, the choice of a rail for each slice, and the
 * handling of failures. */
#ifndef KVP_TRANSPORT_RDMA_RAILS_H
#define KVP_TRANSPORT_RDMA_RAILS_H

#include "transport/rdma/ep.h"

/* kvp_rdma_rails_learn takes in from the first consent where the peer's other adapters are. */
void kvp_rdma_rails_learn(kvp_rdma_ep_t *ep, const kvp_rdma_answer_t *answer);

/* kvp_rdma_rails_open_again reconnects a rail whose answer was of no use: a refusal for a reason
 * that no longer holds, or an answer that came too late. */
kvp_err_t kvp_rdma_rails_open_again(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail) KVP_MUST_USE;

/* kvp_rdma_rails_pick chooses the rail for a transfer's next slice, which begins at off. NULL: the
 * slice has to wait, for room or for earlier works. */
kvp_rdma_rail_t *kvp_rdma_rails_pick(kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer, uint64_t off);

/* kvp_rdma_rails_widen checks whether the bytes under way deserve more than one rail. */
void kvp_rdma_rails_widen(kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_tend connects the wanted rails that may be tried, and gives up rails that have
 * stalled or do not connect. kvp_rdma_rails_next_ns returns when to call it again with works under
 * way; UINT64_MAX = no need. */
void kvp_rdma_rails_tend(kvp_rdma_ep_t *ep);
uint64_t kvp_rdma_rails_next_ns(const kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_blame, before all connections are ended with works under way: the paths of those
 * that were silent for a while count as failed for the next endpoint, though tend would have waited
 * longer. */
void kvp_rdma_rails_blame(kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_are_connecting: events will arrive. */
bool kvp_rdma_rails_are_connecting(const kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_failed closes a rail. Its works are posted again, on another rail or on the same
 * one once it stands. If a work writes, or if no rail can be had, the endpoint is lost instead. */
void kvp_rdma_rails_failed(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail);
/* kvp_rdma_rails_orphan returns the first work to post again; NULL = none.
 * kvp_rdma_rails_take_orphan records that many of its bytes as posted. */
kvp_rdma_work_t *kvp_rdma_rails_orphan(kvp_rdma_ep_t *ep);
void kvp_rdma_rails_take_orphan(kvp_rdma_ep_t *ep, const kvp_rdma_at_t *behind, uint32_t len);

/* kvp_rdma_rails_are_young: no connection may carry the transfer, now or later, since its space was
 * granted before they stood. */
bool kvp_rdma_rails_are_young(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer);
/* kvp_rdma_rails_connected: the rail stands. kvp_rdma_rails_moved: a batch of so many bytes is
 * over; 0 = something was posted where nothing was. */
void kvp_rdma_rails_connected(kvp_rdma_rail_t *rail);
void kvp_rdma_rails_moved(kvp_rdma_rail_t *rail, uint64_t bytes);

#endif
