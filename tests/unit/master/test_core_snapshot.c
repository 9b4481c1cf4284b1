/* SPDX-License-Identifier: Apache-2.0
 * What an operator asks of a log: a base of it, and what is in it. */
#include "master/core/recovery/state.h"

#include "proto/pb.h"
#include "tests/unit/master/rig.h"

#include "proto/kvpool.pb-c.h"

static const kvp_master_conf_t with_journal = {.has_journal = true, .location_lease_ns = MS, .location_grace_ns = MS};

/* `detail` is left out. */
static Kvp__Pb__SnapshotReply
ask(rig_t *g, uint64_t number)
{
    Kvp__Pb__Snapshot head = KVP__PB__SNAPSHOT__INIT;
    Kvp__Pb__SnapshotReply *msg, copy;
    reply_t *r;
    kvp_pb_t pb;

    head.number = number;
    r = peer_reply(g->c, peer_send(g->c, KVP_OP_SNAPSHOT, 0, &head.base, NULL, 0));
    assert_non_null(r);
    msg = kvp_pb_unpack(&pb, &kvp__pb__snapshot_reply__descriptor, &r->frame);
    assert_non_null(msg);
    assert_int_equal(msg->err != KVP_OK, msg->detail[0] != '\0');
    copy = *msg;
    copy.detail = NULL;
    kvp_pb_free(&pb, msg);
    reply_free(r);
    return copy;
}

/* Fails if a base is whole before the files before it are gone, if two that ask at once get two, or if one that knows
 * another master's number gets none. */
RIG_TEST_ON(test_snapshot_is_asked_for, .conf = with_journal, .size = MIB)
{
    Kvp__Pb__SnapshotReply first, other;
    uint64_t from;

    fill(g->c, 0, 20, 4 * KIB);
    world_sync(g->w);
    g->w->keeps_files = true;
    g->w->is_disk_stuck = true;
    first = ask(g, 0);
    assert_int_equal(first.err, KVP_OK);
    assert_false(first.is_whole);
    other = ask(g, 0);
    assert_int_equal(other.number, first.number);
    world_sync(g->w);
    assert_false(ask(g, first.number).is_whole); /* it is on the disk */
    assert_true(world_take_forgotten(g->w, &from));
    world_done(g->w, KVP_DONE_FORGOTTEN, 77);
    other = ask(g, first.number);
    assert_true(other.is_whole);
    assert_int_equal(other.number, first.number);
    assert_int_equal(other.objects, 20);
    assert_int_equal(other.log_bytes, 77);
    other = ask(g, first.number + (1ull << 32));
    assert_int_equal(other.number, first.number + 1);
    assert_false(other.is_whole);
    world_done(g->w, KVP_DONE_LOG_FAILS, 0);
    assert_int_equal(ask(g, other.number).err, KVP_SYS);
    world_done(g->w, KVP_DONE_LOG_WORKS, 0);
    world_sync(g->w);
}

RIG_TEST_ON(test_there_is_no_log, .size = MIB)
{
    assert_int_equal(ask(g, 0).err, KVP_NOTSUP);
}

/* ---- what is in it */
static kvp_master_log_t
told_by(const rig_t *g, const void *bytes, size_t len)
{
    kvp_master_conf_t conf = g->w->conf;
    kvp_master_log_t told;
    kvp_master_t *m;

    conf.had_master = true;
    assert_int_equal(kvp_master_create(&conf, g->w->now, &m), KVP_OK);
    kvp_ignore(kvp_master_read_log(m, bytes, len), "it is told");
    kvp_master_check_log(m, &told);
    kvp_master_destroy(m);
    return told;
}

/* Fails if what is told of a log is not what was done, or if objects that lie upon one another are not found. */
RIG_TEST_ON(test_what_a_log_says, .conf = with_journal, .size = MIB)
{
    kvp_buf_t *j = &g->w->journal;
    kvp_jrec_any_t rec;
    kvp_master_log_t told;
    size_t last;

    fill(g->c, 0, 5, 4 * KIB);
    world_sync(g->w);
    last = j->len;
    fill(g->c, 5, 6, 4 * KIB);
    world_sync(g->w);
    memcpy(&rec, j->data + last, j->len - last);
    assert_int_equal(remove_key(g->c, "key/0", false), KVP_OK);
    world_sync(g->w);
    told = told_by(g, j->data, j->len);
    assert_int_equal(told.err, KVP_OK);
    assert_int_equal(told.end, j->len);
    assert_true(told.is_whole && !told.is_overlapping);
    assert_int_equal(told.objects, 5);
    assert_int_equal(told.segments, 1);
    assert_int_equal(told.tenants, 1);
    assert_int_equal(told.records[KVP_JREC_COMMIT], 6);
    assert_int_equal(told.records[KVP_JREC_GONE], 1);
    told = told_by(g, j->data, j->len - 1);
    assert_true(told.err == KVP_OK && told.end < j->len - 1);

    j->data[last + 20] ^= 1;
    told = told_by(g, j->data, j->len);
    assert_true(told.err == KVP_CORRUPT && told.end == last && told.objects == 5);
    j->data[last + 20] ^= 1;

    rec.commit.digest = digest_of(g->w, "other"); /* another key in another slot, and in the same place */
    rec.commit.key_len = 5;
    memcpy(kvp_jrec_key(&rec), "other\0\0\0", 8);
    kvp_jrec_places(&rec)->slot += 100;
    kvp_jrec_places(&rec)->key_off += 100 * KVP_KEY_CELL_BYTES / 64;
    (void)kvp_jrec_seal(&rec, KVP_JREC_COMMIT, g->w->m->log.check);
    kvp_buf_append(j, &rec, rec.head.bytes);
    told = told_by(g, j->data, j->len);
    assert_true(told.err == KVP_OK && told.end == j->len && told.is_overlapping);
    j->len -= rec.head.bytes;
}

TEST_MAIN()
