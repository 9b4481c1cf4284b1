/* SPDX-License-Identifier: Apache-2.0
 * See upstream.h. Source of the way in which libcurl and libuv go together: libcurl's manual, curl_multi_socket_action.
 */
#include "conductor/proxy/upstream.h"

#include "common/clock.h"
#include "common/list.h"
#include "common/log.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SPARE_MAX 256u /* easy handles that are kept */
#define CONNECTS_MAX 4096L /* connections that are kept */
#define TICK_MS 50u

struct kvp_upstream {
    uv_loop_t *uv;
    CURLM *multi;
    uv_timer_t timeout; /* libcurl's */
    uv_timer_t tick; /* for deadlines of first bytes */
    kvp_list_t calls;
    CURL *spare[SPARE_MAX];
    uint32_t spare_n;
    struct socket **opened; /* by descriptor; NULL = none of ours */
    uint32_t opened_cap;
};

struct kvp_call {
    kvp_list_t link; /* upstream->calls */
    kvp_upstream_t *up;
    CURL *easy;
    struct curl_slist *headers;
    kvp_call_ops_t ops;
    void *arg;
    uint64_t begun_ns, heard_ns;
    uint64_t first_ns, idle_ns; /* 0 = any */
    bool was_sent, has_head, has_bytes, is_paused;
    char error[CURL_ERROR_SIZE];
};

/* A connection's is watched from its first use until it is closed, because to begin and to end that are two calls of the kernel for each request. libcurl closes the descriptors that its
 * resolver waits for without a word; those are watched only while it says so. */
typedef struct socket {
    uv_poll_t poll;
    kvp_upstream_t *up;
    curl_socket_t socket;
    bool is_connection, is_idle; /* idle: libcurl does not wait for it */
    int events; /* that are watched; 0 = none */
} socket_t;

/* ---- the end of a call */
static void
free_call(kvp_call_t *c)
{
    kvp_upstream_t *up = c->up;

    kvp_list_del(&c->link);
    curl_multi_remove_handle(up->multi, c->easy);
    if (up->spare_n < SPARE_MAX) {
        up->spare[up->spare_n++] = c->easy;
    } else {
        curl_easy_cleanup(c->easy);
    }
    curl_slist_free_all(c->headers);
    free(c);
}

static void
end_call(kvp_call_t *c, const char *why)
{
    const kvp_call_ops_t ops = c->ops;
    const bool was_sent = c->was_sent;
    void *arg = c->arg;
    char text[CURL_ERROR_SIZE];

    if (why != NULL) {
        snprintf(text, sizeof text, "%s", why);
        why = text;
    }
    free_call(c);
    ops.on_end(arg, why, was_sent);
}

static void
tell_head(kvp_call_t *c)
{
    curl_off_t length = -1;
    const char *type = NULL;
    long status = 0;

    if (c->has_head) return;
    c->has_head = true;
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(c->easy, CURLINFO_CONTENT_TYPE, &type);
    curl_easy_getinfo(c->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    c->ops.on_head(c->arg, (uint32_t)status, type, length);
}

static void
take_ended(kvp_upstream_t *up)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(up->multi, &left)) != NULL) {
        const CURLcode code = message->data.result;
        kvp_call_t *c;

        if (message->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &c);
        if (code == CURLE_OK) tell_head(c); /* a body of nothing */
        end_call(c, code == CURLE_OK ? NULL : c->error[0] != '\0' ? c->error : curl_easy_strerror(code));
    }
}

/* ---- what libcurl calls */
/* Before it sends a request: perhaps a second time, where a connection that was kept has died under the first. */
static int
on_connected(void *arg, char *ip, char *own_ip, int port, int own_port)
{
    kvp_call_t *c = arg;

    (void)ip;
    (void)own_ip;
    (void)port;
    (void)own_port;
    c->was_sent = true;
    return CURL_PREREQFUNC_OK;
}

static size_t
on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    kvp_call_t *c = arg;

    c->heard_ns = kvp_now_ns();
    c->has_bytes = true;
    tell_head(c);
    if (c->ops.on_bytes(c->arg, bytes, size * n)) return size * n;
    c->is_paused = true;
    return CURL_WRITEFUNC_PAUSE;
}

/* The end of the headers: a stream's first bytes may be long in coming. Those of an interim answer are none. */
static size_t
on_header(char *bytes, size_t size, size_t n, void *arg)
{
    kvp_call_t *c = arg;
    long status = 0;

    c->heard_ns = kvp_now_ns();
    if (size * n <= 2 && (bytes[0] == '\r' || bytes[0] == '\n')) {
        curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
        if (status >= 200) tell_head(c);
    }
    return size * n;
}

static void
act(kvp_upstream_t *up, curl_socket_t socket, int events)
{
    int running;

    curl_multi_socket_action(up->multi, socket, events, &running);
    take_ended(up);
}

static void
on_socket_event(uv_poll_t *poll, int status, int events)
{
    socket_t *s = poll->data;
    const int flags = status < 0 ? CURL_CSELECT_ERR
                                 : ((events & UV_READABLE) != 0 ? CURL_CSELECT_IN : 0) |
                                       ((events & UV_WRITABLE) != 0 ? CURL_CSELECT_OUT : 0);

    if (!s->is_idle) {
        act(s->up, s->socket, flags);
        return;
    }
    uv_poll_stop(poll); /* its server has closed it: libcurl sees that before it uses it again */
    s->events = 0;
}

static void
on_socket_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static socket_t *
add_socket(kvp_upstream_t *up, curl_socket_t fd)
{
    socket_t *s = calloc(1, sizeof *s);

    if (s == NULL || uv_poll_init_socket(up->uv, &s->poll, fd) != 0) {
        free(s);
        return NULL;
    }
    s->poll.data = s;
    s->up = up;
    s->socket = fd;
    return s;
}

static socket_t *
opened(const kvp_upstream_t *up, curl_socket_t fd)
{
    return (uint32_t)fd < up->opened_cap ? up->opened[fd] : NULL;
}

static curl_socket_t
open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *addr)
{
    kvp_upstream_t *up = arg;
    const int fd = socket(addr->family, addr->socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, addr->protocol);
    socket_t *s;

    (void)purpose;
    if (fd < 0) return CURL_SOCKET_BAD;
    if ((uint32_t)fd >= up->opened_cap) {
        const uint32_t cap = (uint32_t)fd * 2 + 64;
        socket_t **more = realloc(up->opened, cap * sizeof *more);

        if (more != NULL) {
            memset(more + up->opened_cap, 0, (cap - up->opened_cap) * sizeof *more);
            up->opened = more;
            up->opened_cap = cap;
        }
    }
    s = (uint32_t)fd < up->opened_cap ? add_socket(up, fd) : NULL;
    if (s == NULL) {
        close(fd);
        return CURL_SOCKET_BAD;
    }
    s->is_connection = s->is_idle = true;
    up->opened[fd] = s;
    return fd;
}

static int
close_socket(void *arg, curl_socket_t fd)
{
    kvp_upstream_t *up = arg;

    uv_close((uv_handle_t *)&up->opened[fd]->poll, on_socket_closed);
    up->opened[fd] = NULL;
    return close(fd);
}

static int
watch_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *own)
{
    kvp_upstream_t *up = arg;
    socket_t *s = own != NULL ? own : opened(up, fd);
    const int events = ((what & CURL_POLL_IN) != 0 ? UV_READABLE : 0) | ((what & CURL_POLL_OUT) != 0 ? UV_WRITABLE : 0);

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (s != NULL && s->is_connection)
            s->is_idle = true;
        else if (s != NULL)
            uv_close((uv_handle_t *)&s->poll, on_socket_closed);
        return 0;
    }
    if (s == NULL && (s = add_socket(up, fd)) == NULL) return -1;
    s->is_idle = false;
    if (own == NULL) curl_multi_assign(up->multi, fd, s);
    if (s->events == events) return 0;
    s->events = events;
    return uv_poll_start(&s->poll, events, on_socket_event) == 0 ? 0 : -1;
}

static void
on_timeout(uv_timer_t *timer)
{
    act(timer->data, CURL_SOCKET_TIMEOUT, 0);
}

static int
set_timeout(CURLM *multi, long ms, void *arg)
{
    kvp_upstream_t *up = arg;

    (void)multi;
    if (ms < 0)
        uv_timer_stop(&up->timeout);
    else
        uv_timer_start(&up->timeout, on_timeout, (uint64_t)ms, 0);
    return 0;
}

/* ---- deadlines */
/* NULL: it is not. */
static const char *
late(const kvp_call_t *c, uint64_t now_ns)
{
    if (c->is_paused) return NULL;
    if (!c->has_bytes) /* the head of a stream says nothing of how long the first event will take */
        return c->first_ns != 0 && now_ns - c->begun_ns > c->first_ns ? "it did not answer in time" : NULL;
    return c->idle_ns != 0 && now_ns - c->heard_ns > c->idle_ns ? "it fell silent" : NULL;
}

/* False: none is late any more. */
static bool
end_late(kvp_upstream_t *up)
{
    const uint64_t now_ns = kvp_now_ns();

    kvp_list_foreach (pos, &up->calls) {
        kvp_call_t *c = kvp_list_entry(pos, kvp_call_t, link);
        const char *why = late(c, now_ns);

        if (why == NULL) continue;
        end_call(c, why); /* others may go with it, and new ones come */
        return true;
    }
    return false;
}

static void
on_tick(uv_timer_t *timer)
{
    while (end_late(timer->data))
        continue;
}

/* ---- calls */
static void
set_long(CURL *easy, CURLoption option, long value)
{
    if (curl_easy_setopt(easy, option, value) != CURLE_OK) kvp_panic("proxy: curl option %d", option);
}

/* What all calls have alike. */
static CURL *
make_easy(kvp_upstream_t *up)
{
    CURL *easy = curl_easy_init();

    if (easy == NULL) return NULL;
    curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, on_connected);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, up);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, up);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    set_long(easy, CURLOPT_NOSIGNAL, 1);
    set_long(easy, CURLOPT_TCP_NODELAY, 1);
    set_long(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    return easy;
}

kvp_call_t *
kvp_upstream_start(kvp_upstream_t *up, const kvp_call_conf_t *conf, const kvp_call_ops_t *ops, void *arg)
{
    kvp_call_t *c = calloc(1, sizeof *c);
    CURL *easy;

    if (c == NULL) return NULL;
    easy = up->spare_n > 0 ? up->spare[--up->spare_n] : make_easy(up);
    if (easy == NULL) {
        free(c);
        return NULL;
    }
    kvp_list_init(&c->link);
    c->up = up;
    c->easy = easy;
    c->ops = *ops;
    c->arg = arg;
    c->begun_ns = c->heard_ns = kvp_now_ns();
    c->first_ns = conf->first_ms * KVP_NS_PER_MS;
    c->idle_ns = conf->idle_ms * KVP_NS_PER_MS;
    for (const char *const *h = conf->headers; h != NULL && *h != NULL; h++)
        c->headers = curl_slist_append(c->headers, *h);
    c->headers = curl_slist_append(c->headers, "Expect:");
    curl_easy_setopt(easy, CURLOPT_URL, conf->url);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, c);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, c->error);
    curl_easy_setopt(easy, CURLOPT_PREREQDATA, c);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, c);
    set_long(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)conf->connect_ms);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)conf->body_len);
    curl_easy_setopt(easy, conf->copies_body ? CURLOPT_COPYPOSTFIELDS : CURLOPT_POSTFIELDS,
                     conf->is_get         ? NULL
                     : conf->body == NULL ? ""
                                          : conf->body);
    set_long(easy, conf->is_get ? CURLOPT_HTTPGET : CURLOPT_POST, 1);
    kvp_list_add_tail(&up->calls, &c->link);
    if (curl_multi_add_handle(up->multi, easy) == CURLM_OK) return c;
    free_call(c);
    return NULL;
}

void
kvp_call_resume(kvp_call_t *c)
{
    if (!c->is_paused) return;
    c->is_paused = false;
    c->heard_ns = kvp_now_ns();
    curl_easy_pause(c->easy, CURLPAUSE_CONT); /* may call back at once */
}

void
kvp_call_cancel(kvp_call_t *c)
{
    free_call(c);
}

/* ---- life */
kvp_err_t
kvp_upstream_create(uv_loop_t *uv, kvp_upstream_t **out)
{
    kvp_upstream_t *up = calloc(1, sizeof *up);

    if (up == NULL) return KVP_NOMEM;
    up->uv = uv;
    kvp_list_init(&up->calls);
    up->multi = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? curl_multi_init() : NULL;
    if (up->multi == NULL) {
        free(up);
        return KVP_NOMEM;
    }
    curl_multi_setopt(up->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    curl_multi_setopt(up->multi, CURLMOPT_SOCKETDATA, up);
    curl_multi_setopt(up->multi, CURLMOPT_TIMERFUNCTION, set_timeout);
    curl_multi_setopt(up->multi, CURLMOPT_TIMERDATA, up);
    curl_multi_setopt(up->multi, CURLMOPT_MAXCONNECTS, CONNECTS_MAX);
    up->timeout.data = up->tick.data = up;
    (void)uv_timer_init(uv, &up->timeout);
    (void)uv_timer_init(uv, &up->tick);
    (void)uv_timer_start(&up->tick, on_tick, TICK_MS, TICK_MS);
    *out = up;
    return KVP_OK;
}

void
kvp_upstream_close(kvp_upstream_t *up)
{
    if (up == NULL || up->multi == NULL) return;
    while (!kvp_list_is_empty(&up->calls))
        free_call(kvp_list_first(&up->calls, kvp_call_t, link));
    while (up->spare_n > 0)
        curl_easy_cleanup(up->spare[--up->spare_n]);
    curl_multi_cleanup(up->multi); /* closes the connections that it keeps */
    up->multi = NULL;
    uv_close((uv_handle_t *)&up->timeout, NULL);
    uv_close((uv_handle_t *)&up->tick, NULL);
    curl_global_cleanup();
}

void
kvp_upstream_destroy(kvp_upstream_t *up)
{
    if (up != NULL) free(up->opened);
    free(up);
}
