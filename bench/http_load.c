/* SPDX-License-Identifier: Apache-2.0
 * Both ends of what bench/proxy measures, over HTTP on loopback.
 *
 *   http_load serve [GAP_MS]              a stand-in for an engine: prints its port, serves until its input ends. A
 * body with "do_remote_decode":true is a prefill, one with "stream":true a stream of CHUNKS chunks, GAP_MS apart
 *   http_load pace PORT RATE SECONDS      that many requests a second, on connections that are kept; prints the median
 * and the 99th percentile of their times in microseconds http_load streams PORT N ROUNDS       N streams at once, again
 * and again; prints how many were not what was sent */
#include "common/base.h"
#include "common/clock.h"
#include "common/log.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#define CHUNKS 50u
#define MESSAGE_MAX (64u << 10)
#define PACE_CONNECTIONS 64u

static const char plain_body[] = "{\"model\":\"m\",\"prompt\":\"hello\",\"max_tokens\":16}";
static const char stream_body[] = "{\"model\":\"m\",\"prompt\":\"hello\",\"max_tokens\":50,\"stream\":true}";

typedef struct {
    uv_tcp_t tcp;
    char in[MESSAGE_MAX];
    size_t len;
    uint32_t chunks; /* chunks of a stream sent so far */
    uv_timer_t timer;
    uint64_t begun_ns;
    uint32_t rounds; /* that are left */
    bool is_busy;
} connection_t;

static uv_loop_t *loop;
static uint64_t gap_ms = 20;

static void
fail(const char *what, int err)
{
    fprintf(stderr, "http_load: %s: %s\n", what, uv_strerror(err));
    exit(1);
}

static void
give_room(uv_handle_t *handle, size_t hint, uv_buf_t *out)
{
    connection_t *c = handle->data;

    (void)hint;
    *out = uv_buf_init(c->in + c->len, (unsigned)(sizeof c->in - 1 - c->len));
}

typedef struct {
    uv_write_t write;
    char bytes[];
} sent_t;

static void
on_sent(uv_write_t *write, int status)
{
    (void)status;
    free(write);
}

static void
send_bytes(connection_t *c, const char *bytes, size_t len)
{
    uv_buf_t buf = uv_buf_init((char *)bytes, (unsigned)len);
    const int n = uv_try_write((uv_stream_t *)&c->tcp, &buf, 1);
    sent_t *sent;

    if (n == (int)len || (n < 0 && n != UV_EAGAIN)) return;
    bytes += n > 0 ? n : 0;
    len -= n > 0 ? (size_t)n : 0;
    sent = malloc(sizeof *sent + len);
    if (sent == NULL) fail("memory", UV_ENOMEM);
    memcpy(sent->bytes, bytes, len);
    buf = uv_buf_init(sent->bytes, (unsigned)len);
    if (uv_write(&sent->write, (uv_stream_t *)&c->tcp, &buf, 1, on_sent) != 0) free(sent);
}

/* Length of the message at the front of c->in, 0 = it is not whole yet. */
static size_t
whole(connection_t *c)
{
    const char *end, *length;

    c->in[c->len] = '\0';
    end = strstr(c->in, "\r\n\r\n");
    if (end == NULL) return 0;
    length = strcasestr(c->in, "\r\ncontent-length:");
    if (length != NULL && length < end) {
        const size_t n = (size_t)(end + 4 - c->in) + strtoul(length + 17, NULL, 10);

        return n <= c->len ? n : 0;
    }
    if (strcasestr(c->in, "\r\ntransfer-encoding: chunked") == NULL) return (size_t)(end + 4 - c->in);
    end = strstr(end + 2, "\r\n0\r\n\r\n");
    return end == NULL ? 0 : (size_t)(end + 7 - c->in);
}

/* ---- the server */
static void
on_timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void
on_closed(uv_handle_t *handle)
{
    connection_t *c = handle->data;

    uv_close((uv_handle_t *)&c->timer, on_timer_closed);
}

static size_t
chunk_text(uint32_t i, char out[static 64])
{
    char text[48];
    const int n = snprintf(text, sizeof text, "data: {\"token\": %u}\n\n", i);

    return (size_t)snprintf(out, 64, "%x\r\n%s\r\n", (unsigned)n, text);
}

static void
send_chunk(uv_timer_t *timer)
{
    connection_t *c = timer->data;
    char text[64];

    if (c->chunks < CHUNKS) {
        send_bytes(c, text, chunk_text(c->chunks++, text));
        return;
    }
    send_bytes(c, "0\r\n\r\n", 5);
    uv_timer_stop(timer);
}

static void
serve_one(connection_t *c)
{
    static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 33\r\n\r\n"
                             "{\"choices\":[{\"text\":\" a token\"}]}";
    static const char prefilled[] =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 85\r\n\r\n"
        "{\"choices\":[{\"text\":\" a\"}],\"kv_transfer_params\":{\"do_remote_prefill\":true,\"id\":\"ab\"}}";
    static const char head[] =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

    if (strstr(c->in, "\"do_remote_decode\":true") != NULL) {
        send_bytes(c, prefilled, sizeof prefilled - 1);
    } else if (strstr(c->in, "\"stream\":true") != NULL) {
        send_bytes(c, head, sizeof head - 1);
        c->chunks = 0;
        uv_timer_start(&c->timer, send_chunk, 0, gap_ms);
    } else {
        send_bytes(c, ok, sizeof ok - 1);
    }
}

static void
on_server_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    connection_t *c = stream->data;
    size_t len;

    (void)buf;
    if (n < 0) {
        uv_close((uv_handle_t *)&c->tcp, on_closed);
        return;
    }
    c->len += (size_t)n;
    while (c->len > 0 && (len = whole(c)) > 0) {
        const char after = c->in[len];

        c->in[len] = '\0';
        serve_one(c);
        c->in[len] = after;
        memmove(c->in, c->in + len, c->len - len);
        c->len -= len;
    }
    if (c->len == sizeof c->in - 1) fail("a request", UV_E2BIG);
}

static connection_t *
make_connection(void)
{
    connection_t *c = calloc(1, sizeof *c);

    if (c == NULL || uv_tcp_init(loop, &c->tcp) != 0) fail("memory", UV_ENOMEM);
    uv_timer_init(loop, &c->timer);
    c->tcp.data = c->timer.data = c;
    uv_tcp_nodelay(&c->tcp, 1);
    return c;
}

static void
on_connection(uv_stream_t *listener, int status)
{
    connection_t *c = make_connection();

    if (status < 0 || uv_accept(listener, (uv_stream_t *)&c->tcp) != 0) {
        uv_close((uv_handle_t *)&c->tcp, on_closed);
        return;
    }
    uv_read_start((uv_stream_t *)&c->tcp, give_room, on_server_read);
}

static void
on_input(uv_poll_t *poll, int status, int events)
{
    char byte;

    (void)status;
    (void)events;
    if (read(0, &byte, 1) <= 0) exit(0);
    (void)poll;
}

static void
serve(void)
{
    struct sockaddr_in at;
    int len = sizeof at;
    static uv_tcp_t listener;
    static uv_poll_t input;

    uv_ip4_addr("127.0.0.1", 0, &at);
    uv_tcp_init(loop, &listener);
    if (uv_tcp_bind(&listener, (struct sockaddr *)&at, 0) != 0 ||
        uv_listen((uv_stream_t *)&listener, 1024, on_connection) != 0)
        fail("listen", UV_EADDRINUSE);
    uv_tcp_getsockname(&listener, (struct sockaddr *)&at, &len);
    printf("%u\n", ntohs(at.sin_port));
    fflush(stdout);
    uv_poll_init(loop, &input, 0);
    uv_poll_start(&input, UV_READABLE, on_input);
    uv_run(loop, UV_RUN_DEFAULT);
}

/* ---- the clients */
static char request[1024];
static size_t request_len;
static struct sockaddr_in target;
static void (*on_answer)(connection_t *c, size_t len);

static void
make_request(const char *body)
{
    request_len = (size_t)snprintf(request, sizeof request,
                                   "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                   "Content-Length: %zu\r\n\r\n%s",
                                   strlen(body), body);
}

static void
ask(connection_t *c)
{
    c->is_busy = true;
    c->begun_ns = kvp_now_ns();
    send_bytes(c, request, request_len);
}

static void
on_client_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    connection_t *c = stream->data;
    size_t len;

    (void)buf;
    if (n < 0) fail("a connection", (int)n);
    c->len += (size_t)n;
    if ((len = whole(c)) == 0) return;
    c->is_busy = false;
    c->len = 0;
    on_answer(c, len);
}

static void
on_connected(uv_connect_t *connect, int status)
{
    if (status < 0) fail("connect", status);
    uv_read_start(connect->handle, give_room, on_client_read);
    free(connect);
}

static connection_t *
open_connection(void)
{
    connection_t *c = make_connection();
    uv_connect_t *connect = malloc(sizeof *connect);

    if (connect == NULL || uv_tcp_connect(connect, &c->tcp, (const struct sockaddr *)&target, on_connected) != 0)
        fail("connect", UV_ECONNREFUSED);
    return c;
}

static connection_t *pool[PACE_CONNECTIONS];
static uint64_t *times, times_max, times_n, asked, missed, period_ns, start_ns;

static void
take_time(connection_t *c, size_t len)
{
    (void)len;
    if (strncmp(c->in, "HTTP/1.1 200 ", 13) != 0) fail("an answer", UV_EPROTO);
    times[times_n++] = kvp_now_ns() - c->begun_ns;
    if (times_n + missed == times_max) uv_stop(loop);
}

/* Sends the requests that are due. A request without a free connection is counted and dropped, not sent later. */
static void
on_pace(uv_timer_t *timer)
{
    const uint64_t now_ns = kvp_now_ns();
    const uint64_t due = now_ns < start_ns ? 0 : kvp_min_u64(times_max, (now_ns - start_ns) / period_ns);

    for (; asked < due; asked++) {
        uint32_t i = 0;

        while (i < PACE_CONNECTIONS && pool[i]->is_busy)
            i++;
        if (i == PACE_CONNECTIONS)
            missed++;
        else
            ask(pool[i]);
    }
    if (asked == times_max) uv_timer_stop(timer);
}

static int
by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void
pace(uint64_t rate, uint64_t seconds)
{
    uv_timer_t timer;

    make_request(plain_body);
    on_answer = take_time;
    times_max = rate * seconds;
    times = calloc(times_max, sizeof *times);
    if (times == NULL) fail("memory", UV_ENOMEM);
    for (uint32_t i = 0; i < PACE_CONNECTIONS; i++)
        pool[i] = open_connection();
    period_ns = KVP_NS_PER_S / rate;
    start_ns = kvp_now_ns() + 100 * KVP_NS_PER_MS; /* connected by then */
    uv_timer_init(loop, &timer);
    uv_timer_start(&timer, on_pace, 100, 1);
    uv_run(loop, UV_RUN_DEFAULT);
    qsort(times, times_n, sizeof *times, by_value);
    printf("%.1f %.1f %llu\n", (double)times[times_n / 2] / 1e3, (double)times[times_n * 99 / 100] / 1e3,
           (unsigned long long)missed);
}

static uint32_t wrong, done, streams_n;

/* The text that a stream's chunks make, at *at. */
static void
check_stream(connection_t *c, size_t len)
{
    static char text[MESSAGE_MAX];
    const char *at = strstr(c->in, "\r\n\r\n") + 4, *end = c->in + len;
    size_t n = 0, want_n = 0;
    char want[64];
    bool is_same = strncmp(c->in, "HTTP/1.1 200 ", 13) == 0;

    while (at < end) {
        char *next;
        const size_t bytes = strtoul(at, &next, 16);

        if (bytes == 0 || next + 2 + bytes > end) break;
        memcpy(text + n, next + 2, bytes);
        n += bytes;
        at = next + 2 + bytes + 2;
    }
    for (uint32_t i = 0; i < CHUNKS && is_same; i++) {
        const size_t m = (size_t)snprintf(want, sizeof want, "data: {\"token\": %u}\n\n", i);

        is_same = want_n + m <= n && memcmp(text + want_n, want, m) == 0;
        want_n += m;
    }
    wrong += !is_same || want_n != n;
    if (--c->rounds > 0)
        ask(c);
    else if (++done == streams_n)
        uv_stop(loop);
}

static void
streams(uint32_t n, uint32_t rounds)
{
    const uint64_t begun_ns = kvp_now_ns();

    make_request(stream_body);
    on_answer = check_stream;
    streams_n = n;
    for (uint32_t i = 0; i < n; i++) {
        connection_t *c = open_connection();

        c->rounds = rounds;
        ask(c);
    }
    uv_run(loop, UV_RUN_DEFAULT);
    printf("%u %.2f\n", wrong, (double)(kvp_now_ns() - begun_ns) / 1e9);
}

int
main(int argc, char **argv)
{
    loop = uv_default_loop();
    if (argc > 2) uv_ip4_addr("127.0.0.1", atoi(argv[2]), &target);
    if (argc >= 2 && strcmp(argv[1], "serve") == 0) {
        if (argc == 3) gap_ms = strtoul(argv[2], NULL, 10);
        serve();
    } else if (argc == 5 && strcmp(argv[1], "pace") == 0) {
        pace(strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
    } else if (argc == 5 && strcmp(argv[1], "streams") == 0) {
        streams((uint32_t)strtoul(argv[3], NULL, 10), (uint32_t)strtoul(argv[4], NULL, 10));
    } else {
        fprintf(stderr, "usage: http_load serve [GAP_MS] | pace PORT RATE SECONDS | streams PORT N ROUNDS\n");
        return 2;
    }
    return 0;
}
