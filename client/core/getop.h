/* SPDX-License-Identifier: Apache-2.0
 * One batch of gets as a pure state machine. While the lease is valid, the machine reads from cached locations
 * without a message. It asks the master for the other locations, lets the shell read them, and accepts or rejects the
 * bytes (rule 2 of the design). After a failure it tries the next replica, and then asks the master once more. At the
 * end it releases the hold. Used by client/api/batch.c and by the simulator. See client/core/op.h for the protocol of
 * steps. */
#ifndef KVP_CLIENT_CORE_GETOP_H
#define KVP_CLIENT_CORE_GETOP_H

#include "client/core/loccache.h"

/* kvp_rank_fn returns the distance of a segment from this client: a smaller number is nearer. */
typedef uint32_t (*kvp_rank_fn)(void *arg, uint32_t segment_id);

typedef struct {
    /* Fields that the caller sets. */
    const void *key; /* the item's key; borrowed until KVP_STEP_DONE */
    uint32_t key_len;
    uint64_t cap; /* capacity of the destination in bytes */

    /* Results of the item, valid at KVP_STEP_DONE. */
    kvp_err_t err;
    uint64_t len; /* length of the object; also set with BUFFER_SMALL */

    /* Fields of the state machine. */
    uint8_t phase;
    bool is_last_ask; /* the master was asked once more after all replicas had failed */
    bool lacks_room; /* by the master's last answer, the object on SSD waits for space in its node's memory */
    bool is_known; /* the location comes from the cache */
    bool needs_desc; /* of a cached location: read the descriptor too; a correct checksum is not enough any more */
    uint64_t told_ns; /* of a cached location: time of its last confirmation, see kvp_cached_place_t.told_ns */
    uint8_t tried; /* bit i is set if locs[i] was tried */
    uint32_t nloc;
    const kvp_wire_loc_t *locs; /* item's locations, in the master's answer (kept until the next call) or op->places */
    kvp_digest_t digest;
    uint64_t key_hash2;
    uint64_t version;
    uint64_t sum;
    /* generation at a location where the object was missing although the master had named the location twice; 0 =
     * none */
    uint64_t unreadable;
} kvp_getop_item_t;

typedef struct {
    /* Fields that the caller sets. n is at most KVP_PLACES_MAX, moves_cap at least 1. The arrays are borrowed. The
     * frame given to kvp_getop_on_reply stays in place until the next KVP_STEP_CALL. */
    kvp_getop_item_t *items;
    uint32_t n;
    kvp_move_t *moves;
    uint32_t moves_cap;
    kvp_buf_t *out;
    uint64_t deadline_ns;
    uint32_t keeps_here; /* flag: 1 = the master is asked to make copies on this host; places is then NULL */
    const uint32_t *epoch; /* epoch that the tenant must have, else STALE; NULL = any. With an epoch, places is NULL */
    bool wants_sums;
    kvp_cached_place_t *places; /* buffer for n cached locations; NULL = ask the master for every item */
    kvp_rank_fn rank; /* ranks segments; NULL = locations are tried in the order of the master's answer */
    void *rank_arg;

    /* For the shell, in a KVP_STEP_MOVE. moves_n: the number of moves. others: each moved object has at most so many
     * more copies that can be tried after the move. */
    uint32_t moves_n;
    uint32_t others;
    /* For the shell's counters: stale reads; corrupt reads; items asked for again, plus lost sessions. */
    uint32_t stale_n, corrupt_n, retry_n;
    uint32_t known_n, known_lost_n; /* items read from cached locations; items whose cached location failed */
    uint32_t kept_n; /* locations that were added to the cache */

    /* Fields of the state machine. */
    kvp_op_session_t session;
    bool has_session;
    bool has_looked; /* the cache was searched */
    bool has_digests; /* the items have the digests for session.digest_seed */
    uint64_t known_seq; /* number of the last revocation applied when the cache was searched */
    uint32_t asked_n; /* number of items in the current question to the master */
    uint32_t left_n; /* number of items without a result */
    uint32_t reads_n; /* number of items that wait for a move */
    uint32_t retry_ms; /* pause before the next question about items that are being loaded; 0 = no pause */
    uint64_t ticket;
    uint32_t unreadable_n; /* number of items whose generation in `unreadable` is not reported to the master yet */
} kvp_getop_t;

/* kvp_getop_begin starts the state machine. The key of every item has a legal length. kvp_getop_next returns the next
 * step. */
void kvp_getop_begin(kvp_getop_t *op);
kvp_step_t kvp_getop_next(kvp_getop_t *op, uint64_t now_ns);

/* Reports of the shell after a step. on_known: session is NULL if no session has a lease. on_reply returns PROTO for
 * an answer that breaks the protocol (then all items of the question get PROTO), or an error that ends the session;
 * in both cases the shell drops the connection. on_moved reads the results in moves[0..moves_n); boot_ns is the time
 * after the last load, by the clock of the location lease, which counts suspended time. fail ends all items without a
 * result. */
void kvp_getop_on_known(kvp_getop_t *op, const kvp_op_session_t *session);
void kvp_getop_on_session(kvp_getop_t *op, const kvp_op_session_t *session);
kvp_err_t kvp_getop_on_reply(kvp_getop_t *op, const kvp_frame_t *frame) KVP_MUST_USE;
void kvp_getop_on_call_failed(kvp_getop_t *op, kvp_err_t err);
void kvp_getop_on_moved(kvp_getop_t *op, uint64_t boot_ns);
void kvp_getop_fail(kvp_getop_t *op, kvp_err_t err);

#endif
