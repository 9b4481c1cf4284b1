/* SPDX-License-Identifier: Apache-2.0
 * Carries out the moves of a batch: finds paths to the nodes, makes transfers, submits them to all nodes and polls
 * them together until the deadline. A node that is silent for its share of the time is given up earlier, with
 * NODE_LOST, if other nodes or other copies wait for their turn or have answered. After the return no transfer
 * touches the caller's buffers. */
#ifndef KVP_CLIENT_DATA_TRANSFER_H
#define KVP_CLIENT_DATA_TRANSFER_H

#include "client/core/op.h"
#include "client/data/scratch.h"
#include "client/control/session.h"

/* The memory of an item: pieces in order, together at least as long as the object. */
typedef struct {
    const kvp_iov_t *iov;
    uint32_t iov_n;
    uint64_t len; /* sum of the lengths of all pieces */
    bool has_device; /* some pieces are device memory, which processors must not touch: see client/data/bounced.h */
    bool is_gpu_direct; /* network adapters reach all device memory of the span, so it needs no bounce buffer */
    bool is_lent; /* all pieces are registered memory; the call holds the registrations until its end */
} kvp_span_t;

typedef struct {
    kvp_mastersession_t *session;
    kvp_peers_t *peers;
    kvp_scratch_t *scratch;
    const kvp_span_t *spans; /* the memory of each item, by kvp_move_t.item */
    uint64_t deadline_ns;
    uint32_t others; /* number of copies or places to try if these moves fail; each gets its share of the time */
    /* Some of the moves write copies of one object: once one copy is complete, silent nodes are not awaited. */
    bool has_copies;
    /* the time in which this transfer waited for nodes is added here; borrowed; NULL = not measured */
    uint64_t *waited_ns;
} kvp_transfer_t;

/* kvp_transfer_run carries out the moves and fills in each move's result (kvp_move_t.err and the fields after it).
 * The memory is host memory, or device memory for GPU direct. NOTSUP: device memory that needs a bounce buffer, for
 * the route to the node or for its checksum. */
void kvp_transfer_run(const kvp_transfer_t *transfer, kvp_move_t *moves, uint32_t n);

#endif
