/* SPDX-License-Identifier: Apache-2.0
 * kvp_verbs_ops over librdmacm and libibverbs.
 *
 * Design notes.
 * - Queue pairs are made by the connection manager, so devices are the contexts that it opened.
 * - The time until a packet that is not acknowledged is sent again is set by us: the default makes a dead peer take 15 s.
 * - A connection that is closed sends its peer word of that, and does not wait for an answer.
 */
#include "client/transport/rdma_dev.h"
#include "client/transport/rdma_libs.h"
#include "client/transport/rdma_port.h"

#include "common/log.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define RESOLVE_MS 2000
#define BACKLOG 128
#define ACK_TIMEOUT 15 /* 4.096 us << 15 = 134 ms, and seven times that until a peer is given up */
#define RETRIES 7
#define POST_MAX 256u /* work requests in one ring of the doorbell */
#define POLL_MAX 32
#define WHY_MAX 512u
#define REJECT_BY_PROGRAM 28 /* the reason of IB_CM_REJ_CONSUMER_DEFINED */

typedef struct {
    kvp_rdma_dev_t base;
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *no_cq; /* of queue pairs that only serve: nothing is ever put there */
} ibv_dev_t;

typedef struct {
    kvp_rdma_reg_t base;
    struct ibv_mr *mr;
} ibv_reg_t;

typedef struct {
    kvp_rdma_cm_t base;
    struct rdma_event_channel *channel;
} ibv_cm_t;

typedef struct {
    kvp_rdma_id_t base;
    struct rdma_cm_id *id;
    struct ibv_comp_channel *comp;
    struct ibv_cq *cq;
    unsigned events; /* of comp, not yet acknowledged */
} ibv_id_t;

static struct {
    pthread_mutex_t lock;
    const kvp_rdma_libs_t *libs; /* set once, before anybody has a device */
    struct ibv_context **list;
    ibv_dev_t devs[KVP_RDMA_DEVS_MAX];
    size_t devs_n;
    uint32_t users;
    bool is_wished; /* its user named devices, or a GID */
    char why[WHY_MAX]; /* no device is open */
} host = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ibv_dev_t *
dev_of(kvp_rdma_dev_t *dev)
{
    return kvp_container_of(dev, ibv_dev_t, base);
}

static ibv_id_t *
id_of(kvp_rdma_id_t *id)
{
    return kvp_container_of(id, ibv_id_t, base);
}

static ibv_cm_t *
cm_of(kvp_rdma_cm_t *cm)
{
    return kvp_container_of(cm, ibv_cm_t, base);
}

static kvp_err_t
err_of_errno(void)
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

static bool
make_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* ---- devices */
static void
dev_close(ibv_dev_t *dev)
{
    if (dev->no_cq != NULL) (host.libs->ibv_destroy_cq)(dev->no_cq);
    if (dev->pd != NULL) (host.libs->ibv_dealloc_pd)(dev->pd);
    *dev = (ibv_dev_t){0};
}

static bool
dev_open(ibv_dev_t *dev, struct ibv_context *ctx, const kvp_rdma_info_t *info)
{
    *dev = (ibv_dev_t){.base = {.info = *info}, .ctx = ctx};
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

static kvp_err_t
devs_open(const kvp_rdma_want_t *want, kvp_rdma_dev_t **devs_out, size_t cap, size_t *n_out, const char **why_out)
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

static void
devs_close(void)
{
    pthread_mutex_lock(&host.lock);
    if (--host.users == 0) close_all();
    pthread_mutex_unlock(&host.lock);
}

static kvp_rdma_dev_t *
find_dev(const struct rdma_cm_id *id)
{
    for (size_t i = 0; i < host.devs_n; i++)
        if (host.devs[i].ctx == id->verbs && host.devs[i].base.info.port == id->port_num) return &host.devs[i].base;
    return NULL;
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

/* errno is that of the registration. */
static void
say_unregistered(const kvp_rdma_dev_t *dev, size_t len, kvp_err_t err)
{
    struct rlimit lock;
    int no = errno;

    if (err == KVP_NOMEM && getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY) {
        kvp_log_error(
            "rdma",
            "memory is not registered: this process may lock %llu bytes in all; raise that (ulimit -l unlimited, "
            "or LimitMEMLOCK=infinity of the service) device %s bytes %zu",
            (unsigned long long)lock.rlim_cur, dev->info.name, len);
        return;
    }
    errno = no;
    kvp_log_error("rdma", "memory is not registered: %m device %s bytes %zu", dev->info.name, len);
}

static kvp_err_t
reg(kvp_rdma_dev_t *base, void *addr, size_t len, kvp_rdma_access_t access, int dmabuf_fd, kvp_rdma_reg_t **reg_out)
{
    ibv_dev_t *dev = dev_of(base);
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
        kvp_err_t err = err_of_errno();

        say_unregistered(base, len, err);
        free(r);
        return err;
    }
    r->base = (kvp_rdma_reg_t){.dev = base, .lkey = r->mr->lkey, .rkey = r->mr->rkey};
    *reg_out = &r->base;
    return KVP_OK;
}

static void
dereg(kvp_rdma_reg_t *base)
{
    ibv_reg_t *r = kvp_container_of(base, ibv_reg_t, base);

    if ((host.libs->ibv_dereg_mr)(r->mr) != 0) kvp_panic("memory cannot be deregistered: %m");
    free(r);
}

/* ---- connection events */
static kvp_err_t
cm_open(kvp_rdma_cm_t **cm_out)
{
    ibv_cm_t *cm = calloc(1, sizeof *cm);

    if (cm == NULL) return KVP_NOMEM;
    cm->channel = (host.libs->rdma_create_event_channel)();
    if (cm->channel == NULL || !make_nonblocking(cm->channel->fd)) {
        kvp_log_error("rdma", "no channel for connection events: %m");
        if (cm->channel != NULL) (host.libs->rdma_destroy_event_channel)(cm->channel);
        free(cm);
        return KVP_SYS;
    }
    cm->base.fd = cm->channel->fd;
    *cm_out = &cm->base;
    return KVP_OK;
}

static void
cm_close(kvp_rdma_cm_t *base)
{
    ibv_cm_t *cm = cm_of(base);

    (host.libs->rdma_destroy_event_channel)(cm->channel);
    free(cm);
}

static ibv_id_t *
id_wrap(kvp_rdma_cm_t *cm, struct rdma_cm_id *raw)
{
    ibv_id_t *id = calloc(1, sizeof *id);

    if (id == NULL) return NULL;
    id->base = (kvp_rdma_id_t){.cm = cm, .cq_fd = -1};
    id->id = raw;
    raw->context = id;
    return id;
}

static kvp_err_t
id_make(kvp_rdma_cm_t *cm, ibv_id_t **id_out)
{
    struct rdma_cm_id *raw;

    if ((host.libs->rdma_create_id)(cm_of(cm)->channel, &raw, NULL, RDMA_PS_TCP) != 0) return err_of_errno();
    *id_out = id_wrap(cm, raw);
    if (*id_out != NULL) return KVP_OK;
    (host.libs->rdma_destroy_id)(raw);
    return KVP_NOMEM;
}

static void
id_close(kvp_rdma_id_t *base)
{
    ibv_id_t *id = id_of(base);

    if (id->id->qp != NULL) {
        (void)(host.libs->rdma_disconnect)(id->id);
        (host.libs->rdma_destroy_qp)(id->id);
    }
    if (id->cq != NULL) {
        if (id->events > 0) (host.libs->ibv_ack_cq_events)(id->cq, id->events);
        (host.libs->ibv_destroy_cq)(id->cq);
    }
    if (id->comp != NULL) (host.libs->ibv_destroy_comp_channel)(id->comp);
    (host.libs->rdma_destroy_id)(id->id);
    free(id);
}

/* A request is told with an id of its own: true where it is ours now. */
static bool
take_request(kvp_rdma_cm_t *cm, struct rdma_cm_id *raw, kvp_rdma_event_t *out)
{
    kvp_rdma_dev_t *dev = find_dev(raw);
    ibv_id_t *id = dev == NULL ? NULL : id_wrap(cm, raw);

    if (id == NULL) return false;
    id->base.dev = dev;
    out->kind = KVP_RDMA_REQUEST;
    out->id = &id->base;
    return true;
}

/* What an event is to our user; false: nothing. */
static bool
translate(kvp_rdma_cm_t *cm, const struct rdma_cm_event *ev, kvp_rdma_event_t *out)
{
    ibv_id_t *id = ev->id->context;

    if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) return take_request(cm, ev->id, out);
    if (id == NULL) return false;
    out->id = &id->base;
    switch (ev->event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        out->kind = KVP_RDMA_UNREACHABLE;
        return (host.libs->rdma_resolve_route)(ev->id, RESOLVE_MS) != 0;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        id->base.dev = find_dev(ev->id);
        out->kind = id->base.dev == NULL ? KVP_RDMA_UNREACHABLE : KVP_RDMA_RESOLVED;
        return true;
    case RDMA_CM_EVENT_ESTABLISHED:
        out->kind = KVP_RDMA_ESTABLISHED;
        return true;
    case RDMA_CM_EVENT_REJECTED:
        out->kind = ev->status == REJECT_BY_PROGRAM ? KVP_RDMA_REFUSED : KVP_RDMA_UNREACHABLE;
        return true;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
        out->kind = KVP_RDMA_UNREACHABLE;
        return true;
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        out->kind = KVP_RDMA_GONE;
        return true;
    default:
        return false;
    }
}

static kvp_err_t
cm_next(kvp_rdma_cm_t *cm, kvp_rdma_event_t *out)
{
    struct rdma_cm_event *ev;

    while ((host.libs->rdma_get_cm_event)(cm_of(cm)->channel, &ev) == 0) {
        struct rdma_cm_id *unwanted = NULL;
        bool is_news;

        *out = (kvp_rdma_event_t){.len = kvp_min_u64(ev->param.conn.private_data_len, sizeof out->data)};
        if (ev->param.conn.private_data == NULL) out->len = 0;
        if (out->len > 0) memcpy(out->data, ev->param.conn.private_data, out->len);
        is_news = translate(cm, ev, out);
        if (!is_news && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) unwanted = ev->id;
        (host.libs->rdma_ack_cm_event)(ev);
        if (unwanted != NULL) {
            (void)(host.libs->rdma_reject)(unwanted, NULL, 0);
            (host.libs->rdma_destroy_id)(unwanted);
        }
        if (is_news) return KVP_OK;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? KVP_EAGAIN : KVP_SYS;
}

/* ---- connections */
static struct sockaddr *
raw_addr(const struct sockaddr_storage *addr)
{
    return (struct sockaddr *)(void *)(uintptr_t)addr;
}

static const char *
addr_text(const struct sockaddr_storage *addr, char text[INET6_ADDRSTRLEN])
{
    const void *raw = addr->ss_family == AF_INET
                          ? (const void *)&((const struct sockaddr_in *)(const void *)addr)->sin_addr
                          : &((const struct sockaddr_in6 *)(const void *)addr)->sin6_addr;

    return inet_ntop(addr->ss_family, raw, text, INET6_ADDRSTRLEN) == NULL ? "?" : text;
}

/* Where one may listen: the addresses of the devices that are open. */
static void
say_no_listen(const struct sockaddr_storage *at, bool is_taken)
{
    char asked[INET6_ADDRSTRLEN], text[WHY_MAX];
    size_t len = 0;

    if (is_taken) {
        kvp_log_warn("rdma", "cannot listen at %s: the port is taken", addr_text(at, asked));
        return;
    }
    for (size_t i = 0; i < host.devs_n && len < sizeof text; i++) {
        char own[INET6_ADDRSTRLEN];

        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s (%s)", i == 0 ? "" : ", ",
                                addr_text(&host.devs[i].base.info.addr, own), host.devs[i].base.info.name);
    }
    kvp_log_warn("rdma", "no device in use has the address %s: listen at 0.0.0.0, or at one of %s",
                 addr_text(at, asked), text);
}

/* A device that is not in use has no protection domain of ours, so what connects there could not be served. */
static bool
is_bound_well(const struct rdma_cm_id *id)
{
    errno = EADDRNOTAVAIL;
    return id->verbs == NULL || find_dev(id) != NULL;
}

static kvp_err_t
listen_at(kvp_rdma_cm_t *cm, const struct sockaddr_storage *at, kvp_rdma_id_t **id_out, uint16_t *port_out)
{
    ibv_id_t *id;
    kvp_err_t err = id_make(cm, &id);

    if (err != KVP_OK) return err;
    if ((host.libs->rdma_bind_addr)(id->id, raw_addr(at)) != 0 || !is_bound_well(id->id) ||
        (host.libs->rdma_listen)(id->id, BACKLOG) != 0) {
        bool is_taken = errno == EADDRINUSE;

        err = is_taken || errno == EADDRNOTAVAIL || errno == ENODEV ? KVP_SYS : err_of_errno();
        say_no_listen(at, is_taken);
        id_close(&id->base);
        return err;
    }
    *port_out = ntohs((host.libs->rdma_get_src_port)(id->id));
    *id_out = &id->base;
    return KVP_OK;
}

/* Routes may lead through a device that the user did not name, and to another address of it than that of the GID. */
static const struct sockaddr_storage *
wished_source(const struct sockaddr_storage *to)
{
    for (size_t i = 0; host.is_wished && i < host.devs_n; i++)
        if (host.devs[i].base.info.addr.ss_family == to->ss_family) return &host.devs[i].base.info.addr;
    return NULL;
}

static kvp_err_t
connect_to(kvp_rdma_cm_t *cm, const struct sockaddr_storage *to, const struct sockaddr_storage *from,
           kvp_rdma_id_t **id_out)
{
    ibv_id_t *id;
    kvp_err_t err = id_make(cm, &id);

    if (err != KVP_OK) return err;
    if (from == NULL) from = wished_source(to);
    if ((host.libs->rdma_resolve_addr)(id->id, from == NULL ? NULL : raw_addr(from), raw_addr(to), RESOLVE_MS) != 0) {
        id_close(&id->base);
        return KVP_UNREACHABLE;
    }
    *id_out = &id->base;
    return KVP_OK;
}

static bool
make_cq(ibv_id_t *id, uint32_t entries)
{
    struct ibv_context *ctx = dev_of(id->base.dev)->ctx;

    id->comp = (host.libs->ibv_create_comp_channel)(ctx);
    if (id->comp == NULL || !make_nonblocking(id->comp->fd)) return false;
    id->cq = (host.libs->ibv_create_cq)(ctx, (int)entries, NULL, id->comp, 0);
    id->base.cq_fd = id->comp->fd;
    return id->cq != NULL;
}

static kvp_err_t
qp_make(kvp_rdma_id_t *base, const kvp_rdma_caps_t *caps)
{
    ibv_id_t *id = id_of(base);
    ibv_dev_t *dev = dev_of(base->dev);
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};
    uint32_t inline_bytes = caps->inline_bytes;

    if (caps->sends > 0 && !make_cq(id, caps->sends)) return err_of_errno();
    attr.send_cq = attr.recv_cq = id->cq != NULL ? id->cq : dev->no_cq;
    attr.cap.max_send_wr = (uint32_t)kvp_max_u64(caps->sends, 1);
    attr.cap.max_send_sge = (uint32_t)kvp_max_u64(caps->sge, 1);
    for (;; inline_bytes /= 2) {
        attr.cap.max_inline_data = inline_bytes;
        attr.cap.max_recv_wr = attr.cap.max_recv_sge = 1;
        if ((host.libs->rdma_create_qp)(id->id, dev->pd, &attr) == 0) break;
        if (inline_bytes == 0 || errno != EINVAL) return err_of_errno();
    }
    base->inline_max = attr.cap.max_inline_data;
    return KVP_OK;
}

static struct rdma_conn_param
param_of(const void *data, size_t len)
{
    return (struct rdma_conn_param){
        .private_data = data,
        .private_data_len = (uint8_t)len,
        .responder_resources = RDMA_MAX_RESP_RES,
        .initiator_depth = RDMA_MAX_INIT_DEPTH,
        .retry_count = RETRIES,
        .rnr_retry_count = RETRIES,
    };
}

static kvp_err_t
ask(kvp_rdma_id_t *base, const void *data, size_t len)
{
    struct rdma_cm_id *raw = id_of(base)->id;
    struct rdma_conn_param param = param_of(data, len);
    uint8_t timeout = ACK_TIMEOUT;

    (void)(host.libs->rdma_set_option)(raw, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
    return (host.libs->rdma_connect)(raw, &param) == 0 ? KVP_OK : err_of_errno();
}

static kvp_err_t
accept_it(kvp_rdma_id_t *base, const void *data, size_t len)
{
    struct rdma_conn_param param = param_of(data, len);

    return (host.libs->rdma_accept)(id_of(base)->id, &param) == 0 ? KVP_OK : err_of_errno();
}

static kvp_err_t
refuse(kvp_rdma_id_t *base, const void *data, size_t len)
{
    return (host.libs->rdma_reject)(id_of(base)->id, data, (uint8_t)len) == 0 ? KVP_OK : err_of_errno();
}

/* ---- data */
static_assert(sizeof(kvp_rdma_sge_t) == sizeof(struct ibv_sge), "a piece of memory is handed on as it is");
static_assert(offsetof(kvp_rdma_sge_t, len) == offsetof(struct ibv_sge, length), "the same");
static_assert(offsetof(kvp_rdma_sge_t, lkey) == offsetof(struct ibv_sge, lkey), "the same");

static void
raw_wr(const kvp_rdma_wr_t *wr, struct ibv_send_wr *raw)
{
    unsigned flags = 0;

    if ((wr->flags & KVP_RDMA_WR_FENCE) != 0) flags |= IBV_SEND_FENCE;
    if ((wr->flags & KVP_RDMA_WR_SIGNALED) != 0) flags |= IBV_SEND_SIGNALED;
    if ((wr->flags & KVP_RDMA_WR_INLINE) != 0) flags |= IBV_SEND_INLINE;
    raw->wr_id = wr->id;
    raw->next = raw + 1;
    raw->sg_list = (struct ibv_sge *)(uintptr_t)wr->sge;
    raw->num_sge = (int)wr->sge_n;
    raw->opcode = (wr->flags & KVP_RDMA_WR_READ) != 0 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    raw->send_flags = flags;
    raw->wr.rdma.remote_addr = wr->raddr;
    raw->wr.rdma.rkey = wr->rkey;
}

static kvp_err_t
post(kvp_rdma_id_t *base, const kvp_rdma_wr_t *wrs, size_t n, size_t *n_out)
{
    struct ibv_qp *qp = id_of(base)->id->qp;
    struct ibv_send_wr chain[POST_MAX];

    for (*n_out = 0; *n_out < n;) {
        size_t m = kvp_min_u64(n - *n_out, POST_MAX);
        struct ibv_send_wr *bad = NULL;

        for (size_t i = 0; i < m; i++)
            raw_wr(&wrs[*n_out + i], &chain[i]);
        chain[m - 1].next = NULL;
        if (ibv_post_send(qp, chain, &bad) != 0) {
            *n_out += bad == NULL ? 0 : (size_t)(bad - chain);
            return KVP_SYS;
        }
        *n_out += m;
    }
    return KVP_OK;
}

static kvp_rdma_wc_status_t
status_of(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS:
        return KVP_RDMA_WC_OK;
    case IBV_WC_WR_FLUSH_ERR:
        return KVP_RDMA_WC_FLUSHED;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
        return KVP_RDMA_WC_NO_ACCESS;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
        return KVP_RDMA_WC_NO_ANSWER;
    default:
        return KVP_RDMA_WC_FAILED;
    }
}

static size_t
poll_cq(kvp_rdma_id_t *base, kvp_rdma_wc_t *wcs, size_t cap)
{
    struct ibv_wc raw[POLL_MAX];
    int n = ibv_poll_cq(id_of(base)->cq, (int)kvp_min_u64(cap, POLL_MAX), raw);

    for (int i = 0; i < n; i++)
        wcs[i] = (kvp_rdma_wc_t){.id = raw[i].wr_id, .status = status_of(raw[i].status), .code = raw[i].status};
    return n < 0 ? 0 : (size_t)n;
}

static kvp_err_t
arm(kvp_rdma_id_t *base)
{
    ibv_id_t *id = id_of(base);
    struct ibv_cq *cq;
    void *arg;

    while ((host.libs->ibv_get_cq_event)(id->comp, &cq, &arg) == 0)
        id->events++;
    return ibv_req_notify_cq(id->cq, 0) == 0 ? KVP_OK : KVP_SYS;
}

const kvp_verbs_ops_t kvp_verbs_ibv = {
    .name = "libibverbs",
    .devs_open = devs_open,
    .devs_close = devs_close,
    .reg = reg,
    .dereg = dereg,
    .cm_open = cm_open,
    .cm_close = cm_close,
    .cm_next = cm_next,
    .listen = listen_at,
    .connect = connect_to,
    .qp_make = qp_make,
    .ask = ask,
    .accept = accept_it,
    .refuse = refuse,
    .id_close = id_close,
    .post = post,
    .poll = poll_cq,
    .arm = arm,
};
