/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A bucket is one cache line: ten tags and ten oids. An object lies in its home bucket or, if that is full, in the
 *   next bucket with a free slot. Each bucket counts the objects whose probing passed it, so that a search ends at
 *   the first bucket that no object passed, and a removal leaves no mark.
 * - A digest is mixed with a secret, so that no client can choose digests that share a home. A search compares the 64
 *   mixed bits in the record and the 16 bits of the tag. An absent key is mistaken for another with a chance of n *
 *   2^-80 a lookup, one in 10^17 with 10^7 keys. The result would be a false `exists`, or a get that misses: the
 *   reader compares the whole digest and a second hash of the key with the descriptor, and a put compares the whole
 *   key. Wrong bytes are never returned.
 * - The home is the upper bits of the record's id, in the same order for every number of buckets: so a resize copies
 *   one table into the other from front to back. During a resize two tables are live, and every change moves
 *   MOVE_BUCKETS: objects of the moved part go to the new table, others to the old one.
 * - A table consists of pieces, allocated with the first object in them and freed when the move has passed them, so
 *   neither growing to millions of buckets nor dropping the old table is one long step. */
#include "master/core/catalog/table.h"

#include "common/hash.h"
#include "common/pages.h"
#include "common/recpool.h"
#include "master/core/base/ctx.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/index.h"

#include <stdlib.h>

#define BUCKET_SLOTS 10u
#define PIECE_BITS 12
#define PIECE_BUCKETS (1u << PIECE_BITS)
#define MOVE_BUCKETS 2u
#define BUCKETS_MIN 64u
#define GROW_PERCENT 85u /* the table grows at this percentage of used slots */
#define SHRINK_PERCENT 45u

struct kvp_objbucket {
    uint16_t tags[BUCKET_SLOTS]; /* 0 = empty */
    /* number of objects whose home bucket is this or an earlier one, and which lie in a later bucket */
    uint32_t passed;
    uint32_t oids[BUCKET_SLOTS];
};

_Static_assert(sizeof(kvp_objbucket_t) == 64, "a bucket is a cache line");

/* The bits of a digest, mixed with the secret, that the table compares. */
typedef struct {
    uint64_t id;
    uint16_t tag; /* not 0 */
} name_t;

static inline name_t
name_of(const kvp_objtable_t *t, kvp_digest_t d)
{
    unsigned __int128 mixed = kvp_mix(&t->mix, d.lo, d.hi);
    uint64_t low = (uint64_t)mixed;

    return (name_t){.id = low ^ (uint64_t)(mixed >> 64), .tag = (uint16_t)kvp_max_u64(low >> 48, 1)};
}

static const kvp_obj_t *
record_at(const kvp_objtable_t *t, uint32_t oid)
{
    return kvp_recpool_at(t->records, oid);
}

static uint32_t
home_bucket(const kvp_objpart_t *p, uint64_t id)
{
    return (uint32_t)((id >> 32) * p->cap >> 32);
}

/* ---- pieces */
static size_t
pieces_of(uint32_t cap)
{
    return (cap + PIECE_BUCKETS - 1) >> PIECE_BITS;
}

/* Returns the bytes of a piece. A table with fewer buckets than a piece has one piece of its own length. */
static size_t
piece_bytes(const kvp_objpart_t *p)
{
    return kvp_min_u64(p->cap, PIECE_BUCKETS) * sizeof(kvp_objbucket_t);
}

static void
part_init(kvp_objtable_t *t, kvp_objpart_t *p, uint32_t cap)
{
    *p = (kvp_objpart_t){.cap = cap, .pieces = kvp_core_alloc(pieces_of(cap), sizeof(kvp_objbucket_t *))};
    t->memory_bytes += pieces_of(cap) * sizeof *p->pieces;
}

static void
piece_drop(kvp_objtable_t *t, kvp_objpart_t *p, uint32_t piece)
{
    if (p->pieces[piece] == NULL) return;
    kvp_pages_free(p->pieces[piece], piece_bytes(p));
    p->pieces[piece] = NULL;
    t->memory_bytes -= piece_bytes(p);
}

static void
part_fini(kvp_objtable_t *t, kvp_objpart_t *p)
{
    for (uint32_t i = 0; i < pieces_of(p->cap); i++)
        piece_drop(t, p, i);
    t->memory_bytes -= pieces_of(p->cap) * sizeof *p->pieces;
    free(p->pieces);
    *p = (kvp_objpart_t){0};
}

/* Returns bucket i; NULL = its piece of the table is not allocated, so the bucket is empty. */
static kvp_objbucket_t *
bucket_at(const kvp_objpart_t *p, uint32_t i)
{
    kvp_objbucket_t *piece = p->pieces[i >> PIECE_BITS];

    return piece == NULL ? NULL : &piece[i & (PIECE_BUCKETS - 1)];
}

static kvp_objbucket_t *
bucket_make(kvp_objtable_t *t, kvp_objpart_t *p, uint32_t i)
{
    kvp_objbucket_t **piece = &p->pieces[i >> PIECE_BITS];

    if (*piece == NULL) {
        *piece = p->cap < PIECE_BUCKETS ? kvp_pages_alloc(piece_bytes(p)) : kvp_pages_take(piece_bytes(p));
        if (*piece == NULL) kvp_panic("out of memory: index of %u buckets", p->cap);
        t->memory_bytes += piece_bytes(p);
    }
    return bucket_at(p, i);
}

/* ---- chains of buckets. During a resize the buckets of the old table below `from` are skipped: they were moved. */
static uint32_t
chain_start(const kvp_objpart_t *p, uint32_t from, uint64_t id)
{
    return (uint32_t)kvp_max_u64(from, home_bucket(p, id));
}

static uint32_t
chain_next(const kvp_objpart_t *p, uint32_t from, uint32_t i)
{
    return i + 1 == p->cap ? from : i + 1;
}

/* Returns a mask with a bit for each slot of the bucket that has this tag. */
static uint32_t
slots_with(const kvp_objbucket_t *b, uint16_t tag)
{
    uint32_t mask = 0;

    for (uint32_t k = 0; k < BUCKET_SLOTS; k++)
        mask |= (uint32_t)(b->tags[k] == tag) << k;
    return mask;
}

static uint32_t
part_find(const kvp_objtable_t *t, const kvp_objpart_t *p, uint32_t from, name_t name)
{
    uint32_t i = chain_start(p, from, name.id);

    for (uint32_t left = p->cap - from; left > 0; left--, i = chain_next(p, from, i)) {
        const kvp_objbucket_t *b = bucket_at(p, i);

        if (b == NULL) break;
        for (uint32_t mask = slots_with(b, name.tag); mask != 0; mask &= mask - 1) {
            uint32_t oid = b->oids[__builtin_ctz(mask)];

            if (record_at(t, oid)->id == name.id) return oid;
        }
        if (b->passed == 0) break;
    }
    return KVP_OID_NONE;
}

/* Adds the object to the table. Returns false if no bucket from `from` on has a free slot. */
static bool
part_add(kvp_objtable_t *t, kvp_objpart_t *p, uint32_t from, uint16_t tag, uint32_t oid)
{
    uint32_t first = chain_start(p, from, record_at(t, oid)->id), i = first;
    kvp_objbucket_t *b = bucket_make(t, p, i);
    uint32_t left = p->cap - from, k;

    while (slots_with(b, 0) == 0) {
        if (--left == 0) return false;
        i = chain_next(p, from, i);
        b = bucket_make(t, p, i);
    }
    k = (uint32_t)__builtin_ctz(slots_with(b, 0));
    b->tags[k] = tag;
    b->oids[k] = oid;
    p->n++;
    for (uint32_t at = first; at != i; at = chain_next(p, from, at))
        bucket_at(p, at)->passed++;
    return true;
}

static bool
bucket_del(kvp_objbucket_t *b, uint32_t oid)
{
    for (uint32_t k = 0; k < BUCKET_SLOTS; k++) {
        if (b->tags[k] == 0 || b->oids[k] != oid) continue;
        b->tags[k] = 0;
        return true;
    }
    return false;
}

/* Removes the object from the table. Returns false if the object is not in it. */
static bool
part_del(const kvp_objtable_t *t, kvp_objpart_t *p, uint32_t from, uint32_t oid)
{
    uint32_t first = chain_start(p, from, record_at(t, oid)->id), i = first;
    kvp_objbucket_t *b;

    for (uint32_t left = p->cap - from;; i = chain_next(p, from, i)) {
        if (left-- == 0 || (b = bucket_at(p, i)) == NULL) return false;
        if (bucket_del(b, oid)) break;
        if (b->passed == 0) return false;
    }
    p->n--;
    for (uint32_t at = first; at != i; at = chain_next(p, from, at))
        bucket_at(p, at)->passed--;
    return true;
}

/* Adds the object to the table `now`, which is never full. */
static void
add_now(kvp_objtable_t *t, uint16_t tag, uint32_t oid)
{
    if (!part_add(t, &t->now, 0, tag, oid)) kvp_panic("index of %u buckets is full", t->now.cap);
}

/* ---- resizing */
static void
bucket_move(kvp_objtable_t *t, const kvp_objbucket_t *b)
{
    for (uint32_t k = 0; k < BUCKET_SLOTS; k++)
        if (b->tags[k] != 0) __builtin_prefetch(record_at(t, b->oids[k]));
    for (uint32_t k = 0; k < BUCKET_SLOTS; k++)
        if (b->tags[k] != 0) add_now(t, b->tags[k], b->oids[k]);
}

bool
kvp_objtable_step(kvp_objtable_t *t)
{
    uint32_t end;

    if (t->old.cap == 0) return false;
    end = (uint32_t)kvp_min_u64((uint64_t)t->old_at + MOVE_BUCKETS, t->old.cap);
    for (; t->old_at < end; t->old_at++) {
        const kvp_objbucket_t *b = bucket_at(&t->old, t->old_at);

        if (b != NULL) bucket_move(t, b);
    }
    if (t->old_at < t->old.cap) {
        if (t->old_at % PIECE_BUCKETS == 0) piece_drop(t, &t->old, (t->old_at >> PIECE_BITS) - 1);
        return true;
    }
    part_fini(t, &t->old);
    t->old_at = 0;
    return false;
}

/* Continues a resize, or begins one if it is due. A resize ends before the next one is due, because MOVE_BUCKETS have
 * many more slots than one change of the table uses or frees. */
static void
maybe_resize(kvp_objtable_t *t)
{
    uint64_t used = (uint64_t)t->now.n * 100, slots = (uint64_t)t->now.cap * BUCKET_SLOTS;
    uint32_t cap = 0;

    if (t->old.cap != 0) {
        (void)kvp_objtable_step(t);
        return;
    }
    if (used >= slots * GROW_PERCENT)
        cap = t->now.cap + t->now.cap / 2;
    else if (t->now.cap > BUCKETS_MIN && used < slots * SHRINK_PERCENT)
        cap = (uint32_t)kvp_max_u64(t->now.cap - t->now.cap / 3, BUCKETS_MIN);
    if (cap == 0) return;
    t->old = t->now;
    t->old_at = 0;
    part_init(t, &t->now, cap);
}

/* ---- the table */
void
kvp_objtable_init(kvp_objtable_t *t, const kvp_recpool_t *records, uint64_t seed)
{
    *t = (kvp_objtable_t){.records = records, .mix = kvp_mix_make(seed)};
    part_init(t, &t->now, BUCKETS_MIN);
}

void
kvp_objtable_fini(kvp_objtable_t *t)
{
    part_fini(t, &t->now);
    part_fini(t, &t->old);
}

uint64_t
kvp_objtable_id(const kvp_objtable_t *t, kvp_digest_t digest)
{
    return name_of(t, digest).id;
}

void
kvp_objtable_add(kvp_objtable_t *t, kvp_digest_t digest, uint32_t oid)
{
    uint16_t tag = name_of(t, digest).tag;
    bool is_later;

    maybe_resize(t);
    is_later = t->old.cap != 0 && home_bucket(&t->old, record_at(t, oid)->id) >= t->old_at;
    if (!is_later || !part_add(t, &t->old, t->old_at, tag, oid)) add_now(t, tag, oid);
}

void
kvp_objtable_del(kvp_objtable_t *t, uint32_t oid)
{
    bool is_gone = part_del(t, &t->now, 0, oid) || (t->old.cap != 0 && part_del(t, &t->old, t->old_at, oid));

    if (!is_gone) kvp_panic("object %u is not in the index", oid);
    maybe_resize(t);
}

static uint32_t
find_name(const kvp_objtable_t *t, name_t name)
{
    uint32_t oid = part_find(t, &t->now, 0, name);

    return oid == KVP_OID_NONE && t->old.cap != 0 ? part_find(t, &t->old, t->old_at, name) : oid;
}

uint32_t
kvp_objtable_find(const kvp_objtable_t *t, kvp_digest_t digest)
{
    return find_name(t, name_of(t, digest));
}

/* ---- lookups of many keys: prefetch all buckets, then the records in them, then search. Inlined by force: GCC
 * regards a function that only prefetches as one without effect, and removes its call. */
static inline __attribute__((always_inline)) void
prefetch_bucket(const kvp_objpart_t *p, name_t name)
{
    if (p->cap != 0) __builtin_prefetch(bucket_at(p, home_bucket(p, name.id)));
}

static inline __attribute__((always_inline)) void
prefetch_record(const kvp_objtable_t *t, const kvp_objpart_t *p, name_t name)
{
    const kvp_objbucket_t *b = p->cap == 0 ? NULL : bucket_at(p, home_bucket(p, name.id));
    uint32_t mask = b == NULL ? 0 : slots_with(b, name.tag);

    const kvp_obj_t *o;

    if (mask == 0) return;
    o = record_at(t, b->oids[__builtin_ctz(mask)]);
    __builtin_prefetch(o);
    __builtin_prefetch((const char *)(o + 1) -
                       1); /* three of four records span two cache lines, and a hit needs both */
}

void
kvp_objtable_find_many(const kvp_objtable_t *t, const kvp_digest_t *digests, size_t n, uint32_t *oids)
{
    enum { GROUP = 32 };

    for (size_t at = 0; at < n; at += GROUP) {
        size_t in = kvp_min_u64(GROUP, n - at);
        name_t names[GROUP];

        for (size_t i = 0; i < in; i++) {
            names[i] = name_of(t, digests[at + i]);
            prefetch_bucket(&t->now, names[i]);
            prefetch_bucket(&t->old, names[i]);
        }
        for (size_t i = 0; i < in; i++) {
            prefetch_record(t, &t->now, names[i]);
            prefetch_record(t, &t->old, names[i]);
        }
        for (size_t i = 0; i < in; i++)
            oids[at + i] = find_name(t, names[i]);
    }
}
