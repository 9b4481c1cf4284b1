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

/* kvp_copy_part is kvp_copy of one piece of a copy of `whole` bytes, whose size decides, without the fence.
 * kvp_copy_fence comes behind the last piece, of this copy or of the summing one below, and before any store that says
 * that the bytes are there: a fence behind each piece would empty the store buffers, a tenth of the time at 16 KiB. */
void kvp_copy_part(void *dst, const void *src, size_t n, uint64_t whole);
void kvp_copy_fence(void);

/* A copy in pieces that also takes the content sum of kvp_sum, in one pass: the sum is of the very bytes that were
 * stored, even where the source changes meanwhile. The caller's memory; nothing to free. */
typedef struct {
    uint64_t acc[8];
    uint64_t whole;
    uint64_t total; /* bytes so far */
    const uint8_t *next; /* where the source goes on behind the piece at hand; NULL = not known */
    uint32_t stripe; /* of 64 bytes, in the block of 16 */
    uint32_t held; /* bytes in `hold`, not yet in acc: all, up to 256; then the last 64 or more */
    uint8_t hold[256];
} kvp_copy_sum_t;

/* kvp_copy_sum_begin starts a copy of `whole` bytes (a hint, as in kvp_copy_part); kvp_copy_sum copies the next n, and
 * kvp_copy_sum_end returns what kvp_sum returns for all of them. next is where the source goes on behind those n, to be
 * asked for in time; a hint, too, or NULL. */
void kvp_copy_sum_begin(kvp_copy_sum_t *cs, uint64_t whole);
void kvp_copy_sum(kvp_copy_sum_t *cs, void *dst, const void *src, size_t n, const void *next);
uint64_t kvp_copy_sum_end(const kvp_copy_sum_t *cs);

#endif
