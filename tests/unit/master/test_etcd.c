/* SPDX-License-Identifier: Apache-2.0
 * The client of etcd against real ones, each alone in its cluster: leases, transactions, the watch, and endpoints
 * that are dead, hang, restart or ask for a password. Each run has a loopback address of its own (by its process id),
 * so that no other one takes a port that an etcd comes back to, or that nobody is to listen at. */
#include "master/ha/etcd.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SKIPPED 77
#define PATIENCE_NS (30 * KVP_NS_PER_S) /* for what has to happen */
#define PREFIX "/kvpool/test/"
#define MS KVP_NS_PER_MS

typedef struct {
    pid_t pid; /* 0 = does not run */
    char dir[128], url[64], peer_url[64];
} server_t;

static char binary[256], temp[96], own_address[32], dead_url[64], other_dead_url[64];
static server_t first, second;

static void
pick_url(char url[64])
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(inet_pton(AF_INET, own_address, &at.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    close(fd);
    snprintf(url, 64, "http://%s:%u", own_address, ntohs(at.sin_port));
}

static void
server_start(server_t *server)
{
    char log[160], cluster[80];

    snprintf(log, sizeof log, "%s.log", server->dir);
    snprintf(cluster, sizeof cluster, "a=%s", server->peer_url);
    server->pid = fork();
    assert_true(server->pid >= 0);
    if (server->pid > 0) return;
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fd, 1);
    dup2(fd, 2);
    execl(binary, binary, "--name", "a", "--data-dir", server->dir, "--listen-client-urls", server->url,
          "--advertise-client-urls", server->url, "--listen-peer-urls", server->peer_url,
          "--initial-advertise-peer-urls", server->peer_url, "--initial-cluster", cluster, "--heartbeat-interval", "20",
          "--election-timeout", "200", (char *)NULL);
    _exit(127);
}

static void
server_init(server_t *server, const char *name)
{
    snprintf(server->dir, sizeof server->dir, "%s/%s", temp, name);
    pick_url(server->url);
    pick_url(server->peer_url);
    server_start(server);
}

static void
server_kill(server_t *server)
{
    if (server->pid == 0) return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    kvp_etcd_answer_t answer; /* guarded by lock, as all below */
    bool has_answer;
    unsigned changes;
    kvp_etcd_t *etcd;
} client_t;

static void
on_answer(void *arg, kvp_etcd_answer_t *answer)
{
    client_t *client = arg;

    pthread_mutex_lock(&client->lock);
    client->answer = *answer;
    client->has_answer = true;
    pthread_cond_broadcast(&client->cond);
    pthread_mutex_unlock(&client->lock);
}

static void
on_change(void *arg)
{
    client_t *client = arg;

    pthread_mutex_lock(&client->lock);
    client->changes++;
    pthread_cond_broadcast(&client->cond);
    pthread_mutex_unlock(&client->lock);
}

static void
client_open(client_t *client, const char *endpoints, const char *user, const char *password, uint64_t request_ns)
{
    kvp_etcd_conf_t conf = {.endpoints = endpoints,
                            .prefix = PREFIX,
                            .user = user,
                            .password = password,
                            .request_ns = request_ns,
                            .on_answer = on_answer,
                            .on_change = on_change,
                            .arg = client};

    memset(client, 0, sizeof *client);
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->cond, NULL);
    assert_int_equal(kvp_etcd_create(&conf, &client->etcd), KVP_OK);
}

static void
client_close(client_t *client)
{
    kvp_etcd_destroy(client->etcd);
    if (client->has_answer) kvp_etcd_answer_fini(&client->answer);
    memset(client, 0, sizeof *client);
}

static struct timespec
patience(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(PATIENCE_NS / KVP_NS_PER_S);
    return until;
}

/* The caller frees the answer. */
static kvp_etcd_answer_t
ask(client_t *client, const kvp_etcd_op_t *op)
{
    static uint64_t ids;
    struct timespec until = patience();
    kvp_etcd_op_t own = *op;
    kvp_etcd_answer_t answer;

    own.id = ++ids;
    kvp_etcd_ask(client->etcd, &own);
    pthread_mutex_lock(&client->lock);
    while (!client->has_answer)
        assert_int_equal(pthread_cond_timedwait(&client->cond, &client->lock, &until), 0);
    client->has_answer = false;
    answer = client->answer;
    pthread_mutex_unlock(&client->lock);
    assert_int_equal(answer.id, own.id);
    assert_int_equal(answer.kind, own.kind);
    return answer;
}

static kvp_err_t
err_of(client_t *client, const kvp_etcd_op_t *op)
{
    kvp_etcd_answer_t answer = ask(client, op);

    kvp_etcd_answer_fini(&answer);
    return answer.err;
}

static const kvp_etcd_op_t read_all = {.kind = KVP_ETCD_READ};

/* Asks until the answer is that one: a server that starts, or an endpoint that is not the one in use. */
static void
wait_for_read(client_t *client, kvp_err_t err)
{
    uint64_t until_ns = kvp_now_ns() + PATIENCE_NS;

    while (err_of(client, &read_all) != err) {
        assert_true(kvp_now_ns() < until_ns);
        usleep(2000);
    }
}

static unsigned
changes(client_t *client)
{
    pthread_mutex_lock(&client->lock);
    unsigned n = client->changes;
    pthread_mutex_unlock(&client->lock);
    return n;
}

static void
wait_for_change(client_t *client, unsigned since)
{
    struct timespec until = patience();

    pthread_mutex_lock(&client->lock);
    while (client->changes == since)
        assert_int_equal(pthread_cond_timedwait(&client->cond, &client->lock, &until), 0);
    pthread_mutex_unlock(&client->lock);
}

static kvp_etcd_op_t
put_op(const char *key, const char *value, int64_t lease)
{
    kvp_etcd_op_t op = {.kind = KVP_ETCD_TXN, .writes_n = 1, .writes[0].lease = lease};

    snprintf(op.writes[0].key, sizeof op.writes[0].key, "%s", key);
    snprintf(op.writes[0].value, sizeof op.writes[0].value, "%s", value);
    return op;
}

static void
put(client_t *client, const char *key, const char *value)
{
    kvp_etcd_op_t op = put_op(key, value, 0);
    kvp_etcd_answer_t answer = ask(client, &op);

    assert_int_equal(answer.err, KVP_OK);
    assert_true(answer.has_succeeded);
}

static void
remove_key(client_t *client, const char *key)
{
    kvp_etcd_op_t op = put_op(key, "", 0);

    op.writes[0].is_removal = true;
    assert_int_equal(err_of(client, &op), KVP_OK);
}

/* The watch is on, as it has told: what changes from now on has to be told as well. */
static void
wait_for_watch(client_t *client)
{
    wait_for_change(client, 0);
}

static int64_t
grant(client_t *client, uint32_t ttl_s)
{
    kvp_etcd_answer_t answer = ask(client, &(kvp_etcd_op_t){.kind = KVP_ETCD_GRANT, .ttl_s = ttl_s});

    assert_int_equal(answer.err, KVP_OK);
    assert_true(answer.lease > 0 && answer.ttl_s >= ttl_s);
    assert_true(answer.sent_ns > 0 && answer.sent_ns <= kvp_boot_ns());
    return answer.lease;
}

static size_t
ignore_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    (void)bytes, (void)one, (void)arg;
    return n;
}

/* What the client cannot ask for: anything, of the gateway itself. */
static void
post(const char *url, const char *path, const char *body)
{
    CURL *easy = curl_easy_init();
    long status = 0;
    char whole[160];

    snprintf(whole, sizeof whole, "%s%s", url, path);
    curl_easy_setopt(easy, CURLOPT_URL, whole);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, ignore_bytes);
    assert_int_equal(curl_easy_perform(easy), CURLE_OK);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    assert_int_equal(status, 200);
    curl_easy_cleanup(easy);
}

TEST(test_lease_is_granted_kept_alive_and_revoked)
{
    client_t c;

    client_open(&c, first.url, NULL, NULL, PATIENCE_NS);
    int64_t lease = grant(&c, 30);
    kvp_etcd_op_t keep = {.kind = KVP_ETCD_KEEP_ALIVE, .lease = lease};
    kvp_etcd_op_t revoke = {.kind = KVP_ETCD_REVOKE, .lease = lease};
    kvp_etcd_answer_t answer = ask(&c, &keep);

    assert_int_equal(answer.err, KVP_OK);
    assert_int_equal(answer.lease, lease);
    assert_true(answer.ttl_s >= 29 && answer.ttl_s <= 30);
    assert_int_equal(err_of(&c, &revoke), KVP_OK);
    assert_int_equal(err_of(&c, &keep), KVP_NOT_FOUND);
    assert_int_equal(err_of(&c, &revoke), KVP_OK);

    kvp_etcd_op_t op = put_op(PREFIX "k", "v", lease);
    assert_int_equal(err_of(&c, &op), KVP_NOT_FOUND);

    uint64_t requests, failures;
    kvp_etcd_stats(c.etcd, &requests, &failures);
    assert_int_equal(requests, 6);
    assert_int_equal(failures, 0);
    client_close(&c);
}

TEST(test_txn_writes_if_all_compares_hold)
{
    client_t c;

    client_open(&c, first.url, NULL, NULL, PATIENCE_NS);
    int64_t lease = grant(&c, 30);
    kvp_etcd_op_t op = put_op(PREFIX "leader", "me", lease);
    op.writes_n = 2;
    snprintf(op.writes[1].key, sizeof op.writes[1].key, PREFIX "term");
    snprintf(op.writes[1].value, sizeof op.writes[1].value, "1");
    op.compares_n = 1;
    snprintf(op.compares[0].key, sizeof op.compares[0].key, PREFIX "leader"); /* made at 0: there is none */

    kvp_etcd_answer_t won = ask(&c, &op);
    assert_int_equal(won.err, KVP_OK);
    assert_true(won.has_succeeded);
    kvp_etcd_answer_t lost = ask(&c, &op);
    assert_int_equal(lost.err, KVP_OK);
    assert_false(lost.has_succeeded);
    assert_int_equal(lost.revision, won.revision);

    kvp_etcd_answer_t all = ask(&c, &read_all);
    assert_int_equal(all.err, KVP_OK);
    assert_int_equal(all.revision, won.revision);
    assert_int_equal(all.kvs_n, 2);
    assert_string_equal(all.kvs[0].key, PREFIX "leader");
    assert_string_equal(all.kvs[0].value, "me");
    assert_int_equal(all.kvs[0].create_revision, won.revision);
    assert_int_equal(all.kvs[0].lease, lease);
    assert_string_equal(all.kvs[1].key, PREFIX "term");
    assert_int_equal(all.kvs[1].lease, 0);
    kvp_etcd_answer_fini(&all);

    /* Compares of both kinds, of which one does not hold, then both. */
    put(&c, PREFIX "term", "2");
    op = put_op(PREFIX "term", "3", 0);
    op.compares_n = 2;
    snprintf(op.compares[0].key, sizeof op.compares[0].key, PREFIX "leader");
    op.compares[0].revision = won.revision;
    snprintf(op.compares[1].key, sizeof op.compares[1].key, PREFIX "term");
    op.compares[1].is_mod = true;
    op.compares[1].revision = won.revision;
    assert_false(ask(&c, &op).has_succeeded);
    op.compares[1].revision++;
    assert_true(ask(&c, &op).has_succeeded);

    remove_key(&c, PREFIX "term");
    assert_int_equal(err_of(&c, &(kvp_etcd_op_t){.kind = KVP_ETCD_REVOKE, .lease = lease}), KVP_OK);
    all = ask(&c, &read_all);
    assert_int_equal(all.kvs_n, 0);
    kvp_etcd_answer_fini(&all);
    client_close(&c);
}

TEST(test_read_has_the_prefix_alone_and_leaves_out_what_is_too_long)
{
    static const char *const others[] = {"/kvpool/test", "/kvpool/test0", "/kvpool/tesu"};
    kvp_etcd_op_t longest = put_op(PREFIX "longest", "", 0);
    char body[8192], key[64];
    client_t c;

    client_open(&c, first.url, NULL, NULL, PATIENCE_NS);
    for (size_t i = 0; i < KVP_ARRAY_LEN(others); i++)
        put(&c, others[i], "no");
    memset(longest.writes[0].value, 'x', KVP_ETCD_VALUE_MAX);
    assert_int_equal(err_of(&c, &longest), KVP_OK);
    put(&c, PREFIX "\xc3\xa4 \"\\", "\xe2\x82\xac\n");
    /* "/kvpool/test/nul" is "a\0b", and "/kvpool/test/long" a byte longer than the longest. */
    post(first.url, "/v3/kv/put", "{\"key\":\"L2t2cG9vbC90ZXN0L251bA==\",\"value\":\"YQBi\"}");
    snprintf(body, sizeof body, "{\"key\":\"L2t2cG9vbC90ZXN0L2xvbmc=\",\"value\":\"%5464s\"}", "");
    memset(strchr(body, ' '), 'A', 5464 - 2);
    memcpy(strchr(body, ' '), "==", 2);
    post(first.url, "/v3/kv/put", body);

    kvp_etcd_answer_t all = ask(&c, &read_all);
    assert_int_equal(all.err, KVP_OK);
    assert_int_equal(all.kvs_n, 2);
    assert_string_equal(all.kvs[0].key, PREFIX "longest");
    assert_string_equal(all.kvs[0].value, longest.writes[0].value);
    assert_string_equal(all.kvs[1].key, PREFIX "\xc3\xa4 \"\\");
    assert_string_equal(all.kvs[1].value, "\xe2\x82\xac\n");
    kvp_etcd_answer_fini(&all);

    remove_key(&c, PREFIX "longest");
    remove_key(&c, PREFIX "\xc3\xa4 \"\\");
    remove_key(&c, PREFIX "nul");
    remove_key(&c, PREFIX "long");
    for (int i = 0; i < 70; i++) {
        snprintf(key, sizeof key, PREFIX "many/%02d", i);
        put(&c, key, "x");
    }
    all = ask(&c, &read_all);
    assert_int_equal(all.kvs_n, KVP_ETCD_KVS_MAX);
    assert_string_equal(all.kvs[63].key, PREFIX "many/63");
    kvp_etcd_answer_fini(&all);
    for (int i = 0; i < 70; i++) {
        snprintf(key, sizeof key, PREFIX "many/%02d", i);
        remove_key(&c, key);
    }
    client_close(&c);
}

TEST(test_change_is_told_when_a_lease_ends_and_when_another_client_writes)
{
    client_t c, other;

    client_open(&c, first.url, NULL, NULL, PATIENCE_NS);
    client_open(&other, first.url, NULL, NULL, PATIENCE_NS);
    wait_for_watch(&c);
    unsigned before = changes(&c);
    kvp_etcd_op_t op = put_op(PREFIX "member", "x", grant(&other, 1));
    assert_int_equal(err_of(&other, &op), KVP_OK);
    for (bool is_gone = false; !is_gone;) {
        wait_for_change(&c, before);
        before = changes(&c);
        kvp_etcd_answer_t all = ask(&c, &read_all);
        assert_int_equal(all.err, KVP_OK);
        is_gone = all.kvs_n == 0;
        kvp_etcd_answer_fini(&all);
    }
    client_close(&c);
    client_close(&other);
}

/* An answer over 1 MiB is none. A message of a watch that is longer than what is read of one tells of a change all the
 * same, and the watch goes on. */
TEST(test_answer_that_is_too_long_is_refused_and_its_change_told)
{
    client_t c, other;
    const size_t body_cap = 1500000;
    char *body = malloc(body_cap);

    client_open(&c, first.url, NULL, NULL, PATIENCE_NS);
    client_open(&other, first.url, NULL, NULL, PATIENCE_NS);
    wait_for_watch(&c);
    unsigned before = changes(&c);
    snprintf(body, body_cap, "{\"key\":\"L2t2cG9vbC90ZXN0L2xvbmc=\",\"value\":\"%1400000s\"}", "");
    memset(strchr(body, ' '), 'A', 1400000);
    post(first.url, "/v3/kv/put", body);
    free(body);
    wait_for_change(&c, before);
    assert_int_equal(err_of(&c, &read_all), KVP_PROTO);
    before = changes(&c);
    remove_key(&other, PREFIX "long");
    wait_for_change(&c, before);
    client_close(&c);
    client_close(&other);
}

TEST(test_dead_endpoint_is_left_for_the_next)
{
    char endpoints[256];
    uint64_t requests, failures;
    client_t c;

    /* The watch moves on as well, so the first request may meet either. */
    snprintf(endpoints, sizeof endpoints, "%s,%s", dead_url, first.url + strlen("http://"));
    client_open(&c, endpoints, NULL, NULL, PATIENCE_NS);
    wait_for_read(&c, KVP_OK);
    kvp_etcd_stats(c.etcd, &requests, &failures);
    assert_true(failures <= 1);
    wait_for_watch(&c);
    for (int i = 0; i < 5; i++)
        assert_int_equal(err_of(&c, &read_all), KVP_OK);
    client_close(&c);
}

TEST(test_hanging_endpoint_is_left_for_the_next_by_the_watch_as_well)
{
    char endpoints[256];
    client_t c, other;

    snprintf(endpoints, sizeof endpoints, "%s,%s", second.url, first.url);
    client_open(&other, first.url, NULL, NULL, PATIENCE_NS);
    client_open(&c, endpoints, NULL, NULL, 300 * MS);
    wait_for_read(&c, KVP_OK);
    wait_for_watch(&c);
    unsigned before = changes(&c);
    kill(second.pid, SIGSTOP);

    uint64_t at_ns = kvp_now_ns();
    for (kvp_err_t err = KVP_OK; err != KVP_DEADLINE; err = err_of(&c, &read_all)) /* slow ones before it went */
        assert_true(kvp_now_ns() < at_ns + PATIENCE_NS);
    wait_for_change(&c, before); /* the watch is on at the other one */
    wait_for_read(&c, KVP_OK);
    before = changes(&c);
    put(&other, PREFIX "k", "v");
    wait_for_change(&c, before);
    remove_key(&other, PREFIX "k");
    client_close(&other);
    client_close(&c);

    /* First in the list from the start; and one that only waits for it ends in time. */
    client_open(&c, endpoints, NULL, NULL, 300 * MS);
    wait_for_read(&c, KVP_OK);
    client_close(&c);
    client_open(&c, second.url, NULL, NULL, 300 * MS);
    kvp_etcd_ask(c.etcd, &read_all);
    client_close(&c);
    kill(second.pid, SIGCONT);
}

TEST(test_restarted_server_is_used_again)
{
    client_t c, other;

    client_open(&c, second.url, NULL, NULL, 2000 * MS);
    client_open(&other, second.url, NULL, NULL, 2000 * MS);
    wait_for_read(&c, KVP_OK);
    wait_for_watch(&c);
    put(&c, PREFIX "kept", "v");
    server_kill(&second);
    assert_int_equal(err_of(&c, &read_all), KVP_UNREACHABLE);
    unsigned before = changes(&c);
    server_start(&second);
    wait_for_change(&c, before);
    wait_for_read(&c, KVP_OK);
    wait_for_read(&other, KVP_OK);
    before = changes(&c);
    remove_key(&other, PREFIX "kept");
    wait_for_change(&c, before);
    client_close(&c);
    client_close(&other);
}

TEST(test_password_is_asked_for)
{
    client_t c, early, nobody, wrong;

    client_open(&early, second.url, "root", "pass\"word", PATIENCE_NS);
    assert_int_equal(err_of(&early, &read_all), KVP_OK); /* nobody is asked yet */
    post(second.url, "/v3/auth/user/add", "{\"name\":\"root\",\"password\":\"pass\\\"word\"}");
    post(second.url, "/v3/auth/role/add", "{\"name\":\"root\"}");
    post(second.url, "/v3/auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}");
    post(second.url, "/v3/auth/enable", "{}");
    assert_int_equal(err_of(&early, &read_all), KVP_OK);

    client_open(&nobody, second.url, NULL, NULL, PATIENCE_NS);
    assert_int_equal(err_of(&nobody, &read_all), KVP_FENCED);
    client_close(&nobody);
    client_open(&wrong, second.url, "root", "password", PATIENCE_NS);
    assert_int_equal(err_of(&wrong, &read_all), KVP_FENCED);
    assert_int_equal(err_of(&wrong, &read_all), KVP_FENCED);
    client_close(&wrong);

    client_open(&c, second.url, "root", "pass\"word", 10000 * MS);
    wait_for_watch(&c);
    unsigned before = changes(&c);
    put(&early, PREFIX "k", "v");
    wait_for_change(&c, before);
    int64_t lease = grant(&c, 30);
    assert_int_equal(err_of(&c, &(kvp_etcd_op_t){.kind = KVP_ETCD_KEEP_ALIVE, .lease = lease}), KVP_OK);
    assert_int_equal(err_of(&c, &(kvp_etcd_op_t){.kind = KVP_ETCD_REVOKE, .lease = lease}), KVP_OK);

    /* It forgets its tokens. What is refused for that is asked again with a new one, once and without an answer in
     * between. */
    server_kill(&second);
    server_start(&second);
    kvp_err_t err;
    while ((err = err_of(&c, &read_all)) != KVP_OK) {
        assert_true(err == KVP_UNREACHABLE || err == KVP_DEADLINE);
        usleep(2000);
    }
    before = changes(&c);
    remove_key(&c, PREFIX "k");
    wait_for_change(&c, before);
    client_close(&early);
    client_close(&c);
}

TEST(test_nobody_answers_in_time)
{
    char endpoints[256];
    client_t c;

    snprintf(endpoints, sizeof endpoints, "%s,%s", dead_url, other_dead_url);
    client_open(&c, endpoints, NULL, NULL, 5000 * MS);
    uint64_t at_ns = kvp_now_ns(), requests, failures;
    for (int kind = KVP_ETCD_GRANT; kind <= KVP_ETCD_TXN; kind++)
        assert_int_equal(err_of(&c, &(kvp_etcd_op_t){.kind = (kvp_etcd_kind_t)kind}), KVP_UNREACHABLE);
    assert_true(kvp_now_ns() - at_ns < 5000 * MS);
    kvp_etcd_stats(c.etcd, &requests, &failures);
    assert_int_equal(requests, 5);
    assert_int_equal(failures, 5);
    assert_int_equal(changes(&c), 0);
    client_close(&c);
    client_open(&c, endpoints, "user", "password", 5000 * MS);
    assert_int_equal(err_of(&c, &read_all), KVP_UNREACHABLE);
    client_close(&c);
}

TEST(test_create_refuses_what_cannot_be)
{
    static const char *const bad[] = {
        "", ",", "host", "host:1,", "host:0", "ftp://host:1", "http://h:1/", "https://:1", "u:p@host:1", "a:1 b:1"};
    kvp_etcd_conf_t conf = {.prefix = PREFIX, .on_answer = on_answer, .on_change = on_change};
    kvp_etcd_t *etcd = NULL;
    char many[17 * 4 + 1] = "", long_prefix[KVP_ETCD_KEY_MAX + 2] = "";

    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++) {
        conf.endpoints = bad[i];
        assert_int_equal(kvp_etcd_create(&conf, &etcd), KVP_INVALID);
    }
    for (int i = 0; i < 17; i++)
        strcat(many, i > 0 ? ",h:1" : "h:1");
    conf.endpoints = many;
    assert_int_equal(kvp_etcd_create(&conf, &etcd), KVP_INVALID);
    conf.endpoints = "host:1";
    conf.cert_file = "/no/such/file";
    assert_int_equal(kvp_etcd_create(&conf, &etcd), KVP_INVALID);
    conf.cert_file = NULL;
    conf.prefix = "";
    assert_int_equal(kvp_etcd_create(&conf, &etcd), KVP_INVALID);
    memset(long_prefix, 'a', sizeof long_prefix - 1);
    conf.prefix = long_prefix;
    assert_int_equal(kvp_etcd_create(&conf, &etcd), KVP_INVALID);
    assert_null(etcd);
    kvp_etcd_destroy(NULL);
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void
find_binary(void)
{
    const char *path = getenv("PATH");

    for (const char *at = path != NULL ? path : ""; *at != '\0';) {
        size_t len = strcspn(at, ":");

        snprintf(binary, sizeof binary, "%.*s/etcd", (int)len, at);
        if (access(binary, X_OK) == 0) return;
        at += len + (at[len] == ':');
    }
    printf("skipped: there is no etcd here (Debian's package etcd-server)\n");
    exit(SKIPPED);
}

static int
set_up(void **state)
{
    const char *dir = getenv("TMPDIR");
    unsigned pid = (unsigned)getpid();
    client_t c;
    (void)state;

    curl_global_init(CURL_GLOBAL_DEFAULT);
    snprintf(temp, sizeof temp, "%s/kvpool-etcd.XXXXXX", dir != NULL ? dir : "/tmp");
    assert_non_null(mkdtemp(temp));
    snprintf(own_address, sizeof own_address, "127.%u.%u.%u", 64 + (pid >> 16) % 128, pid >> 8 & 255, pid & 255);
    server_init(&first, "first");
    server_init(&second, "second");
    pick_url(dead_url);
    pick_url(other_dead_url);
    for (int i = 0; i < 2; i++) {
        client_open(&c, i == 0 ? first.url : second.url, NULL, NULL, PATIENCE_NS);
        wait_for_read(&c, KVP_OK);
        client_close(&c);
    }
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    server_kill(&first);
    server_kill(&second);
    curl_global_cleanup();
    return nftw(temp, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int
main(void)
{
    find_binary();
    return run_cases(set_up, tear_down);
}
