/* SPDX-License-Identifier: Apache-2.0
 * The state of eviction. */
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

/* The state of eviction. */
typedef struct kvp_evict {
    kvp_ctx_t *ctx; /* borrowed, as the five pointers below */
    kvp_catalog_t *cat;
    kvp_sessions_t *peers;
    kvp_protect_t *prot;
    kvp_space_t *space;
    kvp_puts_t *puts;

    /* of the running search for space: takes: the kinds of objects that it may evict; met: bits of the kinds that it
     * found */
    kvp_takes_t takes;
    uint32_t met;
    kvp_list_t evacuations; /* kvp_put_key_t: keys for which a large window or a whole chunk is evacuated */
    struct kvp_task *tasks; /* ring of the last KVP_TASKS_MAX tasks (tasks.c); NULL = there was no task yet */
    uint64_t tasks_n; /* number of tasks that were made */
    kvp_list_t open_tasks; /* the unfinished tasks */
    uint32_t open_tasks_n;
    /* hot_left: number of bytes until the next read is sampled (hot.c); hot: the table of samples; NULL = no sample yet
     */
    int64_t hot_left;
    struct kvp_hot *hot;
    bool is_for_drain; /* flag: the running eviction makes room for a drain */
    uint64_t puts_seen; /* value of the statistic put_begins at the last kvp_evict_reserve */
} kvp_evict_t;

/* Functions of units.c: they remove objects from memory to make room (eviction). */
void kvp_evict_one(kvp_evict_t *ev, uint32_t oid); /* evicts the object, but not the other members of its group */
void kvp_evict_unit(kvp_evict_t *ev, uint32_t oid); /* evicts the object and all members of its group */
void kvp_groups_tick(kvp_evict_t *ev); /* drops group members whose owners have ended, and members of doomed groups */

/* Functions of ahead.c: write-back to tiers. kvp_evict_costs_nothing returns true if the object can be evicted without
 * a write: the tier has it, or does not want it. kvp_evict_can_be_written: true if it can be written to a tier.
 * kvp_evict_is_written begins the object's write to its tier if one is needed, and returns false while
 * the write is in progress; true also if too many bytes are being written to begin another write.
 * kvp_evict_write_moved begins to write an object that an SSD had at the node from which it was moved. */
void kvp_evict_write_moved(kvp_evict_t *ev, uint32_t oid);
void kvp_evict_write_ahead(kvp_evict_t *ev);
void kvp_evict_ahead_tick(kvp_evict_t *ev);
bool kvp_evict_costs_nothing(const kvp_evict_t *ev, const kvp_obj_t *o);
bool kvp_evict_can_be_written(const kvp_evict_t *ev, const kvp_obj_t *o);
/* kvp_evict_cause returns why the eviction of this object removes it from the pool, and not only from memory. */
kvp_cause_t kvp_evict_cause(const kvp_evict_t *ev, const kvp_obj_t *o);
bool kvp_evict_is_written(kvp_evict_t *ev, uint32_t oid);

/* Function of room.c: evicts objects to make room for loads from SSD tiers, and begins writes to tiers. */
void kvp_evict_for_tiers(kvp_evict_t *ev);

/* Function of reserve.c: evicts objects to keep a little space free, before a put needs it. */
void kvp_evict_reserve(kvp_evict_t *ev);

/* Functions of retry.c: kvp_evict_retry_waiting tries the waiting puts again. kvp_evict_leave_segment gives up the
 * windows claimed and the chunks being taken in the segment; false if the step's budget was used up before that. */
void kvp_evict_retry_waiting(kvp_evict_t *ev);
bool kvp_evict_leave_segment(kvp_evict_t *ev, kvp_segment_t *g);

#endif
