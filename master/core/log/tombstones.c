/* SPDX-License-Identifier: Apache-2.0
 * Removals that some node has not carried out, as tombstones: "no version of this key up to that one exists any more".
 *
 * Design notes.
 * - While the master lives its retire records are enough: what an absent node holds is in no index, and is retired
 *   when the node is back. Tombstones are for the next master, which knows nothing: the other nodes keep them until the
 *   extent is dead, or its segment is given up. And for this one, as long as nodes may come whose memory it does not know:
 *   what was removed, or went, meanwhile is held against what they report, and told as well, for the next master would
 *   ask them, too.
 * - Nodes are told at once of what lies on one that is away, and of what is not dead when its answer is due (deferred.c). The
 *   answer waits until one of them, whichever, has said that it keeps all of it. One that came later has heard of it when it
 *   has said so of all that it was greeted with.
 * - A tombstone speaks of all versions up to one. So none is made of an upsert that is aborted: the version before it
 *   stays; nor of an aborted put while an older version may be reported yet.
 */
#include "common/buf.h"
#include "common/digestmap.h"
#include "common/hash.h"
#include "common/list.h"
#include "common/mutate.h"
#include "common/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/interim.h"
#include "master/core/protect/deferred.h"
#include "master/core/protect/lease.h"
#include "master/core/recovery/rebuild.h"
#include "master/core/request/remove.h"
#include "master/core/session/session.h"
#include "master/core/space/drop.h"
#include "master/core/space/retire.h"
#include "master/core/state.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#define TENANT_TOMBS 4096u
#define TOMBS_MAX ((1u << 18) - TENANT_TOMBS) /* that nodes take */
#define EVICTED_MAX (1u << 14)
#define GUESSES_MAX (1u << 18)
#define BATCH 4096u
#define TOMB_RECORDS                                                                                                   \
    8u /* to enter a tombstone in maps that are long and cold costs as much as to touch so many records, */
#define TOLD_A_RECORD 8u /* to tell one less, */
#define LOOKS_A_RECORD 64u /* and to look at a place in a map still less */
#define EXPECTED_MIN 4096u /* objects on a node that is away, for which the maps are made ready */
#define TOUCHED_PLACES 1024u /* of the maps at a time; a dozen pages, */
#define TOUCH_RECORDS 128u /* which cost as much as so many records */
#define TENANT_LOOKS 1024u /* at tenants in a step, to forget them */
#define IDLE_NS 5000000000ull /* for which there have been no tombstones when the maps are let go */

bool
kvp_tombs_is_rebuilding(const kvp_interim_t *log)
{
    const kvp_master_t *m = log->core;

    return !log->is_rebuild_over && (m->ctx.now_ns < m->peers.rebuild_until_ns || m->rebuilds > 0);
}

/* ---- memory. Removals of what lies on an absent node enter tombstones all over maps that are long: so its pages are
 * there before, else each key of a message would wait for two of them. */
void
kvp_tombs_expect(kvp_interim_t *log, uint64_t objects)
{
    if (objects < EXPECTED_MIN || log->tombs_touched > 0) return;
    if ((log->tombs.cap == 0 && !kvp_digestmap_reserve(&log->tombs, TOMBS_MAX)) ||
        (log->tomb_refs.cap == 0 && !kvp_digestmap_reserve(&log->tomb_refs, TOMBS_MAX)))
        kvp_panic("out of memory: tombstones");
    log->is_touching = true;
}

static void
touch_some(kvp_master_t *m)
{
    for (; m->log.is_touching && m->ctx.slice_left >= TOUCH_RECORDS; kvp_ctx_spend(&m->ctx, TOUCH_RECORDS)) {
        kvp_digestmap_touch(&m->log.tombs, m->log.tombs_touched, TOUCHED_PLACES);
        kvp_digestmap_touch(&m->log.tomb_refs, m->log.tombs_touched, TOUCHED_PLACES);
        m->log.tombs_touched += TOUCHED_PLACES;
        m->log.is_touching = m->log.tombs_touched < m->log.tombs.cap;
    }
}

/* ---- what is known of a key */
static uint64_t
version_in(const kvp_digestmap_t *map, kvp_digest_t digest)
{
    const uint64_t *version = kvp_digestmap_at(map, digest);

    return version == NULL ? 0 : *version;
}

kvp_wire_tomb_t
kvp_tombs_tomb(const kvp_interim_t *log, uint32_t tenant, kvp_digest_t digest)
{
    const kvp_master_t *m = log->core;
    const kvp_tenant_t *t = kvp_tenant_find(&m->cat, tenant);
    uint64_t of_key = kvp_max_u64(version_in(&log->tombs, digest), version_in(&log->removed, digest));

    if (t == NULL || t->min_version <= of_key) return (kvp_wire_tomb_t){.digest = digest, .version = of_key};
    return (kvp_wire_tomb_t){.digest = kvp_wire_tomb_tenant(tenant), .version = t->min_version};
}

uint64_t
kvp_tombs_version(const kvp_interim_t *log, uint32_t tenant, kvp_digest_t digest)
{
    return kvp_tombs_tomb(log, tenant, digest).version;
}

/* The value, 0 where it is new. Maps are made as long as they can get: no step of ours moves a long one. */
static uint64_t *
insert(kvp_digestmap_t *map, kvp_digest_t digest, uint32_t max)
{
    bool has_memory = map->cap > 0 || kvp_digestmap_reserve(map, max);
    uint64_t *at = has_memory ? kvp_digestmap_insert(map, digest) : NULL;

    if (at == NULL) kvp_panic("out of memory: tombstones");
    return at;
}

static bool
raise_to(kvp_digestmap_t *map, kvp_digest_t digest, uint64_t version, uint32_t max)
{
    uint64_t *at;

    if (map->n >= max && kvp_digestmap_at(map, digest) == NULL) return false;
    at = insert(map, digest, max);
    *at = kvp_max_u64(*at, version);
    return true;
}

/* ---- telling nodes */
static void
tell(kvp_master_t *m, kvp_session_t *node, uint32_t segment_id, const kvp_wire_tomb_t *tombs, uint32_t n)
{
    Kvp__Pb__Tombs msg = KVP__PB__TOMBS__INIT;
    size_t at;

    msg.n = n;
    msg.term = m->ctx.term;
    msg.segment_id = segment_id;
    node->tombs_told = ++m->peers.request_seq;
    kvp_pb_frame_begin(&node->out, KVP_OP_TOMBS, 0, node->tombs_told, &msg.base, &at);
    kvp_buf_append(&node->out, tombs, n * sizeof *tombs);
    kvp_frame_end(&node->out, at);
    kvp_session_dirty(&m->peers, node);
}

void
kvp_tombs_remind(kvp_interim_t *log, kvp_segment_t *g, kvp_session_t *node, kvp_buf_t *tombs)
{
    kvp_master_t *m = log->core;
    uint32_t n = (uint32_t)(tombs->len / sizeof(kvp_wire_tomb_t));

    if (n > 0 && KVP_RULE(REMOVAL_OUTLIVES_REPORTS)) tell(m, node, g->id, (const kvp_wire_tomb_t *)tombs->data, n);
    kvp_buf_reset(tombs);
}

static void
queue(kvp_master_t *m, kvp_digest_t digest, uint64_t version)
{
    kvp_wire_tomb_t tomb = {.digest = digest, .version = version};

    kvp_buf_append(&m->log.tomb_news, &tomb, sizeof tomb);
    if (m->log.tomb_news.len >= BATCH * sizeof tomb) kvp_tombs_flush(&m->log);
}

void
kvp_tombs_flush(kvp_interim_t *log)
{
    kvp_master_t *m = log->core;
    const kvp_wire_tomb_t *tombs = (const kvp_wire_tomb_t *)log->tomb_news.data;
    uint32_t n = (uint32_t)(log->tomb_news.len / sizeof *tombs);

    if (n == 0) return;
    m->peers.request_seq++; /* also where nobody is told: who waits for these waits for a later request */
    kvp_list_foreach (pos, &m->cat.segments) {
        kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        /* A node of several segments is told once. */
        if (g->node != NULL && g->node->segments.next == &g->of_node) tell(m, g->node, g->id, tombs, n);
    }
    kvp_buf_reset(&log->tomb_news);
}

/* What is new from now on it is told like all others, so it need not be met. Who gave up its only segment meanwhile, and mounts
 * another one, is told from the beginning. */
void
kvp_tombs_greet(kvp_interim_t *log, kvp_session_t *node)
{
    kvp_master_t *m = log->core;

    if (log->tombs.n == 0) return;
    node->tombs_from = m->peers.request_seq;
    node->tombs_whole = UINT64_MAX; /* that is not told yet */
    node->tombs_at = kvp_digestmap_end(&log->tombs);
    kvp_list_del(&node->greeting);
    kvp_list_add_tail(&log->greeting, &node->greeting);
}

/* The next of those that it was not told yet, as far as the step reaches. */
static uint32_t
next_tombs(kvp_master_t *m, kvp_session_t *node, kvp_wire_tomb_t *batch, uint32_t max)
{
    uint32_t n = 0, looks = LOOKS_A_RECORD * m->ctx.slice_left, start = node->tombs_at;

    for (; node->tombs_at > 0 && n < max && start - node->tombs_at < looks;) {
        const kvp_digestmap_at_t *found = kvp_digestmap_back(&m->log.tombs, &node->tombs_at);

        if (found != NULL) batch[n++] = (kvp_wire_tomb_t){.digest = found->digest, .version = found->val};
    }
    kvp_ctx_spend(&m->ctx, 1 + (start - node->tombs_at) / LOOKS_A_RECORD + n / TOLD_A_RECORD);
    return n;
}

/* What it was told with its greeting, if that is so. */
static void
know_all(kvp_master_t *m, kvp_session_t *node)
{
    if (node->tombs_kept >= node->tombs_whole) node->tombs_from = 0;
    kvp_deferred_kept_some(&m->prot);
}

static void
greet_some(kvp_master_t *m)
{
    kvp_tombs_flush(&m->log); /* an answer is to everything told before */
    while (!kvp_list_is_empty(&m->log.greeting) && m->ctx.slice_left > 0) {
        kvp_session_t *node = kvp_list_first(&m->log.greeting, kvp_session_t, greeting);
        kvp_wire_tomb_t batch[256];
        uint32_t n;

        if (kvp_list_is_empty(&node->segments)) node->tombs_at = 0; /* it holds nothing any more, and is told nothing */
        n = next_tombs(m, node, batch, KVP_ARRAY_LEN(batch));
        if (n > 0) tell(m, node, kvp_list_first(&node->segments, kvp_segment_t, of_node)->id, batch, n);
        if (node->tombs_at > 0) continue;
        kvp_list_del(&node->greeting);
        if (node->tombs_from == UINT64_MAX) continue;
        node->tombs_whole = node->tombs_told;
        know_all(m, node);
    }
}

/* One that cannot keep more keeps nothing that counts. */
void
kvp_tombs_answer(kvp_interim_t *log, kvp_session_t *s, const kvp_frame_t *f)
{
    kvp_master_t *m = log->core;
    uint64_t request = f->hdr.request_id;
    Kvp__Pb__Reply *msg;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, f);
    if (msg == NULL || request > m->peers.request_seq) {
        kvp_session_close(&m->peers, s, "an answer to no Tombs");
    } else if (msg->err != KVP_OK) {
        s->tombs_from = UINT64_MAX;
        s->tombs_whole = UINT64_MAX;
    } else {
        s->tombs_kept = kvp_max_u64(s->tombs_kept, request);
        know_all(m, s);
    }
    kvp_pb_free(&pb, msg);
}

/* ---- an object goes */
/* One of those that need it less. */
static void
unref(kvp_master_t *m, kvp_digest_t digest)
{
    uint64_t *refs = kvp_digestmap_at(&m->log.tomb_refs, digest);

    if (*refs > 1) {
        --*refs;
        return;
    }
    (void)kvp_digestmap_del(&m->log.tomb_refs, digest);
    (void)kvp_digestmap_del(&m->log.tombs, digest);
    queue(m, digest, 0);
}

/* The answer waits until some node keeps it in mind, where no journal does. */
static void
promise(kvp_master_t *m, kvp_deferred_t *w)
{
    if (w == NULL || kvp_journal_remembers(&m->log)) return;
    w->has_evicted = true;
    kvp_deferred_told(&m->prot, w);
}

/* No version of it up to that one is believed, whoever reports it, to this master or to the next. Where more went than can be
 * remembered, nothing is believed that is reported from now on. */
static void
hold_against(kvp_master_t *m, kvp_digest_t digest, uint64_t version, kvp_deferred_t *w)
{
    bool is_new = kvp_digestmap_at(&m->log.removed, digest) == NULL;

    if (!kvp_tombs_is_rebuilding(&m->log)) return;
    kvp_ctx_spend(&m->ctx, 2 * TOMB_RECORDS);
    if ((is_new && m->log.removed.n == GUESSES_MAX) || !raise_to(&m->log.tombs, digest, version, TOMBS_MAX)) {
        m->log.is_rebuild_over = true;
        kvp_ctx_note(&m->ctx, "too much was removed before all nodes were back: what others hold is given up");
        return;
    }
    (void)raise_to(&m->log.removed, digest, version, GUESSES_MAX);
    if (is_new) ++*insert(&m->log.tomb_refs, digest, TOMBS_MAX);
    if (!KVP_RULE(REMOVAL_OUTLIVES_REPORTS)) return;
    promise(m, w);
    queue(m, digest, version_in(&m->log.tombs, digest));
}

/* Nobody may report any more what was held against it. */
static void
release_held(kvp_master_t *m)
{
    uint32_t looks = LOOKS_A_RECORD * m->ctx.slice_left, start;

    if (m->log.removed.cap == 0 || kvp_tombs_is_rebuilding(&m->log)) return;
    if (m->log.removed_at == 0) m->log.removed_at = kvp_digestmap_end(&m->log.removed);
    start = m->log.removed_at;
    while (m->log.removed_at > 0 && m->ctx.slice_left > 0 && start - m->log.removed_at < looks) {
        const kvp_digestmap_at_t *found = kvp_digestmap_back(&m->log.removed, &m->log.removed_at);
        kvp_digest_t digest;

        if (found == NULL) continue;
        digest = found->digest;
        (void)kvp_digestmap_del(&m->log.removed, digest);
        unref(m, digest);
        kvp_ctx_spend(&m->ctx, 2 * TOMB_RECORDS);
    }
    kvp_ctx_spend(&m->ctx, 1 + (start - m->log.removed_at) / LOOKS_A_RECORD);
    if (m->log.removed.n > 0) return;
    kvp_digestmap_fini(&m->log.removed);
    m->log.removed_at = 0;
}

/* Its node does not answer, and may be back with it. */
static bool
is_away(const kvp_segment_t *g)
{
    return !g->is_dropped && (g->state == KVP_SEG_LOST || g->is_slow);
}

static bool
has_copy_away(const kvp_master_t *m, const kvp_place_t *places, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (is_away(((const kvp_chunk_t *)kvp_ptab_get(&m->cat.chunks, places[i].chunk))->segment)) return true;
    return false;
}

static kvp_digest_t
digest_of(const kvp_master_t *m, const kvp_obj_t *o)
{
    return kvp_obj_digest(m->cat.index, o, m->ctx.conf.digest_seed, kvp_obj_tenant(&m->cat, o)->id);
}

kvp_wire_tomb_t
kvp_tombs_dropped(kvp_interim_t *log, const kvp_obj_t *o, bool is_promised)
{
    kvp_master_t *m = log->core;
    bool is_rebuilding = kvp_tombs_is_rebuilding(log);
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(&m->cat, o, places);
    kvp_wire_tomb_t tomb = {.version = 0};

    if (o->state != KVP_OBJ_COMMITTED && (o->state != KVP_OBJ_WRITING || is_rebuilding)) return tomb;
    if (n == 0 || (!is_rebuilding && !is_promised && !has_copy_away(m, places, n))) return tomb;
    tomb = (kvp_wire_tomb_t){.digest = digest_of(m, o), .version = kvp_obj_version(o)};
    hold_against(m, tomb.digest, tomb.version, NULL);
    return tomb;
}

void
kvp_tombs_lost(kvp_interim_t *log, const kvp_obj_t *o)
{
    kvp_master_t *m = log->core;

    if (kvp_tombs_is_rebuilding(log)) hold_against(m, digest_of(m, o), kvp_obj_version(o) - 1, NULL);
}

void
kvp_tombs_unknown(kvp_interim_t *log, kvp_digest_t digest, uint64_t version, kvp_deferred_t *w)
{
    kvp_master_t *m = log->core;

    hold_against(m, digest, kvp_min_u64(version, kvp_gen_make(m->ctx.term, 0)), w); /* whatever older terms have put */
}

bool
kvp_tombs_tell(kvp_interim_t *log, kvp_retire_t *r)
{
    kvp_master_t *m = log->core;

    if (r->has_tomb) return true;
    kvp_ctx_spend(&m->ctx, TOMB_RECORDS);
    if (!raise_to(&log->tombs, r->tomb.digest, r->tomb.version, TOMBS_MAX)) return false;
    ++*insert(&log->tomb_refs, r->tomb.digest, TOMBS_MAX);
    r->has_tomb = true;
    if (r->deferred != NULL) kvp_deferred_told(&m->prot, r->deferred);
    queue(m, r->tomb.digest, r->tomb.version);
    return true;
}

bool
kvp_tombs_tell_all(kvp_interim_t *log, kvp_deferred_t *w)
{
    while (!kvp_list_is_empty(&w->retires)) {
        kvp_retire_t *r = kvp_list_first(&w->retires, kvp_retire_t, of_deferred);

        if (log->core->ctx.slice_left == 0) return false;
        kvp_list_del(&r->of_deferred);
        w->is_unkept |= !kvp_tombs_tell(log, r);
    }
    return true;
}

void
kvp_tombs_retire(kvp_interim_t *log, kvp_retire_t *r, const kvp_wire_tomb_t *tomb)
{
    bool is_told;

    if (tomb->version == 0) return;
    r->tomb = *tomb;
    is_told = is_away(r->chunk->segment) && kvp_tombs_tell(log, r);
    if (!is_told && r->deferred != NULL) kvp_list_add_tail(&r->deferred->retires, &r->of_deferred);
}

void
kvp_tombs_settled(kvp_interim_t *log, kvp_retire_t *r)
{
    r->has_tomb = false;
    unref(log->core, r->tomb.digest);
}

/* ---- what was evicted: nobody was promised that it is gone before somebody is promised that nothing of its key is older
 * than something. Whose records its extents have is not looked for: the tombstone stays until the count of extents under
 * such keys that are not dead is 0. */
void
kvp_tombs_evicted(kvp_interim_t *log, kvp_digest_t digest, uint64_t version, kvp_deferred_t *w)
{
    kvp_master_t *m = log->core;

    if (w == NULL || kvp_journal_remembers(log) || !kvp_retire_is_readable(&m->space, digest)) return;
    kvp_ctx_spend(&m->ctx, TOMB_RECORDS);
    if (kvp_digestmap_at(&log->evicted, digest) == NULL) {
        if (log->evicted.n >= EVICTED_MAX || !raise_to(&log->tombs, digest, version, TOMBS_MAX)) return;
        *insert(&log->evicted, digest, EVICTED_MAX) = 1;
        ++*insert(&log->tomb_refs, digest, TOMBS_MAX);
    }
    (void)raise_to(&log->tombs, digest, version, TOMBS_MAX);
    promise(m, w);
    queue(m, digest, version_in(&log->tombs, digest));
}

static void
settle_evicted(kvp_master_t *m)
{
    uint32_t looks = LOOKS_A_RECORD * m->ctx.slice_left, start;

    if (m->log.evicted.n == 0) return;
    if (m->log.evicted_at == 0) m->log.evicted_at = kvp_digestmap_end(&m->log.evicted);
    start = m->log.evicted_at;
    while (m->log.evicted_at > 0 && start - m->log.evicted_at < looks) {
        const kvp_digestmap_at_t *found = kvp_digestmap_back(&m->log.evicted, &m->log.evicted_at);
        kvp_digest_t digest;

        if (found == NULL || kvp_retire_is_readable(&m->space, found->digest)) continue;
        digest = found->digest;
        (void)kvp_digestmap_del(&m->log.evicted, digest);
        unref(m, digest);
    }
    kvp_ctx_spend(&m->ctx, 1 + (start - m->log.evicted_at) / LOOKS_A_RECORD);
}

/* ---- bumps: a tombstone for all keys of a tenant, which every node keeps as long as the tenant is not forgotten */
bool
kvp_tombs_bumped(kvp_interim_t *log, const kvp_tenant_t *t)
{
    kvp_master_t *m = log->core;
    kvp_digest_t digest = kvp_wire_tomb_tenant(t->id);

    if (!raise_to(&log->tombs, digest, t->min_version, TOMBS_MAX + TENANT_TOMBS)) return false;
    queue(m, digest, t->min_version);
    return true;
}

/* Bumps of a tenant that owns nothing are forgotten where a tombstone for all of these is kept instead: memory that was last mounted
 * before the term of one that forgot may hold what it took away. In that term all that is there was mounted, or is not let in. */
static bool
forgot(kvp_master_t *m, uint32_t term)
{
    kvp_wire_tomb_t tomb = {.digest = kvp_wire_tomb_forgotten(), .version = kvp_gen_make(term, 0)};

    if (term <= m->log.forgotten_term) return true;
    if (!raise_to(&m->log.tombs, tomb.digest, tomb.version, TOMBS_MAX + TENANT_TOMBS)) return false;
    queue(m, tomb.digest, tomb.version);
    m->log.forgotten_term = term;
    return true;
}

void
kvp_tombs_bump_forgotten(kvp_interim_t *log, kvp_tenant_t *t)
{
    kvp_master_t *m = log->core;
    kvp_digest_t digest = kvp_wire_tomb_tenant(t->id);

    (void)kvp_digestmap_del(&log->tombs, digest);
    queue(m, digest, 0);
    kvp_tenant_forget_bumps(&m->cat, t);
}

/* Nothing lies where this master does not see it, but in memory of older terms. */
static bool
is_all_seen(const kvp_master_t *m)
{
    return m->cat.lost_n == 0 && m->dropping == 0 && !kvp_tombs_is_rebuilding(&m->log) && m->reports == 0;
}

static void
forget_tenants(kvp_master_t *m)
{
    uint32_t looks = (uint32_t)kvp_min_u64(m->cat.tenants.limit, TENANT_LOOKS);

    if (m->cat.tenants_used == m->cat.tenants.n || !is_all_seen(m) || m->ctx.slice_left == 0) return;
    for (uint32_t i = 0; i < looks; i++) {
        kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, m->log.tenants_at++ % m->cat.tenants.limit);

        if (t == NULL || !kvp_tenant_is_forgettable(&m->cat, t)) continue;
        if (t->min_version == 0) {
            kvp_tenant_prune(&m->cat, t);
        } else if (forgot(m, m->ctx.term)) {
            kvp_journal_bump_forgotten(&m->log, t);
            kvp_tombs_bump_forgotten(&m->log, t);
        }
    }
    kvp_ctx_spend(&m->ctx, 1 + looks / LOOKS_A_RECORD);
}

static void
learn_bump(kvp_master_t *m, const kvp_wire_tomb_t *tomb)
{
    kvp_tenant_t *t;

    if (tomb->digest.lo == kvp_wire_tomb_forgotten().lo && forgot(m, (uint32_t)(tomb->version >> KVP_GEN_SEQ_BITS)))
        kvp_give_up_older(m, m->log.forgotten_term);
    if (tomb->digest.lo > UINT32_MAX || !kvp_tenant_may_open(&m->cat, (uint32_t)tomb->digest.lo)) return;
    t = kvp_tenant_open(&m->cat, (uint32_t)tomb->digest.lo);
    if (t->epoch == 0) t->epoch = 1; /* how many they were is not known: that there was one is */
    if (tomb->version > t->min_version && kvp_tenant_may_bump(&m->cat, t)) {
        kvp_tenant_bumped(&m->cat, t, tomb->version);
        (void)kvp_tombs_bumped(&m->log, t);
        kvp_journal_bumped(&m->log, t);
        kvp_bump_sweep(m, t);
    }
    kvp_tenant_rele(&m->cat, t);
}

/* ---- what a node kept for a master that is gone. Whose memory it was meant for is not known, so it is never settled: the
 * reference is nobody's. */
void
kvp_tombs_learn(kvp_interim_t *log, const kvp_wire_tomb_t *tomb)
{
    kvp_master_t *m = log->core;
    uint32_t oid;

    if (tomb->version >= kvp_gen_make(m->ctx.term, 0)) return; /* no older term can have said so */
    if (tomb->digest.hi == kvp_wire_tomb_tenant(0).hi) {
        learn_bump(m, tomb);
        return;
    }
    if (raise_to(&log->tombs, tomb->digest, tomb->version, TOMBS_MAX))
        ++*insert(&log->tomb_refs, tomb->digest, TOMBS_MAX);
    oid = kvp_objindex_find(m->cat.index, tomb->digest);
    if (oid == KVP_OID_NONE || kvp_obj(m->cat.index, oid)->state != KVP_OBJ_COMMITTED) return;
    if (kvp_obj_version(kvp_obj(m->cat.index, oid)) > tomb->version) return;
    (void)kvp_revoke(kvp_obj_tenant(&m->cat, kvp_obj(m->cat.index, oid)), tomb->digest);
    kvp_obj_drop(&m->space, oid, KVP_GONE_REMOVED, 0, NULL);
}

static bool
is_any_away(const kvp_master_t *m)
{
    kvp_list_foreach (pos, &m->cat.segments)
        if (is_away(kvp_list_entry(pos, kvp_segment_t, link))) return true;
    return false;
}

/* The maps that are not needed go back to the system; not between two bursts of removals, each of which would touch all of
 * their pages anew, nor while they are made ready for what may be removed from a node that is away. */
static void
let_go_idle(kvp_master_t *m)
{
    bool is_idle =
        m->log.tombs.n == 0 && m->log.evicted.n == 0 && !m->log.is_touching && kvp_list_is_empty(&m->log.greeting);

    if (!is_idle || m->log.tombs.cap + m->log.evicted.cap == 0) {
        m->log.tombs_idle_ns = 0;
        return;
    }
    if (m->log.tombs_idle_ns == 0) m->log.tombs_idle_ns = m->ctx.now_ns;
    if (m->ctx.now_ns - m->log.tombs_idle_ns < IDLE_NS) return;
    m->log.tombs_idle_ns = 0;
    if (is_any_away(m)) return;
    kvp_digestmap_fini(&m->log.tombs);
    kvp_digestmap_fini(&m->log.tomb_refs);
    kvp_digestmap_fini(&m->log.evicted);
    m->log.tombs_touched = m->log.evicted_at = 0;
}

void
kvp_tombs_tick(kvp_interim_t *log)
{
    kvp_master_t *m = log->core;

    let_go_idle(m);
}

void
kvp_tombs_some(kvp_interim_t *log)
{
    kvp_master_t *m = log->core;

    touch_some(m);
    settle_evicted(m);
    release_held(m);
    forget_tenants(m);
    greet_some(m);
}

uint64_t
kvp_tombs_memory_bytes(const kvp_interim_t *log)
{
    uint64_t places = (uint64_t)log->tombs.cap + log->tomb_refs.cap + log->evicted.cap + log->removed.cap;

    return places * sizeof(kvp_digestmap_at_t);
}

void
kvp_tombs_fini(kvp_interim_t *log)
{
    kvp_digestmap_fini(&log->tombs);
    kvp_digestmap_fini(&log->tomb_refs);
    kvp_digestmap_fini(&log->evicted);
    kvp_digestmap_fini(&log->removed);
    kvp_buf_fini(&log->tomb_news);
}
