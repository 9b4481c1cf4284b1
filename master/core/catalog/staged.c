/* SPDX-License-Identifier: Apache-2.0
 * The records of put attempts, and staged versions. Each attempt has a record of its future object. The record is in
 * the index (WRITING). If the attempt will replace a committed object, its record is outside of the index (STAGED),
 * and readers still find the old object. If the old object is removed before the commit, the staged version takes its
 * place in the index (WRITING). */
#include "master/core/catalog/staged.h"

#include "master/core/base/ptab.h"
#include "master/core/catalog/catalog.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"

kvp_attempt_t *
kvp_attempt_of(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    return kvp_ptab_get(&cat->attempts, o->attempt);
}

const kvp_tenant_t *
kvp_obj_owner(const kvp_catalog_t *cat, const kvp_obj_t *o)
{
    return o->state == KVP_OBJ_COMMITTED ? kvp_obj_tenant(cat, o) : kvp_attempt_of(cat, o)->tenant;
}

/* ---- staged versions */
void
kvp_attempt_stage(kvp_catalog_t *cat, kvp_attempt_t *a, uint32_t over)
{
    a->over = over;
    kvp_obj(cat->index, a->oid)->state = KVP_OBJ_STAGED;
    kvp_obj_ext_make(cat->index, kvp_obj(cat->index, over))->replacement = a->oid;
}

/* Separates a staged version from the object that it was to replace. */
void
kvp_attempt_part(kvp_catalog_t *cat, kvp_attempt_t *a)
{
    kvp_obj_ext(cat->index, kvp_obj(cat->index, a->over))->replacement = KVP_OID_NONE;
    a->over = KVP_OID_NONE;
}

kvp_attempt_t *
kvp_attempt_replacement(const kvp_catalog_t *cat, const kvp_obj_t *old)
{
    const kvp_objext_t *ext = kvp_obj_ext(cat->index, old);

    return ext == NULL || ext->replacement == KVP_OID_NONE ? NULL
                                                           : kvp_attempt_of(cat, kvp_obj(cat->index, ext->replacement));
}

void
kvp_attempt_promote(kvp_catalog_t *cat, kvp_attempt_t *a)
{
    kvp_attempt_part(cat, a);
    kvp_obj(cat->index, a->oid)->state = KVP_OBJ_WRITING;
    kvp_objindex_link(cat->index, a->oid, a->digest);
}
