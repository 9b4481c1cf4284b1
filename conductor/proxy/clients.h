/* SPDX-License-Identifier: Apache-2.0
 * The client connections of one front, which is a thread of the proxy: finds ended connections and cuts slow ones. All
 * functions run on this thread.
 * - libmicrohttpd does not poll a suspended connection, or one to which it writes, and misses an end that arrives
 *   together with bytes. So each connection is watched for its end here.
 * - libmicrohttpd gives a client that sends a byte now and then unlimited time for the head of a request. */
#ifndef KVP_CONDUCTOR_PROXY_CLIENTS_H
#define KVP_CONDUCTOR_PROXY_CLIENTS_H

#include "common/list.h"

#define KVP_CLIENTS_MAX 16384u /* limit of the client connections of a proxy */

typedef struct {
    kvp_list_t heads; /* connections that wait for the head of a request; the longest waiting is first */
    kvp_list_t left; /* ended connections that kvp_clients_take_left has not returned yet */
    uint32_t n, max;
    int listening; /* descriptor of the listening socket; borrowed */
    int watch; /* epoll set of all connections, readable when a connection has ended; -1 = none */
} kvp_clients_t;

typedef struct {
    kvp_list_t link, left_link;
    void *front;
    void *request; /* the connection's current request; NULL = none */
    int fd;
    uint64_t since_ns; /* time at which the connection began to wait for a head; 0 = the head has arrived */
    bool has_left;
} kvp_client_t;

/* kvp_clients_max returns how many client connections a proxy may have: half of the file descriptors, because each
 * request also needs a connection to a server, less 64 for the rest of the process. */
uint32_t kvp_clients_max(void);

/* makes the set of connections; fails with SYS */
kvp_err_t kvp_clients_init(kvp_clients_t *c, int listening, uint32_t max) KVP_MUST_USE;
void kvp_clients_fini(kvp_clients_t *c); /* frees the set of connections; legal on any partial state */

/* kvp_clients_enter adds a connection; NULL = no memory. kvp_clients_leave removes and frees it; NULL is legal. */
kvp_client_t *kvp_clients_enter(kvp_clients_t *c, void *front, int fd, uint64_t now_ns);
void kvp_clients_leave(kvp_clients_t *c, kvp_client_t *client);

/* kvp_clients_begin records that the head of a request has arrived on the connection. kvp_clients_expect records that
 * the request has ended, so the next head is expected. */
void kvp_clients_begin(kvp_client_t *client);
void kvp_clients_expect(kvp_clients_t *c, kvp_client_t *client, uint64_t now_ns);

/* kvp_clients_find_left reads the epoll set for ended connections. kvp_clients_take_left returns each ended
 * connection once; NULL = no more. */
void kvp_clients_find_left(kvp_clients_t *c);
kvp_client_t *kvp_clients_take_left(kvp_clients_t *c);

/* kvp_clients_cut cuts the connections that have waited for a request's head for longer than head_ns, or for longer
 * than 3 s if `max` connections exist and a new client waits to be accepted. */
void kvp_clients_cut(kvp_clients_t *c, uint64_t head_ns, uint64_t now_ns);

#endif
