/* SPDX-License-Identifier: Apache-2.0
 * A handle's session with the pool: a connection to one of its masters, made again after each loss,
 * and the session's state. One background thread a session: heartbeats, reconnecting, and periodic
 * work. Any thread may call. */
#ifndef KVP_CLIENT_CONTROL_SESSION_H
#define KVP_CLIENT_CONTROL_SESSION_H

#include "client/control/tickets.h"
#include "client/cache/locations.h"
#include "client/memory/peers.h"

typedef struct kvp_mastersession kvp_mastersession_t;

/* One connection and the peers of its incarnation. A thread that uses either holds the link. */
typedef struct {
    kvp_conn_t *conn;
    kvp_peers_t *peers;
    kvp_locations_t *locs; /* NULL = none are kept */
    kvp_list_t link; /* the session's */
    _Atomic uint32_t refs;
    _Atomic uint32_t views; /* of the refs, those that only keep memory mapped */
    bool has_sent_notices; /* its drain notices were sent, or wait; of the background thread */
} kvp_link_t;

typedef struct {
    const char *masters; /* of kvp_masters_create; copied, as all strings are */
    const char *cluster; /* likewise; borrowed for the start */
    kvp_peers_conf_t peers;
    uint32_t locations; /* limit of cached locations; 0 = none */
    uint64_t master_wait_ns; /* of kvp_session_hold_soon; 0 = until the deadline */
    bool is_state_only; /* of kvp_hello_ask_t */
    kvp_held_tickets_t *held_tickets; /* restored in every session; borrowed. NULL = none */
} kvp_session_conf_t;

/* kvp_session_start connects within deadline_ns: INVALID (masters), UNREACHABLE, VERSION, NOMEM, SYS. */
kvp_err_t kvp_session_start(const kvp_session_conf_t *conf, uint64_t deadline_ns, kvp_mastersession_t **session_out)
    KVP_MUST_USE;

/* kvp_session_stop: waiting calls return CLOSED from now on, and the background thread ends; blocks
 * for at most a second or so. kvp_session_destroy, after the last call, informs nodes and master
 * and frees. */
void kvp_session_stop(kvp_mastersession_t *session);
void kvp_session_destroy(kvp_mastersession_t *session);

/* kvp_session_hold returns the link, reconnecting where needed: UNREACHABLE (no master by the deadline), CLOSED. */
kvp_err_t kvp_session_hold(kvp_mastersession_t *session, uint64_t deadline_ns, kvp_link_t **link_out) KVP_MUST_USE;
void kvp_session_rele(kvp_mastersession_t *session, kvp_link_t *link);

/* kvp_session_hold_soon is kvp_session_hold for callers that prefer an error to repeated waits.
 * Together they wait for at most kvp_session_master_wait: master_wait_ns, and 10 s at least with
 * several masters; 0 = until the deadline. After that it returns at once, until the background
 * thread has a link, and also while the link's connection is silent (kvp_conn_call_soon). */
uint64_t kvp_session_master_wait(const kvp_mastersession_t *session);
kvp_err_t kvp_session_hold_soon(kvp_mastersession_t *session, uint64_t deadline_ns, kvp_link_t **link_out) KVP_MUST_USE;

/* kvp_session_rest turns a hold into a long one without stores: it keeps the memory mapped, and
 * does not delay a lost session's drain notices. Release it with kvp_session_rele_view. */
void kvp_session_rest(kvp_link_t *link);
void kvp_session_rele_view(kvp_mastersession_t *session, kvp_link_t *link);

/* kvp_session_hold_known returns a link with a valid location lease, without a wait or a message,
 * or NULL. Its master may be lost since a moment: then it is good only for reading from cached
 * locations. */
kvp_link_t *kvp_session_hold_known(kvp_mastersession_t *session);

/* kvp_session_write_begin and _end surround a batch of puts: in between, heartbeats are frequent
 * enough that the master does not take this client for stopped. */
void kvp_session_write_begin(kvp_mastersession_t *session);
void kvp_session_write_end(kvp_mastersession_t *session);

/* kvp_session_want_lease has the heartbeat sent at once where the link keeps locations and has no lease yet. */
void kvp_session_want_lease(kvp_mastersession_t *session, kvp_link_t *link);

/* kvp_session_queue_used puts the counts of reads from known locations in front of the next message on the link. */
void kvp_session_queue_used(kvp_link_t *link);

/* kvp_session_why writes, for people, why the last attempt to get a session failed. */
#define KVP_SESSION_WHY_MAX 512u
void kvp_session_why(kvp_mastersession_t *session, char *text, size_t cap);

/* kvp_session_sleep waits until until_ns: CLOSED as soon as the session is stopped. */
kvp_err_t kvp_session_sleep(kvp_mastersession_t *session, uint64_t until_ns) KVP_MUST_USE;

/* A thread that waits for a transfer watches these: is_stopping, and a descriptor that becomes
 * readable then. */
bool kvp_session_is_stopping(const kvp_mastersession_t *session);
int kvp_session_stop_fd(const kvp_mastersession_t *session);

const kvp_session_conf_t *kvp_session_conf(const kvp_mastersession_t *session);

#endif
