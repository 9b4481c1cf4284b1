/* SPDX-License-Identifier: Apache-2.0
 * Two-level segregated fit over out-of-band records.
 *
 * Design notes.
 * - A free extent is indexed by its capacity: the longest extent that it can hold. From 64 KiB up
 *   extents are aligned to 4 KiB, so a misaligned free extent holds less than its length. With the
 *   index by capacity a request fits exactly where capacity >= request, for any alignment, and no
 *   extent has to be tried.
 * - The classes are TLSF's: 32 to a power of two of units, with two levels of bitmaps. The extents
 *   of a class are a treap in order of (capacity, offset) instead of TLSF's list. A list must
 *   either skip the class of the request (and miss a hole of exactly the requested size, which in a
 *   full pool of uniform objects is the only hole) or walk the class. The treap gives true best
 *   fit, lowest address first, in O(log of one class); its priorities are a hash of the slot and
 *   cost no memory.
 * - A record is 20 bytes, in a pool of records (recpool.h): growth copies nothing, and pointers
 *   into records stay valid. A free extent stores no length, which follows from its neighbour's
 *   offset. */
#include "master/core/base/slab.h"

#include "common/recpool.h"
#include "proto/segfmt.h"

#include <stdlib.h>
#include <string.h>

#define REGION_MAX_BYTES ((1ull << 37) - KVP_SLAB_UNIT)
#define PAGE_UNITS 64u /* 4 KiB */
#define LARGE_UNITS 1024u /* 64 KiB: from here up extents lie on pages */

#define SL_BITS 5u
#define SL_COUNT (1u << SL_BITS)
#define FL_COUNT (32u - SL_BITS + 1u)

#define ALLOCATED (1u << 31)
#define UNUSED                                                                                                         \
    UINT32_MAX /* instead of an offset: the slot holds no extent; no extent begins in the last unit of 2^31 */

/* off is below 2^31 units, so its top bit can distinguish allocated from free. */
typedef struct {
    uint32_t off;
    uint32_t prev;
    uint32_t next; /* neighbours by address; unused slot: the pool's, both */
    union {
        uint32_t owner;
        uint32_t left; /* free: lower (capacity, offset) */
    };
    union {
        uint32_t len;
        uint32_t right; /* free: higher */
    };
} record_t;

_Static_assert(sizeof(record_t) == 20, "a record costs 20 bytes");

struct kvp_slab {
    uint32_t region_units;
    uint32_t used_units;
    uint32_t slots_high;
    uint32_t first, last; /* by address */
    uint32_t fl_map;
    uint32_t sl_map[FL_COUNT];
    uint32_t (*roots)[SL_COUNT]; /* a treap a class; as many first levels as the region needs */
    uint32_t fl_count;
    kvp_recpool_t records;
};

static record_t *
rec_at(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_recpool_at(&slab->records, slot);
}

static bool
is_live(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_recpool_was_made(&slab->records, slot) && rec_at(slab, slot)->off != UNUSED;
}

static bool
is_allocated(const record_t *r)
{
    return (r->off & ALLOCATED) != 0;
}

static uint32_t
off_of(const record_t *r)
{
    return r->off & ~ALLOCATED;
}

static uint32_t
len_of(const kvp_slab_t *slab, const record_t *r)
{
    if (is_allocated(r)) return r->len;
    return (r->next == KVP_SLAB_NONE ? slab->region_units : off_of(rec_at(slab, r->next))) - r->off;
}

static void
slot_give(kvp_slab_t *slab, uint32_t slot)
{
    rec_at(slab, slot)->off = UNUSED;
    kvp_recpool_give(&slab->records, slot);
}

/* Takes n slots, which hold nothing yet: all or none. */
static kvp_err_t
slots_take(kvp_slab_t *slab, uint32_t n, uint32_t *slots_out)
{
    if (n > slab->records.max - slab->records.n) return KVP_LIMIT;
    for (uint32_t i = 0; i < n; i++) {
        slots_out[i] = kvp_recpool_take(&slab->records);
        if (slots_out[i] != KVP_RECPOOL_NONE) continue;
        while (i > 0)
            slot_give(slab, slots_out[--i]);
        return KVP_NOMEM;
    }
    return KVP_OK;
}

/* ---- the order of free extents: by capacity, then by address */
typedef struct {
    uint32_t capacity;
    uint32_t off;
} order_t;

static order_t
order_of(const kvp_slab_t *slab, const record_t *r)
{
    uint32_t len = len_of(slab, r);
    uint32_t first_page = (uint32_t)kvp_align_up(r->off, PAGE_UNITS);
    uint32_t end_page = (r->off + len) & ~(PAGE_UNITS - 1);

    if (end_page > first_page && end_page - first_page >= LARGE_UNITS) return (order_t){end_page - first_page, r->off};
    return (order_t){(uint32_t)kvp_min_u64(len, LARGE_UNITS - 1), r->off};
}

static bool
is_before(order_t a, order_t b)
{
    return a.capacity != b.capacity ? a.capacity < b.capacity : a.off < b.off;
}

/* A bijection with good mixing (the finalizer of MurmurHash3), so that no two slots tie. */
static uint32_t
priority_of(uint32_t slot)
{
    slot ^= slot >> 16;
    slot *= 0x85ebca6bu;
    slot ^= slot >> 13;
    slot *= 0xc2b2ae35u;
    return slot ^ slot >> 16;
}

static void
class_of(uint32_t units, uint32_t *fl_out, uint32_t *sl_out)
{
    if (units < SL_COUNT) {
        *fl_out = 0;
        *sl_out = units;
        return;
    }
    uint32_t shift = 31u - (uint32_t)__builtin_clz(units) - SL_BITS;
    *fl_out = shift + 1;
    *sl_out = (units >> shift) & (SL_COUNT - 1);
}

static void
index_insert(kvp_slab_t *slab, uint32_t slot)
{
    record_t *r = rec_at(slab, slot);
    const order_t order = order_of(slab, r);
    uint32_t fl, sl;
    class_of(order.capacity, &fl, &sl);
    slab->fl_map |= 1u << fl;
    slab->sl_map[fl] |= 1u << sl;

    uint32_t *link = &slab->roots[fl][sl];
    while (*link != KVP_SLAB_NONE && priority_of(*link) > priority_of(slot)) {
        record_t *at = rec_at(slab, *link);
        link = is_before(order, order_of(slab, at)) ? &at->left : &at->right;
    }
    /* The new node takes this place; the former subtree is split into its two subtrees. */
    uint32_t cur = *link;
    *link = slot;
    uint32_t *lower = &r->left;
    uint32_t *upper = &r->right;
    while (cur != KVP_SLAB_NONE) {
        record_t *at = rec_at(slab, cur);
        if (is_before(order_of(slab, at), order)) {
            *lower = cur;
            lower = &at->right;
            cur = *lower;
        } else {
            *upper = cur;
            upper = &at->left;
            cur = *upper;
        }
    }
    *lower = KVP_SLAB_NONE;
    *upper = KVP_SLAB_NONE;
}

static void
index_remove(kvp_slab_t *slab, uint32_t slot)
{
    const record_t *r = rec_at(slab, slot);
    const order_t order = order_of(slab, r);
    uint32_t fl, sl;
    class_of(order.capacity, &fl, &sl);

    uint32_t *link = &slab->roots[fl][sl];
    while (*link != slot) {
        if (*link == KVP_SLAB_NONE) kvp_panic("slab: free slot %u is not in its class", slot);
        record_t *at = rec_at(slab, *link);
        link = is_before(order, order_of(slab, at)) ? &at->left : &at->right;
    }
    /* Its two subtrees are merged into its place. */
    uint32_t lower = r->left;
    uint32_t upper = r->right;
    while (lower != KVP_SLAB_NONE && upper != KVP_SLAB_NONE) {
        if (priority_of(lower) > priority_of(upper)) {
            *link = lower;
            link = &rec_at(slab, lower)->right;
            lower = *link;
        } else {
            *link = upper;
            link = &rec_at(slab, upper)->left;
            upper = *link;
        }
    }
    *link = lower != KVP_SLAB_NONE ? lower : upper;

    if (slab->roots[fl][sl] != KVP_SLAB_NONE) return;
    slab->sl_map[fl] &= ~(1u << sl);
    if (slab->sl_map[fl] == 0) slab->fl_map &= ~(1u << fl);
}

static uint32_t
treap_at_least(const kvp_slab_t *slab, uint32_t root, uint32_t units)
{
    uint32_t best = KVP_SLAB_NONE;
    for (uint32_t cur = root; cur != KVP_SLAB_NONE;) {
        const record_t *at = rec_at(slab, cur);
        if (order_of(slab, at).capacity >= units) {
            best = cur;
            cur = at->left;
        } else {
            cur = at->right;
        }
    }
    return best;
}

/* index_find returns the free extent of least capacity that can hold units, the lowest address of several. */
static uint32_t
index_find(const kvp_slab_t *slab, uint32_t units)
{
    uint32_t fl, sl;
    class_of(units, &fl, &sl);
    if (fl >= slab->fl_count) return KVP_SLAB_NONE;
    uint32_t slot = treap_at_least(slab, slab->roots[fl][sl], units);
    if (slot != KVP_SLAB_NONE) return slot;

    uint32_t sl_above = slab->sl_map[fl] & ~((2u << sl) - 1);
    if (sl_above == 0) {
        uint32_t fl_above = slab->fl_map & ~((2u << fl) - 1);
        if (fl_above == 0) return KVP_SLAB_NONE;
        fl = (uint32_t)__builtin_ctz(fl_above);
        sl_above = slab->sl_map[fl];
    }
    return treap_at_least(slab, slab->roots[fl][__builtin_ctz(sl_above)], units);
}

/* Where an extent would be cut out of a free one. */
typedef struct {
    uint32_t slot; /* the free extent; it becomes the allocated one */
    uint32_t front; /* units left free before and after it */
    uint32_t back;
} cut_t;

static uint32_t
cut_new_slots(const cut_t *cut)
{
    return (cut->front != 0) + (cut->back != 0);
}

static bool
find_cut(const kvp_slab_t *slab, uint64_t extent_bytes, cut_t *cut_out)
{
    uint64_t units = extent_bytes / KVP_SLAB_UNIT;
    if (units == 0 || units > slab->region_units) return false;
    uint32_t slot = index_find(slab, (uint32_t)units);
    if (slot == KVP_SLAB_NONE) return false;
    const record_t *r = rec_at(slab, slot);
    uint32_t align = units >= LARGE_UNITS ? PAGE_UNITS : 1;
    uint32_t start = (uint32_t)kvp_align_up(r->off, align);
    *cut_out = (cut_t){
        .slot = slot,
        .front = start - r->off,
        .back = r->off + len_of(slab, r) - start - (uint32_t)units,
    };
    return true;
}

/* point_to makes the neighbours of a record, or the region's ends, name it. */
static void
point_to(kvp_slab_t *slab, uint32_t slot)
{
    const record_t *r = rec_at(slab, slot);

    *(r->prev == KVP_SLAB_NONE ? &slab->first : &rec_at(slab, r->prev)->next) = slot;
    *(r->next == KVP_SLAB_NONE ? &slab->last : &rec_at(slab, r->next)->prev) = slot;
}

/* insert_free makes slot a free extent between two neighbours in address order, either of which may
 * be the region's end. It reaches to the beginning of the next extent. */
static void
insert_free(kvp_slab_t *slab, uint32_t slot, uint32_t off, uint32_t prev, uint32_t next)
{
    *rec_at(slab, slot) = (record_t){.off = off, .prev = prev, .next = next};
    point_to(slab, slot);
    index_insert(slab, slot);
}

kvp_err_t
kvp_slab_create_open(uint64_t region_bytes, uint32_t max_slots, kvp_slab_t **slab_out)
{
    uint64_t units = region_bytes / KVP_SLAB_UNIT;
    if (units == 0 || region_bytes > REGION_MAX_BYTES || max_slots < 2) return KVP_INVALID;

    kvp_slab_t *slab = calloc(1, sizeof(*slab));
    if (slab == NULL) return KVP_NOMEM;
    slab->region_units = (uint32_t)units;
    slab->first = slab->last = KVP_SLAB_NONE;
    kvp_recpool_init_claimed(&slab->records, sizeof(record_t), offsetof(record_t, next), offsetof(record_t, prev),
                             max_slots);

    uint32_t fl, sl;
    class_of(slab->region_units, &fl, &sl);
    slab->fl_count = fl + 1;
    size_t roots_bytes = slab->fl_count * sizeof(*slab->roots);
    slab->roots = malloc(roots_bytes);
    if (slab->roots == NULL) {
        kvp_slab_destroy(slab);
        return KVP_NOMEM;
    }
    memset(slab->roots, 0xff, roots_bytes); /* KVP_SLAB_NONE */
    *slab_out = slab;
    return KVP_OK;
}

kvp_err_t
kvp_slab_create(uint64_t region_bytes, uint32_t max_slots, kvp_slab_t **slab_out)
{
    kvp_slab_t *slab;
    kvp_err_t err = kvp_slab_create_open(region_bytes, max_slots, &slab);

    if (err != KVP_OK) return err;
    err = kvp_slab_close(slab);
    if (err == KVP_OK)
        *slab_out = slab;
    else
        kvp_slab_destroy(slab);
    return err;
}

void
kvp_slab_destroy(kvp_slab_t *slab)
{
    if (slab == NULL) return;
    kvp_recpool_fini(&slab->records);
    free(slab->roots);
    free(slab);
}

bool
kvp_slab_destroy_some(kvp_slab_t *slab, uint32_t blocks)
{
    if (!kvp_recpool_fini_some(&slab->records, blocks)) return false;
    kvp_slab_destroy(slab);
    return true;
}

kvp_err_t
kvp_slab_alloc(kvp_slab_t *slab, uint64_t len, uint32_t owner, uint32_t *slot_out, uint64_t *offset_out)
{
    if (len == 0 || owner == KVP_SLAB_NONE) return KVP_INVALID;
    if (len > REGION_MAX_BYTES) return KVP_NO_SPACE;
    cut_t cut;
    if (!find_cut(slab, kvp_extent_bytes(len), &cut)) return KVP_NO_SPACE;
    uint32_t fresh[2];
    kvp_err_t err = slots_take(slab, cut_new_slots(&cut), fresh);
    if (err != KVP_OK) return err;

    index_remove(slab, cut.slot);
    record_t *r = rec_at(slab, cut.slot);
    uint32_t units = len_of(slab, r) - cut.front - cut.back, front = r->off, off = front + cut.front;
    r->off = off | ALLOCATED;
    r->len = units;
    r->owner = owner;
    if (cut.front != 0) insert_free(slab, fresh[0], front, r->prev, cut.slot);
    if (cut.back != 0) insert_free(slab, fresh[cut.front != 0], off + units, cut.slot, r->next);
    slab->used_units += units;
    if (cut.slot >= slab->slots_high) slab->slots_high = cut.slot + 1;
    *slot_out = cut.slot;
    *offset_out = (uint64_t)off * KVP_SLAB_UNIT;
    return KVP_OK;
}

bool
kvp_slab_can_fit(const kvp_slab_t *slab, uint64_t len)
{
    cut_t cut;
    if (len == 0 || len > REGION_MAX_BYTES) return false;
    if (!find_cut(slab, kvp_extent_bytes(len), &cut)) return false;
    return cut_new_slots(&cut) <= slab->records.max - slab->records.n;
}

uint64_t
kvp_slab_best_fit(const kvp_slab_t *slab, uint64_t len)
{
    cut_t cut;
    if (len == 0 || len > REGION_MAX_BYTES) return 0;
    if (!find_cut(slab, kvp_extent_bytes(len), &cut)) return 0;
    return (uint64_t)order_of(slab, rec_at(slab, cut.slot)).capacity * KVP_SLAB_UNIT;
}

/* join_next merges the extent after slot, which is free and not in the index, into slot. */
static void
join_next(kvp_slab_t *slab, uint32_t slot)
{
    record_t *r = rec_at(slab, slot);
    uint32_t gone = r->next;
    r->next = rec_at(slab, gone)->next;
    point_to(slab, slot);
    slot_give(slab, gone);
}

/* A closed allocator has an allocated extent, or one free extent. */
bool
kvp_slab_is_open(const kvp_slab_t *slab)
{
    return slab->first == KVP_SLAB_NONE;
}

void
kvp_slab_free(kvp_slab_t *slab, uint32_t slot)
{
    if (!kvp_slab_is_allocated(slab, slot)) kvp_panic("slab: free of slot %u, which is not allocated", slot);
    if (kvp_slab_is_open(slab)) {
        kvp_slab_unrestore(slab, slot);
        return;
    }
    record_t *r = rec_at(slab, slot);
    slab->used_units -= r->len;
    r->off = off_of(r);

    if (r->next != KVP_SLAB_NONE && !is_allocated(rec_at(slab, r->next))) {
        index_remove(slab, r->next);
        join_next(slab, slot);
    }
    if (r->prev != KVP_SLAB_NONE && !is_allocated(rec_at(slab, r->prev))) {
        slot = r->prev;
        index_remove(slab, slot);
        join_next(slab, slot);
    }
    index_insert(slab, slot);
}

/* ---- a rebuild */
uint64_t
kvp_slab_tail(const kvp_slab_t *slab)
{
    const record_t *r = rec_at(slab, slab->last);

    return (uint64_t)(is_allocated(r) ? slab->region_units : r->off) * KVP_SLAB_UNIT;
}

/* slot_claim makes the slot hold nothing and be the caller's. The free rest of the region gives way to it. */
static kvp_err_t
slot_claim(kvp_slab_t *slab, uint32_t slot)
{
    const record_t blank = {.off = UNUSED};
    uint32_t other;

    if (slot >= slab->records.max) return KVP_LIMIT;
    if (!is_live(slab, slot)) return kvp_recpool_claim(&slab->records, slot, &blank) ? KVP_OK : KVP_NOMEM;
    if (is_allocated(rec_at(slab, slot))) return KVP_LIMIT;
    kvp_err_t err = slots_take(slab, 1, &other);
    if (err != KVP_OK) return err;
    index_remove(slab, slot);
    insert_free(slab, other, rec_at(slab, slot)->off, rec_at(slab, slot)->prev, rec_at(slab, slot)->next);
    rec_at(slab, slot)->off = UNUSED;
    return KVP_OK;
}

static bool
is_on_bounds(uint64_t offset, uint64_t bytes)
{
    uint64_t align =
        bytes >= (uint64_t)LARGE_UNITS * KVP_SLAB_UNIT ? (uint64_t)PAGE_UNITS * KVP_SLAB_UNIT : KVP_SLAB_UNIT;

    return (offset | bytes) % align == 0;
}

/* Allocates a free extent whole, under its own slot: no other slot is needed, and none may be left. */
static void
claim_whole(kvp_slab_t *slab, uint32_t slot, uint32_t owner, uint32_t *slot_out)
{
    record_t *r = rec_at(slab, slot);
    uint32_t units = len_of(slab, r);

    index_remove(slab, slot);
    r->off |= ALLOCATED;
    r->len = units;
    r->owner = owner;
    slab->used_units += units;
    if (slot >= slab->slots_high) slab->slots_high = slot + 1;
    *slot_out = slot;
}

kvp_err_t
kvp_slab_adopt(kvp_slab_t *slab, uint32_t slot, uint64_t offset, uint64_t bytes, uint32_t owner, uint32_t *slot_out)
{
    uint64_t region = kvp_slab_region_bytes(slab);
    if (bytes == 0 || offset < kvp_slab_tail(slab) || offset > region || bytes > region - offset) return KVP_INVALID;
    if ((offset | bytes) % KVP_SLAB_UNIT != 0 || owner == KVP_SLAB_NONE) return KVP_INVALID;
    if (slot != KVP_SLAB_NONE && !is_on_bounds(offset, bytes)) return KVP_INVALID;
    if (offset == kvp_slab_tail(slab) && bytes == region - offset && (slot == KVP_SLAB_NONE || slot == slab->last)) {
        claim_whole(slab, slab->last, owner, slot_out);
        return KVP_OK;
    }
    uint32_t spare = KVP_SLAB_NONE;
    kvp_err_t err = slot == KVP_SLAB_NONE ? slots_take(slab, 1, &slot) : slot_claim(slab, slot);
    if (err != KVP_OK) return err;
    if (offset > kvp_slab_tail(slab)) err = slots_take(slab, 1, &spare);
    if (err != KVP_OK) {
        slot_give(slab, slot);
        return err;
    }
    uint32_t tail = slab->last, off = (uint32_t)(offset / KVP_SLAB_UNIT), units = (uint32_t)(bytes / KVP_SLAB_UNIT);
    uint32_t front = rec_at(slab, tail)->off, prev = rec_at(slab, tail)->prev, end = off + units;
    index_remove(slab, tail);
    *rec_at(slab, slot) =
        (record_t){.off = off | ALLOCATED, .len = units, .owner = owner, .prev = prev, .next = KVP_SLAB_NONE};
    point_to(slab, slot);
    if (spare != KVP_SLAB_NONE) insert_free(slab, spare, front, prev, slot);
    if (end < slab->region_units)
        insert_free(slab, tail, end, slot, KVP_SLAB_NONE);
    else
        slot_give(slab, tail);
    slab->used_units += units;
    if (slot >= slab->slots_high) slab->slots_high = slot + 1;
    *slot_out = slot;
    return KVP_OK;
}

/* ---- restoring extents in any order */
kvp_err_t
kvp_slab_restore(kvp_slab_t *slab, uint32_t slot, uint64_t offset, uint64_t bytes, uint32_t owner, uint32_t *slot_out)
{
    const record_t blank = {.off = UNUSED};
    uint64_t region = kvp_slab_region_bytes(slab);

    if (bytes == 0 || offset > region || bytes > region - offset || owner == KVP_SLAB_NONE) return KVP_INVALID;
    if (!is_on_bounds(offset, bytes)) return KVP_INVALID;
    if (slot == KVP_SLAB_NONE) {
        kvp_err_t err = slots_take(slab, 1, &slot);

        if (err != KVP_OK) return err;
    } else if (slot >= slab->records.max || is_live(slab, slot)) {
        return KVP_LIMIT;
    } else if (!kvp_recpool_claim(&slab->records, slot, &blank)) {
        return KVP_NOMEM;
    }
    *rec_at(slab, slot) = (record_t){
        .off = (uint32_t)(offset / KVP_SLAB_UNIT) | ALLOCATED,
        .len = (uint32_t)(bytes / KVP_SLAB_UNIT),
        .owner = owner,
        .prev = KVP_SLAB_NONE,
        .next = KVP_SLAB_NONE,
    };
    slab->used_units += rec_at(slab, slot)->len;
    if (slot >= slab->slots_high) slab->slots_high = slot + 1;
    *slot_out = slot;
    return KVP_OK;
}

void
kvp_slab_unrestore(kvp_slab_t *slab, uint32_t slot)
{
    slab->used_units -= rec_at(slab, slot)->len;
    slot_give(slab, slot);
}

#define DIGIT_BITS 11u
#define DIGITS (1u << DIGIT_BITS)

typedef struct {
    uint32_t off, slot;
} told_t;

/* One pass of a radix sort, by one digit of the offset. */
static void
sort_pass(const told_t *from, told_t *to, uint32_t n, uint32_t shift)
{
    uint32_t at[DIGITS] = {0}, sum = 0;

    for (uint32_t i = 0; i < n; i++)
        at[from[i].off >> shift & (DIGITS - 1)]++;
    for (uint32_t d = 0; d < DIGITS; d++) {
        uint32_t here = at[d];

        at[d] = sum;
        sum += here;
    }
    for (uint32_t i = 0; i < n; i++)
        to[at[from[i].off >> shift & (DIGITS - 1)]++] = from[i];
}

/* Lists all extents by rising offset, for free(); the second half of the array is scratch space.
 * NULL: no memory. */
static told_t *
list_by_offset(const kvp_slab_t *slab)
{
    uint32_t n = slab->records.n, at = 0, limit = kvp_recpool_limit(&slab->records);
    told_t *told = malloc((2 * (size_t)n + 1) * sizeof *told);

    if (told == NULL) return NULL;
    for (uint32_t slot = 0; slot < limit; slot++)
        if (is_live(slab, slot)) told[n + at++] = (told_t){off_of(rec_at(slab, slot)), slot};
    if (n < 2) {
        told[0] = told[n];
        return told;
    }
    sort_pass(told + n, told, n, 0);
    sort_pass(told, told + n, n, DIGIT_BITS);
    sort_pass(told + n, told, n, 2 * DIGIT_BITS);
    return told;
}

static kvp_err_t
check_told(const kvp_slab_t *slab, const told_t *told, uint32_t n)
{
    uint32_t end = 0, gaps = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (told[i].off < end) return KVP_CORRUPT;
        gaps += told[i].off > end;
        end = told[i].off + rec_at(slab, told[i].slot)->len;
    }
    gaps += end < slab->region_units;
    return gaps > slab->records.max - slab->records.n ? KVP_LIMIT : KVP_OK;
}

/* Links the restored extents after the linked ones, up to `end` of the region; gaps become free
 * extents. */
static kvp_err_t
link_told(kvp_slab_t *slab, const told_t *told, uint32_t end)
{
    uint32_t gap = KVP_SLAB_NONE, prev = slab->last;
    kvp_err_t err = told->off == end ? KVP_OK : slots_take(slab, 1, &gap);

    if (err != KVP_OK) return err;
    slab->last = told->slot;
    if (gap != KVP_SLAB_NONE) {
        insert_free(slab, gap, end, prev, told->slot);
        return KVP_OK;
    }
    rec_at(slab, told->slot)->prev = prev;
    *(prev == KVP_SLAB_NONE ? &slab->first : &rec_at(slab, prev)->next) = told->slot;
    return KVP_OK;
}

kvp_err_t
kvp_slab_close(kvp_slab_t *slab)
{
    uint32_t n = slab->records.n, end = 0, rest;
    told_t *told = list_by_offset(slab);
    kvp_err_t err = told == NULL ? KVP_NOMEM : check_told(slab, told, n);

    for (uint32_t i = 0; i < n && err == KVP_OK; i++) {
        err = link_told(slab, &told[i], end);
        end = told[i].off + rec_at(slab, told[i].slot)->len;
    }
    free(told);
    if (err != KVP_OK || end == slab->region_units) return err;
    err = slots_take(slab, 1, &rest);
    if (err == KVP_OK) insert_free(slab, rest, end, slab->last, KVP_SLAB_NONE);
    return err;
}

bool
kvp_slab_take_free(kvp_slab_t *slab, uint32_t owner, uint32_t *slot_out)
{
    uint32_t fl, sl;

    if (slab->fl_map == 0) return false;
    fl = (uint32_t)__builtin_ctz(slab->fl_map);
    sl = (uint32_t)__builtin_ctz(slab->sl_map[fl]);
    claim_whole(slab, slab->roots[fl][sl], owner, slot_out);
    return true;
}

kvp_err_t
kvp_slab_move(kvp_slab_t *slab, uint32_t slot, uint32_t *slot_out)
{
    kvp_err_t err = slots_take(slab, 1, slot_out);
    if (err != KVP_OK) return err;
    *rec_at(slab, *slot_out) = *rec_at(slab, slot);
    point_to(slab, *slot_out);
    slot_give(slab, slot);
    if (*slot_out >= slab->slots_high) slab->slots_high = *slot_out + 1;
    return KVP_OK;
}

uint32_t
kvp_slab_owner(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_slab_is_allocated(slab, slot) ? rec_at(slab, slot)->owner : KVP_SLAB_NONE;
}

uint64_t
kvp_slab_offset(const kvp_slab_t *slab, uint32_t slot)
{
    return is_live(slab, slot) ? (uint64_t)off_of(rec_at(slab, slot)) * KVP_SLAB_UNIT : 0;
}

uint64_t
kvp_slab_len(const kvp_slab_t *slab, uint32_t slot)
{
    return is_live(slab, slot) ? (uint64_t)len_of(slab, rec_at(slab, slot)) * KVP_SLAB_UNIT : 0;
}

void
kvp_slab_prefetch(const kvp_slab_t *slab, uint32_t slot)
{
    if (kvp_recpool_was_made(&slab->records, slot)) __builtin_prefetch(rec_at(slab, slot));
}

bool
kvp_slab_is_allocated(const kvp_slab_t *slab, uint32_t slot)
{
    return is_live(slab, slot) && is_allocated(rec_at(slab, slot));
}

void
kvp_slab_set_owner(kvp_slab_t *slab, uint32_t slot, uint32_t owner)
{
    if (!kvp_slab_is_allocated(slab, slot) || owner == KVP_SLAB_NONE) {
        kvp_panic("slab: owner %u for slot %u", owner, slot);
    }
    rec_at(slab, slot)->owner = owner;
}

uint32_t
kvp_slab_first(const kvp_slab_t *slab)
{
    if (kvp_slab_is_open(slab)) return slab->slots_high > 0 ? 0 : KVP_SLAB_NONE;
    return slab->first;
}

uint32_t
kvp_slab_next(const kvp_slab_t *slab, uint32_t slot)
{
    if (kvp_slab_is_open(slab)) return slot + 1 < slab->slots_high ? slot + 1 : KVP_SLAB_NONE;
    return is_live(slab, slot) ? rec_at(slab, slot)->next : KVP_SLAB_NONE;
}

uint32_t
kvp_slab_prev(const kvp_slab_t *slab, uint32_t slot)
{
    return is_live(slab, slot) ? rec_at(slab, slot)->prev : KVP_SLAB_NONE;
}

uint64_t
kvp_slab_region_bytes(const kvp_slab_t *slab)
{
    return (uint64_t)slab->region_units * KVP_SLAB_UNIT;
}

uint64_t
kvp_slab_used_bytes(const kvp_slab_t *slab)
{
    return (uint64_t)slab->used_units * KVP_SLAB_UNIT;
}

uint64_t
kvp_slab_largest_free(const kvp_slab_t *slab)
{
    if (slab->fl_map == 0) return 0;
    uint32_t fl = 31u - (uint32_t)__builtin_clz(slab->fl_map);
    uint32_t sl = 31u - (uint32_t)__builtin_clz(slab->sl_map[fl]);
    uint32_t slot = slab->roots[fl][sl];
    while (rec_at(slab, slot)->right != KVP_SLAB_NONE)
        slot = rec_at(slab, slot)->right;
    return (uint64_t)order_of(slab, rec_at(slab, slot)).capacity * KVP_SLAB_UNIT;
}

uint32_t
kvp_slab_slots_high(const kvp_slab_t *slab)
{
    return slab->slots_high;
}

uint64_t
kvp_slab_memory_bytes(const kvp_slab_t *slab)
{
    return sizeof(*slab) + slab->fl_count * sizeof(*slab->roots) + slab->records.memory_bytes;
}

/* treap_count returns the nodes of a treap, or UINT32_MAX if one is not a free extent of this class, out of order, or
 * above its parent in priority. lo and hi bound the order from outside; NULL = open. */
static uint32_t
treap_count(const kvp_slab_t *slab, uint32_t root, uint32_t class_id, const order_t *lo, const order_t *hi)
{
    if (root == KVP_SLAB_NONE) return 0;
    if (!is_live(slab, root)) return UINT32_MAX;
    const record_t *r = rec_at(slab, root);
    const order_t order = order_of(slab, r);
    uint32_t fl, sl;
    class_of(order.capacity, &fl, &sl);
    if (is_allocated(r) || fl * SL_COUNT + sl != class_id) return UINT32_MAX;
    if ((lo != NULL && !is_before(*lo, order)) || (hi != NULL && !is_before(order, *hi))) return UINT32_MAX;
    if (r->left != KVP_SLAB_NONE && priority_of(r->left) > priority_of(root)) return UINT32_MAX;
    if (r->right != KVP_SLAB_NONE && priority_of(r->right) > priority_of(root)) return UINT32_MAX;
    uint32_t left = treap_count(slab, r->left, class_id, lo, &order);
    uint32_t right = treap_count(slab, r->right, class_id, &order, hi);
    return left == UINT32_MAX || right == UINT32_MAX ? UINT32_MAX : left + right + 1;
}

static bool
check_index(const kvp_slab_t *slab, uint32_t free_count)
{
    uint32_t found = 0;
    for (uint32_t fl = 0; fl < slab->fl_count; fl++) {
        if ((slab->sl_map[fl] != 0) != ((slab->fl_map >> fl & 1) != 0)) return false;
        for (uint32_t sl = 0; sl < SL_COUNT; sl++) {
            uint32_t root = slab->roots[fl][sl];
            if ((root != KVP_SLAB_NONE) != ((slab->sl_map[fl] >> sl & 1) != 0)) return false;
            uint32_t n = treap_count(slab, root, fl * SL_COUNT + sl, NULL, NULL);
            if (n == UINT32_MAX) return false;
            found += n;
        }
    }
    return found == free_count;
}

bool
kvp_slab_check(const kvp_slab_t *slab)
{
    uint32_t end = 0, used = 0, live = 0, free_count = 0;
    uint32_t prev = KVP_SLAB_NONE;
    bool is_prev_free = false;
    for (uint32_t slot = kvp_slab_first(slab); slot != KVP_SLAB_NONE; slot = rec_at(slab, slot)->next) {
        if (!is_live(slab, slot) || live++ >= slab->records.n) return false;
        const record_t *r = rec_at(slab, slot);
        uint32_t len = len_of(slab, r);
        if (off_of(r) != end || r->prev != prev || len == 0 || len > slab->region_units - end) return false;
        if (is_allocated(r)) {
            used += len;
        } else {
            free_count++;
            if (is_prev_free) return false;
        }
        is_prev_free = !is_allocated(r);
        end += len;
        prev = slot;
    }
    return end == slab->region_units && used == slab->used_units && live == slab->records.n &&
           check_index(slab, free_count);
}
