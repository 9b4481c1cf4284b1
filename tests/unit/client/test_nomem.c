/* SPDX-License-Identifier: Apache-2.0
 * Allocations of libkvpool fail, one after the other, in every operation against a real master and two nodes: each
 * call gives NOMEM or succeeds, in time; what it began is over, so that the same call succeeds once there is memory;
 * and nothing leaks. */
#include "tools/base/procs.h"
#include "client/kvpool.h"
#include "common/clock.h"
#include "common/log.h"
#include "tests/unit/failalloc.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 20000u
#define BATCH 80u /* more than a batch has room for on the stack */
#define DEADLINE_MS 5000u
#define DEADLINE_FOR_GOOD_MS 60u /* where all further allocations fail, there is nothing to wait for */
#define SLACK_MS 2000u /* a shared machine */
#define STEPS_MAX 2000u
#define SETTLE_NS (5 * KVP_NS_PER_S)

typedef struct {
    kvp_local_pool_t local;
    kvpool_t *pool;
    uint8_t memory[BATCH * SIZE];
    int results[BATCH];
    kvpool_opts_t opts; /* of the operation under test */
} fixture_t;

static fixture_t fix;

/* ---- operations. Called again, each does the same again. */
static int
worst(int err, size_t n)
{
    for (size_t i = 0; i < n && err == KVPOOL_OK; i++)
        if (fix.results[i] < 0) err = fix.results[i];
    return err;
}

static int
batch(bool is_put, const char *prefix)
{
    static char keys[BATCH][16];
    static kvpool_iov_t iov[BATCH];
    static kvpool_item_t items[BATCH];
    int err;

    for (size_t i = 0; i < BATCH; i++) {
        iov[i] = (kvpool_iov_t){fix.memory + i * SIZE, SIZE};
        items[i] = (kvpool_item_t){.iov = &iov[i], .iov_n = 1};
        items[i].key = (kvpool_key_t){keys[i], (size_t)snprintf(keys[i], sizeof keys[i], "%s%zu", prefix, i)};
    }
    err = is_put ? kvpool_batch_put(fix.pool, items, BATCH, &fix.opts, fix.results)
                 : kvpool_batch_get(fix.pool, items, BATCH, &fix.opts, fix.results);
    return worst(err, BATCH);
}

typedef enum {
    PUT,
    UPSERT,
    GET,
    BATCH_PUT,
    BATCH_GET,
    BATCH_EXISTS,
    EXISTS,
    LOCATE,
    SIZE_OF,
    LOOKUP,
    PREFIX,
    VIEW,
    REMOVE,
    REGEX,
    REMOVE_ALL, /* nothing is there any more behind these two */
    BUMP,
    LIST,
    STAT,
    REGISTER,
    OPERATIONS,
} operation_t;

static const char *const names[OPERATIONS] = {
    "put",    "upsert", "get",    "batch put", "batch get",  "batch exists", "exists", "locate", "size",     "lookup",
    "prefix", "view",   "remove", "regex",     "remove all", "bump",         "list",   "stat",   "register",
};

static int
ignore_one(void *arg, const void *key, size_t key_len, uint64_t len)
{
    return 0;
}

/* What is there no more is as good as removed, and of two places one is known. */
static int
but_absent(int err)
{
    return err == KVPOOL_NOT_FOUND ? KVPOOL_OK : err;
}

/* The session may have been given up for want of memory: then nobody knows whether the view was good to the end. */
static int
but_stale(int err)
{
    return err == KVPOOL_STALE ? KVPOOL_NOMEM : err;
}

static int
run(operation_t op)
{
    static uint8_t memory[64];
    static char text[65536];
    kvpool_key_t keys[2] = {{"old", 3}, {"absent", 6}};
    kvpool_place_t places[2];
    kvpool_lookup_t lookup;
    kvpool_view_t view;
    uint64_t n = 0;
    size_t len;
    int err, is_there;

    switch (op) {
    case PUT:
        return kvpool_put(fix.pool, "new", 3, fix.memory, SIZE, &fix.opts);
    case UPSERT:
        return kvpool_upsert(fix.pool, "old", 3, fix.memory, SIZE, &fix.opts);
    case GET:
        return kvpool_get(fix.pool, "old", 3, fix.memory, SIZE, &len, &fix.opts);
    case BATCH_PUT:
        return batch(true, "new");
    case BATCH_GET:
        return batch(false, "many");
    case BATCH_EXISTS:
        return worst(kvpool_batch_is_exist(fix.pool, keys, 2, &fix.opts, fix.results), 2);
    case EXISTS:
        return kvpool_exists(fix.pool, "old", 3, &is_there, &fix.opts);
    case LOCATE:
        return but_absent(worst(kvpool_batch_locate(fix.pool, keys, 2, &fix.opts, places, fix.results), 2));
    case SIZE_OF:
        return kvpool_size(fix.pool, "old", 3, &len, &fix.opts);
    case LOOKUP:
        err = kvpool_lookup(fix.pool, keys, 2, 0, &fix.opts, NULL, &lookup);
        return err == KVPOOL_OK ? kvpool_lookup_release(fix.pool, &lookup) : err;
    case PREFIX:
        err = kvpool_longest_prefix(fix.pool, keys, 2, 0, &fix.opts, NULL, &lookup);
        return err == KVPOOL_OK ? kvpool_lookup_release(fix.pool, &lookup) : err;
    case VIEW:
        err = kvpool_view(fix.pool, "old", 3, &fix.opts, &view);
        return err == KVPOOL_OK ? but_stale(kvpool_view_release(fix.pool, &view)) : err;
    case REMOVE:
        return but_absent(kvpool_remove(fix.pool, "doomed", 6, &fix.opts));
    case REGEX:
        return kvpool_remove_by_regex(fix.pool, "^doomed$", &fix.opts, &n, NULL);
    case REMOVE_ALL:
        return kvpool_remove_all(fix.pool, &fix.opts, &n, NULL);
    case BUMP:
        return kvpool_bump(fix.pool, &fix.opts, NULL);
    case LIST:
        return kvpool_list(fix.pool, "", 0, 1000, &n, ignore_one, NULL, &fix.opts);
    case STAT:
        return kvpool_stat(fix.pool, text, sizeof text, &len, &fix.opts);
    default:
        err = kvpool_register(fix.pool, memory, sizeof memory);
        return err == KVPOOL_OK ? kvpool_unregister(fix.pool, memory) : err;
    }
}

/* ---- handles */
static kvpool_conf_t
conf_of(const char *transports)
{
    return (kvpool_conf_t){
        .struct_size = sizeof(kvpool_conf_t),
        .master = fix.local.master.listen,
        .deadline_ms = DEADLINE_MS,
        .transports = transports,
    };
}

static void
open_pool(const char *transports)
{
    const kvpool_conf_t conf = conf_of(transports);

    assert_int_equal(kvpool_open(&conf, &fix.pool), KVPOOL_OK);
    assert_int_equal(kvpool_register(fix.pool, fix.memory, sizeof fix.memory), KVPOOL_OK);
}

static void
close_pool(void)
{
    kvpool_free(fix.pool);
    fix.pool = NULL;
}

/* After a test that failed half way. */
static int
end_test(void **state)
{
    (void)fail_disarm();
    close_pool();
    return 0;
}

/* Puts there what the operations read and remove, and takes away what they put. */
static void
prepare(void)
{
    static char detail[64];
    uint64_t removed, held;

    fix.opts = (kvpool_opts_t){.struct_size = sizeof fix.opts, .detail = detail, .detail_cap = sizeof detail};
    open_pool(NULL);
    assert_int_equal(kvpool_remove_by_regex(fix.pool, "^new", NULL, &removed, &held), KVPOOL_OK);
    assert_int_equal(held, 0);
    assert_int_equal(kvpool_put(fix.pool, "old", 3, fix.memory, SIZE, NULL), KVPOOL_OK);
    assert_int_equal(kvpool_put(fix.pool, "doomed", 6, fix.memory, SIZE, NULL), KVPOOL_OK);
    assert_int_equal(batch(true, "many"), KVPOOL_OK);
    close_pool();
}

/* What the handle under test held for the call is given back while it lives. */
static void
assert_nothing_is_held(operation_t op, uint64_t n)
{
    const kvpool_conf_t conf = conf_of(NULL);
    kvpool_t *other;
    int err;

    assert_int_equal(kvpool_open(&conf, &other), KVPOOL_OK);
    err = kvpool_remove(other, "old", 3, NULL);
    if (err == KVPOOL_OK) err = kvpool_remove(other, "many1", 5, NULL);
    if ((op == REMOVE_ALL || op == BUMP) && err == KVPOOL_NOT_FOUND) err = KVPOOL_OK;
    kvpool_free(other);
    if (err != KVPOOL_OK)
        fail_msg("%s, after allocation %llu had failed: %s", names[op], (unsigned long long)n, kvpool_errname(err));
}

static void
assert_result(operation_t op, uint64_t n, int err, bool is_for_good)
{
    if (err == KVPOOL_OK || err == KVPOOL_NOMEM) return;
    /* Without any memory there is no new session either, and the call waits for one as long as it may. */
    if (is_for_good && err == KVPOOL_DEADLINE) return;
    fail_msg("%s, allocation %llu: %s", names[op], (unsigned long long)n, kvpool_errname(err));
}

/* A node that was not told in time that writes are over, on a busy machine, is told by the next handle: until then that
 * is kept in mind. */
static bool
has_leaked(int64_t live)
{
    uint64_t until = kvp_now_ns() + SETTLE_NS;

    while (fail_live() != live && kvp_now_ns() < until) {
        open_pool(NULL);
        close_pool();
    }
    return fail_live() != live;
}

/* One operation on a new handle with its n-th allocation failing. Returns whether there was one. */
static bool
step(operation_t op, uint64_t n, const char *transports, bool is_for_good)
{
    const int64_t live = fail_live();
    uint64_t begun;
    bool has_failed, is_late;
    int err;

    prepare();
    open_pool(transports);
    fix.opts.deadline_ms = is_for_good ? DEADLINE_FOR_GOOD_MS : 0;
    begun = kvp_now_ns();
    fail_arm(n, is_for_good);
    err = run(op);
    has_failed = fail_disarm();
    assert_true((kvp_now_ns() - begun) / KVP_NS_PER_MS < (is_for_good ? DEADLINE_FOR_GOOD_MS : 0) + SLACK_MS);
    assert_result(op, n, err, is_for_good);
    is_late = is_for_good && err == KVPOOL_DEADLINE; /* which is short, and the machine may be busy */
    if (err != KVPOOL_OK && !is_late) assert_true(has_failed);
    fix.opts.deadline_ms = 0;
    err = run(op);
    if (err != KVPOOL_OK)
        fail_msg("%s, after allocation %llu had failed: %s", names[op], (unsigned long long)n, kvpool_errname(err));
    assert_nothing_is_held(op, n);
    close_pool();
    if (has_leaked(live)) fail_msg("%s, allocation %llu: a leak", names[op], (unsigned long long)n);
    return has_failed || is_late;
}

static void
fail_each(const char *transports, bool is_for_good)
{
    for (operation_t op = 0; op < OPERATIONS; op++) {
        uint64_t n = 1;

        if (op == VIEW && strcmp(transports, "tcp") == 0) continue; /* a view needs shared memory */
        while (step(op, n, transports, is_for_good))
            if (n++ == STEPS_MAX) fail_msg("%s never ran out of allocations", names[op]);
        assert_true(n > 1); /* there was one to fail */
    }
}

/* ---- tests */
TEST_WITH(test_one_fails_over_shared_memory, NULL, end_test)
{
    fail_each("shm", false);
}

TEST_WITH(test_one_fails_over_tcp, NULL, end_test)
{
    fail_each("tcp", false);
}

TEST_WITH(test_all_fail_from_one_on, NULL, end_test)
{
    fail_each("shm", true);
}

TEST_WITH(test_open_fails, NULL, end_test)
{
    const uint64_t memory[] = {0, 1u << 20}; /* without and with an embedded node */

    for (size_t i = 0; i < KVP_ARRAY_LEN(memory); i++) {
        bool has_failed = true;

        for (uint64_t n = 1; has_failed; n++) {
            const int64_t live = fail_live();
            kvpool_conf_t conf = conf_of(NULL);
            int err;

            conf.memory_bytes = memory[i];
            fail_arm(n, false);
            err = kvpool_open(&conf, &fix.pool);
            has_failed = fail_disarm();
            if (err != KVPOOL_OK && err != KVPOOL_NOMEM)
                fail_msg("allocation %llu: %s", (unsigned long long)n, kvpool_errname(err));
            if (err == KVPOOL_OK) assert_int_equal(run(BATCH_EXISTS), KVPOOL_OK);
            if (err == KVPOOL_OK) close_pool();
            if (has_leaked(live)) fail_msg("allocation %llu: a leak", (unsigned long long)n);
        }
    }
}

TEST_WITH(test_close_fails, NULL, end_test)
{
    bool has_failed = true;

    for (uint64_t n = 1; has_failed; n++) {
        const int64_t live = fail_live();
        int err;

        prepare();
        open_pool("shm");
        assert_int_equal(run(PUT), KVPOOL_OK); /* a node that has to be told that nothing more is written */
        fail_arm(n, false);
        err = kvpool_close(fix.pool);
        has_failed = fail_disarm();
        assert_int_equal(err, KVPOOL_OK); /* it gives no error for what it could not say */
        assert_int_equal(run(BATCH_EXISTS), KVPOOL_CLOSED);
        close_pool();
        if (has_leaked(live)) fail_msg("allocation %llu: a leak", (unsigned long long)n);
    }
}

static int
start_pool(void **state)
{
    kvp_local_conf_t conf = {.listen = "127.0.0.1:0", .nodes = 2, .memory_bytes = {8u << 20, 8u << 20}};

    kvp_log_set_level(KVP_LOG_ERROR);
    memset(fix.memory, 7, sizeof fix.memory);
    return kvp_local_start(&fix.local, &conf) == KVP_OK ? 0 : -1;
}

static int
stop_pool(void **state)
{
    return kvp_local_stop(&fix.local);
}

TEST_MAIN_WITH(start_pool, stop_pool)
