/* SPDX-License-Identifier: Apache-2.0 */
#include "net/epoll.h"

#include "net/wake.h"
#include "common/forkguard.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

static kvp_err_t
change_set(const kvp_epoll_t *e, int op, int fd, uint32_t events, void *tag)
{
    struct epoll_event ev = {.events = events, .data.ptr = tag};

    return epoll_ctl(e->epoll_fd, op, fd, &ev) == 0 ? KVP_OK : KVP_SYS;
}

kvp_err_t
kvp_epoll_open(kvp_epoll_t *e)
{
    *e = KVP_EPOLL_EMPTY;
    e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (e->epoll_fd < 0) return KVP_SYS;
    kvp_forkguard_add(e->epoll_fd);
    e->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (e->wake_fd < 0) return KVP_SYS;
    kvp_forkguard_add(e->wake_fd);
    return kvp_epoll_add(e, e->wake_fd, EPOLLIN, e);
}

void
kvp_epoll_close(kvp_epoll_t *e)
{
    kvp_forkguard_close(e->wake_fd);
    kvp_forkguard_close(e->epoll_fd);
    e->wake_fd = e->epoll_fd = -1;
}

kvp_err_t
kvp_epoll_add(const kvp_epoll_t *e, int fd, uint32_t events, void *tag)
{
    return change_set(e, EPOLL_CTL_ADD, fd, events, tag);
}

kvp_err_t
kvp_epoll_change(const kvp_epoll_t *e, int fd, uint32_t events, void *tag)
{
    return change_set(e, EPOLL_CTL_MOD, fd, events, tag);
}

kvp_err_t
kvp_epoll_drop(const kvp_epoll_t *e, int fd)
{
    return change_set(e, EPOLL_CTL_DEL, fd, 0, NULL);
}

kvp_err_t
kvp_epoll_wait(kvp_epoll_t *e, int timeout_ms)
{
    int n = epoll_wait(e->epoll_fd, e->events, KVP_EPOLL_EVENTS, timeout_ms);

    e->first += e->at;
    e->at = 0;
    e->n = n > 0 ? (uint32_t)n : 0;
    return n < 0 && errno != EINTR ? KVP_SYS : KVP_OK;
}

void *
kvp_epoll_next(kvp_epoll_t *e, uint32_t *events_out)
{
    const struct epoll_event *ev;
    uint64_t count;

    if (e->at == e->n) return NULL;
    ev = &e->events[(e->first + e->at++) % e->n];
    *events_out = ev->events;
    if (ev->data.ptr == e && read(e->wake_fd, &count, sizeof count) < 0)
        *events_out = 0; /* an earlier read took the eventfd's count; the wake-up is reported all the same */
    return ev->data.ptr;
}

void
kvp_epoll_wake(const kvp_epoll_t *e)
{
    kvp_wake(e->wake_fd);
}
