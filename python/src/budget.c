/* SPDX-License-Identifier: Apache-2.0 */
#include "python/src/convert.h"

#include <time.h>

#define DEADLINE_MS 5000u /* kvpool.h: of a handle that names none */

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

    return (kvpy_budget_t){.end_ms = now_ms() + ms};
}

uint32_t
kvpy_budget_left(const kvpy_budget_t *budget)
{
    uint64_t now = now_ms();

    return now < budget->end_ms ? (uint32_t)(budget->end_ms - now) : 1;
}
