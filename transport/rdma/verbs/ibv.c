/* SPDX-License-Identifier: Apache-2.0
 * The verbs stack of this machine (kvp_verbs_ops) over librdmacm and libibverbs: connections, and transfers on them.
 *
 * Design notes.
 * - ACK_TIMEOUT sets after which time an unacknowledged packet is sent again. The default would detect a dead peer
 *   after 15 s.
 * - A closed connection sends its peer a disconnect message, and does not wait for an answer. */
#include "transport/rdma/verbs/ibv.h"

#include "transport/rdma/verbs/rank.h"
#include "common/forkguard.h"
#include "common/log.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESOLVE_MS 2000
#define PATH_HOPS 64
#define PATH_PKEY 0xFFFF /* the only partition key of Ethernet */
#define PATH_REVERSIBLE 0x80
#define PATH_EXACTLY (2 << 6) /* the selector in a path record that demands exactly the given value */
#define PATH_LIFETIME 18 /* lifetime of packets: 4.096 us << 18, the connection manager's own value for Ethernet */
#define BACKLOG 128
/* 4.096 us << 15 = 134 ms for each try; after seven retries, about 1 s, a silent peer is given up */
#define ACK_TIMEOUT 15
#define RETRIES 7
#define GIVE_UP_NS ((RETRIES + 1) * (4096ull << ACK_TIMEOUT))
#define POLL_MAX 32
#define OWN_MAX 512u /* the size of the text with the addresses of our devices in a log line */
#define REJECT_BY_PROGRAM 28 /* the reject reason IB_CM_REJ_CONSUMER_DEFINED: the peer's program refused */

typedef struct {
    kvp_rdma_cm_t base;
    struct rdma_event_channel *channel;
} ibv_cm_t;

typedef struct {
    kvp_rdma_id_t base;
    struct rdma_cm_id *id;
    struct ibv_comp_channel *comp;
    struct ibv_cq *cq;
    unsigned events; /* events read from comp that are not acknowledged yet (ibv_ack_cq_events) */
    /* the work requests of one post, in the library's form; as many as the queue takes */
    struct ibv_send_wr *chain;
    uint32_t chain_n;
} ibv_id_t;

static kvp_ibv_dev_t *
dev_of(kvp_rdma_dev_t *dev)
{
    return kvp_container_of(dev, kvp_ibv_dev_t, base);
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

static bool
make_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* ---- connection events */
static kvp_err_t
cm_open(kvp_rdma_cm_t **cm_out)
{
    ibv_cm_t *cm = calloc(1, sizeof *cm);

    if (cm == NULL) return KVP_NOMEM;
    cm->channel = (kvp_ibv_libs()->rdma_create_event_channel)();
    if (cm->channel == NULL || !make_nonblocking(cm->channel->fd)) {
        kvp_log_error("rdma", "no channel for connection events: %m");
        if (cm->channel != NULL) (kvp_ibv_libs()->rdma_destroy_event_channel)(cm->channel);
        free(cm);
        return KVP_SYS;
    }
    kvp_forkguard_add(cm->channel->fd); /* forked children close it: they would keep the listening port in use */
    cm->base.fd = cm->channel->fd;
    *cm_out = &cm->base;
    return KVP_OK;
}

static void
cm_close(kvp_rdma_cm_t *base)
{
    ibv_cm_t *cm = cm_of(base);

    kvp_forkguard_del(cm->channel->fd);
    (kvp_ibv_libs()->rdma_destroy_event_channel)(cm->channel);
    free(cm);
}

static ibv_id_t *
id_wrap(kvp_rdma_cm_t *cm, struct rdma_cm_id *raw)
{
    ibv_id_t *id = calloc(1, sizeof *id);

    kvp_rdma_left_end(kvp_ibv_libs());
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

    if ((kvp_ibv_libs()->rdma_create_id)(cm_of(cm)->channel, &raw, NULL, RDMA_PS_TCP) != 0) return kvp_ibv_err();
    *id_out = id_wrap(cm, raw);
    if (*id_out != NULL) return KVP_OK;
    (kvp_ibv_libs()->rdma_destroy_id)(raw);
    return KVP_NOMEM;
}

static void
id_close(kvp_rdma_id_t *base)
{
    ibv_id_t *id = id_of(base);
    bool had_qp = id->id->qp != NULL;
    bool is_gone = base->dev != NULL && base->dev->is_gone;
    bool is_now = !had_qp || is_gone || kvp_rdma_port_is_up(kvp_ibv_libs(), id->id, &base->dev->info);

    if (had_qp && is_now && !is_gone) (void)(kvp_ibv_libs()->rdma_disconnect)(id->id);
    if (had_qp) (kvp_ibv_libs()->rdma_destroy_qp)(id->id);
    if (id->cq != NULL) {
        if (id->events > 0) (kvp_ibv_libs()->ibv_ack_cq_events)(id->cq, id->events);
        (kvp_ibv_libs()->ibv_destroy_cq)(id->cq);
    }
    if (id->comp != NULL) (kvp_ibv_libs()->ibv_destroy_comp_channel)(id->comp);
    if (is_now || !kvp_rdma_disconnect_later(kvp_ibv_libs(), id->id, &base->dev->info))
        (kvp_ibv_libs()->rdma_destroy_id)(id->id);
    if (base->dev != NULL) kvp_ibv_dev_rele(dev_of(base->dev));
    free(id->chain);
    free(id);
}

/* Wraps the id of a new connection request. False: its device is not one of ours, or there is no memory; the caller
 * refuses. */
static bool
take_request(kvp_rdma_cm_t *cm, struct rdma_cm_id *raw, kvp_rdma_event_t *out)
{
    kvp_ibv_dev_t *dev = kvp_ibv_dev_hold(raw);
    ibv_id_t *id = dev == NULL ? NULL : id_wrap(cm, raw);

    if (id == NULL) {
        if (dev != NULL) kvp_ibv_dev_rele(dev);
        return false;
    }
    id->base.dev = &dev->base;
    out->kind = KVP_RDMA_REQUEST;
    out->id = &id->base;
    return true;
}

/* Finds the route to the peer. The connection manager's path record has the MTU of the port. For a smaller MTU on both
 * queue pairs this function sets a path record of its own. */
static int
find_route(const ibv_id_t *id)
{
    const struct rdma_ib_addr *ends = &id->id->route.addr.addr.ibaddr;
    struct ibv_path_data way = {.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL};
    uint32_t mtu = IBV_MTU_256;

    if (id->base.mtu_bytes == 0) return (kvp_ibv_libs()->rdma_resolve_route)(id->id, RESOLVE_MS);
    while (mtu < IBV_MTU_4096 && 256u << mtu <= id->base.mtu_bytes)
        mtu++;
    way.path = (struct ibv_path_record){
        .dgid = ends->dgid,
        .sgid = ends->sgid,
        .pkey = htons(PATH_PKEY),
        .flowlabel_hoplimit = htonl(PATH_HOPS),
        .reversible_numpath = PATH_REVERSIBLE | 1,
        .mtu = (uint8_t)(PATH_EXACTLY | mtu),
        .rate = PATH_EXACTLY, /* rate 0 with this selector stands for the port's rate */
        .packetlifetime = PATH_EXACTLY | PATH_LIFETIME,
    };
    return (kvp_ibv_libs()->rdma_set_option)(id->id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &way, sizeof way);
}

/* Translates an event of librdmacm. Returns false if the user of the channel need not see it. */
static bool
translate_event(kvp_rdma_cm_t *cm, const struct rdma_cm_event *ev, kvp_rdma_event_t *out)
{
    ibv_id_t *id = ev->id->context;
    kvp_ibv_dev_t *dev;

    if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) return take_request(cm, ev->id, out);
    if (id == NULL) return false;
    out->id = &id->base;
    switch (ev->event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        out->kind = find_route(id) == 0 ? KVP_RDMA_ON_ITS_WAY : KVP_RDMA_UNREACHABLE;
        return true;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        dev = kvp_ibv_dev_hold(ev->id);
        id->base.dev = dev == NULL ? NULL : &dev->base;
        out->kind = dev == NULL ? KVP_RDMA_UNREACHABLE : KVP_RDMA_RESOLVED;
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
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        kvp_ibv_dev_gone(ev->id);
        out->kind = KVP_RDMA_GONE;
        return true;
    case RDMA_CM_EVENT_DISCONNECTED:
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

    while ((kvp_ibv_libs()->rdma_get_cm_event)(cm_of(cm)->channel, &ev) == 0) {
        struct rdma_cm_id *unwanted = NULL;
        bool is_news;

        *out = (kvp_rdma_event_t){.len = kvp_min_u64(ev->param.conn.private_data_len, sizeof out->data)};
        if (ev->param.conn.private_data == NULL) out->len = 0;
        if (out->len > 0) memcpy(out->data, ev->param.conn.private_data, out->len);
        is_news = translate_event(cm, ev, out);
        if (!is_news && ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) unwanted = ev->id;
        (kvp_ibv_libs()->rdma_ack_cm_event)(ev);
        if (unwanted != NULL) {
            (void)(kvp_ibv_libs()->rdma_reject)(unwanted, NULL, 0);
            (kvp_ibv_libs()->rdma_destroy_id)(unwanted);
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

/* Logs why listening failed, and the addresses of the open devices at which it is possible. */
static void
say_no_listen(const struct sockaddr_storage *at, bool is_taken)
{
    char asked[INET6_ADDRSTRLEN], text[OWN_MAX];
    const kvp_ibv_dev_t *dev;
    size_t len = 0;

    if (is_taken) {
        kvp_log_warn("rdma",
                     "cannot listen at %s port %u for RDMA: another program does; choose another port (--listen)",
                     addr_text(at, asked), (unsigned)ntohs(((const struct sockaddr_in *)(const void *)at)->sin_port));
        return;
    }
    for (size_t i = 0; (dev = kvp_ibv_dev_at(i)) != NULL && len < sizeof text; i++) {
        char own[INET6_ADDRSTRLEN];

        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s (%s)", i == 0 ? "" : ", ",
                                addr_text(&dev->base.info.addr, own), dev->base.info.name);
    }
    kvp_log_warn("rdma", "no device in use has the address %s: listen at 0.0.0.0, or at one of %s",
                 addr_text(at, asked), text);
}

/* Returns whether the listener is bound to one of our open devices, or to all of them (an address of zeros). Another
 * device has no protection domain of ours, so its connections could not be served. A listener at the loopback address
 * is bound to no device, and no peer could connect to it. */
static bool
is_bound_well(ibv_id_t *id, const struct sockaddr_storage *at)
{
    kvp_ibv_dev_t *dev = kvp_ibv_dev_hold(id->id);

    if (dev != NULL) id->base.dev = &dev->base;
    errno = EADDRNOTAVAIL;
    return id->id->verbs == NULL ? kvp_rdma_is_unspecified(at) : dev != NULL;
}

static kvp_err_t
listen_at(kvp_rdma_cm_t *cm, const struct sockaddr_storage *at, kvp_rdma_id_t **id_out, uint16_t *port_out)
{
    ibv_id_t *id;
    kvp_err_t err = id_make(cm, &id);

    if (err != KVP_OK) return err;
    if ((kvp_ibv_libs()->rdma_bind_addr)(id->id, raw_addr(at)) != 0 || !is_bound_well(id, at) ||
        (kvp_ibv_libs()->rdma_listen)(id->id, BACKLOG) != 0) {
        bool is_taken = errno == EADDRINUSE;

        err = errno == EADDRNOTAVAIL || errno == ENODEV ? KVP_SYS : is_taken ? KVP_BUSY : kvp_ibv_err();
        say_no_listen(at, is_taken);
        id_close(&id->base);
        return err;
    }
    *port_out = ntohs((kvp_ibv_libs()->rdma_get_src_port)(id->id));
    *id_out = &id->base;
    return KVP_OK;
}

/* Returns the source address for a connection: that of the selected device likeliest in the peer's network; NULL
 * without a selection. Without a source address, routes may lead through a device that the user did not select, or
 * through an address of a selected device that is not the selected GID's. */
static const struct sockaddr_storage *
wished_source(const struct sockaddr_storage *to)
{
    const struct sockaddr_storage *best = NULL;
    const kvp_ibv_dev_t *dev;

    for (size_t i = 0; kvp_ibv_are_wished() && (dev = kvp_ibv_dev_at(i)) != NULL; i++) {
        const struct sockaddr_storage *own = &dev->base.info.addr;

        if (own->ss_family != to->ss_family || dev->base.is_gone) continue;
        if (best == NULL || kvp_rdma_alike_bits(own, to) > kvp_rdma_alike_bits(best, to)) best = own;
    }
    return best;
}

static kvp_err_t
connect_to(kvp_rdma_cm_t *cm, const struct sockaddr_storage *to, const struct sockaddr_storage *from,
           kvp_rdma_id_t **id_out)
{
    ibv_id_t *id;
    kvp_err_t err = id_make(cm, &id);

    if (err != KVP_OK) return err;
    if (from == NULL) from = wished_source(to);
    if ((kvp_ibv_libs()->rdma_resolve_addr)(id->id, from == NULL ? NULL : raw_addr(from), raw_addr(to), RESOLVE_MS) !=
        0) {
        id_close(&id->base);
        return KVP_UNREACHABLE;
    }
    *id_out = &id->base;
    return KVP_OK;
}

static bool
make_chain(ibv_id_t *id, uint32_t sends)
{
    id->chain = calloc(sends, sizeof *id->chain);
    id->chain_n = id->chain == NULL ? 0 : sends;
    return id->chain != NULL;
}

static bool
make_cq(ibv_id_t *id, uint32_t entries)
{
    struct ibv_context *ctx = dev_of(id->base.dev)->ctx;

    id->comp = (kvp_ibv_libs()->ibv_create_comp_channel)(ctx);
    if (id->comp == NULL || !make_nonblocking(id->comp->fd)) return false;
    id->cq = (kvp_ibv_libs()->ibv_create_cq)(ctx, (int)entries, NULL, id->comp, 0);
    id->base.cq_fd = id->comp->fd;
    return id->cq != NULL;
}

static kvp_err_t
qp_make(kvp_rdma_id_t *base, const kvp_rdma_caps_t *caps)
{
    ibv_id_t *id = id_of(base);
    kvp_ibv_dev_t *dev = dev_of(base->dev);
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};
    uint32_t inline_bytes = caps->inline_bytes;

    if (caps->sends > 0 && (!make_cq(id, caps->sends) || !make_chain(id, caps->sends))) return kvp_ibv_err();
    attr.send_cq = attr.recv_cq = id->cq != NULL ? id->cq : dev->no_cq;
    attr.cap.max_send_wr = (uint32_t)kvp_max_u64(caps->sends, 1);
    attr.cap.max_send_sge = (uint32_t)kvp_max_u64(caps->sge, 1);
    for (;; inline_bytes /= 2) {
        attr.cap.max_inline_data = inline_bytes;
        attr.cap.max_recv_wr = attr.cap.max_recv_sge = 1;
        if ((kvp_ibv_libs()->rdma_create_qp)(id->id, dev->pd, &attr) == 0) break;
        if (inline_bytes == 0 || errno != EINVAL) return kvp_ibv_err();
    }
    base->inline_max = attr.cap.max_inline_data;
    base->give_up_ns = GIVE_UP_NS;
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
ask_peer(kvp_rdma_id_t *base, const void *data, size_t len)
{
    struct rdma_cm_id *raw = id_of(base)->id;
    struct rdma_conn_param param = param_of(data, len);
    uint8_t timeout = ACK_TIMEOUT;

    if (!kvp_rdma_port_is_up(kvp_ibv_libs(), raw, &base->dev->info)) return KVP_UNREACHABLE;
    (void)(kvp_ibv_libs()->rdma_set_option)(raw, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
    return (kvp_ibv_libs()->rdma_connect)(raw, &param) == 0 ? KVP_OK : kvp_ibv_err();
}

static kvp_err_t
accept_it(kvp_rdma_id_t *base, const void *data, size_t len)
{
    struct rdma_conn_param param = param_of(data, len);

    return (kvp_ibv_libs()->rdma_accept)(id_of(base)->id, &param) == 0 ? KVP_OK : kvp_ibv_err();
}

static kvp_err_t
refuse_peer(kvp_rdma_id_t *base, const void *data, size_t len)
{
    return (kvp_ibv_libs()->rdma_reject)(id_of(base)->id, data, (uint8_t)len) == 0 ? KVP_OK : kvp_ibv_err();
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
post_works(kvp_rdma_id_t *base, const kvp_rdma_wr_t *wrs, size_t n, size_t *n_out)
{
    ibv_id_t *id = id_of(base);
    struct ibv_send_wr *bad = NULL;

    *n_out = 0;
    if (n == 0) return KVP_OK;
    if (n > id->chain_n) return KVP_LIMIT;
    for (size_t i = 0; i < n; i++)
        raw_wr(&wrs[i], &id->chain[i]);
    id->chain[n - 1].next = NULL;
    if (ibv_post_send(id->id->qp, id->chain, &bad) != 0) {
        *n_out = bad == NULL ? 0 : (size_t)(bad - id->chain);
        return KVP_SYS;
    }
    *n_out = n;
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
    case IBV_WC_LOC_PROT_ERR:
        return KVP_RDMA_WC_NO_MEMORY;
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
arm_cq(kvp_rdma_id_t *base)
{
    ibv_id_t *id = id_of(base);
    struct ibv_cq *cq;
    void *arg;

    while ((kvp_ibv_libs()->ibv_get_cq_event)(id->comp, &cq, &arg) == 0)
        id->events++;
    return ibv_req_notify_cq(id->cq, 0) == 0 ? KVP_OK : KVP_SYS;
}

const kvp_verbs_ops_t kvp_verbs_ibv = {
    .name = "libibverbs",
    .devs_open = kvp_ibv_devs_open,
    .devs_close = kvp_ibv_devs_close,
    .devs_look = kvp_ibv_devs_look,
    .reg = kvp_ibv_reg,
    .dereg = kvp_ibv_dereg,
    .cm_open = cm_open,
    .cm_close = cm_close,
    .cm_next = cm_next,
    .listen = listen_at,
    .connect = connect_to,
    .qp_make = qp_make,
    .ask = ask_peer,
    .accept = accept_it,
    .refuse = refuse_peer,
    .id_close = id_close,
    .post = post_works,
    .poll = poll_cq,
    .arm = arm_cq,
};
