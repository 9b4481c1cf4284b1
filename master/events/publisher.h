/* SPDX-License-Identifier: Apache-2.0
 * Publishes the log as KV events over ZMQ (stream.h), in a separate thread: the loop passes the log's records to the
 * thread, and never waits for it. The thread has a queue and a ring of the last messages. A client that asks for a
 * replay gets the missing messages from the ring. If the ring does not reach back that far, the client gets a
 * snapshot of the index, and the ring's messages from the snapshot's beginning on. ADR 0033; docs/PROTOCOL.md "KV
 * events of the pool". */
#ifndef KVP_MASTER_EVENTS_PUBLISHER_H
#define KVP_MASTER_EVENTS_PUBLISHER_H

#include "master/core/api/master.h"

typedef struct {
    const char *endpoint; /* ZMQ endpoint to bind for events; borrowed, as are the next two strings */
    const char *replay; /* ZMQ endpoint for replays; NULL = no replays */
    const char *backend;
    uint64_t ring_events; /* number of events that are kept for replays */
    bool is_legacy;
} kvp_publisher_conf_t;

/* Statistics of the publisher. X(name, help), marked as in KVP_MASTER_STATS. */
#define KVP_PUBLISHER_STATS(X)                                                                                         \
    X(events_published, "published KV events")                                                                         \
    X(events_messages, "messages in which they were")                                                                  \
    X(events_lost, "times that events were dropped, because they came faster than they could be published")            \
    X(events_replays, "replays requested by subscribers")                                                              \
    X(events_snapshots, "of these, answered with a snapshot, because the requested events were not kept any more")     \
    X(events_abandoned, "replays ended because their subscriber did not read")                                         \
    X(events_objects, "objects that are published as present (gauge)")                                                 \
    X(events_queue_bytes, "bytes of the log not published yet (gauge)")

typedef struct {
#define KVP_PUBLISHER_STAT_FIELD(name, help) uint64_t name;
    KVP_PUBLISHER_STATS(KVP_PUBLISHER_STAT_FIELD)
#undef KVP_PUBLISHER_STAT_FIELD
    bool is_publishing; /* flag: this master leads, and the publisher's thread has read its whole index */
} kvp_publisher_stats_t;

typedef struct kvp_eventpub kvp_eventpub_t;

/* kvp_publisher_create binds the endpoints, and begins to publish. INVALID (ZMQ does not accept an endpoint), SYS,
 * NOMEM; logged. wake(arg) is called in any thread: kvp_publisher_turn must be called in the loop's thread soon.
 * kvp_publisher_destroy ends the thread; waiting events are not published. */
kvp_err_t kvp_publisher_create(const kvp_publisher_conf_t *conf, void (*wake)(void *arg), void *arg,
                               kvp_eventpub_t **out) KVP_MUST_USE;
void kvp_publisher_destroy(kvp_eventpub_t *p);

/* Functions for the loop's thread. kvp_publisher_log takes whole records of the core's log, in order.
 * kvp_publisher_turn follows after all records of the turn: it passes the leading core (NULL: no core may act), and
 * gives the thread a slice of the index if the thread wants one. */
void kvp_publisher_log(kvp_eventpub_t *p, const void *records, size_t len);
void kvp_publisher_turn(kvp_eventpub_t *p, kvp_master_t *master);

void kvp_publisher_stats(kvp_eventpub_t *p, kvp_publisher_stats_t *out); /* in any thread */

#endif
