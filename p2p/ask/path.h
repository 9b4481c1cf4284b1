/* SPDX-License-Identifier: Apache-2.0
 * The transport path of a lane (its data connection), for transfers between hosts: RDMA if both ends have it, else TCP.
 * Chooses and connects the path, and records it for a later cut if writes may still be running when it ends. */
#ifndef KVP_P2P_ASK_PATH_H
#define KVP_P2P_ASK_PATH_H

#include "p2p/ask/lane.h"

/* kvp_p2p_path_reach connects the path if there is none, and asks the peer for unknown ranges. If RDMA cannot be
 * connected, the lane uses TCP (if allowed): for a second after the first failure, then for longer. On a lane within
 * the host it only asks for ranges. Errors: NOT_REGISTERED, NOTSUP (RDMA does not reach the ranges, and nothing else is
 * allowed), UNREACHABLE, DEADLINE and others. */
kvp_err_t kvp_p2p_path_reach(kvp_p2p_lane_t *lane, const kvp_peer_at_t *at, uint32_t n, uint64_t deadline_ns)
    KVP_MUST_USE;

/* kvp_p2p_path_disconnect closes the path. Its transfers end with CANCELLED, and no transfer touches local memory any
 * more. may_land: writes may still be running, which kvp_p2p_path_cut_earlier has to end. Has no effect without a
 * path. */
void kvp_p2p_path_disconnect(kvp_p2p_lane_t *lane, bool may_land);

/* kvp_p2p_path_cut_earlier is called before the first move of a transfer. After OK, no byte of earlier, abandoned
 * transfers of this endpoint can reach the peer's memory any more. */
kvp_err_t kvp_p2p_path_cut_earlier(kvp_p2p_lane_t *lane, uint64_t deadline_ns) KVP_MUST_USE;

/* kvp_p2p_path_is_stale returns true if the lane's transport connection should be replaced: its device was removed, or
 * the peer has other keys. It may be called only if no transfer runs on the connection. */
bool kvp_p2p_path_is_stale(const kvp_p2p_lane_t *lane);

#endif
