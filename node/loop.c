/* SPDX-License-Identifier: Apache-2.0
 * The control thread: the epoll set, the core's requests, and the segment's memory. The memory is created when a
 * master has named its pool, and created again if a master asks for new memory. */
#include "node/priv.h"

#include "transport/all/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEND_NS KVP_NS_PER_S /* the longest time between two looks at the devices of the process */

/* ---- the epoll set */
kvp_err_t
kvp_node_watch(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events)
{
    /* ev->events 0 means that the descriptor is not in the set, so a pause is stored as EPOLLERR, which is always
     * reported. */
    uint32_t wanted = events == 0 ? EPOLLERR : events;
    kvp_err_t err;

    if (ev->events == wanted) return KVP_OK;
    err = ev->events == 0 ? kvp_epoll_add(&node->epoll, ev->fd, wanted, ev)
                          : kvp_epoll_change(&node->epoll, ev->fd, wanted, ev);
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
    if (kvp_epoll_drop(&node->epoll, ev->fd) != KVP_OK) kvp_log_error("node", "cannot unwatch: %m");
    ev->events = 0;
}

void
kvp_node_free_later(kvp_node_t *node, kvp_node_deferred_t *deferred, void *mem)
{
    deferred->mem = mem;
    kvp_list_init(&deferred->link);
    kvp_list_add_tail(&node->deferred, &deferred->link);
}

void
kvp_node_free_deferred(kvp_node_t *node)
{
    while (!kvp_list_is_empty(&node->deferred)) {
        kvp_node_deferred_t *deferred = kvp_list_first(&node->deferred, kvp_node_deferred_t, link);

        kvp_list_del(&deferred->link);
        free(deferred->mem);
    }
}

/* ---- the core's requests */
static kvp_node_round_t *
unused_round(kvp_node_t *node)
{
    for (size_t i = 0; i < KVP_NODE_ROUNDS_MAX; i++) {
        if (node->rounds[i].number == 0) return &node->rounds[i];
    }
    kvp_panic("node: more rounds of quiesce than the core allows");
}

static void
end_round(kvp_node_t *node, kvp_node_round_t *r)
{
    uint64_t number = r->number;

    r->number = 0;
    kvp_node_core_quiesced(node->core, number);
}

static void
cut_writers(kvp_node_t *node)
{
    uint64_t incarnation;

    while (kvp_node_core_take_cut(node->core, &incarnation))
        kvp_node_tps_cut(&node->tps, incarnation);
}

/* Ends rounds of quiesce that are over, and begins new rounds. A round whose lanes are all idle ends before the
 * return. */
static void
run_rounds(kvp_node_t *node)
{
    uint64_t number;

    for (size_t i = 0; i < KVP_NODE_ROUNDS_MAX; i++) {
        kvp_node_round_t *r = &node->rounds[i];
        if (r->number != 0 && kvp_gather_is_over(&r->gather)) end_round(node, r);
    }
    while (kvp_node_core_take_quiesce(node->core, &number)) {
        kvp_node_round_t *r = unused_round(node);

        r->number = number;
        kvp_gather_begin(&r->gather, node->epoll.wake_fd);
        kvp_node_tps_quiesce(&node->tps, &r->gather);
        if (kvp_gather_end(&r->gather)) end_round(node, r);
    }
}

void
kvp_node_revoke(kvp_node_t *node)
{
    uint64_t live_min;

    if (node->is_revoking && kvp_gather_is_over(&node->revoke)) node->is_revoking = false;
    if (node->is_revoking || !kvp_node_core_take_fence(node->core, &live_min)) return;
    if (node->mem == NULL) return;
    kvp_node_mem_set_term(node->mem, kvp_node_core_term(node->core));
    kvp_gather_begin(&node->revoke, node->epoll.wake_fd);
    kvp_node_tps_fence(&node->tps, (kvp_idrange_t){0}, live_min, &node->revoke);
    node->is_revoking = !kvp_gather_end(&node->revoke);
}

void
kvp_node_settle(kvp_node_t *node)
{
    kvp_node_proc_t *proc;
    kvp_node_att_t *att;

    kvp_node_revoke(node);
    cut_writers(node);
    run_rounds(node);
    while ((att = kvp_node_core_take_close(node->core)) != NULL)
        kvp_node_serve_close_att(node, att);
    while ((proc = kvp_node_core_take_idle(node->core)) != NULL)
        kvp_node_proc_drop(node, kvp_container_of(proc, kvp_node_process_t, core));
}

void
kvp_node_failed(kvp_node_t *node, kvp_err_t err)
{
    pthread_mutex_lock(&node->lock);
    node->last_err = err;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

/* ---- memory */
void
kvp_node_drop_memory(kvp_node_t *node)
{
    if (node->mem == NULL) return;
    kvp_node_tiering_leave_memory(node);
    kvp_node_core_drop_segment(node->core);
    kvp_node_settle(node);
    kvp_node_tps_stop(&node->tps);
    /* The transports are stopped, so no copy is under way and all rounds are over. */
    for (size_t i = 0; i < KVP_NODE_ROUNDS_MAX; i++) {
        if (node->rounds[i].number != 0) end_round(node, &node->rounds[i]);
    }
    node->is_revoking = false;
    kvp_node_keep_drop(node);
    kvp_node_populate_end(&node->populate);
    node->mem = NULL;
}

void
kvp_node_fence_anew(kvp_node_t *node)
{
    const kvp_idset_t *fenced = kvp_node_core_fenced(node->core);

    kvp_gather_begin(&node->unwaited, node->epoll.wake_fd);
    if (fenced->floor > 0) kvp_node_tps_fence(&node->tps, (kvp_idrange_t){0}, fenced->floor, &node->unwaited);
    for (size_t i = 0; i < fenced->n; i++)
        kvp_node_tps_fence(&node->tps, fenced->ranges[i], fenced->floor, &node->unwaited);
}

kvp_err_t
kvp_node_use_memory(kvp_node_t *node, kvp_node_mem_t *mem)
{
    kvp_err_t err =
        kvp_node_tps_start(&node->tps, node->ops, node->ops_n, node->needed, node->lanes, &node->listen, mem);

    if (err == KVP_OK) {
        err = kvp_node_core_set_segment(node->core, mem->chunk_n, mem->chunks[0].geo.slots_max,
                                        mem->chunks[mem->chunk_n - 1].geo.slots_max);
        if (err != KVP_OK) kvp_node_tps_stop(&node->tps);
    }
    if (err != KVP_OK) {
        kvp_node_mem_destroy(mem);
        return err;
    }
    node->mem = mem;
    node->is_fresh = true;
    kvp_node_populate_begin(&node->populate, mem);
    return KVP_OK;
}

kvp_err_t
kvp_node_make_memory(kvp_node_t *node, const kvp_hello_reply_t *hello)
{
    kvp_node_mem_conf_t conf = {
        .digest_seed = hello->digest_seed,
        .epoch = node->epoch,
        .term = hello->term,
        .size_bytes = node->size_bytes,
        .chunk_bytes = node->chunk_bytes,
    };
    kvp_node_mem_t *mem;
    kvp_err_t err;

    kvp_node_drop_memory(node);
    memcpy(conf.pool_id, hello->pool_id, sizeof conf.pool_id);
    err = kvp_node_mem_create(&conf, &mem);
    if (err == KVP_OK) err = kvp_node_use_memory(node, mem);
    if (err != KVP_OK) return err;
    kvp_node_fence_anew(node);
    kvp_node_keep_hand_over(node);
    return KVP_OK;
}

/* ---- the loop */
static int
timeout_ms(const kvp_node_t *node, uint64_t stop_by_ns)
{
    uint64_t due = kvp_min_u64(kvp_min_u64(kvp_node_serve_due(node), kvp_node_link_due(node)), kvp_node_keep_due(node));
    uint64_t now = kvp_now_ns();

    due = kvp_min_u64(kvp_min_u64(due, stop_by_ns), now + TEND_NS);
    return due <= now ? 0 : (int)((due - now) / KVP_NS_PER_MS + 1);
}

/* publish_figures copies the figures for other threads. Returns whether another thread wants the node to stop. */
static bool
publish_figures(kvp_node_t *node, uint64_t *stop_by_ns)
{
    kvp_node_core_stats_t s;
    kvp_node_pinned_t pinned;
    kvp_node_info_t *info = &node->info;
    bool was_mounted, was_tier_mounted, is_stopping;

    kvp_node_core_stats(node->core, &s);
    kvp_node_pin_bytes(&node->tps.pin, &pinned);
    pthread_mutex_lock(&node->lock);
    was_mounted = info->is_mounted;
    was_tier_mounted = info->is_tier_mounted;
    info->is_mounted = node->link.state >= KVP_LINK_UP;
    info->term = kvp_node_core_term(node->core);
    info->populated_bytes = atomic_load(&node->populate.populated_bytes);
    info->to_register_bytes = pinned.total;
    info->registered_bytes = pinned.registered;
    info->unregistered_bytes = pinned.refused;
    info->attached_clients = s.attached;
    info->retires = s.retires;
    info->freed = s.freed;
    info->fences = s.fences;
    info->quarantined = s.quarantined;
    info->attaches_refused = s.refused + node->serve.refused;
    info->requests = node->serve.requests;
    info->protocol_errors = node->serve.protocol_errors;
    info->remounts = node->link.mounts > 0 ? node->link.mounts - 1 : 0;
    info->is_kept = node->keep.state == KVP_KEEP_UP && kvp_node_book_is_whole(&node->keep.book);
    info->keeper_pid = node->keep.state == KVP_KEEP_UP ? node->keep.pid : 0;
    info->adopted_objects = node->keep.adopted_objects;
    info->has_tier = node->tiering.tier != NULL;
    info->is_tier_mounted = node->tiering.state == KVP_TIERING_UP;
    info->is_tier_over = atomic_load(&node->tiering.is_over) && node->tiering.state == KVP_TIERING_DOWN;
    if (info->has_tier) kvp_tier_stats(node->tiering.tier, &info->tier);
    if (info->is_mounted != was_mounted || info->is_tier_mounted != was_tier_mounted || info->is_tier_over)
        pthread_cond_broadcast(&node->changed);
    is_stopping = node->is_stopping;
    *stop_by_ns = is_stopping ? node->stop_by_ns : UINT64_MAX;
    pthread_mutex_unlock(&node->lock);
    return is_stopping;
}

/* Handles ready events until the turn is over. Events that are left are reported again in the next turn. */
static void
handle_events(kvp_node_t *node)
{
    uint32_t events;
    void *tag;

    node->turn_ns = kvp_now_ns();
    while ((tag = kvp_epoll_next(&node->epoll, &events)) != NULL) {
        kvp_node_ev_t *ev = tag;

        if (tag == &node->epoll) /* the wake descriptor: another thread, such as the dial, has news */
            kvp_node_link_on_dial(node);
        else if (ev->fn != NULL)
            ev->fn(node, ev, events);
        if (kvp_node_is_turn_over(node)) return;
    }
}

void *
kvp_node_loop(void *arg)
{
    kvp_node_t *node = arg;
    uint64_t stop_by_ns = UINT64_MAX;
    bool is_sweeping = false;

    kvp_node_link_begin(node);
    while (!node->link.is_done) {
        uint64_t now;

        kvp_ignore(kvp_epoll_wait(&node->epoll, is_sweeping ? 0 : timeout_ms(node, stop_by_ns)),
                   "what is due is seen to all the same");
        handle_events(node);
        now = kvp_now_ns();
        kvp_node_serve_tick(node, now);
        kvp_node_link_tick(node, now);
        kvp_node_keep_tick(node, now);
        kvp_transports_tend();
        is_sweeping = kvp_node_link_sweep(node);
        kvp_node_settle(node);
        kvp_node_tiering_poll(node, now);
        kvp_node_link_on_settled(node);
        kvp_node_free_deferred(node);
        if (publish_figures(node, &stop_by_ns)) kvp_node_link_unmount(node, now, stop_by_ns);
        if (now >= stop_by_ns) break;
    }
    return NULL;
}
