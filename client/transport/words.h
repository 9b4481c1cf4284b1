/* SPDX-License-Identifier: Apache-2.0
 * Descriptor words: the loads and stores of shared metadata that must not tear and that order the payload around them.
 * Used by whoever executes a transfer on memory mapped here: shm and mem on the caller's side, tcp on the serving side.
 */
#ifndef KVP_CLIENT_TRANSPORT_WORDS_H
#define KVP_CLIENT_TRANSPORT_WORDS_H

#include "common/segfmt.h"

#define KVP_WORDS_MAX KVP_DESC_BYTES

/* kvp_words_fit says whether n bytes at addr are moved as words: aligned to 8, and at most one descriptor. */
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

#endif
