/* SPDX-License-Identifier: Apache-2.0
 * Evicts an object, alone or with its group. The members of a group are dropped in slices. */
#include "master/core/evict/eviction.h"

#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/space/drop.h"
#include "master/core/space/place.h"

void
kvp_evict_one(kvp_evict_t *ev, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    kvp_segment_t *g = kvp_obj_chunk(ev->cat, o)->segment;
    const kvp_cause_t cause = kvp_evict_cause(ev, o);

    ev->ctx->st.evictions++;
    g->evictions++;
    ev->ctx->st.evict_beside_free += kvp_place_elsewhere(ev->space, kvp_obj_tenant(ev->cat, o)) > 0;
    ev->ctx->st.evicted_bytes += kvp_obj_len(ev->cat, o);
    ev->ctx->st.evicted_age_ms += kvp_ages_age(&ev->cat->ages, kvp_obj_version(o), ev->ctx->now_ns) / KVP_MS(1);
    if (kvp_obj_tier(ev->cat, o) != NULL) {
        kvp_obj_leave_memory(ev->space, oid);
        return;
    }
    ev->ctx->st.tier_missed += g->tier != NULL && g->drain == NULL;
    if (cause == KVP_CAUSE_EVICTED_UNWRITTEN) kvp_ctx_count_fault(ev->ctx, &ev->ctx->unwritten, g->id);
    kvp_obj_drop(ev->space, oid, cause, 0, NULL);
}

void
kvp_evict_unit(kvp_evict_t *ev, uint32_t oid)
{
    kvp_group_evict(ev->prot, oid, ev->is_for_drain ? KVP_CAUSE_EVICTED_FOR_DRAIN : KVP_CAUSE_EVICTED);
    kvp_evict_one(ev, oid);
}

static void
drop_doomed(kvp_evict_t *ev)
{
    uint32_t oid;

    while (ev->ctx->slice_left > 0 && (oid = kvp_group_next_doomed(ev->prot, KVP_OID_NONE)) != KVP_OID_NONE) {
        if (kvp_group_member(ev->cat, kvp_obj(ev->cat->index, oid))->group->cause != KVP_CAUSE_GROUP_ENDED)
            kvp_evict_one(ev, oid);
        else
            kvp_obj_drop(ev->space, oid, KVP_CAUSE_GROUP_ENDED, 0, NULL);
        kvp_ctx_space_news(ev->ctx);
    }
}

void
kvp_groups_tick(kvp_evict_t *ev)
{
    kvp_groups_settle(ev->prot);
    drop_doomed(ev);
}
