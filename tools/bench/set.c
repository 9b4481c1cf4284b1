/* SPDX-License-Identifier: Apache-2.0
 * See set.h. The texts of the keys are in the order of the calls, as in a caller that has just made them. Only the
 * order of the puts is shuffled. */
#include "tools/bench/set.h"

#include "tools/bench/key.h"
#include "tools/base/cli.h"
#include "tools/base/pattern.h"
#include "tools/base/tty.h"

#include "common/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* if values do not matter: number of values in memory, shared by all objects, and of objects in a put call */
#define SHARED_OBJECTS 1024u
#define PUT_BYTES (8ull << 20) /* a put call may have more objects than a call of the operation, if they are small */
#define PROCESS_SHIFT 56
#define GENERATION_SHIFT 32

static uint8_t *
piece_at(const kvp_bench_set_t *s, size_t object, uint32_t p)
{
    const uint64_t row = s->has_values ? s->conf.objects : SHARED_OBJECTS;
    return s->memory + (p * row + object) * s->stride;
}

void
kvp_bench_set_rename(kvp_bench_set_t *s)
{
    const uint64_t first = (uint64_t)s->process << PROCESS_SHIFT | (uint64_t)s->generation++ << GENERATION_SHIFT;
    for (size_t i = 0; i < s->conf.objects; i++)
        kvp_bench_key_write(s->texts + i * s->conf.key_bytes, s->conf.key_bytes, s->conf.run, first | i);
}

static kvpool_item_t
make_item(const kvp_bench_set_t *s, size_t object, size_t slot, kvpool_iov_t *iov)
{
    for (uint32_t p = 0; p < s->conf.pieces; p++)
        iov[p] = (kvpool_iov_t){piece_at(s, slot, p), s->piece_bytes};
    return (kvpool_item_t){.key = s->keys[object], .iov = iov, .iov_n = s->conf.pieces};
}

static void
make_items(kvp_bench_set_t *s)
{
    s->items = kvp_cli_alloc(s->conf.objects, sizeof(*s->items));
    s->iov = kvp_cli_alloc(s->conf.objects * s->conf.pieces, sizeof(*s->iov));
    for (size_t i = 0; i < s->conf.objects; i++)
        s->items[i] = make_item(s, i, i, s->iov + i * s->conf.pieces);
}

/* content_id returns the id of an object's content. It includes the process, so that content from another process
 * under the same key counts as wrong. */
static uint64_t
content_id(const kvp_bench_set_t *s, size_t object)
{
    return (uint64_t)s->process << PROCESS_SHIFT | object;
}

int
kvp_bench_set_init(kvp_bench_set_t *s, const kvp_bench_conf_t *conf, uint32_t process)
{
    const bool has_values = (conf->op->flags & KVP_BENCH_MOVES) != 0;
    const uint64_t in_memory = has_values ? conf->objects : SHARED_OBJECTS;
    *s = (kvp_bench_set_t){.conf = *conf, .process = process, .has_values = has_values};
    s->piece_bytes = conf->value_bytes / conf->pieces;
    s->stride = kvp_align_up(s->piece_bytes, 64);
    s->memory_bytes = in_memory * conf->pieces * s->stride;
    s->texts = kvp_cli_alloc(conf->objects, conf->key_bytes);
    s->keys = kvp_cli_alloc(conf->objects, sizeof(*s->keys));
    for (size_t i = 0; i < conf->objects; i++)
        s->keys[i] = (kvpool_key_t){s->texts + i * conf->key_bytes, conf->key_bytes};
    void *memory =
        mmap(NULL, s->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return KVPOOL_NOMEM;
    s->memory = memory;
    kvp_bench_set_rename(s);
    if (has_values) make_items(s);
    kvp_bench_set_fill(s, 0, in_memory);
    return KVPOOL_OK;
}

void
kvp_bench_set_fini(kvp_bench_set_t *s)
{
    if (s->memory != NULL) munmap(s->memory, s->memory_bytes);
    free(s->iov);
    free(s->items);
    free(s->keys);
    free(s->texts);
    *s = (kvp_bench_set_t){0};
}

static int
put_some(kvpool_t *pool, kvpool_item_t *items, size_t n, int *results)
{
    int err = kvpool_batch_put(pool, items, n, NULL, results);
    for (size_t i = 0; i < n && err == KVPOOL_OK; i++)
        if (results[i] != KVPOOL_ALREADY) err = results[i];
    return err;
}

int
kvp_bench_set_put(kvp_bench_set_t *s, kvpool_t *pool, uint32_t batch, uint64_t end_ns)
{
    const uint64_t small = kvp_min_u64(SHARED_OBJECTS, PUT_BYTES / s->conf.value_bytes);
    const size_t at_once = s->has_values ? kvp_max_u64(batch, small) : SHARED_OBJECTS;
    uint32_t *order = kvp_cli_alloc(s->conf.objects, sizeof(*order));
    kvpool_item_t *items = kvp_cli_alloc(at_once, sizeof(*items));
    kvpool_iov_t *iov = kvp_cli_alloc(at_once * s->conf.pieces, sizeof(*iov));
    int *results = kvp_cli_alloc(at_once, sizeof(*results));
    kvp_progress_t progress = {0};
    int err = KVPOOL_OK;
    size_t n = 0;
    kvp_bench_shuffle(order, s->conf.objects, s->conf.run);
    for (size_t i = 0; i < s->conf.objects && err == KVPOOL_OK && s->late_at == 0; i++) {
        const size_t object = order[i];
        if (kvp_bench_is_absent(object, s->conf.absent)) continue;
        items[n] = make_item(s, object, s->has_values ? object : n, iov + n * s->conf.pieces);
        if (++n < at_once) continue;
        err = put_some(pool, items, n, results);
        n = 0;
        if (s->process == 0) kvp_progress_show(&progress, "objects put", i + 1, s->conf.objects);
        if (err == KVPOOL_OK && kvp_now_ns() > end_ns && i + 1 < s->conf.objects) s->late_at = i + 1;
    }
    kvp_progress_end(&progress);
    if (s->late_at > 0) err = KVPOOL_DEADLINE;
    if (err == KVPOOL_OK) err = put_some(pool, items, n, results);
    free(results);
    free(iov);
    free(items);
    free(order);
    return err;
}

void
kvp_bench_set_poison(kvp_bench_set_t *s, size_t first, size_t n)
{
    for (uint32_t p = 0; p < s->conf.pieces; p++)
        kvp_pattern_poison(piece_at(s, first, p), n * s->stride);
}

void
kvp_bench_set_fill(kvp_bench_set_t *s, size_t first, size_t n)
{
    for (uint32_t p = 0; p < s->conf.pieces; p++)
        for (size_t i = first; i < first + n; i++)
            kvp_pattern_fill(piece_at(s, i, p), s->piece_bytes, p, content_id(s, i));
}

uint64_t
kvp_bench_set_wrong(const kvp_bench_set_t *s, size_t first, size_t n)
{
    uint64_t wrong = 0;
    for (uint32_t p = 0; p < s->conf.pieces; p++)
        for (size_t i = first; i < first + n; i++)
            wrong += kvp_pattern_wrong(piece_at(s, i, p), s->piece_bytes, p, content_id(s, i));
    return wrong;
}
