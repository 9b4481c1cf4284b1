/* SPDX-License-Identifier: Apache-2.0
 * One read or write of a device, for the engine of the SSD tier (disk.h) or for a disk in memory of the tests. */
#ifndef KVP_NODE_TIER_IO_H
#define KVP_NODE_TIER_IO_H

#include "common/list.h"

#define KVP_TIER_BLOCK 4096u /* a device's block: offsets, lengths and buffer addresses are multiples of its size */

typedef struct kvp_tier_io {
    kvp_list_t link; /* the list link that the disk uses from submit until done is called */
    kvp_list_t age; /* the link in the disk's list of requests under way, oldest first */
    void (*done)(struct kvp_tier_io *io);
    uint8_t *buf; /* the memory to read into or write from, borrowed until done is called */
    uint64_t off;
    uint32_t len;
    uint32_t moved; /* set by the disk: the bytes moved so far */
    int fd; /* the file of the device, set before the submission */
    uint64_t begun_ns; /* set by the disk: when the request began */
    int64_t result; /* set by the disk: the result of the system call */
    bool is_late; /* set by the disk: the request was counted as a stall */
    /* set by the disk: the request hung while the device answered later requests, and is no longer waited for */
    bool is_written_off;
    bool is_write;
    bool is_synced; /* a write: when done is called, the bytes survive a loss of power */
    kvp_err_t err; /* the result of the request: OK or SYS */
} kvp_tier_io_t;

/* submit begins a request, and never calls done. wait calls done for ended requests, and returns once at least one
 * has ended or none is under way. */
typedef struct {
    void (*submit)(void *disk, kvp_tier_io_t *io);
    void (*wait)(void *disk);
} kvp_tier_disk_ops_t;

/* kvp_tier_alloc_blocks returns memory of n blocks, aligned for a device; the caller frees it with free(). */
static inline uint8_t *
kvp_tier_alloc_blocks(size_t n)
{
    return (uint8_t *)aligned_alloc(KVP_TIER_BLOCK, n * KVP_TIER_BLOCK);
}

#endif
