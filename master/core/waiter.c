/* SPDX-License-Identifier: Apache-2.0
 * Answers that wait: until every extent that the request retired is dead, so that no reader gets it any more, or for
 * KVP_OWED_MS where a node does not answer (the rest is owed); and, where it was asked for, until no location lease
 * names what is gone. In a master that is not the pool's first, clients may still read under leases of the one before:
 * until these are over, an answer waits for all extents however long it takes. And where there is a journal, until what
 * the answer promises is durable; what is owed is counted from then on.
 */
#include "master/core/internal.h"

#include "common/mutate.h"

#include <stdlib.h>

#define RESULTS_A_RECORD 64u /* to copy a result costs less than to touch a record */

bool
kvp_waiter_may_open(const kvp_session_t *s, uint32_t n)
{
    return s->waiters_n < KVP_WAITERS_MAX && n <= KVP_WAITER_KEYS_MAX - s->waiter_keys;
}

kvp_waiter_t *
kvp_waiter_open(kvp_session_t *s, const kvp_frame_hdr_t *ask, uint32_t n)
{
    kvp_waiter_t *w = kvp_core_alloc(1, sizeof *w);

    w->session = s;
    w->ask = *ask;
    w->left = 1; /* the request itself, until it has dropped everything */
    w->n = n;
    if (n > 0) w->results = kvp_core_alloc(n, sizeof *w->results);
    s->waiters_n++;
    s->waiter_keys += n;
    kvp_list_add_tail(&s->waiters, &w->link);
    kvp_list_init(&w->leases);
    kvp_list_init(&w->durable);
    return w;
}

static void
answer(kvp_master_t *m, kvp_waiter_t *w)
{
    kvp_session_t *s = w->session;
    kvp_buf_t *out;
    size_t at;

    kvp_master_spend(m, 1 + w->n / RESULTS_A_RECORD);
    if (w->ask.opcode == KVP_OP_REMOVE_MANY) {
        Kvp__Pb__RemoveManyReply reply = KVP__PB__REMOVE_MANY_REPLY__INIT;

        reply.err = w->err;
        reply.detail = (char *)(w->err == KVP_OK ? "" : "the pattern is too costly");
        reply.removed = w->removed;
        reply.held = w->held;
        out = kvp_reply_begin(m, s, &w->ask, &reply.base, &at);
    } else if (w->ask.opcode == KVP_OP_BUMP) {
        Kvp__Pb__BumpReply reply = KVP__PB__BUMP_REPLY__INIT;

        reply.err = w->err;
        reply.detail = (char *)(w->err == KVP_OK ? "" : "bumped, but some lease still lives");
        reply.epoch = w->epoch;
        out = kvp_reply_begin(m, s, &w->ask, &reply.base, &at);
    } else {
        kvp_reply_results(m, s, &w->ask, w->results, w->n, sizeof *w->results);
        return;
    }
    kvp_frame_end(out, at);
}

/* Answered or given up, the record stays until the last extent has let go of it. */
static void
detach(kvp_master_t *m, kvp_waiter_t *w)
{
    w->session->waiters_n--;
    w->session->waiter_keys -= w->n;
    w->session = NULL;
    kvp_list_del(&w->link);
    kvp_list_del(&w->leases);
    kvp_list_del(&w->durable);
    kvp_heap_del(&m->waiters, &w->due);
    free(w->results);
    w->results = NULL;
    if (w->left == 0) free(w);
}

static void
settle(kvp_master_t *m, kvp_waiter_t *w)
{
    if (w->is_dead_awaited || w->is_lease_awaited || w->is_durable_awaited) return;
    answer(m, w);
    detach(m, w);
}

void
kvp_waiter_dead(kvp_master_t *m, kvp_waiter_t *w)
{
    if (--w->left > 0) return;
    if (w->session == NULL) {
        free(w);
        return;
    }
    w->is_dead_awaited = false;
    settle(m, w);
}

void
kvp_waiter_revoked(kvp_master_t *m, kvp_waiter_t *w)
{
    kvp_list_del(&w->leases);
    w->is_lease_awaited = false;
    settle(m, w);
}

static void
owe_soon(kvp_master_t *m, kvp_waiter_t *w)
{
    if (w->ask.opcode == KVP_OP_BUMP || !w->is_dead_awaited || !KVP_RULE(OWED_SOON)) return;
    kvp_heap_add(&m->waiters, &w->due, kvp_max_u64(m->now_ns + KVP_MS(KVP_OWED_MS), m->old_leases_end_ns));
}

void
kvp_waiter_durable(kvp_master_t *m, kvp_waiter_t *w)
{
    kvp_list_del(&w->durable);
    w->is_durable_awaited = false;
    owe_soon(m, w);
    settle(m, w);
}

void
kvp_waiter_arm(kvp_master_t *m, kvp_waiter_t *w, bool wait)
{
    if (w->session == NULL) { /* it went while the request was carried out */
        kvp_waiter_dead(m, w);
        return;
    }
    w->is_dead_awaited = true;
    w->revoke_seq = w->session->tenant->revoke_seq;
    if (wait && !kvp_lease_is_over(m, w->session->tenant, w->revoke_seq)) {
        w->is_lease_awaited = true;
        kvp_lease_wait(m, w);
    }
    if (kvp_journal_withholds(m)) {
        w->is_durable_awaited = true;
        w->after = m->journal.end;
        kvp_list_add_tail(&m->journal.waiters, &w->durable);
    } else {
        owe_soon(m, w);
    }
    if (w->ask.opcode == KVP_OP_BUMP && w->wait_ms != 0)
        kvp_heap_add(&m->waiters, &w->due, m->now_ns + KVP_MS(w->wait_ms));
    kvp_waiter_dead(m, w);
}

void
kvp_waiter_end_all(kvp_master_t *m, kvp_session_t *s)
{
    while (!kvp_list_is_empty(&s->waiters))
        detach(m, kvp_list_first(&s->waiters, kvp_waiter_t, link));
}

void
kvp_waiter_tick(kvp_master_t *m)
{
    kvp_heapnode_t *first;

    while ((first = kvp_heap_least(&m->waiters)) != NULL && first->key <= m->now_ns && m->slice_left > 0) {
        kvp_waiter_t *w = kvp_heap_entry(first, kvp_waiter_t, due);

        kvp_heap_del(&m->waiters, &w->due);
        if (w->ask.opcode == KVP_OP_BUMP) {
            w->err = KVP_DEADLINE;
            w->is_lease_awaited = false;
        }
        w->is_dead_awaited = false; /* the rest is owed */
        settle(m, w);
    }
}
