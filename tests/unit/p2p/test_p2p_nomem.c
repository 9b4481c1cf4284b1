/* SPDX-License-Identifier: Apache-2.0
 * Allocations fail, one after the other, in every call of an endpoint and in what serves it: the call gives NOMEM or
 * succeeds, the same call succeeds once there is memory, and nothing leaks. A fixture of its own: test_nomem.c wants
 * daemons. */
#include "client/kvpool_p2p.h"
#include "common/log.h"
#include "tests/unit/failalloc.h"
#include "tests/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 100000u
#define STEPS_MAX 500u

typedef struct {
    kvpool_p2p_t *here, *there;
    char at[32];
    uint8_t mine[BYTES], theirs[BYTES], more[BYTES];
} fixture_t;

static fixture_t fix;

static int
open_one(const char *transports, kvpool_p2p_t **p2p_out)
{
    kvpool_p2p_conf_t conf = {.struct_size = sizeof conf, .transports = transports, .flags = KVPOOL_P2P_TRACEABLE};

    return kvpool_p2p_open(&conf, p2p_out);
}

static void
open_both(const char *transports)
{
    assert_int_equal(open_one(transports, &fix.here), KVPOOL_OK);
    assert_int_equal(open_one(transports, &fix.there), KVPOOL_OK);
    assert_int_equal(kvpool_p2p_register(fix.there, fix.theirs, BYTES, NULL), KVPOOL_OK);
    snprintf(fix.at, sizeof fix.at, "127.0.0.1:%u", kvpool_p2p_port(fix.there));
    memset(fix.theirs, 0, BYTES);
}

static void
close_both(void)
{
    kvpool_p2p_free(fix.here);
    kvpool_p2p_free(fix.there);
}

static int
do_write(void)
{
    kvpool_p2p_op_t op = {.local = fix.mine, .remote = (uintptr_t)fix.theirs, .len = BYTES};
    int err = kvpool_p2p_transfer(fix.here, fix.at, KVPOOL_P2P_WRITE, &op, 1, 0);

    if (err == KVPOOL_OK) assert_memory_equal(fix.mine, fix.theirs, BYTES);
    return err;
}

static int
do_read(void)
{
    kvpool_p2p_op_t op = {.local = fix.more, .remote = (uintptr_t)fix.theirs, .len = BYTES};

    return kvpool_p2p_transfer(fix.here, fix.at, KVPOOL_P2P_READ, &op, 1, 0);
}

/* Memory of the endpoints' own, from its beginning to its end, and a write that maps it. */
static int
do_own(void)
{
    void *mine = NULL, *theirs = NULL;
    kvpool_p2p_op_t op = {.len = BYTES};
    int err = kvpool_p2p_alloc(fix.here, BYTES, &mine, NULL);

    if (err == KVPOOL_OK) err = kvpool_p2p_alloc(fix.there, BYTES, &theirs, NULL);
    if (err == KVPOOL_OK) {
        op.local = mine;
        op.remote = (uintptr_t)theirs;
        memset(mine, 9, BYTES);
        err = kvpool_p2p_transfer(fix.here, fix.at, KVPOOL_P2P_WRITE, &op, 1, 0);
    }
    if (err == KVPOOL_OK) assert_memory_equal(mine, theirs, BYTES);
    if (theirs != NULL) assert_int_equal(kvpool_p2p_unregister(fix.there, theirs), KVPOOL_OK);
    if (theirs != NULL) assert_int_equal(kvpool_p2p_dealloc(fix.there, theirs), KVPOOL_OK);
    if (mine != NULL) assert_int_equal(kvpool_p2p_dealloc(fix.here, mine), KVPOOL_OK);
    return err;
}

static int
do_register(void)
{
    int err = kvpool_p2p_register(fix.here, fix.more, BYTES, NULL);

    if (err == KVPOOL_OK) assert_int_equal(kvpool_p2p_unregister(fix.here, fix.more), KVPOOL_OK);
    return err;
}

static int
do_submit(void)
{
    kvpool_p2p_op_t op = {.local = fix.mine, .remote = (uintptr_t)fix.theirs, .len = BYTES};
    uint64_t id;
    int result, err = kvpool_p2p_submit(fix.here, fix.at, KVPOOL_P2P_WRITE, &op, 1, 0, &id);

    if (err != KVPOOL_OK) return err;
    assert_int_equal(kvpool_p2p_poll(fix.here, id, 20000, &result), KVPOOL_OK);
    return result;
}

static int
do_notify(void)
{
    return kvpool_p2p_notify(fix.here, fix.at, "name", "message", 0);
}

static void
each_fails(int (*run)(void), const char *name, const char *transports)
{
    bool has_failed = true;
    uint64_t n = 0;

    while (has_failed) {
        const int64_t live = fail_live();
        int err;

        if (n++ == STEPS_MAX) fail_msg("%s never ran out of allocations", name);
        open_both(transports);
        fail_arm(n, false);
        err = run();
        has_failed = fail_disarm();
        if (err != KVPOOL_OK && (err != KVPOOL_NOMEM || !has_failed))
            fail_msg("%s by %s, allocation %llu: %s", name, transports, (unsigned long long)n, kvpool_errname(err));
        err = run();
        if (err != KVPOOL_OK)
            fail_msg("%s by %s, after allocation %llu had failed: %s", name, transports, (unsigned long long)n,
                     kvpool_errname(err));
        close_both();
        if (fail_live() != live) fail_msg("%s by %s, allocation %llu: a leak", name, transports, (unsigned long long)n);
    }
    assert_true(n > 2); /* there were some to fail */
}

TEST(test_transfers)
{
    static const char *const paths[] = {"cma,tcp", "tcp"};

    for (size_t i = 0; i < 2; i++) {
        each_fails(do_write, "write", paths[i]);
        each_fails(do_read, "read", paths[i]);
        each_fails(do_submit, "submit", paths[i]);
        each_fails(do_own, "own memory", paths[i]);
    }
}

TEST(test_other_calls)
{
    each_fails(do_register, "register", "tcp");
    each_fails(do_notify, "notify", "tcp");
}

TEST(test_open)
{
    bool has_failed = true;

    for (uint64_t n = 1; has_failed; n++) {
        const int64_t live = fail_live();
        kvpool_p2p_t *p2p = NULL;
        int err;

        fail_arm(n, false);
        err = open_one(NULL, &p2p);
        has_failed = fail_disarm();
        if (err != KVPOOL_OK && err != KVPOOL_NOMEM)
            fail_msg("allocation %llu: %s", (unsigned long long)n, kvpool_errname(err));
        assert_true((err == KVPOOL_OK) == (p2p != NULL));
        kvpool_p2p_free(p2p);
        if (fail_live() != live) fail_msg("allocation %llu: a leak", (unsigned long long)n);
    }
}

int
main(void)
{
    kvp_log_set_level(KVP_LOG_ERROR);
    memset(fix.mine, 7, sizeof fix.mine);
    return run_cases(NULL, NULL);
}
