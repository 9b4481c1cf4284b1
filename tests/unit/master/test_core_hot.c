/* SPDX-License-Identifier: Apache-2.0
 * Hot copies: an object that other hosts read much gets a copy near its readers, and loses the copy afterwards. ADR
 * 0055. a and b are on hosts of their names; the readers of these tests are on b, or on a host without memory. */
#include "proto/jrec.h"
#include "tests/unit/master/rig.h"

#define LEN (64 * KIB)
#define WINDOW (10 * SEC)
#define HOT (200u) /* reads in a window: above 1 MB/s */
#define HOT_CONF                                                                                                       \
    {                                                                                                                  \
        .location_lease_ns = MS, .location_grace_ns = MS, .hot_bytes_per_s = 1000000                                   \
    }

static const kvp_master_conf_t off = {.location_lease_ns = MS, .location_grace_ns = MS};

static const kvp_master_conf_t log_conf = {
    .has_journal = true, .location_lease_ns = MS, .location_grace_ns = MS, .hot_bytes_per_s = 1000000};

static peer_t *
reader_on(rig_t *g, const char *host)
{
    peer_t *c = peer_open(g->w);

    assert_int_equal(peer_hello(c, KVP_ROLE_CLIENT, "reader", host), KVP_OK);
    return c;
}

/* b can copy, and comes after what is put to a before. */
static void
begin_b(rig_t *g)
{
    g->w->check_every = 1;
    g->b->can_copy = true;
    g->nb = node_open_on(g->w, g->b, "b");
}

static void
read_known(peer_t *c, const char *key, uint32_t reads)
{
    Kvp__Pb__Used head = KVP__PB__USED__INIT;
    kvp_wire_used_t used = {.reads = reads, .digest = digest_of(c->world, key)};

    head.n = 1;
    (void)peer_send(c, KVP_OP_USED, KVP_FRAME_ONEWAY, &head.base, &used, sizeof used);
}

/* The client reads each of the keys so often in a window, for some windows. */
static void
read_for(peer_t *c, uint32_t keys, uint32_t reads, uint32_t windows)
{
    for (uint32_t i = 0; i < 10 * windows; i++) {
        for (uint32_t k = 0; k < keys; k++)
            read_known(c, key_name("key/", k), reads / 10);
        world_advance(c->world, WINDOW / 10);
    }
}

static uint32_t
copies_of(peer_t *c, const char *key)
{
    uint32_t copies = 0;

    assert_true(found(c, key, &copies) > 0);
    return copies;
}

static void
get_kept(peer_t *c, const char *key)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = digest_of(c->world, key);
    places_t p;

    head.n = 1;
    head.keep_here = true;
    places_read(peer_wait(c, peer_send(c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest), SEC), &p);
    assert_int_equal(p.err, KVP_OK);
    release(c, p.ticket);
    places_free(&p);
}

RIG_TEST_ON(test_a_hot_object_has_a_copy_at_its_readers_until_they_end, .conf = HOT_CONF, .size = 4 * MIB,
            .size_b = 4 * MIB, .mems = 2, .nodes = 1)
{
    peer_t *c = reader_on(g, "b");

    fill(g->c, 0, 2, LEN);
    begin_b(g);
    c->wants_lease = true;
    world_advance(g->w, SEC);
    read_for(c, 1, HOT, 4);
    assert_int_equal(copies_of(g->c, "key/0"), 2);
    assert_int_equal(copies_of(g->c, "key/1"), 1);
    assert_int_equal(home_of(c, "key/0"), g->b->segment_id);
    assert_int_equal(c->applied_seq, 1); /* it was to ask again */
    assert_int_equal(world_stats(g->w).hot_copies, 1);
    assert_int_equal(world_stats(g->w).hot_bytes, LEN);
    read_for(c, 1, HOT, 7); /* reads of the copy keep it */
    assert_int_equal(copies_of(g->c, "key/0"), 2);
    read_for(c, 1, HOT / 10, 8); /* under a quarter */
    assert_int_equal(copies_of(g->c, "key/0"), 1);
    assert_int_equal(home_of(c, "key/0"), g->a->segment_id);
    assert_int_equal(world_stats(g->w).hot_copies, 1);
    assert_int_equal(world_stats(g->w).hot_dropped, 1);
}

RIG_TEST_ON(test_what_is_read_once_or_near_by_or_seldom_is_not_copied, .conf = HOT_CONF, .size = 4 * MIB,
            .size_b = 4 * MIB, .mems = 2, .nodes = 1)
{
    peer_t *c = reader_on(g, "b"), *near = reader_on(g, "a");

    fill(g->c, 0, 1, LEN);
    begin_b(g);
    world_advance(g->w, SEC);
    read_known(c, "key/0", UINT32_MAX); /* one burst is in one window */
    read_for(near, 1, 10 * HOT, 4);
    read_for(c, 1, HOT / 2, 4);
    assert_int_equal(copies_of(g->c, "key/0"), 1);
    assert_int_equal(world_stats(g->w).hot_copies, 0);
}

RIG_TEST_ON(test_nothing_is_copied_when_that_is_off, .conf = off, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2,
            .nodes = 1)
{
    peer_t *c = reader_on(g, "b");

    fill(g->c, 0, 1, LEN);
    begin_b(g);
    read_for(c, 1, 100 * HOT, 4);
    get_kept(c, "key/0");
    world_advance(g->w, WINDOW);
    assert_int_equal(world_stats(g->w).hot_copies, 0);
}

/* Readers on a host without memory: the copy shares the reads with the other one, and there is no third one for less
 * than twice the reads. The readers are sent to the copies in turn. */
RIG_TEST_ON(test_copies_share_the_readers_of_other_hosts, .conf = HOT_CONF, .size = 4 * MIB, .size_b = 4 * MIB,
            .mems = 2, .nodes = 1)
{
    mem_t *third = mem_make(g->w, "c", 4 * MIB, 4 * MIB);
    uint32_t at_a = 0;
    peer_t *c;

    fill(g->c, 0, 1, LEN);
    begin_b(g);
    third->can_copy = true;
    (void)node_open_on(g->w, third, "c");
    c = reader_on(g, "elsewhere");
    read_for(c, 1, HOT, 6);
    assert_int_equal(copies_of(g->c, "key/0"), 2);
    for (uint32_t i = 0; i < 8; i++)
        at_a += home_of(reader_on(g, "elsewhere"), "key/0") == g->a->segment_id;
    assert_int_equal(at_a, 4);
    read_for(c, 1, 3 * HOT, 4);
    assert_int_equal(copies_of(g->c, "key/0"), 3);
}

/* A sixteenth of b's memory has room for three extents. */
RIG_TEST_ON(test_hot_copies_are_few_and_go_before_other_objects, .conf = HOT_CONF, .size = 4 * MIB, .size_b = 4 * MIB,
            .mems = 2, .nodes = 1)
{
    peer_t *c = reader_on(g, "b");
    uint32_t i = 40, had = 0;

    fill(g->c, 0, 40, LEN);
    begin_b(g);
    read_for(c, 10, HOT, 4);
    for (uint32_t k = 0; k < 10; k++)
        had += copies_of(g->c, key_name("key/", k)) - 1;
    assert_in_range(had, 3, 4);
    while (world_stats(g->w).hot_dropped < had) { /* more objects than both memories hold */
        assert_in_range(i, 40, 200);
        assert_int_equal(put_wait(g->c, key_name("key/", i++), LEN, 1000), KVP_OK);
        world_advance(g->w, 20 * MS);
    }
    assert_int_equal(world_stats(g->w).hot_copies, had);
    assert_true(world_stats(g->w).evictions <= 10);
    assert_int_equal(count(g->c, 0, 10), 10);
    read_for(c, 10, HOT, 4); /* there was no room a moment ago */
    assert_int_equal(world_stats(g->w).hot_copies, had);
}

RIG_TEST_ON(test_a_reader_keeps_a_copy_on_its_host, .conf = HOT_CONF, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2,
            .nodes = 1)
{
    peer_t *c = reader_on(g, "b"), *far = reader_on(g, "elsewhere");
    uint32_t had = 0;

    fill(g->c, 0, 10, LEN);
    begin_b(g);
    get_kept(far, "key/9"); /* no node is on its host */
    get_kept(c, "key/0");
    world_advance(g->w, SEC);
    assert_int_equal(home_of(c, "key/0"), g->b->segment_id);
    assert_int_equal(copies_of(g->c, "key/9"), 1);
    for (uint32_t i = 0; i < 8; i++) { /* kept by gets, and not by time */
        world_advance(g->w, WINDOW);
        get_kept(c, "key/0");
    }
    assert_int_equal(copies_of(g->c, "key/0"), 2);
    for (uint32_t i = 0; i < 10; i++)
        get_kept(c, key_name("key/", i));
    world_advance(g->w, SEC);
    for (uint32_t i = 0; i < 10; i++)
        had += copies_of(g->c, key_name("key/", i)) - 1;
    assert_in_range(had, 3, 4); /* a sixteenth of b */
    world_advance(g->w, 8 * WINDOW);
    assert_int_equal(world_stats(g->w).hot_dropped, had);
}

/* Returns the number of records of drains in the log, in which the next master learns that nodes may have copies. */
static uint64_t
drains_logged(const rig_t *g)
{
    kvp_master_conf_t conf = g->w->conf;
    kvp_master_log_t told;
    kvp_master_t *m;

    world_sync(g->w);
    conf.had_master = true;
    assert_int_equal(kvp_master_create(&conf, g->w->now, &m), KVP_OK);
    kvp_ignore(kvp_master_read_log(m, g->w->journal.data, g->w->journal.len), "it is told");
    kvp_master_check_log(m, &told);
    kvp_master_destroy(m);
    assert_int_equal(told.err, KVP_OK);
    return told.records[KVP_JREC_DRAIN];
}

RIG_TEST_ON(test_the_next_master_learns_of_hot_copies, .conf = log_conf, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2,
            .nodes = 1)
{
    peer_t *c = reader_on(g, "b");

    fill(g->c, 0, 1, LEN);
    begin_b(g);
    world_advance(g->w, SEC);
    world_sync(g->w);
    g->w->is_disk_stuck = true;
    get_kept(c, "key/0");
    world_advance(g->w, SEC);
    world_done(g->w, KVP_DONE_WRITTEN, g->w->journal_from + g->w->journal.len);
    world_advance(g->w, MS);
    assert_true((g->w->wishes & KVP_MASTER_SYNCS) != 0);
    g->w->is_disk_stuck = false;
    world_advance(g->w, SEC);
    assert_int_equal(copies_of(g->c, "key/0"), 2);
    assert_int_equal(drains_logged(g), 1);
    assert_true(kvp_master_snapshot(g->w->m));
    assert_int_equal(drains_logged(g), 3); /* the base says so of both segments */
}

/* 40 nodes, and more hot objects than one step tries to copy. Each node has a sixteenth of its memory for three of
 * these copies, so they have to be on many nodes. */
RIG_TEST_ON(test_many_nodes_share_many_hot_objects, .conf = HOT_CONF, .size = 16 * MIB, .mems = 2, .nodes = 1)
{
    kvp_master_stats_t st;
    bool is_used[39] = {0};
    mem_t *mems[39];
    uint32_t used = 0;
    peer_t *c;

    fill(g->c, 0, 100, LEN);
    for (uint32_t i = 0; i < 39; i++) {
        char name[8];

        (void)snprintf(name, sizeof name, "n%u", i);
        mems[i] = mem_make(g->w, name, 4 * MIB, 4 * MIB);
        mems[i]->can_copy = true;
        (void)node_open_on(g->w, mems[i], name);
    }
    c = reader_on(g, "elsewhere");
    g->w->work_most = 0;
    read_for(c, 100, HOT, 5);
    st = world_stats(g->w);
    assert_in_range(st.hot_copies, 80, 100);
    assert_true(g->w->work_most <= 2048);
    for (uint32_t k = 0; k < 100; k++)
        for (uint32_t i = 0; i < 39; i++)
            is_used[i] |= home_of(c, key_name("key/", k)) == mems[i]->segment_id;
    for (uint32_t i = 0; i < 39; i++)
        used += is_used[i];
    assert_true(used >= 20);
}

/* The copy is the only one left when the first node has ended: it stays. */
RIG_TEST_ON(test_the_last_copy_stays, .conf = HOT_CONF, .size = 4 * MIB, .size_b = 4 * MIB, .mems = 2, .nodes = 1)
{
    peer_t *c = reader_on(g, "b");

    fill(g->c, 0, 1, LEN);
    begin_b(g);
    read_for(c, 1, HOT, 4);
    assert_int_equal(copies_of(g->c, "key/0"), 2);
    peer_lose(g->na);
    world_advance(g->w, 20 * WINDOW);
    assert_int_equal(home_of(c, "key/0"), g->b->segment_id);
    assert_int_equal(world_stats(g->w).hot_dropped, 0);
}

TEST_MAIN()
