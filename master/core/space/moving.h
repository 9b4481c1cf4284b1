/* SPDX-License-Identifier: Apache-2.0
 * Objects that are being written from memory to a tier, or loaded from a tier into memory. */
#ifndef KVP_MASTER_CORE_SPACE_MOVING_H
#define KVP_MASTER_CORE_SPACE_MOVING_H

#include "common/list.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/space/space.h"

typedef struct kvp_deferred kvp_deferred_t;
typedef struct kvp_retire kvp_retire_t;

/* A request that waits for the end of several loads: it is put on space->staged when all of them have ended. */
typedef struct {
    kvp_list_t ready;
    uint32_t left;
} kvp_stage_wait_t;

typedef struct kvp_stage_waiter {
    kvp_list_t link; /* link in kvp_moving_t.waiters of the load */
    kvp_stage_wait_t *wait;
    kvp_err_t result; /* result of the load, as in kvp_moving_t */
} kvp_stage_waiter_t;

typedef enum {
    KVP_MOVING_OUT, /* a write to the tier */
    KVP_MOVING_IN, /* a load from the tier into memory */
    KVP_MOVING_THROUGH, /* a load for a drain only: after the load the drain copies the object to another node */
} kvp_moving_kind_t;

typedef struct {
    kvp_list_t link; /* link in segment->demotes, stages or placed, or in the records of an order */
    kvp_list_t waiters; /* kvp_stage_waiter_t */
    kvp_segment_t *segment; /* the memory segment of the move */
    uint32_t number; /* number of the move in space->moves */
    bool is_sent; /* flag: the order for this move was sent to the node */
    bool is_orphan; /* flag: the object was removed during this move */
    uint8_t kind; /* kvp_moving_kind_t */
    bool is_placed; /* flag: the load has got an extent */
    kvp_err_t result; /* NO_SPACE: a load got no extent in time; NODE_LOST: the move's node failed, or disconnected */
    kvp_digest_t digest;
    uint64_t version, len;
    kvp_place_t at;
    kvp_retire_t *retire; /* for a load: retire record of its extent; NULL = no extent yet, or given up */
    uint64_t due_ns; /* time at which a load without an extent fails */
} kvp_moving_t;

static inline bool
kvp_moving_is_load(const kvp_moving_t *mv)
{
    return mv->kind != KVP_MOVING_OUT;
}

/* kvp_moving_make begins a move; at is NULL for a load, which has no place yet. kvp_moving_of returns the object's
 * move; NULL = the object is not moving. kvp_moving_object returns the moving object; NULL = it was removed or
 * replaced. kvp_moving_arrived marks the object as not moving any more, so that it may be evicted. kvp_moving_end
 * frees the move and informs its waiters; the object's record is not changed. kvp_moving_fail does the same for a
 * failed move; the object stays where it was. */
kvp_moving_t *kvp_moving_make(kvp_space_t *sp, kvp_obj_t *o, kvp_segment_t *g, const kvp_place_t *at);
kvp_moving_t *kvp_moving_of(const kvp_space_t *sp, const kvp_obj_t *o);
kvp_obj_t *kvp_moving_object(const kvp_space_t *sp, const kvp_moving_t *mv, uint32_t *oid_out);
void kvp_moving_arrived(kvp_space_t *sp, kvp_obj_t *o, uint32_t oid);
void kvp_moving_end(kvp_space_t *sp, kvp_moving_t *mv);
void kvp_moving_fail(kvp_space_t *sp, kvp_moving_t *mv);

/* kvp_tier_leave orders the tier to drop an object that is being removed (not if is_told: the tier has dropped it
 * already), and separates the object from its move. The deferred reply waits for the drop; NULL = none. */
void kvp_tier_leave(kvp_space_t *sp, kvp_obj_t *o, bool is_told, kvp_deferred_t *deferred);

#endif
