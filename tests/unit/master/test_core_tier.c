/* SPDX-License-Identifier: Apache-2.0
 * The SSD tier: what leaves memory is found there, staged and dropped, over the loss of nodes and masters. ADR 0029. */
#include "tests/unit/master/rig.h"

#define BLOCK (64 * KIB)
#define MEMORY (16 * BLOCK)

static const kvp_master_conf_t with_log = {.has_journal = true, .location_lease_ns = MS, .location_grace_ns = MS};
static const kvp_master_conf_t picky = {.ssd_wants_use = true, .location_lease_ns = MS, .location_grace_ns = MS};
static const kvp_master_conf_t plain = {.location_lease_ns = MS, .location_grace_ns = MS};

static void
put_all(peer_t *c, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        assert_int_equal(put_told(c, key_name("key/", i), BLOCK), KVP_OK);
        world_advance(c->world, 20 * MS); /* what is written ahead is written before it has to go */
    }
}

/* A get that waits for the tier: its error, and what it holds. */
static kvp_err_t
get_waiting(peer_t *c, const char *key, uint32_t wait_ms, kvp_wire_loc_t *loc_out, uint64_t *version_out)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = digest_of(c->world, key);
    kvp_err_t err;
    places_t p;

    head.n = 1;
    head.wait_ms = wait_ms;
    places_read(peer_wait(c, peer_send(c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest), 2 * SEC), &p);
    err = p.objs[0].err;
    if (err == KVP_OK && p.objs[0].nloc > 0) {
        if (loc_out != NULL) *loc_out = p.locs[0];
        if (version_out != NULL) *version_out = p.objs[0].version;
        release(c, p.ticket);
    }
    places_free(&p);
    return err;
}

static uint32_t
existing(peer_t *c, uint32_t from, uint32_t to)
{
    uint32_t n = 0;

    for (uint32_t i = from; i < to; i++)
        n += exists(c, key_name("key/", i));
    return n;
}

static kvp_err_t
unmount(peer_t *node, uint32_t segment, bool is_kept)
{
    Kvp__Pb__Unmount msg = KVP__PB__UNMOUNT__INIT;

    msg.segment_id = segment;
    msg.is_kept = is_kept;
    return plain_result(peer_wait(node, peer_send(node, KVP_OP_UNMOUNT, 0, &msg.base, NULL, 0), SEC));
}

static void
end_tier(rig_t *g, uint32_t tier)
{
    assert_int_equal(unmount(g->na, tier, false), KVP_OK);
    world_advance(g->w, SEC);
}

/* Which tier has it, as a look-up without a hold says; whether it is in memory as well. */
static uint32_t
tier_of(peer_t *c, const char *key, bool *is_in_memory_out)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = digest_of(c->world, key);
    uint32_t id;
    places_t p;

    head.n = 1;
    head.no_hold = head.wants_tiers = true;
    places_read(peer_reply(c, peer_send(c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest)), &p);
    assert_int_equal(p.reply->frame.tail_len, sizeof *p.objs + p.nloc * sizeof *p.locs + sizeof id);
    memcpy(&id, p.locs + p.nloc, sizeof id);
    *is_in_memory_out = p.nloc > 0;
    places_free(&p);
    return id;
}

/* Whether it is in memory. */
static bool
is_in_memory(peer_t *c, const char *key)
{
    bool is_there;

    (void)tier_of(c, key, &is_there);
    return is_there;
}

static uint32_t
begin_tier(rig_t *g)
{
    g->w->has_tiers = true;
    g->w->check_every = 1;
    return node_mount_tier(g->na);
}

/* Fails if what is evicted is not found, or a get of it is not given a place in memory. */
RIG_TEST_ON(test_evicted_is_staged, .conf = plain, .size = MEMORY)
{
    uint32_t tier = begin_tier(g);
    uint64_t version = found(g->c, "key/0", NULL), again;
    kvp_wire_loc_t loc;

    put_all(g->c, 0, 64);
    assert_int_equal(existing(g->c, 0, 64), 64);
    assert_true(world_stats(g->w).tier_objects >= 48);
    assert_int_equal(world_stats(g->w).tier_missed, 0);
    for (uint32_t i = 0; i < 64; i++) {
        version = found(g->c, key_name("key/", i), NULL);
        assert_int_equal(get_waiting(g->c, key_name("key/", i), 500, &loc, &again), KVP_OK);
        assert_int_equal(version, again); /* it is the version that was put */
        assert_int_equal(loc.segment_id, g->a->segment_id);
    }
    assert_int_equal(existing(g->c, 0, 64), 64);
    assert_true(world_stats(g->w).staged >= 48);
    end_tier(g, tier);
}

/* Fails if a get that may not wait is not told to come again, or is told of a place before there is one. */
RIG_TEST_ON(test_get_that_does_not_wait, .conf = plain, .size = MEMORY)
{
    uint32_t tier = begin_tier(g);

    put_all(g->c, 0, 32);
    assert_int_equal(get_waiting(g->c, "key/0", 0, NULL, NULL), KVP_RETRY_AFTER);
    world_advance(g->w, 20 * MS);
    assert_int_equal(get_waiting(g->c, "key/0", 0, NULL, NULL), KVP_OK);
    g->a->is_stage_failing = true;
    assert_int_equal(get_waiting(g->c, "key/1", 500, NULL, NULL), KVP_NODE_LOST);
    g->a->is_stage_failing = false;
    assert_int_equal(get_waiting(g->c, "key/1", 500, NULL, NULL), KVP_OK);
    tier_drop(g->a, digest_of(g->w, "key/2"), UINT64_MAX); /* the disk has lost it */
    assert_int_equal(get_waiting(g->c, "key/2", 500, NULL, NULL), KVP_NOT_FOUND);
    assert_false(exists(g->c, "key/2"));
    assert_int_equal(cause_of(g->c, "key/2"), KVP_CAUSE_LOST_SSD);
    end_tier(g, tier);
}

/* Fails if a load that its node does not answer is not the cause that EXPLAIN gives. */
RIG_TEST_ON(test_load_under_way_is_a_cause, .conf = plain, .size = MEMORY)
{
    const uint32_t tier = begin_tier(g);

    put_all(g->c, 0, 32);
    g->na->policy = NODE_STOPPED;
    assert_int_equal(get_waiting(g->c, "key/0", 0, NULL, NULL), KVP_RETRY_AFTER);
    assert_int_equal(cause_of(g->c, "key/0"), KVP_CAUSE_LOADING);
    g->na->policy = NODE_FREE_NOW;
    end_tier(g, tier);
}

/* What a look-up of keys says to be on tiers alone, of those that it reserves. */
static uint32_t
look_up(rig_t *g, uint32_t from, uint32_t n, bool wants_memory)
{
    Kvp__Pb__Lookup head = KVP__PB__LOOKUP__INIT;
    Kvp__Pb__LookupReply *answer;
    kvp_digest_t digests[8];
    uint32_t on_tier;
    kvp_pb_t pb;
    reply_t *r;

    for (uint32_t i = 0; i < n; i++)
        digests[i] = digest_of(g->w, key_name("key/", from + i));
    head.n = n;
    head.is_prefix = true;
    head.ttl_ms = 10;
    head.wants_memory = wants_memory;
    r = peer_wait(g->c, peer_send(g->c, KVP_OP_LOOKUP, 0, &head.base, digests, n * sizeof digests[0]), SEC);
    assert_non_null(r);
    answer = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, &r->frame);
    assert_non_null(answer);
    assert_int_equal(answer->found, n);
    on_tier = answer->on_tier;
    assert_true(answer->granted > 0);
    kvp_pb_free(&pb, answer);
    reply_free(r);
    world_advance(g->w, 100 * MS); /* it is over */
    return on_tier;
}

/* Fails if what nobody asked for is written where only what was used is to be, or what was is not. */
RIG_TEST_ON(test_only_what_was_used, .conf = picky, .size = MEMORY)
{
    uint32_t tier = begin_tier(g);

    put_all(g->c, 0, 8);
    assert_int_equal(get_waiting(g->c, "key/3", 0, NULL, NULL), KVP_OK);
    put_all(g->c, 8, 48);
    assert_int_equal(existing(g->c, 0, 32), 1);
    assert_true(exists(g->c, "key/3"));
    assert_int_equal(world_stats(g->w).demoted, 1);
    end_tier(g, tier);
}

/* Fails if a look-up does not tell what is on a tier alone, reads it without being asked to, or does not read it. */
RIG_TEST_ON(test_look_up_has_it_read, .conf = plain, .size = 4 * MEMORY)
{
    uint32_t tier = begin_tier(g);

    put_all(g->c, 0, 128);
    assert_int_equal(look_up(g, 127, 1, true), 0); /* in memory */
    assert_int_equal(look_up(g, 0, 1, false), 1);
    assert_int_equal(world_stats(g->w).stages, 0);
    assert_int_equal(look_up(g, 0, 1, true), 1);
    assert_int_equal(world_stats(g->w).staged, 1);
    assert_int_equal(look_up(g, 0, 1, true), 0);
    end_tier(g, tier);
}

/* What a look-up of these keys says of the places of the first. */
static uint8_t
place_of(peer_t *c, const char *key, bool is_prefix)
{
    Kvp__Pb__Lookup head = KVP__PB__LOOKUP__INIT;
    kvp_digest_t digests[2] = {digest_of(c->world, key), digest_of(c->world, "none")};
    uint8_t place;
    reply_t *r;

    head.n = 2;
    head.ttl_ms = 10;
    head.is_prefix = is_prefix;
    head.wants_places = true;
    r = peer_reply(c, peer_send(c, KVP_OP_LOOKUP, 0, &head.base, digests, sizeof digests));
    assert_int_equal(r->frame.tail_len, is_prefix ? 1 : 2); /* of a prefix none of what is not found */
    place = r->frame.tail[0];
    if (!is_prefix) assert_int_equal(r->frame.tail[1], 0);
    reply_free(r);
    return place;
}

RIG_TEST_ON(test_look_up_tells_places, .conf = plain, .size = 4 * MEMORY)
{
    uint32_t tier = begin_tier(g);
    peer_t *near = peer_open(g->w);

    assert_int_equal(peer_hello(near, KVP_ROLE_CLIENT, "near", "a"), KVP_OK);
    put_all(g->c, 0, 128);
    for (int is_prefix = 0; is_prefix < 2; is_prefix++) {
        assert_int_equal(place_of(g->c, "key/127", is_prefix), KVP_FOUND_PRESENT);
        assert_int_equal(place_of(near, "key/127", is_prefix), KVP_FOUND_PRESENT | KVP_FOUND_ON_HOST);
        assert_int_equal(place_of(near, "key/0", is_prefix), KVP_FOUND_PRESENT | KVP_FOUND_ON_TIER);
    }
    end_tier(g, tier);
}

/* Fails if a removal or an upsert leaves a record on the tier, or is answered before it is dropped. */
RIG_TEST_ON(test_removed_is_dropped, .conf = with_log, .size = MEMORY)
{
    uint32_t tier = begin_tier(g);
    put_t one = {.key = "key/1", .len = BLOCK};
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    uint64_t old;

    put_all(g->c, 0, 32);
    assert_int_equal(remove_key(g->c, "key/0", true), KVP_OK);
    assert_false(exists(g->c, "key/0"));
    like.is_upsert = true;
    old = found(g->c, "key/1", NULL);
    assert_int_equal(put_like(g->c, &one, &like), KVP_OK);
    assert_true(found(g->c, "key/1", NULL) > old);
    assert_int_equal(put(g->c, "key/2", BLOCK), KVP_ALREADY);
    world_advance(g->w, SEC);
    for (uint32_t i = 0; i < g->a->tiered_n; i++) {
        assert_false(kvp_digest_eq(g->a->tiered[i].rec.digest, digest_of(g->w, "key/0")));
        assert_false(kvp_digest_eq(g->a->tiered[i].rec.digest, digest_of(g->w, "key/1")) &&
                     g->a->tiered[i].rec.version == old);
    }
    end_tier(g, tier);
    assert_true(existing(g->c, 0, 32) <= 16); /* with the tier goes what is there alone */
    assert_true(exists(g->c, "key/1"));
}

/* Fails if a node that comes back with new memory does not bring what its tier has, or brings what was removed
 * meanwhile. */
RIG_TEST_ON(test_node_comes_back, .conf = with_log, .size = MEMORY)
{
    uint32_t tier = begin_tier(g), on_tier;

    put_all(g->c, 0, 48);
    peer_lose(g->na);
    assert_int_equal(existing(g->c, 0, 48), 0); /* nothing of it is served */
    assert_int_equal(remove_key(g->c, "key/0", true), KVP_OK);
    mem_remake(g->w, g->a);
    g->na = node_open_on(g->w, g->a, "a");
    assert_int_equal(node_mount_tier(g->na), tier);
    world_advance(g->w, SEC);
    on_tier = existing(g->c, 0, 48);
    assert_true(on_tier >= 31);
    assert_false(exists(g->c, "key/0"));
    assert_int_equal(g->a->tiered_n, on_tier);
    for (uint32_t i = 1; i < 32; i++)
        assert_int_equal(get_waiting(g->c, key_name("key/", i), 500, NULL, NULL), KVP_OK);
    end_tier(g, tier);
}

/* Fails if a master that has its log does not know what is on tiers, or a tier brings back what is gone. */
RIG_TEST_ON(test_master_comes_back, .conf = with_log, .size = MEMORY)
{
    uint32_t tier, on_tier;

    (void)begin_tier(g);
    put_all(g->c, 0, 48);
    assert_int_equal(get_waiting(g->c, "key/3", 500, NULL, NULL), KVP_OK); /* in memory and on the tier */
    g->na->policy = NODE_STOPPED; /* it is told of nothing that is removed */
    assert_int_equal(remove_key(g->c, "key/0", true), KVP_OK);
    on_tier = existing(g->c, 0, 48);
    assert_int_equal(on_tier, 47);
    rig_restart(g);
    g->na = node_open_on(g->w, g->a, "a");
    tier = node_mount_tier(g->na);
    world_advance(g->w, 30 * SEC); /* before that nothing is evicted */
    assert_false(exists(g->c, "key/0"));
    assert_int_equal(existing(g->c, 0, 48), on_tier);
    for (uint32_t i = 1; i < 48; i++)
        assert_int_equal(get_waiting(g->c, key_name("key/", i), 500, NULL, NULL), KVP_OK);
    end_tier(g, tier);
}

/* Fails if a master that has no log does not learn what is on tiers, or takes from them what is no key's, what was
 * removed before or since it began, or what is older than what was put since. */
RIG_TEST_ON(test_master_without_log, .conf = plain, .size = MEMORY)
{
    uint64_t put_since;
    uint32_t tier;

    (void)begin_tier(g);
    put_all(g->c, 0, 48);
    assert_int_equal(remove_key(g->c, "key/1", true), KVP_OK);
    rig_restart(g);
    assert_int_equal(existing(g->c, 0, 48), 0);
    tiered_find(g->a, digest_of(g->w, "key/0"))->desc.key_hash2++;
    g->na = node_open_on(g->w, g->a, "a");
    assert_int_equal(remove_key(g->c, "key/46", true), KVP_OK); /* they are in memory, and make room */
    assert_int_equal(remove_key(g->c, "key/47", true), KVP_OK);
    assert_int_equal(put(g->c, "key/2", BLOCK), KVP_OK);
    assert_int_equal(put(g->c, "key/3", BLOCK), KVP_OK);
    assert_int_equal(remove_key(g->c, "key/3", true), KVP_OK);
    put_since = found(g->c, "key/2", NULL);
    tier = node_mount_tier(g->na);
    world_advance(g->w, SEC);
    assert_int_equal(existing(g->c, 0, 48), 43);
    assert_false(exists(g->c, "key/0") || exists(g->c, "key/1") || exists(g->c, "key/3") || exists(g->c, "key/46"));
    assert_int_equal(found(g->c, "key/2", NULL), put_since);
    assert_null(tiered_find(g->a, digest_of(g->w, "key/2")));
    assert_null(tiered_find(g->a, digest_of(g->w, "key/3")));
    world_advance(g->w, 30 * SEC); /* before that nothing is evicted */
    for (uint32_t i = 4; i < 46; i++)
        assert_int_equal(get_waiting(g->c, key_name("key/", i), 500, NULL, NULL), KVP_OK);
    end_tier(g, tier);
}

/* Fails if a put waits for a disk that writes nothing, or what was not written is still told of. */
RIG_TEST_ON(test_tier_that_is_full, .conf = plain, .size = MEMORY)
{
    uint32_t tier = begin_tier(g);

    g->a->is_tier_full = true;
    put_all(g->c, 0, 48);
    assert_int_equal(existing(g->c, 0, 48), 16);
    assert_true(world_stats(g->w).tier_missed >= 32);
    assert_int_equal(cause_of(g->c, "key/0"), KVP_CAUSE_EVICTED_UNWRITTEN);
    end_tier(g, tier);
}

/* Fails if a look-up does not tell the tier of what is there, beside memory and alone, or tells one that has nothing of
 * it. */
RIG_TEST_ON(test_tier_is_told, .conf = plain, .size = MEMORY)
{
    uint32_t tier = begin_tier(g);
    bool is_in_memory;

    put_all(g->c, 0, 32);
    assert_int_equal(tier_of(g->c, "key/0", &is_in_memory), tier);
    assert_false(is_in_memory);
    assert_int_equal(tier_of(g->c, "key/31", &is_in_memory), 0);
    assert_true(is_in_memory);
    assert_int_equal(get_waiting(g->c, "key/0", 500, NULL, NULL), KVP_OK);
    assert_int_equal(tier_of(g->c, "key/0", &is_in_memory), tier);
    assert_true(is_in_memory);
    assert_int_equal(tier_of(g->c, "absent", &is_in_memory), 0);
    end_tier(g, tier);
    assert_int_equal(tier_of(g->c, "key/0", &is_in_memory), 0);
}

/* Fails if what a tier has that was unmounted to be kept is still told of or written to, is not there again with the
 * tier, or comes back although it was removed meanwhile. */
RIG_TEST_ON(test_tier_that_is_kept, .conf = with_log, .size = MEMORY)
{
    uint32_t tier = begin_tier(g);
    uint64_t written;
    bool is_in_memory;

    put_all(g->c, 0, 32);
    assert_int_equal(unmount(g->na, g->a->segment_id, true), KVP_INVALID);
    assert_int_equal(unmount(g->na, tier, true), KVP_OK);
    assert_int_equal(existing(g->c, 0, 32), 16);
    assert_int_equal(tier_of(g->c, "key/0", &is_in_memory), 0);
    assert_int_equal(get_waiting(g->c, "key/0", 500, NULL, NULL), KVP_NODE_LOST);
    assert_int_equal(remove_key(g->c, "key/1", true), KVP_OK);
    written = world_stats(g->w).demotes;
    put_all(g->c, 32, 40);
    assert_int_equal(world_stats(g->w).demotes, written);
    assert_int_equal(node_mount_tier(g->na), tier);
    world_advance(g->w, SEC);
    assert_int_equal(get_waiting(g->c, "key/0", 500, NULL, NULL), KVP_OK);
    assert_false(exists(g->c, "key/1"));
    end_tier(g, tier);
}

/* Fails if an object on SSD cannot be read because the objects of its node are few among those of many. */
RIG_TEST_ON(test_many_nodes, .conf = plain)
{
    enum { NODES = 40, OBJECTS = NODES * 24 };
    uint32_t tiers[NODES], n = 0;
    peer_t *nodes[NODES];

    g->w->has_tiers = true;
    for (uint32_t i = 0; i < NODES; i++) {
        const char *name = key_name("n", i);

        nodes[i] = node_open_on(g->w, mem_make(g->w, name, 64 * KIB, 64 * KIB), name);
        tiers[i] = node_mount_tier(nodes[i]);
    }
    for (uint32_t i = 0; i < OBJECTS; i++) {
        assert_int_equal(put_told(g->c, key_name("key/", i), 4 * KIB), KVP_OK);
        if (i % 8 == 7) world_advance(g->w, 20 * MS);
    }
    for (uint32_t i = 0; i < OBJECTS; i++) {
        kvp_err_t err = get_waiting(g->c, key_name("key/", i), 500, NULL, NULL);

        n += err == KVP_OK;
        assert_true(err == KVP_OK || err == KVP_NOT_FOUND);
    }
    assert_int_equal(n, OBJECTS);
    for (uint32_t i = 0; i < NODES; i++)
        assert_int_equal(unmount(nodes[i], tiers[i], false), KVP_OK);
    world_advance(g->w, SEC);
}

/* Fails if an object on SSD cannot be read because the oldest objects of the pool lie on a node without SSD. */
RIG_TEST_ON(test_one_node_of_two_has_an_ssd, .conf = plain, .size = MEMORY, .size_b = 8 * MEMORY, .mems = 2)
{
    uint32_t tier = begin_tier(g);
    uint64_t on_tier;

    put_all(g->c, 0, 400);
    on_tier = world_stats(g->w).tier_objects;
    assert_true(on_tier > 0);
    for (uint32_t i = 0; i < 400; i++) {
        kvp_err_t err = get_waiting(g->c, key_name("key/", i), 500, NULL, NULL);

        assert_true(err == KVP_OK || err == KVP_NOT_FOUND);
    }
    assert_true(world_stats(g->w).staged >= on_tier);
    assert_int_equal(world_stats(g->w).stages_failed, 0);
    end_tier(g, tier);
}

/* Fails if a get of an object on SSD, for which nothing in the memory of its node can go, is not told to come again
 * at first, and after it has waited that there is no room; or if it is not served when there is room. */
RIG_TEST_ON(test_no_room_for_a_load, .conf = plain, .size = MEMORY)
{
    uint32_t tier = begin_tier(g);
    uint64_t tickets[64], failed;

    put_all(g->c, 0, 32);
    hold(g->c, 16, 32, tickets);
    assert_int_equal(get_waiting(g->c, "key/0", 0, NULL, NULL), KVP_RETRY_AFTER);
    assert_int_equal(get_waiting(g->c, "key/0", 100, NULL, NULL), KVP_NO_SPACE);
    world_advance(g->w, SEC);
    failed = world_stats(g->w).stages_failed;
    assert_true(failed > 0);
    assert_int_equal(get_waiting(g->c, "key/1", 500, NULL, NULL), KVP_NO_SPACE);
    release(g->c, tickets[20]);
    assert_int_equal(get_waiting(g->c, "key/1", 500, NULL, NULL), KVP_OK);
    for (uint32_t i = 16; i < 32; i++)
        if (i != 20) release(g->c, tickets[i]);
    end_tier(g, tier);
}

/* Fails if a node where loads find no room takes all of the work that the loads of other nodes wait for. */
RIG_TEST_ON(test_node_without_room_stops_no_other, .conf = plain, .size = MEMORY, .mems = 2, .has_two = true)
{
    uint32_t tier_a = begin_tier(g), tier_b = node_mount_tier(g->nb), n = 0;
    uint64_t waiting = 0;
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    uint64_t tickets[96] = {0};
    kvp_wire_loc_t loc;
    places_t p;

    put_all(g->c, 0, 96);
    for (uint32_t i = 0; i < 96; i++)
        if (is_in_memory(g->c, key_name("key/", i)) &&
            get_waiting(g->c, key_name("key/", i), 0, &loc, NULL) == KVP_OK && loc.segment_id == g->a->segment_id)
            hold(g->c, i, i + 1, tickets);
    head.n = 1;
    head.wait_ms = 900;
    for (uint32_t i = 0; i < 96; i++) {
        kvp_digest_t digest = digest_of(g->w, key_name("key/", i));
        bool is_there;

        if (waiting == 0 && tier_of(g->c, key_name("key/", i), &is_there) == tier_a && !is_there)
            waiting = peer_send(g->d, KVP_OP_GET, 0, &head.base, &digest, sizeof digest);
    }
    for (uint32_t i = 0; i < 96 && n < 4; i++) {
        bool is_there;

        if (tier_of(g->c, key_name("key/", i), &is_there) != tier_b || is_there) continue;
        world_advance(g->w, 15 * MS); /* so that the other node's turn comes in the same step */
        assert_int_equal(get_waiting(g->c, key_name("key/", i), 100, NULL, NULL), KVP_OK);
        n++;
    }
    assert_int_equal(n, 4);
    places_read(peer_wait(g->d, waiting, 2 * SEC), &p);
    assert_int_equal(p.objs[0].err, KVP_NO_SPACE);
    places_free(&p);
    for (uint32_t i = 0; i < 96; i++)
        if (tickets[i] != 0) release(g->c, tickets[i]);
    assert_int_equal(unmount(g->nb, tier_b, false), KVP_OK);
    end_tier(g, tier_a);
}

/* Fails if a large object finds no room among small ones, or small ones that were not written go for it. */
RIG_TEST_ON(test_large_among_small, .conf = plain, .size = MEMORY)
{
    uint32_t tier = begin_tier(g), there;

    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(put_told(g->c, key_name("large/", i), 4 * BLOCK), KVP_OK);
        world_advance(g->w, 20 * MS);
    }
    for (uint32_t i = 0; i < 512; i++) {
        assert_int_equal(put_told(g->c, key_name("key/", i), 4 * KIB), KVP_OK);
        world_advance(g->w, 20 * MS);
    }
    there = existing(g->c, 0, 512);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(get_waiting(g->c, key_name("large/", i), 500, NULL, NULL), KVP_OK);
    assert_int_equal(existing(g->c, 0, 512), there);
    end_tier(g, tier);
}

/* Fails if objects that are read from SSD once displace those that were put and are read, if more than an eighth of
 * memory holds such objects although it is wanted, or if one that is read again, in memory or soon after it left
 * memory, is displaced like one that is not. */
RIG_TEST_ON(test_what_is_loaded_is_cold, .conf = plain, .size = 4 * MEMORY)
{
    uint32_t tier = begin_tier(g), cold = 0, hot = 0;

    put_all(g->c, 0, 256); /* of which 64 are in memory */
    for (uint32_t i = 0; i < 160; i++) {
        assert_int_equal(get_waiting(g->c, key_name("key/", i), 500, NULL, NULL), KVP_OK);
        for (uint32_t k = 0; k < 2 && i == 100; k++)
            assert_int_equal(get_waiting(g->c, key_name("key/", i), 500, NULL, NULL), KVP_OK);
        if (i == 70) {
            assert_false(is_in_memory(g->c, "key/50"));
            assert_int_equal(get_waiting(g->c, "key/50", 500, NULL, NULL), KVP_OK);
        }
        world_advance(g->w, 20 * MS);
    }
    for (uint32_t i = 0; i < 160; i++)
        cold += i != 50 && i != 100 && is_in_memory(g->c, key_name("key/", i));
    for (uint32_t i = 192; i < 256; i++)
        hot += is_in_memory(g->c, key_name("key/", i));
    assert_true(cold <= 64 / 8 + 2 && cold >= 64 / 8 - 2);
    assert_true(hot >= 64 - 64 / 8 - 4);
    assert_true(is_in_memory(g->c, "key/50") && is_in_memory(g->c, "key/100"));
    end_tier(g, tier);
}

/* Fails if what is to be written waits for answers to one or two orders before. */
RIG_TEST_ON(test_orders_to_write_do_not_wait_for_answers, .conf = plain, .size = MEMORY)
{
    uint32_t tier = begin_tier(g);

    g->a->is_tier_slow = true;
    fill(g->c, 0, 1, BLOCK);
    for (uint32_t i = 1; i <= 12; i++)
        assert_int_equal(put_told(g->c, key_name("key/", i), BLOCK), KVP_OK);
    assert_true(g->na->demotes_n >= 6);
    g->a->is_tier_slow = false;
    peer_lose(g->na);
    g->na = node_open_on(g->w, g->a, "a");
    assert_int_equal(node_mount_tier(g->na), tier);
    end_tier(g, tier);
}

/* Fails if not more of memory is written ahead of eviction while puts come fast. */
RIG_TEST_ON(test_more_is_written_while_puts_come, .conf = plain, .size = 4 * MEMORY)
{
    uint32_t tier = begin_tier(g);

    put_all(g->c, 0, 64);
    assert_int_equal(world_stats(g->w).demoted, 64 / 2);
    end_tier(g, tier);
}

/* Fails if an object is evicted while it is written, so that the write is in vain, or if puts wait for the writes. */
RIG_TEST_ON(test_what_is_being_written_stays, .conf = plain, .size = 4 * MEMORY)
{
    uint32_t tier = begin_tier(g);

    g->a->is_tier_slow = true;
    put_all(g->c, 0, 64);
    put_all(g->c, 64, 96);
    assert_int_equal(existing(g->c, 0, 32), 32);
    assert_int_equal(existing(g->c, 32, 64), 0);
    g->a->is_tier_slow = false;
    peer_lose(g->na);
    g->na = node_open_on(g->w, g->a, "a");
    assert_int_equal(node_mount_tier(g->na), tier);
    end_tier(g, tier);
}

/* What is on the SSD of a node is read while the node drains. */
RIG_TEST_ON(test_a_draining_node_loads, .conf = plain, .size = MEMORY)
{
    Kvp__Pb__Drain msg = KVP__PB__DRAIN__INIT;
    uint32_t tier = begin_tier(g);

    put_all(g->c, 0, 40);
    msg.node = g->a->name;
    msg.what = KVP_DRAIN_BEGIN;
    reply_free(peer_wait(g->c, peer_send(g->c, KVP_OP_DRAIN, 0, &msg.base, NULL, 0), SEC));
    for (uint32_t i = 0; i < 4; i++) {
        assert_false(is_in_memory(g->c, key_name("key/", i)));
        assert_int_equal(get_waiting(g->c, key_name("key/", i), 500, NULL, NULL), KVP_OK);
    }
    msg.what = KVP_DRAIN_END;
    reply_free(peer_wait(g->c, peer_send(g->c, KVP_OP_DRAIN, 0, &msg.base, NULL, 0), SEC));
    end_tier(g, tier);
}

/* Fails if a load takes objects that are read often because they are small and lie side by side. */
RIG_TEST_ON(test_loads_pass_over_what_is_read, .conf = plain, .size = 4 * MEMORY)
{
    uint32_t tier = begin_tier(g), n = 0;

    for (uint32_t i = 0; i < 128; i++)
        assert_int_equal(put_told(g->c, key_name("small/", i), 4 * KIB), KVP_OK);
    put_all(g->c, 0, 64); /* some of these leave memory again */
    for (uint32_t k = 0; k < 3 * 128; k++)
        assert_int_equal(get_waiting(g->c, key_name("small/", k % 128), 500, NULL, NULL), KVP_OK);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(get_waiting(g->c, key_name("key/", i), 500, NULL, NULL), KVP_OK);
    for (uint32_t k = 0; k < 128; k++)
        n += is_in_memory(g->c, key_name("small/", k));
    assert_int_equal(n, 128);
    end_tier(g, tier);
}

/* ---- drains of a node with an SSD */
static Kvp__Pb__DrainReply
drain(rig_t *g, uint32_t what, bool with_ssd, bool no_evict)
{
    Kvp__Pb__Drain msg = KVP__PB__DRAIN__INIT;

    msg.node = g->a->name;
    msg.what = what;
    msg.with_ssd = with_ssd;
    msg.no_evict = no_evict;
    msg.evict = !no_evict;
    return ask_drain(g->c, msg);
}

/* Nothing is left at a, and nothing was evicted. */
static void
check_drained(rig_t *g)
{
    Kvp__Pb__DrainReply told = drain(g, KVP_DRAIN_ASK, false, false);

    assert_int_equal(told.state, KVP_DRAIN_DONE);
    assert_int_equal(told.left_objects + told.ssd_objects + told.ssd_bytes + told.evicted_objects, 0);
    assert_int_equal(g->a->tiered_n, 0); /* the SSD was told to drop all */
}

/* b comes now: so what was put before lies at a. */
static void
begin_b(rig_t *g)
{
    g->b->can_copy = true;
    g->nb = node_open_on(g->w, g->b, "b");
}

/* Fails if objects that the SSD of a draining node has alone do not come into the memory of another one. */
RIG_TEST_ON(test_drain_moves_what_the_ssd_has, .conf = plain, .size = MEMORY, .size_b = 8 * MEMORY, .mems = 2,
            .nodes = 1)
{
    Kvp__Pb__DrainReply told;

    (void)begin_tier(g);
    put_all(g->c, 0, 60);
    begin_b(g);
    told = drain(g, KVP_DRAIN_BEGIN, false, false);
    world_advance(g->w, 5 * SEC);
    assert_true(told.ssd_objects > 30);
    told = drain(g, KVP_DRAIN_ASK, false, false); /* without the option they stay */
    assert_int_equal(told.state, KVP_DRAIN_DONE);
    assert_true(told.ssd_objects > 30 && !told.with_ssd);
    told = drain(g, KVP_DRAIN_BEGIN, true, false);
    assert_int_equal(told.state, KVP_DRAIN_RUNS);
    world_advance(g->w, 5 * SEC);
    check_drained(g);
    peer_lose(g->na);
    world_advance(g->w, 10 * MS);
    for (uint32_t i = 0; i < 60; i++)
        assert_true(is_in_memory(g->c, key_name("key/", i)));
}

/* Fails if an object is evicted, though the SSD of another node has room for it, or if the next master does not drain
 * on. */
RIG_TEST_ON(test_drain_moves_from_ssd_to_ssd, .conf = with_log, .size = MEMORY, .size_b = MEMORY, .mems = 2, .nodes = 1)
{
    uint32_t tier;

    (void)begin_tier(g);
    put_all(g->c, 0, 60);
    begin_b(g);
    (void)node_mount_tier(g->nb);
    (void)drain(g, KVP_DRAIN_BEGIN, true, false);
    world_advance(g->w, 50 * MS);
    assert_int_equal(drain(g, KVP_DRAIN_ASK, false, false).state, KVP_DRAIN_RUNS);
    rig_restart(g);
    g->na = node_open_on(g->w, g->a, "a");
    g->nb = node_open_on(g->w, g->b, "b");
    (void)node_mount_tier(g->na);
    tier = node_mount_tier(g->nb);
    assert_true(drain(g, KVP_DRAIN_ASK, false, false).with_ssd);
    world_advance(g->w, 60 * SEC);
    check_drained(g);
    peer_lose(g->na);
    world_advance(g->w, 10 * MS);
    for (uint32_t i = 0; i < 60; i++)
        assert_int_equal(get_waiting(g->c, key_name("key/", i), 500, NULL, NULL), KVP_OK);
    assert_int_equal(unmount(g->nb, tier, false), KVP_OK);
    world_advance(g->w, SEC);
}

/* Fails if, without room elsewhere, the drain loses what it was told to keep, does not say what is missing, or evicts
 * others than the oldest. */
RIG_TEST_ON(test_drain_of_an_ssd_without_room, .conf = plain, .size = MEMORY, .size_b = MEMORY, .mems = 2, .nodes = 1)
{
    Kvp__Pb__DrainReply told;
    uint32_t there;

    (void)begin_tier(g);
    put_all(g->c, 0, 60);
    begin_b(g);
    (void)drain(g, KVP_DRAIN_BEGIN, true, true);
    world_advance(g->w, 20 * SEC);
    told = drain(g, KVP_DRAIN_ASK, false, false);
    assert_int_equal(told.state, KVP_DRAIN_RUNS);
    assert_int_equal(told.evicted_objects, 0);
    assert_true(told.no_room > 0 && told.no_room_bytes > 0 && told.ssd_objects > 0);
    assert_int_equal(existing(g->c, 0, 60), 60);
    (void)drain(g, KVP_DRAIN_BEGIN, true, false);
    world_advance(g->w, 20 * SEC);
    told = drain(g, KVP_DRAIN_ASK, false, false);
    assert_int_equal(told.state, KVP_DRAIN_DONE);
    there = existing(g->c, 0, 60);
    assert_int_equal(told.moved_objects, 16);
    assert_int_equal(there, 16);
    assert_int_equal(told.evicted_objects, 44);
    assert_true(existing(g->c, 44, 60) >= 14); /* those on the SSD are the oldest */
}

/* Fails if an SSD that cannot be read, or is away, is not named as the reason, or its objects are lost. */
RIG_TEST_ON(test_drain_of_an_ssd_that_cannot_be_read, .conf = plain, .size = MEMORY, .size_b = 8 * MEMORY, .mems = 2,
            .nodes = 1)
{
    Kvp__Pb__DrainReply told;

    (void)begin_tier(g);
    put_all(g->c, 0, 40);
    begin_b(g);
    g->a->is_stage_failing = true;
    (void)drain(g, KVP_DRAIN_BEGIN, true, false);
    world_advance(g->w, 5 * SEC);
    told = drain(g, KVP_DRAIN_ASK, false, false);
    assert_int_equal(told.state, KVP_DRAIN_RUNS);
    assert_int_equal(told.left_objects, 0);
    assert_true(told.failed > 0 && told.failed < 1000 && told.last_error == KVP_DRAIN_UNREAD && told.ssd_objects > 10);
    g->a->is_stage_failing = false;
    world_advance(g->w, 10 * SEC);
    check_drained(g);
    assert_int_equal(existing(g->c, 0, 40), 40);
}

TEST_MAIN()
