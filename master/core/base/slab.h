/* SPDX-License-Identifier: Apache-2.0
 * An extent allocator over a region that it never touches: two-level segregated fit (Masmano et al., 2004) with
 * boundary tags kept outside of the region, in an array of fixed-size records. The index of a record is its extent's
 * slot; the descriptor that a node keeps of the extent has the same index. Best fit, lowest address first.
 * Single-threaded; alloc and free cost O(log of the free extents of one size class); no globals. */
#ifndef KVP_MASTER_CORE_BASE_SLAB_H
#define KVP_MASTER_CORE_BASE_SLAB_H

#include "common/base.h"

#define KVP_SLAB_NONE UINT32_MAX
#define KVP_SLAB_UNIT 64u /* bytes; every extent's offset and length is a multiple of this unit */

typedef struct kvp_slab kvp_slab_t;

/* kvp_slab_create makes an allocator over region_bytes (rounded down to KVP_SLAB_UNIT; below 2^37) with at most
 * max_slots records. Memory for records is allocated as needed and freed when unused. The caller frees the allocator
 * with kvp_slab_destroy. INVALID: zero units, 2^37 bytes or more, or max_slots < 2. NOMEM. */
kvp_err_t kvp_slab_create(uint64_t region_bytes, uint32_t max_slots, kvp_slab_t **slab_out) KVP_MUST_USE;
void kvp_slab_destroy(kvp_slab_t *slab);
/* kvp_slab_destroy_some does a part of kvp_slab_destroy: it frees up to `blocks` blocks of records, and returns true
 * when the allocator is destroyed. Between the calls the allocator must not be used. */
bool kvp_slab_destroy_some(kvp_slab_t *slab, uint32_t blocks);

/* kvp_slab_alloc allocates an extent for len payload bytes. owner is an opaque number that is kept in the record.
 * INVALID: len is 0, or owner KVP_SLAB_NONE. NO_SPACE: no free extent is long enough. LIMIT: no slot is left. NOMEM. */
kvp_err_t kvp_slab_alloc(kvp_slab_t *slab, uint64_t len, uint32_t owner, uint32_t *slot_out, uint64_t *offset_out)
    KVP_MUST_USE;

/* kvp_slab_can_fit returns whether kvp_slab_alloc(len) would succeed now. */
bool kvp_slab_can_fit(const kvp_slab_t *slab, uint64_t len);

/* kvp_slab_best_fit finds the free extent from which kvp_slab_alloc(len) would cut, and returns the most bytes that
 * could be allocated inside this one extent. 0 = no free extent is long enough for len. */
uint64_t kvp_slab_best_fit(const kvp_slab_t *slab, uint64_t len);

/* kvp_slab_free frees the extent and joins it with free neighbours. The slot may be reused at once. Panics if the
 * slot is not allocated. */
void kvp_slab_free(kvp_slab_t *slab, uint32_t slot);

/* Adopting memory that was divided before this allocator was made (a rebuild), by rising offset, before any
 * allocation. kvp_slab_tail returns the offset at which the free rest of the region begins. kvp_slab_adopt allocates
 * [offset, offset + bytes) in this rest under the given slot, or under any slot for KVP_SLAB_NONE; the space between
 * the adopted extents stays free. INVALID: the extent is empty, below the tail, outside the region, not in multiples
 * of KVP_SLAB_UNIT, or, with a given slot and from 64 KiB up, of 4 KiB. LIMIT: the slot belongs to an allocated extent,
 * or no slot is left. NOMEM. kvp_slab_move gives an allocated extent another slot: LIMIT, NOMEM. */
uint64_t kvp_slab_tail(const kvp_slab_t *slab);
kvp_err_t kvp_slab_adopt(kvp_slab_t *slab, uint32_t slot, uint64_t offset, uint64_t bytes, uint32_t owner,
                         uint32_t *slot_out) KVP_MUST_USE;
kvp_err_t kvp_slab_move(kvp_slab_t *slab, uint32_t slot, uint32_t *slot_out) KVP_MUST_USE;

/* Restoring an existing division of memory from the master's log, in any order. kvp_slab_create_open makes an open
 * allocator, in which no extent is free or allocated yet. kvp_slab_restore allocates [offset, offset + bytes) under
 * the given slot, or under any slot for KVP_SLAB_NONE; errors as kvp_slab_adopt, with the 4 KiB rule for any slot.
 * kvp_slab_unrestore, or kvp_slab_free on an open allocator, undoes it. Records of an open allocator can be read, but
 * it has no physical order. kvp_slab_close ends the restore in O(extents): all other space becomes free. CORRUPT: two
 * extents overlap; LIMIT: too few slots for the gaps; NOMEM: the allocator can only be destroyed. */
kvp_err_t kvp_slab_create_open(uint64_t region_bytes, uint32_t max_slots, kvp_slab_t **slab_out) KVP_MUST_USE;
kvp_err_t kvp_slab_restore(kvp_slab_t *slab, uint32_t slot, uint64_t offset, uint64_t bytes, uint32_t owner,
                           uint32_t *slot_out) KVP_MUST_USE;
void kvp_slab_unrestore(kvp_slab_t *slab, uint32_t slot);
kvp_err_t kvp_slab_close(kvp_slab_t *slab) KVP_MUST_USE;
bool kvp_slab_is_open(const kvp_slab_t *slab);
/* kvp_slab_take_free allocates one free extent whole, unaligned, of the lowest size class that has any. Returns false
 * if no extent is free. */
bool kvp_slab_take_free(kvp_slab_t *slab, uint32_t owner, uint32_t *slot_out);

/* Reading a record. A slot that holds no extent (or is out of range) gives owner KVP_SLAB_NONE and length 0. A free
 * extent has owner KVP_SLAB_NONE and a length. */
uint32_t kvp_slab_owner(const kvp_slab_t *slab, uint32_t slot);
uint64_t kvp_slab_offset(const kvp_slab_t *slab, uint32_t slot);
uint64_t kvp_slab_len(const kvp_slab_t *slab, uint32_t slot); /* extent bytes, not payload bytes */
/* prefetches the record into the CPU cache; any slot number is legal */
void kvp_slab_prefetch(const kvp_slab_t *slab, uint32_t slot);
bool kvp_slab_is_allocated(const kvp_slab_t *slab, uint32_t slot);
void kvp_slab_set_owner(kvp_slab_t *slab, uint32_t slot, uint32_t owner);

/* Physical order: neighbours by address, free extents included; KVP_SLAB_NONE at the ends. For an open allocator,
 * first and next go through all slot numbers instead. */
uint32_t kvp_slab_first(const kvp_slab_t *slab);
uint32_t kvp_slab_next(const kvp_slab_t *slab, uint32_t slot);
uint32_t kvp_slab_prev(const kvp_slab_t *slab, uint32_t slot);

/* Totals. slots_high is one above the highest slot ever allocated: the metadata area needs that many descriptors. */
uint64_t kvp_slab_region_bytes(const kvp_slab_t *slab);
uint64_t kvp_slab_used_bytes(const kvp_slab_t *slab); /* sum of the lengths of the allocated extents */
/* length of the longest extent that kvp_slab_alloc could allocate now */
uint64_t kvp_slab_largest_free(const kvp_slab_t *slab);
uint32_t kvp_slab_slots_high(const kvp_slab_t *slab);
uint64_t kvp_slab_memory_bytes(const kvp_slab_t *slab); /* memory of the records in this process */

#endif
