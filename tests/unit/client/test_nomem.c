/* SPDX-License-Identifier: Apache-2.0
 * Allocations of libkvpool fail, one after the other, in every operation against a real master and two nodes: each call
 * gives NOMEM or succeeds, in time; what it began is over, so that the same call succeeds once there is memory; and
 * nothing leaks.
 */
#include "client/cli/base/procs.h"
#include "client/kvpool.h"
#include "common/clock.h"
#include "common/log.h"
#include "tests/unit/client/failalloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIZE 20000u
#define BATCH 80u /* more than a batch has room for on the stack */
#define DEADLINE_MS 5000u
#define DEADLINE_FOR_GOOD_MS 60u /* where all further allocations fail, there is nothing to wait for */
#define SLACK_MS 2000u /* a shared machine */
#define STEPS_MAX 2000u
#define SETTLE_NS (5 * KVP_NS_PER_S)

typedef struct {
    kvp_local_t local;
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
do_put(void)
{
    return kvpool_put(fix.pool, "new", 3, fix.memory, SIZE, &fix.opts);
}

static int
do_upsert(void)
{
    return kvpool_upsert(fix.pool, "old", 3, fix.memory, SIZE, &fix.opts);
}

static int
do_get(void)
{
    size_t len;

    return kvpool_get(fix.pool, "old", 3, fix.memory, SIZE, &len, &fix.opts);
}

static int
batch(bool is_put, const char *prefix)
{
    static char names[BATCH][16];
    static kvpool_iov_t iov[BATCH];
    static kvpool_item_t items[BATCH];
    int err;

    for (size_t i = 0; i < BATCH; i++) {
        iov[i] = (kvpool_iov_t){fix.memory + i * SIZE, SIZE};
        items[i] = (kvpool_item_t){.iov = &iov[i], .iov_n = 1};
        items[i].key = (kvpool_key_t){names[i], (size_t)snprintf(names[i], sizeof names[i], "%s%zu", prefix, i)};
    }
    err = is_put ? kvpool_batch_put(fix.pool, items, BATCH, &fix.opts, fix.results)
                 : kvpool_batch_get(fix.pool, items, BATCH, &fix.opts, fix.results);
    return worst(err, BATCH);
}

static int
do_batch_put(void)
{
    return batch(true, "new");
}

static int
do_batch_get(void)
{
    return batch(false, "many");
}

static int
do_exists(void)
{
    kvpool_key_t keys[2] = {{"old", 3}, {"absent", 6}};

    return worst(kvpool_batch_is_exist(fix.pool, keys, 2, &fix.opts, fix.results), 2);
}

static int
do_one_exists(void)
{
    int is_there;

    return kvpool_exists(fix.pool, "old", 3, &is_there, &fix.opts);
}

static int
do_locate(void)
{
    kvpool_key_t keys[2] = {{"old", 3}, {"absent", 6}};
    kvpool_place_t places[2];
    int err = worst(kvpool_batch_locate(fix.pool, keys, 2, &fix.opts, places, fix.results), 2);

    return err == KVPOOL_NOT_FOUND ? KVPOOL_OK : err;
}

static int
do_size(void)
{
    size_t len;

    return kvpool_size(fix.pool, "old", 3, &len, &fix.opts);
}

static int
do_lookup(void)
{
    kvpool_key_t keys[2] = {{"old", 3}, {"absent", 6}};
    kvpool_lookup_t lookup;
    int err = kvpool_lookup(fix.pool, keys, 2, 0, &fix.opts, NULL, &lookup);

    return err == KVPOOL_OK ? kvpool_lookup_release(fix.pool, &lookup) : err;
}

static int
do_prefix(void)
{
    kvpool_key_t keys[2] = {{"old", 3}, {"absent", 6}};
    kvpool_lookup_t lookup;
    int err = kvpool_longest_prefix(fix.pool, keys, 2, 0, &fix.opts, &lookup);

    return err == KVPOOL_OK ? kvpool_lookup_release(fix.pool, &lookup) : err;
}

static int
do_view(void)
{
    kvpool_view_t view;
    int err = kvpool_view(fix.pool, "old", 3, &fix.opts, &view);

    if (err != KVPOOL_OK) return err;
    err = kvpool_view_release(fix.pool, &view);
    /* The session may have been given up for want of memory: then nobody knows whether the view was good to the end. */
    return err == KVPOOL_STALE ? KVPOOL_NOMEM : err;
}

static int
do_remove(void)
{
    int err = kvpool_remove(fix.pool, "doomed", 6, &fix.opts);

    return err == KVPOOL_NOT_FOUND ? KVPOOL_OK : err;
}

static int
do_regex(void)
{
    uint64_t removed;

    return kvpool_remove_by_regex(fix.pool, "^doomed$", &fix.opts, &removed, NULL);
}

static int
do_remove_all(void)
{
    uint64_t removed;

    return kvpool_remove_all(fix.pool, &fix.opts, &removed, NULL);
}

static int
do_bump(void)
{
    return kvpool_bump(fix.pool, &fix.opts, NULL);
}

static int
ignore_one(void *arg, const void *key, size_t key_len, uint64_t len)
{
    (void)arg, (void)key, (void)key_len, (void)len;
    return 0;
}

static int
do_list(void)
{
    uint64_t cursor = 0;

    return kvpool_list(fix.pool, "", 0, 1000, &cursor, ignore_one, NULL, &fix.opts);
}

static int
do_stat(void)
{
    static char text[65536];
    size_t len;

    return kvpool_stat(fix.pool, text, sizeof text, &len, &fix.opts);
}

static int
do_register(void)
{
    static uint8_t memory[64];
    int err = kvpool_register(fix.pool, memory, sizeof memory);

    return err == KVPOOL_OK ? kvpool_unregister(fix.pool, memory) : err;
}

typedef struct {
    const char *name;
    int (*run)(void);
    bool takes_all; /* nothing is there any more behind it */
} operation_t;

static const operation_t operations[] = {
    {"put", do_put, false},
    {"upsert", do_upsert, false},
    {"get", do_get, false},
    {"batch put", do_batch_put, false},
    {"batch get", do_batch_get, false},
    {"batch exists", do_exists, false},
    {"exists", do_one_exists, false},
    {"locate", do_locate, false},
    {"size", do_size, false},
    {"lookup", do_lookup, false},
    {"prefix", do_prefix, false},
    {"view", do_view, false},
    {"remove", do_remove, false},
    {"regex", do_regex, false},
    {"remove all", do_remove_all, true},
    {"bump", do_bump, true},
    {"list", do_list, false},
    {"stat", do_stat, false},
    {"register", do_register, false},
};

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
    (void)state;
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
assert_nothing_is_held(const operation_t *op, uint64_t n)
{
    const kvpool_conf_t conf = conf_of(NULL);
    kvpool_t *other;
    int err;

    assert_int_equal(kvpool_open(&conf, &other), KVPOOL_OK);
    err = kvpool_remove(other, "old", 3, NULL);
    if (err == KVPOOL_OK) err = kvpool_remove(other, "many1", 5, NULL);
    if (op->takes_all && err == KVPOOL_NOT_FOUND) err = KVPOOL_OK;
    kvpool_free(other);
    if (err != KVPOOL_OK)
        fail_msg("%s, after allocation %llu had failed: %s", op->name, (unsigned long long)n, kvpool_errname(err));
}

static void
assert_result(const operation_t *op, uint64_t n, int err, bool is_for_good)
{
    if (err == KVPOOL_OK || err == KVPOOL_NOMEM) return;
    /* Without any memory there is no new session either, and the call waits for one as long as it may. */
    if (is_for_good && err == KVPOOL_DEADLINE) return;
    fail_msg("%s, allocation %llu: %s", op->name, (unsigned long long)n, kvpool_errname(err));
}

/* A node that was not told in time that writes are over, on a busy machine, is told by the next handle: until then that is kept in mind. */
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
step(const operation_t *op, uint64_t n, const char *transports, bool is_for_good)
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
    err = op->run();
    has_failed = fail_disarm();
    assert_true((kvp_now_ns() - begun) / KVP_NS_PER_MS < (is_for_good ? DEADLINE_FOR_GOOD_MS : 0) + SLACK_MS);
    assert_result(op, n, err, is_for_good);
    is_late = is_for_good && err == KVPOOL_DEADLINE; /* which is short, and the machine may be busy */
    if (err != KVPOOL_OK && !is_late) assert_true(has_failed);
    fix.opts.deadline_ms = 0;
    err = op->run();
    if (err != KVPOOL_OK)
        fail_msg("%s, after allocation %llu had failed: %s", op->name, (unsigned long long)n, kvpool_errname(err));
    assert_nothing_is_held(op, n);
    close_pool();
    if (has_leaked(live)) fail_msg("%s, allocation %llu: a leak", op->name, (unsigned long long)n);
    return has_failed || is_late;
}

static void
fail_each(const char *transports, bool is_for_good)
{
    for (size_t i = 0; i < KVP_ARRAY_LEN(operations); i++) {
        uint64_t n = 1;

        if (operations[i].run == do_view && strcmp(transports, "tcp") == 0) continue; /* a view needs shared memory */
        while (step(&operations[i], n, transports, is_for_good))
            if (n++ == STEPS_MAX) fail_msg("%s never ran out of allocations", operations[i].name);
        assert_true(n > 1); /* there was one to fail */
    }
}

/* ---- tests */
static void
test_one_fails_over_shared_memory(void **state)
{
    (void)state;
    fail_each("shm", false);
}

static void
test_one_fails_over_tcp(void **state)
{
    (void)state;
    fail_each("tcp", false);
}

static void
test_all_fail_from_one_on(void **state)
{
    (void)state;
    fail_each("shm", true);
}

static void
test_open_fails(void **state)
{
    const uint64_t memory[] = {0, 1u << 20}; /* without and with an embedded node */

    (void)state;
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
            if (err == KVPOOL_OK) assert_int_equal(do_exists(), KVPOOL_OK);
            if (err == KVPOOL_OK) close_pool();
            if (has_leaked(live)) fail_msg("allocation %llu: a leak", (unsigned long long)n);
        }
    }
}

static void
test_close_fails(void **state)
{
    bool has_failed = true;

    (void)state;
    for (uint64_t n = 1; has_failed; n++) {
        const int64_t live = fail_live();
        int err;

        prepare();
        open_pool("shm");
        assert_int_equal(do_put(), KVPOOL_OK); /* a node that has to be told that nothing more is written */
        fail_arm(n, false);
        err = kvpool_close(fix.pool);
        has_failed = fail_disarm();
        assert_int_equal(err, KVPOOL_OK); /* it gives no error for what it could not say */
        assert_int_equal(do_exists(), KVPOOL_CLOSED);
        close_pool();
        if (has_leaked(live)) fail_msg("allocation %llu: a leak", (unsigned long long)n);
    }
}

static int
start_pool(void **state)
{
    kvp_local_conf_t conf = {.listen = "127.0.0.1:0", .nodes = 2, .memory_bytes = {8u << 20, 8u << 20}};

    (void)state;
    kvp_log_set_level(KVP_LOG_ERROR);
    memset(fix.memory, 7, sizeof fix.memory);
    return kvp_local_start(&fix.local, &conf) == KVP_OK ? 0 : -1;
}

static int
stop_pool(void **state)
{
    (void)state;
    return kvp_local_stop(&fix.local);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_one_fails_over_shared_memory, end_test),
        cmocka_unit_test_teardown(test_one_fails_over_tcp, end_test),
        cmocka_unit_test_teardown(test_all_fail_from_one_on, end_test),
        cmocka_unit_test_teardown(test_open_fails, end_test),
        cmocka_unit_test_teardown(test_close_fails, end_test),
    };

    return cmocka_run_group_tests_name("nomem", tests, start_pool, stop_pool);
}
