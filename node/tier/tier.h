/* SPDX-License-Identifier: Apache-2.0
 * A node's SSD tier: records of objects in log-structured pages of preallocated files, found by
 * digest. ADR 0029, PROTOCOL "Tier".
 *
 * One thread of the tier does all slow work. The node's control thread submits operations and
 * collects finished ones; both calls are quick, and legal for one thread at a time. The tier knows
 * no masters, segments or leases. */
#ifndef KVP_NODE_TIER_TIER_H
#define KVP_NODE_TIER_TIER_H

#include "common/hash.h"
#include "common/list.h"
#include "proto/wire.h"

#define KVP_TIER_DEVICES_MAX 16u
#define KVP_TIER_DIR_MAX 512u /* of a directory's name in reports, with the terminator: a longer one is cut */
#define KVP_TIER_WRITES_BYTES (64ull << 20) /* payload bytes of unfinished WRITEs; a single larger one is allowed */
#define KVP_TIER_SIZE_MIN (64ull << 20) /* of a device */

typedef struct kvp_tier kvp_tier_t;

typedef struct {
    const char *dir; /* an existing, writable directory; borrowed for the call */
    uint64_t size_bytes; /* of the file in it; rounded down to whole pages */
} kvp_tier_device_t;

typedef struct {
    kvp_tier_device_t devices[KVP_TIER_DEVICES_MAX];
    uint32_t devices_n;
    const char *name; /* of the node: a file belongs to one name. Borrowed for the call */
    uint64_t write_budget_bytes; /* a day; 0 = none */
    int wake_fd; /* an eventfd that is written 1 to when operations are done; borrowed */
    /* The tier's threads may have a table of descriptors of their own: a request that hangs keeps
     * no other descriptor of a process that is killed. Not where a host's code (its log) runs in
     * them. */
    bool is_apart;
} kvp_tier_conf_t;

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

/* Figures; those marked (gauge) can fall. X(name, help) */
#define KVP_TIER_STATS(X)                                                                                              \
    X(records, "records that can be read (gauge)")                                                                     \
    X(live_bytes, "bytes of them on the devices (gauge)")                                                              \
    X(size_bytes, "bytes of the pages of all devices that work (gauge)")                                               \
    X(free_pages, "pages in which nothing is (gauge)")                                                                 \
    X(devices_failed, "devices that are switched off (gauge)")                                                         \
    X(devices_stalled, "devices that do not answer (gauge)")                                                           \
    X(index_bytes, "memory of the index (gauge)")                                                                      \
    X(writes, "records written")                                                                                       \
    X(write_bytes, "payload bytes of them")                                                                            \
    X(device_bytes, "bytes written to the devices for all purposes")                                                   \
    X(reads, "records read")                                                                                           \
    X(read_bytes, "payload bytes of them")                                                                             \
    X(drops, "records dropped")                                                                                        \
    X(stale_writes, "writes of extents that were another object's by then")                                            \
    X(refused_writes, "writes for which there was no room, or no budget")                                              \
    X(corrupt, "records whose sums were wrong")                                                                        \
    X(io_errors, "reads and writes that failed")                                                                       \
    X(stalls, "reads and writes that are or were under way for 2 s")                                                   \
    X(pages_reclaimed, "pages given up")                                                                               \
    X(relocated, "records that were worth keeping then")

typedef struct {
#define KVP_TIER_STAT_FIELD(name, help) uint64_t name;
    KVP_TIER_STATS(KVP_TIER_STAT_FIELD)
#undef KVP_TIER_STAT_FIELD
    char failed_dir[KVP_TIER_DIR_MAX]; /* of the first device that is switched off; empty = none is */
    char stalled_dir[KVP_TIER_DIR_MAX]; /* of the first device that does not answer; empty = all answer */
    uint8_t away[KVP_TIER_AWAY_BYTES]; /* a bit for each slot whose device answers no reads */
} kvp_tier_stats_t;

/* kvp_tier_open opens or creates the files, locks them, and tests them (writes, reads back,
 * compares); it does not recover records yet. INVALID (no such directory, too small, one file for
 * two nodes, another format's file), SYS (no space, not writable, in use by another node): logged
 * in one line that names the directory. Without O_DIRECT or io_uring it uses other means, and logs
 * that. Devices may be named in any order. A device that does not answer for 5 s is left out until
 * the next start.
 *
 * kvp_tier_use begins with the records of the pool, and gives up those of another pool. uuid_out:
 * constant as long as the files stay the same and of this pool. Recovery runs in the tier's thread;
 * operations wait for it. kvp_tier_is_ready: recovery is over.
 *
 * kvp_tier_close writes the pending buffers, and frees all; unfinished operations end with CLOSED
 * first: collect them before. */
kvp_err_t kvp_tier_open(const kvp_tier_conf_t *conf, kvp_tier_t **tier_out) KVP_MUST_USE;
void kvp_tier_use(kvp_tier_t *tier, const uint8_t pool_id[16], uint8_t uuid_out[16]);
bool kvp_tier_is_ready(kvp_tier_t *tier);
void kvp_tier_stop(kvp_tier_t *tier); /* ends the thread: all operations are done then */
void kvp_tier_close(kvp_tier_t *tier); /* NULL is legal; stopped before */

/* kvp_tier_submit takes the operation (the caller's memory, which stays in place) until it is taken
 * back. WRITE and DROP are appended in the order in which they are submitted, and done in that
 * order. EAGAIN: KVP_TIER_WRITES_BYTES are under way; nothing was taken. kvp_tier_take: the next
 * that is done, NULL = none is. */
kvp_err_t kvp_tier_submit(kvp_tier_t *tier, kvp_tier_op_t *op) KVP_MUST_USE;
kvp_tier_op_t *kvp_tier_take(kvp_tier_t *tier);

/* kvp_tier_is_kept: the device of a finished, successful WRITE was not given up since; so no
 * proposal taken before this call has reported the record lost. */
bool kvp_tier_is_kept(kvp_tier_t *tier, const kvp_tier_op_t *op);

/* kvp_tier_device_of is the number of the device that a digest's slot is mapped to, less than
 * KVP_TIER_DEVICES_MAX. The same until the end. */
uint32_t kvp_tier_device_of(const kvp_tier_t *tier, kvp_digest_t digest);

/* kvp_tier_quiesce returns when no operation that was submitted before reads src or writes dst any
 * more (those that are not begun are done with CLOSED): then the memory may go. */
void kvp_tier_quiesce(kvp_tier_t *tier);

/* kvp_tier_list iterates over the records: up to max from *cursor on (0 = the first), and advances
 * it; returns their number, 0 = the end. Records written or moved meanwhile may be missed or listed
 * twice. The tier must be ready. */
uint32_t kvp_tier_list(kvp_tier_t *tier, uint64_t *cursor, kvp_wire_tiered_t *recs, uint32_t max);

/* Reclaim. kvp_tier_propose returns true if free pages run short: the proposal has the live records
 * of the page to reclaim, at most KVP_TIER_PROPOSED_MAX at a time (the rest of the page comes with
 * the next proposal). With kvp_tier_answer (n bytes, 1 = keep; at most keep_bytes of them are kept)
 * the tier writes the kept ones again and reclaims the page; NULL: no answer will come. One
 * proposal at a time. */
#define KVP_TIER_PROPOSED_MAX 8192u
typedef struct {
    uint32_t n;
    uint64_t keep_bytes;
    kvp_wire_tiered_t recs[KVP_TIER_PROPOSED_MAX];
} kvp_tier_proposal_t;
bool kvp_tier_propose(kvp_tier_t *tier, kvp_tier_proposal_t *proposal_out);
void kvp_tier_answer(kvp_tier_t *tier, const uint8_t *keep, uint32_t n);

void kvp_tier_stats(kvp_tier_t *tier, kvp_tier_stats_t *stats_out);

#endif
