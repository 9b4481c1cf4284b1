/* SPDX-License-Identifier: Apache-2.0
 * Memory for bytes on their way to and from devices: pieces of one permanent stretch of huge pages.
 * A device gets a buffer's address page by page, so a buffer in one huge page costs the device (and
 * the kernel) one entry instead of hundreds: on a virtual disk reads of 1 MiB run three times as
 * fast, of 64 KiB twice. Reads also need no mapping, zeroing and unmapping. */
#ifndef KVP_NODE_TIER_ROOM_H
#define KVP_NODE_TIER_ROOM_H

#include "common/base.h"

#define KVP_TIER_ROOM_UNITS 512u

typedef struct {
    uint8_t *base; /* NULL: no memory, so all pieces come from the heap */
    uint16_t taken
        /* length in units at the beginning of a piece; 0 = free. Entries within a piece are ignored */
        [KVP_TIER_ROOM_UNITS];
} kvp_tier_room_t;

/* kvp_tier_room_init reserves 32 MiB, of which touched pages use memory, the lowest first.
 * kvp_tier_room_fini: with all pieces returned. kvp_tier_room_take returns memory aligned for any
 * device, from the heap if the room is full or NULL; NULL = no memory. kvp_tier_room_give returns
 * it; NULL is legal. One thread at a time. */
void kvp_tier_room_init(kvp_tier_room_t *room);
void kvp_tier_room_fini(kvp_tier_room_t *room);
uint8_t *kvp_tier_room_take(kvp_tier_room_t *room, uint64_t bytes);
void kvp_tier_room_give(kvp_tier_room_t *room, uint8_t *piece);

#endif
