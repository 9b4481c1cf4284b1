/* SPDX-License-Identifier: Apache-2.0
 * A node's SSD tier: records of objects in log-structured pages of preallocated files, found by
 * digest. ADR 0029, PROTOCOL "Tier".
 *
 * One thread of the tier does all slow work. The node's control thread submits operations and
 * collects finished ones; both calls are quick, and legal for one thread at a time. The tier knows
 * no masters, segments or leases. */
#ifndef KVP_NODE_TIER_TIER_H
#define KVP_NODE_TIER_TIER_H

#include "node/tier/op.h"

typedef struct kvp_tier kvp_tier_t;

typedef struct {
    kvp_tier_device_t devices[KVP_TIER_DEVICES_MAX];
    uint32_t devices_n;
    const char *name; /* of the node: a file belongs to one name. Borrowed for the call */
    uint64_t write_budget_bytes; /* a day; 0 = none */
    int wake_fd; /* an eventfd that is written 1 to when operations are done; borrowed */
    /* The tier's threads may have a table of descriptors of their own: a request that hangs keeps
     * no other descriptor of a process that is killed. Not where a host's code (its log) runs in
     * them. */
    bool is_apart;
} kvp_tier_conf_t;

/* kvp_tier_open opens or creates the files, locks them, and tests them (writes, reads back,
 * compares); it does not recover records yet. INVALID (no such directory, too small, one file for
 * two nodes, another format's file), SYS (no space, not writable, in use by another node): logged
 * in one line that names the directory. Without O_DIRECT or io_uring it uses other means, and logs
 * that. Devices may be named in any order. A device that does not answer for 5 s is left out until
 * the next start.
 *
 * kvp_tier_use begins with the records of the pool, and gives up those of another pool. uuid_out:
 * constant as long as the files stay the same and of this pool. Recovery runs in the tier's thread;
 * operations wait for it. kvp_tier_is_ready: recovery is over.
 *
 * kvp_tier_close writes the pending buffers, and frees all; unfinished operations end with CLOSED
 * first: collect them before. */
kvp_err_t kvp_tier_open(const kvp_tier_conf_t *conf, kvp_tier_t **tier_out) KVP_MUST_USE;
void kvp_tier_use(kvp_tier_t *tier, const uint8_t pool_id[16], uint8_t uuid_out[16]);
bool kvp_tier_is_ready(kvp_tier_t *tier);
void kvp_tier_stop(kvp_tier_t *tier); /* ends the thread: all operations are done then */
void kvp_tier_close(kvp_tier_t *tier); /* NULL is legal; stopped before */

/* kvp_tier_submit takes the operation (the caller's memory, which stays in place) until it is taken
 * back. WRITE and DROP are appended in the order in which they are submitted, and done in that
 * order. EAGAIN: KVP_TIER_WRITES_BYTES are under way; nothing was taken. kvp_tier_take: the next
 * that is done, NULL = none is. */
kvp_err_t kvp_tier_submit(kvp_tier_t *tier, kvp_tier_op_t *op) KVP_MUST_USE;
kvp_tier_op_t *kvp_tier_take(kvp_tier_t *tier);

/* kvp_tier_is_kept: the device of a finished, successful WRITE was not given up since; so no
 * proposal taken before this call has reported the record lost. */
bool kvp_tier_is_kept(kvp_tier_t *tier, const kvp_tier_op_t *op);

/* kvp_tier_device_of is the number of the device that a digest's slot is mapped to, less than
 * KVP_TIER_DEVICES_MAX. The same until the end. */
uint32_t kvp_tier_device_of(const kvp_tier_t *tier, kvp_digest_t digest);

/* kvp_tier_quiesce returns when no operation that was submitted before reads src or writes dst any
 * more (those that are not begun are done with CLOSED): then the memory may go. */
void kvp_tier_quiesce(kvp_tier_t *tier);

/* kvp_tier_list iterates over the records: up to max from *cursor on (0 = the first), and advances
 * it; returns their number, 0 = the end. Records written or moved meanwhile may be missed or listed
 * twice. The tier must be ready. */
uint32_t kvp_tier_list(kvp_tier_t *tier, uint64_t *cursor, kvp_wire_tiered_t *recs, uint32_t max);

/* Reclaim. kvp_tier_propose returns true if free pages run short: the proposal has the live records
 * of the page to reclaim, at most KVP_TIER_PROPOSED_MAX at a time (the rest of the page comes with
 * the next proposal). With kvp_tier_answer (n bytes, 1 = keep; at most keep_bytes of them are kept)
 * the tier writes the kept ones again and reclaims the page; NULL: no answer will come. One
 * proposal at a time. */
bool kvp_tier_propose(kvp_tier_t *tier, kvp_tier_proposal_t *proposal_out);
void kvp_tier_answer(kvp_tier_t *tier, const uint8_t *keep, uint32_t n);

void kvp_tier_stats(kvp_tier_t *tier, kvp_tier_stats_t *stats_out);

#endif
