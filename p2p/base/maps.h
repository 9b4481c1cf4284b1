/* SPDX-License-Identifier: Apache-2.0
 * Peers' memory mapped here: docs/adr/0021-p2p-mapped.md. Lanes to one endpoint share its mappings;
 * a mapping ends with the last lane that knows its range. Any thread. */
#ifndef KVP_P2P_BASE_MAPS_H
#define KVP_P2P_BASE_MAPS_H

#include "transport/transport.h"

#include <pthread.h>
#include <sys/types.h>

#define KVP_P2P_MAPS_MAX 1024u /* of all peers together, */
#define KVP_P2P_MAPS_BYTES (1ull << 40) /* and their bytes */

typedef struct kvp_p2p_map kvp_p2p_map_t;

typedef struct {
    kvp_tp_t *shm; /* borrowed */
    pthread_mutex_t lock; /* a leaf; guards all below */
    kvp_list_t list;
    uint32_t n;
    uint64_t bytes;
} kvp_p2p_maps_t;

/* Identity of a registration. The peer's own statements do not suffice: another peer could state
 * the same, or one peer could state the same of two ranges, and the longer range would be looked up
 * in the shorter one's mapping. */
typedef struct {
    pid_t pid;
    uint64_t peer; /* incarnation of the endpoint */
    uint64_t token;
    uint64_t len;
} kvp_p2p_map_key_t;

void kvp_p2p_maps_init(kvp_p2p_maps_t *maps, kvp_tp_t *shm);
void kvp_p2p_maps_fini(kvp_p2p_maps_t *maps); /* every mapping was released */

/* kvp_p2p_maps_find returns the existing mapping of the registration, held, or NULL.
 * kvp_p2p_maps_add maps it, by the peer's description: borrowed descriptors of the memory and of the
 * words, and the range's cell. PROTO (an impossible description), LIMIT, NOMEM, SYS.
 * kvp_p2p_maps_rele ends a hold; NULL is legal. */
kvp_p2p_map_t *kvp_p2p_maps_find(kvp_p2p_maps_t *maps, const kvp_p2p_map_key_t *key) KVP_MUST_USE;
kvp_err_t kvp_p2p_maps_add(kvp_p2p_maps_t *maps, const kvp_p2p_map_key_t *key, const int fds[2], uint64_t cell,
                           kvp_p2p_map_t **map_out) KVP_MUST_USE;
void kvp_p2p_maps_rele(kvp_p2p_maps_t *maps, kvp_p2p_map_t *map);

/* kvp_p2p_map_addr returns where the range's first byte is mapped. kvp_p2p_map_is_live: it is
 * registered still, and all that was copied before the question lay in registered memory. */
uint8_t *kvp_p2p_map_addr(const kvp_p2p_map_t *map);
bool kvp_p2p_map_is_live(const kvp_p2p_map_t *map);

#endif
