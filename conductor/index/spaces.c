/* SPDX-License-Identifier: Apache-2.0
 * See spaces.h. A hash table with chains. New nodes are added at the head of a chain, and a removed node is freed when
 * no reader can see it any more. So readers need no lock. */
#include "conductor/index/spaces.h"

#include "common/log.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CHAINS 16384u

typedef struct node {
    _Atomic(struct node *) next;
    kvp_namespace_t space;
    uint32_t number;
    uint32_t users;
    uint32_t adapter; /* number of the namespace adapter_of(model, lora), which is referenced; KVP_SPACE_NONE = none */
    uint64_t serial;
    char text[]; /* names of the model, tenant, salt and adapter, each with its terminator */
} node_t;

struct kvp_spaces {
    kvp_epoch_t *epoch;
    _Atomic(node_t *) chains[CHAINS];
    /* nodes by number; NULL = the number is free, or will be when no reader can see its node any more. Only the writer
     * uses this field and the fields below. */
    node_t *named[KVP_SPACES_MAX];
    uint32_t numbers; /* count of namespace numbers that were ever assigned */
    uint32_t hand; /* the number at which the next sweep begins */
    uint64_t serials;
    kvp_buf_t spare; /* stack of free namespace numbers (uint32_t) */
};

uint64_t
kvp_space_hash(const kvp_namespace_t *s)
{
    uint64_t h = s->block_size;

    h = XXH3_64bits_withSeed(s->model, strlen(s->model), h);
    h = XXH3_64bits_withSeed(s->tenant, strlen(s->tenant), h);
    h = XXH3_64bits_withSeed(s->salt, strlen(s->salt), h);
    return XXH3_64bits_withSeed(s->lora, strlen(s->lora), h);
}

static bool
is_same(const kvp_namespace_t *a, const kvp_namespace_t *b)
{
    return a->block_size == b->block_size && strcmp(a->model, b->model) == 0 && strcmp(a->tenant, b->tenant) == 0 &&
           strcmp(a->salt, b->salt) == 0 && strcmp(a->lora, b->lora) == 0;
}

uint32_t
kvp_spaces_find(const kvp_spaces_t *spaces, const kvp_namespace_t *space)
{
    const node_t *node = atomic_load_explicit(&spaces->chains[kvp_space_hash(space) % CHAINS], memory_order_acquire);

    while (node != NULL && !is_same(&node->space, space))
        node = atomic_load_explicit(&node->next, memory_order_acquire);
    return node == NULL ? KVP_SPACE_NONE : node->number;
}

/* Returns the namespace that stands for a model's adapter: it is in use while any namespace has the adapter. */
static kvp_namespace_t
adapter_of(const char *model, const char *lora)
{
    return (kvp_namespace_t){.model = model, .tenant = "", .salt = "", .lora = lora};
}

bool
kvp_spaces_has_lora(const kvp_spaces_t *spaces, const char *model, const char *lora)
{
    const kvp_namespace_t adapter = adapter_of(model, lora);

    return kvp_spaces_find(spaces, &adapter) != KVP_SPACE_NONE;
}

const kvp_namespace_t *
kvp_spaces_get(const kvp_spaces_t *spaces, uint32_t number)
{
    return &spaces->named[number]->space;
}

uint64_t
kvp_spaces_serial(const kvp_spaces_t *spaces, uint32_t number)
{
    return spaces->named[number]->serial;
}

/* ---- references, sweeps and numbers */
void
kvp_spaces_hold(kvp_spaces_t *spaces, uint32_t number)
{
    spaces->named[number]->users++;
}

void
kvp_spaces_release(kvp_spaces_t *spaces, uint32_t number)
{
    spaces->named[number]->users--;
}

static void
free_node(void *arg, uintptr_t what)
{
    kvp_spaces_t *spaces = arg;
    node_t *node = (node_t *)what;

    kvp_buf_append(&spaces->spare, &node->number, sizeof node->number);
    if (spaces->spare.err != KVP_OK) kvp_panic("out of memory: numbers of namespaces");
    free(node);
}

static void
take_out(kvp_spaces_t *spaces, node_t *node)
{
    _Atomic(node_t *) *at = &spaces->chains[kvp_space_hash(&node->space) % CHAINS];

    while (atomic_load_explicit(at, memory_order_relaxed) != node)
        at = &atomic_load_explicit(at, memory_order_relaxed)->next;
    atomic_store_explicit(at, atomic_load_explicit(&node->next, memory_order_relaxed), memory_order_release);
    if (node->adapter != KVP_SPACE_NONE) kvp_spaces_release(spaces, node->adapter);
    spaces->named[node->number] = NULL;
    kvp_epoch_retire(spaces->epoch, free_node, spaces, (uintptr_t)node);
}

void
kvp_spaces_sweep(kvp_spaces_t *spaces, uint32_t most)
{
    for (uint32_t i = 0; i < most && i < spaces->numbers; i++) {
        node_t *node = spaces->named[spaces->hand++ % spaces->numbers];

        if (node != NULL && node->users == 0) take_out(spaces, node);
    }
}

/* Returns a free number; KVP_SPACE_NONE = all numbers are in use. */
static uint32_t
new_number(kvp_spaces_t *spaces)
{
    uint32_t number;

    if (spaces->spare.len == 0 && spaces->numbers == KVP_SPACES_MAX) {
        kvp_spaces_sweep(spaces, KVP_SPACES_MAX);
        kvp_epoch_collect(spaces->epoch);
    }
    if (spaces->spare.len == 0) return spaces->numbers == KVP_SPACES_MAX ? KVP_SPACE_NONE : spaces->numbers++;
    spaces->spare.len -= sizeof number;
    memcpy(&number, spaces->spare.data + spaces->spare.len, sizeof number);
    return number;
}

static const char *
copy_text(char **at, const char *text)
{
    const size_t len = strlen(text) + 1;
    const char *copied = memcpy(*at, text, len);

    *at += len;
    return copied;
}

static uint32_t
enter_space(kvp_spaces_t *spaces, const kvp_namespace_t *space, uint32_t adapter)
{
    _Atomic(node_t *) *chain = &spaces->chains[kvp_space_hash(space) % CHAINS];
    node_t *node = malloc(sizeof *node + strlen(space->model) + strlen(space->tenant) + strlen(space->salt) +
                          strlen(space->lora) + 4);
    const uint32_t number = node == NULL ? KVP_SPACE_NONE : new_number(spaces);
    char *at;

    if (number == KVP_SPACE_NONE) {
        free(node);
        return number;
    }
    at = node->text;
    node->space = (kvp_namespace_t){copy_text(&at, space->model), copy_text(&at, space->tenant),
                                    copy_text(&at, space->salt), copy_text(&at, space->lora), space->block_size};
    node->number = number;
    node->users = 0;
    node->adapter = adapter;
    node->serial = ++spaces->serials;
    spaces->named[number] = node;
    atomic_store_explicit(&node->next, atomic_load_explicit(chain, memory_order_relaxed), memory_order_relaxed);
    atomic_store_explicit(chain, node, memory_order_release);
    return number;
}

uint32_t
kvp_spaces_name(kvp_spaces_t *spaces, const kvp_namespace_t *space)
{
    const kvp_namespace_t adapter = adapter_of(space->model, space->lora);
    uint32_t number = kvp_spaces_find(spaces, space), adapters = KVP_SPACE_NONE;

    if (number != KVP_SPACE_NONE) return number;
    if (space->lora[0] != '\0' && space->block_size != 0) {
        adapters = kvp_spaces_name(spaces, &adapter);
        if (adapters == KVP_SPACE_NONE) return KVP_SPACE_NONE;
        kvp_spaces_hold(spaces, adapters);
    }
    number = enter_space(spaces, space, adapters);
    if (number == KVP_SPACE_NONE && adapters != KVP_SPACE_NONE) kvp_spaces_release(spaces, adapters);
    return number;
}

/* ---- creation and destruction */
kvp_spaces_t *
kvp_spaces_create(kvp_epoch_t *epoch)
{
    kvp_spaces_t *spaces = calloc(1, sizeof *spaces);

    if (spaces != NULL) spaces->epoch = epoch;
    return spaces;
}

/* Frees all namespaces; called after kvp_epoch_fini, so no reader is left. */
void
kvp_spaces_destroy(kvp_spaces_t *spaces)
{
    if (spaces == NULL) return;
    for (uint32_t i = 0; i < spaces->numbers; i++)
        free(spaces->named[i]);
    kvp_buf_fini(&spaces->spare);
    free(spaces);
}
