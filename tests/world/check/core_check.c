/* SPDX-License-Identifier: Apache-2.0
 * kvp_master_check: everything that the core keeps twice is counted from one side and held against the other. For
 * tests and the simulator: it may take as long as it likes. */
#include "tests/world/check/core_check.h"
#include "tests/world/check/slab_check.h"

#include "common/list.h"
#include "master/core/base/slab.h"
#include "master/core/base/heap.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/window.h"
#include "master/core/log/journal.h"
#include "master/core/api/master.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/group.h"
#include "master/core/protect/probe.h"
#include "master/core/protect/ticket.h"
#include "master/core/put/queue.h"
#include "master/core/request/remove.h"
#include "master/core/session/session.h"
#include "master/core/space/moving.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"
#include "master/core/recovery/state.h"
#include "proto/wire.h"

#include <stdlib.h>

#define SEARCHED_NS KVP_MS(200)

/* ---- one chunk */
static const char *
check_extents(const kvp_master_t *m, const kvp_chunk_t *c)
{
    if (!kvp_slab_is_open(c->slab) && !kvp_slab_check(c->slab)) return "an allocator is broken";
    if (c->long_keys != NULL && !kvp_slab_is_open(c->long_keys) && !kvp_slab_check(c->long_keys))
        return "an allocator of long keys is broken";
    for (uint32_t slot = kvp_slab_first(c->slab); slot != KVP_SLAB_NONE; slot = kvp_slab_next(c->slab, slot)) {
        uint32_t owner = kvp_slab_owner(c->slab, slot), cursor = owner, left = 1;

        if (!kvp_slab_is_allocated(c->slab, slot)) continue;
        if ((owner & KVP_RETIRING_BIT) != 0) {
            const kvp_retire_t *r = kvp_ptab_get(&m->space.retires, owner & ~KVP_RETIRING_BIT);

            if (r == NULL || r->chunk != c || r->slot != slot) return "a retiring extent has no record";
        } else {
            const kvp_obj_t *o;

            if (kvp_objindex_walk(m->cat.index, &cursor, UINT32_MAX, &left) != owner) return "an extent has no object";
            o = kvp_obj(m->cat.index, owner);
            if (!kvp_obj_lies_at(&m->cat, o, c, slot)) return "an extent and its object differ";
        }
    }
    return NULL;
}

static const char *
check_room(const kvp_segment_t *g)
{
    for (uint32_t i = 0; i < g->chunk_n; i++) {
        const kvp_chunk_t *c = &g->chunks[i];
        uint64_t longest = c->slab == NULL ? kvp_segment_chunk_bytes(g, i) : kvp_slab_largest_free(c->slab);

        if (g->room[g->room_leaves + i] != longest / KVP_SLAB_UNIT) return "the room of a chunk is wrong";
    }
    for (uint32_t node = 1; node < g->room_leaves; node++)
        if (g->room[node] != kvp_max_u64(g->room[2 * node], g->room[2 * node + 1])) return "the tree of room is wrong";
    return NULL;
}

/* ---- one segment */
typedef struct {
    uint64_t used, retiring, quarantined, objects, held;
} sums_t;

static void
add_chunk(const kvp_master_t *m, const kvp_chunk_t *c, sums_t *sums)
{
    for (uint32_t slot = kvp_slab_first(c->slab); slot != KVP_SLAB_NONE; slot = kvp_slab_next(c->slab, slot)) {
        if (!kvp_slab_is_allocated(c->slab, slot)) continue;
        sums->used += kvp_slab_len(c->slab, slot);
        if (kvp_retire_of(&m->space, c, slot) != NULL) continue;
        sums->objects++;
        sums->held += kvp_obj(m->cat.index, kvp_slab_owner(c->slab, slot))->tickets;
    }
}

static uint32_t
list_len(const kvp_list_t *list)
{
    uint32_t n = 0;

    kvp_list_foreach (pos, list)
        n++;
    return n;
}

static const char *
check_retires(const kvp_segment_t *g, sums_t *sums)
{
    uint32_t moving = 0;

    kvp_list_foreach (pos, &g->retires) {
        const kvp_retire_t *r = kvp_list_entry(pos, kvp_retire_t, link);

        sums->retiring += r->bytes;
        if (r->owner != 0) sums->quarantined += r->bytes;
        moving += r->state != KVP_RT_HELD && r->after == 0 &&
                  r->owner != KVP_OWNER_ANY - 1; /* that of a stage goes nowhere */
        if (r->chunk->segment != g) return "a retiring extent is in another segment";
        if ((r->claim == NULL) != kvp_list_is_empty(&r->claimed)) return "a claim is not linked";
        if (r->state == KVP_RT_HELD && r->claim == NULL) return "a free extent is kept for nobody";
        if (r->state == KVP_RT_HELD && !kvp_list_is_empty(&r->queue)) return "a free extent is queued";
    }
    if (moving != list_len(&g->unsent) + list_len(&g->sent)) return "a retiring extent is forgotten";
    if (g->node != NULL && !kvp_list_is_empty(&g->unsent) && kvp_list_is_empty(&g->sending)) return "orders are stuck";
    if (g->node == NULL && !kvp_list_is_empty(&g->sending)) return "orders go to a lost node";
    return NULL;
}

static const char *
check_claims(const kvp_master_t *m, const kvp_segment_t *g)
{
    kvp_list_foreach (pos, &g->claims) {
        const kvp_put_key_t *k = kvp_list_entry(pos, kvp_put_key_t, claim.of_segment);
        uint32_t left = 0;

        if (k->claim.chunk == NULL || k->claim.chunk->segment != g) return "a window is elsewhere";
        if (g->state != KVP_SEG_UP && !m->puts.is_leaving) return "a window is kept in a segment that takes no puts";
        if (!kvp_list_is_empty(&k->link)) return "a key has a window and waits for one";
        if ((k->claim.chunk->evacuating == &k->claim) != (k->evacuation != KVP_EVACUATION_NONE))
            return "a chunk is closed for somebody else";
        if (k->evacuation != KVP_EVACUATION_NONE) continue;
        kvp_list_foreach (at, &k->claim.records) {
            const kvp_retire_t *r = kvp_list_entry(at, kvp_retire_t, claimed);

            left += r->state != KVP_RT_HELD;
            if (r->claim != &k->claim || r->chunk != k->claim.chunk) return "a window has an extent of another";
        }
        if (left == 0 || left != k->claim.left) return "the count of a window is wrong";
    }
    return NULL;
}

bool
kvp_tiered_check(const kvp_master_t *m, uint32_t segment_id, kvp_digest_t digest, uint64_t version)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, digest);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);
    const kvp_segment_t *t = o == NULL || o->state != KVP_OBJ_COMMITTED ? NULL : kvp_obj_tier(&m->cat, o);

    return t != NULL && t->id == segment_id && kvp_obj_version(o) == version;
}

bool
kvp_place_check(const kvp_master_t *m, kvp_digest_t digest, uint64_t generation)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, digest);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = o == NULL || o->state != KVP_OBJ_COMMITTED ? 0 : kvp_obj_places(&m->cat, o, places);

    for (uint32_t i = 0; i < n; i++)
        if (places[i].generation == generation) return true;
    return false;
}

bool
kvp_loaded_check(const kvp_master_t *m, kvp_digest_t digest, uint64_t version)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, digest);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    return o == NULL || kvp_obj_version(o) != version || o->list != KVP_OBJLIST_LRU;
}

bool
kvp_warm_check(const kvp_master_t *m, kvp_digest_t digest)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, digest);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);
    const kvp_tenant_t *t = o == NULL || o->state != KVP_OBJ_COMMITTED ? NULL : kvp_obj_tenant(&m->cat, o);

    return t != NULL && t->lru.n > 0 &&
           kvp_obj_age(m->cat.index, o) < kvp_obj_age(m->cat.index, kvp_obj(m->cat.index, t->lru.oldest));
}

/* What is on a tier alone has a chunk that says so, and how long it is. */
static const char *
check_tier(const kvp_master_t *m, const kvp_segment_t *t)
{
    uint64_t bytes = 0, objects = 0;
    uint32_t cursor = 0, left = UINT32_MAX, oid;

    while ((oid = kvp_objindex_walk(m->cat.index, &cursor, UINT32_MAX, &left)) != KVP_OID_NONE) {
        const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

        if (o->is_on_tier == 0 || kvp_obj_chunk(&m->cat, o)->segment != t) continue;
        if (o->state != KVP_OBJ_COMMITTED || kvp_victim_is_listed(o))
            return "an object that is on a tier alone can be evicted";
        bytes += kvp_obj_len(&m->cat, o);
        objects++;
    }
    return bytes == t->used_bytes && objects == t->objects ? NULL : "the objects of a tier are miscounted";
}

static const char *
check_segment(const kvp_master_t *m, const kvp_segment_t *g, sums_t *totals)
{
    const char *why = check_room(g);
    sums_t sums = {0};

    for (uint32_t i = 0; why == NULL && i < g->chunk_n; i++) {
        if (g->chunks[i].slab == NULL) continue;
        why = check_extents(m, &g->chunks[i]);
        if (why == NULL) add_chunk(m, &g->chunks[i], &sums);
    }
    if (why == NULL) why = check_retires(g, &sums);
    if (why == NULL) why = check_claims(m, g);
    if (why != NULL) return why;
    if (sums.used != g->used_bytes) return "used bytes of a segment are wrong";
    if (sums.retiring != g->retiring_bytes) return "retiring bytes of a segment are wrong";
    if (sums.quarantined != g->quarantine_bytes) return "quarantined bytes of a segment are wrong";
    if (sums.objects != g->objects) return "the objects of a segment are miscounted";
    if (sums.held != g->held) return "the tickets of a segment are miscounted";
    if (g->state == KVP_SEG_LOST) return NULL;
    totals->used += sums.used;
    totals->retiring += sums.retiring;
    totals->quarantined += sums.quarantined;
    return NULL;
}

/* Whether it takes puts, as the lists of those that do have it. */
static const char *
check_up(const kvp_master_t *m, const kvp_segment_t *g)
{
    bool is_listed = g->up_at < m->cat.up_n && m->cat.up[g->up_at] == g;
    uint32_t of_host = 0, counted = 0;

    if (is_listed != (g->state == KVP_SEG_UP)) return "the list of segments that take puts is wrong";
    if (is_listed != (g->up_chunk.at != 0)) return "the longest chunks are of other segments";
    for (uint32_t i = 0; i < m->cat.up_n; i++)
        of_host += m->cat.up[i]->host == g->host;
    (void)kvp_umap_get(&m->cat.up_hosts, g->host, &counted);
    return of_host == counted ? NULL : "the segments of a host are miscounted";
}

static const char *
check_segments(const kvp_master_t *m)
{
    sums_t totals = {0};
    uint64_t size = 0, known = 0, n = 0, claims = 0, up = 0, slow = 0, lost = 0, coming = 0;

    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);
        const char *why = g->life == KVP_SEGMENT_DROPPED ? NULL
                          : g->is_tier                   ? check_tier(m, g)
                                                         : check_segment(m, g, &totals);

        if (why != NULL) return why;
        if (g->is_tier) continue;

        why = check_up(m, g);
        if (why != NULL) return why;
        claims += list_len(&g->claims);
        if (g->life != KVP_SEGMENT_DROPPED) known += g->size_bytes;
        up += g->state == KVP_SEG_UP;
        coming += g->state == KVP_SEG_UP ? g->retiring_bytes - g->quarantine_bytes : 0;
        slow += g->is_slow;
        lost += g->state == KVP_SEG_LOST;
        if (g->state != KVP_SEG_LOST && g->node == NULL) return "a segment has lost its node unnoticed";
        if (g->state == KVP_SEG_LOST) continue;
        size += g->size_bytes;
        n++;
    }
    if (totals.used != m->ctx.st.used_bytes) return "used bytes of the pool are wrong";
    if (totals.retiring != m->ctx.st.retiring_bytes) return "retiring bytes of the pool are wrong";
    if (totals.quarantined != m->ctx.st.quarantine_bytes) return "quarantined bytes of the pool are wrong";
    if (coming != m->cat.coming_bytes) return "the bytes that become free are miscounted";
    if (claims != m->puts.claims) return "the keys that have a window are miscounted";
    if (size != m->ctx.st.size_bytes || n != m->ctx.st.segments || known != m->cat.known_bytes)
        return "the size of the pool is wrong";
    if (up != m->cat.up_n || slow != m->cat.slow_n || lost != m->cat.lost_n) return "segments are miscounted";
    return kvp_heap_check(&m->cat.up_chunks);
}

/* ---- objects */
static uint32_t
tenant_of(const kvp_master_t *m, const kvp_obj_t *o)
{
    if (o->state == KVP_OBJ_COMMITTED) return kvp_obj_tenant(&m->cat, o)->id;
    return kvp_attempt_of(&m->cat, o)->tenant->id;
}

static uint32_t
indexed_as(const kvp_master_t *m, const kvp_obj_t *o)
{
    return kvp_objindex_find(m->cat.index, kvp_obj_digest(m->cat.index, o, m->ctx.conf.digest_seed, tenant_of(m, o)));
}

static const char *
check_copies(const kvp_master_t *m, uint32_t oid, const kvp_obj_t *o)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(&m->cat, o, places);
    const kvp_segment_t *at[KVP_REPLICAS_MAX];

    for (uint32_t i = 0; i < n; i++) {
        const kvp_chunk_t *c = kvp_place_chunk(&m->cat, &places[i]);

        if (c == NULL || kvp_slab_owner(c->slab, places[i].slot) != oid) return "a copy lies where another does";
        at[i] = c->segment;
        for (uint32_t k = 0; k < i; k++)
            if (at[k] == at[i]) return "two copies are in one segment";
    }
    return NULL;
}

static const char *
check_attempt(const kvp_master_t *m, uint32_t oid, const kvp_obj_t *o, const kvp_attempt_t *a)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t placed = kvp_obj_places(&m->cat, o, places), waiting = list_len(&a->claims);
    const kvp_attempt_t *replacement =
        a->over == KVP_OID_NONE ? NULL : kvp_attempt_replacement(&m->cat, kvp_obj(m->cat.index, a->over));

    if (placed + waiting == 0 || placed + waiting > a->copies) return "the copies of an attempt are miscounted";
    if (waiting > 0 && a->req == NULL) return "an attempt waits for nobody";
    if (a->req != NULL && a->req->objs[a->at].nloc != placed) return "a message names other copies";
    if ((o->state == KVP_OBJ_STAGED) != (a->over != KVP_OID_NONE)) return "a staged version has nothing to replace";
    if (a->over != KVP_OID_NONE && replacement != a) return "an object has another replacement";
    return check_copies(m, oid, o);
}

/* Whether the object itself may stand on a list of victims: it goes alone, or it is its group's lead. */
static bool
may_be_listed(const kvp_master_t *m, uint32_t oid, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(&m->cat, o);

    if (o->state != KVP_OBJ_COMMITTED || kvp_obj_is_on_tier_alone(&m->cat, o)) return false;
    if (mb == NULL) return o->pin != KVP_PIN_HARD;
    return mb->group->lead == oid && mb->group->pinned_n[KVP_PIN_HARD] == 0;
}

/* What has a ticket, or is being written to its tier, may have been parked, and nothing else. */
static bool
has_ticket(const kvp_master_t *m, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(&m->cat, o);
    const bool is_being_written = o->is_moving != 0 && !kvp_obj_is_on_tier_alone(&m->cat, o);

    return mb == NULL ? o->tickets > 0 || is_being_written : mb->group->held_n + mb->group->reserved_n > 0;
}

static const char *
check_listed(const kvp_master_t *m, uint32_t oid, const kvp_obj_t *o)
{
    bool may_be = may_be_listed(m, oid, o);

    if (kvp_victim_is_listed(o) ? !may_be : may_be && !has_ticket(m, o))
        return "an object is on a list of victims and should not be, or is not and should";
    if (kvp_victim_may_go(&m->prot, oid) != (may_be && !has_ticket(m, o)))
        return "an object is evictable and should not be, or is not and should";
    return o->list == KVP_OBJLIST_PROBED && has_ticket(m, o) ? "an object with a ticket is parked for its probe" : NULL;
}

static const char *
check_object(const kvp_master_t *m, uint32_t oid, const kvp_obj_t *o, const uint32_t *tickets)
{
    bool is_unfinished = o->state == KVP_OBJ_WRITING || o->state == KVP_OBJ_STAGED;
    const kvp_attempt_t *a = is_unfinished ? kvp_attempt_of(&m->cat, o) : NULL;
    const char *why = check_listed(m, oid, o);

    if (why != NULL) return why;
    if (is_unfinished != (a != NULL)) return "an object and its attempt disagree";
    if (a != NULL && a->oid != oid) return "an attempt is another object's";
    if (o->tickets != tickets[oid]) return "the tickets of an object are miscounted";
    if (o->state == KVP_OBJ_GONE ? kvp_obj_chunk(&m->cat, o) != NULL || o->tickets == 0
                                 : indexed_as(m, o) != (o->state == KVP_OBJ_STAGED ? a->over : oid))
        return "an object is not indexed, or still is";
    if (o->state == KVP_OBJ_COMMITTED && kvp_obj_chunk(&m->cat, o) == NULL) return "an object lies nowhere";
    return a == NULL ? check_copies(m, oid, o) : check_attempt(m, oid, o, a);
}

static bool
is_soft(const kvp_master_t *m, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(&m->cat, o);

    return mb == NULL ? o->pin == KVP_PIN_SOFT : mb->group->pinned_n[KVP_PIN_SOFT] > 0;
}

/* Counts the objects on a list that is in the order of uses. */
static const char *
check_order(const kvp_master_t *m, const kvp_objlist_t *list, uint64_t *walked)
{
    uint64_t n = 0, age = UINT64_MAX;

    for (uint32_t oid = list->oldest; oid != KVP_OID_NONE && n <= list->n; oid = kvp_obj(m->cat.index, oid)->next) {
        const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

        /* Those that were parked do not come back in order. */
        if (m->ctx.st.passed_over + m->ctx.st.probe_asides + m->ctx.st.ticket_asides + m->ctx.st.adopted == 0 &&
            kvp_obj_age(m->cat.index, o) > age)
            return "objects are out of order";
        if (o->list != list->kind || is_soft(m, o) != (list == &m->prot.pinned)) return "a pin is not heeded";
        age = kvp_obj_age(m->cat.index, o);
        n++;
    }
    *walked += n;
    return n == list->n ? NULL : "a list of victims is broken";
}

static uint64_t
bytes_of(const kvp_master_t *m, const kvp_objlist_t *list)
{
    uint64_t bytes = 0;

    for (uint32_t oid = list->oldest; oid != KVP_OID_NONE; oid = kvp_obj(m->cat.index, oid)->next)
        bytes += kvp_victim_bytes(&m->prot, oid);
    return bytes;
}

/* For loads without an extent something is on its way out of that segment, or there was a search a short time ago. */
static bool
is_looked_after(const kvp_master_t *m, const kvp_segment_t *g)
{
    return kvp_list_is_empty(&g->stages) || g->state != KVP_SEG_UP || g->placed_bytes > 0 || g->retiring_bytes > 0 ||
           m->ctx.now_ns < kvp_max_u64(g->room_ns, g->room_next_ns) + SEARCHED_NS || kvp_evict_is_early(&m->evict);
}

/* What is on its way between memory and tiers is counted by segment and by direction. */
static const char *
check_moves(const kvp_master_t *m)
{
    uint64_t writing = m->space.writing_bytes;

    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);
        uint64_t loading = g->loading_bytes, placed = g->placed_bytes, all = g->moving_bytes;

        for (uint32_t i = 0; i < m->space.moves.limit; i++) {
            const kvp_moving_t *mv = kvp_ptab_get(&m->space.moves, i);

            if (mv == NULL || mv->segment != g) continue;
            all -= mv->len;
            loading -= kvp_moving_is_load(mv) ? mv->len : 0;
            placed -= mv->is_placed ? mv->len : 0;
            writing -= kvp_moving_is_load(mv) ? 0 : mv->len;
        }
        if (loading != 0 || placed != 0 || all != 0) return "bytes on their way are wrong";
        if (!is_looked_after(m, g)) return "a load waits, and nothing is evicted for it";
    }
    return writing == 0 ? NULL : "bytes that are written are wrong";
}

static const char *
check_victims(const kvp_master_t *m, uint64_t listed)
{
    uint64_t walked = m->prot.probes.n;
    const char *why = check_order(m, &m->prot.pinned, &walked);

    for (uint32_t i = 0; why == NULL && i < m->cat.tenants.limit; i++) {
        const kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t != NULL) why = check_order(m, &t->lru, &walked);
        if (t != NULL && why == NULL) why = check_order(m, &t->cold, &walked);
        if (t != NULL && why == NULL && bytes_of(m, &t->cold) != t->cold_bytes) why = "loaded bytes are wrong";
    }
    if (why != NULL) return why;
    kvp_list_foreach (pos, &m->cat.segments)
        walked += kvp_list_entry(pos, kvp_segment_t, link)->parked.n;
    return walked == listed ? NULL : "a victim is lost";
}

static const char *
check_objects(const kvp_master_t *m, const uint32_t *tickets)
{
    uint64_t committed = 0, writing = 0, listed = 0, pinned[KVP_PIN_HARD + 1] = {0};
    uint32_t cursor = 0, left = UINT32_MAX, oid;

    while ((oid = kvp_objindex_walk(m->cat.index, &cursor, UINT32_MAX, &left)) != KVP_OID_NONE) {
        const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
        const char *why = check_object(m, oid, o, tickets);

        if (why != NULL) return why;
        committed += o->state == KVP_OBJ_COMMITTED;
        writing += o->state == KVP_OBJ_WRITING || o->state == KVP_OBJ_STAGED;
        listed += kvp_victim_is_listed(o);
        pinned[o->pin] += kvp_obj_bytes(&m->cat, o);
    }
    if (committed != m->ctx.st.objects) return "the count of objects is wrong";
    if (writing != m->ctx.st.attempts) return "the count of attempts is wrong";
    if (pinned[KVP_PIN_SOFT] != m->ctx.st.soft_pinned_bytes || pinned[KVP_PIN_HARD] != m->ctx.st.hard_pinned_bytes)
        return "pinned bytes are wrong";
    const char *why = check_moves(m);

    return why == NULL ? check_victims(m, listed) : why;
}

/* ---- sessions */
typedef struct {
    uint64_t held, reserved; /* bytes */
    uint64_t groups; /* reservations of them */
    uint32_t n, objects;
} ticket_sums_t;

static const char *
add_tickets(const kvp_master_t *m, const kvp_list_t *list, const kvp_session_t *owner, uint32_t *tickets,
            ticket_sums_t *sums)
{
    kvp_list_foreach (pos, list) {
        const kvp_ticket_t *t = kvp_list_entry(pos, kvp_ticket_t, link);

        if (t->session != owner || kvp_ptab_get(&m->prot.tickets, t->number) != t)
            return "a ticket is not in its table";
        if ((t->kind == KVP_TICKET_RESERVE && owner != NULL) != (t->expiry.at != 0))
            return "a reservation will not expire";
        for (uint32_t i = 0; i < t->n && t->oids != NULL; i++)
            tickets[t->oids[i]]++;
        if (t->groups != NULL) sums->groups += t->n;
        sums->n++;
        sums->objects += t->n;
        if (t->kind == KVP_TICKET_RESERVE)
            sums->reserved += t->bytes;
        else
            sums->held += t->bytes;
    }
    return NULL;
}

static const char *
check_tickets(const kvp_master_t *m, const kvp_session_t *s, uint32_t *tickets, ticket_sums_t *totals)
{
    ticket_sums_t mine = {0};
    const char *why = add_tickets(m, &s->tickets, s, tickets, &mine);

    if (why != NULL) return why;
    if (mine.reserved != s->reserved_bytes) return "the reserved bytes of a client are wrong";
    if (mine.n != s->tickets_n || mine.objects != s->ticket_objects) return "a client's tickets are miscounted";
    totals->held += mine.held;
    totals->reserved += mine.reserved;
    totals->groups += mine.groups;
    return NULL;
}

static const char *
check_req(const kvp_put_req_t *p, uint64_t *pending)
{
    uint32_t claims = 0, grants = 0;

    kvp_list_foreach (pos, &p->keys) {
        const kvp_put_key_t *k = kvp_list_entry(pos, kvp_put_key_t, of_req);

        claims += k->claim.chunk != NULL;
        if (k->req != p || k->attempt->req != p) return "a key waits for another message";
        if (k->claim.chunk == NULL && kvp_list_is_empty(&k->link)) return "a key waits for nothing";
    }
    for (uint32_t i = 0; i < p->n; i++)
        grants += p->objs[i].nloc;
    if (claims != p->claims || grants != p->grants) return "a message that waits is miscounted";
    if (p->left == 0 || list_len(&p->keys) != p->left) return "a message waits for nothing";
    *pending += p->left;
    return NULL;
}

static const char *
check_session(const kvp_session_t *s, uint64_t *pending, uint64_t *waiting)
{
    uint64_t bytes = 0;
    uint32_t number;

    kvp_list_foreach (pos, &s->attempts) {
        const kvp_attempt_t *a = kvp_list_entry(pos, kvp_attempt_t, link);

        bytes += a->bytes * a->copies;
        *waiting += !kvp_list_is_empty(&a->claims);
        if (!kvp_umap_get(&s->attempt_ids, a->id, &number) || number != a->number) return "an attempt cannot be found";
        if ((a->req == NULL) != kvp_list_is_empty(&a->of_req)) return "an attempt is not linked to its message";
    }
    if (list_len(&s->attempts) != s->attempt_ids.n) return "attempts of a client are miscounted";
    if (list_len(&s->members) != s->members_n) return "the members that a client owns are miscounted";
    if (list_len(&s->deferred) != s->deferred_n) return "the answers that a client waits for are miscounted";
    if (bytes != s->attempt_bytes) return "the unfinished bytes of a client are wrong";
    if (list_len(&s->segments) != s->segments_n) return "the segments of a node are miscounted";
    if (list_len(&s->retire_reqs) != s->retire_reqs_n) return "the orders to a node are miscounted";
    if (s->conn == 0 && kvp_list_is_empty(&s->over)) return "a session is kept for nothing";
    kvp_list_foreach (pos, &s->reqs) {
        const char *why = check_req(kvp_list_entry(pos, kvp_put_req_t, link), pending);

        if (why != NULL) return why;
    }
    return NULL;
}

static const char *
check_sessions(const kvp_master_t *m, uint32_t *tickets, uint64_t *reserved_groups)
{
    ticket_sums_t totals = {0};
    uint64_t pending = 0, waiting = 0;
    const char *ending = add_tickets(m, &m->prot.ending, NULL, tickets, &totals);

    if (ending != NULL) return ending;
    for (uint32_t i = 0; i < m->peers.sessions.limit; i++) {
        const kvp_session_t *s = kvp_ptab_get(&m->peers.sessions, i);
        const char *why = s == NULL ? NULL : check_tickets(m, s, tickets, &totals);

        if (why == NULL && s != NULL) why = check_session(s, &pending, &waiting);
        if (why != NULL) return why;
    }
    if (totals.held != m->ctx.st.held_bytes) return "the held bytes are wrong";
    if (totals.reserved != m->ctx.st.reserved_bytes) return "the reserved bytes are wrong";
    if (pending != m->ctx.st.pending_puts || waiting != m->puts.waiting_attempts)
        return "the puts that wait are miscounted";
    *reserved_groups = totals.groups;
    return kvp_heap_check(&m->prot.expiries);
}

/* ---- tenants and leases */
typedef struct {
    uint64_t objects, used, going, chunk_bytes, pinned[KVP_PIN_HARD + 1];
    uint32_t chunks, refs;
} tenant_sums_t;

static void
add_tenants(const kvp_master_t *m, tenant_sums_t *sums)
{
    for (uint32_t i = 0; i < m->cat.chunks.limit; i++) {
        const kvp_chunk_t *c = kvp_ptab_get(&m->cat.chunks, i);

        if (c != NULL && c->taker != NULL) sums[c->taker->number].refs++;
        if (c == NULL || c->tenant == NULL) continue;
        if (c->segment->is_tier) {
            sums[c->tenant->number].refs++;
            continue;
        }
        sums[c->tenant->number].chunks++;
        sums[c->tenant->number].chunk_bytes += c->bytes;
        sums[c->tenant->number].refs++;
        sums[c->tenant->number].used += kvp_slab_used_bytes(c->slab);
    }
    for (uint32_t cursor = 0, left = UINT32_MAX, oid;
         (oid = kvp_objindex_walk(m->cat.index, &cursor, UINT32_MAX, &left)) != KVP_OID_NONE;) {
        const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

        if (o->state != KVP_OBJ_COMMITTED) continue;
        sums[kvp_obj_tenant(&m->cat, o)->number].objects++;
        sums[kvp_obj_tenant(&m->cat, o)->number].pinned[o->pin] += kvp_obj_bytes(&m->cat, o);
    }
    for (uint32_t i = 0; i < m->space.retires.limit; i++) {
        const kvp_retire_t *r = kvp_ptab_get(&m->space.retires, i);

        if (r != NULL && r->owner == 0) sums[r->chunk->tenant->number].going += r->bytes;
    }
    for (uint32_t i = 0; i < m->peers.sessions.limit; i++) {
        const kvp_session_t *s = kvp_ptab_get(&m->peers.sessions, i);

        if (s != NULL && s->tenant != NULL) sums[s->tenant->number].refs++;
    }
    for (uint32_t i = 0; i < m->prot.groups.limit; i++) {
        const kvp_group_t *g = kvp_ptab_get(&m->prot.groups, i);

        if (g != NULL) sums[g->tenant].refs++;
    }
    kvp_list_foreach (pos, &m->jobs)
        sums[kvp_list_entry(pos, kvp_walk_t, link)->tenant->number].refs++;
}

static const char *
check_leases(const kvp_tenant_t *t)
{
    uint64_t seq = 0;

    if (t->revoke_seq - t->revoked_from > t->revoked_cap) return "revocations are lost";
    if (t->leases.n == 0 && t->revoked_cap != 0) return "revocations are kept for nobody";
    for (uint32_t i = 1; i < t->lost_n; i++) {
        if (t->lost[i].applied <= t->lost[i - 1].applied) return "lost leases are out of order";
        if (t->lost[i].until_ns < t->lost[i - 1].until_ns) return "lost leases end out of order";
    }
    if ((t->lost_n > 0 || !kvp_list_is_empty(&t->deferred)) && kvp_list_is_empty(&t->leasing))
        return "nobody looks at the leases of a tenant";
    kvp_list_foreach (pos, &t->deferred) {
        const kvp_deferred_t *w = kvp_list_entry(pos, kvp_deferred_t, leases);

        if (!w->is_lease_awaited || w->session == NULL || w->session->tenant != t)
            return "a deferred reply waits for nothing";
        if (w->revoke_seq < seq) return "deferred replies are out of order";
        seq = w->revoke_seq;
    }
    return kvp_heap_check(&t->leases);
}

static const char *
check_share(const kvp_tenant_t *t, const tenant_sums_t *sum)
{
    const kvp_take_t *take = &t->take;

    if (sum->used != t->used_bytes) return "the used bytes of a tenant are wrong";
    if (sum->going != t->going_bytes) return "the bytes of a tenant that become free are wrong";
    if (sum->chunks != t->chunks || sum->chunk_bytes != t->chunk_bytes) return "the chunks of a tenant are miscounted";
    if ((t->chunks == 0) != kvp_list_is_empty(&t->owning)) return "a tenant has chunks and is no owner";
    if ((take->state == KVP_TAKE_NONE) != kvp_list_is_empty(&take->link)) return "a chunk is taken by nobody";
    if (take->state != KVP_TAKE_NONE && take->chunk->taker != t) return "a chunk is taken for another";
    return NULL;
}

static const char *
check_tenants(const kvp_master_t *m)
{
    tenant_sums_t *sums = kvp_core_alloc((size_t)m->cat.tenants.limit + 1, sizeof *sums);
    const char *why = NULL;
    uint64_t leases = 0, owned = 0;
    uint32_t used = 0, bumped = 0;

    add_tenants(m, sums);
    for (uint32_t i = 0; why == NULL && i < m->cat.tenants.limit; i++) {
        const kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t == NULL) continue;
        leases += t->leases.n;
        owned += t->chunk_bytes;
        used += t->refs > 0;
        bumped += t->min_version > 0;
        why = check_leases(t);
        if (why == NULL) why = check_share(t, &sums[i]);
        if (sums[i].objects != t->objects) why = "the objects of a tenant are miscounted";
        if (sums[i].pinned[KVP_PIN_SOFT] != t->soft_pinned_bytes) why = "the soft pins of a tenant are miscounted";
        if (sums[i].pinned[KVP_PIN_HARD] != t->hard_pinned_bytes) why = "the hard pins of a tenant are miscounted";
        if (sums[i].refs != t->refs) why = "a tenant's record is kept for nobody, or may go too early";
    }
    free(sums);
    if (why == NULL && (used != m->cat.tenants_used || bumped != m->cat.tenants_bumped)) why = "tenants are miscounted";
    if (why == NULL && (owned != m->cat.owned_bytes || list_len(&m->cat.owners) != m->cat.owners_n))
        why = "owners are miscounted";
    if (why == NULL && (leases != m->ctx.st.leases || leases != list_len(&m->prot.leases)))
        why = "leases are miscounted";
    return why;
}

const char *
kvp_master_check(const kvp_master_t *m)
{
    uint32_t *tickets = kvp_core_alloc((size_t)kvp_obj_limit(m->cat.index) + 1, sizeof *tickets);
    uint64_t reserved_groups = 0;
    const char *why = check_sessions(m, tickets, &reserved_groups);

    if (why == NULL) why = check_objects(m, tickets);
    if (why == NULL) why = check_segments(m);
    if (why == NULL) why = check_tenants(m);
    if (why == NULL) why = kvp_probe_check(&m->prot);
    if (why == NULL) why = kvp_journal_check(m);
    if (why == NULL) why = kvp_groups_check(&m->prot, reserved_groups);
    if (why == NULL) why = kvp_heap_check(&m->prot.deferred);
    free(tickets);
    return why;
}
