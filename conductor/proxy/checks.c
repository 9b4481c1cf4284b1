/* SPDX-License-Identifier: Apache-2.0
 * See checks.h. */
#include "conductor/proxy/checks.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CHECK_MS 5000u /* time limit of a check; a busy server may need long */

typedef struct {
    kvp_checks_t *of;
    uint32_t status;
} check_t;

struct kvp_checks {
    kvp_proxy_shared_t *shared;
    kvp_upstream_t *up;
    uint32_t changes; /* value of fleet.changes at the last report */
    check_t checks[KVP_FLEET_MAX]; /* the running check of each server, by the server's number */
};

/* ---- checks of servers that are left out or silent */
static void
on_check_head(void *arg, uint32_t status, const char *type, int64_t length)
{
    check_t *check = arg;

    (void)type;
    (void)length;
    check->status = status;
}

static void
end_check(const check_t *check, kvp_check_end_t end, const char *why)
{
    kvp_proxy_shared_t *p = check->of->shared;
    const uint32_t server = (uint32_t)(check - check->of->checks);
    const kvp_fleet_server_t *s = &p->fleet.servers[server];

    pthread_mutex_lock(&p->lock);
    if (s->is_down && end == KVP_CHECK_UP) kvp_log_info("proxy", "is there again server=%s", s->url);
    if (kvp_fleet_checked(&p->fleet, server, end, kvp_now_ns()))
        kvp_log_warn("proxy", "left out for a while: the server answers neither requests nor checks: %s server=%s", why,
                     s->url);
    pthread_mutex_unlock(&p->lock);
}

/* Ends a check. Any answer except a server error shows that the server is up. */
static void
on_check_end(void *arg, const char *why, kvp_call_fate_t fate)
{
    const check_t *check = arg;
    const bool is_up = why == NULL && check->status < 500;

    end_check(check,
              is_up                    ? KVP_CHECK_UP
              : fate == KVP_CALL_LOCAL ? KVP_CHECK_NONE
                                       : KVP_CHECK_DOWN,
              why == NULL ? "its status is 500 or more" : why);
}

static void
start_checks(kvp_checks_t *c)
{
    static const kvp_call_ops_t ops = {on_check_head, kvp_skip_bytes, on_check_end};

    kvp_proxy_shared_t *p = c->shared;

    for (;;) {
        char url[KVP_FLEET_URL_MAX + 16];

        pthread_mutex_lock(&p->lock);
        const uint32_t server = kvp_fleet_check(&p->fleet, kvp_now_ns());
        pthread_mutex_unlock(&p->lock);
        if (server == KVP_SERVER_NONE) return;
        c->checks[server] = (check_t){.of = c};
        snprintf(url, sizeof url, "%s/health", p->fleet.servers[server].url);
        if (kvp_upstream_start(c->up,
                               &(kvp_call_conf_t){.url = url,
                                                  .is_get = true,
                                                  .connect_ms = p->conf.connect_ms,
                                                  .first_ms = CHECK_MS,
                                                  .idle_ms = CHECK_MS},
                               &ops, &c->checks[server]) == NULL)
            end_check(&c->checks[server], KVP_CHECK_NONE, "out of memory");
    }
}

static void
report_left_out(kvp_checks_t *c)
{
    uint64_t urls[KVP_FLEET_MAX];
    kvp_proxy_shared_t *p = c->shared;
    uint32_t n = 0;

    pthread_mutex_lock(&p->lock);
    const bool is_new = c->changes != p->fleet.changes;
    c->changes = p->fleet.changes;
    for (uint32_t i = 0; is_new && i < p->fleet.n; i++) {
        const kvp_fleet_server_t *s = &p->fleet.servers[i];

        if (s->is_down && !s->is_gone) urls[n++] = XXH3_64bits(s->url, strlen(s->url));
    }
    pthread_mutex_unlock(&p->lock);
    if (is_new && p->left_out != NULL) p->left_out(p->left_out_arg, urls, n);
}

void
kvp_checks_look(kvp_checks_t *c)
{
    kvp_proxy_shared_t *p = c->shared;

    atomic_store(&p->is_routing, p->router[0] != '\0' && p->has_instances(p->has_instances_arg));
    start_checks(c);
    report_left_out(c);
}

kvp_checks_t *
kvp_checks_create(kvp_proxy_shared_t *shared, kvp_upstream_t *up)
{
    kvp_checks_t *c = calloc(1, sizeof *c);

    if (c == NULL) return NULL;
    c->shared = shared;
    c->up = up;
    return c;
}

void
kvp_checks_destroy(kvp_checks_t *c)
{
    free(c);
}
