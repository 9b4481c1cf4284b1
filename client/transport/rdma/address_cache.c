/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/transport/rdma/address_cache.h"

#include <string.h>

void
kvp_rdma_book_init(kvp_rdma_book_t *book)
{
    pthread_mutex_init(&book->lock, NULL);
}

void
kvp_rdma_book_fini(kvp_rdma_book_t *book)
{
    pthread_mutex_destroy(&book->lock);
}

/* Addresses are zeroed before they are filled in, so they are compared as they lie. */
static kvp_rdma_book_peer_t *
find(kvp_rdma_book_t *book, const struct sockaddr_storage *known)
{
    for (uint32_t i = 0; i < KVP_RDMA_BOOK_PEERS; i++)
        if (memcmp(&book->peers[i].known, known, sizeof *known) == 0) return &book->peers[i];
    return NULL;
}

struct sockaddr_storage
kvp_rdma_book_look(kvp_rdma_book_t *book, const struct sockaddr_storage *known)
{
    struct sockaddr_storage at = *known;
    const kvp_rdma_book_peer_t *peer;

    pthread_mutex_lock(&book->lock);
    peer = find(book, known);
    if (peer != NULL && peer->turn > 0) at = peer->others[peer->turn - 1];
    pthread_mutex_unlock(&book->lock);
    return at;
}

void
kvp_rdma_book_note(kvp_rdma_book_t *book, const struct sockaddr_storage *known, const kvp_rdma_answer_t *answer)
{
    kvp_rdma_book_peer_t *peer;

    pthread_mutex_lock(&book->lock);
    peer = find(book, known);
    if (peer == NULL) {
        peer = &book->peers[book->next++ % KVP_RDMA_BOOK_PEERS];
        *peer = (kvp_rdma_book_peer_t){.known = *known};
    }
    memcpy(peer->others, answer->rails, sizeof answer->rails);
    peer->others_n = answer->rails_n;
    if (peer->turn > peer->others_n) peer->turn = 0;
    pthread_mutex_unlock(&book->lock);
}

void
kvp_rdma_book_failed(kvp_rdma_book_t *book, const struct sockaddr_storage *known)
{
    kvp_rdma_book_peer_t *peer;

    pthread_mutex_lock(&book->lock);
    peer = find(book, known);
    if (peer != NULL) peer->turn = (peer->turn + 1) % (peer->others_n + 1);
    pthread_mutex_unlock(&book->lock);
}
