/* SPDX-License-Identifier: Apache-2.0
 * Converts the log's records to KV events: objects that became available in memory ("cpu") or on an SSD ("disk"), and
 * objects that were removed. A state machine without sockets: records in, msgpack out. It knows the published places
 * of each object, so that a change without a visible effect makes no event.
 *
 * Events have the fields of the KV events standard (docs/PROTOCOL.md). Two extensions are ours: `group_id` is the
 * digest of the object's group, and an event of type `digest` has sums over all published events, for a tenant and a
 * prefix of connector keys, in KVP_EVENT_RANGES ranges of key hashes. */
#ifndef KVP_MASTER_EVENTS_STREAM_H
#define KVP_MASTER_EVENTS_STREAM_H

#include "common/buf.h"
#include "common/digestmap.h"
#include "proto/jrec.h"

#define KVP_EVENT_RANGES 16u
#define KVP_EVENT_PREFIXES_MAX 1024u /* limit of the key prefixes for which digests are kept */

typedef enum {
    KVP_STREAM_PRIME, /* the records describe the present state: nothing is published */
    KVP_STREAM_LIVE, /* changes are published */
    KVP_STREAM_SNAPSHOT, /* the present state is sent to the asking client */
} kvp_stream_mode_t;

/* Encoded events for the next message. */
typedef struct {
    kvp_buf_t bytes;
    uint32_t n;
} kvp_event_batch_t;

typedef struct kvp_stream kvp_stream_t;

/* kvp_stream_create: NULL = no memory. backend is borrowed. is_legacy: events also have fields with older names:
 * type, block_hashes, parent_block_hash. kvp_stream_reset forgets all objects, tenants and prefixes. */
kvp_stream_t *kvp_stream_create(const char *backend, bool is_legacy, uint64_t seed);
void kvp_stream_destroy(kvp_stream_t *s);
void kvp_stream_reset(kvp_stream_t *s);

/* kvp_stream_take handles one record of the log, and appends its events to batch. now_ms is Unix time. */
void kvp_stream_take(kvp_stream_t *s, const kvp_jrec_any_t *rec, kvp_stream_mode_t mode, uint64_t now_ms,
                     kvp_event_batch_t *batch);
/* kvp_stream_digests appends a digest event for each tenant and key prefix. */
void kvp_stream_digests(kvp_stream_t *s, uint64_t now_ms, kvp_event_batch_t *batch);
uint64_t kvp_stream_objects(const kvp_stream_t *s); /* number of objects with a published place */

/* kvp_event_payload writes [now_ms, [events], 0] to out and empties the batch. */
void kvp_event_payload(kvp_event_batch_t *batch, uint64_t now_ms, kvp_buf_t *out);

#endif
