/* SPDX-License-Identifier: Apache-2.0
 * All rails of an endpoint together: their creation, the choice of a rail for each slice of a transfer, and the
 * handling of failures. */
#ifndef KVP_TRANSPORT_RDMA_ASK_RAILS_H
#define KVP_TRANSPORT_RDMA_ASK_RAILS_H

#include "transport/rdma/ask/ep.h"

/* kvp_rdma_rails_learn stores the addresses of the peer's other adapters, which the peer's first answer contains, and
 * creates the rails. */
void kvp_rdma_rails_learn(kvp_rdma_ep_t *ep, const kvp_rdma_answer_t *answer);

/* kvp_rdma_rails_open_again connects a rail again if the peer refused our MTU, or if this thread read the peer's answer
 * too late. */
kvp_err_t kvp_rdma_rails_open_again(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail) KVP_MUST_USE;

/* kvp_rdma_rails_pick chooses the rail for a transfer's next slice, which begins at offset off. NULL: the slice must
 * wait, because no rail has room or because earlier works must complete first. */
kvp_rdma_rail_t *kvp_rdma_rails_pick(kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer, uint64_t off);

/* kvp_rdma_rails_widen decides whether the bytes under way are enough to use more than one rail. */
void kvp_rdma_rails_widen(kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_tend connects missing rails whose back-off has ended, and closes rails that have stalled, do not
 * connect, or whose adapter was removed. kvp_rdma_rails_next_ns returns the time of its next call; UINT64_MAX = none is
 * needed. */
void kvp_rdma_rails_tend(kvp_rdma_ep_t *ep);
uint64_t kvp_rdma_rails_next_ns(const kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_blame is called before all connections are closed with works under way. It records a failure for the
 * path of each rail that was silent for half of its time-out, so that the next endpoint avoids this path. */
void kvp_rdma_rails_blame(kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_are_connecting returns whether a rail is connecting, so that connection events will arrive. */
bool kvp_rdma_rails_are_connecting(const kvp_rdma_ep_t *ep);

/* kvp_rdma_rails_failed closes a rail. Its works are posted again, on another rail or later on the same. The whole
 * endpoint is lost instead if a work under way writes, if a waiting write can never be carried, if no rail can connect
 * soon, if memory is short, or if the endpoint is idle and no rail is left. */
void kvp_rdma_rails_failed(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail);
/* kvp_rdma_rails_orphan returns the first work of failed rails that must be posted again; NULL = none.
 * kvp_rdma_rails_take_orphan records that len bytes of it were posted; `behind` is the position after these bytes. */
kvp_rdma_work_t *kvp_rdma_rails_orphan(kvp_rdma_ep_t *ep);
void kvp_rdma_rails_take_orphan(kvp_rdma_ep_t *ep, const kvp_rdma_at_t *behind, uint32_t len);

/* kvp_rdma_rails_are_young returns true if no connection may ever carry the transfer, because all connections were
 * made after the transfer's space was granted. */
bool kvp_rdma_rails_are_young(const kvp_rdma_ep_t *ep, const kvp_xfer_t *xfer);
/* kvp_rdma_rails_connected records that the rail is connected. kvp_rdma_rails_moved records its progress: works of
 * `bytes` bytes completed, or (0) the idle rail gets work. */
void kvp_rdma_rails_connected(kvp_rdma_rail_t *rail);
void kvp_rdma_rails_moved(kvp_rdma_rail_t *rail, uint64_t bytes);

#endif
