/* SPDX-License-Identifier: Apache-2.0
 * The queue of puts that wait for space. A PutBegin message is answered once, when each of its keys has a place or is
 * refused. A copy that found no free extent waits in the order of arrival, claims a window of extents that are being
 * retired, and gets its place when all are free. Copies of an object wait separately; a put needs only one of them. */
#include "master/core/put/queue.h"

#include "common/buf.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/slab.h"
#include "master/core/base/ctx.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/catalog/tenant.h"
#include "master/core/put/attempt.h"
#include "master/core/put/puts.h"
#include "master/core/session/session.h"
#include "master/core/session/takeover.h"
#include "master/core/space/place.h"
#include "master/core/space/retire.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/wire.h"

#include <stdio.h>
#include <stdlib.h>

#define RETRY_MS 10u /* retry_ms of an answer with RETRY_AFTER and no place */
/* retry_ms of an answer with places for other keys: the client retries after it has committed these */
#define RETRY_GRANTED_MS 1u
#define MOUNT_WAIT_NS KVP_MS(10000) /* nodes are expected for this time after a master's start */

/* ---- reasons for a lack of space */
bool
kvp_put_may_nodes_come(const kvp_puts_t *pq)
{
    if (pq->cat->segment_seq == 0)
        return pq->ctx->now_ns - pq->started_ns < MOUNT_WAIT_NS + pq->ctx->stall_ns ||
               pq->ctx->now_ns < pq->peers->rebuild_until_ns;
    kvp_list_foreach (pos, &pq->cat->segments) {
        const kvp_segment_t *g = kvp_list_entry(pos, kvp_segment_t, link);

        if ((g->state == KVP_SEG_LOST || g->report != NULL) && g->life != KVP_SEGMENT_DROPPED) return true;
    }
    return false;
}

/* Returns true if puts skip a segment because its node does not answer, or because the node's latest answer was not
 * noticed yet. */
static bool
is_some_passed_over(const kvp_puts_t *pq)
{
    return pq->cat->slow_n > 0 && pq->cat->slow_n < pq->cat->up_n;
}

/* Returns true if space will become free or evictable without a client's removal of objects. */
static bool
is_space_coming(const kvp_puts_t *pq)
{
    if (!KVP_RULE(SPACE_COMES)) return false;
    if (pq->claims > 0) return true; /* new objects in the claimed windows can be evicted later */
    /* after a fail-over, objects whose tickets no client restores become evictable */
    if (kvp_takeover_may_tickets_come(pq->peers)) return true;
    /* a chunk that one tenant takes from another will become empty, or open to puts again */
    if (!kvp_list_is_empty(&pq->cat->taking)) return true;
    return pq->ctx->st.retiring_bytes > 0 || pq->space->writing_bytes > 0 ||
           pq->ctx->st.attempts > pq->waiting_attempts || pq->ctx->st.held_bytes + pq->ctx->st.reserved_bytes > 0 ||
           is_some_passed_over(pq) || kvp_put_may_nodes_come(pq);
}

/* Returns the error for a key without space: NO_SPACE if everything evictable was searched, nothing has changed
 * since, and no space will come; else RETRY_AFTER. */
kvp_err_t
kvp_put_key_refusal(const kvp_puts_t *pq, const kvp_put_key_t *k)
{
    bool is_sure = k->is_scanned && k->scan_news == pq->ctx->space_news;

    return is_sure && !is_space_coming(pq) ? KVP_NO_SPACE : KVP_RETRY_AFTER;
}

/* Writes the cause of a NO_SPACE error into buf, for the answer. */
static void
explain_drains(const kvp_puts_t *pq, char *buf, size_t len)
{
    snprintf(buf, len, "no node takes puts: %lu nodes are draining, %lu nodes and SSDs are away",
             (unsigned long)pq->space->drains_n, (unsigned long)pq->cat->lost_n);
}

static char *
explain_full(const kvp_puts_t *pq, const kvp_session_t *s, char *buf, size_t len)
{
    uint64_t used = pq->ctx->st.used_bytes;

    if (pq->cat->up_n == 0 && pq->space->drains_n > 0)
        explain_drains(pq, buf, len);
    else if (pq->cat->up_n == 0)
        snprintf(buf, len, "no node offers memory that takes puts");
    else if (s->use == KVP_USE_PROBE)
        snprintf(buf, len, "no memory is free there for the tenant, and a probe evicts nothing");
    else
        snprintf(buf, len,
                 "of %llu bytes, %llu are used, %llu of these pinned hard and %llu in chunks of other tenants; nothing "
                 "can be evicted for this",
                 (unsigned long long)pq->ctx->st.size_bytes, (unsigned long long)used,
                 (unsigned long long)pq->ctx->st.hard_pinned_bytes,
                 (unsigned long long)(used - kvp_min_u64(used, s->tenant->used_bytes)));
    return buf;
}

static char *
explain_wait(const kvp_puts_t *pq, char *buf, size_t len)
{
    if (pq->cat->up_n == 0 && pq->space->drains_n > 0)
        explain_drains(pq, buf, len);
    else if (pq->cat->up_n == 0 && pq->cat->lost_n == 0)
        snprintf(buf, len, "no node has offered memory yet, and some may be on their way");
    else
        snprintf(buf, len,
                 "%llu bytes are held by readers, %llu reserved, %llu on their way back; %llu puts are unfinished, and "
                 "%lu nodes and SSDs away",
                 (unsigned long long)pq->ctx->st.held_bytes, (unsigned long long)pq->ctx->st.reserved_bytes,
                 (unsigned long long)pq->ctx->st.retiring_bytes, (unsigned long long)pq->ctx->st.attempts,
                 (unsigned long)pq->cat->lost_n);
    return buf;
}

/* ---- messages */
kvp_put_req_t *
kvp_put_req_open(kvp_puts_t *pq, kvp_session_t *s, const kvp_frame_hdr_t *ask, const Kvp__Pb__PutBegin *msg)
{
    kvp_put_req_t *p = kvp_core_alloc(1, sizeof *p);
    uint64_t wait_ms = msg->wait_ms == 0 ? KVP_PUT_WAIT_MS : kvp_min_u64(msg->wait_ms, KVP_PUT_WAIT_MAX_MS);

    p->session = s;
    p->ask = *ask;
    p->due_ns = pq->ctx->now_ns + KVP_MS(wait_ms);
    p->n = msg->n;
    p->copies = (uint32_t)kvp_max_u64(1, kvp_min_u64(kvp_min_u64(msg->replicas, pq->cat->up_n), KVP_REPLICAS_MAX));
    if (msg->only != 0) p->copies = 1; /* a put into one given segment has one copy: copies lie in different segments */
    p->is_upsert = msg->is_upsert;
    p->pin = (kvp_pin_t)msg->pin;
    p->wish.only = msg->only;
    p->wish.avoid_n = (uint32_t)msg->n_avoid;
    for (uint32_t i = 0; i < p->wish.avoid_n; i++)
        p->wish.avoid[i] = msg->avoid[i];
    p->wish.prefer_n = (uint32_t)msg->n_prefer;
    for (uint32_t i = 0; i < p->wish.prefer_n; i++)
        p->wish.prefer[i] = msg->prefer[i];
    p->epoch = s->tenant->epoch;
    p->has_epoch = msg->has_epoch;
    p->objs = kvp_core_alloc(msg->n, sizeof *p->objs);
    kvp_list_init(&p->attempts);
    kvp_list_init(&p->keys);
    kvp_list_add_tail(&s->reqs, &p->link);
    kvp_list_add_tail(&pq->reqs[(p->due_ns + KVP_TICK_NS - 1) / KVP_TICK_NS % KVP_PUT_WHEEL], &p->due);
    return p;
}

void
kvp_put_req_end(kvp_put_req_t *p)
{
    kvp_list_foreach_safe (pos, tmp, &p->attempts) {
        kvp_list_entry(pos, kvp_attempt_t, of_req)->req = NULL;
        kvp_list_del(pos);
    }
    kvp_list_del(&p->link);
    kvp_list_del(&p->due);
    free(p->objs);
    free(p);
}

/* Appends the attempt's copies to the answer, and records their order, because the client's commit refers to it. */
static void
append_places(kvp_puts_t *pq, kvp_attempt_t *a, kvp_buf_t *out)
{
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(pq->cat, kvp_obj(pq->cat->index, a->oid), places);

    if (n > 1) a->granted = kvp_core_alloc(n, sizeof *a->granted);
    a->granted_n = n;
    for (uint32_t i = 0; i < n; i++) {
        kvp_wire_loc_t loc;

        if (n > 1) a->granted[i] = places[i].generation;
        kvp_place_wire(pq->cat, &places[i], &loc);
        kvp_buf_append(out, &loc, sizeof loc);
    }
}

/* Replaces NO_SPACE by RETRY_AFTER if space may have become free since a key's refusal: the message may have waited for
 * its other keys after it. Counts the refusals. */
static void
settle_refusals(kvp_puts_t *pq, kvp_put_req_t *p)
{
    bool is_final = !p->is_refused || (p->refused_news == pq->ctx->space_news && !is_space_coming(pq));

    for (uint32_t i = 0; i < p->n; i++) {
        if (p->objs[i].err == KVP_NO_SPACE && !is_final) p->objs[i].err = KVP_RETRY_AFTER;
        if (p->session->use == KVP_USE_PROBE) continue;
        pq->ctx->st.put_no_space += p->objs[i].err == KVP_NO_SPACE;
        pq->ctx->st.put_retry_after += p->objs[i].err == KVP_RETRY_AFTER;
    }
}

/* Answers a message whose namespace was bumped during its wait, and ends its attempts: no place was sent yet. */
static void
answer_stale(kvp_puts_t *pq, kvp_put_req_t *p)
{
    while (!kvp_list_is_empty(&p->attempts))
        kvp_attempt_abort(pq, kvp_list_first(&p->attempts, kvp_attempt_t, of_req), true, KVP_STALE);
    kvp_reply_stale(pq->peers, p->session, &p->ask);
    kvp_put_req_end(p);
}

void
kvp_put_req_answer(kvp_puts_t *pq, kvp_put_req_t *p)
{
    Kvp__Pb__Places msg = KVP__PB__PLACES__INIT;
    kvp_err_t err, refused = KVP_OK;
    kvp_buf_t *out;
    char why[224];
    size_t at;

    if (p->session->life == KVP_SESSION_OVER) {
        kvp_put_req_end(p);
        return;
    }
    if (p->has_epoch && p->epoch != p->session->tenant->epoch && KVP_RULE(EPOCH_PUT)) {
        answer_stale(pq, p);
        return;
    }
    settle_refusals(pq, p);
    msg.n = p->n;
    msg.ns_epoch = p->epoch;
    for (uint32_t i = 0; i < p->n; i++) {
        msg.nloc += p->objs[i].nloc;
        err = p->objs[i].err;
        if (err != KVP_RETRY_AFTER && err != KVP_NO_SPACE) continue;
        if (err == KVP_RETRY_AFTER) msg.retry_ms = p->grants > 0 ? RETRY_GRANTED_MS : RETRY_MS;
        refused = refused == KVP_NO_SPACE ? refused : err;
    }
    if (refused == KVP_NO_SPACE) msg.detail = explain_full(pq, p->session, why, sizeof why);
    if (pq->ctx->st.log_refuses != 0)
        msg.detail = pq->ctx->log_failure;
    else if (refused == KVP_RETRY_AFTER)
        msg.detail = explain_wait(pq, why, sizeof why);
    out = kvp_reply_begin(pq->peers, p->session, &p->ask, &msg.base, &at);
    kvp_buf_append(out, p->objs, p->n * sizeof *p->objs);
    kvp_list_foreach (pos, &p->attempts) /* the attempts are in the order of the request's keys */
        append_places(pq, kvp_list_entry(pos, kvp_attempt_t, of_req), out);
    kvp_frame_end(out, at);
    kvp_put_req_end(p);
}

/* ---- keys */
void
kvp_put_key_open(kvp_puts_t *pq, kvp_attempt_t *a)
{
    kvp_put_key_t *k = kvp_core_alloc(1, sizeof *k);

    k->req = a->req;
    k->attempt = a;
    k->oid = a->oid;
    k->scan.slot = k->scan.run = KVP_SLAB_NONE;
    kvp_list_init(&k->claim.records);
    kvp_list_init(&k->claim.of_segment);
    kvp_list_init(&k->claim.ready);
    kvp_list_init(&k->evacuating);
    kvp_list_add_tail(&pq->waiting, &k->link);
    kvp_list_add_tail(&k->req->keys, &k->of_req);
    pq->waiting_attempts += kvp_list_is_empty(&a->claims);
    kvp_list_add_tail(&a->claims, &k->claim.of_attempt);
    k->req->left++;
    pq->ctx->st.pending_puts++;
}

static void
end_evacuation(kvp_put_key_t *k)
{
    if (k->evacuation == KVP_EVACUATION_NONE) return;
    k->evacuation = KVP_EVACUATION_NONE;
    k->attempt->tenant->foreign_evacuations -= k->is_foreign;
    k->takes = KVP_TAKES_PLAIN;
    k->claim.chunk->evacuating = NULL;
    kvp_list_del(&k->evacuating);
}

/* Releases the window that the key has claimed. */
static void
release_claim(kvp_puts_t *pq, kvp_put_key_t *k)
{
    if (k->claim.chunk == NULL) return;
    kvp_retire_unclaim(pq->space, &k->claim);
    end_evacuation(k);
    k->req->claims--;
    pq->claims--;
    k->claim.chunk = NULL;
    kvp_ctx_space_news(pq->ctx);
}

void
kvp_put_key_close(kvp_puts_t *pq, kvp_put_key_t *k)
{
    kvp_ctx_spend(pq->ctx, 1);
    release_claim(pq, k);
    kvp_list_del(&k->link);
    kvp_list_del(&k->of_req);
    kvp_list_del(&k->claim.of_attempt);
    pq->waiting_attempts -= kvp_list_is_empty(&k->attempt->claims);
    k->req->left--;
    pq->ctx->st.pending_puts--;
    free(k);
}

void
kvp_put_req_place(kvp_puts_t *pq, const kvp_attempt_t *a)
{
    kvp_wire_obj_t *obj = &a->req->objs[a->at];

    obj->nloc++;
    obj->version = kvp_obj_version(kvp_obj(pq->cat->index, a->oid));
    obj->len = a->bytes;
    a->req->grants++;
}

void
kvp_put_key_done(kvp_puts_t *pq, kvp_put_key_t *k)
{
    kvp_put_req_t *p = k->req;

    kvp_put_req_place(pq, k->attempt);
    kvp_put_key_close(pq, k);
    if (p->left == 0) kvp_put_req_answer(pq, p);
}

void
kvp_put_key_refuse(kvp_puts_t *pq, kvp_put_key_t *k, kvp_err_t err)
{
    kvp_attempt_t *a = k->attempt;

    if (a->req->objs[a->at].nloc > 0 || a->claims.next != a->claims.prev) {
        kvp_put_key_close(pq, k);
        return;
    }
    if (err == KVP_NO_SPACE && !a->req->is_refused) {
        a->req->is_refused = true;
        a->req->refused_news = pq->ctx->space_news;
    }
    kvp_attempt_abort(pq, a, true, err);
}

void
kvp_put_req_refuse(kvp_puts_t *pq, kvp_put_req_t *p)
{
    while (p->left > 0) {
        kvp_put_key_t *k = kvp_list_first(&p->keys, kvp_put_key_t, of_req);

        /* If the client avoids segments, not all segments were searched, so the client may retry. */
        kvp_put_key_refuse(pq, k, p->wish.avoid_n > 0 ? KVP_RETRY_AFTER : kvp_put_key_refusal(pq, k));
    }
    kvp_put_req_answer(pq, p);
}

void
kvp_put_refuse_waiting(kvp_puts_t *pq)
{
    kvp_list_foreach_safe (pos, tmp, &pq->waiting) {
        kvp_put_key_t *k = kvp_list_entry(pos, kvp_put_key_t, link);
        kvp_put_req_t *p = k->req;

        if (pq->ctx->slice_left == 0) return;
        if (p->session->life == KVP_SESSION_OVER) continue;
        kvp_ctx_spend(pq->ctx, 1);
        kvp_put_key_refuse(pq, k, KVP_LOG_FAILED);
        if (p->left == 0) kvp_put_req_answer(pq, p);
    }
}

void
kvp_put_key_window_free(kvp_puts_t *pq, kvp_put_key_t *k)
{
    kvp_chunk_t *c = k->claim.chunk;

    release_claim(pq, k);
    /* The segment may accept no puts any more, although kvp_put_leave_segment has not released the key's claim. */
    if (c->segment->state == KVP_SEG_UP && kvp_place_alloc_in(pq->space, c, k->oid) == KVP_OK)
        kvp_put_key_done(pq, k);
    else
        kvp_put_key_restart(pq, k);
}

void
kvp_put_windows_free(kvp_puts_t *pq)
{
    while (!kvp_list_is_empty(&pq->space->claims_ready)) {
        kvp_list_t *first = pq->space->claims_ready.next;

        kvp_list_del(first);
        kvp_put_key_window_free(pq, kvp_list_entry(first, kvp_put_key_t, claim.ready));
    }
}

void
kvp_put_key_restart(kvp_puts_t *pq, kvp_put_key_t *k)
{
    release_claim(pq, k);
    kvp_list_del(&k->link);
    kvp_list_add_head(&pq->waiting, &k->link);
    kvp_ctx_space_news(pq->ctx);
}

bool
kvp_put_leave_segment(kvp_puts_t *pq, kvp_segment_t *g)
{
    for (; !kvp_list_is_empty(&g->claims) && pq->ctx->slice_left > 0; kvp_ctx_spend(pq->ctx, 1))
        kvp_put_key_restart(pq, kvp_list_first(&g->claims, kvp_put_key_t, claim.of_segment));
    if (!kvp_list_is_empty(&g->claims)) pq->is_leaving = true;
    return kvp_list_is_empty(&g->claims);
}

void
kvp_put_tick(kvp_puts_t *pq)
{
    uint64_t now_tick = pq->ctx->now_ns / KVP_TICK_NS;

    /* No wait is longer than KVP_PUT_WHEEL ticks, so each list is examined once at most, however late this call is. */
    if (now_tick - pq->put_tick > KVP_PUT_WHEEL) pq->put_tick = now_tick - KVP_PUT_WHEEL;
    while (pq->put_tick < now_tick) {
        kvp_list_t *list = &pq->reqs[(pq->put_tick + 1) % KVP_PUT_WHEEL];

        kvp_list_foreach_safe (pos, tmp, list) {
            kvp_put_req_t *p = kvp_list_entry(pos, kvp_put_req_t, due);

            if (pq->ctx->slice_left == 0) return;
            if (p->due_ns <= pq->ctx->now_ns) kvp_put_req_refuse(pq, p);
        }
        pq->put_tick++;
    }
}
