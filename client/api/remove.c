/* SPDX-License-Identifier: Apache-2.0
 * Removes objects: by key, with one question to the master for a window of keys; all objects whose keys match a
 * pattern; and all objects put so far (bump). */
#include "client/api/pool.h"

#include "client/core/places.h"
#include "common/waits.h"
#include "proto/pb.h"

#include "proto/kvpool.pb-c.h"

#include <string.h>

#define RETRY_NS (20 * KVP_NS_PER_MS)

/* Begins a call of a removal. The call is patient: it waits for the master up to its deadline. */
static kvp_err_t
begin_removal(kvpool_t *pool, const kvpool_opts_t *opts, kvp_apicall_t *call_out)
{
    kvp_err_t err = kvp_call_begin(pool, opts, call_out);

    if (err != KVP_OK) return err;
    call_out->is_patient = true;
    kvp_call_measure(call_out, KVP_CALL_remove);
    return KVP_OK;
}

/* Drops the cached locations of the removed keys, because the client that removed a key must not read the key from
 * its own cache any more. */
static void
forget_removed(kvpool_t *pool, const kvpool_key_t *keys, const int *results, size_t n)
{
    kvp_link_t *link = kvp_session_hold_known(pool->session);
    kvp_op_session_t session;

    if (link == NULL) return;
    session = kvp_link_session(pool, link);
    for (size_t i = 0; i < n; i++)
        if (results[i] == KVP_OK) kvp_locations_forget(link->locs, kvp_op_digest(&session, keys[i].data, keys[i].len));
    kvp_session_rele(pool->session, link);
}

static void
forget_all(kvpool_t *pool)
{
    kvp_link_t *link = kvp_session_hold_known(pool->session);

    if (link == NULL) return;
    kvp_locations_drop_all(link->locs);
    kvp_session_rele(pool->session, link);
}

/* ---- keys */

static kvp_err_t
read_answer(const kvp_query_t *query, const kvp_frame_t *answer)
{
    int *results = query->arg;
    const void *records;
    kvp_err_t err = kvp_reply_read(answer, query->n, sizeof(int32_t), &records);

    if (err != KVP_OK) return err;
    for (uint32_t i = 0; i < query->n; i++) {
        int32_t one;

        memcpy(&one, (const char *)records + i * sizeof one, sizeof one);
        one = kvp_op_peer_err(one);
        /* an earlier attempt, whose session was lost, may have removed the key */
        results[query->at[i]] = one == KVP_NOT_FOUND && query->was_cut ? KVP_OK : one;
    }
    return KVP_OK;
}

/* Keeps in `at` the indices of the keys whose result is err, and asks the master to remove these keys. Returns their
 * number. */
static uint32_t
ask_of_those(kvp_apicall_t *call, const kvpool_key_t *keys, uint32_t *at, uint32_t n, int *results, int err)
{
    Kvp__Pb__Remove head = KVP__PB__REMOVE__INIT;
    kvp_query_t query = {
        .opcode = KVP_OP_REMOVE, .head = &head, .keys = keys, .at = at, .read = read_answer, .arg = results};

    for (uint32_t i = 0; i < n; i++)
        if (results[at[i]] == err) at[query.n++] = at[i];
    head.n = query.n;
    if (query.n == 0) return 0;
    head.force = (call->flags & KVPOOL_FORCE) != 0;
    head.heeds_probes = (call->flags & KVPOOL_HEED_PROBES) != 0;
    head.wait = (call->flags & KVPOOL_WAIT) != 0;
    head.segment = call->segment;
    err = kvp_query_run(call, &query);
    for (uint32_t i = 0; i < query.n && err != KVP_OK; i++)
        results[at[i]] = err;
    return query.n;
}

/* Asks about the keys with result RETRY_AFTER, then once more about the keys with result HELD. Clients release holds
 * without waiting for the master, so the hold of another client's call that ended before this call began may still be
 * in transit. By our second question the master has handled every message that came before its first answer. */
static void
remove_asking_twice(kvp_apicall_t *call, const kvpool_key_t *keys, uint32_t *at, uint32_t n, int *results)
{
    for (uint32_t i = 0; i < n; i++)
        at[i] = i;
    n = ask_of_those(call, keys, at, n, results, KVP_RETRY_AFTER);
    (void)ask_of_those(call, keys, at, n, results, KVP_HELD);
}

/* Replaces each RETRY_AFTER in results by `to`. Returns true if there was one. */
static bool
replace_retry(int *results, size_t n, int to)
{
    bool is_any = false;

    for (size_t i = 0; i < n; i++) {
        if (results[i] != KVP_RETRY_AFTER) continue;
        results[i] = to;
        is_any = true;
    }
    return is_any;
}

/* Removes the keys of a window, and asks again until the deadline about keys with RETRY_AFTER. The master gives this
 * answer for a while after a take-over, when it does not know all holds yet, and while its log's disk is slow. */
static void
remove_in_time(kvp_apicall_t *call, const kvpool_key_t *keys, uint32_t *at, uint32_t n, int *results)
{
    remove_asking_twice(call, keys, at, n, results);
    while (replace_retry(results, n, KVP_RETRY_AFTER) && kvp_now_ns() + RETRY_NS < call->deadline_ns) {
        if (kvp_session_sleep(call->pool->session, kvp_now_ns() + RETRY_NS) != KVP_OK) {
            (void)replace_retry(results, n, KVP_CLOSED);
            return;
        }
        remove_asking_twice(call, keys, at, n, results);
    }
}

/* Removes at most KVP_PLACES_MAX keys, the most that one question takes. */
static void
remove_window(kvp_apicall_t *call, const kvpool_key_t *keys, uint32_t n, int *results)
{
    uint32_t *at = kvp_scratch_alloc(call->scratch, n, sizeof *at);

    for (uint32_t i = 0; i < n; i++) {
        results[i] = at == NULL ? KVP_NOMEM : KVP_RETRY_AFTER;
        if (!kvp_key_is_legal(keys[i].data, keys[i].len)) results[i] = KVP_BAD_KEY;
    }
    if (at != NULL) remove_in_time(call, keys, at, n, results);
    kvp_scratch_reset(call->scratch);
    forget_removed(call->pool, keys, results, n);
}

int
kvpool_remove(kvpool_t *pool, const void *key, size_t key_len, const kvpool_opts_t *opts)
{
    kvpool_key_t one = {key, key_len};
    kvp_apicall_t call;
    kvp_err_t err = begin_removal(pool, opts, &call);
    int result;

    if (err != KVP_OK) return err;
    remove_window(&call, &one, 1, &result);
    return kvp_call_end(&call, result);
}

int
kvpool_batch_remove(kvpool_t *pool, const kvpool_key_t *keys, size_t n, const kvpool_opts_t *opts, int *results)
{
    kvp_apicall_t call;
    kvp_err_t err = begin_removal(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (n > 0 && (keys == NULL || results == NULL)) return kvp_call_end(&call, KVP_INVALID);
    for (size_t i = 0; i < n; i += KVP_PLACES_MAX)
        remove_window(&call, keys + i, (uint32_t)kvp_min_u64(n - i, KVP_PLACES_MAX), results + i);
    return kvp_call_end(&call, KVP_OK);
}

/* Runs a query, and repeats it until the deadline while the master answers RETRY_AFTER. The master does so while
 * nodes report to it after a take-over, and while its log's disk is slow. If the deadline passes in a later attempt,
 * the error is RETRY_AFTER. */
static kvp_err_t
run_in_time(kvp_apicall_t *call, kvp_query_t *query)
{
    kvp_err_t err = kvp_query_run(call, query);

    while (err == KVP_RETRY_AFTER && kvp_now_ns() + RETRY_NS < call->deadline_ns) {
        err = kvp_session_sleep(call->pool->session, kvp_now_ns() + RETRY_NS);
        if (err == KVP_OK) err = kvp_query_run(call, query);
        if (err == KVP_DEADLINE) return KVP_RETRY_AFTER;
    }
    return err;
}

/* ---- all keys that match a pattern */
typedef struct {
    uint64_t removed;
    uint64_t held;
} remove_many_t;

static kvp_err_t
read_remove_many(const kvp_query_t *query, const kvp_frame_t *answer)
{
    remove_many_t *r = query->arg;
    Kvp__Pb__RemoveManyReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

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
    Kvp__Pb__RemoveMany head = KVP__PB__REMOVE_MANY__INIT;
    remove_many_t r = {0};
    kvp_query_t query = {.opcode = KVP_OP_REMOVE_MANY, .head = &head, .read = read_remove_many, .arg = &r};
    kvp_apicall_t call;
    kvp_err_t err = begin_removal(pool, opts, &call);

    if (err != KVP_OK) return err;
    if (removed_out == NULL) return kvp_call_end(&call, KVP_INVALID);
    if ((call.flags & KVPOOL_WAIT) != 0) return kvp_call_end(&call, KVP_NOTSUP);
    head.pattern = (char *)pattern;
    head.is_all = pattern[0] == '\0';
    head.force = (call.flags & KVPOOL_FORCE) != 0;
    head.heeds_probes = (call.flags & KVPOOL_HEED_PROBES) != 0;
    err = run_in_time(&call, &query);
    if (err == KVP_OK) forget_all(pool);
    if (err == KVP_OK) *removed_out = r.removed;
    if (err == KVP_OK && held_out != NULL) *held_out = r.held;
    return kvp_call_end(&call, err);
}

int
kvpool_remove_by_regex(kvpool_t *pool, const char *pattern, const kvpool_opts_t *opts, uint64_t *removed_out,
                       uint64_t *held_out)
{
    if (pattern == NULL) return KVP_INVALID;
    /* refuses an empty pattern, so that an empty variable of a script never means "all" */
    if (pattern[0] == '\0' || strlen(pattern) > KVP_PATTERN_MAX) return KVP_BAD_PATTERN;
    return remove_many(pool, pattern, opts, removed_out, held_out);
}

int
kvpool_remove_all(kvpool_t *pool, const kvpool_opts_t *opts, uint64_t *removed_out, uint64_t *held_out)
{
    return remove_many(pool, "", opts, removed_out, held_out);
}

/* ---- bump: invalidate all objects put so far */
static kvp_err_t
read_bump(const kvp_query_t *query, const kvp_frame_t *answer)
{
    uint32_t *epoch = query->arg;
    Kvp__Pb__BumpReply *msg;
    kvp_pb_t pb;
    kvp_err_t err;

    msg = kvp_pb_unpack(&pb, &kvp__pb__bump_reply__descriptor, answer);
    if (msg == NULL) return pb.err;
    err = kvp_op_peer_err(msg->err);
    *epoch = msg->epoch;
    kvp_pb_free(&pb, msg);
    return err;
}

int
kvpool_bump(kvpool_t *pool, const kvpool_opts_t *opts, uint32_t *epoch_out)
{
    Kvp__Pb__Bump head = KVP__PB__BUMP__INIT;
    uint32_t epoch = 0;
    kvp_query_t query = {.opcode = KVP_OP_BUMP, .head = &head, .read = read_bump, .arg = &epoch};
    kvp_apicall_t call;
    kvp_err_t err = begin_removal(pool, opts, &call);

    if (err != KVP_OK) return err;
    head.wait_ms = kvp_left_ms(call.deadline_ns);
    head.is_all = true;
    head.has_epoch = (call.flags & KVPOOL_EPOCH) != 0;
    head.epoch = call.epoch;
    err = run_in_time(&call, &query);
    if (err == KVP_OK) forget_all(pool);
    if (err == KVP_OK && epoch_out != NULL) *epoch_out = epoch;
    return kvp_call_end(&call, err);
}
