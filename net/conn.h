/* SPDX-License-Identifier: Apache-2.0
 * One connection to a master, which is one session and one incarnation: questions of any number of threads, pipelined,
 * without a thread of its own. A broken connection stays broken; client/control/session.c makes a new one.
 */
#ifndef KVP_NET_CONN_H
#define KVP_NET_CONN_H

#include "net/hello.h"

typedef struct kvp_conn kvp_conn_t;

/* kvp_conn_open takes a connection to a master, also where it fails, and says Hello, over the master's Unix socket where it is on this
 * host. ask->pool_id is NULL. Blocks until deadline_ns, or a moment longer than until *is_given_up of the connection: DEADLINE, CLOSED,
 * NOT_LEADER, VERSION, PROTO ...; detail (of cap bytes) says more for a person. */
kvp_err_t kvp_conn_open(kvp_framed_t *framed, const kvp_hello_ask_t *ask, uint64_t deadline_ns, char *detail,
                        size_t cap, kvp_conn_t **conn_out) KVP_MUST_USE;

/* kvp_conn_watch has fn called while a call waits for its answer, every KVP_CONN_WATCH_NS at most, by any thread that waits. It may
 * break the connection. To be said before there are calls. */
typedef void (*kvp_conn_watch_fn)(void *arg, kvp_conn_t *conn);
#define KVP_CONN_WATCH_NS (250 * KVP_NS_PER_MS)
void kvp_conn_watch(kvp_conn_t *conn, kvp_conn_watch_fn fn, void *arg);

/* kvp_conn_destroy closes it; no thread is in a call. */
void kvp_conn_destroy(kvp_conn_t *conn);

/* kvp_conn_hello returns what the master said; borrowed as long as the connection. */
const kvp_hello_reply_t *kvp_conn_hello(const kvp_conn_t *conn);
bool kvp_conn_is_unix(const kvp_conn_t *conn);
bool kvp_conn_is_broken(const kvp_conn_t *conn);
/* kvp_conn_was_ended says of a broken connection that the master's side ended it. */
bool kvp_conn_was_ended(const kvp_conn_t *conn);

/* kvp_conn_call sends the frame (its request id is filled in) and waits for the answer, which is copied to reply;
 * frame_out points into that. DEADLINE, DISCONNECTED, CLOSED (interrupted), NOMEM, EAGAIN (too much is queued). A late
 * answer is dropped. Any thread. */
kvp_err_t kvp_conn_call(kvp_conn_t *conn, kvp_buf_t *frame, uint64_t deadline_ns, kvp_buf_t *reply,
                        kvp_frame_t *frame_out) KVP_MUST_USE;

/* kvp_conn_call_soon also gives DEADLINE once nothing at all has arrived for silence_ns since it asked (0 = kvp_conn_call), not even
 * a sign of life that it asks for. The connection stays, and is silent until something arrives: then such calls give DEADLINE at
 * once. kvp_conn_is_silent looks whether something has, without a wait. */
kvp_err_t kvp_conn_call_soon(kvp_conn_t *conn, kvp_buf_t *frame, uint64_t deadline_ns, uint64_t silence_ns,
                             kvp_buf_t *reply, kvp_frame_t *frame_out) KVP_MUST_USE;
bool kvp_conn_is_silent(kvp_conn_t *conn);

/* kvp_conn_send sends it and waits for nothing; an answer is dropped. Frames of one thread arrive in order. Where it cannot
 * be sent the connection is broken: its end says what the frame was to say, that holds and attempts are over. */
kvp_err_t kvp_conn_send(kvp_conn_t *conn, kvp_buf_t *frame);

/* kvp_conn_queue puts a one-way frame in front of whatever is sent next; it is dropped where that is too much. */
void kvp_conn_queue(kvp_conn_t *conn, const kvp_buf_t *frame);

/* kvp_conn_break makes every call that waits fail with DISCONNECTED, and all later ones. */
void kvp_conn_break(kvp_conn_t *conn);

/* kvp_conn_interrupt makes calls that wait give CLOSED, and all later ones, until it is turned off. */
void kvp_conn_interrupt(kvp_conn_t *conn, bool is_on);

/* kvp_conn_bye ends the session: called when no call is under way any more. */
void kvp_conn_bye(kvp_conn_t *conn, uint64_t deadline_ns);

#endif
