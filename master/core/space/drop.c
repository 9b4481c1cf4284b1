/* SPDX-License-Identifier: Apache-2.0
 * Removes objects (removed, superseded, evicted, or lost with their memory) from the index, retires their extents. */
#include "master/core/space/drop.h"

#include "common/mutate.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/record.h"
#include "master/core/log/journal.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/gone.h"
#include "master/core/protect/group.h"
#include "master/core/protect/pin.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "master/core/space/space.h"
#include "master/core/space/copy.h"
#include "master/core/space/moving.h"
#include "master/core/space/tiered.h"
#include "proto/wire.h"

typedef struct {
    uint64_t owner;
    kvp_deferred_t *deferred;
    kvp_digest_t digest; /* digest of the key, for the removal's log record and to compare later node reports */
    uint64_t version; /* version for the removal's log record; 0 = the removal is not recorded */
    bool is_off_tier; /* flag: the object's tier has dropped its copy already */
    /* flag: a commit replaces the object; before its record is written, a restart would restore the old version */
    bool is_superseded;
} leave_t;

/* "On the tier" means the tier beside the object's first copy. Before another copy becomes the first, the tier drops
 * its record. */
static void
leave_tier_of_first(kvp_space_t *sp, kvp_obj_t *o)
{
    kvp_segment_t *t = kvp_obj_tier(sp->cat, o);

    if (t != NULL) kvp_tier_drop(sp, t, kvp_obj_digest_of(sp->cat, o), kvp_obj_version(o), NULL);
    kvp_tier_forget(sp, o);
}

void
kvp_obj_del_place(kvp_space_t *sp, uint32_t oid, const kvp_place_t *at)
{
    kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    const kvp_objext_t *ext = kvp_obj_ext(sp->cat->index, o);
    uint64_t bytes = kvp_slab_len(kvp_place_chunk(sp->cat, at)->slab, at->slot);
    bool is_first = ext != NULL && ext->more_n > 0 && kvp_obj_place(sp->cat, o).generation == at->generation;
    bool was_listed;

    if (ext == NULL) { /* an object without an extension has one replica and no group */
        kvp_pin_count(sp->prot, o, -(int64_t)bytes);
        kvp_replica_del(sp->cat, oid, at);
        return;
    }
    if (is_first && o->is_on_tier != 0) leave_tier_of_first(sp, o);
    kvp_pin_count(sp->prot, o, -(int64_t)bytes);
    kvp_group_bytes(sp->prot, o, -(int64_t)bytes);
    /* the object may be on a list of the segment from which this copy is removed */
    was_listed = is_first && kvp_victim_is_listed(o);
    if (is_first) kvp_victim_removed(sp->prot, oid);
    kvp_replica_del(sp->cat, oid, at);
    if (was_listed) kvp_victim_used(sp->prot, oid);
}

void
kvp_obj_drop_copy(kvp_space_t *sp, uint32_t oid, const kvp_place_t *at, kvp_deferred_t *deferred)
{
    const kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    kvp_retire_t *r;

    kvp_obj_del_place(sp, oid, at);
    r = kvp_retire_place(sp, at, 0, deferred);
    r->digest = kvp_obj_digest_of(sp->cat, o);
    r->version = kvp_obj_version(o); /* until the extent is DEAD, a snapshot in the log must contain the removal */
    kvp_retire_of_key(sp, r, o->id);
    kvp_record_again(sp->cat, oid);
}

void
kvp_obj_move_off(kvp_space_t *sp, uint32_t oid, const kvp_place_t *at)
{
    const kvp_victim_mark_t mark = kvp_victim_mark(sp->prot, oid);

    kvp_obj_drop_copy(sp, oid, at, NULL);
    kvp_victim_restore(sp->prot, &mark);
}

static void
drop_object(kvp_space_t *sp, uint32_t oid, const leave_t *leave)
{
    kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(sp->cat, o, places);
    kvp_attempt_t *replacement = kvp_attempt_replacement(sp->cat, o);
    bool was_served = o->state == KVP_OBJ_COMMITTED;

    if (was_served) {
        sp->ctx->st.objects--;
        kvp_obj_tenant(sp->cat, o)->objects--;
    }
    if (o->state != KVP_OBJ_STAGED) kvp_objindex_unlink(sp->cat->index, oid);
    if (replacement != NULL) kvp_attempt_promote(sp->cat, replacement);
    kvp_victim_removed(sp->prot, oid);
    kvp_group_leave(sp->prot, oid);
    if (o->is_on_tier != 0 || o->is_moving != 0) kvp_tier_leave(sp, o, leave->is_off_tier, leave->deferred);
    if (sp->copies.n > 0) kvp_copy_leave(sp, o, leave->deferred);
    kvp_ctx_spend(sp->ctx, 1 + n);
    for (uint32_t i = n; i-- > 0;) {
        kvp_retire_t *r;

        kvp_obj_del_place(sp, oid, &places[i]);
        r = kvp_retire_place(sp, &places[i], leave->owner, leave->deferred);
        r->digest = leave->digest;
        r->version = leave->version;
        if (leave->is_superseded && kvp_journal_withholds(sp->log, false) && KVP_RULE(SUPERSEDED_STAYS))
            kvp_retire_hold_back(sp, r);
        if (was_served) kvp_retire_of_key(sp, r, o->id);
    }
    if (o->tickets > 0)
        o->state = KVP_OBJ_GONE;
    else
        kvp_objindex_free(sp->cat->index, oid);
}

void
kvp_obj_leave_memory(kvp_space_t *sp, uint32_t oid)
{
    kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    kvp_segment_t *t = kvp_obj_tier(sp->cat, o);
    kvp_tenant_t *tenant = kvp_obj_tenant(sp->cat, o);
    uint64_t len = kvp_obj_len(sp->cat, o);
    kvp_digest_t digest = kvp_obj_digest_of(sp->cat, o);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(sp->cat, o, places);

    kvp_victim_removed(sp->prot, oid);
    tenant->refs++; /* keeps the tenant: its last chunk may be released with the object's place */
    for (uint32_t i = n; i-- > 0;) {
        kvp_retire_t *r;

        kvp_obj_del_place(sp, oid, &places[i]);
        r = kvp_retire_place(sp, &places[i], 0, NULL);
        r->digest = digest;
        r->version = kvp_obj_version(o);
        kvp_retire_of_key(sp, r, o->id);
    }
    if (o->has_ext) kvp_obj_ext(sp->cat->index, o)->generation = 0;
    kvp_obj_enter_tier(sp, oid, t, tenant, len);
    kvp_tenant_rele(sp->cat, tenant);
    kvp_ctx_spend(sp->ctx, 1 + n);
    kvp_record_again(sp->cat, oid);
}

/* Returns the log's coarser cause. */
static kvp_gone_t
gone_of(kvp_cause_t cause)
{
    switch (cause) {
    case KVP_CAUSE_REPLACED:
        return KVP_GONE_SUPERSEDED;
    case KVP_CAUSE_REMOVED:
    case KVP_CAUSE_BUMPED:
    case KVP_CAUSE_GIVEN_UP:
        return KVP_GONE_REMOVED;
    case KVP_CAUSE_LOST_NODE:
    case KVP_CAUSE_LOST_SSD:
        return KVP_GONE_LOST;
    default:
        return KVP_GONE_EVICTED;
    }
}

/* Describes the object's departure for the table of departures. */
static kvp_departure_t
departure_of(kvp_space_t *sp, uint32_t oid, kvp_cause_t cause)
{
    const kvp_obj_t *o = kvp_obj(sp->cat->index, oid);
    kvp_departure_t d = {.id = o->id, .cause = cause & 0x1f, .at = kvp_departed_time(sp->ctx->now_ns)};

    if (o->chunk != KVP_OBJ_CHUNK_NONE) d.segment = (uint16_t)kvp_obj_chunk(sp->cat, o)->segment->id;
    if (o->state == KVP_OBJ_COMMITTED) {
        d.detail = kvp_age_code(kvp_ages_age(&sp->cat->ages, kvp_obj_version(o), sp->ctx->now_ns));
        if (o->is_used_since != 0) d.detail |= KVP_DEPARTED_READ;
        if (kvp_cause_is_eviction(cause)) d.elsewhere = kvp_place_elsewhere(sp, kvp_obj_tenant(sp->cat, o)) & 7;
    }
    return d;
}

static void
note_gone(kvp_space_t *sp, uint32_t oid, leave_t *leave)
{
    const kvp_obj_t *o = kvp_obj(sp->cat->index, oid);

    if (o->state != KVP_OBJ_COMMITTED) return;
    if (sp->log->state != KVP_JOURNAL_OPEN && !kvp_gone_is_rebuilding(sp->prot)) return;
    leave->digest = kvp_obj_digest_of(sp->cat, o);
    leave->version = kvp_obj_version(o);
}

void
kvp_obj_drop(kvp_space_t *sp, uint32_t oid, kvp_cause_t cause, uint64_t owner, kvp_deferred_t *deferred)
{
    leave_t leave = {.owner = owner, .deferred = deferred};
    const kvp_departure_t departure = departure_of(sp, oid, cause);

    note_gone(sp, oid, &leave);
    if (leave.version > 0)
        kvp_record_gone(sp->cat, kvp_obj(sp->cat->index, oid), leave.digest, leave.version, gone_of(cause), cause);
    kvp_gone_hold(sp->prot, leave.digest, leave.version);
    drop_object(sp, oid, &leave);
    if (cause != KVP_CAUSE_NOT_KNOWN) kvp_departed_note(&sp->cat->departed, &departure);
}

void
kvp_obj_drop_off_tier(kvp_space_t *sp, uint32_t oid)
{
    leave_t leave = {.is_off_tier = true};
    const kvp_departure_t departure = departure_of(sp, oid, KVP_CAUSE_EVICTED_FROM_SSD);

    note_gone(sp, oid, &leave);
    if (leave.version > 0)
        kvp_record_gone(sp->cat, kvp_obj(sp->cat->index, oid), leave.digest, leave.version, KVP_GONE_EVICTED,
                        KVP_CAUSE_EVICTED_FROM_SSD);
    kvp_gone_hold(sp->prot, leave.digest, leave.version);
    drop_object(sp, oid, &leave);
    kvp_departed_note(&sp->cat->departed, &departure);
}

void
kvp_obj_supersede(kvp_space_t *sp, uint32_t oid, kvp_deferred_t *deferred)
{
    leave_t leave = {.deferred = deferred, .is_superseded = true};

    note_gone(sp, oid, &leave);
    if (leave.version > 0) kvp_gone_say(sp->prot, leave.digest, leave.version, KVP_GONE_SUPERSEDED);
    drop_object(sp, oid, &leave);
}

void
kvp_obj_lose(kvp_space_t *sp, uint32_t oid, kvp_cause_t cause)
{
    leave_t leave = {.owner = 0};
    const kvp_departure_t departure = departure_of(sp, oid, cause);

    note_gone(sp, oid, &leave);
    if (leave.version > 0)
        kvp_record_gone(sp->cat, kvp_obj(sp->cat->index, oid), leave.digest, leave.version, KVP_GONE_LOST, cause);
    /* version - 1: if the lost memory is mounted again, the lost version of the object is served again */
    if (leave.version > 0) kvp_gone_hold(sp->prot, leave.digest, leave.version - 1);
    drop_object(sp, oid, &leave);
    kvp_departed_note(&sp->cat->departed, &departure);
}
