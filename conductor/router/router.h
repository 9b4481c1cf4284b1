/* SPDX-License-Identifier: Apache-2.0
 * Chooses the target of a request: the instance that is likely to give its first token soonest. A
 * state machine without sockets and clocks: the caller passes each instance's part of the prompt;
 * the router knows its own earlier choices, and the instances' reported load. ADR 0034.
 *
 * The estimate of a target (an instance's rank) is the sum of
 *   - its queue: until when it is busy with the prompts sent there, and the cost of each request under way,
 *   - the time to compute the missing part, at `compute_tokens_s`,
 *   - the time to fetch the part in slower tiers, at their rates; never more than computing it,
 * less `affinity_ms` if the session was there before. So a prefix on a busy instance loses to an
 * idle instance that would compute it again sooner. */
#ifndef KVP_CONDUCTOR_ROUTER_ROUTER_H
#define KVP_CONDUCTOR_ROUTER_ROUTER_H

#include "common/base.h"

#define KVP_ROUTER_TARGETS_MAX 16384u /* twice the publishers: removed ones stay until their routes have ended */
#define KVP_ROUTER_OPEN_MAX 65536u /* routes; beyond, the oldest counts as done */
#define KVP_ROUTE_NONE UINT32_MAX

typedef struct {
    double compute_tokens_s; /* of prompts, by an instance */
    double cpu_tokens_s, disk_tokens_s; /* and read from these media */
    double request_ms; /* cost of a decoding request for the next one */
    double affinity_ms; /* value of staying with one instance */
    double open_s; /* after which a route is taken for done */
    double pending_s; /* time for which a sent prompt counts there without its events */
} kvp_router_weights_t;
extern const kvp_router_weights_t kvp_router_defaults;

typedef struct kvp_router kvp_router_t;

/* NULL = no memory. */
kvp_router_t *kvp_router_create(const kvp_router_weights_t *weights);
void kvp_router_destroy(kvp_router_t *r);

/* kvp_router_target finds or makes the target of the rank of the instance. The number is valid
 * until the next kvp_router_sweep. KVP_ROUTE_NONE: too many. kvp_router_find makes none;
 * KVP_ROUTE_NONE: unknown. */
uint32_t kvp_router_target(kvp_router_t *r, const char *instance, uint32_t rank);
uint32_t kvp_router_find(const kvp_router_t *r, const char *instance, uint32_t rank);
/* kvp_router_sweep drops each target that kvp_router_target was not called for since the last
 * sweep, unless a route is open there. The caller first calls kvp_router_target for each instance
 * that is registered. */
void kvp_router_sweep(kvp_router_t *r);
/* kvp_router_note records the target's report: its running and waiting requests. */
void kvp_router_note(kvp_router_t *r, uint32_t target, uint32_t running, uint32_t waiting, uint64_t now_ns);
/* kvp_router_note_there: for all ranks of the instance. An absent instance is chosen only if all
 * are. */
void kvp_router_note_there(kvp_router_t *r, const char *instance, bool is_there);

/* Of a target that may be chosen, in tokens from the beginning of the prompt. */
typedef struct {
    uint32_t target;
    uint32_t matched; /* on any tier */
    uint32_t gpu,
        cpu; /* of these, the run on GPU alone, and on CPU alone: tokens after the longer of them come from disk */
    bool is_left_out; /* its server is chosen only if all others are left out, or absent */
} kvp_candidate_t;

typedef struct {
    uint32_t tokens; /* of the prompt; 0 = they are not known */
    uint32_t block_size;
    const uint64_t *hashes; /* of its whole blocks; NULL = not known */
    uint32_t blocks;
    uint64_t space; /* hash of the blocks' namespace (kvp_space_hash): equal tokens of two namespaces are two prompts */
    uint64_t session; /* hash of its name; 0 = none */
} kvp_route_ask_t;

typedef struct {
    uint32_t at; /* in candidates; KVP_ROUTE_NONE = none */
    uint64_t id; /* of the route, for kvp_router_done; 0 = it is not remembered */
    uint32_t matched; /* tokens that count as cached, */
    uint32_t pending; /* and the part of them that no event has reported yet */
    double queue_ms, compute_ms, fetch_ms;
    double all_ms; /* the sum of them, less the value of the session */
    bool has_affinity;
    uint32_t longest; /* in candidates: who has most of the prompt, */
    double longest_ms; /* and its estimate */
    bool is_away, is_longest_away; /* the chosen one, and the longest: their servers are absent */
    uint32_t open, running, waiting; /* of the chosen one, before */
} kvp_choice_t;

void kvp_router_pick(kvp_router_t *r, const kvp_route_ask_t *ask, const kvp_candidate_t *candidates, uint32_t n,
                     uint64_t now_ns, kvp_choice_t *out);
/* kvp_router_done: false: the route does not exist any more. kvp_router_tick, now and then, ends
 * routes that are too old. */
bool kvp_router_done(kvp_router_t *r, uint64_t id, uint64_t now_ns);
void kvp_router_tick(kvp_router_t *r, uint64_t now_ns);

typedef struct {
    uint64_t routes, done, expired;
    uint32_t open;
} kvp_router_stats_t;
void kvp_router_stats(const kvp_router_t *r, kvp_router_stats_t *out);

#endif
