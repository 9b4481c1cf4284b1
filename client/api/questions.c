/* SPDX-License-Identifier: Apache-2.0
 * Calls that ask the master a question and move no object bytes: exists, locate, size, snapshot, list. */
#include "client/api/pool.h"

#include "client/core/places.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

/* Output arrays for a question about the locations of objects. */
typedef struct {
    int *results;
    kvpool_place_t *places;
} located_t;

typedef kvp_err_t (*read_fn)(const kvp_query_t *query, const kvp_frame_t *answer);

_Static_assert(KVPOOL_COPIES_MAX == KVP_REPLICAS_MAX, "what the master may name");

kvp_err_t
kvp_keys_check(const kvpool_key_t *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!kvp_key_is_legal(keys[i].data, keys[i].len)) return KVP_BAD_KEY;
    return KVP_OK;
}

/* ---- answers */
static kvp_err_t
read_exists(const kvp_query_t *query, const kvp_frame_t *answer)
{
    int *results = query->arg;
    const void *records;
    const uint8_t *found;
    kvp_err_t err = kvp_reply_read(answer, query->n, 1, &records);

    if (err != KVP_OK) return err;
    found = records;
    for (uint32_t i = 0; i < query->n; i++)
        results[kvp_query_at(query, i)] = found[i] != 0;
    return KVP_OK;
}

static kvp_err_t
read_size(const kvp_query_t *query, const kvp_frame_t *answer)
{
    size_t *len = query->arg;
    kvp_places_t places;
    kvp_err_t err = kvp_places_read(answer, 1, &places);

    if (err == KVP_OK) err = places.objs[0].err;
    if (err == KVP_OK) *len = (size_t)places.objs[0].len;
    return err;
}

static kvp_err_t
read_places(const kvp_query_t *query, const kvp_frame_t *answer)
{
    const located_t *l = query->arg;
    const kvp_wire_loc_t *loc;
    kvp_places_t places;
    kvp_err_t err = kvp_places_read(answer, query->n, &places);

    if (err != KVP_OK) return err;
    if (((const Kvp__Pb__Get *)query->head)->wants_lineages && places.lineages == NULL) return KVP_PROTO;
    if (places.tiers == NULL) return KVP_PROTO;
    loc = places.locs;
    for (uint32_t i = 0; i < query->n; i++) {
        const kvp_wire_obj_t *obj = &places.objs[i];
        kvpool_place_t *place = &l->places[kvp_query_at(query, i)];

        l->results[kvp_query_at(query, i)] = obj->err;
        *place = (kvpool_place_t){.len = obj->len, .copies = obj->nloc, .tier = places.tiers[i]};
        for (uint32_t k = 0; k < obj->nloc; k++)
            place->segments[k] = loc++->segment_id;
        if (places.lineages == NULL || places.lineages[i].is_told == 0) continue;
        place->has_lineage = 1;
        place->lineage =
            (kvpool_lineage_t){places.lineages[i].sequence, places.lineages[i].parent, places.lineages[i].depth};
    }
    return KVP_OK;
}

static kvp_err_t
ask_exists(kvp_apicall_t *call, const kvpool_key_t *keys, const uint32_t *at, uint32_t n, int *results)
{
    Kvp__Pb__Exists head = KVP__PB__EXISTS__INIT;
    kvp_query_t query = {
        .opcode = KVP_OP_EXISTS, .head = &head, .keys = keys, .at = at, .n = n, .read = read_exists, .arg = results};

    head.n = n;
    return kvp_query_run(call, &query);
}

/* Asks the master where the objects are. The master takes no hold on the objects for this question. */
static kvp_err_t
ask_places(kvp_apicall_t *call, const kvpool_key_t *keys, const uint32_t *at, uint32_t n, read_fn read, void *arg)
{
    Kvp__Pb__Get head = KVP__PB__GET__INIT;
    kvp_query_t query = {.opcode = KVP_OP_GET, .head = &head, .keys = keys, .at = at, .n = n, .read = read, .arg = arg};

    head.n = n;
    head.no_hold = true;
    head.wants_lineages = (call->flags & KVPOOL_LINEAGES) != 0;
    head.wants_tiers = read == read_places;
    return kvp_query_run(call, &query);
}

/* ---- presence */
int
kvpool_exists(kvpool_t *pool, const void *key, size_t key_len, int *exists_out, const kvpool_opts_t *opts)
{
    kvpool_key_t one = {key, key_len};
    kvp_apicall_t call;
    int result = 0;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    kvp_call_measure(&call, KVP_CALL_exists);
    err = exists_out == NULL ? KVP_INVALID : kvp_keys_check(&one, 1);
    if (err == KVP_OK) err = ask_exists(&call, &one, NULL, 1, &result);
    if (err == KVP_OK) *exists_out = result;
    kvp_count(&pool->counters.exists, 1);
    return kvp_call_end(&call, err);
}

/* Lists in `at` the indices of the valid keys. An invalid key gets BAD_KEY as its result. Returns the number of valid
 * keys. */
static uint32_t
list_legal(const kvpool_key_t *keys, size_t n, uint32_t *at, int *results)
{
    uint32_t legal_n = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (kvp_key_is_legal(keys[i].data, keys[i].len))
            at[legal_n++] = i;
        else
            results[i] = KVP_BAD_KEY;
    }
    return legal_n;
}

/* Asks one question about n keys, at most as many as one message takes. Without places it asks whether the keys
 * exist, with places where they are. */
static kvp_err_t
ask_window(kvp_apicall_t *call, const kvpool_key_t *keys, size_t n, kvpool_place_t *places, int *results)
{
    uint32_t *at = kvp_scratch_alloc(call->scratch, n, sizeof *at);
    located_t located = {.results = results, .places = places};
    kvp_err_t err = KVP_OK;
    uint32_t legal_n;

    if (at == NULL) return KVP_NOMEM;
    legal_n = list_legal(keys, n, at, results);
    if (legal_n > 0)
        err = places == NULL ? ask_exists(call, keys, at, legal_n, results)
                             : ask_places(call, keys, at, legal_n, read_places, &located);
    for (uint32_t i = 0; i < legal_n && err != KVP_OK; i++)
        results[at[i]] = err;
    kvp_scratch_reset(call->scratch);
    return err;
}

int
kvpool_batch_is_exist(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts, int *results)
{
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    kvp_call_measure(&call, KVP_CALL_batch_is_exist);
    if (n > 0 && (keys == NULL || results == NULL)) return kvp_call_end(&call, KVP_INVALID);
    for (size_t i = 0; i < n; i += KVP_BATCH_MAX) {
        size_t some = n - i < KVP_BATCH_MAX ? n - i : KVP_BATCH_MAX;

        /* ask_window has written any other error to results. Later windows of keys are asked about, too: after the
         * deadline they end at once. */
        if (ask_window(&call, keys + i, some, NULL, results + i) == KVP_NOMEM) err = KVP_NOMEM;
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
        if (ask_window(&call, keys + i, some, places + i, results + i) == KVP_NOMEM) err = KVP_NOMEM;
    }
    return kvp_call_end(&call, err);
}

int
kvpool_size(kvpool_t *pool, const void *key, size_t key_len, size_t *len_out, const kvpool_opts_t *opts)
{
    kvpool_key_t one = {key, key_len};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    err = len_out == NULL ? KVP_INVALID : kvp_keys_check(&one, 1);
    if (err == KVP_OK) err = ask_places(&call, &one, NULL, 1, read_size, len_out);
    return kvp_call_end(&call, err);
}

/* ---- snapshot */
#define SNAPSHOT_POLL_NS (10 * KVP_NS_PER_MS)

typedef struct {
    uint64_t number; /* number of the snapshot that the master writes; 0 = not known yet */
    bool is_whole;
    kvpool_snapshot_t told;
} snapshot_t;

static kvp_err_t
read_snapshot(const kvp_query_t *query, const kvp_frame_t *answer)
{
    snapshot_t *s = query->arg;
    Kvp__Pb__SnapshotReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__snapshot_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    s->number = msg->number;
    s->is_whole = err == KVP_OK && msg->is_whole;
    s->told = (kvpool_snapshot_t){.objects = msg->objects, .log_bytes = msg->log_bytes};
    kvp_pb_free(&pb, msg);
    return err == KVP_RETRY_AFTER ? KVP_OK : err;
}

int
kvpool_snapshot(kvpool_t *pool, const kvpool_opts_t *opts, kvpool_snapshot_t *snapshot_out)
{
    Kvp__Pb__Snapshot head = KVP__PB__SNAPSHOT__INIT;
    snapshot_t s = {0};
    kvp_query_t query = {.opcode = KVP_OP_SNAPSHOT, .head = &head, .read = read_snapshot, .arg = &s};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (snapshot_out == NULL) return kvp_call_end(&call, KVP_INVALID);
    while ((err = kvp_query_run(&call, &query)) == KVP_OK && !s.is_whole) {
        uint64_t next_ns = kvp_now_ns() + SNAPSHOT_POLL_NS;

        head.number = s.number;
        err = next_ns >= call.deadline_ns ? KVP_DEADLINE : kvp_session_sleep(pool->session, next_ns);
        if (err != KVP_OK) break;
    }
    if (err == KVP_OK) *snapshot_out = s.told;
    return kvp_call_end(&call, err);
}

/* ---- list */
typedef struct {
    Kvp__Pb__List head; /* the request: where the next page begins, and the most entries to return */
    uint32_t seen;
    kvpool_list_fn fn;
    void *fn_arg;
    bool is_ended; /* fn asked to stop */
} list_t;

static kvp_err_t
call_back(list_t *l, const kvp_frame_t *answer, uint32_t n)
{
    const kvp_wire_entry_t *entries;
    const uint8_t *keys;
    kvp_rd_t rd;

    kvp_rd_init(&rd, answer->tail, answer->tail_len);
    entries = kvp_rd_array(&rd, n, sizeof *entries);
    if (rd.is_bad || n > l->head.limit) return KVP_PROTO;
    keys = rd.at;
    for (uint32_t i = 0; i < n; i++) {
        if (entries[i].key_at > rd.left || entries[i].key_len > rd.left - entries[i].key_at) return KVP_PROTO;
        if (entries[i].key_len > KVPOOL_KEY_MAX) return KVP_PROTO; /* callers' buffers have KVPOOL_KEY_MAX bytes */
    }
    for (uint32_t i = 0; i < n && !l->is_ended; i++) {
        l->seen++;
        l->is_ended = l->fn(l->fn_arg, keys + entries[i].key_at, entries[i].key_len, entries[i].len) != 0;
    }
    return KVP_OK;
}

static kvp_err_t
read_list(const kvp_query_t *query, const kvp_frame_t *answer)
{
    list_t *l = query->arg;
    Kvp__Pb__ListReply *msg;
    uint64_t cursor;
    uint32_t n;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__list_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    n = msg->n;
    cursor = msg->cursor;
    kvp_pb_free(&pb, msg);
    if (err == KVP_OK) err = call_back(l, answer, n);
    /* If fn stopped in the middle of a page, keep the old cursor: the next call lists the page again, so that no key
     * is missed. */
    if (err == KVP_OK && !l->is_ended) l->head.cursor = cursor;
    return err;
}

int
kvpool_list(kvpool_t *pool, const void *prefix, size_t prefix_len, uint32_t limit, uint64_t *cursor, kvpool_list_fn fn,
            void *arg, const kvpool_opts_t *opts)
{
    list_t l = {.head = KVP__PB__LIST__INIT, .fn = fn, .fn_arg = arg};
    kvp_query_t query = {.opcode = KVP_OP_LIST, .head = &l.head, .read = read_list, .arg = &l};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (cursor == NULL || fn == NULL || (prefix == NULL && prefix_len > 0)) return kvp_call_end(&call, KVP_INVALID);
    if (prefix_len > KVPOOL_KEY_MAX) return kvp_call_end(&call, KVP_BAD_KEY);
    call.asks_state = true;
    l.head.prefix = (ProtobufCBinaryData){prefix_len, (uint8_t *)prefix};
    l.head.cursor = *cursor;
    do {
        uint32_t left = limit - l.seen;

        l.head.limit = left < KVP_LIST_MAX ? left : KVP_LIST_MAX;
        if (left > 0) err = kvp_query_run(&call, &query);
    } while (err == KVP_OK && !l.is_ended && l.head.cursor != 0 && l.seen < limit);
    if (err == KVP_OK) *cursor = l.head.cursor;
    return kvp_call_end(&call, err);
}
