/* SPDX-License-Identifier: Apache-2.0
 * A node: owns one segment of this host's memory, serves it over shared memory, RDMA and TCP, and obeys the master.
 * The same code runs in kvpool-node and, embedded, in any process that opens a pool with memory. A node runs in
 * threads of its own (a control thread, one thread for each data lane, and others), never in the caller's thread. */
#ifndef KVP_NODE_NODE_H
#define KVP_NODE_NODE_H

#include "node/fetch.h"
#include "node/tier/tier.h"
#include "common/base.h"
#include "common/metrics.h"
#include "common/trust/creds.h"
#include "transport/transport.h"

typedef struct kvp_node kvp_node_t;

/* Whether a keeper, which is a separate process, holds the memory after the end of this process, for the next node of
 * the same name. */
typedef enum {
    KVP_KEEP_NONE,
    KVP_KEEP_OVER_STOPS, /* the keeper holds the memory after any end of the process */
    KVP_KEEP_UNTIL_STOP, /* the keeper holds the memory after a crash; an orderly stop frees the memory */
} kvp_keep_mode_t;

typedef struct {
    const char *masters, *cluster; /* the addresses of the masters, as for kvp_masters_create */
    const char *name; /* the node's name, 1 to 128 bytes, unique in the pool; NULL = host name, "-" and port */
    const char *host_id; /* the id of the host; NULL = the machine's own id */
    /* how the node's HTTP port is protected, a word of kvp_protection_of; NULL = "closed" */
    const char *http_protection;
    const char *listen; /* the address to listen at, "HOST:PORT"; NULL = a free port of 127.0.0.1 */
    const char *transports; /* the transports to serve by; NULL = shm, rdma if this machine can, tcp */
    /* The transports that the node must offer, such as "rdma": if it cannot offer one of them, the node does not start.
     * NULL = all transports in `transports`, if that is given. */
    const char *needed;
    /* RDMA devices, "NAME[:PORT],..."; NULL = the devices that the process has selected before */
    const char *rdma_device;
    const char *rdma_gid_index;
    uint64_t memory_bytes; /* the size of the payload memory; rounded down to 4 KiB, at least 64 KiB */
    const char *const *ssd; /* the devices of the SSD tier, each "DIR:SIZE"; borrowed for the call */
    size_t ssd_n; /* the number of devices; 0 = no tier */
    uint64_t ssd_writes; /* the bytes that may be written to the SSDs in a day; 0 = no limit */
    /* the size of a chunk; 0 = kvp_node_chunk_default(memory_bytes). The last chunk may be smaller */
    uint64_t chunk_bytes;
    uint32_t lanes; /* the number of data threads; 0 = one for each 8 CPUs, at least 1, at most 8 */
    uint32_t max_attachments; /* the most clients that may be attached at once; 0 = 4096 */
    kvp_keep_mode_t keep;
    uint64_t keep_ns; /* how long a keeper holds the memory while no node uses it */
    /* functions that read objects from other nodes; static. NULL = the node makes no copies */
    const kvp_fetch_ops_t *fetch;
    bool is_alone; /* the process is kvpool-node: no code of an embedding program runs in the process */
    bool is_insecure; /* flag: `listen` may be an address that other hosts reach, even without TLS */
    bool is_lazy; /* pages are populated when they are first touched, not in the background in advance */
} kvp_node_conf_t;

typedef struct {
    char addr[320]; /* the HOST:PORT at which the node listens */
    char unix_path[108];
    char protection[KVP_PROTECTION_MAX]; /* what protects the node's planes, for people */
    bool is_mounted;
    uint32_t term;
    uint64_t size_bytes;
    uint64_t populated_bytes;
    /* the bytes to register with RDMA devices, in the background; 0 = no RDMA device serves */
    uint64_t to_register_bytes;
    uint64_t registered_bytes; /* the part of to_register_bytes that is registered */
    /* part of to_register_bytes that no adapter can register; other transports serve these bytes */
    uint64_t unregistered_bytes;
    uint64_t attached_clients;
    uint64_t requests; /* the number of requests of clients on control connections; transfers of data are not counted */
    uint64_t retires, freed, fences, quarantined, attaches_refused, protocol_errors, remounts;
    /* is_kept: 1 = the keeper has all of the memory. keeper_pid: the keeper's process; 0 = there is no keeper */
    uint64_t is_kept, keeper_pid;
    /* the number of objects in the memory that the node took over from the keeper at its start */
    uint64_t adopted_objects;
    uint64_t is_drained; /* flag: 1 = the drain is complete: no object is left in the memory */
    bool has_tier, is_tier_mounted;
    bool is_tier_over; /* the tier was removed from the pool by kvp_node_unmount_tier */
    kvp_tier_stats_t tier;
} kvp_node_info_t;

/* Times that a node measures. Requests of clients: attach, open_chunk. Orders of the master: retire; and, from arrival
 * to answer, demote (objects to the SSD), stage (objects from the SSD into memory) and copy (objects from other nodes).
 */
#define KVP_NODE_WORKS(X) X(attach) X(open_chunk) X(retire) X(demote) X(stage) X(copy)
typedef enum {
#define KVP_NODE_WORK(name) KVP_NODE_WORK_##name,
    KVP_NODE_WORKS(KVP_NODE_WORK)
#undef KVP_NODE_WORK
        KVP_NODE_WORKS_N,
} kvp_node_work_t;

typedef struct {
    kvp_histogram_t works[KVP_NODE_WORKS_N]; /* in ns */
    kvp_served_t served; /* requests of peers by tcp */
} kvp_node_times_t;

/* kvp_node_open starts a node's threads and listens, and does not wait for a master: INVALID, SYS (address in use,
 * pages larger than 4 KiB, ...), NOMEM, all logged. kvp_node_wait waits until the segment is mounted. OK: mounted. At
 * deadline_ns (CLOCK_MONOTONIC) it returns the cause of the delay (UNREACHABLE, SEGMENT_EXISTS, ..., DEADLINE), and at
 * once an error that waiting cannot cure: VERSION, DENIED, EXPIRED, INVALID, SYS, NOMEM (kvp_node_is_final). The node
 * reconnects by itself after later losses of the master. */
kvp_err_t kvp_node_open(const kvp_node_conf_t *conf, kvp_node_t **node_out) KVP_MUST_USE;
kvp_err_t kvp_node_wait(kvp_node_t *node, uint64_t deadline_ns) KVP_MUST_USE;
bool kvp_node_is_final(kvp_err_t err);

/* kvp_node_wait_tier waits until the SSD tier, if there is one, is mounted. False: not mounted at deadline_ns; it may
 * be mounted later. kvp_node_unmount_tier removes the tier from the pool until the node's end. True: the master has
 * confirmed the removal, or there is no tier. The next node of this name with these devices finds the tier's objects
 * again. */
bool kvp_node_wait_tier(kvp_node_t *node, uint64_t deadline_ns);
bool kvp_node_unmount_tier(kvp_node_t *node, uint64_t deadline_ns) KVP_MUST_USE;

/* kvp_node_drain asks the master to move the node's objects to other nodes, and returns. Meanwhile the node serves
 * reads, and accepts no new objects. If the node does not stop, the drain lasts until its next mount.
 * kvp_node_wait_drained waits until no object is left in the memory; false: objects are left at deadline_ns. After a
 * complete drain, a stopping node returns its memory to the system instead of leaving it with the keeper. */
void kvp_node_drain(kvp_node_t *node);
bool kvp_node_wait_drained(kvp_node_t *node, uint64_t deadline_ns);

/* kvp_node_start opens a node and waits until it is mounted (kvp_node_open, kvp_node_wait). On an error it stops the
 * node. */
kvp_err_t kvp_node_start(const kvp_node_conf_t *conf, uint64_t deadline_ns, kvp_node_t **node_out) KVP_MUST_USE;

/* kvp_node_stop unmounts the segment (waiting up to deadline_ns for readers), unless the memory stays with its
 * keeper. It stops the threads and frees everything. */
void kvp_node_stop(kvp_node_t *node, uint64_t deadline_ns);

void kvp_node_info(kvp_node_t *node, kvp_node_info_t *info_out);

/* kvp_node_times returns histograms that live as long as the node. Any thread may read them. */
kvp_node_times_t *kvp_node_times(kvp_node_t *node);

#endif
