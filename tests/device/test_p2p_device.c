/* SPDX-License-Identifier: Apache-2.0
 * Transfers between endpoints from and to memory of a device, by every way: the whole library above the model NIC and
 * a CUDA driver without a device (fake_cuda.h), where a processor that touches such memory dies of it. */
#include "client/kvpool_p2p.h"
#include "p2p/serve/conn.h"
#include "common/log.h"
#include "common/mutate.h"
#include "tests/device/fake_cuda.h"
#include "tests/transport/model_nic.h"
#include "tests/transport/sanitizer.h"
#include "tests/unit/p2p/p2pend.h"
#include "tests/cases.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BYTES ((size_t)(IS_TSAN ? 3 : 6) << 20) /* ThreadSanitizer notes each word of a copy */

kvp_rule_t kvp_rule_off;

/* ---- fixture */
static int
setup(void **state)
{
    model_nic_conf_t conf = {.is_loopback = true};

    (void)state;
    kvp_log_set_level(KVP_LOG_ERROR);
    fake_cuda_reset();
    assert_in_range(model_nic_reset(7, &conf), 0, 1); /* the process keeps its devices open */
    return 0;
}

static int
teardown(void **state)
{
    fake_cuda_left_t left = fake_cuda_left();

    (void)state;
    return left.allocations == 0 && left.streams == 0 && left.pinned_bytes == 0 ? 0 : -1;
}

/* `mem` and `device` are BYTES each. */
static void
open_both(end_t *end, const char *transports)
{
    open_end_of(end, BYTES, transports, 0, 0);
    end->device = fake_cuda_alloc(BYTES, FAKE_CUDA_PLAIN);
    assert_non_null(end->device);
    assert_int_equal(kvpool_p2p_register(end->p2p, end->device, BYTES, NULL), KVPOOL_OK);
}

static void
close_both(end_t *end)
{
    close_end(end);
    fake_cuda_free(end->device);
}

static void
open_pair(end_t *a, end_t *b, const char *transports)
{
    open_both(a, transports);
    open_both(b, transports);
}

static void
close_pair(end_t *a, end_t *b)
{
    close_both(a);
    close_both(b);
}

/* ---- bytes */
static void
store(uint8_t *at, bool is_device, size_t len, uint32_t seed)
{
    uint8_t *bytes = malloc(len);

    assert_non_null(bytes);
    fill(bytes, len, seed);
    if (is_device)
        fake_cuda_write(at, bytes, len);
    else
        memcpy(at, bytes, len);
    free(bytes);
}

/* What is there, the caller's to free. */
static uint8_t *
load(const uint8_t *at, bool is_device, size_t len)
{
    uint8_t *bytes = malloc(len);

    assert_non_null(bytes);
    if (is_device)
        fake_cuda_read(at, bytes, len);
    else
        memcpy(bytes, at, len);
    return bytes;
}

static int
move_there(const end_t *from, const end_t *to, int kind, void *here, const void *there, size_t len)
{
    return move_piece(from, to->at, kind, here, (uintptr_t)there, len);
}

/* One transfer, after which the destination has the source's bytes where it should, and its own all around. */
static void
check_move(const end_t *a, const end_t *b, int kind, bool is_here, bool is_there, size_t len)
{
    bool is_write = kind == KVPOOL_P2P_WRITE;
    uint8_t *here = is_here ? a->device : a->mem, *there = is_there ? b->device : b->mem;
    uint8_t *to = is_write ? there + 17 : here + 17, *want, *around, *got;

    store(here, is_here, BYTES, 1);
    store(there, is_there, BYTES, 2);
    want = load(is_write ? here + 3 : there + 3, is_write ? is_here : is_there, len);
    around = load(is_write ? there : here, is_write ? is_there : is_here, BYTES);
    memcpy(around + 17, want, len);
    assert_int_equal(move_there(a, b, kind, is_write ? here + 3 : to, is_write ? to : there + 3, len), KVPOOL_OK);
    got = load(is_write ? there : here, is_write ? is_there : is_here, BYTES);
    assert_memory_equal(got, around, BYTES);
    free(want);
    free(around);
    free(got);
}

/* ---- tests */
static void
every_move_by(const char *transports)
{
    static const size_t lens[] = {1, 4097, (2u << 20) + 5, BYTES - 64};
    end_t a, b;

    open_pair(&a, &b, transports);
    for (size_t i = 0; i < 4 * sizeof lens / sizeof lens[0]; i++) {
        bool is_here = (i & 1) != 0, is_there = (i & 2) != 0;

        check_move(&a, &b, KVPOOL_P2P_WRITE, is_here, is_there, lens[i / 4]);
        check_move(&a, &b, KVPOOL_P2P_READ, is_here, is_there, lens[i / 4]);
    }
    close_pair(&a, &b);
}

TEST_WITH(test_every_move, setup, teardown)
{
    every_move_by("cma");
    every_move_by("tcp");
    every_move_by("rdma");
}

/* More than a window has, of all kinds in one call. */
TEST_WITH(test_many_pieces, setup, teardown)
{
    enum { N = 1700, LEN = BYTES / 2048 | 1 };
    kvpool_p2p_op_t *ops = calloc(N, sizeof *ops);
    uint8_t *want[2], *got[2];
    end_t a, b;

    assert_non_null(ops);
    open_pair(&a, &b, "cma");
    for (int i = 0; i < 2; i++) {
        store(i != 0 ? a.device : a.mem, i != 0, BYTES, (uint32_t)i + 1);
        want[i] = load(i != 0 ? a.device : a.mem, i != 0, BYTES);
    }
    for (size_t i = 0; i < N; i++)
        ops[i] = (kvpool_p2p_op_t){.local = (i % 2 != 0 ? a.device : a.mem) + i * LEN,
                                   .remote = (uintptr_t)(i % 3 != 0 ? b.device : b.mem) + (N - 1 - i) * LEN,
                                   .len = LEN};
    assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, KVPOOL_P2P_WRITE, ops, N, 0), KVPOOL_OK);
    for (int i = 0; i < 2; i++)
        got[i] = load(i != 0 ? b.device : b.mem, i != 0, BYTES);
    for (size_t i = 0; i < N; i++)
        assert_memory_equal(got[i % 3 != 0] + (N - 1 - i) * LEN, want[i % 2 != 0] + i * LEN, LEN);
    for (int i = 0; i < 2; i++) {
        free(want[i]);
        free(got[i]);
    }
    close_pair(&a, &b);
    free(ops);
}

TEST_WITH(test_what_is_not_registered, setup, teardown)
{
    uint64_t first;
    size_t len;
    end_t a, b;

    open_pair(&a, &b, "cma");
    check_move(&a, &b, KVPOOL_P2P_WRITE, true, true, 5000);
    assert_int_equal(move_there(&a, &b, KVPOOL_P2P_WRITE, a.mem, b.device + BYTES - 10, 11), KVPOOL_NOT_REGISTERED);
    assert_int_equal(move_there(&a, &b, KVPOOL_P2P_WRITE, a.device + BYTES - 10, b.mem, 11), KVPOOL_NOT_REGISTERED);
    /* A bounce buffer is nothing that an application is told of. */
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.mem), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_first_range(a.p2p, b.at, 0, &first, &len), KVPOOL_OK);
    assert_true(first == (uintptr_t)b.device && len == BYTES);
    assert_int_equal(kvpool_p2p_unregister(b.p2p, b.device), KVPOOL_OK);
    assert_int_equal(move_there(&a, &b, KVPOOL_P2P_WRITE, a.device, b.device, 100), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_first_range(a.p2p, b.at, 0, &first, &len), KVPOOL_NOT_REGISTERED);
    assert_int_equal(kvpool_p2p_register(b.p2p, b.device, BYTES, NULL), KVPOOL_OK);
    check_move(&a, &b, KVPOOL_P2P_READ, true, true, 5000);
    close_pair(&a, &b);
}

/* Nothing beyond a bounce buffer is copied to or from, whatever a peer asks for. */
TEST_WITH(test_what_lies_in_a_bounce_buffer, setup, teardown)
{
    kvp_peer_piece_t pieces[] = {{.token = 1, .addr = 1, .len = 1},
                                 {.token = 1, .addr = 1, .len = KVP_BOUNCE_PART_BYTES}};
    kvp_peer_moves_t moves = {.kind = KVP_PEER_STORE, .pieces = pieces, .n = 2};

    assert_true(kvp_p2p_bounce_takes(&moves));
    pieces[1].from = 1;
    assert_false(kvp_p2p_bounce_takes(&moves));
    pieces[1] = (kvp_peer_piece_t){.token = 1, .addr = 1, .len = 1, .from = KVP_BOUNCE_PART_BYTES};
    assert_false(kvp_p2p_bounce_takes(&moves));
    pieces[1].len = UINT64_MAX - KVP_BOUNCE_PART_BYTES + 1;
    assert_false(kvp_p2p_bounce_takes(&moves));
    pieces[1].from = pieces[1].len;
    assert_false(kvp_p2p_bounce_takes(&moves));
}

/* A device that does not copy, here or there: an error, and all is well once it does again. */
TEST_WITH(test_copies_that_fail, setup, teardown)
{
    end_t a, b;

    open_pair(&a, &b, "cma");
    for (int i = 0; i < 2; i++) {
        fake_cuda_knobs.memcpy_async = i == 0 ? 719 : 0;
        fake_cuda_knobs.synchronize = i == 1 ? 719 : 0;
        assert_int_equal(move_there(&a, &b, KVPOOL_P2P_WRITE, a.device, b.mem, 5000), KVPOOL_SYS);
        assert_int_equal(move_there(&a, &b, KVPOOL_P2P_WRITE, a.mem, b.device, 5000), KVPOOL_SYS);
        assert_int_equal(move_there(&a, &b, KVPOOL_P2P_READ, a.mem, b.device, 5000), KVPOOL_SYS);
        fake_cuda_knobs.memcpy_async = fake_cuda_knobs.synchronize = 0;
        check_move(&a, &b, KVPOOL_P2P_WRITE, true, true, 5000);
    }
    fake_cuda_knobs.host_alloc = 2;
    close_both(&a);
    open_both(&a, "cma");
    assert_int_not_equal(move_there(&a, &b, KVPOOL_P2P_WRITE, a.device, b.mem, 5000), KVPOOL_OK);
    fake_cuda_knobs.host_alloc = 0;
    check_move(&a, &b, KVPOOL_P2P_WRITE, true, true, 5000);
    close_pair(&a, &b);
}

/* Unregistering waits for what was submitted, which goes as it would have; from then on the memory is nobody's to move.
 */
TEST_WITH(test_unregister_behind_submits, setup, teardown)
{
    static const char *const ways[] = {"tcp", "rdma"};
    enum { N = 40, LEN = BYTES / 64 };

    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        uint64_t ids[N];
        end_t a, b;

        open_pair(&a, &b, ways[w]);
        for (size_t i = 0; i < N; i++) {
            kvpool_p2p_op_t op = {.local = a.device + i * LEN, .remote = (uintptr_t)b.mem + i * LEN, .len = LEN};

            assert_int_equal(kvpool_p2p_submit(a.p2p, b.at, KVPOOL_P2P_WRITE, &op, 1, 0, &ids[i]), KVPOOL_OK);
        }
        assert_int_equal(kvpool_p2p_unregister(a.p2p, a.device), KVPOOL_OK);
        for (size_t i = 0; i < N; i++) {
            int result = KVPOOL_INTERNAL;

            assert_int_equal(kvpool_p2p_poll(a.p2p, ids[i], END_DEADLINE_MS, &result), KVPOOL_OK);
            assert_int_equal(result, KVPOOL_OK);
        }
        assert_int_equal(move_there(&a, &b, KVPOOL_P2P_WRITE, a.device, b.mem, LEN), KVPOOL_NOT_REGISTERED);
        close_pair(&a, &b);
    }
}

typedef struct {
    const end_t *from, *to;
    size_t off;
} writer_t;

static void *
write_often(void *arg)
{
    const writer_t *w = arg;
    enum { LEN = BYTES / 16 };

    for (uint32_t i = 0; i < 20; i++) {
        uint8_t *want, *got;

        store(w->from->device + w->off, true, LEN, i + 1);
        assert_int_equal(
            move_there(w->from, w->to, KVPOOL_P2P_WRITE, w->from->device + w->off, w->to->device + w->off, LEN),
            KVPOOL_OK);
        want = load(w->from->device + w->off, true, LEN);
        got = load(w->to->device + w->off, true, LEN);
        assert_memory_equal(got, want, LEN);
        free(want);
        free(got);
    }
    return NULL;
}

/* More threads than there are bounce buffers, in both directions: none waits for another in a circle. */
TEST_WITH(test_many_threads, setup, teardown)
{
    enum { THREADS = 12 };
    pthread_t threads[THREADS];
    writer_t writers[THREADS];
    end_t a, b;

    open_pair(&a, &b, "cma");
    for (size_t i = 0; i < THREADS; i++) {
        writers[i] = (writer_t){i % 2 != 0 ? &a : &b, i % 2 != 0 ? &b : &a, i * (BYTES / THREADS)};
        assert_int_equal(pthread_create(&threads[i], NULL, write_often, &writers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    close_pair(&a, &b);
}

TEST_MAIN()
