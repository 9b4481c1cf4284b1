/* SPDX-License-Identifier: Apache-2.0
 * What a master before has written, read back: which version of each key was committed, and what each tenant's bumps took
 * away. It decides what becomes of what nodes report: that version is adopted, anything else was never acknowledged, or is
 * gone. When the nodes have reported, or their grace is over, what none of them had is written off.
 *
 * Design notes. The bytes come from a disk that may have torn them, so nothing is believed from the first record on that
 * does not verify, or says what no master would. A journal that does not say everything (it was lost, or begun while nodes
 * were reporting) decides nothing: then the newest version of each key wins, as without one (rebuild.c).
 */
#include "common/buf.h"
#include "common/digestmap.h"
#include "common/hash.h"
#include "common/mutate.h"
#include "common/segfmt.h"
#include "master/core/base/ctx.h"
#include "master/core/catalog/index.h"
#include "master/core/catalog/tenant.h"
#include "master/core/log/interim.h"
#include "master/core/master.h"
#include "master/core/recovery/term.h"
#include "master/core/session/takeover.h"
#include "master/core/state.h"
#include "proto/jrec.h"

#include <string.h>

/* ---- what is known */
static uint64_t
version_of(const kvp_master_t *m, kvp_digest_t digest)
{
    const uint64_t *version = kvp_digestmap_at(&m->log.journal.known, digest);

    return version == NULL ? 0 : *version;
}

bool
kvp_replay_knows(const kvp_interim_t *log, kvp_digest_t digest, uint64_t version)
{
    const kvp_master_t *m = log->core;

    return version > 0 && version_of(m, digest) == version;
}

bool
kvp_replay_admits(const kvp_interim_t *log, kvp_digest_t digest, uint64_t version)
{
    return !log->journal.is_judge || kvp_replay_knows(log, digest, version) || !KVP_RULE(JOURNAL_KNOWS);
}

void
kvp_replay_drop(kvp_interim_t *log, kvp_digest_t digest, uint64_t version)
{
    kvp_master_t *m = log->core;

    if (log->journal.is_judge && version_of(m, digest) <= version) (void)kvp_digestmap_del(&log->journal.known, digest);
}

void
kvp_replay_unknown(kvp_interim_t *log, kvp_digest_t digest)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;
    uint64_t version = j->is_judge || j->is_settling ? version_of(m, digest) : 0;

    if (version == 0) return;
    kvp_journal_forget(log, digest, version);
    kvp_replay_drop(log, digest, version);
}

/* ---- when all has been reported */
/* A copy of it, or a newer version, is there. */
static bool
is_there(const kvp_master_t *m, kvp_digest_t digest)
{
    uint32_t oid = kvp_objindex_find(m->cat.index, digest);

    return oid != KVP_OID_NONE && kvp_obj(m->cat.index, oid)->state == KVP_OBJ_COMMITTED;
}

void
kvp_replay_settle_some(kvp_interim_t *log)
{
    kvp_master_t *m = log->core;
    kvp_journal_t *j = &log->journal;

    if (j->is_judge && !kvp_tombs_is_rebuilding(log)) {
        j->is_judge = false;
        j->is_settling = true;
        j->settled = 0;
    }
    if (!j->is_settling) return;
    for (; j->settled < j->known.cap; j->settled++) {
        const kvp_digestmap_at_t *at = &j->known.slots[j->settled];

        if (m->ctx.slice_left == 0 || kvp_journal_is_behind(log)) return;
        kvp_ctx_spend(&m->ctx, 1);
        if (at->val != 0 && (!is_there(m, at->digest) || !KVP_RULE(WRITE_OFF)))
            kvp_journal_forget(log, at->digest, at->val);
    }
    j->is_settling = false;
    kvp_digestmap_fini(&j->known);
}

/* ---- reading */
static bool
is_ours(const kvp_master_t *m, const kvp_jrec_term_t *rec)
{
    return rec->magic == KVP_JOURNAL_MAGIC && rec->digest_seed == m->ctx.conf.digest_seed &&
           memcmp(rec->pool_id, m->ctx.conf.pool_id, sizeof rec->pool_id) == 0;
}

static bool
is_of_read_terms(const kvp_journal_t *j, uint64_t version)
{
    return version > 0 && version < kvp_gen_make(j->read_term + 1, 0);
}

static kvp_err_t
read_term(kvp_master_t *m, const kvp_jrec_term_t *rec)
{
    kvp_journal_t *j = &m->log.journal;
    bool is_base = rec->head.kind == KVP_JREC_BASE;

    if (!is_ours(m, rec)) return KVP_INVALID;
    if (rec->term == 0 || rec->term >= KVP_TERM_MAX || rec->term < j->read_term) return KVP_CORRUPT;
    if (!is_base && (j->read_term == 0 || rec->term == j->read_term)) return KVP_CORRUPT;
    j->read_term = rec->term;
    if (!is_base || (j->is_whole && rec->is_anew == 0)) return KVP_OK;
    j->is_whole = false;
    kvp_digestmap_fini(&j->known);
    return KVP_OK;
}

static void
read_commit(kvp_journal_t *j, const kvp_jrec_key_t *rec)
{
    uint64_t *at = kvp_digestmap_insert(&j->known, rec->digest);

    if (at == NULL) kvp_panic("out of memory: what was committed");
    *at = kvp_max_u64(*at, rec->version);
}

static void
read_gone(kvp_journal_t *j, const kvp_jrec_key_t *rec)
{
    const uint64_t *at = kvp_digestmap_at(&j->known, rec->digest);

    if (at != NULL && *at <= rec->version) (void)kvp_digestmap_del(&j->known, rec->digest);
}

static kvp_err_t
read_bump(kvp_master_t *m, const kvp_jrec_bump_t *rec)
{
    kvp_tenant_t *t = kvp_tenant_find(&m->cat, rec->tenant);

    if (rec->epoch == 0) { /* it owned nothing any more */
        if (t != NULL && t->min_version == rec->min_version) kvp_tombs_bump_forgotten(&m->log, t);
        return KVP_OK;
    }
    t = kvp_tenant_open(&m->cat, rec->tenant); /* here nobody uses any */
    if (!kvp_tenant_may_bump(&m->cat, t)) {
        kvp_tenant_rele(&m->cat, t);
        return KVP_CORRUPT;
    }
    t->epoch = (uint32_t)kvp_max_u64(t->epoch, rec->epoch);
    kvp_tenant_bumped(&m->cat, t, rec->min_version);
    (void)kvp_tombs_bumped(&m->log, t);
    kvp_tenant_rele(&m->cat, t);
    return KVP_OK;
}

static kvp_err_t
apply(kvp_master_t *m, const kvp_jrec_any_t *rec)
{
    kvp_journal_t *j = &m->log.journal;
    uint32_t kind = rec->head.kind;

    if (kind == KVP_JREC_BASE || kind == KVP_JREC_TERM) return read_term(m, &rec->term);
    if (j->read_term == 0) return KVP_CORRUPT; /* a journal begins with a base */
    if (kind == KVP_JREC_WHOLE) {
        j->is_whole = true;
        return KVP_OK;
    }
    if (!is_of_read_terms(j, kind == KVP_JREC_BUMP ? rec->bump.min_version : rec->key.version)) return KVP_CORRUPT;
    if (kind == KVP_JREC_BUMP) return read_bump(m, &rec->bump);
    if (kind == KVP_JREC_COMMIT)
        read_commit(j, &rec->key);
    else
        read_gone(j, &rec->key);
    return KVP_OK;
}

/* Reads one record; *used_out 0: it is not all there. */
static kvp_err_t
read_one(kvp_master_t *m, const uint8_t *bytes, size_t len, size_t *used_out)
{
    kvp_journal_t *j = &m->log.journal;
    kvp_jrec_any_t rec;
    kvp_err_t err = kvp_jrec_read(bytes, len, j->check, &rec, used_out);

    if (err != KVP_OK || *used_out == 0) return err;
    err = apply(m, &rec);
    if (err != KVP_OK) return err;
    j->check = rec.head.check;
    j->end += *used_out;
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

kvp_err_t
kvp_master_restore(kvp_master_t *m, const void *bytes, size_t len)
{
    kvp_journal_t *j = &m->log.journal;
    const uint8_t *at = bytes;
    size_t used;

    if (!j->is_on || j->is_open) return KVP_INVALID;
    while (len > 0 && j->read_err == KVP_OK) {
        kvp_err_t err = j->rest.len > 0 ? read_across(m, at, len, &used) : read_one(m, at, len, &used);
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
kvp_master_open_journal(kvp_master_t *m, uint64_t *end_out)
{
    kvp_journal_t *j = &m->log.journal;

    if (!j->is_on || j->is_open) return KVP_INVALID;
    if (j->read_err != KVP_OK && j->read_err != KVP_CORRUPT) return j->read_err;
    if (j->read_term >= KVP_TERM_MAX) return KVP_LIMIT;
    if (j->read_term >= m->ctx.term) kvp_term_follow(m, j->read_term);
    if (j->read_term > 0) kvp_takeover_begin(&m->peers);
    kvp_buf_fini(&j->rest);
    *end_out = j->end;
    if (!m->peers.is_named && m->ctx.conf.saves_ident) return KVP_OK; /* kvp_replay_named opens it */
    j->is_open = true;
    j->is_judge = j->is_relied_on = j->is_whole;
    j->durable = j->end;
    if (j->is_judge)
        kvp_journal_term(&m->log);
    else
        kvp_replay_begin_anew(&m->log);
    return KVP_OK;
}

void
kvp_replay_named(kvp_interim_t *log)
{
    if (!log->journal.is_on || log->journal.is_open || !log->core->peers.is_named) return;
    log->journal.is_open = true;
    kvp_replay_begin_anew(log);
}

void
kvp_replay_begin_anew(kvp_interim_t *log)
{
    log->journal.is_judge = false;
    log->journal.is_settling = false;
    kvp_digestmap_fini(&log->journal.known);
    kvp_journal_base(log, true);
}
