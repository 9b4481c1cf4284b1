/* SPDX-License-Identifier: Apache-2.0
 * What one publisher holds, as its events tell it: each of its blocks by the engine's own hash, counted, since an engine stores one hash as often as
 * it has copies of it. And at which place of which prompt a hash stands; that is known on when the block is gone. The writer's alone, but for
 * the holders, which readers look up.
 *
 * A slot is a medium and a group of the engine's cache, or the backend of a standard event ("" media are the caller's to name). Blocks of two slots are counted apart; a medium holds a block while one
 * of its slots does.
 */
#ifndef KVP_CONDUCTOR_INDEX_VIEW_H
#define KVP_CONDUCTOR_INDEX_VIEW_H

#include "conductor/index/index.h"

#define KVP_MEDIA_MAX 8u /* of a publisher; those that hold nothing make room */
#define KVP_SLOTS_MAX 32u
#define KVP_MEDIUM_NAME_MAX 64u
#define KVP_GROUP_BACKENDS                                                                                             \
    0x80000000u /* groups from here on are backends: what they hold can be cleared by namespace */
#define KVP_NO_HOLDER KVP_HOLDERS_MAX
#define KVP_POOLS_MAX 4u /* that a publisher shares with others */

typedef struct {
    char name[KVP_MEDIUM_NAME_MAX + 1]; /* in upper case */
    _Atomic uint32_t holder; /* KVP_NO_HOLDER = it holds nothing */
} kvp_medium_t;

typedef struct kvp_view kvp_view_t;

/* Where a block stands. */
typedef enum {
    KVP_PLACE_UNKNOWN, /* its parent was never told */
    KVP_PLACE_OUTSIDE, /* it is in no prompt of tokens alone: images stand before it */
    KVP_PLACE_BLOCK,
} kvp_place_kind_t;

typedef struct {
    uint64_t resident, known; /* entries that hold, and those that say no more than a place */
    uint64_t unknown, full; /* removals of what is not held; blocks for which there was no room */
    uint64_t bytes;
    bool
        is_damaged; /* kvp_index_rele found a contradiction: what the view holds cannot be relied on until kvp_view_repair */
} kvp_view_stats_t;

/* ix is borrowed; known_max: places that are kept of what is not held. NULL = no memory. */
kvp_view_t *kvp_view_create(kvp_index_t *ix, uint64_t seed, uint32_t known_max);
/* kvp_view_end gives all up, at once for readers: from then on kvp_view_sweep frees places, too. kvp_view_destroy frees what is left; readers that have media of it
 * have left. */
void kvp_view_end(kvp_view_t *v);
void kvp_view_destroy(kvp_view_t *v);

/* kvp_view_slot: the slot of that medium (in upper case, cut to KVP_MEDIUM_NAME_MAX, what is no letter, digit or one of _-. replaced by _) and group; KVP_SLOTS_MAX = there are too many. */
uint32_t kvp_view_slot(kvp_view_t *v, const char *medium, size_t len, uint32_t group);
/* kvp_view_find_slot: KVP_SLOTS_MAX = nothing was ever stored in it. */
uint32_t kvp_view_find_slot(const kvp_view_t *v, const char *medium, size_t len, uint32_t group);

/* kvp_view_place: where the block of that hash stands; block_out for KVP_PLACE_BLOCK. */
kvp_place_kind_t kvp_view_place(const kvp_view_t *v, uint64_t hash, uint32_t *block_out);

/* kvp_view_place_in is the same for hashes of that group alone; 0 = of any. */
kvp_place_kind_t kvp_view_place_in(const kvp_view_t *v, uint64_t hash, uint32_t group, uint32_t *block_out);

/* kvp_view_store: a copy more of the block with that hash, which stands at that block (KVP_BLOCK_NONE = outside). kvp_view_remove: one less; false: it was not held.
 * is_counted false: of a publisher that tells sets, not copies. The caller's use of the block (kvp_index_use) becomes the view's. */
void kvp_view_store(kvp_view_t *v, uint32_t slot, uint64_t hash, uint32_t block, bool is_counted);
bool kvp_view_remove(kvp_view_t *v, uint32_t slot, uint64_t hash);

/* kvp_view_learn: that hash stands at that block, whose use becomes the view's; nothing is held by that. kvp_view_unlearn: it is not known where it stands; the hash is not held. */
void kvp_view_learn(kvp_view_t *v, uint32_t slot, uint64_t hash, uint32_t block);
void kvp_view_unlearn(kvp_view_t *v, uint64_t hash);

/* kvp_view_forget forgets all places of what is not held. */
void kvp_view_forget(kvp_view_t *v);

/* kvp_view_clear: the medium holds nothing any more, at once (NULL = no medium does); places stay known. kvp_view_sweep frees what that left, so many entries at most: true = there is more. */
void kvp_view_clear(kvp_view_t *v, const char *medium);
/* kvp_view_clear_space: the slot, which is a backend's, holds nothing of that namespace any more. False: it held nothing. */
bool kvp_view_clear_space(kvp_view_t *v, uint32_t slot, uint32_t space);
/* kvp_view_repair: the view holds nothing and knows no places any more, and is not damaged. */
void kvp_view_repair(kvp_view_t *v);
bool kvp_view_sweep(kvp_view_t *v, uint32_t most);

/* kvp_view_medium, of readers inside an epoch: medium i of KVP_MEDIA_MAX, borrowed until the end of the epoch; NULL = there is none. */
const kvp_medium_t *kvp_view_medium(const kvp_view_t *v, uint32_t i);
void kvp_view_stats(const kvp_view_t *v, kvp_view_stats_t *stats_out);

#endif
