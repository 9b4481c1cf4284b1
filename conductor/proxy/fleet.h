/* SPDX-License-Identifier: Apache-2.0
 * The servers of a proxy, and the choice of the next server. A state machine without sockets and clocks. A failing
 * server is left out for a time that doubles with each failure, and then until a check of the server succeeds. Only a
 * successful request resets the number of its failures.
 *
 * A server that hangs fails no request, because its clients leave before a time limit. Requests that clients gave up
 * count as open until the server answers them or a check. A server that has sent nothing since the first of three
 * requests in a row is checked, and so is a server with a request that was given up 5 s ago or earlier. Until the end
 * of this check the server gets no request, if there is another server. */
#ifndef KVP_CONDUCTOR_PROXY_FLEET_H
#define KVP_CONDUCTOR_PROXY_FLEET_H

#include "common/base.h"
#include "conductor/proxy/latency.h"

#include <stdatomic.h>

#define KVP_FLEET_MAX 1024u
#define KVP_FLEET_URL_MAX 511u
#define KVP_FLEET_ENGINE_MAX 255u
#define KVP_FLEET_RANKS_MAX 128u /* limit of the data-parallel ranks of a server */
#define KVP_SERVER_NONE UINT32_MAX

typedef enum { KVP_SERVER_REPLICA, KVP_SERVER_PREFILL, KVP_SERVER_DECODE, KVP_SERVER_ROLES } kvp_server_role_t;

typedef enum {
    KVP_SERVER_DID,
    KVP_SERVER_FAILED,
    /* result of a request: the server answered 500, perhaps because of the request; the third in a row counts as a
     * failure */
    KVP_SERVER_ERRED,
    KVP_SERVER_LEFT, /* result of a request: unknown, because the client left before the answer */
    /* result of a request: the server closed a kept connection when the request arrived, which is legal; the
     * second time in a row counts as a failure */
    KVP_SERVER_CLOSED
} kvp_server_end_t;

/* A data-parallel rank of a prefill server. Each rank is an engine of its own, and `engine` is the engine's id in
 * transfers of its cache. */
typedef struct {
    uint32_t rank;
    uint32_t open; /* number of the rank's requests in progress */
    char engine[KVP_FLEET_ENGINE_MAX + 1];
} kvp_server_rank_t;

typedef struct {
    char url[KVP_FLEET_URL_MAX + 1];
    kvp_server_role_t role;
    /* URL of the bootstrap server that reports the engine ids of a prefill server; "" = the prefill server's answers
     * contain the id */
    char bootstrap[KVP_FLEET_URL_MAX + 1];
    kvp_server_rank_t *ranks; /* ranks from the last answer of the bootstrap server; owned */
    uint32_t ranks_n, rank_turn;
    bool is_gone; /* a flag: the server was removed; its place becomes free when no request is open */
    bool is_down, is_checked; /* flags: the server is left out (see kvp_fleet_pick); a check of it is in progress */
    uint32_t open; /* number of requests in progress, given-up requests and checks */
    uint32_t given_up; /* number of the given-up requests in `open` */
    uint64_t given_up_ns; /* time at which the first of the given-up requests was given up */
    /* The number of successful checks, plus one for each reuse of this place. A given-up request remembers this
     * number. If the number has risen since, the server's `open` and `given_up` no longer include the request. */
    uint32_t answers;
    uint32_t unanswered; /* number of requests sent since the last byte from the server */
    uint64_t unanswered_ns; /* sending time of the first of the `unanswered` requests */
    _Atomic uint64_t heard_ns; /* arrival time of the last byte from the server */
    uint32_t fails, errors, closings; /* numbers of consecutive failures, answers of 500, and closed connections */
    uint64_t until_ns; /* earliest time of the next check of a left-out server */
    uint64_t ranks_until_ns; /* the ranks are valid until this time; then the bootstrap server is asked again */
    uint64_t requests, failures;
    kvp_latency_t *latency; /* owned; NULL = there was no memory */
} kvp_fleet_server_t;

typedef struct {
    kvp_fleet_server_t servers[KVP_FLEET_MAX];
    uint32_t n; /* number of used elements of `servers`, including those of removed servers */
    uint32_t changes; /* counter, incremented when the set of left-out servers changes */
    uint32_t turn[KVP_SERVER_ROLES];
} kvp_fleet_t;

/* kvp_fleet_add returns the number of the server, which is new or already exists. The number never changes.
 * KVP_SERVER_NONE = too many servers, or the url is too long. kvp_fleet_remove removes a server; it returns false
 * if no server has the url and role. Requests in progress continue. */
uint32_t kvp_fleet_add(kvp_fleet_t *f, kvp_server_role_t role, const char *url, const char *bootstrap);
bool kvp_fleet_remove(kvp_fleet_t *f, kvp_server_role_t role, const char *url);
uint32_t kvp_fleet_count(const kvp_fleet_t *f, kvp_server_role_t role);
uint32_t kvp_fleet_left_out(const kvp_fleet_t *f);
/* kvp_fleet_is_serving returns whether each necessary role has a server that is not left out: prefill and decode,
 * or replica if there is no decode server. If no prefill server was added, decode servers suffice. */
bool kvp_fleet_is_serving(const kvp_fleet_t *f);

/* kvp_fleet_pick chooses a server of the role that is not in tried[0 .. tried_n): the next in turn, or with
 * by_load the next of those with the fewest requests in progress. Left-out servers are chosen only if no other
 * is left. Left-out prefill servers are never chosen, because decoding without a prefill is better than waiting. The
 * server counts one more request until kvp_fleet_end. KVP_SERVER_NONE = no server. kvp_fleet_take chooses the server
 * with the given url; KVP_SERVER_NONE = it does not exist in the role, is left out, checked as silent, or was tried. */
uint32_t kvp_fleet_pick(kvp_fleet_t *f, kvp_server_role_t role, bool by_load, const uint32_t *tried, uint32_t tried_n);
uint32_t kvp_fleet_take(kvp_fleet_t *f, kvp_server_role_t role, const char *url, const uint32_t *tried,
                        uint32_t tried_n);
/* kvp_fleet_take_again takes the same server once more, even if it is left out. It returns false if the server was
 * removed. */
bool kvp_fleet_take_again(kvp_fleet_t *f, uint32_t server);
/* kvp_fleet_unfit returns at most max URLs of the servers of the role that kvp_fleet_take would refuse. */
uint32_t kvp_fleet_unfit(const kvp_fleet_t *f, kvp_server_role_t role, const uint32_t *tried, uint32_t tried_n,
                         const char **urls_out, uint32_t max);
/* kvp_fleet_end records the result of a request. It returns true if the server is left out from now on. */
bool kvp_fleet_end(kvp_fleet_t *f, uint32_t server, kvp_server_end_t end, uint64_t now_ns);

/* kvp_fleet_set_ranks records the ranks that the bootstrap server has reported, at least one. They are valid for 5
 * s, which is less than an engine needs to start. False = no memory. kvp_fleet_take_rank chooses the rank `wanted`
 * if the server has it. Otherwise, or if wanted is negative, it chooses the next in turn of the ranks with the
 * fewest requests in progress. The rank counts one more request until kvp_fleet_end_rank. False = the ranks are
 * unknown or no longer valid: ask the bootstrap server. */
bool kvp_fleet_set_ranks(kvp_fleet_t *f, uint32_t server, const kvp_server_rank_t *ranks, uint32_t n, uint64_t now_ns);
bool kvp_fleet_take_rank(kvp_fleet_t *f, uint32_t server, int64_t wanted, uint64_t now_ns, kvp_server_rank_t *out);
void kvp_fleet_end_rank(kvp_fleet_t *f, uint32_t server, uint32_t rank);

/* kvp_fleet_sent records that a request is sent to the server. kvp_fleet_hear records that bytes have arrived; it
 * needs no lock. */
void kvp_fleet_sent(kvp_fleet_t *f, uint32_t server, uint64_t now_ns);
static inline void
kvp_fleet_hear(kvp_fleet_t *f, uint32_t server, uint64_t now_ns)
{
    atomic_store_explicit(&f->servers[server].heard_ns, now_ns, memory_order_relaxed);
}

/* kvp_fleet_give_up records that the client of an unanswered request has left. It returns a number for
 * kvp_fleet_is_given_up and kvp_fleet_return (`since`). The request stays open until kvp_fleet_return, or until a
 * check succeeds; from then on kvp_fleet_is_given_up returns false. kvp_fleet_return ends the request; it returns
 * true if the server is left out from now on. */
uint32_t kvp_fleet_give_up(kvp_fleet_t *f, uint32_t server, uint64_t now_ns);
bool kvp_fleet_is_given_up(const kvp_fleet_t *f, uint32_t server, uint32_t since);
bool kvp_fleet_return(kvp_fleet_t *f, uint32_t server, uint32_t since, kvp_server_end_t end, uint64_t now_ns);

/* kvp_fleet_check returns a left-out or silent server that shall be checked now; KVP_SERVER_NONE = none.
 * kvp_fleet_checked records the result; it returns true if the server is left out from now on. */
typedef enum {
    KVP_CHECK_UP,
    KVP_CHECK_DOWN,
    KVP_CHECK_NONE /* result of a check that could not be made for a local reason, such as no free descriptor */
} kvp_check_end_t;
uint32_t kvp_fleet_check(kvp_fleet_t *f, uint64_t now_ns);
bool kvp_fleet_checked(kvp_fleet_t *f, uint32_t server, kvp_check_end_t end, uint64_t now_ns);

/* kvp_fleet_fini frees the memory of a fleet. Zeroed memory is a fleet without servers. */
void kvp_fleet_fini(kvp_fleet_t *f);

#endif
