/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/sim_plan_priv.h"

#include "common/base.h"

#include <stdlib.h>
#include <string.h>

#define FAULTS_MAX 32u

uint64_t
rng_next(rng_t *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

uint64_t
rng_below(rng_t *rng, uint64_t n)
{
    return (uint64_t)((unsigned __int128)rng_next(rng) * n >> 64);
}

uint64_t
rng_between(rng_t *rng, uint64_t lo, uint64_t hi)
{
    return lo + rng_below(rng, hi - lo + 1);
}

uint64_t
rng_log(rng_t *rng, uint64_t lo, uint64_t hi)
{
    uint32_t octaves = 1;

    while (octaves < 63 && lo << octaves < hi)
        octaves++;
    lo <<= rng_below(rng, octaves);
    return kvp_min_u64(rng_between(rng, lo, 2 * lo), hi);
}

bool
rng_chance(rng_t *rng, uint32_t per_mille)
{
    return rng_below(rng, 1000) < per_mille;
}

rng_t
rng_fork(uint64_t seed, uint64_t a, uint64_t b)
{
    rng_t rng = {seed};

    rng.state = rng_next(&rng) ^ a * 0xd6e8feb86659fd93ull;
    rng.state = rng_next(&rng) ^ b * 0xa0761d6478bd642full;
    (void)rng_next(&rng);
    return rng;
}

/* ---- making */
choice_t *
plan_add(plan_t *plan, choice_kind_t kind, uint64_t at_ns)
{
    choice_t *c = &plan->choices[plan->choices_n];

    *c = (choice_t){.kind = (uint8_t)kind, .at_ns = at_ns, .number = plan->choices_n};
    plan->choices_n++;
    return c;
}

void
plan_add_calls(plan_t *plan, rng_t *rng, uint32_t each, uint64_t pause_max)
{
    for (uint32_t i = 0; i < each; i++)
        for (uint32_t c = 0; c < plan->clients; c++)
            for (uint32_t t = 0; t < plan->threads; t++) {
                choice_t *choice = plan_add(plan, CHOICE_CALL, rng_log(rng, US, pause_max));

                choice->client = (uint8_t)c;
                choice->thread = (uint8_t)t;
            }
}

/* Most of what clients do is over within milliseconds; what timeouts do takes seconds. Faults fall on both. */
static uint64_t
fault_time(rng_t *rng)
{
    return rng_log(rng, 20 * US, 4 * SEC);
}

/* Faults that come together: what each alone does is made good by a rule that the next one takes away. */
static void
add_lease_faults(plan_t *plan, rng_t *rng)
{
    static const uint8_t kinds[] = {CHOICE_STOP_NODE, CHOICE_STOP_NODE, CHOICE_STOP_NODE, CHOICE_CUT_CONN,
                                    CHOICE_CUT_CONN,  CHOICE_PARTITION, CHOICE_PARTITION, CHOICE_CRASH_MASTER};
    uint64_t at_ns = rng_between(rng, 20 * MS, 400 * MS);
    uint32_t n = (uint32_t)rng_between(rng, 1, 6);

    for (uint32_t i = 0; i < n; i++)
        (void)plan_add(plan, kinds[rng_below(rng, sizeof kinds)], at_ns + rng_log(rng, US, 300 * MS));
}

static void
add_faults(plan_t *plan, rng_t *rng)
{
    static const uint8_t kinds[] = {CHOICE_KILL_CLIENT, CHOICE_KILL_CLIENT, CHOICE_STOP_CLIENT, CHOICE_STOP_CLIENT,
                                    CHOICE_STOP_NODE,   CHOICE_STOP_MASTER, CHOICE_CUT_CONN,    CHOICE_CUT_CONN,
                                    CHOICE_CUT_CONN,    CHOICE_PARTITION,   CHOICE_CRASH_NODE,  CHOICE_CRASH_MASTER,
                                    CHOICE_STOP_NODE,   CHOICE_PARTITION,   CHOICE_STEP_CLOCK};
    uint32_t n = rng_chance(rng, 200) ? 0 : (uint32_t)rng_between(rng, 1, 8);

    for (uint32_t i = 0; i < n; i++)
        (void)plan_add(plan, kinds[rng_below(rng, sizeof kinds)], fault_time(rng));
}

static void
make_leasing(plan_t *plan, rng_t *rng)
{
    plan->nodes = (uint32_t)rng_between(rng, 2, 3);
    plan->keys = (uint32_t)rng_between(rng, 1, 4);
    plan->locations = 16;
    plan->len_max = (uint32_t)rng_log(rng, 256, 16384);
    plan->takes_hours = false;
    plan->off_cpu_per_mille = rng_chance(rng, 500) ? 5 : 150;
    if (!rng_chance(rng, 400)) return;
    /* More than there is room for: what is known is evicted as well. */
    plan->keys = (uint32_t)rng_between(rng, 10, 24);
    plan->len_max = 16384;
    plan->has_one_len = true;
    plan->chunk_n = plan->tenants;
}

void
plan_make_room(plan_t *plan, uint32_t calls)
{
    plan->choices = calloc(calls * plan->clients * plan->threads + FAULTS_MAX, sizeof *plan->choices);
    if (plan->choices == NULL) abort();
}

static void
make_parties(plan_t *plan, rng_t *rng)
{
    plan->nodes = (uint32_t)rng_between(rng, 1, 3);
    plan->clients = (uint32_t)rng_between(rng, 2, 4);
    plan->threads = (uint32_t)rng_between(rng, 1, THREADS_MAX);
}

static void
make_mixed(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, 0), lies = rng_fork(plan->seed, 2, 0);
    uint64_t digest_dice;
    uint32_t calls;

    make_parties(plan, &rng);
    plan->keys = (uint32_t)rng_log(&rng, 2, 48);
    plan->tenants = rng_chance(&rng, 200) ? 2 : 1;
    plan->chunk_n = (uint32_t)rng_between(&rng, 1, 2) + (plan->tenants - 1) * 2;
    plan->len_max = (uint32_t)rng_log(&rng, 256, 24576);
    digest_dice = rng_below(&rng, 1000);
    plan->digest_bits = digest_dice < 60 ? 4 : 128;
    plan->tenants_collide = plan->tenants == 2 && digest_dice < 300;
    plan->late_per_mille = rng_chance(&rng, 300) ? 50 : 2;
    plan->twice_per_mille = rng_chance(&rng, 300) ? 30 : 0;
    plan->replicas_max = rng_chance(&rng, 400) ? (uint32_t)rng_between(&rng, 2, 3) : 1;
    plan->locations = rng_chance(&rng, 300) ? 0 : (uint32_t)rng_log(&rng, 2, 64);
    plan->wants_sums = rng_chance(&rng, 200);
    plan->takes_hours = rng_chance(&rng, 20);
    plan->has_one_len = rng_chance(&rng, 300);
    plan->has_pins = rng_chance(&rng, 100);
    plan->slanders_per_mille = rng_chance(&lies, 150) ? 300 : 0;
    plan->off_cpu_per_mille = rng_chance(&rng, 300) ? 40 : 5;
    plan->is_leasing = rng_chance(&rng, 250);
    if (plan->is_leasing) make_leasing(plan, &rng);
    calls = (uint32_t)rng_log(&rng, 4, 60);
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, plan->is_leasing ? 30 * MS : rng_chance(&rng, 300) ? 300 * MS : 2 * MS);
    if (plan->is_leasing)
        add_lease_faults(plan, &rng);
    else
        add_faults(plan, &rng);
}

/* ---- known locations of those who are cut off */
/* What a plan of the cut is about. */
typedef enum {
    CUT_NODE_LOST, /* its keys are given up and put again elsewhere, and some clients still reach it */
    CUT_MASTER_NEW, /* a client is away while the next master begins */
    CUT_NODE_SILENT, /* it does not obey for a while, and answers lie in clients whose threads have no processor */
    CUT_ANY, /* all of it */
    CUT_KINDS,
} cut_kind_t;

typedef struct {
    uint16_t cut_host, stop_node, partition, crash_master; /* per mille, of a turn */
} cut_odds_t;

static void
add_cuts(plan_t *plan, rng_t *rng, const cut_odds_t *odds)
{
    uint64_t at_ns = rng_between(rng, 50 * MS, 300 * MS);

    for (uint32_t n = (uint32_t)rng_between(rng, 1, 4); n > 0; n--) {
        if (rng_chance(rng, odds->cut_host)) (void)plan_add(plan, CHOICE_CUT_HOST, at_ns);
        if (rng_chance(rng, odds->stop_node)) (void)plan_add(plan, CHOICE_STOP_NODE, at_ns + rng_log(rng, US, 20 * MS));
        if (rng_chance(rng, odds->partition)) (void)plan_add(plan, CHOICE_PARTITION, at_ns + rng_log(rng, US, 20 * MS));
        if (rng_chance(rng, odds->crash_master))
            (void)plan_add(plan, CHOICE_CRASH_MASTER, at_ns + rng_log(rng, US, 20 * MS));
        at_ns += rng_between(rng, 50 * MS, 400 * MS);
    }
}

static void
make_cut(plan_t *plan)
{
    static const cut_odds_t odds[CUT_KINDS] = {
        [CUT_NODE_LOST] = {.cut_host = 1000},
        [CUT_MASTER_NEW] = {.cut_host = 900, .crash_master = 900},
        [CUT_NODE_SILENT] = {.stop_node = 900, .partition = 600},
        [CUT_ANY] = {600, 500, 300, 300},
    };
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_CUT);
    uint32_t calls = (uint32_t)rng_between(&rng, 20, 60);
    cut_kind_t kind = (cut_kind_t)rng_below(&rng, CUT_KINDS);

    plan->nodes = (uint32_t)rng_between(&rng, 2, 3);
    plan->clients = 3; /* one on each host */
    plan->threads = THREADS_MAX;
    plan->keys = (uint32_t)rng_log(&rng, kind == CUT_NODE_LOST ? 8 : 2, kind == CUT_NODE_LOST ? 32 : 5);
    plan->len_max = (uint32_t)rng_log(&rng, 256, 2048);
    plan->replicas_max = rng_chance(&rng, 200) ? 2 : 1;
    plan->locations = 32;
    plan->is_leasing = true;
    plan->off_cpu_per_mille = kind == CUT_NODE_SILENT ? 300 : rng_chance(&rng, 500) ? 5 : 100;
    plan->node_grace_ns = rng_log(&rng, MS, SEC);
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, 60 * MS);
    add_cuts(plan, &rng, &odds[kind]);
}

/* ---- deaths of a master that keeps a journal */
/* Each time some node may be away, so that what is removed meanwhile is still in its memory. */
static void
add_deaths(plan_t *plan, rng_t *rng)
{
    uint64_t at_ns = rng_log(rng, MS, SEC);

    for (uint32_t n = (uint32_t)rng_between(rng, 1, 4); n > 0; n--) {
        if (rng_chance(rng, 500))
            (void)plan_add(plan, rng_chance(rng, 500) ? CHOICE_PARTITION : CHOICE_STOP_NODE, at_ns);
        if (rng_chance(rng, 200)) (void)plan_add(plan, CHOICE_CRASH_NODE, at_ns + rng_log(rng, US, 100 * MS));
        (void)plan_add(plan, CHOICE_CRASH_MASTER, at_ns + rng_log(rng, US, 100 * MS));
        at_ns += rng_log(rng, MS, 2 * SEC);
    }
}

static void
make_journal(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_JOURNAL), torn = rng_fork(plan->seed, 2, PROFILE_JOURNAL);
    uint32_t calls = (uint32_t)rng_log(&rng, 8, 60);

    make_parties(plan, &rng);
    plan->keys = (uint32_t)rng_log(&rng, 2, 24);
    plan->tenants = rng_chance(&rng, 100) ? 2 : 1;
    plan->chunk_n = plan->tenants;
    plan->len_max = (uint32_t)rng_log(&rng, 256, 16384);
    plan->digest_bits = rng_chance(&rng, 60) ? 4 : 128;
    plan->late_per_mille = 2;
    plan->disk_torn_per_mille = rng_chance(&torn, 300) ? 500 : 0;
    plan->replicas_max = rng_chance(&rng, 300) ? 2 : 1;
    plan->locations = rng_chance(&rng, 300) ? 0 : 16;
    plan->node_grace_ns = rng_chance(&rng, 300) ? rng_log(&rng, 20 * MS, SEC) : 5 * SEC;
    plan->has_journal = true;
    plan->log_sync =
        (kvp_log_sync_t)(rng_chance(&rng, 700) ? KVP_LOG_SYNC_INTERVAL
                                               : rng_between(&rng, KVP_LOG_SYNC_ALWAYS, KVP_LOG_SYNC_NONE));
    plan->disk_power_per_mille = plan->log_sync == KVP_LOG_SYNC_NONE ? 0 : 400; /* nothing is promised of that */
    plan->disk_lost_per_mille = rng_chance(&rng, 150) ? 500 : 0;
    plan->disk_stuck_per_mille = rng_chance(&rng, 150) ? 20 : 0;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, MS, 100 * MS));
    add_deaths(plan, &rng);
}

/* ---- groups */
static void
add_group_faults(plan_t *plan, rng_t *rng)
{
    static const uint8_t kinds[] = {CHOICE_KILL_CLIENT, CHOICE_KILL_CLIENT, CHOICE_STOP_CLIENT, CHOICE_CUT_CONN,
                                    CHOICE_CUT_CONN,    CHOICE_STOP_NODE,   CHOICE_PARTITION,   CHOICE_CRASH_NODE};

    for (uint32_t n = (uint32_t)rng_below(rng, 8); n > 0; n--)
        (void)plan_add(plan, kinds[rng_below(rng, sizeof kinds)], rng_log(rng, 100 * US, SEC));
}

static void
make_groups(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_GROUPS);
    uint32_t calls = (uint32_t)rng_log(&rng, 8, 60);

    make_parties(plan, &rng);
    plan->group_keys = (uint32_t)rng_between(&rng, 2, 4);
    plan->keys = plan->group_keys * (uint32_t)rng_between(&rng, 2, 8);
    plan->len_max = (uint32_t)rng_log(&rng, 1024, 12288);
    plan->has_one_len = rng_chance(&rng, 500);
    plan->late_per_mille = 2;
    plan->locations = rng_chance(&rng, 500) ? 0 : 16;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_chance(&rng, 300) ? 30 * MS : 2 * MS);
    add_group_faults(plan, &rng);
}

/* ---- epochs. The master lives: one without a log that comes after it counts from 0 again. */
static void
make_epochs(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_EPOCHS);
    uint32_t calls = (uint32_t)rng_log(&rng, 8, 60);

    make_parties(plan, &rng);
    plan->keys = (uint32_t)rng_log(&rng, 2, 12);
    plan->len_max = (uint32_t)rng_log(&rng, 256, 16384);
    plan->late_per_mille = rng_chance(&rng, 300) ? 50 : 2;
    plan->locations = rng_chance(&rng, 500) ? 0 : 16;
    plan->off_cpu_per_mille = rng_chance(&rng, 300) ? 40 : 5;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_chance(&rng, 300) ? 30 * MS : 2 * MS);
    add_group_faults(plan, &rng);
}

/* ---- two masters at a time */
static void
add_successions(plan_t *plan, rng_t *rng)
{
    static const uint8_t kinds[] = {CHOICE_CUT_CONN,    CHOICE_CUT_CONN,    CHOICE_CUT_CONN,    CHOICE_STOP_NODE,
                                    CHOICE_KILL_CLIENT, CHOICE_STOP_CLIENT, CHOICE_STOP_MASTER, CHOICE_PARTITION};
    uint64_t at_ns = rng_log(rng, MS, 300 * MS);

    for (uint32_t n = (uint32_t)rng_between(rng, 1, 3); n > 0; n--) {
        if (rng_chance(rng, 200)) (void)plan_add(plan, CHOICE_STOP_MASTER, at_ns);
        (void)plan_add(plan, CHOICE_SUCCEED, at_ns + rng_log(rng, US, MS));
        for (uint32_t more = (uint32_t)rng_below(rng, 4); more > 0; more--)
            (void)plan_add(plan, kinds[rng_below(rng, sizeof kinds)], at_ns + rng_log(rng, 10 * US, 300 * MS));
        at_ns += rng_log(rng, 20 * MS, SEC);
    }
}

static void
make_terms(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_TERMS);
    uint32_t calls = (uint32_t)rng_between(&rng, 10, 60);

    make_parties(plan, &rng);
    plan->keys = (uint32_t)rng_log(&rng, 2, 16);
    plan->len_max = (uint32_t)rng_log(&rng, 256, 16384);
    plan->late_per_mille = rng_chance(&rng, 300) ? 50 : 2;
    plan->replicas_max = rng_chance(&rng, 300) ? 2 : 1;
    plan->locations = rng_chance(&rng, 300) ? 0 : 16;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, 2 * MS, 60 * MS));
    add_successions(plan, &rng);
}

/* ---- a full pool */
/* Somebody asks again and again whether all of it is there. */
static void
make_probed(plan_t *plan, rng_t *rng)
{
    uint32_t calls = (uint32_t)rng_between(rng, 20, 80);

    plan->nodes = (uint32_t)rng_between(rng, 1, 2);
    plan->probes_per_mille = (uint32_t)rng_between(rng, 300, 800);
    plan->late_per_mille = 2;
    plan_make_room(plan, calls);
    plan_add_calls(plan, rng, calls, rng_log(rng, MS, 100 * MS));
}

/* Puts are given up in the midst, and what was theirs comes back while its node is away, or slow. */
static void
make_abandoned(plan_t *plan, rng_t *rng)
{
    static const uint8_t kinds[] = {CHOICE_KILL_CLIENT, CHOICE_KILL_CLIENT, CHOICE_STOP_CLIENT,
                                    CHOICE_STOP_CLIENT, CHOICE_CUT_CONN,    CHOICE_CUT_CONN,
                                    CHOICE_CUT_CONN,    CHOICE_STOP_NODE,   CHOICE_PARTITION};
    uint32_t calls = (uint32_t)rng_between(rng, 20, 80);

    plan->nodes = (uint32_t)rng_between(rng, 2, 3);
    plan->clients = 4;
    plan->threads = THREADS_MAX;
    plan->keys = (uint32_t)rng_between(rng, 16, 32);
    plan->late_per_mille = (uint32_t)rng_between(rng, 20, 300);
    plan->off_cpu_per_mille = (uint32_t)rng_between(rng, 5, 200);
    if (rng_chance(rng, 500)) plan->attempt_bytes = 2ull * plan->len_max;
    plan_make_room(plan, calls);
    plan_add_calls(plan, rng, calls, rng_log(rng, MS, 100 * MS));
    for (uint32_t n = (uint32_t)rng_below(rng, 8); n > 0; n--)
        (void)plan_add(plan, kinds[rng_below(rng, sizeof kinds)], rng_log(rng, MS, 2 * SEC));
    /* What a writer left is proved free while its node is away. */
    for (uint32_t n = (uint32_t)rng_below(rng, 5); n > 0; n--) {
        uint64_t at_ns = rng_log(rng, MS, 2 * SEC);

        for (uint32_t more = 3; more > 0; more--)
            (void)plan_add(plan, rng_chance(rng, 300) ? CHOICE_KILL_CLIENT : CHOICE_CUT_CONN, at_ns);
        (void)plan_add(plan, CHOICE_CUT_HOST, at_ns + rng_log(rng, 300 * US, 30 * MS));
    }
}

static void
make_full(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_FULL);

    make_parties(plan, &rng);
    plan->len_max = (uint32_t)rng_log(&rng, 4096, 24576);
    plan->has_one_len = rng_chance(&rng, 500);
    plan->keys = (uint32_t)rng_between(&rng, 4, 24);
    plan->locations = rng_chance(&rng, 500) ? 0 : 16;
    if (rng_chance(&rng, 500))
        make_probed(plan, &rng);
    else
        make_abandoned(plan, &rng);
}

/* ---- master_handover */
/* The next master is there before long, while clients stop, or their threads have no processor. */
static void
make_master_handover(plan_t *plan)
{
    static const uint8_t kinds[] = {CHOICE_STOP_CLIENT, CHOICE_STOP_CLIENT, CHOICE_KILL_CLIENT, CHOICE_CUT_CONN};
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_MASTER_HANDOVER);
    uint32_t calls = (uint32_t)rng_between(&rng, 20, 60);
    uint64_t at_ns = rng_log(&rng, MS, 500 * MS);

    make_parties(plan, &rng);
    plan->keys = (uint32_t)rng_log(&rng, 4, 32);
    plan->len_max = (uint32_t)rng_log(&rng, 256, 16384);
    plan->late_per_mille = (uint32_t)rng_between(&rng, 2, 300);
    plan->replicas_max = rng_chance(&rng, 200) ? 2 : 1;
    plan->locations = rng_chance(&rng, 500) ? 0 : 16;
    plan->off_cpu_per_mille = (uint32_t)rng_between(&rng, 50, 400);
    plan->has_journal = rng_chance(&rng, 300);
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, MS, 60 * MS));
    for (uint32_t n = (uint32_t)rng_between(&rng, 1, 4); n > 0; n--) {
        if (rng_chance(&rng, 500))
            (void)plan_add(plan, kinds[rng_below(&rng, sizeof kinds)], at_ns - rng_below(&rng, at_ns / 8));
        (void)plan_add(plan, CHOICE_CRASH_MASTER, at_ns);
        at_ns += rng_between(&rng, 50 * MS, 800 * MS);
    }
}

/* ---- uses */
/* Of twice as many keys as there is room for, so short that a client may reserve some. */
static void
make_uses(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_USES);
    uint32_t calls = (uint32_t)rng_between(&rng, 20, 60);

    make_parties(plan, &rng);
    plan->nodes = 1;
    plan->keys = (uint32_t)rng_between(&rng, 40, 100);
    plan->len_max = (128u << 10) / plan->keys;
    plan->has_one_len = true;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, MS, 30 * MS));
}

/* ---- delayed_messages */
/* One master after the other, and each is there before writers under the one before have begun, in memory of which much
 * was never used. */
static void
make_delayed_messages(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_DELAYED_MESSAGES),
          cut = rng_fork(plan->seed, 2, PROFILE_DELAYED_MESSAGES);
    bool cuts = rng_chance(&cut, 300); /* reports */
    uint32_t calls = (uint32_t)rng_between(&rng, 20, 60);
    uint64_t at_ns = rng_log(&rng, MS, 100 * MS);

    plan->nodes = (uint32_t)rng_between(&rng, 2, 3);
    plan->clients = 4;
    plan->threads = THREADS_MAX;
    plan->keys = (uint32_t)rng_between(&rng, 16, 96);
    plan->len_max = (uint32_t)rng_between(&rng, 64, 384);
    plan->late_per_mille = (uint32_t)rng_between(&rng, 100, 500);
    plan->off_cpu_per_mille = (uint32_t)rng_between(&rng, 20, 300);
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, MS, 60 * MS));
    for (uint32_t n = (uint32_t)rng_between(&rng, 2, 6); n > 0; n--) {
        (void)plan_add(plan, CHOICE_CRASH_MASTER, at_ns);
        if (cuts) (void)plan_add(plan, CHOICE_CUT_HOST, at_ns + rng_log(&cut, MS, 300 * MS));
        at_ns += rng_between(&rng, 50 * MS, 500 * MS);
    }
}

/* ---- sums */
/* A group is evicted as one, and what comes takes only a part of its space: the rest lies there as it was, while the
 * lease of those who know it is renewed again and again. */
static void
make_sums(plan_t *plan)
{
    rng_t rng = rng_fork(plan->seed, 1, PROFILE_SUMS);
    uint32_t calls = (uint32_t)rng_between(&rng, 30, 60);

    plan->nodes = 1;
    plan->clients = 3;
    plan->threads = THREADS_MAX;
    plan->group_keys = 4;
    plan->keys = plan->group_keys * (uint32_t)rng_between(&rng, 6, 10);
    plan->len_max = (uint32_t)rng_between(&rng, 8192, 16384); /* most are much shorter */
    plan->locations = 32;
    plan->is_leasing = true;
    plan->sums_per_mille = 1000;
    plan_make_room(plan, calls);
    plan_add_calls(plan, &rng, calls, rng_log(&rng, 10 * MS, 60 * MS));
}

/* Not where keys collide: which of two keys with one digest it is only a descriptor tells, and 128 bits come to no
 * such. */
static void
choose_sums(plan_t *plan)
{
    if (plan->digest_bits == 128 && plan->sums_per_mille == 0) plan->sums_per_mille = 300;
}

static const struct {
    const char *name;
    void (*make)(plan_t *plan);
} profiles[PROFILE_KINDS] = {
    [PROFILE_MIXED] = {"mixed", make_mixed},
    [PROFILE_CUT] = {"cut", make_cut},
    [PROFILE_JOURNAL] = {"journal", make_journal},
    [PROFILE_GROUPS] = {"groups", make_groups},
    [PROFILE_TERMS] = {"terms", make_terms},
    [PROFILE_FULL] = {"full", make_full},
    [PROFILE_MASTER_HANDOVER] = {"master_handover", make_master_handover},
    [PROFILE_USES] = {"uses", make_uses},
    [PROFILE_DELAYED_MESSAGES] = {"delayed_messages", make_delayed_messages},
    [PROFILE_SUMS] = {"sums", make_sums},
    [PROFILE_PARTITION] = {"partition", plan_make_partition},
    [PROFILE_SLOTS] = {"slots", plan_make_slots},
    [PROFILE_TIERS] = {"tiers", plan_make_tiers},
    [PROFILE_KEEPERS] = {"keepers", plan_make_keepers},
    [PROFILE_STANDBYS] = {"standbys", plan_make_standbys},
    [PROFILE_EPOCHS] = {"epochs", make_epochs},
    [PROFILE_MOVES] = {"moves", plan_make_moves},
};

void
plan_make(plan_t *plan, profile_t profile, uint64_t seed)
{
    *plan = (plan_t){.seed = seed,
                     .profile = profile,
                     .tenants = 1,
                     .chunk_n = 1,
                     .digest_bits = 128,
                     .replicas_max = 1,
                     .off_cpu_per_mille = 5,
                     .node_grace_ns = 5 * SEC};
    profiles[profile].make(plan);
    choose_sums(plan);
}

void
plan_fini(plan_t *plan)
{
    free(plan->choices);
    plan->choices = NULL;
    plan->choices_n = 0;
}

const char *
choice_name(choice_kind_t kind)
{
    static const char *const names[CHOICE_KINDS] = {
        "call",       "kill client",  "stop client", "stop node", "stop master", "cut conn", "partition",
        "crash node", "crash master", "step clock",  "cut host",  "succeed",     "drain",    "drain unheard",
    };

    return kind < CHOICE_KINDS ? names[kind] : "?";
}

const char *
profile_name(profile_t profile)
{
    return profiles[profile].name;
}

bool
profile_find(const char *name, profile_t *profile_out)
{
    for (uint32_t i = 0; i < PROFILE_KINDS; i++)
        if (strcmp(profiles[i].name, name) == 0) {
            *profile_out = (profile_t)i;
            return true;
        }
    return false;
}

/* ---- leaving out */
static bool
is_listed(const char *list, uint32_t number)
{
    while (*list != '\0') {
        char *end;
        unsigned long lo = strtoul(list, &end, 10), hi = lo;

        if (*end == '-') hi = strtoul(end + 1, &end, 10);
        if (number >= lo && number <= hi) return true;
        list = *end == ',' ? end + 1 : end;
    }
    return false;
}

bool
plan_keep(plan_t *plan, const char *list)
{
    uint32_t kept = 0;

    if (strcmp(list, "none") == 0) list = "";
    for (const char *p = list; *p != '\0'; p++)
        if ((*p < '0' || *p > '9') && *p != ',' && *p != '-') return false;
    for (uint32_t i = 0; i < plan->choices_n; i++)
        if (is_listed(list, plan->choices[i].number)) plan->choices[kept++] = plan->choices[i];
    plan->choices_n = kept;
    return true;
}
