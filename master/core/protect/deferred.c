/* SPDX-License-Identifier: Apache-2.0
 * Deferred answers. The answer to a removal waits until every extent that the request retired is dead, that is, until
 * no reader can read it any more; or for KVP_DEFERRED_MS if a node does not answer. If requested, it also waits until
 * no location lease covers the removed objects. In a master that is not the pool's first, clients may still read
 * under leases of the previous master: until these end, an answer waits for all extents without a time limit. With a
 * log, an answer waits until its promise is durable; KVP_DEFERRED_MS counts from then on. */
#include "master/core/protect/deferred.h"

#include "common/buf.h"
#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/heap.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/chunk.h"
#include "master/core/log/journal.h"
#include "master/core/protect/lease.h"
#include "master/core/protect/protection.h"
#include "master/core/session/session.h"
#include "proto/frame.h"
#include "proto/kvpool.pb-c.h"
#include "proto/wire.h"

#include <stdlib.h>

#define RESULTS_A_RECORD 64u /* copying this many results costs as much of the step's budget as handling one record */

bool
kvp_deferred_may_open(const kvp_session_t *s, uint32_t n)
{
    return s->deferred_n < KVP_DEFERRED_MAX && n <= KVP_DEFERRED_KEYS_MAX - s->deferred_keys;
}

kvp_deferred_t *
kvp_deferred_open(kvp_session_t *s, const kvp_frame_hdr_t *ask, uint32_t n)
{
    kvp_deferred_t *w = kvp_core_alloc(1, sizeof *w);

    w->session = s;
    w->ask = *ask;
    w->id = ++s->deferred_seq;
    w->left = 1; /* the request itself counts as one retire record until it has dropped all its objects */
    w->is_dead_awaited = true;
    w->n = n;
    if (n > 0) w->results = kvp_core_alloc(n, sizeof *w->results);
    s->deferred_n++;
    s->deferred_keys += n;
    kvp_list_add_tail(&s->deferred, &w->link);
    kvp_list_init(&w->leases);
    kvp_list_init(&w->durable);
    kvp_list_init(&w->followers);
    kvp_list_init(&w->behind);
    return w;
}

static char *
explain_err(kvp_protect_t *prot, const kvp_deferred_t *w, const char *otherwise)
{
    if (w->err == KVP_LOG_FAILED) return prot->ctx->log_failure;
    return (char *)(w->err == KVP_OK ? "" : otherwise);
}

static void
send_answer(kvp_protect_t *prot, kvp_deferred_t *w)
{
    kvp_session_t *s = w->session;
    kvp_buf_t *out;
    size_t at;

    kvp_ctx_spend(prot->ctx, 1 + w->n / RESULTS_A_RECORD);
    if (w->ask.opcode == KVP_OP_REMOVE_MANY) {
        Kvp__Pb__RemoveManyReply reply = KVP__PB__REMOVE_MANY_REPLY__INIT;

        reply.err = w->err;
        reply.detail = explain_err(prot, w, "the pattern is too costly");
        reply.removed = w->removed;
        reply.held = w->held;
        out = kvp_reply_begin(prot->peers, s, &w->ask, &reply.base, &at);
    } else if (w->ask.opcode == KVP_OP_BUMP) {
        Kvp__Pb__BumpReply reply = KVP__PB__BUMP_REPLY__INIT;

        reply.err = w->err;
        reply.detail = explain_err(prot, w, "bumped, but some lease still lives");
        reply.epoch = w->epoch;
        out = kvp_reply_begin(prot->peers, s, &w->ask, &reply.base, &at);
    } else {
        kvp_reply_results(prot->peers, s, &w->ask, w->results, w->n, sizeof *w->results);
        return;
    }
    kvp_frame_end(out, at);
}

/* ---- answers that repeat an earlier answer */
/* Returns the deferred answer with this id; NULL = none, or it was sent. Searches from the newest, because a repeated
 * request usually follows soon. */
kvp_deferred_t *
kvp_deferred_find(const kvp_session_t *s, uint64_t id)
{
    if (id == 0) return NULL;
    for (kvp_list_t *pos = s->deferred.prev; pos != &s->deferred; pos = pos->prev) {
        kvp_deferred_t *w = kvp_list_entry(pos, kvp_deferred_t, link);

        if (w->id <= id) return w->id == id ? w : NULL;
    }
    return NULL;
}

void
kvp_deferred_line_up(kvp_deferred_t *w, kvp_deferred_t *first)
{
    kvp_list_t *last = first->followers.prev;
    kvp_follow_t *f;

    if (first == w) return;
    if (last != &first->followers && kvp_list_entry(last, kvp_follow_t, of_first)->repeat == w) return;
    f = kvp_core_alloc(1, sizeof *f);
    f->repeat = w;
    kvp_list_add_tail(&first->followers, &f->of_first);
    kvp_list_add_tail(&w->behind, &f->of_repeat);
}

static void
end_follow(kvp_follow_t *f)
{
    kvp_list_del(&f->of_first);
    kvp_list_del(&f->of_repeat);
    free(f);
}

static void answer_if_ready(kvp_protect_t *prot, kvp_deferred_t *w);

/* Called when the deferred answer w was sent or given up: sends the answers that waited only for w. */
static void
let_pass(kvp_protect_t *prot, kvp_deferred_t *w)
{
    while (!kvp_list_is_empty(&w->behind))
        end_follow(kvp_list_first(&w->behind, kvp_follow_t, of_repeat));
    while (!kvp_list_is_empty(&w->followers)) {
        kvp_follow_t *f = kvp_list_first(&w->followers, kvp_follow_t, of_first);
        kvp_deferred_t *repeat = f->repeat;

        end_follow(f);
        answer_if_ready(prot, repeat);
    }
}

/* Separates an answer that was sent or given up from its session. The record is freed when the last extent that
 * counts in it is dead. */
static void
detach_session(kvp_protect_t *prot, kvp_deferred_t *w)
{
    let_pass(prot, w);
    w->session->deferred_n--;
    w->session->deferred_keys -= w->n;
    w->session = NULL;
    kvp_list_del(&w->link);
    kvp_list_del(&w->leases);
    kvp_list_del(&w->durable);
    kvp_heap_del(&prot->deferred, &w->due);
    free(w->results);
    w->results = NULL;
    if (w->left == 0) free(w);
}

/* ---- the conditions of an answer */
static void
answer_if_ready(kvp_protect_t *prot, kvp_deferred_t *w)
{
    if (w->is_dead_awaited || w->is_lease_awaited || w->is_durable_awaited || !kvp_list_is_empty(&w->behind)) return;
    send_answer(prot, w);
    detach_session(prot, w);
}

void
kvp_deferred_dead(kvp_protect_t *prot, kvp_deferred_t *w)
{
    if (--w->left > 0) return;
    if (w->session == NULL) {
        free(w);
        return;
    }
    w->is_dead_awaited = false;
    answer_if_ready(prot, w);
}

void
kvp_deferred_revoked(kvp_protect_t *prot, kvp_deferred_t *w)
{
    kvp_list_del(&w->leases);
    w->is_lease_awaited = false;
    answer_if_ready(prot, w);
}

static void
answer_soon(kvp_protect_t *prot, kvp_deferred_t *w)
{
    if (w->ask.opcode == KVP_OP_BUMP || !w->is_dead_awaited || !KVP_RULE(REMOVAL_ANSWERED)) return;
    kvp_heap_add(&prot->deferred, &w->due,
                 kvp_max_u64(prot->ctx->now_ns + KVP_MS(KVP_DEFERRED_MS), prot->peers->old_leases_end_ns));
}

static void
pass_log(kvp_protect_t *prot, kvp_deferred_t *w)
{
    kvp_list_del(&w->durable);
    w->is_durable_awaited = false;
    answer_soon(prot, w);
    answer_if_ready(prot, w);
}

static void
fail_answer(kvp_protect_t *prot, kvp_deferred_t *w)
{
    for (uint32_t i = 0; i < w->n; i++)
        if (w->results[i] == KVP_OK || w->results[i] == KVP_ALREADY) w->results[i] = KVP_LOG_FAILED;
    if (w->err == KVP_OK) w->err = KVP_LOG_FAILED;
    send_answer(prot, w);
    detach_session(prot, w);
}

bool
kvp_deferred_release(kvp_protect_t *prot, bool is_synced, uint64_t to)
{
    kvp_list_t *answers = &prot->on_log[is_synced];

    while (!kvp_list_is_empty(answers)) {
        kvp_deferred_t *w = kvp_list_first(answers, kvp_deferred_t, durable);

        if (w->after > to && prot->ctx->st.log_refuses == 0) return true;
        if (prot->ctx->slice_left == 0) return false;
        if (w->after > to)
            fail_answer(prot, w);
        else
            pass_log(prot, w);
    }
    return true;
}

static bool
is_removal(const kvp_deferred_t *w)
{
    return w->ask.opcode == KVP_OP_REMOVE || w->ask.opcode == KVP_OP_REMOVE_MANY || w->ask.opcode == KVP_OP_BUMP;
}

void
kvp_deferred_arm(kvp_protect_t *prot, kvp_deferred_t *w, bool wait)
{
    if (w->session == NULL) { /* the session ended while the request was carried out */
        kvp_deferred_dead(prot, w);
        return;
    }
    w->revoke_seq = w->session->tenant->revoke_seq;
    if (wait && !kvp_lease_is_over(prot, w->session->tenant, w->revoke_seq)) {
        w->is_lease_awaited = true;
        kvp_lease_wait(prot, w);
    }
    w->needs_sync = kvp_journal_syncs(prot->log, w->needs_sync || is_removal(w));
    if (kvp_journal_withholds(prot->log, w->needs_sync)) {
        w->is_durable_awaited = true;
        w->after = prot->log->end;
        kvp_list_add_tail(&prot->on_log[w->needs_sync], &w->durable);
    } else {
        answer_soon(prot, w);
    }
    if (w->ask.opcode == KVP_OP_BUMP && w->wait_ms != 0)
        kvp_heap_add(&prot->deferred, &w->due, prot->ctx->now_ns + KVP_MS(w->wait_ms));
    kvp_deferred_dead(prot, w);
}

/* Ends all deferred answers of the session, the last one first: the end of an answer releases those that repeat it. */
void
kvp_deferred_end_all(kvp_protect_t *prot, kvp_session_t *s)
{
    while (!kvp_list_is_empty(&s->deferred))
        detach_session(prot, kvp_list_entry(s->deferred.prev, kvp_deferred_t, link));
}

void
kvp_deferred_tick(kvp_protect_t *prot)
{
    kvp_heapnode_t *first;

    while ((first = kvp_heap_least(&prot->deferred)) != NULL && first->key <= prot->ctx->now_ns &&
           prot->ctx->slice_left > 0) {
        kvp_deferred_t *w = kvp_heap_entry(first, kvp_deferred_t, due);

        kvp_heap_del(&prot->deferred, &w->due);
        if (w->ask.opcode == KVP_OP_BUMP) {
            w->err = KVP_DEADLINE;
            w->is_lease_awaited = false;
        }
        w->is_dead_awaited = false;
        answer_if_ready(prot, w);
    }
}
