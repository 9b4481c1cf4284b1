/* SPDX-License-Identifier: Apache-2.0
 * Drains. A walk over the extents of the draining segment begins a copy of each object, in slices, and begins again
 * until no object is left. Where the free space elsewhere is used up, the tenant's oldest object goes, wherever it
 * lies: this is what one list of all objects would do. */
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
#include "master/core/evict/window.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/leaving.h"
#include "master/core/space/copy.h"
#include "master/core/space/segment.h"

#define OBJECTS_PER_S 20000u
#define FILL_MS 100u /* what was not moved for this long is not moved later */
#define SLOTS_A_TICK 4096u
#define SLOTS_A_RECORD 16u /* examining this many empty slots costs as much of the budget as handling one record */
#define TRIES 8u /* segments with enough free bytes that are tried as the target of one copy */
#define PAUSE_MIN_NS KVP_MS(20) /* pause after a walk; doubled while no object leaves */
#define PAUSE_MAX_NS KVP_MS(5000)

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
/* Adds what may be moved since the last time. All drains share the rate. */
static void
fill_up(const kvp_evict_t *ev, kvp_drain_t *d)
{
    uint64_t ms = kvp_min_u64((ev->ctx->now_ns - d->filled_ns) / KVP_MS(1), FILL_MS);
    uint64_t rate = d->bytes_per_s == 0 ? KVP_DRAIN_BYTES_PER_S : d->bytes_per_s, n = ev->space->drains_n;
    int64_t bytes = (int64_t)(kvp_min_u64(rate, 1ull << 40) * ms / 1000 / n);

    if (ms == 0) return;
    d->filled_ns = ev->ctx->now_ns;
    /* a large object may have taken more than there was: the following objects wait */
    d->bytes_left = bytes + (d->bytes_left < 0 ? d->bytes_left : 0);
    d->objects_left = (int64_t)(OBJECTS_PER_S * ms / 1000 / n);
}

/* ---- one object */
static uint64_t
free_bytes(const kvp_segment_t *g)
{
    return g->size_bytes - g->used_bytes;
}

/* Returns true if the segment can take a copy of so many bytes of an object with these copies. */
static bool
may_take(const kvp_evict_t *ev, const kvp_segment_t *g, uint64_t bytes, const kvp_place_t *places, uint32_t n)
{
    return g->can_copy && g->chunk_bytes >= bytes && !kvp_segment_is_passed_over(ev->cat, g) &&
           kvp_place_in(ev->cat, places, n, g->id) == n;
}

/* Begins a copy in one of the segments that accept puts: of two drawn at random the emptier one, then others that have
 * as many free bytes. NO_SPACE: none of those that were tried has room; NO_SEGMENT: none can take the copy. */
static kvp_err_t
begin_copy(kvp_evict_t *ev, uint32_t oid, const kvp_place_t *places, uint32_t n, const kvp_place_t *from)
{
    const uint32_t up_n = ev->cat->up_n;
    const uint64_t bytes = kvp_extent_bytes(kvp_obj_len(ev->cat, kvp_obj(ev->cat->index, oid)));
    uint32_t at = up_n == 0 ? 0 : (uint32_t)(kvp_ctx_random(ev->ctx) % up_n), tries = 0;
    kvp_err_t err = KVP_NO_SEGMENT;

    if (up_n > 1 && free_bytes(ev->cat->up[(at + 1) % up_n]) > free_bytes(ev->cat->up[at])) at++;
    kvp_ctx_spend(ev->ctx, up_n / SLOTS_A_RECORD);
    for (uint32_t i = 0; i < up_n && tries < TRIES; i++) {
        kvp_segment_t *g = ev->cat->up[(at + i) % up_n];
        kvp_err_t tried;

        if (!may_take(ev, g, bytes, places, n)) continue;
        if (err == KVP_NO_SEGMENT) err = KVP_NO_SPACE;
        if (free_bytes(g) < bytes) continue;
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

/* Evicts the tenant's oldest object to make room for this one. Returns false if no object can go. */
static bool
make_room(kvp_evict_t *ev, kvp_drain_t *d, uint32_t oid)
{
    kvp_tenant_t *t = kvp_obj_tenant(ev->cat, kvp_obj(ev->cat->index, oid));
    uint32_t unit;
    const kvp_segment_t *g;

    if ((d->flags & KVP_JREC_DRAIN_NO_EVICT) != 0 || kvp_evict_is_early(ev)) return false;
    unit = kvp_victim_next(ev->prot, t, KVP_OID_NONE);
    if (unit == KVP_OID_NONE) return false;
    g = kvp_obj_chunk(ev->cat, kvp_obj(ev->cat->index, unit))->segment;
    d->evicted += g->drain == d;
    d->evicted_bytes += g->drain == d ? kvp_victim_bytes(ev->prot, unit) : 0;
    ev->ctx->st.evict_foreground++;
    kvp_evict_unit(ev, unit);
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
    if (o->is_moving != 0) return true; /* its SSD is to say first whether it has the object */
    if (o->has_ext && kvp_obj_ext(ev->cat->index, o)->leaving == places[at].generation) {
        if (o->tickets > 0) note_stay(d, KVP_STAYS_HELD);
        return true;
    }
    for (uint32_t i = 0; i < n; i++) {
        const kvp_segment_t *other = kvp_place_chunk(ev->cat, &places[i])->segment;

        has_other |= i != at && other->state != KVP_SEG_LOST && other->drain == NULL;
    }
    d->objects_left--;
    if (has_other) {
        kvp_leaving_begin(ev->prot, oid, &places[at], d->deadline_ns);
        return true;
    }
    err = n < KVP_REPLICAS_MAX ? begin_copy(ev, oid, places, n, &places[at]) : KVP_NO_SEGMENT;
    if (err == KVP_OK) d->bytes_left -= (int64_t)kvp_obj_len(ev->cat, o);
    if (err == KVP_NO_SEGMENT) note_stay(d, KVP_STAYS_NO_NODE);
    if (err == KVP_NO_SPACE && make_room(ev, d, oid)) return false;
    if (err == KVP_NO_SPACE) {
        note_stay(d, KVP_STAYS_NO_ROOM);
        d->no_room_bytes += kvp_extent_bytes(kvp_obj_len(ev->cat, o));
    }
    return err != KVP_RETRY_AFTER;
}

/* ---- the walk */
/* The walk has come to the segment's end, and begins again: soon if objects have left since the last one, otherwise
 * after longer and longer pauses. */
static void
end_walk(const kvp_evict_t *ev, kvp_drain_t *d)
{
    const uint64_t left = d->moved + d->evicted;

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
        kvp_chunk_t *c = &g->chunks[d->chunk];
        uint32_t owner;

        if (d->bytes_left <= 0 || d->objects_left <= 0) return;
        if (c->slab == NULL || d->slot >= kvp_slab_slots_high(c->slab)) {
            d->slot = 0;
            if (++d->chunk < g->chunk_n) continue;
            end_walk(ev, d);
            return;
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
