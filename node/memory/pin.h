/* SPDX-License-Identifier: Apache-2.0
 * The threads that register a segment's memory, chunk by chunk, with transports whose registration is slow
 * (KVP_TP_SLOW_REG). Meanwhile the other transports already serve the segment. Such a transport serves a chunk as
 * soon as the chunk is registered. Chunks that clients have asked for come first, because data waits for them. Then
 * come the keys with which a client may write to a chunk (mr_grant), and then the remaining chunks. */
#ifndef KVP_NODE_MEMORY_PIN_H
#define KVP_NODE_MEMORY_PIN_H

#include "node/memory/segment.h"

#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>

#define KVP_NODE_PIN_THREADS_MAX 8u
/* the most pending grants of all clients: waiting, being made, or failed and not yet asked for again */
#define KVP_NODE_GRANTS_MAX 256u
#define KVP_NODE_GRANTS_EACH 32u /* the most pending grants of one client */

/* The payload bytes of all chunks to register, of registered chunks, and of chunks that cannot be registered. */
typedef struct {
    uint64_t total;
    uint64_t registered;
    uint64_t refused;
} kvp_node_pinned_t;

/* The pending registration of one client's keys for writing to a chunk. */
typedef struct {
    uint64_t incarnation;
    uint32_t chunk;
    uint32_t tp; /* the index in kvp_node_pin_t.tps of the transport that makes the keys of this client */
    enum {
        KVP_GRANT_WAITS,
        KVP_GRANT_IS_TAKEN,
        KVP_GRANT_FAILED,
    } state;
    kvp_err_t err; /* the error of making the keys, in the state FAILED */
    bool has_left; /* the client left while the keys were being made */
} kvp_node_grant_t;

typedef struct {
    kvp_node_mem_t *mem; /* borrowed; NULL = not started, or there is nothing to register */
    /* the slow transports by index; NULL = the transport's memory is registered at its creation */
    kvp_tp_t *tps[KVP_NODE_TPS_MAX];
    pthread_t threads[KVP_NODE_PIN_THREADS_MAX];
    uint32_t threads_n;
    uint64_t began_ns;
    kvp_log_limit_t noise;

    pthread_mutex_t lock;
    pthread_cond_t work; /* signalled when there is work, or is_stopping is set */
    bool is_stopping; /* guarded by lock, as are all fields from here on */
    uint8_t *states; /* the registration state of each chunk */
    uint32_t next; /* all chunks below this number have left the state WAITS */
    uint32_t *wanted; /* the chunks that clients asked for, in the order of the requests */
    uint32_t wanted_from, wanted_to;
    uint32_t left_n; /* the number of chunks whose registration is not finished */
    kvp_node_grant_t grants[KVP_NODE_GRANTS_MAX]; /* the pending grants, oldest first */
    uint32_t grants_n;
    kvp_node_pinned_t bytes;
} kvp_node_pin_t;

/* kvp_node_pin_threads returns the number of threads to use for this many chunks and CPUs. */
uint32_t kvp_node_pin_threads(long cpus, uint32_t chunk_n);

/* kvp_node_pin_check tests quickly whether the memory can be registered at all. INVALID: chunks are larger than the
 * transport's limit. Otherwise the error of registering a small part; logged. */
kvp_err_t kvp_node_pin_check(kvp_tp_t *tp, const kvp_node_mem_t *mem) KVP_MUST_USE;

/* kvp_node_pin_start registers mem's chunks with the slow transports among the n, in threads of its own, and does not
 * wait: mrs_err of a chunk has the result. mem and the transports are borrowed until kvp_node_pin_stop. NOMEM, or SYS,
 * which is logged. kvp_node_pin_stop returns once no registration is under way, after the time of one chunk at most;
 * registered chunks stay registered. Legal on a zeroed and on a stopped value. */
kvp_err_t kvp_node_pin_start(kvp_node_pin_t *p, kvp_node_mem_t *mem, kvp_tp_t *const *tps, size_t n) KVP_MUST_USE;
void kvp_node_pin_stop(kvp_node_pin_t *p);

/* kvp_node_pin_want moves a chunk before all chunks that no client asked for. Called by the thread that calls start
 * and stop. */
void kvp_node_pin_want(kvp_node_pin_t *p, uint32_t chunk);

/* kvp_node_pin_grant requests keys with which the client may write to a registered chunk, after mr_export has
 * returned EAGAIN. EAGAIN: the keys are being made, or there are too many pending grants; the client asks again
 * later. Otherwise the error of making the keys, returned once. An unused key does no harm, because a fence voids it
 * at any time. Called by the thread that calls start and stop. */
kvp_err_t kvp_node_pin_grant(kvp_node_pin_t *p, uint32_t tp, uint32_t chunk, uint64_t incarnation) KVP_MUST_USE;

/* kvp_node_pin_left drops the pending grants of a client that has left, before the transports learn that it left. A
 * grant that is being made is dropped afterwards, unless the client has returned (kvp_node_pin_came). Called by the
 * thread that calls start and stop. */
void kvp_node_pin_left(kvp_node_pin_t *p, uint64_t incarnation);
void kvp_node_pin_came(kvp_node_pin_t *p, uint64_t incarnation);

/* kvp_node_pin_bytes returns the registered bytes; zeros if there is nothing to register. Called by the thread that
 * calls start and stop. */
void kvp_node_pin_bytes(kvp_node_pin_t *p, kvp_node_pinned_t *bytes_out);

#endif
