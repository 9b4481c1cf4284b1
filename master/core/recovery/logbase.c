/* SPDX-License-Identifier: Apache-2.0
 * A base of the log, and the present state for a reader that begins in the middle of the log.
 *
 * A base records the whole state again, in slices, between the records of new events. Each record is valid for a
 * version, so in any order of records the last record of a key is valid. */
#include "master/core/recovery/logbase.h"

#include "common/buf.h"
#include "common/digestmap.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/api/master.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/journal.h"
#include "master/core/protect/gone.h"
#include "master/core/recovery/state.h"
#include "master/core/space/retire.h"
#include "master/core/space/tiered.h"
#include "proto/jrec.h"

#define BASE_RECORDS 32u /* limit of the objects that one step examines for a snapshot: about 30 us */
/* Limit of a base's bytes that are not written yet: a longer write keeps a CPU busy that a look-up may need. */
#define BASE_AHEAD_MAX (64u << 10)

/* ---- recording a base */
static bool
is_base_walking(const kvp_master_t *m)
{
    return m->base.cursor < kvp_min_u64(m->base.to, kvp_obj_limit(m->cat.index));
}

/* Returns true if the next slice of a base can be recorded. A base does not end while nodes report, because the set
 * of objects is unknown until then. */
bool
kvp_logbase_may_run(const kvp_master_t *m)
{
    if (!m->base.is_basing || m->log.end - m->log.written >= BASE_AHEAD_MAX) return false;
    return is_base_walking(m) || !kvp_gone_is_rebuilding(&m->prot);
}

static void
say_again(kvp_master_t *m, const kvp_obj_t *o)
{
    const kvp_tenant_t *t;

    if (o->state != KVP_OBJ_COMMITTED || !KVP_RULE(SNAPSHOT_WHOLE)) return;
    t = kvp_obj_tenant(&m->cat, o);
    if (kvp_obj_version(o) <= t->min_version) return;
    kvp_record_places(&m->cat, o, kvp_obj_digest(m->cat.index, o, m->ctx.conf.digest_seed, t->id));
}

/* Records the removal of a version, unless the version, or an older one, is still committed. */
static void
say_if_gone(kvp_master_t *m, kvp_digest_t digest, uint64_t version)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, digest);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    if (o != NULL && o->state == KVP_OBJ_COMMITTED && kvp_obj_version(o) <= version) return;
    if (KVP_RULE(SNAPSHOT_GONE)) kvp_record_gone(&m->cat, NULL, digest, version, KVP_GONE_REMOVED, KVP_CAUSE_NOT_KNOWN);
}

/* Records removed versions that may still be SEALED in memory, or on a tier. A master that lacks the log's end trusts
 * the nodes' reports, but not about these versions. Returns false if the step's budget is used up. */
static bool
say_gone(kvp_master_t *m)
{
    kvp_logbase_t *base = &m->base;
    const kvp_digestmap_at_t *at;

    while ((at = kvp_digestmap_next(&m->prot.gone, &base->gone)) != NULL) {
        kvp_ctx_spend(&m->ctx, 1);
        if (KVP_RULE(SNAPSHOT_GONE))
            kvp_record_gone(&m->cat, NULL, at->digest, at->val, KVP_GONE_REMOVED, KVP_CAUSE_NOT_KNOWN);
        if (m->ctx.slice_left == 0) return false;
    }
    for (; base->retire < m->space.retires.limit; base->retire++) {
        const kvp_retire_t *r = kvp_ptab_get(&m->space.retires, base->retire);

        if (m->ctx.slice_left == 0) return false;
        kvp_ctx_spend(&m->ctx, 1);
        if (r != NULL && r->version > 0 && r->state < KVP_RT_DEAD) say_if_gone(m, r->digest, r->version);
    }
    for (; base->drop < m->space.tier_drops.limit; base->drop++) {
        const kvp_tier_drop_t *d = kvp_ptab_get(&m->space.tier_drops, base->drop);

        if (m->ctx.slice_left == 0) return false;
        kvp_ctx_spend(&m->ctx, 1);
        if (d != NULL) say_if_gone(m, d->digest, d->version);
    }
    return true;
}

void
kvp_logbase_run(kvp_master_t *m)
{
    kvp_logbase_t *base = &m->base;
    const uint32_t may = (uint32_t)kvp_min_u64(m->ctx.slice_left, BASE_RECORDS);
    uint32_t left = may, oid;
    kvp_jrec_any_t rec;

    if (!kvp_logbase_may_run(m)) return;
    while ((oid = kvp_objindex_walk(m->cat.index, &base->cursor, base->to, &left)) != KVP_OID_NONE)
        say_again(m, kvp_obj(m->cat.index, oid));
    kvp_ctx_spend(&m->ctx, may - left);
    if (is_base_walking(m) || !say_gone(m) || kvp_gone_is_rebuilding(&m->prot)) return;
    kvp_journal_append(&m->log, &rec, KVP_JREC_WHOLE);
    base->is_basing = false;
    base->end = m->log.end;
}

void
kvp_logbase_begin(kvp_master_t *m, bool is_anew)
{
    kvp_logbase_t *base = &m->base;
    kvp_jrec_any_t rec;

    base->bases++;
    base->from = m->log.end;
    base->end = 0;
    base->cursor = 0;
    /* the snapshot has no objects that are made after its begin: the log has their commits */
    base->to = kvp_obj_limit(m->cat.index);
    base->retire = base->drop = base->gone = 0;
    base->is_basing = true;
    base->is_based = false;
    /* Log files before a base with is_anew stay until this base is complete, because they contain removals. */
    if (!is_anew || m->log.end == 0) kvp_journal_mark_base(&m->log);
    kvp_journal_append_term(&m->log, KVP_JREC_BASE, is_anew);
    if (is_anew) base->is_relied_on = false;
    if (m->log.oldest > 0) {
        rec.oldest = (kvp_jrec_oldest_t){.generation = m->log.oldest};
        kvp_journal_append(&m->log, &rec, KVP_JREC_OLDEST);
    }
    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->life == KVP_SEGMENT_DROPPED) continue;
        kvp_record_segment(&m->cat, g);
        /* also after a drain: the next master must expect copies that nodes have and no log names */
        if (g->drain != NULL || (!g->is_tier && (m->prot.are_copies_open || m->space.drain_end > 0)))
            kvp_record_drain(&m->cat, g);
    }
    if (m->cat.forgotten_term > 0) kvp_record_forgotten(&m->cat, 0, kvp_gen_make(m->cat.forgotten_term, 0));
    for (uint32_t i = 0; i < m->cat.tenants.limit; i++) {
        const kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t != NULL && (t->min_version > 0 || (t->chunks > 0 && t->name[0] != '\0'))) kvp_record_tenant(&m->cat, t);
    }
    kvp_logbase_run(m); /* records the first part of the snapshot; for an empty pool, all of it */
}

bool
kvp_master_snapshot(kvp_master_t *m)
{
    if (m->log.state != KVP_JOURNAL_OPEN || m->base.is_basing || m->base.end > 0) return false;
    kvp_logbase_begin(m, false);
    return true;
}

uint64_t
kvp_logbase_take_from(kvp_master_t *m)
{
    if (!m->base.is_based || m->base.taking != m->base.taken) return UINT64_MAX;
    m->base.is_based = false;
    m->base.taking = m->base.bases;
    kvp_journal_forget_terms(&m->log, m->base.from);
    return m->base.from;
}

void
kvp_logbase_forgotten(kvp_master_t *m, uint64_t file_bytes)
{
    m->base.taken = m->base.taking;
    m->base.file_bytes = file_bytes;
}

/* ---- the present state, for readers that begin in the middle of the log */
static void
append_alone(kvp_buf_t *out, kvp_jrec_any_t *rec, kvp_jrec_kind_t kind)
{
    (void)kvp_jrec_seal(rec, kind, 0);
    kvp_buf_append(out, rec, rec->head.bytes);
}

bool
kvp_master_tell(kvp_master_t *m, uint32_t *cursor, uint32_t most, kvp_buf_t *out)
{
    const uint32_t end = kvp_obj_limit(m->cat.index);
    kvp_jrec_any_t rec;
    uint32_t oid;

    for (uint32_t i = 0; *cursor == 0 && i < m->cat.tenants.limit; i++) {
        const kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t == NULL) continue;
        kvp_record_make_tenant(t, &rec);
        append_alone(out, &rec, KVP_JREC_TENANT);
    }
    while ((oid = kvp_objindex_walk(m->cat.index, cursor, end, &most)) != KVP_OID_NONE) {
        const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

        if (o->state != KVP_OBJ_COMMITTED || kvp_obj_version(o) <= kvp_obj_tenant(&m->cat, o)->min_version) continue;
        if (kvp_record_make_commit(&m->cat, o, kvp_obj_digest_of(&m->cat, o), &rec))
            append_alone(out, &rec, KVP_JREC_COMMIT);
    }
    return *cursor < end;
}
