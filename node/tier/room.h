/* SPDX-License-Identifier: Apache-2.0
 * Memory for bytes on their way to and from devices: pieces of one permanent range of huge pages. A device gets a
 * buffer's address page by page, so a buffer in one huge page costs the device (and the kernel) one entry instead of
 * hundreds: on a virtual disk reads of 1 MiB are three times as fast, reads of 64 KiB twice. Reads also need no
 * mapping, zeroing and unmapping. */
#ifndef KVP_NODE_TIER_ROOM_H
#define KVP_NODE_TIER_ROOM_H

#include "common/base.h"

#define KVP_TIER_ROOM_UNITS 512u

typedef struct {
    uint8_t *base; /* NULL: no memory, so all pieces come from the heap */
    /* at the first unit of each piece: the length of the piece in units; 0 = free; other entries are ignored */
    uint16_t taken[KVP_TIER_ROOM_UNITS];
} kvp_tier_room_t;

/* kvp_tier_room_init reserves 32 MiB; only touched pages use memory, and the lowest pieces are used first.
 * kvp_tier_room_fini needs that all pieces were returned. kvp_tier_room_take returns memory aligned for any device,
 * from the heap if the room is full or NULL; NULL = no memory. kvp_tier_room_give returns a piece; NULL is legal. One
 * thread at a time. */
void kvp_tier_room_init(kvp_tier_room_t *room);
void kvp_tier_room_fini(kvp_tier_room_t *room);
uint8_t *kvp_tier_room_take(kvp_tier_room_t *room, uint64_t bytes);
void kvp_tier_room_give(kvp_tier_room_t *room, uint8_t *piece);

#endif
