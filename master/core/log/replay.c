/* SPDX-License-Identifier: Apache-2.0
 * An earlier master's log, read back record by record; recovery/apply.c enters the records.
 *
 * Design notes. The bytes come from a disk that may have torn them, so the first record that does
 * not verify, or that no master would write, ends the accepted part. An incomplete log is used only
 * for its removals: it was lost, was begun while nodes were reporting, or may lack its end. Then
 * the newest version that nodes report of each key is valid (rebuild.c). */
#include "common/buf.h"
#include "common/digestmap.h"
#include "common/mutate.h"
#include "proto/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/base/ptab.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/interim.h"
#include "master/core/master.h"
#include "master/core/recovery/apply.h"
#include "master/core/recovery/term.h"
#include "master/core/request/remove.h"
#include "master/core/session/takeover.h"
#include "master/core/state.h"
#include "proto/jrec.h"

#include <string.h>

#define LOOK_AHEAD 16u /* records */

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
    kvp_journal_t *j = &m->log.journal;
    bool is_base = rec->head.kind == KVP_JREC_BASE;

    if (!is_ours(m, rec)) return KVP_INVALID;
    if (rec->term == 0 || rec->term >= KVP_TERM_MAX || rec->term < j->read_term) return KVP_CORRUPT;
    if (!is_base && (j->read_term == 0 || rec->term == j->read_term)) return KVP_CORRUPT;
    if (rec->term != j->read_term) kvp_journal_note_term(j, rec->term, j->end);
    j->read_term = rec->term;
    if (!is_base || (j->is_whole && rec->is_anew == 0)) return KVP_OK;
    j->is_anew = rec->is_anew != 0;
    j->is_whole = false;
    kvp_apply_forget(m);
    return KVP_OK;
}

static kvp_err_t
apply_record(kvp_master_t *m, kvp_jrec_any_t *rec)
{
    kvp_journal_t *j = &m->log.journal;
    uint32_t kind = rec->head.kind;

    if (kind == KVP_JREC_BASE || kind == KVP_JREC_TERM) return read_term(m, &rec->term);
    if (j->read_term == 0) return KVP_CORRUPT; /* a log begins with a base */
    if (kind == KVP_JREC_WHOLE) {
        j->is_whole = true;
        return KVP_OK;
    }
    return kvp_apply(m, rec, j->read_term);
}

/* The leader's records go into our own files, at the same positions. A base begins a file there,
 * too. */
static void
write_again(kvp_master_t *m, const uint8_t *bytes, const kvp_jrec_any_t *rec)
{
    kvp_journal_t *j = &m->log.journal;

    if (rec->head.kind == KVP_JREC_BASE) {
        if (!j->has_base) j->base_at = j->fresh.len; /* another `anew` base is in the same file */
        j->has_base = true;
        j->base_from = j->end;
        j->base_end = 0;
        j->is_based = false;
    }
    if (rec->head.kind == KVP_JREC_WHOLE) j->base_end = j->end + rec->head.bytes;
    kvp_buf_append(&j->fresh, bytes, rec->head.bytes);
    if (j->fresh.err != KVP_OK) kvp_panic("out of memory: journal");
    m->ctx.st.log_records++;
    m->ctx.st.log_record_bytes += rec->head.bytes;
}

/* Reads one record; *used_out 0: it is incomplete. */
static kvp_err_t
read_one(kvp_master_t *m, const uint8_t *bytes, size_t len, size_t *used_out)
{
    kvp_journal_t *j = &m->log.journal;
    kvp_jrec_any_t rec;
    kvp_err_t err = kvp_jrec_read(bytes, len, j->check, &rec, used_out);

    if (err != KVP_OK || *used_out == 0) return err;
    err = apply_record(m, &rec);
    if (err != KVP_OK) return err;
    if (j->is_following) write_again(m, bytes, &rec);
    j->check = rec.head.check;
    j->end += *used_out;
    j->read_n[rec.head.kind]++;
    return KVP_OK;
}

/* Reads the record whose beginning is in `rest`. *used_out: how many of the new bytes belong to it. */
static kvp_err_t
read_across(kvp_master_t *m, const uint8_t *bytes, size_t len, size_t *used_out)
{
    kvp_buf_t *rest = &m->log.journal.rest;
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

/* Looks up the keys of the next records together, so that the index's memory is fetched for all of
 * them at once. Nothing is verified yet: a wrong digest is just not found. Returns the bytes of
 * these records. */
static size_t
look_ahead(kvp_master_t *m, const uint8_t *bytes, size_t len)
{
    kvp_digest_t digests[LOOK_AHEAD];
    uint32_t oids[LOOK_AHEAD], n = 0;
    size_t at = 0;

    while (n < LOOK_AHEAD && len - at >= sizeof(kvp_jrec_gone_t)) {
        kvp_jrec_gone_t rec; /* a commit has its digest in the same place */

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
    kvp_journal_t *j = &m->log.journal;
    const uint8_t *at = bytes, *seen = at;
    size_t used;

    while (len > 0 && j->read_err == KVP_OK) {
        kvp_err_t err;

        if (at >= seen && j->rest.len == 0) seen = at + look_ahead(m, at, len);
        err = j->rest.len > 0 ? read_across(m, at, len, &used) : read_one(m, at, len, &used);
        if (err == KVP_OK && used == 0) { /* what is left is shorter than a record */
            kvp_buf_append(&j->rest, at, len);
            used = len;
        }
        j->read_err = err;
        at += used;
        len -= used;
    }
    if (j->rest.err != KVP_OK) kvp_panic("out of memory: a record");
    return j->read_err;
}

kvp_err_t
kvp_master_restore(kvp_master_t *m, const void *bytes, size_t len)
{
    const kvp_journal_t *j = &m->log.journal;

    if (!j->is_on || j->is_open || j->is_following) return KVP_INVALID;
    return read_all(m, bytes, len);
}

/* An incomplete record at the end does not show how many records were cut off with its rest. */
static bool
is_all_there(const kvp_journal_t *j, bool is_all_given)
{
    const bool is_torn = j->rest.len > 0 && KVP_RULE(TORN_END);

    return j->is_whole && is_all_given && j->read_err == KVP_OK && !is_torn;
}

/* The log has objects from before a bump, like the index of the master that wrote it. */
static void
sweep_bumped(kvp_master_t *m)
{
    for (uint32_t i = 0; i < m->cat.tenants.limit; i++) {
        kvp_tenant_t *t = kvp_ptab_get(&m->cat.tenants, i);

        if (t != NULL && t->min_version > 0 && t->objects > 0) kvp_bump_sweep(m, t);
    }
}

/* Either this master continues with the log's contents, or it forgets them and asks the nodes. */
static void
end_reading(kvp_master_t *m, bool is_all_there)
{
    kvp_journal_t *j = &m->log.journal;

    if (j->read_term > 0 || (m->ctx.conf.is_elected && m->ctx.conf.had_master)) kvp_takeover_begin(&m->peers);
    kvp_buf_fini(&j->rest);
    j->is_relied_on = is_all_there && kvp_apply_end(m) == KVP_OK;
    if (j->is_relied_on) {
        sweep_bumped(m);
        kvp_takeover_knows_all(&m->peers);
    } else {
        kvp_apply_forget(m);
    }
}

kvp_err_t
kvp_master_open_journal(kvp_master_t *m, bool is_all_given, uint64_t *end_out)
{
    kvp_journal_t *j = &m->log.journal;

    if (!j->is_on || j->is_open || j->is_following) return KVP_INVALID;
    if (j->read_err != KVP_OK && j->read_err != KVP_CORRUPT) return j->read_err;
    if (j->read_term >= KVP_TERM_MAX) return KVP_LIMIT;
    if (j->read_term >= m->ctx.term) kvp_term_follow(m, j->read_term);
    *end_out = j->end;
    end_reading(m, is_all_there(j, is_all_given));
    if (!m->peers.is_named && m->ctx.conf.saves_ident) return KVP_OK; /* kvp_replay_named opens it */
    j->is_open = true;
    j->written = j->synced = j->end;
    if (j->is_relied_on)
        kvp_journal_term(&m->log);
    else
        kvp_journal_base(&m->log, true);
    return KVP_OK;
}

void
kvp_master_check_journal(kvp_master_t *m, kvp_master_log_t *log_out)
{
    const kvp_journal_t *j = &m->log.journal;

    *log_out = (kvp_master_log_t){
        .end = j->end,
        .err = j->read_err,
        .is_whole = j->is_whole,
        .term = j->read_term,
        .objects = m->ctx.st.objects,
        .tenants = m->cat.tenants.n,
    };
    memcpy(log_out->records, j->read_n, sizeof log_out->records);
    kvp_list_foreach (pos, &m->cat.segments)
        log_out->segments += !kvp_list_entry(pos, kvp_segment_t, link)->is_over;
    log_out->is_overlapping = j->is_whole && kvp_apply_end(m) != KVP_OK;
    if (log_out->is_overlapping) kvp_apply_forget(m);
}

/* ---- standbys */
kvp_err_t
kvp_master_follow_begin(kvp_master_t *m, uint64_t *end_out)
{
    kvp_journal_t *j = &m->log.journal;

    if (!j->is_on || j->is_open || j->is_following) return KVP_INVALID;
    if (j->read_err != KVP_OK && j->read_err != KVP_CORRUPT) return j->read_err;
    j->read_err = KVP_OK;
    kvp_buf_reset(&j->rest);
    j->is_following = true;
    j->written = j->synced = *end_out = j->end;
    return KVP_OK;
}

kvp_err_t
kvp_master_follow(kvp_master_t *m, const void *bytes, size_t len)
{
    kvp_journal_t *j = &m->log.journal;

    if (!j->is_following) return KVP_INVALID;
    return read_all(m, bytes, len);
}

kvp_err_t
kvp_replay_lead(kvp_interim_t *log, uint32_t term, bool is_level)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;

    if (!j->is_following || term <= j->read_term || term >= KVP_TERM_MAX) return KVP_INVALID;
    j->is_following = j->is_resting = false;
    m->peers.is_named = true; /* in etcd */
    kvp_term_begin(m, term);
    /* If the previous leader had itself just taken over, some nodes may not have reported yet. */
    j->is_lacking = !is_level || j->oldest_term < j->read_term;
    if (!j->is_whole) j->oldest = 0;
    end_reading(m, j->is_whole);
    j->is_lacking &= j->is_relied_on; /* else nodes are asked for all that they hold */
    if (j->is_lacking) kvp_takeover_lacks(&m->peers);
    j->is_open = true;
    if (j->is_relied_on)
        kvp_journal_term(log);
    else
        kvp_journal_base(log, true);
    return KVP_OK;
}

uint32_t
kvp_master_terms(const kvp_master_t *m, kvp_wire_term_t *terms_out, uint32_t max)
{
    const kvp_buf_t *terms = &m->log.journal.terms;
    uint32_t all = (uint32_t)(terms->len / sizeof *terms_out), n = (uint32_t)kvp_min_u64(all, max);

    if (n > 0) memcpy(terms_out, terms->data + (all - n) * sizeof *terms_out, n * sizeof *terms_out);
    return n;
}

uint32_t
kvp_master_log_term(const kvp_master_t *m)
{
    return m->log.journal.is_resting ? m->log.journal.read_term : m->ctx.term;
}

uint64_t
kvp_master_term_end(const kvp_master_t *m)
{
    return m->log.journal.term_end;
}

void
kvp_replay_named(kvp_interim_t *log)
{
    if (!log->journal.is_on || log->journal.is_open || !log->core->peers.is_named) return;
    log->journal.is_open = true;
    kvp_journal_base(log, true);
}
