/* SPDX-License-Identifier: Apache-2.0
 * Drains. A walk over the extents of the draining segment begins a copy of each object, in slices. Walks are repeated
 * until no object is left. After each walk, objects that only the node's SSD has are loaded into the memory that became
 * free, and the next walk copies them. If no other segment has free space, objects that an SSD there has are evicted
 * from memory, or else the tenant's oldest object in any segment, as in a pool with one list of all objects. */
#include "master/core/evict/drain.h"

#include "common/mutate.h"
#include "proto/jrec.h"
#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/base/slab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/tasks.h"
#include "master/core/evict/window.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/leaving.h"
#include "master/core/space/copy.h"
#include "master/core/space/moving.h"
#include "master/core/space/segment.h"
#include "master/core/space/tier.h"

#define OBJECTS_PER_S 20000u
#define FILL_MS 100u /* a drain that paused for longer than this does not catch up on the rate of the pause */
#define SLOTS_A_TICK 4096u
#define SLOTS_A_RECORD 16u /* examining this many empty slots costs as much of the budget as handling one record */
#define TRIES 8u /* limit of the segments with enough free bytes that are tried as target of one copy */
#define PAUSE_MIN_NS KVP_MS(20) /* pause after a walk; doubled while no object leaves */
#define PAUSE_MAX_NS KVP_MS(5000)
/* loads from the SSD fill at most 1/2 of the draining memory: the rest is for loads that readers ask for */
#define LOADED_SHARE 2u
/* limit of the extents that are evicted or written in one tick to make room on a node with an SSD */
#define WINDOWS_A_TICK 16u
#define WINDOWS_LOOKED_AT 1024u /* limit of the extents that one search for such extents examines */
/* limit of the softly pinned objects that one search for a victim examines: a drain evicts only those of its object's
 * tenant, and passes over the others; a put evicts those of any tenant */
#define PINNED_LOOKED_AT 64u
#define VICTIMS_A_TICK 64u /* limit of the objects and groups that one drain evicts in a tick */
/* after this time without an eviction, the drain does not wait for writes to SSDs any more */
#define ROOM_WAIT_NS KVP_MS(10000)

void
kvp_drain_begin(kvp_evict_t *ev, kvp_segment_t *g, uint32_t flags, uint64_t bytes_per_s, uint64_t deadline_ns)
{
    kvp_segment_drain(ev->space, g, flags | KVP_JREC_DRAINING, bytes_per_s);
    g->drain->deadline_ns = deadline_ns;
    (void)kvp_evict_leave_segment(ev, g);
    kvp_record_drain(ev->cat, g);
    g->drain->after = ev->space->drain_end = ev->cat->log->end;
}

void
kvp_drain_end(kvp_evict_t *ev, kvp_segment_t *g)
{
    if (g->drain == NULL) return;
    kvp_segment_drain(ev->space, g, 0, 0);
    kvp_record_drain(ev->cat, g);
    ev->space->drain_end = ev->cat->log->end;
}

bool
kvp_drain_is_durable(const kvp_space_t *sp, const kvp_segment_t *g)
{
    return (g->drain != NULL ? g->drain->after : sp->drain_end) <= sp->log->synced;
}

/* ---- the rate */
/* Sets how much may be moved until the next tick. All drains share the rate. */
static void
fill_up(const kvp_evict_t *ev, kvp_drain_t *d)
{
    uint64_t ms = kvp_min_u64((ev->ctx->now_ns - d->filled_ns) / KVP_MS(1), FILL_MS);
    uint64_t rate = d->bytes_per_s == 0 ? KVP_DRAIN_BYTES_PER_S : d->bytes_per_s, n = ev->space->drains_n;
    int64_t bytes = (int64_t)(kvp_min_u64(rate, 1ull << 40) * ms / 1000 / n);

    if (ms == 0) return;
    d->filled_ns = ev->ctx->now_ns;
    /* a large object may have exceeded the limit: the following objects wait for it */
    d->bytes_left = bytes + (d->bytes_left < 0 ? d->bytes_left : 0);
    d->objects_left = (int64_t)(OBJECTS_PER_S * ms / 1000 / n);
}

/* ---- one object */
static uint64_t
free_bytes(const kvp_segment_t *g)
{
    return g->size_bytes - g->used_bytes;
}

/* Returns true if the object has a record on its node's SSD, and the drain also empties the SSD. */
static bool
leaves_ssd(const kvp_evict_t *ev, const kvp_drain_t *d, const kvp_obj_t *o)
{
    return (d->flags & KVP_JREC_DRAIN_SSD) != 0 && kvp_obj_tier(ev->cat, o) != NULL;
}

/* Returns true if the node's SSD has so many writes to do that no object with a record on an SSD should be copied to
 * it. */
static bool
is_writing_much(const kvp_segment_t *g)
{
    return g->tier != NULL && g->moving_bytes - g->loading_bytes + g->copying_bytes > KVP_DEMOTES_MAX;
}

/* Begins a copy in a segment that accepts puts: the emptier of two neighbours in a list, or one of the segments after
 * them. NO_SPACE: no segment that was tried has room; NO_SEGMENT: no segment can take the copy. */
static kvp_err_t
begin_copy(kvp_evict_t *ev, const kvp_drain_t *d, uint32_t oid, const kvp_place_t *places, uint32_t n,
           const kvp_place_t *from)
{
    const uint32_t up_n = ev->cat->up_n;
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    const uint64_t bytes = kvp_extent_bytes(kvp_obj_len(ev->cat, o));
    const bool is_from_ssd = leaves_ssd(ev, d, o);
    uint32_t at = up_n == 0 ? 0 : (uint32_t)(kvp_ctx_random(ev->ctx) % up_n), tries = 0;
    kvp_err_t err = KVP_NO_SEGMENT;

    if (up_n > 1 && free_bytes(ev->cat->up[(at + 1) % up_n]) > free_bytes(ev->cat->up[at])) at++;
    kvp_ctx_spend(ev->ctx, up_n / SLOTS_A_RECORD);
    for (uint32_t i = 0; i < up_n && tries < TRIES; i++) {
        kvp_segment_t *g = ev->cat->up[(at + i) % up_n];
        kvp_err_t tried;

        if (!kvp_task_can_take(ev, g, bytes, places, n)) continue;
        if (err == KVP_NO_SEGMENT) err = KVP_NO_SPACE;
        if (free_bytes(g) < bytes) continue;
        if (is_from_ssd && is_writing_much(g)) {
            err = KVP_RETRY_AFTER;
            continue;
        }
        tried = kvp_copy_begin(ev->space, oid, from, g);
        if (tried == KVP_OK) return KVP_OK;
        if (err != KVP_RETRY_AFTER) err = tried;
        tries++;
    }
    return err;
}

static void
note_stay(kvp_drain_t *d, kvp_stays_t why)
{
    d->stays[why]++;
}

/* Makes room for the object in one segment whose node has an SSD. It evicts objects from memory that the SSD has; if
 * there are none, it begins to write others to the SSD. So no object leaves the pool. Returns false if the segment has
 * neither. */
static bool
make_room_in(kvp_evict_t *ev, kvp_drain_t *d, kvp_segment_t *g, kvp_evict_wish_t *wish)
{
    const kvp_scan_t begin = g->room_scan;
    uint32_t left = WINDOWS_LOOKED_AT, n = 0;
    uint64_t bytes;

    if (g->retiring_bytes - g->quarantine_bytes >= kvp_extent_bytes(wish->len)) return true;
    wish->spares = KVP_SPARES_UNWRITTEN;
    while (n < WINDOWS_A_TICK && kvp_evict_in_segment(ev, g, wish, &left, &bytes))
        n++;
    kvp_ctx_spend(ev->ctx, WINDOWS_LOOKED_AT - left);
    if (n > 0) {
        d->room_ns = ev->ctx->now_ns;
        return true;
    }
    if (ev->ctx->now_ns - d->room_ns > ROOM_WAIT_NS) return false;
    g->room_scan = begin;
    left = WINDOWS_LOOKED_AT;
    wish->spares = KVP_SPARES_UNWRITABLE;
    while (n < WINDOWS_A_TICK && kvp_evict_in_segment(ev, g, wish, &left, &bytes))
        n++;
    g->room_scan = begin; /* the next search begins here again, and finds the written objects */
    kvp_ctx_spend(ev->ctx, WINDOWS_LOOKED_AT - left);
    return n > 0 || g->moving_bytes > g->loading_bytes;
}

static bool
make_room_beside_ssd(kvp_evict_t *ev, kvp_drain_t *d, uint32_t oid, const kvp_place_t *places, uint32_t n)
{
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    const uint64_t len = kvp_obj_len(ev->cat, o);
    const uint32_t up_n = ev->cat->up_n, at = up_n == 0 ? 0 : (uint32_t)(kvp_ctx_random(ev->ctx) % up_n);
    kvp_evict_wish_t wish = {.tenant = kvp_obj_tenant(ev->cat, o),
                             .over = KVP_OID_NONE,
                             .len = len,
                             .key_len = kvp_obj_key_len(ev->cat->index, o),
                             .free_age = UINT32_MAX};

    if (d->room_ns == 0) d->room_ns = ev->ctx->now_ns;
    for (uint32_t i = 0, tries = 0; i < up_n && tries < TRIES; i++) {
        kvp_segment_t *g = ev->cat->up[(at + i) % up_n];

        if (g->tier == NULL || g->tier->state != KVP_SEG_UP) continue;
        if (!kvp_task_can_take(ev, g, kvp_extent_bytes(len), places, n)) continue;
        if (make_room_in(ev, d, g, &wish)) return true;
        tries++;
    }
    return false;
}

/* Returns the object to evict for one of this tenant: the tenant's oldest; for a hard-pinned object it may be a softly
 * pinned one, as for a put. KVP_OID_NONE = no object may be evicted. */
static uint32_t
find_victim(kvp_evict_t *ev, kvp_tenant_t *t, bool is_hard)
{
    uint32_t unit = kvp_victim_next(ev->prot, t, KVP_OID_NONE), left = PINNED_LOOKED_AT;

    if (unit != KVP_OID_NONE || !is_hard || t->lru.n > 0) return unit;
    do
        unit = kvp_victim_behind(ev->prot, &ev->prot->pinned, unit);
    while (unit != KVP_OID_NONE && kvp_obj_tenant(ev->cat, kvp_obj(ev->cat->index, unit)) != t && --left > 0);
    return left > 0 ? unit : KVP_OID_NONE;
}

static void
evict_for_drain(kvp_evict_t *ev, kvp_drain_t *d, uint32_t unit)
{
    kvp_obj_t *o = kvp_obj(ev->cat->index, unit);
    const kvp_segment_t *g = kvp_obj_chunk(ev->cat, o)->segment;
    const kvp_member_t *mb = kvp_group_member(ev->cat, o);

    d->evicted += mb != NULL && mb->group->lead == unit ? mb->group->committed_n : 1;
    d->evicted_bytes += kvp_victim_bytes(ev->prot, unit);
    ev->ctx->st.evict_foreground++;
    /* otherwise only the SSD of the draining node would have the object, and the drain would load it again */
    if (g->drain != NULL && leaves_ssd(ev, g->drain, o)) kvp_tier_leave(ev->space, o, false, NULL);
    ev->is_for_drain = true;
    kvp_evict_unit(ev, unit);
    ev->is_for_drain = false;
}

/* Evicts the tenant's oldest object, and more of them until as many bytes become free as the drain may move in this
 * tick, so that the drain of a full pool is as fast as its rate. Objects of the draining segment are evicted, too, and
 * need no room then. Returns false if no object may be evicted. */
static bool
evict_oldest(kvp_evict_t *ev, const kvp_segment_t *g, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    kvp_tenant_t *t = kvp_obj_tenant(ev->cat, o);
    const bool is_hard = kvp_victim_is_hard(o, kvp_group_member(ev->cat, o));
    const uint64_t rate = (uint64_t)g->drain->bytes_left;

    for (uint32_t n = 0; n < VICTIMS_A_TICK; n++) {
        uint32_t unit;

        if (n > 0 && ev->cat->coming_bytes >= kvp_min_u64(rate, g->used_bytes - g->retiring_bytes)) break;
        unit = find_victim(ev, t, is_hard);
        if (unit == KVP_OID_NONE) return n > 0;
        evict_for_drain(ev, g->drain, unit);
    }
    return true;
}

/* Looks at the object in one extent of the draining segment. Returns false if the walk must wait here. */
static bool
look_at(kvp_evict_t *ev, kvp_segment_t *g, kvp_chunk_t *c, uint32_t slot)
{
    const uint32_t oid = kvp_slab_owner(c->slab, slot);
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    kvp_drain_t *d = g->drain;
    bool has_other = false;
    uint32_t n, at;
    kvp_err_t err;

    kvp_ctx_spend(ev->ctx, 1);
    if (o->state != KVP_OBJ_COMMITTED) {
        note_stay(d, KVP_STAYS_UNFINISHED);
        return true;
    }
    n = kvp_obj_places(ev->cat, o, places);
    at = kvp_place_at(places, c, slot);
    if (kvp_obj_version(o) <= kvp_obj_tenant(ev->cat, o)->min_version || kvp_copy_of(ev->space, o) != NULL) return true;
    if (o->is_moving != 0) return true; /* an SSD must answer first whether it has the object */
    if (o->has_ext && kvp_obj_ext(ev->cat->index, o)->leaving == places[at].generation) {
        if (o->tickets > 0) {
            note_stay(d, KVP_STAYS_HELD);
            d->held_oid = oid;
        }
        (void)kvp_leaving_begin(ev->prot, oid, &places[at], d->deadline_ns); /* the time limit may be new */
        return true;
    }
    for (uint32_t i = 0; i < n; i++) {
        const kvp_segment_t *other = kvp_place_chunk(ev->cat, &places[i])->segment;

        has_other |= i != at && other->state != KVP_SEG_LOST && other->drain == NULL;
    }
    d->objects_left--;
    if (has_other) {
        (void)kvp_leaving_begin(ev->prot, oid, &places[at], d->deadline_ns);
        return true;
    }
    err = n < KVP_REPLICAS_MAX ? begin_copy(ev, d, oid, places, n, &places[at]) : KVP_NO_SEGMENT;
    if (err == KVP_OK) d->bytes_left -= (int64_t)kvp_obj_len(ev->cat, o);
    if (err == KVP_NO_SEGMENT) note_stay(d, KVP_STAYS_NO_NODE);
    if (err == KVP_NO_SPACE && (d->flags & KVP_JREC_DRAIN_NO_EVICT) == 0 && !kvp_evict_is_early(ev) &&
        (make_room_beside_ssd(ev, d, oid, places, n) || evict_oldest(ev, g, oid)))
        return false;
    if (err == KVP_NO_SPACE) {
        note_stay(d, KVP_STAYS_NO_ROOM);
        d->no_room_bytes += kvp_extent_bytes(kvp_obj_len(ev->cat, o));
    }
    return err != KVP_RETRY_AFTER;
}

/* ---- what only the SSD has */
static bool
may_load(const kvp_segment_t *g, uint64_t len)
{
    if (g->used_bytes + g->loading_bytes == 0) return true;
    return (g->loading_bytes == 0 || g->loading_bytes + len <= KVP_COPYING_MAX) &&
           g->used_bytes + g->loading_bytes + len <= g->size_bytes / LOADED_SHARE;
}

/* Begins to load objects that only the SSD has, while there is room for them. Returns false if the search for such
 * objects must continue in the next tick. */
static bool
load_some(kvp_evict_t *ev, kvp_segment_t *g, uint32_t *left)
{
    kvp_drain_t *d = g->drain;
    const kvp_segment_t *t = g->tier;
    uint32_t oid;

    if ((d->flags & KVP_JREC_DRAIN_SSD) == 0 || t == NULL || t->objects == 0) return true;
    if (t->state == KVP_SEG_LOST) {
        d->stays[KVP_STAYS_UNREAD] = t->objects;
        return true;
    }
    while (ev->ctx->slice_left > 0 &&
           (oid = kvp_objindex_walk(ev->cat->index, &d->oid, KVP_OID_NONE, left)) != KVP_OID_NONE) {
        const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);

        if (*left % SLOTS_A_RECORD == 0) kvp_ctx_spend(ev->ctx, 1);
        if (o->state != KVP_OBJ_COMMITTED || o->is_moving != 0 || !kvp_obj_is_on_tier_alone(ev->cat, o) ||
            kvp_obj_chunk(ev->cat, o)->segment != t || kvp_obj_version(o) <= kvp_obj_tenant(ev->cat, o)->min_version)
            continue;
        if (!kvp_obj_is_on_tier_up(ev->cat, o)) {
            note_stay(d, KVP_STAYS_UNREAD);
        } else if (!may_load(g, kvp_obj_len(ev->cat, o)) || !kvp_tier_stage(ev->space, oid, NULL)) {
            d->oid = oid;
            return true;
        } else {
            kvp_moving_of(ev->space, o)->kind = KVP_MOVING_THROUGH;
        }
    }
    if (d->oid < kvp_obj_limit(ev->cat->index)) return false;
    d->oid = 0;
    return true;
}

/* ---- the walk */
/* Ends a walk over the segment. The next walk begins soon if objects have left since the last one, otherwise after a
 * pause, which doubles each time. */
static void
end_walk(const kvp_evict_t *ev, const kvp_segment_t *g)
{
    kvp_drain_t *d = g->drain;
    const uint64_t left = d->moved + d->evicted - (g->tier == NULL ? 0 : g->tier->objects);

    d->pause_ns =
        left != d->had_left ? PAUSE_MIN_NS : kvp_min_u64(kvp_max_u64(2 * d->pause_ns, PAUSE_MIN_NS), PAUSE_MAX_NS);
    d->next_ns = ev->ctx->now_ns + d->pause_ns;
    for (uint32_t i = 0; i < KVP_STAYS_N; i++) {
        d->stayed[i] = d->stays[i];
        d->stays[i] = 0;
    }
    d->had_no_room_bytes = d->no_room_bytes;
    d->no_room_bytes = 0;
    d->had_left = left;
    d->chunk = d->slot = 0;
}

static void
walk_some(kvp_evict_t *ev, kvp_segment_t *g)
{
    kvp_drain_t *d = g->drain;

    for (uint32_t left = SLOTS_A_TICK; left > 0 && ev->ctx->slice_left > 0; left--) {
        kvp_chunk_t *c = d->chunk < g->chunk_n ? &g->chunks[d->chunk] : NULL;
        uint32_t owner;

        if (c == NULL) {
            if (load_some(ev, g, &left)) end_walk(ev, g);
            return;
        }
        if (d->bytes_left <= 0 || d->objects_left <= 0) return;
        if (c->slab == NULL || d->slot >= kvp_slab_slots_high(c->slab)) {
            d->slot = 0;
            d->chunk++;
            continue;
        }
        owner = kvp_slab_owner(c->slab, d->slot);
        if (left % SLOTS_A_RECORD == 0) kvp_ctx_spend(ev->ctx, 1);
        if (owner != KVP_SLAB_NONE && (owner & KVP_RETIRING_BIT) == 0 && !look_at(ev, g, c, d->slot)) {
            d->next_ns = ev->ctx->now_ns + KVP_TICK_NS;
            return;
        }
        d->slot++;
    }
}

void
kvp_drain_tick(kvp_evict_t *ev)
{
    if (ev->space->drains_n == 0 || ev->cat->log->is_resting) return;
    kvp_list_foreach (pos, &ev->cat->segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->drain == NULL || g->node == NULL || g->report != NULL || g->is_restored) continue;
        fill_up(ev, g->drain);
        if (ev->ctx->now_ns >= g->drain->next_ns) walk_some(ev, g);
    }
}
