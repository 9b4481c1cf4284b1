/* SPDX-License-Identifier: Apache-2.0
 * One transfer over one lane (a control connection to a peer, lane.h). First the ranges that contain the pieces are
 * looked up, then the bytes are moved: by copies between the two processes if both can, else by the transport. */
#ifndef KVP_P2P_ASK_MOVE_H
#define KVP_P2P_ASK_MOVE_H

#include "client/kvpool_p2p.h"
#include "p2p/ask/lane.h"

/* A transfer: the pieces of one call, which are all reads or all writes. */
typedef struct {
    bool is_write;
    const kvpool_p2p_op_t *ops; /* the pieces; borrowed */
    size_t n;
    uint64_t deadline_ns;
} kvp_p2p_transfer_t;

typedef struct {
    uint64_t cma_bytes; /* bytes that were moved within this host */
    uint64_t mapped_bytes; /* the part of cma_bytes that was copied in the peer's memory, mapped in this process */
    uint64_t rdma_bytes;
    uint64_t tcp_bytes;
    bool met_device; /* with NOTSUP: the peer's memory is device memory, which only kvp_p2p_bounced_move can move */
} kvp_p2p_moved_t;

/* kvp_p2p_move carries out a transfer. Its errors are those of kvpool_p2p_transfer. After an error the caller closes
 * the lane, and then no part of the transfer touches local memory. The moved bytes are added to moved_out. */
kvp_err_t kvp_p2p_move(kvp_p2p_lane_t *lane, const kvp_p2p_transfer_t *transfer, kvp_p2p_moved_t *moved_out)
    KVP_MUST_USE;

/* kvp_p2p_ask_moves asks the peer to carry out or check moves, and returns a record for each piece, borrowed until
 * the next question. Returns the first error among the records; NO_SEGMENT: a range no longer matches the peer's
 * earlier answer. */
kvp_err_t kvp_p2p_ask_moves(kvp_p2p_lane_t *lane, const kvp_peer_moves_t *moves, uint64_t deadline_ns,
                            const kvp_peer_moved_t **moved_out) KVP_MUST_USE;

/* kvp_p2p_bounced_move is kvp_p2p_move for any kind of memory. Local device memory is registered, and held by the
 * caller. Further error: SYS if a device does not copy. If lane->has_bounce is true afterwards, the caller must close
 * the lane. */
kvp_err_t kvp_p2p_bounced_move(kvp_p2p_lane_t *lane, const kvp_p2p_transfer_t *transfer, kvp_p2p_moved_t *moved_out)
    KVP_MUST_USE;

#endif
