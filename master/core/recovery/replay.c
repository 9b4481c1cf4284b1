/* SPDX-License-Identifier: Apache-2.0
 * Reads an earlier master's log, record by record; recovery/apply.c applies the records.
 *
 * Design notes. The bytes come from a disk that may have torn them, so the first record that does not verify, or that
 * no master would write, ends the accepted part. A log that does not have every committed object, because it was
 * lost, was begun while nodes were reporting, or may lack its end, is used only for its removals. Then the newest
 * version of each key that nodes report is valid (rebuild.c). */
#include "master/core/recovery/replay.h"

#include "common/buf.h"
#include "common/mutate.h"
#include "master/core/api/master.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/journal.h"
#include "master/core/recovery/apply.h"
#include "master/core/recovery/logbase.h"
#include "master/core/recovery/state.h"
#include "master/core/recovery/term.h"
#include "master/core/session/takeover.h"
#include "proto/jrec.h"

#include <string.h>

#define LOOK_AHEAD 16u /* number of records whose keys are looked up together */

/* ---- reading */
static bool
is_ours(const kvp_master_t *m, const kvp_jrec_term_t *rec)
{
    return rec->magic == KVP_JOURNAL_MAGIC && rec->digest_seed == m->ctx.conf.digest_seed &&
           memcmp(rec->pool_id, m->ctx.conf.pool_id, sizeof rec->pool_id) == 0;
}

static kvp_err_t
read_term(kvp_master_t *m, const kvp_jrec_term_t *rec)
{
    kvp_replay_t *rp = &m->replay;
    bool is_base = rec->head.kind == KVP_JREC_BASE;

    if (!is_ours(m, rec)) return KVP_INVALID;
    if (rec->term == 0 || rec->term >= KVP_TERM_MAX || rec->term < rp->term) return KVP_CORRUPT;
    if (!is_base && (rp->term == 0 || rec->term == rp->term)) return KVP_CORRUPT;
    if (rec->term != rp->term) kvp_journal_note_term(&m->log, rec->term, m->log.end);
    rp->term = rec->term;
    if (!is_base || (rp->is_whole && rec->is_anew == 0)) return KVP_OK;
    rp->is_anew = rec->is_anew != 0;
    rp->is_whole = false;
    kvp_apply_forget(m);
    return KVP_OK;
}

static kvp_err_t
apply_record(kvp_master_t *m, kvp_jrec_any_t *rec)
{
    kvp_replay_t *rp = &m->replay;
    uint32_t kind = rec->head.kind;

    if (kind == KVP_JREC_BASE || kind == KVP_JREC_TERM) return read_term(m, &rec->term);
    if (rp->term == 0) return KVP_CORRUPT; /* a log begins with a base */
    if (kind == KVP_JREC_WHOLE) {
        rp->is_whole = true;
        return KVP_OK;
    }
    return kvp_apply(m, rec, rp->term);
}

/* Appends the leader's record to this standby's own log, at the same position. A base can begin a file here, too. */
static void
write_again(kvp_master_t *m, const uint8_t *bytes, const kvp_jrec_any_t *rec)
{
    if (rec->head.kind == KVP_JREC_BASE) {
        kvp_journal_mark_base(&m->log);
        m->base.from = m->log.end;
        m->base.end = 0;
        m->base.is_based = false;
    }
    if (rec->head.kind == KVP_JREC_WHOLE) m->base.end = m->log.end + rec->head.bytes;
    kvp_journal_copy(&m->log, bytes, rec->head.bytes);
}

/* Reads one record. *used_out 0: the record is incomplete. */
static kvp_err_t
read_one(kvp_master_t *m, const uint8_t *bytes, size_t len, size_t *used_out)
{
    kvp_journal_t *j = &m->log;
    kvp_jrec_any_t rec;
    kvp_err_t err = kvp_jrec_read(bytes, len, j->check, &rec, used_out);

    if (err != KVP_OK || *used_out == 0) return err;
    err = apply_record(m, &rec);
    if (err != KVP_OK) return err;
    if (j->state == KVP_JOURNAL_FOLLOWS) write_again(m, bytes, &rec);
    j->check = rec.head.check;
    j->end += *used_out;
    m->replay.records[rec.head.kind]++;
    return KVP_OK;
}

/* Reads a record whose beginning is in `rest`. *used_out is the number of new bytes that belong to it. */
static kvp_err_t
read_across(kvp_master_t *m, const uint8_t *bytes, size_t len, size_t *used_out)
{
    kvp_buf_t *rest = &m->replay.rest;
    size_t had = rest->len, used;
    kvp_err_t err;

    *used_out = kvp_min_u64(len, KVP_JREC_MAX - had);
    kvp_buf_append(rest, bytes, *used_out);
    if (rest->err != KVP_OK) kvp_panic("out of memory: a record");
    err = read_one(m, rest->data, rest->len, &used);
    if (err != KVP_OK || used == 0) return err;
    *used_out = used - had;
    kvp_buf_reset(rest);
    return KVP_OK;
}

/* Looks up the keys of the next records together, so that the index's memory is prefetched for all of them at once.
 * Nothing is verified yet: a wrong digest is just not found. Returns the number of bytes of these records. */
static size_t
look_ahead(kvp_master_t *m, const uint8_t *bytes, size_t len)
{
    kvp_digest_t digests[LOOK_AHEAD];
    uint32_t oids[LOOK_AHEAD], n = 0;
    size_t at = 0;

    while (n < LOOK_AHEAD && len - at >= sizeof(kvp_jrec_gone_t)) {
        kvp_jrec_gone_t rec; /* a commit record has its digest in the same place */

        memcpy(&rec, bytes + at, sizeof rec);
        if (rec.head.bytes < sizeof rec.head || rec.head.bytes > len - at) break;
        if (rec.head.kind == KVP_JREC_COMMIT || rec.head.kind == KVP_JREC_GONE) digests[n++] = rec.digest;
        at += rec.head.bytes;
    }
    kvp_objindex_find_many(m->cat.index, digests, n, oids);
    return at;
}

static kvp_err_t
read_all(kvp_master_t *m, const void *bytes, size_t len)
{
    kvp_replay_t *rp = &m->replay;
    const uint8_t *at = bytes, *seen = at;
    size_t used;

    while (len > 0 && rp->err == KVP_OK) {
        kvp_err_t err;

        if (at >= seen && rp->rest.len == 0) seen = at + look_ahead(m, at, len);
        err = rp->rest.len > 0 ? read_across(m, at, len, &used) : read_one(m, at, len, &used);
        if (err == KVP_OK && used == 0) { /* the rest of the bytes is shorter than a record */
            kvp_buf_append(&rp->rest, at, len);
            used = len;
        }
        rp->err = err;
        at += used;
        len -= used;
    }
    if (rp->rest.err != KVP_OK) kvp_panic("out of memory: a record");
    return rp->err;
}

kvp_err_t
kvp_master_read_log(kvp_master_t *m, const void *bytes, size_t len)
{
    const kvp_journal_t *j = &m->log;

    if (j->state != KVP_JOURNAL_READS && j->state != KVP_JOURNAL_FOLLOWS) return KVP_INVALID;
    return read_all(m, bytes, len);
}

/* Returns true if the log that was read is complete. After an incomplete record at the end it is unknown how many
 * records are missing. */
static bool
is_all_there(const kvp_replay_t *rp, bool is_all_given)
{
    const bool is_torn = rp->rest.len > 0 && KVP_RULE(TORN_END);

    return rp->is_whole && is_all_given && rp->err == KVP_OK && !is_torn;
}

/* Ends the reading. This master uses the log's objects, or discards them and adopts the objects that nodes report. */
static void
end_reading(kvp_master_t *m, bool is_all_there)
{
    if (m->replay.term > 0 || (m->ctx.conf.is_elected && m->ctx.conf.had_master)) kvp_takeover_begin(&m->peers);
    kvp_buf_fini(&m->replay.rest);
    m->base.is_relied_on = is_all_there && kvp_apply_end(m) == KVP_OK;
    if (m->base.is_relied_on)
        kvp_takeover_knows_all(&m->peers);
    else
        kvp_apply_forget(m);
}

/* Begins to write the log: with a record of this master's term, or with a new base if the log is not relied on. */
static void
begin_writing(kvp_master_t *m)
{
    m->log.state = KVP_JOURNAL_OPEN;
    if (m->base.is_relied_on)
        kvp_journal_append_term(&m->log, KVP_JREC_TERM, false);
    else
        kvp_logbase_begin(m, true);
}

kvp_err_t
kvp_replay_open(kvp_master_t *m, bool is_all_given, uint64_t *end_out)
{
    const kvp_replay_t *rp = &m->replay;
    kvp_journal_t *j = &m->log;

    if (j->state != KVP_JOURNAL_READS) return KVP_INVALID;
    if (rp->err != KVP_OK && rp->err != KVP_CORRUPT) return rp->err;
    if (rp->term >= KVP_TERM_MAX) return KVP_LIMIT;
    if (rp->term >= m->ctx.term) kvp_term_follow(m, rp->term);
    *end_out = j->end;
    end_reading(m, is_all_there(rp, is_all_given));
    if (!m->peers.is_named && m->ctx.conf.saves_ident) return KVP_OK; /* kvp_replay_named begins the writing later */
    j->written = j->synced = j->end;
    begin_writing(m);
    return KVP_OK;
}

void
kvp_master_check_log(kvp_master_t *m, kvp_master_log_t *log_out)
{
    const kvp_replay_t *rp = &m->replay;

    *log_out = (kvp_master_log_t){
        .end = m->log.end,
        .err = rp->err,
        .is_whole = rp->is_whole,
        .term = rp->term,
        .objects = m->ctx.st.objects,
        .tenants = m->cat.tenants.n,
    };
    memcpy(log_out->records, rp->records, sizeof log_out->records);
    kvp_list_foreach (pos, &m->cat.segments)
        log_out->segments += kvp_list_entry(pos, kvp_segment_t, link)->life == KVP_SEGMENT_STAYS;
    log_out->is_overlapping = rp->is_whole && kvp_apply_end(m) != KVP_OK;
    if (log_out->is_overlapping) kvp_apply_forget(m);
}

/* ---- standbys */
kvp_err_t
kvp_replay_follow(kvp_master_t *m, uint64_t *end_out)
{
    kvp_replay_t *rp = &m->replay;
    kvp_journal_t *j = &m->log;

    if (j->state != KVP_JOURNAL_READS) return KVP_INVALID;
    if (rp->err != KVP_OK && rp->err != KVP_CORRUPT) return rp->err;
    rp->err = KVP_OK;
    kvp_buf_reset(&rp->rest);
    j->state = KVP_JOURNAL_FOLLOWS;
    j->written = j->synced = *end_out = j->end;
    return KVP_OK;
}

kvp_err_t
kvp_replay_lead(kvp_master_t *m, uint32_t term, bool is_level)
{
    const kvp_replay_t *rp = &m->replay;
    kvp_journal_t *j = &m->log;

    if (j->state != KVP_JOURNAL_FOLLOWS || term <= rp->term || term >= KVP_TERM_MAX) return KVP_INVALID;
    j->state = KVP_JOURNAL_READS;
    j->is_resting = false;
    m->peers.is_named = true; /* the pool's identity is in etcd */
    kvp_term_begin(m, term);
    /* The log may also lack objects if some nodes had not yet reported to the previous leader after its start. */
    j->is_lacking = !is_level || rp->oldest_term < rp->term;
    if (!rp->is_whole) j->oldest = 0;
    end_reading(m, rp->is_whole);
    j->is_lacking &= m->base.is_relied_on; /* otherwise the nodes report all their objects */
    if (j->is_lacking) kvp_takeover_lacks(&m->peers);
    begin_writing(m);
    return KVP_OK;
}

uint32_t
kvp_master_terms(const kvp_master_t *m, kvp_wire_term_t *terms_out, uint32_t max)
{
    const kvp_buf_t *terms = &m->log.terms;
    uint32_t all = (uint32_t)(terms->len / sizeof *terms_out), n = (uint32_t)kvp_min_u64(all, max);

    if (n > 0) memcpy(terms_out, terms->data + (all - n) * sizeof *terms_out, n * sizeof *terms_out);
    return n;
}

uint32_t
kvp_replay_term(const kvp_master_t *m)
{
    return m->log.is_resting ? m->replay.term : m->ctx.term;
}

void
kvp_replay_named(kvp_master_t *m)
{
    if (m->log.state != KVP_JOURNAL_READS || !m->peers.is_named) return;
    m->log.state = KVP_JOURNAL_OPEN;
    kvp_logbase_begin(m, true);
}
