/* SPDX-License-Identifier: Apache-2.0
 * The election of the leading master: a state machine between a master and etcd. Its inputs are time, and changes and
 * answers of etcd; its outputs are requests to etcd and this master's role. It has no sockets, threads or clocks:
 * ha.c runs it, and so does the simulator. ADR 0031 has the keys and the rules.
 *
 * All times are CLOCK_BOOTTIME: a lease counts from before its keep-alive was sent. */
#ifndef KVP_MASTER_HA_ELECTION_H
#define KVP_MASTER_HA_ELECTION_H

#include "master/ha/etcd.h"

#define KVP_ELECTION_ID_MAX 32u
#define KVP_ELECTION_ADDRESS_MAX 280u
#define KVP_ELECTION_MEMBERS_MAX 16u /* limit of the masters of a cluster */
#define KVP_ELECTION_CLUSTER_MAX 128u

typedef enum {
    KVP_ELECTION_FOLLOWS, /* another master leads, or none leads */
    KVP_ELECTION_WON, /* the leader key is ours, the term is not written yet */
    KVP_ELECTION_LEADS, /* this master leads in the written term */
    KVP_ELECTION_RESIGNS, /* the leader key is still ours, and will be removed */
} kvp_election_role_t;

/* The state of a request to etcd. */
typedef enum {
    KVP_ELECTION_IDLE, /* no request */
    KVP_ELECTION_DUE, /* made; kvp_election_take will return it */
    KVP_ELECTION_SENT, /* sent; its answer is awaited */
} kvp_election_request_t;

/* This master's entry in etcd's list of masters. */
typedef enum {
    KVP_ELECTION_UNLISTED,
    KVP_ELECTION_LISTED_READING, /* listed as a master that still reads its log */
    KVP_ELECTION_LISTED_READY, /* listed as a master that may lead */
} kvp_election_listing_t;

/* The registration of a master in etcd. */
typedef struct {
    char id[KVP_ELECTION_ID_MAX + 1]; /* "" = no master */
    char address[KVP_ELECTION_ADDRESS_MAX + 1]; /* HOST:PORT for clients, nodes and standbys */
    char http[KVP_ELECTION_ADDRESS_MAX + 1]; /* HOST:PORT for HTTP; "" = none */
    bool is_reading; /* flag: the master still reads its log, and may lead afterwards */
} kvp_election_master_t;

typedef struct {
    char ids[KVP_ELECTION_MEMBERS_MAX][KVP_ELECTION_ID_MAX + 1];
    uint32_t n;
    /* flag: the set's writer was elected but may lack acknowledged records, and has not led yet */
    bool is_unsafe;
} kvp_election_set_t;

/* The pool's identity, as it is in etcd. */
typedef struct {
    bool is_known;
    uint8_t pool_id[16];
    uint64_t digest_seed;
} kvp_election_pool_t;

typedef struct {
    char cluster[KVP_ELECTION_CLUSTER_MAX + 1];
    kvp_election_master_t self;
    uint32_t ttl_s;
    uint64_t rng; /* state of the random numbers for the candidates' waiting times */
    uint64_t now_ns;
    kvp_election_role_t role;
    kvp_etcd_op_t op; /* the unanswered request, or the last one */
    kvp_election_request_t op_state;
    uint32_t op_purpose; /* purpose of the request: an ASK_* value of election.c */
    uint64_t next_id;
    uint64_t again_ns; /* no request before this time, because the last one failed */

    /* Our lease in etcd. */
    int64_t lease; /* 0 = no lease */
    kvp_etcd_op_t beat; /* the lease's keep-alive request, in parallel to `op` */
    kvp_election_request_t beat_state;
    uint64_t beat_due_ns;
    uint64_t alive_ns; /* sending time of the last answered renewal, or of the grant */
    /* our registration under this lease; the registration that the last request asked for */
    kvp_election_listing_t listing, asked_listing;
    /* since when another process is registered with our id, before our own registration; 0 = none is */
    uint64_t twin_ns;

    uint64_t read_due_ns; /* time of the next read of etcd's keys; 0 = at once, because they may have changed */
    /* The fields down to masters_n: the keys of etcd, as this master last read or wrote them. */
    kvp_election_master_t leader;
    uint32_t leader_term;
    int64_t leader_revision; /* create revision of the leader key; 0 = there is no leader */
    int64_t leader_lease;
    uint32_t term; /* value of the term key: the highest term that a leader has written */
    /* highest term in the logs of the registered masters, as each wrote it at its registration */
    uint32_t masters_term;
    int64_t term_revision; /* revision of the last change of the term key; 0 = there is no such key */
    kvp_election_set_t insync;
    int64_t insync_revision;
    kvp_election_pool_t pool;
    kvp_election_master_t masters[KVP_ELECTION_MEMBERS_MAX];
    uint32_t masters_n;

    /* The state of this master. */
    kvp_election_pool_t own_pool;
    uint32_t log_term, least_term; /* term of our log; our next term will be above least_term */
    bool is_ready; /* flag: our log is read, so this master may lead */
    bool is_doubted; /* flag: the end of our log may be missing */
    uint64_t absent_ns; /* when this master read that no master leads, plus a random delay so that not all campaign at
                           once; 0 = a master leads */
    uint64_t stand_off_ns; /* this master is no candidate before this time */
    bool is_unsafe; /* flag: this master was elected although other masters may have more records */
    int64_t own_revision; /* create revision of the leader key, while it is ours */
    uint32_t own_term;
    uint32_t term_before; /* etcd's term before own_term */
    kvp_election_set_t wanted_insync;
    /* all members of sets that may be in etcd, because the writes of these sets are not answered */
    kvp_election_set_t asked_insync;
    bool is_insync_due;
    uint64_t elections; /* number of elections that this process won */
} kvp_election_t;

/* kvp_election_init copies the cluster's name and this master's registration. */
void kvp_election_init(kvp_election_t *e, const char *cluster, const kvp_election_master_t *self, uint32_t ttl_s,
                       uint64_t seed, uint64_t now_ns);

/* kvp_election_ready: is_ready = the log is read, so this master may lead. is_doubted = the log's end may be missing.
 * log_term is the log's last term. *pool is the pool of the data directory; with is_known false there is none yet,
 * and *pool is a new identity that is written to etcd with the first term. */
void kvp_election_ready(kvp_election_t *e, bool is_ready, bool is_doubted, uint32_t log_term,
                        const kvp_election_pool_t *pool);
/* kvp_election_tick advances the clock. kvp_election_changed: etcd's keys may have changed. kvp_election_answer
 * handles an answer of etcd. */
void kvp_election_tick(kvp_election_t *e, uint64_t now_ns);
void kvp_election_changed(kvp_election_t *e);
void kvp_election_answer(kvp_election_t *e, const kvp_etcd_answer_t *answer, uint64_t now_ns);
/* kvp_election_take returns the next request to etcd; false: there is none. The caller answers each request once. */
bool kvp_election_take(kvp_election_t *e, kvp_etcd_op_t *op_out);

/* kvp_election_resign gives up the lead, so that another master can take it. From then on this master must not act as
 * the leader. It is no candidate until another master has taken the lead, or for half a TTL. kvp_election_above: our
 * next term must be above the given one. kvp_election_is_spent returns true if no term is left, so no master can be
 * elected. */
void kvp_election_resign(kvp_election_t *e);
void kvp_election_above(kvp_election_t *e, uint32_t term);
bool kvp_election_is_spent(const kvp_election_t *e);

/* kvp_election_want_insync sets the members of the in-sync set to write to etcd, this master included.
 * kvp_election_insync returns all masters that may be members in etcd; each of them could be elected. */
void kvp_election_want_insync(kvp_election_t *e, const kvp_election_set_t *set);
void kvp_election_insync(const kvp_election_t *e, kvp_election_set_t *set_out);
bool kvp_election_set_has(const kvp_election_set_t *set, const char *id);

/* kvp_election_knows_leader returns true if another master leads, according to a recent answer of etcd. */
bool kvp_election_knows_leader(const kvp_election_t *e, uint64_t now_ns);

/* kvp_election_is_level returns true if our log, which ends in log_term, has every acknowledged record of the
 * previous leader: the leader of level_term announced the end of its records, and etcd knows no leader in between. */
bool kvp_election_is_level(const kvp_election_t *e, uint32_t log_term, uint32_t level_term);

/* kvp_election_act_until returns the time until which this master may act as the leader; 0 = it may not. */
uint64_t kvp_election_act_until(const kvp_election_t *e);

#endif
