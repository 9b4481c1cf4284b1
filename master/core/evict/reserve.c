/* SPDX-License-Identifier: Apache-2.0
 * Eviction ahead of need: a small reserve is kept free, so that most puts in a full pool need not wait for a node. It is
 * small, since what is evicted too early are hits.
 */
#include "master/core/state.h"

#define AHEAD_SHARE 500u /* reserve: 1/500 of the pool, */
#define AHEAD_MAX (64ull << 20) /* at most so much, */
#define AHEAD_BATCH 64u /* so many objects a step */

/* Bytes in which the tenant can put something, and those of them that are free or on their way to it. A tenant that has
 * company has its own chunks: what is free in those of others is not for it. */
static uint64_t
size_for(const kvp_master_t *m, const kvp_tenant_t *t)
{
    return m->cat.owners_n == 1 ? m->ctx.st.size_bytes : t->chunk_bytes;
}

static uint64_t
free_for(const kvp_master_t *m, const kvp_tenant_t *t)
{
    uint64_t going = m->ctx.st.retiring_bytes - m->ctx.st.quarantine_bytes;
    uint64_t busy =
        m->cat.owners_n == 1 ? m->ctx.st.used_bytes - going - m->prot.doomed_bytes : t->used_bytes - t->going_bytes;

    if (m->cat.owners_n > 1 && m->cat.owned_bytes < m->cat.known_bytes) return UINT64_MAX; /* some chunk is empty */
    return size_for(m, t) - kvp_min_u64(busy, size_for(m, t));
}

/* For whom a reserve is kept: who puts. */
static kvp_tenant_t *
ahead_for(const kvp_master_t *m)
{
    return m->cat.owners_n == 1 ? kvp_list_first(&m->cat.owners, kvp_tenant_t, owning) : m->cat.placing;
}

void
kvp_evict_ahead(kvp_master_t *m)
{
    kvp_tenant_t *t = ahead_for(m);
    uint64_t reserve;

    if (t == NULL || kvp_evict_is_early(m)) return;
    reserve = kvp_min_u64(size_for(m, t) / AHEAD_SHARE, AHEAD_MAX);
    for (uint32_t i = 0; i < AHEAD_BATCH; i++) {
        uint32_t oid;

        if (free_for(m, t) >= reserve) return;
        oid = kvp_victim_next(&m->prot, t, KVP_OID_NONE);
        if (oid == KVP_OID_NONE) return;
        /* One that is larger than the reserve would cost more than it keeps ahead: its room is made when a put asks. */
        if (kvp_victim_bytes(&m->prot, oid) > reserve) return;
        kvp_share_look(m, t, kvp_victim_bytes(&m->prot, oid));
        kvp_evict_unit(m, oid);
    }
}
