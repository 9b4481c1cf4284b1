/* SPDX-License-Identifier: Apache-2.0
 * The records of the extent allocator, shared by slab.c and slab_restore.c. */
#ifndef KVP_MASTER_CORE_BASE_SLAB_PRIV_H
#define KVP_MASTER_CORE_BASE_SLAB_PRIV_H

#include "common/recpool.h"
#include "master/core/base/slab.h"
#include "proto/segfmt.h"

#define KVP_SLAB_PAGE_UNITS 64u /* 4 KiB */
#define KVP_SLAB_LARGE_UNITS 1024u /* 64 KiB: extents of this length or more are aligned to pages */

#define KVP_SLAB_SL_BITS 5u
#define KVP_SLAB_SL_COUNT (1u << KVP_SLAB_SL_BITS)
#define KVP_SLAB_FL_COUNT (32u - KVP_SLAB_SL_BITS + 1u)

#define KVP_SLAB_ALLOCATED (1u << 31)
#define KVP_SLAB_UNUSED                                                                                                \
    UINT32_MAX /* the value of `off` in a slot that contains no extent; no extent begins in the last unit of 2^31 */

/* off is below 2^31 units, so its top bit can distinguish allocated from free. */
typedef struct {
    uint32_t off;
    uint32_t prev;
    /* prev, next: the neighbours by address; in an unused slot both fields belong to the record pool */
    uint32_t next;
    union {
        uint32_t owner;
        uint32_t left; /* of a free extent: the treap's subtree with lower (capacity, offset) */
    };
    union {
        uint32_t len;
        uint32_t right; /* of a free extent: the treap's subtree with higher (capacity, offset) */
    };
} kvp_slab_rec_t;

_Static_assert(sizeof(kvp_slab_rec_t) == 20, "a record costs 20 bytes");

struct kvp_slab {
    uint32_t region_units;
    uint32_t used_units;
    uint32_t slots_high;
    uint32_t first, last; /* first and last extent by address */
    uint32_t fl_map;
    uint32_t sl_map[KVP_SLAB_FL_COUNT];
    uint32_t (*roots)[KVP_SLAB_SL_COUNT]; /* a treap's root for each size class; array of fl_count first levels */
    uint32_t fl_count;
    kvp_recpool_t records;
};

static inline kvp_slab_rec_t *
kvp_slab_rec(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_recpool_at(&slab->records, slot);
}

static inline bool
kvp_slab_is_live(const kvp_slab_t *slab, uint32_t slot)
{
    return kvp_recpool_was_made(&slab->records, slot) && kvp_slab_rec(slab, slot)->off != KVP_SLAB_UNUSED;
}

static inline bool
kvp_slab_rec_is_allocated(const kvp_slab_rec_t *r)
{
    return (r->off & KVP_SLAB_ALLOCATED) != 0;
}

static inline uint32_t
kvp_slab_rec_off(const kvp_slab_rec_t *r)
{
    return r->off & ~KVP_SLAB_ALLOCATED;
}

static inline uint32_t
kvp_slab_rec_len(const kvp_slab_t *slab, const kvp_slab_rec_t *r)
{
    if (kvp_slab_rec_is_allocated(r)) return r->len;
    return (r->next == KVP_SLAB_NONE ? slab->region_units : kvp_slab_rec_off(kvp_slab_rec(slab, r->next))) - r->off;
}

/* ---- the order of free extents: by capacity, then by address */
static inline uint32_t
kvp_slab_capacity_of(const kvp_slab_t *slab, const kvp_slab_rec_t *r)
{
    uint32_t len = kvp_slab_rec_len(slab, r);
    uint32_t first_page = (uint32_t)kvp_align_up(r->off, KVP_SLAB_PAGE_UNITS);
    uint32_t end_page = (r->off + len) & ~(KVP_SLAB_PAGE_UNITS - 1);

    if (end_page > first_page && end_page - first_page >= KVP_SLAB_LARGE_UNITS) return end_page - first_page;
    return (uint32_t)kvp_min_u64(len, KVP_SLAB_LARGE_UNITS - 1);
}

static inline uint64_t
kvp_slab_order_of(const kvp_slab_t *slab, const kvp_slab_rec_t *r)
{
    return (uint64_t)kvp_slab_capacity_of(slab, r) << 32 | r->off;
}

/* Returns a hash of the slot, by a bijection (MurmurHash3's finalizer), so no two slots have equal priority. */
static inline uint32_t
kvp_slab_priority_of(uint32_t slot)
{
    slot ^= slot >> 16;
    slot *= 0x85ebca6bu;
    slot ^= slot >> 13;
    slot *= 0xc2b2ae35u;
    return slot ^ slot >> 16;
}

static inline void
kvp_slab_class_of(uint32_t units, uint32_t *fl_out, uint32_t *sl_out)
{
    if (units < KVP_SLAB_SL_COUNT) {
        *fl_out = 0;
        *sl_out = units;
        return;
    }
    uint32_t shift = 31u - (uint32_t)__builtin_clz(units) - KVP_SLAB_SL_BITS;
    *fl_out = shift + 1;
    *sl_out = (units >> shift) & (KVP_SLAB_SL_COUNT - 1);
}

/* slab.c */
void kvp_slab_give_slot(kvp_slab_t *slab, uint32_t slot);
kvp_err_t kvp_slab_take_slots(kvp_slab_t *slab, uint32_t n, uint32_t *slots_out);
void kvp_slab_unindex(kvp_slab_t *slab, uint32_t slot);
void kvp_slab_point_to(kvp_slab_t *slab, uint32_t slot);
void kvp_slab_insert_free(kvp_slab_t *slab, uint32_t slot, uint32_t off, uint32_t prev, uint32_t next);

#endif
