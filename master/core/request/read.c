/* SPDX-License-Identifier: Apache-2.0
 * The requests that change no objects: get, used, exists, lookup, release, list. */
#include "master/core/request/request.h"

#include "common/buf.h"
#include "common/hash.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/slab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/evict/hot.h"
#include "master/core/log/journal.h"
#include "master/core/protect/candidates.h"
#include "master/core/protect/gone.h"
#include "master/core/protect/group.h"
#include "master/core/protect/probe.h"
#include "master/core/protect/ticket.h"
#include "master/core/recovery/loss.h"
#include "master/core/recovery/state.h"
#include "master/core/session/session.h"
#include "master/core/session/takeover.h"
#include "master/core/space/check.h"
#include "master/core/space/tier.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <string.h>

#define LIST_SCAN_MAX 4096u /* limit of the records that one List examines */
#define STAGE_WAIT_MAX_MS 500u /* longest time that an answer waits for loads from tiers */
#define STAGE_RETRY_MS 1u /* time after which a client asks again for an object that is being loaded */
#define AWAY_RETRY_MS 5u /* time after which a client asks again for an object whose node has not reconnected */
#define LIST_BYTES_MAX (256u << 10)
/* limit of the bytes that a client may report as read, so that their sum does not overflow */
#define USED_BYTES_MAX (1ull << 50)

/* Returns the digests after a message head, at most max of them. NULL: the message was malformed, and the connection
 * is closed. */
static const kvp_digest_t *
read_digests(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, uint32_t n, uint32_t max)
{
    const kvp_digest_t *digests = NULL;
    kvp_rd_t rd;

    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (n > 0 && n <= max) digests = kvp_rd_array(&rd, n, sizeof *digests);
    if (digests == NULL) kvp_session_close(&m->peers, s, "malformed batch of digests");
    return digests;
}

/* Returns true if the object is served and belongs to the session's tenant. Other tenants' digests count as absent. */
static bool
is_found(const kvp_master_t *m, const kvp_session_t *s, uint32_t oid)
{
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    return o != NULL && kvp_obj_is_served(&m->cat, o) && kvp_obj_tenant(&m->cat, o) == s->tenant;
}

/* Prefetches the records for the object's length and place, which are needed soon. */
static void
prefetch_place(const kvp_master_t *m, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    const kvp_chunk_t *c = kvp_obj_chunk(&m->cat, o);

    if (c != NULL && c->slab != NULL) kvp_slab_prefetch(c->slab, (uint32_t)o->slot);
}

/* Returns true if an object that is not served exists: only its node is disconnected. */
static bool
is_away(const kvp_master_t *m, const kvp_session_t *s, uint32_t oid)
{
    const kvp_obj_t *o = oid == KVP_OID_NONE ? NULL : kvp_obj(m->cat.index, oid);

    return o != NULL && o->state == KVP_OBJ_COMMITTED && kvp_obj_tenant(&m->cat, o) == s->tenant &&
           kvp_obj_version(o) > s->tenant->min_version && !kvp_group_hides(&m->cat, o);
}

/* Returns true if a reader should wait for the object: the master has just started and the object's node has not
 * reconnected yet, or the node is being restarted. */
static bool
is_coming(const kvp_master_t *m, uint32_t oid)
{
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);

    return (kvp_takeover_may_tickets_come(&m->peers) && kvp_obj_is_reported(&m->cat, o)) || kvp_obj_is_kept(&m->cat, o);
}

/* Returns why the answer to a GET has no place for the object. RETRY_AFTER: it is being loaded, or the client must
 * ask again. Other errors: the GET has waited, and the node had no room in memory, or failed to load the object. */
static kvp_err_t
loading_err(const kvp_master_t *m, uint32_t oid, const kvp_stage_waiter_t *waited)
{
    const kvp_moving_t *mv = kvp_moving_of(&m->space, kvp_obj(m->cat.index, oid));

    /* After a take-over nothing is evicted for a while, so a load may have to wait for room. */
    if (waited == NULL || kvp_takeover_may_tickets_come(&m->peers)) return KVP_RETRY_AFTER;
    if (mv != NULL) return kvp_moving_is_load(mv) && !mv->is_placed ? KVP_NO_SPACE : KVP_RETRY_AFTER;
    return waited->result != KVP_OK ? waited->result : KVP_RETRY_AFTER;
}

/* The result of a GET. */
typedef struct {
    uint32_t oids[KVP_PLACES_MAX]; /* oids of all requested keys */
    uint32_t found[KVP_PLACES_MAX], tiered[KVP_PLACES_MAX]; /* oids of objects in memory; of objects only on tiers */
    uint32_t found_n, tiered_n, coming_n; /* coming_n: number of missing keys whose node may still return */
    uint32_t tiered_at[KVP_PLACES_MAX]; /* indices of the tiered objects among the requested keys */
    const kvp_stage_waiter_t *waited; /* result of each key's load; NULL = the GET did not wait. Borrowed */
} got_t;

/* Returns the id of the tier that has a copy of the object; 0 = no copy on a connected tier. */
static uint32_t
tier_id(const kvp_master_t *m, const kvp_session_t *s, uint32_t oid)
{
    const kvp_segment_t *t = is_found(m, s, oid) ? kvp_obj_tier(&m->cat, kvp_obj(m->cat.index, oid)) : NULL;

    return t == NULL || t->state == KVP_SEG_LOST ? 0 : t->id;
}

/* Appends the n records of an answer to GET, then the nloc places of the found objects, and, if requested, their
 * lineages and tiers. Counts the reads that the client will make of the objects that it holds. */
static void
append_found(kvp_master_t *m, const kvp_session_t *s, const got_t *got, const Kvp__Pb__Places *reply, bool is_held,
             kvp_buf_t *out)
{
    size_t objs_bytes = reply->n * sizeof(kvp_wire_obj_t);
    uint8_t *obj_at = kvp_buf_extend(out, objs_bytes + reply->nloc * sizeof(kvp_wire_loc_t));
    uint8_t *loc_at = obj_at == NULL ? NULL : obj_at + objs_bytes;

    for (uint32_t i = 0; i < reply->n && obj_at != NULL; i++, obj_at += sizeof(kvp_wire_obj_t)) {
        kvp_wire_obj_t obj = {.err = KVP_NOT_FOUND};
        kvp_wire_loc_t locs[KVP_REPLICAS_MAX];

        if (is_found(m, s, got->oids[i])) {
            kvp_obj_wire(&m->cat, kvp_obj(m->cat.index, got->oids[i]), s->host_id,
                         m->ctx.conf.hot_bytes_per_s == 0 ? 0 : s->number, &obj, locs);
            if (is_held && obj.nloc == 0) {
                obj =
                    (kvp_wire_obj_t){.err = loading_err(m, got->oids[i], got->waited == NULL ? NULL : &got->waited[i])};
            } else if (is_held) {
                m->ctx.st.get_bytes += obj.len;
                kvp_hot_read(&m->evict, s, got->oids[i], obj.len);
            }
        } else if (is_away(m, s, got->oids[i])) {
            obj.err = is_held && is_coming(m, got->oids[i]) ? KVP_RETRY_AFTER : KVP_NODE_LOST;
        }
        memcpy(obj_at, &obj, sizeof obj);
        memcpy(loc_at, locs, obj.nloc * sizeof *locs);
        loc_at += obj.nloc * sizeof *locs;
    }
    for (uint32_t i = 0; reply->has_lineages && i < reply->n; i++) {
        kvp_wire_lineage_t lineage = {.is_told = 0};

        if (is_found(m, s, got->oids[i])) lineage = kvp_obj_lineage(m->cat.index, kvp_obj(m->cat.index, got->oids[i]));
        kvp_buf_append(out, &lineage, sizeof lineage);
    }
    for (uint32_t i = 0; reply->has_tiers && i < reply->n; i++) {
        uint32_t id = tier_id(m, s, got->oids[i]);

        kvp_buf_append(out, &id, sizeof id);
    }
}

static void
find_places(kvp_master_t *m, const kvp_session_t *s, const kvp_digest_t *digests, uint32_t n, got_t *got)
{
    got->found_n = got->tiered_n = got->coming_n = 0;
    kvp_objindex_find_many(m->cat.index, digests, n, got->oids);
    for (uint32_t i = 0; i < n; i++) {
        if (!is_found(m, s, got->oids[i])) {
            got->coming_n += is_away(m, s, got->oids[i]) && is_coming(m, got->oids[i]);
            continue;
        }
        const kvp_obj_t *o = kvp_obj(m->cat.index, got->oids[i]);
        if (o->is_on_tier != 0 && kvp_obj_up_n(&m->cat, o) == 0) {
            got->tiered_at[got->tiered_n] = i;
            got->tiered[got->tiered_n++] = got->oids[i];
            continue;
        }
        got->found[got->found_n++] = got->oids[i];
        prefetch_place(m, got->oids[i]);
    }
}

/* Begins to load the objects that are only on tiers. Returns true if the answer waits for the loads. */
static bool
stage_all(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, const got_t *got, uint32_t n, uint32_t wait_ms)
{
    bool waits = got->found_n == 0 && wait_ms > 0 && s->stagewaits_n < KVP_STAGEWAITS_MAX &&
                 (f->hdr.flags & KVP_FRAME_ONEWAY) == 0;
    uint64_t due_ns = m->ctx.now_ns + KVP_MS(kvp_min_u64(wait_ms, STAGE_WAIT_MAX_MS));
    kvp_stagewait_t *w = waits ? kvp_stagewait_open(m, s, f, n, due_ns) : NULL;
    uint32_t begun = 0;

    for (uint32_t i = 0; i < got->tiered_n; i++)
        begun += kvp_tier_stage(&m->space, got->tiered[i], w == NULL ? NULL : kvp_stagewait_one(w, got->tiered_at[i]));
    if (w != NULL && begun == 0) kvp_stagewait_drop(w);
    return w != NULL && begun > 0;
}

/* Returns whether a missing object may be found when a node reconnects: it lies on this node, or the log may lack it.
 * For a prefix only the first missing object counts. */
static bool
may_any_come(const kvp_master_t *m, const kvp_session_t *s, const kvp_digest_t *digests, uint32_t n, bool is_prefix)
{
    if (kvp_nodes_awaited(m) == 0) return false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t oid = kvp_objindex_find(m->cat.index, digests[i]);

        if (is_found(m, s, oid)) continue;
        if (oid == KVP_OID_NONE ? kvp_gone_is_rebuilding(&m->prot) : is_away(m, s, oid)) return true;
        if (is_prefix) return false;
    }
    return false;
}

/* Counts the missing keys of a GET by their causes. */
static void
count_misses(kvp_master_t *m, const kvp_session_t *s, const kvp_digest_t *digests, uint32_t n, const got_t *got)
{
    if (n == got->found_n + got->tiered_n) return;
    for (uint32_t i = 0; i < n; i++)
        if (!is_found(m, s, got->oids[i]) && !(is_away(m, s, got->oids[i]) && is_coming(m, got->oids[i])))
            m->ctx.st.get_misses_by[kvp_explain_missing(m, s->tenant, digests[i], got->oids[i])]++;
}

/* Counts a look-up with missing keys by the cause of the first missing key. The later ones are usually missing as a
 * consequence: an engine puts the blocks of a prompt in order. */
static void
count_hole(kvp_master_t *m, const kvp_session_t *s, kvp_digest_t hole, uint32_t oid)
{
    m->ctx.st.lookup_misses[kvp_explain_missing(m, s->tenant, hole, oid)]++;
}

static void
answer_get(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, const kvp_stage_waiter_t *waited)
{
    Kvp__Pb__Places reply = KVP__PB__PLACES__INIT;
    const kvp_digest_t *digests;
    Kvp__Pb__Get *msg;
    kvp_buf_t *out;
    kvp_pb_t pb;
    got_t got;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__get__descriptor, f);
    digests = read_digests(m, s, f, msg == NULL ? 0 : msg->n, KVP_PLACES_MAX);
    if (digests != NULL && msg->has_epoch && msg->epoch != s->tenant->epoch && KVP_RULE(EPOCH_GET)) {
        kvp_reply_stale(&m->peers, s, &f->hdr);
        kvp_pb_free(&pb, msg);
        return;
    }
    /* A client repeats a GET with a hold itself. A GET without a hold is a question, like EXISTS, and waits here. */
    if (digests == NULL || (msg->no_hold && may_any_come(m, s, digests, msg->n, false) && kvp_await_nodes(m, s, f))) {
        kvp_pb_free(&pb, msg);
        return;
    }
    find_places(m, s, digests, msg->n, &got);
    got.waited = waited;
    if (waited == NULL && !msg->no_hold && s->use != KVP_USE_PROBE) {
        /* without the keys whose node may return: the client asks for them again, and they are counted then */
        const uint32_t n = msg->n - got.coming_n;

        if (got.coming_n == 0) kvp_asks_got(&m->cat, s->tenant, digests, n, got.found_n + got.tiered_n);
        m->ctx.st.gets += n;
        m->ctx.st.get_misses += n - got.found_n - got.tiered_n;
        count_misses(m, s, digests, msg->n, &got);
    }
    if (got.tiered_n > 0 && !msg->no_hold && waited == NULL && stage_all(m, s, f, &got, msg->n, msg->wait_ms)) {
        kvp_pb_free(&pb, msg);
        return;
    }
    for (uint32_t i = 0; i < got.found_n; i++) {
        reply.nloc += kvp_obj_served_n(&m->cat, kvp_obj(m->cat.index, got.found[i]));
        if (msg->keep_here && !msg->no_hold) kvp_hot_keep(&m->evict, s, got.found[i]);
    }
    reply.n = msg->n;
    reply.is_leased = msg->wants_lease;
    reply.has_lineages = msg->wants_lineages;
    reply.has_tiers = msg->wants_tiers;
    reply.revoke_seq = s->tenant->revoke_seq;
    reply.ns_epoch = s->tenant->epoch;
    if (got.coming_n > 0) reply.retry_ms = AWAY_RETRY_MS;
    if (got.tiered_n > 0) reply.retry_ms = STAGE_RETRY_MS;
    if (!msg->no_hold && !kvp_ticket_may_take(&m->prot, s, got.found, got.found_n)) {
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_LIMIT, "too many objects held");
        kvp_pb_free(&pb, msg);
        return;
    }
    if (!msg->no_hold) reply.ticket = kvp_ticket_take(&m->prot, s, KVP_TICKET_HOLD, got.found, got.found_n, 0);

    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    append_found(m, s, &got, &reply, !msg->no_hold, out);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}

void
kvp_on_get(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    answer_get(m, s, f, NULL);
}

void
kvp_get_again(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, const kvp_stage_waiter_t *waited)
{
    answer_get(m, s, f, waited);
}

/* Counts the first probe since an object's last use as a use. Later probes do not count, because otherwise a client
 * that only asks would keep objects that are never read. */
static void
count_probes(kvp_master_t *m, const uint32_t *oids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        kvp_obj_t *o = kvp_obj(m->cat.index, oids[i]);

        if (o->is_asking_counted != 0) continue; /* the object is twice in one message */
        kvp_victim_used(&m->prot, oids[i]);
        o->is_asking_counted = 1;
    }
}

void
kvp_on_exists(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__Reply reply = KVP__PB__REPLY__INIT;
    uint32_t oids[KVP_BATCH_MAX], first[KVP_BATCH_MAX], first_n = 0;
    const kvp_digest_t *digests;
    Kvp__Pb__Exists *msg;
    kvp_buf_t *out;
    uint8_t *flags;
    uint64_t share = kvp_probe_batch_share(&m->prot);
    uint32_t hits = 0, unit;
    kvp_pb_t pb;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__exists__descriptor, f);
    digests = read_digests(m, s, f, msg == NULL ? 0 : msg->n, KVP_BATCH_MAX);
    if (digests == NULL || (may_any_come(m, s, digests, msg->n, false) && kvp_await_nodes(m, s, f))) {
        kvp_pb_free(&pb, msg);
        return;
    }
    kvp_objindex_find_many(m->cat.index, digests, msg->n, oids);
    reply.n = msg->n;
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    flags = kvp_buf_extend(out, msg->n);
    for (uint32_t i = 0; flags != NULL && i < msg->n; i++) {
        flags[i] = is_found(m, s, oids[i]);
        if (flags[i] == 0 && hits == i) count_hole(m, s, digests[i], oids[i]);
        hits += flags[i];
        if (flags[i] == 0 || msg->is_plain) continue;
        unit = kvp_victim_unit(&m->cat, oids[i]);
        if (kvp_obj(m->cat.index, unit)->is_asking_counted == 0) first[first_n++] = unit;
        kvp_probe_leave(&m->prot, unit, hits > share);
    }
    kvp_frame_end(out, at);
    kvp_asks_note(&m->cat, s->tenant, digests, msg->n, hits, false);
    count_probes(m, first, first_n);
    m->ctx.st.exists += msg->n;
    m->ctx.st.exists_misses += msg->n - hits;
    kvp_pb_free(&pb, msg);
}

/* Handles Used: the client reports reads from cached locations, which count as uses. Unknown objects are ignored. */
void
kvp_on_used(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    const kvp_wire_used_t *used = NULL;
    Kvp__Pb__Used *msg;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__used__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n <= KVP_PLACES_MAX) used = kvp_rd_array(&rd, msg->n, sizeof *used);
    if (used == NULL) {
        kvp_session_close(&m->peers, s, "malformed Used");
        kvp_pb_free(&pb, msg);
        return;
    }
    for (uint32_t i = 0; i < msg->n; i++) {
        uint32_t oid = kvp_objindex_find(m->cat.index, used[i].digest);

        if (used[i].reads == 0 || !is_found(m, s, oid)) continue;
        kvp_asks_read(&m->cat, s->tenant, used[i].digest, used[i].reads);
        kvp_victim_used(&m->prot, oid);
        m->ctx.st.used++;
        const uint64_t bytes = used[i].reads * kvp_obj_len(&m->cat, kvp_obj(m->cat.index, oid));
        m->ctx.st.get_bytes += bytes;
        kvp_hot_read(&m->evict, s, oid, kvp_min_u64(bytes, USED_BYTES_MAX));
    }
    kvp_reply_plain(&m->peers, s, &f->hdr, KVP_OK, "");
    kvp_pb_free(&pb, msg);
}

/* The result of a Lookup: an object or a group for each digest. */
typedef struct {
    uint32_t oids[KVP_BATCH_MAX];
    kvp_group_t *groups[KVP_BATCH_MAX];
    uint8_t present[KVP_BATCH_MAX];
    const kvp_digest_t *hole; /* the first absent digest; NULL = none is absent */
} looked_up_t;

static bool
look_up(kvp_master_t *m, const kvp_session_t *s, kvp_digest_t digest, bool is_group, uint32_t at, looked_up_t *l)
{
    if (!is_group) return is_found(m, s, l->oids[at]);
    l->groups[at] = kvp_group_seen(&m->prot, s->tenant, digest);
    return l->groups[at] != NULL;
}

/* Looks up all digests, and moves the found ones to the front. Returns their number. */
static uint32_t
find_all(kvp_master_t *m, const kvp_session_t *s, const Kvp__Pb__Lookup *msg, const kvp_digest_t *digests,
         looked_up_t *l)
{
    uint32_t found = 0;

    if (!msg->is_groups) kvp_objindex_find_many(m->cat.index, digests, msg->n, l->oids);
    memset(l->present, 0, msg->n);
    l->hole = NULL;
    for (uint32_t i = 0; i < msg->n; i++) {
        if (!look_up(m, s, digests[i], msg->is_groups, i, l)) {
            if (l->hole == NULL) l->hole = &digests[i];
            if (msg->is_prefix) break;
            continue;
        }
        l->present[i] = 1;
        if (msg->is_groups)
            l->groups[found++] = l->groups[i];
        else
            l->oids[found++] = l->oids[i];
    }
    return found;
}

/* Counts the granted objects that are only on tiers, and begins to load them if the client wants them in memory. */
static uint32_t
count_tiered(kvp_master_t *m, const uint32_t *oids, uint32_t n, bool wants_memory)
{
    uint32_t count = 0;

    for (uint32_t i = 0; m->space.tiers_n > 0 && i < n; i++) {
        if (kvp_obj_up_n(&m->cat, kvp_obj(m->cat.index, oids[i])) > 0) continue;
        count++;
        if (wants_memory) (void)kvp_tier_stage(&m->space, oids[i], NULL);
    }
    return count;
}

/* Returns whether a Lookup should wait for nodes: a group that is not served may be complete when a node reconnects. */
static bool
may_lookup_wait(kvp_master_t *m, const kvp_session_t *s, const Kvp__Pb__Lookup *msg, const kvp_digest_t *digests)
{
    if (!msg->is_groups) return may_any_come(m, s, digests, msg->n, msg->is_prefix);
    for (uint32_t i = 0; i < msg->n; i++)
        if (kvp_group_seen(&m->prot, s->tenant, digests[i]) == NULL) return true;
    return false;
}

/* Returns the object that stands for the i-th found key: of a group its first committed member. */
static const kvp_obj_t *
found_obj(const kvp_master_t *m, const looked_up_t *l, bool is_groups, uint32_t i)
{
    uint32_t oid = is_groups ? kvp_list_first(&l->groups[i]->committed, kvp_member_t, of_group)->oid : l->oids[i];

    return kvp_obj(m->cat.index, oid);
}

/* Adds the places of the found keys to the bytes of the answer. No group is on tiers alone, because tiers take no
 * members of groups. */
static void
mark_places(const kvp_master_t *m, const kvp_session_t *s, const Kvp__Pb__Lookup *msg, looked_up_t *l)
{
    for (uint32_t i = 0, found = 0; msg->wants_places && i < msg->n; i++) {
        const kvp_obj_t *o = l->present[i] == 0 ? NULL : found_obj(m, l, msg->is_groups, found++);

        if (o == NULL) continue;
        if (!msg->is_groups && kvp_obj_up_n(&m->cat, o) == 0) l->present[i] |= KVP_FOUND_ON_TIER;
        if (kvp_obj_is_on_host(&m->cat, o, s->host_id)) l->present[i] |= KVP_FOUND_ON_HOST;
    }
}

static void
refuse_lookup(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__LookupReply reply = KVP__PB__LOOKUP_REPLY__INIT;
    kvp_buf_t *out;
    size_t at;

    reply.err = KVP_STALE;
    reply.detail = (char *)"the tenant has another epoch";
    reply.epoch = s->tenant->epoch;
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_frame_end(out, at);
}

void
kvp_on_lookup(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__LookupReply reply = KVP__PB__LOOKUP_REPLY__INIT;
    const kvp_digest_t *digests;
    Kvp__Pb__Lookup *msg;
    looked_up_t l;
    kvp_buf_t *out;
    uint64_t ttl_ns;
    kvp_pb_t pb;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__lookup__descriptor, f);
    digests = read_digests(m, s, f, msg == NULL ? 0 : msg->n, KVP_BATCH_MAX);
    if (digests == NULL) {
        kvp_pb_free(&pb, msg);
        return;
    }
    if (msg->has_epoch && msg->epoch != s->tenant->epoch && KVP_RULE(EPOCH_LOOKUP)) {
        refuse_lookup(m, s, f);
        kvp_pb_free(&pb, msg);
        return;
    }
    if (may_lookup_wait(m, s, msg, digests) && kvp_await_nodes(m, s, f)) {
        kvp_pb_free(&pb, msg);
        return;
    }
    ttl_ns = msg->ttl_ms == 0 ? m->ctx.conf.lease_ns : kvp_min_u64(KVP_MS(msg->ttl_ms), m->ctx.conf.lease_ns);
    reply.found = find_all(m, s, msg, digests, &l);
    mark_places(m, s, msg, &l);
    if (msg->is_groups) {
        reply.granted = kvp_ticket_grantable_groups(&m->prot, s, l.groups, reply.found);
        reply.ticket = kvp_ticket_take_groups(&m->prot, s, l.groups, reply.granted, ttl_ns);
    } else {
        reply.granted = kvp_ticket_grantable(&m->prot, s, l.oids, reply.found);
        reply.ticket = kvp_ticket_take(&m->prot, s, KVP_TICKET_RESERVE, l.oids, reply.granted, ttl_ns);
        reply.on_tier = count_tiered(m, l.oids, reply.granted, msg->wants_memory);
    }
    if (l.hole != NULL) count_hole(m, s, *l.hole, kvp_objindex_find(m->cat.index, *l.hole));
    if (l.hole != NULL) kvp_ticket_note_hole(&m->prot, reply.ticket, *l.hole);
    reply.ttl_ms = (uint32_t)(ttl_ns / KVP_MS(1));
    reply.epoch = s->tenant->epoch;
    reply.n = !msg->is_prefix ? msg->n : msg->wants_places ? reply.found : 0;
    if (!msg->is_groups) kvp_asks_note(&m->cat, s->tenant, digests, msg->n, reply.found, msg->is_prefix);
    m->ctx.st.lookups += msg->n;
    m->ctx.st.lookup_found += reply.found;
    m->ctx.st.lookup_ungranted += reply.found - reply.granted;
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    kvp_buf_append(out, l.present, reply.n);
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}

void
kvp_on_release(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    const kvp_wire_unreadable_t *unreadable = NULL;
    const uint64_t *ids = NULL;
    Kvp__Pb__Release *msg;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__release__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n <= KVP_BATCH_MAX && msg->unreadable <= KVP_UNREADABLE_MAX) {
        ids = kvp_rd_array(&rd, msg->n, sizeof *ids);
        unreadable = kvp_rd_array(&rd, msg->unreadable, sizeof *unreadable);
    }
    if (ids == NULL || unreadable == NULL) {
        kvp_session_close(&m->peers, s, "malformed Release");
    } else {
        for (uint32_t i = 0; i < msg->n; i++)
            kvp_ticket_release(&m->prot, s, ids[i]);
        for (uint32_t i = 0; i < msg->unreadable; i++)
            if (kvp_check_told(&m->space, s->tenant, &unreadable[i]) && !KVP_RULE(CHECK_FIRST))
                kvp_copy_unreadable(m, unreadable[i].digest, unreadable[i].generation);
        kvp_reply_plain(&m->peers, s, &f->hdr, KVP_OK, "");
    }
    kvp_pb_free(&pb, msg);
}

/* ---- list */
static bool
is_listed(const kvp_master_t *m, const kvp_session_t *s, uint32_t oid, const ProtobufCBinaryData *prefix)
{
    const bool is_there = is_found(m, s, oid) || (m->log.is_resting && is_away(m, s, oid));
    const kvp_obj_t *o = kvp_obj(m->cat.index, oid);
    uint8_t key[KVP_KEY_MAX];

    if (!is_there || kvp_obj_key_len(m->cat.index, o) < prefix->len) return false;
    if (prefix->len == 0) return true;
    (void)kvp_obj_key_copy(m->cat.index, o, key);
    return memcmp(key, prefix->data, prefix->len) == 0;
}

void
kvp_on_list(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    Kvp__Pb__ListReply reply = KVP__PB__LIST_REPLY__INIT;
    uint32_t found[KVP_LIST_MAX], cursor, limit, left = LIST_SCAN_MAX;
    Kvp__Pb__List *msg;
    uint32_t key_bytes = 0;
    kvp_buf_t *out;
    kvp_pb_t pb;
    size_t at;

    msg = kvp_pb_unpack(&pb, &kvp__pb__list__descriptor, f);
    if (msg == NULL || msg->prefix.len > KVP_KEY_MAX) {
        kvp_session_close(&m->peers, s, "malformed List");
        kvp_pb_free(&pb, msg);
        return;
    }
    if (kvp_await_nodes(m, s, f)) {
        kvp_pb_free(&pb, msg);
        return;
    }
    /* Object numbers do not change, so a number can be the cursor: later puts below it are missed, and no object is
     * listed twice. */
    limit = msg->limit == 0 ? KVP_LIST_MAX : (uint32_t)kvp_min_u64(msg->limit, KVP_LIST_MAX);
    cursor = (uint32_t)kvp_min_u64(msg->cursor, kvp_obj_limit(m->cat.index));
    while (reply.n < limit && key_bytes < LIST_BYTES_MAX) {
        uint32_t oid = kvp_objindex_walk(m->cat.index, &cursor, KVP_OID_NONE, &left);

        if (oid == KVP_OID_NONE) break;
        if (!is_listed(m, s, oid, &msg->prefix)) continue;
        found[reply.n++] = oid;
        key_bytes += kvp_obj_key_len(m->cat.index, kvp_obj(m->cat.index, oid));
    }
    reply.cursor = cursor < kvp_obj_limit(m->cat.index) ? cursor : 0;
    out = kvp_reply_begin(&m->peers, s, &f->hdr, &reply.base, &at);
    key_bytes = 0;
    for (uint32_t i = 0; i < reply.n; i++) {
        const kvp_obj_t *o = kvp_obj(m->cat.index, found[i]);
        kvp_wire_entry_t entry = {
            .len = kvp_obj_len(&m->cat, o),
            .version = kvp_obj_version(o),
            .key_at = key_bytes,
            .key_len = kvp_obj_key_len(m->cat.index, o),
        };

        kvp_buf_append(out, &entry, sizeof entry);
        key_bytes += entry.key_len;
    }
    for (uint32_t i = 0; i < reply.n; i++) {
        uint8_t key[KVP_KEY_MAX];
        uint16_t key_len = kvp_obj_key_copy(m->cat.index, kvp_obj(m->cat.index, found[i]), key);

        kvp_buf_append(out, key, key_len);
    }
    kvp_frame_end(out, at);
    kvp_pb_free(&pb, msg);
}
