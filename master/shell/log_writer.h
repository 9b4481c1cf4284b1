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

/* One of the three kinds of work on the files: a write, a sync, a removal. */
typedef enum {
    KVP_LOG_JOB_NONE, /* not under way */
    KVP_LOG_JOB_BETWEEN, /* by kvp_log_writer_write, between two turns of the loop */
    KVP_LOG_JOB_POOL, /* by libuv's pool */
} kvp_log_job_state_t;

typedef struct {
    kvp_log_job_state_t state;
    uv_work_t work;
    uint64_t began_ns; /* of the last one */
    int error; /* errno of the last one, 0 = it succeeded; of the working thread while it is under way */
    bool has_failed; /* the last one that ended */
} kvp_log_job_t;

typedef struct {
    kvp_log_file_t file;
    bool is_kept_nowhere; /* no files: the log is only for other readers */
    kvp_master_t *master; /* borrowed; NULL = not opened */
    uv_loop_t *uv; /* borrowed; NULL = not started */
    void (*moved)(void *arg);
    void *arg;
    void (*tap)(void *arg, const void *records, size_t len); /* NULL = no other reader */
    void *tap_arg;
    uint64_t forget_below; /* files before this position of the core may go; UINT64_MAX = none */
    uint64_t origin; /* position of the files at which the core's 0 is */
    uint64_t written, told; /* positions of the core: in the files, and as reported to the core */
    uint64_t hold_written, hold_synced; /* limits of the positions reported to the core; UINT64_MAX = none */
    uint64_t term_end; /* as the core's last kvp_master_ready_t has them: the position, */
    uint32_t wishes; /* and the wishes */

    kvp_list_t chunks; /* of bytes not written yet */
    struct kvp_log_chunk *spare; /* owned; NULL = none */
    bool keeps_recent;
    kvp_buf_t recent; /* where keeps_recent: what was written last, up to kvp_log_writer_end */
    kvp_log_job_t write; /* of the first chunk */
    kvp_log_job_t sync;
    kvp_log_job_t removal; /* of files that a base has replaced */
    kvp_log_gone_t gone; /* while `removal` is under way the pool's */
    uint64_t syncing, synced, told_synced; /* positions of the core */
    uint64_t sync_due_ns; /* what is written and not synced is to be by then */
    bool has_failed; /* a write or sync has failed, and the failure was logged */
    bool hands_over; /* another master can take over, so the core refuses nothing for good */
    char failure[KVP_LOG_WHY_BYTES]; /* the last failure of either, for people */
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

/* kvp_log_writer_tap has tap(arg) called with what kvp_log_writer_add is given, whole records in
 * their order; it must not call back. */
void kvp_log_writer_tap(kvp_log_writer_t *w, void (*tap)(void *arg, const void *records, size_t len), void *arg);

/* kvp_log_writer_begin_write, between two turns of the loop: true = a short write is due. Then the
 * caller calls kvp_log_writer_write(w), in this thread or in another one; only this call may block.
 * kvp_log_writer_end_write(w) follows on the loop's thread, and calls moved.
 * kvp_log_writer_wants_write returns whether a write is due. */
bool kvp_log_writer_wants_write(const kvp_log_writer_t *w, uint64_t now_ns);
bool kvp_log_writer_begin_write(kvp_log_writer_t *w, uint64_t now_ns);
void kvp_log_writer_write(void *arg);
void kvp_log_writer_end_write(void *arg);

/* kvp_log_writer_add takes the log's part of the core's outputs: bytes to write, which it leaves
 * empty, and files that may go. For each true kvp_master_ready.
 *
 * kvp_log_writer_run gives slow work to the thread pool, and reports the written and synced positions
 * to the core. `ready` is of the false kvp_master_ready before. True if the core may have more
 * output: the caller takes it, and calls again. At the end of each callback. now_ns is
 * kvp_boot_ns(). kvp_log_writer_due: time of the next work by the clock. */
void kvp_log_writer_add(kvp_log_writer_t *w, kvp_master_ready_t *ready);
bool kvp_log_writer_run(kvp_log_writer_t *w, const kvp_master_ready_t *ready, uint64_t now_ns);
uint64_t kvp_log_writer_due(const kvp_log_writer_t *w);

/* kvp_log_writer_fini takes and writes the core's last records, and closes the files; legal on an
 * initialised value. uv_run has returned by then. */
void kvp_log_writer_fini(kvp_log_writer_t *w);
void kvp_log_writer_stats(const kvp_log_writer_t *w, kvp_log_stats_t *stats_out);

#endif
