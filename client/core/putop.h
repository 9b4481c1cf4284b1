/* SPDX-License-Identifier: Apache-2.0
 * One batch of puts as a pure state machine: begin (attempts and places), fill (payload), seal (key
 * and descriptor), commit; abort of items that failed after they had a place. Small objects are
 * filled and sealed by one move. All copies of an object are written at once, and one complete copy
 * is enough. Callers: client/api/batch.c, and the simulator. See client/core/op.h for the protocol
 * of steps. */
#ifndef KVP_CLIENT_CORE_PUTOP_H
#define KVP_CLIENT_CORE_PUTOP_H

#include "client/core/loccache.h"

/* kvp_attempts_fn reserves n attempt numbers that this process has never used, none of them 0, and
 * returns the first. */
typedef uint64_t (*kvp_attempts_fn)(void *arg, uint32_t n);
/* kvp_avoid_fn names segments that cannot be reached just now, and returns how many. */
typedef uint32_t (*kvp_avoid_fn)(void *arg, uint32_t ids[KVP_AVOID_MAX]);

typedef struct {
    /* Set by the caller. */
    const void *key; /* borrowed until the end */
    uint32_t key_len;
    uint64_t len;
    const void *group; /* id of the group that it joins; NULL = none. Borrowed like the key */
    uint32_t group_len;
    uint32_t group_members;
    uint32_t group_member;
    kvp_wire_lineage_t lineage;
    bool is_host; /* its bytes are the host's: their sum can be known before they are sent */

    /* Result, valid at KVP_STEP_DONE */
    kvp_err_t err;

    /* The core's. */
    uint8_t phase;
    uint8_t restarts;
    bool is_drained; /* of the attempt: nothing of it can land any more */
    bool was_cut; /* a session was lost on it: its old attempt may still be there for a moment */
    bool is_early; /* a copy's connection was not there yet when the attempt was begun */
    uint32_t nloc;
    uint32_t parts_begun; /* of the nloc copies, in the phase */
    uint32_t parts_done;
    uint8_t sound; /* bit i: copy i has no error so far */
    kvp_err_t part_err; /* the first error */
    uint32_t ns_epoch; /* of the grant */
    const kvp_wire_loc_t *locs; /* in the answer, which is kept until the next call */
    kvp_digest_t digest;
    uint64_t attempt;
    uint64_t begun_ns; /* before the master was asked for it */
    uint64_t version;
    uint64_t sum; /* of the first written copy that has one; 0 = none has */
} kvp_putop_item_t;

/* The treatment of a key that was committed before. */
typedef enum {
    KVP_COMMITTED_OK, /* its value stays, and the item is OK */
    KVP_COMMITTED_ALREADY, /* its value stays, and the item is ALREADY */
    KVP_COMMITTED_REPLACED, /* an upsert: the new value replaces its value */
} kvp_committed_t;

typedef struct {
    /* Set by the caller. n is at most KVP_PLACES_MAX, their keys fit in a frame; moves_cap at least
     * 1; all borrowed. The frame given to on_reply stays in place until the next KVP_STEP_CALL. */
    kvp_putop_item_t *items;
    uint32_t n;
    kvp_move_t *moves;
    uint32_t moves_cap;
    kvp_buf_t *out;
    uint64_t deadline_ns;
    uint32_t replicas; /* copies wanted; 0 = 1 */
    uint32_t only; /* the only allowed segment; 0 = any */
    kvp_pin_t pin;
    kvp_committed_t committed;
    uint64_t
        /* end of the wait for other writers of the keys; 0 = none met yet. Passed on from batch to
         * batch */
        join_until_ns;
    bool waits; /* upsert: until no client can read the old version any more */
    kvp_attempts_fn attempts;
    void *attempts_arg;
    kvp_avoid_fn avoid; /* NULL = all are as good */
    void *avoid_arg;

    /* For the shell, of a KVP_STEP_MOVE: its length, and whether some of these objects are as well
     * off without one of the copies that are moved. */
    uint32_t moves_n;
    bool has_copies;
    /* For the shell's counters. */
    uint32_t retry_n;

    /* The core's. */
    kvp_op_session_t session;
    bool has_session;
    uint8_t calling; /* opcode under way */
    uint32_t asked_n; /* items in the call that is under way */
    uint32_t left_n; /* items without a result */
    uint64_t again_ns; /* nothing is asked again before */
} kvp_putop_t;

/* kvp_putop_begin starts the machine: every item has a legal key and a length. */
void kvp_putop_begin(kvp_putop_t *op);
kvp_step_t kvp_putop_next(kvp_putop_t *op, uint64_t now_ns);

/* Reports, as for kvp_getop_*. fail keeps what has to be aborted: the machine goes on until KVP_STEP_DONE. */
void kvp_putop_on_session(kvp_putop_t *op, const kvp_op_session_t *session);
kvp_err_t kvp_putop_on_reply(kvp_putop_t *op, const kvp_frame_t *frame, uint64_t now_ns) KVP_MUST_USE;
void kvp_putop_on_call_failed(kvp_putop_t *op, kvp_err_t err);
void kvp_putop_on_moved(kvp_putop_t *op, uint64_t now_ns);
void kvp_putop_fail(kvp_putop_t *op, kvp_err_t err);

#endif
