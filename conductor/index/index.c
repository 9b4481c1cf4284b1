/* SPDX-License-Identifier: Apache-2.0
 * See index.h.
 *
 * Design notes.
 * - Blocks lie in pieces that never move. A table finds them: 4096 parts by the upper bits of the mixed hash, each of
 *   which grows by a quarter on its own, so that no growth takes long and little memory is unused. An entry has 32
 *   bits of the hash beside the number: in most cases a look-up reads one entry and one block.
 * - Entries never move within a table: a removed entry leaves a mark, and a full table is replaced by a copy without
 *   marks. So a reader misses no entry that stays. */
#include "conductor/index/index.h"

#include "common/hash.h"
#include "common/log.h"
#include "conductor/index/orphans.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PART_BITS 12u
#define PARTS (1u << PART_BITS)
#define PIECE_BITS 16u
#define PIECE (1u << PIECE_BITS) /* number of blocks in a piece */
#define PIECES (1u << (32 - PIECE_BITS))
#define GONE 1u /* block number that marks a removed entry; numbers of blocks begin at FIRST */
#define FIRST 2u
#define CAP_MIN 8u

typedef struct {
    uint64_t hash;
    _Atomic uint32_t set;
    uint32_t space;
    uint32_t users; /* number of references; 0 = the block is free, or is freed when no reader can see it */
    _Atomic uint32_t depth;
} block_t;

typedef struct {
    uint32_t cap;
    _Atomic uint64_t entries[]; /* an entry: upper half: bits of the hash; lower half: number of the block, 0 = free */
} table_t;

typedef struct {
    _Atomic(table_t *) table;
    uint32_t used, gone;
} part_t;

struct kvp_index {
    kvp_epoch_t *epoch;
    kvp_spaces_t *spaces;
    kvp_sets_t *sets;
    kvp_mix_t mix;
    uint32_t blocks_max;
    part_t parts[PARTS];
    _Atomic(block_t *) pieces[PIECES];
    uint32_t numbers; /* count of block numbers that were ever assigned */
    kvp_orphans_t orphans;
    kvp_buf_t learning; /* numbers (uint32_t) of blocks with a new depth; their children's depths are set next */
    uint64_t blocks, bytes, left_out;
    kvp_buf_t spare; /* stack of free block numbers (uint32_t) */
    kvp_buf_t spare_holders; /* stack of free holder numbers (uint32_t) */
    uint32_t holders_n;
    bool is_dead[KVP_HOLDERS_MAX];
};

/* ---- blocks and their memory */
static block_t *
block_at(const kvp_index_t *ix, uint32_t number)
{
    return &atomic_load_explicit(&ix->pieces[number >> PIECE_BITS], memory_order_acquire)[number & (PIECE - 1)];
}

static void
free_block(void *arg, uintptr_t what)
{
    kvp_index_t *ix = arg;
    uint32_t number = (uint32_t)what;

    kvp_buf_append(&ix->spare, &number, sizeof number);
    if (ix->spare.err != KVP_OK) kvp_panic("out of memory: numbers of blocks");
}

/* Allocates memory for a piece of blocks, in huge pages if possible, because look-ups are random. */
static block_t *
new_piece(void)
{
    void *at = mmap(NULL, PIECE * sizeof(block_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED) kvp_panic("out of memory: blocks");
    (void)madvise(at, PIECE * sizeof(block_t), MADV_HUGEPAGE);
    return at;
}

static uint32_t
new_number(kvp_index_t *ix)
{
    uint32_t number;

    if (ix->spare.len > 0) {
        ix->spare.len -= sizeof number;
        memcpy(&number, ix->spare.data + ix->spare.len, sizeof number);
        return number;
    }
    number = ix->numbers++;
    if (atomic_load_explicit(&ix->pieces[number >> PIECE_BITS], memory_order_relaxed) == NULL) {
        atomic_store_explicit(&ix->pieces[number >> PIECE_BITS], new_piece(), memory_order_release);
        ix->bytes += PIECE * sizeof(block_t);
    }
    return number;
}

/* ---- the hash table of blocks */
static uint64_t
mix_hash(const kvp_index_t *ix, uint32_t space, uint64_t hash)
{
    return kvp_mix64(&ix->mix, hash, space);
}

static part_t *
part_of(const kvp_index_t *ix, uint64_t key)
{
    return (part_t *)&ix->parts[key >> (64 - PART_BITS)];
}

static uint32_t
place_of(const table_t *t, uint64_t key)
{
    return (uint32_t)((key << PART_BITS >> 32) * t->cap >> 32);
}

static uint64_t
entry_of(uint64_t key, uint32_t number)
{
    return key << 32 | number;
}

static void
free_table(void *arg, uintptr_t what)
{
    (void)arg;
    free((void *)what);
}

static void
make_anew(kvp_index_t *ix, part_t *p)
{
    table_t *old = atomic_load_explicit(&p->table, memory_order_relaxed), *t;
    const uint32_t live = p->used - p->gone;
    const uint32_t cap = (uint32_t)kvp_max_u64(CAP_MIN, (uint64_t)live * 3 / 2 + 1);

    t = calloc(1, sizeof *t + cap * sizeof t->entries[0]);
    if (t == NULL) kvp_panic("out of memory: the table of blocks");
    t->cap = cap;
    for (uint32_t i = 0; old != NULL && i < old->cap; i++) {
        const uint64_t entry = atomic_load_explicit(&old->entries[i], memory_order_relaxed);
        const block_t *b;
        uint32_t at;

        if ((uint32_t)entry < FIRST) continue;
        b = block_at(ix, (uint32_t)entry);
        at = place_of(t, mix_hash(ix, b->space, b->hash));
        while (t->entries[at] != 0)
            at = at + 1 == cap ? 0 : at + 1;
        atomic_store_explicit(&t->entries[at], entry, memory_order_relaxed);
    }
    p->used = live;
    p->gone = 0;
    ix->bytes += sizeof *t + cap * sizeof t->entries[0];
    atomic_store_explicit(&p->table, t, memory_order_release);
    if (old == NULL) return;
    ix->bytes -= sizeof *old + old->cap * sizeof old->entries[0];
    kvp_epoch_retire(ix->epoch, free_table, NULL, (uintptr_t)old);
}

/* Returns the number of the block with this namespace and hash, or KVP_BLOCK_NONE. *place_out: index of its entry. */
static uint32_t
find_block(const kvp_index_t *ix, const table_t *t, uint64_t key, uint32_t space, uint64_t hash, uint32_t *place_out)
{
    uint32_t at;

    if (t == NULL) return KVP_BLOCK_NONE;
    at = place_of(t, key);
    for (uint32_t n = 0; n < t->cap; n++, at = at + 1 == t->cap ? 0 : at + 1) {
        const uint64_t entry = atomic_load_explicit(&t->entries[at], memory_order_acquire);
        const block_t *b;

        if (entry == 0) break;
        if (entry >> 32 != (uint32_t)key || (uint32_t)entry < FIRST) continue;
        b = block_at(ix, (uint32_t)entry);
        if (b->hash != hash || b->space != space) continue;
        *place_out = at;
        return (uint32_t)entry;
    }
    return KVP_BLOCK_NONE;
}

static uint32_t
depth_of(const block_t *b)
{
    return atomic_load_explicit(&b->depth, memory_order_relaxed);
}

static void
learn_depth(kvp_index_t *ix, uint32_t number, uint32_t depth)
{
    kvp_orphans_remove(&ix->orphans, number);
    atomic_store_explicit(&block_at(ix, number)->depth, depth, memory_order_relaxed);
    kvp_buf_append(&ix->learning, &number, sizeof number);
    if (ix->learning.err != KVP_OK) kvp_panic("out of memory: depths of blocks");
}

/* Sets the depth of the block, and of all blocks that wait for the depth of this block. */
static void
learn_depths(kvp_index_t *ix, uint32_t number, uint32_t depth)
{
    learn_depth(ix, number, depth);
    while (ix->learning.len > 0) {
        const block_t *b;
        uint32_t child;

        ix->learning.len -= sizeof number;
        memcpy(&number, ix->learning.data + ix->learning.len, sizeof number);
        b = block_at(ix, number);
        while ((child = kvp_orphans_take(&ix->orphans, b->space, b->hash)) != 0)
            learn_depth(ix, child, depth_of(b) + 1);
    }
}

uint32_t
kvp_index_use(kvp_index_t *ix, uint32_t space, uint64_t hash, uint32_t depth)
{
    const uint64_t key = mix_hash(ix, space, hash);
    part_t *p = part_of(ix, key);
    table_t *t = atomic_load_explicit(&p->table, memory_order_relaxed);
    uint32_t at, number = find_block(ix, t, key, space, hash, &at);
    block_t *b;

    if (number != KVP_BLOCK_NONE) {
        b = block_at(ix, number);
        b->users++;
        if (depth != KVP_DEPTH_UNKNOWN && depth_of(b) == KVP_DEPTH_UNKNOWN) learn_depths(ix, number, depth);
        return number;
    }
    if (ix->blocks >= ix->blocks_max) return KVP_BLOCK_NONE;
    if (t == NULL || (uint64_t)p->used * 20 >= (uint64_t)t->cap * 17) {
        make_anew(ix, p);
        t = atomic_load_explicit(&p->table, memory_order_relaxed);
    }
    number = new_number(ix);
    b = block_at(ix, number);
    b->hash = hash;
    b->space = space;
    b->users = 1;
    atomic_store_explicit(&b->depth, depth, memory_order_relaxed);
    atomic_store_explicit(&b->set, KVP_SET_NONE, memory_order_relaxed);
    at = place_of(t, key);
    while (atomic_load_explicit(&t->entries[at], memory_order_relaxed) != 0)
        at = at + 1 == t->cap ? 0 : at + 1;
    atomic_store_explicit(&t->entries[at], entry_of(key, number), memory_order_release);
    p->used++;
    ix->blocks++;
    kvp_spaces_hold(ix->spaces, space);
    if (depth != KVP_DEPTH_UNKNOWN) learn_depths(ix, number, depth);
    return number;
}

uint32_t
kvp_index_use_behind(kvp_index_t *ix, uint32_t space, uint64_t hash, uint64_t parent)
{
    const uint64_t key = mix_hash(ix, space, parent);
    const table_t *t = atomic_load_explicit(&part_of(ix, key)->table, memory_order_relaxed);
    uint32_t at, number = find_block(ix, t, key, space, parent, &at);
    uint32_t depth = number == KVP_BLOCK_NONE ? KVP_DEPTH_UNKNOWN : depth_of(block_at(ix, number));

    if (depth != KVP_DEPTH_UNKNOWN) depth++;
    number = kvp_index_use(ix, space, hash, depth);
    if (number != KVP_BLOCK_NONE && depth_of(block_at(ix, number)) == KVP_DEPTH_UNKNOWN)
        kvp_orphans_add(&ix->orphans, number, space, parent);
    return number;
}

/* Removes the block's entry from the table. Returns false if the table does not have the block. */
static bool
take_out(kvp_index_t *ix, uint32_t number)
{
    const block_t *b = block_at(ix, number);
    const uint64_t key = mix_hash(ix, b->space, b->hash);
    part_t *p = part_of(ix, key);
    table_t *t = atomic_load_explicit(&p->table, memory_order_relaxed);
    uint32_t at;

    if (find_block(ix, t, key, b->space, b->hash, &at) != number) return false;
    atomic_store_explicit(&t->entries[at], GONE, memory_order_release);
    p->gone++;
    ix->blocks--;
    kvp_spaces_release(ix->spaces, b->space);
    return true;
}

bool
kvp_index_rele(kvp_index_t *ix, uint32_t number)
{
    block_t *b = block_at(ix, number);
    const bool has_user = b->users > 0;
    bool is_sound;

    if (has_user && --b->users > 0) return true;
    kvp_orphans_remove(&ix->orphans, number);
    is_sound = take_out(ix, number) && has_user && atomic_load_explicit(&b->set, memory_order_relaxed) == KVP_SET_NONE;
    if (is_sound) {
        kvp_epoch_retire(ix->epoch, free_block, ix, number);
        return true;
    }
    ix->left_out++;
    kvp_log_error("conductor", "a block is left out: its users and its holders contradict each other block=%u", number);
    return false;
}

/* ---- the set of a block's holders */
static uint32_t
set_of(const block_t *b)
{
    return atomic_load_explicit(&b->set, memory_order_relaxed);
}

bool
kvp_index_add(kvp_index_t *ix, uint32_t number, uint32_t holder)
{
    block_t *b = block_at(ix, number);
    const uint32_t was = set_of(b), now = kvp_sets_with(ix->sets, was, holder);

    atomic_store_explicit(&b->set, now, memory_order_release);
    return now != was;
}

void
kvp_index_remove(kvp_index_t *ix, uint32_t number, uint32_t holder)
{
    block_t *b = block_at(ix, number);

    atomic_store_explicit(&b->set, kvp_sets_without(ix->sets, set_of(b), holder), memory_order_release);
}

void
kvp_index_purge(kvp_index_t *ix, uint32_t number)
{
    block_t *b = block_at(ix, number);

    atomic_store_explicit(&b->set, kvp_sets_purge(ix->sets, set_of(b), ix->is_dead), memory_order_release);
}

uint32_t
kvp_index_holder(kvp_index_t *ix)
{
    uint32_t holder = ix->holders_n;

    if (ix->spare_holders.len > 0) {
        ix->spare_holders.len -= sizeof holder;
        memcpy(&holder, ix->spare_holders.data + ix->spare_holders.len, sizeof holder);
    } else if (holder == KVP_HOLDERS_MAX) {
        return KVP_HOLDERS_MAX;
    } else {
        ix->holders_n++;
    }
    ix->is_dead[holder] = false;
    return holder;
}

void
kvp_index_holder_end(kvp_index_t *ix, uint32_t holder)
{
    ix->is_dead[holder] = true;
}

static void
free_holder(void *arg, uintptr_t what)
{
    kvp_index_t *ix = arg;
    uint32_t holder = (uint32_t)what;

    kvp_buf_append(&ix->spare_holders, &holder, sizeof holder);
    if (ix->spare_holders.err != KVP_OK) kvp_panic("out of memory: numbers of holders");
}

void
kvp_index_holder_free(kvp_index_t *ix, uint32_t holder)
{
    kvp_epoch_retire(ix->epoch, free_holder, ix, holder);
}

static void
free_memory(void *arg, uintptr_t what)
{
    (void)arg;
    free((void *)what);
}

void
kvp_index_free_later(kvp_index_t *ix, void *memory)
{
    kvp_epoch_retire(ix->epoch, free_memory, NULL, (uintptr_t)memory);
}

uint64_t
kvp_index_hash(const kvp_index_t *ix, uint32_t block)
{
    return block_at(ix, block)->hash;
}

uint32_t
kvp_index_space(const kvp_index_t *ix, uint32_t block)
{
    return block_at(ix, block)->space;
}

uint32_t
kvp_index_depth(const kvp_index_t *ix, uint32_t block)
{
    return depth_of(block_at(ix, block));
}

/* ---- look-ups by readers */
/* Looks up n blocks in three passes (tables, entries, blocks), so that the CPU fetches the memory of all blocks in
 * parallel. */
void
kvp_index_find(const kvp_index_t *ix, uint32_t space, uint32_t depth, const uint64_t *hashes, size_t n,
               uint32_t *sets_out)
{
    const table_t *tables[KVP_LOOK_AHEAD];
    uint64_t keys[KVP_LOOK_AHEAD];

    for (size_t i = 0; i < n; i++) {
        keys[i] = mix_hash(ix, space, hashes[i]);
        tables[i] = atomic_load_explicit(&part_of(ix, keys[i])->table, memory_order_acquire);
        if (tables[i] != NULL) __builtin_prefetch(&tables[i]->entries[place_of(tables[i], keys[i])]);
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t entry;

        if (tables[i] == NULL) continue;
        entry = atomic_load_explicit(&tables[i]->entries[place_of(tables[i], keys[i])], memory_order_acquire);
        if (entry >> 32 == (uint32_t)keys[i] && (uint32_t)entry >= FIRST)
            __builtin_prefetch(block_at(ix, (uint32_t)entry));
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t at;
        const uint32_t number = find_block(ix, tables[i], keys[i], space, hashes[i], &at);
        const block_t *b = number == KVP_BLOCK_NONE ? NULL : block_at(ix, number);

        sets_out[i] = b == NULL || (depth_of(b) != depth + i && depth_of(b) != KVP_DEPTH_UNKNOWN)
                          ? KVP_SET_NONE
                          : atomic_load_explicit(&b->set, memory_order_acquire);
    }
}

const kvp_sets_t *
kvp_index_sets(const kvp_index_t *ix)
{
    return ix->sets;
}

void
kvp_index_stats(const kvp_index_t *ix, kvp_index_stats_t *out)
{
    *out = (kvp_index_stats_t){ix->blocks, ix->bytes + kvp_sets_bytes(ix->sets), ix->left_out};
}

/* ---- creation and destruction */
kvp_index_t *
kvp_index_create(kvp_epoch_t *epoch, kvp_spaces_t *spaces, uint64_t seed, uint32_t blocks_max)
{
    kvp_index_t *ix = calloc(1, sizeof *ix);

    if (ix == NULL) return NULL;
    ix->epoch = epoch;
    ix->spaces = spaces;
    ix->mix = kvp_mix_make(seed);
    ix->numbers = FIRST;
    ix->blocks_max = blocks_max;
    kvp_buf_init(&ix->spare, 0);
    kvp_buf_init(&ix->spare_holders, 0);
    kvp_buf_init(&ix->learning, 0);
    kvp_orphans_init(&ix->orphans, seed);
    ix->sets = kvp_sets_create(epoch);
    if (ix->sets != NULL) return ix;
    kvp_index_destroy(ix);
    return NULL;
}

void
kvp_index_destroy(kvp_index_t *ix)
{
    if (ix == NULL) return;
    for (uint32_t i = 0; i < PARTS; i++)
        free(atomic_load_explicit(&ix->parts[i].table, memory_order_relaxed));
    for (uint32_t i = 0; i < PIECES; i++) {
        block_t *piece = atomic_load_explicit(&ix->pieces[i], memory_order_relaxed);

        if (piece != NULL) (void)munmap(piece, PIECE * sizeof *piece);
    }
    kvp_sets_destroy(ix->sets);
    kvp_buf_fini(&ix->spare);
    kvp_buf_fini(&ix->spare_holders);
    kvp_buf_fini(&ix->learning);
    kvp_orphans_fini(&ix->orphans);
    free(ix);
}
