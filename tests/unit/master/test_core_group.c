/* SPDX-License-Identifier: Apache-2.0
 * Groups: nothing of them is seen before all is there, and they go as one. */
#include "tests/unit/master/rig.h"

#include "master/core/base/slab.h"

#define LEN (4 * KIB)

static const rig_conf_t small_pool = {.conf.lease_ns = 2 * SEC, .size = 16 * LEN};
static const rig_conf_t pool = {.conf.lease_ns = 2 * SEC, .size = 64 * LEN};
static const rig_conf_t large_pool = {.conf.lease_ns = 2 * SEC, .size = 128 * LEN};
static const rig_conf_t huge_pool = {.conf.lease_ns = 2 * SEC, .size = 2100 * LEN};

typedef struct {
    uint32_t members, member;
    kvp_pin_t pin;
    bool is_upsert;
} how_t;

static kvp_err_t
put_in(peer_t *c, const char *key, const char *group, how_t how)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = key, .len = LEN};

    if (group != NULL) one.group = group_of(c, group, how.members, how.member);
    head.pin = how.pin;
    head.is_upsert = how.is_upsert;
    head.wait_ms = 500;
    return put_like(c, &one, &head);
}

/* Puts the members [from, to) of a group; their keys are the group's name with their number. */
static void
put_members(peer_t *c, const char *group, uint32_t members, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        assert_int_equal(
            put_in(c, key_name(group, i), group, (how_t){.members = members, .member = members == 0 ? 0 : i}), KVP_OK);
}

static void
put_plain(peer_t *c, const char *prefix, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(put_in(c, key_name(prefix, i), NULL, (how_t){0}), KVP_OK);
}

static bool
is_group_found(peer_t *c, const char *group)
{
    Kvp__Pb__LookupReply told;
    uint8_t found;

    release(c, lookup_groups(c, &group, 1, false, 0, &told, &found));
    assert_int_equal(told.found, found);
    return found != 0;
}

/* ---- seen */
RIG_TEST(test_members_when_some_are_missing, pool)
{
    peer_t *other = client_open(g->w);
    const char *keys[] = {"g0", "g1", "g2"};
    Kvp__Pb__LookupReply told;
    kvp_wire_loc_t loc;
    uint64_t ticket;

    put_members(g->c, "g", 3, 0, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(get(i == 0 ? g->c : other, "g0", &ticket, &loc), KVP_NOT_FOUND);
        assert_false(exists(i == 0 ? g->c : other, "g0"));
    }
    (void)lookup(g->c, keys, 3, false, 0, &told, NULL);
    assert_int_equal(told.found, 0);
    assert_int_equal(listed(g->c), 0);
    assert_false(is_group_found(g->c, "g"));
    put_members(g->c, "g", 3, 2, 3);
    assert_int_equal(count_of(other, "g", 0, 3), 3);
    release(g->c, lookup(g->c, keys, 3, true, 0, &told, NULL));
    assert_int_equal(told.found, 3);
    assert_int_equal(listed(other), 3);
    assert_true(is_group_found(other, "g"));
}

RIG_TEST(test_members_when_the_group_has_no_size, pool)
{
    assert_false(is_group_found(g->c, "g"));
    put_members(g->c, "g", 0, 0, 2);
    assert_int_equal(count_of(g->c, "g", 0, 2), 2);
    assert_true(is_group_found(g->c, "g"));
}

RIG_TEST_ON(test_group_when_it_is_another_tenants, .is_one_tenant_each = true, .size = MIB, .chunk = 256 * KIB)
{
    put_t one = {.key = "key", .len = LEN};
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    one.group = (kvp_wire_group_t){{1, 2}, 2, 0}; /* the same bytes */
    assert_int_equal(put_like(g->c, &one, &head), KVP_OK);
    one.group.members = 1;
    assert_int_equal(put_like(g->d, &one, &head), KVP_OK);
    assert_int_equal(world_stats(g->w).groups, 2);
}

RIG_TEST(test_put_when_the_group_does_not_fit, pool)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = "x", .len = LEN, .group = {.members = 2}};

    put_members(g->c, "g", 3, 0, 1);
    assert_int_equal(put_in(g->c, "x", "g", (how_t){.members = 4, .member = 1}), KVP_INVALID);
    assert_int_equal(put_in(g->c, "x", "g", (how_t){.members = 0}), KVP_INVALID);
    assert_int_equal(put_in(g->c, "x", "g", (how_t){.members = 3, .member = 3}), KVP_INVALID);
    assert_int_equal(put_in(g->c, "x", "g", (how_t){.members = 3, .member = 0}), KVP_INVALID); /* g0's */
    assert_int_equal(put_in(g->c, "x", "h", (how_t){.members = 0, .member = 1}), KVP_INVALID);
    assert_int_equal(put_in(g->c, "x", "h", (how_t){.members = KVP_GROUP_MEMBERS_MAX + 1}), KVP_INVALID);
    assert_int_equal(put_like(g->c, &one, &head), KVP_INVALID); /* a size, and no group */
    assert_int_equal(world_stats(g->w).groups, 1);
    assert_int_equal(put_in(g->c, "x", "g", (how_t){.members = 3, .member = 1}), KVP_OK);
}

RIG_TEST_ON(test_put_when_a_group_without_a_size_is_full, .size = 4 * MIB)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    g->w->check_every = 1000;
    for (uint32_t i = 0; i <= KVP_GROUP_MEMBERS_MAX; i++) {
        put_t one = {.key = key_name("k", i), .len = 64, .group = group_of(g->c, "g", 0, 0)};

        assert_int_equal(put_like(g->c, &one, &head), i < KVP_GROUP_MEMBERS_MAX ? KVP_OK : KVP_LIMIT);
    }
    assert_int_equal(remove_key(g->c, "k7", false), KVP_OK);
    assert_int_equal(put_in(g->c, "more", "g", (how_t){0}), KVP_OK);
}

RIG_TEST(test_put_when_the_key_is_hidden, pool)
{
    peer_t *other = client_open(g->w);

    put_members(g->c, "g", 2, 0, 1);
    assert_int_equal(put_in(g->c, "g0", "g", (how_t){.members = 2, .member = 0}), KVP_ALREADY);
    assert_int_equal(put_in(other, "g0", "g", (how_t){.members = 2, .member = 0}), KVP_IN_PROGRESS);
    assert_int_equal(put_in(other, "g0", NULL, (how_t){.is_upsert = true}), KVP_IN_PROGRESS);
    put_members(other, "g", 2, 1, 2); /* together they make it whole */
    assert_int_equal(count_of(g->c, "g", 0, 2), 2);
    assert_int_equal(put_in(other, "g0", "g", (how_t){.members = 2, .member = 0}), KVP_ALREADY);
}

/* ---- owners */
RIG_TEST(test_group_when_its_owner_dies, pool)
{
    peer_t *other = client_open(g->w);

    put_members(g->c, "g", 8, 0, 7);
    assert_int_equal(world_stats(g->w).used_bytes, 7 * LEN);
    g->w->is_idle_off = true; /* its turn does not come */
    peer_forget(g->c);
    assert_int_equal(put_in(other, "g3", NULL, (how_t){0}), KVP_OK);
    g->w->is_idle_off = false;
    world_advance(g->w, 100 * MS);
    assert_int_equal(world_stats(g->w).used_bytes, LEN);
    assert_int_equal(world_stats(g->w).groups, 0);
    assert_true(exists(other, "g3"));
}

RIG_TEST(test_group_when_the_last_of_its_owners_dies, pool)
{
    peer_t *b, *c;

    b = client_open(g->w);
    c = client_open(g->w);
    put_members(g->c, "g", 3, 0, 1);
    put_members(b, "g", 3, 1, 2);
    peer_forget(g->c);
    world_advance(g->w, 100 * MS);
    assert_int_equal(world_stats(g->w).used_bytes, 2 * LEN);
    assert_int_equal(put_in(c, "g0", "g", (how_t){.members = 3, .member = 0}), KVP_IN_PROGRESS);
    peer_forget(b);
    world_advance(g->w, 100 * MS);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
    put_members(c, "g", 3, 0, 3);
    assert_int_equal(count_of(c, "g", 0, 3), 3);
}

RIG_TEST(test_group_when_its_owner_gives_up_the_last_attempt, pool)
{
    peer_t *b = client_open(g->w);
    put_t one = {.key = "g1", .len = LEN};

    put_members(g->c, "g", 2, 0, 1);
    one.group = group_of(b, "g", 2, 1);
    granted(b, put_begin(b, &one, 1, 0), KVP_OK);
    peer_forget(g->c);
    world_advance(g->w, 100 * MS);
    assert_int_equal(world_stats(g->w).objects, 1);
    assert_int_equal(abort_put(b, one.attempt, true), KVP_OK);
    world_advance(g->w, 100 * MS);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
}

RIG_TEST(test_group_when_it_is_whole_outlives_its_owners, pool)
{
    peer_t *b = client_open(g->w);

    put_members(g->c, "g", 3, 0, 3);
    peer_forget(g->c);
    world_advance(g->w, SEC);
    assert_int_equal(count_of(b, "g", 0, 3), 3);
}

RIG_TEST(test_put_when_the_owner_of_the_hidden_key_is_silent, pool)
{
    peer_t *b = client_open(g->w);

    put_members(g->c, "g", 2, 0, 1);
    g->c->is_silent = true;
    world_advance(g->w, 1500 * MS);
    assert_int_equal(put_in(b, "g0", NULL, (how_t){0}), KVP_OK);
    assert_true(exists(b, "g0"));
}

/* ---- going */
/* After each put either all of it is there, or nothing. */
static void
press(peer_t *c, const char *group, uint32_t members, uint32_t puts)
{
    for (uint32_t i = 0; i < puts; i++) {
        uint32_t n;

        assert_int_equal(put_in(c, key_name("press", i), NULL, (how_t){0}), KVP_OK);
        n = count_of(c, group, 0, members);
        assert_true(n == 0 || n == members);
    }
}

static void
eviction_takes_all(rig_t *g, uint32_t members)
{
    put_members(g->c, "g", members, 0, 20);
    press(g->c, "g", 20, 60);
    assert_int_equal(count_of(g->c, "g", 0, 20), 0);
    assert_int_equal(world_stats(g->w).group_evictions, 1);
    assert_int_equal(world_stats(g->w).groups, 0);
    assert_int_equal(world_stats(g->w).evictions, 20);
    assert_false(is_group_found(g->c, "g"));
}

RIG_TEST(test_eviction_takes_all_of_it, pool)
{
    eviction_takes_all(g, 20);
}

RIG_TEST(test_eviction_takes_all_of_one_without_a_size, pool)
{
    eviction_takes_all(g, 0);
}

RIG_TEST(test_eviction_of_a_large_group_comes_in_slices, huge_pool)
{
    g->w->check_every = 100;
    put_members(g->c, "g", 2000, 0, 2000);
    put_plain(g->c, "plain", 100);
    g->w->is_idle_off = true;
    assert_int_equal(put_in(g->c, "one more", NULL, (how_t){0}), KVP_OK);
    assert_int_equal(count_of(g->c, "g", 0, 2000), 0);
    assert_true(world_stats(g->w).objects > 1000);
    assert_int_equal(put_in(g->c, "g7", NULL, (how_t){0}), KVP_OK); /* though the old one is still to be dropped */
    g->w->is_idle_off = false;
    world_advance(g->w, 100 * MS);
    assert_int_equal(world_stats(g->w).objects, 102);
    assert_int_equal(world_stats(g->w).used_bytes, 102 * LEN);
}

RIG_TEST(test_use_of_one_member_is_a_use_of_all, pool)
{
    kvp_wire_loc_t loc;
    uint64_t ticket;

    put_members(g->c, "g", 8, 0, 8);
    put_plain(g->c, "plain", 50);
    assert_int_equal(get(g->c, "g5", &ticket, &loc), KVP_OK);
    release(g->c, ticket);
    put_plain(g->c, "more", 40);
    assert_int_equal(count_of(g->c, "g", 0, 8), 8);
    assert_true(count_of(g->c, "plain", 0, 50) < 20);
}

RIG_TEST(test_eviction_when_a_member_is_kept, pool)
{
    kvp_wire_loc_t loc;
    uint64_t ticket;

    put_members(g->c, "held", 4, 0, 4);
    put_members(g->c, "pinned", 4, 0, 3);
    assert_int_equal(put_in(g->c, "pinned3", "pinned", (how_t){.members = 4, .member = 3, .pin = KVP_PIN_HARD}),
                     KVP_OK);
    put_members(g->c, "soft", 4, 0, 3);
    assert_int_equal(put_in(g->c, "soft3", "soft", (how_t){.members = 4, .member = 3, .pin = KVP_PIN_SOFT}), KVP_OK);
    assert_int_equal(get(g->c, "held2", &ticket, &loc), KVP_OK);
    put_plain(g->c, "plain", 200);
    assert_int_equal(count_of(g->c, "held", 0, 4), 4);
    assert_int_equal(count_of(g->c, "pinned", 0, 4), 4);
    assert_int_equal(count_of(g->c, "soft", 0, 4), 4);
    release(g->c, ticket);
    put_plain(g->c, "more", 200);
    assert_int_equal(count_of(g->c, "held", 0, 4), 0);
    assert_int_equal(remove_key(g->c, "pinned3", false), KVP_OK);
    put_plain(g->c, "again", 200);
    assert_int_equal(count_of(g->c, "pinned", 0, 4), 0);
    assert_int_equal(count_of(g->c, "soft", 0, 4), 4);
}

RIG_TEST(test_probe_of_one_member_protects_all, pool)
{
    put_members(g->c, "g", 8, 0, 8);
    put_plain(g->c, "plain", 50);
    assert_true(probe(g->c, "g6"));
    world_advance(g->w, 300 * MS);
    put_plain(g->c, "more", 200); /* it is the oldest many times over */
    assert_int_equal(count_of(g->c, "g", 0, 8), 8);
    world_advance(g->w, 3 * SEC);
    put_plain(g->c, "again", 200);
    assert_int_equal(count_of(g->c, "g", 0, 8), 0);
}

RIG_TEST(test_soft_pins_when_a_group_loses_them, pool)
{
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(put_in(g->c, key_name("g", i), "g", (how_t){.members = 12, .member = i, .pin = KVP_PIN_SOFT}),
                         KVP_OK);
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(put_in(g->c, key_name("h", i), "h", (how_t){.members = 12, .member = i, .pin = KVP_PIN_SOFT}),
                         KVP_OK);
    assert_int_equal(world_stats(g->w).pins_lost, 12);
    assert_int_equal(world_stats(g->w).soft_pinned_bytes, 12 * LEN);
    put_plain(g->c, "plain", 200);
    assert_int_equal(count_of(g->c, "g", 0, 12), 0);
    assert_int_equal(count_of(g->c, "h", 0, 12), 12);
}

RIG_TEST(test_incomplete_group_when_it_is_evicted, pool)
{
    put_t one = {.key = "g3", .len = LEN};
    places_t places;

    put_members(g->c, "g", 4, 0, 3);
    one.group = group_of(g->c, "g", 4, 3);
    places_read(peer_reply(g->c, put_begin(g->c, &one, 1, 0)), &places);
    assert_int_equal(write_place(g->w, places.locs), KVP_OK);
    places_free(&places);
    put_plain(g->c, "plain", 100); /* what nobody sees protects nothing */
    assert_int_equal(world_stats(g->w).group_evictions, 1);
    assert_int_equal(commit(g->c, one.attempt, 1), KVP_OK);
    assert_false(exists(g->c, "g3"));
    put_members(g->c, "g", 4, 0, 3);
    assert_int_equal(count_of(g->c, "g", 0, 4), 4);
}

RIG_TEST(test_removal_when_the_group_is_whole, pool)
{
    put_members(g->c, "g", 3, 0, 3);
    assert_int_equal(remove_key(g->c, "g0", false), KVP_OK);
    assert_int_equal(count_of(g->c, "g", 0, 3), 2);
    assert_false(is_group_found(g->c, "g"));
    assert_int_equal(put_in(g->c, "other", "g", (how_t){.members = 3, .member = 0}),
                     KVP_OK); /* the place is free for any key */
    assert_true(exists(g->c, "other"));
    assert_true(is_group_found(g->c, "g"));
    assert_int_equal(remove_key(g->c, "g1", false), KVP_OK);
    assert_int_equal(remove_key(g->c, "g2", false), KVP_OK);
    assert_int_equal(remove_key(g->c, "other", false), KVP_OK);
    put_members(g->c, "g", 3, 0, 2); /* nothing was left of it: it begins anew */
    assert_int_equal(count_of(g->c, "g", 0, 2), 0);
}

RIG_TEST(test_removal_reaches_hidden_members, pool)
{
    put_members(g->c, "g", 3, 0, 2);
    assert_int_equal(remove_key(g->c, "g0", false), KVP_OK);
    put_members(g->c, "g", 3, 2, 3);
    assert_int_equal(count_of(g->c, "g", 0, 3), 0);
    put_members(g->c, "g", 3, 0, 1);
    assert_int_equal(count_of(g->c, "g", 0, 3), 3);
}

TEST(test_members_when_their_node_is_lost)
{
    world_t *w = world_open(&(kvp_master_conf_t){.node_grace_ns = SEC});
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    peer_t *c, *n2;
    uint32_t left;

    node_open_on(w, mem_make(w, "n1", MIB, MIB), "h1");
    n2 = node_open_on(w, mem_make(w, "n2", MIB, MIB), "h2");
    c = client_open(w);
    put_members(c, "g", 30, 0, 30);
    head.replicas = 2;
    for (uint32_t i = 0; i < 10; i++) {
        put_t one = {.key = key_name("twice", i), .len = LEN, .group = group_of(c, "twice", 10, i)};

        assert_int_equal(put_like(c, &one, &head), KVP_OK);
    }
    assert_true(is_group_found(c, "g"));
    peer_forget(n2);
    assert_false(is_group_found(c, "g")); /* already, for no read would find all of it */
    assert_true(is_group_found(c, "twice"));
    world_advance(w, 3 * SEC);
    left = count_of(c, "g", 0, 30);
    assert_true(left > 0 && left < 30);
    assert_int_equal(count_of(c, "twice", 0, 10), 10);
    world_close(w);
}

/* ---- upserts */
RIG_TEST(test_upsert_of_a_member, pool)
{
    put_members(g->c, "g", 2, 0, 2);
    assert_int_equal(put_in(g->c, "g0", "g", (how_t){.members = 2, .member = 0, .is_upsert = true}), KVP_OK);
    assert_true(is_group_found(g->c, "g"));
    assert_int_equal(put_in(g->c, "g0", "g", (how_t){.members = 2, .member = 1, .is_upsert = true}),
                     KVP_INVALID); /* g1's */
    assert_int_equal(remove_key(g->c, "g1", false), KVP_OK);
    assert_int_equal(put_in(g->c, "g0", "g", (how_t){.members = 2, .member = 0, .is_upsert = true}), KVP_OK);
    assert_true(exists(g->c, "g0")); /* the only one, and never hidden again */
    assert_int_equal(put_in(g->c, "g0", NULL, (how_t){.is_upsert = true}), KVP_OK); /* which takes it out */
    assert_true(exists(g->c, "g0"));
    assert_int_equal(world_stats(g->w).groups, 0);
    assert_int_equal(put_in(g->c, "g0", "h", (how_t){.members = 2, .member = 0, .is_upsert = true}),
                     KVP_OK); /* and into another */
    assert_false(exists(g->c, "g0"));
    put_members(g->c, "h", 2, 1, 2);
    assert_true(exists(g->c, "g0"));
}

RIG_TEST(test_upsert_when_its_group_is_evicted_meanwhile, pool)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = "g0", .len = LEN};
    places_t places;

    put_members(g->c, "g", 2, 0, 2);
    head.is_upsert = true;
    one.group = group_of(g->c, "g", 2, 0);
    places_read(peer_reply(g->c, put_begin_with(g->c, &one, 1, &head)), &places);
    assert_int_equal(write_place(g->w, places.locs), KVP_OK);
    places_free(&places);
    put_plain(g->c, "plain", 100);
    assert_int_equal(world_stats(g->w).group_evictions, 1);
    assert_int_equal(commit(g->c, one.attempt, 1), KVP_OK);
    assert_false(exists(g->c, "g0")); /* it is the first member of a new group */
    put_members(g->c, "g", 2, 1, 2);
    assert_int_equal(count_of(g->c, "g", 0, 2), 2);
}

RIG_TEST(test_upsert_when_only_the_old_version_makes_room, small_pool)
{
    kvp_wire_loc_t loc;
    uint64_t ticket;

    put_members(g->c, "g", 16, 0, 16);
    assert_int_equal(get(g->c, "g0", &ticket, &loc), KVP_OK); /* so that its group cannot go */
    assert_int_equal(put_in(g->c, "g5", "g", (how_t){.members = 16, .member = 5, .is_upsert = true}), KVP_OK);
    assert_int_equal(count_of(g->c, "g", 0, 16), 16);
    assert_true(is_group_found(g->c, "g"));
    release(g->c, ticket);
}

/* ---- bumps, look-ups */
RIG_TEST(test_group_when_the_namespace_is_bumped, pool)
{
    put_members(g->c, "g", 2, 0, 2);
    put_members(g->c, "half", 3, 0, 1);
    g->w->is_idle_off = true;
    reply_free(peer_wait(g->c, bump_begun(g->c, 0), SEC));
    assert_false(is_group_found(g->c, "g"));
    put_members(g->c, "g", 2, 0, 1);
    assert_int_equal(count_of(g->c, "g", 0, 2), 0); /* what was put before does not make it whole */
    put_members(g->c, "half", 3, 0, 1);
    g->w->is_idle_off = false;
    world_advance(g->w, 100 * MS);
    put_members(g->c, "g", 2, 1, 2);
    assert_int_equal(count_of(g->c, "g", 0, 2), 2);
    assert_int_equal(world_stats(g->w).objects, 3);
}

RIG_TEST(test_lookup_of_groups_reserves_them, large_pool)
{
    const char *names[] = {"a", "b", "c", "d"};
    Kvp__Pb__LookupReply told;
    uint64_t ticket;
    uint8_t found[4];

    put_members(g->c, "a", 3, 0, 3);
    put_members(g->c, "b", 3, 0, 3);
    put_members(g->c, "c", 3, 0, 2);
    put_members(g->c, "d", 3, 0, 3);
    release(g->c, lookup_groups(g->c, names, 4, false, 0, &told, found));
    assert_int_equal(told.found, 3);
    assert_memory_equal(found, "\1\1\0\1", 4);
    ticket = lookup_groups(g->c, names, 4, true, 1000, &told, NULL);
    assert_int_equal(told.found, 2);
    assert_int_equal(told.granted, 2);
    assert_int_equal(world_stats(g->w).reserved_bytes, 6 * LEN);
    assert_int_equal(remove_key(g->c, "a2", false), KVP_HELD);
    put_plain(g->c, "plain", 300);
    assert_int_equal(count_of(g->c, "a", 0, 3) + count_of(g->c, "b", 0, 3), 6);
    assert_int_equal(count_of(g->c, "d", 0, 3), 0);
    release(g->c, ticket);
    put_plain(g->c, "more", 300);
    assert_int_equal(count_of(g->c, "a", 0, 3) + count_of(g->c, "b", 0, 3), 0);
}

RIG_TEST(test_reservation_of_a_group_has_bounds_and_an_end, large_pool)
{
    const char *names[] = {"a", "b", "c"};
    Kvp__Pb__LookupReply told;

    put_members(g->c, "a", 3, 0, 3);
    put_members(g->c, "b", 3, 0, 3);
    put_members(g->c, "c", 3, 0, 3);
    (void)lookup_groups(g->c, names, 3, true, 500, &told, NULL);
    assert_int_equal(told.found, 3);
    assert_int_equal(told.granted, 2); /* a twentieth of the pool is 6 objects */
    assert_int_equal(remove_key(g->c, "a0", true), KVP_OK); /* by force */
    assert_int_equal(remove_key(g->c, "a1", true), KVP_OK);
    assert_int_equal(remove_key(g->c, "a2", true), KVP_OK);
    world_advance(g->w, SEC);
    assert_int_equal(world_stats(g->w).reserved_bytes, 0);
    assert_int_equal(world_stats(g->w).groups, 2);
    assert_int_equal(remove_key(g->c, "b0", false), KVP_OK);
}

RIG_TEST_ON(test_client_when_it_has_too_many_hidden_members, .size = 32 * MIB)
{
    Kvp__Pb__PutBegin head = KVP__PB__PUT_BEGIN__INIT;

    g->w->check_every = 50000;
    for (uint32_t i = 0; i <= 65536; i++) {
        char key[16], group[16];
        put_t one = {.key = key, .len = 64};

        snprintf(key, sizeof key, "k%u", i);
        snprintf(group, sizeof group, "g%u", i);
        one.group = group_of(g->c, group, 2, 0);
        assert_int_equal(put_like(g->c, &one, &head), i < 65536 ? KVP_OK : KVP_LIMIT);
    }
    peer_forget(g->c);
    world_advance(g->w, 2 * SEC);
    assert_int_equal(world_stats(g->w).groups, 0);
}

TEST_MAIN()
