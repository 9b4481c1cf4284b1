/* SPDX-License-Identifier: Apache-2.0
 * The counters of one client handle, for kvpool_stat. The atomic operations are relaxed, so a reader may see slightly
 * old values. Code updates the counters once for each call or batch, not once for each key. */
#ifndef KVP_TRANSPORT_COUNTERS_H
#define KVP_TRANSPORT_COUNTERS_H

#include "common/base.h"

#include <stdatomic.h>

#define KVP_TRANSPORTS_MAX 4u

typedef struct {
    /* the numbers of objects that one transport read and wrote, and their bytes */
    _Atomic uint64_t reads, read_bytes, writes, write_bytes;
    /* kvp_ep_costs_t, summed over the endpoints of this transport; 0 = not counted */
    _Atomic uint64_t requests, doorbells, completions, system_calls, copied_bytes;
} kvp_path_counters_t;

#define KVP_CLIENT_COUNTERS(X)                                                                                         \
    X(puts, "objects asked to be put")                                                                                 \
    X(put_errors, "of these, refused or failed")                                                                       \
    X(gets, "objects asked for")                                                                                       \
    X(get_misses, "of these, not found")                                                                               \
    X(get_errors, "of these, failed otherwise")                                                                        \
    X(known_location_gets, "of these, got from where they were known to be, with no message to the master")            \
    X(known_location_misses, "of these, not there any more, and asked for")                                            \
    X(exists, "keys probed")                                                                                           \
    X(retries, "keys asked again at the master")                                                                       \
    X(stale_reads, "reads whose extent had been given to another object")                                              \
    X(corrupt_reads, "reads whose sum was wrong")                                                                      \
    X(deadlines, "calls that ended at their deadline")                                                                 \
    X(slow_calls, "calls that took longer than $KVPOOL_SLOW_CALL")                                                     \
    X(master_calls, "messages to the master, heartbeats aside")                                                        \
    X(connects, "sessions begun with a master")                                                                        \
    X(attaches, "connections made to nodes")                                                                           \
    X(peer_failures, "nodes given up for a while")                                                                     \
    X(bypasses, "times that a node's transport with a port of its own failed, so that the next transport is used")     \
    X(device_direct, "objects moved to or from device memory by adapters, as they lie")                                \
    X(device_direct_bytes, "their bytes")                                                                              \
    X(device_staged, "objects moved to or from device memory through pinned memory of the host")                       \
    X(device_staged_bytes, "their bytes")

typedef struct {
#define KVP_COUNTER_FIELD(name, help) _Atomic uint64_t name;
    KVP_CLIENT_COUNTERS(KVP_COUNTER_FIELD)
#undef KVP_COUNTER_FIELD
    /* the counters of each transport, in the order of the handle's transports */
    kvp_path_counters_t paths[KVP_TRANSPORTS_MAX];
} kvp_counters_t;

static inline void
kvp_count(_Atomic uint64_t *counter, uint64_t n)
{
    if (n > 0) atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

#endif
