/* SPDX-License-Identifier: Apache-2.0
 * The set of fenced incarnations: a sorted array, looked at once a connection.
 */
#include "client/transport/fenced.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>

/* How many in the list are below the incarnation. */
static size_t
below(const kvp_fenced_t *f, uint64_t incarnation)
{
    size_t lo = 0;
    size_t hi = f->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (f->list[mid] < incarnation)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void
raise_min(kvp_fenced_t *f, uint64_t live_min)
{
    size_t gone;

    if (live_min <= f->live_min) return;
    f->live_min = live_min;
    gone = below(f, live_min);
    if (gone == 0) return;
    f->n -= gone;
    memmove(f->list, f->list + gone, f->n * sizeof *f->list);
}

void
kvp_fenced_fini(kvp_fenced_t *f)
{
    free(f->list);
    *f = (kvp_fenced_t){0};
}

void
kvp_fenced_add(kvp_fenced_t *f, uint64_t incarnation, uint64_t live_min)
{
    size_t at;

    raise_min(f, live_min);
    if (kvp_fenced_has(f, incarnation)) return;
    if (f->n == f->cap) {
        size_t cap = f->cap == 0 ? 16 : f->cap * 2;
        uint64_t *more = realloc(f->list, cap * sizeof *more);

        if (more == NULL) {
            kvp_log_error("transport", "no memory to fence one client; all up to it are refused incarnation %llx",
                          (unsigned long long)incarnation);
            raise_min(f, incarnation + 1);
            return;
        }
        f->list = more;
        f->cap = cap;
    }
    at = below(f, incarnation);
    memmove(f->list + at + 1, f->list + at, (f->n - at) * sizeof *f->list);
    f->list[at] = incarnation;
    f->n++;
}

bool
kvp_fenced_has(const kvp_fenced_t *f, uint64_t incarnation)
{
    size_t at;

    if (incarnation < f->live_min) return true;
    at = below(f, incarnation);
    return at < f->n && f->list[at] == incarnation;
}
