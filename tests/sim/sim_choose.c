/* SPDX-License-Identifier: Apache-2.0
 * What a call of the plan is: its kind, its keys and how it is asked for, each from the call's own stream of chance,
 * as the plan's profile weighs them. */
#include "tests/sim/sim_client.h"

#define UPSERT_PER_MILLE 250u
#define TASKS_PER_MILLE 150u /* in plans with tasks */

/* ---- keys */
static void
set_key(sim_t *s, thread_t *t, uint32_t i, uint32_t k)
{
    t->keys[i] = oracle_key(s, client_tenant(s, t->client->index), k);
    snprintf(t->names[i], sizeof t->names[i], "k%u", k);
    t->groups[i][0] = '\0';
    if (s->plan->group_keys > 0) snprintf(t->groups[i], sizeof t->groups[i], "g%u", k / s->plan->group_keys);
}

static void
choose_key(sim_t *s, thread_t *t, uint32_t i)
{
    uint32_t k = (uint32_t)rng_below(&t->rng, s->plan->keys);

    set_key(s, t, i, k);
}

/* What connectors put: a group and all of it, or one that is left incomplete, or keys of which some are in none. */
static void
choose_group(sim_t *s, thread_t *t)
{
    uint32_t each = s->plan->group_keys;
    uint32_t first = (uint32_t)rng_below(&t->rng, s->plan->keys / each) * each;

    t->of_groups = rng_chance(&t->rng, 500);
    for (uint32_t i = 0; i < CALL_KEYS; i++)
        if (rng_chance(&t->rng, 50)) t->groups[i][0] = '\0';
    if (rng_chance(&t->rng, 300)) return;
    t->n = rng_chance(&t->rng, 200) ? each - 1 : each;
    for (uint32_t i = 0; i < t->n; i++)
        set_key(s, t, i, first + i);
}

/* ---- kinds */
static call_kind_t
choose_kind(const sim_t *s, thread_t *t)
{
    uint64_t dice = rng_below(&t->rng, 1000);

    if (s->plan->probes_per_mille > 0 && rng_chance(&t->rng, s->plan->probes_per_mille)) return CALL_EXISTS;
    if (s->plan->has_tasks && rng_chance(&t->rng, TASKS_PER_MILLE)) return CALL_TASK;
    if (s->plan->profile == PROFILE_GROUPS && dice < 180)
        return dice < 100 ? CALL_LOOKUP : dice < 150 ? CALL_EXISTS : CALL_BUMP;
    if (s->plan->profile == PROFILE_CUT) return dice < 150 ? CALL_PUT : dice < 880 ? CALL_GET : CALL_REMOVE;
    if (s->plan->profile == PROFILE_SUMS) return dice < 300 ? CALL_PUT : dice < 950 ? CALL_GET : CALL_REMOVE;
    if (s->plan->profile == PROFILE_PARTITION && t->number > 0) return CALL_GET;
    if (s->plan->profile == PROFILE_PARTITION) return dice < 600 ? CALL_PUT : dice < 900 ? CALL_GET : CALL_REMOVE;
    if (s->plan->profile == PROFILE_SLOTS) return dice < 650 ? CALL_PUT : dice < 700 ? CALL_GET : CALL_REMOVE;
    if (s->plan->profile == PROFILE_EPOCHS)
        return dice < 400 ? CALL_PUT : dice < 750 ? CALL_GET : dice < 900 ? CALL_LOOKUP : CALL_BUMP;
    if (s->plan->profile == PROFILE_USES) return dice < 450 ? CALL_PUT : dice < 700 ? CALL_GET : CALL_LOOKUP;
    if (s->plan->is_leasing) return dice < 200 ? CALL_PUT : dice < 850 ? CALL_GET : CALL_REMOVE;
    if (dice < 360) return CALL_PUT;
    if (dice < 780) return CALL_GET;
    if (dice < 880) return CALL_REMOVE;
    if (dice < 885) return CALL_REMOVE_MANY;
    if (dice < 890) return CALL_BUMP;
    return dice < 940 ? CALL_EXISTS : CALL_LOOKUP;
}

/* Who is cut off asks for one key at a time and soon gives up, or it would wait for the master with what it does not
 * know, instead of reading what it knows; and who removes wants no lease left. */
static void
be_of_the_cut(const sim_t *s, thread_t *t)
{
    if (t->call == CALL_GET) {
        if (!rng_chance(&t->rng, 200)) t->n = 1;
        t->deadline_ns = thread_now(s, t) + rng_log(&t->rng, 500 * US, 300 * MS);
    } else {
        t->is_upsert = rng_chance(&t->rng, 600);
        t->waits = t->call == CALL_REMOVE || t->is_upsert || rng_chance(&t->rng, 500);
        t->is_forced = !rng_chance(&t->rng, 100);
    }
}

/* Nobody waits long for the master, or for a node that is silent. Puts that neither replace nor wait revoke nothing by
 * themselves: what was known of the key before them has to be revoked by somebody else. */
static void
be_away(const sim_t *s, thread_t *t)
{
    if (t->call == CALL_GET && !rng_chance(&t->rng, 200)) t->n = 1;
    t->deadline_ns = thread_now(s, t) + rng_log(&t->rng, 5 * MS, t->call == CALL_GET ? 50 * MS : 500 * MS);
    t->is_upsert = rng_chance(&t->rng, 100);
    t->waits = t->call == CALL_REMOVE ? rng_chance(&t->rng, 500) : t->is_upsert;
    t->is_forced = true;
}

void
call_choose(sim_t *s, thread_t *t, const choice_t *choice)
{
    t->rng = rng_fork(s->plan->seed, 6, choice->number);
    t->call = choose_kind(s, t);
    t->is_proof = false;
    t->is_upsert = rng_chance(&t->rng, UPSERT_PER_MILLE);
    t->is_forced = rng_chance(&t->rng, 500);
    t->waits = rng_chance(&t->rng, 300);
    t->heeds_probes = rng_chance(&t->rng, 200);
    snprintf(t->pattern, sizeof t->pattern, "^k%u", (uint32_t)rng_between(&t->rng, 1, 4));
    t->n = (uint32_t)rng_between(&t->rng, 1, CALL_KEYS);
    for (uint32_t i = 0; i < t->n; i++)
        choose_key(s, t, i);
    t->deadline_ns = thread_now(s, t) + (rng_chance(&t->rng, 250) ? rng_log(&t->rng, 50 * US, 100 * MS) : 3 * SEC);
    t->of_groups = false;
    t->task = 0;
    t->has_epoch = s->plan->profile == PROFILE_EPOCHS && rng_chance(&t->rng, 500);
    t->epoch = t->has_epoch ? t->client->epoch : 0;
    if (s->plan->profile == PROFILE_USES) t->is_upsert = false; /* what is retired was evicted */
    if (s->plan->profile == PROFILE_CUT) be_of_the_cut(s, t);
    if (s->plan->profile == PROFILE_PARTITION) be_away(s, t);
    if (s->plan->group_keys > 0) choose_group(s, t);
}
