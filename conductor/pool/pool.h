/* SPDX-License-Identifier: Apache-2.0
 * The contents of a pool that several engines share, matched with prompts. The pool's events name objects by their
 * keys; engines' events give the position of each hash in a prompt. A *join* combines both: the objects that engines
 * of one kind store under one prefix of keys. ADR 0033.
 *
 * One thread writes; readers use the view of a join, inside an epoch. A *source* is a publisher of pool events. A
 * *backend* is the pool's name in its events (`backend_id`), and has one source at a time. */
#ifndef KVP_CONDUCTOR_POOL_POOL_H
#define KVP_CONDUCTOR_POOL_POOL_H

#include "common/jsonw.h"
#include "conductor/base/event.h"
#include "conductor/base/disk.h"
#include "conductor/index/spaces.h"
#include "conductor/index/view.h"

#define KVP_JOIN_RANKS_MAX 64u
/* longest prefix of keys, in bytes; half of that for the name of a backend or tenant */
#define KVP_JOIN_TEXT_MAX 511u
#define KVP_JOINS_MAX 1024u
#define KVP_UNWANTED_MAX 4u

typedef struct kvp_pools kvp_pools_t;
typedef struct kvp_join kvp_join_t;

/* The state of a source; all zero at first. */
typedef struct {
    bool has_begun; /* a flag: an event of the source was applied since its last kvp_pools_drop */
    /* counts of events; ignored: backend or key without a join, or backend of another source or of none */
    uint64_t events, stored, removed, cleared, digests, ignored;
    uint64_t drifts; /* number of digests that differed from the known contents */
    uint64_t skips[KVP_SKIPS_N];
    char unwanted[KVP_UNWANTED_MAX][KVP_JOIN_TEXT_MAX + 1]; /* prefixes of received keys that no join has */
    uint32_t unwanted_n;
} kvp_pool_source_t;

/* kvp_pools_create makes an empty set of joins. wanted(arg, source, is_drift) is called when all events of the
 * source are needed again, because of a new join, or because the known contents differ from the source's
 * (is_drift); source NULL = of every source. It is called from within other calls, so only note the wish and carry
 * it out later. ix and spaces are borrowed. parts_max: most blocks of a join on one medium. NULL = no memory. */
kvp_pools_t *kvp_pools_create(kvp_index_t *ix, kvp_spaces_t *spaces,
                              void (*wanted)(void *arg, const kvp_pool_source_t *source, bool is_drift), void *arg,
                              uint32_t parts_max);
void kvp_pools_destroy(kvp_pools_t *pools); /* frees everything; no reader may be left */

/* kvp_pools_join finds or creates the join of a registration's backend, and takes a reference; NULL = too many
 * joins. ranks: parts of a block, 1 to KVP_JOIN_RANKS_MAX. space is the namespace of the engine's blocks, unless
 * its events state another one. kvp_join_leave releases the reference, after the last reader. kvp_pools_sweep then
 * sweeps at most `most` entries of each join's view (kvp_view_sweep), and frees released joins and repairs views. */
kvp_join_t *kvp_pools_join(kvp_pools_t *pools, const char *backend, const char *prefix, uint32_t ranks,
                           const kvp_namespace_t *space);
void kvp_join_leave(kvp_join_t *join);
void kvp_pools_sweep(kvp_pools_t *pools, uint32_t most);

/* kvp_join_learn records that the hash, in the given cache group, is at the block, as an engine's event reports.
 * is_sure false: an earlier position of the hash is kept. */
void kvp_join_learn(kvp_join_t *join, uint64_t hash, uint32_t group, uint32_t block, bool is_sure);
const kvp_view_t *kvp_join_view(const kvp_join_t *join);
uint64_t kvp_join_unjoined(const kvp_join_t *join); /* number of blocks with all parts whose position is unknown */
void kvp_join_write(const kvp_join_t *join, kvp_jsonw_t *w); /* writes the state of a join as fields of a JSON object */

/* kvp_pools_take handles one event of a source. kvp_pools_drop drops everything that the source has reported; the
 * source then begins again. */
void kvp_pools_take(kvp_pools_t *pools, kvp_pool_source_t *source, const kvp_event_t *event);
void kvp_pools_drop(kvp_pools_t *pools, kvp_pool_source_t *source);

/* kvp_pools_open must be called before there are joins. From then on the positions that joins learn are saved in a
 * file in dir, and a new join gets the positions in the file once kvp_pools_flush and the disk have run. disk is
 * borrowed. False: the file cannot be written; logged. kvp_pools_flush passes new positions to the disk; call it
 * every 100 ms. kvp_pools_forget forgets the positions of hashes that the pool does not hold. */
bool kvp_pools_open(kvp_pools_t *pools, kvp_disk_t *disk, const char *dir) KVP_MUST_USE;
void kvp_pools_flush(kvp_pools_t *pools);
void kvp_pools_forget(kvp_pools_t *pools);

#endif
