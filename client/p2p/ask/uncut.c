/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/p2p/ask/uncut.h"

#include <stdlib.h>

void
kvp_p2p_owing_init(kvp_p2p_owing_t *owing)
{
    *owing = (kvp_p2p_owing_t){.n = 0};
    pthread_mutex_init(&owing->lock, NULL);
    kvp_list_init(&owing->list);
}

/* Caller holds the lock. */
static void
forget(kvp_p2p_owing_t *owing, kvp_p2p_owed_t *owed)
{
    kvp_list_del(&owed->link);
    owing->n--;
    free(owed);
}

void
kvp_p2p_owing_fini(kvp_p2p_owing_t *owing)
{
    while (!kvp_list_is_empty(&owing->list))
        forget(owing, kvp_list_first(&owing->list, kvp_p2p_owed_t, link));
    pthread_mutex_destroy(&owing->lock);
}

void
kvp_p2p_owing_add(kvp_p2p_owing_t *owing, kvp_p2p_owed_t *owed)
{
    pthread_mutex_lock(&owing->lock);
    kvp_list_add_tail(&owing->list, &owed->link);
    if (++owing->n > KVP_P2P_OWED_MAX) forget(owing, kvp_list_first(&owing->list, kvp_p2p_owed_t, link));
    pthread_mutex_unlock(&owing->lock);
}

uint32_t
kvp_p2p_owing_find(kvp_p2p_owing_t *owing, uint64_t peer, uint64_t *conns, uint32_t cap)
{
    uint32_t n = 0;

    pthread_mutex_lock(&owing->lock);
    kvp_list_foreach (pos, &owing->list) {
        const kvp_p2p_owed_t *owed = kvp_list_entry(pos, kvp_p2p_owed_t, link);

        if (n == cap) break;
        if (owed->peer == peer) conns[n++] = owed->conn;
    }
    pthread_mutex_unlock(&owing->lock);
    return n;
}

void
kvp_p2p_owing_paid(kvp_p2p_owing_t *owing, const uint64_t *conns, uint32_t n)
{
    pthread_mutex_lock(&owing->lock);
    kvp_list_foreach_safe (pos, tmp, &owing->list) {
        kvp_p2p_owed_t *owed = kvp_list_entry(pos, kvp_p2p_owed_t, link);

        for (uint32_t i = 0; i < n; i++) {
            if (owed->conn != conns[i]) continue;
            forget(owing, owed);
            break;
        }
    }
    pthread_mutex_unlock(&owing->lock);
}
