/* SPDX-License-Identifier: Apache-2.0
 * A master that follows another by its log: what it serves before nodes tell their words, and what these decide. */
#include "master/core/catalog/replica.h"
#include "master/core/protect/gone.h"
#include "master/core/recovery/state.h"

#include "proto/segfmt.h"
#include "tests/unit/master/rig.h"
#include "tests/world/report.h"

#define SMALL (8 * KIB)

static const kvp_master_conf_t with_log = {.has_journal = true, .location_lease_ns = MS, .location_grace_ns = MS};

static uint64_t
put_one(peer_t *c, const char *key, uint32_t copies, bool is_upsert)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = key, .len = SMALL};
    uint64_t version;
    places_t p;

    like.is_upsert = is_upsert;
    like.replicas = copies;
    like.wait_ms = 50;
    places_read(peer_wait(c, put_begin_with(c, &one, 1, &like), 200 * MS), &p);
    assert_int_equal(p.objs[0].err, KVP_OK);
    assert_int_equal(p.nloc, copies);
    for (uint32_t i = 0; i < copies; i++)
        assert_int_equal(write_object(c, &p.locs[i], &p.objs[0], key), KVP_OK);
    version = p.objs[0].version;
    places_free(&p);
    assert_int_equal(commit_copies(c, one.attempt, SMALL * 3, (1u << copies) - 1), KVP_OK);
    return version;
}

/* Connects and mounts; the words are the caller's to tell. */
static peer_t *
greet(world_t *w, mem_t *mem)
{
    Kvp__Pb__MountReply reply;
    peer_t *n = peer_open(w);

    n->mem = mem;
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, mem->name, mem->name), KVP_OK);
    reply = node_ask_mount(n);
    assert_int_equal(reply.err, KVP_OK);
    assert_false(reply.is_reset);
    assert_int_equal(reply.report, 1);
    return n;
}

/* Copies, long keys, replaced and removed ones. */
RIG_TEST_ON(test_served_before_words_are_told, .conf = with_log, .mems = 2, .size = 2 * MIB, .chunk = MIB)
{
    uint64_t first, two, new, long_one, ticket;
    char long_key[KVP_KEY_CELL_BYTES + 40];
    peer_t *na, *nb;
    uint32_t copies;

    memset(long_key, 'l', sizeof long_key);
    long_key[sizeof long_key - 1] = '\0';
    first = put_one(g->c, "first", 1, false);
    two = put_one(g->c, "two", 2, false);
    (void)put_one(g->c, "new", 1, false);
    new = put_one(g->c, "new", 1, true);
    long_one = put_one(g->c, long_key, 1, false);
    (void)put_one(g->c, "gone", 2, false);
    assert_int_equal(remove_key(g->c, "gone", true), KVP_OK);
    rig_restart(g);
    assert_int_equal(found(g->c, "first", NULL), 0);
    assert_int_equal(begin_put(g->c, "first", SMALL, 0), KVP_RETRY_AFTER); /* its node is expected back */
    assert_int_equal(get(g->c, "first", &ticket, NULL), KVP_RETRY_AFTER);
    assert_int_equal(world_stats(g->w).gets + world_stats(g->w).get_misses_by[KVP_CAUSE_NODE_AWAY], 0);
    na = greet(g->w, g->a);
    nb = greet(g->w, g->b);
    assert_int_equal(found(g->c, "first", NULL), first);
    assert_int_equal(found(g->c, "two", &copies), two);
    assert_int_equal(copies, 2);
    assert_int_equal(found(g->c, "new", NULL), new);
    assert_int_equal(found(g->c, long_key, NULL), long_one);
    assert_int_equal(found(g->c, "gone", NULL), 0);
    assert_int_equal(begin_put(g->c, "first", SMALL, 0), KVP_ALREADY);
    assert_int_equal(begin_put(g->c, "other", SMALL, 0), KVP_RETRY_AFTER); /* nothing is placed before */
    assert_int_equal(remove_key(g->c, "first", true), KVP_OK);
    node_report(na);
    node_report(nb);
    world_advance(g->w, 5 * SEC);
    assert_int_equal(world_stats(g->w).objects, 3);
    assert_int_equal(world_stats(g->w).used_bytes, 4 * SMALL);
    assert_int_equal(world_stats(g->w).quarantine_bytes, 0);
    assert_true(put_one(g->c, "other", 2, false) > new);
    long_key[0] = 'm';
    (void)put_one(g->c, long_key, 1, false);
}

/* What was committed when the disk did not answer was not acknowledged. */
RIG_TEST_ON(test_words_that_the_log_does_not_know, .conf = with_log, .size = MIB)
{
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    put_t one = {.key = "lost", .len = SMALL};
    kvp_wire_commit_t rec = {.replicas = 1};
    kvp_wire_loc_t at;
    places_t p;

    (void)put_one(g->c, "kept", 1, false);
    places_read(peer_wait(g->c, put_begin(g->c, &one, 1, 50), 200 * MS), &p);
    assert_int_equal(write_object(g->c, &p.locs[0], &p.objs[0], "lost"), KVP_OK);
    at = p.locs[0];
    places_free(&p);
    g->w->is_disk_stuck = true;
    head.n = 1;
    rec.attempt = one.attempt;
    (void)peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec);
    world_advance(g->w, 100 * MS);
    assert_true(found(g->c, "lost", NULL) > 0);
    world_restart(g->w);
    g->w->is_disk_stuck = false;
    node_report(greet(g->w, g->a));
    g->c = client_open(g->w);
    assert_int_equal(kvp_word_state(g->a->chunks[at.chunk].words[at.slot]), KVP_DESC_DEAD);
    assert_int_equal(found(g->c, "lost", NULL), 0);
    assert_true(found(g->c, "kept", NULL) > 0);
    (void)put_one(g->c, "lost", 1, false);
}

/* A node that obeyed an order of which the log's end would have told. */
RIG_TEST_ON(test_words_that_are_not_sealed, .conf = with_log, .size = MIB)
{
    extent_t *all;
    uint32_t n;

    (void)put_one(g->c, "evicted", 1, false);
    all = mem_sealed(g->a, &n);
    assert_int_equal(n, 1);
    (void)put_one(g->c, "kept", 1, false);
    rig_restart(g);
    g->a->chunks[all[0].rec.chunk].words[all[0].rec.slot] =
        kvp_word_make(kvp_word_generation(all[0].rec.word), KVP_DESC_DEAD);
    free(all);
    node_report(greet(g->w, g->a));
    assert_int_equal(found(g->c, "evicted", NULL), 0);
    assert_true(found(g->c, "kept", NULL) > 0);
    (void)put_one(g->c, "evicted", 1, false);
    world_advance(g->w, 5 * SEC);
    assert_int_equal(world_stats(g->w).objects, 2);
    assert_int_equal(world_stats(g->w).used_bytes, 2 * SMALL);
}

/* Told again from its beginning; and what its node makes up costs the node its memory. */
RIG_TEST_ON(test_words_that_are_cut_or_made_up, .conf = with_log, .size = MIB)
{
    extent_t *all, bad;
    uint32_t n;
    peer_t *node;

    for (uint32_t i = 0; i < 20; i++)
        (void)put_one(g->c, key_name("key/", i), 1, false);
    rig_restart(g);
    node = greet(g->w, g->a);
    all = mem_sealed(g->a, &n);
    assert_int_equal(n, 20);
    assert_true(report_take(node, report_send(node, all, 7, false), all, 7));
    peer_forget(node);
    world_advance(g->w, SEC); /* after that nobody waits for it */
    assert_int_equal(count(g->c, 0, 20), 0);
    node = greet(g->w, g->a);
    assert_int_equal(count(g->c, 0, 20), 20);
    bad = all[0];
    free(all);
    bad.rec.chunk = 99;
    assert_false(report_take(node, report_send(node, &bad, 1, false), &bad, 1));
    world_advance(g->w, 100 * MS);
    assert_int_equal(count(g->c, 0, 20), 0);
    assert_int_equal(world_stats(g->w).segments, 0);
}

/* ---- questions in the first second */
typedef struct {
    uint64_t exists, prefix, list, place;
} asked_t;

static asked_t
ask_all(rig_t *g, const char *key)
{
    Kvp__Pb__Exists exists = KVP__PB__EXISTS__INIT;
    Kvp__Pb__Lookup lookup = KVP__PB__LOOKUP__INIT;
    Kvp__Pb__List list = KVP__PB__LIST__INIT;
    Kvp__Pb__Get place = KVP__PB__GET__INIT;
    kvp_digest_t digest = digest_of(g->w, key);

    exists.n = lookup.n = place.n = 1;
    lookup.is_prefix = place.no_hold = true;
    return (asked_t){
        .exists = peer_send(g->c, KVP_OP_EXISTS, 0, &exists.base, &digest, sizeof digest),
        .prefix = peer_send(g->c, KVP_OP_LOOKUP, 0, &lookup.base, &digest, sizeof digest),
        .list = peer_send(g->c, KVP_OP_LIST, 0, &list.base, NULL, 0),
        .place = peer_send(g->c, KVP_OP_GET, 0, &place.base, &digest, sizeof digest),
    };
}

/* All of them are answered by now, and say so. */
static void
check_answers(rig_t *g, const asked_t *asked, bool is_there)
{
    reply_t *exists = peer_reply(g->c, asked->exists), *prefix = peer_reply(g->c, asked->prefix),
            *list = peer_reply(g->c, asked->list), *place = peer_reply(g->c, asked->place);
    Kvp__Pb__LookupReply *found;
    Kvp__Pb__ListReply *listed;
    kvp_pb_t pb;

    assert_true(exists != NULL && prefix != NULL && list != NULL && place != NULL);
    assert_int_equal(exists->frame.tail[0], is_there);
    assert_int_equal(((const kvp_wire_obj_t *)place->frame.tail)->err, is_there ? KVP_OK : KVP_NODE_LOST);
    found = kvp_pb_unpack(&pb, &kvp__pb__lookup_reply__descriptor, &prefix->frame);
    assert_int_equal(found->found, is_there);
    kvp_pb_free(&pb, found);
    listed = kvp_pb_unpack(&pb, &kvp__pb__list_reply__descriptor, &list->frame);
    assert_int_equal(listed->n, is_there);
    kvp_pb_free(&pb, listed);
    reply_free(exists);
    reply_free(prefix);
    reply_free(list);
    reply_free(place);
}

RIG_TEST_ON(test_questions_wait_for_the_nodes_of_the_log, .conf = with_log, .size = MIB)
{
    asked_t asked;

    (void)put_one(g->c, "key", 1, false);
    rig_restart(g);
    asked = ask_all(g, "key");
    world_advance(g->w, 300 * MS);
    assert_true(peer_is_asking(g->c, asked.exists) && peer_is_asking(g->c, asked.prefix) &&
                peer_is_asking(g->c, asked.list) && peer_is_asking(g->c, asked.place));
    assert_false(exists(g->c, "other")); /* the log says all: no node brings that */
    node_report(greet(g->w, g->a));
    world_advance(g->w, 20 * MS);
    check_answers(g, &asked, true);

    /* A node that does not come is waited for no longer than a second. */
    rig_restart(g);
    asked = ask_all(g, "key");
    world_advance(g->w, 900 * MS);
    assert_true(peer_is_asking(g->c, asked.exists));
    world_advance(g->w, 150 * MS);
    check_answers(g, &asked, false);
    asked = ask_all(g, "key");
    check_answers(g, &asked, false);
}

/* What was put before a bump is swept by the next master as well. */
RIG_TEST_ON(test_bump_that_was_not_swept, .conf = with_log, .size = MIB)
{
    fill(g->c, 0, 20, SMALL);
    g->w->is_idle_off = true;
    assert_int_equal(plain_result(peer_wait(g->c, bump_begun(g->c, 0), SEC)), KVP_OK);
    rig_restart(g);
    g->w->is_idle_off = false;
    node_report(greet(g->w, g->a));
    assert_int_equal(count(g->c, 0, 20), 0);
    world_advance(g->w, 5 * SEC);
    assert_int_equal(world_stats(g->w).used_bytes, 0);
    fill(g->c, 0, 20, SMALL);
}

static kvp_master_t *
core_of(const rig_t *g, bool is_all_given)
{
    kvp_master_t *m;
    uint64_t end;

    assert_int_equal(kvp_master_create(&g->w->conf, g->w->now, &m), KVP_OK);
    kvp_ignore(kvp_master_read_log(m, g->w->journal.data, g->w->journal.len), "it is damaged");
    assert_int_equal(kvp_master_open_log(m, is_all_given ? KVP_OPEN_WHOLE : KVP_OPEN_SHORT, &end), KVP_OK);
    return m;
}

/* Of a log that lacks something only that is believed which it says is gone. */
static void
check_doubted(const rig_t *g, kvp_master_t *m, bool knows_gone)
{
    assert_false(m->base.is_relied_on);
    assert_int_equal(m->ctx.st.objects, 0);
    assert_true(kvp_list_is_empty(&m->cat.segments));
    assert_int_equal(kvp_gone_version(&m->prot, 0, digest_of(g->w, "gone")) > 0, knows_gone);
    assert_int_equal(kvp_gone_version(&m->prot, 0, digest_of(g->w, "key/3")), 0);
    kvp_master_destroy(m);
}

RIG_TEST_ON(test_log_that_lacks_something, .conf = with_log, .size = MIB)
{
    kvp_master_t *m;

    (void)put_one(g->c, "gone", 1, false);
    assert_int_equal(remove_key(g->c, "gone", true), KVP_OK);
    fill(g->c, 0, 50, SMALL);
    m = core_of(g, true);
    assert_true(m->base.is_relied_on);
    assert_int_equal(m->ctx.st.objects, 50);
    kvp_master_destroy(m);
    check_doubted(g, core_of(g, false), true); /* perhaps its end */
    g->w->journal.data[g->w->journal.len / 2] ^= 1; /* or what is behind this */
    check_doubted(g, core_of(g, true), true);
    g->w->journal.data[0] ^= 1;
    check_doubted(g, core_of(g, true), false);
}

TEST_MAIN()
