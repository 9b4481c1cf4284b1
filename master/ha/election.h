/* SPDX-License-Identifier: Apache-2.0
 * Who leads: a state machine between a master and etcd. Time, news and answers of etcd in; requests
 * to etcd and a role out. No sockets, threads or clocks: ha.c runs it, and the simulator. ADR 0031
 * has the keys and the rules.
 *
 * Time is CLOCK_BOOTTIME everywhere: a lease counts from before its keep-alive was sent. */
#ifndef KVP_MASTER_HA_ELECTION_H
#define KVP_MASTER_HA_ELECTION_H

#include "master/ha/etcd.h"

#define KVP_ELECTION_ID_MAX 32u
#define KVP_ELECTION_ADDRESS_MAX 280u
#define KVP_ELECTION_MEMBERS_MAX 16u /* masters of a cluster */
#define KVP_ELECTION_CLUSTER_MAX 128u

typedef enum {
    KVP_ELECTION_FOLLOWS, /* another master leads, or none */
    KVP_ELECTION_WON, /* the leader key is ours, the term is not written yet */
    KVP_ELECTION_LEADS, /* in that term */
    KVP_ELECTION_RESIGNS, /* the leader key is still ours, and is to be removed */
} kvp_election_role_t;

/* A request to etcd. */
typedef enum {
    KVP_ELECTION_IDLE, /* there is none */
    KVP_ELECTION_DUE, /* kvp_election_take gives it out */
    KVP_ELECTION_SENT, /* it awaits its answer */
} kvp_election_request_t;

/* Our entry in etcd's list of masters. */
typedef enum {
    KVP_ELECTION_UNLISTED,
    KVP_ELECTION_LISTED_READING, /* as a master that still reads its log */
    KVP_ELECTION_LISTED_READY, /* as a master that may lead */
} kvp_election_listing_t;

/* A master's own registration in etcd. */
typedef struct {
    char id[KVP_ELECTION_ID_MAX + 1]; /* "" = none */
    char address[KVP_ELECTION_ADDRESS_MAX + 1]; /* HOST:PORT of clients, nodes and standbys, */
    char http[KVP_ELECTION_ADDRESS_MAX + 1]; /* and of HTTP; "" = none */
    bool is_reading; /* still reads its log, and may lead afterwards */
} kvp_election_master_t;

typedef struct {
    char ids[KVP_ELECTION_MEMBERS_MAX][KVP_ELECTION_ID_MAX + 1];
    uint32_t n;
    bool is_unsafe; /* a master that was elected with the set, without the members of the set before, has not led yet */
} kvp_election_set_t;

/* The pool's identity in etcd. */
typedef struct {
    bool is_known;
    uint8_t pool_id[16];
    uint64_t digest_seed;
} kvp_election_pool_t;

typedef struct {
    char cluster[KVP_ELECTION_CLUSTER_MAX + 1];
    kvp_election_master_t self;
    uint32_t ttl_s;
    uint64_t rng; /* of the chance by which candidates wait */
    uint64_t now_ns;
    kvp_election_role_t role;
    kvp_etcd_op_t op; /* the request under way, or the last one */
    kvp_election_request_t op_state;
    uint32_t op_purpose; /* election.c has the values */
    uint64_t next_id;
    uint64_t again_ns; /* nothing is asked before, for the last answer was a failure */

    /* our lease */
    int64_t lease; /* 0 = none */
    kvp_etcd_op_t beat; /* its keep-alive: beside all else */
    kvp_election_request_t beat_state;
    uint64_t beat_due_ns;
    uint64_t alive_ns; /* sending time of the last answered renewal, or of the grant */
    kvp_election_listing_t listing, asked_listing; /* with that lease; of the last request for it */
    uint64_t twin_ns; /* since when another process is in that list under our id, before we are; 0 = none is */

    /* the last state read from etcd */
    uint64_t read_due_ns; /* time of the next read; 0 = at once, because the state may have changed */
    kvp_election_master_t leader;
    uint32_t leader_term;
    int64_t leader_revision; /* its making; 0 = there is no leader */
    int64_t leader_lease;
    uint32_t term; /* highest written term */
    uint32_t masters_term; /* highest term in the logs of the masters, as each wrote it at its registration */
    int64_t term_revision; /* its last change; 0 = there is none */
    kvp_election_set_t insync;
    int64_t insync_revision;
    kvp_election_pool_t pool;
    kvp_election_master_t masters[KVP_ELECTION_MEMBERS_MAX];
    uint32_t masters_n;

    /* ours */
    kvp_election_pool_t own_pool;
    uint32_t log_term, least_term; /* of our log; the next term of ours is above least_term */
    bool is_ready; /* our log is read: we may lead */
    bool is_doubted; /* our log may lack its end */
    uint64_t absent_ns; /* since when no master leads; 0 = one does */
    uint64_t stand_off_ns; /* no candidate before */
    bool is_unsafe; /* we took the lead although others knew more */
    int64_t own_revision; /* of the leader key, while it is ours */
    uint32_t own_term;
    uint32_t term_before; /* etcd's term before it */
    kvp_election_set_t wanted_insync;
    kvp_election_set_t asked_insync; /* members of sets that may stand in etcd, for their writing was not answered */
    bool is_insync_due;
    uint64_t elections; /* that we won */
} kvp_election_t;

/* kvp_election_init copies the cluster's name and our own registration. */
void kvp_election_init(kvp_election_t *e, const char *cluster, const kvp_election_master_t *self, uint32_t ttl_s,
                       uint64_t seed, uint64_t now_ns);

/* kvp_election_ready: the log is read, or not any more; its term and the pool that it is of.
 * is_doubted: its end may be missing. The pool comes from the data directory. is_known false: there
 * is none yet, and with the first term *pool is written (made up). */
void kvp_election_ready(kvp_election_t *e, bool is_ready, bool is_doubted, uint32_t log_term,
                        const kvp_election_pool_t *pool);
/* kvp_election_tick advances the clock. kvp_election_changed: etcd's keys may have changed.
 * kvp_election_answer handles etcd's answer. */
void kvp_election_tick(kvp_election_t *e, uint64_t now_ns);
void kvp_election_changed(kvp_election_t *e);
void kvp_election_answer(kvp_election_t *e, const kvp_etcd_answer_t *answer, uint64_t now_ns);
/* kvp_election_take gives the next request to etcd: false where there is none. Each is answered once. */
bool kvp_election_take(kvp_election_t *e, kvp_etcd_op_t *op_out);

/* kvp_election_resign gives up the lead, so that another master takes it: until one has, or for
 * half a TTL, this master is no candidate. It may not act from then on. kvp_election_above: our
 * next term is above the given one. kvp_election_is_spent: all terms are used up; no master can be
 * elected. */
void kvp_election_resign(kvp_election_t *e);
void kvp_election_above(kvp_election_t *e, uint32_t term);
bool kvp_election_is_spent(const kvp_election_t *e);

/* kvp_election_want_insync: the members of the in-sync set that are to be written, ourselves
 * included. kvp_election_insync: all that may be members by what stands in etcd; each of them could
 * be elected. */
void kvp_election_want_insync(kvp_election_t *e, const kvp_election_set_t *set);
void kvp_election_insync(const kvp_election_t *e, kvp_election_set_t *set_out);
bool kvp_election_set_has(const kvp_election_set_t *set, const char *id);

/* kvp_election_knows_leader: another master leads, by etcd's recent answer. */
bool kvp_election_knows_leader(const kvp_election_t *e, uint64_t now_ns);

/* kvp_election_is_level: our log, which ends in log_term, has every acknowledged record of the
 * previous leader: the leader of level_term announced the end of its records, and etcd knows no
 * leader between us. */
bool kvp_election_is_level(const kvp_election_t *e, uint32_t log_term, uint32_t level_term);

/* kvp_election_act_until: a leader may act until then; 0 = it may not. */
uint64_t kvp_election_act_until(const kvp_election_t *e);

#endif
