/* SPDX-License-Identifier: Apache-2.0
 * Makes room in memory for loads from a tier. An object can be loaded only into the memory of the node that has it on
 * its SSD, so the victims are chosen in this node's segment: first loaded objects over their share, then the oldest
 * of a sample of extents. The sample moves round the segment, so the cost of finding a victim depends neither on the
 * number of nodes nor of objects.
 *
 * Design notes. Loads do not displace objects that are only in memory: objects that are on the tier too are evicted
 * first. If a sample has none, its oldest objects are written back, and the search stays there until they are
 * written. Only a load that has waited long evicts unwritten objects. */
#include "master/core/evict/eviction.h"

#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/window.h"
#include "master/core/protect/candidates.h"
#include "master/core/space/moving.h"
#include "master/core/space/segment.h"
#include "master/core/space/tier.h"

#define LOOKED_AT 1024u /* limit of the extents that one search for victims in a segment examines */
#define LOADS 64u /* limit of the loads for which one call of make_room evicts objects */
#define COLD_LOOKED_AT 16u /* limit of the loaded objects that are examined to find a victim in this segment */
#define AGAIN_NS KVP_MS(1) /* pause after a search without success */
#define WRITTEN_NS KVP_MS(10) /* pause of the search for victims after it began to write objects back */
/* after this time without room, the space evicted for loads is not counted as theirs any more */
#define STUCK_NS KVP_MS(20)
#define LATE_NS KVP_MS(200) /* after this time without room, the first load also evicts objects not on the tier */

/* Evicts the oldest object that was loaded into this segment and not used since, if such objects exceed their share.
 * Returns false if no object was evicted. */
static bool
evict_cold(kvp_evict_t *ev, const kvp_segment_t *g, kvp_tenant_t *t, uint64_t *bytes_out)
{
    uint32_t oid = KVP_OID_NONE;

    if (!kvp_victim_is_cold_over(ev->prot, t)) return false;
    for (uint32_t left = COLD_LOOKED_AT; left > 0; left--) {
        oid = kvp_victim_cold(ev->prot, t, oid);
        if (oid == KVP_OID_NONE) return false;
        if (kvp_obj_chunk(ev->cat, kvp_obj(ev->cat->index, oid))->segment != g) continue;
        *bytes_out = kvp_victim_bytes(ev->prot, oid);
        kvp_evict_unit(ev, oid);
        return true;
    }
    return false;
}

static kvp_evict_wish_t
wish_of(const kvp_evict_t *ev, const kvp_moving_t *mv, kvp_spares_t spares)
{
    uint32_t oid;
    const kvp_obj_t *o = kvp_moving_object(ev->space, mv, &oid);

    if (o == NULL) kvp_panic("a load of an object that is gone");
    return (kvp_evict_wish_t){.tenant = kvp_obj_tenant(ev->cat, o),
                              .over = KVP_OID_NONE,
                              .len = mv->len,
                              .key_len = kvp_obj_key_len(ev->cat->index, o),
                              .spares = spares,
                              .free_age = UINT32_MAX};
}

/* Evicts until one load has room. *going is the number of evicted bytes that no earlier load needs; *left is the
 * number of extents that the search may still examine. Returns false if no victim was found. */
static bool
evict_for(kvp_evict_t *ev, kvp_segment_t *g, const kvp_moving_t *mv, kvp_spares_t spares, uint64_t *going,
          uint32_t *left)
{
    uint64_t need = kvp_extent_bytes(mv->len), bytes;
    const kvp_evict_wish_t wish = wish_of(ev, mv, spares);

    while (*going < need) {
        if (!evict_cold(ev, g, wish.tenant, &bytes) && !kvp_evict_in_segment(ev, g, &wish, left, &bytes)) return false;
        *going += bytes;
        g->room_bytes += bytes;
    }
    *going -= need;
    return true;
}

/* Begins to write back the oldest objects in the next extents, as many bytes as the first loads need. The next search
 * starts at the same position, to evict these objects. Returns false if no object is to be written. */
static bool
write_for(kvp_evict_t *ev, kvp_segment_t *g, uint32_t *left)
{
    kvp_scan_t begin = g->room_scan;
    uint32_t n = 0;

    kvp_list_foreach (pos, &g->stages) {
        const kvp_evict_wish_t wish = wish_of(ev, kvp_list_entry(pos, kvp_moving_t, link), KVP_SPARES_UNWRITABLE);
        uint64_t bytes;

        if (n == LOADS || !kvp_evict_in_segment(ev, g, &wish, left, &bytes)) break;
        n++;
    }
    if (n > 0) g->room_scan = begin;
    return n > 0;
}

static void
make_room(kvp_evict_t *ev, kvp_segment_t *g)
{
    uint64_t waits_ns = kvp_tier_load_waits_ns(ev->space, g), bytes = g->placed_bytes, going;
    uint32_t left = LOOKED_AT;
    kvp_scan_t begin = g->room_scan;
    const kvp_moving_t *first;
    bool has_found = true;
    uint32_t n = 0;

    if (ev->ctx->now_ns < g->room_next_ns || ev->ctx->slice_left == 0 || !KVP_RULE(LOAD_ROOM)) return;
    g->room_bytes = waits_ns > STUCK_NS ? 0 : kvp_min_u64(g->room_bytes, g->retiring_bytes - g->quarantine_bytes);
    going = g->room_bytes;
    kvp_list_foreach (pos, &g->stages) {
        const kvp_moving_t *mv = kvp_list_entry(pos, kvp_moving_t, link);

        bytes += mv->len;
        if (n == LOADS || !kvp_tier_may_place(g, bytes)) break;
        has_found = evict_for(ev, g, mv, KVP_SPARES_UNWRITTEN, &going, &left);
        if (!has_found) break;
        n++;
    }
    kvp_ctx_spend(ev->ctx, LOOKED_AT - left);
    if (has_found || n > 0) return;
    g->room_next_ns = ev->ctx->now_ns + AGAIN_NS;
    if (going > 0) return;
    first = kvp_list_first(&g->stages, kvp_moving_t, link);
    g->room_scan = begin;
    left = LOOKED_AT;
    if (waits_ns > LATE_NS && first->kind != KVP_MOVING_THROUGH)
        (void)evict_for(ev, g, first, KVP_SPARES_NONE, &going, &left);
    else if (write_for(ev, g, &left))
        g->room_next_ns = ev->ctx->now_ns + WRITTEN_NS;
    kvp_ctx_spend(ev->ctx, LOOKED_AT - left);
}

/* Makes room for loads in the segment. A segment that used a part of the step's budget goes to the end of the list,
 * because a segment without victims would otherwise use up the budget of every step. */
static void
make_room_in_turn(kvp_evict_t *ev, kvp_segment_t *g)
{
    uint32_t before = ev->ctx->slice_left;

    make_room(ev, g);
    if (ev->ctx->slice_left == before) return;
    kvp_list_del(&g->sending);
    kvp_list_add_tail(&ev->space->sending, &g->sending);
}

void
kvp_evict_for_tiers(kvp_evict_t *ev)
{
    if (ev->space->tiers_n == 0 || kvp_evict_is_early(ev)) return;
    kvp_list_foreach_safe (pos, tmp, &ev->space->sending) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, sending);

        if (kvp_segment_loads(g)) kvp_tier_place_stages(ev->space, g);
        if (kvp_list_is_empty(&g->stages))
            g->room_ns = g->room_next_ns = 0;
        else if (kvp_segment_loads(g))
            make_room_in_turn(ev, g);
    }
    kvp_evict_write_ahead(ev);
}
