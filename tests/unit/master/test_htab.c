/* SPDX-License-Identifier: Apache-2.0
 * The hash table that grows and shrinks by single buckets, against a plain array.
 */
#include "master/core/base/htab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS 3000u

typedef struct {
    kvp_htabnode_t node;
    bool is_in;
} record_t;

static uint64_t
next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static bool
is_found(const kvp_htab_t *tab, const record_t *r, uint64_t hash)
{
    for (const kvp_htabnode_t *n = kvp_htab_find(tab, hash); n != NULL; n = kvp_htab_next(n)) {
        assert_int_equal(n->hash, hash);
        if (n == &r->node) return true;
    }
    return false;
}

static void
expect_all(const kvp_htab_t *tab, const record_t *records, uint64_t (*hash_of)(uint32_t))
{
    uint32_t n = 0, walked = 0;

    for (uint32_t i = 0; i < RECORDS; i++) {
        assert_int_equal(is_found(tab, &records[i], hash_of(i)), records[i].is_in);
        n += records[i].is_in;
    }
    for (const kvp_htabnode_t *at = kvp_htab_first(tab); at != NULL; at = kvp_htab_after(tab, at)) {
        assert_true(kvp_container_of(at, record_t, node)->is_in);
        walked++;
    }
    assert_int_equal(tab->n, n);
    assert_int_equal(walked, n);
}

static uint64_t
spread(uint32_t i)
{
    return (i + 1) * 0x9e3779b97f4a7c15ull;
}

static uint64_t
few(uint32_t i)
{
    return i / 8;
}

static void
run(uint64_t (*hash_of)(uint32_t))
{
    record_t *records = calloc(RECORDS, sizeof *records);
    kvp_htab_t tab = {0};
    uint64_t seed = 7;

    expect_all(&tab, records, hash_of);
    for (uint32_t round = 0; round < 6; round++) {
        for (uint32_t k = 0; k < 2 * RECORDS; k++) {
            uint32_t i = (uint32_t)(next_random(&seed) % RECORDS);
            bool is_wanted = next_random(&seed) % 100 < (round % 2 == 0 ? 90u : 5u); /* full, then nearly empty */

            if (records[i].is_in == is_wanted) continue;
            if (is_wanted)
                kvp_htab_add(&tab, &records[i].node, hash_of(i));
            else
                kvp_htab_del(&tab, &records[i].node);
            records[i].is_in = is_wanted;
        }
        expect_all(&tab, records, hash_of);
        assert_true(tab.buckets_n >= tab.n);
        assert_true(tab.buckets_n <= 2 * tab.n + 2);
    }
    kvp_htab_fini(&tab);
    free(records);
}

static void
test_table_when_hashes_are_spread(void **state)
{
    (void)state;
    run(spread);
}

static void
test_table_when_hashes_are_shared(void **state)
{
    (void)state;
    run(few);
}

static void
test_memory_when_all_is_gone(void **state)
{
    record_t *records = calloc(RECORDS, sizeof *records);
    kvp_htab_t tab = {0};
    uint32_t blocks = 0;

    (void)state;
    for (uint32_t i = 0; i < RECORDS; i++)
        kvp_htab_add(&tab, &records[i].node, spread(i));
    for (uint32_t i = 0; i < RECORDS; i++)
        kvp_htab_del(&tab, &records[i].node);
    assert_null(kvp_htab_first(&tab));
    for (size_t b = 0; b < KVP_ARRAY_LEN(tab.blocks); b++)
        blocks += tab.blocks[b] != NULL;
    assert_int_equal(blocks, 1);
    kvp_htab_fini(&tab);
    free(records);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_when_hashes_are_spread),
        cmocka_unit_test(test_table_when_hashes_are_shared),
        cmocka_unit_test(test_memory_when_all_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
