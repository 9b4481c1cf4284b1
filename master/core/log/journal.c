/* SPDX-License-Identifier: Apache-2.0
 * The log as an output: records in the order of events, and answers withheld until the records are
 * written, or synced. Without a journal in the shell these functions have no effect.
 *
 * Design notes.
 * - Every event takes effect in the index at once, so only promises wait. An answer "committed" or
 *   "removed" waits for all earlier records: a commit until it is written; a removal, an upsert or
 *   a bump until it is synced, because an SSD survives a power loss that the log's end may not.
 *   Readers may see an unwritten commit, and lose it again with the master, as in a race with its
 *   writer.
 * - Extents that a new version replaces are retired when the new version's commit is written: a
 *   master that died in between would leave neither version.
 * - An eviction is only written, in order: a later put of the key writes after it.
 * - A base records everything once more, a slice at a time, between the records of new events. Each
 *   record is valid for a version, so in any order of records the last record of a key is right. */
#include "common/buf.h"
#include "common/digestmap.h"
#include "common/hash.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/interim.h"
#include "master/core/master.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/gone.h"
#include "master/core/protect/group.h"
#include "master/core/space/retire.h"
#include "master/core/space/tiered.h"
#include "master/core/state.h"
#include "proto/jrec.h"

#include <stdio.h>
#include <string.h>

#define OLDEST_NS KVP_MS(100)
#define BASE_RECORDS 32u /* of a base in a step: about 30 us, which a request that comes meanwhile waits */
#define BASE_AHEAD_MAX                                                                                                 \
    (64u                                                                                                               \
     << 10) /* bytes of a base that are not written: a longer write keeps a processor busy that a look-up may want */

/* ---- writing */
static void
append_record(kvp_master_t *m, kvp_jrec_any_t *rec, kvp_jrec_kind_t kind)
{
    kvp_journal_t *j = &m->log.journal;

    if (!j->is_open) return; /* the pool has no name yet, and nothing in it */
    j->check = kvp_jrec_seal(rec, kind, j->check);
    kvp_buf_append(&j->fresh, rec, rec->head.bytes);
    if (j->fresh.err != KVP_OK) kvp_panic("out of memory: journal");
    j->end += rec->head.bytes;
    m->ctx.st.log_records++;
    m->ctx.st.log_record_bytes += rec->head.bytes;
}

/* Writes the object's places, except in memory that is being dropped. Returns their number. */
static uint32_t
tell_places(const kvp_master_t *m, const kvp_obj_t *o, kvp_jrec_place_t *out)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    const kvp_segment_t *tier = kvp_obj_tier(&m->cat, o);
    uint32_t n = kvp_obj_places(&m->cat, o, places), told = 0;

    for (uint32_t i = 0; i < n; i++) {
        const kvp_chunk_t *c = kvp_ptab_get(&m->cat.chunks, places[i].chunk);

        if (c->segment->is_dropped) continue;
        out[told++] = (kvp_jrec_place_t){
            .generation = places[i].generation,
            .offset = kvp_slab_offset(c->slab, places[i].slot),
            .segment = c->segment->id,
            .chunk = c->index,
            .slot = places[i].slot,
            .key_off = kvp_place_key_off(c, &places[i]),
        };
    }
    if (tier != NULL)
        out[told++] = (kvp_jrec_place_t){.generation = kvp_obj_version(o), .segment = tier->id, .chunk = KVP_JREC_TIER};
    return told;
}

/* The record of a committed object, but for its head; false: it lies nowhere. */
static bool
make_commit(const kvp_master_t *m, const kvp_obj_t *o, kvp_digest_t digest, kvp_jrec_any_t *rec)
{
    const kvp_member_t *mb = kvp_group_member(&m->cat, o);
    const kvp_wire_lineage_t lineage = kvp_obj_lineage(m->cat.index, o);
    uint8_t *key;

    rec->commit = (kvp_jrec_commit_t){
        .digest = digest,
        .version = kvp_obj_version(o),
        .sum = o->sum,
        .len = kvp_obj_len(&m->cat, o),
        .tenant = kvp_obj_tenant(&m->cat, o)->id,
        .flags = (uint8_t)(o->pin | (lineage.is_told != 0 ? KVP_JREC_LINEAGE : 0)),
    };
    if (mb != NULL) rec->commit.group = (kvp_wire_group_t){mb->group->digest, mb->group->size, mb->number};
    rec->commit.places_n = (uint8_t)tell_places(m, o, kvp_jrec_places(rec));
    if (rec->commit.places_n == 0) return false;
    if (lineage.is_told != 0) *kvp_jrec_lineage(rec) = lineage;
    key = kvp_jrec_key(rec);
    rec->commit.key_len = kvp_obj_key_copy(m->cat.index, o, key);
    memset(key + rec->commit.key_len, 0, (size_t)(kvp_align_up(rec->commit.key_len, 8) - rec->commit.key_len));
    return true;
}

static void
record_commit(kvp_master_t *m, const kvp_obj_t *o, kvp_digest_t digest)
{
    kvp_jrec_any_t rec;

    if (m->log.journal.is_open && make_commit(m, o, digest, &rec)) append_record(m, &rec, KVP_JREC_COMMIT);
}

void
kvp_journal_again(kvp_interim_t *log, uint32_t oid)
{
    kvp_master_t *m = log->core;
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

    if (!log->journal.is_open || o->state != KVP_OBJ_COMMITTED) return;
    record_commit(m, o, kvp_obj_digest_of(&m->cat, o));
}

void
kvp_journal_segment(kvp_interim_t *log, const kvp_segment_t *g)
{
    kvp_jrec_any_t rec = {.segment = {
                              .epoch = g->epoch,
                              .size_bytes = g->size_bytes,
                              .chunk_bytes = g->is_tier ? 0 : g->chunk_bytes,
                              .number = g->id,
                              .mounted_term = g->mounted_term,
                          }};

    memcpy(rec.segment.uuid, g->uuid, sizeof rec.segment.uuid);
    memcpy(rec.segment.name, g->name, strlen(g->name));
    memcpy(rec.segment.host_id, g->host_id, strlen(g->host_id));
    append_record(log->core, &rec, KVP_JREC_SEGMENT);
}

void
kvp_journal_segment_over(kvp_interim_t *log, const kvp_segment_t *g)
{
    kvp_jrec_any_t rec;

    rec.over = (kvp_jrec_over_t){.number = g->id};
    append_record(log->core, &rec, KVP_JREC_SEGMENT_OVER);
}

void
kvp_journal_note_term(kvp_journal_t *j, uint32_t term, uint64_t position)
{
    const kvp_wire_term_t rec = {.position = position, .term = term};

    kvp_buf_append(&j->terms, &rec, sizeof rec);
    if (j->terms.err != KVP_OK) kvp_panic("out of memory: terms of the log");
}

/* Of the terms before the position only the last is kept. */
static void
forget_terms(kvp_journal_t *j, uint64_t before)
{
    const kvp_wire_term_t *terms = (const kvp_wire_term_t *)j->terms.data;
    size_t all = j->terms.len / sizeof *terms, n = 0;

    while (n + 1 < all && terms[n + 1].position <= before)
        n++;
    kvp_buf_consume(&j->terms, n * sizeof *terms);
}

static bool
is_term_noted(const kvp_journal_t *j, uint32_t term)
{
    const kvp_wire_term_t *terms = (const kvp_wire_term_t *)j->terms.data;
    size_t all = j->terms.len / sizeof *terms;

    return all > 0 && terms[all - 1].term == term;
}

static void
append_term(kvp_master_t *m, kvp_jrec_kind_t kind, bool is_anew)
{
    kvp_journal_t *j = &m->log.journal;
    kvp_jrec_any_t rec;

    if (!is_term_noted(j, m->ctx.term)) kvp_journal_note_term(j, m->ctx.term, j->end);
    rec.term = (kvp_jrec_term_t){
        .magic = KVP_JOURNAL_MAGIC,
        .digest_seed = m->ctx.conf.digest_seed,
        .term = m->ctx.term,
        .is_anew = is_anew,
    };
    memcpy(rec.term.pool_id, m->ctx.conf.pool_id, sizeof rec.term.pool_id);
    append_record(m, &rec, kind);
}

void
kvp_journal_term(kvp_interim_t *log)
{
    kvp_master_t *m = log->core;

    append_term(m, KVP_JREC_TERM, false);
    log->journal.term_end = log->journal.end;
}

void
kvp_journal_commit(kvp_interim_t *log, uint32_t oid, kvp_digest_t digest)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;
    kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    kvp_fresh_commit_t fresh = {.digest = digest, .version = kvp_obj_version(o)};

    if (!j->is_open) return;
    record_commit(m, o, digest);
    fresh.after = j->end;
    kvp_buf_append(&j->fresh_commits, &fresh, sizeof fresh);
    if (j->fresh_commits.err != KVP_OK) kvp_panic("out of memory: commits that are not durable");
    o->is_fresh = 1;
}

void
kvp_journal_gone(kvp_interim_t *log, const kvp_obj_t *o, kvp_digest_t digest, uint64_t version, kvp_gone_t why)
{
    const kvp_master_t *m = log->core;
    uint8_t *key;
    kvp_jrec_any_t rec;

    rec.gone = (kvp_jrec_gone_t){.digest = digest, .version = version, .why = why};
    if (o != NULL && m->ctx.conf.log_names_gone && log->journal.is_open) {
        const kvp_wire_lineage_t lineage = kvp_obj_lineage(m->cat.index, o);

        rec.gone.flags = lineage.is_told != 0 ? KVP_JREC_LINEAGE : 0;
        if (lineage.is_told != 0) *kvp_jrec_gone_lineage(&rec) = lineage;
        key = kvp_jrec_gone_key(&rec);
        rec.gone.key_len = kvp_obj_key_copy(m->cat.index, o, key);
        memset(key + rec.gone.key_len, 0, (size_t)(kvp_align_up(rec.gone.key_len, 8) - rec.gone.key_len));
    }
    append_record(log->core, &rec, KVP_JREC_GONE);
}

static void
make_tenant(const kvp_tenant_t *t, kvp_jrec_any_t *rec)
{
    rec->tenant = (kvp_jrec_tenant_t){.tenant = t->id, .epoch = t->epoch, .min_version = t->min_version};
    snprintf(rec->tenant.name, sizeof rec->tenant.name, "%s", t->name);
}

void
kvp_journal_tenant(kvp_interim_t *log, const kvp_tenant_t *t)
{
    kvp_jrec_any_t rec;

    make_tenant(t, &rec);
    append_record(log->core, &rec, KVP_JREC_TENANT);
}

/* Records bumps of the tenant up to the version, by the version's term. */
static void
say_forgotten(kvp_master_t *m, uint32_t tenant, uint64_t version)
{
    kvp_jrec_any_t rec;

    rec.tenant = (kvp_jrec_tenant_t){.tenant = tenant, .epoch = 0, .min_version = version};
    append_record(m, &rec, KVP_JREC_TENANT);
}

void
kvp_journal_bump_forgotten(kvp_interim_t *log, const kvp_tenant_t *t)
{
    say_forgotten(log->core, t->id, kvp_gen_make(log->core->ctx.term, log->core->cat.gen_seq));
}

static void
append_oldest(kvp_master_t *m)
{
    kvp_jrec_any_t rec;

    rec.oldest = (kvp_jrec_oldest_t){.generation = m->log.journal.oldest};
    append_record(m, &rec, KVP_JREC_OLDEST);
}

void
kvp_journal_oldest(kvp_interim_t *log)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;
    uint64_t seq = m->cat.gen_seq;

    if (!kvp_list_is_empty(&m->cat.attempts_in_order) && KVP_RULE(OLDEST_OPEN))
        seq = kvp_list_first(&m->cat.attempts_in_order, kvp_attempt_t, in_order)->since;
    j->oldest = kvp_gen_make(m->ctx.term, seq + 1);
    append_oldest(m);
    j->told_oldest_ns = m->ctx.now_ns;
    j->told_oldest_end = j->end;
}

/* While nodes may report objects that this master does not know, the last OLDEST stays valid. */
static void
say_oldest(kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log.journal;

    if (!m->ctx.conf.is_elected || !j->is_open || j->end == j->told_oldest_end) return;
    if (m->ctx.now_ns - j->told_oldest_ns < OLDEST_NS || m->peers.rebuild_until_ns > m->ctx.now_ns) return;
    kvp_journal_oldest(&m->log);
}

/* ---- a base */
static bool
is_base_walking(const kvp_master_t *m)
{
    return m->log.journal.base_cursor < kvp_min_u64(m->log.journal.base_to, kvp_obj_limit(m->cat.index));
}

/* While nodes report, the set of objects is unknown. */
static bool
may_base_go_on(const kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log.journal;

    if (!j->is_basing || j->end - j->written >= BASE_AHEAD_MAX) return false;
    return is_base_walking(m) || !kvp_gone_is_rebuilding(&m->prot);
}

static void
say_again(kvp_master_t *m, const kvp_obj_t *o)
{
    const kvp_tenant_t *t;

    if (o->state != KVP_OBJ_COMMITTED || !KVP_RULE(SNAPSHOT_WHOLE)) return;
    t = kvp_obj_tenant(&m->cat, o);
    if (kvp_obj_version(o) <= t->min_version) return;
    record_commit(m, o, kvp_obj_digest(m->cat.index, o, m->ctx.conf.digest_seed, t->id));
}

/* Records the removal unless the version is still in memory or on a tier. */
static void
say_if_gone(kvp_master_t *m, kvp_digest_t digest, uint64_t version)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, digest);
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    if (o != NULL && o->state == KVP_OBJ_COMMITTED && kvp_obj_version(o) <= version) return;
    if (KVP_RULE(SNAPSHOT_GONE)) kvp_journal_gone(&m->log, NULL, digest, version, KVP_GONE_REMOVED);
}

/* Records removed versions that may still be SEALED, or on a tier: a master without the log's end
 * trusts nodes, but not about these. Returns false if the step's budget is used up. */
static bool
say_gone(kvp_master_t *m)
{
    kvp_journal_t *j = &m->log.journal;
    const kvp_digestmap_at_t *at;

    while ((at = kvp_digestmap_next(&m->prot.gone, &j->base_gone)) != NULL) {
        kvp_ctx_spend(&m->ctx, 1);
        if (KVP_RULE(SNAPSHOT_GONE)) kvp_journal_gone(&m->log, NULL, at->digest, at->val, KVP_GONE_REMOVED);
        if (m->ctx.slice_left == 0) return false;
    }
    for (; j->base_retire < m->space.retires.limit; j->base_retire++) {
        const kvp_retire_t *r = kvp_ptab_get(&m->space.retires, j->base_retire);

        if (m->ctx.slice_left == 0) return false;
        kvp_ctx_spend(&m->ctx, 1);
        if (r != NULL && r->version > 0 && r->state < KVP_RT_DEAD) say_if_gone(m, r->digest, r->version);
    }
    for (; j->base_drop < m->space.tier_drops.limit; j->base_drop++) {
        const kvp_tier_drop_t *d = kvp_ptab_get(&m->space.tier_drops, j->base_drop);

        if (m->ctx.slice_left == 0) return false;
        kvp_ctx_spend(&m->ctx, 1);
        if (d != NULL) say_if_gone(m, d->digest, d->version);
    }
    return true;
}

static void
base_some(kvp_master_t *m)
{
    kvp_journal_t *j = &m->log.journal;
    const uint32_t may = (uint32_t)kvp_min_u64(m->ctx.slice_left, BASE_RECORDS);
    uint32_t left = may, oid;
    kvp_jrec_any_t rec;

    if (!may_base_go_on(m)) return;
    while ((oid = kvp_objindex_walk(m->cat.index, &j->base_cursor, j->base_to, &left)) != KVP_OID_NONE)
        say_again(m, kvp_obj(m->cat.index, oid));
    kvp_ctx_spend(&m->ctx, may - left);
    if (is_base_walking(m) || !say_gone(m) || kvp_gone_is_rebuilding(&m->prot)) return;
    append_record(m, &rec, KVP_JREC_WHOLE);
    j->is_basing = false;
    j->base_end = j->end;
}

void
kvp_journal_base(kvp_interim_t *log, bool is_anew)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;

    j->bases++;
    j->base_from = j->end;
    j->base_end = 0;
    j->base_cursor = 0;
    j->base_to = kvp_obj_limit(m->cat.index); /* later objects are recorded by themselves */
    j->base_retire = j->base_drop = j->base_gone = 0;
    j->is_basing = true;
    j->is_based = false;
    if (!is_anew || j->end == 0) { /* records before an `anew` base stay until it is complete: they contain removals */
        if (!j->has_base) j->base_at = j->fresh.len;
        j->has_base = true;
    }
    append_term(m, KVP_JREC_BASE, is_anew);
    if (is_anew) j->term_end = j->end;
    if (is_anew) j->is_relied_on = false;
    if (j->oldest > 0) append_oldest(m);
    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (!g->is_dropped) kvp_journal_segment(log, g);
    }
    if (m->cat.forgotten_term > 0) say_forgotten(m, 0, kvp_gen_make(m->cat.forgotten_term, 0));
    for (uint32_t i = 0; i < m->cat.tenants.limit; i++) {
        const kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t != NULL && (t->min_version > 0 || (t->chunks > 0 && t->name[0] != '\0'))) kvp_journal_tenant(log, t);
    }
    base_some(m); /* for an empty pool this is all of it */
}

bool
kvp_master_snapshot(kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log.journal;

    if (!j->is_open || j->is_basing || j->base_end > 0) return false;
    kvp_journal_base(&m->log, false);
    return true;
}

bool
kvp_master_is_in_snapshot(const kvp_master_t *m)
{
    return m->log.journal.is_basing;
}

bool
kvp_master_take_snapshot(kvp_master_t *m, uint64_t *from_out)
{
    if (!m->log.journal.is_based) return false;
    m->log.journal.is_based = false;
    m->log.journal.taking = m->log.journal.bases;
    *from_out = m->log.journal.base_from;
    forget_terms(&m->log.journal, *from_out);
    return true;
}

void
kvp_master_snapshot_taken(kvp_master_t *m, uint64_t file_bytes)
{
    m->log.journal.taken = m->log.journal.taking;
    m->log.journal.file_bytes = file_bytes;
}

/* ---- for others */
bool
kvp_master_is_telling(const kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log.journal;

    return j->is_open && !j->is_following && !j->is_resting;
}

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
        make_tenant(t, &rec);
        append_alone(out, &rec, KVP_JREC_TENANT);
    }
    while ((oid = kvp_objindex_walk(m->cat.index, cursor, end, &most)) != KVP_OID_NONE) {
        const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

        if (o->state != KVP_OBJ_COMMITTED || kvp_obj_version(o) <= kvp_obj_tenant(&m->cat, o)->min_version) continue;
        if (make_commit(m, o, kvp_obj_digest_of(&m->cat, o), &rec)) append_alone(out, &rec, KVP_JREC_COMMIT);
    }
    return *cursor < end;
}

/* ---- what waits */
kvp_err_t
kvp_journal_refusal(const kvp_interim_t *log)
{
    const kvp_journal_t *j = &log->journal;

    if (log->core->ctx.st.log_refuses != 0) return KVP_LOG_FAILED;
    return j->has_failed || j->end - j->written > KVP_JOURNAL_BEHIND_MAX ? KVP_RETRY_AFTER : KVP_OK;
}

bool
kvp_journal_has_refused(const kvp_interim_t *log)
{
    return kvp_list_is_empty(&log->journal.deferred[0]) && kvp_list_is_empty(&log->journal.deferred[1]);
}

void
kvp_master_journal_failed(kvp_master_t *m, bool has_failed)
{
    m->log.journal.has_failed = has_failed;
    if (!has_failed) m->ctx.st.log_refuses = 0;
}

void
kvp_master_refuse_writes(kvp_master_t *m, const char *why)
{
    m->ctx.st.log_refuses = 1;
    snprintf(m->ctx.log_failure, sizeof m->ctx.log_failure, "%s", why);
}

bool
kvp_journal_syncs(const kvp_interim_t *log, bool is_removal)
{
    kvp_log_sync_t sync = log->core->ctx.conf.log_sync;

    return sync == KVP_LOG_SYNC_ALWAYS || (sync == KVP_LOG_SYNC_INTERVAL && is_removal && KVP_RULE(REMOVAL_SYNCED));
}

bool
kvp_journal_withholds(const kvp_interim_t *log, bool is_synced)
{
    const kvp_journal_t *j = &log->journal;

    return (is_synced ? j->synced : j->written) < j->end && KVP_RULE(WITHHOLD_UNTIL_DURABLE);
}

static bool
release_answers(kvp_master_t *m, kvp_list_t *answers, uint64_t to)
{
    while (!kvp_list_is_empty(answers)) {
        kvp_deferred_t *w = kvp_list_first(answers, kvp_deferred_t, durable);

        if (w->after > to && m->ctx.st.log_refuses == 0) return true;
        if (m->ctx.slice_left == 0) return false;
        if (w->after > to)
            kvp_deferred_fail(&m->prot, w);
        else
            kvp_deferred_durable(&m->prot, w);
    }
    return true;
}

static bool
release_retires(kvp_master_t *m)
{
    kvp_journal_t *j = &m->log.journal;

    while (!kvp_list_is_empty(&j->retires)) {
        kvp_retire_t *r = kvp_list_first(&j->retires, kvp_retire_t, queue);

        if (r->after > j->written) return true;
        if (m->ctx.slice_left == 0) return false;
        kvp_retire_go_on(&m->space, r);
    }
    return true;
}

static void
note_durable(kvp_master_t *m, const kvp_fresh_commit_t *commit)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, commit->digest);
    kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    if (o != NULL && kvp_obj_version(o) == commit->version) o->is_fresh = 0;
}

/* The bytes in front are given up when they are half of all: then as much was released as is moved. */
static bool
release_commits(kvp_master_t *m)
{
    kvp_journal_t *j = &m->log.journal;
    uint64_t to = kvp_journal_syncs(&m->log, false) ? j->synced : j->written;

    for (; j->fresh_commits_at < j->fresh_commits.len; j->fresh_commits_at += sizeof(kvp_fresh_commit_t)) {
        const kvp_fresh_commit_t *commit = (const kvp_fresh_commit_t *)(j->fresh_commits.data + j->fresh_commits_at);

        if (commit->after > to) break;
        if (m->ctx.slice_left == 0) return false;
        kvp_ctx_spend(&m->ctx, 1);
        note_durable(m, commit);
    }
    if (j->fresh_commits_at < j->fresh_commits.len / 2) return true;
    kvp_buf_consume(&j->fresh_commits, j->fresh_commits_at);
    j->fresh_commits_at = 0;
    return true;
}

/* Returns false if the step's budget is used up before all allowed answers were released. */
static bool
release_deferred(kvp_master_t *m)
{
    kvp_journal_t *j = &m->log.journal;

    return release_retires(m) && release_answers(m, &j->deferred[0], j->written) &&
           release_answers(m, &j->deferred[1], j->synced) && release_commits(m);
}

void
kvp_journal_written(kvp_interim_t *log, uint64_t end)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;

    if (end > j->end || end < j->written)
        kvp_panic("written up to %llu of %llu", (unsigned long long)end, (unsigned long long)j->end);
    j->written = end;
    if (m->ctx.conf.log_sync == KVP_LOG_SYNC_NONE)
        kvp_journal_synced(log, end);
    else
        m->ctx.is_behind |= !release_deferred(m);
}

void
kvp_journal_synced(kvp_interim_t *log, uint64_t end)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;

    if (j->is_sync_broken && (j->base_end == 0 || end < j->base_end)) return;
    j->is_sync_broken = false;
    if (end > j->written || end < j->synced)
        kvp_panic("synced up to %llu of %llu", (unsigned long long)end, (unsigned long long)j->written);
    j->synced = end;
    if (j->base_end > 0 && (j->synced >= j->base_end || !KVP_RULE(SNAPSHOT_DURABLE))) {
        j->is_based = j->is_relied_on = true;
        j->base_end = 0;
    }
    m->ctx.is_behind |= !release_deferred(m);
}

/* Records all present objects again, after the part that may be lost. */
void
kvp_master_sync_failed(kvp_master_t *m, uint64_t end)
{
    kvp_journal_t *j = &m->log.journal;
    bool is_said_behind = (j->is_basing || j->base_end > 0) && j->base_from >= end;

    if (!j->is_open) return; /* a standby's: the leader repeats it */
    j->is_sync_broken = true;
    if (!is_said_behind) kvp_journal_base(&m->log, false);
}

bool
kvp_master_wants_sync(const kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log.journal;

    if (m->ctx.conf.log_sync == KVP_LOG_SYNC_NONE || j->synced == j->written) return false;
    return !kvp_list_is_empty(&j->deferred[1]) || j->base_end > 0 || j->synced < j->term_end ||
           m->ctx.conf.log_sync == KVP_LOG_SYNC_ALWAYS;
}

/* Returns the records before a base by themselves, so that the base can begin a file. */
bool
kvp_master_take_journal(kvp_master_t *m, kvp_buf_t *bytes, uint64_t *end_out, bool *is_base_out)
{
    kvp_journal_t *j = &m->log.journal;
    kvp_buf_t swap = j->fresh;

    if (swap.len == 0) return false;
    *is_base_out = j->has_base && j->base_at == 0;
    if (!j->has_base || *is_base_out) {
        j->fresh = *bytes;
        *bytes = swap;
        j->has_base = false;
    } else {
        kvp_buf_append(bytes, swap.data, j->base_at);
        if (bytes->err != KVP_OK) kvp_panic("out of memory: journal");
        kvp_buf_consume(&j->fresh, j->base_at);
        j->base_at = 0;
    }
    *end_out = j->end - j->fresh.len;
    return true;
}

void
kvp_journal_tick(kvp_interim_t *log)
{
    kvp_master_t *m = log->core;

    if (!log->journal.is_on) return;
    say_oldest(m);
    base_some(m);
    m->ctx.is_behind |= !release_deferred(m);
}

bool
kvp_journal_has_work(const kvp_interim_t *log)
{
    const kvp_master_t *m = log->core;
    const kvp_journal_t *j = &log->journal;

    if (!j->is_on) return false;
    return may_base_go_on(m);
}

void
kvp_journal_init(kvp_interim_t *log)
{
    kvp_master_t *m = log->core;

    log->journal.is_on = m->ctx.conf.has_journal;
    log->journal.is_resting = m->ctx.conf.is_elected;
    kvp_list_init(&log->journal.deferred[0]);
    kvp_list_init(&log->journal.deferred[1]);
    kvp_list_init(&log->journal.retires);
}

void
kvp_journal_fini(kvp_interim_t *log)
{
    kvp_journal_t *j = &log->journal;

    kvp_buf_fini(&j->fresh);
    kvp_buf_fini(&j->fresh_commits);
    kvp_buf_fini(&j->rest);
    kvp_buf_fini(&j->terms);
}
