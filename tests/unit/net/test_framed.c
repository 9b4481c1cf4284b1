/* SPDX-License-Identifier: Apache-2.0
 * Framed connections over socket pairs and loopback: framing, alignment, descriptors, bounds, connecting. */
#include "net/framed.h"

#include "common/clock.h"
#include "tests/cases.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

typedef struct {
    kvp_framed_t a;
    kvp_framed_t b;
} pair_t;

static int
setup(void **state)
{
    static pair_t p;
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    kvp_framed_init(&p.a);
    kvp_framed_init(&p.b);
    assert_int_equal(kvp_framed_adopt(&p.a, fds[0], true), KVP_OK);
    assert_int_equal(kvp_framed_adopt(&p.b, fds[1], true), KVP_OK);
    *state = &p;
    return 0;
}

static int
teardown(void **state)
{
    pair_t *p = *state;

    kvp_framed_fini(&p->a);
    kvp_framed_fini(&p->b);
    return 0;
}

/* put appends a frame with a head and a tail of these lengths, filled with the id. */
static size_t
put(kvp_framed_t *c, uint64_t id, size_t head_len, size_t tail_len)
{
    uint8_t head[64];
    size_t at;

    memset(head, (int)id, sizeof head);
    kvp_frame_begin(&c->out, 1, 0, id, head, head_len, &at);
    memset(kvp_buf_extend(&c->out, tail_len), (int)id, tail_len);
    kvp_frame_end(&c->out, at);
    return at;
}

static void
expect(const kvp_frame_t *f, uint64_t id, size_t head_len, size_t tail_len)
{
    assert_int_equal(f->hdr.request_id, id);
    assert_int_equal(f->hdr.head_len, head_len);
    assert_int_equal(f->tail_len, tail_len);
    for (size_t i = 0; i < head_len; i++)
        assert_int_equal(f->head[i], (uint8_t)id);
    for (size_t i = 0; i < tail_len; i++)
        assert_int_equal(f->tail[i], (uint8_t)id);
    if (tail_len > 0) assert_int_equal((uintptr_t)f->tail % 8, 0);
}

TEST_WITH(test_frames_of_all_lengths_arrive_aligned, setup, teardown)
{
    pair_t *p = *state;
    uint64_t next = 1;
    kvp_frame_t f;
    bool has;

    for (uint64_t id = 1; id <= 200; id++)
        put(&p->a, id, id % 41, id % 77);
    assert_int_equal(kvp_framed_flush(&p->a), KVP_OK);
    assert_int_equal(kvp_framed_out_bytes(&p->a), 0);
    while (next <= 200) {
        assert_int_equal(kvp_framed_recv(&p->b), KVP_OK);
        for (;;) {
            assert_int_equal(kvp_framed_next(&p->b, &f, &has), KVP_OK);
            if (!has) break;
            expect(&f, next, next % 41, next % 77);
            next++;
        }
    }
    assert_int_equal(kvp_framed_recv(&p->b), KVP_EAGAIN);
}

TEST_WITH(test_frame_in_single_bytes, setup, teardown)
{
    pair_t *p = *state;
    kvp_frame_t f;
    bool has;

    put(&p->a, 5, 3, 9);
    for (size_t i = 0; i < p->a.out.len; i++) {
        assert_int_equal(write(p->a.fd, p->a.out.data + i, 1), 1);
        assert_int_equal(kvp_framed_recv(&p->b), KVP_OK);
        assert_int_equal(kvp_framed_next(&p->b, &f, &has), KVP_OK);
        assert_int_equal(has, i + 1 == p->a.out.len);
    }
    expect(&f, 5, 3, 9);
}

TEST_WITH(test_long_frame_over_a_full_socket, setup, teardown)
{
    pair_t *p = *state;
    size_t len = KVP_FRAME_MAX - 8;
    bool has = false, was_full = false;
    kvp_frame_t f;

    put(&p->a, 9, 8, len);
    while (!has) {
        kvp_err_t err = kvp_framed_flush(&p->a);

        assert_true(err == KVP_OK || err == KVP_EAGAIN);
        was_full |= err == KVP_EAGAIN;
        assert_int_equal(kvp_framed_recv(&p->b), KVP_OK);
        assert_int_equal(kvp_framed_next(&p->b, &f, &has), KVP_OK);
    }
    assert_true(was_full);
    expect(&f, 9, 8, len);
    assert_int_equal(kvp_framed_flush(&p->a), KVP_OK);
}

/* ---- descriptors */
static ino_t
inode(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return st.st_ino;
}

static int
temp_fd(void)
{
    FILE *f = tmpfile();
    int fd;

    assert_non_null(f);
    fd = fcntl(fileno(f), F_DUPFD_CLOEXEC, 3);
    fclose(f);
    return fd;
}

TEST_WITH(test_descriptors_come_with_their_frame, setup, teardown)
{
    pair_t *p = *state;
    int fds[2] = {temp_fd(), temp_fd()}, got[KVP_FRAMED_FDS];
    kvp_frame_t f;
    bool has;
    size_t at;

    put(&p->a, 1, 4, 0);
    at = put(&p->a, 2, 4, 16);
    assert_int_equal(kvp_framed_out_fds(&p->a, at, fds, 2), KVP_OK);
    assert_int_equal(kvp_framed_out_fds(&p->a, at, fds, 1), KVP_BUSY);
    put(&p->a, 3, 4, 0);
    assert_int_equal(kvp_framed_flush(&p->a), KVP_OK);

    assert_int_equal(kvp_framed_recv(&p->b), KVP_OK);
    assert_int_equal(kvp_framed_next(&p->b, &f, &has), KVP_OK);
    assert_true(has);
    expect(&f, 1, 4, 0);
    while (assert_int_equal(kvp_framed_next(&p->b, &f, &has), KVP_OK), !has)
        assert_int_equal(kvp_framed_recv(&p->b), KVP_OK);
    expect(&f, 2, 4, 16);
    assert_int_equal(kvp_framed_take_fds(&p->b, got, 1), 1);
    assert_int_equal(kvp_framed_take_fds(&p->b, got + 1, 3), 1);
    assert_int_equal(kvp_framed_take_fds(&p->b, got + 2, 2), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(inode(got[i]), inode(fds[i]));
        assert_true((fcntl(got[i], F_GETFD) & FD_CLOEXEC) != 0);
        close(got[i]);
        close(fds[i]);
    }
    /* The next set may go now. */
    put(&p->a, 4, 0, 0);
    assert_int_equal(kvp_framed_out_fds(&p->a, 0, &p->b.fd, 1), KVP_OK);
}

TEST_WITH(test_more_descriptors_than_fit_are_closed, setup, teardown)
{
    pair_t *p = *state;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), lowest, again;

    lowest = dup(fd);
    close(lowest);
    for (uint64_t i = 0; i <= KVP_FRAMED_FDS; i++) {
        size_t at = put(&p->a, i, 0, 0);
        assert_int_equal(kvp_framed_out_fds(&p->a, at, &fd, 1), KVP_OK);
        assert_int_equal(kvp_framed_flush(&p->a), KVP_OK);
        /* One call does not read over the border of two sets. */
        assert_int_equal(kvp_framed_recv(&p->b), i < KVP_FRAMED_FDS ? KVP_OK : KVP_PROTO);
    }
    assert_int_equal(p->b.fds_in_n, KVP_FRAMED_FDS);
    for (int i = 0; i < KVP_FRAMED_FDS; i++) {
        assert_int_equal(kvp_framed_take_fds(&p->b, &again, 1), 1);
        close(again);
    }
    again = dup(fd);
    assert_int_equal(again, lowest); /* the surplus one is not open either */
    close(again);
    close(fd);
}

/* ---- what a stranger may send */
TEST_WITH(test_malformed_header_is_refused, setup, teardown)
{
    pair_t *p = *state;
    uint8_t bytes[KVP_FRAME_HDR_BYTES];
    kvp_frame_t f;
    bool has;

    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(write(p->a.fd, bytes, sizeof bytes), sizeof bytes);
    assert_int_equal(kvp_framed_recv(&p->b), KVP_OK);
    assert_int_equal(kvp_framed_next(&p->b, &f, &has), KVP_PROTO);
    assert_false(has);
}

TEST_WITH(test_owner_may_bound_what_it_takes, setup, teardown)
{
    pair_t *p = *state;
    kvp_err_t err = KVP_OK;
    kvp_frame_t f;
    bool has = false;

    p->b.in.limit = 128u << 10;
    put(&p->a, 1, 0, 60u << 10);
    while (!has) {
        assert_true(kvp_framed_flush(&p->a) <= KVP_OK);
        assert_int_equal(kvp_framed_recv(&p->b), KVP_OK);
        assert_int_equal(kvp_framed_next(&p->b, &f, &has), KVP_OK);
    }
    expect(&f, 1, 0, 60u << 10);
    put(&p->a, 2, 0, 1u << 20);
    while (err == KVP_OK || err == KVP_EAGAIN) {
        assert_true(kvp_framed_flush(&p->a) <= KVP_OK);
        err = kvp_framed_recv(&p->b);
        assert_int_equal(kvp_framed_next(&p->b, &f, &has), KVP_OK);
        assert_false(has);
    }
    assert_int_equal(err, KVP_LIMIT);
    assert_true(p->b.in.cap <= 128u << 10);
}

TEST_WITH(test_end_of_the_peer_is_told, setup, teardown)
{
    pair_t *p = *state;

    kvp_framed_fini(&p->a);
    assert_int_equal(kvp_framed_recv(&p->b), KVP_DISCONNECTED);
    put(&p->b, 1, 0, 0);
    assert_int_equal(kvp_framed_flush(&p->b), KVP_DISCONNECTED);
    kvp_framed_fini(&p->b);
    kvp_framed_fini(&p->b);
    assert_int_equal(kvp_framed_recv(&p->b), KVP_DISCONNECTED);
    assert_int_equal(kvp_framed_flush(&p->b), KVP_DISCONNECTED);
}

/* ---- connecting */
static uint64_t
in_ms(uint64_t ms)
{
    return kvp_now_ns() + ms * KVP_NS_PER_MS;
}

TEST(test_connect_tcp)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), got;
    kvp_framed_t c;

    kvp_framed_init(&c);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(kvp_framed_connect_addr(&c, (struct sockaddr *)&at, len, in_ms(2000)), KVP_UNREACHABLE);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(kvp_framed_connect_addr(&c, (struct sockaddr *)&at, len, in_ms(2000)), KVP_OK);
    assert_int_equal(kvp_framed_out_fds(&c, 0, &fd, 1), KVP_NOTSUP);
    got = accept(fd, NULL, NULL);
    assert_true(got >= 0);
    put(&c, 1, 2, 3);
    assert_int_equal(kvp_framed_flush(&c), KVP_OK);
    close(got);
    close(fd);
    kvp_framed_fini(&c);
}

TEST(test_connect_unix)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char path[64], too_long[300];
    kvp_framed_t c[4];
    kvp_err_t err = KVP_OK;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), n;

    for (size_t i = 0; i < KVP_ARRAY_LEN(c); i++)
        kvp_framed_init(&c[i]);
    snprintf(path, sizeof path, "@kvpool-test-%d-%llx", (int)getpid(), (unsigned long long)kvp_random_u64());
    assert_int_equal(kvp_framed_connect_unix(&c[0], path, in_ms(1000)), KVP_UNREACHABLE);
    memcpy(at.sun_path + 1, path + 1, strlen(path) - 1);
    assert_int_equal(
        bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))), 0);
    assert_int_equal(listen(fd, 0), 0);
    /* Nobody accepts: when the queue is full, connecting lasts until its deadline. */
    for (n = 0; n < (int)KVP_ARRAY_LEN(c) && err == KVP_OK; n++)
        err = kvp_framed_connect_unix(&c[n], path, in_ms(30));
    assert_int_equal(err, KVP_DEADLINE);
    assert_true(n > 1 && c[0].is_unix);
    for (size_t i = 0; i < KVP_ARRAY_LEN(c); i++)
        kvp_framed_fini(&c[i]);
    close(fd);

    memset(too_long, 'x', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    assert_int_equal(kvp_framed_connect_unix(&c[0], too_long, in_ms(1000)), KVP_UNREACHABLE);
    assert_int_equal(kvp_framed_connect_unix(&c[0], "/nonexistent/socket", in_ms(1000)), KVP_UNREACHABLE);
    assert_int_equal(kvp_framed_connect_unix(&c[0], "", in_ms(1000)), KVP_UNREACHABLE);
}

/* It is this process that lacks room, not the peer that is broken: what was said is there, and so is the connection. */
TEST_WITH(test_descriptors_without_room_here, setup, teardown)
{
    pair_t *p = *state;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), fds[2] = {fd, fd}, got[2];
    struct rlimit much, limit;
    kvp_frame_t frame;
    bool has;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &much), 0);
    for (uint64_t i = 1; i <= 2; i++) {
        assert_int_equal(kvp_framed_out_fds(&p->a, put(&p->a, i, 0, 0), fds, 2), KVP_OK);
        assert_int_equal(kvp_framed_flush(&p->a), KVP_OK);
        got[0] = dup(fd);
        close(got[0]);
        limit = much;
        if (i == 1) limit.rlim_cur = (rlim_t)got[0] + 1; /* one has room */
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        assert_int_equal(kvp_framed_recv(&p->b), i == 1 ? KVP_SYS : KVP_OK);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &much), 0);
        assert_int_equal(kvp_framed_next(&p->b, &frame, &has), KVP_OK);
        assert_true(has && frame.hdr.request_id == i);
        assert_int_equal(kvp_framed_take_fds(&p->b, got, 2), i == 1 ? 0 : 2);
    }
    close(got[0]);
    close(got[1]);
    close(fd);
}

TEST_MAIN()
