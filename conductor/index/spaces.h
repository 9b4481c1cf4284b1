/* SPDX-License-Identifier: Apache-2.0
 * Namespaces of blocks: each that was ever named has a number for good. One thread names, any thread asks.
 */
#ifndef KVP_CONDUCTOR_INDEX_SPACES_H
#define KVP_CONDUCTOR_INDEX_SPACES_H

#include "common/base.h"

#define KVP_SPACES_MAX 65536u
#define KVP_SPACE_NONE UINT32_MAX

typedef struct {
    const char *model, *tenant, *salt, *lora; /* never NULL; "" = none */
    uint32_t block_size; /* tokens */
} kvp_space_t;

typedef struct kvp_spaces kvp_spaces_t;

uint64_t kvp_space_hash(const kvp_space_t *space);

kvp_spaces_t *kvp_spaces_create(void); /* NULL = no memory */
void kvp_spaces_destroy(kvp_spaces_t *spaces);

/* kvp_spaces_name copies it; KVP_SPACE_NONE = there are KVP_SPACES_MAX. kvp_spaces_find: KVP_SPACE_NONE = it was never named. */
uint32_t kvp_spaces_name(kvp_spaces_t *spaces, const kvp_space_t *space);
const kvp_space_t *kvp_spaces_get(const kvp_spaces_t *spaces, uint32_t number); /* who names, alone; that was named */
uint32_t kvp_spaces_find(const kvp_spaces_t *spaces, const kvp_space_t *space);
/* kvp_spaces_has_lora: some namespace of that model, of any tenant and salt, is of that adapter. */
bool kvp_spaces_has_lora(const kvp_spaces_t *spaces, const char *model, const char *lora);

#endif
