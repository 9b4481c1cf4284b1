/* SPDX-License-Identifier: Apache-2.0
 * Tasks: one object is copied to other nodes, or moved to one, because a client asked for it. The master remembers the
 * last KVP_TASKS_MAX tasks in memory; the next master knows none of them. ADR 0050. */
#ifndef KVP_MASTER_CORE_EVICT_TASKS_H
#define KVP_MASTER_CORE_EVICT_TASKS_H

#include "master/core/evict/eviction.h"
#include "proto/wire.h"

#define KVP_TASKS_MAX 10000u

typedef struct kvp_task {
    kvp_list_t link; /* of the unfinished tasks */
    uint64_t id; /* 0 = unused */
    uint32_t tenant;
    kvp_digest_t digest;
    uint64_t version;
    uint64_t after; /* log position that must be synced before the task is done; 0 = copies are missing */
    uint64_t created_ns, changed_ns, next_ns;
    uint32_t from; /* id of the segment whose copy is dropped at the end; 0 = none */
    uint32_t to[KVP_REPLICAS_MAX], to_n; /* ids of the segments that get a copy */
    uint32_t at; /* index in `to` of the next copy; the copies before it exist */
    uint32_t failed; /* number of failed tries of the copy to to[at] */
    bool is_ordered; /* flag: a copy to to[at] was begun */
    kvp_task_state_t state;
    kvp_err_t err; /* FAILED: the reason */
} kvp_task_t;

/* kvp_task_can_go_to returns true if the segment takes copies now; g NULL = no such segment. kvp_task_can_take returns
 * true if it takes a copy of so many bytes of an object with these places. kvp_task_begin makes a task for the
 * committed object, and returns its id. LIMIT: KVP_TASKS_MAX tasks are unfinished. kvp_task_find returns the tenant's
 * task with this id; NULL = unknown. kvp_tasks_tick continues unfinished tasks. kvp_tasks_fini frees all. */
bool kvp_task_can_go_to(const kvp_evict_t *ev, const kvp_segment_t *g);
bool kvp_task_can_take(const kvp_evict_t *ev, const kvp_segment_t *g, uint64_t bytes, const kvp_place_t *places,
                       uint32_t n);
kvp_err_t kvp_task_begin(kvp_evict_t *ev, uint32_t oid, uint32_t from, const uint32_t *to, uint32_t n,
                         uint64_t *id_out);
const kvp_task_t *kvp_task_find(const kvp_evict_t *ev, uint64_t id, uint32_t tenant);
void kvp_tasks_tick(kvp_evict_t *ev);
void kvp_tasks_fini(kvp_evict_t *ev);

#endif
