/* SPDX-License-Identifier: Apache-2.0
 * Writes the proxy's queries to the conductor's router (POST /route), and reads the router's answers and those of
 * a bootstrap server. */
#ifndef KVP_CONDUCTOR_PROXY_QUESTION_H
#define KVP_CONDUCTOR_PROXY_QUESTION_H

#include "conductor/proxy/body.h"
#include "conductor/proxy/fleet.h"

#define KVP_QUESTION_EXCLUDE_MAX 64u

/* kvp_question_write writes the request's model, its prompt or messages with every field that affects their tokens, and
 * the session: `session`, or if it is "" the body's `user`. exclude: URLs of servers that must not be chosen. */
void kvp_question_write(const kvp_body_t *request, const char *session, const char *const *exclude, uint32_t exclude_n,
                        kvp_buf_t *out);

typedef struct {
    char url[KVP_FLEET_URL_MAX + 1];
    uint64_t route; /* id of the route, for /route/done; 0 = none */
    int64_t rank; /* data-parallel rank; -1 = the instance has only rank 0 */
} kvp_routed_t;

/* kvp_told_read reads the answer of the router. It returns false if the answer names no server. */
bool kvp_told_read(const char *text, size_t len, kvp_routed_t *out);

/* kvp_ranks_read reads the answer of vLLM's bootstrap server to GET /query: {"RANK": {"engine_id": "ID", ...},
 * ...}. It returns the number of ranks in ranks_out; a rank without an id is left out. */
uint32_t kvp_ranks_read(const char *text, size_t len, kvp_server_rank_t ranks_out[KVP_FLEET_RANKS_MAX]);

#endif
