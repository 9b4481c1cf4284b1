/* SPDX-License-Identifier: Apache-2.0
 * Who has a place among the server's connections, and who gives one up for a newcomer. A connection that is not in a request costs
 * nothing to end: its peer connects again. So a newcomer always gets in, and where there is no room the connection that did
 * nothing for the longest goes. Only those whose body or answer is on its way, or whose request a slow handler has, hold
 * their place: half of all at most, and for as long as a body may take. On the server's thread alone.
 */
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
    uint32_t open_n; /* without those that were ended and are not gone yet */
    uint32_t held_n;
    uint32_t max; /* places; half of them may be held */
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

/* A request: begin comes first, and its false says that the connection was ended before; finish comes last.
 * hold, once its body comes or a slow handler is to have it: false = half of all places are held. park, while the slow handler has
 * it: it waits for us, and has all the time that this takes. move, when a body or the answer is under way: it has
 * KVP_HTTP_TRANSFER_NS from then on, if it is held. */
bool kvp_http_places_begin(kvp_http_places_t *places, kvp_http_place_t *place, uint64_t now_ns) KVP_MUST_USE;
bool kvp_http_places_hold(kvp_http_places_t *places, kvp_http_place_t *place) KVP_MUST_USE;
void kvp_http_places_park(kvp_http_place_t *place);
void kvp_http_places_move(kvp_http_places_t *places, kvp_http_place_t *place, uint64_t now_ns);
void kvp_http_places_finish(kvp_http_places_t *places, kvp_http_place_t *place);

/* Whether connections should not be kept after their answers. */
bool kvp_http_places_are_scarce(const kvp_http_places_t *places);

#endif
