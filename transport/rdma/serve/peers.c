/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A grant (the write keys of one peer for one memory) enters the lists before its memory is registered, so that a
 *   fence finds it. A grant that has lost its peer by the end of the registration is given to no peer, and the
 *   registering thread deregisters it. The fence need not wait: no peer knows the key, and the incarnation has no
 *   connections, so no write can land by the key. A cut does not end a grant that is being registered either: keys
 *   outlive cuts (ADR 0013).
 * - Deregistering takes long as well, so a thread does it after the peer was removed. The end of the peer's connections
 *   stops its writes before.
 * - Deregistering the memory (mr_dereg) waits: a grant stays in its memory's list until its registration or
 *   deregistration has ended. */
#include "transport/rdma/serve/peers.h"

#include "common/thread.h"

#include <stdlib.h>

/* A grant: the registration of a piece of memory for the writes of one peer. */
typedef struct {
    kvp_list_t link; /* link in the peer's list of grants, or in serving.ended */
    kvp_list_t of_mr;
    kvp_rdma_reg_t *regs[KVP_RDMA_RAILS_MAX]; /* registrations, by device; used only by the busy thread while is_busy */
    kvp_rdma_peer_t *peer; /* the peer that may write with the keys; NULL: the grant has ended */
    bool is_busy; /* a thread is registering or deregistering the memory for this grant */
} grant_t;

/* ---- peers */
static kvp_list_t *
bucket_of(kvp_rdma_serving_t *s, uint64_t incarnation)
{
    _Static_assert(KVP_RDMA_PEER_BUCKETS == 256, "as many as the hash has");

    return &s->peers_of[kvp_mix64(&s->mix, incarnation, 0) >> 56];
}

kvp_rdma_peer_t *
kvp_rdma_peer_find(kvp_rdma_serving_t *s, uint64_t incarnation)
{
    kvp_list_t *bucket = bucket_of(s, incarnation);

    kvp_list_foreach (pos, bucket) {
        kvp_rdma_peer_t *p = kvp_list_entry(pos, kvp_rdma_peer_t, bucket);

        if (p->incarnation == incarnation) return p;
    }
    return NULL;
}

kvp_rdma_peer_t *
kvp_rdma_peer_make(kvp_rdma_serving_t *s, uint64_t incarnation)
{
    kvp_rdma_peer_t *p = kvp_rdma_peer_find(s, incarnation);

    if (p != NULL) return p;
    p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->incarnation = incarnation;
    kvp_list_init(&p->link);
    kvp_list_init(&p->conns);
    kvp_list_init(&p->grants);
    kvp_list_add_tail(&s->peers, &p->link);
    kvp_list_init(&p->bucket);
    kvp_list_add_tail(bucket_of(s, incarnation), &p->bucket);
    return p;
}

void
kvp_rdma_peer_drop_if_empty(kvp_rdma_peer_t *p)
{
    if (p->is_attached || !kvp_list_is_empty(&p->conns) || !kvp_list_is_empty(&p->grants)) return;
    kvp_list_del(&p->link);
    kvp_list_del(&p->bucket);
    free(p);
}

/* ---- grants: keys for writing. serving.lock is held, except during a registration or deregistration. */
static void
grant_free(grant_t *g)
{
    kvp_list_del(&g->link);
    kvp_list_del(&g->of_mr);
    free(g);
}

/* Deregisters the memory of an ended grant and frees the grant. The caller holds serving.lock, which is released during
 * the deregistration. kvp_rdma_grants_drop waits for its end. */
static void
grant_deregister(kvp_rdma_tp_t *tp, grant_t *g)
{
    g->is_busy = true;
    kvp_list_del(&g->link);
    pthread_mutex_unlock(&tp->serving.lock);
    kvp_rdma_regs_drop(tp, g->regs);
    pthread_mutex_lock(&tp->serving.lock);
    grant_free(g);
    pthread_cond_broadcast(&tp->serving.granted);
}

static void *
end_grants(void *arg)
{
    kvp_rdma_tp_t *tp = arg;
    kvp_rdma_serving_t *s = &tp->serving;

    pthread_mutex_lock(&s->lock);
    while (!kvp_list_is_empty(&s->ended))
        grant_deregister(tp, kvp_list_first(&s->ended, grant_t, link));
    s->is_ending = false;
    pthread_cond_broadcast(&s->granted);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void
kvp_rdma_grants_sweep(kvp_rdma_tp_t *tp)
{
    kvp_rdma_serving_t *s = &tp->serving;

    if (!kvp_list_is_empty(&s->ended) && !s->is_ending) s->is_ending = kvp_detach(end_grants, tp);
}

void
kvp_rdma_grants_wait(kvp_rdma_tp_t *tp)
{
    pthread_mutex_lock(&tp->serving.lock);
    while (tp->serving.is_ending)
        pthread_cond_wait(&tp->serving.granted, &tp->serving.lock);
    pthread_mutex_unlock(&tp->serving.lock);
}

void
kvp_rdma_peer_grants_end(kvp_rdma_tp_t *tp, kvp_rdma_peer_t *p)
{
    kvp_list_foreach_safe (pos, next, &p->grants) {
        grant_t *g = kvp_list_entry(pos, grant_t, link);

        kvp_list_del(&g->link);
        g->peer = NULL;
        if (!g->is_busy) kvp_list_add_tail(&tp->serving.ended, &g->link);
    }
    kvp_rdma_grants_sweep(tp);
}

/* Returns the grant of the peer for this memory, if the grant has not ended; else NULL. */
static grant_t *
grant_find(const kvp_rdma_mr_t *mr, uint64_t incarnation)
{
    kvp_list_foreach (pos, &mr->grants) {
        grant_t *g = kvp_list_entry(pos, grant_t, of_mr);

        if (g->peer != NULL && g->peer->incarnation == incarnation) return g;
    }
    return NULL;
}

/* Creates a grant and adds it to its lists. OK: the caller must call grant_register. */
static kvp_err_t
grant_begin(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr, uint64_t incarnation, grant_t **grant_out)
{
    kvp_rdma_peer_t *p = kvp_rdma_peer_make(&tp->serving, incarnation);
    grant_t *g = calloc(1, sizeof *g);

    if (p == NULL || g == NULL) {
        free(g);
        if (p != NULL) kvp_rdma_peer_drop_if_empty(p);
        return KVP_NOMEM;
    }
    g->peer = p;
    g->is_busy = true;
    kvp_list_init(&g->link);
    kvp_list_init(&g->of_mr);
    kvp_list_add_tail(&p->grants, &g->link);
    kvp_list_add_tail(&mr->grants, &g->of_mr);
    *grant_out = g;
    return KVP_OK;
}

/* Registers the memory for writes of the grant's peer. The caller holds serving.lock, which is released during the
 * registration. A failure frees the grant; FENCED: the peer was fenced or left meanwhile. */
static kvp_err_t
grant_register(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr, grant_t *g)
{
    kvp_rdma_serving_t *s = &tp->serving;
    kvp_rdma_peer_t *p;
    kvp_err_t err;

    pthread_mutex_unlock(&s->lock);
    err = kvp_rdma_regs_make(tp, mr->base.addr, mr->base.len, KVP_RDMA_WRITABLE, g->regs);
    pthread_mutex_lock(&s->lock);
    g->is_busy = false;
    p = g->peer;
    if (err == KVP_OK && p == NULL) {
        grant_deregister(tp, g);
        return KVP_FENCED;
    }
    if (err != KVP_OK) grant_free(g);
    if (err != KVP_OK && p != NULL) kvp_rdma_peer_drop_if_empty(p);
    pthread_cond_broadcast(&s->granted);
    return err;
}

kvp_err_t
kvp_rdma_grant_make(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr, uint64_t incarnation)
{
    kvp_rdma_serving_t *s = &tp->serving;
    kvp_err_t err;
    grant_t *g;

    pthread_mutex_lock(&s->lock);
    g = grant_find(mr, incarnation);
    if (kvp_idset_has(&s->fenced, incarnation)) {
        err = KVP_FENCED;
    } else if (g != NULL) {
        err = g->is_busy ? KVP_EAGAIN : KVP_OK;
    } else {
        err = grant_begin(tp, mr, incarnation, &g);
        if (err == KVP_OK) err = grant_register(tp, mr, g);
    }
    pthread_mutex_unlock(&s->lock);
    return err;
}

kvp_err_t
kvp_rdma_grant_keys(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr, uint64_t incarnation, uint32_t rkeys_out[KVP_RDMA_RAILS_MAX])
{
    kvp_err_t err = KVP_OK;
    const grant_t *g;

    pthread_mutex_lock(&tp->serving.lock);
    g = grant_find(mr, incarnation);
    if (kvp_idset_has(&tp->serving.fenced, incarnation))
        err = KVP_FENCED;
    else if (g == NULL || g->is_busy)
        err = KVP_EAGAIN;
    for (size_t i = 0; err == KVP_OK && i < tp->devs_n; i++)
        rkeys_out[i] = g->regs[i]->rkey;
    pthread_mutex_unlock(&tp->serving.lock);
    return err;
}

static bool
is_any_busy(const kvp_rdma_mr_t *mr)
{
    kvp_list_foreach (pos, &mr->grants)
        if (kvp_list_entry(pos, grant_t, of_mr)->is_busy) return true;
    return false;
}

void
kvp_rdma_grants_drop(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr)
{
    pthread_mutex_lock(&tp->serving.lock);
    while (is_any_busy(mr))
        pthread_cond_wait(&tp->serving.granted, &tp->serving.lock);
    kvp_list_foreach_safe (pos, next, &mr->grants) {
        grant_t *g = kvp_list_entry(pos, grant_t, of_mr);
        kvp_rdma_peer_t *p = g->peer;

        kvp_rdma_regs_drop(tp, g->regs);
        grant_free(g);
        if (p != NULL) kvp_rdma_peer_drop_if_empty(p);
    }
    pthread_mutex_unlock(&tp->serving.lock);
}
