/* SPDX-License-Identifier: Apache-2.0
 * The get machine where locations are known: no message, and no byte that it may not give. */
#include "tests/unit/client/getop_fixture.h"

#define LEASE_MS 500u

/* The master gives the lease anew, and says what was revoked. */
static void
hear(uint64_t seq, const kvp_digest_t *revoked)
{
    kvp_locations_news_t news = {
        .asked_ns = f.now, .lease_ms = LEASE_MS, .grace_ms = LEASE_MS, .seq = seq, .revoked = revoked};

    news.revoked_n = revoked != NULL;
    kvp_locations_apply(f.locs, &news);
}

/* n items of a client that keeps locations, in a session with a lease from now on. */
static void
setup_known(uint32_t n)
{
    setup(n);
    assert_int_equal(kvp_locations_create(1024, &f.locs), KVP_OK);
    hear(0, NULL);
    f.session = test_session(1);
    f.session.known = kvp_locations_known(f.locs);
    f.op.places = f.places;
    kvp_getop_begin(&f.op);
}

static kvp_digest_t
digest_of(uint32_t item)
{
    return kvp_op_digest(&f.session, keys[item], strlen(keys[item]));
}

static bool
is_known(void)
{
    return f.session.known->has(f.session.known, digest_of(0), 7);
}

static void
keep(uint32_t item, kvp_cached_place_t place)
{
    place.version = 7;
    place.len = 100;
    for (uint32_t i = 0; i < place.nloc; i++)
        place.locs[i] = (kvp_wire_loc_t){.segment_id = i + 1, .chunk = 2, .slot = 3, .generation = 5, .offset = 4096};
    assert_true(f.session.known->keep(f.session.known, digest_of(item), &place, 0));
}

static void
learn(uint32_t item, uint32_t nloc)
{
    keep(item, (kvp_cached_place_t){.nloc = nloc});
}

static void
look(void)
{
    expect_step(KVP_STEP_KNOWN);
    kvp_getop_on_known(&f.op, &f.session);
}

/* One item, read where it is known to be. */
static void
to_known_move(uint32_t nloc)
{
    setup_known(1);
    learn(0, nloc);
    look();
    expect_moves(1);
}

/* What was known is good, as seen then. */
static void
expect_known(uint64_t at_ns)
{
    kvp_getop_on_moved(&f.op, at_ns);
    expect_done(KVP_OK);
    assert_int_equal(f.op.known_n, 1);
}

/* The item at hand is asked for at the master, found there and read. */
static void
expect_through_master(bool is_leased, uint64_t revoke_seq)
{
    expect_step(KVP_STEP_SESSION);
    kvp_getop_on_session(&f.op, &f.session);
    expect_get_all();
    answer_obj(&f.answer, KVP_OK, 1, 100, 0, 5);
    f.answer.is_leased = is_leased;
    f.answer.revoke_seq = revoke_seq;
    reply();
    expect_moves(1);
    moved();
    expect_done(KVP_OK);
}

/* What was read is nothing: the master is asked. */
static void
expect_voided(uint64_t revoke_seq)
{
    moved();
    assert_int_equal(f.op.known_n, 0);
    expect_through_master(false, revoke_seq);
}

TEST(test_get_from_known_locations_sends_nothing)
{
    setup_known(2);
    learn(0, 1);
    learn(1, 1);
    look();
    expect_moves(2);
    moved();
    expect_step(KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    assert_int_equal(f.items[0].len, 100);
    assert_int_equal(f.op.known_n, 2);
}

TEST(test_get_asks_for_what_is_not_known)
{
    static const uint32_t second = 1;

    setup_known(2);
    learn(0, 1);
    look();
    expect_moves(1);
    moved();
    expect_step(KVP_STEP_SESSION);
    kvp_getop_on_session(&f.op, &f.session);
    expect_get(&second, 1);
    answer_obj(&f.answer, KVP_NOT_FOUND, 0, 0, 0, 0);
    reply();
    expect_step(KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    assert_int_equal(f.items[1].err, KVP_NOT_FOUND);
}

TEST(test_get_without_a_lease_asks)
{
    setup_known(1);
    learn(0, 1);
    expect_step(KVP_STEP_KNOWN);
    kvp_getop_on_known(&f.op, NULL);
    expect_through_master(false, 0);
}

/* The lease is looked at again after the last load. */
TEST(test_lease_that_ends_while_reading_voids_the_read)
{
    to_known_move(1);
    f.now += LEASE_MS * MS;
    expect_voided(0);
}

TEST(test_lease_that_lasts_one_moment_longer_will_do)
{
    to_known_move(1);
    expect_known(f.now + LEASE_MS * MS - 1);
}

/* Whoever removed it was told that we know, and the lease was renewed by the same answer. */
TEST(test_revocation_while_reading_voids_the_read)
{
    kvp_digest_t digest;

    to_known_move(1);
    digest = digest_of(0);
    hear(1, &digest);
    expect_voided(1);
}

TEST(test_revocation_of_others_does_not)
{
    to_known_move(1);
    hear(1, NULL);
    expect_known(f.now);
}

TEST(test_miss_at_a_known_location_forgets_it_and_asks)
{
    to_known_move(1);
    f.moves[0].desc.word = kvp_word_make(5, KVP_DESC_DEAD);
    moved();
    assert_false(is_known());
    assert_int_equal(f.op.known_lost_n, 1);
    expect_through_master(true, 0);
    assert_true(is_known());
}

TEST(test_known_replica_is_fallen_back_on)
{
    to_known_move(2);
    assert_int_equal(f.moves[0].loc.segment_id, 1);
    f.moves[0].err = KVP_NODE_LOST;
    moved();
    expect_moves(1);
    assert_int_equal(f.moves[0].loc.segment_id, 2);
    expect_known(f.now);
}

TEST(test_answers_are_kept_as_the_master_says)
{
    setup_known(1);
    hear(5, NULL);
    look();
    expect_through_master(true, 4); /* from before a revocation that we know of: used once */
    assert_false(is_known());
    kvp_getop_begin(&f.op);
    look();
    expect_through_master(false, 5);
    assert_false(is_known());
    kvp_getop_begin(&f.op);
    look();
    expect_through_master(true, 5);
    assert_true(is_known());
}

/* ---- where a sum alone may vouch */
#define SUM 9u

/* A get of the item that finds it where it is known to be, from now on; a path that can do without descriptors. */
static void
get_where_known(void)
{
    kvp_getop_begin(&f.op);
    f.session.boot_ns = f.now;
    look();
    expect_moves(1);
    f.moves[0].is_sum_path = true;
    f.moves[0].has_desc = (f.moves[0].flags & KVP_READ_SUM_ALONE) == 0;
    f.moves[0].has_sum = !f.moves[0].has_desc;
    f.moves[0].sum = SUM;
}

/* A client that was told of it just now, and the lease lasts. */
static void
setup_with_sum(void)
{
    setup_known(1);
    keep(0, (kvp_cached_place_t){.sum = SUM, .told_ns = f.now, .nloc = 1});
}

TEST(test_sum_alone_vouches_for_the_time_of_a_lease)
{
    setup_with_sum();
    get_where_known();
    assert_true(f.moves[0].flags & KVP_READ_SUM_ALONE);
    expect_known(f.now);
    f.now += LEASE_MS * MS - 1;
    get_where_known();
    assert_true(f.moves[0].flags & KVP_READ_SUM_ALONE);
    hear(0, NULL);
    f.now++;
    get_where_known();
    assert_false(f.moves[0].flags & KVP_READ_SUM_ALONE);
}

/* The location lease lasts; what was told is too long ago once the bytes are there. No master is needed for that. */
TEST(test_sum_alone_that_came_too_late_is_read_again_with_its_descriptor)
{
    setup_with_sum();
    get_where_known();
    f.now += LEASE_MS * MS;
    hear(0, NULL);
    moved();
    assert_int_equal(f.op.known_n, 0);
    expect_moves(1);
    assert_false(f.moves[0].flags & KVP_READ_SUM_ALONE);
    expect_known(f.now + LEASE_MS * MS - 1);
}

/* With the location lease over as well the bytes are nothing. */
TEST(test_sum_alone_that_came_after_the_lease_voids_the_read)
{
    setup_with_sum();
    get_where_known();
    f.now += LEASE_MS * MS;
    expect_voided(0);
}

/* A descriptor that says SEALED is as good as the master's word. */
TEST(test_descriptor_lets_the_sum_alone_vouch_again)
{
    setup_with_sum();
    f.now += LEASE_MS * MS;
    hear(0, NULL);
    get_where_known();
    assert_true(f.moves[0].has_desc);
    expect_known(f.now + 1);
    get_where_known();
    assert_true(f.moves[0].flags & KVP_READ_SUM_ALONE);
    expect_known(f.now + LEASE_MS * MS - 1);
}

TEST(test_wrong_sum_at_a_known_location_forgets_it_and_asks)
{
    setup_with_sum();
    get_where_known();
    f.moves[0].sum++;
    moved();
    assert_false(is_known());
    assert_int_equal(f.op.stale_n, 1);
    expect_through_master(true, 0);
}

static uint32_t
higher_is_nearer(void *arg, uint32_t segment_id)
{
    (void)arg;
    return KVP_REPLICAS_MAX - segment_id;
}

TEST(test_the_nearest_replica_comes_first)
{
    setup(1);
    f.op.rank = higher_is_nearer;
    give_session(1);
    expect_get_all();
    reply_found(KVP_REPLICAS_MAX, 100, 0, 5);
    for (uint32_t want = KVP_REPLICAS_MAX; want >= 1; want--) {
        expect_moves(1);
        assert_int_equal(f.moves[0].loc.segment_id, want);
        if (want > 1) f.moves[0].err = KVP_NODE_LOST;
        moved();
    }
    expect_done(KVP_OK);
}

TEST_MAIN_WITH(NULL, teardown)
