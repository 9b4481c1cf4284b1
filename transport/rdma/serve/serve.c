/* SPDX-License-Identifier: Apache-2.0
 * The serving side of rdma: admits peers and shuts them out. No data bytes pass through this code.
 *
 * Design notes.
 * - A peer is an incarnation. A fence, or peer_left, ends its connections and its write keys together, under
 *   serving.lock. So a connection request at the same time either is refused by the fence, or its connection is ended
 *   by it. The serving side sends nothing to a peer, so a dead host causes no event here; the sockets of its
 *   attachments to the node show its end.
 * - Events of connections are also read under the lock, so that no thread uses an id that another thread closes. */
#include "transport/rdma/serve/serve.h"

#include "transport/rdma/serve/peers.h"
#include "net/wake.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mutate.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_A_TURN 64u
#define TEND_MS 1000 /* the time between two calls of tend, which looks for removed and returned devices */

typedef struct {
    kvp_list_t link; /* link in the peer's list of connections, peer->conns */
    kvp_rdma_peer_t *peer;
    kvp_rdma_id_t *id;
} conn_t;

/* ---- connections. The lock is held. */
static void
conn_close(kvp_rdma_tp_t *tp, conn_t *conn)
{
    tp->verbs->id_close(conn->id);
    tp->serving.conns_n--;
    kvp_list_del(&conn->link);
    free(conn);
}

static void
conns_close(kvp_rdma_tp_t *tp, kvp_rdma_peer_t *p)
{
    kvp_list_foreach_safe (pos, next, &p->conns)
        conn_close(tp, kvp_list_entry(pos, conn_t, link));
}

static void
peer_end(kvp_rdma_tp_t *tp, kvp_rdma_peer_t *p)
{
    conns_close(tp, p);
    kvp_rdma_peer_grants_end(tp, p);
    kvp_rdma_peer_drop_if_empty(p);
}

/* ---- admission */
/* Returns whether the peer is attached, or need not be. Other peers are refused, because no peer_left would ever remove
 * their state. */
static bool
is_attached(kvp_rdma_tp_t *tp, uint64_t incarnation)
{
    const kvp_rdma_peer_t *p = kvp_rdma_peer_find(&tp->serving, incarnation);

    return (p != NULL && p->is_attached) || !tp->needs_attachment;
}

static kvp_err_t
judge_ask(kvp_rdma_tp_t *tp, const kvp_rdma_event_t *ev, kvp_rdma_ask_t *ask_out)
{
    kvp_err_t err = kvp_rdma_ask_decode(ev->data, ev->len, ask_out);

    if (err != KVP_OK) return err;
    if (memcmp(ask_out->pool_id, tp->pool_id, sizeof tp->pool_id) != 0) return KVP_PROTO;
    if (kvp_idset_has(&tp->serving.fenced, ask_out->incarnation) && KVP_RULE(RDMA_REFUSE_FENCED)) return KVP_FENCED;
    if (!is_attached(tp, ask_out->incarnation) && KVP_RULE(RDMA_ATTACHED)) return KVP_DISCONNECTED;
    if (ask_out->mtu_bytes > ev->id->dev->info.mtu_bytes) {
        kvp_log_info("rdma",
                     "a peer sends packets of %u bytes and device %s takes %u: the peer may retry with smaller packets",
                     ask_out->mtu_bytes, ev->id->dev->info.name, ev->id->dev->info.mtu_bytes);
        return KVP_LIMIT;
    }
    return tp->serving.conns_n >= tp->max_conns ? KVP_BUSY : KVP_OK;
}

/* Returns the index of the device on which the connection arrived; devs_n = peers do not know this device. */
static uint32_t
rail_of(const kvp_rdma_tp_t *tp, const kvp_rdma_id_t *id)
{
    uint32_t rail = 0;

    while (rail < tp->devs_n && tp->devs[rail] != id->dev)
        rail++;
    return rail;
}

/* Returns the address at which the instance listens on its device i. */
static struct sockaddr_storage
rail_addr(const kvp_rdma_tp_t *tp, size_t i)
{
    struct sockaddr_storage at = tp->devs[i]->info.addr;

    kvp_rdma_set_port(&at, htons(tp->serving.port));
    return at;
}

static size_t
encode_answer(const kvp_rdma_tp_t *tp, const kvp_rdma_id_t *id, uint64_t nonce, kvp_err_t err,
              uint8_t dst[KVP_RDMA_ANSWER_MAX])
{
    kvp_rdma_answer_t answer = {.err = err, .nonce = nonce, .epoch = kvp_rdma_epoch(tp), .rail = rail_of(tp, id)};

    answer.mtu_bytes = id->dev->info.mtu_bytes;

    for (size_t i = 0; err == KVP_OK && i < tp->devs_n; i++)
        answer.rails[answer.rails_n++] = rail_addr(tp, i);
    return kvp_rdma_answer_encode(&answer, dst);
}

static kvp_err_t
let_in(kvp_rdma_tp_t *tp, kvp_rdma_id_t *id, const kvp_rdma_ask_t *ask)
{
    static const kvp_rdma_caps_t serves_only = {0};
    uint8_t answer[KVP_RDMA_ANSWER_MAX];
    kvp_rdma_peer_t *p = kvp_rdma_peer_make(&tp->serving, ask->incarnation);
    conn_t *conn = calloc(1, sizeof *conn);
    kvp_err_t err = p == NULL || conn == NULL ? KVP_NOMEM : tp->verbs->qp_make(id, &serves_only);

    if (err == KVP_OK) err = tp->verbs->accept(id, answer, encode_answer(tp, id, ask->nonce, KVP_OK, answer));
    if (err != KVP_OK) {
        free(conn);
        if (p != NULL) kvp_rdma_peer_drop_if_empty(p);
        return err;
    }
    *conn = (conn_t){.peer = p, .id = id};
    id->arg = conn;
    kvp_list_init(&conn->link);
    kvp_list_add_tail(&p->conns, &conn->link);
    tp->serving.conns_n++;
    return KVP_OK;
}

static void
on_request(kvp_rdma_tp_t *tp, const kvp_rdma_event_t *ev)
{
    uint8_t answer[KVP_RDMA_ANSWER_MAX];
    kvp_rdma_ask_t ask = {0};
    kvp_err_t err = judge_ask(tp, ev, &ask);

    if (err == KVP_OK) err = rail_of(tp, ev->id) < tp->devs_n ? let_in(tp, ev->id, &ask) : KVP_NOTSUP;
    if (err == KVP_OK) return;
    kvp_ignore(tp->verbs->refuse(ev->id, answer, encode_answer(tp, ev->id, ask.nonce, err, answer)), "it goes anyway");
    tp->verbs->id_close(ev->id);
}

static void
listener_close(kvp_rdma_tp_t *tp, kvp_rdma_listener_t *l)
{
    if (l->id != NULL) tp->verbs->id_close(l->id);
    l->id = NULL;
}

/* Handles an event. Any event of a connection other than ESTABLISHED ends the connection. Any event of a listener
 * other than a request means that its device was removed. */
static void
on_event(kvp_rdma_tp_t *tp, const kvp_rdma_event_t *ev)
{
    kvp_rdma_serving_t *s = &tp->serving;
    conn_t *conn = ev->id->arg;
    kvp_rdma_peer_t *p;

    if (ev->kind == KVP_RDMA_REQUEST) {
        on_request(tp, ev);
    } else if (ev->kind != KVP_RDMA_ESTABLISHED && conn != NULL) {
        p = conn->peer;
        conn_close(tp, conn);
        kvp_rdma_peer_drop_if_empty(p);
    }
    for (size_t i = 0; i < s->listeners_n && ev->kind == KVP_RDMA_GONE; i++)
        if (s->listeners[i].id == ev->id) listener_close(tp, &s->listeners[i]);
}

/* ---- the slots of the table */
void
kvp_rdma_serving_init(kvp_rdma_serving_t *s)
{
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->granted, NULL);
    kvp_list_init(&s->peers);
    kvp_list_init(&s->ended);
    for (size_t i = 0; i < KVP_RDMA_PEER_BUCKETS; i++)
        kvp_list_init(&s->peers_of[i]);
    s->mix = kvp_mix_make(kvp_random_u64());
    s->wake_fd = -1;
}

void
kvp_rdma_serving_fini(kvp_rdma_tp_t *tp)
{
    kvp_rdma_serving_t *s = &tp->serving;

    kvp_list_foreach_safe (pos, next, &s->peers) {
        kvp_rdma_peer_t *p = kvp_list_entry(pos, kvp_rdma_peer_t, link);

        p->is_attached = false;
        peer_end(tp, p);
    }
    kvp_rdma_grants_wait(tp);
    for (size_t i = 0; i < s->listeners_n; i++)
        listener_close(tp, &s->listeners[i]);
    if (s->cm != NULL) tp->verbs->cm_close(s->cm);
    if (s->wake_fd >= 0) close(s->wake_fd);
    kvp_idset_fini(&s->fenced);
    pthread_cond_destroy(&s->granted);
    pthread_mutex_destroy(&s->lock);
}

static bool
is_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family) return false;
    if (a->ss_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

/* Opens a listener. A listener at all devices gets dev NULL: it survives the removal of a device. */
static kvp_err_t
listener_open(kvp_rdma_tp_t *tp, kvp_rdma_listener_t *l)
{
    kvp_rdma_serving_t *s = &tp->serving;
    kvp_err_t err = tp->verbs->listen(s->cm, &l->at, &l->id, &s->port);

    if (err == KVP_OK) l->dev = l->id->dev;
    return err;
}

/* Listens at the addresses of the other devices as well, because peers connect to every device. */
static void
listen_at_others(kvp_rdma_tp_t *tp, const struct sockaddr_storage *first)
{
    kvp_rdma_serving_t *s = &tp->serving;

    for (size_t i = 0; i < tp->devs_n && !kvp_rdma_is_unspecified(first); i++) {
        kvp_rdma_listener_t *l = &s->listeners[s->listeners_n];
        kvp_err_t err;

        l->at = rail_addr(tp, i);
        if (is_same_host(&l->at, first)) continue;
        err = listener_open(tp, l);
        if (err == KVP_OK)
            s->listeners_n++;
        else
            kvp_log_warn("rdma", "peers cannot connect by device %s: listening there failed port=%u error=%s",
                         tp->devs[i]->info.name, s->port, kvp_err_name(err));
    }
}

kvp_err_t
kvp_rdma_listen(kvp_tp_t *base, const kvp_hostport_t *at, kvp_hostport_t *bound_out)
{
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base);
    kvp_rdma_serving_t *s = &tp->serving;
    struct sockaddr_storage addr;
    kvp_err_t err = kvp_rdma_addr(at, &addr);

    if (err != KVP_OK || s->cm != NULL) return err != KVP_OK ? err : KVP_INVALID;
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0) return KVP_SYS;
    err = tp->verbs->cm_open(&s->cm);
    s->listeners[0].at = addr;
    if (err == KVP_OK) err = listener_open(tp, &s->listeners[0]);
    if (err != KVP_OK) return err; /* kvp_rdma_serving_fini cleans up the partial state */
    kvp_rdma_set_port(&s->listeners[0].at, htons(s->port));
    s->listeners_n = 1;
    listen_at_others(tp, &addr);
    *bound_out = *at;
    bound_out->port = s->port;
    return KVP_OK;
}

static void
conns_close_gone(kvp_rdma_tp_t *tp, kvp_rdma_peer_t *p)
{
    kvp_list_foreach_safe (pos, next, &p->conns) {
        conn_t *conn = kvp_list_entry(pos, conn_t, link);

        if (conn->id->dev->is_gone) conn_close(tp, conn);
    }
    kvp_rdma_peer_drop_if_empty(p);
}

static void
listener_tend(kvp_rdma_tp_t *tp, kvp_rdma_listener_t *l)
{
    if (l->dev == NULL) return;
    if (l->dev->is_gone) {
        listener_close(tp, l);
    } else if (l->id == NULL && listener_open(tp, l) == KVP_OK) {
        kvp_log_info("rdma", "peers can connect by a device again device=%s port=%u", l->dev->info.name,
                     tp->serving.port);
    }
}

void
kvp_rdma_serving_tend(kvp_rdma_tp_t *tp)
{
    kvp_rdma_serving_t *s = &tp->serving;

    pthread_mutex_lock(&s->lock);
    kvp_list_foreach_safe (pos, next, &s->peers)
        conns_close_gone(tp, kvp_list_entry(pos, kvp_rdma_peer_t, link));
    for (size_t i = 0; i < s->listeners_n; i++)
        listener_tend(tp, &s->listeners[i]);
    kvp_rdma_grants_sweep(tp);
    pthread_mutex_unlock(&s->lock);
}

kvp_err_t
kvp_rdma_serve(kvp_tp_t *base, uint32_t lane, int timeout_ms)
{
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base);
    kvp_rdma_serving_t *s = &tp->serving;
    struct pollfd p[2] = {{.fd = s->wake_fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    kvp_rdma_event_t ev;
    kvp_err_t err = KVP_OK;

    if (s->cm == NULL) return KVP_NOTSUP;
    if (lane == 0) p[1].fd = s->cm->fd;
    if (lane == 0 && (timeout_ms < 0 || timeout_ms > TEND_MS)) timeout_ms = TEND_MS;
    if (poll(p, 2, timeout_ms) < 0 && errno != EINTR) return KVP_SYS;
    if (lane != 0) return KVP_OK; /* connection events are rare, so only lane 0 handles them */
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < EVENTS_A_TURN && err == KVP_OK; i++) {
        err = tp->verbs->cm_next(s->cm, &ev);
        if (err == KVP_OK) on_event(tp, &ev);
    }
    pthread_mutex_unlock(&s->lock);
    if (kvp_now_ns() >= s->tend_ns) {
        base->ops->tend(base);
        s->tend_ns = kvp_now_ns() + TEND_MS * KVP_NS_PER_MS;
    }
    return err == KVP_EAGAIN ? KVP_OK : err;
}

/* Makes every serve return. The eventfd is never read, so it stays readable: a woken instance does not serve again. */
void
kvp_rdma_wake(kvp_tp_t *base)
{
    int fd = kvp_rdma_tp_of(base)->serving.wake_fd;

    if (fd >= 0) kvp_wake(fd);
}

void
kvp_rdma_peer_fence(kvp_tp_t *base, kvp_idrange_t dead, uint64_t live_min, kvp_fence_fn done, void *arg)
{
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base);
    kvp_rdma_serving_t *s = &tp->serving;

    pthread_mutex_lock(&s->lock);
    kvp_idset_add(&s->fenced, dead, live_min);
    kvp_list_foreach_safe (pos, next, &s->peers) {
        kvp_rdma_peer_t *p = kvp_list_entry(pos, kvp_rdma_peer_t, link);

        if (kvp_idset_has(&s->fenced, p->incarnation) && KVP_RULE(RDMA_PEER_FENCE)) peer_end(tp, p);
    }
    pthread_mutex_unlock(&s->lock);
    done(arg, dead.last);
}

void
kvp_rdma_peer_cut(kvp_tp_t *base, uint64_t incarnation)
{
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base);
    kvp_rdma_peer_t *p;

    pthread_mutex_lock(&tp->serving.lock);
    p = kvp_rdma_peer_find(&tp->serving, incarnation);
    if (p != NULL && KVP_RULE(RDMA_CUT)) {
        conns_close(tp, p);
        kvp_rdma_peer_drop_if_empty(p);
    }
    pthread_mutex_unlock(&tp->serving.lock);
}

/* Marks the peer as attached. If memory is short its connections are refused, as if it were not attached. */
void
kvp_rdma_peer_came(kvp_tp_t *base, uint64_t incarnation)
{
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base);
    kvp_rdma_peer_t *p;

    pthread_mutex_lock(&tp->serving.lock);
    p = kvp_rdma_peer_make(&tp->serving, incarnation);
    if (p != NULL) p->is_attached = true;
    pthread_mutex_unlock(&tp->serving.lock);
}

void
kvp_rdma_peer_left(kvp_tp_t *base, uint64_t incarnation)
{
    kvp_rdma_tp_t *tp = kvp_rdma_tp_of(base);
    kvp_rdma_peer_t *p;

    pthread_mutex_lock(&tp->serving.lock);
    p = kvp_rdma_peer_find(&tp->serving, incarnation);
    if (p != NULL) {
        p->is_attached = false;
        peer_end(tp, p);
    }
    pthread_mutex_unlock(&tp->serving.lock);
}
