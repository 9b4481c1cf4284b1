/* SPDX-License-Identifier: Apache-2.0
 * Calls that are questions to the master: no object bytes move.
 */
#include "client/pool.h"

#include "client/core/places.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

#define RETRY_NS (20 * KVP_NS_PER_MS)

/* The keys of a question, and where its answer goes. */
typedef struct {
    const kvpool_key_t *keys;
    uint32_t n;
    uint8_t opcode;
    uint32_t flags; /* of the call */

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
    Kvp__Pb__Remove remove = KVP__PB__REMOVE__INIT;
    Kvp__Pb__Get get = KVP__PB__GET__INIT;
    const ProtobufCMessage *head = &exists.base;

    exists.n = remove.n = get.n = a->n;
    remove.force = (a->flags & KVPOOL_FORCE) != 0;
    remove.heeds_probes = (a->flags & KVPOOL_HEED_PROBES) != 0;
    remove.wait = (a->flags & KVPOOL_WAIT) != 0;
    get.no_hold = true;
    if (a->opcode == KVP_OP_REMOVE) head = &remove.base;
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

/* A Reply head with n records of size bytes behind it. */
static kvp_err_t
read_reply(const kvp_frame_t *answer, uint32_t n, size_t size, const void **records_out)
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
    kvp_err_t err = read_reply(answer, a->n, 1, &records);

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
read_remove(void *arg, const kvp_frame_t *answer, bool was_cut)
{
    const void *records;
    kvp_err_t err = read_reply(answer, 1, sizeof(int32_t), &records);
    int32_t one;

    (void)arg;
    if (err != KVP_OK) return err;
    memcpy(&one, records, sizeof one);
    err = kvp_op_peer_err(one);
    /* The session was lost on an earlier try: that one may have removed it, and it is gone now. */
    return err == KVP_NOT_FOUND && was_cut ? KVP_OK : err;
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

/* ---- removing */

/* Who removed something does not read it himself from where he knew it to be. key NULL = whatever is known. */
static void
forget_known(kvpool_t *pool, const kvpool_key_t *key)
{
    kvp_link_t *link = kvp_session_hold_known(pool->session);
    kvp_op_session_t session;

    if (link == NULL) return;
    session = kvp_link_session(pool, link);
    if (key != NULL)
        kvp_locs_forget(link->locs, kvp_op_digest(&session, key->data, key->len));
    else
        kvp_locs_drop_all(link->locs);
    kvp_session_rele(pool->session, link);
}

/* Whoever gives a hold back does not wait for the master to hear of it: a call of another client that ended before this
 * one began may still hold the key there. By the time of our second question the first answer's turn is over, in which
 * the master has read what had come before. */
static kvp_err_t
remove_asking_twice(kvp_apicall_t *call, ask_t *a)
{
    kvp_err_t err = run(call, a, read_remove);

    return err == KVP_HELD ? run(call, a, read_remove) : err;
}

/* A master that took over does not know for a while what is held, and one whose disk is behind begins nothing new. */
static kvp_err_t
remove_in_time(kvp_apicall_t *call, ask_t *a)
{
    kvp_err_t err = remove_asking_twice(call, a);

    while (err == KVP_RETRY_AFTER && kvp_now_ns() + RETRY_NS < call->deadline_ns) {
        if (kvp_session_sleep(call->pool->session, kvp_now_ns() + RETRY_NS) != KVP_OK) return KVP_CLOSED;
        err = remove_asking_twice(call, a);
    }
    return err;
}

int
kvpool_remove(kvpool_t *pool, const void *key, size_t key_len, const kvpool_opts_t *opts)
{
    kvpool_key_t one = {key, key_len};
    kvp_apicall_t call;
    ask_t a = {.keys = &one, .n = 1, .opcode = KVP_OP_REMOVE};
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    a.flags = call.flags;
    err = kvp_keys_check(&one, 1);
    if (err == KVP_OK) err = remove_in_time(&call, &a);
    if (err == KVP_OK) forget_known(pool, &one);
    return kvp_call_end(&call, err);
}

typedef struct {
    const char *pattern;
    bool is_forced;
    bool heeds_probes;
    uint64_t removed;
    uint64_t held;
} remove_many_t;

static void
build_remove_many(void *arg, const kvp_op_session_t *session, kvp_buf_t *out)
{
    const remove_many_t *r = arg;
    Kvp__Pb__RemoveMany head = KVP__PB__REMOVE_MANY__INIT;
    size_t at;

    (void)session;
    head.pattern = (char *)r->pattern;
    head.force = r->is_forced;
    head.heeds_probes = r->heeds_probes;
    kvp_pb_frame_begin(out, KVP_OP_REMOVE_MANY, 0, 0, &head.base, &at);
    kvp_frame_end(out, at);
}

static kvp_err_t
read_remove_many(void *arg, const kvp_frame_t *answer, bool was_cut)
{
    remove_many_t *r = arg;
    Kvp__Pb__RemoveManyReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    (void)was_cut;
    msg = kvp_pb_unpack(&pb, &kvp__pb__remove_many_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    r->removed = msg->removed;
    r->held = msg->held;
    kvp_pb_free(&pb, msg);
    return err;
}

static int
remove_many(kvpool_t *pool, const char *pattern, const kvpool_opts_t *opts, uint64_t *removed_out, uint64_t *held_out)
{
    remove_many_t r = {.pattern = pattern};
    kvp_query_t query = {.arg = &r, .build = build_remove_many, .read = read_remove_many};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (removed_out == NULL) return kvp_call_end(&call, KVP_INVALID);
    if ((call.flags & KVPOOL_WAIT) != 0) return kvp_call_end(&call, KVP_NOTSUP);
    r.is_forced = (call.flags & KVPOOL_FORCE) != 0;
    r.heeds_probes = (call.flags & KVPOOL_HEED_PROBES) != 0;
    err = kvp_query_run(&call, &query);
    if (err == KVP_OK) forget_known(pool, NULL);
    if (err == KVP_OK) *removed_out = r.removed;
    if (err == KVP_OK && held_out != NULL) *held_out = r.held;
    return kvp_call_end(&call, err);
}

int
kvpool_remove_by_regex(kvpool_t *pool, const char *pattern, const kvpool_opts_t *opts, uint64_t *removed_out,
                       uint64_t *held_out)
{
    if (pattern == NULL) return KVP_INVALID;
    /* An empty pattern means "all" on the wire, which is not what an empty variable of a script means. */
    if (pattern[0] == '\0' || strlen(pattern) > KVP_PATTERN_MAX) return KVP_BAD_PATTERN;
    return remove_many(pool, pattern, opts, removed_out, held_out);
}

int
kvpool_remove_all(kvpool_t *pool, const kvpool_opts_t *opts, uint64_t *removed_out, uint64_t *held_out)
{
    return remove_many(pool, "", opts, removed_out, held_out);
}

/* ---- bump */
typedef struct {
    uint32_t wait_ms;
    uint32_t epoch;
} bump_t;

static void
build_bump(void *arg, const kvp_op_session_t *session, kvp_buf_t *out)
{
    const bump_t *b = arg;
    Kvp__Pb__Bump head = KVP__PB__BUMP__INIT;
    size_t at;

    (void)session;
    head.wait_ms = b->wait_ms;
    kvp_pb_frame_begin(out, KVP_OP_BUMP, 0, 0, &head.base, &at);
    kvp_frame_end(out, at);
}

static kvp_err_t
read_bump(void *arg, const kvp_frame_t *answer, bool was_cut)
{
    bump_t *b = arg;
    Kvp__Pb__BumpReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    (void)was_cut;
    msg = kvp_pb_unpack(&pb, &kvp__pb__bump_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    b->epoch = msg->epoch;
    kvp_pb_free(&pb, msg);
    return err;
}

int
kvpool_bump(kvpool_t *pool, const kvpool_opts_t *opts, uint32_t *epoch_out)
{
    bump_t b = {.epoch = 0};
    kvp_query_t query = {.arg = &b, .build = build_bump, .read = read_bump};
    kvp_apicall_t call;
    kvp_err_t err = kvp_call_begin(pool, opts, &call);

    if (err != KVP_OK) return err;
    b.wait_ms = kvp_call_left_ms(&call);
    err = kvp_query_run(&call, &query);
    if (err == KVP_OK) forget_known(pool, NULL);
    if (err == KVP_OK && epoch_out != NULL) *epoch_out = b.epoch;
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
