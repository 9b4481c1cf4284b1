/* SPDX-License-Identifier: Apache-2.0
 * Base URLs of engines' servers, in the one spelling by which they are compared.
 */
#ifndef KVP_CONDUCTOR_URL_H
#define KVP_CONDUCTOR_URL_H

#include "common/parse.h"

/* kvp_base_url: http://HOST[:PORT][/PATH], or https, of text's len bytes: without slashes behind it, and without the /v1 that clients of the OpenAI API put there. INVALID: it is none, or
 * longer than cap - 1 bytes. out may be text. */
kvp_err_t kvp_base_url(const char *text, size_t len, char *out, size_t cap) KVP_MUST_USE;

/* kvp_url_split: who is asked (80 or 443 where no port is named), and what for: *path_out begins with "/", or is empty, within url. INVALID: it is no such URL. */
kvp_err_t kvp_url_split(const char *url, kvp_hostport_t *at_out, const char **path_out) KVP_MUST_USE;

#endif
