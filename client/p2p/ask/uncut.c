/* SPDX-License-Identifier: Apache-2.0
 */
#include "client/p2p/ask/uncut.h"

#include <stdlib.h>

void
kvp_p2p_uncuts_init(kvp_p2p_uncuts_t *uncuts)
{
    *uncuts = (kvp_p2p_uncuts_t){.n = 0};
    pthread_mutex_init(&uncuts->lock, NULL);
    kvp_list_init(&uncuts->list);
}

/* Caller holds the lock. */
static void
forget(kvp_p2p_uncuts_t *uncuts, kvp_p2p_uncut_t *uncut)
{
    kvp_list_del(&uncut->link);
    uncuts->n--;
    free(uncut);
}

void
kvp_p2p_uncuts_fini(kvp_p2p_uncuts_t *uncuts)
{
    while (!kvp_list_is_empty(&uncuts->list))
        forget(uncuts, kvp_list_first(&uncuts->list, kvp_p2p_uncut_t, link));
    pthread_mutex_destroy(&uncuts->lock);
}

void
kvp_p2p_uncuts_add(kvp_p2p_uncuts_t *uncuts, kvp_p2p_uncut_t *uncut)
{
    pthread_mutex_lock(&uncuts->lock);
    kvp_list_add_tail(&uncuts->list, &uncut->link);
    if (++uncuts->n > KVP_P2P_UNCUTS_MAX) forget(uncuts, kvp_list_first(&uncuts->list, kvp_p2p_uncut_t, link));
    pthread_mutex_unlock(&uncuts->lock);
}

uint32_t
kvp_p2p_uncuts_find(kvp_p2p_uncuts_t *uncuts, uint64_t peer, uint64_t *conns, uint32_t cap)
{
    uint32_t n = 0;

    pthread_mutex_lock(&uncuts->lock);
    kvp_list_foreach (pos, &uncuts->list) {
        const kvp_p2p_uncut_t *uncut = kvp_list_entry(pos, kvp_p2p_uncut_t, link);

        if (n == cap) break;
        if (uncut->peer == peer) conns[n++] = uncut->conn;
    }
    pthread_mutex_unlock(&uncuts->lock);
    return n;
}

void
kvp_p2p_uncuts_forget(kvp_p2p_uncuts_t *uncuts, const uint64_t *conns, uint32_t n)
{
    pthread_mutex_lock(&uncuts->lock);
    kvp_list_foreach_safe (pos, tmp, &uncuts->list) {
        kvp_p2p_uncut_t *uncut = kvp_list_entry(pos, kvp_p2p_uncut_t, link);

        for (uint32_t i = 0; i < n; i++) {
            if (uncut->conn != conns[i]) continue;
            forget(uncuts, uncut);
            break;
        }
    }
    pthread_mutex_unlock(&uncuts->lock);
}
