/* SPDX-License-Identifier: Apache-2.0
 * The get machine where locations are known: no message, and no byte that it may not give.
 */
#include "tests/unit/client/getop_fixture.h"

#define LEASE_MS 500u

/* One item of a client that keeps locations, in a session with a lease from now on. */
static void
setup_known(fixture_t *f, uint32_t n)
{
    setup(f, n);
    lone_init(&f->lone, 16);
    kvp_loclease_renew(&f->lone.lease, f->now, LEASE_MS, LEASE_MS);
    f->session = test_session(1);
    f->session.known = &f->lone.known;
    f->op.places = f->places;
    kvp_getop_begin(&f->op);
}

static void
teardown_known(fixture_t *f)
{
    kvp_loccache_fini(&f->lone.cache);
    teardown(f);
}

static kvp_digest_t
digest_of(const fixture_t *f, uint32_t item)
{
    return kvp_op_digest(&f->session, keys[item], strlen(keys[item]));
}

static void
learn(fixture_t *f, uint32_t item, uint32_t nloc)
{
    kvp_place_t place = {.version = 7, .len = 100, .nloc = nloc};

    for (uint32_t i = 0; i < nloc; i++)
        place.locs[i] = (kvp_wire_loc_t){.segment_id = i + 1, .chunk = 2, .slot = 3, .generation = 5, .offset = 4096};
    assert_true(kvp_loccache_keep(&f->lone.cache, digest_of(f, item), &place, 0));
}

static void
look(fixture_t *f)
{
    expect_step(f, KVP_STEP_KNOWN);
    kvp_getop_on_known(&f->op, &f->session);
}

/* The item at hand is asked for at the master, found there and read. */
static void
expect_through_master(fixture_t *f, bool is_leased, uint64_t revoke_seq)
{
    expect_step(f, KVP_STEP_SESSION);
    kvp_getop_on_session(&f->op, &f->session);
    expect_get_all(f);
    answer_obj(&f->answer, KVP_OK, 1, 100, 0, 5);
    f->answer.is_leased = is_leased;
    f->answer.revoke_seq = revoke_seq;
    reply(f);
    expect_moves(f, 1);
    kvp_getop_on_moved(&f->op, f->now);
    expect_step(f, KVP_STEP_DONE);
    assert_int_equal(f->items[0].err, KVP_OK);
}

static void
test_get_from_known_locations_sends_nothing(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 2);
    learn(&f, 0, 1);
    learn(&f, 1, 1);
    look(&f);
    expect_moves(&f, 2);
    kvp_getop_on_moved(&f.op, f.now);
    expect_step(&f, KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    assert_int_equal(f.items[0].len, 100);
    assert_int_equal(f.op.known_n, 2);
    teardown_known(&f);
}

static void
test_get_asks_for_what_is_not_known(void **state)
{
    static const uint32_t second = 1;
    fixture_t f;

    (void)state;
    setup_known(&f, 2);
    learn(&f, 0, 1);
    look(&f);
    expect_moves(&f, 1);
    kvp_getop_on_moved(&f.op, f.now);
    expect_step(&f, KVP_STEP_SESSION);
    kvp_getop_on_session(&f.op, &f.session);
    expect_get(&f, &second, 1);
    answer_obj(&f.answer, KVP_NOT_FOUND, 0, 0, 0, 0);
    reply(&f);
    expect_step(&f, KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    assert_int_equal(f.items[1].err, KVP_NOT_FOUND);
    teardown_known(&f);
}

static void
test_get_without_a_lease_asks(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn(&f, 0, 1);
    expect_step(&f, KVP_STEP_KNOWN);
    kvp_getop_on_known(&f.op, NULL);
    expect_through_master(&f, false, 0);
    teardown_known(&f);
}

/* The lease is looked at again after the last load. */
static void
test_lease_that_ends_while_reading_voids_the_read(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn(&f, 0, 1);
    look(&f);
    expect_moves(&f, 1);
    f.now += LEASE_MS * MS;
    kvp_getop_on_moved(&f.op, f.now);
    assert_int_equal(f.op.known_n, 0);
    expect_through_master(&f, false, 0);
    teardown_known(&f);
}

static void
test_lease_that_lasts_one_moment_longer_will_do(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn(&f, 0, 1);
    look(&f);
    expect_moves(&f, 1);
    kvp_getop_on_moved(&f.op, f.now + LEASE_MS * MS - 1);
    expect_step(&f, KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    teardown_known(&f);
}

/* Whoever removed it was told that we know, and the lease was renewed by the same answer. */
static void
test_revocation_while_reading_voids_the_read(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn(&f, 0, 1);
    look(&f);
    expect_moves(&f, 1);
    kvp_loccache_advance(&f.lone.cache, 1);
    kvp_loccache_forget(&f.lone.cache, digest_of(&f, 0), UINT64_MAX);
    kvp_getop_on_moved(&f.op, f.now);
    assert_int_equal(f.op.known_n, 0);
    expect_through_master(&f, false, 1);
    teardown_known(&f);
}

static void
test_revocation_of_others_does_not(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn(&f, 0, 1);
    look(&f);
    expect_moves(&f, 1);
    kvp_loccache_advance(&f.lone.cache, 1);
    kvp_getop_on_moved(&f.op, f.now);
    expect_step(&f, KVP_STEP_DONE);
    assert_int_equal(f.op.known_n, 1);
    teardown_known(&f);
}

static void
test_miss_at_a_known_location_forgets_it_and_asks(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn(&f, 0, 1);
    look(&f);
    expect_moves(&f, 1);
    f.moves[0].desc.word = kvp_word_make(5, KVP_DESC_DEAD);
    kvp_getop_on_moved(&f.op, f.now);
    assert_false(kvp_loccache_has(&f.lone.cache, digest_of(&f, 0), 7));
    assert_int_equal(f.op.known_lost_n, 1);
    expect_through_master(&f, true, 0);
    assert_true(kvp_loccache_has(&f.lone.cache, digest_of(&f, 0), 7));
    teardown_known(&f);
}

static void
test_known_replica_is_fallen_back_on(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn(&f, 0, 2);
    look(&f);
    expect_moves(&f, 1);
    assert_int_equal(f.moves[0].loc.segment_id, 1);
    f.moves[0].err = KVP_NODE_LOST;
    kvp_getop_on_moved(&f.op, f.now);
    expect_moves(&f, 1);
    assert_int_equal(f.moves[0].loc.segment_id, 2);
    kvp_getop_on_moved(&f.op, f.now);
    expect_step(&f, KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    assert_int_equal(f.op.known_n, 1);
    teardown_known(&f);
}

static void
test_answers_are_kept_as_the_master_says(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    kvp_loccache_advance(&f.lone.cache, 5);
    look(&f);
    expect_through_master(&f, true, 4); /* from before a revocation that we know of: used once */
    assert_false(kvp_loccache_has(&f.lone.cache, digest_of(&f, 0), 7));
    kvp_getop_begin(&f.op);
    look(&f);
    expect_through_master(&f, false, 5);
    assert_false(kvp_loccache_has(&f.lone.cache, digest_of(&f, 0), 7));
    kvp_getop_begin(&f.op);
    look(&f);
    expect_through_master(&f, true, 5);
    assert_true(kvp_loccache_has(&f.lone.cache, digest_of(&f, 0), 7));
    teardown_known(&f);
}

/* ---- where a sum alone may vouch */
#define SUM 9u

/* A get of the item that finds it where it is known to be, from now on; a path that can do without descriptors. */
static void
get_where_known(fixture_t *f)
{
    kvp_getop_begin(&f->op);
    f->session.boot_ns = f->now;
    look(f);
    expect_moves(f, 1);
    f->moves[0].is_sum_path = true;
    f->moves[0].has_desc = !f->moves[0].may_skip_desc;
    f->moves[0].has_sum = f->moves[0].may_skip_desc;
    f->moves[0].sum = SUM;
}

/* It was told of just now, and the lease lasts. */
static void
learn_with_sum(fixture_t *f)
{
    kvp_place_t place = {.version = 7, .len = 100, .sum = SUM, .told_ns = f->now, .nloc = 1};

    place.locs[0] = (kvp_wire_loc_t){.segment_id = 1, .chunk = 2, .slot = 3, .generation = 5, .offset = 4096};
    assert_true(kvp_loccache_keep(&f->lone.cache, digest_of(f, 0), &place, 0));
}

static void
expect_known(fixture_t *f, uint64_t at_ns)
{
    kvp_getop_on_moved(&f->op, at_ns);
    expect_step(f, KVP_STEP_DONE);
    assert_int_equal(f->items[0].err, KVP_OK);
    assert_int_equal(f->op.known_n, 1);
}

static void
test_sum_alone_vouches_for_the_time_of_a_lease(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn_with_sum(&f);
    get_where_known(&f);
    assert_true(f.moves[0].may_skip_desc);
    expect_known(&f, f.now);
    f.now += LEASE_MS * MS - 1;
    get_where_known(&f);
    assert_true(f.moves[0].may_skip_desc);
    kvp_loclease_renew(&f.lone.lease, f.now, LEASE_MS, LEASE_MS);
    f.now++;
    get_where_known(&f);
    assert_false(f.moves[0].may_skip_desc);
    teardown_known(&f);
}

/* The location lease lasts; what was told is too long ago once the bytes are there. No master is needed for that. */
static void
test_sum_alone_that_came_too_late_is_read_again_with_its_descriptor(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn_with_sum(&f);
    get_where_known(&f);
    f.now += LEASE_MS * MS;
    kvp_loclease_renew(&f.lone.lease, f.now, LEASE_MS, LEASE_MS);
    kvp_getop_on_moved(&f.op, f.now);
    assert_int_equal(f.op.known_n, 0);
    expect_moves(&f, 1);
    assert_false(f.moves[0].may_skip_desc);
    expect_known(&f, f.now + LEASE_MS * MS - 1);
    teardown_known(&f);
}

/* With the location lease over as well the bytes are nothing. */
static void
test_sum_alone_that_came_after_the_lease_voids_the_read(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn_with_sum(&f);
    get_where_known(&f);
    f.now += LEASE_MS * MS;
    kvp_getop_on_moved(&f.op, f.now);
    assert_int_equal(f.op.known_n, 0);
    expect_through_master(&f, false, 0);
    teardown_known(&f);
}

/* A descriptor that says SEALED is as good as the master's word. */
static void
test_descriptor_lets_the_sum_alone_vouch_again(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn_with_sum(&f);
    f.now += LEASE_MS * MS;
    kvp_loclease_renew(&f.lone.lease, f.now, LEASE_MS, LEASE_MS);
    get_where_known(&f);
    assert_true(f.moves[0].has_desc);
    expect_known(&f, f.now + 1);
    get_where_known(&f);
    assert_true(f.moves[0].may_skip_desc);
    expect_known(&f, f.now + LEASE_MS * MS - 1);
    teardown_known(&f);
}

static void
test_wrong_sum_at_a_known_location_forgets_it_and_asks(void **state)
{
    fixture_t f;

    (void)state;
    setup_known(&f, 1);
    learn_with_sum(&f);
    get_where_known(&f);
    f.moves[0].sum++;
    kvp_getop_on_moved(&f.op, f.now);
    assert_false(kvp_loccache_has(&f.lone.cache, digest_of(&f, 0), 7));
    assert_int_equal(f.op.stale_n, 1);
    expect_through_master(&f, true, 0);
    teardown_known(&f);
}

static uint32_t
higher_is_nearer(void *arg, uint32_t segment_id)
{
    (void)arg;
    return KVP_REPLICAS_MAX - segment_id;
}

static void
test_the_nearest_replica_comes_first(void **state)
{
    fixture_t f;

    (void)state;
    setup(&f, 1);
    f.op.rank = higher_is_nearer;
    give_session(&f, 1);
    expect_get_all(&f);
    answer_obj(&f.answer, KVP_OK, KVP_REPLICAS_MAX, 100, 0, 5);
    reply(&f);
    for (uint32_t want = KVP_REPLICAS_MAX; want >= 1; want--) {
        expect_moves(&f, 1);
        assert_int_equal(f.moves[0].loc.segment_id, want);
        if (want > 1) f.moves[0].err = KVP_NODE_LOST;
        kvp_getop_on_moved(&f.op, f.now);
    }
    expect_step(&f, KVP_STEP_DONE);
    assert_int_equal(f.items[0].err, KVP_OK);
    teardown(&f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_from_known_locations_sends_nothing),
        cmocka_unit_test(test_get_asks_for_what_is_not_known),
        cmocka_unit_test(test_get_without_a_lease_asks),
        cmocka_unit_test(test_lease_that_ends_while_reading_voids_the_read),
        cmocka_unit_test(test_lease_that_lasts_one_moment_longer_will_do),
        cmocka_unit_test(test_revocation_while_reading_voids_the_read),
        cmocka_unit_test(test_revocation_of_others_does_not),
        cmocka_unit_test(test_miss_at_a_known_location_forgets_it_and_asks),
        cmocka_unit_test(test_known_replica_is_fallen_back_on),
        cmocka_unit_test(test_answers_are_kept_as_the_master_says),
        cmocka_unit_test(test_sum_alone_vouches_for_the_time_of_a_lease),
        cmocka_unit_test(test_sum_alone_that_came_too_late_is_read_again_with_its_descriptor),
        cmocka_unit_test(test_sum_alone_that_came_after_the_lease_voids_the_read),
        cmocka_unit_test(test_descriptor_lets_the_sum_alone_vouch_again),
        cmocka_unit_test(test_wrong_sum_at_a_known_location_forgets_it_and_asks),
        cmocka_unit_test(test_the_nearest_replica_comes_first),
    };

    return cmocka_run_group_tests_name("getop_known", tests, NULL, NULL);
}
