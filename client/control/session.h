/* SPDX-License-Identifier: Apache-2.0
 * A handle's session with the pool: a connection to one of the pool's masters, which is opened again after each loss,
 * and the session's state. Each session has one background thread for heartbeats, reconnecting and periodic work. Any
 * thread may call. */
#ifndef KVP_CLIENT_CONTROL_SESSION_H
#define KVP_CLIENT_CONTROL_SESSION_H

#include "client/control/tickets.h"
#include "client/cache/locations.h"
#include "client/memory/peers.h"

typedef struct kvp_mastersession kvp_mastersession_t;

/* A link: one connection to a master, and the connections to nodes (peers) of the same incarnation. A thread that
 * uses a link holds a reference to it. */
typedef struct {
    kvp_conn_t *conn;
    kvp_peers_t *peers;
    kvp_locations_t *locs; /* cached locations; NULL = the handle caches none */
    kvp_list_t link; /* entry in the session's list of lost links */
    _Atomic uint32_t refs;
    _Atomic uint32_t views; /* number of references in refs that belong to views; a view only keeps memory mapped */
    bool has_sent_notices; /* the link's drain notices were sent, or queued; used by the background thread only */
} kvp_link_t;

typedef struct {
    const char *masters; /* list of masters, as for kvp_masters_create; start copies all strings */
    const char *cluster; /* name of the cluster, as for kvp_masters_create; borrowed until kvp_session_start returns */
    kvp_peers_conf_t peers;
    uint32_t locations; /* most cached locations; 0 = no cache */
    uint64_t master_wait_ns; /* longest wait of kvp_session_hold_soon; 0 = until the deadline */
    bool is_state_only; /* the session only asks for state and accepts a standby, see kvp_hello_ask_t */
    bool is_probe; /* the session's puts and gets are probes, see kvp_hello_ask_t */
    kvp_held_tickets_t *held_tickets; /* tickets to restore in every new session; borrowed. NULL = none */
} kvp_session_conf_t;

/* kvp_session_start starts the background thread and connects to a master within deadline_ns. Errors: INVALID (the
 * list of masters), UNREACHABLE, VERSION, NOMEM, SYS. */
kvp_err_t kvp_session_start(const kvp_session_conf_t *conf, uint64_t deadline_ns, kvp_mastersession_t **session_out)
    KVP_MUST_USE;

/* kvp_session_stop makes waiting calls return CLOSED and ends the background thread. It blocks for about a second at
 * most. kvp_session_destroy, after the last call, informs the nodes and the master, and frees the session. */
void kvp_session_stop(kvp_mastersession_t *session);
void kvp_session_destroy(kvp_mastersession_t *session);

/* kvp_session_hold returns the current link with a reference for the caller. It reconnects if necessary. Errors:
 * UNREACHABLE (no master answered by the deadline), CLOSED. */
kvp_err_t kvp_session_hold(kvp_mastersession_t *session, uint64_t deadline_ns, kvp_link_t **link_out) KVP_MUST_USE;
void kvp_session_rele(kvp_mastersession_t *session, kvp_link_t *link);

/* kvp_session_hold_soon is kvp_session_hold for callers that prefer an error to a long wait. All calls together wait
 * for at most kvp_session_master_wait: master_wait_ns, but at least 10 s with several masters; 0 = until the
 * deadline. After this time the calls fail at once, until the background thread has a link again, and also while the
 * link's connection is silent (kvp_conn_call_soon). */
uint64_t kvp_session_master_wait(const kvp_mastersession_t *session);
kvp_err_t kvp_session_hold_soon(kvp_mastersession_t *session, uint64_t deadline_ns, kvp_link_t **link_out) KVP_MUST_USE;

/* kvp_session_rest turns a reference to a link into that of a view. The reference then only keeps the memory mapped,
 * and does not delay the drain notices of a lost session. kvp_session_rele_view releases it. */
void kvp_session_rest(kvp_link_t *link);
void kvp_session_rele_view(kvp_mastersession_t *session, kvp_link_t *link);

/* kvp_session_hold_known returns a link with a valid lease on cached locations, or NULL. It neither waits nor sends a
 * message. The link's master may be lost already: use the link only for reads from cached locations. */
kvp_link_t *kvp_session_hold_known(kvp_mastersession_t *session);

/* kvp_session_write_begin and kvp_session_write_end surround a batch of puts. In between, heartbeats are frequent
 * enough for the master not to take this client for dead. */
void kvp_session_write_begin(kvp_mastersession_t *session);
void kvp_session_write_end(kvp_mastersession_t *session);

/* kvp_session_want_lease makes the background thread send a heartbeat at once if the link caches locations and has no
 * lease yet. */
void kvp_session_want_lease(kvp_mastersession_t *session, kvp_link_t *link);

/* kvp_session_queue_used puts the counts of reads from cached locations before the next message on the link's
 * connection. */
void kvp_session_queue_used(kvp_link_t *link);

/* kvp_session_why writes a text for people that explains why the last attempt to get a session failed. */
#define KVP_SESSION_WHY_MAX 512u
void kvp_session_why(kvp_mastersession_t *session, char *text, size_t cap);

/* kvp_session_sleep waits until until_ns. Returns CLOSED as soon as the session is stopped. */
kvp_err_t kvp_session_sleep(kvp_mastersession_t *session, uint64_t until_ns) KVP_MUST_USE;

/* kvp_session_is_stopping returns true after kvp_session_stop; kvp_session_stop_fd returns a descriptor that becomes
 * readable then. A thread that waits for a transfer watches both. */
bool kvp_session_is_stopping(const kvp_mastersession_t *session);
int kvp_session_stop_fd(const kvp_mastersession_t *session);

const kvp_session_conf_t *kvp_session_conf(const kvp_mastersession_t *session);

#endif
