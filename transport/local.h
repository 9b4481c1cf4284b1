/* SPDX-License-Identifier: Apache-2.0
 * Executes a transfer on memory that this process has mapped, by copies in pieces: the submit of
 * shm and mem. */
#ifndef KVP_TRANSPORT_LOCAL_H
#define KVP_TRANSPORT_LOCAL_H

#include "transport/copy.h"
#include "transport/transport.h"
#include "proto/segfmt.h"

#define KVP_WORDS_MAX KVP_DESC_BYTES

/* kvp_words_fit returns whether n bytes at addr move as words: aligned to 8, and at most one
 * descriptor. */
static inline bool
kvp_words_fit(const void *addr, uint64_t n)
{
    return n <= KVP_WORDS_MAX && (((uintptr_t)addr | n) & 7) == 0;
}

/* kvp_words_load copies n bytes that fit (kvp_words_fit) out of shared memory: every load made before it stays before
 * it, no word is torn, and the rest of the line belongs to the first word, unless a writer keeps changing that. */
void kvp_words_load(void *dst, const void *shared, size_t n);
/* kvp_words_store is the reverse; each word is stored whole, in no promised order. */
void kvp_words_store(void *shared, const void *src, size_t n);

/* kvp_word_publish stores word by kvp_word_may_become, after everything the caller stored before: OK or STALE. */
kvp_err_t kvp_word_publish(void *shared, uint64_t word) KVP_MUST_USE;
/* kvp_word_load is one acquire load. */
uint64_t kvp_word_load(const void *shared);

/* An endpoint's state for local transfers. */
typedef struct {
    kvp_copy_sum_t sum;
    uint64_t now_ns; /* clock, as old as `unclocked` bytes of copying */
    uint64_t unclocked;
} kvp_local_t;

/* kvp_local_begin reads the clock, once for a batch. */
void kvp_local_begin(kvp_local_t *local);

/* kvp_local_run moves the bytes of a transfer that kvp_xfer_check accepted. at is where roffset lies here, guard where
 * the guard's word lies (NULL for a transfer that has none). Fills sum; returns the status: OK, STALE, DEADLINE. */
kvp_err_t kvp_local_run(kvp_local_t *local, kvp_xfer_t *xfer, void *at, const void *guard) KVP_MUST_USE;

#endif
