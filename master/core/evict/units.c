/* SPDX-License-Identifier: Apache-2.0
 * What is evicted: an object, and with it its group, whose members are dropped a slice at a time.
 */
#include "master/core/state.h"

void
kvp_evict_one(kvp_master_t *m, uint32_t oid)
{
    m->ctx.st.evictions++;
    m->ctx.st.evicted_bytes += kvp_obj_len(&m->cat, kvp_obj(m->cat.index, oid));
    kvp_obj_drop(&m->space, oid, 0, NULL);
}

void
kvp_evict_unit(kvp_master_t *m, uint32_t oid)
{
    kvp_group_evict(&m->prot, oid);
    kvp_evict_one(m, oid);
}

static void
drop_doomed(kvp_master_t *m)
{
    uint32_t oid;

    while (m->ctx.slice_left > 0 && (oid = kvp_group_next_doomed(&m->prot, KVP_OID_NONE)) != KVP_OID_NONE) {
        if (kvp_group_member(&m->cat, kvp_obj(m->cat.index, oid))->group->is_evicted)
            kvp_evict_one(m, oid);
        else
            kvp_obj_drop(&m->space, oid, 0, NULL);
        kvp_ctx_space_news(&m->ctx);
    }
}

void
kvp_groups_tick(kvp_master_t *m)
{
    kvp_groups_settle(&m->prot);
    drop_doomed(m);
}
