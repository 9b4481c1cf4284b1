/* SPDX-License-Identifier: Apache-2.0
 * What strangers send a conductor. The first byte says what the rest is: an even one, a payload of KV events, applied
 * twice and then given up, as an engine's and as a pool's; an odd one, the body of a question. Whatever it is, no
 * memory is touched that is not there, and of what was applied nothing is left at the end. */
#include "conductor/events/apply.h"
#include "conductor/base/numbers.h"
#include "tests/fuzz/fuzz_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
on_wanted(void *arg, const kvp_pool_source_t *source, bool is_drift)
{
    (void)is_drift;
    (void)arg;
    (void)source;
}

typedef struct {
    kvp_pools_t *pools;
    kvp_pool_source_t source;
} pool_t;

static void
on_pool_event(void *arg, const kvp_event_t *event)
{
    pool_t *pool = arg;

    kvp_pools_take(pool->pools, &pool->source, event);
}

static void
on_skip(void *arg, kvp_skip_t why)
{
    (void)arg;
    check(why < KVP_SKIPS_N);
}

static void
apply(const uint8_t *data, size_t size)
{
    const kvp_namespace_t terms = {.model = "m", .tenant = "t", .salt = "", .lora = "", .block_size = 2};
    kvp_index_stats_t index;
    kvp_view_stats_t stats;
    kvp_epoch_t epoch;
    kvp_applier_t a;

    kvp_epoch_init(&epoch);
    kvp_spaces_t *spaces = kvp_spaces_create(&epoch);
    kvp_index_t *ix = kvp_index_create(&epoch, spaces, 1, 1000);
    kvp_view_t *view = kvp_view_create(ix, 1, 100);
    check(ix != NULL && spaces != NULL && view != NULL);
    kvp_applier_init(&a, ix, spaces, view, &terms, 0, 0);
    pool_t pool = {.pools = kvp_pools_create(ix, spaces, on_wanted, NULL, 1000)};
    const kvp_decode_ops_t ops = {on_pool_event, on_skip, &pool};
    uint32_t rank;
    check(pool.pools != NULL);
    a.joins[a.joins_n++] = kvp_pools_join(pool.pools, "b", "p", 1, &terms);
    if (!kvp_decode(&a.decoder, data, size, &ops, &rank)) check(rank == UINT32_MAX);
    (void)kvp_events_apply(&a, data, size);
    (void)kvp_events_apply(&a, data, size);
    kvp_view_stats(view, &stats);
    kvp_index_stats(ix, &index);
    if (!kvp_decode(&a.decoder, data, size, &ops, &rank)) check(rank == UINT32_MAX);
    kvp_join_leave(a.joins[0]);
    a.joins_n = 0;
    kvp_pools_sweep(pool.pools, UINT32_MAX);
    kvp_index_stats(ix, &index);
    check(index.blocks <= stats.resident + stats.known);
    kvp_events_drop(&a);
    kvp_view_stats(view, &stats);
    check(stats.resident == 0);
    kvp_epoch_collect(&epoch);
    kvp_pools_destroy(pool.pools);
    kvp_applier_fini(&a);
    kvp_view_destroy(view);
    kvp_index_stats(ix, &index);
    check(index.blocks == 0);
    kvp_epoch_fini(&epoch);
    kvp_index_destroy(ix);
    kvp_spaces_destroy(spaces);
}

static void
ask(const uint8_t *data, size_t size)
{
    kvp_buf_t body, rest, numbers;
    bool is_found;
    char why[160];

    kvp_buf_init(&body, 0);
    kvp_buf_init(&rest, 0);
    kvp_buf_init(&numbers, 0);
    kvp_buf_append(&body, data, size);
    if (kvp_numbers_take(&body, "seq_hashes", 1000, &rest, &numbers, &is_found, why)) {
        check(rest.len <= body.len && numbers.len / 8 <= body.len);
        for (size_t i = 0; i < numbers.len / 8; i++)
            check(((const uint64_t *)numbers.data)[i] <= 1000);
    }
    kvp_buf_fini(&body);
    kvp_buf_fini(&rest);
    kvp_buf_fini(&numbers);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if ((data[0] & 1) == 0)
        apply(data + 1, size - 1);
    else
        ask(data + 1, size - 1);
    return 0;
}
