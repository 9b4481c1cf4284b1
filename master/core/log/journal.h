/* SPDX-License-Identifier: Apache-2.0
 * The master's log as values in memory: the bytes that the shell has not taken yet, positions, and terms. ADR 0028,
 * ADR 0045. catalog/record.c makes the records; recovery/replay.c reads them back.
 *
 * A position is a number of bytes: all bytes that were accepted when the log was opened, plus the bytes appended
 * since. Commits, answers and orders that wait for a position are kept in the layers above; recovery/durable.c
 * continues them. */
#ifndef KVP_MASTER_CORE_LOG_JOURNAL_H
#define KVP_MASTER_CORE_LOG_JOURNAL_H

#include "common/buf.h"
#include "master/core/base/ctx.h"
#include "proto/jrec.h"
#include "proto/wire.h"

/* limit of the log's bytes that are not written to files yet; above it new puts and removals are refused */
#define KVP_JOURNAL_BEHIND_MAX (4u << 20)

typedef enum {
    KVP_JOURNAL_OFF, /* the shell keeps no log */
    KVP_JOURNAL_READS, /* an earlier log is being read, or the pool has no identity yet: nothing is written */
    KVP_JOURNAL_FOLLOWS, /* a standby: the leader's records are applied and written as they come */
    KVP_JOURNAL_OPEN, /* this master writes its own records */
} kvp_journal_state_t;

typedef struct {
    kvp_ctx_t *ctx; /* borrowed */
    kvp_journal_state_t state;
    bool is_resting; /* flag: this master was not elected yet, so it only reads */
    bool has_failed; /* flag: the shell cannot write the log */
    /* flag: the end of the log that was read may be missing; nodes may have newer objects, from generation `oldest`
     * on */
    bool is_lacking;
    uint64_t check; /* checksum of the last record, with which the next record's checksum continues */
    uint64_t end; /* position after the last record */
    uint64_t written; /* position up to which the log is written to files: this part survives a crash of the process */
    /* position up to which the log is synced: this part survives a crash of the machine; equal to `written` if the
     * log is never synced */
    uint64_t synced;
    uint64_t term_end; /* position after the record with this master's term: no output is sent before it is synced */
    kvp_buf_t fresh; /* records that the shell has not taken yet */
    bool has_base; /* flag: a base (a snapshot of all objects) begins in `fresh` */
    size_t base_at; /* offset in `fresh` at which the base begins */

    /* kvp_wire_term_t for each term of the log, in rising order; of the terms in removed files only the last is kept */
    kvp_buf_t terms;
    uint64_t oldest; /* generation in the last OLDEST record, read or written: below it the log knows every removal */
    /* the last OLDEST record of this master: its time, and the log position after it */
    uint64_t told_oldest_ns, told_oldest_end;
} kvp_journal_t;

/* kvp_journal_init borrows ctx, whose configuration must be complete. */
void kvp_journal_init(kvp_journal_t *j, kvp_ctx_t *ctx);
void kvp_journal_fini(kvp_journal_t *j);

/* kvp_journal_append seals the record with its checksum, appends it, and counts it; it has no effect while the log is
 * not open. kvp_journal_copy appends the bytes of a leader's record without a change of `end`. kvp_journal_mark_base:
 * the next record begins a base, so a file may begin there. */
void kvp_journal_append(kvp_journal_t *j, kvp_jrec_any_t *rec, kvp_jrec_kind_t kind);
void kvp_journal_copy(kvp_journal_t *j, const void *bytes, size_t len);
void kvp_journal_mark_base(kvp_journal_t *j);
/* kvp_journal_take returns the next bytes to write in *bytes (empty on entry), and the log position after them.
 * Returns false if there are none. */
bool kvp_journal_take(kvp_journal_t *j, kvp_buf_t *bytes, uint64_t *end_out, bool *is_base_out);

/* kvp_journal_append_term appends a record of this master's term, of kind TERM or BASE; is_anew: no earlier record is
 * valid any more. kvp_journal_note_term records that the term begins at the position. kvp_journal_forget_terms: of
 * the terms before the position only the last is kept. */
void kvp_journal_append_term(kvp_journal_t *j, kvp_jrec_kind_t kind, bool is_anew);
void kvp_journal_note_term(kvp_journal_t *j, uint32_t term, uint64_t position);
void kvp_journal_forget_terms(kvp_journal_t *j, uint64_t before);

/* kvp_journal_syncs returns true if a promise waits for the sync to disk: the promise of a commit, or of a removal,
 * upsert or bump. kvp_journal_withholds returns true if records are not written, or not synced, so that a promise
 * must wait. kvp_journal_refusal returns the answer to a new put or removal: OK, RETRY_AFTER (too many unwritten
 * bytes), or LOG_FAILED. */
bool kvp_journal_syncs(const kvp_journal_t *j, bool is_removal);
bool kvp_journal_withholds(const kvp_journal_t *j, bool is_synced);
kvp_err_t kvp_journal_refusal(const kvp_journal_t *j);

#endif
