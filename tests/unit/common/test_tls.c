/* SPDX-License-Identifier: Apache-2.0
 * TLS between two ends in memory, with certificates that the product makes: which peers are accepted, what bytes
 * arrive, and which reason a failure has. */
#include "common/clock.h"
#include "common/trust/certs.h"
#include "common/trust/handshakes.h"
#include "tests/cases.h"

#include <openssl/ssl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define TTL_S 3600u

static char home[64];

static void
make(const char *ca, kvp_authrole_t role, const char *name)
{
    char dir[128], path[KVP_CERTS_PATH_MAX], why[KVP_CERTS_WHY_MAX] = "";
    kvp_err_t err;

    snprintf(dir, sizeof dir, "%s/%s", home, ca);
    err = kvp_certs_make(dir, role, name, "", TTL_S, false, path, why);
    if (err != KVP_OK) fail_msg("%s", why);
}

static const char *
path_of(const char *ca, const char *name, const char *end)
{
    static char paths[64][160]; /* more than a test has at once */
    static unsigned next;
    char *path = paths[next++ % 64];

    snprintf(path, sizeof paths[0], "%s/%s/%s.%s", home, ca, name, end);
    return path;
}

static kvp_creds_t
files(const char *ca, const char *cert_ca, const char *cert)
{
    kvp_creds_t f = {.tls_ca = path_of(ca, "ca", "pem")};

    if (cert == NULL) return f;
    f.tls_cert = path_of(cert_ca, cert, "pem");
    f.tls_key = path_of(cert_ca, cert, "key");
    return f;
}

static int
setup_all(void **state)
{
    (void)state;
    snprintf(home, sizeof home, "/tmp/kvp-tls-XXXXXX");
    if (mkdtemp(home) == NULL) return -1;
    make("ca", KVP_MAY_NOTHING, "pool");
    make("ca", KVP_IS_MASTER, "m1");
    make("ca", KVP_IS_NODE, "n1");
    make("ca", KVP_MAY_WRITE, "acme");
    make("ca", KVP_IS_ENGINE, "acme/h1");
    make("other", KVP_MAY_NOTHING, "pool");
    make("other", KVP_MAY_WRITE, "acme");
    return 0;
}

static int
teardown_all(void **state)
{
    char command[96];

    (void)state;
    snprintf(command, sizeof command, "rm -r %s", home);
    return system(command);
}

/* Moves the encrypted bytes of one end to the other, piece bytes at a time. */
static size_t
carry(kvp_tls_t *from, kvp_tls_t *to, size_t piece)
{
    uint8_t bytes[4096];
    size_t n, all = 0;

    while ((n = kvp_tls_take(from, bytes, piece)) > 0) {
        if (kvp_tls_feed(to, bytes, n) != KVP_OK) return 0;
        all += n;
    }
    return all;
}

typedef struct {
    kvp_tls_server_t *server;
    kvp_tls_t *client, *accepted;
    kvp_err_t client_err, server_err;
} ends_t;

static void
shake_hands(ends_t *e)
{
    for (int i = 0; i < 8; i++) {
        e->client_err = kvp_tls_step(e->client);
        carry(e->client, e->accepted, 100);
        e->server_err = kvp_tls_step(e->accepted);
        carry(e->accepted, e->client, 100);
    }
}

static ends_t
connect_ends(const kvp_creds_t *server, const kvp_creds_t *client, kvp_authrole_t wanted, const char *name)
{
    ends_t e = {.client_err = KVP_EAGAIN, .server_err = KVP_EAGAIN};
    char why[KVP_TLS_WHY_MAX] = "";

    if (kvp_tls_server_create(server, KVP_IS_MASTER, &e.server, why) != KVP_OK) fail_msg("%s", why);
    e.client = kvp_tls_client(client, wanted, name);
    e.accepted = kvp_tls_server_accept(e.server, 0, why);
    assert_non_null(e.client);
    assert_non_null(e.accepted);
    shake_hands(&e);
    return e;
}

static void
end_ends(ends_t *e)
{
    kvp_tls_destroy(e->client);
    kvp_tls_destroy(e->accepted);
    kvp_tls_server_destroy(e->server);
}

TEST(test_both_ends_know_each_other_and_bytes_arrive)
{
    const kvp_creds_t master = files("ca", "ca", "master-m1"), writer = files("ca", "ca", "writer-acme");
    ends_t e = connect_ends(&master, &writer, KVP_IS_MASTER, NULL);
    const size_t len = 1u << 20;
    uint8_t *sent = malloc(len), *got = malloc(len);
    size_t at = 0, n;

    assert_int_equal(e.client_err, KVP_OK);
    assert_int_equal(e.server_err, KVP_OK);
    assert_int_equal(kvp_tls_peer(e.accepted)->role, KVP_MAY_WRITE);
    assert_string_equal(kvp_tls_peer(e.accepted)->name, "acme");
    assert_string_equal(kvp_tls_peer(e.accepted)->cluster, "pool");
    assert_int_equal(strlen(kvp_tls_peer(e.accepted)->id), 32);
    assert_true(kvp_tls_peer(e.accepted)->end_s > 0);
    assert_int_equal(kvp_tls_peer(e.client)->role, KVP_IS_MASTER);
    for (size_t i = 0; i < len; i++)
        sent[i] = (uint8_t)(i * 31 >> 3);
    assert_int_equal(kvp_tls_seal(e.client, sent, len), KVP_OK);
    assert_true(carry(e.client, e.accepted, 4096) > len);
    while (kvp_tls_open(e.accepted, got + at, 1000 < len - at ? 1000 : len - at, &n) == KVP_OK && at < len)
        at += n;
    assert_int_equal(at, len);
    assert_memory_equal(sent, got, len);
    assert_int_equal(kvp_tls_held(e.accepted), 0);
    assert_int_equal(kvp_tls_open(e.accepted, got, len, &n), KVP_EAGAIN);
    free(sent);
    free(got);
    end_ends(&e);
}

/* Fails if a peer that asks for key updates without end makes the answers pile up, or if a few of them end the
 * connection. */
TEST(test_key_updates_are_answered_and_limited)
{
    const kvp_creds_t master = files("ca", "ca", "master-m1"), writer = files("ca", "ca", "writer-acme");
    ends_t e = connect_ends(&master, &writer, KVP_IS_MASTER, NULL);
    SSL *ssl = *(SSL **)e.client; /* the first field of a connection */
    uint8_t got[64], bytes[128];
    kvp_err_t err = KVP_OK;
    size_t n, waiting = 0;
    int i;

    for (i = 0; i < 10000 && err == KVP_OK; i++) {
        assert_int_equal(SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED), 1);
        assert_int_equal(kvp_tls_seal(e.client, "x", 1), KVP_OK);
        carry(e.client, e.accepted, 100);
        err = kvp_tls_open(e.accepted, got, sizeof got, &n);
        if (i < 100) carry(e.accepted, e.client, 100); /* the answers are sent */
    }
    assert_true(i > 200 && i < 10000);
    assert_int_equal(err, KVP_PROTO);
    assert_non_null(strstr(kvp_tls_why(e.accepted), "key updates"));
    while ((n = kvp_tls_take(e.accepted, bytes, sizeof bytes)) > 0)
        waiting += n;
    assert_true(waiting < 20000);
    end_ends(&e);
}

/* Fails if an engine is accepted as a node of another name, such as its tenant's. */
TEST(test_an_engine_serves_as_its_own_nodes)
{
    const kvp_creds_t engine = files("ca", "ca", "engine-acme-h1"), writer = files("ca", "ca", "writer-acme");
    static const char *const names[] = {"h1", "h1:7001", "[h1]:7001", "h2", "acme", "acme:1", "h10", ""};
    char why[KVP_TLS_WHY_MAX];

    for (size_t i = 0; i < KVP_ARRAY_LEN(names); i++) {
        ends_t e = {.client = kvp_tls_client(&writer, KVP_IS_NODE, names[i])};

        assert_int_equal(kvp_tls_server_create(&engine, KVP_IS_NODE, &e.server, why), KVP_OK);
        e.accepted = kvp_tls_server_accept(e.server, 0, why);
        shake_hands(&e);
        assert_int_equal(e.client_err, i < 3 || names[i][0] == '\0' ? KVP_OK : KVP_DENIED);
        end_ends(&e);
    }
}

TEST(test_a_changed_byte_ends_the_connection_with_a_lasting_error)
{
    const kvp_creds_t master = files("ca", "ca", "master-m1"), writer = files("ca", "ca", "writer-acme");
    ends_t e = connect_ends(&master, &writer, KVP_IS_MASTER, NULL);
    uint8_t bytes[256];
    size_t n;

    assert_int_equal(kvp_tls_seal(e.client, "hello", 5), KVP_OK);
    n = kvp_tls_take(e.client, bytes, sizeof bytes);
    bytes[n - 1] ^= 1;
    assert_int_equal(kvp_tls_feed(e.accepted, bytes, n), KVP_OK);
    assert_int_equal(kvp_tls_open(e.accepted, bytes, sizeof bytes, &n), KVP_PROTO);
    assert_string_not_equal(kvp_tls_why(e.accepted), "");
    assert_int_equal(kvp_tls_open(e.accepted, bytes, sizeof bytes, &n), KVP_PROTO);
    assert_int_equal(kvp_tls_seal(e.accepted, "x", 1), KVP_PROTO);
    assert_true(kvp_tls_held(e.accepted) > 0); /* so that a receive call finds the error */
    end_ends(&e);
}

static void
expect_refused(const kvp_creds_t *client, kvp_authrole_t wanted, const char *name, kvp_err_t err, const char *why)
{
    const kvp_creds_t master = files("ca", "ca", "master-m1");
    ends_t e = connect_ends(&master, client, wanted, name);

    assert_int_equal(e.client_err, err);
    if (strstr(kvp_tls_why(e.client), why) == NULL) fail_msg("\"%s\" lacks \"%s\"", kvp_tls_why(e.client), why);
    end_ends(&e);
}

TEST(test_a_client_refuses_servers_that_it_does_not_want)
{
    const kvp_creds_t writer = files("ca", "ca", "writer-acme"), other = files("other", "other", "writer-acme");
    const kvp_creds_t no_file = files("none", "ca", "writer-acme"),
                      no_key = {.tls_ca = path_of("ca", "ca", "pem"), .tls_cert = path_of("ca", "writer-acme", "pem")};

    expect_refused(&other, KVP_IS_MASTER, NULL, KVP_DENIED, "the certificate of the master is refused");
    expect_refused(&writer, KVP_IS_NODE, NULL, KVP_DENIED, "of the role master");
    expect_refused(&writer, KVP_IS_MASTER, "m2", KVP_DENIED, "not of m2");
    expect_refused(&no_file, KVP_IS_MASTER, NULL, KVP_INVALID, "none/ca.pem");
    expect_refused(&no_key, KVP_IS_MASTER, NULL, KVP_INVALID, "without its key");
}

TEST(test_a_server_needs_its_role_and_its_key)
{
    const kvp_creds_t writer = files("ca", "ca", "writer-acme"), bare = files("ca", NULL, NULL);
    kvp_creds_t swapped = files("ca", "ca", "master-m1");
    char why[KVP_TLS_WHY_MAX] = "";
    kvp_tls_server_t *server = NULL;

    assert_int_equal(kvp_tls_server_create(&writer, KVP_IS_NODE, &server, why), KVP_INVALID);
    assert_non_null(strstr(why, "needs a certificate of the role node"));
    assert_int_equal(kvp_tls_server_create(&bare, KVP_IS_NODE, &server, why), KVP_INVALID);
    assert_non_null(strstr(why, "needs a certificate beside the CA"));
    swapped.tls_key = writer.tls_key;
    assert_int_equal(kvp_tls_server_create(&swapped, KVP_IS_MASTER, &server, why), KVP_INVALID);
    assert_non_null(strstr(why, "the key"));
    assert_null(server);
}

static void
expect_reason(kvp_tls_server_t *server, uint64_t now_s, const char *reason)
{
    char why[KVP_TLS_WHY_MAX];
    kvp_tls_t *t = kvp_tls_server_accept(server, now_s * KVP_NS_PER_S, why);

    assert_non_null(t);
    if (strncmp(why, reason, strlen(reason)) != 0 || (reason[0] == '\0') != (why[0] == '\0'))
        fail_msg("\"%s\" instead of \"%s\"", why, reason);
    kvp_tls_destroy(t);
}

TEST(test_changed_files_are_used_and_faulty_ones_are_not)
{
    kvp_creds_t node = files("ca", "ca", "node-n1");
    char why[KVP_TLS_WHY_MAX] = "", moved[256];
    kvp_tls_server_t *server;
    FILE *file;

    assert_int_equal(kvp_tls_server_create(&node, KVP_IS_NODE, &server, why), KVP_OK);
    assert_string_equal(kvp_tls_server_who(server)->name, "n1");
    snprintf(moved, sizeof moved, "%.200s.old", node.tls_cert);
    assert_int_equal(rename(node.tls_cert, moved), 0);
    file = fopen(node.tls_cert, "w");
    fprintf(file, "not a certificate\n");
    fclose(file);
    expect_reason(server, 2, "the certificate");
    expect_reason(server, 4, ""); /* one report for each change */
    assert_int_equal(rename(moved, node.tls_cert), 0);
    expect_reason(server, 6, "");
    kvp_tls_server_destroy(server);
}

/* A client looks at its files at each connection: a file that is replaced, is missing, and is back counts at once. */
TEST(test_a_client_uses_changed_files_at_once)
{
    const kvp_creds_t master = files("ca", "ca", "master-m1");
    kvp_creds_t writer = files("ca", "ca", "writer-acme");
    ends_t e = connect_ends(&master, &writer, KVP_IS_MASTER, NULL);
    char kept[2][192];

    assert_int_equal(kvp_tls_peer(e.accepted)->role, KVP_MAY_WRITE);
    end_ends(&e);
    for (int i = 0; i < 2; i++) {
        snprintf(kept[i], sizeof kept[i], "%s.kept", i == 0 ? writer.tls_cert : writer.tls_key);
        assert_int_equal(rename(i == 0 ? writer.tls_cert : writer.tls_key, kept[i]), 0);
    }
    e = connect_ends(&master, &writer, KVP_IS_MASTER, NULL);
    assert_int_equal(e.client_err, KVP_INVALID);
    assert_non_null(strstr(kvp_tls_why(e.client), writer.tls_cert));
    end_ends(&e);
    assert_int_equal(symlink(path_of("other", "writer-acme", "pem"), writer.tls_cert), 0);
    assert_int_equal(symlink(path_of("other", "writer-acme", "key"), writer.tls_key), 0);
    e = connect_ends(&master, &writer, KVP_IS_MASTER, NULL);
    assert_int_equal(e.server_err, KVP_DENIED); /* the other CA's */
    end_ends(&e);
    assert_int_equal(rename(kept[0], writer.tls_cert), 0);
    assert_int_equal(rename(kept[1], writer.tls_key), 0);
    e = connect_ends(&master, &writer, KVP_IS_MASTER, NULL);
    assert_int_equal(e.client_err, KVP_OK);
    assert_int_equal(kvp_tls_peer(e.accepted)->role, KVP_MAY_WRITE);
    end_ends(&e);
    writer.tls_crl = kept[0]; /* a revocation list that is missing is not the same as none */
    e = connect_ends(&master, &writer, KVP_IS_MASTER, NULL);
    assert_int_equal(e.client_err, KVP_INVALID);
    end_ends(&e);
}

TEST(test_only_handshakes_of_tls_look_like_it)
{
    assert_true(kvp_tls_is_hello((const uint8_t *)"\x16\x03\x01\x02", 4));
    assert_false(kvp_tls_is_hello((const uint8_t *)"\x16\x03", 2));
    assert_false(kvp_tls_is_hello((const uint8_t *)"\x16\x03\x00", 3)); /* a frame of 790 bytes */
    assert_false(kvp_tls_is_hello((const uint8_t *)"GET ", 4));
}

/* ---- the threads of a server */
static void
count_wake(void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, 1);
}

TEST(test_a_handshake_ends_with_a_connection_and_its_first_bytes)
{
    const kvp_creds_t master = files("ca", "ca", "master-m1"), writer = files("ca", "ca", "writer-acme");
    char why[KVP_TLS_WHY_MAX] = "";
    _Atomic int wakes = 0;
    kvp_handshake_t ended = {.fd = -1};
    kvp_handshakes_t *h;
    uint8_t bytes[4096];
    kvp_tls_t *client;
    int fds[2];

    assert_int_equal(kvp_handshakes_start(&master, KVP_IS_MASTER, count_wake, &wakes, &h, why), KVP_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(kvp_handshakes_add(h, fds[0]), KVP_OK);
    client = kvp_tls_client(&writer, KVP_IS_MASTER, "m1");
    while (kvp_tls_step(client) == KVP_EAGAIN) {
        struct pollfd p = {.fd = fds[1], .events = POLLIN};
        size_t n = kvp_tls_take(client, bytes, sizeof bytes);
        ssize_t got;

        if (n > 0) assert_int_equal(write(fds[1], bytes, n), n);
        assert_int_equal(poll(&p, 1, 5000), 1);
        got = read(fds[1], bytes, sizeof bytes);
        assert_true(got > 0);
        assert_int_equal(kvp_tls_feed(client, bytes, (size_t)got), KVP_OK);
    }
    assert_true(kvp_tls_is_done(client));
    assert_int_equal(kvp_tls_seal(client, "first", 5), KVP_OK); /* goes with the end of the handshake */
    assert_true(write(fds[1], bytes, kvp_tls_take(client, bytes, sizeof bytes)) > 0);
    for (int i = 0; i < 10000 && !kvp_handshakes_take(h, &ended); i++)
        (void)poll(NULL, 0, 1);
    assert_int_equal(ended.err, KVP_OK);
    assert_int_equal(ended.fd, fds[0]);
    assert_string_equal(kvp_tls_peer(ended.tls)->name, "acme");
    assert_true(wakes > 0);
    kvp_tls_destroy(ended.tls);
    kvp_tls_destroy(client);
    close(ended.fd);
    close(fds[1]);
    kvp_handshakes_stop(h);
}

TEST_MAIN_WITH(setup_all, teardown_all)
