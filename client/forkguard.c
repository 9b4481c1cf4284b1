/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The child's handler runs while locks may be held for ever by threads that do not exist there, so it
 * reads only what is written with single stores. The list itself is locked over the fork by the parent's handlers.
 */
#include "client/forkguard.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK_FDS 62u

struct kvp_fdblock {
    kvp_fdblock_t *next; /* set before the block is published, never changed */
    _Atomic int fds[BLOCK_FDS]; /* -1 = free */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static kvp_list_t list = {&list, &list}; /* guarded by list_lock */

static void
before_fork(void)
{
    pthread_mutex_lock(&list_lock);
}

static void
after_fork_in_parent(void)
{
    pthread_mutex_unlock(&list_lock);
}

static void
after_fork_in_child(void)
{
    kvp_list_foreach_safe (pos, tmp, &list) {
        kvp_forkguard_t *guard = kvp_list_entry(pos, kvp_forkguard_t, link);

        atomic_store_explicit(&guard->is_forked, true, memory_order_relaxed);
        for (kvp_fdblock_t *b = guard->blocks; b != NULL; b = b->next)
            for (size_t i = 0; i < BLOCK_FDS; i++)
                if (b->fds[i] >= 0) close(b->fds[i]);
        kvp_list_del(pos);
    }
    pthread_mutex_unlock(&list_lock);
}

static void
install(void)
{
    /* It fails only for want of memory at the first open; fork then behaves as for any library. */
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void
kvp_forkguard_init(kvp_forkguard_t *guard)
{
    pthread_once(&once, install);
    pthread_mutex_init(&guard->lock, NULL);
    guard->blocks = NULL;
    guard->is_forked = false;
    pthread_mutex_lock(&list_lock);
    kvp_list_add_tail(&list, &guard->link);
    pthread_mutex_unlock(&list_lock);
}

void
kvp_forkguard_fini(kvp_forkguard_t *guard)
{
    kvp_fdblock_t *b = guard->blocks;

    pthread_mutex_lock(&list_lock);
    kvp_list_del(&guard->link);
    pthread_mutex_unlock(&list_lock);
    while (b != NULL) {
        kvp_fdblock_t *next = b->next;

        free(b);
        b = next;
    }
    pthread_mutex_destroy(&guard->lock);
}

/* Where value stands, or NULL. Caller holds guard->lock. */
static _Atomic int *
find(kvp_forkguard_t *guard, int value)
{
    for (kvp_fdblock_t *b = guard->blocks; b != NULL; b = b->next)
        for (size_t i = 0; i < BLOCK_FDS; i++)
            if (b->fds[i] == value) return &b->fds[i];
    return NULL;
}

static _Atomic int *
grow(kvp_forkguard_t *guard)
{
    kvp_fdblock_t *b = malloc(sizeof *b);

    if (b == NULL) return NULL;
    b->next = guard->blocks;
    for (size_t i = 0; i < BLOCK_FDS; i++)
        atomic_init(&b->fds[i], -1);
    guard->blocks = b;
    return &b->fds[0];
}

void
kvp_forkguard_add(kvp_forkguard_t *guard, int fd)
{
    _Atomic int *slot;

    if (fd < 0) return;
    pthread_mutex_lock(&guard->lock);
    slot = find(guard, -1);
    if (slot == NULL) slot = grow(guard);
    if (slot != NULL) *slot = fd;
    pthread_mutex_unlock(&guard->lock);
}

void
kvp_forkguard_del(kvp_forkguard_t *guard, int fd)
{
    _Atomic int *slot;

    if (fd < 0) return;
    pthread_mutex_lock(&guard->lock);
    slot = find(guard, fd);
    if (slot != NULL) *slot = -1;
    pthread_mutex_unlock(&guard->lock);
}
