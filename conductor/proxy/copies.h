/* SPDX-License-Identifier: Apache-2.0
 * The two copies of a request: the prefill server's, which asks for one token, and the decode
 * server's. Pure functions of the request's body.
 *
 * A hand-over is one cache: of one prompt, for one choice. In vLLM every prompt and every choice of
 * a request becomes a request of its own, and all of them get the same kv_transfer_params
 * (v1/engine/parallel_sampling.py copies the parent's). The prefill server frees the cache after
 * the first one has fetched it, so the others would fetch freed blocks. Beam search drops the
 * parameters (BeamSearchParams has none). */
#ifndef KVP_CONDUCTOR_PROXY_COPIES_H
#define KVP_CONDUCTOR_PROXY_COPIES_H

#include "conductor/proxy/body.h"

/* kvp_has_several_prompts returns whether the request has more than one prompt.
 * kvp_has_several_choices returns whether it asks for more than one choice, or for a beam search. A
 * repeated field counts both times. */
bool kvp_has_several_prompts(const kvp_body_t *request);
bool kvp_has_several_choices(const kvp_body_t *request);

/* kvp_copy_for_prefill appends the copy that computes the prompt. params is the value of kv_transfer_params; NULL = the
 * server is to keep nothing. */
void kvp_copy_for_prefill(const kvp_body_t *request, const char *params, kvp_buf_t *out);
/* kvp_copy_for_decode appends the request with kv_transfer_params of that value; NULL = without. The client's own never
 * pass: they could name another client's blocks, or a host of the client's. */
void kvp_copy_for_decode(const kvp_body_t *request, const char *params, kvp_buf_t *out);

#endif
