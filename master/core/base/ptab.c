/* SPDX-License-Identifier: Apache-2.0
 * A table of numbered records. A free entry contains the number of the next free entry, marked by its lowest bit:
 * record pointers are aligned, so their lowest bit is 0. */
#include "master/core/base/ptab.h"

#include "common/base.h"

static uint32_t
ptab_grow(kvp_ptab_t *t)
{
    if (t->limit >= KVP_RETIRING_BIT) kvp_panic("more than %u records", t->limit);
    kvp_blocks_reach(&t->records, t->limit);
    return t->limit++;
}

uint32_t
kvp_ptab_add(kvp_ptab_t *t, void *rec)
{
    uint32_t number;

    if (t->n == t->limit) {
        number = ptab_grow(t);
    } else {
        number = t->free_head;
        t->free_head = (uint32_t)((uintptr_t)*kvp_blocks_at(&t->records, number) >> 1);
    }
    *kvp_blocks_at(&t->records, number) = rec;
    t->n++;
    return number;
}

void
kvp_ptab_del(kvp_ptab_t *t, uint32_t number)
{
    *kvp_blocks_at(&t->records, number) = (void *)(((uintptr_t)t->free_head << 1) | 1);
    t->free_head = number;
    t->n--;
}

void
kvp_ptab_fini(kvp_ptab_t *t)
{
    kvp_blocks_fini(&t->records);
    *t = (kvp_ptab_t){0};
}
