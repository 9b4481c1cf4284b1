/* SPDX-License-Identifier: Apache-2.0
 * Hello, and questions with one answer. A stranger may listen at the configured address, so no answer is trusted. */
#include "net/hello.h"

#include "common/trust/creds.h"
#include "common/waits.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include "proto/kvpool.pb-c.h"

#include <stdio.h>
#include <string.h>

#define HELLO_ID 1u
#define HEARTBEAT_DEFAULT_MS 1000u
#define TTL_DEFAULT_MS 10000u

static kvp_err_t
send_all(kvp_framed_t *c, uint64_t deadline_ns)
{
    for (;;) {
        kvp_err_t err = kvp_framed_flush(c);
        struct pollfd p = {.fd = c->fd, .events = kvp_framed_wants(c)};

        if (err != KVP_EAGAIN) return err;
        if (kvp_now_ns() >= deadline_ns) return KVP_DEADLINE;
        if (kvp_is_given_up(c->is_given_up)) return KVP_CLOSED;
        kvp_poll_slice(&p, deadline_ns);
    }
}

kvp_err_t
kvp_exchange(kvp_framed_t *c, uint64_t request_id, uint64_t deadline_ns, kvp_frame_t *frame_out)
{
    kvp_err_t err = send_all(c, deadline_ns);

    while (err == KVP_OK) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        bool has = false;

        err = kvp_framed_next(c, frame_out, &has);
        if (err != KVP_OK) break;
        if (has && (frame_out->hdr.flags & KVP_FRAME_REPLY) != 0 && frame_out->hdr.request_id == request_id)
            return KVP_OK;
        if (!has) err = kvp_framed_recv(c);
        if (err != KVP_OK && err != KVP_EAGAIN) break;
        if (kvp_now_ns() >= deadline_ns) return KVP_DEADLINE; /* the deadline holds even while other frames arrive */
        if (kvp_is_given_up(c->is_given_up)) return KVP_CLOSED;
        if (err == KVP_EAGAIN) kvp_poll_slice(&p, deadline_ns);
        err = KVP_OK;
    }
    return err;
}

static uint32_t
or_default(uint32_t value, uint32_t fallback)
{
    return value == 0 ? fallback : value;
}

static kvp_err_t
copy_reply(const Kvp__Pb__HelloReply *msg, kvp_hello_reply_t *out)
{
    snprintf(out->detail, sizeof out->detail, "%s", msg->detail);
    if (msg->err == KVP_NOT_LEADER && strchr(msg->detail, ':') != NULL) /* from a standby that knows the leader */
        snprintf(out->detail, sizeof out->detail, "it does not lead; %s leads", msg->detail);
    if (strlen(msg->host_id) >= sizeof out->host_id) return KVP_PROTO;
    snprintf(out->host_id, sizeof out->host_id, "%s", msg->host_id);
    if (strlen(msg->unix_path) < sizeof out->unix_path)
        snprintf(out->unix_path, sizeof out->unix_path, "%s", msg->unix_path);
    if (msg->err != KVP_OK) return msg->err < 0 ? msg->err : KVP_PROTO;
    if (msg->version < KVP_PROTO_VERSION_MIN || msg->version > KVP_PROTO_VERSION) {
        snprintf(out->detail, sizeof out->detail, "it speaks version %u", msg->version);
        return KVP_VERSION;
    }
    if (strlen(msg->tenant) >= sizeof out->tenant) return KVP_PROTO;
    snprintf(out->tenant, sizeof out->tenant, "%s", msg->tenant);
    snprintf(out->rights, sizeof out->rights, "%s", msg->rights);
    if (msg->pool_id.len == sizeof out->pool_id) memcpy(out->pool_id, msg->pool_id.data, sizeof out->pool_id);
    out->term = msg->term;
    out->incarnation = msg->incarnation;
    out->digest_seed = msg->digest_seed;
    out->heartbeat_ms = or_default(msg->heartbeat_ms, HEARTBEAT_DEFAULT_MS);
    out->session_ttl_ms = or_default(msg->session_ttl_ms, TTL_DEFAULT_MS);
    out->lease_ttl_ms = msg->lease_ttl_ms;
    return KVP_OK;
}

/* Queues Hello. A Hello to a master has this process's token. */
static kvp_err_t
queue_hello(kvp_framed_t *c, const kvp_hello_ask_t *ask, char *why_out)
{
    char token[KVP_CREDS_TOKEN_MAX];
    size_t token_len = 0;
    Kvp__Pb__KnownPool known = KVP__PB__KNOWN_POOL__INIT;
    Kvp__Pb__Hello msg = KVP__PB__HELLO__INIT;
    size_t at;

    msg.version = KVP_PROTO_VERSION;
    msg.version_min = KVP_PROTO_VERSION_MIN;
    msg.role = ask->role != 0 ? ask->role : KVP_ROLE_CLIENT;
    msg.name = (char *)ask->name;
    msg.host_id = (char *)ask->host_id;
    msg.software = (char *)("kvpool " KVP_RELEASE);
    msg.incarnation = ask->incarnation;
    msg.is_state_only = ask->is_state_only;
    msg.is_probe = ask->is_probe;
    if (ask->pool_id == NULL) {
        kvp_err_t err = kvp_creds_token(c->is_unix || c->tls != NULL, token, &token_len, why_out);

        if (err != KVP_OK) return err;
        msg.token = (ProtobufCBinaryData){token_len, (uint8_t *)token};
    }
    if (ask->tenant != NULL) msg.tenant = (char *)ask->tenant;
    if (ask->pool_id != NULL) msg.pool_id = (ProtobufCBinaryData){16, (uint8_t *)ask->pool_id};
    if (ask->known != NULL && ask->known->term != 0) {
        known.pool_id = (ProtobufCBinaryData){sizeof ask->known->pool_id, (uint8_t *)ask->known->pool_id};
        known.digest_seed = ask->known->digest_seed;
        known.term = ask->known->term;
        msg.known = &known;
    }
    kvp_pb_frame_begin(&c->out, KVP_OP_HELLO, 0, HELLO_ID, &msg.base, &at);
    kvp_frame_end(&c->out, at);
    if (c->out.err != KVP_OK) return c->out.err;
    return ask->pidfd < 0 ? KVP_OK : kvp_framed_out_fds(c, at, &ask->pidfd, 1);
}

static const char *
say_silence(kvp_err_t err)
{
    switch (err) {
    case KVP_DEADLINE:
        return "it is connected and does not answer, timed out";
    case KVP_DISCONNECTED:
        return "it closed the connection";
    case KVP_PROTO:
        return "its answer is of another protocol; is that the port of --listen?";
    default:
        return kvp_err_text(err);
    }
}

kvp_err_t
kvp_hello(kvp_framed_t *c, const kvp_hello_ask_t *ask, uint64_t deadline_ns, kvp_hello_reply_t *reply_out)
{
    Kvp__Pb__HelloReply *msg;
    kvp_frame_t frame;
    kvp_pb_t pb;
    kvp_err_t err;

    memset(reply_out, 0, sizeof *reply_out);
    err = queue_hello(c, ask, reply_out->detail);
    if (reply_out->detail[0] != '\0') return err;
    if (err == KVP_OK) err = kvp_exchange(c, HELLO_ID, deadline_ns, &frame);
    if (err != KVP_OK) {
        const char *why = kvp_framed_tls_why(c);

        snprintf(reply_out->detail, sizeof reply_out->detail, "no answer to Hello: %s",
                 why[0] != '\0' ? why : say_silence(err));
        return err;
    }
    msg = kvp_pb_unpack(&pb, &kvp__pb__hello_reply__descriptor, &frame);
    if (msg == NULL) {
        snprintf(reply_out->detail, sizeof reply_out->detail, "the answer to Hello: %s", kvp_err_text(pb.err));
        return pb.err;
    }
    err = copy_reply(msg, reply_out);
    kvp_pb_free(&pb, msg);
    if (err == KVP_DENIED && ask->pool_id == NULL && kvp_creds_withhold(c->is_unix || c->tls != NULL)) {
        const size_t len = strlen(reply_out->detail);

        snprintf(reply_out->detail + len, sizeof reply_out->detail - len,
                 "; the token in KVPOOL_TOKEN_FILE was not sent, because this is TCP without TLS (KVPOOL_TLS_CA)");
    }
    return err;
}
