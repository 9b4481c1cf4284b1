/* SPDX-License-Identifier: Apache-2.0
 * A node's SSD tier: records of objects in log-structured pages of preallocated files, found by digest. ADR 0029,
 * PROTOCOL "Tier".
 *
 * One thread of the tier does all slow work. The node's control thread submits operations and collects finished
 * operations; both calls are quick, and only one thread at a time may make them. The tier knows no masters, segments
 * or leases. */
#ifndef KVP_NODE_TIER_TIER_H
#define KVP_NODE_TIER_TIER_H

#include "node/tier/op.h"

typedef struct kvp_tier kvp_tier_t;

typedef struct {
    kvp_tier_device_t devices[KVP_TIER_DEVICES_MAX];
    uint32_t devices_n;
    const char *name; /* the name of the node, to which the files belong; borrowed for the call */
    uint64_t write_budget_bytes; /* the bytes that may be written in a day; 0 = no limit */
    int wake_fd; /* eventfd, written when operations or recovery end, or to propose; borrowed */
    /* The tier's threads may use a file descriptor table of their own, so that a hanging request keeps no other
     * descriptor of a killed process open. Must be false if code of an embedding process (its log function) runs in
     * these threads. */
    bool is_apart;
} kvp_tier_conf_t;

/* kvp_tier_open opens or creates the files, locks them, and tests them (writes, reads back, compares); it does not
 * recover records yet. INVALID (no such directory, too small, one file for two nodes, a file of another format), SYS
 * (no space, not writable, in use by another node): logged in one line that names the directory. Without O_DIRECT or
 * io_uring it uses other means, and logs that. The devices may be given in any order. A device that does not answer
 * for 5 s is left out until the next start.
 *
 * kvp_tier_use begins to use the records of the pool, and gives up the records of another pool. uuid_out is constant
 * as long as the files stay the same and belong to this pool. Recovery runs in the tier's thread, and operations wait
 * for it. kvp_tier_is_ready returns whether recovery has ended.
 *
 * kvp_tier_close writes the pending buffers, and frees everything. Unfinished operations end with CLOSED first;
 * collect them before (kvp_tier_stop, kvp_tier_take). */
kvp_err_t kvp_tier_open(const kvp_tier_conf_t *conf, kvp_tier_t **tier_out) KVP_MUST_USE;
void kvp_tier_use(kvp_tier_t *tier, const uint8_t pool_id[16], uint8_t uuid_out[16]);
bool kvp_tier_is_ready(kvp_tier_t *tier);
void kvp_tier_stop(kvp_tier_t *tier); /* ends the thread: afterwards all operations are done */
void kvp_tier_close(kvp_tier_t *tier); /* frees the tier; NULL is legal; call kvp_tier_stop before */

/* kvp_tier_submit gives an operation to the tier; the struct is the caller's memory and stays in place until
 * kvp_tier_take returns it. The WRITEs and DROPs of a device are appended, and done, in the order of submission; only
 * WRITEs to a device that does not answer fail at once. EAGAIN: not accepted, because the unfinished WRITEs would
 * exceed KVP_TIER_WRITES_BYTES. kvp_tier_take returns the next finished operation; NULL = none. */
kvp_err_t kvp_tier_submit(kvp_tier_t *tier, kvp_tier_op_t *op) KVP_MUST_USE;
kvp_tier_op_t *kvp_tier_take(kvp_tier_t *tier);

/* kvp_tier_is_kept returns whether the device of a finished, successful WRITE was not given up since. Then no
 * proposal taken before this call has reported the record as lost. */
bool kvp_tier_is_kept(kvp_tier_t *tier, const kvp_tier_op_t *op);

/* kvp_tier_device_of returns the number of the device of a digest, less than KVP_TIER_DEVICES_MAX. The number stays
 * the same while the tier is in use. */
uint32_t kvp_tier_device_of(const kvp_tier_t *tier, kvp_digest_t digest);

/* kvp_tier_quiesce returns when the operations submitted before the call no longer read src or write dst, so
 * that their memory may be freed. READs and WRITEs that have not begun end with CLOSED. */
void kvp_tier_quiesce(kvp_tier_t *tier);

/* kvp_tier_list lists up to max records from *cursor on (0 = the first), advances the cursor, and returns their number;
 * 0 = the end. Records that are written or moved meanwhile may be missed or listed twice. The tier must be ready. */
uint32_t kvp_tier_list(kvp_tier_t *tier, uint64_t *cursor, kvp_wire_tiered_t *recs, uint32_t max);

/* Reclaim. kvp_tier_propose returns true if free pages run short: the proposal then has the live records of the page to
 * reclaim, at most KVP_TIER_PROPOSED_MAX at a time (the next proposal has the rest of the page). It also proposes the
 * lost objects of a failed device. kvp_tier_answer gives n bytes, 1 = keep, for at most keep_bytes; the tier writes the
 * kept records again and reclaims the page. NULL: no answer; the records are proposed again. One proposal at a time. */
bool kvp_tier_propose(kvp_tier_t *tier, kvp_tier_proposal_t *proposal_out);
void kvp_tier_answer(kvp_tier_t *tier, const uint8_t *keep, uint32_t n);

void kvp_tier_stats(kvp_tier_t *tier, kvp_tier_stats_t *stats_out);

#endif
