/* SPDX-License-Identifier: Apache-2.0
 * What strangers send a conductor. The first byte says what the rest is: an even one, a payload of KV events, applied twice and then given up; an odd one, the body of a question. Whatever
 * it is, no memory is touched that is not there, and of what was applied nothing is left at the end.
 */
#include "conductor/events/apply.h"
#include "conductor/numbers.h"
#include "tests/fuzz/fuzz_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
apply(const uint8_t *data, size_t size)
{
    const kvp_terms_t terms = {.model = "m", .tenant = "t", .salt = "", .lora = "", .block_size = 2};
    kvp_index_stats_t index;
    kvp_view_stats_t stats;
    kvp_epoch_t epoch;
    kvp_applier_t a;

    kvp_epoch_init(&epoch);
    kvp_index_t *ix = kvp_index_create(&epoch, 1, 1000);
    kvp_spaces_t *spaces = kvp_spaces_create();
    kvp_view_t *view = kvp_view_create(ix, 1, 100);
    check(ix != NULL && spaces != NULL && view != NULL);
    kvp_applier_init(&a, ix, spaces, view, &terms, 0);
    (void)kvp_events_apply(&a, data, size);
    (void)kvp_events_apply(&a, data, size);
    kvp_view_stats(view, &stats);
    kvp_index_stats(ix, &index);
    check(index.blocks <= stats.resident + stats.known);
    kvp_events_drop(&a);
    kvp_view_stats(view, &stats);
    check(stats.resident == 0);
    kvp_epoch_collect(&epoch);
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
