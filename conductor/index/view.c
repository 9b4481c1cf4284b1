/* SPDX-License-Identifier: Apache-2.0
 * See view.h.
 *
 * Design notes.
 * - An entry has 16 bytes. The entries are in 256 tables, each of which grows by a quarter on its own. Entries of one
 *   hash, which differ in the slot, lie in one probe sequence.
 * - Clearing a medium touches no entry: the slot's generation is incremented, entries of another generation count as
 *   0, and the medium's holder ends. kvp_view_sweep later removes this holder from the blocks.
 * - Several entries of one medium may hold one block: hashes of two groups, or two hashes of the same tokens. The
 *   holder leaves the block with the last of these entries. */
#include "conductor/index/view.h"

#include "common/log.h"
#include "conductor/index/keylists.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PART_BITS 8u
#define PARTS (1u << PART_BITS)
#define FREE 0u /* value of `which` in a free entry */
#define GONE 255u
#define CAP_MIN 8u
#define COUNT_MAX UINT16_MAX
#define WALK 2048u

typedef struct {
    uint64_t hash;
    uint32_t block; /* number of the block; KVP_BLOCK_NONE = outside the index */
    uint16_t count;
    uint8_t which; /* slot + 1, or FREE or GONE */
    uint8_t gen; /* generation of the slot when count was set; after a clear of the slot, count means 0 */
} entry_t;

typedef struct {
    entry_t *entries;
    uint32_t cap, used, gone;
} part_t;

typedef struct {
    uint32_t medium, group;
    uint8_t gen; /* generation of the slot, incremented by each clear; never 0 */
    uint64_t resident;
} slot_t;

struct kvp_view {
    kvp_index_t *ix;
    kvp_mix_t mix;
    uint32_t known_max;
    part_t parts[PARTS];
    slot_t slots[KVP_SLOTS_MAX];
    uint32_t slots_n;
    _Atomic(kvp_medium_t *) media[KVP_MEDIA_MAX]; /* media of the publisher; NULL = free */
    uint32_t free_slots; /* a bit for each slot below slots_n that is free */
    uint64_t inserted_n; /* entries inserted since slots were last freed, plus WALK for each call of free_slots */
    kvp_keylists_t keylists; /* lists of the keys in slots of backends */
    /* by block: the number of further entries of the medium that hold the block, beside the first one */
    kvp_digestmap_t more[KVP_MEDIA_MAX];
    kvp_view_stats_t stats;
    kvp_buf_t dead; /* ended holders (uint32_t) that some blocks may still have */
    uint32_t sweep_part, sweep_at; /* position of the sweep; part PARTS = the sweep has ended */
    uint32_t trim_part; /* count of the parts trimmed; modulo PARTS it is the next part for trim_known */
    bool is_ending;
};

/* ---- slots and media */
static kvp_medium_t *
medium_at(const kvp_view_t *v, uint32_t medium)
{
    return atomic_load_explicit(&v->media[medium], memory_order_relaxed);
}

/* Returns the number of the medium, which is created if it is new; KVP_MEDIA_MAX = too many media. */
static uint32_t
medium_of(kvp_view_t *v, const char *name)
{
    uint32_t unused = KVP_MEDIA_MAX;
    kvp_medium_t *m;

    for (uint32_t i = 0; i < KVP_MEDIA_MAX; i++) {
        m = medium_at(v, i);
        if (m != NULL && strcmp(m->name, name) == 0) return i;
        if (m == NULL && unused == KVP_MEDIA_MAX) unused = i;
    }
    if (unused == KVP_MEDIA_MAX) return unused;
    m = calloc(1, sizeof *m);
    if (m == NULL) kvp_panic("out of memory: a medium");
    strcpy(m->name, name);
    atomic_store_explicit(&m->holder, KVP_NO_HOLDER, memory_order_relaxed);
    atomic_store_explicit(&v->media[unused], m, memory_order_release);
    return unused;
}

static void
upper_name(const char *name, size_t len, char out[KVP_MEDIUM_NAME_MAX + 1])
{
    size_t n = kvp_min_u64(len, KVP_MEDIUM_NAME_MAX);

    for (size_t i = 0; i < n; i++)
        out[i] = isalnum((unsigned char)name[i]) || strchr("_-.", name[i]) != NULL
                     ? (char)toupper((unsigned char)name[i])
                     : '_';
    out[n] = '\0';
}

uint32_t
kvp_view_find_slot(const kvp_view_t *v, const char *medium, size_t len, uint32_t group)
{
    char name[KVP_MEDIUM_NAME_MAX + 1];

    upper_name(medium, len, name);
    for (uint32_t i = 0; i < v->slots_n; i++)
        if ((v->free_slots & 1u << i) == 0 && v->slots[i].group == group &&
            strcmp(medium_at(v, v->slots[i].medium)->name, name) == 0)
            return i;
    return KVP_SLOTS_MAX;
}

/* Returns the holder of the slot's medium. The holder is created with the medium's first block. KVP_NO_HOLDER =
 * too many holders. */
static uint32_t
holder_for(kvp_view_t *v, uint32_t slot)
{
    kvp_medium_t *m = medium_at(v, v->slots[slot].medium);
    uint32_t holder = atomic_load_explicit(&m->holder, memory_order_relaxed);

    if (holder != KVP_NO_HOLDER) return holder;
    holder = kvp_index_holder(v->ix);
    atomic_store_explicit(&m->holder, holder, memory_order_release);
    return holder;
}

/* ---- the tables of entries */
static uint64_t
mix_hash(const kvp_view_t *v, uint64_t hash)
{
    return kvp_mix64(&v->mix, hash, 0);
}

static part_t *
part_of(const kvp_view_t *v, uint64_t key)
{
    return (part_t *)&v->parts[key >> (64 - PART_BITS)];
}

static uint32_t
place_of(const part_t *p, uint64_t key)
{
    return (uint32_t)((key << PART_BITS >> 32) * p->cap >> 32);
}

static uint32_t
slot_after(const part_t *p, uint32_t at)
{
    return at + 1 == p->cap ? 0 : at + 1;
}

static void
make_anew(kvp_view_t *v, part_t *p)
{
    part_t was = *p;

    p->used = was.used - was.gone;
    p->gone = 0;
    p->cap = (uint32_t)kvp_max_u64(CAP_MIN, (uint64_t)p->used * 3 / 2 + 1);
    p->entries = calloc(p->cap, sizeof *p->entries);
    if (p->entries == NULL) kvp_panic("out of memory: the blocks of a publisher");
    for (uint32_t i = 0; i < was.cap; i++) {
        uint32_t at;

        if (was.entries[i].which == FREE || was.entries[i].which == GONE) continue;
        at = place_of(p, mix_hash(v, was.entries[i].hash));
        while (p->entries[at].which != FREE)
            at = slot_after(p, at);
        p->entries[at] = was.entries[i];
    }
    free(was.entries);
    v->stats.bytes += (p->cap - (uint64_t)was.cap) * sizeof *p->entries;
    /* the entries have moved, so the sweep of this part begins again */
    if (v->sweep_part < PARTS && p == &v->parts[v->sweep_part]) v->sweep_at = 0;
}

static uint32_t
count_of(const kvp_view_t *v, const entry_t *e)
{
    return e->gen == v->slots[e->which - 1].gen ? e->count : 0;
}

static entry_t *
find_entry(const kvp_view_t *v, uint64_t hash, uint32_t slot)
{
    const uint64_t key = mix_hash(v, hash);
    const part_t *p = part_of(v, key);

    if (p->cap == 0) return NULL;
    for (uint32_t at = place_of(p, key); p->entries[at].which != FREE; at = slot_after(p, at))
        if (p->entries[at].hash == hash && p->entries[at].which == slot + 1) return &p->entries[at];
    return NULL;
}

static entry_t *
insert_entry(kvp_view_t *v, uint64_t hash, uint32_t slot)
{
    const uint64_t key = mix_hash(v, hash);
    part_t *p = part_of(v, key);
    uint32_t at;

    if ((uint64_t)p->used * 20 >= (uint64_t)p->cap * 17) make_anew(v, p);
    at = place_of(p, key);
    while (p->entries[at].which != FREE)
        at = slot_after(p, at);
    p->entries[at] = (entry_t){.hash = hash, .which = (uint8_t)(slot + 1), .gen = v->slots[slot].gen};
    p->used++;
    v->inserted_n++;
    v->stats.known++;
    return &p->entries[at];
}

/* Updates an entry of a slot that was cleared since: removes ended holders from its block and sets its count to 0.
 * Called when the entry is used, and by kvp_view_sweep. */
static void
bring_up(kvp_view_t *v, entry_t *e)
{
    if (e->gen == v->slots[e->which - 1].gen) return;
    if (e->block != KVP_BLOCK_NONE) kvp_index_purge(v->ix, e->block);
    e->gen = v->slots[e->which - 1].gen;
    e->count = 0;
}

static void
rele_block(kvp_view_t *v, uint32_t block)
{
    if (block != KVP_BLOCK_NONE && !kvp_index_rele(v->ix, block)) v->stats.is_damaged = true;
}

/* Removes an entry that holds no copy of its block. */
static void
forget_entry(kvp_view_t *v, part_t *p, entry_t *e)
{
    rele_block(v, e->block);
    e->which = GONE;
    p->gone++;
    v->stats.known--;
}

/* ---- clearing media, and reusing slots */
static void
clear_medium(kvp_view_t *v, uint32_t medium)
{
    kvp_medium_t *m = medium_at(v, medium);
    uint32_t holder = atomic_load_explicit(&m->holder, memory_order_relaxed);

    kvp_digestmap_fini(&v->more[medium]);
    v->sweep_part = v->sweep_at = 0;
    if (holder == KVP_NO_HOLDER) return;
    atomic_store_explicit(&m->holder, KVP_NO_HOLDER, memory_order_release);
    kvp_index_holder_end(v->ix, holder);
    kvp_buf_append(&v->dead, &holder, sizeof holder);
    if (v->dead.err != KVP_OK) kvp_panic("out of memory: holders that ended");
}

/* Retires the media without a used slot. Readers may still see them. */
static void
free_media(kvp_view_t *v)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < v->slots_n; i++)
        if ((v->free_slots & 1u << i) == 0) used |= 1u << v->slots[i].medium;
    for (uint32_t i = 0; i < KVP_MEDIA_MAX; i++) {
        kvp_medium_t *m = medium_at(v, i);

        if (m == NULL || (used & 1u << i) != 0) continue;
        clear_medium(v, i);
        atomic_store_explicit(&v->media[i], NULL, memory_order_relaxed);
        kvp_index_free_later(v->ix, m);
    }
}

/* Returns a bit for each slot that free_slots can free: the empty slots of backends, and all slots of empty media. */
static uint32_t
empty_slots(const kvp_view_t *v)
{
    uint64_t held[KVP_MEDIA_MAX] = {0};
    uint32_t empty = 0;

    for (uint32_t i = 0; i < v->slots_n; i++)
        held[v->slots[i].medium] += v->slots[i].resident;
    for (uint32_t i = 0; i < v->slots_n; i++)
        if (v->slots[i].resident == 0 && (v->slots[i].group >= KVP_GROUP_BACKENDS || held[v->slots[i].medium] == 0))
            empty |= 1u << i;
    return empty & ~v->free_slots;
}

/* Frees empty slots for reuse: a walk over all entries removes the positions that these slots keep. The walk waits
 * until the number of calls and of new entries (inserted_n) justifies its cost; before that a call does nothing. */
static void
free_slots(kvp_view_t *v)
{
    const uint32_t empty = empty_slots(v);

    v->inserted_n += WALK;
    if (empty == 0 || v->inserted_n < v->stats.bytes / sizeof(entry_t) / 2) return;
    for (uint32_t i = 0; i < PARTS; i++) {
        part_t *p = &v->parts[i];

        for (uint32_t k = 0; k < p->cap; k++) {
            entry_t *e = &p->entries[k];

            if (e->which == FREE || e->which == GONE || (empty & 1u << (e->which - 1)) == 0) continue;
            bring_up(v, e);
            forget_entry(v, p, e);
        }
    }
    v->free_slots |= empty;
    v->inserted_n = 0;
    free_media(v);
}

uint32_t
kvp_view_slot(kvp_view_t *v, const char *medium, size_t len, uint32_t group)
{
    uint32_t slot = kvp_view_find_slot(v, medium, len, group), m;
    char name[KVP_MEDIUM_NAME_MAX + 1];

    if (slot != KVP_SLOTS_MAX) return slot;
    upper_name(medium, len, name);
    if (v->slots_n == KVP_SLOTS_MAX && v->free_slots == 0) free_slots(v);
    if (v->slots_n == KVP_SLOTS_MAX && v->free_slots == 0) return KVP_SLOTS_MAX;
    m = medium_of(v, name);
    if (m == KVP_MEDIA_MAX) {
        free_slots(v);
        m = medium_of(v, name);
    }
    if (m == KVP_MEDIA_MAX) return KVP_SLOTS_MAX;
    slot = v->free_slots != 0 ? (uint32_t)__builtin_ctz(v->free_slots) : v->slots_n++;
    v->free_slots &= ~(1u << slot);
    v->slots[slot] = (slot_t){.medium = m, .group = group, .gen = 1};
    return slot;
}

/* ---- positions of hashes */
kvp_place_kind_t
kvp_view_place(const kvp_view_t *v, uint64_t hash, uint32_t *block_out)
{
    return kvp_view_place_in(v, hash, 0, block_out);
}

kvp_place_kind_t
kvp_view_place_in(const kvp_view_t *v, uint64_t hash, uint32_t group, uint32_t *block_out)
{
    const uint64_t key = mix_hash(v, hash);
    const part_t *p = part_of(v, key);

    if (p->cap == 0) return KVP_PLACE_UNKNOWN;
    for (uint32_t at = place_of(p, key); p->entries[at].which != FREE; at = slot_after(p, at)) {
        if (p->entries[at].hash != hash || p->entries[at].which == GONE) continue;
        if (group != 0 && v->slots[p->entries[at].which - 1].group != group) continue;
        *block_out = p->entries[at].block;
        return *block_out == KVP_BLOCK_NONE ? KVP_PLACE_OUTSIDE : KVP_PLACE_BLOCK;
    }
    return KVP_PLACE_UNKNOWN;
}

/* ---- storing and removing copies of blocks */
static kvp_digest_t
digest_of(uint32_t block)
{
    return (kvp_digest_t){.lo = block, .hi = 0};
}

static bool
is_listed(const kvp_view_t *v, const entry_t *e)
{
    return v->slots[e->which - 1].group >= KVP_GROUP_BACKENDS;
}

static bool
is_key_held(void *arg, uint32_t slot, uint64_t key)
{
    const entry_t *e = find_entry(arg, key, slot);

    return e != NULL && count_of(arg, e) > 0;
}

/* Adds the medium's holder to the entry's block, when the entry gets its first copy. */
static void
hold_entry(kvp_view_t *v, const entry_t *e)
{
    const uint32_t medium = v->slots[e->which - 1].medium, holder = holder_for(v, e->which - 1);
    uint64_t *more;

    if (is_listed(v, e))
        kvp_keylists_add(&v->keylists, e->which - 1, kvp_index_space(v->ix, e->block), e->hash, is_key_held, v);
    if (holder == KVP_NO_HOLDER) {
        v->stats.full++;
    } else if (!kvp_index_add(v->ix, e->block, holder)) {
        more = kvp_digestmap_insert(&v->more[medium], digest_of(e->block));
        if (more == NULL) kvp_panic("out of memory: blocks that are held twice");
        ++*more;
    }
}

static void
let_go(kvp_view_t *v, entry_t *e)
{
    slot_t *s = &v->slots[e->which - 1];
    kvp_digestmap_t *map = &v->more[s->medium];
    uint64_t *more;

    e->count = 0;
    s->resident--;
    v->stats.resident--;
    v->stats.known++;
    if (e->block == KVP_BLOCK_NONE) return;
    if (is_listed(v, e)) kvp_keylists_remove(&v->keylists, e->which - 1, kvp_index_space(v->ix, e->block));
    more = kvp_digestmap_at(map, digest_of(e->block));
    if (more == NULL)
        kvp_index_remove(v->ix, e->block, atomic_load_explicit(&medium_at(v, s->medium)->holder, memory_order_relaxed));
    else if (*more == 1)
        kvp_digestmap_remove(map, digest_of(e->block));
    else
        --*more;
}

/* Forgets positions of removed blocks, one table at a time, until at most `most` are left. */
static void
trim_known(kvp_view_t *v, uint64_t most)
{
    for (uint32_t n = 0; n < PARTS && v->stats.known > most; n++) {
        part_t *p = &v->parts[v->trim_part++ % PARTS];

        for (uint32_t i = 0; i < p->cap; i++) {
            entry_t *e = &p->entries[i];

            if (e->which == FREE || e->which == GONE || count_of(v, e) > 0) continue;
            bring_up(v, e);
            forget_entry(v, p, e);
        }
    }
}

/* Finds or adds the entry of the hash in the slot, and sets its block. Takes over the caller's reference to block. */
static entry_t *
entry_at(kvp_view_t *v, uint32_t slot, uint64_t hash, uint32_t block)
{
    entry_t *e = find_entry(v, hash, slot);

    if (e == NULL) {
        e = insert_entry(v, hash, slot);
        e->block = block;
    } else {
        bring_up(v, e);
        if (e->block != block) { /* the publisher uses the hash for another block now, as a new process may do */
            if (e->count > 0) let_go(v, e);
            rele_block(v, e->block);
            e->block = block;
        } else {
            rele_block(v, block); /* drops the caller's reference, because the entry already has one */
        }
    }
    return e;
}

void
kvp_view_learn(kvp_view_t *v, uint32_t slot, uint64_t hash, uint32_t block)
{
    (void)entry_at(v, slot, hash, block);
    if (v->stats.known > v->known_max) trim_known(v, v->known_max);
}

void
kvp_view_unlearn(kvp_view_t *v, uint64_t hash)
{
    const uint64_t key = mix_hash(v, hash);
    part_t *p = part_of(v, key);

    if (p->cap == 0) return;
    for (uint32_t at = place_of(p, key); p->entries[at].which != FREE; at = slot_after(p, at)) {
        entry_t *e = &p->entries[at];

        if (e->which == GONE || e->hash != hash || count_of(v, e) > 0) continue;
        bring_up(v, e);
        forget_entry(v, p, e);
    }
}

void
kvp_view_store(kvp_view_t *v, uint32_t slot, uint64_t hash, uint32_t block, bool is_counted)
{
    entry_t *e = entry_at(v, slot, hash, block);

    if (e->count > 0) {
        if (is_counted && e->count < COUNT_MAX) e->count++;
        return;
    }
    e->count = 1;
    v->slots[slot].resident++;
    v->stats.resident++;
    v->stats.known--;
    if (block != KVP_BLOCK_NONE) hold_entry(v, e);
}

bool
kvp_view_remove(kvp_view_t *v, uint32_t slot, uint64_t hash)
{
    entry_t *e = find_entry(v, hash, slot);

    if (e == NULL || count_of(v, e) == 0) {
        v->stats.unknown++;
        return false;
    }
    if (e->count == COUNT_MAX) return true; /* a saturated counter stays: the number of copies is unknown */
    if (--e->count == 0) let_go(v, e);
    if (v->stats.known > v->known_max) trim_known(v, v->known_max);
    return true;
}

void
kvp_view_forget(kvp_view_t *v)
{
    trim_known(v, 0);
}

/* ---- clearing a medium or a namespace */
void
kvp_view_clear(kvp_view_t *v, const char *medium)
{
    uint32_t cleared = 0;
    bool is_round = false;

    for (uint32_t i = 0; i < v->slots_n; i++) {
        slot_t *s = &v->slots[i];

        if ((v->free_slots & 1u << i) != 0) continue;
        if (medium != NULL && strcmp(medium_at(v, s->medium)->name, medium) != 0) continue;
        cleared |= 1u << i;
        is_round |= s->gen == UINT8_MAX;
        s->gen++; /* generation 0 is never in an entry */
        v->stats.resident -= s->resident;
        v->stats.known += s->resident;
        s->resident = 0;
        clear_medium(v, s->medium);
    }
    kvp_keylists_drop(&v->keylists, cleared);
    /* The counter of generations has wrapped around. Without a full sweep, entries of old generations would count
     * again. */
    while (is_round && kvp_view_sweep(v, UINT32_MAX))
        continue;
    for (uint32_t i = 0; i < v->slots_n && is_round; i++)
        if (v->slots[i].gen == 0) v->slots[i].gen = 1;
}

/* Clears the blocks of one namespace in a slot. If the medium holds nothing else, the medium is cleared as a
 * whole, which touches no entry. */
bool
kvp_view_clear_space(kvp_view_t *v, uint32_t slot, uint32_t space)
{
    const uint32_t medium = v->slots[slot].medium, held = kvp_keylists_held(&v->keylists, slot, space);
    uint64_t resident = 0;
    kvp_buf_t keys;

    for (uint32_t i = 0; i < v->slots_n; i++)
        if (v->slots[i].medium == medium) resident += v->slots[i].resident;
    if (held > 0 && held == resident) {
        kvp_view_clear(v, medium_at(v, medium)->name);
        return true;
    }
    kvp_keylists_take(&v->keylists, slot, space, &keys);
    for (size_t i = 0; i < keys.len / sizeof(uint64_t); i++) {
        entry_t *e = find_entry(v, ((const uint64_t *)keys.data)[i], slot);

        if (e != NULL && count_of(v, e) > 0 && e->block != KVP_BLOCK_NONE && kvp_index_space(v->ix, e->block) == space)
            let_go(v, e);
    }
    kvp_buf_fini(&keys);
    if (v->stats.known > v->known_max) trim_known(v, v->known_max);
    return held > 0;
}

void
kvp_view_repair(kvp_view_t *v)
{
    kvp_view_clear(v, NULL);
    trim_known(v, 0);
    v->stats.is_damaged = false;
}

void
kvp_view_end(kvp_view_t *v)
{
    kvp_view_clear(v, NULL);
    v->is_ending = true;
    v->sweep_part = v->sweep_at = 0;
}

bool
kvp_view_sweep(kvp_view_t *v, uint32_t most)
{
    for (; v->sweep_part < PARTS; v->sweep_part++, v->sweep_at = 0) {
        part_t *p = &v->parts[v->sweep_part];

        for (; v->sweep_at < p->cap; v->sweep_at++) {
            entry_t *e = &p->entries[v->sweep_at];

            if (most-- == 0) return true;
            if (e->which == FREE || e->which == GONE) continue;
            bring_up(v, e);
            if (v->is_ending) forget_entry(v, p, e);
        }
    }
    for (; v->dead.len > 0; v->dead.len -= sizeof(uint32_t)) {
        uint32_t holder;

        memcpy(&holder, v->dead.data + v->dead.len - sizeof holder, sizeof holder);
        kvp_index_holder_free(v->ix, holder);
    }
    return false;
}

/* ---- functions for readers, statistics, creation and destruction */
const kvp_medium_t *
kvp_view_medium(const kvp_view_t *v, uint32_t i)
{
    return atomic_load_explicit(&v->media[i], memory_order_acquire);
}

void
kvp_view_stats(const kvp_view_t *v, kvp_view_stats_t *out)
{
    *out = v->stats;
    out->bytes += sizeof *v;
    for (uint32_t i = 0; i < KVP_MEDIA_MAX; i++)
        out->bytes += v->more[i].cap * sizeof *v->more[i].slots;
}

kvp_view_t *
kvp_view_create(kvp_index_t *ix, uint64_t seed, uint32_t known_max)
{
    kvp_view_t *v = calloc(1, sizeof *v);

    if (v == NULL) return NULL;
    v->ix = ix;
    v->mix = kvp_mix_make(seed);
    v->known_max = known_max;
    v->sweep_part = PARTS;
    for (uint32_t i = 0; i < KVP_MEDIA_MAX; i++)
        kvp_digestmap_init(&v->more[i], seed);
    kvp_keylists_init(&v->keylists, seed);
    kvp_buf_init(&v->dead, 0);
    return v;
}

void
kvp_view_destroy(kvp_view_t *v)
{
    if (v == NULL) return;
    kvp_view_end(v);
    while (kvp_view_sweep(v, UINT32_MAX))
        continue;
    for (uint32_t i = 0; i < PARTS; i++)
        free(v->parts[i].entries);
    for (uint32_t i = 0; i < KVP_MEDIA_MAX; i++) {
        kvp_digestmap_fini(&v->more[i]);
        free(medium_at(v, i));
    }
    kvp_keylists_fini(&v->keylists);
    kvp_buf_fini(&v->dead);
    free(v);
}
