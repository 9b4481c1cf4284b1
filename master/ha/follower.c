/* SPDX-License-Identifier: Apache-2.0
 * A standby's connection to the leader: see follower.h. A connection is a separate object, which exists until libuv
 * has closed it; the follower has at most one, and forgets it when closing it. */
#include "master/ha/follower.h"

#include "common/trust/tls.h"
#include "common/clock.h"
#include "common/log.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IN_MAX (2u * KVP_FRAME_MAX)
#define SEALED_BYTES (64u << 10)
#define READ_BYTES (256u << 10)
#define BACKOFF_MIN_NS (20 * KVP_NS_PER_MS)
#define BACKOFF_MAX_NS (300 * KVP_NS_PER_MS)
#define ALIVE_NS (500 * KVP_NS_PER_MS)
#define SILENT_NS (3 * KVP_NS_PER_S) /* after this silence of a connected leader the connection is closed */
#define ASK_ID 1u
#define POOL_ID_BYTES 16u

typedef struct {
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_getaddrinfo_t resolve;
    /* maker: the follower that made the connection. owner: the follower that uses it; NULL = given up */
    kvp_follower_t *maker, *owner;
    kvp_buf_t in;
    kvp_tls_t *tls; /* encrypts the connection; NULL = it is not encrypted */
    char sealed[SEALED_BYTES]; /* received encrypted bytes, within a callback */
    bool is_resolving, is_closed;
    bool is_fed; /* flag: the leader has answered OK */
    bool is_paused;
    uint64_t heard_ns, said_ns, told;
} link_t;

struct kvp_follower {
    uv_loop_t *uv;
    const kvp_follower_ops_t *ops;
    char address[320]; /* the leader's address; "" = no connection is wanted */
    link_t *link; /* the connection; NULL = none */
    /* number of running name resolutions: each uses a thread of libuv's pool that other work needs, too */
    uint32_t resolving;
    /* flag: kvp_follower_stop was called; the follower is freed when the last name resolution has ended */
    bool is_over;
    uint64_t again_ns, backoff_ns;
    bool has_failed; /* flag: the last connection failed, and the failure was logged */
};

/* ---- the end of a connection */
static void
free_link(link_t *l)
{
    if (!l->is_closed || l->is_resolving) return;
    kvp_buf_fini(&l->in);
    kvp_tls_destroy(l->tls);
    free(l);
}

static void
on_closed(uv_handle_t *handle)
{
    link_t *l = handle->data;

    l->is_closed = true;
    free_link(l);
}

static void
drop_link(kvp_follower_t *f, const char *why)
{
    link_t *l = f->link;

    if (l == NULL) return;
    if (why != NULL && (l->is_fed || !f->has_failed)) {
        kvp_log_warn("master", "the leader's log does not come: %s leader=%s", why, f->address);
        f->has_failed = true;
    }
    f->backoff_ns =
        l->is_fed ? BACKOFF_MIN_NS : kvp_min_u64(kvp_max_u64(2 * f->backoff_ns, BACKOFF_MIN_NS), BACKOFF_MAX_NS);
    f->again_ns = kvp_boot_ns() + f->backoff_ns / 2 + kvp_random_u64() % f->backoff_ns;
    f->link = NULL;
    l->owner = NULL;
    uv_close((uv_handle_t *)&l->tcp, on_closed);
}

/* ---- output */
static void
on_written(uv_write_t *req, int status)
{
    (void)status; /* the next read shows the error */
    free(req->data);
    free(req);
}

/* Sends unencrypted bytes. Takes the buffer's contents. */
static void
send_raw(link_t *l, kvp_buf_t *bytes)
{
    uv_write_t *req = bytes->err == KVP_OK ? calloc(1, sizeof *req) : NULL;
    uv_buf_t buf = uv_buf_init((char *)bytes->data, (unsigned)bytes->len);

    if (req == NULL) {
        kvp_buf_fini(bytes);
        return;
    }
    req->data = bytes->data; /* takes the memory of the buffer */
    if (uv_write(req, (uv_stream_t *)&l->tcp, &buf, 1, on_written) != 0) on_written(req, 0);
}

/* Sends the bytes that TLS has encrypted. */
static void
send_sealed(link_t *l)
{
    kvp_buf_t sealed;

    kvp_buf_init(&sealed, 0);
    kvp_tls_take_all(l->tls, &sealed);
    if (sealed.len > 0 || sealed.err != KVP_OK)
        send_raw(l, &sealed);
    else
        kvp_buf_fini(&sealed);
}

static void
send_buf(link_t *l, kvp_buf_t *bytes)
{
    if (l->tls == NULL) {
        send_raw(l, bytes);
        return;
    }
    if (bytes->err == KVP_OK)
        kvp_ignore(kvp_tls_seal(l->tls, bytes->data, bytes->len), "the next receive call finds the same error");
    kvp_buf_fini(bytes);
    send_sealed(l);
}

static void
say_follow(link_t *l)
{
    kvp_follower_t *f = l->owner;
    Kvp__Pb__Follow msg = KVP__PB__FOLLOW__INIT;
    kvp_wire_term_t terms[KVP_FOLLOW_TERMS_MAX];
    char token[KVP_CREDS_TOKEN_MAX], why[KVP_CREDS_WHY_MAX];
    kvp_buf_t out;

    msg.version = KVP_PROTO_VERSION;
    msg.version_min = KVP_PROTO_VERSION_MIN;
    if (kvp_creds_token(l->tls != NULL, token, &msg.token.len, why) != KVP_OK) {
        drop_link(f, why);
        return;
    }
    msg.token.data = (uint8_t *)token;
    f->ops->fill(f->ops->arg, &msg, terms);
    kvp_buf_init(&out, 0);
    kvp_pb_frame(&out, KVP_OP_FOLLOW, 0, ASK_ID, &msg.base, terms, msg.n * sizeof *terms);
    send_buf(l, &out);
}

void
kvp_follower_ack(kvp_follower_t *f, uint64_t position, uint64_t now_ns)
{
    Kvp__Pb__Followed msg = KVP__PB__FOLLOWED__INIT;
    link_t *l = f->link;
    kvp_buf_t out;

    if (l == NULL || !l->is_fed || (l->told == position && now_ns - l->said_ns < ALIVE_NS)) return;
    l->told = position;
    l->said_ns = now_ns;
    msg.position = position;
    kvp_buf_init(&out, 0);
    kvp_pb_frame(&out, KVP_OP_FOLLOWED, KVP_FRAME_ONEWAY, 0, &msg.base, NULL, 0);
    send_buf(l, &out);
}

/* ---- input */
static kvp_err_t
take_reply(link_t *l, const kvp_frame_t *frame)
{
    kvp_follower_t *f = l->owner;
    Kvp__Pb__FollowReply *msg;
    kvp_err_t err;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__follow_reply__descriptor, frame);
    if (msg == NULL) return KVP_PROTO;
    err = msg->err != KVP_OK ? msg->err : msg->pool_id.len != POOL_ID_BYTES ? KVP_PROTO : KVP_OK;
    if (err == KVP_OK) {
        l->is_fed = true;
        err = f->ops->on_reply(f->ops->arg, msg);
    } else if (err != KVP_NOT_LEADER && !f->has_failed) {
        kvp_log_error("master", "the leader refuses this standby: %s: %s leader=%s", kvp_err_text(err), msg->detail,
                      f->address);
        f->has_failed = true;
    }
    kvp_pb_free(&pb, msg);
    return err;
}

static kvp_err_t
take_log(link_t *l, const kvp_frame_t *frame)
{
    kvp_follower_t *f = l->owner;
    Kvp__Pb__Log *msg;
    kvp_err_t err;
    kvp_pb_t pb;

    msg = kvp_pb_unpack(&pb, &kvp__pb__log__descriptor, frame);
    if (msg == NULL || !l->is_fed) {
        kvp_pb_free(&pb, msg);
        return KVP_PROTO;
    }
    err = f->ops->on_log(f->ops->arg, msg->position, frame->tail, frame->tail_len, msg->end, msg->is_last);
    kvp_pb_free(&pb, msg);
    return err;
}

static kvp_err_t
take_frame(link_t *l, const kvp_frame_t *frame)
{
    bool is_reply = (frame->hdr.flags & KVP_FRAME_REPLY) != 0;

    if (frame->hdr.opcode == KVP_OP_FOLLOW && is_reply && !l->is_fed) return take_reply(l, frame);
    if (frame->hdr.opcode == KVP_OP_LOG && !is_reply) return take_log(l, frame);
    return KVP_PROTO;
}

static void
on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    link_t *l = handle->data;
    uint8_t *room;

    (void)suggested;
    if (l->tls != NULL) {
        *buf = uv_buf_init(l->sealed, SEALED_BYTES);
        return;
    }
    room = kvp_buf_reserve(&l->in, READ_BYTES);
    *buf = uv_buf_init((char *)room, room == NULL ? 0 : READ_BYTES);
}

/* Decrypts received bytes to l->in. Sends FOLLOW when the handshake has ended. Returns false if the connection was
 * dropped. */
static bool
open_sealed(link_t *l, const char *bytes, size_t len)
{
    const bool was_done = kvp_tls_is_done(l->tls);
    kvp_err_t err = kvp_tls_feed(l->tls, bytes, len);
    size_t n;

    if (err == KVP_OK) err = kvp_tls_step(l->tls);
    send_sealed(l);
    if (err == KVP_OK && !was_done) say_follow(l);
    while (err == KVP_OK && l->owner != NULL) {
        uint8_t *room = kvp_buf_reserve(&l->in, SEALED_BYTES);

        err = room == NULL ? l->in.err : kvp_tls_open(l->tls, room, SEALED_BYTES, &n);
        if (err == KVP_OK) l->in.len += n;
    }
    if (l->owner == NULL) return false;
    if (err == KVP_EAGAIN) return true;
    drop_link(l->owner, kvp_tls_why(l->tls)[0] != '\0' ? kvp_tls_why(l->tls) : kvp_err_text(err));
    return false;
}

/* Handles the received frames. A callback may give up the connection. */
static void
on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    link_t *l = stream->data;
    kvp_err_t err = KVP_OK;
    size_t at = 0, used = 1;
    kvp_frame_t frame;

    if (l->owner == NULL || nread == 0) return;
    if (nread < 0) {
        drop_link(l->owner, l->tls != NULL && !kvp_tls_is_done(l->tls)
                                ? "it closed the connection in the handshake of TLS: it has no TLS (--tls-cert)"
                                : "the connection is lost");
        return;
    }
    l->heard_ns = kvp_boot_ns();
    if (l->tls == NULL)
        l->in.len += (size_t)nread;
    else if (!open_sealed(l, buf->base, (size_t)nread))
        return;
    while (err == KVP_OK && used > 0 && l->owner != NULL) {
        err = kvp_frame_parse(l->in.data + at, l->in.len - at, &frame, &used);
        if (err == KVP_OK && used > 0) err = take_frame(l, &frame);
        at += used;
    }
    if (l->owner == NULL) return;
    if (err != KVP_OK)
        drop_link(l->owner, kvp_err_text(err));
    else
        kvp_buf_consume(&l->in, at);
}

/* ---- connecting */
static void
on_connected(uv_connect_t *req, int status)
{
    link_t *l = req->data;

    if (l->owner == NULL) return;
    if (status != 0 || uv_read_start((uv_stream_t *)&l->tcp, on_alloc, on_read) != 0) {
        drop_link(l->owner, "it cannot be reached");
        return;
    }
    (void)uv_tcp_nodelay(&l->tcp, 1);
    l->heard_ns = kvp_boot_ns();
    if (l->tls == NULL)
        say_follow(l);
    else if (kvp_tls_step(l->tls) != KVP_EAGAIN)
        drop_link(l->owner, kvp_tls_why(l->tls));
    else
        send_sealed(l);
}

static void
on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *found)
{
    link_t *l = req->data;

    l->is_resolving = false;
    if (--l->maker->resolving == 0 && l->maker->is_over) free(l->maker);
    if (l->owner == NULL) {
        free_link(l);
    } else {
        l->connect.data = l;
        if (status != 0 || uv_tcp_connect(&l->connect, &l->tcp, found->ai_addr, on_connected) != 0)
            drop_link(l->owner, "it cannot be reached");
    }
    uv_freeaddrinfo(found);
}

static void
dial_leader(kvp_follower_t *f, uint64_t now_ns)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    kvp_creds_t files;
    kvp_hostport_t at;
    char port[8];
    link_t *l;

    f->again_ns = now_ns + BACKOFF_MAX_NS;
    if (kvp_parse_hostport(f->address, &at) != KVP_OK || (l = calloc(1, sizeof *l)) == NULL) return;
    snprintf(port, sizeof port, "%u", at.port);
    kvp_buf_init(&l->in, IN_MAX);
    if (kvp_creds_tls(&files) && (l->tls = kvp_tls_client(&files, KVP_IS_MASTER, NULL)) == NULL) {
        free(l);
        return;
    }
    uv_tcp_init(f->uv, &l->tcp);
    l->tcp.data = l->resolve.data = l;
    l->maker = l->owner = f;
    l->heard_ns = now_ns;
    f->link = l;
    if (uv_getaddrinfo(f->uv, &l->resolve, on_resolved, at.host, port, &hints) != 0) {
        drop_link(f, "its name cannot be resolved");
        return;
    }
    l->is_resolving = true;
    f->resolving++;
}

kvp_follower_t *
kvp_follower_start(uv_loop_t *uv, const kvp_follower_ops_t *ops)
{
    kvp_follower_t *f = calloc(1, sizeof *f);

    if (f == NULL) return NULL;
    f->uv = uv;
    f->ops = ops;
    return f;
}

void
kvp_follower_stop(kvp_follower_t *f)
{
    if (f == NULL) return;
    kvp_follower_rest(f);
    f->is_over = true;
    if (f->resolving == 0) free(f);
}

void
kvp_follower_go(kvp_follower_t *f, const char *address, uint64_t now_ns)
{
    if (strcmp(f->address, address) == 0) return;
    kvp_follower_rest(f);
    snprintf(f->address, sizeof f->address, "%s", address);
    f->again_ns = now_ns;
    f->backoff_ns = 0;
    f->has_failed = false;
}

void
kvp_follower_rest(kvp_follower_t *f)
{
    drop_link(f, NULL);
    f->address[0] = '\0';
}

void
kvp_follower_tick(kvp_follower_t *f, uint64_t now_ns)
{
    link_t *l = f->link;

    if (l != NULL && !l->is_paused && now_ns - l->heard_ns > SILENT_NS) drop_link(f, "it is silent");
    if (f->link == NULL && f->resolving == 0 && f->address[0] != '\0' && now_ns >= f->again_ns) dial_leader(f, now_ns);
}

void
kvp_follower_pause(kvp_follower_t *f, bool is_paused)
{
    link_t *l = f->link;

    if (l == NULL || !l->is_fed || l->is_paused == is_paused) return;
    l->is_paused = is_paused;
    l->heard_ns = kvp_boot_ns();
    if (is_paused)
        uv_read_stop((uv_stream_t *)&l->tcp);
    else
        (void)uv_read_start((uv_stream_t *)&l->tcp, on_alloc, on_read);
}

bool
kvp_follower_is_fed(const kvp_follower_t *f)
{
    return f->link != NULL && f->link->is_fed;
}
