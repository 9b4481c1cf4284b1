/* SPDX-License-Identifier: Apache-2.0
 * A master without main: the real core in the real shell, on a thread of its own, on a free port of loopback. For
 * tests. */
#ifndef KVP_TESTS_MASTER_FIXTURE_H
#define KVP_TESTS_MASTER_FIXTURE_H

#include "master/shell/server.h"

#include "common/clock.h"
#include "common/daemon/loop.h"
#include "tests/cases.h"

#include <pthread.h>
#include <string.h>

#define WAIT_MS 20000

typedef struct {
    uv_loop_t uv;
    kvp_loop_t loop;
    kvp_server_t *server;
    kvp_master_t *core;
    pthread_t thread;
    kvp_server_stats_t stats;
    kvp_master_stats_t core_stats;
    kvp_times_t times; /* where the test brings none */
} fixture_t;

static inline void *
fixture_run(void *arg)
{
    fixture_t *fix = arg;
    uv_run(&fix->uv, UV_RUN_DEFAULT);
    return NULL;
}

static inline void
fixture_stop(void *arg)
{
    fixture_t *fix = arg;
    kvp_server_stop(fix->server);
    kvp_loop_stop(&fix->loop);
}

static inline void
fixture_start(fixture_t *fix, const kvp_server_conf_t *like, kvp_times_t *times)
{
    kvp_server_conf_t conf = *like;
    kvp_master_conf_t core_conf = {.pool_id = {0xab, 1},
                                   .digest_seed = 7,
                                   .seed = 7,
                                   .term = 1,
                                   .host_id = "here",
                                   .unix_path = "",
                                   .saves_ident = like->save_ident != NULL};

    memset(fix, 0, sizeof(*fix));
    assert_int_equal(kvp_parse_hostport("127.0.0.1:0", &conf.listen), KVP_OK);
    assert_int_equal(kvp_server_create(&conf, &fix->server), KVP_OK);
    assert_int_equal(kvp_master_create(&core_conf, kvp_boot_ns(), &fix->core), KVP_OK);
    assert_int_equal(uv_loop_init(&fix->uv), 0);
    assert_int_equal(kvp_loop_start(&fix->loop, &fix->uv, fixture_stop, fix), KVP_OK);
    assert_int_equal(kvp_server_start(fix->server, &fix->uv, fix->core, times != NULL ? times : &fix->times), KVP_OK);
    assert_int_equal(pthread_create(&fix->thread, NULL, fixture_run, fix), 0);
}

static inline void
fixture_finish(fixture_t *fix)
{
    kvp_err_t err = kvp_loop_call(&fix->loop, fixture_stop, fix, WAIT_MS);
    assert_true(err == KVP_OK || err == KVP_CLOSED);
    pthread_join(fix->thread, NULL);
    assert_int_equal(uv_loop_close(&fix->uv), 0);
    kvp_loop_fini(&fix->loop);
    kvp_master_destroy(fix->core);
    kvp_server_destroy(fix->server);
}

#endif
