/* SPDX-License-Identifier: Apache-2.0
 * What an endpoint does at its port with peers that do not keep to the protocol (PROTOCOL "Peers"). Where it asks one:
 * test_p2p_files.c. */
#include "net/hello.h"
#include "client/kvpool_p2p.h"
#include "p2p/base/wire.h"
#include "common/clock.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "tests/unit/p2p/p2pend.h"
#include "tests/cases.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define BYTES 65536u

static int
setup(void **state)
{
    end_t *end = calloc(1, sizeof *end);

    assert_non_null(end);
    open_end_of(end, BYTES, "tcp", 0, 0);
    *state = end;
    return 0;
}

static int
teardown(void **state)
{
    close_end(*state);
    free(*state);
    return 0;
}

/* ---- strangers at an endpoint's port */
static uint64_t
soon(void)
{
    return kvp_now_ns() + 20 * KVP_NS_PER_S;
}

static void
knock(const end_t *end, kvp_framed_t *c)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(kvpool_p2p_port(end->p2p))};

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    kvp_framed_init(c);
    assert_int_equal(kvp_framed_connect_addr(c, (struct sockaddr *)&to, sizeof to, soon()), KVP_OK);
}

static const kvp_peer_hello_t good_hello = {
    .version = KVP_PROTO_VERSION, .version_min = KVP_PROTO_VERSION_MIN, .incarnation = 7, .host_id = "elsewhere"};

static void
say_hello(kvp_framed_t *c, const kvp_peer_hello_t *hello, kvp_peer_hello_reply_t *reply_out)
{
    kvp_frame_t frame;

    kvp_peer_hello_encode(&c->out, 1, hello);
    assert_int_equal(kvp_exchange(c, 1, soon(), &frame), KVP_OK);
    assert_int_equal(kvp_peer_hello_reply_decode(&frame, reply_out), KVP_OK);
}

static void
enter(const end_t *end, kvp_framed_t *c)
{
    kvp_peer_hello_reply_t reply;

    knock(end, c);
    say_hello(c, &good_hello, &reply);
    assert_int_equal(reply.err, KVP_OK);
    assert_string_equal(reply.transport, "tcp");
    assert_string_equal(reply.unix_path, "");
    assert_false(reply.proc.is_told);
    assert_false(reply.can_pull);
}

/* What is queued in c->out ends the connection without an answer. */
static void
expect_closed(kvp_framed_t *c)
{
    kvp_frame_t frame;

    assert_int_equal(kvp_exchange(c, 99, soon(), &frame), KVP_DISCONNECTED);
    kvp_framed_fini(c);
}

static void
expect_served(const end_t *end)
{
    uint64_t addr;
    size_t len;

    assert_int_equal(kvpool_p2p_first_range(end->p2p, end->at, 0, &addr, &len), KVPOOL_OK);
    assert_true(addr == (uintptr_t)end->mem);
}

TEST_WITH(test_nonsense_is_closed, setup, teardown)
{
    static const char junk[64] = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    const end_t *end = *state;
    kvp_peer_at_t at[2] = {{.addr = 4096, .len = 1}};
    kvp_peer_piece_t piece = {.token = 1, .addr = 4096, .len = 16, .from = 4096};
    kvp_peer_moves_t moves = {.kind = KVP_PEER_PULL, .pieces = &piece, .n = 1};
    kvp_framed_t c;
    size_t begin;

    knock(end, &c);
    kvp_buf_append(&c.out, junk, sizeof junk);
    expect_closed(&c);

    knock(end, &c); /* before Hello */
    kvp_peer_find_encode(&c.out, 1, &(kvp_peer_find_t){.at = at, .n = 1});
    expect_closed(&c);

    enter(end, &c); /* twice */
    kvp_peer_hello_encode(&c.out, 2, &good_hello);
    expect_closed(&c);

    enter(end, &c); /* fewer records than it says */
    kvp_peer_find_encode(&c.out, 2, &(kvp_peer_find_t){.at = at, .n = 2});
    c.out.data[KVP_FRAME_HDR_BYTES + 1] = 9; /* n, behind its field number */
    expect_closed(&c);

    enter(end, &c); /* it was told that nobody reads it */
    kvp_peer_moves_encode(&c.out, 2, &moves);
    expect_closed(&c);

    enter(end, &c); /* of no registration */
    kvp_peer_map_encode(&c.out, 2, 0);
    expect_closed(&c);

    enter(end, &c); /* a connection of nobody's */
    kvp_peer_rdma_encode(&c.out, 2, 0);
    expect_closed(&c);

    enter(end, &c); /* through a bounce buffer, and there is none */
    moves.kind = KVP_PEER_STORE;
    kvp_peer_moves_encode(&c.out, 2, &moves);
    expect_closed(&c);

    enter(end, &c);
    moves.kind = KVP_PEER_CHECK; /* which has no source */
    kvp_peer_moves_encode(&c.out, 2, &moves);
    expect_closed(&c);

    enter(end, &c); /* a frame that is longer than a request may be is not waited for */
    kvp_frame_begin(&c.out, KVP_OP_PEER_FIND, 0, 2, NULL, 0, &begin);
    assert_non_null(kvp_buf_extend(&c.out, 3 * KVP_PEER_REQUEST_MAX));
    kvp_frame_end(&c.out, begin);
    expect_closed(&c);
    expect_served(end);
}

static void
ask_moves(kvp_framed_t *c, uint64_t id, const kvp_peer_moves_t *moves, kvp_peer_moved_t *moved_out)
{
    const void *records;
    kvp_frame_t frame;

    kvp_peer_moves_encode(&c->out, id, moves);
    assert_int_equal(kvp_exchange(c, id, soon(), &frame), KVP_OK);
    assert_int_equal(kvp_peer_reply_decode(&frame, KVP_OP_PEER_MOVE, moves->n, sizeof *moved_out, &records), KVP_OK);
    memcpy(moved_out, records, moves->n * sizeof *moved_out);
}

/* Of many pieces that go with one call each has its own outcome. */
static void
some_pieces_fail(kvp_framed_t *c, const end_t *near)
{
    enum { N = 300, EACH = 100, UNREADABLE = 7, UNREGISTERED = 130, LAST = N - 1 };
    uint8_t *from = malloc(N * EACH);
    kvp_peer_piece_t pieces[N];
    kvp_peer_moves_t moves = {.kind = KVP_PEER_PULL, .pieces = pieces, .n = N, .deadline_ns = UINT64_MAX};
    kvp_peer_moved_t moved[N];

    assert_non_null(from);
    memset(from, 'f', N * EACH);
    memset(near->mem, 0, BYTES);
    for (size_t i = 0; i < N; i++)
        pieces[i] = (kvp_peer_piece_t){.token = near->token,
                                       .addr = (uintptr_t)near->mem + i * EACH,
                                       .len = EACH,
                                       .from = (uintptr_t)from + i * EACH};
    pieces[UNREADABLE].from = pieces[LAST].from = 4096;
    pieces[UNREGISTERED].token ^= 1;
    ask_moves(c, 3, &moves, moved);
    for (size_t i = 0; i < N; i++) {
        bool is_read = i != UNREADABLE && i != UNREGISTERED && i != LAST;

        assert_int_equal(moved[i].err, is_read ? KVP_OK : i == UNREGISTERED ? KVP_NOT_REGISTERED : KVP_INVALID);
        for (size_t k = 0; k < EACH; k++)
            assert_int_equal(near->mem[i * EACH + k], is_read ? 'f' : 0);
    }
    free(from);
}

static kvp_err_t
ask_map(kvp_framed_t *c, uint64_t id, uint64_t token)
{
    const void *cell;
    kvp_frame_t frame;

    kvp_peer_map_encode(&c->out, id, token);
    assert_int_equal(kvp_exchange(c, id, soon(), &frame), KVP_OK);
    return kvp_peer_reply_decode(&frame, KVP_OP_PEER_MAP, 1, sizeof(uint64_t), &cell);
}

/* Over TCP somebody says that it is this very process, and proves that it knows some of its bytes. It is not believed:
 * through the endpoint it could read all of them. */
TEST(test_nobody_is_a_process_by_saying_so)
{
    static const uint8_t known[KVP_PEER_NONCE_BYTES] = "what all know";
    kvp_peer_hello_t hello = good_hello;
    kvp_peer_hello_reply_t reply;
    kvp_peer_piece_t piece = {.token = 1, .len = 16, .from = (uintptr_t)known};
    kvp_peer_moves_t moves = {.kind = KVP_PEER_PULL, .pieces = &piece, .n = 1, .deadline_ns = UINT64_MAX};
    kvp_frame_t frame;
    kvp_framed_t c;
    end_t near;
    uint64_t own_token;
    void *own;

    open_end_of(&near, BYTES, "cma,tcp", 0, 0);
    assert_int_equal(kvpool_p2p_alloc(near.p2p, BYTES, &own, &own_token), KVPOOL_OK);
    kvp_host_id(hello.host_id);
    hello.proc = (kvp_peer_proc_t){.is_told = true, .nonce_at = (uintptr_t)known};
    memcpy(hello.proc.nonce, known, sizeof known);
    knock(&near, &c);
    say_hello(&c, &hello, &reply);
    assert_false(reply.can_pull);
    assert_false(reply.proc.is_told);
    piece.token = near.token;
    piece.addr = (uintptr_t)near.mem;
    assert_int_equal(ask_map(&c, 3, own_token), KVP_NOTSUP);
    kvp_peer_moves_encode(&c.out, 2, &moves);
    expect_closed(&c);
    assert_int_equal(near.mem[0], 0);

    /* The same at the Unix socket: there the kernel says who it is, and it may. */
    kvp_framed_init(&c);
    assert_int_equal(kvp_framed_connect_unix(&c, reply.unix_path, soon()), KVP_OK);
    say_hello(&c, &hello, &reply);
    assert_true(reply.can_pull);
    kvp_peer_moves_encode(&c.out, 2, &moves);
    assert_int_equal(kvp_exchange(&c, 2, soon(), &frame), KVP_OK);
    assert_memory_equal(near.mem, known, sizeof known);
    some_pieces_fail(&c, &near);
    assert_int_equal(ask_map(&c, 4, own_token), KVP_OK);
    assert_int_equal(c.fds_in_n, 2);
    assert_int_equal(ask_map(&c, 5, near.token), KVP_NOTSUP); /* private */
    assert_int_equal(ask_map(&c, 6, own_token ^ 1), KVP_NOTSUP);
    assert_int_equal(kvpool_p2p_unregister(near.p2p, own), KVPOOL_OK);
    assert_int_equal(ask_map(&c, 7, own_token), KVP_NOTSUP);
    assert_int_equal(c.fds_in_n, 2);
    kvp_framed_fini(&c);
    close_end(&near);
}

TEST_WITH(test_hello_of_another_version_is_refused, setup, teardown)
{
    kvp_peer_hello_t hello = good_hello;
    kvp_peer_hello_reply_t reply;
    kvp_framed_t c;

    hello.version = hello.version_min = KVP_PROTO_VERSION + 1;
    knock(*state, &c);
    say_hello(&c, &hello, &reply);
    assert_int_equal(reply.err, KVP_VERSION);
    assert_true(reply.detail[0] != '\0');
    kvp_peer_hello_encode(&c.out, 2, &good_hello);
    expect_closed(&c);
}

TEST_WITH(test_unknown_requests_are_answered, setup, teardown)
{
    const void *records;
    kvp_frame_t frame;
    kvp_framed_t c;
    size_t at;

    enter(*state, &c);
    kvp_frame_begin(&c.out, 200, 0, 5, NULL, 0, &at);
    kvp_frame_end(&c.out, at);
    assert_int_equal(kvp_exchange(&c, 5, soon(), &frame), KVP_OK);
    assert_int_equal(kvp_peer_reply_decode(&frame, 200, 0, 0, &records), KVP_NOTSUP);
    kvp_framed_fini(&c);
}

/* Half a header, and nothing more: others are served, and it is closed in time. */
TEST_WITH(test_silence_before_hello_ends, setup, teardown)
{
    kvp_framed_t c;

    knock(*state, &c);
    kvp_buf_append(&c.out, "\x10\0\0", 3);
    assert_int_equal(kvp_framed_flush(&c), KVP_OK);
    expect_served(*state);
    expect_closed(&c);
}

TEST_WITH(test_sums_and_checks_are_of_what_is_registered, setup, teardown)
{
    const end_t *end = *state;
    kvp_peer_at_t at = {.addr = (uintptr_t)end->mem, .len = BYTES};
    kvp_peer_piece_t pieces[2];
    kvp_peer_moves_t moves = {.kind = KVP_PEER_SUM, .pieces = pieces, .n = 2};
    kvp_peer_moved_t moved[2];
    kvp_peer_range_t range;
    const void *records;
    kvp_frame_t frame;
    kvp_framed_t c;

    for (size_t i = 0; i < BYTES; i++)
        end->mem[i] = (uint8_t)(i * 31);
    enter(end, &c);
    kvp_peer_find_encode(&c.out, 2, &(kvp_peer_find_t){.at = &at, .n = 1});
    assert_int_equal(kvp_exchange(&c, 2, soon(), &frame), KVP_OK);
    assert_int_equal(kvp_peer_reply_decode(&frame, KVP_OP_PEER_FIND, 1, sizeof range, &records), KVP_OK);
    memcpy(&range, records, sizeof range);
    assert_int_equal(kvp_peer_range_check(&range, &at), KVP_OK);
    pieces[0] = (kvp_peer_piece_t){.token = range.token, .addr = at.addr + 11, .len = 5000};
    pieces[1] = (kvp_peer_piece_t){.token = range.token, .addr = at.addr + 1, .len = BYTES};
    ask_moves(&c, 3, &moves, moved);
    assert_int_equal(moved[0].err, KVP_OK);
    assert_true(moved[0].sum == kvp_sum(end->mem + 11, 5000));
    assert_int_equal(moved[1].err, KVP_NOT_REGISTERED);
    moves.kind = KVP_PEER_CHECK;
    pieces[0].token ^= 1;
    pieces[1].len--;
    ask_moves(&c, 4, &moves, moved);
    assert_int_equal(moved[0].err, KVP_NOT_REGISTERED);
    assert_int_equal(moved[1].err, KVP_OK);
    kvp_framed_fini(&c);
}

/* Connections are cut by their own number. Number 0 is nobody's, and who has not said its own yet is not cut with it.
 */
TEST_WITH(test_cut_names_connections, setup, teardown)
{
    const end_t *end = *state;
    uint64_t conns[2] = {4711, 0};
    const void *records;
    kvp_frame_t frame;
    kvp_framed_t c;

    enter(end, &c);
    kvp_peer_cut_encode(&c.out, 2, conns, 1); /* none that is known here */
    assert_int_equal(kvp_exchange(&c, 2, soon(), &frame), KVP_OK);
    assert_int_equal(kvp_peer_reply_decode(&frame, KVP_OP_PEER_CUT, 0, 0, &records), KVP_OK);
    kvp_peer_cut_encode(&c.out, 3, conns, 2);
    expect_closed(&c);
    enter(end, &c);
    kvp_peer_cut_encode(&c.out, 2, conns, 0);
    expect_closed(&c);
    expect_served(end);
}

/* A frame may be as long as PROTOCOL says, and no byte longer. */
TEST_WITH(test_long_requests_are_closed, setup, teardown)
{
    static uint8_t zeros[KVP_PEER_REQUEST_MAX];
    const void *records;
    kvp_frame_t frame;
    kvp_framed_t c;
    size_t at;

    enter(*state, &c);
    for (size_t more = 0; more <= 1; more++) {
        kvp_frame_begin(&c.out, 200, 0, 5 + more, NULL, 0, &at);
        kvp_buf_append(&c.out, zeros, KVP_PEER_REQUEST_MAX - KVP_FRAME_HDR_BYTES + more);
        kvp_frame_end(&c.out, at);
        if (more > 0) break;
        assert_int_equal(kvp_exchange(&c, 5, soon(), &frame), KVP_OK);
        assert_int_equal(kvp_peer_reply_decode(&frame, 200, 0, 0, &records), KVP_NOTSUP);
    }
    expect_closed(&c);
    expect_served(*state);
}

TEST_WITH(test_too_many_connections_are_told_busy, setup, teardown)
{
    enum { MAX = 1024 };
    const end_t *end = *state;
    struct rlimit files;
    kvp_framed_t *conns = calloc(MAX, sizeof *conns);
    kvp_peer_hello_reply_t reply;
    kvp_framed_t c;
    uint64_t addr;
    size_t len;

    assert_non_null(conns);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < 2 * MAX + 200) {
        free(conns);
        print_message("this process cannot have so many open files\n");
        skip();
    }
    if (files.rlim_cur < 2 * MAX + 200) files.rlim_cur = 2 * MAX + 200;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    for (size_t i = 0; i < MAX; i++)
        enter(end, &conns[i]);
    knock(end, &c);
    say_hello(&c, &good_hello, &reply);
    assert_int_equal(reply.err, KVP_BUSY);
    assert_true(reply.detail[0] != '\0');
    kvp_framed_fini(&c);
    assert_int_equal(kvpool_p2p_first_range(end->p2p, end->at, 0, &addr, &len), KVPOOL_BUSY);
    for (size_t i = 0; i < MAX; i++)
        kvp_framed_fini(&conns[i]);
    free(conns);
    while (kvpool_p2p_first_range(end->p2p, end->at, 0, &addr, &len) == KVPOOL_BUSY)
        sched_yield(); /* until it has seen them go */
    expect_served(end);
}

TEST_MAIN()
