/* SPDX-License-Identifier: Apache-2.0
 * A path is a pair of ports: what it is like outlives connections, and is no other pair's. */
#include "transport/rdma/base/tp.h"

#include "transport/rdma/verbs/dev.h"
#include "common/clock.h"
#include "tests/cases.h"

#include <string.h>

#define MS KVP_NS_PER_MS

static kvp_rdma_path_t
path(uint32_t ours, uint32_t host, uint16_t port)
{
    kvp_rdma_path_t p = {.ours = ours};
    struct sockaddr_in *in = (struct sockaddr_in *)&p.theirs;

    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(0x0a000000u + host);
    in->sin_port = htons(port);
    return p;
}

static kvp_rdma_fails_t
look(kvp_rdma_paths_t *t, uint32_t ours, uint32_t host, uint16_t port)
{
    kvp_rdma_path_t p = path(ours, host, port);

    return kvp_rdma_paths_look(t, &p);
}

static void
fail_at(kvp_rdma_paths_t *t, uint32_t ours, uint32_t host, uint64_t since_ns, uint64_t now_ns)
{
    kvp_rdma_path_t p = path(ours, host, 1);

    (void)kvp_rdma_paths_failed(t, &p, since_ns, now_ns, 0);
}

TEST(test_bad_cable_costs_that_pair_alone)
{
    static kvp_rdma_paths_t t;

    kvp_rdma_paths_init(&t);
    fail_at(&t, 0, 1, 5 * MS, 10 * MS);
    assert_int_equal(look(&t, 0, 1, 1).fails, 1);
    assert_int_equal(look(&t, 0, 2, 1).fails, 0); /* our port is good for another one of theirs, */
    assert_int_equal(look(&t, 1, 1, 1).fails, 0); /* and theirs for another one of ours */
    kvp_rdma_paths_fini(&t);
}

/* It is the GID that counts: a node that was started again may listen at another port. */
TEST(test_path_is_known_over_reconnections)
{
    static kvp_rdma_paths_t t;
    kvp_rdma_path_t p = path(0, 1, 7000), again = path(0, 1, 7001);
    kvp_rdma_fails_t f;

    kvp_rdma_paths_init(&t);
    for (uint32_t i = 1; i <= 3; i++)
        f = kvp_rdma_paths_failed(&t, &p, 100 * i * MS, (100 * i + 1) * MS, 0);
    assert_int_equal(f.fails, 3);
    f = kvp_rdma_paths_look(&t, &again);
    assert_int_equal(f.fails, 3);
    kvp_rdma_paths_reset(&t, &again);
    assert_int_equal(kvp_rdma_paths_look(&t, &p).fails, 0);
    kvp_rdma_paths_fini(&t);
}

TEST(test_failure_that_many_see_is_one)
{
    static kvp_rdma_paths_t t;

    kvp_rdma_paths_init(&t);
    for (uint32_t i = 0; i < 8; i++)
        fail_at(&t, 0, 1, 5 * MS, (10 + i) * MS); /* all stood at 10 ms */
    assert_int_equal(look(&t, 0, 1, 1).fails, 1);
    fail_at(&t, 0, 1, 11 * MS, 12 * MS); /* it was tried again */
    assert_int_equal(look(&t, 0, 1, 1).fails, 2);
    kvp_rdma_paths_fini(&t);
}

TEST(test_more_than_are_kept)
{
    static kvp_rdma_paths_t t;
    kvp_rdma_path_t first = path(0, 0, 1);

    kvp_rdma_paths_init(&t);
    (void)kvp_rdma_paths_failed(&t, &first, 1, 2, 0);
    for (uint32_t i = 1; i <= KVP_RDMA_PATHS; i++)
        fail_at(&t, 0, i, 1, 2);
    assert_int_equal(kvp_rdma_paths_look(&t, &first).fails, 0); /* whose place was taken */
    assert_int_equal(look(&t, 0, KVP_RDMA_PATHS, 1).fails, 1);
    kvp_rdma_paths_fini(&t);
}

/* A moment at first, then twice as long each time up to some seconds; those who lost theirs together come again at
 * different times. */
TEST(test_failed_path_is_left_alone)
{
    static kvp_rdma_paths_t t;
    kvp_rdma_path_t low = path(0, 1, 1), high = path(0, 2, 1);

    kvp_rdma_paths_init(&t);
    for (uint64_t i = 0; i < 12; i++) {
        uint64_t now = (i + 1) * 60000 * MS, wait = 50 * MS << (i < 7 ? i : 7), first = i == 0 ? 0 : wait;

        assert_true(kvp_rdma_paths_failed(&t, &low, now - 1, now, 0).retry_ns == now + first);
        assert_true(kvp_rdma_paths_failed(&t, &high, now - 1, now, wait - 1).retry_ns == now + first + wait - 1);
    }
    kvp_rdma_paths_fini(&t);
}

TEST_MAIN()
