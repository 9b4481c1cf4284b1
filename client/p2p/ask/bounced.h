/* SPDX-License-Identifier: Apache-2.0
 * A transfer from or to memory of devices, here or at the peer: through bounce buffers. docs/adr/0023-p2p-device.md.
 */
#ifndef KVP_CLIENT_P2P_ASK_BOUNCED_H
#define KVP_CLIENT_P2P_ASK_BOUNCED_H

#include "client/p2p/ask/move.h"

/* kvp_p2p_bounced_move is kvp_p2p_move for any memory; local memory of devices is registered, and held. Also SYS: a device does not copy.
 * lane->has_bounce afterwards: the lane is to be closed. */
kvp_err_t kvp_p2p_bounced_move(kvp_p2p_lane_t *lane, int kind, const kvpool_p2p_op_t *ops, size_t n,
                               uint64_t deadline_ns, kvp_p2p_moved_t *moved_out) KVP_MUST_USE;

#endif
