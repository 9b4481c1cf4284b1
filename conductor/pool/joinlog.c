/* SPDX-License-Identifier: Apache-2.0
 * See joinlog.h. A record is [length, kind, sum, body]. Joins and namespaces are written once each and named by their
 * numbers.
 *
 * Design notes.
 * - Records are encoded on the loop's thread. One job at a time writes records and reads the file in chunks, on the
 *   disk's thread.
 * - A pass reads the whole file: as a load, which passes the positions to new joins, or as a rewrite, which encodes the
 *   positions to keep into a new file that replaces the old one.
 * - During a rewrite new records go to the old file, which the pass reads to its end. So the new file misses none. */
#include "conductor/pool/joinlog.h"

#include "common/buf.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define BODY_MAX 8192u
#define CHUNK (1u << 20)
#define REWRITE_BYTES (64u << 20) /* a file below this size is not rewritten for its growth */
#define REWRITE_TIMES 3u /* the file is rewritten when it has grown by this factor since the last rewrite */
#define JOINS_MAX 4096u /* limit of the joins in a file; at the limit it is rewritten without unregistered joins */
/* limit of bytes waiting for the disk; above it, records are dropped until a rewrite */
#define WAITING_MAX (64u << 20)
#define RETRY_FLUSHES 100u /* number of kvp_joinlog_flush calls from an error to the next rewrite */
#define OPEN_MS 10000u

typedef enum { R_SPACE = 1, R_JOIN = 2, R_PLACE = 3 } kind_t;

typedef struct {
    uint32_t len, kind;
    uint64_t sum; /* checksum of the body, seeded with the kind */
} head_t;

typedef struct {
    kvp_joinlog_place_t place;
    uint32_t join, zero;
} place_t;

/* A join in a file; its index is its number in the file. */
typedef struct {
    uint32_t ranks, space;
    char texts[1024]; /* backend and prefix, each with its terminator */
} known_t;

/* An encoder of records for one file. */
typedef struct {
    /* for each namespace number: serial of the namespace that was written to the file under it; 0 = none */
    uint64_t spaces_told[KVP_SPACES_MAX];
    known_t *joins;
    uint32_t joins_n;
    uint64_t bytes;
    kvp_buf_t out; /* encoded records that wait for the disk */
} writer_t;

typedef struct {
    /* maps the file's namespace numbers to this process's; KVP_SPACE_NONE = not in the file */
    uint32_t spaces[KVP_SPACES_MAX];
    known_t *joins;
    uint32_t joins_n;
    kvp_buf_t rest; /* the beginning of a record whose end has not been read yet */
    uint64_t at, good; /* position of the next read; number of bytes in complete records */
    writer_t *to; /* encoder of the new file, in a rewrite; NULL = a load */
    bool is_over;
} pass_t;

/* Kinds of jobs for the disk's thread. Every job first appends new records to the file. */
typedef enum {
    JOB_APPEND, /* a job that only appends records to the file */
    JOB_READ, /* a job that appends records and reads a chunk of the file */
    JOB_BEGIN, /* the first job of a rewrite: appends records, opens the new file, and reads the first chunk of the old
                  one */
    JOB_REPLACE /* the last job of a rewrite: appends records and replaces the file by the new one */
} job_kind_t;

struct kvp_joinlog {
    char path[4200], temp[4200];
    kvp_disk_t *disk;
    kvp_spaces_t *spaces;
    kvp_joinlog_ops_t ops;
    writer_t *live; /* encoder of the current file; NULL = new records are dropped until a rewrite has succeeded */
    pass_t *pass;
    uint32_t rest_flushes; /* number of flushes until the next rewrite may begin */
    uint64_t kept_bytes; /* length of the file after its last rewrite */
    bool wants_load, is_crowded; /* flags: the file must be loaded; a rewrite leaves out unregistered joins */
    /* The state of the log's disk job. While is_busy is set, the fields below belong to the disk's thread. */
    bool is_busy;
    job_kind_t job_kind;
    kvp_disk_job_t job;
    int fd, new_fd;
    kvp_buf_t out, new_out;
    uint8_t *chunk;
    size_t chunk_len;
};

/* ---- encoding and writing records */
static void
write_record(writer_t *w, kind_t kind, const void *body, size_t len)
{
    const head_t head = {(uint32_t)len, kind, XXH3_64bits_withSeed(body, len, kind)};

    kvp_buf_append(&w->out, &head, sizeof head);
    kvp_buf_append(&w->out, body, len);
    if (w->out.err != KVP_OK) kvp_panic("out of memory: records of joins");
    w->bytes += sizeof head + len;
}

static void
add_text(kvp_buf_t *body, const char *text)
{
    kvp_buf_append(body, text, strlen(text) + 1);
}

static void
tell_space(const kvp_joinlog_t *log, writer_t *w, uint32_t number)
{
    const kvp_namespace_t *s = kvp_spaces_get(log->spaces, number);
    kvp_buf_t body;

    if (w->spaces_told[number] == kvp_spaces_serial(log->spaces, number)) return;
    w->spaces_told[number] = kvp_spaces_serial(log->spaces, number);
    kvp_buf_init(&body, 0);
    kvp_buf_append(&body, &number, sizeof number);
    kvp_buf_append(&body, &s->block_size, sizeof s->block_size);
    add_text(&body, s->model);
    add_text(&body, s->tenant);
    add_text(&body, s->salt);
    add_text(&body, s->lora);
    if (body.err != KVP_OK) kvp_panic("out of memory: a namespace");
    write_record(w, R_SPACE, body.data, body.len);
    kvp_buf_fini(&body);
}

static const char *
prefix_of(const known_t *k)
{
    return k->texts + strlen(k->texts) + 1;
}

/* Returns the number of the join in the file, and writes the join if it is new; JOINS_MAX = too many joins. */
static uint32_t
tell_join(const kvp_joinlog_t *log, writer_t *w, const kvp_joinlog_join_t *j)
{
    kvp_buf_t body;
    known_t *more, *k;

    for (uint32_t i = 0; i < w->joins_n; i++) {
        k = &w->joins[i];
        if (k->space == j->space && k->ranks == j->ranks && strcmp(k->texts, j->backend) == 0 &&
            strcmp(prefix_of(k), j->prefix) == 0)
            return i;
    }
    if (w->joins_n == JOINS_MAX) return JOINS_MAX;
    more = realloc(w->joins, (w->joins_n + 1) * sizeof *more);
    if (more == NULL) kvp_panic("out of memory: joins");
    w->joins = more;
    k = &more[w->joins_n];
    k->ranks = j->ranks;
    k->space = j->space;
    kvp_spaces_hold(log->spaces, j->space);
    const int len = snprintf(k->texts, sizeof k->texts, "%s%c%s", j->backend, '\0', j->prefix);
    tell_space(log, w, j->space);
    kvp_buf_init(&body, 0);
    kvp_buf_append(&body, &j->ranks, sizeof j->ranks);
    kvp_buf_append(&body, &j->space, sizeof j->space);
    kvp_buf_append(&body, k->texts, (size_t)len + 1);
    if (body.err != KVP_OK) kvp_panic("out of memory: a join");
    write_record(w, R_JOIN, body.data, body.len);
    kvp_buf_fini(&body);
    return w->joins_n++;
}

static void
add_place(const kvp_joinlog_t *log, writer_t *w, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place)
{
    const place_t record = {*place, tell_join(log, w, join), 0};

    if (record.join == JOINS_MAX) return; /* the position is dropped: the file has too many joins until a rewrite */
    tell_space(log, w, place->space);
    write_record(w, R_PLACE, &record, sizeof record);
}

static void
free_writer(const kvp_joinlog_t *log, writer_t *w)
{
    if (w == NULL) return;
    for (uint32_t i = 0; i < w->joins_n; i++)
        kvp_spaces_release(log->spaces, w->joins[i].space);
    free(w->joins);
    kvp_buf_fini(&w->out);
    free(w);
}

static void
drop_live(kvp_joinlog_t *log)
{
    free_writer(log, log->live);
    log->live = NULL;
}

void
kvp_joinlog_add(kvp_joinlog_t *log, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place)
{
    if (log->live == NULL) return;
    add_place(log, log->live, join, place);
    if (log->live->out.len <= WAITING_MAX) return;
    kvp_log_error("conductor", "too many places of the pool's blocks wait for the disk, and are dropped file=%s",
                  log->path);
    drop_live(log);
}

/* ---- reading and decoding records */
/* Returns the next zero-terminated text before `end`; NULL = none. */
static const char *
next_text(const char **at, const char *end)
{
    const char *text = *at, *stop = text < end ? memchr(text, '\0', (size_t)(end - text)) : NULL;

    if (stop == NULL) return NULL;
    *at = stop + 1;
    return text;
}

static bool
read_space(pass_t *r, const kvp_joinlog_t *log, const char *body, const char *end)
{
    kvp_namespace_t space;
    uint32_t number;

    if (end - body < 8) return false;
    memcpy(&number, body, sizeof number);
    memcpy(&space.block_size, body + 4, sizeof space.block_size);
    body += 8;
    space.model = next_text(&body, end);
    space.tenant = next_text(&body, end);
    space.salt = next_text(&body, end);
    space.lora = next_text(&body, end);
    if (number >= KVP_SPACES_MAX || space.model == NULL || space.tenant == NULL || space.salt == NULL ||
        space.lora == NULL)
        return false;
    if (r->spaces[number] != KVP_SPACE_NONE) kvp_spaces_release(log->spaces, r->spaces[number]);
    r->spaces[number] = kvp_spaces_name(log->spaces, &space);
    if (r->spaces[number] != KVP_SPACE_NONE) kvp_spaces_hold(log->spaces, r->spaces[number]);
    return r->spaces[number] != KVP_SPACE_NONE;
}

static bool
read_join(pass_t *r, const kvp_joinlog_t *log, const char *body, const char *end)
{
    const char *at = body + 8;
    known_t *more = realloc(r->joins, (r->joins_n + 1) * sizeof *more), *k;

    if (more == NULL) return false;
    r->joins = more;
    k = &more[r->joins_n];
    if (end - body < 8 || (size_t)(end - at) > sizeof k->texts) return false;
    memcpy(&k->ranks, body, sizeof k->ranks);
    memcpy(&k->space, body + 4, sizeof k->space);
    memcpy(k->texts, at, (size_t)(end - at));
    if (next_text(&at, end) == NULL || next_text(&at, end) == NULL || k->space >= KVP_SPACES_MAX) return false;
    k->space = r->spaces[k->space];
    if (k->space == KVP_SPACE_NONE) return false;
    kvp_spaces_hold(log->spaces, k->space);
    r->joins_n++;
    return true;
}

static bool
read_place(const kvp_joinlog_t *log, const pass_t *r, const char *body, const char *end)
{
    kvp_joinlog_join_t join;
    const known_t *k;
    place_t record;

    if ((size_t)(end - body) != sizeof record) return false;
    memcpy(&record, body, sizeof record);
    if (record.join >= r->joins_n || record.place.space >= KVP_SPACES_MAX) return false;
    record.place.space = r->spaces[record.place.space];
    if (record.place.space == KVP_SPACE_NONE) return false;
    k = &r->joins[record.join];
    join = (kvp_joinlog_join_t){k->texts, prefix_of(k), k->ranks, k->space};
    if (r->to == NULL)
        log->ops.load(log->ops.arg, &join, &record.place);
    else if (log->ops.keep(log->ops.arg, &join, &record.place))
        add_place(log, r->to, &join, &record.place);
    return true;
}

/* Decodes and handles the complete records in pass->rest. Returns false at a malformed record. */
static bool
read_records(const kvp_joinlog_t *log, pass_t *r)
{
    size_t at = 0;
    head_t head;
    bool is_good = true;

    while (is_good && r->rest.len - at >= sizeof head) {
        const char *body = (const char *)r->rest.data + at + sizeof head;

        memcpy(&head, body - sizeof head, sizeof head);
        is_good = head.len <= BODY_MAX;
        if (is_good && r->rest.len - at - sizeof head < head.len) break;
        is_good = is_good && XXH3_64bits_withSeed(body, head.len, head.kind) == head.sum;
        if (is_good && head.kind == R_SPACE) is_good = read_space(r, log, body, body + head.len);
        if (is_good && head.kind == R_JOIN) is_good = read_join(r, log, body, body + head.len);
        if (is_good && head.kind == R_PLACE) is_good = read_place(log, r, body, body + head.len);
        if (is_good) at += sizeof head + head.len;
    }
    kvp_buf_consume(&r->rest, at);
    r->good += at;
    return is_good;
}

static void
read_chunk(kvp_joinlog_t *log)
{
    pass_t *r = log->pass;
    bool is_good;

    kvp_buf_append(&r->rest, log->chunk, log->chunk_len);
    if (r->rest.err != KVP_OK) kvp_panic("out of memory: records of joins");
    r->at += log->chunk_len;
    is_good = read_records(log, r);
    /* The pass is over at the end of the file, unless new records wait to be written. */
    r->is_over = !is_good || (log->chunk_len == 0 && (log->live == NULL || log->live->out.len == 0));
    if (r->is_over && (!is_good || r->rest.len > 0))
        kvp_log_warn("conductor", "the file of joins is cut after %llu bytes file=%s", (unsigned long long)r->good,
                     log->path);
}

/* ---- passes over the file */
static void
begin_pass(kvp_joinlog_t *log, bool is_rewrite)
{
    pass_t *r = calloc(1, sizeof *r);

    if (r != NULL && is_rewrite) r->to = calloc(1, sizeof *r->to);
    if (r == NULL || (is_rewrite && r->to == NULL)) kvp_panic("out of memory: the file of joins");
    memset(r->spaces, 0xff, sizeof r->spaces);
    log->pass = r;
    if (is_rewrite) {
        log->job_kind = JOB_BEGIN;
        return;
    }
    log->wants_load = false;
    log->ops.begin(log->ops.arg);
}

static void
end_pass(kvp_joinlog_t *log, bool is_whole)
{
    pass_t *r = log->pass;

    if (r == NULL) return;
    log->pass = NULL;
    for (uint32_t i = 0; i < KVP_SPACES_MAX; i++)
        if (r->spaces[i] != KVP_SPACE_NONE) kvp_spaces_release(log->spaces, r->spaces[i]);
    for (uint32_t i = 0; i < r->joins_n; i++)
        kvp_spaces_release(log->spaces, r->joins[i].space);
    if (r->to == NULL) {
        log->wants_load |= !is_whole;
        log->ops.end(log->ops.arg, is_whole);
    }
    free_writer(log, r->to);
    free(r->joins);
    kvp_buf_fini(&r->rest);
    free(r);
}

/* ---- jobs of the disk's thread */
static bool
write_all(int fd, const kvp_buf_t *buf)
{
    for (size_t at = 0; at < buf->len;) {
        const ssize_t n = write(fd, buf->data + at, buf->len - at);

        if (n < 0 && errno != EINTR) return false;
        if (n > 0) at += (size_t)n;
    }
    return true;
}

static int
run_job(kvp_disk_job_t *job)
{
    kvp_joinlog_t *log = kvp_container_of(job, kvp_joinlog_t, job);

    if (log->fd < 0) log->fd = open(log->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log->job_kind == JOB_BEGIN) {
        if (log->new_fd >= 0) close(log->new_fd);
        log->new_fd = open(log->temp, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
        if (log->new_fd < 0) return errno;
    }
    if (log->fd < 0) return errno;
    if (!write_all(log->fd, &log->out) || !write_all(log->new_fd, &log->new_out)) return errno;
    if (log->job_kind == JOB_REPLACE) {
        if (rename(log->temp, log->path) != 0) return errno;
        close(log->fd);
        log->fd = log->new_fd;
        log->new_fd = -1;
    }
    if (log->job_kind != JOB_READ && log->job_kind != JOB_BEGIN) return 0;
    const ssize_t n = pread(log->fd, log->chunk, CHUNK, (off_t)log->pass->at);
    log->chunk_len = n < 0 ? 0 : (size_t)n;
    return n < 0 ? errno : 0;
}

/* Submits the next job of the pass or an append, if there is work and no job is in progress; or ends a load. */
static void
step_pass(kvp_joinlog_t *log)
{
    pass_t *r = log->pass;

    if (log->is_busy) return;
    if (r != NULL && r->is_over && r->to == NULL) {
        end_pass(log, true);
        return;
    }
    if (log->live != NULL) kvp_buf_swap(&log->out, &log->live->out);
    if (r != NULL && r->to != NULL) kvp_buf_swap(&log->new_out, &r->to->out);
    if (log->job_kind != JOB_BEGIN) log->job_kind = r == NULL ? JOB_APPEND : r->is_over ? JOB_REPLACE : JOB_READ;
    if (log->job_kind == JOB_REPLACE) { /* from now on new records go to the new file */
        drop_live(log);
        log->live = r->to;
        r->to = NULL;
    }
    log->is_busy = log->out.len > 0 || r != NULL;
    if (log->is_busy) kvp_disk_submit(log->disk, &log->job);
}

static void
on_done(kvp_disk_job_t *job, int error)
{
    kvp_joinlog_t *log = kvp_container_of(job, kvp_joinlog_t, job);
    const job_kind_t kind = log->job_kind;

    log->is_busy = false;
    log->job_kind = JOB_APPEND;
    kvp_buf_reset(&log->out);
    kvp_buf_reset(&log->new_out);
    if (error != 0) { /* the file may end within a record, so nothing is appended until a rewrite */
        drop_live(log);
        end_pass(log, false);
        log->rest_flushes = RETRY_FLUSHES;
        return;
    }
    if (kind == JOB_READ || kind == JOB_BEGIN) read_chunk(log);
    if (kind == JOB_REPLACE) {
        log->kept_bytes = log->live == NULL ? 0 : log->live->bytes;
        end_pass(log, true);
    }
    if (log->pass != NULL) step_pass(log);
}

void
kvp_joinlog_load(kvp_joinlog_t *log)
{
    log->wants_load = true;
}

void
kvp_joinlog_flush(kvp_joinlog_t *log)
{
    const writer_t *live = log->live;

    if (log->rest_flushes > 0) log->rest_flushes--;
    if (log->is_busy) return;
    if (log->pass == NULL) {
        log->is_crowded = live != NULL && live->joins_n >= JOINS_MAX;
        if (live == NULL
                ? log->rest_flushes == 0
                : log->is_crowded || (live->bytes > REWRITE_BYTES && live->bytes / REWRITE_TIMES > log->kept_bytes))
            begin_pass(log, true);
        else if (live != NULL && log->wants_load)
            begin_pass(log, false);
    }
    step_pass(log);
}

bool
kvp_joinlog_is_crowded(const kvp_joinlog_t *log)
{
    return log->is_crowded;
}

kvp_joinlog_t *
kvp_joinlog_open(kvp_disk_t *disk, const char *dir, kvp_spaces_t *spaces, const kvp_joinlog_ops_t *ops)
{
    kvp_joinlog_t *log = calloc(1, sizeof *log);

    if (log == NULL) kvp_panic("out of memory: joins");
    log->chunk = malloc(CHUNK);
    if (log->chunk == NULL) kvp_panic("out of memory: joins");
    log->disk = disk;
    log->spaces = spaces;
    log->ops = *ops;
    log->fd = log->new_fd = -1;
    log->job = (kvp_disk_job_t){.file = KVP_DISK_JOINS, .run = run_job, .done = on_done};
    snprintf(log->path, sizeof log->path, "%s/joins", dir);
    snprintf(log->temp, sizeof log->temp, "%s/joins.new", dir);
    kvp_joinlog_flush(log);
    if (!kvp_disk_finish(disk, OPEN_MS))
        kvp_log_error("conductor", "the data directory does not answer file=%s", log->path);
    if (!log->is_busy && log->live != NULL) return log;
    kvp_joinlog_close(log);
    return NULL;
}

void
kvp_joinlog_close(kvp_joinlog_t *log)
{
    if (log == NULL || log->is_busy) return;
    end_pass(log, false);
    drop_live(log);
    if (log->fd >= 0) close(log->fd);
    if (log->new_fd >= 0) close(log->new_fd);
    kvp_buf_fini(&log->out);
    kvp_buf_fini(&log->new_out);
    free(log->chunk);
    free(log);
}
