/* SPDX-License-Identifier: Apache-2.0
 * A set of descriptors for which one thread waits, and a wake-up by other threads. Shared by the node's control
 * thread, the threads of the TCP transport and the thread that serves peers. open and close need exclusive use. Any
 * thread may call add, change, drop and wake; only the waiting thread calls wait and next. */
#ifndef KVP_NET_EPOLL_H
#define KVP_NET_EPOLL_H

#include "common/base.h"

#include <sys/epoll.h>

#define KVP_EPOLL_EVENTS 64u /* most events of one wait */

typedef struct {
    int epoll_fd; /* the epoll descriptor; -1 = not open */
    int wake_fd; /* eventfd; other threads may borrow it to wake the waiting thread */
    uint32_t n, at; /* n: number of events of the last wait; at: number of those that kvp_epoll_next has returned */
    uint32_t first; /* index in `events` of the event to return first; advances, so that no descriptor starves */
    struct epoll_event events[KVP_EPOLL_EVENTS];
} kvp_epoll_t;

#define KVP_EPOLL_EMPTY ((kvp_epoll_t){.epoll_fd = -1, .wake_fd = -1})

/* kvp_epoll_open creates the set; SYS: see errno. kvp_epoll_close may be called for an empty or half-open set. */
kvp_err_t kvp_epoll_open(kvp_epoll_t *e) KVP_MUST_USE;
void kvp_epoll_close(kvp_epoll_t *e);

/* kvp_epoll_add adds a descriptor; kvp_epoll_next returns tag for its events. kvp_epoll_change replaces the events to
 * wait for; an error or hang-up is reported even with events 0. kvp_epoll_drop removes the descriptor, and must be
 * called before the descriptor is closed: if a forked child has the descriptor open, events with the tag would
 * continue. SYS: see errno. */
kvp_err_t kvp_epoll_add(const kvp_epoll_t *e, int fd, uint32_t events, void *tag) KVP_MUST_USE;
kvp_err_t kvp_epoll_change(const kvp_epoll_t *e, int fd, uint32_t events, void *tag) KVP_MUST_USE;
kvp_err_t kvp_epoll_drop(const kvp_epoll_t *e, int fd) KVP_MUST_USE;

/* kvp_epoll_wait waits up to timeout_ms (-1 = for ever) and may return without events. SYS: see errno. kvp_epoll_next
 * returns the tag of each event in turn, and NULL after the last; for a wake-up the tag is the set itself. Events that
 * were not taken before the next wait are reported again. Each wait begins at another index, so that no descriptor
 * starves. */
kvp_err_t kvp_epoll_wait(kvp_epoll_t *e, int timeout_ms) KVP_MUST_USE;
void *kvp_epoll_next(kvp_epoll_t *e, uint32_t *events_out);

/* kvp_epoll_wake makes the current or the next wait return. */
void kvp_epoll_wake(const kvp_epoll_t *e);

#endif
