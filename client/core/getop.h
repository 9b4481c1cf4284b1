/* SPDX-License-Identifier: Apache-2.0
 * One batch of gets as a pure state machine. Reads from cached locations without a message while
 * the lease is valid; asks the master for the other locations, has them read, accepts or rejects
 * the bytes (rule 2 of the design), tries the next replica, then once more through the master, and
 * releases the hold. Callers: client/api/batch.c, and the simulator. See client/core/op.h for the
 * protocol of steps. */
#ifndef KVP_CLIENT_CORE_GETOP_H
#define KVP_CLIENT_CORE_GETOP_H

#include "client/core/loccache.h"

/* kvp_rank_fn returns the distance of a segment: less is nearer. */
typedef uint32_t (*kvp_rank_fn)(void *arg, uint32_t segment_id);

typedef struct {
    /* Set by the caller. */
    const void *key; /* borrowed until the end */
    uint32_t key_len;
    uint64_t cap; /* capacity of the destination */

    /* Results, valid at KVP_STEP_DONE. */
    kvp_err_t err;
    uint64_t len; /* also with BUFFER_SMALL */

    /* The core's. */
    uint8_t phase;
    bool is_last_ask; /* the master was asked again after all replicas had failed */
    bool lacks_room; /* by the master's last answer, waits for room in the memory of the node with the SSD copy */
    bool is_known; /* read from a known location */
    bool needs_desc; /* of it: its sum alone does not suffice any more */
    uint64_t told_ns; /* of that: kvp_cached_place_t.told_ns */
    uint8_t tried; /* bit i: locs[i] was */
    uint32_t nloc;
    const kvp_wire_loc_t *locs; /* in the answer, which is kept until the next call; or in op->places */
    kvp_digest_t digest;
    uint64_t key_hash2;
    uint64_t version;
    uint64_t sum;
    /* generation of a place where the master twice stated an object that was not there; 0 = none */
    uint64_t unreadable;
} kvp_getop_item_t;

typedef struct {
    /* Set by the caller. n is at most KVP_PLACES_MAX, moves_cap at least 1; all borrowed. The frame given to on_reply
     * stays in place until the next KVP_STEP_CALL. */
    kvp_getop_item_t *items;
    uint32_t n;
    kvp_move_t *moves;
    uint32_t moves_cap;
    kvp_buf_t *out;
    uint64_t deadline_ns;
    bool wants_sums;
    kvp_cached_place_t *places; /* n; NULL = the master is asked for every item */
    kvp_rank_fn rank; /* NULL = locations are tried in their order */
    void *rank_arg;

    /* For the shell, of a KVP_STEP_MOVE: its length, and how many copies of these objects may still
     * be tried after it. */
    uint32_t moves_n;
    uint32_t others;
    /* For the shell's counters. */
    uint32_t stale_n, corrupt_n, retry_n;
    uint32_t known_n, known_lost_n; /* items got from cached locations, and items that had left them */
    uint32_t kept_n; /* locations kept for the next time */

    /* The core's. */
    kvp_op_session_t session;
    bool has_session;
    bool has_looked; /* for known locations */
    bool has_digests; /* of session.digest_seed */
    uint64_t known_seq; /* revocations applied at the look-up */
    uint32_t asked_n; /* items in the GET that is under way */
    uint32_t left_n; /* items without a result */
    uint32_t reads_n; /* items to be read, not yet in moves */
    uint32_t retry_ms; /* items are on their way into memory, and are to be asked for again after that; 0 = none is */
    uint64_t ticket;
    uint32_t unreadable_n; /* items with such a place, not reported yet */
} kvp_getop_t;

/* kvp_getop_begin starts the machine: every item without a key of legal length must have been left out before. */
void kvp_getop_begin(kvp_getop_t *op);
kvp_step_t kvp_getop_next(kvp_getop_t *op, uint64_t now_ns);

/* Reports. on_known: NULL where no session has a lease. on_reply gives PROTO for an answer that
 * breaks the protocol (all items that were asked have that result then), or an error that ends the
 * session: either way the shell drops the connection. on_moved reads the reports in
 * moves[0..moves_n); boot_ns is the location lease's clock, which counts suspended time, read after
 * the last load of any of them. fail ends all items that have no result. */
void kvp_getop_on_known(kvp_getop_t *op, const kvp_op_session_t *session);
void kvp_getop_on_session(kvp_getop_t *op, const kvp_op_session_t *session);
kvp_err_t kvp_getop_on_reply(kvp_getop_t *op, const kvp_frame_t *frame) KVP_MUST_USE;
void kvp_getop_on_call_failed(kvp_getop_t *op, kvp_err_t err);
void kvp_getop_on_moved(kvp_getop_t *op, uint64_t boot_ns);
void kvp_getop_fail(kvp_getop_t *op, kvp_err_t err);

#endif
