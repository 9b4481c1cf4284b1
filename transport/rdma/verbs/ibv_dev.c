/* SPDX-License-Identifier: Apache-2.0
 * The RDMA devices of this machine, by libibverbs. Any thread.
 *
 * Design notes.
 * - librdmacm makes the queue pairs, so the devices here are the contexts that librdmacm opened.
 * - A removed device keeps its place in devs. Once no id uses it, a thread deregisters its memory and closes its
 *   context, because some kernels would otherwise wait with the removal for ever. When a device of the same name,
 *   address and limits returns, a thread registers the memory again. With much memory either takes seconds, so
 *   host.lock is not held meanwhile: threads that close connections, and through them a node's heartbeats, wait for
 *   this lock.
 * - librdmacm opens and closes contexts whenever the list of devices is requested. So the list is requested only while
 *   no thread uses a device that left the list. */
#include "transport/rdma/verbs/ibv.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WHY_MAX 512u
#define LOOK_NS KVP_NS_PER_S /* the time between two looks at the devices */
#define LOOK_AGAIN_NS (10 * KVP_NS_PER_S) /* the time until the next look if a returned device could not be used */

static struct {
    pthread_mutex_t lock;
    const kvp_rdma_libs_t *libs; /* the libraries' functions; set by the first devs_open, then constant */
    struct ibv_context **list;
    kvp_ibv_dev_t devs[KVP_RDMA_DEVS_MAX];
    size_t devs_n;
    uint32_t users;
    pid_t owner; /* the process that opened the devices; a forked child cannot use them */
    kvp_rdma_select_t selected;
    uint64_t look_ns; /* the time of the next look at the devices */
    kvp_ibv_dev_t *back; /* the returned device that a thread is making ready; NULL = none */
    uint32_t leaving_n; /* the number of removed devices that threads are closing */
    pthread_cond_t changed; /* signalled when `back` or `leaving_n` changes */
    char why[WHY_MAX]; /* the reason why no device is open */
} host = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* ---- devices */
static void
dev_drop(kvp_ibv_dev_t *dev)
{
    if (dev->no_cq != NULL) (void)(host.libs->ibv_destroy_cq)(dev->no_cq);
    if (dev->pd != NULL) (void)(host.libs->ibv_dealloc_pd)(dev->pd);
    dev->no_cq = NULL;
    dev->pd = NULL;
    dev->ctx = NULL;
}

static bool
dev_make(kvp_ibv_dev_t *dev, struct ibv_context *ctx)
{
    dev->ctx = ctx;
    dev->is_dead = false;
    dev->pd = (host.libs->ibv_alloc_pd)(ctx);
    if (dev->pd != NULL) dev->no_cq = (host.libs->ibv_create_cq)(ctx, 1, NULL, NULL, 0);
    if (dev->no_cq != NULL) return true;
    kvp_log_warn("rdma", "device is left out: %m name=%s", dev->base.info.name);
    dev_drop(dev);
    return false;
}

static bool
dev_open(kvp_ibv_dev_t *dev, struct ibv_context *ctx, const kvp_rdma_info_t *info)
{
    *dev = (kvp_ibv_dev_t){.base = {.info = *info}};
    kvp_list_init(&dev->regs);
    kvp_list_init(&dev->missing);
    return dev_make(dev, ctx);
}

/* Opens the selected ports of a device. Returns false if a selected port cannot be used. If the user selected nothing,
 * unusable ports are skipped. */
static bool
open_ports(struct ibv_context *ctx, const kvp_rdma_select_t *selected)
{
    struct ibv_device_attr attr;

    if ((host.libs->ibv_query_device)(ctx, &attr) != 0) return selected->picks_n == 0;
    for (uint8_t port = 1; port <= attr.phys_port_cnt && host.devs_n < KVP_RDMA_DEVS_MAX; port++) {
        kvp_rdma_info_t info;

        if (!kvp_rdma_select_takes(selected, ctx->device->name, port)) continue;
        if (kvp_rdma_port_info(host.libs, ctx, port, selected->gid_index, &info, host.why, sizeof host.why)) {
            if (dev_open(&host.devs[host.devs_n], ctx, &info)) host.devs_n++;
        } else if (!kvp_rdma_select_is_any(selected)) {
            return false;
        }
    }
    return true;
}

static void
close_all(void)
{
    while (host.devs_n > 0)
        dev_drop(&host.devs[--host.devs_n]);
    if (host.list != NULL) (host.libs->rdma_free_devices)(host.list);
    host.list = NULL;
}

/* Returns whether a device of the machine has the selected name, and has the selected port. */
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
are_there(const kvp_rdma_select_t *selected, int n)
{
    for (size_t i = 0; i < selected->picks_n; i++) {
        const kvp_rdma_pick_t *pick = &selected->picks[i];
        size_t len;

        if (is_there(pick, n)) continue;
        len = (size_t)snprintf(host.why, sizeof host.why, "no RDMA device %s", pick->name);
        if (pick->port != 0) len += (size_t)snprintf(host.why + len, sizeof host.why - len, ":%u", pick->port);
        for (int d = 0; d < n && len < sizeof host.why; d++)
            len += (size_t)snprintf(host.why + len, sizeof host.why - len, "%s%s", d == 0 ? ", only " : ", ",
                                    host.list[d]->device->name);
        return false;
    }
    return true;
}

static kvp_err_t
open_all(const kvp_rdma_select_t *selected, const char **why_out)
{
    bool is_good;
    int n = 0;

    host.libs = kvp_rdma_libs(why_out);
    if (host.libs == NULL) return KVP_NOTSUP;
    snprintf(host.why, sizeof host.why, "no RDMA device");
    *why_out = host.why;
    host.list = (host.libs->rdma_get_devices)(&n);
    if (host.list == NULL) n = 0;
    is_good = are_there(selected, n);
    for (int i = 0; is_good && i < n; i++)
        is_good = open_ports(host.list[i], selected);
    host.selected = *selected;
    host.owner = getpid();
    if (is_good && host.devs_n > 0) return KVP_OK;
    close_all();
    return KVP_NOTSUP;
}

kvp_err_t
kvp_ibv_devs_open(const kvp_rdma_select_t *selected, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out,
                  const char **why_out)
{
    static const kvp_rdma_select_t any = {.gid_index = KVP_RDMA_GID_BEST};
    kvp_err_t err = KVP_OK;

    *why_out = "";
    pthread_mutex_lock(&host.lock);
    if (host.users == 0) err = open_all(selected == NULL ? &any : selected, why_out);
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
    while (host.users == 1 && (host.back != NULL || host.leaving_n > 0))
        pthread_cond_wait(&host.changed, &host.lock);
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

bool
kvp_ibv_are_wished(void)
{
    return !kvp_rdma_select_is_any(&host.selected);
}

/* ---- removed devices. host.lock is held, except while memory is deregistered. */
static bool
is_listed(const struct ibv_context *ctx, struct ibv_context **list)
{
    while (*list != NULL && *list != ctx)
        list++;
    return *list != NULL;
}

static void
note_gone(kvp_ibv_dev_t *dev)
{
    if (dev->base.is_gone) return;
    dev->base.is_gone = true;
    kvp_log_warn("rdma", "device was removed: it is closed when its connections are closed device=%s connections=%u",
                 dev->base.info.name, dev->uses);
}

/* Replaces the list of present devices. When the old list is freed librdmacm closes the removed devices, which no
 * thread may use by then. Returns false if the list cannot be replaced now. */
static bool
renew_list(void)
{
    struct ibv_context **now;
    bool is_safe = true;

    for (size_t i = 0; i < host.devs_n; i++)
        if (host.devs[i].base.is_gone && host.devs[i].ctx != NULL) return false;
    now = (host.libs->rdma_get_devices)(NULL);
    if (now == NULL) return false; /* no device is present: the old list stays until a device returns */
    for (size_t i = 0; i < host.devs_n; i++) {
        kvp_ibv_dev_t *dev = &host.devs[i];

        if (dev->ctx == NULL || is_listed(dev->ctx, now)) continue;
        note_gone(dev);
        is_safe = false;
    }
    (host.libs->rdma_free_devices)(is_safe ? host.list : now);
    if (is_safe) host.list = now;
    return is_safe;
}

/* Deregisters the memory of a removed device and closes the device, in a thread. If another thread uses the device
 * again by then, for a deregistration, kvp_ibv_dev_rele starts this thread again. */
static void *
let_go(void *arg)
{
    kvp_ibv_dev_t *dev = arg;

    kvp_ibv_regs_drop(dev);
    pthread_mutex_lock(&host.lock);
    dev->is_leaving = false;
    host.leaving_n--;
    if (dev->uses == 0) {
        dev_drop(dev);
        kvp_log_info("rdma", "device is let go%s device=%s",
                     renew_list() ? "" : ", but for librdmacm: when another one is there, or is let go as well",
                     dev->base.info.name);
    }
    pthread_cond_broadcast(&host.changed);
    pthread_mutex_unlock(&host.lock);
    return NULL;
}

/* Starts a thread that closes a device if it is removed and unused. If no thread can be started, the next look at the
 * devices tries again. */
static void
let_go_if_unused(kvp_ibv_dev_t *dev)
{
    if (!dev->base.is_gone || dev->uses > 0 || dev->ctx == NULL || dev == host.back || dev->is_leaving) return;
    if (!kvp_detach(let_go, dev)) return;
    dev->is_leaving = true;
    host.leaving_n++;
}

/* Marks all ports of an adapter that was removed or has failed. */
static void
ctx_gone(const struct ibv_context *ctx)
{
    for (size_t i = 0; i < host.devs_n; i++) {
        if (host.devs[i].ctx != ctx) continue;
        note_gone(&host.devs[i]);
        host.devs[i].is_dead = true;
    }
    for (size_t i = 0; i < host.devs_n; i++)
        if (host.devs[i].ctx == ctx) let_go_if_unused(&host.devs[i]);
}

void
kvp_ibv_dev_gone(const struct rdma_cm_id *id)
{
    pthread_mutex_lock(&host.lock);
    if (id->verbs != NULL) ctx_gone(id->verbs);
    pthread_mutex_unlock(&host.lock);
}

/* Returns whether the driver has reported since the last call that the device has failed for good. */
static bool
has_failed(struct ibv_context *ctx)
{
    struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};
    struct ibv_async_event event;
    bool is_fatal = false;

    while (poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0 && (host.libs->ibv_get_async_event)(ctx, &event) == 0) {
        is_fatal |= event.event_type == IBV_EVENT_DEVICE_FATAL;
        (host.libs->ibv_ack_async_event)(&event);
    }
    return is_fatal;
}

static void
find_out(kvp_ibv_dev_t *dev)
{
    if (!dev->is_dead && (!kvp_rdma_is_present(dev->ctx) || has_failed(dev->ctx))) ctx_gone(dev->ctx);
}

bool
kvp_ibv_dev_is_dead(kvp_ibv_dev_t *dev)
{
    bool is_dead;

    pthread_mutex_lock(&host.lock);
    find_out(dev);
    is_dead = dev->is_dead;
    pthread_mutex_unlock(&host.lock);
    return is_dead;
}

bool
kvp_ibv_dev_has_gone(kvp_ibv_dev_t *dev)
{
    bool is_gone;

    pthread_mutex_lock(&host.lock);
    find_out(dev);
    is_gone = dev->base.is_gone || dev->is_dead;
    pthread_mutex_unlock(&host.lock);
    return is_gone;
}

kvp_ibv_dev_t *
kvp_ibv_dev_hold(const struct rdma_cm_id *id)
{
    kvp_ibv_dev_t *found = NULL;

    pthread_mutex_lock(&host.lock);
    for (size_t i = 0; id->verbs != NULL && i < host.devs_n; i++) {
        kvp_ibv_dev_t *dev = &host.devs[i];

        if (dev->ctx == id->verbs && dev->base.info.port == id->port_num && !dev->base.is_gone) found = dev;
    }
    if (found != NULL) found->uses++;
    pthread_mutex_unlock(&host.lock);
    return found;
}

bool
kvp_ibv_dev_pin(kvp_ibv_dev_t *dev)
{
    bool is_gone;

    pthread_mutex_lock(&host.lock);
    is_gone = dev->base.is_gone;
    dev->uses++;
    pthread_mutex_unlock(&host.lock);
    return !is_gone;
}

void
kvp_ibv_dev_rele(kvp_ibv_dev_t *dev)
{
    pthread_mutex_lock(&host.lock);
    dev->uses--;
    let_go_if_unused(dev);
    pthread_mutex_unlock(&host.lock);
}

/* ---- returned devices. host.lock is held, except while memory is registered. */
/* Registers the memory again with a returned device, in a thread. The keys are set before `life` changes, so a thread
 * that reads the new life finds the new keys. The loop repeats because registrations may be added meanwhile. */
static void *
make_ready(void *arg)
{
    kvp_ibv_dev_t *dev = arg;
    bool is_ready = true;

    pthread_mutex_lock(&host.lock);
    while (is_ready && kvp_ibv_regs_are_missing(dev)) {
        pthread_mutex_unlock(&host.lock);
        is_ready = kvp_ibv_regs_make(dev);
        pthread_mutex_lock(&host.lock);
        is_ready &= !dev->is_dead;
    }
    if (is_ready) {
        dev->base.life++;
        dev->base.is_gone = false;
        kvp_log_info("rdma", "device has come back, and is used device=%s", dev->base.info.name);
    } else {
        host.look_ns = kvp_now_ns() + LOOK_AGAIN_NS;
    }
    host.back = NULL;
    let_go_if_unused(dev);
    pthread_cond_broadcast(&host.changed);
    pthread_mutex_unlock(&host.lock);
    return NULL;
}

/* Returns whether the returned device has the properties for which the removed device's objects were made. */
static bool
is_as_before(kvp_ibv_dev_t *dev, const kvp_rdma_info_t *now)
{
    const kvp_rdma_info_t *was = &dev->base.info;

    if (memcmp(&now->addr, &was->addr, sizeof now->addr) == 0 && now->mtu_bytes == was->mtu_bytes &&
        now->max_sge == was->max_sge && now->max_wr == was->max_wr && now->max_reg_bytes == was->max_reg_bytes &&
        now->max_msg_bytes == was->max_msg_bytes)
        return true;
    if (!dev->is_refused)
        kvp_log_warn("rdma",
                     "a device came back with another address, MTU or limits: it is used after a restart device=%s",
                     was->name);
    dev->is_refused = true;
    return false;
}

static void
take_back(kvp_ibv_dev_t *dev)
{
    char why[WHY_MAX];
    kvp_rdma_info_t now;

    for (struct ibv_context **at = host.list; *at != NULL; at++) {
        if (strcmp((*at)->device->name, dev->base.info.name) != 0) continue;
        if (!kvp_rdma_port_info(host.libs, *at, dev->base.info.port, host.selected.gid_index, &now, why, sizeof why) ||
            !is_as_before(dev, &now) || !dev_make(dev, *at))
            return;
        host.back = dev;
        if (kvp_detach(make_ready, dev)) return;
        host.back = NULL;
        dev_drop(dev);
        return;
    }
}

/* Detects removed devices, and takes back returned devices. host.list has all devices that librdmacm opened, also
 * devices that were not selected. */
static void
look_at_list(void)
{
    bool is_new, is_wanted = false;

    for (struct ibv_context **at = host.list; *at != NULL; at++) {
        if (kvp_rdma_is_present(*at) && !has_failed(*at)) continue;
        ctx_gone(*at);
        is_wanted = true;
    }
    for (size_t i = 0; i < host.devs_n; i++) {
        let_go_if_unused(&host.devs[i]);
        is_wanted |= host.devs[i].ctx == NULL;
    }
    is_new = is_wanted && host.back == NULL && renew_list();
    for (size_t i = 0; is_new && i < host.devs_n && host.back == NULL; i++)
        if (host.devs[i].ctx == NULL) take_back(&host.devs[i]);
}

/* kvp_ibv_devs_look does nothing if another thread holds host.lock, which may take long. */
void
kvp_ibv_devs_look(void)
{
    uint64_t now_ns = kvp_now_ns();

    if (pthread_mutex_trylock(&host.lock) != 0) return;
    if (host.users > 0 && host.owner == getpid() && now_ns >= host.look_ns) {
        host.look_ns = now_ns + LOOK_NS;
        kvp_rdma_left_end(host.libs);
        look_at_list();
    }
    pthread_mutex_unlock(&host.lock);
}
