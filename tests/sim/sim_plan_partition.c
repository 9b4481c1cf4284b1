/* SPDX-License-Identifier: Apache-2.0
 * Plans of clients that go on where their master does not reach them or their node, or is no more: readers of known
 * locations, and writers that sleep over a descriptor. Each is made for the histories that are told here, in which a
 * rule matters that other plans seldom need. */
#include "tests/sim/sim_plan_priv.h"

#include "common/base.h"

/* ---- partition: one thread of each client only reads, so that none of it waits for the master all the time.
 *
 * A host is cut off, with the clients and the node on it. Its own clients read on for the grace, by shared memory, what
 * is removed meanwhile, and who waits for their leases has to wait for theirs as well (LEASE_OF_THE_LOST). Those of the
 * third host read from that node by TCP, under a lease that the master renews. The node is soon given up, and with it
 * all that the master knew of it: when a key is put again nothing tells that somebody may know the old place
 * (REVOKE_OF_LOST). */
static void
make_cut_off(plan_t *plan, rng_t *rng)
{
    uint64_t at_ns = rng_between(rng, 300 * MS, 800 * MS);

    plan->keys = (uint32_t)rng_between(rng, 8, 24);
    plan->len_max = (uint32_t)rng_log(rng, 256, 2048);
    plan->node_grace_ns = rng_log(rng, MS, 200 * MS);
    for (uint32_t n = (uint32_t)rng_between(rng, 1, 3); n > 0; n--) {
        (void)plan_add(plan, CHOICE_CUT_HOST, at_ns);
        at_ns += rng_between(rng, 200 * MS, SEC);
    }
}

/* A node stops, and those who read its memory do not. In a full pool some of what it has is evicted before it is known
 * to be late, and no DEAD comes; then it is put again elsewhere, or removed: the node is not lost all the while, and an
 * eviction revokes nothing (REVOKE_NOT_DEAD_YET). */
static void
make_silent(plan_t *plan, rng_t *rng)
{
    uint64_t at_ns = rng_between(rng, 300 * MS, 800 * MS);

    plan->len_max = 16384;
    plan->has_one_len = true;
    plan->keys = plan->nodes * 4 + (uint32_t)rng_between(rng, 2, 8);
    for (uint32_t n = (uint32_t)rng_between(rng, 1, 3); n > 0; n--) {
        (void)plan_add(plan, CHOICE_STOP_NODE, at_ns);
        at_ns += rng_between(rng, 200 * MS, SEC);
    }
}

void
plan_make_partition(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_PARTITION);
    uint32_t calls = (uint32_t)rng_between(&rng, 80, 160);

    plan->nodes = (uint32_t)rng_between(&rng, 2, 3);
    plan->clients = 3; /* one on each host */
    plan->threads = THREADS_MAX;
    plan->locations = 32;
    plan->is_leasing = true;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, MS);
    for (uint32_t i = 0; i < plan->choices_n; i++) /* nobody is done before the faults */
        plan->choices[i].at_ns = rng_between(&rng, MS, 30 * MS);
    if (rng_chance(&rng, 500))
        make_cut_off(plan, &rng);
    else
        make_silent(plan, &rng);
}

/* ---- tiers: twice or three times as much as memory has room for, and each of those who have parts of it dies now and
 * then. */
void
plan_make_tiers(plan_t *plan)
{
    static const uint8_t kinds[] = {CHOICE_CRASH_NODE, CHOICE_CRASH_NODE, CHOICE_CRASH_MASTER, CHOICE_CUT_CONN,
                                    CHOICE_CUT_CONN,   CHOICE_STOP_NODE,  CHOICE_KILL_CLIENT};
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_TIERS);
    uint32_t calls = (uint32_t)rng_between(&rng, 40, 120);

    plan->nodes = (uint32_t)rng_between(&rng, 1, 2);
    plan->clients = (uint32_t)rng_between(&rng, 2, 3);
    plan->threads = THREADS_MAX;
    plan->has_tiers = true;
    plan->has_journal = rng_chance(&rng, 700);
    plan->log_sync = KVP_LOG_SYNC_INTERVAL;
    plan->len_max = (uint32_t)rng_log(&rng, 4096, 16384);
    plan->has_one_len = rng_chance(&rng, 500);
    plan->keys = plan->nodes * (64u << 10) / plan->len_max * (uint32_t)rng_between(&rng, 2, 3);
    plan->late_per_mille = rng_chance(&rng, 300) ? 50 : 2;
    plan->locations = rng_chance(&rng, 500) ? 0 : 16;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, MS, 60 * MS));
    for (uint32_t n = (uint32_t)rng_below(&rng, 6); n > 0; n--)
        (void)plan_add(plan, kinds[rng_below(&rng, sizeof kinds)], rng_log(&rng, 5 * MS, 3 * SEC));
}

/* ---- keepers: a node dies while clients are in the midst of puts and gets, some of whom die or stop meanwhile, or a
 * master does. */
void
plan_make_keepers(plan_t *plan)
{
    static const uint8_t kinds[] = {CHOICE_CRASH_NODE,  CHOICE_CRASH_NODE,   CHOICE_CRASH_NODE, CHOICE_KILL_CLIENT,
                                    CHOICE_STOP_CLIENT, CHOICE_CRASH_MASTER, CHOICE_CUT_CONN};
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_KEEPERS);
    uint32_t calls = (uint32_t)rng_between(&rng, 20, 80);

    plan->nodes = (uint32_t)rng_between(&rng, 1, 2);
    plan->clients = 4;
    plan->threads = THREADS_MAX;
    plan->has_keepers = true;
    plan->has_tiers = rng_chance(&rng, 300);
    plan->has_journal = rng_chance(&rng, 500);
    plan->log_sync = KVP_LOG_SYNC_INTERVAL;
    plan->keys = (uint32_t)rng_log(&rng, 4, 32);
    plan->len_max = (uint32_t)rng_log(&rng, 256, 16384);
    plan->late_per_mille = rng_chance(&rng, 300) ? 50 : 2;
    plan->off_cpu_per_mille = (uint32_t)rng_between(&rng, 5, 300);
    plan->locations = rng_chance(&rng, 500) ? 0 : 16;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, MS, 60 * MS));
    for (uint32_t n = (uint32_t)rng_between(&rng, 1, 7); n > 0; n--)
        (void)plan_add(plan, kinds[rng_below(&rng, sizeof kinds)], rng_log(&rng, 2 * MS, 2 * SEC));
}

/* ---- standbys: the master dies during puts and removals, or another leads while it lives, and nodes are away
 * meanwhile. */
void
plan_make_standbys(plan_t *plan)
{
    static const uint8_t kinds[] = {CHOICE_CRASH_NODE, CHOICE_STOP_NODE,   CHOICE_STOP_NODE, CHOICE_KILL_CLIENT,
                                    CHOICE_CUT_CONN,   CHOICE_STOP_MASTER, CHOICE_CUT_HOST,  CHOICE_STOP_CLIENT};
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_STANDBYS), lies;
    uint32_t calls = (uint32_t)rng_between(&rng, 20, 80);
    uint64_t at_ns = rng_log(&rng, 5 * MS, SEC);

    plan->nodes = (uint32_t)rng_between(&rng, 1, 3);
    plan->clients = (uint32_t)rng_between(&rng, 2, 4);
    plan->threads = THREADS_MAX;
    plan->has_journal = plan->has_standby = true;
    plan->log_sync = KVP_LOG_SYNC_INTERVAL;
    plan->keys = (uint32_t)rng_log(&rng, 4, 48);
    plan->len_max = (uint32_t)rng_log(&rng, 256, 16384);
    plan->late_per_mille = rng_chance(&rng, 300) ? 50 : 2;
    plan->off_cpu_per_mille = (uint32_t)rng_between(&rng, 5, 100);
    plan->replicas_max = rng_chance(&rng, 300) ? 2 : 1;
    plan->locations = rng_chance(&rng, 500) ? 0 : 16;
    lies = rng_fork(plan->seed, 2, PROFILE_STANDBYS);
    plan->lies_per_mille = rng_chance(&lies, 300) ? 100 : 0;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, MS, rng_chance(&rng, 300) ? 400 * MS : 60 * MS));
    for (uint32_t n = (uint32_t)rng_between(&rng, 1, 4); n > 0; n--) {
        if (rng_chance(&rng, 300)) (void)plan_add(plan, CHOICE_STOP_NODE, at_ns - rng_below(&rng, at_ns / 4));
        (void)plan_add(plan, rng_chance(&rng, 300) ? CHOICE_SUCCEED : CHOICE_CRASH_MASTER, at_ns);
        at_ns += rng_log(&rng, 20 * MS, rng_chance(&rng, 300) ? 12 * SEC : 2 * SEC);
    }
    for (uint32_t n = (uint32_t)rng_below(&rng, 5); n > 0; n--)
        (void)plan_add(plan, kinds[rng_below(&rng, sizeof kinds)], rng_log(&rng, 2 * MS, 2 * SEC));
}

/* ---- moves: nodes are drained while clients put, get and remove, and all others die now and then. In half of the
 * plans there is room for everything on one node, so nothing may be lost but with its node. */
static void
add_move_faults(plan_t *plan, rng_t *rng)
{
    static const uint8_t kinds[] = {CHOICE_CRASH_NODE, CHOICE_CRASH_NODE, CHOICE_CUT_CONN,    CHOICE_CUT_CONN,
                                    CHOICE_STOP_NODE,  CHOICE_PARTITION,  CHOICE_KILL_CLIENT, CHOICE_STOP_CLIENT,
                                    CHOICE_CUT_HOST,   CHOICE_STOP_MASTER};
    uint64_t at_ns = rng_log(rng, 5 * MS, 200 * MS);

    for (uint32_t n = (uint32_t)rng_between(rng, 1, 8); n > 0; n--) {
        (void)plan_add(plan, CHOICE_DRAIN, at_ns);
        if (rng_chance(rng, 300)) (void)plan_add(plan, CHOICE_CRASH_MASTER, at_ns + rng_log(rng, 50 * US, 100 * MS));
        if (rng_chance(rng, 200))
            (void)plan_add(plan, kinds[rng_below(rng, sizeof kinds)], at_ns + rng_log(rng, 50 * US, 100 * MS));
        at_ns += rng_log(rng, 2 * MS, 500 * MS);
    }
    for (uint32_t n = (uint32_t)rng_below(rng, 5); n > 0; n--)
        (void)plan_add(plan, kinds[rng_below(rng, sizeof kinds)], rng_log(rng, 2 * MS, 2 * SEC));
    if (plan->has_standby && rng_chance(rng, 200)) (void)plan_add(plan, CHOICE_SUCCEED, rng_log(rng, 20 * MS, SEC));
}

/* Some drains, before which a reader stops with what it holds, and during which connections break: a copy that leaves
 * is named again while the other one is away (LEAVING_NAMED). */
static void
add_held_moves(plan_t *plan, rng_t *rng)
{
    uint64_t at_ns = rng_log(rng, 5 * MS, 50 * MS);

    for (uint32_t n = (uint32_t)rng_between(rng, 2, 4); n > 0; n--) {
        (void)plan_add(plan, CHOICE_STOP_CLIENT, at_ns - rng_log(rng, 50 * US, 2 * MS));
        (void)plan_add(plan, CHOICE_DRAIN, at_ns);
        for (uint32_t i = (uint32_t)rng_between(rng, 2, 5); i > 0; i--)
            (void)plan_add(plan, CHOICE_CUT_CONN, at_ns + rng_log(rng, 500 * US, 20 * MS));
        at_ns += rng_log(rng, 2 * MS, 60 * MS);
    }
}

/* A master orders copies to a node that it does not hear any more, and dies: the node has copies that no log names. The
 * next master begins with a whole log, so it expects no report of unknown versions. While that node is away, the
 * objects are removed where the log has them, and a base of the log takes the place of their removals (COPY_GONE). */
static void
add_unnamed_copies(plan_t *plan, rng_t *rng)
{
    uint64_t at_ns = rng_log(rng, 10 * MS, 100 * MS);

    (void)plan_add(plan, CHOICE_DRAIN_UNHEARD, at_ns);
    (void)plan_add(plan, CHOICE_CRASH_MASTER, at_ns + rng_log(rng, MS, 20 * MS));
}

void
plan_make_moves(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_MOVES);
    const bool is_held = plan->seed % 4 == 2 && plan->seed % 16 != 6; /* as for has_hot */
    const bool is_unnamed = plan->seed % 16 == 8;
    uint32_t calls = (uint32_t)rng_between(&rng, 20, 80);

    plan->has_moves = true;
    plan->nodes = (uint32_t)rng_between(&rng, 2, 3);
    plan->clients = (uint32_t)rng_between(&rng, 2, 4);
    plan->threads = THREADS_MAX;
    plan->has_room = rng_chance(&rng, 500);
    plan->has_tiers = !plan->has_room && rng_chance(&rng, 600);
    plan->has_keepers = rng_chance(&rng, 400);
    plan->has_journal = rng_chance(&rng, 700);
    plan->has_standby = plan->has_journal && !plan->has_tiers && rng_chance(&rng, 600);
    plan->log_sync = KVP_LOG_SYNC_INTERVAL;
    plan->len_max = (uint32_t)rng_log(&rng, plan->has_tiers ? 4096 : 256, plan->has_room ? 1024 : 16384);
    plan->has_one_len = rng_chance(&rng, 300);
    plan->keys = plan->has_room ? (uint32_t)rng_log(&rng, 2, 16) : (uint32_t)rng_log(&rng, 4, 32);
    if (plan->has_tiers)
        plan->keys = (uint32_t)kvp_min_u64(plan->nodes * (64u << 10) / plan->len_max * rng_between(&rng, 1, 3), 96);
    plan->late_per_mille = rng_chance(&rng, 300) ? 50 : 2;
    plan->replicas_max = rng_chance(&rng, 200) ? 2 : 1;
    plan->locations = rng_chance(&rng, 500) ? 0 : 16;
    if (is_held) {
        plan->nodes = plan->clients = 2;
        plan->has_room = true;
        plan->has_tiers = false;
        plan->replicas_max = 1;
        plan->locations = 0;
    }
    if (is_unnamed) {
        plan->nodes = 3;
        plan->clients = 4;
        calls = 120;
        plan->has_room = plan->has_journal = true;
        plan->has_tiers = plan->has_standby = false; /* whose masters expect reports */
        plan->replicas_max = 1;
    }
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, MS, 60 * MS));
    (is_held ? add_held_moves : is_unnamed ? add_unnamed_copies : add_move_faults)(plan, &rng);
    plan->has_tasks = plan->seed % 8 == 4;
    plan->has_hot = plan->seed % 4 == 3; /* the other plans keep their histories, and docs/TESTING.md its seeds */
}

/* ---- slots: a writer was granted a slot, has looked at its word, and sleeps before it stores the descriptor. Its
 * master dies, the next one hears of what is sealed beside it, some of that is removed, and puts of other lengths
 * divide its space anew: for that they need slots, and the writer's is told of by no report (OLD_SLOTS_WAIT). */
void
plan_make_slots(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_SLOTS);
    uint32_t calls = (uint32_t)rng_between(&rng, 20, 60);
    uint64_t at_ns = rng_log(&rng, 20 * MS, 300 * MS);

    plan->nodes = (uint32_t)rng_between(&rng, 1, 2);
    plan->clients = 4;
    plan->threads = THREADS_MAX;
    plan->keys = (uint32_t)rng_between(&rng, 8, 32);
    plan->len_max = (uint32_t)rng_log(&rng, 4096, 16384);
    plan->late_per_mille = 2;
    plan->sleeps_per_mille = (uint32_t)rng_between(&rng, 100, 500);
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, MS, 30 * MS));
    for (uint32_t n = (uint32_t)rng_between(&rng, 1, 3); n > 0; n--) {
        (void)plan_add(plan, CHOICE_CRASH_MASTER, at_ns);
        at_ns += rng_between(&rng, 200 * MS, SEC);
    }
}
