/* SPDX-License-Identifier: Apache-2.0
 * Checks the order of a publisher's messages: the next number, missed messages, and whether the publishing process
 * is still the same. A state machine without sockets and clocks. Blocks that may be stale are dropped, never served. */
#ifndef KVP_CONDUCTOR_EVENTS_FEED_H
#define KVP_CONDUCTOR_EVENTS_FEED_H

#include "common/buf.h"

/* limit of the queue of messages that wait for the end of a replay, in bytes */
#define KVP_FEED_QUEUE_MAX (16u << 20)

typedef struct {
    void (*apply)(void *arg, const void *payload, size_t len);
    void (*drop)(void *arg); /* function that removes the effects of all applied events */
    /* requests a replay that begins with the message `from`; the answer arrives through kvp_feed_replayed and
     * kvp_feed_replay_end */
    void (*ask)(void *arg, uint64_t from);
    void *arg;
} kvp_feed_ops_t;

typedef enum {
    KVP_FEED_LIVE, /* state: no replay is in progress, and live messages are applied */
    KVP_FEED_ASKED, /* state: a replay was requested, and none of its messages has arrived */
    KVP_FEED_REPLAYING, /* state: messages of a replay have arrived */
    KVP_FEED_STALE /* state: another process publishes now, so the next replay has to begin at message 0 */
} kvp_feed_state_t;

typedef struct {
    kvp_feed_ops_t ops;
    kvp_feed_state_t state;
    bool can_replay;
    bool has_last; /* a flag: a message was applied, and the next two fields are set */
    uint64_t last, last_digest; /* number of the last applied message, and a hash of its bytes */
    uint64_t heard_ns, sure_ns; /* time at which anything last arrived; last time at which no message was missing */
    bool is_partial; /* a flag: the applied messages do not begin with the publisher's first message */
    bool is_doubted; /* a flag: the connection was renewed during the replay, so another replay has to follow */
    uint64_t asked_ns, asked_from;
    uint32_t tries; /* number of replays requested because of gaps since the last live message in order */
    kvp_buf_t digest; /* a received digest, which waits until message digest_seq has been applied */
    uint64_t digest_seq;
    /* live messages that arrived during a replay (number, length, bytes, padding); if the buffer has an error,
     * they are lost */
    kvp_buf_t queue;
    struct {
        uint64_t applied, gaps, replays, failed_replays, drops, duplicates, incarnations, snapshots;
    } stats;
} kvp_feed_t;

/* kvp_feed_init prepares the state. can_replay: the publisher has an endpoint for replays, and a replay from
 * message 0 begins at once. */
void kvp_feed_init(kvp_feed_t *f, const kvp_feed_ops_t *ops, bool can_replay, uint64_t now_ns);
void kvp_feed_fini(kvp_feed_t *f);

void kvp_feed_live(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns);
void kvp_feed_replayed(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns);
/* kvp_feed_snapshot passes a part of a snapshot, which replaces messages in a replay that the publisher no longer
 * keeps. A snapshot contains the whole state in any number of parts. Message seq, the last one before the snapshot
 * began, follows after the parts. */
void kvp_feed_snapshot(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len, uint64_t now_ns);
void kvp_feed_replay_end(kvp_feed_t *f, uint64_t now_ns);
/* kvp_feed_digest passes a pool's sums over all events up to message seq, which may not have arrived yet. The sums are
 * applied right after that message. During a replay they are dropped. */
void kvp_feed_digest(kvp_feed_t *f, uint64_t seq, const void *payload, size_t len);
/* kvp_feed_again drops everything that was applied and requests a replay from message 0. It is called if the
 * applied state is unreliable or incomplete. */
void kvp_feed_again(kvp_feed_t *f, uint64_t now_ns);
/* kvp_feed_connected reports a new connection. Messages may have been missed, so a replay follows. Queued messages
 * belong to the former connection and are dropped. */
void kvp_feed_connected(kvp_feed_t *f, uint64_t now_ns);
/* kvp_feed_disconnected reports the end of the connection. Without an endpoint for replays all blocks are dropped,
 * because another process may publish after the next connect. */
void kvp_feed_disconnected(kvp_feed_t *f);
/* kvp_feed_tick checks timeouts; call it a few times a second. */
void kvp_feed_tick(kvp_feed_t *f, uint64_t now_ns);

#endif
