/* SPDX-License-Identifier: Apache-2.0
 * The servers of a proxy, and the choice of the next one. A state machine without sockets and
 * clocks. A failing server is left out for a time that doubles with each failure, and from then on
 * until a check of it succeeds. Only a successful request clears its failures.
 *
 * A server that hangs fails no request, because clients give up earlier. Requests that clients gave
 * up count as open until the server answers them, or a check. A server that has sent nothing since
 * the first of three requests in a row is checked, and so is a server with requests given up 5 s
 * ago or earlier. Until the end of this check the server gets no request, if there is another one. */
#ifndef KVP_CONDUCTOR_PROXY_FLEET_H
#define KVP_CONDUCTOR_PROXY_FLEET_H

#include "common/base.h"

#include <stdatomic.h>

#define KVP_FLEET_MAX 1024u
#define KVP_FLEET_URL_MAX 511u
#define KVP_FLEET_ENGINE_MAX 255u
#define KVP_FLEET_RANKS_MAX 128u /* of a server */
#define KVP_SERVER_NONE UINT32_MAX

typedef enum { KVP_SERVER_REPLICA, KVP_SERVER_PREFILL, KVP_SERVER_DECODE, KVP_SERVER_ROLES } kvp_server_role_t;

typedef enum {
    KVP_SERVER_DID,
    KVP_SERVER_FAILED,
    KVP_SERVER_ERRED, /* it answered 500, which may be the request's own doing: the third in a row is a failure */
    KVP_SERVER_LEFT, /* the client left: no result */
    /* it closed a kept connection as the request came, which it may: the second in a row is a
     * failure */
    KVP_SERVER_CLOSED
} kvp_server_end_t;

/* A data-parallel rank of a prefill server: an engine of its own, whose cache has the id `engine`. */
typedef struct {
    uint32_t rank;
    uint32_t open; /* requests under way */
    char engine[KVP_FLEET_ENGINE_MAX + 1];
} kvp_server_rank_t;

typedef struct {
    char url[KVP_FLEET_URL_MAX + 1];
    kvp_server_role_t role;
    char bootstrap[KVP_FLEET_URL_MAX +
                   /* bootstrap address of a prefill server that states its engine's id there; "" =
                    * stated in its answers */
                   1];
    kvp_server_rank_t *ranks; /* owned; as the bootstrap server last named them */
    uint32_t ranks_n, rank_turn;
    bool is_gone; /* was removed; the place is free when nothing is open */
    bool is_down, is_checked; /* left out; a check is under way */
    uint32_t open; /* requests under way, given-up ones, and checks */
    uint32_t given_up; /* of these */
    uint64_t given_up_ns; /* since when there is any */
    uint32_t answers; /* successful checks: requests given up before do not count any more */
    uint32_t unanswered; /* requests since its last byte, */
    uint64_t unanswered_ns; /* sending time of the first of them, */
    _Atomic uint64_t heard_ns; /* and arrival time of the last byte */
    uint32_t fails, errors, closings; /* in a row */
    uint64_t until_ns; /* no check before this time */
    uint64_t ranks_until_ns; /* after which the bootstrap server is asked again */
    uint64_t requests, failures;
} kvp_fleet_server_t;

typedef struct {
    kvp_fleet_server_t servers[KVP_FLEET_MAX];
    uint32_t n; /* places ever used */
    uint32_t changes; /* changes of the left-out set */
    uint32_t turn[KVP_SERVER_ROLES];
} kvp_fleet_t;

/* kvp_fleet_add returns the number of the server, new or existing, which stays. KVP_SERVER_NONE =
 * too many, or a too long url. kvp_fleet_remove: false = no server of the url and role. Requests
 * under way continue. */
uint32_t kvp_fleet_add(kvp_fleet_t *f, kvp_server_role_t role, const char *url, const char *bootstrap);
bool kvp_fleet_remove(kvp_fleet_t *f, kvp_server_role_t role, const char *url);
uint32_t kvp_fleet_count(const kvp_fleet_t *f, kvp_server_role_t role);
uint32_t kvp_fleet_left_out(const kvp_fleet_t *f);
/* kvp_fleet_is_serving: each role has a server that is not left out: prefill and decode, or where
 * there is no decode server, replicas. Decode servers do without prefill servers if none is given. */
bool kvp_fleet_is_serving(const kvp_fleet_t *f);

/* kvp_fleet_pick chooses among the servers of the role that are not in tried[0 .. tried_n): the
 * next in turn, or with by_load the next of those with the fewest requests under way. Left-out
 * servers are chosen only if all are left out, and never as prefill servers: decoding without one
 * is better than waiting. The server counts one more request until kvp_fleet_end. KVP_SERVER_NONE =
 * none is left. kvp_fleet_take chooses the given server; KVP_SERVER_NONE = none of the role, left
 * out, or tried. */
uint32_t kvp_fleet_pick(kvp_fleet_t *f, kvp_server_role_t role, bool by_load, const uint32_t *tried, uint32_t tried_n);
uint32_t kvp_fleet_take(kvp_fleet_t *f, kvp_server_role_t role, const char *url, const uint32_t *tried,
                        uint32_t tried_n);
/* kvp_fleet_take_again chooses the same server once more, even if left out. False = it was removed. */
bool kvp_fleet_take_again(kvp_fleet_t *f, uint32_t server);
/* kvp_fleet_unfit returns the URLs, at most max, of the servers of the role that kvp_fleet_take
 * would refuse. */
uint32_t kvp_fleet_unfit(const kvp_fleet_t *f, kvp_server_role_t role, const uint32_t *tried, uint32_t tried_n,
                         const char **urls_out, uint32_t max);
/* kvp_fleet_end: true = from now on it is left out. */
bool kvp_fleet_end(kvp_fleet_t *f, uint32_t server, kvp_server_end_t end, uint64_t now_ns);

/* kvp_fleet_set_ranks: the ranks that the server's bootstrap server has named, at least one; they
 * hold for 5 s, less than an engine takes to start. False = no memory. kvp_fleet_take_rank:
 * `wanted` if the server has that rank, else, or if it is negative, the next in turn of those with
 * the fewest requests under way. The rank has one request more then, until kvp_fleet_end_rank.
 * False = the ranks are not known, or no longer: ask the bootstrap server. */
bool kvp_fleet_set_ranks(kvp_fleet_t *f, uint32_t server, const kvp_server_rank_t *ranks, uint32_t n, uint64_t now_ns);
bool kvp_fleet_take_rank(kvp_fleet_t *f, uint32_t server, int64_t wanted, uint64_t now_ns, kvp_server_rank_t *out);
void kvp_fleet_end_rank(kvp_fleet_t *f, uint32_t server, uint32_t rank);

/* kvp_fleet_sent records that a request goes to the server. kvp_fleet_hear records received bytes;
 * it needs no lock. */
void kvp_fleet_sent(kvp_fleet_t *f, uint32_t server, uint64_t now_ns);
static inline void
kvp_fleet_hear(kvp_fleet_t *f, uint32_t server, uint64_t now_ns)
{
    atomic_store_explicit(&f->servers[server].heard_ns, now_ns, memory_order_relaxed);
}

/* kvp_fleet_give_up: the client of a request has left, and the server has not answered it. The
 * request stays open until kvp_fleet_return, which gets the result of kvp_fleet_give_up, or until a
 * check succeeds: from then on kvp_fleet_is_given_up is false. kvp_fleet_return: true = from now on
 * the server is left out. */
uint32_t kvp_fleet_give_up(kvp_fleet_t *f, uint32_t server, uint64_t now_ns);
bool kvp_fleet_is_given_up(const kvp_fleet_t *f, uint32_t server, uint32_t since);
bool kvp_fleet_return(kvp_fleet_t *f, uint32_t server, uint32_t since, kvp_server_end_t end, uint64_t now_ns);

/* kvp_fleet_check returns a server to check now, until kvp_fleet_checked: a left-out or silent one.
 * KVP_SERVER_NONE = none. kvp_fleet_checked: true = from now on the server is left out. */
typedef enum {
    KVP_CHECK_UP,
    KVP_CHECK_DOWN,
    KVP_CHECK_NONE /* the check could not be made, by our own fault */
} kvp_check_end_t;
uint32_t kvp_fleet_check(kvp_fleet_t *f, uint64_t now_ns);
bool kvp_fleet_checked(kvp_fleet_t *f, uint32_t server, kvp_check_end_t end, uint64_t now_ns);

/* The zero value is a fleet without servers. */
void kvp_fleet_fini(kvp_fleet_t *f);

#endif
