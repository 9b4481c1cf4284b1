/* SPDX-License-Identifier: Apache-2.0
 * The admin server over a plain socket: routing, bodies and their limit, errors as JSON, what a stranger may send. */
#include "common/daemon/http.h"

#include "common/log.h"
#include "tests/cases.h"

#include <arpa/inet.h>
#include <json-c/json.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_S 5 /* of whom nobody may keep waiting; the server gives up on who is idle in 10 s */

typedef struct {
    kvp_http_t *http;
    kvp_hostport_t bound;
    char *reply; /* the last response as it came: status line, headers, body */
    const char *body;
} fixture_t;

static void
echo(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    char text[512];
    int n = snprintf(text, sizeof(text), "%s rest=%s len=%zu", (const char *)arg, kvp_http_rest(request),
                     kvp_http_body(request)->len);
    kvp_buf_append(kvp_http_out(response), text, (size_t)n);
    kvp_http_type(response, "text/plain");
    assert_int_equal(kvp_http_set_header(response, "X-Answer", "42"), KVP_OK);
    assert_int_equal(kvp_http_set_header(response, "X-Bad", "a\r\nb: c"), KVP_INVALID);
}

static void
double_it(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)arg;
    json_object *body = kvp_http_body_json(request, response);
    if (body == NULL) return;
    json_object *n = NULL;
    if (json_object_object_get_ex(body, "n", &n)) {
        kvp_jsonw_t reply = kvp_http_json(response, 201);
        kvp_jsonw_open(&reply, NULL, '{');
        kvp_jsonw_u64(&reply, "n", 2 * json_object_get_uint64(n));
        kvp_jsonw_close(&reply, '}');
    } else {
        kvp_http_error(response, 422, "no \"n\" in %s", "it");
    }
    json_object_put(body);
}

/* Waits until it is let go, so that a test can look at what others get meanwhile. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int inside; /* guarded by lock, as is is_open */
    bool is_open;
} gate_t;

static gate_t gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false};

static void
wait_at_gate(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)arg;
    pthread_mutex_lock(&gate.lock);
    gate.inside++;
    pthread_cond_broadcast(&gate.cond);
    while (!gate.is_open)
        pthread_cond_wait(&gate.cond, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
    kvp_buf_append(kvp_http_out(response), kvp_http_rest(request), strlen(kvp_http_rest(request)));
}

static void
set_gate(bool is_open)
{
    pthread_mutex_lock(&gate.lock);
    gate.inside = 0;
    gate.is_open = is_open;
    pthread_cond_broadcast(&gate.cond);
    pthread_mutex_unlock(&gate.lock);
}

static void
wait_inside(int n)
{
    pthread_mutex_lock(&gate.lock);
    while (gate.inside < n)
        pthread_cond_wait(&gate.cond, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

/* Parks each request twice: the first time it is unparked by another thread, perhaps before this has returned, the
 * second time at once. */
static int park_notes[2];

static void *
unpark(void *request)
{
    kvp_http_unpark(request);
    return NULL;
}

static void
park_twice(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    void *note = kvp_http_note(request);
    pthread_t thread;

    (void)arg;
    if (note == NULL) {
        assert_int_equal(pthread_create(&thread, NULL, unpark, kvp_http_park(request, &park_notes[0])), 0);
        assert_int_equal(pthread_detach(thread), 0);
    } else if (note == &park_notes[0]) {
        kvp_http_unpark(kvp_http_park(request, &park_notes[1]));
    } else {
        kvp_buf_append(kvp_http_out(response), "parked", 6);
    }
}

/* Parks each request until all of them are parked. */
static kvp_http_request_t *parked[40];
static _Atomic uint32_t parked_n;

static void
park_all(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)arg, (void)response;
    if (kvp_http_note(request) != NULL) return;
    const uint32_t at = parked_n; /* they come one after the other */
    parked[at] = kvp_http_park(request, parked);
    parked_n = at + 1;
    if (at + 1 < KVP_ARRAY_LEN(parked)) return;
    for (size_t i = 0; i < KVP_ARRAY_LEN(parked); i++)
        kvp_http_unpark(parked[i]);
}

/* Answers if it may have as many bytes as the path says. */
static void
claim(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    size_t n = (size_t)strtoull(kvp_http_rest(request), NULL, 10);

    (void)arg;
    if (kvp_http_claim(response, n)) kvp_buf_append(kvp_http_out(response), "granted", 7);
}

static void
large(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)arg, (void)request;
    uint8_t *bytes = kvp_buf_extend(kvp_http_out(response), 3u << 20);
    assert_non_null(bytes);
    memset(bytes, 0xee, 3u << 20); /* no header has it */
}

static void
nothing(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)arg, (void)request;
    kvp_http_status(response, 204);
}

/* Answers with more than there is memory for; the buffer's limit stands for the memory. */
static void
too_much(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    (void)arg, (void)request;
    kvp_http_out(response)->limit = 8;
    kvp_http_error(response, 418, "longer than eight bytes");
}

/* Route to echo, which names the route that it was reached by. */
static kvp_err_t
route_echo(fixture_t *fix, const char *method, const char *path, const char *name)
{
    return kvp_http_route(fix->http, method, path, echo, (void *)name);
}

static int
setup(void **state)
{
    fixture_t *fix = calloc(1, sizeof(*fix));
    assert_non_null(fix);
    fix->http = kvp_http_create();
    assert_non_null(fix->http);
    assert_int_equal(route_echo(fix, "GET", "/echo", "exact"), KVP_OK);
    assert_int_equal(route_echo(fix, "GET", "/echo", "again"), KVP_ALREADY);
    assert_int_equal(route_echo(fix, "POST", "/echo", "posted"), KVP_OK);
    assert_int_equal(route_echo(fix, "GET", "/tree/", "tree"), KVP_OK);
    assert_int_equal(route_echo(fix, "GET", "/tree/sub/", "sub"), KVP_OK);
    assert_int_equal(route_echo(fix, "GET", "/", "root"), KVP_OK);
    assert_int_equal(kvp_http_route(fix->http, "POST", "/double", double_it, NULL), KVP_OK);
    assert_int_equal(kvp_http_route(fix->http, "DELETE", "/nothing", nothing, NULL), KVP_OK);
    assert_int_equal(kvp_http_route_slow(fix->http, "GET", "/gate/", 10, wait_at_gate, NULL), KVP_OK);
    assert_int_equal(kvp_http_route_slow(fix->http, "GET", "/park", 10, park_twice, NULL), KVP_OK);
    assert_int_equal(kvp_http_route_slow(fix->http, "GET", "/park/all", 10, park_all, NULL), KVP_OK);
    assert_int_equal(kvp_http_route_slow(fix->http, "PUT", "/claim/", 2u << 20, claim, NULL), KVP_OK);
    assert_int_equal(kvp_http_route_slow(fix->http, "GET", "/large", 10, large, NULL), KVP_OK);
    assert_int_equal(kvp_http_route(fix->http, "GET", "/toomuch", too_much, NULL), KVP_OK);
    kvp_hostport_t at = {.host = "127.0.0.1", .port = 0};
    assert_int_equal(kvp_http_start(fix->http, &at, &fix->bound), KVP_OK);
    assert_int_not_equal(fix->bound.port, 0);
    *state = fix;
    return 0;
}

static int
teardown(void **state)
{
    fixture_t *fix = *state;
    kvp_http_destroy(fix->http);
    free(fix->reply);
    free(fix);
    return 0;
}

static int
dial(const fixture_t *fix)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(fix->bound.port)};
    assert_int_equal(inet_pton(AF_INET, fix->bound.host, &to.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    return fd;
}

static bool
send_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

/* read_reply takes what comes until the server closes, and returns the status (0 = nothing came). */
static unsigned
read_reply(fixture_t *fix, int fd)
{
    size_t len = 0, cap = 1 << 16;
    free(fix->reply);
    fix->reply = calloc(1, cap + 1);
    assert_non_null(fix->reply);
    for (ssize_t n; len < cap && (n = recv(fd, fix->reply + len, cap - len, 0)) > 0;)
        len += (size_t)n;
    close(fd);
    const char *end = strstr(fix->reply, "\r\n\r\n");
    fix->body = end != NULL ? end + 4 : "";
    unsigned status = 0;
    sscanf(fix->reply, "HTTP/1.1 %u", &status);
    return status;
}

static unsigned
ask(fixture_t *fix, const char *method, const char *target, const char *body)
{
    char head[512];
    int n =
        snprintf(head, sizeof(head), "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
                 method, target, strlen(body));
    int fd = dial(fix);
    assert_true(send_all(fd, head, (size_t)n));
    assert_true(send_all(fd, body, strlen(body)));
    return read_reply(fix, fd);
}

TEST_WITH(test_exact_path_beats_nothing_else, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(ask(fix, "GET", "/echo?q=a%20b&q2", ""), 200);
    assert_string_equal(fix->body, "exact rest= len=0");
    assert_non_null(strstr(fix->reply, "Content-Type: text/plain\r\n"));
    assert_non_null(strstr(fix->reply, "X-Answer: 42\r\n"));
    assert_null(strstr(fix->reply, "X-Bad"));
    assert_int_equal(ask(fix, "GET", "/echo?q", ""), 200);
    assert_string_equal(fix->body, "exact rest= len=0");
    assert_int_equal(ask(fix, "POST", "/echo", "hello"), 200);
    assert_string_equal(fix->body, "posted rest= len=5");
}

TEST_WITH(test_longest_prefix_wins, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(ask(fix, "GET", "/tree/a/b", ""), 200);
    assert_string_equal(fix->body, "tree rest=a/b len=0");
    assert_int_equal(ask(fix, "GET", "/tree/sub/x%2Fy", ""), 200);
    assert_string_equal(fix->body, "sub rest=x/y len=0");
    assert_int_equal(ask(fix, "GET", "/", ""), 200);
    assert_int_equal(ask(fix, "GET", "/tree", ""), 404);
}

TEST_WITH(test_unknown_path_and_method_answer_json, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(ask(fix, "GET", "/none", ""), 404);
    assert_string_equal(fix->body, "{\"error\":\"no such path\"}");
    assert_non_null(strstr(fix->reply, "Content-Type: application/json\r\n"));
    assert_int_equal(ask(fix, "DELETE", "/echo", ""), 405);
    assert_non_null(strstr(fix->reply, "Allow: GET, POST\r\n"));
    assert_non_null(strstr(fix->body, "{\"error\":\"method not allowed"));
}

TEST_WITH(test_a_page_of_another_origin_reaches_no_handler, setup, teardown)
{
    fixture_t *fix = *state;
    static const char *const heads[] = {"Sec-Fetch-Site: cross-site\r\n", "Origin: https://evil.example\r\n",
                                        "Host: evil.example\r\n"};
    for (size_t i = 0; i < KVP_ARRAY_LEN(heads); i++) {
        char text[512];
        int n = snprintf(text, sizeof(text),
                         "POST /double HTTP/1.1\r\n%s%sContent-Type: text/plain\r\nConnection: close\r\n"
                         "Content-Length: 8\r\n\r\n{\"n\": 1}",
                         i == 2 ? "" : "Host: 127.0.0.1\r\n", heads[i]);
        int fd = dial(fix);
        assert_true(send_all(fd, text, (size_t)n));
        assert_int_equal(read_reply(fix, fd), 403);
        assert_non_null(strstr(fix->body, "{\"error\":\""));
    }
}

TEST_WITH(test_head_and_an_empty_answer_have_no_body, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(ask(fix, "HEAD", "/echo", ""), 200);
    assert_string_equal(fix->body, "");
    assert_int_equal(ask(fix, "HEAD", "/double", ""), 405);
    assert_int_equal(ask(fix, "DELETE", "/nothing", ""), 204);
    assert_string_equal(fix->body, "");
}

TEST_WITH(test_json_body_in_and_out, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(ask(fix, "POST", "/double", "{\"n\": 21}\n"), 201);
    assert_string_equal(fix->body, "{\"n\":42}");
    assert_int_equal(ask(fix, "POST", "/double", "{}"), 422);
    assert_string_equal(fix->body, "{\"error\":\"no \\\"n\\\" in it\"}");
}

TEST_WITH(test_an_answer_without_memory_is_503, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(ask(fix, "GET", "/toomuch", ""), 503);
    assert_string_equal(fix->body, "{\"error\":\"no memory for the answer\"}");
    assert_non_null(strstr(fix->reply, "Content-Type: application/json\r\n"));
}

TEST_WITH(test_bad_json_is_400, setup, teardown)
{
    fixture_t *fix = *state;
    char deep[200];
    memset(deep, '[', sizeof(deep) - 1);
    deep[sizeof(deep) - 1] = '\0';
    const char *const bad[] = {"", "{", "{\"n\":1} x", "{\"n\":'1'}", "nul", "null", "{\"n\":\"\xff\"}", deep};
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        if (ask(fix, "POST", "/double", bad[i]) != 400) fail_msg("'%s' gave %s", bad[i], fix->reply);
        assert_non_null(strstr(fix->body, "{\"error\":\"body is"));
    }
    static const struct {
        const char *body, *error;
    } told[] = {{"", "body is not JSON: it ends too early"},
                {"nul", "body is not JSON: it ends too early"},
                {"null", "body is null"},
                {" null\n", "body is null"},
                {"{} x", "body is not JSON: unexpected character"},
                {"\"\xed\xa0\x80\"", "body is not UTF-8"}};
    for (size_t i = 0; i < KVP_ARRAY_LEN(told); i++) {
        char want[128];
        snprintf(want, sizeof(want), "{\"error\":\"%s\"}", told[i].error);
        assert_int_equal(ask(fix, "POST", "/double", told[i].body), 400);
        assert_string_equal(fix->body, want);
    }
}

TEST_WITH(test_half_a_surrogate_pair_is_400, setup, teardown)
{
    fixture_t *fix = *state;
    static const char *const halves[] = {"\\ud800", "\\uDFFF",          "\\udc00\\ud800", "a\\ud83d\\u0041",
                                         "\\ud83d", "\\ud83d\\\\udc00", "\\\\\\ud800",    "\\ud83d\\ude00\\ude00"};
    static const char *const whole[] = {"\\ud83d\\ude00", "\\uD83D\\uDE00z", "\\\\ud800", "\\u0041\\ufffd", "\\\"\\\\"};
    char body[64];
    for (size_t i = 0; i < KVP_ARRAY_LEN(halves); i++) {
        snprintf(body, sizeof(body), "{\"n\": 4, \"t\": \"%s\"}", halves[i]);
        if (ask(fix, "POST", "/double", body) != 400) fail_msg("'%s' gave %s", body, fix->reply);
        assert_non_null(strstr(fix->body, "half of a surrogate pair"));
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(whole); i++) {
        snprintf(body, sizeof(body), "{\"n\": 4, \"t\": \"%s\"}", whole[i]);
        if (ask(fix, "POST", "/double", body) != 201) fail_msg("'%s' gave %s", body, fix->reply);
    }
}

TEST_WITH(test_body_over_the_limit_of_its_route_is_413, setup, teardown)
{
    fixture_t *fix = *state;
    static const struct {
        const char *method, *target;
        size_t limit;
        const char *body, *error;
    } cases[] = {
        {"POST", "/echo", KVP_HTTP_BODY_MAX, "posted rest= len=1048576", "body is larger"},
        {"PUT", "/claim/1", 2u << 20, "granted", "larger than 2097152 bytes"},
    };
    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        char *body = calloc(1, cases[i].limit + 2);
        assert_non_null(body);
        memset(body, 'x', cases[i].limit + 1);
        assert_int_equal(ask(fix, cases[i].method, cases[i].target, body), 413);
        assert_non_null(strstr(fix->body, cases[i].error));
        body[cases[i].limit] = '\0';
        assert_int_equal(ask(fix, cases[i].method, cases[i].target, body), 200);
        assert_string_equal(fix->body, cases[i].body);
        free(body);
    }
}

TEST_WITH(test_endless_body_is_cut_off, setup, teardown)
{
    fixture_t *fix = *state;
    static const char head[] = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    int fd = dial(fix);
    assert_true(send_all(fd, head, strlen(head)));
    static char piece[6 + 0x8000 + 2];
    memcpy(piece, "8000\r\n", 6);
    memset(piece + 6, 'x', 0x8000);
    memcpy(piece + 6 + 0x8000, "\r\n", 2);
    size_t sent = 0;
    while (sent < (64u << 20) && send_all(fd, piece, sizeof(piece)))
        sent += sizeof(piece);
    assert_true(sent < (64u << 20));
    close(fd);
    assert_int_equal(ask(fix, "GET", "/echo", ""), 200);
}

TEST_WITH(test_malformed_requests_leave_the_server_alive, setup, teardown)
{
    fixture_t *fix = *state;
    static const char *const bad[] = {
        "\r\n\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET /echo HTTP/9.9\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET /%00%ff%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    };
    /* Some of them leave the server waiting for more, which must not be in anybody's way. */
    int fds[KVP_ARRAY_LEN(bad)];
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        fds[i] = dial(fix);
        assert_true(send_all(fds[i], bad[i], strlen(bad[i])));
        assert_int_equal(ask(fix, "GET", "/echo", ""), 200);
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++)
        close(fds[i]);
    assert_int_equal(ask(fix, "GET", "/echo", ""), 200);
}

TEST_WITH(test_start_when_the_port_is_taken, setup, teardown)
{
    fixture_t *fix = *state;
    kvp_http_t *other = kvp_http_create();
    assert_non_null(other);
    kvp_hostport_t bound = {.port = 77};
    kvp_log_set_level(KVP_LOG_ERROR);
    assert_int_equal(kvp_http_start(other, &fix->bound, &bound), KVP_SYS);
    kvp_hostport_t nowhere = {.host = "no-such-host.invalid", .port = 0};
    assert_int_equal(kvp_http_start(other, &nowhere, &bound), KVP_UNREACHABLE);
    assert_int_equal(bound.port, 77);
    kvp_http_stop(other);
    kvp_http_destroy(other);
}

TEST_WITH(test_stop_with_an_open_connection, setup, teardown)
{
    fixture_t *fix = *state;
    int fd = dial(fix);
    assert_true(send_all(fd, "GET /ec", 7));
    kvp_http_stop(fix->http);
    assert_int_equal(read_reply(fix, fd), 0);
}

static int
begin(const fixture_t *fix, const char *target)
{
    char head[128];
    int n = snprintf(head, sizeof(head), "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", target);
    int fd = dial(fix);
    assert_true(send_all(fd, head, (size_t)n));
    return fd;
}

TEST_WITH(test_slow_handlers_keep_nobody_waiting, setup, teardown)
{
    fixture_t *fix = *state;
    int fds[32]; /* as many as may be under way */
    set_gate(false);
    for (size_t i = 0; i < KVP_ARRAY_LEN(fds); i++)
        fds[i] = begin(fix, "/gate/a%2Fb");
    wait_inside(4);
    for (int i = 0; i < 3; i++) /* behind which all of these have been taken */
        assert_int_equal(ask(fix, "GET", "/echo", ""), 200);
    assert_int_equal(ask(fix, "GET", "/gate/c", ""), 503); /* the others are for who wants to know how we are */
    close(fds[0]); /* who goes meanwhile is noticed later */
    set_gate(true);
    for (size_t i = 1; i < KVP_ARRAY_LEN(fds); i++) {
        assert_int_equal(read_reply(fix, fds[i]), 200);
        assert_string_equal(fix->body, "a/b");
    }
}

/* Connections that ask for nothing, every other of them in the middle of a word. */
static void
dial_silent(const fixture_t *fix, int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fds[i] = dial(fix);
        if (i % 2 == 1) assert_true(send_all(fds[i], "GET /ec", 7));
    }
}

static void
close_all(const int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
}

static int
begin_body(const fixture_t *fix)
{
    static const char head[] =
        "PUT /claim/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhello";
    int fd = dial(fix);
    assert_true(send_all(fd, head, strlen(head)));
    return fd;
}

TEST_WITH(test_silent_connections_make_room, setup, teardown)
{
    fixture_t *fix = *state;
    int fds[300];
    char c;
    int body = begin_body(fix);
    assert_int_equal(ask(fix, "GET", "/echo", ""), 200); /* behind which the body has begun */
    dial_silent(fix, fds, KVP_ARRAY_LEN(fds));
    for (int i = 0; i < 20; i++)
        assert_int_equal(ask(fix, "GET", "/echo", ""), 200);
    assert_int_equal(recv(fds[0], &c, 1, 0), 0); /* who came first went first */
    assert_int_equal(recv(fds[KVP_ARRAY_LEN(fds) - 1], &c, 1, MSG_DONTWAIT), -1);
    assert_true(send_all(body, "world", 5)); /* who is in the middle of a body stays */
    assert_int_equal(read_reply(fix, body), 200);
    assert_string_equal(fix->body, "granted");
    close_all(fds, KVP_ARRAY_LEN(fds));
}

/* Asks on a connection that is kept, and returns whether it is, after the answer. */
static bool
ask_kept(int fd)
{
    static const char head[] = "DELETE /nothing HTTP/1.1\r\nHost: x\r\n\r\n";
    char reply[512];
    size_t len = 0;
    assert_true(send_all(fd, head, strlen(head)));
    do {
        ssize_t n = recv(fd, reply + len, sizeof(reply) - 1 - len, 0);
        assert_true(n > 0);
        len += (size_t)n;
        reply[len] = '\0';
    } while (strstr(reply, "\r\n\r\n") == NULL);
    assert_non_null(strstr(reply, "HTTP/1.1 204"));
    return strstr(reply, "Connection: close\r\n") == NULL;
}

TEST_WITH(test_connections_are_not_kept_where_places_are_scarce, setup, teardown)
{
    fixture_t *fix = *state;
    int fds[130];
    char c;
    int kept = dial(fix);
    for (int i = 0; i < 5; i++)
        assert_true(ask_kept(kept));
    dial_silent(fix, fds, KVP_ARRAY_LEN(fds));
    assert_int_equal(ask(fix, "GET", "/echo", ""), 200); /* behind which all of these have been taken */
    assert_false(ask_kept(kept));
    assert_int_equal(recv(kept, &c, 1, 0), 0);
    close(kept);
    close_all(fds, KVP_ARRAY_LEN(fds));
}

TEST_WITH(test_bodies_hold_half_of_the_places, setup, teardown)
{
    fixture_t *fix = *state;
    int bodies[128], fds[200];
    for (size_t i = 0; i < KVP_ARRAY_LEN(bodies); i++)
        bodies[i] = begin_body(fix);
    assert_int_equal(ask(fix, "GET", "/echo", ""), 200);
    assert_int_equal(ask(fix, "PUT", "/claim/1", "x"), 503);
    assert_int_equal(ask(fix, "GET", "/gate/x", ""), 503);
    dial_silent(fix, fds, KVP_ARRAY_LEN(fds));
    for (int i = 0; i < 20; i++)
        assert_int_equal(ask(fix, "GET", "/echo", ""), 200);
    for (size_t i = 0; i < KVP_ARRAY_LEN(bodies); i++) {
        assert_true(send_all(bodies[i], "world", 5));
        assert_int_equal(read_reply(fix, bodies[i]), 200);
    }
    assert_int_equal(ask(fix, "PUT", "/claim/1", "x"), 200);
    close_all(fds, KVP_ARRAY_LEN(fds));
}

static void *
stop_server(void *arg)
{
    kvp_http_stop(arg);
    return NULL;
}

TEST_WITH(test_stop_waits_for_slow_handlers, setup, teardown)
{
    fixture_t *fix = *state;
    int fds[6];
    pthread_t stopper;
    set_gate(false);
    for (size_t i = 0; i < KVP_ARRAY_LEN(fds); i++)
        fds[i] = begin(fix, "/gate/x");
    wait_inside(4);
    assert_int_equal(pthread_create(&stopper, NULL, stop_server, fix->http), 0);
    set_gate(true);
    assert_int_equal(pthread_join(stopper, NULL), 0);
    for (size_t i = 0; i < KVP_ARRAY_LEN(fds); i++)
        close(fds[i]);
}

/* Fails if a parked request is lost, or takes a thread or a place among the slow ones (40 are more than both) until it
 * goes on. */
TEST_WITH(test_parked_requests, setup, teardown)
{
    fixture_t *fix = *state;
    int fds[KVP_ARRAY_LEN(parked)];
    char text[16];
    for (int i = 0; i < 100; i++) {
        assert_int_equal(ask(fix, "GET", "/park", ""), 200);
        assert_string_equal(fix->body, "parked");
    }
    parked_n = 0;
    for (size_t i = 0; i < KVP_ARRAY_LEN(fds); i++) {
        fds[i] = begin(fix, "/park/all");
        while (parked_n <= i) /* one after the other, for they are queued until they are parked */
            sched_yield();
    }
    for (size_t i = 0; i < KVP_ARRAY_LEN(fds); i++) {
        assert_int_equal(recv(fds[i], text, 12, MSG_WAITALL), 12);
        assert_memory_equal(text, "HTTP/1.1 200", 12);
        close(fds[i]);
    }
}

TEST_WITH(test_claims_have_a_bound_and_end_with_the_request, setup, teardown)
{
    fixture_t *fix = *state;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(ask(fix, "PUT", "/claim/419430399", "x"), 200);
        assert_int_equal(ask(fix, "PUT", "/claim/419430400", "x"), 503);
        assert_non_null(strstr(fix->body, "too much is under way"));
        assert_int_equal(ask(fix, "PUT", "/claim/18446744073709551615", "x"), 503);
    }
}

TEST_WITH(test_large_responses_come_whole, setup, teardown)
{
    fixture_t *fix = *state;
    int fd = begin(fix, "/large");
    char piece[1 << 16];
    size_t total = 0;
    for (ssize_t n; (n = recv(fd, piece, sizeof(piece), 0)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            total += (uint8_t)piece[i] == 0xee;
    close(fd);
    assert_int_equal(total, 3u << 20);
}

TEST_WITH(test_a_path_with_a_nul_names_nothing, setup, teardown)
{
    fixture_t *fix = *state;
    assert_int_equal(ask(fix, "GET", "/echo%00x", ""), 404);
    assert_int_equal(ask(fix, "GET", "/gate/x%00y", ""), 404);
}

TEST_MAIN()
