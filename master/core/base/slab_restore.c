/* SPDX-License-Identifier: Apache-2.0
 * The extent allocator over memory that was divided before: extents are adopted by rising offset (kvp_slab_adopt), or
 * restored in any order (kvp_slab_restore, until kvp_slab_close). */
#include "master/core/base/slab_priv.h"

#include <stdlib.h>

/* ---- adopting extents by rising offset */
uint64_t
kvp_slab_tail(const kvp_slab_t *slab)
{
    const kvp_slab_rec_t *r = kvp_slab_rec(slab, slab->last);

    return (uint64_t)(kvp_slab_rec_is_allocated(r) ? slab->region_units : r->off) * KVP_SLAB_UNIT;
}

/* slot_claim takes the slot for the caller. If the record of the region's free rest has it, that record is moved. */
static kvp_err_t
slot_claim(kvp_slab_t *slab, uint32_t slot)
{
    const kvp_slab_rec_t blank = {.off = KVP_SLAB_UNUSED};
    uint32_t other;

    if (slot >= slab->records.max) return KVP_LIMIT;
    if (!kvp_slab_is_live(slab, slot)) return kvp_recpool_claim(&slab->records, slot, &blank) ? KVP_OK : KVP_NOMEM;
    if (kvp_slab_rec_is_allocated(kvp_slab_rec(slab, slot))) return KVP_LIMIT;
    kvp_err_t err = kvp_slab_take_slots(slab, 1, &other);
    if (err != KVP_OK) return err;
    kvp_slab_unindex(slab, slot);
    kvp_slab_insert_free(slab, other, kvp_slab_rec(slab, slot)->off, kvp_slab_rec(slab, slot)->prev,
                         kvp_slab_rec(slab, slot)->next);
    kvp_slab_rec(slab, slot)->off = KVP_SLAB_UNUSED;
    return KVP_OK;
}

static bool
is_on_bounds(uint64_t offset, uint64_t bytes)
{
    uint64_t align = bytes >= (uint64_t)KVP_SLAB_LARGE_UNITS * KVP_SLAB_UNIT
                         ? (uint64_t)KVP_SLAB_PAGE_UNITS * KVP_SLAB_UNIT
                         : KVP_SLAB_UNIT;

    return (offset | bytes) % align == 0;
}

/* Allocates a whole free extent under its present slot, because perhaps no other slot is unused. */
static void
claim_whole(kvp_slab_t *slab, uint32_t slot, uint32_t owner, uint32_t *slot_out)
{
    kvp_slab_rec_t *r = kvp_slab_rec(slab, slot);
    uint32_t units = kvp_slab_rec_len(slab, r);

    kvp_slab_unindex(slab, slot);
    r->off |= KVP_SLAB_ALLOCATED;
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
    kvp_err_t err = slot == KVP_SLAB_NONE ? kvp_slab_take_slots(slab, 1, &slot) : slot_claim(slab, slot);
    if (err != KVP_OK) return err;
    if (offset > kvp_slab_tail(slab)) err = kvp_slab_take_slots(slab, 1, &spare);
    if (err != KVP_OK) {
        kvp_slab_give_slot(slab, slot);
        return err;
    }
    uint32_t tail = slab->last, off = (uint32_t)(offset / KVP_SLAB_UNIT), units = (uint32_t)(bytes / KVP_SLAB_UNIT);
    uint32_t front = kvp_slab_rec(slab, tail)->off, prev = kvp_slab_rec(slab, tail)->prev, end = off + units;
    kvp_slab_unindex(slab, tail);
    *kvp_slab_rec(slab, slot) = (kvp_slab_rec_t){
        .off = off | KVP_SLAB_ALLOCATED, .len = units, .owner = owner, .prev = prev, .next = KVP_SLAB_NONE};
    kvp_slab_point_to(slab, slot);
    if (spare != KVP_SLAB_NONE) kvp_slab_insert_free(slab, spare, front, prev, slot);
    if (end < slab->region_units)
        kvp_slab_insert_free(slab, tail, end, slot, KVP_SLAB_NONE);
    else
        kvp_slab_give_slot(slab, tail);
    slab->used_units += units;
    if (slot >= slab->slots_high) slab->slots_high = slot + 1;
    *slot_out = slot;
    return KVP_OK;
}

/* ---- restoring extents in any order */
kvp_err_t
kvp_slab_restore(kvp_slab_t *slab, uint32_t slot, uint64_t offset, uint64_t bytes, uint32_t owner, uint32_t *slot_out)
{
    const kvp_slab_rec_t blank = {.off = KVP_SLAB_UNUSED};
    uint64_t region = kvp_slab_region_bytes(slab);

    if (bytes == 0 || offset > region || bytes > region - offset || owner == KVP_SLAB_NONE) return KVP_INVALID;
    if (!is_on_bounds(offset, bytes)) return KVP_INVALID;
    if (slot == KVP_SLAB_NONE) {
        kvp_err_t err = kvp_slab_take_slots(slab, 1, &slot);

        if (err != KVP_OK) return err;
    } else if (slot >= slab->records.max || kvp_slab_is_live(slab, slot)) {
        return KVP_LIMIT;
    } else if (!kvp_recpool_claim(&slab->records, slot, &blank)) {
        return KVP_NOMEM;
    }
    *kvp_slab_rec(slab, slot) = (kvp_slab_rec_t){
        .off = (uint32_t)(offset / KVP_SLAB_UNIT) | KVP_SLAB_ALLOCATED,
        .len = (uint32_t)(bytes / KVP_SLAB_UNIT),
        .owner = owner,
        .prev = KVP_SLAB_NONE,
        .next = KVP_SLAB_NONE,
    };
    slab->used_units += kvp_slab_rec(slab, slot)->len;
    if (slot >= slab->slots_high) slab->slots_high = slot + 1;
    *slot_out = slot;
    return KVP_OK;
}

void
kvp_slab_unrestore(kvp_slab_t *slab, uint32_t slot)
{
    slab->used_units -= kvp_slab_rec(slab, slot)->len;
    kvp_slab_give_slot(slab, slot);
}

#define DIGIT_BITS 11u
#define DIGITS (1u << DIGIT_BITS)

typedef struct {
    uint32_t off, slot;
} told_t;
/* Does one pass of a radix sort, by one digit of the offset. */
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

/* Returns an array of all restored extents by rising offset, which the caller frees; its second half is scratch space.
 * NULL: no memory. */
static told_t *
list_by_offset(const kvp_slab_t *slab)
{
    uint32_t n = slab->records.n, at = 0, limit = kvp_recpool_limit(&slab->records);
    told_t *told = malloc((2 * (size_t)n + 1) * sizeof *told);

    if (told == NULL) return NULL;
    for (uint32_t slot = 0; slot < limit; slot++)
        if (kvp_slab_is_live(slab, slot)) told[n + at++] = (told_t){kvp_slab_rec_off(kvp_slab_rec(slab, slot)), slot};
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
        end = told[i].off + kvp_slab_rec(slab, told[i].slot)->len;
    }
    gaps += end < slab->region_units;
    return gaps > slab->records.max - slab->records.n ? KVP_LIMIT : KVP_OK;
}

/* Links a restored extent after the extents before it, which end at `end` (in units). A gap becomes a free extent. */
static kvp_err_t
link_told(kvp_slab_t *slab, const told_t *told, uint32_t end)
{
    uint32_t gap = KVP_SLAB_NONE, prev = slab->last;
    kvp_err_t err = told->off == end ? KVP_OK : kvp_slab_take_slots(slab, 1, &gap);

    if (err != KVP_OK) return err;
    slab->last = told->slot;
    if (gap != KVP_SLAB_NONE) {
        kvp_slab_insert_free(slab, gap, end, prev, told->slot);
        return KVP_OK;
    }
    kvp_slab_rec(slab, told->slot)->prev = prev;
    *(prev == KVP_SLAB_NONE ? &slab->first : &kvp_slab_rec(slab, prev)->next) = told->slot;
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
        end = told[i].off + kvp_slab_rec(slab, told[i].slot)->len;
    }
    free(told);
    if (err != KVP_OK || end == slab->region_units) return err;
    err = kvp_slab_take_slots(slab, 1, &rest);
    if (err == KVP_OK) kvp_slab_insert_free(slab, rest, end, slab->last, KVP_SLAB_NONE);
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
