/* SPDX-License-Identifier: Apache-2.0
 * The path of a lane by a transport, for what does not stay within the host: rdma where both ends have it, else tcp. Which of them
 * it is, how it is connected, and what it may have left under way when it ended.
 */
#ifndef KVP_P2P_ASK_PATH_H
#define KVP_P2P_ASK_PATH_H

#include "p2p/ask/lane.h"

/* kvp_p2p_path_reach makes the path where there is none, and learns the ranges of what is not known. Where rdma does not come about it goes on
 * by tcp, if that is allowed: for a second at first, then for longer. On a lane within the host it only learns. NOT_REGISTERED, NOTSUP (the
 * ranges are not reached by rdma, and nothing else is allowed), UNREACHABLE, DEADLINE, ... */
kvp_err_t kvp_p2p_path_reach(kvp_p2p_lane_t *lane, const kvp_peer_at_t *at, uint32_t n, uint64_t deadline_ns)
    KVP_MUST_USE;

/* kvp_p2p_path_disconnect ends it, and with CANCELLED what it owns: nothing of it touches local memory any more. may_land: writes are under
 * way on it, which cut_earlier has to see to. NULL paths are legal. */
void kvp_p2p_path_disconnect(kvp_p2p_lane_t *lane, bool may_land);

/* kvp_p2p_path_cut_earlier comes before anything is moved: when it returns OK nothing can land any more that earlier transfers of this
 * endpoint sent to that peer and gave up. */
kvp_err_t kvp_p2p_path_cut_earlier(kvp_p2p_lane_t *lane, uint64_t deadline_ns) KVP_MUST_USE;

/* kvp_p2p_path_is_stale: it carries nothing, and is better made anew: a device under it is gone, or the peer has other keys. */
bool kvp_p2p_path_is_stale(const kvp_p2p_lane_t *lane);

#endif
