/* SPDX-License-Identifier: Apache-2.0
 * The last event id of each stream of the standard's events, of one publisher. The longest silent
 * streams are forgotten. A forgotten stream that returns is FIRST, like a new one: events may be
 * missing before it. */
#ifndef KVP_CONDUCTOR_EVENTS_STREAMS_H
#define KVP_CONDUCTOR_EVENTS_STREAMS_H

#include "common/digestmap.h"

#define KVP_STREAMS_MIN 16384u /* the last so many streams are known, at least, and twice as many at most */

/* The zero value has no stream. A stream moves from old to young with each event; when young has
 * KVP_STREAMS_MIN, it becomes old, and the streams left in old are forgotten. */
typedef struct {
    kvp_digestmap_t young, old; /* stream -> id + 1 */
} kvp_streams_t;

void kvp_streams_fini(kvp_streams_t *s); /* leaves the zero value */

typedef enum { KVP_STREAM_FIRST, KVP_STREAM_NEXT, KVP_STREAM_GAP, KVP_STREAM_SEEN } kvp_stream_step_t;

/* kvp_streams_step enters an event. FIRST: its stream is new, or was forgotten. NEXT: it follows
 * the last one of its stream. GAP: events between are missing. SEEN: it is not above the last one. */
kvp_stream_step_t kvp_streams_step(kvp_streams_t *s, uint64_t stream, uint64_t id);

#endif
