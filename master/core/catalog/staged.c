/* SPDX-License-Identifier: Apache-2.0
 * Attempts' records, and staged versions: an attempt has a record of the object that it will be, which is in the index
 * (WRITING), or, when it is to replace one that is committed, outside of it (DRAFT): readers go on finding the old one. If
 * that goes before, the staged version takes its place as an ordinary put.
 */
#include "master/core/state.h"

kvp_attempt_t *
kvp_attempt_find(const kvp_master_t *m, const kvp_session_t *s, uint64_t id)
{
    uint32_t number;

    return kvp_umap_get(&s->attempt_ids, id, &number) ? kvp_ptab_get(&m->attempts, number) : NULL;
}

kvp_attempt_t *
kvp_attempt_of(const kvp_master_t *m, const kvp_obj_t *o)
{
    return kvp_ptab_get(&m->attempts, o->attempt);
}

const kvp_tenant_t *
kvp_obj_owner(const kvp_master_t *m, const kvp_obj_t *o)
{
    return o->state == KVP_OBJ_COMMITTED ? kvp_obj_tenant(m, o) : kvp_attempt_of(m, o)->tenant;
}

/* ---- drafts */
void
kvp_attempt_draft(kvp_master_t *m, kvp_attempt_t *a, uint32_t over)
{
    a->over = over;
    kvp_obj(m->index, a->oid)->state = KVP_OBJ_DRAFT;
    kvp_obj_ext_make(m->index, kvp_obj(m->index, over))->heir = a->oid;
}

/* The draft and what it was to replace are strangers from now on. */
void
kvp_attempt_part(kvp_master_t *m, kvp_attempt_t *a)
{
    kvp_obj_ext(m->index, kvp_obj(m->index, a->over))->heir = KVP_OID_NONE;
    a->over = KVP_OID_NONE;
}

kvp_attempt_t *
kvp_attempt_heir(const kvp_master_t *m, const kvp_obj_t *old)
{
    const kvp_objext_t *ext = kvp_obj_ext(m->index, old);

    return ext == NULL || ext->heir == KVP_OID_NONE ? NULL : kvp_attempt_of(m, kvp_obj(m->index, ext->heir));
}

void
kvp_attempt_inherit(kvp_master_t *m, kvp_attempt_t *a)
{
    kvp_attempt_part(m, a);
    kvp_obj(m->index, a->oid)->state = KVP_OBJ_WRITING;
    kvp_objindex_link(m->index, a->oid, a->digest);
}
