/* SPDX-License-Identifier: Apache-2.0
 * Faults of the plan: each happens at its time, to whom its own stream of chance says, for as long as that says. */
#include "tests/sim/sim_copy.h"
#include "tests/sim/sim_disk.h"

static party_t *
any_client(sim_t *s, rng_t *rng, uint32_t *index_out)
{
    *index_out = (uint32_t)rng_below(rng, s->plan->clients);
    return client_party(s, *index_out);
}

static void
on_resume(sim_t *s, void *arg, uint64_t n)
{
    (void)n;
    party_resume(s, arg);
}

static void
stop(sim_t *s, party_t *who, uint64_t ns)
{
    if (who->is_dead || who->is_stopped) return;
    party_stop(s, who);
    s->has_stalled |= who == master_party(s);
    sim_at(s, NULL, s->now + ns, on_resume, who, 0);
}

static void
cut_any(sim_t *s, rng_t *rng)
{
    size_t from = s->conns_n;

    if (from == 0) return;
    from = rng_below(rng, s->conns_n);
    for (size_t i = 0; i < s->conns_n; i++) {
        conn_t *conn = s->conns[(from + i) % s->conns_n];

        if (conn->is_cut || conn->end[0].is_closed || conn->end[1].is_closed) continue;
        if ((s->plan->is_leasing || s->plan->profile == PROFILE_FULL) && conn->end[1].who != master_party(s)) continue;
        conn_cut(s, conn, rng_chance(rng, 300));
        return;
    }
}

static void
partition(sim_t *s, rng_t *rng)
{
    uint64_t until = s->now + rng_log(rng, MS, 6 * SEC);
    uint32_t a = (uint32_t)rng_below(rng, HOSTS), b = (a + (uint32_t)rng_between(rng, 1, HOSTS - 1)) % HOSTS;

    s->cut_until[a][b] = kvp_max_u64(s->cut_until[a][b], until);
    if (rng_chance(rng, 600)) s->cut_until[b][a] = kvp_max_u64(s->cut_until[b][a], until);
    TRACE(s, "nothing passes from host %u to host %u until %.3f us", a, b, (double)until / 1e3);
}

/* Nothing passes between a host and the master's, whose side is told as well, as where a switch goes: what is connected
 * to others there goes on. */
static void
cut_host(sim_t *s, rng_t *rng, uint64_t ns)
{
    uint32_t there = master_party(s)->host;
    uint32_t host = (there + (uint32_t)rng_between(rng, 1, HOSTS - 1)) % HOSTS;

    s->cut_until[host][there] = s->cut_until[there][host] = s->now + ns;
    TRACE(s, "host %u is cut off from the master for %.3f us", host, (double)ns / 1e3);
    for (size_t i = 0; i < s->conns_n; i++) {
        conn_t *conn = s->conns[i];

        if (conn->end[0].who->host == host && conn->end[1].who == master_party(s)) conn_cut(s, conn, false);
    }
}

/* What the last node sends to the master arrives only later: it gets its orders, reads the node before it, which is
 * drained, and its answers are lost with the master. */
static void
drain_unheard(sim_t *s, rng_t *rng)
{
    s->cut_until[node_party(s, s->plan->nodes - 1)->host][master_party(s)->host] =
        s->now + rng_between(rng, SEC, 4 * SEC);
    node_drain(s, s->plan->nodes - 2, true);
}

/* Forward only, as CLOCK_BOOTTIME may where a machine was asleep or moved. */
static void
step_clock(sim_t *s, rng_t *rng)
{
    party_t *who = rng_chance(rng, 500) ? master_party(s) : client_party(s, (uint32_t)rng_below(rng, s->plan->clients));
    uint64_t ns = rng_log(rng, MS, 20 * SEC);

    if (who->is_dead) return;
    s->has_stepped = true;
    who->ahead_ns += ns;
    TRACE(s, "the clock of %s steps by %.3f us", who->name, (double)ns / 1e3);
}

/* How long somebody stops. */
static uint64_t
stop_time(const sim_t *s, rng_t *rng, uint64_t ns)
{
    return s->plan->takes_hours ? rng_between(rng, 600 * SEC, HOURS_NS) : ns;
}

/* For how long there is no master. */
static uint64_t
down_time(const sim_t *s, uint64_t ns)
{
    switch (s->plan->profile) {
    case PROFILE_MASTER_HANDOVER:
    case PROFILE_DELAYED_MESSAGES:
    case PROFILE_SLOTS:
        return ns % (20 * MS);
    case PROFILE_CUT:
        return ns / 16;
    default:
        return ns;
    }
}

/* For how long somebody is not there. What is known is read for a lease after it is no more: only later that is an
 * error. */
static uint64_t
fault_length(const sim_t *s, rng_t *rng)
{
    if (s->plan->profile == PROFILE_PARTITION) return rng_between(rng, LOCATION_LEASE_NS, 3 * SEC);
    return s->plan->is_leasing ? rng_log(rng, 20 * MS, 4 * SEC) : rng_log(rng, 100 * US, 8 * SEC);
}

static void
on_fault(sim_t *s, void *arg, uint64_t n)
{
    const choice_t *c = arg;
    rng_t rng = rng_fork(s->plan->seed, 8, c->number);
    uint64_t ns = fault_length(s, &rng);
    uint32_t i;

    (void)n;
    if (s->is_calm) return;
    s->counts.faults++;
    TRACE(s, "fault %u: %s", c->number, choice_name(c->kind));
    switch ((choice_kind_t)c->kind) {
    case CHOICE_KILL_CLIENT:
        (void)any_client(s, &rng, &i);
        client_kill(s, i, ns);
        break;
    case CHOICE_STOP_CLIENT:
        stop(s, any_client(s, &rng, &i), stop_time(s, &rng, ns));
        break;
    case CHOICE_STOP_NODE:
        stop(s, node_party(s, (uint32_t)rng_below(&rng, s->plan->nodes)), stop_time(s, &rng, ns));
        break;
    case CHOICE_STOP_MASTER:
        stop(s, master_party(s), stop_time(s, &rng, ns));
        break;
    case CHOICE_CUT_CONN:
        cut_any(s, &rng);
        break;
    case CHOICE_PARTITION:
        partition(s, &rng);
        break;
    case CHOICE_CRASH_NODE:
        node_crash(s, (uint32_t)rng_below(&rng, s->plan->nodes), ns);
        break;
    case CHOICE_CRASH_MASTER:
        master_crash(s, down_time(s, ns));
        break;
    case CHOICE_STEP_CLOCK:
        step_clock(s, &rng);
        break;
    case CHOICE_SUCCEED:
        master_succeed(s, &rng, ns);
        break;
    case CHOICE_CUT_HOST:
        cut_host(s, &rng, ns);
        break;
    case CHOICE_DRAIN_UNHEARD:
        drain_unheard(s, &rng);
        break;
    case CHOICE_DRAIN:
        node_drain(s, (uint32_t)rng_below(&rng, s->plan->nodes - 1), rng_chance(&rng, 700));
        break;
    case CHOICE_CALL:
    case CHOICE_KINDS:
        break;
    }
}

void
fault_schedule(sim_t *s)
{
    for (uint32_t i = 0; i < s->plan->choices_n; i++) {
        const choice_t *c = &s->plan->choices[i];

        if (c->kind != CHOICE_CALL) sim_at(s, NULL, s->now + c->at_ns, on_fault, (void *)c, c->number);
    }
}

void
fault_heal(sim_t *s)
{
    for (uint32_t i = 0; i < s->plan->clients; i++)
        party_resume(s, client_party(s, i));
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        party_resume(s, node_party(s, i));
    party_resume(s, master_party(s));
    master_end_elder(s);
    disk_heal(s);
    for (uint32_t a = 0; a < HOSTS; a++)
        for (uint32_t b = 0; b < HOSTS; b++)
            s->cut_until[a][b] = 0;
}
