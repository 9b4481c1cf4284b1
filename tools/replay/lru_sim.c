/* SPDX-License-Identifier: Apache-2.0
 * See lru_sim.h. The cache is a hash table with chains, whose nodes are in one array and on a list in order of use.
 * All memory is allocated once: a new block reuses the node of the evicted one. */
#include "tools/replay/lru_sim.h"

#include "common/list.h"

#include <stdlib.h>

typedef struct lru_node {
    kvp_list_t by_use; /* the node's link in the list of all cached blocks by last use, the oldest first */
    struct lru_node *next; /* next node in the chain of the hash bucket */
    uint64_t id;
} lru_node_t;

struct kvp_lru_sim {
    kvp_list_t by_use;
    lru_node_t *nodes;
    lru_node_t **buckets;
    uint32_t used; /* number of cache nodes in use */
    uint32_t capacity;
    uint32_t mask; /* number of hash buckets - 1 */
};

kvp_err_t
kvp_lru_sim_create(uint32_t capacity, kvp_lru_sim_t **sim_out)
{
    if (capacity == 0 || capacity > 1u << 30) return KVP_INVALID;
    uint32_t buckets = 1;
    while (buckets < capacity)
        buckets *= 2;
    kvp_lru_sim_t *sim = calloc(1, sizeof(*sim));
    if (sim == NULL) return KVP_NOMEM;
    kvp_list_init(&sim->by_use);
    sim->nodes = calloc(capacity, sizeof(*sim->nodes));
    sim->buckets = calloc(buckets, sizeof(lru_node_t *));
    sim->capacity = capacity;
    sim->mask = buckets - 1;
    if (sim->nodes == NULL || sim->buckets == NULL) goto fail;
    *sim_out = sim;
    return KVP_OK;
fail:
    kvp_lru_sim_destroy(sim);
    return KVP_NOMEM;
}

void
kvp_lru_sim_destroy(kvp_lru_sim_t *sim)
{
    if (sim == NULL) return;
    free(sim->buckets);
    free(sim->nodes);
    free(sim);
}

/* link_of returns the pointer that points to the id's node, or the pointer at the end of its chain. */
static lru_node_t **
link_of(const kvp_lru_sim_t *sim, uint64_t id)
{
    lru_node_t **link = &sim->buckets[(id * 0x9e3779b97f4a7c15ull >> 32) & sim->mask];
    while (*link != NULL && (*link)->id != id)
        link = &(*link)->next;
    return link;
}

bool
kvp_lru_sim_has(const kvp_lru_sim_t *sim, uint64_t id)
{
    return *link_of(sim, id) != NULL;
}

static lru_node_t *
evict_oldest(kvp_lru_sim_t *sim)
{
    lru_node_t *oldest = kvp_list_first(&sim->by_use, lru_node_t, by_use);
    lru_node_t **link = link_of(sim, oldest->id);
    *link = oldest->next;
    kvp_list_del(&oldest->by_use);
    return oldest;
}

static void
touch_block(kvp_lru_sim_t *sim, uint64_t id)
{
    lru_node_t *node = *link_of(sim, id);
    if (node != NULL) {
        kvp_list_del(&node->by_use);
    } else {
        node = sim->used < sim->capacity ? &sim->nodes[sim->used++] : evict_oldest(sim);
        node->id = id;
        node->next = NULL;
        *link_of(sim, id) = node;
    }
    kvp_list_add_tail(&sim->by_use, &node->by_use);
}

size_t
kvp_lru_sim_request(kvp_lru_sim_t *sim, const uint64_t *ids, size_t n)
{
    size_t hits = 0;
    while (hits < n && kvp_lru_sim_has(sim, ids[hits]))
        hits++;
    for (size_t i = 0; i < n; i++)
        touch_block(sim, ids[i]);
    return hits;
}
