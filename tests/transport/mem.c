/* SPDX-License-Identifier: Apache-2.0
 * Transfers inside one process, for tests: instances have names, endpoints find them by it,
 * submit copies at once. It makes the checks that tcp's serving side makes: keys, ranges, guards, fences.
 *
 * Design notes. What a serving instance shares with its peers is a site: counted, so that an endpoint outlives the
 * instance and then sees DISCONNECTED. A transfer holds site->lock for reading, and whoever must know that none is
 * under way (fence, quiesce, dereg, fini) takes it for writing.
 */
#include "tests/transport/mem.h"

#include "client/transport/exports.h"
#include "client/transport/inside.h"
#include "client/transport/local.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    kvp_list_t link; /* in sites; guarded by sites_lock */
    char name[sizeof((kvp_addr_t *)0)->host];
    uint8_t pool_id[16];
    atomic_uint refs;
    pthread_rwlock_t lock;
    bool is_gone; /* guarded by lock */
    kvp_fenced_t fenced; /* guarded by lock */
    kvp_exports_t exports;
} site_t;

typedef struct {
    kvp_tp_t base;
    uint64_t incarnation;
    site_t *site;
} mem_tp_t;

typedef struct {
    kvp_mr_t base;
    uint64_t read_key;
    uint64_t write_key;
} mem_mr_t;

typedef struct {
    kvp_rseg_t base;
    uint64_t key;
} mem_rseg_t;

typedef struct {
    kvp_ep_t base;
    site_t *site;
    kvp_local_t local;
    bool is_broken;
} mem_ep_t;

static kvp_list_t sites = {&sites, &sites};
static pthread_mutex_t sites_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t sites_named; /* guarded by sites_lock */

static void
site_rele(site_t *h)
{
    if (h == NULL || atomic_fetch_sub(&h->refs, 1) != 1) return;
    kvp_exports_fini(&h->exports);
    kvp_fenced_fini(&h->fenced);
    pthread_rwlock_destroy(&h->lock);
    free(h);
}

static site_t *
site_find(const char *name)
{
    kvp_list_foreach (pos, &sites) {
        site_t *h = kvp_list_entry(pos, site_t, link);
        if (strcmp(h->name, name) == 0) return h;
    }
    return NULL;
}

static kvp_err_t
mem_init(kvp_tp_t *base, const kvp_tp_conf_t *conf)
{
    mem_tp_t *tp = kvp_container_of(base, mem_tp_t, base);
    site_t *h = calloc(1, sizeof *h);

    if (h == NULL) return KVP_NOMEM;
    tp->incarnation = conf->incarnation;
    tp->site = h;
    kvp_list_init(&h->link);
    memcpy(h->pool_id, conf->pool_id, sizeof h->pool_id);
    atomic_init(&h->refs, 1);
    pthread_rwlock_init(&h->lock, NULL);
    return kvp_exports_init(&h->exports);
}

static void
mem_fini(kvp_tp_t *base)
{
    site_t *h = kvp_container_of(base, mem_tp_t, base)->site;

    if (h == NULL) return;
    pthread_mutex_lock(&sites_lock);
    kvp_list_del(&h->link);
    pthread_mutex_unlock(&sites_lock);
    pthread_rwlock_wrlock(&h->lock);
    h->is_gone = true;
    pthread_rwlock_unlock(&h->lock);
    site_rele(h);
}

/* The name is at->host; an empty one gets a free name. */
static kvp_err_t
mem_listen(kvp_tp_t *base, const kvp_addr_t *at, kvp_addr_t *bound_out)
{
    site_t *h = kvp_container_of(base, mem_tp_t, base)->site;
    kvp_addr_t bound = *at;
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&sites_lock);
    if (bound.host[0] == '\0') snprintf(bound.host, sizeof bound.host, "mem-%u", ++sites_named);
    if (site_find(bound.host) != NULL || !kvp_list_is_empty(&h->link)) {
        err = KVP_INVALID;
    } else {
        memcpy(h->name, bound.host, sizeof h->name);
        kvp_list_add_tail(&sites, &h->link);
        *bound_out = bound;
    }
    pthread_mutex_unlock(&sites_lock);
    return err;
}

static void
mem_peer_fence(kvp_tp_t *base, uint64_t incarnation, uint64_t live_min, kvp_fence_fn done, void *arg)
{
    site_t *h = kvp_container_of(base, mem_tp_t, base)->site;

    pthread_rwlock_wrlock(&h->lock);
    kvp_fenced_add(&h->fenced, incarnation, live_min);
    pthread_rwlock_unlock(&h->lock);
    done(arg, incarnation);
}

static void
mem_quiesce(kvp_tp_t *base, kvp_quiesce_fn done, void *arg)
{
    site_t *h = kvp_container_of(base, mem_tp_t, base)->site;

    pthread_rwlock_wrlock(&h->lock);
    pthread_rwlock_unlock(&h->lock);
    done(arg);
}

static void
mem_mr_dereg(kvp_mr_t *base)
{
    mem_mr_t *mr = kvp_container_of(base, mem_mr_t, base);
    site_t *h = kvp_container_of(base->tp, mem_tp_t, base)->site;

    kvp_exports_del(&h->exports, mr->read_key);
    kvp_exports_del(&h->exports, mr->write_key);
    pthread_rwlock_wrlock(&h->lock);
    pthread_rwlock_unlock(&h->lock);
}

static kvp_err_t
mem_mr_reg(kvp_tp_t *base, const kvp_mem_t *mem, kvp_mr_t *base_mr)
{
    mem_mr_t *mr = kvp_container_of(base_mr, mem_mr_t, base);
    site_t *h = kvp_container_of(base, mem_tp_t, base)->site;
    kvp_err_t err;

    (void)mem;
    err = kvp_exports_add(&h->exports, base_mr, KVP_ACCESS_READ, &mr->read_key);
    if (err != KVP_OK) return err;
    err = kvp_exports_add(&h->exports, base_mr, KVP_ACCESS_WRITE, &mr->write_key);
    if (err != KVP_OK) kvp_exports_del(&h->exports, mr->read_key);
    return err;
}

static kvp_err_t
mem_mr_export(const kvp_mr_t *base, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out)
{
    const mem_mr_t *mr = kvp_container_of(base, const mem_mr_t, base);

    (void)incarnation;
    kvp_exports_token(access == KVP_ACCESS_WRITE ? mr->write_key : mr->read_key, token_out);
    return KVP_OK;
}

static kvp_err_t
mem_rseg_open(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *base)
{
    (void)tp, (void)len, (void)access;
    return kvp_exports_token_key(token, &kvp_container_of(base, mem_rseg_t, base)->key);
}

static void
mem_rseg_close(kvp_rseg_t *rseg)
{
    (void)rseg;
}

/* What a data hello is elsewhere: done gets UNREACHABLE, PROTO (another pool), or FENCED. */
static kvp_err_t
enter_site(const mem_tp_t *tp, const kvp_addr_t *to, site_t **site_out)
{
    site_t *h;
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&sites_lock);
    h = site_find(to->host);
    if (h != NULL) atomic_fetch_add(&h->refs, 1);
    pthread_mutex_unlock(&sites_lock);
    if (h == NULL) return KVP_UNREACHABLE;

    pthread_rwlock_rdlock(&h->lock);
    if (memcmp(h->pool_id, tp->site->pool_id, sizeof h->pool_id) != 0) err = KVP_PROTO;
    if (kvp_fenced_has(&h->fenced, tp->incarnation)) err = KVP_FENCED;
    pthread_rwlock_unlock(&h->lock);
    *site_out = h;
    return err;
}

static kvp_err_t
mem_ep_connect(kvp_tp_t *base, const kvp_addr_t *to, kvp_ep_t *base_ep, kvp_ep_done_fn done, void *arg)
{
    mem_ep_t *ep = kvp_container_of(base_ep, mem_ep_t, base);
    kvp_err_t err = enter_site(kvp_container_of(base, mem_tp_t, base), to, &ep->site);
    ep->is_broken = err != KVP_OK;
    done(arg, err);
    return KVP_OK;
}

static void
mem_ep_close(kvp_ep_t *base)
{
    mem_ep_t *ep = kvp_container_of(base, mem_ep_t, base);

    site_rele(ep->site);
}

static bool
mem_ep_is_broken(const kvp_ep_t *base)
{
    return kvp_container_of(base, const mem_ep_t, base)->is_broken;
}

static kvp_err_t
run_at_site(mem_ep_t *ep, kvp_xfer_t *xfer)
{
    kvp_access_t access = xfer->kind == KVP_XFER_READ ? KVP_ACCESS_READ : KVP_ACCESS_WRITE;
    kvp_exports_t *exports = &ep->site->exports;
    uint8_t *at;
    uint8_t *guard = NULL;
    kvp_err_t err = kvp_xfer_check(xfer);

    if (err != KVP_OK) return err;
    err = kvp_exports_resolve(exports, kvp_container_of(xfer->rseg, mem_rseg_t, base)->key, xfer->roffset, xfer->len,
                              access, &at, NULL);
    if (err != KVP_OK) return err;
    if (xfer->kind == KVP_XFER_WRITE && (xfer->flags & KVP_XFER_GUARDED) != 0) {
        err = kvp_exports_resolve(exports, kvp_container_of(xfer->guard_rseg, mem_rseg_t, base)->key, xfer->guard_off,
                                  8, KVP_ACCESS_READ, &guard, NULL);
        if (err != KVP_OK) return err;
        if (!kvp_words_fit(guard, 8)) return KVP_INVALID;
    }
    if (xfer->kind == KVP_XFER_PUBLISH && !kvp_words_fit(at, 8)) return KVP_INVALID;
    return kvp_local_run(&ep->local, xfer, at, guard);
}

static kvp_err_t
mem_submit(kvp_ep_t *base, kvp_xfer_t *const *xfers, size_t n, size_t *n_out)
{
    mem_ep_t *ep = kvp_container_of(base, mem_ep_t, base);
    uint64_t incarnation = kvp_container_of(base->tp, mem_tp_t, base)->incarnation;

    *n_out = 0;
    if (ep->is_broken) return KVP_DISCONNECTED;
    kvp_local_begin(&ep->local);
    for (size_t i = 0; i < n; i++) {
        kvp_err_t err = KVP_DISCONNECTED;

        pthread_rwlock_rdlock(&ep->site->lock);
        if (ep->site->is_gone || kvp_fenced_has(&ep->site->fenced, incarnation))
            ep->is_broken = true;
        else
            err = run_at_site(ep, xfers[i]);
        pthread_rwlock_unlock(&ep->site->lock);

        xfers[i]->status = err;
        *n_out = i + 1;
        xfers[i]->done(xfers[i]);
        if (ep->is_broken) return KVP_DISCONNECTED;
    }
    return KVP_OK;
}

static const kvp_transport_ops_t mem_ops = {
    .name = "mem",
    .caps = KVP_TP_SAME_HOST | KVP_TP_GUARDS | KVP_TP_SYNC,
    .tp_size = sizeof(mem_tp_t),
    .mr_size = sizeof(mem_mr_t),
    .ep_size = sizeof(mem_ep_t),
    .rseg_size = sizeof(mem_rseg_t),
    .init = mem_init,
    .fini = mem_fini,
    .listen = mem_listen,
    .peer_fence = mem_peer_fence,
    .quiesce = mem_quiesce,
    .mr_reg = mem_mr_reg,
    .mr_dereg = mem_mr_dereg,
    .mr_export = mem_mr_export,
    .rseg_open = mem_rseg_open,
    .rseg_close = mem_rseg_close,
    .ep_connect = mem_ep_connect,
    .ep_close = mem_ep_close,
    .submit = mem_submit,
    .ep_is_broken = mem_ep_is_broken,
};

static kvp_transport_ops_t filled;
static pthread_once_t filled_once = PTHREAD_ONCE_INIT;

static void
fill(void)
{
    filled = mem_ops;
    kvp_transport_fill(&filled);
}

const kvp_transport_ops_t *
mem_transport(void)
{
    pthread_once(&filled_once, fill);
    return &filled;
}
