/* SPDX-License-Identifier: Apache-2.0
 * See fleet.h. */
#include "conductor/proxy/fleet.h"

#include "common/clock.h"

#include <stdio.h>
#include <string.h>

#define OUT_MIN_NS (500 * KVP_NS_PER_MS)
/* longest pause between checks of a left-out server, so that a recovered server gets requests within 20 s */
#define OUT_MAX_NS (15 * KVP_NS_PER_S)
#define UNANSWERED_MAX 3u
#define GIVEN_UP_NS (5 * KVP_NS_PER_S)
/* least time after the first unanswered request until the server counts as silent; requests may be sent in a burst */
#define SILENT_NS (250 * KVP_NS_PER_MS)
#define ERRORS_MAX 3u
#define CLOSINGS_MAX 2u
#define RANKS_NS (5 * KVP_NS_PER_S)

static uint32_t
find_server(const kvp_fleet_t *f, kvp_server_role_t role, const char *url)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (!f->servers[i].is_gone && f->servers[i].role == role && strcmp(f->servers[i].url, url) == 0) return i;
    return KVP_SERVER_NONE;
}

uint32_t
kvp_fleet_add(kvp_fleet_t *f, kvp_server_role_t role, const char *url, const char *bootstrap)
{
    uint32_t at = find_server(f, role, url);

    if (at != KVP_SERVER_NONE) return at;
    if (strlen(url) > KVP_FLEET_URL_MAX || strlen(bootstrap) > KVP_FLEET_URL_MAX || url[0] == '\0')
        return KVP_SERVER_NONE;
    for (at = 0; at < f->n && (!f->servers[at].is_gone || f->servers[at].open > 0); at++)
        continue;
    if (at == KVP_FLEET_MAX) return KVP_SERVER_NONE;
    if (at == f->n) f->n++;
    free(f->servers[at].ranks);
    free(f->servers[at].latency);
    f->servers[at] =
        (kvp_fleet_server_t){.role = role, .answers = f->servers[at].answers + 1, .latency = kvp_latency_create()};
    strcpy(f->servers[at].url, url);
    strcpy(f->servers[at].bootstrap, bootstrap);
    return at;
}

bool
kvp_fleet_remove(kvp_fleet_t *f, kvp_server_role_t role, const char *url)
{
    const uint32_t at = find_server(f, role, url);

    if (at == KVP_SERVER_NONE) return false;
    f->servers[at].is_gone = true;
    f->changes += f->servers[at].is_down;
    return true;
}

uint32_t
kvp_fleet_count(const kvp_fleet_t *f, kvp_server_role_t role)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n; i++)
        n += f->servers[i].role == role && !f->servers[i].is_gone;
    return n;
}

uint32_t
kvp_fleet_left_out(const kvp_fleet_t *f)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n; i++)
        n += f->servers[i].is_down && !f->servers[i].is_gone;
    return n;
}

bool
kvp_fleet_is_serving(const kvp_fleet_t *f)
{
    uint32_t in_use[KVP_SERVER_ROLES] = {0};

    for (uint32_t i = 0; i < f->n; i++)
        in_use[f->servers[i].role] += !f->servers[i].is_down && !f->servers[i].is_gone;
    if (kvp_fleet_count(f, KVP_SERVER_DECODE) == 0) return in_use[KVP_SERVER_REPLICA] > 0;
    return in_use[KVP_SERVER_DECODE] > 0 &&
           (in_use[KVP_SERVER_PREFILL] > 0 || kvp_fleet_count(f, KVP_SERVER_PREFILL) == 0);
}

static bool
is_in(uint32_t server, const uint32_t *tried, uint32_t tried_n)
{
    for (uint32_t i = 0; i < tried_n; i++)
        if (tried[i] == server) return true;
    return false;
}

static uint32_t
take_server(kvp_fleet_t *f, uint32_t server)
{
    if (server == KVP_SERVER_NONE) return server;
    f->turn[f->servers[server].role] = server + 1;
    f->servers[server].open++;
    f->servers[server].requests++;
    return server;
}

/* Returns true if the server is being checked because it is silent. */
static bool
is_doubted(const kvp_fleet_server_t *s)
{
    return s->is_checked && !s->is_down;
}

static bool
is_better(const kvp_fleet_server_t *a, const kvp_fleet_server_t *b, bool by_load)
{
    if (a->is_down != b->is_down) return b->is_down;
    if (a->is_down) return a->until_ns < b->until_ns;
    if (is_doubted(a) != is_doubted(b)) return is_doubted(b);
    return by_load && a->open < b->open;
}

uint32_t
kvp_fleet_pick(kvp_fleet_t *f, kvp_server_role_t role, bool by_load, const uint32_t *tried, uint32_t tried_n)
{
    uint32_t best = KVP_SERVER_NONE;

    for (uint32_t k = 0; k < f->n; k++) {
        const uint32_t i = (f->turn[role] + k) % f->n;
        const kvp_fleet_server_t *s = &f->servers[i];

        if (s->role != role || s->is_gone || is_in(i, tried, tried_n)) continue;
        if (s->is_down && role == KVP_SERVER_PREFILL) continue;
        if (best == KVP_SERVER_NONE || is_better(s, &f->servers[best], by_load)) best = i;
    }
    return take_server(f, best);
}

static bool
is_fit(const kvp_fleet_t *f, uint32_t server, const uint32_t *tried, uint32_t tried_n)
{
    const kvp_fleet_server_t *s = &f->servers[server];

    return !s->is_down && !is_doubted(s) && !is_in(server, tried, tried_n);
}

uint32_t
kvp_fleet_take(kvp_fleet_t *f, kvp_server_role_t role, const char *url, const uint32_t *tried, uint32_t tried_n)
{
    const uint32_t at = find_server(f, role, url);

    if (at == KVP_SERVER_NONE || !is_fit(f, at, tried, tried_n)) return KVP_SERVER_NONE;
    return take_server(f, at);
}

bool
kvp_fleet_take_again(kvp_fleet_t *f, uint32_t server)
{
    if (f->servers[server].is_gone) return false;
    (void)take_server(f, server);
    return true;
}

uint32_t
kvp_fleet_unfit(const kvp_fleet_t *f, kvp_server_role_t role, const uint32_t *tried, uint32_t tried_n,
                const char **urls_out, uint32_t max)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n && n < max; i++)
        if (f->servers[i].role == role && !f->servers[i].is_gone && !is_fit(f, i, tried, tried_n))
            urls_out[n++] = f->servers[i].url;
    return n;
}

static void
leave_out(kvp_fleet_t *f, kvp_fleet_server_t *s, uint64_t now_ns)
{
    f->changes += !s->is_down;
    s->ranks_until_ns = 0; /* another process may soon listen at the server's address, with other ranks */
    s->is_down = true;
    s->until_ns = now_ns + kvp_min_u64(OUT_MAX_NS, OUT_MIN_NS << kvp_min_u64(s->fails, 10));
    s->fails++;
    s->errors = s->closings = 0;
}

bool
kvp_fleet_end(kvp_fleet_t *f, uint32_t server, kvp_server_end_t end, uint64_t now_ns)
{
    kvp_fleet_server_t *s = &f->servers[server];
    const bool was_down = s->is_down;

    s->open--;
    if (end == KVP_SERVER_CLOSED) s->ranks_until_ns = 0;
    s->failures += end == KVP_SERVER_FAILED || end == KVP_SERVER_ERRED;
    if (end == KVP_SERVER_DID) {
        s->fails = s->errors = s->closings = 0;
        f->changes += s->is_down;
        s->is_down = false;
    } else if (end == KVP_SERVER_FAILED || (end == KVP_SERVER_ERRED && ++s->errors == ERRORS_MAX) ||
               (end == KVP_SERVER_CLOSED && ++s->closings == CLOSINGS_MAX)) {
        leave_out(f, s, now_ns);
    }
    return s->is_down && !was_down;
}

void
kvp_fleet_sent(kvp_fleet_t *f, uint32_t server, uint64_t now_ns)
{
    kvp_fleet_server_t *s = &f->servers[server];

    if (s->heard_ns >= s->unanswered_ns) s->unanswered = 0;
    if (s->unanswered++ == 0) s->unanswered_ns = now_ns;
}

static bool
is_silent(const kvp_fleet_server_t *s, uint64_t now_ns)
{
    if (s->given_up > 0 && now_ns - s->given_up_ns >= GIVEN_UP_NS) return true;
    return s->unanswered >= UNANSWERED_MAX && s->heard_ns < s->unanswered_ns && now_ns - s->unanswered_ns >= SILENT_NS;
}

uint32_t
kvp_fleet_give_up(kvp_fleet_t *f, uint32_t server, uint64_t now_ns)
{
    if (f->servers[server].given_up++ == 0) f->servers[server].given_up_ns = now_ns;
    return f->servers[server].answers;
}

bool
kvp_fleet_is_given_up(const kvp_fleet_t *f, uint32_t server, uint32_t since)
{
    return f->servers[server].answers == since;
}

bool
kvp_fleet_return(kvp_fleet_t *f, uint32_t server, uint32_t since, kvp_server_end_t end, uint64_t now_ns)
{
    if (!kvp_fleet_is_given_up(f, server, since)) return false;
    f->servers[server].given_up--;
    return kvp_fleet_end(f, server, end, now_ns);
}

uint32_t
kvp_fleet_check(kvp_fleet_t *f, uint64_t now_ns)
{
    for (uint32_t i = 0; i < f->n; i++) {
        kvp_fleet_server_t *s = &f->servers[i];

        if (s->is_gone || s->is_checked || (s->is_down ? now_ns < s->until_ns : !is_silent(s, now_ns))) continue;
        s->is_checked = true;
        s->open++;
        return i;
    }
    return KVP_SERVER_NONE;
}

bool
kvp_fleet_checked(kvp_fleet_t *f, uint32_t server, kvp_check_end_t end, uint64_t now_ns)
{
    kvp_fleet_server_t *s = &f->servers[server];
    const bool was_down = s->is_down;

    s->open--;
    s->is_checked = false;
    if (end == KVP_CHECK_DOWN && !was_down && s->heard_ns >= s->unanswered_ns)
        end = KVP_CHECK_NONE; /* a failed check does not count if the server has answered a request during it */
    if (end == KVP_CHECK_NONE) { /* the check could not be made, so it is repeated later */
        s->until_ns = now_ns + OUT_MIN_NS;
        s->given_up_ns = now_ns;
        s->unanswered = 0;
    } else if (end == KVP_CHECK_DOWN) {
        leave_out(f, s, now_ns);
    } else {
        f->changes += s->is_down;
        s->is_down = false;
        s->open -= s->given_up;
        s->given_up = 0;
        s->answers++;
        kvp_fleet_hear(f, server, now_ns);
    }
    return s->is_down && !was_down;
}

/* ---- data-parallel ranks of a server */
static kvp_server_rank_t *
find_rank(const kvp_fleet_server_t *s, int64_t rank)
{
    for (uint32_t i = 0; i < s->ranks_n; i++)
        if (s->ranks[i].rank == rank) return &s->ranks[i];
    return NULL;
}

bool
kvp_fleet_set_ranks(kvp_fleet_t *f, uint32_t server, const kvp_server_rank_t *ranks, uint32_t n, uint64_t now_ns)
{
    kvp_fleet_server_t *s = &f->servers[server];
    kvp_server_rank_t *copy = malloc(n * sizeof *copy);

    if (copy == NULL) return false;
    memcpy(copy, ranks, n * sizeof *copy);
    for (uint32_t i = 0; i < n; i++) {
        const kvp_server_rank_t *old = find_rank(s, copy[i].rank);

        copy[i].open = old == NULL ? 0 : old->open;
    }
    free(s->ranks);
    s->ranks = copy;
    s->ranks_n = n;
    s->ranks_until_ns = now_ns + RANKS_NS;
    return true;
}

bool
kvp_fleet_take_rank(kvp_fleet_t *f, uint32_t server, int64_t wanted, uint64_t now_ns, kvp_server_rank_t *out)
{
    kvp_fleet_server_t *s = &f->servers[server];
    kvp_server_rank_t *best = find_rank(s, wanted);
    const bool is_wanted = best != NULL;

    if (now_ns >= s->ranks_until_ns) return false;
    for (uint32_t k = 0; !is_wanted && k < s->ranks_n; k++) {
        kvp_server_rank_t *r = &s->ranks[(s->rank_turn + k) % s->ranks_n];

        if (best == NULL || r->open < best->open) best = r;
    }
    s->rank_turn = (uint32_t)(best - s->ranks) + 1;
    best->open++;
    *out = *best;
    return true;
}

void
kvp_fleet_end_rank(kvp_fleet_t *f, uint32_t server, uint32_t rank)
{
    kvp_server_rank_t *r = find_rank(&f->servers[server], rank);

    if (r != NULL && r->open > 0) r->open--;
}

void
kvp_fleet_fini(kvp_fleet_t *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        free(f->servers[i].ranks);
        free(f->servers[i].latency);
    }
}
