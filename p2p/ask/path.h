/* SPDX-License-Identifier: Apache-2.0
 * The transport path of a lane, for transfers between hosts: rdma if both ends have it, else tcp.
 * Chooses and connects the path, and handles transfers left under way at its end. */
#ifndef KVP_P2P_ASK_PATH_H
#define KVP_P2P_ASK_PATH_H

#include "p2p/ask/lane.h"

/* kvp_p2p_path_reach makes the path where there is none, and learns the ranges of what is not
 * known. Where rdma does not come about it goes on by tcp, if that is allowed: for a second at
 * first, then for longer. On a lane within the host it only learns. NOT_REGISTERED, NOTSUP (the
 * ranges are not reached by rdma, and nothing else is allowed), UNREACHABLE, DEADLINE, ... */
kvp_err_t kvp_p2p_path_reach(kvp_p2p_lane_t *lane, const kvp_peer_at_t *at, uint32_t n, uint64_t deadline_ns)
    KVP_MUST_USE;

/* kvp_p2p_path_disconnect ends the path, and its transfers with CANCELLED: no transfer touches
 * local memory any more. may_land: writes are under way, which kvp_p2p_path_cut_earlier has to end.
 * NULL paths are legal. */
void kvp_p2p_path_disconnect(kvp_p2p_lane_t *lane, bool may_land);

/* kvp_p2p_path_cut_earlier comes before the first move: after OK, no byte can land any more that
 * earlier, abandoned transfers of this endpoint sent to the peer. */
kvp_err_t kvp_p2p_path_cut_earlier(kvp_p2p_lane_t *lane, uint64_t deadline_ns) KVP_MUST_USE;

/* kvp_p2p_path_is_stale: the path is idle, and should be replaced: a device under it was removed,
 * or the peer has other keys. */
bool kvp_p2p_path_is_stale(const kvp_p2p_lane_t *lane);

#endif
