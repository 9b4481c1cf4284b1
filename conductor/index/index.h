/* SPDX-License-Identifier: Apache-2.0
 * An index from blocks to their holders. A block is a place in a prompt: the rolling hash of all tokens up to its
 * end, in a namespace (model, block size, salt, tenant, LoRA). One thread writes. Readers are inside an epoch,
 * take no lock, and see each block either before or after a change. */
#ifndef KVP_CONDUCTOR_INDEX_INDEX_H
#define KVP_CONDUCTOR_INDEX_INDEX_H

#include "conductor/index/sets.h"
#include "conductor/index/spaces.h"

#define KVP_BLOCK_NONE 0u
#define KVP_HOLDERS_MAX 65536u
#define KVP_DEPTH_UNKNOWN UINT32_MAX
#define KVP_LOOK_AHEAD 16u /* limit of the number of blocks in one look-up */

typedef struct kvp_index kvp_index_t;

/* kvp_index_create makes an index for at most blocks_max blocks. epoch and spaces are borrowed; each block holds a
 * reference to its namespace. NULL = no memory. */
kvp_index_t *kvp_index_create(kvp_epoch_t *epoch, kvp_spaces_t *spaces, uint64_t seed, uint32_t blocks_max);
void kvp_index_destroy(kvp_index_t *ix);

/* ---- functions for the writer */
/* kvp_index_free_later takes ownership of memory, and frees it when no reader can see it any more. */
void kvp_index_free_later(kvp_index_t *ix, void *memory);
/* kvp_index_holder returns the number of a new holder; KVP_HOLDERS_MAX = too many holders. kvp_index_holder_end marks a
 * holder that no kvp_medium_t has any more: kvp_index_purge removes it from sets. kvp_index_holder_free makes its
 * number free for reuse; no set may contain the number then. */
uint32_t kvp_index_holder(kvp_index_t *ix);
void kvp_index_holder_end(kvp_index_t *ix, uint32_t holder);
void kvp_index_holder_free(kvp_index_t *ix, uint32_t holder);

/* kvp_index_use finds or creates a block and takes a reference to it. KVP_BLOCK_NONE = the index is full. The
 * number stays valid until kvp_index_rele has released all references. */
uint32_t kvp_index_use(kvp_index_t *ix, uint32_t space, uint64_t hash, uint32_t depth);
/* kvp_index_use_behind is kvp_index_use for a block of unknown depth, after the block with the hash `parent`. Its depth
 * is set when the depth of the parent is known. Until then look-ups find the block by its hash alone. */
uint32_t kvp_index_use_behind(kvp_index_t *ix, uint32_t space, uint64_t hash, uint64_t parent);
/* kvp_index_rele releases one reference. It returns false if the block's state contradicts its references, which
 * is a bug of this program. The block is then left out of all answers, its number is never reused, and the
 * caller's view is not reliable. */
bool kvp_index_rele(kvp_index_t *ix, uint32_t block) KVP_MUST_USE;
/* kvp_index_add adds a holder to the block; false = the block already had this holder. */
bool kvp_index_add(kvp_index_t *ix, uint32_t block, uint32_t holder);
void kvp_index_remove(kvp_index_t *ix, uint32_t block, uint32_t holder);
void kvp_index_purge(kvp_index_t *ix, uint32_t block); /* removes ended holders from the block's set */
/* The hash and the namespace of a referenced block never change. Its depth changes only if it was unknown. */
uint64_t kvp_index_hash(const kvp_index_t *ix, uint32_t block);
uint32_t kvp_index_space(const kvp_index_t *ix, uint32_t block);
/* returns the number of blocks before this block in the prompt, or KVP_DEPTH_UNKNOWN */
uint32_t kvp_index_depth(const kvp_index_t *ix, uint32_t block);

/* ---- functions for readers */
/* kvp_index_find writes the number of the holder set of each of n blocks (at most KVP_LOOK_AHEAD) to sets_out. The
 * first block has the given depth, and the others follow it. A block of another depth does not match; a block of
 * unknown depth may match. */
void kvp_index_find(const kvp_index_t *ix, uint32_t space, uint32_t depth, const uint64_t *hashes, size_t n,
                    uint32_t *sets_out);
const kvp_sets_t *kvp_index_sets(const kvp_index_t *ix);

typedef struct {
    uint64_t blocks, bytes;
    uint64_t left_out; /* number of blocks that kvp_index_rele left out of all answers */
} kvp_index_stats_t;
/* reads the figures of the index; only for the writer's thread */
void kvp_index_stats(const kvp_index_t *ix, kvp_index_stats_t *stats_out);

#endif
