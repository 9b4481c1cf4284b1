/* SPDX-License-Identifier: Apache-2.0
 * The registry of transports and the allocating wrappers. A transport fills the slots that it has; the rest are given a
 * default here, so callers never test a slot for NULL. Any thread.
 */
#include "client/transport/builtin.h"

#include "common/forkguard.h"
#include "common/log.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Defaults. They are those of a transport that is synchronous and has no serving side. */
static kvp_err_t
default_listen(kvp_tp_t *tp, const kvp_addr_t *at, kvp_addr_t *bound_out)
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
default_wake(kvp_tp_t *tp)
{
    (void)tp;
}

/* Only right where no peer stores into our memory: a transport with writers must have its own. */
static void
default_peer_fence(kvp_tp_t *tp, uint64_t incarnation, uint64_t live_min, kvp_fence_fn done, void *arg)
{
    (void)tp, (void)live_min;
    done(arg, incarnation);
}

/* Only right where the serving side makes no copies of its own. */
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
default_lend(const struct kvp_verbs_ops *verbs, void *addr, size_t len, const kvp_devmem_t *device,
             kvp_loan_t **loan_out)
{
    (void)verbs, (void)addr, (void)len, (void)device, (void)loan_out;
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

static void
default_tend(kvp_tp_t *tp)
{
    (void)tp;
}

/* Every name that the configuration may hold, in this build or not. Tables are filled once and constant afterwards. */
static struct {
    const char *name;
    const kvp_transport_ops_t *builtin;
    kvp_transport_ops_t ops;
} registry[] = {
    {.name = "shm", .builtin = &kvp_shm_ops},
#ifdef KVP_HAVE_RDMA
    {.name = "rdma", .builtin = &kvp_rdma_ops},
#else
    {.name = "rdma"},
#endif
    {.name = "tcp", .builtin = &kvp_tcp_ops},
    {.name = "mem", .builtin = &kvp_mem_ops},
};
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;

static void
fill_defaults(kvp_transport_ops_t *ops)
{
    if (ops->probe == NULL) ops->probe = default_probe;
    if (ops->listen == NULL) ops->listen = default_listen;
    if (ops->adopt == NULL) ops->adopt = default_adopt;
    if (ops->serve == NULL) ops->serve = default_serve;
    if (ops->wake == NULL) ops->wake = default_wake;
    if (ops->peer_fence == NULL) ops->peer_fence = default_peer_fence;
    if (ops->quiesce == NULL) ops->quiesce = default_quiesce;
    if (ops->peer_cut == NULL) ops->peer_cut = default_of_peer;
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
    if (ops->tend == NULL) ops->tend = default_tend;
    if (ops->init == NULL || ops->fini == NULL || ops->mr_reg == NULL || ops->mr_dereg == NULL ||
        ops->rseg_open == NULL || ops->rseg_close == NULL || ops->ep_connect == NULL || ops->ep_close == NULL ||
        ops->submit == NULL)
        kvp_panic("transport %s lacks a mandatory slot", ops->name);
}

static void
register_all(void)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(registry); i++) {
        if (registry[i].builtin == NULL) continue;
        registry[i].ops = *registry[i].builtin;
        fill_defaults(&registry[i].ops);
    }
}

void
kvp_transports_init(void)
{
    pthread_once(&registry_once, register_all);
}

const kvp_transport_ops_t *
kvp_transport_find(const char *name)
{
    kvp_transports_init();
    for (size_t i = 0; i < KVP_ARRAY_LEN(registry); i++)
        if (registry[i].builtin != NULL && strcmp(registry[i].name, name) == 0) return &registry[i].ops;
    return NULL;
}

static bool
is_name(const char *name, const char *text, size_t len)
{
    return strlen(name) == len && memcmp(name, text, len) == 0;
}

/* find_usable finds the name in text[0..len): INVALID where it is unknown, NOTSUP where this build or machine lacks it. */
static kvp_err_t
find_usable(const char *text, size_t len, const kvp_transport_ops_t **ops_out, char *why, size_t why_cap)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(registry); i++) {
        const char *lacks = "this build has none";

        if (!is_name(registry[i].name, text, len)) continue;
        if (registry[i].builtin != NULL && registry[i].ops.probe(&lacks) == KVP_OK) {
            *ops_out = &registry[i].ops;
            return KVP_OK;
        }
        snprintf(why, why_cap, "%s cannot be used here: %s", registry[i].name, lacks);
        return KVP_NOTSUP;
    }
    snprintf(why, why_cap, "there is no transport \"%.*s\", but shm, rdma and tcp", (int)kvp_min_u64(len, 64), text);
    return KVP_INVALID;
}

kvp_err_t
kvp_transports_parse(const char *text, const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why,
                     size_t why_cap)
{
    const char *at = text;
    size_t n = 0;

    kvp_transports_init();
    /* Names and commas in turn: there is a name before the first comma, and behind every one. */
    for (bool is_more = true; is_more; is_more = *at++ == ',') {
        size_t len = strcspn(at, ",");
        const kvp_transport_ops_t *ops = NULL;
        kvp_err_t err = find_usable(at, len, &ops, why, why_cap);

        if (err != KVP_OK) return err;
        for (size_t i = 0; i < n; i++) {
            if (list[i] != ops) continue;
            snprintf(why, why_cap, "%s is named twice", ops->name);
            return KVP_INVALID;
        }
        if (n == cap) return KVP_LIMIT;
        list[n++] = ops;
        at += len;
    }
    *n_out = n;
    return KVP_OK;
}

kvp_err_t
kvp_transports_wish(const char *rdma_device, const char *rdma_gid_index, char *why, size_t cap)
{
    kvp_rdma_want_t want;
    kvp_err_t err = kvp_rdma_want_parse(rdma_device, rdma_gid_index, &want, why, cap);

    if (err == KVP_OK) kvp_rdma_want_set(&want);
    return err;
}

kvp_err_t
kvp_transports_default(const kvp_transport_ops_t **list, size_t cap, size_t *n_out, char *why, size_t why_cap)
{
    static const char *const names[] = {"shm", "rdma", "tcp"};
    kvp_rdma_want_t want;
    size_t n = 0;

    if (why_cap > 0) why[0] = '\0';
    kvp_transports_init();
    kvp_rdma_want_get(&want);
    for (size_t i = 0; i < KVP_ARRAY_LEN(names) && n < cap; i++) {
        if (find_usable(names[i], strlen(names[i]), &list[n], why, why_cap) == KVP_OK)
            n++;
        else if (strcmp(names[i], "rdma") == 0 && !kvp_rdma_want_is_any(&want))
            return KVP_NOTSUP; /* a device was named: what it is for is not left out silently */
    }
    *n_out = n;
    return KVP_OK;
}

bool
kvp_transports_has_adapter(void)
{
    DIR *dir = opendir("/sys/class/infiniband");
    const struct dirent *entry;
    bool is_there = false;

    while (dir != NULL && (entry = readdir(dir)) != NULL)
        is_there |= entry->d_name[0] != '.';
    if (dir != NULL) closedir(dir);
    return is_there;
}

size_t
kvp_transports_rdma_ports(kvp_rdma_info_t *ports_out, size_t cap)
{
    size_t n = 0;
#ifdef KVP_HAVE_RDMA
    kvp_rdma_dev_t *devs[KVP_RDMA_DEVS_MAX];
    kvp_rdma_want_t want;
    const char *why;

    kvp_rdma_want_get(&want);
    if (kvp_verbs_ibv.devs_open(&want, devs, KVP_ARRAY_LEN(devs), &n, &why) != KVP_OK) return 0;
    n = kvp_min_u64(n, cap);
    for (size_t i = 0; i < n; i++)
        ports_out[i] = devs[i]->info;
    kvp_verbs_ibv.devs_close();
#else
    (void)ports_out, (void)cap;
#endif
    return n;
}

void
kvp_transports_tend(void)
{
#ifdef KVP_HAVE_RDMA
    kvp_verbs_ibv.devs_look();
#endif
}

static bool
is_in_range(const kvp_rseg_t *rseg, uint64_t off, uint64_t len)
{
    return rseg != NULL && off <= rseg->len && len <= rseg->len - off;
}

kvp_err_t
kvp_xfer_check(const kvp_xfer_t *xfer)
{
    uint64_t sum = 0;

    if (xfer->len == 0 || !is_in_range(xfer->rseg, xfer->roffset, xfer->len)) return KVP_INVALID;
    if (xfer->kind == KVP_XFER_PUBLISH) return xfer->len == 8 && xfer->roffset % 8 == 0 ? KVP_OK : KVP_INVALID;
    if (xfer->kind != KVP_XFER_READ && xfer->kind != KVP_XFER_WRITE) return KVP_INVALID;
    if ((xfer->flags & KVP_XFER_DEVICE) != 0 && (xfer->flags & KVP_XFER_SUM) != 0) return KVP_INVALID;
    for (uint32_t i = 0; i < xfer->iov_n; i++) {
        if (xfer->iov[i].len > xfer->len - sum) return KVP_INVALID;
        sum += xfer->iov[i].len;
    }
    if (sum != xfer->len) return KVP_INVALID;
    if (xfer->kind == KVP_XFER_WRITE && (xfer->flags & KVP_XFER_GUARDED) != 0 &&
        (xfer->guard_off % 8 != 0 || !is_in_range(xfer->guard_rseg, xfer->guard_off, 8)))
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
kvp_ep_create(kvp_tp_t *tp, const kvp_addr_t *to, kvp_ep_done_fn done, void *arg, kvp_ep_t **ep_out)
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
