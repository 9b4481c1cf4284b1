/* SPDX-License-Identifier: Apache-2.0
 * Memory registered with the devices of this machine, by libibverbs. Any thread.
 *
 * Design notes.
 * - A registration outlives its device: while the device is removed the registration has no keys, and after the return
 *   new keys. If the returned device refuses local memory (LOCAL), only this registration is lost. If it refuses memory
 *   that is served to peers, the device stays removed, because peers would get no key for the memory.
 * - regs_lock is taken inside host.lock (ibv_dev.c), and is never held during registration or deregistration, which
 *   take long. */
#include "transport/rdma/verbs/ibv.h"

#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct {
    kvp_rdma_reg_t base;
    /* link in one of the device's lists regs and missing; in no list = lost; guarded by regs_lock */
    kvp_list_t link;
    struct ibv_mr *mr; /* the library's registration; NULL while the memory is not registered */
    bool is_busy; /* a thread is registering the memory, or deregisters it with the whole device */
    void *addr;
    size_t len;
    kvp_rdma_access_t access;
    int dmabuf_fd; /* our own descriptor of the dma-buf; -1 = host memory */
} ibv_reg_t;

static pthread_mutex_t regs_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t regs_changed = PTHREAD_COND_INITIALIZER; /* signalled when a registration is no longer busy */

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

static struct ibv_mr *
register_host(struct ibv_pd *pd, void *addr, size_t len, int flags)
{
    struct ibv_mr *mr = (kvp_ibv_libs()->ibv_reg_mr)(pd, addr, len, flags);

    /* Memory that this process may only read can still be registered, as a source of writes. */
    if (mr == NULL && flags == IBV_ACCESS_LOCAL_WRITE && (errno == EFAULT || errno == EACCES))
        mr = (kvp_ibv_libs()->ibv_reg_mr)(pd, addr, len, 0);
    return mr;
}

/* Logs that memory could not be registered, with the cause in errno. A failure by RLIMIT_MEMLOCK is logged only once,
 * because later failures have the same cause. */
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
            "or LimitMEMLOCK=infinity of the service) device=%s bytes=%zu",
            (unsigned long long)lock.rlim_cur, dev->info.name, len);
        return;
    }
    errno = no;
    /* Only an info line for GPU memory, which is then registered in another way or copied, and for a bad address, which
     * is no error of the host's setup. */
    kvp_log_write(dmabuf_fd >= 0 || no == EFAULT ? KVP_LOG_INFO : KVP_LOG_ERROR, "rdma",
                  "memory is not registered%s: %m device=%s bytes=%zu", dmabuf_fd >= 0 ? " as a dma-buf" : "",
                  dev->info.name, len);
}

static struct ibv_mr *
reg_make(const ibv_reg_t *r, struct ibv_pd *pd)
{
    int flags = IBV_ACCESS_LOCAL_WRITE;

    if (r->access != KVP_RDMA_LOCAL) flags |= IBV_ACCESS_REMOTE_READ;
    if (r->access == KVP_RDMA_WRITABLE) flags |= IBV_ACCESS_REMOTE_WRITE;
    if (r->dmabuf_fd < 0) return register_host(pd, r->addr, r->len, flags);
    return (kvp_ibv_libs()->ibv_reg_dmabuf_mr)(pd, 0, r->len, (uint64_t)(uintptr_t)r->addr, r->dmabuf_fd, flags);
}

/* Logs that a registration was refused, and returns its error, which is read from errno. */
static kvp_err_t
reg_refused(const ibv_reg_t *r)
{
    kvp_err_t err = kvp_ibv_err();

    say_unregistered(r->base.dev, r->len, r->dmabuf_fd, err);
    return err;
}

/* ---- states. The lock is held. */
static void
set_idle(ibv_reg_t *r)
{
    r->is_busy = false;
    pthread_cond_broadcast(&regs_changed);
}

static void
reg_made(kvp_ibv_dev_t *dev, ibv_reg_t *r, struct ibv_mr *mr)
{
    r->mr = mr;
    r->base.lkey = mr->lkey;
    r->base.rkey = mr->rkey;
    kvp_list_del(&r->link);
    kvp_list_add_tail(&dev->regs, &r->link);
}

static void
reg_free(ibv_reg_t *r)
{
    if (r->dmabuf_fd >= 0) close(r->dmabuf_fd);
    free(r);
}

/* Registers memory with the device. Lists the registration as missing before the check for removal, so that the thread
 * that handles the device's return finds it. A registration that fails because the device was removed stays listed. */
static kvp_err_t
reg_begin(kvp_ibv_dev_t *dev, ibv_reg_t *r)
{
    struct ibv_mr *mr = NULL;
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&regs_lock);
    r->is_busy = true;
    kvp_list_add_tail(&dev->missing, &r->link);
    pthread_mutex_unlock(&regs_lock);
    if (kvp_ibv_dev_pin(dev)) {
        mr = reg_make(r, dev->pd);
        if (mr == NULL && !kvp_ibv_dev_has_gone(dev)) err = reg_refused(r);
    }
    pthread_mutex_lock(&regs_lock);
    if (mr != NULL) reg_made(dev, r, mr);
    if (err != KVP_OK) kvp_list_del(&r->link);
    set_idle(r);
    pthread_mutex_unlock(&regs_lock);
    kvp_ibv_dev_rele(dev);
    return err;
}

kvp_err_t
kvp_ibv_reg(kvp_rdma_dev_t *base, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd,
            kvp_rdma_reg_t **reg_out)
{
    ibv_reg_t *r = calloc(1, sizeof *r);
    kvp_err_t err = KVP_OK;

    if (r == NULL) return KVP_NOMEM;
    kvp_list_init(&r->link);
    r->base.dev = base;
    r->addr = addr;
    r->len = len;
    r->access = access;
    r->dmabuf_fd = dmabuf_fd < 0 ? -1 : fcntl(dmabuf_fd, F_DUPFD_CLOEXEC, 0);
    if (dmabuf_fd >= 0 && r->dmabuf_fd < 0) err = KVP_SYS;
    if (err == KVP_OK) err = reg_begin(kvp_container_of(base, kvp_ibv_dev_t, base), r);
    if (err != KVP_OK) {
        reg_free(r);
        return err;
    }
    *reg_out = &r->base;
    return KVP_OK;
}

/* Ends a registration. A removed device may refuse this, but then moves no bytes any more. */
void
kvp_ibv_dereg(kvp_rdma_reg_t *base)
{
    kvp_ibv_dev_t *dev = kvp_container_of(base->dev, kvp_ibv_dev_t, base);
    ibv_reg_t *r = kvp_container_of(base, ibv_reg_t, base);
    bool is_there = kvp_ibv_dev_pin(dev);
    struct ibv_mr *mr;

    pthread_mutex_lock(&regs_lock);
    while (r->is_busy)
        pthread_cond_wait(&regs_changed, &regs_lock);
    mr = r->mr;
    kvp_list_del(&r->link);
    pthread_mutex_unlock(&regs_lock);
    if (mr != NULL && (kvp_ibv_libs()->ibv_dereg_mr)(mr) != 0 && is_there && kvp_rdma_is_present(dev->ctx))
        kvp_panic("memory cannot be deregistered: %m");
    kvp_ibv_dev_rele(dev);
    reg_free(r);
}

/* ---- all registrations of a device */
void
kvp_ibv_regs_drop(kvp_ibv_dev_t *dev)
{
    pthread_mutex_lock(&regs_lock);
    while (!kvp_list_is_empty(&dev->regs)) {
        ibv_reg_t *r = kvp_list_first(&dev->regs, ibv_reg_t, link);
        struct ibv_mr *mr = r->mr;

        r->is_busy = true;
        r->mr = NULL;
        r->base.lkey = r->base.rkey = 0;
        kvp_list_del(&r->link);
        kvp_list_add_tail(&dev->missing, &r->link);
        pthread_mutex_unlock(&regs_lock);
        (void)(kvp_ibv_libs()->ibv_dereg_mr)(mr);
        pthread_mutex_lock(&regs_lock);
        set_idle(r);
    }
    pthread_mutex_unlock(&regs_lock);
}

bool
kvp_ibv_regs_are_missing(const kvp_ibv_dev_t *dev)
{
    bool is_any;

    pthread_mutex_lock(&regs_lock);
    is_any = !kvp_list_is_empty(&dev->missing);
    pthread_mutex_unlock(&regs_lock);
    return is_any;
}

/* Makes one missing registration with a returned device. Returns false if the device must stay removed. Called and left
 * with regs_lock held, which is released during the registration. */
static bool
make_again(kvp_ibv_dev_t *dev, ibv_reg_t *r)
{
    bool is_lost = false;
    struct ibv_mr *mr;

    r->is_busy = true;
    pthread_mutex_unlock(&regs_lock);
    mr = reg_make(r, dev->pd);
    if (mr == NULL && !kvp_ibv_dev_is_dead(dev)) {
        (void)reg_refused(r);
        is_lost = r->access == KVP_RDMA_LOCAL;
    }
    pthread_mutex_lock(&regs_lock);
    if (mr != NULL) reg_made(dev, r, mr);
    if (is_lost) kvp_list_del(&r->link);
    r->base.is_lost = is_lost;
    set_idle(r);
    return mr != NULL || is_lost;
}

bool
kvp_ibv_regs_make(kvp_ibv_dev_t *dev)
{
    bool is_ready = true;

    pthread_mutex_lock(&regs_lock);
    while (is_ready && !kvp_list_is_empty(&dev->missing)) {
        ibv_reg_t *r = kvp_list_first(&dev->missing, ibv_reg_t, link);

        if (r->is_busy) /* another thread is registering this memory, or moving it to `missing`: wait for it */
            pthread_cond_wait(&regs_changed, &regs_lock);
        else
            is_ready = make_again(dev, r);
    }
    pthread_mutex_unlock(&regs_lock);
    return is_ready;
}
