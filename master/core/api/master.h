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

/* The log of earlier masters, if the shell keeps one (conf.has_journal), is read back first:
 * kvp_master_read_log takes its bytes from the beginning, in pieces of any length. CORRUPT: a torn
 * record; VERSION: a record of a later version; INVALID: the log of another pool. No byte from there
 * on is accepted.
 *
 * kvp_master_open_log then ends the reading: *end_out is the number of accepted bytes. The shell
 * cuts the log there, and continues writing. After VERSION and INVALID the log must not be opened,
 * and this call returns the same. LIMIT: no term is left.
 * - WHOLE: as far as the shell knows, no byte is missing that the core had as written. SHORT: the
 *   end may be missing. If the log is damaged, ends in the middle of a record, or is SHORT, only its
 *   removals are accepted. The call may raise the term (ready.ident). A pool without a name sends
 *   nothing before its identity is saved.
 * - FOLLOW: this master is a standby (ADR 0031). kvp_master_read_log then enters the leader's
 *   records after *end_out, and kvp_master_ready returns the same records for writing. CORRUPT: they
 *   do not continue the log, or are damaged. No record from there on is entered, but an object that
 *   it would have replaced may be removed already: such a core must not lead. A standby serves only
 *   state questions (Hello.is_state_only), and is otherwise at rest. */
typedef enum {
    KVP_OPEN_WHOLE,
    KVP_OPEN_SHORT,
    KVP_OPEN_FOLLOW,
} kvp_master_open_t;

kvp_err_t kvp_master_read_log(kvp_master_t *master, const void *bytes, size_t len) KVP_MUST_USE;
kvp_err_t kvp_master_open_log(kvp_master_t *master, kvp_master_open_t how, uint64_t *end_out) KVP_MUST_USE;

/* kvp_master_lead: this standby leads from now on, in the term, which must be above all terms in the
 * log (else INVALID). is_level: the log has every acknowledged record of the previous leader. All
 * sessions are closed.
 *
 * kvp_master_terms: where the terms of the log begin, rising; at most max, the last ones. The last of
 * them is the term of the log's last record; 0 terms: the log has no record. */
kvp_err_t kvp_master_lead(kvp_master_t *master, uint32_t term, bool is_level, uint64_t now_ns) KVP_MUST_USE;
uint32_t kvp_master_terms(const kvp_master_t *master, kvp_wire_term_t *terms_out, uint32_t max);

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

/* kvp_master_check_log takes the place of kvp_master_open_log where nothing is to begin: after it
 * the core is good for kvp_master_destroy alone. */
void kvp_master_check_log(kvp_master_t *master, kvp_master_log_t *log_out);

/* Inputs. conn is the shell's number of a connection: never 0, never reused. now_ns is CLOCK_BOOTTIME and never falls.
 * Each may produce outputs. The frame is borrowed for the call. A frame that breaks the protocol makes the core close
 * the connection (an output). */
void kvp_master_on_connect(kvp_master_t *master, uint64_t conn, uint64_t now_ns);
void kvp_master_on_frame(kvp_master_t *master, uint64_t conn, const kvp_frame_t *frame, uint64_t now_ns);
void kvp_master_on_close(kvp_master_t *master, uint64_t conn, uint64_t now_ns); /* also after the core closed it */

/* kvp_master_on_tick runs timers, and a slice of background work. Called when ready.tick_ns is
 * reached, and for KVP_MASTER_WORKS. */
void kvp_master_on_tick(kvp_master_t *master, uint64_t now_ns);

/* The pool's identity, and this master's term. */
typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term; /* 0 = the struct is empty */
} kvp_master_ident_t;

void kvp_master_ident(const kvp_master_t *master, kvp_master_ident_t *ident_out);

/* The outputs of a core. The shell initialises it once with zeros, and gives the same one to every
 * call. Buffers belong to the shell, which empties them before the next call; the core swaps them
 * for its own, so that no byte is copied. */
typedef struct {
    /* What is new since the last call. Each piece is returned once. */
    kvp_buf_t log; /* whole records, to be written next; empty = none */
    uint64_t log_end; /* the position after them */
    bool begins_base; /* a file may begin with them */
    uint64_t forget_below; /* records before this position are not needed any more; UINT64_MAX = nothing new */
    kvp_master_ident_t ident; /* to be made durable; term 0 = nothing new */
    const char *note; /* a line for the shell's log; valid until the next call; NULL = none */
    uint64_t conn; /* the connection of `frames`; 0 = none */
    kvp_buf_t frames; /* whole frames, to be sent */
    bool is_last; /* the connection is to be closed after they are sent */

    /* What holds after the last input. Valid when the call has returned false. */
    uint64_t tick_ns; /* time of the next kvp_master_on_tick */
    uint64_t term_end; /* nothing is sent before the log is synced up to this position */
    uint32_t wishes; /* of kvp_master_wish_t */
} kvp_master_ready_t;

typedef enum {
    KVP_MASTER_WORKS = 1, /* background work is left: kvp_master_on_tick also between inputs, again and again */
    KVP_MASTER_SYNCS = 2, /* an answer waits until the written part of the log is synced */
    KVP_MASTER_MUTES = 4, /* nothing is sent before the term, or the pool's name, is durable */
    KVP_MASTER_BASES = 8, /* a base is being recorded: writes are long now */
    KVP_MASTER_TELLS = 16, /* the log's records are this master's own decisions, and kvp_master_tell may be called */
} kvp_master_wish_t;

/* kvp_master_ready, called after every input until it returns false, returns the outputs in the
 * order in which they are to be handled: the log first, then frames. An answer that promises
 * durability is returned only after the `done` for which it waited, so that the shell may write,
 * sync and send at any time. */
bool kvp_master_ready(kvp_master_t *master, kvp_master_ready_t *ready);

/* The end of what the shell did with these outputs. */
typedef enum {
    KVP_DONE_WRITTEN, /* the log up to `position` survives this process */
    KVP_DONE_SYNCED, /* and this machine; not above what is written */
    KVP_DONE_UNSYNCED, /* a sync failed: bytes before `position` may be lost. A base records everything again */
    KVP_DONE_FORGOTTEN, /* the files before forget_below are removed; `bytes` of files are left */
    KVP_DONE_IDENT, /* `ident` is durable */
    KVP_DONE_IDENT_FAILED, /* or could not be saved, which matters if the term is new */
    KVP_DONE_LOG_FAILS, /* the log cannot be written now: puts and removals are answered RETRY_AFTER */
    /* No other master can take over, and `why` is the detail: they are answered LOG_FAILED, also
     * those that wait, by the next ticks. */
    KVP_DONE_LOG_REFUSES,
    KVP_DONE_LOG_WORKS, /* ends both */
} kvp_master_done_kind_t;

typedef struct {
    kvp_master_done_kind_t kind;
    uint64_t position, bytes;
    const kvp_master_ident_t *ident; /* borrowed for the call */
    const char *why; /* copied */
} kvp_master_done_t;

/* kvp_master_done is an input. */
void kvp_master_done(kvp_master_t *master, const kvp_master_done_t *done, uint64_t now_ns);

/* kvp_master_snapshot begins a base: all present objects are recorded again, between new events, and
 * ready.forget_below follows when the base is durable. False if a base is under way, or not
 * durable, or not all nodes have reported. */
bool kvp_master_snapshot(kvp_master_t *master);

/* kvp_master_tell is for a reader that begins in the middle of the log (ready.wishes:
 * KVP_MASTER_TELLS). It appends the present state to out as log records, each with its own checksum;
 * the caller checks out->err. With *cursor 0 it appends all tenants, then committed objects, of
 * `most` records of the index from *cursor on; it advances *cursor. True = there is more. A reader
 * that calls it until false, and handles the log's records in between in the order of both, knows
 * the whole state. */
bool kvp_master_tell(kvp_master_t *master, uint32_t *cursor, uint32_t most, kvp_buf_t *out);

/* Figures of the master: base/conf.h. */
void kvp_master_stats(const kvp_master_t *master, kvp_master_stats_t *stats_out);

/* kvp_master_note_times passes the figures that need a clock, for Status: step_longest_ns and
 * answer_longest_ns. */
void kvp_master_note_times(kvp_master_t *master, uint64_t step_longest_ns, uint64_t answer_longest_ns);

/* kvp_master_note_masters replaces the list of masters in Status, at most KVP_MASTERS_MAX, and the
 * leader's address, which a standby's refusals name; "" = unknown. NULL = it stays. Both are
 * copied. */
void kvp_master_note_masters(kvp_master_t *master, const char *leader, const kvp_master_peer_t *masters, uint32_t n);

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
