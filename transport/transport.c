/* SPDX-License-Identifier: Apache-2.0
 * The part that all transports share: default functions for the empty slots of a transport's table, so that callers
 * never test a slot for NULL; the checks of a transfer; and the functions that allocate. all/registry.c lists the
 * transports. Any thread. */
#include "transport/inside.h"

#include "common/forkguard.h"
#include "common/log.h"

#include <stdlib.h>

/* The functions that fill empty slots of a transport's table. They suit a synchronous transport that serves no peer. */
static kvp_err_t
default_listen(kvp_tp_t *tp, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
{
    (void)tp, (void)at, (void)bound_out;
    return KVP_NOTSUP;
}

static kvp_err_t
default_adopt(kvp_tp_t *tp, int fd)
{
    (void)tp;
    kvp_forkguard_close(fd);
    return KVP_NOTSUP;
}

static kvp_err_t
default_serve(kvp_tp_t *tp, uint32_t lane, int timeout_ms)
{
    (void)tp, (void)lane, (void)timeout_ms;
    return KVP_NOTSUP;
}

static void
default_wake_or_tend(kvp_tp_t *tp)
{
    (void)tp;
}

/* The empty slot peer_fence calls done at once: right only for a transport to which no peer writes. */
static void
default_peer_fence(kvp_tp_t *tp, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done, void *arg)
{
    (void)tp, (void)live_min;
    done(arg, dead.last);
}

/* The empty slot quiesce calls done at once: right only for a transport whose serving side makes no copies. */
static void
default_quiesce(kvp_tp_t *tp, kvp_quiesce_fn done, void *arg)
{
    (void)tp;
    done(arg);
}

static kvp_err_t
default_mr_grant(kvp_mr_t *mr, uint64_t incarnation)
{
    (void)mr, (void)incarnation;
    return KVP_OK;
}

static kvp_err_t
default_mr_export(const kvp_mr_t *mr, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out)
{
    (void)mr, (void)access, (void)incarnation, (void)token_out;
    return KVP_NOTSUP;
}

static kvp_err_t
default_lend(const void *own, void *addr, size_t len, const kvp_devmem_t *device, kvp_loan_t **loan_out)
{
    (void)own, (void)addr, (void)len, (void)device, (void)loan_out;
    return KVP_NOTSUP;
}

static void
default_unlend(kvp_loan_t *loan)
{
    (void)loan;
}

static kvp_err_t
default_probe(const char **why_out)
{
    *why_out = "";
    return KVP_OK;
}

static void
default_of_peer(kvp_tp_t *tp, uint64_t incarnation)
{
    (void)tp, (void)incarnation;
}

static kvp_err_t
default_drain(kvp_ep_t *ep, uint64_t deadline_ns)
{
    (void)ep, (void)deadline_ns;
    return KVP_OK;
}

static size_t
default_ep_poll(kvp_ep_t *ep)
{
    (void)ep;
    return 0;
}

static int
default_ep_event_fd(kvp_ep_t *ep)
{
    (void)ep;
    return -1;
}

static short
default_ep_arm(kvp_ep_t *ep)
{
    (void)ep;
    return 0;
}

static bool
default_ep_is_broken(const kvp_ep_t *ep)
{
    (void)ep;
    return false;
}

void
kvp_transport_fill(kvp_transport_ops_t *ops)
{
    if (ops->probe == NULL) ops->probe = default_probe;
    if (ops->listen == NULL) ops->listen = default_listen;
    if (ops->adopt == NULL) ops->adopt = default_adopt;
    if (ops->serve == NULL) ops->serve = default_serve;
    if (ops->wake == NULL) ops->wake = default_wake_or_tend;
    if (ops->peer_fence == NULL) ops->peer_fence = default_peer_fence;
    if (ops->quiesce == NULL) ops->quiesce = default_quiesce;
    if (ops->peer_cut == NULL) ops->peer_cut = default_of_peer;
    if (ops->peer_came == NULL) ops->peer_came = default_of_peer;
    if (ops->peer_left == NULL) ops->peer_left = default_of_peer;
    if (ops->mr_grant == NULL) ops->mr_grant = default_mr_grant;
    if (ops->mr_export == NULL) ops->mr_export = default_mr_export;
    if (ops->lend == NULL) ops->lend = default_lend;
    if (ops->unlend == NULL) ops->unlend = default_unlend;
    if (ops->drain == NULL) ops->drain = default_drain;
    if (ops->ep_poll == NULL) ops->ep_poll = default_ep_poll;
    if (ops->ep_event_fd == NULL) ops->ep_event_fd = default_ep_event_fd;
    if (ops->ep_arm == NULL) ops->ep_arm = default_ep_arm;
    if (ops->ep_is_broken == NULL) ops->ep_is_broken = default_ep_is_broken;
    if (ops->ep_is_stale == NULL) ops->ep_is_stale = default_ep_is_broken;
    if (ops->tend == NULL) ops->tend = default_wake_or_tend;
    if (ops->init == NULL || ops->fini == NULL || ops->mr_reg == NULL || ops->mr_dereg == NULL ||
        ops->rseg_open == NULL || ops->rseg_close == NULL || ops->ep_connect == NULL || ops->ep_close == NULL ||
        ops->submit == NULL)
        kvp_panic("transport %s lacks a mandatory slot", ops->name);
}

kvp_err_t
kvp_xfer_check(const kvp_xfer_t *xfer)
{
    uint64_t sum = 0;

    if (xfer->len == 0 || xfer->rseg == NULL || !kvp_rseg_has(xfer->rseg, xfer->roffset, xfer->len)) return KVP_INVALID;
    if (xfer->kind == KVP_XFER_PUBLISH) return xfer->len == 8 && xfer->roffset % 8 == 0 ? KVP_OK : KVP_INVALID;
    if (xfer->kind != KVP_XFER_READ && xfer->kind != KVP_XFER_WRITE) return KVP_INVALID;
    if ((xfer->flags & KVP_XFER_DEVICE) != 0 && (xfer->flags & KVP_XFER_SUM) != 0) return KVP_INVALID;
    for (uint32_t i = 0; i < xfer->iov_n; i++) {
        if (xfer->iov[i].len > xfer->len - sum) return KVP_INVALID;
        sum += xfer->iov[i].len;
    }
    if (sum != xfer->len) return KVP_INVALID;
    if (xfer->kind == KVP_XFER_WRITE && (xfer->flags & KVP_XFER_GUARDED) != 0 &&
        (xfer->guard_off % 8 != 0 || xfer->guard_rseg == NULL || !kvp_rseg_has(xfer->guard_rseg, xfer->guard_off, 8)))
        return KVP_INVALID;
    return KVP_OK;
}

kvp_err_t
kvp_tp_create(const kvp_transport_ops_t *ops, const kvp_tp_conf_t *conf, kvp_tp_t **tp_out)
{
    kvp_tp_t *tp = calloc(1, ops->tp_size);
    kvp_err_t err;

    if (tp == NULL) return KVP_NOMEM;
    tp->ops = ops;
    err = ops->init(tp, conf);
    if (err != KVP_OK) {
        kvp_tp_destroy(tp);
        return err;
    }
    *tp_out = tp;
    return KVP_OK;
}

void
kvp_tp_destroy(kvp_tp_t *tp)
{
    if (tp == NULL) return;
    tp->ops->fini(tp);
    free(tp);
}

kvp_err_t
kvp_mr_create(kvp_tp_t *tp, const kvp_mem_t *mem, kvp_mr_t **mr_out)
{
    kvp_mr_t *mr = calloc(1, tp->ops->mr_size);
    kvp_err_t err;

    if (mr == NULL) return KVP_NOMEM;
    *mr = (kvp_mr_t){.tp = tp, .addr = mem->addr, .len = mem->len};
    err = tp->ops->mr_reg(tp, mem, mr);
    if (err != KVP_OK) {
        free(mr);
        return err;
    }
    *mr_out = mr;
    return KVP_OK;
}

void
kvp_mr_destroy(kvp_mr_t *mr)
{
    if (mr == NULL) return;
    mr->tp->ops->mr_dereg(mr);
    free(mr);
}

kvp_err_t
kvp_rseg_create(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t **rseg_out)
{
    kvp_rseg_t *rseg = calloc(1, tp->ops->rseg_size);
    kvp_err_t err;

    if (rseg == NULL) return KVP_NOMEM;
    *rseg = (kvp_rseg_t){.tp = tp, .len = len};
    err = tp->ops->rseg_open(tp, token, len, access, rseg);
    if (err != KVP_OK) {
        free(rseg);
        return err;
    }
    *rseg_out = rseg;
    return KVP_OK;
}

void
kvp_rseg_destroy(kvp_rseg_t *rseg)
{
    if (rseg == NULL) return;
    rseg->tp->ops->rseg_close(rseg);
    free(rseg);
}

kvp_err_t
kvp_ep_create(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_done_fn done, void *arg, kvp_ep_t **ep_out)
{
    kvp_ep_t *ep = calloc(1, tp->ops->ep_size);
    kvp_err_t err;

    if (ep == NULL) return KVP_NOMEM;
    ep->tp = tp;
    err = tp->ops->ep_connect(tp, to, ep, done, arg);
    if (err != KVP_OK) {
        free(ep);
        return err;
    }
    kvp_forkguard_add(tp->ops->ep_event_fd(ep));
    *ep_out = ep;
    return KVP_OK;
}

void
kvp_ep_destroy(kvp_ep_t *ep)
{
    if (ep == NULL) return;
    kvp_forkguard_del(ep->tp->ops->ep_event_fd(ep));
    ep->tp->ops->ep_close(ep);
    free(ep);
}
