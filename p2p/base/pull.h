/* SPDX-License-Identifier: Apache-2.0
 * Pulls: several threads at once copy pieces from another process of this host, because one thread uses only a part
 * of the memory bandwidth. A pull carries out the other process's write into our registered memory, or our own read.
 * In registered memory each thread holds the ranges of one slice at a time, so unregistering waits for one slice of
 * each thread, whatever the peer does. docs/adr/0019-p2p.md. */
#ifndef KVP_P2P_BASE_PULL_H
#define KVP_P2P_BASE_PULL_H

#include "p2p/base/cma.h"
#include "p2p/base/ranges.h"
#include "common/list.h"

#define KVP_P2P_PULLERS_MAX 8u

typedef struct {
    uint32_t threads_max;
    pthread_mutex_t lock; /* leaf lock: its holder takes no other lock */
    pthread_cond_t work, over;
    kvp_list_t queue; /* pulls with slices that no thread has begun; lock guards the entries, and all fields below */
    uint32_t idle_n;
    uint32_t threads_n;
    bool is_stopping;
    pthread_t threads[KVP_P2P_PULLERS_MAX];
} kvp_p2p_pullers_t;

/* A pull: the copies of one request from a process's memory. Its owner (the thread that begins it) sets the fields up
 * to n, and touches neither the pull nor its target memory until the pull is over. */
typedef struct {
    const kvp_cma_proc_t *proc;
    /* the registered ranges to which the pieces' tokens belong; NULL = the owner keeps the target memory valid */
    kvp_p2p_ranges_t *ranges;
    int wake_fd; /* eventfd of the owner, signalled when the pull ends; -1 = the owner uses kvp_p2p_pull_wait */
    const kvp_peer_piece_t *pieces;
    kvp_peer_moved_t *moved; /* array of n zeroed records, which get the errors of the pieces */
    uint64_t deadline_ns;
    uint32_t n;
    uint32_t at; /* index of the next piece to begin; the pullers' lock guards this field and all fields below */
    uint64_t off; /* offset in the next piece */
    uint32_t busy_n; /* threads that are copying a slice */
    kvp_list_t link;
} kvp_p2p_pull_t;

typedef enum {
    KVP_P2P_PULL_MORE, /* some slices have not begun */
    KVP_P2P_PULL_BUSY, /* other threads copy the last slices; the last thread signals wake_fd */
    KVP_P2P_PULL_OVER, /* no thread touches the pull any more */
} kvp_p2p_pull_state_t;

void kvp_p2p_pullers_init(kvp_p2p_pullers_t *pullers);
/* kvp_p2p_pullers_stop ends the threads, each after its current slice; no thread begins a slice from then on.
 * kvp_p2p_pullers_fini also frees the pullers' resources; no pull may exist then. */
void kvp_p2p_pullers_stop(kvp_p2p_pullers_t *pullers);
void kvp_p2p_pullers_fini(kvp_p2p_pullers_t *pullers);

/* kvp_p2p_pull_begin lets the threads take slices of the pull. Without threads, kvp_p2p_pull_work of the owner copies
 * everything. */
void kvp_p2p_pull_begin(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull);
/* kvp_p2p_pull_work copies one slice in the calling thread, if one is left, and returns the state of the pull. */
kvp_p2p_pull_state_t kvp_p2p_pull_work(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull);
/* kvp_p2p_pull_drop stops the pull before its next slice. It may be called for a pull that has not begun or is over.
 * Returns true if the pull is over. */
bool kvp_p2p_pull_drop(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull);
/* kvp_p2p_pull_wait waits until the pull is over, which takes as long as the running slices. The caller has called
 * kvp_p2p_pull_work or kvp_p2p_pull_drop until no slice was left to begin. */
void kvp_p2p_pull_wait(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull);

#endif
