/* SPDX-License-Identifier: Apache-2.0
 * A connection to a master. Each connection is one session, for which the master gives the client an incarnation (the
 * number of the session). Any number of threads send questions, which are pipelined; the connection has no thread of
 * its own. A broken connection stays broken; client/control/session.c opens a new one. */
#ifndef KVP_NET_CONN_H
#define KVP_NET_CONN_H

#include "net/hello.h"

typedef struct kvp_conn kvp_conn_t;

/* kvp_conn_open takes over a connection to a master (also on failure) and sends Hello. It changes to the master's
 * Unix socket if the master is on this host. ask->pool_id is NULL. Blocks until deadline_ns, or until shortly after
 * the connection's *is_given_up is set. Errors: DEADLINE, CLOSED, NOT_LEADER, VERSION, PROTO and others; detail (cap
 * bytes) gets the cause, for people. */
kvp_err_t kvp_conn_open(kvp_framed_t *framed, const kvp_hello_ask_t *ask, uint64_t deadline_ns, char *detail,
                        size_t cap, kvp_conn_t **conn_out) KVP_MUST_USE;

/* kvp_conn_watch registers the function fn: while a call waits for its answer, one of the waiting threads calls fn at
 * least every KVP_CONN_WATCH_NS. fn may break the connection. Call it before the first kvp_conn_call. */
typedef void (*kvp_conn_watch_fn)(void *arg, kvp_conn_t *conn);
#define KVP_CONN_WATCH_NS (250 * KVP_NS_PER_MS)
void kvp_conn_watch(kvp_conn_t *conn, kvp_conn_watch_fn fn, void *arg);

/* kvp_conn_destroy closes and frees the connection. No thread may be in a call on it. */
void kvp_conn_destroy(kvp_conn_t *conn);

/* kvp_conn_hello returns the master's answer to Hello, borrowed until kvp_conn_destroy. */
const kvp_hello_reply_t *kvp_conn_hello(const kvp_conn_t *conn);
bool kvp_conn_is_unix(const kvp_conn_t *conn);
bool kvp_conn_is_broken(const kvp_conn_t *conn);
/* kvp_conn_was_ended returns true if the master's side ended the connection. */
bool kvp_conn_was_ended(const kvp_conn_t *conn);

/* kvp_conn_call sends the frame (and fills in its request id) and waits for the answer, which is copied to reply;
 * frame_out points into reply. Errors: DEADLINE, DISCONNECTED, CLOSED (interrupted), NOMEM, EAGAIN (too many bytes
 * are queued). An answer that arrives later is dropped. Any thread may call. */
kvp_err_t kvp_conn_call(kvp_conn_t *conn, kvp_buf_t *frame, uint64_t deadline_ns, kvp_buf_t *reply,
                        kvp_frame_t *frame_out) KVP_MUST_USE;

/* kvp_conn_call_soon is kvp_conn_call with a limit for the master's silence: it returns DEADLINE once no byte has
 * arrived for silence_ns since the question, not even an answer to a ping that it sends (silence_ns 0 = no limit).
 * The connection stays open and counts as silent until a byte arrives; until then such calls return DEADLINE at once.
 * kvp_conn_is_silent returns true while the connection is silent, and does not wait. */
kvp_err_t kvp_conn_call_soon(kvp_conn_t *conn, kvp_buf_t *frame, uint64_t deadline_ns, uint64_t silence_ns,
                             kvp_buf_t *reply, kvp_frame_t *frame_out) KVP_MUST_USE;
bool kvp_conn_is_silent(kvp_conn_t *conn);

/* kvp_conn_send sends the frame without waiting; an answer is dropped. Frames of one thread arrive in order. A failed
 * send breaks the connection, and the end of the session then ends the client's holds and puts. */
kvp_err_t kvp_conn_send(kvp_conn_t *conn, kvp_buf_t *frame);

/* kvp_conn_queue queues a one-way frame, to be sent with the next frame; if the queue is full, drops it. */
void kvp_conn_queue(kvp_conn_t *conn, const kvp_buf_t *frame);

/* kvp_conn_break makes every waiting call, and all later calls, fail with DISCONNECTED. */
void kvp_conn_break(kvp_conn_t *conn);

/* kvp_conn_interrupt with is_on true makes waiting and later calls return CLOSED, until a call with is_on false. */
void kvp_conn_interrupt(kvp_conn_t *conn, bool is_on);

/* kvp_conn_bye ends the session at the master. No call of another thread may be running. */
void kvp_conn_bye(kvp_conn_t *conn, uint64_t deadline_ns);

#endif
