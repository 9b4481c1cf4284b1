/* SPDX-License-Identifier: Apache-2.0
 * The server's connections: each has a place, and an idle connection gives way to a new one.
 * Closing a connection outside of a request costs its peer only a new connection. So a new
 * connection always gets in, and the longest idle one is closed when no place is free. Only a
 * connection whose body or answer is in transfer, or whose request a slow handler has, holds its
 * place: half of all places at most, for at most the time of a body. Runs on the server's thread
 * alone. */
#ifndef KVP_COMMON_DAEMON_HTTP_PLACES_H
#define KVP_COMMON_DAEMON_HTTP_PLACES_H

#include "common/clock.h"
#include "common/list.h"

#define KVP_HTTP_PLACES 256u /* unless the server was given more */
#define KVP_HTTP_HELD_PLACES (KVP_HTTP_PLACES / 2)
#define KVP_HTTP_TRANSFER_NS (60 * KVP_NS_PER_S) /* for a body, in or out: who is slow but never idle */

typedef struct {
    kvp_list_t idle; /* that hold no place: the first did nothing for the longest */
    kvp_list_t moving; /* whose body or answer is on its way: the first for the longest */
    uint32_t open_n; /* open connections, without closed ones that libmicrohttpd has not freed yet */
    uint32_t held_n;
    uint32_t max; /* places in all; requests may hold half of them */
} kvp_http_places_t;

typedef struct {
    kvp_list_t link;
    uint64_t moving_ns; /* since when; in `moving` only */
    int fd; /* borrowed until leave */
    bool is_held;
    bool is_ended;
} kvp_http_place_t;

void kvp_http_places_init(kvp_http_places_t *places);

/* kvp_http_places_enter gives a new connection a place, and leave takes it back, which the place's memory waits for. To
 * end a connection is to shut its socket down; the server notices and closes it. */
void kvp_http_places_enter(kvp_http_places_t *places, kvp_http_place_t *place, int fd, uint64_t now_ns);
void kvp_http_places_leave(kvp_http_places_t *places, kvp_http_place_t *place);

/* The calls of one request, in order. kvp_http_places_begin returns false if the connection has
 * been closed. kvp_http_places_hold reserves a place, once the body arrives or before a slow
 * handler; false = half of all places are held. kvp_http_places_park stops the request's clock
 * while a slow handler runs. kvp_http_places_move starts the time limit KVP_HTTP_TRANSFER_NS of a
 * held request, when a body or the answer is in transfer. kvp_http_places_finish comes last. */
bool kvp_http_places_begin(kvp_http_places_t *places, kvp_http_place_t *place, uint64_t now_ns) KVP_MUST_USE;
bool kvp_http_places_hold(kvp_http_places_t *places, kvp_http_place_t *place) KVP_MUST_USE;
void kvp_http_places_park(kvp_http_place_t *place);
void kvp_http_places_move(kvp_http_places_t *places, kvp_http_place_t *place, uint64_t now_ns);
void kvp_http_places_finish(kvp_http_places_t *places, kvp_http_place_t *place);

/* Whether connections should not be kept after their answers. */
bool kvp_http_places_are_scarce(const kvp_http_places_t *places);

#endif
