/* SPDX-License-Identifier: Apache-2.0
 * The slots of nodes by segment id, and the circuit breaker that leaves a failed node alone. */
#include "client/memory/peers_priv.h"

#include <stdlib.h>
#include <string.h>

#define BREAKER_FIRST_MS 50u
#define BREAKER_MAX_MS 2000u
#define SILENCE_MAX_NS (1 * KVP_NS_PER_S) /* a node is given up after callers waited in vain for so long */

static bool
is_before(const kvp_slot_t *slot, uint32_t segment_id, size_t from)
{
    return slot->segment_id != segment_id ? slot->segment_id < segment_id : slot->from < from;
}

static size_t
lower_bound(const kvp_peers_t *p, uint32_t segment_id, size_t from)
{
    size_t lo = 0, hi = p->slots_n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (is_before(p->slots[mid], segment_id, from))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

kvp_slot_t *
kvp_slot_find(const kvp_peers_t *p, uint32_t segment_id, size_t from)
{
    size_t at = lower_bound(p, segment_id, from);
    kvp_slot_t *slot = at < p->slots_n ? p->slots[at] : NULL;

    return slot != NULL && slot->segment_id == segment_id && slot->from == from ? slot : NULL;
}

kvp_slot_t *
kvp_slot_of(const kvp_peers_t *p, const kvp_peer_t *peer)
{
    return kvp_slot_find(p, peer->segment_id, peer->from);
}

kvp_slot_t *
kvp_slot_make(kvp_peers_t *p, uint32_t segment_id, size_t from)
{
    size_t at = lower_bound(p, segment_id, from);
    kvp_slot_t *slot, **slots = kvp_grow(p->slots, p->slots_n, &p->slots_cap, 16, sizeof *slots);

    if (slots == NULL) return NULL;
    p->slots = slots;
    slot = calloc(1, sizeof *slot);
    if (slot == NULL) return NULL;
    slot->segment_id = segment_id;
    slot->from = from;
    memmove(p->slots + at + 1, p->slots + at, (p->slots_n - at) * sizeof *p->slots);
    p->slots[at] = slot;
    p->slots_n++;
    return slot;
}

void
kvp_slot_trip(kvp_slot_t *slot)
{
    uint32_t shift = slot->fails < 6 ? slot->fails : 6;
    uint32_t ms = BREAKER_FIRST_MS << shift;

    if (ms > BREAKER_MAX_MS) ms = BREAKER_MAX_MS;
    slot->fails++;
    slot->next_try_ns = kvp_now_ns() + (ms + kvp_random_u64() % (ms / 2)) * KVP_NS_PER_MS;
}

/* Adds a caller's wait in vain from since_ns to now_ns to the slot's silence. One caller's deadline may be far too
 * short to judge a node, so waits are summed up; each moment counts once, however many threads waited. Returns true
 * when the sum reaches SILENCE_MAX_NS. */
bool
kvp_slot_note_silence(kvp_slot_t *slot, uint64_t since_ns, uint64_t now_ns)
{
    since_ns = kvp_max_u64(since_ns, slot->silent_to_ns);
    if (now_ns > since_ns) slot->silent_ns += now_ns - since_ns;
    slot->silent_to_ns = now_ns;
    slot->avoid_until_ns = now_ns + KVP_AVOID_NS;
    if (slot->silent_ns < SILENCE_MAX_NS) return false;
    slot->silent_ns = 0;
    return true;
}
