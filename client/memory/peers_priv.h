/* SPDX-License-Identifier: Apache-2.0
 * What peers.c, slots.c and failover.c share: the slots of a link's nodes, and the routes to them.
 */
#ifndef KVP_CLIENT_MEMORY_PEERS_PRIV_H
#define KVP_CLIENT_MEMORY_PEERS_PRIV_H

#include "client/memory/attach.h"
#include "client/memory/peers.h"
#include "transport/routes.h"

#define KVP_AVOID_NS (1 * KVP_NS_PER_S) /* a silent node is the last choice for so long */

typedef struct {
    uint32_t segment_id;
    /* the first of our transports that it may use: beside the slot for all (0), there is one for
     * memory that this slot's transport does not serve, or not yet */
    size_t from;
    kvp_peer_t *peer; /* NULL = not attached */
    bool is_attaching;
    bool is_out_of_reach; /* none of our transports leads there, which does not change while the segment lives */
    uint32_t fails;
    uint64_t next_try_ns;
    uint64_t silent_ns; /* waited for in vain since something was last moved */
    uint64_t silent_to_ns; /* end of the last counted silence */
    uint64_t avoid_until_ns; /* other nodes are chosen first; 0 = no */
    uint32_t leads; /* a bit for each of our transports that reaches the node, by its last record */
    kvp_route_t routes[KVP_TRANSPORTS_MAX];
} kvp_slot_t;

struct kvp_peers {
    kvp_peers_conf_t conf;
    kvp_conn_t *conn;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* is_attaching of some slot */
    kvp_slot_t **slots; /* by rising segment id and transport; a slot never goes; guarded by lock */
    size_t slots_n;
    size_t slots_cap;
    kvp_tp_t *tps[KVP_TRANSPORTS_MAX]; /* made when first needed; guarded by lock */
    kvp_peer_t *dead; /* attachments without users; guarded by lock */
    kvp_trial_t trial; /* of the background thread */
    kvp_drain_notice_t *notices; /* segments that mapped memory for us to write; guarded by lock */
    size_t notices_n;
};

/* slots.c; the caller holds peers->lock. kvp_slot_find: NULL = none yet; kvp_slot_make: NULL = no
 * memory. kvp_slot_trip leaves the node alone for a time that doubles. kvp_slot_note_silence sums
 * up callers' waits in vain: true if they suffice to give the node up. */
kvp_slot_t *kvp_slot_find(const kvp_peers_t *p, uint32_t segment_id, size_t from);
kvp_slot_t *kvp_slot_of(const kvp_peers_t *p, const kvp_peer_t *peer);
kvp_slot_t *kvp_slot_make(kvp_peers_t *p, uint32_t segment_id, size_t from);
void kvp_slot_trip(kvp_slot_t *slot);
bool kvp_slot_note_silence(kvp_slot_t *slot, uint64_t since_ns, uint64_t now_ns);

/* failover.c. kvp_routes_is_fault: an error that another transport might not have.
 * kvp_route_leave_out and kvp_routes_reset with peers->lock held. kvp_route_leave_out: true if
 * another route is to be taken from now on. kvp_routes_fail_over: the same for a held attachment,
 * whichever thread found the fault. kvp_routes_try retries routes that were left out long enough,
 * in the background thread; true while it does. */
bool kvp_routes_is_fault(kvp_err_t err);
bool kvp_route_leave_out(kvp_peers_t *p, kvp_slot_t *slot, size_t transport, const char *where, const char *why);
void kvp_routes_reset(kvp_slot_t *slot);
bool kvp_routes_fail_over(kvp_peers_t *p, kvp_peer_t *peer, kvp_err_t err);
bool kvp_routes_try(kvp_peers_t *p);

/* peers.c. need_tp: the instance of one of our transports, made when first needed. */
kvp_err_t kvp_peers_need_tp(kvp_peers_t *p, size_t transport, kvp_tp_t **tp_out) KVP_MUST_USE;

#endif
