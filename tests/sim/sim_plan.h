/* SPDX-License-Identifier: Apache-2.0
 * A plan: what a seed makes happen. It is a list of choices (calls of clients, faults), each of which draws its details
 * from a stream of its own, so that one that is left out changes nothing in the others. Shrinking leaves choices out.
 */
#ifndef KVP_TESTS_SIM_PLAN_H
#define KVP_TESTS_SIM_PLAN_H

#include "master/core/api/master.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* splitmix64 */
typedef struct {
    uint64_t state;
} rng_t;

uint64_t rng_next(rng_t *rng);
uint64_t rng_below(rng_t *rng, uint64_t n); /* 0 to n-1; n is not 0 */
uint64_t rng_between(rng_t *rng, uint64_t lo, uint64_t hi); /* both included */
uint64_t rng_log(rng_t *rng, uint64_t lo, uint64_t hi); /* each power of two as likely as the next */
bool rng_chance(rng_t *rng, uint32_t per_mille);
rng_t rng_fork(uint64_t seed, uint64_t a, uint64_t b); /* a stream of its own for each (a, b) */

typedef enum {
    CHOICE_CALL, /* who: a thread of a client */
    CHOICE_KILL_CLIENT,
    CHOICE_STOP_CLIENT,
    CHOICE_STOP_NODE,
    CHOICE_STOP_MASTER,
    CHOICE_CUT_CONN,
    CHOICE_PARTITION,
    CHOICE_CRASH_NODE,
    CHOICE_CRASH_MASTER,
    CHOICE_STEP_CLOCK,
    CHOICE_CUT_HOST, /* a host from the master: its connections break, and none can be made for a while */
    CHOICE_SUCCEED, /* the next master begins, and the old one lives on for a while */
    CHOICE_DRAIN, /* a node, but never the last one; or no more */
    CHOICE_DRAIN_UNHEARD, /* a node, and the master does not hear the one that gets copies */
    CHOICE_KINDS,
} choice_kind_t;

#define THREADS_MAX 2u /* of a client */

/* What a plan is about. Each profile has seeds of its own: a new one leaves the histories of the others as they are. */
typedef enum {
    PROFILE_MIXED, /* everything that is not of another profile */
    PROFILE_CUT, /* known locations, read again and again by clients that are cut off from the master and not from
                    nodes, and removals meanwhile that wait for them */
    PROFILE_JOURNAL, /* the master has a journal, and dies: with a node away, or twice, or losing the journal */
    PROFILE_GROUPS, /* objects that appear and are evicted together, in a pool that is too small for all of them */
    PROFILE_TERMS, /* the next master begins while the old one lives, and some are with the one, some with the other */
    PROFILE_FULL, /* a pool full of what is probed, or left unfinished by clients that stop and die, with nodes that
                     break off */
    PROFILE_MASTER_HANDOVER, /* the next master comes soon, while writers of the one before are in the midst of a put,
                                and go on */
    PROFILE_USES, /* a full pool in which nothing fails and all is of one length: what goes is what nobody uses */
    PROFILE_DELAYED_MESSAGES, /* what is said arrives late, at writers who begin when their master is no more */
    PROFILE_SUMS, /* what clients know is evicted, a group at a time, and put again; and they read by sums alone */
    PROFILE_PARTITION, /* some only read, and go on where they, or the nodes that they read from, are away from the
                          master */
    PROFILE_SLOTS, /* the next master comes while writers sleep between a look at the word and the descriptor's store */
    PROFILE_TIERS, /* what is evicted is on SSD tiers: read again, removed, put anew, while nodes and masters die */
    PROFILE_KEEPERS, /* nodes die while writers are at their memory, and the next process adopts it */
    PROFILE_STANDBYS, /* a standby follows the log, and leads when the master dies, or is taken for dead and lives on */
    PROFILE_EPOCHS, /* one bumps after the other, and half of what clients ask is for the epoch that they know */
    PROFILE_MOVES, /* nodes are drained, and not any more, while nodes and masters die */
    PROFILE_KINDS,
} profile_t;

typedef struct {
    uint8_t kind;
    uint8_t client, thread; /* of a call */
    uint64_t at_ns; /* of a fault; of a call: pause before it */
    uint32_t number; /* its place in the whole plan: seeds its details */
} choice_t;

typedef struct {
    uint64_t seed;
    profile_t profile;
    uint32_t nodes, clients, threads;
    uint32_t tenants;
    uint32_t keys; /* that clients of one tenant use */
    uint32_t chunk_n; /* of 64 KiB, a node */
    uint32_t len_max; /* bytes of an object */
    bool has_one_len; /* all have that many */
    bool has_pins;
    bool is_leasing; /* about known locations: few keys, read again and again, while nodes and masters fall silent */
    uint32_t sleeps_per_mille; /* stores of a descriptor before which the thread loses its processor for long */
    uint32_t off_cpu_per_mille; /* steps of a copy before which the thread loses its processor */
    uint32_t digest_bits; /* 128, or few: keys collide */
    bool tenants_collide; /* a key has the same digest for all of them */
    uint32_t late_per_mille; /* packets that take long */
    uint32_t slanders_per_mille; /* batches of gets of which one object is called unreadable afterwards, and is not */
    uint32_t lies_per_mille; /* heartbeats and mounts of nodes that name a term above the one that the node obeys */
    uint32_t twice_per_mille; /* frames that may be repeated, and are */
    uint32_t replicas_max;
    uint32_t locations; /* that a session keeps; 0 = none */
    bool wants_sums;
    uint32_t sums_per_mille; /* clients whose reads by TCP can do without descriptors */
    uint32_t group_keys; /* keys of a group: the next so many by number are one; 0 = no groups */
    bool takes_hours; /* who stops may do so for hours */
    uint64_t attempt_bytes; /* that a client may have unfinished; 0 = any number */
    uint32_t probes_per_mille; /* of the calls, over and above the usual */
    uint64_t node_grace_ns; /* for which the master keeps what a lost node has */
    bool has_journal;
    bool has_standby;
    bool has_tiers; /* each node has one */
    bool has_moves; /* nodes carry out COPY, and are drained */
    bool has_tasks; /* clients have objects copied and moved by tasks */
    bool has_hot; /* what other hosts read now and then is hot, and gets a copy */
    bool has_room; /* for all that there may be on one node: nothing is evicted */
    bool has_keepers; /* memory outlives most deaths of its node */
    kvp_log_sync_t log_sync;
    uint32_t disk_power_per_mille; /* of the master's crashes, those in which its machine loses its power */
    uint32_t disk_torn_per_mille, disk_lost_per_mille,
        disk_stuck_per_mille; /* of its crashes, of the times it is written to */
    choice_t *choices;
    uint32_t choices_n;
} plan_t;

void plan_make(plan_t *plan, profile_t profile, uint64_t seed);
void plan_fini(plan_t *plan);
const char *choice_name(choice_kind_t kind);
const char *profile_name(profile_t profile);
bool profile_find(const char *name, profile_t *profile_out);

/* plan_keep leaves out every choice whose number is not in the list "3,7,12-15", or "none". False = not such a list. */
bool plan_keep(plan_t *plan, const char *list);

#endif
