/* SPDX-License-Identifier: Apache-2.0
 * Identities of the server's connections (ADR 0051): found at a connection's first HELLO, FOLLOW or SWITCH, kept with
 * the connection, checked again while the connection is open, and written to the audit. The core decides what a role
 * may ask; FOLLOW and SWITCH, which the core does not know, are decided here. */
#include "master/shell/server_priv.h"

#include "proto/kvpool.pb-c.h"

#include <stdlib.h>

/* the audit waits this long for a refused peer to connect to the Unix socket */
#define PARTED_NS (3 * KVP_NS_PER_S)
/* number of connections whose identity one sweep checks; there are two sweeps a second */
#define CHECKS_A_SWEEP 8192u

static const char *const op_names[256] = {
    [KVP_OP_HELLO] = "HELLO",
    [KVP_OP_FOLLOW] = "FOLLOW",
    [KVP_OP_SWITCH] = "SWITCH",
    [KVP_OP_PUT_BEGIN] = "PUT_BEGIN",
    [KVP_OP_PUT_COMMIT] = "PUT_COMMIT",
    [KVP_OP_PUT_ABORT] = "PUT_ABORT",
    [KVP_OP_GET] = "GET",
    [KVP_OP_EXISTS] = "EXISTS",
    [KVP_OP_LOOKUP] = "LOOKUP",
    [KVP_OP_RELEASE] = "RELEASE",
    [KVP_OP_REMOVE] = "REMOVE",
    [KVP_OP_REMOVE_MANY] = "REMOVE_MANY",
    [KVP_OP_USED] = "USED",
    [KVP_OP_BUMP] = "BUMP",
    [KVP_OP_PRESENT] = "PRESENT",
    [KVP_OP_LIST] = "LIST",
    [KVP_OP_SNAPSHOT] = "SNAPSHOT",
    [KVP_OP_EXPLAIN] = "EXPLAIN",
    [KVP_OP_TASK] = "TASK",
    [KVP_OP_DRAIN] = "DRAIN",
    [KVP_OP_SESSIONS] = "SESSIONS",
    [KVP_OP_MOUNT] = "MOUNT",
    [KVP_OP_UNMOUNT] = "UNMOUNT",
};

static void
write_audit(kvp_server_conn_t *conn, uint8_t opcode, const char *object, const char *tenant, kvp_err_t err,
            const char *why)
{
    const char *name = op_names[opcode];
    char from[KVP_PEER_TEXT_MAX] = "none", number[8];
    uv_os_fd_t fd;

    if (uv_fileno(&conn->uv.handle, &fd) == 0) kvp_peer_text(fd, from);
    snprintf(number, sizeof number, "%u", opcode);
    kvp_authn_audit(conn->who, from, name == NULL ? number : name, object, tenant, err, why);
}

/* Counts a refusal by its reason. who NULL = the peer has no identity. */
static void
count_denial(kvp_server_t *server, const kvp_identity_t *who, kvp_err_t err)
{
    if (err == KVP_OK) return;
    server->stats.denied[err == KVP_EXPIRED                            ? KVP_DENIED_expired
                         : who == NULL || who->role == KVP_MAY_NOTHING ? KVP_DENIED_identity
                                                                       : KVP_DENIED_role]++;
}

static void
drop_parted(kvp_server_t *server, uint32_t i)
{
    server->parted_n--;
    memmove(&server->parted[i], &server->parted[i + 1], (server->parted_n - i) * sizeof server->parted[0]);
}

/* Writes the oldest waiting refusal to the audit, because its peer has not connected to the Unix socket. */
static void
write_parted(kvp_server_t *server)
{
    const kvp_server_parted_t *p = &server->parted[0];

    count_denial(server, NULL, KVP_DENIED);
    kvp_authn_audit(NULL, p->from, op_names[KVP_OP_HELLO], p->name, "", KVP_DENIED, p->why);
    drop_parted(server, 0);
}

static void
keep_parted(kvp_server_t *server, const kvp_server_conn_t *conn, const kvp_master_audit_t *audit)
{
    kvp_server_parted_t *p;
    uv_os_fd_t fd;

    if (server->parted_n == KVP_SERVER_PARTED_MAX) write_parted(server);
    p = &server->parted[server->parted_n++];
    *p = (kvp_server_parted_t){.due_ns = kvp_now_ns() + PARTED_NS, .from = "none"};
    if (uv_fileno(&conn->uv.handle, &fd) == 0) kvp_peer_text(fd, p->from);
    memcpy(p->name, audit->object, sizeof p->name);
    memcpy(p->why, audit->why, sizeof p->why);
}

/* Drops the waiting refusal of a peer with this name, because a peer of this name has connected to the Unix socket. */
static void
forget_parted(kvp_server_t *server, const char *name)
{
    for (uint32_t i = 0; i < server->parted_n; i++) {
        if (strncmp(server->parted[i].name, name, KVP_AUDIT_OBJECT_MAX - 1) != 0) continue;
        drop_parted(server, i);
        return;
    }
}

void
kvp_server_note_audit(kvp_server_t *server, const kvp_master_audit_t *audit)
{
    kvp_server_conn_t *conn = kvp_server_find_conn(server, audit->conn);

    if (conn == NULL || server->conf.authn == NULL) return;
    if (audit->goes_on) {
        keep_parted(server, conn, audit);
    } else {
        count_denial(server, conn->who, audit->err);
        write_audit(conn, audit->opcode, audit->object, audit->tenant, audit->err, audit->why);
    }
}

/* Finds the identity of the peer that sent the token, and keeps it with the connection. */
static bool
find_identity(kvp_server_conn_t *conn, const ProtobufCBinaryData *token)
{
    uv_os_fd_t fd;

    conn->who = calloc(1, sizeof *conn->who);
    if (conn->who == NULL || uv_fileno(&conn->uv.handle, &fd) != 0) {
        kvp_server_close_conn(conn);
        return false;
    }
    kvp_authn_find(conn->server->conf.authn, fd, conn->tls, token->data, token->len, conn->who);
    return true;
}

static void
refuse_conn(kvp_server_conn_t *conn, const kvp_frame_t *frame, kvp_err_t err, const char *why)
{
    Kvp__Pb__Reply msg = KVP__PB__REPLY__INIT;
    kvp_buf_t out;

    count_denial(conn->server, conn->who, err);
    write_audit(conn, frame->hdr.opcode, "", conn->who->name, err, why);
    msg.err = err; /* the answers to FOLLOW and SWITCH begin with the same fields */
    msg.detail = (char *)why;
    kvp_buf_init(&out, 0);
    kvp_pb_frame(&out, frame->hdr.opcode, KVP_FRAME_REPLY, frame->hdr.request_id, &msg.base, NULL, 0);
    kvp_server_queue_output(conn, &out);
    kvp_buf_fini(&out);
    kvp_list_del(&conn->deadline_link);
    conn->owner = KVP_CONN_OF_NOBODY;
    kvp_server_end_conn(conn);
    kvp_server_mark_unsent(conn);
}

/* Decides about FOLLOW and SWITCH. */
static bool
may_begin(kvp_server_conn_t *conn, const kvp_frame_t *frame)
{
    const kvp_identity_t *who = conn->who;
    const bool is_admin = who->role == KVP_MAY_ADMIN;

    if (who->err != KVP_OK)
        refuse_conn(conn, frame, who->err, who->why);
    else if (frame->hdr.opcode == KVP_OP_FOLLOW && !is_admin && who->role != KVP_IS_MASTER)
        refuse_conn(conn, frame, KVP_DENIED, "to follow the log needs the role master");
    else if (frame->hdr.opcode == KVP_OP_SWITCH && !is_admin)
        refuse_conn(conn, frame, KVP_DENIED, "to switch masters needs the role admin");
    else
        return true;
    return false;
}

bool
kvp_server_authenticate(kvp_server_conn_t *conn, const kvp_frame_t *frame)
{
    const bool is_hello = frame->hdr.opcode == KVP_OP_HELLO, is_follow = frame->hdr.opcode == KVP_OP_FOLLOW;
    const ProtobufCMessageDescriptor *kind = is_hello    ? &kvp__pb__hello__descriptor
                                             : is_follow ? &kvp__pb__follow__descriptor
                                                         : &kvp__pb__switch__descriptor;
    const ProtobufCBinaryData *token;
    kvp_pb_t pb;
    void *msg;

    if (conn->who != NULL || (!is_hello && !is_follow && frame->hdr.opcode != KVP_OP_SWITCH)) return true;
    msg = kvp_pb_unpack(&pb, kind, frame);
    if (msg == NULL) return is_hello; /* the core answers a malformed HELLO with an error */
    token = is_hello    ? &((Kvp__Pb__Hello *)msg)->token
            : is_follow ? &((Kvp__Pb__Follow *)msg)->token
                        : &((Kvp__Pb__Switch *)msg)->token;
    if (is_hello && conn->uv.handle.type == UV_NAMED_PIPE) forget_parted(conn->server, ((Kvp__Pb__Hello *)msg)->name);
    const bool has_identity = find_identity(conn, token);
    kvp_pb_free(&pb, msg);
    if (!has_identity) return false;
    if (!is_hello) return may_begin(conn, frame);
    if (conn->owner == KVP_CONN_OF_CORE)
        kvp_master_on_identity(conn->server->master, conn->id, conn->who, kvp_server_begin(conn->server));
    return true;
}

/* Ends the connection of an identity that is not valid any more. */
static void
revoke_conn(kvp_server_conn_t *conn, const char *why)
{
    write_audit(conn, KVP_OP_HELLO, "", conn->who->name, KVP_DENIED, why);
    conn->server->stats.revoked++;
    if (conn->owner == KVP_CONN_OF_CORE) kvp_master_revoke(conn->server->master, conn->id);
    kvp_server_close_conn(conn);
}

void
kvp_server_check_identities(kvp_server_t *server)
{
    kvp_authn_t *authn = server->conf.authn;

    if (authn == NULL) return;
    kvp_authn_refresh(authn, server->uv);
    while (server->parted_n > 0 && server->parted[0].due_ns <= kvp_now_ns())
        write_parted(server);
    for (uint32_t i = 0; i < kvp_min_u64(CHECKS_A_SWEEP, server->slot_cap); i++) {
        server->check_slot = (server->check_slot + 1) % server->slot_cap;
        kvp_server_conn_t *conn = server->slots[server->check_slot].conn;
        const char *why;

        if (conn == NULL || conn->who == NULL || conn->end != KVP_CONN_OPEN) continue;
        why = kvp_authn_is_valid(authn, conn->who);
        if (why == NULL && kvp_handshakes_has_revoked(server->handshakes, conn->who))
            why = "the certificate was revoked";
        if (why != NULL) revoke_conn(conn, why);
    }
}
