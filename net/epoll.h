/* SPDX-License-Identifier: Apache-2.0
 * A set of descriptors that one thread waits for, and a way for other threads to wake it: what the node's control thread, the lanes
 * of tcp and the thread that serves peers have in common. Only open and close must be alone; add, change, drop and wake may be
 * called by any thread, wait and next by the one that waits.
 */
#ifndef KVP_NET_EPOLL_H
#define KVP_NET_EPOLL_H

#include "common/base.h"

#include <sys/epoll.h>

#define KVP_EPOLL_EVENTS 64u /* told by one wait */

typedef struct {
    int epoll_fd; /* -1 = not open */
    int wake_fd; /* an eventfd; lent to those who wake the thread themselves */
    uint32_t n, at; /* events of the last wait, and how many of them were told */
    uint32_t first; /* with which one a wait begins */
    struct epoll_event events[KVP_EPOLL_EVENTS];
} kvp_epoll_t;

#define KVP_EPOLL_EMPTY ((kvp_epoll_t){.epoll_fd = -1, .wake_fd = -1})

/* kvp_epoll_open: SYS, with errno. kvp_epoll_close is legal on one that is empty, or half open. */
kvp_err_t kvp_epoll_open(kvp_epoll_t *e) KVP_MUST_USE;
void kvp_epoll_close(kvp_epoll_t *e);

/* kvp_epoll_add puts a descriptor into the set; tag is what next tells of it. change asks for other events; 0 = none, but errors are
 * told all the same. drop takes it out, which has to come before it is closed: while a forked child holds it, its events would go on
 * to name the tag. SYS, with errno. */
kvp_err_t kvp_epoll_add(const kvp_epoll_t *e, int fd, uint32_t events, void *tag) KVP_MUST_USE;
kvp_err_t kvp_epoll_change(const kvp_epoll_t *e, int fd, uint32_t events, void *tag) KVP_MUST_USE;
kvp_err_t kvp_epoll_drop(const kvp_epoll_t *e, int fd) KVP_MUST_USE;

/* kvp_epoll_wait waits up to timeout_ms (-1 = for ever), also in vain. SYS, with errno. kvp_epoll_next gives the tag of one event after
 * the other, and NULL behind the last; the set itself is the tag of having been woken. What is not asked for before the next wait is
 * told again then: so each wait begins with another one. */
kvp_err_t kvp_epoll_wait(kvp_epoll_t *e, int timeout_ms) KVP_MUST_USE;
void *kvp_epoll_next(kvp_epoll_t *e, uint32_t *events_out);

/* kvp_epoll_wake makes the wait at hand, or the next one, return. */
void kvp_epoll_wake(const kvp_epoll_t *e);

#endif
