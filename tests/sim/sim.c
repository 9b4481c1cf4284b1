/* SPDX-License-Identifier: Apache-2.0
 * Time, events, parties, and the course of one run: the plan's calls and faults, then calm, in which everything has
 * to work again, then the end of all clients, after which nothing may be left. */
#include "tests/sim/sim.h"

#include "tests/sim/sim_oracle.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES (1u << 20)
#define EVENTS_MAX 3000000u /* of a run: more means that something goes round in circles */
#define PLAN_NS (12 * SEC) /* faults are over by then; calls that are not done are given up */
#define CALM_NS (60 * SEC)
#define REST_NS (LEASE_NS + SEC) /* in which nobody asks for anything */

/* ---- memory that lives as long as the run */
struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    _Alignas(64) uint8_t bytes[];
};

void *
sim_alloc(sim_t *s, size_t bytes)
{
    size_t need = kvp_align_up(bytes, 64);
    struct arena_block *b = s->arena;

    if (b == NULL || b->cap - b->used < need) {
        size_t cap = need > ARENA_BYTES ? need : ARENA_BYTES;

        b = aligned_alloc(64, kvp_align_up(sizeof *b + cap, 64));
        if (b == NULL) abort();
        *b = (struct arena_block){.next = s->arena, .cap = cap};
        s->arena = b;
    }
    b->used += need;
    return memset(b->bytes + b->used - need, 0, need);
}

static void
arena_fini(sim_t *s)
{
    while (s->arena != NULL) {
        struct arena_block *b = s->arena;

        s->arena = b->next;
        free(b);
    }
}

/* ---- what happened */
void
sim_mix(sim_t *s, uint64_t value)
{
    s->hash = (s->hash ^ value) * 0x9e3779b97f4a7c15ull;
    s->hash ^= s->hash >> 29;
}

void
sim_trace(sim_t *s, const char *fmt, ...)
{
    va_list ap;

    printf("%12.3f us  ", (double)s->now / 1e3);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

void
sim_fail(sim_t *s, const char *rule, const char *fmt, ...)
{
    size_t at;
    va_list ap;

    if (s->failure[0] != '\0') return;
    at = (size_t)snprintf(s->failure, sizeof s->failure, "%s at %.3f us: ", rule, (double)s->now / 1e3);
    va_start(ap, fmt);
    vsnprintf(s->failure + at, sizeof s->failure - at, fmt, ap);
    va_end(ap);
    TRACE(s, "BROKEN %s", s->failure);
}

/* ---- events: a heap by time, then by age */
static bool
is_before(const event_t *a, const event_t *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static void
heap_push(sim_t *s, event_t *e)
{
    size_t i = s->heap_n++;

    if (s->heap_n > s->heap_cap) {
        s->heap_cap = s->heap_cap == 0 ? 256 : s->heap_cap * 2;
        s->heap = realloc(s->heap, s->heap_cap * sizeof(*s->heap));
        if (s->heap == NULL) abort();
    }
    while (i > 0 && is_before(e, s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = e;
}

static event_t *
heap_pop(sim_t *s)
{
    event_t *first = s->heap[0], *last = s->heap[--s->heap_n];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= s->heap_n) break;
        if (child + 1 < s->heap_n && is_before(s->heap[child + 1], s->heap[child])) child++;
        if (!is_before(s->heap[child], last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return first;
}

void
sim_at(sim_t *s, party_t *who, uint64_t at_ns, event_fn fn, void *arg, uint64_t n)
{
    event_t *e = s->spare;

    if (e != NULL)
        s->spare = e->next;
    else
        e = sim_alloc(s, sizeof *e);
    *e = (event_t){at_ns < s->now ? s->now : at_ns, ++s->event_seq, who, who == NULL ? 0 : who->life, fn, arg, n, NULL};
    heap_push(s, e);
}

static void
run_event(sim_t *s, event_t *e)
{
    party_t *who = e->who;

    if (who != NULL && (who->is_dead || who->life != e->life)) {
        e->next = s->spare;
        s->spare = e;
        return;
    }
    if (who != NULL && who->is_stopped) {
        e->next = NULL;
        *who->kept_end = e;
        who->kept_end = &e->next;
        return;
    }
    sim_mix(s, s->now);
    sim_mix(s, e->n ^ (who == NULL ? 0 : (uint64_t)who->number << 32));
    e->fn(s, e->arg, e->n);
    e->next = s->spare;
    s->spare = e;
}

/* ---- parties */
void
party_init(party_t *who, const char *name, uint32_t number, uint32_t host, void *owner)
{
    *who = (party_t){.number = number, .host = host, .owner = owner};
    snprintf(who->name, sizeof who->name, "%s%u", name, number % 10);
    who->kept_end = &who->kept;
}

void
party_stop(sim_t *s, party_t *who)
{
    TRACE(s, "%s stops", who->name);
    who->is_stopped = true;
}

/* What it missed comes at once, in order, and after that what it does next. */
void
party_resume(sim_t *s, party_t *who)
{
    event_t *e = who->kept;

    if (!who->is_stopped) return;
    TRACE(s, "%s goes on", who->name);
    who->is_stopped = false;
    who->woken_ns = s->now;
    who->kept = NULL;
    who->kept_end = &who->kept;
    while (e != NULL) {
        event_t *next = e->next;

        e->at_ns = s->now;
        e->seq = ++s->event_seq;
        heap_push(s, e);
        e = next;
    }
}

void
party_die(sim_t *s, party_t *who)
{
    TRACE(s, "%s dies", who->name);
    party_resume(s, who);
    who->is_dead = true;
    who->life++;
    for (size_t i = 0; i < s->conns_n; i++)
        for (int side = 0; side < 2; side++)
            if (s->conns[i]->end[side].who == who) conn_close(s, s->conns[i], side);
}

void
party_rise(party_t *who)
{
    who->is_dead = false;
}

/* ---- digests: with few bits in some plans, so that different keys have the same */
static uint32_t digest_bits = 128; /* of the run under way */
static bool tenants_collide;

kvp_digest_t __real_kvp_key_digest(uint64_t seed, uint32_t tenant, const void *key, size_t len);
kvp_digest_t __wrap_kvp_key_digest(uint64_t seed, uint32_t tenant, const void *key, size_t len);

kvp_digest_t
__wrap_kvp_key_digest(uint64_t seed, uint32_t tenant, const void *key, size_t len)
{
    bool is_proof = *(const char *)key == 'p'; /* of life: its keys have digests of their own */
    kvp_digest_t d = __real_kvp_key_digest(seed, tenants_collide && !is_proof ? 0 : tenant, key, len);

    if (digest_bits == 128 || is_proof) return d;
    d.lo = (d.lo & ((1ull << digest_bits) - 1)) + 1;
    return (kvp_digest_t){d.lo * 0x9e3779b97f4a7c15ull, d.lo * 0xd6e8feb86659fd93ull};
}

/* Tenants are called by their numbers. */
uint32_t __wrap_kvp_tenant_id(const char *name);

uint32_t
__wrap_kvp_tenant_id(const char *name)
{
    return (uint32_t)strtoul(name, NULL, 10);
}

/* ---- the course of a run */
static void
run_until(sim_t *s, uint64_t end_ns, bool (*is_over)(const sim_t *s))
{
    while (s->heap_n > 0 && s->failure[0] == '\0' && s->heap[0]->at_ns <= end_ns) {
        event_t *e = heap_pop(s);

        s->now = e->at_ns;
        run_event(s, e);
        if (s->event_seq > EVENTS_MAX) sim_fail(s, "LIVENESS", "%u events and no end", EVENTS_MAX);
        if (is_over != NULL && is_over(s)) return;
    }
    if (s->failure[0] == '\0') s->now = end_ns;
}

static bool
is_all_idle(const sim_t *s)
{
    for (uint32_t i = 0; i < s->plan->clients; i++)
        if (!client_is_idle(s, i)) return false;
    return true;
}

static bool
has_all_proved(const sim_t *s)
{
    for (uint32_t i = 0; i < s->plan->clients; i++)
        if (!client_has_proved(s, i)) return false;
    return true;
}

/* Faults are over: within bounded time every client gets through, and after the last has gone nothing is left. */
static void
run_calm(sim_t *s)
{
    fault_heal(s);
    s->is_calm = true;
    for (uint32_t i = 0; i < s->plan->clients; i++)
        client_prove_life(s, i);
    run_until(s, s->now + CALM_NS, has_all_proved);
    for (uint32_t i = 0; i < s->plan->clients && s->failure[0] == '\0'; i++)
        if (!client_has_proved(s, i)) sim_fail(s, "LIVENESS", "client %u cannot put and get, without faults", i);
    run_until(s, s->now + REST_NS, NULL);
    if (s->failure[0] == '\0') oracle_rest(s);
    for (uint32_t i = 0; i < s->plan->clients; i++) {
        if (i % 2 == 0)
            client_leave(s, i);
        else
            client_kill(s, i, UINT64_MAX);
    }
    run_until(s, s->now + CALM_NS, NULL);
    if (s->failure[0] == '\0') oracle_end(s);
}

static void
start_all(sim_t *s)
{
    oracle_init(s);
    master_start(s);
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        node_start(s, i);
    for (uint32_t i = 0; i < s->plan->clients; i++)
        client_start(s, i);
    fault_schedule(s);
}

static void
stop_all(sim_t *s)
{
    for (uint32_t i = 0; i < s->plan->clients; i++)
        client_stop(s, i);
    for (uint32_t i = 0; i < s->plan->nodes; i++)
        node_stop(s, i);
    master_stop(s);
    oracle_fini(s);
    free(s->conns);
    free(s->heap);
    arena_fini(s);
}

bool
sim_run(const plan_t *plan, bool is_traced, sim_counts_t *counts, uint64_t *hash_out, char *failure_out)
{
    sim_t s = {.plan = plan, .rng = rng_fork(plan->seed, 2, 0), .is_traced = is_traced, .now = SEC};

    digest_bits = plan->digest_bits;
    tenants_collide = plan->tenants_collide;
    start_all(&s);
    run_until(&s, s.now + (plan->takes_hours ? 2 * HOURS_NS : PLAN_NS), is_all_idle);
    if (s.failure[0] == '\0') run_calm(&s);
    memcpy(failure_out, s.failure, sizeof s.failure);
    counts->calls += s.counts.calls;
    counts->frames += s.counts.frames;
    counts->stores += s.counts.stores;
    counts->loads += s.counts.loads;
    counts->faults += s.counts.faults;
    *hash_out = s.hash;
    stop_all(&s);
    return failure_out[0] == '\0';
}
