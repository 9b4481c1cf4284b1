/* SPDX-License-Identifier: Apache-2.0
 * What a forked child must not keep: descriptors by which others notice that their owner is dead, whose port another wants, or that hold
 * its memory are closed in it, and handles are marked. Mappings of shared memory are not inherited in the first place (MADV_DONTFORK
 * in the transports).
 *
 * Who makes such a descriptor adds it right after, and takes it out right before it closes it, or with kvp_forkguard_close. One that is
 * made while another thread forks may reach the child; it is close-on-exec like all of ours.
 */
#ifndef KVP_COMMON_FORKGUARD_H
#define KVP_COMMON_FORKGUARD_H

#include <stdatomic.h>

#include "common/list.h"

typedef struct {
    kvp_list_t link; /* the process's handles; guarded by the list's lock in forkguard.c */
    _Atomic bool is_forked;
} kvp_forkguard_t;

/* kvp_forkguard_init enters a handle's guard in the process's list; fini takes it out. Not to be called in a child for a guard
 * of its parent. */
void kvp_forkguard_init(kvp_forkguard_t *guard);
void kvp_forkguard_fini(kvp_forkguard_t *guard);

/* kvp_forkguard_is_forked says whether this process is a child of the one that made the guard. */
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
