/* SPDX-License-Identifier: Apache-2.0
 * Wakes a thread through an eventfd, and joins several answers to one wake-up (gather). */
#ifndef KVP_NET_WAKE_H
#define KVP_NET_WAKE_H

#include "common/thread.h"

#include <stdatomic.h>
#include <unistd.h>

/* kvp_wake wakes the thread that polls the eventfd. Any thread may call. */
static inline void
kvp_wake(int wake_fd)
{
    uint64_t one = 1;

    /* write fails only if the counter is full, and then the eventfd is readable anyway */
    if (write(wake_fd, &one, sizeof one) < 0) return;
}

/* A gather joins several answers for which the control thread waits without blocking: the thread gives each answering
 * thread a part, and the return of the last part wakes it. The owner keeps one part itself, so the gather cannot end
 * before all parts are given out. */
typedef struct {
    int wake_fd; /* eventfd of the control thread; borrowed */
    _Atomic uint32_t left;
} kvp_gather_t;

static inline void
kvp_gather_begin(kvp_gather_t *g, int wake_fd)
{
    g->wake_fd = wake_fd;
    atomic_store(&g->left, 1);
}

static inline void
kvp_gather_add(kvp_gather_t *g)
{
    atomic_fetch_add(&g->left, 1);
}

/* kvp_gather_done returns a part, from any thread. The gather may be freed by its owner before the call returns. */
static inline void
kvp_gather_done(kvp_gather_t *g)
{
    int wake_fd = g->wake_fd;

    if (atomic_fetch_sub(&g->left, 1) == 1) kvp_wake(wake_fd);
}

/* kvp_gather_end returns the owner's part. Returns true if the owner's part was the last part; then no wake-up
 * follows. */
static inline bool
kvp_gather_end(kvp_gather_t *g)
{
    return atomic_fetch_sub(&g->left, 1) == 1;
}

static inline bool
kvp_gather_is_over(kvp_gather_t *g)
{
    return atomic_load(&g->left) == 0;
}

#endif
