/* SPDX-License-Identifier: Apache-2.0
 * A file of the tier: opened or made, locked, tested; its superblock.
 */
#ifndef KVP_NODE_TIER_DEVICE_H
#define KVP_NODE_TIER_DEVICE_H

#include "node/tier/core.h"
#include "node/tier/disk.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#define KVP_TIER_FILE "kvpool.tier"

#define KVP_TIER_WHY_MAX 256u

/* Reads, or writes, of a device that do not end. */
typedef struct {
    bool is_stalled; /* none is begun but one probe at a time */
    bool is_probing;
    uint64_t probe_at_ns; /* the next probe is begun then */
    kvp_tier_io_t probe;
} kvp_tier_stall_t;

typedef enum {
    KVP_TIER_DEVICE_USED, /* without a core it is switched off: it is tried again at retry_at_ns */
    KVP_TIER_DEVICE_FAILING, /* its core is destroyed when no request is under way */
    KVP_TIER_DEVICE_RETRYING, /* it has no core; the superblock of a new epoch is being written */
    /* The device hung while it was opened or read. The node uses it again after its next start; the
     * thread of its job may still be in the kernel, so its memory is never freed. */
    KVP_TIER_DEVICE_LEFT_OUT
} kvp_tier_device_state_t;

/* Of the file's superblock. */
typedef enum {
    KVP_TIER_SUPER_NONE, /* the file has no fitting superblock */
    KVP_TIER_SUPER_FOUND, /* it is the source of pool, uuid, identity and epoch */
    KVP_TIER_SUPER_KNOWN, /* and is of the pool that is used, and of the tier's last generation */
    KVP_TIER_SUPER_OLD /* known, and the superblock on the device has an earlier generation */
} kvp_tier_super_state_t;

typedef struct kvp_tier_device_file {
    char dir[KVP_TIER_DIR_MAX]; /* to tell */
    char path[PATH_MAX];
    uint64_t size_bytes;
    int fd;
    kvp_tier_device_state_t state;
    bool is_apart; /* the descriptor is in a table that no child inherits */
    kvp_tier_geo_t geo;
    kvp_tier_super_t super; /* as it has to be, but for pool, uuid, identity and epoch */
    kvp_tier_super_state_t super_state;
    uint64_t sweep; /* of the index: up to there no record is in another device's slot; UINT64_MAX: nowhere */
    kvp_tier_stats_t stats; /* counters of its cores */
    kvp_tier_engine_t engine;
    struct { /* a job of a device that may hang: it runs in a thread of its own (jobs.c) */
        struct kvp_tier *tier;
        kvp_err_t (*fn)(struct kvp_tier *tier, struct kvp_tier_device_file *dev);
        pthread_t thread;
        kvp_err_t err;
        _Atomic uint64_t moved_ns; /* last progress */
        _Atomic bool is_over;
        char why[KVP_TIER_WHY_MAX]; /* the error of the opening; "" = none. To be read when is_over. */
    } job;
    kvp_tier_core_t *core; /* NULL: switched off, or not begun */
    _Atomic uint32_t losses; /* number of times it was switched off */
    /* The tier's thread's. */
    kvp_tier_stall_t stalls[2]; /* reads, writes */
    uint8_t *probe_blocks; /* two, one for each kind */
    /* Records that were written while the answer was that they are not. They are dropped when the
     * device answers again. */
    kvp_wire_tiered_t *orphans;
    size_t orphans_n, orphans_cap;
    kvp_list_t reads, todo, begun; /* kvp_tier_op_t.link: not begun, not begun, not on the device yet */
    kvp_list_t readings; /* kvp_tier_reading_t.link */
    uint32_t readings_n;
    uint64_t readings_bytes;
    bool has_told_error, has_told_damage; /* the log has the first fault of each kind */
    uint32_t bad_reads; /* one after another */
    uint64_t waits_since_ns; /* something is in the buffer; 0 = nothing */
    uint64_t retry_at_ns; /* it is tried again then; 0 = not */
    uint64_t failed_at_ns; /* since when it has been FAILING */
    uint64_t charged; /* of what the core has appended, for the budget */
    kvp_tier_io_t retry;
} kvp_tier_device_file_t;

/* kvp_tier_device_make: nothing is opened yet. NULL: no memory. */
kvp_tier_device_file_t *kvp_tier_device_make(const kvp_tier_device_t *conf, bool is_apart);

/* kvp_tier_device_open: as kvp_tier_open, for one device; and BUSY where a process that was killed
 * still has the file, since a request of it hangs. _close is legal on what was not opened. Both may
 * wait for the device. */
kvp_err_t kvp_tier_device_open(kvp_tier_device_file_t *dev, const char *name) KVP_MUST_USE;
void kvp_tier_device_close(kvp_tier_device_file_t *dev);

/* kvp_tier_device_write_super writes the superblock as it is now. _format begins an epoch first:
 * the records before are given up. Both wait for the disk. SYS, logged. _blocks begins an epoch,
 * and fills two blocks with what is to be written at the file's begin. */
kvp_err_t kvp_tier_device_write_super(kvp_tier_device_file_t *dev) KVP_MUST_USE;
kvp_err_t kvp_tier_device_format(kvp_tier_device_file_t *dev) KVP_MUST_USE;
void kvp_tier_device_blocks(kvp_tier_device_file_t *dev, uint8_t *blocks);

extern const kvp_tier_disk_ops_t kvp_tier_device_ops; /* the disk is a kvp_tier_device_file_t */

#endif
