/* SPDX-License-Identifier: Apache-2.0
 * Transfers by loads and stores in mapped memory. A long transfer is split into pieces. Between pieces its deadline and
 * its guard word are checked. So a writer whose space was taken away stops soon, and a caller at its deadline does not
 * wait for a whole object. */
#include "transport/local.h"

#include "common/clock.h"

#include <stdatomic.h>
#include <string.h>

/* ---- descriptor words */
uint64_t
kvp_word_load(const void *shared)
{
    return atomic_load_explicit((const _Atomic uint64_t *)shared, memory_order_acquire);
}

bool
kvp_word_is_still(const void *shared, uint64_t word)
{
    atomic_thread_fence(memory_order_acquire);
    return kvp_word_load(shared) == word;
}

void
kvp_words_load(void *dst, const void *shared, size_t n)
{
    const _Atomic uint64_t *from = shared;
    uint64_t line[KVP_WORDS_MAX / 8];
    uint64_t again;

    /* The payload was copied with plain loads: this fence keeps those loads before the load of the descriptor word
     * that validates the payload. */
    atomic_thread_fence(memory_order_acquire);
    again = kvp_word_load(shared);
    /* A generation and state are never used twice, and a line does not change while it is SEALED, so an equal SEALED
     * word before and after means that the line is unchanged. A slot has four states in each generation. Three tries
     * suffice unless the slot is reused all the time; then the returned first word is not the word that the reader
     * expects. */
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

#define PIECE_BYTES (1u << 20)
#define CLOCK_EVERY_BYTES (256u << 10) /* the bytes copied between two readings of the clock, about 20 us */

void
kvp_local_begin(kvp_local_t *local)
{
    local->now_ns = kvp_now_ns();
    local->unclocked = 0;
}

static bool
is_too_late(kvp_local_t *local, const kvp_xfer_t *xfer)
{
    if (xfer->deadline_ns == 0) return false;
    if (local->unclocked >= CLOCK_EVERY_BYTES) kvp_local_begin(local);
    return local->now_ns >= xfer->deadline_ns;
}

/* Moves at most KVP_DESC_BYTES between shared memory and the caller's pieces, such as a slot's descriptor, so that no
 * word of 8 bytes is torn. A buffer on the stack collects the pieces. */
static void
move_words(const kvp_xfer_t *xfer, void *at)
{
    uint8_t line[KVP_WORDS_MAX];
    uint8_t *p = line;

    if (xfer->kind == KVP_XFER_READ) kvp_words_load(line, at, xfer->len);
    for (uint32_t i = 0; i < xfer->iov_n; i++) {
        if (xfer->kind == KVP_XFER_READ)
            memcpy(xfer->iov[i].addr, p, xfer->iov[i].len);
        else
            memcpy(p, xfer->iov[i].addr, xfer->iov[i].len);
        p += xfer->iov[i].len;
    }
    if (xfer->kind == KVP_XFER_WRITE) kvp_words_store(at, line, xfer->len);
}

/* Returns the address of the piece after piece i of a WRITE's source, for prefetching; NULL after the last piece. */
static const void *
piece_behind(const kvp_xfer_t *xfer, uint32_t i)
{
    return i + 1 < xfer->iov_n ? xfer->iov[i + 1].addr : NULL;
}

static kvp_err_t
move_pieces(kvp_local_t *local, const kvp_xfer_t *xfer, uint8_t *at, const void *guard)
{
    bool has_sum = (xfer->flags & KVP_XFER_SUM) != 0;
    bool is_read = xfer->kind == KVP_XFER_READ;

    for (uint32_t i = 0; i < xfer->iov_n; i++) {
        uint8_t *here = xfer->iov[i].addr;
        size_t left = xfer->iov[i].len;

        while (left > 0) {
            size_t n = left < PIECE_BYTES ? left : PIECE_BYTES;
            void *dst = is_read ? here : at;
            const uint8_t *src = is_read ? at : here;
            const void *next = n < left || is_read ? src + n : piece_behind(xfer, i);

            if (is_too_late(local, xfer)) return KVP_DEADLINE;
            if (guard != NULL && kvp_word_load(guard) != xfer->guard_word) return KVP_STALE;
            if (has_sum)
                kvp_copy_sum(&local->sum, dst, src, n, next);
            else
                kvp_copy_part(dst, src, n, xfer->len);
            local->unclocked += n;
            here += n;
            at += n;
            left -= n;
        }
    }
    return KVP_OK;
}

kvp_err_t
kvp_local_run(kvp_local_t *local, kvp_xfer_t *xfer, void *at, const void *guard)
{
    bool has_sum = (xfer->flags & KVP_XFER_SUM) != 0;
    kvp_err_t err;

    if (xfer->kind == KVP_XFER_PUBLISH) {
        if (is_too_late(local, xfer)) return KVP_DEADLINE;
        return kvp_word_publish(at, xfer->word);
    }
    if (kvp_words_fit(at, xfer->len) && !has_sum) {
        if (is_too_late(local, xfer)) return KVP_DEADLINE;
        if (guard != NULL && kvp_word_load(guard) != xfer->guard_word) return KVP_STALE;
        move_words(xfer, at);
        return KVP_OK;
    }
    if (has_sum) kvp_copy_sum_begin(&local->sum, xfer->len);
    err = move_pieces(local, xfer, at, guard);
    kvp_copy_fence(); /* also after an early stop, because the caller expects that no store of the copy is under way */
    if (err == KVP_OK && has_sum) xfer->sum = kvp_copy_sum_end(&local->sum);
    return err;
}
