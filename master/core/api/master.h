/* SPDX-License-Identifier: Apache-2.0
 * The master as a pure state machine: frames in, frames out. No sockets, threads, clocks, files or
 * hidden randomness; the shell (master/shell/server.c) and the simulator drive it the same way. Not
 * thread-safe: one thread owns a core. */
#ifndef KVP_MASTER_CORE_API_MASTER_H
#define KVP_MASTER_CORE_API_MASTER_H

#include "common/buf.h"
#include "master/core/base/conf.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef struct kvp_master kvp_master_t;

kvp_err_t kvp_master_create(const kvp_master_conf_t *conf, uint64_t now_ns, kvp_master_t **master_out) KVP_MUST_USE;
void kvp_master_destroy(kvp_master_t *master);

/* The journal, if the shell has one (conf.has_journal). First, the earlier masters' log is read
 * back, from its beginning and in pieces of any length: kvp_master_restore. CORRUPT: a torn record,
 * and nothing from there on is accepted. VERSION: of a later version; INVALID: of another pool;
 * with these it must not be opened, and open_journal returns the same. Then
 * kvp_master_open_journal: *end_out is the number of accepted bytes. The shell cuts the log there,
 * and continues writing. is_all_given: as far as the shell knows, no byte is missing that the core
 * had as written. If the log is damaged, ends in the middle of a record, or may lack its end, only
 * its removals are accepted. The call may raise the term (kvp_master_take_ident). LIMIT: no term is
 * left. A pool without a name sends nothing before its identity is saved.
 *
 * kvp_master_take_journal, called after every input until it returns false, returns the next bytes
 * to write, as take_output does. *end_out is the position after them; *is_base_out: they begin with
 * a base, so a file may begin there. When they, or a part of them, are written and survive this
 * process: kvp_master_on_written, an input. When they survive the machine: kvp_master_on_synced,
 * for which kvp_master_wants_sync waits. Until then promising answers are withheld. With too many
 * unwritten bytes, or after kvp_master_journal_failed reported that nothing can be written now,
 * puts and removals are answered RETRY_AFTER. After kvp_master_refuse_writes they are answered
 * LOG_FAILED, with `why` (copied) as the detail: no other master can take over. Waiting answers are
 * sent as LOG_FAILED by the next ticks. kvp_master_journal_failed(m, false) ends both.
 * kvp_master_sync_failed: bytes before the position may be lost. A base then records everything
 * again.
 *
 * kvp_master_snapshot begins a base: all present objects are recorded again, between new events.
 * False if a base is under way, or not durable, or not all nodes have reported.
 * kvp_master_take_snapshot: true once when the records before position *from_out are not needed any
 * more: a base is durable, or an `anew` base has begun because no earlier record is valid.
 * kvp_master_snapshot_taken follows when they are removed; file_bytes are left.
 * kvp_master_is_in_snapshot: a base is under way. */
kvp_err_t kvp_master_restore(kvp_master_t *master, const void *bytes, size_t len) KVP_MUST_USE;
kvp_err_t kvp_master_open_journal(kvp_master_t *master, bool is_all_given, uint64_t *end_out) KVP_MUST_USE;

/* A standby (ADR 0031). After kvp_master_restore of its own log, kvp_master_follow_begin replaces
 * kvp_master_open_journal: *end_out is the number of accepted bytes, and the shell cuts the rest.
 * kvp_master_follow then enters the leader's records after that, in pieces of any length, and
 * kvp_master_take_journal returns the same records for writing. CORRUPT: they do not continue the
 * log, or are damaged; VERSION: of a later version. No record from there on is entered, but an
 * object that it would have replaced may be removed already: such a core must not lead. Before
 * kvp_master_lead the core serves only state questions (Hello.is_state_only), and is otherwise at
 * rest.
 *
 * kvp_master_lead: this master leads from now on, in the term, which must be above all terms in the
 * log (else INVALID). is_level: the log has every acknowledged record of the previous leader. All
 * sessions are closed. kvp_master_terms: where the terms of the log begin, rising; at most max, the
 * last ones. */
kvp_err_t kvp_master_follow_begin(kvp_master_t *master, uint64_t *end_out) KVP_MUST_USE;
kvp_err_t kvp_master_follow(kvp_master_t *master, const void *bytes, size_t len) KVP_MUST_USE;
kvp_err_t kvp_master_lead(kvp_master_t *master, uint32_t term, bool is_level, uint64_t now_ns) KVP_MUST_USE;
uint32_t kvp_master_terms(const kvp_master_t *master, kvp_wire_term_t *terms_out, uint32_t max);
void kvp_master_set_leader(kvp_master_t *master, const char *address); /* sent by a standby in its answers; copied */
uint32_t kvp_master_log_term(const kvp_master_t *master); /* of its last record; 0 = there is none */
uint64_t kvp_master_term_end(
    const kvp_master_t *master); /* position after the record with the term: no output before its sync */

/* The contents of a log, complete up to `end`. */
typedef struct {
    uint64_t end; /* accepted bytes */
    kvp_err_t
        /* why no more: OK (all was read, but for a record of which the end is missing), CORRUPT,
         * VERSION, INVALID */
        err;
    bool is_whole; /* the log has every committed object */
    bool is_overlapping; /* its places overlap, so it is not used */
    uint32_t term; /* the last; 0 = nothing was read */
    uint64_t records[16]; /* by kvp_jrec_kind_t */
    uint64_t objects;
    uint32_t segments, tenants;
} kvp_master_log_t;

/* kvp_master_check_journal takes the place of kvp_master_open_journal where nothing is to begin:
 * after it the core is good for kvp_master_destroy alone. */
void kvp_master_check_journal(kvp_master_t *master, kvp_master_log_t *log_out);
bool kvp_master_take_journal(kvp_master_t *master, kvp_buf_t *bytes, uint64_t *end_out, bool *is_base_out);
void kvp_master_journal_failed(kvp_master_t *master, bool has_failed);
void kvp_master_refuse_writes(kvp_master_t *master, const char *why);
bool kvp_master_wants_sync(const kvp_master_t *master);
void kvp_master_sync_failed(kvp_master_t *master, uint64_t end);
bool kvp_master_snapshot(kvp_master_t *master);
bool kvp_master_is_in_snapshot(const kvp_master_t *master);
bool kvp_master_take_snapshot(kvp_master_t *master, uint64_t *from_out);
void kvp_master_snapshot_taken(kvp_master_t *master, uint64_t file_bytes);

/* For a reader that begins in the middle of the log. kvp_master_is_telling: its records are this
 * master's own decisions. kvp_master_tell appends the present state to out as log records, each
 * with its own checksum; the caller checks out->err. With *cursor 0 it appends all tenants, then
 * committed objects, of `most` records of the index from *cursor on; it advances *cursor. True =
 * there is more. A reader that calls it until false, and handles the log's records in between in
 * the order of both, knows the whole state. */
bool kvp_master_is_telling(const kvp_master_t *master);
bool kvp_master_tell(kvp_master_t *master, uint32_t *cursor, uint32_t most, kvp_buf_t *out);

/* Inputs. conn is the shell's number of a connection: never 0, never reused. now_ns is CLOCK_BOOTTIME and never falls.
 * Each may produce outputs. The frame is borrowed for the call. A frame that breaks the protocol makes the core close
 * the connection (an output). */
void kvp_master_on_connect(kvp_master_t *master, uint64_t conn, uint64_t now_ns);
void kvp_master_on_frame(kvp_master_t *master, uint64_t conn, const kvp_frame_t *frame, uint64_t now_ns);
void kvp_master_on_close(kvp_master_t *master, uint64_t conn, uint64_t now_ns); /* also after the core closed it */
void kvp_master_on_written(kvp_master_t *master, uint64_t end, uint64_t now_ns); /* the log, up to this position */
void kvp_master_on_synced(kvp_master_t *master, uint64_t end, uint64_t now_ns); /* not above that */

/* kvp_master_on_tick runs timers and a slice of background work of at most about budget operations. Called when
 * kvp_master_due is reached, and again and again between inputs while kvp_master_has_work. */
void kvp_master_on_tick(kvp_master_t *master, uint64_t now_ns);
uint64_t kvp_master_due(const kvp_master_t *master);
bool kvp_master_has_work(const kvp_master_t *master);

/* Outputs, drained after every input: one connection at a time, its bytes (whole frames) swapped
 * into *bytes (an initialised, empty buffer; the core keeps the caller's memory in exchange) and
 * whether to close it after they are sent. False without output. */
bool kvp_master_take_output(kvp_master_t *master, uint64_t *conn_out, kvp_buf_t *bytes, bool *close_out);

/* The pool's identity, and this master's term. */
typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term;
} kvp_master_ident_t;

void kvp_master_ident(const kvp_master_t *master, kvp_master_ident_t *ident_out);

/* kvp_master_take_ident: true once after a change (a node obeyed a higher term than ours, or named
 * the pool), and when a new pool's first space was granted. With conf.saves_ident the core then
 * sends nothing (take_output returns false) until kvp_master_ident_saved reports that the identity
 * is durable or, with an unchanged term, that saving failed. */
bool kvp_master_take_ident(kvp_master_t *master, kvp_master_ident_t *ident_out);
void kvp_master_ident_saved(kvp_master_t *master, const kvp_master_ident_t *ident, bool is_durable);
bool kvp_master_is_mute(const kvp_master_t *master);

/* Reasons of closed connections, and other events for the log: at most one line a call, borrowed
 * until the next input; NULL = none. */
const char *kvp_master_take_note(kvp_master_t *master);

/* Figures of the master: base/conf.h. */
void kvp_master_stats(const kvp_master_t *master, kvp_master_stats_t *stats_out);

/* kvp_master_note_times passes the figures that need a clock, for Status: step_longest_ns and
 * answer_longest_ns. */
void kvp_master_note_times(kvp_master_t *master, uint64_t step_longest_ns, uint64_t answer_longest_ns);

/* kvp_master_note_masters replaces the list of masters in Status; copied. At most KVP_MASTERS_MAX. */
void kvp_master_note_masters(kvp_master_t *master, const kvp_master_peer_t *masters, uint32_t n);

/* Why the pool is degraded; n 0 = it is not. */
#define KVP_MASTER_WRONG_MAX 64u
typedef struct {
    struct {
        const char *code; /* a stable name; static */
        char text[448];
    } lines[KVP_MASTER_WRONG_MAX];
    uint32_t n;
} kvp_master_wrong_t;

/* kvp_master_wrong lists the causes as of the last input. */
void kvp_master_wrong(const kvp_master_t *master, kvp_master_wrong_t *wrong_out);

#endif
