/* SPDX-License-Identifier: Apache-2.0 */
#include "conductor/proxy/clients.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 64
#define OTHERS 64u /* file descriptors that are reserved for the rest of the process */
#define CROWDED_NS (3 * KVP_NS_PER_S)
#define CROWDED_CUTS 64u /* most connections that one kvp_clients_cut cuts after CROWDED_NS, before their head_ns */

uint32_t
kvp_clients_max(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 2 >= KVP_CLIENTS_MAX + OTHERS) return KVP_CLIENTS_MAX;
    return limit.rlim_cur / 2 > OTHERS + 1 ? (uint32_t)limit.rlim_cur / 2 - OTHERS : 1;
}

kvp_err_t
kvp_clients_init(kvp_clients_t *c, int listening, uint32_t max)
{
    *c = (kvp_clients_t){.listening = listening, .max = max};
    kvp_list_init(&c->heads);
    kvp_list_init(&c->left);
    c->watch = epoll_create1(EPOLL_CLOEXEC);
    return c->watch < 0 ? KVP_SYS : KVP_OK;
}

void
kvp_clients_fini(kvp_clients_t *c)
{
    if (c->watch > 0) close(c->watch);
}

kvp_client_t *
kvp_clients_enter(kvp_clients_t *c, void *front, int fd, uint64_t now_ns)
{
    kvp_client_t *client = calloc(1, sizeof *client);
    struct epoll_event end = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = client};

    if (client == NULL) return NULL;
    client->front = front;
    client->fd = fd;
    kvp_list_init(&client->link);
    kvp_list_init(&client->left_link);
    /* if the connection cannot be watched, libmicrohttpd's timeout finds its end */
    (void)epoll_ctl(c->watch, EPOLL_CTL_ADD, fd, &end);
    kvp_clients_expect(c, client, now_ns);
    c->n++;
    return client;
}

void
kvp_clients_leave(kvp_clients_t *c, kvp_client_t *client)
{
    if (client == NULL) return;
    (void)epoll_ctl(c->watch, EPOLL_CTL_DEL, client->fd, NULL);
    kvp_list_del(&client->link);
    kvp_list_del(&client->left_link);
    c->n--;
    free(client);
}

void
kvp_clients_begin(kvp_client_t *client)
{
    client->since_ns = 0;
    kvp_list_del(&client->link);
}

void
kvp_clients_expect(kvp_clients_t *c, kvp_client_t *client, uint64_t now_ns)
{
    client->since_ns = now_ns;
    kvp_list_del(&client->link);
    kvp_list_add_tail(&c->heads, &client->link);
    if (client->has_left) (void)shutdown(client->fd, SHUT_RDWR);
}

void
kvp_clients_find_left(kvp_clients_t *c)
{
    struct epoll_event events[EVENTS];
    int n;

    do {
        n = epoll_wait(c->watch, events, EVENTS, 0);
        for (int i = 0; i < n; i++) {
            kvp_client_t *client = events[i].data.ptr;

            if (client->has_left) continue;
            client->has_left = true;
            kvp_list_add_tail(&c->left, &client->left_link);
        }
    } while (n == EVENTS || (n < 0 && errno == EINTR));
}

kvp_client_t *
kvp_clients_take_left(kvp_clients_t *c)
{
    kvp_client_t *client;

    if (kvp_list_is_empty(&c->left)) return NULL;
    client = kvp_list_first(&c->left, kvp_client_t, left_link);
    kvp_list_del(&client->left_link);
    return client;
}

static bool
is_crowded(const kvp_clients_t *c)
{
    struct pollfd fd = {.fd = c->listening, .events = POLLIN};

    return c->n >= c->max && poll(&fd, 1, 0) > 0;
}

void
kvp_clients_cut(kvp_clients_t *c, uint64_t head_ns, uint64_t now_ns)
{
    const bool is_full = is_crowded(c);

    for (uint32_t i = 0; !kvp_list_is_empty(&c->heads); i++) {
        kvp_client_t *client = kvp_list_first(&c->heads, kvp_client_t, link);
        const uint64_t ns = now_ns - client->since_ns;

        if (ns <= head_ns && (!is_full || ns <= CROWDED_NS || i >= CROWDED_CUTS)) return;
        kvp_list_del(&client->link);
        (void)shutdown(client->fd, SHUT_RDWR); /* makes libmicrohttpd notice that the connection has ended */
    }
}
