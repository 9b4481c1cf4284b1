/* SPDX-License-Identifier: Apache-2.0
 * Probes: EXISTS leaves a probe on each found object, for the pool's lease time. A probe is two ticks in the object's
 * record, since and until, so it costs only a store. Later probes renew `until`; `since` is the time of the first
 * probe of an unbroken row. A row protects until its object is used, and for the lease time at most, however often it
 * is renewed. Eviction that meets such an object parks it; if no other object can be evicted, parked objects are
 * evicted in the order of `since`. Together they have at most a quarter of the pool, and the oldest are returned to
 * the candidates: so a new object is not evicted by the next put while a client asks for all other objects. If a
 * message probes more, only its first objects, up to this quarter, are protected (docs/adr/0027).
 *
 * Design notes. Parked objects are on lists by `since`: a ring of lists, one for each tick, for protecting rows, and
 * one list for expired rows, which return to the candidates in slices. `since` does not change while an object is
 * parked. Ticks of 16 bits wrap after 109 minutes: an old row that was untouched for so long, or unbroken for so
 * long, may look new, and protects for one more lease time. */
#include "master/core/protect/probe.h"

#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/index.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/protection.h"

#include <stdlib.h>

#define LASTS_MAX 30000u /* limit of a probe's protection time, in ticks: below half of the range of 16 bits */
#define GIVE_WAY_MAX 8u /* limit of the parked objects that are released to make room for one more */

void
kvp_probe_init(kvp_protect_t *prot)
{
    kvp_probes_t *p = &prot->probes;

    p->tick = p->seen = prot->ctx->now_ns / KVP_PROBE_TICK_NS;
    p->first = p->tick;
    p->lasts = (uint16_t)kvp_min_u64((prot->ctx->conf.lease_ns - 1) / KVP_PROBE_TICK_NS + 2, LASTS_MAX);
    p->spare = (uint16_t)(p->lasts - kvp_min_u64(prot->ctx->conf.lease_ns / KVP_PROBE_TICK_NS, p->lasts));
    p->ring_n = p->lasts + 1u;
    p->ring = kvp_core_alloc(p->ring_n, sizeof *p->ring);
    for (uint32_t i = 0; i < p->ring_n; i++)
        kvp_objlist_init(&p->ring[i].list, KVP_OBJLIST_PROBED);
    kvp_objlist_init(&p->older, KVP_OBJLIST_PROBED);
    p->cursor = KVP_OID_NONE;
}

void
kvp_probe_fini(kvp_protect_t *prot)
{
    free(prot->probes.ring);
}

/* ---- lists */
static kvp_probe_slot_t *
slot_at(kvp_probes_t *p, uint64_t tick)
{
    return &p->ring[tick % p->ring_n];
}

static uint64_t
since_of(const kvp_probes_t *p, const kvp_obj_t *o)
{
    return p->tick - (uint16_t)((uint16_t)p->tick - o->probe_since);
}

/* Returns the ring's slot with a parked (probed) object; NULL = the object is on the list `older`. */
static kvp_probe_slot_t *
slot_of(kvp_probes_t *p, const kvp_obj_t *o)
{
    uint64_t since = since_of(p, o);

    return p->tick - since >= p->ring_n ? NULL : slot_at(p, since);
}

void
kvp_probe_advance(kvp_protect_t *prot)
{
    kvp_probes_t *p = &prot->probes;
    uint64_t now = prot->ctx->now_ns / KVP_PROBE_TICK_NS;
    uint64_t end = p->tick + kvp_min_u64(now - p->seen, p->ring_n);

    /* However long this thread was stalled, each slot is emptied at most once; then all probes have expired. The rest
     * of the stall is skipped, because ages that grew by it would wrap. */
    while (p->tick < end) {
        kvp_probe_slot_t *slot = slot_at(p, ++p->tick); /* probes in this slot are ring_n ticks old now */

        kvp_objlist_append(prot->cat->index, &p->older, &slot->list);
        slot->bytes = 0;
    }
    p->seen = now;
}

void
kvp_probe_forget(kvp_protect_t *prot, uint32_t oid)
{
    kvp_probes_t *p = &prot->probes;
    const kvp_obj_t *o = kvp_obj(prot->cat->index, oid);
    kvp_probe_slot_t *slot = slot_of(p, o);

    if (p->cursor == oid) p->cursor = o->next;
    if (slot != NULL) slot->bytes -= kvp_victim_bytes(prot, oid);
    p->bytes -= kvp_victim_bytes(prot, oid);
    kvp_objlist_remove(prot->cat->index, slot == NULL ? &p->older : &slot->list, oid);
    p->n--;
}

static void
come_back(kvp_protect_t *prot, uint32_t oid)
{
    kvp_probe_forget(prot, oid);
    kvp_victim_back(prot, oid);
}

/* ---- the limit of all probed bytes */
static bool
is_over_bound(const kvp_protect_t *prot, uint64_t more)
{
    return prot->probes.bytes + more > kvp_probe_share(prot);
}

static void
give_way(kvp_protect_t *prot, uint32_t to)
{
    for (uint32_t n = 0; n < GIVE_WAY_MAX && is_over_bound(prot, 0); n++) {
        uint32_t oldest = kvp_probe_victim(prot, KVP_OID_NONE);

        if (oldest == KVP_OID_NONE || oldest == to) return;
        come_back(prot, oldest);
    }
}

void
kvp_probe_park(kvp_protect_t *prot, uint32_t oid)
{
    kvp_probes_t *p = &prot->probes;
    const kvp_obj_t *o = kvp_obj(prot->cat->index, oid);
    kvp_probe_slot_t *slot = slot_of(p, o);

    kvp_victim_removed(prot, oid);
    p->n++;
    prot->ctx->st.probe_asides++;
    kvp_objlist_push_young(prot->cat->index, &slot->list, oid);
    slot->bytes += kvp_victim_bytes(prot, oid);
    p->bytes += kvp_victim_bytes(prot, oid);
    p->first = kvp_min_u64(p->first, since_of(p, o));
    give_way(prot, oid);
}

/* ---- probing */
void
kvp_probe_begin(kvp_protect_t *prot, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(prot->cat->index, oid);

    /* the object is parked with an expired probe: it returns to the candidates first */
    if (o->list == KVP_OBJLIST_PROBED) come_back(prot, oid);
    o->has_probe = 1;
    o->probe_since = (uint16_t)prot->probes.tick;
}

/* Returns the tick of the first probe of the oldest parked object; 0 = it has expired; UINT64_MAX = none is parked. */
static uint64_t
oldest_since(const kvp_probes_t *p)
{
    if (p->older.n > 0) return 0;
    for (uint64_t tick = kvp_max_u64(p->first, p->tick - p->lasts); tick <= p->tick; tick++)
        if (p->ring[tick % p->ring_n].list.n > 0) return tick;
    return UINT64_MAX;
}

bool
kvp_probe_protects(const kvp_protect_t *prot, uint32_t unit)
{
    const kvp_obj_t *o = kvp_obj(prot->cat->index, unit);
    const kvp_probes_t *p = &prot->probes;
    uint64_t since = since_of(p, o);

    if (!kvp_probe_is_live(prot, o) || p->tick - since >= p->lasts) return false;
    if (o->list == KVP_OBJLIST_PROBED) return true;
    if (o->is_asking_counted == 0 || o->is_beyond_share != 0) return false;
    /* Over the limit, parked objects make room only for an object with a later first probe. */
    return !is_over_bound(prot, kvp_victim_bytes(prot, unit)) || oldest_since(p) < since;
}

/* ---- eviction candidates among the parked objects */
static uint32_t
first_from(kvp_probes_t *p, uint64_t tick)
{
    for (; tick <= p->tick; tick++)
        if (slot_at(p, tick)->list.n > 0) return slot_at(p, tick)->list.oldest;
    return KVP_OID_NONE;
}

uint32_t
kvp_probe_victim(kvp_protect_t *prot, uint32_t after)
{
    kvp_probes_t *p = &prot->probes;
    const kvp_obj_t *o = after == KVP_OID_NONE ? NULL : kvp_obj(prot->cat->index, after);

    if (p->n == 0 || !KVP_RULE(PROBE_YIELDS)) return KVP_OID_NONE;
    if (o != NULL && o->next != KVP_OID_NONE) return o->next;
    if (o != NULL && slot_of(p, o) != NULL) return first_from(p, since_of(p, o) + 1);
    if (o == NULL && p->older.n > 0) return p->older.oldest;
    /* No object in the ring is older than `first`: empty slots are not searched again and again. */
    p->first = kvp_max_u64(p->first, p->tick - p->lasts);
    while (p->first < p->tick && slot_at(p, p->first)->list.n == 0)
        p->first++;
    return first_from(p, p->first);
}

void
kvp_probe_tick(kvp_protect_t *prot)
{
    kvp_probes_t *p = &prot->probes;

    if (p->cursor == KVP_OID_NONE) p->cursor = p->older.oldest;
    for (uint32_t left = KVP_SLICE; left > 0 && p->cursor != KVP_OID_NONE; left--) {
        uint32_t oid = p->cursor;

        p->cursor = kvp_obj(prot->cat->index, oid)->next;
        come_back(prot, oid);
        kvp_ctx_space_news(prot->ctx);
    }
}
