/* SPDX-License-Identifier: Apache-2.0
 * Requests of a client on its control connection: Hello, OpenChunk, and Drained (the client states that its process
 * stores nothing more under an incarnation). */
#include "node/priv.h"

#include "net/pidfd.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
queue_reply(kvp_node_conn_t *conn, const kvp_frame_t *frame, const void *msg, size_t *at_out)
{
    kvp_pb_frame_begin(&conn->io.out, frame->hdr.opcode, KVP_FRAME_REPLY, frame->hdr.request_id, msg, at_out);
    kvp_frame_end(&conn->io.out, *at_out);
}

static void
reply_plain(kvp_node_conn_t *conn, const kvp_frame_t *frame, kvp_err_t err, const char *detail)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    size_t at;

    if ((frame->hdr.flags & KVP_FRAME_ONEWAY) != 0) return;
    msg.err = err;
    msg.detail = (char *)detail;
    queue_reply(conn, frame, &msg, &at);
}

/* ---- Hello */
static kvp_err_t
check_hello(const kvp_node_t *node, const Kvp__Pb__Hello *hello, const char **why_out)
{
    *why_out = "versions do not overlap";
    if (hello->version < KVP_PROTO_VERSION_MIN || hello->version_min > KVP_PROTO_VERSION) return KVP_VERSION;
    *why_out = "only clients attach to a node";
    if (hello->role != KVP_ROLE_CLIENT) return KVP_INVALID;
    *why_out = "the node has no memory yet";
    if (node->mem == NULL) return KVP_NO_SEGMENT;
    *why_out = "another pool";
    if (hello->pool_id.len != sizeof node->mem->conf.pool_id ||
        memcmp(hello->pool_id.data, node->mem->conf.pool_id, hello->pool_id.len) != 0)
        return KVP_INVALID;
    *why_out = "";
    return KVP_OK;
}

/* find_process finds the process at the other end of a Unix connection. *proc_out is NULL for a TCP connection. */
static kvp_err_t
find_process(kvp_node_t *node, kvp_node_conn_t *conn, kvp_node_process_t **proc_out, const char **why_out)
{
    int pidfd, pid;
    kvp_err_t err;

    *proc_out = NULL;
    if (!conn->io.is_unix) return KVP_OK;
    *why_out = "the process is of a user that the node does not trust (--trust-uid)";
    if (!kvp_peer_is_trusted(conn->io.fd)) return KVP_INVALID;
    *why_out = "on a Unix socket one descriptor, the client's pidfd, rides beside Hello";
    if (conn->io.fds_in_n != 1) return KVP_INVALID;
    kvp_framed_take_fds(&conn->io, &pidfd, 1);
    *why_out = "the descriptor is not a pidfd of the process that connected";
    err = kvp_pidfd_check(conn->io.fd, pidfd, &pid);
    if (err != KVP_OK) {
        close(pidfd);
        return err;
    }
    *why_out = "cannot watch the process";
    return kvp_node_proc_get(node, pid, pidfd, proc_out);
}

/* Checks the identity of a TCP client, if the node has TLS. A client without a certificate must know the pool's id:
 * masters send it only to peers with an identity, and only over TLS. */
static kvp_err_t
check_identity(const kvp_node_t *node, const kvp_node_conn_t *conn, const char **why_out)
{
    const kvp_identity_t *who;

    if (node->serve.handshakes == NULL || conn->io.is_unix) return KVP_OK;
    *why_out = "this node accepts only TLS: set KVPOOL_TLS_CA to the pool's CA";
    if (conn->io.tls == NULL) return KVP_DENIED;
    who = kvp_tls_peer(conn->io.tls);
    *why_out = who->why;
    if (who->role == KVP_MAY_NOTHING) return who->err;
    *why_out = "to attach to a node needs the role reader, writer, admin or node";
    return kvp_authrole_covers(who->role, KVP_MAY_READ) ? KVP_OK : KVP_DENIED;
}

static kvp_err_t
attach_client(kvp_node_t *node, kvp_node_conn_t *conn, const Kvp__Pb__Hello *hello, const char **why_out)
{
    kvp_node_process_t *proc = NULL;
    kvp_err_t err = check_identity(node, conn, why_out);

    if (err == KVP_OK) err = check_hello(node, hello, why_out);
    if (err == KVP_OK) err = find_process(node, conn, &proc, why_out);
    if (err != KVP_OK) {
        node->serve.refused++;
        return err;
    }
    err = kvp_node_core_attach(node->core, &conn->att, hello->incarnation, proc == NULL ? NULL : &proc->core);
    if (err == KVP_OK) kvp_node_tps_came(&node->tps, hello->incarnation);
    if (err == KVP_OK) conn->proc = proc;
    *why_out = err == KVP_OK ? "" : kvp_err_text(err);
    if (err != KVP_OK && proc != NULL && kvp_list_is_empty(&proc->core.records)) kvp_node_proc_drop(node, proc);
    return err;
}

static void
log_refusal(kvp_node_conn_t *conn, uint64_t incarnation, const char *why)
{
    uint32_t missed;

    if (kvp_log_limit_ok(&conn->listener->noise, &missed))
        kvp_log_warn("node", "refused a client: %s incarnation=%llu missed=%u", why, (unsigned long long)incarnation,
                     missed);
}

static kvp_err_t
on_hello(kvp_node_t *node, kvp_node_conn_t *conn, const kvp_frame_t *frame, const char **why_out)
{
    Kvp__Pb__HelloReply msg = KVP__PB__HELLO_REPLY__INIT;
    Kvp__Pb__Hello *hello;
    const char *detail;
    kvp_pb_t pb;
    size_t at;

    hello = kvp_pb_unpack(&pb, &kvp__pb__hello__descriptor, frame);
    if (hello == NULL) {
        *why_out = "malformed Hello";
        return KVP_PROTO;
    }
    msg.err = attach_client(node, conn, hello, &detail);
    msg.detail = (char *)detail;
    msg.version = KVP_PROTO_VERSION < hello->version ? KVP_PROTO_VERSION : hello->version;
    msg.software = (char *)("kvpool " KVP_RELEASE);
    if (msg.err == KVP_OK) {
        msg.term = kvp_node_core_term(node->core);
        msg.incarnation = hello->incarnation;
        msg.pool_id = (ProtobufCBinaryData){sizeof node->mem->conf.pool_id, node->mem->conf.pool_id};
        msg.digest_seed = node->mem->conf.digest_seed;
        msg.host_id = node->conf.host_id;
        msg.unix_path = node->conf.unix_path;
        conn->has_hello = true;
        kvp_list_del(&conn->link);
        kvp_list_add_tail(&node->serve.settled, &conn->link);
    } else {
        log_refusal(conn, hello->incarnation, detail);
        conn->is_leaving = true;
    }
    queue_reply(conn, frame, &msg, &at);
    kvp_pb_free(&pb, hello);
    return KVP_OK;
}

/* ---- memory */
/* find_chunk finds the chunk and the index of the transport that an OpenChunk request names. */
static kvp_err_t
find_chunk(kvp_node_t *node, const kvp_node_conn_t *conn, const Kvp__Pb__OpenChunk *ask, kvp_node_chunk_t **chunk_out,
           int *tp_out, const char **why_out)
{
    int tp = kvp_node_tps_find(&node->tps, ask->transport);

    *why_out = "no such segment here";
    if (node->mem == NULL || ask->uuid.len != sizeof node->mem->uuid ||
        memcmp(ask->uuid.data, node->mem->uuid, sizeof node->mem->uuid) != 0)
        return KVP_NO_SEGMENT;
    *why_out = "unknown chunk or role";
    if (ask->chunk >= node->mem->chunk_n || (ask->role != KVP_ACCESS_READ && ask->role != KVP_ACCESS_WRITE))
        return KVP_INVALID;
    *why_out = "the node does not serve by that transport";
    if (tp < 0) return KVP_NOTSUP;
    *why_out = "that transport needs a Unix connection";
    if ((node->tps.tps[tp]->ops->caps & KVP_TP_SAME_HOST) != 0 && !conn->io.is_unix) return KVP_NOTSUP;
    *chunk_out = &node->mem->chunks[ask->chunk];
    *tp_out = tp;
    return KVP_OK;
}

/* Records the client as a writer. The keeper learns of the writer before the writer gets memory that it can write. */
static kvp_err_t
open_write(kvp_node_t *node, kvp_node_conn_t *conn)
{
    kvp_err_t err = kvp_node_core_open_write(node->core, &conn->att);

    if (err == KVP_OK && !conn->is_writer) kvp_node_keep_writer(node, conn->proc, conn->att.incarnation);
    conn->is_writer |= err == KVP_OK;
    return err;
}

static kvp_err_t
export_chunk(kvp_node_t *node, kvp_node_conn_t *conn, const Kvp__Pb__OpenChunk *ask, kvp_token_t tokens[2],
             kvp_node_chunk_t **chunk_out, const char **why_out)
{
    int tp;
    kvp_access_t access = (kvp_access_t)ask->role;
    kvp_err_t err = find_chunk(node, conn, ask, chunk_out, &tp, why_out);

    if (err != KVP_OK) return err;
    kvp_node_pin_want(&node->tps.pin, ask->chunk);
    err = atomic_load_explicit(&(*chunk_out)->mrs_err[tp], memory_order_acquire);
    *why_out = err == KVP_EAGAIN ? "the memory is not registered yet"
                                 : "the memory cannot be registered, as the node's log says";
    if (err != KVP_OK) return err;
    /* After an export for writing over shared memory, the process may store into the chunk without our control, until
     * it dies or reports that it has drained. */
    if (access == KVP_ACCESS_WRITE && (node->tps.tps[tp]->ops->caps & KVP_TP_SAME_HOST) != 0)
        err = open_write(node, conn);
    if (err == KVP_OK)
        err =
            node->tps.tps[tp]->ops->mr_export((*chunk_out)->payload_mrs[tp], access, conn->att.incarnation, &tokens[0]);
    if (err == KVP_OK)
        err = node->tps.tps[tp]->ops->mr_export((*chunk_out)->meta_mrs[tp], access, conn->att.incarnation, &tokens[1]);
    /* EAGAIN for a write: the transport must first register the chunk once more, for the key of this client.
     * NOMEM of such a registration is not the client's fault, so the client gets NOTSUP. */
    if (err == KVP_EAGAIN && access == KVP_ACCESS_WRITE)
        err = kvp_node_pin_grant(&node->tps.pin, (uint32_t)tp, ask->chunk, conn->att.incarnation);
    if (err == KVP_NOMEM && (node->tps.tps[tp]->ops->caps & KVP_TP_SLOW_REG) != 0) return KVP_NOTSUP;
    *why_out = err == KVP_OK ? "" : err == KVP_SYS ? "the node has no descriptor left" : kvp_err_text(err);
    return err;
}

/* send_fds attaches both tokens' file descriptors to the queued reply if is_sent, and closes them in every case. */
static kvp_err_t
send_fds(kvp_node_conn_t *conn, size_t at, const kvp_token_t tokens[2], bool is_sent)
{
    int fds[2] = {tokens[0].fd, tokens[1].fd};
    kvp_err_t err = KVP_OK;

    if (is_sent && fds[0] >= 0) err = kvp_framed_out_fds(&conn->io, at, fds, 2);
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0) close(fds[i]);
    return err;
}

static kvp_err_t
on_open_chunk(kvp_node_t *node, kvp_node_conn_t *conn, const kvp_frame_t *frame, const char **why_out)
{
    Kvp__Pb__OpenChunkReply msg = KVP__PB__OPEN_CHUNK_REPLY__INIT;
    Kvp__Pb__OpenChunk *ask;
    kvp_token_t tokens[2] = {{.fd = -1}, {.fd = -1}};
    kvp_node_chunk_t *chunk = NULL;
    const char *detail;
    kvp_pb_t pb;
    kvp_err_t err;
    size_t at;

    ask = kvp_pb_unpack(&pb, &kvp__pb__open_chunk__descriptor, frame);
    if (ask == NULL || (frame->hdr.flags & KVP_FRAME_ONEWAY) != 0) {
        *why_out = "malformed OpenChunk";
        kvp_pb_free(&pb, ask);
        return KVP_PROTO;
    }
    msg.err = export_chunk(node, conn, ask, tokens, &chunk, &detail);
    msg.detail = (char *)detail;
    kvp_pb_free(&pb, ask);
    if (msg.err == KVP_OK) {
        msg.payload_token = (ProtobufCBinaryData){tokens[0].len, tokens[0].bytes};
        msg.meta_token = (ProtobufCBinaryData){tokens[1].len, tokens[1].bytes};
        msg.payload_bytes = chunk->payload.len;
        msg.meta_bytes = chunk->meta.len;
        msg.is_lazy = node->populate.is_lazy;
    }
    queue_reply(conn, frame, &msg, &at);
    err = send_fds(conn, at, tokens, msg.err == KVP_OK);
    *why_out = err == KVP_OK ? *why_out : "cannot duplicate descriptors";
    return err;
}

static kvp_err_t
on_drained(kvp_node_t *node, kvp_node_conn_t *conn, const kvp_frame_t *frame, const char **why_out)
{
    Kvp__Pb__Drained *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__drained__descriptor, frame);
    if (msg == NULL) {
        *why_out = "malformed Drained";
        return KVP_PROTO;
    }
    err = kvp_node_core_drained(node->core, &conn->att, msg->incarnation);
    if (err == KVP_OK && msg->incarnation != 0) kvp_node_keep_writer_over(node, conn->proc, msg->incarnation);
    reply_plain(conn, frame, err,
                err == KVP_OK ? "" : "only a process that attached over the Unix socket may send this");
    kvp_pb_free(&pb, msg);
    return KVP_OK;
}

kvp_err_t
kvp_node_on_frame(kvp_node_t *node, kvp_node_conn_t *conn, const kvp_frame_t *frame, const char **why_out)
{
    const uint64_t began_ns = kvp_now_ns();

    if ((frame->hdr.flags & KVP_FRAME_REPLY) != 0) {
        *why_out = "an answer to no question";
        return KVP_PROTO;
    }
    if ((frame->hdr.opcode == KVP_OP_HELLO) == conn->has_hello) {
        *why_out = conn->has_hello ? "a second Hello" : "no Hello first";
        return KVP_PROTO;
    }
    if (frame->hdr.opcode == KVP_OP_HELLO) {
        kvp_err_t err = on_hello(node, conn, frame, why_out);

        kvp_histogram_add(&node->times.works[KVP_NODE_WORK_attach], kvp_now_ns() - began_ns);
        return err;
    }
    if (conn->io.fds_in_n > 0) {
        *why_out = "descriptors beside a message that has none";
        return KVP_PROTO;
    }
    switch (frame->hdr.opcode) {
    case KVP_OP_OPEN_CHUNK: {
        kvp_err_t err = on_open_chunk(node, conn, frame, why_out);

        kvp_histogram_add(&node->times.works[KVP_NODE_WORK_open_chunk], kvp_now_ns() - began_ns);
        return err;
    }
    case KVP_OP_DRAINED:
        return on_drained(node, conn, frame, why_out);
    case KVP_OP_RETIRE:
    case KVP_OP_FENCE:
        log_refusal(conn, conn->att.incarnation, "it sends an order that only the master may give");
        reply_plain(conn, frame, KVP_NOTSUP, "only the master may give this order");
        return KVP_OK;
    default:
        reply_plain(conn, frame, KVP_NOTSUP, "a node does not answer this");
        return KVP_OK;
    }
}
