/* SPDX-License-Identifier: Apache-2.0
 * The location lease over a suspend of this host: the clock that counts it is put forward, the other one is not. */
#include "client/control/session.h"

#include "common/clock.h"
#include "tests/unit/net/fakemaster.h"
#include "tests/cases.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

#define LONG_NS (20 * KVP_NS_PER_S)
#define HOUR_NS (3600 * KVP_NS_PER_S)
#define LEASE_MS 60000u

static _Atomic uint64_t suspended_ns;

/* The linker puts these in the place of kvp_boot_ns. */
uint64_t __real_kvp_boot_ns(void);
uint64_t __wrap_kvp_boot_ns(void);

uint64_t
__wrap_kvp_boot_ns(void)
{
    return __real_kvp_boot_ns() + suspended_ns;
}

/* A location is kept, and the lease for it comes with a heartbeat. */
static void
get_lease(kvp_mastersession_t *session)
{
    kvp_cached_place_t place = {.version = 1, .len = 1, .nloc = 1};
    kvp_link_t *link, *leased;
    const kvp_known_t *known;

    assert_int_equal(kvp_session_hold(session, kvp_now_ns() + LONG_NS, &link), KVP_OK);
    known = kvp_locations_known(link->locs);
    assert_true(known->keep(known, (kvp_digest_t){1, 2}, &place, 0));
    while ((leased = kvp_session_hold_known(session)) == NULL)
        sched_yield();
    assert_ptr_equal(leased, link);
    kvp_session_rele(session, leased);
    kvp_session_rele(session, link);
}

TEST(test_lease_does_not_outlast_a_suspend)
{
    fake_master_t master;
    kvp_counters_t counters = {0};
    kvp_session_conf_t conf = {.peers = {.name = "a test", .host_id = "a host"}, .locations = 16};
    kvp_mastersession_t *session;
    char at[32];

    fake_master_start(&master);
    master.lease_ms = LEASE_MS;
    snprintf(at, sizeof at, "127.0.0.1:%u", master.port);
    conf.masters = at;
    conf.peers.counters = &counters;
    assert_int_equal(kvp_session_start(&conf, kvp_now_ns() + LONG_NS, &session), KVP_OK);
    get_lease(session);
    master.is_mute = true; /* no heartbeat renews it */
    suspended_ns = HOUR_NS;
    assert_null(kvp_session_hold_known(session));
    kvp_session_stop(session);
    kvp_session_destroy(session);
    fake_master_end(&master);
}

TEST_MAIN()
