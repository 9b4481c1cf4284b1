/* SPDX-License-Identifier: Apache-2.0
 * tcp against the conformance suite, and what is its own: strangers at the serving side, a lying server, a peer that
 * is killed, the bounds on connections. */
#include "tests/transport/suite.h"

#include "transport/all/registry.h"
#include "transport/tcp/wire.h"
#include "common/clock.h"
#include "common/hash.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ThreadSanitizer notes what sendmsg reads only when the call is over; by then the peer may have received it and the
 * owner, rightly, may write the memory again. */
KVP_API const char *__tsan_default_options(void);

const char *
__tsan_default_options(void)
{
    return "intercept_send=0";
}

/* A plain blocking socket at the serving side's door. */

static int
raw_connect(const kvp_hostport_t *addr)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(addr->port)};
    struct timeval limit = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, addr->host, &in.sin_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    return fd;
}

static void
raw_send(int fd, const void *data, size_t len)
{
    assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), len);
}

static bool
raw_recv(int fd, void *data, size_t len)
{
    return recv(fd, data, len, MSG_WAITALL) == (ssize_t)len;
}

/* The peer has closed, with or without a reset; a timeout is not it. */
static bool
raw_is_closed(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, 0);

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

typedef struct {
    uint32_t version, version_min;
    const char *pool;
    uint64_t incarnation;
} raw_hello_t;

static const raw_hello_t good_hello = {KVP_PROTO_VERSION, KVP_PROTO_VERSION_MIN, BENCH_POOL, 5};

static void
raw_send_hello(int fd, const raw_hello_t *h)
{
    Kvp__Pb__DataHello hello = KVP__PB__DATA_HELLO__INIT;
    kvp_buf_t out = {0};
    size_t at;

    hello.version = h->version;
    hello.version_min = h->version_min;
    hello.pool_id.data = (uint8_t *)h->pool;
    hello.pool_id.len = strlen(h->pool);
    hello.incarnation = h->incarnation;
    kvp_pb_frame_begin(&out, KVP_OP_DATA_HELLO, 0, 9, &hello, &at);
    kvp_frame_end(&out, at);
    raw_send(fd, out.data, out.len);
    kvp_buf_fini(&out);
}

static kvp_err_t
raw_verdict(int fd)
{
    uint8_t bytes[1024];
    kvp_frame_t frame;
    size_t used;
    kvp_pb_t pb;
    Kvp__Pb__Reply *reply;
    kvp_err_t err;
    uint32_t length;

    assert_true(raw_recv(fd, bytes, KVP_FRAME_HDR_BYTES));
    memcpy(&length, bytes, 4);
    assert_true(length <= sizeof bytes - KVP_FRAME_HDR_BYTES);
    if (length > 0) assert_true(raw_recv(fd, bytes + KVP_FRAME_HDR_BYTES, length));
    assert_int_equal(kvp_frame_parse(bytes, KVP_FRAME_HDR_BYTES + length, &frame, &used), KVP_OK);
    assert_int_equal(frame.hdr.request_id, 9);
    reply = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, &frame);
    assert_non_null(reply);
    err = reply->err;
    assert_true(err == KVP_OK || reply->detail[0] != '\0');
    kvp_pb_free(&pb, reply);
    return err;
}

static int
raw_open(const kvp_hostport_t *addr)
{
    int fd = raw_connect(addr);

    raw_send_hello(fd, &good_hello);
    assert_int_equal(raw_verdict(fd), KVP_OK);
    return fd;
}

static uint64_t
key_of_token(bench_t *b, kvp_access_t access)
{
    kvp_token_t token;
    uint64_t key;

    assert_int_equal(b->ops->mr_export(b->mr, access, BENCH_CLIENT, &token), KVP_OK);
    memcpy(&key, token.bytes, 8);
    return key;
}

static void
assert_serves(bench_t *b)
{
    uint8_t local[100];

    bench_fill(b->mem + BENCH_DATA, sizeof local, 1);
    assert_int_equal(bench_move(b->ep, KVP_XFER_READ, 0, b->rd, BENCH_DATA, local, sizeof local, NULL), KVP_OK);
    assert_true(bench_holds(local, sizeof local, 1));
}

/* Hello */

SUITE_TEST(test_hello_is_judged, "tcp")
{
    bench_t *b = *state;
    struct {
        raw_hello_t hello;
        kvp_err_t err;
    } cases[] = {
        {good_hello, KVP_OK},
        {{KVP_PROTO_VERSION + 5, KVP_PROTO_VERSION, BENCH_POOL, 5}, KVP_OK}, /* newer, and speaks ours */
        {{KVP_PROTO_VERSION + 5, KVP_PROTO_VERSION + 1, BENCH_POOL, 5}, KVP_VERSION},
        {{KVP_PROTO_VERSION_MIN - 1, 0, BENCH_POOL, 5}, KVP_VERSION},
        {{KVP_PROTO_VERSION, KVP_PROTO_VERSION_MIN, "another of them!", 5}, KVP_PROTO},
        {{KVP_PROTO_VERSION, KVP_PROTO_VERSION_MIN, "short", 5}, KVP_PROTO},
        {{KVP_PROTO_VERSION, KVP_PROTO_VERSION_MIN, BENCH_POOL, 0}, KVP_PROTO},
    };

    for (size_t i = 0; i < KVP_ARRAY_LEN(cases); i++) {
        int fd = raw_connect(&b->addr);

        raw_send_hello(fd, &cases[i].hello);
        assert_int_equal(raw_verdict(fd), cases[i].err);
        if (cases[i].err != KVP_OK) assert_true(raw_is_closed(fd));
        close(fd);
    }
    assert_serves(b);
}

SUITE_TEST(test_no_hello_is_closed, "tcp")
{
    bench_t *b = *state;
    uint8_t junk[300];
    int fd = raw_connect(&b->addr);

    memset(junk, 0xFF, sizeof junk);
    raw_send(fd, junk, sizeof junk);
    assert_true(raw_is_closed(fd));
    close(fd);

    fd = raw_connect(&b->addr);
    memset(junk, 0, sizeof junk);
    junk[0] = 200;
    junk[1] = 1; /* longer than any hello */
    junk[4] = KVP_OP_DATA_HELLO;
    raw_send(fd, junk, KVP_FRAME_HDR_BYTES);
    assert_true(raw_is_closed(fd));
    close(fd);
    assert_serves(b);
}

/* Half a hello is worth five seconds. */
SUITE_TEST(test_half_a_hello_is_closed_in_time, "tcp")
{
    bench_t *b = *state;
    int fd = raw_connect(&b->addr);
    uint64_t began_ns = kvp_now_ns();

    raw_send(fd, "\0\0\0", 3);
    assert_true(raw_is_closed(fd));
    assert_true(kvp_now_ns() - began_ns > 4 * KVP_NS_PER_S);
    assert_true(kvp_now_ns() - began_ns < BENCH_WAIT_NS);
    close(fd);
    assert_serves(b);
}

SUITE_TEST(test_too_many_connections_are_told_busy, "tcp")
{
    bench_t *b = *state;
    kvp_ep_t *eps[BENCH_CONNS] = {NULL};
    uint64_t until_ns = kvp_now_ns() + BENCH_WAIT_NS;
    kvp_ep_t *ep = NULL;
    kvp_err_t err = KVP_BUSY;

    for (size_t i = 1; i < BENCH_CONNS; i++)
        assert_int_equal(bench_connect(b->client, &b->addr, &eps[i]), KVP_OK);
    assert_int_equal(bench_connect(b->client, &b->addr, &ep), KVP_BUSY);
    assert_serves(b);
    for (size_t i = 1; i < BENCH_CONNS; i++)
        kvp_ep_destroy(eps[i]);
    /* The serving side sees the ends a moment later. */
    while (err == KVP_BUSY && kvp_now_ns() < until_ns)
        err = bench_connect(b->client, &b->addr, &ep);
    assert_int_equal(err, KVP_OK);
    kvp_ep_destroy(ep);
}

SUITE_TEST(test_adopted_socket_is_served, "tcp")
{
    bench_t *b = *state;
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(b->ops->adopt(b->server, pair[0]), KVP_OK);
    raw_send_hello(pair[1], &good_hello);
    assert_int_equal(raw_verdict(pair[1]), KVP_OK);
    close(pair[1]);
}

/* Requests */

SUITE_TEST(test_malformed_requests_end_their_connection, "tcp")
{
    bench_t *b = *state;
    uint64_t key = key_of_token(b, KVP_ACCESS_WRITE);
    struct {
        kvp_data_req_t req;
        kvp_data_op_t ops[2];
    } good = {.req = {.magic = KVP_DATA_MAGIC, .n_ops = 2, .bytes = 128},
              .ops = {{.kind = KVP_DATA_READ, .key = key, .len = 8}, {.kind = KVP_DATA_READ, .key = key, .len = 8}}},
      bad[17];
    struct {
        kvp_data_rep_t rep;
        int32_t status[2];
        uint64_t bytes[2];
    } answer;
    size_t n = 0;
    int fd;

    for (size_t i = 0; i < KVP_ARRAY_LEN(bad); i++)
        bad[i] = good;
    bad[n++].req.magic = 1;
    bad[n++].req.n_ops = 0;
    bad[n++].req.n_ops = KVP_DATA_OPS_MAX + 1;
    bad[n++].req.bytes = 127;
    bad[n++].req.bytes = 129; /* a READ has no bytes behind it */
    bad[n++].req.bytes = UINT64_MAX;
    bad[n++].ops[0].kind = 0;
    bad[n++].ops[1].kind = 7;
    bad[n++].ops[1].kind = KVP_DATA_PUBLISH; /* a request is of one kind */
    bad[n++].ops[0].flags = 0x80;
    bad[n++].ops[0].flags = KVP_DATA_GUARDED;
    bad[n++].ops[1].reserved1 = 1;
    bad[n++].ops[1].reserved2 = 1;
    bad[n++].ops[0].len = 0;
    bad[n].ops[0].kind = KVP_DATA_WRITE;
    bad[n++].ops[0].len = 65; /* more than the request has */
    bad[n].ops[0].kind = bad[n].ops[1].kind = KVP_DATA_PUBLISH;
    bad[n++].ops[1].off = 4;
    bad[n].ops[0].kind = bad[n].ops[1].kind = KVP_DATA_PUBLISH;
    bad[n++].ops[1].flags = KVP_DATA_SUM;
    assert_int_equal(n, KVP_ARRAY_LEN(bad));
    for (size_t i = 0; i < n; i++) {
        fd = raw_open(&b->addr);
        raw_send(fd, &bad[i], sizeof bad[i]);
        assert_true(raw_is_closed(fd));
        close(fd);
    }
    fd = raw_open(&b->addr);
    for (size_t i = 0; i < sizeof good; i++)
        raw_send(fd, (uint8_t *)&good + i, 1); /* in the smallest pieces */
    assert_true(raw_recv(fd, &answer, sizeof answer));
    assert_int_equal(answer.rep.bytes, 24);
    close(fd);
    assert_serves(b);
}

/* A peer that goes away within a body, a record or an answer leaves nothing behind. */
SUITE_TEST(test_peer_that_leaves_half_way, "tcp")
{
    bench_t *b = *state;
    struct {
        kvp_data_req_t req;
        kvp_data_op_t op;
        uint8_t body[100];
    } write = {
        .req = {.magic = KVP_DATA_MAGIC, .n_ops = 1, .bytes = 64 + 5000},
        .op = {.kind = KVP_DATA_WRITE, .key = key_of_token(b, KVP_ACCESS_WRITE), .off = BENCH_DATA, .len = 5000}};
    kvp_data_op_t read_all = {.kind = KVP_DATA_READ, .key = write.op.key, .len = BENCH_BYTES};

    for (size_t n = 1; n < sizeof write; n += 13) {
        int fd = raw_open(&b->addr);

        write.op.off = BENCH_DATA + n * 8192; /* each lands in its own place */
        raw_send(fd, &write, n);
        close(fd);
    }
    for (int i = 0; i < 4; i++) {
        int fd = raw_open(&b->addr);
        uint8_t some[1000];

        write.req.bytes = 64;
        raw_send(fd, &write.req, sizeof write.req);
        raw_send(fd, &read_all, sizeof read_all);
        assert_true(raw_recv(fd, some, sizeof some));
        close(fd);
    }
    assert_serves(b);
}

/* Memory is deregistered, and freed, while a peer is in the middle of reading or writing it. */
SUITE_TEST(test_dereg_ends_what_is_under_way, "tcp")
{
    bench_t *b = *state;
    size_t n = 64 << 20;

    for (int round = 0; round < 2; round++) {
        uint8_t *mem = bench_new(n);
        kvp_token_t token;
        kvp_mr_t *mr;
        struct {
            kvp_data_req_t req;
            kvp_data_op_t op;
        } half = {.req = {.magic = KVP_DATA_MAGIC, .n_ops = 1, .bytes = 64}, .op = {.kind = KVP_DATA_READ, .len = n}};
        uint8_t some[1000] = {0};
        int fd = raw_open(&b->addr);

        assert_int_equal(kvp_mr_create(b->server, &(kvp_mem_t){.addr = mem, .len = n, .fd = -1}, &mr), KVP_OK);
        assert_int_equal(b->ops->mr_export(mr, KVP_ACCESS_WRITE, BENCH_CLIENT, &token), KVP_OK);
        memcpy(&half.op.key, token.bytes, 8);
        memset(mem, 3, n);
        if (round == 1) {
            half.op.kind = KVP_DATA_WRITE;
            half.req.bytes += n;
        }
        raw_send(fd, &half, sizeof half);
        if (round == 0)
            assert_true(raw_recv(fd, some, sizeof some));
        else
            raw_send(fd, some, sizeof some);
        kvp_mr_destroy(mr);
        free(mem);
        if (round == 1) (void)!send(fd, some, sizeof some, MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        while (recv(fd, some, sizeof some, 0) > 0) {
        }
        close(fd);
    }
    assert_serves(b);
}

/* A lying server */

typedef enum {
    LIE_NONE,
    LIE_MAGIC,
    LIE_SEQ,
    LIE_N_OPS,
    LIE_MORE_BYTES,
    LIE_LESS_BYTES,
    LIE_STATUS,
    LIE_POSITIVE_STATUS,
    LIE_UNASKED,
    LIE_SHORT,
    LIE_SUM,
    LIES,
} lie_t;

typedef struct {
    int listen_fd;
    lie_t lie;
} liar_t;

/* Answers one request of one READ of 64 bytes, with their sum. */
static void *
liar_main(void *p)
{
    const liar_t *liar = p;
    struct {
        kvp_data_req_t req;
        kvp_data_op_t op;
    } asked;
    struct {
        kvp_data_rep_t rep;
        int32_t status[2];
        uint8_t bytes[64];
        uint64_t sum;
    } answer;
    uint8_t hello[256];
    uint32_t length;
    Kvp__Pb__Reply reply = KVP__PB__REPLY__INIT;
    kvp_buf_t out = {0};
    size_t at;
    int fd = accept(liar->listen_fd, NULL, NULL);

    if (fd < 0 || !raw_recv(fd, hello, 16)) return NULL;
    memcpy(&length, hello, 4);
    if (!raw_recv(fd, hello + 16, length)) return NULL;
    kvp_pb_frame_begin(&out, KVP_OP_DATA_HELLO, KVP_FRAME_REPLY, 0, &reply, &at);
    kvp_frame_end(&out, at);
    if (send(fd, out.data, out.len, MSG_NOSIGNAL) != (ssize_t)out.len) return NULL;
    kvp_buf_fini(&out);
    if (!raw_recv(fd, &asked, sizeof asked)) return NULL;

    memset(&answer, 7, sizeof answer);
    answer.rep = (kvp_data_rep_t){.magic = KVP_DATA_MAGIC, .n_ops = 1, .seq = asked.req.seq, .bytes = 8 + 64 + 8};
    answer.status[0] = KVP_OK;
    answer.sum = kvp_sum(answer.bytes, sizeof answer.bytes) + (liar->lie == LIE_SUM);
    if (liar->lie == LIE_MAGIC) answer.rep.magic++;
    if (liar->lie == LIE_SEQ) answer.rep.seq++;
    if (liar->lie == LIE_N_OPS) answer.rep.n_ops++;
    if (liar->lie == LIE_MORE_BYTES) answer.rep.bytes += 8;
    if (liar->lie == LIE_LESS_BYTES) answer.rep.bytes -= 8;
    if (liar->lie == LIE_STATUS) answer.status[0] = KVP_STALE; /* and yet bytes */
    if (liar->lie == LIE_POSITIVE_STATUS) answer.status[0] = 1;
    (void)!send(fd, &answer, sizeof answer - (liar->lie == LIE_SHORT ? 10 : 0), MSG_NOSIGNAL);
    if (liar->lie == LIE_UNASKED) (void)!send(fd, "x", 1, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    (void)!recv(fd, hello, 1, 0); /* until the client is gone */
    close(fd);
    return NULL;
}

SUITE_TEST(test_malformed_answers_break_the_endpoint, "tcp")
{
    bench_t *b = *state;

    for (lie_t lie = LIE_NONE; lie < LIES; lie++) {
        liar_t liar = {.listen_fd = socket(AF_INET, SOCK_STREAM, 0), .lie = lie};
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof in;
        kvp_hostport_t addr = {.host = "127.0.0.1"};
        uint8_t *local = calloc(1, 64); /* exactly: the sanitizer watches its end */
        kvp_iov_t iov = {.addr = local, .len = 64};
        kvp_xfer_t x = bench_xfer(KVP_XFER_READ, KVP_XFER_SUM | KVP_XFER_PEER_SUM, b->rd, 0, &iov, 1);
        pthread_t thread;
        kvp_ep_t *ep;

        assert_non_null(local);
        assert_int_equal(bind(liar.listen_fd, (struct sockaddr *)&in, sizeof in), 0);
        assert_int_equal(listen(liar.listen_fd, 1), 0);
        assert_int_equal(getsockname(liar.listen_fd, (struct sockaddr *)&in, &len), 0);
        addr.port = ntohs(in.sin_port);
        assert_int_equal(pthread_create(&thread, NULL, liar_main, &liar), 0);
        assert_int_equal(bench_connect(b->client, &addr, &ep), KVP_OK);
        assert_true(bench_run(ep, &x, 1));
        if (lie == LIE_NONE || lie == LIE_UNASKED)
            assert_int_equal(x.status, KVP_OK);
        else if (lie == LIE_SUM)
            assert_int_equal(x.status, KVP_CORRUPT);
        else
            assert_int_equal(x.status, lie == LIE_SHORT ? KVP_DISCONNECTED : KVP_PROTO);
        /* Either way the stream is over. */
        for (uint64_t until = kvp_now_ns() + BENCH_WAIT_NS; !b->ops->ep_is_broken(ep) && kvp_now_ns() < until;)
            b->ops->ep_poll(ep);
        assert_true(b->ops->ep_is_broken(ep));
        kvp_ep_destroy(ep);
        pthread_join(thread, NULL);
        close(liar.listen_fd);
        free(local);
    }
}

/* Sums of what a peer sends */

/* Of any size and place, in pieces, among READs without one and such that fail: each transfer has its own sum, and its
 * own bytes. */
SUITE_TEST(test_peer_tells_the_sum_of_what_it_sent, "tcp")
{
    static const size_t lens[] = {1, 8, 64, 128, 100, 4096, 1 << 20, (3 << 20) + 5, 7, 64};
    enum { N = KVP_ARRAY_LEN(lens), ROUNDS = 8 };
    bench_t *b = *state;
    uint8_t *local = bench_new(8 << 20);
    kvp_iov_t iov[N][3];
    kvp_xfer_t x[N];

    bench_fill(b->mem, 8 << 20, 21);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint8_t *at = local;

        memset(local, 0, 8 << 20);
        for (size_t i = 0; i < N; i++) {
            size_t first = lens[i] / 3;

            iov[i][0] = (kvp_iov_t){at, first};
            iov[i][1] = (kvp_iov_t){at + first, 0};
            iov[i][2] = (kvp_iov_t){at + first, lens[i] - first};
            x[i] = bench_xfer(KVP_XFER_READ, KVP_XFER_SUM, b->rd, i % 3 == 0 ? 64 : 67 + round, iov[i], 3);
            if ((i + round) % 4 != 0) x[i].flags |= KVP_XFER_PEER_SUM;
            if (i % 2 == 1) x[i].flags |= KVP_XFER_AFTER_PRIOR;
            at += lens[i];
        }
        assert_true(bench_run(b->ep, x, N));
        for (size_t i = 0; i < N; i++) {
            assert_int_equal(x[i].status, KVP_OK);
            assert_true(x[i].sum == kvp_sum(b->mem + x[i].roffset, lens[i]));
            assert_memory_equal(iov[i][0].addr, b->mem + x[i].roffset, lens[i]);
            if ((x[i].flags & KVP_XFER_PEER_SUM) != 0) assert_true(x[i].word == x[i].sum);
        }
    }
    free(local);
}

/* A peer that dies */

typedef struct {
    kvp_hostport_t addr;
    kvp_token_t token;
} told_t;

/* The serving process: never returns. */
static void
serve_in_child(int tell_fd)
{
    void *state = (void *)"tcp";
    told_t told = {0};
    bench_t *b;

    if (bench_setup(&state) != 0) _exit(1);
    b = state;
    told.addr = b->addr;
    if (b->ops->mr_export(b->mr, KVP_ACCESS_WRITE, BENCH_CLIENT, &told.token) != KVP_OK) _exit(1);
    if (write(tell_fd, &told, sizeof told) != sizeof told) _exit(1);
    for (;;)
        pause();
}

static void
count_status(kvp_xfer_t *x)
{
    size_t *count = x->arg;

    count[x->status == KVP_OK ? 0 : x->status == KVP_DISCONNECTED ? 1 : 2]++;
}

/* The first test: no thread runs yet when it forks. */
static void
test_peer_killed_in_the_middle(void **state)
{
    enum { N = 300, EACH = 1 << 20 };
    const kvp_transport_ops_t *ops = kvp_transport_find("tcp");
    kvp_tp_conf_t conf = {.incarnation = 77, .pool_id = BENCH_POOL};
    uint8_t *local = bench_new(EACH);
    kvp_iov_t iov = {.addr = local, .len = EACH};
    kvp_xfer_t *xs = bench_new(N * sizeof *xs);
    kvp_xfer_t **list = calloc(N, sizeof *list);
    size_t count[3] = {0};
    uint64_t until_ns;
    kvp_tp_t *client;
    kvp_rseg_t *rseg;
    kvp_ep_t *ep;
    told_t told;
    size_t took;
    int tell[2];
    pid_t child;

    (void)state;
    assert_non_null(list);
    assert_int_equal(pipe(tell), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) serve_in_child(tell[1]);
    close(tell[1]);
    assert_int_equal(read(tell[0], &told, sizeof told), sizeof told);
    close(tell[0]);

    assert_int_equal(kvp_tp_create(ops, &conf, &client), KVP_OK);
    assert_int_equal(kvp_rseg_create(client, &told.token, BENCH_BYTES, KVP_ACCESS_WRITE, &rseg), KVP_OK);
    assert_int_equal(bench_connect(client, &told.addr, &ep), KVP_OK);
    for (size_t i = 0; i < N; i++) {
        xs[i] = (kvp_xfer_t){.kind = i % 2 == 0 ? KVP_XFER_READ : KVP_XFER_WRITE,
                             .rseg = rseg,
                             .iov = &iov,
                             .iov_n = 1,
                             .roffset = BENCH_DATA,
                             .len = EACH,
                             .done = count_status,
                             .arg = count};
        list[i] = &xs[i];
    }
    assert_int_equal(ops->submit(ep, list, N, &took), KVP_OK);
    assert_int_equal(took, N);
    until_ns = kvp_now_ns() + BENCH_WAIT_NS;
    while (count[0] < 10 && kvp_now_ns() < until_ns)
        ops->ep_poll(ep);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(ops->drain(ep, kvp_now_ns() + BENCH_WAIT_NS), KVP_OK);
    assert_true(count[0] >= 10);
    assert_true(count[1] > 0);
    assert_int_equal(count[0] + count[1], N);
    assert_true(ops->ep_is_broken(ep));
    assert_int_equal(ops->submit(ep, list, 1, &took), KVP_DISCONNECTED);
    assert_int_equal(took, 0);
    assert_int_equal(count[0] + count[1] + count[2], N);
    kvp_ep_destroy(ep);
    assert_int_equal(waitpid(child, NULL, 0), child); /* its listener is gone for certain */
    assert_int_equal(bench_connect(client, &told.addr, &ep), KVP_UNREACHABLE);
    kvp_rseg_destroy(rseg);
    kvp_tp_destroy(client);
    free(local);
    free(xs);
    free(list);
}

/* Whoever has that number is ended, with what it had begun; the others are not, and it may come again. */
SUITE_TEST(test_cut_ends_connections_of_one_number, "tcp")
{
    bench_t *b = *state;
    raw_hello_t other = good_hello;
    kvp_data_req_t req = {.magic = KVP_DATA_MAGIC, .n_ops = 1, .bytes = sizeof(kvp_data_op_t) + 100};
    kvp_data_op_t op = {
        .kind = KVP_DATA_WRITE, .key = key_of_token(b, KVP_ACCESS_WRITE), .off = BENCH_DATA, .len = 100};
    int cut = raw_open(&b->addr), left = raw_connect(&b->addr);
    uint8_t body[100];
    struct {
        kvp_data_rep_t rep;
        int32_t status[2];
    } answer;

    other.incarnation = good_hello.incarnation + 1;
    raw_send_hello(left, &other);
    assert_int_equal(raw_verdict(left), KVP_OK);
    memset(body, 1, sizeof body);
    memset(b->mem + BENCH_DATA, 0, sizeof body);
    for (int i = 0; i < 2; i++) { /* all but the last byte of a write */
        int fd = i == 0 ? cut : left;

        raw_send(fd, &req, sizeof req);
        raw_send(fd, &op, sizeof op);
        raw_send(fd, body, sizeof body - 1);
    }
    b->ops->peer_cut(b->server, good_hello.incarnation);
    memset(b->mem + BENCH_DATA, 2, sizeof body);
    (void)!send(cut, body, 1, MSG_NOSIGNAL);
    assert_true(raw_is_closed(cut));
    close(cut);
    raw_send(left, body, 1);
    assert_true(raw_recv(left, &answer, sizeof answer));
    assert_int_equal(answer.status[0], KVP_OK);
    assert_int_equal(b->mem[BENCH_DATA + sizeof body - 1], 1);
    close(left);
    close(raw_open(&b->addr));
    assert_serves(b);
}

int
main(void)
{
    const struct CMUnitTest first[] = {cmocka_unit_test(test_peer_killed_in_the_middle)};

    return cmocka_run_group_tests(first, NULL, NULL) + suite_run("tcp") + run_cases(NULL, NULL);
}
