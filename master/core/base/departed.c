/* SPDX-License-Identifier: Apache-2.0
 * The table of departures: buckets of four entries, found by the key's id. */
#include "master/core/base/departed.h"

#include "common/pages.h"

#define WAYS 4u
#define BUCKET_BYTES (WAYS * sizeof(kvp_departure_t))
#define PAGE_BYTES 4096u
#define TOUCHED_A_TICK (64u * PAGE_BYTES / BUCKET_BYTES) /* buckets */
#define AGE_UNIT_BITS 22u /* the unit of ages is 2^22 ns (4 ms) */
#define AGE_CODE_MAX 127u

void
kvp_departed_init(kvp_departed_t *table, uint64_t bytes, uint64_t now_ns)
{
    uint64_t buckets = 1;

    *table = (kvp_departed_t){.since = kvp_departed_time(now_ns)};
    if (bytes < BUCKET_BYTES) return;
    while (buckets * 2 * BUCKET_BYTES <= bytes)
        buckets *= 2;
    table->entries = kvp_table_alloc(buckets * WAYS, sizeof *table->entries);
    if (table->entries == NULL) return; /* without memory the table is empty, and every answer is "not known" */
    table->buckets = buckets;
}

void
kvp_departed_fini(kvp_departed_t *table)
{
    kvp_table_free(table->entries, table->buckets * WAYS, sizeof *table->entries);
    table->entries = NULL;
}

void
kvp_departed_tick(kvp_departed_t *table)
{
    const uint64_t end = kvp_min_u64(table->touched + TOUCHED_A_TICK, table->buckets);

    if (table->touched == table->buckets) return;
    for (; table->touched < end; table->touched += PAGE_BYTES / BUCKET_BYTES) {
        volatile uint64_t *word = &table->entries[table->touched * WAYS].id;

        *word = *word;
    }
    if (table->touched == table->buckets) kvp_pages_huge(table->entries, table->buckets * BUCKET_BYTES);
}

static kvp_departure_t *
bucket_of(const kvp_departed_t *table, uint64_t id)
{
    return &table->entries[(id >> 16 & (table->buckets - 1)) * WAYS];
}

static void
store_departure(kvp_departed_t *table, const kvp_departure_t *departure)
{
    kvp_departure_t *bucket = bucket_of(table, departure->id), *to = bucket;

    for (uint32_t i = 0; i < WAYS; i++) {
        if (bucket[i].cause == 0 || bucket[i].id == departure->id) {
            to = &bucket[i];
            if (bucket[i].cause != 0) break; /* the same key: no second entry */
            continue;
        }
        if (to->cause != 0 && bucket[i].at < to->at) to = &bucket[i];
    }
    *to = *departure;
}

void
kvp_departed_note(kvp_departed_t *table, const kvp_departure_t *departure)
{
    if (table->entries == NULL) return;
    table->news[table->new_n++] = *departure;
    if (table->new_n < KVP_DEPARTED_NEW) return;
    for (uint32_t i = 0; i < table->new_n; i++)
        __builtin_prefetch(bucket_of(table, table->news[i].id), 1);
    for (uint32_t i = 0; i < table->new_n; i++)
        store_departure(table, &table->news[i]);
    table->new_n = 0;
}

const kvp_departure_t *
kvp_departed_find(const kvp_departed_t *table, uint64_t id, uint32_t *since_out)
{
    const kvp_departure_t *bucket;
    uint32_t oldest = UINT32_MAX;

    *since_out = table->entries == NULL ? UINT32_MAX : table->since;
    if (table->entries == NULL) return NULL;
    for (uint32_t i = table->new_n; i-- > 0;)
        if (table->news[i].id == id) return &table->news[i];
    bucket = bucket_of(table, id);
    for (uint32_t i = 0; i < WAYS; i++) {
        if (bucket[i].cause == 0)
            oldest = 0; /* the bucket has an empty entry, so it never dropped a departure */
        else if (bucket[i].id == id)
            return &bucket[i];
        else if (bucket[i].at < oldest)
            oldest = bucket[i].at;
    }
    *since_out = oldest > table->since ? oldest : table->since;
    return NULL;
}

uint8_t
kvp_age_code(uint64_t age_ns)
{
    const uint64_t units = kvp_max_u64(age_ns >> AGE_UNIT_BITS, 1);
    const uint32_t power = 63u - (uint32_t)__builtin_clzll(units);
    const uint32_t quarter = (uint32_t)(power >= 2 ? units >> (power - 2) : units << (2 - power)) & 3;
    const uint32_t code = 1 + 4 * power + quarter;

    if (age_ns == 0) return 0;
    return (uint8_t)(code < AGE_CODE_MAX ? code : AGE_CODE_MAX);
}

uint64_t
kvp_age_of(uint8_t code)
{
    const uint32_t steps = (uint32_t)code - 1;

    if (code == 0) return 0;
    return ((uint64_t)(4 + steps % 4) << (steps / 4) << AGE_UNIT_BITS) / 4;
}
