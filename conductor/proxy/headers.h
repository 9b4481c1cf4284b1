/* SPDX-License-Identifier: Apache-2.0
 * The headers of a server's answer, and the choice of those that a proxy passes on. A list of headers is a buffer
 * with "Name\0value\0" for each, in the order of the answer. Pure functions. */
#ifndef KVP_CONDUCTOR_PROXY_HEADERS_H
#define KVP_CONDUCTOR_PROXY_HEADERS_H

#include "common/buf.h"

/* kvp_headers_next returns the next header's name and value, borrowed from the list, and advances *at, which
 * begins at 0. False = no more headers. */
bool kvp_headers_next(const kvp_buf_t *list, size_t *at, const char **name_out, const char **value_out);

/* kvp_headers_find returns the value of the first header with that name, ignoring case; NULL = none. */
const char *kvp_headers_find(const kvp_buf_t *list, const char *name);

/* kvp_headers_passes returns whether the header goes to the client unchanged. It returns false for hop-by-hop
 * headers (RFC 9110, 7.6.1), including those named in Connection; for the length and the type of the body, which
 * the proxy writes itself; and for X-Request-Id and Access-Control-*, which the proxy sets. */
bool kvp_headers_passes(const kvp_buf_t *list, const char *name);

#endif
