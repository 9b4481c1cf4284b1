/* SPDX-License-Identifier: Apache-2.0
 * Makes room for a waiting put. The search collects the policy's first victims, as many bytes of them as wanted.
 * Around each victim lies a run of neighbouring extents, and the cheapest run of sufficient length is taken. Objects
 * that the policy evicts next cost nothing; other neighbours cost their bytes, more with a more recent last use. With
 * blocks of one size the result is exactly the policy's first victim.
 *
 * Design notes. If the cheapest run needs neighbours, the collected victims outside of it are evicted as well. Later
 * puts fill these holes: in a full pool as many bytes are evicted as put, so an old object's space need not be taken
 * from a younger one. If these victims stayed, the oldest objects of all would be small objects among recent ones,
 * whose neighbours would be evicted again and again for lack of better candidates (bench/alloc_bench shows the order
 * of evictions). */
#include "master/core/evict/window.h"

#include "common/list.h"
#include "common/mutate.h"
#include "proto/segfmt.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/evacuate.h"
#include "master/core/evict/eviction.h"
#include "master/core/evict/hot.h"
#include "master/core/evict/rebalance.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/protect/probe.h"
#include "master/core/put/queue.h"
#include "master/core/session/takeover.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"
#include "proto/wire.h"

#include <stdlib.h>

#define CANDIDATES 16u /* limit of the policy's victims around which windows are searched */
#define AROUND_WORK 4096u /* limit of the extents that one search around these victims examines */
#define KEY_CANDIDATES 4096u /* limit of the first victims among which a victim with a long key is searched */
/* evicting an object in a lost segment costs as much of the budget as examining this many extents */
#define LOST_WORK 16u
/* limit of the extents in a window that is claimed in one step; a larger window is evacuated: evacuate.c */
#define CLAIM_MOST 256u
#define SAMPLE 64u /* number of extents in a sample, of which a load takes the cheapest window */

/* ---- windows */
typedef struct {
    kvp_chunk_t *chunk; /* the chunk of the window; NULL = no window */
    uint32_t first, last; /* slots of the window's first and last extent */
    uint64_t cost;
} window_t;

static bool
is_free(const kvp_chunk_t *c, uint32_t slot)
{
    return !kvp_slab_is_allocated(c->slab, slot);
}

static kvp_takes_t
kind_of(const kvp_evict_t *ev, uint32_t unit)
{
    if (kvp_obj(ev->cat->index, unit)->list == KVP_OBJLIST_PINNED) return KVP_TAKES_PINNED;
    return kvp_probe_protects(ev->prot, unit) ? KVP_TAKES_PROBED : KVP_TAKES_PLAIN;
}

/* Returns true if the search must leave the object out of the window, by wanted->spares: no object; objects that are
 * wanted on the tier and not there; or of these only the objects that cannot be written to the tier. */
static bool
is_spared(const kvp_evict_t *ev, const kvp_evict_wish_t *wanted, const kvp_obj_t *o)
{
    if (wanted->spares == KVP_SPARES_NONE || kvp_evict_costs_nothing(ev, o)) return false;
    return wanted->spares == KVP_SPARES_UNWRITTEN || !kvp_evict_can_be_written(ev, o);
}

/* Returns true if the extent may be part of a window. An extent to which a dead writer might still write is not
 * usable, because no timer limits how long it stays quarantined. */
static bool
is_usable(kvp_evict_t *ev, const kvp_chunk_t *c, uint32_t slot, const kvp_evict_wish_t *wanted)
{
    const kvp_retire_t *r;
    const kvp_obj_t *o;
    kvp_takes_t kind;
    uint32_t unit;

    if (is_free(c, slot)) return !kvp_place_is_promised(ev->space, c, slot, KVP_SLAB_NONE);
    r = kvp_retire_of(ev->space, c, slot);
    /* a load (attempt NULL) takes no retiring extent: g->room_bytes has those evicted for loads */
    if (r != NULL) return wanted->attempt != NULL && r->claim == NULL && r->owner == 0;
    /* The object to replace is usable even with tickets: losing the old version is better than no new version. */
    if (kvp_slab_owner(c->slab, slot) == wanted->over) return true;
    o = kvp_obj(ev->cat->index, kvp_slab_owner(c->slab, slot));
    /* an object of a doomed group will be dropped in any case */
    if (kvp_group_is_doomed(ev->cat, o) && o->state == KVP_OBJ_COMMITTED) return true;
    unit = kvp_victim_unit(ev->cat, kvp_slab_owner(c->slab, slot));
    if (!kvp_victim_may_go(ev->prot, unit) && (KVP_RULE(TICKET_AGAINST_EVICTION) || o->state != KVP_OBJ_COMMITTED))
        return false;
    kind = kind_of(ev, unit);
    if (KVP_RULE(PROBE_YIELDS) || kind != KVP_TAKES_PROBED) ev->met |= 1u << kind;
    return kind <= ev->takes && !is_spared(ev, wanted, o);
}

bool
kvp_evict_may_go(const kvp_evict_t *ev, const kvp_put_key_t *k, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
    uint32_t unit;

    if (oid == k->attempt->over || (kvp_group_is_doomed(ev->cat, o) && o->state == KVP_OBJ_COMMITTED)) return true;
    /* a node's report ended since the evacuation began: clients may still restore tickets on its objects */
    if (kvp_takeover_may_tickets_come(ev->peers)) return false;
    unit = kvp_victim_unit(ev->cat, oid);
    return kvp_victim_may_go(ev->prot, unit) && kind_of(ev, unit) <= k->takes;
}

/* Returns the age of an object for eviction. An object of a doomed group counts as older than any other. */
static uint32_t
age_of(const kvp_evict_t *ev, uint32_t oid)
{
    if (kvp_group_is_doomed(ev->cat, kvp_obj(ev->cat->index, oid))) return UINT32_MAX;
    return kvp_victim_age(ev->prot, kvp_victim_unit(ev->cat, oid));
}

/* Returns the cost of a usable extent. The object that the put replaces counts as just used: it is evicted only as a
 * last resort. */
static uint64_t
cost_of(const kvp_evict_t *ev, const kvp_chunk_t *c, uint32_t slot, const kvp_evict_wish_t *wanted)
{
    uint32_t oid, age;

    if (is_free(c, slot) || kvp_retire_of(ev->space, c, slot) != NULL) return 0;
    oid = kvp_slab_owner(c->slab, slot);
    age = oid == wanted->over ? 0 : age_of(ev, oid);
    if (age >= wanted->free_age) return 0;
    return (kvp_slab_len(c->slab, slot) / KVP_SLAB_UNIT << 32) / (age + 1ull); /* a chunk is less than 2^31 units */
}

static bool
fits_between(const kvp_chunk_t *c, uint32_t first, uint32_t last, uint64_t len)
{
    uint64_t start = kvp_align_up(kvp_slab_offset(c->slab, first), kvp_extent_align_bytes(len));
    uint64_t end = kvp_slab_offset(c->slab, last) + kvp_slab_len(c->slab, last);

    return start + kvp_extent_bytes(len) <= end;
}

/* ---- the search: a window slides over the extents, so that each extent is examined once
 *
 * shorten_window removes extents from the window's front that the window does not need. It does not shorten the
 * window to a single free extent: allocation has already failed to use that extent, so at least one neighbour must
 * become free as well. */
static void
shorten_window(const kvp_evict_t *ev, window_t *w, const kvp_evict_wish_t *wanted)
{
    while (w->first != w->last) {
        uint32_t next = kvp_slab_next(w->chunk->slab, w->first);

        if (!fits_between(w->chunk, next, w->last, wanted->len) || (next == w->last && is_free(w->chunk, w->last)))
            return;
        /* subtracts at most the remaining cost: an object's cost may have changed since it was added */
        w->cost -= kvp_min_u64(w->cost, cost_of(ev, w->chunk, w->first, wanted));
        w->first = next;
    }
}

/* Looks for a cheaper window than *best among the runs of usable extents that begin at `from` or later and end before
 * the offset `to`. *run is a run that ends at `from`, possibly empty. Returns KVP_SLAB_NONE at the end; if the budget
 * is used up, the slot to continue at, with the run before it in *run. */
static uint32_t
search_runs(kvp_evict_t *ev, kvp_chunk_t *c, uint32_t from, uint64_t to, const kvp_evict_wish_t *wanted, window_t *run,
            window_t *best)
{
    window_t w = *run;
    uint32_t slot = from;

    for (; slot != KVP_SLAB_NONE && kvp_slab_offset(c->slab, slot) < to; slot = kvp_slab_next(c->slab, slot)) {
        if (ev->ctx->work_left == 0) {
            *run = w;
            return slot;
        }
        ev->ctx->work_left--;
        if (!is_usable(ev, c, slot, wanted)) {
            w.first = KVP_SLAB_NONE;
            continue;
        }
        if (w.first == KVP_SLAB_NONE) w = (window_t){.chunk = c, .first = slot};
        w.last = slot;
        w.cost += cost_of(ev, c, slot, wanted);
        if (!fits_between(c, w.first, slot, wanted->len)) continue;
        shorten_window(ev, &w, wanted);
        if (w.first == slot && is_free(c, slot)) continue;
        if (best->chunk == NULL || w.cost < best->cost) *best = w;
    }
    return KVP_SLAB_NONE;
}

/* Returns the first slot of the run of usable extents that ends at slot, as far back as a window around slot may
 * need. Examines at most *steps extents, and subtracts their number. */
static uint32_t
run_start(kvp_evict_t *ev, const kvp_chunk_t *c, uint32_t slot, const kvp_evict_wish_t *wanted, uint32_t *steps)
{
    uint64_t end = kvp_slab_offset(c->slab, slot);
    uint64_t need = kvp_extent_bytes(wanted->len) + kvp_extent_align_bytes(wanted->len);

    for (; *steps > 0 && end - kvp_slab_offset(c->slab, slot) < need; --*steps) {
        uint32_t prev = kvp_slab_prev(c->slab, slot);

        if (prev == KVP_SLAB_NONE || !is_usable(ev, c, prev, wanted)) break;
        slot = prev;
    }
    return slot;
}

/* ---- candidates */
static bool
takes_windows(const kvp_evict_t *ev, const kvp_chunk_t *c)
{
    return c->segment->state == KVP_SEG_UP && !kvp_segment_is_passed_over(ev->cat, c->segment);
}

static bool
may_hold(const kvp_evict_t *ev, const kvp_chunk_t *c, const kvp_evict_wish_t *wanted)
{
    return takes_windows(ev, c) && kvp_place_is_open_to(c, wanted->attempt->tenant) &&
           kvp_place_may_lie(ev->space, wanted->attempt, &wanted->attempt->req->wish, c->segment) &&
           c->bytes >= kvp_extent_bytes(wanted->len) && kvp_place_has_key_room(c, wanted->key_len);
}

static bool
gives_key_room(const kvp_chunk_t *c, const kvp_place_t *victim, const kvp_evict_wish_t *wanted)
{
    return victim->long_key_slot != KVP_SLAB_NONE &&
           kvp_slab_len(c->long_keys, victim->long_key_slot) >= kvp_extent_bytes(wanted->key_len);
}

/* Returns true if the victim's own extent is long enough for the put, which is the common case. */
static bool
is_enough(const kvp_evict_t *ev, const kvp_chunk_t *c, const kvp_place_t *victim, const kvp_evict_wish_t *wanted)
{
    return takes_windows(ev, c) && kvp_place_is_own(c, wanted->attempt->tenant) &&
           kvp_place_may_lie(ev->space, wanted->attempt, &wanted->attempt->req->wish, c->segment) &&
           fits_between(c, victim->slot, victim->slot, wanted->len) &&
           (kvp_place_has_key_room(c, wanted->key_len) || gives_key_room(c, victim, wanted));
}

static window_t
own_extent(kvp_chunk_t *c, const kvp_place_t *victim)
{
    return (window_t){.chunk = c, .first = victim->slot, .last = victim->slot};
}

static void
search_around(kvp_evict_t *ev, kvp_chunk_t *c, uint32_t slot, const kvp_evict_wish_t *wanted, window_t *best)
{
    window_t run = {.first = KVP_SLAB_NONE};
    uint32_t from;
    uint64_t end = kvp_slab_offset(c->slab, slot) + kvp_slab_len(c->slab, slot);
    uint64_t need = kvp_extent_bytes(wanted->len) + kvp_extent_align_bytes(wanted->len);

    if (!may_hold(ev, c, wanted)) return;
    from = run_start(ev, c, slot, wanted, &ev->ctx->work_left);
    (void)search_runs(ev, c, from, end + need, wanted, &run, best);
}

/* Returns the first copy of a victim whose space the put may use; if there is none, the victim's first copy. */
static kvp_place_t
copy_for(kvp_evict_t *ev, uint32_t oid, const kvp_evict_wish_t *wanted)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(ev->cat, kvp_obj(ev->cat->index, oid), places);

    for (uint32_t i = 0; n > 1 && i < n; i++) {
        const kvp_chunk_t *c = kvp_place_chunk(ev->cat, &places[i]);

        if (takes_windows(ev, c) &&
            kvp_place_may_lie(ev->space, wanted->attempt, &wanted->attempt->req->wish, c->segment))
            return places[i];
    }
    return places[0];
}

typedef struct {
    uint32_t n;
    uint32_t going; /* number of victims, from the first, whose bytes together are as many as the put needs */
    uint32_t oids[CANDIDATES];
    kvp_place_t places[CANDIDATES];
} picked_t;

/* Returns the candidate after `after`. Doomed objects come first, then the tenant's own plain objects, then probed
 * and pinned objects of any tenant. A kind is included if ev->takes allows it, or if there are no candidates of the
 * kinds before it. */
static uint32_t
next_candidate(kvp_evict_t *ev, kvp_tenant_t *t, uint32_t after)
{
    uint32_t list = after == KVP_OID_NONE ? KVP_OBJLIST_NONE : kvp_obj(ev->cat->index, after)->list;
    uint32_t oid;

    if (list == KVP_OBJLIST_NONE) {
        oid = kvp_group_next_doomed(ev->prot, after);
        if (oid != KVP_OID_NONE) return oid;
        after = KVP_OID_NONE;
    }
    if (list == KVP_OBJLIST_NONE || list == KVP_OBJLIST_LRU || list == KVP_OBJLIST_COLD) {
        oid = kvp_victim_next(ev->prot, t, after);
        if (oid != KVP_OID_NONE || (t->lru.n > 0 && ev->takes < KVP_TAKES_PROBED)) return oid;
    }
    if (list != KVP_OBJLIST_PINNED) {
        oid = kvp_probe_victim(ev->prot, list == KVP_OBJLIST_PROBED ? after : KVP_OID_NONE);
        if (oid != KVP_OID_NONE || (t->lru.n + ev->prot->probes.n > 0 && ev->takes < KVP_TAKES_PINNED)) return oid;
    }
    return kvp_victim_behind(ev->prot, &ev->prot->pinned, list == KVP_OBJLIST_PINNED ? after : KVP_OID_NONE);
}

/* Collects the first candidates whose eviction helps, in the policy's order, up to one whose extent is long enough. */
static void
pick_victims(kvp_evict_t *ev, kvp_evict_wish_t *wanted, picked_t *p)
{
    kvp_tenant_t *t = wanted->tenant;
    uint64_t bytes = 0;
    uint32_t oid = next_candidate(ev, t, KVP_OID_NONE);
    bool is_last = false;

    for (uint32_t left = CANDIDATES, next; left > 0 && !is_last && oid != KVP_OID_NONE; oid = next) {
        kvp_place_t at = copy_for(ev, oid, wanted);
        kvp_chunk_t *c = kvp_place_chunk(ev->cat, &at);

        next = next_candidate(ev, t, oid);
        if (c->segment->state == KVP_SEG_LOST) {
            /* Evicts the policy's victim, although its space cannot be used until its node connects again. */
            if (ev->ctx->work_left < LOST_WORK) return;
            ev->ctx->work_left -= LOST_WORK;
            kvp_evict_unit(ev, oid);
            continue;
        }
        left--;
        is_last = is_enough(ev, c, &at, wanted);
        if (!is_last && !may_hold(ev, c, wanted)) continue;
        p->places[p->n] = at;
        p->oids[p->n++] = oid;
        if (bytes >= wanted->len) continue;
        bytes += kvp_slab_len(c->slab, at.slot);
        p->going = p->n;
        wanted->free_age = age_of(ev, oid);
    }
}

static bool
is_in(const window_t *w, const kvp_place_t *at)
{
    uint64_t offset = kvp_slab_offset(w->chunk->slab, at->slot);

    return at->chunk == w->chunk->number && offset >= kvp_slab_offset(w->chunk->slab, w->first) &&
           offset <= kvp_slab_offset(w->chunk->slab, w->last);
}

/* Searches windows around the first p->going victims; around further victims only while no window is found. */
static void
search_around_picked(kvp_evict_t *ev, const picked_t *p, const kvp_evict_wish_t *wanted, window_t *best)
{
    for (uint32_t i = 0; i < p->n && (i < p->going || best->chunk == NULL); i++) {
        kvp_chunk_t *c = kvp_place_chunk(ev->cat, &p->places[i]);

        if (is_enough(ev, c, &p->places[i], wanted)) {
            *best = own_extent(c, &p->places[i]);
            return;
        }
        search_around(ev, c, p->places[i].slot, wanted, best);
        if (best->chunk != NULL && best->cost == 0) return;
    }
}

static void
search_candidates(kvp_evict_t *ev, kvp_evict_wish_t *wanted, window_t *best)
{
    picked_t p;

    p.n = p.going = 0;
    pick_victims(ev, wanted, &p);
    search_around_picked(ev, &p, wanted, best);
    for (uint32_t i = 0; best->chunk != NULL && best->cost > 0 && i < p.going; i++) {
        if (is_in(best, &p.places[i])) continue;
        ev->ctx->st.evict_foreground++;
        kvp_evict_unit(ev, p.oids[i]);
    }
}

/* Limits the step's remaining budget to `most`, and returns the amount taken away, which the caller adds again. */
static uint32_t
put_work_aside(kvp_evict_t *ev, uint32_t most)
{
    uint32_t kept = ev->ctx->work_left > most ? ev->ctx->work_left - most : 0;

    ev->ctx->work_left -= kept;
    return kept;
}

/* Searches windows around the oldest objects, with a limited part of the step's budget, so that some is left for a
 * search through all chunks. */
static void
search_oldest(kvp_evict_t *ev, kvp_evict_wish_t *wanted, window_t *best)
{
    uint32_t kept = put_work_aside(ev, AROUND_WORK);

    search_candidates(ev, wanted, best);
    ev->ctx->work_left += kept;
}

/* Returns the slot at which the search continues in a chunk. If this slot was merged and no longer exists, the search
 * starts again at the chunk's first extent. The run of usable extents before the slot is not examined again: changes
 * in it are noticed when the window is taken. If the run no longer exists, it is determined again within a limit. */
static uint32_t
scan_from(kvp_evict_t *ev, const kvp_scan_t *scan, kvp_chunk_t *c, const kvp_evict_wish_t *wanted, window_t *run)
{
    uint32_t slot = scan->slot, back = AROUND_WORK;

    if (kvp_slab_len(c->slab, slot) == 0) return kvp_slab_first(c->slab);
    if (scan->run == KVP_SLAB_NONE) return slot;
    if (kvp_slab_len(c->slab, scan->run) == 0 || kvp_slab_offset(c->slab, scan->run) != scan->run_off ||
        scan->run_off >= kvp_slab_offset(c->slab, slot))
        return run_start(ev, c, slot, wanted, &back);
    *run = (window_t){.chunk = c, .first = scan->run, .last = kvp_slab_prev(c->slab, slot), .cost = scan->cost};
    return slot;
}

/* Continues the search in the chunk. Returns false if the budget is used up before the chunk's end. */
static bool
scan_chunk(kvp_evict_t *ev, kvp_scan_t *scan, kvp_chunk_t *c, const kvp_evict_wish_t *wanted, window_t *best)
{
    window_t run = {.first = KVP_SLAB_NONE};
    uint32_t from = scan_from(ev, scan, c, wanted, &run);

    scan->slot = search_runs(ev, c, from, UINT64_MAX, wanted, &run, best);
    scan->run = run.first;
    if (scan->slot == KVP_SLAB_NONE) return true;
    scan->run_off = run.first == KVP_SLAB_NONE ? 0 : kvp_slab_offset(c->slab, run.first);
    scan->cost = run.cost;
    return false;
}

/* Searches all chunks within the step's budget: if nearly all objects have tickets, the only window may be anywhere.
 * Changes in the part already searched count as space news, and start the search again. */
static void
search_all(kvp_evict_t *ev, kvp_put_key_t *k, const kvp_evict_wish_t *wanted, window_t *best)
{
    if (k->is_scanned) {
        k->is_scanned = false;
        k->scan.chunk = 0;
        k->scan.slot = KVP_SLAB_NONE;
    }
    if (k->scan.chunk == 0 && k->scan.slot == KVP_SLAB_NONE) k->scan_news = ev->ctx->space_news;
    for (; k->scan.chunk < ev->cat->chunks.limit; k->scan.chunk++, k->scan.slot = KVP_SLAB_NONE) {
        kvp_chunk_t *c = kvp_ptab_get(&ev->cat->chunks, k->scan.chunk);

        if (best->chunk != NULL || ev->ctx->work_left == 0) return;
        ev->ctx->work_left--;
        if (c == NULL || c->slab == NULL || !may_hold(ev, c, wanted)) continue;
        if (!scan_chunk(ev, &k->scan, c, wanted, best)) return;
    }
    k->is_scanned = true;
}

/* Finds a window if the areas for long keys of all chunks are full: the extent of the oldest object whose key makes
 * room for the put's key. */
static void
search_key(kvp_evict_t *ev, const kvp_evict_wish_t *wanted, window_t *best)
{
    kvp_tenant_t *t = wanted->attempt->tenant;
    uint32_t oid = next_candidate(ev, t, KVP_OID_NONE);

    for (uint32_t i = 0; i < KEY_CANDIDATES && oid != KVP_OID_NONE; i++, oid = next_candidate(ev, t, oid)) {
        kvp_place_t at = copy_for(ev, oid, wanted);
        kvp_chunk_t *c = kvp_place_chunk(ev->cat, &at);

        if (!takes_windows(ev, c) || !kvp_place_is_own(c, t) ||
            !kvp_place_may_lie(ev->space, wanted->attempt, &wanted->attempt->req->wish, c->segment) ||
            !gives_key_room(c, &at, wanted))
            continue;
        *best = own_extent(c, &at);
        return;
    }
}

static bool
is_large(const window_t *w)
{
    uint32_t slot = w->first, n = 0;

    while (slot != w->last && ++n < CLAIM_MOST)
        slot = kvp_slab_next(w->chunk->slab, slot);
    return slot != w->last;
}

static void
claim_window(kvp_evict_t *ev, kvp_put_key_t *k, const window_t *w)
{
    kvp_slab_t *slab = w->chunk->slab;
    uint32_t next, slot = w->first;
    bool is_first = true;

    k->claim.chunk = w->chunk;
    k->claim.from = kvp_slab_offset(slab, w->first);
    k->claim.to = kvp_slab_offset(slab, w->last) + kvp_slab_len(slab, w->last);
    k->claim.left = 0;
    k->req->claims++;
    ev->puts->claims++;
    kvp_list_add_tail(&w->chunk->segment->claims, &k->claim.of_segment);
    do {
        kvp_retire_t *r = kvp_retire_of(ev->space, w->chunk, slot);

        next = kvp_slab_next(slab, slot);
        if (r == NULL && !is_free(w->chunk, slot)) {
            ev->ctx->st.evict_foreground++;
            if (!is_first) ev->ctx->st.evict_window++;
            is_first = false;
            if (kvp_slab_owner(slab, slot) == k->attempt->over)
                kvp_evict_one(ev, k->attempt->over); /* other members of the replaced object's group stay */
            else
                kvp_evict_unit(ev, kvp_slab_owner(slab, slot));
            r = kvp_retire_of(ev->space, w->chunk, slot);
        }
        if (r != NULL) {
            r->claim = &k->claim;
            k->claim.left++;
            kvp_list_add_tail(&k->claim.records, &r->claimed);
        }
    } while (slot != w->last && (slot = next) != KVP_SLAB_NONE);
}

/* After a search without success, allows the next kind of objects that the search met and left out. Returns NO_SPACE
 * if there is none, else EAGAIN. */
static kvp_err_t
retry_with_more(kvp_put_key_t *k)
{
    uint32_t left_out = k->met & ~((2u << k->takes) - 1);

    k->met = 0;
    k->takes = left_out == 0 ? KVP_TAKES_PLAIN : (kvp_takes_t)__builtin_ctz(left_out);
    if (left_out == 0) return KVP_NO_SPACE;
    k->is_scanned = false;
    k->scan.chunk = 0;
    k->scan.slot = KVP_SLAB_NONE;
    return KVP_EAGAIN;
}

static void
take_window(kvp_evict_t *ev, kvp_put_key_t *k, const window_t *w)
{
    const kvp_slab_t *slab = w->chunk->slab;

    if (is_large(w)) {
        kvp_evacuate_begin(ev, k, w->chunk, w->first, kvp_slab_offset(slab, w->last) + kvp_slab_len(slab, w->last));
        return;
    }
    k->takes = KVP_TAKES_PLAIN;
    claim_window(ev, k, w);
}

/* Returns true while nothing may be evicted after a take-over. After the nodes' reports, nearly all free space
 * is unclaimed: writers of an earlier term might write to it, until they connect and state that they do not. Puts wait
 * for these statements for a while, so that reported objects are not evicted for lack of space. Clients may also
 * restore their tickets meanwhile (recovery/restore.c). */
bool
kvp_evict_is_early(const kvp_evict_t *ev)
{
    return (ev->space->unclaimed > 0 && ev->ctx->now_ns < ev->space->unclaimed_due_ns) ||
           kvp_takeover_may_tickets_come(ev->peers);
}

void
kvp_evict_tick(kvp_evict_t *ev)
{
    if ((ev->space->unclaimed_due_ns == 0 && ev->peers->presents_due_ns == 0) || kvp_evict_is_early(ev)) return;
    ev->space->unclaimed_due_ns = 0;
    ev->peers->presents_due_ns = 0;
    kvp_ctx_space_news(ev->ctx);
}

static bool
has_company(const kvp_evict_t *ev, const kvp_tenant_t *t)
{
    return ev->cat->owners_n > (t->chunks > 0);
}

kvp_err_t
kvp_evict_for(kvp_evict_t *ev, kvp_put_key_t *k)
{
    kvp_evict_wish_t wanted = {.attempt = k->attempt,
                               .tenant = k->attempt->tenant,
                               .over = k->attempt->over,
                               .len = k->attempt->bytes,
                               .key_len = kvp_obj_key_len(ev->cat->index, kvp_obj(ev->cat->index, k->oid)),
                               .free_age = UINT32_MAX};
    window_t best = {0};
    kvp_err_t err;

    if (k->is_taking) return kvp_evacuate_foreign(ev, k);
    /* nothing has changed since the last search */
    if (k->is_scanned && k->scan_news == ev->ctx->space_news) return KVP_NO_SPACE;
    if (kvp_evict_is_early(ev)) return KVP_NO_SPACE;
    kvp_hot_make_room(ev, k->attempt->bytes);
    kvp_rebalance_look(ev, k->attempt->tenant, k->attempt->bytes);
    ev->takes = k->takes;
    ev->met = 0;
    search_oldest(ev, &wanted, &best);
    if (best.chunk == NULL) search_all(ev, k, &wanted, &best);
    k->met |= ev->met;
    if (best.chunk == NULL && !k->is_scanned) return KVP_EAGAIN;
    if (best.chunk == NULL && wanted.key_len > KVP_KEY_CELL_BYTES) search_key(ev, &wanted, &best);
    if (best.chunk == NULL) {
        err = retry_with_more(k);
        return err == KVP_NO_SPACE && has_company(ev, wanted.tenant) ? kvp_evacuate_foreign(ev, k) : err;
    }
    take_window(ev, k, &best);
    return KVP_OK;
}

/* ---- room in one segment, for loads from its tier */
static bool
may_load_into(const kvp_evict_t *ev, const kvp_chunk_t *c, const kvp_evict_wish_t *wanted)
{
    return c->slab != NULL && kvp_segment_loads(c->segment) && !kvp_segment_is_passed_over(ev->cat, c->segment) &&
           kvp_place_is_own(c, wanted->tenant) && c->bytes >= kvp_extent_bytes(wanted->len) &&
           kvp_place_has_key_room(c, wanted->key_len);
}

/* Returns true if the window is old enough to be evicted for a load: its objects are on average at least half as old as
 * the tenant's oldest object. */
static bool
is_old_enough(const kvp_evict_t *ev, const kvp_tenant_t *t, const window_t *w)
{
    const kvp_slab_t *slab = w->chunk->slab;
    uint64_t units = (kvp_slab_offset(slab, w->last) + kvp_slab_len(slab, w->last) - kvp_slab_offset(slab, w->first)) /
                     KVP_SLAB_UNIT;

    return t->lru.n == 0 || w->cost <= (units << 32) / (kvp_victim_age(ev->prot, t->lru.oldest) / 2 + 1ull);
}

/* Finds the cheapest window of the next samples of extents, up to a sample with a window of old objects: a sample may
 * contain only small objects that are read often. The search goes round the segment. *left counts down the examined
 * extents and the skipped chunks. */
static void
search_segment(kvp_evict_t *ev, kvp_segment_t *g, const kvp_evict_wish_t *wanted, uint32_t *left, window_t *best)
{
    kvp_scan_t *scan = &g->room_scan;

    while (*left > 0 && (best->chunk == NULL || !is_old_enough(ev, wanted->tenant, best)) && ev->ctx->work_left > 0) {
        kvp_chunk_t *c = &g->chunks[scan->chunk];
        uint32_t kept = put_work_aside(ev, (uint32_t)kvp_min_u64(*left, SAMPLE)), before = ev->ctx->work_left;

        if (!may_load_into(ev, c, wanted) || scan_chunk(ev, scan, c, wanted, best)) {
            ev->ctx->work_left -= ev->ctx->work_left > 0;
            scan->chunk = scan->chunk + 1 < g->chunk_n ? scan->chunk + 1 : 0;
            scan->slot = scan->run = KVP_SLAB_NONE;
        }
        *left -= before - ev->ctx->work_left;
        ev->ctx->work_left += kept;
    }
}

static uint64_t
evict_window(kvp_evict_t *ev, const window_t *w)
{
    const kvp_slab_t *slab = w->chunk->slab;
    uint64_t bytes = 0;
    uint32_t next, slot = w->first;

    for (;; slot = next) {
        next = kvp_slab_next(slab, slot);
        if (!is_free(w->chunk, slot) && kvp_retire_of(ev->space, w->chunk, slot) == NULL) {
            bytes += kvp_slab_len(slab, slot);
            kvp_evict_unit(ev, kvp_slab_owner(slab, slot));
        }
        if (slot == w->last) return bytes;
    }
}

static void
write_window(kvp_evict_t *ev, const window_t *w)
{
    const kvp_slab_t *slab = w->chunk->slab;

    for (uint32_t slot = w->first;; slot = kvp_slab_next(slab, slot)) {
        if (!is_free(w->chunk, slot) && kvp_retire_of(ev->space, w->chunk, slot) == NULL)
            (void)kvp_evict_is_written(ev, kvp_slab_owner(slab, slot));
        if (slot == w->last) return;
    }
}

bool
kvp_evict_in_segment(kvp_evict_t *ev, kvp_segment_t *g, const kvp_evict_wish_t *wish, uint32_t *left,
                     uint64_t *bytes_out)
{
    window_t best = {0};

    ev->takes = KVP_TAKES_PLAIN;
    search_segment(ev, g, wish, left, &best);
    if (best.chunk == NULL) return false;
    g->room_scan.run = KVP_SLAB_NONE;
    if (wish->spares == KVP_SPARES_UNWRITABLE)
        write_window(ev, &best);
    else
        *bytes_out = evict_window(ev, &best);
    return true;
}
