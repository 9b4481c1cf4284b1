/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/transport/rdma/address_cache.h"

#include <string.h>

void
kvp_rdma_address_cache_init(kvp_rdma_address_cache_t *addresses)
{
    pthread_mutex_init(&addresses->lock, NULL);
}

void
kvp_rdma_address_cache_fini(kvp_rdma_address_cache_t *addresses)
{
    pthread_mutex_destroy(&addresses->lock);
}

/* Addresses are zeroed before they are filled in, so they are compared as they lie. */
static kvp_rdma_cached_peer_t *
find(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known)
{
    for (uint32_t i = 0; i < KVP_RDMA_CACHED_PEERS; i++)
        if (memcmp(&addresses->peers[i].known, known, sizeof *known) == 0) return &addresses->peers[i];
    return NULL;
}

struct sockaddr_storage
kvp_rdma_address_cache_look(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known)
{
    struct sockaddr_storage at = *known;
    const kvp_rdma_cached_peer_t *peer;

    pthread_mutex_lock(&addresses->lock);
    peer = find(addresses, known);
    if (peer != NULL && peer->turn > 0) at = peer->others[peer->turn - 1];
    pthread_mutex_unlock(&addresses->lock);
    return at;
}

void
kvp_rdma_address_cache_note(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known,
                            const kvp_rdma_answer_t *answer)
{
    kvp_rdma_cached_peer_t *peer;

    pthread_mutex_lock(&addresses->lock);
    peer = find(addresses, known);
    if (peer == NULL) {
        peer = &addresses->peers[addresses->next++ % KVP_RDMA_CACHED_PEERS];
        *peer = (kvp_rdma_cached_peer_t){.known = *known};
    }
    memcpy(peer->others, answer->rails, sizeof answer->rails);
    peer->others_n = answer->rails_n;
    if (peer->turn > peer->others_n) peer->turn = 0;
    pthread_mutex_unlock(&addresses->lock);
}

void
kvp_rdma_address_cache_failed(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known)
{
    kvp_rdma_cached_peer_t *peer;

    pthread_mutex_lock(&addresses->lock);
    peer = find(addresses, known);
    if (peer != NULL) peer->turn = (peer->turn + 1) % (peer->others_n + 1);
    pthread_mutex_unlock(&addresses->lock);
}
