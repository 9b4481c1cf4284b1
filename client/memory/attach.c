/* SPDX-License-Identifier: Apache-2.0
 * Design notes.
 * - The control connection carries one question at a time (a chunk is opened once), so that it is clear to which
 *   answer file descriptors belong. A caller whose deadline ends first leaves the question to the next caller. Only a
 *   node that needs longer than kvp_ctl_patience is given up.
 * - Chunks are published with one store and never replaced, so the hot path finds them without a lock. A mapping for
 *   writing is opened beside a mapping for reading that is in use. */
#include "client/memory/attach.h"

#include "transport/routes.h"
#include "transport/shm/mapping.h"
#include "transport/shm/table.h"
#include "common/waits.h"
#include "common/rlimits.h"
#include "common/log.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CTL_FIRST_ID 16u /* id of the first question to a node after Hello; higher than Hello's id */
#define MAP_SLICE_BYTES (32ull << 20) /* bytes that one call of kvp_peer_map_some maps, in some ten milliseconds */

struct kvp_remote_chunk {
    kvp_chunk_mem_t mem;
    kvp_access_t access;
    uint64_t mapped_bytes; /* payload bytes that were mapped in advance; used by the mapping thread only */
};

/* ---- opening and closing an attachment */
/* Sets the address for data connections to the address that answered the control connection. This address belongs to
 * the node, so its name is not resolved again. */
static kvp_err_t
note_addr(kvp_peer_t *peer, uint16_t port)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;

    if (getpeername(peer->ctl.fd, (struct sockaddr *)&at, &len) != 0) return KVP_UNREACHABLE;
    if (getnameinfo((struct sockaddr *)&at, len, peer->addr.host, sizeof peer->addr.host, NULL, 0, NI_NUMERICHOST) != 0)
        return KVP_UNREACHABLE;
    peer->addr.port = port;
    return KVP_OK;
}

static kvp_err_t
connect_ctl(kvp_peer_t *peer, const kvp_attach_t *how, uint64_t deadline_ns, char *detail, size_t cap)
{
    const char *why = kvp_err_text(KVP_UNREACHABLE);
    kvp_hostport_t at;
    kvp_err_t err;

    snprintf(peer->where, sizeof peer->where, "%s", how->addr);
    snprintf(detail, cap, "%s", why);
    if (kvp_parse_hostport(how->addr, &at) != KVP_OK) return KVP_UNREACHABLE;
    if (how->unix_path[0] != '\0') {
        peer->addr = at;
        err = kvp_framed_connect_told(&peer->ctl, KVP_SOCKET_NODE, how->unix_path, deadline_ns, &why);
    } else {
        err = kvp_names_connect(how->names, at.host, at.port, deadline_ns, &peer->ctl);
        why = err == KVP_UNREACHABLE && peer->ctl.why != NULL ? peer->ctl.why : kvp_err_text(err);
        if (err == KVP_OK) err = note_addr(peer, at.port);
        if (err == KVP_OK) err = kvp_framed_secure(&peer->ctl, KVP_IS_NODE, how->node);
    }
    snprintf(detail, cap, "%s", why);
    return err;
}

/* Sends Hello to the node. On a Unix connection our pidfd goes along, so that the node notices our death and knows
 * that no writes to its mapped memory follow. */
static kvp_err_t
greet_node(kvp_peer_t *peer, const kvp_attach_t *how, uint64_t deadline_ns, char *detail, size_t cap)
{
    kvp_hello_ask_t ask = how->hello;
    kvp_hello_reply_t reply;
    kvp_err_t err;

    ask.pidfd = -1;
    if (peer->ctl.is_unix) {
        ask.pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
        if (ask.pidfd < 0) {
            snprintf(detail, cap, "pidfd_open failed");
            return KVP_SYS;
        }
    }
    err = kvp_hello(&peer->ctl, &ask, deadline_ns, &reply);
    snprintf(detail, cap, "%s", reply.detail);
    if (ask.pidfd >= 0) close(ask.pidfd);
    return err;
}

/* Warns if the node's chunks may need more mappings than the kernel allows. Each chunk may be mapped twice: for
 * reading, and later for writing. */
static void
check_maps(const kvp_attach_t *how)
{
    uint64_t takes = 2ull * KVP_CHUNK_FILES * how->chunks_n, max;

    if ((how->tp->ops->caps & KVP_TP_SAME_HOST) == 0) return;
    max = kvp_limit_maps_max();
    if (takes <= max) return;
    kvp_log_warn("client",
                 "node %s: %u chunks take up to %llu mappings, and vm.max_map_count is %llu: sysctl -w "
                 "vm.max_map_count=%llu, or longer chunks (--chunk-bytes of the node)",
                 how->addr, how->chunks_n, (unsigned long long)takes, (unsigned long long)max,
                 (unsigned long long)(2 * takes));
}

kvp_err_t
kvp_peer_open(const kvp_attach_t *how, uint64_t deadline_ns, char *detail, size_t cap, kvp_peer_t **peer_out)
{
    kvp_peer_t *peer = calloc(1, sizeof *peer);
    kvp_err_t err;

    if (peer == NULL) return KVP_NOMEM;
    pthread_mutex_init(&peer->lock, NULL);
    kvp_cond_init(&peer->changed);
    kvp_framed_init(&peer->ctl);
    peer->segment_id = how->segment_id;
    memcpy(peer->uuid, how->uuid, sizeof peer->uuid);
    peer->tp = how->tp;
    peer->transport = how->transport;
    peer->is_given_up = peer->ctl.is_given_up = how->is_given_up;
    peer->ctl_id = CTL_FIRST_ID;
    peer->refs = 1;
    peer->chunks_n = how->chunks_n;
    peer->chunks = calloc(how->chunks_n, sizeof *peer->chunks);
    check_maps(how);
    err = peer->chunks == NULL ? KVP_NOMEM : connect_ctl(peer, how, deadline_ns, detail, cap);
    if (err == KVP_OK) err = greet_node(peer, how, deadline_ns, detail, cap);
    if (err != KVP_OK) {
        kvp_peer_destroy(peer);
        return err;
    }
    *peer_out = peer;
    return KVP_OK;
}

static void
chunk_close(kvp_remote_chunk_t *chunk)
{
    if (chunk == NULL) return;
    kvp_rseg_destroy(chunk->mem.payload);
    kvp_rseg_destroy(chunk->mem.meta);
    free(chunk);
}

void
kvp_peer_destroy(kvp_peer_t *peer)
{
    if (peer == NULL) return;
    for (uint32_t i = 0; i < peer->idle_n; i++)
        kvp_ep_destroy(peer->idle[i]);
    for (uint32_t i = 0; peer->chunks != NULL && i < peer->chunks_n; i++) {
        chunk_close(peer->chunks[i].read);
        chunk_close(peer->chunks[i].write);
    }
    kvp_framed_fini(&peer->ctl);
    free(peer->chunks);
    pthread_cond_destroy(&peer->changed);
    pthread_mutex_destroy(&peer->lock);
    free(peer);
}

void
kvp_peer_break(kvp_peer_t *peer, kvp_peer_state_t state)
{
    pthread_mutex_lock(&peer->lock);
    if (peer->state < state) peer->state = state;
    pthread_cond_broadcast(&peer->changed);
    pthread_mutex_unlock(&peer->lock);
}

bool
kvp_peer_has_hung_up(kvp_peer_t *peer)
{
    bool has_hung_up = false;
    char byte;

    pthread_mutex_lock(&peer->lock);
    if (!peer->ctl_busy) has_hung_up = recv(peer->ctl.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    pthread_mutex_unlock(&peer->lock);
    return has_hung_up;
}

/* ---- questions to the node */
static kvp_err_t
ctl_begin(kvp_peer_t *peer, uint64_t deadline_ns)
{
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&peer->lock);
    while (peer->ctl_busy && peer->state == KVP_PEER_ATTACHED && err == KVP_OK) {
        kvp_cond_wait_until(&peer->changed, &peer->lock, deadline_ns);
        if (kvp_now_ns() >= deadline_ns) err = KVP_DEADLINE;
    }
    if (peer->state != KVP_PEER_ATTACHED) err = KVP_NODE_LOST;
    if (err == KVP_OK && peer->ctl_busy) err = KVP_DEADLINE;
    if (err == KVP_OK) peer->ctl_busy = true;
    pthread_mutex_unlock(&peer->lock);
    return err;
}

static void
ctl_end(kvp_peer_t *peer)
{
    pthread_mutex_lock(&peer->lock);
    peer->ctl_busy = false;
    pthread_cond_broadcast(&peer->changed);
    pthread_mutex_unlock(&peer->lock);
}

/* Queues a question on the control connection. Another thread may receive the answer. */
static void
ctl_ask(kvp_peer_t *peer, kvp_ctl_due_t due, const void *msg)
{
    due.id = ++peer->ctl_id;
    due.asked_ns = kvp_now_ns();
    peer->due = due;
    kvp_pb_frame(&peer->ctl.out, due.opcode, 0, due.id, msg, NULL, 0);
}

/* Waits for the answer to the question. After DEADLINE the answer is still due. If the connection is closed or
 * another message arrives, the attachment ends. */
static kvp_err_t
ctl_await(kvp_peer_t *peer, uint64_t deadline_ns, kvp_frame_t *answer_out)
{
    uint64_t last_ns = peer->due.asked_ns + kvp_ctl_patience(kvp_now_ns(), deadline_ns);
    uint64_t until_ns;
    kvp_err_t err;

    peer->due.last_ns = kvp_max_u64(peer->due.last_ns, last_ns);
    until_ns = kvp_min_u64(deadline_ns, peer->due.last_ns);
    err = kvp_exchange(&peer->ctl, peer->due.id, until_ns, answer_out);
    if (err == KVP_DEADLINE && until_ns < peer->due.last_ns) return KVP_DEADLINE;
    if (err == KVP_CLOSED) return err; /* CLOSED is no fault of the node */
    peer->due.opcode = 0;
    if (err == KVP_OK) return KVP_OK;
    kvp_log_warn("client", "node %s does not answer error=%s", peer->where, kvp_err_name(err));
    kvp_peer_break(peer, KVP_PEER_BROKEN);
    return err == KVP_NOMEM ? err : KVP_NODE_LOST;
}

/* ---- chunks */
static kvp_err_t
open_by_token(kvp_peer_t *peer, const ProtobufCBinaryData *bytes, int fd, uint64_t len, kvp_access_t access,
              kvp_rseg_t **rseg_out)
{
    kvp_token_t token = {.len = (uint8_t)bytes->len, .fd = fd};

    if (bytes->len > sizeof token.bytes) return KVP_PROTO;
    if (bytes->len > 0) memcpy(token.bytes, bytes->data, bytes->len);
    return kvp_rseg_create(peer->tp, &token, len, access, rseg_out);
}

static kvp_err_t
open_memory(kvp_peer_t *peer, const Kvp__Pb__OpenChunkReply *msg, const int fds[2], kvp_access_t access,
            kvp_remote_chunk_t **chunk_out)
{
    kvp_remote_chunk_t *chunk = calloc(1, sizeof *chunk);
    kvp_err_t err;

    if (chunk == NULL) return KVP_NOMEM;
    chunk->access = access;
    if (msg->is_lazy) chunk->mapped_bytes = msg->payload_bytes; /* no page of the chunk is mapped in advance */
    err = open_by_token(peer, &msg->payload_token, fds[0], msg->payload_bytes, access, &chunk->mem.payload);
    if (err == KVP_OK) err = open_by_token(peer, &msg->meta_token, fds[1], msg->meta_bytes, access, &chunk->mem.meta);
    if (err != KVP_OK) {
        chunk_close(chunk);
        return err;
    }
    *chunk_out = chunk;
    return KVP_OK;
}

static kvp_err_t
read_grant(kvp_peer_t *peer, const kvp_frame_t *answer, const int fds[2], kvp_access_t access,
           kvp_remote_chunk_t **chunk_out)
{
    Kvp__Pb__OpenChunkReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__open_chunk_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = msg->err > 0 ? KVP_PROTO : msg->err;
    if (err == KVP_OK)
        err = open_memory(peer, msg, fds, access, chunk_out);
    else
        kvp_log_write(err == KVP_EAGAIN ? KVP_LOG_DEBUG : KVP_LOG_WARN, "client",
                      "node %s opens no memory transport transport=%s error=%s detail=%s", peer->where,
                      peer->tp->ops->name, kvp_err_name(err), msg->detail);
    kvp_pb_free(&pb, msg);
    return err;
}

static kvp_remote_chunk_t *
find_chunk(kvp_chunk_slot_t *slot, kvp_access_t access)
{
    kvp_remote_chunk_t *chunk = atomic_load_explicit(&slot->write, memory_order_acquire);

    if (chunk == NULL && access == KVP_ACCESS_READ) chunk = atomic_load_explicit(&slot->read, memory_order_acquire);
    return chunk;
}

static void
publish_chunk(kvp_peer_t *peer, kvp_chunk_slot_t *slot, kvp_remote_chunk_t *chunk)
{
    kvp_remote_chunk_t *_Atomic *at = chunk->access == KVP_ACCESS_WRITE ? &slot->write : &slot->read;

    /* Count the chunk before it is published: after that, mapped_bytes belongs to the mapping thread. */
    if (strcmp(peer->tp->ops->name, "shm") == 0 && chunk->mapped_bytes == 0) peer->unmapped_n++;
    atomic_store_explicit(at, chunk, memory_order_release);
}

/* Maps the memory that the answer to `due` grants, and publishes the chunk. */
static kvp_err_t
take_chunk(kvp_peer_t *peer, const kvp_ctl_due_t *due, const kvp_frame_t *answer)
{
    int fds[KVP_FRAMED_FDS] = {-1, -1, -1, -1};
    int n = kvp_framed_take_fds(&peer->ctl, fds, KVP_FRAMED_FDS);
    kvp_remote_chunk_t *chunk = NULL;
    kvp_err_t err = read_grant(peer, answer, fds, due->access, &chunk);

    if (err == KVP_OK) publish_chunk(peer, &peer->chunks[due->chunk], chunk);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    return err;
}

/* Receives a node's answer that an earlier caller did not wait for. An error in the answer was meant for the earlier
 * caller: a caller that needs the chunk asks again. */
static kvp_err_t
settle_due(kvp_peer_t *peer, uint64_t deadline_ns)
{
    kvp_ctl_due_t due = peer->due;
    kvp_frame_t answer;
    kvp_err_t err;

    if (due.opcode == 0) return KVP_OK;
    err = ctl_await(peer, deadline_ns, &answer);
    if (err == KVP_OK && due.opcode == KVP_OP_OPEN_CHUNK) kvp_ignore(take_chunk(peer, &due, &answer), "see above");
    return err;
}

/* Asks the node to open a chunk. The caller has the control connection, and no answer is due on it. */
static kvp_err_t
open_chunk(kvp_peer_t *peer, uint32_t index, kvp_access_t access, uint64_t deadline_ns)
{
    kvp_ctl_due_t due = {.opcode = KVP_OP_OPEN_CHUNK, .chunk = index, .access = access};
    Kvp__Pb__OpenChunk ask = KVP__PB__OPEN_CHUNK__INIT;
    kvp_frame_t answer;
    kvp_err_t err;

    ask.uuid = (ProtobufCBinaryData){sizeof peer->uuid, peer->uuid};
    ask.chunk = index;
    ask.role = access;
    ask.transport = (char *)peer->tp->ops->name;
    ctl_ask(peer, due, &ask.base);
    err = ctl_await(peer, deadline_ns, &answer);
    return err == KVP_OK ? take_chunk(peer, &due, &answer) : err;
}

kvp_err_t
kvp_peer_chunk(kvp_peer_t *peer, uint32_t index, kvp_access_t access, uint64_t deadline_ns, kvp_chunk_mem_t *mem_out)
{
    kvp_chunk_slot_t *slot;
    kvp_remote_chunk_t *chunk;
    kvp_err_t err = KVP_OK;

    if (index >= peer->chunks_n) return KVP_PROTO;
    slot = &peer->chunks[index];
    chunk = find_chunk(slot, access);
    if (chunk == NULL && deadline_ns == 0) return KVP_EAGAIN;
    if (chunk == NULL && kvp_now_ns() < slot->refused_until_ns) return KVP_NOTSUP;
    if (chunk == NULL) {
        err = ctl_begin(peer, deadline_ns);
        if (err != KVP_OK) return err;
        err = settle_due(peer, deadline_ns);
        /* another thread may have opened the chunk in the meantime */
        if (err == KVP_OK && find_chunk(slot, access) == NULL) err = open_chunk(peer, index, access, deadline_ns);
        if (err == KVP_NOTSUP) slot->refused_until_ns = kvp_now_ns() + KVP_REFUSED_NS;
        chunk = find_chunk(slot, access);
        ctl_end(peer);
    }
    if (err == KVP_OK) *mem_out = chunk->mem;
    return err;
}

kvp_err_t
kvp_peer_drained(kvp_peer_t *peer, uint64_t incarnation, uint64_t deadline_ns)
{
    Kvp__Pb__Drained msg = KVP__PB__DRAINED__INIT;
    Kvp__Pb__Reply *reply;
    kvp_frame_t answer;
    kvp_pb_t pb;
    kvp_err_t err = ctl_begin(peer, deadline_ns);

    if (err != KVP_OK) return err;
    peer->ctl.is_given_up = NULL; /* a drain notice is also sent while the session is being closed */
    msg.incarnation = incarnation;
    err = settle_due(peer, deadline_ns);
    if (err == KVP_OK) {
        ctl_ask(peer, (kvp_ctl_due_t){.opcode = KVP_OP_DRAINED}, &msg.base);
        err = ctl_await(peer, deadline_ns, &answer);
    }
    if (err == KVP_OK) {
        reply = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &answer);
        err = reply == NULL ? pb.err : reply->err;
        kvp_pb_free(&pb, reply);
    }
    peer->ctl.is_given_up = peer->is_given_up;
    ctl_end(peer);
    return err;
}

/* Maps one slice of a chunk in advance. Returns true when the whole chunk is mapped. After a failure (an old kernel,
 * no memory) the chunk counts as mapped: the first touch of each page maps it. */
static bool
map_slice(kvp_remote_chunk_t *chunk)
{
    uint64_t len = chunk->mem.payload->len;
    uint64_t n = kvp_min_u64(MAP_SLICE_BYTES, len - chunk->mapped_bytes);
    uint8_t *addr = kvp_shm_rseg_addr(chunk->mem.payload);

    if (!kvp_touch_ahead(addr + chunk->mapped_bytes, n, chunk->access == KVP_ACCESS_WRITE))
        n = len - chunk->mapped_bytes;
    chunk->mapped_bytes += n;
    return chunk->mapped_bytes == len;
}

bool
kvp_peer_map_some(kvp_peer_t *peer)
{
    if (peer->unmapped_n == 0) return false;
    for (uint32_t seen = 0; seen < peer->chunks_n; seen++) {
        kvp_chunk_slot_t *slot = &peer->chunks[peer->map_at];
        kvp_remote_chunk_t *both[2] = {atomic_load(&slot->write), atomic_load(&slot->read)};

        for (int i = 0; i < 2; i++) {
            if (both[i] == NULL || both[i]->mapped_bytes == both[i]->mem.payload->len) continue;
            if (map_slice(both[i])) peer->unmapped_n--;
            return peer->unmapped_n > 0;
        }
        peer->map_at = (peer->map_at + 1) % peer->chunks_n;
    }
    return false;
}

/* ---- endpoints */
/* Waits until the endpoint is connected. Returns the result, UNREACHABLE if there is none in time, CLOSED, or
 * DEADLINE if the caller's time was too short to blame the node. */
static kvp_err_t
await_ep(kvp_ep_t *ep, const kvp_err_t *outcome, const _Atomic bool *is_given_up, uint64_t deadline_ns)
{
    uint64_t began_ns = kvp_now_ns();
    kvp_err_t err = kvp_connect_await(ep, outcome, is_given_up, deadline_ns);

    if (err == KVP_IN_PROGRESS) return deadline_ns < began_ns + KVP_HURRY_NS ? KVP_DEADLINE : KVP_UNREACHABLE;
    return err == KVP_BUSY ? KVP_UNREACHABLE : err; /* BUSY is an error of this side */
}

static kvp_err_t
connect_ep(kvp_peer_t *peer, uint64_t deadline_ns, kvp_ep_t **ep_out)
{
    kvp_err_t outcome = KVP_IN_PROGRESS;
    kvp_ep_t *ep = NULL;
    kvp_err_t err = kvp_ep_create(peer->tp, &peer->addr, kvp_connect_done, &outcome, &ep);

    if (err != KVP_OK) return err;
    err = await_ep(ep, &outcome, peer->is_given_up, deadline_ns);
    if (err == KVP_OK)
        *ep_out = ep;
    else
        kvp_ep_destroy(ep);
    return err;
}

/* Takes an idle endpoint. Without one, reserves the right to make a new endpoint, and *ep_out is NULL. */
static kvp_err_t
reserve_ep(kvp_peer_t *peer, uint64_t deadline_ns, kvp_ep_t **ep_out)
{
    bool is_sync = (peer->tp->ops->caps & KVP_TP_SYNC) != 0;
    uint32_t max = is_sync ? KVP_SYNC_EPS : KVP_SPARE_EPS;
    kvp_err_t err = KVP_OK;

    *ep_out = NULL;
    pthread_mutex_lock(&peer->lock);
    while (peer->idle_n == 0 && peer->eps_n >= max && peer->state == KVP_PEER_ATTACHED && err == KVP_OK) {
        if (deadline_ns == 0)
            err = KVP_EAGAIN;
        else if (kvp_now_ns() >= deadline_ns)
            err = KVP_BUSY;
        else
            kvp_cond_wait_until(&peer->changed, &peer->lock, deadline_ns);
    }
    if (peer->state != KVP_PEER_ATTACHED) err = KVP_NODE_LOST;
    if (err == KVP_OK && peer->idle_n > 0)
        *ep_out = peer->idle[--peer->idle_n];
    else if (err == KVP_OK && deadline_ns == 0 && !is_sync)
        err = KVP_EAGAIN;
    else if (err == KVP_OK)
        peer->eps_n++;
    peer->low_n = (uint32_t)kvp_min_u64(peer->low_n, peer->idle_n);
    pthread_mutex_unlock(&peer->lock);
    return err;
}

static void
forget_ep(kvp_peer_t *peer)
{
    pthread_mutex_lock(&peer->lock);
    peer->eps_n--;
    pthread_cond_broadcast(&peer->changed);
    pthread_mutex_unlock(&peer->lock);
}

kvp_err_t
kvp_peer_take_ep(kvp_peer_t *peer, uint64_t deadline_ns, kvp_ep_t **ep_out)
{
    kvp_err_t err = reserve_ep(peer, deadline_ns, ep_out);
    uint64_t now;

    if (err != KVP_OK || *ep_out != NULL) return err;
    now = kvp_now_ns();
    err = connect_ep(peer, kvp_min_u64(deadline_ns, now + kvp_ctl_patience(now, deadline_ns)), ep_out);
    if (err != KVP_OK) forget_ep(peer);
    return err;
}

void
kvp_peer_give_ep(kvp_peer_t *peer, kvp_ep_t *ep, bool is_spent)
{
    if (is_spent || peer->tp->ops->ep_is_broken(ep)) {
        kvp_ep_destroy(ep);
        forget_ep(peer);
        return;
    }
    pthread_mutex_lock(&peer->lock);
    peer->idle[peer->idle_n++] = ep;
    pthread_cond_broadcast(&peer->changed);
    pthread_mutex_unlock(&peer->lock);
}

bool
kvp_peer_is_stale(kvp_peer_t *peer)
{
    bool is_stale = false;

    pthread_mutex_lock(&peer->lock);
    for (uint32_t i = 0; i < peer->idle_n; i++)
        is_stale |= peer->tp->ops->ep_is_stale(peer->idle[i]);
    pthread_mutex_unlock(&peer->lock);
    return is_stale;
}

/* Idle endpoints are taken from and returned to the end of the array idle, so the least used endpoints are at its
 * beginning, and no take or return has to read a clock. */
uint32_t
kvp_peer_look_idle(kvp_peer_t *peer, uint64_t now_ns, uint64_t *unused_ns_out)
{
    uint32_t n;

    pthread_mutex_lock(&peer->lock);
    if (peer->low_n == 0)
        peer->unused_ns = 0;
    else if (peer->unused_ns == 0)
        peer->unused_ns = now_ns;
    peer->low_n = n = peer->idle_n;
    *unused_ns_out = peer->unused_ns;
    pthread_mutex_unlock(&peer->lock);
    return n;
}

void
kvp_peer_drop_idle(kvp_peer_t *peer)
{
    kvp_ep_t *ep = NULL;

    pthread_mutex_lock(&peer->lock);
    if (peer->idle_n > 0) {
        ep = peer->idle[0];
        memmove(peer->idle, peer->idle + 1, --peer->idle_n * sizeof peer->idle[0]);
        peer->low_n = (uint32_t)kvp_min_u64(peer->low_n, peer->idle_n);
    }
    pthread_mutex_unlock(&peer->lock);
    if (ep == NULL) return; /* another thread has taken the endpoint */
    kvp_ep_destroy(ep);
    forget_ep(peer);
}
