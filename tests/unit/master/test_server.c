/* SPDX-License-Identifier: Apache-2.0
 * The shell around the core, over real sockets of loopback: frames in every shape, peers that misbehave, limits, and
 * a stop that loses nothing. The core is the real one; of what it answers only the frames matter here. */
#include "tests/unit/master/fixture.h"

#include "common/hash.h"
#include "common/log.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void
read_stats(void *arg)
{
    fixture_t *fix = arg;
    kvp_server_stats(fix->server, &fix->stats);
    kvp_master_stats(fix->core, &fix->core_stats);
}

static const kvp_server_stats_t *
stats(fixture_t *fix)
{
    assert_int_equal(kvp_loop_call(&fix->loop, read_stats, fix, WAIT_MS), KVP_OK);
    return &fix->stats;
}

/* wait_for waits until the figure is what it should be. */
#define wait_for(fix, condition)                                                                                       \
    do {                                                                                                               \
        uint64_t until_ns = kvp_now_ns() + WAIT_MS * KVP_NS_PER_MS;                                                    \
        while (stats(fix), !(condition)) {                                                                             \
            assert_true(kvp_now_ns() < until_ns);                                                                      \
            usleep(1000);                                                                                              \
        }                                                                                                              \
    } while (0)

/* ---- a peer */
static int
tcp_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    return fd;
}

static void
connect_tcp(fixture_t *fix, int fd)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons(kvp_server_bound(fix->server)->port);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
}

static int
dial(fixture_t *fix)
{
    int fd = tcp_socket();
    connect_tcp(fix, fd);
    return fd;
}

static int
dial_unix(fixture_t *fix)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", kvp_server_unix_path(fix->server));
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

static void
send_bytes(int fd, const void *bytes, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, (const char *)bytes + at, len - at, MSG_NOSIGNAL);
        assert_true(n > 0);
        at += (size_t)n;
    }
}

static bool
wait_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, WAIT_MS) == 1;
}

/* recv_frame gives the next frame's header and tail; false at the end of the connection. */
static bool
recv_frame(int fd, kvp_frame_t *frame, uint8_t *bytes, size_t cap)
{
    size_t len = 0, want = KVP_FRAME_HDR_BYTES, used;

    while (len < want) {
        assert_true(wait_readable(fd));
        ssize_t n = recv(fd, bytes + len, want - len, 0);
        if (n <= 0) {
            assert_int_equal(len, 0);
            return false;
        }
        len += (size_t)n;
        if (len == KVP_FRAME_HDR_BYTES) {
            kvp_frame_hdr_t hdr;
            assert_int_equal(kvp_frame_hdr_decode(bytes, &hdr), KVP_OK);
            want += hdr.length;
            assert_true(want <= cap);
        }
    }
    assert_int_equal(kvp_frame_parse(bytes, len, frame, &used), KVP_OK);
    assert_int_equal(used, len);
    return true;
}

static uint8_t answer[1u << 20];

static void
expect_answer(int fd, uint8_t opcode, uint64_t id)
{
    kvp_frame_t frame;
    assert_true(recv_frame(fd, &frame, answer, sizeof(answer)));
    assert_int_equal(frame.hdr.opcode, opcode);
    assert_int_equal(frame.hdr.request_id, id);
    assert_int_equal(frame.hdr.flags, KVP_FRAME_REPLY);
}

static void
expect_end(int fd)
{
    char byte;
    assert_true(wait_readable(fd));
    ssize_t n = recv(fd, &byte, 1, 0);
    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
    close(fd);
}

static void
append_hello(kvp_buf_t *out, uint64_t id, uint32_t version_min, uint32_t version)
{
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;
    size_t at;

    hello.version = version;
    hello.version_min = version_min;
    hello.role = KVP_ROLE_CLIENT;
    hello.name = (char *)"test";
    kvp_pb_frame_begin(out, KVP_OP_HELLO, 0, id, &hello, &at);
    kvp_frame_end(out, at);
}

static void
append_exists(kvp_buf_t *out, uint64_t id, uint32_t n)
{
    Kvp__Pb__Exists msg = KVP__PB__EXISTS__INIT;
    size_t at;

    msg.n = n;
    kvp_pb_frame_begin(out, KVP_OP_EXISTS, 0, id, &msg, &at);
    for (uint32_t i = 0; i < n; i++)
        kvp_buf_append(out, &(kvp_digest_t){i, id}, sizeof(kvp_digest_t));
    kvp_frame_end(out, at);
}

/* A put of a key of odd length: the frame behind it does not begin aligned. */
static void
append_put(kvp_buf_t *out, uint64_t id)
{
    Kvp__Pb__PutBegin msg = KVP__PB__PUT_BEGIN__INIT;
    kvp_wire_put_t put = {.len = 64, .attempt = id, .key_len = (uint32_t)(id % 7 + 1)};
    size_t at;

    msg.n = 1;
    msg.wait_ms = 1;
    put.digest = kvp_key_digest(7, 0, "abcdefgh", put.key_len);
    kvp_pb_frame_begin(out, KVP_OP_PUT_BEGIN, 0, id, &msg, &at);
    kvp_buf_append(out, &put, sizeof(put));
    kvp_buf_append(out, "abcdefgh", put.key_len);
    kvp_frame_end(out, at);
}

static void
send_all(int fd, kvp_buf_t *bytes)
{
    assert_int_equal(bytes->err, KVP_OK);
    send_bytes(fd, bytes->data, bytes->len);
    kvp_buf_fini(bytes);
}

static int
dial_and_greet(fixture_t *fix)
{
    kvp_buf_t out = {0};
    int fd = dial(fix);

    append_hello(&out, 1, 1, 1);
    send_all(fd, &out);
    expect_answer(fd, KVP_OP_HELLO, 1);
    return fd;
}

/* ---- tests */
static int
setup(void **state)
{
    const kvp_server_conf_t *conf = *state;
    fixture_t *fix = calloc(1, sizeof(*fix));

    fixture_start(fix, conf, NULL);
    *state = fix;
    return 0;
}

static int
teardown(void **state)
{
    fixture_finish(*state);
    free(*state);
    return 0;
}

/* SERVER_TEST begins a test and names what its server is told. */
#define SERVER_TEST(name, ...)                                                                                         \
    static kvp_server_conf_t name##_conf;                                                                              \
    TEST_OF(name, setup, teardown, (name##_conf = (kvp_server_conf_t){__VA_ARGS__}, &name##_conf))

SERVER_TEST(test_tcp_and_unix_speak_the_same, .max_conns = 0)
{
    fixture_t *fix = *state;

    for (int i = 0; i < 2; i++) {
        kvp_buf_t out = {0};
        int fd = i == 0 ? dial(fix) : dial_unix(fix);
        append_hello(&out, 1, 1, 1);
        append_exists(&out, 2, 3);
        send_all(fd, &out);
        expect_answer(fd, KVP_OP_HELLO, 1);
        expect_answer(fd, KVP_OP_EXISTS, 2);
        close(fd);
    }
    wait_for(fix, fix->stats.connections == 0);
    assert_int_equal(fix->stats.accepted, 2);
}

TEST(test_unix_socket_goes_with_the_server)
{
    fixture_t fix;
    char path[108];

    fixture_start(&fix, &(kvp_server_conf_t){0}, NULL);
    snprintf(path, sizeof(path), "%s", kvp_server_unix_path(fix.server));
    assert_int_equal(access(path, R_OK | W_OK), 0);
    fixture_finish(&fix);
    assert_int_equal(access(path, F_OK), -1);
}

SERVER_TEST(test_pipelined_frames_of_any_length_are_answered_in_order, .max_conns = 0)
{
    fixture_t *fix = *state;
    kvp_buf_t out = {0};

    int fd = dial_and_greet(fix);
    for (uint64_t id = 2; id < 1000; id += 2) {
        append_put(&out, id);
        append_exists(&out, id + 1, (uint32_t)(id % 5 + 1));
    }
    send_all(fd, &out);
    for (uint64_t id = 2; id < 1000; id += 2) {
        expect_answer(fd, KVP_OP_PUT_BEGIN, id);
        expect_answer(fd, KVP_OP_EXISTS, id + 1);
    }
    close(fd);
}

SERVER_TEST(test_largest_batch_passes, .max_conns = 0)
{
    fixture_t *fix = *state;
    kvp_buf_t out = {0};

    int fd = dial_and_greet(fix);
    append_exists(&out, 2, KVP_BATCH_MAX);
    append_exists(&out, 3, KVP_BATCH_MAX);
    send_all(fd, &out);
    expect_answer(fd, KVP_OP_EXISTS, 2);
    expect_answer(fd, KVP_OP_EXISTS, 3);
    close(fd);
}

SERVER_TEST(test_lost_framing_closes, .max_conns = 0)
{
    fixture_t *fix = *state;
    uint8_t junk[64];

    memset(junk, 0xff, sizeof(junk));
    int fd = dial_and_greet(fix);
    send_bytes(fd, junk, sizeof(junk));
    expect_end(fd);
    wait_for(fix, fix->stats.connections == 0);
    assert_int_equal(fix->stats.framing_errors, 1);
}

SERVER_TEST(test_frames_over_their_bound_close, .max_conns = 0)
{
    fixture_t *fix = *state;
    uint32_t header[4] = {KVP_FRAME_FIRST_MAX + 1, KVP_OP_EXISTS};

    int fresh = dial(fix);
    send_bytes(fresh, header, sizeof(header));
    expect_end(fresh);
    int greeted = dial_and_greet(fix);
    header[0] = KVP_FRAME_MAX + 1;
    send_bytes(greeted, header, sizeof(header));
    expect_end(greeted);
    wait_for(fix, fix->stats.connections == 0);
    assert_int_equal(fix->stats.framing_errors, 2);
}

/* Four frames of 64 KiB, where there is room for one and a half. The first stays unfinished until all others are
 * answered. */
SERVER_TEST(test_frames_wait_for_room_and_all_are_answered, .input_max = 96 << 10, .partial_ms = 600000)
{
    fixture_t *fix = *state;
    enum { PEERS = 4, DIGESTS = 4096, ROOM = 96 << 10 };
    int fds[PEERS];
    kvp_buf_t out = {0};

    append_exists(&out, 2, DIGESTS);
    for (int i = 0; i < PEERS; i++) {
        fds[i] = dial_and_greet(fix);
        uint64_t received = stats(fix)->received_bytes;
        send_bytes(fds[i], out.data, out.len - 1);
        if (i == 0) wait_for(fix, fix->stats.received_bytes == received + out.len - 1);
    }
    wait_for(fix, fix->stats.room_waits >= PEERS - 1);
    assert_true(fix->stats.input_bytes > ROOM / 2);
    assert_true(fix->stats.input_bytes <= ROOM + 4096 + out.len);
    int other = dial_and_greet(fix);
    for (int i = PEERS - 1; i >= 0; i--)
        if (i > 0) send_bytes(fds[i], out.data + out.len - 1, 1);
    for (int i = 1; i < PEERS; i++)
        expect_answer(fds[i], KVP_OP_EXISTS, 2);
    send_bytes(fds[0], out.data + out.len - 1, 1);
    expect_answer(fds[0], KVP_OP_EXISTS, 2);
    wait_for(fix, fix->stats.input_bytes == 0);
    assert_int_equal(fix->stats.timeouts, 0);
    for (int i = 0; i < PEERS; i++)
        close(fds[i]);
    close(other);
    kvp_buf_fini(&out);
}

/* Who waits for room hastens the end of those who keep it. */
SERVER_TEST(test_room_comes_from_those_who_do_not_go_on, .input_max = 66 << 10)
{
    fixture_t *fix = *state;
    kvp_buf_t out = {0};

    append_exists(&out, 2, 4096);
    int first = dial_and_greet(fix), second = dial_and_greet(fix);
    send_bytes(first, out.data, out.len - 1);
    wait_for(fix, fix->stats.input_bytes > 4096);
    send_bytes(second, out.data, out.len - 1); /* it is let in beyond the bound */
    wait_for(fix, fix->stats.room_waits == 1);
    int third = dial_and_greet(fix);
    uint64_t begun_ns = kvp_now_ns();
    send_all(third, &out);
    expect_answer(third, KVP_OP_EXISTS, 2);
    assert_true(kvp_now_ns() - begun_ns < 8 * KVP_NS_PER_S); /* 1 s, where partial_ms is 10 s */
    expect_end(first);
    close(second);
    close(third);
}

SERVER_TEST(test_bytes_do_not_renew_a_deadline, .partial_ms = 200)
{
    fixture_t *fix = *state;
    uint64_t until_ns = kvp_now_ns() + 8 * KVP_NS_PER_S; /* after 10 s the session is over for its silence */
    kvp_buf_t out = {0};

    append_exists(&out, 2, 8192);
    int fd = dial_and_greet(fix);
    for (size_t at = 0; stats(fix)->timeouts == 0; at++) {
        assert_true(kvp_now_ns() < until_ns && at + 1 < out.len);
        if (send(fd, out.data + at, 1, MSG_NOSIGNAL) < 0) break;
        usleep(10000);
    }
    expect_end(fd);
    assert_int_equal(stats(fix)->timeouts, 1);
    kvp_buf_fini(&out);
}

SERVER_TEST(test_silent_and_half_said_connections_are_closed, .hello_ms = 100, .partial_ms = 100)
{
    fixture_t *fix = *state;
    kvp_buf_t out = {0};

    int silent = dial(fix);
    int half_hello = dial(fix);
    int half_frame = dial_and_greet(fix);
    int fine = dial_and_greet(fix);
    append_exists(&out, 2, 4);
    send_bytes(half_hello, out.data, 10);
    send_bytes(half_frame, out.data, out.len - 1);
    expect_end(silent);
    expect_end(half_hello);
    expect_end(half_frame);
    wait_for(fix, fix->stats.timeouts == 3);
    send_all(fine, &out);
    expect_answer(fine, KVP_OP_EXISTS, 2);
    close(fine);
}

/* The refusal and its reason arrive although more of the peer's frames are unread when the connection is closed. */
SERVER_TEST(test_refused_peer_is_told_why, .max_conns = 0)
{
    fixture_t *fix = *state;
    kvp_buf_t out = {0};
    kvp_frame_t frame;
    kvp_pb_t pb;

    int fd = dial(fix);
    append_hello(&out, 1, KVP_PROTO_VERSION + 1, KVP_PROTO_VERSION + 2);
    for (uint64_t id = 2; id < 50; id++)
        append_exists(&out, id, 100);
    send_all(fd, &out);
    assert_true(recv_frame(fd, &frame, answer, sizeof(answer)));
    Kvp__Pb__HelloReply *reply = kvp_pb_unpack(&pb, &kvp__pb__hello_reply__descriptor, &frame);
    assert_non_null(reply);
    assert_int_equal(reply->err, KVP_VERSION);
    assert_true(strlen(reply->detail) > 0);
    kvp_pb_free(&pb, reply);
    expect_end(fd);
    wait_for(fix, fix->stats.connections == 0);
}

typedef struct {
    int fd;
    const kvp_buf_t *bytes;
} sender_t;

static void *
send_in_background(void *arg)
{
    sender_t *s = arg;
    send_bytes(s->fd, s->bytes->data, s->bytes->len);
    return NULL;
}

SERVER_TEST(test_peer_that_does_not_read_is_not_read, .max_conns = 0)
{
    fixture_t *fix = *state;
    enum { ASKED = 40000 };
    kvp_buf_t out = {0};
    pthread_t thread;
    size_t at;

    int fd = dial_and_greet(fix);
    for (uint64_t id = 0; id < ASKED; id++) {
        kvp_pb_frame_begin(&out, KVP_OP_STATUS, 0, id, NULL, &at);
        kvp_frame_end(&out, at);
    }
    sender_t sender = {fd, &out};
    assert_int_equal(pthread_create(&thread, NULL, send_in_background, &sender), 0);
    wait_for(fix, fix->stats.read_pauses > 0);
    /* Everything asked is answered once the peer reads, and others were served meanwhile. */
    int other = dial_and_greet(fix);
    for (uint64_t id = 0; id < ASKED; id++)
        expect_answer(fd, KVP_OP_STATUS, id);
    pthread_join(thread, NULL);
    assert_int_equal(stats(fix)->overflows, 0);
    kvp_buf_fini(&out);
    close(other);
    close(fd);
}

/* The connection ends while most of what it was answered waits for the socket. */
SERVER_TEST(test_last_answers_arrive_before_the_end, .linger_ms = WAIT_MS)
{
    fixture_t *fix = *state;
    enum { ASKED = 600 };
    kvp_buf_t out = {0};
    size_t at;

    int fd = dial_unix(fix);
    append_hello(&out, 1, 1, 1);
    for (uint64_t id = 2; id < ASKED; id++) {
        kvp_pb_frame_begin(&out, KVP_OP_STATUS, 0, id, NULL, &at);
        kvp_frame_end(&out, at);
    }
    kvp_pb_frame_begin(&out, KVP_OP_BYE, 0, ASKED, NULL, &at);
    kvp_frame_end(&out, at);
    size_t len = out.len;
    send_all(fd, &out);
    wait_for(fix, fix->stats.received_bytes == len);
    assert_int_equal(fix->stats.read_pauses, 0);
    expect_answer(fd, KVP_OP_HELLO, 1);
    for (uint64_t id = 2; id < ASKED; id++)
        expect_answer(fd, KVP_OP_STATUS, id);
    expect_answer(fd, KVP_OP_BYE, ASKED);
    expect_end(fd);
    wait_for(fix, fix->stats.connections == 0);
}

SERVER_TEST(test_output_over_its_bound_closes, .output_max = 4096)
{
    fixture_t *fix = *state;
    kvp_buf_t out = {0};

    int fd = dial_and_greet(fix);
    append_exists(&out, 2, KVP_BATCH_MAX);
    send_all(fd, &out);
    expect_end(fd);
    wait_for(fix, fix->stats.connections == 0);
    assert_int_equal(fix->stats.overflows, 1);
}

SERVER_TEST(test_connections_over_the_maximum_are_refused, .max_conns = 2)
{
    fixture_t *fix = *state;

    int a = dial_and_greet(fix);
    int b = dial_and_greet(fix);
    int c = dial(fix);
    expect_end(c);
    close(a);
    wait_for(fix, fix->stats.connections == 1);
    assert_int_equal(fix->stats.refused, 1);
    a = dial_and_greet(fix);
    close(a);
    close(b);
}

SERVER_TEST(test_accepting_goes_on_after_descriptors_ran_out, .max_conns = 0)
{
    fixture_t *fix = *state;
    struct rlimit was, none;
    kvp_buf_t out = {0};

    int fd = tcp_socket();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    connect_tcp(fix, fd);
    wait_for(fix, fix->stats.accept_pauses >= 2);
    assert_int_equal(fix->stats.accepted, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    append_hello(&out, 1, 1, 1);
    send_all(fd, &out);
    expect_answer(fd, KVP_OP_HELLO, 1);
    close(fd);
}

SERVER_TEST(test_stop_delivers_what_was_answered, .linger_ms = 5000)
{
    fixture_t *fix = *state;
    enum { ASKED = 200 };
    kvp_buf_t out = {0};

    int fd = dial_and_greet(fix);
    for (uint64_t id = 0; id < ASKED; id++)
        append_exists(&out, id, 64);
    send_all(fd, &out);
    wait_for(fix, fix->core_stats.frames == ASKED + 1);
    assert_int_equal(kvp_loop_call(&fix->loop, fixture_stop, fix, WAIT_MS), KVP_OK);
    for (uint64_t id = 0; id < ASKED; id++)
        expect_answer(fd, KVP_OP_EXISTS, id);
    expect_end(fd);
}

TEST(test_stop_does_not_wait_for_a_peer_that_stays)
{
    fixture_t fix;

    fixture_start(&fix, &(kvp_server_conf_t){0}, NULL);
    int fd = dial_and_greet(&fix);
    uint64_t begun_ns = kvp_now_ns();
    fixture_finish(&fix);
    assert_true(kvp_now_ns() - begun_ns < 5 * KVP_NS_PER_S);
    close(fd);
}

/* What these tests provoke is logged as it should be, and not wanted here. */
static void
drop_line(void *arg, kvp_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

/* ---- who the pool is, on a disk that takes its time */
typedef struct {
    sem_t may_end;
    atomic_uint n;
    uint32_t term;
} disk_t;

static bool
save_slowly(void *arg, const kvp_master_ident_t *ident)
{
    disk_t *disk = arg;

    disk->term = ident->term;
    atomic_fetch_add(&disk->n, 1);
    while (sem_wait(&disk->may_end) != 0)
        continue;
    return true;
}

static void
append_higher_term(kvp_buf_t *out)
{
    static const uint8_t uuid[16] = {1};
    Kvp__Pb__Hello hello = KVP__PB__HELLO__INIT;
    Kvp__Pb__Mount mount = KVP__PB__MOUNT__INIT;
    size_t at;

    hello.version = hello.version_min = KVP_PROTO_VERSION;
    hello.role = KVP_ROLE_NODE;
    hello.name = hello.host_id = (char *)"node";
    mount.name = mount.addr = mount.unix_path = mount.transports = (char *)"node";
    mount.uuid = (ProtobufCBinaryData){sizeof uuid, (uint8_t *)uuid};
    mount.size_bytes = mount.chunk_bytes = 1 << 20;
    mount.term = 5;
    mount.mounted_term = 1;
    kvp_pb_frame_begin(out, KVP_OP_HELLO, 0, 1, &hello, &at);
    kvp_frame_end(out, at);
    kvp_pb_frame_begin(out, KVP_OP_MOUNT, 0, 2, &mount, &at);
    kvp_frame_end(out, at);
}

/* The loop goes on while a term is saved, nothing is said of that term, and of what was asked nothing is lost. */
TEST(test_slow_disk_stops_words_and_not_the_loop)
{
    disk_t disk = {.term = 0};
    kvp_server_conf_t conf = {.save_ident = save_slowly, .save_ident_arg = &disk};
    kvp_buf_t out;
    fixture_t fix;
    int node, client, early;

    assert_int_equal(sem_init(&disk.may_end, 0, 0), 0);
    fixture_start(&fix, &conf, NULL);
    early = dial(&fix);
    kvp_buf_init(&out, 0);
    append_hello(&out, 1, KVP_PROTO_VERSION, KVP_PROTO_VERSION);
    send_all(early, &out);
    expect_answer(early, KVP_OP_HELLO, 1);
    node = dial(&fix);
    append_higher_term(&out);
    send_all(node, &out);
    wait_for(&fix, atomic_load(&disk.n) == 1);
    assert_int_equal(disk.term, 6);

    client = dial(&fix);
    append_hello(&out, 1, KVP_PROTO_VERSION, KVP_PROTO_VERSION);
    for (uint64_t i = 2; i < 1000; i++)
        append_exists(&out, i, 4);
    send_all(client, &out);
    wait_for(&fix, fix.stats.read_pauses > 0);
    assert_int_equal(poll(&(struct pollfd){.fd = client, .events = POLLIN}, 1, 50), 0);
    assert_int_equal(poll(&(struct pollfd){.fd = early, .events = POLLIN}, 1, 0), 0);
    assert_int_equal(sem_post(&disk.may_end), 0);
    expect_answer(client, KVP_OP_HELLO, 1);
    for (uint64_t i = 2; i < 1000; i++)
        expect_answer(client, KVP_OP_EXISTS, i);
    expect_end(early);
    close(node);
    close(client);
    fixture_finish(&fix);
    sem_destroy(&disk.may_end);
}

int
main(void)
{
    char dir[64];

    /* The Unix socket lies in a directory of the test's own. */
    snprintf(dir, sizeof(dir), "/tmp/kvp-server-XXXXXX");
    if (mkdtemp(dir) == NULL || setenv("XDG_RUNTIME_DIR", dir, 1) != 0) return 1;
    kvp_log_set_sink(drop_line, NULL);
    int failed = run_cases(NULL, NULL);
    char sub[80];
    snprintf(sub, sizeof(sub), "%s/kvpool", dir);
    rmdir(sub);
    rmdir(dir);
    return failed;
}
