/* SPDX-License-Identifier: Apache-2.0
 * Local memory of peer-to-peer transfers: what is not registered, what is in part, and what ends beyond it. */
#include "tests/unit/p2p/p2pend.h"

#include "tests/unit/loopback.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART ((size_t)1 << 20)
#define GUARD 0x5a

/* `mem` is four parts: the first two are registered, a range each; the last two are not. */
static void
open_local(end_t *end, const char *transports)
{
    assert_int_equal(try_open(end, transports, 0, 0), KVPOOL_OK);
    end->mem = malloc(4 * PART);
    assert_non_null(end->mem);
    memset(end->mem, GUARD, 4 * PART);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(kvpool_p2p_register(end->p2p, end->mem + i * PART, PART, NULL), KVPOOL_OK);
}

static int
submitted(const end_t *from, const char *to, int kind, void *local, uint64_t remote, size_t len)
{
    kvpool_p2p_op_t op = {.local = local, .remote = remote, .len = len};
    uint64_t id;

    return kvpool_p2p_submit(from->p2p, to, kind, &op, 1, 0, &id);
}

static void
ends_of_local_memory(const char *transports)
{
    uint64_t there;
    end_t a, b;

    open_local(&a, transports);
    open_end_of(&b, 4 * PART, transports, 0, 0);
    there = (uintptr_t)b.mem;
    for (int kind = KVPOOL_P2P_READ; kind <= KVPOOL_P2P_WRITE; kind++) {
        kvpool_p2p_op_t two[2] = {{.local = a.mem, .remote = there, .len = 16},
                                  {.local = a.mem + 2 * PART - 16, .remote = there + 16, .len = 17}};

        assert_int_equal(move(&a, &b, kind, 0, 0, 4 * PART), KVPOOL_NOT_REGISTERED);
        assert_int_equal(move(&a, &b, kind, 0, 0, 2 * PART + 1), KVPOOL_NOT_REGISTERED);
        assert_int_equal(move(&a, &b, kind, 2 * PART - 1, 0, 2), KVPOOL_NOT_REGISTERED);
        assert_int_equal(submitted(&a, b.at, kind, a.mem + PART, there, PART + 1), KVPOOL_NOT_REGISTERED);
        assert_int_equal(kvpool_p2p_transfer(a.p2p, b.at, kind, two, 2, 0), KVPOOL_NOT_REGISTERED);
    }
    assert_int_equal(stat_of(&a).failed, 10);
    expect_all(a.mem, 4 * PART, GUARD); /* nothing moved: neither what would have been in order */
    expect_all(b.mem, 4 * PART, 0);

    /* Across ranges without a gap, up to the last byte, and where nothing is registered. */
    assert_int_equal(move(&a, &b, KVPOOL_P2P_READ, 0, 0, 2 * PART), KVPOOL_OK);
    expect_all(a.mem, 2 * PART, 0);
    expect_all(a.mem + 2 * PART, 2 * PART, GUARD);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_READ, 2 * PART, 0, PART), KVPOOL_OK);
    expect_all(a.mem, 3 * PART, 0);
    expect_all(a.mem + 3 * PART, PART, GUARD);

    /* What was a range in between is a gap. */
    assert_int_equal(kvpool_p2p_register(a.p2p, a.mem + 2 * PART, PART, NULL), KVPOOL_OK);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 3 * PART), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_unregister(a.p2p, a.mem + PART), KVPOOL_OK);
    assert_int_equal(move(&a, &b, KVPOOL_P2P_WRITE, 0, 0, 3 * PART), KVPOOL_NOT_REGISTERED);
    close_ends(&a, &b);
}

TEST(test_what_begins_in_a_range_ends_there)
{
    ends_of_local_memory("cma,tcp");
    ends_of_local_memory("tcp");
}

/* Addresses at which there is no memory end the call, not the process. */
TEST(test_memory_that_is_not_there)
{
    uint8_t *hole = mmap(NULL, 4 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static const char *const routes[] = {"cma,tcp", "tcp"};

    assert_true(hole != MAP_FAILED);
    assert_int_equal(munmap(hole + PART, PART), 0);
    for (size_t i = 0; i < KVP_ARRAY_LEN(routes); i++) {
        end_t a, b;
        uint64_t there;

        open_end_of(&a, PART, routes[i], 0, 0);
        open_end_of(&b, 4 * PART, routes[i], 0, 0);
        there = (uintptr_t)b.mem;
        for (int kind = KVPOOL_P2P_READ; kind <= KVPOOL_P2P_WRITE; kind++) {
            assert_int_equal(move_piece(&a, b.at, kind, NULL, there, 8), KVPOOL_INVALID);
            assert_int_equal(move_piece(&a, b.at, kind, (void *)8, there, 4096), KVPOOL_INVALID);
            assert_int_equal(move_piece(&a, b.at, kind, hole + PART, there, PART), KVPOOL_INVALID);
            assert_int_equal(move_piece(&a, b.at, kind, hole, there, 3 * PART), KVPOOL_INVALID);
            assert_int_equal(submitted(&a, b.at, kind, hole + PART, there, 1), KVPOOL_INVALID);
            assert_int_equal(move_piece(&a, b.at, kind, hole, there, PART), KVPOOL_OK);
        }
        close_ends(&a, &b);
    }
    munmap(hole, PART);
    munmap(hole + 2 * PART, 2 * PART);
}

TEST_MAIN()
