/* SPDX-License-Identifier: Apache-2.0
 * Chooses the target of a request: the instance that will probably return its first token soonest. A state machine
 * without sockets and clocks: the caller passes the part of the prompt that each instance has; the router knows its
 * own earlier choices, and the reported load of the instances. ADR 0034.
 *
 * The estimated time to the first token at a target (a rank of an instance) is the sum of
 *   - its queue: the time to compute the prompts sent there, and the cost of each request in progress,
 *   - the time to compute the missing part, at `compute_tokens_s`,
 *   - the time to fetch the part in slower tiers, at their rates; never more than computing it,
 * less `affinity_ms` if the session was there before. So an idle instance that computes a prefix again wins over a
 * busy instance that has the prefix, if it is sooner. */
#ifndef KVP_CONDUCTOR_ROUTER_ROUTER_H
#define KVP_CONDUCTOR_ROUTER_ROUTER_H

#include "common/base.h"

#define KVP_ROUTER_TARGETS_MAX 16384u /* twice the most publishers: open routes keep targets of removed ones */
#define KVP_ROUTER_OPEN_MAX 65536u /* most open routes; a route expires when this many later routes have begun */
#define KVP_ROUTE_NONE UINT32_MAX

typedef struct {
    double compute_tokens_s; /* tokens of prompts that an instance computes in a second */
    double cpu_tokens_s, disk_tokens_s; /* tokens that an instance reads from these media in a second */
    double request_ms; /* estimated delay of a new request by each request in progress at its target */
    double affinity_ms; /* time subtracted from the estimate of the instance that had the session before */
    double open_s; /* time after which an open route counts as done */
    double pending_s; /* time after its computation for which a prompt counts as cached without an event */
} kvp_router_weights_t;
extern const kvp_router_weights_t kvp_router_defaults;

typedef struct kvp_router kvp_router_t;

/* kvp_router_create copies the weights. NULL = no memory. */
kvp_router_t *kvp_router_create(const kvp_router_weights_t *weights);
void kvp_router_destroy(kvp_router_t *r);

/* kvp_router_target finds or creates the target for the rank of the instance. The number is valid until the next
 * kvp_router_sweep. KVP_ROUTE_NONE: too many targets. kvp_router_find creates none; KVP_ROUTE_NONE: not found. */
uint32_t kvp_router_target(kvp_router_t *r, const char *instance, uint32_t rank);
uint32_t kvp_router_find(const kvp_router_t *r, const char *instance, uint32_t rank);
/* kvp_router_sweep drops each target for which kvp_router_target was not called since the last sweep, unless a
 * route to it is open. The caller first calls kvp_router_target for each registered instance. */
void kvp_router_sweep(kvp_router_t *r);
/* kvp_router_note records a report of the target: its running and waiting requests. */
void kvp_router_note(kvp_router_t *r, uint32_t target, uint32_t running, uint32_t waiting, uint64_t now_ns);
/* kvp_router_note_there records, for all ranks of the instance, whether its server can be reached. An unreachable
 * instance is chosen only if all candidates are unreachable or left out by a proxy. */
void kvp_router_note_there(kvp_router_t *r, const char *instance, bool is_there);

/* A target that may be chosen, with its part of the prompt, in tokens from the beginning of the prompt. */
typedef struct {
    uint32_t target;
    uint32_t matched; /* number of leading prompt tokens that the candidate has on any tier */
    /* number of leading prompt tokens that the GPU has, and that the CPU has; the tokens after both come from disk */
    uint32_t gpu, cpu;
    bool is_left_out; /* a flag: a proxy leaves out the server, so it counts as unreachable */
} kvp_candidate_t;

typedef struct {
    uint32_t tokens; /* number of tokens in the prompt; 0 = unknown */
    uint32_t block_size;
    const uint64_t *hashes; /* the hashes of the prompt's whole blocks; NULL = the hashes are not known */
    uint32_t blocks;
    uint64_t space; /* hash of the namespace (kvp_space_hash): equal tokens of two namespaces are different blocks */
    uint64_t session; /* hash of the session's name; 0 = no session */
} kvp_route_ask_t;

typedef struct {
    uint32_t at; /* index of the chosen candidate; KVP_ROUTE_NONE = no candidate */
    uint64_t id; /* number of the route, for kvp_router_done; 0 = the route is not remembered */
    uint32_t matched; /* number of prompt tokens that count as cached at the chosen target */
    uint32_t pending; /* the part of `matched` that no event has reported yet, as the prompt was sent there recently */
    double queue_ms, compute_ms, fetch_ms;
    double all_ms; /* queue_ms + compute_ms + fetch_ms, less the advantage of the session */
    bool has_affinity;
    uint32_t longest; /* index of the candidate with the longest match */
    double longest_ms; /* all_ms of the candidate with the longest match */
    bool is_away, is_longest_away; /* flags: unreachable is the server of the chosen candidate; of the longest match */
    uint32_t open, running, waiting; /* load of the chosen target before this request */
} kvp_choice_t;

void kvp_router_pick(kvp_router_t *r, const kvp_route_ask_t *ask, const kvp_candidate_t *candidates, uint32_t n,
                     uint64_t now_ns, kvp_choice_t *out);
/* kvp_router_done ends a route; it returns false if the route does not exist any more. kvp_router_tick ends routes
 * that are older than the weight open_s; call it at least every few seconds. */
bool kvp_router_done(kvp_router_t *r, uint64_t id, uint64_t now_ns);
void kvp_router_tick(kvp_router_t *r, uint64_t now_ns);

typedef struct {
    uint64_t routes, done, expired;
    uint32_t open;
} kvp_router_stats_t;
void kvp_router_stats(const kvp_router_t *r, kvp_router_stats_t *out);

#endif
