/* SPDX-License-Identifier: Apache-2.0
 * Removals: by key, by pattern, or of all objects that a tenant has put so far. The cached locations of removed
 * objects are revoked, and the answer is deferred (deferred.c). Walks over all objects are done in slices. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "master/core/request/remove.h"

#include "common/hash.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/journal.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/gone.h"
#include "master/core/protect/group.h"
#include "master/core/protect/lease.h"
#include "master/core/protect/probe.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/session/takeover.h"
#include "master/core/space/drop.h"
#include "master/core/space/retire.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/segfmt.h"
#include "proto/wire.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

#define MATCH_STEPS 20000u /* limit of the steps of matching one key; a pattern that needs more is too costly */
#define STEPS_PER_RECORD 32u /* this many steps of a pattern match cost as much of the budget as one record */
#define DEPTH_LIMIT 10000u
#define HEAP_LIMIT_KIB 4096u
#define JOBS_MAX 16u /* limit of the unfinished walks of one session */

/* Answers removals that are not allowed at present with an error. Before the first node has connected, the pool and
 * its contents are uncertain. From then on the answer to a removal makes the pool's identity final: with a later
 * identity the removal would be forgotten. */
static bool
refuse_early(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    kvp_err_t err = kvp_journal_refusal(&m->log);
    const char *why = err == KVP_OK           ? NULL
                      : err == KVP_LOG_FAILED ? m->ctx.log_failure
                                              : "the master's log cannot be written, or is behind";

    if (!m->peers.is_named && m->cat.segment_seq == 0)
        why = "no node has offered memory yet";
    else
        kvp_pool_granted(&m->peers);
    if (why != NULL) kvp_reply_plain(&m->peers, s, &f->hdr, err == KVP_OK ? KVP_RETRY_AFTER : err, why);
    return why != NULL;
}

/* ---- one object */
static bool
is_there(const kvp_master_t *m, const kvp_tenant_t *t, uint32_t oid)
{
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    return o != NULL && o->state == KVP_OBJ_COMMITTED && kvp_obj_tenant(&m->cat, o) == t &&
           kvp_obj_version(o) > t->min_version;
}

static kvp_err_t
may_go(kvp_master_t *m, uint32_t oid, const Kvp__Pb__Remove *ask)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    const kvp_obj_t *unit = kvp_obj(m->cat.index, kvp_victim_unit(&m->cat, oid));
    bool is_held = o->tickets > 0 || kvp_group_is_reserved(&m->cat, o);

    if (!ask->force && is_held && KVP_RULE(TICKET_AGAINST_REMOVAL)) return KVP_HELD;
    if (!ask->force && kvp_takeover_may_ticket_name(&m->peers, o)) return KVP_RETRY_AFTER;
    if (!ask->force && ask->heeds_probes && kvp_probe_holds(&m->prot, unit) && KVP_RULE(PROBE_AGAINST_REMOVAL))
        return KVP_HELD;
    return KVP_OK;
}

/* Removes the replica in the segment, if there are others. *is_only_out: it is the only one; a replica in a dropped
 * segment does not count. */
static kvp_err_t
remove_replica(kvp_master_t *m, uint32_t oid, uint32_t segment, kvp_deferred_t *w, bool *is_only_out)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(&m->cat, o, places), at = n, others = 0;

    for (uint32_t i = 0; i < n; i++) {
        const kvp_segment_t *g = kvp_place_chunk(&m->cat, &places[i])->segment;

        if (g->id == segment)
            at = i;
        else
            others += g->life != KVP_SEGMENT_DROPPED;
    }
    if (at == n) return KVP_NOT_FOUND;
    *is_only_out = others == 0;
    if (others == 0) return KVP_OK;
    kvp_obj_drop_copy(&m->space, oid, &places[at], w);
    kvp_ctx_spend(&m->ctx, 1);
    kvp_ctx_space_news(&m->ctx);
    return KVP_OK;
}

/* Records the removal of versions from older terms, up to the given version, which a node may still report. */
static void
hold_unknown(kvp_master_t *m, kvp_digest_t digest, uint64_t version)
{
    kvp_gone_say(&m->prot, digest, kvp_min_u64(version, kvp_gen_make(m->ctx.term, 0)), KVP_GONE_REMOVED);
}

static kvp_err_t
remove_one(kvp_master_t *m, kvp_tenant_t *t, uint32_t oid, kvp_digest_t digest, const Kvp__Pb__Remove *ask,
           kvp_deferred_t *w)
{
    kvp_err_t err = may_go(m, oid, ask);
    bool is_all = true;

    if (err == KVP_OK && ask->segment != 0) err = remove_replica(m, oid, ask->segment, w, &is_all);
    if (err != KVP_OK || !is_all) return err;
    if (KVP_RULE(REVOKE_ON_REMOVAL)) kvp_revoke(t, digest);
    kvp_obj_drop(&m->space, oid, KVP_CAUSE_REMOVED, 0, w);
    hold_unknown(m, digest, UINT64_MAX); /* a node may still report a newer version of the removed object */
    /* a waiting put may now get the removed object's extent, which perhaps could not be evicted before */
    kvp_ctx_space_news(&m->ctx);
    m->ctx.st.removes++;
    return KVP_OK;
}

/* Revokes the cached locations of an absent object. It may have been evicted from a node that has not carried out the
 * Retire yet, so clients may still read it from cached locations. Even after the Retire, clients that skip
 * descriptors may read it for one lease time. */
static void
revoke_absent(const kvp_master_t *m, kvp_tenant_t *t, kvp_digest_t digest, bool waits)
{
    bool is_not_dead = kvp_retire_is_readable(&m->space, digest) && KVP_RULE(REVOKE_NOT_DEAD_YET);

    if (is_not_dead || (waits && KVP_RULE(REVOKE_EVICTED))) kvp_revoke(t, digest);
}

/* Returns the greatest version below the present object of the digest; without one, the newest assigned version. */
static uint64_t
version_before(const kvp_master_t *m, uint32_t oid)
{
    uint64_t next = oid == KVP_OID_NONE ? 0 : kvp_obj_version(kvp_obj(m->cat.index, oid));

    return next == 0 ? kvp_gen_make(m->ctx.term, m->cat.gen_seq) : next - 1;
}

/* Returns true if the object belongs to another tenant. Digests depend on the tenant, but clients may send any. */
static bool
is_of_another(const kvp_master_t *m, const kvp_tenant_t *t, uint32_t oid)
{
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    return o != NULL && o->state == KVP_OBJ_COMMITTED && kvp_obj_tenant(&m->cat, o) != t;
}

/* Removes an absent object: it must neither be read at its old place, nor reappear with a node's report. */
static void
remove_absent(kvp_master_t *m, kvp_tenant_t *t, uint32_t oid, kvp_digest_t digest, const Kvp__Pb__Remove *ask)
{
    revoke_absent(m, t, digest, ask->wait);
    hold_unknown(m, digest, is_of_another(m, t, oid) ? version_before(m, oid) : UINT64_MAX);
}

void
kvp_on_remove(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    const kvp_digest_t *digests = NULL;
    Kvp__Pb__Remove *msg;
    kvp_deferred_t *w = NULL;
    bool is_oneway = (f->hdr.flags & KVP_FRAME_ONEWAY) != 0;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__remove__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n > 0 && msg->n <= KVP_PLACES_MAX) digests = kvp_rd_array(&rd, msg->n, sizeof *digests);
    if (digests == NULL) {
        kvp_session_close(&m->peers, s, "malformed Remove");
        kvp_pb_free(&pb, msg);
        return;
    }
    kvp_session_audit_object(&m->peers, "%u keys, first digest %016llx%016llx", msg->n,
                             (unsigned long long)digests[0].hi, (unsigned long long)digests[0].lo);
    if (refuse_early(m, s, f)) {
        kvp_pb_free(&pb, msg);
        return;
    }
    if (!is_oneway && !kvp_deferred_may_open(s, msg->n)) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_LIMIT, "too many removals wait");
        kvp_pb_free(&pb, msg);
        return;
    }
    if (!is_oneway) w = kvp_deferred_open(s, &f->hdr, msg->n);
    for (uint32_t i = 0; i < msg->n; i++) {
        uint32_t oid = kvp_objindex_find(m->cat.index, digests[i]);
        kvp_err_t err = KVP_NOT_FOUND;

        if (is_there(m, s->tenant, oid))
            err = remove_one(m, s->tenant, oid, digests[i], msg, w);
        else if (msg->segment == 0)
            remove_absent(m, s->tenant, oid, digests[i], msg);
        if (w != NULL) w->results[i] = err;
    }
    if (w != NULL) kvp_deferred_arm(&m->prot, w, msg->wait);
    kvp_pb_free(&pb, msg);
}

/* ---- walks */
static pcre2_code *
compile_pattern(const char *pattern)
{
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    pcre2_code *code;
    PCRE2_SIZE at;
    int err;

    if (ctx == NULL) kvp_panic("out of memory: a pattern");
    pcre2_set_max_pattern_length(ctx, KVP_PATTERN_MAX);
    pcre2_set_parens_nest_limit(ctx, 50);
    /* Patterns with \C (match one code unit) are refused: keys are bytes, so \C has no use. */
    code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                         PCRE2_NEVER_BACKSLASH_C | PCRE2_NEVER_UTF | PCRE2_AUTO_CALLOUT, &err, &at, ctx);
    pcre2_compile_context_free(ctx);
    return code;
}

/* Counts the steps of a pattern match. PCRE2's own limit starts again at each start position in the key, so it does
 * not limit the whole match. PCRE2 calls this before every item of the pattern. */
static int
on_step(pcre2_callout_block *block, void *arg)
{
    uint32_t *left = arg;

    (void)block;
    if (*left == 0) return PCRE2_ERROR_CALLOUT;
    --*left;
    return 0;
}

/* Returns whether the pattern matches the key: 1 or 0, or -1 if the match takes too many steps. *left, a number of
 * records, is reduced by the cost of the steps. */
static int
match_key(kvp_master_t *m, const pcre2_code *code, const kvp_obj_t *o, uint32_t *left)
{
    uint8_t key[KVP_KEY_MAX];
    uint16_t key_len;
    int rc;

    if (code == NULL) return 1;
    key_len = kvp_obj_key_copy(m->cat.index, o, key);
    m->match_left = MATCH_STEPS;
    rc = pcre2_match(code, key, key_len, 0, 0, m->match_data, m->match_ctx);
    *left -= (uint32_t)kvp_min_u64(*left, (MATCH_STEPS - m->match_left) / STEPS_PER_RECORD);
    if (rc >= 0) return 1;
    return rc == PCRE2_ERROR_NOMATCH ? 0 : -1;
}

static kvp_walk_t *
job_open(kvp_master_t *m, kvp_tenant_t *t)
{
    kvp_walk_t *job = kvp_core_alloc(1, sizeof *job);

    job->tenant = t;
    job->tenant->refs++;
    job->end = kvp_obj_limit(m->cat.index);
    kvp_list_add_tail(&m->jobs, &job->link);
    kvp_list_init(&job->of_session);
    return job;
}

static void
job_free(kvp_master_t *m, kvp_walk_t *job)
{
    kvp_list_del(&job->link);
    kvp_list_del(&job->of_session);
    if (job->tenant->sweep == job) job->tenant->sweep = NULL;
    kvp_tenant_rele(&m->cat, job->tenant);
    pcre2_code_free(job->pattern);
    free(job);
}

/* Removes the object if it matches. Returns false if the pattern is too costly. */
static bool
job_remove(kvp_master_t *m, kvp_walk_t *job, uint32_t oid, uint32_t *left)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    kvp_deferred_t *w = job->deferred;
    Kvp__Pb__Remove ask = KVP__PB__REMOVE__INIT;
    kvp_digest_t digest;
    int is_match;

    if (!is_there(m, job->tenant, oid)) return true;
    is_match = match_key(m, job->pattern, o, left);
    if (is_match <= 0) return is_match == 0;
    digest = kvp_obj_digest(m->cat.index, o, m->ctx.conf.digest_seed, job->tenant->id);
    ask.force = job->is_forced;
    ask.heeds_probes = job->heeds_probes;
    if (remove_one(m, job->tenant, oid, digest, &ask, w) == KVP_OK)
        w->removed++;
    else
        w->held++;
    return true;
}

/* Drops an object from before a bump: no client finds it, and all leases on it were revoked by the bump. */
static void
job_sweep(kvp_master_t *m, const kvp_walk_t *job, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

    if (o->state != KVP_OBJ_COMMITTED || kvp_obj_tenant(&m->cat, o) != job->tenant) return;
    if (kvp_obj_version(o) > job->tenant->min_version) return;
    kvp_obj_drop(&m->space, oid, KVP_CAUSE_BUMPED, 0, NULL);
    kvp_ctx_space_news(&m->ctx);
    m->ctx.st.bumped++;
}

static void
job_step(kvp_master_t *m, kvp_walk_t *job)
{
    kvp_deferred_t *w = job->deferred;
    uint32_t left = m->ctx.slice_left / 2, oid; /* an object may cost two records */
    bool is_ok = true;

    while (is_ok && m->ctx.slice_left > 0 &&
           (oid = kvp_objindex_walk(m->cat.index, &job->cursor, job->end, &left)) != KVP_OID_NONE) {
        if (w == NULL)
            job_sweep(m, job, oid);
        else
            is_ok = job_remove(m, job, oid, &left);
    }
    if (is_ok && job->cursor < kvp_min_u64(job->end, kvp_obj_limit(m->cat.index))) return;
    if (job->is_due_again) { /* the tenant was bumped again meanwhile */
        job->is_due_again = false;
        job->cursor = 0;
        job->end = kvp_obj_limit(m->cat.index);
        return;
    }
    job_free(m, job);
    if (w == NULL) return;
    if (!is_ok) w->err = KVP_BAD_PATTERN;
    kvp_deferred_arm(&m->prot, w, false);
}

void
kvp_remove_end_all(kvp_master_t *m, kvp_session_t *s)
{
    while (!kvp_list_is_empty(&s->jobs)) {
        kvp_walk_t *job = kvp_list_first(&s->jobs, kvp_walk_t, of_session);
        kvp_deferred_t *w = job->deferred;

        job_free(m, job);
        kvp_deferred_dead(&m->prot, w);
    }
}

void
kvp_remove_tick(kvp_master_t *m)
{
    kvp_walk_t *job;

    if (kvp_list_is_empty(&m->jobs)) return;
    job = kvp_list_first(&m->jobs, kvp_walk_t, link);
    kvp_list_del(&job->link);
    kvp_list_add_tail(&m->jobs, &job->link); /* walks take turns */
    job_step(m, job);
}

static bool
has_too_many_jobs(const kvp_session_t *s)
{
    uint32_t n = 0;

    kvp_list_foreach (pos, &s->jobs)
        n++;
    return n >= JOBS_MAX;
}

/* Refuses a walk while nodes report, because it would miss objects that were not reported yet. */
static void
refuse_while_rebuilding(kvp_master_t *m, kvp_session_t *s, const kvp_frame_hdr_t *ask)
{
    char why[128] = "nodes are reporting what they hold";

    if (m->peers.rebuild_until_ns > m->ctx.now_ns && m->peers.rebuild_until_ns != UINT64_MAX)
        snprintf(why, sizeof why, "nodes of before this master's start may still report what they hold, for %llu s",
                 (unsigned long long)((m->peers.rebuild_until_ns - m->ctx.now_ns) / KVP_MS(1000) + 1));
    kvp_reply_plain(&m->peers, s, ask, KVP_RETRY_AFTER, why);
}

void
kvp_on_remove_many(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__RemoveMany *msg;
    pcre2_code *code = NULL;
    kvp_walk_t *job;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__remove_many__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed RemoveMany");
        return;
    }
    kvp_session_audit_object(&m->peers, "%s", msg->is_all ? "all" : msg->pattern);
    if ((msg->pattern[0] == '\0') != msg->is_all) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_INVALID, "either a pattern or all");
        kvp_pb_free(&pb, msg);
        return;
    }
    if (msg->is_all && s->rights != KVP_MAY_ADMIN) {
        kvp_session_audit(&m->peers, s, KVP_OP_REMOVE_MANY, KVP_DENIED, "to remove all needs the role admin");
        kvp_session_audit_object(&m->peers, "all");
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_DENIED, "to remove all needs the role admin");
        kvp_pb_free(&pb, msg);
        return;
    }
    if (refuse_early(m, s, f)) {
        kvp_pb_free(&pb, msg);
        return;
    }
    if (has_too_many_jobs(s) || !kvp_deferred_may_open(s, 0)) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_LIMIT, "too many removals under way");
    } else if (kvp_gone_is_rebuilding(&m->prot)) { /* the removal would miss unreported objects */
        refuse_while_rebuilding(m, s, &f->hdr);
    } else if (msg->pattern[0] != '\0' && (code = compile_pattern(msg->pattern)) == NULL) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_BAD_PATTERN, "bad pattern");
    } else {
        job = job_open(m, s->tenant);
        job->pattern = code;
        job->is_forced = msg->force;
        job->heeds_probes = msg->heeds_probes;
        job->deferred = kvp_deferred_open(s, &f->hdr, 0);
        kvp_list_add_tail(&s->jobs, &job->of_session);
    }
    kvp_pb_free(&pb, msg);
}

void
kvp_bump_sweep(kvp_master_t *m, kvp_tenant_t *t)
{
    if (t->sweep != NULL)
        t->sweep->is_due_again = true;
    else
        t->sweep = job_open(m, t);
}

/* ---- bump: in one step all objects that were put before become invisible; the sweep frees their space later. Puts
 * in progress belong to the old epoch, so their commits are refused (put.c). */
static kvp_err_t
bump_refusal(const kvp_master_t *m, const kvp_session_t *s, const Kvp__Pb__Bump *msg, const char **why_out)
{
    const kvp_tenant_t *t = s->tenant;

    *why_out = "all is not said";
    if (!msg->is_all) return KVP_INVALID;
    *why_out = "another epoch than that";
    if (msg->has_epoch && msg->epoch != t->epoch) return KVP_STALE;
    *why_out = "too many tenants were bumped, and nodes that are away may hold something of them";
    if (!kvp_tenant_may_bump(&m->cat, t)) return KVP_LIMIT;
    *why_out = "too many bumps";
    return t->epoch == UINT32_MAX || !kvp_deferred_may_open(s, 0) ? KVP_LIMIT : KVP_OK;
}

void
kvp_on_bump(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    kvp_tenant_t *t = s->tenant;
    Kvp__Pb__Bump *msg;
    kvp_deferred_t *w;
    const char *why;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__bump__descriptor, f);
    if (msg == NULL) {
        kvp_session_close(&m->peers, s, "malformed Bump");
        return;
    }
    err = bump_refusal(m, s, msg, &why);
    if (err != KVP_OK) {
        kvp_reply_plain(&m->peers, s, &f->hdr, err, why);
    } else if (!refuse_early(m, s, f)) {
        t->epoch++;
        kvp_tenant_bumped(&m->cat, t, kvp_gen_make(m->ctx.term, m->cat.gen_seq));
        w = kvp_deferred_open(s, &f->hdr, 0);
        kvp_record_tenant(&m->cat, t);
        if (KVP_RULE(BUMP_REVOKES)) kvp_revoke_all(t);
        kvp_bump_sweep(m, t);
        w->epoch = t->epoch;
        w->wait_ms = msg->wait_ms;
        kvp_deferred_arm(&m->prot, w, true);
    }
    kvp_pb_free(&pb, msg);
}

void
kvp_remove_init(kvp_master_t *m)
{
    m->match_ctx = pcre2_match_context_create(NULL);
    m->match_data = pcre2_match_data_create(1, NULL);
    if (m->match_ctx == NULL || m->match_data == NULL) kvp_panic("out of memory: pattern matching");
    pcre2_set_callout(m->match_ctx, on_step, &m->match_left);
    pcre2_set_depth_limit(m->match_ctx, DEPTH_LIMIT);
    pcre2_set_heap_limit(m->match_ctx, HEAP_LIMIT_KIB);
}

void
kvp_remove_fini(kvp_master_t *m)
{
    while (!kvp_list_is_empty(&m->jobs))
        job_free(m, kvp_list_first(&m->jobs, kvp_walk_t, link));
    pcre2_match_data_free(m->match_data);
    pcre2_match_context_free(m->match_ctx);
}
