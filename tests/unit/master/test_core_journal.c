/* SPDX-License-Identifier: Apache-2.0
 * The journal of the core: what is withheld until it is durable, what a master after knows of it, wherever it was
 * cut, and what that decides about what nodes report. */
#include "master/core/catalog/replica.h"
#include "master/core/recovery/state.h"

#include "tests/unit/master/rig.h"
#include "tests/world/report.h"

#define SMALL (8 * KIB)
#define GRACE (5 * SEC) /* of nodes */

static const kvp_master_conf_t with_journal = {.has_journal = true, .location_lease_ns = MS, .location_grace_ns = MS};

/* ---- doing */
/* A put, or an upsert, that is written and whose commit is asked for: the request. copies: one a host. */
static uint64_t
copies_begun(peer_t *c, const char *key, bool is_upsert, uint32_t copies, uint64_t *attempt_out, uint64_t *version_out)
{
    Kvp__Pb__PutBegin like = KVP__PB__PUT_BEGIN__INIT;
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
    put_t one = {.key = key, .len = SMALL};
    kvp_wire_commit_t rec = {.sum = SMALL * 3}; /* as write_object says */
    places_t p;

    like.is_upsert = is_upsert;
    like.replicas = copies;
    like.wait_ms = 50;
    places_read(peer_wait(c, put_begin_with(c, &one, 1, &like), 200 * MS), &p);
    assert_int_equal(p.objs[0].err, KVP_OK);
    assert_int_equal(p.nloc, copies);
    for (uint32_t i = 0; i < copies; i++)
        assert_int_equal(write_object(c, &p.locs[i], &p.objs[0], key), KVP_OK);
    rec.replicas = (1u << copies) - 1;
    *version_out = p.objs[0].version;
    *attempt_out = rec.attempt = one.attempt;
    places_free(&p);
    head.n = 1;
    return peer_send(c, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec);
}

static uint64_t
commit_begun(peer_t *c, const char *key, bool is_upsert, uint64_t *attempt_out, uint64_t *version_out)
{
    return copies_begun(c, key, is_upsert, 1, attempt_out, version_out);
}

/* The one result of an answer, or what its head says. */
static kvp_err_t
result(reply_t *r)
{
    kvp_err_t err;

    assert_non_null(r);
    assert_true(r->frame.tail_len == sizeof err);
    memcpy(&err, r->frame.tail, sizeof err);
    reply_free(r);
    return err;
}

static uint64_t
put_key(peer_t *c, const char *key, bool is_upsert)
{
    uint64_t attempt, version, id = commit_begun(c, key, is_upsert, &attempt, &version);

    assert_int_equal(result(peer_wait(c, id, 200 * MS)), KVP_OK);
    return version;
}

/* ---- what waits for the disk */
RIG_TEST_ON(test_promises_wait_for_the_disk, .conf = with_journal, .size = MIB)
{
    uint64_t attempt, version, id;

    g->w->is_disk_stuck = true;
    id = commit_begun(g->c, "key", false, &attempt, &version);
    world_advance(g->w, 500 * MS);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(found(g->c, "key", NULL), version); /* readers need no promise */
    assert_int_equal(begin_put(g->c, "key", SMALL, 50), KVP_RETRY_AFTER);
    world_sync(g->w);
    assert_int_equal(result(peer_reply(g->c, id)), KVP_OK);
    assert_int_equal(begin_put(g->c, "key", SMALL, 50), KVP_ALREADY);

    id = remove_begun(g->c, "key", false);
    world_advance(g->w, 500 * MS);
    assert_true(peer_is_asking(g->c, id));
    assert_int_equal(found(g->c, "key", NULL), 0);
    world_sync(g->w);
    assert_int_equal(result(peer_reply(g->c, id)), KVP_OK);

    id = bump_begun(g->c, 0);
    world_advance(g->w, 500 * MS);
    assert_true(peer_is_asking(g->c, id));
    world_sync(g->w);
    assert_int_equal(plain_result(peer_reply(g->c, id)), KVP_OK);
}

/* An attempt that is given up, or committed once more, may turn out to be committed: that is a promise as well. */
RIG_TEST_ON(test_repeated_questions_wait_too, .conf = with_journal, .size = MIB)
{
    Kvp__Pb__PutCommit again = KVP__PB__PUT_COMMIT__INIT;
    Kvp__Pb__PutAbort give_up = KVP__PB__PUT_ABORT__INIT;
    kvp_wire_commit_t rec = {.replicas = 1};
    uint64_t version, first, second, third;

    g->w->is_disk_stuck = true;
    first = commit_begun(g->c, "key", false, &rec.attempt, &version);
    again.n = give_up.n = 1;
    second = peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &again.base, &rec, sizeof rec);
    third = peer_send(g->c, KVP_OP_PUT_ABORT, 0, &give_up.base, &rec.attempt, sizeof rec.attempt);
    world_advance(g->w, 200 * MS);
    assert_true(peer_is_asking(g->c, first) && peer_is_asking(g->c, second) && peer_is_asking(g->c, third));
    world_sync(g->w);
    assert_int_equal(result(peer_reply(g->c, first)), KVP_OK);
    assert_int_equal(result(peer_reply(g->c, second)), KVP_OK);
    assert_int_equal(result(peer_reply(g->c, third)), KVP_ALREADY);
}

/* Nobody hears of a term before it is durable: a master that forgot it would begin it anew. */
TEST(test_nothing_is_said_before_the_term_is_durable)
{
    kvp_master_conf_t conf = with_journal;
    kvp_master_ready_t ready = {.conn = 0};
    kvp_master_done_t done;
    kvp_master_t *m;
    uint64_t end;

    conf.term = 1;
    conf.host_id = "h";
    assert_int_equal(kvp_master_create(&conf, SEC, &m), KVP_OK);
    assert_int_equal(kvp_master_open_log(m, KVP_OPEN_SHORT, &end), KVP_OK);
    assert_int_equal(end, 0);
    kvp_master_on_connect(m, 1, SEC);
    kvp_session_close(&m->peers, kvp_session_find(&m->peers, 1), "a test");
    for (uint32_t i = 0; kvp_master_ready(m, &ready); i++) {
        assert_int_equal(ready.conn, 0);
        assert_true(i > 0 || ready.begins_base);
        kvp_buf_reset(&ready.log);
    }
    assert_true((ready.wishes & KVP_MASTER_MUTES) != 0);
    assert_in_range(ready.term_end, 1, ready.log_end);
    done = (kvp_master_done_t){.kind = KVP_DONE_WRITTEN, .position = ready.log_end};
    kvp_master_done(m, &done, SEC);
    done.kind = KVP_DONE_SYNCED;
    kvp_master_done(m, &done, SEC);
    while (kvp_master_ready(m, &ready) && ready.conn == 0)
        kvp_buf_reset(&ready.log);
    assert_int_equal(ready.conn, 1);
    kvp_master_on_close(m, 1, SEC);
    kvp_master_destroy(m);
    kvp_buf_fini(&ready.frames);
    kvp_buf_fini(&ready.log);
}

/* A disk that fails for good: what is begun is bounded, reads go on. */
RIG_TEST_ON(test_disk_that_never_answers, .conf = with_journal, .size = 64 * MIB)
{
    Kvp__Pb__RemoveMany many = KVP__PB__REMOVE_MANY__INIT;
    uint32_t per_message = 500, n;

    many.is_all = true;
    g->w->check_every = 0;
    g->w->is_disk_stuck = true;
    for (n = 0; n < KVP_JOURNAL_BEHIND_MAX / (sizeof(kvp_jrec_commit_t) + sizeof(kvp_jrec_place_t) + 8) + 1;
         n += per_message) {
        put_t puts[500];
        kvp_wire_commit_t recs[500];
        Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;
        char keys[500][16];
        places_t p;

        for (uint32_t i = 0; i < per_message; i++) {
            snprintf(keys[i], sizeof keys[i], "%u", n + i);
            puts[i] = (put_t){.key = keys[i], .len = 64};
        }
        places_read(peer_wait(g->c, put_begin(g->c, puts, per_message, 50), 200 * MS), &p);
        assert_int_equal(p.nloc, per_message);
        places_free(&p);
        for (uint32_t i = 0; i < per_message; i++)
            recs[i] = (kvp_wire_commit_t){.attempt = puts[i].attempt, .replicas = 1};
        head.n = per_message;
        (void)peer_send(g->c, KVP_OP_PUT_COMMIT, 0, &head.base, recs, sizeof recs);
    }
    assert_int_equal(begin_put(g->c, "new", SMALL, 50), KVP_RETRY_AFTER);
    assert_int_equal(plain_result(peer_reply(g->c, remove_begun(g->c, "0", false))), KVP_RETRY_AFTER);
    assert_int_equal(plain_result(peer_reply(g->c, bump_begun(g->c, 0))), KVP_RETRY_AFTER);
    assert_int_equal(plain_result(peer_reply(g->c, peer_send(g->c, KVP_OP_REMOVE_MANY, 0, &many.base, NULL, 0))),
                     KVP_RETRY_AFTER);
    assert_true(exists(g->c, "0"));
    g->w->is_disk_stuck = false;
    world_sync(g->w);
    assert_int_equal(begin_put(g->c, "new", SMALL, 50), KVP_OK);
    assert_int_equal(remove_key(g->c, "0", false), KVP_OK);
}

/* ---- what a master after decides */
/* The only node is away at a removal, and the master is dead before it is back. Nobody but a log knows of it then:
 * without one it is undone. */
static void
remove_when_nobody_is_there(bool has_journal)
{
    kvp_master_conf_t conf = with_journal;
    world_t *w;
    mem_t *a;
    peer_t *c, *n;
    uint64_t id;

    conf.has_journal = has_journal;
    w = world_open(&conf);
    a = mem_make(w, "a", MIB, MIB);
    n = node_open(w, a);
    c = client_open(w);
    (void)put_key(c, "gone", false);
    (void)put_key(c, "here", false);
    peer_forget(n);
    id = remove_begun(c, "gone", false);
    assert_int_equal(result(peer_wait(c, id, 200 * MS)), KVP_OK);
    world_restart(w);
    (void)node_open(w, a);
    c = client_open(w);
    assert_true(found(c, "here", NULL) > 0);
    assert_true((found(c, "gone", NULL) == 0) == has_journal);
    world_close(w);
}

TEST(test_no_removed_key_comes_back)
{
    remove_when_nobody_is_there(false);
    remove_when_nobody_is_there(true);
}

/* Whoever knows the seed can make the digest of another tenant's key. */
TEST(test_removal_under_anothers_digest)
{
    world_t *w = world_open(&with_journal);
    mem_t *a = mem_make(w, "a", MIB, MIB);
    peer_t *c, *other;

    (void)node_open(w, a);
    (void)put_key(client_open(w), "mine", false);
    world_restart(w); /* what the journal told is kept while other nodes may report */
    (void)node_open(w, a);
    c = client_open(w);
    other = client_open_of(w, 1);
    assert_int_equal(result(peer_wait(other, remove_begun(other, "mine", false), 200 * MS)), KVP_NOT_FOUND);
    assert_true(found(c, "mine", NULL) > 0);
    (void)put_key(c, "next", false); /* and with it all that was written before is durable */
    world_restart(w);
    (void)node_open(w, a);
    assert_true(found(client_open(w), "mine", NULL) > 0);
    world_close(w);
}

/* What was not durable was not acknowledged; and what it was to replace is still there. */
RIG_TEST_ON(test_upsert_that_was_not_durable, .conf = with_journal, .size = MIB)
{
    uint64_t attempt, old, new, second;

    old = put_key(g->c, "key", false);
    g->w->is_disk_stuck = true;
    (void)commit_begun(g->c, "key", true, &attempt, &new);
    (void)commit_begun(g->c, "other", false, &attempt, &second);
    world_advance(g->w, SEC);
    assert_int_equal(found(g->c, "key", NULL), new);
    world_restart(g->w);
    g->w->is_disk_stuck = false;
    (void)node_open(g->w, g->a);
    g->c = client_open(g->w);
    assert_int_equal(found(g->c, "key", NULL), old);
    assert_int_equal(found(g->c, "other", NULL), 0);
    world_advance(g->w, SEC);
    assert_int_equal(world_stats(g->w).objects, 1);

    new = put_key(g->c, "key", true);
    world_restart(g->w);
    (void)node_open(g->w, g->a);
    g->c = client_open(g->w);
    assert_int_equal(found(g->c, "key", NULL), new);
}

/* What no node brings in time is gone, for those after as well; and so is what is removed before it is brought. */
RIG_TEST_ON(test_nodes_that_come_too_late, .conf = with_journal, .mems = 2, .size = MIB)
{
    uint64_t on_b = 0;
    bool is_reset;
    char key[16];
    peer_t *n;

    for (uint32_t i = 0; i < 16; i++)
        (void)put_key(g->c, key_name("k", i), false);
    world_restart(g->w);
    (void)node_open_on(g->w, g->a, "a");
    g->c = client_open(g->w);
    assert_int_equal(result(peer_wait(g->c, remove_begun(g->c, "k0", true), 200 * MS)), KVP_OK);
    world_advance(g->w, GRACE + SEC);
    for (uint32_t i = 1; i < 16; i++) {
        snprintf(key, sizeof key, "k%u", i);
        on_b += found(g->c, key, NULL) == 0;
    }
    assert_true(on_b > 0 && on_b < 15);
    world_restart(g->w);
    (void)node_open_on(g->w, g->a, "a");
    n = peer_open(g->w);
    n->mem = g->b;
    assert_int_equal(peer_hello(n, KVP_ROLE_NODE, "b", "b"), KVP_OK);
    assert_int_equal(node_mount(n, &is_reset), KVP_OK);
    assert_true(is_reset); /* its memory was given up */
    g->c = client_open(g->w);
    for (uint32_t i = 1; i < 16; i++) {
        snprintf(key, sizeof key, "k%u", i);
        on_b -= found(g->c, key, NULL) == 0;
    }
    assert_int_equal(on_b, 0);
    assert_int_equal(found(g->c, "k0", NULL), 0);
}

/* Without it nodes are believed, and when all have reported it is whole again. */
RIG_TEST_ON(test_journal_that_is_lost, .conf = with_journal, .size = MIB)
{
    uint64_t version, end;
    kvp_master_t *m;
    peer_t *n;

    version = put_key(g->c, "key", false);
    (void)put_key(g->c, "gone", false);
    g->w->durable = 0;
    world_restart(g->w);
    n = node_open(g->w, g->a);
    g->c = client_open(g->w);
    assert_int_equal(found(g->c, "key", NULL), version);
    world_advance(g->w, GRACE + SEC);
    peer_forget(n);
    assert_int_equal(result(peer_wait(g->c, remove_begun(g->c, "gone", false), 200 * MS)), KVP_OK);
    assert_int_equal(kvp_master_create(&g->w->conf, g->w->now, &m), KVP_OK);
    assert_int_equal(kvp_master_read_log(m, g->w->journal.data, g->w->journal.len), KVP_OK);
    assert_int_equal(kvp_master_open_log(m, KVP_OPEN_WHOLE, &end), KVP_OK);
    assert_true(m->base.is_relied_on && m->ctx.term > g->w->conf.term); /* as it named a term that is in use */
    kvp_master_destroy(m);
    world_restart(g->w);
    (void)node_open(g->w, g->a);
    g->c = client_open(g->w);
    assert_int_equal(found(g->c, "key", NULL), version);
    assert_int_equal(found(g->c, "gone", NULL), 0);
}

#define MANY (2 * KVP_SLICE) /* more than one step says */

/* A base, between what happens meanwhile, is as good as all that was before it. */
RIG_TEST_ON(test_snapshot_while_things_change, .conf = with_journal, .size = 24 * MIB, .chunk = 8 * MIB)
{
    static uint64_t version[MANY];
    uint64_t from;

    g->w->check_every = 1000;
    for (uint32_t i = 0; i < MANY; i++)
        version[i] = put_key(g->c, key_name("k", i), false);
    g->w->is_idle_off = true;
    assert_true(kvp_master_snapshot(g->w->m));
    assert_false(kvp_master_snapshot(g->w->m)); /* one is under way */
    version[3] = put_key(g->c, "k3", true);
    assert_int_equal(result(peer_wait(g->c, remove_begun(g->c, "k4", false), 200 * MS)), KVP_OK);
    version[4] = 0;
    g->w->is_idle_off = false;
    world_advance(g->w, SEC);
    assert_int_equal(result(peer_wait(g->c, remove_begun(g->c, "k5", false), 200 * MS)), KVP_OK);
    version[5] = 0;
    assert_true(world_take_forgotten(g->w, &from));
    assert_false(world_take_forgotten(g->w, &from));
    assert_true(from > MANY * sizeof(kvp_jrec_commit_t));
    kvp_buf_consume(&g->w->journal, from - g->w->journal_from);
    g->w->journal_from = from;
    world_restart(g->w);
    (void)node_open(g->w, g->a);
    g->c = client_open(g->w);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(found(g->c, key_name("k", i), NULL), version[i]);
}

/* ---- wherever it is cut */
#define KEYS 24u
#define STEPS 120u

typedef struct {
    uint64_t end; /* of the journal then */
    uint64_t versions[KEYS];
} moment_t;

static kvp_master_t *
core_of(const world_t *w, const uint8_t *bytes, size_t len, uint64_t *end_out)
{
    kvp_master_conf_t conf = w->conf;
    kvp_master_t *m;
    kvp_err_t err;

    conf.had_master = true;
    assert_int_equal(kvp_master_create(&conf, w->now, &m), KVP_OK);
    err = kvp_master_read_log(m, bytes, len);
    assert_true(err == KVP_OK || err == KVP_CORRUPT);
    assert_int_equal(kvp_master_open_log(m, KVP_OPEN_WHOLE, end_out), KVP_OK);
    return m;
}

static bool
is_known(const world_t *w, const kvp_master_t *m, uint32_t k, uint64_t version)
{
    kvp_digest_t digest = digest_of(w, key_name("k", k));
    const kvp_tenant_t *t = kvp_tenant_find(&m->cat, 0);
    uint32_t oid = kvp_objindex_find(m->cat.index, digest);
    uint64_t at = oid == KVP_OID_NONE ? 0 : kvp_obj_version(kvp_obj(m->cat.index, oid));
    uint64_t now = t != NULL && at <= t->min_version ? 0 : at;

    return now == version;
}

/* What is known is what was true before or behind the step in which it was cut, and where it was not cut within one
 * that. */
static void
check_cut(const world_t *w, const moment_t *moments, size_t cut)
{
    uint64_t end;
    kvp_master_t *m = core_of(w, w->journal.data, cut, &end);
    uint32_t i = 0;

    assert_true(end <= cut && cut - end < KVP_JREC_MAX);
    if (end < cut) { /* more than that record may be missing */
        assert_false(m->base.is_relied_on);
        kvp_master_destroy(m);
        return;
    }
    while (moments[i + 1].end <= end)
        i++;
    if (end < moments[0].end) { /* nothing was committed yet */
        assert_int_equal(m->ctx.st.objects, 0);
        kvp_master_destroy(m);
        return;
    }
    assert_true(m->base.is_relied_on);
    for (uint32_t k = 0; k < KEYS; k++) {
        bool is_old = is_known(w, m, k, moments[i].versions[k]);
        bool may_be_new = end > moments[i].end && is_known(w, m, k, moments[i + 1].versions[k]);

        assert_true(is_old || may_be_new);
    }
    kvp_master_destroy(m);
}

static void
note_moment(world_t *w, peer_t *c, moment_t *moment)
{
    world_sync(w);
    moment->end = w->journal_from + w->journal.len;
    for (uint32_t k = 0; k < KEYS; k++)
        moment->versions[k] = found(c, key_name("k", k), NULL);
}

/* A pool that is too small for all keys, so that some are evicted. */
static void
some_step(world_t *w, peer_t *c)
{
    const char *key = key_name("k", (uint32_t)world_below(w, KEYS));

    switch (world_below(w, 50)) {
    case 0:
        assert_int_equal(plain_result(peer_wait(c, bump_begun(c, 0), SEC)), KVP_OK);
        break;
    case 1:
    case 2:
    case 3:
    case 4:
        (void)result(peer_wait(c, remove_begun(c, key, false), 200 * MS));
        break;
    default:
        (void)put_key(c, key, true);
    }
}

TEST(test_cut_anywhere)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        kvp_master_conf_t conf = with_journal;
        static moment_t moments[STEPS + 2];
        uint64_t evictions;
        world_t *w;
        peer_t *c;

        conf.seed = seed;
        conf.term = 1;
        w = world_open(&conf);
        (void)node_open(w, mem_make(w, "a", 128 * KIB, 64 * KIB));
        c = client_open(w);
        note_moment(w, c, &moments[0]);
        for (uint32_t n = 1; n <= STEPS; n++) {
            some_step(w, c);
            note_moment(w, c, &moments[n]);
        }
        moments[STEPS + 1].end = UINT64_MAX;
        evictions = world_stats(w).evictions;
        assert_true(evictions > 0);
        for (size_t cut = 0; cut <= w->journal.len; cut += 4)
            check_cut(w, moments, cut);
        world_close(w);
    }
}

/* A flipped bit ends the log there, whatever follows, and no master relies on what is left. */
RIG_TEST_ON(test_flipped_bits, .conf = with_journal, .size = MIB)
{
    uint64_t end;

    for (uint32_t i = 0; i < 20; i++)
        (void)put_key(g->c, key_name("k", i), false);
    for (size_t at = 0; at < g->w->journal.len; at++) {
        uint8_t flip = (uint8_t)(1u << world_below(g->w, 8));
        kvp_master_t *m;

        g->w->journal.data[at] ^= flip;
        m = core_of(g->w, g->w->journal.data, g->w->journal.len, &end);
        assert_false(m->base.is_relied_on);
        kvp_master_destroy(m);
        assert_true(end <= at);
        g->w->journal.data[at] ^= flip;
    }
}

/* What is left of old bytes behind a place where a journal was cut and written on is not its continuation. */
TEST(test_old_bytes_behind_a_cut)
{
    kvp_jrec_any_t rec = {.gone = {.digest = {1, 2}, .version = 9}}, old[3], got;
    uint64_t check, other;
    size_t used;

    check = kvp_jrec_seal(&rec, KVP_JREC_GONE, 77);
    for (uint32_t i = 0; i < 3; i++) {
        old[i] = (kvp_jrec_any_t){.gone = {.digest = {i, 3}, .version = 10 + i}};
        check = kvp_jrec_seal(&old[i], KVP_JREC_GONE, check);
    }
    assert_int_equal(kvp_jrec_read(&old[1], sizeof(kvp_jrec_gone_t), old[0].head.check, &got, &used), KVP_OK);
    assert_int_equal(used, sizeof(kvp_jrec_gone_t));
    old[0].gone.version = 99; /* written in its place, by another master */
    other = kvp_jrec_seal(&old[0], KVP_JREC_GONE, rec.head.check);
    assert_int_equal(kvp_jrec_read(&old[1], sizeof(kvp_jrec_gone_t), other, &got, &used), KVP_CORRUPT);
}

TEST(test_journal_of_somebody_else)
{
    kvp_master_conf_t conf = with_journal;
    kvp_jrec_any_t rec = {.term = {.magic = KVP_JOURNAL_MAGIC, .digest_seed = 8, .term = 4}};
    struct {
        kvp_jrec_t head;
        uint64_t more;
    } later = {{0, sizeof later, 99}, 1};
    kvp_master_t *m;
    uint64_t end, check;

    conf.term = 1;
    conf.host_id = "h";
    conf.digest_seed = 7;
    assert_int_equal(kvp_master_create(&conf, SEC, &m), KVP_OK);
    (void)kvp_jrec_seal(&rec, KVP_JREC_BASE, 0);
    assert_int_equal(kvp_master_read_log(m, &rec, sizeof rec.term), KVP_INVALID);
    assert_int_equal(kvp_master_open_log(m, KVP_OPEN_SHORT, &end), KVP_INVALID);
    kvp_master_destroy(m);

    rec.term.digest_seed = 7;
    check = kvp_jrec_seal(&rec, KVP_JREC_BASE, 0);
    later.head.check = check;
    later.head.check = kvp_sum(&later, sizeof later);
    assert_int_equal(kvp_master_create(&conf, SEC, &m), KVP_OK);
    assert_int_equal(kvp_master_read_log(m, &rec, sizeof rec.term), KVP_OK);
    assert_int_equal(kvp_master_read_log(m, &later, sizeof later), KVP_VERSION);
    assert_int_equal(kvp_master_open_log(m, KVP_OPEN_SHORT, &end), KVP_VERSION);
    kvp_master_destroy(m);
}

static uint64_t
commit_begun_again(peer_t *c, uint64_t attempt)
{
    kvp_wire_commit_t rec = {.attempt = attempt, .replicas = 1};
    Kvp__Pb__PutCommit head = KVP__PB__PUT_COMMIT__INIT;

    head.n = 1;
    return peer_send(c, KVP_OP_PUT_COMMIT, 0, &head.base, &rec, sizeof rec);
}

static kvp_err_t
first_of(reply_t *r)
{
    places_t p;
    kvp_err_t err;

    assert_non_null(r);
    places_read(r, &p);
    err = p.objs[0].err;
    places_free(&p);
    return err;
}

/* Fails if an answer that waits for the log, a put that waits for space, or a new put or removal is not refused at once
 * while the log cannot be written; if a leader that can hand over refuses; or if anything is refused when the log is
 * written again. */
RIG_TEST_ON(test_log_that_cannot_be_written, .conf = with_journal, .size = MIB)
{
    put_t big = {.key = "big", .len = 900 * KIB}, late = {.key = "late", .len = 900 * KIB};
    uint64_t attempt, version, put, removal, waiting;

    assert_int_not_equal(put_key(g->c, "old", false), 0);
    assert_int_equal(first_of(peer_wait(g->c, put_begin(g->c, &big, 1, 50), 200 * MS)), KVP_OK);
    g->w->is_disk_stuck = true;
    put = commit_begun(g->c, "key", false, &attempt, &version);
    removal = remove_begun(g->c, "old", false);
    waiting = put_begin(g->c, &late, 1, 20000);
    world_done(g->w, KVP_DONE_LOG_FAILS, 0);
    world_advance(g->w, 500 * MS);
    assert_true(peer_is_asking(g->c, put) && peer_is_asking(g->c, removal) && peer_is_asking(g->c, waiting));
    assert_int_equal(begin_put(g->c, "other", SMALL, 50), KVP_RETRY_AFTER);

    world_done(g->w, KVP_DONE_LOG_REFUSES, 0);
    world_advance(g->w, 20 * MS);
    assert_int_equal(result(peer_reply(g->c, put)), KVP_LOG_FAILED);
    assert_int_equal(result(peer_reply(g->c, removal)), KVP_LOG_FAILED);
    assert_int_equal(first_of(peer_reply(g->c, waiting)), KVP_LOG_FAILED);
    put = commit_begun_again(g->c, attempt);
    world_advance(g->w, 20 * MS);
    assert_int_equal(result(peer_reply(g->c, put)), KVP_LOG_FAILED);
    assert_int_equal(begin_put(g->c, "other", SMALL, 50), KVP_LOG_FAILED);
    assert_int_equal(begin_put(g->c, "key", SMALL, 50), KVP_LOG_FAILED);
    assert_int_equal(plain_result(peer_reply(g->c, remove_begun(g->c, "key", false))), KVP_LOG_FAILED);
    assert_int_equal(plain_result(peer_reply(g->c, bump_begun(g->c, 0))), KVP_LOG_FAILED);
    assert_int_equal(found(g->c, "key", NULL), version);

    world_done(g->w, KVP_DONE_LOG_WORKS, 0);
    g->w->is_disk_stuck = false;
    world_sync(g->w);
    assert_int_equal(begin_put(g->c, "key", SMALL, 50), KVP_ALREADY);
    assert_int_equal(remove_key(g->c, "key", false), KVP_OK);
}

TEST_MAIN()
