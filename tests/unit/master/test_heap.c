/* SPDX-License-Identifier: Apache-2.0
 * The heap against a plain array. */
#include "master/core/base/heap.h"
#include "tests/world/check/core_check.h"
#include "tests/cases.h"

#include <stdlib.h>

#define N 200u

static uint64_t
next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return *seed >> 33;
}

static uint64_t
least(const kvp_heapnode_t *nodes)
{
    uint64_t key = UINT64_MAX;

    for (uint32_t i = 0; i < N; i++)
        if (nodes[i].at != 0) key = kvp_min_u64(key, nodes[i].key);
    return key;
}

TEST(test_heap_when_keys_come_and_go)
{
    kvp_heapnode_t nodes[N] = {0};
    kvp_heap_t heap = {0};
    uint64_t seed = 1;

    for (uint32_t step = 0; step < 20000; step++) {
        kvp_heapnode_t *node = &nodes[next(&seed) % N];

        if (node->at != 0)
            for (uint32_t twice = 0; twice < 2; twice++) /* once more does nothing */
                kvp_heap_del(&heap, node);
        else
            kvp_heap_add(&heap, node, next(&seed) % 1000);
        assert_null(kvp_heap_check(&heap));
        if (heap.n > 0) assert_int_equal(kvp_heap_least(&heap)->key, least(nodes));
    }
    kvp_heap_fini(&heap);
}

TEST_MAIN()
