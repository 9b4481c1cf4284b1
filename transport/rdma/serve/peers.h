/* SPDX-License-Identifier: Apache-2.0
 * The peers of the serving side of rdma, by incarnation: their connections, and their keys for writing. Each peer that
 * writes has keys of its own for a piece of memory. These keys are a registration of their own, called a grant, which
 * one thread makes while other threads serve. */
#ifndef KVP_TRANSPORT_RDMA_SERVE_PEERS_H
#define KVP_TRANSPORT_RDMA_SERVE_PEERS_H

#include "transport/rdma/base/tp.h"

typedef struct {
    kvp_list_t link; /* link in the list of all peers, serving->peers */
    kvp_list_t bucket;
    uint64_t incarnation;
    kvp_list_t conns; /* the peer's connections, owned by serve.c */
    kvp_list_t grants;
    bool is_attached; /* true from peer_came to peer_left */
} kvp_rdma_peer_t;

/* The caller of these functions holds the serving lock. kvp_rdma_peer_find returns a peer; NULL = unknown.
 * kvp_rdma_peer_make finds or creates a peer; NULL = no memory. kvp_rdma_peer_drop_if_empty frees a peer without
 * attachment, connections and grants. kvp_rdma_peer_grants_end ends all grants of a peer, also those that are being
 * registered; a thread then deregisters them. kvp_rdma_grants_sweep starts this thread if needed. */
kvp_rdma_peer_t *kvp_rdma_peer_find(kvp_rdma_serving_t *s, uint64_t incarnation);
kvp_rdma_peer_t *kvp_rdma_peer_make(kvp_rdma_serving_t *s, uint64_t incarnation);
void kvp_rdma_peer_drop_if_empty(kvp_rdma_peer_t *p);
void kvp_rdma_peer_grants_end(kvp_rdma_tp_t *tp, kvp_rdma_peer_t *p);
void kvp_rdma_grants_sweep(kvp_rdma_tp_t *tp);

/* These functions take the serving lock. kvp_rdma_grant_make registers memory for one writer. OK: also if it was
 * registered before. FENCED: the peer is fenced, or was fenced or left during the call. EAGAIN: another thread is
 * registering it. Otherwise the error of the registration. kvp_rdma_grant_keys returns the keys; EAGAIN: not registered
 * yet; FENCED. kvp_rdma_grants_drop ends all grants of a piece of memory, and waits for registrations and
 * deregistrations under way. kvp_rdma_grants_wait waits for the deregistering thread, before the end of the serving
 * side. */
kvp_err_t kvp_rdma_grant_make(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr, uint64_t incarnation) KVP_MUST_USE;
kvp_err_t kvp_rdma_grant_keys(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr, uint64_t incarnation,
                              uint32_t rkeys_out[KVP_RDMA_RAILS_MAX]) KVP_MUST_USE;
void kvp_rdma_grants_drop(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr);
void kvp_rdma_grants_wait(kvp_rdma_tp_t *tp);

#endif
