/* SPDX-License-Identifier: Apache-2.0
 * Probes: EXISTS leaves one on what it finds, for the pool's lease time. It is two ticks in the object's record, since and
 * until, so that it costs a store and nothing else; until is renewed by later probes, since is of the first one of an
 * unbroken row. Eviction that meets a live probe sets the object aside; when nothing else can be evicted, those aside go
 * in the order of since. Probes younger than two ticks protect a quarter of the pool and no more.
 *
 * Design notes. Aside are lists by since: a ring of them, one a tick, for those that cannot be over yet, and one list for
 * all older ones, in the order in which they came to it. The older ones are looked at in turns, and come back as victims when their probe is over.
 * since does not change while an object is aside. Ticks of 16 bits wrap after 109 minutes: an old probe that nobody
 * touched in that time may look alive for one lease time more, and what is aside for so long is kept from wrapping.
 */
#include "master/core/internal.h"

#include "common/mutate.h"

#include <stdlib.h>

#define LASTS_MAX 30000u /* ticks; less than half of what 16 bits tell apart */
#define AGE_MAX 32768u /* ticks; what is aside for longer is told apart by its place in the list alone */
#define YOUNG 2u /* ticks */
#define YOUNG_SHARE 4u

void
kvp_probe_init(kvp_master_t *m)
{
    kvp_probes_t *p = &m->probes;

    p->tick = p->seen = m->now_ns / KVP_PROBE_TICK_NS;
    p->first = p->tick;
    p->lasts = (uint16_t)kvp_min_u64((m->conf.lease_ns - 1) / KVP_PROBE_TICK_NS + 2, LASTS_MAX);
    p->ring_n = p->lasts + 1u;
    p->ring = kvp_core_alloc(p->ring_n, sizeof *p->ring);
    for (uint32_t i = 0; i < p->ring_n; i++)
        kvp_objlist_init(&p->ring[i].list, KVP_OBJLIST_PROBED);
    kvp_objlist_init(&p->older, KVP_OBJLIST_PROBED);
    p->cursor = KVP_OID_NONE;
}

void
kvp_probe_fini(kvp_master_t *m)
{
    free(m->probes.ring);
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

/* The slot of the ring in which an object aside is; NULL = it is among the older ones. */
static kvp_probe_slot_t *
slot_of(kvp_probes_t *p, const kvp_obj_t *o)
{
    uint64_t since = since_of(p, o);

    return p->tick - since >= p->ring_n ? NULL : slot_at(p, since);
}

void
kvp_probe_advance(kvp_master_t *m)
{
    kvp_probes_t *p = &m->probes;
    uint64_t now = m->now_ns / KVP_PROBE_TICK_NS;
    uint64_t end = p->tick + kvp_min_u64(now - p->seen, p->ring_n);

    /* After a stall of any length each slot is emptied once, and all probes are over. The rest of it is left out: ages
     * that grew by it would wrap. */
    while (p->tick < end) {
        kvp_probe_slot_t *slot = slot_at(p, ++p->tick); /* what it holds is ring_n ticks old now */

        kvp_objlist_append(m->index, &p->older, &slot->list);
        slot->bytes = 0;
    }
    p->seen = now;
}

void
kvp_probe_forget(kvp_master_t *m, uint32_t oid)
{
    kvp_probes_t *p = &m->probes;
    const kvp_obj_t *o = kvp_obj(m->index, oid);
    kvp_probe_slot_t *slot = slot_of(p, o);

    if (p->cursor == oid) p->cursor = o->next;
    if (slot != NULL) slot->bytes -= kvp_victim_bytes(m, oid);
    kvp_objlist_remove(m->index, slot == NULL ? &p->older : &slot->list, oid);
    p->n--;
}

void
kvp_probe_set_aside(kvp_master_t *m, uint32_t oid)
{
    kvp_probes_t *p = &m->probes;
    const kvp_obj_t *o = kvp_obj(m->index, oid);
    kvp_probe_slot_t *slot = slot_of(p, o);

    kvp_victim_removed(m, oid);
    p->n++;
    m->st.probe_asides++;
    if (slot == NULL) {
        kvp_objlist_push_young(m->index, &p->older, oid);
        return;
    }
    kvp_objlist_push_young(m->index, &slot->list, oid);
    slot->bytes += kvp_victim_bytes(m, oid);
    p->first = kvp_min_u64(p->first, since_of(p, o));
}

/* ---- probing */
void
kvp_probe_begin(kvp_master_t *m, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(m->index, oid);

    if (o->list == KVP_OBJLIST_PROBED) { /* its last probe is over, and its turn to come back has not come */
        kvp_probe_forget(m, oid);
        kvp_victim_back(m, oid);
    }
    o->has_probe = 1;
    o->probe_since = (uint16_t)m->probes.tick;
}

uint64_t
kvp_probe_young_bytes(const kvp_master_t *m)
{
    const kvp_probes_t *p = &m->probes;
    uint64_t bytes = 0;

    for (uint64_t age = 0; age < YOUNG; age++)
        bytes += p->ring[(p->tick - age) % p->ring_n].bytes;
    return bytes;
}

bool
kvp_probe_protects(const kvp_master_t *m, uint32_t unit)
{
    const kvp_obj_t *o = kvp_obj(m->index, unit);
    const kvp_probes_t *p = &m->probes;

    if (!kvp_probe_is_live(m, o)) return false;
    if ((uint16_t)((uint16_t)p->tick - o->probe_since) >= YOUNG || !KVP_RULE(YOUNG_PROBES)) return true;
    return kvp_probe_young_bytes(m) + kvp_victim_bytes(m, unit) <= m->st.size_bytes / YOUNG_SHARE;
}

/* ---- victims among those aside */
static uint32_t
first_from(kvp_probes_t *p, uint64_t tick)
{
    for (; tick <= p->tick; tick++)
        if (slot_at(p, tick)->list.n > 0) return slot_at(p, tick)->list.oldest;
    return KVP_OID_NONE;
}

uint32_t
kvp_probe_victim(kvp_master_t *m, uint32_t after)
{
    kvp_probes_t *p = &m->probes;
    const kvp_obj_t *o = after == KVP_OID_NONE ? NULL : kvp_obj(m->index, after);

    if (p->n == 0 || !KVP_RULE(PROBE_YIELDS)) return KVP_OID_NONE;
    if (o != NULL && o->next != KVP_OID_NONE) return o->next;
    if (o != NULL && slot_of(p, o) != NULL) return first_from(p, since_of(p, o) + 1);
    if (o == NULL && p->older.n > 0) return p->older.oldest;
    /* Nothing in the ring is older than first: what is empty is not looked at again and again. */
    p->first = kvp_max_u64(p->first, p->tick - p->lasts);
    while (p->first < p->tick && slot_at(p, p->first)->list.n == 0)
        p->first++;
    return first_from(p, p->first);
}

void
kvp_probe_tick(kvp_master_t *m)
{
    kvp_probes_t *p = &m->probes;

    if (p->cursor == KVP_OID_NONE) p->cursor = p->older.oldest;
    for (uint32_t left = KVP_SLICE; left > 0 && p->cursor != KVP_OID_NONE; left--) {
        uint32_t oid = p->cursor;
        kvp_obj_t *o = kvp_obj(m->index, oid);

        p->cursor = o->next;
        if (kvp_probe_is_live(m, o)) {
            if (p->tick - since_of(p, o) > AGE_MAX) o->probe_since = (uint16_t)(p->tick - AGE_MAX);
            continue;
        }
        kvp_probe_forget(m, oid);
        kvp_victim_back(m, oid);
        kvp_master_space_news(m);
    }
}

const char *
kvp_probe_check(const kvp_master_t *m)
{
    const kvp_probes_t *p = &m->probes;
    uint64_t n = p->older.n;

    for (uint32_t i = 0; i < p->ring_n; i++) {
        uint64_t bytes = 0;
        uint32_t walked = 0;

        for (uint32_t oid = p->ring[i].list.oldest; oid != KVP_OID_NONE; oid = kvp_obj(m->index, oid)->next) {
            const kvp_obj_t *o = kvp_obj(m->index, oid);

            if (o->list != KVP_OBJLIST_PROBED || since_of(p, o) % p->ring_n != i) return "a probe is in a wrong list";
            bytes += kvp_victim_bytes(m, oid);
            walked++;
        }
        if (bytes != p->ring[i].bytes || walked != p->ring[i].list.n) return "probed bytes are wrong";
        n += walked;
    }
    return n == p->n ? NULL : "probed objects are miscounted";
}
