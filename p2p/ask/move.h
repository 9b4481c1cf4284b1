/* SPDX-License-Identifier: Apache-2.0
 * One transfer over one lane: which ranges the pieces lie in, then the bytes, by copies between
 * processes where both sides can, else by the transport. */
#ifndef KVP_P2P_ASK_MOVE_H
#define KVP_P2P_ASK_MOVE_H

#include "client/kvpool_p2p.h"
#include "p2p/ask/lane.h"

/* The pieces of a call, which go in one direction. */
typedef struct {
    bool is_write;
    const kvpool_p2p_op_t *ops; /* borrowed */
    size_t n;
    uint64_t deadline_ns;
} kvp_p2p_transfer_t;

typedef struct {
    uint64_t cma_bytes; /* within this host, */
    uint64_t mapped_bytes; /* of that in memory which is mapped here */
    uint64_t rdma_bytes;
    uint64_t tcp_bytes;
    bool met_device; /* with NOTSUP: memory of a device at the peer, which only kvp_p2p_bounced_move moves */
} kvp_p2p_moved_t;

/* kvp_p2p_move: the errors of kvpool_p2p_transfer. When it returns nothing of it touches local
 * memory, if after an error the lane is closed. moved_out is added to. */
kvp_err_t kvp_p2p_move(kvp_p2p_lane_t *lane, const kvp_p2p_transfer_t *transfer, kvp_p2p_moved_t *moved_out)
    KVP_MUST_USE;

/* kvp_p2p_ask_moves asks the peer for moves, and returns a record for each piece; borrowed until
 * the next question. Returns the first error among them; NO_SEGMENT: a range no longer matches the
 * peer's earlier answer. */
kvp_err_t kvp_p2p_ask_moves(kvp_p2p_lane_t *lane, const kvp_peer_moves_t *moves, uint64_t deadline_ns,
                            const kvp_peer_moved_t **moved_out) KVP_MUST_USE;

/* kvp_p2p_bounced_move is kvp_p2p_move for any memory; local memory of devices is registered, and
 * held. Also SYS: a device does not copy. lane->has_bounce afterwards: the lane is to be closed. */
kvp_err_t kvp_p2p_bounced_move(kvp_p2p_lane_t *lane, const kvp_p2p_transfer_t *transfer, kvp_p2p_moved_t *moved_out)
    KVP_MUST_USE;

#endif
