/* SPDX-License-Identifier: Apache-2.0
 * Shared by peers.c, slots.c and failover.c: the slots of a link's nodes, and the routes to them. */
#ifndef KVP_CLIENT_MEMORY_PEERS_PRIV_H
#define KVP_CLIENT_MEMORY_PEERS_PRIV_H

#include "client/memory/attach.h"
#include "client/memory/peers.h"
#include "transport/routes.h"

#define KVP_AVOID_NS (1 * KVP_NS_PER_S) /* time for which a silent node is the last choice */

typedef struct {
    uint32_t segment_id;
    /* Index of the first transport that the slot may use. Each segment has a slot for all transports (0). Another
     * slot serves memory that the first slot's transport does not serve, or not yet. */
    size_t from;
    kvp_peer_t *peer; /* the attachment to the node; NULL = not attached */
    bool is_attaching;
    bool is_out_of_reach; /* none of our transports reaches the node, which does not change while the segment lives */
    uint32_t fails;
    uint64_t next_try_ns;
    uint64_t silent_ns; /* time that callers waited in vain for this node; 0 again when bytes move, when the sum reaches
                           SILENCE_MAX_NS, or when another transport is chosen */
    uint64_t silent_to_ns; /* end of the node's last silence that silent_ns counts */
    uint64_t avoid_until_ns; /* until this time other nodes are preferred; 0 = not avoided */
    uint32_t leads; /* bit i is set if our transport i reaches the node, by the master's last record of the segment */
    kvp_route_t routes[KVP_TRANSPORTS_MAX];
} kvp_slot_t;

struct kvp_peers {
    kvp_peers_conf_t conf;
    kvp_conn_t *conn;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signals a change of is_attaching in some slot */
    kvp_slot_t **slots; /* the nodes' slots, sorted by segment id and transport; never removed; guarded by lock */
    size_t slots_n;
    size_t slots_cap;
    kvp_tp_t *tps[KVP_TRANSPORTS_MAX]; /* instances of our transports, created at first use; guarded by lock */
    kvp_peer_t *dead; /* attachments without users, to be destroyed; guarded by lock */
    kvp_trial_t trial; /* tests whether a route that was left out works again; used by the background thread only */
    kvp_drain_notice_t *notices; /* one per segment whose node was asked for shared memory to write; guarded by lock */
    size_t notices_n;
};

/* Functions of slots.c; the caller holds peers->lock. kvp_slot_find returns NULL if there is no slot, kvp_slot_make
 * returns NULL without memory. kvp_slot_trip gives the node up for a time that doubles with each failure.
 * kvp_slot_note_silence adds a caller's wait in vain, and returns true if the sum is enough to give the node up. */
kvp_slot_t *kvp_slot_find(const kvp_peers_t *p, uint32_t segment_id, size_t from);
kvp_slot_t *kvp_slot_of(const kvp_peers_t *p, const kvp_peer_t *peer);
kvp_slot_t *kvp_slot_make(kvp_peers_t *p, uint32_t segment_id, size_t from);
void kvp_slot_trip(kvp_slot_t *slot);
bool kvp_slot_note_silence(kvp_slot_t *slot, uint64_t since_ns, uint64_t now_ns);

/* Functions of failover.c. kvp_routes_is_fault returns true for an error that another transport might not have.
 * kvp_route_leave_out and kvp_routes_reset need peers->lock. kvp_route_leave_out returns true if another route is to
 * be used from now on. kvp_routes_fail_over does the same for an attachment to which the caller has a reference,
 * whichever thread found the fault. kvp_routes_try tries again, in the background thread, routes that were left out
 * long enough; it returns true while a trial runs. */
bool kvp_routes_is_fault(kvp_err_t err);
bool kvp_route_leave_out(kvp_peers_t *p, kvp_slot_t *slot, size_t transport, const char *where, const char *why);
void kvp_routes_reset(kvp_slot_t *slot);
bool kvp_routes_fail_over(kvp_peers_t *p, kvp_peer_t *peer, kvp_err_t err);
bool kvp_routes_try(kvp_peers_t *p);

/* kvp_peers_need_tp (peers.c) returns the instance of one of our transports, and creates it at first use. */
kvp_err_t kvp_peers_need_tp(kvp_peers_t *p, size_t transport, kvp_tp_t **tp_out) KVP_MUST_USE;

#endif
