/* SPDX-License-Identifier: Apache-2.0
 * Endpoints between which something is stuck: bytes that arrive late, peers that do not answer, memory that is in use
 * for long, a child that lives longer than its parent. */
#include "client/kvpool_p2p.h"

#include "common/clock.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"
#include "tests/unit/loopback.h"
#include "tests/unit/p2p/p2pend.h"
#include "tests/unit/p2p/slowproxy.h"
#include "tests/cases.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES 65536u
#define SENT (sizeof(kvp_data_req_t) + sizeof(kvp_data_op_t) + BYTES) /* by tcp, of one write of BYTES */
#define SOON_NS (30 * KVP_NS_PER_S)

static int
write_all(const end_t *from, const char *at, const end_t *to, int with, uint32_t deadline_ms)
{
    kvpool_p2p_op_t op = {.local = from->mem, .remote = (uintptr_t)to->mem, .len = BYTES};

    memset(from->mem, with, BYTES);
    return kvpool_p2p_transfer(from->p2p, at, KVPOOL_P2P_WRITE, &op, 1, deadline_ms);
}

/* ---- late bytes */

static void
wait_kept(const slow_proxy_t *proxy)
{
    uint64_t until_ns = kvp_now_ns() + SOON_NS;

    while (proxy->kept_bytes < SENT) {
        assert_true(kvp_now_ns() < until_ns);
        pause_briefly();
    }
}

/* What was kept is let go: either the far end has ended that connection, or the bytes land. */
static void
let_land(slow_proxy_t *proxy, const end_t *to, int late)
{
    uint64_t until_ns = kvp_now_ns() + SOON_NS;

    proxy->must_release = true;
    while (proxy->ended_n < proxy->held_n && *(volatile uint8_t *)&to->mem[BYTES - 1] != late) {
        assert_true(kvp_now_ns() < until_ns);
        pause_briefly();
    }
}

TEST(test_what_was_given_up_lands_no_more)
{
    slow_proxy_t proxy;
    end_t a, b;

    open_ends(&a, &b, BYTES, "tcp");
    slow_proxy_start(&proxy, kvpool_p2p_port(b.p2p));
    assert_int_equal(write_all(&a, proxy.at, &b, 'z', 0), KVPOOL_OK);
    proxy.must_hold = true;
    assert_int_equal(write_all(&a, proxy.at, &b, 'a', 300), KVPOOL_DEADLINE);
    wait_kept(&proxy);
    expect_all(b.mem, BYTES, 'z');
    proxy.must_hold = false;
    assert_int_equal(write_all(&a, proxy.at, &b, 'b', 0), KVPOOL_OK);
    expect_all(b.mem, BYTES, 'b');
    let_land(&proxy, &b, 'a');
    expect_all(b.mem, BYTES, 'b');
    /* And the next is none the worse for it. */
    assert_int_equal(write_all(&a, proxy.at, &b, 'c', 0), KVPOOL_OK);
    expect_all(b.mem, BYTES, 'c');
    assert_int_equal(proxy.held_n, 1);
    slow_proxy_stop(&proxy);
    close_ends(&a, &b);
}

/* The same where the connection is lost, and the call itself takes another. */
TEST(test_what_was_lost_on_its_way_lands_no_more)
{
    slow_proxy_t proxy;
    end_t a, b;

    open_ends(&a, &b, BYTES, "tcp");
    slow_proxy_start(&proxy, kvpool_p2p_port(b.p2p));
    proxy.drop_at = SENT;
    proxy.must_hold = true;
    assert_int_equal(write_all(&a, proxy.at, &b, 'a', 0), KVPOOL_OK);
    assert_true(proxy.kept_bytes == SENT);
    expect_all(b.mem, BYTES, 'a');
    memset(b.mem, 'o', BYTES); /* the owner's, now that it has taken what came */
    let_land(&proxy, &b, 'a');
    expect_all(b.mem, BYTES, 'o');
    slow_proxy_stop(&proxy);
    close_ends(&a, &b);
}

/* ---- peers that do not answer */
TEST(test_silent_peers_hold_up_no_other)
{
    enum { PEERS = 4, EACH = 10 };
    int fds[PEERS], result = 1;
    char peers[PEERS][32];
    kvpool_p2p_op_t op;
    uint64_t id, began_ns;
    end_t a, b;

    open_ends(&a, &b, BYTES, "tcp");
    op = (kvpool_p2p_op_t){.local = a.mem, .remote = (uintptr_t)b.mem, .len = BYTES};
    for (size_t i = 0; i < PEERS; i++) {
        fds[i] = listen_local(peers[i]);
        for (size_t k = 0; k < EACH; k++)
            assert_int_equal(kvpool_p2p_submit(a.p2p, peers[i], KVPOOL_P2P_WRITE, &op, 1, 600000, &id), KVPOOL_OK);
    }
    began_ns = kvp_now_ns();
    for (size_t i = 0; i < 20; i++) {
        assert_int_equal(kvpool_p2p_submit(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0, &id), KVPOOL_OK);
        assert_int_equal(kvpool_p2p_poll(a.p2p, id, 20000, &result), KVPOOL_OK);
        assert_int_equal(result, KVPOOL_OK);
    }
    assert_true(kvp_now_ns() - began_ns < SOON_NS);
    /* Nor the end. */
    began_ns = kvp_now_ns();
    assert_int_equal(kvpool_p2p_close(a.p2p), KVPOOL_OK);
    assert_true(kvp_now_ns() - began_ns < SOON_NS);
    for (size_t i = 0; i < PEERS; i++)
        close(fds[i]);
    close_ends(&a, &b);
}

/* ---- pieces over two ranges */
TEST(test_a_piece_holds_all_ranges_that_it_touches)
{
    enum { HALF = BYTES / 2, WAIT_MS = 600 };
    uint8_t *mem = calloc(1, 2 * BYTES);
    kvpool_p2p_op_t op = {.local = mem + HALF / 2, .remote = 4096, .len = BYTES};
    uint64_t id, began_ns;
    char peer[32];
    int fd, result;
    end_t a;

    assert_non_null(mem);
    open_end_of(&a, BYTES, "tcp", 0, 0);
    fd = listen_local(peer);
    for (size_t i = 0; i < 3; i++) {
        /* The first, the second, and the third of them is asked to go while the piece is under way. */
        for (size_t k = 0; k < 3; k++)
            assert_int_equal(kvpool_p2p_register(a.p2p, mem + k * HALF, HALF, NULL), KVPOOL_OK);
        began_ns = kvp_now_ns();
        assert_int_equal(kvpool_p2p_submit(a.p2p, peer, KVPOOL_P2P_READ, &op, 1, WAIT_MS, &id), KVPOOL_OK);
        assert_int_equal(kvpool_p2p_unregister(a.p2p, mem + i * HALF), KVPOOL_OK);
        assert_true(kvp_now_ns() - began_ns >= WAIT_MS * KVP_NS_PER_MS);
        assert_int_equal(kvpool_p2p_poll(a.p2p, id, 20000, &result), KVPOOL_OK);
        assert_int_equal(result, KVPOOL_DEADLINE);
        for (size_t k = 0; k < 3; k++)
            if (k != i) assert_int_equal(kvpool_p2p_unregister(a.p2p, mem + k * HALF), KVPOOL_OK);
    }
    close(fd);
    close_end(&a);
    free(mem);
}

/* At the peer's side such a piece is refused: the two ranges may come and go each by itself. */
TEST(test_a_remote_piece_over_two_ranges_is_refused)
{
    uint8_t *mem = calloc(1, 2 * BYTES);
    uint64_t last = (uintptr_t)mem + BYTES - 1; /* byte of the first range */
    end_t a, b;

    assert_non_null(mem);
    open_ends(&a, &b, BYTES, "tcp");
    memset(a.mem, 'a', BYTES);
    for (size_t k = 0; k < 2; k++)
        assert_int_equal(kvpool_p2p_register(b.p2p, mem + k * BYTES, BYTES, NULL), KVPOOL_OK);
    assert_int_equal(move_piece(&a, b.at, KVPOOL_P2P_WRITE, a.mem, last, 2), KVPOOL_NOT_REGISTERED);
    assert_int_equal(move_piece(&a, b.at, KVPOOL_P2P_READ, a.mem, last, 2), KVPOOL_NOT_REGISTERED);
    assert_true(mem[BYTES - 1] == 0 && mem[BYTES] == 0);
    assert_int_equal(move_piece(&a, b.at, KVPOOL_P2P_WRITE, a.mem, last, 1), KVPOOL_OK);
    assert_true(mem[BYTES - 1] == 'a' && mem[BYTES] == 0);
    close_ends(&a, &b);
    free(mem);
}

/* ---- a child that lives on */

/* A data connection, its hello answered. */
static int
connect_for_data(uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    Kvp__Pb__DataHello hello = KVP__PB__DATA_HELLO__INIT;
    uint8_t pool_id[16] = "kvpool peers 1", answer[KVP_FRAME_HDR_BYTES];
    struct timeval limit = {.tv_sec = SOON_NS / KVP_NS_PER_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    kvp_buf_t out;
    size_t begin;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    hello.version = KVP_PROTO_VERSION;
    hello.version_min = KVP_PROTO_VERSION_MIN;
    hello.pool_id = (ProtobufCBinaryData){sizeof pool_id, pool_id};
    hello.incarnation = 77;
    kvp_buf_init(&out, 0);
    kvp_pb_frame_begin(&out, KVP_OP_DATA_HELLO, 0, 1, &hello, &begin);
    kvp_frame_end(&out, begin);
    assert_int_equal(out.err, KVP_OK);
    assert_int_equal(send(fd, out.data, out.len, MSG_NOSIGNAL), out.len);
    assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    kvp_buf_fini(&out);
    return fd;
}

typedef struct {
    int from_test[2], to_test[2]; /* pipes */
} wires_t;

/* The owner of an endpoint, which forks when it is told to and is killed then. Its child lives until the test lets go
 * of the pipe. */
static void
owner_main(const wires_t *w)
{
    char word = 0;
    uint16_t port;
    end_t a;

    close(w->from_test[1]);
    open_end_of(&a, BYTES, "tcp", 0, 0);
    port = kvpool_p2p_port(a.p2p);
    if (write(w->to_test[1], &port, sizeof port) != sizeof port || read(w->from_test[0], &word, 1) != 1) _exit(1);
    if (fork() == 0) {
        if (write(w->to_test[1], &port, sizeof port) != sizeof port) _exit(1);
        (void)!read(w->from_test[0], &word, 1);
        _exit(0);
    }
    for (;;)
        pause();
}

TEST(test_a_forked_child_keeps_no_peer_waiting)
{
    wires_t w;
    char rest[256];
    uint16_t port;
    pid_t owner;
    ssize_t n;
    int fd;

    assert_int_equal(pipe(w.from_test), 0);
    assert_int_equal(pipe(w.to_test), 0);
    owner = fork();
    assert_true(owner >= 0);
    if (owner == 0) owner_main(&w);
    assert_int_equal(read(w.to_test[0], &port, sizeof port), sizeof port);
    fd = connect_for_data(port);
    assert_int_equal(write(w.from_test[1], "f", 1), 1);
    assert_int_equal(read(w.to_test[0], &port, sizeof port), sizeof port);
    assert_int_equal(kill(owner, SIGKILL), 0);
    do
        n = recv(fd, rest, sizeof rest, 0); /* what was left of the answer, then the end */
    while (n > 0);
    assert_true(n == 0 || errno == ECONNRESET);
    assert_int_equal(waitpid(owner, NULL, 0), owner);
    for (int i = 0; i < 2; i++) {
        close(w.from_test[i]);
        close(w.to_test[i]);
    }
    close(fd);
}

TEST_MAIN()
