/* SPDX-License-Identifier: Apache-2.0
 * The node core's inside, shared by its three files: node_core.c (terms, fences, lifetime), node_retire.c (extents on
 * their way to free), node_writers.c (attachments and who may still store).
 */
#ifndef KVP_CLIENT_NODE_CORE_PRIV_H
#define KVP_CLIENT_NODE_CORE_PRIV_H

#include "client/node/core/node_core.h"

#define KVP_NODE_OWNER_BUCKETS 256u

/* An incarnation that may store past us: it exists while at least one process may. */
typedef struct {
    uint64_t incarnation;
    kvp_list_t bucket;
    kvp_list_t writers; /* records; never empty */
    kvp_list_t waiting; /* extents that wait for its proof */
} kvp_node_owner_t;

/* One incarnation of one process. Lives while it is attached, and as a writer until the proof. */
typedef struct kvp_node_record {
    uint64_t incarnation;
    kvp_node_proc_t *proc;
    kvp_node_owner_t *owner; /* NULL = got nothing to write past us */
    uint32_t attachments;
    kvp_list_t of_proc;
    kvp_list_t of_owner;
} kvp_node_record_t;

/* A retired extent that is not known to be free yet. link is in the core's list of its place: quiescing, quarantined,
 * freed, or unused. */
typedef struct {
    kvp_wire_slot_t slot;
    uint64_t round; /* the quiesce that covers it */
    bool is_quiesced;
    bool is_answered; /* else it is in the open batch */
    kvp_list_t link;
    kvp_list_t of_slot; /* in the table */
    kvp_list_t of_owner;
} kvp_node_extent_t;

struct kvp_node_core {
    kvp_node_core_conf_t conf;
    uint32_t term; /* 0 = none seen */
    bool has_segment;
    bool has_id;
    uint32_t segment_id;
    uint32_t chunk_n;
    uint32_t slots;
    uint32_t last_slots;

    uint64_t live_min;
    uint64_t *fenced; /* ascending, none below live_min */
    size_t fenced_n;
    size_t fenced_cap;

    kvp_list_t attachments;
    kvp_list_t closing;
    kvp_list_t idle;
    kvp_list_t owners[KVP_NODE_OWNER_BUCKETS];

    kvp_list_t quiescing; /* by rising round */
    kvp_list_t quarantined;
    kvp_list_t freed;
    kvp_list_t unused;
    void *blocks; /* memory of the extents, a chain */
    uint64_t extents_cap;
    uint64_t extents_n; /* in the three lists, and in the table */
    kvp_list_t *table; /* by chunk and slot; a power of two */
    uint64_t table_n;
    kvp_node_extent_t **batch; /* by index in the open RETIRE; NULL = free */
    uint32_t batch_n;
    uint32_t batch_cap;
    uint64_t rounds_begun;
    uint32_t rounds_running;
    bool is_round_wanted;

    kvp_node_core_stats_t stats;
};

kvp_node_owner_t *kvp_node_owner_find(kvp_node_core_t *core, uint64_t incarnation);

/* kvp_node_extents_proved: nothing stands behind owner any more, and what waited for that goes on. */
void kvp_node_extents_proved(kvp_node_core_t *core, kvp_node_owner_t *owner);
/* kvp_node_extents_drop forgets every extent; kvp_node_extents_fini also gives the memory back. */
void kvp_node_extents_drop(kvp_node_core_t *core);
void kvp_node_extents_fini(kvp_node_core_t *core);

/* kvp_node_writers_forget_memory: the memory that was written past us is gone, so no proof is needed. */
void kvp_node_writers_forget_memory(kvp_node_core_t *core);
/* kvp_node_writers_close puts the attachments that are to go on the list; those of fenced incarnations, or all. */
void kvp_node_writers_close(kvp_node_core_t *core, bool is_all);

#endif
