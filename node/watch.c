/* SPDX-License-Identifier: Apache-2.0
 * The control thread's epoll set, and the end of the objects in it. */
#include "node/priv.h"

#include <stdlib.h>

kvp_err_t
kvp_node_watch(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events)
{
    /* ev->events 0 means that the descriptor is not in the set, so a pause is stored as EPOLLERR, which is always
     * reported. */
    uint32_t wanted = events == 0 ? EPOLLERR : events;
    kvp_err_t err;

    if (ev->events == wanted) return KVP_OK;
    err = ev->events == 0 ? kvp_epoll_add(&node->events.epoll, ev->fd, wanted, ev)
                          : kvp_epoll_change(&node->events.epoll, ev->fd, wanted, ev);
    if (err == KVP_OK)
        ev->events = wanted;
    else
        kvp_log_error("node", "cannot watch a descriptor: %m");
    return err;
}

void
kvp_node_unwatch(kvp_node_t *node, kvp_node_ev_t *ev)
{
    if (ev->events == 0) return;
    if (kvp_epoll_drop(&node->events.epoll, ev->fd) != KVP_OK) kvp_log_error("node", "cannot unwatch: %m");
    ev->events = 0;
}

void
kvp_node_free_later(kvp_node_t *node, kvp_node_deferred_t *deferred, void *mem)
{
    deferred->mem = mem;
    kvp_list_init(&deferred->link);
    kvp_list_add_tail(&node->events.deferred, &deferred->link);
}

void
kvp_node_free_deferred(kvp_node_t *node)
{
    while (!kvp_list_is_empty(&node->events.deferred)) {
        kvp_node_deferred_t *deferred = kvp_list_first(&node->events.deferred, kvp_node_deferred_t, link);

        kvp_list_del(&deferred->link);
        free(deferred->mem);
    }
}
