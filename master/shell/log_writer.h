/* SPDX-License-Identifier: Apache-2.0
 * Takes the log from the core to its files, in the loop's thread, and in libuv's thread pool for slow work. A few
 * bytes are written between two turns of the loop, which costs less than to pass them to another thread. For one
 * second after a slow write, and while a base (a snapshot of the state) is written or old files are removed, the pool
 * writes, because the disk is busy then. The pool also syncs: as soon as an answer waits for a sync, otherwise 50 ms
 * after the first unsynced write. A write or a sync that takes longer than 2 s counts as failed until it returns. */
#ifndef KVP_MASTER_SHELL_LOG_WRITER_H
#define KVP_MASTER_SHELL_LOG_WRITER_H

#include "common/buf.h"
#include "common/list.h"
#include "master/core/api/master.h"
#include "master/shell/ident.h"
#include "master/shell/log_file.h"

#include <uv.h>

/* Statistics of the log. X(name, help), marked as in KVP_MASTER_STATS. */
#define KVP_LOG_STATS(X)                                                                                               \
    X(log_bytes, "bytes of the log's files (gauge)")                                                                   \
    X(log_waiting_bytes, "bytes of the log not written yet (gauge)")                                                   \
    X(log_written_bytes, "written bytes of the log")                                                                   \
    X(log_writes, "writes of the log")                                                                                 \
    X(log_writes_handed_over, "of these, by another thread")                                                           \
    X(log_bases, "bases begun because the files had grown")                                                            \
    X(log_write_longest_ns, "longest write of the loop's own thread (gauge)")                                          \
    X(log_syncs, "syncs of the log")                                                                                   \
    X(log_sync_longest_ns, "longest sync of the log (gauge)")                                                          \
    X(log_failed, "1 while the log cannot be written, or synced (gauge)")

typedef struct {
#define KVP_LOG_STAT_FIELD(name, help) uint64_t name;
    KVP_LOG_STATS(KVP_LOG_STAT_FIELD)
#undef KVP_LOG_STAT_FIELD
} kvp_log_stats_t;

#define KVP_LOG_WHY_BYTES 160u

/* The state of one of the three kinds of work on the files: a write, a sync, a removal. */
typedef enum {
    KVP_LOG_JOB_NONE, /* not running */
    KVP_LOG_JOB_BETWEEN, /* kvp_log_writer_write runs between two turns of the loop */
    KVP_LOG_JOB_POOL, /* libuv's thread pool does the work */
} kvp_log_job_state_t;

typedef struct {
    kvp_log_job_state_t state;
    uv_work_t work;
    uint64_t began_ns; /* when the last work of this kind began */
    int error; /* errno of the last work, 0 = success; belongs to the working thread while the work runs */
    bool has_failed; /* flag: the last finished work failed */
} kvp_log_job_t;

typedef struct {
    kvp_log_file_t file;
    bool is_kept_nowhere; /* flag: there are no files; the records only go to `tap` */
    kvp_master_t *master; /* borrowed; NULL = not opened */
    uv_loop_t *uv; /* borrowed; NULL = not started */
    void (*moved)(void *arg);
    void *arg;
    /* receives a copy of all records; NULL = no other reader */
    void (*tap)(void *arg, const void *records, size_t len);
    void *tap_arg;
    /* files that end at or before this position of the core can be removed; UINT64_MAX = no new position */
    uint64_t forget_below;
    uint64_t origin; /* position in the files that corresponds to the core's position 0 */
    uint64_t written, told; /* positions of the core: end of the records in the files; end reported to the core */
    /* limits of the positions that are reported to the core; UINT64_MAX = no limit */
    uint64_t hold_written, hold_synced;
    uint64_t term_end; /* term_end of the core's last kvp_master_ready_t */
    uint32_t wishes; /* wishes of the core's last kvp_master_ready_t */

    kvp_list_t chunks; /* chunks of records that are not written yet */
    struct kvp_log_chunk *spare; /* a free chunk that is kept for reuse, owned; NULL = none */
    bool keeps_recent;
    kvp_buf_t recent; /* if keeps_recent: the last written bytes, up to kvp_log_writer_end */
    kvp_log_job_t write; /* the write of the first chunk */
    kvp_log_job_t sync;
    kvp_log_job_t removal; /* the removal of files that a base has replaced */
    kvp_log_gone_t gone; /* the files being removed; belongs to the pool while `removal` runs */
    /* positions of the core: end of the running sync, end of the last sync, synced end reported to the core */
    uint64_t syncing, synced, told_synced;
    uint64_t sync_due_ns; /* time at which unsynced bytes must be synced; UINT64_MAX = none */
    bool has_failed; /* flag: a write or sync has failed, and the failure was logged */
    bool hands_over; /* flag: another master can take over, so the core refuses requests only with RETRY_AFTER */
    char failure[KVP_LOG_WHY_BYTES]; /* text of the last failure of a write or sync, for people */
    uint64_t retry_ns, slow_until_ns;
    uint64_t base_bytes; /* least size of the files at which the core is asked for a base */
    uint64_t base_limit; /* size of the files at which the core is asked for the next base (snapshot) */
    kvp_log_stats_t stats;
} kvp_log_writer_t;

/* kvp_log_writer_open reads the log in ident's directory (borrowed) into the core, which opens it. Returns the errors
 * of kvp_log_file_open, VERSION, INVALID (the log belongs to another pool), and LIMIT (no term is left); logged.
 * base_bytes: least size of the files before the core is asked for a base; 0 = 64 MiB. */
void kvp_log_writer_init(kvp_log_writer_t *w, uint64_t base_bytes, kvp_log_sync_t sync);
kvp_err_t kvp_log_writer_open(kvp_log_writer_t *w, const kvp_ident_t *ident, kvp_master_t *master) KVP_MUST_USE;

/* kvp_log_writer_open_nowhere opens the writer without files, for a log with readers only (kvp_log_writer_tap). */
kvp_err_t kvp_log_writer_open_nowhere(kvp_log_writer_t *w, kvp_master_t *master) KVP_MUST_USE;

/* A master of a cluster, which may be a standby, opens its log in steps: kvp_log_writer_list finds the files,
 * kvp_log_file_pread reads them, and kvp_log_writer_attach truncates the log after the first `kept` bytes and continues
 * with the core. kvp_log_writer_detach drops unwritten bytes and the core; the next core may be attached when
 * kvp_log_writer_is_idle returns true, because no work uses the files any more. kvp_log_writer_end returns the end
 * position of the written files. kvp_log_writer_may_read returns true if the files may be read now, because no other
 * thread begins a file. kvp_log_writer_recent returns the log in memory from the position on (borrowed until the next
 * call); NULL = it is only in the files. Errors are those of kvp_log_writer_open. */
kvp_err_t kvp_log_writer_list(kvp_log_writer_t *w, const kvp_ident_t *ident) KVP_MUST_USE;
kvp_err_t kvp_log_writer_attach(kvp_log_writer_t *w, kvp_master_t *master, uint64_t kept) KVP_MUST_USE;
void kvp_log_writer_detach(kvp_log_writer_t *w);
bool kvp_log_writer_is_idle(const kvp_log_writer_t *w);
uint64_t kvp_log_writer_end(const kvp_log_writer_t *w);
bool kvp_log_writer_may_read(const kvp_log_writer_t *w);
const uint8_t *kvp_log_writer_recent(const kvp_log_writer_t *w, uint64_t at, size_t *n_out);

/* kvp_log_writer_hold limits the written and synced positions that are reported to the core, because other masters
 * must have the log first. The positions are those of the files. */
void kvp_log_writer_hold(kvp_log_writer_t *w, uint64_t written, uint64_t synced);

/* kvp_log_writer_start sets moved(arg), which the loop's thread calls whenever kvp_log_writer_run has work. */
void kvp_log_writer_start(kvp_log_writer_t *w, uv_loop_t *uv, void (*moved)(void *arg), void *arg);

/* kvp_log_writer_tap sets the callback tap, which is called with all records that kvp_log_writer_add receives, whole
 * and in order; it must not call the writer. */
void kvp_log_writer_tap(kvp_log_writer_t *w, void (*tap)(void *arg, const void *records, size_t len), void *arg);

/* kvp_log_writer_begin_write, called between two turns of the loop, returns true if a short write is due. Then the
 * caller calls kvp_log_writer_write(w), in this thread or in another one; only this call may block.
 * kvp_log_writer_end_write(w) follows in the loop's thread, and calls moved. kvp_log_writer_wants_write returns
 * whether a write is due. */
bool kvp_log_writer_wants_write(const kvp_log_writer_t *w, uint64_t now_ns);
bool kvp_log_writer_begin_write(kvp_log_writer_t *w, uint64_t now_ns);
void kvp_log_writer_write(void *arg);
void kvp_log_writer_end_write(void *arg);

/* kvp_log_writer_add takes the log's part of the core's outputs: bytes to write, which it leaves empty, and files
 * that are not needed any more. Called after each true kvp_master_ready.
 *
 * kvp_log_writer_run gives slow work to the thread pool, and reports the written and synced positions to the core.
 * `ready` is the result of the last (false) kvp_master_ready. Returns true if the core may have more output: the
 * caller takes it, and calls again. Called at the end of each callback. now_ns is kvp_boot_ns(). kvp_log_writer_due
 * returns the time of the next timed work. */
void kvp_log_writer_add(kvp_log_writer_t *w, kvp_master_ready_t *ready);
bool kvp_log_writer_run(kvp_log_writer_t *w, const kvp_master_ready_t *ready, uint64_t now_ns);
uint64_t kvp_log_writer_due(const kvp_log_writer_t *w);

/* kvp_log_writer_fini takes and writes the core's last records, and closes the files; legal on an initialised value.
 * uv_run must have returned. */
void kvp_log_writer_fini(kvp_log_writer_t *w);
void kvp_log_writer_stats(const kvp_log_writer_t *w, kvp_log_stats_t *stats_out);

#endif
