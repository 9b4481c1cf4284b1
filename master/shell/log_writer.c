/* SPDX-License-Identifier: Apache-2.0
 * Writes the log: see log_writer.h.
 *
 * Design notes.
 * - Chunks of records are written in order, one at a time: between two turns of the loop, or by the thread pool. A
 *   chunk that begins a base goes into a new file.
 * - While `write` is in progress the first chunk and `file` belong to the thread that writes.
 * - The loop never waits for the disk: if a write between turns takes long, the loop continues in another thread
 *   (master/shell/relay.h).
 * - A failed write is tried again each second; until a write succeeds the core refuses new puts and removals. */
#include "master/shell/log_writer.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT_ONCE_BYTES (64u << 10)
#define SLOW_NS KVP_NS_PER_MS /* after a write between turns that took longer, the disk counts as busy */
#define SLOW_FOR_NS KVP_NS_PER_S
#define RETRY_NS KVP_NS_PER_S
/* with keeps_recent, the last written bytes of the log stay in memory: at least RECENT_BYTES, at most twice as many */
#define RECENT_BYTES (1u << 20)
/* a write or a sync that takes longer counts as failed: the disk does not answer */
#define STALL_NS (2 * KVP_NS_PER_S)
#define SYNC_NS (50 * KVP_NS_PER_MS)
#define CHUNK_BYTES (1u << 20) /* a chunk of this size is full: further records begin a new chunk */
#define BASE_BYTES (64ull << 20)
/* a base is requested when the files have grown to this multiple of their size after the last base */
#define BASE_TIMES 3u

typedef struct kvp_log_chunk {
    kvp_list_t link; /* link in writer->chunks */
    kvp_buf_t bytes;
    uint64_t end; /* position of the core after these records */
    bool begins_file;
} chunk_t;

static bool
is_busy(const kvp_log_job_t *job)
{
    return job->state != KVP_LOG_JOB_NONE;
}

static chunk_t *
first_chunk(const kvp_log_writer_t *w)
{
    return kvp_list_is_empty(&w->chunks) ? NULL : kvp_list_first(&w->chunks, chunk_t, link);
}

/* Returns an empty chunk. One freed chunk is kept with its memory, so that a small write costs no allocation: the
 * core gets the memory for the next records. */
static chunk_t *
new_chunk(kvp_log_writer_t *w)
{
    chunk_t *c = w->spare;

    w->spare = NULL;
    if (c == NULL) c = calloc(1, sizeof *c);
    if (c == NULL) kvp_panic("out of memory: the log");
    kvp_list_init(&c->link);
    return c;
}

static void
free_chunk(kvp_log_writer_t *w, chunk_t *c)
{
    kvp_list_del(&c->link);
    kvp_buf_reset(&c->bytes);
    if (w->spare == NULL && c->bytes.cap <= AT_ONCE_BYTES) {
        w->spare = c;
        return;
    }
    kvp_buf_fini(&c->bytes);
    free(c);
}

/* Frees all chunks except the chunk that is being written. */
static void
drop_chunks(kvp_log_writer_t *w)
{
    chunk_t *busy = is_busy(&w->write) ? first_chunk(w) : NULL;

    kvp_list_foreach_safe (pos, tmp, &w->chunks) {
        chunk_t *c = kvp_list_entry(pos, chunk_t, link);

        if (c != busy) free_chunk(w, c);
    }
}

void
kvp_log_writer_init(kvp_log_writer_t *w, uint64_t base_bytes, kvp_log_sync_t sync)
{
    *w = (kvp_log_writer_t){.base_bytes = base_bytes == 0 ? BASE_BYTES : base_bytes};
    w->base_limit = w->base_bytes;
    w->hold_written = w->hold_synced = UINT64_MAX;
    kvp_log_file_init(&w->file);
    w->file.is_never_synced = sync == KVP_LOG_SYNC_NONE;
    w->sync_due_ns = UINT64_MAX;
    kvp_list_init(&w->chunks);
    kvp_buf_init(&w->recent, 0);
}

/* ---- opening */
static kvp_err_t
restore_core(void *arg, const void *bytes, size_t len)
{
    return kvp_master_read_log(arg, bytes, len);
}

static kvp_err_t
log_refusal(const char *dir, kvp_err_t err)
{
    const char *why =
        err == KVP_INVALID
            ? "it belongs to another pool; remove the directory to begin with an empty log, or give another --data-dir"
        : err == KVP_LIMIT ? "no term is left"
                           : "it is of a later version of kvpool-master";

    kvp_log_error("master", "cannot use the log: %s dir=%s/log", why, dir);
    return err;
}

kvp_err_t
kvp_log_writer_open(kvp_log_writer_t *w, const kvp_ident_t *ident, kvp_master_t *master)
{
    kvp_master_open_t how;
    uint64_t had, kept;
    kvp_err_t err = kvp_log_file_open(&w->file, ident->dir_fd, ident->dir, ident->is_new);

    if (err == KVP_OK) err = kvp_log_file_read(&w->file, restore_core, master, &had);
    if (err != KVP_OK) return err;
    how = !w->file.may_lack_end && had == w->file.found_bytes ? KVP_OPEN_WHOLE : KVP_OPEN_SHORT;
    err = kvp_master_open_log(master, how, &kept);
    if (err != KVP_OK) return log_refusal(ident->dir, err);
    if (kept < had)
        kvp_log_warn("master", "the log was torn and is cut, and nodes are asked bytes=%llu cut=%llu dir=%s/log",
                     (unsigned long long)had, (unsigned long long)(had - kept), ident->dir);
    return kvp_log_writer_attach(w, master, kept);
}

kvp_err_t
kvp_log_writer_open_nowhere(kvp_log_writer_t *w, kvp_master_t *master)
{
    uint64_t kept;
    kvp_err_t err = kvp_master_open_log(master, KVP_OPEN_WHOLE, &kept);

    w->is_kept_nowhere = w->file.is_never_synced = true;
    return err == KVP_OK ? kvp_log_writer_attach(w, master, kept) : err;
}

kvp_err_t
kvp_log_writer_list(kvp_log_writer_t *w, const kvp_ident_t *ident)
{
    return kvp_log_file_open(&w->file, ident->dir_fd, ident->dir, ident->is_new);
}

kvp_err_t
kvp_log_writer_attach(kvp_log_writer_t *w, kvp_master_t *master, uint64_t kept)
{
    if (w->file.files > 0) {
        kvp_err_t err = kvp_log_file_cut(&w->file, kept);
        if (err != KVP_OK) return err;
    }
    w->master = master;
    w->origin = w->file.end - kept;
    w->written = w->told = w->synced = w->told_synced = kept;
    w->forget_below = UINT64_MAX;
    w->term_end = w->wishes = 0;
    kvp_buf_reset(&w->recent);
    w->hold_written = w->hold_synced = UINT64_MAX;
    w->write.has_failed = w->sync.has_failed = w->has_failed = false;
    w->base_limit = kvp_max_u64(w->base_bytes, BASE_TIMES * kvp_log_file_bytes(&w->file));
    return KVP_OK;
}

void
kvp_log_writer_detach(kvp_log_writer_t *w)
{
    w->master = NULL;
    drop_chunks(w);
    w->sync_due_ns = UINT64_MAX;
}

bool
kvp_log_writer_is_idle(const kvp_log_writer_t *w)
{
    return !is_busy(&w->write) && !is_busy(&w->sync) && !is_busy(&w->removal);
}

uint64_t
kvp_log_writer_end(const kvp_log_writer_t *w)
{
    return w->origin + w->written;
}

const uint8_t *
kvp_log_writer_recent(const kvp_log_writer_t *w, uint64_t at, size_t *n_out)
{
    const uint64_t left = kvp_log_writer_end(w) - at;

    *n_out = left <= w->recent.len ? left : 0;
    return *n_out == 0 ? NULL : w->recent.data + w->recent.len - left;
}

static void
keep_recent(kvp_log_writer_t *w, const chunk_t *c)
{
    if (!w->keeps_recent) return;
    kvp_buf_append(&w->recent, c->bytes.data, c->bytes.len);
    if (w->recent.err != KVP_OK) kvp_panic("out of memory: the log");
    if (w->recent.len > 2 * RECENT_BYTES) kvp_buf_consume(&w->recent, w->recent.len - RECENT_BYTES);
}

bool
kvp_log_writer_may_read(const kvp_log_writer_t *w)
{
    return !is_busy(&w->write) || !first_chunk(w)->begins_file;
}

void
kvp_log_writer_hold(kvp_log_writer_t *w, uint64_t written, uint64_t synced)
{
    w->hold_written = written == UINT64_MAX ? written : written - kvp_min_u64(written, w->origin);
    w->hold_synced = synced == UINT64_MAX ? synced : synced - kvp_min_u64(synced, w->origin);
}

void
kvp_log_writer_start(kvp_log_writer_t *w, uv_loop_t *uv, void (*moved)(void *arg), void *arg)
{
    w->uv = uv;
    w->moved = moved;
    w->arg = arg;
    w->write.work.data = w->sync.work.data = w->removal.work.data = w;
}

void
kvp_log_writer_tap(kvp_log_writer_t *w, void (*tap)(void *arg, const void *records, size_t len), void *arg)
{
    w->tap = tap;
    w->tap_arg = arg;
}

/* ---- writing one chunk */
/* Writes the chunk to the file, in any thread. Returns false after an error, with errno. */
static bool
write_chunk(kvp_log_writer_t *w, const chunk_t *c)
{
    if (w->is_kept_nowhere) return true;
    if (c->begins_file && kvp_log_file_turn(&w->file) != KVP_OK) return false;
    return kvp_log_file_write(&w->file, c->bytes.data, c->bytes.len) == KVP_OK;
}

static void
report_done(kvp_log_writer_t *w, kvp_master_done_t done)
{
    if (w->master != NULL) kvp_master_done(w->master, &done, kvp_boot_ns());
}

static void
fail_log(kvp_log_writer_t *w, const char *why)
{
    w->stats.log_failed = 1;
    snprintf(w->failure, sizeof w->failure, "the master's log cannot be written: %s: %s/log", why, w->file.dir);
    if (w->master == NULL) return;
    if (!w->hands_over) report_done(w, (kvp_master_done_t){.kind = KVP_DONE_LOG_REFUSES, .why = w->failure});
    if (w->has_failed) return;
    w->has_failed = true;
    report_done(w, (kvp_master_done_t){.kind = KVP_DONE_LOG_FAILS});
    kvp_log_error("master", "the log cannot be written: %s; puts and removals are refused, reads go on dir=%s/log", why,
                  w->file.dir);
}

static void
note_failure(kvp_log_writer_t *w, int error, uint64_t now_ns)
{
    w->retry_ns = now_ns + RETRY_NS;
    fail_log(w, strerror(error));
}

/* Returns the time at which the running write or sync counts as hanging; UINT64_MAX = none is running. */
static uint64_t
stalls_ns(const kvp_log_writer_t *w)
{
    return kvp_min_u64(is_busy(&w->write) ? w->write.began_ns + STALL_NS : UINT64_MAX,
                       is_busy(&w->sync) ? w->sync.began_ns + STALL_NS : UINT64_MAX);
}

static void
note_success(kvp_log_writer_t *w, uint64_t now_ns)
{
    if (w->write.has_failed || w->sync.has_failed || now_ns >= stalls_ns(w)) return;
    if (w->has_failed) kvp_log_warn("master", "the log is written again dir=%s/log", w->file.dir);
    if (w->has_failed) report_done(w, (kvp_master_done_t){.kind = KVP_DONE_LOG_WORKS});
    w->has_failed = false;
    w->stats.log_failed = 0;
}

static void
end_chunk(kvp_log_writer_t *w, chunk_t *c, uint64_t now_ns)
{
    w->write.has_failed = w->write.error != 0;
    if (w->write.has_failed) {
        note_failure(w, w->write.error, now_ns);
        return;
    }
    note_success(w, now_ns);
    w->written = c->end;
    keep_recent(w, c);
    if (w->sync_due_ns == UINT64_MAX && !w->file.is_never_synced) w->sync_due_ns = now_ns + SYNC_NS;
    w->stats.log_writes++;
    w->stats.log_written_bytes += c->bytes.len;
    free_chunk(w, c);
}

void
kvp_log_writer_write(void *arg)
{
    kvp_log_writer_t *w = arg;

    w->write.error = write_chunk(w, first_chunk(w)) ? 0 : errno;
}

void
kvp_log_writer_end_write(void *arg)
{
    kvp_log_writer_t *w = arg;
    const uint64_t now_ns = kvp_boot_ns(), took_ns = now_ns - w->write.began_ns;
    const bool is_between = w->write.state == KVP_LOG_JOB_BETWEEN;

    w->write.state = KVP_LOG_JOB_NONE;
    if (is_between) w->stats.log_write_longest_ns = kvp_max_u64(w->stats.log_write_longest_ns, took_ns);
    if (is_between && took_ns > SLOW_NS) w->slow_until_ns = now_ns + SLOW_FOR_NS;
    end_chunk(w, first_chunk(w), now_ns);
    if (w->master == NULL) drop_chunks(w);
    w->moved(w->arg);
}

static void
on_write(uv_work_t *work)
{
    kvp_log_writer_write(work->data);
}

static void
on_write_end(uv_work_t *work, int status)
{
    (void)status;
    kvp_log_writer_end_write(work->data);
}

/* Returns true if a write of the log may block for milliseconds at present. */
static bool
is_disk_busy(const kvp_log_writer_t *w, uint64_t now_ns)
{
    return now_ns < w->slow_until_ns || is_busy(&w->removal) || (w->wishes & KVP_MASTER_BASES) != 0;
}

/* Returns the first chunk, if it can be written now; else NULL. */
static chunk_t *
due_chunk(const kvp_log_writer_t *w, uint64_t now_ns)
{
    chunk_t *c = is_busy(&w->write) || now_ns < w->retry_ns ? NULL : first_chunk(w);

    /* a chunk that begins a file closes the previous file, which must not happen while that file is being synced */
    return c != NULL && c->begins_file && is_busy(&w->sync) ? NULL : c;
}

static bool
is_short(const kvp_log_writer_t *w, const chunk_t *c, uint64_t now_ns)
{
    return !c->begins_file && c->bytes.len <= AT_ONCE_BYTES && !is_disk_busy(w, now_ns);
}

static void
begin_job(kvp_log_job_t *job, kvp_log_job_state_t state, uint64_t now_ns)
{
    job->state = state;
    job->began_ns = now_ns;
}

/* Gives the first chunk to the thread pool, unless it is short: a short chunk is written at the end of the turn. */
static void
write_some(kvp_log_writer_t *w, uint64_t now_ns)
{
    const chunk_t *c = due_chunk(w, now_ns);

    if (c == NULL || is_short(w, c, now_ns)) return;
    begin_job(&w->write, KVP_LOG_JOB_POOL, now_ns);
    w->stats.log_writes_handed_over++;
    (void)uv_queue_work(w->uv, &w->write.work, on_write, on_write_end);
}

bool
kvp_log_writer_wants_write(const kvp_log_writer_t *w, uint64_t now_ns)
{
    const chunk_t *c = w->master == NULL ? NULL : due_chunk(w, now_ns);

    return c != NULL && is_short(w, c, now_ns);
}

bool
kvp_log_writer_begin_write(kvp_log_writer_t *w, uint64_t now_ns)
{
    if (!kvp_log_writer_wants_write(w, now_ns)) return false;
    begin_job(&w->write, KVP_LOG_JOB_BETWEEN, now_ns);
    return true;
}

/* ---- syncing */
static void
on_sync(uv_work_t *work)
{
    kvp_log_writer_t *w = work->data;
    uint64_t began_ns = kvp_boot_ns();

    w->sync.error = kvp_log_file_sync(&w->file) == KVP_OK ? 0 : errno;
    w->stats.log_sync_longest_ns = kvp_max_u64(w->stats.log_sync_longest_ns, kvp_boot_ns() - began_ns);
}

/* Reports a failed sync: bytes written since the last sync may be lost, even if a later sync succeeds. */
static void
sync_failed(kvp_log_writer_t *w, uint64_t end, int error)
{
    w->sync.has_failed = true;
    note_failure(w, error, kvp_boot_ns());
    report_done(w, (kvp_master_done_t){.kind = KVP_DONE_UNSYNCED, .position = end});
}

static void
on_sync_end(uv_work_t *work, int status)
{
    kvp_log_writer_t *w = work->data;

    (void)status;
    w->sync.state = KVP_LOG_JOB_NONE;
    if (w->sync.error == 0) {
        w->stats.log_syncs++;
        w->synced = w->syncing;
        w->sync.has_failed = false;
        note_success(w, kvp_boot_ns());
    } else {
        sync_failed(w, w->syncing, w->sync.error);
    }
    w->moved(w->arg);
}

/* Begins a sync if one is due. One sync runs at a time; the next sync covers the bytes written meanwhile. */
static void
sync_some(kvp_log_writer_t *w, uint64_t now_ns)
{
    bool is_due = now_ns >= w->sync_due_ns || (w->wishes & KVP_MASTER_SYNCS) != 0;

    if (is_busy(&w->sync) || is_busy(&w->write) || w->synced == w->written || !is_due) return;
    if (w->sync.has_failed && now_ns < w->retry_ns) return;
    begin_job(&w->sync, KVP_LOG_JOB_POOL, now_ns);
    w->syncing = w->written;
    w->sync_due_ns = UINT64_MAX;
    (void)uv_queue_work(w->uv, &w->sync.work, on_sync, on_sync_end);
}

/* ---- the core's outputs */
/* Returns the chunk to which more records can be added, or NULL. */
static chunk_t *
open_chunk(kvp_log_writer_t *w)
{
    chunk_t *c = kvp_list_is_empty(&w->chunks) ? NULL : kvp_list_entry(w->chunks.prev, chunk_t, link);

    return c == NULL || (is_busy(&w->write) && c == first_chunk(w)) || c->bytes.len >= CHUNK_BYTES ? NULL : c;
}

void
kvp_log_writer_add(kvp_log_writer_t *w, kvp_master_ready_t *ready)
{
    kvp_buf_t *bytes = &ready->log;
    chunk_t *c = bytes->len == 0 || ready->begins_base ? NULL : open_chunk(w);

    if (ready->forget_below != UINT64_MAX) w->forget_below = ready->forget_below;
    if (bytes->len == 0) return;
    if (w->tap != NULL) w->tap(w->tap_arg, bytes->data, bytes->len);
    if (c == NULL) {
        c = new_chunk(w);
        kvp_list_add_tail(&w->chunks, &c->link);
        c->begins_file = ready->begins_base;
        const kvp_buf_t empty = c->bytes;
        c->bytes = *bytes;
        *bytes = empty;
    } else {
        kvp_buf_append(&c->bytes, bytes->data, bytes->len);
        if (c->bytes.err != KVP_OK) kvp_panic("out of memory: the log");
    }
    c->end = ready->log_end;
    if (bytes->cap > AT_ONCE_BYTES)
        kvp_buf_fini(bytes);
    else
        kvp_buf_reset(bytes);
}

/* Asks the core for a base if the files have grown enough. Returns true if a base has begun. */
static bool
begin_base(kvp_log_writer_t *w)
{
    if (is_busy(&w->write) || is_busy(&w->removal) || kvp_log_file_bytes(&w->file) < w->base_limit) return false;
    if (!kvp_master_snapshot(w->master)) return false; /* a base is in progress, or nodes have yet to report */
    w->stats.log_bases++;
    return true;
}

static void
on_removal(uv_work_t *work)
{
    kvp_log_writer_t *w = work->data;

    kvp_log_file_remove(&w->file, &w->gone);
}

static void
on_removal_end(uv_work_t *work, int status)
{
    kvp_log_writer_t *w = work->data;

    (void)status;
    w->removal.state = KVP_LOG_JOB_NONE;
    report_done(w, (kvp_master_done_t){.kind = KVP_DONE_FORGOTTEN, .bytes = kvp_log_file_bytes(&w->file)});
    w->moved(w->arg);
}

static void
forget_files(kvp_log_writer_t *w, uint64_t now_ns)
{
    if (is_busy(&w->write) || is_busy(&w->removal) || w->forget_below == UINT64_MAX) return;
    kvp_log_file_forget(&w->file, w->origin + w->forget_below, &w->gone);
    w->forget_below = UINT64_MAX;
    w->base_limit = kvp_max_u64(w->base_bytes, BASE_TIMES * kvp_log_file_bytes(&w->file));
    begin_job(&w->removal, KVP_LOG_JOB_POOL, now_ns);
    (void)uv_queue_work(w->uv, &w->removal.work, on_removal, on_removal_end);
}

static bool
report_positions(kvp_log_writer_t *w)
{
    const uint64_t written = kvp_min_u64(w->written, w->hold_written);
    const uint64_t synced = kvp_min_u64(kvp_min_u64(w->synced, w->hold_synced), kvp_max_u64(written, w->told));
    bool has_told = false;

    if (w->told < written) {
        w->told = written;
        report_done(w, (kvp_master_done_t){.kind = KVP_DONE_WRITTEN, .position = w->told});
        has_told = true;
    }
    if (w->told_synced < synced) {
        w->told_synced = synced;
        report_done(w, (kvp_master_done_t){.kind = KVP_DONE_SYNCED, .position = w->told_synced});
        has_told = true;
    }
    return has_told;
}

bool
kvp_log_writer_run(kvp_log_writer_t *w, const kvp_master_ready_t *ready, uint64_t now_ns)
{
    if (w->master == NULL) return false;
    w->wishes = ready->wishes;
    w->term_end = ready->term_end;
    forget_files(w, now_ns); /* call forget_files first: it sets base_limit, which begin_base checks */
    if (begin_base(w)) return true;
    write_some(w, now_ns);
    if (now_ns >= stalls_ns(w)) fail_log(w, "its disk does not answer");
    if (!is_busy(&w->write) && w->file.has_lost) {
        w->file.has_lost = false;
        sync_failed(w, w->file.from[w->file.files - 1] - w->origin, EIO);
    }
    if (report_positions(w)) return true;
    sync_some(w, now_ns);
    return false;
}

uint64_t
kvp_log_writer_due(const kvp_log_writer_t *w)
{
    uint64_t write_ns = is_busy(&w->write) || kvp_list_is_empty(&w->chunks) ? UINT64_MAX : w->retry_ns;
    uint64_t sync_ns = is_busy(&w->sync) || w->synced == w->written ? UINT64_MAX : w->sync_due_ns;

    if (w->master == NULL) return UINT64_MAX;
    if (w->sync.has_failed && !is_busy(&w->sync)) sync_ns = w->retry_ns;
    return kvp_min_u64(w->has_failed ? UINT64_MAX : stalls_ns(w), kvp_min_u64(write_ns, sync_ns));
}

void
kvp_log_writer_fini(kvp_log_writer_t *w)
{
    kvp_master_ready_t last = {.conn = 0};
    bool is_ok = true;

    if (is_busy(&w->write) && w->write.error == 0)
        free_chunk(w, first_chunk(w)); /* the write has succeeded, but kvp_log_writer_end_write was not called */
    w->write.state = KVP_LOG_JOB_NONE;
    while (w->master != NULL && kvp_master_ready(w->master, &last)) {
        kvp_log_writer_add(w, &last);
        kvp_buf_reset(&last.frames);
    }
    kvp_buf_fini(&last.log);
    kvp_buf_fini(&last.frames);
    for (chunk_t *c; (c = first_chunk(w)) != NULL; free_chunk(w, c)) {
        is_ok = is_ok && write_chunk(w, c);
        if (is_ok) w->written = c->end;
    }
    is_ok = is_ok && (w->is_kept_nowhere || kvp_log_file_sync(&w->file) == KVP_OK);
    if (!is_ok) kvp_log_error("master", "the end of the log could not be written: %m dir=%s/log", w->file.dir);
    kvp_log_file_fini(&w->file);
    kvp_buf_fini(&w->recent);
    if (w->spare != NULL) kvp_buf_fini(&w->spare->bytes);
    free(w->spare);
    w->spare = NULL;
    w->master = NULL;
}

void
kvp_log_writer_stats(const kvp_log_writer_t *w, kvp_log_stats_t *stats_out)
{
    *stats_out = w->stats;
    stats_out->log_bytes = kvp_log_file_bytes(&w->file);
    stats_out->log_waiting_bytes = 0;
    kvp_list_foreach (pos, &w->chunks)
        stats_out->log_waiting_bytes += kvp_list_entry(pos, chunk_t, link)->bytes.len;
}
