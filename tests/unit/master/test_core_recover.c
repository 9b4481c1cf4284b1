/* SPDX-License-Identifier: Apache-2.0
 * A master that knows nothing learns from nodes what they hold: what it believes, what it does not, and what was
 * removed meanwhile. */
#include "tests/unit/master/rig.h"
#include "tests/world/report.h"

#define SMALL (8 * KIB)

static const rig_conf_t one_node = {.size = MIB};
static const rig_conf_t second_away = {.size = MIB, .mems = 2, .nodes = 1};
static const rig_conf_t quick_second_away = {
    .conf = {.location_lease_ns = MS, .location_grace_ns = MS}, .size = MIB, .mems = 2, .nodes = 1};

/* ---- doing */
typedef enum { COMMIT, ABORT, LEAVE } end_t;

/* A put of n copies, all of which are sealed. */
static kvp_err_t
put_ending(peer_t *c, const char *key, uint64_t len, uint32_t copies, bool is_upsert, end_t end, uint64_t *version_out)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    put_t one = {.key = key, .len = len};
    places_t p;
    kvp_err_t err;

    like.replicas = copies;
    like.is_upsert = is_upsert;
    like.wait_ms = 50;
    places_read(peer_wait(c, put_begin_with(c, &one, 1, &like), 200 * MS), &p);
    err = p.err == KVP_OK ? p.objs[0].err : p.err;
    for (uint32_t i = 0; err == KVP_OK && i < p.nloc; i++)
        assert_int_equal(write_object(c, &p.locs[i], &p.objs[0], key), KVP_OK);
    if (err == KVP_OK) *version_out = p.objs[0].version;
    copies = p.nloc;
    places_free(&p);
    if (err != KVP_OK) return err;
    if (end == COMMIT) return commit_copies(c, one.attempt, len * 3, (1u << copies) - 1);
    return end == ABORT ? abort_put(c, one.attempt, true) : KVP_OK;
}

static kvp_err_t
put_object(peer_t *c, const char *key, uint64_t len, uint32_t copies, bool is_upsert, uint64_t *version_out)
{
    return put_ending(c, key, len, copies, is_upsert, COMMIT, version_out);
}

static kvp_err_t
put_one(peer_t *c, const char *key)
{
    uint64_t version;

    return put_object(c, key, SMALL, 1, false, &version);
}

/* Connects and mounts; the report is the caller's. */
static peer_t *
node_greet(world_t *w, mem_t *mem, Kvp__Pb__MountReply *reply_out)
{
    peer_t *n = peer_open(w);

    n->mem = mem;
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, mem->name, mem->name), KVP_OK);
    *reply_out = node_ask_mount(n);
    return n;
}

/* ---- what is found again */
RIG_TEST_ON(test_restart_when_nodes_report_all, .mems = 2, .size = 2 * MIB, .chunk = MIB)
{
    uint64_t version, long_version, again;
    uint32_t copies;
    char key[64], long_key[KVP_KEY_CELL_BYTES + 40];

    memset(long_key, 'l', sizeof long_key);
    long_key[sizeof long_key - 1] = '\0';
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(put_one(g->c, key_name("key/", i)), KVP_OK);
    assert_int_equal(put_object(g->c, "two", 100 * KIB, 2, false, &version), KVP_OK);
    assert_int_equal(put_object(g->c, long_key, SMALL, 1, false, &long_version), KVP_OK);
    rig_restart(g);
    assert_int_equal(found(g->c, "key/0", NULL), 0);
    (void)node_open_on(g->w, g->a, "a");
    (void)node_open_on(g->w, g->b, "b");
    for (uint32_t i = 0; i < 40; i++) {
        snprintf(key, sizeof key, "key/%u", i);
        assert_true(found(g->c, key, NULL) > 0);
        assert_int_equal(put_one(g->c, key), KVP_ALREADY);
    }
    assert_int_equal(found(g->c, "two", &copies), version);
    assert_int_equal(copies, 2);
    assert_int_equal(found(g->c, long_key, NULL), long_version);
    assert_int_equal(world_stats(g->w).adopted, 42);
    assert_int_equal(world_stats(g->w).used_bytes, 41 * SMALL + 2 * 100 * KIB);
    assert_int_equal(put_object(g->c, "new", SMALL, 2, false, &again), KVP_OK);
    assert_true(again > version);
    assert_int_equal(put_object(g->c, "two", SMALL, 1, true, &again), KVP_OK);
    assert_int_equal(found(g->c, "two", NULL), again);
    long_key[0] = 'm';
    assert_int_equal(put_one(g->c, long_key), KVP_OK);
}

RIG_TEST_ON(test_both_copies_of_a_host_are_adopted, .mems = 2, .size = 2 * MIB, .chunk = MIB)
{
    uint64_t version;
    uint32_t copies;

    assert_int_equal(put_object(g->c, "two", SMALL, 2, false, &version), KVP_OK);
    rig_restart(g);
    (void)node_open_on(g->w, g->a, "a");
    (void)node_open_on(g->w, g->b, "a");
    assert_int_equal(found(g->c, "two", &copies), version);
    assert_int_equal(copies, 2);
}

/* The older of two versions is told first, and removed before the newer one is told. */
RIG_TEST_ON(test_removal_before_a_newer_version_is_told, .mems = 2, .nodes = 1, .size = MIB)
{
    uint64_t older, newer;

    assert_int_equal(put_object(g->c, "key", SMALL, 1, false, &older), KVP_OK);
    peer_forget(g->na);
    (void)node_open_on(g->w, g->b, "b");
    assert_int_equal(put_object(g->c, "key", SMALL, 1, false, &newer), KVP_OK);
    rig_restart(g);
    (void)node_open_on(g->w, g->a, "a");
    assert_int_equal(found(g->c, "key", NULL), older);
    assert_int_equal(remove_key(g->c, "key", true), KVP_OK);
    (void)node_open_on(g->w, g->b, "b");
    assert_int_equal(found(g->c, "key", NULL), 0);
}

RIG_TEST(test_nothing_is_served_before_the_last_page, one_node)
{
    Kvp__Pb__MountReply mounted;
    extent_t *all;
    uint32_t n;
    peer_t *node;

    assert_int_equal(put_one(g->c, "one"), KVP_OK);
    assert_int_equal(put_one(g->c, "two"), KVP_OK);
    rig_restart(g);
    node = node_greet(g->w, g->a, &mounted);
    assert_int_equal(mounted.report, 2);
    all = mem_sealed(g->a, &n);
    assert_int_equal(n, 2);
    assert_true(report_take(node, report_send(node, all, 1, false), all, 1));
    assert_int_equal(found(g->c, "one", NULL) + found(g->c, "two", NULL), 0);
    assert_int_equal(put_one(g->c, all[0].key), KVP_RETRY_AFTER); /* it will be there in a moment */
    assert_int_equal(put_one(g->c, "other"), KVP_RETRY_AFTER);
    assert_true(report_take(node, report_send(node, all + 1, 1, false), all + 1, 1));
    assert_int_equal(found(g->c, "one", NULL) + found(g->c, "two", NULL), 0);
    assert_true(report_end(node));
    assert_true(found(g->c, "one", NULL) > 0 && found(g->c, "two", NULL) > 0);
    assert_int_equal(put_one(g->c, "other"), KVP_OK);
    free(all);
}

/* A node that is lost half-way begins anew. */
RIG_TEST(test_report_when_it_is_cut, quick_second_away)
{
    Kvp__Pb__MountReply mounted;
    extent_t *all;
    char key[32];
    uint32_t n;
    peer_t *node;

    for (uint32_t i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "%u", i);
        assert_int_equal(put_one(g->c, key), KVP_OK);
    }
    rig_restart(g);
    node = node_greet(g->w, g->a, &mounted);
    all = mem_sealed(g->a, &n);
    assert_true(report_take(node, report_send(node, all, 10, false), all, 10));
    assert_int_equal(remove_key(g->c, all[3].key, true), KVP_OK); /* known, though it is not served */
    assert_int_equal(remove_key(g->c, all[13].key, true), KVP_NOT_FOUND); /* not known yet */
    peer_forget(node);
    node = node_greet(g->w, g->a, &mounted);
    assert_true(report_take(node, report_send(node, all, 10, false), all, 10));
    assert_int_equal(mounted.report, 2);
    assert_true(report_take(node, report_send(node, all + 10, 10, false), all + 10, 10));
    assert_true(report_end(node));
    for (uint32_t i = 0; i < 20; i++)
        assert_true((found(g->c, all[i].key, NULL) == 0) == (i == 3 || i == 13));
    free(all);
}

/* Its answer may be lost, and the node would serve on, SEALED, what the master takes for space. */
RIG_TEST(test_report_whose_last_page_tells_something, one_node)
{
    Kvp__Pb__MountReply mounted;
    extent_t *all;
    uint32_t n;
    peer_t *node;

    assert_int_equal(put_one(g->c, "one"), KVP_OK);
    world_restart(g->w);
    node = node_greet(g->w, g->a, &mounted);
    all = mem_sealed(g->a, &n);
    assert_false(report_take(node, report_send(node, all, 1, true), all, 1));
    assert_int_equal(world_stats(g->w).adopted, 0);
    free(all);
}

/* The node does not know whether its last page came, and says that places may have been granted since. */
RIG_TEST(test_report_whose_last_page_is_lost, one_node)
{
    Kvp__Pb__MountReply mounted;
    extent_t *all;
    uint32_t n;
    peer_t *node;

    assert_int_equal(put_one(g->c, "one"), KVP_OK);
    rig_restart(g);
    for (uint32_t again = 0; again < 3; again++) {
        node = node_greet(g->w, g->a, &mounted);
        assert_false(mounted.is_reset);
        assert_int_equal(mounted.report, 2);
        all = mem_sealed(g->a, &n);
        assert_int_equal(n, 1);
        assert_true(report_take(node, report_send(node, all, 1, false), all, 1));
        free(all);
        g->a->mounted_term = g->a->term; /* the last page goes, and does not arrive */
        peer_forget(node);
    }
    (void)node_open_on(g->w, g->a, "a");
    assert_true(found(g->c, "one", NULL) > 0);
}

/* Where it did arrive, places may be out: given up, and so unknown, the memory is made anew. */
TEST(test_report_that_was_cut_once_and_ended_later)
{
    world_t *w = world_open(&(kvp_master_conf_t){.node_grace_ns = SEC});
    mem_t *a = mem_make(w, "a", MIB, MIB), *b = mem_make(w, "b", MIB, MIB);
    Kvp__Pb__MountReply mounted;
    peer_t *node;

    (void)node_open_on(w, a, "a");
    (void)node_open_on(w, b, "b");
    world_restart(w);
    (void)node_greet(w, b, &mounted); /* which never ends its report, so that others are believed */
    node = node_greet(w, a, &mounted);
    assert_int_equal(mounted.report, 2);
    peer_forget(node);
    node = node_open_on(w, a, "a"); /* its report ends */
    peer_forget(node);
    world_advance(w, w->conf.node_grace_ns + SEC);
    node = node_greet(w, a, &mounted);
    assert_true(mounted.is_reset);
    world_close(w);
}

/* ---- what was removed meanwhile */
RIG_TEST_ON(test_bump_outlives_the_master, .conf.has_journal = true, .size = MIB, .mems = 2)
{
    uint64_t version;

    assert_int_equal(put_object(g->c, "old", SMALL, 2, false, &version), KVP_OK);
    peer_forget(g->nb);
    reply_free(peer_wait(g->c, bump_begun(g->c, 0), SEC));
    assert_int_equal(put_object(g->c, "new", SMALL, 1, false, &version), KVP_OK);
    rig_restart_told(g);
    assert_int_equal(found(g->c, "old", NULL), 0);
    assert_int_equal(found(g->c, "new", NULL), version);
}

TEST(test_remove_many_while_nodes_report)
{
    world_t *w = world_open(&(kvp_master_conf_t){.had_master = true});
    peer_t *c = client_open(w);
    uint64_t removed;

    assert_int_equal(remove_many_result(peer_reply(c, remove_many(c, "", true)), &removed, NULL), KVP_RETRY_AFTER);
    world_advance(w, w->conf.node_grace_ns);
    assert_int_equal(remove_many_result(peer_wait(c, remove_many(c, "", true), SEC), &removed, NULL), KVP_OK);
    world_close(w);
}

/* ---- puts that meet what is reported */
RIG_TEST(test_put_when_its_key_turns_out_to_be_there, second_away)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    put_t plain = {.key = "plain", .len = SMALL}, upsert = {.key = "upsert", .len = SMALL};
    uint64_t was_plain, was_upsert;
    places_t p, u;

    assert_int_equal(put_object(g->c, "plain", SMALL, 1, false, &was_plain), KVP_OK);
    assert_int_equal(put_object(g->c, "upsert", SMALL, 1, false, &was_upsert), KVP_OK);
    g->nb = node_open_on(g->w, g->b, "b");
    world_restart(g->w);
    (void)node_open_on(g->w, g->b, "b");
    g->c = client_open(g->w);
    places_read(peer_wait(g->c, put_begin(g->c, &plain, 1, 50), SEC), &p);
    like.is_upsert = true;
    places_read(peer_wait(g->c, put_begin_with(g->c, &upsert, 1, &like), SEC), &u);
    assert_int_equal(p.objs[0].err + u.objs[0].err, KVP_OK);
    (void)node_open_on(g->w, g->a, "a");
    assert_int_equal(found(g->c, "plain", NULL), was_plain);
    assert_int_equal(commit(g->c, plain.attempt, 1), KVP_ABORTED);
    assert_int_equal(found(g->c, "upsert", NULL), was_upsert);
    assert_int_equal(write_object(g->c, &u.locs[0], &u.objs[0], "upsert"), KVP_OK);
    assert_int_equal(commit(g->c, upsert.attempt, SMALL * 3), KVP_OK);
    assert_int_equal(found(g->c, "upsert", NULL), u.objs[0].version);
    places_free(&p);
    places_free(&u);
}

/* ---- what is not believed */
typedef enum {
    BAD_NOTHING,
    BAD_CHUNK,
    BAD_SUM,
    BAD_STATE,
    BAD_DIGEST,
    BAD_HASH2,
    BAD_TERM,
    BAD_VERSION,
    BAD_OFFSET,
    BAD_END,
    BAD_SLOT,
    BAD_SLOT_RANGE,
    BAD_KEY_PLACE,
    BAD_TWICE,
    BAD_TENANT, /* a chunk is of one tenant */
    BAD_COUNT
} bad_t;

/* Makes the second of two records bad. */
static void
make_bad(extent_t *all, bad_t what)
{
    kvp_wire_extent_t *rec = &all[1].rec;
    kvp_desc_t *desc = &all[1].desc;

    switch (what) {
    case BAD_CHUNK:
        rec->chunk = 1;
        break;
    case BAD_STATE:
        rec->word = kvp_word_make(kvp_word_generation(rec->word), KVP_DESC_WRITING);
        break;
    case BAD_DIGEST:
        desc->digest.lo++;
        break;
    case BAD_HASH2:
        desc->key_hash2++;
        break;
    case BAD_TERM:
        rec->word = kvp_word_make(kvp_gen_make(4, 1), KVP_DESC_SEALED);
        break;
    case BAD_VERSION:
        desc->version = kvp_word_generation(rec->word) + 1;
        break;
    case BAD_OFFSET:
        desc->offset = all[0].desc.offset + 64;
        break;
    case BAD_END:
        desc->offset = MIB - 64;
        break;
    case BAD_SLOT:
        rec->slot = all[0].rec.slot;
        break;
    case BAD_SLOT_RANGE:
        rec->slot = UINT32_MAX;
        break;
    case BAD_KEY_PLACE:
        desc->key_off = all[0].desc.key_off;
        break;
    case BAD_TWICE:
        desc->digest = all[0].desc.digest;
        desc->key_hash2 = all[0].desc.key_hash2;
        desc->version = all[0].desc.version;
        desc->key_len = all[0].desc.key_len;
        strcpy(all[1].key, all[0].key);
        break;
    case BAD_TENANT:
        desc->tenant = 7;
        desc->digest = kvp_key_digest(77, 7, all[1].key, desc->key_len);
        desc->key_hash2 = kvp_key_hash2(77, 7, all[1].key, desc->key_len);
        break;
    default:
        break;
    }
    desc->word = rec->word;
    kvp_desc_seal(desc);
    if (what == BAD_SUM) desc->check++;
}

/* Two records, of which the second is bad: it is not adopted; a page that names no chunk of the memory ends the report.
 */
static void
bad_report(bad_t what)
{
    bool is_page_bad = what == BAD_CHUNK;
    world_t *w = world_open(&(kvp_master_conf_t){0});
    mem_t *a = mem_make(w, "a", MIB, MIB);
    Kvp__Pb__MountReply mounted;
    extent_t *all;
    uint32_t n;
    peer_t *c, *node;

    (void)node_open_on(w, a, "a");
    c = client_open(w);
    assert_int_equal(put_one(c, "one"), KVP_OK);
    assert_int_equal(put_one(c, "two"), KVP_OK);
    world_restart(w);
    node = node_greet(w, a, &mounted);
    all = mem_sealed(a, &n);
    make_bad(all, what);
    assert_int_equal(report_take(node, report_send(node, all, 2, false), all, 2), !is_page_bad);
    if (!is_page_bad) assert_true(report_end(node));
    assert_int_equal(world_stats(w).adopted, what == BAD_NOTHING ? 2 : 1);
    if (is_page_bad) {
        a->mounted_term = 3;
        peer_forget(node);
        (void)node_greet(w, a, &mounted);
        assert_true(mounted.is_reset);
    }
    free(all);
    world_close(w);
}

TEST(test_report_of_what_is_not_so)
{
    for (bad_t what = BAD_NOTHING; what < BAD_COUNT; what++)
        bad_report(what);
}

/* Memory that grants of this term may be out for, or of a time that is over. */
TEST(test_mount_when_it_may_not_report)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    mem_t *a = mem_make(w, "a", MIB, MIB);
    Kvp__Pb__MountReply mounted;
    peer_t *n;

    n = node_open_on(w, a, "a");
    peer_forget(n);
    world_advance(w, 2 * w->conf.node_grace_ns); /* it is given up, and what was removed since is not known */
    n = node_greet(w, a, &mounted);
    assert_true(mounted.is_reset);
    peer_forget(n);
    world_restart(w);
    world_advance(w, w->conf.node_grace_ns);
    (void)node_greet(w, a, &mounted);
    assert_true(mounted.is_reset);
    world_close(w);
}

/* The master takes a term above the node's, which is higher than its own, or the same by another master's doing. */
static void
mount_above(bool is_higher)
{
    world_t *w = world_open(&(kvp_master_conf_t){0});
    mem_t *a = mem_make(w, "a", MIB, MIB);
    Kvp__Pb__Mount msg = KVP__PB__MOUNT__INIT;
    Kvp__Pb__MountReply mounted;
    kvp_master_ident_t ident;
    peer_t *c, *n;

    (void)node_open_on(w, a, "a");
    c = client_open(w);
    assert_int_equal(put_one(c, "key"), KVP_OK);
    world_restart(w);
    assert_false(world_take_ident(w, &ident));
    c = client_open(w);
    n = peer_open(w);
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, "a", "a"), KVP_OK);
    msg.name = a->name;
    msg.uuid = (ProtobufCBinaryData){sizeof a->uuid, a->uuid};
    msg.epoch = a->epoch;
    msg.size_bytes = a->size_bytes;
    msg.chunk_bytes = a->chunk_bytes;
    msg.addr = msg.unix_path = msg.transports = (char *)"";
    msg.term = msg.mounted_term = a->term = a->mounted_term = is_higher ? 9 : w->conf.term;
    (void)peer_send(n, KVP_OP_MOUNT, 0, &msg.base, NULL, 0);
    assert_true(n->was_closed && c->was_closed);
    assert_true(world_take_ident(w, &ident));
    assert_int_equal(ident.term, a->term + 1);
    assert_false(world_take_ident(w, &ident));
    w->conf.term = ident.term;
    world_forget_peers(w);
    c = client_open(w);
    n = node_greet(w, a, &mounted);
    assert_int_equal(mounted.term, w->conf.term);
    assert_int_equal(mounted.report, 2);
    node_report(n);
    assert_true(found(c, "key", NULL) > 0);
    world_close(w);
}

TEST(test_mount_when_the_node_obeys_a_higher_term)
{
    mount_above(true);
}

TEST(test_mount_when_another_master_had_the_term)
{
    mount_above(false);
}

/* ---- any history */
#define NODES 3u
#define KEYS 40u
#define MAY_MAX 8u

typedef struct {
    uint64_t
        may[MAY_MAX]; /* versions that a reader may find, 0 = none: the acknowledged one, and those of no known end */
    uint32_t n;
} model_t;

typedef struct {
    world_t *w;
    mem_t *mems[NODES];
    peer_t *nodes[NODES]; /* NULL = away */
    peer_t *c;
    model_t keys[KEYS];
} history_t;

static bool
may_be(const model_t *k, uint64_t version)
{
    for (uint32_t i = 0; i < k->n; i++)
        if (k->may[i] == version) return true;
    return false;
}

static void
is_now(model_t *k, uint64_t version)
{
    k->may[0] = version;
    k->n = 1;
}

static void
might_be(model_t *k, uint64_t version)
{
    if (!may_be(k, version) && k->n < MAY_MAX) k->may[k->n++] = version;
}

static bool
is_anybody_away(const history_t *h)
{
    for (uint32_t i = 0; i < NODES; i++)
        if (h->nodes[i] == NULL) return true;
    return false;
}

static void
check_history(history_t *h)
{
    for (uint32_t i = 0; i < KEYS; i++) {
        char key[32];
        uint64_t version;

        snprintf(key, sizeof key, "k%u", i);
        version = found(h->c, key, NULL);
        if (!may_be(&h->keys[i], version))
            fail_msg("%s: found version %lx, expected %lx, one of %u", key, (unsigned long)version,
                     (unsigned long)h->keys[i].may[0], h->keys[i].n);
        is_now(&h->keys[i], version);
    }
}

static void
come_back(history_t *h, uint32_t i)
{
    if (h->nodes[i] == NULL) h->nodes[i] = node_open_on(h->w, h->mems[i], h->mems[i]->name);
}

/* The nodes come in an order that is drawn by chance, but one that was away comes last: it alone cannot know what was
 * removed meanwhile. */
static void
die(history_t *h)
{
    bool was_away[NODES];
    uint32_t first = (uint32_t)world_below(h->w, NODES);

    for (uint32_t i = 0; i < NODES; i++)
        was_away[i] = h->nodes[i] == NULL;
    world_restart_boot(h->w);
    memset(h->nodes, 0, sizeof h->nodes);
    h->c = client_open(h->w);
    for (uint32_t turn = 0; turn < 2; turn++)
        for (uint32_t i = 0; i < NODES; i++) {
            uint32_t at = (first + i) % NODES;

            if (was_away[at] == (turn == 1)) come_back(h, at);
        }
    check_history(h);
}

static void
step_put(history_t *h, model_t *k, const char *key)
{
    uint64_t len = 64 + world_below(h->w, 60 * KIB), version = 0;
    uint32_t copies = 1 + (uint32_t)world_below(h->w, 2), chance = (uint32_t)world_below(h->w, 12);
    end_t end = chance == 0 ? LEAVE : chance < 4 ? ABORT : COMMIT;
    kvp_err_t err = put_ending(h->c, key, len, copies, world_below(h->w, 2) == 0, end, &version);

    if (err == KVP_ALREADY) return;
    assert_true(err == KVP_OK || err == KVP_RETRY_AFTER || err == KVP_NO_SPACE);
    if (err == KVP_OK && end == COMMIT) {
        is_now(k, version);
        return;
    }
    if (is_anybody_away(h)) might_be(k, 0); /* what only that node has makes way for a put, whatever becomes of that */
    if (err != KVP_OK || end == ABORT) return;
    might_be(k, version); /* who dies now cannot have told that it was not committed */
    die(h);
}

static void
step(history_t *h)
{
    uint32_t i = (uint32_t)world_below(h->w, KEYS), node = (uint32_t)world_below(h->w, NODES);
    char key[32];
    kvp_err_t err;

    snprintf(key, sizeof key, "k%u", i);
    switch (world_below(h->w, 16)) {
    case 0:
    case 1:
    case 2:
        err = remove_key(h->c, key, true);
        assert_true(err == KVP_OK || (err == KVP_NOT_FOUND && may_be(&h->keys[i], 0)));
        is_now(&h->keys[i], 0);
        break;
    case 3:
        if (h->nodes[node] != NULL && !is_anybody_away(h)) {
            peer_forget(h->nodes[node]);
            h->nodes[node] = NULL;
        }
        break;
    case 4:
    case 5:
        come_back(h, node);
        break;
    case 6:
        die(h);
        break;
    default:
        step_put(h, &h->keys[i], key);
    }
}

static void
one_history(uint64_t seed)
{
    static const char *const names[NODES] = {"a", "b", "c"};
    const kvp_master_conf_t conf = {
        .has_journal = true,
        .seed = seed,
        .node_grace_ns = 60 * SEC,
        .location_lease_ns = MS,
        .location_grace_ns = MS,
    };
    history_t h = {.w = world_open(&conf)};

    h.w->check_every = 16;
    for (uint32_t i = 0; i < KEYS; i++)
        is_now(&h.keys[i], 0);
    for (uint32_t i = 0; i < NODES; i++) {
        h.mems[i] = mem_make(h.w, names[i], 4 * MIB, 2 * MIB);
        come_back(&h, i);
    }
    h.c = client_open(h.w);
    for (uint32_t n = 0; n < 250; n++)
        step(&h);
    die(&h);
    world_close(h.w);
}

TEST(test_any_history_of_deaths)
{
    for (uint64_t seed = 1; seed <= 12; seed++)
        one_history(seed);
}

TEST_MAIN()
