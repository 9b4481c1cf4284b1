/* SPDX-License-Identifier: Apache-2.0
 * Endpoints with memory of their own (kvpool_p2p_alloc), for tests of peer-to-peer transfers by "cma" alone. Header
 * only. */
#ifndef KVP_TEST_P2POWN_H
#define KVP_TEST_P2POWN_H

#include "tests/unit/p2p/p2pend.h"

#define BYTES (((size_t)8 << 20) + 5000) /* no whole number of pages */
#define SOON_NS (20 * KVP_NS_PER_S)

static inline uint8_t *
alloc(const end_t *end)
{
    void *mem = NULL;

    assert_int_equal(kvpool_p2p_alloc(end->p2p, BYTES, &mem, NULL), KVPOOL_OK);
    return mem;
}

/* `mem` is BYTES that go with the endpoint: kvpool_p2p_free closes it, not close_end. */
static inline void
open_own(end_t *end)
{
    assert_int_equal(try_open(end, "cma", 0, 0), KVPOOL_OK);
    end->mem = alloc(end);
}

static inline void
open_owns(end_t *a, end_t *b)
{
    open_own(a);
    open_own(b);
}

static inline void
free_owns(end_t *a, end_t *b)
{
    kvpool_p2p_free(a->p2p);
    kvpool_p2p_free(b->p2p);
}

static inline uint64_t
mapped_bytes(const end_t *end)
{
    kvpool_p2p_stat_t stat = stat_of(end);

    assert_int_equal(stat.tcp_bytes, 0);
    assert_true(stat.mapped_bytes <= stat.cma_bytes);
    return stat.mapped_bytes;
}

static inline int
write_all(const end_t *from, const end_t *to)
{
    return move(from, to, KVPOOL_P2P_WRITE, 0, 0, BYTES);
}

#endif
