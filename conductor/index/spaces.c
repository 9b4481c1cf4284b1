/* SPDX-License-Identifier: Apache-2.0
 * See spaces.h. Chains that only grow, at their heads: readers need no lock.
 */
#include "conductor/index/spaces.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CHAINS 4096u

typedef struct node {
    const struct node *next;
    kvp_space_t space;
    uint32_t number;
    char text[]; /* of the four, each with its terminator */
} node_t;

struct kvp_spaces {
    _Atomic(const node_t *) chains[CHAINS];
    const node_t *named[KVP_SPACES_MAX]; /* of who names, alone */
    uint32_t n;
};

uint64_t
kvp_space_hash(const kvp_space_t *s)
{
    uint64_t h = s->block_size;

    h = XXH3_64bits_withSeed(s->model, strlen(s->model), h);
    h = XXH3_64bits_withSeed(s->tenant, strlen(s->tenant), h);
    h = XXH3_64bits_withSeed(s->salt, strlen(s->salt), h);
    return XXH3_64bits_withSeed(s->lora, strlen(s->lora), h);
}

static bool
is_same(const kvp_space_t *a, const kvp_space_t *b)
{
    return a->block_size == b->block_size && strcmp(a->model, b->model) == 0 && strcmp(a->tenant, b->tenant) == 0 &&
           strcmp(a->salt, b->salt) == 0 && strcmp(a->lora, b->lora) == 0;
}

uint32_t
kvp_spaces_find(const kvp_spaces_t *spaces, const kvp_space_t *space)
{
    const node_t *node = atomic_load_explicit(&spaces->chains[kvp_space_hash(space) % CHAINS], memory_order_acquire);

    while (node != NULL && !is_same(&node->space, space))
        node = node->next;
    return node == NULL ? KVP_SPACE_NONE : node->number;
}

/* Each adapter is a namespace of its own, too: of no tenant and block size. */
static kvp_space_t
adapter_of(const char *model, const char *lora)
{
    return (kvp_space_t){.model = model, .tenant = "", .salt = "", .lora = lora};
}

bool
kvp_spaces_has_lora(const kvp_spaces_t *spaces, const char *model, const char *lora)
{
    const kvp_space_t adapter = adapter_of(model, lora);

    return kvp_spaces_find(spaces, &adapter) != KVP_SPACE_NONE;
}

const kvp_space_t *
kvp_spaces_get(const kvp_spaces_t *spaces, uint32_t number)
{
    return &spaces->named[number]->space;
}

static const char *
copy(char **at, const char *text)
{
    const size_t len = strlen(text) + 1;
    const char *copied = memcpy(*at, text, len);

    *at += len;
    return copied;
}

uint32_t
kvp_spaces_name(kvp_spaces_t *spaces, const kvp_space_t *space)
{
    const uint32_t known = kvp_spaces_find(spaces, space);
    _Atomic(const node_t *) *chain = &spaces->chains[kvp_space_hash(space) % CHAINS];
    node_t *node;
    char *at;

    if (known != KVP_SPACE_NONE) return known;
    if (space->lora[0] != '\0' && space->block_size != 0) {
        const kvp_space_t adapter = adapter_of(space->model, space->lora);

        if (kvp_spaces_name(spaces, &adapter) == KVP_SPACE_NONE) return KVP_SPACE_NONE;
    }
    if (spaces->n == KVP_SPACES_MAX) return KVP_SPACE_NONE;
    node = malloc(sizeof *node + strlen(space->model) + strlen(space->tenant) + strlen(space->salt) +
                  strlen(space->lora) + 4);
    if (node == NULL) return KVP_SPACE_NONE;
    at = node->text;
    node->space = (kvp_space_t){copy(&at, space->model), copy(&at, space->tenant), copy(&at, space->salt),
                                copy(&at, space->lora), space->block_size};
    node->number = spaces->n;
    spaces->named[spaces->n++] = node;
    node->next = atomic_load_explicit(chain, memory_order_relaxed);
    atomic_store_explicit(chain, node, memory_order_release);
    return node->number;
}

kvp_spaces_t *
kvp_spaces_create(void)
{
    return calloc(1, sizeof(kvp_spaces_t));
}

void
kvp_spaces_destroy(kvp_spaces_t *spaces)
{
    if (spaces == NULL) return;
    for (uint32_t i = 0; i < CHAINS; i++) {
        const node_t *node = atomic_load_explicit(&spaces->chains[i], memory_order_relaxed);

        while (node != NULL) {
            const node_t *next = node->next;

            free((void *)node);
            node = next;
        }
    }
    free(spaces);
}
