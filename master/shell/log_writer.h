/* SPDX-License-Identifier: Apache-2.0
 * The log on its way from the core to its files, on the loop's thread, with libuv's pool for what
 * takes long. A few bytes are written between two turns of the loop, which costs less than to hand
 * them to another thread; where a write was slow, the pool does it for the next second, and while a
 * base is written or its predecessors are removed, because the disk is busy then. The pool syncs:
 * as soon as an answer waits for it, and else 50 ms after what was written first. A write or a sync
 * that takes longer than 2 s counts as failed until it returns. */
#ifndef KVP_MASTER_SHELL_LOG_WRITER_H
#define KVP_MASTER_SHELL_LOG_WRITER_H

#include "common/buf.h"
#include "common/list.h"
#include "master/core/api/master.h"
#include "master/shell/ident.h"
#include "master/shell/log_file.h"

#include <uv.h>

/* Figures. X(name, help), marked as in KVP_MASTER_STATS. */
#define KVP_LOG_STATS(X)                                                                                               \
    X(log_bytes, "bytes of the log's files (gauge)")                                                                   \
    X(log_waiting_bytes, "bytes of the log not written yet (gauge)")                                                   \
    X(log_written_bytes, "written bytes of the log")                                                                   \
    X(log_writes, "writes of the log")                                                                                 \
    X(log_writes_handed_over, "of these, by another thread")                                                           \
    X(log_bases, "bases begun because the files had grown")                                                            \
    X(log_write_longest_ns, "longest write of the loop's own thread, ns (gauge)")                                      \
    X(log_syncs, "syncs of the log")                                                                                   \
    X(log_sync_longest_ns, "longest sync of the log, ns (gauge)")                                                      \
    X(log_failed, "1 while the log cannot be written, or synced (gauge)")

typedef struct {
#define KVP_LOG_STAT_FIELD(name, help) uint64_t name;
    KVP_LOG_STATS(KVP_LOG_STAT_FIELD)
#undef KVP_LOG_STAT_FIELD
} kvp_log_stats_t;

#define KVP_LOG_WHY_BYTES 160u

typedef struct {
    kvp_log_file_t file;
    bool is_kept_nowhere; /* no files: the log is only for other readers */
    kvp_master_t *master; /* borrowed; NULL = not opened */
    uv_loop_t *uv; /* borrowed; NULL = not started */
    void (*moved)(void *arg);
    void *arg;
    void (*tap)(void *arg, const void *records, size_t len); /* NULL = no other reader */
    void *tap_arg;
    uint64_t origin; /* position of the files at which the core's 0 is */
    uint64_t written, told; /* positions of the core: in the files, and as reported to the core */
    uint64_t hold_written, hold_synced; /* limits of the positions reported to the core; UINT64_MAX = none */

    kvp_list_t chunks; /* of bytes not written yet */
    struct kvp_log_chunk *spare; /* owned; NULL = none */
    bool keeps_recent;
    kvp_buf_t recent; /* where keeps_recent: what was written last, up to kvp_log_writer_end */
    uv_work_t write; /* of the first chunk */
    bool is_writing;
    bool is_between_turns; /* by kvp_log_writer_write, and not by the pool */
    uint64_t write_began_ns, sync_began_ns; /* of the last of each */
    bool is_write_ok; /* how that ended */
    uv_work_t sync;
    bool is_syncing;
    bool is_sync_ok; /* how that ended */
    uv_work_t removal; /* of files that a base has replaced */
    kvp_log_gone_t gone; /* while is_removing the pool's */
    bool is_removing;
    uint64_t syncing, synced, told_synced; /* positions of the core */
    uint64_t sync_due_ns; /* what is written and not synced is to be by then */
    bool has_write_failed, has_sync_failed; /* the last of each */
    bool has_failed; /* a write or sync has failed, and the failure was logged */
    bool hands_over; /* another master can take over, so the core refuses nothing for good */
    char failure[KVP_LOG_WHY_BYTES]; /* the last failure of either, for people */
    int write_error, sync_error; /* errno of the last failed one of each; of the working thread until it is over */
    uint64_t retry_ns, slow_until_ns;
    uint64_t base_bytes; /* least of files at which the core is asked for a base, */
    uint64_t base_limit; /* and now */
    kvp_log_stats_t stats;
} kvp_log_writer_t;

/* kvp_log_writer_open reads the log in ident's directory (borrowed) into the core, which opens it.
 * Errors are kvp_log_file_open's, VERSION and INVALID (of another pool), and LIMIT; logged.
 * base_bytes: of files, before the core is asked for a base; 0 = 64 MiB. */
void kvp_log_writer_init(kvp_log_writer_t *w, uint64_t base_bytes, kvp_log_sync_t sync);
kvp_err_t kvp_log_writer_open(kvp_log_writer_t *w, const kvp_ident_t *ident, kvp_master_t *master) KVP_MUST_USE;

/* kvp_log_writer_open_nowhere: the same without a directory, for a log with other readers only
 * (kvp_log_writer_tap). */
kvp_err_t kvp_log_writer_open_nowhere(kvp_log_writer_t *w, kvp_master_t *master) KVP_MUST_USE;

/* A master that may follow another opens its log in steps: kvp_log_writer_list finds the files,
 * kvp_log_file_pread reads them, and kvp_log_writer_attach cuts the log after the first `kept`
 * bytes and continues with the core. kvp_log_writer_detach drops unwritten bytes, and the core:
 * kvp_log_writer_is_idle returns when no write uses the files, and the next core may be attached.
 * kvp_log_writer_end is the end position of the written files; kvp_log_writer_may_read: the files
 * may be read now, because no other thread begins a file. kvp_log_writer_recent returns the log in
 * memory from the position on (borrowed until the next call); NULL = it is in the files only.
 * Errors are kvp_log_writer_open's. */
kvp_err_t kvp_log_writer_list(kvp_log_writer_t *w, const kvp_ident_t *ident) KVP_MUST_USE;
kvp_err_t kvp_log_writer_attach(kvp_log_writer_t *w, kvp_master_t *master, uint64_t kept) KVP_MUST_USE;
void kvp_log_writer_detach(kvp_log_writer_t *w);
bool kvp_log_writer_is_idle(const kvp_log_writer_t *w);
uint64_t kvp_log_writer_end(const kvp_log_writer_t *w);
bool kvp_log_writer_may_read(const kvp_log_writer_t *w);
const uint8_t *kvp_log_writer_recent(const kvp_log_writer_t *w, uint64_t at, size_t *n_out);

/* kvp_log_writer_hold limits the written and synced positions that the core learns, because other
 * masters must have the log first. Positions are those of the files. */
void kvp_log_writer_hold(kvp_log_writer_t *w, uint64_t written, uint64_t synced);

/* kvp_log_writer_start has moved(arg) called on the loop's thread whenever kvp_log_writer_run has something to do. */
void kvp_log_writer_start(kvp_log_writer_t *w, uv_loop_t *uv, void (*moved)(void *arg), void *arg);

/* kvp_log_writer_tap has tap(arg) called with what kvp_log_writer_run takes from the core, whole
 * records in their order; it must not call back. */
void kvp_log_writer_tap(kvp_log_writer_t *w, void (*tap)(void *arg, const void *records, size_t len), void *arg);

/* kvp_log_writer_begin_write, between two turns of the loop: true = a short write is due. Then the
 * caller calls kvp_log_writer_write(w), in this thread or in another one; only this call may block.
 * kvp_log_writer_end_write(w) follows on the loop's thread, and calls moved.
 * kvp_log_writer_wants_write returns whether a write is due. */
bool kvp_log_writer_wants_write(const kvp_log_writer_t *w, uint64_t now_ns);
bool kvp_log_writer_begin_write(kvp_log_writer_t *w, uint64_t now_ns);
void kvp_log_writer_write(void *arg);
void kvp_log_writer_end_write(void *arg);

/* kvp_log_writer_run takes the core's records, gives slow work to the thread pool, and reports the
 * written and synced positions to the core. True if it did: then the core may have more output.
 * Call until it returns false, at the end of each callback. now_ns is kvp_boot_ns().
 * kvp_log_writer_due: time of the next work by the clock. */
bool kvp_log_writer_run(kvp_log_writer_t *w, uint64_t now_ns);
uint64_t kvp_log_writer_due(const kvp_log_writer_t *w);

/* kvp_log_writer_fini writes the rest and closes the files; legal on an initialised value. uv_run
 * has returned by then. */
void kvp_log_writer_fini(kvp_log_writer_t *w);
void kvp_log_writer_stats(const kvp_log_writer_t *w, kvp_log_stats_t *stats_out);

#endif
