/* SPDX-License-Identifier: Apache-2.0 */
#include "master/core/recovery/adopt.h"

#include "common/hash.h"
#include "common/mutate.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/gone.h"
#include "master/core/protect/group.h"
#include "master/core/protect/lease.h"
#include "master/core/recovery/state.h"
#include "master/core/space/drop.h"

bool
kvp_told_is_of_key(const kvp_master_t *m, const kvp_told_t *t)
{
    const kvp_desc_t *d = &t->desc;
    uint64_t seed = m->ctx.conf.digest_seed;

    return kvp_digest_eq(d->digest, kvp_key_digest(seed, d->tenant, t->key, d->key_len)) &&
           d->key_hash2 == kvp_key_hash2(seed, d->tenant, t->key, d->key_len);
}

static bool
is_gone(const kvp_master_t *m, const kvp_told_t *t)
{
    return t->desc.version <= kvp_gone_version(&m->prot, t->desc.tenant, t->desc.digest) &&
           KVP_RULE(GONE_IS_NOT_ADOPTED);
}

/* Returns whether the reported record is one more copy of the object. */
static bool
may_join(const kvp_master_t *m, const kvp_obj_t *o, const kvp_segment_t *g, const kvp_told_t *t)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(&m->cat, o, places);

    if (n == 0 && kvp_obj_tier(&m->cat, o) != g->tier) return false;
    if (n == KVP_REPLICAS_MAX || kvp_obj_len(&m->cat, o) != t->desc.len || o->sum != t->desc.sum) return false;
    for (uint32_t i = 0; i < n; i++) {
        const kvp_chunk_t *c = kvp_place_chunk(&m->cat, &places[i]);

        if (c->segment == g || places[i].generation == kvp_word_generation(t->rec.word)) return false;
    }
    return true;
}

static bool
is_same_key(const kvp_master_t *m, const kvp_obj_t *o, const kvp_told_t *t)
{
    return kvp_obj_owner(&m->cat, o)->id == t->desc.tenant && kvp_obj_has_key(m->cat.index, o, t->key, t->desc.key_len);
}

bool
kvp_told_is_wanted(kvp_master_t *m, const kvp_segment_t *g, const kvp_told_t *t, uint32_t *joins_out)
{
    const kvp_obj_t *o;
    uint32_t oid;

    *joins_out = KVP_OID_NONE;
    if (!kvp_gone_is_rebuilding(&m->prot) || is_gone(m, t)) return false;
    oid = kvp_objindex_find(m->cat.index, t->desc.digest);
    if (oid == KVP_OID_NONE) return true;
    o = kvp_obj(m->cat.index, oid);
    if (o->state == KVP_OBJ_WRITING) return is_same_key(m, o, t);
    if (KVP_RULE(NEWEST_WINS) ? kvp_obj_version(o) < t->desc.version : kvp_obj_version(o) != t->desc.version)
        return true;
    *joins_out = oid;
    return kvp_obj_version(o) == t->desc.version && is_same_key(m, o, t) && may_join(m, o, g, t);
}

kvp_attempt_t *
kvp_told_make_way(kvp_master_t *m, const kvp_told_t *t)
{
    uint32_t oid;

    while ((oid = kvp_objindex_find(m->cat.index, t->desc.digest)) != KVP_OID_NONE) {
        const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
        bool is_same = is_same_key(m, o, t);
        kvp_attempt_t *a;

        if (o->state == KVP_OBJ_COMMITTED) {
            kvp_revoke(kvp_obj_tenant(&m->cat, o), t->desc.digest);
            kvp_obj_drop(&m->space, oid, KVP_CAUSE_REPLACED, 0, NULL);
            continue;
        }
        a = kvp_attempt_of(&m->cat, o);
        if (a->is_upsert && is_same) {
            kvp_objindex_unlink(m->cat.index, oid);
            kvp_group_leave(&m->prot, oid); /* the attempt joins its group when it replaces the object in the index */
            return a;
        }
        kvp_attempt_void(&m->puts, a, is_same ? KVP_ALREADY : KVP_COLLISION);
    }
    return NULL;
}
