/* SPDX-License-Identifier: Apache-2.0
 * The control thread. */
#include "node/priv.h"

#include "transport/all/registry.h"

#define TEND_NS KVP_NS_PER_S /* the longest time between two calls of kvp_transports_tend */

static int
timeout_ms(const kvp_node_t *node, uint64_t stop_by_ns)
{
    uint64_t due = kvp_min_u64(kvp_min_u64(kvp_node_serve_due(node), kvp_node_link_due(node)), kvp_node_keep_due(node));
    uint64_t now = kvp_now_ns();

    due = kvp_min_u64(kvp_min_u64(due, stop_by_ns), kvp_min_u64(kvp_node_leave_due(node), now + TEND_NS));
    return due <= now ? 0 : (int)((due - now) / KVP_NS_PER_MS + 1);
}

/* Handles ready events for KVP_NODE_TURN_NS at most. Events that are left are reported again in the next turn. */
static void
handle_events(kvp_node_t *node)
{
    uint32_t events;
    void *tag;

    node->events.turn_ns = kvp_now_ns();
    while ((tag = kvp_epoll_next(&node->events.epoll, &events)) != NULL) {
        kvp_node_ev_t *ev = tag;

        if (tag == &node->events.epoll) { /* the wake descriptor: another thread, such as the dial, has news */
            kvp_node_link_on_dial(node);
            kvp_node_serve_on_handshakes(node);
        } else if (ev->fn != NULL) {
            ev->fn(node, ev, events);
        }
        if (kvp_node_is_turn_over(node)) return;
    }
}

void *
kvp_node_loop(void *arg)
{
    kvp_node_t *node = arg;
    uint64_t stop_by_ns = UINT64_MAX;
    bool is_sweeping = false, is_copying = false;

    kvp_node_link_begin(node);
    while (!node->link.is_done) {
        uint64_t now;

        kvp_ignore(kvp_epoll_wait(&node->events.epoll, is_sweeping || is_copying ? 0 : timeout_ms(node, stop_by_ns)),
                   "what is due is seen to all the same");
        handle_events(node);
        now = kvp_now_ns();
        kvp_node_serve_tick(node, now);
        kvp_node_link_tick(node, now);
        kvp_node_keep_tick(node, now);
        kvp_node_leave_tick(node, now);
        kvp_transports_tend();
        is_sweeping = kvp_node_link_sweep(node);
        kvp_node_settle(node);
        kvp_node_tiering_poll(node, now);
        is_copying = kvp_node_copying_poll(node);
        kvp_node_link_on_settled(node);
        kvp_node_free_deferred(node);
        if (kvp_node_publish(node, &stop_by_ns)) kvp_node_link_unmount(node, now, stop_by_ns);
        if (now >= stop_by_ns) break;
    }
    return NULL;
}
