/* SPDX-License-Identifier: Apache-2.0
 * The operations of the bench. Each function makes one call of kvpool.h, exactly as a program would, and stores
 * the result of each object. */
#include "tools/bench/ops.h"

#include <stdio.h>
#include <string.h>

#define NAMES_MAX 512

/* Converts the error of one object to its result: 1 = done or present, 0 = absent, else the error. */
static int
answer_one(int err)
{
    return err == KVPOOL_OK ? 1 : err == KVPOOL_NOT_FOUND ? 0 : err;
}

/* answer_all converts the errors of all objects in a batch to results. If the whole call failed, it returns the
 * call's error. */
static int
answer_all(const kvp_bench_call_t *c, int err)
{
    for (size_t i = 0; err == KVPOOL_OK && i < c->n; i++)
        c->results[i] = answer_one(c->results[i]);
    return err;
}

static int
call_put(const kvp_bench_call_t *c)
{
    const kvpool_iov_t *value = c->items->iov;
    c->results[0] = answer_one(kvpool_put(c->pool, c->keys->data, c->keys->len, value->addr, value->len, NULL));
    return KVPOOL_OK;
}

static int
call_get(const kvp_bench_call_t *c)
{
    const kvpool_iov_t *to = c->items->iov;
    size_t len;
    c->results[0] = answer_one(kvpool_get(c->pool, c->keys->data, c->keys->len, to->addr, to->len, &len, NULL));
    return KVPOOL_OK;
}

static int
call_upsert(const kvp_bench_call_t *c)
{
    const kvpool_iov_t *value = c->items->iov;
    c->results[0] = answer_one(kvpool_upsert(c->pool, c->keys->data, c->keys->len, value->addr, value->len, NULL));
    return KVPOOL_OK;
}

/* call_view gets a view and reads its first byte, because a real program reads at least a part of a view. */
static int
call_view(const kvp_bench_call_t *c)
{
    kvpool_view_t view;
    int err = kvpool_view(c->pool, c->keys->data, c->keys->len, NULL, &view);
    if (err == KVPOOL_OK) {
        (void)*(const volatile uint8_t *)view.data;
        err = kvpool_view_release(c->pool, &view);
    }
    c->results[0] = answer_one(err);
    return KVPOOL_OK;
}

static int
call_exists(const kvp_bench_call_t *c)
{
    return kvpool_exists(c->pool, c->keys->data, c->keys->len, c->results, NULL);
}

static int
call_size(const kvp_bench_call_t *c)
{
    size_t len;
    c->results[0] = answer_one(kvpool_size(c->pool, c->keys->data, c->keys->len, &len, NULL));
    return KVPOOL_OK;
}

static int
call_remove(const kvp_bench_call_t *c)
{
    c->results[0] = answer_one(kvpool_remove(c->pool, c->keys->data, c->keys->len, NULL));
    return KVPOOL_OK;
}

static int
call_batch_put(const kvp_bench_call_t *c)
{
    return answer_all(c, kvpool_batch_put(c->pool, c->items, c->n, NULL, c->results));
}

static int
call_batch_get(const kvp_bench_call_t *c)
{
    return answer_all(c, kvpool_batch_get(c->pool, c->items, c->n, NULL, c->results));
}

static int
call_batch_is_exist(const kvp_bench_call_t *c)
{
    return kvpool_batch_is_exist(c->pool, c->keys, c->n, NULL, c->results);
}

static int
look_up(const kvp_bench_call_t *c, kvpool_lookup_t *lookup_out)
{
    uint8_t present[KVPOOL_BATCH_MAX];
    int err = kvpool_lookup(c->pool, c->keys, c->n, 0, NULL, present, lookup_out);
    for (size_t i = 0; err == KVPOOL_OK && i < c->n; i++)
        c->results[i] = present[i];
    return err;
}

static int
call_lookup(const kvp_bench_call_t *c)
{
    kvpool_lookup_t lookup;
    int err = look_up(c, &lookup);
    return err == KVPOOL_OK ? kvpool_lookup_release(c->pool, &lookup) : err;
}

/* call_reserve never releases its reservations; they expire, as after the death of a client. */
static int
call_reserve(const kvp_bench_call_t *c)
{
    kvpool_lookup_t lookup;
    return look_up(c, &lookup);
}

static int
call_longest_prefix(const kvp_bench_call_t *c)
{
    kvpool_lookup_t lookup;
    int err = kvpool_longest_prefix(c->pool, c->keys, c->n, 0, NULL, NULL, &lookup);
    if (err != KVPOOL_OK) return err;
    for (size_t i = 0; i < c->n; i++)
        c->results[i] = i < lookup.found;
    return kvpool_lookup_release(c->pool, &lookup);
}

static const kvp_bench_op_t ops[] = {
    {"put", KVP_BENCH_MOVES | KVP_BENCH_WRITES | KVP_BENCH_PUTS, call_put},
    {"upsert", KVP_BENCH_MOVES | KVP_BENCH_WRITES, call_upsert},
    {"get", KVP_BENCH_MOVES, call_get},
    {"view", KVP_BENCH_ASKS | KVP_BENCH_SHARED, call_view},
    {"exists", KVP_BENCH_ASKS, call_exists},
    {"size", KVP_BENCH_ASKS, call_size},
    {"remove", KVP_BENCH_REMOVES, call_remove},
    {"batch_put", KVP_BENCH_MOVES | KVP_BENCH_WRITES | KVP_BENCH_PUTS | KVP_BENCH_BATCH, call_batch_put},
    {"batch_get", KVP_BENCH_MOVES | KVP_BENCH_BATCH, call_batch_get},
    {"known_get", KVP_BENCH_MOVES | KVP_BENCH_KNOWN, call_get},
    {"known_batch_get", KVP_BENCH_MOVES | KVP_BENCH_KNOWN | KVP_BENCH_BATCH, call_batch_get},
    {"batch_is_exist", KVP_BENCH_ASKS | KVP_BENCH_BATCH, call_batch_is_exist},
    {"lookup", KVP_BENCH_ASKS | KVP_BENCH_BATCH, call_lookup},
    {"reserve", KVP_BENCH_ASKS | KVP_BENCH_BATCH, call_reserve},
    {"longest_prefix", KVP_BENCH_BATCH, call_longest_prefix},
};

const kvp_bench_op_t *
kvp_bench_op_find(const char *name)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(ops); i++)
        if (strcmp(name, ops[i].name) == 0) return &ops[i];
    return NULL;
}

const char *
kvp_bench_op_names(void)
{
    static char names[NAMES_MAX];
    size_t at = 0;
    for (size_t i = 0; i < KVP_ARRAY_LEN(ops); i++)
        at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i > 0 ? ", " : "", ops[i].name);
    return names;
}
