/* SPDX-License-Identifier: Apache-2.0 */
#include "conductor/proxy/giveup.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>

#define BYTES_MAX (64u << 20) /* limit of the total length of given-up requests' bodies */

typedef struct {
    kvp_proxy_shared_t *shared;
    kvp_upstream_t *up;
    size_t bytes; /* length of the given-up request's body */
    uint32_t server, since;
    uint64_t route;
    int64_t rank; /* rank of the server, if requests are counted by rank; else -1 */
} given_up_t;

static void
skip_head(void *arg, uint32_t status, const char *type, int64_t length)
{
    (void)arg;
    (void)status;
    (void)type;
    (void)length;
}

bool
kvp_skip_bytes(void *arg, const void *bytes, size_t len)
{
    (void)arg;
    (void)bytes;
    (void)len;
    return true;
}

static void
skip_end(void *arg, const char *why, kvp_call_fate_t fate)
{
    (void)arg;
    (void)why;
    (void)fate;
}

void
kvp_route_done(kvp_proxy_shared_t *shared, kvp_upstream_t *up, uint64_t route)
{
    static const kvp_call_ops_t ops = {skip_head, kvp_skip_bytes, skip_end};
    char url[sizeof shared->router + 16], body[48];
    const char *headers[] = {shared->router_auth[0] == '\0' ? NULL : shared->router_auth, NULL};
    const int n = snprintf(body, sizeof body, "{\"route_id\":%llu}", (unsigned long long)route);

    if (route == 0) return;
    snprintf(url, sizeof url, "%s/route/done", shared->router);
    (void)kvp_upstream_start(up,
                             &(kvp_call_conf_t){.url = url,
                                                .body = body,
                                                .body_len = (size_t)n,
                                                .copies_body = true,
                                                .headers = headers,
                                                .connect_ms = KVP_ROUTE_MS,
                                                .first_ms = KVP_ROUTE_MS,
                                                .idle_ms = KVP_ROUTE_MS},
                             &ops, NULL);
}

/* Returns true if waiting for the server has become useless: a check has succeeded since, or the server is left
 * out or was removed. */
static bool
is_over(void *arg)
{
    const given_up_t *g = arg;
    const kvp_fleet_t *f = &g->shared->fleet;
    const kvp_fleet_server_t *s = &f->servers[g->server];

    pthread_mutex_lock(&g->shared->lock);
    const bool is_given_up = kvp_fleet_is_given_up(f, g->server, g->since) && !s->is_down && !s->is_gone;
    pthread_mutex_unlock(&g->shared->lock);

    return !is_given_up;
}

static void
on_end(void *arg, const char *why, kvp_call_fate_t fate)
{
    const given_up_t *g = arg;
    kvp_fleet_t *f = &g->shared->fleet;

    kvp_route_done(g->shared, g->up, g->route);
    atomic_fetch_sub(&g->shared->given_up_bytes, g->bytes);
    pthread_mutex_lock(&g->shared->lock);
    /* Without a connection the server has failed. After a connection was made, its end may be the server's
     * reaction to the end of the client's stream. */
    const bool has_failed = why != NULL && fate == KVP_CALL_UNSENT && !f->servers[g->server].is_down;
    const kvp_server_end_t end = has_failed ? KVP_SERVER_FAILED : KVP_SERVER_LEFT;

    if (g->rank >= 0) kvp_fleet_end_rank(f, g->server, (uint32_t)g->rank);
    if (why == NULL && kvp_fleet_is_given_up(f, g->server, g->since)) kvp_fleet_hear(f, g->server, kvp_now_ns());
    if (kvp_fleet_return(f, g->server, g->since, end, kvp_now_ns()))
        kvp_log_warn("proxy", "left out for a while: %s server=%s", why, f->servers[g->server].url);
    pthread_mutex_unlock(&g->shared->lock);
}

bool
kvp_give_up(kvp_exchange_t *x)
{
    given_up_t *g = x->call != NULL && x->server != KVP_SERVER_NONE && x->state != KVP_X_BOOTSTRAP &&
                            kvp_call_is_unanswered(x->call) && x->shared->given_up_bytes + x->sent.len <= BYTES_MAX
                        ? malloc(sizeof *g)
                        : NULL;

    if (g == NULL) return false;
    *g = (given_up_t){.shared = x->shared, .up = x->up, .server = x->server, .route = x->route};
    g->bytes = x->sent.len;
    atomic_fetch_add(&x->shared->given_up_bytes, g->bytes);
    g->rank = x->is_rank_taken ? x->rank : -1;
    pthread_mutex_lock(&x->shared->lock);
    g->since = kvp_fleet_give_up(&x->shared->fleet, x->server, kvp_now_ns());
    pthread_mutex_unlock(&x->shared->lock);
    kvp_call_give_up(x->call, &x->sent, is_over, on_end, g);
    x->call = NULL;
    x->server = KVP_SERVER_NONE;
    x->route = 0;
    x->is_rank_taken = false;
    return true;
}
