/* SPDX-License-Identifier: Apache-2.0
 * Eviction under way.
 */
#ifndef KVP_MASTER_CORE_EVICT_EVICTION_H
#define KVP_MASTER_CORE_EVICT_EVICTION_H

#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/catalog.h"
#include "master/core/protect/protection.h"
#include "master/core/put/puts.h"
#include "master/core/put/queue.h"
#include "master/core/session/peers.h"
#include "master/core/space/space.h"

/* Eviction under way. */
typedef struct kvp_evict {
    kvp_ctx_t *ctx; /* borrowed, */
    kvp_catalog_t *cat;
    kvp_sessions_t *peers;
    kvp_protect_t *prot;
    kvp_space_t *space;
    kvp_puts_t *puts;

    kvp_takes_t takes; /* of the key for which space is searched, as the next */
    uint32_t met;
    kvp_list_t evacuations; /* keys whose window is large */
    uint64_t puts_seen; /* by kvp_evict_reserve */
} kvp_evict_t;

/* units.c: an object, and with it its group. */
void kvp_evict_one(kvp_evict_t *ev, uint32_t oid); /* without the other members of its group */
void kvp_evict_unit(kvp_evict_t *ev, uint32_t oid); /* with all of its group */
void kvp_groups_tick(kvp_evict_t *ev); /* members whose owners have ended, and members of doomed groups */

/* ahead.c: write-back to tiers. kvp_evict_costs_nothing: the object is on its tier, or is not
 * wanted there. kvp_evict_can_be_written: its place allows a write to a tier. kvp_evict_is_written:
 * it is written, or no tier will write it; else its write begins now. */
void kvp_evict_write_ahead(kvp_evict_t *ev);
void kvp_evict_ahead_tick(kvp_evict_t *ev);
bool kvp_evict_costs_nothing(const kvp_evict_t *ev, const kvp_obj_t *o);
bool kvp_evict_can_be_written(const kvp_evict_t *ev, const kvp_obj_t *o);
bool kvp_evict_is_written(kvp_evict_t *ev, uint32_t oid);

/* room.c: room for loads from tiers, and write-back. */
void kvp_evict_for_tiers(kvp_evict_t *ev);

/* reserve.c: what is freed before it is needed. */
void kvp_evict_reserve(kvp_evict_t *ev);

/* retry.c: puts that wait are tried again. kvp_evict_leave_segment gives up the windows in it, as
 * far as the step reaches; false while there are more. */
void kvp_evict_retry_waiting(kvp_evict_t *ev);
bool kvp_evict_leave_segment(kvp_evict_t *ev, kvp_segment_t *g);

#endif
