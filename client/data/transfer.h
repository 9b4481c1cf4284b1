/* SPDX-License-Identifier: Apache-2.0
 * Carries out the moves of a batch core: finds paths to the nodes, makes transfers, submits them to
 * all nodes and polls them together until the deadline. A node that is silent for its share of the
 * time is left earlier, with NODE_LOST, if other nodes or other copies wait for their turn, or have
 * answered. After the return no transfer touches the caller's buffers. */
#ifndef KVP_CLIENT_DATA_TRANSFER_H
#define KVP_CLIENT_DATA_TRANSFER_H

#include "client/core/op.h"
#include "client/data/scratch.h"
#include "client/control/session.h"

/* An item's memory, in order; possibly longer than the object. */
typedef struct {
    const kvp_iov_t *iov;
    uint32_t iov_n;
    uint64_t len; /* of all pieces */
    bool has_device; /* some of it may not be touched by processors: see client/data/bounced.h */
    bool is_gpu_direct; /* all device memory that adapters reach: it needs no bounce buffer */
    bool is_lent; /* all of it is registered, and held until the call is over */
} kvp_span_t;

typedef struct {
    kvp_mastersession_t *session;
    kvp_peers_t *peers;
    kvp_scratch_t *scratch;
    const kvp_span_t *spans; /* by item */
    uint64_t deadline_ns;
    uint32_t others; /* copies, or places, that are tried where these moves fail: each gets its share of the time */
    /* Some of these moves write copies of one object: once a copy is complete, silent nodes are not
     * awaited. */
    bool has_copies;
} kvp_transfer_t;

/* kvp_transfer_run fills in the report of each move (kvp_move_t.err and the next fields). Their
 * memory is the host's, or is for GPU direct; NOTSUP: device memory that needs a bounce buffer, on
 * the route to the node or for its sum. */
void kvp_transfer_run(const kvp_transfer_t *transfer, kvp_move_t *moves, uint32_t n);

#endif
