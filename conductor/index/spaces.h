/* SPDX-License-Identifier: Apache-2.0
 * The namespaces of blocks. A namespace has a number while it is in use. One thread creates namespaces and reuses
 * numbers; any thread looks them up, inside an epoch. */
#ifndef KVP_CONDUCTOR_INDEX_SPACES_H
#define KVP_CONDUCTOR_INDEX_SPACES_H

#include "conductor/index/epoch.h"

#define KVP_SPACES_MAX 262144u
#define KVP_SPACE_NONE UINT32_MAX

typedef struct {
    const char *model, *tenant, *salt, *lora; /* names of a namespace; never NULL; "" = none */
    uint32_t block_size; /* number of tokens in a block */
} kvp_namespace_t;

typedef struct kvp_spaces kvp_spaces_t;

uint64_t kvp_space_hash(const kvp_namespace_t *space);

kvp_spaces_t *kvp_spaces_create(kvp_epoch_t *epoch); /* makes the table of namespaces; NULL = no memory */
void kvp_spaces_destroy(kvp_spaces_t *spaces);

/* ---- functions for the writer */
/* kvp_spaces_name finds the namespace, or adds a copy of it, and returns its number. The number is valid while
 * a reference is held; without a reference, until the next kvp_spaces_sweep or kvp_spaces_name. KVP_SPACE_NONE: no
 * number is free, or no memory. */
uint32_t kvp_spaces_name(kvp_spaces_t *spaces, const kvp_namespace_t *space);
/* kvp_spaces_hold takes a reference to a namespace, for a block or a join, and kvp_spaces_release releases it. */
void kvp_spaces_hold(kvp_spaces_t *spaces, uint32_t number);
void kvp_spaces_release(kvp_spaces_t *spaces, uint32_t number);
/* kvp_spaces_sweep checks the next `most` numbers, and frees the namespaces without a reference. */
void kvp_spaces_sweep(kvp_spaces_t *spaces, uint32_t most);
/* returns the namespace with the number, which must be valid */
const kvp_namespace_t *kvp_spaces_get(const kvp_spaces_t *spaces, uint32_t number);
/* returns a serial number, from 1 on, that no other namespace ever has */
uint64_t kvp_spaces_serial(const kvp_spaces_t *spaces, uint32_t number);

/* ---- functions for any thread, inside an epoch */
/* returns the number of the namespace; KVP_SPACE_NONE = the table does not have it */
uint32_t kvp_spaces_find(const kvp_spaces_t *spaces, const kvp_namespace_t *space);
/* kvp_spaces_has_lora returns true if a namespace of the model, with any tenant and salt, uses the adapter. */
bool kvp_spaces_has_lora(const kvp_spaces_t *spaces, const char *model, const char *lora);

#endif
