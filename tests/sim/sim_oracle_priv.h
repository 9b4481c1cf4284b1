/* SPDX-License-Identifier: Apache-2.0
 * The oracle's state, shared by sim_oracle.c (what clients are told, and the end) and sim_watch*.c (what the master
 * hears and says). */
#ifndef KVP_TESTS_SIM_ORACLE_PRIV_H
#define KVP_TESTS_SIM_ORACLE_PRIV_H

#include "proto/wire.h"
#include "tests/sim/sim_oracle.h"

#define KEYS_MAX 128u
#define BUCKETS 64u
#define SEGMENTS_MAX 512u
#define CALL_KEYS_MAX 8u

/* A question that the master has not answered. */
typedef struct ask {
    uint64_t conn, request;
    uint8_t op;
    kvp_frame_t frame; /* in a packet, which stays */
    uint64_t heard_ns;
    uint64_t must_hold; /* a removal: keys, a bit each, that a probe protects */
    uint64_t must_take; /* a put: keys, a bit each, whose writer is silent */
    struct attempt *others[CALL_KEYS_MAX]; /* a put: who has its key */
    struct ask *next;
} ask_t;

/* An attempt that got its places. */
typedef struct attempt {
    conn_t *conn;
    uint64_t id;
    kvp_digest_t digest;
    grant_t *grants[KVP_REPLICAS_MAX];
    uint32_t grants_n;
    bool is_upsert;
    bool is_over; /* its writer said so: committed, or aborted */
    bool is_drained; /* and, of one that is aborted, that none of its stores is under way */
    uint32_t asked_n; /* puts of its key that may have taken it since, or found it gone */
    struct attempt *next;
} attempt_t;

typedef struct hold {
    uint64_t conn, ticket;
    uint64_t until_ns; /* by the master's clock; UINT64_MAX = it has no such end, and is no reservation */
    uint64_t begun_ns;
    const kvp_digest_t *asked; /* what a reservation was asked for; in a packet, which stays */
    uint32_t asked_n;
    grant_t **grants;
    uint32_t grants_n;
    struct hold *next;
} hold_t;

typedef struct known {
    grant_t *grant;
    bool
        is_forced; /* tickets no longer protect it: removed with force, upserted, or put anew while its node was away */
    bool was_missed; /* the master said that its key does not exist */
    struct known *next;
} known_t;

/* A buffer that was given back to its caller. */
typedef struct returned {
    const uint64_t *units;
    uint32_t n;
    struct returned *next;
} returned_t;

struct oracle {
    put_t *keys[KEYS_MAX]; /* newest first */
    put_t **puts; /* by id */
    uint64_t puts_n, puts_cap;
    ask_t *asks;
    attempt_t *attempts;
    hold_t *holds;
    group_t *groups;
    known_t *known[BUCKETS]; /* by digest */
    struct {
        uint32_t term, id;
        mem_t *mem;
    } segments[SEGMENTS_MAX];
    uint32_t segments_n;
    uint32_t terms[NODES_MAX]; /* highest that each node has obeyed */
    returned_t *returned;
    struct refusal *refusals; /* of the step under way */
    struct replaced *replaced; /* in the step under way */
    struct pending *tier_pending; /* answers about tiers that were not heard */
    struct pending *loaded; /* that was heard just now; NULL = nothing was loaded */
    struct copy_pending *copies, *copied; /* orders whose answers were not heard; that was heard just now */
    struct task *tasks; /* that were begun, newest first */
    struct touched *touched; /* by digest, in plans about uses */
    const grant_t *evicted; /* in the step under way: of these the one that was put last */
    uint64_t pool_largest; /* bytes that were mounted at one time */
    uint64_t took_over_ns; /* when the last master did, by its clock */
    uint64_t pins_over_ns; /* since when there are more soft pins than may be; 0 = there are not */
};

/* A put that the master refused, saying that no room will come. */
typedef struct refusal {
    uint32_t tenant;
    uint64_t len;
    struct refusal *next;
} refusal_t;

void oracle_no_space(sim_t *s, uint32_t tenant, uint64_t len);

/* All that is known of a digest and still matters: the first, and the next behind it; NULL = none. */
known_t *known_first(sim_t *s, kvp_digest_t digest);
known_t *known_next(known_t *known, kvp_digest_t digest);

/* ---- sim_kept.c */
/* What a client is told to be gone: that key (NULL: all of the tenant's), where it was committed before then. */
typedef struct {
    uint32_t tenant;
    const kvp_digest_t *digest;
    uint64_t before_ns;
} gone_t;
void kept_check(sim_t *s, const gone_t *gone);
void kept_check_older(sim_t *s, const grant_t *newer); /* than that one, which replaced them by its commit */

/* What a ticket on that digest protects, of keys and of groups, is added to the hold. */
#define HELD_A_DIGEST 16u /* at most so many grants */
void hold_found(sim_t *s, uint32_t tenant, hold_t *h, kvp_digest_t digest);
void hold_group(sim_t *s, uint32_t tenant, hold_t *h, kvp_digest_t digest);
bool is_forced(sim_t *s, const grant_t *g); /* it may go, whoever holds it */

/* ---- sim_present.c */
void says_presented(sim_t *s, conn_t *conn, uint32_t tenant, const ask_t *ask, const kvp_frame_t *f);
/* holds_carry: there is another master, to which what is held may be presented. is_alone: the one before is no more;
 * one that lives on may still take it away, and tell nodes so. */
void holds_carry(sim_t *s, bool is_alone);
bool is_carried(const sim_t *s, const grant_t *g); /* and still is */

/* ---- sim_groups.c */
void group_join(sim_t *s, grant_t *grant, const kvp_wire_group_t *want);
void group_commit_heard(const grant_t *m);
bool group_must_show(const grant_t *m); /* a committed object: its group hides it never */
void group_missed(sim_t *s, const grant_t *m); /* one of a group that may hide it was not found */
void group_shown(sim_t *s, grant_t *m); /* a reader was told of it */
void group_key_shown(sim_t *s, uint32_t tenant, kvp_digest_t digest); /* and of that key */
void group_looked_up(sim_t *s, uint32_t tenant, kvp_digest_t digest, bool is_found);
/* group_hold: what a ticket on the group protects, the newest of each number; returns how many of them. Of a group
 * without a size it is not known which of those whose retirement was not ordered yet are still in it: none. */
uint32_t group_hold(sim_t *s, uint32_t tenant, kvp_digest_t digest, grant_t **grants, uint32_t max);
void group_may_leave(sim_t *s, uint32_t tenant,
                     const kvp_digest_t *digest); /* one at a time; NULL: any of the tenant's */
void group_bumped(sim_t *s, uint32_t tenant);
void group_retired(grant_t *gone);
void groups_end(sim_t *s);

/* ---- sim_task.c */
void task_heard(sim_t *s, const kvp_frame_t *f);
void task_said(sim_t *s, uint32_t tenant, const ask_t *ask, const kvp_frame_t *f);

/* ---- sim_time.c: what must not wait for long */
void time_heard(sim_t *s, const conn_t *conn, ask_t *ask);
void time_said(sim_t *s, const ask_t *ask);
void time_put_said(sim_t *s, const ask_t *ask, uint32_t at, kvp_err_t err); /* of one key */

/* ---- sim_room.c */
void room_granted(sim_t *s, const conn_t *conn); /* a client got places */

/* ---- sim_uses.c: in which order what is not used is evicted */
void uses_touch(sim_t *s, kvp_digest_t digest); /* it is put, or read */
void uses_hold_ended(sim_t *s, const hold_t *h);
void uses_evicted(sim_t *s, const grant_t *gone);
void uses_step_ends(sim_t *s);

/* ---- sim_promise.c */
void promise_commit_heard(sim_t *s, const grant_t *grant);
void promise_retired(sim_t *s, const grant_t *grant);
void promise_step_ends(sim_t *s);

/* Whether nothing has happened yet that allows it to be gone. */
static inline bool
grant_is_served_for_ever(const grant_t *g)
{
    return g->is_committed && !g->is_retired && !g->is_lost && !g->mem->is_gone;
}

#endif
