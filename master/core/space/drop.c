/* SPDX-License-Identifier: Apache-2.0
 * An object leaves the index, and its extents retire: removed, superseded, evicted, or lost with its memory.
 */
#include "master/core/state.h"

#include "common/mutate.h"

typedef struct {
    uint64_t owner;
    kvp_waiter_t *waiter;
    kvp_wire_tomb_t tomb; /* what is owed for it */
    bool is_superseded; /* by a commit that may not be durable: until it is, this is what the journal has */
} leave_t;

void
kvp_obj_del_place(kvp_master_t *m, uint32_t oid, const kvp_place_t *at)
{
    kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    const kvp_objext_t *ext = kvp_obj_ext(m->cat.index, o);
    uint64_t bytes = kvp_slab_len(((const kvp_chunk_t *)kvp_ptab_get(&m->cat.chunks, at->chunk))->slab, at->slot);
    bool is_first = ext != NULL && ext->more_n > 0 && kvp_obj_place(&m->cat, o).generation == at->generation;
    bool was_listed;

    kvp_pin_count(&m->prot, o, -(int64_t)bytes);
    kvp_group_bytes(&m->prot, o, -(int64_t)bytes);
    was_listed = is_first && kvp_victim_is_listed(o); /* on a list of the segment that it leaves, perhaps */
    if (is_first) kvp_victim_removed(&m->prot, oid);
    kvp_replica_del(&m->cat, oid, at);
    if (was_listed) kvp_victim_used(&m->prot, oid);
}

static void
drop(kvp_master_t *m, uint32_t oid, const leave_t *leave)
{
    kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(&m->cat, o, places);
    kvp_attempt_t *heir = kvp_attempt_heir(&m->cat, o);
    bool was_served = o->state == KVP_OBJ_COMMITTED;

    if (was_served) {
        m->ctx.st.objects--;
        kvp_obj_tenant(&m->cat, o)->objects--;
    }
    if (o->state != KVP_OBJ_DRAFT) kvp_objindex_unlink(m->cat.index, oid);
    if (heir != NULL) kvp_attempt_inherit(&m->cat, heir);
    kvp_victim_removed(&m->prot, oid);
    kvp_group_leave(&m->prot, oid);
    kvp_ctx_spend(&m->ctx, 1 + n);
    for (uint32_t i = n; i-- > 0;) {
        kvp_retire_t *r;

        kvp_obj_del_place(m, oid, &places[i]);
        r = kvp_retire_place(m, &places[i], leave->owner, leave->waiter);
        if (leave->is_superseded && kvp_journal_withholds(&m->log) && KVP_RULE(SUPERSEDED_STAYS))
            kvp_retire_hold_back(m, r, &leave->tomb);
        else
            kvp_owed_retire(&m->log, r, &leave->tomb);
        if (was_served) kvp_retire_of_key(m, r, o->id);
    }
    if (o->tickets > 0)
        o->state = KVP_OBJ_GONE;
    else
        kvp_objindex_free(m->cat.index, oid);
}

void
kvp_obj_drop(kvp_master_t *m, uint32_t oid, uint64_t owner, kvp_waiter_t *waiter)
{
    leave_t leave = {.owner = owner, .waiter = waiter};

    leave.tomb = kvp_owed_dropped(&m->log, kvp_obj(m->cat.index, oid), waiter != NULL);
    kvp_journal_gone(&m->log, kvp_obj(m->cat.index, oid));
    drop(m, oid, &leave);
}

void
kvp_obj_supersede(kvp_master_t *m, uint32_t oid, kvp_waiter_t *waiter)
{
    leave_t leave = {
        .waiter = waiter,
        .tomb = kvp_owed_dropped(&m->log, kvp_obj(m->cat.index, oid), true),
        .is_superseded = true,
    };

    drop(m, oid, &leave);
}

void
kvp_obj_lose(kvp_master_t *m, uint32_t oid)
{
    static const leave_t leave;

    kvp_owed_lost(&m->log, kvp_obj(m->cat.index, oid));
    kvp_journal_lost(&m->log, kvp_obj(m->cat.index, oid));
    drop(m, oid, &leave);
}
