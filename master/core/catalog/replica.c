/* SPDX-License-Identifier: Apache-2.0
 * An object's copies: their places, which copies are served, and their form in answers. The first copy is in the
 * object's record; further copies, which are rare, are in its extension. Each copy lies in another segment. */
#include "master/core/catalog/replica.h"

#include "common/mutate.h"
#include "proto/segfmt.h"
#include "master/core/base/slab.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/staged.h"
#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

#define NODE_BACK_NS KVP_MS(5000) /* a living node reconnects within this time after a master's start */
#define KEPT_BACK_NS KVP_MS(2000) /* a crashed node whose memory a keeper holds reconnects within this time */

#define SLACK_BITS 16u

kvp_place_t
kvp_obj_place(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    const kvp_objext_t *ext = kvp_obj_ext(cat->index, o);

    return (kvp_place_t){
        .chunk = o->chunk == KVP_OBJ_CHUNK_NONE ? KVP_NONE : (uint32_t)o->chunk,
        .slot = o->slot & 0xffffffu,
        .generation = ext != NULL && ext->generation != 0 ? ext->generation : o->generation,
        .long_key_slot = ext == NULL ? KVP_SLAB_NONE : ext->long_key_slot,
    };
}

uint32_t
kvp_obj_places(const kvp_catalog_t *cat, const kvp_obj_t *o, kvp_place_t places[KVP_REPLICAS_MAX])
{
    const kvp_objext_t *ext = kvp_obj_ext(cat->index, o);

    if (o->chunk == KVP_OBJ_CHUNK_NONE || kvp_obj_is_on_tier_alone(cat, o)) return 0;
    places[0] = kvp_obj_place(cat, o);
    if (ext == NULL || ext->more_n == 0) return 1;
    memcpy(&places[1], ext->more, ext->more_n * sizeof *ext->more);
    return 1 + ext->more_n;
}

bool
kvp_obj_lies_at(const kvp_catalog_t *cat, const kvp_obj_t *o, const kvp_chunk_t *c, uint32_t slot)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n;

    if (o->chunk == c->number && o->slot == slot) return true;
    if (!o->has_ext) return false;
    n = kvp_obj_places(cat, o, places);
    for (uint32_t i = 1; i < n; i++)
        if (places[i].chunk == c->number && places[i].slot == slot) return true;
    return false;
}

uint64_t
kvp_obj_len(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    const kvp_chunk_t *c = kvp_obj_chunk(cat, o);

    if (c != NULL && c->segment->is_tier) return (uint64_t)o->slot << SLACK_BITS | o->slack;
    if (c != NULL) return kvp_slab_len(c->slab, (uint32_t)o->slot) - o->slack;
    return ((const kvp_attempt_t *)kvp_ptab_get(&cat->attempts, o->attempt))->bytes;
}

kvp_digest_t
kvp_obj_digest_of(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    return kvp_obj_digest(cat->index, o, cat->ctx->conf.digest_seed, kvp_obj_tenant(cat, o)->id);
}

void
kvp_obj_set_on_tier_alone(kvp_catalog_t *cat, uint32_t oid, const kvp_chunk_t *c, uint64_t len)
{
    kvp_obj_t *o = kvp_obj(cat->index, oid);

    o->is_on_tier = 1;
    o->chunk = c->number & 0xffffffu;
    o->slot = len >> SLACK_BITS & 0xffffffu;
    o->slack = len & 0xffffu;
}

uint64_t
kvp_obj_bytes(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(cat, o, places);
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < n; i++)
        bytes += kvp_slab_len(kvp_place_chunk(cat, &places[i])->slab, places[i].slot);
    return bytes;
}

/* Writes the first copy's place into the object's record. */
static void
set_first(kvp_catalog_t *cat, kvp_obj_t *o, const kvp_place_t *at, uint64_t slack)
{
    bool is_version = o->generation == 0 || o->generation == at->generation;

    o->chunk = at->chunk & 0xffffffu;
    o->slot = at->slot & 0xffffffu;
    o->slack = slack & 0xffffu;
    if (o->generation == 0) o->generation = at->generation;
    if (at->long_key_slot == KVP_SLAB_NONE && is_version && !o->has_ext) return;
    kvp_obj_ext_make(cat->index, o)->long_key_slot = at->long_key_slot;
    kvp_obj_ext(cat->index, o)->generation = is_version ? 0 : at->generation;
}

static void
add_more(kvp_objext_t *ext, const kvp_place_t *at)
{
    ext->more = realloc(ext->more, (ext->more_n + 1) * sizeof *ext->more);
    if (ext->more == NULL) kvp_panic("out of memory: a copy");
    ext->more[ext->more_n++] = *at;
}

void
kvp_obj_add_place(kvp_catalog_t *cat, uint32_t oid, const kvp_place_t *at, uint64_t slack)
{
    kvp_obj_t *o = kvp_obj(cat->index, oid);

    if (o->chunk == KVP_OBJ_CHUNK_NONE || kvp_obj_is_on_tier_alone(cat, o))
        set_first(cat, o, at, slack);
    else
        add_more(kvp_obj_ext_make(cat->index, o), at);
    kvp_place_chunk(cat, at)->segment->held += o->tickets;
}

void
kvp_replica_del(kvp_catalog_t *cat, uint32_t oid, const kvp_place_t *at)
{
    kvp_obj_t *o = kvp_obj(cat->index, oid);
    kvp_objext_t *ext = kvp_obj_ext(cat->index, o);
    uint32_t i = 0;

    kvp_place_chunk(cat, at)->segment->held -= o->tickets;
    if (ext == NULL || ext->more_n == 0) {
        o->chunk = KVP_OBJ_CHUNK_NONE;
        return;
    }
    if (kvp_obj_place(cat, o).generation == at->generation) {
        uint64_t len = kvp_obj_len(cat, o);
        kvp_place_t first = ext->more[0];

        set_first(cat, o, &first, kvp_slab_len(kvp_place_chunk(cat, &first)->slab, first.slot) - len);
    } else {
        while (ext->more[i].generation != at->generation)
            i++;
    }
    if (ext->leaving == at->generation) ext->leaving = 0;
    memmove(&ext->more[i], &ext->more[i + 1], (ext->more_n - i - 1) * sizeof *ext->more);
    ext->more_n--;
}

uint32_t
kvp_place_at(const kvp_place_t *places, const kvp_chunk_t *c, uint32_t slot)
{
    uint32_t i = 0;

    while (places[i].chunk != c->number || places[i].slot != slot)
        i++;
    return i;
}

uint32_t
kvp_place_in(const kvp_catalog_t *cat, const kvp_place_t *places, uint32_t n, uint32_t segment)
{
    uint32_t i = 0;

    while (i < n && kvp_place_chunk(cat, &places[i])->segment->id != segment)
        i++;
    return i;
}

void
kvp_copy_set_long_key(kvp_catalog_t *cat, uint32_t oid, const kvp_chunk_t *c, uint32_t slot, uint32_t long_key_slot)
{
    kvp_objext_t *ext = kvp_obj_ext_make(cat->index, kvp_obj(cat->index, oid));
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t i;

    (void)kvp_obj_places(cat, kvp_obj(cat->index, oid), places);
    i = kvp_place_at(places, c, slot);
    if (i == 0)
        ext->long_key_slot = long_key_slot;
    else
        ext->more[i - 1].long_key_slot = long_key_slot;
}

void
kvp_obj_count_held(kvp_catalog_t *cat, const kvp_obj_t *o, int32_t sign)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(cat, o, places);

    for (uint32_t i = 0; i < n; i++)
        kvp_place_chunk(cat, &places[i])->segment->held += (uint64_t)(int64_t)sign;
}

/* ---- answers to clients */
static bool
is_up(const kvp_catalog_t *cat, uint32_t chunk)
{
    return ((const kvp_chunk_t *)kvp_ptab_get(&cat->chunks, chunk))->segment->state != KVP_SEG_LOST;
}

/* Returns true if clients are sent to the copy. A copy that is leaving is served only if no other copy is. */
static bool
is_served(const kvp_catalog_t *cat, const kvp_obj_t *o, const kvp_place_t *places, uint32_t n, uint32_t at)
{
    const kvp_objext_t *ext = n == 1 ? NULL : kvp_obj_ext(cat->index, o);

    if (!is_up(cat, places[at].chunk)) return false;
    if (ext == NULL || ext->leaving != places[at].generation) return true;
    for (uint32_t i = 0; i < n; i++)
        if (i != at && is_up(cat, places[i].chunk)) return false;
    return true;
}

bool
kvp_obj_names_leaving(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    const kvp_objext_t *ext = kvp_obj_ext(cat->index, o);
    kvp_place_t places[KVP_REPLICAS_MAX];
    const uint32_t n = kvp_obj_places(cat, o, places);

    for (uint32_t i = 0; i < n && ext != NULL; i++)
        if (places[i].generation == ext->leaving) return is_served(cat, o, places, n, i);
    return false;
}

uint32_t
kvp_obj_up_n(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n, up = 0;

    if (o->state != KVP_OBJ_COMMITTED) return 0;
    if (kvp_obj_version(o) <= kvp_obj_tenant(cat, o)->min_version && KVP_RULE(BUMP_HIDES)) return 0;
    if (kvp_obj_is_on_tier_alone(cat, o)) return 0;
    if (!o->has_ext) return is_up(cat, (uint32_t)o->chunk); /* a single copy, the usual case */
    n = kvp_obj_places(cat, o, places);
    for (uint32_t i = 0; i < n; i++)
        up += is_served(cat, o, places, n, i);
    return up;
}

/* Returns true if the object's hash slot of the tier is on an SSD that hangs. */
static bool
is_slot_away(const kvp_catalog_t *cat, const kvp_obj_t *o, const kvp_segment_t *t)
{
    uint32_t slot = t->ssd.has_away ? kvp_tier_slot_of(kvp_obj_digest_of(cat, o)) : 0;

    return t->ssd.has_away && (t->ssd.away[slot / 8] >> slot % 8 & 1) != 0;
}

bool
kvp_obj_is_on_tier_up(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    const kvp_segment_t *t = o->state == KVP_OBJ_COMMITTED ? kvp_obj_tier(cat, o) : NULL;

    if (t == NULL || t->state == KVP_SEG_LOST || is_slot_away(cat, o, t)) return false;
    if (kvp_obj_version(o) <= kvp_obj_tenant(cat, o)->min_version && KVP_RULE(BUMP_HIDES)) return false;
    return kvp_obj_is_on_tier_alone(cat, o) || kvp_obj_up_n(cat, o) == 0;
}

bool
kvp_obj_is_reported(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    const kvp_segment_t *t = kvp_obj_tier(cat, o);
    uint32_t n = kvp_obj_places(cat, o, places);

    if (t != NULL && t->is_restored && t->node == NULL && cat->ctx->now_ns - t->lost_ns < NODE_BACK_NS) return true;

    for (uint32_t i = 0; i < n; i++) {
        const kvp_segment_t *g = kvp_place_chunk(cat, &places[i])->segment;

        if (g->report != NULL) return true;
        if (g->is_restored && g->node == NULL && cat->ctx->now_ns - g->lost_ns < NODE_BACK_NS) return true;
    }
    return false;
}

bool
kvp_obj_is_kept(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(cat, o, places);

    for (uint32_t i = 0; i < n; i++) {
        const kvp_segment_t *g = kvp_place_chunk(cat, &places[i])->segment;

        if (g->is_kept && g->life != KVP_SEGMENT_DROPPED && g->node == NULL &&
            cat->ctx->now_ns - g->lost_ns < KEPT_BACK_NS)
            return true;
    }
    return false;
}

void
kvp_place_wire(const kvp_catalog_t *cat, const kvp_place_t *at, kvp_wire_loc_t *loc)
{
    const kvp_chunk_t *c = kvp_place_chunk(cat, at);

    *loc = (kvp_wire_loc_t){
        .segment_id = c->segment->id,
        .chunk = c->index,
        .slot = at->slot,
        .key_off = kvp_place_key_off(c, at),
        .generation = at->generation,
        .offset = kvp_slab_offset(c->slab, at->slot),
    };
}

/* Rotates the n places, so that the place with number turn % n is first. */
static void
turn_locs(kvp_wire_loc_t *locs, uint32_t n, uint32_t turn)
{
    kvp_wire_loc_t was[KVP_REPLICAS_MAX];

    memcpy(was, locs, n * sizeof *locs);
    for (uint32_t i = 0; i < n; i++)
        locs[i] = was[(i + turn) % n];
}

void
kvp_obj_wire(const kvp_catalog_t *cat, const kvp_obj_t *o, const char *host_id, uint32_t turn, kvp_wire_obj_t *obj,
             kvp_wire_loc_t locs[KVP_REPLICAS_MAX])
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(cat, o, places), nloc = 0, own_n = 0;

    for (uint32_t i = 0; i < n; i++) {
        const kvp_chunk_t *c = kvp_place_chunk(cat, &places[i]);

        if (!is_served(cat, o, places, n, i)) continue;
        kvp_place_wire(cat, &places[i], &locs[nloc]);
        if (n > 1 && strcmp(c->segment->host_id, host_id) == 0) {
            kvp_wire_loc_t own = locs[nloc];

            locs[nloc] = locs[0];
            locs[0] = own;
            own_n = 1;
        }
        nloc++;
    }
    if (turn > 0 && nloc - own_n > 1) turn_locs(&locs[own_n], nloc - own_n, turn);
    *obj = (kvp_wire_obj_t){
        .err = KVP_OK,
        .nloc = nloc,
        .version = kvp_obj_version(o),
        .len = kvp_obj_len(cat, o),
        .sum = o->sum,
    };
}

bool
kvp_obj_is_on_host(const kvp_catalog_t *cat, const kvp_obj_t *o, const char *host_id)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(cat, o, places);

    for (uint32_t i = 0; i < n; i++) {
        const kvp_segment_t *g = kvp_place_chunk(cat, &places[i])->segment;

        if (g->state != KVP_SEG_LOST && strcmp(g->host_id, host_id) == 0) return true;
    }
    return false;
}

uint32_t
kvp_place_key_off(const kvp_chunk_t *c, const kvp_place_t *at)
{
    if (at->long_key_slot == KVP_SLAB_NONE) return kvp_key_cell_units(&c->geo, at->slot);
    return (uint32_t)((c->geo.long_keys_off + kvp_slab_offset(c->long_keys, at->long_key_slot)) / 64);
}
