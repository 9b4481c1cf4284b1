/* SPDX-License-Identifier: Apache-2.0
 * Asks servers for what a router wants to know: each second how busy they are, by /metrics
 * (requests that run, and that wait), and which models they serve, by /v1/models. A thread of its
 * own. */
#ifndef KVP_CONDUCTOR_ROUTER_LOAD_H
#define KVP_CONDUCTOR_ROUTER_LOAD_H

#include "conductor/router/models.h"

#define KVP_LOAD_RANKS_MAX 64u /* of a server, by the label `engine` */

typedef struct {
    /* The servers to ask: calls add(to, url, tag, wants_models) for each; url is copied. */
    void (*list)(void *arg, void (*add)(void *to, const char *url, const char *tag, bool wants_models), void *to);
    /* Whether a connection to the server of that tag could be made. */
    void (*asked)(void *arg, const char *tag, bool is_there);
    /* The requests of the rank, from the tag's server. */
    void (*told)(void *arg, const char *tag, uint32_t rank, uint32_t running, uint32_t waiting);
    /* A model in the list of the tag's server. */
    void (*listed)(void *arg, const char *tag, const char *name, kvp_model_kind_t kind);
    void *arg;
} kvp_load_ops_t;

typedef struct kvp_load kvp_load_t;

/* NOMEM, SYS; logged. The callbacks are called by the thread. */
kvp_err_t kvp_load_start(const kvp_load_ops_t *ops, kvp_load_t **out) KVP_MUST_USE;
void kvp_load_stop(kvp_load_t *load); /* waits for a second at most; NULL is legal */

/* kvp_load_parse reads a server's text: the requests of each rank. Returns how many ranks it has. */
uint32_t kvp_load_parse(const char *text, uint32_t running_out[KVP_LOAD_RANKS_MAX],
                        uint32_t waiting_out[KVP_LOAD_RANKS_MAX]);

#endif
