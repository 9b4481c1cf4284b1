/* SPDX-License-Identifier: Apache-2.0
 * A node: owns one segment of this host's memory, serves it over shared memory and TCP, obeys the
 * master. The same code runs in kvpool-node and, embedded, in any process that opened a pool with
 * memory. Runs in threads of its own (one control thread, and one a data lane), never in the
 * caller's. */
#ifndef KVP_NODE_NODE_H
#define KVP_NODE_NODE_H

#include "node/tier/tier.h"
#include "common/base.h"

typedef struct kvp_node kvp_node_t;

/* Whether a keeper, a process of its own, holds the memory over the end of this one, for the next node of that name. */
typedef enum {
    KVP_KEEP_NONE,
    KVP_KEEP_OVER_STOPS, /* on any end of the process */
    KVP_KEEP_UNTIL_STOP, /* except on a stop */
} kvp_keep_mode_t;

typedef struct {
    const char *masters, *cluster; /* kvp_masters_create */
    const char *name; /* 1 to 128 bytes, unique in the pool; NULL = host name, "-", port */
    const char *host_id; /* NULL = the machine's */
    const char *listen; /* "HOST:PORT"; NULL = a free port of 127.0.0.1 */
    const char *transports; /* NULL = shm, rdma where this machine can, tcp */
    /* "rdma,...": the node serves by these transports, or does not start; NULL = transports, if
     * given */
    const char *needed;
    const char *rdma_device; /* "NAME[:PORT],..."; NULL = the process's present choice, also for the next one */
    const char *rdma_gid_index;
    uint64_t memory_bytes; /* payload; rounded down to 4 KiB, at least 64 KiB */
    const char *const *ssd; /* "DIR:SIZE", a device of the SSD tier each; borrowed for the call */
    size_t ssd_n; /* 0 = no tier */
    uint64_t ssd_writes; /* bytes a day; 0 = any */
    uint64_t chunk_bytes; /* 0 = by memory_bytes (kvp_node_chunk_default); the last chunk is what is left */
    uint32_t lanes; /* data threads; 0 = one for each 8 CPUs, at least 1, at most 8 */
    uint32_t max_attachments; /* clients attached at once; 0 = 4096 */
    kvp_keep_mode_t keep;
    uint64_t keep_ns; /* how long a keeper holds the memory with no node */
    bool is_alone; /* nothing else runs in the process */
    bool is_lazy; /* memory is populated by first touch, not in the background in advance */
} kvp_node_conf_t;

typedef struct {
    char addr[320]; /* the bound HOST:PORT */
    char unix_path[108];
    bool is_mounted;
    uint32_t term;
    uint64_t size_bytes;
    uint64_t populated_bytes;
    uint64_t to_register_bytes; /* with RDMA devices, in the background; 0 = none serve here */
    uint64_t registered_bytes; /* of these */
    uint64_t unregistered_bytes; /* bytes of these that cannot be registered: other transports serve them */
    uint64_t attached_clients;
    uint64_t requests; /* of clients; bytes that move by themselves ask nothing */
    uint64_t retires, freed, fences, quarantined, attaches_refused, protocol_errors, remounts;
    uint64_t is_kept, keeper_pid; /* the keeper has all; 0 = no */
    uint64_t adopted_objects; /* objects in the memory that the node adopted at its start */
    bool has_tier, is_tier_mounted;
    bool is_tier_over; /* after kvp_node_unmount_tier */
    kvp_tier_stats_t tier;
} kvp_node_info_t;

/* kvp_node_open starts a node's threads and listens, and does not wait for a master: INVALID, SYS
 * (address in use, ...), NOMEM, all logged. kvp_node_wait waits until the segment is mounted: OK,
 * or at deadline_ns (CLOCK_MONOTONIC) the cause of the delay (UNREACHABLE, SEGMENT_EXISTS, ...,
 * DEADLINE), or at once an error that waiting cannot cure: VERSION, INVALID, SYS, NOMEM. The node
 * itself reconnects after later losses of the master. */
kvp_err_t kvp_node_open(const kvp_node_conf_t *conf, kvp_node_t **node_out) KVP_MUST_USE;
kvp_err_t kvp_node_wait(kvp_node_t *node, uint64_t deadline_ns) KVP_MUST_USE;
bool kvp_node_is_final(kvp_err_t err);

/* kvp_node_wait_tier waits for the mount of the SSD tier as well, if there is one: false = not
 * mounted at deadline_ns, and mounted later. kvp_node_unmount_tier removes the tier from the pool
 * until the node's end: true = the master knows, or there is no tier. The next node of this name
 * with these devices finds the tier's objects again. */
bool kvp_node_wait_tier(kvp_node_t *node, uint64_t deadline_ns);
bool kvp_node_unmount_tier(kvp_node_t *node, uint64_t deadline_ns) KVP_MUST_USE;

/* kvp_node_start is open and wait, and stops the node again on an error. */
kvp_err_t kvp_node_start(const kvp_node_conf_t *conf, uint64_t deadline_ns, kvp_node_t **node_out) KVP_MUST_USE;

/* kvp_node_stop unmounts (waiting up to deadline_ns for readers), unless the memory stays with its
 * keeper, stops the threads and frees everything. */
void kvp_node_stop(kvp_node_t *node, uint64_t deadline_ns);

void kvp_node_info(kvp_node_t *node, kvp_node_info_t *info_out);

#endif
