/* SPDX-License-Identifier: Apache-2.0
 * See epoch.h.
 *
 * Design notes.
 * - A reader stores the epoch that it saw, and then loads its data; both are sequentially
 *   consistent with the writer, which first unlinks an object and then checks the readers. So a
 *   reader whose mark the writer does not see finds the object unlinked. */
#include "conductor/index/epoch.h"

#include "common/log.h"

typedef struct {
    uint64_t epoch; /* epoch in which the object was unlinked */
    kvp_epoch_fn fn;
    void *arg;
    uintptr_t what;
} retired_t;

void
kvp_epoch_init(kvp_epoch_t *e)
{
    atomic_store(&e->now, 1);
    for (size_t i = 0; i < KVP_EPOCH_READERS_MAX; i++) {
        atomic_store(&e->readers[i].at, 0);
        atomic_flag_clear(&e->readers[i].is_taken);
    }
    kvp_buf_init(&e->waiting, 0);
    e->done = 0;
}

kvp_epoch_reader_t *
kvp_epoch_enter(kvp_epoch_t *e)
{
    kvp_epoch_reader_t *r;

    for (size_t i = 0;; i++) {
        r = &e->readers[i % KVP_EPOCH_READERS_MAX];
        if (!atomic_flag_test_and_set_explicit(&r->is_taken, memory_order_acquire)) break;
    }
    atomic_store(&r->at, atomic_load(&e->now));
    atomic_thread_fence(memory_order_seq_cst);
    return r;
}

void
kvp_epoch_leave(kvp_epoch_reader_t *r)
{
    atomic_store_explicit(&r->at, 0, memory_order_release);
    atomic_flag_clear_explicit(&r->is_taken, memory_order_release);
}

void
kvp_epoch_retire(kvp_epoch_t *e, kvp_epoch_fn fn, void *arg, uintptr_t what)
{
    const retired_t r = {atomic_load_explicit(&e->now, memory_order_relaxed), fn, arg, what};

    kvp_buf_append(&e->waiting, &r, sizeof r);
    if (e->waiting.err != KVP_OK) kvp_panic("out of memory: what readers may see");
}

static void
free_below(kvp_epoch_t *e, uint64_t epoch)
{
    while (e->done < e->waiting.len) {
        const retired_t *r = (const retired_t *)(e->waiting.data + e->done);

        if (r->epoch >= epoch) break;
        e->done += sizeof *r;
        r->fn(r->arg, r->what);
    }
    if (e->done == e->waiting.len) {
        kvp_buf_reset(&e->waiting);
        e->done = 0;
    } else if (e->done > e->waiting.len / 2) {
        kvp_buf_consume(&e->waiting, e->done);
        e->done = 0;
    }
}

void
kvp_epoch_collect(kvp_epoch_t *e)
{
    uint64_t oldest = atomic_fetch_add(&e->now, 1) + 1;

    atomic_thread_fence(memory_order_seq_cst);
    for (size_t i = 0; i < KVP_EPOCH_READERS_MAX; i++) {
        const uint64_t at = atomic_load(&e->readers[i].at);

        if (at != 0 && at < oldest) oldest = at;
    }
    free_below(e, oldest);
}

void
kvp_epoch_fini(kvp_epoch_t *e)
{
    free_below(e, UINT64_MAX);
    kvp_buf_fini(&e->waiting);
}
