/* SPDX-License-Identifier: Apache-2.0
 * The log of commits and removals (journal.c), and an earlier master's log, read back (replay.c;
 * recovery/apply.c enters its records). ADR 0028. A standby reads the leader's records, and writes
 * the same ones (ADR 0031).
 *
 * A position is a number of bytes: all bytes that were accepted when the journal was opened, and
 * the bytes written since. */
#ifndef KVP_MASTER_CORE_LOG_INTERIM_H
#define KVP_MASTER_CORE_LOG_INTERIM_H

#include "common/buf.h"
#include "common/digestmap.h"
#include "common/list.h"
#include "master/core/master.h"
#include "proto/jrec.h"
#include "proto/wire.h"

typedef struct kvp_obj kvp_obj_t;
typedef struct kvp_retire kvp_retire_t;
typedef struct kvp_segment kvp_segment_t;
typedef struct kvp_session kvp_session_t;
typedef struct kvp_tenant kvp_tenant_t;
typedef struct kvp_deferred kvp_deferred_t;

#define KVP_JOURNAL_BEHIND_MAX (4u << 20) /* bytes that are not durable, before nothing new is begun */

typedef struct {
    bool is_on; /* the shell has a journal */
    bool is_open;
    bool is_resting; /* this master was not elected yet: it only reads */
    bool is_following; /* another master's records are entered, and written as they come; nothing of our own is */
    bool has_failed; /* the shell cannot write it */
    uint64_t check; /* of the last record */
    uint64_t end; /* position after the last record */
    uint64_t written; /* in the files: it survives this process, */
    uint64_t synced; /* and the machine; the same where nothing is synced */
    bool is_sync_broken; /* what was written may be lost: nothing more counts as synced before a base that is */
    uint64_t term_end; /* position after the record with our term: no output before its sync */
    kvp_buf_t fresh; /* records that the shell has not taken */
    bool has_base; /* one of them begins a base, */
    size_t base_at; /* here */

    /* what waits, each in the order of positions */
    kvp_list_t deferred[2]; /* answers that wait until their promises are written; until they are synced */
    kvp_list_t retires; /* orders about superseded extents */
    kvp_buf_t fresh_commits; /* kvp_fresh_commit_t: commits, from fresh_commits_at on */
    size_t fresh_commits_at;

    /* a base under way: all present objects are recorded again */
    bool is_relied_on; /* once durable, it has every committed object */
    bool is_basing;
    bool is_based; /* records before the last base are not needed, and the shell does not know yet */
    uint64_t base_from, base_end; /* positions; base_end 0 = its last record is not written */
    uint32_t bases; /* bases begun by this master, */
    /* and of these the one whose older files are being removed, and the one whose older files are
     * removed */
    uint32_t taking, taken;
    uint64_t file_bytes; /* of all remaining files */
    uint32_t base_cursor, base_to; /* oids, */
    uint32_t base_retire, base_drop,
        base_gone; /* then come records of extents not dead yet, or still on a tier, and entries of `gone` */

    kvp_buf_t terms; /* kvp_wire_term_t: where terms begin, rising; for removed files only the last */

    uint64_t told_oldest_ns, told_oldest_end; /* our last OLDEST: its time, and the end after it */

    uint64_t oldest; /* of the last OLDEST, read or written: below this generation the log knows every end */

    /* replay.c */
    uint32_t oldest_term; /* term of that OLDEST; 0 = none */
    bool is_lacking; /* the end of what was read may be missing: from `oldest` on nodes know more */
    kvp_buf_t rest; /* of what was given: the beginning of a record */
    uint32_t read_term; /* 0 = nothing was read */
    kvp_err_t read_err; /* CORRUPT: nothing more is believed */
    uint64_t read_n[16]; /* records by their kinds */
    bool is_whole; /* the log read has every committed object, */
    bool is_anew; /* or will have: when it was begun, there was memory that it did not know */
    kvp_segment_t *named; /* segment of the last read place; NULL = none */
} kvp_journal_t;

/* A commit that may be lost. */
typedef struct {
    uint64_t after;
    kvp_digest_t digest;
    uint64_t version;
} kvp_fresh_commit_t;

/* core: these files still know all of it; no lower layer does. */
typedef struct {
    kvp_master_t *core; /* borrowed */
    kvp_journal_t journal;
} kvp_interim_t;

/* journal.c. Without a journal these functions have no effect. They record events.
 * kvp_journal_commit: an object with its version. kvp_journal_again: an object whose places
 * changed. kvp_journal_gone: an object that is about to be removed, o if it still exists (its key
 * is recorded with conf.log_names_gone), else NULL. kvp_journal_segment: memory, before its first
 * object. kvp_journal_segment_over: memory without any object left. kvp_journal_bumped.
 * kvp_journal_term: our term. kvp_journal_base: all present objects again, with is_anew if no
 * earlier record is valid any more. */
void kvp_journal_init(kvp_interim_t *log);
void kvp_journal_fini(kvp_interim_t *log);
void kvp_journal_commit(kvp_interim_t *log, uint32_t oid, kvp_digest_t digest);
void kvp_journal_again(kvp_interim_t *log, uint32_t oid);
void kvp_journal_gone(kvp_interim_t *log, const kvp_obj_t *o, kvp_digest_t digest, uint64_t version, kvp_gone_t why);
void kvp_journal_segment(kvp_interim_t *log, const kvp_segment_t *g);
void kvp_journal_segment_over(kvp_interim_t *log, const kvp_segment_t *g);
void kvp_journal_tenant(kvp_interim_t *log, const kvp_tenant_t *t);
void kvp_journal_bump_forgotten(kvp_interim_t *log, const kvp_tenant_t *t);
void kvp_journal_term(kvp_interim_t *log);
void kvp_journal_base(kvp_interim_t *log, bool is_anew);
/* kvp_journal_syncs: such a promise waits for the disk; of a commit, or of a removal, upsert or
 * bump. kvp_journal_withholds: some records are not written, or not synced, so a promise must wait.
 * kvp_journal_refusal: the answer to a new put or removal. OK, RETRY_AFTER (too many unwritten
 * bytes), or LOG_FAILED. */
bool kvp_journal_syncs(const kvp_interim_t *log, bool is_removal);
bool kvp_journal_withholds(const kvp_interim_t *log, bool is_synced);
kvp_err_t kvp_journal_refusal(const kvp_interim_t *log);
bool kvp_journal_has_refused(const kvp_interim_t *log); /* no answer that waits for the log is left */
void kvp_journal_written(kvp_interim_t *log, uint64_t end);
void kvp_journal_synced(kvp_interim_t *log, uint64_t end);
void kvp_journal_oldest(kvp_interim_t *log); /* from here on nothing is unknown but attempts that are under way */
void kvp_journal_tick(kvp_interim_t *log);
bool kvp_journal_has_work(const kvp_interim_t *log);
/* kvp_journal_note_term records that the term begins at the position. */
void kvp_journal_note_term(kvp_journal_t *j, uint32_t term, uint64_t position);

/* replay.c, which reads what a master before has written. kvp_replay_named: the pool
 * has its name for good now, so that its journal can begin. */
void kvp_replay_named(kvp_interim_t *log);
/* kvp_replay_lead: the followed log is ours now, and continues in the term. INVALID: the term is
 * not above all terms in the log. */
kvp_err_t kvp_replay_lead(kvp_interim_t *log, uint32_t term, bool is_level) KVP_MUST_USE;

#endif
