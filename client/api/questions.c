/* SPDX-License-Identifier: Apache-2.0
 * Calls that are questions to the master: no object bytes move.
 */
#include "client/api/pool.h"

#include "client/core/places.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

/* The keys of a question, and where its answer goes. */
typedef struct {
    const kvpool_key_t *keys;
    uint32_t n;
    uint8_t opcode;

    int *results; /* EXISTS, GET */
    kvpool_place_t *places; /* GET; NULL where only the length is wanted */
    uint64_t len; /* GET */
} ask_t;

typedef kvp_err_t (*read_fn)(void *arg, const kvp_frame_t *answer, bool was_cut);

_Static_assert(KVPOOL_COPIES_MAX == KVP_REPLICAS_MAX, "what the master may name");

kvp_err_t
kvp_keys_check(const kvpool_key_t *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!kvp_key_is_legal(keys[i].data, keys[i].len)) return KVP_BAD_KEY;
    return KVP_OK;
}

/* ---- building: a head by opcode, then the digests */
static void
build_head(const ask_t *a, kvp_buf_t *out, size_t *at)
{
    Kvp__Pb__Exists exists = KVP__PB__EXISTS__INIT;
    Kvp__Pb__Get get = KVP__PB__GET__INIT;
    const ProtobufCMessage *head = &exists.base;

    exists.n = get.n = a->n;
    get.no_hold = true;
    if (a->opcode == KVP_OP_GET) head = &get.base;
    kvp_pb_frame_begin(out, a->opcode, 0, 0, head, at);
}

static void
build(void *arg, const kvp_op_session_t *session, kvp_buf_t *out)
{
    const ask_t *a = arg;
    kvp_digest_t *digests;
    size_t at;

    build_head(a, out, &at);
    digests = (kvp_digest_t *)kvp_buf_extend(out, a->n * sizeof *digests);
    for (uint32_t i = 0; i < a->n && digests != NULL; i++)
        digests[i] = kvp_op_digest(session, a->keys[i].data, a->keys[i].len);
    kvp_frame_end(out, at);
}

/* ---- answers */

kvp_err_t
kvp_reply_read(const kvp_frame_t *answer, uint32_t n, size_t size, const void **records_out)
{
    Kvp__Pb__Reply *msg;
    kvp_pb_t pb;
    kvp_rd_t rd;
    kvp_err_t err;
    uint32_t told;

    msg = kvp_pb_unpack(&pb, &kvp__pb__reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    told = msg->n;
    kvp_pb_free(&pb, msg);
    if (err != KVP_OK) return err;
    kvp_rd_init(&rd, answer->tail, answer->tail_len);
    *records_out = kvp_rd_array(&rd, n, size);
    return told == n && !rd.is_bad ? KVP_OK : KVP_PROTO;
}

static kvp_err_t
read_exists(void *arg, const kvp_frame_t *answer, bool was_cut)
{
    const ask_t *a = arg;
    const void *records;
    const uint8_t *found;
    kvp_err_t err = kvp_reply_read(answer, a->n, 1, &records);

    (void)was_cut;
    if (err != KVP_OK) return err;
    found = records;
    for (uint32_t i = 0; i < a->n; i++)
        a->results[i] = found[i] != 0;
    return KVP_OK;
}

static kvp_err_t
read_size(void *arg, const kvp_frame_t *answer, bool was_cut)
{
    ask_t *a = arg;
    kvp_places_t places;
    kvp_err_t err = kvp_places_read(answer, 1, &places);

    (void)was_cut;
    if (err == KVP_OK) err = places.objs[0].err;
    if (err == KVP_OK) a->len = places.objs[0].len;
    return err;
}

static kvp_err_t
read_places(void *arg, const kvp_frame_t *answer, bool was_cut)
{
    const ask_t *a = arg;
    const kvp_wire_loc_t *loc;
    kvp_places_t places;
    kvp_err_t err = kvp_places_read(answer, a->n, &places);

    (void)was_cut;
    if (err != KVP_OK) return err;
    loc = places.locs;
    for (uint32_t i = 0; i < a->n; i++) {
        const kvp_wire_obj_t *obj = &places.objs[i];
        kvpool_place_t *place = &a->places[i];

        a->results[i] = obj->err;
        *place = (kvpool_place_t){.len = obj->len, .copies = obj->nloc};
        for (uint32_t k = 0; k < obj->nloc; k++)
            place->segments[k] = loc++->segment_id;
    }
    return KVP_OK;
}

static kvp_err_t
run(kvp_apicall_t *call, ask_t *a, read_fn read)
{
    kvp_query_t query = {.arg = a, .build = build, .read = read};

    return kvp_query_run(call, &query);
}

/* ---- presence */
int
kvpool_exists(kvpool_t *pool, const void *key, size_t key_len, int *exists_out, const kvpool_opts_t *opts)
{
    kvpool_key_t one = {key, key_len};
    kvp_apicall_t call;
    int result = 0;
    ask_t a = {.keys = &one, .n = 1, .opcode = KVP_OP_EXISTS, .results = &result};
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    err = exists_out == NULL ? KVP_INVALID : kvp_keys_check(&one, 1);
    if (err == KVP_OK) err = run(&call, &a, read_exists);
    if (err == KVP_OK) *exists_out = result;
    kvp_count(&pool->counters.exists, 1);
    return kvp_call_end(&call, err);
}

/* A window's legal keys, gathered; at[i] is the place of the i-th in results. */
static uint32_t
gather(const kvpool_key_t *keys, size_t n, kvpool_key_t *legal, uint32_t *at, int *results)
{
    uint32_t legal_n = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!kvp_key_is_legal(keys[i].data, keys[i].len)) {
            results[i] = KVP_BAD_KEY;
            continue;
        }
        legal[legal_n] = keys[i];
        at[legal_n++] = i;
    }
    return legal_n;
}

/* One question about n keys at most as many as it takes. places is NULL but for GET. */
static kvp_err_t
ask_window(kvp_apicall_t *call, uint8_t opcode, read_fn read, const kvpool_key_t *keys, size_t n,
           kvpool_place_t *places, int *results)
{
    kvpool_key_t *legal = kvp_scratch_alloc(call->scratch, n, sizeof *legal);
    uint32_t *at = kvp_scratch_alloc(call->scratch, n, sizeof *at);
    int *found = kvp_scratch_alloc(call->scratch, n, sizeof *found);
    kvpool_place_t *seen = places != NULL ? kvp_scratch_alloc(call->scratch, n, sizeof *seen) : NULL;
    ask_t a = {.keys = legal, .opcode = opcode, .results = found, .places = seen};
    kvp_err_t err = KVP_OK;

    if (legal == NULL || at == NULL || found == NULL || (places != NULL && seen == NULL)) return KVP_NOMEM;
    a.n = gather(keys, n, legal, at, results);
    if (a.n > 0) err = run(call, &a, read);
    for (uint32_t i = 0; i < a.n; i++) {
        results[at[i]] = err == KVP_OK ? found[i] : err;
        if (places != NULL && err == KVP_OK) places[at[i]] = seen[i];
    }
    kvp_scratch_reset(call->scratch);
    return err;
}

int
kvpool_batch_is_exist(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts, int *results)
{
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (n > 0 && (keys == NULL || results == NULL)) return kvp_call_end(&call, KVP_INVALID);
    for (size_t i = 0; i < n; i += KVP_BATCH_MAX) {
        size_t some = n - i < KVP_BATCH_MAX ? n - i : KVP_BATCH_MAX;

        /* A failure stands in the results; the windows behind it have the same deadline to meet. */
        if (ask_window(&call, KVP_OP_EXISTS, read_exists, keys + i, some, NULL, results + i) == KVP_NOMEM)
            err = KVP_NOMEM;
    }
    kvp_count(&pool->counters.exists, n);
    return kvp_call_end(&call, err);
}

int
kvpool_batch_locate(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts,
                    kvpool_place_t *places, int *results)
{
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (n > 0 && (keys == NULL || places == NULL || results == NULL)) return kvp_call_end(&call, KVP_INVALID);
    for (size_t i = 0; i < n; i += KVP_PLACES_MAX) {
        size_t some = n - i < KVP_PLACES_MAX ? n - i : KVP_PLACES_MAX;

        memset(places + i, 0, some * sizeof *places);
        if (ask_window(&call, KVP_OP_GET, read_places, keys + i, some, places + i, results + i) == KVP_NOMEM)
            err = KVP_NOMEM;
    }
    return kvp_call_end(&call, err);
}

int
kvpool_size(kvpool_t *pool, const void *key, size_t key_len, size_t *len_out, const kvpool_opts_t *opts)
{
    kvpool_key_t one = {key, key_len};
    kvp_apicall_t call;
    ask_t a = {.keys = &one, .n = 1, .opcode = KVP_OP_GET};
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    err = len_out == NULL ? KVP_INVALID : kvp_keys_check(&one, 1);
    if (err == KVP_OK) err = run(&call, &a, read_size);
    if (err == KVP_OK) *len_out = (size_t)a.len;
    return kvp_call_end(&call, err);
}

/* ---- list */
typedef struct {
    const void *prefix;
    size_t prefix_len;
    uint64_t cursor;
    uint32_t limit;
    uint32_t seen;
    kvpool_list_fn fn;
    void *fn_arg;
    bool is_ended; /* fn wants no more */
} list_t;

static void
build_list(void *arg, const kvp_op_session_t *session, kvp_buf_t *out)
{
    const list_t *l = arg;
    Kvp__Pb__List head = KVP__PB__LIST__INIT;
    size_t at;

    (void)session;
    head.cursor = l->cursor;
    head.limit = l->limit;
    head.prefix = (ProtobufCBinaryData){l->prefix_len, (uint8_t *)l->prefix};
    kvp_pb_frame_begin(out, KVP_OP_LIST, 0, 0, &head.base, &at);
    kvp_frame_end(out, at);
}

static kvp_err_t
call_back(list_t *l, const kvp_frame_t *answer, uint32_t n)
{
    const kvp_wire_entry_t *entries;
    const uint8_t *keys;
    kvp_rd_t rd;

    kvp_rd_init(&rd, answer->tail, answer->tail_len);
    entries = kvp_rd_array(&rd, n, sizeof *entries);
    if (rd.is_bad || n > l->limit) return KVP_PROTO;
    keys = rd.at;
    for (uint32_t i = 0; i < n; i++)
        if (entries[i].key_at > rd.left || entries[i].key_len > rd.left - entries[i].key_at) return KVP_PROTO;
    for (uint32_t i = 0; i < n && !l->is_ended; i++) {
        l->seen++;
        l->is_ended = l->fn(l->fn_arg, keys + entries[i].key_at, entries[i].key_len, entries[i].len) != 0;
    }
    return KVP_OK;
}

static kvp_err_t
read_list(void *arg, const kvp_frame_t *answer, bool was_cut)
{
    list_t *l = arg;
    Kvp__Pb__ListReply *msg;
    uint64_t cursor;
    uint32_t n;
    kvp_pb_t pb;
    kvp_err_t err;

    (void)was_cut;
    msg = kvp_pb_unpack(&pb, &kvp__pb__list_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    n = msg->n;
    cursor = msg->cursor;
    kvp_pb_free(&pb, msg);
    if (err == KVP_OK) err = call_back(l, answer, n);
    /* Ended in the middle of a page: the page is told again, so that nothing is missed. */
    if (err == KVP_OK && !l->is_ended) l->cursor = cursor;
    return err;
}

int
kvpool_list(kvpool_t *pool, const void *prefix, size_t prefix_len, uint32_t limit, uint64_t *cursor, kvpool_list_fn fn,
            void *arg, const kvpool_opts_t *opts)
{
    list_t l = {.prefix = prefix, .prefix_len = prefix_len, .fn = fn, .fn_arg = arg};
    kvp_query_t query = {.arg = &l, .build = build_list, .read = read_list};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (cursor == NULL || fn == NULL || (prefix == NULL && prefix_len > 0)) return kvp_call_end(&call, KVP_INVALID);
    if (prefix_len > KVPOOL_KEY_MAX) return kvp_call_end(&call, KVP_BAD_KEY);
    l.cursor = *cursor;
    do {
        uint32_t left = limit - l.seen;

        l.limit = left < KVP_LIST_MAX ? left : KVP_LIST_MAX;
        if (left > 0) err = kvp_query_run(&call, &query);
    } while (err == KVP_OK && !l.is_ended && l.cursor != 0 && l.seen < limit);
    if (err == KVP_OK) *cursor = l.cursor;
    return kvp_call_end(&call, err);
}
