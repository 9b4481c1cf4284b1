/* SPDX-License-Identifier: Apache-2.0
 * Places of connections: who goes for a newcomer, who stays, and for how long. Over socket pairs, with a clock of the
 * test's. */
#include "common/daemon/http_places.h"
#include "tests/cases.h"

#include <sys/socket.h>
#include <unistd.h>

#define N ((int)KVP_HTTP_PLACES + 8)

typedef struct {
    kvp_http_places_t places;
    kvp_http_place_t at[N];
    int peers[N];
    int n;
} site_t;

static site_t site;

static int
setup(void **state)
{
    (void)state;
    kvp_http_places_init(&site.places);
    site.n = 0;
    return 0;
}

static kvp_http_place_t *
enter(uint64_t now_ns)
{
    int pair[2];
    kvp_http_place_t *place = &site.at[site.n];
    assert_true(site.n < N);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    site.peers[site.n++] = pair[1];
    kvp_http_places_enter(&site.places, place, pair[0], now_ns);
    return place;
}

static void
fill(uint64_t now_ns)
{
    while (site.places.open_n < KVP_HTTP_PLACES)
        enter(now_ns);
}

/* What its peer sees. */
static bool
is_ended(const kvp_http_place_t *place)
{
    char c;
    bool is_over = recv(site.peers[place - site.at], &c, 1, 0) == 0;
    assert_int_equal(is_over, place->is_ended);
    return is_over;
}

static int
teardown(void **state)
{
    (void)state;
    for (int i = 0; i < site.n; i++) {
        kvp_http_places_leave(&site.places, &site.at[i]);
        close(site.at[i].fd);
        close(site.peers[i]);
    }
    assert_int_equal(site.places.open_n, 0);
    assert_int_equal(site.places.held_n, 0);
    return 0;
}

TEST_WITH(test_the_longest_without_a_request_goes, setup, teardown)
{
    fill(0);
    for (int i = 0; i < site.n; i++)
        assert_false(is_ended(&site.at[i]));
    assert_true(kvp_http_places_begin(&site.places, &site.at[0], 1));
    kvp_http_places_finish(&site.places, &site.at[0]);
    assert_true(kvp_http_places_begin(&site.places, &site.at[2], 1)); /* is being answered */
    enter(2);
    enter(2);
    enter(2);
    assert_false(is_ended(&site.at[0]));
    assert_true(is_ended(&site.at[1]));
    assert_false(is_ended(&site.at[2]));
    assert_true(is_ended(&site.at[3]));
    assert_true(is_ended(&site.at[4]));
    assert_false(is_ended(&site.at[5]));
    assert_false(kvp_http_places_begin(&site.places, &site.at[1], 2)); /* its request had come, too late */
    assert_int_equal(site.places.open_n, KVP_HTTP_PLACES);
}

TEST_WITH(test_half_of_all_may_be_held, setup, teardown)
{
    fill(0);
    for (unsigned i = 0; i < KVP_HTTP_HELD_PLACES; i++) {
        assert_true(kvp_http_places_hold(&site.places, &site.at[i]));
        kvp_http_places_move(&site.places, &site.at[i], 1);
    }
    assert_true(kvp_http_places_hold(&site.places, &site.at[0]));
    assert_false(kvp_http_places_hold(&site.places, &site.at[KVP_HTTP_HELD_PLACES]));
    enter(1);
    assert_true(is_ended(&site.at[KVP_HTTP_HELD_PLACES]));
    kvp_http_places_finish(&site.places, &site.at[0]);
    assert_true(kvp_http_places_hold(&site.places, &site.at[KVP_HTTP_HELD_PLACES + 1]));
    for (unsigned i = 0; i < KVP_HTTP_HELD_PLACES; i++)
        assert_false(is_ended(&site.at[i]));
}

TEST_WITH(test_nobody_holds_a_place_for_longer_than_a_transfer, setup, teardown)
{
    kvp_http_place_t *body = enter(0), *slow = enter(0), *answer = enter(0);
    assert_true(kvp_http_places_hold(&site.places, body) && kvp_http_places_hold(&site.places, slow));
    assert_true(kvp_http_places_hold(&site.places, answer));
    kvp_http_places_move(&site.places, body, 5);
    kvp_http_places_park(slow);
    kvp_http_places_park(answer);
    kvp_http_places_move(&site.places, answer, 6);
    kvp_http_place_t *asks = enter(5 + KVP_HTTP_TRANSFER_NS);
    assert_false(is_ended(body));
    enter(6 + KVP_HTTP_TRANSFER_NS);
    assert_true(is_ended(body));
    assert_int_equal(site.places.held_n, 3); /* until its memory is back */
    kvp_http_places_finish(&site.places, body);
    assert_int_equal(site.places.held_n, 2);
    assert_false(is_ended(answer));
    assert_true(kvp_http_places_begin(&site.places, asks, 7 + KVP_HTTP_TRANSFER_NS));
    assert_true(is_ended(answer));
    assert_false(is_ended(slow)); /* waits for us */
    kvp_http_places_move(&site.places, slow, 8 + KVP_HTTP_TRANSFER_NS);
    enter(9 + KVP_HTTP_TRANSFER_NS);
    assert_false(is_ended(slow));
    enter(9 + 2 * KVP_HTTP_TRANSFER_NS);
    assert_true(is_ended(slow));
}

TEST_WITH(test_places_are_scarce_above_half, setup, teardown)
{
    while (site.places.open_n < KVP_HTTP_PLACES / 2)
        enter(0);
    assert_false(kvp_http_places_are_scarce(&site.places));
    enter(0);
    assert_true(kvp_http_places_are_scarce(&site.places));
}

TEST_MAIN()
