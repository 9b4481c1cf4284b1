/* SPDX-License-Identifier: Apache-2.0
 * Base URLs of engines' servers, in the one spelling by which they are compared.
 */
#ifndef KVP_CONDUCTOR_BASE_URL_H
#define KVP_CONDUCTOR_BASE_URL_H

#include "common/parse.h"

/* kvp_base_url: http://HOST[:PORT][/PATH], or https, of text's len bytes: without trailing slashes,
 * and without the /v1 that clients of the OpenAI API append. INVALID: no such URL, or longer than
 * cap - 1 bytes. out may be text. */
kvp_err_t kvp_base_url(const char *text, size_t len, char *out, size_t cap) KVP_MUST_USE;

/* kvp_url_split returns the address (80 or 443 without a port) and the path: *path_out begins with
 * "/", or is empty, within url. INVALID: no such URL. */
kvp_err_t kvp_url_split(const char *url, kvp_hostport_t *at_out, const char **path_out) KVP_MUST_USE;

#endif
