/* SPDX-License-Identifier: Apache-2.0
 * The operations of an SSD tier, the records that it proposes to give up, and its figures. */
#ifndef KVP_NODE_TIER_OP_H
#define KVP_NODE_TIER_OP_H

#include "common/hash.h"
#include "common/list.h"
#include "proto/wire.h"

#define KVP_TIER_DEVICES_MAX 16u
/* the size of a directory's name in reports with the terminator; longer names are cut */
#define KVP_TIER_DIR_MAX 512u
/* the most payload bytes of unfinished WRITEs; a single larger WRITE is allowed */
#define KVP_TIER_WRITES_BYTES (64ull << 20)
#define KVP_TIER_SIZE_MIN (64ull << 20) /* the smallest size of a device of the tier */

typedef struct {
    const char *dir; /* an existing, writable directory; borrowed for the call */
    uint64_t size_bytes; /* the size of the tier's file in the directory; rounded down to whole pages */
} kvp_tier_device_t;

/* The metadata of an object in its record: all fields of its descriptor, and the fields that a master without a log
 * needs. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version;
    uint64_t key_hash2;
    uint64_t len; /* the size of the object's payload in bytes */
    uint64_t sum; /* the XXH3-64 checksum of the payload; WRITE: 0 = the tier computes it */
    uint32_t tenant; /* the number of the object's tenant */
    uint32_t ns_epoch;
    kvp_wire_lineage_t lineage; /* the object's lineage; is_told 0 = it has none */
    uint16_t flags; /* the flags of the object's descriptor */
    uint16_t key_len;
    uint8_t key[KVP_KEY_MAX];
} kvp_tier_meta_t;

typedef enum {
    KVP_TIER_WRITE, /* appends a record, which replaces an older record of the digest */
    KVP_TIER_READ, /* returns the payload of the object's version */
    /* hides all records of the digest up to the version, and appends a tombstone if such a record may be on the
     * device */
    KVP_TIER_DROP,
} kvp_tier_op_kind_t;

typedef struct kvp_tier_op {
    kvp_list_t link; /* the list link that the tier uses from submit until the operation is taken back */
    kvp_tier_op_kind_t kind;
    void *arg; /* a pointer for the caller's use */
    kvp_tier_meta_t meta; /* READ, DROP: the caller sets digest and version. READ: the other fields are the answer */
    /* WRITE: the payload, borrowed until the operation is done. Other processes may store to the memory, so the
     * tier's thread calls still() after it copied the bytes; false = the bytes were not the object's, and nothing is
     * written. */
    const void *src;
    bool (*still)(struct kvp_tier_op *op);
    /* READ: memory for cap bytes, which the tier's thread fills. NULL: only meta is wanted, and the payload is not
     * read. */
    void *dst;
    uint64_t cap;
    /* The result. WRITE: OK, the record is on the device; STALE (still() returned false, or the tier has a newer
     * version), NO_SPACE (no free page, or the record does not fit in a page), LIMIT (the write budget is used up), SYS
     * (the device failed, or does not answer), CLOSED. READ: OK, the checksums are right; NOT_FOUND (or another
     * version), CORRUPT (a wrong checksum or another object's record, which is dropped), SYS (unreadable and dropped,
     * or the device is switched off), EAGAIN (the device does not answer), BUFFER_SMALL, NOMEM, CLOSED. DROP: OK, the
     * tombstone is on the device or not needed; SYS, CLOSED. */
    kvp_err_t err;
    /* The operation's fields from here on belong to the tier, not to the caller. */
    uint64_t serial;
    uint32_t device;
    uint32_t losses; /* how often the device had been switched off when the operation began */
    bool is_over;
} kvp_tier_op_t;

/* The proposal: live records of the page to reclaim, see kvp_tier_propose. */
#define KVP_TIER_PROPOSED_MAX 8192u
typedef struct {
    uint32_t n;
    uint64_t keep_bytes;
    kvp_wire_tiered_t recs[KVP_TIER_PROPOSED_MAX];
} kvp_tier_proposal_t;

/* The tier's figures, as X(name, help). Figures marked (gauge) can fall. */
#define KVP_TIER_STATS(X)                                                                                              \
    X(records, "records that can be read (gauge)")                                                                     \
    X(live_bytes, "bytes of these records on the devices (gauge)")                                                     \
    X(size_bytes, "bytes of the pages of all working devices (gauge)")                                                 \
    X(free_pages, "empty pages (gauge)")                                                                               \
    X(devices_failed, "devices that are switched off (gauge)")                                                         \
    X(devices_stalled, "devices that do not answer (gauge)")                                                           \
    X(index_bytes, "memory of the index (gauge)")                                                                      \
    X(writes, "records written")                                                                                       \
    X(write_bytes, "payload bytes of them")                                                                            \
    X(device_bytes, "bytes written to the devices for all purposes")                                                   \
    X(reads, "records read")                                                                                           \
    X(read_bytes, "payload bytes of them")                                                                             \
    X(drops, "records dropped")                                                                                        \
    X(stale_writes, "writes ended because the extent belonged to another object by then")                              \
    X(refused_writes, "writes refused for lack of room or budget")                                                     \
    X(corrupt, "records with wrong sums")                                                                              \
    X(io_errors, "failed reads and writes")                                                                            \
    X(stalls, "reads and writes that took 2 s or more, or still do")                                                   \
    X(pages_reclaimed, "reclaimed pages")                                                                              \
    X(relocated, "records kept when their page was reclaimed")

typedef struct {
#define KVP_TIER_STAT_FIELD(name, help) uint64_t name;
    KVP_TIER_STATS(KVP_TIER_STAT_FIELD)
#undef KVP_TIER_STAT_FIELD
    char failed_dir[KVP_TIER_DIR_MAX]; /* the directory of the first device that is switched off; empty = none */
    char stalled_dir[KVP_TIER_DIR_MAX]; /* the directory of the first device that does not answer; empty = all answer */
    uint8_t away[KVP_TIER_AWAY_BYTES]; /* a bit for each slot whose device answers no reads */
} kvp_tier_stats_t;

#endif
