/* SPDX-License-Identifier: Apache-2.0
 * Peers that lie to an endpoint that asks them: in Hello, about a range, or by what they hand over in place of their
 * memory's file. It gives an error, and neither dies nor keeps a descriptor. PROTOCOL "Peers", PEER_MAP. */
#include "net/framed.h"
#include "client/kvpool_p2p.h"
#include "p2p/base/wire.h"
#include "common/clock.h"
#include "tests/cases.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BYTES 65536u
#define BASE 0x100000u /* where the liar says that its range is */
#define LONG_BASE 0x10000000u /* and another one, */
#define LONG_BYTES (1u << 30) /* of the same token */
#define TOKEN 77u
#define CELL 5u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

typedef enum {
    NO_LIE,
    LIE_UNSEALED,
    LIE_GROWS,
    LIE_SHORT,
    LIE_DEVICE,
    LIE_SOCKET,
    LIE_HUGETLB,
    LIE_WORDS_UNSEALED,
    LIE_WORDS_SHORT,
    LIE_CELL,
    LIE_ONE_FD,
    LIE_NO_FD,
    LIE_THREE_FDS,
    LIE_EARLY_FDS,
    LIE_NO_TOKEN,
    LIE_ONE_TOKEN_FOR_TWO,
    LIE_SILENCE, /* to Hello, as the next two */
    LIE_JUNK,
    LIE_REFUSES,
    LIE_RANGE, /* to the question for a range */
    LIE_KEY,
    LIE_MANY,
} lie_t;

static const uint8_t nonce[KVP_PEER_NONCE_BYTES] = "read it yourself";

typedef struct {
    lie_t lie;
    int tcp_fd, unix_fd;
    char at[32];
    char unix_path[KVP_PEER_UNIX_MAX];
    int fds[3]; /* memory, words, and one too many */
    pthread_t thread;
} liar_t;

/* -1: there is no such memory on this host. */
static int
make_file(size_t len, int seals, unsigned flags)
{
    int fd = memfd_create("kvpool-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

    if (fd < 0 && flags != 0) return -1;
    assert_true(fd >= 0);
    if (ftruncate(fd, (off_t)len) != 0) assert_true(flags != 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static bool
make_files(liar_t *liar)
{
    lie_t lie = liar->lie;
    uint64_t token = lie == LIE_NO_TOKEN ? 0 : TOKEN;

    liar->fds[1] = make_file(lie == LIE_WORDS_SHORT ? 4096 : KVP_PEER_CELLS * sizeof token,
                             lie == LIE_WORDS_UNSEALED ? F_SEAL_GROW : SEALS, 0);
    liar->fds[2] = make_file(4096, SEALS, 0);
    assert_int_equal(pwrite(liar->fds[1], &token, sizeof token, CELL * sizeof token), sizeof token);
    if (lie == LIE_DEVICE)
        liar->fds[0] = open("/dev/zero", O_RDWR | O_CLOEXEC);
    else if (lie == LIE_SOCKET)
        liar->fds[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    else if (lie == LIE_HUGETLB)
        liar->fds[0] = make_file(2u << 20, SEALS, MFD_HUGETLB);
    else
        liar->fds[0] = make_file(lie == LIE_SHORT ? BYTES - 4096 : BYTES,
                                 lie == LIE_UNSEALED ? F_SEAL_GROW
                                 : lie == LIE_GROWS  ? F_SEAL_SHRINK
                                                     : SEALS,
                                 0);
    return liar->fds[0] >= 0;
}

static void
answer_map(const liar_t *liar, kvp_framed_t *c, const kvp_frame_t *frame)
{
    uint64_t token, cell = liar->lie == LIE_CELL ? KVP_PEER_CELLS : CELL;
    int n = liar->lie == LIE_ONE_FD ? 1 : liar->lie == LIE_NO_FD ? 0 : liar->lie == LIE_THREE_FDS ? 3 : 2;

    assert_int_equal(kvp_peer_map_decode(frame, &token), KVP_OK);
    assert_int_equal(token, TOKEN);
    if (n > 0) assert_int_equal(kvp_framed_out_fds(c, c->out.len, liar->fds, n), KVP_OK);
    kvp_peer_reply_encode(&c->out, KVP_OP_PEER_MAP, frame->hdr.request_id, KVP_OK, "", &cell, 1, sizeof cell);
}

static uint32_t finds_n; /* of the liar's thread */

static void
answer_hello(const liar_t *liar, kvp_framed_t *c, const kvp_frame_t *frame)
{
    kvp_peer_hello_reply_t reply = {.version = 1, .incarnation = 9, .transport = "tcp"};

    if (c->is_unix) {
        reply.can_pull = true;
        reply.proc = (kvp_peer_proc_t){.is_told = true, .nonce_at = (uintptr_t)nonce};
        memcpy(reply.proc.nonce, nonce, sizeof nonce);
    } else {
        snprintf(reply.unix_path, sizeof reply.unix_path, "%s", liar->unix_path);
    }
    if (liar->lie == LIE_REFUSES) reply.err = KVP_VERSION;
    if (liar->lie == LIE_JUNK)
        kvp_buf_append(&c->out, "\xff\xff\xff\xff junk junk junk junk", 25);
    else if (liar->lie != LIE_SILENCE)
        kvp_peer_hello_reply_encode(&c->out, frame->hdr.request_id, &reply);
}

static void
answer_find(const liar_t *liar, kvp_framed_t *c, const kvp_frame_t *frame)
{
    kvp_peer_range_t ranges[2] = {{.base = BASE, .len = BYTES, .token = TOKEN, .key_len = 8}};

    if (liar->lie == LIE_ONE_TOKEN_FOR_TWO && finds_n++ > 0) {
        ranges[0].base = LONG_BASE;
        ranges[0].len = LONG_BYTES;
    }
    if (liar->lie == LIE_RANGE) ranges[0].base = BASE + 101; /* behind what was asked for */
    if (liar->lie == LIE_KEY) ranges[0].key_len = 65;
    if (liar->lie == LIE_EARLY_FDS) assert_int_equal(kvp_framed_out_fds(c, c->out.len, liar->fds, 2), KVP_OK);
    kvp_peer_reply_encode(&c->out, KVP_OP_PEER_FIND, frame->hdr.request_id, KVP_OK, "", ranges,
                          liar->lie == LIE_MANY ? 2 : 1, sizeof ranges[0]);
}

static void
answer(const liar_t *liar, kvp_framed_t *c, const kvp_frame_t *frame)
{
    switch (frame->hdr.opcode) {
    case KVP_OP_PEER_HELLO:
        answer_hello(liar, c, frame);
        break;
    case KVP_OP_PEER_FIND:
        answer_find(liar, c, frame);
        break;
    case KVP_OP_PEER_MAP:
        answer_map(liar, c, frame);
        break;
    default:
        fail_msg("it was asked for %u", frame->hdr.opcode);
    }
    kvp_ignore(kvp_framed_flush(c), "the asker closes when it has seen enough");
}

static void
serve(const liar_t *liar, int fd, bool is_unix)
{
    kvp_framed_t c;
    kvp_frame_t frame;
    bool has = false;

    kvp_framed_init(&c);
    assert_int_equal(kvp_framed_adopt(&c, fd, is_unix), KVP_OK);
    for (;;) {
        struct pollfd p[2] = {{.fd = c.fd, .events = POLLIN}, {.fd = is_unix ? -1 : liar->unix_fd, .events = POLLIN}};
        kvp_err_t err;

        assert_true(poll(p, 2, 20000) > 0);
        if (p[1].revents != 0) { /* the asker goes on there */
            serve(liar, accept(liar->unix_fd, NULL, NULL), true);
            break;
        }
        err = kvp_framed_recv(&c);
        if (err != KVP_OK && err != KVP_EAGAIN) break;
        while (kvp_framed_next(&c, &frame, &has) == KVP_OK && has)
            answer(liar, &c, &frame);
    }
    kvp_framed_fini(&c);
}

static void *
liar_main(void *arg)
{
    const liar_t *liar = arg;

    serve(liar, accept(liar->tcp_fd, NULL, NULL), false);
    return NULL;
}

static void
listen_at(liar_t *liar)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un near = {.sun_family = AF_UNIX};
    socklen_t len = sizeof at;

    liar->tcp_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(liar->tcp_fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(liar->tcp_fd, 4), 0);
    assert_int_equal(getsockname(liar->tcp_fd, (struct sockaddr *)&at, &len), 0);
    snprintf(liar->at, sizeof liar->at, "127.0.0.1:%u", ntohs(at.sin_port));
    snprintf(liar->unix_path, sizeof liar->unix_path, KVP_PEER_UNIX_PREFIX "%016llx",
             (unsigned long long)kvp_random_u64());
    len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(liar->unix_path));
    memcpy(near.sun_path + 1, liar->unix_path + 1, strlen(liar->unix_path) - 1);
    liar->unix_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(liar->unix_fd, (struct sockaddr *)&near, len), 0);
    assert_int_equal(listen(liar->unix_fd, 4), 0);
}

static uint32_t
files_n(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

static void
ask_liar(lie_t lie, int want)
{
    kvpool_p2p_conf_t conf = {.struct_size = sizeof conf, .transports = "cma", .flags = KVPOOL_P2P_TRACEABLE};
    liar_t liar = {.lie = lie};
    kvpool_p2p_op_t op = {.remote = BASE + 100, .len = 4096};
    uint32_t before = files_n();
    kvpool_p2p_t *p2p;
    uint8_t *mem = malloc(BYTES);
    char arrived[4096];
    int err;

    assert_non_null(mem);
    memset(mem, 'x', BYTES);
    if (!make_files(&liar)) {
        print_message("no such memory here: %d\n", lie);
        close(liar.fds[1]);
        close(liar.fds[2]);
        free(mem);
        return;
    }
    finds_n = 0;
    listen_at(&liar);
    assert_int_equal(kvpool_p2p_open(&conf, &p2p), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_register(p2p, mem, BYTES, NULL), KVPOOL_OK);
    assert_int_equal(pthread_create(&liar.thread, NULL, liar_main, &liar), 0);
    op.local = mem;
    err = kvpool_p2p_transfer(p2p, liar.at, KVPOOL_P2P_WRITE, &op, 1, want == KVPOOL_DEADLINE ? 500 : 60000);
    if (lie == LIE_ONE_TOKEN_FOR_TWO) {
        assert_int_equal(err, KVPOOL_OK);
        op.remote = LONG_BASE + LONG_BYTES - op.len;
        err = kvpool_p2p_transfer(p2p, liar.at, KVPOOL_P2P_WRITE, &op, 1, 60000);
    }
    if (err != want) fail_msg("lie %d: %s", lie, kvpool_errname(err));
    kvpool_p2p_free(p2p);
    pthread_join(liar.thread, NULL);
    if (lie == NO_LIE) {
        assert_int_equal(pread(liar.fds[0], arrived, sizeof arrived, 100), sizeof arrived);
        assert_memory_equal(arrived, mem, sizeof arrived);
    }
    for (size_t i = 0; i < 3; i++)
        close(liar.fds[i]);
    close(liar.tcp_fd);
    close(liar.unix_fd);
    free(mem);
    assert_int_equal(files_n(), before);
}

TEST(test_the_liar_is_believed_where_it_does_not_lie)
{
    ask_liar(NO_LIE, KVPOOL_OK);
}

TEST(test_what_could_harm_is_refused)
{
    for (lie_t lie = LIE_UNSEALED; lie <= LIE_EARLY_FDS; lie++)
        ask_liar(lie, KVPOOL_PROTO);
}

/* What it maps is not what is registered, as the peer's own words say. */
TEST(test_a_cell_without_the_token_is_no_registration)
{
    ask_liar(LIE_NO_TOKEN, KVPOOL_NOT_REGISTERED);
}

TEST(test_lies_before_there_is_a_file_are_seen_through)
{
    ask_liar(LIE_SILENCE, KVPOOL_DEADLINE);
    ask_liar(LIE_JUNK, KVPOOL_PROTO);
    ask_liar(LIE_REFUSES, KVPOOL_VERSION);
    for (lie_t lie = LIE_RANGE; lie <= LIE_MANY; lie++)
        ask_liar(lie, KVPOOL_PROTO);
}

/* What was mapped for the one is not where the other one's bytes go. */
TEST(test_one_token_for_two_ranges)
{
    ask_liar(LIE_ONE_TOKEN_FOR_TWO, KVPOOL_PROTO);
}

TEST_MAIN()
