/* SPDX-License-Identifier: Apache-2.0
 * The serving side of the node's transports: instances, their lane threads, and the segment's registration with each
 * transport. Created for one pool, and created again for another pool. Used by the control thread only, except for
 * the work of the lanes. */
#ifndef KVP_NODE_MEMORY_TPS_H
#define KVP_NODE_MEMORY_TPS_H

#include "node/memory/segment.h"
#include "node/memory/pin.h"
#include "net/wake.h"

#define KVP_NODE_LANES_MAX 8u
#define KVP_NODE_TPS_TEXT_MAX 64u /* the size of a text with the names of all transports */

typedef struct {
    pthread_t thread;
    kvp_tp_t *tp;
    uint32_t lane;
    const _Atomic bool *is_stopping;
} kvp_node_lane_t;

typedef struct {
    kvp_tp_t *tps[KVP_NODE_TPS_MAX];
    size_t tps_n;
    kvp_node_lane_t lanes[KVP_NODE_TPS_MAX * KVP_NODE_LANES_MAX];
    size_t lanes_n; /* the number of lanes whose thread runs */
    _Atomic bool is_stopping;
    kvp_node_mem_t *mem; /* the memory that is registered or being registered; borrowed */
    kvp_node_pin_t pin;
} kvp_node_tps_t;

/* kvp_node_tps_start creates an instance of each transport, registers mem (in the background if that is slow: mrs_err
 * of a chunk has the result), and starts the lanes of transports with a serving side. A transport with a port of its
 * own listens at the node's address. On an error everything is undone. mem is borrowed until kvp_node_tps_stop, which
 * ends all data connections, and so is served, which gets the counts of peers' requests; stop is legal on a zeroed or
 * stopped value. A transport with a port of its own that cannot serve here is left out with a log line, unless its bit
 * in `needed` is set. */
kvp_err_t kvp_node_tps_start(kvp_node_tps_t *t, const kvp_transport_ops_t *const *ops, size_t n, uint32_t needed,
                             uint32_t lanes, const kvp_hostport_t *at, kvp_node_mem_t *mem, kvp_served_t *served)
    KVP_MUST_USE;
void kvp_node_tps_stop(kvp_node_tps_t *t);

/* kvp_node_tps_is_free returns whether no transport with a port of its own finds the port of `at` in use. */
bool kvp_node_tps_is_free(const kvp_transport_ops_t *const *ops, size_t n, const kvp_hostport_t *at);

/* kvp_node_tps_names lists the names of the serving transports, separated by commas. */
void kvp_node_tps_names(const kvp_node_tps_t *t, char names[KVP_NODE_TPS_TEXT_MAX]);
/* kvp_node_tps_find returns the index of the serving transport with this name, or -1. */
int kvp_node_tps_find(const kvp_node_tps_t *t, const char *name);

/* kvp_node_tps_quiesce and kvp_node_tps_fence call every transport, and each transport reports its end to the gather.
 * A transport that shares memory with processes is not asked to fence: its stores end with the process, and the core
 * watches the process. */
void kvp_node_tps_quiesce(kvp_node_tps_t *t, kvp_gather_t *g);
void kvp_node_tps_fence(kvp_node_tps_t *t, kvp_idrange_t dead, uint64_t live_min, kvp_gather_t *g);
/* kvp_node_tps_cut ends the connections on which bytes sent by this writer could land after a quiesce. */
void kvp_node_tps_cut(kvp_node_tps_t *t, uint64_t incarnation);
/* kvp_node_tps_came lets the transports accept a client that attached. kvp_node_tps_left ends the connections of a
 * client without attachments, and frees its registrations. */
void kvp_node_tps_came(kvp_node_tps_t *t, uint64_t incarnation);
void kvp_node_tps_left(kvp_node_tps_t *t, uint64_t incarnation);

#endif
