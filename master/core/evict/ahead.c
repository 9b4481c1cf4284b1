/* SPDX-License-Identifier: Apache-2.0
 * Writing ahead: what stands among the oldest of a tenant is written to the tier of its node while it is still in memory, so that eviction finds copies
 * that cost nothing to let go. A walk from the oldest end of the list; what is used, removed or evicted leaves the walked part, and then
 * the walk goes on.
 */
#include "master/core/evict/eviction.h"

#include "common/list.h"
#include "common/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/window.h"
#include "master/core/protect/candidates.h"
#include "master/core/space/tier.h"

#define AHEAD_SHARE 8u /* of a tenant's memory */
#define AHEAD_STEPS 64u /* objects a step */
#define ROOM_CANDIDATES 64u /* victims looked at to find some where a stage waits */

static bool
is_plain(const kvp_evict_t *ev, const kvp_obj_t *o)
{
    const kvp_objext_t *ext = kvp_obj_ext(ev->cat->index, o);

    return o->state == KVP_OBJ_COMMITTED && o->pin == KVP_PIN_NONE &&
           (ext == NULL || (ext->more_n == 0 && ext->member == NULL));
}

/* It is not worth an SSD's wear. */
static bool
is_unwanted(const kvp_evict_t *ev, const kvp_obj_t *o)
{
    return ev->ctx->conf.ssd_wants_use && o->is_used_since == 0;
}

/* Has it written, where that helps and is not under way. False: it cannot be yet. */
static bool
write_ahead(kvp_evict_t *ev, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    const kvp_segment_t *g = kvp_obj_chunk(ev->cat, o)->segment;
    bool has_tier = g->state == KVP_SEG_UP && g->tier != NULL && g->tier->state == KVP_SEG_UP;

    if (!has_tier || o->is_on_tier != 0 || o->is_moving != 0 || !is_plain(ev, o)) return true;
    if (is_unwanted(ev, o)) {
        ev->ctx->st.tier_unused++;
        return true;
    }
    if (g->moving_bytes > 0 && g->moving_bytes + kvp_obj_len(ev->cat, o) > KVP_DEMOTES_MAX) return false;
    kvp_tier_demote(ev->space, oid);
    return true;
}

/* False where it has to be written and cannot be yet. */
static bool
look_at(kvp_evict_t *ev, kvp_tenant_t *t, uint32_t oid)
{
    if (!is_plain(ev, kvp_obj(ev->cat->index, oid))) return true;
    if (!write_ahead(ev, oid)) return false;
    kvp_obj(ev->cat->index, oid)->is_ahead = 1;
    t->ahead_bytes += kvp_victim_bytes(ev->prot, oid);
    return true;
}

static void
walk(kvp_evict_t *ev, kvp_tenant_t *t)
{
    for (uint32_t left = AHEAD_STEPS; left > 0 && t->ahead_bytes < t->used_bytes / AHEAD_SHARE; left--) {
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

/* Evicts, in the policy's order, what lies where the first stages wait for room and is on the tier already, or is not wanted there; the rest is written
 * first, and goes without that only where a stage has waited for long. */
static void
make_room(kvp_evict_t *ev, kvp_segment_t *g)
{
    kvp_tenant_t *t = NULL;
    bool is_late = false;
    uint64_t wanted = kvp_tier_stage_room(ev->space, g, &t, &is_late);
    uint64_t going = g->retiring_bytes - g->quarantine_bytes, bytes;
    uint32_t after = KVP_OID_NONE, unwritten = KVP_OID_NONE, oid;

    for (uint32_t i = 0; i < ROOM_CANDIDATES && going < wanted; i++) {
        oid = kvp_victim_next(ev->prot, t, after);
        if (oid == KVP_OID_NONE) break;
        const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);

        if (kvp_obj_chunk(ev->cat, o)->segment == g && (kvp_obj_tier(ev->cat, o) != NULL || is_unwanted(ev, o))) {
            bytes = kvp_victim_bytes(ev->prot, oid);
            kvp_evict_unit(ev, oid);
            going += bytes;
            continue;
        }
        if (kvp_obj_chunk(ev->cat, o)->segment == g && o->is_moving == 0) {
            if (unwritten == KVP_OID_NONE) unwritten = oid;
            if (!is_late) (void)write_ahead(ev, oid);
        }
        after = oid;
    }
    if (going == 0 && is_late && unwritten != KVP_OID_NONE) kvp_evict_unit(ev, unwritten);
}

void
kvp_evict_for_tiers(kvp_evict_t *ev)
{
    if (ev->space->tiers_n == 0 || kvp_evict_is_early(ev)) return;
    kvp_list_foreach_safe (pos, tmp, &ev->space->sending) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, sending);

        if (g->state == KVP_SEG_UP) kvp_tier_place_stages(ev->space, g);
        if (kvp_list_is_empty(&g->stages))
            g->room_ns = 0;
        else if (g->state == KVP_SEG_UP)
            make_room(ev, g);
    }
    if (ev->cat->owners_n == 1)
        walk(ev, kvp_list_first(&ev->cat->owners, kvp_tenant_t, owning));
    else if (ev->cat->placing != NULL)
        walk(ev, ev->cat->placing);
}

void
kvp_evict_ahead_tick(kvp_evict_t *ev)
{
    if (ev->space->tiers_n == 0) return;
    kvp_list_foreach (pos, &ev->cat->owners)
        walk(ev, kvp_list_entry(pos, kvp_tenant_t, owning));
}
