/* SPDX-License-Identifier: Apache-2.0
 * The put machine where more is asked for than a copy of what is new: replicas, groups, pins, upserts. */
#include "client/cache/locations.h"
#include "tests/unit/client/putop_fixture.h"

/* The copies that the commit at hand calls whole. */
static uint32_t
committed_copies(void)
{
    kvp_frame_t frame;

    parse_out(&f.out, KVP_OP_PUT_COMMIT, &frame);
    return ((const kvp_wire_commit_t *)frame.tail)->replicas;
}

TEST(test_put_commits_all_replicas_together)
{
    to_fill(2);
    assert_int_equal(f.moves[1].loc.segment_id, 2);
    moved();
    seal_and_commit(2, 1);
    assert_int_equal(committed_copies(), 3);
}

/* Copies are sealed when they are known to be alike, however small they are. */
TEST(test_put_of_copies_takes_two_moves)
{
    setup(1);
    f.items[0].is_host = true;
    give_session(1);
    expect_begin(0, 1);
    reply_granted(1, 2);
    expect_moves(KVP_MOVE_FILL, 2);
    moved();
    expect_moves(KVP_MOVE_SEAL, 2);
}

TEST(test_put_leaves_out_a_replica_that_failed)
{
    to_fill(3);
    f.moves[0].err = KVP_NODE_LOST;
    moved();
    expect_moves(KVP_MOVE_SEAL, 2);
    assert_int_equal(f.moves[0].loc.segment_id, 2);
    f.moves[0].err = KVP_NODE_LOST;
    moved();
    expect_commit(1);
    assert_int_equal(committed_copies(), 4);

    to_fill(2); /* of the last one everything depends on it */
    f.moves[0].err = f.moves[1].err = KVP_DEADLINE;
    moved();
    expect_abort(f.asked, 1, true);
    expect_done(KVP_DEADLINE);
}

/* By a grant that is older than the way to a node nothing is written there: the attempt is begun again at once, with
 * all copies. Where that way keeps ending the other copy has to do. */
TEST(test_put_is_begun_again_where_a_way_is_younger)
{
    uint64_t began_ns;

    to_fill(2);
    for (uint32_t again = 0; again < 4; again++) {
        f.moves[1].err = KVP_EAGAIN;
        moved();
        expect_abort(f.asked, 1, true);
        began_ns = f.now += 7;
        expect_begin(0, 1);
        f.now += 5;
        reply_granted(1, 2);
        expect_moves(KVP_MOVE_FILL, 2);
        assert_int_equal(f.moves[0].granted_ns, began_ns);
        assert_int_equal(f.moves[1].granted_ns, began_ns);
    }
    f.moves[1].err = KVP_EAGAIN;
    moved();
    seal_and_commit(1, 1);
    assert_int_equal(committed_copies(), 1);
}

/* The copies of one object are sealed in two steps, and nothing is left to do in the second. */
TEST(test_put_leaves_out_the_last_replica_when_moves_are_few)
{
    to_fill(2);
    f.moves[1].err = KVP_NODE_LOST;
    moved();
    f.op.moves_cap = 1;
    seal_and_commit(1, 1);
    assert_int_equal(committed_copies(), 1);
}

TEST(test_put_refuses_replicas_that_differ)
{
    to_fill(2);
    f.moves[1].sum++; /* the caller wrote into the buffer meanwhile */
    moved();
    expect_abort(f.asked, 1, true);
    expect_done(KVP_CORRUPT);
}

/* Bytes that one copy got from an adapter alone have the sum that another copy's way took. */
TEST(test_put_takes_the_sum_of_the_replica_that_has_one)
{
    for (uint32_t without = 0; without < 2; without++) {
        to_fill(2);
        f.moves[without].has_sum = false;
        f.moves[without].sum = 0;
        moved();
        expect_moves(KVP_MOVE_SEAL, 2);
        assert_int_equal(f.moves[0].desc.sum, 1000);
        assert_int_equal(f.moves[1].desc.sum, 1000);
        moved();
        expect_commit(1);
    }
}

TEST(test_put_says_what_is_asked_for)
{
    Kvp__Pb__PutBegin *head;
    const kvp_wire_group_t *groups;
    const kvp_wire_lineage_t *lineages;
    kvp_frame_t frame;
    kvp_pb_t pb;

    setup(2);
    f.items[0].lineage = (kvp_wire_lineage_t){1, 2, 3, 1};
    f.op.replicas = 3;
    f.op.pin = KVP_PIN_SOFT;
    f.op.committed = KVP_COMMITTED_REPLACED;
    f.items[1].group = "g";
    f.items[1].group_len = 1;
    f.items[1].group_members = 4;
    f.items[1].group_member = 2;
    give_session(1);
    expect_step(KVP_STEP_CALL);
    parse_out(&f.out, KVP_OP_PUT_BEGIN, &frame);
    head = kvp_pb_unpack(&pb, &kvp__pb__put_begin__descriptor, &frame);
    assert_non_null(head);
    assert_int_equal(head->replicas, 3);
    assert_int_equal(head->pin, KVP_PIN_SOFT);
    assert_true(head->is_upsert && head->has_groups && head->has_lineages);
    kvp_pb_free(&pb, head);
    groups = (const kvp_wire_group_t *)(frame.tail + 2 * sizeof(kvp_wire_put_t));
    assert_true(kvp_digest_eq(groups[0].group, (kvp_digest_t){0, 0}));
    assert_true(kvp_digest_eq(groups[1].group, kvp_key_digest(f.session.digest_seed, 0, "g", 1)));
    assert_int_equal(groups[1].members, 4);
    assert_int_equal(groups[1].member, 2);
    lineages = (const kvp_wire_lineage_t *)(groups + 2);
    assert_memory_equal(&lineages[0], &f.items[0].lineage, sizeof lineages[0]);
    assert_int_equal(lineages[1].is_told, 0);
    assert_memory_equal(lineages + 2, keys[0], strlen(keys[0]));
}

static uint32_t
avoid_two(void *arg, uint32_t ids[KVP_AVOID_MAX])
{
    uint32_t *calls = arg;

    ids[0] = 7;
    ids[1] = 8 + (*calls)++;
    return 2;
}

/* The answer to that question stands, so what cannot be reached is told anew with each. */
TEST(test_put_names_what_cannot_be_reached)
{
    Kvp__Pb__PutBegin *head;
    kvp_frame_t frame;
    uint32_t calls = 0;
    kvp_pb_t pb;

    setup(1);
    f.op.avoid = avoid_two;
    f.op.avoid_arg = &calls;
    give_session(1);
    for (uint32_t turn = 0; turn < 2; turn++) {
        expect_begin(0, 1);
        parse_out(&f.out, KVP_OP_PUT_BEGIN, &frame);
        head = kvp_pb_unpack(&pb, &kvp__pb__put_begin__descriptor, &frame);
        assert_non_null(head);
        assert_int_equal(head->n_avoid, 2);
        assert_int_equal(head->avoid[0], 7);
        assert_int_equal(head->avoid[1], 8 + turn);
        kvp_pb_free(&pb, head);
        reply_granted(1, 1);
        expect_moves(KVP_MOVE_FILL, 1);
        f.moves[0].err = turn == 0 ? KVP_NODE_LOST : KVP_NOTSUP; /* either way it may go well elsewhere */
        moved();
        expect_abort(f.asked, 1, true);
        f.now = expect_step(KVP_STEP_SLEEP).until_ns;
    }
    finish_well();
}

/* Whether a silent node may be left: only where another copy is written that is enough. */
TEST(test_put_says_where_copies_are_written)
{
    to_fill(1);
    assert_false(f.op.has_copies);
    to_fill(2);
    assert_true(f.op.has_copies);
    f.moves[0].err = KVP_NODE_LOST;
    moved();
    expect_moves(KVP_MOVE_SEAL, 1);
    assert_false(f.op.has_copies);
}

/* The old value's place may not be read from any more by who replaced it. */
TEST(test_upsert_forgets_the_known_location)
{
    kvp_cached_place_t place = {.version = 7, .len = 100, .nloc = 1};
    kvp_locations_t *locs;
    const kvp_known_t *known;
    kvp_digest_t digest;

    assert_int_equal(kvp_locations_create(1024, &locs), KVP_OK);
    known = kvp_locations_known(locs);
    setup(1);
    f.op.committed = KVP_COMMITTED_REPLACED;
    expect_step(KVP_STEP_SESSION);
    f.session = test_session(1);
    f.session.known = known;
    kvp_putop_on_session(&f.op, &f.session);
    digest = kvp_op_digest(&f.session, keys[0], strlen(keys[0]));
    assert_true(known->keep(known, digest, &place, 0));
    expect_begin(0, 1);
    reply_granted(1, 1);
    fill_and_commit(1);
    assert_true(known->has(known, digest, 7));
    reply_committed(KVP_OK);
    assert_false(known->has(known, digest, 7));
    expect_done(KVP_OK);
    kvp_locations_destroy(locs);
}

/* A master from before upserts leaves the old value there, which must not pass for success. */
TEST(test_upsert_is_never_already_there)
{
    setup(1);
    f.op.committed = KVP_COMMITTED_REPLACED;
    give_session(1);
    expect_begin(0, 1);
    reply_refused(KVP_ALREADY);
    expect_done(KVP_NOTSUP);
}

TEST_MAIN_WITH(NULL, teardown)
