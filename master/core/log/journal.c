/* SPDX-License-Identifier: Apache-2.0
 * The journal as an output: records in the order of what happened, and what is withheld until they are durable. Where the
 * shell has none, nothing here does anything.
 *
 * Design notes.
 * - Everything takes effect in the index at once, so that nothing but promises waits: an answer that says "committed" or
 *   "gone" waits for all that was written before it. Readers may see a commit that is not durable, and lose it again with
 *   the master, as they may lose the race with its writer.
 * - What a new version replaces is retired when the commit of that one is durable: else a master that dies in between
 *   would leave neither of them.
 * - An eviction is only written, in order: whoever puts the key anew writes behind it.
 * - A base says everything once more, a slice at a time, between the records of what happens meanwhile. Each record holds
 *   for a version, so whatever their order is, the last word on a key is right.
 */
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
#include "master/core/catalog/tenant.h"
#include "master/core/log/interim.h"
#include "master/core/master.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/group.h"
#include "master/core/space/retire.h"
#include "master/core/state.h"
#include "proto/jrec.h"

#include <string.h>

#define BASE_AHEAD_MAX (KVP_JOURNAL_BEHIND_MAX / 4) /* a base leaves the rest of the bound to what happens */

/* ---- writing */
static void
append(kvp_master_t *m, kvp_jrec_any_t *rec, kvp_jrec_kind_t kind)
{
    kvp_journal_t *j = &m->log.journal;

    if (!j->is_open) return; /* the pool has no name yet, and nothing in it */
    j->check = kvp_jrec_seal(rec, kind, j->check);
    kvp_buf_append(&j->fresh, rec, rec->head.bytes);
    if (j->fresh.err != KVP_OK) kvp_panic("out of memory: journal");
    j->end += rec->head.bytes;
}

/* Where the object lies, but in memory that is being dropped: that is over. Returns how many places these are. */
static uint32_t
tell_places(const kvp_master_t *m, const kvp_obj_t *o, kvp_jrec_place_t *out)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
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
    return told;
}

static void
say(kvp_master_t *m, const kvp_obj_t *o, kvp_digest_t digest)
{
    const kvp_member_t *mb = kvp_group_member(&m->cat, o);
    kvp_jrec_any_t rec;
    uint8_t *key;

    if (!m->log.journal.is_open) return;
    rec.commit = (kvp_jrec_commit_t){
        .digest = digest,
        .version = kvp_obj_version(o),
        .sum = o->sum,
        .len = kvp_obj_len(&m->cat, o),
        .tenant = kvp_obj_tenant(&m->cat, o)->id,
        .pin = (uint8_t)o->pin,
    };
    if (mb != NULL) rec.commit.group = (kvp_wire_group_t){mb->group->digest, mb->group->size, mb->number};
    rec.commit.places_n = (uint8_t)tell_places(m, o, kvp_jrec_places(&rec));
    if (rec.commit.places_n == 0) return;
    key = kvp_jrec_key(&rec);
    rec.commit.key_len = kvp_obj_key_copy(m->cat.index, o, key);
    memset(key + rec.commit.key_len, 0, (size_t)(kvp_align_up(rec.commit.key_len, 8) - rec.commit.key_len));
    append(m, &rec, KVP_JREC_COMMIT);
}

void
kvp_journal_again(kvp_interim_t *log, uint32_t oid)
{
    kvp_master_t *m = log->core;
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

    if (!log->journal.is_open || o->state != KVP_OBJ_COMMITTED) return;
    say(m, o, kvp_obj_digest(m->cat.index, o, m->ctx.conf.digest_seed, kvp_obj_tenant(&m->cat, o)->id));
}

void
kvp_journal_segment(kvp_interim_t *log, const kvp_segment_t *g)
{
    kvp_jrec_any_t rec = {.segment = {
                              .epoch = g->epoch,
                              .size_bytes = g->size_bytes,
                              .chunk_bytes = g->chunk_bytes,
                              .number = g->id,
                              .mounted_term = g->mounted_term,
                          }};

    memcpy(rec.segment.uuid, g->uuid, sizeof rec.segment.uuid);
    memcpy(rec.segment.name, g->name, strlen(g->name));
    memcpy(rec.segment.host_id, g->host_id, strlen(g->host_id));
    append(log->core, &rec, KVP_JREC_SEGMENT);
}

void
kvp_journal_segment_over(kvp_interim_t *log, const kvp_segment_t *g)
{
    kvp_jrec_any_t rec;

    rec.over = (kvp_jrec_over_t){.number = g->id};
    append(log->core, &rec, KVP_JREC_SEGMENT_OVER);
}

static void
append_term(kvp_master_t *m, kvp_jrec_kind_t kind, bool is_anew)
{
    kvp_jrec_any_t rec;

    rec.term = (kvp_jrec_term_t){
        .magic = KVP_JOURNAL_MAGIC,
        .digest_seed = m->ctx.conf.digest_seed,
        .term = m->ctx.term,
        .is_anew = is_anew,
    };
    memcpy(rec.term.pool_id, m->ctx.conf.pool_id, sizeof rec.term.pool_id);
    append(m, &rec, kind);
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
    say(m, o, digest);
    fresh.after = j->end;
    kvp_buf_append(&j->fresh_commits, &fresh, sizeof fresh);
    if (j->fresh_commits.err != KVP_OK) kvp_panic("out of memory: commits that are not durable");
    o->is_fresh = 1;
}

void
kvp_journal_gone(kvp_interim_t *log, const kvp_obj_t *o, kvp_gone_t why)
{
    kvp_master_t *m = log->core;
    kvp_jrec_any_t rec;
    const kvp_tenant_t *t;

    if (!log->journal.is_open || o->state != KVP_OBJ_COMMITTED) return;
    t = kvp_obj_tenant(&m->cat, o);
    rec.gone = (kvp_jrec_gone_t){
        .digest = kvp_obj_digest(m->cat.index, o, m->ctx.conf.digest_seed, t->id),
        .version = kvp_obj_version(o),
        .why = why,
    };
    append(m, &rec, KVP_JREC_GONE);
}

void
kvp_journal_bumped(kvp_interim_t *log, const kvp_tenant_t *t)
{
    kvp_master_t *m = log->core;
    kvp_jrec_any_t rec;

    rec.bump = (kvp_jrec_bump_t){.tenant = t->id, .epoch = t->epoch, .min_version = t->min_version};
    append(m, &rec, KVP_JREC_BUMP);
}

void
kvp_journal_bump_forgotten(kvp_interim_t *log, const kvp_tenant_t *t)
{
    kvp_jrec_any_t rec;

    rec.bump = (kvp_jrec_bump_t){.tenant = t->id, .epoch = 0, .min_version = t->min_version};
    append(log->core, &rec, KVP_JREC_BUMP);
}

/* ---- a base */
static bool
is_base_walking(const kvp_master_t *m)
{
    return m->log.journal.base_cursor < kvp_min_u64(m->log.journal.base_to, kvp_obj_limit(m->cat.index));
}

/* While nodes report it is not known what there is. */
static bool
may_base_go_on(const kvp_master_t *m)
{
    const kvp_journal_t *j = &m->log.journal;

    if (!j->is_basing || j->end - j->durable >= BASE_AHEAD_MAX) return false;
    return is_base_walking(m) || !kvp_tombs_is_rebuilding(&m->log);
}

static void
say_again(kvp_master_t *m, const kvp_obj_t *o)
{
    const kvp_tenant_t *t;

    if (o->state != KVP_OBJ_COMMITTED || !KVP_RULE(SNAPSHOT_WHOLE)) return;
    t = kvp_obj_tenant(&m->cat, o);
    if (kvp_obj_version(o) <= t->min_version) return;
    say(m, o, kvp_obj_digest(m->cat.index, o, m->ctx.conf.digest_seed, t->id));
}

static void
base_some(kvp_master_t *m)
{
    kvp_journal_t *j = &m->log.journal;
    uint32_t left = m->ctx.slice_left, oid;
    kvp_jrec_any_t rec;

    if (!may_base_go_on(m)) return;
    while ((oid = kvp_objindex_walk(m->cat.index, &j->base_cursor, j->base_to, &left)) != KVP_OID_NONE)
        say_again(m, kvp_obj(m->cat.index, oid));
    kvp_ctx_spend(&m->ctx, m->ctx.slice_left - left);
    if (is_base_walking(m) || kvp_tombs_is_rebuilding(&m->log)) return;
    append(m, &rec, KVP_JREC_WHOLE);
    j->is_basing = false;
    j->base_end = j->end;
}

void
kvp_journal_base(kvp_interim_t *log, bool is_anew)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;

    j->base_from = j->end;
    j->base_end = 0;
    j->base_cursor = 0;
    j->base_to = kvp_obj_limit(m->cat.index); /* what comes to lie behind says so itself */
    j->is_basing = true;
    j->is_base_anew = is_anew;
    j->is_based = false;
    if (!j->has_base) j->base_at = j->fresh.len;
    j->has_base = true;
    append_term(m, KVP_JREC_BASE, is_anew);
    if (is_anew) j->term_end = j->end;
    if (is_anew) j->is_relied_on = false;
    kvp_list_foreach (pos, &m->cat.segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (!g->is_dropped) kvp_journal_segment(log, g);
    }
    for (uint32_t i = 0; i < m->cat.tenants.limit; i++) {
        const kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t != NULL && t->min_version > 0) kvp_journal_bumped(log, t);
    }
    base_some(m); /* where nothing is there, that is all */
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
kvp_master_take_snapshot(kvp_master_t *m, uint64_t *from_out)
{
    if (!m->log.journal.is_based) return false;
    m->log.journal.is_based = false;
    *from_out = m->log.journal.base_from;
    return true;
}

/* ---- what waits */
bool
kvp_journal_is_behind(const kvp_interim_t *log)
{
    return log->journal.has_failed || log->journal.end - log->journal.durable > KVP_JOURNAL_BEHIND_MAX;
}

void
kvp_master_journal_failed(kvp_master_t *m, bool has_failed)
{
    m->log.journal.has_failed = has_failed;
}

bool
kvp_journal_remembers(const kvp_interim_t *log)
{
    return log->journal.is_relied_on || !KVP_RULE(REMOVAL_OUTLIVES_MASTER);
}

bool
kvp_journal_withholds(const kvp_interim_t *log)
{
    return log->journal.durable < log->journal.end && KVP_RULE(WITHHOLD_UNTIL_DURABLE);
}

static bool
release_answers(kvp_master_t *m)
{
    kvp_journal_t *j = &m->log.journal;

    while (!kvp_list_is_empty(&j->deferred)) {
        kvp_deferred_t *w = kvp_list_first(&j->deferred, kvp_deferred_t, durable);

        if (w->after > j->durable) return true;
        if (m->ctx.slice_left == 0) return false;
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

        if (r->after > j->durable) return true;
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

    for (; j->fresh_commits_at < j->fresh_commits.len; j->fresh_commits_at += sizeof(kvp_fresh_commit_t)) {
        const kvp_fresh_commit_t *commit = (const kvp_fresh_commit_t *)(j->fresh_commits.data + j->fresh_commits_at);

        if (commit->after > j->durable) break;
        if (m->ctx.slice_left == 0) return false;
        kvp_ctx_spend(&m->ctx, 1);
        note_durable(m, commit);
    }
    if (j->fresh_commits_at < j->fresh_commits.len / 2) return true;
    kvp_buf_consume(&j->fresh_commits, j->fresh_commits_at);
    j->fresh_commits_at = 0;
    return true;
}

/* False where the step's budget is used up before everything went on that may. */
static bool
release(kvp_master_t *m)
{
    return release_retires(m) && release_answers(m) && release_commits(m);
}

void
kvp_journal_durable(kvp_interim_t *log, uint64_t end)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;

    if (end > j->end || end < j->durable)
        kvp_panic("durable up to %llu of %llu", (unsigned long long)end, (unsigned long long)j->end);
    j->durable = end;
    if (j->base_end > 0 && (j->durable >= j->base_end || !KVP_RULE(SNAPSHOT_DURABLE))) {
        j->is_based = j->is_relied_on = true;
        j->base_end = 0;
    }
    if (j->is_base_anew && j->durable > j->base_from) {
        j->is_based = true;
        j->is_base_anew = false;
    }
    m->ctx.is_behind |= !release(m);
}

/* Gives what lies before a base by itself, so that the base can begin a file. */
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
    base_some(m);
    m->ctx.is_behind |= !release(m);
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
    kvp_list_init(&log->journal.deferred);
    kvp_list_init(&log->journal.retires);
}

void
kvp_journal_fini(kvp_interim_t *log)
{
    kvp_journal_t *j = &log->journal;

    kvp_buf_fini(&j->fresh);
    kvp_buf_fini(&j->fresh_commits);
    kvp_buf_fini(&j->rest);
}
