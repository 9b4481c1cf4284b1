/* SPDX-License-Identifier: Apache-2.0
 * Carries out the core's requests: cuts of writers, rounds of quiesce, the fence of a new term, and the end of
 * attachments and processes. */
#include "node/priv.h"

static kvp_node_round_t *
unused_round(kvp_node_t *node)
{
    for (size_t i = 0; i < KVP_NODE_ROUNDS_MAX; i++) {
        if (node->quiesce.rounds[i].number == 0) return &node->quiesce.rounds[i];
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

/* Ends rounds of quiesce that are over, and begins new rounds. A round without a transfer under way ends before the
 * return. */
static void
run_rounds(kvp_node_t *node)
{
    uint64_t number;

    for (size_t i = 0; i < KVP_NODE_ROUNDS_MAX; i++) {
        kvp_node_round_t *r = &node->quiesce.rounds[i];
        if (r->number != 0 && kvp_gather_is_over(&r->gather)) end_round(node, r);
    }
    while (kvp_node_core_take_quiesce(node->core, &number)) {
        kvp_node_round_t *r = unused_round(node);

        r->number = number;
        kvp_gather_begin(&r->gather, node->events.epoll.wake_fd);
        kvp_node_tps_quiesce(&node->tps, &r->gather);
        if (kvp_gather_end(&r->gather)) end_round(node, r);
    }
}

void
kvp_node_revoke(kvp_node_t *node)
{
    uint64_t live_min;

    if (node->quiesce.is_revoking && kvp_gather_is_over(&node->quiesce.revoke)) node->quiesce.is_revoking = false;
    if (node->quiesce.is_revoking || !kvp_node_core_take_fence(node->core, &live_min)) return;
    if (node->mem == NULL) return;
    kvp_node_mem_set_term(node->mem, kvp_node_core_term(node->core));
    kvp_gather_begin(&node->quiesce.revoke, node->events.epoll.wake_fd);
    kvp_node_tps_fence(&node->tps, (kvp_idrange_t){0}, live_min, &node->quiesce.revoke);
    node->quiesce.is_revoking = !kvp_gather_end(&node->quiesce.revoke);
}

void
kvp_node_rounds_over(kvp_node_t *node)
{
    for (size_t i = 0; i < KVP_NODE_ROUNDS_MAX; i++) {
        if (node->quiesce.rounds[i].number != 0) end_round(node, &node->quiesce.rounds[i]);
    }
    node->quiesce.is_revoking = false;
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
