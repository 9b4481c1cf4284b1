/* SPDX-License-Identifier: Apache-2.0
 * What a forked child must not keep: a handle's descriptors are closed in it, and the handle is marked. Mappings of
 * shared memory are not inherited in the first place (MADV_DONTFORK in the transports).
 *
 * A guard lists descriptors that its owner also closes itself: add right after making one, del right before closing it.
 * A descriptor that is made while another thread forks may reach the child; it is close-on-exec like all of ours.
 */
#ifndef KVP_CLIENT_FORKGUARD_H
#define KVP_CLIENT_FORKGUARD_H

#include "common/list.h"

#include <pthread.h>

typedef struct kvp_fdblock kvp_fdblock_t;

typedef struct {
    kvp_list_t link; /* the process's handles; guarded by the list's lock in forkguard.c */
    _Atomic bool is_forked;
    pthread_mutex_t lock; /* against other adds; a leaf, no lock is taken under it */
    kvp_fdblock_t *_Atomic blocks; /* grows only; read without the lock after a fork */
} kvp_forkguard_t;

/* kvp_forkguard_init enters the guard in the process's list; fini takes it out. Not to be called in a child for a guard
 * of its parent. */
void kvp_forkguard_init(kvp_forkguard_t *guard);
void kvp_forkguard_fini(kvp_forkguard_t *guard);

/* kvp_forkguard_is_forked says whether this process is a child of the one that made the guard. */
static inline bool
kvp_forkguard_is_forked(const kvp_forkguard_t *guard)
{
    return __atomic_load_n(&guard->is_forked, __ATOMIC_RELAXED);
}

/* kvp_forkguard_add notes fd (-1 is ignored); out of memory it is left out, and a child would keep it. */
void kvp_forkguard_add(kvp_forkguard_t *guard, int fd);
void kvp_forkguard_del(kvp_forkguard_t *guard, int fd);

#endif
