/* SPDX-License-Identifier: Apache-2.0
 * A file of the positions that joins (pool.h) have learnt: which hash in a pool's keys is at which block. Engines
 * report a position only once, and a pool keeps blocks for longer than a conductor process lives. The disk's thread
 * writes the file, without fsync, and rewrites it when it has grown. Only kvp_joinlog_open waits for the disk. */
#ifndef KVP_CONDUCTOR_POOL_JOINLOG_H
#define KVP_CONDUCTOR_POOL_JOINLOG_H

#include "conductor/base/disk.h"
#include "conductor/index/spaces.h"

typedef struct kvp_joinlog kvp_joinlog_t;

typedef struct {
    const char *backend, *prefix;
    uint32_t ranks, space; /* number of parts of a block, one for each rank; number of the join's namespace */
} kvp_joinlog_join_t;

typedef struct {
    uint64_t key, hash; /* the block's hash in the pool's object keys, and its standard hash */
    uint32_t space, depth; /* namespace and depth of the position's block */
    uint32_t groups; /* a bit for each cache group that the join indexes */
    uint32_t reserved; /* unused; always 0 */
} kvp_joinlog_place_t;

/* Callbacks of kvp_joinlog_t, called from kvp_disk_reap and kvp_disk_finish. Texts are borrowed. */
typedef struct {
    void (*begin)(void *arg); /* callback at the beginning of a load of all positions in the file */
    /* callback of a load: passes one position, in the order of the file */
    void (*load)(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place);
    /* callback at the end of a load; is_whole false: an error ended the load, and it will be repeated */
    void (*end)(void *arg, bool is_whole);
    /* callback of a rewrite: returns whether the new file gets the position, too */
    bool (*keep)(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place);
    void *arg;
} kvp_joinlog_ops_t;

/* kvp_joinlog_open rewrites DIR/joins, and waits for the disk. The file is cut at its first malformed record. NULL: the
 * file cannot be written, or the disk does not answer; logged. disk and spaces are borrowed. */
kvp_joinlog_t *kvp_joinlog_open(kvp_disk_t *disk, const char *dir, kvp_spaces_t *spaces, const kvp_joinlog_ops_t *ops);
/* kvp_joinlog_add adds a position. After an error of the disk, positions are dropped until a rewrite has
 * succeeded. kvp_joinlog_load requests a load. */
void kvp_joinlog_add(kvp_joinlog_t *log, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place);
void kvp_joinlog_load(kvp_joinlog_t *log);
/* kvp_joinlog_flush passes the added positions to the disk's thread, and begins loads and rewrites; call it every
 * 100 ms. */
void kvp_joinlog_flush(kvp_joinlog_t *log);
/* kvp_joinlog_is_crowded returns true if the file has the maximum of joins: the callback `keep` shall drop the
 * positions of joins without a registration. */
bool kvp_joinlog_is_crowded(const kvp_joinlog_t *log);
void kvp_joinlog_close(kvp_joinlog_t *log); /* frees log; while a job is in progress, it does nothing; NULL is legal */

#endif
