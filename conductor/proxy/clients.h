/* SPDX-License-Identifier: Apache-2.0
 * The connections of one front's clients: ended ones, slow ones, and the ones that give way. On the
 * front's thread.
 * - libmicrohttpd does not poll a suspended connection, or one that it writes to, and misses an end
 *   that comes together with bytes. So each connection is watched for its end here.
 * - libmicrohttpd gives a client that sends a byte now and then unlimited time for a head. */
#ifndef KVP_CONDUCTOR_PROXY_CLIENTS_H
#define KVP_CONDUCTOR_PROXY_CLIENTS_H

#include "common/list.h"

#define KVP_CLIENTS_MAX 16384u /* of a proxy */

typedef struct {
    kvp_list_t heads; /* connections that wait for a head, the longest first */
    kvp_list_t left; /* ended connections, until kvp_clients_take_left */
    uint32_t n, max;
    int listening; /* borrowed */
    int watch; /* an epoll set; -1 = none. Readable when connections have ended */
} kvp_clients_t;

typedef struct {
    kvp_list_t link, left_link;
    void *front;
    void *request; /* under way; NULL = none */
    int fd;
    uint64_t since_ns; /* beginning of its wait for a head; 0 = it has sent one */
    bool has_left;
} kvp_client_t;

/* kvp_clients_max is how many connections a proxy may have: half of the descriptors, because each
 * request needs one towards a server, less 64 for the rest of the process. */
uint32_t kvp_clients_max(void);

kvp_err_t kvp_clients_init(kvp_clients_t *c, int listening, uint32_t max) KVP_MUST_USE; /* SYS */
void kvp_clients_fini(kvp_clients_t *c); /* legal on any partial state */

/* kvp_clients_enter: NULL = no memory. kvp_clients_leave frees it; NULL is legal. */
kvp_client_t *kvp_clients_enter(kvp_clients_t *c, void *front, int fd, uint64_t now_ns);
void kvp_clients_leave(kvp_clients_t *c, kvp_client_t *client);

/* kvp_clients_begin: its head has come. kvp_clients_expect: its request is over. */
void kvp_clients_begin(kvp_client_t *client);
void kvp_clients_expect(kvp_clients_t *c, kvp_client_t *client, uint64_t now_ns);

/* kvp_clients_find_left reads the watch. kvp_clients_take_left returns each ended connection once;
 * NULL = no more. */
void kvp_clients_find_left(kvp_clients_t *c);
kvp_client_t *kvp_clients_take_left(kvp_clients_t *c);

/* kvp_clients_cut ends the connections that have waited for a head for longer than head_ns. Where no
 * place is free, and a client waits for one, 3 s are long enough. */
void kvp_clients_cut(kvp_clients_t *c, uint64_t head_ns, uint64_t now_ns);

#endif
