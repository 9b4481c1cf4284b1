/* SPDX-License-Identifier: Apache-2.0
 * The inside of ha: ha.c has the loop, etcd's answers and the following of a leader, lead.c the
 * lead. */
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

#define KVP_HA_BEHIND_MAX (4u << 20) /* bytes that are not written, before no more is read from the leader */

typedef enum {
    KVP_HA_WAITS, /* for the files, which an earlier write still uses */
    KVP_HA_READS, /* its own log */
    KVP_HA_FOLLOWS, /* may follow, and may be elected */
    KVP_HA_LEADS,
} kvp_ha_state_t;

struct kvp_ha {
    kvp_ha_conf_t conf;
    kvp_election_t election;
    kvp_sender_t sender;
    kvp_follower_t *follower;
    kvp_follower_ops_t follower_ops;
    kvp_etcd_t *etcd;
    kvp_master_t *core; /* before the start; NULL then */
    kvp_ha_state_t state;
    bool is_stopping;
    uint64_t revoke_id; /* the stop waits for that answer of etcd; 0 = not */

    uv_loop_t *uv; /* NULL = not started */
    uv_timer_t timer, soon;
    uv_async_t news; /* of etcd's thread */
    pthread_mutex_t lock;
    kvp_etcd_answer_t *answers, **answers_end; /* guarded by lock */
    bool is_changed; /* guarded by lock */

    /* reading */
    uint64_t read_at, read_to; /* positions of the files */
    kvp_reader_t reader; /* of our own log, and of what standbys lack */

    /* following */
    uint64_t leader_end; /* position, by the leader's last message; UINT64_MAX = none on this connection */
    uint32_t leader_term; /* of the followed leader */
    uint32_t level_term; /* its log is ours to the end; 0 = it is not known to be */
    bool is_doubted; /* our log may lack its end */
    bool is_spent_told; /* the log has the line about used-up terms */
    uint64_t level_ns; /* when this standby last had the whole log */

    /* leading */
    uint64_t led_ns; /* when the term began */
    uint64_t act_until_ns; /* as passed to the server; 0 = it has passed, and the server is fenced */
    uint64_t failed_ns; /* since when the log cannot be written; 0 = it can */
    uint32_t missing_n; /* standbys that --ack-standbys lacked when that was logged; 0 = none */
    uint64_t *watchers; /* connections that wait for a leader */
    uint32_t watchers_n, watchers_cap;
    uint64_t switch_conn, switch_until_ns, handing_until_ns; /* 0 = none */
    uint64_t switch_request_id;

    kvp_masterlist_t roster;
    uint64_t roster_ns; /* time of its last update */

    _Atomic(const char *) role; /* for any thread */
    _Atomic uint32_t term;
};

/* ha.c */
kvp_master_t *kvp_ha_core_of(const kvp_ha_t *ha);
void kvp_ha_set_state(kvp_ha_t *ha, kvp_ha_state_t state);
uint32_t kvp_ha_log_term(const kvp_ha_t *ha);
void kvp_ha_terms_of(const kvp_ha_t *ha, kvp_wire_term_t terms[KVP_FOLLOW_TERMS_MAX], uint32_t *n_out);
void kvp_ha_read_again(kvp_ha_t *ha, uint64_t to, bool is_empty);
uint64_t kvp_ha_waiting_bytes(const kvp_ha_t *ha);

/* lead.c */
void kvp_ha_answer_watchers(kvp_ha_t *ha);
void kvp_ha_hold_positions(kvp_ha_t *ha);
void kvp_ha_begin_lead(kvp_ha_t *ha);
void kvp_ha_on_fenced(void *arg);
void kvp_ha_lead_on(kvp_ha_t *ha, uint64_t now_ns);
bool kvp_ha_on_first(void *arg, uint64_t conn, const kvp_frame_t *frame);
void kvp_ha_on_gone(void *arg, uint64_t conn);
void kvp_ha_on_frame(void *arg, uint64_t conn, const kvp_frame_t *frame);

#endif
