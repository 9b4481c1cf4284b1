/* SPDX-License-Identifier: Apache-2.0
 * A file of the places that joins have learnt: which hash stands at which block. Engines send a
 * place once, and a pool keeps blocks longer than a conductor lives. The file is written by the
 * disk's thread, without fsync, and is rewritten when it has grown. No function but
 * kvp_joinlog_open waits for the disk. */
#ifndef KVP_CONDUCTOR_POOL_JOINLOG_H
#define KVP_CONDUCTOR_POOL_JOINLOG_H

#include "conductor/base/disk.h"
#include "conductor/index/spaces.h"

typedef struct kvp_joinlog kvp_joinlog_t;

typedef struct {
    const char *backend, *prefix;
    uint32_t ranks, space; /* number of the join's own */
} kvp_joinlog_join_t;

typedef struct {
    uint64_t key, hash; /* the join's own, and the standard's */
    uint32_t space, depth; /* of the block */
    uint32_t groups; /* bits of the groups that count at the join */
    uint32_t reserved; /* 0 */
} kvp_joinlog_place_t;

/* Called from kvp_disk_reap and kvp_disk_finish. Texts are borrowed. */
typedef struct {
    void (*begin)(void *arg); /* a load of all places of the file begins */
    void (*load)(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place); /* in the file's order */
    void (*end)(void *arg, bool is_whole); /* false: an error ended it; it begins again later */
    bool (*keep)(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place); /* in a rewrite */
    void *arg;
} kvp_joinlog_ops_t;

/* kvp_joinlog_open opens DIR/joins; a damaged file is cut at the damage. Waits for the disk. NULL:
 * the file cannot be written, or the disk does not answer; logged. disk and spaces are borrowed. */
kvp_joinlog_t *kvp_joinlog_open(kvp_disk_t *disk, const char *dir, kvp_spaces_t *spaces, const kvp_joinlog_ops_t *ops);
/* kvp_joinlog_add adds a place. After an error of the disk places are dropped until a rewrite has
 * succeeded. kvp_joinlog_load asks for a load. */
void kvp_joinlog_add(kvp_joinlog_t *log, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place);
void kvp_joinlog_load(kvp_joinlog_t *log);
/* kvp_joinlog_flush, every 100 ms: hands over to the disk's thread what was added, and begins loads and rewrites. */
void kvp_joinlog_flush(kvp_joinlog_t *log);
/* kvp_joinlog_is_crowded, for keep: places of joins that no registration names are to be dropped. */
bool kvp_joinlog_is_crowded(const kvp_joinlog_t *log);
void kvp_joinlog_close(kvp_joinlog_t *log); /* NULL is legal; the memory of a log whose job is under way stays */

#endif
