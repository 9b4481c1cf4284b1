/* SPDX-License-Identifier: Apache-2.0
 * Applies the events of a publisher to its view of the index. Fields that an event omits come from the publisher's
 * registration. */
#ifndef KVP_CONDUCTOR_EVENTS_APPLY_H
#define KVP_CONDUCTOR_EVENTS_APPLY_H

#include "conductor/events/decode.h"
#include "conductor/events/streams.h"
#include "conductor/index/spaces.h"
#include "conductor/index/view.h"
#include "conductor/pool/pool.h"

typedef struct {
    kvp_index_t *ix; /* the index; it is borrowed, and so are spaces and view */
    kvp_spaces_t *spaces;
    kvp_view_t *view;
    kvp_namespace_t terms; /* the registration's values for fields that an event omits; the texts are borrowed */
    uint32_t rank;
    uint64_t hash_seed;
    kvp_join_t *joins[KVP_POOLS_MAX]; /* joins (pool.h) with the pools in which the publisher stores blocks; borrowed */
    uint32_t joins_n;
    /* called when the index is full; returns true if space may be free now; NULL = none */
    bool (*make_room)(void *arg);
    void *arg;
    kvp_decoder_t decoder;
    struct {
        uint64_t events, stored, removed, cleared; /* counters: events, stored and removed blocks, and clear events */
        uint64_t gaps, duplicates; /* counters of gaps and repetitions in the ids of standard events */
        uint64_t skips[KVP_SKIPS_N];
    } done;
    kvp_streams_t streams;
} kvp_applier_t;

void kvp_applier_init(kvp_applier_t *a, kvp_index_t *ix, kvp_spaces_t *spaces, kvp_view_t *view,
                      const kvp_namespace_t *terms, uint32_t rank, uint64_t hash_seed);
void kvp_applier_fini(kvp_applier_t *a);

/* kvp_events_apply applies all events of a payload. It returns false, and counts the payload, if the payload is
 * malformed. */
bool kvp_events_apply(kvp_applier_t *a, const void *payload, size_t len);
/* kvp_events_apply_one applies one event. */
void kvp_events_apply_one(kvp_applier_t *a, const kvp_event_t *event);
/* kvp_events_drop removes all blocks of the publisher from its view and forgets its streams. The view keeps the
 * positions of the blocks' hashes in prompts. */
void kvp_events_drop(kvp_applier_t *a);

#endif
