/* SPDX-License-Identifier: Apache-2.0 */
#include "node/daemon/rest.h"

#include "common/waits.h"

#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

/* the time limit for opening the client handle; a stop of the daemon may have to wait as long */
#define OPEN_MS 2000
/* the time between attempts to open the handle; requests that waited for a failed attempt get its error */
#define AGAIN_NS KVP_NS_PER_S
#define CALL_MS 5000
#define GRACE_MAX_S 3600
#define GET_ROUNDS 4 /* the most rounds of a get: between two rounds a larger object may replace the object */
/* no location is cached: each request asks the master, and so sees the removals of other clients */
#define LOCATIONS_NONE UINT32_MAX

/* The HTTP statuses of errors; an error that is not listed is 500. */
static const int statuses[][2] = {
    {KVPOOL_NOT_FOUND, 404},   {KVPOOL_NODE_LOST, 404}, {KVPOOL_STALE, 404},       {KVPOOL_CORRUPT, 404},
    {KVPOOL_INVALID, 400},     {KVPOOL_BAD_KEY, 400},   {KVPOOL_TOO_LARGE, 413},   {KVPOOL_HELD, 409},
    {KVPOOL_IN_PROGRESS, 409}, {KVPOOL_NO_SPACE, 507},  {KVPOOL_RETRY_AFTER, 503}, {KVPOOL_EAGAIN, 503},
    {KVPOOL_BUSY, 503},        {KVPOOL_CLOSED, 503},    {KVPOOL_UNREACHABLE, 503}, {KVPOOL_DISCONNECTED, 503},
    {KVPOOL_DEADLINE, 504},    {KVPOOL_CANCELLED, 504}, {KVPOOL_LOG_FAILED, 507},
};

static void
answer_error(kvp_http_response_t *response, int err)
{
    unsigned status = 500;

    for (size_t i = 0; i < KVP_ARRAY_LEN(statuses); i++)
        if (statuses[i][0] == err) status = (unsigned)statuses[i][1];
    if (status == 404)
        kvp_http_error(response, status, "Key not found");
    else
        kvp_http_error(response, status, "%s: %s", kvpool_errname(err), kvpool_strerror(err));
}

static void
answer_status(kvp_http_response_t *response, const char *text)
{
    kvp_jsonw_t answer = kvp_http_json(response, 200);

    kvp_jsonw_open(&answer, NULL, '{');
    kvp_jsonw_text(&answer, "status", text);
    kvp_jsonw_close(&answer, '}');
}

/* Returns the client handle, which the first request opens. NULL = not available now; an error response was written. */
static kvpool_t *
open_pool(kvp_node_rest_t *rest, kvp_http_response_t *response)
{
    kvpool_conf_t conf = {.struct_size = sizeof conf,
                          .master = rest->masters,
                          .cluster = rest->cluster,
                          .name = "kvpool-node-rest",
                          .host_id = rest->host_id,
                          .transports = rest->transports,
                          .deadline_ms = OPEN_MS,
                          .locations = LOCATIONS_NONE};
    kvpool_t *pool;
    int err;

    pthread_mutex_lock(&rest->lock);
    if (rest->pool == NULL && !rest->is_stopping && (rest->tried_ns == 0 || kvp_now_ns() - rest->tried_ns > AGAIN_NS)) {
        rest->open_err = kvpool_open(&conf, &rest->pool);
        rest->tried_ns = kvp_now_ns();
    }
    err = rest->is_stopping ? KVPOOL_CLOSED : rest->open_err;
    pool = err == KVPOOL_OK ? rest->pool : NULL;
    pthread_mutex_unlock(&rest->lock);
    if (pool == NULL) answer_error(response, err);
    return pool;
}

static const kvpool_opts_t call_opts = {.struct_size = sizeof call_opts, .deadline_ms = CALL_MS};
static const kvpool_opts_t put_opts = {
    .struct_size = sizeof put_opts, .deadline_ms = CALL_MS, .flags = KVPOOL_REPORT_ALREADY};

/* Returns a non-empty text member of the JSON body, borrowed from body; NULL if there is none. */
static const char *
text_member(json_object *body, const char *name, size_t *len_out)
{
    json_object *value;

    if (!json_object_object_get_ex(body, name, &value) || !json_object_is_type(value, json_type_string)) return NULL;
    *len_out = (size_t)json_object_get_string_len(value);
    return *len_out > 0 ? json_object_get_string(value) : NULL;
}

/* Answers a put with the size of the key's present value: the new value of len bytes, or an earlier value. */
static void
answer_put(kvp_http_response_t *response, kvpool_t *pool, const char *key, size_t key_len, size_t len, bool is_already)
{
    /* The earlier value may have been evicted or removed meanwhile; then the answer has no size. */
    const bool has_size = !is_already || kvpool_size(pool, key, key_len, &len, &call_opts) == KVPOOL_OK;
    kvp_jsonw_t answer = kvp_http_json(response, 200);

    kvp_jsonw_open(&answer, NULL, '{');
    kvp_jsonw_text(&answer, "status", "success");
    kvp_jsonw_bool(&answer, "stored", !is_already);
    kvp_jsonw_bool(&answer, "already", is_already);
    if (has_size) kvp_jsonw_u64(&answer, "size_bytes", len);
    if (is_already)
        kvp_jsonw_text(&answer, "detail",
                       "the key has a value already, which stays; DELETE /api/remove/KEY removes it");
    kvp_jsonw_close(&answer, '}');
}

static void
put_members(kvp_node_rest_t *rest, json_object *body, kvp_http_response_t *response)
{
    size_t key_len = 0, value_len = 0;
    const char *key = text_member(body, "key", &key_len);
    const char *value = text_member(body, "value", &value_len);
    kvpool_t *pool;
    int err;

    if (key == NULL || value == NULL) {
        kvp_http_error(response, 400, "Missing key or value");
        return;
    }
    if (memchr(key, '\0', key_len) != NULL) {
        kvp_http_error(response, 400, "a key over HTTP has no NUL: no path could name it");
        return;
    }
    pool = open_pool(rest, response);
    if (pool == NULL) return;
    err = kvpool_put(pool, key, key_len, value, value_len, &put_opts);
    if (err == KVPOOL_OK || err == KVPOOL_ALREADY)
        answer_put(response, pool, key, key_len, value_len, err == KVPOOL_ALREADY);
    else
        answer_error(response, err);
}

/* Handles PUT /api/put {"key": TEXT, "value": TEXT}. The value is stored as UTF-8. The request does not replace an
 * existing value. */
static void
on_put(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    json_object *body;

    /* Reserves memory: parsing needs a copy of the body and a growing buffer. */
    if (!kvp_http_claim(response, 2 * kvp_http_body(request)->len)) return;
    body = kvp_http_body_json(request, response);
    if (body == NULL) return;
    if (json_object_is_type(body, json_type_object))
        put_members(arg, body, response);
    else
        kvp_http_error(response, 400, "Missing key or value");
    json_object_put(body);
}

/* Returns the key at the end of the request's path. NULL = there is none; an error response was written. */
static const char *
key_of(const kvp_http_request_t *request, kvp_http_response_t *response, size_t *len_out)
{
    const char *key = kvp_http_rest(request);

    *len_out = strlen(key);
    if (*len_out > 0 && *len_out <= KVPOOL_KEY_MAX) return key;
    kvp_http_error(response, 400, "a key has 1 to %d bytes", KVPOOL_KEY_MAX);
    return NULL;
}

/* Makes one get attempt that ends at deadline_ns. */
static int
get_once(kvpool_t *pool, const char *key, size_t key_len, uint64_t deadline_ns, kvp_buf_t *out, size_t *len)
{
    kvpool_opts_t opts = call_opts;
    uint8_t *room;
    int err;

    kvp_buf_reset(out);
    room = kvp_buf_reserve(out, *len);
    if (room == NULL) return KVPOOL_NOMEM;
    if (kvp_now_ns() >= deadline_ns) return KVPOOL_DEADLINE;
    opts.deadline_ms = kvp_left_ms(deadline_ns);
    err = kvpool_get(pool, key, key_len, room, *len, len, &opts);
    if (err == KVPOOL_OK) out->len = *len;
    return err;
}

/* Handles GET /api/get/KEY: answers with the object's bytes. */
static void
on_get(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    size_t key_len, len = 0;
    const char *key = key_of(request, response, &key_len);
    kvpool_t *pool = key != NULL ? open_pool(arg, response) : NULL;
    uint64_t deadline_ns;
    int err;

    if (pool == NULL) return;
    deadline_ns = kvp_now_ns() + CALL_MS * KVP_NS_PER_MS;
    err = kvpool_size(pool, key, key_len, &len, &call_opts);
    if (err == KVPOOL_OK) err = KVPOOL_BUFFER_SMALL;
    for (int round = 0; err == KVPOOL_BUFFER_SMALL && round < GET_ROUNDS; round++) {
        if (len > KVP_REST_VALUE_MAX) {
            kvp_http_error(response, 413, "the value has %zu bytes; over HTTP it is %u at most", len,
                           KVP_REST_VALUE_MAX);
            return;
        }
        if (!kvp_http_claim(response, len)) return;
        err = get_once(pool, key, key_len, deadline_ns, kvp_http_out(response), &len);
    }
    if (err == KVPOOL_OK)
        kvp_http_type(response, "application/octet-stream");
    else
        answer_error(response, err);
}

/* Handles GET /api/exist/KEY: answers {"exists": BOOL}. */
static void
on_exist(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    size_t key_len;
    const char *key = key_of(request, response, &key_len);
    kvpool_t *pool = key != NULL ? open_pool(arg, response) : NULL;
    kvp_jsonw_t answer;
    int err, exists = 0;

    if (pool == NULL) return;
    err = kvpool_exists(pool, key, key_len, &exists, &call_opts);
    if (err != KVPOOL_OK) {
        answer_error(response, err);
        return;
    }
    answer = kvp_http_json(response, 200);
    kvp_jsonw_open(&answer, NULL, '{');
    kvp_jsonw_bool(&answer, "exists", exists != 0);
    kvp_jsonw_close(&answer, '}');
}

/* Handles DELETE /api/remove/KEY. */
static void
on_remove(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    size_t key_len;
    const char *key = key_of(request, response, &key_len);
    kvpool_t *pool = key != NULL ? open_pool(arg, response) : NULL;
    int err;

    if (pool == NULL) return;
    err = kvpool_remove(pool, key, key_len, &call_opts);
    if (err == KVPOOL_OK)
        answer_status(response, "success");
    else
        answer_error(response, err);
}

/* Handles DELETE /api/remove_all: removes every object that is not held. */
static void
on_remove_all(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvpool_t *pool = open_pool(arg, response);
    uint64_t removed = 0;
    char text[64];
    int err;

    (void)request;
    if (pool == NULL) return;
    err = kvpool_remove_all(pool, &call_opts, &removed, NULL);
    if (err != KVPOOL_OK) {
        answer_error(response, err);
        return;
    }
    snprintf(text, sizeof text, "success removed %llu keys", (unsigned long long)removed);
    answer_status(response, text);
}

static bool
is_grace(json_object *body)
{
    json_object *grace;

    if (!json_object_is_type(body, json_type_object)) return false;
    if (!json_object_object_get_ex(body, "grace_period_seconds", &grace)) return true;
    return json_object_is_type(grace, json_type_int) && json_object_get_int64(grace) >= 0 &&
           json_object_get_int64(grace) <= GRACE_MAX_S;
}

/* Handles POST /api/unmount_local_disk {"grace_period_seconds": N}: removes the SSD tier. No reader uses the devices
 * afterwards, so the grace period is not waited for. */
static void
on_unmount_local_disk(void *arg, const kvp_http_request_t *request, kvp_http_response_t *response)
{
    kvp_node_rest_t *rest = arg;
    json_object *body = kvp_http_body_json(request, response);
    bool is_good;

    if (body == NULL) return;
    is_good = is_grace(body);
    json_object_put(body);
    if (!is_good)
        kvp_http_error(response, 400, "Invalid grace_period_seconds, must be a non-negative integer no greater than %d",
                       GRACE_MAX_S);
    else if (kvp_node_unmount_tier(rest->node, kvp_now_ns() + CALL_MS * KVP_NS_PER_MS))
        answer_status(response, "success");
    else
        answer_error(response, KVPOOL_DEADLINE);
}

kvp_err_t
kvp_node_rest_init(kvp_node_rest_t *rest, kvp_http_t *http, const kvp_node_opts_t *opts, kvp_node_t *node)
{
    static const struct {
        const char *method, *path;
        size_t body_max;
        kvp_http_fn fn;
    } routes[] = {
        {"PUT", "/api/put", KVP_REST_VALUE_MAX, on_put},
        {"GET", "/api/get/", KVP_HTTP_BODY_MAX, on_get},
        {"GET", "/api/exist/", KVP_HTTP_BODY_MAX, on_exist},
        {"DELETE", "/api/remove/", KVP_HTTP_BODY_MAX, on_remove},
        {"DELETE", "/api/remove_all", KVP_HTTP_BODY_MAX, on_remove_all},
        {"POST", "/api/unmount_local_disk", KVP_HTTP_BODY_MAX, on_unmount_local_disk},
    };
    kvp_err_t err = KVP_OK;

    memset(rest, 0, sizeof *rest);
    rest->node = node;
    rest->masters = opts->masters;
    rest->cluster = opts->cluster;
    rest->host_id = opts->host_id;
    rest->transports = opts->transports;
    pthread_mutex_init(&rest->lock, NULL);
    rest->has_lock = true;
    for (size_t i = 0; i < KVP_ARRAY_LEN(routes) && err == KVP_OK; i++)
        err = kvp_http_route_slow(http, routes[i].method, routes[i].path, routes[i].body_max, routes[i].fn, rest);
    return err;
}

void
kvp_node_rest_stop(kvp_node_rest_t *rest)
{
    if (!rest->has_lock) return;
    rest->is_stopping = true; /* set before the handle is closed, so that no request opens a handle again */
    pthread_mutex_lock(&rest->lock);
    if (rest->pool != NULL) (void)kvpool_close(rest->pool);
    pthread_mutex_unlock(&rest->lock);
}

void
kvp_node_rest_fini(kvp_node_rest_t *rest)
{
    if (!rest->has_lock) return;
    kvpool_free(rest->pool);
    pthread_mutex_destroy(&rest->lock);
    memset(rest, 0, sizeof *rest);
}
