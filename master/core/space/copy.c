/* SPDX-License-Identifier: Apache-2.0
 * Copies of committed objects. As for a load from a tier, the extent at the target has a retire record with an owner
 * that no node knows: no put gets the extent, and after a failed copy it retires like any other. An object is found
 * again by its version. A copy is no use of its object, and does not protect it from eviction. */
#include "master/core/space/copy.h"

#include "common/mutate.h"
#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/slab.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/protect/leaving.h"
#include "master/core/protect/lease.h"
#include "master/core/protect/pin.h"
#include "master/core/space/check.h"
#include "master/core/space/drop.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"

#include <stdlib.h>

kvp_copy_t *
kvp_copy_of(const kvp_space_t *sp, const kvp_obj_t *o)
{
    uint32_t number;

    return kvp_umap_get(&sp->copying, kvp_obj_version(o), &number) ? kvp_ptab_get(&sp->copies, number) : NULL;
}

/* Returns the object that is being copied; NULL = it was removed or replaced. */
static kvp_obj_t *
object_of(const kvp_space_t *sp, const kvp_copy_t *copy, uint32_t *oid_out)
{
    uint32_t oid =
        copy->is_orphan && KVP_RULE(COPY_VERSION) ? KVP_OID_NONE : kvp_objindex_find(sp->cat->index, copy->digest);
    kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(sp->cat->index, oid);

    *oid_out = oid;
    if (o == NULL || o->state != KVP_OBJ_COMMITTED) return NULL;
    return kvp_obj_version(o) != copy->version && KVP_RULE(COPY_VERSION) ? NULL : o;
}

kvp_err_t
kvp_copy_begin(kvp_space_t *sp, uint32_t oid, const kvp_place_t *from, kvp_segment_t *target)
{
    const kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    const uint64_t len = kvp_obj_len(sp->cat, o);
    kvp_copy_t *copy;
    kvp_place_t at;

    if (target->copying_bytes > 0 && target->copying_bytes + len > KVP_COPYING_MAX) return KVP_RETRY_AFTER;
    if (kvp_place_alloc_stage(sp, target, oid, &at) != KVP_OK) return KVP_NO_SPACE;
    copy = kvp_core_alloc(1, sizeof *copy);
    copy->target = target;
    copy->source = kvp_place_chunk(sp->cat, from)->segment->id;
    copy->digest = kvp_obj_digest_of(sp->cat, o);
    copy->version = kvp_obj_version(o);
    copy->len = len;
    copy->from = from->generation;
    copy->at = at;
    copy->retire = kvp_retire_stage(sp, &at);
    copy->retire->digest = copy->digest;
    copy->retire->version = copy->version;
    copy->number = kvp_ptab_add(&sp->copies, copy);
    kvp_umap_set(&sp->copying, copy->version, copy->number);
    kvp_list_add_tail(&target->copies, &copy->link);
    target->copying_bytes += len;
    kvp_retire_want_sending(sp, target);
    kvp_ctx_spend(sp->ctx, 1);
    return KVP_OK;
}

/* Frees the record; the extent retires if no object owns it. */
static void
copy_end(kvp_space_t *sp, kvp_copy_t *copy)
{
    if (copy->retire != NULL) kvp_retire_stage_failed(sp, copy->retire, NULL);
    kvp_list_del(&copy->link);
    (void)kvp_umap_del(&sp->copying, copy->version);
    kvp_ptab_del(&sp->copies, copy->number);
    copy->target->copying_bytes -= copy->len;
    free(copy);
}

void
kvp_copies_fail(kvp_space_t *sp, kvp_list_t *copies)
{
    while (!kvp_list_is_empty(copies))
        copy_end(sp, kvp_list_first(copies, kvp_copy_t, link));
}

void
kvp_copy_leave(kvp_space_t *sp, const kvp_obj_t *o, kvp_deferred_t *deferred)
{
    kvp_copy_t *copy = kvp_copy_of(sp, o);

    if (copy == NULL || copy->is_orphan) return;
    copy->is_orphan = true;
    if (KVP_RULE(COPY_VERSION)) {
        kvp_retire_stage_failed(sp, copy->retire, KVP_RULE(COPY_REMOVED) ? deferred : NULL);
        copy->retire = NULL;
    }
    if (!copy->is_sent) copy_end(sp, copy);
}

/* ---- the order */
/* Returns the copy with this generation among the object's copies, or the first one. */
static const kvp_place_t *
source_of(const kvp_place_t *places, uint32_t n, uint64_t generation)
{
    for (uint32_t i = 0; i < n; i++)
        if (places[i].generation == generation) return &places[i];
    return &places[0];
}

void
kvp_copy_append(const kvp_space_t *sp, const kvp_list_t *record, kvp_buf_t *out)
{
    kvp_copy_t *copy = kvp_list_entry((kvp_list_t *)record, kvp_copy_t, link);
    kvp_wire_copy_t rec = {.digest = copy->digest, .version = copy->version, .len = copy->len};
    kvp_place_t places[KVP_REPLICAS_MAX];
    const kvp_obj_t *o;
    uint8_t key[KVP_KEY_MAX];
    kvp_wire_loc_t loc;
    uint32_t oid, n;

    o = object_of(sp, copy, &oid);
    n = o == NULL ? 0 : kvp_obj_places(sp->cat, o, places);
    if (n > 0) { /* without a source in the order, the node answers that it found none */
        kvp_place_wire(sp->cat, source_of(places, n, copy->from), &loc);
        rec.sum = o->sum;
        rec.key_len = kvp_obj_key_copy(sp->cat->index, o, key);
        rec.key_sum = kvp_sum(key, rec.key_len);
        rec.generation = loc.generation;
        rec.offset = loc.offset;
        rec.segment_id = loc.segment_id;
        rec.chunk = loc.chunk;
        rec.slot = loc.slot;
        rec.key_off = loc.key_off;
        copy->from = loc.generation;
    }
    kvp_place_wire(sp->cat, &copy->at, &loc);
    rec.to_generation = loc.generation;
    rec.to_offset = loc.offset;
    rec.to_chunk = loc.chunk;
    rec.to_slot = loc.slot;
    rec.to_key_off = loc.key_off;
    kvp_buf_append(out, &rec, sizeof rec);
}

/* ---- the answer */
static kvp_segment_t *
source_segment(kvp_space_t *sp, const kvp_copy_t *copy)
{
    return kvp_segment_find(sp, copy->source);
}

/* Returns true if the copy is still wanted: the object is served from memory and has no copy in the target, and the
 * copy has a purpose: the drain continues, or the source's node is away, or a client requested the copy. */
static bool
is_wanted(kvp_space_t *sp, const kvp_copy_t *copy, const kvp_obj_t *o)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    const kvp_segment_t *g = source_segment(sp, copy);
    uint32_t n = kvp_obj_places(sp->cat, o, places);

    if (n == 0 || n == KVP_REPLICAS_MAX || kvp_obj_version(o) <= kvp_obj_tenant(sp->cat, o)->min_version) return false;
    if (kvp_place_in(sp->cat, places, n, copy->target->id) < n) return false;
    return copy->is_asked || g == NULL || g->drain != NULL || g->state != KVP_SEG_UP;
}

static void
enter_copy(kvp_space_t *sp, kvp_copy_t *copy, uint32_t oid)
{
    const kvp_victim_mark_t mark = kvp_victim_mark(sp->prot, oid);
    kvp_chunk_t *c = kvp_place_chunk(sp->cat, &copy->at);
    kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    int64_t bytes = (int64_t)kvp_slab_len(c->slab, copy->at.slot);

    kvp_retire_stage_done(sp, copy->retire);
    copy->retire = NULL;
    kvp_slab_set_owner(c->slab, copy->at.slot, oid);
    c->segment->objects++;
    kvp_obj_add_place(sp->cat, oid, &copy->at, (uint64_t)bytes - copy->len);
    kvp_pin_count(sp->prot, o, bytes);
    kvp_group_bytes(sp->prot, o, bytes);
    kvp_victim_restore(sp->prot, &mark);
}

/* The object was copied: its copy in the draining segment, or in the one that a task moves it from, begins to leave.
 * One record names the new copy and says this, so a move is in the log whole or not at all. */
static void
record_copy(kvp_space_t *sp, const kvp_copy_t *copy, uint32_t oid)
{
    const kvp_segment_t *g = source_segment(sp, copy);
    const bool is_drained = g != NULL && g->drain != NULL;
    const uint32_t from = is_drained ? g->id : copy->moved_from;
    kvp_place_t places[KVP_REPLICAS_MAX];
    const uint32_t n = kvp_obj_places(sp->cat, kvp_obj(sp->cat->index, oid), places);
    const uint32_t at = kvp_place_in(sp->cat, places, n, from);
    const uint64_t due_ns = is_drained ? g->drain->deadline_ns : UINT64_MAX;

    if (from == 0 || at == n || !kvp_leaving_begin(sp->prot, oid, &places[at], due_ns)) kvp_record_again(sp->cat, oid);
}

/* Revokes the object's cached locations, so that clients ask again and learn the place of the copy. */
static void
tell_readers(const kvp_space_t *sp, const kvp_copy_t *copy, const kvp_obj_t *o)
{
    kvp_revoke(kvp_obj_tenant(sp->cat, o), copy->digest);
    sp->ctx->st.hot_copies++;
    sp->ctx->st.hot_bytes += copy->len;
}

/* Orders the source's node to check the copy that could not be read. */
static void
check_source(kvp_space_t *sp, const kvp_copy_t *copy, const kvp_obj_t *o)
{
    const kvp_wire_unreadable_t told = {.digest = copy->digest, .generation = copy->from};

    (void)kvp_check_told(sp, kvp_obj_tenant(sp->cat, o), &told);
}

void
kvp_copy_answered(kvp_space_t *sp, kvp_copy_t *copy, uint8_t answer)
{
    uint32_t oid;
    kvp_obj_t *o = object_of(sp, copy, &oid);
    kvp_segment_t *g = source_segment(sp, copy);

    if (o != NULL && copy->retire != NULL && (answer == KVP_COPY_OK || !KVP_RULE(COPY_ANSWERED)) &&
        is_wanted(sp, copy, o)) {
        enter_copy(sp, copy, oid);
        record_copy(sp, copy, oid);
        if (copy->is_hot) tell_readers(sp, copy, o);
    } else if (o != NULL && answer == KVP_COPY_STALE) {
        check_source(sp, copy, o);
    }
    /* the copy of an object that was removed or evicted meanwhile did not fail: it is not needed */
    if (answer != KVP_COPY_OK && o != NULL) sp->ctx->st.copies_failed++;
    if (answer != KVP_COPY_OK && o != NULL && g != NULL && g->drain != NULL) {
        g->drain->failed++;
        g->drain->last_error = answer;
    }
    copy_end(sp, copy);
}

/* ---- the drop of the source */
/* Returns the object if this call also removed it from the SSD beside the dropped copy, else KVP_OID_NONE. */
static uint32_t
drop_leaving(kvp_space_t *sp, const kvp_leaving_t *l)
{
    uint32_t oid = kvp_objindex_find(sp->cat->index, l->digest), n, at = UINT32_MAX, others = 0;
    bool was_on_tier;
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(sp->cat->index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    kvp_segment_t *g;

    if (o == NULL || o->state != KVP_OBJ_COMMITTED || kvp_obj_version(o) != l->version) return KVP_OID_NONE;
    n = kvp_obj_places(sp->cat, o, places);
    for (uint32_t i = 0; i < n; i++) {
        const kvp_segment_t *on = kvp_place_chunk(sp->cat, &places[i])->segment;

        if (places[i].generation == l->generation) at = i;
        /* A restored copy does not count before its node's report: a log without its end may name a copy that was
         * dropped. */
        else
            others += (on->state != KVP_SEG_LOST && !on->is_restored) || !KVP_RULE(LEAVING_LAST);
    }
    if (at == UINT32_MAX || others == 0) return KVP_OID_NONE;
    g = kvp_place_chunk(sp->cat, &places[at])->segment;
    if (g->drain != NULL) {
        sp->ctx->st.moved++;
        sp->ctx->st.moved_bytes += kvp_obj_len(sp->cat, o);
        g->drain->moved++;
        g->drain->moved_bytes += kvp_obj_len(sp->cat, o);
    }
    was_on_tier = o->is_on_tier != 0;
    kvp_obj_move_off(sp, oid, &places[at]);
    return was_on_tier && o->is_on_tier == 0 ? oid : KVP_OID_NONE;
}

bool
kvp_copies_leave(kvp_space_t *sp, uint32_t *oid_out)
{
    kvp_leaving_t *l = kvp_leaving_next(sp->prot);

    *oid_out = KVP_OID_NONE;
    if (l == NULL) return false;
    *oid_out = drop_leaving(sp, l);
    kvp_leaving_end(sp->prot, l);
    return true;
}
