/* SPDX-License-Identifier: Apache-2.0
 * Channels, ids and connections of the model NIC: events that come late, and what each side hears of the other's end.
 */
#include "tests/transport/model_nic_priv.h"

#include "common/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Events */

static nic_event_t *
queue_event(nic_id_t *id, kvp_rdma_event_kind_t kind, const void *data, size_t len)
{
    nic_cm_t *cm = nic_cm_of(id->base.cm);
    nic_event_t *e = calloc(1, sizeof *e);

    if (e == NULL) kvp_panic("model nic: no memory");
    e->what = (kvp_rdma_event_t){.kind = kind, .id = &id->base, .len = len};
    if (len > 0) memcpy(e->what.data, data, len);
    kvp_list_add_tail(&cm->pending, &e->link);
    wire_fd_set(cm->base.fd); /* while it is under way already: nobody else would make it arrive */
    return e;
}

/* Events of one id stay in order, those of several do not. */
bool
nic_deliver_some(nic_cm_t *cm)
{
    kvp_rdma_id_t *id = NULL;
    uint64_t n = 0;

    kvp_list_foreach (node, &cm->pending)
        if (nic_below(++n) == 0) id = kvp_list_entry(node, nic_event_t, link)->what.id;
    kvp_list_foreach (node, &cm->pending) {
        if (kvp_list_entry(node, nic_event_t, link)->what.id != id) continue;
        kvp_list_del(node);
        kvp_list_add_tail(&cm->ready, node);
        return true;
    }
    return false;
}

static void
purge(kvp_list_t *events, const kvp_rdma_id_t *id)
{
    kvp_list_foreach_safe (node, tmp, events) {
        nic_event_t *e = kvp_list_entry(node, nic_event_t, link);

        if (e->what.id != id) continue;
        kvp_list_del(node);
        free(e);
    }
}

static void
purge_events(nic_id_t *id)
{
    purge(&nic_cm_of(id->base.cm)->pending, &id->base);
    purge(&nic_cm_of(id->base.cm)->ready, &id->base);
}

static nic_dev_t *
dev_by_addr(const struct sockaddr_storage *at)
{
    const struct sockaddr_in *in = (const struct sockaddr_in *)at;

    for (uint32_t i = 0; i < model_nic.conf.devs_n; i++) {
        const struct sockaddr_in *own = (const struct sockaddr_in *)&model_nic.devs[i].base.info.addr;

        if (model_nic.devs[i].state != DEV_HERE) continue;
        if (at->ss_family == AF_INET && in->sin_addr.s_addr == own->sin_addr.s_addr) return &model_nic.devs[i];
    }
    return NULL;
}

/* Channels and ids */

static nic_id_t *
id_new(nic_cm_t *cm, id_state_t state)
{
    nic_id_t *id = calloc(1, sizeof *id);

    if (id == NULL) kvp_panic("model nic: no memory");
    id->base.cm = &cm->base;
    id->base.cq_fd = -1;
    id->state = state;
    id->fail_seq = UINT64_MAX;
    kvp_list_init(&id->sq);
    kvp_list_init(&id->landing);
    kvp_list_init(&id->orphans);
    kvp_list_add_tail(&model_nic.ids, &id->link);
    return id;
}

/* What the peer is told when its other side is gone. What has not been answered is timed; an idle connection is not, so
 * nobody learns of a silent end. */
static void
tell_gone(nic_id_t *peer, bool is_silent)
{
    if (peer->state == ID_ASKED && !peer->has_consent) {
        queue_event(peer, is_silent ? KVP_RDMA_UNREACHABLE : KVP_RDMA_REFUSED, NULL, 0);
    } else if (peer->state == ID_ACCEPTED && !peer->has_consent) {
        queue_event(peer, is_silent || nic_coin() ? KVP_RDMA_UNREACHABLE : KVP_RDMA_GONE, NULL, 0);
    } else if (peer->has_consent && !is_silent) {
        queue_event(peer, KVP_RDMA_GONE, NULL, 0);
        if (nic_below(8) == 0) queue_event(peer, KVP_RDMA_GONE, NULL, 0);
    }
}

void
nic_id_leave(nic_id_t *id, bool is_silent)
{
    nic_id_t *peer = id->peer;

    purge_events(id);
    wire_leave(id);
    if (peer == NULL) return;
    if (model_nic.is_down[id->dev->index][peer->dev->index]) is_silent = true;
    peer->peer = NULL;
    id->peer = NULL;
    tell_gone(peer, is_silent);
}

static void
id_end(nic_id_t *id)
{
    kvp_list_foreach_safe (node, tmp, &model_nic.ids) {
        nic_id_t *other = kvp_list_entry(node, nic_id_t, link);

        if (id->state == ID_LISTENING && other->listener == id) id_end(other);
    }
    nic_id_leave(id, false);
    if (id->base.cq_fd >= 0) close(id->base.cq_fd);
    kvp_list_del(&id->link);
    free(id->cq);
    free(id);
}

void
nic_id_dev_removed(nic_id_t *id, bool is_told)
{
    if (id->listener != NULL) { /* its listener has not heard of it, and will not */
        id_end(id);
        return;
    }
    nic_id_leave(id, nic_coin());
    id->state = ID_DEAD;
    if (is_told) queue_event(id, KVP_RDMA_GONE, NULL, 0);
}

void
nic_id_close(kvp_rdma_id_t *id)
{
    nic_enter();
    id_end(nic_id_of(id));
    nic_exit();
}

kvp_err_t
nic_cm_open(kvp_rdma_cm_t **cm_out)
{
    nic_cm_t *cm = calloc(1, sizeof *cm);

    if (cm == NULL) return KVP_NOMEM;
    cm->base.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (cm->base.fd < 0) {
        free(cm);
        return KVP_SYS;
    }
    kvp_list_init(&cm->pending);
    kvp_list_init(&cm->ready);
    nic_enter();
    kvp_list_add_tail(&model_nic.cms, &cm->link);
    nic_exit();
    *cm_out = &cm->base;
    return KVP_OK;
}

static nic_id_t *
first_id_of(const nic_cm_t *cm)
{
    kvp_list_foreach (node, &model_nic.ids) {
        nic_id_t *id = kvp_list_entry(node, nic_id_t, link);

        if (id->base.cm == &cm->base) return id;
    }
    return NULL;
}

void
nic_cm_end(nic_cm_t *cm)
{
    for (nic_id_t *id = first_id_of(cm); id != NULL; id = first_id_of(cm))
        id_end(id);
    kvp_list_del(&cm->link);
    close(cm->base.fd);
    free(cm);
}

void
nic_cm_close(kvp_rdma_cm_t *cm)
{
    nic_enter();
    nic_cm_end(nic_cm_of(cm));
    nic_exit();
}

/* What becomes of the id when its user learns of the event. */
static void
on_taken(nic_id_t *id, kvp_rdma_event_kind_t kind)
{
    switch (kind) {
    case KVP_RDMA_ON_ITS_WAY:
        queue_event(id, KVP_RDMA_RESOLVED, NULL, 0);
        break;
    case KVP_RDMA_RESOLVED:
        id->state = ID_RESOLVED;
        id->base.dev = &id->dev->base;
        break;
    case KVP_RDMA_REQUEST:
        id->listener = NULL;
        break;
    case KVP_RDMA_ESTABLISHED:
        if (id->state == ID_ASKED && id->peer != NULL) {
            id->peer->has_consent = true;
            queue_event(id->peer, KVP_RDMA_ESTABLISHED, NULL, 0);
        }
        id->state = ID_CONNECTED;
        break;
    case KVP_RDMA_REFUSED:
    case KVP_RDMA_UNREACHABLE:
        id->state = ID_OVER;
        break;
    case KVP_RDMA_GONE:
        if (id->dev != NULL && id->dev->state == DEV_REMOVED) id->dev->base.is_gone = true;
        break;
    }
}

static kvp_err_t
take_event(nic_cm_t *cm, kvp_rdma_event_t *event_out)
{
    nic_event_t *e;

    if (cm->is_dead) return KVP_SYS;
    nic_step_some();
    if (kvp_list_is_empty(&cm->ready)) return KVP_EAGAIN;
    e = kvp_list_first(&cm->ready, nic_event_t, link);
    kvp_list_del(&e->link);
    *event_out = e->what;
    free(e);
    on_taken(nic_id_of(event_out->id), event_out->kind);
    return KVP_OK;
}

kvp_err_t
nic_cm_next(kvp_rdma_cm_t *cm, kvp_rdma_event_t *event_out)
{
    kvp_err_t err;

    nic_enter();
    err = take_event(nic_cm_of(cm), event_out);
    if (kvp_list_is_empty(&nic_cm_of(cm)->ready) && kvp_list_is_empty(&nic_cm_of(cm)->pending)) wire_fd_clear(cm->fd);
    nic_exit();
    return err;
}

/* Connections */

static nic_id_t *
listener_at(const nic_dev_t *dev, uint16_t port)
{
    kvp_list_foreach (node, &model_nic.ids) {
        nic_id_t *id = kvp_list_entry(node, nic_id_t, link);

        if (id->state == ID_LISTENING && id->port == port && (id->dev == NULL || dev == NULL || id->dev == dev))
            return id;
    }
    return NULL;
}

static kvp_err_t
listen_locked(nic_cm_t *cm, const struct sockaddr_storage *at, kvp_rdma_id_t **id_out, uint16_t *port_out)
{
    const struct sockaddr_in *in = (const struct sockaddr_in *)at;
    bool is_any = at->ss_family == AF_INET && in->sin_addr.s_addr == htonl(INADDR_ANY);
    nic_dev_t *dev = dev_by_addr(at);
    uint16_t port = ntohs(in->sin_port);
    nic_id_t *id;

    if (cm->is_dead || (dev == NULL && !is_any)) return KVP_SYS;
    if (port == 0) port = model_nic.next_port++;
    if (listener_at(dev, port) != NULL) return KVP_SYS;
    id = id_new(cm, ID_LISTENING);
    id->dev = dev;
    id->base.dev = dev == NULL ? NULL : &dev->base;
    id->port = port;
    *id_out = &id->base;
    *port_out = port;
    return KVP_OK;
}

kvp_err_t
nic_listen(kvp_rdma_cm_t *cm, const struct sockaddr_storage *at, kvp_rdma_id_t **id_out, uint16_t *port_out)
{
    kvp_err_t err;

    nic_enter();
    err = listen_locked(nic_cm_of(cm), at, id_out, port_out);
    nic_exit();
    return err;
}

kvp_err_t
nic_connect(kvp_rdma_cm_t *cm, const struct sockaddr_storage *to, const struct sockaddr_storage *from,
            kvp_rdma_id_t **id_out)
{
    nic_id_t *id = NULL;
    bool has_way;

    nic_enter();
    if (!nic_cm_of(cm)->is_dead && (from == NULL || dev_by_addr(from) != NULL)) {
        id = id_new(nic_cm_of(cm), ID_RESOLVING);
        id->to = dev_by_addr(to);
        id->dev = from == NULL ? id->to : dev_by_addr(from);
        id->port = ntohs(((const struct sockaddr_in *)to)->sin_port);
        has_way = id->to != NULL && !model_nic.is_down[id->dev->index][id->to->index];
        queue_event(id,
                    !has_way     ? KVP_RDMA_UNREACHABLE
                    : nic_coin() ? KVP_RDMA_ON_ITS_WAY
                                 : KVP_RDMA_RESOLVED,
                    NULL, 0);
        *id_out = &id->base;
    }
    nic_exit();
    return id != NULL ? KVP_OK : KVP_SYS;
}

static kvp_err_t
qp_make_locked(nic_id_t *id, const kvp_rdma_caps_t *caps)
{
    if (id->has_qp || (id->state != ID_RESOLVED && id->state != ID_REQUESTED)) return KVP_INVALID;
    id->caps = (kvp_rdma_caps_t){
        .sends = (uint32_t)kvp_min_u64(caps->sends, MODEL_NIC_WR_MAX),
        .sge = (uint32_t)kvp_min_u64(caps->sge, KVP_RDMA_SGE_MAX),
        .inline_bytes = (uint32_t)kvp_min_u64(caps->inline_bytes, MODEL_NIC_INLINE_MAX),
    };
    if (id->caps.sends > 0) {
        id->cq = calloc(id->caps.sends, sizeof *id->cq);
        if (id->cq == NULL) return KVP_NOMEM;
        id->base.cq_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (id->base.cq_fd < 0) return KVP_SYS; /* id_close frees the rest */
    }
    id->base.inline_max = id->caps.inline_bytes;
    id->base.give_up_ns = 60 * KVP_NS_PER_S; /* nothing here has a clock */
    id->has_qp = true;
    return KVP_OK;
}

kvp_err_t
nic_qp_make(kvp_rdma_id_t *id, const kvp_rdma_caps_t *caps)
{
    kvp_err_t err;

    nic_enter();
    err = qp_make_locked(nic_id_of(id), caps);
    nic_exit();
    return err;
}

static void
ask_locked(nic_id_t *id, const void *data, size_t len)
{
    bool is_down = model_nic.is_down[id->dev->index][id->to->index] || id->to->state != DEV_HERE;
    nic_id_t *listener = is_down ? NULL : listener_at(id->to, id->port);
    nic_id_t *other;

    id->state = ID_ASKED;
    if (is_down) queue_event(id, KVP_RDMA_UNREACHABLE, NULL, 0);
    if (listener == NULL) {
        if (!is_down) queue_event(id, KVP_RDMA_REFUSED, NULL, 0);
        return;
    }
    other = id_new(nic_cm_of(listener->base.cm), ID_REQUESTED);
    other->listener = listener;
    other->dev = id->to;
    other->base.dev = &id->to->base;
    other->to = id->dev;
    other->peer = id;
    id->peer = other;
    queue_event(other, KVP_RDMA_REQUEST, data, len);
}

kvp_err_t
nic_ask(kvp_rdma_id_t *id, const void *data, size_t len)
{
    bool is_ok;

    nic_enter();
    is_ok = nic_id_of(id)->state == ID_RESOLVED && nic_id_of(id)->has_qp && len <= KVP_RDMA_ASK_MAX;
    if (is_ok) ask_locked(nic_id_of(id), data, len);
    nic_exit();
    return is_ok ? KVP_OK : KVP_INVALID;
}

static void
accept_locked(nic_id_t *id, const void *data, size_t len)
{
    id->state = ID_ACCEPTED;
    if (id->peer == NULL) {
        tell_gone(id, nic_coin());
        return;
    }
    id->peer->has_consent = true;
    queue_event(id->peer, KVP_RDMA_ESTABLISHED, data, len);
}

kvp_err_t
nic_accept(kvp_rdma_id_t *id, const void *data, size_t len)
{
    bool is_ok;

    nic_enter();
    is_ok = nic_id_of(id)->state == ID_REQUESTED && nic_id_of(id)->has_qp && len <= KVP_RDMA_ANSWER_MAX;
    if (is_ok) accept_locked(nic_id_of(id), data, len);
    nic_exit();
    return is_ok ? KVP_OK : KVP_INVALID;
}

static void
refuse_locked(nic_id_t *id, const void *data, size_t len)
{
    id->state = ID_OVER;
    if (id->peer == NULL) return;
    queue_event(id->peer, KVP_RDMA_REFUSED, data, len);
    id->peer->peer = NULL;
    id->peer = NULL;
}

kvp_err_t
nic_refuse(kvp_rdma_id_t *id, const void *data, size_t len)
{
    bool is_ok;

    nic_enter();
    is_ok = nic_id_of(id)->state == ID_REQUESTED && len <= KVP_RDMA_REFUSAL_MAX;
    if (is_ok) refuse_locked(nic_id_of(id), data, len);
    nic_exit();
    return is_ok ? KVP_OK : KVP_INVALID;
}
