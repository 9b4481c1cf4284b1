/* SPDX-License-Identifier: Apache-2.0
 * Memory that readers may still see. One thread writes, others read without a lock: the writer's
 * unlinked objects are freed when every reader that could have seen them has left. Source: K.
 * Fraser, "Practical lock-freedom", 2004, chapter 5.2.3 (epochs), for one writer. */
#ifndef KVP_CONDUCTOR_INDEX_EPOCH_H
#define KVP_CONDUCTOR_INDEX_EPOCH_H

#include "common/buf.h"

#include <stdatomic.h>

#define KVP_EPOCH_READERS_MAX 64u

/* Frees one object; called by the writer. */
typedef void (*kvp_epoch_fn)(void *arg, uintptr_t what);

typedef struct {
    _Alignas(64) _Atomic uint64_t at; /* the epoch of its entry; 0 = not reading */
    atomic_flag is_taken;
} kvp_epoch_reader_t;

typedef struct {
    _Atomic uint64_t now;
    kvp_epoch_reader_t readers[KVP_EPOCH_READERS_MAX];
    kvp_buf_t waiting; /* the writer's */
    size_t done; /* freed bytes of it */
} kvp_epoch_t;

void kvp_epoch_init(kvp_epoch_t *e);
void kvp_epoch_fini(kvp_epoch_t *e); /* frees all waiting objects; without readers */

/* kvp_epoch_enter: what is found from now on stays until kvp_epoch_leave. Takes a free place, and
 * spins while there is none: readers stay for microseconds. Not to be nested. */
kvp_epoch_reader_t *kvp_epoch_enter(kvp_epoch_t *e);
void kvp_epoch_leave(kvp_epoch_reader_t *reader);

/* kvp_epoch_retire, by the writer: a later kvp_epoch_collect calls fn(arg, what), when no reader
 * can see the object any more. */
void kvp_epoch_retire(kvp_epoch_t *e, kvp_epoch_fn fn, void *arg, uintptr_t what);
void kvp_epoch_collect(kvp_epoch_t *e);

#endif
