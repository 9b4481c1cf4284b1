/* SPDX-License-Identifier: Apache-2.0
 * Wakes a thread through an eventfd, and lets one wake-up follow the last of several answers (gather). */
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

    /* write(2) fails only if the eventfd's counter is full; then the eventfd is readable anyway */
    if (write(wake_fd, &one, sizeof one) < 0) return;
}

/* A gather counts answers for which the control thread waits without blocking. The control thread gives each answering
 * thread a part, and the return of the last part wakes it. The control thread keeps one part itself until all parts are
 * given out, so the gather cannot end earlier. */
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

/* kvp_gather_done returns one part, from any thread. The owner may free the gather before this call returns. */
static inline void
kvp_gather_done(kvp_gather_t *g)
{
    int wake_fd = g->wake_fd;

    if (atomic_fetch_sub(&g->left, 1) == 1) kvp_wake(wake_fd);
}

/* kvp_gather_end returns the control thread's own part. True: all other parts were returned before, and no wake-up
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
