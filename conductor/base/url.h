/* SPDX-License-Identifier: Apache-2.0
 * Base URLs of engines' servers, converted to one spelling, so that equal URLs compare equal. */
#ifndef KVP_CONDUCTOR_BASE_URL_H
#define KVP_CONDUCTOR_BASE_URL_H

#include "common/parse.h"

/* kvp_base_url reads a URL http(s)://HOST[:PORT][/PATH] from text (len bytes) and removes trailing slashes and the
 * /v1 that clients of the OpenAI API append. INVALID: text is not such a URL, or is longer than cap - 1 bytes. text
 * and out may be the same buffer. */
kvp_err_t kvp_base_url(const char *text, size_t len, char *out, size_t cap) KVP_MUST_USE;

/* kvp_url_split returns the address (port 80 or 443 if the URL has none) and the path. *path_out points into url,
 * and is empty or begins with "/". INVALID: url is not an http or https URL. */
kvp_err_t kvp_url_split(const char *url, kvp_hostport_t *at_out, const char **path_out) KVP_MUST_USE;

#endif
