/* SPDX-License-Identifier: Apache-2.0
 * The master's log as values: the bytes that are not taken by the shell yet, positions, and terms.
 * ADR 0028, ADR 0045. catalog/record.c makes the records; recovery/replay.c reads them back.
 *
 * A position is a number of bytes: all bytes that were accepted when the journal was opened, and
 * the bytes appended since. What waits for a position (commits, answers, orders) stands in the
 * layers above, which recovery/durable.c drains. */
#ifndef KVP_MASTER_CORE_LOG_JOURNAL_H
#define KVP_MASTER_CORE_LOG_JOURNAL_H

#include "common/buf.h"
#include "master/core/base/ctx.h"
#include "proto/jrec.h"
#include "proto/wire.h"

#define KVP_JOURNAL_BEHIND_MAX (4u << 20) /* bytes that are not durable, before nothing new is begun */

typedef enum {
    KVP_JOURNAL_OFF, /* the shell has no journal */
    KVP_JOURNAL_READS, /* an earlier log is read, or the pool has no name yet: nothing is written */
    KVP_JOURNAL_FOLLOWS, /* another master's records are entered, and written as they come */
    KVP_JOURNAL_OPEN, /* our own records are written */
} kvp_journal_state_t;

typedef struct {
    kvp_ctx_t *ctx; /* borrowed */
    kvp_journal_state_t state;
    bool is_resting; /* this master was not elected yet: it only reads */
    bool has_failed; /* the shell cannot write it */
    bool is_lacking; /* the end of what was read may be missing: from `oldest` on nodes know more */
    uint64_t check; /* of the last record */
    uint64_t end; /* position after the last record */
    uint64_t written; /* in the files: it survives this process, */
    uint64_t synced; /* and the machine; the same where nothing is synced */
    uint64_t term_end; /* position after the record with our term: no output before its sync */
    kvp_buf_t fresh; /* records that the shell has not taken */
    bool has_base; /* one of them begins a base, */
    size_t base_at; /* here */

    kvp_buf_t terms; /* kvp_wire_term_t: where terms begin, rising; for removed files only the last */
    uint64_t oldest; /* of the last OLDEST, read or written: below this generation the log knows every end */
    uint64_t told_oldest_ns, told_oldest_end; /* our last OLDEST: its time, and the end after it */
} kvp_journal_t;

/* ctx is borrowed: its configuration is complete. */
void kvp_journal_init(kvp_journal_t *j, kvp_ctx_t *ctx);
void kvp_journal_fini(kvp_journal_t *j);

/* kvp_journal_append seals the record, appends it, and counts it; nothing while the journal is not
 * open. kvp_journal_copy appends the bytes of a leader's record, without a change of `end`.
 * kvp_journal_mark_base: the next record begins a base, so a file may begin there. */
void kvp_journal_append(kvp_journal_t *j, kvp_jrec_any_t *rec, kvp_jrec_kind_t kind);
void kvp_journal_copy(kvp_journal_t *j, const void *bytes, size_t len);
void kvp_journal_mark_base(kvp_journal_t *j);
/* kvp_journal_take returns the next bytes to write in *bytes (empty on entry), and the position after
 * them. False: there are none. */
bool kvp_journal_take(kvp_journal_t *j, kvp_buf_t *bytes, uint64_t *end_out, bool *is_base_out);

/* kvp_journal_append_term appends our term: TERM, or BASE with is_anew if no earlier record is valid
 * any more. kvp_journal_note_term records that the term begins at the position.
 * kvp_journal_forget_terms: of the terms before the position only the last is kept. */
void kvp_journal_append_term(kvp_journal_t *j, kvp_jrec_kind_t kind, bool is_anew);
void kvp_journal_note_term(kvp_journal_t *j, uint32_t term, uint64_t position);
void kvp_journal_forget_terms(kvp_journal_t *j, uint64_t before);

/* kvp_journal_syncs: such a promise waits for the disk; of a commit, or of a removal, upsert or
 * bump. kvp_journal_withholds: some records are not written, or not synced, so a promise must wait.
 * kvp_journal_refusal: the answer to a new put or removal. OK, RETRY_AFTER (too many unwritten
 * bytes), or LOG_FAILED. */
bool kvp_journal_syncs(const kvp_journal_t *j, bool is_removal);
bool kvp_journal_withholds(const kvp_journal_t *j, bool is_synced);
kvp_err_t kvp_journal_refusal(const kvp_journal_t *j);

#endif
