/* SPDX-License-Identifier: Apache-2.0
 * A table of pointers to records. It gives each record a small number, and finds a record by its number. */
#ifndef KVP_MASTER_CORE_BASE_PTAB_H
#define KVP_MASTER_CORE_BASE_PTAB_H

#include "master/core/base/blocks.h"

#define KVP_RETIRING_BIT 0x80000000u
#define KVP_NONE UINT32_MAX

typedef struct {
    kvp_blocks_t records;
    uint32_t limit, free_head, n;
} kvp_ptab_t;

uint32_t kvp_ptab_add(kvp_ptab_t *t, void *rec);
void kvp_ptab_del(kvp_ptab_t *t, uint32_t number);
void kvp_ptab_fini(kvp_ptab_t *t);
/* kvp_ptab_get returns the record; NULL = no record has this number. The lowest bit marks a free entry. */
static inline void *
kvp_ptab_get(const kvp_ptab_t *t, uint32_t number)
{
    void *rec = number < t->limit ? *kvp_blocks_at(&t->records, number) : NULL;

    return ((uintptr_t)rec & 1) != 0 ? NULL : rec;
}

#endif
