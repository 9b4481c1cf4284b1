/* SPDX-License-Identifier: Apache-2.0
 * The table of the rdma transport, its instances and memory. Adapters move the data: see ask/ for the asking side,
 * serve/ for the serving side, docs/adr/0013 for the reasons. */
#include "transport/rdma/table.h"

#include "transport/rdma/ask/ep.h"
#include "transport/rdma/serve/peers.h"
#include "transport/rdma/serve/serve.h"
#include "transport/rdma/verbs/rank.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CONNS_DEFAULT 4096u
#define PROBE_TEXT_MAX 512u

/* The result of the first probe, which holds the devices open, because opening them takes too long for a call. */
static struct {
    pthread_once_t once;
    pid_t owner; /* the process that opened the devices */
    kvp_err_t err;
    char text[PROBE_TEXT_MAX];
} probed = {.once = PTHREAD_ONCE_INIT};

static void
probe_once(void)
{
    kvp_rdma_select_t selected;
    kvp_rdma_dev_t *dev;
    size_t n;
    const char *why;

    kvp_rdma_select_get(&selected);
    probed.err = kvp_verbs_ibv.devs_open(&selected, &dev, 1, &n, &why);
    probed.owner = getpid();
    snprintf(probed.text, sizeof probed.text, "%s", why);
}

static kvp_err_t
rdma_probe(const char **why_out)
{
    pthread_once(&probed.once, probe_once);
    *why_out = probed.text;
    if (probed.err != KVP_OK || probed.owner == getpid()) return probed.err;
    /* After a fork the kernel refuses calls through the parent's descriptors, and librdmacm opens no device twice. */
    *why_out = "this process was forked from a process that had opened its RDMA devices; open pools after the fork, or "
               "start a new process (multiprocessing: spawn)";
    return KVP_NOTSUP;
}

/* Returns whether an answer to a peer has room for the addresses of n devices. */
static bool
can_be_told(kvp_rdma_dev_t *const *devs, size_t n)
{
    kvp_rdma_answer_t answer = {.rails_n = (uint32_t)n};
    uint8_t bytes[KVP_RDMA_ANSWER_MAX];

    for (size_t i = 0; i < n; i++)
        answer.rails[i] = devs[i]->info.addr;
    return kvp_rdma_answer_encode(&answer, bytes) > 0;
}

/* Opens the devices. If an answer to a peer has no room for all, keeps those nearest to this thread's processor. */
static kvp_err_t
open_devs(kvp_rdma_tp_t *tp, const kvp_tp_conf_t *conf)
{
    kvp_rdma_dev_t *devs[KVP_RDMA_DEVS_MAX];
    kvp_rdma_place_t here = {.numa_node = -1, .pci = ""};
    kvp_rdma_select_t selected;
    unsigned node;
    const char *why;
    size_t n;
    kvp_err_t err;

    kvp_rdma_select_get(&selected);
    err = tp->verbs->devs_open(&selected, devs, KVP_ARRAY_LEN(devs), &n, &why);
    if (err != KVP_OK) {
        kvp_log_info("rdma", "not available: %s", why);
        return err;
    }
    if (syscall(SYS_getcpu, NULL, &node, NULL) == 0) here.numa_node = (int)node;
    tp->devs_n = kvp_rdma_keep_nearest(devs, n, &here, KVP_ARRAY_LEN(tp->devs));
    while (!can_be_told(devs, tp->devs_n))
        tp->devs_n = kvp_rdma_keep_nearest(devs, tp->devs_n, &here, tp->devs_n - 1);
    memcpy(tp->devs, devs, tp->devs_n * sizeof devs[0]);
    tp->base.mr_max_bytes = UINT64_MAX;
    for (size_t i = 0; i < tp->devs_n; i++) {
        tp->base.mr_max_bytes = kvp_min_u64(tp->base.mr_max_bytes, tp->devs[i]->info.max_reg_bytes);
        tp->needs_sums |= tp->devs[i]->info.is_soft && !conf->trusts_adapters;
    }
    return KVP_OK;
}

static const kvp_verbs_ops_t *
verbs_of(const void *own)
{
    return own != NULL ? own : &kvp_verbs_ibv;
}

static kvp_err_t
rdma_init(kvp_tp_t *base, const kvp_tp_conf_t *conf)
{
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base);
    kvp_err_t err;

    tp->verbs = verbs_of(conf->own);
    tp->incarnation = conf->incarnation;
    tp->is_incarnation_drawn = conf->is_incarnation_drawn;
    tp->max_conns = conf->max_conns == 0 ? CONNS_DEFAULT : conf->max_conns;
    tp->needs_attachment = conf->needs_attachment;
    tp->epoch = kvp_random_u64();
    memcpy(tp->pool_id, conf->pool_id, sizeof tp->pool_id);
    kvp_rdma_serving_init(&tp->serving);
    kvp_rdma_address_cache_init(&tp->addresses);
    kvp_rdma_paths_init(&tp->paths);
    err = open_devs(tp, conf);
    return err == KVP_OK ? kvp_mrcache_hold(tp->verbs, &tp->cache) : err;
}

static void
rdma_fini(kvp_tp_t *base)
{
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base);

    if (tp->verbs == NULL) return;
    kvp_rdma_serving_fini(tp);
    kvp_rdma_address_cache_fini(&tp->addresses);
    kvp_rdma_paths_fini(&tp->paths);
    if (tp->cache != NULL) kvp_mrcache_rele(tp->cache);
    if (tp->devs_n > 0) tp->verbs->devs_close();
}

/* ---- memory that is served */
static kvp_err_t
rdma_mr_reg(kvp_tp_t *base, const kvp_mem_t *mem, kvp_mr_t *base_mr)
{
    kvp_rdma_mr_t *mr = kvp_container_of(base_mr, kvp_rdma_mr_t, base);

    kvp_list_init(&mr->grants);
    if (mem->len > base->mr_max_bytes) return KVP_LIMIT;
    return kvp_rdma_regs_make(kvp_rdma_tp_of(base), mem->addr, mem->len, KVP_RDMA_READABLE, mr->regs);
}

static void
rdma_mr_dereg(kvp_mr_t *base)
{
    kvp_rdma_mr_t *mr = kvp_container_of(base, kvp_rdma_mr_t, base);
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base->tp);

    kvp_rdma_grants_drop(tp, mr);
    kvp_rdma_regs_drop(tp, mr->regs);
}

static kvp_err_t
rdma_mr_grant(kvp_mr_t *base, uint64_t incarnation)
{
    return kvp_rdma_grant_make(kvp_rdma_tp_of(base->tp), kvp_container_of(base, kvp_rdma_mr_t, base), incarnation);
}

static kvp_err_t
rdma_mr_export(const kvp_mr_t *base, kvp_access_t access, uint64_t incarnation, kvp_token_t *token_out)
{
    kvp_rdma_mr_t *mr = kvp_container_of((kvp_mr_t *)(uintptr_t)base, kvp_rdma_mr_t, base);
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base->tp);
    kvp_rdma_token_t keys = {
        .epoch = kvp_rdma_epoch(tp), /* read before the keys, so that keys of an old epoch never get a newer epoch */
        .addr = (uint64_t)(uintptr_t)base->addr,
        .len = base->len,
        .is_writable = access == KVP_ACCESS_WRITE,
        .rails_n = (uint32_t)tp->devs_n};
    kvp_err_t err = KVP_OK;

    for (size_t i = 0; i < tp->devs_n; i++)
        keys.rkeys[i] = mr->regs[i]->rkey;
    if (access == KVP_ACCESS_WRITE) err = kvp_rdma_grant_keys(tp, mr, incarnation, keys.rkeys);
    if (err == KVP_OK) kvp_rdma_token_encode(&keys, token_out);
    return err;
}

/* ---- devices that are removed and return */
static void
rdma_tend(kvp_tp_t *base)
{
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base);

    tp->verbs->devs_look();
    kvp_rdma_serving_tend(tp);
}

/* ---- memory of peers */
static kvp_err_t
rdma_rseg_open(kvp_tp_t *tp, const kvp_token_t *token, uint64_t len, kvp_access_t access, kvp_rseg_t *base)
{
    kvp_rdma_rseg_t *rseg = kvp_container_of(base, kvp_rdma_rseg_t, base);

    (void)tp;
    rseg->is_writable = access == KVP_ACCESS_WRITE;
    if (kvp_rdma_token_decode(token, &rseg->keys) != KVP_OK) return KVP_INVALID;
    if (rseg->is_writable && !rseg->keys.is_writable) return KVP_INVALID; /* the adapter would refuse the access */
    return len > rseg->keys.len ? KVP_INVALID : KVP_OK;
}

static void
rdma_rseg_close(kvp_rseg_t *rseg)
{
    (void)rseg;
}

static kvp_err_t
rdma_lend(const void *own, void *addr, size_t len, const kvp_devmem_t *device, kvp_loan_t **loan_out)
{
    return kvp_mrcache_lend(verbs_of(own), addr, len, device, loan_out);
}

const kvp_transport_ops_t kvp_rdma_ops = {
    .name = "rdma",
    .caps = KVP_TP_LATE_WRITES | KVP_TP_OWN_PORT | KVP_TP_SUM_ALONE | KVP_TP_DEVICE_MEM | KVP_TP_SLOW_REG,
    .tp_size = sizeof(kvp_rdma_tp_t),
    .mr_size = sizeof(kvp_rdma_mr_t),
    .rseg_size = sizeof(kvp_rdma_rseg_t),
    .ep_size = sizeof(kvp_rdma_ep_t),
    .probe = rdma_probe,
    .init = rdma_init,
    .fini = rdma_fini,
    .listen = kvp_rdma_listen,
    .serve = kvp_rdma_serve,
    .wake = kvp_rdma_wake,
    .peer_fence = kvp_rdma_peer_fence,
    .peer_cut = kvp_rdma_peer_cut,
    .peer_came = kvp_rdma_peer_came,
    .peer_left = kvp_rdma_peer_left,
    .mr_reg = rdma_mr_reg,
    .mr_dereg = rdma_mr_dereg,
    .mr_grant = rdma_mr_grant,
    .mr_export = rdma_mr_export,
    .lend = rdma_lend,
    .unlend = kvp_mrcache_unlend,
    .rseg_open = rdma_rseg_open,
    .rseg_close = rdma_rseg_close,
    .ep_connect = kvp_rdma_ep_connect,
    .ep_close = kvp_rdma_ep_close,
    .submit = kvp_rdma_submit,
    .drain = kvp_rdma_drain,
    .ep_poll = kvp_rdma_ep_poll,
    .ep_event_fd = kvp_rdma_ep_event_fd,
    .ep_arm = kvp_rdma_ep_arm,
    .ep_is_broken = kvp_rdma_ep_is_broken,
    .ep_is_stale = kvp_rdma_ep_is_stale,
    .tend = rdma_tend,
};
