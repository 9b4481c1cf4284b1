/* SPDX-License-Identifier: Apache-2.0
 * The internal types of the node core, shared by its files: node.c (terms, fences, lifetime), retire.c (extents on
 * their way to free), writers.c (attachments, and processes that may still store), extents.c (the report to a
 * master), kept.c (state for the next process), words.c (the words of the slots). */
#ifndef KVP_NODE_CORE_PRIV_H
#define KVP_NODE_CORE_PRIV_H

#include "node/core/node.h"

#define KVP_NODE_OWNER_BUCKETS 256u

/* An incarnation that may store without the node's control. The struct lives while at least one process may store
 * under this incarnation. */
typedef struct {
    uint64_t incarnation;
    kvp_list_t bucket;
    kvp_list_t writers; /* the records of processes that may store under the incarnation; never empty */
    kvp_list_t waiting; /* retired extents that wait for the proof that the incarnation stores nothing more */
    bool is_old; /* the incarnation is of a term before the obeyed term */
} kvp_node_owner_t;

/* An incarnation with at least one attachment, on this host or another host. */
typedef struct kvp_node_presence {
    uint64_t incarnation;
    kvp_list_t bucket;
    uint32_t attachments;
} kvp_node_presence_t;

/* A process's record of an incarnation: lives while attached, for a writer until it is proved to store no more. */
typedef struct kvp_node_record {
    uint64_t incarnation;
    kvp_node_proc_t *proc;
    /* the incarnation's owner struct; NULL = the process has no memory that it can write without the node's control */
    kvp_node_owner_t *owner;
    uint32_t attachments;
    kvp_list_t of_proc;
    kvp_list_t of_owner;
} kvp_node_record_t;

/* A retired extent that is not known to be free yet. link is in one of the core's lists: quiescing, quarantined,
 * freed, or unused. */
typedef struct {
    kvp_wire_slot_t slot;
    uint64_t round; /* the round of quiesce that covers the extent */
    bool is_quiesced;
    bool is_answered; /* the answer to the extent's RETIRE was made; false: that RETIRE is still open */
    kvp_list_t link;
    kvp_list_t of_slot; /* link in the hash table of extents */
    kvp_list_t of_owner;
} kvp_node_extent_t;

/* An extent that the report will contain. The array `told` has the extents of one chunk, by rising offset. */
typedef struct {
    uint64_t offset, len;
    uint64_t word;
    uint32_t slot;
} kvp_node_told_t;

typedef struct {
    bool is_on;
    bool has_page; /* a page of the report was sent and is not answered */
    uint64_t since; /* extents of this or a higher generation are reported with descriptor and key */
    uint32_t chunk; /* the number of the chunk whose extents are in `told` */
    kvp_node_told_t *told;
    uint32_t told_n, told_cap;
    uint32_t at; /* index in `told` of the first extent of the sent page (page_n extents), else of the next page */
    uint32_t page_n;
} kvp_node_report_t;

typedef enum {
    KVP_NODE_SEGMENT_NONE,
    KVP_NODE_SEGMENT_UNMOUNTED, /* the memory has no id from the connected master */
    KVP_NODE_SEGMENT_MOUNTED
} kvp_node_segment_t;

struct kvp_node_core {
    kvp_node_core_conf_t conf;
    uint32_t term; /* the obeyed term; 0 = none seen */
    /* the new term for which the memory is being swept, becomes `term` at the end; 0 = no such sweep */
    uint32_t rising;
    /* The writers of older terms have ended, and a sweep of their last stores is due: over the slots that the term's
     * own sweep did not cover. */
    bool is_late_due;
    uint32_t sweep_chunk, sweep_slot; /* the next slot that the sweep looks at */
    uint32_t mounted_term;
    uint32_t mounted_before; /* the term of the mount before the last mount */
    kvp_node_segment_t segment;
    uint32_t segment_id;
    uint32_t chunk_n;
    uint32_t slots;
    uint32_t last_slots;
    uint32_t *swept; /* for each chunk: the last sweep covered the slots below this number */

    bool is_changed; /* the state to save has changed since it was saved */
    uint32_t restored_seen; /* the highest term that the previous process of this node had seen */

    kvp_idset_t fenced; /* the fenced incarnations: some ranges, and all below a floor that rises with the term */
    bool is_fence_due; /* the floor of `fenced` rose with a new term, and take_fence has not reported it yet */

    kvp_list_t attachments;
    kvp_list_t closing;
    kvp_list_t idle;
    kvp_list_t owners[KVP_NODE_OWNER_BUCKETS];
    kvp_list_t present[KVP_NODE_OWNER_BUCKETS];
    kvp_node_owner_t any; /* the owner KVP_OWNER_ANY: its extents wait until all writers of older terms have ended */
    uint32_t old_owners;
    kvp_mix_t mix; /* the keyed hash function of the tables `owners` and `present` */

    kvp_list_t quiescing; /* extents that wait for their round of quiesce, by rising round */
    kvp_list_t quarantined;
    kvp_list_t freed;
    kvp_list_t unused;
    void *blocks; /* the allocated memory for the structs of extents, as a chain of blocks */
    uint64_t extents_cap;
    uint64_t extents_n; /* the number of extents in the lists quiescing, quarantined and freed */
    kvp_list_t *table; /* hash table of extents by chunk and slot; its size is a power of two */
    uint64_t table_n;
    kvp_node_extent_t **batch; /* the extents of the open RETIRE, by index; NULL = free already */
    uint32_t batch_n;
    uint32_t batch_cap;
    uint64_t *cuts; /* writers of retired extents, whose connections end before the next round of quiesce begins */
    uint32_t cuts_n;
    uint32_t cuts_cap;
    uint64_t rounds_begun;
    uint32_t rounds_running;
    bool is_round_wanted;

    kvp_node_report_t report;
    kvp_node_core_stats_t stats;
};

/* kvp_node_old_writers_gone (node.c) is called when no process of an older term can store any more. */
void kvp_node_old_writers_gone(kvp_node_core_t *core);

/* Functions of words.c. kvp_node_kill stores DEAD in the word of a slot, whatever its value; false if the word has a
 * newer generation than the given one. kvp_node_slots_of returns the number of slots of a chunk. */
bool kvp_node_kill(const kvp_node_core_t *core, uint32_t chunk, uint32_t slot, uint64_t generation);
uint32_t kvp_node_slots_of(const kvp_node_core_t *core, uint32_t chunk);

/* Functions of extents.c: the report of the memory's contents. */
void kvp_node_report_end(kvp_node_core_t *core);
void kvp_node_report_fini(kvp_node_core_t *core);

/* Functions of writers.c. kvp_node_owners_are_old marks all owners (incarnations) as being of an older term. */
void kvp_node_owners_are_old(kvp_node_core_t *core);
kvp_node_owner_t *kvp_node_owner_find(kvp_node_core_t *core, uint64_t incarnation);

/* kvp_node_extents_proved is called when no process stores as the owner any more: the extents that waited for this
 * proof no longer wait for it. */
void kvp_node_extents_proved(kvp_node_core_t *core, kvp_node_owner_t *owner);
/* kvp_node_extents_drop forgets every retired extent; kvp_node_extents_fini also frees the memory of the extents. */
void kvp_node_extents_drop(kvp_node_core_t *core);
void kvp_node_extents_fini(kvp_node_core_t *core);

/* kvp_node_writers_forget_memory ends all records of writers, because the memory is closed and no proof is needed. */
void kvp_node_writers_forget_memory(kvp_node_core_t *core);
/* kvp_node_writers_close puts attachments on the list of those to close: the attachments of fenced incarnations, or
 * all. */
void kvp_node_writers_close(kvp_node_core_t *core, bool is_all);

#endif
