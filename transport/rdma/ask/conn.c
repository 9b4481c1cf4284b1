/* SPDX-License-Identifier: Apache-2.0
 * Connections of an rdma endpoint: how they are made, watched and ended. */
#include "transport/rdma/ask/rails.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* ---- other addresses of a peer */
void
kvp_rdma_address_cache_init(kvp_rdma_address_cache_t *addresses)
{
    pthread_mutex_init(&addresses->lock, NULL);
}

void
kvp_rdma_address_cache_fini(kvp_rdma_address_cache_t *addresses)
{
    pthread_mutex_destroy(&addresses->lock);
}

/* Finds a peer's cache entry by its configured address, zeroed before it was set, so memcmp is enough. NULL = none. */
static kvp_rdma_cached_peer_t *
find_cached(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known)
{
    for (uint32_t i = 0; i < KVP_RDMA_CACHED_PEERS; i++)
        if (memcmp(&addresses->peers[i].known, known, sizeof *known) == 0) return &addresses->peers[i];
    return NULL;
}

struct sockaddr_storage
kvp_rdma_address_cache_look(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known)
{
    struct sockaddr_storage at = *known;
    const kvp_rdma_cached_peer_t *peer;

    pthread_mutex_lock(&addresses->lock);
    peer = find_cached(addresses, known);
    if (peer != NULL && peer->turn > 0) at = peer->others[peer->turn - 1];
    pthread_mutex_unlock(&addresses->lock);
    return at;
}

void
kvp_rdma_address_cache_note(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known,
                            const kvp_rdma_answer_t *answer)
{
    kvp_rdma_cached_peer_t *peer;

    pthread_mutex_lock(&addresses->lock);
    peer = find_cached(addresses, known);
    if (peer == NULL) {
        peer = &addresses->peers[addresses->next++ % KVP_RDMA_CACHED_PEERS];
        *peer = (kvp_rdma_cached_peer_t){.known = *known};
    }
    memcpy(peer->others, answer->rails, sizeof answer->rails);
    peer->others_n = answer->rails_n;
    if (peer->turn > peer->others_n) peer->turn = 0;
    pthread_mutex_unlock(&addresses->lock);
}

void
kvp_rdma_address_cache_failed(kvp_rdma_address_cache_t *addresses, const struct sockaddr_storage *known)
{
    kvp_rdma_cached_peer_t *peer;

    pthread_mutex_lock(&addresses->lock);
    peer = find_cached(addresses, known);
    if (peer != NULL) peer->turn = (peer->turn + 1) % (peer->others_n + 1);
    pthread_mutex_unlock(&addresses->lock);
}

#define MTU_MIN 256u /* the smallest MTU (packet size) that verbs knows */
/* The time limit for reading the peer's answer, counted from the rail's previous event. An answer read later is not
 * used, and the rail connects again, because the peer's connection manager gives up silently after a minute. */
#define ANSWER_OLD_NS (10 * KVP_NS_PER_S)

static void
tell_connected(kvp_rdma_ep_t *ep, kvp_err_t err)
{
    kvp_ep_done_fn fn = ep->on_connected;

    ep->on_connected = NULL;
    /* The peer did not answer in the caller's time: the next connect tries another of the peer's adapters. */
    if (fn != NULL && (err == KVP_UNREACHABLE || err == KVP_CANCELLED))
        kvp_rdma_address_cache_failed(&ep->tp->addresses, &ep->known);
    if (err != KVP_OK) kvp_rdma_ep_hang_up(ep);
    if (fn != NULL) fn(ep->on_connected_arg, err);
}

/* ---- connecting */
static bool
watch_fd(const kvp_rdma_ep_t *ep, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN};

    return epoll_ctl(ep->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

static kvp_err_t
on_resolved(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    kvp_rdma_ask_t ask = {.nonce = rail->nonce, .incarnation = ep->base.incarnation};
    uint8_t data[KVP_RDMA_ASK_MAX];
    kvp_err_t err = kvp_rdma_rail_make(rail);

    memcpy(ask.pool_id, ep->tp->pool_id, sizeof ask.pool_id);
    if (!rail->id->dev->info.is_infiniband)
        ask.mtu_bytes = rail->mtu_bytes != 0 ? rail->mtu_bytes : rail->id->dev->info.mtu_bytes;
    if (err == KVP_OK && !watch_fd(ep, rail->id->cq_fd)) err = KVP_SYS;
    return err == KVP_OK ? ep->tp->verbs->ask(rail->id, data, kvp_rdma_ask_encode(&ask, data)) : err;
}

/* Returns whether the rail should connect again with the peer's smaller MTU. Only once for each rail, because a second
 * refusal has another cause. */
static bool
may_lower(const kvp_rdma_rail_t *rail, const kvp_rdma_answer_t *answer)
{
    if (answer->nonce != rail->nonce || rail->mtu_bytes != 0) return false;
    return answer->mtu_bytes >= MTU_MIN && answer->mtu_bytes < rail->id->dev->info.mtu_bytes;
}

static kvp_err_t
ask_again(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail)
{
    return kvp_rdma_rails_open_again(ep, rail) == KVP_OK ? KVP_EAGAIN : KVP_UNREACHABLE;
}

/* Handles the peer's answer to a connection request, quiet_ns after the rail's previous event. EAGAIN: the rail
 * connects again, and another answer will come. */
static kvp_err_t
on_answer(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, const kvp_rdma_event_t *ev, uint64_t quiet_ns)
{
    bool was_up = kvp_rdma_ep_is_up(ep);
    kvp_rdma_answer_t answer;
    kvp_err_t err = kvp_rdma_answer_decode(ev->data, ev->len, &answer);

    /* A refusal without data comes from the kernel: the peer's program ended before it answered. */
    if (err == KVP_PROTO && ev->kind == KVP_RDMA_REFUSED) return KVP_UNREACHABLE;
    if (err != KVP_OK) return err;
    /* this thread read the answer so late that the peer may have given up: connect again */
    if (was_up && quiet_ns > ANSWER_OLD_NS) return ask_again(ep, rail);
    if (answer.err == KVP_OK && ev->kind == KVP_RDMA_REFUSED) return KVP_PROTO;
    if (answer.err == KVP_LIMIT && may_lower(rail, &answer)) {
        rail->mtu_bytes = answer.mtu_bytes;
        kvp_log_info("rdma", "device %s sends packets of %u bytes and the peer takes %u: these are sent",
                     rail->id->dev->info.name, rail->id->dev->info.mtu_bytes, answer.mtu_bytes);
        return ask_again(ep, rail);
    }
    if (answer.err == KVP_LIMIT)
        kvp_log_error("rdma", "device %s sends packets of %u bytes and the peer takes %u: give both interfaces one MTU",
                      rail->id->dev->info.name, rail->id->dev->info.mtu_bytes, answer.mtu_bytes);
    if (answer.err != KVP_OK) return answer.err;
    if (answer.nonce != rail->nonce) return KVP_PROTO; /* the answer belongs to another connection attempt */
    /* the peer or its device was restarted, so its memory has other keys */
    if (was_up && answer.epoch != ep->epoch) ep->has_rekeyed = true;
    if (was_up && (answer.epoch != ep->epoch || answer.rail != rail->pair.theirs)) return KVP_PROTO;
    if (!was_up) {
        ep->epoch = answer.epoch;
        kvp_rdma_rails_learn(ep, &answer);
        kvp_rdma_address_cache_note(&ep->tp->addresses, &ep->known, &answer);
    }
    ep->state = KVP_RDMA_EP_UP;
    kvp_rdma_rails_connected(rail);
    return KVP_OK;
}

/* Handles a failed connection attempt. The first attempt of an endpoint fails the endpoint, a later attempt only its
 * rail. */
static void
on_failure(kvp_rdma_ep_t *ep, kvp_rdma_rail_t *rail, kvp_err_t err)
{
    if (ep->on_connected != NULL)
        tell_connected(ep, err);
    else if (rail->id != NULL)
        kvp_rdma_rails_failed(ep, rail);
}

static void
on_event(kvp_rdma_ep_t *ep, const kvp_rdma_event_t *ev)
{
    kvp_rdma_rail_t *rail = ev->id->arg;
    kvp_err_t err = KVP_OK;
    uint64_t quiet_ns = 0;

    if (ev->kind != KVP_RDMA_REQUEST) {
        uint64_t now_ns = kvp_now_ns();

        quiet_ns = now_ns - rail->shown_ns;
        rail->shown_ns = now_ns;
    }
    switch (ev->kind) {
    case KVP_RDMA_ON_ITS_WAY:
        return;
    case KVP_RDMA_RESOLVED:
        err = on_resolved(ep, rail);
        if (err != KVP_OK) on_failure(ep, rail, err);
        return;
    case KVP_RDMA_ESTABLISHED:
    case KVP_RDMA_REFUSED:
        err = on_answer(ep, rail, ev, quiet_ns);
        if (err == KVP_EAGAIN) return;
        if (err != KVP_OK)
            on_failure(ep, rail, err);
        else if (ep->on_connected != NULL)
            tell_connected(ep, KVP_OK);
        return;
    case KVP_RDMA_UNREACHABLE:
    case KVP_RDMA_GONE:
        on_failure(ep, rail, KVP_UNREACHABLE);
        return;
    case KVP_RDMA_REQUEST:
        /* A connection request cannot occur here, because this channel has no listener. */
        ep->tp->verbs->id_close(ev->id);
        return;
    }
}

void
kvp_rdma_ep_take_events(kvp_rdma_ep_t *ep)
{
    kvp_err_t err = KVP_OK;

    ep->has_slept = false;
    while (!kvp_rdma_ep_is_broken(&ep->base) && err == KVP_OK) {
        kvp_rdma_event_t ev;

        ep->base.costs.system_calls++;
        err = ep->tp->verbs->cm_next(ep->cm, &ev);
        if (err == KVP_OK) on_event(ep, &ev);
    }
}

kvp_err_t
kvp_rdma_ep_connect(kvp_tp_t *tp, const kvp_hostport_t *to, kvp_ep_t *base, kvp_ep_done_fn done, void *arg)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);
    kvp_err_t err;

    ep->tp = kvp_rdma_tp_of(tp);
    base->incarnation = ep->tp->is_incarnation_drawn ? kvp_random_u64() : ep->tp->incarnation;
    base->needs_sums = ep->tp->needs_sums;
    kvp_list_init(&ep->todo);
    kvp_list_init(&ep->posted);
    ep->kick_fd = ep->timer_fd = -1;
    ep->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (ep->epoll_fd < 0) goto fail_sys;
    ep->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ep->kick_fd < 0 || !watch_fd(ep, ep->kick_fd)) goto fail_sys;
    ep->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (ep->timer_fd < 0 || !watch_fd(ep, ep->timer_fd)) goto fail_sys;
    err = ep->tp->verbs->cm_open(&ep->cm);
    if (err == KVP_OK && !watch_fd(ep, ep->cm->fd)) goto fail_sys;
    if (err == KVP_OK) err = kvp_rdma_addr(to, &ep->known);
    if (err == KVP_OK) ep->rails[0].at = kvp_rdma_address_cache_look(&ep->tp->addresses, &ep->known);
    ep->rails[0].is_routed = true;
    ep->sum = kvp_sum_create();
    if (err == KVP_OK && ep->sum == NULL) err = KVP_NOMEM;
    ep->rails_n = 1;
    if (err == KVP_OK) {
        err = kvp_rdma_rail_open(&ep->rails[0], ep->tp, ep->cm, NULL, &ep->base.costs);
        if (err != KVP_OK) kvp_rdma_address_cache_failed(&ep->tp->addresses, &ep->known);
    }
    if (err != KVP_OK) goto fail;
    ep->on_connected = done;
    ep->on_connected_arg = arg;
    ep->has_slept = true;
    return KVP_OK;
fail_sys:
    kvp_log_error("rdma", "an endpoint cannot be made: %m");
    err = KVP_SYS;
fail:
    kvp_rdma_ep_close(base);
    return err;
}

void
kvp_rdma_ep_close(kvp_ep_t *base)
{
    kvp_rdma_ep_t *ep = kvp_rdma_ep_of(base);

    kvp_rdma_ep_hang_up(ep);
    tell_connected(ep, KVP_CANCELLED);
    kvp_rdma_ep_finish_all(ep, KVP_CANCELLED);
    if (ep->cm != NULL) ep->tp->verbs->cm_close(ep->cm);
    for (uint32_t i = 0; i < ep->rails_n; i++)
        kvp_rdma_rail_fini(&ep->rails[i]);
    kvp_sum_destroy(ep->sum);
    free(ep->lost);
    if (ep->timer_fd >= 0) close(ep->timer_fd);
    if (ep->kick_fd >= 0) close(ep->kick_fd);
    if (ep->epoll_fd >= 0) close(ep->epoll_fd);
    ep->cm = NULL;
    ep->sum = NULL;
    ep->lost = NULL;
    ep->rails_n = 0;
    ep->timer_fd = ep->kick_fd = ep->epoll_fd = -1;
}

int
kvp_rdma_ep_event_fd(kvp_ep_t *base)
{
    return kvp_rdma_ep_of(base)->epoll_fd;
}

bool
kvp_rdma_ep_is_broken(const kvp_ep_t *base)
{
    const kvp_rdma_ep_t *ep = kvp_container_of(base, const kvp_rdma_ep_t, base);

    return ep->rails_n == 0 || ep->state == KVP_RDMA_EP_BROKEN;
}

bool
kvp_rdma_ep_is_stale(const kvp_ep_t *base)
{
    const kvp_rdma_ep_t *ep = kvp_container_of(base, const kvp_rdma_ep_t, base);
    bool is_stale = ep->has_rekeyed;

    for (uint32_t i = 0; i < ep->rails_n; i++)
        is_stale |= kvp_rdma_rail_is_on_gone(&ep->rails[i]);
    return is_stale;
}
