/* SPDX-License-Identifier: Apache-2.0
 * Tokens of a text, as a replica's /tokenize makes them (vLLM's server has that path), and kept: a conversation is asked for again and again. Blocking; of any thread.
 */
#ifndef KVP_CONDUCTOR_ROUTER_TOKENS_H
#define KVP_CONDUCTOR_ROUTER_TOKENS_H

#include "common/buf.h"

typedef struct kvp_tokens kvp_tokens_t;

kvp_tokens_t *kvp_tokens_create(void); /* NULL = no memory, or no libcurl */
void kvp_tokens_destroy(kvp_tokens_t *t);

/* kvp_tokens_of appends uint32_t to out: those of that body (JSON, with `prompt` or `messages`), made by the server at url, or by another one before. False: *why_out (of 160 bytes) says
 * why not; it answers within 2 s or not at all. */
bool kvp_tokens_of(kvp_tokens_t *t, const char *url, const char *body, kvp_buf_t *out, char why_out[160]);

/* kvp_tokens_is_away: that server could not do so within the last 5 s; better ask another one. */
bool kvp_tokens_is_away(kvp_tokens_t *t, const char *url);

#endif
