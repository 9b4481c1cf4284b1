/* SPDX-License-Identifier: Apache-2.0
 * The blocks of one publisher, by its events: each of its blocks by the engine's own hash, counted,
 * since an engine stores one hash as often as it has copies of it. Also the place of a hash in a
 * prompt, which stays known after the block is removed. For the writer only, except the holders,
 * which readers look up.
 *
 * A slot is a medium and a group of the engine's cache, or the backend of a standard event (the
 * caller names "" media). Blocks of two slots are counted separately; a medium holds a block while
 * one of its slots does. */
#ifndef KVP_CONDUCTOR_INDEX_VIEW_H
#define KVP_CONDUCTOR_INDEX_VIEW_H

#include "conductor/index/index.h"

#define KVP_MEDIA_MAX 8u /* of a publisher; empty ones make room */
#define KVP_SLOTS_MAX 32u
#define KVP_MEDIUM_NAME_MAX 64u
#define KVP_GROUP_BACKENDS                                                                                             \
    0x80000000u /* groups from here on are backends: what they hold can be cleared by namespace */
#define KVP_NO_HOLDER KVP_HOLDERS_MAX
#define KVP_POOLS_MAX 4u /* shared by a publisher with others */

typedef struct {
    char name[KVP_MEDIUM_NAME_MAX + 1]; /* in upper case */
    _Atomic uint32_t holder; /* KVP_NO_HOLDER = it is empty */
} kvp_medium_t;

typedef struct kvp_view kvp_view_t;

/* Where a block stands. */
typedef enum {
    KVP_PLACE_UNKNOWN, /* no event named its parent */
    KVP_PLACE_OUTSIDE, /* in no prompt of tokens alone: images come before it */
    KVP_PLACE_BLOCK,
} kvp_place_kind_t;

typedef struct {
    uint64_t resident, known; /* entries that hold blocks, and entries with a place only */
    uint64_t unknown, full; /* removals of blocks that were not held; blocks without room */
    uint64_t bytes;
    bool
        /* kvp_index_rele found a contradiction: what the view holds cannot be relied on until
         * kvp_view_repair */
        is_damaged;
} kvp_view_stats_t;

/* ix is borrowed; known_max: kept places of blocks that are not held. NULL = no memory. */
kvp_view_t *kvp_view_create(kvp_index_t *ix, uint64_t seed, uint32_t known_max);
/* kvp_view_end gives all up, at once for readers: from then on kvp_view_sweep frees places, too.
 * kvp_view_destroy frees what is left; readers that have media of it have left. */
void kvp_view_end(kvp_view_t *v);
void kvp_view_destroy(kvp_view_t *v);

/* kvp_view_slot returns the slot of the medium and group; KVP_SLOTS_MAX = too many. The medium's
 * name is converted to upper case and cut to KVP_MEDIUM_NAME_MAX; other characters than letters,
 * digits and _-. become _. */
uint32_t kvp_view_slot(kvp_view_t *v, const char *medium, size_t len, uint32_t group);
/* kvp_view_find_slot: KVP_SLOTS_MAX = nothing was ever stored in it. */
uint32_t kvp_view_find_slot(const kvp_view_t *v, const char *medium, size_t len, uint32_t group);

/* kvp_view_place: where the block of that hash stands; block_out for KVP_PLACE_BLOCK. */
kvp_place_kind_t kvp_view_place(const kvp_view_t *v, uint64_t hash, uint32_t *block_out);

/* kvp_view_place_in is the same for hashes of that group alone; 0 = of any. */
kvp_place_kind_t kvp_view_place_in(const kvp_view_t *v, uint64_t hash, uint32_t group, uint32_t *block_out);

/* kvp_view_store: one more copy of the block with the hash, at the block (KVP_BLOCK_NONE =
 * outside). kvp_view_remove: one less; false: it was not held. is_counted false: the publisher
 * reports sets, not copies. The caller's use of the block (kvp_index_use) becomes the view's. */
void kvp_view_store(kvp_view_t *v, uint32_t slot, uint64_t hash, uint32_t block, bool is_counted);
bool kvp_view_remove(kvp_view_t *v, uint32_t slot, uint64_t hash);

/* kvp_view_learn: the hash is at the block, whose use becomes the view's; no block is held by that.
 * kvp_view_unlearn: the place of the hash is unknown; the hash is not held. */
void kvp_view_learn(kvp_view_t *v, uint32_t slot, uint64_t hash, uint32_t block);
void kvp_view_unlearn(kvp_view_t *v, uint64_t hash);

/* kvp_view_forget forgets all places of what is not held. */
void kvp_view_forget(kvp_view_t *v);

/* kvp_view_clear: the medium holds nothing any more, at once (NULL = no medium does); places stay
 * known. kvp_view_sweep frees what that left, so many entries at most: true = there is more. */
void kvp_view_clear(kvp_view_t *v, const char *medium);
/* kvp_view_clear_space: the slot, a backend's, holds no block of the namespace any more. False: it
 * held none. */
bool kvp_view_clear_space(kvp_view_t *v, uint32_t slot, uint32_t space);
/* kvp_view_repair: the view holds nothing and knows no places any more, and is not damaged. */
void kvp_view_repair(kvp_view_t *v);
bool kvp_view_sweep(kvp_view_t *v, uint32_t most);

/* kvp_view_medium, for readers inside an epoch: medium i of KVP_MEDIA_MAX, borrowed until the end
 * of the epoch; NULL = none. */
const kvp_medium_t *kvp_view_medium(const kvp_view_t *v, uint32_t i);
void kvp_view_stats(const kvp_view_t *v, kvp_view_stats_t *stats_out);

#endif
