/* SPDX-License-Identifier: Apache-2.0
 * Enters a publisher's events into its view of the index, completed from its registration. */
#ifndef KVP_CONDUCTOR_EVENTS_APPLY_H
#define KVP_CONDUCTOR_EVENTS_APPLY_H

#include "conductor/events/decode.h"
#include "conductor/events/streams.h"
#include "conductor/index/spaces.h"
#include "conductor/index/view.h"
#include "conductor/pool/pool.h"

typedef struct {
    kvp_index_t *ix; /* borrowed, as the next two */
    kvp_spaces_t *spaces;
    kvp_view_t *view;
    kvp_namespace_t terms; /* the registration's values for fields that an event omits; borrowed texts */
    uint32_t rank;
    uint64_t hash_seed;
    kvp_join_t *joins[KVP_POOLS_MAX]; /* borrowed: joins of the pools where the publisher stores */
    uint32_t joins_n;
    bool (*make_room)(void *arg); /* called when the index is full: true = room may have come. NULL = none */
    void *arg;
    kvp_decoder_t decoder;
    struct {
        uint64_t events, stored, removed, cleared; /* blocks, but for events and cleared */
        uint64_t gaps, duplicates; /* of event ids */
        uint64_t skips[KVP_SKIPS_N];
    } done;
    kvp_streams_t streams;
} kvp_applier_t;

void kvp_applier_init(kvp_applier_t *a, kvp_index_t *ix, kvp_spaces_t *spaces, kvp_view_t *view,
                      const kvp_namespace_t *terms, uint32_t rank, uint64_t hash_seed);
void kvp_applier_fini(kvp_applier_t *a);

/* kvp_events_apply enters the events of one payload. False: malformed, which is counted. */
bool kvp_events_apply(kvp_applier_t *a, const void *payload, size_t len);
/* kvp_events_apply_one enters one. */
void kvp_events_apply_one(kvp_applier_t *a, const kvp_event_t *event);
/* kvp_events_drop: nothing is held any more, and no stream is known; where hashes stand is. */
void kvp_events_drop(kvp_applier_t *a);

#endif
