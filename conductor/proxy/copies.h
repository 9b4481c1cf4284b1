/* SPDX-License-Identifier: Apache-2.0
 * Writes the two copies of a client's request: one for the prefill server, which asks for a single token, and one for
 * the decode server. Pure functions of the request's body.
 *
 * A hand-over transfers the KV cache of one prompt, for one choice. vLLM turns every prompt and every choice of a
 * request into a request of its own, all with the same kv_transfer_params (v1/engine/parallel_sampling.py copies
 * the parent's). The prefill server frees the cache after the first of these has fetched it, so the rest would
 * fetch freed blocks. Beam search drops the parameters (BeamSearchParams has none). */
#ifndef KVP_CONDUCTOR_PROXY_COPIES_H
#define KVP_CONDUCTOR_PROXY_COPIES_H

#include "conductor/proxy/body.h"

/* kvp_has_several_prompts returns whether the request has more than one prompt. kvp_has_several_choices returns whether
 * the request asks for more than one choice, or for a beam search. If a field is repeated, both values count. */
bool kvp_has_several_prompts(const kvp_body_t *request);
bool kvp_has_several_choices(const kvp_body_t *request);

/* kvp_copy_for_prefill appends the copy for the prefill server. params is the value of kv_transfer_params; NULL =
 * the server shall not keep the cache. */
void kvp_copy_for_prefill(const kvp_body_t *request, const char *params, kvp_buf_t *out);
/* kvp_copy_for_decode appends the copy for the decode server. params is the value of kv_transfer_params; NULL =
 * no such field. The client's own value is always removed, because it could name another client's blocks, or a host of
 * the client's choice. */
void kvp_copy_for_decode(const kvp_body_t *request, const char *params, kvp_buf_t *out);

#endif
