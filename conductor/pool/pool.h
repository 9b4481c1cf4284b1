/* SPDX-License-Identifier: Apache-2.0
 * The contents of a pool of blocks that several engines share, matched with prompts. The pool's
 * events name objects by their keys; engines' events give the place of each hash in a prompt. A
 * *join* is where both meet: the objects that engines of one kind store under one prefix of keys.
 * ADR 0033.
 *
 * One thread writes; readers use the view of a join, inside an epoch. A *source* is a publisher of
 * pool events: a backend has one at a time. */
#ifndef KVP_CONDUCTOR_POOL_POOL_H
#define KVP_CONDUCTOR_POOL_POOL_H

#include "common/jsonw.h"
#include "conductor/base/event.h"
#include "conductor/base/disk.h"
#include "conductor/index/spaces.h"
#include "conductor/index/view.h"

#define KVP_JOIN_RANKS_MAX 64u
#define KVP_JOIN_TEXT_MAX 511u /* bytes of a prefix of keys; of a backend or tenant: half of that */
#define KVP_JOINS_MAX 1024u
#define KVP_UNWANTED_MAX 4u

typedef struct kvp_pools kvp_pools_t;
typedef struct kvp_join kvp_join_t;

/* Of a publisher; zero at first. */
typedef struct {
    bool has_begun; /* an event was applied since the last drop */
    uint64_t events, stored, removed, cleared, digests, ignored; /* ignored: of backends or keys that no join wants */
    uint64_t drifts; /* digests that differed from the known contents */
    uint64_t skips[KVP_SKIPS_N];
    char unwanted[KVP_UNWANTED_MAX][KVP_JOIN_TEXT_MAX + 1]; /* prefixes of keys without a join */
    uint32_t unwanted_n;
} kvp_pool_source_t;

/* wanted(arg, source, is_drift): the source's events are wanted from the beginning, for a new join,
 * or because the known contents have drifted; NULL = every source's. Called from within other
 * calls: carry it out later. ix and spaces are borrowed; parts_max: blocks that a join may know.
 * NULL = no memory. */
kvp_pools_t *kvp_pools_create(kvp_index_t *ix, kvp_spaces_t *spaces,
                              void (*wanted)(void *arg, const kvp_pool_source_t *source, bool is_drift), void *arg,
                              uint32_t parts_max);
void kvp_pools_destroy(kvp_pools_t *pools); /* without readers */

/* kvp_pools_join finds or makes the join of a registration's backend, and takes a reference; NULL =
 * too many. ranks: parts of a block, 1 to KVP_JOIN_RANKS_MAX. space is the namespace of the engine's
 * blocks, unless its events state another one. kvp_join_leave releases the join, after the last
 * reader; kvp_pools_sweep then frees its remains, and cleared parts, at most that many entries. */
kvp_join_t *kvp_pools_join(kvp_pools_t *pools, const char *backend, const char *prefix, uint32_t ranks,
                           const kvp_namespace_t *space);
void kvp_join_leave(kvp_join_t *join);
void kvp_pools_sweep(kvp_pools_t *pools, uint32_t most);

/* kvp_join_learn: by an engine's event its hash in the group of its cache is at the block. is_sure
 * false: earlier knowledge has precedence. */
void kvp_join_learn(kvp_join_t *join, uint64_t hash, uint32_t group, uint32_t block, bool is_sure);
const kvp_view_t *kvp_join_view(const kvp_join_t *join);
uint64_t kvp_join_unjoined(const kvp_join_t *join); /* present blocks without a known place */
void kvp_join_write(const kvp_join_t *join, kvp_jsonw_t *w); /* fields of an object */

/* kvp_pools_take handles one event of a source; kvp_pools_drop: none of its events is valid any
 * more, until it begins again. */
void kvp_pools_take(kvp_pools_t *pools, kvp_pool_source_t *source, const kvp_event_t *event);
void kvp_pools_drop(kvp_pools_t *pools, kvp_pool_source_t *source);

/* kvp_pools_open, before there are joins: keeps in a file in dir what joins learn, and gives a new
 * join the places that the file has, once kvp_pools_flush and the disk have run. disk is borrowed.
 * False: the file cannot be written; logged. kvp_pools_flush, every 100 ms, hands over to the disk
 * what was learnt. kvp_pools_forget forgets where hashes stand that the pool does not hold. */
bool kvp_pools_open(kvp_pools_t *pools, kvp_disk_t *disk, const char *dir) KVP_MUST_USE;
void kvp_pools_flush(kvp_pools_t *pools);
void kvp_pools_forget(kvp_pools_t *pools);

#endif
