/* SPDX-License-Identifier: Apache-2.0
 * Pieces of a transfer that lie in memory of the peer's which is mapped here: one copy, by the caller. docs/adr/0021-p2p-mapped.md.
 */
#ifndef KVP_CLIENT_P2P_ASK_NEAR_H
#define KVP_CLIENT_P2P_ASK_NEAR_H

#include "client/kvpool_p2p.h"
#include "client/p2p/ask/lane.h"

/* kvp_p2p_near_move does those of *n_io pieces, at most KVP_PEER_BATCH_MAX, that can be, on a lane of this host that has learnt all their
 * ranges: OK, and ops and at hold the *n_io that are left; *bytes_io is added to. NO_SEGMENT: one is not registered any more, and
 * nothing was done to the lists; and what ends the lane: DISCONNECTED, DEADLINE, CLOSED, PROTO. */
kvp_err_t kvp_p2p_near_move(kvp_p2p_lane_t *lane, bool is_write, const kvpool_p2p_op_t **ops, kvp_peer_at_t *at,
                            uint32_t *n_io, uint64_t deadline_ns, uint64_t *bytes_io) KVP_MUST_USE;

#endif
