/* SPDX-License-Identifier: Apache-2.0
 * The threads that register a segment's memory with transports whose registration is slow
 * (KVP_TP_SLOW_REG), chunk by chunk, so that the segment is mounted and served by the others at
 * once. A chunk is served as soon as it is registered. Chunks that clients have asked for come
 * first, because data is waiting for them. Then come the keys with which a client may write to a
 * chunk (mr_grant), and then the remaining chunks. */
#ifndef KVP_NODE_MEMORY_PIN_H
#define KVP_NODE_MEMORY_PIN_H

#include "node/memory/segment.h"

#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_NODE_PIN_THREADS_MAX 8u
#define KVP_NODE_GRANTS_MAX 256u /* keys of writers that wait, are made, or could not be and were not asked for since */
#define KVP_NODE_GRANTS_EACH 32u /* pending grants of one client */

/* Payload bytes: how many chunks' there are to register, how many are, and how many could not be. */
typedef struct {
    uint64_t total;
    uint64_t registered;
    uint64_t refused;
} kvp_node_pinned_t;

/* One client's keys to write a chunk with. */
typedef struct {
    uint64_t incarnation;
    uint32_t chunk;
    uint32_t tp; /* its index */
    enum {
        KVP_GRANT_WAITS,
        KVP_GRANT_IS_TAKEN,
        KVP_GRANT_FAILED,
    } state;
    kvp_err_t err; /* FAILED: why */
    bool has_left; /* whose they are, while they were made */
} kvp_node_grant_t;

typedef struct {
    kvp_node_mem_t *mem; /* borrowed; NULL = not started, or nothing to do */
    kvp_tp_t *tps[KVP_NODE_TPS_MAX]; /* by index of the serving transport; NULL = registered at creation */
    pthread_t threads[KVP_NODE_PIN_THREADS_MAX];
    uint32_t threads_n;
    uint64_t began_ns;
    kvp_log_limit_t noise;

    pthread_mutex_t lock;
    pthread_cond_t work; /* work is available, or is_stopping */
    bool is_stopping; /* guarded by lock, like the rest */
    uint8_t *states; /* of each chunk */
    uint32_t next; /* no chunk below it waits */
    uint32_t *wanted; /* requested chunks, in the order of the requests */
    uint32_t wanted_from, wanted_to;
    uint32_t left_n; /* unfinished chunks */
    kvp_node_grant_t grants[KVP_NODE_GRANTS_MAX]; /* the oldest first */
    uint32_t grants_n;
    kvp_node_pinned_t bytes;
} kvp_node_pin_t;

/* kvp_node_pin_threads returns the useful number of threads for this many chunks and CPUs. */
uint32_t kvp_node_pin_threads(long cpus, uint32_t chunk_n);

/* kvp_node_pin_check tests whether the memory can be registered at all, without registering all of
 * it: INVALID (chunks are larger than the transport's limit), or the error of registering a small
 * part; logged. Quick for any size. */
kvp_err_t kvp_node_pin_check(kvp_tp_t *tp, const kvp_node_mem_t *mem) KVP_MUST_USE;

/* kvp_node_pin_start registers mem's chunks with the slow transports among the n, in threads of its
 * own, and does not wait: a chunk's mrs_err has the result. All arguments are borrowed until stop.
 * NOMEM, SYS, logged. kvp_node_pin_stop returns once no registration is under way, which takes at
 * most one chunk's time; registered chunks stay registered. Legal on a zeroed and on a stopped
 * value. */
kvp_err_t kvp_node_pin_start(kvp_node_pin_t *p, kvp_node_mem_t *mem, kvp_tp_t *const *tps, size_t n) KVP_MUST_USE;
void kvp_node_pin_stop(kvp_node_pin_t *p);

/* kvp_node_pin_want moves a chunk before the unrequested ones. Call from the thread of start and
 * stop. */
void kvp_node_pin_want(kvp_node_pin_t *p, uint32_t chunk);

/* kvp_node_pin_grant requests keys with which the client may write to a registered chunk, after
 * mr_export has returned EAGAIN. EAGAIN: the keys are being made, or the maximum of pending grants
 * is reached and the client asks again; else the error of making them, returned once. An unused key
 * does no harm: a fence makes it void at any time. The same thread. */
kvp_err_t kvp_node_pin_grant(kvp_node_pin_t *p, uint32_t tp, uint32_t chunk, uint64_t incarnation) KVP_MUST_USE;

/* kvp_node_pin_left forgets the pending grants of a client that has left, before the transports
 * learn of it. A grant in the making is dropped afterwards, unless the client has returned:
 * kvp_node_pin_came. The same thread. */
void kvp_node_pin_left(kvp_node_pin_t *p, uint64_t incarnation);
void kvp_node_pin_came(kvp_node_pin_t *p, uint64_t incarnation);

/* kvp_node_pin_bytes: zeros where there is nothing to do. The same thread. */
void kvp_node_pin_bytes(kvp_node_pin_t *p, kvp_node_pinned_t *bytes_out);

#endif
