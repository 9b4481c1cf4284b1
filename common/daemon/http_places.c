/* SPDX-License-Identifier: Apache-2.0 */
#include "common/daemon/http_places.h"

#include <sys/socket.h>

void
kvp_http_places_init(kvp_http_places_t *places)
{
    *places = (kvp_http_places_t){.max = KVP_HTTP_PLACES};
    kvp_list_init(&places->idle);
    kvp_list_init(&places->moving);
}

static void
end_place(kvp_http_places_t *places, kvp_http_place_t *place)
{
    kvp_list_del(&place->link);
    place->is_ended = true;
    places->open_n--;
    shutdown(place->fd, SHUT_RDWR);
}

static void
end_overdue(kvp_http_places_t *places, uint64_t now_ns)
{
    while (!kvp_list_is_empty(&places->moving)) {
        kvp_http_place_t *first = kvp_list_first(&places->moving, kvp_http_place_t, link);
        if (now_ns - first->moving_ns <= KVP_HTTP_TRANSFER_NS) break;
        end_place(places, first);
    }
}

/* Moves the connection to the end of the idle list, so that it is the last one to be closed. */
static void
rest_place(kvp_http_places_t *places, kvp_http_place_t *place)
{
    if (place->is_ended) return;
    kvp_list_del(&place->link);
    kvp_list_add_tail(&places->idle, &place->link);
}

void
kvp_http_places_enter(kvp_http_places_t *places, kvp_http_place_t *place, int fd, uint64_t now_ns)
{
    *place = (kvp_http_place_t){.fd = fd};
    kvp_list_init(&place->link);
    places->open_n++;
    rest_place(places, place);
    end_overdue(places, now_ns);
    if (places->open_n > places->max) end_place(places, kvp_list_first(&places->idle, kvp_http_place_t, link));
}

void
kvp_http_places_leave(kvp_http_places_t *places, kvp_http_place_t *place)
{
    kvp_http_places_finish(places, place);
    kvp_list_del(&place->link);
    if (!place->is_ended) places->open_n--;
}

bool
kvp_http_places_begin(kvp_http_places_t *places, kvp_http_place_t *place, uint64_t now_ns)
{
    end_overdue(places, now_ns); /* closes overdue connections, whose memory the new request may need */
    rest_place(places, place);
    return !place->is_ended;
}

bool
kvp_http_places_hold(kvp_http_places_t *places, kvp_http_place_t *place)
{
    if (place->is_held) return true;
    if (places->held_n >= places->max / 2) return false;
    places->held_n++;
    place->is_held = true;
    return true;
}

void
kvp_http_places_park(kvp_http_place_t *place)
{
    kvp_list_del(&place->link);
}

void
kvp_http_places_move(kvp_http_places_t *places, kvp_http_place_t *place, uint64_t now_ns)
{
    if (!place->is_held || place->is_ended) return;
    kvp_list_del(&place->link);
    kvp_list_add_tail(&places->moving, &place->link);
    place->moving_ns = now_ns;
}

void
kvp_http_places_finish(kvp_http_places_t *places, kvp_http_place_t *place)
{
    if (place->is_held) places->held_n--;
    place->is_held = false;
    rest_place(places, place);
}

bool
kvp_http_places_are_scarce(const kvp_http_places_t *places)
{
    return places->open_n > places->max / 2;
}
