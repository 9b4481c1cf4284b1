/* SPDX-License-Identifier: Apache-2.0
 * Memory of peers that is mapped into this process: docs/adr/0021-p2p-mapped.md. All lanes to one endpoint share its
 * mappings. A mapping ends with the last lane that knows its range. Any thread may call. */
#ifndef KVP_P2P_BASE_MAPS_H
#define KVP_P2P_BASE_MAPS_H

#include "transport/transport.h"

#include <pthread.h>
#include <sys/types.h>

#define KVP_P2P_MAPS_MAX 1024u /* most mappings, over all peers */
#define KVP_P2P_MAPS_BYTES (1ull << 40) /* most mapped bytes, over all peers */

typedef struct kvp_p2p_map kvp_p2p_map_t;

typedef struct {
    kvp_tp_t *shm; /* the transport for shared memory; borrowed */
    pthread_mutex_t lock; /* leaf lock: its holder takes no other lock; guards all fields below */
    kvp_list_t list;
    uint32_t n;
    uint64_t bytes;
} kvp_p2p_maps_t;

/* Identity of a peer's registration of memory. The peer's token alone is not enough: another peer could state the same
 * token, or one peer could state it for two ranges, and the longer range would use the shorter one's mapping. */
typedef struct {
    pid_t pid;
    uint64_t peer; /* incarnation of the peer's endpoint */
    uint64_t token;
    uint64_t len;
} kvp_p2p_map_key_t;

void kvp_p2p_maps_init(kvp_p2p_maps_t *maps, kvp_tp_t *shm);
void kvp_p2p_maps_fini(kvp_p2p_maps_t *maps); /* the caller has released every mapping */

/* kvp_p2p_maps_find returns the existing mapping of the registration with a reference, or NULL. kvp_p2p_maps_add maps
 * the memory, as the peer describes it: fds are borrowed file descriptors of the memory and of the peer's file of
 * cells, and cell is the index of the range's cell. Errors: PROTO (an impossible description), LIMIT, NOMEM, SYS.
 * kvp_p2p_maps_rele releases a reference; NULL has no effect. */
kvp_p2p_map_t *kvp_p2p_maps_find(kvp_p2p_maps_t *maps, const kvp_p2p_map_key_t *key) KVP_MUST_USE;
kvp_err_t kvp_p2p_maps_add(kvp_p2p_maps_t *maps, const kvp_p2p_map_key_t *key, const int fds[2], uint64_t cell,
                           kvp_p2p_map_t **map_out) KVP_MUST_USE;
void kvp_p2p_maps_rele(kvp_p2p_maps_t *maps, kvp_p2p_map_t *map);

/* kvp_p2p_map_addr returns the address at which the range's first byte is mapped. kvp_p2p_map_is_live returns true if
 * the range is still registered, so that all bytes that were copied before the call lay in registered memory. */
uint8_t *kvp_p2p_map_addr(const kvp_p2p_map_t *map);
bool kvp_p2p_map_is_live(const kvp_p2p_map_t *map);

#endif
