/* SPDX-License-Identifier: Apache-2.0
 * The causes for which a pool is degraded: each begins with its fault, and ends after it. */
#include "tests/unit/master/rig.h"

#define BLOCK (64 * KIB)
#define MEMORY (16 * BLOCK)
#define HOUR (3600 * SEC)

static const kvp_master_conf_t plain = {.location_lease_ns = MS, .location_grace_ns = MS};

/* wrong_of returns the text of the first cause with that code; NULL if there is none. Until the next call. */
static const char *
wrong_of(world_t *w, const char *code)
{
    static kvp_master_wrong_t found;

    kvp_master_wrong(w->m, &found);
    for (uint32_t i = 0; i < found.n; i++)
        if (strcmp(found.lines[i].code, code) == 0) return found.lines[i].text;
    return NULL;
}

static uint32_t
causes(world_t *w)
{
    kvp_master_wrong_t found;

    kvp_master_wrong(w->m, &found);
    return found.n;
}

static kvp_err_t
unmount(peer_t *node, uint32_t segment)
{
    Kvp__Pb__Unmount msg = KVP__PB__UNMOUNT__INIT;

    msg.segment_id = segment;
    return plain_result(peer_wait(node, peer_send(node, KVP_OP_UNMOUNT, 0, &msg.base, NULL, 0), SEC));
}

/* Fails if a pool without a node is good, or one from which the last node was taken in order. */
RIG_TEST_ON(test_no_node, .conf = plain, .size = MEMORY)
{
    assert_int_equal(causes(g->w), 0);
    assert_int_equal(unmount(g->na, g->a->segment_id), KVP_OK);
    world_advance(g->w, SEC);
    assert_int_equal(causes(g->w), 1);
    assert_non_null(wrong_of(g->w, "no_node"));
}

/* Fails if a node that is lost, or was given up, is no cause; or is one after it is back, or for ever. */
RIG_TEST_ON(test_lost_nodes, .conf = plain, .size = MEMORY, .mems = 2)
{
    peer_lose(g->na);
    world_advance(g->w, SEC);
    assert_string_equal(wrong_of(g->w, "node_lost"), "node a is lost: its objects cannot be read until it is back");
    assert_int_equal(causes(g->w), 1);
    world_advance(g->w, 31 * SEC);
    assert_null(wrong_of(g->w, "node_lost"));
    assert_non_null(strstr(wrong_of(g->w, "node_given_up"), "node a did not come back"));
    mem_remake(g->w, g->a);
    g->na = node_open_on(g->w, g->a, "a");
    assert_int_equal(causes(g->w), 0);
    peer_lose(g->nb);
    world_advance(g->w, 31 * SEC);
    assert_non_null(wrong_of(g->w, "node_given_up"));
    world_advance(g->w, HOUR);
    assert_int_equal(causes(g->w), 0);
}

/* Fails if a node that leaves in order is a cause while others are there. */
RIG_TEST_ON(test_node_leaves, .conf = plain, .size = MEMORY, .mems = 2)
{
    assert_int_equal(unmount(g->nb, g->b->segment_id), KVP_OK);
    peer_lose(g->nb);
    world_advance(g->w, 60 * SEC);
    assert_int_equal(causes(g->w), 0);
}

/* Fails if loads from SSD that fail are no cause, or are one a minute after the last. */
RIG_TEST_ON(test_loads_fail, .conf = plain, .size = MEMORY)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = digest_of(g->w, "key/0");
    uint32_t tier;

    g->w->has_tiers = true;
    tier = node_mount_tier(g->na);
    for (uint32_t i = 0; i < 32; i++) {
        assert_int_equal(put_told(g->c, key_name("key/", i), BLOCK), KVP_OK);
        world_advance(g->w, 20 * MS);
    }
    g->a->is_stage_failing = true;
    assert_int_equal(causes(g->w), 0);
    head.n = 1;
    head.wait_ms = 100;
    reply_free(peer_wait(g->c, peer_send(g->c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest), 2 * SEC));
    world_advance(g->w, 2 * SEC);
    assert_non_null(strstr(wrong_of(g->w, "loads_fail"), "1 lately, the last one 1 s ago on node a;"));
    world_advance(g->w, 61 * SEC);
    assert_int_equal(causes(g->w), 0);
    assert_int_equal(unmount(g->na, tier), KVP_OK);
    world_advance(g->w, SEC);
}

/* Fails if the loss of an object on an SSD is no cause, is none a minute later, or is one an hour after the last. */
RIG_TEST_ON(test_ssd_damaged, .conf = plain, .size = MEMORY)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_digest_t digest = digest_of(g->w, "key/0");
    uint32_t tier;

    g->w->has_tiers = true;
    tier = node_mount_tier(g->na);
    for (uint32_t i = 0; i < 32; i++) {
        assert_int_equal(put_told(g->c, key_name("key/", i), BLOCK), KVP_OK);
        world_advance(g->w, 20 * MS);
    }
    tier_drop(g->a, digest, tiered_find(g->a, digest)->rec.version);
    assert_int_equal(causes(g->w), 0);
    head.n = 1;
    head.wait_ms = 100;
    reply_free(peer_wait(g->c, peer_send(g->c, KVP_OP_GET, 0, &head.base, &digest, sizeof digest), 2 * SEC));
    world_advance(g->w, 90 * SEC);
    assert_int_equal(causes(g->w), 1);
    assert_non_null(strstr(wrong_of(g->w, "ssd_damaged"), "lost on an SSD: 1 lately"));
    world_advance(g->w, HOUR);
    assert_int_equal(causes(g->w), 0);
    assert_int_equal(unmount(g->na, tier), KVP_OK);
    world_advance(g->w, SEC);
}

/* Fails if objects that are evicted before the SSD has them are no cause, or are one a minute later; or if an eviction
 * of written objects, or without an SSD, is one. */
RIG_TEST_ON(test_ssd_behind, .conf = plain, .size = MEMORY)
{
    uint32_t tier;

    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(put_told(g->c, key_name("early/", i), BLOCK), KVP_OK);
    g->w->has_tiers = true;
    tier = node_mount_tier(g->na);
    world_advance(g->w, SEC);
    for (uint32_t i = 0; i < 32; i++) {
        assert_int_equal(put_told(g->c, key_name("paced/", i), BLOCK), KVP_OK);
        world_advance(g->w, 20 * MS);
    }
    assert_true(world_stats(g->w).evictions >= 32);
    assert_int_equal(causes(g->w), 0);
    g->a->is_tier_full = true;
    for (uint32_t i = 0; i < 48; i++)
        assert_int_equal(put_told(g->c, key_name("key/", i), BLOCK), KVP_OK);
    assert_non_null(strstr(wrong_of(g->w, "ssd_behind"), " lately, the last one 0 s ago on node a;"));
    world_advance(g->w, 61 * SEC);
    assert_int_equal(causes(g->w), 0);
    assert_int_equal(unmount(g->na, tier), KVP_OK);
    world_advance(g->w, SEC);
}

/* Fails if a device that does not answer, or a tier that is away with objects, is no cause. */
RIG_TEST_ON(test_devices, .conf = plain, .size = MEMORY)
{
    g->w->has_tiers = true;
    g->a->stalled_devices = 2;
    (void)node_mount_tier(g->na);
    assert_non_null(strstr(wrong_of(g->w, "device_stalled"), "SSD tier a/ssd: 2 of its devices do not answer"));
    g->a->stalled_devices = 0;
    (void)node_mount_tier(g->na);
    assert_int_equal(causes(g->w), 0);
    for (uint32_t i = 0; i < 32; i++) {
        assert_int_equal(put_told(g->c, key_name("key/", i), BLOCK), KVP_OK);
        world_advance(g->w, 20 * MS);
    }
    peer_lose(g->na);
    world_advance(g->w, 40 * SEC);
    assert_non_null(wrong_of(g->w, "ssd_away"));
    mem_remake(g->w, g->a);
    g->na = node_open_on(g->w, g->a, "a");
    const uint32_t tier = node_mount_tier(g->na);
    assert_int_equal(causes(g->w), 0);
    assert_int_equal(unmount(g->na, tier), KVP_OK); /* the SSD is taken out */
    world_advance(g->w, SEC);
    assert_int_equal(causes(g->w), 0);
}

/* Fails if a master that is missing, or does not follow, is no cause; if a log that cannot be written is none; or if
 * Status does not tell masters and causes. */
RIG_TEST_ON(test_masters, .conf = plain, .size = MEMORY)
{
    Kvp__Pb__Status ask = KVP__PB__STATUS__INIT;
    kvp_master_peer_t masters[] = {
        {.id = "1", .address = "10.0.0.1:50051", .state = KVP_MASTER_LEADER},
        {.id = "2", .address = "10.0.0.2:50051", .state = KVP_MASTER_STANDBY},
        {.id = "3", .address = "10.0.0.3:50051", .state = KVP_MASTER_STANDBY},
    };

    kvp_master_note_masters(g->w->m, NULL, masters, 3);
    assert_int_equal(causes(g->w), 0);
    masters[1].state = KVP_MASTER_MISSING;
    masters[2].state = KVP_MASTER_APART;
    kvp_master_note_masters(g->w->m, NULL, masters, 3);
    assert_non_null(strstr(wrong_of(g->w, "master_missing"), "10.0.0.2:50051"));
    assert_non_null(strstr(wrong_of(g->w, "master_apart"), "10.0.0.3:50051"));
    masters[2].state = KVP_MASTER_LAGGING;
    masters[0].state = KVP_MASTER_STANDBY;
    kvp_master_note_masters(g->w->m, NULL, masters, 3);
    assert_non_null(wrong_of(g->w, "master_lagging"));
    assert_non_null(wrong_of(g->w, "no_leader"));

    reply_t *r = peer_wait(g->c, peer_send(g->c, KVP_OP_STATUS, 0, &ask.base, NULL, 0), SEC);
    kvp_pb_t pb;
    Kvp__Pb__StatusReply *reply = kvp_pb_unpack(&pb, &kvp__pb__status_reply__descriptor, &r->frame);
    assert_non_null(reply);
    assert_int_equal(reply->n_masters, 3);
    assert_string_equal(reply->masters[1]->address, "10.0.0.2:50051");
    assert_int_equal(reply->masters[1]->state, KVP_MASTER_MISSING);
    assert_int_equal(reply->n_wrong, 3);
    assert_string_equal(reply->wrong[0]->code, "master_missing");
    kvp_pb_free(&pb, reply);
    reply_free(r);

    kvp_master_note_masters(g->w->m, NULL, masters, 0);
    world_done(g->w, KVP_DONE_LOG_FAILS, 0);
    assert_non_null(wrong_of(g->w, "log_failed"));
    world_done(g->w, KVP_DONE_LOG_WORKS, 0);
    assert_int_equal(causes(g->w), 0);
}

TEST_MAIN()
