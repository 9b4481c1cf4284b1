/* SPDX-License-Identifier: Apache-2.0
 * Peers of the serving side, by incarnation: who is connected, and who has keys to write with. A
 * writer's key to a piece of memory is a registration of its own (a grant), made by one thread
 * while others serve. */
#ifndef KVP_TRANSPORT_RDMA_PEERS_H
#define KVP_TRANSPORT_RDMA_PEERS_H

#include "transport/rdma/tp.h"

typedef struct {
    kvp_list_t link; /* in serving->peers */
    kvp_list_t bucket;
    uint64_t incarnation;
    kvp_list_t conns; /* serve.c's */
    kvp_list_t grants;
    bool is_attached; /* from peer_came to peer_left */
} kvp_rdma_peer_t;

/* All under the serving lock. kvp_rdma_peer_find: NULL = unknown. kvp_rdma_peer_make finds or
 * creates; NULL = no memory. kvp_rdma_peer_drop_if_empty frees a peer without attachment,
 * connections and grants. kvp_rdma_peer_grants_end takes all keys from a peer, including keys under
 * registration; a thread deregisters them. kvp_rdma_grants_sweep starts the thread if it could not
 * be started before. */
kvp_rdma_peer_t *kvp_rdma_peer_find(kvp_rdma_serving_t *s, uint64_t incarnation);
kvp_rdma_peer_t *kvp_rdma_peer_make(kvp_rdma_serving_t *s, uint64_t incarnation);
void kvp_rdma_peer_drop_if_empty(kvp_rdma_peer_t *p);
void kvp_rdma_peer_grants_end(kvp_rdma_tp_t *tp, kvp_rdma_peer_t *p);
void kvp_rdma_grants_sweep(kvp_rdma_tp_t *tp);

/* kvp_rdma_grant_make registers memory for one writer, without the lock held. OK, also if
 * registered already; FENCED, also if the fence came or the peer left meanwhile; EAGAIN: another
 * thread is registering; else the error of the registration. kvp_rdma_grant_keys returns the keys:
 * EAGAIN before registration, FENCED. kvp_rdma_grants_drop ends all grants of a piece of memory,
 * and waits for registrations and deregistrations under way. kvp_rdma_grants_wait waits for the
 * deregistering thread, before the end of the serving side. */
kvp_err_t kvp_rdma_grant_make(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr, uint64_t incarnation) KVP_MUST_USE;
kvp_err_t kvp_rdma_grant_keys(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr, uint64_t incarnation,
                              uint32_t rkeys_out[KVP_RDMA_RAILS_MAX]) KVP_MUST_USE;
void kvp_rdma_grants_drop(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr);
void kvp_rdma_grants_wait(kvp_rdma_tp_t *tp);

#endif
