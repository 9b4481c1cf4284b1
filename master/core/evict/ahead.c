/* SPDX-License-Identifier: Apache-2.0
 * Write-back: the oldest objects of a tenant are written to their node's SSD tier while they are still in memory, so
 * that eviction finds objects that need no write. A walk goes from the oldest end of the tenant's list of candidates.
 * An object that is used, removed or evicted leaves the walked part of the list, and then the walk continues. */
#include "master/core/evict/eviction.h"

#include "common/list.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/candidates.h"
#include "master/core/space/segment.h"
#include "master/core/space/tier.h"

#define AHEAD_SHARE 8u /* write back the oldest 1/8 of a tenant's used bytes */
#define AHEAD_SHARE_MOST 2u /* after many recent puts, write back at most the oldest 1/2 of the used bytes */
#define AHEAD_STEPS 64u /* limit of the objects that one call of walk_oldest examines */
#define FADE_SHARE 512u /* each tick, tenant->ahead_more shrinks by 1/512 of its value */

static bool
is_plain(const kvp_evict_t *ev, const kvp_obj_t *o)
{
    const kvp_objext_t *ext = kvp_obj_ext(ev->cat->index, o);

    return o->state == KVP_OBJ_COMMITTED && o->pin == KVP_PIN_NONE &&
           (ext == NULL || (ext->more_n == 0 && ext->member == NULL));
}

/* Returns true if the object is not worth a write to an SSD, because it was not read since its put. */
static bool
is_unwanted(const kvp_evict_t *ev, const kvp_obj_t *o)
{
    return ev->ctx->conf.ssd_wants_use && o->is_used_since == 0;
}

bool
kvp_evict_costs_nothing(const kvp_evict_t *ev, const kvp_obj_t *o)
{
    return kvp_obj_tier(ev->cat, o) != NULL || is_unwanted(ev, o);
}

bool
kvp_evict_can_be_written(const kvp_evict_t *ev, const kvp_obj_t *o)
{
    const kvp_segment_t *g = kvp_obj_chunk(ev->cat, o)->segment;

    /* an object that is to leave the node is not written to the node's SSD any more */
    return g->drain == NULL && kvp_segment_loads(g) && g->tier != NULL && g->tier->state == KVP_SEG_UP &&
           is_plain(ev, o);
}

kvp_cause_t
kvp_evict_cause(const kvp_evict_t *ev, const kvp_obj_t *o)
{
    const kvp_segment_t *g = kvp_obj_chunk(ev->cat, o)->segment;
    const kvp_member_t *mb = kvp_group_member(ev->cat, o);

    if (ev->is_for_drain || (mb != NULL && mb->group->cause == KVP_CAUSE_EVICTED_FOR_DRAIN))
        return KVP_CAUSE_EVICTED_FOR_DRAIN;
    if (g->tier == NULL || g->drain != NULL) return KVP_CAUSE_EVICTED;
    if (!is_plain(ev, o)) return KVP_CAUSE_EVICTED_MEMORY_ONLY;
    return is_unwanted(ev, o) ? KVP_CAUSE_EVICTED_UNUSED : KVP_CAUSE_EVICTED_UNWRITTEN;
}

/* Queues the object's write to its tier, unless the object is there, is moving, or cannot be written. Returns false if
 * too many bytes are being written already. */
static bool
write_ahead(kvp_evict_t *ev, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    const kvp_segment_t *g = kvp_obj_chunk(ev->cat, o)->segment;
    uint64_t writing = g->moving_bytes - g->loading_bytes;

    if (o->is_on_tier != 0 || o->is_moving != 0 || !kvp_evict_can_be_written(ev, o)) return true;
    if (is_unwanted(ev, o)) {
        ev->ctx->st.tier_unused++;
        return true;
    }
    if (writing > 0 && writing + kvp_obj_len(ev->cat, o) > KVP_DEMOTES_MAX) return false;
    kvp_tier_demote(ev->space, oid);
    return true;
}

/* Examines an object and queues its write to its tier. Returns false if a needed write cannot be queued yet. */
static bool
look_at(kvp_evict_t *ev, kvp_tenant_t *t, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(ev->cat->index, oid);

    if (!is_plain(ev, o)) return true;
    if (!write_ahead(ev, oid)) return false;
    if (o->is_ahead == 0)
        t->ahead_bytes += kvp_victim_bytes(ev->prot, oid); /* otherwise an earlier walk has counted the object */
    o->is_ahead = 1;
    return true;
}

/* Returns the bytes at the old end of the list that the walk must cover: 1/8 of the tenant's used bytes, plus the bytes
 * being written, plus recently put bytes, as a slow device lags by as much; at most 1/2 of the used bytes. */
static uint64_t
wanted_bytes(const kvp_evict_t *ev, const kvp_tenant_t *t)
{
    return kvp_min_u64(t->used_bytes / AHEAD_SHARE + t->ahead_more + ev->space->writing_bytes,
                       t->used_bytes / AHEAD_SHARE_MOST);
}

static void
walk_oldest(kvp_evict_t *ev, kvp_tenant_t *t)
{
    uint64_t wanted = wanted_bytes(ev, t);

    for (uint32_t left = AHEAD_STEPS; left > 0 && t->ahead_bytes < wanted; left--) {
        uint32_t next = t->ahead == KVP_OID_NONE ? t->lru.oldest : kvp_obj(ev->cat->index, t->ahead)->next;

        if (next == KVP_OID_NONE || ev->ctx->slice_left == 0 || !look_at(ev, t, next)) return;
        t->ahead = next;
        kvp_ctx_spend(ev->ctx, 1);
    }
}

bool
kvp_evict_is_written(kvp_evict_t *ev, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);

    (void)write_ahead(ev, oid);
    return o->is_moving == 0;
}

void
kvp_evict_write_moved(kvp_evict_t *ev, uint32_t oid)
{
    kvp_obj(ev->cat->index, oid)->is_used_since = 1; /* another SSD wanted it; the write resets the flag */
    (void)write_ahead(ev, oid);
}

void
kvp_evict_write_ahead(kvp_evict_t *ev)
{
    if (ev->cat->owners_n == 1)
        walk_oldest(ev, kvp_list_first(&ev->cat->owners, kvp_tenant_t, owning));
    else if (ev->cat->placing != NULL)
        walk_oldest(ev, ev->cat->placing);
}

void
kvp_evict_ahead_tick(kvp_evict_t *ev)
{
    if (ev->space->tiers_n == 0) return;
    kvp_list_foreach (pos, &ev->cat->owners) {
        kvp_tenant_t *t = kvp_list_entry(pos, kvp_tenant_t, owning);

        t->ahead_more -= t->ahead_more / FADE_SHARE;
        walk_oldest(ev, t);
    }
}
