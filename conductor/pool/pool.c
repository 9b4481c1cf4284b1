/* SPDX-License-Identifier: Apache-2.0
 * See pool.h.
 *
 * Design notes.
 * - For each block and medium a join has a mask of the ranks that have stored their part. The view holds a block
 *   while the parts of all ranks are present: in memory, on disk, or (the medium without a name) some in memory and
 *   some on disk.
 * - Parts may arrive before the block's position is known, and are kept; when an engine reports the position, the
 *   view gets the present parts. */
#include "conductor/pool/pool.h"

#include "common/clock.h"
#include "common/digestmap.h"
#include "common/list.h"
#include "common/log.h"
#include "conductor/pool/joinlog.h"
#include "proto/connkey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#define CPU 0u
#define DISK 1u
#define MEDIA 2u
#define SLOTS 3u /* number of slots: memory, disk, and both together */
#define GROUPS_MAX 32u
#define RANGES 16u /* number of ranges of hashes, for comparisons with digests */
#define KNOWN_MAX (64u << 20) /* limit of remembered positions of blocks that the pool does not hold */

static const char *const media[SLOTS] = {"CPU", "DISK", ""};

typedef struct {
    kvp_list_t link; /* element of the list pools->backends */
    uint32_t joins; /* number of joins that use the backend */
    char name[KVP_JOIN_TEXT_MAX / 2 + 1];
    const kvp_pool_source_t *source; /* the active source; NULL = no source, and the backend is empty */
} backend_t;

struct kvp_join {
    kvp_list_t link; /* element of the list pools->joins or pools->ending */
    kvp_pools_t *pools;
    backend_t *backend;
    char tenant[KVP_JOIN_TEXT_MAX / 2 + 1], prefix[KVP_JOIN_TEXT_MAX + 1];
    uint32_t ranks, space, users;
    kvp_view_t *view;
    uint32_t groups; /* a bit for each cache group of which an engine's event was indexed */
    kvp_digestmap_t parts[MEDIA]; /* by block: a mask of the ranks whose parts are present */
    char *names[KVP_JOIN_RANKS_MAX]; /* names of the ranks, in the form of the keys; owned */
    uint32_t names_n;
    uint64_t held[MEDIA][KVP_JOIN_RANKS_MAX]; /* number of parts of each rank; 0 = another name may take the rank */
    bool wants_places, is_loading; /* flags: a load of positions from the file is due; a load is in progress */
    bool is_partial; /* a flag: ranks or parts above the limits were ignored, so digests cannot be compared */
    uint64_t counts[MEDIA][RANGES], sums[MEDIA][RANGES];
    uint64_t objects[MEDIA]; /* number of the join's objects with connectors' keys on each medium */
    uint64_t complete, joined; /* number of blocks with all parts; number of these whose position is known */
};

struct kvp_pools {
    kvp_index_t *ix;
    kvp_spaces_t *spaces;
    void (*wanted)(void *arg, const kvp_pool_source_t *source, bool is_drift);
    void *arg;
    uint32_t parts_max; /* most blocks of a join with parts on one medium */
    kvp_list_t backends, joins, ending;
    uint32_t joins_n;
    kvp_joinlog_t *log; /* file of the positions that joins have learnt; NULL = they are not saved */
};

/* ---- parts of blocks */
/* Returns the key of a block in j->parts, for objects with connectors' keys; sequence_key is for all other objects. */
static kvp_digest_t
key_of(uint64_t hash, uint32_t group)
{
    return (kvp_digest_t){.lo = hash, .hi = 1 + (uint64_t)group};
}

static kvp_digest_t
sequence_key(uint64_t hash)
{
    return (kvp_digest_t){.lo = hash, .hi = 0};
}

/* Returns whether blocks with this key of j->parts enter the view. Only cache groups with indexed engine events do,
 * because other groups (of sliding-window attention, for example) do not keep whole prefixes. */
static bool
counts_here(const kvp_join_t *j, kvp_digest_t key)
{
    return key.hi == 0 || (key.hi <= GROUPS_MAX && (j->groups & 1u << (key.hi - 1)) != 0);
}

static uint64_t
mask_of(const kvp_join_t *j, uint32_t medium, kvp_digest_t key)
{
    const uint64_t *mask = kvp_digestmap_at(&j->parts[medium], key);

    return mask == NULL ? 0 : *mask;
}

static bool
is_whole(const kvp_join_t *j, uint64_t mask)
{
    return (uint32_t)__builtin_popcountll(mask) >= j->ranks;
}

static bool
is_complete(const kvp_join_t *j, kvp_digest_t key)
{
    return is_whole(j, mask_of(j, CPU, key) | mask_of(j, DISK, key));
}

static uint32_t
use_again(kvp_index_t *ix, uint32_t block)
{
    return kvp_index_use(ix, kvp_index_space(ix, block), kvp_index_hash(ix, block), kvp_index_depth(ix, block));
}

/* Updates the block's media in the view to its present parts: first the additions, so that readers always find it. */
static void
refresh_block(kvp_join_t *j, kvp_digest_t key, uint32_t block)
{
    const bool is_cpu = is_whole(j, mask_of(j, CPU, key)), is_disk = is_whole(j, mask_of(j, DISK, key));
    const bool has[SLOTS] = {is_cpu, is_disk, !is_cpu && !is_disk && is_complete(j, key)};
    uint32_t slots[SLOTS];

    for (uint32_t i = 0; i < SLOTS; i++) {
        slots[i] = kvp_view_slot(j->view, media[i], strlen(media[i]), (uint32_t)key.hi);
        if (has[i] && slots[i] != KVP_SLOTS_MAX)
            kvp_view_store(j->view, slots[i], key.lo, use_again(j->pools->ix, block), false);
    }
    for (uint32_t i = 0; i < SLOTS; i++)
        if (!has[i] && slots[i] != KVP_SLOTS_MAX) (void)kvp_view_remove(j->view, slots[i], key.lo);
}

static void
set_mask(kvp_join_t *j, uint32_t medium, kvp_digest_t key, uint64_t mask)
{
    const bool was_complete = is_complete(j, key);
    uint32_t block;
    uint64_t *at;
    int change;

    if (mask == 0) {
        kvp_digestmap_remove(&j->parts[medium], key);
    } else {
        if (j->parts[medium].n >= j->pools->parts_max && kvp_digestmap_at(&j->parts[medium], key) == NULL) {
            j->is_partial = true;
            return;
        }
        at = kvp_digestmap_insert(&j->parts[medium], key);
        if (at == NULL) kvp_panic("out of memory: parts of the pool's blocks");
        *at = mask;
    }
    change = (int)is_complete(j, key) - (int)was_complete;
    j->complete += (uint64_t)change;
    if (!counts_here(j, key) || kvp_view_place(j->view, key.lo, &block) != KVP_PLACE_BLOCK) return;
    j->joined += (uint64_t)change;
    refresh_block(j, key, block);
}

/* ---- positions of hashes */
static void
log_place(const kvp_join_t *j, uint64_t hash, uint32_t block)
{
    const kvp_index_t *ix = j->pools->ix;

    if (j->pools->log == NULL) return;
    kvp_joinlog_add(j->pools->log, &(kvp_joinlog_join_t){j->backend->name, j->prefix, j->ranks, j->space},
                    &(kvp_joinlog_place_t){hash, kvp_index_hash(ix, block), kvp_index_space(ix, block),
                                           kvp_index_depth(ix, block), j->groups, 0});
}

/* For each cache group with all parts of the hash's block: updates the block in the view, adds joined to j->joined. */
static void
refresh_all(kvp_join_t *j, uint64_t hash, uint32_t block, int joined)
{
    for (uint32_t i = 0; i <= GROUPS_MAX; i++) {
        const kvp_digest_t key = {.lo = hash, .hi = i};

        if (!counts_here(j, key) || !is_complete(j, key)) continue;
        j->joined += (uint64_t)joined;
        refresh_block(j, key, block);
    }
}

/* Records that the hash is at the block. Takes over the caller's reference to the block. */
static void
learn_place(kvp_join_t *j, uint64_t hash, uint32_t block, bool is_sure)
{
    uint32_t known;
    bool is_new = true;

    if (kvp_view_place(j->view, hash, &known) == KVP_PLACE_BLOCK) {
        if (known == block || !is_sure) {
            kvp_ignore(kvp_index_rele(j->pools->ix, block), "another use stays: the place that is known");
            return;
        }
        for (uint32_t slot = 0; slot < KVP_SLOTS_MAX; slot++)
            (void)kvp_view_remove(j->view, slot, hash);
        kvp_view_unlearn(j->view, hash);
        is_new = false;
    }
    kvp_view_learn(j->view, 0, hash, block);
    log_place(j, hash, block);
    refresh_all(j, hash, block, is_new);
}

/* Adds a cache group to j->groups, and the group's blocks with all parts and a known position to the view. */
static void
learn_group(kvp_join_t *j, uint32_t group)
{
    const kvp_digestmap_at_t *at;
    uint32_t block;

    if (group >= GROUPS_MAX || (j->groups & 1u << group) != 0) return;
    j->groups |= 1u << group;
    for (uint32_t m = 0; m < MEDIA; m++) {
        for (uint32_t i = 0; (at = kvp_digestmap_next(&j->parts[m], &i)) != NULL;) {
            if (at->digest.hi != 1 + (uint64_t)group || !is_complete(j, at->digest)) continue;
            /* a block with parts in memory was already handled in the round of medium CPU */
            if (m == DISK && mask_of(j, CPU, at->digest) != 0) continue;
            if (kvp_view_place(j->view, at->digest.lo, &block) != KVP_PLACE_BLOCK) continue;
            j->joined++;
            refresh_block(j, at->digest, block);
        }
    }
}

void
kvp_join_learn(kvp_join_t *j, uint64_t hash, uint32_t group, uint32_t block, bool is_sure)
{
    uint32_t known;

    learn_group(j, group);
    if (kvp_view_place(j->view, hash, &known) == KVP_PLACE_BLOCK && (known == block || !is_sure)) return;
    learn_place(j, hash, use_again(j->pools->ix, block), is_sure);
}

/* ---- events of pools */
static uint32_t
rank_of(kvp_join_t *j, const kvp_connkey_t *key)
{
    const size_t len = key->ranks_len + key->more_len;
    char *name;

    for (uint32_t i = 0; i < j->names_n; i++)
        if (strlen(j->names[i]) == len && memcmp(j->names[i], key->ranks, key->ranks_len) == 0 &&
            (key->more_len == 0 || memcmp(j->names[i] + key->ranks_len, key->more, key->more_len) == 0))
            return i;
    uint32_t rank = j->names_n < KVP_JOIN_RANKS_MAX ? j->names_n++ : 0;

    while (rank < KVP_JOIN_RANKS_MAX && j->held[CPU][rank] + j->held[DISK][rank] > 0)
        rank++;
    if (rank == KVP_JOIN_RANKS_MAX) return rank;
    name = calloc(1, len + 1);
    if (name == NULL) kvp_panic("out of memory: ranks");
    memcpy(name, key->ranks, key->ranks_len);
    if (key->more_len > 0) memcpy(name + key->ranks_len, key->more, key->more_len);
    free(j->names[rank]);
    j->names[rank] = name;
    return rank;
}

static void
change_part(kvp_join_t *j, const kvp_event_t *ev, uint32_t medium, kvp_digest_t key, uint32_t rank)
{
    const uint64_t hash = XXH3_64bits(ev->object_key.at, ev->object_key.len), bit = 1ull << rank;
    const uint64_t was = mask_of(j, medium, key), now = ev->kind == KVP_EVENT_STORED ? was | bit : was & ~bit;

    if (now == was) return;
    j->objects[medium] += now > was ? 1 : UINT64_MAX;
    j->counts[medium][hash % RANGES] += now > was ? 1 : UINT64_MAX;
    j->sums[medium][hash % RANGES] ^= XXH3_64bits_withSeed(&hash, sizeof hash, medium + 1);
    set_mask(j, medium, key, now);
    /* set_mask stores no mask of a new block above parts_max; then the count of parts does not change */
    if (mask_of(j, medium, key) == now) j->held[medium][rank] += now > was ? 1 : UINT64_MAX;
}

/* Handles an object with a key of Mooncake's connector. Returns false if the object is not in this join. */
static bool
take_part(kvp_join_t *j, const kvp_event_t *ev, uint32_t medium, const kvp_connkey_t *parts)
{
    uint32_t rank;

    if (strlen(j->prefix) != parts->prefix_len || memcmp(j->prefix, ev->object_key.at, parts->prefix_len) != 0)
        return false;
    rank = rank_of(j, parts);
    j->is_partial |= rank == KVP_JOIN_RANKS_MAX;
    if (rank < KVP_JOIN_RANKS_MAX) change_part(j, ev, medium, key_of(parts->hash, parts->group), rank);
    return true;
}

/* Handles an object that was put with its position in a sequence: its hash is the standard hash. Returns false if
 * the object is not in this join. */
static bool
take_sequence(kvp_join_t *j, const kvp_event_t *ev, uint32_t medium)
{
    const kvp_digest_t key = sequence_key(ev->hashes[0]);
    /* Several objects may be at one position. A hash of the key gives each a bit, which two objects may share. */
    const uint64_t was = mask_of(j, medium, key), bit = 1ull << XXH3_64bits(ev->object_key.at, ev->object_key.len) % 64;
    const uint64_t now = ev->kind == KVP_EVENT_STORED ? was | bit : was & ~bit;
    uint32_t block;

    if (ev->object_key.len < strlen(j->prefix) || memcmp(j->prefix, ev->object_key.at, strlen(j->prefix)) != 0)
        return false;
    if (ev->kind == KVP_EVENT_STORED) {
        block = ev->base != KVP_DEPTH_UNKNOWN ? kvp_index_use(j->pools->ix, j->space, ev->hashes[0], ev->base)
                                              : kvp_index_use_behind(j->pools->ix, j->space, ev->hashes[0], ev->parent);
        if (block != KVP_BLOCK_NONE) learn_place(j, ev->hashes[0], block, true);
    }
    if (now != was) set_mask(j, medium, key, now);
    return true;
}

/* Records a prefix of keys that no join has. The report of these prefixes helps to correct a registration whose
 * prefix is not its engine's. */
static void
note_unwanted(kvp_pool_source_t *source, const kvp_event_t *ev, const kvp_connkey_t *parts)
{
    char prefix[KVP_JOIN_TEXT_MAX + 1];

    if (parts->prefix_len > KVP_JOIN_TEXT_MAX) return;
    memcpy(prefix, ev->object_key.at, parts->prefix_len);
    prefix[parts->prefix_len] = '\0';
    for (uint32_t i = 0; i < source->unwanted_n; i++)
        if (strcmp(source->unwanted[i], prefix) == 0) return;
    /* The oldest recorded prefix is removed to make room. */
    if (source->unwanted_n == KVP_UNWANTED_MAX)
        memmove(source->unwanted[0], source->unwanted[1], sizeof source->unwanted[0] * --source->unwanted_n);
    strcpy(source->unwanted[source->unwanted_n++], prefix);
}

static bool
is_cpu(const kvp_event_t *ev)
{
    return ev->medium.at != NULL && ev->medium.len == 3 && strncasecmp(ev->medium.at, "cpu", 3) == 0;
}

static void
take_object(kvp_pools_t *pools, const backend_t *b, kvp_pool_source_t *source, const kvp_event_t *ev)
{
    const uint32_t medium = is_cpu(ev) ? CPU : DISK;
    bool is_of_connector, is_wanted = false;
    kvp_connkey_t parts;

    if (ev->object_key.at == NULL) {
        source->skips[KVP_SKIP_malformed]++;
        return;
    }
    is_of_connector = kvp_connkey_read(ev->object_key.at, ev->object_key.len, &parts);
    if (!is_of_connector && ev->kind == KVP_EVENT_STORED &&
        (ev->n != 1 || (ev->base == KVP_DEPTH_UNKNOWN && !ev->has_parent))) {
        source->skips[KVP_SKIP_key]++;
        return;
    }
    kvp_list_foreach (pos, &pools->joins) {
        kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);

        if (j->backend != b || !kvp_text_is(ev->tenant, j->tenant)) continue;
        if (is_of_connector)
            is_wanted |= take_part(j, ev, medium, &parts);
        else if (ev->n == 1)
            is_wanted |= take_sequence(j, ev, medium);
    }
    if (!is_wanted && is_of_connector) note_unwanted(source, ev, &parts);
    *(!is_wanted ? &source->ignored : ev->kind == KVP_EVENT_STORED ? &source->stored : &source->removed) += 1;
}

/* Empties a medium of the join. Blocks with parts on both media keep their parts on the other medium. */
static void
clear_medium(kvp_join_t *j, uint32_t medium)
{
    const kvp_digestmap_at_t *at;

    kvp_digestmap_fini(&j->parts[medium]);
    kvp_view_clear(j->view, media[medium]);
    kvp_view_clear(j->view, media[MEDIA]);
    j->objects[medium] = j->complete = j->joined = 0;
    memset(j->held[medium], 0, sizeof j->held[medium]);
    j->is_partial = j->parts[1 - medium].n >= j->pools->parts_max;
    memset(j->counts[medium], 0, sizeof j->counts[medium]);
    memset(j->sums[medium], 0, sizeof j->sums[medium]);
    for (uint32_t i = 0; (at = kvp_digestmap_next(&j->parts[1 - medium], &i)) != NULL;) {
        uint32_t block;

        if (!is_whole(j, at->val)) continue;
        j->complete++;
        j->joined += counts_here(j, at->digest) && kvp_view_place(j->view, at->digest.lo, &block) == KVP_PLACE_BLOCK;
    }
}

/* Handles a clear event: empties "CPU" or the other medium, as the event says; both if it names no medium. */
static void
take_cleared(kvp_pools_t *pools, const backend_t *b, const kvp_event_t *ev)
{
    kvp_list_foreach (pos, &pools->joins) {
        kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);

        if (j->backend != b || !kvp_text_is(ev->tenant, j->tenant)) continue;
        for (uint32_t i = 0; i < MEDIA; i++)
            if (ev->medium.at == NULL || is_cpu(ev) == (i == CPU)) clear_medium(j, i);
    }
}

static void
take_digest(kvp_pools_t *pools, const backend_t *b, kvp_pool_source_t *source, const kvp_event_t *ev)
{
    bool is_other = false;

    source->digests++;
    kvp_list_foreach (pos, &pools->joins) {
        const kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);

        if (j->backend != b || j->is_partial || ev->n != 2 * RANGES) continue;
        if (!kvp_text_is(ev->tenant, j->tenant) || !kvp_text_is(ev->key_prefix, j->prefix)) continue;
        for (uint32_t i = 0; i < RANGES; i++) {
            if (ev->hashes[i] == j->counts[CPU][i] + j->counts[DISK][i] &&
                ev->hashes[RANGES + i] == (j->sums[CPU][i] ^ j->sums[DISK][i]))
                continue;
            is_other = true;
            break;
        }
    }
    source->drifts += is_other;
    if (is_other) pools->wanted(pools->arg, source, true);
}

static backend_t *
find_backend(const kvp_pools_t *pools, kvp_text_t name)
{
    kvp_list_foreach (pos, &pools->backends) {
        backend_t *b = kvp_list_entry(pos, backend_t, link);

        if (kvp_text_is(name, b->name)) return b;
    }
    return NULL;
}

static void
clear_backend(kvp_pools_t *pools, backend_t *b)
{
    b->source = NULL;
    kvp_list_foreach (pos, &pools->joins) {
        kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);

        for (uint32_t i = 0; i < MEDIA && j->backend == b; i++)
            clear_medium(j, i);
    }
}

void
kvp_pools_take(kvp_pools_t *pools, kvp_pool_source_t *source, const kvp_event_t *ev)
{
    backend_t *b = find_backend(pools, ev->backend);

    source->events++;
    /* the backend has no source, and earlier events of this source were ignored: request all of them again */
    if (b != NULL && b->source == NULL && source->has_begun) pools->wanted(pools->arg, source, false);
    if (b == NULL || (b->source != source && (source->has_begun || ev->kind != KVP_EVENT_STORED))) {
        source->ignored++;
        return;
    }
    if (b->source != source) {
        clear_backend(pools, b);
        b->source = source;
    }
    source->has_begun = true;
    switch (ev->kind) {
    case KVP_EVENT_STORED:
    case KVP_EVENT_REMOVED:
        take_object(pools, b, source, ev);
        break;
    case KVP_EVENT_CLEARED:
        source->cleared++;
        take_cleared(pools, b, ev);
        break;
    case KVP_EVENT_DIGEST:
        take_digest(pools, b, source, ev);
        break;
    }
}

void
kvp_pools_drop(kvp_pools_t *pools, kvp_pool_source_t *source)
{
    source->has_begun = false;
    kvp_list_foreach (pos, &pools->backends) {
        backend_t *b = kvp_list_entry(pos, backend_t, link);

        if (b->source == source) clear_backend(pools, b);
    }
}

/* ---- the file of positions */
static bool
is_of(const kvp_join_t *j, const kvp_joinlog_join_t *join)
{
    return j->space == join->space && j->ranks == join->ranks && strcmp(j->prefix, join->prefix) == 0 &&
           strcmp(j->backend->name, join->backend) == 0;
}

static void
begin_load(void *arg)
{
    const kvp_pools_t *pools = arg;

    kvp_list_foreach (pos, &pools->joins) {
        kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);

        j->is_loading = j->wants_places;
        j->wants_places = false;
    }
}

static void
load_place(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place)
{
    kvp_pools_t *pools = arg;
    kvp_joinlog_t *log = pools->log;

    pools->log = NULL; /* learn_place must not write a position to the file from which it was read */
    kvp_list_foreach (pos, &pools->joins) {
        kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);
        uint32_t block;

        if (!j->is_loading || !is_of(j, join)) continue;
        for (uint32_t i = 0; i < GROUPS_MAX; i++)
            if ((place->groups & 1u << i) != 0) learn_group(j, i);
        block = kvp_index_use(pools->ix, place->space, place->hash, place->depth);
        /* is_sure is true: a later position of the key in the file is newer, and replaces an earlier one. */
        if (block != KVP_BLOCK_NONE) learn_place(j, place->key, block, true);
    }
    pools->log = log;
}

static void
end_load(void *arg, bool is_whole)
{
    const kvp_pools_t *pools = arg;

    kvp_list_foreach (pos, &pools->joins) {
        kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);

        j->wants_places |= j->is_loading && !is_whole;
        j->is_loading = false;
    }
}

static void
want_places(kvp_join_t *j)
{
    if (j->pools->log == NULL) return;
    j->wants_places = true;
    kvp_joinlog_load(j->pools->log);
}

/* Returns whether a rewrite of the file keeps the position. Positions of joins without a registration are kept for
 * engines that return, unless there are too many joins. */
static bool
is_wanted(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place)
{
    const kvp_pools_t *pools = arg;
    uint32_t block;

    kvp_list_foreach (pos, &pools->joins) {
        const kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);

        if (!is_of(j, join)) continue;
        return j->wants_places ||
               (kvp_view_place(j->view, place->key, &block) == KVP_PLACE_BLOCK &&
                kvp_index_hash(pools->ix, block) == place->hash && kvp_index_space(pools->ix, block) == place->space);
    }
    return pools->log == NULL || !kvp_joinlog_is_crowded(pools->log);
}

bool
kvp_pools_open(kvp_pools_t *pools, kvp_disk_t *disk, const char *dir)
{
    const kvp_joinlog_ops_t ops = {begin_load, load_place, end_load, is_wanted, pools};

    pools->log = kvp_joinlog_open(disk, dir, pools->spaces, &ops);
    return pools->log != NULL;
}

void
kvp_pools_flush(kvp_pools_t *pools)
{
    if (pools->log != NULL) kvp_joinlog_flush(pools->log);
}

void
kvp_pools_forget(kvp_pools_t *pools)
{
    kvp_list_foreach (pos, &pools->joins)
        kvp_view_forget(kvp_list_entry(pos, kvp_join_t, link)->view);
}

/* ---- creating and removing joins */
static backend_t *
backend_of(kvp_pools_t *pools, const char *name)
{
    backend_t *b = find_backend(pools, (kvp_text_t){name, strlen(name)});

    if (b != NULL) return b;
    b = calloc(1, sizeof *b);
    if (b == NULL) kvp_panic("out of memory: backends");
    snprintf(b->name, sizeof b->name, "%s", name);
    kvp_list_init(&b->link);
    kvp_list_add_tail(&pools->backends, &b->link);
    return b;
}

kvp_join_t *
kvp_pools_join(kvp_pools_t *pools, const char *backend, const char *prefix, uint32_t ranks,
               const kvp_namespace_t *space)
{
    const uint32_t number = kvp_spaces_name(pools->spaces, space);
    backend_t *b = find_backend(pools, (kvp_text_t){backend, strlen(backend)});
    kvp_join_t *j;

    if (number == KVP_SPACE_NONE) return NULL;
    kvp_list_foreach (pos, &pools->joins) {
        j = kvp_list_entry(pos, kvp_join_t, link);
        if (j->backend != b || j->space != number || j->ranks != ranks || strcmp(j->prefix, prefix) != 0) continue;
        j->users++;
        return j;
    }
    if (pools->joins_n == KVP_JOINS_MAX) return NULL;
    j = calloc(1, sizeof *j);
    if (j == NULL) kvp_panic("out of memory: joins");
    j->view = kvp_view_create(pools->ix, kvp_random_u64(), KNOWN_MAX);
    if (j->view == NULL) kvp_panic("out of memory: joins");
    b = backend_of(pools, backend);
    b->joins++;
    j->pools = pools;
    j->backend = b;
    snprintf(j->tenant, sizeof j->tenant, "%s", space->tenant);
    snprintf(j->prefix, sizeof j->prefix, "%s", prefix);
    j->ranks = ranks;
    j->space = number;
    kvp_spaces_hold(pools->spaces, number);
    j->users = 1;
    (void)kvp_view_slot(j->view, media[CPU], strlen(media[CPU]), 0); /* makes slot 0, for learn_place */
    for (uint32_t i = 0; i < MEDIA; i++)
        kvp_digestmap_init(&j->parts[i], kvp_random_u64());
    kvp_list_init(&j->link);
    kvp_list_add_tail(&pools->joins, &j->link);
    pools->joins_n++;
    pools->wanted(pools->arg, b->source, false);
    want_places(j);
    return j;
}

static void
leave_backend(backend_t *b)
{
    if (--b->joins > 0) return;
    kvp_list_del(&b->link);
    free(b);
}

void
kvp_join_leave(kvp_join_t *j)
{
    if (--j->users > 0) return;
    j->pools->joins_n--;
    leave_backend(j->backend);
    j->backend = NULL;
    kvp_list_del(&j->link);
    kvp_list_add_tail(&j->pools->ending, &j->link);
    kvp_view_end(j->view);
}

static void
free_join(kvp_join_t *j)
{
    kvp_list_del(&j->link);
    for (uint32_t i = 0; i < MEDIA; i++)
        kvp_digestmap_fini(&j->parts[i]);
    for (uint32_t i = 0; i < j->names_n; i++)
        free(j->names[i]);
    kvp_view_destroy(j->view);
    kvp_spaces_release(j->pools->spaces, j->space);
    free(j);
}

/* Rebuilds a damaged view: loads the positions from the file, and requests the contents from the source. */
static void
repair_join(kvp_join_t *j)
{
    kvp_view_repair(j->view);
    for (uint32_t i = 0; i < MEDIA; i++)
        clear_medium(j, i);
    want_places(j);
    j->pools->wanted(j->pools->arg, j->backend->source, false);
}

void
kvp_pools_sweep(kvp_pools_t *pools, uint32_t most)
{
    kvp_list_foreach (pos, &pools->joins) {
        kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);
        kvp_view_stats_t view;

        kvp_view_stats(j->view, &view);
        if (view.is_damaged) repair_join(j);
        (void)kvp_view_sweep(j->view, most);
    }
    kvp_list_foreach_safe (pos, tmp, &pools->ending) {
        kvp_join_t *j = kvp_list_entry(pos, kvp_join_t, link);

        if (!kvp_view_sweep(j->view, most)) free_join(j);
    }
}

const kvp_view_t *
kvp_join_view(const kvp_join_t *j)
{
    return j->view;
}

uint64_t
kvp_join_unjoined(const kvp_join_t *j)
{
    return j->complete - j->joined;
}

void
kvp_join_write(const kvp_join_t *j, kvp_jsonw_t *w)
{
    kvp_view_stats_t view;

    kvp_view_stats(j->view, &view);
    kvp_jsonw_text(w, "backend_id", j->backend->name);
    kvp_jsonw_text(w, "key_prefix", j->prefix);
    kvp_jsonw_u64(w, "ranks", j->ranks);
    kvp_jsonw_bool(w, "is_told", j->backend->source != NULL);
    kvp_jsonw_u64(w, "objects", j->objects[CPU] + j->objects[DISK]);
    kvp_jsonw_u64(w, "ranks_seen", j->names_n);
    kvp_jsonw_u64(w, "blocks", j->complete);
    kvp_jsonw_u64(w, "joined", j->joined);
    kvp_jsonw_u64(w, "unjoined", kvp_join_unjoined(j));
    kvp_jsonw_u64(w, "known_places", view.resident + view.known);
}

/* ---- creation and destruction */
kvp_pools_t *
kvp_pools_create(kvp_index_t *ix, kvp_spaces_t *spaces,
                 void (*wanted)(void *arg, const kvp_pool_source_t *source, bool is_drift), void *arg,
                 uint32_t parts_max)
{
    kvp_pools_t *pools = calloc(1, sizeof *pools);

    if (pools == NULL) return NULL;
    *pools = (kvp_pools_t){.ix = ix, .spaces = spaces, .wanted = wanted, .arg = arg, .parts_max = parts_max};
    kvp_list_init(&pools->backends);
    kvp_list_init(&pools->joins);
    kvp_list_init(&pools->ending);
    return pools;
}

void
kvp_pools_destroy(kvp_pools_t *pools)
{
    if (pools == NULL) return;
    kvp_list_foreach_safe (pos, tmp, &pools->joins)
        free_join(kvp_list_entry(pos, kvp_join_t, link));
    kvp_list_foreach_safe (pos, tmp, &pools->ending)
        free_join(kvp_list_entry(pos, kvp_join_t, link));
    kvp_list_foreach_safe (pos, tmp, &pools->backends)
        free(kvp_list_entry(pos, backend_t, link));
    kvp_joinlog_close(pools->log);
    free(pools);
}
