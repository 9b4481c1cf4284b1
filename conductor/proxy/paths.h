/* SPDX-License-Identifier: Apache-2.0
 * The paths of the OpenAI port. Pure functions.
 */
#ifndef KVP_CONDUCTOR_PROXY_PATHS_H
#define KVP_CONDUCTOR_PROXY_PATHS_H

#include "common/base.h"

#define KVP_PATH_MAX 300u /* bytes of an accepted path */

typedef enum {
    KVP_PATH_COMPLETION, /* to any servers; a prefill server may compute the prompt */
    KVP_PATH_MODELS, /* to any servers */
    KVP_PATH_RESPONSE, /* to replicas, by the router */
    KVP_PATH_OTHER, /* to replicas */
    KVP_PATH_HEALTH, /* this and the following: the proxy's own */
    KVP_PATH_HEALTHCHECK,
    KVP_PATH_METRICS
} kvp_path_kind_t;

/* kvp_path_find: 200 and the kind of what is asked for, or 404, or 405. url is as the client wrote
 * it, with its escapes and without its query. */
uint32_t kvp_path_find(const char *method, const char *url, kvp_path_kind_t *kind_out);

#endif
