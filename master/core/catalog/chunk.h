/* SPDX-License-Identifier: Apache-2.0
 * Segments, and the chunks that they are cut into: where replicas lie.
 */
#ifndef KVP_MASTER_CORE_CATALOG_CHUNK_H
#define KVP_MASTER_CORE_CATALOG_CHUNK_H

#include "common/buf.h"
#include "common/list.h"
#include "common/recpool.h"
#include "proto/segfmt.h"
#include "master/core/base/slab.h"
#include "master/core/base/heap.h"
#include "master/core/catalog/index.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef struct kvp_chunk kvp_chunk_t;
typedef struct kvp_claim kvp_claim_t;
typedef struct kvp_report kvp_report_t;
typedef struct kvp_segment kvp_segment_t;
typedef struct kvp_session kvp_session_t;
typedef struct kvp_tenant kvp_tenant_t;

/* Where a search through extents goes on. */
typedef struct {
    uint32_t chunk; /* index of the searched chunk */
    uint32_t slot; /* the next extent; KVP_SLAB_NONE = the first of the chunk */
    uint32_t run; /* first slot of the run of usable extents that ends here; KVP_SLAB_NONE = no run, */
    uint64_t run_off; /* the offset of this slot, */
    uint64_t cost; /* and the cost of the run */
} kvp_scan_t;

/* The allocator of a removed chunk, or the record pool of a removed owner. */
typedef struct {
    kvp_list_t link; /* space->deferred_frees */
    kvp_slab_t *slab; /* NULL = a pool */
    kvp_recpool_t pool;
} kvp_deferred_free_t;

struct kvp_chunk {
    kvp_segment_t *segment;
    kvp_slab_t *slab; /* NULL = nothing was ever placed here */
    kvp_slab_t *long_keys; /* made with the first long key */
    kvp_chunk_geo_t geo;
    uint64_t bytes;
    kvp_tenant_t *tenant; /* tenant of its objects; NULL = empty */
    /* the claim for which a large window of it is evacuated; NULL = none: the chunk is open to
     * others */
    kvp_claim_t *evacuating;
    kvp_tenant_t *taker; /* the tenant for which all of it is evacuated, or kept; NULL = none */
    uint64_t untaken_ns; /* not a candidate for taking before this time */
    uint32_t unclaimed; /* extents that a writer of an earlier term might still store to */
    /* while there are unclaimed extents: a bit for each slot that was SEALED in the report; NULL =
     * none */
    uint8_t *sealed;
    uint32_t index; /* in the segment */
    uint32_t number; /* below KVP_OBJ_CHUNK_NONE */
    uint32_t objects; /* of a tier's chunk: objects that exist there only, with `bytes` in all */
    kvp_list_t of_tier; /* segment->ssd.tenants */
    uint64_t memory_bytes; /* of its allocators, as counted in space->slab_bytes */
};

typedef enum {
    KVP_SEGMENT_STAYS,
    KVP_SEGMENT_ENDED, /* dropped, by the log: it is dropped here when the log is read to its end */
    KVP_SEGMENT_DROPPED, /* being purged; nothing in it exists any more */
} kvp_segment_life_t;

/* The part of a segment that only an SSD tier has. */
typedef struct {
    bool has_lost_drops; /* some drops were forgotten, so its node has to report its contents */
    bool is_reporting; /* its node is reporting */
    bool is_unknown; /* no report has reached its end, and the tier may have objects that no log knows */
    bool has_away; /* some slots are away */
    uint8_t away[KVP_TIER_AWAY_BYTES]; /* the slots whose device answers no reads */
    uint32_t stalled_devices; /* as reported by its node */
    kvp_list_t drops; /* what is to be dropped when an order goes out, */
    uint32_t drops_n; /* their number, including those in orders */
    kvp_list_t tenants; /* its chunks */
    uint32_t purge_oid; /* of a dropped tier: where the walk goes on */
} kvp_ssd_t;

struct kvp_segment {
    kvp_list_t link; /* catalog->segments, by rising id */
    kvp_list_t of_node;
    kvp_list_t sending; /* space->sending while orders might have to go out */
    kvp_list_t retires; /* records not yet free */
    kvp_list_t unsent; /* of these, to go out with the next Retire */
    kvp_list_t sent; /* of these, sent to the present node, and not free */
    kvp_list_t claims; /* windows here */
    kvp_buf_t checks; /* kvp_wire_check_t: places that its node is to look at, */
    uint32_t checks_asked_n; /* length of the asked part at the front, */
    uint64_t check_request; /* and in which order; 0 = none is out */
    kvp_objlist_t parked; /* victims that are passed over: candidates.c */
    kvp_session_t *node; /* NULL = lost */
    kvp_report_t *report; /* owned: the report of its node; until its end the segment counts as lost */
    kvp_chunk_t *chunks; /* kvp_segment_chunk makes one of them */
    uint32_t *room; /* a tree over the chunks: the longest free extent in each, and the longest of each pair above */
    uint32_t room_leaves;
    uint32_t chunk_n;
    uint32_t id;
    uint32_t host; /* a number: the same for segments of one host */
    uint32_t state; /* kvp_segment_state_t */
    uint32_t up_at; /* UP: its place in catalog->up, */
    kvp_heapnode_t up_chunk; /* and in catalog->up_chunks */
    uint32_t purge_chunk, purge_slot; /* next place of the drop */
    kvp_segment_life_t life;
    bool is_kept; /* its node's keeper has it: where the node dies the next process brings it back soon */
    bool is_restored; /* restored from the log, and not yet compared with its node's words */
    bool is_slow; /* its node has not answered a Retire for too long */
    bool is_tier; /* an SSD tier: a chunk of it stands for one tenant's objects there, and has no memory */
    kvp_ssd_t ssd; /* of a tier */
    kvp_segment_t *tier; /* of memory: the tier of its node; NULL = unknown. Borrowed; may be dropped */
    kvp_list_t demotes, placed; /* of memory: what is to be written, and read, when orders go out, */
    kvp_list_t stages; /* loads that wait for room; */
    uint64_t room_ns; /* since when the first of these has waited and nothing got any; 0 = it was not looked at */
    kvp_scan_t room_scan; /* where the search for their victims goes on, */
    uint64_t room_next_ns; /* time of the next search after one in vain */
    uint64_t room_bytes; /* bytes evicted for loads that no load has got yet */
    uint64_t loading_bytes,
        placed_bytes; /* of memory: of all loads from the tier that are not over, and of those with an extent */
    kvp_list_t orders; /* unanswered orders: tier.c */
    uint64_t moving_bytes; /* of memory: of all that is on its way */
    uint64_t lost_ns;
    uint64_t lost_stall_ns; /* the master's own stalls, when the node was lost */
    uint64_t size_bytes, chunk_bytes, objects, epoch;
    uint64_t used_bytes, retiring_bytes, quarantine_bytes; /* in the pool's totals while the segment is not lost */
    uint64_t held; /* tickets on objects here */
    uint8_t uuid[16];
    uint32_t mounted_term; /* term of the last mount, at most this master's term */
    char name[KVP_NAME_MAX + 1];
    char host_id[KVP_NAME_MAX + 1];
    char *addr, *unix_path, *transports; /* owned */
    uint64_t unmount_conn; /* 0 = no unmount was requested */
    kvp_frame_hdr_t unmount_ask;
    uint64_t unmount_due_ns;
};

#endif
