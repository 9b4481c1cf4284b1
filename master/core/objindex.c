/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The table is open addressing with linear probing over {tag, oid}; the tag's highest bits name the slot.
 * So a table of twice or half the size has the same order, a resize copies one table into the other from front to back,
 * and no record is looked at for it. While it is under way two tables are live, and every operation moves MOVE_SLOTS
 * slots over: what belongs into the part that is moved goes to the new one, the rest to the old one. Deletion in the old
 * table leaves a tombstone (the table dies soon), in the new one it shifts back.
 *
 * A table lies in pieces that are made when the first slot in them is filled and given back as the move passes them, so
 * neither growing to millions of slots nor dropping the old table is ever one long step. Records lie in blocks for the
 * same reason; a block whose last record went is given back too, but for one.
 */
#include "master/core/objindex.h"
#include "master/core/umap.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BITS 12
#define BLOCK_RECORDS (1u << BLOCK_BITS)
#define BLOCKS_MAX (1u << (31 - BLOCK_BITS))
#define BLOCK_NONE UINT32_MAX
#define PIECE_BITS 13
#define PIECE_SLOTS (1u << PIECE_BITS)
#define MOVE_SLOTS 64u
#define TABLE_MIN 1024u

#define SLOT_EMPTY UINT32_MAX
#define SLOT_TOMB (UINT32_MAX - 1)

typedef struct {
    uint32_t tag; /* high half of the digest's first word */
    uint32_t oid; /* SLOT_EMPTY, SLOT_TOMB, or the object */
} slot_t;

typedef struct {
    slot_t **pieces; /* NULL = nothing in it */
    uint32_t cap; /* slots, a power of two */
    uint32_t n;
} table_t;

typedef struct {
    uint32_t n; /* records in use */
    uint32_t made; /* records ever used; those above were never touched */
    uint32_t free_head; /* index in the block, BLOCK_RECORDS = none */
    uint32_t prev, next; /* blocks with a free record */
    kvp_obj_t records[BLOCK_RECORDS];
} block_t;

struct kvp_objindex {
    table_t now;
    table_t old; /* cap 0 = no resize under way */
    uint32_t old_at; /* slots below are moved */
    block_t **blocks; /* directory of BLOCKS_MAX pointers, touched as it fills; NULL = given back, or not made yet */
    uint32_t blocks_n; /* one above the highest block */
    uint32_t hole; /* no block below is missing */
    uint32_t open; /* first block with a free record, BLOCK_NONE = none */
    uint32_t spare; /* an empty block that is kept, BLOCK_NONE = none */
    uint32_t oldest, youngest;
    uint64_t use_seq;
    uint64_t memory_bytes;
};

static uint32_t
tag_of(kvp_digest_t d)
{
    return (uint32_t)(d.lo >> 32);
}

static uint32_t
home(const table_t *t, uint32_t tag)
{
    return (uint32_t)((uint64_t)tag * t->cap >> 32);
}

static size_t
pieces_of(uint32_t cap)
{
    return (cap + PIECE_SLOTS - 1) >> PIECE_BITS;
}

/* A table smaller than a piece has one that is as long as itself. */
static size_t
piece_bytes(const table_t *t)
{
    return kvp_min_u64(t->cap, PIECE_SLOTS) * sizeof(slot_t);
}

static void
table_init(kvp_objindex_t *ix, table_t *t, uint32_t cap)
{
    *t = (table_t){.cap = cap, .pieces = kvp_core_alloc(pieces_of(cap), sizeof *t->pieces)};
    ix->memory_bytes += pieces_of(cap) * sizeof *t->pieces;
}

static void
piece_drop(kvp_objindex_t *ix, table_t *t, uint32_t piece)
{
    if (t->pieces[piece] == NULL) return;
    free(t->pieces[piece]);
    t->pieces[piece] = NULL;
    ix->memory_bytes -= piece_bytes(t);
}

static void
table_fini(kvp_objindex_t *ix, table_t *t)
{
    for (uint32_t p = 0; p < pieces_of(t->cap); p++)
        piece_drop(ix, t, p);
    ix->memory_bytes -= pieces_of(t->cap) * sizeof *t->pieces;
    free(t->pieces);
    *t = (table_t){0};
}

/* The slot, or NULL where its piece is not there: an empty slot. */
static slot_t *
slot_at(const table_t *t, uint32_t i)
{
    slot_t *piece = t->pieces[i >> PIECE_BITS];

    return piece == NULL ? NULL : &piece[i & (PIECE_SLOTS - 1)];
}

static slot_t *
slot_make(kvp_objindex_t *ix, table_t *t, uint32_t i)
{
    slot_t **piece = &t->pieces[i >> PIECE_BITS];

    if (*piece == NULL) {
        *piece = malloc(piece_bytes(t));
        if (*piece == NULL) kvp_panic("out of memory: index of %u slots", t->cap);
        memset(*piece, 0xff, piece_bytes(t)); /* SLOT_EMPTY */
        ix->memory_bytes += piece_bytes(t);
    }
    return slot_at(t, i);
}

static bool
is_empty(const slot_t *s)
{
    return s == NULL || s->oid == SLOT_EMPTY;
}

kvp_objindex_t *
kvp_objindex_create(void)
{
    kvp_objindex_t *ix = kvp_core_alloc(1, sizeof *ix);

    ix->blocks = kvp_core_alloc(BLOCKS_MAX, sizeof *ix->blocks);
    ix->open = BLOCK_NONE;
    ix->spare = BLOCK_NONE;
    ix->oldest = KVP_OID_NONE;
    ix->youngest = KVP_OID_NONE;
    table_init(ix, &ix->now, TABLE_MIN);
    return ix;
}

void
kvp_objindex_destroy(kvp_objindex_t *ix)
{
    if (ix == NULL) return;
    for (uint32_t b = 0; b < ix->blocks_n; b++) {
        for (uint32_t i = 0; ix->blocks[b] != NULL && i < ix->blocks[b]->made; i++)
            free(ix->blocks[b]->records[i].key);
        free(ix->blocks[b]);
    }
    free(ix->blocks);
    table_fini(ix, &ix->now);
    table_fini(ix, &ix->old);
    free(ix);
}

kvp_obj_t *
kvp_obj(kvp_objindex_t *ix, uint32_t oid)
{
    return &ix->blocks[oid >> BLOCK_BITS]->records[oid & (BLOCK_RECORDS - 1)];
}

uint32_t
kvp_obj_limit(const kvp_objindex_t *ix)
{
    return ix->blocks_n << BLOCK_BITS;
}

uint32_t
kvp_objindex_walk(kvp_objindex_t *ix, uint32_t *cursor, uint32_t end, uint32_t *left)
{
    end = (uint32_t)kvp_min_u64(end, kvp_obj_limit(ix));
    while (*left != 0 && *cursor < end) {
        uint32_t oid = *cursor;
        const block_t *block = ix->blocks[oid >> BLOCK_BITS];

        --*left;
        if (block == NULL || (oid & (BLOCK_RECORDS - 1)) >= block->made) {
            *cursor = ((oid >> BLOCK_BITS) + 1) << BLOCK_BITS;
            continue;
        }
        ++*cursor;
        if (kvp_obj(ix, oid)->state != KVP_OBJ_NONE) return oid;
    }
    return KVP_OID_NONE;
}

/* Where a chain goes on behind slot i. The slots below `from` are moved: there is nothing in them. */
static uint32_t
after(const table_t *t, uint32_t from, uint32_t i)
{
    return i + 1 == t->cap ? from : i + 1;
}

static uint32_t
start(const table_t *t, uint32_t from, uint32_t tag)
{
    return (uint32_t)kvp_max_u64(from, home(t, tag));
}

static uint32_t
table_find(kvp_objindex_t *ix, const table_t *t, uint32_t from, kvp_digest_t d, uint32_t *slot_out)
{
    uint32_t tag = tag_of(d), i = start(t, from, tag);

    for (uint32_t left = t->cap - from; left > 0; left--, i = after(t, from, i)) {
        const slot_t *s = slot_at(t, i);

        if (is_empty(s)) break;
        if (s->oid == SLOT_TOMB || s->tag != tag || !kvp_digest_eq(kvp_obj(ix, s->oid)->digest, d)) continue;
        if (slot_out != NULL) *slot_out = i;
        return s->oid;
    }
    return KVP_OID_NONE;
}

/* False where no slot from `from` on is empty. */
static bool
table_put(kvp_objindex_t *ix, table_t *t, uint32_t from, uint32_t tag, uint32_t oid)
{
    uint32_t i = start(t, from, tag);

    for (uint32_t left = t->cap - from; left > 0; left--, i = after(t, from, i)) {
        if (!is_empty(slot_at(t, i))) continue;
        *slot_make(ix, t, i) = (slot_t){.tag = tag, .oid = oid};
        t->n++;
        return true;
    }
    return false;
}

/* Into the new table, which is never full. */
static void
put_now(kvp_objindex_t *ix, uint32_t tag, uint32_t oid)
{
    if (!table_put(ix, &ix->now, 0, tag, oid)) kvp_panic("index of %u slots is full", ix->now.cap);
}

static void
table_delete_shift(table_t *t, uint32_t hole)
{
    const slot_t *s;

    for (uint32_t i = (hole + 1) & (t->cap - 1); !is_empty(s = slot_at(t, i)); i = (i + 1) & (t->cap - 1)) {
        uint32_t want = home(t, s->tag);

        if (((i - want) & (t->cap - 1)) < ((i - hole) & (t->cap - 1))) continue;
        *slot_at(t, hole) = *s;
        hole = i;
    }
    slot_at(t, hole)->oid = SLOT_EMPTY;
    t->n--;
}

bool
kvp_objindex_step(kvp_objindex_t *ix)
{
    uint32_t end;

    if (ix->old.cap == 0) return false;
    end = (uint32_t)kvp_min_u64((uint64_t)ix->old_at + MOVE_SLOTS, ix->old.cap);
    for (; ix->old_at < end; ix->old_at++) {
        slot_t *s = slot_at(&ix->old, ix->old_at);

        if (is_empty(s) || s->oid == SLOT_TOMB) continue;
        put_now(ix, s->tag, s->oid);
    }
    if (ix->old_at < ix->old.cap) {
        if (ix->old_at % PIECE_SLOTS == 0) piece_drop(ix, &ix->old, (ix->old_at >> PIECE_BITS) - 1);
        return true;
    }
    table_fini(ix, &ix->old);
    ix->old_at = 0;
    return false;
}

/* A resize to twice or half the size is always over before the next one is due: each operation moves MOVE_SLOTS. */
static void
maybe_resize(kvp_objindex_t *ix)
{
    uint32_t cap = 0;

    if (ix->old.cap != 0) {
        (void)kvp_objindex_step(ix);
        return;
    }
    if (ix->now.n >= ix->now.cap / 4 * 3)
        cap = ix->now.cap * 2;
    else if (ix->now.cap > TABLE_MIN && ix->now.n < ix->now.cap / 8)
        cap = ix->now.cap / 2;
    if (cap == 0) return;
    ix->old = ix->now;
    ix->old_at = 0;
    table_init(ix, &ix->now, cap);
}

uint32_t
kvp_objindex_find(kvp_objindex_t *ix, kvp_digest_t digest)
{
    uint32_t oid = table_find(ix, &ix->now, 0, digest, NULL);

    if (oid == KVP_OID_NONE) oid = table_find(ix, &ix->old, ix->old_at, digest, NULL);
    return oid;
}

static void
prefetch_slot(const table_t *t, kvp_digest_t d)
{
    if (t->cap != 0) __builtin_prefetch(slot_at(t, home(t, tag_of(d))));
}

void
kvp_objindex_find_many(kvp_objindex_t *ix, const kvp_digest_t *digests, size_t n, uint32_t *oids)
{
    enum { GROUP = 16 };

    for (size_t at = 0; at < n; at += GROUP) {
        size_t end = at + GROUP < n ? at + GROUP : n;

        for (size_t i = at; i < end; i++) {
            prefetch_slot(&ix->now, digests[i]);
            prefetch_slot(&ix->old, digests[i]);
        }
        for (size_t i = at; i < end; i++) {
            const slot_t *s = slot_at(&ix->now, home(&ix->now, tag_of(digests[i])));

            if (!is_empty(s) && s->tag == tag_of(digests[i])) __builtin_prefetch(kvp_obj(ix, s->oid));
        }
        for (size_t i = at; i < end; i++)
            oids[i] = kvp_objindex_find(ix, digests[i]);
    }
}

/* ---- records */
static void
block_open(kvp_objindex_t *ix, uint32_t b)
{
    ix->blocks[b]->prev = BLOCK_NONE;
    ix->blocks[b]->next = ix->open;
    if (ix->open != BLOCK_NONE) ix->blocks[ix->open]->prev = b;
    ix->open = b;
}

static void
block_close(kvp_objindex_t *ix, uint32_t b)
{
    block_t *block = ix->blocks[b];

    if (block->prev != BLOCK_NONE)
        ix->blocks[block->prev]->next = block->next;
    else
        ix->open = block->next;
    if (block->next != BLOCK_NONE) ix->blocks[block->next]->prev = block->prev;
}

static void
block_make(kvp_objindex_t *ix)
{
    while (ix->hole < ix->blocks_n && ix->blocks[ix->hole] != NULL)
        ix->hole++;
    if (ix->hole == BLOCKS_MAX) kvp_panic("more than %u objects", kvp_obj_limit(ix));
    ix->blocks[ix->hole] = malloc(sizeof(block_t)); /* not calloc: its pages are touched as it fills */
    if (ix->blocks[ix->hole] == NULL) kvp_panic("out of memory: %u objects", kvp_obj_limit(ix));
    ix->blocks[ix->hole]->n = 0;
    ix->blocks[ix->hole]->made = 0;
    ix->blocks[ix->hole]->free_head = BLOCK_RECORDS;
    ix->blocks_n = (uint32_t)kvp_max_u64(ix->blocks_n, (uint64_t)ix->hole + 1);
    ix->memory_bytes += sizeof(block_t);
    block_open(ix, ix->hole);
}

static void
block_drop(kvp_objindex_t *ix, uint32_t b)
{
    block_close(ix, b);
    free(ix->blocks[b]);
    ix->blocks[b] = NULL;
    ix->memory_bytes -= sizeof(block_t);
    ix->hole = (uint32_t)kvp_min_u64(ix->hole, b);
    while (ix->blocks_n > 0 && ix->blocks[ix->blocks_n - 1] == NULL)
        ix->blocks_n--;
}

static uint32_t
record_take(kvp_objindex_t *ix)
{
    block_t *block;
    uint32_t b, i;

    if (ix->open == BLOCK_NONE) block_make(ix);
    b = ix->open;
    block = ix->blocks[b];
    i = block->free_head;
    if (i == BLOCK_RECORDS)
        i = block->made++;
    else
        block->free_head = block->records[i].lru_next;
    if (++block->n == BLOCK_RECORDS) block_close(ix, b);
    if (ix->spare == b) ix->spare = BLOCK_NONE;
    return b << BLOCK_BITS | i;
}

static void
record_give(kvp_objindex_t *ix, uint32_t oid)
{
    uint32_t b = oid >> BLOCK_BITS, i = oid & (BLOCK_RECORDS - 1);
    block_t *block = ix->blocks[b];

    block->records[i] = (kvp_obj_t){.state = KVP_OBJ_NONE, .lru_next = block->free_head};
    block->free_head = i;
    if (block->n-- == BLOCK_RECORDS) block_open(ix, b);
    if (block->n > 0) return;
    /* One is kept, so that a pool at the edge of a block does not make and drop it again and again. */
    if (ix->spare == BLOCK_NONE)
        ix->spare = b;
    else
        block_drop(ix, b);
}

uint32_t
kvp_objindex_add(kvp_objindex_t *ix, kvp_digest_t digest, const void *key, uint16_t key_len)
{
    uint32_t oid = record_take(ix), tag = tag_of(digest);
    kvp_obj_t *o = kvp_obj(ix, oid);
    bool is_later;

    *o = (kvp_obj_t){
        .digest = digest,
        .state = KVP_OBJ_WRITING,
        .key_len = key_len,
        .at.chunk = KVP_OID_NONE,
        .attempt = UINT32_MAX,
    };
    o->key = kvp_core_alloc(1, key_len);
    memcpy(o->key, key, key_len);
    ix->memory_bytes += key_len;
    maybe_resize(ix);
    is_later = ix->old.cap != 0 && home(&ix->old, tag) >= ix->old_at;
    if (!is_later || !table_put(ix, &ix->old, ix->old_at, tag, oid)) put_now(ix, tag, oid);
    return oid;
}

void
kvp_objindex_unlink(kvp_objindex_t *ix, uint32_t oid)
{
    kvp_digest_t d = kvp_obj(ix, oid)->digest;
    uint32_t slot;

    if (table_find(ix, &ix->now, 0, d, &slot) == oid) {
        table_delete_shift(&ix->now, slot);
    } else if (table_find(ix, &ix->old, ix->old_at, d, &slot) == oid) {
        slot_at(&ix->old, slot)->oid = SLOT_TOMB;
    } else {
        kvp_panic("object %u is not in the index", oid);
    }
    maybe_resize(ix);
}

void
kvp_objindex_free(kvp_objindex_t *ix, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(ix, oid);

    kvp_objindex_lru_remove(ix, oid);
    ix->memory_bytes -= o->key_len;
    free(o->key);
    record_give(ix, oid);
}

void
kvp_objindex_lru_remove(kvp_objindex_t *ix, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(ix, oid);

    if (!o->is_listed) return;
    if (o->lru_prev != KVP_OID_NONE)
        kvp_obj(ix, o->lru_prev)->lru_next = o->lru_next;
    else
        ix->oldest = o->lru_next;
    if (o->lru_next != KVP_OID_NONE)
        kvp_obj(ix, o->lru_next)->lru_prev = o->lru_prev;
    else
        ix->youngest = o->lru_prev;
    o->is_listed = 0;
}

void
kvp_objindex_lru_use(kvp_objindex_t *ix, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(ix, oid);

    kvp_objindex_lru_remove(ix, oid);
    o->used_seq = ++ix->use_seq;
    o->lru_prev = ix->youngest;
    o->lru_next = KVP_OID_NONE;
    if (ix->youngest != KVP_OID_NONE)
        kvp_obj(ix, ix->youngest)->lru_next = oid;
    else
        ix->oldest = oid;
    ix->youngest = oid;
    o->is_listed = 1;
}

uint32_t
kvp_objindex_lru_oldest(const kvp_objindex_t *ix)
{
    return ix->oldest;
}

uint64_t
kvp_objindex_memory_bytes(const kvp_objindex_t *ix)
{
    return ix->memory_bytes;
}
