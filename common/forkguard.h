/* SPDX-License-Identifier: Apache-2.0
 * Closes in a forked child the file descriptors that it must not keep: descriptors whose end tells peers that their
 * owner has died, listening ports, and descriptors that hold memory. Marks the child's copies of handles as unusable.
 * The child does not inherit mappings of shared memory (MADV_DONTFORK in the transports).
 *
 * The owner adds such a descriptor right after creating it, and removes it right before closing it, or closes it
 * with kvp_forkguard_close. A descriptor that is created while another thread forks may reach the child, but is
 * close-on-exec like all descriptors of this project. */
#ifndef KVP_COMMON_FORKGUARD_H
#define KVP_COMMON_FORKGUARD_H

#include <stdatomic.h>

#include "common/list.h"

typedef struct {
    kvp_list_t link; /* element of the process's list of handles; guarded by the list's lock in forkguard.c */
    _Atomic bool is_forked;
} kvp_forkguard_t;

/* kvp_forkguard_init adds a handle's guard to the process's list, and kvp_forkguard_fini removes it. Neither may
 * be called in a child for a guard of its parent. */
void kvp_forkguard_init(kvp_forkguard_t *guard);
void kvp_forkguard_fini(kvp_forkguard_t *guard);

/* kvp_forkguard_is_forked returns true in a forked child of the process that made the guard. */
static inline bool
kvp_forkguard_is_forked(const kvp_forkguard_t *guard)
{
    return atomic_load_explicit(&guard->is_forked, memory_order_relaxed);
}

/* kvp_forkguard_add tracks a file descriptor of this process, and kvp_forkguard_del ends this. -1 is ignored, and
 * adding twice is harmless. Any thread, without a lock. */
void kvp_forkguard_add(int fd);
void kvp_forkguard_del(int fd);
/* kvp_forkguard_close ends the tracking and closes the descriptor; -1 is ignored. */
void kvp_forkguard_close(int fd);

#endif
