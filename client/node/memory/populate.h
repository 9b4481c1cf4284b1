/* SPDX-License-Identifier: Apache-2.0
 * The thread that touches memory in the background: populates the segment, so that no put waits for pages, and gives old
 * segments back, which takes seconds for large ones. Populates in steps of a few milliseconds, and rests as long after each.
 */
#ifndef KVP_CLIENT_NODE_MEMORY_POPULATE_H
#define KVP_CLIENT_NODE_MEMORY_POPULATE_H

#include "client/node/memory/segment.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct {
    pthread_t thread;
    bool has_thread;
    bool is_lazy; /* nothing is populated ahead */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_stopping; /* guarded by lock */
    kvp_node_mem_t *mem; /* guarded by lock; borrowed */
    kvp_list_t old; /* guarded by lock; owned */
    _Atomic uint64_t populated_bytes; /* of mem */
} kvp_node_populate_t;

/* kvp_node_populate_start makes the thread: SYS. kvp_node_populate_stop ends it within a step or two and destroys what was
 * handed to it; legal on a zeroed value. */
kvp_err_t kvp_node_populate_start(kvp_node_populate_t *p, bool is_lazy) KVP_MUST_USE;
void kvp_node_populate_stop(kvp_node_populate_t *p);

/* kvp_node_populate_begin lends mem until kvp_node_populate_end, which takes it: the thread destroys it. Neither waits. */
void kvp_node_populate_begin(kvp_node_populate_t *p, kvp_node_mem_t *mem);
void kvp_node_populate_end(kvp_node_populate_t *p);

#endif
