/* SPDX-License-Identifier: Apache-2.0
 * An object leaves the index, and its extents retire; the record goes with its last ticket.
 */
#ifndef KVP_MASTER_CORE_SPACE_DROP_H
#define KVP_MASTER_CORE_SPACE_DROP_H

#include "master/core/space/space.h"
#include "master/core/catalog/index.h"
#include "master/core/protect/deferred.h"

/* kvp_obj_del_place removes a replica; the caller handles the extent. kvp_obj_drop_copy: the extent
 * retires; there are other replicas. */
void kvp_obj_del_place(kvp_space_t *sp, uint32_t oid, const kvp_place_t *at);
void kvp_obj_drop_copy(kvp_space_t *sp, uint32_t oid, const kvp_place_t *at, kvp_deferred_t *deferred);
/* kvp_obj_leave_memory: it is on a tier, and its extents retire. */
void kvp_obj_leave_memory(kvp_space_t *sp, uint32_t oid);
/* kvp_obj_drop: why is the log's reason. owner: the writer that may still store to its extents, 0 =
 * none. */
void kvp_obj_drop(kvp_space_t *sp, uint32_t oid, kvp_gone_t why, uint64_t owner, kvp_deferred_t *deferred);
void kvp_obj_drop_off_tier(kvp_space_t *sp, uint32_t oid); /* evicts it from a tier that knows of the eviction */
void kvp_obj_supersede(kvp_space_t *sp, uint32_t oid,
                       kvp_deferred_t *deferred); /* the same, by a commit that is written */
/* kvp_obj_lose: the same, because its memory is lost. */
void kvp_obj_lose(kvp_space_t *sp, uint32_t oid);

#endif
