/* SPDX-License-Identifier: Apache-2.0
 * A publisher's sockets: SUB for its messages, DEALER for replays. On the loop's thread. */
#ifndef KVP_CONDUCTOR_EVENTS_SUBSCRIPTION_H
#define KVP_CONDUCTOR_EVENTS_SUBSCRIPTION_H

#include "common/base.h"

#include <uv.h>

typedef struct {
    void (*on_live)(void *arg, uint64_t seq, const void *payload, size_t len);
    void (*on_replayed)(void *arg, uint64_t seq, const void *payload, size_t len);
    void (*on_snapshot)(void *arg, uint64_t seq, const void *payload,
                        size_t len); /* in a replay: a part of the whole contents */
    /* sums over all events up to the message */
    void (*on_digests)(void *arg, uint64_t seq, const void *payload, size_t len);
    void (*on_replay_end)(void *arg);
    void (*on_connected)(void *arg); /* for the first time, or again */
    void (*on_disconnected)(void *arg);
    void (*on_more)(void *arg); /* a turn of the loop did not take all: kvp_subscription_run is to be called */
    void *arg;
} kvp_subscription_ops_t;

typedef struct kvp_subscription kvp_subscription_t;

/* endpoint: one with a wildcard (tcp: host * or 0.0.0.0) is bound, any other is connected to. A
 * bound endpoint listens to one publisher: the connection that sent the first message, until it
 * ends. Messages of other connections are refused, counted, and logged once. replay "" = none. ops
 * are copied. INVALID: ZMQ refuses the endpoint; SYS; logged, with the reason in *why_out. */
kvp_err_t kvp_subscription_open(uv_loop_t *uv, void *zmq, const char *endpoint, const char *replay,
                                const kvp_subscription_ops_t *ops, kvp_subscription_t **out, char why_out[160])
    KVP_MUST_USE;
/* kvp_subscription_is_bound: true if an endpoint is one to be bound.
 * kvp_subscription_is_same_bound: both are, at one port. */
bool kvp_subscription_is_bound(const char *endpoint);
bool kvp_subscription_is_same_bound(const char *a, const char *b);
/* No callback follows. */
void kvp_subscription_close(kvp_subscription_t *s);

/* kvp_subscription_ask asks for a replay; the rest of an earlier one is dropped. */
void kvp_subscription_ask(kvp_subscription_t *s, uint64_t from);

/* kvp_subscription_ask_digests asks a pool for its sums, unless a replay is under way. */
void kvp_subscription_ask_digests(kvp_subscription_t *s);

/* kvp_subscription_run reads arrived messages, at most `most`. True: more are left. */
bool kvp_subscription_run(kvp_subscription_t *s, uint32_t most);
/* kvp_subscription_tick, now and then, retries an unreachable publisher. */
void kvp_subscription_tick(kvp_subscription_t *s, uint64_t now_ns);
bool kvp_subscription_is_connected(const kvp_subscription_t *s);
uint64_t kvp_subscription_malformed(const kvp_subscription_t *s); /* messages with another number of frames */
/* kvp_subscription_refused: messages of other publishers at a bound endpoint; *topic_out is the
 * topic of the last one, and *own_topic_out the publisher's (borrowed). */
uint64_t kvp_subscription_refused(const kvp_subscription_t *s, const char **own_topic_out, const char **topic_out);

#endif
