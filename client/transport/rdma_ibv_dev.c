/* SPDX-License-Identifier: Apache-2.0
 * Devices of this machine and memory registered with them, by libibverbs.
 *
 * Design notes.
 * - Queue pairs are made by the connection manager, so devices are the contexts that it opened.
 */
#include "client/transport/rdma_ibv.h"

#include "client/transport/rdma_port.h"
#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define WHY_MAX 512u

typedef struct {
    kvp_rdma_reg_t base;
    struct ibv_mr *mr;
} ibv_reg_t;

static struct {
    pthread_mutex_t lock;
    const kvp_rdma_libs_t *libs; /* set once, before anybody has a device */
    struct ibv_context **list;
    kvp_ibv_dev_t devs[KVP_RDMA_DEVS_MAX];
    size_t devs_n;
    uint32_t users;
    bool is_wished; /* its user named devices, or a GID */
    char why[WHY_MAX]; /* no device is open */
} host = {.lock = PTHREAD_MUTEX_INITIALIZER};

kvp_err_t
kvp_ibv_err(void)
{
    switch (errno) {
    case ENOMEM:
        return KVP_NOMEM;
    case EINVAL:
    case EFAULT:
        return KVP_INVALID;
    case EOPNOTSUPP:
        return KVP_NOTSUP;
    default:
        return KVP_SYS;
    }
}

/* ---- devices */
static void
dev_close(kvp_ibv_dev_t *dev)
{
    if (dev->no_cq != NULL) (host.libs->ibv_destroy_cq)(dev->no_cq);
    if (dev->pd != NULL) (host.libs->ibv_dealloc_pd)(dev->pd);
    *dev = (kvp_ibv_dev_t){0};
}

static bool
dev_open(kvp_ibv_dev_t *dev, struct ibv_context *ctx, const kvp_rdma_info_t *info)
{
    *dev = (kvp_ibv_dev_t){.base = {.info = *info}, .ctx = ctx};
    dev->pd = (host.libs->ibv_alloc_pd)(ctx);
    if (dev->pd != NULL) dev->no_cq = (host.libs->ibv_create_cq)(ctx, 1, NULL, NULL, 0);
    if (dev->no_cq != NULL) return true;
    kvp_log_warn("rdma", "device is left out: %m name %s", info->name);
    dev_close(dev);
    return false;
}

/* Opens the ports that are wanted. What was named and cannot be used is an error; of the rest, what can be used is. */
static bool
open_ports(struct ibv_context *ctx, const kvp_rdma_want_t *want)
{
    struct ibv_device_attr attr;

    if ((host.libs->ibv_query_device)(ctx, &attr) != 0) return want->picks_n == 0;
    for (uint8_t port = 1; port <= attr.phys_port_cnt && host.devs_n < KVP_RDMA_DEVS_MAX; port++) {
        kvp_rdma_info_t info;

        if (!kvp_rdma_want_takes(want, ctx->device->name, port)) continue;
        if (kvp_rdma_port_info(host.libs, ctx, port, want->gid_index, &info, host.why, sizeof host.why)) {
            if (dev_open(&host.devs[host.devs_n], ctx, &info)) host.devs_n++;
        } else if (!kvp_rdma_want_is_any(want)) {
            return false;
        }
    }
    return true;
}

static void
close_all(void)
{
    while (host.devs_n > 0)
        dev_close(&host.devs[--host.devs_n]);
    if (host.list != NULL) (host.libs->rdma_free_devices)(host.list);
    host.list = NULL;
}

/* A name that no device has, or a port that it has not. */
static bool
is_there(const kvp_rdma_pick_t *pick, int n)
{
    struct ibv_device_attr attr;

    for (int i = 0; i < n; i++) {
        if (strcmp(host.list[i]->device->name, pick->name) != 0) continue;
        return (host.libs->ibv_query_device)(host.list[i], &attr) == 0 && pick->port <= attr.phys_port_cnt;
    }
    return false;
}

static bool
are_there(const kvp_rdma_want_t *want, int n)
{
    for (size_t i = 0; i < want->picks_n; i++) {
        const kvp_rdma_pick_t *pick = &want->picks[i];
        size_t len;

        if (is_there(pick, n)) continue;
        len = (size_t)snprintf(host.why, sizeof host.why, "there is no RDMA device %s", pick->name);
        if (pick->port != 0) len += (size_t)snprintf(host.why + len, sizeof host.why - len, ":%u", pick->port);
        for (int d = 0; d < n && len < sizeof host.why; d++)
            len += (size_t)snprintf(host.why + len, sizeof host.why - len, "%s%s", d == 0 ? ", only " : ", ",
                                    host.list[d]->device->name);
        return false;
    }
    return true;
}

static kvp_err_t
open_all(const kvp_rdma_want_t *want, const char **why_out)
{
    bool is_good;
    int n = 0;

    host.libs = kvp_rdma_libs(why_out);
    if (host.libs == NULL) return KVP_NOTSUP;
    snprintf(host.why, sizeof host.why, "there is no RDMA device");
    *why_out = host.why;
    host.list = (host.libs->rdma_get_devices)(&n);
    if (host.list == NULL) n = 0;
    is_good = are_there(want, n);
    for (int i = 0; is_good && i < n; i++)
        is_good = open_ports(host.list[i], want);
    host.is_wished = !kvp_rdma_want_is_any(want);
    if (is_good && host.devs_n > 0) return KVP_OK;
    close_all();
    return KVP_NOTSUP;
}

kvp_err_t
kvp_ibv_devs_open(const kvp_rdma_want_t *want, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
                  const char **why_out)
{
    static const kvp_rdma_want_t any = {.gid_index = KVP_RDMA_GID_BEST};
    kvp_err_t err = KVP_OK;

    *why_out = "";
    pthread_mutex_lock(&host.lock);
    if (host.users == 0) err = open_all(want == NULL ? &any : want, why_out);
    if (err == KVP_OK) {
        host.users++;
        *n_out = kvp_min_u64(host.devs_n, cap);
        for (size_t i = 0; i < *n_out; i++)
            devs_out[i] = &host.devs[i].base;
    }
    pthread_mutex_unlock(&host.lock);
    return err;
}

void
kvp_ibv_devs_close(void)
{
    pthread_mutex_lock(&host.lock);
    if (--host.users == 0) close_all();
    pthread_mutex_unlock(&host.lock);
}

const kvp_rdma_libs_t *
kvp_ibv_libs(void)
{
    return host.libs;
}

kvp_ibv_dev_t *
kvp_ibv_dev_at(size_t i)
{
    return i < host.devs_n ? &host.devs[i] : NULL;
}

kvp_ibv_dev_t *
kvp_ibv_dev_find(const struct rdma_cm_id *id)
{
    for (size_t i = 0; i < host.devs_n; i++)
        if (host.devs[i].ctx == id->verbs && host.devs[i].base.info.port == id->port_num) return &host.devs[i];
    return NULL;
}

bool
kvp_ibv_are_wished(void)
{
    return host.is_wished;
}

/* ---- memory */
static struct ibv_mr *
register_host(struct ibv_pd *pd, void *addr, size_t len, int flags)
{
    struct ibv_mr *mr = (host.libs->ibv_reg_mr)(pd, addr, len, flags);

    /* Memory that we may not write to can be sent from all the same. */
    if (mr == NULL && flags == IBV_ACCESS_LOCAL_WRITE && (errno == EFAULT || errno == EACCES))
        mr = (host.libs->ibv_reg_mr)(pd, addr, len, 0);
    return mr;
}

/* errno is that of the registration. That the memory lock is short is said once: what comes after it is short for the same
 * reason. */
static void
say_unregistered(const kvp_rdma_dev_t *dev, size_t len, int dmabuf_fd, kvp_err_t err)
{
    static atomic_flag was_said = ATOMIC_FLAG_INIT;
    struct rlimit lock;
    int no = errno;

    if (err == KVP_NOMEM && getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY) {
        if (atomic_flag_test_and_set(&was_said)) return;
        kvp_log_error(
            "rdma",
            "memory is not registered: this process may lock %llu bytes in all; raise that (ulimit -l unlimited, "
            "or LimitMEMLOCK=infinity of the service) device %s bytes %zu",
            (unsigned long long)lock.rlim_cur, dev->info.name, len);
        return;
    }
    errno = no;
    /* Memory of a GPU is tried in one way after the other, and the host's is never a bad address. */
    kvp_log_write(dmabuf_fd >= 0 || no == EFAULT ? KVP_LOG_INFO : KVP_LOG_ERROR, "rdma",
                  "memory is not registered%s: %m device %s bytes %zu", dmabuf_fd >= 0 ? " as a dma-buf" : "",
                  dev->info.name, len);
}

kvp_err_t
kvp_ibv_reg(kvp_rdma_dev_t *base, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd,
            kvp_rdma_reg_t **reg_out)
{
    kvp_ibv_dev_t *dev = kvp_container_of(base, kvp_ibv_dev_t, base);
    int flags = IBV_ACCESS_LOCAL_WRITE;
    ibv_reg_t *r = calloc(1, sizeof *r);

    if (r == NULL) return KVP_NOMEM;
    if (access != KVP_RDMA_LOCAL) flags |= IBV_ACCESS_REMOTE_READ;
    if (access == KVP_RDMA_WRITABLE) flags |= IBV_ACCESS_REMOTE_WRITE;
    if (dmabuf_fd < 0)
        r->mr = register_host(dev->pd, addr, len, flags);
    else
        r->mr = (host.libs->ibv_reg_dmabuf_mr)(dev->pd, 0, len, (uint64_t)(uintptr_t)addr, dmabuf_fd, flags);
    if (r->mr == NULL) {
        kvp_err_t err = kvp_ibv_err();

        say_unregistered(base, len, dmabuf_fd, err);
        free(r);
        return err;
    }
    r->base = (kvp_rdma_reg_t){.dev = base, .lkey = r->mr->lkey, .rkey = r->mr->rkey};
    *reg_out = &r->base;
    return KVP_OK;
}

void
kvp_ibv_dereg(kvp_rdma_reg_t *base)
{
    ibv_reg_t *r = kvp_container_of(base, ibv_reg_t, base);

    if ((host.libs->ibv_dereg_mr)(r->mr) != 0) kvp_panic("memory cannot be deregistered: %m");
    free(r);
}
