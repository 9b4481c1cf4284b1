/* SPDX-License-Identifier: Apache-2.0
 * A view: the blocks of one publisher, built from its events. The view counts the copies of each block by the engine's
 * own hash, since an engine may store a hash several times. The view also knows the position of a hash in a prompt,
 * even after the block is removed. Only the writer uses a view, except for the holders, which readers look up.
 *
 * A slot is a medium and a group: a group of the engine's cache, or the backend of a standard event. Copies in two
 * slots are counted separately. A medium holds a block while one of its slots holds a copy. */
#ifndef KVP_CONDUCTOR_INDEX_VIEW_H
#define KVP_CONDUCTOR_INDEX_VIEW_H

#include "conductor/index/index.h"

#define KVP_MEDIA_MAX 8u /* limit of the media of a publisher; empty media are replaced */
#define KVP_SLOTS_MAX 32u
#define KVP_MEDIUM_NAME_MAX 64u
/* the first group number that means a backend; the blocks of a backend can be cleared by namespace */
#define KVP_GROUP_BACKENDS 0x80000000u
#define KVP_NO_HOLDER KVP_HOLDERS_MAX
#define KVP_POOLS_MAX 4u /* limit of the shared pools that a publisher uses */

typedef struct {
    char name[KVP_MEDIUM_NAME_MAX + 1]; /* name of the medium, in upper case */
    _Atomic uint32_t holder; /* the medium's holder; KVP_NO_HOLDER = no block was stored since the last clear */
} kvp_medium_t;

typedef struct kvp_view kvp_view_t;

/* Whether and where a hash stands in a prompt. */
typedef enum {
    KVP_PLACE_UNKNOWN, /* no event gave the hash's position in a prompt */
    KVP_PLACE_OUTSIDE, /* the block is outside the index: its prefix contains more than tokens, such as an image */
    KVP_PLACE_BLOCK,
} kvp_place_kind_t;

typedef struct {
    uint64_t resident, known; /* number of entries that hold blocks; number of entries that only know a position */
    uint64_t unknown, full; /* counters: removals of blocks that were not held; blocks that could not get a holder */
    uint64_t bytes;
    bool is_damaged; /* a flag: kvp_index_rele found a contradiction, so the view is unreliable until kvp_view_repair */
} kvp_view_stats_t;

/* kvp_view_create makes a view. ix is borrowed. known_max is the limit of remembered positions of blocks that are
 * not held. NULL = no memory. */
kvp_view_t *kvp_view_create(kvp_index_t *ix, uint64_t seed, uint32_t known_max);
/* kvp_view_end removes all blocks, at once for readers; from then on kvp_view_sweep also forgets positions.
 * kvp_view_destroy frees the view, when no reader has one of its media any more. */
void kvp_view_end(kvp_view_t *v);
void kvp_view_destroy(kvp_view_t *v);

/* kvp_view_slot returns the slot of the medium and group, and creates the slot if necessary; KVP_SLOTS_MAX = too
 * many slots. The medium's name is converted to upper case and cut to KVP_MEDIUM_NAME_MAX; characters other than
 * letters, digits and _-. become _. */
uint32_t kvp_view_slot(kvp_view_t *v, const char *medium, size_t len, uint32_t group);
/* kvp_view_find_slot returns the slot of the medium and group; KVP_SLOTS_MAX = they have no slot now. */
uint32_t kvp_view_find_slot(const kvp_view_t *v, const char *medium, size_t len, uint32_t group);

/* kvp_view_place returns whether the position of the hash is known; *block_out is set for KVP_PLACE_BLOCK. */
kvp_place_kind_t kvp_view_place(const kvp_view_t *v, uint64_t hash, uint32_t *block_out);

/* kvp_view_place_in is kvp_view_place for hashes in slots of the given group only; group 0 = any group. */
kvp_place_kind_t kvp_view_place_in(const kvp_view_t *v, uint64_t hash, uint32_t group, uint32_t *block_out);

/* kvp_view_store adds a copy of the hash, whose block is given (KVP_BLOCK_NONE = outside the index). The view
 * takes over the caller's reference to the block (kvp_index_use). is_counted false: a second copy in the
 * slot does not count. kvp_view_remove removes a copy; it returns false if the hash was not held. */
void kvp_view_store(kvp_view_t *v, uint32_t slot, uint64_t hash, uint32_t block, bool is_counted);
bool kvp_view_remove(kvp_view_t *v, uint32_t slot, uint64_t hash);

/* kvp_view_learn records the position of the hash, but no copy; the view takes over the caller's reference to the
 * block. kvp_view_unlearn forgets the position of a hash that is not held. */
void kvp_view_learn(kvp_view_t *v, uint32_t slot, uint64_t hash, uint32_t block);
void kvp_view_unlearn(kvp_view_t *v, uint64_t hash);

/* kvp_view_forget forgets the positions of all hashes that are not held. */
void kvp_view_forget(kvp_view_t *v);

/* kvp_view_clear removes all blocks from the medium at once (NULL = from all media); positions stay known.
 * kvp_view_sweep then removes the old holders of at most `most` table entries; it returns true if more are left. */
void kvp_view_clear(kvp_view_t *v, const char *medium);
/* kvp_view_clear_space removes the blocks of the namespace from the slot, which must be a backend's slot. It
 * returns false if the slot held none. */
bool kvp_view_clear_space(kvp_view_t *v, uint32_t slot, uint32_t space);
/* kvp_view_repair empties the view, forgets all positions, and resets is_damaged. */
void kvp_view_repair(kvp_view_t *v);
bool kvp_view_sweep(kvp_view_t *v, uint32_t most);

/* kvp_view_medium returns medium i of KVP_MEDIA_MAX to a reader inside an epoch; borrowed until the end of the
 * epoch; NULL = there is none. */
const kvp_medium_t *kvp_view_medium(const kvp_view_t *v, uint32_t i);
void kvp_view_stats(const kvp_view_t *v, kvp_view_stats_t *stats_out);

#endif
