/* SPDX-License-Identifier: Apache-2.0
 * The log's records as KV events: what became available in memory ("cpu") or on an SSD ("disk"), and what is so no more. A state machine without
 * sockets: records in, msgpack out. It knows of each object where it was said to be, so that what changes nothing for others is no event.
 *
 * Events are the standard's envelope (README of the conductor's API). Two things are ours: `group_id` is the digest of the pool's group, and an event of type `digest`
 * tells sums over all that was said so far, by a tenant and a prefix of keys of upstream's connector, in KVP_EVENT_RANGES ranges.
 */
#ifndef KVP_MASTER_EVENTS_STREAM_H
#define KVP_MASTER_EVENTS_STREAM_H

#include "common/buf.h"
#include "common/digestmap.h"
#include "proto/jrec.h"

#define KVP_EVENT_RANGES 16u
#define KVP_EVENT_PREFIXES_MAX 1024u /* of keys, of which digests are kept */

typedef enum {
    KVP_STREAM_PRIME, /* the records tell what there is: nobody is told */
    KVP_STREAM_LIVE, /* what changes is told */
    KVP_STREAM_SNAPSHOT, /* what there is is told, to who asked */
} kvp_stream_mode_t;

typedef struct {
    const char *backend; /* borrowed */
    bool is_legacy; /* fields of older names as well: type, block_hashes, parent_block_hash */
} kvp_stream_conf_t;

/* Events that are encoded, for one message. */
typedef struct {
    kvp_buf_t maps;
    uint32_t n;
} kvp_event_batch_t;

typedef struct kvp_stream kvp_stream_t;

/* NULL = no memory. reset: nothing is known any more. */
kvp_stream_t *kvp_stream_create(const kvp_stream_conf_t *conf, uint64_t seed);
void kvp_stream_destroy(kvp_stream_t *s);
void kvp_stream_reset(kvp_stream_t *s);

/* kvp_stream_take takes in one record, and appends what is to be told. now_ms: Unix time. */
void kvp_stream_take(kvp_stream_t *s, const kvp_jrec_any_t *rec, kvp_stream_mode_t mode, uint64_t now_ms,
                     kvp_event_batch_t *batch);
/* kvp_stream_digests appends an event for each prefix. */
void kvp_stream_digests(kvp_stream_t *s, uint64_t now_ms, kvp_event_batch_t *batch);
uint64_t kvp_stream_objects(const kvp_stream_t *s); /* that are said to be somewhere */

/* kvp_event_payload writes [now_ms, [events], 0] to out and empties the batch. */
void kvp_event_payload(kvp_event_batch_t *batch, uint64_t now_ms, kvp_buf_t *out);

#endif
