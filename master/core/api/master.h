/* SPDX-License-Identifier: Apache-2.0
 * The master as a pure state machine: frames in, frames out. No sockets, threads, clocks, files or
 * hidden randomness; the shell (master/shell/server.c) and the simulator drive it the same way. Not
 * thread-safe: one thread owns a core. */
#ifndef KVP_MASTER_CORE_API_MASTER_H
#define KVP_MASTER_CORE_API_MASTER_H

#include "common/buf.h"
#include "master/core/base/conf.h"
#include "master/core/base/ratio.h"
#include "proto/frame.h"
#include "proto/wire.h"

typedef struct kvp_master kvp_master_t;

kvp_err_t kvp_master_create(const kvp_master_conf_t *conf, uint64_t now_ns, kvp_master_t **master_out) KVP_MUST_USE;
void kvp_master_destroy(kvp_master_t *master);

/* kvp_master_read_log reads the log of earlier masters, if the shell keeps a log (conf.has_journal), before the first
 * input. It takes the log's bytes from the beginning, in pieces of any length. Returns CORRUPT for a torn record,
 * VERSION for a record of a later version, INVALID for the log of another pool; the core then accepts neither this
 * record nor any byte after it.
 *
 * kvp_master_open_log then ends the reading: *end_out is the number of accepted bytes. The shell truncates the log to
 * this length and continues writing there. After VERSION and INVALID the log must not be opened, and
 * kvp_master_open_log returns the same error. LIMIT: no higher term exists.
 * - WHOLE: as far as the shell knows, the file has all bytes that the core was told are written. SHORT: the end of the
 *   file may be missing. If the log is damaged, ends in the middle of a record, or is SHORT, the core uses only its
 *   removals. The call may raise the term (ready.ident). A pool without an identity sends nothing before its identity
 *   is saved.
 * - FOLLOW: this master is a standby (ADR 0031). kvp_master_read_log then applies the leader's records after *end_out,
 *   and kvp_master_ready returns the same records for writing. CORRUPT: the records do not continue the log, or are
 *   damaged. No record from there on is applied, but an object that the record would have replaced may be removed
 *   already: such a core must not lead. A standby answers only questions about its state (Hello.is_state_only). */
typedef enum {
    KVP_OPEN_WHOLE,
    KVP_OPEN_SHORT,
    KVP_OPEN_FOLLOW,
} kvp_master_open_t;

kvp_err_t kvp_master_read_log(kvp_master_t *master, const void *bytes, size_t len) KVP_MUST_USE;
kvp_err_t kvp_master_open_log(kvp_master_t *master, kvp_master_open_t how, uint64_t *end_out) KVP_MUST_USE;

/* kvp_master_lead: this standby leads from now on, in the given term, which must be above all terms in the log (else
 * INVALID). is_level: the log has every acknowledged record of the previous leader. All sessions are closed.
 *
 * kvp_master_terms writes where each term of the log begins, in rising order, at most the last `max` terms, and
 * returns their number. The last entry is the term of the log's last record. Returns 0 if the log has no record. */
kvp_err_t kvp_master_lead(kvp_master_t *master, uint32_t term, bool is_level, uint64_t now_ns) KVP_MUST_USE;
uint32_t kvp_master_terms(const kvp_master_t *master, kvp_wire_term_t *terms_out, uint32_t max);

/* The result of kvp_master_check_log: the contents of a log up to the position `end`. */
typedef struct {
    uint64_t end; /* number of accepted bytes */
    /* why the reading ended: OK (all was read, but a last record may be incomplete), CORRUPT, VERSION or INVALID */
    kvp_err_t err;
    bool is_whole; /* flag: the log has every committed object */
    bool is_overlapping; /* flag: two objects in the log have overlapping extents, so a master would not use this log */
    uint32_t term; /* the log's last term; 0 = nothing was read */
    uint64_t records[16]; /* number of records of each kvp_jrec_kind_t */
    uint64_t objects;
    uint32_t segments, tenants;
} kvp_master_log_t;

/* kvp_master_check_log ends the reading of a log that is only checked, in place of kvp_master_open_log. Afterwards
 * the core must be destroyed: no other call is legal. */
void kvp_master_check_log(kvp_master_t *master, kvp_master_log_t *log_out);

/* Inputs of the core. conn is the shell's number of a connection: never 0, never reused. now_ns is CLOCK_BOOTTIME and
 * never falls. Each input may produce outputs. The frame is borrowed for the call. If a frame breaks the protocol,
 * the core closes its connection (an output). */
void kvp_master_on_connect(kvp_master_t *master, uint64_t conn, uint64_t now_ns);
/* kvp_master_on_identity passes the peer's identity, or the reason why it has none. Call it before the peer's Hello. A
 * session without this call may do everything. who is borrowed for the call. */
void kvp_master_on_identity(kvp_master_t *master, uint64_t conn, const kvp_identity_t *who, uint64_t now_ns);
/* kvp_master_revoke: the identity is not valid any more. The shell closes the connection next, and then the core
 * reports the client's death to all nodes. */
void kvp_master_revoke(kvp_master_t *master, uint64_t conn);
void kvp_master_on_frame(kvp_master_t *master, uint64_t conn, const kvp_frame_t *frame, uint64_t now_ns);
/* kvp_master_on_close: the connection has ended; legal also after the core had it closed */
void kvp_master_on_close(kvp_master_t *master, uint64_t conn, uint64_t now_ns);

/* kvp_master_on_tick runs the timers and a slice of background work. The shell calls it when ready.tick_ns is
 * reached, and again and again while KVP_MASTER_WORKS is set. */
void kvp_master_on_tick(kvp_master_t *master, uint64_t now_ns);

/* The pool's identity, and this master's term. */
typedef struct {
    uint8_t pool_id[16];
    uint64_t digest_seed;
    uint32_t term; /* 0 = no identity */
} kvp_master_ident_t;

void kvp_master_ident(const kvp_master_t *master, kvp_master_ident_t *ident_out);

/* The outputs of a core. The shell zeroes the struct once and passes the same struct to every call. The buffers belong
 * to the shell, which empties them before the next call; the core swaps them for its own, to copy no bytes. */
typedef struct {
    /* The outputs that are new since the last call. Each output is returned once. */
    kvp_buf_t log; /* whole log records, which the shell writes next; empty = none */
    uint64_t log_end; /* position in the log after the records in `log` */
    bool begins_base; /* flag: a new log file may begin with the records in `log` */
    uint64_t forget_below; /* records before this log position are not needed any more; UINT64_MAX = no new position */
    kvp_master_ident_t ident; /* an identity that the shell must save durably; term 0 = none */
    const char *note; /* a line for the shell's own log; valid until the next call; NULL = none */
    const kvp_master_audit_t *audit; /* a line for the shell's audit; valid until the next call; NULL = none */
    uint64_t conn; /* the connection on which `frames` are sent; 0 = none */
    kvp_buf_t frames; /* whole frames to send on `conn` */
    bool is_last; /* flag: the shell closes `conn` after it has sent `frames` */

    /* The core's state after the last input. Valid when kvp_master_ready has returned false. */
    uint64_t tick_ns; /* time of the next kvp_master_on_tick */
    uint64_t term_end; /* the shell sends no frame before the log is synced up to this position */
    uint32_t wishes; /* bits of kvp_master_wish_t */
} kvp_master_ready_t;

typedef enum {
    /* background work is left: the shell calls kvp_master_on_tick also between inputs, again and again */
    KVP_MASTER_WORKS = 1,
    KVP_MASTER_SYNCS = 2, /* an answer waits until the written part of the log is synced to disk */
    KVP_MASTER_MUTES = 4, /* the core sends no frame before its term, or the pool's identity, is durable */
    KVP_MASTER_BASES = 8, /* a base (a snapshot in the log) is being recorded: writes of the log are long now */
    /* this master leads: the log's records are its own decisions, and kvp_master_tell may be called */
    KVP_MASTER_TELLS = 16,
} kvp_master_wish_t;

/* kvp_master_ready returns the outputs in the order in which the shell must handle them: the log first, then frames.
 * The shell calls it after its inputs, before it waits, until it returns false. An answer that promises durability is
 * returned only after the KVP_DONE_* report for which it waited, so that the shell may write and sync at any time. */
bool kvp_master_ready(kvp_master_t *master, kvp_master_ready_t *ready);

/* The outputs that the shell has handled, which it reports to kvp_master_done. */
typedef enum {
    KVP_DONE_WRITTEN, /* the log up to `position` is written: it survives a crash of this process */
    /* the log up to `position` is synced: it survives a crash of this machine; not above the written position */
    KVP_DONE_SYNCED,
    /* a sync failed: log bytes before `position` may be lost. The core records a new base with all objects */
    KVP_DONE_UNSYNCED,
    KVP_DONE_FORGOTTEN, /* the log files before forget_below are removed; `bytes` = size of the files that are left */
    KVP_DONE_IDENT, /* the identity is saved durably */
    KVP_DONE_IDENT_FAILED, /* the identity could not be saved: a core with a new term sends nothing then */
    KVP_DONE_LOG_FAILS, /* the log cannot be written at present: the core answers puts and removals with RETRY_AFTER */
    /* The log cannot be written, no other master can take over, and `why` is the reason. The core answers puts and
     * removals with LOG_FAILED; the next ticks answer also the requests that wait. */
    KVP_DONE_LOG_REFUSES,
    KVP_DONE_LOG_WORKS, /* the log can be written again: ends LOG_FAILS and LOG_REFUSES */
} kvp_master_done_kind_t;

typedef struct {
    kvp_master_done_kind_t kind;
    uint64_t position, bytes;
    const kvp_master_ident_t *ident; /* borrowed for the call */
    const char *why; /* copied */
} kvp_master_done_t;

/* kvp_master_done reports to the core what the shell has done with its outputs. As an input, it may produce outputs. */
void kvp_master_done(kvp_master_t *master, const kvp_master_done_t *done, uint64_t now_ns);

/* kvp_master_snapshot begins a base: the core records all present objects in the log again, between new events.
 * ready.forget_below follows when the base is durable. Returns false if the log is not open
 * (no log, or a standby), or if a base is being recorded or not yet durable. */
bool kvp_master_snapshot(kvp_master_t *master);

/* kvp_master_tell appends the present state to `out` as log records, each with its own checksum, for a reader that
 * begins in the middle of the log. Legal while ready.wishes has KVP_MASTER_TELLS. The caller checks out->err. With
 * *cursor 0 it appends all tenants first, then the committed objects among `most` records of the index from *cursor
 * on; it advances *cursor. Returns true if there is more. A reader that calls it until false, and handles the log's
 * new records in between in order, knows the whole state. */
bool kvp_master_tell(kvp_master_t *master, uint32_t *cursor, uint32_t most, kvp_buf_t *out);

/* kvp_master_stats copies the master's statistics (base/conf.h). */
void kvp_master_stats(const kvp_master_t *master, kvp_master_stats_t *stats_out);

/* A node's memory or its SSD tier, and a tenant, for metrics with labels. */
typedef struct {
    char name[KVP_NAME_MAX + 1]; /* name of the node */
    bool is_tier, is_up;
    bool is_drained; /* flag: a drain is complete: no object is left in the segment */
    uint32_t state; /* kvp_segment_state_t */
    uint64_t size_bytes, used_bytes, objects;
    uint64_t evictions; /* number of evictions from this memory, since this master began to lead */
} kvp_master_node_t;

/* number of memory sizes for which a curve is shown: 1/4, 1/2, 1, 2, 4 and 8 times the pool's size */
#define KVP_CURVE_TIMES 6u
typedef struct {
    char name[KVP_TENANT_NAME_MAX + 1]; /* "" = all tenants together */
    uint64_t objects, used_bytes;
    uint64_t chunk_bytes; /* bytes of the tenant's chunks, which no other tenant can use */
    kvp_askcount_t minute, hour;
    bool has_curve;
    double curve[KVP_CURVE_TIMES]; /* estimated hit ratios */
} kvp_master_tenant_t;

/* kvp_master_nodes writes at most max segments and returns their number. kvp_master_tenants writes the whole pool, then
 * the 32 tenants with the most bytes, then the sum of all others, if any, as the tenant "other"; at most
 * KVP_MASTER_TENANTS together. A tenant of this name is in the sum, because two series of a metric may not be equal. */
#define KVP_MASTER_TENANTS 34u
uint32_t kvp_master_nodes(const kvp_master_t *master, kvp_master_node_t *nodes_out, uint32_t max);
uint32_t kvp_master_tenants(const kvp_master_t *master, kvp_master_tenant_t tenants_out[KVP_MASTER_TENANTS]);

/* kvp_master_asked returns the counts of the last minute for the pool. */
kvp_askcount_t kvp_master_asked(const kvp_master_t *master);

/* The question where the object of a key is, or why the pool does not have it. */
typedef struct {
    const char *tenant; /* name of the tenant; "" or "default" = the default tenant */
    const void *key;
    size_t key_len; /* 1 to KVP_KEY_MAX */
    bool all_tenants; /* flag: the answer has every tenant that has the object, or a trace of it */
} kvp_master_question_t;

/* kvp_master_explain appends the answer to `out`, as a packed ExplainReply, as of the last input. Returns false if the
 * tenant is unknown. The caller checks out->err. */
bool kvp_master_explain(const kvp_master_t *master, const kvp_master_question_t *question, kvp_buf_t *out);

/* kvp_master_note_times passes two statistics that need a clock, for Status: step_longest_ns and answer_longest_ns. */
void kvp_master_note_times(kvp_master_t *master, uint64_t step_longest_ns, uint64_t answer_longest_ns);

/* kvp_master_note_masters replaces the list of masters in Status (at most KVP_MASTERS_MAX), and the address of the
 * leader that a standby sends with a refusal; "" = unknown. NULL leaves the list or the address as it is. Both are
 * copied. */
void kvp_master_note_masters(kvp_master_t *master, const char *leader, const kvp_master_peer_t *masters, uint32_t n);

/* kvp_master_note_etcd passes the time since the last successful request to etcd (0 = etcd answers) and the text of the
 * last failure, for the list of problems. The text is copied, cut to 199 bytes. */
void kvp_master_note_etcd(kvp_master_t *master, uint64_t silent_ns, const char *trouble);

/* The reasons why the pool is degraded; n 0 = it is not degraded. */
#define KVP_MASTER_WRONG_MAX 64u
typedef struct {
    struct {
        const char *code; /* a stable name; static */
        char text[448];
    } lines[KVP_MASTER_WRONG_MAX];
    uint32_t n;
} kvp_master_wrong_t;

/* kvp_master_wrong writes the reasons why the pool is degraded, as of the last input. */
void kvp_master_wrong(const kvp_master_t *master, kvp_master_wrong_t *wrong_out);

#endif
