/* SPDX-License-Identifier: Apache-2.0
 * Memory for bytes on their way to and from devices: pieces of one stretch of huge pages, which is kept. A device is told where a buffer lies page by
 * page, so what lies in one huge page costs it (and the kernel) one entry instead of hundreds: on a virtual disk reads of 1 MiB go three times as fast,
 * of 64 KiB twice. And nothing is mapped, zeroed and unmapped for each read.
 */
#ifndef KVP_NODE_TIER_ROOM_H
#define KVP_NODE_TIER_ROOM_H

#include "common/base.h"

#define KVP_TIER_ROOM_UNITS 512u

typedef struct {
    uint8_t *base; /* NULL: there was no memory, so all is the heap's */
    uint16_t taken
        [KVP_TIER_ROOM_UNITS]; /* where a piece begins, its units; 0 = this one is free. What a piece covers behind is not looked at */
} kvp_tier_room_t;

/* kvp_tier_room_init: 32 MiB, of which the system gives what is touched; the lowest first. _fini: all pieces were given back.
 * kvp_tier_room_take: aligned for any device; from the heap where the room is full, or NULL itself. NULL = no memory. _give takes it back; NULL is
 * legal. One thread at a time. */
void kvp_tier_room_init(kvp_tier_room_t *room);
void kvp_tier_room_fini(kvp_tier_room_t *room);
uint8_t *kvp_tier_room_take(kvp_tier_room_t *room, uint64_t bytes);
void kvp_tier_room_give(kvp_tier_room_t *room, uint8_t *piece);

#endif
