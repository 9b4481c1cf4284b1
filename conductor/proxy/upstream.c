/* SPDX-License-Identifier: Apache-2.0
 * See upstream.h. */
#include "conductor/proxy/upstream.h"

#include "common/clock.h"
#include "common/list.h"
#include "common/log.h"
#include "conductor/proxy/headers.h"
#include "conductor/base/url.h"

#include <errno.h>
#include <llhttp.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDLE_MAX 4096u /* limit of the number of idle connections that are kept */
#define IDLE_NS (60 * KVP_NS_PER_S) /* an idle connection to a server is closed after this time */
/* longest head of an answer, in bytes; the memory of a client's connection (front.c) must hold it, too */
#define HEAD_MAX (16u << 10)
#define READ_BYTES (64u << 10)
#define TICK_MS 50u

struct kvp_upstream {
    uv_loop_t *uv;
    uv_timer_t tick; /* timer that checks the time limits */
    llhttp_settings_t settings;
    kvp_list_t calls, conns; /* lists of all calls, and of all connections */
    kvp_list_t idle; /* list of connections without a call, the most recently used first */
    uint32_t idle_n;
    char bytes[READ_BYTES];
};

/* A connection to a server. A connection belongs to its call. Without a call it is on the idle list. */
typedef struct {
    kvp_list_t link, idle_link; /* elements of the lists upstream->conns and upstream->idle */
    kvp_upstream_t *up;
    uv_tcp_t tcp;
    uv_connect_t connecting;
    struct addrinfo *addrs, *addr; /* while connecting: all addresses of the server, and the address being tried */
    uv_write_t writing;
    uv_shutdown_t ending;
    llhttp_t parser;
    kvp_call_t *call; /* the call that uses the connection; NULL = idle */
    uint64_t idle_ns; /* time at which the connection became idle */
    bool was_used; /* a flag: an earlier call has used the connection */
    bool has_answer; /* a flag: the answer to the call is complete */
    uint32_t head_len;
    kvp_hostport_t at;
} conn_t;

/* A look-up of a server's name, in a thread of libuv. */
typedef struct {
    uv_getaddrinfo_t req;
    kvp_call_t *call; /* the call that waits for the address; NULL = the call has ended */
} lookup_t;

/* The progress of a call, over all its connections. */
typedef enum {
    CALL_UNSENT,
    CALL_SENT, /* a connection was made, so a server may have seen the request */
    CALL_HEARD, /* a byte of the answer has arrived */
    CALL_HEAD, /* the head of the answer is complete */
    CALL_BODY /* a byte of the answer's body has arrived */
} progress_t;

struct kvp_call {
    kvp_list_t link; /* element of the list upstream->calls */
    kvp_upstream_t *up;
    conn_t *conn;
    lookup_t *lookup;
    kvp_call_ops_t ops;
    void *arg;
    kvp_buf_t head; /* head of the request, followed by the body if the body was copied */
    const char *body; /* body of the request; borrowed */
    size_t body_len;
    kvp_hostport_t at;
    uint64_t begun_ns, heard_ns;
    uint64_t connect_ns, first_ns, idle_ns; /* time limits of the call; 0 = no limit */
    progress_t progress;
    bool is_once, is_paused, is_stale;
    /* is_over NULL = the call has a client; else its client gave it up, and the call owns arg and the body (`owned`) */
    kvp_call_is_over_fn is_over;
    kvp_buf_t owned;
    int failure; /* error of libuv, which ends the call at the next tick; 0 = none */
    kvp_buf_t headers; /* headers of the answer */
};

static void start_conn(kvp_call_t *c);

/* ---- the end of calls and connections */
static void
on_closed(uv_handle_t *handle)
{
    conn_t *k = handle->data;

    uv_freeaddrinfo(k->addrs);
    free(k);
}

static void
close_conn(conn_t *k)
{
    if (k->call != NULL)
        k->call->conn = NULL;
    else if (!kvp_list_is_empty(&k->idle_link))
        k->up->idle_n--;
    k->call = NULL;
    kvp_list_del(&k->idle_link);
    kvp_list_del(&k->link);
    uv_close((uv_handle_t *)&k->tcp, on_closed);
}

static void
free_call(kvp_call_t *c)
{
    if (c->conn != NULL) close_conn(c->conn);
    if (c->lookup != NULL) {
        c->lookup->call = NULL;
        (void)uv_cancel((uv_req_t *)&c->lookup->req);
    }
    kvp_list_del(&c->link);
    kvp_buf_fini(&c->head);
    kvp_buf_fini(&c->headers);
    kvp_buf_fini(&c->owned);
    if (c->is_over != NULL) free(c->arg);
    free(c);
}

static bool
is_local(int failure)
{
    return failure == UV_EMFILE || failure == UV_ENFILE || failure == UV_ENOMEM || failure == UV_ENOBUFS ||
           /* the resolver returns EBUSY */
           failure == UV_EADDRNOTAVAIL || failure == UV_EAI_MEMORY || failure == UV_EBUSY;
}

static void
end_call(kvp_call_t *c, const char *why)
{
    const kvp_call_ops_t ops = c->ops;
    const kvp_call_fate_t fate = is_local(c->failure)         ? KVP_CALL_LOCAL
                                 : c->progress == CALL_UNSENT ? KVP_CALL_UNSENT
                                 : c->is_stale                ? KVP_CALL_STALE
                                                              : KVP_CALL_SENT;
    void *arg = c->arg;
    char text[200];

    if (why != NULL) snprintf(text, sizeof text, "%s", why);
    if (c->is_over != NULL) {
        ops.on_end(arg, why == NULL ? NULL : text, fate);
        free_call(c);
        return;
    }
    free_call(c);
    ops.on_end(arg, why == NULL ? NULL : text, fate);
}

/* Closes a connection after an error. The server may have closed a kept connection before the request arrived, so
 * such a request is sent again over a new connection. An error on a new connection ends the call. */
static void
fail_conn(conn_t *k, const char *why)
{
    kvp_call_t *c = k->call;
    const bool is_stale = c != NULL && k->was_used && c->progress < CALL_HEARD;

    close_conn(k);
    if (c == NULL) return;
    c->is_stale = is_stale && c->is_once;
    if (is_stale && !c->is_once && c->is_over == NULL)
        start_conn(c);
    else
        end_call(c, why);
}

/* ---- parsing of answers */
static int
on_begin(llhttp_t *parser)
{
    conn_t *k = parser->data;

    k->head_len = 0;
    kvp_buf_reset(&k->call->headers);
    return 0;
}

/* Receives a part of a header's name or value. Headers in the trailer of a chunked body are ignored. */
static int
on_header(llhttp_t *parser, const char *at, size_t len)
{
    conn_t *k = parser->data;

    k->head_len += (uint32_t)len;
    if (k->call->progress < CALL_HEAD) kvp_buf_append(&k->call->headers, at, len);
    return k->head_len > HEAD_MAX || k->call->headers.err != KVP_OK ? -1 : 0;
}

static int
on_header_end(llhttp_t *parser)
{
    return on_header(parser, "", 1);
}

static int
on_head(llhttp_t *parser)
{
    conn_t *k = parser->data;
    kvp_call_t *c = k->call;

    if (parser->status_code < 200) { /* an informational answer (1xx) is skipped; the final answer follows */
        const bool has_body = parser->content_length > 0 || (parser->flags & F_TRANSFER_ENCODING) != 0;

        return parser->status_code == 101 || has_body ? -1 : 0;
    }
    c->progress = CALL_HEAD;
    c->ops.on_head(c->arg, parser->status_code, kvp_headers_find(&c->headers, "Content-Type"),
                   (parser->flags & F_CONTENT_LENGTH) != 0 ? (int64_t)parser->content_length : -1);
    return 0;
}

static int
on_body(llhttp_t *parser, const char *at, size_t len)
{
    conn_t *k = parser->data;
    kvp_call_t *c = k->call;

    c->progress = CALL_BODY;
    if (!c->ops.on_bytes(c->arg, at, len)) {
        c->is_paused = true;
        uv_read_stop((uv_stream_t *)&k->tcp);
    }
    return 0;
}

static int
on_whole(llhttp_t *parser)
{
    conn_t *k = parser->data;

    if (parser->status_code < 200) return 0; /* an informational answer (1xx) is skipped; the final one follows */
    k->has_answer = true;
    return HPE_PAUSED;
}

/* ---- connections to servers */
static void
keep_conn(conn_t *k)
{
    kvp_upstream_t *up = k->up;

    k->was_used = true;
    k->idle_ns = kvp_now_ns();
    kvp_list_add_head(&up->idle, &k->idle_link);
    if (++up->idle_n > IDLE_MAX) close_conn(kvp_list_entry(up->idle.prev, conn_t, idle_link));
}

static void
take_answer(conn_t *k, bool may_keep)
{
    kvp_call_t *c = k->call;

    c->conn = NULL;
    k->call = NULL;
    if (may_keep)
        keep_conn(k);
    else
        close_conn(k);
    end_call(c, NULL);
}

static void
on_room(uv_handle_t *handle, size_t wanted, uv_buf_t *buf)
{
    conn_t *k = handle->data;

    (void)wanted;
    *buf = uv_buf_init(k->up->bytes, READ_BYTES);
}

/* Returns the error of the socket at the end of a stream. If bytes arrived just before the peer's reset, libuv
 * reports only the end. An answer without a length would then look complete. */
static ssize_t
error_behind_end(uv_stream_t *stream)
{
    socklen_t len = sizeof(int);
    uv_os_fd_t fd;
    int error = 0;

    if (uv_fileno((uv_handle_t *)stream, &fd) != 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        return UV_EOF;
    return error == ECONNRESET || error == ETIMEDOUT ? uv_translate_sys_error(error) : UV_EOF;
}

static void
on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    conn_t *k = stream->data;
    llhttp_errno_t err;
    bool may_keep;

    if (n == 0) return;
    if (n == UV_EOF) n = error_behind_end(stream);
    if (k->call == NULL || (n < 0 && n != UV_EOF)) { /* closes an idle connection that is not silent, or a broken one */
        fail_conn(k, n < 0 ? uv_strerror((int)n) : "it says something unasked");
        return;
    }
    k->call->heard_ns = kvp_now_ns();
    if (n > 0 && k->call->progress < CALL_HEARD) k->call->progress = CALL_HEARD;
    if (k->call->is_over != NULL) {
        end_call(k->call, n > 0 ? NULL : "it closed the connection");
        return;
    }
    err = n > 0 ? llhttp_execute(&k->parser, buf->base, (size_t)n) : llhttp_finish(&k->parser);
    if (k->has_answer) {
        may_keep = n > 0 && llhttp_should_keep_alive(&k->parser) && llhttp_get_error_pos(&k->parser) == buf->base + n &&
                   !k->call->is_paused && uv_stream_get_write_queue_size(stream) == 0;
        take_answer(k, may_keep);
    } else if (n == UV_EOF) {
        fail_conn(k, k->call->progress >= CALL_HEAD ? "it closed the connection within its answer"
                                                    : "it closed the connection");
    } else if (err != HPE_OK) {
        fail_conn(k, llhttp_get_error_reason(&k->parser)[0] != '\0' ? llhttp_get_error_reason(&k->parser)
                                                                    : llhttp_errno_name(err));
    }
}

static void
send_call(conn_t *k)
{
    kvp_call_t *c = k->call;
    uv_stream_t *stream = (uv_stream_t *)&k->tcp;
    uv_buf_t bufs[2] = {uv_buf_init((char *)c->head.data, (unsigned)c->head.len),
                        uv_buf_init((char *)c->body, (unsigned)c->body_len)};
    const unsigned n = c->body_len > 0 ? 2 : 1;
    int sent;

    /* CALL_SENT is set before the check of is_over: a connection was made, so the server has not failed, even if the
     * request is not sent */
    c->progress = CALL_SENT;
    if (c->is_over != NULL) {
        end_call(c, "the connection was made after the client had gone");
        return;
    }
    llhttp_init(&k->parser, HTTP_RESPONSE, &k->up->settings);
    k->parser.data = k;
    k->has_answer = false;
    sent = uv_try_write(stream, bufs, n);
    if (sent < 0) sent = 0; /* a write error is ignored here, because the next read of the connection reports it */
    if ((size_t)sent < c->head.len + c->body_len) {
        for (unsigned i = 0; i < n; i++) {
            const unsigned cut = (unsigned)kvp_min_u64((uint64_t)sent, bufs[i].len);

            bufs[i] = uv_buf_init(bufs[i].base + cut, (unsigned)bufs[i].len - cut);
            sent -= (int)cut;
        }
        c->failure = uv_write(&k->writing, stream, bufs, n, NULL);
    }
    if (!k->was_used) (void)uv_read_start(stream, on_room, on_read); /* a reused connection is already being read */
}

static void try_addr(kvp_call_t *c, struct addrinfo *addrs, struct addrinfo *addr);

static void
on_connected(uv_connect_t *connect, int status)
{
    conn_t *k = connect->data;
    struct addrinfo *addrs = k->addrs, *next = k->addr->ai_next;
    kvp_call_t *c = k->call;
    char place[KVP_HOSTPORT_TEXT_MAX], text[sizeof place + 100];

    if (c == NULL) return; /* the call has ended meanwhile, so its connection is already being closed */
    if (status == 0) {
        (void)uv_tcp_nodelay(&k->tcp, 1);
        send_call(k);
    } else if (next != NULL) {
        k->addrs = NULL;
        close_conn(k);
        try_addr(c, addrs, next);
    } else {
        snprintf(text, sizeof text, "no connection to %s: %s", kvp_format_hostport(&c->at, place), uv_strerror(status));
        fail_conn(k, text);
    }
}

static bool
close_oldest_idle(kvp_upstream_t *up)
{
    if (kvp_list_is_empty(&up->idle)) return false;
    close_conn(kvp_list_entry(up->idle.prev, conn_t, idle_link));
    return true;
}

/* Connects the call to the address `addr` of the list `addrs`. The new connection object frees the list. */
static void
try_addr(kvp_call_t *c, struct addrinfo *addrs, struct addrinfo *addr)
{
    conn_t *k = calloc(1, sizeof *k);

    if (k == NULL || uv_tcp_init(c->up->uv, &k->tcp) != 0) {
        free(k);
        uv_freeaddrinfo(addrs);
        c->failure = UV_ENOMEM;
        return;
    }
    k->up = c->up;
    k->tcp.data = k->connecting.data = k;
    k->addrs = addrs;
    k->addr = addr;
    kvp_list_init(&k->idle_link);
    kvp_list_init(&k->link);
    kvp_list_add_tail(&c->up->conns, &k->link);
    k->at = c->at;
    k->call = c;
    c->conn = k;
    do
        c->failure = uv_tcp_connect(&k->connecting, &k->tcp, addr->ai_addr, on_connected);
    while (c->failure == UV_EMFILE && close_oldest_idle(c->up));
    if (c->failure == 0 || addr->ai_next == NULL) return;
    k->addrs = NULL;
    close_conn(k);
    try_addr(c, addrs, addr->ai_next);
}

static bool
has_descriptor(void)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* Continues the call when its name is resolved. A resolver without a free descriptor returns various errors, so a
 * lack of descriptors is checked separately. */
static void
on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *found)
{
    lookup_t *lookup = req->data;
    kvp_call_t *c = lookup->call;

    free(lookup);
    if (c == NULL) {
        uv_freeaddrinfo(found);
        return;
    }
    c->lookup = NULL;
    if (status == 0)
        try_addr(c, found, found);
    else
        c->failure = has_descriptor() ? status : UV_EMFILE;
}

/* Starts a new connection for the call. A numeric address is used at once. A name is resolved in another thread,
 * because that may take long. */
static void
start_conn(kvp_call_t *c)
{
    static const struct addrinfo any = {.ai_socktype = SOCK_STREAM},
                                 number = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found;
    char port[8];

    snprintf(port, sizeof port, "%u", c->at.port);
    if (getaddrinfo(c->at.host, port, &number, &found) == 0) {
        try_addr(c, found, found);
        return;
    }
    c->lookup = calloc(1, sizeof *c->lookup);
    if (c->lookup == NULL) {
        c->failure = UV_ENOMEM;
        return;
    }
    c->lookup->call = c;
    c->lookup->req.data = c->lookup;
    c->failure = uv_getaddrinfo(c->up->uv, &c->lookup->req, on_resolved, c->at.host, port, &any);
    if (c->failure == 0) return;
    free(c->lookup);
    c->lookup = NULL;
}

static conn_t *
find_idle(kvp_upstream_t *up, const kvp_hostport_t *at)
{
    kvp_list_foreach (pos, &up->idle) {
        conn_t *k = kvp_list_entry(pos, conn_t, idle_link);

        if (k->at.port == at->port && strcmp(k->at.host, at->host) == 0) return k;
    }
    return NULL;
}

/* ---- time limits */
/* Returns why the call must end now: a failure, a check that the server answered, or a time limit; NULL = no reason. */
static const char *
find_late(const kvp_call_t *c, uint64_t now_ns)
{
    if (c->failure != 0) return uv_strerror(c->failure);
    if (c->is_over != NULL && c->is_over(c->arg)) return "the server has answered a check";
    if (c->is_paused) return NULL;
    if (c->progress == CALL_UNSENT && c->connect_ns != 0 && now_ns - c->begun_ns > c->connect_ns)
        return "no connection could be made in time";
    /* first_ms covers the head and the first body byte, because a stream's head may arrive long before its first
     * event */
    if (c->progress < CALL_BODY)
        return c->first_ns != 0 && now_ns - c->begun_ns > c->first_ns ? "it did not answer in time" : NULL;
    return c->idle_ns != 0 && now_ns - c->heard_ns > c->idle_ns ? "it fell silent" : NULL;
}

/* Ends one call for which find_late returns a reason. Returns false if no call must end. */
static bool
end_late(kvp_upstream_t *up)
{
    const uint64_t now_ns = kvp_now_ns();

    kvp_list_foreach (pos, &up->calls) {
        kvp_call_t *c = kvp_list_entry(pos, kvp_call_t, link);
        const char *why = find_late(c, now_ns);

        if (why == NULL) continue;
        end_call(c, why); /* the callback may end and start calls, so the iteration must begin again */
        return true;
    }
    return false;
}

static void
on_tick(uv_timer_t *timer)
{
    kvp_upstream_t *up = timer->data;

    while (end_late(up))
        continue;
    while (!kvp_list_is_empty(&up->idle)) {
        conn_t *k = kvp_list_entry(up->idle.prev, conn_t, idle_link);

        if (kvp_now_ns() - k->idle_ns < IDLE_NS) break;
        close_conn(k);
    }
}

/* ---- starting and ending calls */
static void
write_head(kvp_call_t *c, const kvp_call_conf_t *conf, const char *path)
{
    char place[KVP_HOSTPORT_TEXT_MAX], text[2048];
    int n = snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\n", conf->is_get ? "GET" : "POST",
                     path[0] == '\0' ? "/" : path, kvp_format_hostport(&c->at, place));

    kvp_buf_append(&c->head, text, (size_t)n);
    for (const char *const *h = conf->headers; h != NULL && *h != NULL; h++) {
        kvp_buf_append(&c->head, *h, strlen(*h));
        kvp_buf_append(&c->head, "\r\n", 2);
    }
    n = conf->is_get ? snprintf(text, sizeof text, "\r\n")
                     : snprintf(text, sizeof text, "Content-Length: %zu\r\n\r\n", conf->body_len);
    kvp_buf_append(&c->head, text, (size_t)n);
    if (conf->copies_body)
        kvp_buf_append(&c->head, conf->body, conf->body_len);
    else if (!conf->is_get)
        c->body = conf->body;
    c->body_len = c->body == NULL ? 0 : conf->body_len;
}

kvp_call_t *
kvp_upstream_start(kvp_upstream_t *up, const kvp_call_conf_t *conf, const kvp_call_ops_t *ops, void *arg)
{
    kvp_call_t *c = calloc(1, sizeof *c);
    const char *path;

    if (c == NULL) return NULL;
    if (kvp_url_split(conf->url, &c->at, &path) != KVP_OK) {
        free(c);
        return NULL;
    }
    kvp_list_init(&c->link);
    kvp_buf_init(&c->head, 0);
    c->up = up;
    c->ops = *ops;
    c->arg = arg;
    c->is_once = conf->is_once;
    c->begun_ns = c->heard_ns = kvp_now_ns();
    c->connect_ns = conf->connect_ms * KVP_NS_PER_MS;
    c->first_ns = conf->first_ms * KVP_NS_PER_MS;
    c->idle_ns = conf->idle_ms * KVP_NS_PER_MS;
    write_head(c, conf, path);
    if (c->head.err != KVP_OK) {
        kvp_buf_fini(&c->head);
        free(c);
        return NULL;
    }
    kvp_list_add_tail(&up->calls, &c->link);
    c->conn = conf->wants_new ? NULL : find_idle(up, &c->at);
    if (c->conn == NULL) {
        start_conn(c);
        return c;
    }
    kvp_list_del(&c->conn->idle_link);
    up->idle_n--;
    c->conn->call = c;
    send_call(c->conn);
    return c;
}

const kvp_buf_t *
kvp_call_headers(const kvp_call_t *c)
{
    return &c->headers;
}

void
kvp_call_resume(kvp_call_t *c)
{
    if (!c->is_paused) return;
    c->is_paused = false;
    c->heard_ns = kvp_now_ns();
    if (c->conn != NULL) (void)uv_read_start((uv_stream_t *)&c->conn->tcp, on_room, on_read);
}

void
kvp_call_cancel(kvp_call_t *c)
{
    free_call(c);
}

static void
on_shutdown(uv_shutdown_t *ending, int status)
{
    (void)ending;
    (void)status; /* a failed shutdown is ignored, because the next read of the connection reports the reason */
}

bool
kvp_call_is_unanswered(const kvp_call_t *c)
{
    return c->progress < CALL_HEARD;
}

void
kvp_call_give_up(kvp_call_t *c, kvp_buf_t *body, kvp_call_is_over_fn is_over, kvp_call_on_end_fn on_end, void *arg)
{
    c->is_over = is_over;
    c->ops.on_end = on_end;
    c->arg = arg;
    c->owned = *body; /* the call owns the body from now on, because some of its bytes may not be sent yet */
    *body = (kvp_buf_t){0};
    if (c->progress >= CALL_SENT && c->conn != NULL)
        (void)uv_shutdown(&c->conn->ending, (uv_stream_t *)&c->conn->tcp, on_shutdown);
}

/* ---- creation and destruction */
kvp_err_t
kvp_upstream_create(uv_loop_t *uv, kvp_upstream_t **out)
{
    kvp_upstream_t *up = calloc(1, sizeof *up);

    if (up == NULL) return KVP_NOMEM;
    up->uv = uv;
    kvp_list_init(&up->calls);
    kvp_list_init(&up->conns);
    kvp_list_init(&up->idle);
    llhttp_settings_init(&up->settings);
    up->settings.on_message_begin = on_begin;
    up->settings.on_header_field = up->settings.on_header_value = on_header;
    up->settings.on_header_field_complete = up->settings.on_header_value_complete = on_header_end;
    up->settings.on_headers_complete = on_head;
    up->settings.on_body = on_body;
    up->settings.on_message_complete = on_whole;
    up->tick.data = up;
    (void)uv_timer_init(uv, &up->tick);
    (void)uv_timer_start(&up->tick, on_tick, TICK_MS, TICK_MS);
    *out = up;
    return KVP_OK;
}

void
kvp_upstream_close(kvp_upstream_t *up)
{
    while (!kvp_list_is_empty(&up->calls))
        free_call(kvp_list_first(&up->calls, kvp_call_t, link));
    while (!kvp_list_is_empty(&up->conns))
        close_conn(kvp_list_first(&up->conns, conn_t, link));
    uv_close((uv_handle_t *)&up->tick, NULL);
}

void
kvp_upstream_destroy(kvp_upstream_t *up)
{
    free(up);
}
