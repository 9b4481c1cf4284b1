/* SPDX-License-Identifier: Apache-2.0
 * The masters that etcd knows: whatever it answers, and whichever of its members do. A server of a few lines stands for
 * a member. */
#include "net/discover.h"

#include "net/masters.h"
#include "common/waits.h"
#include "tests/unit/net/fakemaster.h"
#include "tests/cases.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_NS (20 * KVP_NS_PER_S)
#define HUGE_BYTES (8u << 20)
#define KEY "L2t2cG9vbC90ZXN0L21hc3RlcnMv" /* /kvpool/test/masters/ */

static bool is_curl_missing;

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *
__wrap_dlopen(const char *name, int flags)
{
    return is_curl_missing ? NULL : __real_dlopen(name, flags);
}

/* ---- a member of etcd */
typedef struct {
    uint16_t port;
    int listener;
    pthread_t thread;
    _Atomic(const char *) answer; /* headers and all; NULL = it is silent */
    _Atomic bool is_huge; /* as many bytes more as go out */
    _Atomic uint32_t asked;
    char question[4096];
} member_t;

static void
answer(member_t *e, int fd)
{
    static const char filler[4096] = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    const char *said = e->answer;
    size_t at = 0;
    ssize_t n;

    while (at < sizeof e->question - 1 && (n = recv(fd, e->question + at, sizeof e->question - 1 - at, 0)) > 0) {
        at += (size_t)n;
        e->question[at] = '\0';
        if (strchr(e->question, '}') != NULL) break;
    }
    e->asked++;
    if (said == NULL) { /* until the other side gives up */
        (void)recv(fd, (char[1]){0}, 1, 0);
        return;
    }
    (void)send(fd, said, strlen(said), MSG_NOSIGNAL);
    for (size_t sent = 0; e->is_huge && sent < HUGE_BYTES; sent += sizeof filler)
        if (send(fd, filler, sizeof filler, MSG_NOSIGNAL) < 0) return;
}

static void *
serve(void *arg)
{
    member_t *e = arg;
    int fd;

    while ((fd = accept(e->listener, NULL, NULL)) >= 0) {
        answer(e, fd);
        close(fd);
    }
    return NULL;
}

static void
start(member_t *e)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;

    memset(e, 0, sizeof *e);
    e->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(e->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(e->listener, 16), 0);
    assert_int_equal(getsockname(e->listener, (struct sockaddr *)&at, &len), 0);
    e->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&e->thread, NULL, serve, e), 0);
}

static void
end(member_t *e)
{
    shutdown(e->listener, SHUT_RDWR);
    pthread_join(e->thread, NULL);
    close(e->listener);
}

/* In a process of its own, for a library that is loaded stays, and before any other test. */
TEST(test_no_libcurl)
{
    const pid_t pid = fork();
    int status;

    if (pid == 0) {
        kvp_discover_t *d;

        is_curl_missing = true;
        _exit(kvp_discover_create("etcd://127.0.0.1:1", NULL, &d) == KVP_NOTSUP ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- what it says */
static char *
base64(const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t len = strlen(text), at = 0;
    char *out = calloc(1, len * 2 + 8);

    for (size_t i = 0; i < len; i += 3) {
        uint32_t bits = (uint32_t)(uint8_t)text[i] << 16 | (i + 1 < len ? (uint32_t)(uint8_t)text[i + 1] << 8 : 0) |
                        (i + 2 < len ? (uint8_t)text[i + 2] : 0);

        for (int j = 0; j < 4; j++)
            out[at++] = i + (size_t)j > len ? '=' : digits[bits >> (18 - 6 * j) & 63];
    }
    return out;
}

#define OK_HEAD "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"

static const char *
kvs(const char *const *values, size_t n)
{
    static char texts[4][80 << 10]; /* one in turn: the last one may be on its way */
    static size_t turn;
    char *text = texts[turn++ % KVP_ARRAY_LEN(texts)];
    const size_t cap = sizeof texts[0];
    size_t at = (size_t)snprintf(text, cap, OK_HEAD "{\"header\":{\"revision\":\"7\"},\"kvs\":[");

    for (size_t i = 0; i < n; i++) {
        char *value = base64(values[i]);

        at += (size_t)snprintf(text + at, cap - at,
                               "%s{\"key\":\"" KEY "\",\"version\":\"1\",\"value\":\"%s\",\"lease\":\"5\"}",
                               i > 0 ? "," : "", value);
        free(value);
    }
    snprintf(text + at, cap - at, "],\"count\":\"%zu\"}\n", n);
    return text;
}

static const char *
masters_at(const uint16_t *ports, size_t n)
{
    char texts[KVP_MASTERS_MAX][96];
    const char *values[KVP_MASTERS_MAX];

    for (size_t i = 0; i < n; i++) {
        snprintf(texts[i], sizeof texts[i], "id=m%zu address=127.0.0.1:%u http=127.0.0.1:1 term=0", i, ports[i]);
        values[i] = texts[i];
    }
    return kvs(values, n);
}

static kvp_discover_t *
discover(const char *list)
{
    kvp_discover_t *d = NULL;

    assert_int_equal(kvp_discover_create(list, "test", &d), KVP_OK);
    return d;
}

/* One round: how many masters it finds. */
static size_t
look(kvp_discover_t *d, kvp_hostport_t at[KVP_MASTERS_MAX])
{
    uint64_t again_ns, end_ns = kvp_now_ns() + LONG_NS;
    size_t n = 0;

    while (!kvp_discover_step(d, at, KVP_MASTERS_MAX, &n, &again_ns)) {
        uint64_t now = kvp_now_ns();

        assert_in_range(now, 0, end_ns);
        if (again_ns > now + 20 * KVP_NS_PER_MS) return 0; /* the round is over */
        kvp_poll_until(NULL, 0, again_ns);
    }
    return n;
}

/* ---- tests */
TEST(test_lists)
{
    static const char *const bad[] = {
        "etcd://",
        "etcd://;",
        "etcd://a",
        "etcd://a:1;",
        "etcd://a:1;;b:2",
        "etcd://ftp://a:1",
        "etcd://a:70000",
        "etcd://a:1/x",
        "etcd://a:1,b:2,c:3,d:4,e:5,f:6,g:7,h:8,i:9,j:10,k:11,l:12,m:13,n:14,o:15,p:16,q:17"};
    static const char *const good[] = {"etcd://a:1", "etcd://a:1;b:2,c:3", "etcd://http://a:1;https://[::1]:2"};
    kvp_discover_t *d;

    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++)
        assert_int_equal(kvp_discover_create(bad[i], NULL, &d), KVP_INVALID);
    assert_int_equal(kvp_discover_create(good[0], "a/b", &d), KVP_INVALID);
    for (size_t i = 0; i < KVP_ARRAY_LEN(good); i++) {
        assert_int_equal(kvp_discover_create(good[i], NULL, &d), KVP_OK);
        kvp_discover_destroy(d);
    }
}

TEST(test_masters_are_read)
{
    static const char *const values[] = {"id=a address=127.0.0.1:1 http=none term=0", "", "id=b http=127.0.0.1:1",
                                         "id=c address=nonsense http=x",
                                         "id=d address=[fd00::1]:65535 http=none term=9"};
    kvp_hostport_t at[KVP_MASTERS_MAX];
    char list[64];
    kvp_discover_t *d;
    member_t e;

    start(&e);
    e.answer = kvs(values, KVP_ARRAY_LEN(values));
    snprintf(list, sizeof list, "etcd://127.0.0.1:%u", e.port);
    d = discover(list);
    assert_true(kvp_discover_why(d)[0] != '\0');
    assert_int_equal(look(d, at), 2);
    assert_string_equal(kvp_discover_why(d), "");
    assert_string_equal(at[0].host, "127.0.0.1");
    assert_string_equal(at[1].host, "fd00::1");
    assert_int_equal(at[1].port, 65535);
    assert_non_null(strstr(e.question, "POST /v3/kv/range"));
    assert_non_null(strstr(e.question, "{\"key\":\"" KEY "\",\"range_end\":\"L2t2cG9vbC90ZXN0L21hc3RlcnMw\"}"));
    /* Not again within a second. */
    assert_int_equal(look(d, at), 0);
    assert_int_equal(e.asked, 1);
    kvp_discover_destroy(d);
    end(&e);
}

TEST(test_bad_answers)
{
    static const char *const answers[] = {
        "",
        "nonsense\r\n\r\n",
        OK_HEAD,
        OK_HEAD "{}",
        OK_HEAD "{\"kvs\":[{\"value\":",
        OK_HEAD "\"value\"",
        OK_HEAD "\"value\":\"!!!\"",
        OK_HEAD "\"value\"\"value\":\"aWQ",
        "HTTP/1.1 503 Unavailable\r\nConnection: close\r\n\r\n{\"error\":\"etcdserver: no leader\"}"};
    kvp_hostport_t at[KVP_MASTERS_MAX];
    char list[64];
    member_t e;

    start(&e);
    snprintf(list, sizeof list, "etcd://127.0.0.1:%u", e.port);
    for (size_t i = 0; i <= KVP_ARRAY_LEN(answers); i++) {
        kvp_discover_t *d = discover(list);

        e.answer = i < KVP_ARRAY_LEN(answers) ? answers[i] : OK_HEAD;
        e.is_huge = i == KVP_ARRAY_LEN(answers);
        assert_int_equal(look(d, at), 0);
        assert_non_null(strstr(kvp_discover_why(d), list + strlen("etcd://")));
        if (e.is_huge) assert_non_null(strstr(kvp_discover_why(d), "too long"));
        kvp_discover_destroy(d);
    }
    end(&e);
}

/* More than there may be, and each value longer than any is. */
TEST(test_too_many_masters)
{
    static char values[40][1200];
    const char *list_of[40];
    kvp_hostport_t at[KVP_MASTERS_MAX];
    char list[64];
    kvp_discover_t *d;
    member_t e;

    for (size_t i = 0; i < KVP_ARRAY_LEN(values); i++) {
        int n = snprintf(values[i], sizeof values[i], "id=m address=127.0.0.1:%zu http=", i + 1);

        memset(values[i] + n, 'x', sizeof values[i] - (size_t)n - 1);
        list_of[i] = values[i];
    }
    start(&e);
    e.answer = kvs(list_of, KVP_ARRAY_LEN(values));
    snprintf(list, sizeof list, "etcd://127.0.0.1:%u", e.port);
    d = discover(list);
    assert_int_equal(look(d, at), KVP_MASTERS_MAX);
    assert_int_equal(at[KVP_MASTERS_MAX - 1].port, KVP_MASTERS_MAX);
    kvp_discover_destroy(d);
    end(&e);
}

/* One refuses, one is silent, one knows; whichever is asked first. */
TEST(test_members_in_turn)
{
    const uint16_t port = 4711;
    kvp_hostport_t at[KVP_MASTERS_MAX];
    member_t gone, silent, good;
    char list[128];

    start(&gone);
    end(&gone);
    start(&silent);
    start(&good);
    good.answer = masters_at(&port, 1);
    snprintf(list, sizeof list, "etcd://127.0.0.1:%u;127.0.0.1:%u,http://127.0.0.1:%u", gone.port, silent.port,
             good.port);
    for (int i = 0; i < 5; i++) {
        uint64_t began = kvp_now_ns();
        kvp_discover_t *d = discover(list);

        assert_int_equal(look(d, at), 1);
        assert_int_equal(at[0].port, port);
        assert_in_range(kvp_now_ns() - began, 0, 3 * KVP_NS_PER_S);
        kvp_discover_destroy(d);
    }
    end(&silent);
    end(&good);
}

/* A find waits until somebody is there, and follows masters that move. */
TEST(test_masters_that_move)
{
    const kvp_hostport_t *at;
    fake_master_t old, new;
    uint16_t ports[2];
    char list[64];
    kvp_masters_t *m;
    kvp_framed_t c;
    member_t e;

    fake_master_start(&old);
    fake_master_start(&new);
    old.term = 1;
    new.term = 2;
    start(&e);
    e.answer = kvs(NULL, 0);
    snprintf(list, sizeof list, "etcd://127.0.0.1:%u", e.port);
    assert_int_equal(kvp_masters_create(list, "test", NULL, &m), KVP_OK);
    assert_true(kvp_masters_are_several(m));
    assert_int_equal(kvp_masters_find(m, NULL, kvp_now_ns() + 200 * KVP_NS_PER_MS, &c, &at), KVP_UNREACHABLE);
    assert_non_null(strstr(kvp_masters_why(m), "knows no master"));
    ports[0] = old.port;
    ports[1] = 1; /* nobody listens there */
    e.answer = masters_at(ports, 2);
    assert_int_equal(kvp_masters_find(m, NULL, kvp_now_ns() + LONG_NS, &c, &at), KVP_OK);
    assert_int_equal(at->port, old.port);
    assert_int_equal(kvp_masters_term(m), 1);
    kvp_framed_fini(&c);
    fake_master_end(&old);
    ports[0] = new.port;
    e.answer = masters_at(ports, 1);
    assert_int_equal(kvp_masters_find(m, NULL, kvp_now_ns() + LONG_NS, &c, &at), KVP_OK);
    assert_int_equal(at->port, new.port);
    kvp_framed_fini(&c);
    kvp_masters_destroy(m);
    fake_master_end(&new);
    end(&e);
}

TEST_MAIN()
