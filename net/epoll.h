/* SPDX-License-Identifier: Apache-2.0
 * A set of descriptors that one thread waits for, and a wake from other threads: shared by the
 * node's control thread, the lanes of tcp and the thread that serves peers. open and close need
 * exclusive use. Any thread may call add, change, drop and wake; only the waiting thread calls wait
 * and next. */
#ifndef KVP_NET_EPOLL_H
#define KVP_NET_EPOLL_H

#include "common/base.h"

#include <sys/epoll.h>

#define KVP_EPOLL_EVENTS 64u /* events of one wait */

typedef struct {
    int epoll_fd; /* -1 = not open */
    int wake_fd; /* an eventfd; borrowed by other threads that wake this thread */
    uint32_t n, at; /* events of the last wait, and the number already returned */
    uint32_t first; /* index of the first event to return after a wait */
    struct epoll_event events[KVP_EPOLL_EVENTS];
} kvp_epoll_t;

#define KVP_EPOLL_EMPTY ((kvp_epoll_t){.epoll_fd = -1, .wake_fd = -1})

/* kvp_epoll_open: SYS, with errno. kvp_epoll_close is legal on an empty or half-open value. */
kvp_err_t kvp_epoll_open(kvp_epoll_t *e) KVP_MUST_USE;
void kvp_epoll_close(kvp_epoll_t *e);

/* kvp_epoll_add adds a descriptor; kvp_epoll_next returns tag for its events. kvp_epoll_change
 * replaces the events; with 0 errors are still reported. kvp_epoll_drop removes the descriptor and
 * must come before its close: while a forked child holds the descriptor open, its events would
 * continue with the tag. SYS, with errno. */
kvp_err_t kvp_epoll_add(const kvp_epoll_t *e, int fd, uint32_t events, void *tag) KVP_MUST_USE;
kvp_err_t kvp_epoll_change(const kvp_epoll_t *e, int fd, uint32_t events, void *tag) KVP_MUST_USE;
kvp_err_t kvp_epoll_drop(const kvp_epoll_t *e, int fd) KVP_MUST_USE;

/* kvp_epoll_wait waits up to timeout_ms (-1 = for ever) and may return without events. SYS, with
 * errno. kvp_epoll_next returns the tag of each event in turn, and NULL after the last; the set
 * itself is the tag of a wake. Events not taken before the next wait are reported again; each wait
 * begins at another index, so that no descriptor starves. */
kvp_err_t kvp_epoll_wait(kvp_epoll_t *e, int timeout_ms) KVP_MUST_USE;
void *kvp_epoll_next(kvp_epoll_t *e, uint32_t *events_out);

/* kvp_epoll_wake makes the wait at hand, or the next one, return. */
void kvp_epoll_wake(const kvp_epoll_t *e);

#endif
