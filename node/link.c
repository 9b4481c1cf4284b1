/* SPDX-License-Identifier: Apache-2.0
 * The connection to the master, on the control thread: mounting, heartbeats, and the master's orders. node/dial.c finds
 * the master. */
#include "node/priv.h"

#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECVS_A_TURN 8
#define QUEUED_MAX (8u << 20) /* the most bytes queued for a master that does not read */
#define HEARTBEAT_MIN_MS 10u
#define HEARTBEAT_MAX_MS 60000u
#define FREED_BATCH KVP_PLACES_MAX
#define REPORT_NOTHING 0u /* a value of MountReply.report: no report is wanted */
#define REPORT_WHOLE 2u
#define NAME_WHY_MAX (KVP_NAME_MAX + 160u)

/* A FENCE order that the transports are carrying out. */
typedef struct {
    kvp_list_t link;
    kvp_gather_t gather;
    uint64_t link_number;
    uint64_t request_id;
} pending_fence_t;

#define SWEEPS_FIRST "its term rose: it is found again when the memory was swept"

static void on_link(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events);

/* ---- losing and finding a master */
/* dial_master starts to look for a master. It passes on the pool of the node's memory, because a master that lost its
 * state learns the pool from its nodes. */
static void
dial_master(kvp_node_t *node, bool is_good)
{
    kvp_known_pool_t known = {.term = 0};

    if (node->mem != NULL) {
        memcpy(known.pool_id, node->mem->conf.pool_id, sizeof known.pool_id);
        known.digest_seed = node->mem->conf.digest_seed;
        known.term = kvp_node_core_term(node->core);
    }
    kvp_node_dial_want(&node->dial, is_good, node->link.incarnation, &known);
}

/* lose_link drops the connection and starts to look for a master. why is logged; NULL: the reason is logged already. */
static void
lose_link(kvp_node_t *node, const char *why)
{
    kvp_node_link_t *l = &node->link;
    bool was_good = l->state >= KVP_LINK_UP;
    bool is_last = l->state == KVP_LINK_UNMOUNTING;
    uint32_t missed;

    if (l->state == KVP_LINK_DOWN) return;
    if (why != NULL && kvp_log_limit_ok(&l->noise, &missed))
        kvp_log_warn("node", "connection to the master is over: %s", why);
    kvp_node_unwatch(node, &l->ev);
    kvp_framed_fini(&l->conn);
    l->state = KVP_LINK_DOWN;
    kvp_node_core_link_lost(node->core);
    kvp_node_tiering_link_lost(node);
    kvp_node_copying_link_lost(node);
    kvp_node_leave_link_lost(node);
    if (is_last)
        node->link.is_done = true;
    else
        dial_master(node, was_good);
}

void
kvp_node_link_begin(kvp_node_t *node)
{
    dial_master(node, true);
}

/* push_out sends queued bytes as far as possible without blocking. Returns false if the connection was lost. */
static bool
push_out(kvp_node_t *node)
{
    kvp_node_link_t *l = &node->link;
    kvp_err_t err;

    kvp_node_keep_save(node); /* saves the core's state before messages let the master rely on the state */
    err = kvp_framed_flush(&l->conn);

    if (err == KVP_EAGAIN && kvp_framed_out_bytes(&l->conn) > QUEUED_MAX) err = KVP_LIMIT;
    if (err == KVP_OK || err == KVP_EAGAIN) {
        kvp_err_t rc = kvp_node_watch(node, &l->ev, err == KVP_OK ? EPOLLIN : EPOLLIN | EPOLLOUT);
        err = rc;
    }
    if (err == KVP_OK) return true;
    lose_link(node, kvp_err_text(err));
    return false;
}

static uint64_t
ask_master(kvp_node_t *node, uint8_t opcode, const void *msg)
{
    uint64_t id = ++node->link.next_request;

    kvp_pb_frame(&node->link.conn.out, opcode, 0, id, msg, NULL, 0);
    return id;
}

/* ---- mounting */
/* Returns the host that Mount announces. A node that listens at every address announces its address on the way to the
 * master. */
static const char *
told_host(const kvp_node_t *node)
{
    bool is_any = strcmp(node->conf.listen.host, "0.0.0.0") == 0 || strcmp(node->conf.listen.host, "::") == 0;

    return is_any && node->link.local_host[0] != '\0' ? node->link.local_host : node->conf.listen.host;
}

static void
ask_mount(kvp_node_t *node)
{
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    kvp_hostport_t at = {.port = node->conf.listen.port};
    char addr[KVP_HOSTPORT_TEXT_MAX];
    char transports[KVP_NODE_TPS_TEXT_MAX];

    kvp_node_tps_names(&node->tps, transports);
    snprintf(at.host, sizeof at.host, "%s", told_host(node));
    msg.name = node->conf.name;
    msg.uuid = (ProtobufCBinaryData){sizeof node->mem->uuid, node->mem->uuid};
    msg.epoch = node->epoch;
    msg.size_bytes = node->conf.size_bytes;
    msg.chunk_bytes = node->conf.chunk_bytes;
    msg.addr = (char *)kvp_format_hostport(&at, addr);
    msg.unix_path = node->conf.unix_path;
    msg.transports = transports;
    msg.protection = node->shared.info.protection; /* constant */
    msg.is_fresh = node->is_fresh;
    msg.is_kept = node->keep.state == KVP_KEEP_UP;
    msg.can_copy = node->copying.ops != NULL;
    msg.term = kvp_node_core_term(node->core);
    msg.mounted_term = kvp_node_core_mounted_term(node->core);
    node->link.state = KVP_LINK_MOUNTING;
    (void)ask_master(node, KVP_OP_MOUNT, &msg);
    /* The answer to Mount may be lost although the master has granted space in this memory, so the
     * memory no longer counts as fresh. */
    node->link.was_told_fresh = node->is_fresh;
    node->is_fresh = false;
}

/* is_of_this_pool returns whether the node's memory was made for the pool in the Hello reply. */
static bool
is_of_this_pool(const kvp_node_t *node, const kvp_hello_reply_t *hello)
{
    return node->mem != NULL && memcmp(node->mem->conf.pool_id, hello->pool_id, sizeof hello->pool_id) == 0;
}

static uint64_t
ms_between(uint32_t ms, uint32_t lo, uint32_t hi)
{
    return kvp_min_u64(kvp_max_u64(ms, lo), hi) * KVP_NS_PER_MS;
}

/* adopt_conn starts to use a connection with a completed Hello. EAGAIN: the memory must be swept first (new term). */
static kvp_err_t
adopt_conn(kvp_node_t *node, const kvp_node_dialed_t *dialed)
{
    kvp_node_link_t *l = &node->link;
    uint64_t now = kvp_now_ns();
    kvp_err_t err;

    l->conn = dialed->conn;
    l->ev = (kvp_node_ev_t){.fd = l->conn.fd, .fn = on_link};
    l->state = KVP_LINK_MOUNTING;
    l->number++;
    l->incarnation = dialed->hello.incarnation;
    l->heartbeat_ns = ms_between(dialed->hello.heartbeat_ms, HEARTBEAT_MIN_MS, HEARTBEAT_MAX_MS);
    l->ttl_ns = kvp_max_u64(dialed->hello.session_ttl_ms * KVP_NS_PER_MS, 2 * l->heartbeat_ns);
    l->heard_ns = now;
    l->heartbeat_at_ns = now + l->heartbeat_ns;
    snprintf(l->local_host, sizeof l->local_host, "%s", dialed->local_host);
    /* Terms are valid within one pool. For a master of another pool the node forgets its terms. A master of this pool
     * with a lower term learns our term from Mount, and chooses a higher term. */
    if (is_of_this_pool(node, &dialed->hello)) {
        err = kvp_node_core_see_term(node->core, dialed->hello.term);
        if (err == KVP_STALE_TERM) err = KVP_OK;
    } else {
        if (node->mem != NULL)
            kvp_log_warn("node",
                         "the master serves another pool: this node's objects of the previous pool are dropped");
        kvp_node_core_forget_pool(node->core);
        err = kvp_node_core_see_term(node->core, dialed->hello.term);
        if (err == KVP_OK) err = kvp_node_make_memory(node, &dialed->hello);
    }
    return err;
}

void
kvp_node_link_on_dial(kvp_node_t *node)
{
    kvp_node_dialed_t dialed;
    kvp_err_t err;
    bool has = kvp_node_dial_take(&node->dial, &dialed, &err);

    if (err != KVP_OK) kvp_node_failed(node, err);
    if (!has && kvp_node_dial_is_outdated(&node->dial)) lose_link(node, "another master leads");
    if (!has) return;
    err = adopt_conn(node, &dialed);
    if (err == KVP_EAGAIN) {
        node->link.state = KVP_LINK_SWEEPING;
        return;
    }
    if (err != KVP_OK) {
        kvp_node_failed(node, err);
        lose_link(node, NULL);
        return;
    }
    ask_mount(node);
    push_out(node);
}

bool
kvp_node_link_sweep(kvp_node_t *node)
{
    if (kvp_node_core_sweep(node->core)) return true;
    if (node->link.state != KVP_LINK_SWEEPING) return false;
    ask_mount(node);
    push_out(node);
    return false;
}

/* Drops the connection because the name is in use. The next mount may succeed: the node's own previous connection may
 * hold the name until the master gives that connection up. */
static void
lose_name(kvp_node_t *node)
{
    char why[NAME_WHY_MAX];

    snprintf(why, sizeof why,
             "the pool has a connected node \"%s\": unless it is this node's own last connection, give each node its "
             "own --name",
             node->conf.name);
    lose_link(node, why);
}

/* link_up is called once the master has mounted the node and has the whole report, if it asked for one. */
static void
link_up(kvp_node_t *node)
{
    kvp_node_link_t *l = &node->link;

    l->state = KVP_LINK_UP;
    l->mounts++;
    kvp_log_info("node", "mounted name=%s segment=%u term=%u bytes=%llu protection=%s", node->conf.name, l->segment_id,
                 kvp_node_core_term(node->core), (unsigned long long)node->conf.size_bytes,
                 node->shared.info.protection);
}

static void
on_mount_reply(kvp_node_t *node, const Kvp__Pb__MountReply *msg)
{
    kvp_node_link_t *l = &node->link;
    kvp_err_t err = msg->err;

    if (l->state != KVP_LINK_MOUNTING) return;
    if (err != KVP_OK) node->is_fresh = l->was_told_fresh;
    if (err == KVP_OK) err = kvp_node_core_see_term(node->core, msg->term);
    if (err == KVP_EAGAIN) {
        lose_link(node, SWEEPS_FIRST);
        return;
    }
    if (err == KVP_OK && msg->is_reset) {
        kvp_hello_reply_t same = {.term = msg->term, .digest_seed = node->mem->conf.digest_seed};

        kvp_log_warn("node", "the master asks for new memory: this node's objects are dropped");
        memcpy(same.pool_id, node->mem->conf.pool_id, sizeof same.pool_id);
        err = kvp_node_make_memory(node, &same);
        if (err == KVP_OK) {
            ask_mount(node);
            return;
        }
    }
    if (err != KVP_OK) {
        kvp_node_failed(node, err);
        if (err == KVP_SEGMENT_EXISTS)
            lose_name(node);
        else
            lose_link(node, msg->detail[0] != '\0' ? msg->detail : kvp_err_text(err));
        return;
    }
    l->segment_id = msg->segment_id;
    kvp_node_core_set_id(node->core, msg->segment_id);
    kvp_node_revoke(node);
    if (msg->report == REPORT_NOTHING) {
        link_up(node);
        return;
    }
    kvp_log_info("node", "the master asks for a report of the memory");
    err = kvp_node_report_begin(node, msg->report == REPORT_WHOLE ? 0 : msg->since > 0 ? msg->since : UINT64_MAX);
    if (err != KVP_OK) lose_link(node, kvp_err_text(err));
}

/* ---- orders */
static void
answer_order(kvp_node_t *node, const kvp_frame_t *frame, kvp_err_t err, const char *detail, const uint8_t *flags,
             uint32_t n)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;

    if ((frame->hdr.flags & KVP_FRAME_ONEWAY) != 0) return;
    msg.err = err;
    msg.detail = (char *)detail;
    msg.n = n;
    kvp_pb_frame(&node->link.conn.out, frame->hdr.opcode, KVP_FRAME_REPLY, frame->hdr.request_id, &msg, flags, n);
}

static void
refuse_order(kvp_node_t *node, const kvp_frame_t *frame, kvp_err_t err)
{
    if (err == KVP_EAGAIN) {
        lose_link(node, SWEEPS_FIRST);
        return;
    }
    kvp_log_warn("node", "order %u is not obeyed: %s", frame->hdr.opcode, kvp_err_text(err));
    answer_order(node, frame, err, kvp_err_text(err), NULL, 0);
}

/* Handles RETIRE and CHECK. For RETIRE the quiesce begins, and is usually over, before the answer, so that the answer
 * can report the extents as free. */
static bool
on_extents(kvp_node_t *node, const kvp_frame_t *frame)
{
    bool is_check = frame->hdr.opcode == KVP_OP_CHECK;
    const uint64_t began_ns = kvp_now_ns();
    uint8_t flags[KVP_BATCH_MAX];
    const void *recs = NULL;
    Kvp__Pb__Retire *msg;
    kvp_rd_t rd;
    kvp_pb_t pb;
    kvp_err_t err = KVP_PROTO;
    uint32_t n = 0;

    kvp_rd_init(&rd, frame->tail, frame->tail_len);
    msg = kvp_pb_unpack(&pb, &kvp__pb__retire__descriptor, frame);
    if (msg != NULL) recs = kvp_rd_array(&rd, msg->n, is_check ? sizeof(kvp_wire_check_t) : sizeof(kvp_wire_slot_t));
    if (recs != NULL) {
        n = msg->n;
        err = is_check ? kvp_node_core_check(node->core, msg->term, msg->segment_id, recs, n, flags)
                       : kvp_node_core_retire(node->core, msg->term, msg->segment_id, recs, n);
    }
    kvp_pb_free(&pb, msg);
    if (recs == NULL) return false;
    if (err != KVP_OK) {
        refuse_order(node, frame, err);
        return true;
    }
    if (!is_check) {
        kvp_node_settle(node);
        kvp_node_core_retire_answer(node->core, flags, n);
        kvp_histogram_add(&node->times.works[KVP_NODE_WORK_retire], kvp_now_ns() - began_ns);
    }
    answer_order(node, frame, KVP_OK, "", flags, n);
    return true;
}

static void
answer_fence(kvp_node_t *node, pending_fence_t *fence)
{
    kvp_frame_t frame = {.hdr = {.opcode = KVP_OP_FENCE, .request_id = fence->request_id}};

    if (fence->link_number == node->link.number && node->link.state != KVP_LINK_DOWN)
        answer_order(node, &frame, KVP_OK, "", NULL, 0);
    kvp_list_del(&fence->link);
    free(fence);
}

static bool
on_fence(kvp_node_t *node, const kvp_frame_t *frame)
{
    pending_fence_t *fence = calloc(1, sizeof *fence);
    Kvp__Pb__Fence *msg;
    kvp_idrange_t dead;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__fence__descriptor, frame);
    if (msg == NULL) {
        free(fence);
        return false;
    }
    dead = (kvp_idrange_t){.above = msg->above, .last = msg->incarnation};
    err = fence == NULL ? KVP_NOMEM : kvp_node_core_fence(node->core, msg->term, dead, msg->live_min);
    if (err != KVP_OK) {
        free(fence);
        refuse_order(node, frame, err);
    } else {
        fence->link_number = node->link.number;
        fence->request_id = frame->hdr.request_id;
        kvp_list_init(&fence->link);
        kvp_list_add_tail(&node->link.fences, &fence->link);
        kvp_gather_begin(&fence->gather, node->events.epoll.wake_fd);
        kvp_node_tps_fence(&node->tps, dead, msg->live_min, &fence->gather);
        kvp_node_settle(node); /* closes the attachments of the fenced clients before the answer */
        if (kvp_gather_end(&fence->gather)) answer_fence(node, fence);
    }
    kvp_pb_free(&pb, msg);
    return true;
}

static bool
on_owner(kvp_node_t *node, const kvp_frame_t *frame)
{
    kvp_node_mem_t *mem = node->mem;
    Kvp__Pb__Owner *msg;
    kvp_pb_t pb;
    bool is_good;

    msg = kvp_pb_unpack(&pb, &kvp__pb__owner__descriptor, frame);
    is_good = msg != NULL;
    if (is_good && mem != NULL && msg->uuid.len == sizeof mem->uuid &&
        memcmp(msg->uuid.data, mem->uuid, sizeof mem->uuid) == 0) {
        is_good = kvp_node_mem_set_owner(mem, msg->chunk, msg->tenant);
        if (is_good) kvp_node_book_save_owner(&node->keep.book, mem, msg->chunk);
    }
    kvp_pb_free(&pb, msg);
    return is_good;
}

static bool
on_tier_order(kvp_node_t *node, const kvp_frame_t *frame)
{
    kvp_err_t err;
    bool is_good = frame->hdr.opcode == KVP_OP_COPY ? kvp_node_copying_on_order(node, frame, &err)
                                                    : kvp_node_tiering_on_order(node, frame, &err);

    if (is_good && err != KVP_OK) refuse_order(node, frame, err);
    return is_good;
}

/* on_order carries out an order of the master or refuses it. Returns false if the order is malformed. */
static bool
on_order(kvp_node_t *node, const kvp_frame_t *frame)
{
    switch (frame->hdr.opcode) {
    case KVP_OP_RETIRE:
    case KVP_OP_CHECK:
        return on_extents(node, frame);
    case KVP_OP_FENCE:
        return on_fence(node, frame);
    case KVP_OP_OWNER:
        return on_owner(node, frame);
    case KVP_OP_DEMOTE:
    case KVP_OP_STAGE:
    case KVP_OP_DROP:
    case KVP_OP_COPY:
        return on_tier_order(node, frame);
    default:
        answer_order(node, frame, KVP_NOTSUP, "a node does not answer this", NULL, 0);
        return true;
    }
}

/* ---- answers */
static bool
on_answer(kvp_node_t *node, const kvp_frame_t *frame)
{
    kvp_pb_t pb;

    switch (frame->hdr.opcode) {
    case KVP_OP_MOUNT: {
        Kvp__Pb__MountReply *msg = kvp_pb_unpack(&pb, &kvp__pb__mount_reply__descriptor, frame);
        if (msg == NULL) return false;
        if (!kvp_node_tiering_on_mounted(node, frame, msg)) on_mount_reply(node, msg);
        kvp_pb_free(&pb, msg);
        return true;
    }
    case KVP_OP_HEARTBEAT: {
        Kvp__Pb__HeartbeatReply *msg = kvp_pb_unpack(&pb, &kvp__pb__heartbeat_reply__descriptor, frame);
        kvp_err_t err;
        if (msg == NULL) return false;
        err = msg->err != KVP_OK ? msg->err : kvp_node_core_see_term(node->core, msg->term);
        if (err == KVP_EAGAIN && node->link.state == KVP_LINK_SWEEPING) err = KVP_OK;
        if (err == KVP_EAGAIN)
            lose_link(node, SWEEPS_FIRST);
        else if (err != KVP_OK)
            lose_link(node, msg->detail[0] != '\0' ? msg->detail : kvp_err_text(err));
        kvp_pb_free(&pb, msg);
        return true;
    }
    case KVP_OP_REPORT: {
        bool is_over;
        kvp_err_t err = kvp_node_report_on_answer(node, frame, &is_over);
        if (err == KVP_PROTO) return false;
        if (is_over) link_up(node);
        if (err != KVP_OK) lose_link(node, kvp_err_text(err));
        return true;
    }
    case KVP_OP_TIER_REPORT:
    case KVP_OP_RECLAIM: {
        kvp_err_t err = kvp_node_tiering_on_answer(node, frame);
        if (err == KVP_PROTO) return false;
        if (err != KVP_OK) lose_link(node, kvp_err_text(err));
        return true;
    }
    case KVP_OP_DRAIN:
        return kvp_node_leave_on_answer(node, frame) == KVP_OK;
    case KVP_OP_UNMOUNT:
        if (!kvp_node_tiering_on_unmounted(node, frame) && node->link.state == KVP_LINK_UNMOUNTING)
            node->link.is_done = true;
        return true;
    default:
        return true;
    }
}

static void
on_link(kvp_node_t *node, kvp_node_ev_t *ev, uint32_t events)
{
    kvp_node_link_t *l = &node->link;
    uint64_t number = l->number;
    kvp_frame_t frame;
    bool has;

    (void)ev, (void)events;
    for (int i = 0; i < RECVS_A_TURN; i++) {
        kvp_err_t err = kvp_framed_recv(&l->conn);

        if (err == KVP_EAGAIN) break;
        if (err != KVP_OK) {
            lose_link(node, kvp_err_text(err));
            return;
        }
        l->heard_ns = kvp_now_ns();
        for (;;) {
            bool is_ok;

            err = kvp_framed_next(&l->conn, &frame, &has);
            if (err == KVP_OK && !has) break;
            is_ok = err == KVP_OK;
            if (is_ok)
                is_ok = (frame.hdr.flags & KVP_FRAME_REPLY) != 0 ? on_answer(node, &frame) : on_order(node, &frame);
            if (l->state == KVP_LINK_DOWN || l->number != number) return;
            if (!is_ok) {
                lose_link(node, "malformed frame");
                return;
            }
        }
        if (!push_out(node)) return;
    }
}

/* ---- results that come later */
static void
tell_freed(kvp_node_t *node)
{
    Kvp__Pb__Freed msg = KVP__PB__FREED__INIT;
    kvp_wire_slot_t slots[FREED_BATCH];

    while ((msg.n = kvp_node_core_take_freed(node->core, slots, FREED_BATCH)) > 0) {
        msg.segment_id = node->link.segment_id;
        kvp_pb_frame(&node->link.conn.out, KVP_OP_FREED, KVP_FRAME_ONEWAY, ++node->link.next_request, &msg, slots,
                     msg.n * sizeof slots[0]);
    }
}

void
kvp_node_link_on_settled(kvp_node_t *node)
{
    kvp_list_foreach_safe (link, next, &node->link.fences) {
        pending_fence_t *fence = kvp_list_entry(link, pending_fence_t, link);
        if (kvp_gather_is_over(&fence->gather)) answer_fence(node, fence);
    }
    if (node->link.state >= KVP_LINK_UP) tell_freed(node);
    if (kvp_node_report_next(node) != KVP_OK) lose_link(node, "the report cannot be made");
    if (node->link.state != KVP_LINK_DOWN && kvp_framed_out_bytes(&node->link.conn) > 0) push_out(node);
}

/* ---- timers */
uint64_t
kvp_node_link_due(const kvp_node_t *node)
{
    const kvp_node_link_t *l = &node->link;

    if (l->state == KVP_LINK_DOWN) return UINT64_MAX;
    return kvp_min_u64(l->heartbeat_at_ns, l->heard_ns + l->ttl_ns);
}

void
kvp_node_link_tick(kvp_node_t *node, uint64_t now_ns)
{
    Kvp__Pb__Heartbeat msg = KVP__PB__HEARTBEAT__INIT;
    kvp_node_link_t *l = &node->link;

    if (l->state == KVP_LINK_DOWN) return;
    if (now_ns >= l->heard_ns + l->ttl_ns) {
        lose_link(node, "it was silent for too long");
        return;
    }
    if (now_ns < l->heartbeat_at_ns) return;
    l->heartbeat_at_ns = now_ns + l->heartbeat_ns;
    msg.incarnation = l->incarnation;
    msg.term = kvp_node_core_term(node->core);
    (void)ask_master(node, KVP_OP_HEARTBEAT, &msg);
    push_out(node);
}

/* ---- the end */
void
kvp_node_link_unmount(kvp_node_t *node, uint64_t now_ns, uint64_t by_ns)
{
    Kvp__Pb__Unmount msg = KVP__PB__UNMOUNT__INIT;

    if (node->link.state == KVP_LINK_UNMOUNTING) return;
    if (node->link.state != KVP_LINK_UP || kvp_node_keep_is_staying(node)) {
        node->link.is_done = true;
        return;
    }
    msg.segment_id = node->link.segment_id;
    msg.wait_ms = (uint32_t)kvp_min_u64((by_ns - kvp_min_u64(by_ns, now_ns)) / KVP_NS_PER_MS, UINT32_MAX);
    node->link.state = KVP_LINK_UNMOUNTING;
    (void)ask_master(node, KVP_OP_UNMOUNT, &msg);
    push_out(node);
}

void
kvp_node_link_close(kvp_node_t *node)
{
    kvp_node_link_t *l = &node->link;

    while (!kvp_list_is_empty(&l->fences)) {
        pending_fence_t *fence = kvp_list_first(&l->fences, pending_fence_t, link);
        kvp_list_del(&fence->link);
        free(fence);
    }
    if (l->state == KVP_LINK_DOWN) return;
    (void)ask_master(node, KVP_OP_BYE, NULL);
    kvp_ignore(kvp_framed_flush(&l->conn), "the master sees the connection end as well");
    kvp_node_unwatch(node, &l->ev);
    kvp_framed_fini(&l->conn);
    l->state = KVP_LINK_DOWN;
}
