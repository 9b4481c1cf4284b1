/* SPDX-License-Identifier: Apache-2.0
 * The connections of the HTTP server. Each connection has a place, and an idle connection is closed for a new one.
 * Closing a connection between requests costs its peer only a new connection. So a new connection always gets a
 * place, and the longest idle one is closed if no place is free. A connection keeps its place only while its body
 * or answer is in transfer, or while a slow handler has its request. At most half of all places are kept in this
 * way, each for at most the time limit of a body. Runs only on the server's thread. */
#ifndef KVP_COMMON_DAEMON_HTTP_PLACES_H
#define KVP_COMMON_DAEMON_HTTP_PLACES_H

#include "common/clock.h"
#include "common/list.h"

#define KVP_HTTP_PLACES 256u /* default number of places for connections */
#define KVP_HTTP_HELD_PLACES (KVP_HTTP_PLACES / 2)
#define KVP_HTTP_TRANSFER_NS (60 * KVP_NS_PER_S) /* time limit for the transfer of a request's body or an answer */

typedef struct {
    kvp_list_t idle; /* idle connections, which may be closed; the longest idle one is first */
    kvp_list_t moving; /* connections whose body or answer is in transfer; the oldest transfer is first */
    uint32_t open_n; /* number of open connections, without closed ones that libmicrohttpd has not freed yet */
    uint32_t held_n;
    uint32_t max; /* number of all places; requests may hold half of them */
} kvp_http_places_t;

typedef struct {
    kvp_list_t link;
    uint64_t moving_ns; /* time at which the transfer of body or answer began; valid only in the list `moving` */
    int fd; /* socket of the connection; borrowed until kvp_http_places_leave */
    bool is_held;
    bool is_ended;
} kvp_http_place_t;

void kvp_http_places_init(kvp_http_places_t *places);

/* kvp_http_places_enter gives a place to a new connection. If no place is free, it shuts down the socket of
 * another connection; the server notices this and closes the connection. kvp_http_places_leave releases the place;
 * until then its memory must stay valid. */
void kvp_http_places_enter(kvp_http_places_t *places, kvp_http_place_t *place, int fd, uint64_t now_ns);
void kvp_http_places_leave(kvp_http_places_t *places, kvp_http_place_t *place);

/* The calls for one request, in order. kvp_http_places_begin returns false if the connection has been closed.
 * kvp_http_places_hold keeps the place, when the body arrives or before a slow handler; false = half of all places are
 * held. kvp_http_places_park stops the time limit while a slow handler runs. kvp_http_places_move starts the time limit
 * KVP_HTTP_TRANSFER_NS of a held place, when a body or the answer is in transfer. kvp_http_places_finish comes last. */
bool kvp_http_places_begin(kvp_http_places_t *places, kvp_http_place_t *place, uint64_t now_ns) KVP_MUST_USE;
bool kvp_http_places_hold(kvp_http_places_t *places, kvp_http_place_t *place) KVP_MUST_USE;
void kvp_http_places_park(kvp_http_place_t *place);
void kvp_http_places_move(kvp_http_places_t *places, kvp_http_place_t *place, uint64_t now_ns);
void kvp_http_places_finish(kvp_http_places_t *places, kvp_http_place_t *place);

/* Returns whether places are scarce, so that connections should be closed after their answers. */
bool kvp_http_places_are_scarce(const kvp_http_places_t *places);

#endif
