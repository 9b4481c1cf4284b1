/* SPDX-License-Identifier: Apache-2.0
 * The nodes of one session with the master: their records, a control connection to each used node,
 * the chunks of memory that it opened to us, and a pool of endpoints. All belong to one client
 * incarnation and end with it. Any thread. */
#ifndef KVP_CLIENT_MEMORY_PEERS_H
#define KVP_CLIENT_MEMORY_PEERS_H

#include "net/conn.h"
#include "net/names.h"
#include "transport/counters.h"
#include "transport/transport.h"
#include "common/clock.h"
#include "proto/wire.h"

#define KVP_CTL_LEAST_NS (1 * KVP_NS_PER_S) /* a node has at least so long for an answer */
#define KVP_CTL_MOST_NS (5 * KVP_NS_PER_S) /* and no more than this: dead hosts do not answer either */

typedef struct kvp_peers kvp_peers_t;
typedef struct kvp_peer kvp_peer_t;

typedef struct {
    const char *name; /* of this client; all strings are borrowed and outlive the peers */
    const char *host_id;
    const char *tenant; /* name; NULL = the default tenant */
    const kvp_transport_ops_t *transports[KVP_TRANSPORTS_MAX]; /* in order of preference */
    size_t transports_n;
    kvp_names_t *names; /* NULL = only addresses are reached */
    kvp_counters_t *counters;
    const _Atomic bool
        *is_given_up; /* set when the session is being closed: who waits for a node gives CLOSED. May be NULL */
    bool trusts_adapters; /* kvp_tp_conf_t */
    uint32_t max_idle_eps; /* over all nodes; beyond, the least recently used are closed. 0 = default 128 */
} kvp_peers_conf_t;

/* conn is borrowed as long as the peers live: segments are asked for over it. */
kvp_err_t kvp_peers_create(const kvp_peers_conf_t *conf, kvp_conn_t *conn, kvp_peers_t **peers_out) KVP_MUST_USE;
/* kvp_peers_destroy: with no path in use. Unmaps and closes everything; may take a while. */
void kvp_peers_destroy(kvp_peers_t *peers);

/* kvp_ctl_patience returns how long a caller with the deadline lets a node take for one answer
 * before it is given up: a quarter of the time, so that time is left for another node. The lower
 * bound suits callers in a hurry; a fixed second would be too short for callers with a minute on a
 * busy machine. */
static inline uint64_t
kvp_ctl_patience(uint64_t now_ns, uint64_t deadline_ns)
{
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;

    return kvp_min_u64(KVP_CTL_MOST_NS, kvp_max_u64(KVP_CTL_LEAST_NS, left_ns / 4));
}

/* A path is an endpoint to one node for one thread. */
typedef struct {
    kvp_peer_t *peer;
    kvp_ep_t *ep;
    size_t transport; /* index in conf.transports */
} kvp_path_t;

/* kvp_peers_take finds the node of a segment, attaches to it if needed, and waits for a free
 * endpoint. from: the index of the first allowed transport (0; or later, after transports that do
 * not serve the memory). deadline_ns 0: no wait, and EAGAIN if one is needed. NODE_LOST: no answer
 * now, or a moment ago. NOTSUP: none of our transports reaches it. A transport with a port of its
 * own that fails is left out, if another reaches the node. kvp_path_rele returns the endpoint; a
 * broken one, or one that must not be used again (is_spent), is closed first: no transfer touches
 * local memory after that. */
kvp_err_t kvp_peers_take(kvp_peers_t *peers, uint32_t segment_id, size_t from, uint64_t deadline_ns,
                         kvp_path_t *path_out) KVP_MUST_USE;
void kvp_path_rele(kvp_peers_t *peers, kvp_path_t *path, bool is_spent);

/* kvp_peers_rank returns the distance of a segment's node, for the choice between replicas: 0 on
 * this host, 1 unknown, 2 elsewhere, 3 silent, left alone for a while or out of reach. */
uint32_t kvp_peers_rank(kvp_peers_t *peers, uint32_t segment_id);

/* kvp_peers_avoid names segments whose nodes had better not be given anything to hold: those that are left alone for a
 * while, and those out of reach. Returns how many. */
uint32_t kvp_peers_avoid(kvp_peers_t *peers, uint32_t ids[KVP_AVOID_MAX]);

/* kvp_peers_are_many: more than one segment was used and is not avoided now, so a silent node has
 * alternatives. */
bool kvp_peers_are_many(kvp_peers_t *peers);

/* kvp_path_keep holds the mapping of the node's memory, beyond the path; kvp_peers_rele ends the
 * hold. */
kvp_peer_t *kvp_path_keep(kvp_peers_t *peers, const kvp_path_t *path);
void kvp_peers_rele(kvp_peers_t *peers, kvp_peer_t *peer);

/* kvp_path_fail gives the node up for a while: its attachment is dropped after its last user, and
 * soon after the next take returns NODE_LOST at once. kvp_path_ok ends this for good: bytes moved. */
void kvp_path_fail(kvp_peers_t *peers, const kvp_path_t *path, const char *why);
/* kvp_path_ended records that its data connection ended. If the node's control connection stands
 * and another transport reaches the node, the next take returns a path by this transport at once;
 * else as kvp_path_fail. */
void kvp_path_ended(kvp_peers_t *peers, const kvp_path_t *path);
/* kvp_path_silent records that no bytes moved on the path in this time. For a moment the node ranks
 * last; it is given up after a second of silence, summed over all calls and threads since the last
 * moved bytes. */
void kvp_path_silent(kvp_peers_t *peers, const kvp_path_t *path, uint64_t since_ns, uint64_t now_ns);
void kvp_path_ok(kvp_peers_t *peers, const kvp_path_t *path);
/* kvp_peers_late records a wait in vain although the node answers: for a moment it ranks last. */
void kvp_peers_late(kvp_peers_t *peers, uint32_t segment_id);

typedef struct {
    kvp_rseg_t *payload;
    kvp_rseg_t *meta;
} kvp_chunk_mem_t;

/* kvp_path_chunk returns a chunk's memory, opening it if needed (blocks; EAGAIN if deadline_ns is
 * 0). Borrowed until the path is returned. PROTO: the node has no such chunk. EAGAIN with a
 * deadline: the node does not serve it by this transport yet; NOTSUP: it cannot. Neither is a fault
 * of the node. STALE: another transport reaches the node now; take the path again. */
kvp_err_t kvp_path_chunk(kvp_peers_t *peers, const kvp_path_t *path, uint32_t chunk, kvp_access_t access,
                         uint64_t deadline_ns, kvp_chunk_mem_t *mem_out) KVP_MUST_USE;

/* ---- chores of the handle's background thread */

/* kvp_peers_tend notices nodes that closed their connection, closes idle endpoints over
 * max_idle_eps, tries left-out routes (transport/routes.h), and maps some more of the opened memory
 * (a first touch costs four times a copy). True if more work is left. */
bool kvp_peers_tend(kvp_peers_t *peers);

/* kvp_peers_let_go: no transfer uses these any more. All attachments end except those that views
 * keep. */
void kvp_peers_let_go(kvp_peers_t *peers);

/* A node that mapped memory for our writes needs a notice once no transfer of this incarnation is
 * under way. */
typedef struct {
    uint64_t incarnation;
    uint8_t pool_id[16];
    uint8_t uuid[16]; /* of the segment */
    uint64_t until_ns; /* how long a segment that the master does not know is waited for; the debtor's */
} kvp_drain_notice_t;

/* kvp_peers_drain_notices lists the notices that this incarnation has to send: *notices_out is
 * malloc'ed, NULL for none. */
kvp_err_t kvp_peers_drain_notices(kvp_peers_t *peers, kvp_drain_notice_t **notices_out, size_t *n_out) KVP_MUST_USE;
/* kvp_peers_send_drained sends the notice to the node, over an existing attachment, else over one
 * that it makes with the master's help: OK, NO_SEGMENT (the memory is closed, or not mounted again
 * yet), else the caller repeats it. The notice may be another incarnation's. */
kvp_err_t kvp_peers_send_drained(kvp_peers_t *peers, const kvp_drain_notice_t *notice, uint64_t deadline_ns)
    KVP_MUST_USE;

/* kvp_peers_pool_id: borrowed as long as the peers. */
const uint8_t *kvp_peers_pool_id(const kvp_peers_t *peers);

/* kvp_peers_transport names the transport in use to a segment's node, or that which would be chosen ("none"). */
const char *kvp_peers_transport(kvp_peers_t *peers, uint32_t segment_id, const char *host_id, const char *offered);

#endif
