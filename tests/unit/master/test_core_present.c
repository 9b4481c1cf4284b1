/* SPDX-License-Identifier: Apache-2.0
 * What clients held in a session that was lost, and present again in the next: what of it is honoured, and what a
 * master that took over keeps until they have come. */
#include "tests/unit/master/rig.h"

#define SMALL (8 * KIB)
#define BLOCKS (MIB / SMALL)
#define LEASE (5 * SEC)

/* Each test fills it with "old/" blocks. */
static const kvp_master_conf_t with_log = {.has_journal = true, .lease_ns = LEASE, .location_grace_ns = MS};
static const rig_conf_t full_of_old = {.conf = {.lease_ns = LEASE, .location_grace_ns = MS}, .size = MIB};

/* ---- doing */
static kvp_err_t
put_sealed(peer_t *c, const char *key, uint32_t wait_ms)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;

    like.wait_ms = wait_ms;
    return put_like(c, &(put_t){.key = key, .len = SMALL}, &like);
}

static void
fill_sealed(peer_t *c, const char *prefix, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(put_sealed(c, key_name(prefix, i), 1000), KVP_OK);
}

static kvp_wire_present_t
reservation(const world_t *w, const char *key, uint32_t ttl_ms)
{
    return (kvp_wire_present_t){.digest = digest_of(w, key), .ttl_ms = ttl_ms, .kind = KVP_PRESENT_RESERVE};
}

static kvp_wire_present_t
view_hold(const world_t *w, const char *key, uint64_t version)
{
    return (kvp_wire_present_t){.digest = digest_of(w, key), .version = version, .kind = KVP_PRESENT_HOLD};
}

/* Returns when they are to be presented again; 0 = no more. */
static uint32_t
present(peer_t *c, const kvp_wire_present_t *recs, uint32_t n, kvp_wire_presented_t *answers)
{
    Kvp__Pb__Present head = KVP__PB__PRESENT__INIT;
    Kvp__Pb__PresentReply *reply;
    uint32_t retry_ms;
    kvp_pb_t pb;
    reply_t *r;

    head.n = n;
    r = peer_reply(c, peer_send(c, KVP_OP_PRESENT, 0, &head.base, recs, n * sizeof *recs));
    assert_non_null(r);
    reply = kvp_pb_unpack(&pb, &kvp__pb__present_reply__descriptor, &r->frame);
    assert_non_null(reply);
    assert_int_equal(reply->err, KVP_OK);
    assert_int_equal(reply->n, n);
    assert_int_equal(r->frame.tail_len, n * sizeof *answers);
    memcpy(answers, r->frame.tail, n * sizeof *answers);
    retry_ms = reply->retry_ms;
    kvp_pb_free(&pb, reply);
    reply_free(r);
    return retry_ms;
}

static kvp_err_t
present_one(peer_t *c, kvp_wire_present_t rec, uint64_t *ticket_out)
{
    kvp_wire_presented_t answer;
    uint32_t retry_ms = present(c, &rec, 1, &answer);

    assert_int_equal(retry_ms > 0, answer.err == KVP_RETRY_AFTER);
    assert_int_equal(answer.ticket != 0, answer.err == KVP_OK);
    if (ticket_out != NULL) *ticket_out = answer.ticket;
    return answer.err;
}

/* ---- a new term */
RIG_TEST(test_reservation_when_the_master_is_new, full_of_old)
{
    fill_sealed(g->c, "old/", BLOCKS);
    rig_restart_told(g);
    assert_int_equal(present_one(g->c, reservation(g->w, "old/5", 4000), NULL), KVP_OK);
    assert_int_equal(world_stats(g->w).reserved_bytes, SMALL);
    assert_int_equal(world_stats(g->w).presented, 1);
    assert_int_equal(remove_key(g->c, "old/5", false), KVP_HELD);
    world_advance(g->w, 2100 * MS);
    fill_sealed(g->c, "new/", 2 * BLOCKS);
    assert_true(exists(g->c, "old/5"));
    assert_false(exists(g->c, "old/6"));
    world_advance(g->w, 2 * SEC); /* its time goes on where it was */
    assert_int_equal(world_stats(g->w).reserved_bytes, 0);
}

/* For a while nothing older is taken away, since somebody may come for it; new objects may be removed, and put where
 * there is room. */
RIG_TEST(test_nothing_is_taken_before_sessions_are_back, full_of_old)
{
    fill_sealed(g->c, "old/", BLOCKS);
    assert_int_equal(remove_key(g->c, "old/0", true), KVP_OK);
    rig_restart_told(g);
    assert_int_equal(remove_key(g->c, "old/1", false), KVP_RETRY_AFTER);
    world_advance(g->w, 500 * MS);
    assert_int_equal(put_sealed(g->c, "new", 100), KVP_OK); /* where old/0 was */
    assert_int_equal(remove_key(g->c, "new", false), KVP_OK);
    assert_int_equal(put_sealed(g->c, "new", 100), KVP_OK);
    assert_int_equal(put_sealed(g->c, "late", 500), KVP_RETRY_AFTER);
    assert_int_equal(world_stats(g->w).evictions, 0);
    assert_int_equal(put_sealed(g->c, "late", 1500), KVP_OK); /* it waits that long */
    assert_int_equal(remove_key(g->c, "old/100", false), KVP_OK);
}

/* What no node has brought yet is asked for again; and when it is brought late there is time to do so. */
RIG_TEST(test_presented_before_its_node_reports, full_of_old)
{
    fill_sealed(g->c, "old/", BLOCKS);
    rig_restart(g);
    assert_int_equal(present_one(g->c, reservation(g->w, "old/5", 4900), NULL), KVP_RETRY_AFTER);
    world_advance(g->w, 3 * SEC);
    (void)node_open(g->w, g->a);
    assert_int_equal(remove_key(g->c, "old/5", false), KVP_RETRY_AFTER);
    assert_int_equal(present_one(g->c, reservation(g->w, "old/5", 1900), NULL), KVP_OK);
    world_advance(g->w, 600 * MS);
    fill_sealed(g->c, "new/", 2 * BLOCKS);
    assert_true(exists(g->c, "old/5"));
}

/* The log is whole, so the master knows all objects; the node is not back yet, so the pool has no memory. */
RIG_TEST_ON(test_presented_before_its_node_mounts, .conf = with_log, .size = MIB)
{
    fill_sealed(g->c, "old/", BLOCKS);
    world_advance(g->w, SEC);
    rig_restart(g);
    assert_int_equal(present_one(g->c, reservation(g->w, "old/5", 4900), NULL), KVP_RETRY_AFTER);
    (void)node_open(g->w, g->a);
    assert_int_equal(present_one(g->c, reservation(g->w, "old/5", 4900), NULL), KVP_OK);
}

RIG_TEST(test_gone_is_not_waited_for, full_of_old)
{
    uint64_t version;

    fill_sealed(g->c, "old/", BLOCKS);
    version = found(g->c, "old/7", NULL);
    rig_restart_told(g);
    assert_int_equal(present_one(g->c, reservation(g->w, "never", 1000), NULL),
                     KVP_RETRY_AFTER); /* another node may have it */
    assert_int_equal(remove_key(g->c, "old/7", true), KVP_OK);
    assert_int_equal(present_one(g->c, view_hold(g->w, "old/7", version), NULL), KVP_NOT_FOUND);
    world_advance(g->w, 31 * SEC); /* now no node is expected any more */
    assert_int_equal(present_one(g->c, reservation(g->w, "never", 1000), NULL), KVP_NOT_FOUND);
    assert_int_equal(present_one(g->c, reservation(g->w, "old/7", 1000), NULL), KVP_NOT_FOUND);
}

/* ---- views */
RIG_TEST(test_view_is_of_one_version, full_of_old)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = "old/9", .len = SMALL};
    uint64_t version, newer, ticket;

    fill_sealed(g->c, "old/", BLOCKS);
    version = found(g->c, "old/9", NULL);
    rig_restart_told(g);
    assert_int_equal(present_one(g->c, view_hold(g->w, "old/9", version), &ticket), KVP_OK);
    assert_int_equal(world_stats(g->w).held_bytes, SMALL);
    assert_int_equal(remove_key(g->c, "old/9", false), KVP_HELD);
    release(g->c, ticket);
    assert_int_equal(world_stats(g->w).held_bytes, 0);
    like.is_upsert = true;
    like.wait_ms = 3000;
    assert_int_equal(put_like(g->c, &one, &like), KVP_OK);
    newer = found(g->c, "old/9", NULL);
    assert_true(newer > version);
    assert_int_equal(present_one(g->c, view_hold(g->w, "old/9", version), NULL), KVP_NOT_FOUND);
    assert_int_equal(present_one(g->c, view_hold(g->w, "old/9", newer), NULL), KVP_OK);
    assert_int_equal(present_one(g->c, reservation(g->w, "old/9", 1000), NULL), KVP_OK);
}

/* ---- bounds */
RIG_TEST(test_sets_and_bounds, full_of_old)
{
    kvp_wire_present_t recs[12];
    kvp_wire_presented_t answers[12];

    fill_sealed(g->c, "old/", BLOCKS);
    peer_lose(g->c); /* within one term nothing else is to come, and what is beyond the bounds is lost */
    g->c = client_open(g->w);
    for (uint32_t i = 0; i < 12; i++) {
        recs[i] = reservation(g->w, key_name("old/", i), 3000);
        recs[i].set = i / 3;
    }
    recs[4].digest = digest_of(g->w, "never");
    assert_int_equal(present(g->c, recs, 12, answers), 0);
    for (uint32_t i = 0, granted = 0; i < 12; i++) {
        kvp_err_t want = i == 4 ? KVP_NOT_FOUND : ++granted <= MIB / 20 / SMALL ? KVP_OK : KVP_LIMIT;

        assert_int_equal(answers[i].err, want);
        assert_int_equal(answers[i].ticket != 0, want == KVP_OK);
        if (i % 3 != 0 && i != 4 && i != 5 && want == KVP_OK)
            assert_int_equal(answers[i].ticket, answers[i - 1].ticket);
    }
    assert_int_equal(answers[3].ticket, answers[5].ticket);
    assert_int_not_equal(answers[0].ticket, answers[3].ticket);
    release(g->c, answers[0].ticket);
    assert_int_equal(world_stats(g->w).reserved_bytes, (MIB / 20 / SMALL - 3) * SMALL);
}

RIG_TEST(test_records_that_mean_nothing, full_of_old)
{
    kvp_wire_present_t rec;

    fill_sealed(g->c, "old/", BLOCKS);
    assert_int_equal(present_one(g->c, reservation(g->w, "old/0", 0), NULL), KVP_NOT_FOUND);
    rec = reservation(g->w, "old/0", 1000);
    rec.kind = KVP_PRESENT_GROUP + 1;
    assert_int_equal(present_one(g->c, rec, NULL), KVP_INVALID);
    rec.kind = 0;
    assert_int_equal(present_one(g->c, rec, NULL), KVP_INVALID);
    rec.kind = KVP_PRESENT_GROUP;
    assert_int_equal(present_one(g->c, rec, NULL), KVP_NOT_FOUND);
    assert_int_equal(world_stats(g->w).reserved_bytes + world_stats(g->w).held_bytes, 0);
}

/* A group's reservation is as long in coming as the group. */
TEST(test_group_is_reserved_when_it_is_whole)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    world_t *w = world_open(&(kvp_master_conf_t){.lease_ns = LEASE, .location_grace_ns = MS});
    mem_t *a = mem_make(w, "a", MIB, MIB), *b = mem_make(w, "b", MIB, MIB);
    kvp_wire_present_t rec = {.ttl_ms = 3000, .kind = KVP_PRESENT_GROUP};
    mem_t *mems[] = {a, b};
    peer_t *c, *n;

    for (uint32_t i = 0; i < 2; i++) { /* a member on each */
        n = node_open_on(w, mems[i], mems[i]->name);
        c = client_open(w);
        put_t one = {.key = key_name("member/", i), .len = SMALL, .group = group_of(c, "group", 2, i)};
        assert_int_equal(put_like(c, &one, &like), KVP_OK);
        if (i == 0) peer_lose(n);
    }
    world_restart(w);
    c = client_open(w);
    rec.digest = group_of(c, "group", 2, 0).group;
    (void)node_open_on(w, a, "a");
    assert_int_equal(present_one(c, rec, NULL), KVP_RETRY_AFTER);
    (void)node_open_on(w, b, "b");
    assert_int_equal(present_one(c, rec, NULL), KVP_OK);
    assert_int_equal(world_stats(w).reserved_bytes, 2 * SMALL);
    assert_int_equal(remove_key(c, "member/0", false), KVP_HELD);
    world_close(w);
}

RIG_TEST(test_present_of_nothing_closes, full_of_old)
{
    Kvp__Pb__Present head = KVP__PB__PRESENT__INIT;

    fill_sealed(g->c, "old/", BLOCKS);
    (void)peer_send(g->c, KVP_OP_PRESENT, 0, &head.base, NULL, 0);
    world_pump(g->w);
    assert_true(g->c->was_closed);
}

TEST_MAIN()
