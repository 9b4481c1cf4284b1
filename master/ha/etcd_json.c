/* SPDX-License-Identifier: Apache-2.0
 * Design notes. json-c allocates hundreds of bytes for a value that takes two bytes of text, so values are counted
 * before json-c parses an answer. An absent field is zero, because protobuf's JSON leaves zeroes out; a field of a
 * wrong type makes the answer PROTO. */
#include "master/ha/etcd_json.h"

#include "common/jsonw.h"
#include "common/parse.h"
#include "common/utf8.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX 16
#define VALUES_MAX 4096u
#define BASE64_BYTES(n) (((n) + 2) / 3 * 4)

enum { /* status codes of gRPC */
       CANCELED = 1,
       UNKNOWN = 2,
       INVALID_ARGUMENT = 3,
       DEADLINE_EXCEEDED = 4,
       NOT_FOUND = 5,
       PERMISSION_DENIED = 7,
       RESOURCE_EXHAUSTED = 8,
       FAILED_PRECONDITION = 9,
       INTERNAL = 13,
       UNAVAILABLE = 14,
       UNAUTHENTICATED = 16,
};

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void
put_base64(kvp_jsonw_t *w, const char *name, const char *text)
{
    char out[BASE64_BYTES(KVP_ETCD_VALUE_MAX) + 1], *at = out;
    size_t len = strlen(text);

    if (len > KVP_ETCD_VALUE_MAX) kvp_panic("etcd: a text of %zu bytes", len);
    for (size_t i = 0; i < len; i += 3, at += 4) {
        uint32_t bits = 0;

        for (size_t j = 0; j < 3; j++)
            bits = bits << 8 | (i + j < len ? (uint8_t)text[i + j] : 0);
        for (size_t j = 0; j < 4; j++)
            at[j] = i + j > len ? '=' : digits[bits >> (18 - 6 * j) & 63];
    }
    *at = '\0';
    kvp_jsonw_text(w, name, out);
}

static void
put_i64(kvp_jsonw_t *w, const char *name, int64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRId64, value);
    kvp_jsonw_text(w, name, text);
}

/* Writes the range of all keys that begin with the prefix: its end is the prefix with the last byte increased, which
 * is not 255. */
static void
put_prefix(kvp_jsonw_t *w, const char *prefix)
{
    char end[KVP_ETCD_KEY_MAX + 1];

    snprintf(end, sizeof end, "%s", prefix);
    end[strlen(end) - 1]++;
    put_base64(w, "key", prefix);
    put_base64(w, "range_end", end);
}

static void
put_txn(kvp_jsonw_t *w, const kvp_etcd_op_t *op)
{
    kvp_jsonw_open(w, "compare", '[');
    for (uint32_t i = 0; i < op->compares_n; i++) {
        const kvp_etcd_compare_t *c = &op->compares[i];

        kvp_jsonw_open(w, NULL, '{');
        put_base64(w, "key", c->key);
        kvp_jsonw_text(w, "target", c->is_mod ? "MOD" : "CREATE");
        kvp_jsonw_text(w, "result", "EQUAL");
        put_i64(w, c->is_mod ? "mod_revision" : "create_revision", c->revision);
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
    kvp_jsonw_open(w, "success", '[');
    for (uint32_t i = 0; i < op->writes_n; i++) {
        const kvp_etcd_kv_t *write = &op->writes[i];

        kvp_jsonw_open(w, NULL, '{');
        kvp_jsonw_open(w, write->is_removal ? "request_delete_range" : "request_put", '{');
        put_base64(w, "key", write->key);
        if (!write->is_removal) {
            put_base64(w, "value", write->value);
            put_i64(w, "lease", write->lease);
        }
        kvp_jsonw_close(w, '}');
        kvp_jsonw_close(w, '}');
    }
    kvp_jsonw_close(w, ']');
}

const char *
kvp_etcd_encode(const kvp_etcd_op_t *op, const char *prefix, kvp_buf_t *out)
{
    const char *path = NULL;
    kvp_jsonw_t w;

    kvp_jsonw_init(&w, out);
    kvp_jsonw_open(&w, NULL, '{');
    switch (op->kind) {
    case KVP_ETCD_GRANT:
        path = "/v3/lease/grant";
        put_i64(&w, "TTL", op->ttl_s);
        break;
    case KVP_ETCD_KEEP_ALIVE:
    case KVP_ETCD_REVOKE:
        path = op->kind == KVP_ETCD_REVOKE ? "/v3/lease/revoke" : "/v3/lease/keepalive";
        put_i64(&w, "ID", op->lease);
        break;
    case KVP_ETCD_READ:
        path = "/v3/kv/range";
        put_prefix(&w, prefix);
        put_i64(&w, "limit", KVP_ETCD_KVS_MAX);
        break;
    case KVP_ETCD_TXN:
        path = "/v3/kv/txn";
        put_txn(&w, op);
        break;
    }
    kvp_jsonw_close(&w, '}');
    if (path == NULL) kvp_panic("etcd: no such request: %d", (int)op->kind);
    return path;
}

const char *
kvp_etcd_encode_login(const char *user, const char *password, kvp_buf_t *out)
{
    kvp_jsonw_t w;

    kvp_jsonw_init(&w, out);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_text(&w, "name", user);
    kvp_jsonw_text(&w, "password", password);
    kvp_jsonw_close(&w, '}');
    return "/v3/auth/authenticate";
}

const char *
kvp_etcd_encode_watch(const char *prefix, kvp_buf_t *out)
{
    kvp_jsonw_t w;

    kvp_jsonw_init(&w, out);
    kvp_jsonw_open(&w, NULL, '{');
    kvp_jsonw_open(&w, "create_request", '{');
    put_prefix(&w, prefix);
    kvp_jsonw_close(&w, '}');
    kvp_jsonw_close(&w, '}');
    return "/v3/watch";
}

/* Returns the body as a JSON object, to free with json_object_put; NULL = malformed. */
static json_object *
parse_body(const kvp_buf_t *body)
{
    struct json_tokener *tokener;
    json_object *top;
    size_t values_n = 0;

    for (size_t i = 0; i < body->len; i++)
        values_n += body->data[i] == ',' || body->data[i] == '[' || body->data[i] == '{';
    if (values_n == 0 || values_n > VALUES_MAX || body->len > KVP_ETCD_ANSWER_BYTES_MAX) return NULL;
    if (!kvp_is_utf8(body->data, body->len)) return NULL;
    tokener = json_tokener_new_ex(DEPTH_MAX);
    if (tokener == NULL) kvp_panic("out of memory: etcd");
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    top = json_tokener_parse_ex(tokener, (const char *)body->data, (int)body->len);
    if (json_tokener_get_error(tokener) != json_tokener_success || !json_object_is_type(top, json_type_object)) {
        json_object_put(top);
        top = NULL;
    }
    json_tokener_free(tokener);
    return top;
}

/* Returns the JSON object's member with this name and type, borrowed; NULL: absent, null, or of another type. */
static json_object *
find_member(json_object *in, const char *name, json_type type)
{
    json_object *value = NULL;

    if (!json_object_is_type(in, json_type_object) || !json_object_object_get_ex(in, name, &value)) return NULL;
    return json_object_is_type(value, type) ? value : NULL;
}

static bool
has_member(json_object *in, const char *name)
{
    json_object *value = NULL;

    return json_object_is_type(in, json_type_object) && json_object_object_get_ex(in, name, &value) && value != NULL;
}

/* Returns the member's text, or "" if there is none. Borrowed from the object. */
static const char *
text_of(json_object *in, const char *name)
{
    json_object *value = find_member(in, name, json_type_string);
    const char *text = value != NULL ? json_object_get_string(value) : "";

    return value != NULL && strlen(text) != (size_t)json_object_get_string_len(value) ? "" : text;
}

/* Reads a number from a JSON member, also from a text; 0 if it is absent. Returns false for a value that is no number
 * from 0 to max. */
static bool
read_number(json_object *in, const char *name, uint64_t max, int64_t *out)
{
    json_object *number = find_member(in, name, json_type_int);
    uint64_t value = number != NULL ? json_object_get_uint64(number) : 0; /* 0 for negative numbers */

    if (number == NULL && has_member(in, name) && kvp_parse_u64(text_of(in, name), &value) != KVP_OK) return false;
    if (value > max || (number != NULL && json_object_get_int64(number) < 0)) return false;
    *out = (int64_t)value;
    return true;
}

/* Returns the value of a JSON object's boolean member; false if it is absent. */
static bool
is_true(json_object *in, const char *name)
{
    return json_object_get_boolean(find_member(in, name, json_type_boolean)) != 0;
}

static bool
is_token_complaint(const char *text)
{
    return strstr(text, "invalid auth token") != NULL || strstr(text, "auth store is old") != NULL ||
           strstr(text, "user name is empty") != NULL;
}

/* Returns OK if the answer is no error message; otherwise the error and its reason. *code_out is gRPC's code, or 0. */
static kvp_err_t
read_error(json_object *top, long status, int64_t *code_out, kvp_etcd_fault_t *fault_out)
{
    json_object *inner = find_member(top, "error", json_type_object); /* a stream's form of an error */
    json_object *in = inner != NULL ? inner : top;
    const char *text = text_of(in, "message")[0] != '\0' ? text_of(in, "message") : text_of(in, "error");
    int64_t code = 0;

    *code_out = 0;
    if (status == 200 && top != NULL && inner == NULL && text_of(top, "error")[0] == '\0') return KVP_OK;
    if (!read_number(in, has_member(in, "grpc_code") ? "grpc_code" : "code", UNAUTHENTICATED, &code)) code = 0;
    *code_out = code;
    snprintf(fault_out->why, sizeof fault_out->why, "HTTP status %ld: %s", status,
             top != NULL && text[0] != '\0' ? text : "the answer is not of etcd's gateway");
    fault_out->is_token_bad = code == UNAUTHENTICATED || status == 401 || is_token_complaint(text);
    if (fault_out->is_token_bad || code == PERMISSION_DENIED || status == 403) return KVP_FENCED;
    if (code == INVALID_ARGUMENT && strstr(text, "authentication failed") != NULL) return KVP_FENCED;
    if (code == NOT_FOUND && strstr(text, "lease not found") != NULL) return KVP_NOT_FOUND;
    if (code == CANCELED || code == UNKNOWN || code == DEADLINE_EXCEEDED || code == RESOURCE_EXHAUSTED ||
        code == INTERNAL || code == UNAVAILABLE || status >= 500 || status == 429 || strstr(text, "leader") != NULL)
        return KVP_UNREACHABLE;
    return KVP_PROTO;
}

/* Decodes base64, and returns the length of the result; out gets a terminating 0. SIZE_MAX: not base64. More than
 * max: too long, not decoded. */
static size_t
decode_base64(const char *text, char *out, size_t max)
{
    size_t n = strlen(text), len = n / 4 * 3, pad = 0;

    while (pad < 2 && n > pad && text[n - 1 - pad] == '=')
        pad++;
    if (n % 4 != 0) return SIZE_MAX;
    len -= pad;
    if (len > max) return len;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;

        for (size_t j = 0; j < 4; j++) {
            const char *digit = i + j >= n - pad ? digits : strchr(digits, text[i + j]);

            if (digit == NULL) return SIZE_MAX;
            bits = bits << 6 | (uint32_t)(digit - digits);
        }
        for (size_t j = 0; j < 3 && i / 4 * 3 + j < len; j++)
            out[i / 4 * 3 + j] = (char)(bits >> (16 - 8 * j));
    }
    out[len] = '\0';
    return len;
}

/* Reads a key and its value; PROTO if they are malformed. *is_fit_out: they fit in an answer and are text. */
static kvp_err_t
read_kv(json_object *in, kvp_etcd_kv_t *kv, bool *is_fit_out)
{
    size_t key_len = decode_base64(text_of(in, "key"), kv->key, KVP_ETCD_KEY_MAX);
    size_t value_len = decode_base64(text_of(in, "value"), kv->value, KVP_ETCD_VALUE_MAX);

    if (key_len == 0 || key_len == SIZE_MAX || value_len == SIZE_MAX) return KVP_PROTO;
    if (has_member(in, "value") && find_member(in, "value", json_type_string) == NULL) return KVP_PROTO;
    if (!read_number(in, "create_revision", INT64_MAX, &kv->create_revision) ||
        !read_number(in, "mod_revision", INT64_MAX, &kv->mod_revision) ||
        !read_number(in, "lease", INT64_MAX, &kv->lease))
        return KVP_PROTO;
    *is_fit_out = key_len <= KVP_ETCD_KEY_MAX && value_len <= KVP_ETCD_VALUE_MAX && strlen(kv->key) == key_len &&
                  strlen(kv->value) == value_len;
    return KVP_OK;
}

static kvp_err_t
read_kvs(json_object *top, kvp_etcd_answer_t *answer)
{
    json_object *array = find_member(top, "kvs", json_type_array);
    size_t n = array != NULL ? kvp_min_u64(json_object_array_length(array), KVP_ETCD_KVS_MAX) : 0;
    kvp_err_t err = array == NULL && has_member(top, "kvs") ? KVP_PROTO : KVP_OK;

    if (n == 0) return err;
    answer->kvs = calloc(n, sizeof *answer->kvs);
    if (answer->kvs == NULL) kvp_panic("out of memory: etcd");
    for (size_t i = 0; i < n && err == KVP_OK; i++) {
        bool is_fit = false;

        err = read_kv(json_object_array_get_idx(array, i), &answer->kvs[answer->kvs_n], &is_fit);
        answer->kvs_n += err == KVP_OK && is_fit;
    }
    return err;
}

static kvp_err_t
read_answer(json_object *top, kvp_etcd_answer_t *answer)
{
    json_object *in = answer->kind == KVP_ETCD_KEEP_ALIVE ? find_member(top, "result", json_type_object) : top;
    json_object *header = find_member(in, "header", json_type_object);
    int64_t ttl_s = 0;

    if (header == NULL || !read_number(header, "revision", INT64_MAX, &answer->revision)) return KVP_PROTO;
    switch (answer->kind) {
    case KVP_ETCD_GRANT:
    case KVP_ETCD_KEEP_ALIVE:
        if (!read_number(in, "ID", INT64_MAX, &answer->lease) || answer->lease == 0) return KVP_PROTO;
        if (!read_number(in, "TTL", UINT32_MAX, &ttl_s)) return KVP_PROTO;
        answer->ttl_s = (uint32_t)ttl_s;
        if (ttl_s == 0) return answer->kind == KVP_ETCD_GRANT ? KVP_PROTO : KVP_NOT_FOUND;
        return KVP_OK;
    case KVP_ETCD_REVOKE:
        return KVP_OK;
    case KVP_ETCD_READ:
        return read_kvs(in, answer);
    case KVP_ETCD_TXN:
        answer->has_succeeded = is_true(in, "succeeded");
        return has_member(in, "succeeded") && find_member(in, "succeeded", json_type_boolean) == NULL ? KVP_PROTO
                                                                                                      : KVP_OK;
    }
    return KVP_PROTO;
}

void
kvp_etcd_answer_fini(kvp_etcd_answer_t *answer)
{
    free(answer->kvs);
    answer->kvs = NULL;
    answer->kvs_n = 0;
}

void
kvp_etcd_decode(long status, const kvp_buf_t *body, kvp_etcd_answer_t *answer_io, kvp_etcd_fault_t *fault_out)
{
    json_object *top = parse_body(body);
    int64_t code;

    *fault_out = (kvp_etcd_fault_t){0};
    answer_io->err = read_error(top, status, &code, fault_out);
    if (answer_io->err == KVP_NOT_FOUND && answer_io->kind == KVP_ETCD_REVOKE) {
        answer_io->err = KVP_OK;
    } else if (answer_io->err == KVP_OK) {
        answer_io->err = read_answer(top, answer_io);
        if (answer_io->err == KVP_PROTO) snprintf(fault_out->why, sizeof fault_out->why, "malformed answer");
        if (answer_io->err != KVP_OK) kvp_etcd_answer_fini(answer_io);
    }
    json_object_put(top);
}

/* Returns true if the text can be a token, which becomes part of an HTTP header. */
static bool
is_token(const char *text)
{
    size_t len = strlen(text);

    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~') return false;
    return len > 0 && len <= KVP_ETCD_TOKEN_MAX;
}

kvp_err_t
kvp_etcd_decode_login(long status, const kvp_buf_t *body, char **token_out, kvp_etcd_fault_t *fault_out)
{
    json_object *top = parse_body(body);
    const char *token = text_of(top, "token");
    int64_t code;
    kvp_err_t err;

    *fault_out = (kvp_etcd_fault_t){0};
    err = read_error(top, status, &code, fault_out);
    if (err == KVP_OK && !is_token(token)) {
        snprintf(fault_out->why, sizeof fault_out->why, "malformed answer to a login");
        err = KVP_PROTO;
    } else if (code == FAILED_PRECONDITION && strstr(fault_out->why, "authentication is not enabled") != NULL) {
        token = "";
        err = KVP_OK;
    }
    if (err == KVP_OK) {
        *token_out = strdup(token);
        if (*token_out == NULL) kvp_panic("out of memory: etcd");
    }
    json_object_put(top);
    return err;
}

kvp_err_t
kvp_etcd_decode_watch(const kvp_buf_t *message, bool *is_created_out, bool *is_change_out, kvp_etcd_fault_t *fault_out)
{
    json_object *top = parse_body(message), *result = find_member(top, "result", json_type_object), *events;
    const char *reason = text_of(result, "cancel_reason");
    int64_t code;
    kvp_err_t err;

    *fault_out = (kvp_etcd_fault_t){0};
    err = read_error(top, 200, &code, fault_out);
    if (err == KVP_OK && (result == NULL || is_true(result, "canceled"))) {
        snprintf(fault_out->why, sizeof fault_out->why, "%s", result == NULL ? "malformed message of a watch" : reason);
        fault_out->is_token_bad = is_token_complaint(reason);
        err = result == NULL ? KVP_PROTO : KVP_CANCELLED;
    }
    if (err == KVP_OK) {
        events = find_member(result, "events", json_type_array);
        *is_created_out = is_true(result, "created");
        *is_change_out = *is_created_out || (events != NULL && json_object_array_length(events) > 0);
    }
    json_object_put(top);
    return err;
}
