/* SPDX-License-Identifier: Apache-2.0
 * Removes an object from the index and retires its extents. The object's record stays until its last ticket ends. */
#ifndef KVP_MASTER_CORE_SPACE_DROP_H
#define KVP_MASTER_CORE_SPACE_DROP_H

#include "master/core/space/space.h"
#include "master/core/catalog/index.h"
#include "master/core/protect/deferred.h"
#include "proto/cause.h"

/* kvp_obj_del_place removes a replica from the object; the caller retires the extent. kvp_obj_drop_copy removes a
 * replica and retires its extent; the object must have another replica. */
void kvp_obj_del_place(kvp_space_t *sp, uint32_t oid, const kvp_place_t *at);
void kvp_obj_drop_copy(kvp_space_t *sp, uint32_t oid, const kvp_place_t *at, kvp_deferred_t *deferred);
/* kvp_obj_move_off drops the copy that an object was moved from, which must not be its only one. The object keeps its
 * place in the order of use. */
void kvp_obj_move_off(kvp_space_t *sp, uint32_t oid, const kvp_place_t *at);
/* kvp_obj_leave_memory retires all extents of an object, which stays on its tier. */
void kvp_obj_leave_memory(kvp_space_t *sp, uint32_t oid);
/* kvp_obj_drop removes an object, for the given cause. owner: incarnation of a writer that may still write; 0 = none.
 */
void kvp_obj_drop(kvp_space_t *sp, uint32_t oid, kvp_cause_t cause, uint64_t owner, kvp_deferred_t *deferred);
/* removes an object that was only on a tier, and which the tier has dropped already */
void kvp_obj_drop_off_tier(kvp_space_t *sp, uint32_t oid);
void kvp_obj_supersede(kvp_space_t *sp, uint32_t oid,
                       kvp_deferred_t *deferred); /* removes an object that a recorded commit replaces */
/* kvp_obj_lose removes an object whose memory is lost. */
void kvp_obj_lose(kvp_space_t *sp, uint32_t oid, kvp_cause_t cause);

#endif
