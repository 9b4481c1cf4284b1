/* SPDX-License-Identifier: Apache-2.0
 * One of several masters: runs the election, follows the leader's log or leads, and gives the
 * server its core (ADR 0031). On the loop's thread, but for etcd's own. */
#ifndef KVP_MASTER_HA_HA_H
#define KVP_MASTER_HA_HA_H

#include "master/ha/election.h"
#include "master/shell/ident.h"
#include "master/shell/log_writer.h"
#include "master/shell/server.h"

typedef struct kvp_ha kvp_ha_t;

typedef struct {
    kvp_etcd_conf_t etcd; /* endpoints, files, user; the rest is ours */
    const char *cluster;
    uint32_t ttl_s;
    uint32_t ack_standbys; /* standbys that must have a commit before its answer */
    uint64_t switch_after_ns; /* a new leader refuses SWITCH for this long */
    kvp_ident_t *ident; /* borrowed for life, as are log and server; opened, and of a directory */
    kvp_log_writer_t *log; /* initialised */
    kvp_server_t *server; /* created */
    kvp_master_conf_t core; /* of each core; its strings are borrowed */
} kvp_ha_conf_t;

/* The status for clients and monitoring. */
typedef struct {
    char role[16]; /* starting, standby, candidate, leader, fenced, stopping */
    uint32_t term; /* ours, or the leader's; 0 = no leader */
    kvp_election_master_t self, leader; /* leader.id "" = none */
    kvp_election_master_t masters[KVP_ELECTION_MEMBERS_MAX]; /* registered in etcd, self included */
    uint32_t masters_n;
    kvp_election_set_t insync;
    uint64_t elections; /* won by this process */
    uint64_t end; /* end position of the log written here, */
    uint64_t lag_bytes; /* and how much less that is than the leader has, as far as is known */
    uint64_t lag_records; /* the lag in records, by the mean length of the records written so far; 0 = level */
    uint64_t lag_ms; /* duration of the lag */
    uint64_t etcd_requests, etcd_failures;
    struct {
        char id[KVP_ELECTION_ID_MAX + 1];
        uint64_t lag_bytes, lag_records, lag_ms;
        bool is_insync;
    } standbys[KVP_ELECTION_MEMBERS_MAX]; /* of a leader: its standbys */
    uint32_t standbys_n;
} kvp_ha_status_t;

/* kvp_ha_create: NOMEM, SYS, INVALID; logged. kvp_ha_ops fills what kvp_server_create was given.
 * kvp_ha_start: the server runs on that loop with the core of kvp_ha_core; self's addresses are
 * bound by now. kvp_ha_stop gives up the lead at once, and ends what runs on the loop;
 * kvp_ha_destroy after uv_run has returned. NULL is ignored by both. */
kvp_err_t kvp_ha_create(const kvp_ha_conf_t *conf, kvp_ha_t **ha_out) KVP_MUST_USE;
void kvp_ha_ops(kvp_ha_t *ha, kvp_server_ops_t *ops_out);
kvp_master_t *kvp_ha_core(const kvp_ha_t *ha); /* until the start; then kvp_server_core returns it */
kvp_err_t kvp_ha_start(kvp_ha_t *ha, uv_loop_t *uv, const char *address, const char *http) KVP_MUST_USE;
void kvp_ha_stop(kvp_ha_t *ha);
void kvp_ha_destroy(kvp_ha_t *ha);

void kvp_ha_status(kvp_ha_t *ha, kvp_ha_status_t *status_out);
/* kvp_ha_role is what of it is known to any thread at once: role (static) and term. */
const char *kvp_ha_role(const kvp_ha_t *ha, uint32_t *term_out);

#endif
