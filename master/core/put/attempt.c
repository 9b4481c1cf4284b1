/* SPDX-License-Identifier: Apache-2.0
 * Begins and ends put attempts. catalog/staged.c has their records. */
#include "master/core/put/attempt.h"

#include "common/list.h"
#include "common/mutate.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/base/recent.h"
#include "master/core/base/umap.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/replica.h"
#include "master/core/catalog/staged.h"
#include "master/core/protect/deferred.h"
#include "master/core/put/puts.h"
#include "master/core/put/queue.h"
#include "master/core/session/session.h"
#include "master/core/space/drop.h"
#include "master/core/space/retire.h"
#include "proto/wire.h"

#include <stdlib.h>

kvp_attempt_t *
kvp_attempt_open(kvp_puts_t *pq, kvp_put_req_t *p, uint32_t at, const kvp_wire_put_t *put,
                 const kvp_wire_group_t *group, uint32_t oid)
{
    kvp_attempt_t *a = kvp_core_alloc(1, sizeof *a);

    a->session = p->session;
    a->tenant = p->session->tenant;
    a->epoch = p->epoch;
    a->is_upsert = p->is_upsert;
    a->pin = p->pin;
    a->group = *group;
    a->id = put->attempt;
    a->digest = put->digest;
    a->oid = oid;
    a->over = KVP_OID_NONE;
    a->bytes = put->len;
    a->copies = p->copies;
    a->req = p;
    a->at = at;
    a->number = kvp_ptab_add(&pq->cat->attempts, a);
    kvp_obj(pq->cat->index, oid)->attempt = a->number;
    kvp_list_init(&a->claims);
    a->since = pq->cat->gen_seq;
    kvp_list_add_tail(&pq->cat->attempts_in_order, &a->in_order);
    kvp_umap_set(&a->session->attempt_ids, a->id, a->number);
    kvp_list_add_tail(&a->session->attempts, &a->link);
    kvp_list_add_tail(&p->attempts, &a->of_req);
    a->session->attempt_bytes += a->bytes * a->copies;
    p->bytes += a->bytes * a->copies;
    pq->ctx->st.attempts++;
    return a;
}

static void
disown_attempt(kvp_attempt_t *a)
{
    kvp_list_del(&a->link);
    a->session->attempt_bytes -= a->bytes * a->copies;
    kvp_umap_del(&a->session->attempt_ids, a->id);
}

void
kvp_attempt_close(kvp_puts_t *pq, kvp_attempt_t *a)
{
    kvp_obj(pq->cat->index, a->oid)->attempt = KVP_NONE;
    disown_attempt(a);
    kvp_ptab_del(&pq->cat->attempts, a->number);
    kvp_list_del(&a->of_req);
    kvp_list_del(&a->in_order);
    pq->ctx->st.attempts--;
    free(a->granted);
    free(a);
}

/* ---- ends */
/* Sets the error for this attempt's key in its message, if unanswered. The caller answers when all keys are decided. */
static void
refuse_key(kvp_attempt_t *a, kvp_err_t err)
{
    kvp_wire_obj_t *obj;

    if (a->req == NULL) return;
    obj = &a->req->objs[a->at];
    a->req->grants -= obj->nloc;
    *obj = (kvp_wire_obj_t){.err = err};
}

uint64_t
kvp_attempt_owner(const kvp_attempt_t *a, bool is_drained)
{
    return is_drained || a->req != NULL || !KVP_RULE(OWNER_OF_ABORTED) ? 0 : a->session->incarnation;
}

void
kvp_put_note_refused(kvp_puts_t *pq, uint64_t id, kvp_err_t err)
{
    const kvp_departure_t refused = {
        .id = id, .at = kvp_departed_time(pq->ctx->now_ns), .cause = KVP_CAUSE_REFUSED, .detail = (uint8_t)-err};

    kvp_departed_note(&pq->cat->refused, &refused);
}

/* Frees the attempt, and removes its object for the given cause. */
static void
drop_object(kvp_puts_t *pq, kvp_attempt_t *a, kvp_cause_t cause, uint64_t owner, kvp_deferred_t *deferred)
{
    uint32_t oid = a->oid;

    if (a->over != KVP_OID_NONE) kvp_attempt_part(pq->cat, a);
    kvp_attempt_close(pq, a);
    kvp_obj_drop(pq->space, oid, cause, owner, deferred);
    pq->ctx->st.aborts++;
}

void
kvp_attempt_abort(kvp_puts_t *pq, kvp_attempt_t *a, bool is_drained, kvp_err_t err)
{
    const kvp_cause_t cause = a->req == NULL ? KVP_CAUSE_GIVEN_UP : KVP_CAUSE_NOT_KNOWN;

    if (a->req != NULL) kvp_put_note_refused(pq, kvp_obj(pq->cat->index, a->oid)->id, err);
    refuse_key(a, err);
    kvp_ctx_spend(pq->ctx, 1);
    while (!kvp_list_is_empty(&a->claims))
        kvp_put_key_close(pq, kvp_list_first(&a->claims, kvp_put_key_t, claim.of_attempt));
    drop_object(pq, a, cause, kvp_attempt_owner(a, is_drained), NULL);
}

void
kvp_attempt_refuse(kvp_puts_t *pq, kvp_attempt_t *a, bool is_drained, kvp_deferred_t *deferred)
{
    drop_object(pq, a, KVP_CAUSE_GIVEN_UP, kvp_attempt_owner(a, is_drained), deferred);
}

/* Aborts the attempt of a silent writer. The writer may be stopped in the middle of a write and continue at any time,
 * so its extents stay in quarantine until the node proves that the writer cannot write, or the writer reports that
 * none of the attempt's writes is in progress. */
static void
take_from_silent(kvp_puts_t *pq, kvp_attempt_t *a)
{
    kvp_session_t *s = a->session;
    kvp_put_req_t *p = a->req;
    uint64_t id = a->id;
    kvp_place_t places[KVP_REPLICAS_MAX];
    uint32_t n = kvp_obj_places(pq->cat, kvp_obj(pq->cat->index, a->oid), places);

    kvp_recent_add(&s->recent, id, KVP_RECENT_ABORTED, 0);
    kvp_attempt_abort(pq, a, false, KVP_ABORTED);
    pq->ctx->st.put_taken++;
    for (uint32_t i = 0; i < n && p == NULL; i++)
        kvp_retire_abandoned(kvp_retire_of(pq->space, kvp_place_chunk(pq->cat, &places[i]), places[i].slot), s, id);
    if (p != NULL && p->left == 0) kvp_put_req_answer(pq, p);
}

bool
kvp_attempt_take(kvp_puts_t *pq, kvp_attempt_t *a)
{
    if (a->session->life == KVP_SESSION_OVER) {
        kvp_attempt_abort_over(pq, a);
        return true;
    }
    if (!kvp_session_is_silent(pq->peers, a->session) || !KVP_RULE(SILENT_WRITER)) return false;
    take_from_silent(pq, a);
    return true;
}

void
kvp_attempt_void(kvp_puts_t *pq, kvp_attempt_t *a, kvp_err_t err)
{
    kvp_put_req_t *p = a->req;

    kvp_attempt_abort(pq, a, false, err);
    if (p != NULL && p->left == 0) kvp_put_req_answer(pq, p);
}

void
kvp_attempt_lose_copy(kvp_puts_t *pq, uint32_t oid, const kvp_place_t *at)
{
    kvp_attempt_t *a = kvp_attempt_of(pq->cat, kvp_obj(pq->cat->index, oid));
    kvp_place_t places[KVP_REPLICAS_MAX];

    if (kvp_obj_places(pq->cat, kvp_obj(pq->cat->index, oid), places) == 1 && kvp_list_is_empty(&a->claims)) {
        refuse_key(a, KVP_RETRY_AFTER); /* the answer was not sent, so the writer does not know this place */
        drop_object(pq, a, KVP_CAUSE_NOT_KNOWN, 0, NULL);
        return;
    }
    kvp_obj_del_place(pq->space, oid, at);
    (void)kvp_retire_place(pq->space, at, 0, NULL);
    if (a->req == NULL) return;
    a->req->objs[a->at].nloc--;
    a->req->grants--;
}

void
kvp_attempt_abort_over(kvp_puts_t *pq, kvp_attempt_t *a)
{
    kvp_put_req_t *p = a->req;

    kvp_attempt_abort(pq, a, a->session->is_drained, KVP_ABORTED);
    if (p != NULL && kvp_list_is_empty(&p->attempts)) kvp_put_req_end(p);
}

kvp_attempt_t *
kvp_attempt_find(const kvp_puts_t *pq, const kvp_session_t *s, uint64_t id)
{
    uint32_t number;

    return kvp_umap_get(&s->attempt_ids, id, &number) ? kvp_ptab_get(&pq->cat->attempts, number) : NULL;
}
