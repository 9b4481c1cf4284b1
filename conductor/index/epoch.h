/* SPDX-License-Identifier: Apache-2.0
 * Epoch-based reclamation of memory. One thread writes, and others read without a lock. An object that the writer
 * has unlinked is freed when every reader that could have seen it has left. Source: K. Fraser, "Practical
 * lock-freedom", 2004, chapter 5.2.3 (epochs), for one writer. */
#ifndef KVP_CONDUCTOR_INDEX_EPOCH_H
#define KVP_CONDUCTOR_INDEX_EPOCH_H

#include "common/buf.h"

#include <stdatomic.h>

#define KVP_EPOCH_READERS_MAX 64u

/* Frees one retired object; the writer calls this function. */
typedef void (*kvp_epoch_fn)(void *arg, uintptr_t what);

typedef struct {
    _Alignas(64) _Atomic uint64_t at; /* epoch in which the reader entered; 0 = no reader is inside */
    atomic_flag is_taken;
} kvp_epoch_reader_t;

typedef struct {
    _Atomic uint64_t now;
    kvp_epoch_reader_t readers[KVP_EPOCH_READERS_MAX];
    kvp_buf_t waiting; /* queue of retired objects; only the writer uses it */
    size_t done; /* number of bytes of `waiting` whose objects have been freed */
} kvp_epoch_t;

void kvp_epoch_init(kvp_epoch_t *e);
void kvp_epoch_fini(kvp_epoch_t *e); /* frees all retired objects at the end; no reader may be inside an epoch */

/* kvp_epoch_enter begins a read section: objects that the reader finds stay valid until kvp_epoch_leave. It takes
 * a free reader place, and spins while there is none, because readers stay only for microseconds. Read sections
 * must not be nested. */
kvp_epoch_reader_t *kvp_epoch_enter(kvp_epoch_t *e);
void kvp_epoch_leave(kvp_epoch_reader_t *reader);

/* kvp_epoch_retire is called by the writer after it has unlinked an object. A later kvp_epoch_collect calls
 * fn(arg, what) when no reader can see the object any more. */
void kvp_epoch_retire(kvp_epoch_t *e, kvp_epoch_fn fn, void *arg, uintptr_t what);
void kvp_epoch_collect(kvp_epoch_t *e);

#endif
