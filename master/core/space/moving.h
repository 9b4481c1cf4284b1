/* SPDX-License-Identifier: Apache-2.0
 * What is on its way between memory and a tier.
 */
#ifndef KVP_MASTER_CORE_SPACE_MOVING_H
#define KVP_MASTER_CORE_SPACE_MOVING_H

#include "common/list.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/space/space.h"

typedef struct kvp_deferred kvp_deferred_t;
typedef struct kvp_retire kvp_retire_t;

/* A waiter for the end of loads: put on space->staged then. */
typedef struct {
    kvp_list_t ready;
    uint32_t left;
} kvp_stage_wait_t;

typedef struct kvp_stage_waiter {
    kvp_list_t link; /* of the stage */
    kvp_stage_wait_t *wait;
    kvp_err_t result; /* as in kvp_moving_t */
} kvp_stage_waiter_t;

typedef struct {
    kvp_list_t link; /* in segment->demotes, stages, placed, or an order's records */
    kvp_list_t waiters; /* kvp_stage_waiter_t */
    kvp_segment_t *segment; /* the memory */
    uint32_t number; /* in space->moves */
    bool is_sent; /* its node has the order */
    bool is_orphan; /* the object was removed meanwhile */
    bool is_load; /* from the tier into memory: */
    bool is_placed; /* it got an extent */
    kvp_err_t result; /* NO_SPACE: a load that got no extent in time; NODE_LOST: its node failed to move it */
    kvp_digest_t digest;
    uint64_t version, len;
    kvp_place_t at;
    kvp_retire_t *retire; /* of a load's extent; NULL = none, or given up */
    uint64_t due_ns; /* of a load: time limit for finding room */
} kvp_moving_t;

/* kvp_moving_make: at is NULL for a load, which has no place yet. kvp_moving_of: NULL = the object
 * is not moving. kvp_moving_object: the object, if it is unchanged; NULL = it was removed.
 * kvp_moving_arrived: the object is not moving any more, and may be evicted. kvp_moving_end: the
 * move is over, and waiters are informed; the caller handles the object. kvp_moving_fail: the same,
 * and the object stays in its place. */
kvp_moving_t *kvp_moving_make(kvp_space_t *sp, kvp_obj_t *o, kvp_segment_t *g, const kvp_place_t *at);
kvp_moving_t *kvp_moving_of(const kvp_space_t *sp, const kvp_obj_t *o);
kvp_obj_t *kvp_moving_object(const kvp_space_t *sp, const kvp_moving_t *mv, uint32_t *oid_out);
void kvp_moving_arrived(kvp_space_t *sp, kvp_obj_t *o, uint32_t oid);
void kvp_moving_end(kvp_space_t *sp, kvp_moving_t *mv);
void kvp_moving_fail(kvp_space_t *sp, kvp_moving_t *mv);

/* kvp_tier_leave: the object is being removed: its tier drops it (is_told: knows already), and its
 * move has no object any more. The deferred reply counts the drop; NULL = none. */
void kvp_tier_leave(kvp_space_t *sp, kvp_obj_t *o, bool is_told, kvp_deferred_t *deferred);

#endif
