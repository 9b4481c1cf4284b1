/* SPDX-License-Identifier: Apache-2.0
 * See fleet.h.
 */
#include "conductor/proxy/fleet.h"

#include "common/clock.h"

#include <stdio.h>
#include <string.h>

#define OUT_MIN_NS (500 * KVP_NS_PER_MS)
#define OUT_MAX_NS (30 * KVP_NS_PER_S)

static uint32_t
find(const kvp_fleet_t *f, kvp_server_role_t role, const char *url)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (f->servers[i].role == role && strcmp(f->servers[i].url, url) == 0) return i;
    return KVP_SERVER_NONE;
}

uint32_t
kvp_fleet_add(kvp_fleet_t *f, kvp_server_role_t role, const char *url, const char *bootstrap)
{
    uint32_t at = find(f, role, url);

    if (at != KVP_SERVER_NONE) return at;
    if (strlen(url) > KVP_FLEET_URL_MAX || strlen(bootstrap) > KVP_FLEET_URL_MAX || url[0] == '\0')
        return KVP_SERVER_NONE;
    for (at = 0; at < f->n && (f->servers[at].url[0] != '\0' || f->servers[at].open > 0); at++)
        continue;
    if (at == KVP_FLEET_MAX) return KVP_SERVER_NONE;
    if (at == f->n) f->n++;
    f->servers[at] = (kvp_server_t){.role = role};
    strcpy(f->servers[at].url, url);
    strcpy(f->servers[at].bootstrap, bootstrap);
    return at;
}

bool
kvp_fleet_remove(kvp_fleet_t *f, kvp_server_role_t role, const char *url)
{
    const uint32_t at = url[0] == '\0' ? KVP_SERVER_NONE : find(f, role, url);

    if (at != KVP_SERVER_NONE) f->servers[at].url[0] = '\0';
    return at != KVP_SERVER_NONE;
}

uint32_t
kvp_fleet_count(const kvp_fleet_t *f, kvp_server_role_t role)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n; i++)
        n += f->servers[i].role == role && f->servers[i].url[0] != '\0';
    return n;
}

static bool
is_in(uint32_t server, const uint32_t *tried, uint32_t tried_n)
{
    for (uint32_t i = 0; i < tried_n; i++)
        if (tried[i] == server) return true;
    return false;
}

uint32_t
kvp_fleet_pick(kvp_fleet_t *f, kvp_server_role_t role, const uint32_t *tried, uint32_t tried_n, uint64_t now_ns)
{
    uint32_t best = KVP_SERVER_NONE;

    for (uint32_t k = 0; k < f->n; k++) {
        const uint32_t i = (f->turn[role] + k) % f->n;
        const kvp_server_t *s = &f->servers[i];

        if (s->role != role || s->url[0] == '\0' || is_in(i, tried, tried_n)) continue;
        if (s->until_ns <= now_ns) {
            best = i;
            break;
        }
        if (best == KVP_SERVER_NONE || s->until_ns < f->servers[best].until_ns) best = i;
    }
    if (best == KVP_SERVER_NONE) return best;
    f->turn[role] = best + 1;
    f->servers[best].open++;
    f->servers[best].requests++;
    return best;
}

void
kvp_fleet_end(kvp_fleet_t *f, uint32_t server, bool has_failed, uint64_t now_ns)
{
    kvp_server_t *s = &f->servers[server];

    s->open--;
    s->failures += has_failed;
    if (!has_failed) {
        s->fails = 0;
        s->until_ns = 0;
        return;
    }
    s->engine[0] = '\0'; /* another process may stand there soon */
    s->until_ns = now_ns + kvp_min_u64(OUT_MAX_NS, OUT_MIN_NS << kvp_min_u64(s->fails, 10));
    s->fails++;
}
