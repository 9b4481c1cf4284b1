/* SPDX-License-Identifier: Apache-2.0
 * See router.h.
 *
 * Design notes.
 * - The router remembers at most 2^18 blocks of sent prompts and 2^16 sessions. A key has two places in its table, and
 *   a new entry replaces the less recently used one. A forgotten entry only costs a worse choice.
 * - Open routes are stored in a ring, by route number; the numbers rise.
 * - A target's place is reused after the target was dropped. Data that outlives a target (sent blocks, sessions)
 *   refers to the target's serial, which is never reused. */
#include "conductor/router/router.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define PENDING_BITS 18u
#define SESSION_BITS 16u
#define NS_PER_MS 1e6
#define NAME_MAX_BYTES 256u
#define CHAINS 4096u

const kvp_router_weights_t kvp_router_defaults = {
    .compute_tokens_s = 10000,
    .cpu_tokens_s = 200000,
    .disk_tokens_s = 50000,
    .request_ms = 10,
    .affinity_ms = 20,
    .open_s = 60,
    .pending_s = 10,
};

typedef struct {
    char name[NAME_MAX_BYTES]; /* name of the instance; "" = the place is free */
    uint64_t serial; /* serial number of the target, from 1 on */
    uint32_t next; /* next target in the chain of the name's hash, or in the list of free places */
    uint32_t rank;
    bool is_seen; /* a flag: kvp_router_target was called for the target since the last sweep */
    uint32_t open; /* number of open routes to the target */
    uint32_t running, waiting; /* running and waiting requests in the last report */
    double busy_until_ms; /* estimated time at which the prompts sent to the target are computed */
    bool is_away; /* a flag: the target's server cannot be reached */
    uint64_t chosen; /* number of the last route for which the target was chosen */
} target_t;

typedef struct {
    uint64_t id; /* number of the open route; 0 = the place is free */
    uint32_t target;
    uint64_t since_ns;
    double end_ms; /* estimated time at which the route's prompt is computed */
} open_t;

typedef struct {
    uint64_t key; /* hash of the entry's block or session; 0 = the entry is free */
    uint64_t val; /* for a block: expiry time; for a session: serial of its target */
    uint64_t used_ns;
} entry_t;

struct kvp_router {
    kvp_router_weights_t weights;
    target_t *targets;
    uint32_t targets_n, targets_cap; /* number of used target places; number of all target places */
    uint32_t chains[CHAINS]; /* first target of each hash of a name; KVP_ROUTE_NONE ends a chain */
    uint32_t free; /* first free target place */
    uint64_t serials; /* count of target serials that were ever assigned */
    open_t open[KVP_ROUTER_OPEN_MAX];
    uint64_t next, oldest; /* numbers of the next route and of the oldest route in the ring */
    entry_t pending[1u << PENDING_BITS], sessions[1u << SESSION_BITS];
    kvp_router_stats_t stats;
};

/* ---- tables with two places for a key */
static uint64_t
key_of(uint64_t hash, uint64_t with)
{
    const uint64_t both[2] = {hash, with};
    const uint64_t key = XXH3_64bits(both, sizeof both);

    return key == 0 ? 1 : key;
}

static entry_t *
find_entry(entry_t *table, uint32_t bits, uint64_t key)
{
    entry_t *pair = &table[key >> (64 - bits) & ~1ull];

    return pair[0].key == key ? &pair[0] : pair[1].key == key ? &pair[1] : NULL;
}

static entry_t *
enter_key(entry_t *table, uint32_t bits, uint64_t key, uint64_t now_ns)
{
    entry_t *pair = &table[key >> (64 - bits) & ~1ull], *e = find_entry(table, bits, key);

    if (e == NULL) e = pair[0].used_ns <= pair[1].used_ns ? &pair[0] : &pair[1];
    e->key = key;
    e->used_ns = now_ns;
    return e;
}

/* ---- targets, which are ranks of instances */
static uint32_t *
chain_of(kvp_router_t *r, const char *instance)
{
    return &r->chains[XXH3_64bits(instance, strlen(instance)) % CHAINS];
}

static bool
grow_targets(kvp_router_t *r)
{
    const uint32_t cap = (uint32_t)kvp_min_u64(r->targets_cap * 2ull + 16, KVP_ROUTER_TARGETS_MAX);
    target_t *more = cap == r->targets_cap ? NULL : realloc(r->targets, cap * sizeof *more);

    if (more == NULL) return false;
    r->targets = more;
    for (uint32_t i = cap; i-- > r->targets_cap;) {
        more[i] = (target_t){.next = r->free};
        r->free = i;
    }
    r->targets_cap = cap;
    return true;
}

uint32_t
kvp_router_find(const kvp_router_t *r, const char *instance, uint32_t rank)
{
    uint32_t i = *chain_of((kvp_router_t *)r, instance);

    while (i != KVP_ROUTE_NONE && (r->targets[i].rank != rank || strcmp(r->targets[i].name, instance) != 0))
        i = r->targets[i].next;
    return i;
}

uint32_t
kvp_router_target(kvp_router_t *r, const char *instance, uint32_t rank)
{
    uint32_t *chain = chain_of(r, instance), i = kvp_router_find(r, instance, rank);

    if (i == KVP_ROUTE_NONE) {
        if (instance[0] == '\0' || strlen(instance) >= NAME_MAX_BYTES) return KVP_ROUTE_NONE;
        if (r->free == KVP_ROUTE_NONE && !grow_targets(r)) return KVP_ROUTE_NONE;
        i = r->free;
        r->free = r->targets[i].next;
        r->targets[i] = (target_t){.serial = ++r->serials, .next = *chain, .rank = rank};
        strcpy(r->targets[i].name, instance);
        *chain = i;
        r->targets_n++;
    }
    r->targets[i].is_seen = true;
    return i;
}

static void
drop_target(kvp_router_t *r, uint32_t target)
{
    uint32_t *at = chain_of(r, r->targets[target].name);

    while (*at != target)
        at = &r->targets[*at].next;
    *at = r->targets[target].next;
    r->targets[target] = (target_t){.next = r->free};
    r->free = target;
    r->targets_n--;
}

void
kvp_router_sweep(kvp_router_t *r)
{
    for (uint32_t i = 0; i < r->targets_cap; i++) {
        target_t *t = &r->targets[i];

        if (t->name[0] != '\0' && !t->is_seen && t->open == 0) drop_target(r, i);
        t->is_seen = false;
    }
    if (r->targets_n > 0 || r->targets_cap == 0) return;
    free(r->targets);
    r->targets = NULL;
    r->targets_cap = 0;
    r->free = KVP_ROUTE_NONE;
}

void
kvp_router_note(kvp_router_t *r, uint32_t target, uint32_t running, uint32_t waiting, uint64_t now_ns)
{
    target_t *t = &r->targets[target];

    t->running = running;
    t->waiting = waiting;
    /* A target without requests has computed all prompts that were sent to it, earlier than estimated. */
    if (running == 0 && waiting == 0 && t->open == 0) t->busy_until_ms = (double)now_ns / NS_PER_MS;
}

void
kvp_router_note_there(kvp_router_t *r, const char *instance, bool is_there)
{
    for (uint32_t i = *chain_of(r, instance); i != KVP_ROUTE_NONE; i = r->targets[i].next)
        if (strcmp(r->targets[i].name, instance) == 0) r->targets[i].is_away = !is_there;
}

/* ---- the choice of a target */
/* Returns the hash seed for blocks of the query's namespace that were sent to the target. */
static uint64_t
pending_seed(const kvp_router_t *r, const kvp_route_ask_t *ask, uint32_t target)
{
    return key_of(ask->space, r->targets[target].serial);
}

static uint32_t
pending_run(kvp_router_t *r, const kvp_route_ask_t *ask, const kvp_candidate_t *c, uint64_t now_ns)
{
    uint32_t run = ask->block_size == 0 ? 0 : c->matched / ask->block_size;
    const uint32_t from = run;
    const uint64_t seed = pending_seed(r, ask, c->target);

    while (ask->hashes != NULL && run < ask->blocks) {
        const entry_t *e = find_entry(r->pending, PENDING_BITS, key_of(ask->hashes[run], seed));

        if (e == NULL || e->val < now_ns) break;
        run++;
    }
    return (run - from) * ask->block_size;
}

static double
ms_of(uint32_t tokens, double tokens_s)
{
    return tokens_s > 0 ? 1000.0 * tokens / tokens_s : 0;
}

static bool
is_away(const kvp_router_t *r, const kvp_candidate_t *c)
{
    return r->targets[c->target].is_away || c->is_left_out;
}

/* Returns the estimate for candidate `at`. The fields for the route and for the longest match are not set. */
static kvp_choice_t
estimate_choice(kvp_router_t *r, const kvp_route_ask_t *ask, const kvp_candidate_t *candidates, uint32_t at,
                uint64_t session, uint64_t now_ns)
{
    const kvp_candidate_t *c = &candidates[at];
    const kvp_router_weights_t *w = &r->weights;
    const target_t *t = &r->targets[c->target];
    const double now_ms = (double)now_ns / NS_PER_MS;
    const uint32_t fast = (uint32_t)kvp_max_u64(c->gpu, c->cpu);
    const uint32_t from_cpu = c->cpu > c->gpu ? c->cpu - c->gpu : 0,
                   from_disk = c->matched > fast ? c->matched - fast : 0;
    kvp_choice_t e = {.at = at,
                      .pending = pending_run(r, ask, c, now_ns),
                      .has_affinity = session == t->serial,
                      .is_away = is_away(r, c),
                      .open = t->open,
                      .running = t->running,
                      .waiting = t->waiting};
    double disk_ms = ms_of(from_disk, w->disk_tokens_s), cpu_ms = ms_of(from_cpu, w->cpu_tokens_s);

    e.matched = (uint32_t)kvp_min_u64(ask->tokens, (uint64_t)c->matched + e.pending);
    e.queue_ms = t->busy_until_ms > now_ms ? t->busy_until_ms - now_ms : 0;
    e.queue_ms += w->request_ms * (double)kvp_max_u64(t->open, (uint64_t)t->running + t->waiting);
    e.compute_ms = ms_of(ask->tokens - e.matched, w->compute_tokens_s);
    if (disk_ms > ms_of(from_disk, w->compute_tokens_s)) disk_ms = ms_of(from_disk, w->compute_tokens_s);
    if (cpu_ms > ms_of(from_cpu, w->compute_tokens_s)) cpu_ms = ms_of(from_cpu, w->compute_tokens_s);
    e.fetch_ms = disk_ms + cpu_ms;
    e.all_ms = e.queue_ms + e.compute_ms + e.fetch_ms - (e.has_affinity ? w->affinity_ms : 0);
    return e;
}

/* Returns whether estimate `e` is better than `best`. Of equal candidates the least recently chosen one is better. */
static bool
is_better(const kvp_router_t *r, const kvp_choice_t *e, const kvp_choice_t *best, const kvp_candidate_t *candidates)
{
    if (e->is_away != best->is_away) return best->is_away;
    if (e->all_ms != best->all_ms) return e->all_ms < best->all_ms;
    return r->targets[candidates[e->at].target].chosen < r->targets[candidates[best->at].target].chosen;
}

static void
end_route(kvp_router_t *r, open_t *o)
{
    target_t *t = &r->targets[o->target];

    if (t->open > 0) t->open--;
    r->stats.open--;
    o->id = 0;
}

static uint64_t
remember_route(kvp_router_t *r, const kvp_route_ask_t *ask, uint32_t target, double work_ms, uint64_t now_ns)
{
    const uint64_t id = r->next++;
    open_t *o = &r->open[id % KVP_ROUTER_OPEN_MAX];
    target_t *t = &r->targets[target];
    const double now_ms = (double)now_ns / NS_PER_MS;
    const uint64_t seed = pending_seed(r, ask, target);

    if (o->id != 0) {
        end_route(r, o);
        r->stats.expired++;
    }
    t->open++;
    t->chosen = id;
    t->busy_until_ms = (t->busy_until_ms > now_ms ? t->busy_until_ms : now_ms) + work_ms;
    *o = (open_t){id, target, now_ns, t->busy_until_ms};
    r->stats.routes++;
    r->stats.open++;
    for (uint32_t i = 0; ask->hashes != NULL && i < ask->blocks; i++)
        enter_key(r->pending, PENDING_BITS, key_of(ask->hashes[i], seed), now_ns)->val =
            now_ns + (uint64_t)(work_ms * NS_PER_MS + r->weights.pending_s * 1e9);
    if (ask->session != 0)
        enter_key(r->sessions, SESSION_BITS, key_of(ask->session, UINT64_MAX), now_ns)->val = t->serial;
    return id;
}

void
kvp_router_pick(kvp_router_t *r, const kvp_route_ask_t *ask, const kvp_candidate_t *candidates, uint32_t n,
                uint64_t now_ns, kvp_choice_t *out)
{
    const entry_t *session =
        ask->session == 0 ? NULL : find_entry(r->sessions, SESSION_BITS, key_of(ask->session, UINT64_MAX));
    const uint64_t before = session == NULL ? 0 : session->val;
    kvp_choice_t best = {.at = KVP_ROUTE_NONE}, longest = {.at = KVP_ROUTE_NONE};

    for (uint32_t i = 0; i < n; i++) {
        const kvp_choice_t e = estimate_choice(r, ask, candidates, i, before, now_ns);

        if (longest.at == KVP_ROUTE_NONE || candidates[i].matched > candidates[longest.at].matched) longest = e;
        if (best.at == KVP_ROUTE_NONE || is_better(r, &e, &best, candidates)) best = e;
    }
    best.longest = longest.at;
    best.longest_ms = longest.all_ms;
    best.is_longest_away = longest.is_away;
    if (best.at != KVP_ROUTE_NONE)
        best.id = remember_route(r, ask, candidates[best.at].target, best.compute_ms + best.fetch_ms, now_ns);
    *out = best;
}

bool
kvp_router_done(kvp_router_t *r, uint64_t id, uint64_t now_ns)
{
    open_t *o = &r->open[id % KVP_ROUTER_OPEN_MAX];
    const double now_ms = (double)now_ns / NS_PER_MS;

    if (id == 0 || o->id != id) return false;
    /* The request ended before its estimate, and so did the requests queued before it. Move the
     * estimates of later requests forward by the same time. */
    if (o->end_ms > now_ms) r->targets[o->target].busy_until_ms -= o->end_ms - now_ms;
    end_route(r, o);
    r->stats.done++;
    return true;
}

void
kvp_router_tick(kvp_router_t *r, uint64_t now_ns)
{
    for (; r->oldest < r->next; r->oldest++) {
        open_t *o = &r->open[r->oldest % KVP_ROUTER_OPEN_MAX];

        if (o->id != r->oldest) continue; /* the route is done, or a newer route uses its place */
        if ((double)(now_ns - o->since_ns) < r->weights.open_s * 1e9) return;
        end_route(r, o);
        r->stats.expired++;
    }
}

void
kvp_router_stats(const kvp_router_t *r, kvp_router_stats_t *out)
{
    *out = r->stats;
}

/* ---- creation and destruction */
kvp_router_t *
kvp_router_create(const kvp_router_weights_t *weights)
{
    kvp_router_t *r = calloc(1, sizeof *r);

    if (r == NULL) return NULL;
    r->weights = *weights;
    r->next = r->oldest = 1;
    memset(r->chains, 0xff, sizeof r->chains);
    r->free = KVP_ROUTE_NONE;
    return r;
}

void
kvp_router_destroy(kvp_router_t *r)
{
    if (r == NULL) return;
    free(r->targets);
    free(r);
}
