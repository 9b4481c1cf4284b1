/* SPDX-License-Identifier: Apache-2.0
 * The holders of each block. A block is a place in a prompt: the rolling hash of all tokens up to
 * its end, in a namespace (model, block size, salt, tenant, LoRA). One thread writes; readers are
 * inside an epoch, take no lock, and see each block either before or after a change. */
#ifndef KVP_CONDUCTOR_INDEX_INDEX_H
#define KVP_CONDUCTOR_INDEX_INDEX_H

#include "conductor/index/sets.h"
#include "conductor/index/spaces.h"

#define KVP_BLOCK_NONE 0u
#define KVP_HOLDERS_MAX 65536u
#define KVP_DEPTH_UNKNOWN UINT32_MAX
#define KVP_LOOK_AHEAD 16u /* blocks of one combined look-up */

typedef struct kvp_index kvp_index_t;

/* epoch and spaces are borrowed; each block holds its namespace. blocks_max: no more are made. NULL = no memory. */
kvp_index_t *kvp_index_create(kvp_epoch_t *epoch, kvp_spaces_t *spaces, uint64_t seed, uint32_t blocks_max);
void kvp_index_destroy(kvp_index_t *ix);

/* ---- the writer's */
/* kvp_index_free_later takes memory and frees it when no reader can see it any more. */
void kvp_index_free_later(kvp_index_t *ix, void *memory);
/* kvp_index_holder assigns the number of a new holder; KVP_HOLDERS_MAX = too many.
 * kvp_index_holder_end: readers skip it from now on (kvp_medium_t); its number is reused after
 * kvp_index_holder_free, when no set has it. */
uint32_t kvp_index_holder(kvp_index_t *ix);
void kvp_index_holder_end(kvp_index_t *ix, uint32_t holder);
void kvp_index_holder_free(kvp_index_t *ix, uint32_t holder);

/* kvp_index_use finds or makes the block: KVP_BLOCK_NONE = too many. Its number stays valid until
 * the same number of kvp_index_rele. */
uint32_t kvp_index_use(kvp_index_t *ix, uint32_t space, uint64_t hash, uint32_t depth);
/* kvp_index_use_behind: the same, for a block of which no more is known than the hash that stands
 * before it. Its depth is unknown until that of its parent is known; it matches by its hash
 * meanwhile. */
uint32_t kvp_index_use_behind(kvp_index_t *ix, uint32_t space, uint64_t hash, uint64_t parent);
/* kvp_index_rele releases one use. False: the block's state contradicts its users, which is our own
 * bug. The block is then left out of all answers, and its number is never reused; the caller's view
 * is not reliable. */
bool kvp_index_rele(kvp_index_t *ix, uint32_t block) KVP_MUST_USE;
/* kvp_index_add: false: the holder had the block already. */
bool kvp_index_add(kvp_index_t *ix, uint32_t block, uint32_t holder);
void kvp_index_remove(kvp_index_t *ix, uint32_t block, uint32_t holder);
void kvp_index_purge(kvp_index_t *ix, uint32_t block); /* removes ended holders from it */
/* A used block's identity is constant, except an unknown depth. */
uint64_t kvp_index_hash(const kvp_index_t *ix, uint32_t block);
uint32_t kvp_index_space(const kvp_index_t *ix, uint32_t block);
uint32_t kvp_index_depth(const kvp_index_t *ix,
                         uint32_t block); /* how many blocks stand before it, or KVP_DEPTH_UNKNOWN */

/* ---- readers' */
/* kvp_index_find writes the set of each of n blocks, at most KVP_LOOK_AHEAD, to sets_out. The first
 * has the given depth, and the others follow it: a block of another depth does not match; one of
 * unknown depth may. */
void kvp_index_find(const kvp_index_t *ix, uint32_t space, uint32_t depth, const uint64_t *hashes, size_t n,
                    uint32_t *sets_out);
const kvp_sets_t *kvp_index_sets(const kvp_index_t *ix);

typedef struct {
    uint64_t blocks, bytes;
    uint64_t left_out; /* blocks, by kvp_index_rele */
} kvp_index_stats_t;
void kvp_index_stats(const kvp_index_t *ix, kvp_index_stats_t *stats_out); /* the writer's */

#endif
