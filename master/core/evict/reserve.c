/* SPDX-License-Identifier: Apache-2.0
 * The eviction reserve: a little space is freed before a put needs it, so that most puts in a full pool need not wait
 * for a node. The reserve is small, because evicting early costs cache hits. */
#include "master/core/evict/eviction.h"

#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/rebalance.h"
#include "master/core/evict/window.h"
#include "master/core/protect/candidates.h"

#define RESERVE_SHARE 500u /* the reserve is 1/500 of the pool */
#define RESERVE_MAX (64ull << 20) /* the reserve is at most this many bytes */
#define RESERVE_BATCH 64u /* limit of the victims that one call of kvp_evict_reserve evicts */

/* Returns the bytes of memory in which the tenant can put objects. With several tenants these are the tenant's own
 * chunks: the tenant cannot use free space in other tenants' chunks. */
static uint64_t
size_for(const kvp_evict_t *ev, const kvp_tenant_t *t)
{
    return ev->cat->owners_n == 1 ? ev->ctx->st.size_bytes : t->chunk_bytes;
}

/* Returns the free and retiring bytes in segments that puts skip at present: they are not part of the reserve.
 * With several tenants only the retiring bytes are counted. */
static uint64_t
stuck_bytes(const kvp_evict_t *ev)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < ev->cat->up_n && ev->cat->slow_n > 0; i++) {
        const kvp_segment_t *g = ev->cat->up[i];

        if (!kvp_segment_is_passed_over(ev->cat, g)) continue;
        bytes += g->retiring_bytes - g->quarantine_bytes + (ev->cat->owners_n == 1 ? g->size_bytes - g->used_bytes : 0);
    }
    return bytes;
}

static uint64_t
free_for(const kvp_evict_t *ev, const kvp_tenant_t *t)
{
    uint64_t going = ev->ctx->st.retiring_bytes - ev->ctx->st.quarantine_bytes;
    uint64_t busy = ev->cat->owners_n == 1 ? ev->ctx->st.used_bytes - going - ev->prot->doomed_bytes
                                           : t->used_bytes - t->going_bytes;

    if (ev->cat->owners_n > 1 && ev->cat->owned_bytes < ev->cat->known_bytes)
        return UINT64_MAX; /* a chunk without a tenant is free for any put */
    return size_for(ev, t) - kvp_min_u64(busy, size_for(ev, t));
}

/* Returns the tenant for which the reserve is kept: the only tenant with chunks, or the tenant of the last put. */
static kvp_tenant_t *
reserve_for(const kvp_evict_t *ev)
{
    return ev->cat->owners_n == 1 ? kvp_list_first(&ev->cat->owners, kvp_tenant_t, owning) : ev->cat->placing;
}

void
kvp_evict_reserve(kvp_evict_t *ev)
{
    kvp_tenant_t *t = reserve_for(ev);
    bool is_for_puts = ev->puts_seen != ev->ctx->st.put_begins;
    uint64_t reserve, stuck;

    ev->puts_seen = ev->ctx->st.put_begins;
    if (t == NULL || kvp_evict_is_early(ev)) return;
    reserve = kvp_min_u64(size_for(ev, t) / RESERVE_SHARE, RESERVE_MAX);
    stuck = stuck_bytes(ev);
    for (uint32_t i = 0; i < RESERVE_BATCH; i++) {
        uint32_t oid;

        if (free_for(ev, t) >= reserve + stuck) return;
        oid = kvp_victim_next(ev->prot, t, KVP_OID_NONE);
        if (oid == KVP_OID_NONE) return;
        /* A victim larger than the reserve would cost more hits than the reserve is worth: the next put evicts it. */
        if (kvp_victim_bytes(ev->prot, oid) > reserve) return;
        /* No put has come since the last call, so the reserve only serves loads from tiers. A load can wait, so a
         * victim that is not on a tier yet is written to a tier first, and evicted by a later call. */
        if (!is_for_puts && !kvp_evict_is_written(ev, oid)) return;
        kvp_rebalance_look(ev, t, kvp_victim_bytes(ev->prot, oid));
        kvp_evict_unit(ev, oid);
    }
}
