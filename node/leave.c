/* SPDX-License-Identifier: Apache-2.0
 * A node that is to stop asks the master to move its objects to other nodes (DRAIN), and asks how far that is. A master
 * that does not know of the drain, because it is new, is asked again. */
#include "node/priv.h"

#include "common/waits.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#define ASK_NS (100 * KVP_NS_PER_MS)

void
kvp_node_drain(kvp_node_t *node)
{
    atomic_store(&node->leave.is_wanted, true);
    kvp_epoll_wake(&node->events.epoll);
}

bool
kvp_node_wait_drained(kvp_node_t *node, uint64_t deadline_ns)
{
    bool is_drained;

    pthread_mutex_lock(&node->shared.lock);
    while (!node->shared.info.is_drained && kvp_now_ns() < deadline_ns)
        kvp_cond_wait_until(&node->shared.changed, &node->shared.lock, deadline_ns);
    is_drained = node->shared.info.is_drained;
    pthread_mutex_unlock(&node->shared.lock);
    return is_drained;
}

uint64_t
kvp_node_leave_due(const kvp_node_t *node)
{
    const kvp_node_leave_t *l = &node->leave;

    if (node->link.state != KVP_LINK_UP || !atomic_load(&l->is_wanted)) return UINT64_MAX;
    return l->is_drained || l->request != 0 ? UINT64_MAX : l->next_ns;
}

void
kvp_node_leave_tick(kvp_node_t *node, uint64_t now_ns)
{
    Kvp__Pb__Drain msg = KVP__PB__DRAIN__INIT;
    kvp_node_leave_t *l = &node->leave;

    if (now_ns < kvp_node_leave_due(node)) return;
    msg.node = node->conf.name;
    msg.what = l->has_begun ? KVP_DRAIN_ASK : KVP_DRAIN_BEGIN;
    msg.until_mount = true;
    l->request = ++node->link.next_request;
    kvp_pb_frame(&node->link.conn.out, KVP_OP_DRAIN, 0, l->request, &msg, NULL, 0);
}

kvp_err_t
kvp_node_leave_on_answer(kvp_node_t *node, const kvp_frame_t *frame)
{
    kvp_node_leave_t *l = &node->leave;
    Kvp__Pb__DrainReply *msg;
    kvp_pb_t pb;

    if (frame->hdr.request_id != l->request) return KVP_OK;
    msg = kvp_pb_unpack(&pb, &kvp__pb__drain_reply__descriptor, frame);
    if (msg == NULL) return KVP_PROTO;
    l->request = 0;
    l->next_ns = kvp_now_ns() + ASK_NS;
    if (msg->err != KVP_OK && l->err != msg->err)
        kvp_log_warn("node", "the master does not drain this node: %s %s", kvp_err_text(msg->err), msg->detail);
    if (msg->err == KVP_OK && msg->state != KVP_DRAIN_NONE && !l->has_begun)
        kvp_log_info("node", "the objects move to other nodes objects=%llu bytes=%llu",
                     (unsigned long long)msg->left_objects, (unsigned long long)msg->left_bytes);
    l->err = msg->err;
    l->left_objects = msg->left_objects;
    l->left_bytes = msg->left_bytes;
    kvp_drain_why(msg, l->why);
    l->has_begun = msg->err == KVP_OK && msg->state != KVP_DRAIN_NONE;
    l->is_drained = l->has_begun && msg->state == KVP_DRAIN_DONE && msg->is_durable;
    if (l->is_drained) {
        kvp_log_info("node", "no object is left in this node's memory moved=%llu evicted=%llu",
                     (unsigned long long)msg->moved_objects, (unsigned long long)msg->evicted_objects);
        /* without objects the memory is not kept for the next process */
        if (node->keep.mode == KVP_KEEP_OVER_STOPS) node->keep.mode = KVP_KEEP_UNTIL_STOP;
    }
    kvp_pb_free(&pb, msg);
    return KVP_OK;
}

void
kvp_node_leave_end(const kvp_node_t *node)
{
    const kvp_node_leave_t *l = &node->leave;

    if (!atomic_load(&l->is_wanted) || l->is_drained) return;
    kvp_log_warn("node", "stopped before the end of the drain left_objects=%llu left_bytes=%llu why=%s",
                 (unsigned long long)l->left_objects, (unsigned long long)l->left_bytes,
                 l->err != KVP_OK       ? kvp_err_text(l->err)
                 : l->left_objects == 0 ? "no master has confirmed it"
                 : l->why[0] != '\0'    ? l->why
                                        : "the time was too short (--drain-on-stop, drain_ms)");
}

void
kvp_node_leave_link_lost(kvp_node_t *node)
{
    node->leave.request = 0;
    node->leave.has_begun = false;
    node->leave.next_ns = 0;
}
