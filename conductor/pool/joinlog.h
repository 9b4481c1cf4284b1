/* SPDX-License-Identifier: Apache-2.0
 * A file of what joins have learnt: which hash stands at which block. Engines tell that once, and a pool keeps blocks longer than a conductor lives. It is written as it comes,
 * never synced, and written anew when it has grown.
 */
#ifndef KVP_CONDUCTOR_POOL_JOINLOG_H
#define KVP_CONDUCTOR_POOL_JOINLOG_H

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

typedef void (*kvp_joinlog_fn)(void *arg, const kvp_joinlog_join_t *join,
                               const kvp_joinlog_place_t *place); /* texts are borrowed */
typedef bool (*kvp_joinlog_keep_fn)(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place);

/* kvp_joinlog_open opens DIR/joins; a file that is damaged is cut there. NULL: it cannot be written; logged. kvp_joinlog_each calls fn for each place of it. kvp_joinlog_add adds one. kvp_joinlog_flush: what was added outlives this process; now
 * and then it writes the file anew with what keep says, when it has grown to several times what it had. */
kvp_joinlog_t *kvp_joinlog_open(const char *dir, kvp_spaces_t *spaces);
void kvp_joinlog_each(kvp_joinlog_t *log, kvp_joinlog_fn fn, void *arg);
void kvp_joinlog_add(kvp_joinlog_t *log, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place);
void kvp_joinlog_flush(kvp_joinlog_t *log, kvp_joinlog_keep_fn keep, void *arg);
/* kvp_joinlog_is_crowded, for keep: places of joins that no registration names any more are not to be kept. */
bool kvp_joinlog_is_crowded(const kvp_joinlog_t *log);
void kvp_joinlog_close(kvp_joinlog_t *log); /* NULL is legal */

#endif
