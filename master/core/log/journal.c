/* SPDX-License-Identifier: Apache-2.0
 * The master's log as values in memory: bytes, positions and terms. The shell writes the files. */
#include "master/core/log/journal.h"

#include "common/mutate.h"

#include <string.h>

void
kvp_journal_init(kvp_journal_t *j, kvp_ctx_t *ctx)
{
    j->ctx = ctx;
    j->state = ctx->conf.has_journal ? KVP_JOURNAL_READS : KVP_JOURNAL_OFF;
    j->is_resting = ctx->conf.is_elected;
}

void
kvp_journal_fini(kvp_journal_t *j)
{
    kvp_buf_fini(&j->fresh);
    kvp_buf_fini(&j->terms);
}

/* ---- bytes */
void
kvp_journal_copy(kvp_journal_t *j, const void *bytes, size_t len)
{
    kvp_buf_append(&j->fresh, bytes, len);
    if (j->fresh.err != KVP_OK) kvp_panic("out of memory: journal");
    j->ctx->st.log_records++;
    j->ctx->st.log_record_bytes += len;
}

void
kvp_journal_append(kvp_journal_t *j, kvp_jrec_any_t *rec, kvp_jrec_kind_t kind)
{
    if (j->state != KVP_JOURNAL_OPEN) return; /* nothing is logged: no log is kept, or it is still read or followed */
    j->check = kvp_jrec_seal(rec, kind, j->check);
    kvp_journal_copy(j, rec, rec->head.bytes);
    j->end += rec->head.bytes;
}

/* Marks the next record as the begin of a base (snapshot). If two bases begin in the bytes that the shell has not
 * taken, the next log file begins with the first base and contains both. */
void
kvp_journal_mark_base(kvp_journal_t *j)
{
    if (!j->has_base) j->base_at = j->fresh.len;
    j->has_base = true;
}

/* Returns the next records for the shell. Records before a base (a snapshot) are returned alone, so that a new file of
 * the log can begin with the base. */
bool
kvp_journal_take(kvp_journal_t *j, kvp_buf_t *bytes, uint64_t *end_out, bool *is_base_out)
{
    kvp_buf_t swap = j->fresh;

    if (swap.len == 0) return false;
    *is_base_out = j->has_base && j->base_at == 0;
    if (!j->has_base || *is_base_out) {
        j->fresh = *bytes;
        *bytes = swap;
        j->has_base = false;
    } else {
        kvp_buf_append(bytes, swap.data, j->base_at);
        if (bytes->err != KVP_OK) kvp_panic("out of memory: journal");
        kvp_buf_consume(&j->fresh, j->base_at);
        j->base_at = 0;
    }
    *end_out = j->end - j->fresh.len;
    return true;
}

/* ---- terms */
void
kvp_journal_note_term(kvp_journal_t *j, uint32_t term, uint64_t position)
{
    const kvp_wire_term_t rec = {.position = position, .term = term};

    kvp_buf_append(&j->terms, &rec, sizeof rec);
    if (j->terms.err != KVP_OK) kvp_panic("out of memory: terms of the log");
}

void
kvp_journal_forget_terms(kvp_journal_t *j, uint64_t before)
{
    const kvp_wire_term_t *terms = (const kvp_wire_term_t *)j->terms.data;
    size_t all = j->terms.len / sizeof *terms, n = 0;

    while (n + 1 < all && terms[n + 1].position <= before)
        n++;
    kvp_buf_consume(&j->terms, n * sizeof *terms);
}

static bool
is_term_noted(const kvp_journal_t *j, uint32_t term)
{
    const kvp_wire_term_t *terms = (const kvp_wire_term_t *)j->terms.data;
    size_t all = j->terms.len / sizeof *terms;

    return all > 0 && terms[all - 1].term == term;
}

void
kvp_journal_append_term(kvp_journal_t *j, kvp_jrec_kind_t kind, bool is_anew)
{
    kvp_jrec_any_t rec;

    if (!is_term_noted(j, j->ctx->term)) kvp_journal_note_term(j, j->ctx->term, j->end);
    rec.term = (kvp_jrec_term_t){
        .magic = KVP_JOURNAL_MAGIC,
        .digest_seed = j->ctx->conf.digest_seed,
        .term = j->ctx->term,
        .is_anew = is_anew,
    };
    memcpy(rec.term.pool_id, j->ctx->conf.pool_id, sizeof rec.term.pool_id);
    kvp_journal_append(j, &rec, kind);
    if (kind == KVP_JREC_TERM || is_anew) j->term_end = j->end;
}

/* ---- positions */
kvp_err_t
kvp_journal_refusal(const kvp_journal_t *j)
{
    if (j->ctx->st.log_refuses != 0) return KVP_LOG_FAILED;
    return j->has_failed || j->end - j->written > KVP_JOURNAL_BEHIND_MAX ? KVP_RETRY_AFTER : KVP_OK;
}

bool
kvp_journal_syncs(const kvp_journal_t *j, bool is_removal)
{
    kvp_log_sync_t sync = j->ctx->conf.log_sync;

    return sync == KVP_LOG_SYNC_ALWAYS || (sync == KVP_LOG_SYNC_INTERVAL && is_removal && KVP_RULE(REMOVAL_SYNCED));
}

bool
kvp_journal_withholds(const kvp_journal_t *j, bool is_synced)
{
    return (is_synced ? j->synced : j->written) < j->end && KVP_RULE(WITHHOLD_UNTIL_DURABLE);
}
