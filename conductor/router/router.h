/* SPDX-License-Identifier: Apache-2.0
 * Where a request should go: to the instance that is likely to give its first token soonest. A state machine without sockets and clocks: who asks tells what each instance holds of the
 * prompt; the router knows what it has sent where, and what instances say of their load. ADR 0034.
 *
 * The estimate of a target (an instance's rank) is the sum of
 *   - its queue: until when it is busy with the prompts that were sent there, and what each request under way costs,
 *   - the time to compute what it has not, at `compute_tokens_s`,
 *   - the time to fetch what lies in slower tiers, at their rates; never more than to compute it,
 * less `affinity_ms` where the session was there before. So a prefix on a busy instance loses to an idle one where computing it again is sooner.
 */
#ifndef KVP_CONDUCTOR_ROUTER_ROUTER_H
#define KVP_CONDUCTOR_ROUTER_ROUTER_H

#include "common/base.h"

#define KVP_ROUTER_TARGETS_MAX 16384u /* twice the publishers: those that left stay until their routes have ended */
#define KVP_ROUTER_OPEN_MAX 65536u /* routes; beyond, the oldest is taken for done */
#define KVP_ROUTE_NONE UINT32_MAX

typedef struct {
    double compute_tokens_s; /* that an instance computes of prompts */
    double cpu_tokens_s, disk_tokens_s; /* and that it reads from there */
    double request_ms; /* what a request that is decoded costs the next one */
    double affinity_ms; /* what it is worth to stay with one instance */
    double open_s; /* after which a route is taken for done */
    double pending_s; /* for which a prompt that was sent somewhere counts there without its events */
} kvp_router_weights_t;
extern const kvp_router_weights_t kvp_router_defaults;

typedef struct kvp_router kvp_router_t;

/* NULL = no memory. */
kvp_router_t *kvp_router_create(const kvp_router_weights_t *weights);
void kvp_router_destroy(kvp_router_t *r);

/* kvp_router_target finds the target of that rank of that instance, or makes it. The number is valid until the next kvp_router_sweep. KVP_ROUTE_NONE: there are too many.
 * kvp_router_find never makes one; KVP_ROUTE_NONE: there is none. */
uint32_t kvp_router_target(kvp_router_t *r, const char *instance, uint32_t rank);
uint32_t kvp_router_find(const kvp_router_t *r, const char *instance, uint32_t rank);
/* kvp_router_sweep drops each target that kvp_router_target was not called for since the last sweep, unless a route is open there. The caller first calls kvp_router_target for each
 * instance that is registered. */
void kvp_router_sweep(kvp_router_t *r);
uint32_t kvp_router_targets(const kvp_router_t *r);
/* kvp_router_note: what the target reports: requests that it runs, and that wait. */
void kvp_router_note(kvp_router_t *r, uint32_t target, uint32_t running, uint32_t waiting, uint64_t now_ns);
/* kvp_router_note_there: of all ranks of that instance. What is not there is chosen only where nothing is. */
void kvp_router_note_there(kvp_router_t *r, const char *instance, bool is_there);

/* Of a target that may be chosen, in tokens from the beginning of the prompt. */
typedef struct {
    uint32_t target;
    uint32_t matched; /* on any tier */
    uint32_t gpu,
        cpu; /* of these, the run on GPU alone, and on CPU alone: what lies behind the longer of them comes from disk */
    bool is_left_out; /* its server is chosen only where all others are left out, or not there */
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
    uint32_t at; /* in candidates; KVP_ROUTE_NONE = there was none */
    uint64_t id; /* of the route, for kvp_router_done; 0 = it is not remembered */
    uint32_t matched; /* tokens that count as there, */
    uint32_t pending; /* and such of them as no event has told yet */
    double queue_ms, compute_ms, fetch_ms;
    bool has_affinity;
    uint32_t longest; /* in candidates: who has most of the prompt, */
    double longest_ms; /* and what that one was estimated at */
    bool is_away, is_longest_away; /* the one that was chosen, and the longest: their servers are not there */
    uint32_t open, running, waiting; /* of the one that was chosen, before */
} kvp_route_t;

void kvp_router_pick(kvp_router_t *r, const kvp_route_ask_t *ask, const kvp_candidate_t *candidates, uint32_t n,
                     uint64_t now_ns, kvp_route_t *out);
/* kvp_router_done: false: there is no such route any more. kvp_router_tick, now and then: routes that are too old are done. */
bool kvp_router_done(kvp_router_t *r, uint64_t id, uint64_t now_ns);
void kvp_router_tick(kvp_router_t *r, uint64_t now_ns);

typedef struct {
    uint64_t routes, done, expired;
    uint32_t open;
} kvp_router_stats_t;
void kvp_router_stats(const kvp_router_t *r, kvp_router_stats_t *out);
uint32_t kvp_router_open(const kvp_router_t *r, uint32_t target); /* routes that are under way there */

#endif
