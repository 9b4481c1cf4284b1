/* SPDX-License-Identifier: Apache-2.0
 * See apply.h. */
#include "conductor/events/apply.h"

#include "common/clock.h"
#include "conductor/index/chain.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#define NAME_MAX_BYTES 512u /* longest name of a model, salt, tenant or adapter in an event, in bytes */

static void
count_skip(kvp_applier_t *a, kvp_skip_t why)
{
    a->done.skips[why]++;
}

/* ---- texts of an event, and the defaults of the registration */
static bool
is_one_of(kvp_text_t text, const char *const *words)
{
    while (*words != NULL && !kvp_text_is(text, *words))
        words++;
    return *words != NULL;
}

/* Returns the text of the event's field, or the registration's value if the event omits the field. NULL = the text
 * is too long. */
static const char *
own_or_registered(kvp_text_t text, const char *registered, char room[NAME_MAX_BYTES])
{
    if (text.at == NULL) return registered;
    if (text.len >= NAME_MAX_BYTES) return NULL;
    memcpy(room, text.at, text.len);
    room[text.len] = '\0';
    return room;
}

/* Returns the event's medium. Engines' names of media are converted to the names in answers. An event without a
 * medium means GPU. */
static kvp_text_t
medium_of(const kvp_event_t *ev)
{
    static const struct {
        const char *from, *to;
    } names[] = {{"CPU_PINNED", "CPU"}, {"STORAGE", "DISK"}};

    if (ev->medium.at == NULL) return (kvp_text_t){"GPU", 3};
    for (size_t i = 0; i < KVP_ARRAY_LEN(names); i++)
        if (strlen(names[i].from) == ev->medium.len && strncasecmp(names[i].from, ev->medium.at, ev->medium.len) == 0)
            return (kvp_text_t){names[i].to, strlen(names[i].to)};
    return ev->medium;
}

/* Returns a hash of a standard event's backend and medium. The case of the medium's name does not matter. */
static uint64_t
place_of(const kvp_event_t *ev)
{
    char medium[KVP_MEDIUM_NAME_MAX];
    const size_t len = kvp_min_u64(ev->medium.len, sizeof medium);

    for (size_t i = 0; i < len; i++)
        medium[i] = (char)toupper((unsigned char)ev->medium.at[i]);
    return XXH3_64bits_withSeed(ev->backend.len == 0 ? "" : ev->backend.at, ev->backend.len, XXH3_64bits(medium, len));
}

/* Returns the group of the event's slot: an engine event's cache group, or a hash of a standard event's backend. */
static uint32_t
group_of(const kvp_event_t *ev)
{
    return ev->is_standard ? KVP_GROUP_BACKENDS | (uint32_t)place_of(ev) : ev->group;
}

static uint32_t
slot_of(kvp_applier_t *a, const kvp_event_t *ev)
{
    const kvp_text_t medium = medium_of(ev);

    return kvp_view_slot(a->view, medium.at, medium.len, group_of(ev));
}

/* Returns the view's slot of the event's medium and group; KVP_SLOTS_MAX = the view has no such slot now. */
static uint32_t
find_slot(const kvp_applier_t *a, const kvp_event_t *ev)
{
    const kvp_text_t medium = medium_of(ev);

    return kvp_view_find_slot(a->view, medium.at, medium.len, group_of(ev));
}

/* ---- blocks of a store or remove event */
/* The position in a prompt at which the next block of an event is stored. */
typedef struct {
    /* namespace and depth of the next block; KVP_DEPTH_UNKNOWN = the parent's depth is unknown */
    uint32_t space, depth;
    bool has_before; /* a flag: the next block has a parent, and `before` is set */
    uint64_t before; /* hash of the next block's parent */
    bool is_outside;
    bool is_given; /* a flag: the event's own hashes identify its blocks, instead of hashes of its tokens */
} spot_t;

typedef struct {
    char model[NAME_MAX_BYTES], salt[NAME_MAX_BYTES], tenant[NAME_MAX_BYTES], lora[NAME_MAX_BYTES];
    kvp_namespace_t space;
} names_t;

/* Reads the namespace of the event. Returns false if a name is too long. */
static bool
read_names(const kvp_applier_t *a, const kvp_event_t *ev, names_t *out)
{
    kvp_namespace_t *s = &out->space;

    *s = (kvp_namespace_t){
        .model = own_or_registered(ev->model, a->terms.model, out->model),
        .salt = own_or_registered(ev->is_standard ? ev->additional_salt : ev->salt, a->terms.salt, out->salt),
        .tenant = own_or_registered(ev->tenant, a->terms.tenant, out->tenant),
        .lora = own_or_registered(ev->lora, a->terms.lora, out->lora),
        .block_size = a->terms.block_size,
    };
    return s->model != NULL && s->salt != NULL && s->tenant != NULL && s->lora != NULL;
}

/* Returns the number of the event's namespace; KVP_SPACE_NONE = unreadable names, no such namespace, or no room. A
 * store event creates the namespace if it is missing; other events do not. */
static uint32_t
space_of(kvp_applier_t *a, const kvp_event_t *ev)
{
    names_t names;
    uint32_t number;

    if (!read_names(a, ev, &names)) return KVP_SPACE_NONE;
    if (ev->kind != KVP_EVENT_STORED) return kvp_spaces_find(a->spaces, &names.space);
    number = kvp_spaces_name(a->spaces, &names.space);
    if (number == KVP_SPACE_NONE && a->make_room != NULL && a->make_room(a->arg))
        number = kvp_spaces_name(a->spaces, &names.space);
    return number;
}

/* Returns the key of a block in the view. Standard hashes are equal in all namespaces, so their keys include the
 * namespace. */
static uint64_t
key_of(const kvp_event_t *ev, uint32_t space, uint64_t hash)
{
    return ev->is_standard ? XXH3_64bits_withSeed(&hash, sizeof hash, space) : hash;
}

/* Finds the position after the event's parent block. Returns false if the view does not know the parent. */
static bool
find_behind(kvp_applier_t *a, const kvp_event_t *ev, spot_t *spot)
{
    uint32_t block;

    switch (kvp_view_place(a->view, key_of(ev, spot->space, ev->parent), &block)) {
    case KVP_PLACE_UNKNOWN:
        return false;
    case KVP_PLACE_OUTSIDE:
        spot->is_outside = true;
        break;
    case KVP_PLACE_BLOCK:
        spot->space = kvp_index_space(a->ix, block);
        spot->depth = kvp_index_depth(a->ix, block);
        spot->depth += spot->depth != KVP_DEPTH_UNKNOWN;
        spot->has_before = true;
        spot->before = kvp_index_hash(a->ix, block);
        break;
    }
    return true;
}

/* Finds the position of a standard event's first block. A rolling hash identifies the whole prefix. So the hashes in
 * the event identify its blocks (is_given) if the tokens before the first block are unknown. */
static void
find_standard_spot(kvp_applier_t *a, const kvp_event_t *ev, spot_t *spot)
{
    spot->is_given = ev->tokens == NULL || ev->has_parent || ev->base > 0;
    spot->depth = ev->base;
    if (!ev->has_parent || (ev->base != KVP_DEPTH_UNKNOWN && ev->tokens == NULL)) return;
    if (find_behind(a, ev, spot)) {
        spot->is_given = ev->tokens == NULL;
        if (spot->depth == KVP_DEPTH_UNKNOWN) spot->depth = ev->base;
        return;
    }
    spot->has_before = true;
    spot->before = ev->parent;
}

static bool
find_spot(kvp_applier_t *a, const kvp_event_t *ev, spot_t *out)
{
    *out = (spot_t){.space = KVP_SPACE_NONE};
    if (!ev->is_standard && ev->has_parent) {
        if (!find_behind(a, ev, out)) {
            count_skip(a, KVP_SKIP_parent);
            return false;
        }
        if (out->is_outside || ev->salt.at == NULL ||
            kvp_text_is(ev->salt, kvp_spaces_get(a->spaces, out->space)->salt))
            return true;
        count_skip(a, KVP_SKIP_salt);
        return false;
    }
    /* a standard event without a depth and a parent gives no position: only kvp_pools_take can handle it */
    if (ev->is_standard && ev->base == KVP_DEPTH_UNKNOWN && !ev->has_parent) {
        count_skip(a, KVP_SKIP_malformed);
        return false;
    }
    out->space = space_of(a, ev);
    if (out->space == KVP_SPACE_NONE) {
        count_skip(a, KVP_SKIP_too_many);
        return false;
    }
    if (ev->is_standard) find_standard_spot(a, ev, out);
    return true;
}

static uint32_t
use_at(kvp_applier_t *a, const spot_t *spot, uint64_t hash)
{
    return spot->depth == KVP_DEPTH_UNKNOWN ? kvp_index_use_behind(a->ix, spot->space, hash, spot->before)
                                            : kvp_index_use(a->ix, spot->space, hash, spot->depth);
}

/* Finds or creates block i of the event, takes a reference to it, and moves *spot to the next block. For a block
 * outside the index (KVP_PLACE_OUTSIDE) *block_out is KVP_BLOCK_NONE. Returns false if the index is full. */
static bool
use_block(kvp_applier_t *a, const kvp_event_t *ev, uint32_t i, spot_t *spot, uint32_t *block_out)
{
    uint64_t hash;

    *block_out = KVP_BLOCK_NONE;
    spot->is_outside |= i >= ev->outside_from;
    if (spot->is_outside) return true;
    hash = spot->is_given
               ? ev->hashes[i]
               : kvp_chain_next(spot->has_before ? &spot->before : NULL, ev->tokens + (size_t)i * a->terms.block_size,
                                a->terms.block_size, a->hash_seed);
    *block_out = use_at(a, spot, hash);
    if (*block_out == KVP_BLOCK_NONE && a->make_room != NULL && a->make_room(a->arg))
        *block_out = use_at(a, spot, hash);
    spot->has_before = true;
    spot->before = hash;
    spot->depth += spot->depth != KVP_DEPTH_UNKNOWN;
    return *block_out != KVP_BLOCK_NONE;
}

/* Returns true if the view knows all hashes of the event, for the tokens that the event has. Namespaces do not matter:
 * a block's hash depends only on its tokens and the tokens before it. */
static bool
is_known(const kvp_applier_t *a, const kvp_event_t *ev)
{
    bool has_before = ev->has_parent;
    uint64_t before = 0;
    uint32_t block;

    if (has_before) {
        if (kvp_view_place(a->view, ev->parent, &block) != KVP_PLACE_BLOCK) return false;
        before = kvp_index_hash(a->ix, block);
    }
    for (uint32_t i = 0; i < ev->n; i++, has_before = true) {
        if (kvp_view_place(a->view, ev->hashes[i], &block) != KVP_PLACE_BLOCK) return false;
        before = kvp_chain_next(has_before ? &before : NULL, ev->tokens + (size_t)i * a->terms.block_size,
                                a->terms.block_size, a->hash_seed);
        if (kvp_index_hash(a->ix, block) != before) return false;
    }
    return true;
}

/* Returns true for an event of Mooncake's store connector, which reports each put and no removals. */
static bool
is_connectors(const kvp_event_t *ev)
{
    return !ev->is_standard && ev->medium.at != NULL && ev->medium.len == 3 && memcmp(ev->medium.at, "cpu", 3) == 0;
}

/* Records that the publisher holds the block; the call takes over the caller's reference to the block. If the publisher
 * has joins, the pools report their contents: then an event of the store connector only gives the block's position. */
static void
hold_block(kvp_applier_t *a, const kvp_event_t *ev, uint32_t slot, uint64_t hash, uint32_t block, bool is_counted)
{
    const bool is_pools = a->joins_n > 0 && is_connectors(ev);

    for (uint32_t i = 0; i < a->joins_n && block != KVP_BLOCK_NONE && !ev->is_standard; i++)
        kvp_join_learn(a->joins[i], hash, ev->group, block, !is_pools);
    if (is_pools)
        kvp_view_learn(a->view, slot, hash, block);
    else
        kvp_view_store(a->view, slot, hash, block, is_counted);
}

/* Records one more copy of a hash whose position is known: the block, or KVP_BLOCK_NONE outside the index. */
static void
hold_known(kvp_applier_t *a, const kvp_event_t *ev, uint32_t slot, uint64_t hash, uint32_t block, bool is_counted)
{
    if (block != KVP_BLOCK_NONE)
        block = kvp_index_use(a->ix, kvp_index_space(a->ix, block), kvp_index_hash(a->ix, block),
                              kvp_index_depth(a->ix, block));
    hold_block(a, ev, slot, hash, block, is_counted);
    a->done.stored++;
}

/* Stores the event's blocks under their known positions. An event that does not state a salt may have lost its
 * salt, so a known hash keeps its position. Returns false if the event states a salt, or if a hash is unknown. */
static bool
use_known(kvp_applier_t *a, const kvp_event_t *ev)
{
    const uint32_t slot = slot_of(a, ev);
    uint32_t block;

    if (ev->is_standard || ev->tells_salt || slot == KVP_SLOTS_MAX || !is_known(a, ev)) return false;
    for (uint32_t i = 0; i < ev->n; i++)
        if (kvp_view_place(a->view, ev->hashes[i], &block) == KVP_PLACE_BLOCK)
            hold_known(a, ev, slot, ev->hashes[i], block, true);
    return true;
}

/* Stores blocks from an event without tokens. vLLM's offloading sends such events for blocks that the engine
 * reported with tokens before. Repeated events count once, because offloading has one copy of each block. */
static void
store_by_hash(kvp_applier_t *a, const kvp_event_t *ev, uint32_t slot)
{
    for (uint32_t i = 0; i < ev->n; i++) {
        uint32_t block = KVP_BLOCK_NONE;

        if (kvp_view_place_in(a->view, ev->hashes[i], ev->group, &block) == KVP_PLACE_UNKNOWN)
            count_skip(a, KVP_SKIP_no_tokens);
        else
            hold_known(a, ev, slot, ev->hashes[i], block, false);
    }
}

static void
store_blocks(kvp_applier_t *a, const kvp_event_t *ev)
{
    static const char *const kinds[] = {"full_attention", "mla_attention", "sink_full_attention", NULL};
    const bool needs_tokens = ev->is_standard ? ev->tokens != NULL : ev->tokens_n > 0;
    uint32_t slot, block;
    spot_t spot;

    if (ev->spec_kind.at != NULL && !is_one_of(ev->spec_kind, kinds)) {
        count_skip(a, KVP_SKIP_cache_kind);
        return;
    }
    if (!ev->is_standard && ev->block_size != 0 && ev->block_size != a->terms.block_size) {
        count_skip(a, KVP_SKIP_block_size);
        return;
    }
    if (needs_tokens && ev->tokens_n != (uint64_t)ev->n * a->terms.block_size) {
        count_skip(a, KVP_SKIP_tokens);
        return;
    }
    if (ev->tokens_n > 0 && use_known(a, ev)) return;
    slot = slot_of(a, ev);
    if (slot == KVP_SLOTS_MAX) {
        count_skip(a, KVP_SKIP_too_many);
        return;
    }
    if (!ev->is_standard && ev->tokens_n == 0) {
        store_by_hash(a, ev, slot);
        return;
    }
    if (!find_spot(a, ev, &spot)) return;
    const uint32_t space = spot.space;

    for (uint32_t i = 0; i < ev->n; i++) {
        if (!use_block(a, ev, i, &spot, &block)) {
            count_skip(a, KVP_SKIP_too_many);
            return;
        }
        hold_block(a, ev, slot, key_of(ev, space, ev->hashes[i]), block, !ev->is_standard);
        a->done.stored++;
    }
}

static void
remove_all(kvp_applier_t *a, const kvp_event_t *ev)
{
    const uint32_t slot = find_slot(a, ev), space = ev->is_standard ? space_of(a, ev) : KVP_SPACE_NONE;

    for (uint32_t i = 0; slot != KVP_SLOTS_MAX && i < ev->n; i++)
        a->done.removed += kvp_view_remove(a->view, slot, key_of(ev, space, ev->hashes[i]));
}

/* Removes all blocks of the event's stream: the blocks of its backend, in its namespace, on its medium. Returns
 * false if there were none. */
static bool
clear_stream(kvp_applier_t *a, const kvp_event_t *ev)
{
    const uint32_t slot = find_slot(a, ev), space = space_of(a, ev);

    return slot != KVP_SLOTS_MAX && space != KVP_SPACE_NONE && kvp_view_clear_space(a->view, slot, space);
}

/* ---- streams of standard events, and their event ids */
static uint64_t
mix_text(const char *text, uint64_t seed)
{
    return XXH3_64bits_withSeed(text, strlen(text), seed);
}

/* Computes the key of the event's stream from its namespace (completed from the registration), its backend and its
 * medium. Returns false if a name is too long. */
static bool
read_stream(const kvp_applier_t *a, const kvp_event_t *ev, uint64_t *key_out)
{
    names_t names;

    if (!read_names(a, ev, &names)) return false;
    *key_out = mix_text(names.space.model, place_of(ev));
    *key_out = mix_text(names.space.salt, mix_text(names.space.lora, mix_text(names.space.tenant, *key_out)));
    return true;
}

/* Checks the event's id in its stream. Returns false for a repeated event. After a gap the blocks of the stream
 * are dropped, because a missed event may have been a removal. */
static bool
is_next(kvp_applier_t *a, const kvp_event_t *ev)
{
    uint64_t key;

    if (!read_stream(a, ev, &key)) {
        count_skip(a, KVP_SKIP_too_many);
        return false;
    }
    switch (kvp_streams_step(&a->streams, key, ev->event_id)) {
    case KVP_STREAM_SEEN:
        a->done.duplicates++;
        return false;
    case KVP_STREAM_FIRST: /* the stream is new, or was forgotten and has blocks that may be stale: clear them */
        a->done.gaps += clear_stream(a, ev);
        return true;
    case KVP_STREAM_GAP:
        a->done.gaps++;
        (void)clear_stream(a, ev);
        return true;
    default:
        return true;
    }
}

static bool
is_other(kvp_text_t text, const char *registered)
{
    return text.at != NULL && !kvp_text_is(text, registered);
}

static bool
is_foreign(const kvp_applier_t *a, const kvp_event_t *ev)
{
    return is_other(ev->model, a->terms.model) || is_other(ev->tenant, a->terms.tenant) ||
           (ev->has_rank && ev->dp_rank != a->rank);
}

/* ---- public functions: applying and dropping events */
void
kvp_events_apply_one(kvp_applier_t *a, const kvp_event_t *ev)
{
    a->done.events++;
    if (ev->is_standard && is_foreign(a, ev)) {
        count_skip(a, KVP_SKIP_foreign);
        return;
    }
    if (ev->is_standard && ev->block_size != 0 && ev->block_size != a->terms.block_size) {
        count_skip(a, KVP_SKIP_block_size);
        return;
    }
    if (ev->medium.len > KVP_MEDIUM_NAME_MAX) {
        count_skip(a, KVP_SKIP_medium);
        return;
    }
    if (ev->is_standard && !is_next(a, ev)) return;
    switch (ev->kind) {
    case KVP_EVENT_STORED:
        store_blocks(a, ev);
        break;
    case KVP_EVENT_REMOVED:
        remove_all(a, ev);
        break;
    case KVP_EVENT_DIGEST: /* digests come from pools, and kvp_pools_take handles them */
        break;
    case KVP_EVENT_CLEARED: /* an engine's event clears only its GPU memory; a standard event names the medium */
        a->done.cleared++;
        if (ev->is_standard)
            (void)clear_stream(a, ev);
        else
            kvp_view_clear(a->view, "GPU");
        break;
    }
}

static void
on_event(void *arg, const kvp_event_t *ev)
{
    kvp_events_apply_one(arg, ev);
}

static void
on_skip(void *arg, kvp_skip_t why)
{
    count_skip(arg, why);
}

bool
kvp_events_apply(kvp_applier_t *a, const void *payload, size_t len)
{
    const kvp_decode_ops_t ops = {on_event, on_skip, a};
    uint32_t rank;

    if (kvp_decode(&a->decoder, payload, len, &ops, &rank)) return true;
    count_skip(a, KVP_SKIP_malformed);
    return false;
}

void
kvp_events_drop(kvp_applier_t *a)
{
    kvp_view_clear(a->view, NULL);
    kvp_streams_fini(&a->streams);
}

void
kvp_applier_init(kvp_applier_t *a, kvp_index_t *ix, kvp_spaces_t *spaces, kvp_view_t *view,
                 const kvp_namespace_t *terms, uint32_t rank, uint64_t hash_seed)
{
    memset(a, 0, sizeof *a);
    a->ix = ix;
    a->spaces = spaces;
    a->view = view;
    a->terms = *terms;
    a->rank = rank;
    a->hash_seed = hash_seed;
    kvp_decoder_init(&a->decoder);
    kvp_digestmap_init(&a->streams.young, kvp_random_u64());
}

void
kvp_applier_fini(kvp_applier_t *a)
{
    kvp_decoder_fini(&a->decoder);
    kvp_streams_fini(&a->streams);
}
