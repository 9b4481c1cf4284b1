/* SPDX-License-Identifier: Apache-2.0
 * The conductor's HTTP paths. Questions are answered on the server's thread, from the index; all else on the loop's.
 */
#ifndef KVP_CONDUCTOR_API_H
#define KVP_CONDUCTOR_API_H

#include "common/daemon/http.h"
#include "common/daemon/loop.h"
#include "conductor/events/registry.h"
#include "conductor/router/route.h"

#define KVP_QUESTION_MAX (16u << 20) /* bytes of the body of a question */

#define KVP_HIT_LENGTHS 6u

typedef struct {
    kvp_registry_t *registry; /* borrowed, as is the loop */
    kvp_loop_t *loop;
    kvp_routes_t *routes; /* owned */
    kvp_match_scratch_t *scratch;
    kvp_buf_t numbers, tokens, rest; /* of a question */
    /* tokens of whole blocks; matched: the longest match of any holder */
    _Atomic uint64_t questions, asked_tokens, matched_tokens;
    _Atomic uint64_t
        hits[KVP_HIT_LENGTHS]; /* questions by that length: 0, up to 255, 1023, 4095, 16383 tokens, and more */
} kvp_api_t;

/* kvp_api_route binds all paths. NOMEM. kvp_api_fini after the server has stopped. */
kvp_err_t kvp_api_route(kvp_api_t *api, kvp_http_t *http, kvp_loop_t *loop, kvp_registry_t *registry,
                        const kvp_router_weights_t *weights) KVP_MUST_USE;
void kvp_api_fini(kvp_api_t *api);

#endif
