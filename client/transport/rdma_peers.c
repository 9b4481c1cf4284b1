/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - A grant is listed before its memory is registered, so that a fence finds it: one that has no peer any more when it is made
 *   is given to nobody, and deregistered by who made it. The fence need not wait for that: a key that nobody was told of, of an
 *   incarnation without connections, lets nothing land. Nor does a cut end what is being made: keys outlive cuts (ADR 0013).
 * - The memory's owner does wait: a grant that is being made is in the list of its memory up to the end.
 */
#include "client/transport/rdma_peers.h"

#include <stdlib.h>
#include <string.h>

/* A piece of memory that one incarnation may write to. */
typedef struct {
    kvp_list_t of_peer;
    kvp_list_t of_mr;
    kvp_rdma_reg_t *regs[KVP_RDMA_RAILS_MAX]; /* while it is made its maker's */
    kvp_rdma_peer_t *peer; /* NULL: it was ended while it was made */
    bool is_made;
} grant_t;

/* ---- peers */
kvp_rdma_peer_t *
kvp_rdma_peer_find(const kvp_rdma_serving_t *s, uint64_t incarnation)
{
    kvp_list_foreach (pos, &s->peers) {
        kvp_rdma_peer_t *p = kvp_list_entry(pos, kvp_rdma_peer_t, link);

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
    return p;
}

void
kvp_rdma_peer_drop_if_empty(kvp_rdma_peer_t *p)
{
    if (!kvp_list_is_empty(&p->conns) || !kvp_list_is_empty(&p->grants)) return;
    kvp_list_del(&p->link);
    free(p);
}

/* ---- keys to write with. All with the lock held, but for the calls of other files. */
static void
grant_drop(kvp_rdma_tp_t *tp, grant_t *g)
{
    kvp_rdma_regs_drop(tp, g->regs);
    kvp_list_del(&g->of_peer);
    kvp_list_del(&g->of_mr);
    free(g);
}

void
kvp_rdma_peer_grants_end(kvp_rdma_tp_t *tp, kvp_rdma_peer_t *p)
{
    kvp_list_foreach_safe (pos, next, &p->grants) {
        grant_t *g = kvp_list_entry(pos, grant_t, of_peer);

        if (g->is_made) {
            grant_drop(tp, g);
        } else {
            kvp_list_del(&g->of_peer);
            g->peer = NULL;
        }
    }
}

/* Of those that were not ended. */
static grant_t *
grant_find(const kvp_rdma_mr_t *mr, uint64_t incarnation)
{
    kvp_list_foreach (pos, &mr->grants) {
        grant_t *g = kvp_list_entry(pos, grant_t, of_mr);

        if (g->peer != NULL && g->peer->incarnation == incarnation) return g;
    }
    return NULL;
}

/* OK: it is listed, and the caller's to make. */
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
    kvp_list_init(&g->of_peer);
    kvp_list_init(&g->of_mr);
    kvp_list_add_tail(&p->grants, &g->of_peer);
    kvp_list_add_tail(&mr->grants, &g->of_mr);
    *grant_out = g;
    return KVP_OK;
}

/* What was not made, or is nobody's by now. */
static void
grant_abandon(grant_t *g)
{
    kvp_rdma_peer_t *p = g->peer;

    kvp_list_del(&g->of_peer);
    kvp_list_del(&g->of_mr);
    free(g);
    if (p != NULL) kvp_rdma_peer_drop_if_empty(p);
}

/* Registers it. Called and left with the lock held, and without it in between. */
static kvp_err_t
grant_register(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr, grant_t *g)
{
    kvp_rdma_serving_t *s = &tp->serving;
    kvp_err_t err;

    pthread_mutex_unlock(&s->lock);
    err = kvp_rdma_regs_make(tp, mr->base.addr, mr->base.len, KVP_RDMA_WRITABLE, g->regs);
    pthread_mutex_lock(&s->lock);
    if (err == KVP_OK && g->peer == NULL) {
        pthread_mutex_unlock(&s->lock);
        kvp_rdma_regs_drop(tp, g->regs);
        pthread_mutex_lock(&s->lock);
        err = KVP_FENCED;
    }
    g->is_made = err == KVP_OK;
    if (!g->is_made) grant_abandon(g);
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
    if (kvp_fenced_has(&s->fenced, incarnation)) {
        err = KVP_FENCED;
    } else if (g != NULL) {
        err = g->is_made ? KVP_OK : KVP_EAGAIN;
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
    if (kvp_fenced_has(&tp->serving.fenced, incarnation))
        err = KVP_FENCED;
    else if (g == NULL || !g->is_made)
        err = KVP_EAGAIN;
    for (size_t i = 0; err == KVP_OK && i < tp->devs_n; i++)
        rkeys_out[i] = g->regs[i]->rkey;
    pthread_mutex_unlock(&tp->serving.lock);
    return err;
}

static bool
is_any_being_made(const kvp_rdma_mr_t *mr)
{
    kvp_list_foreach (pos, &mr->grants)
        if (!kvp_list_entry(pos, grant_t, of_mr)->is_made) return true;
    return false;
}

void
kvp_rdma_grants_drop(kvp_rdma_tp_t *tp, kvp_rdma_mr_t *mr)
{
    pthread_mutex_lock(&tp->serving.lock);
    while (is_any_being_made(mr))
        pthread_cond_wait(&tp->serving.granted, &tp->serving.lock);
    kvp_list_foreach_safe (pos, next, &mr->grants) {
        grant_t *g = kvp_list_entry(pos, grant_t, of_mr);
        kvp_rdma_peer_t *p = g->peer;

        grant_drop(tp, g);
        kvp_rdma_peer_drop_if_empty(p);
    }
    pthread_mutex_unlock(&tp->serving.lock);
}
