/* SPDX-License-Identifier: Apache-2.0
 * The masters of a pool: those that are there, and those that are missing. */
#include "master/ha/roster.h"

#include "common/clock.h"
#include "proto/wire.h"
#include "tests/cases.h"

#include <stdio.h>
#include <string.h>

static kvp_master_peer_t rows[KVP_MASTERS_MAX];

static kvp_election_master_t
master(const char *id, const char *address)
{
    kvp_election_master_t m = {0};

    snprintf(m.id, sizeof m.id, "%s", id);
    snprintf(m.address, sizeof m.address, "%s", address);
    return m;
}

/* Of a leader "1" with the standbys "2" and "3", all in sync. */
static kvp_ha_status_t
whole(void)
{
    kvp_ha_status_t st = {.self = master("1", "h1:1"), .leader = master("1", "h1:1"), .masters_n = 3, .standbys_n = 2};

    st.masters[0] = st.self;
    st.masters[1] = master("2", "h2:1");
    st.masters[2] = master("3", "h3:1");
    for (uint32_t i = 0; i < 2; i++) {
        memcpy(st.standbys[i].id, st.masters[i + 1].id, sizeof st.standbys[i].id);
        st.standbys[i].is_insync = true;
    }
    return st;
}

/* state_of returns the state of the row with that id; 0 if there is none. */
static uint32_t
state_of(uint32_t n, const char *id)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(rows[i].id, id) == 0) return rows[i].state;
    return 0;
}

/* Fails if a master that went is not missing, or is it when it is back, was replaced, or was taken out long ago. */
TEST(test_missing)
{
    kvp_masterlist_t r = {0};
    kvp_ha_status_t st = whole();
    uint32_t n;

    assert_int_equal(kvp_roster_update(&r, &st, 1, rows), 3);
    assert_int_equal(rows[0].state, KVP_MASTER_LEADER);
    assert_int_equal(state_of(3, "2"), KVP_MASTER_STANDBY);
    st.masters_n = 2;
    st.standbys_n = 1;
    n = kvp_roster_update(&r, &st, 2, rows);
    assert_int_equal(n, 3);
    assert_int_equal(state_of(n, "3"), KVP_MASTER_MISSING);
    assert_string_equal(rows[2].address, "h3:1");
    st = whole();
    n = kvp_roster_update(&r, &st, 3, rows);
    assert_int_equal(state_of(n, "3"), KVP_MASTER_STANDBY);
    st.masters[2] = master("4", "h3:1"); /* a new data directory */
    n = kvp_roster_update(&r, &st, 4, rows);
    assert_int_equal(n, 3);
    assert_int_equal(state_of(n, "3"), 0);
    st.masters_n = 2;
    n = kvp_roster_update(&r, &st, 3 + KVP_ROSTER_FORGET_NS, rows);
    assert_int_equal(state_of(n, "4"), KVP_MASTER_MISSING);
    assert_int_equal(kvp_roster_update(&r, &st, 4 + KVP_ROSTER_FORGET_NS, rows), 2);
}

/* Fails if a master that began later does not know from the in-sync set that one is missing; or what a standby knows is
 * wrong. */
TEST(test_from_the_set)
{
    kvp_masterlist_t r = {0};
    kvp_ha_status_t st = whole();
    uint32_t n;

    st.masters_n = 2;
    st.self = st.masters[1];
    st.insync.n = 3;
    snprintf(st.insync.ids[0], sizeof st.insync.ids[0], "1");
    snprintf(st.insync.ids[1], sizeof st.insync.ids[1], "2");
    snprintf(st.insync.ids[2], sizeof st.insync.ids[2], "3");
    n = kvp_roster_update(&r, &st, 1, rows);
    assert_int_equal(n, 3);
    assert_int_equal(state_of(n, "1"), KVP_MASTER_LEADER);
    assert_int_equal(state_of(n, "2"), KVP_MASTER_STANDBY);
    assert_int_equal(state_of(n, "3"), KVP_MASTER_MISSING);
    st.insync.n = 2;
    assert_int_equal(state_of(kvp_roster_update(&r, &st, 2, rows), "3"), KVP_MASTER_MISSING);
}

/* Fails if a standby that does not follow, or is not in the set, is one as any other. */
TEST(test_apart)
{
    kvp_masterlist_t r = {0};
    kvp_ha_status_t st = whole();
    uint32_t n;

    st.standbys_n = 1;
    st.standbys[0].is_insync = false;
    st.standbys[0].lag_bytes = 77;
    n = kvp_roster_update(&r, &st, 1, rows);
    assert_int_equal(state_of(n, "2"), KVP_MASTER_LAGGING);
    assert_int_equal(rows[1].lag_bytes, 77);
    assert_int_equal(state_of(n, "3"), KVP_MASTER_APART);
}

TEST_MAIN()
