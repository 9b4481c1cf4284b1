/* SPDX-License-Identifier: Apache-2.0
 * Pulls: pieces copied out of another process of this host by several threads at once, because one
 * thread uses only a part of the memory's bandwidth. The copy serves the other process's write into
 * our registered memory, or our own read. In registered memory a thread holds the ranges of one
 * slice at a time: unregistering waits for one slice of each thread, whatever the peer does.
 * docs/adr/0019-p2p.md. */
#ifndef KVP_P2P_BASE_PULL_H
#define KVP_P2P_BASE_PULL_H

#include "p2p/base/cma.h"
#include "p2p/base/ranges.h"
#include "common/list.h"

#define KVP_P2P_PULLERS_MAX 8u

typedef struct {
    uint32_t threads_max;
    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t work, over;
    kvp_list_t queue; /* pulls of which something is left to begin; these, and all below, are guarded by lock */
    uint32_t idle_n;
    uint32_t threads_n;
    bool is_stopping;
    pthread_t threads[KVP_P2P_PULLERS_MAX];
} kvp_p2p_pullers_t;

/* One request. Its owner sets the first part, and touches neither it nor its targets until the pull
 * is over. */
typedef struct {
    const kvp_cma_proc_t *proc;
    kvp_p2p_ranges_t
        *ranges; /* where the pieces' tokens are looked up; NULL: what is written to is the owner's to answer for */
    int wake_fd; /* an eventfd of the owner's; -1: it waits by kvp_p2p_pull_wait */
    const kvp_peer_piece_t *pieces;
    kvp_peer_moved_t *moved; /* n, zeroed: the errors of the pieces */
    uint64_t deadline_ns;
    uint32_t n;
    uint32_t at; /* the next piece to begin; this, and all below, guarded by the pullers' lock */
    uint64_t off; /* in it */
    uint32_t busy_n; /* threads in the middle of a slice */
    kvp_list_t link;
} kvp_p2p_pull_t;

typedef enum {
    KVP_P2P_PULL_MORE, /* slices are left to begin */
    KVP_P2P_PULL_BUSY, /* other threads copy the last slices; wake_fd is signalled at the end */
    KVP_P2P_PULL_OVER, /* no thread touches it any more */
} kvp_p2p_pull_state_t;

void kvp_p2p_pullers_init(kvp_p2p_pullers_t *pullers);
/* kvp_p2p_pullers_stop ends the threads, each after its slice, and nothing is begun from then on;
 * fini does it, too, once no pull is left. */
void kvp_p2p_pullers_stop(kvp_p2p_pullers_t *pullers);
void kvp_p2p_pullers_fini(kvp_p2p_pullers_t *pullers);

/* kvp_p2p_pull_begin lets threads take slices of the pull. Without threads the owner's work does
 * all of it. */
void kvp_p2p_pull_begin(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull);
/* kvp_p2p_pull_work copies one slice in the calling thread, if one is left. */
kvp_p2p_pull_state_t kvp_p2p_pull_work(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull);
/* kvp_p2p_pull_drop stops the pull before its next slice; legal on one not begun or over. True: it
 * is over. */
bool kvp_p2p_pull_drop(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull);
/* kvp_p2p_pull_wait waits, after work or drop left nothing to begin, until it is over: for as long
 * as the slices take. */
void kvp_p2p_pull_wait(kvp_p2p_pullers_t *pullers, kvp_p2p_pull_t *pull);

#endif
