/* SPDX-License-Identifier: Apache-2.0
 * See trace.h. Lines are read one at a time into a bounded buffer, so that memory depends on the number of
 * requests, not on the file's size. */
#include "tools/replay/trace.h"

#include "common/buf.h"

#include <json-c/json.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX (1ull << 40) /* largest number of tokens of a request; also the largest timestamp, in ms */
#define JSON_DEPTH 4

typedef struct {
    FILE *file;
    size_t line_no;
    kvp_buf_t line;
    struct json_tokener *tokener;
    uint64_t *ids; /* ids of the current line; room for KVP_REQUEST_BLOCKS_MAX */
    char *why;
} reader_t;

static kvp_err_t
reject_line(const reader_t *r, const char *what)
{
    snprintf(r->why, KVP_TRACE_WHY_MAX, "line %zu: %s", r->line_no, what);
    return KVP_INVALID;
}

static bool
is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* next_line reads one line, without its newline and trailing blanks. *is_end_out: there are no more lines. */
static kvp_err_t
next_line(reader_t *r, bool *is_end_out)
{
    int c = getc_unlocked(r->file);
    *is_end_out = c == EOF;
    kvp_buf_reset(&r->line);
    r->line_no++;
    for (; c != EOF && c != '\n'; c = getc_unlocked(r->file)) {
        const char byte = (char)c;
        kvp_buf_append(&r->line, &byte, 1);
        if (r->line.err != KVP_OK) {
            kvp_ignore(reject_line(r, r->line.err == KVP_LIMIT ? "longer than a line may be" : "out of memory"),
                       "text only");
            return r->line.err;
        }
    }
    while (r->line.len > 0 && is_blank(r->line.data[r->line.len - 1]))
        r->line.len--;
    if (!ferror(r->file)) return KVP_OK;
    snprintf(r->why, KVP_TRACE_WHY_MAX, "%s", strerror(errno));
    return KVP_SYS;
}

/* number_of reads a member that must be a number of at least 0. Returns false otherwise. */
static bool
number_of(struct json_object *request, const char *name, uint64_t *value_out)
{
    struct json_object *member;
    if (!json_object_object_get_ex(request, name, &member)) return false;
    if (!json_object_is_type(member, json_type_int) && !json_object_is_type(member, json_type_double)) return false;
    const double value = json_object_get_double(member);
    if (!isfinite(value) || value < 0 || value > (double)TOKENS_MAX) return false;
    *value_out = (uint64_t)value;
    return true;
}

static kvp_err_t
ids_of(const reader_t *r, struct json_object *request, size_t *n_out)
{
    struct json_object *chain;
    if (!json_object_object_get_ex(request, "hash_ids", &chain) || !json_object_is_type(chain, json_type_array))
        return reject_line(r, "hash_ids is not a list");
    const size_t n = json_object_array_length(chain);
    if (n > KVP_REQUEST_BLOCKS_MAX) return reject_line(r, "more blocks than one request may have");
    for (size_t i = 0; i < n; i++) {
        struct json_object *id = json_object_array_get_idx(chain, i);
        if (!json_object_is_type(id, json_type_int) || json_object_get_int64(id) < 0)
            return reject_line(r, "a hash id is not a whole number of at least 0");
        r->ids[i] = json_object_get_uint64(id);
    }
    *n_out = n;
    return KVP_OK;
}

/* grow_array makes room for n more members of size bytes; *array and *cap change only on success. */
static kvp_err_t
grow_array(void **array, size_t *cap, size_t used, size_t n, size_t size)
{
    if (used + n <= *cap) return KVP_OK;
    size_t want = kvp_max_u64(used + n, *cap * 2);
    void *grown = reallocarray(*array, want, size);
    if (grown == NULL) return KVP_NOMEM;
    *array = grown;
    *cap = want;
    return KVP_OK;
}

/* add_request appends a request and copies its ids_n ids. After LIMIT or NOMEM the workload is unchanged. */
static kvp_err_t
add_request(kvp_workload_t *workload, const kvp_request_t *request, const uint64_t *ids)
{
    const size_t n = request->ids_n;
    if (n > KVP_REQUEST_BLOCKS_MAX || workload->ids_n + n > KVP_WORKLOAD_IDS_MAX) return KVP_LIMIT;
    void *requests = workload->requests, *chain = workload->ids;
    kvp_err_t err = grow_array(&requests, &workload->requests_cap, workload->requests_n, 1, sizeof(kvp_request_t));
    workload->requests = requests;
    if (err == KVP_OK) err = grow_array(&chain, &workload->ids_cap, workload->ids_n, n, sizeof(uint64_t));
    workload->ids = chain;
    if (err != KVP_OK) return err;

    kvp_request_t *to = &workload->requests[workload->requests_n++];
    *to = *request;
    to->ids_at = workload->ids_n;
    if (n > 0) memcpy(workload->ids + workload->ids_n, ids, n * sizeof(*ids));
    workload->ids_n += n;
    return KVP_OK;
}

static kvp_err_t
take_request(const reader_t *r, struct json_object *object, kvp_workload_t *workload)
{
    kvp_request_t request = {.ids_n = 0};
    if (!json_object_is_type(object, json_type_object)) return reject_line(r, "not a JSON object");
    if (!number_of(object, "timestamp", &request.timestamp_ms))
        return reject_line(r, "timestamp is missing or no number");
    if (!number_of(object, "input_length", &request.input_tokens))
        return reject_line(r, "input_length is missing or no number");
    if (!number_of(object, "output_length", &request.output_tokens))
        return reject_line(r, "output_length is missing or no number");
    kvp_err_t err = ids_of(r, object, &request.ids_n);
    if (err != KVP_OK) return err;
    err = add_request(workload, &request, r->ids);
    if (err != KVP_OK) kvp_ignore(reject_line(r, "more blocks than a trace may have, or out of memory"), "text only");
    return err;
}

static kvp_err_t
take_line(const reader_t *r, kvp_workload_t *workload)
{
    json_tokener_reset(r->tokener);
    struct json_object *object = json_tokener_parse_ex(r->tokener, (const char *)r->line.data, (int)r->line.len);
    enum json_tokener_error problem = json_tokener_get_error(r->tokener);
    /* json_tokener_continue means that more input is needed. A complete object never needs more, so the line was
     * cut. */
    if (object == NULL)
        return reject_line(r,
                           problem == json_tokener_continue ? "ends in the middle" : json_tokener_error_desc(problem));
    /* Without the strict flag the parser stops after the object, so a rest of the line is checked here. */
    kvp_err_t err = json_tokener_get_parse_end(r->tokener) < r->line.len
                        ? reject_line(r, "something follows the object")
                        : take_request(r, object, workload);
    json_object_put(object);
    return err;
}

static void
reader_fini(reader_t *r)
{
    if (r->file != NULL) fclose(r->file);
    if (r->tokener != NULL) json_tokener_free(r->tokener);
    kvp_buf_fini(&r->line);
    free(r->ids);
}

kvp_err_t
kvp_trace_load(const char *path, size_t limit, kvp_workload_t *workload, char why[KVP_TRACE_WHY_MAX])
{
    reader_t r = {.why = why};
    kvp_err_t err = KVP_NOMEM;
    snprintf(why, KVP_TRACE_WHY_MAX, "out of memory");
    kvp_buf_init(&r.line, KVP_TRACE_LINE_MAX);
    r.ids = calloc(KVP_REQUEST_BLOCKS_MAX, sizeof(*r.ids));
    r.tokener = json_tokener_new_ex(JSON_DEPTH);
    if (r.ids == NULL || r.tokener == NULL) goto out;
    json_tokener_set_flags(r.tokener, JSON_TOKENER_STRICT | JSON_TOKENER_ALLOW_TRAILING_CHARS);
    r.file = fopen(path, "re");
    if (r.file == NULL) {
        snprintf(why, KVP_TRACE_WHY_MAX, "%s", strerror(errno));
        err = KVP_SYS;
        goto out;
    }
    err = KVP_OK;
    for (size_t n = 0; n < limit && err == KVP_OK;) {
        bool is_end;
        err = next_line(&r, &is_end);
        if (err != KVP_OK || is_end) break;
        if (r.line.len == 0) continue;
        err = take_line(&r, workload);
        n++;
    }
out:
    reader_fini(&r);
    return err;
}

/* ---- functions on a loaded workload ---- */

void
kvp_workload_fini(kvp_workload_t *workload)
{
    free(workload->requests);
    free(workload->ids);
    memset(workload, 0, sizeof(*workload));
}

static int
by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

kvp_err_t
kvp_workload_distinct(const kvp_workload_t *workload, size_t *distinct_out)
{
    const size_t n = workload->ids_n;
    size_t distinct = 0;
    uint64_t *sorted = malloc((n > 0 ? n : 1) * sizeof(*sorted));
    if (sorted == NULL) return KVP_NOMEM;
    if (n > 0) memcpy(sorted, workload->ids, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_value);
    for (size_t i = 0; i < n; i++)
        distinct += i == 0 || sorted[i] != sorted[i - 1];
    free(sorted);
    *distinct_out = distinct;
    return KVP_OK;
}
