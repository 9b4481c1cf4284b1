/* SPDX-License-Identifier: Apache-2.0
 * Puts with preferred segments. A single copy goes to the first one by the library's option `segment`, which is strict;
 * an object that cannot be put there is put again, on any segment, in the remaining time of the call. For several
 * copies there is the option `prefer`. */
#include "python/src/convert.h"

#include <stdlib.h>

bool
kvpy_prefer(PyObject *tuple, uint32_t segments[KVPOOL_COPIES_MAX], kvpool_opts_t *opts)
{
    uint32_t n;

    if (!kvpy_segments(tuple, segments, &n)) return false;
    if (opts->replicas > 1) {
        opts->prefer = segments;
        opts->prefer_n = n;
    } else if (n > 0) {
        opts->segment = segments[0];
    }
    return true;
}

/* Returns the options of the put to the preferred segment, the first try. The put gets half of the time, because the
 * segment's node may be stopped. */
static kvpool_opts_t
opts_there(const kvpy_budget_t *budget, const kvpool_opts_t *opts)
{
    kvpool_opts_t there = *opts;

    if (opts->segment != 0) kvpy_budget_spend(budget, 2, &there);
    return there;
}

static kvpool_opts_t
opts_anywhere(const kvpy_budget_t *budget, const kvpool_opts_t *opts)
{
    kvpool_opts_t anywhere = *opts;

    anywhere.segment = 0;
    kvpy_budget_spend(budget, 1, &anywhere);
    return anywhere;
}

static bool
may_lie_elsewhere(int err)
{
    return err == KVPOOL_NO_SPACE || err == KVPOOL_RETRY_AFTER || err == KVPOOL_TOO_LARGE || err == KVPOOL_DEADLINE ||
           err == KVPOOL_NODE_LOST || err == KVPOOL_UNREACHABLE || err == KVPOOL_DISCONNECTED;
}

int
kvpy_put_one(const kvpy_pool_t *self, const kvpool_key_t *key, const void *value, size_t len, const kvpool_opts_t *opts)
{
    kvpy_budget_t budget = kvpy_budget_begin(self, opts);
    kvpool_opts_t one = opts_there(&budget, opts);
    int err = kvpool_put(self->pool, key->data, key->len, value, len, &one);

    if (opts->segment == 0 || !may_lie_elsewhere(err)) return err;
    one = opts_anywhere(&budget, opts);
    return kvpool_put(self->pool, key->data, key->len, value, len, &one);
}

/* Puts the items again whose error may come from the preferred segment: on any segment, in one batch. If memory is
 * short, the results stay unchanged. */
static void
put_rest(const kvpy_pool_t *self, const kvpool_item_t *items, size_t n, const kvpool_opts_t *opts, int *results)
{
    kvpool_item_t *rest = malloc(n * sizeof *rest);
    size_t *which = malloc(n * sizeof *which), rest_n = 0;
    int *found = malloc(n * sizeof *found);

    for (size_t i = 0; rest != NULL && which != NULL && i < n; i++) {
        if (!may_lie_elsewhere(results[i])) continue;
        rest[rest_n] = items[i];
        which[rest_n++] = i;
    }
    if (found != NULL && rest_n > 0 && kvpool_batch_put(self->pool, rest, rest_n, opts, found) == KVPOOL_OK)
        for (size_t i = 0; i < rest_n; i++)
            results[which[i]] = found[i];
    free(found);
    free(which);
    free(rest);
}

int
kvpy_put_items(const kvpy_pool_t *self, kvpool_item_t *items, size_t n, const kvpool_opts_t *opts, int *results)
{
    kvpy_budget_t budget = kvpy_budget_begin(self, opts);
    kvpool_opts_t some = opts_there(&budget, opts);
    int err = kvpool_batch_put(self->pool, items, n, &some, results);

    if (opts->segment == 0 || err != KVPOOL_OK || n == 0) return err;
    some = opts_anywhere(&budget, opts);
    put_rest(self, items, n, &some, results);
    return KVPOOL_OK;
}
