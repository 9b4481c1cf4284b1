/* SPDX-License-Identifier: Apache-2.0
 * A simulated node: its shell's state, shared by sim_node.c and sim_lane.c. */
#ifndef KVP_TESTS_SIM_NODE_H
#define KVP_TESTS_SIM_NODE_H

#include "node/core/node.h"
#include "common/buf.h"
#include "tests/sim/sim_data.h"
#include "tests/sim/sim_tier.h"

typedef enum { LINK_DOWN, LINK_GREETING, LINK_SWEEPING, LINK_MOUNTING, LINK_REPORTING, LINK_UP } link_state_t;

/* A quiesce that waits for lanes. */
typedef struct {
    uint64_t number; /* 0 = unused */
    uint32_t left; /* lanes that were at something when it began */
} round_t;

typedef struct process {
    node_t *node;
    kvp_node_proc_t core;
    uint32_t client, life;
    bool is_known; /* to the core */
    struct process *next;
} process_t;

/* A transfer that waits in a lane. */
typedef struct job {
    say_t say;
    struct job *next;
} job_t;

/* Who may store by shared memory, as the keeper has it. */
typedef struct kept_writer {
    uint32_t client, life;
    uint64_t incarnation;
    struct kept_writer *next;
} kept_writer_t;

/* A client's connection, and the lane that serves its transfers. */
typedef struct attached {
    node_t *node;
    conn_t *conn;
    kvp_node_att_t att;
    mem_t *mem;
    uint32_t client, life; /* whose process it is */
    job_t *jobs, **jobs_end;
    uint32_t at; /* units of the first job that are done */
    bool is_busy; /* between a look at the guarding word and the store that it allowed */
    bool is_ended;
    uint32_t rounds; /* bit i: rounds[i] waits for it */
    struct attached *next;
} attached_t;

struct node {
    sim_t *sim;
    party_t party;
    uint32_t index;
    rng_t rng;
    kvp_node_core_t *core;
    mem_t *mem; /* NULL before the first Hello */
    uint64_t mem_seq;
    bool is_fresh;

    conn_t *link;
    link_state_t state;
    bool is_sweeping; /* an event goes on with it */
    uint64_t request, incarnation, heard_ns, beat_ns, ttl_ns;
    uint32_t segment_id;
    uint64_t report_request; /* the page that is not answered */
    bool is_report_whole, is_report_last;
    kvp_buf_t out, page;

    round_t rounds[KVP_NODE_ROUNDS_MAX];
    attached_t *attached;
    process_t *processes;
    tier_t tier;
    uint64_t undrained; /* connection by which it said, after the faults, that it is not to be drained */
    uint32_t kept_term; /* what the keeper's book says: of this and of the rest of the core, */
    kvp_buf_t kept;
    kept_writer_t *kept_writers; /* and the writers that it has, of this memory */
};

void node_settle(sim_t *s, node_t *n);
uint64_t node_ask(sim_t *s, node_t *n, uint8_t op, const void *head, const void *tail, size_t len); /* its number */
void node_answer(sim_t *s, node_t *n, uint8_t op, uint64_t request, const uint8_t *flags, uint32_t count);
void node_round_passed(sim_t *s, node_t *n, round_t *r);

/* sim_lane.c */
void lane_add(sim_t *s, attached_t *a, const say_t *say);
void lane_end(attached_t *a); /* nothing is begun any more; a store that was allowed still lands */
void lanes_end_all(node_t *n); /* nor that: the memory is gone */
uint32_t lanes_await(node_t *n, round_t *r); /* how many are at something; each will call node_round_passed */

/* For nodes: a client's process died. Also when the node comes to hear of that process only later. */
void node_process_died(sim_t *s, uint32_t client, uint32_t life, uint64_t at_ns);
uint64_t client_proof_ns(sim_t *s, uint32_t client, uint32_t life); /* when it was, or will be, provably dead */

#endif
