/* SPDX-License-Identifier: Apache-2.0
 * Writes the log's records about objects, tenants and segments. */
#include "master/core/catalog/record.h"

#include "common/buf.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/slab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/member.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/journal.h"

#include <stdio.h>
#include <string.h>

/* ---- objects */
/* Writes the object's places to its COMMIT, without places in dropped segments, and which of them is leaving. */
static void
tell_places(const kvp_catalog_t *cat, const kvp_obj_t *o, kvp_jrec_any_t *rec)
{
    kvp_jrec_place_t *out = kvp_jrec_places(rec);
    kvp_place_t places[KVP_REPLICAS_MAX];
    const kvp_segment_t *tier = kvp_obj_tier(cat, o);
    const kvp_objext_t *ext = kvp_obj_ext(cat->index, o);
    uint32_t n = kvp_obj_places(cat, o, places), told = 0;

    for (uint32_t i = 0; i < n; i++) {
        const kvp_chunk_t *c = kvp_place_chunk(cat, &places[i]);

        if (c->segment->life == KVP_SEGMENT_DROPPED) continue;
        out[told++] = (kvp_jrec_place_t){
            .generation = places[i].generation,
            .offset = kvp_slab_offset(c->slab, places[i].slot),
            .segment = c->segment->id,
            .chunk = c->index,
            .slot = places[i].slot,
            .key_off = kvp_place_key_off(c, &places[i]),
        };
        if (ext != NULL && ext->leaving == places[i].generation)
            rec->commit.flags |= (uint8_t)(told << KVP_JREC_LEAVING_SHIFT);
    }
    if (tier != NULL)
        out[told++] = (kvp_jrec_place_t){.generation = kvp_obj_version(o), .segment = tier->id, .chunk = KVP_JREC_TIER};
    rec->commit.places_n = (uint8_t)told;
}

/* Copies the object's key to the end of a log record, padded to a multiple of 8 bytes. Returns the key's length. */
static uint16_t
copy_key(const kvp_catalog_t *cat, const kvp_obj_t *o, uint8_t *key)
{
    const uint16_t len = kvp_obj_key_copy(cat->index, o, key);

    memset(key + len, 0, (size_t)(kvp_align_up(len, 8) - len));
    return len;
}

bool
kvp_record_make_commit(const kvp_catalog_t *cat, const kvp_obj_t *o, kvp_digest_t digest, kvp_jrec_any_t *rec)
{
    const kvp_member_t *mb = kvp_group_member(cat, o);
    const kvp_wire_lineage_t lineage = kvp_obj_lineage(cat->index, o);

    rec->commit = (kvp_jrec_commit_t){
        .digest = digest,
        .version = kvp_obj_version(o),
        .sum = o->sum,
        .len = kvp_obj_len(cat, o),
        .tenant = kvp_obj_tenant(cat, o)->id,
        .flags = (uint8_t)(o->pin | (lineage.is_told != 0 ? KVP_JREC_LINEAGE : 0)),
    };
    if (mb != NULL) rec->commit.group = (kvp_wire_group_t){mb->group->digest, mb->group->size, mb->number};
    tell_places(cat, o, rec);
    if (rec->commit.places_n == 0) return false;
    if (lineage.is_told != 0) *kvp_jrec_lineage(rec) = lineage;
    rec->commit.key_len = copy_key(cat, o, kvp_jrec_key(rec));
    return true;
}

void
kvp_record_places(kvp_catalog_t *cat, const kvp_obj_t *o, kvp_digest_t digest)
{
    kvp_jrec_any_t rec;

    if (cat->log->state == KVP_JOURNAL_OPEN && kvp_record_make_commit(cat, o, digest, &rec))
        kvp_journal_append(cat->log, &rec, KVP_JREC_COMMIT);
}

void
kvp_record_again(kvp_catalog_t *cat, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(cat->index, oid);

    if (cat->log->state != KVP_JOURNAL_OPEN || o->state != KVP_OBJ_COMMITTED) return;
    kvp_record_places(cat, o, kvp_obj_digest_of(cat, o));
}

void
kvp_record_commit(kvp_catalog_t *cat, uint32_t oid, kvp_digest_t digest)
{
    kvp_obj_t *o = kvp_obj(cat->index, oid);
    kvp_fresh_commit_t fresh = {.digest = digest, .version = kvp_obj_version(o)};

    if (cat->log->state != KVP_JOURNAL_OPEN) return;
    kvp_record_places(cat, o, digest);
    fresh.after = cat->log->end;
    kvp_buf_append(&cat->fresh_commits, &fresh, sizeof fresh);
    if (cat->fresh_commits.err != KVP_OK) kvp_panic("out of memory: commits that are not durable");
    o->is_fresh = 1;
}

void
kvp_record_gone(kvp_catalog_t *cat, const kvp_obj_t *o, kvp_digest_t digest, uint64_t version, kvp_gone_t why,
                kvp_cause_t cause)
{
    kvp_jrec_any_t rec;

    rec.gone = (kvp_jrec_gone_t){.digest = digest, .version = version, .why = why, .cause = (uint8_t)cause};
    if (o != NULL && o->is_used_since != 0) rec.gone.flags = KVP_JREC_READ;
    if (o != NULL && cat->ctx->conf.log_names_gone && cat->log->state == KVP_JOURNAL_OPEN) {
        const kvp_wire_lineage_t lineage = kvp_obj_lineage(cat->index, o);

        rec.gone.flags |= lineage.is_told != 0 ? KVP_JREC_LINEAGE : 0;
        if (lineage.is_told != 0) *kvp_jrec_gone_lineage(&rec) = lineage;
        rec.gone.key_len = copy_key(cat, o, kvp_jrec_gone_key(&rec));
    }
    kvp_journal_append(cat->log, &rec, KVP_JREC_GONE);
}

void
kvp_record_oldest(kvp_catalog_t *cat)
{
    kvp_journal_t *j = cat->log;
    uint64_t seq = cat->gen_seq;
    kvp_jrec_any_t rec;

    if (!kvp_list_is_empty(&cat->attempts_in_order) && KVP_RULE(OLDEST_OPEN))
        seq = kvp_list_first(&cat->attempts_in_order, kvp_attempt_t, in_order)->since;
    j->oldest = kvp_gen_make(cat->ctx->term, seq + 1);
    rec.oldest = (kvp_jrec_oldest_t){.generation = j->oldest};
    kvp_journal_append(j, &rec, KVP_JREC_OLDEST);
    j->told_oldest_ns = cat->ctx->now_ns;
    j->told_oldest_end = j->end;
}

/* ---- segments and tenants */
void
kvp_record_segment(kvp_catalog_t *cat, const kvp_segment_t *g)
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
    kvp_journal_append(cat->log, &rec, KVP_JREC_SEGMENT);
}

void
kvp_record_segment_over(kvp_catalog_t *cat, const kvp_segment_t *g)
{
    kvp_jrec_any_t rec;

    rec.over = (kvp_jrec_over_t){.number = g->id};
    kvp_journal_append(cat->log, &rec, KVP_JREC_SEGMENT_OVER);
}

void
kvp_record_drain(kvp_catalog_t *cat, const kvp_segment_t *g)
{
    kvp_jrec_any_t rec;

    rec.drain = (kvp_jrec_drain_t){.number = g->id};
    if (g->drain != NULL) rec.drain.flags = g->drain->flags;
    if (g->drain != NULL) rec.drain.bytes_per_s = g->drain->bytes_per_s;
    if (KVP_RULE(DRAIN_LOGGED)) kvp_journal_append(cat->log, &rec, KVP_JREC_DRAIN);
}

void
kvp_record_make_tenant(const kvp_tenant_t *t, kvp_jrec_any_t *rec)
{
    rec->tenant = (kvp_jrec_tenant_t){.tenant = t->id, .epoch = t->epoch, .min_version = t->min_version};
    snprintf(rec->tenant.name, sizeof rec->tenant.name, "%s", t->name);
}

void
kvp_record_tenant(kvp_catalog_t *cat, const kvp_tenant_t *t)
{
    kvp_jrec_any_t rec;

    kvp_record_make_tenant(t, &rec);
    kvp_journal_append(cat->log, &rec, KVP_JREC_TENANT);
}

void
kvp_record_forgotten(kvp_catalog_t *cat, uint32_t tenant, uint64_t version)
{
    kvp_jrec_any_t rec;

    rec.tenant = (kvp_jrec_tenant_t){.tenant = tenant, .epoch = 0, .min_version = version};
    kvp_journal_append(cat->log, &rec, KVP_JREC_TENANT);
}

/* ---- commits whose log records may still be lost in a crash */
static void
note_durable(kvp_catalog_t *cat, const kvp_fresh_commit_t *commit)
{
    uint32_t oid = kvp_objindex_find(cat->index, commit->digest);
    kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(cat->index, oid);

    if (o != NULL && kvp_obj_version(o) == commit->version) o->is_fresh = 0;
}

/* Marks commits before the log position `to` as durable. The marked commits are cut off the buffer's front when they
 * are half of the buffer, so that no more bytes are moved than were cut off. */
bool
kvp_record_durable(kvp_catalog_t *cat, uint64_t to)
{
    for (; cat->fresh_commits_at < cat->fresh_commits.len; cat->fresh_commits_at += sizeof(kvp_fresh_commit_t)) {
        const kvp_fresh_commit_t *commit =
            (const kvp_fresh_commit_t *)(cat->fresh_commits.data + cat->fresh_commits_at);

        if (commit->after > to) break;
        if (cat->ctx->slice_left == 0) return false;
        kvp_ctx_spend(cat->ctx, 1);
        note_durable(cat, commit);
    }
    if (cat->fresh_commits_at < cat->fresh_commits.len / 2) return true;
    kvp_buf_consume(&cat->fresh_commits, cat->fresh_commits_at);
    cat->fresh_commits_at = 0;
    return true;
}
