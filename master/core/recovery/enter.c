/* SPDX-License-Identifier: Apache-2.0 */
#include "master/core/recovery/enter.h"

#include "master/core/base/ptab.h"
#include "master/core/base/slab.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/protect/pin.h"
#include "master/core/recovery/state.h"
#include "master/core/space/drop.h"
#include "master/core/space/place.h"
#include "master/core/space/tiered.h"

uint32_t
kvp_enter_object(kvp_master_t *m, const kvp_desc_t *desc, const uint8_t *key, const kvp_wire_lineage_t *lineage)
{
    uint32_t oid = kvp_objindex_make(m->cat.index, desc->digest, key, desc->key_len, lineage);
    kvp_obj_t *o = kvp_obj(m->cat.index, oid);

    kvp_objindex_link(m->cat.index, oid, desc->digest);
    o->generation = desc->version;
    o->sum = desc->sum;
    o->state = KVP_OBJ_COMMITTED;
    o->attempt = KVP_NONE;
    o->pin = desc->flags & KVP_DESC_PIN;
    m->ctx.st.objects++;
    m->ctx.st.adopted++;
    return oid;
}

void
kvp_enter_copy(kvp_master_t *m, uint32_t oid, const kvp_place_t *at, uint64_t len)
{
    kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    kvp_chunk_t *c = kvp_place_chunk(&m->cat, at);
    uint64_t extent = kvp_slab_len(c->slab, at->slot);

    if (kvp_obj_is_on_tier_alone(&m->cat, o))
        kvp_tier_leave_chunk(&m->space, o);
    else if (o->chunk == KVP_OBJ_CHUNK_NONE)
        c->tenant->objects++;
    kvp_slab_set_owner(c->slab, at->slot, oid);
    kvp_obj_add_place(&m->cat, oid, at, extent - len);
    kvp_pin_count(&m->prot, o, (int64_t)extent);
    kvp_group_bytes(&m->prot, o, (int64_t)extent);
    c->segment->objects++;
    c->segment->used_bytes += extent;
    if (c->segment->state != KVP_SEG_LOST) m->ctx.st.used_bytes += extent;
    c->tenant->used_bytes += extent;
}

bool
kvp_enter_chunk(kvp_master_t *m, kvp_chunk_t *c, uint32_t tenant)
{
    kvp_tenant_t *t;

    if (c->tenant != NULL) return c->tenant->id == tenant;
    if (!kvp_tenant_may_open(&m->cat, tenant)) return false;
    t = kvp_tenant_open(&m->cat, tenant);
    kvp_place_chunk_take(&m->space, c, t);
    kvp_tenant_rele(&m->cat, t);
    return true;
}

void
kvp_enter_name(kvp_master_t *m, kvp_tenant_t *t, const char *name)
{
    if (kvp_tenant_be_named(t, name) && t->chunks > 0) kvp_record_tenant(&m->cat, t);
}

bool
kvp_enter_may_tier(const kvp_master_t *m, uint32_t tenant, uint64_t len)
{
    return len > 0 && len >> KVP_OBJ_TIER_LEN_BITS == 0 && kvp_tenant_may_open(&m->cat, tenant);
}

void
kvp_enter_tier(kvp_master_t *m, uint32_t oid, kvp_segment_t *g, uint32_t tenant, uint64_t len)
{
    kvp_tenant_t *t = kvp_tenant_open(&m->cat, tenant);

    kvp_obj_enter_tier(&m->space, oid, g, t, len);
    t->objects++;
    kvp_tenant_rele(&m->cat, t);
}

static void
leave_place(kvp_master_t *m, uint32_t oid, const kvp_place_t *at)
{
    kvp_chunk_t *c = kvp_place_chunk(&m->cat, at);
    uint64_t extent = kvp_slab_len(c->slab, at->slot);

    kvp_obj_del_place(&m->space, oid, at);
    c->segment->objects--;
    c->segment->used_bytes -= extent;
    c->tenant->used_bytes -= extent;
    kvp_slab_unrestore(c->slab, at->slot);
    if (at->long_key_slot != KVP_SLAB_NONE) kvp_slab_unrestore(c->long_keys, at->long_key_slot);
    if (kvp_slab_used_bytes(c->slab) == 0) kvp_place_chunk_leave(&m->space, c);
}

void
kvp_enter_leave(kvp_master_t *m, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(&m->cat, o, places);

    m->ctx.st.objects--;
    if (o->chunk != KVP_OBJ_CHUNK_NONE) kvp_obj_tenant(&m->cat, o)->objects--;
    kvp_objindex_unlink(m->cat.index, oid);
    kvp_victim_removed(&m->prot, oid);
    kvp_group_leave(&m->prot, oid);
    kvp_tier_forget(&m->space, kvp_obj(m->cat.index, oid));
    for (uint32_t i = n; i-- > 0;)
        leave_place(m, oid, &places[i]);
    kvp_objindex_free(m->cat.index, oid);
}

/* ---- restoring extents in allocators */
void
kvp_enter_open_chunk(kvp_chunk_t *c, bool has_long_key)
{
    if (c->slab == NULL && kvp_slab_create_open(c->bytes, c->geo.slots_max, &c->slab) != KVP_OK)
        kvp_panic("out of memory: allocator of a chunk");
    if (has_long_key && c->long_keys == NULL &&
        kvp_slab_create_open(c->geo.long_keys_bytes, c->geo.slots_max, &c->long_keys) != KVP_OK)
        kvp_panic("out of memory: allocator of long keys");
}

kvp_err_t
kvp_enter_place(kvp_chunk_t *c, const kvp_jrec_place_t *p, uint64_t len, uint32_t key_len, kvp_place_t *at)
{
    bool is_long = key_len > KVP_KEY_CELL_BYTES;
    uint64_t key_at = (uint64_t)p->key_off * 64;
    kvp_err_t err;

    *at = (kvp_place_t){.chunk = c->number, .generation = p->generation, .long_key_slot = KVP_SLAB_NONE};
    kvp_enter_open_chunk(c, is_long);
    if (is_long ? key_at < c->geo.long_keys_off : p->key_off != kvp_key_cell_units(&c->geo, p->slot))
        return KVP_CORRUPT;
    err = kvp_slab_restore(c->slab, p->slot, p->offset, kvp_extent_bytes(len), 0, &at->slot);
    if (err != KVP_OK || !is_long) return err;
    err = kvp_slab_restore(c->long_keys, KVP_SLAB_NONE, key_at - c->geo.long_keys_off, kvp_extent_bytes(key_len), 0,
                           &at->long_key_slot);
    if (err != KVP_OK) kvp_slab_unrestore(c->slab, at->slot);
    return err;
}

kvp_err_t
kvp_enter_close_chunk(kvp_chunk_t *c)
{
    kvp_err_t err = c->slab == NULL ? KVP_OK : kvp_slab_close(c->slab);

    return err == KVP_OK && c->long_keys != NULL ? kvp_slab_close(c->long_keys) : err;
}
