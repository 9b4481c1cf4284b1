/* SPDX-License-Identifier: Apache-2.0
 * See joinlog.h. Records are [length, kind, sum, body]; joins and namespaces are told once each, and named by their numbers.
 */
#include "conductor/pool/joinlog.h"

#include "common/buf.h"
#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define BODY_MAX 8192u
#define ANEW_BYTES (64u << 20) /* less is not written anew, */
#define ANEW_TIMES 3u /* nor what has not grown so much */
#define JOINS_MAX 4096u /* then the file is written anew without joins that no registration names */

typedef enum { R_SPACE = 1, R_JOIN = 2, R_PLACE = 3 } kind_t;

typedef struct {
    uint32_t len, kind;
    uint64_t sum; /* of the body, with the kind */
} head_t;

typedef struct {
    kvp_joinlog_place_t place;
    uint32_t join, zero;
} place_t;

/* In the order in which the file tells them. */
typedef struct {
    kvp_joinlog_join_t join;
    char texts[1024];
} known_t;

struct kvp_joinlog {
    char path[4200], temp[4200];
    FILE *file;
    kvp_spaces_t *spaces;
    bool has_failed;
    uint64_t
        spaces_told[KVP_SPACES_MAX]; /* by number: the serial of the namespace that the file has under it; 0 = none */
    known_t *joins;
    uint32_t joins_n;
    uint64_t bytes, kept_bytes; /* of the file; when it was written anew */
    bool is_crowded; /* it had JOINS_MAX joins when it was written anew last */
};

/* ---- writing */
static void
write_record(kvp_joinlog_t *log, kind_t kind, const void *body, size_t len)
{
    const head_t head = {(uint32_t)len, kind, XXH3_64bits_withSeed(body, len, kind)};

    if (log->has_failed) return;
    log->bytes += sizeof head + len;
    if (fwrite(&head, sizeof head, 1, log->file) == 1 && fwrite(body, len, 1, log->file) == 1) return;
    log->has_failed = true;
    kvp_log_error("conductor", "what was learnt of the pool's blocks is not kept any more: %m file=%s", log->path);
}

static void
add_text(kvp_buf_t *body, const char *text)
{
    kvp_buf_append(body, text, strlen(text) + 1);
}

static void
tell_space(kvp_joinlog_t *log, uint32_t number)
{
    const kvp_space_t *s = kvp_spaces_get(log->spaces, number);
    kvp_buf_t body;

    if (log->spaces_told[number] == kvp_spaces_serial(log->spaces, number)) return;
    log->spaces_told[number] = kvp_spaces_serial(log->spaces, number);
    kvp_buf_init(&body, 0);
    kvp_buf_append(&body, &number, sizeof number);
    kvp_buf_append(&body, &s->block_size, sizeof s->block_size);
    add_text(&body, s->model);
    add_text(&body, s->tenant);
    add_text(&body, s->salt);
    add_text(&body, s->lora);
    if (body.err != KVP_OK) kvp_panic("out of memory: a namespace");
    write_record(log, R_SPACE, body.data, body.len);
    kvp_buf_fini(&body);
}

/* Returns its number in the file; JOINS_MAX = there is no room for it. */
static uint32_t
tell_join(kvp_joinlog_t *log, const kvp_joinlog_join_t *j)
{
    kvp_buf_t body;
    known_t *more, *k;

    for (uint32_t i = 0; i < log->joins_n; i++) {
        const kvp_joinlog_join_t *known = &log->joins[i].join;

        if (known->space == j->space && known->ranks == j->ranks && strcmp(known->prefix, j->prefix) == 0 &&
            strcmp(known->backend, j->backend) == 0)
            return i;
    }
    if (log->joins_n == JOINS_MAX) return JOINS_MAX;
    more = realloc(log->joins, (log->joins_n + 1) * sizeof *more);
    if (more == NULL) kvp_panic("out of memory: joins");
    for (uint32_t i = 0; i < log->joins_n; i++) { /* they have moved */
        more[i].join.backend = more[i].texts;
        more[i].join.prefix = more[i].texts + strlen(more[i].texts) + 1;
    }
    log->joins = more;
    k = &more[log->joins_n];
    k->join = *j;
    kvp_spaces_hold(log->spaces, j->space);
    const int len = snprintf(k->texts, sizeof k->texts, "%s%c%s", j->backend, '\0', j->prefix);
    k->join.backend = k->texts;
    k->join.prefix = k->texts + strlen(k->texts) + 1;
    tell_space(log, j->space);
    kvp_buf_init(&body, 0);
    kvp_buf_append(&body, &j->ranks, sizeof j->ranks);
    kvp_buf_append(&body, &j->space, sizeof j->space);
    kvp_buf_append(&body, k->texts, (size_t)len + 1);
    if (body.err != KVP_OK) kvp_panic("out of memory: a join");
    write_record(log, R_JOIN, body.data, body.len);
    kvp_buf_fini(&body);
    return log->joins_n++;
}

void
kvp_joinlog_add(kvp_joinlog_t *log, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place)
{
    const place_t record = {*place, tell_join(log, join), 0};

    if (record.join == JOINS_MAX) return; /* until it is written anew */
    tell_space(log, place->space);
    write_record(log, R_PLACE, &record, sizeof record);
}

/* ---- reading */
typedef struct {
    uint32_t spaces[KVP_SPACES_MAX]; /* the file's number -> ours; KVP_SPACE_NONE = it was not told */
    known_t *joins;
    uint32_t joins_n;
    kvp_joinlog_fn fn;
    void *arg;
    uint64_t good; /* bytes of whole records */
} reader_t;

/* The next text of what lies up to end; NULL = there is none. */
static const char *
next_text(const char **at, const char *end)
{
    const char *text = *at, *stop = text < end ? memchr(text, '\0', (size_t)(end - text)) : NULL;

    if (stop == NULL) return NULL;
    *at = stop + 1;
    return text;
}

static bool
read_space(reader_t *r, kvp_joinlog_t *log, const char *body, const char *end)
{
    kvp_space_t space;
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
read_join(reader_t *r, const kvp_joinlog_t *log, const char *body, const char *end)
{
    const char *at = body + 8;
    known_t *more = realloc(r->joins, (r->joins_n + 1) * sizeof *more), *k;

    if (more == NULL) return false;
    r->joins = more;
    k = &more[r->joins_n];
    if (end - body < 8 || (size_t)(end - at) > sizeof k->texts) return false;
    memcpy(&k->join.ranks, body, sizeof k->join.ranks);
    memcpy(&k->join.space, body + 4, sizeof k->join.space);
    memcpy(k->texts, at, (size_t)(end - at));
    if (next_text(&at, end) == NULL || next_text(&at, end) == NULL || k->join.space >= KVP_SPACES_MAX) return false;
    k->join.space = r->spaces[k->join.space];
    if (k->join.space == KVP_SPACE_NONE) return false;
    kvp_spaces_hold(log->spaces, k->join.space);
    r->joins_n++;
    return true;
}

static bool
read_place(const reader_t *r, const char *body, const char *end)
{
    kvp_joinlog_join_t join;
    place_t record;

    if ((size_t)(end - body) != sizeof record) return false;
    memcpy(&record, body, sizeof record);
    if (record.join >= r->joins_n || record.place.space >= KVP_SPACES_MAX) return false;
    record.place.space = r->spaces[record.place.space];
    if (record.place.space == KVP_SPACE_NONE) return false;
    join = r->joins[record.join].join;
    join.backend = r->joins[record.join].texts;
    join.prefix = join.backend + strlen(join.backend) + 1;
    r->fn(r->arg, &join, &record.place);
    return true;
}

/* Up to the end, or to what is none. Its body is not that of a reader beside it: reading a place may have another join read. */
static void
read_file(reader_t *r, kvp_joinlog_t *log, FILE *file)
{
    char *body = malloc(BODY_MAX);
    head_t head;
    bool is_good = body != NULL;

    while (is_good && fread(&head, sizeof head, 1, file) == 1) {
        is_good = head.len <= BODY_MAX && fread(body, head.len, 1, file) == 1 &&
                  XXH3_64bits_withSeed(body, head.len, head.kind) == head.sum;
        if (is_good && head.kind == R_SPACE) is_good = read_space(r, log, body, body + head.len);
        if (is_good && head.kind == R_JOIN) is_good = read_join(r, log, body, body + head.len);
        if (is_good && head.kind == R_PLACE) is_good = read_place(r, body, body + head.len);
        if (is_good) r->good += sizeof head + head.len;
    }
    if (!is_good)
        kvp_log_warn("conductor", "the file of joins is cut behind %llu bytes file=%s", (unsigned long long)r->good,
                     log->path);
    free(body);
}

/* Returns the bytes that are good. */
static uint64_t
read_all(kvp_joinlog_t *log, kvp_joinlog_fn fn, void *arg)
{
    reader_t *r = calloc(1, sizeof *r);
    FILE *file = fopen(log->path, "re");
    uint64_t good = 0;

    if (r == NULL) kvp_panic("out of memory: joins");
    memset(r->spaces, 0xff, sizeof r->spaces);
    r->fn = fn;
    r->arg = arg;
    if (file != NULL) {
        read_file(r, log, file);
        fclose(file);
        good = r->good;
    }
    for (uint32_t i = 0; i < KVP_SPACES_MAX; i++)
        if (r->spaces[i] != KVP_SPACE_NONE) kvp_spaces_release(log->spaces, r->spaces[i]);
    for (uint32_t i = 0; i < r->joins_n; i++)
        kvp_spaces_release(log->spaces, r->joins[i].join.space);
    free(r->joins);
    free(r);
    return good;
}

void
kvp_joinlog_each(kvp_joinlog_t *log, kvp_joinlog_fn fn, void *arg)
{
    if (!log->has_failed && fflush(log->file) == 0) (void)read_all(log, fn, arg);
}

/* ---- anew */
static void
forget_joins(kvp_joinlog_t *log)
{
    for (uint32_t i = 0; i < log->joins_n; i++)
        kvp_spaces_release(log->spaces, log->joins[i].join.space);
    log->joins_n = 0;
}

typedef struct {
    kvp_joinlog_t *log;
    kvp_joinlog_keep_fn keep;
    void *arg;
} keeping_t;

static void
keep_place(void *arg, const kvp_joinlog_join_t *join, const kvp_joinlog_place_t *place)
{
    const keeping_t *k = arg;

    if (k->keep == NULL || k->keep(k->arg, join, place)) kvp_joinlog_add(k->log, join, place);
}

/* From the file that is there into another one, which takes its place. */
static bool
write_anew(kvp_joinlog_t *log, kvp_joinlog_keep_fn keep, void *arg)
{
    if (log->file != NULL) fclose(log->file);
    log->file = fopen(log->temp, "we");
    log->bytes = 0;
    forget_joins(log);
    log->has_failed = log->file == NULL;
    memset(log->spaces_told, 0, sizeof log->spaces_told);
    (void)read_all(log, keep_place, &(keeping_t){log, keep, arg});
    if (!log->has_failed && fflush(log->file) == 0 && rename(log->temp, log->path) == 0) {
        log->kept_bytes = log->bytes;
        return true;
    }
    log->has_failed = true;
    kvp_log_error("conductor", "cannot keep what is learnt of the pool's blocks: %m file=%s", log->path);
    return false;
}

void
kvp_joinlog_flush(kvp_joinlog_t *log, kvp_joinlog_keep_fn keep, void *arg)
{
    if (log->has_failed) return;
    if (fflush(log->file) != 0) {
        log->has_failed = true;
        kvp_log_error("conductor", "what was learnt of the pool's blocks is not kept any more: %m file=%s", log->path);
    } else if (log->bytes > ANEW_BYTES && log->bytes / ANEW_TIMES > log->kept_bytes) {
        (void)write_anew(log, keep, arg);
    } else if (log->joins_n >= JOINS_MAX) {
        log->is_crowded = true;
        (void)write_anew(log, keep, arg);
        log->is_crowded = false;
    }
}

bool
kvp_joinlog_is_crowded(const kvp_joinlog_t *log)
{
    return log->is_crowded;
}

kvp_joinlog_t *
kvp_joinlog_open(const char *dir, kvp_spaces_t *spaces)
{
    kvp_joinlog_t *log = calloc(1, sizeof *log);

    if (log == NULL) kvp_panic("out of memory: joins");
    log->spaces = spaces;
    snprintf(log->path, sizeof log->path, "%s/joins", dir);
    snprintf(log->temp, sizeof log->temp, "%s/joins.new", dir);
    if (write_anew(log, NULL, NULL)) return log;
    kvp_joinlog_close(log);
    return NULL;
}

void
kvp_joinlog_close(kvp_joinlog_t *log)
{
    if (log == NULL) return;
    if (log->file != NULL) fclose(log->file);
    forget_joins(log);
    free(log->joins);
    free(log);
}
