/* SPDX-License-Identifier: Apache-2.0
 * What one thread of the node waits for from others, and how they wake it.
 */
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

/* A gather is several answers that the control thread waits for without blocking: one part each is given out, and
 * whoever gives the last one back wakes it. The owner holds a part of its own, so that none ends before all are out. */
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

/* kvp_gather_done gives a part back, from any thread. The gather may be gone when it returns. */
static inline void
kvp_gather_done(kvp_gather_t *g)
{
    int wake_fd = g->wake_fd;

    if (atomic_fetch_sub(&g->left, 1) == 1) kvp_wake(wake_fd);
}

/* kvp_gather_end gives the owner's part back; true = that was the last, and nobody will be woken. */
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
