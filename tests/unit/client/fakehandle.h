/* SPDX-License-Identifier: Apache-2.0
 * A fake master and a handle of libkvpool that is opened there. Header only. */
#ifndef KVP_TEST_FAKEHANDLE_H
#define KVP_TEST_FAKEHANDLE_H

#include "client/kvpool.h"

#include "tests/unit/net/fakemaster.h"
#include "tests/cases.h"

#include <stdio.h>

/* Of the test at hand. */
static fake_master_t master;
static bool has_master;
static char master_at[64];
static kvpool_t *pool;

static inline kvpool_conf_t
conf_of(uint32_t deadline_ms)
{
    return (kvpool_conf_t){.struct_size = sizeof(kvpool_conf_t), .master = master_at, .deadline_ms = deadline_ms};
}

static inline void
end_master(void)
{
    if (has_master) fake_master_end(&master);
    has_master = false;
}

static inline int
teardown(void **state)
{
    kvpool_free(pool);
    pool = NULL;
    end_master();
    return 0;
}

/* In the place of what there is. */
static inline void
setup_for(uint32_t deadline_ms)
{
    kvpool_conf_t conf = conf_of(deadline_ms);

    (void)teardown(NULL);
    fake_master_start(&master);
    has_master = true;
    snprintf(master_at, sizeof master_at, "127.0.0.1:%u", master.port);
    assert_int_equal(kvpool_open(&conf, &pool), KVPOOL_OK);
}

static inline int
setup(void **state)
{
    setup_for(20000);
    return 0;
}

#endif
