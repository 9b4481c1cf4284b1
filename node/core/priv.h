/* SPDX-License-Identifier: Apache-2.0
 * The node core's inside, shared by its files: node.c (terms, fences, lifetime), retire.c (extents
 * on their way to free), writers.c (attachments and processes that may still store), extents.c (the
 * report to a master), kept.c (state for the next process). */
#ifndef KVP_NODE_CORE_PRIV_H
#define KVP_NODE_CORE_PRIV_H

#include "node/core/node.h"

#define KVP_NODE_OWNER_BUCKETS 256u

/* An incarnation that may store without our control: the struct lives while at least one process
 * may. */
typedef struct {
    uint64_t incarnation;
    kvp_list_t bucket;
    kvp_list_t writers; /* records; never empty */
    kvp_list_t waiting; /* extents that wait for its proof */
    bool is_old; /* of a term before the obeyed one */
} kvp_node_owner_t;

/* An incarnation with an attachment, on this host or another. */
typedef struct kvp_node_presence {
    uint64_t incarnation;
    kvp_list_t bucket;
    uint32_t attachments;
} kvp_node_presence_t;

/* One incarnation of one process. Lives while attached, and as a writer until the proof. */
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
    uint64_t round; /* the quiesce that covers the extent */
    bool is_quiesced;
    bool is_answered; /* else it is in the open batch */
    kvp_list_t link;
    kvp_list_t of_slot; /* in the table */
    kvp_list_t of_owner;
} kvp_node_extent_t;

/* An extent of a chunk, in the order of the report. */
typedef struct {
    uint64_t offset, len;
    uint64_t word;
    uint32_t slot;
} kvp_node_told_t;

typedef struct {
    bool is_on;
    bool has_page; /* not answered */
    uint64_t since; /* extents of this generation or a higher one are reported in full */
    uint32_t chunk; /* the chunk in `told` */
    kvp_node_told_t *told;
    uint32_t told_n, told_cap;
    uint32_t at; /* first record of the page; page_n follow */
    uint32_t page_n;
} kvp_node_report_t;

typedef enum {
    KVP_NODE_SEGMENT_NONE,
    KVP_NODE_SEGMENT_UNMOUNTED, /* the memory has no id of the connected master */
    KVP_NODE_SEGMENT_MOUNTED
} kvp_node_segment_t;

struct kvp_node_core {
    kvp_node_core_conf_t conf;
    uint32_t term; /* obeyed; 0 = none seen */
    uint32_t rising; /* a higher one, obeyed at the end of its sweep; 0 = none */
    bool
        /* the old writers have ended: takes effect at the end of a sweep over the slots that the
         * term's own sweep did not cover */
        is_late_due;
    uint32_t sweep_chunk, sweep_slot; /* next slot of the sweep */
    uint32_t mounted_term;
    uint32_t mounted_before; /* the mounted term before */
    kvp_node_segment_t segment;
    uint32_t segment_id;
    uint32_t chunk_n;
    uint32_t slots;
    uint32_t last_slots;
    uint32_t *swept; /* by chunk: number of slots swept at the rise of the term */

    bool is_changed; /* the saved state is outdated */
    uint32_t restored_seen; /* from a book: the highest term seen */

    kvp_idset_t fenced; /* incarnations; its floor is live_min, and */
    bool is_fence_due; /* rose with the term */

    kvp_list_t attachments;
    kvp_list_t closing;
    kvp_list_t idle;
    kvp_list_t owners[KVP_NODE_OWNER_BUCKETS];
    kvp_list_t present[KVP_NODE_OWNER_BUCKETS];
    kvp_node_owner_t any; /* KVP_OWNER_ANY: proved when no old owner is left; has no writers of its own */
    uint32_t old_owners;
    kvp_mix_t mix; /* for the two tables above, from the secret */

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
    uint64_t *cuts; /* writers of what was retired, to be cut before the next round begins */
    uint32_t cuts_n;
    uint32_t cuts_cap;
    uint64_t rounds_begun;
    uint32_t rounds_running;
    bool is_round_wanted;

    kvp_node_report_t report;
    kvp_node_core_stats_t stats;
};

/* node.c. kvp_node_old_writers_gone: no process of an older term can store any more. kvp_node_kill
 * stores DEAD in a word, whatever its value; false if the word has a newer generation than the
 * given one. */
void kvp_node_old_writers_gone(kvp_node_core_t *core);
bool kvp_node_kill(const kvp_node_core_t *core, uint32_t chunk, uint32_t slot, uint64_t generation);
uint32_t kvp_node_slots_of(const kvp_node_core_t *core, uint32_t chunk);

/* extents.c: the report of the memory's contents. */
void kvp_node_report_end(kvp_node_core_t *core);
void kvp_node_report_fini(kvp_node_core_t *core);

/* writers.c. kvp_node_owners_are_old: what they were granted is void. */
void kvp_node_owners_are_old(kvp_node_core_t *core);
kvp_node_owner_t *kvp_node_owner_find(kvp_node_core_t *core, uint64_t incarnation);

/* kvp_node_extents_proved: no process stores for the owner any more, so its waiting extents
 * continue. */
void kvp_node_extents_proved(kvp_node_core_t *core, kvp_node_owner_t *owner);
/* kvp_node_extents_drop forgets every extent; kvp_node_extents_fini also gives the memory back. */
void kvp_node_extents_drop(kvp_node_core_t *core);
void kvp_node_extents_fini(kvp_node_core_t *core);

/* kvp_node_writers_forget_memory: the memory of uncontrolled stores is closed, so no proof is
 * needed. */
void kvp_node_writers_forget_memory(kvp_node_core_t *core);
/* kvp_node_writers_close puts the attachments that are to go on the list; those of fenced incarnations, or all. */
void kvp_node_writers_close(kvp_node_core_t *core, bool is_all);

#endif
