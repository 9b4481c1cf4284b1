/* SPDX-License-Identifier: Apache-2.0
 * See proxy.h. */
#include "conductor/proxy/proxy.h"

#include "common/clock.h"
#include "common/log.h"
#include "conductor/proxy/front.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024
#define UPLOADS_MAX 4096u
#define BODIES_MAX (512u << 20) /* limit of the total length of all bodies, in bytes */

const kvp_proxy_conf_t kvp_proxy_defaults = {.threads = 1,
                                             .connect_ms = 2000,
                                             .prefill_ms = 120000,
                                             .first_ms = 600000,
                                             .idle_ms = 300000,
                                             .upload_ms = 60000,
                                             .allow_origin = "*"};

struct kvp_proxy {
    kvp_proxy_shared_t shared;
    int listening; /* the listening socket; -1 = not listening yet */
    kvp_front_t *fronts[KVP_PROXY_THREADS_MAX];
};

kvp_err_t
kvp_proxy_create(const kvp_proxy_conf_t *conf, kvp_proxy_t **out)
{
    kvp_proxy_t *p = calloc(1, sizeof *p);

    if (p == NULL) return KVP_NOMEM;
    p->shared.conf = *conf;
    p->shared.id = kvp_random_u64();
    p->listening = -1;
    kvp_err_t err = kvp_http_tokens_open(&p->shared.keys, conf->api_keys,
                                         conf->has_metrics_token && conf->api_keys != NULL, KVP_MAY_READ);
    if (err != KVP_OK) {
        free(p);
        return err;
    }
    (void)pthread_mutex_init(&p->shared.lock, NULL);
    kvp_places_init(&p->shared.places, UPLOADS_MAX, BODIES_MAX);
    *out = p;
    return KVP_OK;
}

void
kvp_proxy_route_by(kvp_proxy_t *p, const kvp_hostport_t *router, const char *token, bool (*has_instances)(void *arg),
                   void *arg)
{
    char at[KVP_HOSTPORT_TEXT_MAX];

    snprintf(p->shared.router, sizeof p->shared.router, "http://%s", kvp_format_hostport(router, at));
    if (token[0] != '\0') snprintf(p->shared.router_auth, sizeof p->shared.router_auth, "Authorization: %s", token);
    p->shared.has_instances = has_instances;
    p->shared.has_instances_arg = arg;
}

void
kvp_proxy_report_to(kvp_proxy_t *p, void (*left_out)(void *arg, const uint64_t *urls, uint32_t n), void *arg)
{
    p->shared.left_out = left_out;
    p->shared.left_out_arg = arg;
}

kvp_err_t
kvp_proxy_add(kvp_proxy_t *p, kvp_server_role_t role, const char *url, const char *bootstrap)
{
    pthread_mutex_lock(&p->shared.lock);
    const uint32_t at = kvp_fleet_add(&p->shared.fleet, role, url, bootstrap);
    pthread_mutex_unlock(&p->shared.lock);

    return at == KVP_SERVER_NONE ? KVP_LIMIT : KVP_OK;
}

kvp_err_t
kvp_proxy_remove(kvp_proxy_t *p, kvp_server_role_t role, const char *url)
{
    pthread_mutex_lock(&p->shared.lock);
    const bool was_there = kvp_fleet_remove(&p->shared.fleet, role, url);
    pthread_mutex_unlock(&p->shared.lock);

    return was_there ? KVP_OK : KVP_NOT_FOUND;
}

void
kvp_proxy_each(kvp_proxy_t *p, void (*fn)(void *arg, const kvp_fleet_server_t *server), void *arg)
{
    pthread_mutex_lock(&p->shared.lock);
    for (uint32_t i = 0; i < p->shared.fleet.n; i++)
        if (!p->shared.fleet.servers[i].is_gone) fn(arg, &p->shared.fleet.servers[i]);
    pthread_mutex_unlock(&p->shared.lock);
}

/* Returns a listening socket; -1 on failure, with errno. */
static int
bind_to(const struct addrinfo *at)
{
    const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
    int why;

    if (fd < 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 && bind(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    why = errno;
    close(fd);
    errno = why;
    return -1;
}

static kvp_err_t
begin_to_listen(kvp_proxy_t *p, kvp_hostport_t *bound_out)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    const kvp_hostport_t *at = &p->shared.conf.listen;
    struct sockaddr_storage bound;
    socklen_t bound_len = sizeof bound;
    struct addrinfo *found;
    char port[16];
    int rc;

    snprintf(port, sizeof port, "%u", at->port);
    rc = getaddrinfo(at->host, port, &hints, &found);
    if (rc != 0) {
        kvp_log_error("proxy", "cannot listen: %s host=%s port=%u", gai_strerror(rc), at->host, at->port);
        return KVP_SYS;
    }
    p->listening = bind_to(found);
    freeaddrinfo(found);
    if (p->listening < 0 || getsockname(p->listening, (struct sockaddr *)&bound, &bound_len) != 0) {
        kvp_log_error("proxy", "cannot listen: %m host=%s port=%u", at->host, at->port);
        return KVP_SYS;
    }
    *bound_out = *at;
    bound_out->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                        : ((struct sockaddr_in *)&bound)->sin_port);
    return KVP_OK;
}

kvp_err_t
kvp_proxy_start(kvp_proxy_t *p, kvp_hostport_t *bound_out)
{
    kvp_err_t err = begin_to_listen(p, bound_out);

    for (uint32_t i = 0; i < p->shared.conf.threads && err == KVP_OK; i++)
        err = kvp_front_start(&p->shared, p->listening, i == 0, &p->fronts[i]);
    return err;
}

void
kvp_proxy_stop(kvp_proxy_t *p)
{
    if (p == NULL) return;
    for (uint32_t i = 0; i < KVP_PROXY_THREADS_MAX; i++)
        kvp_front_ask_to_stop(p->fronts[i]); /* all fronts stop at the same time: each may need seconds */
    for (uint32_t i = 0; i < KVP_PROXY_THREADS_MAX; i++)
        kvp_front_stop(p->fronts[i]);
    if (p->listening >= 0) close(p->listening);
    kvp_fleet_fini(&p->shared.fleet);
    pthread_mutex_destroy(&p->shared.lock);
    kvp_places_fini(&p->shared.places);
    kvp_http_tokens_close(&p->shared.keys);
    free(p);
}
