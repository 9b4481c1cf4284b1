/* SPDX-License-Identifier: Apache-2.0
 * See checks.h.
 */
#include "conductor/proxy/checks.h"

#include "common/clock.h"
#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    kvp_checks_t *of;
    uint32_t status;
} check_t;

struct kvp_checks {
    kvp_proxy_shared_t *shared;
    kvp_upstream_t *up;
    check_t checks[KVP_FLEET_MAX]; /* by server */
};

/* ---- checks of servers that are left out: whatever is not an error of the server's says that it is there */
static void
on_check_head(void *arg, uint32_t status, const char *type, int64_t length)
{
    check_t *check = arg;

    (void)type;
    (void)length;
    check->status = status;
}

static void
end_check(const check_t *check, bool is_up)
{
    kvp_proxy_shared_t *p = check->of->shared;

    pthread_mutex_lock(&p->lock);
    if (is_up) kvp_log_info("proxy", "is there again: server=%s", p->fleet.servers[check - check->of->checks].url);
    kvp_fleet_checked(&p->fleet, (uint32_t)(check - check->of->checks), is_up, kvp_now_ns());
    pthread_mutex_unlock(&p->lock);
}

/* Whatever is not an error of the server's says that it is there. */
static void
on_check_end(void *arg, const char *why, kvp_call_fate_t fate)
{
    const check_t *check = arg;

    (void)fate;
    end_check(check, why == NULL && check->status < 500);
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
                                                  .first_ms = p->conf.connect_ms,
                                                  .idle_ms = p->conf.connect_ms},
                               &ops, &c->checks[server]) == NULL)
            end_check(&c->checks[server], false);
    }
}

void
kvp_checks_look(kvp_checks_t *c)
{
    kvp_proxy_shared_t *p = c->shared;

    atomic_store(&p->is_routing, p->router[0] != '\0' && p->has_instances(p->has_instances_arg));
    start_checks(c);
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
