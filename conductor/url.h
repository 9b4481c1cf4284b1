/* SPDX-License-Identifier: Apache-2.0
 * Base URLs of engines' servers, in the one spelling by which they are compared.
 */
#ifndef KVP_CONDUCTOR_URL_H
#define KVP_CONDUCTOR_URL_H

#include "common/base.h"

/* kvp_base_url: http://HOST[:PORT][/PATH], or https, of text's len bytes: without slashes behind it, and without the /v1 that clients of the OpenAI API put there. INVALID: it is none, or
 * longer than cap - 1 bytes. out may be text. */
kvp_err_t kvp_base_url(const char *text, size_t len, char *out, size_t cap) KVP_MUST_USE;

/* kvp_url_host_end: where the port, the path or the end begins, of what kvp_base_url has written. */
const char *kvp_url_host_end(const char *url);

#endif
