/* SPDX-License-Identifier: Apache-2.0
 * Pulls by several threads at once, with this process as the peer: what fails is said of the piece that it is about,
 * and nothing is touched after it was dropped, unregistered or over. */
#include "p2p/base/pull.h"
#include "transport/all/registry.h"
#include "common/clock.h"
#include "tests/cases.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)4 << 20)
#define PIECES 1000u
#define PATIENCE_MS 60000

typedef struct {
    kvp_tp_t *tp;
    kvp_p2p_ranges_t ranges;
    kvp_p2p_pullers_t pullers;
    kvp_cma_proc_t self;
    int wake_fd;
    uint8_t *from, *to;
    kvp_peer_piece_t pieces[PIECES];
    kvp_peer_moved_t moved[PIECES];
    kvp_p2p_pull_t pull;
    uint64_t token;
} rig_t;

static uint8_t *
map(size_t len)
{
    uint8_t *mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(mem != MAP_FAILED);
    return mem;
}

static int
set_up(void **state)
{
    kvp_tp_conf_t conf = {.incarnation = 1, .pool_id = "pulls"};
    rig_t *r = calloc(1, sizeof *r);

    assert_non_null(r);
    assert_int_equal(kvp_tp_create(kvp_transport_find("tcp"), &conf, &r->tp), KVP_OK);
    kvp_p2p_ranges_init(&r->ranges, r->tp, NULL, false);
    r->wake_fd = eventfd(0, EFD_CLOEXEC);
    assert_true(r->wake_fd >= 0);
    kvp_p2p_pullers_init(&r->pullers);
    r->pullers.threads_max = 3; /* on whatever machine this runs */
    r->self = (kvp_cma_proc_t){.pid = getpid(), .fd = (int)syscall(SYS_pidfd_open, getpid(), 0)};
    assert_true(r->self.fd >= 0);
    r->from = map(BYTES);
    r->to = map(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        r->from[i] = (uint8_t)(i * 131 >> 7 ^ i);
    r->token = kvp_random_u64();
    assert_int_equal(kvp_p2p_ranges_add(&r->ranges, r->to, BYTES, r->token, false), KVP_OK);
    *state = r;
    return 0;
}

static int
tear_down(void **state)
{
    rig_t *r = *state;

    kvp_p2p_pullers_fini(&r->pullers);
    kvp_p2p_ranges_fini(&r->ranges);
    kvp_tp_destroy(r->tp);
    kvp_cma_close(&r->self);
    close(r->wake_fd);
    munmap(r->from, BYTES);
    munmap(r->to, BYTES);
    free(r);
    return 0;
}

/* Pieces of uneven lengths, one behind the other. */
static void
fill(rig_t *r, uint32_t n)
{
    size_t each = BYTES / n / 2, at = 0;

    memset(r->moved, 0, sizeof r->moved);
    for (uint32_t i = 0; i < n; i++) {
        size_t len = each + i * 97 % each;

        r->pieces[i] = (kvp_peer_piece_t){
            .token = r->token, .addr = (uintptr_t)(r->to + at), .len = len, .from = (uintptr_t)(r->from + at)};
        at += len;
    }
    r->pull = (kvp_p2p_pull_t){.proc = &r->self,
                               .ranges = &r->ranges,
                               .wake_fd = r->wake_fd,
                               .pieces = r->pieces,
                               .moved = r->moved,
                               .deadline_ns = kvp_now_ns() + PATIENCE_MS * KVP_NS_PER_MS,
                               .n = n};
}

static void
wait_for_threads(rig_t *r)
{
    struct pollfd p = {.fd = r->wake_fd, .events = POLLIN};
    eventfd_t n;

    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    assert_int_equal(eventfd_read(r->wake_fd, &n), 0);
}

static void
finish(rig_t *r)
{
    for (;;) {
        kvp_p2p_pull_state_t state = kvp_p2p_pull_work(&r->pullers, &r->pull);

        if (state == KVP_P2P_PULL_OVER) return;
        if (state == KVP_P2P_PULL_BUSY) wait_for_threads(r);
    }
}

static bool
is_zero(const uint8_t *mem, size_t len)
{
    return mem[0] == 0 && memcmp(mem, mem + 1, len - 1) == 0;
}

static bool
is_there(const rig_t *r, uint32_t piece)
{
    const kvp_peer_piece_t *p = &r->pieces[piece];

    return memcmp((void *)(uintptr_t)p->addr, (void *)(uintptr_t)p->from, p->len) == 0;
}

TEST_WITH(test_every_byte_by_owner_and_threads, set_up, tear_down)
{
    static const uint32_t counts[] = {1, 2, 129, PIECES};
    rig_t *r = *state;

    for (uint32_t turn = 0; turn < 40; turn++) {
        uint32_t n = counts[turn % KVP_ARRAY_LEN(counts)];

        memset(r->to, 0, BYTES);
        fill(r, n);
        kvp_p2p_pull_begin(&r->pullers, &r->pull);
        finish(r);
        for (uint32_t i = 0; i < n; i++)
            assert_true(r->moved[i].err == KVP_OK && is_there(r, i));
    }
    assert_int_equal(r->pullers.threads_n, 3);
}

/* Threads alone do it, where the owner sleeps: they wake it when all is over. */
TEST_WITH(test_threads_need_no_owner, set_up, tear_down)
{
    rig_t *r = *state;

    fill(r, PIECES);
    kvp_p2p_pull_begin(&r->pullers, &r->pull);
    wait_for_threads(r);
    assert_int_equal(kvp_p2p_pull_work(&r->pullers, &r->pull), KVP_P2P_PULL_OVER);
    for (uint32_t i = 0; i < PIECES; i++)
        assert_true(r->moved[i].err == KVP_OK && is_there(r, i));
}

TEST_WITH(test_owner_needs_no_threads, set_up, tear_down)
{
    rig_t *r = *state;

    r->pullers.threads_max = 0;
    fill(r, PIECES);
    kvp_p2p_pull_begin(&r->pullers, &r->pull);
    while (kvp_p2p_pull_work(&r->pullers, &r->pull) == KVP_P2P_PULL_MORE)
        ;
    assert_int_equal(r->pullers.threads_n, 0);
    for (uint32_t i = 0; i < PIECES; i++)
        assert_true(r->moved[i].err == KVP_OK && is_there(r, i));
}

/* Small ones and one of many slices that cannot be read, or written to; the others are copied. */
TEST_WITH(test_errors_are_of_their_pieces, set_up, tear_down)
{
    rig_t *r = *state;
    uint8_t *hole = map(BYTES), *stranger = map(BYTES);

    for (uint32_t turn = 0; turn < 10; turn++) {
        uint32_t n = turn % 2 == 0 ? PIECES : 5; /* 5: of megabytes */
        size_t half;

        fill(r, n);
        memset(r->to, 0, BYTES);
        half = r->pieces[1].len / 2;
        mprotect(hole, BYTES, PROT_NONE);
        mprotect(hole, half & ~(size_t)4095, PROT_READ); /* its end cannot be read */
        r->pieces[1].from = (uintptr_t)hole;
        r->pieces[2].addr = (uintptr_t)stranger;
        r->pieces[3].token++;
        kvp_p2p_pull_begin(&r->pullers, &r->pull);
        finish(r);
        assert_int_equal(r->moved[1].err, KVP_INVALID);
        assert_int_equal(r->moved[2].err, KVP_NOT_REGISTERED);
        assert_int_equal(r->moved[3].err, KVP_NOT_REGISTERED);
        for (uint32_t i = 0; i < n; i++)
            if (i == 0 || i > 3) assert_true(r->moved[i].err == KVP_OK && is_there(r, i));
        assert_true(is_zero(stranger, BYTES));
    }
    munmap(hole, BYTES);
    munmap(stranger, BYTES);
}

/* As a transfer of ours reads: nothing is looked up, and nobody has an eventfd. */
TEST_WITH(test_into_memory_of_the_owner, set_up, tear_down)
{
    rig_t *r = *state;

    assert_int_equal(kvp_p2p_ranges_del(&r->ranges, r->to), KVP_OK);
    for (uint32_t turn = 0; turn < 100; turn++) {
        uint32_t n = turn % 2 == 0 ? PIECES : 3;
        bool is_dropped = turn % 5 == 4;

        memset(r->to, 0, BYTES);
        fill(r, n);
        r->pull.ranges = NULL;
        r->pull.wake_fd = -1;
        kvp_p2p_pull_begin(&r->pullers, &r->pull);
        while (!is_dropped && kvp_p2p_pull_work(&r->pullers, &r->pull) == KVP_P2P_PULL_MORE)
            ;
        if (!kvp_p2p_pull_drop(&r->pullers, &r->pull)) kvp_p2p_pull_wait(&r->pullers, &r->pull);
        memset(r->pieces + n, 0xff, sizeof r->pieces - n * sizeof *r->pieces);
        for (uint32_t i = 0; i < n && !is_dropped; i++)
            assert_true(r->moved[i].err == KVP_OK && is_there(r, i));
        memset(r->to, 0, BYTES);
        if (is_dropped) assert_true(is_zero(r->to, BYTES));
    }
    assert_int_equal(kvp_p2p_ranges_add(&r->ranges, r->to, BYTES, r->token, false), KVP_OK);
}

TEST_WITH(test_late, set_up, tear_down)
{
    rig_t *r = *state;

    fill(r, PIECES);
    memset(r->to, 0, BYTES);
    r->pull.deadline_ns = 1;
    kvp_p2p_pull_begin(&r->pullers, &r->pull);
    finish(r);
    for (uint32_t i = 0; i < PIECES; i++)
        assert_int_equal(r->moved[i].err, KVP_DEADLINE);
    assert_int_equal(r->to[0], 0);
}

/* The owner drops a pull that threads are in the middle of; once it is over nothing of it is touched, nor read. */
TEST_WITH(test_dropped, set_up, tear_down)
{
    rig_t *r = *state;

    for (uint32_t turn = 0; turn < 200; turn++) {
        fill(r, turn % 2 == 0 ? PIECES : 3);
        kvp_p2p_pull_begin(&r->pullers, &r->pull);
        if (turn % 3 == 0) (void)kvp_p2p_pull_work(&r->pullers, &r->pull);
        while (!kvp_p2p_pull_drop(&r->pullers, &r->pull))
            wait_for_threads(r);
        memset(r->to, 0, BYTES / 8);
        memset(&r->pull, 0xff, sizeof r->pull);
        memset(r->pieces, 0xff, sizeof r->pieces);
        assert_true(is_zero(r->to, BYTES / 8));
    }
}

/* Memory that is taken back in the middle is its owner's once unregister has returned. */
TEST_WITH(test_unregistered_meanwhile, set_up, tear_down)
{
    rig_t *r = *state;
    bool has_failed = false;

    for (uint32_t turn = 0; turn < 50; turn++) {
        fill(r, PIECES);
        kvp_p2p_pull_begin(&r->pullers, &r->pull);
        if (turn % 2 == 0) (void)kvp_p2p_pull_work(&r->pullers, &r->pull);
        assert_int_equal(kvp_p2p_ranges_del(&r->ranges, r->to), KVP_OK);
        memset(r->to, 0, BYTES);
        finish(r);
        assert_true(is_zero(r->to, BYTES));
        for (uint32_t i = 0; i < PIECES; i++) {
            if (r->moved[i].err == KVP_NOT_REGISTERED) has_failed = true;
            assert_true(r->moved[i].err == KVP_OK || r->moved[i].err == KVP_NOT_REGISTERED);
        }
        assert_int_equal(kvp_p2p_ranges_add(&r->ranges, r->to, BYTES, r->token, false), KVP_OK);
    }
    assert_true(has_failed);
}

TEST_WITH(test_peer_that_has_ended, set_up, tear_down)
{
    rig_t *r = *state;
    pid_t child = fork();
    kvp_cma_proc_t proc = {.pid = child};

    if (child == 0) _exit(0);
    assert_true(child > 0);
    proc.fd = (int)syscall(SYS_pidfd_open, child, 0);
    assert_true(proc.fd >= 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    fill(r, PIECES);
    r->pull.proc = &proc;
    kvp_p2p_pull_begin(&r->pullers, &r->pull);
    finish(r);
    for (uint32_t i = 0; i < PIECES; i++)
        assert_int_equal(r->moved[i].err, KVP_DISCONNECTED);
    kvp_cma_close(&proc);
}

TEST_MAIN()
