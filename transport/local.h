/* SPDX-License-Identifier: Apache-2.0
 * Executes a transfer on memory that this process has mapped, by copying in pieces. The transports shm and mem (of
 * the tests) submit this way. */
#ifndef KVP_TRANSPORT_LOCAL_H
#define KVP_TRANSPORT_LOCAL_H

#include "transport/copy.h"
#include "transport/transport.h"
#include "proto/segfmt.h"

#define KVP_WORDS_MAX KVP_DESC_BYTES

/* kvp_words_fit returns whether n bytes at addr can be moved as whole words of 8 bytes: both are multiples of 8, and n
 * is at most one descriptor (128 bytes). */
static inline bool
kvp_words_fit(const void *addr, uint64_t n)
{
    return n <= KVP_WORDS_MAX && (((uintptr_t)addr | n) & 7) == 0;
}

/* kvp_words_load copies n bytes (see kvp_words_fit) out of shared memory. Loads made before the call stay before the
 * call. No word is torn. If the first word says SEALED, all words are of its moment, unless a writer keeps changing the
 * first word. */
void kvp_words_load(void *dst, const void *shared, size_t n);
/* kvp_words_store copies n bytes into shared memory. Each word is stored whole; the order of the stores is
 * undefined. */
void kvp_words_store(void *shared, const void *src, size_t n);

/* kvp_word_publish stores word, after all earlier stores of the caller, if kvp_word_may_become allows: OK or STALE. */
kvp_err_t kvp_word_publish(void *shared, uint64_t word) KVP_MUST_USE;
/* kvp_word_load loads one word with acquire order. */
uint64_t kvp_word_load(const void *shared);
/* kvp_word_is_still loads one word after all earlier loads of the caller, and returns whether it equals `word`. If so,
 * bytes that the caller read, and that this word protects, are valid. kvp_word_load cannot show this, because it orders
 * only later loads. */
bool kvp_word_is_still(const void *shared, uint64_t word);

/* The state that an endpoint of shm (or mem) keeps for local transfers. */
typedef struct {
    kvp_copy_sum_t sum;
    uint64_t now_ns; /* the time of the last reading of the clock */
    uint64_t unclocked;
} kvp_local_t;

/* kvp_local_begin reads the clock at the start of a batch. */
void kvp_local_begin(kvp_local_t *local);

/* kvp_local_run moves the bytes of a transfer that kvp_xfer_check accepted. at is the mapped address of roffset.
 * guard is the mapped address of the guard's word, NULL for a transfer without a guard. Sets xfer->sum if the
 * transfer has a sum. Returns the status: OK, STALE, DEADLINE. */
kvp_err_t kvp_local_run(kvp_local_t *local, kvp_xfer_t *xfer, void *at, const void *guard) KVP_MUST_USE;

#endif
