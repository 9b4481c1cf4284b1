/* SPDX-License-Identifier: Apache-2.0
 * The nodes of one session with the master (peers): their records, a control connection to each node in use, the
 * chunks of memory that the node opened to this process, and a pool of endpoints. All belong to one incarnation of
 * the client and end with it. Any thread may call. */
#ifndef KVP_CLIENT_MEMORY_PEERS_H
#define KVP_CLIENT_MEMORY_PEERS_H

#include "net/conn.h"
#include "net/names.h"
#include "transport/counters.h"
#include "transport/transport.h"
#include "common/clock.h"
#include "proto/wire.h"

#define KVP_CTL_LEAST_NS (1 * KVP_NS_PER_S) /* least time that a node has for an answer */
#define KVP_CTL_MOST_NS (5 * KVP_NS_PER_S) /* most time that a node has for an answer; a dead host never answers */

typedef struct kvp_peers kvp_peers_t;
typedef struct kvp_peer kvp_peer_t;

typedef struct {
    const char *name; /* name of this client; all strings are borrowed and outlive the peers */
    const char *host_id;
    const char *tenant; /* name of the tenant; NULL = the default tenant */
    const kvp_transport_ops_t *transports[KVP_TRANSPORTS_MAX]; /* this client's transports, in order of preference */
    size_t transports_n;
    kvp_names_t *names; /* resolves names of hosts; NULL = only numeric addresses can be reached */
    kvp_counters_t *counters;
    /* set when the session is being closed: waiting calls then return CLOSED. May be NULL */
    const _Atomic bool *is_given_up;
    bool trusts_adapters; /* the transports rely on the checks of network adapters: see kvp_tp_conf_t */
    uint32_t max_idle_eps; /* most idle endpoints over all nodes; the least recently used ones are closed. 0 = 128 */
} kvp_peers_conf_t;

/* kvp_peers_create makes an empty set of nodes. conn is borrowed as long as the peers live; it carries questions
 * about segments to the master. */
kvp_err_t kvp_peers_create(const kvp_peers_conf_t *conf, kvp_conn_t *conn, kvp_peers_t **peers_out) KVP_MUST_USE;
/* kvp_peers_destroy unmaps all memory and closes all connections, which may take a while. No path is in use. */
void kvp_peers_destroy(kvp_peers_t *peers);

/* kvp_ctl_patience returns how long a caller with the deadline waits for one answer of a node before the node is
 * given up: a quarter of the remaining time, so that time is left for another node. The lower bound protects nodes
 * from callers in a hurry; the fixed second alone would be too short on a busy machine for callers with a minute. */
static inline uint64_t
kvp_ctl_patience(uint64_t now_ns, uint64_t deadline_ns)
{
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;

    return kvp_min_u64(KVP_CTL_MOST_NS, kvp_max_u64(KVP_CTL_LEAST_NS, left_ns / 4));
}

/* A path: an endpoint to one node, which one thread uses. */
typedef struct {
    kvp_peer_t *peer;
    kvp_ep_t *ep;
    size_t transport; /* index of the path's transport in conf.transports */
} kvp_path_t;

/* kvp_peers_take finds the node of a segment, attaches to it if needed, and waits for a free endpoint. from is the
 * index of the first allowed transport: 0, or higher to skip transports that do not serve the memory. deadline_ns 0:
 * EAGAIN instead of a wait. NODE_LOST: the node does not answer, or did not a moment ago. NOTSUP: none of
 * our transports reaches the node. A transport with a port of its own that fails is left out if another transport
 * reaches the node. kvp_path_rele gives the endpoint back; it first closes an endpoint that is broken or must not be
 * used again (is_spent), so that no transfer touches local memory after that. */
kvp_err_t kvp_peers_take(kvp_peers_t *peers, uint32_t segment_id, size_t from, uint64_t deadline_ns,
                         kvp_path_t *path_out) KVP_MUST_USE;
void kvp_path_rele(kvp_peers_t *peers, kvp_path_t *path, bool is_spent);

/* kvp_peers_rank returns the distance of a segment's node, for the choice between replicas: 0 on this host, 1
 * unknown, 2 on another host, 3 silent, given up for a while or out of reach. */
uint32_t kvp_peers_rank(kvp_peers_t *peers, uint32_t segment_id);

/* kvp_peers_avoid writes to ids the segments that should get no new objects: those whose nodes are given up for a
 * while, and those out of reach. Returns their number. */
uint32_t kvp_peers_avoid(kvp_peers_t *peers, uint32_t ids[KVP_AVOID_MAX]);

/* kvp_peers_are_many returns true if more than one segment was used and is not avoided now, so that a write to a
 * silent node can be repeated on another node. */
bool kvp_peers_are_many(kvp_peers_t *peers);

/* kvp_path_keep takes a reference that keeps the node's memory mapped after the path was released. kvp_peers_rele
 * releases the reference. */
kvp_peer_t *kvp_path_keep(kvp_peers_t *peers, const kvp_path_t *path);
void kvp_peers_rele(kvp_peers_t *peers, kvp_peer_t *peer);

/* kvp_path_fail gives the node up for a while: its attachment is dropped after its last user, and a next take soon
 * after returns NODE_LOST at once. kvp_path_ok records that bytes moved, which resets the failures. */
void kvp_path_fail(kvp_peers_t *peers, const kvp_path_t *path, const char *why);
/* kvp_path_ended records that the path's data connection ended. If the node's control connection stands and another
 * transport reaches the node, the next take returns a path by that transport at once; else it acts like
 * kvp_path_fail. */
void kvp_path_ended(kvp_peers_t *peers, const kvp_path_t *path);
/* kvp_path_silent records that no bytes moved on the path from since_ns to now_ns. The node ranks last for a moment.
 * The node is given up after a second of silence, summed over all calls and threads since bytes moved last. */
void kvp_path_silent(kvp_peers_t *peers, const kvp_path_t *path, uint64_t since_ns, uint64_t now_ns);
void kvp_path_ok(kvp_peers_t *peers, const kvp_path_t *path);
/* kvp_peers_late records that the segment's node answers, but does not serve a chunk in time: it ranks last for 1 s. */
void kvp_peers_late(kvp_peers_t *peers, uint32_t segment_id);

typedef struct {
    kvp_rseg_t *payload;
    kvp_rseg_t *meta;
} kvp_chunk_mem_t;

/* kvp_path_chunk returns a chunk's memory, and opens the chunk if needed (blocks; EAGAIN if deadline_ns is 0). The
 * memory is borrowed until the path is released. PROTO: the node has no such chunk. EAGAIN with a deadline: the node
 * does not serve the chunk by this transport yet; NOTSUP: it cannot. Neither is a fault of the node. STALE: another
 * transport reaches the node now; take the path again. */
kvp_err_t kvp_path_chunk(kvp_peers_t *peers, const kvp_path_t *path, uint32_t chunk, kvp_access_t access,
                         uint64_t deadline_ns, kvp_chunk_mem_t *mem_out) KVP_MUST_USE;

/* ---- work of the handle's background thread */

/* kvp_peers_tend finds nodes that closed their connection, closes idle endpoints over max_idle_eps, tries routes that
 * were left out (transport/routes.h), and maps some more of the opened memory (a first touch costs four times a
 * copy). Returns true if more work is left. */
bool kvp_peers_tend(kvp_peers_t *peers);

/* kvp_peers_let_go ends all attachments except the ones kept by views. No transfer uses the peers any more. */
void kvp_peers_let_go(kvp_peers_t *peers);

/* A drain notice: a node that mapped its memory for our writes needs one when no transfer of this incarnation is
 * running any more. */
typedef struct {
    uint64_t incarnation;
    uint8_t pool_id[16];
    uint8_t uuid[16]; /* uuid of the segment */
    uint64_t until_ns; /* how long to repeat the notice if the master does not know the segment; 0 = not set yet */
} kvp_drain_notice_t;

/* kvp_peers_drain_notices returns the notices that this incarnation has to send. *notices_out is malloc'ed; NULL if
 * there are none. */
kvp_err_t kvp_peers_drain_notices(kvp_peers_t *peers, kvp_drain_notice_t **notices_out, size_t *n_out) KVP_MUST_USE;
/* kvp_peers_send_drained sends the notice to the node, over an existing attachment, or over one that it makes with
 * the master's help. OK; NO_SEGMENT: the memory is closed or not mounted again yet; after any other error the caller
 * repeats the call. The notice may be that of another incarnation. */
kvp_err_t kvp_peers_send_drained(kvp_peers_t *peers, const kvp_drain_notice_t *notice, uint64_t deadline_ns)
    KVP_MUST_USE;

/* kvp_peers_pool_id returns the id of the pool, borrowed as long as the peers. */
const uint8_t *kvp_peers_pool_id(const kvp_peers_t *peers);

/* kvp_peers_transport returns the name of the transport to a segment's node: the one in use, or the one that would be
 * chosen; "none" if no transport of ours reaches the node. Shared memory needs a Unix socket of the node that this
 * process may use; unix_path "" = its path is not known. */
const char *kvp_peers_transport(kvp_peers_t *peers, uint32_t segment_id, const char *host_id, const char *offered,
                                const char *unix_path);

#endif
