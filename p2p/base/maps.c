/* SPDX-License-Identifier: Apache-2.0 */
#include "p2p/base/maps.h"

#include "transport/shm/table.h"
#include "proto/wire.h"

#include <stdatomic.h>
#include <stdlib.h>

struct kvp_p2p_map {
    kvp_list_t link;
    uint32_t users; /* reference count; guarded by kvp_p2p_maps_t.lock */
    kvp_p2p_map_key_t key;
    kvp_rseg_t *mem, *words; /* the peer's memory (mem); its file of cells, which only the peer may write (words) */
    const _Atomic uint64_t *cell;
};

void
kvp_p2p_maps_init(kvp_p2p_maps_t *maps, kvp_tp_t *shm)
{
    *maps = (kvp_p2p_maps_t){.shm = shm};
    pthread_mutex_init(&maps->lock, NULL);
    kvp_list_init(&maps->list);
}

void
kvp_p2p_maps_fini(kvp_p2p_maps_t *maps)
{
    pthread_mutex_destroy(&maps->lock);
}

static void
map_close(kvp_p2p_map_t *map)
{
    if (map->mem != NULL) kvp_rseg_destroy(map->mem);
    if (map->words != NULL) kvp_rseg_destroy(map->words);
    free(map);
}

/* Returns the existing mapping of the registration `key`, with a reference, or NULL. The caller holds the lock. */
static kvp_p2p_map_t *
find_map(kvp_p2p_maps_t *maps, const kvp_p2p_map_key_t *key)
{
    kvp_list_foreach (pos, &maps->list) {
        kvp_p2p_map_t *map = kvp_list_entry(pos, kvp_p2p_map_t, link);

        if (map->key.pid != key->pid || map->key.peer != key->peer) continue;
        if (map->key.token != key->token || map->key.len != key->len) continue;
        map->users++;
        return map;
    }
    return NULL;
}

kvp_p2p_map_t *
kvp_p2p_maps_find(kvp_p2p_maps_t *maps, const kvp_p2p_map_key_t *key)
{
    kvp_p2p_map_t *map;

    pthread_mutex_lock(&maps->lock);
    map = find_map(maps, key);
    pthread_mutex_unlock(&maps->lock);
    return map;
}

static kvp_err_t
map_open(kvp_p2p_maps_t *maps, const int fds[2], uint64_t cell, kvp_p2p_map_t *map)
{
    kvp_token_t mem = {.fd = fds[0]}, words = {.fd = fds[1]};
    kvp_err_t err = kvp_rseg_create(maps->shm, &mem, map->key.len, KVP_ACCESS_WRITE, &map->mem);

    if (err == KVP_OK)
        err = kvp_rseg_create(maps->shm, &words, KVP_PEER_CELLS * sizeof(uint64_t), KVP_ACCESS_READ, &map->words);
    if (err != KVP_OK) return err == KVP_INVALID ? KVP_PROTO : err;
    map->cell = (const _Atomic uint64_t *)kvp_shm_rseg_addr(map->words) + cell;
    return KVP_OK;
}

/* enter_map adds a new mapping to the list. If another thread has added the same mapping, *map_out is the other
 * thread's mapping, and the caller closes its own. */
static kvp_err_t
enter_map(kvp_p2p_maps_t *maps, kvp_p2p_map_t *map, kvp_p2p_map_t **map_out)
{
    kvp_err_t err = KVP_OK;

    pthread_mutex_lock(&maps->lock);
    *map_out = find_map(maps, &map->key);
    if (*map_out == NULL && (maps->n >= KVP_P2P_MAPS_MAX || map->key.len > KVP_P2P_MAPS_BYTES - maps->bytes)) {
        err = KVP_LIMIT;
    } else if (*map_out == NULL) {
        kvp_list_add_tail(&maps->list, &map->link);
        maps->n++;
        maps->bytes += map->key.len;
        *map_out = map;
    }
    pthread_mutex_unlock(&maps->lock);
    return err;
}

kvp_err_t
kvp_p2p_maps_add(kvp_p2p_maps_t *maps, const kvp_p2p_map_key_t *key, const int fds[2], uint64_t cell,
                 kvp_p2p_map_t **map_out)
{
    kvp_p2p_map_t *map, *entered = NULL;
    kvp_err_t err;

    if (cell >= KVP_PEER_CELLS) return KVP_PROTO;
    map = calloc(1, sizeof *map);
    if (map == NULL) return KVP_NOMEM;
    *map = (kvp_p2p_map_t){.users = 1, .key = *key};
    err = map_open(maps, fds, cell, map);
    if (err == KVP_OK) err = enter_map(maps, map, &entered);
    if (entered != map) map_close(map);
    if (err == KVP_OK) *map_out = entered;
    return err;
}

void
kvp_p2p_maps_rele(kvp_p2p_maps_t *maps, kvp_p2p_map_t *map)
{
    bool is_last;

    if (map == NULL) return;
    pthread_mutex_lock(&maps->lock);
    is_last = --map->users == 0;
    if (is_last) {
        kvp_list_del(&map->link);
        maps->n--;
        maps->bytes -= map->key.len;
    }
    pthread_mutex_unlock(&maps->lock);
    if (is_last) map_close(map);
}

uint8_t *
kvp_p2p_map_addr(const kvp_p2p_map_t *map)
{
    return kvp_shm_rseg_addr(map->mem);
}

bool
kvp_p2p_map_is_live(const kvp_p2p_map_t *map)
{
    /* The caller fenced its copies. This fence orders the load of the cell after all those copies. */
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load(map->cell) == map->key.token;
}
