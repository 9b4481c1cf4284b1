/* SPDX-License-Identifier: Apache-2.0
 * The ZMQ sockets of a publisher: SUB for its messages, DEALER for replays. All functions run on the loop's thread. */
#ifndef KVP_CONDUCTOR_EVENTS_SUBSCRIPTION_H
#define KVP_CONDUCTOR_EVENTS_SUBSCRIPTION_H

#include "common/base.h"

#include <uv.h>

typedef struct {
    void (*on_live)(void *arg, uint64_t seq, const void *payload, size_t len);
    void (*on_replayed)(void *arg, uint64_t seq, const void *payload, size_t len);
    /* callback that passes a part of a snapshot during a replay */
    void (*on_snapshot)(void *arg, uint64_t seq, const void *payload, size_t len);
    /* callback that passes sums over all events up to message seq */
    void (*on_digests)(void *arg, uint64_t seq, const void *payload, size_t len);
    void (*on_replay_end)(void *arg);
    void (*on_connected)(void *arg); /* callback after the connection was made, for the first time or again */
    void (*on_disconnected)(void *arg);
    void (*on_more)(void *arg); /* callback if messages are left after a turn of the loop: call kvp_subscription_run */
    void *arg;
} kvp_subscription_ops_t;

typedef struct kvp_subscription kvp_subscription_t;

/* kvp_subscription_open opens the sockets. An endpoint with a wildcard host (tcp with *, 0.0.0.0 or [::]) is
 * bound; to any other endpoint the socket connects. A bound endpoint accepts one publisher: the connection that sent
 * the first message, until this connection ends. Messages of other connections are refused, counted, and logged once.
 * replay "" = no replays. ops are copied. Errors are logged, with the reason in *why_out: INVALID (ZMQ refuses the
 * endpoint), SYS, NOMEM. */
kvp_err_t kvp_subscription_open(uv_loop_t *uv, void *zmq, const char *endpoint, const char *replay,
                                const kvp_subscription_ops_t *ops, kvp_subscription_t **out, char why_out[160])
    KVP_MUST_USE;
/* kvp_subscription_is_bound returns true if the endpoint has a wildcard host and so is bound.
 * kvp_subscription_is_same_bound returns true if both endpoints are bound, at one port. */
bool kvp_subscription_is_bound(const char *endpoint);
bool kvp_subscription_is_same_bound(const char *a, const char *b);
/* kvp_subscription_close closes the sockets. No callback is called afterwards. */
void kvp_subscription_close(kvp_subscription_t *s);

/* kvp_subscription_ask requests a replay; the rest of an earlier replay is dropped. */
void kvp_subscription_ask(kvp_subscription_t *s, uint64_t from);

/* kvp_subscription_ask_digests requests the sums of a pool, unless a replay is in progress. */
void kvp_subscription_ask_digests(kvp_subscription_t *s);

/* kvp_subscription_run reads arrived messages until their costs reach `most`; a message costs 1 or more. True:
 * the function stopped at this limit, and messages may be left. */
bool kvp_subscription_run(kvp_subscription_t *s, uint32_t most);
/* kvp_subscription_tick reopens the sockets of an unreachable publisher; call it a few times a second. */
void kvp_subscription_tick(kvp_subscription_t *s, uint64_t now_ns);
bool kvp_subscription_is_connected(const kvp_subscription_t *s);
/* returns the number of messages with a wrong number of frames, or with a malformed sequence number */
uint64_t kvp_subscription_malformed(const kvp_subscription_t *s);
/* kvp_subscription_refused returns the number of messages from other publishers at a bound endpoint. *topic_out is
 * the topic of the last of them, and *own_topic_out the topic of the accepted publisher; both are borrowed. */
uint64_t kvp_subscription_refused(const kvp_subscription_t *s, const char **own_topic_out, const char **topic_out);

#endif
