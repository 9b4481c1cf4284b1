/* SPDX-License-Identifier: Apache-2.0
 * Design notes. A moving object is identified by its version, which no other object has. The result of the move finds
 * the object by its digest, and has an effect only if the object still has this version. */
#include "master/core/space/moving.h"

#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/candidates.h"
#include "master/core/space/retire.h"
#include "master/core/space/tiered.h"

#include <stdlib.h>

kvp_moving_t *
kvp_moving_make(kvp_space_t *sp, kvp_obj_t *o, kvp_segment_t *g, const kvp_place_t *at)
{
    kvp_moving_t *mv = kvp_core_alloc(1, sizeof *mv);

    kvp_list_init(&mv->link);
    kvp_list_init(&mv->waiters);
    mv->segment = g;
    mv->digest = kvp_obj_digest_of(sp->cat, o);
    mv->version = kvp_obj_version(o);
    mv->len = kvp_obj_len(sp->cat, o);
    if (at != NULL) mv->at = *at;
    mv->number = kvp_ptab_add(&sp->moves, mv);
    kvp_umap_set(&sp->moving, mv->version, mv->number);
    g->moving_bytes += mv->len;
    if (at == NULL)
        g->loading_bytes += mv->len;
    else
        sp->writing_bytes += mv->len;
    mv->kind = at == NULL ? KVP_MOVING_IN : KVP_MOVING_OUT;
    o->is_moving = 1;
    return mv;
}

kvp_moving_t *
kvp_moving_of(const kvp_space_t *sp, const kvp_obj_t *o)
{
    uint32_t number;

    return o->is_moving != 0 && kvp_umap_get(&sp->moving, kvp_obj_version(o), &number)
               ? kvp_ptab_get(&sp->moves, number)
               : NULL;
}

kvp_obj_t *
kvp_moving_object(const kvp_space_t *sp, const kvp_moving_t *mv, uint32_t *oid_out)
{
    uint32_t oid =
        mv->is_orphan && KVP_RULE(MOVE_VERSION) ? KVP_OID_NONE : kvp_objindex_find(sp->cat->index, mv->digest);
    kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(sp->cat->index, oid);

    *oid_out = oid;
    if (o == NULL || o->state != KVP_OBJ_COMMITTED) return NULL;
    return kvp_obj_version(o) != mv->version && KVP_RULE(MOVE_VERSION) ? NULL : o;
}

void
kvp_moving_arrived(kvp_space_t *sp, kvp_obj_t *o, uint32_t oid)
{
    o->is_moving = 0;
    kvp_victim_let_go(sp->prot, oid);
    kvp_ctx_space_news(sp->ctx);
}

void
kvp_moving_end(kvp_space_t *sp, kvp_moving_t *mv)
{
    if (mv->retire != NULL && KVP_RULE(STAGE_RETIRED))
        kvp_retire_stage_failed(sp, mv->retire, NULL);
    else if (mv->retire != NULL)
        kvp_retire_set_free(sp, mv->retire);
    while (!kvp_list_is_empty(&mv->waiters)) {
        kvp_stage_waiter_t *who = kvp_list_first(&mv->waiters, kvp_stage_waiter_t, link);

        kvp_list_del(&who->link);
        who->result = mv->result;
        if (--who->wait->left == 0) kvp_list_add_tail(&sp->staged, &who->wait->ready);
    }
    kvp_list_del(&mv->link);
    (void)kvp_umap_del(&sp->moving, mv->version);
    kvp_ptab_del(&sp->moves, mv->number);
    mv->segment->moving_bytes -= mv->len;
    if (mv->is_placed) mv->segment->placed_bytes -= mv->len;
    if (kvp_moving_is_load(mv))
        mv->segment->loading_bytes -= mv->len;
    else
        sp->writing_bytes -= mv->len;
    free(mv);
}

void
kvp_moving_fail(kvp_space_t *sp, kvp_moving_t *mv)
{
    uint32_t oid;
    kvp_obj_t *o = kvp_moving_object(sp, mv, &oid);

    if (o != NULL) kvp_moving_arrived(sp, o, oid);
    sp->ctx->st.demotes_refused += !kvp_moving_is_load(mv);
    sp->ctx->st.stages_failed += kvp_moving_is_load(mv);
    if (o != NULL && kvp_moving_is_load(mv)) kvp_ctx_count_fault(sp->ctx, &sp->ctx->failed_loads, mv->segment->id);
    kvp_moving_end(sp, mv);
}

void
kvp_tier_leave(kvp_space_t *sp, kvp_obj_t *o, bool is_told, kvp_deferred_t *deferred)
{
    kvp_segment_t *t = kvp_obj_tier(sp->cat, o);
    kvp_moving_t *mv = kvp_moving_of(sp, o);

    if (t != NULL && !is_told && KVP_RULE(TIER_DROPS))
        kvp_tier_drop(sp, t, kvp_obj_digest_of(sp->cat, o), kvp_obj_version(o), deferred);
    kvp_tier_forget(sp, o);
    if (mv == NULL) return;
    o->is_moving = 0;
    mv->is_orphan = true;
    if (mv->retire != NULL) kvp_retire_stage_failed(sp, mv->retire, deferred);
    mv->retire = NULL;
    if (!mv->is_sent) kvp_moving_fail(sp, mv);
}
