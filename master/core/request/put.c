/* SPDX-License-Identifier: Apache-2.0
 * Puts: begin (an attempt gets its extents, at once or after room was made), commit, abort. Between begin and commit
 * only the writer's transfers happen. If the writer's session ends, its keys are free at once, and its extents are
 * retired with the writer as owner, so the node proves that the writer cannot write any more. */
#include "master/core/request/request.h"

#include "common/hash.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/recent.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/record.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/log/journal.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/group.h"
#include "master/core/protect/lease.h"
#include "master/core/protect/pin.h"
#include "master/core/put/attempt.h"
#include "master/core/put/queue.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/space/check.h"
#include "master/core/space/drop.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "master/core/space/segment.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <string.h>

#define PUT_SHARE 160u /* one message may begin puts for at most 1/160 of a full pool */
#define PUT_SHARE_MIN (512ull << 10) /* one message may begin puts for at least this many bytes */

/* ---- begin */
static kvp_err_t
check_put(const kvp_master_t *m, uint32_t tenant, const kvp_wire_put_t *put, const uint8_t *keys, size_t keys_len)
{
    if (put->key_len == 0 || put->key_len > KVP_KEY_MAX) return KVP_BAD_KEY;
    if (put->key_at > keys_len || put->key_len > keys_len - put->key_at) return KVP_INVALID;
    if (put->len == 0 || put->attempt == 0) return KVP_INVALID;
    if (!kvp_digest_eq(put->digest, kvp_key_digest(m->ctx.conf.digest_seed, tenant, keys + put->key_at, put->key_len)))
        return KVP_INVALID;
    return KVP_OK;
}

static kvp_err_t
check_lineage(const kvp_wire_lineage_t *lineage)
{
    if (lineage == NULL || lineage->is_told == 1) return KVP_OK;
    return (lineage->sequence | lineage->parent | lineage->depth | lineage->is_told) == 0 ? KVP_OK : KVP_INVALID;
}

/* Decides whether a committed object serves as the result of a put of its key. ALREADY: it does. OK: a new copy is
 * better than waiting for the object, because its node is disconnected, its epoch is over, or its group is doomed.
 * IN_PROGRESS: its incomplete group hides it, and other clients may complete the group. */
static kvp_err_t
check_worth(kvp_master_t *m, kvp_session_t *s, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

    if (kvp_obj_up_n(&m->cat, o) == 0 && !kvp_obj_is_on_tier_up(&m->cat, o)) return KVP_OK;
    return kvp_group_hides(&m->cat, o) ? kvp_group_claim(&m->prot, s, oid) : KVP_ALREADY;
}

/* Returns the answer to a put or an upsert of a key that has a committed object. OK: the put may begin, and *over_out
 * is the object to replace, if any. */
static kvp_err_t
check_committed(kvp_master_t *m, kvp_session_t *s, uint32_t oid, kvp_digest_t digest, bool is_upsert,
                uint32_t *over_out)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    kvp_attempt_t *replacement = kvp_attempt_replacement(&m->cat, o);
    kvp_err_t err = check_worth(m, s, oid);

    /* RETRY_AFTER: no node serves the object now, but a node with a copy may return soon. */
    if (!kvp_obj_is_served(&m->cat, o) && kvp_obj_is_reported(&m->cat, o)) return KVP_RETRY_AFTER;
    if (err == KVP_IN_PROGRESS) return err;
    if (replacement != NULL && (is_upsert || err == KVP_OK) && !kvp_attempt_take(&m->puts, replacement))
        return KVP_IN_PROGRESS;
    if (err == KVP_OK) {
        kvp_revoke(kvp_obj_tenant(&m->cat, o), digest);
        kvp_obj_drop(&m->space, oid, KVP_CAUSE_REPLACED, 0, NULL);
        return KVP_OK;
    }
    /* counts as a use of the object, so that an upsert does not evict the object that it replaces */
    kvp_victim_used(&m->prot, oid);
    if (!is_upsert && o->is_fresh != 0) /* ALREADY is answered only when the object's commit is durable */
        return m->ctx.st.log_refuses != 0 ? KVP_LOG_FAILED : KVP_RETRY_AFTER;
    if (!is_upsert) return KVP_ALREADY;
    *over_out = oid;
    return KVP_OK;
}

/* The parsed request of a PutBegin. */
typedef struct {
    const kvp_wire_put_t *puts;
    const kvp_wire_group_t *groups; /* the keys' groups; NULL = no groups */
    const kvp_wire_lineage_t *lineages; /* the keys' lineages; NULL = no lineages */
    const uint8_t *keys;
    size_t keys_len;
} asked_t;

/* Returns the error for a new attempt of the key, or OK with the object to replace in *over_out. */
static kvp_err_t
check_present(kvp_master_t *m, const kvp_put_req_t *p, const kvp_wire_put_t *put, const uint8_t *keys,
              uint32_t *over_out)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, put->digest);
    const kvp_obj_t *o;

    *over_out = KVP_OID_NONE;
    if (oid == KVP_OID_NONE) return KVP_OK;
    o = kvp_obj(m->cat.index, oid);
    if (kvp_obj_owner(&m->cat, o) != p->session->tenant && KVP_RULE(TENANT_COMPARE)) return KVP_COLLISION;
    if (!kvp_obj_has_key(m->cat.index, o, keys + put->key_at, put->key_len)) return KVP_COLLISION;
    if (o->state == KVP_OBJ_COMMITTED) return check_committed(m, p->session, oid, put->digest, p->is_upsert, over_out);
    if (kvp_attempt_take(&m->puts, kvp_attempt_of(&m->cat, o))) return KVP_OK;
    return KVP_RULE(ALREADY_IS_COMMITTED) ? KVP_IN_PROGRESS : KVP_ALREADY;
}

static void
count_present(kvp_master_t *m, kvp_err_t err)
{
    m->ctx.st.put_already += err == KVP_ALREADY;
    m->ctx.st.put_in_progress += err == KVP_IN_PROGRESS;
    m->ctx.st.put_collisions += err == KVP_COLLISION;
}

static bool
is_over_limit(const kvp_master_t *m, const kvp_session_t *s, uint64_t len, uint32_t copies)
{
    uint64_t max = m->ctx.conf.attempt_bytes, bytes = s->attempt_bytes + s->quarantine_bytes;

    if (!KVP_RULE(UNFINISHED_BYTES)) return false;
    return bytes > max || len > (max - bytes) / copies;
}

/* Returns true if the client has too many unfinished puts. They cost the master memory; those of ended sessions too,
 * until they are aborted. A client may have at most an eighth of what is left of the limit for all clients, so that
 * many greedy clients leave room for others. */
static bool
is_over_all(const kvp_master_t *m, const kvp_session_t *s)
{
    return s->attempt_ids.n >= (KVP_ATTEMPTS_MAX - m->ctx.st.attempts) / 8;
}

/* Returns true if the message has begun its share of puts. In a full pool a message's puts evict other objects, and
 * until the commit neither the old nor the new objects can be read. So a message may begin only a small part of the
 * pool, and its client asks again for the rest. */
static bool
is_over_share(const kvp_master_t *m, kvp_put_req_t *p, uint64_t len)
{
    uint64_t most = kvp_max_u64(m->ctx.st.size_bytes / PUT_SHARE, PUT_SHARE_MIN);

    p->is_cut |= p->bytes > 0 && p->bytes + len * p->copies > most && !kvp_list_is_empty(&m->puts.waiting);
    return p->is_cut;
}

/* Returns OK if the client may begin one more put. */
static kvp_err_t
check_client(kvp_master_t *m, kvp_put_req_t *p, const kvp_wire_put_t *put)
{
    if (put->len > kvp_segment_longest_chunk(&m->space))
        return kvp_put_may_nodes_come(&m->puts) ? KVP_RETRY_AFTER : m->cat.up_n == 0 ? KVP_NO_SPACE : KVP_TOO_LARGE;
    const kvp_err_t refusal = kvp_journal_refusal(&m->log);
    if (refusal != KVP_OK) return refusal;
    if (kvp_attempt_find(&m->puts, p->session, put->attempt) != NULL) return KVP_INVALID;
    if (kvp_recent_find(&p->session->recent, put->attempt) != KVP_RECENT_UNKNOWN) return KVP_INVALID;
    if (is_over_limit(m, p->session, put->len, p->copies)) return KVP_LIMIT;
    if (is_over_all(m, p->session)) return KVP_RETRY_AFTER;
    return is_over_share(m, p, put->len) ? KVP_EAGAIN : KVP_OK;
}

/* Returns the error for a probe that found no free memory: NO_SPACE, or RETRY_AFTER if the wanted node does not answer.
 */
static kvp_err_t
refuse_probe(kvp_master_t *m, uint32_t only)
{
    const kvp_segment_t *g = kvp_segment_find(&m->space, only);

    return g != NULL && kvp_segment_is_passed_over(&m->cat, g) ? KVP_RETRY_AFTER : KVP_NO_SPACE;
}

static kvp_err_t
begin_one(kvp_master_t *m, kvp_put_req_t *p, uint32_t at, const asked_t *asked)
{
    static const kvp_wire_group_t no_group;
    const kvp_wire_put_t *put = &asked->puts[at];
    const kvp_wire_group_t *group = asked->groups == NULL ? &no_group : &asked->groups[at];
    const kvp_wire_lineage_t *lineage = asked->lineages == NULL ? NULL : &asked->lineages[at];
    kvp_session_t *s = p->session;
    kvp_attempt_t *a;
    kvp_err_t err;
    uint32_t oid, over;

    err = check_put(m, s->tenant->id, put, asked->keys, asked->keys_len);
    if (err == KVP_OK) err = check_lineage(lineage);
    if (err == KVP_OK) err = kvp_group_check_named(group);
    if (err != KVP_OK) return err;
    err = check_present(m, p, put, asked->keys, &over);
    count_present(m, err);
    if (err == KVP_OK) err = check_client(m, p, put);
    if (err == KVP_OK && kvp_group_is_named(group)) err = kvp_group_may_join(&m->prot, s, group, over);
    if (err != KVP_OK) return err;

    oid = kvp_objindex_make(m->cat.index, put->digest, asked->keys + put->key_at, (uint16_t)put->key_len, lineage);
    a = kvp_attempt_open(&m->puts, p, at, put, group, oid);
    if (over == KVP_OID_NONE) {
        kvp_objindex_link(m->cat.index, oid, put->digest);
        if (kvp_group_is_named(group)) kvp_group_join(&m->prot, s, oid, group);
    } else {
        kvp_attempt_stage(&m->cat, a, over); /* an upsert joins its group when it replaces the old object */
    }
    for (uint32_t i = 0; i < a->copies; i++) {
        /* While other puts wait for space, this put is queued after them. */
        if (kvp_list_is_empty(&m->puts.waiting) && kvp_place_alloc(&m->space, a, &p->wish) == KVP_OK) {
            kvp_put_req_place(&m->puts, a);
        } else if (s->use != KVP_USE_PROBE) {
            kvp_put_key_open(&m->puts, a);
        } else {
            kvp_attempt_abort(&m->puts, a, true, refuse_probe(m, p->wish.only));
            break;
        }
    }
    return KVP_OK;
}

/* Returns true if the error is a refusal that kvp_on_explain reports for a missing key: the put itself was legal. */
static bool
is_refusal(kvp_err_t err)
{
    return err != KVP_OK && err != KVP_ALREADY && err != KVP_IN_PROGRESS && err != KVP_EAGAIN && err != KVP_INVALID &&
           err != KVP_BAD_KEY;
}

void
kvp_on_put_begin(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    asked_t asked = {0};
    Kvp__Pb__PutBegin *msg;
    kvp_put_req_t *p;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__put_begin__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n > 0 && msg->n <= KVP_PLACES_MAX && msg->n_avoid <= KVP_AVOID_MAX &&
        msg->n_prefer <= KVP_REPLICAS_MAX) {
        asked.puts = kvp_rd_array(&rd, msg->n, sizeof *asked.puts);
        if (msg->has_groups) asked.groups = kvp_rd_array(&rd, msg->n, sizeof *asked.groups);
        if (msg->has_lineages) asked.lineages = kvp_rd_array(&rd, msg->n, sizeof *asked.lineages);
    }
    if (asked.puts == NULL || rd.is_bad) {
        kvp_session_close(&m->peers, s, "malformed PutBegin");
        kvp_pb_free(&pb, msg);
        return;
    }
    if (s->use != KVP_USE_PROBE) m->ctx.st.put_begins += msg->n;
    if (msg->pin > KVP_PIN_HARD) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_INVALID, "unknown pin");
        kvp_pb_free(&pb, msg);
        return;
    }
    if (msg->has_epoch && msg->epoch != s->tenant->epoch && KVP_RULE(EPOCH_PUT)) {
        kvp_reply_stale(&m->peers, s, &f->hdr);
        kvp_pb_free(&pb, msg);
        return;
    }
    asked.keys = rd.at;
    asked.keys_len = rd.left;
    p = kvp_put_req_open(&m->puts, s, &f->hdr, msg);
    for (uint32_t i = 0; i < msg->n; i++) {
        kvp_err_t err = begin_one(m, p, i, &asked);

        if (is_refusal(err)) kvp_put_note_refused(&m->puts, kvp_objindex_id(m->cat.index, asked.puts[i].digest), err);
        if (err != KVP_OK) p->objs[i] = (kvp_wire_obj_t){.err = err};
    }
    if (p->left == 0)
        kvp_put_req_answer(&m->puts, p);
    else
        m->ctx.has_space_news = true; /* waiting puts are tried at the end of this input */
    kvp_pb_free(&pb, msg);
}

/* ---- commit and abort */
/* Returns the index of the copy with this generation among the granted copies. */
static uint32_t
granted_at(const kvp_attempt_t *a, uint64_t generation)
{
    uint32_t i = 0;

    while (a->granted_n > 1 && a->granted[i] != generation)
        i++;
    return i;
}

/* Removes the copies that the client has not sealed. Returns false if no sealed copy exists any more. */
static bool
keep_sealed(kvp_master_t *m, const kvp_attempt_t *a, uint32_t sealed)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(&m->cat, kvp_obj(m->cat.index, a->oid), places), kept = 0;

    for (uint32_t i = 0; i < n; i++)
        kept += (sealed >> granted_at(a, places[i].generation) & 1) != 0 &&
                kvp_place_chunk(&m->cat, &places[i])->segment->life != KVP_SEGMENT_DROPPED;
    if (kept == 0) return false;
    for (uint32_t i = n; i-- > 0;) {
        if ((sealed >> granted_at(a, places[i].generation) & 1) != 0) continue;
        kvp_obj_del_place(&m->space, a->oid, &places[i]);
        (void)kvp_retire_place(&m->space, &places[i], kvp_attempt_owner(a, false), NULL);
    }
    return true;
}

/* An answer to commits or aborts that may contain a promise. It is deferred if it supersedes an object or needs a
 * durable record. */
typedef struct {
    const kvp_frame_hdr_t *ask;
    uint32_t n;
    kvp_deferred_t *deferred; /* the deferred reply; NULL = the answer is sent at once */
    bool waits; /* flag: the client waits until no lease covers the superseded objects */
    bool has_revoked; /* flag: an object that leases may cover was superseded */
} reply_t;

static bool
may_wait(kvp_session_t *s, reply_t *reply)
{
    if (reply->deferred != NULL) return true;
    if (!kvp_deferred_may_open(s, reply->n)) return false;
    reply->deferred = kvp_deferred_open(s, reply->ask, reply->n);
    return true;
}

static uint64_t
answer_of(const reply_t *reply)
{
    return reply->deferred == NULL ? 0 : reply->deferred->id;
}

/* Drops the old object that the staged version replaces, if it still exists, and puts the version into the index. */
static void
supersede_old(kvp_master_t *m, kvp_attempt_t *a, kvp_deferred_t *w)
{
    if (a->over != KVP_OID_NONE) kvp_obj_supersede(&m->space, a->over, w);
}

/* Repeats the answer to a repeated request, but not before the first answer, which may be deferred. */
static kvp_err_t
repeat_answer(const kvp_master_t *m, kvp_session_t *s, uint64_t attempt, kvp_err_t what, reply_t *reply)
{
    kvp_deferred_t *first = kvp_deferred_find(s, kvp_recent_answer(&s->recent, attempt));

    if (!KVP_RULE(AGAIN_WAITS)) first = NULL;
    if (first == NULL && !kvp_journal_withholds(&m->log, kvp_journal_syncs(&m->log, false))) return what;
    if (!may_wait(s, reply)) return KVP_LIMIT;
    if (first != NULL) kvp_deferred_line_up(reply->deferred, first);
    return what;
}

static kvp_err_t
commit_again(const kvp_master_t *m, kvp_session_t *s, uint64_t attempt, reply_t *reply)
{
    bool is_committed = kvp_recent_find(&s->recent, attempt) == KVP_RECENT_COMMITTED;

    return repeat_answer(m, s, attempt, is_committed ? KVP_OK : KVP_ABORTED, reply);
}

/* Returns true if the attempt may be committed: no BUMP raised its tenant's epoch meanwhile, a sealed copy still
 * exists, and its group has a place for it. */
static bool
may_commit(kvp_master_t *m, kvp_session_t *s, const kvp_attempt_t *a, uint32_t sealed)
{
    if (a->epoch != a->tenant->epoch && KVP_RULE(BUMP_UNDER_WAY)) return false;
    return keep_sealed(m, a, sealed) && kvp_group_enter(&m->prot, s, a) == KVP_OK;
}

static kvp_err_t
commit_one(kvp_master_t *m, kvp_session_t *s, const kvp_wire_commit_t *commit, reply_t *reply)
{
    kvp_attempt_t *a = kvp_attempt_find(&m->puts, s, commit->attempt);
    bool is_not_dead, may_be_known, waits;
    kvp_pin_t pin;
    kvp_obj_t *o;
    uint32_t oid;

    if (a == NULL) return commit_again(m, s, commit->attempt, reply);
    if (a->req != NULL) return KVP_INVALID; /* the attempt's PutBegin is not answered yet */
    if (commit->replicas == 0 || commit->replicas >> a->granted_n != 0) return KVP_INVALID;
    is_not_dead = kvp_retire_is_readable(&m->space, a->digest);
    may_be_known = a->is_upsert || (reply->waits && KVP_RULE(REVOKE_EVICTED));
    waits = may_be_known || m->log.state != KVP_JOURNAL_OFF;
    if (waits && !may_wait(s, reply)) return KVP_LIMIT;
    if (!may_commit(m, s, a, commit->replicas)) {
        /* The refused client may have sealed the extents, and a later master would adopt a sealed extent. So the
         * refusal is deferred until the extents are DEAD, unless the client has too many deferred answers. If the
         * commit does not name all copies, the client may still be writing to the others: is_drained is false then. */
        (void)may_wait(s, reply);
        kvp_recent_add(&s->recent, a->id, KVP_RECENT_ABORTED, answer_of(reply));
        kvp_attempt_refuse(&m->puts, a, commit->replicas + 1 == 1u << a->granted_n, reply->deferred);
        return KVP_ABORTED;
    }
    oid = a->oid;
    pin = a->pin;
    /* An eviction revokes no cached location, because readers find the descriptor DEAD. Readers miss this before the
     * node has carried out the Retire, or if a lease lets them skip descriptors. So the commit revokes the location. */
    if ((may_be_known && KVP_RULE(REVOKE_ON_UPSERT)) || (is_not_dead && KVP_RULE(REVOKE_NOT_DEAD_YET)))
        kvp_revoke(a->tenant, a->digest);
    reply->has_revoked |= may_be_known;
    o = kvp_obj(m->cat.index, oid);
    o->sum = commit->sum;
    o->pin = pin & 3u;
    kvp_record_commit(&m->cat, oid, a->digest);
    kvp_asks_put(&m->cat, s->tenant, a->digest, kvp_obj_len(&m->cat, o));
    m->ctx.st.put_bytes += kvp_obj_len(&m->cat, o);
    if (a->is_upsert) {
        if (reply->deferred != NULL) reply->deferred->needs_sync = true;
        supersede_old(m, a, reply->deferred);
    }
    kvp_recent_add(&s->recent, a->id, KVP_RECENT_COMMITTED, waits ? answer_of(reply) : 0);
    kvp_attempt_close(&m->puts, a);
    o->state = KVP_OBJ_COMMITTED;
    kvp_pin_count(&m->prot, o, (int64_t)kvp_obj_bytes(&m->cat, o));
    kvp_group_committed(&m->prot, oid);
    kvp_victim_used(&m->prot, oid);
    o->is_used_since = 0;
    m->ctx.st.objects++;
    kvp_obj_tenant(&m->cat, o)->objects++;
    m->ctx.st.commits++;
    /* the nodes check that a hard-pinned object was really written: otherwise it would use its space for ever */
    if (pin == KVP_PIN_HARD) kvp_check_all(&m->space, oid);
    return KVP_OK;
}

static void
answer_put(kvp_master_t *m, kvp_session_t *s, const reply_t *reply, const int32_t *results, bool wait)
{
    if (reply->deferred != NULL) {
        memcpy(reply->deferred->results, results, reply->n * sizeof *results);
        kvp_deferred_arm(&m->prot, reply->deferred, wait);
    } else {
        kvp_reply_results(&m->peers, s, reply->ask, results, reply->n, sizeof *results);
    }
}

void
kvp_on_put_commit(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    const kvp_wire_commit_t *commits = NULL;
    int32_t results[KVP_PLACES_MAX];
    Kvp__Pb__PutCommit *msg;
    reply_t reply;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__put_commit__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n <= KVP_PLACES_MAX) commits = kvp_rd_array(&rd, msg->n, sizeof *commits);
    if (commits == NULL) {
        kvp_session_close(&m->peers, s, "malformed PutCommit");
        kvp_pb_free(&pb, msg);
        return;
    }
    reply = (reply_t){.ask = &f->hdr, .n = msg->n, .waits = msg->wait};
    for (uint32_t i = 0; i < msg->n; i++)
        results[i] = commit_one(m, s, &commits[i], &reply);
    answer_put(m, s, &reply, results, msg->wait && reply.has_revoked);
    kvp_ctx_space_news(&m->ctx); /* committed objects can be evicted */
    kvp_pb_free(&pb, msg);
}

static kvp_err_t
abort_one(kvp_master_t *m, kvp_session_t *s, uint64_t id, bool is_drained, reply_t *reply)
{
    kvp_attempt_t *a = kvp_attempt_find(&m->puts, s, id);
    kvp_put_req_t *p;

    if (a == NULL) {
        switch (kvp_recent_find(&s->recent, id)) {
        case KVP_RECENT_COMMITTED:
            return repeat_answer(m, s, id, KVP_ALREADY, reply);
        case KVP_RECENT_ABORTED:
            if (is_drained) kvp_retire_drained(&m->space, s, id);
            return KVP_OK;
        default:
            return KVP_ABORTED;
        }
    }
    p = a->req;
    kvp_recent_add(&s->recent, id, KVP_RECENT_ABORTED, 0);
    kvp_attempt_abort(&m->puts, a, is_drained, KVP_ABORTED);
    if (p != NULL && p->left == 0) kvp_put_req_answer(&m->puts, p);
    return KVP_OK;
}

void
kvp_on_put_abort(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    int32_t results[KVP_PLACES_MAX];
    const uint64_t *ids = NULL;
    Kvp__Pb__PutAbort *msg;
    reply_t reply;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__put_abort__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n <= KVP_PLACES_MAX) ids = kvp_rd_array(&rd, msg->n, sizeof *ids);
    if (ids == NULL) {
        kvp_session_close(&m->peers, s, "malformed PutAbort");
        kvp_pb_free(&pb, msg);
        return;
    }
    reply = (reply_t){.ask = &f->hdr, .n = msg->n};
    for (uint32_t i = 0; i < msg->n; i++)
        results[i] = abort_one(m, s, ids[i], msg->is_drained, &reply);
    answer_put(m, s, &reply, results, false);
    kvp_pb_free(&pb, msg);
}
