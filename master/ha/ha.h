/* SPDX-License-Identifier: Apache-2.0
 * One of several masters: runs the election, follows the leader's log or leads, and gives the server its core (ADR
 * 0031). Everything runs in the loop's thread, except etcd's client. */
#ifndef KVP_MASTER_HA_HA_H
#define KVP_MASTER_HA_HA_H

#include "master/ha/election.h"
#include "master/shell/ident.h"
#include "master/shell/log_writer.h"
#include "master/shell/server.h"

typedef struct kvp_ha kvp_ha_t;

typedef struct {
    kvp_etcd_conf_t etcd; /* the caller sets endpoints, files and user; ha sets the other fields */
    const char *cluster;
    uint32_t ttl_s;
    uint32_t ack_standbys; /* number of standbys that must have a commit before it is answered */
    uint64_t switch_after_ns; /* a new leader refuses SWITCH requests for this long */
    kvp_ident_t *ident; /* opened, with a directory; borrowed for ha's life, as are log and server */
    kvp_log_writer_t *log; /* initialised */
    kvp_server_t *server; /* created */
    kvp_master_conf_t core; /* configuration of each core; its strings are borrowed */
} kvp_ha_conf_t;

/* The status for clients and monitoring. */
typedef struct {
    char role[16]; /* starting, standby, candidate, leader, fenced or stopping */
    uint32_t term; /* this master's term, or the leader's; 0 = no leader */
    kvp_election_master_t self, leader; /* leader.id "" = no leader */
    /* the masters that are registered in etcd, this one included */
    kvp_election_master_t masters[KVP_ELECTION_MEMBERS_MAX];
    uint32_t masters_n;
    kvp_election_set_t insync;
    uint64_t elections; /* number of elections that this process won */
    uint64_t end; /* end position of the log that this master has written */
    uint64_t lag_bytes; /* bytes of the leader's log that this standby lacks, as far as is known */
    uint64_t lag_records; /* the lag in records, by the mean length of the records written so far; 0 = no lag */
    uint64_t lag_ms; /* how long this standby has lagged */
    uint64_t etcd_requests, etcd_failures;
    uint64_t etcd_silent_ms; /* time since the last successful request to etcd; 0 = etcd answers */
    char etcd_trouble[KVP_ETCD_TROUBLE_MAX]; /* the last failed request; "" = none */
    struct {
        char id[KVP_ELECTION_ID_MAX + 1];
        uint64_t lag_bytes, lag_records, lag_ms;
        bool is_insync;
    } standbys[KVP_ELECTION_MEMBERS_MAX]; /* on a leader: its standbys */
    uint32_t standbys_n;
} kvp_ha_status_t;

/* kvp_ha_create: NOMEM, SYS, LIMIT (too many log files). kvp_ha_ops fills in the callbacks that were passed to
 * kvp_server_create. Before kvp_ha_start, the server must run on this loop with the core of kvp_ha_core, and
 * this master's addresses must be bound; NOMEM, errors of kvp_etcd_create. kvp_ha_stop gives up the lead at once, and
 * ends everything on the loop; kvp_ha_destroy follows after uv_run has returned. Both ignore NULL. */
kvp_err_t kvp_ha_create(const kvp_ha_conf_t *conf, kvp_ha_t **ha_out) KVP_MUST_USE;
void kvp_ha_ops(kvp_ha_t *ha, kvp_server_ops_t *ops_out);
kvp_master_t *kvp_ha_core(const kvp_ha_t *ha); /* valid until kvp_ha_start; then kvp_server_core returns the core */
kvp_err_t kvp_ha_start(kvp_ha_t *ha, uv_loop_t *uv, const char *address, const char *http) KVP_MUST_USE;
void kvp_ha_stop(kvp_ha_t *ha);
void kvp_ha_destroy(kvp_ha_t *ha);

void kvp_ha_status(kvp_ha_t *ha, kvp_ha_status_t *status_out);
/* kvp_ha_role returns the role (static) and the term of kvp_ha_status, in any thread, without waiting. */
const char *kvp_ha_role(const kvp_ha_t *ha, uint32_t *term_out);

#endif
