/* SPDX-License-Identifier: Apache-2.0
 * An extent allocator: two-level segregated fit with records outside of the managed memory.
 *
 * Design notes.
 * - A free extent is indexed by its capacity: the length of the longest extent that it can hold. Extents of 64 KiB
 *   and more are aligned to 4 KiB, so a misaligned free extent holds less than its length. A request fits exactly if
 *   capacity >= request, for any alignment, and no extent has to be tried.
 * - The size classes are TLSF's: 32 for each power of two of units, with two levels of bitmaps. The extents of a
 *   class are a treap in order of (capacity, offset) instead of TLSF's list. A list must either skip the class of the
 *   request (and miss a hole of exactly the requested size, which in a full pool of uniform objects is the only hole)
 *   or walk the class. The treap gives true best fit, lowest address first, in O(log of one class); its priorities
 *   are a hash of the slot and cost no memory.
 * - A record is 20 bytes, in a pool of records (recpool.h): growth copies nothing, and pointers into records stay
 *   valid. A free extent stores no length: its length follows from its neighbour's offset. */
#include "master/core/base/slab_priv.h"

#include <stdlib.h>
#include <string.h>

#define REGION_MAX_BYTES ((1ull << 37) - KVP_SLAB_UNIT)

void
kvp_slab_give_slot(kvp_slab_t *slab, uint32_t slot)
{
    kvp_slab_rec(slab, slot)->off = KVP_SLAB_UNUSED;
    kvp_recpool_give(&slab->records, slot);
}

/* Takes n unused slots, all or none. LIMIT: fewer than n are left; NOMEM. */
kvp_err_t
kvp_slab_take_slots(kvp_slab_t *slab, uint32_t n, uint32_t *slots_out)
{
    if (n > slab->records.max - slab->records.n) return KVP_LIMIT;
    for (uint32_t i = 0; i < n; i++) {
        slots_out[i] = kvp_recpool_take(&slab->records);
        if (slots_out[i] != KVP_RECPOOL_NONE) continue;
        while (i > 0)
            kvp_slab_give_slot(slab, slots_out[--i]);
        return KVP_NOMEM;
    }
    return KVP_OK;
}

static void
index_insert(kvp_slab_t *slab, uint32_t slot)
{
    kvp_slab_rec_t *r = kvp_slab_rec(slab, slot);
    const uint64_t order = kvp_slab_order_of(slab, r);
    uint32_t fl, sl;
    kvp_slab_class_of(kvp_slab_capacity_of(slab, r), &fl, &sl);
    slab->fl_map |= 1u << fl;
    slab->sl_map[fl] |= 1u << sl;

    uint32_t *link = &slab->roots[fl][sl];
    while (*link != KVP_SLAB_NONE && kvp_slab_priority_of(*link) > kvp_slab_priority_of(slot)) {
        kvp_slab_rec_t *at = kvp_slab_rec(slab, *link);
        link = order < kvp_slab_order_of(slab, at) ? &at->left : &at->right;
    }
    /* Treap insertion: the new node replaces the subtree at *link, which is split into the new node's subtrees. */
    uint32_t cur = *link;
    *link = slot;
    uint32_t *lower = &r->left;
    uint32_t *upper = &r->right;
    while (cur != KVP_SLAB_NONE) {
        kvp_slab_rec_t *at = kvp_slab_rec(slab, cur);
        if (kvp_slab_order_of(slab, at) < order) {
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

void
kvp_slab_unindex(kvp_slab_t *slab, uint32_t slot)
{
    const kvp_slab_rec_t *r = kvp_slab_rec(slab, slot);
    const uint64_t order = kvp_slab_order_of(slab, r);
    uint32_t fl, sl;
    kvp_slab_class_of(kvp_slab_capacity_of(slab, r), &fl, &sl);

    uint32_t *link = &slab->roots[fl][sl];
    while (*link != slot) {
        if (*link == KVP_SLAB_NONE) kvp_panic("slab: free slot %u is not in its class", slot);
        kvp_slab_rec_t *at = kvp_slab_rec(slab, *link);
        link = order < kvp_slab_order_of(slab, at) ? &at->left : &at->right;
    }
    /* Treap removal: the two subtrees of the removed node are merged, and replace the node. */
    uint32_t lower = r->left;
    uint32_t upper = r->right;
    while (lower != KVP_SLAB_NONE && upper != KVP_SLAB_NONE) {
        if (kvp_slab_priority_of(lower) > kvp_slab_priority_of(upper)) {
            *link = lower;
            link = &kvp_slab_rec(slab, lower)->right;
            lower = *link;
        } else {
            *link = upper;
            link = &kvp_slab_rec(slab, upper)->left;
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
        const kvp_slab_rec_t *at = kvp_slab_rec(slab, cur);
        if (kvp_slab_capacity_of(slab, at) >= units) {
            best = cur;
            cur = at->left;
        } else {
            cur = at->right;
        }
    }
    return best;
}

/* index_find returns the free extent with the least capacity that can hold `units`; of several such extents, the
 * extent with the lowest address. */
static uint32_t
index_find(const kvp_slab_t *slab, uint32_t units)
{
    uint32_t fl, sl;
    kvp_slab_class_of(units, &fl, &sl);
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

/* The place at which an extent would be cut out of a free extent. */
typedef struct {
    uint32_t slot; /* slot of the free extent; it becomes the slot of the allocated extent */
    uint32_t front; /* free units left before the new extent */
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
    const kvp_slab_rec_t *r = kvp_slab_rec(slab, slot);
    uint32_t align = units >= KVP_SLAB_LARGE_UNITS ? KVP_SLAB_PAGE_UNITS : 1;
    uint32_t start = (uint32_t)kvp_align_up(r->off, align);
    *cut_out = (cut_t){
        .slot = slot,
        .front = start - r->off,
        .back = r->off + kvp_slab_rec_len(slab, r) - start - (uint32_t)units,
    };
    return true;
}

/* kvp_slab_point_to makes the links of a record's neighbours, or of the region's ends, point to the record. */
void
kvp_slab_point_to(kvp_slab_t *slab, uint32_t slot)
{
    const kvp_slab_rec_t *r = kvp_slab_rec(slab, slot);

    *(r->prev == KVP_SLAB_NONE ? &slab->first : &kvp_slab_rec(slab, r->prev)->next) = slot;
    *(r->next == KVP_SLAB_NONE ? &slab->last : &kvp_slab_rec(slab, r->next)->prev) = slot;
}

/* kvp_slab_insert_free makes slot a free extent between two neighbours in address order; prev and next may be
 * KVP_SLAB_NONE at the region's ends. The free extent reaches to the beginning of the next extent. */
void
kvp_slab_insert_free(kvp_slab_t *slab, uint32_t slot, uint32_t off, uint32_t prev, uint32_t next)
{
    *kvp_slab_rec(slab, slot) = (kvp_slab_rec_t){.off = off, .prev = prev, .next = next};
    kvp_slab_point_to(slab, slot);
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
    kvp_recpool_init_claimed(&slab->records, sizeof(kvp_slab_rec_t), offsetof(kvp_slab_rec_t, next),
                             offsetof(kvp_slab_rec_t, prev), max_slots);

    uint32_t fl, sl;
    kvp_slab_class_of(slab->region_units, &fl, &sl);
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
    kvp_err_t err = kvp_slab_take_slots(slab, cut_new_slots(&cut), fresh);
    if (err != KVP_OK) return err;

    kvp_slab_unindex(slab, cut.slot);
    kvp_slab_rec_t *r = kvp_slab_rec(slab, cut.slot);
    uint32_t units = kvp_slab_rec_len(slab, r) - cut.front - cut.back, front = r->off, off = front + cut.front;
    r->off = off | KVP_SLAB_ALLOCATED;
    r->len = units;
    r->owner = owner;
    if (cut.front != 0) kvp_slab_insert_free(slab, fresh[0], front, r->prev, cut.slot);
    if (cut.back != 0) kvp_slab_insert_free(slab, fresh[cut.front != 0], off + units, cut.slot, r->next);
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
    return (uint64_t)kvp_slab_capacity_of(slab, kvp_slab_rec(slab, cut.slot)) * KVP_SLAB_UNIT;
}

/* join_next merges the next extent, which is free and not in the index, into the extent in slot. */
static void
join_next(kvp_slab_t *slab, uint32_t slot)
{
    kvp_slab_rec_t *r = kvp_slab_rec(slab, slot);
    uint32_t gone = r->next;
    r->next = kvp_slab_rec(slab, gone)->next;
    kvp_slab_point_to(slab, slot);
    kvp_slab_give_slot(slab, gone);
}

/* Returns true while a restore is in progress: only an open allocator has no first extent. */
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
    kvp_slab_rec_t *r = kvp_slab_rec(slab, slot);
    slab->used_units -= r->len;
    r->off = kvp_slab_rec_off(r);

    if (r->next != KVP_SLAB_NONE && !kvp_slab_rec_is_allocated(kvp_slab_rec(slab, r->next))) {
        kvp_slab_unindex(slab, r->next);
        join_next(slab, slot);
    }
    if (r->prev != KVP_SLAB_NONE && !kvp_slab_rec_is_allocated(kvp_slab_rec(slab, r->prev))) {
        slot = r->prev;
        kvp_slab_unindex(slab, slot);
        join_next(slab, slot);
    }
    index_insert(slab, slot);
}

kvp_err_t
kvp_slab_move(kvp_slab_t *slab, uint32_t slot, uint32_t *slot_out)
{
    kvp_err_t err = kvp_slab_take_slots(slab, 1, slot_out);
    if (err != KVP_OK) return err;
    *kvp_slab_rec(slab, *slot_out) = *kvp_slab_rec(slab, slot);
    kvp_slab_point_to(slab, *slot_out);
    kvp_slab_give_slot(slab, slot);
    if (*slot_out >= slab->slots_high) slab->slots_high = *slot_out + 1;
    return KVP_OK;
}

uint32_t
kvp_slab_owner(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_slab_is_allocated(slab, slot) ? kvp_slab_rec(slab, slot)->owner : KVP_SLAB_NONE;
}

uint64_t
kvp_slab_offset(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_slab_is_live(slab, slot) ? (uint64_t)kvp_slab_rec_off(kvp_slab_rec(slab, slot)) * KVP_SLAB_UNIT : 0;
}

uint64_t
kvp_slab_len(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_slab_is_live(slab, slot) ? (uint64_t)kvp_slab_rec_len(slab, kvp_slab_rec(slab, slot)) * KVP_SLAB_UNIT
                                        : 0;
}

void
kvp_slab_prefetch(const kvp_slab_t *slab, uint32_t slot)
{
    if (kvp_recpool_was_made(&slab->records, slot)) __builtin_prefetch(kvp_slab_rec(slab, slot));
}

bool
kvp_slab_is_allocated(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_slab_is_live(slab, slot) && kvp_slab_rec_is_allocated(kvp_slab_rec(slab, slot));
}

void
kvp_slab_set_owner(kvp_slab_t *slab, uint32_t slot, uint32_t owner)
{
    if (!kvp_slab_is_allocated(slab, slot) || owner == KVP_SLAB_NONE) {
        kvp_panic("slab: owner %u for slot %u", owner, slot);
    }
    kvp_slab_rec(slab, slot)->owner = owner;
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
    return kvp_slab_is_live(slab, slot) ? kvp_slab_rec(slab, slot)->next : KVP_SLAB_NONE;
}

uint32_t
kvp_slab_prev(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_slab_is_live(slab, slot) ? kvp_slab_rec(slab, slot)->prev : KVP_SLAB_NONE;
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
    while (kvp_slab_rec(slab, slot)->right != KVP_SLAB_NONE)
        slot = kvp_slab_rec(slab, slot)->right;
    return (uint64_t)kvp_slab_capacity_of(slab, kvp_slab_rec(slab, slot)) * KVP_SLAB_UNIT;
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
