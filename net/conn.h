/* SPDX-License-Identifier: Apache-2.0
 * One connection to a master, which is one session and one incarnation: questions of any number of threads, pipelined,
 * without a thread of its own. A broken connection stays broken; client/control/session.c makes a new one.
 */
#ifndef KVP_NET_CONN_H
#define KVP_NET_CONN_H

#include "net/hello.h"

typedef struct kvp_conn kvp_conn_t;

/* kvp_conn_open takes over a connection to a master (also on failure) and sends Hello; it moves to
 * the master's Unix socket if the master is on this host. ask->pool_id is NULL. Blocks until
 * deadline_ns, or until shortly after *is_given_up of the connection is set. DEADLINE, CLOSED,
 * NOT_LEADER, VERSION, PROTO ...; detail (cap bytes) gives people the cause. */
kvp_err_t kvp_conn_open(kvp_framed_t *framed, const kvp_hello_ask_t *ask, uint64_t deadline_ns, char *detail,
                        size_t cap, kvp_conn_t **conn_out) KVP_MUST_USE;

/* kvp_conn_watch registers fn: while a call waits for its answer, some waiting thread calls fn at
 * least every KVP_CONN_WATCH_NS. fn may break the connection. Call before the first call. */
typedef void (*kvp_conn_watch_fn)(void *arg, kvp_conn_t *conn);
#define KVP_CONN_WATCH_NS (250 * KVP_NS_PER_MS)
void kvp_conn_watch(kvp_conn_t *conn, kvp_conn_watch_fn fn, void *arg);

/* kvp_conn_destroy closes it; no thread is in a call. */
void kvp_conn_destroy(kvp_conn_t *conn);

/* kvp_conn_hello returns the master's answer to Hello; borrowed as long as the connection. */
const kvp_hello_reply_t *kvp_conn_hello(const kvp_conn_t *conn);
bool kvp_conn_is_unix(const kvp_conn_t *conn);
bool kvp_conn_is_broken(const kvp_conn_t *conn);
/* kvp_conn_was_ended returns whether the master's side ended a broken connection. */
bool kvp_conn_was_ended(const kvp_conn_t *conn);

/* kvp_conn_call sends the frame (its request id is filled in) and waits for the answer, which is copied to reply;
 * frame_out points into that. DEADLINE, DISCONNECTED, CLOSED (interrupted), NOMEM, EAGAIN (too much is queued). A late
 * answer is dropped. Any thread. */
kvp_err_t kvp_conn_call(kvp_conn_t *conn, kvp_buf_t *frame, uint64_t deadline_ns, kvp_buf_t *reply,
                        kvp_frame_t *frame_out) KVP_MUST_USE;

/* kvp_conn_call_soon also gives DEADLINE once nothing at all has arrived for silence_ns since it
 * asked (0 = kvp_conn_call), not even a sign of life that it asks for. The connection stays, and is
 * silent until something arrives: then such calls give DEADLINE at once. kvp_conn_is_silent looks
 * whether something has, without a wait. */
kvp_err_t kvp_conn_call_soon(kvp_conn_t *conn, kvp_buf_t *frame, uint64_t deadline_ns, uint64_t silence_ns,
                             kvp_buf_t *reply, kvp_frame_t *frame_out) KVP_MUST_USE;
bool kvp_conn_is_silent(kvp_conn_t *conn);

/* kvp_conn_send sends the frame without waiting; an answer is dropped. Frames of one thread arrive
 * in order. A failed send breaks the connection, and the session's end then ends holds and attempts
 * as the frame would have. */
kvp_err_t kvp_conn_send(kvp_conn_t *conn, kvp_buf_t *frame);

/* kvp_conn_queue puts a one-way frame in front of the next frame. A frame over the queue's limit is
 * dropped. */
void kvp_conn_queue(kvp_conn_t *conn, const kvp_buf_t *frame);

/* kvp_conn_break makes every call that waits fail with DISCONNECTED, and all later ones. */
void kvp_conn_break(kvp_conn_t *conn);

/* kvp_conn_interrupt makes calls that wait give CLOSED, and all later ones, until it is turned off. */
void kvp_conn_interrupt(kvp_conn_t *conn, bool is_on);

/* kvp_conn_bye ends the session: called when no call is under way any more. */
void kvp_conn_bye(kvp_conn_t *conn, uint64_t deadline_ns);

#endif
