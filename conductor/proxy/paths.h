/* SPDX-License-Identifier: Apache-2.0
 * Classifies the paths of the OpenAI port. Pure functions. */
#ifndef KVP_CONDUCTOR_PROXY_PATHS_H
#define KVP_CONDUCTOR_PROXY_PATHS_H

#include "common/base.h"

#define KVP_PATH_MAX 300u /* length of the longest accepted path, in bytes */

typedef enum {
    /* kind of path: a completion; a replica serves it, or a decode server, for which a prefill server may compute the
     * prompt first */
    KVP_PATH_COMPLETION,
    KVP_PATH_MODELS, /* kind of path: the list of models, for a server of any role */
    KVP_PATH_RESPONSE, /* kind of path: the Responses API, for replicas; the router chooses the replica */
    KVP_PATH_OTHER, /* kind of path: any other, for replicas, without the router */
    KVP_PATH_HEALTH, /* this kind of path and the following kinds are answered by the proxy itself */
    KVP_PATH_HEALTHCHECK,
    KVP_PATH_METRICS
} kvp_path_kind_t;

/* kvp_path_find returns 200 and the kind of the path, or 404, or 405. url is the path exactly as the client wrote
 * it, with its escapes and without its query. */
uint32_t kvp_path_find(const char *method, const char *url, kvp_path_kind_t *kind_out);

#endif
