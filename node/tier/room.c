/* SPDX-License-Identifier: Apache-2.0 */
#include "node/tier/room.h"

#include "common/pages.h"
#include "node/tier/io.h"

#include <stdlib.h>
#include <string.h>

#define UNIT_BYTES (64ull << 10)
#define ROOM_BYTES (KVP_TIER_ROOM_UNITS * UNIT_BYTES)
#define HUGE_BYTES (2ull << 20)

void
kvp_tier_room_init(kvp_tier_room_t *room)
{
    memset(room->taken, 0, sizeof room->taken);
    room->base = aligned_alloc(HUGE_BYTES, ROOM_BYTES);
    if (room->base != NULL) kvp_pages_huge(room->base, ROOM_BYTES);
}

void
kvp_tier_room_fini(kvp_tier_room_t *room)
{
    free(room->base);
    room->base = NULL;
}

uint8_t *
kvp_tier_room_take(kvp_tier_room_t *room, uint64_t bytes)
{
    uint64_t units = (bytes + UNIT_BYTES - 1) / UNIT_BYTES, n = 0;
    uint32_t at = 0;

    while (room != NULL && room->base != NULL && at < KVP_TIER_ROOM_UNITS) {
        if (room->taken[at] != 0) {
            at += room->taken[at];
            n = 0;
        } else if (at++, ++n == units) {
            room->taken[at - n] = (uint16_t)n;
            return room->base + (at - n) * UNIT_BYTES;
        }
    }
    return aligned_alloc(KVP_TIER_BLOCK, kvp_align_up(bytes, KVP_TIER_BLOCK));
}

void
kvp_tier_room_give(kvp_tier_room_t *room, uint8_t *piece)
{
    bool is_ours = room != NULL && room->base != NULL && piece >= room->base && piece < room->base + ROOM_BYTES;

    if (is_ours)
        room->taken[(uint64_t)(piece - room->base) / UNIT_BYTES] = 0;
    else
        free(piece);
}
