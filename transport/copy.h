/* SPDX-License-Identifier: Apache-2.0
 * Copies of payload memory, with or without a sum computed on the way. Vectors are chosen at run time.
 */
#ifndef KVP_TRANSPORT_COPY_H
#define KVP_TRANSPORT_COPY_H

#include "common/base.h"
#include "common/hash.h"

/* kvp_copy copies n bytes that do not overlap. From a size on it stores around the cache (and ends with a store
 * fence), below it is memcpy. */
void kvp_copy(void *dst, const void *src, size_t n);

/* kvp_copy_part is kvp_copy for one piece of a copy of `whole` bytes, without the fence; `whole`
 * decides the method. kvp_copy_fence follows the last piece, also of the summing copy below, and
 * precedes any store that announces the bytes. A fence after each piece would empty the store
 * buffers, which costs a tenth of the time at 16 KiB. */
void kvp_copy_part(void *dst, const void *src, size_t n, uint64_t whole);
void kvp_copy_fence(void);

/* A copy in pieces that also takes the content sum of kvp_sum, in one pass: the sum is of the very bytes that were
 * stored, even where the source changes meanwhile. The caller's memory; nothing to free. */
typedef struct {
    uint64_t acc[8];
    uint64_t whole;
    uint64_t total; /* bytes so far */
    const uint8_t *next; /* continuation of the source after the current piece; NULL = unknown */
    uint32_t stripe; /* of 64 bytes, in the block of 16 */
    uint32_t held; /* bytes in `hold`, not yet in acc: all, up to 256; then the last 64 or more */
    uint8_t hold[256];
} kvp_copy_sum_t;

/* kvp_copy_sum_begin starts a copy of `whole` bytes (a hint, as in kvp_copy_part). kvp_copy_sum
 * copies the next n bytes. kvp_copy_sum_end returns the sum that kvp_sum returns for all the bytes.
 * next is the continuation of the source after the n bytes, for prefetching; a hint, or NULL. */
void kvp_copy_sum_begin(kvp_copy_sum_t *cs, uint64_t whole);
void kvp_copy_sum(kvp_copy_sum_t *cs, void *dst, const void *src, size_t n, const void *next);
uint64_t kvp_copy_sum_end(const kvp_copy_sum_t *cs);

#endif
