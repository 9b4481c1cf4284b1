/* SPDX-License-Identifier: Apache-2.0
 * The nodes as one session with the master sees them: their records, a control connection to each that was used, the
 * chunks of memory that it opened to us, and a pool of endpoints. Everything here belongs to one client incarnation and
 * goes with it. Any thread.
 */
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
    const char *tenant; /* name; NULL = the default one */
    const kvp_transport_ops_t *transports[KVP_TRANSPORTS_MAX]; /* in order of preference */
    size_t transports_n;
    kvp_names_t *names; /* NULL = only addresses are reached */
    kvp_counters_t *counters;
    const _Atomic bool
        *is_given_up; /* set when the session is being closed: who waits for a node gives CLOSED. May be NULL */
    bool trusts_adapters; /* kvp_tp_conf_t */
    uint32_t max_idle_eps; /* over all nodes; beyond it the least recently used are closed. 0 = default 128 */
} kvp_peers_conf_t;

/* conn is borrowed as long as the peers live: segments are asked for over it. */
kvp_err_t kvp_peers_create(const kvp_peers_conf_t *conf, kvp_conn_t *conn, kvp_peers_t **peers_out) KVP_MUST_USE;
/* kvp_peers_destroy: nobody has a path any more. Unmaps and closes everything; may take a while. */
void kvp_peers_destroy(kvp_peers_t *peers);

/* kvp_ctl_patience is how long somebody with that deadline lets a node take for one answer before it is given up: a quarter
 * of the time, so that there is some left for another node. A second says enough to callers in a hurry, and too little on a
 * busy machine to those who have a minute. */
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

/* kvp_peers_take finds the node of a segment, attaches to it where needed, and waits for a free endpoint. from: the index of
 * the first transport that may be used (0; or those behind one by which the memory is not served). deadline_ns 0:
 * nothing is waited for and EAGAIN tells that it would have to. NODE_LOST: it does not answer, or did not a moment ago.
 * NOTSUP: none of our transports leads there. One that fails there and has a port of its own is left out, if another leads
 * there. rele gives the endpoint back; one that is broken, or may not be used
 * again (is_spent), is closed first: nothing touches local memory after that. */
kvp_err_t kvp_peers_take(kvp_peers_t *peers, uint32_t segment_id, size_t from, uint64_t deadline_ns,
                         kvp_path_t *path_out) KVP_MUST_USE;
void kvp_path_rele(kvp_peers_t *peers, kvp_path_t *path, bool is_spent);

/* kvp_peers_rank says how near a segment's node is, for a choice between replicas: 0 on this host, 1 not known yet, 2
 * elsewhere, 3 silent, left alone for a while or out of reach. */
uint32_t kvp_peers_rank(kvp_peers_t *peers, uint32_t segment_id);

/* kvp_peers_avoid names segments whose nodes had better not be given anything to hold: those that are left alone for a
 * while, and those out of reach. Returns how many. */
uint32_t kvp_peers_avoid(kvp_peers_t *peers, uint32_t ids[KVP_AVOID_MAX]);

/* kvp_peers_are_many says that more than one segment was used and is not avoided now: where one is silent, something can go
 * elsewhere. */
bool kvp_peers_are_many(kvp_peers_t *peers);

/* kvp_path_keep holds the node's memory as it is mapped, beyond the path; kvp_peers_rele ends that. */
kvp_peer_t *kvp_path_keep(kvp_peers_t *peers, const kvp_path_t *path);
void kvp_peers_rele(kvp_peers_t *peers, kvp_peer_t *peer);

/* kvp_path_fail gives the node up for a while: its attachment is dropped once nobody uses it, and the next take that
 * is made soon gives NODE_LOST at once. kvp_path_ok ends that for good: something was moved. */
void kvp_path_fail(kvp_peers_t *peers, const kvp_path_t *path, const char *why);
/* kvp_path_ended notes that its data connection ended. Where the node's control connection stands and another transport leads
 * there, the next take gets a path by that one at once; else as kvp_path_fail. */
void kvp_path_ended(kvp_peers_t *peers, const kvp_path_t *path);
/* kvp_path_silent notes that nothing moved on the path in that time. For a moment the node ranks last; it is given up
 * once that makes a second, over all calls and threads since something was moved. */
void kvp_path_silent(kvp_peers_t *peers, const kvp_path_t *path, uint64_t since_ns, uint64_t now_ns);
void kvp_path_ok(kvp_peers_t *peers, const kvp_path_t *path);
/* kvp_peers_late notes that the node was waited for in vain although it answers: for a moment it ranks last. */
void kvp_peers_late(kvp_peers_t *peers, uint32_t segment_id);

typedef struct {
    kvp_rseg_t *payload;
    kvp_rseg_t *meta;
} kvp_chunk_mem_t;

/* kvp_path_chunk gives a chunk's memory, opening it where needed (blocks; EAGAIN where deadline_ns is 0). Borrowed until
 * the path is given back. PROTO: the node has no such chunk. EAGAIN with a deadline: the node does not serve it by this
 * transport yet, and may soon; NOTSUP: it cannot. Neither says anything against the node. STALE: another transport leads
 * there now; take the path again. */
kvp_err_t kvp_path_chunk(kvp_peers_t *peers, const kvp_path_t *path, uint32_t chunk, kvp_access_t access,
                         uint64_t deadline_ns, kvp_chunk_mem_t *mem_out) KVP_MUST_USE;

/* ---- chores of the handle's background thread */

/* kvp_peers_tend notices nodes that closed their connection, closes idle endpoints beyond max_idle_eps, tries routes that were
 * left out (transport/routes.h), and maps some more of what was opened (a first touch costs four times a copy). True when there is
 * more to do. */
bool kvp_peers_tend(kvp_peers_t *peers);

/* kvp_peers_let_go: nothing is moved through these any more. All attachments end but those that views keep. */
void kvp_peers_let_go(kvp_peers_t *peers);

/* A node that mapped memory for us to write has to be told once nothing of this incarnation is under way. */
typedef struct {
    uint64_t incarnation;
    uint8_t pool_id[16];
    uint8_t uuid[16]; /* of the segment */
    uint64_t until_ns; /* how long a segment that the master does not know is waited for; the debtor's */
} kvp_drain_notice_t;

/* kvp_peers_drain_notices lists the notices that this incarnation has to send: *notices_out is malloc'ed, NULL for none. */
kvp_err_t kvp_peers_drain_notices(kvp_peers_t *peers, kvp_drain_notice_t **notices_out, size_t *n_out) KVP_MUST_USE;
/* kvp_peers_send_drained tells the node, over an attachment that is there, else over one that it makes with the master's help: OK,
 * NO_SEGMENT (that memory is gone, or not mounted again yet), or it is to be tried again. The notice may be another incarnation's. */
kvp_err_t kvp_peers_send_drained(kvp_peers_t *peers, const kvp_drain_notice_t *notice, uint64_t deadline_ns)
    KVP_MUST_USE;

/* kvp_peers_pool_id: borrowed as long as the peers. */
const uint8_t *kvp_peers_pool_id(const kvp_peers_t *peers);

/* kvp_peers_transport names the transport in use to a segment's node, or that which would be chosen ("none"). */
const char *kvp_peers_transport(kvp_peers_t *peers, uint32_t segment_id, const char *host_id, const char *offered);

#endif
