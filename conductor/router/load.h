/* SPDX-License-Identifier: Apache-2.0
 * Polls the engines' servers for the router: each second the numbers of running and waiting requests (/metrics), and
 * every 5 s the models that they serve (/v1/models). The polls run on a thread of their own. */
#ifndef KVP_CONDUCTOR_ROUTER_LOAD_H
#define KVP_CONDUCTOR_ROUTER_LOAD_H

#include "conductor/router/models.h"

#define KVP_LOAD_RANKS_MAX 64u /* limit of the data-parallel ranks of a server; metrics of higher ranks are ignored */

typedef struct {
    /* Calls add(to, url, tag, wants_models) for each server to poll. url is copied, and tag, its name in callbacks. */
    void (*list)(void *arg, void (*add)(void *to, const char *url, const char *tag, bool wants_models), void *to);
    /* Reports whether a connection to the tag's server could be made. */
    void (*asked)(void *arg, const char *tag, bool is_there);
    /* Reports the numbers of running and waiting requests in a rank of the tag's server. */
    void (*told)(void *arg, const char *tag, uint32_t rank, uint32_t running, uint32_t waiting);
    /* Reports a model in the list of the tag's server. */
    void (*listed)(void *arg, const char *tag, const char *name, kvp_model_kind_t kind);
    void *arg;
} kvp_load_ops_t;

typedef struct kvp_load kvp_load_t;

/* kvp_load_start starts the thread, which calls all callbacks. NOMEM, SYS (logged). */
kvp_err_t kvp_load_start(const kvp_load_ops_t *ops, kvp_load_t **out) KVP_MUST_USE;
void kvp_load_stop(kvp_load_t *load); /* waits at most a second for the thread; NULL is legal */

/* kvp_load_parse reads each rank's running and waiting requests from a text of /metrics; returns the rank count. */
uint32_t kvp_load_parse(const char *text, uint32_t running_out[KVP_LOAD_RANKS_MAX],
                        uint32_t waiting_out[KVP_LOAD_RANKS_MAX]);

#endif
