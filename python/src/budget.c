/* SPDX-License-Identifier: Apache-2.0 */
#include "python/src/convert.h"

#include <time.h>

#define DEADLINE_MS 5000u /* the default deadline of a handle, see kvpool.h */

static uint64_t
now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

kvpy_budget_t
kvpy_budget_begin(const kvpy_pool_t *self, const kvpool_opts_t *opts)
{
    uint32_t ms = opts->deadline_ms != 0 ? opts->deadline_ms : self->deadline_ms != 0 ? self->deadline_ms : DEADLINE_MS;

    return (kvpy_budget_t){.end_ms = now_ms() + ms, .is_ours = opts->deadline_ms == 0};
}

void
kvpy_budget_spend(const kvpy_budget_t *budget, uint32_t parts, kvpool_opts_t *opts)
{
    uint64_t now = now_ms(), left = now < budget->end_ms ? (budget->end_ms - now) / parts : 0;

    opts->deadline_ms = left > 0 ? (uint32_t)left : 1;
    if (budget->is_ours) opts->flags |= KVPOOL_SOON;
}
