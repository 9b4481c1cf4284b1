/* SPDX-License-Identifier: Apache-2.0
 * Moves chunks between tenants. A chunk belongs to one tenant, but eviction should remove the oldest objects of the
 * whole pool (docs/adr/0007). From time to time a tenant that must evict one of its own objects compares its list of
 * candidates with the lists of other tenants. If another tenant with one chunk less would still have older objects
 * than this tenant with one chunk more, this tenant takes the other tenant's coldest chunk: all objects of the chunk
 * are evicted, and the freed space is kept for the taking tenant. A tenant that uses less than half of its chunks'
 * bytes also gives a chunk.
 *
 * Design notes. There is no order of all chunks: the first victims of a tenant are its oldest objects, and the chunk
 * with the most of them is nearly its coldest. No put waits for a chunk that is being taken: meanwhile the taking
 * tenant evicts its own objects. A tenant's last chunk is not taken here; evacuate.c serves tenants without victims. */
#include "master/core/evict/rebalance.h"

#include "common/list.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/base/heap.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/evict/eviction.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/protect/probe.h"
#include "master/core/space/retire.h"
#include "proto/wire.h"

#define LOOK_SHARE 8u /* a tenant looks for a chunk to take after puts of 1/8 of its chunks' mean length */
#define OWNERS_LOOKED_AT 64u /* limit of the tenants that find_richest examines; its next call examines others */
/* number of a tenant's first victims whose bytes are summed by chunk, to find its coldest chunk */
#define TAIL 128u
#define TAIL_CHUNKS 16u /* limit of the chunks for which these bytes are summed */
/* the giving tenant's oldest objects must be older by 1/8, or chunks would move back and forth by chance */
#define MARGIN 8u
/* a chunk is taken only if at least 1/8 of its bytes is older than the taking tenant's own first victim */
#define OLD_SHARE 8u
#define FREE_AGE (UINT64_MAX / 16) /* the age of free space: greater than the age of any object */
#define AGAIN_NS KVP_MS(10)
#define GIVE_UP_NS KVP_MS(1000)
#define KEPT_NS KVP_MS(1000) /* an empty chunk is kept for the taking tenant for this time */
#define UNTAKEN_NS KVP_MS(1000) /* a chunk that could not be taken is not examined again for this time */

/* ---- choosing the tenant that gives a chunk */
/* Estimates the age of the tenant's first victim if the tenant had n chunks: the age is proportional to the space. */
static uint64_t
age_with(kvp_evict_t *ev, kvp_tenant_t *t, uint64_t n)
{
    uint32_t oid = kvp_victim_behind(ev->prot, &t->lru, KVP_OID_NONE);

    if (oid == KVP_OID_NONE || t->chunks == 0) return 0;
    return kvp_obj_age(ev->cat->index, kvp_obj(ev->cat->index, oid)) * n / t->chunks;
}

/* Estimates the age of the first victim of a tenant that gives a chunk. Returns 0 for a tenant with a single chunk,
 * which gives none, and FREE_AGE if more than half of its bytes is free: holes between objects are not so large. */
static uint64_t
age_to_give(kvp_evict_t *ev, kvp_tenant_t *t)
{
    if (t->chunks == 1) return 0;
    if ((t->used_bytes - t->going_bytes) * 2 < t->chunk_bytes) return FREE_AGE;
    return age_with(ev, t, t->chunks - 1ull);
}

/* Returns the tenant that would have the oldest objects after giving a chunk; NULL = no tenant has a chunk to give. */
static kvp_tenant_t *
find_richest(kvp_evict_t *ev, const kvp_tenant_t *own, uint64_t *age_out)
{
    kvp_tenant_t *best = NULL;

    *age_out = 0;
    for (uint64_t i = kvp_min_u64(ev->cat->owners_n, OWNERS_LOOKED_AT); i > 0; i--) {
        kvp_tenant_t *t = kvp_list_first(&ev->cat->owners, kvp_tenant_t, owning);
        uint64_t age = age_to_give(ev, t);

        kvp_ctx_spend(ev->ctx, 1);
        kvp_list_del(&t->owning);
        kvp_list_add_tail(&ev->cat->owners, &t->owning);
        if (t == own || age <= *age_out) continue;
        best = t;
        *age_out = age;
    }
    return best;
}

/* ---- choosing the chunk */
static bool
may_take(const kvp_evict_t *ev, const kvp_chunk_t *c, uint64_t len)
{
    return c->segment->state == KVP_SEG_UP && !kvp_segment_is_passed_over(ev->cat, c->segment) &&
           c->evacuating == NULL && c->taker == NULL && c->unclaimed == 0 && ev->ctx->now_ns >= c->untaken_ns &&
           c->bytes >= kvp_extent_bytes(len);
}

/* Returns the chunk with the most bytes of the tenant's first victims; NULL = no such chunk may be taken. */
static kvp_chunk_t *
coldest_of(kvp_evict_t *ev, kvp_tenant_t *t, uint64_t len)
{
    kvp_chunk_t *seen[TAIL_CHUNKS], *best = NULL;
    uint64_t bytes[TAIL_CHUNKS], most = 0; /* bytes of first victims in each of the chunks */
    uint32_t n = 0, oid = KVP_OID_NONE;

    for (uint32_t left = TAIL; left > 0 && (oid = kvp_victim_behind(ev->prot, &t->lru, oid)) != KVP_OID_NONE; left--) {
        const kvp_obj_t *o = kvp_obj(ev->cat->index, oid);
        kvp_chunk_t *c = kvp_obj_chunk(ev->cat, o);
        uint32_t i = 0;

        if (!may_take(ev, c, len)) continue;
        while (i < n && seen[i] != c)
            i++;
        if (i == TAIL_CHUNKS) continue;
        if (i == n) {
            seen[n] = c;
            bytes[n++] = 0;
        }
        bytes[i] += kvp_slab_len(c->slab, (uint32_t)o->slot);
        if (bytes[i] <= most) continue;
        most = bytes[i];
        best = c;
    }
    kvp_ctx_spend(ev->ctx, TAIL);
    return best;
}

kvp_chunk_t *
kvp_rebalance_coldest(kvp_evict_t *ev, const kvp_tenant_t *t, uint64_t len)
{
    uint64_t age;
    kvp_tenant_t *from = find_richest(ev, t, &age);

    return from == NULL ? NULL : coldest_of(ev, from, len);
}

/* ---- beginning and ending */
static void
begin_take(kvp_evict_t *ev, kvp_tenant_t *t, kvp_chunk_t *c)
{
    uint32_t own = kvp_victim_behind(ev->prot, &t->lru, KVP_OID_NONE);

    t->take.state = KVP_TAKE_LOOK;
    t->take.chunk = c;
    t->take.age = own == KVP_OID_NONE ? 0 : kvp_obj_age(ev->cat->index, kvp_obj(ev->cat->index, own));
    t->take.slot = KVP_SLAB_NONE;
    t->take.recent_bytes = 0;
    t->take.next_ns = ev->ctx->now_ns;
    t->take.end_ns = ev->ctx->now_ns + GIVE_UP_NS;
    c->taker = t;
    t->refs++;
    kvp_list_add_tail(&ev->cat->taking, &t->take.link);
    ev->space->has_take_news = true;
}

/* Ends the taking of a chunk: the chunk is open to the puts of its present owner again. */
static void
end_take(kvp_evict_t *ev, kvp_tenant_t *t)
{
    t->take.chunk->taker = NULL;
    t->take.chunk = NULL;
    t->take.state = KVP_TAKE_NONE;
    kvp_list_del(&t->take.link);
    kvp_ctx_space_news(ev->ctx);
    kvp_tenant_rele(ev->cat, t);
}

static void
give_up(kvp_evict_t *ev, kvp_tenant_t *t)
{
    t->take.chunk->untaken_ns = ev->ctx->now_ns + UNTAKEN_NS;
    end_take(ev, t);
}

void
kvp_rebalance_look(kvp_evict_t *ev, kvp_tenant_t *t, uint64_t len)
{
    uint64_t theirs;
    kvp_tenant_t *from;
    kvp_chunk_t *c;

    if (ev->cat->owners_n < 2 || t->chunks == 0 || t->take.state != KVP_TAKE_NONE) return;
    if (t->put_bytes * LOOK_SHARE < t->chunk_bytes / t->chunks || ev->ctx->slice_left < TAIL) return;
    t->put_bytes = 0;
    from = find_richest(ev, t, &theirs);
    if (from == NULL || age_with(ev, t, t->chunks + 1ull) * (MARGIN + 1) >= theirs * MARGIN) return;
    c = coldest_of(ev, from, len);
    if (c != NULL) begin_take(ev, t, c);
}

/* ---- examining the chunk, and evacuating it */
typedef enum {
    GOES,
    STAYS, /* not free soon: its object is being written or read, or a claim waits for the extent */
    STAYS_LONG, /* not free for an unknown time: pinned or probed object, or quarantined extent */
} may_go_t;

static may_go_t
may_extent_go(kvp_evict_t *ev, kvp_take_t *take, uint32_t slot)
{
    const kvp_slab_t *slab = take->chunk->slab;
    const kvp_retire_t *r = kvp_retire_of(ev->space, take->chunk, slot);
    const kvp_obj_t *o, *unit;
    uint32_t oid;

    if (!kvp_slab_is_allocated(slab, slot)) return GOES;
    kvp_ctx_spend(ev->ctx, 1);
    if (r != NULL) return r->owner != 0 ? STAYS_LONG : r->claim != NULL ? STAYS : GOES;
    oid = kvp_slab_owner(slab, slot);
    o = kvp_obj(ev->cat->index, oid);
    if (kvp_group_is_doomed(ev->cat, o) && o->state == KVP_OBJ_COMMITTED) return GOES;
    oid = kvp_victim_unit(ev->cat, oid);
    unit = kvp_obj(ev->cat->index, oid);
    if (o->pin != KVP_PIN_NONE || unit->list == KVP_OBJLIST_PINNED || kvp_probe_protects(ev->prot, oid))
        return STAYS_LONG;
    if (!kvp_victim_may_go(ev->prot, oid)) return STAYS;
    if (kvp_obj_age(ev->cat->index, unit) < take->age) take->recent_bytes += kvp_slab_len(slab, slot);
    return GOES;
}

/* Returns the slot at which the walk continues. If this slot was merged and no longer exists, the walk starts again. */
static uint32_t
walk_from(kvp_take_t *take)
{
    if (take->slot != KVP_SLAB_NONE && kvp_slab_len(take->chunk->slab, take->slot) > 0) return take->slot;
    take->recent_bytes = 0;
    return kvp_slab_first(take->chunk->slab);
}

/* Examines the extents of the chunk. EAGAIN: an extent cannot be freed at present, or the step's budget is used up.
 * NO_SPACE: the chunk cannot be emptied, or too few of its bytes are old. The chunk is closed to puts meanwhile, so
 * unfinished writes and reads there will end. */
static kvp_err_t
look_at_chunk(kvp_evict_t *ev, kvp_take_t *take)
{
    const kvp_chunk_t *c = take->chunk;

    for (uint32_t slot = walk_from(take); slot != KVP_SLAB_NONE; slot = kvp_slab_next(c->slab, slot)) {
        take->slot = slot;
        if (ev->ctx->work_left == 0 || ev->ctx->slice_left == 0) return KVP_EAGAIN;
        ev->ctx->work_left--;
        switch (may_extent_go(ev, take, slot)) {
        case GOES:
            break;
        case STAYS:
            take->next_ns = ev->ctx->now_ns + AGAIN_NS;
            return KVP_EAGAIN;
        case STAYS_LONG:
            return KVP_NO_SPACE;
        }
        if (take->recent_bytes > c->bytes - c->bytes / OLD_SHARE) return KVP_NO_SPACE;
    }
    return KVP_OK;
}

/* Evicts the objects of the chunk. Returns false if the step's budget is used up. Objects that cannot be evicted at
 * present are tried again by a later walk. If no object stays, the take waits for the node's answers without limit. */
static bool
evacuate_chunk(kvp_evict_t *ev, kvp_take_t *take)
{
    const kvp_chunk_t *c = take->chunk;

    if (take->slot == KVP_SLAB_NONE) take->has_stayed = false;
    for (uint32_t slot = walk_from(take); slot != KVP_SLAB_NONE; slot = kvp_slab_next(c->slab, slot)) {
        take->slot = slot;
        if (ev->ctx->work_left == 0 || ev->ctx->slice_left == 0) return false;
        ev->ctx->work_left--;
        if (!kvp_slab_is_allocated(c->slab, slot) || kvp_retire_of(ev->space, c, slot) != NULL) continue;
        if (may_extent_go(ev, take, slot) == GOES)
            kvp_evict_unit(ev, kvp_slab_owner(c->slab, slot));
        else
            take->has_stayed = true;
    }
    take->slot = KVP_SLAB_NONE;
    take->next_ns = take->has_stayed ? ev->ctx->now_ns + AGAIN_NS : UINT64_MAX;
    if (!take->has_stayed) take->end_ns = UINT64_MAX;
    return true;
}

/* Keeps the chunk, which has become empty, for the taking tenant for a while: otherwise the next put of its former
 * owner could get it. */
static void
note_empty(kvp_evict_t *ev, kvp_take_t *take)
{
    take->state = KVP_TAKE_KEPT;
    take->end_ns = ev->ctx->now_ns + KEPT_NS;
    ev->ctx->st.chunks_taken++;
    kvp_ctx_space_news(ev->ctx);
}

/* Continues the taking of a chunk. Returns false if the step's budget is used up. */
static bool
go_on(kvp_evict_t *ev, kvp_tenant_t *t)
{
    kvp_take_t *take = &t->take;

    if (take->chunk->segment->state != KVP_SEG_UP) {
        end_take(ev, t);
        return true;
    }
    if (take->chunk->tenant == NULL && take->state != KVP_TAKE_KEPT) note_empty(ev, take);
    if (take->state == KVP_TAKE_KEPT) {
        if (take->chunk->tenant != NULL || ev->ctx->now_ns >= take->end_ns) end_take(ev, t);
        return true;
    }
    if (ev->ctx->now_ns >= take->end_ns) {
        give_up(ev, t);
        return true;
    }
    if (ev->ctx->now_ns < take->next_ns) return true;
    if (take->state == KVP_TAKE_EVACUATE) return evacuate_chunk(ev, take);
    switch (look_at_chunk(ev, take)) {
    case KVP_OK:
        take->state = KVP_TAKE_EVACUATE;
        take->slot = KVP_SLAB_NONE;
        take->next_ns = ev->ctx->now_ns;
        take->end_ns = ev->ctx->now_ns + GIVE_UP_NS;
        return evacuate_chunk(ev, take);
    case KVP_NO_SPACE:
        give_up(ev, t);
        return true;
    default:
        return ev->ctx->now_ns < take->next_ns;
    }
}

void
kvp_rebalance_tick(kvp_evict_t *ev)
{
    ev->space->has_take_news = false;
    kvp_list_foreach_safe (pos, tmp, &ev->cat->taking) {
        if (!go_on(ev, kvp_container_of(pos, kvp_tenant_t, take.link))) {
            ev->space->has_take_news = true;
            return;
        }
    }
}

void
kvp_rebalance_leave_segment(kvp_evict_t *ev, const kvp_segment_t *g)
{
    kvp_list_foreach_safe (pos, tmp, &ev->cat->taking) {
        kvp_tenant_t *t = kvp_container_of(pos, kvp_tenant_t, take.link);

        if (t->take.chunk->segment == g) end_take(ev, t);
    }
}
