/* SPDX-License-Identifier: Apache-2.0
 * Descriptor words. `shared` is memory that other processes store to at the same time.
 */
#include "client/transport/words.h"

#include <stdatomic.h>
#include <string.h>

uint64_t
kvp_word_load(const void *shared)
{
    return atomic_load_explicit((const _Atomic uint64_t *)shared, memory_order_acquire);
}

void
kvp_words_load(void *dst, const void *shared, size_t n)
{
    const _Atomic uint64_t *from = shared;
    uint64_t line[KVP_WORDS_MAX / 8];
    uint64_t again;

    /* The payload was copied with plain loads: none of them may sink below the word that vouches for it. */
    atomic_thread_fence(memory_order_acquire);
    again = kvp_word_load(shared);
    /* A generation and state are never used twice, so an equal word before and after means an unchanged line. A slot
     * goes through four states a generation: three tries see an end of it unless it is reused all the time, and then
     * the last word given is not the one that the reader expects. */
    for (int tries = 0; tries < 3; tries++) {
        line[0] = again;
        for (size_t i = 1; i < n / 8; i++)
            line[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        again = kvp_word_load(shared);
        if (again == line[0]) break;
    }
    line[0] = again;
    memcpy(dst, line, n);
}

void
kvp_words_store(void *shared, const void *src, size_t n)
{
    _Atomic uint64_t *to = shared;

    for (size_t i = 0; i < n / 8; i++) {
        uint64_t word;
        memcpy(&word, (const uint8_t *)src + i * 8, 8);
        atomic_store_explicit(&to[i], word, memory_order_relaxed);
    }
}

kvp_err_t
kvp_word_publish(void *shared, uint64_t word)
{
    _Atomic uint64_t *at = shared;
    uint64_t now = atomic_load_explicit(at, memory_order_acquire);

    do {
        if (!kvp_word_may_become(now, word)) return KVP_STALE;
    } while (!atomic_compare_exchange_weak_explicit(at, &now, word, memory_order_seq_cst, memory_order_acquire));
    return KVP_OK;
}
