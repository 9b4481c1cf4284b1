/* SPDX-License-Identifier: Apache-2.0
 * One read or write of a device, for the tier's engine (disk.h) or for a test's disk in memory. */
#ifndef KVP_NODE_TIER_IO_H
#define KVP_NODE_TIER_IO_H

#include "common/list.h"

#define KVP_TIER_BLOCK 4096u /* offsets, lengths and buffers are multiples of it */

typedef struct kvp_tier_io {
    kvp_list_t link; /* the disk's, from submit until done is called */
    kvp_list_t age; /* the disk's: among those under way, the oldest first */
    void (*done)(struct kvp_tier_io *io);
    uint8_t *buf; /* borrowed until done */
    uint64_t off;
    uint32_t len;
    uint32_t moved; /* the disk's */
    int fd; /* the disk's */
    uint64_t begun_ns; /* the disk's */
    int64_t result; /* the disk's: of the system call */
    bool is_late; /* the disk's: it is counted as a stall */
    bool is_written_off; /* the disk's: the device answers requests that came later */
    bool is_write;
    bool is_synced; /* a write: done means that it survives a loss of power */
    kvp_err_t err; /* OK or SYS */
} kvp_tier_io_t;

/* submit never calls done; wait does, for what is over, and returns when at least one was or nothing is under way. */
typedef struct {
    void (*submit)(void *disk, kvp_tier_io_t *io);
    void (*wait)(void *disk);
} kvp_tier_disk_ops_t;

/* kvp_tier_alloc_blocks returns memory that a device can read and write; free() frees it. */
static inline uint8_t *
kvp_tier_alloc_blocks(size_t n)
{
    return (uint8_t *)aligned_alloc(KVP_TIER_BLOCK, n * KVP_TIER_BLOCK);
}

#endif
