/* SPDX-License-Identifier: Apache-2.0
 * The segment's memory: created when a master has named its pool, and created again if a master asks for new memory. */
#include "node/priv.h"

#include <string.h>

void
kvp_node_drop_memory(kvp_node_t *node)
{
    if (node->mem == NULL) return;
    kvp_node_tiering_leave_memory(node);
    kvp_node_core_drop_segment(node->core);
    kvp_node_settle(node);
    kvp_node_tps_stop(&node->tps);
    kvp_node_rounds_over(node); /* no copy is under way, because the transports are stopped */
    kvp_node_keep_drop(node);
    kvp_node_populate_end(&node->populate);
    node->mem = NULL;
}

void
kvp_node_fence_anew(kvp_node_t *node)
{
    const kvp_idset_t *fenced = kvp_node_core_fenced(node->core);

    kvp_gather_begin(&node->unwaited, node->events.epoll.wake_fd);
    if (fenced->floor > 0) kvp_node_tps_fence(&node->tps, (kvp_idrange_t){0}, fenced->floor, &node->unwaited);
    for (size_t i = 0; i < fenced->n; i++)
        kvp_node_tps_fence(&node->tps, fenced->ranges[i], fenced->floor, &node->unwaited);
}

kvp_err_t
kvp_node_use_memory(kvp_node_t *node, kvp_node_mem_t *mem)
{
    kvp_err_t err = kvp_node_tps_start(&node->tps, node->conf.ops, node->conf.ops_n, node->conf.needed,
                                       node->conf.lanes, &node->conf.listen, mem, &node->times.served);

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
        .size_bytes = node->conf.size_bytes,
        .chunk_bytes = node->conf.chunk_bytes,
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
