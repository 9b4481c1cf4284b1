/* SPDX-License-Identifier: Apache-2.0
 * Applies a log's records to the catalog: at start-up the objects are made from the records.
 *
 * Design notes.
 * - Records are in the order of events, so the last record of a key is valid, and no two extents overlap at any time.
 *   While records are read, extents have no neighbours: allocators are open (kvp_slab_create_open), and are closed
 *   once, at the end.
 * - No extent is retired here: a removed object has no place. Its state word in the node's memory may still be
 *   SEALED, which the node's report shows.
 * - A segment of the log is lost, like a segment whose node has just disconnected, and is_restored: at the mount the
 *   node's report is compared with it (recheck.c). */
#include "master/core/protect/gone.h"
#include "master/core/recovery/apply.h"

#include "common/hash.h"
#include "master/core/base/ptab.h"
#include "master/core/base/slab.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/journal.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/group.h"
#include "master/core/recovery/enter.h"
#include "master/core/recovery/loss.h"
#include "master/core/recovery/state.h"
#include "master/core/space/place.h"
#include "master/core/space/segment.h"
#include "proto/segfmt.h"

#include <string.h>

/* Returns true if a master of this term or an earlier one can have assigned the version. */
static bool
is_of_terms(uint32_t term, uint64_t version)
{
    return version > 0 && version < kvp_gen_make(term + 1, 0);
}

/* ---- segments */
static kvp_segment_t *
find_segment(kvp_master_t *m, uint32_t number)
{
    kvp_segment_t *g = m->replay.named;

    if (g == NULL || g->id != number) g = m->replay.named = kvp_segment_find(&m->space, number);
    return g;
}

static kvp_err_t
apply_segment(kvp_master_t *m, const kvp_jrec_segment_t *rec)
{
    kvp_segment_t *g = find_segment(m, rec->number);
    Kvp__Pb__Mount like = KVP__PB__MOUNT__INIT;

    like.uuid = (ProtobufCBinaryData){sizeof rec->uuid, (uint8_t *)rec->uuid};
    like.epoch = rec->epoch;
    like.size_bytes = rec->size_bytes;
    like.chunk_bytes = rec->chunk_bytes;
    like.name = (char *)rec->name;
    like.is_tier = rec->chunk_bytes == 0;
    if (g != NULL && memcmp(g->uuid, rec->uuid, sizeof g->uuid) != 0) return KVP_CORRUPT;
    if (g == NULL) {
        if (rec->number <= m->cat.segment_seq || kvp_segment_refusal(&like) != NULL) return KVP_CORRUPT;
        if (m->cat.chunks_n + kvp_segment_chunk_n(&like) > KVP_POOL_CHUNKS_MAX) return KVP_CORRUPT;
        g = kvp_segment_make(&m->space, rec->number, &like, rec->host_id);
        g->is_restored = true;
        kvp_segment_set_state(&m->space, g, KVP_SEG_LOST);
    }
    g->mounted_term = rec->mounted_term;
    return KVP_OK;
}

/* The log says that the segment was dropped. Its objects are recorded as removed one by one; the remaining ones are
 * dropped with the segment at the end of the log (kvp_apply_end). */
static kvp_err_t
apply_segment_over(kvp_master_t *m, const kvp_jrec_over_t *rec)
{
    kvp_segment_t *g = find_segment(m, rec->number);

    if (g == NULL) return KVP_CORRUPT;
    g->life = KVP_SEGMENT_ENDED;
    return KVP_OK;
}

static kvp_err_t
apply_drain(kvp_master_t *m, const kvp_jrec_drain_t *rec)
{
    kvp_segment_t *g = find_segment(m, rec->number);

    if (g == NULL || g->is_tier) return KVP_CORRUPT;
    kvp_segment_drain(&m->space, g, rec->flags, rec->bytes_per_s);
    m->prot.are_copies_open = true;
    return KVP_OK;
}

/* Notes the generation of an OLDEST record: older objects that nodes report are valid only if the log has them. */
static kvp_err_t
apply_oldest(kvp_master_t *m, const kvp_jrec_oldest_t *rec, uint32_t term)
{
    if (!is_of_terms(term, rec->generation)) return KVP_CORRUPT;
    m->log.oldest = kvp_max_u64(m->log.oldest, rec->generation);
    m->replay.oldest_term = term;
    kvp_gone_prune(&m->prot, m->log.oldest);
    return KVP_OK;
}

static void
note_gone(kvp_master_t *m, kvp_digest_t digest, uint64_t version)
{
    if (version >= m->log.oldest) kvp_gone_note(&m->prot, digest, version);
}

/* ---- objects */
static kvp_chunk_t *
chunk_at(kvp_master_t *m, const kvp_jrec_place_t *p)
{
    kvp_segment_t *g = find_segment(m, p->segment);

    return g == NULL || p->chunk >= g->chunk_n ? NULL : kvp_segment_chunk(&m->space, g, p->chunk);
}

static kvp_err_t
enter_place(kvp_master_t *m, uint32_t oid, const kvp_jrec_commit_t *rec, const kvp_jrec_place_t *p)
{
    kvp_chunk_t *c = chunk_at(m, p);
    kvp_place_t at;
    kvp_err_t err;

    if (c == NULL || p->generation == 0) return KVP_CORRUPT;
    if (!kvp_enter_chunk(m, c, rec->tenant)) return KVP_CORRUPT;
    err = kvp_enter_place(c, p, rec->len, rec->key_len, &at);
    if (err == KVP_OK)
        kvp_enter_copy(m, oid, &at, rec->len);
    else if (c->slab == NULL || kvp_slab_used_bytes(c->slab) == 0)
        kvp_place_chunk_leave(&m->space, c);
    return err == KVP_OK ? KVP_OK : KVP_CORRUPT;
}

static kvp_err_t
enter_tier(kvp_master_t *m, uint32_t oid, const kvp_jrec_commit_t *rec, const kvp_jrec_place_t *p)
{
    kvp_segment_t *g = find_segment(m, p->segment);
    kvp_obj_t *o = kvp_obj(m->cat.index, oid);

    if (g == NULL || !g->is_tier || p->generation != rec->version) return KVP_CORRUPT;
    if (o->chunk != KVP_OBJ_CHUNK_NONE) {
        o->is_on_tier = kvp_obj_chunk(&m->cat, o)->segment->tier == g;
        return KVP_OK;
    }
    if (!kvp_enter_may_tier(m, rec->tenant, rec->len)) return KVP_CORRUPT;
    kvp_enter_tier(m, oid, g, rec->tenant, rec->len);
    return KVP_OK;
}

/* Returns the generation of the copy that the record calls leaving; 0 = none. */
static uint64_t
leaving_of(kvp_jrec_any_t *rec)
{
    const uint32_t number = rec->commit.flags >> KVP_JREC_LEAVING_SHIFT;

    return number == 0 ? 0 : kvp_jrec_places(rec)[number - 1].generation;
}

/* Returns true if the object exists as the record describes it: a base repeats most objects. */
static bool
is_said_already(const kvp_master_t *m, uint32_t oid, kvp_jrec_any_t *any)
{
    const kvp_jrec_commit_t *rec = &any->commit;
    const kvp_jrec_place_t *said = kvp_jrec_places(any);
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    const kvp_objext_t *ext = kvp_obj_ext(m->cat.index, o);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(&m->cat, o, places);

    if (kvp_obj_version(o) != rec->version || n + o->is_on_tier != rec->places_n ||
        o->pin != (rec->flags & KVP_JREC_PIN) || (ext == NULL ? 0 : ext->leaving) != leaving_of(any))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (places[i].generation != said[i].generation) return false;
    return o->is_on_tier == 0 || said[n].chunk == KVP_JREC_TIER;
}

static kvp_err_t
check_commit(const kvp_master_t *m, kvp_jrec_any_t *any, uint32_t term)
{
    const kvp_jrec_commit_t *rec = &any->commit;
    const kvp_jrec_place_t *places = kvp_jrec_places(any);
    const kvp_wire_lineage_t *lineage = kvp_jrec_lineage(any);
    kvp_digest_t digest = kvp_key_digest(m->ctx.conf.digest_seed, rec->tenant, kvp_jrec_key(any), rec->key_len);

    if (!is_of_terms(term, rec->version) || rec->len == 0) return KVP_CORRUPT;
    if ((rec->flags & KVP_JREC_PIN) > KVP_PIN_HARD || (rec->flags & KVP_JREC_READ) != 0) return KVP_CORRUPT;
    if (rec->flags >> KVP_JREC_LEAVING_SHIFT > rec->places_n) return KVP_CORRUPT;
    if (lineage != NULL && lineage->is_told != 1) return KVP_CORRUPT;
    if (kvp_group_check_named(&rec->group) != KVP_OK) return KVP_CORRUPT;
    for (uint32_t i = 1; i < rec->places_n; i++) /* each copy must lie in another segment */
        for (uint32_t k = 0; k < i; k++)
            if (places[i].segment == places[k].segment) return KVP_CORRUPT;
    return kvp_digest_eq(rec->digest, digest) ? KVP_OK : KVP_CORRUPT;
}

static void
enter_group(kvp_master_t *m, uint32_t oid, const kvp_wire_group_t *group)
{
    kvp_tenant_t *tenant = kvp_obj_tenant(&m->cat, kvp_obj(m->cat.index, oid));
    uint32_t old = kvp_group_displaced(&m->prot, tenant, group);

    if (old != KVP_OID_NONE) kvp_enter_leave(m, old);
    kvp_group_adopt(&m->prot, tenant, oid, group);
}

static kvp_err_t
apply_commit(kvp_master_t *m, kvp_jrec_any_t *any, uint32_t term)
{
    const kvp_jrec_commit_t *rec = &any->commit;
    const kvp_jrec_place_t *places = kvp_jrec_places(any);
    const kvp_desc_t desc = {.digest = rec->digest,
                             .version = rec->version,
                             .sum = rec->sum,
                             .key_len = rec->key_len,
                             .flags = rec->flags & KVP_JREC_PIN};
    uint32_t oid = kvp_objindex_find(m->cat.index, rec->digest);
    kvp_err_t err = check_commit(m, any, term);

    if (err != KVP_OK) return err;
    m->replay.newest = kvp_max_u64(m->replay.newest, rec->version);
    if (oid != KVP_OID_NONE && is_said_already(m, oid, any)) return KVP_OK;
    if (m->replay.is_anew && !m->replay.is_whole) note_gone(m, rec->digest, rec->version - 1);
    if (oid != KVP_OID_NONE) {
        if (kvp_obj_version(kvp_obj(m->cat.index, oid)) < rec->version)
            note_gone(m, rec->digest, kvp_obj_version(kvp_obj(m->cat.index, oid)));
        kvp_enter_leave(m, oid);
    }
    oid = kvp_enter_object(m, &desc, kvp_jrec_key(any), kvp_jrec_lineage(any));
    for (uint32_t i = 0; i < rec->places_n && err == KVP_OK; i++)
        err = places[i].chunk == KVP_JREC_TIER ? enter_tier(m, oid, rec, &places[i])
                                               : enter_place(m, oid, rec, &places[i]);
    if (err != KVP_OK) {
        kvp_enter_leave(m, oid);
        return err;
    }
    if (leaving_of(any) != 0) kvp_obj_ext_make(m->cat.index, kvp_obj(m->cat.index, oid))->leaving = leaving_of(any);
    if (kvp_group_is_named(&rec->group)) enter_group(m, oid, &rec->group);
    kvp_victim_used(&m->prot, oid);
    kvp_obj(m->cat.index, oid)->is_used_since = 0;
    return KVP_OK;
}

static kvp_err_t
apply_gone(kvp_master_t *m, const kvp_jrec_gone_t *rec, uint32_t term)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, rec->digest);
    kvp_departure_t departure = {.id = kvp_objindex_id(m->cat.index, rec->digest),
                                 .at = kvp_departed_time(m->ctx.now_ns),
                                 .cause = rec->cause & 0x1fu};

    if (!is_of_terms(term, rec->version)) return KVP_CORRUPT;
    departure.detail = kvp_age_code(kvp_ages_age(&m->cat.ages, rec->version, m->ctx.now_ns));
    if ((rec->flags & KVP_JREC_READ) != 0) departure.detail |= KVP_DEPARTED_READ;
    if (oid != KVP_OID_NONE && kvp_obj(m->cat.index, oid)->chunk != KVP_OBJ_CHUNK_NONE)
        departure.segment = (uint16_t)kvp_obj_chunk(&m->cat, kvp_obj(m->cat.index, oid))->segment->id;
    if (oid != KVP_OID_NONE && kvp_obj_version(kvp_obj(m->cat.index, oid)) <= rec->version) kvp_enter_leave(m, oid);
    /* An object that was lost with its memory may return with the memory, so its version is not noted as removed. */
    note_gone(m, rec->digest, rec->why == KVP_GONE_LOST ? rec->version - 1 : rec->version);
    if (rec->cause != KVP_CAUSE_NOT_KNOWN) kvp_departed_note(&m->cat.departed, &departure);
    return KVP_OK;
}

/* ---- tenants */
/* Removes unused tenants if there are more than max. Tenant records come before the first COMMIT of a tenant, so a
 * tenant without objects may still be needed. */
static void
prune_tenants(kvp_master_t *m, uint32_t max)
{
    if (m->cat.tenants.n <= max) return;
    for (uint32_t i = 0; i < m->cat.tenants.limit; i++) {
        kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t != NULL) kvp_tenant_prune(&m->cat, t);
    }
}

static kvp_err_t
apply_tenant(kvp_master_t *m, const kvp_jrec_tenant_t *rec, uint32_t term)
{
    kvp_tenant_t *t = kvp_tenant_find(&m->cat, rec->tenant);

    if (rec->min_version > 0 && !is_of_terms(term, rec->min_version)) return KVP_CORRUPT;
    /* epoch 0: the tenant's bumps (raised epochs) were forgotten, because it had no objects any more */
    if (rec->min_version > 0 && rec->epoch == 0) {
        m->cat.forgotten_term = (uint32_t)(rec->min_version >> KVP_GEN_SEQ_BITS);
        if (t != NULL && t->min_version > 0 && t->min_version <= rec->min_version) kvp_tenant_forget_bumps(&m->cat, t);
        return KVP_OK;
    }
    prune_tenants(m, KVP_TENANTS_MAX);
    t = kvp_tenant_make(&m->cat, rec->tenant);
    (void)kvp_tenant_be_named(t, rec->name);
    if (rec->min_version == 0) return KVP_OK;
    if (!kvp_tenant_may_bump(&m->cat, t)) return KVP_CORRUPT;
    t->epoch = (uint32_t)kvp_max_u64(t->epoch, rec->epoch);
    kvp_tenant_bumped(&m->cat, t, rec->min_version);
    return KVP_OK;
}

kvp_err_t
kvp_apply(kvp_master_t *m, kvp_jrec_any_t *rec, uint32_t term)
{
    switch (rec->head.kind) {
    case KVP_JREC_COMMIT:
        return apply_commit(m, rec, term);
    case KVP_JREC_GONE:
        return apply_gone(m, &rec->gone, term);
    case KVP_JREC_TENANT:
        return apply_tenant(m, &rec->tenant, term);
    case KVP_JREC_SEGMENT:
        return apply_segment(m, &rec->segment);
    case KVP_JREC_DRAIN:
        return apply_drain(m, &rec->drain);
    case KVP_JREC_OLDEST:
        return apply_oldest(m, &rec->oldest, term);
    default:
        return apply_segment_over(m, &rec->over);
    }
}

/* ---- the end of the log */
/* Closes the allocators of the segment. If the log's end may be missing, they stay open until the node has reported
 * (recheck.c). */
static kvp_err_t
close_segment(kvp_master_t *m, kvp_segment_t *g)
{
    for (uint32_t i = 0; i < g->chunk_n; i++) {
        kvp_chunk_t *c = &g->chunks[i];
        kvp_err_t err = m->log.is_lacking ? KVP_OK : kvp_enter_close_chunk(c);

        if (err != KVP_OK) return err;
        if (c->slab == NULL) continue;
        kvp_place_room_changed(c);
        kvp_place_memory_changed(&m->space, c);
    }
    g->lost_ns = m->ctx.now_ns;
    g->lost_stall_ns = m->ctx.stall_ns;
    return KVP_OK;
}

kvp_err_t
kvp_apply_end(kvp_master_t *m)
{
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_err_t err = close_segment(m, kvp_list_entry(pos, kvp_segment_t, link));

        if (err != KVP_OK) return err;
    }
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->life == KVP_SEGMENT_ENDED) kvp_segment_drop(m, g);
    }
    kvp_groups_doom_broken(&m->prot);
    prune_tenants(m, 0);
    return KVP_OK;
}

static void
forget_segment(kvp_master_t *m, kvp_segment_t *g)
{
    for (uint32_t i = 0; i < g->chunk_n; i++) {
        kvp_chunk_t *c = &g->chunks[i];

        if (c->segment == NULL) continue;
        kvp_ptab_del(&m->cat.chunks, c->number);
        kvp_place_chunk_fini(&m->space, c);
    }
    m->cat.known_bytes -= g->is_tier ? 0 : g->size_bytes;
    kvp_segment_free(&m->space, g);
}

void
kvp_apply_forget(kvp_master_t *m)
{
    uint32_t cursor = 0, left = UINT32_MAX, oid;

    while ((oid = kvp_objindex_walk(m->cat.index, &cursor, UINT32_MAX, &left)) != KVP_OID_NONE)
        kvp_enter_leave(m, oid);
    kvp_list_foreach_safe (pos, tmp, &m->cat.segments)
        forget_segment(m, kvp_list_entry(pos, kvp_segment_t, link));
    prune_tenants(m, 0);
    m->cat.segment_seq = 0;
    m->replay.named = NULL;
}
