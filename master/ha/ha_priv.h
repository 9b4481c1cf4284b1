/* SPDX-License-Identifier: Apache-2.0
 * The internals of ha: ha.c has the loop, etcd's answers and following a leader; lead.c has leading. */
#ifndef KVP_MASTER_HA_HA_PRIV_H
#define KVP_MASTER_HA_HA_PRIV_H

#include "common/clock.h"
#include "common/log.h"
#include "master/ha/follower.h"
#include "master/ha/ha.h"
#include "master/ha/reader.h"
#include "master/ha/roster.h"
#include "master/ha/sender.h"
#include "proto/kvpool.pb-c.h"
#include "proto/pb.h"
#include "proto/segfmt.h"

#define KVP_HA_BEHIND_MAX (4u << 20) /* a standby with more unwritten log bytes pauses reading from the leader */

typedef enum {
    KVP_HA_WAITS, /* waits until an earlier write does not use the files any more */
    KVP_HA_READS, /* reads its own log */
    KVP_HA_FOLLOWS, /* may follow the leader, and may be elected */
    KVP_HA_LEADS,
} kvp_ha_state_t;

struct kvp_ha {
    kvp_ha_conf_t conf;
    kvp_election_t election;
    kvp_sender_t sender;
    kvp_follower_t *follower;
    kvp_follower_ops_t follower_ops;
    kvp_etcd_t *etcd;
    kvp_master_t *core; /* the first core, until the start; NULL afterwards */
    kvp_ha_state_t state;
    bool is_stopping;
    uint64_t revoke_id; /* id of the revoke request for whose answer the stop waits; 0 = none */

    uv_loop_t *uv; /* NULL = not started */
    uv_timer_t timer, soon;
    uv_async_t news; /* wakes the loop from etcd's thread */
    pthread_mutex_t lock;
    kvp_etcd_answer_t *answers, **answers_end; /* queue of etcd's answers; guarded by lock */
    bool is_changed; /* flag: etcd's keys may have changed; guarded by lock */

    /* Fields for reading the log. */
    uint64_t read_at, read_to; /* next log position to read, and where the reading ends; positions of the files */
    kvp_reader_t reader; /* reads our own log, and the records that standbys lack */

    /* Fields for following a leader. */
    uint64_t leader_end; /* end of the leader's log in its last message; UINT64_MAX = none on this connection */
    uint32_t leader_term; /* term of the leader that this standby follows */
    uint32_t level_term; /* term whose leader announced its last record, and our log has all its records; 0 = none */
    bool is_doubted; /* flag: the end of our log may be missing */
    bool is_spent_told; /* flag: the log line about used-up terms was written */
    uint64_t level_ns; /* when this standby last had the leader's whole log */

    /* Fields for leading. */
    uint64_t led_ns; /* when this master's term began */
    uint64_t act_until_ns; /* argument of the last kvp_server_act_until; 0 = this time is over: the server is fenced */
    uint64_t failed_ns; /* since when the log cannot be written; 0 = it can be written */
    uint32_t missing_n; /* number of standbys missing for --ack-standbys, as last logged; 0 = none */
    uint64_t *watchers; /* connections that wait until a master leads */
    uint32_t watchers_n, watchers_cap;
    /* State of a SWITCH request. switch_conn: its connection, 0 = closed. switch_until_ns: time limit for a standby to
     * be nearly level, 0 = no request. handing_until_ns: then serving stops, with this time limit to be level. */
    uint64_t switch_conn, switch_until_ns, handing_until_ns;
    uint64_t switch_request_id;

    kvp_masterlist_t roster;
    uint64_t roster_ns; /* time of the roster's last update */

    _Atomic(const char *) role; /* for any thread */
    _Atomic uint32_t term;
};

/* Functions of ha.c. */
kvp_master_t *kvp_ha_core_of(const kvp_ha_t *ha);
void kvp_ha_set_state(kvp_ha_t *ha, kvp_ha_state_t state);
uint32_t kvp_ha_log_term(const kvp_ha_t *ha);
void kvp_ha_terms_of(const kvp_ha_t *ha, kvp_wire_term_t terms[KVP_FOLLOW_TERMS_MAX], uint32_t *n_out);
void kvp_ha_read_again(kvp_ha_t *ha, uint64_t to, bool is_empty);
uint64_t kvp_ha_waiting_bytes(const kvp_ha_t *ha);

/* Functions of lead.c. */
/* kvp_ha_answer_watchers answers some of the clients that wait for a leader. Returns true if others still wait. */
bool kvp_ha_answer_watchers(kvp_ha_t *ha);
void kvp_ha_hold_positions(kvp_ha_t *ha);
void kvp_ha_begin_lead(kvp_ha_t *ha);
void kvp_ha_on_fenced(void *arg);
void kvp_ha_lead_on(kvp_ha_t *ha, uint64_t now_ns);
bool kvp_ha_on_first(void *arg, uint64_t conn, const kvp_frame_t *frame);
void kvp_ha_on_gone(void *arg, uint64_t conn);
void kvp_ha_on_frame(void *arg, uint64_t conn, const kvp_frame_t *frame);

#endif
