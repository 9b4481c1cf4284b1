/* SPDX-License-Identifier: Apache-2.0
 * Namespaces of blocks: each has a number while in use. One thread names them, and reuses numbers;
 * any thread looks them up, inside an epoch. */
#ifndef KVP_CONDUCTOR_INDEX_SPACES_H
#define KVP_CONDUCTOR_INDEX_SPACES_H

#include "conductor/index/epoch.h"

#define KVP_SPACES_MAX 262144u
#define KVP_SPACE_NONE UINT32_MAX

typedef struct {
    const char *model, *tenant, *salt, *lora; /* never NULL; "" = none */
    uint32_t block_size; /* tokens */
} kvp_namespace_t;

typedef struct kvp_spaces kvp_spaces_t;

uint64_t kvp_space_hash(const kvp_namespace_t *space);

kvp_spaces_t *kvp_spaces_create(kvp_epoch_t *epoch); /* epoch borrowed; NULL = no memory */
void kvp_spaces_destroy(kvp_spaces_t *spaces);

/* ---- the writer's */
/* kvp_spaces_name finds the namespace, or copies it. Its number is valid until the next
 * kvp_spaces_sweep or kvp_spaces_name, and while it is held. KVP_SPACE_NONE: KVP_SPACES_MAX are
 * held. */
uint32_t kvp_spaces_name(kvp_spaces_t *spaces, const kvp_namespace_t *space);
/* Blocks and joins hold their namespaces. */
void kvp_spaces_hold(kvp_spaces_t *spaces, uint32_t number);
void kvp_spaces_release(kvp_spaces_t *spaces, uint32_t number);
/* kvp_spaces_sweep looks at the next `most` numbers, and frees the namespaces that nothing holds. */
void kvp_spaces_sweep(kvp_spaces_t *spaces, uint32_t most);
const kvp_namespace_t *kvp_spaces_get(const kvp_spaces_t *spaces, uint32_t number); /* that is valid */
uint64_t kvp_spaces_serial(const kvp_spaces_t *spaces,
                           uint32_t number); /* from 1 on; no two namespaces ever have one */

/* ---- of any thread, inside an epoch */
uint32_t kvp_spaces_find(const kvp_spaces_t *spaces,
                         const kvp_namespace_t *space); /* KVP_SPACE_NONE = it has no block */
/* kvp_spaces_has_lora: some namespace of the model, of any tenant and salt, is of the adapter. */
bool kvp_spaces_has_lora(const kvp_spaces_t *spaces, const char *model, const char *lora);

#endif
