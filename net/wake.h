/* SPDX-License-Identifier: Apache-2.0
 * The events that one thread of the node waits for, and their wake. */
#ifndef KVP_NET_WAKE_H
#define KVP_NET_WAKE_H

#include "common/thread.h"

#include <stdatomic.h>
#include <unistd.h>

/* kvp_wake adds to an eventfd; any thread. */
static inline void
kvp_wake(int wake_fd)
{
    uint64_t one = 1;

    /* Fails only with the counter full, and then it is readable anyway. */
    if (write(wake_fd, &one, sizeof one) < 0) return;
}

/* A gather joins several answers that the control thread awaits without blocking: the thread gives
 * each answering thread a part, and the return of the last part wakes it. The owner holds a part of
 * its own, so the gather cannot end before all parts are given out. */
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

/* kvp_gather_done returns a part, from any thread. The gather may be freed before the call returns. */
static inline void
kvp_gather_done(kvp_gather_t *g)
{
    int wake_fd = g->wake_fd;

    if (atomic_fetch_sub(&g->left, 1) == 1) kvp_wake(wake_fd);
}

/* kvp_gather_end returns the owner's part; true = the owner's part was the last, and no wake
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
