/* SPDX-License-Identifier: Apache-2.0
 * Operations of a tier, records that it proposes to give up, and its figures. */
#ifndef KVP_NODE_TIER_OP_H
#define KVP_NODE_TIER_OP_H

#include "common/hash.h"
#include "common/list.h"
#include "proto/wire.h"

#define KVP_TIER_DEVICES_MAX 16u
#define KVP_TIER_DIR_MAX 512u /* of a directory's name in reports, with the terminator: a longer one is cut */
#define KVP_TIER_WRITES_BYTES (64ull << 20) /* payload bytes of unfinished WRITEs; a single larger one is allowed */
#define KVP_TIER_SIZE_MIN (64ull << 20) /* of a device */

typedef struct {
    const char *dir; /* an existing, writable directory; borrowed for the call */
    uint64_t size_bytes; /* of the file in it; rounded down to whole pages */
} kvp_tier_device_t;

/* An object's metadata in its record: all fields of its descriptor, and those that a master without
 * a log needs. */
typedef struct {
    kvp_digest_t digest;
    uint64_t version;
    uint64_t key_hash2;
    uint64_t len; /* payload bytes */
    uint64_t sum; /* XXH3-64 of the payload; WRITE: 0 = the tier computes it */
    uint32_t tenant; /* its number */
    uint32_t ns_epoch;
    kvp_wire_lineage_t lineage; /* is_told 0 = none */
    uint16_t flags; /* as in descriptors */
    uint16_t key_len;
    uint8_t key[KVP_KEY_MAX];
} kvp_tier_meta_t;

typedef enum {
    KVP_TIER_WRITE, /* appends a record, which replaces an older record of the digest */
    KVP_TIER_READ, /* returns the payload of the version */
    /* hides all records of the digest up to the version, and appends a tombstone if one may be on
     * the device */
    KVP_TIER_DROP,
} kvp_tier_op_kind_t;

typedef struct kvp_tier_op {
    kvp_list_t link; /* the tier's, from submit until it is taken */
    kvp_tier_op_kind_t kind;
    void *arg; /* the caller's */
    kvp_tier_meta_t meta; /* READ, DROP: digest and version, set by the caller; READ: the rest is the answer */
    /* WRITE: the payload, borrowed until it is done; others may store to it, so still() is asked
     * (in the tier's thread) once the bytes were copied: false = they were not the object's, and
     * nothing is written. */
    const void *src;
    bool (*still)(struct kvp_tier_op *op);
    /* READ: room for cap bytes, written by the tier's thread. NULL: only meta is wanted, and the
     * payload is not read. */
    void *dst;
    uint64_t cap;
    /* WRITE: OK, the record is on the device. STALE (still() returned false), NO_SPACE (no free
     * page, or the record is longer than a page's room), LIMIT (the write budget), SYS (the device
     * failed, or does not answer), CLOSED. READ: OK, the sums are right. NOT_FOUND (another
     * version), CORRUPT (a wrong sum, or another object's record: it is dropped), SYS (unreadable,
     * and dropped; or the device is switched off), EAGAIN (the device does not answer),
     * BUFFER_SMALL, NOMEM, CLOSED. DROP: OK, the tombstone is on the device, or none is needed;
     * SYS, CLOSED. */
    kvp_err_t err;
    /* The tier's own. */
    uint64_t serial;
    uint32_t device;
    uint32_t losses; /* of the device, at the beginning of the operation; */
    bool is_over;
} kvp_tier_op_t;

/* Live records of the page to reclaim: kvp_tier_propose. */
#define KVP_TIER_PROPOSED_MAX 8192u
typedef struct {
    uint32_t n;
    uint64_t keep_bytes;
    kvp_wire_tiered_t recs[KVP_TIER_PROPOSED_MAX];
} kvp_tier_proposal_t;

/* Figures; those marked (gauge) can fall. X(name, help) */
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
    char failed_dir[KVP_TIER_DIR_MAX]; /* of the first device that is switched off; empty = none is */
    char stalled_dir[KVP_TIER_DIR_MAX]; /* of the first device that does not answer; empty = all answer */
    uint8_t away[KVP_TIER_AWAY_BYTES]; /* a bit for each slot whose device answers no reads */
} kvp_tier_stats_t;

#endif
