/* SPDX-License-Identifier: Apache-2.0
 * Segments, and the chunks into which a segment is divided. Replicas lie in chunks. */
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

/* The position at which an interrupted search through the extents of several chunks continues. */
typedef struct {
    uint32_t chunk; /* chunk being searched: index in the segment (for loads), or number in the catalog (for puts) */
    uint32_t slot; /* slot of the next extent to examine; KVP_SLAB_NONE = the first extent of the chunk */
    uint32_t run; /* first slot of the current run of usable extents; KVP_SLAB_NONE = no run */
    uint64_t run_off; /* offset of the run's first slot */
    uint64_t cost; /* eviction cost of the run */
} kvp_scan_t;

/* Memory to free in several steps: the allocator of a removed chunk, or the record pool of a removed owner. */
typedef struct {
    kvp_list_t link; /* space->deferred_frees */
    kvp_slab_t *slab; /* the allocator to free; NULL = `pool` is to be freed */
    kvp_recpool_t pool;
} kvp_deferred_free_t;

struct kvp_chunk {
    kvp_segment_t *segment;
    kvp_slab_t *slab; /* allocator of the chunk's extents; NULL = no object was ever placed in this chunk */
    kvp_slab_t *long_keys; /* allocator of the area for long keys; made with the first long key */
    kvp_chunk_geo_t geo;
    uint64_t bytes;
    kvp_tenant_t *tenant; /* the tenant that owns all objects of the chunk; NULL = the chunk is empty */
    /* the claim for whose window (a large range of extents) the chunk is evacuated; other puts skip it. NULL = none */
    kvp_claim_t *evacuating;
    kvp_tenant_t *taker; /* tenant for which the chunk is examined, evacuated or kept empty: rebalance.c; NULL = none */
    uint64_t untaken_ns; /* the rebalancer does not consider this chunk before this time */
    uint32_t unclaimed; /* number of extents to which a writer of an earlier term might still write */
    /* while `unclaimed` > 0: a bit for each slot that the node reported as SEALED (fully written); NULL = no slot */
    uint8_t *sealed;
    uint32_t index; /* index of the chunk in its segment */
    uint32_t number; /* number of the chunk in the catalog; below KVP_OBJ_CHUNK_NONE */
    /* in a tier's chunk: number of objects that exist only on the tier; `bytes` is their total length */
    uint32_t objects;
    kvp_list_t of_tier; /* segment->ssd.tenants */
    uint64_t memory_bytes; /* memory of the chunk's allocators, as counted in space->slab_bytes */
};

typedef enum {
    KVP_SEGMENT_STAYS,
    KVP_SEGMENT_ENDED, /* a segment whose drop was read in the log; it is dropped when the whole log is read */
    KVP_SEGMENT_DROPPED, /* the segment was dropped, and its objects are being removed in steps */
} kvp_segment_life_t;

/* The fields of a segment that only an SSD tier uses. */
typedef struct {
    bool has_lost_drops; /* flag: drops were discarded or failed, or a report was cut: the tier must report again */
    bool is_reporting; /* flag: the node is reporting the tier's contents */
    bool is_unknown; /* flag: no report was ever completed, so the tier may have objects that no log knows */
    bool has_away; /* flag: at least one bit of `away` is set */
    uint8_t away[KVP_TIER_AWAY_BYTES]; /* a bit for each hash slot of the tier whose SSD does not answer reads */
    uint32_t stalled_devices; /* number of hanging SSDs, as reported by the node */
    kvp_list_t drops; /* kvp_tier_drop_t: records that the tier must drop, and no order was sent yet */
    uint32_t drops_n; /* number of `drops`, plus those in unanswered orders */
    kvp_list_t tenants; /* the tier's chunks, one for each tenant */
    uint32_t purge_oid; /* if the tier was dropped: oid at which the walk that removes its objects continues */
} kvp_ssd_t;

/* Why an object of a draining segment has not been moved yet. */
typedef enum {
    KVP_STAYS_HELD, /* a client holds it */
    KVP_STAYS_NO_ROOM,
    KVP_STAYS_NO_NODE, /* no other node can take copies */
    KVP_STAYS_UNFINISHED, /* its put has not ended */
    KVP_STAYS_UNREAD, /* only an SSD has the object, and the SSD cannot be read */
    KVP_STAYS_N,
} kvp_stays_t;

/* The drain of a segment moves its objects to other segments. Walks over the segment are repeated until no object is
 * left. KVP_JREC_DRAIN_SSD: the drain also moves objects that only the node's SSD has. */
typedef struct {
    uint32_t flags; /* KVP_JREC_DRAIN* */
    uint64_t bytes_per_s; /* limit of the bytes that are moved in a second */
    uint64_t deadline_ns; /* time from which on tickets do not delay the drain; UINT64_MAX = never */
    uint64_t after; /* log position after the drain's record */
    uint64_t began_ns;
    uint32_t chunk, slot; /* position of the walk */
    uint32_t oid; /* oid at which the walk over the objects on the SSD continues */
    uint64_t next_ns; /* the walk goes on at this time */
    uint64_t pause_ns; /* pause after the last walk */
    uint64_t had_left; /* number of objects that had left memory or SSD at the end of the last walk */
    /* time at which another node with an SSD last made room; 0 = the drain has not waited for that yet */
    uint64_t room_ns;
    int64_t bytes_left, objects_left; /* what may be moved now */
    uint64_t filled_ns; /* time at which bytes_left and objects_left were last refilled */
    /* number of objects that stayed, by reason: in the running walk; in the last walk */
    uint64_t stays[KVP_STAYS_N], stayed[KVP_STAYS_N];
    uint32_t held_oid; /* if stayed[KVP_STAYS_HELD] > 0: oid of one of these objects, which may have left since */
    uint64_t no_room_bytes, had_no_room_bytes;
    uint64_t moved, moved_bytes, evicted, evicted_bytes, failed;
    uint8_t last_error; /* KVP_COPY_*, or KVP_DRAIN_UNREAD */
} kvp_drain_t;

struct kvp_segment {
    kvp_list_t link; /* catalog->segments, by rising id */
    kvp_list_t of_node;
    kvp_list_t sending; /* link in space->sending, while there may be orders to send to the node */
    kvp_list_t retires; /* retire records of this segment that are not yet free */
    kvp_list_t unsent; /* retire records to send with the next Retire */
    kvp_list_t sent; /* retire records that were sent to the connected node and are not yet free */
    kvp_list_t claims; /* claims whose windows lie in this segment */
    kvp_buf_t checks; /* kvp_wire_check_t: copies that the node must check */
    uint32_t checks_asked_n; /* number of checks at the front of `checks` that are in the unanswered order */
    uint64_t check_request; /* request id of the unanswered order of checks; 0 = no order is unanswered */
    kvp_objlist_t parked; /* eviction candidates, skipped while the node does not answer: protect/candidates.c */
    kvp_session_t *node; /* session of the segment's node; NULL = the node is lost */
    /* the node's running report of the memory's contents, owned; the segment counts as lost meanwhile; NULL = none */
    kvp_report_t *report;
    kvp_chunk_t *chunks; /* array of chunks; kvp_segment_chunk initialises an entry at its first use */
    /* a tree over the chunks: leaves = longest free extent of each chunk, inner nodes = the greater child */
    uint32_t *room;
    uint32_t room_leaves;
    uint32_t chunk_n;
    uint32_t id;
    uint32_t host; /* number of the host, equal for segments of one host */
    uint32_t state; /* kvp_segment_state_t */
    uint32_t up_at; /* in state UP: index of this segment in catalog->up */
    kvp_heapnode_t up_chunk; /* in state UP: entry of this segment in catalog->up_chunks */
    uint32_t purge_chunk, purge_slot; /* position at which the removal of a dropped segment's objects continues */
    kvp_segment_life_t life;
    bool is_kept; /* flag: a keeper process holds the memory, so a new node process can mount it soon after a crash */
    bool is_restored; /* flag: restored from the log, and not yet compared with the node's report */
    bool is_slow; /* flag: the node has not answered a Retire order for too long */
    /* flag: the segment is an SSD tier; its chunks have no memory, each stands for one tenant's objects on the tier */
    bool is_tier;
    kvp_ssd_t ssd; /* used only by a tier */
    kvp_segment_t *tier; /* for memory: tier of the same node, borrowed; it may be in life DROPPED. NULL = none known */
    /* for memory: writes of objects to the tier, and loads that have an extent; no order was sent yet */
    kvp_list_t demotes, placed;
    kvp_list_t stages; /* for memory: loads from the tier that still wait for an extent */
    uint8_t can_copy; /* 1 = the node carries out COPY */
    kvp_list_t copies; /* kvp_copy_t: copies to this segment for which no order was sent yet */
    uint64_t copying_bytes; /* bytes of the copies to this segment that the node has not confirmed yet */
    /* of hot copies: their bytes in this segment, and the samples of reads from it in this window: evict/hot.c */
    uint64_t hot_bytes, hot_served;
    kvp_drain_t *drain; /* owned; NULL = the segment is not being drained */
    uint64_t room_ns; /* time at which a load last got memory, or loads began to wait for memory; 0 = not yet known */
    kvp_scan_t room_scan; /* position at which the search for victims that make room for loads continues */
    uint64_t room_next_ns; /* after a search for victims that found none: no search for loads before this time */
    uint64_t room_bytes; /* bytes that were evicted for loads and not yet used by a load */
    /* for memory: bytes of all unfinished loads from the tier, and of those that have an extent */
    uint64_t loading_bytes, placed_bytes;
    kvp_list_t orders; /* unanswered orders to the node: tier.c */
    uint64_t moving_bytes; /* for memory: bytes of all objects that are being written to the tier or loaded from it */
    uint64_t lost_ns; /* time at which the node was lost */
    uint64_t lost_stall_ns; /* value of the total stall time of the master's own loop when the node was lost */
    uint64_t size_bytes, chunk_bytes, objects, epoch;
    /* bytes of extents in use, retiring, and quarantined; part of the pool's totals while the segment is not lost */
    uint64_t used_bytes, retiring_bytes, quarantine_bytes;
    uint64_t owned_bytes; /* bytes of the chunks that belong to tenants */
    uint64_t evictions; /* number of objects evicted from this memory, since this master began to lead */
    uint64_t held; /* number of tickets on objects in this segment */
    uint8_t uuid[16];
    uint32_t mounted_term; /* term in which the segment was last mounted, at most this master's term */
    char name[KVP_NAME_MAX + 1];
    char host_id[KVP_NAME_MAX + 1];
    char *addr, *unix_path, *transports, *protection; /* owned */
    uint64_t unmount_conn; /* connection that requested an unmount; 0 = none */
    kvp_frame_hdr_t unmount_ask;
    uint64_t unmount_due_ns;
};

/* kvp_segment_shown_state returns the state that answers show. A segment whose node reports for a comparison with the
 * log takes no puts, so it is shown like a draining one. */
static inline uint32_t
kvp_segment_shown_state(const kvp_segment_t *g)
{
    const bool is_compared = g->is_restored && g->drain == NULL && g->unmount_conn == 0;

    return g->state == KVP_SEG_DRAINING && is_compared ? KVP_SEG_CONNECTING : g->state;
}

#endif
