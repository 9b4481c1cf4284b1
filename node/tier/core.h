/* SPDX-License-Identifier: Apache-2.0
 * One device of the SSD tier, as a pure state machine over reads and writes: the ring of pages, the index, appends,
 * reads, reclaim, and recovery after a start. No threads, clocks or files. Not thread-safe.
 *
 * Design notes. Pages are reclaimed in the order of writing, so a tombstone outlives every record that it hides,
 * because those records come before it. A kept record is appended again, and its old page is reclaimed once the copy
 * is on the device; reclaiming writes zeros over the page's header. So a digest's newest record is always its last
 * record in the ring, and recovery uses the last record that it reads. */
#ifndef KVP_NODE_TIER_CORE_H
#define KVP_NODE_TIER_CORE_H

#include "node/tier/index.h"
#include "node/tier/room.h"

#define KVP_TIER_BUF_BYTES (1u << 20) /* a buffer with at least this many bytes is written */
#define KVP_TIER_BUFS_MAX 4u /* the most full buffers that are not written yet */

typedef struct kvp_tier_core kvp_tier_core_t;

typedef struct {
    kvp_tier_geo_t geo;
    uint64_t epoch;
    uint64_t secret; /* the hash secret of the index */
    const kvp_tier_disk_ops_t *ops;
    void *disk;
    kvp_tier_stats_t *stats; /* the device's counters, borrowed; the core adds to them */
    kvp_tier_room_t *room; /* borrowed: the memory for records that are written and read. NULL: the heap */
} kvp_tier_core_conf_t;

/* kvp_tier_core_create returns NULL without memory. kvp_tier_core_destroy needs that no request is under way. */
kvp_tier_core_t *kvp_tier_core_create(const kvp_tier_core_conf_t *conf);
void kvp_tier_core_destroy(kvp_tier_core_t *core);

/* kvp_tier_core_set_now sets the current time, in milliseconds since 1970, which is stored in page headers. */
void kvp_tier_core_set_now(kvp_tier_core_t *core, uint64_t now_ms);

/* kvp_tier_core_recover finds the records of the epoch on the device: it reads headers and tables, and waits for the
 * disk. SYS, NOMEM. Without recovery the device counts as empty, which is right only for a new epoch. */
kvp_err_t kvp_tier_core_recover(kvp_tier_core_t *core) KVP_MUST_USE;

/* kvp_tier_core_write copies a record into the current buffer if still(arg) returns true after the copy.
 * kvp_tier_core_drop hides a digest's records, and appends a tombstone if a record may be on the device. Pass
 * *serial_out of either to kvp_tier_core_is_durable. EAGAIN: too many bytes are being written. OK, STALE (still
 * returned false, or a newer version exists), NO_SPACE, INVALID (a version of more than 62 bits, or a key longer than
 * KVP_KEY_MAX). Writing an existing version returns OK. */
kvp_err_t kvp_tier_core_write(kvp_tier_core_t *core, const kvp_tier_meta_t *meta, const void *src,
                              bool (*still)(void *arg), void *arg, uint64_t *serial_out) KVP_MUST_USE;
kvp_err_t kvp_tier_core_drop(kvp_tier_core_t *core, kvp_digest_t digest, uint64_t version, uint64_t *serial_out)
    KVP_MUST_USE;

/* kvp_tier_core_flush begins to write the current buffer. kvp_tier_core_is_waiting returns whether the buffer has
 * bytes. kvp_tier_core_is_durable returns whether all records appended up to the serial are on the device. */
void kvp_tier_core_flush(kvp_tier_core_t *core);
bool kvp_tier_core_is_waiting(const kvp_tier_core_t *core);
bool kvp_tier_core_is_durable(const kvp_tier_core_t *core, uint64_t serial);
bool kvp_tier_core_is_idle(const kvp_tier_core_t *core); /* no read, write or reclaim is under way */
bool kvp_tier_core_has_failed(const kvp_tier_core_t *core); /* a write has failed: nothing after it is durable */
bool kvp_tier_core_has_damage(const kvp_tier_core_t *core); /* the checksum of a record was wrong */

/* A read. The struct is the caller's memory, and stays until done was called, once and possibly within
 * kvp_tier_core_read; the values of err are those of kvp_tier_op_t. A cancelled read no longer touches dst and meta. */
typedef struct kvp_tier_read {
    kvp_tier_io_t io;
    kvp_list_t link; /* a list link for the caller's use */
    kvp_tier_core_t *core;
    void (*done)(struct kvp_tier_read *read);
    void *arg; /* a pointer for the caller's use */
    kvp_tier_meta_t *meta; /* the metadata to fill in; the caller has set digest and version */
    /* the destination of the payload; NULL: nothing is copied. Then without meta only the checksums
     * are verified, and with meta the payload is not read */
    uint8_t *dst;
    uint64_t cap;
    kvp_digest_t digest;
    uint64_t version;
    kvp_tier_entry_t entry;
    uint64_t number; /* the number of the record's page */
    kvp_tier_rec_t rec;
    const uint8_t *bytes; /* the bytes of the record, valid until done returns */
    kvp_err_t err;
    bool is_cancelled;
} kvp_tier_read_t;
void kvp_tier_core_read(kvp_tier_core_t *core, kvp_tier_read_t *read);

/* Reclaim. kvp_tier_core_is_short returns whether pages must be reclaimed. kvp_tier_core_step continues the reclaim;
 * it keeps at most budget_bytes of a page's records. kvp_tier_core_propose and _answer are as in tier.h. */
bool kvp_tier_core_is_short(const kvp_tier_core_t *core);
void kvp_tier_core_step(kvp_tier_core_t *core, uint64_t budget_bytes);
bool kvp_tier_core_has_proposal(const kvp_tier_core_t *core);
bool kvp_tier_core_propose(kvp_tier_core_t *core, kvp_tier_proposal_t *proposal_out);
void kvp_tier_core_answer(kvp_tier_core_t *core, const uint8_t *keep, uint32_t n);

const kvp_tier_index_t *kvp_tier_core_index(const kvp_tier_core_t *core);
/* For a device that is given up: kvp_tier_core_lost proposes its objects as lost, and kvp_tier_core_forget removes
 * the n proposed objects from the index. Call forget before any other change of the index. */
void kvp_tier_core_lost(const kvp_tier_core_t *core, kvp_tier_proposal_t *proposal_out);
void kvp_tier_core_forget(kvp_tier_core_t *core, uint32_t n);
uint64_t kvp_tier_core_appended(const kvp_tier_core_t *core); /* the bytes appended since the core was created */
/* kvp_tier_core_budget_left returns the unused part of a write budget of day_bytes a day, computed from the opening
 * times of the present pages; the last page counts as written now. */
double kvp_tier_core_budget_left(const kvp_tier_core_t *core, double day_bytes);
void kvp_tier_core_gauges(const kvp_tier_core_t *core, kvp_tier_stats_t *stats); /* adds the core's gauges to stats */

#endif
