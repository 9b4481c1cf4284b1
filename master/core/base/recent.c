/* SPDX-License-Identifier: Apache-2.0 */
#include "master/core/base/recent.h"

#include "master/core/base/umap.h"

#include <stdlib.h>

#define FIRST_CAP 64u

void
kvp_recent_fini(kvp_recent_t *recent)
{
    free(recent->ids);
    free(recent->ends);
    free(recent->answers);
    *recent = (kvp_recent_t){0};
}

static void
grow_ring(kvp_recent_t *recent)
{
    kvp_recent_t old = *recent;

    recent->cap = old.cap == 0 ? FIRST_CAP : old.cap * 2;
    recent->ids = kvp_core_alloc(recent->cap, sizeof *recent->ids);
    recent->ends = kvp_core_alloc(recent->cap, sizeof *recent->ends);
    recent->answers = kvp_core_alloc(recent->cap, sizeof *recent->answers);
    for (uint32_t i = 0; i < old.cap; i++) {
        uint32_t at = (uint32_t)old.ids[i] & (recent->cap - 1);

        /* entries with different places in the small ring also have different places in the large ring */
        recent->ids[at] = old.ids[i];
        recent->ends[at] = old.ends[i];
        recent->answers[at] = old.answers[i];
    }
    kvp_recent_fini(&old);
}

void
kvp_recent_add(kvp_recent_t *recent, uint64_t id, kvp_recent_end_t end, uint64_t answer)
{
    uint32_t at;

    if (recent->cap == 0) grow_ring(recent);
    while (recent->cap < KVP_RECENT_MAX && recent->ids[id & (recent->cap - 1)] != 0)
        grow_ring(recent);
    at = (uint32_t)id & (recent->cap - 1);
    recent->ids[at] = id;
    recent->ends[at] = (uint8_t)end;
    recent->answers[at] = answer;
}

kvp_recent_end_t
kvp_recent_find(const kvp_recent_t *recent, uint64_t id)
{
    uint32_t at;

    if (recent->cap == 0) return KVP_RECENT_UNKNOWN;
    at = (uint32_t)id & (recent->cap - 1);
    return recent->ids[at] == id ? recent->ends[at] : KVP_RECENT_UNKNOWN;
}

uint64_t
kvp_recent_answer(const kvp_recent_t *recent, uint64_t id)
{
    return kvp_recent_find(recent, id) == KVP_RECENT_UNKNOWN ? 0 : recent->answers[(uint32_t)id & (recent->cap - 1)];
}
