/* SPDX-License-Identifier: Apache-2.0
 * A file of the SSD tier: opened or created, locked, tested; its superblock. */
#ifndef KVP_NODE_TIER_DEVICE_H
#define KVP_NODE_TIER_DEVICE_H

#include "node/tier/core.h"
#include "node/tier/disk.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#define KVP_TIER_FILE "kvpool.tier"

#define KVP_TIER_WHY_MAX 256u

/* The state of a device's reads, or of its writes, while requests do not end. */
typedef struct {
    bool is_stalled; /* requests of this kind do not end: no request is begun except one probe at a time */
    bool is_probing;
    uint64_t probe_at_ns; /* the time when the next probe begins */
    kvp_tier_io_t probe;
} kvp_tier_stall_t;

typedef enum {
    KVP_TIER_DEVICE_USED, /* the usual state of a device. While it has no core, the device is switched off: it is tried
                             again at retry_at_ns, and gets a new core when its superblock is written */
    KVP_TIER_DEVICE_FAILING, /* given up; the core is destroyed once no request is under way */
    KVP_TIER_DEVICE_RETRYING, /* the device has no core; the superblock of a new epoch is being written */
    /* The device hung while it was opened or read. The node uses the device again only after its next start. The
     * thread of its job may still be in the kernel, so its memory is never freed. */
    KVP_TIER_DEVICE_LEFT_OUT
} kvp_tier_device_state_t;

/* The state of a file's superblock. */
typedef enum {
    KVP_TIER_SUPER_NONE, /* the file has no usable superblock */
    KVP_TIER_SUPER_FOUND, /* pool, uuid, identity and epoch were read from the file's superblock */
    KVP_TIER_SUPER_KNOWN, /* FOUND, and the superblock is of the used pool and of the tier's last generation */
    KVP_TIER_SUPER_OLD /* KNOWN, and the superblock on the device has an earlier generation */
} kvp_tier_super_state_t;

typedef struct kvp_tier_device_file {
    char dir[KVP_TIER_DIR_MAX]; /* the directory's name for logs and reports */
    char path[PATH_MAX];
    uint64_t size_bytes;
    int fd;
    kvp_tier_device_state_t state;
    bool is_apart; /* fd is in the tier's thread's own descriptor table, which no child inherits */
    kvp_tier_geo_t geo;
    /* superblock to write; super_state tells whether pool, uuid, identity and epoch were read from the device */
    kvp_tier_super_t super;
    kvp_tier_super_state_t super_state;
    /* the progress (a cursor of the index) of the sweep that drops records of slots that moved to another device;
     * UINT64_MAX: the sweep is over */
    uint64_t sweep;
    kvp_tier_stats_t stats; /* the counters of the device's cores */
    kvp_tier_engine_t engine;
    struct { /* a job on a device that may hang, which runs in a thread of its own (jobs.c) */
        struct kvp_tier *tier;
        kvp_err_t (*fn)(struct kvp_tier *tier, struct kvp_tier_device_file *dev);
        pthread_t thread;
        kvp_err_t err;
        /* the core that the job made; NULL = none; it belongs to the job until the job has ended */
        kvp_tier_core_t *core;
        _Atomic uint64_t moved_ns; /* the time of the job's last progress */
        _Atomic bool is_over;
        char why[KVP_TIER_WHY_MAX]; /* the last error of opening the device or, without an error, the last warning; "" =
                                       neither. Valid once is_over */
    } job;
    kvp_tier_core_t *core; /* NULL: the device is switched off, or its records are not recovered yet */
    _Atomic uint32_t losses; /* how often the device was switched off */
    /* The device's fields from here on belong to the tier's thread. */
    kvp_tier_stall_t stalls[2]; /* the stall states: [0] of reads, [1] of writes */
    uint8_t *probe_blocks; /* two blocks for probes: one for reads, one for writes */
    /* Records that were written although their operation was answered as failed. The records are dropped when the
     * device answers again. */
    kvp_wire_tiered_t *orphans;
    size_t orphans_n, orphans_cap;
    /* lists of kvp_tier_op_t.link. reads: READs not begun; todo: others not begun; begun: not on the device yet */
    kvp_list_t reads, todo, begun;
    kvp_list_t readings; /* a list of kvp_tier_reading_t.link: reads under way */
    uint32_t readings_n;
    uint64_t readings_bytes;
    bool has_told_error, has_told_damage; /* flags: logged the first failed request; the first wrong checksum */
    uint32_t bad_reads; /* the number of reads that failed in a row */
    uint64_t waits_since_ns; /* the time since which the core's buffer has unwritten bytes; 0 = the buffer is empty */
    uint64_t retry_at_ns; /* the time when a switched-off device is tried again; 0 = no retry is needed */
    uint64_t failed_at_ns; /* the time since which the device has been FAILING */
    uint64_t charged; /* the part of the core's appended bytes that was charged to the budget */
    kvp_tier_io_t retry;
} kvp_tier_device_file_t;

/* kvp_tier_device_make allocates a device without opening its file. NULL: no memory. */
kvp_tier_device_file_t *kvp_tier_device_make(const kvp_tier_device_t *conf, bool is_apart);

/* kvp_tier_device_open opens one device, with the errors of kvp_tier_open, and BUSY if a killed process still has the
 * file because one of its requests hangs. kvp_tier_device_close is legal on a device that was not opened. Both may
 * wait for the device. */
kvp_err_t kvp_tier_device_open(kvp_tier_device_file_t *dev, const char *name) KVP_MUST_USE;
void kvp_tier_device_close(kvp_tier_device_file_t *dev);

/* kvp_tier_device_write_super writes the current superblock. kvp_tier_device_format begins a new epoch first, which
 * gives up the device's records. Both wait for the disk. SYS, logged. kvp_tier_device_blocks begins a new epoch, and
 * fills two blocks with the bytes to write at the file's beginning. */
kvp_err_t kvp_tier_device_write_super(kvp_tier_device_file_t *dev) KVP_MUST_USE;
kvp_err_t kvp_tier_device_format(kvp_tier_device_file_t *dev) KVP_MUST_USE;
void kvp_tier_device_blocks(kvp_tier_device_file_t *dev, uint8_t *blocks);

extern const kvp_tier_disk_ops_t kvp_tier_device_ops; /* the disk argument is a kvp_tier_device_file_t */

#endif
