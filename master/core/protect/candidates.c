/* SPDX-License-Identifier: Apache-2.0
 * Candidates for eviction, and their order. An evictable object is on one list: its tenant's LRU list, or cold list
 * (objects loaded from a tier); or, while the node of its segment does not answer orders, the segment's list; or, while
 * a probe protects it, a list of probe.c, so that searches for the oldest object do not meet it repeatedly. Softly
 * pinned objects have a list that comes after all these. Hard-pinned objects are on no list. One member of a group
 * represents the group on a list: group.c.
 *
 * Design notes. A ticket keeps its object from eviction and changes nothing else: the object keeps its place, and grows
 * older. If eviction meets the object, the object is taken off every list, so that no search meets it twice; at the end
 * of its last ticket it returns to the place of its last use. So a ticket costs eviction one step at most. */
#include "master/core/protect/candidates.h"

#include "common/mutate.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/group.h"
#include "master/core/protect/probe.h"
#include "master/core/protect/protection.h"
#include "proto/wire.h"

#define COLD_SHARE 8u /* objects loaded from a tier may have 1/8 of a tenant's memory */
#define BACK_STEPS 8u /* limit of the comparisons to find an object's place on a list of eviction candidates */

/* ---- a list in the order of uses */
static void
push_used(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid)
{
    kvp_objlist_remove(ix, list, oid);
    kvp_obj_touch(ix, kvp_obj(ix, oid));
    kvp_objlist_push_young(ix, list, oid);
}

/* Returns an object to the place of its last use in the list, or near to it. The object was taken off as one of the
 * oldest, so only objects that returned a short while ago can be older. */
static void
push_back(kvp_objindex_t *ix, kvp_objlist_t *list, uint32_t oid)
{
    uint32_t age = kvp_obj_age(ix, kvp_obj(ix, oid)), older = KVP_OID_NONE, next = list->oldest;

    for (uint32_t n = 0; n < BACK_STEPS && next != KVP_OID_NONE && kvp_obj_age(ix, kvp_obj(ix, next)) > age; n++) {
        older = next;
        next = kvp_obj(ix, next)->next;
    }
    kvp_objlist_push_behind(ix, list, older, oid);
}

static uint32_t
next_oldest(kvp_objindex_t *ix, const kvp_objlist_t *list, uint32_t after)
{
    return after == KVP_OID_NONE ? list->oldest : kvp_obj(ix, after)->next;
}

/* ---- the lists */
static kvp_objlist_t *
list_of(kvp_protect_t *prot, const kvp_obj_t *o)
{
    switch (o->list) {
    case KVP_OBJLIST_LRU:
        return &kvp_obj_tenant(prot->cat, o)->lru;
    case KVP_OBJLIST_COLD:
        return &kvp_obj_tenant(prot->cat, o)->cold;
    case KVP_OBJLIST_PINNED:
        return &prot->pinned;
    case KVP_OBJLIST_PARKED:
        return &kvp_obj_chunk(prot->cat, o)->segment->parked;
    default:
        return NULL;
    }
}

/* Returns true while the object is being written to its tier; it is not evicted then. Evicting it would lose the
 * object and waste the write; with a slow disk the same would happen to every following write. */
static bool
is_being_written(const kvp_protect_t *prot, const kvp_obj_t *o)
{
    return o->is_moving != 0 && !kvp_obj_is_on_tier_alone(prot->cat, o);
}

/* Subtracts the object from its tenant's ahead_bytes, if the write-back walk (evict/ahead.c) has counted it. */
static void
uncount_ahead(kvp_protect_t *prot, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);

    if (o->is_ahead != 0) kvp_obj_tenant(prot->cat, o)->ahead_bytes -= kvp_victim_bytes(prot, oid);
    o->is_ahead = 0;
}

/* Called when the object leaves the LRU list. An object that is being written stays counted in ahead_bytes. */
static void
leave_ahead(kvp_protect_t *prot, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);
    kvp_tenant_t *t = kvp_obj_tenant(prot->cat, o);

    if (t->ahead == oid) t->ahead = o->prev;
    if (!is_being_written(prot, o)) uncount_ahead(prot, oid);
}

static void
take_off(kvp_protect_t *prot, kvp_objlist_t *list, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(prot->cat->index, oid);

    if (o->list == KVP_OBJLIST_LRU) leave_ahead(prot, oid);
    if (o->list == KVP_OBJLIST_COLD) kvp_obj_tenant(prot->cat, o)->cold_bytes -= kvp_victim_bytes(prot, oid);
    kvp_objlist_remove(prot->cat->index, list, oid);
}

bool
kvp_victim_is_hard(const kvp_obj_t *o, const kvp_member_t *mb)
{
    if (mb == NULL) return o->pin == KVP_PIN_HARD && KVP_RULE(HARD_PIN);
    return mb->group->pinned_n[KVP_PIN_HARD] > 0;
}

/* Returns the list to which a used unit belongs, the LRU list or the pinned one; NULL = it cannot be evicted. */
static kvp_objlist_t *
home_of(kvp_protect_t *prot, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(prot->cat, o);
    bool is_soft = mb == NULL ? o->pin == KVP_PIN_SOFT : mb->group->pinned_n[KVP_PIN_SOFT] > 0;

    if (kvp_obj_is_on_tier_alone(prot->cat, o)) return NULL; /* its eviction frees no memory */
    if (kvp_victim_is_hard(o, mb) || (mb != NULL && mb->group->is_doomed)) return NULL;
    return is_soft ? &prot->pinned : &kvp_obj_tenant(prot->cat, o)->lru;
}

/* Returns true if this object, or an object that would be evicted with it, has a ticket or is being written. */
static bool
is_kept(const kvp_protect_t *prot, const kvp_obj_t *o)
{
    const kvp_member_t *mb = kvp_group_member(prot->cat, o);

    if (mb == NULL) return o->tickets > 0 || is_being_written(prot, o);
    return mb->group->reserved_n > 0 || (mb->group->held_n > 0 && KVP_RULE(GROUP_TICKET));
}

bool
kvp_victim_may_go(const kvp_protect_t *prot, uint32_t unit)
{
    const kvp_obj_t *o = kvp_obj(prot->cat->index, unit);

    return kvp_victim_is_listed(o) && !is_kept(prot, o);
}

void
kvp_victim_removed(kvp_protect_t *prot, uint32_t oid)
{
    kvp_objlist_t *list = list_of(prot, kvp_obj(prot->cat->index, oid));

    if (list == NULL) uncount_ahead(prot, oid);
    if (kvp_obj(prot->cat->index, oid)->list == KVP_OBJLIST_PROBED) kvp_probe_forget(prot, oid);
    if (list == &prot->pinned || kvp_obj(prot->cat->index, oid)->list == KVP_OBJLIST_LRU ||
        kvp_obj(prot->cat->index, oid)->list == KVP_OBJLIST_COLD)
        take_off(prot, list, oid);
    else if (list != NULL)
        kvp_objlist_remove(prot->cat->index, list, oid);
}

void
kvp_victim_used(kvp_protect_t *prot, uint32_t oid)
{
    uint32_t unit = kvp_victim_unit(prot->cat, oid);
    kvp_obj_t *o = kvp_obj(prot->cat->index, unit);
    kvp_objlist_t *home = home_of(prot, o);

    if (o->list == KVP_OBJLIST_COLD && o->is_asking_counted != 0 && KVP_RULE(LOADED_IS_COLD)) {
        o->is_asking_counted = 0; /* the present use is the read that caused the load */
        push_used(prot->cat->index, &kvp_obj_tenant(prot->cat, o)->cold, unit);
        return;
    }
    kvp_victim_removed(prot, unit);
    o->is_asking_counted = 0;
    if (home != NULL)
        push_used(prot->cat->index, home, unit);
    else if (kvp_obj_is_on_tier_alone(prot->cat, o))
        /* an object only on the tier keeps its last use in memory, which selects its list after a load */
        o->is_used_since = 1;
    else
        kvp_obj_touch(prot->cat->index, o);
}

uint64_t
kvp_victim_bytes(const kvp_protect_t *prot, uint32_t unit)
{
    const kvp_obj_t *o = kvp_obj(prot->cat->index, unit);
    const kvp_member_t *mb = kvp_group_member(prot->cat, o);

    if (mb != NULL && mb->group->lead == unit) return mb->group->bytes;
    if (kvp_obj_is_on_tier_alone(prot->cat, o)) return 0;
    return kvp_slab_len(kvp_obj_chunk(prot->cat, o)->slab, (uint32_t)o->slot);
}

void
kvp_victim_back(kvp_protect_t *prot, uint32_t oid)
{
    push_back(prot->cat->index, home_of(prot, kvp_obj(prot->cat->index, oid)), oid);
}

/* ---- changes that are no use */
kvp_victim_mark_t
kvp_victim_mark(const kvp_protect_t *prot, uint32_t oid)
{
    const uint32_t lead = kvp_victim_unit(prot->cat, oid), unit = lead == KVP_OID_NONE ? oid : lead;
    const kvp_obj_t *o = kvp_obj(prot->cat->index, unit);

    return (kvp_victim_mark_t){.unit = unit,
                               .older = o->prev,
                               .used = o->used,
                               .list = (uint8_t)o->list,
                               .is_asking_counted = o->is_asking_counted,
                               .is_ahead = o->is_ahead,
                               .is_ahead_end = kvp_obj_tenant(prot->cat, o)->ahead == unit};
}

/* Takes the unit off its list, and puts it back at the place of the mark. */
static void
put_at_mark(kvp_protect_t *prot, const kvp_victim_mark_t *mark, kvp_objlist_t *list)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, mark->unit);
    kvp_tenant_t *t = kvp_obj_tenant(prot->cat, o);

    kvp_victim_removed(prot, mark->unit);
    o->used = mark->used;
    if (mark->list == KVP_OBJLIST_PARKED || mark->list == KVP_OBJLIST_PROBED)
        push_back(prot->cat->index, list, mark->unit);
    else
        kvp_objlist_push_behind(prot->cat->index, list, mark->older, mark->unit);
    if (o->list == KVP_OBJLIST_COLD) t->cold_bytes += kvp_victim_bytes(prot, mark->unit);
    if (!mark->is_ahead || o->list != KVP_OBJLIST_LRU) return;
    t->ahead_bytes += kvp_victim_bytes(prot, mark->unit);
    o->is_ahead = 1;
    if (mark->is_ahead_end) t->ahead = mark->unit;
}

void
kvp_victim_restore(kvp_protect_t *prot, const kvp_victim_mark_t *mark)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, mark->unit);
    kvp_objlist_t *list = mark->list == KVP_OBJLIST_COLD ? &kvp_obj_tenant(prot->cat, o)->cold : home_of(prot, o);

    if (kvp_victim_is_listed(o) && mark->list != KVP_OBJLIST_NONE && list != NULL) put_at_mark(prot, mark, list);
    o->used = mark->used;
    o->is_asking_counted = mark->is_asking_counted;
}

/* ---- objects loaded from a tier
 *
 * Loaded objects have a separate list, the cold list, next to the tenant's LRU list. An object there is evicted after
 * an eighth of the time that an object stays on the LRU list, or when all loaded objects have more than their share
 * of memory. If an object's last use in memory is more recent than that of the oldest object on the LRU list, the
 * object goes to the LRU list instead (LIRS, Jiang and Zhang 2002): it would still be in memory if it had not been
 * loaded as a cold object before. So frequently read objects stay, and a scan does not displace them. */
static bool
is_warm(kvp_protect_t *prot, kvp_tenant_t *t, const kvp_obj_t *o)
{
    uint32_t oldest = kvp_victim_behind(prot, &t->lru, KVP_OID_NONE);

    return oldest != KVP_OID_NONE &&
           kvp_obj_age(prot->cat->index, o) < kvp_obj_age(prot->cat->index, kvp_obj(prot->cat->index, oldest));
}

void
kvp_victim_loaded(kvp_protect_t *prot, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);
    kvp_tenant_t *t = kvp_obj_tenant(prot->cat, o);

    if (home_of(prot, o) != &t->lru || is_warm(prot, t, o) || !KVP_RULE(LOADED_IS_COLD)) {
        kvp_victim_used(prot, oid);
        return;
    }
    o->is_asking_counted = 1;
    push_used(prot->cat->index, &t->cold, oid);
    t->cold_bytes += kvp_victim_bytes(prot, oid);
}

void
kvp_victim_loaded_to_move(kvp_protect_t *prot, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);
    kvp_objlist_t *home = home_of(prot, o);

    if (home == NULL || kvp_victim_is_listed(o)) return;
    if (home->oldest != KVP_OID_NONE) {
        const kvp_obj_t *oldest = kvp_obj(prot->cat->index, home->oldest);

        if (kvp_obj_age(prot->cat->index, oldest) > kvp_obj_age(prot->cat->index, o)) o->used = oldest->used;
    }
    kvp_objlist_push_behind(prot->cat->index, home, KVP_OID_NONE, oid);
}

bool
kvp_victim_is_cold_over(const kvp_protect_t *prot, const kvp_tenant_t *t)
{
    uint64_t memory = prot->cat->owners_n == 1 ? prot->ctx->st.size_bytes : t->chunk_bytes;

    return t->cold_bytes > memory / COLD_SHARE;
}

uint32_t
kvp_victim_age(const kvp_protect_t *prot, uint32_t unit)
{
    const kvp_obj_t *o = kvp_obj(prot->cat->index, unit);
    uint64_t age = kvp_obj_age(prot->cat->index, o);

    if (o->list != KVP_OBJLIST_COLD) return (uint32_t)age;
    return kvp_victim_is_cold_over(prot, kvp_obj_tenant(prot->cat, o))
               ? UINT32_MAX
               : (uint32_t)kvp_min_u64(age * COLD_SHARE, UINT32_MAX);
}

uint32_t
kvp_victim_cold(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t after)
{
    uint32_t oid = next_oldest(prot->cat->index, &t->cold, after);

    return oid == KVP_OID_NONE || is_kept(prot, kvp_obj(prot->cat->index, oid)) ? KVP_OID_NONE : oid;
}

/* Returns the next loaded object, if it must be evicted before the oldest object of the LRU list; else KVP_OID_NONE. */
static uint32_t
next_cold(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t after)
{
    uint32_t oid = kvp_victim_cold(prot, t, after);

    if (oid == KVP_OID_NONE || t->lru.n == 0) return oid;
    return kvp_victim_age(prot, oid) >= kvp_victim_age(prot, t->lru.oldest) ? oid : KVP_OID_NONE;
}

/* ---- tickets */
void
kvp_victim_keep(kvp_protect_t *prot, uint32_t oid)
{
    uint32_t unit = kvp_victim_unit(prot->cat, oid);

    if (kvp_obj(prot->cat->index, unit)->list == KVP_OBJLIST_PROBED) kvp_victim_removed(prot, unit);
}

void
kvp_victim_let_go(kvp_protect_t *prot, uint32_t oid)
{
    uint32_t unit = kvp_victim_unit(prot->cat, oid);
    const kvp_obj_t *o = kvp_obj(prot->cat->index, unit);

    if (!kvp_victim_is_listed(o) && !is_kept(prot, o) && home_of(prot, o) != NULL) kvp_victim_back(prot, unit);
}

uint32_t
kvp_victim_behind(kvp_protect_t *prot, kvp_objlist_t *list, uint32_t after)
{
    for (;;) {
        uint32_t oid = next_oldest(prot->cat->index, list, after);

        if (oid == KVP_OID_NONE || !is_kept(prot, kvp_obj(prot->cat->index, oid))) return oid;
        if (prot->ctx->work_left == 0) return KVP_OID_NONE;
        prot->ctx->work_left--;
        prot->ctx->st.ticket_asides++;
        take_off(prot, list, oid);
    }
}

/* ---- candidates
 *
 * Returns the next candidate whose eviction makes room and which no recent probe protects. It parks the others. */
uint32_t
kvp_victim_next(kvp_protect_t *prot, kvp_tenant_t *t, uint32_t after)
{
    bool is_cold = after == KVP_OID_NONE || kvp_obj(prot->cat->index, after)->list == KVP_OBJLIST_COLD;

    for (;;) {
        uint32_t oid = is_cold ? next_cold(prot, t, after) : KVP_OID_NONE;

        if (oid == KVP_OID_NONE) {
            if (is_cold) after = KVP_OID_NONE;
            is_cold = false;
            oid = kvp_victim_behind(prot, &t->lru, after);
        }
        kvp_segment_t *g =
            oid == KVP_OID_NONE ? NULL : kvp_obj_chunk(prot->cat, kvp_obj(prot->cat->index, oid))->segment;

        bool is_probed = g != NULL && kvp_probe_protects(prot, oid);

        bool is_away =
            /* none of its copies is on a connected node, so its eviction would make no room */
            g != NULL && kvp_obj_up_n(prot->cat, kvp_obj(prot->cat->index, oid)) == 0;

        if (g == NULL || (!is_probed && !is_away && !kvp_segment_is_passed_over(prot->cat, g))) return oid;
        if (prot->ctx->work_left == 0) return KVP_OID_NONE;
        prot->ctx->work_left--;
        if (is_probed) {
            kvp_probe_park(prot, oid);
            continue;
        }
        prot->ctx->st.passed_over++;
        take_off(prot, is_cold ? &t->cold : &t->lru, oid);
        kvp_objlist_push_young(prot->cat->index, &g->parked, oid);
    }
}

bool
kvp_victims_back(kvp_protect_t *prot, kvp_segment_t *g, uint32_t *left)
{
    while (g->parked.n > 0) {
        uint32_t oid = g->parked.youngest;

        if (*left == 0) return false;
        --*left;
        kvp_objlist_remove(prot->cat->index, &g->parked, oid);
        kvp_victim_back(prot, oid);
        kvp_ctx_space_news(prot->ctx);
    }
    return true;
}
