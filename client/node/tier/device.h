/* SPDX-License-Identifier: Apache-2.0
 * A file of the tier: opened or made, locked, tested; its superblock.
 */
#ifndef KVP_CLIENT_NODE_TIER_DEVICE_H
#define KVP_CLIENT_NODE_TIER_DEVICE_H

#include "client/node/tier/core.h"
#include "client/node/tier/disk.h"

#include <stdatomic.h>

#define KVP_TIER_FILE "kvpool.tier"

typedef struct {
    char dir[KVP_TIER_DIR_MAX]; /* to tell */
    int fd;
    kvp_tier_geo_t geo;
    kvp_tier_super_t super; /* as it has to be, but for pool, uuid and epoch */
    bool has_super; /* the file has one that fits: pool, uuid and epoch are its own */
    kvp_tier_engine_t *engine; /* borrowed */
    kvp_tier_fault_t fault;
    kvp_tier_core_t *core; /* NULL: switched off, or not begun */
    _Atomic uint32_t losses; /* how often it was switched off */
    /* The tier's thread's. */
    bool has_told_error, has_told_stall, has_told_damage; /* the log says the first of each kind */
    bool is_failing; /* the core is done with when nothing is under way */
    uint32_t bad_reads; /* one after another */
    uint64_t waits_since_ns; /* something is in the buffer; 0 = nothing */
    uint64_t retry_at_ns; /* it is tried again then; 0 = not */
    uint64_t failed_at_ns; /* is_failing: since then */
    uint64_t charged; /* of what the core has appended, for the budget */
    kvp_tier_io_t retry;
    bool is_retrying;
} kvp_tier_device_file_t;

/* kvp_tier_device_open: as kvp_tier_open, for one device; super.device is right where has_super is set. _close is legal on what was not opened:
 * fd -1. */
kvp_err_t kvp_tier_device_open(kvp_tier_device_file_t *dev, const kvp_tier_device_t *conf, const char *name,
                               uint32_t devices) KVP_MUST_USE;
void kvp_tier_device_close(kvp_tier_device_file_t *dev);

/* kvp_tier_device_format begins an epoch: the records before are given up. It waits for the disk. SYS, logged. _blocks fills two blocks with what
 * is to be written at the file's begin. */
kvp_err_t kvp_tier_device_format(kvp_tier_device_file_t *dev, const uint8_t pool_id[16], const uint8_t uuid[16])
    KVP_MUST_USE;
void kvp_tier_device_blocks(kvp_tier_device_file_t *dev, uint8_t *blocks);

extern const kvp_tier_disk_ops_t kvp_tier_device_ops; /* the disk is a kvp_tier_device_file_t */

#endif
