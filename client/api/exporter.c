/* SPDX-License-Identifier: Apache-2.0
 * Design notes. The library does not link the daemons' HTTP server, whose libraries would come into every engine. This
 * port answers GET and HEAD of /metrics alone. A connection has one request, ends after LIFE_NS, and gives its place to
 * a new one when all places are taken. So a peer that sends nothing keeps no other one from its answer. */
#include "client/api/exporter.h"

#include "common/http_guard.h"
#include "common/log.h"
#include "common/process.h"
#include "common/thread.h"
#include "net/wake.h"
#include "transport/tcp/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#define PLACES 8u
#define REQUEST_MAX 4096u
#define TEXT_MAX (1u << 20)
#define LIFE_NS (2 * KVP_NS_PER_S)
/* pause after a failed accept, for example when the process has no descriptor left */
#define ACCEPT_PAUSE_NS (100 * KVP_NS_PER_MS)

/* A connection. It reads the request, sends the answer, and then reads and drops bytes until the peer closes. */
typedef struct {
    int fd; /* -1 = the place is free */
    uint64_t until_ns;
    size_t in_len, sent;
    kvp_buf_t out; /* the answer; empty until the whole request was read */
    char in[REQUEST_MAX + 1];
} place_t;

struct kvp_exporter {
    pthread_t thread;
    int listen_fd, wake_fd;
    _Atomic bool is_stopping;
    bool is_loopback;
    char at[KVP_HOSTPORT_TEXT_MAX];
    kvp_metrics_t *metrics;
    place_t places[PLACES];
};

/* ---- the metrics */
static double
read_counter(void *arg)
{
    return (double)atomic_load_explicit((const _Atomic uint64_t *)arg, memory_order_relaxed);
}

static double
read_one(void *arg)
{
    (void)arg;
    return 1;
}

static kvp_err_t
add_transport(kvp_metrics_t *m, const char *transport, kvp_path_counters_t *p)
{
    const struct {
        const char *name, *help;
        _Atomic uint64_t *at;
    } counters[] = {
        {"kvpool_client_reads_total", "objects read", &p->reads},
        {"kvpool_client_read_bytes_total", "bytes of the objects read", &p->read_bytes},
        {"kvpool_client_writes_total", "objects written, once for each copy", &p->writes},
        {"kvpool_client_written_bytes_total", "bytes of the objects written", &p->write_bytes},
    };
    char labels[64];
    kvp_err_t err = KVP_OK;

    snprintf(labels, sizeof labels, "transport=\"%s\"", transport);
    for (size_t i = 0; i < KVP_ARRAY_LEN(counters) && err == KVP_OK; i++)
        err = kvp_metrics_counter_fn(m, counters[i].name, labels, counters[i].help, read_counter, counters[i].at);
    return err;
}

static kvp_err_t
add_metrics(kvp_metrics_t *m, kvpool_t *pool)
{
    const kvp_peers_conf_t *conf = &kvp_session_conf(pool->session)->peers;
    char name[2 * KVP_NAME_MAX + 1], labels[2 * KVP_NAME_MAX + 16];
    kvp_err_t err = kvp_process_add(m);

    snprintf(labels, sizeof labels, "name=\"%s\"", kvp_metrics_escape(conf->name, name, sizeof name));
    if (err == KVP_OK)
        err = kvp_metrics_gauge_fn(m, "kvpool_client_info", labels, "1, with the name of the handle as a label",
                                   read_one, NULL);
#define ADD_COUNTER(field, help)                                                                                       \
    if (err == KVP_OK)                                                                                                 \
        err = kvp_metrics_counter_fn(m, "kvpool_client_" #field "_total", NULL, help, read_counter,                    \
                                     &pool->counters.field);
    KVP_CLIENT_COUNTERS(ADD_COUNTER)
#undef ADD_COUNTER
    for (size_t i = 0; i < conf->transports_n && err == KVP_OK; i++)
        err = add_transport(m, conf->transports[i]->name, &pool->counters.paths[i]);
    for (size_t i = 0; i < KVP_CALLS_N && err == KVP_OK; i++) {
        snprintf(labels, sizeof labels, "call=\"%s\"", kvp_call_names[i]);
        err = kvp_metrics_histogram_at(m, "kvpool_client_call_seconds", labels, "time of a call, of all its keys", 1e-9,
                                       &pool->calls_ns[i]);
    }
    return err;
}

/* ---- requests */
/* Passes the headers to http_guard, and returns its result. Cuts `line` at its line ends; an empty line ends the
 * request. */
static const char *
check_headers(char *line, bool is_loopback)
{
    kvp_http_guard_t guard = {0};

    while (strncmp(line, "\r\n", 2) != 0) {
        char *end = strstr(line, "\r\n"), *colon;

        *end = '\0';
        colon = strchr(line, ':');
        if (colon != NULL) {
            *colon = '\0';
            kvp_http_guard_header(&guard, line, colon + 1);
        }
        line = end + 2;
    }
    return kvp_http_guard_check(&guard, is_loopback, false);
}

const char *
kvp_exporter_judge(char *in, bool is_loopback, bool *is_head_out, const char **why_out)
{
    char *rest = strstr(in, "\r\n");
    char *path, *version;

    *rest = '\0';
    path = strchr(in, ' ');
    version = path == NULL ? NULL : strchr(path + 1, ' ');
    if (version == NULL || strncmp(version, " HTTP/1.", 8) != 0) {
        *why_out = "the request is not HTTP/1.1";
        return "400 Bad Request";
    }
    *path++ = *version = '\0';
    *why_out = check_headers(rest + 2, is_loopback);
    if (*why_out != NULL) return "403 Forbidden";
    *is_head_out = strcmp(in, "HEAD") == 0;
    *why_out = "this port has GET /metrics alone";
    if (strcmp(path, "/metrics") != 0) return "404 Not Found";
    if (!*is_head_out && strcmp(in, "GET") != 0) return "405 Method Not Allowed";
    return NULL;
}

static void
write_answer(const kvp_exporter_t *x, place_t *p, const char *failure, bool is_head, const char *why)
{
    kvp_buf_t body;
    char head[256];
    int n;

    kvp_buf_init(&body, TEXT_MAX);
    if (failure == NULL) {
        kvp_metrics_render(x->metrics, &body);
    } else {
        kvp_buf_append(&body, why, strlen(why));
        kvp_buf_append(&body, "\n", 1);
    }
    if (body.err != KVP_OK) failure = "503 Service Unavailable";
    n = snprintf(head, sizeof head,
                 "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %zu\r\n"
                 "Connection: close\r\n\r\n",
                 failure == NULL ? "200 OK" : failure, body.len);
    kvp_buf_append(&p->out, head, (size_t)n);
    if (!is_head) kvp_buf_append(&p->out, body.data, body.len);
    kvp_buf_fini(&body);
}

/* ---- connections */
static void
end_place(place_t *p)
{
    kvp_forkguard_close(p->fd);
    kvp_buf_fini(&p->out);
    p->fd = -1;
}

static void
accept_one(kvp_exporter_t *x)
{
    place_t *p = &x->places[0];
    const int fd = accept4(x->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) {
        if (errno != EAGAIN) nanosleep(&(struct timespec){.tv_nsec = ACCEPT_PAUSE_NS}, NULL);
        return;
    }
    kvp_forkguard_add(fd);
    for (size_t i = 0; i < PLACES && p->fd >= 0; i++)
        if (x->places[i].fd < 0 || x->places[i].until_ns < p->until_ns) p = &x->places[i];
    if (p->fd >= 0) end_place(p);
    p->fd = fd;
    p->until_ns = kvp_now_ns() + LIFE_NS;
    p->in_len = p->sent = 0;
    kvp_buf_init(&p->out, 0);
}

/* Reads more of the request. Returns false if the connection ended. */
static bool
read_request(const kvp_exporter_t *x, place_t *p)
{
    const ssize_t n = recv(p->fd, p->in + p->in_len, REQUEST_MAX - p->in_len, 0);
    const char *failure = NULL, *why = NULL;
    bool is_head = false;

    if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR);
    p->in_len += (size_t)n;
    p->in[p->in_len] = '\0';
    if (strstr(p->in, "\r\n\r\n") != NULL) {
        failure = kvp_exporter_judge(p->in, x->is_loopback, &is_head, &why);
    } else if (p->in_len == REQUEST_MAX || strlen(p->in) < p->in_len) {
        failure = "400 Bad Request";
        why = "the head of the request is too long or has a NUL";
    } else {
        return true;
    }
    write_answer(x, p, failure, is_head, why);
    return p->out.err == KVP_OK;
}

/* Sends more of the answer. After the answer it drops received bytes, because closing a socket with unread bytes would
 * reset the connection. Returns false if the connection ended. */
static bool
write_more(place_t *p)
{
    char rest[1024];
    ssize_t n;

    if (p->sent == p->out.len) {
        n = recv(p->fd, rest, sizeof rest, 0);
        return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
    }
    n = send(p->fd, p->out.data + p->sent, p->out.len - p->sent, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    p->sent += (size_t)n;
    if (p->sent == p->out.len) shutdown(p->fd, SHUT_WR);
    return true;
}

static void
serve_places(kvp_exporter_t *x, const struct pollfd *ready)
{
    const uint64_t now_ns = kvp_now_ns();

    for (size_t i = 0; i < PLACES; i++) {
        place_t *p = &x->places[i];
        bool is_open = p->fd >= 0 && now_ns < p->until_ns;

        if (is_open && ready[i].revents != 0) is_open = p->out.len == 0 ? read_request(x, p) : write_more(p);
        if (!is_open && p->fd >= 0) end_place(p);
    }
}

static void *
exporter_main(void *arg)
{
    kvp_exporter_t *x = arg;

    while (!atomic_load(&x->is_stopping)) {
        struct pollfd fds[PLACES + 2];
        int timeout_ms = -1;

        for (size_t i = 0; i < PLACES; i++) {
            const place_t *p = &x->places[i];

            fds[i] = (struct pollfd){.fd = p->fd, .events = p->sent < p->out.len ? POLLOUT : POLLIN};
            if (p->fd >= 0) timeout_ms = LIFE_NS / KVP_NS_PER_MS;
        }
        fds[PLACES] = (struct pollfd){.fd = x->listen_fd, .events = POLLIN};
        fds[PLACES + 1] = (struct pollfd){.fd = x->wake_fd, .events = POLLIN};
        if (poll(fds, PLACES + 2, timeout_ms) < 0) continue;
        serve_places(x, fds);
        if (fds[PLACES].revents != 0) accept_one(x);
    }
    return NULL;
}

/* ---- start and stop */
static void
destroy_exporter(kvp_exporter_t *x)
{
    for (size_t i = 0; i < PLACES; i++)
        if (x->places[i].fd >= 0) end_place(&x->places[i]);
    kvp_forkguard_close(x->listen_fd);
    kvp_forkguard_close(x->wake_fd);
    kvp_metrics_destroy(x->metrics);
    free(x);
}

static kvp_err_t
listen_near(kvp_exporter_t *x, kvp_hostport_t at, char *why, size_t why_cap)
{
    kvp_err_t err = KVP_SYS;
    kvp_hostport_t bound;

    kvp_log_divert(why, why_cap);
    for (uint32_t i = 0; i < KVP_EXPORTER_PORTS && err == KVP_SYS; i++) {
        why[0] = '\0';
        err = kvp_tcp_sock_listen(&at, &x->listen_fd, &bound);
        if (at.port == 0 || at.port == UINT16_MAX) break;
        at.port++;
    }
    kvp_log_divert(NULL, 0);
    if (err != KVP_OK) return err;
    kvp_forkguard_add(x->listen_fd);
    x->is_loopback = kvp_hostport_is_loopback(&bound);
    kvp_format_hostport(&bound, x->at);
    return KVP_OK;
}

void
kvp_exporter_start(kvpool_t *pool, const kvp_hostport_t *at)
{
    kvp_exporter_t *x = calloc(1, sizeof *x);
    char why[512] = "no memory";
    kvp_err_t err = KVP_NOMEM;

    if (x == NULL) return;
    for (size_t i = 0; i < PLACES; i++)
        x->places[i].fd = -1;
    x->listen_fd = -1;
    x->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    x->metrics = kvp_metrics_create();
    kvp_forkguard_add(x->wake_fd);
    if (x->metrics != NULL) err = add_metrics(x->metrics, pool);
    if (err == KVP_OK) err = listen_near(x, *at, why, sizeof why);
    if (err == KVP_OK) err = kvp_thread_start(&x->thread, "kvpool-metrics", exporter_main, x);
    if (err == KVP_OK) {
        pool->exporter = x;
        kvp_log_info("client", "metrics at http://%s/metrics", x->at);
        return;
    }
    kvp_log_warn("client", "no metrics of this process, KVPOOL_METRICS cannot be used: %s", why);
    destroy_exporter(x);
}

void
kvp_exporter_stop(kvpool_t *pool)
{
    kvp_exporter_t *x = pool->exporter;

    if (x == NULL) return;
    pool->exporter = NULL;
    atomic_store(&x->is_stopping, true);
    kvp_wake(x->wake_fd);
    pthread_join(x->thread, NULL);
    destroy_exporter(x);
}

const char *
kvp_exporter_at(const kvpool_t *pool)
{
    return pool->exporter == NULL ? "" : pool->exporter->at;
}
