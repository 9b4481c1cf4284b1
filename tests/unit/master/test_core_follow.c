/* SPDX-License-Identifier: Apache-2.0
 * A standby's core: it enters and writes what the leader has written, whatever the pieces in which that comes,
 * believes nothing that does not continue it, and knows all of it when it leads. */
#include "master/core/catalog/replica.h"
#include "master/core/recovery/state.h"
#include "proto/jrec.h"
#include "tests/unit/master/rig.h"
#include "tests/world/check/core_check.h"

#define KEYS 12u

static const kvp_master_conf_t with_log = {.has_journal = true, .location_lease_ns = MS, .location_grace_ns = MS};

typedef struct {
    kvp_master_t *core;
    kvp_buf_t written; /* by itself */
} standby_t;

static standby_t
standby_of(const world_t *w, size_t own)
{
    standby_t b = {.core = NULL};
    kvp_master_conf_t conf = w->conf;
    uint64_t end;

    conf.is_elected = true;
    assert_int_equal(kvp_master_create(&conf, w->now, &b.core), KVP_OK);
    kvp_buf_init(&b.written, 0);
    assert_int_equal(kvp_master_read_log(b.core, w->journal.data, own), KVP_OK);
    assert_int_equal(kvp_master_open_log(b.core, KVP_OPEN_FOLLOW, &end), KVP_OK);
    assert_true(end <= own && own - end < KVP_JREC_MAX);
    kvp_buf_append(&b.written, w->journal.data, end);
    return b;
}

static void
standby_fini(standby_t *b)
{
    kvp_master_destroy(b->core);
    kvp_buf_fini(&b->written);
}

static uint32_t
log_term(const kvp_master_t *core)
{
    kvp_wire_term_t last;

    return kvp_master_terms(core, &last, 1) == 0 ? 0 : last.term;
}

static kvp_err_t
feed(standby_t *b, const uint8_t *bytes, size_t len)
{
    kvp_err_t err = kvp_master_read_log(b->core, bytes, len);
    kvp_master_ready_t ready = {.conn = 0};
    kvp_master_done_t done = {.kind = KVP_DONE_WRITTEN};

    while (kvp_master_ready(b->core, &ready)) {
        kvp_buf_append(&b->written, ready.log.data, ready.log.len);
        if (ready.log.len > 0) assert_int_equal(ready.log_end, b->written.len);
        kvp_buf_reset(&ready.log);
    }
    kvp_buf_fini(&ready.log);
    done.position = b->written.len;
    kvp_master_done(b->core, &done, 1);
    done.kind = KVP_DONE_SYNCED;
    kvp_master_done(b->core, &done, 1);
    return err;
}

/* Where the first record of that kind at or behind `at` begins; the end where there is none. */
static size_t
find_record(const kvp_buf_t *log, size_t at, kvp_jrec_kind_t kind)
{
    size_t begins = 0;
    kvp_jrec_t head;

    while (begins < log->len) {
        memcpy(&head, log->data + begins, sizeof head);
        if (begins >= at && head.kind == kind) break;
        begins += head.bytes;
    }
    return begins;
}

/* All of it, in pieces of that length. */
static void
feed_all(const world_t *w, standby_t *b, size_t piece)
{
    size_t at = b->written.len;

    while (at < w->journal.len) {
        const size_t len = kvp_min_u64(piece, w->journal.len - at);

        assert_int_equal(feed(b, w->journal.data + at, len), KVP_OK);
        at += len;
    }
}

/* A log with puts, upserts, removals, a bump, and a base between them. */
static void
write_log(rig_t *g)
{
    for (uint32_t i = 0; i < KEYS; i++)
        assert_int_equal(put(g->c, key_name("k", i), 8 * KIB), KVP_OK);
    assert_int_equal(remove_key(g->c, key_name("k", 1), true), KVP_OK);
    world_sync(g->w);
    assert_true(kvp_master_snapshot(g->w->m));
    world_advance(g->w, SEC);
    assert_int_equal(remove_key(g->c, key_name("k", 2), true), KVP_OK);
    assert_int_equal(put(g->c, key_name("k", 1), 8 * KIB), KVP_OK);
    world_sync(g->w);
    assert_true(find_record(&g->w->journal, 1, KVP_JREC_BASE) < g->w->journal.len);
}

static void
check_knows(const world_t *w, const kvp_master_t *m, peer_t *c)
{
    for (uint32_t i = 0; i < KEYS; i++) {
        const kvp_digest_t digest = digest_of(w, key_name("k", i));
        const uint32_t oid = kvp_objindex_find(m->cat.index, digest);

        assert_int_equal(oid == KVP_OID_NONE ? 0 : kvp_obj_version(kvp_obj(m->cat.index, oid)),
                         found(c, key_name("k", i), NULL));
    }
}

RIG_TEST_ON(test_leads_with_all_that_it_followed, .conf = with_log, .size = MIB)
{
    const uint32_t term = g->w->m->ctx.term;

    write_log(g);
    for (size_t piece = 1; piece < 3 * KVP_JREC_MAX; piece = piece * 3 + 1)
        for (size_t part = 0; part < 3; part++) { /* of it the standby has in its own files */
            standby_t b =
                standby_of(g->w, part == 2 ? g->w->journal.len : find_record(&g->w->journal, 1, KVP_JREC_BASE) * part);

            feed_all(g->w, &b, piece);
            assert_int_equal(b.written.len, g->w->journal.len);
            assert_memory_equal(b.written.data, g->w->journal.data, b.written.len);
            assert_int_equal(log_term(b.core), term);
            assert_int_equal(kvp_master_lead(b.core, term, true, g->w->now), KVP_INVALID);
            assert_int_equal(kvp_master_lead(b.core, KVP_TERM_MAX, true, g->w->now), KVP_INVALID);
            assert_int_equal(kvp_master_lead(b.core, term + 3, true, g->w->now), KVP_OK);
            assert_int_equal(log_term(b.core), term + 3);
            assert_true(b.core->base.is_relied_on);
            assert_null(kvp_master_check(b.core));
            check_knows(g->w, b.core, g->c);
            assert_int_equal(kvp_master_read_log(b.core, g->w->journal.data, 8),
                             KVP_INVALID); /* it does not any more */
            standby_fini(&b);
        }
}

/* A byte that is not the leader's: nothing of its record or behind it is entered or written. */
RIG_TEST_ON(test_what_does_not_continue_is_not_believed, .conf = with_log, .size = MIB)
{
    write_log(g);
    for (size_t at = 0; at < g->w->journal.len; at += 7) {
        standby_t b = standby_of(g->w, 0);
        kvp_err_t err = KVP_OK;

        g->w->journal.data[at] ^= 0x40;
        for (size_t i = 0; i < g->w->journal.len && err == KVP_OK; i += 8)
            err = feed(&b, g->w->journal.data + i, 8);
        g->w->journal.data[at] ^= 0x40;
        assert_true(b.written.len <= at);
        assert_true(err == KVP_CORRUPT || err == KVP_VERSION ||
                    (err == KVP_OK && g->w->journal.len - b.written.len < KVP_JREC_MAX));
        assert_memory_equal(b.written.data, g->w->journal.data, b.written.len);
        if (err != KVP_OK) assert_int_equal(feed(&b, g->w->journal.data + b.written.len, 8), err);
        standby_fini(&b);
    }
}

RIG_TEST_ON(test_out_of_order, .conf = with_log, .size = MIB)
{
    standby_t b;
    uint64_t end;

    write_log(g);
    assert_int_equal(kvp_master_read_log(g->w->m, g->w->journal.data, 8), KVP_INVALID);
    assert_int_equal(kvp_master_open_log(g->w->m, KVP_OPEN_FOLLOW, &end), KVP_INVALID);
    assert_int_equal(kvp_master_lead(g->w->m, 100, true, g->w->now), KVP_INVALID);
    b = standby_of(g->w, 0);
    assert_int_equal(kvp_master_open_log(b.core, KVP_OPEN_WHOLE, &end), KVP_INVALID);
    standby_fini(&b);
}

TEST_MAIN()
