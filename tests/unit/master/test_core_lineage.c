/* SPDX-License-Identifier: Apache-2.0
 * Lineages: what is given with a put is told with a get, outlives the master with its log, and is nothing but told. */
#include "tests/unit/master/rig.h"

#define SMALL (8 * KIB)

static const kvp_master_conf_t with_log = {.has_journal = true, .location_lease_ns = MS, .location_grace_ns = MS};
static const kvp_master_conf_t plain;
static const kvp_wire_lineage_t none, some = {UINT64_MAX, 7, UINT32_MAX, 1}, other = {0, 0, 0, 1};

/* Holds what a get says, where it is asked for and where it is not, against that. */
static void
check_lineage(peer_t *c, const char *key, kvp_wire_lineage_t expected)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = digest_of(c->world, key);
    size_t without;
    places_t p;

    head.n = 1;
    head.no_hold = true;
    for (uint32_t wants = 0; wants < 2; wants++) {
        head.wants_lineages = wants != 0;
        places_read(peer_reply(c, peer_send(c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest)), &p);
        without = sizeof *p.objs + p.nloc * sizeof *p.locs;
        assert_int_equal(p.reply->frame.tail_len, without + wants * sizeof expected);
        if (wants != 0) assert_memory_equal(p.locs + p.nloc, &expected, sizeof expected);
        places_free(&p);
    }
}

static kvp_err_t
put_as(peer_t *c, const char *key, kvp_wire_lineage_t lineage, bool is_upsert, uint32_t copies)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = key, .len = SMALL, .lineage = lineage};

    like.is_upsert = is_upsert;
    like.replicas = copies;
    return put_like(c, &one, &like);
}

/* Fails if a get tells another lineage than that of the version which it finds. */
RIG_TEST_ON(test_lineage_is_that_of_the_version, .conf = with_log, .size = MIB)
{
    check_lineage(g->c, "key", none);
    assert_int_equal(put_as(g->c, "key", some, false, 1), KVP_OK);
    assert_int_equal(put_as(g->c, "key", other, false, 1), KVP_ALREADY);
    check_lineage(g->c, "key", some);
    assert_int_equal(put_as(g->c, "key", other, true, 1), KVP_OK);
    check_lineage(g->c, "key", other);
    assert_int_equal(put_as(g->c, "key", none, true, 1), KVP_OK);
    check_lineage(g->c, "key", none);
    assert_int_equal(put_as(g->c, "key", some, true, 1), KVP_OK);
    assert_int_equal(remove_key(g->c, "key", true), KVP_OK);
    check_lineage(g->c, "key", none);
}

/* Fails if the log, or a base alone, does not say the lineage of each object. */
RIG_TEST_ON(test_lineage_outlives_the_master, .conf = with_log, .mems = 2, .size = MIB)
{
    char long_key[KVP_KEY_MAX + 1] = "";
    uint64_t from;

    memset(long_key, 'l', KVP_KEY_MAX);
    assert_int_equal(put_as(g->c, "plain", none, false, 1), KVP_OK);
    assert_int_equal(put_as(g->c, long_key, other, false, 2), KVP_OK);
    assert_int_equal(put_as(g->c, "new", other, false, 1), KVP_OK);
    assert_int_equal(put_as(g->c, "new", some, true, 1), KVP_OK);
    for (uint32_t base = 0; base < 2; base++) {
        rig_restart_told(g);
        check_lineage(g->c, "plain", none);
        check_lineage(g->c, long_key, other);
        check_lineage(g->c, "new", some);
        if (base > 0) break;
        assert_true(kvp_master_snapshot(g->w->m));
        world_advance(g->w, SEC);
        assert_true(world_take_forgotten(g->w, &from));
        kvp_buf_consume(&g->w->journal, from - g->w->journal_from);
        g->w->journal_from = from;
    }
}

/* Fails if a master that believes nodes serves less than they have, or makes a lineage up, or a new version cannot have
 * one. */
RIG_TEST_ON(test_lineage_is_lost_with_the_log, .conf = with_log, .mems = 2, .size = MIB)
{
    uint32_t copies;

    assert_int_equal(put_as(g->c, "key", some, false, 2), KVP_OK);
    g->w->is_boot_new = true; /* the log, if there is one, may lack its end */
    rig_restart_told(g);
    assert_true(found(g->c, "key", &copies) > 0 && copies == 2);
    check_lineage(g->c, "key", none);
    assert_int_equal(put_as(g->c, "key", some, true, 2), KVP_OK);
    check_lineage(g->c, "key", some);
}

RIG_TEST_ON(test_lineage_is_lost_without_a_log, .conf = plain, .mems = 2, .size = MIB)
{
    test_lineage_is_lost_with_the_log_on(g);
}

/* Fails if what is no lineage is kept, or keys are taken for lineages. */
RIG_TEST_ON(test_lineage_that_is_none, .conf = plain, .size = MIB)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    kvp_wire_put_t recs[2] = {{.digest = digest_of(g->w, ""), .len = SMALL, .attempt = 99, .key_len = 1}};

    assert_int_equal(put_as(g->c, "key", (kvp_wire_lineage_t){1, 2, 3, 2}, false, 1), KVP_INVALID);
    assert_int_equal(put_as(g->c, "key", (kvp_wire_lineage_t){0, 0, 3, 0}, false, 1), KVP_INVALID);
    assert_false(exists(g->c, "key"));
    head.n = 1;
    head.has_lineages = true;
    (void)peer_send(g->c, KVP_OP_PUT_BEGIN, 0, &head.base, recs, sizeof *recs + sizeof none - 1);
    assert_true(g->c->was_closed);
}

TEST_MAIN()
