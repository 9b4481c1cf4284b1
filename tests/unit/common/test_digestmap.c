/* SPDX-License-Identifier: Apache-2.0
 * A walk through the map while others take entries out of it. What comes and goes by key is tested by those who use it.
 */
#include "common/digestmap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdlib.h>

#define N 400u

/* Few homes, the last of the table among them: long rows, which go over its end. */
static kvp_digest_t
digest_of(uint32_t i)
{
    return (kvp_digest_t){.lo = (uint64_t)i * 37 % 50 * 20 + 1000, .hi = i};
}

static void
test_back_meets_what_stays(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed < 200; seed++) {
        bool is_met[N] = {false}, is_gone[N] = {false};
        kvp_digestmap_t map = {0};
        uint32_t at;

        assert_true(kvp_digestmap_reserve(&map, N));
        for (uint32_t i = 0; i < N; i++)
            *kvp_digestmap_insert(&map, digest_of(i)) = i + 1;
        for (at = kvp_digestmap_end(&map); at > 0;) {
            const kvp_digestmap_at_t *found = kvp_digestmap_back(&map, &at);
            uint32_t i = at * 2654435761u * seed % N;

            if (found != NULL) is_met[found->val - 1] = true;
            if (at % 3 == 0) is_gone[i] |= kvp_digestmap_del(&map, digest_of(i));
        }
        for (uint32_t i = 0; i < N; i++)
            assert_true(is_met[i] || is_gone[i]);
        assert_true(map.n < N);
        kvp_digestmap_fini(&map);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_back_meets_what_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
