/* SPDX-License-Identifier: Apache-2.0
 * Threads of the node and what one of them waits for from others.
 */
#ifndef KVP_CLIENT_NODE_THREAD_H
#define KVP_CLIENT_NODE_THREAD_H

#include "common/base.h"

#include <pthread.h>
#include <stdatomic.h>

/* kvp_thread_start runs fn(arg) in a new thread of that name (at most 15 bytes), with every signal blocked: signals are
 * the program's, also where the node is a library inside it. SYS, logged. */
kvp_err_t kvp_thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *), void *arg) KVP_MUST_USE;

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
void kvp_gather_done(kvp_gather_t *g);

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

/* kvp_wake adds to an eventfd; any thread. */
void kvp_wake(int wake_fd);

#endif
