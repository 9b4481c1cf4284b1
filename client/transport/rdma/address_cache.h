/* SPDX-License-Identifier: Apache-2.0
 * Where else a peer is reached: the addresses of its other adapters, as its consents told, for when the one that everybody
 * knows does not answer. Any thread.
 */
#ifndef KVP_CLIENT_TRANSPORT_RDMA_ADDRESS_CACHE_H
#define KVP_CLIENT_TRANSPORT_RDMA_ADDRESS_CACHE_H

#include "client/transport/rdma/wire.h"

#include <pthread.h>

#define KVP_RDMA_CACHED_PEERS 64u /* beyond, the one that was written first is forgotten */

typedef struct {
    struct sockaddr_storage known; /* family 0 = none */
    struct sockaddr_storage others[KVP_RDMA_RAILS_MAX];
    uint32_t others_n;
    uint32_t turn; /* 0 = at the known address, else at that of the others, from 1 */
} kvp_rdma_cached_peer_t;

typedef struct {
    pthread_mutex_t lock; /* guards the rest */
    kvp_rdma_cached_peer_t peers[KVP_RDMA_CACHED_PEERS];
    uint32_t next;
} kvp_rdma_address_cache_t;

void kvp_rdma_address_cache_init(kvp_rdma_address_cache_t *addresses);
void kvp_rdma_address_cache_fini(kvp_rdma_address_cache_t *addresses);

/* kvp_rdma_address_cache_look gives the address to try for a peer that is known by another one, or that one. note takes in what a
 * consent told. failed: there was no answer where look had led; the next look leads elsewhere. */
struct sockaddr_storage kvp_rdma_address_cache_look(kvp_rdma_address_cache_t *addresses,
                                                    const struct sockaddr_storage *known);
void kvp_rdma_address_cache_note(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known,
                                 const kvp_rdma_answer_t *answer);
void kvp_rdma_address_cache_failed(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known);

#endif
