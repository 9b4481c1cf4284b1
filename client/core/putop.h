/* SPDX-License-Identifier: Apache-2.0
 * One batch of puts as a pure state machine: begin (gets attempts and places from the master), fill (writes the
 * payload), seal (writes key and descriptor), commit; and abort, for items that failed after they had a place. One
 * move fills and seals a small object. All copies of an object are written at the same time, and one complete copy is
 * enough. Used by client/api/batch.c and by the simulator. See client/core/op.h for the protocol of steps. */
#ifndef KVP_CLIENT_CORE_PUTOP_H
#define KVP_CLIENT_CORE_PUTOP_H

#include "client/core/loccache.h"

/* kvp_attempts_fn reserves n attempt numbers that this client has never used, and returns the first. No attempt
 * number is 0. */
typedef uint64_t (*kvp_attempts_fn)(void *arg, uint32_t n);
/* kvp_avoid_fn writes the ids of segments that cannot be reached at the moment to ids, and returns their number. */
typedef uint32_t (*kvp_avoid_fn)(void *arg, uint32_t ids[KVP_AVOID_MAX]);

typedef struct {
    /* Fields that the caller sets. */
    const void *key; /* the item's key; borrowed until KVP_STEP_DONE */
    uint32_t key_len;
    uint64_t len;
    const void *group; /* id of the group that the object joins; NULL = no group. Borrowed until KVP_STEP_DONE */
    uint32_t group_len;
    uint32_t group_members;
    uint32_t group_member;
    kvp_wire_lineage_t lineage;
    bool is_host; /* the bytes are in host memory, so their checksum can be computed before they are sent */

    /* Result of the item, valid at KVP_STEP_DONE. */
    kvp_err_t err;

    /* Fields of the state machine. */
    uint8_t phase;
    uint8_t restarts;
    bool is_drained; /* no write of the attempt can reach a node's memory any more */
    bool was_cut; /* a session was lost during the item: its old attempt may still exist at the master for a moment */
    bool is_early; /* the connection to a copy's node was not open yet when the attempt began */
    uint32_t nloc;
    uint32_t parts_begun; /* copies (of nloc) whose move has begun in the current phase */
    uint32_t parts_done;
    uint8_t sound; /* bit i is set while copy i has no error */
    kvp_err_t part_err; /* the first error of a copy */
    uint32_t ns_epoch; /* namespace epoch of the grant, for the descriptors */
    const kvp_wire_loc_t *locs; /* the granted locations; in the master's answer, which stays until the next call */
    kvp_digest_t digest;
    uint64_t attempt;
    uint64_t begun_ns; /* time at which the attempt's PUT_BEGIN was built */
    uint64_t version;
    uint64_t sum; /* checksum from the first written copy with a checksum; 0 = none has a checksum */
} kvp_putop_item_t;

/* How a put treats a key that has a committed value. */
typedef enum {
    KVP_COMMITTED_OK, /* the old value stays, and the item's result is OK */
    KVP_COMMITTED_ALREADY, /* the old value stays, and the item's result is ALREADY */
    KVP_COMMITTED_REPLACED, /* an upsert: the new value replaces the old value */
} kvp_committed_t;

typedef struct {
    /* Fields that the caller sets. n is at most KVP_PLACES_MAX, and the keys of all items fit in one frame. moves_cap
     * is at least 1. The arrays are borrowed. The frame given to kvp_putop_on_reply stays in place until the next
     * KVP_STEP_CALL. */
    kvp_putop_item_t *items;
    uint32_t n;
    kvp_move_t *moves;
    uint32_t moves_cap;
    kvp_buf_t *out;
    uint64_t deadline_ns;
    uint32_t replicas; /* number of copies of each object; 0 means 1 */
    uint32_t only; /* id of the only allowed segment; 0 = any segment */
    const uint32_t *prefer; /* ids of prefer_n segments that get a copy each if they have room; borrowed */
    uint32_t prefer_n;
    kvp_pin_t pin;
    const uint32_t *epoch; /* the tenant must have this epoch, else STALE; NULL = any epoch. Borrowed */
    kvp_committed_t committed;
    /* end of the wait for other clients' puts of the same keys; 0 = no such put was met yet. The caller passes it
     * from batch to batch. */
    uint64_t join_until_ns;
    bool waits; /* upsert: wait until no client can read the old version any more */
    kvp_attempts_fn attempts;
    void *attempts_arg;
    kvp_avoid_fn avoid; /* function that lists segments to avoid; NULL = none */
    void *avoid_arg;

    /* For the shell, in a KVP_STEP_MOVE. moves_n: the number of moves. has_copies: one of the objects has two or more
     * copies without an error, so it can do without one of them. */
    uint32_t moves_n;
    bool has_copies;
    /* For the shell's counters: how many items were asked for again, plus the number of lost sessions. */
    uint32_t retry_n;

    /* Fields of the state machine. */
    kvp_op_session_t session;
    bool has_session;
    uint8_t calling; /* opcode of the current call */
    uint32_t asked_n; /* number of items in the current call */
    uint32_t left_n; /* number of items without a result */
    uint64_t again_ns; /* the next PUT_BEGIN is not sent before this time */
} kvp_putop_t;

/* kvp_putop_begin starts the state machine. Every item has a legal key and a length. kvp_putop_next returns the next
 * step. */
void kvp_putop_begin(kvp_putop_t *op);
kvp_step_t kvp_putop_next(kvp_putop_t *op, uint64_t now_ns);

/* Reports of the shell after a step, as for kvp_getop_*. kvp_putop_fail leaves attempts to be aborted, so the machine
 * goes on until KVP_STEP_DONE. */
void kvp_putop_on_session(kvp_putop_t *op, const kvp_op_session_t *session);
kvp_err_t kvp_putop_on_reply(kvp_putop_t *op, const kvp_frame_t *frame, uint64_t now_ns) KVP_MUST_USE;
void kvp_putop_on_call_failed(kvp_putop_t *op, kvp_err_t err);
void kvp_putop_on_moved(kvp_putop_t *op, uint64_t now_ns);
void kvp_putop_fail(kvp_putop_t *op, kvp_err_t err);

#endif
