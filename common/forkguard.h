/* SPDX-License-Identifier: Apache-2.0
 * Closes in a forked child the descriptors that it must not keep: descriptors whose end shows peers
 * that their owner died, listening ports, and descriptors that hold memory. Marks the child's
 * handles as unusable. The child does not inherit mappings of shared memory (MADV_DONTFORK in the
 * transports).
 *
 * The owner adds such a descriptor right after creating it, and removes it right before closing it,
 * or closes it with kvp_forkguard_close. A descriptor created while another thread forks may reach
 * the child; like all of ours it is close-on-exec. */
#ifndef KVP_COMMON_FORKGUARD_H
#define KVP_COMMON_FORKGUARD_H

#include <stdatomic.h>

#include "common/list.h"

typedef struct {
    kvp_list_t link; /* the process's handles; guarded by the list's lock in forkguard.c */
    _Atomic bool is_forked;
} kvp_forkguard_t;

/* kvp_forkguard_init enters a handle's guard in the process's list; fini takes it out. Not to be
 * called in a child for a guard of its parent. */
void kvp_forkguard_init(kvp_forkguard_t *guard);
void kvp_forkguard_fini(kvp_forkguard_t *guard);

/* kvp_forkguard_is_forked returns true in a child process of the guard's process. */
static inline bool
kvp_forkguard_is_forked(const kvp_forkguard_t *guard)
{
    return atomic_load_explicit(&guard->is_forked, memory_order_relaxed);
}

/* kvp_forkguard_add notes a descriptor of this process (-1 is ignored; twice is once). Any thread, without a lock. */
void kvp_forkguard_add(int fd);
void kvp_forkguard_del(int fd);
/* del and close; -1 is ignored. */
void kvp_forkguard_close(int fd);

#endif
