/* SPDX-License-Identifier: Apache-2.0
 * Evacuation frees space that needs more evictions than one step allows: a window with many extents, or, for a tenant
 * without victims, a whole chunk of another tenant. Meanwhile the chunk is closed: no other put is placed there, so
 * its freed space stays free.
 *
 * Design notes. Objects in the window may be read, get tickets or be pinned during an evacuation, and then they stay.
 * The walk is repeated for a while, since most tickets are short; then the key looks for another window, and other puts
 * use the freed space. So the code of tickets and pins does not check for evacuations. */
#include "master/core/evict/evacuate.h"

#include "common/list.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/eviction.h"
#include "master/core/evict/rebalance.h"
#include "master/core/evict/window.h"
#include "master/core/put/queue.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "proto/wire.h"

#define AGAIN_NS KVP_MS(10)
#define GIVE_UP_NS KVP_MS(1000)

void
kvp_evacuate_begin(kvp_evict_t *ev, kvp_put_key_t *k, kvp_chunk_t *c, uint32_t first, uint64_t to)
{
    k->claim.chunk = c;
    k->claim.from = kvp_slab_offset(c->slab, first);
    k->claim.to = to;
    k->req->claims++;
    ev->puts->claims++;
    kvp_list_add_tail(&c->segment->claims, &k->claim.of_segment);
    k->evacuation = KVP_EVACUATION_WALKS;
    k->is_foreign = c->tenant != k->attempt->tenant;
    k->attempt->tenant->foreign_evacuations += k->is_foreign;
    k->evacuate_slot = first;
    k->evacuate_next_ns = UINT64_MAX;
    k->evacuate_end_ns = ev->ctx->now_ns + GIVE_UP_NS;
    c->evacuating = &k->claim;
    kvp_list_add_tail(&ev->evacuations, &k->evacuating);
    ev->space->has_evacuation_news = true;
}

/* Evicts the object in the extent, if there is one. Returns false if it cannot be evicted at present. */
static bool
evacuate_extent(kvp_evict_t *ev, const kvp_put_key_t *k, uint32_t slot)
{
    const kvp_chunk_t *c = k->claim.chunk;
    uint32_t oid = kvp_slab_owner(c->slab, slot);

    if (oid == KVP_SLAB_NONE || kvp_retire_of(ev->space, c, slot) != NULL) return true;
    if (!kvp_evict_may_go(ev, k, oid)) return false;
    ev->ctx->st.evict_foreground++;
    ev->ctx->st.evict_window++;
    if (oid == k->attempt->over)
        kvp_evict_one(ev, oid);
    else
        kvp_evict_unit(ev, oid);
    return true;
}

/* Evicts the window's objects until the step's budget is used up. Returns false if the window's end was not reached. */
static bool
walk_window(kvp_evict_t *ev, kvp_put_key_t *k)
{
    const kvp_slab_t *slab = k->claim.chunk->slab;
    uint32_t slot = k->evacuate_slot;

    /* the slot's extent was merged with a neighbour: walk again from the chunk's start */
    if (kvp_slab_len(slab, slot) == 0) slot = kvp_slab_first(slab);
    for (; slot != KVP_SLAB_NONE && kvp_slab_offset(slab, slot) < k->claim.to; slot = kvp_slab_next(slab, slot)) {
        k->evacuate_slot = slot;
        if (ev->ctx->work_left == 0 || ev->ctx->slice_left == 0) return false;
        ev->ctx->work_left--;
        if (kvp_slab_offset(slab, slot) < k->claim.from) continue;
        if (!evacuate_extent(ev, k, slot)) k->evacuate_next_ns = ev->ctx->now_ns + AGAIN_NS;
    }
    k->evacuate_slot = KVP_SLAB_NONE;
    return true;
}

static bool
has_room(const kvp_put_key_t *k)
{
    const kvp_chunk_t *c = k->claim.chunk;

    return (c->tenant == NULL || c->tenant == k->attempt->tenant) && kvp_slab_can_fit(c->slab, k->attempt->bytes);
}

/* Continues the evacuation of a window for one waiting key of a put. Returns false if the step's budget is used up. */
static bool
evacuate_some(kvp_evict_t *ev, kvp_put_key_t *k)
{
    if (k->evacuation == KVP_EVACUATION_WAITS && ev->ctx->now_ns >= k->evacuate_next_ns) {
        k->evacuation = KVP_EVACUATION_WALKS;
        k->evacuate_next_ns = UINT64_MAX;
    }
    if (k->evacuation == KVP_EVACUATION_WALKS && !walk_window(ev, k)) return false;
    k->evacuation = KVP_EVACUATION_WAITS;
    if (has_room(k)) {
        ev->ctx->st.chunks_taken += k->is_foreign;
        kvp_put_key_window_free(ev->puts, k);
    } else if (ev->ctx->now_ns >= k->evacuate_end_ns) {
        kvp_put_key_restart(ev->puts, k);
    }
    return true;
}

void
kvp_evacuate_tick(kvp_evict_t *ev)
{
    ev->space->has_evacuation_news = false;
    kvp_list_foreach_safe (pos, tmp, &ev->evacuations) {
        kvp_put_key_t *k = kvp_list_entry(pos, kvp_put_key_t, evacuating);

        if (k->claim.chunk->segment->state != KVP_SEG_UP) continue; /* kvp_put_leave_segment will give up the claim */
        if (!evacuate_some(ev, k)) {
            ev->space->has_evacuation_news = true;
            return;
        }
    }
}

/* ---- taking a chunk of another tenant */
/* Returns true if at least one tenant other than `own` has two chunks or more. */
static bool
has_any_two(const kvp_evict_t *ev, const kvp_tenant_t *own)
{
    return ev->cat->owned_chunks - own->chunks > ev->cat->owners_n - (own->chunks > 0);
}

/* Returns true if the chunk may be evacuated for the key: a tenant's last chunk only if no other tenant has two. */
static bool
is_eligible(const kvp_evict_t *ev, const kvp_put_key_t *k, const kvp_chunk_t *c)
{
    return c != NULL && c->slab != NULL && c->tenant != NULL && c->tenant != k->attempt->tenant &&
           (c->tenant->chunks > 1 || !has_any_two(ev, k->attempt->tenant)) && c->evacuating == NULL &&
           c->taker == NULL && c->segment->state == KVP_SEG_UP && !kvp_segment_is_passed_over(ev->cat, c->segment) &&
           kvp_place_may_lie(ev->space, k->attempt, &k->req->wish, c->segment) &&
           c->bytes >= kvp_extent_bytes(k->attempt->bytes);
}

static bool
may_extent_go(const kvp_evict_t *ev, const kvp_put_key_t *k, const kvp_chunk_t *c, uint32_t slot)
{
    const kvp_retire_t *r = kvp_retire_of(ev->space, c, slot);

    if (!kvp_slab_is_allocated(c->slab, slot)) return true;
    if (r != NULL) return r->claim == NULL && r->owner == 0;
    return kvp_evict_may_go(ev, k, kvp_slab_owner(c->slab, slot));
}

/* Returns OK if all extents of the chunk can be freed, NO_SPACE if not, EAGAIN if the step's budget is used up. */
static kvp_err_t
look_at(kvp_evict_t *ev, kvp_put_key_t *k, const kvp_chunk_t *c)
{
    uint32_t slot = kvp_slab_len(c->slab, k->scan.slot) == 0 ? kvp_slab_first(c->slab) : k->scan.slot;

    for (; slot != KVP_SLAB_NONE; slot = kvp_slab_next(c->slab, slot)) {
        k->scan.slot = slot;
        if (ev->ctx->work_left == 0) return KVP_EAGAIN;
        ev->ctx->work_left--;
        if (!may_extent_go(ev, k, c, slot)) return KVP_NO_SPACE;
    }
    return KVP_OK;
}

/* Begins a search through all chunks at the coldest chunk of another tenant. */
static void
begin_taking(kvp_evict_t *ev, kvp_put_key_t *k)
{
    const kvp_chunk_t *first = kvp_rebalance_coldest(ev, k->attempt->tenant, k->attempt->bytes);

    k->is_taking = true;
    k->takes = KVP_TAKES_PROBED;
    k->scan.chunk = first == NULL ? 0 : first->number;
    k->scan_left = ev->cat->chunks.limit;
    k->scan.slot = KVP_SLAB_NONE;
}

static void
next_chunk(const kvp_evict_t *ev, kvp_put_key_t *k)
{
    k->scan.chunk = k->scan.chunk + 1 < ev->cat->chunks.limit ? k->scan.chunk + 1 : 0;
    k->scan.slot = KVP_SLAB_NONE;
}

static kvp_err_t
not_taking(kvp_put_key_t *k)
{
    k->is_taking = false;
    k->takes = KVP_TAKES_PLAIN;
    return KVP_NO_SPACE;
}

kvp_err_t
kvp_evacuate_foreign(kvp_evict_t *ev, kvp_put_key_t *k)
{
    const kvp_tenant_t *t = k->attempt->tenant;

    if (t->foreign_evacuations > 0 || t->take.state != KVP_TAKE_NONE) return not_taking(k);
    if (!k->is_taking) begin_taking(ev, k);
    for (; k->scan_left > 0; k->scan_left--, next_chunk(ev, k)) {
        kvp_chunk_t *c = kvp_ptab_get(&ev->cat->chunks, k->scan.chunk);
        kvp_err_t err;

        if (ev->ctx->work_left == 0) return KVP_EAGAIN;
        ev->ctx->work_left--;
        err = is_eligible(ev, k, c) ? look_at(ev, k, c) : KVP_NO_SPACE;
        if (err == KVP_NO_SPACE) continue;
        if (err == KVP_EAGAIN) return err;
        k->is_taking = false;
        k->is_scanned = true; /* a later search for space for the key starts at the first chunk */
        kvp_evacuate_begin(ev, k, c, kvp_slab_first(c->slab), c->bytes);
        return KVP_OK;
    }
    return not_taking(k);
}
