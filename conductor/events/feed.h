/* SPDX-License-Identifier: Apache-2.0
 * The order of a publisher's messages: the next number, missed messages, and whether the publishing
 * process is still the same. A state machine without sockets and clocks. Possibly stale state is
 * dropped, never served. */
#ifndef KVP_CONDUCTOR_EVENTS_FEED_H
#define KVP_CONDUCTOR_EVENTS_FEED_H

#include "common/buf.h"

#define KVP_FEED_QUEUE_MAX (16u << 20) /* bytes that wait for the end of a replay */

typedef struct {
    void (*apply)(void *arg, const void *payload, size_t len);
    void (*drop)(void *arg); /* drops all applied events */
    void (*ask)(void *arg,
                /* asks for a replay from the number on; kvp_feed_replayed and kvp_feed_replay_end bring the
         * answer */
                uint64_t from);
    void *arg;
} kvp_feed_ops_t;

typedef enum {
    KVP_FEED_LIVE, /* no replay is under way */
    KVP_FEED_ASKED, /* a replay is under way, and no message of it has arrived */
    KVP_FEED_REPLAYING, /* messages of the replay have arrived */
    KVP_FEED_STALE /* another process publishes now: the next replay has to begin at 0 */
} kvp_feed_state_t;

typedef struct {
    kvp_feed_ops_t ops;
    kvp_feed_state_t state;
    bool can_replay;
    bool has_last; /* a message was applied: */
    uint64_t last, last_digest; /* its number, and a hash of its bytes */
    uint64_t heard_ns, sure_ns; /* when anything came; when it was known to be all, last */
    bool is_partial; /* the applied messages do not begin at the publisher's first one */
    bool is_doubted; /* the connection was renewed during the replay, so another replay has to follow */
    uint64_t asked_ns, asked_from;
    uint32_t tries; /* replays in a row that left a gap */
    kvp_buf_t digest; /* a digest that waits for the message of this number: */
    uint64_t digest_seq;
    kvp_buf_t queue; /* messages that came meanwhile: number, length, bytes, padded; after an error they are lost */
    struct {
        uint64_t applied, gaps, replays, failed_replays, drops, duplicates, incarnations, snapshots;
    } stats;
} kvp_feed_t;

/* can_replay: there is an endpoint for replays. Then a replay from 0 begins at once. */
void kvp_feed_init(kvp_feed_t *f, const kvp_feed_ops_t *ops, bool can_replay, uint64_t now_ns);
void kvp_feed_fini(kvp_feed_t *f);

void kvp_feed_live(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns);
void kvp_feed_replayed(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns);
/* kvp_feed_snapshot: in a replay, all that is there, in any number of messages, instead of what is
 * not kept any more; message seq follows, which is the last before the snapshot began. */
void kvp_feed_snapshot(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns);
void kvp_feed_replay_end(kvp_feed_t *f, uint64_t now_ns);
/* kvp_feed_digest: sums over all events up to message seq, which may not have arrived yet. They are
 * applied right after it, and dropped during a replay. */
void kvp_feed_digest(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len);
/* kvp_feed_again: what was applied is not to be relied on, or not all that is wanted now: it is
 * dropped, and asked for from 0. */
void kvp_feed_again(kvp_feed_t *f, uint64_t now_ns);
/* kvp_feed_connected: the connection is new, so messages may have been missed, and queued ones
 * belong to the former connection. */
void kvp_feed_connected(kvp_feed_t *f, uint64_t now_ns);
/* kvp_feed_disconnected: without an endpoint for replays the publisher may later be another
 * process, so its blocks are dropped. */
void kvp_feed_disconnected(kvp_feed_t *f);
/* kvp_feed_tick: to be called a few times a second. */
void kvp_feed_tick(kvp_feed_t *f, uint64_t now_ns);

#endif
