/* SPDX-License-Identifier: Apache-2.0
 * Extent allocator over a region that it never touches: two-level segregated fit (Masmano et al.,
 * 2004) with boundary tags kept out of band, in an array of fixed-size records. The record's index
 * is the extent's slot: the descriptor of the extent lies at that index in the chunk's metadata
 * area. Best fit, lowest address first. Single-threaded; alloc and free cost O(log of the free
 * extents of one size class); no globals. */
#ifndef KVP_MASTER_CORE_BASE_SLAB_H
#define KVP_MASTER_CORE_BASE_SLAB_H

#include "common/base.h"

#define KVP_SLAB_NONE UINT32_MAX
#define KVP_SLAB_UNIT 64u /* bytes; every offset and length is a multiple */

typedef struct kvp_slab kvp_slab_t;

/* kvp_slab_create makes an allocator over region_bytes (rounded down to KVP_SLAB_UNIT; below 2^37)
 * with at most max_slots records (memory for them is taken as it is needed and given back when it
 * is not). Returned to kvp_slab_destroy. INVALID for a region of zero units or max_slots < 2,
 * NOMEM. */
kvp_err_t kvp_slab_create(uint64_t region_bytes, uint32_t max_slots, kvp_slab_t **slab_out) KVP_MUST_USE;
void kvp_slab_destroy(kvp_slab_t *slab);
/* kvp_slab_destroy_some is a part of kvp_slab_destroy: it frees up to `blocks` blocks of records,
 * and returns true at the end. Between the calls the slab must not be used. */
bool kvp_slab_destroy_some(kvp_slab_t *slab, uint32_t blocks);

/* kvp_slab_alloc takes an extent for len payload bytes, owned by owner (an opaque number, kept in the record; not
 * KVP_SLAB_NONE). NO_SPACE when no free extent can hold it, LIMIT when the slots are used up. Out only on success. */
kvp_err_t kvp_slab_alloc(kvp_slab_t *slab, uint64_t len, uint32_t owner, uint32_t *slot_out, uint64_t *offset_out)
    KVP_MUST_USE;

/* kvp_slab_can_fit returns whether kvp_slab_alloc(len) would succeed now. */
bool kvp_slab_can_fit(const kvp_slab_t *slab, uint64_t len);

/* kvp_slab_best_fit is the capacity of the free extent that kvp_slab_alloc(len) would cut: the
 * longest extent that it holds. 0 = none. */
uint64_t kvp_slab_best_fit(const kvp_slab_t *slab, uint64_t len);

/* kvp_slab_free returns the extent and joins it with free neighbours. The slot may be reused at
 * once. Freeing an unallocated slot is our own bug: it panics. */
void kvp_slab_free(kvp_slab_t *slab, uint32_t slot);

/* Memory that was divided before this allocator was made (a rebuild): by rising offset, before
 * anything is allocated. kvp_slab_tail is where the free rest of the region begins. kvp_slab_adopt
 * allocates [offset, offset + bytes) there under that very slot, or under any for KVP_SLAB_NONE;
 * what lies between stays free. kvp_slab_move gives an extent another slot. INVALID: below the
 * tail, outside the region, not a multiple of KVP_SLAB_UNIT, or under a named slot from 64 KiB up
 * not of 4 KiB; LIMIT: the slot is taken by an allocated extent, or slots are used up; NOMEM. */
uint64_t kvp_slab_tail(const kvp_slab_t *slab);
kvp_err_t kvp_slab_adopt(kvp_slab_t *slab, uint32_t slot, uint64_t offset, uint64_t bytes, uint32_t owner,
                         uint32_t *slot_out) KVP_MUST_USE;
kvp_err_t kvp_slab_move(kvp_slab_t *slab, uint32_t slot, uint32_t *slot_out) KVP_MUST_USE;

/* Restoring an existing division of memory from the master's log, in any order.
 * kvp_slab_create_open makes an open allocator, in which no extent is free or allocated yet.
 * kvp_slab_restore allocates [offset, offset + bytes) under the given slot, or under any for
 * KVP_SLAB_NONE; INVALID, LIMIT and NOMEM as kvp_slab_adopt. kvp_slab_unrestore undoes it. Records
 * can be read meanwhile, physical order cannot. kvp_slab_close ends the restore: all other space is
 * free. CORRUPT if two extents overlap, LIMIT without a free slot, NOMEM; the allocator is still
 * open then. O(extents). kvp_slab_free on an open allocator is kvp_slab_unrestore. */
kvp_err_t kvp_slab_create_open(uint64_t region_bytes, uint32_t max_slots, kvp_slab_t **slab_out) KVP_MUST_USE;
kvp_err_t kvp_slab_restore(kvp_slab_t *slab, uint32_t slot, uint64_t offset, uint64_t bytes, uint32_t owner,
                           uint32_t *slot_out) KVP_MUST_USE;
void kvp_slab_unrestore(kvp_slab_t *slab, uint32_t slot);
kvp_err_t kvp_slab_close(kvp_slab_t *slab) KVP_MUST_USE;
bool kvp_slab_is_open(const kvp_slab_t *slab);
/* kvp_slab_take_free allocates some free extent whole, without alignment. False: no free extent. */
bool kvp_slab_take_free(kvp_slab_t *slab, uint32_t owner, uint32_t *slot_out);

/* Reading a record. A slot that holds no extent (or is out of range) gives owner KVP_SLAB_NONE and length 0. A free
 * extent has owner KVP_SLAB_NONE and a length. */
uint32_t kvp_slab_owner(const kvp_slab_t *slab, uint32_t slot);
uint64_t kvp_slab_offset(const kvp_slab_t *slab, uint32_t slot);
uint64_t kvp_slab_len(const kvp_slab_t *slab, uint32_t slot); /* extent bytes, not payload bytes */
void kvp_slab_prefetch(const kvp_slab_t *slab, uint32_t slot); /* it will be asked about soon; any number will do */
bool kvp_slab_is_allocated(const kvp_slab_t *slab, uint32_t slot);
void kvp_slab_set_owner(kvp_slab_t *slab, uint32_t slot, uint32_t owner);

/* Physical order: neighbours by address, free extents included; KVP_SLAB_NONE at the ends. Of an
 * open allocator first and next go by slots, all of them. */
uint32_t kvp_slab_first(const kvp_slab_t *slab);
uint32_t kvp_slab_next(const kvp_slab_t *slab, uint32_t slot);
uint32_t kvp_slab_prev(const kvp_slab_t *slab, uint32_t slot);

/* Totals. slots_high is one above the highest slot ever handed out: the metadata area must reach that far. */
uint64_t kvp_slab_region_bytes(const kvp_slab_t *slab);
uint64_t kvp_slab_used_bytes(const kvp_slab_t *slab); /* extent bytes of allocated extents */
uint64_t kvp_slab_largest_free(const kvp_slab_t *slab); /* the longest extent that alloc could find now */
uint32_t kvp_slab_slots_high(const kvp_slab_t *slab);
uint64_t kvp_slab_memory_bytes(const kvp_slab_t *slab); /* memory of the records in this process */

#endif
