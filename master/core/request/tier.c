/* SPDX-License-Identifier: Apache-2.0
 * Nodes' messages about their SSD tiers: answers to orders, reports after a restart, and pages to reclaim. */
#include "master/core/request/request.h"

#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/protect/candidates.h"
#include "master/core/recovery/adopt.h"
#include "master/core/recovery/enter.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/space/drop.h"
#include "master/core/space/segment.h"
#include "master/core/space/tier.h"
#include "master/core/space/tiered.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

void
kvp_on_tier_answer(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    uint32_t lost[KVP_TIER_BATCH], n = kvp_tier_answered(&m->space, s, f, lost);

    if (n == UINT32_MAX) {
        kvp_session_close(&m->peers, s, "an answer to no order about a tier");
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        kvp_obj_lose(&m->space, lost[i], KVP_CAUSE_LOST_SSD);
}

/* Returns the object of a tier's record; NULL = no object, or it has another version. */
static kvp_obj_t *
object_of(kvp_master_t *m, const kvp_segment_t *t, const kvp_wire_tiered_t *rec, uint32_t *oid_out)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, rec->digest);
    kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);
    const kvp_segment_t *g;

    if (o == NULL || o->state != KVP_OBJ_COMMITTED) return NULL;
    if (kvp_obj_version(o) != rec->version && KVP_RULE(TIER_REPORT_VERSION)) return NULL;
    g = kvp_obj_chunk(&m->cat, o)->segment;
    *oid_out = oid;
    return g == t || g->tier == t ? o : NULL;
}

/* Returns the tier with this id; NULL = the node has no such tier. */
static kvp_segment_t *
tier_of(kvp_master_t *m, kvp_session_t *s, uint32_t id)
{
    kvp_segment_t *t = kvp_segment_find(&m->space, id);

    return t != NULL && t->node == s && t->is_tier ? t : NULL;
}

/* Adopts an object that only its tier knows. Returns false if the object is not wanted. */
static bool
adopt_told(kvp_master_t *m, kvp_segment_t *t, const kvp_told_t *told)
{
    kvp_attempt_t *replacement;
    uint32_t oid;

    if (told->desc.version == 0 || told->desc.version >= kvp_gen_make(m->ctx.term, 0)) return false;
    if (!kvp_enter_may_tier(m, told->desc.tenant, told->desc.len) || !kvp_told_is_of_key(m, told)) return false;
    if (!kvp_told_is_wanted(m, t, told, &oid) || oid != KVP_OID_NONE) return false;
    replacement = kvp_told_make_way(m, told);
    oid = kvp_enter_object(m, &told->desc, told->key, told->lineage);
    kvp_enter_tier(m, oid, t, told->desc.tenant, told->desc.len);
    kvp_victim_used(&m->prot, oid);
    kvp_obj(m->cat.index, oid)->is_used_since = 0; /* the object was not used since its write to the tier */
    kvp_record_commit(&m->cat, oid, told->desc.digest);
    if (replacement != NULL) kvp_attempt_stage(&m->cat, replacement, oid);
    return true;
}

/* Returns whether a reported record is wanted, because it is an object's present version. */
static bool
take_record(kvp_master_t *m, kvp_segment_t *t, const kvp_wire_tiered_t *rec)
{
    uint32_t oid;
    kvp_obj_t *o = object_of(m, t, rec, &oid);

    if (o == NULL) return false;
    if (o->is_on_tier != 0) return true;
    /* also while the object is being written: if the SSD has it already, the node's answer is that it wrote nothing */
    o->is_on_tier = 1;
    kvp_record_again(&m->cat, oid);
    return true;
}

static bool
take_whole(kvp_master_t *m, kvp_segment_t *t, const kvp_wire_whole_t *rec, const uint8_t *key)
{
    const kvp_wire_tiered_t short_rec = {rec->digest, rec->version};
    const kvp_told_t told = {
        .desc = {.digest = rec->digest,
                 .version = rec->version,
                 .key_hash2 = rec->key_hash2,
                 .len = rec->len,
                 .sum = rec->sum,
                 .tenant = rec->tenant,
                 .flags = rec->flags,
                 .key_len = rec->key_len},
        .key = key,
        .lineage = rec->lineage.is_told == 1 ? &rec->lineage : NULL,
    };

    return take_record(m, t, &short_rec) || adopt_told(m, t, &told);
}

/* Handles the records of a report page. Returns false if the page is malformed. */
static bool
take_page(kvp_master_t *m, kvp_segment_t *t, const Kvp__Pb__TierReport *msg, const kvp_frame_t *f, uint8_t *unwanted)
{
    kvp_rd_t rd;

    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg->n > (t->ssd.is_unknown ? KVP_WHOLE_MAX : KVP_BATCH_MAX)) return false;
    for (uint32_t i = 0; i < msg->n; i++) {
        const kvp_wire_whole_t *whole = t->ssd.is_unknown ? kvp_rd_array(&rd, 1, sizeof *whole) : NULL;
        const kvp_wire_tiered_t *rec = t->ssd.is_unknown ? NULL : kvp_rd_array(&rd, 1, sizeof *rec);
        const uint8_t *key = whole == NULL || whole->key_len > KVP_KEY_MAX
                                 ? NULL
                                 : kvp_rd_array(&rd, kvp_align_up(whole->key_len, 8), 1);

        if (rec == NULL && key == NULL) return false;
        unwanted[i] = !(rec != NULL ? take_record(m, t, rec) : take_whole(m, t, whole, key));
    }
    return true;
}

void
kvp_on_tier_report(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    uint8_t unwanted[KVP_BATCH_MAX];
    Kvp__Pb__TierReport *msg;
    kvp_segment_t *t = NULL;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__tier_report__descriptor, f);
    if (msg != NULL) t = tier_of(m, s, msg->segment_id);
    if (t == NULL || !t->ssd.is_reporting || !take_page(m, t, msg, f, unwanted)) {
        kvp_session_close(&m->peers, s, "malformed TierReport");
        kvp_pb_free(&pb, msg);
        return;
    }
    kvp_ctx_spend(&m->ctx, msg->n);
    if (msg->is_last) {
        kvp_tier_report_over(&m->space, t);
        t->is_restored = t->ssd.is_unknown = false;
    }
    kvp_reply_results(&m->peers, s, &f->hdr, unwanted, msg->n, 1);
    kvp_pb_free(&pb, msg);
}

/* Returns true if the tier should keep the object when it reclaims space: the object was used since its write, has a
 * ticket, or is being moved, and is at most *keep_bytes long; these bytes are then subtracted. */
static bool
is_kept(kvp_master_t *m, kvp_obj_t *o, uint64_t *keep_bytes)
{
    uint64_t len = kvp_obj_len(&m->cat, o);

    bool is_used = o->is_moving != 0 || o->tickets > 0 || o->is_used_since != 0;

    if (!is_used || len > *keep_bytes) return false;
    *keep_bytes -= len;
    o->is_used_since = 0;
    return true;
}

void
kvp_on_reclaim(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    const kvp_wire_tiered_t *recs = NULL;
    uint8_t keep[KVP_BATCH_MAX];
    Kvp__Pb__Reclaim *msg;
    kvp_segment_t *t = NULL;
    uint64_t keep_bytes;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__reclaim__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n <= KVP_BATCH_MAX) recs = kvp_rd_array(&rd, msg->n, sizeof *recs);
    if (recs != NULL) t = tier_of(m, s, msg->segment_id);
    if (t == NULL) {
        kvp_session_close(&m->peers, s, "malformed Reclaim");
        kvp_pb_free(&pb, msg);
        return;
    }
    keep_bytes = msg->keep_bytes;
    for (uint32_t i = 0; i < msg->n; i++) {
        uint32_t oid;
        kvp_obj_t *o = object_of(m, t, &recs[i], &oid);

        keep[i] = o != NULL && is_kept(m, o, &keep_bytes);
        if (o == NULL || o->is_on_tier == 0 || keep[i] != 0) continue;
        if (!kvp_obj_is_on_tier_alone(&m->cat, o)) {
            kvp_tier_forget(&m->space, o);
            kvp_record_again(&m->cat, oid);
        } else if (KVP_RULE(RECLAIM_ENDS)) {
            m->ctx.st.tier_evictions++;
            kvp_obj_drop_off_tier(&m->space, oid);
        }
    }
    kvp_ctx_spend(&m->ctx, msg->n);
    kvp_reply_results(&m->peers, s, &f->hdr, keep, msg->n, 1);
    kvp_pb_free(&pb, msg);
}
