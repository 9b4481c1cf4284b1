/* SPDX-License-Identifier: Apache-2.0
 * Copies of payload memory, optionally with a checksum in the same pass. The vector instructions are chosen at run
 * time. */
#ifndef KVP_TRANSPORT_COPY_H
#define KVP_TRANSPORT_COPY_H

#include "common/base.h"
#include "common/hash.h"

/* kvp_copy copies n bytes between ranges that do not overlap. Copies of 256 KiB or more use non-temporal stores,
 * which bypass the cache, and end with a store fence. Smaller copies use memcpy. */
void kvp_copy(void *dst, const void *src, size_t n);

/* kvp_copy_part copies n bytes that are one piece of a copy of `whole` bytes. `whole` decides whether the stores
 * bypass the cache. The caller calls kvp_copy_fence after the last piece of kvp_copy_part or kvp_copy_sum, and before
 * any store that announces the bytes. A fence after each piece would cost a tenth of the time at 16 KiB, because a
 * fence empties the store buffers. */
void kvp_copy_part(void *dst, const void *src, size_t n, uint64_t whole);
void kvp_copy_fence(void);

/* kvp_copy_has_avx2 returns whether this processor and its system have AVX2. */
bool kvp_copy_has_avx2(void);

/* The state of a copy in pieces that computes the checksum of kvp_sum in the same pass. The checksum is of the bytes
 * that were stored, even if the source changes during the copy. The caller owns the state; nothing has to be freed. */
typedef struct {
    uint64_t acc[8];
    uint64_t whole;
    uint64_t total; /* the number of bytes copied so far */
    const uint8_t *next; /* the address of the source bytes after the current piece, for prefetching; NULL = unknown */
    uint32_t stripe; /* the index of the next 64-byte stripe in its block of 16 stripes */
    /* the number of bytes in `hold`, which are not yet added to acc: the first 256 bytes, later at least the last 64 */
    uint32_t held;
    uint8_t hold[256];
} kvp_copy_sum_t;

/* kvp_copy_sum_begin starts a copy of about `whole` bytes (a hint, as in kvp_copy_part). kvp_copy_sum copies the next
 * n bytes. kvp_copy_sum_end returns the checksum of all copied bytes, equal to kvp_sum's. next is the address of the
 * source bytes after these n bytes, for prefetching, or NULL. */
void kvp_copy_sum_begin(kvp_copy_sum_t *cs, uint64_t whole);
void kvp_copy_sum(kvp_copy_sum_t *cs, void *dst, const void *src, size_t n, const void *next);
uint64_t kvp_copy_sum_end(const kvp_copy_sum_t *cs);

#endif
