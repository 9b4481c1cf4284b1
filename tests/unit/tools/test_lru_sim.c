/* SPDX-License-Identifier: Apache-2.0
 * Against a cache that is too simple to be wrong: an array of ids in order of use. */
#include "tools/replay/lru_sim.h"
#include "tests/cases.h"

#include <stdlib.h>
#include <string.h>

#define MODEL_MAX 64

typedef struct {
    uint64_t ids[MODEL_MAX + 1]; /* oldest first */
    size_t n, capacity;
} model_t;

static size_t
model_find(const model_t *m, uint64_t id)
{
    size_t i = 0;
    while (i < m->n && m->ids[i] != id)
        i++;
    return i;
}

static void
model_drop(model_t *m, size_t i)
{
    m->n--;
    memmove(m->ids + i, m->ids + i + 1, (m->n - i) * sizeof(m->ids[0]));
}

static size_t
model_request(model_t *m, const uint64_t *ids, size_t n)
{
    size_t hits = 0;
    while (hits < n && model_find(m, ids[hits]) < m->n)
        hits++;
    for (size_t i = 0; i < n; i++) {
        size_t at = model_find(m, ids[i]);
        if (at < m->n) model_drop(m, at);
        m->ids[m->n++] = ids[i];
        if (m->n > m->capacity) model_drop(m, 0);
    }
    return hits;
}

TEST(test_random_requests_match_the_model)
{
    for (unsigned seed = 1; seed <= 40; seed++) {
        unsigned random = seed;
        model_t model = {.capacity = 1 + seed % MODEL_MAX};
        kvp_lru_sim_t *sim = NULL;
        assert_int_equal(kvp_lru_sim_create((uint32_t)model.capacity, &sim), KVP_OK);
        for (int request = 0; request < 300; request++) {
            uint64_t ids[12];
            const size_t n = (size_t)rand_r(&random) % 13;
            for (size_t i = 0; i < n; i++)
                ids[i] = (uint64_t)(rand_r(&random) % 90) << 40;
            assert_int_equal(kvp_lru_sim_request(sim, ids, n), model_request(&model, ids, n));
        }
        for (uint64_t id = 0; id < 90; id++)
            assert_int_equal(kvp_lru_sim_has(sim, id << 40), model_find(&model, id << 40) < model.n);
        kvp_lru_sim_destroy(sim);
    }
}

TEST(test_no_capacity_is_refused)
{
    kvp_lru_sim_t *sim = NULL;
    assert_int_equal(kvp_lru_sim_create(0, &sim), KVP_INVALID);
    assert_null(sim);
    kvp_lru_sim_destroy(NULL);
}

TEST_MAIN()
