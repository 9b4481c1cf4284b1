/* SPDX-License-Identifier: Apache-2.0
 * The last event id in each stream of a publisher's standard events. Streams without events for the longest time
 * are forgotten. A forgotten stream that sends again is FIRST, like a new stream: events before it may be missing. */
#ifndef KVP_CONDUCTOR_EVENTS_STREAMS_H
#define KVP_CONDUCTOR_EVENTS_STREAMS_H

#include "common/digestmap.h"

#define KVP_STREAMS_MIN 16384u /* the table keeps at least so many of the newest streams, and at most twice as many */

/* A table of streams in two generations; zeroed memory is an empty table. A stream with a new event moves from old to
 * young. When young has KVP_STREAMS_MIN streams, young becomes old, and the previous old generation is forgotten. */
typedef struct {
    kvp_digestmap_t young, old; /* maps from a stream's key to its next expected event id */
} kvp_streams_t;

void kvp_streams_fini(kvp_streams_t *s); /* frees the memory of the table and leaves an empty table */

typedef enum { KVP_STREAM_FIRST, KVP_STREAM_NEXT, KVP_STREAM_GAP, KVP_STREAM_SEEN } kvp_stream_step_t;

/* kvp_streams_step records an event id and returns its relation to the stream. FIRST: the stream is new or was
 * forgotten. NEXT: the id follows the last one. GAP: ids between are missing. SEEN: the id is not above the last
 * one. */
kvp_stream_step_t kvp_streams_step(kvp_streams_t *s, uint64_t stream, uint64_t id);

#endif
