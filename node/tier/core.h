/* SPDX-License-Identifier: Apache-2.0
 * One device of the tier, as a pure state machine over reads and writes: the ring of pages, the
 * index, appends, reads, reclaim, and recovery after a start. No threads, clocks or files. Not
 * thread-safe.
 *
 * Design notes. Pages are reclaimed in the order of writing, so a tombstone outlives every record
 * that it hides: those come before it. A kept record is appended again, and its page is reclaimed
 * once the copy is on the device; reclaiming writes zeros over the page's header. So a digest's
 * newest record is always its last one in the ring, and recovery uses the last one that it reads. */
#ifndef KVP_NODE_TIER_CORE_H
#define KVP_NODE_TIER_CORE_H

#include "node/tier/index.h"
#include "node/tier/room.h"

#define KVP_TIER_BUF_BYTES (1u << 20) /* a buffer of this size is written */
#define KVP_TIER_BUFS_MAX 4u /* full buffers not written yet */

typedef struct kvp_tier_core kvp_tier_core_t;

typedef struct {
    kvp_tier_geo_t geo;
    uint64_t epoch;
    uint64_t secret; /* of the index */
    const kvp_tier_disk_ops_t *ops;
    void *disk;
    kvp_tier_stats_t *stats; /* borrowed; counters are added to */
    kvp_tier_room_t *room; /* borrowed; of records that are written and read. NULL: the heap is */
} kvp_tier_core_conf_t;

/* NULL: no memory. destroy: nothing is under way. */
kvp_tier_core_t *kvp_tier_core_create(const kvp_tier_core_conf_t *conf);
void kvp_tier_core_destroy(kvp_tier_core_t *core);

/* kvp_tier_core_set_now gives the time, in milliseconds since 1970, which is stored in page
 * headers. */
void kvp_tier_core_set_now(kvp_tier_core_t *core, uint64_t now_ms);

/* kvp_tier_core_recover finds what an epoch has: it reads headers and tables, and waits for the
 * disk. SYS, NOMEM. Without it the device is empty, which is right for a new epoch alone. */
kvp_err_t kvp_tier_core_recover(kvp_tier_core_t *core) KVP_MUST_USE;

/* kvp_tier_core_write copies a record into the current buffer, after asking still(arg).
 * kvp_tier_core_drop hides a digest's records, and appends a tombstone if a record may be on the
 * device. Both: pass *serial_out to kvp_tier_core_is_durable. EAGAIN: too many bytes are being
 * written. OK, STALE (still returned false, or a newer version exists), NO_SPACE, INVALID (a
 * version of more than 62 bits). Writing an existing version is OK. */
kvp_err_t kvp_tier_core_write(kvp_tier_core_t *core, const kvp_tier_meta_t *meta, const void *src,
                              bool (*still)(void *arg), void *arg, uint64_t *serial_out) KVP_MUST_USE;
kvp_err_t kvp_tier_core_drop(kvp_tier_core_t *core, kvp_digest_t digest, uint64_t version, uint64_t *serial_out)
    KVP_MUST_USE;

/* kvp_tier_core_flush begins to write the buffer. _is_waiting: the buffer has bytes. _is_durable:
 * all records appended up to the serial are on the device. */
void kvp_tier_core_flush(kvp_tier_core_t *core);
bool kvp_tier_core_is_waiting(const kvp_tier_core_t *core);
bool kvp_tier_core_is_durable(const kvp_tier_core_t *core, uint64_t serial);
bool kvp_tier_core_is_idle(const kvp_tier_core_t *core); /* nothing is under way */
bool kvp_tier_core_has_failed(const kvp_tier_core_t *core); /* a write has: nothing after it is durable */
bool kvp_tier_core_has_damage(const kvp_tier_core_t *core); /* of a record a sum was wrong */

/* A read. The caller's memory, which stays until done was called, once and possibly within
 * kvp_tier_core_read; err as kvp_tier_op_t has it. What is cancelled does not touch dst and meta
 * any more. */
typedef struct kvp_tier_read {
    kvp_tier_io_t io;
    kvp_list_t link; /* the caller's */
    kvp_tier_core_t *core;
    void (*done)(struct kvp_tier_read *read);
    void *arg; /* the caller's */
    kvp_tier_meta_t *meta; /* digest and version are filled in */
    uint8_t *dst; /* NULL: nothing is copied; without meta the sums are looked at, with it the payload is not read */
    uint64_t cap;
    kvp_digest_t digest;
    uint64_t version;
    kvp_tier_entry_t entry;
    uint64_t number; /* of the page */
    kvp_tier_rec_t rec;
    const uint8_t *bytes; /* of the record, until done returns */
    kvp_err_t err;
    bool is_cancelled;
} kvp_tier_read_t;
void kvp_tier_core_read(kvp_tier_core_t *core, kvp_tier_read_t *read);

/* Reclaim. kvp_tier_core_step goes on with it; propose and answer as in tier.h, *_is_short: pages
 * are to be given up. */
bool kvp_tier_core_is_short(const kvp_tier_core_t *core);
void kvp_tier_core_step(kvp_tier_core_t *core, uint64_t budget_bytes); /* at most so many bytes are kept of a page */
bool kvp_tier_core_has_proposal(const kvp_tier_core_t *core);
bool kvp_tier_core_propose(kvp_tier_core_t *core, kvp_tier_proposal_t *proposal_out);
void kvp_tier_core_answer(kvp_tier_core_t *core, const uint8_t *keep, uint32_t n);

const kvp_tier_index_t *kvp_tier_core_index(const kvp_tier_core_t *core);
/* For a device that is given up: kvp_tier_core_lost proposes its objects, and kvp_tier_core_forget
 * forgets the proposed ones. Call forget before any other change of the index. */
void kvp_tier_core_lost(const kvp_tier_core_t *core, kvp_tier_proposal_t *proposal_out);
void kvp_tier_core_forget(kvp_tier_core_t *core, uint32_t n);
uint64_t kvp_tier_core_appended(const kvp_tier_core_t *core); /* bytes since the tier was created */
/* kvp_tier_core_budget_left: the unused part of day_bytes a day, computed from the opening times of
 * the present pages; the last page counts as written now. */
double kvp_tier_core_budget_left(const kvp_tier_core_t *core, double day_bytes);
void kvp_tier_core_gauges(const kvp_tier_core_t *core, kvp_tier_stats_t *stats); /* adds its own */

#endif
