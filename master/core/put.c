/* SPDX-License-Identifier: Apache-2.0
 * Puts: begin (an attempt gets an extent, at once or after room was made), commit, abort.
 *
 * A PutBegin is answered once, when every key of it is decided. Keys that found no free extent wait: each claims a
 * window of extents that are being retired, and gets its place when the last of them is free. Only the writer's
 * transfers come between begin and commit; if the writer goes, its keys are free at once and its extents are retired
 * with it as owner, so the node proves that it cannot store any more.
 */
#include "master/core/internal.h"

#include <stdio.h>
#include <stdlib.h>

#define RETRY_MS 10u /* a client that was refused may come back after that, */
#define RETRY_GRANTED_MS 1u /* and one that was granted a part, when it has committed that */
#define MOUNT_WAIT_NS KVP_MS(10000) /* after a master's start, nodes are expected for so long */
#define RETRY_LOOK_MAX 4096u /* keys that one retry looks at */

/* ---- attempts */
static kvp_attempt_t *
attempt_find(kvp_master_t *m, const kvp_session_t *s, uint64_t id)
{
    uint32_t number;

    return kvp_umap_get(&s->attempt_ids, id, &number) ? kvp_ptab_get(&m->attempts, number) : NULL;
}

static kvp_attempt_t *
attempt_open(kvp_master_t *m, kvp_pend_t *p, uint32_t at, const kvp_wire_put_t *put, uint32_t oid)
{
    kvp_attempt_t *a = kvp_core_alloc(1, sizeof *a);

    a->session = p->session;
    a->tenant = p->session->tenant;
    a->epoch = p->epoch;
    a->id = put->attempt;
    a->oid = oid;
    a->bytes = put->len;
    a->pend = p;
    a->at = at;
    a->number = kvp_ptab_add(&m->attempts, a);
    kvp_obj(m->index, oid)->attempt = a->number;
    kvp_umap_set(&a->session->attempt_ids, a->id, a->number);
    kvp_list_add_tail(&a->session->attempts, &a->link);
    kvp_list_add_tail(&p->attempts, &a->of_pend);
    a->session->attempt_bytes += a->bytes;
    m->st.attempts++;
    return a;
}

static void
attempt_disown(kvp_attempt_t *a)
{
    kvp_list_del(&a->link);
    if (a->session == NULL) return;
    a->session->attempt_bytes -= a->bytes;
    kvp_umap_del(&a->session->attempt_ids, a->id);
    a->session = NULL;
}

/* Ends the attempt; the object stays as it is. */
static void
attempt_close(kvp_master_t *m, kvp_attempt_t *a)
{
    kvp_obj(m->index, a->oid)->attempt = KVP_NONE;
    attempt_disown(a);
    kvp_ptab_del(&m->attempts, a->number);
    kvp_list_del(&a->of_pend);
    m->st.attempts--;
    free(a);
}

/* Ends the wait of a key; what becomes of its attempt is the caller's. */
static void
pkey_close(kvp_master_t *m, kvp_pkey_t *k)
{
    kvp_retire_unclaim(m, k);
    k->attempt->pkey = NULL;
    kvp_list_del(&k->link);
    kvp_list_del(&k->of_pend);
    k->pend->left--;
    m->st.pending_puts--;
    free(k);
}

/* A message that is not answered yet says err for this key. The caller answers it when nothing is left in it. */
static void
attempt_refuse(kvp_attempt_t *a, kvp_err_t err)
{
    kvp_wire_obj_t *obj;

    if (a->pend == NULL) return;
    obj = &a->pend->objs[a->at];
    a->pend->grants -= obj->nloc;
    *obj = (kvp_wire_obj_t){.err = err};
}

/* Who may still be storing to the attempt's place. A writer that was not told of it is not. */
static uint64_t
attempt_owner(const kvp_attempt_t *a, bool is_drained)
{
    if (a->session == NULL) return a->owner;
    return is_drained || a->pend != NULL ? 0 : a->session->incarnation;
}

static void
attempt_abort(kvp_master_t *m, kvp_attempt_t *a, bool is_drained, kvp_err_t err)
{
    uint64_t owner = attempt_owner(a, is_drained);
    uint32_t oid = a->oid;

    attempt_refuse(a, err);
    if (a->pkey != NULL) pkey_close(m, a->pkey);
    attempt_close(m, a);
    (void)kvp_obj_drop(m, oid, owner, NULL);
    m->st.aborts++;
}

void
kvp_attempt_lost(kvp_master_t *m, uint32_t oid)
{
    kvp_attempt_t *a = kvp_ptab_get(&m->attempts, kvp_obj(m->index, oid)->attempt);

    attempt_refuse(a, KVP_RETRY_AFTER); /* the writer never heard of this place */
    attempt_close(m, a);
    m->st.aborts++;
    kvp_retire_forget(m, kvp_obj_drop(m, oid, 0, NULL));
}

/* ---- why there is no room */
/* A segment may be mounted soon, or again. */
static bool
may_nodes_come(const kvp_master_t *m)
{
    if (m->segment_seq == 0) return m->now_ns - m->started_ns < MOUNT_WAIT_NS + m->stall_ns;
    kvp_list_foreach (pos, &m->segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if (g->state == KVP_SEG_LOST && !g->is_dropped) return true;
    }
    return false;
}

/* Something will become free or evictable without anybody's removing it. */
static bool
is_space_coming(const kvp_master_t *m)
{
    return m->st.retiring_bytes > 0 || m->st.attempts > m->st.pending_puts ||
           m->st.held_bytes + m->st.reserved_bytes > 0 || may_nodes_come(m);
}

/* All that may be evicted was looked at, and nothing has changed since. */
static kvp_err_t
pkey_refusal(const kvp_master_t *m, const kvp_pkey_t *k)
{
    bool is_sure = k->is_scanned && k->scan_news == m->space_news;

    return is_sure && !is_space_coming(m) ? KVP_NO_SPACE : KVP_RETRY_AFTER;
}

static char *
explain(const kvp_master_t *m, char *buf, size_t len)
{
    if (m->up_n == 0)
        snprintf(buf, len, "no segment takes puts");
    else
        snprintf(buf, len, "of %llu bytes, %llu are used and none of them can be evicted for this",
                 (unsigned long long)m->st.size_bytes, (unsigned long long)m->st.used_bytes);
    return buf;
}

static void
count_refusal(kvp_master_t *m, kvp_err_t err)
{
    if (err == KVP_NO_SPACE)
        m->st.put_no_space++;
    else
        m->st.put_retry_after++;
}

/* ---- messages that wait */
static void
pend_free(kvp_pend_t *p)
{
    kvp_list_foreach_safe (pos, tmp, &p->attempts) {
        kvp_list_entry(pos, kvp_attempt_t, of_pend)->pend = NULL;
        kvp_list_del(pos);
    }
    kvp_list_del(&p->link);
    kvp_list_del(&p->due);
    free(p->objs);
    free(p->locs);
    free(p);
}

static void
pend_answer(kvp_master_t *m, kvp_pend_t *p)
{
    Kvp__Pb__Places msg = KVP__PB__PLACES__INIT;
    kvp_buf_t *out;
    char why[160];
    size_t at;

    msg.n = p->n;
    msg.ns_epoch = p->epoch;
    for (uint32_t i = 0; i < p->n; i++) {
        msg.nloc += p->objs[i].nloc;
        if (p->objs[i].err == KVP_RETRY_AFTER) msg.retry_ms = p->grants > 0 ? RETRY_GRANTED_MS : RETRY_MS;
        if (p->objs[i].err == KVP_NO_SPACE) msg.detail = explain(m, why, sizeof why);
    }
    out = kvp_reply_begin(m, p->session, &p->ask, &msg.base, &at);
    kvp_buf_append(out, p->objs, p->n * sizeof *p->objs);
    for (uint32_t i = 0; i < p->n; i++)
        if (p->objs[i].nloc > 0) kvp_buf_append(out, &p->locs[i], sizeof *p->locs);
    kvp_frame_end(out, at);
    pend_free(p);
}

static void
pend_place(kvp_master_t *m, kvp_pend_t *p, uint32_t at, uint32_t oid)
{
    kvp_obj_wire(m, kvp_obj(m->index, oid), &p->objs[at], &p->locs[at]);
    p->grants++;
}

static void
pkey_done(kvp_master_t *m, kvp_pkey_t *k)
{
    kvp_pend_t *p = k->pend;

    pend_place(m, p, k->attempt->at, k->oid);
    pkey_close(m, k);
    if (p->left == 0) pend_answer(m, p);
}

static void
pkey_refuse(kvp_master_t *m, kvp_pkey_t *k, kvp_err_t err)
{
    count_refusal(m, err);
    attempt_abort(m, k->attempt, true, err);
}

/* Refuses every key of the message that waits, which answers it. */
static void
pend_refuse(kvp_master_t *m, kvp_pend_t *p)
{
    for (uint32_t n = p->left; n > 0; n--) {
        kvp_pkey_t *k = kvp_list_first(&p->keys, kvp_pkey_t, of_pend);

        pkey_refuse(m, k, pkey_refusal(m, k));
    }
    pend_answer(m, p);
}

/* Looks for a place, then for a window. Errors are kvp_evict_for's; then the key stays on the waiting list. */
static kvp_err_t
pkey_try(kvp_master_t *m, kvp_pkey_t *k)
{
    kvp_err_t err = kvp_place_alloc(m, k->oid);

    if (err == KVP_OK) {
        pkey_done(m, k);
        return KVP_OK;
    }
    err = kvp_evict_for(m, k);
    if (err == KVP_OK) kvp_list_del(&k->link);
    return err;
}

void
kvp_pkey_window_free(kvp_master_t *m, kvp_pkey_t *k)
{
    kvp_chunk_t *c = k->chunk;

    kvp_retire_unclaim(m, k);
    if (kvp_place_alloc_in(m, c, k->oid) == KVP_OK)
        pkey_done(m, k);
    else
        kvp_pkey_restart(m, k);
}

void
kvp_pkey_restart(kvp_master_t *m, kvp_pkey_t *k)
{
    kvp_retire_unclaim(m, k);
    kvp_list_del(&k->link);
    kvp_list_add_head(&m->waiting, &k->link);
    kvp_master_space_news(m);
}

void
kvp_put_leave_segment(kvp_master_t *m, kvp_segment_t *g)
{
    while (!kvp_list_is_empty(&g->claims))
        kvp_pkey_restart(m, kvp_list_first(&g->claims, kvp_pkey_t, of_segment));
}

/* A message that was granted something and cannot get the rest for now is answered: what its writer commits can be
 * evicted, and while it is held back everybody may be waiting for everybody. */
static bool
pend_cut(kvp_master_t *m, kvp_pend_t *p)
{
    if (p->grants == 0 || p->claims > 0) return false;
    pend_refuse(m, p);
    return true;
}

/* The shortest lengths for which a retry found no room: for keys that lie in their cell, and for long ones. */
typedef struct {
    uint64_t any, long_key;
    bool is_final; /* and none will come */
} failed_t;

static bool
has_failed(const failed_t *failed, uint64_t len, bool is_long_key)
{
    return len >= failed->any || (is_long_key && len >= failed->long_key);
}

static void
refuse_one(kvp_master_t *m, kvp_pkey_t *k)
{
    kvp_pend_t *p = k->pend;

    pkey_refuse(m, k, KVP_NO_SPACE);
    if (p->left == 0) pend_answer(m, p);
}

/* In the order of arrival. A key that cannot be served stays, and then nothing of its length or longer is tried behind
 * it: shorter ones may still find a place. Returns false where it stopped at a message that was cut: the list changed. */
static bool
retry_pass(kvp_master_t *m, failed_t *failed)
{
    uint32_t looked = 0;

    kvp_list_foreach_safe (pos, tmp, &m->waiting) {
        kvp_pkey_t *k = kvp_list_entry(pos, kvp_pkey_t, link);
        uint64_t len = k->attempt->bytes;
        bool is_long_key = kvp_obj_key_len(m->index, kvp_obj(m->index, k->oid)) > KVP_KEY_CELL_BYTES;
        kvp_err_t err;

        if (looked++ == RETRY_LOOK_MAX) return true;
        if (has_failed(failed, len, is_long_key)) {
            if (failed->is_final) refuse_one(m, k);
            continue;
        }
        err = pkey_try(m, k);
        if (err == KVP_OK) continue;
        if (err == KVP_EAGAIN) m->has_space_news = true; /* its search goes on with the next step */
        if (is_long_key)
            failed->long_key = len; /* it may be the key that found no room */
        else
            failed->any = len;
        failed->is_final = err == KVP_NO_SPACE && pkey_refusal(m, k) == KVP_NO_SPACE;
        if (err != KVP_NO_SPACE) continue;
        if (pend_cut(m, k->pend)) return false;
        if (failed->is_final) refuse_one(m, k);
    }
    return true;
}

void
kvp_put_retry_waiting(kvp_master_t *m)
{
    failed_t failed = {UINT64_MAX, UINT64_MAX, false};

    while (!retry_pass(m, &failed))
        continue;
}

void
kvp_put_tick(kvp_master_t *m)
{
    uint64_t now_tick = m->now_ns / KVP_TICK_NS;

    /* A wait is shorter than the wheel, so each list is looked at once however late it is. */
    if (now_tick - m->put_tick > KVP_PUT_WHEEL) m->put_tick = now_tick - KVP_PUT_WHEEL;
    while (m->put_tick < now_tick) {
        kvp_list_t *list = &m->pends[++m->put_tick % KVP_PUT_WHEEL];

        kvp_list_foreach_safe (pos, tmp, list) {
            kvp_pend_t *p = kvp_list_entry(pos, kvp_pend_t, due);

            if (p->due_ns <= m->now_ns) pend_refuse(m, p);
        }
    }
}

/* ---- begin */
static kvp_err_t
check_put(const kvp_master_t *m, uint32_t tenant, const kvp_wire_put_t *put, const uint8_t *keys, size_t keys_len)
{
    if (put->key_len == 0 || put->key_len > KVP_KEY_MAX) return KVP_BAD_KEY;
    if (put->key_at > keys_len || put->key_len > keys_len - put->key_at) return KVP_INVALID;
    if (put->len == 0 || put->attempt == 0) return KVP_INVALID;
    if (!kvp_digest_eq(put->digest, kvp_key_digest(m->conf.digest_seed, tenant, keys + put->key_at, put->key_len)))
        return KVP_INVALID;
    return KVP_OK;
}

/* What stands in the way of a new attempt under this digest, or OK. */
static kvp_err_t
check_present(kvp_master_t *m, uint32_t oid, const uint8_t *key, uint32_t key_len)
{
    kvp_obj_t *o;

    if (oid == KVP_OID_NONE) return KVP_OK;
    o = kvp_obj(m->index, oid);
    if (!kvp_obj_has_key(m->index, o, key, key_len)) {
        m->st.put_collisions++;
        return KVP_COLLISION;
    }
    if (o->state == KVP_OBJ_WRITING) {
        kvp_attempt_t *a = kvp_ptab_get(&m->attempts, o->attempt);

        if (a->session == NULL) { /* its writer is gone, and only its turn has not come */
            attempt_abort(m, a, false, KVP_ABORTED);
            return KVP_OK;
        }
        m->st.put_in_progress++;
        return KVP_IN_PROGRESS;
    }
    if (!kvp_obj_is_served(m, o)) { /* its node is away: a fresh copy is better than waiting for the old one */
        (void)kvp_obj_drop(m, oid, 0, NULL);
        return KVP_OK;
    }
    if (o->tickets == 0) kvp_victim_used(m, oid);
    m->st.put_already++;
    return KVP_ALREADY;
}

static bool
is_over_limit(const kvp_session_t *s, uint64_t len)
{
    return s->attempt_ids.n >= KVP_ATTEMPTS_MAX || s->attempt_bytes + s->quarantine_bytes > KVP_ATTEMPT_BYTES_MAX ||
           len > KVP_ATTEMPT_BYTES_MAX - s->attempt_bytes - s->quarantine_bytes;
}

static void
pkey_open(kvp_master_t *m, kvp_attempt_t *a)
{
    kvp_pkey_t *k = kvp_core_alloc(1, sizeof *k);

    k->pend = a->pend;
    k->attempt = a;
    k->oid = a->oid;
    k->scan_slot = KVP_SLAB_NONE;
    kvp_list_init(&k->claimed);
    kvp_list_init(&k->of_segment);
    kvp_list_add_tail(&m->waiting, &k->link);
    kvp_list_add_tail(&k->pend->keys, &k->of_pend);
    k->pend->left++;
    a->pkey = k;
    m->st.pending_puts++;
}

static kvp_err_t
begin_one(kvp_master_t *m, kvp_pend_t *p, uint32_t at, const kvp_wire_put_t *put, const uint8_t *keys, size_t keys_len)
{
    kvp_session_t *s = p->session;
    kvp_attempt_t *a;
    kvp_err_t err;
    uint32_t oid;

    err = check_put(m, s->tenant->id, put, keys, keys_len);
    if (err != KVP_OK) return err;
    err = check_present(m, kvp_objindex_find(m->index, put->digest), keys + put->key_at, put->key_len);
    if (err != KVP_OK) return err;
    if (put->len > m->up_longest) {
        err = may_nodes_come(m) ? KVP_RETRY_AFTER : m->up_n == 0 ? KVP_NO_SPACE : KVP_TOO_LARGE;
        if (err != KVP_TOO_LARGE) count_refusal(m, err);
        return err;
    }
    if (attempt_find(m, s, put->attempt) != NULL) return KVP_INVALID;
    if (kvp_recent_find(&s->recent, put->attempt) != KVP_RECENT_UNKNOWN) return KVP_INVALID;
    if (is_over_limit(s, put->len)) return KVP_LIMIT;

    oid = kvp_objindex_make(m->index, put->digest, keys + put->key_at, (uint16_t)put->key_len);
    kvp_objindex_link(m->index, oid, put->digest);
    a = attempt_open(m, p, at, put, oid);
    /* Nobody overtakes a put that waits. */
    if (kvp_list_is_empty(&m->waiting) && kvp_place_alloc(m, oid) == KVP_OK)
        pend_place(m, p, at, oid);
    else
        pkey_open(m, a);
    return KVP_OK;
}

static kvp_pend_t *
pend_open(kvp_master_t *m, kvp_session_t *s, const kvp_frame_hdr_t *ask, const Kvp__Pb__PutBegin *msg)
{
    kvp_pend_t *p = kvp_core_alloc(1, sizeof *p);
    uint64_t wait_ms = msg->wait_ms == 0 ? KVP_PUT_WAIT_MS : kvp_min_u64(msg->wait_ms, KVP_PUT_WAIT_MAX_MS);

    p->session = s;
    p->ask = *ask;
    p->due_ns = m->now_ns + KVP_MS(wait_ms);
    p->n = msg->n;
    p->objs = kvp_core_alloc(msg->n, sizeof *p->objs);
    p->locs = kvp_core_alloc(msg->n, sizeof *p->locs);
    p->epoch = s->tenant->epoch;
    kvp_list_init(&p->attempts);
    kvp_list_init(&p->keys);
    kvp_list_add_tail(&s->pends, &p->link);
    kvp_list_add_tail(&m->pends[(p->due_ns + KVP_TICK_NS - 1) / KVP_TICK_NS % KVP_PUT_WHEEL], &p->due);
    return p;
}

static bool
wants_more(const Kvp__Pb__PutBegin *msg)
{
    return msg->replicas > 1 || msg->is_upsert || msg->pin != KVP_PIN_NONE || msg->has_groups;
}

void
kvp_on_put_begin(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    const kvp_wire_put_t *puts = NULL;
    Kvp__Pb__PutBegin *msg;
    kvp_pend_t *p;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__put_begin__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n > 0 && msg->n <= KVP_BATCH_MAX) puts = kvp_rd_array(&rd, msg->n, sizeof *puts);
    if (puts == NULL) {
        kvp_session_close(m, s, "malformed PutBegin");
        kvp_pb_free(&pb, msg);
        return;
    }
    m->st.put_begins += msg->n;
    if (wants_more(msg)) {
        kvp_reply_plain(m, s, &f->hdr, KVP_NOTSUP, "copies, upserts, pins and groups are not built yet");
        kvp_pb_free(&pb, msg);
        return;
    }
    p = pend_open(m, s, &f->hdr, msg);
    for (uint32_t i = 0; i < msg->n; i++) {
        kvp_err_t err = begin_one(m, p, i, &puts[i], rd.at, rd.left);

        if (err != KVP_OK) p->objs[i] = (kvp_wire_obj_t){.err = err};
    }
    if (p->left == 0)
        pend_answer(m, p);
    else
        m->has_space_news = true; /* who waits is tried for when the input is done */
    kvp_pb_free(&pb, msg);
}

/* ---- commit and abort */
static kvp_err_t
commit_one(kvp_master_t *m, kvp_session_t *s, const kvp_wire_commit_t *commit)
{
    kvp_attempt_t *a = attempt_find(m, s, commit->attempt);
    kvp_obj_t *o;
    uint32_t oid;

    if (a == NULL) return kvp_recent_find(&s->recent, commit->attempt) == KVP_RECENT_COMMITTED ? KVP_OK : KVP_ABORTED;
    if (a->pend != NULL) return KVP_INVALID; /* its PutBegin is not answered yet */
    oid = a->oid;
    if (kvp_obj_chunk(m, kvp_obj(m->index, oid))->segment->is_dropped || a->epoch != a->tenant->epoch) {
        attempt_abort(m, a, true, KVP_ABORTED);
        return KVP_ABORTED;
    }
    kvp_recent_add(&s->recent, a->id, KVP_RECENT_COMMITTED);
    attempt_close(m, a);
    o = kvp_obj(m->index, oid);
    o->state = KVP_OBJ_COMMITTED;
    o->sum = commit->sum;
    kvp_victim_used(m, oid);
    m->st.objects++;
    kvp_obj_tenant(m, o)->objects++;
    m->st.commits++;
    return KVP_OK;
}

static void
answer_results(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f, const int32_t *results, uint32_t n)
{
    Kvp__Pb__Reply reply = KVP__PB__REPLY__INIT;
    kvp_buf_t *out;
    size_t at;

    reply.n = n;
    out = kvp_reply_begin(m, s, &f->hdr, &reply.base, &at);
    kvp_buf_append(out, results, n * sizeof *results);
    kvp_frame_end(out, at);
}

void
kvp_on_put_commit(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    const kvp_wire_commit_t *commits = NULL;
    int32_t results[KVP_BATCH_MAX];
    Kvp__Pb__PutCommit *msg;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__put_commit__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n <= KVP_BATCH_MAX) commits = kvp_rd_array(&rd, msg->n, sizeof *commits);
    if (commits == NULL) {
        kvp_session_close(m, s, "malformed PutCommit");
        kvp_pb_free(&pb, msg);
        return;
    }
    for (uint32_t i = 0; i < msg->n; i++)
        results[i] = commit_one(m, s, &commits[i]);
    answer_results(m, s, f, results, msg->n);
    kvp_master_space_news(m); /* what is committed can be evicted */
    kvp_pb_free(&pb, msg);
}

static kvp_err_t
abort_one(kvp_master_t *m, kvp_session_t *s, uint64_t id, bool is_drained)
{
    kvp_attempt_t *a = attempt_find(m, s, id);
    kvp_pend_t *p;

    if (a == NULL) {
        switch (kvp_recent_find(&s->recent, id)) {
        case KVP_RECENT_COMMITTED:
            return KVP_ALREADY;
        case KVP_RECENT_ABORTED:
            return KVP_OK;
        default:
            return KVP_ABORTED;
        }
    }
    p = a->pend;
    kvp_recent_add(&s->recent, id, KVP_RECENT_ABORTED);
    attempt_abort(m, a, is_drained, KVP_ABORTED);
    if (p != NULL && p->left == 0) pend_answer(m, p);
    return KVP_OK;
}

void
kvp_on_put_abort(kvp_master_t *m, kvp_session_t *s, const kvp_frame_t *f)
{
    int32_t results[KVP_BATCH_MAX];
    const uint64_t *ids = NULL;
    Kvp__Pb__PutAbort *msg;
    kvp_rd_t rd;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__put_abort__descriptor, f);
    kvp_rd_init(&rd, f->tail, f->tail_len);
    if (msg != NULL && msg->n <= KVP_BATCH_MAX) ids = kvp_rd_array(&rd, msg->n, sizeof *ids);
    if (ids == NULL) {
        kvp_session_close(m, s, "malformed PutAbort");
        kvp_pb_free(&pb, msg);
        return;
    }
    for (uint32_t i = 0; i < msg->n; i++)
        results[i] = abort_one(m, s, ids[i], msg->is_drained);
    answer_results(m, s, f, results, msg->n);
    kvp_pb_free(&pb, msg);
}

void
kvp_attempt_abort_all(kvp_master_t *m, kvp_session_t *s)
{
    uint32_t n = 0;

    while (!kvp_list_is_empty(&s->attempts)) {
        kvp_attempt_t *a = kvp_list_first(&s->attempts, kvp_attempt_t, link);

        if (n++ < KVP_SLICE || a->pend != NULL) {
            attempt_abort(m, a, s->is_drained, KVP_ABORTED);
            continue;
        }
        a->owner = attempt_owner(a, s->is_drained);
        attempt_disown(a);
        kvp_list_add_tail(&m->orphans, &a->link);
    }
    while (!kvp_list_is_empty(&s->pends))
        pend_free(kvp_list_first(&s->pends, kvp_pend_t, link));
}

void
kvp_attempt_abort_some(kvp_master_t *m)
{
    for (uint32_t n = 0; n < KVP_SLICE && !kvp_list_is_empty(&m->orphans); n++)
        attempt_abort(m, kvp_list_first(&m->orphans, kvp_attempt_t, link), false, KVP_ABORTED);
}
