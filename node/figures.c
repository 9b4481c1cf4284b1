/* SPDX-License-Identifier: Apache-2.0
 * The node's functions for other threads: its figures, waiting for a mount, and the request to stop. */
#include "node/priv.h"

#include "common/waits.h"
#include "node/tier/tier.h"

void
kvp_node_failed(kvp_node_t *node, kvp_err_t err)
{
    pthread_mutex_lock(&node->shared.lock);
    node->shared.last_err = err;
    pthread_cond_broadcast(&node->shared.changed);
    pthread_mutex_unlock(&node->shared.lock);
}

void
kvp_node_times_init(kvp_node_times_t *times)
{
    kvp_histogram_t *served[] = {&times->served.read_ns, &times->served.write_ns};

    for (size_t i = 0; i < KVP_NODE_WORKS_N + KVP_ARRAY_LEN(served); i++) {
        kvp_histogram_t *h = i < KVP_NODE_WORKS_N ? &times->works[i] : served[i - KVP_NODE_WORKS_N];

        h->bounds = kvp_metric_coarse_bounds;
        h->bound_count = KVP_METRIC_COARSE_BOUNDS;
    }
}

kvp_node_times_t *
kvp_node_times(kvp_node_t *node)
{
    return &node->times;
}

bool
kvp_node_publish(kvp_node_t *node, uint64_t *stop_by_ns)
{
    kvp_node_core_stats_t s;
    kvp_node_pinned_t pinned;
    kvp_node_info_t *info = &node->shared.info;
    bool was_mounted, was_tier_mounted, was_drained, is_stopping;

    kvp_node_core_stats(node->core, &s);
    kvp_node_pin_bytes(&node->tps.pin, &pinned);
    pthread_mutex_lock(&node->shared.lock);
    was_mounted = info->is_mounted;
    was_tier_mounted = info->is_tier_mounted;
    was_drained = info->is_drained;
    info->is_drained = node->leave.is_drained;
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
    if (info->is_mounted != was_mounted || info->is_tier_mounted != was_tier_mounted || info->is_tier_over ||
        info->is_drained != was_drained)
        pthread_cond_broadcast(&node->shared.changed);
    is_stopping = node->shared.is_stopping;
    *stop_by_ns = is_stopping ? node->shared.stop_by_ns : UINT64_MAX;
    pthread_mutex_unlock(&node->shared.lock);
    return is_stopping;
}

void
kvp_node_ask_stop(kvp_node_t *node, uint64_t deadline_ns)
{
    pthread_mutex_lock(&node->shared.lock);
    node->shared.is_stopping = true;
    node->shared.stop_by_ns = deadline_ns;
    pthread_mutex_unlock(&node->shared.lock);
    kvp_epoll_wake(&node->events.epoll);
}

bool
kvp_node_is_final(kvp_err_t err)
{
    return err == KVP_DENIED || err == KVP_EXPIRED || err == KVP_VERSION || err == KVP_INVALID || err == KVP_SYS ||
           err == KVP_NOMEM;
}

kvp_err_t
kvp_node_wait(kvp_node_t *node, uint64_t deadline_ns)
{
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&node->shared.lock);
    while (!node->shared.info.is_mounted) {
        err = node->shared.last_err;
        if (kvp_node_is_final(err) || kvp_now_ns() >= deadline_ns) break;
        kvp_cond_wait_until(&node->shared.changed, &node->shared.lock, deadline_ns);
    }
    if (node->shared.info.is_mounted)
        err = KVP_OK;
    else if (err == KVP_OK)
        err = KVP_DEADLINE;
    pthread_mutex_unlock(&node->shared.lock);
    return err;
}

static bool
wait_for_tier(kvp_node_t *node, const bool *is_so, uint64_t deadline_ns)
{
    bool is_done;

    pthread_mutex_lock(&node->shared.lock);
    while (!*is_so && kvp_now_ns() < deadline_ns)
        kvp_cond_wait_until(&node->shared.changed, &node->shared.lock, deadline_ns);
    is_done = *is_so;
    pthread_mutex_unlock(&node->shared.lock);
    return is_done;
}

bool
kvp_node_wait_tier(kvp_node_t *node, uint64_t deadline_ns)
{
    return node->tiering.tier == NULL || wait_for_tier(node, &node->shared.info.is_tier_mounted, deadline_ns);
}

bool
kvp_node_unmount_tier(kvp_node_t *node, uint64_t deadline_ns)
{
    if (node->tiering.tier == NULL) return true;
    atomic_store(&node->tiering.is_over, true);
    kvp_epoll_wake(&node->events.epoll);
    return wait_for_tier(node, &node->shared.info.is_tier_over, deadline_ns);
}

void
kvp_node_info(kvp_node_t *node, kvp_node_info_t *info_out)
{
    pthread_mutex_lock(&node->shared.lock);
    *info_out = node->shared.info;
    pthread_mutex_unlock(&node->shared.lock);
}
